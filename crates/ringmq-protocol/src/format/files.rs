//! The bytes of a partition's files: segment, commit log, snapshot; and of `topic.meta` and `node.meta`.
//!
//! All integers are little-endian. Each structure starts with its magic and a crc32 of everything of it that follows
//! the crc; so zero bytes are never valid. docs/on-disk.md draws them; tests/golden freezes them.
//!
//! ```text
//! segment      [header block 4 KiB][batch][batch]...            batch at file position 4096 + offset - base offset
//! commit log   [header block 4 KiB][record 64 B]...             record i at 4096 + 64 i, one per batch of the segment
//! snapshot     [header][channel]...[producer]...[epoch]...[padding to 4 KiB] two files written in turn, the higher sequence wins
//! ```

use crate::format::segment_table::SegmentTable;

use crate::base::{Epoch, LogId, PartitionId, Position, TopicId};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const VERSION: u16 = 1;

pub const SEGMENT_MAGIC: [u8; 4] = *b"RQS1";
pub const COMMIT_MAGIC: [u8; 4] = *b"RQC1";
pub const SNAPSHOT_MAGIC: [u8; 4] = *b"RQP1";
pub const TOPIC_MAGIC: [u8; 4] = *b"RQT1";
pub const NODE_MAGIC: [u8; 4] = *b"RQN1";

/// The first block of a segment and of a commit log file is its header, and the table of the segments before it.
pub const FILE_HEADER_LEN: u64 = crate::base::BLOCK as u64;

/// Sets the crc (bytes 4..8) of a structure that starts with magic and crc.
pub fn seal<T: IntoBytes + Immutable + FromBytes>(value: &mut T) {
    let bytes = value.as_mut_bytes();
    let crc = crc32fast::hash(&bytes[8..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Whether the crc of a structure that starts with magic and crc holds.
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes.len() >= 8 && bytes[4..8] == crc32fast::hash(&bytes[8..]).to_le_bytes()
}

/// A [`Position`] as stored.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RawPosition {
    pub offset: I64,
    pub count: I64,
    pub log_id: U64,
}

impl From<Position> for RawPosition {
    fn from(p: Position) -> Self {
        RawPosition { offset: p.offset.into(), count: p.count.into(), log_id: p.log_id.0.into() }
    }
}

impl From<RawPosition> for Position {
    fn from(p: RawPosition) -> Self {
        Position { offset: p.offset.get(), count: p.count.get(), log_id: LogId(p.log_id.get()) }
    }
}

/// Start of a segment and of its commit log. Behind it, up to the block's end, stands a [`SegmentTable`], or zeros. 96 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct FileHeader {
    /// [`SEGMENT_MAGIC`] or [`COMMIT_MAGIC`].
    pub magic: [u8; 4],
    pub crc: U32,
    pub version: U16,
    pub partition: U16,
    /// Header crc of the batch before the first one here: the chain goes on over the border.
    pub prev_crc: U32,
    pub topic_id: [u8; 16],
    pub base: RawPosition,
    /// The epoch in which the file was begun.
    pub epoch: U64,
    pub created_unix_ns: I64,
    pub reserved: [u8; 24],
}

impl FileHeader {
    pub fn new(
        magic: [u8; 4],
        topic_id: TopicId,
        partition: PartitionId,
        base: Position,
        prev_crc: u32,
        epoch: Epoch,
        now: i64,
    ) -> Self {
        let mut h = FileHeader {
            magic,
            crc: 0.into(),
            version: VERSION.into(),
            partition: partition.0.into(),
            prev_crc: prev_crc.into(),
            topic_id: topic_id.0,
            base: base.into(),
            epoch: epoch.0.into(),
            created_unix_ns: now.into(),
            reserved: [0; 24],
        };
        seal(&mut h);
        h
    }

    /// The whole first block. `before`: the segments before this one.
    pub fn block(&self, before: &SegmentTable) -> Vec<u8> {
        let mut block = vec![0; FILE_HEADER_LEN as usize];
        block[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        before.encode(&mut block, TopicId(self.topic_id), PartitionId(self.partition.get()), self.base.offset.get());
        block
    }

    /// Place of the segment that the header names.
    pub fn meta(&self) -> SegmentMeta {
        SegmentMeta { base: self.base.into(), prev_crc: self.prev_crc.get() }
    }

    /// Verifies `bytes` as the header of this file. The error is the first reason why they are not.
    pub fn parse(bytes: &[u8], magic: [u8; 4], topic_id: TopicId, partition: PartitionId, base: i64) -> Result<Self, Bad> {
        let (h, _) = Self::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        check(&h.magic, magic, h.as_bytes(), h.version.get())?;
        if h.topic_id != topic_id.0 || h.partition.get() != partition.0 || h.base.offset.get() != base {
            return Err(Bad::Foreign);
        }
        Ok(h)
    }
}

/// Reason why bytes are not the structure that belongs at their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    #[error("cut short")]
    Short,
    #[error("all zeros")]
    Zero,
    #[error("wrong magic")]
    Magic,
    #[error("checksum mismatch")]
    Crc,
    #[error("version {0} is not known to this build")]
    Version(u16),
    #[error("belongs to another topic, partition, place or time")]
    Foreign,
    #[error("a length or number out of its bounds")]
    Bounds,
    #[error("does not continue the batch before it")]
    Chain,
    #[error("record kind {0} is not known to this build")]
    Kind(u16),
}

/// Magic, crc, version, in this order, so that a foreign or torn block is not called a new version.
pub fn check(found: &[u8; 4], magic: [u8; 4], bytes: &[u8], version: u16) -> Result<(), Bad> {
    if bytes.iter().all(|&b| b == 0) {
        return Err(Bad::Zero);
    }
    if *found != magic {
        return Err(Bad::Magic);
    }
    if !is_sealed(bytes) {
        return Err(Bad::Crc);
    }
    if version != VERSION {
        return Err(Bad::Version(version));
    }
    Ok(())
}

/// Commit record, one for each durable batch, in log order: the index for recovery, search, dedup and catch-up. 64 bytes. The crc is
/// seeded with the topic id and partition of the file's header ([`CommitRecord::crc_of`]), so that a record of another file never
/// passes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct CommitRecord {
    pub log_id: U64,
    pub epoch: U64,
    pub last_log_id: U64,
    pub offset: I64,
    pub count: I64,
    /// The batch's base timestamp.
    pub unix_ns: I64,
    /// Header and body of the batch.
    pub size: U32,
    pub num: U32,
    /// The batch's header crc.
    pub batch_crc: U32,
    pub crc: U32,
}

pub const COMMIT_RECORD_LEN: usize = size_of::<CommitRecord>();

impl CommitRecord {
    pub fn seal(mut self, topic_id: TopicId, partition: PartitionId) -> Self {
        self.crc = self.crc_of(topic_id, partition).into();
        self
    }

    pub fn crc_of(&self, topic_id: TopicId, partition: PartitionId) -> u32 {
        // In one piece: starting a crc costs more than so few bytes.
        let mut bytes = [0; 4 + 16 + 2 + COMMIT_RECORD_LEN - 4];
        bytes[..4].copy_from_slice(&COMMIT_MAGIC);
        bytes[4..20].copy_from_slice(&topic_id.0);
        bytes[20..22].copy_from_slice(&partition.0.to_le_bytes());
        bytes[22..].copy_from_slice(&self.as_bytes()[..COMMIT_RECORD_LEN - 4]);
        crc32fast::hash(&bytes)
    }

    pub fn is_valid(&self, topic_id: TopicId, partition: PartitionId) -> bool {
        self.log_id.get() != 0 && self.crc.get() == self.crc_of(topic_id, partition)
    }

    pub fn position(&self) -> Position {
        Position { offset: self.offset.get(), count: self.count.get(), log_id: LogId(self.log_id.get()) }
    }

    pub fn end(&self) -> Position {
        Position {
            offset: self.offset.get() + self.size.get() as i64,
            count: self.count.get() + self.num.get() as i64,
            log_id: LogId(self.last_log_id.get() + 1),
        }
    }
}

/// Start of a partition's snapshot. The crc covers the whole snapshot up to `len`, with all that stands behind it. 224 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct SnapshotHeader {
    pub magic: [u8; 4],
    pub crc: U32,
    pub version: U16,
    pub partition: U16,
    /// Bytes of the snapshot, this header included, padding not.
    pub len: U32,
    pub topic_id: [u8; 16],
    /// Rises by one with each snapshot of the partition; its slot is the remainder of its division by three.
    pub sequence: U64,
    /// Every journal record of this partition up to this partition sequence is contained.
    pub applied: U64,
    /// The epoch of the last batch before `end`.
    pub epoch: U64,
    /// First position still stored: retention moved it.
    pub start: RawPosition,
    /// End of the synced bytes in segments and commit logs.
    pub end: RawPosition,
    /// The committed end when the snapshot was taken: beyond `end` only on a replica that lost something.
    pub committed: RawPosition,
    /// Position at which the topic's next first channel starts.
    pub collect_start: RawPosition,
    /// Header crc of the last batch before `end`.
    pub chain_crc: U32,
    pub channels: U32,
    /// Base offset of the segment that holds `end`.
    pub segment_base: I64,
    /// Bits [`SNAPSHOT_SUSPECT`], [`SNAPSHOT_DAMAGED`] and [`SNAPSHOT_TORN`].
    pub flags: U32,
    /// Number of producers behind the channels.
    pub producers: U32,
    /// Base timestamp of the last batch before `end`; zero when unknown.
    pub unix_ns: I64,
    /// The highest epoch that the replica promised to follow; zero: it is none of several.
    pub promised: U64,
    /// Number of [`RawEpochEnd`] behind the producers; with [`SNAPSHOT_DAMAGED`] one more follows.
    pub epochs: U32,
    /// The generation of the startup that lost channels, until that is accepted; zero: none was lost.
    pub channels_lost: U64,
    pub reserved: [u8; 20],
}

/// Snapshot flag: the replica is suspect, since a recovery truncated, lost or set aside something.
pub const SNAPSHOT_SUSPECT: u32 = 1;
/// Snapshot flag: the end up to which the replica vouches for its data follows the epochs. Damage begins there.
pub const SNAPSHOT_DAMAGED: u32 = 2;
/// Snapshot flag beside [`SNAPSHOT_SUSPECT`]: recovery truncated only writes that nothing names as complete.
pub const SNAPSHOT_TORN: u32 = 4;

/// End of an epoch's batches, in a snapshot. 40 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct RawEpochEnd {
    pub epoch: U64,
    pub end: RawPosition,
    /// Header crc of the batch that ends at the end of the log.
    pub chain_crc: U32,
    pub reserved: U32,
}

/// Channel in a snapshot and in a cursor record. After it follow the name, its [intervals](crate::format::intervals), its
/// [`RawHanded`], and zeros to a multiple of 8. 64 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct RawCursor {
    /// Bytes of this channel: this structure, name, intervals, runs of delivered messages, padding.
    pub len: U32,
    pub name_len: U16,
    /// Bit 0: paused. Bit 1: ordered.
    pub flags: U16,
    pub epoch: U64,
    /// Raised by set, empty and backward moves.
    pub generation: U64,
    /// Start of the batch that holds the first unconfirmed message, messages confirmed contiguously, its log id.
    pub confirmed: RawPosition,
    pub intervals: U32,
    /// Runs of messages that had been delivered before a clean stop.
    pub handed: U32,
    pub reserved: [u8; 8],
}

/// Messages that a channel had delivered before a clean stop, and that are not confirmed. 24 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct RawHanded {
    pub log_id: U64,
    pub num: U32,
    pub attempts: U16,
    /// Seconds from the stop to `due_unix_ns`, rounded up; 65535: as many or more.
    pub wait_s: U16,
    /// Nanoseconds since 1970; 0: at once.
    pub due_unix_ns: I64,
}

pub const CURSOR_PAUSED: u16 = 1;
pub const CURSOR_ORDERED: u16 = 2;
/// The topic's first channel: it begins at the oldest message in every partition.
pub const CURSOR_FIRST: u16 = 4;

/// Idempotent producer in a snapshot, the least recently used first. After it follow `batches` x [`RawProducerBatch`], oldest first. 32
/// bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct RawProducer {
    /// Never zero.
    pub id: U64,
    /// Sequence of its next message.
    pub next: U64,
    /// The latest base timestamp of a producer's batch in the log, when its own last one was appended.
    pub last_unix_ns: I64,
    /// 1 to 5.
    pub batches: U32,
    pub reserved: U32,
}

/// Start and number of messages of a producer's batch. The last one ends before sequence `next`, the others each before
/// the one behind it. 32 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct RawProducerBatch {
    pub at: RawPosition,
    pub num: U32,
    pub reserved: U32,
}

/// `topic.meta.0` and `topic.meta.1`: the same block in both, never changed under the same id. 192 bytes and zeros.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct TopicHeader {
    pub magic: [u8; 4],
    pub crc: U32,
    pub version: U16,
    pub partitions: U16,
    pub name_len: U32,
    pub topic_id: [u8; 16],
    pub created_unix_ns: I64,
    pub flags: U32,
    pub name: [u8; 64],
    pub reserved: [u8; 84],
}

/// `node.meta.0` and `node.meta.1`: a block each, written in turn, the higher sequence wins. 64 bytes and zeros.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct NodeHeader {
    pub magic: [u8; 4],
    pub crc: U32,
    pub version: U16,
    /// Number of journals that were begun under this generation, one per core from 0. Zero: not all of them yet.
    pub journals: U16,
    pub reserved_32: U32,
    /// Random, given at the first startup.
    pub node_id: [u8; 16],
    pub sequence: U64,
    /// Raised durably at each startup, after all journals were replayed: journals of lower generations are closed.
    /// It is the epoch of a stand-alone node's batches.
    pub generation: U64,
    /// The highest version of a cluster file that was in force here. Zero: the node was never in a cluster.
    pub cluster_version: U64,
    pub reserved: [u8; 8],
}

const _: () = {
    assert!(size_of::<RawPosition>() == 24);
    assert!(size_of::<FileHeader>() == 96);
    assert!(size_of::<CommitRecord>() == 64);
    assert!(size_of::<SnapshotHeader>() == 224);
    assert!(size_of::<RawCursor>() == 64);
    assert!(size_of::<RawEpochEnd>() == 40);
    assert!(size_of::<RawProducer>() == 32);
    assert!(size_of::<RawProducerBatch>() == 32);
    assert!(size_of::<TopicHeader>() == 192);
    assert!(size_of::<NodeHeader>() == 64);
};

/// Segment (and its commit log) as its file header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    /// The first batch of the segment stands here; the files are named by the offset.
    pub base: Position,
    /// Header crc of the batch before it.
    pub prev_crc: u32,
}
