//! Which messages of a channel are confirmed: a position and the intervals beyond it, merged; and what of it was
//! confirmed lately, for the journal. Owns no message, no time, no client.

use crate::base::{LogId, Position};
use crate::log::cursor::Interval;
use std::collections::BTreeMap;

/// Everything before `position`, and the intervals beyond it: disjoint, not touching each other nor the position.
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

    /// Confirmed intervals that wait for something before them.
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

/// What was confirmed since it was last taken. In order it is one interval that grows, without any allocation.
#[derive(Debug, Default)]
pub struct Finished {
    /// Where the last confirmation went.
    run: Option<Interval>,
    /// Runs before it, in no order, perhaps touching each other.
    others: Vec<Interval>,
    /// `others` is merged when it grows to this.
    merge_at: usize,
}

const MERGE_AT_LEAST: usize = 1024;

impl Finished {
    pub fn is_empty(&self) -> bool {
        self.run.is_none()
    }

    pub fn insert(&mut self, interval: Interval) {
        if interval.end.log_id <= interval.start {
            return;
        }
        match &mut self.run {
            Some(run) if run.end.log_id == interval.start => run.end = interval.end,
            Some(run) => {
                self.others.push(std::mem::replace(run, interval));
                if self.others.len() >= self.merge_at.max(MERGE_AT_LEAST) {
                    // Without a journal that takes it, it stays as small as the channel's own intervals.
                    merge(&mut self.others);
                    self.merge_at = self.others.len() * 2;
                }
            }
            None => self.run = Some(interval),
        }
    }

    /// Ascending, disjoint, not touching.
    pub fn take(&mut self) -> Option<Vec<Interval>> {
        let run = self.run.take()?;
        let mut all = std::mem::take(&mut self.others);
        all.push(run);
        merge(&mut all);
        self.merge_at = 0;
        Some(all)
    }
}

/// Sorts, and joins what touches or overlaps.
fn merge(intervals: &mut Vec<Interval>) {
    intervals.sort_unstable_by_key(|i| i.start);
    intervals.dedup_by(|next, kept| {
        let joined = next.start <= kept.end.log_id;
        if joined && next.end.log_id > kept.end.log_id {
            kept.end = next.end;
        }
        joined
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn at(id: u64) -> Position {
        Position { offset: id as i64 * 10, count: id as i64 - 1, log_id: LogId(id) }
    }

    fn interval(start: u64, end: u64) -> Interval {
        Interval { start: LogId(start), end: at(end) }
    }

    fn runs(ids: &BTreeSet<u64>) -> Vec<Interval> {
        let mut runs: Vec<Interval> = vec![];
        for &id in ids {
            match runs.last_mut() {
                Some(run) if run.end.log_id.0 == id => run.end = at(id + 1),
                _ => runs.push(interval(id, id + 1)),
            }
        }
        runs
    }

    #[test]
    fn in_order_it_is_one_growing_run() {
        let (mut confirmed, mut finished) = (Confirmed::new(at(1)), Finished::default());
        for id in 1..100 {
            confirmed.insert(interval(id, id + 1));
            finished.insert(interval(id, id + 1));
        }
        assert_eq!((confirmed.position(), confirmed.interval_count()), (at(100), 0));
        assert_eq!(finished.others.capacity(), 0);
        assert_eq!(finished.take(), Some(vec![interval(1, 100)]));
        assert_eq!(finished.take(), None);
    }

    #[test]
    fn untaken_runs_stay_merged() {
        let mut finished = Finished::default();
        for id in 0..100_000 {
            let id = 1 + id / 2 + id % 2 * 60_000;
            finished.insert(interval(id, id + 1));
        }
        assert!(finished.others.capacity() <= 4 * MERGE_AT_LEAST);
        assert_eq!(finished.take(), Some(vec![interval(1, 50_001), interval(60_001, 110_001)]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn it_is_the_set_of_its_ids(inserts in prop::collection::vec((1u64..80, 0u64..12, any::<bool>()), 1..60)) {
            let mut confirmed = Confirmed::new(at(5));
            let mut before = confirmed.clone();
            let mut finished = Finished::default();
            let mut ids: BTreeSet<u64> = (1..5).collect();
            let mut fresh = BTreeSet::new();
            for (start, len, take) in inserts {
                confirmed.insert(interval(start, start + len));
                finished.insert(interval(start, start + len));
                ids.extend(start..start + len);
                fresh.extend(start..start + len);
                let mut expected = runs(&ids);
                let first = expected.remove(0);
                prop_assert_eq!(confirmed.position(), first.end);
                prop_assert_eq!(confirmed.intervals().collect::<Vec<_>>(), expected);
                prop_assert!((1..100).all(|id| confirmed.contains(LogId(id)) == ids.contains(&id)));
                if take {
                    let taken = finished.take().unwrap_or_default();
                    prop_assert_eq!(&taken, &runs(&fresh));
                    fresh.clear();
                    taken.into_iter().for_each(|i| before.insert(i));
                    prop_assert_eq!(&before, &confirmed);
                }
            }
        }
    }
}
