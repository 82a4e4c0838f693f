//! Requests of an operator, or of a client's first publish, to the cluster. Any node carries them out: each is a transaction, or a few
//! of them whose last one makes the whole visible ([`plans`](super::plans)).

use super::plans::Planner;
use super::{Agent, Effect, Purpose};
use crate::base::{ChannelName, NodeId, PartitionId, Ticks, TopicId, TopicName};
use crate::controller::placement::TooFewNodes;
use crate::metadata::keys::{Key, parse_id};
use crate::metadata::request::{Compare, Op, Request, Txn};
use crate::seam::cluster::TopicProperties;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Attempts whose compares fail, since something else changed.
pub const TRIES_MAX: u32 = 8;
/// Requests that are not finished, at most.
const ADMINS_MAX: usize = 1024;

/// A request. Nodes go by their name or their id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admin {
    /// 0: the cluster's defaults. A topic that is there as it is asked for is an answer, too.
    CreateTopic {
        name: TopicName,
        partitions: u16,
        replicas: u8,
        min_isr: u8,
        properties: TopicProperties,
    },
    AlterTopic {
        name: TopicName,
        change: TopicChange,
    },
    /// The topic gets more partitions, so many in all, which begin with these channels.
    ExpandTopic {
        name: TopicName,
        partitions: u16,
        channels: Vec<ChannelName>,
    },
    DeleteTopic {
        name: TopicName,
    },
    /// Moves a replica: another node gets the partition in the place of one that has it.
    MoveReplica {
        name: TopicName,
        partition: u16,
        from: String,
        to: String,
    },
    /// A member of the ISR leads.
    MoveLeader {
        name: TopicName,
        partition: u16,
        to: String,
    },
    /// Leaders go to the first replicas of their partitions, as many as one transaction takes. The controller does it by itself in a while.
    Rebalance,
    /// Drains a node: it gets nothing new, and its replicas go elsewhere.
    Drain {
        node: String,
    },
    Undrain {
        node: String,
    },
    /// The cluster forgets a node that is away and holds no replica.
    RemoveNode {
        node: String,
    },
}

/// Properties to change. `None`: unchanged; `Some(None)`: the nodes' settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TopicChange {
    pub replicas: Option<u8>,
    pub min_isr: Option<u8>,
    pub retention_ms: Option<Option<u64>>,
    pub retention_bytes: Option<Option<u64>>,
    pub ordered: Option<bool>,
    pub channels_by_operator: Option<bool>,
    pub max_msg_size: Option<Option<u64>>,
    pub max_defer_ms: Option<Option<u64>>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdminError {
    #[error(
        "topic {0} exists with other partitions, replicas or properties than requested: POST /topic/partition/expand adds partitions, \
         /topic/meta/update changes the others"
    )]
    TopicDiffers(TopicName),
    #[error("topic {topic} has {partitions} partitions: the number of partitions can only grow")]
    Shrinks { topic: TopicName, partitions: u16 },
    #[error("there is no topic {0}")]
    NoTopic(TopicName),
    #[error("topic {topic} has no partition {partition}")]
    NoPartition { topic: TopicName, partition: u16 },
    #[error("there is no node {0}")]
    NoNode(String),
    #[error("several nodes have the name {0}: give the node's id")]
    AmbiguousNode(String),
    #[error("node {0} is away, or is drained")]
    NodeNotUsable(String),
    #[error("node {0} is alive: drain it, then stop it")]
    NodeAlive(String),
    #[error(
        "node {node} holds {replicas} replicas (ringmq cluster partitions): drain it first. Replicas that no other node can take \
         stay on it: add a node, or lower the replicas of the topics"
    )]
    NodeInUse { node: String, replicas: usize },
    #[error("partition {partition} of topic {topic} has no replica on node {from}; it has replicas on {replicas}")]
    NotThere { topic: TopicName, partition: u16, from: String, replicas: String },
    #[error(
        "partition {partition} of topic {topic} has a replica on node {to} already; it has replicas on {replicas}. Without --from \
         (move_leader=true) the node leads"
    )]
    ThereAlready { topic: TopicName, partition: u16, to: String, replicas: String },
    #[error("node {node} is not in sync for partition {partition} of topic {topic}; only {isr} can lead")]
    NotInSync { topic: TopicName, partition: u16, node: String, isr: String },
    #[error("a topic has 1 to {} partitions, 1 to 5 replicas, and a min_isr of 1 to its replicas", PartitionId::COUNT_MAX)]
    BadTopic,
    #[error(transparent)]
    TooFewNodes(#[from] TooFewNodes),
    #[error("this node has no session with the metadata store: try again, or ask another node")]
    NoSession,
    #[error("the metadata changed during every attempt: try again")]
    Busy,
    #[error("the metadata store refuses the change; the log of this node has the reason")]
    Refused,
    #[error("the metadata store does not answer; the log of this node has the reason: try again")]
    StoreAway,
    #[error("this node has {ADMINS_MAX} unfinished changes, the most possible: try again")]
    TooMany,
}

#[derive(Debug)]
struct Work {
    admin: Admin,
    /// The next transactions, in order.
    left: VecDeque<Txn>,
    tries: u32,
    confirmed: Confirmed,
    /// Id of the topic that the last attempt creates.
    fresh: TopicId,
    creation: Creation,
}

/// Partitions in the store of a topic whose creation is not finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Creation {
    #[default]
    NotBegun,
    /// Some transactions of the last attempt succeeded.
    Begun,
    /// The attempt failed, and its partitions are being removed.
    Clearing,
}

/// Whether the store was read since the request came: an answer from the view alone is confirmed by a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Confirmed {
    #[default]
    No,
    Reading,
    Yes,
}

#[derive(Debug, Default)]
pub(super) struct Admins {
    works: BTreeMap<u64, Work>,
}

impl Agent {
    pub(super) fn admin(&mut self, now: Ticks, token: u64, admin: Admin, out: &mut Vec<Effect>) {
        if self.admins.works.len() >= ADMINS_MAX {
            return out.push(Effect::Admin { token, result: Err(AdminError::TooMany) });
        }
        let (confirmed, creation, fresh) = (Confirmed::No, Creation::NotBegun, TopicId([0; 16]));
        self.attempt(now, token, Work { admin, left: VecDeque::new(), tries: 0, confirmed, fresh, creation }, out);
    }

    fn attempt(&mut self, now: Ticks, token: u64, mut work: Work, out: &mut Vec<Effect>) {
        let txns = match self.session.live() {
            Some(session) => {
                (work.fresh, work.creation) = (TopicId(self.rng.bytes_16()), Creation::NotBegun);
                self.planner(session, work.fresh).txns(&work.admin)
            }
            None => Err(AdminError::NoSession),
        };
        let is_view_alone = txns.as_ref().map_or_else(|error| *error != AdminError::NoSession, Vec::is_empty);
        if is_view_alone
            && work.confirmed == Confirmed::No
            && let Some(txn) = self.read_for(&work.admin)
        {
            work.confirmed = Confirmed::Reading;
            self.admins.works.insert(token, work);
            return self.send(now, Purpose::Admin(token), Request::Txn(txn), out);
        }
        match txns {
            Err(error) if work.tries > 0 && work.admin.is_done_by(&error) => {
                out.push(Effect::Admin { token, result: Ok(work.admin.done()) });
            }
            Err(error) => out.push(Effect::Admin { token, result: Err(error) }),
            Ok(txns) => {
                work.left = txns.into();
                self.next_txn(now, token, work, out);
            }
        }
    }

    /// Transaction that reads the keys on which the answer to a request depends, if the answer would come from the view alone: another
    /// node may have changed them, and the watch may be late.
    fn read_for(&self, admin: &Admin) -> Option<Txn> {
        let key = match admin {
            Admin::CreateTopic { name, .. }
            | Admin::AlterTopic { name, .. }
            | Admin::ExpandTopic { name, .. }
            | Admin::DeleteTopic { name }
            | Admin::MoveReplica { name, .. }
            | Admin::MoveLeader { name, .. } => Key::Topic(name.clone()),
            Admin::Drain { node } | Admin::Undrain { node } => Key::Drain(parse_id(node).map(NodeId)?),
            Admin::Rebalance | Admin::RemoveNode { .. } => return None,
        };
        let key = self.view.layout().key(&key);
        // No key holds an empty value, so the compare fails.
        let compares = vec![Compare::Value { key: key.clone(), is: Bytes::new() }];
        Some(Txn { compares, then: vec![], otherwise: vec![Op::Get { key }] })
    }

    fn next_txn(&mut self, now: Ticks, token: u64, mut work: Work, out: &mut Vec<Effect>) {
        match work.left.pop_front() {
            Some(txn) => {
                self.admins.works.insert(token, work);
                self.send(now, Purpose::Admin(token), Request::Txn(txn), out);
            }
            None => out.push(Effect::Admin { token, result: Ok(work.admin.done()) }),
        }
    }

    pub(super) fn admin_answered(&mut self, now: Ticks, token: u64, succeeded: bool, out: &mut Vec<Effect>) {
        let Some(mut work) = self.admins.works.remove(&token) else { return };
        if work.creation == Creation::Clearing {
            work.creation = Creation::NotBegun;
            return self.again(now, token, work, out);
        }
        if succeeded {
            if matches!(work.admin, Admin::CreateTopic { .. }) && !work.left.is_empty() {
                work.creation = Creation::Begun;
            }
            return self.next_txn(now, token, work, out);
        }
        if work.confirmed == Confirmed::Reading {
            work.confirmed = Confirmed::Yes;
            return self.attempt(now, token, work, out);
        }
        // An earlier copy may have done it: then the view, which has the keys just read, shows that.
        work.tries += 1;
        if work.creation == Creation::Begun
            && let Some(txn) = self.clearing(&work)
        {
            work.creation = Creation::Clearing;
            self.admins.works.insert(token, work);
            return self.send(now, Purpose::Admin(token), Request::Txn(txn), out);
        }
        self.again(now, token, work, out);
    }

    /// Removal of the partitions that the last attempt wrote.
    fn clearing(&self, work: &Work) -> Option<Txn> {
        let Admin::CreateTopic { name, partitions, .. } = &work.admin else { return None };
        self.planner(0, work.fresh).abandoned(name, *partitions)
    }

    fn again(&mut self, now: Ticks, token: u64, work: Work, out: &mut Vec<Effect>) {
        match work.tries < TRIES_MAX {
            true => self.attempt(now, token, work, out),
            false => out.push(Effect::Admin { token, result: Err(AdminError::Busy) }),
        }
    }

    pub(super) fn admin_refused(&mut self, token: u64, error: AdminError, out: &mut Vec<Effect>) {
        if self.admins.works.remove(&token).is_some() {
            out.push(Effect::Admin { token, result: Err(error) });
        }
    }

    fn planner(&self, session: u64, fresh: TopicId) -> Planner<'_> {
        let (replicas, partitions) = (self.options.replicas, self.options.partitions);
        let down = self.controller.down(&self.view);
        Planner { view: &self.view, replicas, partitions, session, fresh, down }
    }
}

impl Admin {
    /// Whether an error says that an earlier attempt has done it.
    pub fn is_done_by(&self, error: &AdminError) -> bool {
        matches!(
            (self, error),
            (Admin::DeleteTopic { .. }, AdminError::NoTopic(_)) | (Admin::RemoveNode { .. }, AdminError::NoNode(_))
        )
    }

    /// The state after the change, as a sentence.
    pub fn done(&self) -> String {
        match self {
            Admin::CreateTopic { name, .. } => format!("topic {name} exists"),
            Admin::AlterTopic { name, .. } => format!("topic {name} has the requested properties"),
            Admin::ExpandTopic { name, partitions, .. } => format!("topic {name} has {partitions} partitions"),
            Admin::DeleteTopic { name } => format!("topic {name} is deleted"),
            Admin::MoveReplica { name, partition, from, to } => {
                format!("partition {partition} of topic {name} moves from {from} to {to}")
            }
            Admin::MoveLeader { name, partition, to } => format!("partition {partition} of topic {name} is handed over to {to}"),
            Admin::Rebalance => "partitions are handed over to their first replicas".into(),
            Admin::Drain { node } => format!("node {node} is being drained"),
            Admin::Undrain { node } => format!("node {node} is no longer being drained"),
            Admin::RemoveNode { node } => format!("node {node} is removed"),
        }
    }
}
