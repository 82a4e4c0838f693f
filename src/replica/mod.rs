//! Runs one partition replica: write, replicate, commit, change role. Pure.
//!
//! A stand-alone node leads every partition and is the whole ISR, so a batch commits when it is durable here. What the
//! rest of the node asks is already the replica's to answer: where the committed end is, and in which epoch it writes.

use crate::base::{Epoch, Position};

/// One replica of one partition.
#[derive(Debug)]
pub struct Replica {
    epoch: Epoch,
    committed: Position,
}

impl Replica {
    /// `committed` is what recovery found durable; a stand-alone node opens its epoch by having raised it durably
    /// before the first append (the node's generation), and commits what it found under it.
    pub fn new(epoch: Epoch, committed: Position) -> Self {
        Replica { epoch, committed }
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Consumers see up to here only.
    pub fn committed(&self) -> Position {
        self.committed
    }

    /// The local log is durable up to `end`: with an ISR of one, that commits it.
    pub fn on_local_durable(&mut self, end: Position) {
        assert!(end.offset >= self.committed.offset, "the durable end never rewinds");
        self.committed = end;
    }
}
