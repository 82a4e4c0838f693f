//! Properties of topics that the cluster's metadata gives them. A node alone has none.

use crate::base::{IdMap, TopicId};
use crate::seam::cluster::TopicProperties;
use crate::seam::outcome::{OverLimit, PublishError};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct Properties {
    /// Topics whose channels are all ordered.
    ordered: BTreeSet<TopicId>,
    /// Topics whose channels operators create.
    registered: BTreeSet<TopicId>,
    /// Topics with limits of their own: bytes of a message, and milliseconds of a delay.
    limits: IdMap<TopicId, (Option<u64>, Option<u64>)>,
}

impl Properties {
    pub fn set(&mut self, topic: TopicId, properties: &TopicProperties) {
        self.forget(topic);
        if properties.ordered {
            self.ordered.insert(topic);
        }
        if properties.channels_by_operator {
            self.registered.insert(topic);
        }
        let limits = (properties.max_msg_size, properties.max_defer_ms);
        if limits != (None, None) {
            self.limits.insert(topic, limits);
        }
    }

    pub fn forget(&mut self, topic: TopicId) {
        self.ordered.remove(&topic);
        self.registered.remove(&topic);
        self.limits.remove(&topic);
    }

    /// Whether each subscription of the topic makes its channel ordered.
    pub fn orders_channels(&self, topic: TopicId) -> bool {
        self.ordered.contains(&topic)
    }

    /// Whether a subscription may create a channel of the topic.
    pub fn check_registered(&self, topic: TopicId) -> Result<(), PublishError> {
        if self.registered.contains(&topic) { Err(PublishError::NotRegistered) } else { Ok(()) }
    }

    /// Whether the topic's own limits allow a publish of these bodies.
    pub fn check_limits<'a>(
        &self,
        topic: TopicId,
        mut bodies: impl Iterator<Item = &'a [u8]>,
        delay_ms: u64,
    ) -> Result<(), OverLimit> {
        let Some((size, delay)) = self.limits.get(&topic) else { return Ok(()) };
        if let Some(max_ms) = delay.filter(|max| delay_ms > *max) {
            return Err(OverLimit::Delay { delay_ms, max_ms });
        }
        let Some(max) = *size else { return Ok(()) };
        let larger = bodies.find(|body| body.len() as u64 > max);
        larger.map_or(Ok(()), |body| Err(OverLimit::Message { bytes: body.len() as u64, max }))
    }

    /// Bytes of a message of the topic, at most; `node_max` is the node's own limit.
    pub fn max_msg_size(&self, topic: TopicId, node_max: u64) -> u64 {
        let of_topic = self.limits.get(&topic).and_then(|(size, _)| *size);
        of_topic.map_or(node_max, |max| max.min(node_max))
    }
}
