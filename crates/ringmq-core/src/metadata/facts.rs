//! Meaning of a change of the metadata for one node: facts for its cores, of the keys that changed and no others.

use super::keys::Key;
use super::record::{GoneRecord, TopicRecord};
use super::view::{Changed, View};
use crate::base::{ChannelName, NodeId, PartitionId, TopicId, TopicInfo, TopicRef};
use crate::seam::cluster::{ClusterNode, Fact, TopicProperties};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Facts that the cores of a node have.
#[derive(Debug)]
pub struct FactsTold {
    me: NodeId,
    /// Session of this node. The node does not lead partitions of its other sessions.
    session: Option<u64>,
    /// Sessions of this node up to this one are over.
    ended: u64,
    /// Number of this process among those that were registered as this node.
    process: u64,
    /// Whether this process has been registered, and no other one since. Otherwise its cores hear of no other node, so they have no
    /// link: another process may be this node.
    is_this_node: bool,
    topics: BTreeMap<TopicId, TopicRef>,
}

impl FactsTold {
    pub fn new(me: NodeId, process: u64) -> FactsTold {
        FactsTold { me, session: None, ended: 0, process, is_this_node: false, topics: BTreeMap::new() }
    }

    /// Facts about the changed keys, in an order in which each may be taken. The last one names the revision up to which all is told.
    pub fn facts(&mut self, view: &View, changed: &Changed, out: &mut Vec<Fact>) {
        let keys = &changed.keys;
        if keys.iter().any(|key| matches!(key, Key::Member(_))) {
            let was_this_node = self.is_this_node;
            self.is_this_node = view.member(self.me).map_or(was_this_node, |last| last.value.process == self.process);
            if was_this_node || self.is_this_node {
                out.push(Fact::Nodes(if self.is_this_node { nodes(view) } else { [].into() }));
            }
        }
        for key in keys {
            if let Key::Gone(id) = key {
                out.extend(self.deleted(view, *id));
            }
        }
        let mut partitions = BTreeSet::new();
        for key in keys {
            match key {
                Key::Topic(name) => {
                    let Some(entry) = view.topic(name).filter(|e| view.gone(e.value.info.id).is_none()) else { continue };
                    let (topic, record) = (entry.value.info.clone(), &entry.value.record);
                    let properties = record.properties;
                    let known = self.topics.insert(topic.id, topic.clone()).map(|known| known.partitions);
                    let is_new = known.is_none();
                    if known.is_none_or(|known| known < topic.partitions) {
                        // The topic's partitions were in the store before its own key.
                        partitions.extend(view.partitions_of(topic.id).map(|(number, _)| (topic.id, number)));
                        out.push(Fact::Topic(topic.clone()));
                        out.extend(grown(record));
                    }
                    if !is_new || properties != TopicProperties::default() {
                        out.push(Fact::TopicProperties { topic, properties });
                    }
                }
                Key::Partition(topic, number) => drop(partitions.insert((*topic, *number))),
                _ => {}
            }
        }
        out.extend(partitions.into_iter().filter_map(|at| self.partition(view, at)));
        out.push(Fact::Read { revision: view.read() });
    }

    /// A topic with a tombstone. The data path may have it from an earlier process, which is why the cores hear of every one.
    fn deleted(&mut self, view: &View, id: TopicId) -> Option<Fact> {
        let GoneRecord { name, partitions } = &view.gone(id)?.value;
        let known = self.topics.remove(&id);
        let topic = known.unwrap_or_else(|| Arc::new(TopicInfo { name: name.clone(), id, partitions: *partitions }));
        Some(Fact::TopicDeleted(topic))
    }

    /// Enters another session, or none: the node leads none of its former partitions any more.
    pub fn enter(&mut self, view: &View, session: Option<u64>, out: &mut Vec<Fact>) {
        if self.session == session {
            return;
        }
        self.ended = self.ended.max(self.session.unwrap_or(0)).max(session.map_or(0, |s| s.saturating_sub(1)));
        self.session = session;
        let mine = view.replicas_of(self.me).filter(|(topic, number)| {
            let leader = view.partition(*topic, *number).and_then(|e| e.value.leader);
            leader.is_some_and(|l| l.node == self.me)
        });
        out.extend(mine.filter_map(|at| self.partition(view, at)));
    }

    /// A partition's newest metadata. `None`: the topic is unknown, or this node leads it in a session that it does not know yet.
    pub fn partition(&self, view: &View, at: (TopicId, u16)) -> Option<Fact> {
        // A partition that is being added is told when the topic has it.
        let topic = self.topics.get(&at.0).filter(|topic| at.1 < topic.partitions)?.clone();
        let entry = view.partition(at.0, at.1)?;
        let mine = entry.value.leader.filter(|l| l.node == self.me && Some(l.session) != self.session);
        if mine.is_some_and(|l| l.session > self.ended) {
            return None;
        }
        let is_lost = mine.is_some();
        let membership = entry.value.membership(entry.mod_revision, is_lost);
        Some(Fact::Partition { topic, partition: PartitionId(at.1), membership })
    }
}

fn grown(record: &TopicRecord) -> Option<Fact> {
    let channels = record.channels.iter().filter_map(|name| ChannelName::new(name).ok()).collect();
    Some(Fact::TopicGrown { topic: record.id, from: record.grown_from?, channels })
}

/// Nodes of the cluster, also those whose lease is over: their peers know them when they come back.
fn nodes(view: &View) -> Arc<[ClusterNode]> {
    let text = |address: &Option<String>| address.as_deref().map(Arc::from);
    let node = |(id, e): (NodeId, &super::view::Entry<super::record::MemberRecord>)| ClusterNode {
        id,
        name: e.value.name.as_str().into(),
        peer_address: e.value.peer_address.as_str().into(),
        native_address: text(&e.value.native_address),
        tcp_address: text(&e.value.tcp_address),
        incarnation: e.value.incarnation,
    };
    view.members().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicName;
    use crate::metadata::keys::Layout;
    use crate::metadata::record::*;
    use crate::metadata::request::{Change, KeyValue, Listing};
    use crate::seam::membership::Membership;
    use bytes::Bytes;

    const TOPIC: TopicId = TopicId([9; 16]);

    fn n(b: u8) -> NodeId {
        NodeId([b; 16])
    }

    struct Rig {
        view: View,
        told: FactsTold,
        revision: u64,
    }

    impl Rig {
        fn new() -> Rig {
            Rig { view: View::new(Layout::new("c").unwrap(), 0), told: FactsTold::new(n(1), 7), revision: 0 }
        }

        fn put(&mut self, key: Key, value: Bytes) -> Vec<Fact> {
            self.revision += 1;
            let key = self.view.layout().key(&key);
            let kv = KeyValue { key, value, create_revision: self.revision, mod_revision: self.revision, lease: None };
            self.change(Change::Put(kv))
        }

        fn delete(&mut self, key: Key) -> Vec<Fact> {
            self.revision += 1;
            let (key, mod_revision) = (self.view.layout().key(&key), self.revision);
            self.change(Change::Deleted { key, mod_revision })
        }

        fn change(&mut self, change: Change) -> Vec<Fact> {
            let changed = self.view.watched([change]);
            let mut out = vec![];
            self.told.facts(&self.view, &changed, &mut out);
            assert!(matches!(out.pop(), Some(Fact::Read { revision }) if revision == self.revision));
            out
        }

        fn topic(&mut self) -> Vec<Fact> {
            let topic = TopicRecord::new(TOPIC, 1, 2, 1, Default::default());
            self.put(Key::Topic(TopicName::new("t").unwrap()), encode(&topic))
        }

        fn part(&mut self, epoch: u64, leader: (u8, u64)) -> Vec<Fact> {
            let leader = Some(Leader { node: n(leader.0), session: leader.1 });
            let record = PartitionRecord::new(epoch, leader, vec![n(1), n(2)], 2);
            self.put(Key::Partition(TOPIC, 0), encode(&record))
        }
    }

    fn membership(facts: &[Fact]) -> &Membership {
        match facts {
            [Fact::Partition { membership, .. }] | [Fact::Nodes(_), Fact::Partition { membership, .. }] => membership,
            other => panic!("one partition: {other:?}"),
        }
    }

    #[test]
    fn partitions_are_told_once_their_topic_is_there() {
        let mut rig = Rig::new();
        assert!(rig.part(1, (2, 5)).is_empty());
        let facts = rig.topic();
        assert!(matches!(&facts[..], [Fact::Topic(_), Fact::Partition { .. }]), "{facts:?}");
        let facts = rig.part(2, (2, 5));
        let m = membership(&facts);
        assert_eq!((m.epoch.0, m.leader, m.min_isr), ((1 << 63) + 2, Some(n(2)), 2));
    }

    #[test]
    fn properties_of_a_topic_are_told_when_there_are_some_and_when_they_change() {
        let mut rig = Rig::new();
        assert!(matches!(&rig.topic()[..], [Fact::Topic(_)]));
        let mut put = |properties| {
            let topic = TopicRecord::new(TOPIC, 1, 2, 1, properties);
            rig.put(Key::Topic(TopicName::new("t").unwrap()), encode(&topic))
        };
        let kept = TopicProperties { retention_ms: Some(7), ..TopicProperties::default() };
        assert!(matches!(&put(kept)[..], [Fact::TopicProperties { properties, .. }] if *properties == kept));
        let none = TopicProperties::default();
        assert!(matches!(&put(none)[..], [Fact::TopicProperties { properties, .. }] if *properties == none));
    }

    #[test]
    fn a_missing_key_deletes_nothing_and_a_tombstone_does() {
        let mut rig = Rig::new();
        rig.topic();
        rig.part(1, (2, 5));
        assert!(rig.delete(Key::Partition(TOPIC, 0)).is_empty());
        assert!(rig.delete(Key::Topic(TopicName::new("t").unwrap())).is_empty());
        let gone = encode(&GoneRecord { name: TopicName::new("t").unwrap(), partitions: 1 });
        assert!(matches!(&rig.put(Key::Gone(TOPIC), gone)[..], [Fact::TopicDeleted(t)] if t.id == TOPIC));
        // A name that is written again under a deleted id is not believed.
        assert!(rig.topic().is_empty());
    }

    #[test]
    fn a_partition_that_is_added_is_told_when_the_topic_has_it() {
        let mut rig = Rig::new();
        rig.topic();
        rig.part(1, (2, 5));
        let added = |epoch| {
            let leader = Some(Leader { node: n(2), session: 5 });
            encode(&PartitionRecord::new(epoch, leader, vec![n(1), n(2)], 2))
        };
        assert!(rig.put(Key::Partition(TOPIC, 1), added(1)).is_empty());
        let mut topic = TopicRecord::new(TOPIC, 2, 2, 1, Default::default());
        (topic.grown_from, topic.channels) = (Some(1), vec!["ch".into(), "no name of a channel".into()]);
        let facts = rig.put(Key::Topic(TopicName::new("t").unwrap()), encode(&topic));
        match &facts[..] {
            [
                Fact::Topic(t),
                Fact::TopicGrown { from: 1, channels, .. },
                Fact::TopicProperties { .. },
                Fact::Partition { .. },
                Fact::Partition { partition: PartitionId(1), .. },
            ] => assert!(t.partitions == 2 && channels.len() == 1),
            other => panic!("{other:?}"),
        }
        assert_eq!(membership(&rig.put(Key::Partition(TOPIC, 1), added(2))).epoch.0, (1 << 63) + 2);
    }

    /// The data path has the topic of an earlier process. The name's next topic was created after the deletion, and comes after it.
    #[test]
    fn a_topic_that_was_deleted_while_the_node_was_away_is_told_before_the_next_one_of_its_name() {
        let mut rig = Rig::new();
        let name = TopicName::new("t").unwrap();
        let old = TopicId([8; 16]);
        let key = |key: &Key| rig.view.layout().key(key);
        let entry = |key, value, at| KeyValue { key, value, create_revision: at, mod_revision: at, lease: None };
        let topic = TopicRecord::new(TOPIC, 1, 2, 1, Default::default());
        let entries = vec![
            entry(key(&Key::Id), encode(&ClusterRecord { id: [1; 16] }), 1),
            entry(key(&Key::Gone(old)), encode(&GoneRecord { name: name.clone(), partitions: 3 }), 2),
            entry(key(&Key::Topic(name)), encode(&topic), 3),
        ];
        let changed = rig.view.replace(Listing { revision: 9, entries }, None).unwrap();
        let mut out = vec![];
        rig.told.facts(&rig.view, &changed, &mut out);
        let is_old = |t: &TopicRef| (t.id, &*t.name, t.partitions) == (old, "t", 3);
        assert!(matches!(&out[..], [Fact::TopicDeleted(t), Fact::Topic(_), Fact::Read { .. }] if is_old(t)), "{out:?}");
    }

    #[test]
    fn what_another_session_of_this_node_leads_it_does_not_lead() {
        let mut rig = Rig::new();
        rig.topic();
        assert!(rig.part(1, (1, 7)).is_empty(), "the answer that names the session may come behind it");
        let mut out = vec![];
        rig.told.enter(&rig.view, Some(7), &mut out);
        let before = membership(&out).clone();
        assert_eq!(before.leader, Some(n(1)));
        out.clear();
        rig.told.enter(&rig.view, Some(8), &mut out);
        assert_eq!(membership(&out).leader, None);
        assert!(membership(&out).version > before.version);
        // The other session begins behind this session's revision; only a change of the record makes it lead.
        let facts = rig.part(2, (1, 8));
        let after = membership(&facts);
        assert!(after.leader == Some(n(1)) && after.version > before.version);
    }

    #[test]
    fn a_node_is_known_while_its_lease_is_over() {
        let mut rig = Rig::new();
        let own = MemberRecord { name: "own".into(), process: 7, ..Default::default() };
        rig.put(Key::Member(n(1)), encode(&own));
        let member = MemberRecord { name: "a".into(), peer_address: "a:1".into(), incarnation: 5, ..Default::default() };
        let facts = rig.put(Key::Member(n(3)), encode(&member));
        let is_told = |nodes: &[ClusterNode]| nodes.len() == 2 && *nodes[1].name == *"a" && nodes[1].incarnation == 5;
        assert!(matches!(&facts[..], [Fact::Nodes(nodes)] if is_told(nodes)), "{facts:?}");
        let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 1, suspects: Suspects::None };
        assert!(rig.put(Key::Node(n(3)), encode(&node)).is_empty());
        assert!(rig.delete(Key::Node(n(3))).is_empty());
    }
    /// Another process may be this node before the registration: a confirmation of this process would count as the other's.
    #[test]
    fn no_other_node_is_known_before_this_process_is_registered_and_each_one_after_that() {
        let mut rig = Rig::new();
        let member = |name: &str| encode(&MemberRecord { name: name.into(), peer_address: "a:1".into(), ..Default::default() });
        assert!(rig.put(Key::Member(n(3)), member("c")).is_empty());
        let enter = |rig: &mut Rig, session| {
            let mut out = vec![];
            rig.told.enter(&rig.view, session, &mut out);
            out
        };
        let own = |process| encode(&MemberRecord { name: "a".into(), process, ..Default::default() });
        assert!(rig.put(Key::Member(n(1)), own(6)).is_empty(), "an earlier process");
        assert!(enter(&mut rig, Some(2)).is_empty(), "the record comes right behind the session");
        let facts = rig.put(Key::Member(n(1)), own(7));
        assert!(matches!(&facts[..], [Fact::Nodes(nodes)] if nodes.len() == 2 && *nodes[1].name == *"c"), "{facts:?}");
        assert!(enter(&mut rig, None).is_empty());
        assert!(matches!(&rig.put(Key::Member(n(4)), member("d"))[..], [Fact::Nodes(nodes)] if nodes.len() == 3));
        assert!(enter(&mut rig, Some(9)).is_empty(), "they are known");
        // Another process is this node from now on.
        assert!(matches!(&rig.put(Key::Member(n(1)), own(8))[..], [Fact::Nodes(nodes)] if nodes.is_empty()));
        assert!(rig.put(Key::Member(n(3)), member("c2")).is_empty());
    }
}
