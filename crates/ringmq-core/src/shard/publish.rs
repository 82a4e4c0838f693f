//! Publishes: taken here or passed to the partition's core.

use super::copies::{self, CopiesToAppend};
use super::engine::{Attempt, Engine};
use super::partitions::{ChannelKey, Publisher};
use super::questions::Question;
use super::replication::may_be_stored_later;
use super::timers::Timer;
use super::waiting::Parked;
use crate::base::{ConnId, CoreId, Now, PartitionId, TopicRef};
use crate::channel::Copy;
use crate::codec::nsq::Bodies;
use crate::codec::peer::message::Route;
use crate::format::batch::{BATCH_BODY_MAX, CopyOf, DUE_LEN, MESSAGE_OVERHEAD};
use crate::log::{AppendTicket, PartitionIdx, Refusal};
use crate::seam::{
    message::{MeshMessage, OwnedBodies, Ticket},
    outcome::PublishError,
};
use crate::session::ReplySlot;

/// Memory that a publish to another core takes, at both ends, beside its bodies.
const REMOTE_OVERHEAD: usize = 256;

/// Whether so many bodies of so many bytes fit no batch. Many small messages take more in a batch than on the wire, so the protocol's
/// limits do not see to it.
pub(super) fn is_too_big(count: usize, bytes: usize) -> bool {
    bytes.saturating_add(count.saturating_mul(MESSAGE_OVERHEAD + DUE_LEN)) > BATCH_BODY_MAX
}

impl Engine {
    /// Takes a publish for a partition of this core.
    #[expect(clippy::too_many_arguments)]
    pub fn append<'a>(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        publisher: Publisher,
        bodies: impl Iterator<Item = &'a [u8]>,
        count: usize,
        bytes: usize,
        delay_ms: u64,
    ) -> Attempt {
        if is_too_big(count, bytes) {
            return Attempt::Refused(PublishError::TooBig);
        }
        // Counted from when there is room for it: the delay of a publish that waited is not shorter for that.
        let due_unix_ns = (delay_ms > 0).then(|| now.unix_ns.saturating_add_unsigned(delay_ms.saturating_mul(1_000_000)));
        self.append_as(now, idx, publisher, bytes, |e| {
            e.core.store.append_due(now, idx, bodies, count, bytes, due_unix_ns, e.core.outbox.io())
        })
    }

    /// An append of so many bytes of bodies to a partition of this core.
    pub fn append_as(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        publisher: Publisher,
        bytes: usize,
        append: impl FnOnce(&mut Engine) -> Result<AppendTicket, Refusal>,
    ) -> Attempt {
        if self.core.life.is_stopping() {
            return Attempt::Refused(PublishError::Stopping);
        }
        if let Some(cluster) = &mut self.cluster
            && let Some(attempt) = cluster.check_publish(&mut self.core, now, idx, bytes)
        {
            return attempt;
        }
        match append(self) {
            Ok(ticket) => {
                let p = self.core.partitions.get_mut(idx);
                p.publishers.push_back((ticket, publisher, now.ticks));
                p.message_bytes += bytes as u64;
                if let Some(cluster) = &mut self.cluster {
                    cluster.has_grown(&mut self.core.partitions, idx);
                }
                Attempt::Accepted
            }
            Err(Refusal::Busy) => Attempt::Wait,
            Err(Refusal::DiskFull) => Attempt::Refused(PublishError::DiskFull),
            Err(Refusal::ReadOnly) => Attempt::Refused(PublishError::ReadOnly),
            Err(Refusal::TooBig) => Attempt::Refused(PublishError::TooBig),
        }
    }

    /// A publish that a connection of this core makes, to the partition it names or the one whose turn it is: here, or
    /// passed to the partition's core.
    pub fn publish(
        &mut self,
        now: Now,
        conn: ConnId,
        topic: &str,
        partition: Option<PartitionId>,
        bodies: &Bodies<'_>,
        slot: ReplySlot,
    ) -> Attempt {
        if self.moves.is_moving(conn) {
            return Attempt::Wait;
        }
        let is_alone = !self.core.is_clustered;
        let found = match partition {
            None if is_alone => self.core.topics.next_partition(topic, conn),
            None => self.core.topics.next_shared(topic),
            Some(partition) => self.core.topics.this_partition(topic, partition),
        };
        let Some((topic, partition, place)) = found else {
            return match self.ensure_topic(now, topic, 0) {
                // The topic exists, but not that partition.
                Ok(true) if partition.is_some() => Attempt::Refused(PublishError::NoPartition),
                Ok(true) => Attempt::Refused(PublishError::NotLeader),
                Ok(false) => {
                    self.core.topics.wait_conn(topic, conn);
                    Attempt::Wait
                }
                Err(error) => Attempt::Refused(error),
            };
        };
        // A partition with a place is of this core.
        let owner = if place.is_some() { self.core.id } else { topic.core_of(partition, self.core.cores) };
        if !is_alone && owner == self.core.id {
            let route = Route { topic_id: topic.id, partition };
            match self.core.topics.properties.check_limits(route.topic_id, bodies.iter(), bodies.delay_ms()) {
                Ok(()) => self.publish_replicated(now, conn, route, place, bodies, slot),
                Err(error) => Attempt::Refused(error.into()),
            }
        } else if let Some(idx) = place {
            self.publish_here(now, conn, idx, bodies, slot)
        } else if owner == self.core.id {
            let topic = topic.clone();
            match self.core.partition(now, &topic, partition) {
                Ok(idx) => self.publish_here(now, conn, idx, bodies, slot),
                Err(error) => Attempt::Refused(error),
            }
        } else {
            let topic = topic.clone();
            match self.core.topics.properties.check_limits(topic.id, bodies.iter(), bodies.delay_ms()) {
                Ok(()) => self.publish_there(now, conn, owner, topic, partition, bodies, slot),
                Err(error) => Attempt::Refused(error.into()),
            }
        }
    }

    /// A publish that another core or the HTTP thread passed on, for a partition of this core.
    pub fn publish_passed(
        &mut self,
        now: Now,
        from: CoreId,
        ticket: Ticket,
        place: (TopicRef, PartitionId),
        bodies: OwnedBodies,
    ) {
        let (publisher, (topic, partition)) = (Publisher::Core(from, ticket), place);
        if self.removals.is_gone(&self.core.topics, from, &topic) {
            return self.tell_publisher(publisher, Err(PublishError::TopicGone));
        }
        if !self.core.is_clustered {
            self.core.topic_known(&topic);
        }
        if self.core.life.is_stopping() {
            return self.tell_publisher(publisher, Err(PublishError::Stopping));
        }
        let route = Route { topic_id: topic.id, partition };
        // Another core has looked.
        if from == CoreId::HTTP
            && let Err(error) = self.core.topics.properties.check_limits(topic.id, bodies.iter(), bodies.delay_ms)
        {
            return self.tell_publisher(publisher, Err(error.into()));
        }
        if self.is_forwarding(route) {
            return self.forward_owned(now, route, publisher, &bodies);
        }
        let (count, bytes) = (bodies.ends.len(), bodies.bytes.len());
        let attempt = match self.core.partition(now, &topic, partition) {
            Err(error) => Attempt::Refused(error),
            // Order: waiting publishes go first.
            Ok(idx) if self.core.waiting.has_parked() => return self.park(now, publisher, idx, bodies),
            Ok(idx) => match self.append(now, idx, publisher, bodies.iter(), count, bytes, bodies.delay_ms) {
                Attempt::Wait => return self.park(now, publisher, idx, bodies),
                attempt => attempt,
            },
        };
        match attempt {
            Attempt::Refused(error) if self.core.is_clustered && may_be_stored_later(error) => {
                self.forward_owned(now, route, publisher, &bodies);
            }
            Attempt::Refused(error) => self.tell_publisher(publisher, Err(error)),
            Attempt::Accepted | Attempt::Wait => {}
        }
    }

    pub(super) fn publish_here(
        &mut self,
        now: Now,
        conn: ConnId,
        idx: PartitionIdx,
        bodies: &Bodies<'_>,
        slot: ReplySlot,
    ) -> Attempt {
        self.moves.published_here(conn);
        let publisher = Publisher::Session(conn, slot);
        let attempt = self.append(now, idx, publisher, bodies.iter(), bodies.count(), bodies.bytes(), bodies.delay_ms());
        if matches!(attempt, Attempt::Wait) {
            self.core.waiting.wait_here(now, conn, &mut self.core.timers);
        }
        attempt
    }

    #[expect(clippy::too_many_arguments)]
    fn publish_there(
        &mut self,
        now: Now,
        conn: ConnId,
        owner: CoreId,
        topic: TopicRef,
        partition: PartitionId,
        bodies: &Bodies<'_>,
        slot: ReplySlot,
    ) -> Attempt {
        if self.core.life.is_stopping() {
            return Attempt::Refused(PublishError::Stopping);
        }
        if self.moves.publishes_at(conn, owner) && !self.subs.contains(conn) {
            self.moves.begin(conn, owner);
            return Attempt::Wait;
        }
        let bytes = (bodies.bytes() + bodies.count() * size_of::<u32>() + REMOTE_OVERHEAD) as u64;
        let waiting = self.elsewhere_bytes();
        if waiting > 0 && waiting + bytes > self.core.settings.max_pub_waiting_size {
            self.core.waiting.wait_elsewhere(now, conn, &mut self.core.timers);
            return Attempt::Wait;
        }
        // An OK to this publish implies the FINs before it.
        if self.bundles.has_fins() && self.subs.contains(conn) {
            self.consumers().flush_fins();
        }
        let mut owned = OwnedBodies {
            bytes: Vec::with_capacity(bodies.bytes()),
            ends: Vec::with_capacity(bodies.count()),
            delay_ms: bodies.delay_ms(),
        };
        bodies.iter().for_each(|b| owned.push(b));
        let ticket = self.core.questions.open(Question::Publish { conn, slot, bytes, topic: topic.id });
        self.pass(owner, MeshMessage::Publish { ticket, topic, partition, bodies: owned });
        Attempt::Accepted
    }

    // ---- copies of deferred messages

    /// Appends the copies that a channel wants.
    pub(super) fn append_copies(&mut self, now: Now, key: ChannelKey, wanted: CopiesToAppend) {
        let mut is_refused = false;
        for (number, copy) in wanted.copies {
            is_refused = is_refused || !self.append_copy(now, key, number, &copy);
            if is_refused {
                self.core.copies.refuse(key, copy.log_id, number);
            }
        }
        if is_refused {
            let at = now.ticks + copies::RETRY;
            if let Some(c) = self.core.partitions.channel_mut(key) {
                c.copies_at = at;
            }
            self.core.timers.at_most(Timer::Channel(key), Some(at));
        } else if wanted.has_more {
            self.core.partitions.wake(key);
        }
    }

    /// False: refused for now.
    fn append_copy(&mut self, now: Now, key: ChannelKey, number: u64, copy: &Copy) -> bool {
        let idx = key.partition_idx();
        let Some(c) = self.core.partitions.channel_mut(key) else { return true };
        let name = c.name.clone();
        let publisher = Publisher::Copy(key, copy.log_id, number);
        let &Copy { first_id: log_id, unix_ns, attempts, due_unix_ns, ref body, .. } = copy;
        let attempt = self.append_as(now, idx, publisher, body.len(), |e| {
            let copy_of = CopyOf { log_id, unix_ns, attempts, channel: name.as_str() };
            e.core.store.append_copy(now, idx, copy_of, due_unix_ns, body, e.core.outbox.io())
        });
        let is_accepted = matches!(attempt, Attempt::Accepted);
        if is_accepted {
            self.core.copies.begin(key);
        }
        is_accepted
    }

    // ---- publishes that wait

    /// A publish of another core or node waits for space on this core.
    pub(super) fn park(&mut self, now: Now, publisher: Publisher, partition: PartitionIdx, bodies: OwnedBodies) {
        self.core.waiting.park(Parked { since: now.ticks, publisher, partition, bodies }, &mut self.core.timers);
    }

    /// Tries again the publishes that waited for space, the oldest first.
    pub fn retry_waiting(&mut self, now: Now) {
        while let Some(p) = self.core.waiting.take_parked() {
            let (count, bytes) = (p.bodies.ends.len(), p.bodies.bytes.len());
            let attempt = match self.cluster.as_ref().is_some_and(|c| c.follows_refusal(p.publisher)) {
                true => Attempt::Refused(PublishError::NotLeader),
                false => self.append(now, p.partition, p.publisher, p.bodies.iter(), count, bytes, p.bodies.delay_ms),
            };
            match attempt {
                Attempt::Accepted => {}
                Attempt::Refused(error) => self.tell_publisher(p.publisher, Err(error)),
                Attempt::Wait => {
                    self.core.waiting.put_back(p);
                    break;
                }
            }
        }
        self.core.outbox.resume(self.core.waiting.resume_here());
        if self.core.life.is_stopping() {
            self.core.outbox.resume(self.core.waiting.resume_elsewhere());
        }
    }

    /// Another core or node has answered a publish.
    pub fn retry_waiting_elsewhere(&mut self) {
        // Not at each answer: all waiting publishes are tried again, and most would only wait again.
        if self.elsewhere_bytes() <= self.core.settings.max_pub_waiting_size / 2 {
            self.core.outbox.resume(self.core.waiting.resume_elsewhere());
        }
    }

    /// The refusal of a publish that waited too long for space on this core.
    pub(super) fn why_late(&self) -> PublishError {
        if self.core.store.is_stuck() { PublishError::DiskFull } else { PublishError::TooMuchWaiting }
    }

    /// Publishes of other cores that waited too long.
    pub(super) fn expire_parked(&mut self, now: Now) {
        let error = self.why_late();
        while let Some(p) = self.core.waiting.take_late(now) {
            self.tell_publisher(p.publisher, Err(error));
        }
        self.core.timers.at_most(Timer::Stalls, self.core.waiting.deadline());
    }

    // ----

    pub fn tell_publisher(&mut self, publisher: Publisher, result: Result<(), PublishError>) {
        self.core.tell_publisher(self.cluster.as_deref_mut(), publisher, result);
    }
}
