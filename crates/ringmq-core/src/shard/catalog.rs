//! Topics and channels of this core as they come and go, for discovery: told to the HTTP thread once per turn.
//!
//! Publishes and deliveries never come here: a change is the creation or the end of a topic or a channel.

use super::partitions::Partition;
use crate::base::topic::home_core;
use crate::base::{ChannelName, CoreId, TopicRef};
use crate::seam::message::CatalogChange;

#[derive(Debug)]
pub(super) struct Catalog {
    core: CoreId,
    cores: u16,
    /// Changes since the last turn.
    changes: Vec<CatalogChange>,
}

impl Catalog {
    pub fn new(core: CoreId, cores: u16) -> Self {
        Catalog { core, cores, changes: vec![] }
    }

    /// The topic is known from now on, or was found by recovery. The home core tells it.
    pub fn list_topic(&mut self, topic: &TopicRef, is_new: bool) {
        if home_core(&topic.name, self.cores) == self.core {
            self.changes.push(CatalogChange::Topic { topic: topic.clone(), is_new });
        }
    }

    pub fn unlist_topic(&mut self, topic: &TopicRef) {
        if home_core(&topic.name, self.cores) == self.core {
            self.changes.push(CatalogChange::TopicGone { topic: topic.clone() });
        }
    }

    pub(super) fn list_channel(&mut self, p: &Partition, channel: &ChannelName) {
        let (topic, partition) = (p.topic.clone(), p.dir.partition);
        self.changes.push(CatalogChange::Channel { topic, partition, channel: channel.clone() });
    }

    pub(super) fn unlist_channel(&mut self, p: &Partition, channel: &ChannelName) {
        let (topic, partition) = (p.topic.clone(), p.dir.partition);
        self.changes.push(CatalogChange::ChannelGone { topic, partition, channel: channel.clone() });
    }

    /// The changes since the last call, if there are any.
    pub(super) fn take(&mut self) -> Option<Vec<CatalogChange>> {
        if self.changes.is_empty() { None } else { Some(std::mem::take(&mut self.changes)) }
    }
}
