//! Deletion of the files of unneeded segments, at a bounded rate. A file system that discards freed blocks (ext4 mounted with `discard`)
//! blocks all reads and writes of the disk meanwhile, and consumers of a backlog free as many bytes as they read. If the disk keeps a
//! segment's file for another segment, nothing is freed and the next deletion may follow at once.
//!
//! Waiting files are deleted within about a minute, however many there are: the rate rises with their number. They are deleted at once
//! when the disk is full, when the log begins anew, and at a stop. They are recorded nowhere: they lie below the durable start, so a
//! startup after a crash deletes them ([`super::retention`]).

use super::core_logs::{Op, Ops, Shared};
use super::notice::PartitionIdx;
use super::partition::PartitionLog;
use crate::base::{DiskOp, FileId, Ticks};
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

    /// The next segment that may be deleted now, at so many bytes per second; 0: as fast as it goes.
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

    pub(super) fn deadline(&self, ops: &Ops) -> Option<Ticks> {
        self.waiting.front().map(|_| self.next_at).filter(|_| !is_deleting(ops))
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Deletes the files that are due, at `rate` bytes per second; 0: as fast as it goes. One at a time, since freeing much at once
    /// blocks the disk for long. If space `is_short`, no file is kept for another segment.
    pub(super) fn delete_due(&mut self, now: Ticks, rate: u64, is_short: bool, shared: &mut Shared<'_>) {
        while (rate == 0 || !is_deleting(shared.ops))
            && let Some(old) = self.next(now, rate)
        {
            if is_short {
                delete(old, shared);
            } else {
                let (segment, commit) = files_of(old, shared.log(old.p));
                shared.issue(DiskOp::Retire { segment, commit }, Op::Remove(old.p));
            }
        }
    }

    /// Takes out the waiting files of a partition.
    pub fn take(&mut self, p: PartitionIdx) -> Vec<Old> {
        let (of_it, others) = std::mem::take(&mut self.waiting).into_iter().partition(|old| old.p == p);
        self.waiting = others;
        let of_it: VecDeque<Old> = of_it;
        self.bytes -= of_it.iter().map(|old| old.bytes).sum::<u64>();
        of_it.into()
    }
}

fn is_deleting(ops: &Ops) -> bool {
    ops.is_any(|op| matches!(op, Op::Remove(_)))
}

/// Deletes the files of a segment at once.
pub(super) fn delete(old: Old, shared: &mut Shared<'_>) {
    let (segment, commit) = files_of(old, shared.log(old.p));
    shared.issue(DiskOp::Remove { files: vec![segment, commit] }, Op::Remove(old.p));
}

fn files_of(old: Old, log: &PartitionLog) -> (FileId, FileId) {
    assert!(log.segments.iter().all(|s| s.base() != old.base), "a segment of the log is not deleted");
    (FileId::Segment(log.dir.clone(), old.base), FileId::Commit(log.dir.clone(), old.base))
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
        assert!(deletes.next(at(0), 10 * MIB).is_none() && deletes.deadline(&Ops::default()).is_none());
        for base in 0..3 {
            deletes.push(old(0, base, 5 * MIB));
        }
        assert_eq!(deletes.bytes(), 15 * MIB);
        assert_eq!(deletes.next(at(0), 10 * MIB), Some(old(0, 0, 5 * MIB)), "the first one at once");
        assert_eq!((deletes.next(at(499), 10 * MIB), deletes.deadline(&Ops::default())), (None, Some(at(500))));
        assert_eq!(deletes.next(at(700), 10 * MIB), Some(old(0, 1, 5 * MIB)));
        assert_eq!(deletes.deadline(&Ops::default()), Some(at(1200)), "no time is made up for");
        assert_eq!(deletes.next(at(701), 0), Some(old(0, 2, 5 * MIB)), "in a hurry");
        assert_eq!((deletes.bytes(), deletes.deadline(&Ops::default())), (0, None));
    }

    #[test]
    fn much_is_deleted_faster() {
        let mut deletes = Deletes::default();
        for base in 0..1200 {
            deletes.push(old(0, base, MIB));
        }
        let mut now = at(0);
        while deletes.next(now, MIB).is_some() {
            now = deletes.deadline(&Ops::default()).unwrap_or(now);
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
