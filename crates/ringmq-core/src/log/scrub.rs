//! Scrubbing: what is stored is read again in the background, one run at a time, at a limited rate, and verified as if
//! somebody fetched it (rule 15). Nothing of it is cached. A pass over all partitions of the core begins at most once in
//! [`PASS_MIN`]; so a small node is not kept awake.
//!
//! Beside each run of a closed segment its commit records are read: those that are missing or differ from the verified
//! batches are reported and written again, in place. Nobody else writes a closed commit log. The record of a damaged
//! batch is left as it is: it may be all that tells where the batch ends.
//!
//! Beside the first run of a closed segment its first block is read: a start reads the headers of few segments only
//! ([`super::recovery::headers`]). What does not hold of it, or of the commit log's, is reported and written again.
//!
//! ```text
//! run verified -> [first one: Read (first block) -> [differs: Write, durable]]
//!   -> Read (records of the run) -> [differs: Allocate -> Write, durable] -> next run
//! ```

use super::notice::{Io, PartitionIdx};
use super::partition::PartitionLog;
use super::reader::Purpose;
use super::recovery::scan::{commit_at, commit_record};
use super::store::{Op, Store};
use crate::base::{
    BLOCK, DiskDone, DiskError, DiskOp, Durability, Epoch, FileId, IO_BYTES_MAX, Now, PartitionDir, Position, Ticks, block_down,
    block_up,
};
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader};
use crate::format::files::{Bad, COMMIT_MAGIC, CommitRecord, FileHeader, SEGMENT_MAGIC};
use crate::format::segment_table::SegmentTable;
use std::{collections::VecDeque, time::Duration};
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
    /// Something was mended in this pass, perhaps behind the walk.
    has_mended: bool,
    walk: Option<Walk>,
    check: Option<Check>,
    /// The last partition of which it was said that it cannot be read, in this pass.
    unreadable: Option<PartitionIdx>,
}

impl Scrub {
    pub fn forget(&mut self, p: PartitionIdx) {
        self.walk = self.walk.take().filter(|w| w.p != p);
        if self.partition == p.0 as usize {
            self.offset = 0;
        }
    }

    /// Lost bytes stand there again. What is known by them alone, the records of the commit log, is verified at once, and not an hour
    /// later: nobody could tell these of damaged batches.
    pub fn mended(&mut self) {
        (self.passes, self.has_mended) = (0, true);
        if self.pass_began.is_none() {
            self.next_at = Ticks::default();
        }
    }

    /// A first block or a commit log of the partition is read or written.
    pub fn repairs(&self, p: PartitionIdx) -> bool {
        self.check.as_ref().is_some_and(|c| c.p == p)
    }
}

/// Where the walk through one closed segment stands in its commit log.
#[derive(Clone, Copy)]
struct Walk {
    p: PartitionIdx,
    base: i64,
    /// The batch that begins here has the record `index`.
    next: Position,
    index: u64,
    is_reported: bool,
    /// Nothing more is compared in this segment during this pass.
    is_given_up: bool,
}

/// Operation that is with the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The segment's first block is read.
    FirstBlock,
    /// The block is being written.
    FirstBlockWrite,
    CommitLog,
}

/// The commit records of one run; with the first one of a segment its first block.
struct Check {
    p: PartitionIdx,
    step: Step,
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

impl Store {
    /// Begins the next run when it is time.
    pub(super) fn scrub_next(&mut self, now: Now, io: &mut Io) {
        let rate = self.options.scrub_bytes_per_second;
        if rate == 0 || self.scrub.is_reading || self.is_stopping() || self.scrub.next_at > now.ticks {
            return;
        }
        if self.scrub.pass_began.is_none() {
            (self.scrub.pass_began, self.scrub.has_mended) = (Some(now.ticks), false);
        }
        // At most one walk over the partitions per tick.
        for index in self.scrub.partition..self.partitions.capacity() {
            if index != self.scrub.partition {
                (self.scrub.partition, self.scrub.offset) = (index, 0);
            }
            let Some(part) = self.partitions.get(index).filter(|part| !part.is_leaving()) else { continue };
            let p = PartitionIdx(index as u32);
            let mut offset = self.scrub.offset.max(part.start().offset);
            while let Some((_, to)) = part.damage.lost_at(offset) {
                offset = to.offset;
            }
            let Some(limit) = part.readable_limit(offset) else { continue };
            let (reader, mut shared) = self.with_reader(io);
            let bytes = reader.start_read(p, offset, limit, Purpose::Scrub, &mut shared);
            self.scrub.is_reading = true;
            self.scrub.next_at = now.ticks + Duration::from_nanos((bytes as u128 * 1_000_000_000 / rate as u128) as u64);
            return;
        }
        (self.scrub.partition, self.scrub.offset) = (0, 0);
        self.scrub.walk = None;
        self.scrub.unreadable = None;
        let began = self.scrub.pass_began.take().unwrap_or(now.ticks);
        self.scrub.next_at = now.ticks + Duration::from_secs(1);
        if !self.scrub.has_mended {
            self.scrub.passes += 1;
            self.scrub.next_at = (began + PASS_MIN).max(self.scrub.next_at);
        }
    }

    /// How often all partitions were gone through since anything of them was mended.
    pub fn scrubs(&self) -> u64 {
        self.scrub.passes
    }

    /// Skips what could not be read; the next pass looks again.
    pub(super) fn scrub_passes_over(&mut self, p: PartitionIdx, offset: i64, what: &str) {
        if self.scrub.unreadable.replace(p) != Some(p) {
            let dir = &self.part(p).dir;
            tracing::warn!(topic = %dir.topic, partition = %dir.partition, offset, what,
                "the scrubber skips bytes that it could not read");
        }
    }

    /// The partition's log was verified up to `offset`, or reported.
    pub(super) fn scrubbed(&mut self, p: PartitionIdx, offset: i64) {
        self.scrub.is_reading = false;
        if self.scrub.partition == p.0 as usize {
            self.scrub.offset = self.scrub.offset.max(offset);
        }
    }

    /// A run of the segment `base` up to `end` was verified: its commit records are next, if nobody else writes them.
    pub(super) fn check_commit_log(&mut self, (p, base, end): (PartitionIdx, i64, i64), headers: Vec<BatchHeader>, io: &mut Io) {
        let part = self.part(p);
        let segment = part.segments.at_base(base);
        let border = segment.and_then(|(index, _)| part.segments.get(index + 1)).map(|s| s.base());
        let is_closed = border.is_some_and(|b| part.progress.committed().at.offset >= b) && !part.is_closed();
        let Some(first) = headers.first().filter(|_| is_closed && !self.is_stopping()).map(|h| h.start()) else {
            return self.scrubbed(p, end);
        };
        let next = segment.map_or(first, |(_, s)| s.meta.base);
        let (file, segment) = (FileId::Commit(part.dir.clone(), base), FileId::Segment(part.dir.clone(), base));
        let fresh = Walk { p, base, next, index: 0, is_reported: false, is_given_up: false };
        let known =
            self.scrub.walk.filter(|w| w.p == p && w.base == base && w.next.offset <= first.offset && first.offset > base);
        let is_first_block = known.is_none();
        let walk = self.scrub.walk.insert(known.unwrap_or(fresh));
        let (bytes, messages) = (first.offset - walk.next.offset, first.count - walk.next.count);
        // A batch has a header, and hardly ever no message.
        let skipped = (bytes / BATCH_HEADER_LEN as i64).min(messages + 1).max(0) as u64;
        let at = if walk.index == 0 { 0 } else { block_down(commit_at(walk.index)) };
        let len = (block_up(commit_at(walk.index + skipped + 1 + headers.len() as u64)) - at) as usize;
        // So much damage that nobody knows which record is whose.
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
                self.ops.issue(io, op, Op::Scrub);
                let step = if is_first_block { Step::FirstBlock } else { Step::CommitLog };
                self.scrub.check = Some(Check { p, step, file, headers, end, at, len, skipped, todo });
            }
            None => self.scrubbed(p, end),
        }
    }

    /// An operation on the commit log, or on the segment's first block, has finished.
    pub(super) fn commit_log_done(&mut self, now: Now, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let Some(check) = &self.scrub.check else { return };
        let p = check.p;
        let result = match (check.step, outcome) {
            (Step::FirstBlock, Ok(DiskDone::Read(bytes))) => {
                self.compare_first_block(now, &bytes);
                Ok(())
            }
            (Step::FirstBlock | Step::FirstBlockWrite, Err(error)) => {
                self.pass_over_first_block(&error.to_string());
                Ok(())
            }
            (Step::FirstBlockWrite, Ok(_)) => {
                self.scrub.check.iter_mut().for_each(|check| check.step = Step::CommitLog);
                Ok(())
            }
            (Step::CommitLog, Ok(DiskDone::Read(bytes))) => self.compare(now, &bytes),
            (Step::CommitLog, Err(DiskError::NotFound { .. })) if check.todo.is_empty() => self.compare(now, &[]),
            (Step::CommitLog, Err(error)) => Err(error.to_string()),
            (_, Ok(_)) => Ok(()),
        };
        if let Err(error) = &result {
            let file = self.scrub.check.as_ref().map(|c| c.file.to_string());
            tracing::warn!(file, error, "the commit log is neither verified nor repaired before the next pass");
            self.scrub.walk.iter_mut().for_each(|w| w.is_given_up = true);
        }
        let may_go_on = result.is_ok() && !self.is_stopping() && !self.part(p).is_closed();
        let Some(check) = &mut self.scrub.check else { return };
        match check.todo.pop_front().filter(|_| may_go_on) {
            Some(op) => self.ops.issue(io, op, Op::Scrub),
            None => {
                let end = check.end;
                self.scrub.check = None;
                self.scrubbed(p, end);
            }
        }
    }

    /// Compares the first block of the segment with what is known of it, and plans to write it where it differs.
    fn compare_first_block(&mut self, now: Now, found: &[u8]) {
        let (Some(mut check), Some(walk)) = (self.scrub.check.take(), self.scrub.walk) else { return };
        let part = self.part(check.p);
        let file = FileId::Segment(part.dir.clone(), walk.base);
        let right = part.first_block(SEGMENT_MAGIC, walk.base, found, &check.headers[0], now.unix_ns);
        check.step = Step::CommitLog;
        match right {
            Ok(Some(Right { block, why })) if self.is_worth_a_write(why) => {
                warn_of_first_block(&file, why);
                check.step = Step::FirstBlockWrite;
                let parts = vec![bytes::Bytes::from(block)];
                check.todo.push_front(DiskOp::Write { file, at: 0, parts, durability: Durability::Durable });
                self.scrub.check = Some(check);
            }
            Ok(_) => self.scrub.check = Some(check),
            Err(bad) => {
                self.scrub.check = Some(check);
                self.pass_over_first_block(&bad.to_string());
            }
        }
    }

    /// A file whose write fails takes no other one for the life of this process, and a cut may need one. So what is no damage waits
    /// while the disk is full.
    fn is_worth_a_write(&self, why: Option<&str>) -> bool {
        why.is_some() || !self.is_short_of_space()
    }

    /// The next pass looks again; the commit log is verified all the same.
    fn pass_over_first_block(&mut self, error: &str) {
        if let (Some(check), Some(walk)) = (&mut self.scrub.check, self.scrub.walk) {
            check.step = Step::CommitLog;
            let file = FileId::Segment(self.partitions[check.p.0 as usize].dir.clone(), walk.base).to_string();
            tracing::warn!(file, error, "the first block of a segment is neither verified nor repaired before the next pass");
        }
    }

    /// Compares records with batches, and plans what has to be written.
    fn compare(&mut self, now: Now, found: &[u8]) -> Result<(), String> {
        let (Some(mut check), Some(mut walk)) = (self.scrub.check.take(), self.scrub.walk) else { return Ok(()) };
        let part = self.part(check.p);
        let mut bytes = found.to_vec();
        bytes.resize(check.len, 0);
        let first = check.first_index(&bytes, walk.index, &part.dir);
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
            match part.first_block(COMMIT_MAGIC, walk.base, found, &check.headers[0], now.unix_ns) {
                Ok(Some(Right { block, why })) if self.is_worth_a_write(why) => {
                    mend(0, &block);
                    warn_of_first_block(&check.file, why);
                }
                Ok(_) => {}
                Err(bad) => {
                    self.scrub.check = Some(check);
                    return Err(bad.to_string());
                }
            }
        }
        for (h, index) in check.headers.iter().zip(first..) {
            mend(commit_at(index), commit_record(h, &part.dir).as_bytes());
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
        (self.scrub.check, self.scrub.walk) = (Some(check), Some(walk));
        Ok(())
    }

    pub(super) fn scrub_deadline(&self) -> Option<Ticks> {
        let is_off = self.options.scrub_bytes_per_second == 0 || self.scrub.is_reading || self.partitions.is_empty();
        (!is_off && !self.is_stopping()).then_some(self.scrub.next_at)
    }
}

impl PartitionLog {
    /// The first block of a file of the segment at `base`, where `found` is not what it should be, and why, if it is damage. A
    /// header that holds stays, unless `first`, a batch that was verified, shows that it is wrong: what is known here may come from
    /// a table alone.
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

/// First block as it should be, and what was damaged of it, if anything was.
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
    /// Index of the record of the run's first batch; `known` is that of the first batch not verified before.
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
        // Its own record does not hold either, nor one near it.
        behind_lost
    }
}
