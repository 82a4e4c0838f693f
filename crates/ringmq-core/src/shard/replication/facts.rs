//! Facts of the coordinator: which topics and partitions there are, and which of them this core has.
//!
//! Every core hears every fact. A partition whose replica this node is comes into being on its core, once the topic's home core
//! has the topic's record durable, so that recovery knows every topic that has a batch. What the disk has and no fact names is
//! kept and not served.

use super::{Cluster, Engine, Seat};
use crate::base::topic::home_core;
use crate::base::{CoreId, Epoch, Now, PartitionDir, PartitionId, Position, TopicId, TopicRef};
use crate::codec::peer::message::Route;
use crate::config::TopicSettings;
use crate::log::{PartitionIdx, RecordTicket};
use crate::replica::lease::Lease;
use crate::replica::{Event, Member};
use crate::seam::cluster::{ClusterNode, Fact, TopicProperties};
use crate::seam::membership::Membership;
use crate::seam::message::MeshMessage;
use crate::seam::outcome::PublishError;
use crate::shard::partitions::Partition;
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
                self.partitions.members().into_iter().for_each(|idx| self.tell_member(now, idx, Event::Down { node }))
            }
            Fact::MayLeave { route, version } => self.on_may_leave(now, route, version),
            Fact::TopicRefused { name, error } => {
                let ended = self.cluster.as_mut().and_then(|c| c.wanted.refused(&mut self.topics, &name, error));
                self.end_waits(ended);
            }
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
        for idx in self.partitions.members() {
            self.tell_member(now, idx, Event::Lease { until });
            if before <= now.ticks {
                self.channels().wake_all(idx);
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
        let TopicProperties { retention_ms, retention_bytes, .. } = properties;
        self.topics.properties.set(topic.id, &properties);
        self.store.set_topic_retention(&topic.name, TopicSettings { retention_ms, retention_bytes });
        self.partitions.of_topic(topic.id).into_iter().for_each(|idx| self.store.look_at_retention(idx));
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
        let ended = self.cluster_mut().wanted.came(topic, waiters);
        self.end_waits(ended);
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
        self.leaders_changed(&topic);
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

    /// Who asked for the topic goes on, if all its leaders are known.
    pub(super) fn leaders_changed(&mut self, topic: &TopicRef) {
        let ended = self.cluster.as_mut().and_then(|c| c.wanted.leaders_changed(&mut self.topics, topic));
        self.end_waits(ended);
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
        cluster.added.remove(&topic.id);
        self.topics.properties.forget(topic.id);
        for idx in self.partitions.members() {
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
}
