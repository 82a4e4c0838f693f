//! Topics of the metadata, with what waits for them: all of it goes with the topic.

use crate::base::{ChannelName, IdMap, PartitionId, TopicId, TopicRef};
use crate::codec::peer::message::Route;
use crate::seam::membership::Membership;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct KnownTopics {
    topics: IdMap<TopicId, TopicRef>,
    /// Topics that got more partitions: from which number on, and the channels with which these begin.
    added: IdMap<TopicId, (u16, Arc<[ChannelName]>)>,
    /// Partitions of this core that wait for their topic's record.
    coming: BTreeMap<(TopicId, PartitionId), Membership>,
}

impl KnownTopics {
    pub fn get(&self, id: TopicId) -> Option<&TopicRef> {
        self.topics.get(&id)
    }

    /// The topics of this name: of more than one the deletion may not have been told yet.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a TopicRef> {
        self.topics.values().filter(move |t| *t.name == *name)
    }

    /// Takes in a topic that is new, or has more partitions.
    pub fn insert(&mut self, topic: &TopicRef) {
        self.topics.insert(topic.id, topic.clone());
    }

    /// False: the topic was not known.
    pub fn forget(&mut self, topic: TopicId) -> bool {
        let is_known = self.topics.remove(&topic).is_some();
        if is_known {
            self.coming.retain(|(id, _), _| *id != topic);
            self.added.remove(&topic);
        }
        is_known
    }

    // ---- partitions that are added

    pub fn add_partitions(&mut self, topic: TopicId, from: u16, channels: Arc<[ChannelName]>) {
        self.added.insert(topic, (from, channels));
    }

    /// The channels with which the partition begins, if it was added.
    pub fn first_channels(&self, Route { topic_id, partition }: Route) -> Option<&Arc<[ChannelName]>> {
        self.added.get(&topic_id).filter(|(from, _)| partition.0 >= *from).map(|(_, channels)| channels)
    }

    // ---- partitions that come

    /// The partition waits for its topic's record if its replica is to be here by the newest metadata.
    pub fn expect(&mut self, route: Route, membership: Membership, is_mine: bool) {
        let at = (route.topic_id, route.partition);
        let known = self.coming.get(&at);
        if is_mine && known.is_none_or(|m| m.version < membership.version) {
            self.coming.insert(at, membership);
        } else if !is_mine && known.is_some_and(|m| m.version < membership.version) {
            self.coming.remove(&at);
        }
    }

    /// Takes the partitions that need not wait any more.
    pub fn take_coming(&mut self, is_ready: impl Fn(&TopicRef, PartitionId) -> bool) -> Vec<(TopicRef, PartitionId, Membership)> {
        let topics = &self.topics;
        let ready = self.coming.extract_if(.., |(id, partition), _| topics.get(id).is_some_and(|t| is_ready(t, *partition)));
        ready.filter_map(|((id, partition), m)| Some((topics.get(&id)?.clone(), partition, m))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, NodeId, TopicInfo, TopicName};

    fn topic(id: u8) -> TopicRef {
        Arc::new(TopicInfo { name: TopicName::new("t").unwrap(), id: TopicId([id; 16]), partitions: 2 })
    }

    fn route(id: u8, partition: u16) -> Route {
        Route { topic_id: TopicId([id; 16]), partition: PartitionId(partition) }
    }

    fn membership(version: u64) -> Membership {
        let nodes = || vec![NodeId([1; 16])];
        Membership {
            version,
            epoch: Epoch(1),
            leader: None,
            replicas: nodes(),
            isr: nodes(),
            joining: vec![],
            min_isr: 1,
            wanted: None,
            former: None,
            removals: 0,
            given_up: None,
        }
    }

    #[test]
    fn a_partition_waits_by_the_newest_metadata() {
        let mut known = KnownTopics::default();
        known.insert(&topic(1));
        known.expect(route(1, 0), membership(2), true);
        known.expect(route(1, 0), membership(1), false);
        known.expect(route(1, 1), membership(1), true);
        known.expect(route(1, 1), membership(2), false);
        assert!(known.take_coming(|_, _| false).is_empty());
        assert_eq!(known.take_coming(|_, _| true), [(topic(1), PartitionId(0), membership(2))]);
        assert!(known.take_coming(|_, _| true).is_empty());
    }

    #[test]
    fn what_waits_for_a_topic_goes_with_it() {
        let mut known = KnownTopics::default();
        [1, 2].iter().for_each(|id| known.insert(&topic(*id)));
        known.add_partitions(TopicId([1; 16]), 1, Arc::new([]));
        known.expect(route(1, 0), membership(1), true);
        assert!(known.first_channels(route(1, 1)).is_some() && known.first_channels(route(1, 0)).is_none());
        assert!(known.forget(TopicId([1; 16])) && !known.forget(TopicId([1; 16])));
        known.insert(&topic(1));
        assert!(known.first_channels(route(1, 1)).is_none() && known.take_coming(|_, _| true).is_empty());
        assert_eq!(known.named("t").count(), 2);
    }
}
