//! All metadata as of a revision: [`View`], fed by a listing, by watch events and by the answers to the node's own writes.
//!
//! All three come in one way, ordered by mod_revision: a known change, or one older than the key's known revision, is ignored. `read` is
//! the revision up to which the view is whole. Own writes may be ahead of it.

use super::keys::{Key, Layout};
use super::record::{
    BadRecord, ClusterRecord, ControllerRecord, DrainRecord, GoneRecord, LoadRecord, MemberRecord, NodeRecord, PartitionRecord,
    TopicRecord, decode,
};
use super::request::{Change, KeyValue, LeaseId, Listing};
use crate::base::{NodeId, TopicId, TopicInfo, TopicName, TopicRef};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Reason why a store is refused. Nothing changes then, and nothing is deleted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ViewError {
    #[error(
        "the metadata store is of another cluster: its id is {found}, and this node is of {known}. Nothing is changed. Give the endpoints \
         and the name of this data path's cluster",
        found = hex(found),
        known = hex(known)
    )]
    OtherCluster { known: [u8; 16], found: [u8; 16] },
    #[error(
        "the metadata store went back: its revision is {found}, and {seen} was seen before. It was wiped, or restored from a backup. \
         Nothing is changed and nothing is deleted; docs/cluster-failures.md says how to go on"
    )]
    WentBack { seen: u64, found: u64 },
    #[error(
        "the metadata store has no key `id`, and this node is of the cluster {known}: the store was wiped, or is another one. Nothing is \
         changed and nothing is deleted; docs/cluster-failures.md says how to go on",
        known = hex(known)
    )]
    NoCluster { known: [u8; 16] },
}

fn hex(id: &[u8; 16]) -> String {
    NodeId(*id).to_string()
}

/// A record with the revisions of its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry<T> {
    pub value: T,
    pub create_revision: u64,
    pub mod_revision: u64,
    pub lease: Option<LeaseId>,
}

/// A value that could not be read. The key's former value stays in the view.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the key {key} of the metadata store is not used: {error}")]
pub struct Unreadable {
    pub key: String,
    pub error: BadRecord,
}

/// Topic, with the facts that every core is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topic {
    pub record: TopicRecord,
    pub info: TopicRef,
}

/// Parts of the view that a change touched.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changed {
    pub keys: BTreeSet<Key>,
    pub unreadable: Vec<Unreadable>,
}

#[derive(Debug)]
pub struct View {
    layout: Layout,
    read: u64,
    /// Highest revision up to which a view of the store was whole; a listing below that is not believed.
    seen: u64,
    /// Highest revision of a change that is in the view; the view may not be whole up to it.
    newest: u64,
    cluster: Option<Entry<ClusterRecord>>,
    /// Value of `id`, byte by byte. Every write compares it.
    cluster_value: Bytes,
    controller: Option<Entry<ControllerRecord>>,
    nodes: BTreeMap<NodeId, Entry<NodeRecord>>,
    members: BTreeMap<NodeId, Entry<MemberRecord>>,
    drains: BTreeMap<NodeId, Entry<DrainRecord>>,
    loads: BTreeMap<NodeId, Entry<LoadRecord>>,
    topics: BTreeMap<TopicName, Entry<Topic>>,
    names: BTreeMap<TopicId, TopicName>,
    partitions: BTreeMap<(TopicId, u16), Entry<PartitionRecord>>,
    gone: BTreeMap<TopicId, Entry<GoneRecord>>,
    /// Partitions that name a node as a replica.
    of_node: BTreeMap<NodeId, BTreeSet<(TopicId, u16)>>,
    /// Number of partitions that name a node as their first replica.
    first_of: BTreeMap<NodeId, usize>,
    /// Keys whose last known change is above `read`: an own write, whose event is still to come.
    ahead: BTreeMap<Key, u64>,
}

impl View {
    /// `seen`: highest revision up to which this node ever had a whole view of the store, 0 at the first startup.
    pub fn new(layout: Layout, seen: u64) -> View {
        View {
            layout,
            read: 0,
            seen,
            newest: seen,
            cluster: None,
            cluster_value: Bytes::new(),
            controller: None,
            nodes: BTreeMap::new(),
            members: BTreeMap::new(),
            drains: BTreeMap::new(),
            loads: BTreeMap::new(),
            topics: BTreeMap::new(),
            names: BTreeMap::new(),
            partitions: BTreeMap::new(),
            gone: BTreeMap::new(),
            of_node: BTreeMap::new(),
            first_of: BTreeMap::new(),
            ahead: BTreeMap::new(),
        }
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Revision up to which all changes are in. A watch goes on behind it.
    pub fn read(&self) -> u64 {
        self.read
    }

    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Highest revision in the view. A store that is older than this lost metadata on which the node acted.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    pub fn cluster_id(&self) -> Option<[u8; 16]> {
        self.cluster.as_ref().map(|e| e.value.id)
    }

    /// Value of the key `id` as it stands in the store. Empty before it was read.
    pub fn cluster_value(&self) -> &Bytes {
        &self.cluster_value
    }

    pub fn controller(&self) -> Option<&Entry<ControllerRecord>> {
        self.controller.as_ref()
    }

    pub fn node(&self, id: NodeId) -> Option<&Entry<NodeRecord>> {
        self.nodes.get(&id)
    }

    /// The session that a node is in. `None`: its lease is over, or it has not registered.
    pub fn session(&self, id: NodeId) -> Option<u64> {
        self.nodes.get(&id).map(|e| e.create_revision)
    }

    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Entry<NodeRecord>)> {
        self.nodes.iter().map(|(id, e)| (*id, e))
    }

    pub fn member(&self, id: NodeId) -> Option<&Entry<MemberRecord>> {
        self.members.get(&id)
    }

    /// All nodes that ever registered, also those that are away.
    pub fn members(&self) -> impl Iterator<Item = (NodeId, &Entry<MemberRecord>)> {
        self.members.iter().map(|(id, e)| (*id, e))
    }

    pub fn is_draining(&self, id: NodeId) -> bool {
        self.drains.contains_key(&id)
    }

    pub fn drain(&self, id: NodeId) -> Option<&Entry<DrainRecord>> {
        self.drains.get(&id)
    }

    /// Load of the partitions that a node leads. `None`: the node has not published it.
    pub fn load(&self, id: NodeId) -> Option<&Entry<LoadRecord>> {
        self.loads.get(&id)
    }

    pub fn topic(&self, name: &str) -> Option<&Entry<Topic>> {
        self.topics.get(name)
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<&Entry<Topic>> {
        self.topics.get(self.names.get(&id)?)
    }

    pub fn topics(&self) -> impl Iterator<Item = &Entry<Topic>> {
        self.topics.values()
    }

    pub fn partition(&self, topic: TopicId, number: u16) -> Option<&Entry<PartitionRecord>> {
        self.partitions.get(&(topic, number))
    }

    pub fn partitions(&self) -> impl Iterator<Item = ((TopicId, u16), &Entry<PartitionRecord>)> {
        self.partitions.iter().map(|(at, e)| (*at, e))
    }

    pub fn partitions_of(&self, topic: TopicId) -> impl Iterator<Item = (u16, &Entry<PartitionRecord>)> {
        self.partitions.range((topic, 0)..=(topic, u16::MAX)).map(|((_, n), e)| (*n, e))
    }

    /// Partitions that name the node as a replica.
    pub fn replicas_of(&self, node: NodeId) -> impl Iterator<Item = (TopicId, u16)> + '_ {
        self.of_node.get(&node).into_iter().flatten().copied()
    }

    /// The same without partitions whose topic does not exist: its creation is under way, or was never finished.
    pub fn topic_replicas_of(&self, node: NodeId) -> impl Iterator<Item = (TopicId, u16)> + '_ {
        self.replicas_of(node).filter(|(topic, _)| self.topic_by_id(*topic).is_some())
    }

    pub fn replica_count(&self, node: NodeId) -> usize {
        self.of_node.get(&node).map_or(0, BTreeSet::len)
    }

    /// Partitions that name the node as their first replica, which is to lead them.
    pub fn first_count(&self, node: NodeId) -> usize {
        self.first_of.get(&node).copied().unwrap_or(0)
    }

    pub fn gone(&self, topic: TopicId) -> Option<&Entry<GoneRecord>> {
        self.gone.get(&topic)
    }

    pub fn all_gone(&self) -> impl Iterator<Item = (TopicId, &Entry<GoneRecord>)> {
        self.gone.iter().map(|(id, e)| (*id, e))
    }

    // ---- input

    /// Replaces the view by a whole listing as of a revision: keys that are not listed leave the view. `known`: the cluster of this
    /// node.
    pub fn replace(&mut self, listing: Listing, known: Option<[u8; 16]>) -> Result<Changed, ViewError> {
        self.replace_as_of(listing, known, self.seen)
    }

    /// Replaces the view by a listing that was requested when the node had seen the revision `seen`: a watch may have overtaken it
    /// since.
    pub fn replace_as_of(&mut self, listing: Listing, known: Option<[u8; 16]>, seen: u64) -> Result<Changed, ViewError> {
        self.check(&listing, known, seen)?;
        let revision = listing.revision;
        let mut changed = Changed::default();
        let mut listed = BTreeSet::new();
        for kv in listing.entries {
            if let Some(key) = self.layout.parse(&kv.key) {
                self.put(key.clone(), kv, &mut changed);
                listed.insert(key);
            }
        }
        for key in self.keys_up_to(revision) {
            if !listed.contains(&key) {
                self.remove(key, revision, &mut changed);
            }
        }
        self.has_read(revision);
        Ok(changed)
    }

    fn check(&self, listing: &Listing, known: Option<[u8; 16]>, seen: u64) -> Result<(), ViewError> {
        if listing.revision < seen {
            return Err(ViewError::WentBack { seen, found: listing.revision });
        }
        let Some(known) = known.or(self.cluster_id()) else { return Ok(()) };
        let id_key = self.layout.key(&Key::Id);
        let record = listing.entries.iter().find(|kv| kv.key == id_key).map(|kv| decode::<ClusterRecord>(&kv.value));
        match record {
            Some(Ok(found)) if found.id == known => Ok(()),
            Some(Ok(found)) => Err(ViewError::OtherCluster { known, found: found.id }),
            Some(Err(_)) | None => Err(ViewError::NoCluster { known }),
        }
    }

    /// Takes the events of a watch, in their order. All events of a revision come together.
    pub fn watched(&mut self, changes: impl IntoIterator<Item = Change>) -> Changed {
        let mut changed = Changed::default();
        let mut upto = self.read;
        for change in changes {
            let revision = revision_of(&change);
            if revision > self.read {
                self.learn_into(change, &mut changed);
                upto = upto.max(revision);
            }
        }
        self.has_read(upto);
        changed
    }

    /// A change that the answer to an own request told. The view may not be whole up to it yet.
    pub fn learn(&mut self, change: Change) -> Changed {
        let mut changed = Changed::default();
        self.learn_into(change, &mut changed);
        changed
    }

    fn learn_into(&mut self, change: Change, changed: &mut Changed) {
        match change {
            Change::Put(kv) => {
                if let Some(key) = self.layout.parse(&kv.key) {
                    self.put(key, kv, changed);
                }
            }
            Change::Deleted { key, mod_revision } => {
                if let Some(key) = self.layout.parse(&key) {
                    self.remove(key, mod_revision, changed);
                }
            }
        }
    }

    fn has_read(&mut self, revision: u64) {
        self.read = self.read.max(revision);
        self.seen = self.seen.max(revision);
        self.newest = self.newest.max(revision);
        let read = self.read;
        self.ahead.retain(|_, at| *at > read);
    }

    /// Whether a change of the key at `revision` says something new.
    fn is_news(&self, key: &Key, revision: u64) -> bool {
        let known = self.mod_revision(key).max(self.ahead.get(key).copied());
        known.is_none_or(|known| known < revision)
    }

    fn note(&mut self, key: &Key, revision: u64, changed: &mut Changed) {
        if revision > self.read {
            self.ahead.insert(key.clone(), revision);
            self.newest = self.newest.max(revision);
        }
        changed.keys.insert(key.clone());
    }

    /// Revision of the last known change of a key that is there. 0 in a compare says that it is not.
    pub fn mod_revision(&self, key: &Key) -> Option<u64> {
        match key {
            Key::Id => self.cluster.as_ref().map(|e| e.mod_revision),
            Key::Controller => self.controller.as_ref().map(|e| e.mod_revision),
            Key::Node(id) => self.nodes.get(id).map(|e| e.mod_revision),
            Key::Member(id) => self.members.get(id).map(|e| e.mod_revision),
            Key::Drain(id) => self.drains.get(id).map(|e| e.mod_revision),
            Key::Load(id) => self.loads.get(id).map(|e| e.mod_revision),
            Key::Topic(name) => self.topics.get(name).map(|e| e.mod_revision),
            Key::Partition(topic, number) => self.partitions.get(&(*topic, *number)).map(|e| e.mod_revision),
            Key::Gone(topic) => self.gone.get(topic).map(|e| e.mod_revision),
        }
    }

    /// Revision at which a key that is there was created.
    pub fn create_revision(&self, key: &Key) -> Option<u64> {
        match key {
            Key::Id => self.cluster.as_ref().map(|e| e.create_revision),
            Key::Controller => self.controller.as_ref().map(|e| e.create_revision),
            Key::Node(id) => self.nodes.get(id).map(|e| e.create_revision),
            Key::Member(id) => self.members.get(id).map(|e| e.create_revision),
            Key::Drain(id) => self.drains.get(id).map(|e| e.create_revision),
            Key::Load(id) => self.loads.get(id).map(|e| e.create_revision),
            Key::Topic(name) => self.topics.get(name).map(|e| e.create_revision),
            Key::Partition(topic, number) => self.partitions.get(&(*topic, *number)).map(|e| e.create_revision),
            Key::Gone(topic) => self.gone.get(topic).map(|e| e.create_revision),
        }
    }

    fn put(&mut self, key: Key, kv: KeyValue, changed: &mut Changed) {
        if !self.is_news(&key, kv.mod_revision) {
            return;
        }
        match self.take(&key, &kv) {
            Ok(()) => self.note(&key, kv.mod_revision, changed),
            Err(error) => {
                let key = String::from_utf8_lossy(&kv.key).into_owned();
                changed.unreadable.push(Unreadable { key, error });
            }
        }
    }

    fn take(&mut self, key: &Key, kv: &KeyValue) -> Result<(), BadRecord> {
        match key {
            Key::Id => {
                self.cluster = Some(entry(kv, decode(&kv.value)?));
                self.cluster_value = kv.value.clone();
            }
            Key::Controller => self.controller = Some(entry(kv, decode(&kv.value)?)),
            Key::Node(id) => drop(self.nodes.insert(*id, entry(kv, decode(&kv.value)?))),
            Key::Member(id) => drop(self.members.insert(*id, entry(kv, decode(&kv.value)?))),
            Key::Drain(id) => drop(self.drains.insert(*id, entry(kv, decode(&kv.value)?))),
            Key::Load(id) => drop(self.loads.insert(*id, entry(kv, decode(&kv.value)?))),
            Key::Gone(id) => drop(self.gone.insert(*id, entry(kv, decode(&kv.value)?))),
            Key::Topic(name) => self.take_topic(name, kv)?,
            Key::Partition(topic, number) => self.take_partition((*topic, *number), kv)?,
        }
        Ok(())
    }

    fn take_topic(&mut self, name: &TopicName, kv: &KeyValue) -> Result<(), BadRecord> {
        let record: TopicRecord = decode(&kv.value)?;
        let is_possible = (1..=crate::base::PartitionId::COUNT_MAX).contains(&record.partitions) && record.min_isr >= 1;
        if !is_possible {
            return Err(BadRecord::Broken("a topic has 1 to 1024 partitions, and a min_isr of at least 1".into()));
        }
        if let Some(old) = self.topics.get(name).filter(|old| old.value.record.id != record.id) {
            self.names.remove(&old.value.record.id);
        }
        let info = Arc::new(TopicInfo { name: name.clone(), id: record.id, partitions: record.partitions });
        self.names.insert(record.id, name.clone());
        self.topics.insert(name.clone(), entry(kv, Topic { record, info }));
        Ok(())
    }

    fn take_partition(&mut self, at: (TopicId, u16), kv: &KeyValue) -> Result<(), BadRecord> {
        let record: PartitionRecord = decode(&kv.value)?;
        if !record.is_sane() {
            return Err(BadRecord::Broken("the partition's leader, ISR and replicas do not fit together".into()));
        }
        let old = self.partitions.remove(&at).map_or(vec![], |e| e.value.replicas);
        self.place(at, &old, &record.replicas);
        self.partitions.insert(at, entry(kv, record));
        Ok(())
    }

    fn place(&mut self, at: (TopicId, u16), old: &[NodeId], new: &[NodeId]) {
        for node in old.iter().filter(|n| !new.contains(n)) {
            if let Some(of) = self.of_node.get_mut(node) {
                of.remove(&at);
            }
        }
        for node in new.iter().filter(|n| !old.contains(n)) {
            self.of_node.entry(*node).or_default().insert(at);
        }
        if let Some(count) = old.first().and_then(|first| self.first_of.get_mut(first)) {
            *count = count.saturating_sub(1);
        }
        if let Some(first) = new.first() {
            *self.first_of.entry(*first).or_default() += 1;
        }
    }

    fn remove(&mut self, key: Key, revision: u64, changed: &mut Changed) {
        if !self.is_news(&key, revision) {
            return;
        }
        let was_there = self.mod_revision(&key).is_some();
        match &key {
            Key::Id => self.cluster = None,
            Key::Controller => self.controller = None,
            Key::Node(id) => drop(self.nodes.remove(id)),
            Key::Member(id) => drop(self.members.remove(id)),
            Key::Drain(id) => drop(self.drains.remove(id)),
            Key::Load(id) => drop(self.loads.remove(id)),
            Key::Gone(id) => drop(self.gone.remove(id)),
            Key::Topic(name) => {
                if let Some(old) = self.topics.remove(name) {
                    self.names.remove(&old.value.record.id);
                }
            }
            Key::Partition(topic, number) => {
                if let Some(old) = self.partitions.remove(&(*topic, *number)) {
                    self.place((*topic, *number), &old.value.replicas, &[]);
                }
            }
        }
        if was_there || revision > self.read {
            self.note(&key, revision, changed);
        }
    }

    /// Keys that are there and were last changed at or below a revision.
    fn keys_up_to(&self, revision: u64) -> Vec<Key> {
        let nodes = self.nodes.keys().map(|id| Key::Node(*id));
        let members = self.members.keys().map(|id| Key::Member(*id));
        let drains = self.drains.keys().map(|id| Key::Drain(*id)).chain(self.loads.keys().map(|id| Key::Load(*id)));
        let topics = self.topics.keys().map(|name| Key::Topic(name.clone()));
        let partitions = self.partitions.keys().map(|(topic, n)| Key::Partition(*topic, *n));
        let gone = self.gone.keys().map(|id| Key::Gone(*id));
        let single = [Key::Id, Key::Controller];
        let all = single.into_iter().chain(nodes).chain(members).chain(drains).chain(topics).chain(partitions).chain(gone);
        all.filter(|key| self.mod_revision(key).is_some_and(|at| at <= revision)).collect()
    }
}

fn entry<T>(kv: &KeyValue, value: T) -> Entry<T> {
    Entry { value, create_revision: kv.create_revision, mod_revision: kv.mod_revision, lease: kv.lease }
}

fn revision_of(change: &Change) -> u64 {
    match change {
        Change::Put(kv) => kv.mod_revision,
        Change::Deleted { mod_revision, .. } => *mod_revision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::record::{Leader, encode};

    const TOPIC: TopicId = TopicId([9; 16]);

    fn n(b: u8) -> NodeId {
        NodeId([b; 16])
    }

    fn layout() -> Layout {
        Layout::new("c").unwrap()
    }

    fn kv(key: &Key, value: Bytes, created: u64, changed: u64) -> KeyValue {
        KeyValue { key: layout().key(key), value, create_revision: created, mod_revision: changed, lease: None }
    }

    fn id(byte: u8) -> KeyValue {
        kv(&Key::Id, encode(&ClusterRecord { id: [byte; 16] }), 1, 1)
    }

    fn part(number: u16, epoch: u64, replicas: &[u8], changed: u64) -> KeyValue {
        let replicas: Vec<NodeId> = replicas.iter().map(|b| n(*b)).collect();
        let leader = Some(Leader { node: replicas[0], session: 3 });
        let record = PartitionRecord::new(epoch, leader, replicas, 1);
        kv(&Key::Partition(TOPIC, number), encode(&record), 2, changed)
    }

    fn epoch(view: &View, number: u16) -> Option<u64> {
        view.partition(TOPIC, number).map(|e| e.value.epoch)
    }

    fn view() -> View {
        let mut view = View::new(layout(), 0);
        let entries = vec![id(1), part(0, 1, &[1, 2], 5), part(1, 1, &[2, 3], 6)];
        let changed = view.replace(Listing { revision: 10, entries }, None).unwrap();
        assert_eq!((changed.keys.len(), view.read()), (3, 10));
        view
    }

    #[test]
    fn old_and_repeated_changes_say_nothing() {
        let mut view = view();
        let newer = Change::Put(part(0, 2, &[1, 2], 12));
        assert_eq!(view.watched([newer.clone()]).keys.len(), 1);
        assert_eq!((epoch(&view, 0), view.read()), (Some(2), 12));
        assert!(view.watched([newer, Change::Put(part(0, 1, &[1, 2], 11))]).keys.is_empty());
        assert_eq!((epoch(&view, 0), view.read()), (Some(2), 12));
        assert!(
            view.watched([Change::Deleted { key: layout().key(&Key::Partition(TOPIC, 0)), mod_revision: 9 }]).keys.is_empty()
        );
        assert_eq!(epoch(&view, 0), Some(2));
    }

    #[test]
    fn an_own_write_is_known_before_the_watch_tells_it_and_the_watch_takes_nothing_of_it_back() {
        let mut view = view();
        view.learn(Change::Put(part(0, 3, &[1, 2], 14)));
        view.learn(Change::Deleted { key: layout().key(&Key::Partition(TOPIC, 1)), mod_revision: 15 });
        assert_eq!((epoch(&view, 0), epoch(&view, 1), view.read()), (Some(3), None, 10), "it is not whole up to there");
        view.watched([Change::Put(part(0, 2, &[1, 2], 12)), Change::Put(part(1, 2, &[2, 3], 13))]);
        assert_eq!((epoch(&view, 0), epoch(&view, 1), view.read()), (Some(3), None, 13));
        // A listing that was asked for before the own write is older, too.
        view.replace(Listing { revision: 13, entries: vec![id(1), part(1, 2, &[2, 3], 13)] }, None).unwrap();
        assert_eq!((epoch(&view, 0), epoch(&view, 1)), (Some(3), None));
        view.watched([Change::Put(part(1, 9, &[2, 3], 16))]);
        assert_eq!(epoch(&view, 1), Some(9));
    }

    #[test]
    fn what_is_not_listed_any_more_is_gone_from_the_view() {
        let mut view = view();
        let changed = view.replace(Listing { revision: 20, entries: vec![id(1), part(0, 1, &[1, 2], 5)] }, None).unwrap();
        assert_eq!(changed.keys.into_iter().collect::<Vec<_>>(), [Key::Partition(TOPIC, 1)]);
        assert_eq!(view.replicas_of(n(2)).collect::<Vec<_>>(), [(TOPIC, 0)]);
        assert_eq!(view.replicas_of(n(3)).count(), 0);
    }

    #[test]
    fn a_store_that_was_wiped_or_is_another_one_is_not_believed() {
        let mut view = view();
        let listing = |revision, entries| Listing { revision, entries };
        let back = view.replace(listing(9, vec![id(1)]), None).unwrap_err();
        assert_eq!(back, ViewError::WentBack { seen: 10, found: 9 });
        assert!(matches!(view.replace(listing(30, vec![id(2)]), None), Err(ViewError::OtherCluster { .. })));
        assert!(matches!(view.replace(listing(30, vec![]), None), Err(ViewError::NoCluster { .. })));
        assert_eq!((epoch(&view, 0), view.read()), (Some(1), 10), "nothing changed");
        let mut fresh = View::new(layout(), 50);
        assert!(matches!(fresh.replace(listing(49, vec![id(1)]), None), Err(ViewError::WentBack { .. })));
        assert!(matches!(fresh.replace(listing(50, vec![id(1)]), Some([2; 16])), Err(ViewError::OtherCluster { .. })));
    }

    /// Found by the cluster simulator: the node took a store for one that went back.
    #[test]
    fn a_listing_that_a_watch_has_overtaken_is_believed() {
        let mut view = view();
        let asked_at = view.seen();
        let Changed { keys, .. } = view.watched([Change::Put(part(2, 3, &[1, 2], 12))]);
        assert_eq!((keys.len(), view.read()), (1, 12));
        let listing = Listing { revision: 11, entries: vec![id(1), part(0, 2, &[1, 2], 11)] };
        let changed = view.replace_as_of(listing, None, asked_at).unwrap();
        assert_eq!(changed.keys.into_iter().collect::<Vec<_>>(), [Key::Partition(TOPIC, 0), Key::Partition(TOPIC, 1)]);
        assert_eq!((epoch(&view, 2), view.read()), (Some(3), 12), "what came behind the listing stays");
    }

    #[test]
    fn a_value_that_cannot_be_read_changes_nothing_and_is_told() {
        let mut view = view();
        let mut newer = part(0, 2, &[1, 2], 12);
        newer.value = Bytes::from_static(br#"{"v":9}"#);
        let changed = view.watched([Change::Put(newer)]);
        assert_eq!(changed.unreadable[0].error, BadRecord::Newer { found: 9 });
        assert!(changed.unreadable[0].key.ends_with("/0000") && changed.keys.is_empty());
        assert_eq!((epoch(&view, 0), view.read()), (Some(1), 12));
    }

    #[test]
    fn replicas_are_found_by_their_node() {
        let mut view = view();
        view.watched([Change::Put(part(0, 1, &[1, 3], 11))]);
        assert_eq!(view.replicas_of(n(2)).collect::<Vec<_>>(), [(TOPIC, 1)]);
        assert_eq!(view.replicas_of(n(3)).collect::<Vec<_>>(), [(TOPIC, 0), (TOPIC, 1)]);
    }
}
