//! What an operator, or a client's first publish, asks of the cluster. Any node does it: each is a transaction, or a few of them whose last
//! one makes the whole visible.

use super::{Agent, Effect, Purpose};
use crate::base::{NodeId, PartitionId, Ticks, TopicId, TopicName};
use crate::controller::placement::{TooFewNodes, place};
use crate::metadata::keys::Key;
use crate::metadata::record::{DrainRecord, GoneRecord, Leader, PartitionRecord, Tag, TopicRecord, encode};
use crate::metadata::request::{Compare, Op, Request, Txn};
use crate::seam::membership::REPLICAS_MAX;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Partitions that one transaction creates, at most.
const CHUNK: usize = 60;
/// Attempts whose compares fail, since something else changed.
const TRIES_MAX: u32 = 8;
/// Requests that are not finished, at most.
const ADMINS_MAX: usize = 1024;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admin {
    /// `None` and 0: the cluster's defaults. A topic that is there as it is asked for is an answer, too.
    CreateTopic {
        name: TopicName,
        partitions: u16,
        replicas: u8,
        min_isr: u8,
    },
    DeleteTopic {
        name: TopicName,
    },
    /// Nothing new comes to the node, and what it has goes elsewhere.
    Drain {
        node: NodeId,
    },
    Undrain {
        node: NodeId,
    },
    /// The cluster forgets a node that is away and holds no replica.
    RemoveNode {
        node: NodeId,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AdminError {
    #[error("topic {0} is there with other partitions or replicas than asked for; `alter` or `expand` change them")]
    TopicDiffers(TopicName),
    #[error("there is no topic {0}")]
    NoTopic(TopicName),
    #[error("there is no node {0}")]
    NoNode(NodeId),
    #[error("node {node} holds {replicas} replicas or is alive: drain and stop it first")]
    NodeInUse { node: NodeId, replicas: usize },
    #[error(
        "a topic has 1 to {} partitions, 1 to {REPLICAS_MAX} replicas, and a min_isr of at most its replicas",
        PartitionId::COUNT_MAX
    )]
    BadTopic,
    #[error(transparent)]
    TooFewNodes(#[from] TooFewNodes),
    #[error("this node has no session with the metadata store: try again, or ask another node")]
    NoSession,
    #[error("the metadata changed again and again meanwhile: try again")]
    Busy,
    #[error("the metadata store refuses it; the log of this node has the reason")]
    Refused,
    #[error("this node has {ADMINS_MAX} requests to finish: try again")]
    TooMany,
}

#[derive(Debug)]
struct Work {
    admin: Admin,
    /// The next transactions, in order.
    left: VecDeque<Txn>,
    tries: u32,
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
        self.attempt(now, token, Work { admin, left: VecDeque::new(), tries: 0 }, out);
    }

    fn attempt(&mut self, now: Ticks, token: u64, mut work: Work, out: &mut Vec<Effect>) {
        let txns = match self.session.live() {
            Some(_) => self.txns_of(&work.admin),
            None => Err(AdminError::NoSession),
        };
        let is_deleted =
            work.tries > 0 && matches!((&work.admin, &txns), (Admin::DeleteTopic { .. }, Err(AdminError::NoTopic(_))));
        match txns {
            Err(_) if is_deleted => out.push(Effect::Admin { token, result: Ok(done(&work.admin)) }),
            Err(error) => out.push(Effect::Admin { token, result: Err(error) }),
            Ok(txns) => {
                work.left = txns.into();
                self.next_txn(now, token, work, out);
            }
        }
    }

    fn next_txn(&mut self, now: Ticks, token: u64, mut work: Work, out: &mut Vec<Effect>) {
        match work.left.pop_front() {
            Some(txn) => {
                self.admins.works.insert(token, work);
                self.send(now, Purpose::Admin(token), Request::Txn(txn), out);
            }
            None => out.push(Effect::Admin { token, result: Ok(done(&work.admin)) }),
        }
    }

    pub(super) fn admin_answered(&mut self, now: Ticks, token: u64, succeeded: bool, out: &mut Vec<Effect>) {
        let Some(mut work) = self.admins.works.remove(&token) else { return };
        if succeeded {
            return self.next_txn(now, token, work, out);
        }
        // An earlier copy may have done it: then the view, which has learned what was read, says so.
        work.tries += 1;
        match work.tries < TRIES_MAX {
            true => self.attempt(now, token, work, out),
            false => out.push(Effect::Admin { token, result: Err(AdminError::Busy) }),
        }
    }

    pub(super) fn admin_refused(&mut self, token: u64, out: &mut Vec<Effect>) {
        if self.admins.works.remove(&token).is_some() {
            out.push(Effect::Admin { token, result: Err(AdminError::Refused) });
        }
    }

    /// None at all: it is so already.
    fn txns_of(&mut self, admin: &Admin) -> Result<Vec<Txn>, AdminError> {
        let layout = self.view.layout();
        let id = Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() };
        let one = |key: Key, compare: Vec<Compare>, then: Vec<Op>| {
            let compares = [id.clone()].into_iter().chain(compare).collect();
            vec![Txn { compares, then, otherwise: vec![Op::Get { key: layout.key(&key) }] }]
        };
        match admin {
            Admin::CreateTopic { name, partitions, replicas, min_isr } => self.create(name, *partitions, *replicas, *min_isr),
            Admin::DeleteTopic { name } => {
                let Some(topic) = self.view.topic(name) else { return Err(AdminError::NoTopic(name.clone())) };
                let (key, record) = (layout.key(&Key::Topic(name.clone())), &topic.value.record);
                let gone = GoneRecord { name: name.clone(), partitions: record.partitions };
                let then = vec![
                    Op::Put { key: layout.key(&Key::Gone(record.id)), value: encode(&gone), lease: None },
                    Op::Delete { key: key.clone() },
                    Op::DeletePrefix { prefix: layout.partitions(record.id) },
                ];
                Ok(one(Key::Topic(name.clone()), vec![Compare::ModRevision { key, is: topic.mod_revision }], then))
            }
            Admin::Drain { node } | Admin::Undrain { node } => {
                let wanted = matches!(admin, Admin::Drain { .. });
                if self.view.member(*node).is_none() {
                    return Err(AdminError::NoNode(*node));
                }
                if self.view.is_draining(*node) == wanted {
                    return Ok(vec![]);
                }
                let key = layout.key(&Key::Drain(*node));
                let then = match wanted {
                    true => Op::Put { key, value: encode(&DrainRecord {}), lease: None },
                    false => Op::Delete { key },
                };
                Ok(one(Key::Drain(*node), vec![], vec![then]))
            }
            Admin::RemoveNode { node } => {
                let Some(member) = self.view.member(*node) else { return Err(AdminError::NoNode(*node)) };
                let replicas = self.view.replica_count(*node);
                if replicas > 0 || self.view.session(*node).is_some() {
                    return Err(AdminError::NodeInUse { node: *node, replicas });
                }
                let (key, session) = (layout.key(&Key::Member(*node)), layout.key(&Key::Node(*node)));
                let compares = vec![
                    Compare::ModRevision { key: key.clone(), is: member.mod_revision },
                    Compare::CreateRevision { key: session, is: 0 },
                ];
                let then = vec![Op::Delete { key }, Op::Delete { key: layout.key(&Key::Drain(*node)) }];
                Ok(one(Key::Member(*node), compares, then))
            }
        }
    }

    fn create(&mut self, name: &TopicName, partitions: u16, replicas: u8, min_isr: u8) -> Result<Vec<Txn>, AdminError> {
        let or = |n: u8, default: u8| if n == 0 { default } else { n };
        let replicas = or(replicas, self.options.replicas);
        let wanted = if partitions == 0 { self.options.partitions } else { partitions };
        let min_isr = or(min_isr, replicas / 2 + 1);
        if let Some(there) = self.view.topic(name) {
            let record = &there.value.record;
            let is_same = (partitions == 0 || record.partitions == partitions) && record.replicas == replicas;
            return if is_same { Ok(vec![]) } else { Err(AdminError::TopicDiffers(name.clone())) };
        }
        let is_possible =
            (1..=PartitionId::COUNT_MAX).contains(&wanted) && usize::from(replicas) <= REPLICAS_MAX && min_isr <= replicas;
        if !is_possible {
            return Err(AdminError::BadTopic);
        }
        let id = TopicId(self.rng.bytes_16());
        let placed = place(&self.view, wanted, replicas.into(), min_isr.into())?;
        let (layout, session) = (self.view.layout(), self.session.live().unwrap_or(0));
        let name_key = layout.key(&Key::Topic(name.clone()));
        let mut txns = vec![];
        for (chunk, first) in placed.chunks(CHUNK).zip((0u16..).step_by(CHUNK)) {
            let mut compares = vec![
                Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() },
                Compare::CreateRevision { key: name_key.clone(), is: 0 },
                // A late copy of this finds that the topic was deleted meanwhile.
                Compare::CreateRevision { key: layout.key(&Key::Gone(id)), is: 0 },
            ];
            let mut then = vec![];
            let mut leaders = BTreeSet::new();
            for (replicas, number) in chunk.iter().zip(first..) {
                let leader = replicas.first().and_then(|n| Some(Leader { node: *n, session: self.view.session(*n)? }));
                leaders.extend(leader.map(|l| (l.node, l.session)));
                let tag = Tag { session, number: 0 };
                let (replicas, isr) = (replicas.clone(), replicas.clone());
                let record = PartitionRecord { epoch: 1, leader, replicas, isr, min_isr, wanted: None, former: None, tag };
                let key = layout.key(&Key::Partition(id, number));
                then.push(Op::Put { key, value: encode(&record), lease: None });
            }
            compares.extend(leaders.iter().map(|(n, s)| Compare::CreateRevision { key: layout.key(&Key::Node(*n)), is: *s }));
            txns.push(Txn { compares, then, otherwise: vec![Op::Get { key: name_key.clone() }] });
        }
        let record = TopicRecord { id, partitions: wanted, replicas, min_isr };
        if let Some(last) = txns.last_mut() {
            last.then.push(Op::Put { key: name_key, value: encode(&record), lease: None });
        }
        Ok(txns)
    }
}

fn done(admin: &Admin) -> String {
    match admin {
        Admin::CreateTopic { name, .. } => format!("topic {name} is there"),
        Admin::DeleteTopic { name } => format!("topic {name} is deleted"),
        Admin::Drain { node } => format!("node {node} is being drained"),
        Admin::Undrain { node } => format!("node {node} is drained no more"),
        Admin::RemoveNode { node } => format!("node {node} is removed"),
    }
}
