//! Facts of the coordinator, and messages of other nodes to the replicas here: which topics and partitions there are, which of them
//! this core has, and where a message goes.
//!
//! Every core hears every fact. A partition whose replica this node is comes into being on its core, once the topic's home core
//! has the topic's record durable, so that recovery knows every topic that has a batch. What the disk has and no fact names is
//! kept and not served.

use super::{Cluster, Engine, Seat};
use crate::base::topic::home_core;
use crate::base::{CoreId, Epoch, Now, PartitionDir, PartitionId, Position, TopicId, TopicRef};
use crate::codec::peer::Addressed;
use crate::codec::peer::message::{Body, Message, Route};
use crate::config::TopicSettings;
use crate::log::{PartitionIdx, RecordTicket};
use crate::replica::lease::Lease;
use crate::replica::{Event, Member};
use crate::seam::cluster::{Ask, ClusterNode, Fact, TopicProperties};
use crate::seam::event;
use crate::seam::message::MeshMessage;
use crate::seam::outcome::{OverLimit, PublishError};
use crate::shard::partitions::Partition;
use crate::{base::NodeId, codec::peer::error::PeerError, seam::membership::Membership};
use std::sync::Arc;

impl Cluster {
    /// A replica as recovery left it, or of a new partition.
    pub(in crate::shard) fn seat(
        &self,
        topic: &TopicRef,
        partition: PartitionId,
        recovered: Option<(Epoch, Position)>,
    ) -> Box<Seat> {
        let member = Member::new(self.me, topic.clone(), partition, self.replica, recovered);
        Box::new(Seat::new(member))
    }

    /// The topic's record is durable on this node.
    pub(in crate::shard) fn topic_recorded(&mut self, topic: &TopicRef) {
        let known = self.recorded.entry(topic.name.clone()).or_insert_with(|| topic.clone());
        if known.id != topic.id || known.partitions < topic.partitions {
            *known = topic.clone();
        }
    }

    /// Whether the disk has the topic, with however many partitions.
    pub(super) fn has_recorded(&self, topic: &TopicRef) -> bool {
        self.recorded.get(&topic.name).is_some_and(|known| known.id == topic.id)
    }

    /// A topic of the metadata.
    pub(in crate::shard) fn topic(&self, id: TopicId) -> Option<&TopicRef> {
        self.topics.get(&id)
    }

    pub(in crate::shard) fn set_place(&mut self, route: Route, idx: PartitionIdx) {
        self.places.insert(route, idx);
    }
}

impl Engine {
    pub(in crate::shard) fn on_fact(&mut self, now: Now, fact: Fact) {
        if !self.is_clustered() || self.life.is_stopped() {
            return;
        }
        match fact {
            Fact::Nodes(nodes) => self.on_nodes(now, nodes),
            Fact::Topic(topic) => self.on_topic(&topic),
            Fact::TopicGrown { topic, from, channels } => drop(self.cluster_mut().added.insert(topic, (from, channels))),
            Fact::Partition { topic, partition, membership } => self.on_membership(now, topic, partition, membership),
            Fact::TopicGone(topic) => {
                if self.on_topic_gone(now, &topic) {
                    let what = "the topic is not the cluster's any more: what is stored of it is kept and not served";
                    tracing::warn!(topic = %topic.name, id = %topic.id, "{what}");
                }
            }
            Fact::TopicDeleted(topic) => self.on_topic_deleted(now, &topic),
            Fact::Lease { until, revision } => self.change_lease(now, |lease| lease.renewed(until, revision)),
            Fact::Read { revision } => self.change_lease(now, |lease| lease.has_read(revision)),
            Fact::TopicProperties { topic, properties } => self.set_properties(&topic, properties),
            Fact::NodeDown { node } => {
                self.members().into_iter().for_each(|idx| self.tell_member(now, idx, Event::Down { node }))
            }
            Fact::MayLeave { route, version } => self.on_may_leave(now, route, version),
            Fact::TopicRefused { name, error } => self.topic_refused(&name, error),
            Fact::ProposalRefused { route, version } => {
                if let Some(idx) = self.member_at(route) {
                    self.tell_member(now, idx, Event::ProposalRefused { version });
                }
            }
        }
    }

    fn change_lease(&mut self, now: Now, change: impl FnOnce(&mut Lease)) {
        let lease = &mut self.cluster_mut().lease;
        let before = lease.until();
        change(lease);
        let until = lease.until();
        if until == before {
            return;
        }
        for idx in self.members() {
            self.tell_member(now, idx, Event::Lease { until });
            if before <= now.ticks {
                self.wake_all(idx);
            }
        }
    }

    fn on_nodes(&mut self, now: Now, nodes: Arc<[ClusterNode]>) {
        let cluster = self.cluster_mut();
        cluster.links.set_nodes(now, &nodes);
        cluster.nodes = nodes;
    }

    /// The logs and channels of the topic follow these from now on.
    fn set_properties(&mut self, topic: &TopicRef, properties: TopicProperties) {
        let TopicProperties { retention_ms, retention_bytes, ordered, channels_by_operator, max_msg_size, max_defer_ms } =
            properties;
        let cluster = self.cluster_mut();
        match (max_msg_size, max_defer_ms) {
            (None, None) => drop(cluster.limits.remove(&topic.id)),
            limits => drop(cluster.limits.insert(topic.id, limits)),
        }
        match ordered {
            true => drop(cluster.ordered.insert(topic.id)),
            false => drop(cluster.ordered.remove(&topic.id)),
        }
        match channels_by_operator {
            true => drop(cluster.registered.insert(topic.id)),
            false => drop(cluster.registered.remove(&topic.id)),
        }
        self.store.set_topic_retention(&topic.name, TopicSettings { retention_ms, retention_bytes });
        let of_topic: Vec<PartitionIdx> =
            self.partitions.iter().filter(|(_, p)| p.topic.id == topic.id).map(|(idx, _)| idx).collect();
        of_topic.into_iter().for_each(|idx| self.store.look_at_retention(idx));
    }

    /// Whether a subscription may create a channel of the topic.
    pub(in crate::shard) fn check_registered(&self, topic: TopicId) -> Result<(), PublishError> {
        let is_closed = self.cluster.as_ref().is_some_and(|c| c.registered.contains(&topic));
        if is_closed { Err(PublishError::NotRegistered) } else { Ok(()) }
    }

    /// Whether the topic's own limits allow a publish of these bodies.
    pub(in crate::shard) fn check_limits<'a>(
        &self,
        topic: TopicId,
        mut bodies: impl Iterator<Item = &'a [u8]>,
        delay_ms: u64,
    ) -> Result<(), OverLimit> {
        let Some((size, delay)) = self.cluster.as_ref().and_then(|c| c.limits.get(&topic)) else { return Ok(()) };
        if let Some(max_ms) = delay.filter(|max| delay_ms > *max) {
            return Err(OverLimit::Delay { delay_ms, max_ms });
        }
        let Some(max) = *size else { return Ok(()) };
        let larger = bodies.find(|body| body.len() as u64 > max);
        larger.map_or(Ok(()), |body| Err(OverLimit::Message { bytes: body.len() as u64, max }))
    }

    /// Bytes of a message of the topic, at most.
    pub(in crate::shard) fn max_msg_size(&self, topic: TopicId) -> u64 {
        let of_topic = self.cluster.as_ref().and_then(|c| c.limits.get(&topic)?.0);
        of_topic.map_or(self.settings.max_msg_size, |max| max.min(self.settings.max_msg_size))
    }

    /// Whether each subscription of the topic makes its channel ordered.
    pub(in crate::shard) fn orders_channels(&self, topic: TopicId) -> bool {
        self.cluster.as_ref().is_some_and(|c| c.ordered.contains(&topic))
    }

    pub(super) fn member_at(&self, route: Route) -> Option<PartitionIdx> {
        self.cluster.as_ref()?.places.get(&route).copied()
    }

    fn on_topic(&mut self, topic: &TopicRef) {
        // The topic's home may learn of its deletion before this core learns of the topic.
        if self.is_removing(topic.id) {
            return;
        }
        let cluster = self.cluster_mut();
        if let Some(known) = cluster.topics.get(&topic.id) {
            if known.partitions < topic.partitions {
                self.grow_topic(topic);
            }
            return;
        }
        // The name came back as another topic; of more than one the deletion may not have been told yet.
        let known: Vec<TopicRef> = cluster.topics.values().filter(|t| t.name == topic.name).cloned().collect();
        cluster.topics.insert(topic.id, topic.clone());
        known.iter().for_each(|old| self.forget_topic(old));
        let waiters = self.topics.learn_shared(topic);
        self.topic_came(topic, waiters);
        let places: Vec<_> = (self.cluster_mut().places.iter())
            .filter(|(route, _)| route.topic_id == topic.id)
            .map(|(route, &idx)| (route.partition, idx))
            .collect();
        places.into_iter().for_each(|(partition, idx)| self.topics.set_place(&topic.name, partition, idx));
    }

    fn on_membership(&mut self, now: Now, topic: TopicRef, partition: PartitionId, membership: Membership) {
        self.on_topic(&topic);
        if self.is_removing(topic.id) {
            return;
        }
        let cluster = self.cluster_mut();
        let (leads, is_mine) = (membership.leader == Some(cluster.me), membership.is_replica(cluster.me));
        if partition.0 >= topic.partitions {
            return tracing::error!(topic = %topic.name, %partition, "the metadata names a partition that the topic does not have");
        }
        let route = Route { topic_id: topic.id, partition };
        let led_elsewhere = cluster.note_leader(route, &membership);
        self.topics.set_leads(&topic, partition, membership.version, leads, membership.leader.is_some());
        self.look_at_wanted(&topic);
        if is_mine {
            self.record_topic(now, &topic);
        }
        if topic.core_of(partition, self.cores) != self.core {
            return;
        }
        if let Some(is_elsewhere) = led_elsewhere {
            self.pass(CoreId::HTTP, MeshMessage::LedElsewhere { topic: topic.clone(), partition, is_elsewhere });
        }
        self.take_membership(now, &topic, route, membership, is_mine);
        self.go_on_forwarding(now, route);
        self.look_at_relays(route);
    }

    fn take_membership(&mut self, now: Now, topic: &TopicRef, route: Route, membership: Membership, is_mine: bool) {
        let partition = route.partition;
        if let Some(idx) = self.member_at(route) {
            self.tell_member(now, idx, Event::Metadata(membership));
            return self.look_whether_moved(now, route, idx);
        }
        let coming = &mut self.cluster_mut().coming;
        let key = (topic.id, partition.0);
        if is_mine && coming.get(&key).is_none_or(|m| m.version < membership.version) {
            coming.insert(key, membership);
        } else if !is_mine && coming.get(&key).is_some_and(|m| m.version < membership.version) {
            coming.remove(&key);
        }
        self.create_coming(now);
    }

    /// The topic's home core makes its record durable, once.
    pub(super) fn record_topic(&mut self, now: Now, topic: &TopicRef) {
        if home_core(&topic.name, self.cores) != self.core || self.life.is_read_only() {
            return;
        }
        let cluster = self.cluster_mut();
        match cluster.recorded.get(&topic.name) {
            Some(known) if known.id == topic.id && known.partitions >= topic.partitions => return,
            Some(known) if known.id != topic.id => {
                let found = known.id;
                cluster.wait_for_name(topic);
                if !self.is_removing(found) {
                    tracing::error!(
                        topic = %topic.name, %found, wanted = %topic.id,
                        "the data path has another topic of this name, which the cluster did not delete: its partitions are not served \
                         here. Stop the node, move the topic's folder away, and start it again"
                    );
                }
                return;
            }
            _ => {}
        }
        if let Some((_, recording)) = cluster.recording.iter().rfind(|(_, t)| t.name == topic.name) {
            if recording.id != topic.id {
                return cluster.wait_for_name(topic);
            }
            if recording.partitions >= topic.partitions {
                return;
            }
        }
        tracing::info!(topic = %topic.name, id = %topic.id, partitions = topic.partitions, "this node has a new topic of the cluster");
        let record = self.store.log_topic_create(topic, now.unix_ns, self.outbox.io());
        self.cluster_mut().recording.push_back((record, topic.clone()));
    }

    /// Records up to here are durable.
    pub(super) fn topics_recorded(&mut self, now: Now, upto: RecordTicket) {
        while let Some((_, topic)) = self.cluster_mut().recording.pop_front_if(|r| r.0 <= upto) {
            self.tell_others(|| MeshMessage::TopicCreated { topic: topic.clone() });
            self.on_topic_recorded(now, &topic);
            if self.is_doomed(&topic) {
                self.remove_of_cluster(now, &topic);
            }
        }
    }

    /// The topic's record is durable at its home: its partitions may come into being.
    pub(in crate::shard) fn on_topic_recorded(&mut self, now: Now, topic: &TopicRef) {
        self.cluster_mut().topic_recorded(topic);
        self.create_coming(now);
    }

    pub(super) fn create_coming(&mut self, now: Now) {
        let is_stopping = self.life.is_stopping();
        let cluster = self.cluster_mut();
        if cluster.coming.is_empty() || is_stopping {
            return;
        }
        let is_ready = |(id, number): &&(TopicId, u16)| {
            if cluster.leaving.has(Route { topic_id: *id, partition: PartitionId(*number) }) {
                return false;
            }
            let recorded = cluster.topics.get(id).and_then(|topic| cluster.recorded.get(&topic.name));
            recorded.is_some_and(|recorded| recorded.id == *id && recorded.partitions > *number)
        };
        let ready = cluster.coming.keys().filter(is_ready);
        for key in ready.copied().collect::<Vec<_>>() {
            let cluster = self.cluster_mut();
            let (Some(membership), Some(topic)) = (cluster.coming.remove(&key), cluster.topics.get(&key.0).cloned()) else {
                continue;
            };
            let idx = self.create_member(now, &topic, PartitionId(key.1));
            self.tell_member(now, idx, Event::Metadata(membership));
        }
    }

    fn create_member(&mut self, now: Now, topic: &TopicRef, partition: PartitionId) -> PartitionIdx {
        let dir = Arc::new(PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition });
        let idx = self.store.create(now, dir.clone(), self.outbox.io());
        let cluster = self.cluster_mut();
        let (seat, until) = (cluster.seat(topic, partition, None), cluster.lease.until());
        cluster.set_place(Route { topic_id: topic.id, partition }, idx);
        self.store.await_agreement(idx);
        self.partitions.insert(idx, Partition::member(topic.clone(), dir, seat));
        self.topics.set_place(&topic.name, partition, idx);
        self.tell_member(now, idx, Event::Lease { until });
        if self.life.is_read_only() {
            self.tell_member(now, idx, Event::LogFailed);
        }
        idx
    }

    /// Ends the use of a topic; its stored data stays. False: it was not in use.
    pub(super) fn on_topic_gone(&mut self, now: Now, topic: &TopicRef) -> bool {
        let cluster = self.cluster_mut();
        cluster.end_wait_for_name(topic);
        if cluster.topics.remove(&topic.id).is_none() {
            return false;
        }
        cluster.coming.retain(|(id, _), _| *id != topic.id);
        cluster.leaders.retain(|route, _| route.topic_id != topic.id);
        cluster.ordered.remove(&topic.id);
        cluster.added.remove(&topic.id);
        cluster.limits.remove(&topic.id);
        cluster.registered.remove(&topic.id);
        for idx in self.members() {
            let p = self.partitions.get(idx);
            if let Some(last) = p.seat().filter(|_| p.topic.id == topic.id).and_then(|s| s.member.membership()) {
                let version = last.version.saturating_add(1);
                let (replicas, isr, joining) = Default::default();
                let nobody = Membership { version, leader: None, replicas, isr, joining, ..last.clone() };
                self.tell_member(now, idx, Event::Metadata(nobody));
            }
        }
        self.forget_topic(topic);
        true
    }

    fn forget_topic(&mut self, topic: &TopicRef) {
        self.refuse_forwards(Some(topic), PublishError::TopicNotExist);
        self.end_subscribers(topic);
        let waiters = self.topics.forget_shared(topic);
        self.tell_waiters(waiters, Err(PublishError::TopicNotExist));
    }

    // ---- other nodes

    /// A message of another node for a partition of this core.
    pub(in crate::shard) fn on_peer_message(&mut self, now: Now, from: NodeId, addressed: Addressed) {
        let Addressed { route, message } = addressed;
        let message = match message {
            Message { head, body: Body::Forward(forward) } => {
                return self.on_forward(now, from, (route, head.session), forward);
            }
            Message { body: Body::Forwarded(answer), .. } => return self.on_forwarded(now, route, answer),
            Message { head, body: Body::Relay(relayed) } => {
                let of = (route, head.session);
                return match relayed.is_for_leader() {
                    true => self.on_relay(now, from, of, relayed),
                    false => self.on_relayed(from, of, relayed),
                };
            }
            Message { body: Body::Change(change), .. } => return self.on_change(now, from, route, change),
            Message { body: Body::Changed(answer), .. } => return self.on_changed(from, answer),
            message => message,
        };
        match self.member_at(route) {
            Some(idx) => self.tell_member(now, idx, Event::Message { from, message }),
            // It may be on its way: the leader asks again.
            None => self.refuse_unknown(from, route, message),
        }
    }

    fn refuse_unknown(&mut self, from: NodeId, route: Route, message: Message) {
        let lane = message.body.lane();
        if matches!(message.body, Body::Inquire(_) | Body::Append(_)) {
            let body = Body::Refused(PeerError::UnknownPartition);
            self.send_peer(from, lane, route, Message { head: message.head, body });
        }
    }

    /// The connection of this core to another node is there, or is gone: what was on its way may be lost.
    pub(in crate::shard) fn on_peer(&mut self, now: Now, node: NodeId, is_connected: bool) {
        for idx in self.members() {
            let event = if is_connected { Event::Connected { node } } else { Event::Disconnected { node } };
            self.tell_member(now, idx, event);
        }
        self.forward_to(now, node, is_connected);
        if !is_connected {
            self.outbox.push(event::Effect::Ask(Ask::PeerLost { node }));
            self.lose_relays(node);
            self.lose_changes(node);
            self.guests_gone(now, node);
        }
    }
}
