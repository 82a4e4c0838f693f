//! Scrubbing: the stored bytes are read again in the background, one run at a time, at a limited rate, and verified as at a fetch (rule
//! 15). They are not cached. A pass over all partitions of the core begins at most once in [`PASS_MIN`], so that a small node can sleep.
//!
//! Beside each run of a closed segment its commit records are read: records that are missing or differ from the verified batches are
//! reported and written again, in place. Only the scrubber writes a closed commit log. The record of a damaged batch is left as it is:
//! it may be the only source of the batch's end.
//!
//! Beside the first run of a closed segment its first block is read: a startup reads the headers of few segments only
//! ([`super::recovery::headers`]). An invalid first block, also of the commit log, is reported and written again.
//!
//! ```text
//! run verified -> [first one: Read (first block) -> [differs: Write, durable]]
//!   -> Read (records of the run) -> [differs: Allocate -> Write, durable] -> next run
//! ```

use super::core_logs::{Op, Shared};
use super::notice::PartitionIdx;
use super::partition::PartitionLog;
use super::reader::{Purpose, Reader};
use super::recovery::scan::{commit_at, commit_record};
use crate::base::{
    BLOCK, DiskDone, DiskError, DiskOp, Durability, Epoch, FileId, IO_BYTES_MAX, Now, PartitionDir, Position, Ticks, block_down,
    block_up,
};
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader};
use crate::format::files::{Bad, COMMIT_MAGIC, CommitRecord, FileHeader, SEGMENT_MAGIC};
use crate::format::segment_table::SegmentTable;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use zerocopy::{FromBytes, IntoBytes};

const PASS_MIN: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub struct Scrub {
    /// The next run to read.
    partition: usize,
    offset: i64,
    is_reading: bool,
    next_at: Ticks,
    pass_began: Option<Ticks>,
    /// Number of passes in which nothing was mended, since something was.
    passes: u64,
    /// True when something was repaired in this pass, perhaps behind the walk.
    has_mended: bool,
    walk: Option<Walk>,
    check: Option<Check>,
    /// The last partition of which it was said that it cannot be read, in this pass.
    unreadable: Option<PartitionIdx>,
    /// The store stops: nothing begins any more.
    is_stopping: bool,
}

impl Scrub {
    pub fn forget(&mut self, p: PartitionIdx) {
        self.walk = self.walk.take().filter(|w| w.p != p);
        if self.partition == p.0 as usize {
            self.offset = 0;
        }
    }

    /// Lost bytes are repaired. The commit records, which only these bytes can verify, are verified at once and not an hour later:
    /// otherwise they would be taken for records of damaged batches.
    pub fn mended(&mut self) {
        (self.passes, self.has_mended) = (0, true);
        if self.pass_began.is_none() {
            self.next_at = Ticks::default();
        }
    }

    /// Whether a first block or a commit log of the partition is read or written.
    pub fn repairs(&self, p: PartitionIdx) -> bool {
        self.check.as_ref().is_some_and(|c| c.p == p)
    }

    /// Stops the scrubber: it begins nothing more.
    pub fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Number of passes over all partitions since anything of them was mended.
    pub fn passes(&self) -> u64 {
        self.passes
    }
}

/// Position of the walk through one closed segment in its commit log.
#[derive(Clone, Copy)]
struct Walk {
    p: PartitionIdx,
    base: i64,
    /// The batch that begins here has the record `index`.
    next: Position,
    index: u64,
    is_reported: bool,
    /// True when nothing more is compared in this segment during this pass.
    is_given_up: bool,
}

/// Operation that is with the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScrubOp {
    /// The segment's first block is read.
    FirstBlock,
    /// The block is being written.
    FirstBlockWrite,
    CommitLog,
}

/// The commit records of one run; with the first one of a segment its first block.
struct Check {
    p: PartitionIdx,
    step: ScrubOp,
    file: FileId,
    headers: Vec<BatchHeader>,
    /// End of the run.
    end: i64,
    /// Part of the file that is read.
    at: u64,
    len: usize,
    /// Damage may have taken this many batches before the run.
    skipped: u64,
    todo: VecDeque<DiskOp>,
}

impl Scrub {
    /// Begins the next run when it is time, at so many bytes per second; 0: never.
    pub(super) fn begin_next(&mut self, now: Now, rate: u64, reader: &mut Reader, shared: &mut Shared<'_>) {
        if rate == 0 || self.is_reading || self.is_stopping || self.next_at > now.ticks {
            return;
        }
        if self.pass_began.is_none() {
            (self.pass_began, self.has_mended) = (Some(now.ticks), false);
        }
        // At most one walk over the partitions per tick.
        for index in self.partition..shared.logs.capacity() {
            if index != self.partition {
                (self.partition, self.offset) = (index, 0);
            }
            let Some(log) = shared.logs.get(index).filter(|log| !log.is_leaving()) else { continue };
            let p = PartitionIdx(index as u32);
            let mut offset = self.offset.max(log.start().offset);
            while let Some((_, to)) = log.damage.lost_at(offset) {
                offset = to.offset;
            }
            let Some(limit) = log.readable_limit(offset) else { continue };
            let bytes = reader.start_read(p, offset, limit, Purpose::Scrub, shared);
            self.is_reading = true;
            self.next_at = now.ticks + Duration::from_nanos((bytes as u128 * 1_000_000_000 / rate as u128) as u64);
            return;
        }
        (self.partition, self.offset) = (0, 0);
        self.walk = None;
        self.unreadable = None;
        let began = self.pass_began.take().unwrap_or(now.ticks);
        self.next_at = now.ticks + Duration::from_secs(1);
        if !self.has_mended {
            self.passes += 1;
            self.next_at = (began + PASS_MIN).max(self.next_at);
        }
    }

    /// Skips an unreadable place; the next pass looks again.
    pub(super) fn pass_over(&mut self, p: PartitionIdx, offset: i64, what: &str, dir: &PartitionDir) {
        if self.unreadable.replace(p) != Some(p) {
            tracing::warn!(topic = %dir.topic, partition = %dir.partition, offset, what,
                "the scrubber skips bytes that it could not read");
        }
    }

    /// The partition's log was verified up to `offset`, or reported.
    pub(super) fn scrubbed(&mut self, p: PartitionIdx, offset: i64) {
        self.is_reading = false;
        if self.partition == p.0 as usize {
            self.offset = self.offset.max(offset);
        }
    }

    /// A run of the segment `base` up to `end` was verified: its commit records are next, if the flush does not write them.
    pub(super) fn check_commit_log(
        &mut self,
        (p, base, end): (PartitionIdx, i64, i64),
        headers: Vec<BatchHeader>,
        shared: &mut Shared<'_>,
    ) {
        let log = shared.log(p);
        let segment = log.segments.at_base(base);
        let border = segment.and_then(|(index, _)| log.segments.get(index + 1)).map(|s| s.base());
        let is_closed = border.is_some_and(|b| log.progress.committed().at.offset >= b) && !log.is_closed();
        let Some(first) = headers.first().filter(|_| is_closed && !self.is_stopping).map(|h| h.start()) else {
            return self.scrubbed(p, end);
        };
        let next = segment.map_or(first, |(_, s)| s.meta.base);
        let (file, segment) = (FileId::Commit(log.dir.clone(), base), FileId::Segment(log.dir.clone(), base));
        let fresh = Walk { p, base, next, index: 0, is_reported: false, is_given_up: false };
        let known = self.walk.filter(|w| w.p == p && w.base == base && w.next.offset <= first.offset && first.offset > base);
        let is_first_block = known.is_none();
        let walk = self.walk.insert(known.unwrap_or(fresh));
        let (bytes, messages) = (first.offset - walk.next.offset, first.count - walk.next.count);
        // A batch has a header, and hardly ever no message.
        let skipped = (bytes / BATCH_HEADER_LEN as i64).min(messages + 1).max(0) as u64;
        let at = if walk.index == 0 { 0 } else { block_down(commit_at(walk.index)) };
        let len = (block_up(commit_at(walk.index + skipped + 1 + headers.len() as u64)) - at) as usize;
        // So much damage that records cannot be assigned to batches.
        walk.is_given_up |= len > IO_BYTES_MAX;
        let mut todo = VecDeque::new();
        if is_first_block {
            todo.push_back(DiskOp::Read { file: segment, at: 0, len: BLOCK });
        }
        if !walk.is_given_up {
            todo.push_back(DiskOp::Read { file: file.clone(), at, len });
        }
        match todo.pop_front() {
            Some(op) => {
                shared.issue(op, Op::Scrub);
                let step = if is_first_block { ScrubOp::FirstBlock } else { ScrubOp::CommitLog };
                self.check = Some(Check { p, step, file, headers, end, at, len, skipped, todo });
            }
            None => self.scrubbed(p, end),
        }
    }

    /// An operation on the commit log, or on the segment's first block, has finished. Where space `is_short`, only damage is written
    /// again.
    pub(super) fn done(&mut self, now: Now, outcome: Result<DiskDone, DiskError>, is_short: bool, shared: &mut Shared<'_>) {
        let Some(check) = &self.check else { return };
        let p = check.p;
        let result = match (check.step, outcome) {
            (ScrubOp::FirstBlock, Ok(DiskDone::Read(bytes))) => {
                self.compare_first_block(now, &bytes, is_short, shared.log(p));
                Ok(())
            }
            (ScrubOp::FirstBlock | ScrubOp::FirstBlockWrite, Err(error)) => {
                self.pass_over_first_block(&error.to_string(), &shared.log(p).dir);
                Ok(())
            }
            (ScrubOp::FirstBlockWrite, Ok(_)) => {
                self.check.iter_mut().for_each(|check| check.step = ScrubOp::CommitLog);
                Ok(())
            }
            (ScrubOp::CommitLog, Ok(DiskDone::Read(bytes))) => self.compare(now, &bytes, is_short, shared.log(p)),
            (ScrubOp::CommitLog, Err(DiskError::NotFound { .. })) if check.todo.is_empty() => {
                self.compare(now, &[], is_short, shared.log(p))
            }
            (ScrubOp::CommitLog, Err(error)) => Err(error.to_string()),
            (_, Ok(_)) => Ok(()),
        };
        if let Err(error) = &result {
            let file = self.check.as_ref().map(|c| c.file.to_string());
            tracing::warn!(file, error, "the commit log is neither verified nor repaired before the next pass");
            self.walk.iter_mut().for_each(|w| w.is_given_up = true);
        }
        let may_go_on = result.is_ok() && !self.is_stopping && !shared.log(p).is_closed();
        let Some(check) = &mut self.check else { return };
        match check.todo.pop_front().filter(|_| may_go_on) {
            Some(op) => shared.issue(op, Op::Scrub),
            None => {
                let end = check.end;
                self.check = None;
                self.scrubbed(p, end);
            }
        }
    }

    /// Compares the first block of the segment with its known content, and plans to write it if it differs.
    fn compare_first_block(&mut self, now: Now, found: &[u8], is_short: bool, log: &PartitionLog) {
        let (Some(mut check), Some(walk)) = (self.check.take(), self.walk) else { return };
        let file = FileId::Segment(log.dir.clone(), walk.base);
        let right = log.first_block(SEGMENT_MAGIC, walk.base, found, &check.headers[0], now.unix_ns);
        check.step = ScrubOp::CommitLog;
        match right {
            Ok(Some(Right { block, why })) if is_worth_a_write(why, is_short) => {
                warn_of_first_block(&file, why);
                check.step = ScrubOp::FirstBlockWrite;
                let parts = vec![bytes::Bytes::from(block)];
                check.todo.push_front(DiskOp::Write { file, at: 0, parts, durability: Durability::Durable });
                self.check = Some(check);
            }
            Ok(_) => self.check = Some(check),
            Err(bad) => {
                self.check = Some(check);
                self.pass_over_first_block(&bad.to_string(), &log.dir);
            }
        }
    }

    /// The next pass looks again; the commit log is verified all the same.
    fn pass_over_first_block(&mut self, error: &str, dir: &Arc<PartitionDir>) {
        if let (Some(check), Some(walk)) = (&mut self.check, self.walk) {
            check.step = ScrubOp::CommitLog;
            let file = FileId::Segment(dir.clone(), walk.base).to_string();
            tracing::warn!(file, error, "the first block of a segment is neither verified nor repaired before the next pass");
        }
    }

    /// Compares records with batches, and plans the writes.
    fn compare(&mut self, now: Now, found: &[u8], is_short: bool, log: &PartitionLog) -> Result<(), String> {
        let (Some(mut check), Some(mut walk)) = (self.check.take(), self.walk) else { return Ok(()) };
        let mut bytes = found.to_vec();
        bytes.resize(check.len, 0);
        let first = check.first_index(&bytes, walk.index, &log.dir);
        // The parts of the file that do not hold.
        let mut bad: Option<(u64, u64)> = None;
        let mut mend = |at: u64, right: &[u8]| {
            let place = &mut bytes[(at - check.at) as usize..][..right.len()];
            if place != right {
                place.copy_from_slice(right);
                bad = Some((bad.map_or(at, |b| b.0), at + right.len() as u64));
            }
        };
        if check.at == 0 {
            match log.first_block(COMMIT_MAGIC, walk.base, found, &check.headers[0], now.unix_ns) {
                Ok(Some(Right { block, why })) if is_worth_a_write(why, is_short) => {
                    mend(0, &block);
                    warn_of_first_block(&check.file, why);
                }
                Ok(_) => {}
                Err(bad) => {
                    self.check = Some(check);
                    return Err(bad.to_string());
                }
            }
        }
        for (h, index) in check.headers.iter().zip(first..) {
            mend(commit_at(index), commit_record(h, &log.dir).as_bytes());
        }
        walk.index = first + check.headers.len() as u64;
        walk.next = check.headers.last().map_or(walk.next, |h| h.end());
        if let Some((from, to)) = bad {
            let are_records = to > BLOCK as u64;
            if are_records && !std::mem::replace(&mut walk.is_reported, true) {
                tracing::warn!(file = %check.file, at = from, "a commit log does not match its segment: it is written again");
            }
            let (from, to) = (block_down(from), block_up(to));
            let right = bytes::Bytes::from(bytes).slice((from - check.at) as usize..(to - check.at) as usize);
            let file = check.file.clone();
            check.todo.push_back(DiskOp::Allocate { file: file.clone(), len: to });
            check.todo.push_back(DiskOp::Write { file, at: from, parts: vec![right], durability: Durability::Durable });
        }
        (self.check, self.walk) = (Some(check), Some(walk));
        Ok(())
    }

    /// Time at which the next run begins. `None`: none is awaited.
    pub(super) fn deadline(&self) -> Option<Ticks> {
        (!self.is_reading && !self.is_stopping).then_some(self.next_at)
    }
}

/// A file whose write fails is not written again in this process, and a truncation may need a write. So a repair that is no damage waits
/// while the disk is full.
fn is_worth_a_write(why: Option<&str>, is_short: bool) -> bool {
    why.is_some() || !is_short
}

impl PartitionLog {
    /// The right first block of a file of the segment at `base` if `found` is wrong, and the reason, if it is damage. A valid header
    /// stays, unless `first`, a verified batch, shows that it is wrong: the known content may come from a table alone.
    fn first_block(
        &self,
        magic: [u8; 4],
        base: i64,
        found: &[u8],
        first: &BatchHeader,
        unix_ns: i64,
    ) -> Result<Option<Right>, Bad> {
        let (index, segment) = self.segments.holding(base);
        let (id, partition, before) = (self.dir.topic_id, self.dir.partition, self.segments.table_of(index));
        let is_shown = first.start() == segment.meta.base && first.prev_crc.get() == segment.meta.prev_crc;
        let (header, wrong) = match FileHeader::parse(found, magic, id, partition, base) {
            Ok(h) if h.meta() == segment.meta => (Some(h), None),
            Ok(_) if is_shown => (None, Some("its header differs from its first batch")),
            Ok(_) => return Err(Bad::Foreign),
            Err(bad @ Bad::Version(_)) => return Err(bad),
            Err(_) => (None, Some("its header is damaged")),
        };
        let table = SegmentTable::parse(found, id, partition, base);
        let (is_right, why) = match &table {
            Ok(table) => (table.covers(&before), None),
            // A segment without one before it has no table.
            Err(Bad::Zero) => (before.is_empty(), None),
            Err(_) => (false, Some("the table of the segments before it is damaged")),
        };
        Ok(match header {
            Some(_) if is_right => None,
            Some(h) => Some(Right { block: h.block(&before), why }),
            None => {
                let header = self.file_header(magic, segment, Epoch(first.epoch.get()), unix_ns);
                Some(Right { block: header.block(&before), why: wrong })
            }
        })
    }
}

/// Right first block, and the damaged part of the found one, if any.
struct Right {
    block: Vec<u8>,
    why: Option<&'static str>,
}

fn warn_of_first_block(file: &FileId, why: Option<&str>) {
    if let Some(why) = why {
        tracing::warn!(%file, why, "the first block of a file is damaged: it is written again");
    }
}

impl Check {
    /// Index of the record of the run's first batch. `known`: index of the first batch that was not verified before.
    fn first_index(&self, bytes: &[u8], known: u64, dir: &PartitionDir) -> u64 {
        if self.skipped == 0 {
            return known;
        }
        let records = (known..=known + self.skipped).filter_map(|index| {
            let r = CommitRecord::read_from_prefix(&bytes[(commit_at(index) - self.at) as usize..]).ok()?.0;
            r.is_valid(dir.topic_id, dir.partition).then_some((index, r.offset.get()))
        });
        let mut behind_lost = known + 1;
        for (index, offset) in records {
            if offset < self.headers[0].offset.get() {
                behind_lost = index + 1;
            } else if let Ok(n) = self.headers.binary_search_by_key(&offset, |h| h.offset.get()) {
                return index.saturating_sub(n as u64).max(behind_lost);
            }
        }
        // The batch's own commit record does not hold either, nor one near it.
        behind_lost
    }
}
