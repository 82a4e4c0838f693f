//! Partitions with a live replica that is not in sync, or is being added: no more at a time than the limit.

use super::PartitionKey;
use crate::base::Ticks;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Rebuilds {
    max: usize,
    /// Running rebuilds, each with the time at which a look at the distribution first met it.
    running: BTreeMap<PartitionKey, Option<Ticks>>,
}

impl Rebuilds {
    pub fn new(max: usize) -> Rebuilds {
        Rebuilds { max, running: BTreeMap::new() }
    }

    pub fn note(&mut self, at: PartitionKey, is_running: bool) {
        match is_running {
            true => drop(self.running.entry(at).or_insert(None)),
            false => drop(self.running.remove(&at)),
        }
    }

    pub fn count(&self) -> usize {
        self.running.len()
    }

    pub fn has(&self, at: PartitionKey) -> bool {
        self.running.contains_key(&at)
    }

    /// Whether another replica may be made.
    pub fn may_begin(&self) -> bool {
        self.running.len() < self.max
    }

    /// A look at the distribution meets all of them.
    pub fn meet(&mut self, now: Ticks) {
        for met in self.running.values_mut() {
            met.get_or_insert(now);
        }
    }

    /// Whether all of them have been met for so long. A replica that catches up for that long waits for an operator, or for a disk.
    pub fn are_stuck(&self, now: Ticks, after: Duration) -> bool {
        self.running.values().all(|met| met.is_some_and(|met| now >= met + after))
    }

    pub fn clear(&mut self) {
        self.running.clear();
    }
}
