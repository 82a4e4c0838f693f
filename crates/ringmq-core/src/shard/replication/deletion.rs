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
use crate::base::{Now, TopicId, TopicRef};
use crate::log::PartitionIdx;
use crate::seam::cluster::Ask;

impl Cluster {
    /// The metadata has a tombstone of the topic.
    pub(super) fn on_topic_deleted(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        self.leave_topic(core, topic);
        if core.is_home_of(topic) && self.disk.delete(topic) {
            core.work.push(Work::Remove(topic.clone()));
        }
    }

    /// The removal of a deleted topic has begun, or cannot begin.
    pub(super) fn note_removing(&mut self, topic: &TopicRef, has_begun: bool) {
        if has_begun {
            return self.disk.removing(topic);
        }
        tracing::warn!(
            topic = %topic.name, id = %topic.id,
            "the deleted topic stays on the disk until the next startup: this core takes no write, or a file of the topic has failed"
        );
    }

    /// Ends all use of the topic on this core; its replicas decide nothing more.
    pub(in crate::shard) fn retire_topic(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        self.leave_topic(core, topic);
        core.work.push(Work::Retire(topic.clone()));
    }

    /// Ends all use of the topic on this core; its replicas here neither follow nor lead.
    fn leave_topic(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        core.work.push(Work::EndClients(topic.clone()));
        self.on_topic_gone(core, topic);
    }

    /// Retires this core's replicas of the topic: they decide nothing more.
    pub(super) fn retire_replicas(&mut self, core: &mut CoreParts, topic: TopicId) {
        core.partitions.of_topic(topic).into_iter().for_each(|idx| self.retire(core, idx));
        self.forwards.forget_refusals(topic);
        core.work.push(Work::Retry);
    }

    /// Retires the partition's replica: it decides nothing more.
    fn retire(&mut self, core: &mut CoreParts, idx: PartitionIdx) {
        let Some(seat) = core.partitions.retire(idx) else { return };
        if seat.is_told_suspect {
            core.outbox.ask(Ask::Doubt { route: seat.member.route(), is_suspect: false });
        }
        self.uncommitted -= seat.uncommitted;
        self.store_work.forget(idx);
        self.grown.retain(|of| *of != idx);
    }

    /// The replica has moved to other nodes, and leaves: its files go once that is durable.
    pub(super) fn leave(&mut self, core: &mut CoreParts, idx: PartitionIdx) {
        self.retire(core, idx);
        self.leaving.begin(core, idx);
    }

    /// The store has removed the partition's files, or could not.
    pub(in crate::shard) fn partition_removed(&mut self, core: &mut CoreParts, now: Now, idx: PartitionIdx, is_gone: bool) {
        if self.leaving.end(idx, is_gone) {
            self.create_coming(core, now);
        }
    }

    /// Notes that nothing of the topic is left on this core.
    pub(in crate::shard) fn part_is_gone(&mut self, core: &CoreParts, topic: &TopicRef) {
        if !core.is_home_of(topic) {
            self.disk.gone(topic);
        }
    }

    /// Frees a name at the home core: nothing of the topic is left on the disk, and another topic may take its name.
    pub(in crate::shard) fn name_is_free(&mut self, core: &mut CoreParts, now: Now, topic: &TopicRef) {
        if let Some(next) = self.disk.free(topic) {
            self.record_topic(core, now, &next);
        }
    }
}
