//! Requests of an operator to the agents: topics that clients use, topics that come and go, nodes that are drained. Every request goes
//! to some agent, and is made again until it is carried out. Answered requests hold: `a_deleted_topic_stays_deleted`,
//! `only_a_deleted_topic_goes`.

use super::meta::TopicPartition;
use super::store::PASSING;
use super::world::{Phase, SECOND, World};
use crate::agent::{Admin, AdminError, Event};
use crate::base::{ChannelName, TopicId, TopicName};
use crate::seam::cluster::Fact;
use crate::sim::node::book::topic_name;
use std::collections::{BTreeMap, BTreeSet};

/// Topics that come and go, at a time.
const PASSING_MAX: usize = 4;
/// Partitions of those that get more.
const GROWN: u16 = 4;

/// A request that has no answer yet.
struct OpenRequest {
    node: usize,
    life: u64,
    at: u64,
    admin: Admin,
    /// The topic that had the name then. Another request may make one of the same name meanwhile.
    topic: Option<TopicId>,
    /// Value of [`Wishes::changes`] when the topic was asked for.
    changes: usize,
}

#[derive(Default)]
pub struct Wishes {
    /// Topics of clients, with their partitions.
    topics: Vec<(TopicName, u16)>,
    /// Topics that come and go and are wanted, or not wanted any more.
    passing: BTreeMap<TopicName, bool>,
    /// Topics of `passing` that are to have more partitions than at first.
    grown: BTreeSet<TopicName>,
    made: usize,
    /// Wishes for topics that came and went.
    changes: usize,
    drained: BTreeSet<usize>,
    asked: BTreeMap<u64, OpenRequest>,
    tokens: u64,
}

impl Wishes {
    pub fn new(topics: Vec<(TopicName, u16)>) -> Wishes {
        Wishes { topics, ..Wishes::default() }
    }

    fn want(&mut self, name: TopicName, is_wanted: bool) {
        self.changes += 1;
        self.grown.remove(&name);
        self.passing.insert(name, is_wanted);
    }
}

impl World {
    /// A topic comes or goes.
    pub fn change_topics(&mut self) {
        let wishes = &mut self.operator.wishes;
        let there: Vec<TopicName> =
            wishes.passing.iter().filter(|(_, is_wanted)| **is_wanted).map(|(name, _)| name.clone()).collect();
        if there.len() < PASSING_MAX && self.rng.chance(0.6) {
            let gone: Vec<TopicName> =
                wishes.passing.iter().filter(|(_, is_wanted)| !**is_wanted).map(|(name, _)| name.clone()).collect();
            let name = match gone.len() as u64 {
                0 => None,
                all => Some(self.rng.below(2 * all) as usize).and_then(|at| gone.get(at).cloned()),
            };
            // Some come back under a name that another one had.
            let name = name.unwrap_or_else(|| {
                wishes.made += 1;
                TopicName::new(&topic_name(PASSING + wishes.made)).expect("a valid name")
            });
            wishes.want(name, true);
        } else if !there.is_empty() {
            let name = there[self.rng.below(there.len() as u64) as usize].clone();
            match self.rng.chance(0.5) {
                true => drop(wishes.grown.insert(name)),
                false => wishes.want(name, false),
            }
        }
    }

    pub fn change_drain(&mut self, n: usize) {
        let drained = &mut self.operator.wishes.drained;
        if !drained.remove(&n) {
            drained.insert(n);
        }
    }

    /// Repeats the operator's requests that are not fulfilled yet.
    pub fn operator_goes_on(&mut self) {
        if self.phase != Phase::Faulty {
            self.operator.wishes.drained.clear();
        }
        self.publish_to_passing();
        let (nodes, now) = (&self.nodes, self.now);
        let is_over =
            |a: &OpenRequest| nodes[a.node].life != a.life || nodes[a.node].running.is_none() || now > a.at + 5 * SECOND;
        self.operator.wishes.asked.retain(|_, a| !is_over(a));
        for admin in self.unfulfilled() {
            if self.operator.wishes.asked.values().any(|a| a.admin == admin) {
                continue;
            }
            let both = self.rng.chance(0.3);
            self.ask_some_agent(admin.clone());
            if both {
                self.ask_some_agent(admin);
            }
        }
    }

    fn unfulfilled(&self) -> Vec<Admin> {
        let (wishes, layout) = (&self.operator.wishes, &self.meta.store.layout);
        let (replicas, min_isr) = (self.plan.replicas as u8, self.plan.min_isr as u8);
        let is_there = |name: &TopicName| self.meta.topics.values().any(|t| t.name == *name);
        let create = |name: &TopicName, partitions| Admin::CreateTopic {
            name: name.clone(),
            partitions,
            replicas,
            min_isr,
            properties: Default::default(),
        };
        let of_clients = wishes.topics.iter().filter(|(name, _)| !is_there(name)).map(|(name, p)| create(name, *p));
        let passing = wishes.passing.iter().filter(|(name, is_wanted)| is_there(name) != **is_wanted);
        let passing = passing.map(|(name, is_wanted)| match is_wanted {
            true => create(name, 1 + name.len() as u16 % 2),
            false => Admin::DeleteTopic { name: name.clone() },
        });
        let has_more = |name: &TopicName| self.meta.topics.values().any(|t| t.name == *name && t.partitions >= GROWN);
        let growing = wishes.grown.iter().filter(|name| is_there(name) && !has_more(name));
        let channels = vec![ChannelName::new("first").expect("a valid name")];
        let growing =
            growing.map(|name| Admin::ExpandTopic { name: name.clone(), partitions: GROWN, channels: channels.clone() });
        let is_drained = |n: usize| {
            let key = layout.key(&crate::metadata::keys::Key::Drain(self.nodes[n].id));
            self.meta.store.etcd.get(&key).is_some()
        };
        let changes = (0..self.nodes.len()).filter(|n| is_drained(*n) != wishes.drained.contains(n));
        let drains = changes.map(|n| match wishes.drained.contains(&n) {
            true => Admin::Drain { node: self.nodes[n].id.to_string() },
            false => Admin::Undrain { node: self.nodes[n].id.to_string() },
        });
        let is_over = self.phase != Phase::Faulty;
        let lacking = if is_over { self.lacks_replicas() } else { vec![] };
        of_clients.chain(passing).chain(growing).chain(drains).chain(lacking).collect()
    }

    pub fn ask_some_agent(&mut self, admin: Admin) {
        let listens = |n: &usize| self.takes_clients(*n) && self.nodes[*n].paused_until <= self.now;
        let listening: Vec<usize> = (0..self.nodes.len()).filter(listens).collect();
        if listening.is_empty() {
            return;
        }
        let node = listening[self.rng.below(listening.len() as u64) as usize];
        let named = match &admin {
            Admin::DeleteTopic { name } => self.meta.topics.values().find(|t| t.name == *name),
            _ => None,
        };
        let topic = named.map(|t| t.id);
        let wishes = &mut self.operator.wishes;
        wishes.tokens += 1;
        let (token, life, changes) = (wishes.tokens, self.nodes[node].life, wishes.changes);
        wishes.asked.insert(token, OpenRequest { node, life, at: self.now, admin: admin.clone(), topic, changes });
        self.say(|| format!("the operator asks node{node}: {admin:?}"));
        self.step_agent(node, Event::Admin { token, admin });
    }

    pub fn operator_is_told(&mut self, token: u64, result: Result<String, AdminError>) {
        self.say(|| format!("the operator is told: {result:?}"));
        let Some(OpenRequest { admin, topic, changes, .. }) = self.operator.wishes.asked.remove(&token) else { return };
        let is_there = |name: &TopicName| self.meta.topics.values().any(|t| t.name == *name);
        match (&admin, &result) {
            (Admin::CreateTopic { name, .. }, Ok(_)) => {
                let wishes = &self.operator.wishes;
                // Another request may have deleted it since, also one that is older and was not answered.
                let deletes = |r: &OpenRequest| matches!(&r.admin, Admin::DeleteTopic { name: deleted } if deleted == name);
                let is_deletion_open = wishes.asked.values().any(deletes);
                let may_be_gone = wishes.passing.contains_key(name) && (wishes.changes != changes || is_deletion_open);
                assert!(may_be_gone || is_there(name), "only_a_deleted_topic_goes: {name} was said to be there, and is not");
            }
            (Admin::DeleteTopic { name }, Ok(_)) => {
                let is_deleted = topic.is_none_or(|id| self.meta.store.deleted(id).is_some());
                assert!(is_deleted, "a_deleted_topic_stays_deleted: {name} was said to be deleted, and has no tombstone");
            }
            _ => {}
        }
    }

    /// An agent tells its cores that a topic is gone: the store has said so before.
    pub fn only_a_deleted_topic_goes(&self, n: usize, facts: &[Fact]) {
        for fact in facts {
            if let Fact::TopicDeleted(topic) = fact {
                let deleted = self.meta.store.deleted(topic.id);
                assert!(deleted.is_some(), "only_a_deleted_topic_goes: node{n} takes {topic:?} for deleted");
            }
        }
    }

    /// A turn of a core ends: it serves nothing of a topic of whose deletion it was told.
    pub fn a_deleted_topic_stays_deleted(&self, n: usize, core: usize) {
        let now = self.nodes[n].clocks(self.now).ticks;
        let Some(r) = &self.nodes[n].running else { return };
        let read = self.core_has_read(n, core);
        for (route, epoch) in r.shards[core].served(now) {
            let deleted = self.meta.store.deleted(route.topic_id);
            assert!(
                deleted.is_none_or(|at| at > read),
                "a_deleted_topic_stays_deleted: node{n} serves {route:?} in {epoch:?}, deleted at {deleted:?}, and has read {read}"
            );
        }
    }

    /// True if all wishes about topics and nodes are fulfilled, and every core knows of every deletion.
    pub fn has_wishes_fulfilled(&mut self) -> bool {
        self.unfulfilled().is_empty() && self.has_told_deletions()
    }

    fn has_told_deletions(&self) -> bool {
        let last = self.meta.store.last_deletion();
        let of = |n: usize| self.nodes[n].running.as_ref().map_or(0, |r| r.shards.len());
        (0..self.nodes.len()).all(|n| (0..of(n)).all(|core| last == 0 || self.core_has_read(n, core) >= last))
    }

    /// Partitions of all topics, and how many replicas each is to have.
    pub fn is_whole(&self, key: &TopicPartition) -> bool {
        let m = &self.meta.entries[key].now;
        let wanted = match self.plan.coordination {
            super::plan::Coordination::Etcd => self.plan.replicas,
            _ => m.replicas.len(),
        };
        m.leader.is_some() && m.isr.len() == m.replicas.len() && m.replicas.len() >= wanted
    }
}
