//! An operator deletes a topic: its clients leave, its channels go with its messages.
//!
//! ```text
//! DeleteTopic ─> home ─ CloseTopic, forced ─> every core: its clients are disconnected, who wants the name waits; Leave once no
//!                  │                          publish and no change of a channel is under way
//!                  └─ TopicDelete durable: answered, and carried out as the removal of an ephemeral topic (shard/removal.rs)
//! ```
//! What was acknowledged of the topic before goes with it. A core that cannot write keeps the topic: nothing would make the decision
//! durable.

use super::engine::Engine;
use super::outbox::LateAnswer;
use super::removal::Asker;
use crate::base::{Now, TopicName, TopicRef};
use crate::log::PartitionIdx;
use crate::seam::outcome::PublishError;

impl Engine {
    pub(super) fn delete_topic(&mut self, now: Now, name: &TopicName, asker: Asker) {
        let begun = match () {
            // The coordinator says which topics there are.
            () if self.is_clustered() => Err(PublishError::TopicNotExist),
            () if self.life.is_stopping() => Err(PublishError::Stopping),
            () if self.life.is_read_only() || self.topics.is_stuck(name) => Err(PublishError::ReadOnly),
            () => self.begin_delete(now, name, asker),
        };
        if let Err(error) = begun {
            self.answer_askers(vec![asker], Err(error));
        }
    }

    /// Reason why a core keeps a topic.
    pub(super) fn why_kept(&self) -> PublishError {
        if self.life.is_stopping() { PublishError::Stopping } else { PublishError::ReadOnly }
    }

    /// Freezes the topic by force: nobody on this core gets it from here on, and its users leave. False: the core cannot write.
    pub(super) fn freeze_forced(&mut self, now: Now, topic: &TopicRef) -> bool {
        self.removals.forced.insert(topic.id);
        if self.is_in_use(topic) {
            self.removals.forced.remove(&topic.id);
            return false;
        }
        if self.is_clustered() {
            self.in_cluster(now, |c, core| c.retire_topic(core, topic));
        } else {
            self.end_clients(now, topic);
        }
        self.freeze(topic)
    }

    pub(super) fn end_clients(&mut self, now: Now, topic: &TopicRef) {
        for idx in self.partitions.of_topic(topic.id) {
            for key in self.partitions.channel_keys(idx) {
                self.lend().0.end_clients(now, key);
            }
        }
        self.end_subscribers(topic);
        self.attaching.parked.forget_topic(topic.id);
    }

    /// The topic's NSQ clients of this core end, as nsqd's do; those whose SUB was not answered, too.
    pub(super) fn end_subscribers(&mut self, topic: &TopicRef) {
        let subscribed = self.subs.iter().filter(|(_, s)| s.topic.id == topic.id);
        subscribed.for_each(|(conn, _)| self.outbox.tell(conn, LateAnswer::ChannelDeleted));
    }

    /// A change of one of its channels, for which somebody waits, is under way.
    pub(super) fn changes_channels_of(&self, topic: &TopicRef) -> bool {
        self.syncs.is_any_of(topic.id)
            || self.operators.offsets.is_any_of(topic.id)
            || self.attaching.is_spreading(topic.id, None)
    }

    /// Closes the topic's partitions on this core for writing; their channels are gone.
    pub(super) fn close_partitions(&mut self, now: Now, topic: &TopicRef) -> Vec<PartitionIdx> {
        let all = self.partitions.of_topic(topic.id);
        let (mut core, _) = self.lend();
        all.iter().for_each(|&idx| core.close_partition(now, idx));
        all
    }
}
