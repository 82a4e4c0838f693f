//! An operator deletes a topic: its clients leave, its channels go with its messages.
//!
//! ```text
//! DeleteTopic ─> home ─ CloseTopic, forced ─> every core: its clients are disconnected, requests for the name wait; Leave once no
//!                  │                          publish and no change of a channel is under way
//!                  └─ TopicDelete durable: answered, and carried out as the removal of an ephemeral topic (shard/removal.rs)
//! ```
//! Acknowledged messages of the topic are deleted with it. A core that cannot write keeps the topic: the decision could not become
//! durable.

use super::outbox::LateAnswer;
use super::removal::{Asker, Removing};
use crate::base::{TopicName, TopicRef};
use crate::log::{PartitionIdx, Refusal};
use crate::seam::outcome::PublishError;

impl Removing<'_> {
    pub fn delete_topic(&mut self, name: &TopicName, asker: Asker) {
        let life = &self.core.life;
        let begun = match () {
            // The coordinator says which topics there are.
            () if self.cluster.is_some() => Err(PublishError::TopicNotExist),
            () if life.is_stopping() => Err(PublishError::Stopping),
            () if life.is_read_only() || self.core.topics.is_stuck(name) => Err(PublishError::ReadOnly),
            // On a full disk a deletion makes room, so it may use the journal's last bytes.
            () if self.core.store.check_change() == Err(Refusal::ReadOnly) => Err(PublishError::ReadOnly),
            () => self.begin_delete(name, asker),
        };
        if let Err(error) = begun {
            self.core.outbox.answer_askers(vec![asker], Err(error));
        }
    }

    /// Reason why a core keeps a topic.
    pub(super) fn why_kept(&self) -> PublishError {
        if self.core.life.is_stopping() { PublishError::Stopping } else { PublishError::ReadOnly }
    }

    /// Freezes the topic by force: no client on this core gets it from here on, and its users leave. False: the core cannot write.
    pub(super) fn freeze_forced(&mut self, topic: &TopicRef) -> bool {
        self.removals.force(topic.id);
        if self.is_in_use(topic) {
            self.removals.thaw(topic.id);
            return false;
        }
        match &mut self.cluster {
            Some(cluster) => cluster.retire_topic(self.core, topic),
            None => self.end_clients(topic),
        }
        self.freeze(topic)
    }

    pub fn end_clients(&mut self, topic: &TopicRef) {
        for idx in self.core.partitions.of_topic(topic.id) {
            self.core.partitions.channel_keys(idx).into_iter().for_each(|key| self.core.end_clients(key));
        }
        self.end_subscribers(topic);
        self.attaching.parked.forget_topic(topic.id);
    }

    /// The topic's NSQ clients of this core end, as nsqd's do; those whose SUB was not answered, too.
    pub fn end_subscribers(&mut self, topic: &TopicRef) {
        let subscribed = self.subs.iter().filter(|(_, s)| s.topic.id == topic.id);
        subscribed.for_each(|(conn, _)| self.core.outbox.tell(conn, LateAnswer::ChannelDeleted));
    }

    /// True if a change of one of the topic's channels, with a waiting client, is under way.
    pub fn changes_channels_of(&self, topic: &TopicRef) -> bool {
        self.core.syncs.is_any_of(topic.id)
            || self.operators.offsets.is_any_of(topic.id)
            || self.attaching.is_spreading(topic.id, None)
    }

    /// Closes the topic's partitions on this core for writing; their channels are gone.
    pub(super) fn close_partitions(&mut self, topic: &TopicRef) -> Vec<PartitionIdx> {
        let all = self.core.partitions.of_topic(topic.id);
        all.iter().for_each(|&idx| self.core.close_partition(idx));
        all
    }
}
