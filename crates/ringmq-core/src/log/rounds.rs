//! Line of partitions that wait for a round of flushing, the number of rounds that go on, and the partitions whose snapshot found no
//! space.

use super::notice::PartitionIdx;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Rounds {
    /// A publish waits for these.
    urgent: VecDeque<PartitionIdx>,
    /// Partitions in line for a background round: no publish waits for it.
    calm: VecDeque<PartitionIdx>,
    /// Background rounds under way.
    background: usize,
    /// Partitions whose round waits for space for a snapshot.
    stalled: Vec<PartitionIdx>,
}

impl Rounds {
    pub fn push(&mut self, p: PartitionIdx, is_urgent: bool) {
        if is_urgent { self.urgent.push_back(p) } else { self.calm.push_back(p) }
    }

    /// A publish waits for a partition that is in line.
    pub fn hurry(&mut self, p: PartitionIdx) {
        if let Some(index) = self.calm.iter().position(|&q| q == p) {
            self.calm.remove(index);
            self.urgent.push_back(p);
        }
    }

    /// The partition whose round begins next, and whether that is one in the background, of which there may be so many.
    pub fn next(&mut self, background_max: usize) -> Option<(PartitionIdx, bool)> {
        if let Some(p) = self.urgent.pop_front() {
            return Some((p, false));
        }
        let may_begin = self.background < background_max;
        Some((self.calm.pop_front_if(|_| may_begin)?, true))
    }

    /// A round in the background begins.
    pub fn begin_background(&mut self) {
        self.background += 1;
    }

    /// Ends background rounds: one or none.
    pub fn end_background(&mut self, count: usize) {
        self.background -= count;
    }

    /// Whether no partition is in line.
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.calm.is_empty()
    }

    #[cfg(test)]
    pub fn background(&self) -> usize {
        self.background
    }

    /// Number of partitions in line for a background round.
    #[cfg(test)]
    pub fn calm(&self) -> usize {
        self.calm.len()
    }

    pub fn stalled(&self) -> &[PartitionIdx] {
        &self.stalled
    }

    pub fn stall(&mut self, p: PartitionIdx) {
        if !self.stalled.contains(&p) {
            self.stalled.push(p);
        }
    }

    pub fn unstall(&mut self, p: PartitionIdx) {
        self.stalled.retain(|&q| q != p);
    }

    /// The partition is gone.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.urgent.retain(|&q| q != p);
        self.calm.retain(|&q| q != p);
        self.unstall(p);
    }
}
