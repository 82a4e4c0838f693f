//! State of the catalog that one nsqlookupd knows, and the changes to tell it. Plain state.
//!
//! A topic that changed is remembered by its name alone, and compared with the catalog when there is a connection: a topic that came and
//! went meanwhile is never told, and an nsqlookupd that is away costs only the names.

use super::catalog::Catalog;
use crate::base::{ChannelName, TopicName};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct Announced {
    topics: BTreeMap<TopicName, BTreeSet<ChannelName>>,
    changed: BTreeSet<TopicName>,
}

impl Announced {
    /// A new connection knows nothing.
    pub fn restart(&mut self, catalog: &Catalog) {
        self.topics.clear();
        self.changed = catalog.names().cloned().collect();
    }

    pub fn touch(&mut self, name: &TopicName) {
        self.changed.insert(name.clone());
    }

    /// The lines of the next changed topics, up to about `lines_max`; empty when everything was told. The lines count as told: a caller
    /// that cannot send them begins a new connection.
    pub fn next(&mut self, catalog: &Catalog, lines_max: usize) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.len() < lines_max
            && let Some(name) = self.changed.pop_first()
        {
            let (had, has) = (self.topics.remove(&name), catalog.announced(&name));
            let none = BTreeSet::new();
            let (before, after) = (had.as_ref().unwrap_or(&none), has.unwrap_or(&none));
            // A channel goes by its own name: with its topic alone an ephemeral one would stay.
            lines.extend(before.difference(after).map(|channel| format!("UNREGISTER {name} {channel}\n")));
            lines.extend(after.difference(before).map(|channel| format!("REGISTER {name} {channel}\n")));
            match (had.is_some(), has) {
                (true, None) => lines.push(format!("UNREGISTER {name}\n")),
                (false, Some(channels)) if channels.is_empty() => lines.push(format!("REGISTER {name}\n")),
                _ => {}
            }
            if let Some(channels) = has {
                self.topics.insert(name, channels.clone());
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{PartitionId, TopicId, TopicInfo, TopicRef};
    use crate::seam::message::CatalogChange;

    #[test]
    fn what_changed_is_told_once() {
        let topic = |name: &str| {
            TopicRef::new(TopicInfo { name: TopicName::new(name).unwrap(), id: TopicId([name.len() as u8; 16]), partitions: 1 })
        };
        let (t, u) = (topic("t"), topic("uu"));
        let channel = |topic: &TopicRef, comes: bool| {
            let (topic, partition, channel) = (topic.clone(), PartitionId(0), ChannelName::new("c").unwrap());
            match comes {
                true => CatalogChange::Channel { topic, partition, channel },
                false => CatalogChange::ChannelGone { topic, partition, channel },
            }
        };
        let (mut catalog, mut told) = (Catalog::new(false), Announced::default());
        let mut change = |told: &mut Announced, changes: Vec<CatalogChange>| -> Vec<String> {
            changes.into_iter().filter_map(|change| catalog.apply(change)).for_each(|name| told.touch(&name));
            let mut lines = Vec::new();
            while let more = told.next(&catalog, 1)
                && !more.is_empty()
            {
                lines.extend(more.into_iter().map(|line| line.trim_end().to_owned()));
            }
            lines
        };
        let listed = |topic: &TopicRef| CatalogChange::Topic { topic: topic.clone(), is_new: true };
        assert_eq!(change(&mut told, vec![listed(&t), channel(&t, true), listed(&u)]), ["REGISTER t c", "REGISTER uu"]);
        assert_eq!(change(&mut told, vec![channel(&u, true), channel(&u, false)]), [""; 0], "it came and went");
        assert_eq!(change(&mut told, vec![channel(&u, true)]), ["REGISTER uu c"]);
        assert_eq!(change(&mut told, vec![CatalogChange::TopicGone { topic: t.clone() }]), ["UNREGISTER t c", "UNREGISTER t"]);
        assert_eq!(change(&mut told, vec![channel(&u, false)]), ["UNREGISTER uu c"]);
        told.restart(&catalog);
        assert_eq!(told.next(&catalog, 9), ["REGISTER uu\n"], "a new connection is told everything");
    }
}
