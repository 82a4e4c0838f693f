//! What recovery hands to the running engine: where every partition stands, and the journals it writes next.
//!
//! Data only. Recovery makes it ([`super::recovery`]), the store of the partition's core takes it over.

use super::producers::{Before, Producers};
use crate::base::{Epoch, PartitionDir, Position, TopicRef};
use crate::format::cursor::CursorImage;
use crate::format::epochs::Epochs;
use crate::format::tail::Tail;
use crate::format::{files::SegmentMeta, snapshot::Doubt};
use std::collections::VecDeque;
use std::sync::Arc;

/// A partition whose files are repaired, synced and agree with each other.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredPartition {
    pub dir: Arc<PartitionDir>,
    pub topic: TopicRef,
    /// First position still stored.
    pub start: Position,
    /// Header crc of the batch before it; zero at the very start, and where damage took what told it.
    pub start_crc: u32,
    /// Where the next batch goes.
    pub end: Position,
    /// Where the topic's next first channel starts.
    pub collect_start: Position,
    /// Header crc of the last batch before `end`; zero at the very start. After a lost batch it is that header's crc.
    pub chain_crc: u32,
    /// Epoch of the last batch before `end`; zero at the very start. New batches of a partition without other replicas take the
    /// generation, which is higher.
    pub epoch: Epoch,
    /// All epochs before `end` but that one.
    pub epochs: Epochs,
    /// The highest epoch that the replica promised to follow; zero: the partition has no other replica.
    pub promised: Epoch,
    /// A lower bound of what is committed; without other replicas the end. Beyond the end only where something was lost.
    pub committed: Position,
    /// Where the first damage of the log begins, if there is some.
    pub vouched: Option<Tail>,
    /// Of what was cut, lost or set aside, now or before, until it was compared.
    pub doubt: Doubt,
    /// The generation of the start that may have lost channels, until somebody accepts that; zero: none.
    pub channels_lost: u64,
    /// Last journal sequence of the partition that was used; the next record takes the one after it.
    pub record_sequence: u64,
    /// Sequence of the newest snapshot on disk (0: none). The next one goes to the slot of its own parity.
    pub snapshot_sequence: u64,
    /// Ascending; empty when the partition never had a file. `end` lies in the last one.
    pub segments: Vec<SegmentMeta>,
    /// Bytes of the last segment's file and of its commit log, which are allocated.
    pub segment_len: u64,
    pub commit_len: u64,
    /// Bytes of the last, partly filled block of the last segment: they end at `end`. Empty at a block's border.
    pub tail: Vec<u8>,
    /// The same of the last commit log.
    pub commit_tail: Vec<u8>,
    /// Records in the last commit log.
    pub commit_records: u64,
    pub channels: Vec<CursorImage>,
    /// Ranges that were found to be lost at this recovery, ascending; a lost batch stands for each that recovery wrote.
    pub lost: Vec<(Position, Position)>,
    /// As the log before `end` tells them.
    pub producers: Producers,
    /// What the table was before each batch behind `committed`; without other replicas empty.
    pub counted: VecDeque<Before>,
    /// Base timestamp of the last batch before `end`; zero when unknown.
    pub last_unix_ns: i64,
}
