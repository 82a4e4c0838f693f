//! The metadata store of a run with real agents: an etcd in memory, and the facts in its records, for the parts that do not ask it
//! themselves.
//!
//! Every change is checked in its order, against rules that hold for the records whoever writes them:
//!
//! | check | when |
//! |---|---|
//! | one_leader_writes_per_epoch | a record names a leader: no other one was named for the partition in that epoch |
//! | a_living_leader_is_never_replaced | a record names another leader or none: its last one asked for that, or its session was over |
//! | no_only_copy_is_removed | a replica leaves a record: others that are in sync stay ([`super::budget`] looks at their disks) |
//! | a_deleted_topic_stays_deleted | a record of a topic is written: the topic has no tombstone |

use super::meta::{Meta, PartitionMeta, TopicPartition};
use crate::base::{NodeId, TopicId, TopicInfo, TopicName};
use crate::metadata::keys::{Key as StoreKey, Layout};
use crate::metadata::record::{Leader, PartitionRecord, TopicRecord, decode};
use crate::metadata::request::Change;
use crate::sim::etcd::Etcd;
use crate::sim::node::book::topic_number;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Topics that come and go have numbers from here on, one of its own for each that comes under a name.
pub const PASSING: usize = 1000;

/// A partition, as the store names it.
type PartitionKey = (TopicId, u16);

/// A replica that is in no record any more.
pub struct Removal {
    pub key: TopicPartition,
    pub node: NodeId,
}

pub struct Store {
    pub etcd: Etcd,
    pub layout: Layout,
    /// Time until which it carries nothing out.
    pub asleep_until: u64,
    /// Revision up to which its changes were looked at.
    looked: u64,
    records: BTreeMap<PartitionKey, (PartitionRecord, u64)>,
    sessions: BTreeMap<NodeId, u64>,
    /// Topics with a tombstone, and its revision.
    deleted: BTreeMap<TopicId, u64>,
    leaders: BTreeMap<(PartitionKey, u64), Leader>,
}

impl Default for Store {
    fn default() -> Store {
        Store {
            etcd: Etcd::default(),
            layout: Layout::new("sim").expect("a good name"),
            asleep_until: 0,
            looked: 0,
            records: BTreeMap::new(),
            sessions: BTreeMap::new(),
            deleted: BTreeMap::new(),
            leaders: BTreeMap::new(),
        }
    }
}

impl Store {
    /// Revision of the newest tombstone; 0: there is none.
    pub fn last_deletion(&self) -> u64 {
        self.deleted.values().copied().max().unwrap_or(0)
    }

    /// Revision of a topic's tombstone.
    pub fn deleted(&self, topic: TopicId) -> Option<u64> {
        self.deleted.get(&topic).copied()
    }

    pub fn session(&self, node: NodeId) -> Option<u64> {
        self.sessions.get(&node).copied()
    }

    /// Leader by the record, while its session lives.
    fn leader(&self, record: &PartitionRecord) -> Option<NodeId> {
        record.leader.filter(|l| self.session(l.node) == Some(l.session)).map(|l| l.node)
    }

    /// Holds a record against the one before.
    fn check(&mut self, at: PartitionKey, old: Option<&PartitionRecord>, new: &PartitionRecord) {
        let deleted = self.deleted(at.0);
        assert!(deleted.is_none(), "a_deleted_topic_stays_deleted: {at:?} was deleted at {deleted:?}, and is written: {new:?}");
        if let Some(leader) = new.leader {
            let first = *self.leaders.entry((at, new.epoch)).or_insert(leader);
            assert_eq!(first, leader, "one_leader_writes_per_epoch: {at:?} in {}", new.epoch);
        }
        let Some(old) = old else { return };
        assert!(
            new.epoch >= old.epoch,
            "one_leader_writes_per_epoch: the epoch of {at:?} fell from {} to {}",
            old.epoch,
            new.epoch
        );
        if let Some(leader) = old.leader.filter(|l| new.leader != Some(*l)) {
            let lives = self.session(leader.node) == Some(leader.session);
            assert!(
                !lives || new.tag.session == leader.session,
                "a_living_leader_is_never_replaced: {at:?} was led by {leader:?}, whose session lives: {new:?}"
            );
        }
        let stays = |n: &&NodeId| old.isr.contains(n);
        if old.replicas.iter().any(|n| !new.replicas.contains(n)) {
            let kept = new.isr.iter().filter(stays).count();
            assert!(kept >= usize::from(old.min_isr), "no_only_copy_is_removed: {at:?}: {old:?} became {new:?}");
        }
    }
}

impl Meta {
    /// Changes in the etcd since the last look: partitions, and removed replicas.
    pub fn look_at_etcd(&mut self) -> (Vec<TopicPartition>, Vec<Removal>) {
        let changes = self.store.etcd.changes_from(self.store.looked + 1).expect("it is looked at before it is compacted");
        // A revision may have changed nothing.
        self.store.looked = self.store.etcd.revision();
        let (mut touched, mut removed) = (BTreeSet::new(), vec![]);
        for change in changes {
            match change {
                Change::Put(kv) => {
                    if let Some(key) = self.store.layout.parse(&kv.key) {
                        self.see_put(key, &kv, &mut touched, &mut removed);
                    }
                }
                Change::Deleted { key, .. } => {
                    if let Some(key) = self.store.layout.parse(&key) {
                        self.see_deleted(key, &mut touched);
                    }
                }
            }
        }
        let changed = touched.into_iter().filter_map(|at| self.take_record(at)).collect();
        let removal = |(at, node): (PartitionKey, NodeId)| Some(Removal { key: self.key_at(at)?, node });
        (changed, removed.into_iter().filter_map(removal).collect())
    }

    fn see_put(
        &mut self,
        key: StoreKey,
        kv: &crate::metadata::request::KeyValue,
        touched: &mut BTreeSet<PartitionKey>,
        removed: &mut Vec<(PartitionKey, NodeId)>,
    ) {
        match key {
            StoreKey::Partition(topic, number) => {
                let (at, new): (PartitionKey, PartitionRecord) =
                    ((topic, number), decode(&kv.value).expect("agents write sound records"));
                let old = self.store.records.get(&at).map(|(record, _)| record.clone());
                self.store.check(at, old.as_ref(), &new);
                if let Some(old) = &old {
                    self.counts.elections += (new.leader.is_some() && new.leader != old.leader) as u64;
                    self.counts.proposals += (new.leader == old.leader && new.isr != old.isr) as u64;
                    self.counts.replica_changes += (new.replicas != old.replicas) as u64;
                    removed.extend(old.replicas.iter().filter(|n| !new.replicas.contains(n)).map(|n| (at, *n)));
                }
                self.store.records.insert(at, (new, kv.mod_revision));
                touched.insert(at);
            }
            StoreKey::Topic(name) => {
                let record: TopicRecord = decode(&kv.value).expect("agents write sound records");
                let deleted = self.store.deleted(record.id);
                assert!(deleted.is_none(), "a_deleted_topic_stays_deleted: {name} was deleted at {deleted:?}, and is written");
                self.topic_is_there(name, &record, touched);
            }
            StoreKey::Gone(topic) => {
                self.counts.topics_deleted += 1;
                self.store.deleted.insert(topic, kv.mod_revision);
            }
            StoreKey::Node(node) if kv.create_revision == kv.mod_revision => {
                self.counts.sessions += 1;
                self.store.sessions.insert(node, kv.create_revision);
                self.touch_led_by(node, touched);
            }
            StoreKey::Controller => self.counts.terms += 1,
            StoreKey::Load(_) => self.counts.loads += 1,
            _ => {}
        }
    }

    fn topic_is_there(&mut self, name: TopicName, record: &TopicRecord, touched: &mut BTreeSet<PartitionKey>) {
        if let Some(known) = self.topics.values_mut().find(|known| known.id == record.id) {
            assert!(record.partitions >= known.partitions, "only_a_deleted_topic_goes: partitions of {known:?} are {record:?}");
            *known = Arc::new(TopicInfo { partitions: record.partitions, ..(**known).clone() });
            return;
        }
        self.counts.topics_made += 1;
        let before = self.topics.values().find(|t| t.name == name);
        assert!(before.is_none(), "only_a_deleted_topic_goes: {before:?} was there");
        let number = match topic_number(&name) {
            passing if passing >= PASSING => PASSING + self.counts.topics_made as usize,
            number => number,
        };
        let info = TopicInfo { name, id: record.id, partitions: record.partitions };
        self.topics.insert(number, Arc::new(info));
        touched.extend(self.store.records.range((record.id, 0)..=(record.id, u16::MAX)).map(|(at, _)| *at));
    }

    fn see_deleted(&mut self, key: StoreKey, touched: &mut BTreeSet<PartitionKey>) {
        match key {
            StoreKey::Partition(topic, number) => {
                self.store.records.remove(&(topic, number));
                if let Some(key) = self.key_at((topic, number)) {
                    self.entries.remove(&key);
                }
            }
            StoreKey::Topic(name) => {
                let number = self.topics.iter().find(|(_, t)| t.name == name).map(|(n, _)| *n);
                let topic = number.and_then(|n| self.topics.remove(&n));
                let deleted = topic.as_ref().and_then(|t| self.store.deleted(t.id));
                assert!(topic.is_none() || deleted.is_some(), "only_a_deleted_topic_goes: {topic:?}");
                let number = number.unwrap_or(usize::MAX);
                self.entries.retain(|key, _| key.0 != number);
            }
            StoreKey::Node(node) => {
                self.touch_led_by(node, touched);
                self.store.sessions.remove(&node);
            }
            _ => {}
        }
    }

    fn touch_led_by(&self, node: NodeId, touched: &mut BTreeSet<PartitionKey>) {
        let led = self.store.records.iter().filter(|(_, (record, _))| record.leader.is_some_and(|l| l.node == node));
        touched.extend(led.map(|(at, _)| *at));
    }

    fn key_at(&self, at: PartitionKey) -> Option<TopicPartition> {
        let topic = *self.topics.iter().find(|(_, t)| t.id == at.0)?.0;
        Some((topic, at.1))
    }

    /// Updates the entry of a partition from its record, if that is newer.
    fn take_record(&mut self, at: PartitionKey) -> Option<TopicPartition> {
        let (key, (record, revision)) = (self.key_at(at)?, self.store.records.get(&at)?);
        let mut now = record.membership(*revision, false);
        now.leader = self.store.leader(record);
        assert!(now.is_sane(), "the store holds what makes sense: {now:?}");
        let is_news = self.entries.get(&key).is_none_or(|known| known.now != now);
        is_news.then(|| {
            self.entries.insert(key, PartitionMeta::new(now));
            self.revision = *revision;
            key
        })
    }
}
