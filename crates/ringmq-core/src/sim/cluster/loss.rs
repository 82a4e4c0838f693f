//! Losses that an operator decides on. All in-sync replicas of a partition are away for long; an operator goes on with a replica that was
//! left behind (docs/cluster-failures.md, "Repair by hand"); then the others return with committed messages that are given up, and the
//! operator accepts that at the leader.
//!
//! | check | when |
//! |---|---|
//! | only_what_was_given_up_is_lost | a disk of an in-sync replica has all that was acknowledged and that the accepted log had |
//! | what_was_given_up_never_comes | a client gets none of the rest, and no disk has it in the end |
//! | nothing_goes_that_no_operator_gave_up | until the acceptance a replica that returned has all that it knew to be committed |
//! | every_partition_is_led_in_time | behind the repair, and behind the acceptance ([`super::budget`]) |
//! | quiet_cluster_converges | behind the acceptance all replicas are in sync, and their logs are the same |

use super::meta::{LEASE, TopicPartition};
use super::plan::Coordination;
use super::world::{MS, Phase, SECOND, World};
use crate::agent::{Admin, TopicChange};
use crate::base::{CoreId, LogId, PartitionId, TopicName};
use crate::metadata::keys::Key as StoreKey;
use crate::metadata::record::{PartitionRecord, decode, encode};
use crate::metadata::request::{Compare, Op, Request, Txn};
use crate::seam::event::Event;
use crate::seam::message::{MeshMessage, Ticket};
use crate::seam::outcome::AcceptLossError;
use crate::sim::node::book::Book;
use std::collections::{BTreeMap, BTreeSet};

/// Time after the end of every run.
const FAR: u64 = u64::MAX / 2;
/// Time in which running nodes carry out an operator's request, although faults go on.
const PATIENCE: u64 = 8 * SECOND;
/// Tickets of these requests begin here.
const TICKETS: u64 = 1 << 41;

/// A partition with which an operator went on.
#[derive(Default)]
struct GivenUp {
    /// Messages that are lost.
    messages: BTreeSet<usize>,
    had: BTreeMap<usize, BTreeSet<usize>>,
    /// An operator may have accepted that.
    is_accepted: bool,
}

#[derive(Default)]
pub struct Losses {
    is_on: bool,
    by: BTreeMap<TopicPartition, GivenUp>,
    asked: BTreeMap<u64, TopicPartition>,
    tickets: u64,
    /// Losses that leaders named, and that are to be accepted.
    named: BTreeMap<TopicPartition, String>,
}

impl Losses {
    /// True while in-sync replicas are away.
    pub fn are_on(&self) -> bool {
        self.is_on
    }
}

impl World {
    /// Loses the in-sync replicas of a partition, or of one after another, and lets the cluster converge.
    pub fn lose(&mut self) {
        if self.plan.faults.losses == 0.0 {
            return;
        }
        for _ in 0..2 {
            self.lose_one();
            if !self.rng.chance(self.plan.faults.losses) {
                break;
            }
        }
        self.nobody_has_what_was_given_up();
    }

    fn lose_one(&mut self) {
        let candidates: Vec<TopicPartition> =
            self.meta.keys().into_iter().filter(|key| self.meta.entries[key].now.replicas.len() > 1).collect();
        if candidates.is_empty() {
            return;
        }
        let key = candidates[self.rng.below(candidates.len() as u64) as usize];
        self.all_hang_up();
        self.book.is_calm(false);
        self.phase = Phase::Faulty;
        self.faults = self.plan.faults.beside_losses();
        self.operator.losses.is_on = true;
        self.plan_faults();
        let replicas = self.replicas(key);
        let left = replicas[self.rng.below(replicas.len() as u64) as usize];
        self.say(|| format!("node{left} is left behind with {key:?}"));
        self.take_away(left);
        self.wait_for(5 * SECOND, |w| !w.meta.is_in_sync(key, left));
        self.live_for(300, 2000);
        let mut away = BTreeSet::new();
        while let Some(n) = self.in_sync(key).into_iter().find(|n| *n != left && !away.contains(n)) {
            self.take_away(n);
            away.insert(n);
            if self.rng.chance(0.5) {
                self.live_for(0, 2 * LEASE / MS);
            }
        }
        self.bring_back(left, 100 * MS);
        if self.operator_repairs(key, left, &away) {
            self.live_for(200, 3000);
        }
        for n in away {
            self.bring_back(n, 2 * SECOND);
        }
        self.live_for(500, 4000);
        self.nothing_goes_that_no_operator_gave_up(key);
        self.operator.losses.is_on = false;
        self.converge();
        // Losses that no operator accepted are still there, and then not all logs are the same.
        self.nothing_goes_that_no_operator_gave_up(key);
    }

    fn replicas(&self, key: TopicPartition) -> Vec<usize> {
        self.meta.entries[&key].now.replicas.iter().map(|id| self.meta.index(*id)).collect()
    }

    fn in_sync(&self, key: TopicPartition) -> Vec<usize> {
        self.meta.entries[&key].now.isr.iter().map(|id| self.meta.index(*id)).collect()
    }

    fn take_away(&mut self, n: usize) {
        let is_kill = self.rng.chance(0.5);
        self.go_down(n, is_kill);
        self.nodes[n].is_off_until = FAR;
    }

    fn bring_back(&mut self, n: usize, within: u64) {
        let at = self.soon(within);
        self.nodes[n].is_off_until = at;
        self.queue.put(at, super::events::Happening::Start { node: n });
    }

    fn live_for(&mut self, least_ms: u64, most_ms: u64) {
        let span = least_ms + self.rng.below(most_ms - least_ms);
        self.run_until(self.now + span * MS);
    }

    /// Lets time pass until it is so, for so long at most. Whether it is.
    fn wait_for(&mut self, patience: u64, is_so: impl Fn(&World) -> bool) -> bool {
        let until = self.now + patience;
        while !is_so(self) {
            if self.now >= until {
                return false;
            }
            self.run_until(self.now + 20 * MS);
        }
        true
    }

    /// True if the partition has no leader, and none of before may still serve it.
    fn is_led_by_nobody(&self, key: TopicPartition) -> bool {
        match self.plan.coordination {
            Coordination::Etcd => self.meta.leader(key).is_none(),
            _ => self.meta.leader(key).is_none_or(|n| !self.meta.is_alive(n, self.now)),
        }
    }

    // ---- the repair by hand

    /// An operator goes on with the replica that was left behind. Whether that was to be done: its node may be no replica any more.
    fn operator_repairs(&mut self, key: TopicPartition, left: usize, away: &BTreeSet<usize>) -> bool {
        let is_lost = |w: &World| w.is_led_by_nobody(key) && w.takes_clients(left);
        if !self.wait_for(PATIENCE, is_lost) || !self.one_is_enough(key) {
            return false;
        }
        let is_replica = |w: &World| w.meta.entries[&key].now.is_replica(w.nodes[left].id);
        if !self.wait_for(PATIENCE, is_lost)
            || !is_replica(self)
            || self.in_sync(key).iter().any(|n| !away.contains(n) && *n != left)
        {
            return false;
        }
        // Later answers to clients refer to the log with which the partition continues.
        self.all_hang_up();
        let (found, ends) = self.found_on(left);
        let end = ends.get(&key).map_or(0, |(end, _)| end.offset);
        let messages = self.book.gives_up(key, &found);
        let mut had = BTreeMap::new();
        for &n in away {
            let (found, ends) = self.found_on(n);
            // The rest goes as any tail does that may not be committed.
            let known = ends.get(&key).map_or(LogId(0), |(_, committed)| committed.log_id);
            had.insert(n, Book::standing(&found, &messages).filter(|m| found.stored[m].log_id < known).collect());
        }
        self.say(|| {
            format!("the operator goes on with {key:?} on node{left}, up to {end}; {} messages are lost", messages.len())
        });
        self.check.gives_up(key, end);
        self.tap.decided.insert(key);
        self.meta.counts.repairs += 1;
        self.meta.counts.given_up += messages.len() as u64;
        self.operator.losses.by.insert(key, GivenUp { messages, had, is_accepted: false });
        self.write_repair(key, left);
        true
    }

    /// The topic takes writes with one replica in sync: the controller says so in the record of each partition that has a leader.
    fn one_is_enough(&mut self, key: TopicPartition) -> bool {
        if self.plan.coordination != Coordination::Etcd {
            return true;
        }
        let name = self.meta.topics[&key.0].name.clone();
        let until = self.now + PATIENCE;
        while self.min_isr_of(&name) > 1 {
            if self.now >= until {
                return false;
            }
            let change = TopicChange { min_isr: Some(1), ..TopicChange::default() };
            self.ask_some_agent(Admin::AlterTopic { name: name.clone(), change });
            self.run_until(self.now + 500 * MS);
        }
        true
    }

    fn min_isr_of(&self, topic: &TopicName) -> u8 {
        self.topic_record(topic).expect("the topic is there").min_isr
    }

    fn write_repair(&mut self, key: TopicPartition, node: usize) {
        if self.plan.coordination != Coordination::Etcd {
            self.meta.repair_by_hand(key, node);
            return self.changed(key);
        }
        let store = &mut self.meta.store;
        let at = store.layout.key(&StoreKey::Partition(self.meta.topics[&key.0].id, key.1));
        let known = store.etcd.get(&at).expect("the partition is there").clone();
        let record: PartitionRecord = decode(&known.value).expect("agents write sound records");
        let (epoch, isr) = (record.epoch + 1, vec![self.nodes[node].id]);
        let record = PartitionRecord { epoch, isr, leader: None, ..record };
        let txn = Txn {
            compares: vec![Compare::ModRevision { key: at.clone(), is: known.mod_revision }],
            then: vec![Op::Put { key: at, value: encode(&record), lease: None }],
            otherwise: vec![],
        };
        store.etcd.carry(self.now, &Request::Txn(txn)).expect("the store takes it");
        self.store_changed();
    }

    // ---- the acceptance

    /// An operator asks the leaders for their losses, and accepts them: soon, or at once if all else is at rest.
    pub fn losses_are_accepted(&mut self) {
        let keys: Vec<TopicPartition> = self.operator.losses.by.keys().copied().collect();
        for key in keys {
            self.forget_moved(key);
            if let Some(name) = self.operator.losses.named.remove(&key) {
                self.nothing_goes_that_no_operator_gave_up(key);
                self.operator.losses.by.get_mut(&key).expect("it was given up").is_accepted = true;
                self.ask_for_loss(key, Some(name));
            } else if self.phase == Phase::Healed || self.rng.chance(0.06) {
                self.ask_for_loss(key, None);
            }
        }
    }

    fn ask_for_loss(&mut self, key: TopicPartition, loss: Option<String>) {
        let listens = |n: &usize| self.takes_clients(*n) && self.nodes[*n].paused_until <= self.now;
        let (Some(n), Some(topic)) = (self.meta.leader(key).filter(listens), self.meta.topics.get(&key.0).cloned()) else {
            return;
        };
        let losses = &mut self.operator.losses;
        losses.tickets += 1;
        let ticket = TICKETS + losses.tickets;
        losses.asked.insert(ticket, key);
        let core = topic.core_of(PartitionId(key.1), self.nodes[n].cores).0 as usize;
        let message = MeshMessage::AcceptLoss { ticket: Ticket(ticket), topic, partition: PartitionId(key.1), loss };
        self.step(n, core, Event::Mesh { from: CoreId::HTTP, message });
    }

    pub fn loss_is_answered(&mut self, ticket: Ticket, result: Result<String, AcceptLossError>) {
        let Some(key) = self.operator.losses.asked.remove(&ticket.0) else { return };
        match result {
            Ok(what) => {
                self.say(|| format!("the operator accepts of {key:?}: {what}"));
                self.meta.counts.losses += 1;
            }
            Err(AcceptLossError::NotNamed { name, what }) => {
                self.say(|| format!("the operator is told of {key:?}: {what}"));
                self.operator.losses.named.insert(key, name);
            }
            Err(_) => {}
        }
    }

    /// A replica that moved away has nothing to keep, also when it comes back.
    fn forget_moved(&mut self, key: TopicPartition) {
        let replicas = if self.meta.entries.contains_key(&key) { self.replicas(key) } else { vec![] };
        if let Some(given_up) = self.operator.losses.by.get_mut(&key) {
            given_up.had.retain(|n, _| replicas.contains(n));
        }
    }

    /// Checks that each replica has what it came back with, until an operator accepts that loss.
    fn nothing_goes_that_no_operator_gave_up(&mut self, key: TopicPartition) {
        self.forget_moved(key);
        let Some(given_up) = self.operator.losses.by.get(&key).filter(|g| !g.is_accepted) else { return };
        for (n, had) in given_up.had.clone() {
            let (found, _) = self.found_on(n);
            let gone = had.iter().find(|message| !found.stored.contains_key(message));
            assert!(gone.is_none(), "nothing_goes_that_no_operator_gave_up: message {gone:?} of {key:?} on node{n}");
        }
    }

    /// Checks that no replica has given-up data: all have begun anew.
    fn nobody_has_what_was_given_up(&mut self) {
        let by = std::mem::take(&mut self.operator.losses.by);
        for n in 0..self.nodes.len() {
            let (found, _) = self.found_on(n);
            for (key, given_up) in by.iter().filter(|(key, _)| self.replicas(**key).contains(&n)) {
                let left = Book::standing(&found, &given_up.messages).next();
                assert!(left.is_none(), "what_was_given_up_never_comes: message {left:?} of {key:?} is on node{n}");
            }
        }
    }
}
