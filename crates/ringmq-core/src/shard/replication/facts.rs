//! Facts of the coordinator: the topics and partitions of the cluster, and this core's part of them.
//!
//! Every core gets every fact. A replica of this node is made on its core once the topic's home core has the topic's record durable, so
//! that recovery knows every topic that has a batch. Partitions on the disk that no fact names are kept and not served.

use super::disk::Lack;
use super::{Cluster, CoreParts, Seat, Work};
use crate::base::{CoreId, Epoch, Now, PartitionDir, PartitionId, Position, TopicId, TopicRef};
use crate::codec::peer::message::Route;
use crate::config::TopicSettings;
use crate::log::RecordTicket;
use crate::replica::lease::Lease;
use crate::replica::{Event, Member};
use crate::seam::cluster::{Fact, TopicProperties};
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
        let member = Member::new(self.peers.me(), topic.clone(), partition, self.replica, recovered);
        Box::new(Seat::new(member))
    }

    /// A topic of the metadata.
    pub(in crate::shard) fn topic(&self, id: TopicId) -> Option<&TopicRef> {
        self.topics.get(id)
    }

    /// [`Peers::leader_elsewhere`](super::peers::Peers::leader_elsewhere) of the topic of this name.
    pub(in crate::shard) fn leader_elsewhere(&self, topic: &str, partition: Option<PartitionId>) -> Option<String> {
        self.peers.leader_elsewhere(self.topics.named(topic).next()?, partition)
    }

    /// Takes a fact, but [`Fact::MayLeave`].
    pub(super) fn on_fact(&mut self, core: &mut CoreParts, now: Now, fact: Fact) {
        match fact {
            Fact::Nodes(nodes) => self.peers.set_nodes(now, nodes),
            Fact::Topic(topic) => self.on_topic(core, &topic),
            Fact::TopicGrown { topic, from, channels } => self.topics.add_partitions(topic, from, channels),
            Fact::Partition { topic, partition, membership } => self.on_membership(core, now, &topic, partition, membership),
            Fact::TopicGone(topic) => {
                if self.on_topic_gone(core, &topic) {
                    let what = "the topic no longer belongs to the cluster: its stored data is kept and not served";
                    tracing::warn!(topic = %topic.name, id = %topic.id, "{what}");
                }
            }
            Fact::TopicDeleted(topic) => self.on_topic_deleted(core, &topic),
            Fact::Lease { until, revision } => self.change_lease(core, now, |lease| lease.renewed(until, revision)),
            Fact::Read { revision } => self.change_lease(core, now, |lease| lease.has_read(revision)),
            Fact::TopicProperties { topic, properties } => set_properties(core, &topic, properties),
            Fact::NodeDown { node } => core.work.tell_all(&core.partitions, || Event::Down { node }),
            Fact::MayLeave { .. } => {}
            Fact::TopicRefused { name, error } => self.wanted.refused(core, &name, error),
            Fact::ProposalRefused { route, version } => {
                if let Some(idx) = core.partitions.member_at(route) {
                    core.work.tell(idx, Event::ProposalRefused { version });
                }
            }
        }
    }

    /// The lease was renewed, or the metadata was read.
    fn change_lease(&mut self, core: &mut CoreParts, now: Now, change: impl FnOnce(&mut Lease)) {
        let before = self.lease.until();
        change(&mut self.lease);
        let until = self.lease.until();
        if until == before {
            return;
        }
        for idx in core.partitions.members() {
            core.work.tell(idx, Event::Lease { until });
            if before <= now.ticks {
                core.channels().wake_all(idx);
            }
        }
    }

    fn on_topic(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        if let Some(known) = self.topics.get(topic.id) {
            if known.partitions < topic.partitions {
                self.grow_topic(core, topic);
            }
            return;
        }
        // The name came back as another topic.
        let known: Vec<TopicRef> = self.topics.named(&topic.name).cloned().collect();
        self.topics.insert(topic);
        known.iter().for_each(|old| self.forget_topic(core, old));
        let waiters = core.topics.learn_shared(topic);
        self.wanted.came(core, topic, waiters);
        for (partition, idx) in core.partitions.members_of(topic.id) {
            core.topics.set_place(&topic.name, partition, idx);
        }
    }

    /// The topic is known with fewer partitions.
    fn grow_topic(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        tracing::info!(topic = %topic.name, partitions = topic.partitions, "the topic has more partitions");
        self.topics.insert(topic);
        core.topics.grow(topic);
        for idx in core.partitions.of_topic(topic.id) {
            core.partitions.get_mut(idx).topic = topic.clone();
        }
    }

    fn on_membership(
        &mut self,
        core: &mut CoreParts,
        now: Now,
        topic: &TopicRef,
        partition: PartitionId,
        membership: Membership,
    ) {
        self.on_topic(core, topic);
        let me = self.peers.me();
        let (leads, is_mine) = (membership.leader == Some(me), membership.is_replica(me));
        if partition.0 >= topic.partitions {
            return tracing::error!(topic = %topic.name, %partition, "the metadata names a partition that the topic does not have");
        }
        let route = Route { topic_id: topic.id, partition };
        let led_elsewhere = self.peers.note_leader(route, &membership);
        core.topics.set_leads(topic, partition, membership.version, leads, membership.leader.is_some());
        self.wanted.leaders_changed(core, topic);
        if is_mine {
            self.record_topic(core, now, topic);
        }
        if topic.core_of(partition, core.cores) != core.id {
            return;
        }
        if let Some(is_elsewhere) = led_elsewhere {
            core.outbox.pass(CoreId::HTTP, MeshMessage::LedElsewhere { topic: topic.clone(), partition, is_elsewhere });
        }
        self.take_membership(core, now, route, membership, is_mine);
        core.work.push(Work::Forward(route));
        self.look_at_relays(core, route);
    }

    fn take_membership(&mut self, core: &mut CoreParts, now: Now, route: Route, membership: Membership, is_mine: bool) {
        if let Some(idx) = core.partitions.member_at(route) {
            return core.work.tell(idx, Event::Metadata(membership));
        }
        self.topics.expect(route, membership, is_mine);
        self.create_coming(core, now);
    }

    /// The topic's home core makes its record durable, once.
    pub(super) fn record_topic(&mut self, core: &mut CoreParts, now: Now, topic: &TopicRef) {
        if !core.is_home_of(topic) || core.life.is_read_only() {
            return;
        }
        match self.disk.need(topic) {
            Lack::Record => {}
            Lack::Nothing | Lack::Name => return,
            Lack::NameOf(found) => {
                return tracing::error!(
                    topic = %topic.name, %found, wanted = %topic.id,
                    "the data path has another topic of this name, which the cluster did not delete: its partitions are not served \
                     here. Stop the node, move the topic's folder away, and start it again"
                );
            }
        }
        tracing::info!(topic = %topic.name, id = %topic.id, partitions = topic.partitions, "this node has a new topic of the cluster");
        let record = core.store.log_topic_create(topic, now.unix_ns, core.outbox.io());
        self.disk.begin(record, topic);
    }

    /// Records up to here are durable.
    pub(super) fn topics_recorded(&mut self, core: &mut CoreParts, now: Now, upto: RecordTicket) {
        while let Some(topic) = self.disk.take_durable(upto) {
            core.outbox.pass_to_others(|| MeshMessage::TopicCreated { topic: topic.clone() });
            self.on_topic_recorded(core, now, &topic);
            if self.disk.take_doomed(&topic) {
                core.work.push(Work::Remove(topic));
            }
        }
    }

    /// The topic's record is durable at its home: its partitions may come into being.
    pub(in crate::shard) fn on_topic_recorded(&mut self, core: &mut CoreParts, now: Now, topic: &TopicRef) {
        self.disk.recorded(topic);
        self.create_coming(core, now);
    }

    pub(super) fn create_coming(&mut self, core: &mut CoreParts, now: Now) {
        if core.life.is_stopping() {
            return;
        }
        let Cluster { topics, disk, leaving, .. } = self;
        let ready = topics.take_coming(|topic, partition| {
            disk.has_partition(topic, partition) && !leaving.has_files_of(Route { topic_id: topic.id, partition })
        });
        for (topic, partition, membership) in ready {
            self.create_member(core, now, &topic, partition, membership);
        }
    }

    fn create_member(
        &mut self,
        core: &mut CoreParts,
        now: Now,
        topic: &TopicRef,
        partition: PartitionId,
        membership: Membership,
    ) {
        let dir = Arc::new(PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition });
        let idx = core.store.create(now, dir.clone(), core.outbox.io());
        let seat = self.seat(topic, partition, None);
        core.store.await_agreement(idx);
        core.partitions.insert(idx, Partition::member(topic.clone(), dir, seat));
        core.topics.set_place(&topic.name, partition, idx);
        core.work.tell(idx, Event::Lease { until: self.lease.until() });
        if core.life.is_read_only() {
            core.work.tell(idx, Event::LogFailed);
        }
        core.work.tell(idx, Event::Metadata(membership));
    }

    /// Ends the use of a topic; its stored data stays. False: it was not in use.
    pub(super) fn on_topic_gone(&mut self, core: &mut CoreParts, topic: &TopicRef) -> bool {
        self.disk.end_wait(topic);
        if !self.topics.forget(topic.id) {
            return false;
        }
        self.peers.forget_leaders(topic.id);
        core.topics.properties.forget(topic.id);
        for idx in core.partitions.of_topic(topic.id) {
            if let Some(last) = core.partitions.get(idx).seat().and_then(|s| s.member.membership()) {
                let version = last.version.saturating_add(1);
                let (replicas, isr, joining) = Default::default();
                let nobody = Membership { version, leader: None, replicas, isr, joining, ..last.clone() };
                core.work.tell(idx, Event::Metadata(nobody));
            }
        }
        self.forget_topic(core, topic);
        true
    }

    fn forget_topic(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        self.forwards.refuse_waiting(core, &mut self.peers, Some(topic), PublishError::TopicNotExist);
        core.work.push(Work::EndSubscribers(topic.clone()));
        let waiters = core.topics.forget_shared(topic);
        core.outbox.tell_waiters(waiters, Err(PublishError::TopicNotExist));
    }
}

/// The logs and channels of the topic follow these from now on.
fn set_properties(core: &mut CoreParts, topic: &TopicRef, properties: TopicProperties) {
    let TopicProperties { retention_ms, retention_bytes, .. } = properties;
    core.topics.properties.set(topic.id, &properties);
    core.store.set_topic_retention(&topic.name, TopicSettings { retention_ms, retention_bytes });
    core.partitions.of_topic(topic.id).into_iter().for_each(|idx| core.store.look_at_retention(idx));
}
