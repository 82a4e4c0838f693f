//! When the files of segments that nobody needs any more are deleted: at a bounded rate. A file system that discards what it frees
//! (ext4 mounted with `discard`) keeps the whole disk from reading and writing meanwhile, and those who read a backlog let go of
//! as much as they read. Where the disk keeps the file of a segment for another one, nothing is freed and the next may go at once.
//!
//! What waits is deleted within about a minute however much it is: the rate rises with it. It is deleted at once where the disk is full,
//! where the log begins anew, and at a stop. Nothing of it is remembered: it lies below the durable start, so a start after
//! a crash deletes it ([`super::retention`]).

use super::notice::{Io, PartitionIdx};
use super::store::{Op, Store};
use crate::base::{DiskOp, FileId, Now, Ticks};
use std::collections::VecDeque;
use std::time::Duration;

/// Longest time, about, that segments wait for their removal.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The files of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Old {
    pub p: PartitionIdx,
    pub base: i64,
    pub bytes: u64,
}

#[derive(Default)]
pub struct Deletes {
    waiting: VecDeque<Old>,
    bytes: u64,
    /// Time at which the last deletion is paid for.
    next_at: Ticks,
}

impl Deletes {
    pub fn push(&mut self, old: Old) {
        self.bytes += old.bytes;
        self.waiting.push_back(old);
    }

    /// Bytes of segments that wait.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One that may be deleted now, at so many bytes per second; 0: as fast as it goes.
    fn next(&mut self, now: Ticks, rate: u64) -> Option<Old> {
        if rate > 0 && self.next_at > now {
            return None;
        }
        let rate = if rate > 0 { rate.max(self.bytes / WAIT_MAX.as_secs()) } else { u64::MAX };
        let old = self.waiting.pop_front()?;
        self.bytes -= old.bytes;
        let nanos = old.bytes as u128 * 1_000_000_000 / rate as u128;
        self.next_at = now + Duration::from_nanos(nanos as u64);
        Some(old)
    }

    /// Lifts the pause before the next deletion: the last one cost the disk nothing.
    pub fn forgive(&mut self) {
        self.next_at = Ticks(0);
    }

    fn deadline(&self) -> Option<Ticks> {
        self.waiting.front().map(|_| self.next_at)
    }

    /// Takes out what waits of a partition.
    pub fn take(&mut self, p: PartitionIdx) -> Vec<Old> {
        let (of_it, others) = std::mem::take(&mut self.waiting).into_iter().partition(|old| old.p == p);
        self.waiting = others;
        let of_it: VecDeque<Old> = of_it;
        self.bytes -= of_it.iter().map(|old| old.bytes).sum::<u64>();
        of_it.into()
    }
}

impl Store {
    /// Deletes what is due. Not beside another: who frees much at once keeps the disk for long.
    pub(super) fn delete_next(&mut self, now: Now, io: &mut Io) {
        if self.retention.deletes.waiting.is_empty() {
            return;
        }
        let is_hurried = self.is_stopping() || self.is_short_of_space();
        let rate = if is_hurried { 0 } else { self.options.delete_bytes_per_second };
        while (rate == 0 || !self.ops.is_any(|op| matches!(op, Op::Remove(_))))
            && let Some(old) = self.retention.deletes.next(now.ticks, rate)
        {
            if self.is_short_of_space() {
                self.delete(old, io);
            } else {
                let (segment, commit) = self.files_of(old);
                self.ops.issue(io, DiskOp::Retire { segment, commit }, Op::Remove(old.p));
            }
        }
    }

    pub(super) fn delete(&mut self, old: Old, io: &mut Io) {
        let (segment, commit) = self.files_of(old);
        self.ops.issue(io, DiskOp::Remove { files: vec![segment, commit] }, Op::Remove(old.p));
    }

    fn files_of(&self, old: Old) -> (FileId, FileId) {
        let part = self.part(old.p);
        assert!(part.segments.iter().all(|s| s.base() != old.base), "a segment of the log is not deleted");
        (FileId::Segment(part.dir.clone(), old.base), FileId::Commit(part.dir.clone(), old.base))
    }

    pub(super) fn delete_deadline(&self) -> Option<Ticks> {
        self.retention.deletes.deadline().filter(|_| !self.ops.is_any(|op| matches!(op, Op::Remove(_))))
    }

    /// Bytes of segments that wait to be deleted.
    pub fn deleting_bytes(&self) -> u64 {
        self.retention.deletes.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn old(p: u32, base: i64, bytes: u64) -> Old {
        Old { p: PartitionIdx(p), base, bytes }
    }

    fn at(ms: u64) -> Ticks {
        Ticks(1_000_000_000) + Duration::from_millis(ms)
    }

    #[test]
    fn what_is_deleted_is_paid_for_before_the_next() {
        let mut deletes = Deletes::default();
        assert!(deletes.next(at(0), 10 * MIB).is_none() && deletes.deadline().is_none());
        for base in 0..3 {
            deletes.push(old(0, base, 5 * MIB));
        }
        assert_eq!(deletes.bytes(), 15 * MIB);
        assert_eq!(deletes.next(at(0), 10 * MIB), Some(old(0, 0, 5 * MIB)), "the first one at once");
        assert_eq!((deletes.next(at(499), 10 * MIB), deletes.deadline()), (None, Some(at(500))));
        assert_eq!(deletes.next(at(700), 10 * MIB), Some(old(0, 1, 5 * MIB)));
        assert_eq!(deletes.deadline(), Some(at(1200)), "no time is made up for");
        assert_eq!(deletes.next(at(701), 0), Some(old(0, 2, 5 * MIB)), "in a hurry");
        assert_eq!((deletes.bytes(), deletes.deadline()), (0, None));
    }

    #[test]
    fn much_is_deleted_faster() {
        let mut deletes = Deletes::default();
        for base in 0..1200 {
            deletes.push(old(0, base, MIB));
        }
        let mut now = at(0);
        while deletes.next(now, MIB).is_some() {
            now = deletes.deadline().unwrap_or(now);
        }
        // down to what a minute takes at the rate it falls by a 60th each second, then there is a minute more
        let seconds = now.since(at(0)).as_secs();
        assert!((180..300).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_partition_is_taken_out() {
        let mut deletes = Deletes::default();
        [old(0, 0, 5), old(1, 7, 6), old(0, 1, 8)].into_iter().for_each(|old| deletes.push(old));
        assert_eq!(deletes.take(PartitionIdx(0)), [old(0, 0, 5), old(0, 1, 8)]);
        assert_eq!((deletes.bytes(), deletes.waiting.len()), (6, 1));
    }
}
