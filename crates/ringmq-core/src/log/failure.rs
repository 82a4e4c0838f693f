//! Consequences of a failed write: the part that is closed, and the notices about it. A failed file is never written again.
//!
//! ```text
//! journal write or slot      the core: no publish, no fact becomes durable; reads go on
//! segment, commit, snapshot  the partition: no publish; its batches in the journal are acknowledged and readable
//! topic.meta                 nothing but the checkpoint, which never passes the topic's record
//! no space for snapshots     the journal is not freed: once it fills, publishes and new channels are refused, then FINs wait
//! ring full for good         the core: no publish, no new channel; facts go on while the reserve lasts, then FINs wait in their channels
//! ```

use super::core_logs::CoreLogs;
use super::notice::{Notice, PartitionIdx};
use super::partition::{Closed, PartitionLog};
use crate::base::DiskError;
use crate::log::AppendError;
use slab::Slab;

/// Failures of a core, until a restart.
#[derive(Default)]
pub(super) struct Failures {
    /// Reason why no publish is taken, if a file of the core failed.
    core: Option<String>,
    /// Partitions whose files are not written any more, since a write failed.
    partitions: Vec<PartitionIdx>,
    /// Departed partitions whose files could not be removed: the next startup removes them.
    stuck: Vec<PartitionIdx>,
}

impl Failures {
    pub fn is_core_closed(&self) -> bool {
        self.core.is_some()
    }

    /// The first journal writes that the files of failed partitions need.
    pub fn needed(&self, logs: &Slab<PartitionLog>) -> impl Iterator<Item = u64> {
        self.partitions.iter().chain(&self.stuck).filter_map(|p| logs[p.0 as usize].journaled.dirty_from())
    }

    /// Reason why the core takes no publish, if that is so.
    pub fn of_core(&self) -> Option<&str> {
        self.core.as_deref()
    }

    /// Number of failed partitions, and the first.
    pub fn first(&self) -> Option<(usize, PartitionIdx)> {
        self.partitions.first().map(|&p| (self.partitions.len(), p))
    }

    /// A departed partition's files could not be removed.
    pub fn stuck(&mut self, p: PartitionIdx) {
        self.stuck.push(p);
    }

    /// The partition is being removed.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.partitions.retain(|&q| q != p);
    }
}

impl CoreLogs {
    /// Closes the partition, of which a write failed. False: it was closed before.
    pub fn close_failed(&mut self, p: PartitionIdx, error: &DiskError) -> bool {
        let part = &mut self.partitions[p.0 as usize];
        if part.is_closed() {
            return false;
        }
        tracing::error!(%error, topic = %part.dir.topic, partition = %part.dir.partition,
            "a write failed: the partition is read-only until a restart");
        part.closed = Some(Box::new(Closed::Failed(error.to_string())));
        true
    }

    /// Batches of a failed partition that the journal has, or will have in a moment, are acknowledged; the rest never will be.
    pub fn fail_batches(&mut self, p: PartitionIdx) {
        let part = &mut self.partitions[p.0 as usize];
        let kept = part.progress.enqueued();
        let (issued, unsealed) = (part.batches.get(kept).map(|r| r.tickets.0), part.open.unsealed());
        let (dropped, cost) = part.forget_from(kept);
        self.admission.dropped(dropped, cost);
        self.turn.must_seal(); // it has no open batch any more
        if let Some(from) = unsealed {
            self.notices.push(Notice::AppendFailed { p, from, error: AppendError::ReadOnly });
        }
        if let Some(from) = issued {
            self.notices.push(Notice::AppendFailed { p, from, error: AppendError::Unknown });
        }
        self.failures.partitions.push(p);
        self.admission.signal_all();
    }

    /// The journal failed: its outcome is unknown, and nothing can become durable until a restart.
    pub fn poison_journal(&mut self, error: &DiskError) {
        self.close_journal(&error.to_string());
    }

    pub fn close_journal(&mut self, reason: &str) {
        if self.ring.is_poisoned() {
            return;
        }
        self.ring.poison();
        self.close_publishing(&format!("the journal accepts no more writes: {reason}"));
        for (i, part) in self.partitions.iter_mut() {
            let p = PartitionIdx(i as u32);
            let number = part.progress.durable().number;
            if let Some(shared) = &mut part.shared {
                shared.release_all(part.progress.durable().at.offset);
            }
            let unissued = part.batches.get(part.progress.packed().max(part.flush_until())).map(|r| r.tickets.0);
            let unissued = unissued.or(part.open.unsealed());
            let issued = part.batches.get(number).map(|r| r.tickets.0).filter(|&t| Some(t) != unissued);
            part.forget_from(number);
            part.progress.take_back();
            if let Some(from) = unissued {
                self.notices.push(Notice::AppendFailed { p, from, error: AppendError::ReadOnly });
            }
            if let Some(from) = issued {
                self.notices.push(Notice::AppendFailed { p, from, error: AppendError::Unknown });
            }
        }
        self.admission.drop_all();
    }

    /// No publish until a restart.
    pub fn close_publishing(&mut self, reason: &str) {
        if self.is_read_only() {
            return;
        }
        tracing::error!(core = self.options.core.0, reason, "the core takes no publish until a restart");
        self.failures.core = Some(reason.into());
        self.notices.push(Notice::ReadOnly { reason: reason.into() });
        self.admission.signal_all();
    }
}
