//! Publishes that wait: for space on this core, or until other cores have answered earlier ones. Nobody waits longer than
//! `pub-waiting-timeout`.

use super::Shard;
use super::engine::{Attempt, Engine};
use super::outbox::Heard;
use super::partitions::Publisher;
use super::timers::Timer;
use crate::base::{ConnId, Now, Ticks};
use crate::log::PartitionIdx;
use crate::seam::{
    message::{MeshMessage, OwnedBodies},
    outcome::PublishError,
};
use std::collections::VecDeque;
use std::time::Duration;

/// Publish of another core or node.
struct Parked {
    since: Ticks,
    publisher: Publisher,
    partition: PartitionIdx,
    bodies: OwnedBodies,
}

/// Each list has the oldest first.
#[derive(Default)]
pub(super) struct Waiting {
    /// Connections whose publish waits for space on this core.
    here: VecDeque<ConnId>,
    /// Connections whose publish waits for answers of other cores or nodes.
    elsewhere: VecDeque<ConnId>,
    /// Publishes of other cores and nodes that wait for space on this core.
    parked: VecDeque<Parked>,
    /// State of this core's disk as the other cores were told.
    told_full: bool,
}

impl Waiting {
    /// Whether anybody waits for space on this core.
    pub fn is_any_here(&self) -> bool {
        !self.here.is_empty() || self.has_parked()
    }

    pub fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub fn has_parked_for(&self, partition: PartitionIdx) -> bool {
        self.parked.iter().any(|p| p.partition == partition)
    }
}

impl Engine {
    /// The connection's publish waits for space on this core.
    pub fn wait_here(&mut self, now: Now, conn: ConnId) {
        self.waiting.here.push_back(conn);
        self.expect_stalls(now);
    }

    /// The connection's publish waits for answers of other cores.
    pub fn wait_elsewhere(&mut self, now: Now, conn: ConnId) {
        self.waiting.elsewhere.push_back(conn);
        self.expect_stalls(now);
    }

    /// A publish of another core waits for space on this core.
    pub fn park(&mut self, now: Now, publisher: Publisher, partition: PartitionIdx, bodies: OwnedBodies) {
        self.waiting.parked.push_back(Parked { since: now.ticks, publisher, partition, bodies });
        self.expect_stalls(now);
    }

    fn expect_stalls(&mut self, now: Now) {
        let limit = Duration::from_millis(self.settings.pub_waiting_timeout_ms);
        self.timers.at_most(Timer::Stalls, Some(now.ticks + limit));
    }

    /// There is space again: whoever waits for it tries again, the oldest first.
    pub fn retry_waiting(&mut self, now: Now) {
        while let Some(p) = self.waiting.parked.pop_front() {
            let (count, bytes) = (p.bodies.ends.len(), p.bodies.bytes.len());
            let attempt = match self.follows_refusal(p.publisher) {
                true => Attempt::Refused(PublishError::NotLeader),
                false => self.append(now, p.partition, p.publisher, p.bodies.iter(), count, bytes, p.bodies.delay_ms),
            };
            match attempt {
                Attempt::Accepted => {}
                Attempt::Refused(error) => self.tell_publisher(p.publisher, Err(error)),
                Attempt::Wait => {
                    self.waiting.parked.push_front(p);
                    break;
                }
            }
        }
        self.outbox.resume(self.waiting.here.drain(..));
        if self.life.is_stopping() {
            self.outbox.resume(self.waiting.elsewhere.drain(..));
        }
    }

    /// Another core or node has answered a publish.
    pub fn retry_waiting_elsewhere(&mut self) {
        // Not at each answer: all who wait try again, and most would only wait again.
        if self.elsewhere_bytes() <= self.settings.max_pub_waiting_size / 2 {
            self.outbox.resume(self.waiting.elsewhere.drain(..));
        }
    }

    /// What a publish hears that waited too long for space on this core.
    fn why_late(&self) -> PublishError {
        if self.store.is_stuck() { PublishError::DiskFull } else { PublishError::TooMuchWaiting }
    }

    /// Publishes of other cores that waited too long.
    fn expire_parked(&mut self, now: Now) {
        let limit = Duration::from_millis(self.settings.pub_waiting_timeout_ms);
        let error = self.why_late();
        while let Some(p) = self.waiting.parked.pop_front_if(|p| now.ticks.since(p.since) >= limit) {
            self.tell_publisher(p.publisher, Err(error));
        }
        if let Some(p) = self.waiting.parked.front() {
            self.timers.at_most(Timer::Stalls, Some(p.since + limit));
        }
    }

    /// Tells the others when this core's disk has become full, or is no longer.
    pub fn tell_full(&mut self) {
        let full = self.store.is_disk_full();
        if std::mem::replace(&mut self.waiting.told_full, full) != full {
            self.tell_others(|| MeshMessage::DiskFull { full });
        }
    }
}

impl Shard {
    /// Publishes that waited too long.
    pub(super) fn expire_stalls(&mut self, now: Now) {
        self.engine.expire_parked(now);
        let e = &mut self.engine;
        let limit = Duration::from_millis(e.settings.pub_waiting_timeout_ms);
        let here = e.why_late();
        // What another core lacks is not known here.
        for (waiters, error) in [(&mut e.waiting.here, here), (&mut e.waiting.elsewhere, PublishError::TooMuchWaiting)] {
            waiters.retain(|&conn| {
                let Some(since) = self.conns.get(&conn).and_then(|c| c.session.stalled_since()) else { return false };
                let is_late = now.ticks.since(since) >= limit;
                if is_late {
                    e.outbox.tell(conn, Heard::StallFailed(error));
                } else {
                    e.timers.at_most(Timer::Stalls, Some(since + limit));
                }
                !is_late
            });
        }
    }
}
