//! Result of recovery for the running engine: where every partition stands, and the journals it writes next.
//!
//! Data only. Recovery makes it ([`super::recovery`]), the store of the partition's core takes it over.

use super::damage::Damage;
use super::producers::{Before, ProducerLimits, Producers};
use crate::base::{Epoch, PartitionDir, Position, TopicRef};
use crate::format::cursor::CursorImage;
use crate::format::epochs::Epochs;
use crate::format::files::SegmentMeta;
use std::collections::VecDeque;
use std::sync::Arc;

/// A partition whose files are repaired, synced and agree with each other.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredPartition {
    pub dir: Arc<PartitionDir>,
    pub topic: TopicRef,
    /// First position still stored.
    pub start: Position,
    /// Header crc of the batch before `start`; zero at the very start, and if damage destroyed every source of it.
    pub start_crc: u32,
    /// Position of the next batch.
    pub end: Position,
    /// Position at which the topic's next first channel starts.
    pub collect_start: Position,
    /// Header crc of the last batch before `end`; zero at the very start. After a lost batch it is that header's crc.
    pub chain_crc: u32,
    /// Epoch of the last batch before `end`; zero at the very start. New batches of a partition without other replicas take the
    /// generation, which is higher.
    pub epoch: Epoch,
    /// Epochs before `end`, without the last one.
    pub epochs: Epochs,
    /// The highest epoch that the replica promised to follow; zero: the partition has no other replica.
    pub promised: Epoch,
    /// Lower bound of the committed end; without other replicas the end. Beyond the end only if something was lost.
    pub committed: Position,
    /// Truncated, lost and set-aside data, of this recovery and earlier ones. A lost batch stands for each range that recovery bridged.
    pub damage: Damage,
    /// Last journal sequence of the partition that was used; the next record takes the one after it.
    pub record_sequence: u64,
    /// Sequence of the newest snapshot on disk (0: none). The next one goes to the slot of its own parity.
    pub snapshot_sequence: u64,
    pub files: RecoveredFiles,
    pub channels: Vec<CursorImage>,
    /// Idempotent producers by the log before `end`.
    pub producers: Producers,
    /// The table of producers before each batch behind `committed`; without other replicas empty.
    pub counted: VecDeque<Before>,
    /// Base timestamp of the last batch before `end`; zero when unknown.
    pub last_unix_ns: i64,
}

/// The segments of a partition, and the open ends of the last one's files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecoveredFiles {
    /// Ascending; empty when the partition never had a file. The log's end lies in the last one.
    pub segments: Vec<SegmentMeta>,
    /// Allocated bytes of the last segment's file.
    pub segment_len: u64,
    /// Allocated bytes of its commit log.
    pub commit_len: u64,
    /// Bytes of the last, partly filled block of the last segment: they end at the log's end. Empty at a block's border.
    pub tail: Vec<u8>,
    /// Bytes of the last, partly filled block of its commit log.
    pub commit_tail: Vec<u8>,
    /// Number of records in that commit log.
    pub commit_records: u64,
}

impl RecoveredPartition {
    /// A partition of which nothing exists yet.
    pub fn empty(topic: TopicRef, dir: Arc<PartitionDir>, limits: ProducerLimits) -> RecoveredPartition {
        RecoveredPartition {
            dir,
            topic,
            start: Position::START,
            start_crc: 0,
            end: Position::START,
            collect_start: Position::START,
            chain_crc: 0,
            epoch: Epoch(0),
            epochs: Epochs::default(),
            promised: Epoch(0),
            committed: Position::START,
            damage: Damage::default(),
            record_sequence: 0,
            snapshot_sequence: 0,
            files: RecoveredFiles::default(),
            channels: vec![],
            producers: Producers::new(limits),
            counted: VecDeque::new(),
            last_unix_ns: 0,
        }
    }
}
