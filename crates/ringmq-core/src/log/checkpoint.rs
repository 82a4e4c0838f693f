//! The checkpoint: frees the part of the ring whose records are synced in the partitions' own files.
//!
//! It begins when the ring is half full, when a full ring refused a publish, or at a stop. It aims at the end of the complete journal
//! writes; every partition with a record before that goes through a flush round with a snapshot, a few at a time, every `topic.meta` is
//! written; then the slot is. Records that failed files still need stay in the ring: the slot never passes them.

use super::admission::Lack;
use super::core_logs::{CoreLogs, Op};
use super::notice::{Io, PartitionIdx};

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
    #[cfg(test)]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
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

    /// Begins one when it is time; the partitions on which it counts.
    pub fn begin_if_due(&mut self, core: &mut CoreLogs) -> Option<Vec<PartitionIdx>> {
        let is_due = core.ring.is_half_full() || core.admission.is_refused(Lack::Journal) || core.is_stopping;
        let can_move = core.ring.durable() + 1 > core.ring.tail_sequence();
        if !is_due || !can_move || self.running.is_some() || core.ring.is_poisoned() {
            return None;
        }
        if core.is_kept() {
            if core.admission.is_refused(Lack::Journal) && !core.is_read_only() {
                core.close_publishing("the journal is full and cannot be freed, since a partition's files failed");
            }
            return None;
        }
        let target = core.ring.durable() + 1;
        let due: Vec<PartitionIdx> = core
            .partitions
            .iter()
            .filter(|(_, part)| !part.is_closed() && part.journaled.dirty_from().is_some_and(|d| d < target))
            .map(|(i, _)| PartitionIdx(i as u32))
            .collect();
        self.running = Some(Running { target, left: due.len() });
        Some(due)
    }

    /// Writes the slot when all that the checkpoint passes stands in its files.
    pub fn finish(&mut self, core: &mut CoreLogs, io: &mut Io) {
        let Some(&Running { target, left }) = self.running.as_ref() else { return };
        if left > 0 || core.ring.is_checkpointing() || core.ring.is_poisoned() {
            return;
        }
        if core.topics.has_record_before(target) {
            return; // Its topic.meta is on its way.
        }
        let dirty = core.partitions.iter().filter_map(|(_, part)| part.journaled.dirty_from());
        let target = dirty.chain(core.topics.records()).min().map_or(target, |d| d.min(target));
        if target <= core.ring.tail_sequence() {
            self.running = None;
            return;
        }
        let op = core.ring.checkpoint(target);
        core.ops.issue(io, op, Op::Slot(SlotReason::Checkpoint));
    }

    pub fn slot_written(&mut self, core: &mut CoreLogs, reason: SlotReason, io: &mut Io) {
        core.ring.checkpointed();
        match reason {
            SlotReason::Checkpoint => {
                self.running = None;
                core.admission.signal(Lack::Journal);
            }
            // A checkpoint may have waited for the slot.
            SlotReason::Limit => self.finish(core, io),
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
