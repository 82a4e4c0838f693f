//! What recovery hands to the store: the state of each partition and the identity of each journal.

use super::cursor::CursorImage;
use crate::base::{Epoch, PartitionDir, Position, TopicRef};
use std::sync::Arc;

/// A fresh, empty journal: the next write stands at the ring's start, in lap 1, with sequence 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalIdentity {
    pub journal_id: [u8; 16],
    pub generation: u64,
    pub file_len: u64,
    /// Sequence of the checkpoint slot that is valid now.
    pub slot_sequence: u64,
}

/// One segment and its commit log: where it begins and the header crc of the batch before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    pub base: Position,
    pub prev_crc: u32,
}

/// A partition as recovery left it: everything below `end` stands, synced, in its files.
#[derive(Clone, Debug)]
pub struct RecoveredPartition {
    pub dir: Arc<PartitionDir>,
    pub topic: TopicRef,
    pub start: Position,
    pub end: Position,
    pub collect_start: Position,
    /// Header crc of the last batch before `end`.
    pub chain_crc: u32,
    pub epoch: Epoch,
    pub suspect: bool,
    /// Last per-partition journal sequence used.
    pub record_sequence: u64,
    pub snapshot_sequence: u64,
    /// Ascending; the last one holds `end`. May be empty.
    pub segments: Vec<SegmentMeta>,
    /// Allocated bytes of the last segment's two files.
    pub segment_len: u64,
    pub commit_len: u64,
    /// Bytes of the last, partly filled block of the last segment, and of its commit log.
    pub tail: Vec<u8>,
    pub commit_tail: Vec<u8>,
    /// Records in the last commit log.
    pub commit_records: u64,
    pub channels: Vec<CursorImage>,
    /// What damage took, ascending.
    pub lost: Vec<(Position, Position)>,
}
