//! Partitions that are to be decided, and those that wait: each for one reason.

use super::PartitionKey;
use std::collections::BTreeSet;

/// Place of a partition in the [`Worklist`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// A partition that is to be decided now.
    Due,
    /// The change waits until the leases' mass expiry is over.
    Held,
    /// The change waits until others are done.
    Postponed,
    /// The change waits until fewer replicas catch up.
    Queued,
    /// The change waits until a node comes that can take a replica.
    Short,
    /// The record is being written.
    InFlight,
}

/// A partition is in one stage at most.
#[derive(Debug, Default)]
pub(super) struct Worklist {
    stages: [BTreeSet<PartitionKey>; Stage::InFlight as usize + 1],
}

impl Worklist {
    pub fn put(&mut self, at: PartitionKey, stage: Stage) {
        for partitions in &mut self.stages {
            partitions.remove(&at);
        }
        self.stages[stage as usize].insert(at);
    }

    /// The partition is to be decided; while its record is being written, after that.
    pub fn look_at(&mut self, at: PartitionKey) {
        if !self.stages[Stage::InFlight as usize].contains(&at) {
            self.put(at, Stage::Due);
        }
    }

    /// The partitions of this stage are to be decided.
    pub fn release(&mut self, stage: Stage) {
        let mut released = std::mem::take(&mut self.stages[stage as usize]);
        self.stages[Stage::Due as usize].append(&mut released);
    }

    /// Takes the first partition of this stage.
    pub fn take(&mut self, stage: Stage) -> Option<PartitionKey> {
        self.stages[stage as usize].pop_first()
    }

    /// The partition's record is being written no more.
    pub fn settle(&mut self, at: PartitionKey) {
        self.stages[Stage::InFlight as usize].remove(&at);
    }

    pub fn has_any(&self, stage: Stage) -> bool {
        !self.stages[stage as usize].is_empty()
    }

    pub fn clear(&mut self) {
        *self = Worklist::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicId;

    const STAGES: [Stage; 6] = [Stage::Due, Stage::Held, Stage::Postponed, Stage::Queued, Stage::Short, Stage::InFlight];

    #[test]
    fn a_partition_is_in_one_stage() {
        let at = (TopicId([1; 16]), 0);
        let mut work = Worklist::default();
        for (from, to) in STAGES.iter().flat_map(|from| STAGES.map(|to| (*from, to))) {
            work.put(at, from);
            work.put(at, to);
            assert_eq!(STAGES.map(|s| work.has_any(s)), STAGES.map(|s| s == to), "{from:?} to {to:?}");
            work.look_at(at);
            let is_written = to == Stage::InFlight;
            assert_eq!((work.has_any(Stage::InFlight), work.has_any(Stage::Due)), (is_written, !is_written), "{to:?}");
            work.settle(at);
        }
    }

    #[test]
    fn what_waits_is_released_by_its_reason() {
        let of = |number| (TopicId([1; 16]), number);
        let mut work = Worklist::default();
        (0..).zip(STAGES).for_each(|(number, stage)| work.put(of(number), stage));
        work.release(Stage::Queued);
        assert_eq!([work.take(Stage::Due), work.take(Stage::Due), work.take(Stage::Due)], [Some(of(0)), Some(of(3)), None]);
        assert!(work.has_any(Stage::Held) && !work.has_any(Stage::Queued));
        work.clear();
        assert!(!STAGES.iter().any(|stage| work.has_any(*stage)));
    }
}
