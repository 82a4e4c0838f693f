//! Newest messages of a partition, a bounded number of them, kept for its ephemeral channels. Pure.
//!
//! A channel that stands still, or a client of it, keeps no more of the log than that. Messages in flight or requeued stay the
//! channel's; those older than the floor are there only as long as another channel, or the segment, keeps them.

use crate::base::{LogId, Position};
use std::collections::VecDeque;

/// Places that are known among the messages that are kept.
const PLACES: u64 = 32;

#[derive(Debug)]
pub struct Tail {
    /// Messages that are kept.
    kept: i64,
    /// Ends that the log had, ascending and about evenly spread. All but the first are behind the floor.
    ends: VecDeque<Position>,
}

impl Tail {
    /// Tail of a log that ends at `end`.
    pub fn new(kept: u64, end: Position) -> Tail {
        Tail { kept: i64::try_from(kept).unwrap_or(i64::MAX), ends: VecDeque::from([end]) }
    }

    pub fn kept(&self) -> u64 {
        self.kept as u64
    }

    /// The log ends at `end`. Whether the floor has moved.
    pub fn reach(&mut self, end: Position) -> bool {
        let before = self.ends[0];
        let step = (self.kept / PLACES as i64).max(1);
        if end.count >= self.ends[self.ends.len() - 1].count.saturating_add(step) {
            self.ends.push_back(end);
        }
        while self.ends.get(1).is_some_and(|second| second.count <= end.count - self.kept) {
            self.ends.pop_front();
        }
        self.ends[0] != before
    }

    /// The start of a batch, before which nothing is kept of a log that ends at `end`. `None`: it is not known yet.
    pub fn floor(&self, end: Position) -> Option<Position> {
        Some(self.ends[0]).filter(|first| first.count <= end.count - self.kept)
    }

    /// Position of message number `count`, which is behind `from`: its batch may be a later one than the one at the offset.
    pub(super) fn place(&self, from: Position, count: i64) -> Position {
        let nearest = self.ends.iter().rev().find(|e| e.count <= count).filter(|e| e.count > from.count).unwrap_or(&from);
        // Where ids are missing it is an earlier message.
        let log_id = LogId(nearest.log_id.0 + (count - nearest.count) as u64);
        Position { offset: nearest.offset, count, log_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(count: i64) -> Position {
        Position { offset: count * 100, count, log_id: LogId(1 + count as u64) }
    }

    #[test]
    fn the_floor_is_the_last_known_end_before_what_is_kept() {
        let mut tail = Tail::new(10, at(3));
        assert_eq!((tail.reach(at(12)), tail.floor(at(12))), (false, None), "what was there before it began is not known");
        assert_eq!((tail.reach(at(13)), tail.floor(at(13))), (false, Some(at(3))));
        assert_eq!((tail.reach(at(22)), tail.floor(at(22))), (true, Some(at(12))));
        assert_eq!(tail.place(at(0), 12), at(12));
        assert_eq!(tail.place(at(0), 20), Position { offset: 1300, ..at(20) }, "it is in a batch that begins there, or later");
        assert_eq!(tail.place(at(15), 20), Position { offset: 1500, ..at(20) });
        (23..1000).for_each(|count| {
            tail.reach(at(count));
            assert!(tail.ends.len() <= 12);
        });
        assert_eq!(tail.floor(at(999)), Some(at(989)));
    }

    #[test]
    fn few_places_are_known_however_much_is_kept() {
        let mut tail = Tail::new(10_000, at(0));
        (0..100_000).for_each(|count| {
            tail.reach(at(count));
            assert!(tail.ends.len() <= PLACES as usize + 2);
            let floor = tail.floor(at(count));
            assert!(floor.is_none_or(|f| (10_000..=10_000 + 313).contains(&(count - f.count))), "{count} {floor:?}");
            assert_eq!(floor.is_none(), count < 10_000);
        });
        let mut none = Tail::new(0, at(0));
        assert_eq!((none.reach(at(7)), none.floor(at(7))), (true, Some(at(7))));
    }
}
