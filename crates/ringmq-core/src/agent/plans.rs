//! Transactions of an operator's request, in order, made from the view. A tool that has read the store and has no agent uses them too.

use super::admin::{Admin, AdminError, TopicChange};
use crate::base::{ChannelName, NodeId, PartitionId, TopicId, TopicName};
use crate::controller::placement::place;
use crate::metadata::keys::{Key, Layout};
use crate::metadata::record::{DrainRecord, GoneRecord, Leader, PartitionRecord, Tag, TopicRecord, encode};
use crate::metadata::request::{Compare, Op, Txn};
use crate::metadata::view::{Entry, Topic, View};
use crate::seam::cluster::TopicProperties;
use std::collections::BTreeSet;

/// Partitions that one transaction writes, at most.
const CHUNK: usize = 60;
/// Replicas that an operator may ask for.
const REPLICAS_MAX: u8 = 5;

#[derive(Debug)]
pub struct Planner<'a> {
    pub view: &'a View,
    /// Replicas and partitions of a topic that does not say how many.
    pub replicas: u8,
    pub partitions: u16,
    /// Session of the writer; 0: it has none.
    pub session: u64,
    /// Id for a topic that is created.
    pub fresh: TopicId,
    /// Nodes that get no replica: their process is taken for ended.
    pub down: BTreeSet<NodeId>,
}

impl Planner<'_> {
    /// Transactions of the request; none: it is so already.
    pub fn txns(&self, admin: &Admin) -> Result<Vec<Txn>, AdminError> {
        match admin {
            Admin::CreateTopic { name, partitions, replicas, min_isr, properties } => {
                self.create(name, *partitions, *replicas, *min_isr, *properties)
            }
            Admin::AlterTopic { name, change } => self.alter(name, change),
            Admin::ExpandTopic { name, partitions, channels } => self.expand(name, *partitions, channels),
            Admin::DeleteTopic { name } => self.delete(name),
            Admin::MoveReplica { name, partition, from, to } => {
                self.move_replica(name, *partition, self.node(from)?, self.node(to)?)
            }
            Admin::MoveLeader { name, partition, to } => self.move_leader(name, *partition, self.node(to)?),
            Admin::Rebalance => Ok(self.rebalance()),
            Admin::Drain { node } => self.drain(self.node(node)?, true),
            Admin::Undrain { node } => self.drain(self.node(node)?, false),
            Admin::RemoveNode { node } => self.remove_node(self.node(node)?),
        }
    }

    fn layout(&self) -> &Layout {
        self.view.layout()
    }

    fn is_cluster(&self) -> Compare {
        Compare::Value { key: self.layout().key(&Key::Id), is: self.view.cluster_value().clone() }
    }

    /// A plan of one transaction. `read`: key that is read when a compare fails, so that the next attempt knows it.
    fn one(&self, read: &Key, compare: Vec<Compare>, then: Vec<Op>) -> Vec<Txn> {
        let compares = [self.is_cluster()].into_iter().chain(compare).collect();
        vec![Txn { compares, then, otherwise: vec![Op::Get { key: self.layout().key(read) }] }]
    }

    /// The node of this id, or of this name.
    fn node(&self, text: &str) -> Result<NodeId, AdminError> {
        let unknown = || AdminError::NoNode(text.into());
        if let Some(id) = crate::metadata::keys::parse_id(text).map(NodeId) {
            return self.view.member(id).map(|_| id).ok_or_else(unknown);
        }
        let mut named = self.view.members().filter(|(_, e)| e.value.name == text).map(|(id, _)| id);
        match (named.next(), named.next()) {
            (Some(id), None) => Ok(id),
            (Some(_), Some(_)) => Err(AdminError::AmbiguousNode(text.into())),
            (None, _) => Err(unknown()),
        }
    }

    /// Name of a node for an operator; its id, where the store does not have the name.
    fn name(&self, node: NodeId) -> String {
        self.view.member(node).map_or_else(|| node.to_string(), |e| e.value.name.clone())
    }

    fn names(&self, nodes: &[NodeId]) -> String {
        nodes.iter().map(|node| self.name(*node)).collect::<Vec<_>>().join(", ")
    }

    fn topic(&self, name: &TopicName) -> Result<&Entry<Topic>, AdminError> {
        self.view.topic(name).ok_or_else(|| AdminError::NoTopic(name.clone()))
    }

    // ---- topics

    fn create(
        &self,
        name: &TopicName,
        partitions: u16,
        replicas: u8,
        min_isr: u8,
        properties: TopicProperties,
    ) -> Result<Vec<Txn>, AdminError> {
        let or = |n: u8, default: u8| if n == 0 { default } else { n };
        let replicas = or(replicas, self.replicas);
        let wanted = if partitions == 0 { self.partitions } else { partitions };
        let min_isr = or(min_isr, replicas / 2 + 1);
        if let Some(there) = self.view.topic(name) {
            let record = &there.value.record;
            let is_same = (partitions == 0 || record.partitions == partitions)
                && record.replicas == replicas
                && (properties == TopicProperties::default() || record.properties == properties);
            return if is_same { Ok(vec![]) } else { Err(AdminError::TopicDiffers(name.clone())) };
        }
        if !(1..=PartitionId::COUNT_MAX).contains(&wanted) || replicas > REPLICAS_MAX || min_isr > replicas {
            return Err(AdminError::BadTopic);
        }
        let placed = place(self.view, &self.down, wanted, replicas.into(), min_isr.into())?;
        let (layout, id) = (self.layout(), self.fresh);
        let name_key = layout.key(&Key::Topic(name.clone()));
        let mut txns = vec![];
        for (chunk, first) in placed.chunks(CHUNK).zip((0u16..).step_by(CHUNK)) {
            let mut compares = vec![
                self.is_cluster(),
                Compare::CreateRevision { key: name_key.clone(), is: 0 },
                // A late copy of this finds that the topic was deleted meanwhile.
                Compare::CreateRevision { key: layout.key(&Key::Gone(id)), is: 0 },
            ];
            let numbered = chunk.iter().zip(first..).map(|(replicas, number)| (number, replicas));
            let (then, live) = self.new_partitions(id, numbered, min_isr);
            compares.extend(live);
            txns.push(Txn { compares, then, otherwise: vec![Op::Get { key: name_key.clone() }] });
        }
        let record = TopicRecord::new(id, wanted, replicas, min_isr, properties);
        if let Some(last) = txns.last_mut() {
            last.then.push(Op::Put { key: name_key, value: encode(&record), lease: None });
        }
        Ok(txns)
    }

    /// Removes the partitions of a creation under the id `fresh` that did not get to its end. By the tombstone no late copy of its last
    /// transaction makes the topic visible. `None`: the topic exists under that id.
    pub fn abandoned(&self, name: &TopicName, partitions: u16) -> Option<Txn> {
        let key = self.layout().key(&Key::Topic(name.clone()));
        let there = self.view.topic(name);
        if there.is_some_and(|topic| topic.value.record.id == self.fresh) {
            return None;
        }
        let is_as_seen = match there {
            Some(topic) => Compare::ModRevision { key, is: topic.mod_revision },
            None => Compare::CreateRevision { key, is: 0 },
        };
        let partitions = if partitions == 0 { self.partitions } else { partitions };
        let gone = GoneRecord { name: name.clone(), partitions };
        let then = vec![
            Op::Put { key: self.layout().key(&Key::Gone(self.fresh)), value: encode(&gone), lease: None },
            Op::DeletePrefix { prefix: self.layout().partitions(self.fresh) },
        ];
        Some(Txn { compares: vec![self.is_cluster(), is_as_seen], then, otherwise: vec![] })
    }

    /// Writes of partitions that are new, and compares: those that lead them live.
    fn new_partitions<'r>(
        &self,
        topic: TopicId,
        placed: impl Iterator<Item = (u16, &'r Vec<NodeId>)>,
        min_isr: u8,
    ) -> (Vec<Op>, Vec<Compare>) {
        let (layout, mut then, mut leaders) = (self.layout(), vec![], BTreeSet::new());
        for (number, replicas) in placed {
            let leader = replicas.first().and_then(|n| Some(Leader { node: *n, session: self.view.session(*n)? }));
            leaders.extend(leader.map(|l| (l.node, l.session)));
            let tag = Tag { session: self.session, number: 0 };
            let record = PartitionRecord { tag, ..PartitionRecord::new(1, leader, replicas.clone(), min_isr) };
            let key = layout.key(&Key::Partition(topic, number));
            then.push(Op::Put { key, value: encode(&record), lease: None });
        }
        let live = |(node, session): &(NodeId, u64)| Compare::CreateRevision { key: layout.key(&Key::Node(*node)), is: *session };
        (then, leaders.iter().map(live).collect())
    }

    /// Partitions are added, in transactions of which the last one makes all of them visible. No copy of one writes a partition that is
    /// there: the controller may have changed it.
    fn expand(&self, name: &TopicName, partitions: u16, channels: &[ChannelName]) -> Result<Vec<Txn>, AdminError> {
        let topic = self.topic(name)?;
        let before = &topic.value.record;
        if partitions < before.partitions {
            return Err(AdminError::Shrinks { topic: name.clone(), partitions: before.partitions });
        }
        if partitions == before.partitions {
            return Ok(vec![]);
        }
        if partitions > PartitionId::COUNT_MAX {
            return Err(AdminError::BadTopic);
        }
        let is_new = |number: &u16| self.view.partition(before.id, *number).is_none();
        let numbers: Vec<u16> = (before.partitions..partitions).filter(is_new).collect();
        let placed = place(self.view, &self.down, numbers.len() as u16, before.replicas.into(), before.min_isr.into())?;
        let numbered: Vec<(u16, Vec<NodeId>)> = numbers.into_iter().zip(placed).collect();
        let (layout, name_key) = (self.layout(), self.layout().key(&Key::Topic(name.clone())));
        let as_read = Compare::ModRevision { key: name_key.clone(), is: topic.mod_revision };
        let mut txns = vec![];
        for chunk in numbered.chunks(CHUNK) {
            let (then, live) = self.new_partitions(before.id, chunk.iter().map(|(n, replicas)| (*n, replicas)), before.min_isr);
            let keys: Vec<_> = chunk.iter().map(|(number, _)| layout.key(&Key::Partition(before.id, *number))).collect();
            let absent = keys.iter().map(|key| Compare::CreateRevision { key: key.clone(), is: 0 });
            let compares = [self.is_cluster(), as_read.clone()].into_iter().chain(absent).chain(live).collect();
            let otherwise = [name_key.clone()].into_iter().chain(keys).map(|key| Op::Get { key }).collect();
            txns.push(Txn { compares, then, otherwise });
        }
        let mut record =
            TopicRecord { partitions, channels: channels.iter().map(ToString::to_string).collect(), ..before.clone() };
        record.grown_from.get_or_insert(before.partitions);
        let put = Op::Put { key: name_key.clone(), value: encode(&record), lease: None };
        // Apart from the partitions, so that all of these are there whichever copy of it is the one that counts.
        txns.extend(self.one(&Key::Topic(name.clone()), vec![as_read], vec![put]));
        Ok(txns)
    }

    /// Changes a topic's record. The controller then changes the partitions accordingly.
    fn alter(&self, name: &TopicName, change: &TopicChange) -> Result<Vec<Txn>, AdminError> {
        let topic = self.topic(name)?;
        let before = &topic.value.record;
        let replicas = change.replicas.unwrap_or(before.replicas);
        // A min_isr other than the default was chosen by an operator: it stays.
        let is_default = before.min_isr == before.replicas / 2 + 1;
        let kept = if is_default { replicas / 2 + 1 } else { before.min_isr };
        let min_isr = change.min_isr.unwrap_or(kept);
        if !(1..=REPLICAS_MAX).contains(&replicas) || !(1..=replicas).contains(&min_isr) {
            return Err(AdminError::BadTopic);
        }
        let properties = TopicProperties {
            retention_ms: change.retention_ms.unwrap_or(before.properties.retention_ms),
            retention_bytes: change.retention_bytes.unwrap_or(before.properties.retention_bytes),
            ordered: change.ordered.unwrap_or(before.properties.ordered),
            channels_by_operator: change.channels_by_operator.unwrap_or(before.properties.channels_by_operator),
            max_msg_size: change.max_msg_size.unwrap_or(before.properties.max_msg_size),
            max_defer_ms: change.max_defer_ms.unwrap_or(before.properties.max_defer_ms),
        };
        let record = TopicRecord { replicas, min_isr, properties, ..before.clone() };
        if record == *before {
            return Ok(vec![]);
        }
        let key = self.layout().key(&Key::Topic(name.clone()));
        let compare = vec![Compare::ModRevision { key: key.clone(), is: topic.mod_revision }];
        Ok(self.one(&Key::Topic(name.clone()), compare, vec![Op::Put { key, value: encode(&record), lease: None }]))
    }

    fn delete(&self, name: &TopicName) -> Result<Vec<Txn>, AdminError> {
        let topic = self.topic(name)?;
        let (key, record) = (self.layout().key(&Key::Topic(name.clone())), &topic.value.record);
        let gone = GoneRecord { name: name.clone(), partitions: record.partitions };
        let then = vec![
            Op::Put { key: self.layout().key(&Key::Gone(record.id)), value: encode(&gone), lease: None },
            Op::Delete { key: key.clone() },
            Op::DeletePrefix { prefix: self.layout().partitions(record.id) },
        ];
        Ok(self.one(&Key::Topic(name.clone()), vec![Compare::ModRevision { key, is: topic.mod_revision }], then))
    }

    // ---- partitions

    fn partition(&self, name: &TopicName, number: u16) -> Result<(TopicId, &Entry<PartitionRecord>), AdminError> {
        let id = self.topic(name)?.value.record.id;
        let no_partition = || AdminError::NoPartition { topic: name.clone(), partition: number };
        Ok((id, self.view.partition(id, number).ok_or_else(no_partition)?))
    }

    fn write(&self, (topic, number): (TopicId, u16), entry: &Entry<PartitionRecord>, next: PartitionRecord) -> Vec<Txn> {
        if next == entry.value {
            return vec![];
        }
        let key = Key::Partition(topic, number);
        let stored = self.layout().key(&key);
        let compare = vec![Compare::ModRevision { key: stored.clone(), is: entry.mod_revision }];
        let next = PartitionRecord { tag: Tag { session: self.session, number: 0 }, ..next };
        self.one(&key, compare, vec![Op::Put { key: stored, value: encode(&next), lease: None }])
    }

    fn usable(&self, node: NodeId) -> Result<(), AdminError> {
        let is_usable = self.view.session(node).is_some() && !self.view.is_draining(node);
        if is_usable { Ok(()) } else { Err(AdminError::NodeNotUsable(self.name(node))) }
    }

    /// The other one is added; the first one goes when that one is in sync.
    fn move_replica(&self, name: &TopicName, number: u16, from: NodeId, to: NodeId) -> Result<Vec<Txn>, AdminError> {
        let (topic, entry) = self.partition(name, number)?;
        let record = &entry.value;
        let (has_from, has_to) = (record.replicas.contains(&from), record.replicas.contains(&to));
        if has_to && (!has_from || record.leaving == Some(from)) {
            return Ok(vec![]);
        }
        if !has_from || has_to {
            let (topic, partition, replicas) = (name.clone(), number, self.names(&record.replicas));
            return Err(match has_from {
                false => AdminError::NotThere { topic, partition, from: self.name(from), replicas },
                true => AdminError::ThereAlready { topic, partition, to: self.name(to), replicas },
            });
        }
        self.usable(to)?;
        let mut next = PartitionRecord { leaving: Some(from), ..record.clone() };
        next.replicas.push(to);
        Ok(self.write((topic, number), entry, next))
    }

    /// Makes the node the first replica, and asks the leader to hand over to it.
    fn move_leader(&self, name: &TopicName, number: u16, to: NodeId) -> Result<Vec<Txn>, AdminError> {
        let (topic, entry) = self.partition(name, number)?;
        let record = &entry.value;
        self.usable(to)?;
        if !record.isr.contains(&to) {
            let (node, isr) = (self.name(to), self.names(&record.isr));
            return Err(AdminError::NotInSync { topic: name.clone(), partition: number, node, isr });
        }
        let mut next = record.clone();
        next.replicas.retain(|n| *n != to);
        next.replicas.insert(0, to);
        next.wanted = Some(to).filter(|to| record.leader.is_some_and(|l| l.node != *to));
        Ok(self.write((topic, number), entry, next))
    }

    /// First replicas that do not lead, and could, are to lead: so many as one transaction takes.
    fn rebalance(&self) -> Vec<Txn> {
        let (mut compares, mut then, mut read) = (vec![self.is_cluster()], vec![], vec![]);
        for ((topic, number), entry) in self.view.partitions() {
            let record = &entry.value;
            let first = record.replicas.first().copied().filter(|n| record.isr.contains(n) && self.usable(*n).is_ok());
            let is_led_elsewhere =
                record.leader.is_some_and(|l| Some(l.node) != first && self.view.session(l.node) == Some(l.session));
            if first.is_none() || !is_led_elsewhere || record.wanted.is_some() {
                continue;
            }
            let key = self.layout().key(&Key::Partition(topic, number));
            let tag = Tag { session: self.session, number: 0 };
            let next = PartitionRecord { wanted: first, tag, ..record.clone() };
            compares.push(Compare::ModRevision { key: key.clone(), is: entry.mod_revision });
            read.push(Op::Get { key: key.clone() });
            then.push(Op::Put { key, value: encode(&next), lease: None });
            if then.len() == CHUNK {
                break;
            }
        }
        if then.is_empty() { vec![] } else { vec![Txn { compares, then, otherwise: read }] }
    }

    // ---- nodes

    /// Writes the node's member record again, as it is: a late copy finds that record changed, also when the drain that it asks for came
    /// and went meanwhile.
    fn drain(&self, node: NodeId, wanted: bool) -> Result<Vec<Txn>, AdminError> {
        if self.view.is_draining(node) == wanted {
            return Ok(vec![]);
        }
        let member = self.view.member(node).ok_or_else(|| AdminError::NoNode(node.to_string()))?;
        let (key, of_member) = (self.layout().key(&Key::Drain(node)), self.layout().key(&Key::Member(node)));
        let compares = vec![self.is_cluster(), Compare::ModRevision { key: of_member.clone(), is: member.mod_revision }];
        let change = match wanted {
            true => Op::Put { key: key.clone(), value: encode(&DrainRecord {}), lease: None },
            false => Op::Delete { key: key.clone() },
        };
        let touch = Op::Put { key: of_member.clone(), value: encode(&member.value), lease: None };
        let otherwise = vec![Op::Get { key }, Op::Get { key: of_member }];
        Ok(vec![Txn { compares, then: vec![change, touch], otherwise }])
    }

    fn remove_node(&self, node: NodeId) -> Result<Vec<Txn>, AdminError> {
        let member = self.view.member(node).ok_or_else(|| AdminError::NoNode(node.to_string()))?;
        let replicas = self.view.topic_replicas_of(node).count();
        if replicas > 0 {
            return Err(AdminError::NodeInUse { node: self.name(node), replicas });
        }
        if self.view.session(node).is_some() {
            return Err(AdminError::NodeAlive(self.name(node)));
        }
        let (key, session) = (self.layout().key(&Key::Member(node)), self.layout().key(&Key::Node(node)));
        let compares = vec![
            Compare::ModRevision { key: key.clone(), is: member.mod_revision },
            Compare::CreateRevision { key: session, is: 0 },
        ];
        let then = vec![Op::Delete { key }, Op::Delete { key: self.layout().key(&Key::Drain(node)) }];
        Ok(self.one(&Key::Member(node), compares, then))
    }
}
