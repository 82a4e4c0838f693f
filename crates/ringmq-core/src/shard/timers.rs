//! Deadlines of this core: few entries, each moved lazily.
//!
//! A deadline that moves later is left where it is; when it fires, its owner says when it is really due. So bytes that
//! arrive on a connection, or messages that go out on a channel, cost no timer operation.

use super::partitions::ChannelKey;
use crate::base::{ConnId, IdMap, Ticks};
use std::collections::BTreeSet;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Timer {
    Session(ConnId),
    Channel(ChannelKey),
    /// A replica of a cluster's partition, by its place in the store.
    Replica(u32),
    /// FINs that wait for a journal write.
    Fins,
    /// Publishes that wait for room.
    Stalls,
    /// Ephemeral topics that may go.
    Topics,
    /// Clients that wait for a topic of the cluster.
    Wanted,
    /// Publishes that wait for the leader of another node.
    Forwards,
    /// Replicas that have moved to other nodes.
    Leaving,
    /// Subscriptions that lack a partition.
    Parts,
    /// Client errors that the log was spared.
    Faults,
    Stop,
}

#[derive(Debug, Default)]
pub struct Timers {
    queue: BTreeSet<(Ticks, Timer)>,
    set: IdMap<Timer, Ticks>,
}

impl Timers {
    /// Fires at `at` at the latest; an earlier time that is set stays.
    pub fn at_most(&mut self, timer: Timer, at: Option<Ticks>) {
        let Some(at) = at else { return };
        if self.set.get(&timer).is_some_and(|&set| set <= at) {
            return;
        }
        if let Some(old) = self.set.insert(timer, at) {
            self.queue.remove(&(old, timer));
        }
        self.queue.insert((at, timer));
    }

    pub fn remove(&mut self, timer: Timer) {
        if let Some(at) = self.set.remove(&timer) {
            self.queue.remove(&(at, timer));
        }
    }

    pub fn next(&self) -> Option<Ticks> {
        self.queue.first().map(|(at, _)| *at)
    }

    pub fn pop_due(&mut self, now: Ticks) -> Option<Timer> {
        let &(at, timer) = self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        self.set.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_deadline_does_not_move_a_timer_and_an_earlier_one_does() {
        let mut t = Timers::default();
        t.at_most(Timer::Fins, Some(Ticks(50)));
        t.at_most(Timer::Fins, Some(Ticks(90)));
        t.at_most(Timer::Stop, Some(Ticks(70)));
        assert_eq!(t.next(), Some(Ticks(50)));
        t.at_most(Timer::Stop, Some(Ticks(20)));
        assert_eq!(
            (t.pop_due(Ticks(19)), t.pop_due(Ticks(20)), t.pop_due(Ticks(60))),
            (None, Some(Timer::Stop), Some(Timer::Fins))
        );
        assert_eq!(t.next(), None);
    }
}
