//! Publishes: appended here, passed to the partition's core, or forwarded to the node that leads the partition; and their waiting lists.

use super::bundles::Bundles;
use super::copies::{self, CopiesToAppend};
use super::engine::Attempt;
use super::moves::Moves;
use super::partitions::{ChannelKey, Publisher};
use super::parts::CoreParts;
use super::questions::Question;
use super::removal::Removals;
use super::replication::{Cluster, Origin, Pending, may_be_stored_later};
use super::subscription::Subscriptions;
use super::timers::Timer;
use super::waiting::Parked;
use crate::base::{ConnId, CoreId, Now, PartitionId, TopicRef};
use crate::channel::Copy;
use crate::codec::nsq::Bodies;
use crate::codec::peer::message::{PackedBodies, Route};
use crate::format::batch::{BATCH_BODY_MAX, CopyOf, DUE_LEN, MESSAGE_OVERHEAD};
use crate::log::{AppendTicket, PartitionIdx, Refusal};
use crate::seam::message::{MeshMessage, OwnedBodies, Ticket};
use crate::seam::outcome::{PublishError, Unwritable};
use crate::session::ReplySlot;

/// Memory that a publish to another core takes, at both ends, beside its bodies.
const REMOTE_OVERHEAD: usize = 256;

/// Whether so many bodies of so many bytes fit no batch. Many small messages take more in a batch than on the wire, so the protocol's
/// limits do not see to it.
pub(super) fn is_too_big(count: usize, bytes: usize) -> bool {
    bytes.saturating_add(count.saturating_mul(MESSAGE_OVERHEAD + DUE_LEN)) > BATCH_BODY_MAX
}

/// Publishes of a core, with the parts that they need, borrowed for one call. A forwarded publish may leave work of the cluster, which the
/// engine does afterwards.
pub(super) struct Publishing<'a> {
    pub core: &'a mut CoreParts,
    /// `None`: the node is stand-alone.
    pub cluster: Option<&'a mut Cluster>,
    pub moves: &'a mut Moves,
    pub removals: &'a Removals,
    pub subs: &'a Subscriptions,
    pub bundles: &'a mut Bundles,
}

impl Publishing<'_> {
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
        self.append_as(now, idx, publisher, bytes, |core| {
            core.store.append_due(now, idx, bodies, count, bytes, due_unix_ns, core.outbox.io())
        })
    }

    /// An append of so many bytes of bodies to a partition of this core.
    pub fn append_as(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        publisher: Publisher,
        bytes: usize,
        append: impl FnOnce(&mut CoreParts) -> Result<AppendTicket, Refusal>,
    ) -> Attempt {
        if self.core.life.is_stopping() {
            return Attempt::Refused(PublishError::Stopping);
        }
        if let Some(cluster) = &mut self.cluster
            && let Some(attempt) = cluster.check_publish(self.core, now, idx, bytes)
        {
            return attempt;
        }
        match append(self.core) {
            Ok(ticket) => {
                self.note_appended(now, idx, ticket, publisher, bytes);
                Attempt::Accepted
            }
            Err(Refusal::Busy) => Attempt::Wait,
            Err(Refusal::DiskFull) => Attempt::Refused(PublishError::DiskFull),
            Err(Refusal::ReadOnly) => Attempt::Refused(PublishError::ReadOnly),
            Err(Refusal::TooBig) => Attempt::Refused(PublishError::TooBig),
        }
    }

    /// Notes the publisher of an append, which gets its answer when the messages are durable. `bytes`: of their bodies.
    pub fn note_appended(&mut self, now: Now, idx: PartitionIdx, ticket: AppendTicket, publisher: Publisher, bytes: usize) {
        let p = self.core.partitions.get_mut(idx);
        p.publishers.push_back((ticket, publisher, now.ticks));
        p.message_bytes += bytes as u64;
        if let Some(cluster) = &mut self.cluster {
            cluster.has_grown(&mut self.core.partitions, idx);
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
            return match self.core.ensure_topic(now, self.cluster.as_deref_mut(), topic, 0) {
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

    pub fn publish_here(&mut self, now: Now, conn: ConnId, idx: PartitionIdx, bodies: &Bodies<'_>, slot: ReplySlot) -> Attempt {
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
            self.bundles.flush_fins(self.core, self.cluster.as_deref_mut(), self.subs);
        }
        let mut owned = OwnedBodies {
            bytes: Vec::with_capacity(bodies.bytes()),
            ends: Vec::with_capacity(bodies.count()),
            delay_ms: bodies.delay_ms(),
        };
        bodies.iter().for_each(|b| owned.push(b));
        let ticket = self.core.questions.open(Question::Publish { conn, slot, bytes, topic: topic.id });
        self.core.outbox.pass(owner, MeshMessage::Publish { ticket, topic, partition, bodies: owned });
        Attempt::Accepted
    }

    // ---- copies of deferred messages

    /// Appends the copies that a channel wants.
    pub fn append_copies(&mut self, now: Now, key: ChannelKey, wanted: CopiesToAppend) {
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
        let attempt = self.append_as(now, idx, publisher, body.len(), |core| {
            let copy_of = CopyOf { log_id, unix_ns, attempts, channel: name.as_str() };
            core.store.append_copy(now, idx, copy_of, due_unix_ns, body, core.outbox.io())
        });
        let is_accepted = matches!(attempt, Attempt::Accepted);
        if is_accepted {
            self.core.copies.begin(key);
        }
        is_accepted
    }

    // ---- publishes that wait

    /// A publish of another core or node waits for space on this core.
    pub fn park(&mut self, now: Now, publisher: Publisher, partition: PartitionIdx, bodies: OwnedBodies) {
        self.core.waiting.park(Parked { since: now.ticks, publisher, partition, bodies }, &mut self.core.timers);
    }

    /// Tries again the publishes that waited for space, the oldest first.
    pub fn retry_waiting(&mut self, now: Now) {
        while let Some(p) = self.core.waiting.take_parked() {
            let (count, bytes) = (p.bodies.ends.len(), p.bodies.bytes.len());
            let attempt = match self.cluster.as_ref().is_some_and(|c| c.forwards.follows_refusal(p.publisher)) {
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

    /// Tries waiting publishes again after an answer of another core or node.
    pub fn retry_waiting_elsewhere(&mut self) {
        // Not at each answer: all waiting publishes are tried again, and most would only wait again.
        if self.elsewhere_bytes() <= self.core.settings.max_pub_waiting_size / 2 {
            self.core.outbox.resume(self.core.waiting.resume_elsewhere());
        }
    }

    /// The refusal of a publish that waited too long for space on this core.
    pub fn why_late(&self) -> PublishError {
        if self.core.store.is_stuck() { PublishError::DiskFull } else { PublishError::TooMuchWaiting }
    }

    /// Publishes of other cores that waited too long.
    pub fn expire_parked(&mut self, now: Now) {
        let error = self.why_late();
        while let Some(p) = self.core.waiting.take_late(now) {
            self.tell_publisher(p.publisher, Err(error));
        }
        self.core.timers.at_most(Timer::Stalls, self.core.waiting.deadline());
    }

    // ---- in a cluster

    /// A publish of a client of this core, for a partition of this core: taken here, or sent to its leader.
    fn publish_replicated(
        &mut self,
        now: Now,
        conn: ConnId,
        route: Route,
        place: Option<PartitionIdx>,
        bodies: &Bodies<'_>,
        slot: ReplySlot,
    ) -> Attempt {
        if let Some(idx) = place.filter(|_| !self.is_forwarding(route)) {
            if self.core.waiting.has_parked_for(idx) {
                // A publish of the same connection may be among them.
                self.core.waiting.wait_here(now, conn, &mut self.core.timers);
                return Attempt::Wait;
            }
            match self.publish_here(now, conn, idx, bodies, slot) {
                Attempt::Refused(error) if may_be_stored_later(error) => {}
                attempt => return attempt,
            }
        }
        if let Err(error) = self.core.life.check_running() {
            return Attempt::Refused(error);
        }
        if is_too_big(bodies.count(), bodies.bytes()) {
            return Attempt::Refused(PublishError::TooBig);
        }
        let waiting = self.elsewhere_bytes();
        if waiting > 0 && waiting + bodies.bytes() as u64 > self.core.settings.max_pub_waiting_size {
            self.core.waiting.wait_elsewhere(now, conn, &mut self.core.timers);
            return Attempt::Wait;
        }
        self.moves.published_here(conn);
        let packed = (PackedBodies::pack(bodies.iter()), bodies.delay_ms());
        if let Some(cluster) = &mut self.cluster {
            cluster.forward(self.core, now, route, Publisher::Session(conn, slot), packed);
        }
        Attempt::Accepted
    }

    /// A publish of a client of another core, or of the HTTP thread, that this node cannot take.
    fn forward_owned(&mut self, now: Now, route: Route, publisher: Publisher, bodies: &OwnedBodies) {
        let error = match &mut self.cluster {
            None => PublishError::TopicNotExist,
            Some(cluster) if cluster.topic(route.topic_id).is_none() => PublishError::TopicNotExist,
            Some(_) if is_too_big(bodies.ends.len(), bodies.bytes.len()) => PublishError::TooBig,
            Some(cluster) => {
                let packed = (PackedBodies::pack(bodies.iter()), bodies.delay_ms);
                return cluster.forward(self.core, now, route, publisher, packed);
            }
        };
        self.tell_publisher(publisher, Err(error));
    }

    /// Whether publishes to the partition wait for their leader: others come behind them.
    fn is_forwarding(&self, route: Route) -> bool {
        self.cluster.as_ref().is_some_and(|c| c.forwards.has(route))
    }

    /// Memory of publishes that other cores or nodes work on for this one.
    fn elsewhere_bytes(&self) -> u64 {
        self.core.questions.publish_bytes() + self.cluster.as_ref().map_or(0, |c| c.forwards.bytes())
    }

    /// Appends publishes that waited for a leader: by the metadata this node leads the partition.
    pub fn append_forwarded(&mut self, now: Now, route: Route) {
        let idx = self.core.partitions.member_at(route);
        while let Some(pending) = self.cluster.as_mut().and_then(|c| c.forwards.take_first(route)) {
            let Pending { publisher, bodies, delay_ms, .. } = &pending;
            let attempt = match idx {
                None => Attempt::Refused(PublishError::NotLeader),
                Some(idx) => self.append_or_park(now, idx, *publisher, bodies, *delay_ms),
            };
            match (attempt, &mut self.cluster) {
                (Attempt::Refused(error), Some(c)) if may_be_stored_later(error) && !self.core.life.is_stopping() => {
                    return c.forwards.give_back(self.core, now, route, pending, error);
                }
                (Attempt::Refused(error), _) => self.tell_publisher(pending.publisher, Err(error)),
                (Attempt::Accepted | Attempt::Wait, _) => {}
            }
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.forwards.tidy(self.core, route);
        }
    }

    /// Takes a publish of another node's client.
    pub fn take_forwarded(&mut self, now: Now, idx: PartitionIdx, origin: Origin, bodies: &PackedBodies, delay_ms: u64) {
        let publisher = Publisher::Node(origin);
        if let Attempt::Refused(error) = self.append_or_park(now, idx, publisher, bodies, delay_ms) {
            self.tell_publisher(publisher, Err(error));
        }
    }

    /// Appends a publish, or parks it behind those that wait already. Another node's publish is refused when the waiting ones have
    /// reached their bound, and comes again.
    fn append_or_park(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        publisher: Publisher,
        bodies: &PackedBodies,
        delay_ms: u64,
    ) -> Attempt {
        let attempt = match self.core.waiting.has_parked() {
            true => Attempt::Wait,
            false => self.append(now, idx, publisher, bodies.iter(), bodies.count(), bodies.body_bytes(), delay_ms),
        };
        if matches!(attempt, Attempt::Wait) {
            if !self.core.waiting.may_park(publisher, bodies.count(), bodies.body_bytes()) {
                return Attempt::Refused(PublishError::NotWritable(Unwritable::Busy));
            }
            let mut owned = OwnedBodies { delay_ms, ..OwnedBodies::default() };
            bodies.iter().for_each(|body| owned.push(body));
            self.park(now, publisher, idx, owned);
        }
        attempt
    }

    // ----

    pub fn tell_publisher(&mut self, publisher: Publisher, result: Result<(), PublishError>) {
        self.core.tell_publisher(self.cluster.as_deref_mut(), publisher, result);
    }
}
