//! Reading ahead of sequential readers: up to [`RUNS_AHEAD`] runs are cached or being read behind the run that is handed out, so the
//! disk has several reads at a time.
//!
//! A run begins where the last whole batch of the run before ends, which is known only when that run is read. A read that *follows*
//! another, while the other is still under way, begins at a guess: where that batch ends if batches are as long as the former one. It
//! gets the true place later. The bytes of a split batch at the end of the first read, the *head* of the second, are joined with the
//! rest; that is the only copy. The tail of a cached run is joined in the same way, when nothing was read behind it while it came.
//!
//! ```text
//! segment  ...|== batch ==|== batch ==|== batch ==|== batch ==|...
//!             ^ read .............. ^             ^ the expected place
//!                                 ^ follows ............ ^
//! ```
//! Only sequential readers use this. If a read brings no run, the reads that follow it are dropped too: the start of a batch in them is
//! unknown, and a reader asks again.

use super::chain::{Chain, ChainStop, Walk};
use super::core_logs::Shared;
use super::notice::PartitionIdx;
use super::partition::PartitionLog;
use super::reader::{PARTITION_READS_MAX, Purpose, READS_MAX, Read, Reader};
use super::recovery::scan::segment_at;
use crate::base::{BLOCK, PartitionDir, block_down, block_up, read_memory};
use crate::format::batch::{BATCH_HEADER_LEN, Batch, BatchHeader};
use crate::format::files::Bad;
use bytes::Bytes;
use slab::Slab;

/// Runs behind the one that is handed out; one, when more reads of the core are under way than few.
const RUNS_AHEAD: usize = 3;
const READS_FEW: usize = 8;

/// Bytes of `ahead` to read, so that a run ends where a batch ends if all batches are as long as `batch` from `before` bytes on. The
/// part of a batch that is not whole is read again.
pub(super) fn whole_batches(ahead: u64, before: u64, batch: u64) -> u64 {
    match ahead.saturating_sub(before).checked_div(batch) {
        Some(count @ 1..) => block_up(before + count * batch).min(ahead),
        _ => ahead,
    }
}

impl Reader {
    /// Reads the runs behind a cached one before a reader asks: the next run, and while there is little to read also those after it, so
    /// that the disk works while runs are handed out. `from`: offset of a cached batch. False: there may be more to do when a batch is
    /// asked for again.
    pub(super) fn read_on(&mut self, p: PartitionIdx, from: i64, shared: &mut Shared<'_>) -> bool {
        let (mut offset, mut tail) = (from, Bytes::new());
        for ahead in 0..=RUNS_AHEAD {
            if let Some(run) = self.cache.run(p, offset) {
                (offset, tail) = run;
                continue;
            }
            let ahead = ahead - 1;
            if let Some(key) = self.under_way(p, offset) {
                return self.read_behind(key, ahead + 1, shared);
            }
            let log = shared.log(p);
            let Some(limit) = log.readable_limit(offset).filter(|_| !self.is_settled(log, p, offset)) else { return true };
            if self.is_crowded(p, ahead) {
                return false;
            }
            self.start_behind(p, (offset, limit), &tail, shared);
            return self.under_way(p, offset).is_none_or(|key| self.read_behind(key, ahead + 1, shared));
        }
        true
    }

    /// Begins to read behind a run that is cached, which has this of the batch at `offset`.
    fn start_behind(&mut self, p: PartitionIdx, (offset, limit): (i64, i64), tail: &[u8], shared: &mut Shared<'_>) {
        let log = shared.log(p);
        let base = log.segments.holding(offset).1.base();
        let first_at = segment_at(base, offset);
        let at = first_at + tail.len() as u64;
        let end = block_up(segment_at(base, limit));
        let head = self.head(&log.dir, tail);
        let rest = head.capacity().saturating_sub(tail.len()) as u64;
        let ahead = self.cache.ahead() as u64;
        if head.is_empty() || log.reading.is_careful(offset) || rest > ahead || at >= end || !at.is_multiple_of(BLOCK as u64) {
            self.start_read(p, offset, limit, Purpose::Fetch, shared);
            return;
        }
        let until = end.min(at + whole_batches(ahead, rest, log.reading.batch_len() as u64));
        self.make_room(read_memory((until - at) as usize) + head.capacity());
        let read = Read { first_at, head, ..Read::new(p, Purpose::Fetch, offset, (base, limit), at..until) };
        let key = self.reads.insert(read) as u32;
        shared.log_mut(p).reading.begin(offset);
        self.ask(key, shared);
    }

    /// A copy of the start of a batch, with room for the rest; none where there is no use in it.
    fn head(&self, dir: &PartitionDir, start: &[u8]) -> Vec<u8> {
        let len = match BatchHeader::parse(start, dir.topic_id, dir.partition) {
            Ok(header) => header.len(),
            Err(Bad::Short) => start.len(),
            Err(_) => 0,
        };
        if start.is_empty() || len < start.len() || !self.has_room_for(len) {
            return vec![];
        }
        let mut head = Vec::with_capacity(len);
        head.extend_from_slice(start);
        head
    }

    /// Whether another read of the place is of no use.
    fn is_settled(&self, log: &PartitionLog, p: PartitionIdx, offset: i64) -> bool {
        offset < log.start().offset
            || log.reading.is_under_way(offset)
            || log.recent_at(offset).is_some()
            || log.damage.lost_at(offset).is_some()
            || self.cache.contains(p, offset)
            || self.holds.is_held(p, offset)
    }

    /// Reads behind the read `key`. `ahead`: runs that are ahead already.
    fn read_behind(&mut self, mut key: u32, ahead: usize, shared: &mut Shared<'_>) -> bool {
        for ahead in ahead..RUNS_AHEAD {
            let read = &self.reads[key as usize];
            let p = read.p;
            if let Some(next) = read.followed_by {
                key = next;
                continue;
            }
            let is_end = read.until >= block_up(segment_at(read.base, read.limit));
            let log = shared.log(p);
            let is_long = log.reading.batch_len() as usize > self.cache.ahead();
            if is_end || is_long || read.is_parked || log.reading.is_careful(read.offset) {
                return true;
            }
            if self.is_crowded(p, ahead) {
                return false;
            }
            key = self.start_next(key, shared);
        }
        true
    }

    /// True if another read is more urgent than reading ahead by `ahead` runs.
    fn is_crowded(&self, p: PartitionIdx, ahead: usize) -> bool {
        let reads_max = if ahead > 0 { READS_FEW } else { READS_MAX / 2 };
        let of_partition = self.reads.iter().filter(|(_, r)| r.p == p && r.purpose != Purpose::Scrub).count();
        self.is_waited_for()
            || of_partition >= PARTITION_READS_MAX
            || self.reads.len() >= reads_max
            || self.taken(1) > self.cache.bytes_max() / 2
    }

    /// Begins to read behind a read that is under way. Where its run will end is not known, but where it does when batches are as long as
    /// those before: from that block on nothing needs to be copied, even if that block is read twice.
    fn start_next(&mut self, before: u32, shared: &mut Shared<'_>) -> u32 {
        let read = &self.reads[before as usize];
        let (p, base, limit, offset) = (read.p, read.base, read.limit, read.offset);
        let batch = shared.log(p).reading.batch_len() as u64;
        let first_at = match (read.until - read.first_at).checked_div(batch) {
            Some(count) => (read.first_at + count * batch).max(read.until - BLOCK as u64),
            None => read.until,
        };
        let at = block_down(first_at);
        let end = block_up(segment_at(base, limit));
        let until = end.min(at + whole_batches(self.cache.ahead() as u64, first_at - at, batch));
        self.make_room(read_memory((until - at) as usize));
        let read = Read { first_at, follows: Some(before), ..Read::new(p, Purpose::Fetch, offset, (base, limit), at..until) };
        let key = self.reads.insert(read) as u32;
        self.reads[before as usize].followed_by = Some(key);
        self.ask(key, shared);
        key
    }

    /// The first batch of a read, which begins in the one before: in memory of its own.
    pub(super) fn join(&self, key: u32, mut head: Vec<u8>, logs: &Slab<PartitionLog>) -> Result<Batch, ChainStop> {
        let read = &self.reads[key as usize];
        let walk = Walk::new(&logs[read.p.0 as usize].dir, read.offset, read.limit, Chain::default());
        let mut rest = &read.found[..];
        let mut take = |head: &mut Vec<u8>, len: usize| {
            let (now, later) = rest.split_at_checked(len.saturating_sub(head.len())).ok_or(ChainStop::More(len))?;
            head.extend_from_slice(now);
            rest = later;
            Ok(())
        };
        let len = head.len();
        take(&mut head, BATCH_HEADER_LEN)?;
        let header = walk.header(&head)?;
        if header.is_lost() || header.len() <= len || !self.has_room_for(header.len()) {
            return Err(ChainStop::More(header.len()));
        }
        head.reserve_exact(header.len() - head.len());
        take(&mut head, header.len())?;
        walk.batch(&head.into())?.verify().map_err(ChainStop::Bad)
    }

    /// Drops the reads that follow one that brings no run.
    pub(super) fn drop_followers(&mut self, key: u32) {
        let next = self.reads[key as usize].followed_by.take();
        self.drop_reads(next);
    }

    /// Drops this read and those that follow it: they are useless.
    fn drop_reads(&mut self, mut next: Option<u32>) {
        while let Some(key) = next {
            let read = &mut self.reads[key as usize];
            next = read.followed_by.take();
            (read.is_useless, read.follows) = (true, None);
            if read.is_there() {
                self.reads.remove(key as usize);
            }
        }
    }

    /// The run that `before` found ends at this offset: there the read behind it begins. True: all of it is there, to be judged.
    pub(super) fn go_on_behind(&mut self, before: &Read, key: u32, end: i64, logs: &mut Slab<PartitionLog>) -> bool {
        let first_at = segment_at(before.base, end);
        let log = &mut logs[before.p.0 as usize];
        let limit = log.readable_limit(end).filter(|_| !self.is_settled(log, before.p, end));
        let read = &self.reads[key as usize];
        // behind a lost batch it may begin anywhere, and a file that is too short has no head
        let is_of_use = limit.is_some_and(|limit| limit >= read.limit) && end < read.limit && first_at < read.until;
        let start = before.found.get((first_at - before.at) as usize..(read.at.max(first_at) - before.at) as usize);
        let head = start.filter(|_| is_of_use).map(|start| self.head(&log.dir, start));
        let Some(head) = head.filter(|head| !head.is_empty() || start.is_some_and(<[u8]>::is_empty)) else {
            self.drop_reads(Some(key));
            return false;
        };
        let read = &mut self.reads[key as usize];
        read.head = head;
        (read.offset, read.first_at, read.follows) = (end, first_at, None);
        let is_there = read.is_there();
        log.reading.begin(end);
        self.make_room(0);
        is_there
    }
}
