//! Elects leaders, places replicas, replaces the replicas of nodes that are away, and hands leadership back. The node that holds `ctl`
//! runs it.
//!
//! Pure: takes the [`View`], the time and the changed keys; returns transactions. It owns no data that a successor would need: every
//! decision follows from the view, and from the time for which nodes have been away. Every node notes these times, since it may become
//! the controller.
//!
//! ```text
//! observe: a key changed ──> its partitions are dirty ──plan──> Batch (100 records, one transaction) ──settled──> dirty again, or done
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

pub mod decide;
mod load;
pub mod placement;
#[cfg(test)]
mod tests;

use crate::base::{NodeId, Ticks, TopicId};
use crate::metadata::keys::Key;
use crate::metadata::record::{PartitionRecord, Tag, encode};
use crate::metadata::request::{Compare, Op, Txn};
use crate::metadata::view::{Changed, View};
use decide::Verdict;
use placement::Move;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A topic's id and a partition's number.
pub type PartitionKey = (TopicId, u16);

/// Partitions of a transaction at most. With their compares they stay below the store's limit.
const BATCH_MAX: usize = 100;
/// Compares of a transaction, at most.
const COMPARES_MAX: usize = 124;
/// The controller's writes are numbered apart from those that its node makes as a leader in the same session.
const TAGS: u64 = 1 << 62;
/// Transactions on their way, at most.
const IN_FLIGHT_MAX: usize = 4;
/// Interval at which the balance of the distribution is looked at.
const BALANCE_EVERY: Duration = Duration::from_secs(10);

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

/// Records to write at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    pub partitions: Vec<PartitionKey>,
    pub txn: Txn,
}

#[derive(Debug)]
pub struct Controller {
    me: NodeId,
    options: ControllerOptions,
    /// Sessions that are known, since when, and the starts of their processes.
    sessions: BTreeMap<NodeId, (u64, Ticks, u64)>,
    /// Nodes without a session, and since when.
    away: BTreeMap<NodeId, Ticks>,
    /// Sessions whose process is taken for ended before their lease is.
    down: BTreeMap<NodeId, u64>,
    /// Nodes that are away for too long and whose partitions were looked at for that.
    replaced: BTreeSet<NodeId>,
    /// Time of a node's last lost session, and the start of its process. A process that began since then has no lease to lose.
    lost: BTreeMap<NodeId, (Ticks, u64)>,
    /// Time before which nothing moves: many leases ended at once.
    hold_until: Ticks,
    /// Start of this node's process, once it was registered. The same start in another session says that its lease had ended.
    own_start: Option<u64>,
    /// Nodes that were away when this node first saw them: cause and duration are unknown.
    found_away: BTreeSet<NodeId>,
    /// Time until which a node of `found_away` may come back: a mass expiry of leases may have been just before this process began.
    fresh_until: Ticks,
    in_office: bool,
    dirty: BTreeSet<PartitionKey>,
    held: BTreeSet<PartitionKey>,
    postponed: BTreeSet<PartitionKey>,
    /// Partitions that lack a replica while as many as may be catch up.
    queued: BTreeSet<PartitionKey>,
    /// Partitions that no node can take another replica of. A node that comes may.
    short: BTreeSet<PartitionKey>,
    in_flight: BTreeSet<PartitionKey>,
    batches: usize,
    /// Partitions with a live replica that is not in sync, or is being added.
    rebuilding: BTreeSet<PartitionKey>,
    /// Partitions of `rebuilding` that a look at the distribution has met, with the time of the first look.
    slow: BTreeMap<PartitionKey, Ticks>,
    /// Partitions whose leader is asked to hand over.
    handing: BTreeSet<PartitionKey>,
    /// Records of the next transaction, at most.
    batch_max: usize,
    written: u64,
    balance_at: Ticks,
    /// Moves that the last look at the distribution found.
    moves: BTreeMap<PartitionKey, Move>,
    /// Revision of the load report for which a leader moved away from the node. Its next report shows the effect.
    relieved: BTreeMap<NodeId, u64>,
}

impl Controller {
    pub fn new(me: NodeId, options: ControllerOptions) -> Controller {
        Controller {
            me,
            options,
            sessions: BTreeMap::new(),
            away: BTreeMap::new(),
            down: BTreeMap::new(),
            replaced: BTreeSet::new(),
            lost: BTreeMap::new(),
            hold_until: Ticks(0),
            own_start: None,
            found_away: BTreeSet::new(),
            fresh_until: Ticks(0),
            in_office: false,
            dirty: BTreeSet::new(),
            held: BTreeSet::new(),
            postponed: BTreeSet::new(),
            queued: BTreeSet::new(),
            short: BTreeSet::new(),
            in_flight: BTreeSet::new(),
            batches: 0,
            rebuilding: BTreeSet::new(),
            slow: BTreeMap::new(),
            handing: BTreeSet::new(),
            batch_max: BATCH_MAX,
            written: 0,
            balance_at: Ticks(0),
            moves: BTreeMap::new(),
            relieved: BTreeMap::new(),
        }
    }

    pub fn options(&self) -> &ControllerOptions {
        &self.options
    }

    /// Time since which a node has had no session.
    pub fn away_since(&self, node: NodeId) -> Option<Ticks> {
        self.away.get(&node).copied()
    }

    /// Time until the replicas of a node that is away are made elsewhere. `None`: it is there.
    pub fn replaced_in(&self, now: Ticks, node: NodeId) -> Option<Duration> {
        Some((self.away_since(node)? + self.options.replace_after).since(now))
    }

    /// Partitions with a live replica that is not in sync.
    pub fn rebuilding(&self) -> usize {
        self.rebuilding.len()
    }

    /// Whether the node's process is taken for ended, though its lease is not.
    pub fn is_down(&self, view: &View, node: NodeId) -> bool {
        self.down.get(&node).is_some_and(|session| view.session(node) == Some(*session))
    }

    /// Nodes whose process is taken for ended, though their lease is not.
    pub fn down(&self, view: &View) -> BTreeSet<NodeId> {
        self.down.keys().copied().filter(|node| self.is_down(view, *node)).collect()
    }

    /// The session's process is taken for ended; `None`: it is not.
    pub fn set_down(&mut self, view: &View, node: NodeId, session: Option<u64>) {
        match session {
            Some(session) => drop(self.down.insert(node, session)),
            None => drop(self.down.remove(&node)),
        }
        self.look_at(view, node);
    }

    // ---- observation, by every node

    /// A change of the view. The node notes it whether it is the controller or not.
    pub fn observe(&mut self, now: Ticks, view: &View, changed: &Changed) {
        for key in &changed.keys {
            match key {
                Key::Node(node) => self.see_session(now, view, *node),
                Key::Member(node) => {
                    if view.session(*node).is_none() && !self.away.contains_key(node) {
                        self.away.insert(*node, now);
                        self.found_away.insert(*node);
                    }
                    if view.member(*node).is_none() {
                        self.away.remove(node);
                        self.found_away.remove(node);
                    }
                    self.look_at(view, *node);
                }
                Key::Drain(node) => {
                    self.look_at(view, *node);
                    self.dirty.append(&mut self.short);
                }
                Key::Partition(topic, number) => self.see_partition(view, (*topic, *number)),
                Key::Topic(name) => {
                    if let Some(topic) = view.topic(name).map(|e| e.value.record.id).filter(|_| self.in_office) {
                        self.dirty.extend(view.partitions_of(topic).map(|(number, _)| (topic, number)));
                    }
                }
                _ => {}
            }
        }
    }

    fn see_session(&mut self, now: Ticks, view: &View, node: NodeId) {
        let before = self.sessions.get(&node).copied();
        let session = view.session(node);
        if before.map(|(session, ..)| session) == session {
            // Only its value changed: the suspects.
            return self.look_at(view, node);
        }
        if let Some((_, _, start)) = before {
            self.lost.insert(node, (now, start));
        }
        match view.node(node) {
            Some(entry) => {
                let start = entry.value.start;
                self.sessions.insert(node, (entry.create_revision, now, start));
                if self.lost.get(&node).is_some_and(|(_, lost)| *lost < start) {
                    self.lost.remove(&node);
                }
                self.dirty.append(&mut self.short);
                self.away.remove(&node);
                self.found_away.remove(&node);
                self.replaced.remove(&node);
                if node == self.me {
                    self.see_own(now, start);
                }
            }
            None => {
                self.sessions.remove(&node);
                self.down.remove(&node);
                self.away.insert(node, now);
            }
        }
        if before.is_some() {
            self.see_lost(now);
        }
        self.look_at(view, node);
    }

    /// Takes in that this node is registered. A process that begins holds back no election for a node whose session it saw ending.
    fn see_own(&mut self, now: Ticks, start: u64) {
        let until = now + self.options.ttl;
        if self.own_start == Some(start) {
            // The cause that ended this node's lease may have ended others'.
            self.hold_until = self.hold_until.max(until);
        } else {
            self.fresh_until = self.fresh_until.max(until);
        }
        self.own_start = Some(start);
    }

    /// Whether one of these nodes without a session is likely to come back by itself.
    fn is_held(&self, now: Ticks, mut away: impl Iterator<Item = NodeId>) -> bool {
        away.any(|node| now < self.hold_until || now < self.fresh_until && self.found_away.contains(&node))
    }

    /// Time at which nothing is held any more.
    fn held_until(&self) -> Ticks {
        self.hold_until.max(self.fresh_until)
    }

    /// Detects the loss of half of the nodes, and more than one, in one TTL: the store was asleep, or cut off from them.
    fn see_lost(&mut self, now: Ticks) {
        let ttl = self.options.ttl;
        self.lost.retain(|_, (at, _)| *at + ttl >= now);
        let nodes = self.sessions.len() + self.away.len();
        if self.lost.len() >= 2 && self.lost.len() * 2 >= nodes {
            self.hold_until = self.hold_until.max(now + ttl);
        }
    }

    fn look_at(&mut self, view: &View, node: NodeId) {
        for at in view.replicas_of(node) {
            self.see_partition(view, at);
        }
    }

    fn see_partition(&mut self, view: &View, at: PartitionKey) {
        if !self.in_office {
            return;
        }
        let record = view.partition(at.0, at.1).map(|e| &e.value);
        note(&mut self.handing, at, record.is_some_and(|r| r.wanted.is_some()));
        note(&mut self.rebuilding, at, record.is_some_and(|r| catches_up(view, r)));
        if !self.rebuilding.contains(&at) {
            self.slow.remove(&at);
        }
        if record.is_some() {
            self.dirty.insert(at);
        }
    }

    // ---- decisions, by the controller

    /// The node holds `ctl`. Everything is looked at once.
    pub fn take_office(&mut self, now: Ticks, view: &View) {
        self.leave_office();
        self.in_office = true;
        self.balance_at = now + BALANCE_EVERY;
        let all: Vec<PartitionKey> = view.partitions().map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.see_partition(view, at));
    }

    pub fn leave_office(&mut self) {
        self.in_office = false;
        self.rebuilding.clear();
        self.slow.clear();
        self.handing.clear();
        let sets = [&mut self.dirty, &mut self.held, &mut self.postponed, &mut self.queued, &mut self.short, &mut self.in_flight];
        sets.into_iter().for_each(BTreeSet::clear);
        self.batches = 0;
        self.batch_max = BATCH_MAX;
    }

    pub fn is_in_office(&self) -> bool {
        self.in_office
    }

    /// The next records to write, if there are any now.
    pub fn plan(&mut self, now: Ticks, view: &View, term: u64, session: u64) -> Option<Batch> {
        if !self.in_office || self.batches >= IN_FLIGHT_MAX {
            return None;
        }
        self.look_at_times(now, view);
        let mut sessions: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut batch = Batch { partitions: vec![], txn: Txn::default() };
        let (mut compares, mut then) = (vec![], vec![]);
        while batch.partitions.len() < self.batch_max && compares.len() + sessions.len() < COMPARES_MAX {
            let Some(at) = self.dirty.pop_first().or_else(|| self.next_queued()) else { break };
            if self.in_flight.contains(&at) {
                continue;
            }
            let Some(entry) = view.partition(at.0, at.1) else { continue };
            let moved = self.moves.remove(&at).filter(|m| m.seen == entry.mod_revision);
            let verdict = match (self.decide(now, view, at, &entry.value), moved) {
                (Verdict::Rest, Some(moved)) => moved.next.into(),
                (verdict, _) => verdict,
            };
            match verdict {
                Verdict::Rest => {}
                Verdict::Hold => drop(self.held.insert(at)),
                Verdict::Postpone => drop(self.postponed.insert(at)),
                Verdict::Queue => drop(self.queued.insert(at)),
                Verdict::Short => drop(self.short.insert(at)),
                Verdict::Write(record) => {
                    let key = view.layout().key(&Key::Partition(at.0, at.1));
                    compares.push(Compare::ModRevision { key: key.clone(), is: entry.mod_revision });
                    if let Some(leader) = record.leader.filter(|l| entry.value.leader != Some(*l)) {
                        sessions.insert(leader.node, leader.session);
                        // The record may be newer than the leader's session in this view.
                        let before = entry.value.leader.map(|l| l.node);
                        sessions.extend(before.map(|node| (node, view.session(node).unwrap_or(0))));
                    }
                    self.written += 1;
                    note(&mut self.handing, at, record.wanted.is_some());
                    // The limit also counts the catch-ups that this transaction adds.
                    note(&mut self.rebuilding, at, catches_up(view, &record));
                    let tag = Tag { session, number: TAGS | self.written };
                    then.push(Op::Put { key, value: encode(&PartitionRecord { tag, ..*record }), lease: None });
                    batch.partitions.push(at);
                    self.in_flight.insert(at);
                }
            }
        }
        if batch.partitions.is_empty() {
            return None;
        }
        let layout = view.layout();
        let fixed = [
            Compare::Value { key: layout.key(&Key::Id), is: view.cluster_value().clone() },
            Compare::CreateRevision { key: layout.key(&Key::Controller), is: term },
        ];
        let of_node = |(node, is): (&NodeId, &u64)| Compare::CreateRevision { key: layout.key(&Key::Node(*node)), is: *is };
        // The keys that may have made it fail are read, so that the next attempt does not fail by them again.
        let of_partition = |at: &PartitionKey| Key::Partition(at.0, at.1);
        let others = [Key::Controller].into_iter().chain(sessions.keys().map(|node| Key::Node(*node)));
        let read = others.chain(batch.partitions.iter().map(of_partition));
        let otherwise = read.map(|key| Op::Get { key: layout.key(&key) }).collect();
        let compares = fixed.into_iter().chain(sessions.iter().map(of_node)).chain(compares).collect();
        batch.txn = Txn { compares, then, otherwise };
        self.batches += 1;
        Some(batch)
    }

    /// Whether another replica may be made.
    fn may_rebuild(&self) -> bool {
        self.rebuilding.len() < self.options.rebuilds_max
    }

    /// The next partition that waits for others to have caught up, if they have.
    fn next_queued(&mut self) -> Option<PartitionKey> {
        if self.may_rebuild() { self.queued.pop_first() } else { None }
    }

    /// Takes a batch's outcome; the view holds the answer's content already.
    pub fn settled(&mut self, view: &View, batch: &Batch, succeeded: bool) {
        self.batches = self.batches.saturating_sub(1);
        // A record that changed meanwhile fails all others of its transaction: smaller batches follow.
        self.batch_max = if succeeded { (self.batch_max * 2).min(BATCH_MAX) } else { (batch.partitions.len() / 2).max(1) };
        for at in &batch.partitions {
            self.in_flight.remove(at);
            self.see_partition(view, *at);
        }
    }

    /// Time at which [`Controller::plan`] gets new work.
    pub fn deadline(&self) -> Option<Ticks> {
        if !self.in_office {
            return None;
        }
        let is_due = !self.dirty.is_empty() || !self.queued.is_empty() && self.may_rebuild();
        if is_due && self.batches < IN_FLIGHT_MAX {
            return Some(Ticks(0));
        }
        let held = (!self.held.is_empty()).then_some(self.held_until());
        let away = self.away.iter().filter(|(node, _)| !self.replaced.contains(node));
        let replace = away.map(|(_, since)| *since + self.options.replace_after).min();
        held.into_iter().chain(replace).chain([self.balance_at]).min()
    }

    fn look_at_times(&mut self, now: Ticks, view: &View) {
        if now >= self.held_until() {
            self.dirty.append(&mut self.held);
        }
        let is_late = |since: &Ticks| now >= *since + self.options.replace_after;
        let late: Vec<NodeId> = self.away.iter().filter(|(_, since)| is_late(since)).map(|(node, _)| *node).collect();
        for node in late {
            if self.replaced.insert(node) {
                self.look_at(view, node);
            }
        }
        if now >= self.balance_at {
            self.balance_at = now + BALANCE_EVERY;
            for at in &self.rebuilding {
                self.slow.entry(*at).or_insert(now);
            }
            self.dirty.append(&mut self.postponed);
            let mut moves = self.balance(now, view);
            if moves.is_empty() {
                moves.extend(self.balance_load(now, view));
            }
            self.moves = moves.into_iter().map(|m| (m.at, m)).collect();
            self.dirty.extend(self.moves.keys());
        }
    }
}

/// Whether a living replica is not in sync.
fn catches_up(view: &View, record: &PartitionRecord) -> bool {
    record.replicas.iter().any(|n| view.session(*n).is_some() && !record.isr.contains(n))
}

fn note(set: &mut BTreeSet<PartitionKey>, at: PartitionKey, is_in: bool) {
    match is_in {
        true => drop(set.insert(at)),
        false => drop(set.remove(&at)),
    }
}
