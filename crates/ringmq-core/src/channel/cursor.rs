//! Cursor of a channel, from its open messages and its read position: everything before the read position is confirmed or open.

use super::finished::merge;
use super::open::OpenSet;
use crate::base::Position;
use crate::format::cursor::Interval;

/// Intervals that were confirmed before the channel was made and are ahead of the read position.
#[derive(Debug, Default)]
pub struct Restored {
    /// The nearest is last.
    intervals: Vec<Interval>,
    /// Messages in them.
    count: u64,
}

/// Intervals for which memory stays when they are passed.
const KEPT_INTERVALS: usize = 1024;

impl Restored {
    /// Collects intervals of any order, touching or not.
    pub fn new(mut intervals: Vec<Interval>) -> Self {
        if !intervals.windows(2).all(|w| w[0].end.log_id < w[1].start) {
            merge(&mut intervals);
        }
        intervals.reverse();
        let count = intervals.iter().map(|i| i.end.log_id.0.saturating_sub(i.start.0)).sum();
        Restored { intervals, count }
    }

    /// Adds an interval, ahead of the read position or just there.
    pub fn insert(&mut self, interval: Interval) {
        let mut intervals = std::mem::take(&mut self.intervals);
        intervals.push(interval);
        *self = Restored::new(intervals);
    }

    /// Messages.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn nearest(&self) -> Option<Interval> {
        self.intervals.last().copied()
    }

    /// The nearest was passed.
    pub fn pop(&mut self) {
        if let Some(Interval { start, end }) = self.intervals.pop() {
            self.count -= end.log_id.0.saturating_sub(start.0);
        }
        if self.intervals.capacity() > KEPT_INTERVALS && self.intervals.len() < self.intervals.capacity() / 2 {
            self.intervals.shrink_to_fit();
        }
    }

    pub fn allocated_bytes(&self) -> usize {
        self.intervals.capacity() * size_of::<Interval>()
    }
}

/// Position up to which everything is confirmed.
pub fn confirmed(open: &OpenSet, next: Position) -> Position {
    open.lowest().map_or(next, |open| open.start())
}

/// Confirmed part of the log: everything up to a position, and the intervals beyond it. The entry `except` counts as finished.
pub fn image(open: &OpenSet, next: Position, restored: &Restored, except: Option<u32>) -> (Position, Vec<Interval>) {
    let restored = restored.intervals.iter().rev().copied();
    let mut open = open.iter().filter(|(key, _)| Some(*key) != except).map(|(_, open)| open);
    let Some(first) = open.next() else { return (next, restored.collect()) };
    let (mut intervals, mut from) = (vec![], first.interval().end.log_id);
    for open in open {
        if open.id > from {
            intervals.push(Interval { start: from, end: open.start() });
        }
        from = open.interval().end.log_id;
    }
    if next.log_id > from {
        intervals.push(Interval { start: from, end: next });
    }
    intervals.extend(restored);
    (first.start(), intervals)
}

/// State of a channel before its cursor was moved.
#[derive(Debug)]
pub struct Stood {
    pub open: OpenSet,
    pub next: Position,
    pub restored: Restored,
}

impl Stood {
    pub fn confirmed(&self) -> Position {
        confirmed(&self.open, self.next)
    }

    pub fn image(&self) -> (Position, Vec<Interval>) {
        image(&self.open, self.next, &self.restored, None)
    }
}
