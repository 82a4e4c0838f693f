//! The reads of a core: those under way, the cached runs, and the waiting readers.
//!
//! **Memory.** Reads under way, cached runs, and memory lent beyond its turn ([`super::lend`]) together stay within the cache's bound.
//! Not counted are one batch that is longer than the bound (one at a time: other long ones wait, parked) and the scrubber's reads. A
//! read counts with the memory into which it reads. The start of a batch that another read brought ([`Read::head`]) is a copy, so that
//! it keeps nothing of that read. Only cached runs can be dropped: a read begins, a long one goes on, and a batch is lent or put
//! together only if there is room beside the rest.

use super::ahead::whole_batches;
use super::cache::ReadCache;
use super::core_logs::{Op, Shared};
use super::hold::{Holds, PROBE_ROOM};
use super::notice::PartitionIdx;
use super::recovery::scan::segment_at;
use crate::base::{BLOCK, DiskOp, FileId, READ_BYTES_MAX, block_down, block_up, read_memory};
use bytes::Bytes;
use slab::Slab;
use std::collections::VecDeque;
use std::ops::Range;

/// Reads of a core in flight.
pub(super) const READS_MAX: usize = 32;
/// Length of one read of the scrubber.
const SCRUB_LEN: u64 = 256 * 1024;
/// Reads of a partition in flight: channels at different places.
pub(super) const PARTITION_READS_MAX: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Fetch,
    /// A place that could not be read is tried again.
    Probe,
    Scrub,
}

/// A run being read.
pub(super) struct Read {
    pub p: PartitionIdx,
    pub purpose: Purpose,
    /// Offset of the first batch wanted.
    pub offset: i64,
    /// Base offset of its segment.
    pub base: i64,
    /// End of the segment's written part.
    pub limit: i64,
    /// File positions, whole blocks: where it begins and how far it goes.
    pub at: u64,
    pub until: u64,
    /// Bytes that are there so far; in `joined` while they come in several pieces.
    pub found: Bytes,
    pub joined: Vec<u8>,
    /// Bytes of the operation in flight.
    pub asked: usize,
    /// True for a long batch that waits for memory and keeps the bytes found so far.
    pub is_parked: bool,
    /// File position at which its first batch begins, or is expected to.
    pub first_at: u64,
    /// Bytes that the read before it found of its first batch, when that stands in both: a copy, with room for all of it.
    pub head: Vec<u8>,
    /// The end of this read says where its first batch begins.
    pub follows: Option<u32>,
    pub followed_by: Option<u32>,
    /// True if the start of a batch in it is unknown: the read is dropped when it comes.
    pub is_useless: bool,
}

impl Read {
    /// A read from the batch at `offset` on. `base`: of its segment. `limit`: end of the segment's written part. `range`: bytes of the
    /// file.
    pub fn new(p: PartitionIdx, purpose: Purpose, offset: i64, (base, limit): (i64, i64), range: Range<u64>) -> Read {
        Read {
            p,
            purpose,
            offset,
            base,
            limit,
            at: range.start,
            until: range.end,
            found: Bytes::new(),
            joined: vec![],
            asked: 0,
            is_parked: false,
            first_at: segment_at(base, offset),
            head: vec![],
            follows: None,
            followed_by: None,
            is_useless: false,
        }
    }

    pub fn len(&self) -> usize {
        self.found.len() + self.joined.len()
    }

    /// Length of the memory that the read takes.
    pub fn bytes(&self) -> usize {
        let len = (self.until - self.at) as usize;
        let found = match (self.is_parked, self.joined.is_empty()) {
            (true, _) => read_memory(self.found.len()),
            (false, true) => read_memory(len),
            (false, false) => len + read_memory(self.asked),
        };
        self.head.capacity() + found
    }

    /// Whether the read is complete: the disk has none of it, and there is no more to ask for.
    pub fn is_there(&self) -> bool {
        self.asked == 0 && !self.is_parked
    }
}

pub struct Reader {
    pub(super) reads: Slab<Read>,
    pub(super) cache: ReadCache,
    pub(super) holds: Holds,
    /// Partitions that wait for room to begin a read, the first in line first.
    waiting: VecDeque<PartitionIdx>,
    /// Partitions that were taken from the line at the last turn's end: room is kept for them until the next one.
    called: Vec<PartitionIdx>,
    /// Reads of long batches that wait for room, the first in line first.
    parked: VecDeque<u32>,
}

impl Reader {
    pub fn new(cache: ReadCache) -> Reader {
        let (waiting, called, parked) = (VecDeque::new(), vec![], VecDeque::new());
        Reader { reads: Slab::new(), cache, holds: Holds::default(), waiting, called, parked }
    }

    /// The read whose first batch is the one at `offset`.
    pub(super) fn under_way(&self, p: PartitionIdx, offset: i64) -> Option<u32> {
        let is_it =
            |r: &Read| r.p == p && r.offset == offset && r.purpose == Purpose::Fetch && r.follows.is_none() && !r.is_useless;
        self.reads.iter().find(|(_, r)| is_it(r)).map(|(key, _)| key as u32)
    }

    /// A read of the partition is under way.
    pub fn reads(&self, p: PartitionIdx) -> bool {
        self.reads.iter().any(|(_, r)| r.p == p)
    }

    /// Forgets a partition that is not read any more.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.waiting.retain(|&q| q != p);
        self.called.retain(|&q| q != p);
        self.holds.forget(p);
    }

    /// Other bytes may stand in the partition's files soon.
    pub fn forget_all(&mut self, p: PartitionIdx) {
        self.cache.forget(p);
        self.forget(p);
    }

    pub fn bytes(&self) -> usize {
        self.reads.iter().map(|(_, r)| r.bytes()).sum()
    }

    pub fn probes(&self) -> usize {
        self.reads.iter().filter(|(_, r)| r.purpose == Purpose::Probe).count()
    }

    pub fn has_called(&self) -> bool {
        !self.called.is_empty()
    }

    // ---- reads

    /// Begins to read from the batch at `offset` on, within the written part of its segment. Returns the bytes that it reads.
    pub(super) fn start_read(
        &mut self,
        p: PartitionIdx,
        offset: i64,
        limit: i64,
        purpose: Purpose,
        shared: &mut Shared<'_>,
    ) -> u64 {
        let log = shared.log(p);
        let base = log.segments.holding(offset).1.base();
        let at = block_down(segment_at(base, offset));
        let end = block_up(segment_at(base, limit));
        let len = match purpose {
            // A single block, then the rest of its batch: a bad block takes no neighbour with it.
            Purpose::Probe => BLOCK as u64,
            _ if log.reading.is_careful(offset) => BLOCK as u64,
            Purpose::Fetch => {
                let before = segment_at(base, offset) - at;
                whole_batches(self.cache.ahead() as u64, before, log.reading.batch_len() as u64)
            }
            Purpose::Scrub => SCRUB_LEN,
        };
        let until = end.min(at + len);
        self.make_room(read_memory((until - at) as usize));
        let key = self.reads.insert(Read::new(p, purpose, offset, (base, limit), at..until)) as u32;
        if purpose != Purpose::Scrub {
            shared.log_mut(p).reading.begin(offset);
        }
        self.ask(key, shared);
        until - at
    }

    /// Issues the next part of a read.
    pub(super) fn ask(&mut self, key: u32, shared: &mut Shared<'_>) {
        let read = &mut self.reads[key as usize];
        read.is_parked = false;
        if !read.found.is_empty() {
            read.joined.reserve_exact((read.until - read.at) as usize);
            read.joined.extend_from_slice(&std::mem::take(&mut read.found));
        }
        let at = read.at + read.len() as u64;
        let len = (read.until - at).min(READ_BYTES_MAX as u64) as usize;
        read.asked = len;
        let (p, base) = (read.p, read.base);
        assert!(len > 0 && len.is_multiple_of(BLOCK) && at.is_multiple_of(BLOCK as u64));
        self.make_room(0);
        let file = FileId::Segment(shared.log(p).dir.clone(), base);
        shared.issue(DiskOp::Read { file, at, len }, Op::Read(key));
    }

    // ---- memory

    /// True if a read of `len` bytes may begin beside `others`, the called readers: reads under way and runs of this turn fit into the
    /// cache's bound. One read may always be under way.
    fn has_room(&self, others: usize, len: usize) -> bool {
        let taken = self.taken(others);
        let fits = taken == 0 || taken + read_memory(len) + PROBE_ROOM <= self.cache.bytes_max();
        self.parked.is_empty() && self.reads.len() + others < READS_MAX && fits
    }

    /// Whether there is room for a try of a place that is held; compare [`Reader::has_room`]. Such tries keep some room, lest laggards
    /// that take all there is keep a place held for ever.
    pub(super) fn has_probe_room(&self) -> bool {
        let taken = self.taken(self.called.len());
        self.parked.is_empty() && (taken == 0 || taken + BLOCK <= self.cache.bytes_max())
    }

    /// Bytes that are being read or came in this turn, and those of `others` that were called.
    pub(super) fn taken(&self, others: usize) -> usize {
        self.bytes() + self.cache.fresh_bytes() + others * read_memory(self.cache.ahead())
    }

    /// True if `more` bytes may be taken: only cached runs can be dropped for them.
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        self.taken(self.called.len()) + more <= self.cache.bytes_max()
    }

    /// Whether there is room for the rest of a long batch, or nothing else that could make room.
    fn may_go_on(&self, key: u32) -> bool {
        let read = &self.reads[key as usize];
        let rest = (read.until - read.at) as usize - read.len();
        // it is put together from the bytes found and those to come
        let more = rest + read_memory(rest.min(READ_BYTES_MAX));
        let is_alone = !self.reads.iter().any(|(k, r)| k != key as usize && !r.is_parked);
        let fresh = self.cache.fresh_bytes();
        is_alone && fresh == 0 || self.bytes() + fresh + more <= self.cache.bytes_max()
    }

    /// Drops cached runs for the next read. To be called whenever reads or fresh runs take more than before.
    pub(super) fn make_room(&mut self, more: usize) {
        let reading = self.bytes() + more;
        self.cache.lender().set_taken(reading + self.cache.fresh_bytes());
        self.cache.shrink(self.cache.bytes_max().saturating_sub(reading));
    }

    /// Bytes that were read, are being read, or are lent.
    pub(super) fn memory_bytes(&self) -> usize {
        self.cache.bytes() + self.bytes() + self.cache.lender().kept()
    }

    // ---- the line

    /// Whether the partition, which wants to begin a read, is next and has room. It leaves the line then.
    pub(super) fn begins(&mut self, p: PartitionIdx) -> bool {
        let is_called = self.called.contains(&p);
        let is_next = is_called || self.waiting.is_empty();
        let others = self.called.len() - is_called as usize;
        let begins = is_next && self.has_room(others, self.cache.ahead());
        if begins {
            self.called.retain(|&c| c != p);
        }
        begins
    }

    pub(super) fn stand_in_line(&mut self, p: PartitionIdx) {
        self.waiting.push_back(p);
    }

    /// Every channel that was told of a read has had its turn: from here on the run may leave the memory.
    pub(super) fn end_turn(&mut self) {
        let reading = self.bytes();
        self.cache.end_turn(self.cache.bytes_max().saturating_sub(reading));
        self.cache.lender().set_taken(reading);
        self.called.clear();
    }

    /// The next partition in line, for which room is kept from now on to the next turn's end.
    pub(super) fn call(&mut self) -> Option<PartitionIdx> {
        if self.waiting.is_empty() || !self.has_room(self.called.len(), self.cache.ahead()) {
            return None;
        }
        let p = self.waiting.pop_front()?;
        self.called.push(p);
        Some(p)
    }

    /// A read found that its batch is long. True: it goes on at once; otherwise [`Reader::unpark`] names it when there is room.
    pub(super) fn park(&mut self, key: u32) -> bool {
        self.reads[key as usize].is_parked = true;
        let goes_on = self.parked.is_empty() && self.may_go_on(key);
        if !goes_on {
            self.parked.push_back(key);
        }
        goes_on
    }

    /// The next long batch that has room now.
    pub(super) fn unpark(&mut self) -> Option<u32> {
        let key = *self.parked.front()?;
        if self.may_go_on(key) { self.parked.pop_front() } else { None }
    }

    /// True if a reader waits for room, or has been called and had no turn yet.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty() || !self.called.is_empty() || !self.parked.is_empty()
    }
}
