//! Confirmed messages of a channel: a position and the intervals beyond it, merged.

use crate::base::{LogId, Position};
use crate::format::cursor::Interval;
use std::collections::BTreeMap;

/// Confirmed part of a log: everything before `position`, and the intervals beyond it, disjoint, not touching each other nor the
/// position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    position: Position,
    /// First id of an interval, and the position after its last.
    beyond: BTreeMap<LogId, Position>,
}

impl Confirmed {
    pub fn new(position: Position) -> Self {
        Confirmed { position, beyond: BTreeMap::new() }
    }

    pub fn position(&self) -> Position {
        self.position
    }

    /// Number of confirmed intervals that wait for something before them.
    pub fn interval_count(&self) -> usize {
        self.beyond.len()
    }

    pub fn intervals(&self) -> impl DoubleEndedIterator<Item = Interval> + '_ {
        self.beyond.iter().map(|(&start, &end)| Interval { start, end })
    }

    pub fn contains(&self, id: LogId) -> bool {
        id < self.position.log_id || self.beyond.range(..=id).next_back().is_some_and(|(_, end)| id < end.log_id)
    }

    /// Confirms `start ..= end.log_id - 1`, whatever of it was confirmed before. In order it is a store; else it costs
    /// the logarithm of the number of intervals.
    pub fn insert(&mut self, interval: Interval) {
        let Interval { mut start, mut end } = interval;
        if end.log_id <= start || end.log_id <= self.position.log_id {
            return;
        }
        if start <= self.position.log_id {
            self.position = end;
            while let Some(first) = self.beyond.first_entry() {
                if *first.key() > self.position.log_id {
                    break;
                }
                let end = first.remove();
                if end.log_id > self.position.log_id {
                    self.position = end;
                }
            }
            return;
        }
        if let Some((&before, &before_end)) = self.beyond.range(..=start).next_back()
            && before_end.log_id >= start
        {
            if before_end.log_id >= end.log_id {
                return;
            }
            start = before;
        }
        while let Some((&after, &after_end)) = self.beyond.range(start..=end.log_id).next_back()
            && after != start
        {
            self.beyond.remove(&after);
            if after_end.log_id > end.log_id {
                end = after_end;
            }
        }
        self.beyond.insert(start, end);
    }
}

/// Intervals of ids for tests, here and of channels: the message with id `n` stands at offset `10 n`.
#[cfg(test)]
pub(crate) mod ids {
    use super::*;
    use std::collections::BTreeSet;

    pub fn at(id: u64) -> Position {
        Position { offset: id as i64 * 10, count: id as i64 - 1, log_id: LogId(id) }
    }

    pub fn interval(start: u64, end: u64) -> Interval {
        Interval { start: LogId(start), end: at(end) }
    }

    /// The runs of ids that follow each other.
    pub fn runs(ids: &BTreeSet<u64>) -> Vec<Interval> {
        let mut runs: Vec<Interval> = vec![];
        for &id in ids {
            match runs.last_mut() {
                Some(run) if run.end.log_id.0 == id => run.end = at(id + 1),
                _ => runs.push(interval(id, id + 1)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::ids::{at, interval, runs};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn in_order_no_interval_is_left() {
        let mut confirmed = Confirmed::new(at(1));
        (1..100).for_each(|id| confirmed.insert(interval(id, id + 1)));
        assert_eq!((confirmed.position(), confirmed.interval_count()), (at(100), 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn it_is_the_set_of_its_ids(inserts in prop::collection::vec((1u64..80, 0u64..12), 1..60)) {
            let mut confirmed = Confirmed::new(at(5));
            let mut ids: BTreeSet<u64> = (1..5).collect();
            for (start, len) in inserts {
                confirmed.insert(interval(start, start + len));
                ids.extend(start..start + len);
                let mut expected = runs(&ids);
                let first = expected.remove(0);
                prop_assert_eq!(confirmed.position(), first.end);
                prop_assert_eq!(confirmed.intervals().collect::<Vec<_>>(), expected);
                prop_assert!((1..100).all(|id| confirmed.contains(LogId(id)) == ids.contains(&id)));
            }
        }
    }
}
