//! Recent confirmations, for the journal, and merges of intervals. It owns no message, no time, no client.

use crate::format::cursor::Interval;

/// Intervals that were confirmed since they were last taken, under the present generation of the cursor. Confirmations in order are one
/// interval that grows, without any allocation.
#[derive(Debug, Default)]
pub struct Finished {
    /// Generation of the cursor, which overrides what was journaled under a lower one.
    generation: u64,
    /// Interval that the last confirmation extended.
    run: Option<Interval>,
    /// Runs before it, in no order, perhaps touching each other.
    others: Vec<Interval>,
    /// `others` is merged when it grows to this.
    merge_at: usize,
}

const MERGE_AT_LEAST: usize = 1024;

impl Finished {
    pub fn new(generation: u64) -> Finished {
        Finished { generation, ..Finished::default() }
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The cursor stands elsewhere than it was journaled to: the whole of it is journaled next, and no interval.
    pub fn raise_generation(&mut self) {
        *self = Finished::new(self.generation + 1);
    }

    pub fn clear(&mut self) {
        *self = Finished::new(self.generation);
    }

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

/// Sorts the intervals, and joins those that touch or overlap.
pub fn merge(intervals: &mut Vec<Interval>) {
    intervals.sort_unstable_by_key(|i| i.start);
    Interval::join(intervals);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::confirmed::ids::{interval, runs};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn in_order_it_is_one_growing_run() {
        let mut finished = Finished::default();
        (1..100).for_each(|id| finished.insert(interval(id, id + 1)));
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
        fn it_has_the_ids_that_were_not_taken(inserts in prop::collection::vec((1u64..80, 0u64..12, any::<bool>()), 1..60)) {
            let (mut finished, mut fresh) = (Finished::default(), BTreeSet::new());
            for (start, len, take) in inserts {
                finished.insert(interval(start, start + len));
                fresh.extend(start..start + len);
                if take {
                    prop_assert_eq!(&finished.take().unwrap_or_default(), &runs(&fresh));
                    fresh.clear();
                }
            }
        }
    }
}
