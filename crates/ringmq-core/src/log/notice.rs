//! Vocabulary between the shard and the store: options, tickets, refusals, notices.

use super::native::NativeBatch;
use super::producers::ProducerLimits;
use super::verbatim::{Run, Unreadable};
use crate::base::{CoreId, DiskError, DiskOp, Epoch, LogId, OpId, Position};
use crate::config::{Settings, TopicSettings};
use crate::format::cursor::CursorImage;
use crate::format::journal::JournalIdentity;
use crate::format::producer::SequenceError;
use std::collections::BTreeMap;

/// A partition in its core's store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PartitionIdx(pub u32);

/// An append to a partition; rises by one with each, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct AppendTicket(pub u64);

/// A small fact given to the journal; rises with each over the whole core, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct RecordTicket(pub u64);

/// Reason why a taken append is not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendError {
    /// The core or the partition became read-only; nothing of the append was written.
    ReadOnly,
    /// The write was issued and not confirmed: the append may turn out to be stored.
    Unknown,
}

/// Disk operations that the store wants done, each with the store's id for it.
pub type Io = Vec<(OpId, DiskOp)>;

/// Given by the shard: the current cursors of a partition, for its snapshot.
pub trait CursorSource {
    fn cursors(&self, p: PartitionIdx) -> Vec<CursorImage>;
}

/// Sizes in bytes; `docs` of each stand with the setting of the same name.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    pub core: CoreId,
    /// Epoch of new batches: the generation of this startup.
    pub epoch: Epoch,
    pub journal: JournalIdentity,
    pub max_bytes_per_file: u64,
    pub direct_bytes: u64,
    pub flush_bytes: u64,
    pub read_cache_bytes: u64,
    pub tail_cache_bytes: u64,
    pub max_pub_waiting_size: u64,
    pub retention_ms: u64,
    pub retention_bytes: u64,
    /// Topics that have a retention of their own.
    pub topics: BTreeMap<String, TopicSettings>,
    /// The same of a cluster's topics, as its metadata says; it comes before the node's.
    pub cluster_topics: BTreeMap<String, TopicSettings>,
    /// Zero: no scrubbing.
    pub scrub_bytes_per_second: u64,
    /// Rate at which unneeded segments are deleted. Zero: at once.
    pub delete_bytes_per_second: u64,
    pub producers: ProducerLimits,
}

impl StoreOptions {
    /// (milliseconds, bytes) for which a topic's confirmed messages are kept.
    pub fn retention_of(&self, topic: &str) -> (u64, u64) {
        let own = TopicSettings::retention(self.topics.get(topic), (self.retention_ms, self.retention_bytes));
        TopicSettings::retention(self.cluster_topics.get(topic), own)
    }

    /// Whether age keeps anything: then it is looked at from time to time.
    pub fn is_any_timed(&self) -> bool {
        self.retention_ms > 0
            || self.topics.values().chain(self.cluster_topics.values()).any(|t| t.retention_ms.is_some_and(|ms| ms > 0))
    }

    pub fn new(settings: &Settings, core: CoreId, epoch: Epoch, journal: JournalIdentity) -> Self {
        StoreOptions {
            core,
            epoch,
            journal,
            max_bytes_per_file: settings.max_bytes_per_file,
            direct_bytes: settings.direct_bytes,
            flush_bytes: settings.flush_bytes,
            read_cache_bytes: settings.read_cache_bytes,
            tail_cache_bytes: settings.tail_cache_bytes,
            max_pub_waiting_size: settings.max_pub_waiting_size,
            retention_ms: settings.retention_ms,
            retention_bytes: settings.retention_bytes,
            topics: settings.topics.clone(),
            cluster_topics: BTreeMap::new(),
            scrub_bytes_per_second: settings.scrub_bytes_per_second,
            delete_bytes_per_second: settings.delete_bytes_per_second,
            producers: settings.into(),
        }
    }
}

/// Reason why an append was refused. Nothing was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The append only has to wait: [`Notice::Room`] says when to try again.
    #[error("the append must wait for space, the journal or the disk")]
    Busy,
    /// Tried again each second; [`Notice::Room`] says when it worked.
    #[error("the disk is full")]
    DiskFull,
    /// No publish is taken until a restart.
    #[error("a write to the partition's files or to the core's journal failed")]
    ReadOnly,
    /// Never.
    #[error("the messages do not fit into one batch")]
    TooBig,
}

/// Outcome of a client's batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Appended {
    /// The batch is at `at`. It is acknowledged once [`Notice::Durable`] reaches the ticket.
    New { at: Position, ticket: AppendTicket },
    /// The producer repeats a batch that the log has already, at `at` as far as that is remembered. With a ticket the original is not
    /// durable yet: the notices of that ticket give the outcome of the repeat. The ticket may be lower than others that were given out
    /// since.
    Duplicate { at: Option<Position>, ticket: Option<AppendTicket> },
}

/// Reason why a client's batch was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BatchRefusal {
    #[error(transparent)]
    Store(#[from] Refusal),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
}

/// Refused native batch, returned whole: nothing of it was stored.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NotAppended {
    pub why: BatchRefusal,
    pub batch: NativeBatch,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchBy {
    LogId(LogId),
    Count(i64),
    Offset(i64),
    /// Nanoseconds since 1970.
    UnixNs(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// All batches below `end` are durable, and with them every append up to the ticket.
    Durable { p: PartitionIdx, end: Position, tickets_upto: AppendTicket },
    /// Tickets from `from` on that were neither acknowledged nor failed before will never be acknowledged. When some of them were
    /// issued and some not, two notices come, the later tickets' first.
    AppendFailed { p: PartitionIdx, from: AppendTicket, error: AppendError },
    /// Small facts up to here are durable.
    RecordDurable { upto: RecordTicket },
    /// A read that `fetch` started has come in, or failed: fetch again.
    Readable { p: PartitionIdx },
    /// Appends that were refused as busy, or for a full disk, may be tried again.
    Room,
    /// The answer to a search. `None`: no batch fits (only by time).
    Found { token: u64, result: Result<Option<Position>, DiskError> },
    /// Stored bytes do not hold; the store has logged it.
    Damage { p: PartitionIdx, from: Position, to: Position, what: String },
    /// A range that was lost is written again, durably, as a peer had it; or it is not, and may be tried again.
    Mended { p: PartitionIdx, is_whole: bool },
    /// The journal takes nothing any more: no publish, and no small fact becomes durable, until a restart.
    ReadOnly { reason: String },
    /// A partition that was removed is gone, with all the store knew of it; or it could not be removed, and stays as it is.
    Removed { p: PartitionIdx, is_gone: bool },
    /// The same of a topic's last file.
    TopicRemoved { key: u64, is_gone: bool },
    /// Retention would remove all before `at`, which the replicas have not agreed on
    /// ([`Store::set_agreed_start`](super::Store::set_agreed_start)).
    Removable { p: PartitionIdx, at: Position },
    /// A truncation is durable and complete: the log ends where it was to, or before it, where damage hid that place.
    Truncated { p: PartitionIdx },
    /// The answer to a [`Store::read_verbatim`](super::Store::read_verbatim): whole batches, verified, and where they end.
    Verbatim { p: PartitionIdx, token: u64, result: Result<Run, Unreadable> },
    /// Everything that can be durable is durable; the store does nothing more.
    Stopped,
}

/// State of one partition's log for /stats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Messages and bytes (headers included) stored.
    pub messages: u64,
    pub bytes: u64,
    pub segments: u64,
    /// Durable in the journal, not yet in a segment.
    pub unflushed_bytes: u64,
    pub read_only: bool,
    pub disk_full: bool,
}
