//! Ends of a log, and the identity of a batch. Replicas compare these.

use super::batch::BatchHeader;
use crate::base::{Epoch, LogId, Position};

/// End of a log: the position, and epoch and header crc of the batch that ends there. At the very start both are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    pub at: Position,
    pub chain_crc: u32,
    pub epoch: Epoch,
}

impl Tail {
    pub const START: Tail = Tail { at: Position::START, chain_crc: 0, epoch: Epoch(0) };
}

/// Name of a batch: two batches with equal ones have the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchId {
    pub epoch: Epoch,
    pub log_id: LogId,
    pub last_log_id: LogId,
    pub header_crc: u32,
}

impl From<&BatchHeader> for BatchId {
    fn from(h: &BatchHeader) -> Self {
        BatchId {
            epoch: Epoch(h.epoch.get()),
            log_id: LogId(h.log_id.get()),
            last_log_id: LogId(h.last_log_id.get()),
            header_crc: h.header_crc.get(),
        }
    }
}

/// End of one epoch's batches in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochEnd {
    /// The batches' own.
    pub epoch: Epoch,
    pub end: Position,
    /// Header crc of the batch that ends there.
    pub chain_crc: u32,
}

impl From<Tail> for EpochEnd {
    fn from(t: Tail) -> Self {
        EpochEnd { epoch: t.epoch, end: t.at, chain_crc: t.chain_crc }
    }
}
