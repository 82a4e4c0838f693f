//! The checkpoint: frees the part of the ring whose records are synced in the partitions' own files.
//!
//! It begins when the ring is half full, when a full ring refused a publish, or at a stop. It aims at the end of the complete journal
//! writes; every partition with a record before that goes through a flush round with a snapshot, a few at a time, every `topic.meta` is
//! written; then the slot is. Records that failed files still need stay in the ring: the slot never passes them.

use super::admission::Lack;
use super::notice::{Io, PartitionIdx};
use super::store::{Op, Store};

/// A checkpoint under way.
struct Running {
    /// The first journal write that redo shall need afterwards.
    target: u64,
    /// Partitions that are not flushed yet.
    left: usize,
}

/// The checkpoint of a core, one at a time.
#[derive(Default)]
pub(super) struct Checkpoint {
    running: Option<Running>,
}

impl Checkpoint {
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Begins one up to the journal write `target`, which counts on so many partitions.
    fn begin(&mut self, target: u64, left: usize) {
        self.running = Some(Running { target, left });
    }

    /// A partition on which the checkpoint counted, if that is so, is not flushed any more.
    pub fn uncount(&mut self, was_counted: bool) {
        if let Some(running) = self.running.as_mut().filter(|_| was_counted) {
            running.left -= 1;
        }
    }

    /// A partition on which the checkpoint counts has its snapshot. Returns the first journal write that redo shall need afterwards.
    pub fn flushed(&mut self) -> u64 {
        let running = self.running.as_mut().expect("a checkpoint counts on the round");
        running.left -= 1;
        running.target
    }

    /// Its target, once every partition is flushed.
    fn ready(&self) -> Option<u64> {
        self.running.as_ref().filter(|running| running.left == 0).map(|running| running.target)
    }

    fn end(&mut self) {
        self.running = None;
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
        if !is_due || !can_move || self.checkpoint.is_running() || self.ring.is_poisoned() {
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
        self.checkpoint.begin(target, due.len());
        for p in due {
            self.part_mut(p).flush.want_snapshot(true);
            self.want_flush(p, false);
        }
        self.finish_checkpoint(io);
    }

    /// True if nothing of the journal is freed until a restart: the ring begins with records that a failed file needs.
    pub(super) fn is_kept(&self) -> bool {
        let needed = self.failures.needed(&self.partitions).chain(self.topics.failed_records());
        needed.min().is_some_and(|from| from <= self.ring.tail_sequence())
    }

    /// True if a publish or a new channel would wait for the journal until a restart. The rest of the journal is for the channels that
    /// are there.
    pub fn is_kept_full(&self) -> bool {
        !self.ring.admits(self.admission.unpacked()) && self.is_kept()
    }

    /// Writes the slot when all that the checkpoint passes stands in its files.
    pub(super) fn finish_checkpoint(&mut self, io: &mut Io) {
        let Some(target) = self.checkpoint.ready() else { return };
        if self.ring.is_checkpointing() || self.ring.is_poisoned() {
            return;
        }
        if self.topics.has_record_before(target) {
            return; // Its topic.meta is on its way.
        }
        let dirty = self.partitions.iter().filter_map(|(_, part)| part.journaled.dirty_from());
        let target = dirty.chain(self.topics.records()).min().map_or(target, |d| d.min(target));
        if target <= self.ring.tail_sequence() {
            self.checkpoint.end();
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
                self.checkpoint.end();
                self.admission.signal(Lack::Journal);
            }
            // A checkpoint may have waited for the slot.
            SlotReason::Limit => self.finish_checkpoint(io),
        }
    }
}
