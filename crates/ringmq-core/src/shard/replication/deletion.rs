//! A topic that the cluster deleted: its tombstone in the metadata removes this node's files of it, as
//! [`removal`](crate::shard::removal) does on a stand-alone node.
//!
//! ```text
//! every core    TopicDeleted: clients leave, publishers are told, no replica leads
//! home core     is the topic recorded on this disk? CloseTopic ─> every core: its replicas are retired; Leave once nothing is under way
//!               ─> TopicDelete durable (the decision) ─> files go ─> another topic of the name, which waited, is recorded
//! ```
//! A node that cannot remove it now, or is killed before the decision is durable, hears of the tombstone at its next startup. A key that is
//! missing removes nothing.

use super::{Cluster, CoreParts, Work};
use crate::base::{Now, TopicId, TopicName, TopicRef};
use crate::codec::peer::message::Route;
use crate::log::PartitionIdx;
use crate::seam::cluster::Ask;
use std::collections::{BTreeMap, BTreeSet};

/// Topics whose names another topic has on the disk, and topics that go once their own record is durable; kept at their home core.
#[derive(Debug, Default)]
pub struct Deletions {
    /// Topics of the cluster of which this node has replicas, by the name that is not free yet.
    waiting: BTreeMap<TopicName, TopicRef>,
    /// Topics that were deleted while their record was on its way to the journal.
    doomed: BTreeSet<TopicId>,
    /// Deleted topics that the disk still has.
    removing: BTreeSet<TopicId>,
}

impl Deletions {
    /// The topic's record is durable. True: it was deleted meanwhile.
    pub(super) fn is_doomed(&mut self, topic: &TopicRef) -> bool {
        self.doomed.remove(&topic.id)
    }

    /// Whether a topic that the disk has goes.
    pub(super) fn is_removing(&self, topic: TopicId) -> bool {
        self.removing.contains(&topic)
    }
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
        self.deletions.removing.remove(&topic.id);
        if self.has_recorded(topic) {
            self.recorded.remove(&topic.name);
        }
    }

    /// The metadata has a tombstone of the topic.
    pub(super) fn on_topic_deleted(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        self.leave_topic(core, topic);
        if !core.is_home_of(topic) {
            return;
        }
        if self.recording.iter().any(|(_, t)| t.id == topic.id) {
            self.deletions.doomed.insert(topic.id);
        } else if self.has_recorded(topic) {
            self.work.push_back(Work::Remove(topic.clone()));
        }
    }

    /// The removal of a deleted topic has begun, or cannot begin.
    pub(super) fn note_removing(&mut self, topic: &TopicRef, has_begun: bool) {
        if has_begun {
            self.deletions.removing.insert(topic.id);
            return;
        }
        tracing::warn!(
            topic = %topic.name, id = %topic.id,
            "the deleted topic stays on the disk until the next startup: this core takes no write, or a file of the topic has failed"
        );
    }

    /// Ends all use of the topic on this core; its replicas decide nothing more.
    pub(in crate::shard) fn retire_topic(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        self.leave_topic(core, topic);
        self.work.push_back(Work::Retire(topic.clone()));
    }

    /// Ends all use of the topic on this core; its replicas here neither follow nor lead.
    fn leave_topic(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        self.work.push_back(Work::EndClients(topic.clone()));
        self.on_topic_gone(core, topic);
    }

    /// Retires this core's replicas of the topic: they decide nothing more.
    pub(super) fn retire_replicas(&mut self, core: &mut CoreParts, topic: TopicId) {
        core.partitions.of_topic(topic).into_iter().for_each(|idx| self.retire(core, idx));
        self.refused.retain(|(_, route), _| route.topic_id != topic);
        self.work.push_back(Work::Retry);
    }

    /// Retires the partition's replica: it decides nothing more.
    pub(super) fn retire(&mut self, core: &mut CoreParts, idx: PartitionIdx) {
        let p = core.partitions.get_mut(idx);
        let route = Route { topic_id: p.topic.id, partition: p.dir.partition };
        let Some(seat) = p.retire() else { return };
        if seat.is_told_suspect {
            core.outbox.ask(Ask::Doubt { route, is_suspect: false });
        }
        self.places.remove(&route);
        self.uncommitted -= seat.uncommitted;
        self.records.retain(|(_, of, _)| *of != idx);
        self.readings.retain(|_, reading| reading.idx != idx);
        self.grown.retain(|of| *of != idx);
    }

    /// Notes that nothing of the topic is left on this core.
    pub(in crate::shard) fn part_is_gone(&mut self, core: &CoreParts, topic: &TopicRef) {
        if !core.is_home_of(topic) {
            self.unrecord(topic);
        }
    }

    /// Frees a name at the home core: nothing of the topic is left on the disk, and another topic may take its name.
    pub(in crate::shard) fn name_is_free(&mut self, core: &mut CoreParts, now: Now, topic: &TopicRef) {
        self.unrecord(topic);
        if let Some(next) = self.deletions.waiting.remove(&topic.name) {
            self.record_topic(core, now, &next);
        }
    }
}
