//! Work that a core's turn leaves to its end, and the tickets of the facts that it logs.

use super::notice::{PartitionIdx, RecordTicket};

#[derive(Default)]
pub(super) struct Turn {
    /// Partitions with appends that no turn's end has seen.
    unsealed: Vec<PartitionIdx>,
    /// True when some of them have more than an open batch that may stay open.
    has_sealed: bool,
    /// Partitions whose committed end moved since the journal was told.
    commits_due: Vec<PartitionIdx>,
    last_record: RecordTicket,
    durable_record: RecordTicket,
}

impl Turn {
    /// The turn's end has to look at the partition, which is not in the list.
    pub fn push_unsealed(&mut self, p: PartitionIdx) {
        self.unsealed.push(p);
    }

    pub fn has_unsealed(&self) -> bool {
        !self.unsealed.is_empty()
    }

    /// A partition has more for the turn's end than an open batch, or has lost that.
    pub fn must_seal(&mut self) {
        self.has_sealed = true;
    }

    /// True if the turn's end would find only open batches that may stay open.
    pub fn may_stay_open(&self) -> bool {
        !self.has_sealed
    }

    /// Ends the turn: takes the partitions to look at. Partitions whose batch stays open go [back](Turn::keep).
    pub fn take_unsealed(&mut self) -> Vec<PartitionIdx> {
        self.has_sealed = false;
        std::mem::take(&mut self.unsealed)
    }

    /// Keeps partitions whose open batch stays open.
    pub fn keep(&mut self, unsealed: Vec<PartitionIdx>) {
        self.unsealed = unsealed;
    }

    pub fn push_commit(&mut self, p: PartitionIdx) {
        self.commits_due.push(p);
    }

    pub fn has_commits(&self) -> bool {
        !self.commits_due.is_empty()
    }

    pub fn take_commits(&mut self) -> Vec<PartitionIdx> {
        std::mem::take(&mut self.commits_due)
    }

    /// The partition takes nothing any more.
    pub fn forget_commit(&mut self, p: PartitionIdx) {
        self.commits_due.retain(|&q| q != p);
    }

    /// The partition is gone.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.unsealed.retain(|&q| q != p);
        self.forget_commit(p);
    }

    /// The ticket of a new fact.
    pub fn next_record(&mut self) -> RecordTicket {
        self.last_record.0 += 1;
        self.last_record
    }

    pub fn last_record(&self) -> RecordTicket {
        self.last_record
    }

    /// Ticket of the last durable fact; all before it are durable.
    pub fn durable_record(&self) -> RecordTicket {
        self.durable_record
    }

    pub fn make_durable(&mut self, upto: RecordTicket) {
        assert!(upto > self.durable_record && upto <= self.last_record, "facts become durable in order");
        self.durable_record = upto;
    }
}
