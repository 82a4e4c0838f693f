//! Facts of a partition that the journal and the snapshots hold.

use crate::base::Position;
use crate::format::snapshot::SLOTS;

/// The partition's records, and which journal writes redo still needs for them.
#[derive(Debug)]
pub struct Journaled {
    /// Sequence of the last record.
    sequence: u64,
    /// End of the partition after the last batch given to the journal.
    end: Position,
    /// First journal write with a record that not two durable slots contain.
    dirty_from: Option<u64>,
    /// First one that the snapshot which is being written does not contain.
    dirty_after: Option<u64>,
    /// Redo needs nothing of the partition any more.
    is_forgotten: bool,
}

impl Journaled {
    pub fn new(sequence: u64, end: Position) -> Self {
        Journaled { sequence, end, dirty_from: None, dirty_after: None, is_forgotten: false }
    }

    /// Sequence of the last record.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    pub fn end(&self) -> Position {
        self.end
    }

    pub fn dirty_from(&self) -> Option<u64> {
        self.dirty_from
    }

    /// The sequence of a new record.
    pub fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// The journal was given a batch that ends here, or the record of a truncation to it.
    pub fn set_end(&mut self, end: Position) {
        self.end = end;
    }

    /// A journal write with this sequence holds a record of the partition; `is_snapshot_taken`: the snapshot under way has it not.
    pub fn mark_dirty(&mut self, write_sequence: u64, is_snapshot_taken: bool) {
        if self.is_forgotten {
            return;
        }
        self.dirty_from.get_or_insert(write_sequence);
        if is_snapshot_taken {
            self.dirty_after.get_or_insert(write_sequence);
        }
    }

    /// A snapshot was taken that does not contain this journal write, nor those behind it.
    pub fn snapshot_taken(&mut self, dirty_after: Option<u64>) {
        self.dirty_after = dirty_after;
    }

    /// The snapshot stands in its slots.
    pub fn snapshot_stands(&mut self) {
        self.dirty_from = self.dirty_after.take();
    }

    /// The snapshot is not written after all.
    pub fn snapshot_dropped(&mut self) {
        self.dirty_after = None;
    }

    /// Redo needs no record of the partition any more, nor those on their way to the journal.
    pub fn forget(&mut self) {
        (self.dirty_from, self.dirty_after, self.is_forgotten) = (None, None, true);
    }
}

/// The slots that snapshots are written to in turn.
#[derive(Debug)]
pub struct SnapshotSlots {
    /// Sequence of the newest snapshot.
    sequence: u64,
    /// Allocated lengths as far as known.
    lens: [u64; SLOTS as usize],
    /// End of the last durable snapshot: redo needs no segment below it.
    end: Position,
}

impl SnapshotSlots {
    pub fn new(sequence: u64, end: Position) -> Self {
        SnapshotSlots { sequence, lens: [0; SLOTS as usize], end }
    }

    /// Sequence of the newest snapshot.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    pub fn next_sequence(&self) -> u64 {
        self.sequence + 1
    }

    /// The slot of the next snapshot.
    pub fn next_slot(&self) -> u8 {
        (self.next_sequence() % SLOTS as u64) as u8
    }

    /// Whether the next slot's file is so long.
    pub fn has_space(&self, len: u64) -> bool {
        self.lens[self.next_slot() as usize] >= len
    }

    /// A slot's file has at least this length.
    pub fn allocated(&mut self, slot: u8, len: u64) {
        let known = &mut self.lens[slot as usize];
        *known = (*known).max(len);
    }

    /// The next slot is written.
    pub fn written(&mut self) {
        self.sequence += 1;
    }

    pub fn end(&self) -> Position {
        self.end
    }

    /// The newest snapshot is durable in its slots, and contains the log up to `end`.
    pub fn stands(&mut self, end: Position) {
        self.end = end;
    }

    /// The log ends at `at`.
    pub fn truncate(&mut self, at: Position) {
        if self.end.offset > at.offset {
            self.end = at;
        }
    }

    /// Forgets the space of all slots.
    #[cfg(test)]
    pub fn forget_space(&mut self) {
        self.lens = [0; SLOTS as usize];
    }
}
