//! A topic that the cluster deleted: its tombstone in the metadata removes what this node has of it, as [`removal`](crate::shard::removal)
//! does at a lone node.
//!
//! ```text
//! every core    TopicDeleted: clients leave, publishers are told, nobody leads
//! home core     is the topic recorded on this disk? CloseTopic ─> every core: its replicas are retired; Leave once nothing is under way
//!               ─> TopicDelete durable (the decision) ─> files go ─> another topic of the name, which waited, is recorded
//! ```
//! A node that cannot remove it now, or is killed before the decision is durable, hears of the tombstone at its next startup. A key that is
//! missing removes nothing.

use super::{Cluster, Engine};
use crate::base::topic::home_core;
use crate::base::{Now, TopicId, TopicName, TopicRef};
use crate::codec::peer::message::Route;
use crate::log::PartitionIdx;
use crate::seam::cluster::Ask;
use crate::seam::event::Effect;
use std::collections::{BTreeMap, BTreeSet};

/// Topics whose names another topic has on the disk, and topics that go once their own record is durable; kept at their home core.
#[derive(Debug, Default)]
pub struct Deletions {
    /// Topics of the cluster of which this node has replicas, by the name that is not free yet.
    waiting: BTreeMap<TopicName, TopicRef>,
    /// Topics that were deleted while their record was on its way to the journal.
    doomed: BTreeSet<TopicId>,
}

impl Cluster {
    /// The topic is recorded when its name is free.
    pub(super) fn wait_for_name(&mut self, topic: &TopicRef) {
        self.deletions.waiting.insert(topic.name.clone(), topic.clone());
    }

    /// The topic needs no record any more.
    pub(super) fn end_wait_for_name(&mut self, topic: &TopicRef) {
        if self.deletions.waiting.get(&topic.name).is_some_and(|t| t.id == topic.id) {
            self.deletions.waiting.remove(&topic.name);
        }
    }

    /// Takes note that the disk has the topic no more.
    fn unrecord(&mut self, topic: &TopicRef) {
        if self.has_recorded(topic) {
            self.recorded.remove(&topic.name);
        }
    }
}

impl Engine {
    /// The metadata has a tombstone of the topic.
    pub(super) fn on_topic_deleted(&mut self, now: Now, topic: &TopicRef) {
        self.leave_topic(now, topic);
        if home_core(&topic.name, self.cores) != self.core {
            return;
        }
        let cluster = self.cluster_mut();
        if cluster.recording.iter().any(|(_, t)| t.id == topic.id) {
            cluster.deletions.doomed.insert(topic.id);
        } else if cluster.has_recorded(topic) {
            self.remove_of_cluster(now, topic);
        }
    }

    /// The topic's record is durable. True: it was deleted meanwhile.
    pub(super) fn is_doomed(&mut self, topic: &TopicRef) -> bool {
        self.cluster_mut().deletions.doomed.remove(&topic.id)
    }

    pub(super) fn remove_of_cluster(&mut self, now: Now, topic: &TopicRef) {
        if !self.close_deleted(now, topic) {
            tracing::warn!(
                topic = %topic.name, id = %topic.id,
                "the deleted topic stays on the disk until the next startup: this core takes no write, or a file of the topic has failed"
            );
        }
    }

    /// Ends all use of the topic on this core; its replicas here follow and lead nobody.
    pub(in crate::shard) fn leave_topic(&mut self, now: Now, topic: &TopicRef) {
        self.end_clients(now, topic);
        self.on_topic_gone(now, topic);
    }

    /// Retires this core's replicas of the topic: they decide nothing more.
    pub(in crate::shard) fn retire_replicas(&mut self, now: Now, topic: &TopicRef) {
        for idx in self.partitions.of_topic(topic.id) {
            self.retire(idx);
        }
        let cluster = self.cluster_mut();
        cluster.refused.retain(|(_, route), _| route.topic_id != topic.id);
        self.retry_waiting(now);
    }

    /// Retires the partition's replica: it decides nothing more.
    pub(super) fn retire(&mut self, idx: PartitionIdx) {
        let p = self.partitions.get_mut(idx);
        let route = Route { topic_id: p.topic.id, partition: p.dir.partition };
        let Some(seat) = p.retire() else { return };
        if seat.is_told_suspect {
            self.outbox.push(Effect::Ask(Ask::Doubt { route, is_suspect: false }));
        }
        let cluster = self.cluster_mut();
        cluster.places.remove(&route);
        cluster.uncommitted -= seat.uncommitted;
        cluster.records.retain(|(_, of, _)| *of != idx);
        cluster.readings.retain(|_, reading| reading.idx != idx);
        cluster.grown.retain(|of| *of != idx);
    }

    /// Notes that nothing of the topic is left on this core.
    pub(in crate::shard) fn part_is_gone(&mut self, topic: &TopicRef) {
        if let Some(cluster) = &mut self.cluster
            && home_core(&topic.name, self.cores) != self.core
        {
            cluster.unrecord(topic);
        }
    }

    /// Frees a name at the home core: nothing of the topic is left on the disk, and another topic may take its name.
    pub(in crate::shard) fn name_is_free(&mut self, now: Now, topic: &TopicRef) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.unrecord(topic);
        if let Some(next) = cluster.deletions.waiting.remove(&topic.name) {
            self.record_topic(now, &next);
        }
    }
}
