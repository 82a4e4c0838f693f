//! Partitions that are added to a topic. A partition begins with the channels that the topic had: its first publish waits until they are on
//! all in-sync replicas, so none of them misses a message.

use super::{Cluster, CoreParts};
use crate::base::{Now, TopicRef};
use crate::log::PartitionIdx;
use crate::seam::outcome::{PublishError, Unwritable};
use crate::shard::partitions::ChannelKey;

impl Cluster {
    /// The topic is known with fewer partitions.
    pub(super) fn grow_topic(&mut self, core: &mut CoreParts, topic: &TopicRef) {
        tracing::info!(topic = %topic.name, partitions = topic.partitions, "the topic has more partitions");
        self.topics.insert(topic.id, topic.clone());
        core.topics.grow(topic);
        for idx in core.partitions.of_topic(topic.id) {
            core.partitions.get_mut(idx).topic = topic.clone();
        }
    }

    /// Creates the channels with which the partition begins, before its first message. An error says that they are on their way.
    pub(super) fn begin_channels(&self, core: &mut CoreParts, now: Now, idx: PartitionIdx) -> Result<(), PublishError> {
        if self.added.is_empty() {
            return Ok(());
        }
        let p = core.partitions.get(idx);
        let Some((from, channels)) = self.added.get(&p.topic.id) else { return Ok(()) };
        if p.dir.partition.0 < *from || core.store.end(idx).count > 0 {
            return Ok(());
        }
        let mut is_ready = true;
        for name in channels.iter() {
            let key = match core.partitions.get(idx).channel(name) {
                Some(channel) => ChannelKey { partition: idx.0, channel },
                None => match core.channels().create(now, idx, name.clone(), None, None, false) {
                    Ok(channel) => ChannelKey { partition: idx.0, channel },
                    // The limit was lowered since.
                    Err(PublishError::TooManyChannels) => continue,
                    Err(error) => return Err(error),
                },
            };
            let created = core.channels().make_certain(key);
            is_ready &= !core.syncs.is_pending(created);
        }
        if is_ready { Ok(()) } else { Err(PublishError::NotWritable(Unwritable::Opening)) }
    }
}
