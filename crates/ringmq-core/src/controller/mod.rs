//! Elects leaders, places replicas, replaces the replicas of nodes that are away, and hands leadership back. The node that holds `ctl`
//! runs it.
//!
//! Pure: takes the [`View`], the time and the changed keys; returns transactions. It owns no data that a successor would need: every
//! decision follows from the view, and from the time for which nodes have been away. Every node notes these times, since it may become
//! the controller.
//!
//! ```text
//! observe: a key changed ──> its partitions are due ──plan──> Batch (100 records, one transaction) ──settled──> due again, or done
//!                                     │                             compares the term, each record's revision, each new leader's session
//!                                     ├── held: a mass expiry of leases, for one TTL
//!                                     ├── postponed: too many leaders are moving
//!                                     └── queued: too many replicas are catching up
//! ```
//! A change of 100,000 partitions' metadata costs a look at the partitions that it concerns, and no pass over all.
//!
//! # What holds it together
//! - A leader whose session lives is never replaced: it is asked to hand over (`wanted`), and gives the partition up by itself. The
//!   exception is a leader whose process seems to have ended; its successor delivers nothing until the session is over (`former`).
//! - A leader comes from the ISR, in an epoch of its own. Members whose lease is over leave the ISR with that election, since their
//!   session cannot lead; but never below min_isr, and never when those that stay are all suspect.
//! - A replica is removed when as many others as the topic wants are in sync and alive.

mod balance;
mod batch;
mod decide;
mod load;
mod nodes;
pub mod placement;
mod rebuilds;
#[cfg(test)]
mod tests;
mod worklist;

pub use batch::Batch;

use crate::base::{NodeId, Ticks, TopicId};
use crate::metadata::keys::Key;
use crate::metadata::record::PartitionRecord;
use crate::metadata::view::{Changed, View};
use balance::Balance;
use batch::{Draft, Writes};
use decide::Verdict;
use nodes::Nodes;
use placement::places;
use rebuilds::Rebuilds;
use std::collections::BTreeSet;
use std::time::Duration;
use worklist::{Stage, Worklist};

/// A topic's id and a partition's number.
pub type PartitionKey = (TopicId, u16);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerOptions {
    /// TTL of the nodes' leases.
    pub ttl: Duration,
    /// A node that is away for so long is replaced by others.
    pub replace_after: Duration,
    /// Partitions with a replica that catches up, at most, before another one is begun.
    pub rebuilds_max: usize,
    /// Leaders that are asked to hand over at a time, at most.
    pub hand_overs_max: usize,
    /// A node that came back gets its leaders after so long.
    pub calm: Duration,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        ControllerOptions {
            ttl: Duration::from_secs(10),
            replace_after: Duration::from_secs(600),
            rebuilds_max: 32,
            hand_overs_max: 16,
            calm: Duration::from_secs(30),
        }
    }
}

#[derive(Debug)]
pub struct Controller {
    options: ControllerOptions,
    nodes: Nodes,
    is_in_office: bool,
    work: Worklist,
    rebuilds: Rebuilds,
    /// Partitions whose leader is asked to hand over.
    handing: BTreeSet<PartitionKey>,
    writes: Writes,
    balance: Balance,
}

impl Controller {
    pub fn new(me: NodeId, options: ControllerOptions) -> Controller {
        Controller {
            nodes: Nodes::new(me, &options),
            is_in_office: false,
            work: Worklist::default(),
            rebuilds: Rebuilds::new(options.rebuilds_max),
            handing: BTreeSet::new(),
            writes: Writes::new(),
            balance: Balance::default(),
            options,
        }
    }

    pub fn options(&self) -> &ControllerOptions {
        &self.options
    }

    /// Time until the replicas of a node that is away are made elsewhere. `None`: it is there.
    pub fn replaced_in(&self, now: Ticks, node: NodeId) -> Option<Duration> {
        self.nodes.replaced_in(now, node)
    }

    /// Partitions with a live replica that is not in sync.
    pub fn rebuilding(&self) -> usize {
        self.rebuilds.count()
    }

    /// Whether the node's process is taken for ended, though its lease is not.
    pub fn is_down(&self, view: &View, node: NodeId) -> bool {
        self.nodes.is_down(view, node)
    }

    /// Nodes whose process is taken for ended, though their lease is not.
    pub fn down(&self, view: &View) -> BTreeSet<NodeId> {
        self.nodes.down(view)
    }

    /// The session's process is taken for ended; `None`: it is not.
    pub fn set_down(&mut self, view: &View, node: NodeId, session: Option<u64>) {
        self.nodes.set_down(node, session);
        self.look_at(view, node);
    }

    // ---- observation, by every node

    /// A change of the view. The node notes it whether it is the controller or not.
    pub fn observe(&mut self, now: Ticks, view: &View, changed: &Changed) {
        for key in &changed.keys {
            match key {
                Key::Node(node) => {
                    if self.nodes.see_session(now, view, *node) {
                        self.work.release(Stage::Short);
                    }
                    self.look_at(view, *node);
                }
                Key::Member(node) => {
                    self.nodes.see_member(now, view, *node);
                    self.look_at(view, *node);
                }
                Key::Drain(node) => {
                    self.look_at(view, *node);
                    self.work.release(Stage::Short);
                }
                Key::Partition(topic, number) => self.see_partition(view, (*topic, *number)),
                Key::Topic(name) => {
                    if let Some(topic) = view.topic(name).map(|e| e.value.record.id).filter(|_| self.is_in_office) {
                        view.partitions_of(topic).for_each(|(number, _)| self.work.look_at((topic, number)));
                    }
                }
                _ => {}
            }
        }
    }

    fn look_at(&mut self, view: &View, node: NodeId) {
        for at in view.replicas_of(node) {
            self.see_partition(view, at);
        }
    }

    fn see_partition(&mut self, view: &View, at: PartitionKey) {
        if !self.is_in_office {
            return;
        }
        let record = view.partition(at.0, at.1).map(|e| &e.value);
        self.note(view, at, record);
        if record.is_some() {
            self.work.look_at(at);
        }
    }

    /// Takes in the partition's record, as it is or is about to be.
    fn note(&mut self, view: &View, at: PartitionKey, record: Option<&PartitionRecord>) {
        self.rebuilds.note(at, record.is_some_and(|r| catches_up(view, r)));
        match record.is_some_and(|r| r.wanted.is_some()) {
            true => drop(self.handing.insert(at)),
            false => drop(self.handing.remove(&at)),
        }
    }

    // ---- decisions, by the controller

    /// The node holds `ctl`. Everything is looked at once.
    pub fn take_office(&mut self, now: Ticks, view: &View) {
        self.leave_office();
        self.is_in_office = true;
        self.balance.put_off(now);
        let all: Vec<PartitionKey> = view.partitions().map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.see_partition(view, at));
    }

    pub fn leave_office(&mut self) {
        self.is_in_office = false;
        self.work.clear();
        self.rebuilds.clear();
        self.handing.clear();
        self.writes.clear();
    }

    pub fn is_in_office(&self) -> bool {
        self.is_in_office
    }

    /// The next records to write, if there are any now.
    pub fn plan(&mut self, now: Ticks, view: &View, term: u64, session: u64) -> Option<Batch> {
        if !self.is_in_office || !self.writes.may_begin() {
            return None;
        }
        self.look_at_times(now, view);
        let mut draft = Draft::default();
        while self.writes.has_room(&draft) {
            let Some(at) = self.work.take(Stage::Due).or_else(|| self.next_queued()) else { break };
            let Some(entry) = view.partition(at.0, at.1) else { continue };
            let moved = self.balance.take(at, entry);
            let verdict = match (self.decide(now, view, at, &entry.value), moved) {
                (Verdict::Rest, Some(moved)) => moved.into(),
                (verdict, _) => verdict,
            };
            match verdict {
                Verdict::Rest => {}
                Verdict::Wait(stage) => self.work.put(at, stage),
                Verdict::Write(record) => {
                    let record = PartitionRecord { tag: self.writes.tag(session), ..*record };
                    // The limits also count the moves and catch-ups that this transaction adds.
                    self.note(view, at, Some(&record));
                    draft.add(view, at, entry, &record);
                    self.work.put(at, Stage::InFlight);
                }
            }
        }
        let batch = draft.batch(view, term)?;
        self.writes.begun();
        Some(batch)
    }

    /// The next partition that waits for others to have caught up, if they have.
    fn next_queued(&mut self) -> Option<PartitionKey> {
        if self.rebuilds.may_begin() { self.work.take(Stage::Queued) } else { None }
    }

    /// Takes a batch's outcome; the view holds the answer's content already.
    pub fn settled(&mut self, view: &View, batch: &Batch, succeeded: bool) {
        self.writes.settled(batch, succeeded);
        for at in &batch.partitions {
            self.work.settle(*at);
            self.see_partition(view, *at);
        }
    }

    /// Time at which [`Controller::plan`] gets new work.
    pub fn deadline(&self) -> Option<Ticks> {
        if !self.is_in_office {
            return None;
        }
        let is_due = self.work.has_any(Stage::Due) || self.work.has_any(Stage::Queued) && self.rebuilds.may_begin();
        if is_due && self.writes.may_begin() {
            return Some(Ticks(0));
        }
        let held = self.work.has_any(Stage::Held).then_some(self.nodes.held_until());
        held.into_iter().chain(self.nodes.next_late()).chain([self.balance.next_at()]).min()
    }

    fn look_at_times(&mut self, now: Ticks, view: &View) {
        if now >= self.nodes.held_until() {
            self.work.release(Stage::Held);
        }
        self.nodes.take_late(now).into_iter().for_each(|node| self.look_at(view, node));
        if now >= self.balance.next_at() {
            self.balance.put_off(now);
            self.rebuilds.meet(now);
            self.work.release(Stage::Postponed);
            self.look_at_balance(now, view);
        }
    }

    fn look_at_balance(&mut self, now: Ticks, view: &View) {
        if !self.is_calm(now) {
            return self.balance.forget();
        }
        let places = places(view, &self.nodes.down(view));
        let moved = self.balance.look(view, &places, self.options.rebuilds_max, self.handing.is_empty());
        moved.for_each(|at| self.work.look_at(at));
    }

    /// Whether the cluster is calm: nothing catches up, no absent node may still come back, and nothing is written at the moment. A
    /// replica that catches up for as long as a node may be away waits for an operator, or for a disk: the others do not wait for it.
    fn is_calm(&self, now: Ticks) -> bool {
        let is_stuck = self.rebuilds.are_stuck(now, self.options.replace_after);
        is_stuck && self.nodes.are_settled(now) && !self.work.has_any(Stage::InFlight)
    }
}

/// Whether a living replica is not in sync.
fn catches_up(view: &View, record: &PartitionRecord) -> bool {
    record.replicas.iter().any(|n| view.session(*n).is_some() && !record.isr.contains(n))
}
