//! Publishes that wait: for space on this core, or until other cores have answered earlier ones. None waits longer than
//! `pub-waiting-timeout`.

use super::Shard;
use super::outbox::LateAnswer;
use super::partitions::Publisher;
use super::timers::{Timer, Timers};
use crate::base::{ConnId, Now, Ticks};
use crate::config::Settings;
use crate::log::PartitionIdx;
use crate::seam::{message::OwnedBodies, outcome::PublishError};
use std::collections::VecDeque;
use std::time::Duration;

/// Publish of another core or node.
pub(super) struct Parked {
    pub since: Ticks,
    pub publisher: Publisher,
    pub partition: PartitionIdx,
    pub bodies: OwnedBodies,
}

impl Parked {
    /// Memory that counts against the bound for other nodes. Publishes passed on by this node's cores are bounded at their origin.
    fn cost_of_node(&self) -> u64 {
        if self.publisher.is_of_node() { cost(self.bodies.ends.len(), self.bodies.bytes.len()) } else { 0 }
    }
}

/// Memory of a parked publish of so many bodies.
fn cost(count: usize, bytes: usize) -> u64 {
    (bytes + count * size_of::<u32>() + size_of::<Parked>()) as u64
}

/// Lists of waiting publishes, the oldest first.
pub(super) struct WaitingPublishes {
    /// Time after which a waiting publish is refused.
    limit: Duration,
    /// Connections whose publish waits for space on this core.
    here: VecDeque<ConnId>,
    /// Connections whose publish waits for answers of other cores or nodes.
    elsewhere: VecDeque<ConnId>,
    /// Publishes of other cores and nodes that wait for space on this core.
    parked: VecDeque<Parked>,
    /// Memory of those among them that other nodes sent, and its bound.
    bytes_of_nodes: u64,
    bytes_of_nodes_max: u64,
    /// State of this core's disk as the other cores were told.
    told_full: bool,
}

impl WaitingPublishes {
    pub fn new(settings: &Settings) -> Self {
        let limit = Duration::from_millis(settings.pub_waiting_timeout_ms);
        WaitingPublishes {
            limit,
            here: VecDeque::new(),
            elsewhere: VecDeque::new(),
            parked: VecDeque::new(),
            bytes_of_nodes: 0,
            bytes_of_nodes_max: settings.max_pub_waiting_size,
            told_full: false,
        }
    }

    /// Takes the state of this core's disk. True: the other cores have to be told.
    pub fn note_full(&mut self, full: bool) -> bool {
        std::mem::replace(&mut self.told_full, full) != full
    }

    /// The connection's publish waits for space on this core.
    pub fn wait_here(&mut self, now: Now, conn: ConnId, timers: &mut Timers) {
        self.here.push_back(conn);
        timers.at_most(Timer::Stalls, Some(now.ticks + self.limit));
    }

    /// The connection's publish waits for answers of other cores or nodes.
    pub fn wait_elsewhere(&mut self, now: Now, conn: ConnId, timers: &mut Timers) {
        self.elsewhere.push_back(conn);
        timers.at_most(Timer::Stalls, Some(now.ticks + self.limit));
    }

    /// A publish of another core or node waits for space on this core.
    pub fn park(&mut self, parked: Parked, timers: &mut Timers) {
        timers.at_most(Timer::Stalls, Some(parked.since + self.limit));
        self.bytes_of_nodes += parked.cost_of_node();
        self.parked.push_back(parked);
    }

    /// True if a publish of `count` bodies may be parked: publishes of other nodes have a bound.
    pub fn may_park(&self, publisher: Publisher, count: usize, bytes: usize) -> bool {
        let parked = self.bytes_of_nodes;
        !publisher.is_of_node() || parked == 0 || parked + cost(count, bytes) <= self.bytes_of_nodes_max
    }

    /// Memory of the parked publishes of other nodes.
    pub fn bytes_of_nodes(&self) -> u64 {
        self.bytes_of_nodes
    }

    /// True if a publish waits for space on this core.
    pub fn is_any_here(&self) -> bool {
        !self.here.is_empty() || self.has_parked()
    }

    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub fn has_parked_for(&self, partition: PartitionIdx) -> bool {
        self.parked.iter().any(|p| p.partition == partition)
    }

    /// The oldest parked publish, which is tried again; [`Self::put_back`] returns it to its place.
    pub fn take_parked(&mut self) -> Option<Parked> {
        self.take_if(|_| true)
    }

    fn take_if(&mut self, is_it: impl FnOnce(&Parked) -> bool) -> Option<Parked> {
        let parked = self.parked.pop_front_if(|parked| is_it(parked))?;
        self.bytes_of_nodes -= parked.cost_of_node();
        Some(parked)
    }

    pub fn put_back(&mut self, parked: Parked) {
        self.bytes_of_nodes += parked.cost_of_node();
        self.parked.push_front(parked);
    }

    /// The oldest parked publish, if it has waited too long.
    pub fn take_late(&mut self, now: Now) -> Option<Parked> {
        let limit = self.limit;
        self.take_if(|p| now.ticks.since(p.since) >= limit)
    }

    /// Time at which the oldest parked publish has waited too long.
    pub fn deadline(&self) -> Option<Ticks> {
        self.parked.front().map(|p| p.since + self.limit)
    }

    /// Takes the connections that wait for space on this core: they try again.
    pub fn resume_here(&mut self) -> impl Iterator<Item = ConnId> {
        self.here.drain(..)
    }

    /// Takes the connections that wait for answers: they try again.
    pub fn resume_elsewhere(&mut self) -> impl Iterator<Item = ConnId> {
        self.elsewhere.drain(..)
    }
}

impl Shard {
    /// Publishes that waited too long.
    pub(super) fn expire_stalls(&mut self, now: Now) {
        self.engine.publishing().expire_parked(now);
        let e = &mut self.engine;
        let limit = e.core.waiting.limit;
        let here = e.publishing().why_late();
        // The resource that another core lacks is not known here.
        for (waiters, error) in [(&mut e.core.waiting.here, here), (&mut e.core.waiting.elsewhere, PublishError::TooMuchWaiting)]
        {
            waiters.retain(|&conn| {
                let Some(since) = self.conns.get(&conn).and_then(|c| c.session.stalled_since()) else { return false };
                let is_late = now.ticks.since(since) >= limit;
                if is_late {
                    e.core.outbox.tell(conn, LateAnswer::StallFailed(error));
                } else {
                    e.core.timers.at_most(Timer::Stalls, Some(since + limit));
                }
                !is_late
            });
        }
    }
}
