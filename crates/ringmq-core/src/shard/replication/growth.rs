//! Partitions that are added to a topic. A partition begins with the channels that the topic had: its first publish waits until they are on
//! all in-sync replicas, so none of them misses a message.

use super::CoreParts;
use super::known::KnownTopics;
use crate::base::Now;
use crate::codec::peer::message::Route;
use crate::log::PartitionIdx;
use crate::seam::outcome::{PublishError, Unwritable};
use crate::shard::partitions::ChannelKey;

/// Creates the channels with which the partition begins, before its first message. An error says that they are on their way.
pub(super) fn begin_channels(
    topics: &KnownTopics,
    core: &mut CoreParts,
    now: Now,
    idx: PartitionIdx,
) -> Result<(), PublishError> {
    let p = core.partitions.get(idx);
    let route = Route { topic_id: p.topic.id, partition: p.dir.partition };
    let Some(channels) = topics.first_channels(route).filter(|_| core.store.end(idx).count == 0) else { return Ok(()) };
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
