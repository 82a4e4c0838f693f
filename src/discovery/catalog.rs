//! The topics and channels that the node announces. Plain state: no socket, no clock.
//!
//! A stand-alone node announces every topic, and a channel while any partition has it. A node of a cluster announces the topics and
//! channels of the partitions that it serves. Entries are kept by topic id: cores tell in their own order, and a name may come back with
//! another id.

use crate::base::{ChannelName, PartitionId, TopicId, TopicName, TopicRef};
use crate::seam::message::CatalogChange;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
struct ListedTopic {
    /// True once the topic's home core has reported it.
    is_listed: bool,
    serves: BTreeSet<PartitionId>,
    channels: BTreeMap<ChannelName, BTreeSet<PartitionId>>,
}

#[derive(Debug)]
pub struct Catalog {
    is_clustered: bool,
    topics: BTreeMap<TopicName, BTreeMap<TopicId, ListedTopic>>,
    announced: BTreeMap<TopicName, BTreeSet<ChannelName>>,
}

impl Catalog {
    pub fn new(is_clustered: bool) -> Self {
        Catalog { is_clustered, topics: BTreeMap::new(), announced: BTreeMap::new() }
    }

    /// Answers the topic whose announcement is another one now.
    pub fn apply(&mut self, change: CatalogChange) -> Option<TopicName> {
        let topic = match change {
            CatalogChange::Topic { topic, .. } => {
                self.entry(&topic).is_listed = !self.is_clustered;
                topic
            }
            CatalogChange::TopicGone { topic } => {
                if let Some(of_name) = self.topics.get_mut(&topic.name) {
                    of_name.remove(&topic.id);
                }
                topic
            }
            CatalogChange::Channel { topic, partition, channel } => {
                self.entry(&topic).channels.entry(channel).or_default().insert(partition);
                topic
            }
            // An unknown topic has nothing to take away: it went before.
            CatalogChange::ChannelGone { topic, partition, channel } => {
                let entry = self.topics.get_mut(&topic.name).and_then(|of_name| of_name.get_mut(&topic.id));
                if let Some(entry) = entry
                    && let Some(partitions) = entry.channels.get_mut(&channel)
                {
                    partitions.remove(&partition);
                    if partitions.is_empty() {
                        entry.channels.remove(&channel);
                    }
                }
                topic
            }
        };
        self.announce(&topic.name)
    }

    /// Records whether this node of a cluster serves the partition.
    pub fn set_serves(&mut self, topic: &TopicRef, partition: PartitionId, serves: bool) -> Option<TopicName> {
        let entry = self.entry(topic);
        if serves {
            entry.serves.insert(partition);
        } else {
            entry.serves.remove(&partition);
        }
        self.announce(&topic.name)
    }

    /// The channels to announce with the topic; `None` when the topic is not to be announced.
    pub fn announced(&self, name: &TopicName) -> Option<&BTreeSet<ChannelName>> {
        self.announced.get(name)
    }

    /// Channels of the topic on this node: of one partition, or of all; of the partitions that the node serves, or of all its replicas.
    pub fn channels(&self, name: &str, partition: Option<PartitionId>, is_served: bool) -> BTreeSet<String> {
        let entries = self.topics.get(name).into_iter().flat_map(BTreeMap::values);
        let has = |entry: &ListedTopic, partitions: &BTreeSet<PartitionId>| {
            let is_asked = |p: &PartitionId| partition.is_none_or(|asked| asked == *p);
            partitions.iter().any(|p| is_asked(p) && (!is_served || entry.serves.contains(p)))
        };
        let channels = entries.flat_map(|entry| entry.channels.iter().filter(move |(_, partitions)| has(entry, partitions)));
        channels.map(|(channel, _)| channel.to_string()).collect()
    }

    pub fn names(&self) -> impl Iterator<Item = &TopicName> {
        self.announced.keys()
    }

    fn entry(&mut self, topic: &TopicRef) -> &mut ListedTopic {
        self.topics.entry(topic.name.clone()).or_default().entry(topic.id).or_default()
    }

    fn announce(&mut self, name: &TopicName) -> Option<TopicName> {
        let entries = self.topics.get(name).into_iter().flat_map(BTreeMap::values);
        let mut shown: Option<BTreeSet<ChannelName>> = None;
        for entry in entries.filter(|entry| entry.is_listed || !entry.serves.is_empty()) {
            let has = |partitions: &BTreeSet<PartitionId>| !self.is_clustered || !partitions.is_disjoint(&entry.serves);
            let channels = entry.channels.iter().filter(|(_, partitions)| has(partitions)).map(|(name, _)| name.clone());
            shown.get_or_insert_default().extend(channels);
        }
        if self.topics.get(name).is_some_and(BTreeMap::is_empty) {
            self.topics.remove(name);
        }
        if self.announced.get(name) == shown.as_ref() {
            return None;
        }
        match shown {
            Some(channels) => drop(self.announced.insert(name.clone(), channels)),
            None => drop(self.announced.remove(name)),
        }
        Some(name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicInfo;

    fn topic(name: &str, id: u8) -> TopicRef {
        TopicRef::new(TopicInfo { name: TopicName::new(name).unwrap(), id: TopicId([id; 16]), partitions: 4 })
    }

    fn channel(topic: &TopicRef, partition: u16, name: &str) -> (TopicRef, PartitionId, ChannelName) {
        (topic.clone(), PartitionId(partition), ChannelName::new(name).unwrap())
    }

    fn comes((topic, partition, channel): (TopicRef, PartitionId, ChannelName)) -> CatalogChange {
        CatalogChange::Channel { topic, partition, channel }
    }

    fn goes((topic, partition, channel): (TopicRef, PartitionId, ChannelName)) -> CatalogChange {
        CatalogChange::ChannelGone { topic, partition, channel }
    }

    fn shown(catalog: &Catalog) -> String {
        let one = |name: &TopicName| {
            let channels = catalog.announced(name).unwrap().iter().map(ChannelName::as_str).collect::<Vec<_>>().join(",");
            format!("{name}:{channels}")
        };
        catalog.names().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_channel_is_announced_while_any_partition_has_it() {
        let (mut catalog, t) = (Catalog::new(false), topic("t", 1));
        assert_eq!(catalog.apply(comes(channel(&t, 1, "c"))), None, "its topic's home has not told of it yet");
        assert_eq!(catalog.apply(CatalogChange::Topic { topic: t.clone(), is_new: true }), Some(t.name.clone()));
        assert_eq!(shown(&catalog), "t:c");
        assert_eq!(catalog.apply(comes(channel(&t, 0, "c"))), None);
        assert_eq!(catalog.apply(goes(channel(&t, 1, "c"))), None);
        assert_eq!(catalog.apply(goes(channel(&t, 0, "c"))), Some(t.name.clone()));
        assert_eq!(shown(&catalog), "t:");
        assert_eq!(catalog.apply(CatalogChange::TopicGone { topic: t.clone() }), Some(t.name.clone()));
        assert_eq!(catalog.apply(goes(channel(&t, 0, "c"))), None);
        assert_eq!((shown(&catalog), catalog.topics.len()), (String::new(), 0), "nothing is kept of it");
    }

    #[test]
    fn a_name_that_comes_back_is_another_topic() {
        let (mut catalog, old, new) = (Catalog::new(false), topic("t", 1), topic("t", 2));
        catalog.apply(CatalogChange::Topic { topic: old.clone(), is_new: false });
        catalog.apply(comes(channel(&old, 0, "c")));
        // Another core is ahead of the home.
        catalog.apply(comes(channel(&new, 1, "d")));
        assert_eq!(shown(&catalog), "t:c");
        catalog.apply(CatalogChange::TopicGone { topic: old });
        assert_eq!(shown(&catalog), "");
        catalog.apply(CatalogChange::Topic { topic: new, is_new: true });
        assert_eq!(shown(&catalog), "t:d");
    }

    #[test]
    fn a_node_of_a_cluster_announces_what_it_serves() {
        let (mut catalog, t) = (Catalog::new(true), topic("t", 1));
        catalog.apply(comes(channel(&t, 0, "c")));
        catalog.apply(comes(channel(&t, 1, "d")));
        assert_eq!(shown(&catalog), "");
        catalog.set_serves(&t, PartitionId(1), true);
        assert_eq!(shown(&catalog), "t:d");
        let channels = |partition: Option<u16>, is_served| {
            catalog.channels("t", partition.map(PartitionId), is_served).into_iter().collect::<Vec<_>>().join(",")
        };
        assert_eq!((channels(None, true), channels(None, false)), ("d".into(), "c,d".into()));
        assert_eq!((channels(Some(0), true), channels(Some(0), false)), ("".into(), "c".into()));
        assert!(catalog.channels("u", None, false).is_empty());
        catalog.set_serves(&t, PartitionId(0), true);
        catalog.set_serves(&t, PartitionId(1), false);
        assert_eq!(shown(&catalog), "t:c");
        catalog.set_serves(&t, PartitionId(0), false);
        assert_eq!(shown(&catalog), "");
    }
}
