//! Walks the batches of a segment and judges the bytes at a place; finds the records of its commit log.
//!
//! Reads only, through a window that grows, so that looking behind an idle partition's end costs one block.

use crate::base::{BLOCK, DiskError, FileId, IO_BYTES_MAX, LogId, PartitionDir, Position};
use crate::format::batch::{BATCH_HEADER_LEN, BATCH_MAGIC, BatchHeader};
use crate::format::decision::{Row, finding};
use crate::format::files::{Bad, COMMIT_RECORD_LEN, CommitRecord, FILE_HEADER_LEN};
use crate::format::storage::{Storage, read_range};
use crate::log::chain::{Chain, ChainStop, Walk};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

finding! {
    /// Content of a place of a segment.
    BatchFound {
        /// A batch whose header and body hold and which continues the log.
        Whole,
        /// The header holds and continues the log, the body does not hold.
        BodyBad,
        /// A batch that holds but does not continue the log: another place, chain or a lower epoch.
        Breaks,
        Zeros,
        Garbage,
        /// A version that this build does not know.
        Unknown,
    }
}

finding! {
    /// Knowledge of the place.
    Place {
        /// The place lies below an end that a snapshot, commit log or journal gave.
        Promised,
        /// The journal holds the header of a direct batch for it: the body was durable before.
        Direct,
        /// A place behind everything that is known.
        Beyond,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchAction {
    Keep,
    /// Keep its header and index it; readers find the damaged body, report it and step over it.
    KeepHeader,
    /// Damage: a lost batch takes the place up to the next known position.
    Bridge,
    /// The log ends here; the bytes behind were never acknowledged.
    Truncate,
    Halt,
}

/// | found | place | action | why |
/// |---|---|---|---|
/// | Whole | any | Keep | whole, so it may be kept whether it was acknowledged or not |
/// | BodyBad | Promised | KeepHeader | its ids and bytes are known, only its messages are lost |
/// | BodyBad | Direct | Bridge | the body was durable before the journal's header: damage, never torn |
/// | Breaks, Zeros, Garbage | Promised, Direct | Bridge | something stood here that is lost |
/// | BodyBad, Breaks, Zeros, Garbage | Beyond | Truncate | a torn tail, or what stood there in an earlier life of the space |
/// | Unknown | any | Halt | written by a newer version |
pub const SEGMENT_TABLE: &[Row<BatchFound, Place, (), BatchAction>] = &[
    Row {
        a: &[BatchFound::Whole],
        b: &[],
        c: &[],
        then: BatchAction::Keep,
        why: "whole, so it may be kept whether it was acknowledged or not",
    },
    Row {
        a: &[BatchFound::BodyBad],
        b: &[Place::Promised],
        c: &[],
        then: BatchAction::KeepHeader,
        why: "its ids and bytes are known, only its messages are lost",
    },
    Row {
        a: &[BatchFound::BodyBad],
        b: &[Place::Direct],
        c: &[],
        then: BatchAction::Bridge,
        why: "the body was durable before the journal's header: damage, never torn",
    },
    Row {
        a: &[BatchFound::Breaks, BatchFound::Zeros, BatchFound::Garbage],
        b: &[Place::Promised, Place::Direct],
        c: &[],
        then: BatchAction::Bridge,
        why: "something stood here that is lost",
    },
    Row {
        a: &[BatchFound::BodyBad, BatchFound::Breaks, BatchFound::Zeros, BatchFound::Garbage],
        b: &[Place::Beyond],
        c: &[],
        then: BatchAction::Truncate,
        why: "a torn tail, or what stood there in an earlier life of the space",
    },
    Row { a: &[BatchFound::Unknown], b: &[], c: &[], then: BatchAction::Halt, why: "written by a newer version" },
];

/// Position in the segment's file of the log offset `offset`.
pub fn segment_at(base: i64, offset: i64) -> u64 {
    FILE_HEADER_LEN + (offset - base) as u64
}

/// Position in its file of the commit record of this index.
pub fn commit_at(index: u64) -> u64 {
    FILE_HEADER_LEN + index * COMMIT_RECORD_LEN as u64
}

/// The commit record of a batch.
pub fn commit_record(h: &BatchHeader, dir: &PartitionDir) -> CommitRecord {
    let record = CommitRecord {
        log_id: h.log_id,
        epoch: h.epoch,
        last_log_id: h.last_log_id,
        offset: h.offset,
        count: h.count,
        unix_ns: h.base_unix_ns,
        size: (h.len() as u32).into(),
        num: h.num,
        batch_crc: h.header_crc,
        crc: 0.into(),
    };
    record.seal(dir.topic_id, dir.partition)
}

/// A file read through a window.
pub struct Window {
    file: FileId,
    at: u64,
    bytes: Vec<u8>,
    grow: usize,
}

impl Window {
    pub fn new(file: FileId) -> Self {
        Window { file, at: 0, bytes: vec![], grow: BLOCK }
    }

    /// Short at the end of the file.
    pub fn get(&mut self, storage: &mut dyn Storage, at: u64, len: usize) -> Result<&[u8], DiskError> {
        if at < self.at || at + len as u64 > self.at + self.bytes.len() as u64 {
            let wanted = len.max(self.grow);
            self.bytes = read_range(storage, &self.file, at, wanted)?;
            self.at = at;
            self.grow = (self.grow * 2).min(IO_BYTES_MAX);
        }
        let from = (at - self.at) as usize;
        Ok(&self.bytes[from..(from + len).min(self.bytes.len())])
    }

    /// The bytes that [`Window::get`] has just given.
    fn held(&self, at: u64, len: usize) -> &[u8] {
        let from = (at - self.at) as usize;
        &self.bytes[from..from + len]
    }
}

/// The batches of one segment, walked through a window of its file.
pub struct Batches<'a> {
    dir: &'a Arc<PartitionDir>,
    base: i64,
    window: Window,
}

impl<'a> Batches<'a> {
    pub fn new(dir: &'a Arc<PartitionDir>, base: i64) -> Self {
        Batches { dir, base, window: Window::new(FileId::Segment(dir.clone(), base)) }
    }

    /// Judges the bytes at `offset`. Returns the header if it is valid and continues the log. With an empty chain only the place is
    /// compared.
    pub fn judge(
        &mut self,
        storage: &mut dyn Storage,
        offset: i64,
        chain: &Chain,
    ) -> Result<(BatchFound, Option<BatchHeader>), DiskError> {
        let at = segment_at(self.base, offset);
        let head = self.window.get(storage, at, BATCH_HEADER_LEN)?;
        let h = match Walk::new(self.dir, offset, i64::MAX, *chain).header(head) {
            Ok(h) if chain.is_continued_by(&h) => h,
            Ok(_) | Err(ChainStop::Breaks(_)) => return Ok((BatchFound::Breaks, None)),
            // A header inside a message, or of an earlier use of the space, is not this log's.
            Err(ChainStop::Bad(Bad::Version(_))) if BatchHeader::is_of(head, self.dir.topic_id, self.dir.partition, offset) => {
                return Ok((BatchFound::Unknown, None));
            }
            Err(ChainStop::Bad(Bad::Zero)) => return Ok((BatchFound::Zeros, None)),
            Err(ChainStop::More(_)) if head.iter().all(|&b| b == 0) => return Ok((BatchFound::Zeros, None)),
            Err(ChainStop::Bad(_) | ChainStop::More(_)) => return Ok((BatchFound::Garbage, None)),
        };
        if h.is_lost() {
            return Ok((BatchFound::Whole, Some(h)));
        }
        let whole = self.window.get(storage, at, h.len())?;
        // The head may have been read anew.
        let holds = whole.len() == h.len()
            && whole[..BATCH_HEADER_LEN] == *h.as_bytes()
            && crc32fast::hash(&whole[BATCH_HEADER_LEN..]) == h.body_crc.get();
        Ok((if holds { BatchFound::Whole } else { BatchFound::BodyBad }, Some(h)))
    }

    /// The bytes of the batch that was judged last, and found whole.
    pub fn judged(&self, h: &BatchHeader) -> &[u8] {
        let len = h.stored_len();
        self.window.held(segment_at(self.base, h.offset.get()), len)
    }

    /// The first header in `from .. to` that could follow `after`, by its magic, place and numbers.
    pub fn find(&mut self, storage: &mut dyn Storage, after: Position, to: i64) -> Result<Option<BatchHeader>, DiskError> {
        let mut offset = after.offset + 1;
        while offset < to {
            let len = (to - offset).min(BLOCK as i64 * 16) as usize;
            let bytes = self.window.get(storage, segment_at(self.base, offset), len)?.to_vec();
            let candidates = bytes.windows(4).enumerate().filter(|(_, w)| **w == BATCH_MAGIC).map(|(i, _)| offset + i as i64);
            for candidate in candidates {
                if let (BatchFound::Whole | BatchFound::BodyBad, Some(h)) = self.judge(storage, candidate, &Chain::default())?
                    && h.start().log_id > after.log_id
                    && h.start().count >= after.count
                {
                    return Ok(Some(h));
                }
            }
            if bytes.len() < len || len < 4 {
                break;
            }
            offset += len as i64 - 3;
        }
        Ok(None)
    }
}

/// Index of the record that begins at or behind `end` in a commit log without damage: the number of records before it.
pub fn commit_index(storage: &mut dyn Storage, dir: &Arc<PartitionDir>, base: i64, end: i64) -> Result<u64, DiskError> {
    let file = FileId::Commit(dir.clone(), base);
    let len = storage.len(&file)?.unwrap_or(0);
    let (mut low, mut high) = (0, len.saturating_sub(FILE_HEADER_LEN) / COMMIT_RECORD_LEN as u64);
    while low < high {
        let middle = low + (high - low) / 2;
        let is_before = commit_record_at(storage, dir, base, middle)?.is_some_and(|r| r.offset.get() < end);
        (low, high) = if is_before { (middle + 1, high) } else { (low, middle) };
    }
    Ok(low)
}

/// The record of this index, when it holds.
pub fn commit_record_at(
    storage: &mut dyn Storage,
    dir: &Arc<PartitionDir>,
    base: i64,
    index: u64,
) -> Result<Option<CommitRecord>, DiskError> {
    let bytes = read_range(storage, &FileId::Commit(dir.clone(), base), commit_at(index), COMMIT_RECORD_LEN)?;
    let record = CommitRecord::read_from_bytes(&bytes).ok();
    Ok(record.filter(|r| is_sane(r, dir, base)))
}

/// Every record of a commit log that holds, in the order of their offsets.
pub fn commit_records(storage: &mut dyn Storage, dir: &Arc<PartitionDir>, base: i64) -> Result<Vec<CommitRecord>, DiskError> {
    let file = FileId::Commit(dir.clone(), base);
    let mut records = Vec::new();
    let mut at = FILE_HEADER_LEN;
    loop {
        let bytes = read_range(storage, &file, at, IO_BYTES_MAX)?;
        if bytes.is_empty() {
            break;
        }
        let found = bytes.chunks_exact(COMMIT_RECORD_LEN).filter_map(|c| CommitRecord::read_from_bytes(c).ok());
        records.extend(found.filter(|r| is_sane(r, dir, base)));
        at += IO_BYTES_MAX as u64;
    }
    records.sort_by_key(|r| r.offset.get());
    records.dedup_by_key(|r| r.offset.get());
    Ok(records)
}

fn is_sane(r: &CommitRecord, dir: &PartitionDir, base: i64) -> bool {
    r.is_valid(dir.topic_id, dir.partition)
        && r.offset.get() >= base
        && r.size.get() as usize >= BATCH_HEADER_LEN
        && r.position().is_sane()
        && r.last_log_id.get() >= r.log_id.get()
        && r.last_log_id.get() <= LogId::MAX.0
}
