//! Partitions that are added to a topic. A partition begins with the channels that the topic had: its first publish waits until they are on
//! all in-sync replicas, so none of them misses a message.

use super::Engine;
use crate::base::{Now, TopicRef};
use crate::log::PartitionIdx;
use crate::seam::outcome::{PublishError, Unwritable};
use crate::shard::partitions::ChannelKey;

impl Engine {
    /// The topic is known with fewer partitions.
    pub(super) fn grow_topic(&mut self, topic: &TopicRef) {
        tracing::info!(topic = %topic.name, partitions = topic.partitions, "the topic has more partitions");
        self.cluster_mut().topics.insert(topic.id, topic.clone());
        self.topics.grow(topic);
        for idx in self.partitions.of_topic(topic.id) {
            self.partitions.get_mut(idx).topic = topic.clone();
        }
    }

    /// Creates the channels with which the partition begins, before its first message. An error says that they are on their way.
    pub(super) fn begin_channels(&mut self, now: Now, idx: PartitionIdx) -> Result<(), PublishError> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        if cluster.added.is_empty() {
            return Ok(());
        }
        let p = self.partitions.get(idx);
        let Some((from, channels)) = cluster.added.get(&p.topic.id) else { return Ok(()) };
        if p.dir.partition.0 < *from || self.store.end(idx).count > 0 {
            return Ok(());
        }
        let mut is_ready = true;
        for name in channels.clone().iter() {
            let key = match self.partitions.get(idx).channel(name) {
                Some(channel) => ChannelKey { partition: idx.0, channel },
                None => match self.channels().create(now, idx, name.clone(), None, None, false) {
                    Ok(channel) => ChannelKey { partition: idx.0, channel },
                    // The limit was lowered since.
                    Err(PublishError::TooManyChannels) => continue,
                    Err(error) => return Err(error),
                },
            };
            let created = self.channels().make_certain(key);
            is_ready &= !self.syncs.is_pending(created);
        }
        if is_ready { Ok(()) } else { Err(PublishError::NotWritable(Unwritable::Opening)) }
    }
}
