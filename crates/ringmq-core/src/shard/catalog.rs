//! What there is on this core, for discovery: topics and channels as they come and go, told to the HTTP thread once per turn.
//!
//! Publishes and deliveries never come here: a change is the creation or the end of a topic or a channel.

use super::engine::Engine;
use crate::base::topic::home_core;
use crate::base::{ChannelName, CoreId, TopicRef};
use crate::log::PartitionIdx;

use crate::seam::message::CatalogChange;
use crate::seam::message::MeshMessage;

/// Changes since the last turn.
#[derive(Debug, Default)]
pub struct Catalog(Vec<CatalogChange>);

impl Engine {
    /// The topic is known from now on, or was found by recovery. The home core tells it.
    pub(super) fn list_topic(&mut self, topic: &TopicRef, is_new: bool) {
        if home_core(&topic.name, self.cores) == self.core {
            self.catalog.0.push(CatalogChange::Topic { topic: topic.clone(), is_new });
        }
    }

    pub(super) fn unlist_topic(&mut self, topic: &TopicRef) {
        if home_core(&topic.name, self.cores) == self.core {
            self.catalog.0.push(CatalogChange::TopicGone { topic: topic.clone() });
        }
    }

    pub(super) fn list_channel(&mut self, idx: PartitionIdx, channel: &ChannelName) {
        let p = self.partitions.get(idx);
        let (topic, partition) = (p.topic.clone(), p.dir.partition);
        self.catalog.0.push(CatalogChange::Channel { topic, partition, channel: channel.clone() });
    }

    pub(super) fn unlist_channel(&mut self, idx: PartitionIdx, channel: &ChannelName) {
        let p = self.partitions.get(idx);
        let (topic, partition) = (p.topic.clone(), p.dir.partition);
        self.catalog.0.push(CatalogChange::ChannelGone { topic, partition, channel: channel.clone() });
    }

    pub(super) fn tell_catalog(&mut self) {
        if !self.catalog.0.is_empty() {
            let changes = std::mem::take(&mut self.catalog.0);
            self.outbox.pass(CoreId::HTTP, MeshMessage::Catalog { changes });
        }
    }
}
