//! The checkpoint: frees the part of the ring whose records are synced in the partitions' own files.
//!
//! It begins when the ring is half full, when a full ring refused a publish, or at a stop. It aims at the end of the complete journal
//! writes; every partition with a record before that goes through a flush round with a snapshot, a few at a time, every `topic.meta` is
//! written; then the slot is. Records that failed files still need stay in the ring: the slot never passes them.

use super::admission::Lack;
use super::notice::{Io, PartitionIdx};
use super::store::{Op, Store};

/// A checkpoint under way.
pub struct Running {
    /// The first journal write that redo shall need afterwards.
    pub target: u64,
    /// Partitions that are not flushed yet.
    pub left: usize,
}

impl Running {
    /// A partition on which the checkpoint counted, if that is so, is not flushed any more.
    pub(super) fn uncount(running: &mut Option<Running>, was_counted: bool) {
        if let Some(running) = running.as_mut().filter(|_| was_counted) {
            running.left -= 1;
        }
    }
}

/// Reason for writing a slot of the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotReason {
    /// A checkpoint: the part of the ring before it may be written over.
    Checkpoint,
    /// Writes may go further, or, at a stop, no further.
    Limit,
}

impl Store {
    /// Begins a checkpoint when it is time.
    pub(super) fn try_checkpoint(&mut self, io: &mut Io) {
        self.move_limit(io);
        let is_due = self.ring.is_half_full() || self.admission.is_refused(Lack::Journal) || self.is_stopping();
        let can_move = self.ring.durable() + 1 > self.ring.tail_sequence();
        if !is_due || !can_move || self.running.is_some() || self.ring.is_poisoned() {
            return;
        }
        if self.is_kept() {
            if self.admission.is_refused(Lack::Journal) && !self.is_read_only() {
                self.close_publishing("the journal is full and cannot be freed, since a partition's files failed");
            }
            return;
        }
        let target = self.ring.durable() + 1;
        let due: Vec<PartitionIdx> = self
            .partitions
            .iter()
            .filter(|(_, part)| !part.is_closed() && part.journaled.dirty_from().is_some_and(|d| d < target))
            .map(|(i, _)| PartitionIdx(i as u32))
            .collect();
        self.running = Some(Running { target, left: due.len() });
        for p in due {
            self.part_mut(p).flush.want_snapshot(true);
            self.want_flush(p, false);
        }
        self.finish_checkpoint(io);
    }

    /// True if nothing of the journal is freed until a restart: the ring begins with records that a failed file needs.
    pub(super) fn is_kept(&self) -> bool {
        let topics = self.topics.failed_records();
        let deletes = self.removal.deletes.values().filter(|d| d.failed).filter_map(|d| d.write_sequence);
        let failed = self.failures.partitions().iter();
        let partitions = failed.filter_map(|p| self.partitions[p.0 as usize].journaled.dirty_from());
        let needed = partitions.chain(topics).chain(deletes).chain(self.needed_by_stuck());
        needed.min().is_some_and(|from| from <= self.ring.tail_sequence())
    }

    /// True if a publish or a new channel would wait for the journal until a restart. The rest of the journal is for the channels that
    /// are there.
    pub fn is_kept_full(&self) -> bool {
        !self.ring.admits(self.admission.unpacked()) && self.is_kept()
    }

    /// Writes the slot when all that the checkpoint passes stands in its files.
    pub(super) fn finish_checkpoint(&mut self, io: &mut Io) {
        let Some(running) = &self.running else { return };
        if running.left > 0 || self.ring.is_checkpointing() || self.ring.is_poisoned() {
            return;
        }
        if self.topics.has_record_before(running.target) {
            return; // Its topic.meta is on its way.
        }
        let deletes = &self.removal.deletes;
        let dirty = self.partitions.iter().filter_map(|(_, part)| part.journaled.dirty_from());
        let topics = self.topics.records();
        let topics = topics.chain(deletes.values().filter_map(|d| d.write_sequence));
        let target = dirty.chain(topics).min().map_or(running.target, |d| d.min(running.target));
        if target <= self.ring.tail_sequence() {
            self.running = None;
            return;
        }
        let op = self.ring.checkpoint(target);
        self.ops.issue(io, op, Op::Slot(SlotReason::Checkpoint));
    }

    /// Keeps the journal's limit ahead of its writes; at a stop, makes both slots say that none follows.
    fn move_limit(&mut self, io: &mut Io) {
        let is_stopping = self.is_stopping();
        if let Some(op) = self.ring.move_limit(is_stopping) {
            self.ops.issue(io, op, Op::Slot(SlotReason::Limit));
        }
    }

    pub(super) fn slot_written(&mut self, reason: SlotReason, io: &mut Io) {
        self.ring.checkpointed();
        match reason {
            SlotReason::Checkpoint => {
                self.running = None;
                self.admission.signal(Lack::Journal);
            }
            // A checkpoint may have waited for the slot.
            SlotReason::Limit => self.finish_checkpoint(io),
        }
    }
}
