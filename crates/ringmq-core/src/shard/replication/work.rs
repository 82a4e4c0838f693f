//! Work that the machines of a cluster leave, in order: it is done before the step ends. A stand-alone node has none.

use super::routing::Work;
use crate::log::PartitionIdx;
use crate::replica::Event;
use crate::shard::partitions::Partitions;
use std::collections::VecDeque;

#[derive(Default)]
pub struct WorkQueue {
    queue: VecDeque<Work>,
    /// True while the work is done: new work is appended to it.
    is_working: bool,
}

impl WorkQueue {
    pub(super) fn push(&mut self, work: Work) {
        self.queue.push_back(work);
    }

    /// The partition's replica takes the event in its turn.
    pub fn tell(&mut self, idx: PartitionIdx, event: Event) {
        self.push(Work::Event(idx, event));
    }

    /// All replicas of this core take such an event.
    pub fn tell_all(&mut self, partitions: &Partitions, event: impl Fn() -> Event) {
        partitions.members().into_iter().for_each(|idx| self.tell(idx, event()));
    }

    pub(super) fn extend(&mut self, work: impl IntoIterator<Item = Work>) {
        self.queue.extend(work);
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// True: there is work, and the caller is to do it.
    pub(super) fn begin(&mut self) -> bool {
        !self.queue.is_empty() && !std::mem::replace(&mut self.is_working, true)
    }

    /// `None`: all is done.
    pub(super) fn next(&mut self) -> Option<Work> {
        let work = self.queue.pop_front();
        self.is_working = work.is_some();
        work
    }
}
