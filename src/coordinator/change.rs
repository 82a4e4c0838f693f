//! Differences between a new cluster file and the one in force, and the check whether they are allowed.
//!
//! The file has no compare-and-swap. The rules here prevent two leaders in one epoch, and a log that is taken for another one. Each node
//! applies them to the file that it had in force before, also over a restart. A node that was away may have missed versions; so a change
//! that one version may not make, and several in a row may, is judged between neighbouring versions only.

use super::file::{ClusterFile, FilePartition, FileTopic};
use super::offers::Offers;
use crate::base::NodeId;
use crate::base::{PartitionId, TopicName, TopicRef};
use crate::codec::peer::message::Route;
use std::fmt;

/// Reason why the file in force stays in force.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    // ---- of any two versions
    #[error("the file belongs to another cluster: cluster_id never changes; a data path belongs to the cluster that it began in")]
    OtherCluster,
    #[error("the file's version {found} is older than version {in_force} in force: edit the newest file")]
    Older { found: u64, in_force: u64 },
    #[error(
        "the file differs from the one in force and has the same version {version} ({first}): raise version with each change"
    )]
    SameVersion { version: u64, first: String },
    #[error("topic {topic} has the id that topic {before} had: a topic's name never changes")]
    TopicRenamed { topic: TopicName, before: TopicName },
    #[error("topic {topic} has {found} partitions and had {before}: their number never changes")]
    PartitionCount { topic: TopicName, before: u16, found: u16 },
    #[error("partition {number} of topic {topic}: epoch {found} is below {before}; an epoch never falls")]
    EpochFell { topic: TopicName, number: usize, before: u64, found: u64 },
    #[error(
        "partition {number} of topic {topic}: the leader changes from {before} to {found} in epoch {epoch}: raise its epoch, \
         since each epoch has one leader"
    )]
    LeaderInEpoch { topic: TopicName, number: usize, before: String, found: String, epoch: u64 },
    // ---- of one version and the next
    #[error(
        "topic {topic} has another id: a topic's id never changes. For other data under this name remove the topic in one \
         version and add it with its new id in the next"
    )]
    TopicId { topic: TopicName },
    #[error(
        "partition {number} of topic {topic}: {node} cannot lead: it is not in the isr in force ({isr}) and may lack \
         acknowledged messages. Choose a node of that isr, or add {node} to the isr when it has caught up"
    )]
    LeaderNotInSync { topic: TopicName, number: usize, node: String, isr: String },
    #[error(
        "partition {number} of topic {topic}: {node} cannot join the isr yet, since {why}: the node must catch up first, and the leader's \
         log says when it has"
    )]
    JoinsTooSoon { topic: TopicName, number: usize, node: String, why: &'static str },
    #[error(
        "partition {number} of topic {topic}: {node} cannot join the isr yet. This node leads the partition, and has not said under \
         version {version}, which is in force, that {node} has caught up: it may have acknowledged messages that {node} lacks. The log \
         says when {node} has caught up"
    )]
    NotOffered { topic: TopicName, number: usize, node: String, version: u64 },
    #[error(
        "node {node} has another id, so its data path is another one and empty, but partition {number} of topic {topic} has it \
         in its isr. An isr may only name nodes that hold every acknowledged message: take {node} out of it until it has caught up"
    )]
    EmptyInSync { node: String, topic: TopicName, number: usize },
}

/// A difference, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    NodeAdded { name: String },
    NodeGone { name: String },
    NodeChanged { name: String, what: String },
    TopicAdded { name: TopicName },
    TopicGone { topic: TopicRef },
    Partition { topic: TopicName, number: usize, what: String },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::NodeAdded { name } => write!(f, "node {name} is new"),
            Change::NodeGone { name } => write!(f, "node {name} is gone"),
            Change::NodeChanged { name, what } => write!(f, "node {name}: {what}"),
            Change::TopicAdded { name } => write!(f, "topic {name} is new"),
            Change::TopicGone { topic } => write!(f, "topic {} is gone", topic.name),
            Change::Partition { topic, number, what } => write!(f, "partition {number} of topic {topic}: {what}"),
        }
    }
}

/// Changes from `old` to `new`; empty when both say the same.
pub fn compare(old: &ClusterFile, new: &ClusterFile) -> Result<Vec<Change>, Refusal> {
    if old.cluster_id != new.cluster_id {
        return Err(Refusal::OtherCluster);
    }
    if new.version < old.version {
        return Err(Refusal::Older { found: new.version, in_force: old.version });
    }
    if new.version == old.version {
        return match differences(old, new).first() {
            None => Ok(vec![]),
            Some(first) => Err(Refusal::SameVersion { version: new.version, first: first.to_string() }),
        };
    }
    for topic in &new.topics {
        check_topic(old, new, topic)?;
    }
    Ok(differences(old, new))
}

/// Refuses a file that adds a node to the ISR of a partition that `me` leads, unless the node was offered that under the version in
/// force.
pub fn check_offers(old: &ClusterFile, new: &ClusterFile, me: NodeId, offers: &Offers) -> Result<(), Refusal> {
    let is_next = new.version == old.version + 1;
    for topic in &new.topics {
        let Some(before) = old.topic_by_id(topic.info.id) else { continue };
        for (number, (was, is)) in before.partitions.iter().zip(&topic.partitions).enumerate() {
            // Over several versions another leader may have offered it.
            let led = was.leader == Some(me) && (is_next || is.leader == Some(me) && is.epoch == was.epoch);
            let route = Route { topic_id: topic.info.id, partition: PartitionId(number as u16) };
            let is_stranger = |n: &&NodeId| !was.isr.contains(n) && !offers.has(old.version, route, **n);
            if let Some(id) = is.isr.iter().find(is_stranger).filter(|_| led) {
                let (topic, node) = (topic.info.name.clone(), new.name(*id));
                return Err(Refusal::NotOffered { topic, number, node, version: old.version });
            }
        }
    }
    Ok(())
}

fn check_topic(old: &ClusterFile, new: &ClusterFile, topic: &FileTopic) -> Result<(), Refusal> {
    let is_next = new.version == old.version + 1;
    let name = || topic.info.name.clone();
    if let Some(renamed) = old.topic_by_id(topic.info.id).filter(|o| o.info.name != topic.info.name) {
        return Err(Refusal::TopicRenamed { topic: name(), before: renamed.info.name.clone() });
    }
    let Some(before) = old.topic(&topic.info.name) else { return Ok(()) };
    if before.info.id != topic.info.id {
        return if is_next { Err(Refusal::TopicId { topic: name() }) } else { Ok(()) };
    }
    let (count, found) = (before.info.partitions, topic.info.partitions);
    if count != found {
        return Err(Refusal::PartitionCount { topic: name(), before: count, found });
    }
    for (number, (was, is)) in before.partitions.iter().zip(&topic.partitions).enumerate() {
        if is.epoch < was.epoch {
            return Err(Refusal::EpochFell { topic: name(), number, before: was.epoch, found: is.epoch });
        }
        if is.leader != was.leader && is.epoch == was.epoch {
            let (before, found) = (leader(old, was), leader(new, is));
            return Err(Refusal::LeaderInEpoch { topic: name(), number, before, found, epoch: is.epoch });
        }
        if is_next {
            check_step(old, new, topic, number, (was, is))?;
        }
    }
    Ok(())
}

/// Refuses a step that would count a node as in sync that cannot be.
fn check_step(
    old: &ClusterFile,
    new: &ClusterFile,
    topic: &FileTopic,
    number: usize,
    (was, is): (&FilePartition, &FilePartition),
) -> Result<(), Refusal> {
    let topic = || topic.info.name.clone();
    // Another id under a known name: the operator means the node of before, which had all of it.
    let is_replaced = |id: &&NodeId| {
        let before = new.node(**id).and_then(|n| old.nodes.iter().find(|o| o.name == n.name));
        before.is_some_and(|o| o.id != **id)
    };
    if let Some(id) = is.isr.iter().find(is_replaced) {
        return Err(Refusal::EmptyInSync { node: new.name(*id), topic: topic(), number });
    }
    if let Some(id) = is.leader.filter(|id| !was.isr.contains(id)) {
        let isr = old.names(&was.isr).to_string();
        return Err(Refusal::LeaderNotInSync { topic: topic(), number, node: new.name(id), isr });
    }
    for id in is.isr.iter().filter(|id| !was.isr.contains(id)) {
        let why = match was.leader {
            None => "the partition has no leader in the version in force, so no leader brings it up to date",
            Some(_) if !was.replicas.contains(id) => "it is no replica in the version in force",
            Some(_) => continue,
        };
        return Err(Refusal::JoinsTooSoon { topic: topic(), number, node: new.name(*id), why });
    }
    Ok(())
}

fn leader(file: &ClusterFile, p: &FilePartition) -> String {
    p.leader.map_or_else(|| "nobody".into(), |id| file.name(id))
}

fn differences(old: &ClusterFile, new: &ClusterFile) -> Vec<Change> {
    let mut changes = Vec::new();
    for node in &new.nodes {
        let name = node.name.to_string();
        match old.nodes.iter().find(|o| o.name == node.name) {
            None => changes.push(Change::NodeAdded { name }),
            Some(o) if o.id != node.id => {
                changes.push(Change::NodeChanged { name, what: format!("id {} -> {}", o.id, node.id) });
            }
            Some(o) => {
                let (was, is) = (Some(&o.peer_address), Some(&node.peer_address));
                let addresses = [
                    ("peer_address", was, is),
                    ("native_address", o.native_address.as_ref(), node.native_address.as_ref()),
                    ("tcp_address", o.tcp_address.as_ref(), node.tcp_address.as_ref()),
                ];
                for (key, was, is) in addresses.into_iter().filter(|(_, was, is)| was != is) {
                    let text = |a: Option<&std::sync::Arc<str>>| a.map_or("none".to_string(), |a| a.to_string());
                    let what = format!("{key} {} -> {}", text(was), text(is));
                    changes.push(Change::NodeChanged { name: name.clone(), what });
                }
            }
        }
    }
    let gone = old.nodes.iter().filter(|o| new.nodes.iter().all(|n| n.name != o.name));
    changes.extend(gone.map(|o| Change::NodeGone { name: o.name.to_string() }));
    for topic in &new.topics {
        let name = &topic.info.name;
        let Some(before) = old.topic(name).filter(|b| b.info == topic.info) else {
            changes.push(Change::TopicAdded { name: name.clone() });
            continue;
        };
        for (number, (was, is)) in before.partitions.iter().zip(&topic.partitions).enumerate() {
            let what = partition(old, was, new, is);
            if !what.is_empty() {
                changes.push(Change::Partition { topic: name.clone(), number, what });
            }
        }
    }
    changes.extend(gone_topics(old, new).map(|topic| Change::TopicGone { topic }));
    changes
}

/// Topics of `old` that `new` does not have, by their ids.
pub fn gone_topics<'a>(old: &'a ClusterFile, new: &'a ClusterFile) -> impl Iterator<Item = TopicRef> + 'a {
    let is_gone = |t: &&FileTopic| new.topic_by_id(t.info.id).is_none();
    old.topics.iter().filter(is_gone).map(|t| t.info.clone())
}

/// `leader a -> b, epoch 3 -> 4`; empty when nothing differs.
fn partition(old: &ClusterFile, was: &FilePartition, new: &ClusterFile, is: &FilePartition) -> String {
    let mut parts = Vec::new();
    let mut add = |what: &str, was: String, is: String| {
        if was != is {
            parts.push(format!("{what} {was} -> {is}"));
        }
    };
    add("leader", leader(old, was), leader(new, is));
    add("epoch", was.epoch.to_string(), is.epoch.to_string());
    add("isr", old.names(&was.isr).to_string(), new.names(&is.isr).to_string());
    add("replicas", old.names(&was.replicas).to_string(), new.names(&is.replicas).to_string());
    add("min_isr", was.min_isr.to_string(), is.min_isr.to_string());
    parts.join(", ")
}
