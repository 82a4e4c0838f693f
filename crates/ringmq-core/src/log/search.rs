//! Search of a place through the commit logs: by log id, count, offset or time on request; the extent of a damaged batch for the reader;
//! the age of a segment for retention.
//!
//! ```text
//! Segments  (time only) halve over the segments by the first record of each
//! Halving   halve over the blocks of one commit log by the first record of each
//! Floor     read the block found: the last record at or below the target, and the next one
//! Next      when that block has no next record, the one after it may
//! Forward   (extent only) no record of the damaged batch: look through the segment for the next header that holds
//! ```
//! A block of zeros, or beyond the file's end, lies behind the last record. A block without a valid record is damaged and skipped: the
//! answer is then the nearest known place.

use super::core_logs::{CoreLogs, Op};
use super::notice::{Io, Notice, PartitionIdx, SearchBy};
use super::reader::Purpose;
use super::recovery::scan::{commit_record, segment_at};
use crate::base::{BLOCK, DiskDone, DiskError, DiskOp, FileId, Now, PartitionDir, Position, block_down, block_up};
use crate::format::batch::{BATCH_MAGIC, BatchHeader};
use crate::format::files::{COMMIT_RECORD_LEN, CommitRecord, FILE_HEADER_LEN};
use slab::Slab;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Reason for the search of a batch's end.
#[derive(Clone, Debug)]
pub(super) enum Finding {
    /// The batch was read and does not hold.
    Damaged(String),
    /// The scrubber could not read it, and goes on behind it.
    Unreadable(String),
}

#[derive(Clone, Debug)]
enum Goal {
    Answer {
        token: u64,
    },
    Extent {
        offset: i64,
        purpose: Purpose,
        finding: Finding,
    },
    /// The time at which the segment before this one ended.
    Age {
        closed: i64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchStage {
    Segments,
    Halving,
    Floor,
    Next,
    Forward,
}

#[derive(Clone, Copy, Debug)]
enum SearchKey {
    LogId,
    Count,
    Offset,
    UnixNs,
}

impl SearchKey {
    fn of(self, r: &CommitRecord) -> i64 {
        match self {
            SearchKey::LogId => r.log_id.get() as i64,
            SearchKey::Count => r.count.get(),
            SearchKey::Offset => r.offset.get(),
            SearchKey::UnixNs => r.unix_ns.get(),
        }
    }

    fn of_position(self, at: Position) -> i64 {
        match self {
            SearchKey::LogId => at.log_id.0 as i64,
            SearchKey::Count => at.count,
            SearchKey::Offset | SearchKey::UnixNs => at.offset,
        }
    }
}

struct Search {
    p: PartitionIdx,
    goal: Goal,
    key: SearchKey,
    target: i64,
    stage: SearchStage,
    /// Bases that are left to halve over.
    segments: Vec<i64>,
    /// Segment whose commit log is read.
    base: i64,
    /// Blocks of records: the answer's is in `lo .. hi`.
    lo: u64,
    hi: u64,
    /// The block being read; beyond the middle when that was damaged.
    probe: u64,
    floor: Option<CommitRecord>,
    /// The record that ends at the target.
    before: Option<CommitRecord>,
    /// Reads that failed.
    tries: u32,
    forward: Forward,
}

/// Progress of the search through the segment.
#[derive(Default)]
struct Forward {
    /// The next batch that the commit log knows.
    next: Option<CommitRecord>,
    /// The log's offset at which to give up.
    limit: i64,
    /// File position, whole blocks.
    at: u64,
    /// True while the device refuses: reads are one block at a time.
    is_careful: bool,
    /// Blocks that were stepped over unread.
    failures: u32,
}

/// Number of times that a search tries its reads; then it does without the commit log.
const TRIES_MAX: u32 = 3;
/// Bytes that are looked through at a time.
const FORWARD_LEN: u64 = 256 * 1024;
/// Number of unreadable blocks that a search steps over.
const FORWARD_FAILURES_MAX: u32 = 64;

/// Records of one block of a commit log.
struct Block {
    records: Vec<CommitRecord>,
    is_behind: bool,
}

impl Block {
    fn parse(bytes: &[u8], dir: &Arc<PartitionDir>) -> Block {
        let records = bytes
            .chunks_exact(COMMIT_RECORD_LEN)
            .filter_map(|c| CommitRecord::read_from_bytes(c).ok())
            .filter(|r| r.is_valid(dir.topic_id, dir.partition))
            .collect();
        Block { records, is_behind: bytes.iter().all(|&b| b == 0) }
    }
}

/// Outcome of the search for the end of a batch that does not hold.
pub(super) enum Extent {
    /// The device refuses bytes behind the batch.
    Unread { p: PartitionIdx, offset: i64, error: String },
    /// The log goes on at `to`. `passed_over`: why the scrubber passes over the batch, which is not reported as lost.
    Known { p: PartitionIdx, offset: i64, to: i64, purpose: Purpose, passed_over: Option<String> },
}

/// Searches of a core that are under way.
#[derive(Default)]
pub(super) struct Searches(Slab<Search>);

impl Searches {
    /// Whether one is under way in the partition.
    pub fn is_any_in(&self, p: PartitionIdx) -> bool {
        self.0.iter().any(|(_, s)| s.p == p)
    }

    /// Whether one looks for the end of the damaged batch at `offset`.
    pub fn is_for_extent_of(&self, p: PartitionIdx, offset: i64) -> bool {
        self.0.iter().any(|(_, s)| s.p == p && matches!(s.goal, Goal::Extent { offset: o, .. } if o == offset))
    }

    /// Whether one looks for the time at which the segment ended that begins at `base`.
    fn is_for_age_of(&self, p: PartitionIdx, base: i64) -> bool {
        self.0.iter().any(|(_, s)| s.p == p && matches!(s.goal, Goal::Age { closed } if closed == base))
    }
}

impl Searches {
    /// See [`Store::search`](super::Store::search).
    pub fn search(&mut self, core: &mut CoreLogs, p: PartitionIdx, by: SearchBy, token: u64, io: &mut Io) {
        let part = core.part(p);
        let (key, target) = match by {
            SearchBy::LogId(id) => (SearchKey::LogId, id.0.min(i64::MAX as u64) as i64),
            SearchBy::Count(count) => (SearchKey::Count, count),
            SearchBy::Offset(offset) => (SearchKey::Offset, offset),
            // The last batch before it is sought, and the one after that is the answer.
            SearchBy::UnixNs(at) => (SearchKey::UnixNs, at.saturating_sub(1)),
        };
        let goal = Goal::Answer { token };
        let header = |number| part.durable_batch(number).map(|r| *r.header());
        let found = if let SearchKey::UnixNs = key {
            let is_in_memory = header(part.batches.first()).is_some_and(|h| h.base_unix_ns.get() <= target);
            let is_empty = part.start() == part.progress.durable().at;
            (is_in_memory || is_empty).then(|| part.first_durable_after(target))
        } else if target <= key.of_position(part.start()) {
            Some(Some(part.start()))
        } else if target >= key.of_position(part.progress.durable().at) {
            Some(Some(part.progress.durable().at))
        } else {
            let after = part.batches.number_where(|h| key.of_position(h.start()) <= target);
            after.checked_sub(1).and_then(header).map(|h| Some(h.start()))
        };
        if let Some(found) = found {
            core.notices.push(Notice::Found { token, result: Ok(found) });
            return;
        }
        let part = core.part(p);
        let bases: Vec<i64> = part.segments.iter().map(|s| s.base()).collect();
        if let SearchKey::UnixNs = key {
            self.begin(core, p, goal, (key, target), bases, io);
        } else {
            let base = part.segments.last_where(|meta| key.of_position(meta.base) <= target).1.base();
            self.begin(core, p, goal, (key, target), vec![base], io);
        }
    }

    /// The batch at `offset` does not hold: looks for its end.
    pub fn find_extent(
        &mut self,
        core: &mut CoreLogs,
        p: PartitionIdx,
        offset: i64,
        purpose: Purpose,
        finding: Finding,
        io: &mut Io,
    ) {
        let base = core.part(p).segments.holding(offset).1.base();
        self.begin(core, p, Goal::Extent { offset, purpose, finding }, (SearchKey::Offset, offset), vec![base], io);
    }

    /// Looks for the time of the first batch in `next`, which tells when the segment `closed` before it ended.
    pub fn find_age(&mut self, core: &mut CoreLogs, p: PartitionIdx, closed: i64, next: i64, io: &mut Io) {
        if self.is_for_age_of(p, closed) {
            return;
        }
        self.begin(core, p, Goal::Age { closed }, (SearchKey::Offset, next), vec![next], io);
    }

    fn begin(
        &mut self,
        core: &mut CoreLogs,
        p: PartitionIdx,
        goal: Goal,
        (key, target): (SearchKey, i64),
        segments: Vec<i64>,
        io: &mut Io,
    ) {
        let base = segments[0];
        let stage = if segments.len() > 1 { SearchStage::Segments } else { SearchStage::Halving };
        let (floor, before, forward) = (None, None, Forward::default());
        let (lo, hi, probe, tries) = (0, 0, 0, 0);
        let search = Search { p, goal, key, target, stage, segments, base, lo, hi, probe, floor, before, tries, forward };
        let id = self.0.insert(search) as u32;
        if stage == SearchStage::Halving {
            self.enter_segment(core, id, base);
        }
        self.read_next(core, id, io);
    }

    fn enter_segment(&mut self, core: &CoreLogs, id: u32, base: i64) {
        let part = core.part(self.0[id as usize].p);
        let next = part.segments.behind(base).map_or(part.progress.durable().at, |s| s.meta.base);
        let first = part.segments.at_base(base).map_or(part.start(), |(_, s)| s.meta.base);
        // A batch takes at least its header.
        let records = ((next.offset - first.offset).max(0) as u64 / crate::format::batch::BATCH_HEADER_LEN as u64).max(1);
        let s = &mut self.0[id as usize];
        s.base = base;
        (s.lo, s.hi) = (0, records.div_ceil((BLOCK / COMMIT_RECORD_LEN) as u64));
        s.stage = SearchStage::Halving;
    }

    /// Issues the read that the search needs next.
    fn read_next(&mut self, core: &mut CoreLogs, id: u32, io: &mut Io) {
        let s = &mut self.0[id as usize];
        if s.stage == SearchStage::Halving && s.hi - s.lo <= 1 {
            s.stage = SearchStage::Floor;
        }
        let (base, block) = match s.stage {
            SearchStage::Segments => (s.segments[s.segments.len() / 2], 0),
            SearchStage::Halving => {
                s.probe = s.probe.max(s.lo + (s.hi - s.lo) / 2);
                (s.base, s.probe)
            }
            SearchStage::Floor => (s.base, s.lo),
            SearchStage::Next => (s.base, s.probe),
            SearchStage::Forward => {
                let file = FileId::Segment(core.partitions[s.p.0 as usize].dir.clone(), s.base);
                let len = if s.forward.is_careful { BLOCK as u64 } else { FORWARD_LEN };
                let len = len.min(block_up(segment_at(s.base, s.forward.limit)) - s.forward.at) as usize;
                return core.ops.issue(io, DiskOp::Read { file, at: s.forward.at, len }, Op::Search(id));
            }
        };
        let file = FileId::Commit(core.partitions[s.p.0 as usize].dir.clone(), base);
        let at = FILE_HEADER_LEN + block * BLOCK as u64;
        core.ops.issue(io, DiskOp::Read { file, at, len: BLOCK }, Op::Search(id));
    }

    /// A read of a search has come in. Returns the outcome of a search for the end of a batch.
    pub fn went_on(
        &mut self,
        core: &mut CoreLogs,
        now: Now,
        id: u32,
        outcome: Result<DiskDone, DiskError>,
        io: &mut Io,
    ) -> Option<Extent> {
        if self.0[id as usize].stage == SearchStage::Forward {
            return self.forward_read(core, now, id, outcome, io);
        }
        let s = &mut self.0[id as usize];
        let block = match outcome {
            Ok(DiskDone::Read(bytes)) => Block::parse(&bytes, &core.partitions[s.p.0 as usize].dir),
            Ok(_) => Block { records: vec![], is_behind: true },
            // The commit log bounds the range that is given up, so its read is tried again.
            Err(_) if s.tries + 1 < TRIES_MAX => {
                s.tries += 1;
                self.read_next(core, id, io);
                return None;
            }
            Err(error) => match s.goal {
                Goal::Answer { .. } => return self.end_search(core, now, id, Err(error)),
                // Without the commit log, the next segment's start is the next known place.
                _ => Block { records: vec![], is_behind: true },
            },
        };
        let (key, target) = (s.key, s.target);
        match s.stage {
            SearchStage::Segments => {
                let middle = s.segments.len() / 2;
                // A segment that tells nothing is taken for a later one.
                if block.records.first().is_some_and(|r| key.of(r) <= target) {
                    s.segments.drain(..middle);
                } else {
                    s.segments.truncate(middle);
                }
                if s.segments.len() == 1 {
                    let base = s.segments[0];
                    self.enter_segment(core, id, base);
                }
            }
            SearchStage::Halving => match block.records.first() {
                Some(r) if key.of(r) <= target => (s.lo, s.probe) = (s.probe, 0),
                None if !block.is_behind && s.probe + 1 < s.hi => s.probe += 1,
                _ => {
                    s.hi = s.lo + (s.hi - s.lo) / 2;
                    s.probe = 0;
                }
            },
            SearchStage::Floor => {
                s.before = block.records.iter().find(|r| r.end().offset == target).copied();
                s.floor = block.records.iter().rev().find(|r| key.of(r) <= target).copied();
                if let Some(next) = block.records.iter().find(|r| key.of(r) > target) {
                    return self.conclude(core, now, id, Some(*next), io);
                }
                s.probe = s.lo + 1;
                s.stage = SearchStage::Next;
            }
            SearchStage::Forward => unreachable!("it reads the segment, not a commit log"),
            SearchStage::Next => {
                if let Some(next) = block.records.iter().find(|r| key.of(r) > target) {
                    return self.conclude(core, now, id, Some(*next), io);
                }
                if block.is_behind {
                    return self.conclude(core, now, id, None, io);
                }
                s.probe += 1;
            }
        }
        self.read_next(core, id, io);
        None
    }

    /// The search of the commit log is over: for a damaged batch without a record the segment is searched.
    fn conclude(&mut self, core: &mut CoreLogs, now: Now, id: u32, next: Option<CommitRecord>, io: &mut Io) -> Option<Extent> {
        let s = &self.0[id as usize];
        let Goal::Extent { offset, .. } = s.goal else { return self.end_search(core, now, id, Ok(next)) };
        let is_known = s.floor.is_some_and(|r| r.offset.get() == offset);
        let limit = core.part(s.p).readable_limit(offset).filter(|_| !is_known && core.part(s.p).start().offset <= offset);
        let Some(limit) = limit else { return self.end_search(core, now, id, Ok(next)) };
        let s = &mut self.0[id as usize];
        let limit = next.map_or(limit, |r| r.offset.get().min(limit));
        s.forward = Forward { next, limit, at: block_down(segment_at(s.base, offset)), ..Forward::default() };
        s.stage = SearchStage::Forward;
        self.read_next(core, id, io);
        None
    }

    /// Looks through a part of the segment for a batch in its place.
    fn forward_read(
        &mut self,
        core: &mut CoreLogs,
        now: Now,
        id: u32,
        outcome: Result<DiskDone, DiskError>,
        io: &mut Io,
    ) -> Option<Extent> {
        let s = &mut self.0[id as usize];
        let dir = &core.partitions[s.p.0 as usize].dir;
        let next = s.forward.next;
        match outcome {
            Ok(DiskDone::Read(bytes)) => {
                let (from, to) = (s.forward.at, s.forward.at + bytes.len() as u64);
                let known = s.floor.map_or(0, |r| r.last_log_id.get());
                let first = segment_at(s.base, s.target).saturating_sub(from) as usize;
                let mut places = bytes.windows(BATCH_MAGIC.len()).enumerate().skip(first).filter(|(_, w)| *w == BATCH_MAGIC);
                let found = places.find_map(|(i, _)| {
                    let h = BatchHeader::parse(&bytes[i..], dir.topic_id, dir.partition).ok()?;
                    let stands = segment_at(s.base, h.offset.get().max(s.base)) == from + i as u64;
                    let continues = h.log_id.get() > known && h.end().offset <= s.forward.limit;
                    (stands && continues).then(|| commit_record(&h, dir))
                });
                if let Some(r) = found {
                    if r.offset.get() > s.target {
                        return self.end_search(core, now, id, Ok(Some(r)));
                    }
                    // Only its body does not hold.
                    s.floor = Some(r);
                    return self.end_search(core, now, id, Ok(next));
                }
                // A header may go on in the next block: the last one is looked through again.
                s.forward.at = if to - from > BLOCK as u64 { block_down(to - 1) } else { to };
                if to - from <= BLOCK as u64 {
                    s.forward.is_careful = false;
                }
                if bytes.is_empty() || bytes.len() % BLOCK != 0 || to >= segment_at(s.base, s.forward.limit) {
                    return self.end_search(core, now, id, Ok(next));
                }
            }
            Ok(_) => return self.end_search(core, now, id, Ok(next)),
            Err(_) if !s.forward.is_careful => s.forward.is_careful = true,
            // Bytes that were not read are not judged: readers behind the damage hold.
            Err(error) if matches!(s.goal, Goal::Extent { purpose: Purpose::Fetch, .. }) => {
                let (p, offset) = (s.p, s.target);
                self.0.remove(id as usize);
                return Some(Extent::Unread { p, offset, error: error.to_string() });
            }
            Err(_) => {
                s.forward.failures += 1;
                s.forward.at += BLOCK as u64;
                let is_over = s.forward.at >= segment_at(s.base, s.forward.limit);
                if is_over || s.forward.failures >= FORWARD_FAILURES_MAX {
                    return self.end_search(core, now, id, Ok(next));
                }
            }
        }
        self.read_next(core, id, io);
        None
    }

    fn end_search(
        &mut self,
        core: &mut CoreLogs,
        now: Now,
        id: u32,
        found: Result<Option<CommitRecord>, DiskError>,
    ) -> Option<Extent> {
        let s = self.0.remove(id as usize);
        let p = s.p;
        let part = core.part(p);
        // Place where the log continues behind this segment, or behind its written part.
        let behind = part.segments.behind(s.base).map(|g| g.meta.base);
        let base = part.segments.at_base(s.base).map_or(part.start(), |(_, g)| g.meta.base);
        match s.goal {
            Goal::Answer { token } => {
                let result = found.map(|next| match s.key {
                    SearchKey::UnixNs => next.map(|r| r.position()).or(behind).or_else(|| part.first_durable_after(s.target)),
                    _ => Some(s.floor.map_or(base, |r| r.position())),
                });
                let start = part.start();
                let result = result.map(|at| at.map(|at| if at.offset < start.offset { start } else { at }));
                core.notices.push(Notice::Found { token, result });
            }
            Goal::Age { closed } => {
                // No record: the time is unknown, so now counts.
                let at = s.floor.map_or(now.unix_ns, |r| r.unix_ns.get());
                core.learn_age(p, closed, at);
            }
            Goal::Extent { offset, purpose, finding } => {
                let next = found.ok().flatten();
                let from = match s.floor {
                    Some(r) if r.offset.get() == offset => r.position(),
                    Some(r) => Position { offset, ..r.end() },
                    None => Position { offset, ..base },
                };
                let to = match s.floor {
                    Some(r) if r.offset.get() == offset => r.end(),
                    _ => next.map(|r| r.position()).or(behind).unwrap_or_else(|| core.next_in_memory(p, offset)),
                };
                assert!(to.offset > offset, "the log goes on behind a damaged batch");
                let passed_over = match finding {
                    Finding::Damaged(what) if s.forward.failures == 0 => {
                        damaged(core, p, from, to, s.before, what);
                        None
                    }
                    // Found by the scrubber: a reader that wants the batch finds out itself.
                    Finding::Damaged(what) | Finding::Unreadable(what) => Some(what),
                };
                return Some(Extent::Known { p, offset, to: to.offset, purpose, passed_over });
            }
        }
        None
    }
}

/// Reports a range whose bytes do not hold, once.
fn damaged(core: &mut CoreLogs, p: PartitionIdx, from: Position, to: Position, before: Option<CommitRecord>, what: String) {
    let part = core.part_mut(p);
    if to.offset <= part.start().offset {
        // Retention removed it while it was searched: no other replica is asked for it, as none may have it.
        return;
    }
    part.unvouch(from, before);
    if part.damage.lost_at(from.offset).is_some_and(|l| l.1.offset >= to.offset) {
        return;
    }
    part.damage.add_lost(from, to);
    // A damaged stretch is found batch by batch: a line when it begins and each time that it has doubled.
    let whole = part.damage.lost_at(from.offset).unwrap_or((from, to));
    if grew_twofold(from.offset - whole.0.offset, to.offset - whole.0.offset) {
        let (from, to, messages) = (whole.0.offset, to.offset, to.count - whole.0.count);
        let file = FileId::Segment(part.dir.clone(), part.segments.holding(whole.0.offset).1.base());
        if part.waits_for(whole.1) {
            tracing::error!(%file, from, to, messages, what,
                "damage: stored bytes fail their checks; another replica is asked for them");
        } else {
            tracing::error!(%file, from, to, messages, what, "damage: stored bytes fail their checks, these messages are lost");
        }
    }
    core.notices.push(Notice::Damage { p, from, to, what });
}

/// A power of two lies between the lengths, or there was nothing.
fn grew_twofold(from: i64, to: i64) -> bool {
    from <= 0 || from.ilog2() != to.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_long_damaged_stretch_is_a_few_lines() {
        let (batch, n) = (50_328, 100_000);
        let lines = (0..n).filter(|i| super::grew_twofold(i * batch, (i + 1) * batch)).count();
        assert_eq!(lines, 18);
        assert!(super::grew_twofold(0, 1));
    }
}
