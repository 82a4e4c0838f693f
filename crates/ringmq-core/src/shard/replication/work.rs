//! Work that is left before a step ends, in order.

use super::routing::Work;
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
