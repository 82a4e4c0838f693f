//! An operator: pauses, unpauses, empties and deletes channels, under all the other faults, at the leader or at any node. An answered
//! change holds on every in-sync replica, and with every later leader: `a_pause_holds`, `what_an_operator_removed_never_comes`.

use super::loss::Losses;
use super::meta::TopicPartition;
use super::passing::PassingBook;
use super::topics::Wishes;
use super::world::{Phase, World};
use crate::base::{CoreId, PartitionId};
use crate::replica::states::State;
use crate::seam::event::Event;
use crate::seam::message::{MeshMessage, Ticket};
use crate::sim::node::any::AnyClient;
use crate::sim::node::book::{Answered, Change, ChannelKey, OPERATED};
use std::collections::{BTreeMap, BTreeSet};

/// Request without an answer.
struct OpenChange {
    node: usize,
    life: u64,
    key: TopicPartition,
    change: Change,
    /// True for a request to a node that asks another one, which may carry it out after the request has ended.
    is_elsewhere: bool,
    /// True for a request after the faults, when the leader knows the state.
    is_rest: bool,
}

#[derive(Default)]
pub struct Operator {
    asked: BTreeMap<u64, OpenChange>,
    last_ticket: u64,
    /// Requests that may be carried out until the faults have ended.
    loose: BTreeMap<TopicPartition, Change>,
    /// Channels that go on, or are not there, at rest.
    settled: BTreeSet<TopicPartition>,
    /// Requests to the cluster's agents.
    pub wishes: Wishes,
    pub passing: PassingBook,
    /// Losses that the operator accepted.
    pub losses: Losses,
}

impl Operator {
    pub fn new(wishes: Wishes) -> Operator {
        Operator { wishes, ..Operator::default() }
    }
}

fn channel(key: TopicPartition) -> ChannelKey {
    (key.0, OPERATED.to_owned())
}

impl World {
    /// Makes some change of some channel.
    pub fn operate(&mut self) {
        let keys = self.meta.keys();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.rng.below(keys.len() as u64) as usize];
        let changes = [Change::Pause, Change::Unpause, Change::Unpause, Change::Empty, Change::Delete, Change::Delete];
        let change = changes[self.rng.below(changes.len() as u64) as usize];
        self.ask_for(key, change);
    }

    /// Asks the leader, or a node that asks it, if that listens and nothing is under way.
    fn ask_for(&mut self, key: TopicPartition, change: Change) {
        self.forget_the_dead();
        let is_asked = self.operator.asked.values().any(|a| a.key == key) || self.operator.loose.contains_key(&key);
        let listens = |n: &usize| self.takes_clients(*n) && self.nodes[*n].paused_until <= self.now;
        let Some(leader) = self.meta.leader(key).filter(|n| !is_asked && listens(n)) else { return };
        let at_any = self.plan.faults.strays.operators;
        let is_led_there = self.phase == Phase::Healed || at_any == 0.0 || !self.rng.chance(at_any);
        let n = if is_led_there { leader } else { self.rng.below(self.nodes.len() as u64) as usize };
        if !(self.takes_clients(n) && self.nodes[n].paused_until <= self.now) {
            return;
        }
        let is_elsewhere = !self.takes_itself_for_leader(n, key);
        self.operator.last_ticket += 1;
        let ticket = self.operator.last_ticket;
        self.book.time_is(self.now / super::world::MS);
        self.book.operates(&channel(key), key.1, change);
        let is_rest = self.phase == Phase::Healed;
        self.operator.asked.insert(ticket, OpenChange { node: n, life: self.nodes[n].life, key, change, is_elsewhere, is_rest });
        self.say(|| format!("the operator asks node{n}: {change:?} of {key:?}"));
        let topic = self.meta.topics[&key.0].clone();
        let core = topic.core_of(PartitionId(key.1), self.nodes[n].cores).0 as usize;
        let message = change.ask(Ticket(ticket), topic, key.1, OPERATED);
        self.step(n, core, Event::Mesh { from: CoreId::HTTP, message });
    }

    fn takes_itself_for_leader(&self, n: usize, key: TopicPartition) -> bool {
        use State::{Aligned, Apart, Failed, Idle, Promising, Truncating};
        let Some(r) = &self.nodes[n].running else { return false };
        let mut states = r.shards.iter().flat_map(|shard| shard.replica_states());
        let is_leading = |state| !matches!(state, Idle | Apart | Promising | Truncating | Aligned | Failed);
        states.any(|(route, state)| self.meta.key(route) == Some(key) && is_leading(state))
    }

    /// Drops requests to leaders that are gone.
    fn forget_the_dead(&mut self) {
        let nodes = &self.nodes;
        let is_dead = |a: &OpenChange| nodes[a.node].life != a.life || nodes[a.node].running.is_none();
        let dead: Vec<OpenChange> = self.operator.asked.extract_if(.., |_, a| is_dead(a)).map(|(_, a)| a).collect();
        for OpenChange { key, change, is_elsewhere, .. } in dead {
            self.nobody_knows(key, change, is_elsewhere);
        }
    }

    fn nobody_knows(&mut self, key: TopicPartition, change: Change, is_elsewhere: bool) {
        if is_elsewhere {
            self.operator.loose.insert(key, change);
        } else {
            self.book.operated(&channel(key), key.1, change, Answered::Unknown, true, false);
        }
    }

    /// Ends requests that are still open: after the faults nothing is on its way from node to node, and an asker without an answer gets
    /// none.
    fn end_loose_requests(&mut self) {
        let elsewhere: Vec<OpenChange> = self.operator.asked.extract_if(.., |_, a| a.is_elsewhere).map(|(_, a)| a).collect();
        let loose = std::mem::take(&mut self.operator.loose);
        for (key, change) in elsewhere.into_iter().map(|a| (a.key, a.change)).chain(loose) {
            self.nobody_knows(key, change, false);
        }
    }

    pub fn operator_hears(&mut self, message: MeshMessage) {
        let (ticket, answer) = match message {
            MeshMessage::ChannelChanged { ticket, result } => (ticket, Answered::of(result, |_| None)),
            MeshMessage::OffsetSet { ticket, result } => (ticket, Answered::of(result, |at| Some(at.log_id))),
            MeshMessage::Published { ticket, result } => return self.passing_is_told(ticket, result.is_ok()),
            MeshMessage::LossAccepted { ticket, result } => return self.loss_is_answered(ticket, result),
            _ => return,
        };
        // The request may have ended.
        let Some(asked) = self.operator.asked.remove(&ticket.0) else { return };
        let OpenChange { node, key, change, is_elsewhere, is_rest, .. } = asked;
        self.say(|| format!("node{node} answers the operator: {change:?} of {key:?}: {answer:?}"));
        if is_elsewhere && matches!(answer, Answered::Unknown) {
            return self.nobody_knows(key, change, true);
        }
        if is_rest && !matches!(answer, Answered::Unknown) {
            self.operator.settled.insert(key);
        }
        let is_waiting = |c: &AnyClient| matches!(c, AnyClient::Nsq(c) if c.asks_for_operated());
        let is_wanted = self.clients.values().any(|v| v.key == key && is_waiting(&v.client));
        self.book.time_is(self.now / super::world::MS);
        self.book.operated(&channel(key), key.1, change, answer, is_wanted, is_rest);
    }

    /// Makes all channels go on after the faults; true when the operator has an answer to that.
    pub fn lets_all_go_on(&mut self) -> bool {
        self.end_loose_requests();
        let left: Vec<TopicPartition> = self.meta.keys().into_iter().filter(|key| !self.operator.settled.contains(key)).collect();
        left.iter().for_each(|key| self.ask_for(*key, Change::Unpause));
        left.is_empty()
    }
}
