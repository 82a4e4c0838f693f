//! Records and reads that the store was given for replicas, until it has done them.

use crate::base::{Epoch, IdMap, NodeId, Position};
use crate::codec::peer::message::Session;
use crate::log::{PartitionIdx, RecordTicket};
use std::collections::VecDeque;

/// Purpose of a durable record.
#[derive(Clone, Copy, Debug)]
pub enum Recorded {
    Promise(Epoch),
    /// The number of `ApplyCursors`.
    Applied(u64),
    /// A leader's collect start.
    Collecting(Position),
}

/// A read for a follower that catches up.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub idx: PartitionIdx,
    pub to: NodeId,
    pub session: Session,
    pub from: Position,
}

#[derive(Debug, Default)]
pub struct StoreWork {
    /// Records on their way to the disk, in their order.
    records: VecDeque<(RecordTicket, PartitionIdx, Recorded)>,
    readings: IdMap<u64, Reading>,
    last_reading: u64,
}

impl StoreWork {
    pub fn record(&mut self, record: RecordTicket, idx: PartitionIdx, purpose: Recorded) {
        self.records.push_back((record, idx, purpose));
    }

    /// Takes the next record up to this one, which is durable.
    pub fn take_durable(&mut self, upto: RecordTicket) -> Option<(PartitionIdx, Recorded)> {
        self.records.pop_front_if(|r| r.0 <= upto).map(|(_, idx, purpose)| (idx, purpose))
    }

    /// Whether cursors that the partition applies wait for their record.
    pub fn is_applying(&self, idx: PartitionIdx) -> bool {
        self.records.iter().any(|(_, of, purpose)| *of == idx && matches!(purpose, Recorded::Applied(_)))
    }

    /// Token of the read, for its answer.
    pub fn read(&mut self, reading: Reading) -> u64 {
        self.last_reading += 1;
        self.readings.insert(self.last_reading, reading);
        self.last_reading
    }

    pub fn take_read(&mut self, token: u64) -> Option<Reading> {
        self.readings.remove(&token)
    }

    /// The partition's replica decides nothing more.
    pub fn forget(&mut self, idx: PartitionIdx) {
        self.records.retain(|(_, of, _)| *of != idx);
        self.readings.retain(|_, reading| reading.idx != idx);
    }
}
