//! One partition on 1 to 5 nodes, over a network that loses, repeats, reorders and parts, with crashes and a metadata store that
//! compares and swaps and whose watches are late. One seed decides everything.

use super::check::Checker;
use super::log::DiskOp;
use super::node::{Node, NodeOutput, Operation, WaitingPublish};
use crate::base::{ChannelName, Epoch, Position, Rng, Ticks};
use crate::codec::peer::message::{Body, Lane, Message, Session};
use crate::format::cursor::{CursorImage, Interval};
use crate::replica::lease::Lease;
use crate::replica::states::{State, Trigger};
use crate::replica::{CursorEvent, Effect, Event, LogView, ReplicaOptions};
use crate::{base::NodeId, codec::peer::error::PeerError, seam::membership::Membership};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Lease in the store. A node's own counts as over earlier.
const LEASE: Duration = Duration::from_millis(600);

pub struct World {
    pub(super) rng: Rng,
    pub(super) now: Ticks,
    pub nodes: Vec<Node>,
    pub(super) net: Vec<(NodeId, NodeId, Message)>,
    pub(super) reads: Vec<(NodeId, NodeId, Session, Position, usize)>,
    /// Questions to the store on their way.
    pub(super) asks: Vec<(NodeId, Effect)>,
    pub(super) store: Membership,
    pub(super) history: Vec<Membership>,
    pub cut: BTreeSet<(NodeId, NodeId)>,
    /// Leases as each node knows them in this life.
    pub(super) leases: Vec<Lease>,
    /// Time until which the store has given each node its lease; while nobody leads, the last leader's counts.
    given: Vec<Ticks>,
    led_until: Ticks,
    /// Time of each node until which the store is out of its reach.
    pub(super) away: Vec<Ticks>,
    pub check: Checker,
    pub(super) options: ReplicaOptions,
    /// Lanes keep their order, and what is lost takes its connection along.
    pub(super) is_orderly: bool,
    /// True when somebody names another leader after a leader resigns.
    pub(super) has_controller: bool,
    pub(super) faults: bool,
    pub(super) clients: bool,
    pub(super) next_request: u64,
    pub trace: BTreeSet<(State, Trigger, State)>,
}

pub(super) fn node_id(n: usize) -> NodeId {
    NodeId([n as u8 + 1; 16])
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let n = 1 + rng.below(5) as usize;
        let options = ReplicaOptions {
            window_bytes: 200 + rng.below(4000),
            catch_up_bytes_per_second: if rng.chance(0.3) { 50_000 } else { 0 },
            retry: Duration::from_millis(50),
            heartbeat: Duration::from_millis(40),
            follower_limit: Duration::from_millis(300),
            write_limit: Duration::from_millis(500),
            cursor_interval: Duration::from_millis(20),
        };
        let ids: Vec<NodeId> = (0..n).map(node_id).collect();
        let min_isr = if rng.chance(0.2) { 1 } else { n / 2 + 1 };
        let store = Membership::new(1, Epoch(1), Some(ids[0]), ids.clone(), min_isr);
        let mut world = World {
            is_orderly: rng.chance(0.5),
            has_controller: !seed.is_multiple_of(3),
            rng,
            now: Ticks(1_000_000_000),
            nodes: ids.iter().map(|id| Node::new(*id, options)).collect(),
            net: vec![],
            reads: vec![],
            asks: vec![],
            history: vec![store.clone()],
            store,
            cut: BTreeSet::new(),
            leases: (0..n).map(|_| Lease::default()).collect(),
            given: vec![Ticks(0); n],
            led_until: Ticks(0),
            away: vec![Ticks(0); n],
            check: Checker::default(),
            options,
            faults: true,
            clients: true,
            next_request: 0,
            trace: BTreeSet::new(),
        };
        (0..n).for_each(|i| world.renew_lease(i));
        world
    }

    /// A world of two or three nodes, of which one is enough; nothing goes wrong by itself.
    pub fn calm(seed: u64) -> Self {
        let seeds = (0..).map(|n| seed * 1000 + n);
        let mut world = seeds.map(World::new).find(|w| (2..=3).contains(&w.nodes.len())).expect("one has as many nodes");
        (world.faults, world.has_controller, world.store.min_isr) = (false, false, 1);
        world.history = vec![world.store.clone()];
        world
    }

    pub(super) fn renew_lease(&mut self, i: usize) {
        self.given[i] = self.now + LEASE;
        let (until, revision) = (self.now + LEASE * 4 / 5, self.store.version);
        self.change_lease(i, |lease| lease.renewed(until, revision));
    }

    fn change_lease(&mut self, i: usize, change: impl FnOnce(&mut Lease)) {
        let before = self.leases[i].until();
        change(&mut self.leases[i]);
        let until = self.leases[i].until();
        if until != before {
            self.give(i, Event::Lease { until });
        }
    }

    fn is_away(&self, i: usize) -> bool {
        self.away[i] > self.now
    }

    fn renew_leases(&mut self) {
        for i in 0..self.nodes.len() {
            let is_due = self.nodes[i].is_up && !self.is_away(i) && self.given[i] < self.now + LEASE / 2;
            if is_due && (!self.faults || self.rng.chance(0.05)) {
                self.renew_lease(i);
            }
        }
    }

    /// A node reads a version of the metadata.
    fn read_metadata(&mut self, i: usize, membership: Membership) {
        let revision = membership.version;
        self.give(i, Event::Metadata(membership));
        self.change_lease(i, |lease| lease.has_read(revision));
    }

    pub(super) fn index(&self, id: NodeId) -> usize {
        self.nodes.iter().position(|n| n.id == id).expect("nodes stay")
    }

    pub(super) fn give(&mut self, i: usize, event: Event) {
        let mut out = VecDeque::new();
        self.nodes[i].step(self.now, event, &mut out);
        self.take(i, out);
    }

    pub(super) fn take(&mut self, i: usize, mut out: VecDeque<NodeOutput>) {
        while let Some(item) = out.pop_front() {
            let id = self.nodes[i].id;
            match item {
                NodeOutput::Committed(end) => self.check.on_committed(&self.nodes[i], end),
                NodeOutput::Opened(epoch) => {
                    let membership = self.nodes[i].member.membership().expect("an open leader has metadata").clone();
                    self.check.on_opened(&self.nodes, &self.nodes[i], epoch, &membership);
                }
                NodeOutput::Acked(batch) => self.check.on_acked(&self.nodes, &self.store.isr, batch),
                NodeOutput::CursorAcked(operation) => self.check.on_cursor_acked(&self.nodes, &self.store.isr, operation),
                NodeOutput::Appended(batch) => self.check.on_append(&batch),
                NodeOutput::Made(image) => self.check.on_made(&image),
                NodeOutput::Read(to, session, from, bytes_max) => self.reads.push((id, to, session, from, bytes_max)),
                NodeOutput::Sent(to, message) => self.net.push((id, to, message)),
                NodeOutput::Effect(effect) => match effect {
                    Effect::Propose { .. } | Effect::AskEpoch { .. } | Effect::Resign { .. } => {
                        // One write of a partition at a time: an epoch that is asked for later shuts a resignation out.
                        let is_over = |e: &Effect| matches!((e, &effect), (Effect::Resign { .. }, Effect::AskEpoch { .. }));
                        self.asks.retain(|(from, e)| *from != id || !is_over(e));
                        self.asks.push((id, effect));
                    }
                    Effect::Refresh => {
                        let newest = self.store.clone();
                        if !self.is_away(i) && (!self.faults || self.rng.chance(0.5)) {
                            self.read_metadata(i, newest);
                        }
                    }
                    _ => {}
                },
            }
        }
        self.trace.extend(self.nodes[i].member.take_trace());
    }

    // ---- the network

    fn deliver(&mut self) {
        if self.net.is_empty() {
            return;
        }
        let mut at = self.rng.below(self.net.len() as u64) as usize;
        let key = |m: &(NodeId, NodeId, Message)| (m.0, m.1, lane_number(m.2.body.lane()));
        if self.is_orderly {
            let wanted = key(&self.net[at]);
            at = self.net.iter().position(|m| key(m) == wanted).expect("it was just seen");
        }
        let (from, to, message) =
            if self.faults && !self.is_orderly && self.rng.chance(0.05) { self.net[at].clone() } else { self.net.remove(at) };
        let is_lost = self.cut.contains(&(from, to)) || self.faults && self.rng.chance(0.03);
        if is_lost {
            if self.is_orderly {
                self.net.retain(|m| !(m.0 == from && m.1 == to || m.0 == to && m.1 == from));
                let (a, b) = (self.index(from), self.index(to));
                self.give(a, Event::Disconnected { node: to });
                self.give(b, Event::Disconnected { node: from });
            }
            return;
        }
        let i = self.index(to);
        self.give(i, Event::Message { from, message });
    }

    fn read(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let at = self.rng.below(self.reads.len() as u64) as usize;
        let (node, to, session, from, bytes_max) = self.reads.remove(at);
        let i = self.index(node);
        let (end, batches) = self.nodes[i].log.read(from.offset, bytes_max);
        let result = batches.ok_or(PeerError::OutOfReach);
        self.give(i, Event::LogRead { to, session, from, end, result });
    }

    // ---- the store

    pub(super) fn swap(&mut self, membership: Membership) {
        let version = self.store.version + 1;
        self.store = Membership { version, ..membership };
        // A node drops its request when it hears of a change; the store refuses a request that was made before.
        self.asks.retain(|(_, ask)| !matches!(ask, Effect::Resign { .. }));
        self.history.push(self.store.clone());
    }

    fn answer_store(&mut self) {
        if self.asks.is_empty() {
            return;
        }
        let at = self.rng.below(self.asks.len() as u64) as usize;
        let (from, effect) = self.asks.remove(at);
        if self.faults && self.rng.chance(0.1) {
            return;
        }
        let i = self.index(from);
        if self.is_away(i) {
            return;
        }
        match effect {
            Effect::Propose { version, isr } => {
                if self.store.version == version && self.store.leader == Some(from) {
                    self.swap(Membership { isr, ..self.store.clone() });
                } else if !self.faults || self.rng.chance(0.8) {
                    self.give(i, Event::ProposalRefused { version });
                }
            }
            Effect::AskEpoch { above } if self.store.leader == Some(from) => {
                let epoch = Epoch(self.store.epoch.0.max(above.0) + 1);
                self.swap(Membership { epoch, ..self.store.clone() });
            }
            Effect::Resign { to } if self.has_controller && self.store.leader == Some(from) => self.resigned(to),
            _ => {}
        }
    }

    /// The leader serves nothing any more: nobody waits for its lease.
    fn resigned(&mut self, to: Option<NodeId>) {
        let to = to.filter(|to| self.store.is_in_sync(*to) && self.nodes[self.index(*to)].is_up);
        let epoch = Epoch(self.store.epoch.0 + u64::from(to.is_some()));
        self.swap(Membership { leader: to, epoch, wanted: None, ..self.store.clone() });
        self.led_until = self.now;
    }

    /// Names a member of the ISR as the wanted leader, or none.
    pub(super) fn want(&mut self) {
        let isr = &self.store.isr;
        let to = isr[self.rng.below(isr.len() as u64) as usize];
        let wanted = (!self.rng.chance(0.1)).then_some(to);
        self.swap(Membership { wanted, ..self.store.clone() });
    }

    /// A member of the ISR that is up leads in a new epoch.
    pub(super) fn elect(&mut self) {
        let up: Vec<NodeId> = self
            .store
            .isr
            .iter()
            .copied()
            .filter(|n| self.nodes[self.index(*n)].is_up && !self.nodes[self.index(*n)].failed)
            .collect();
        if up.is_empty() {
            return;
        }
        let leader = up[self.rng.below(up.len() as u64) as usize];
        self.name_leader(Some(leader));
    }

    /// Names a leader in a new epoch. While the present leader's lease holds, nobody leads: a later renewal has a version by which that
    /// node does not.
    pub fn name_leader(&mut self, leader: Option<NodeId>) {
        let holds = |id: NodeId| Some(id) != leader && self.given[self.index(id)] > self.now;
        let held_by = self.store.leader.filter(|id| holds(*id));
        if let Some(id) = held_by {
            self.led_until = self.given[self.index(id)];
        } else if self.store.leader.is_none() && self.led_until > self.now {
            return;
        }
        // Any epoch that somebody promised is lower.
        let epoch = Epoch(self.store.epoch.0 + 1);
        let leader = leader.filter(|_| held_by.is_none());
        self.swap(Membership { leader, epoch, wanted: None, ..self.store.clone() });
    }

    /// Names the waiting leader when the lease of the one before is over.
    fn control(&mut self) {
        let is_free = self.store.leader.is_none() && self.led_until <= self.now;
        if is_free && (!self.faults || self.rng.chance(0.1)) {
            self.elect();
        }
    }

    fn watch(&mut self) {
        let i = self.rng.below(self.nodes.len() as u64) as usize;
        if self.is_away(i) {
            return;
        }
        let at = if self.faults && self.rng.chance(0.3) {
            self.rng.below(self.history.len() as u64) as usize
        } else {
            self.history.len() - 1
        };
        // A startup reads the store itself, so that what it sees first is not from before its last life.
        if self.nodes[i].seen_version == 0 && at + 1 < self.history.len() && !self.rng.chance(0.3) {
            return;
        }
        self.nodes[i].seen_version = self.nodes[i].seen_version.max(self.history[at].version);
        let membership = self.history[at].clone();
        self.read_metadata(i, membership);
    }

    // ---- clients

    fn leader_index(&mut self) -> Option<usize> {
        let open: Vec<usize> = (0..self.nodes.len())
            .filter(|&i| self.nodes[i].is_up && self.nodes[i].member.check_write(self.now).is_ok())
            .collect();
        (!open.is_empty()).then(|| open[self.rng.below(open.len() as u64) as usize])
    }

    pub fn publish(&mut self) {
        let Some(i) = self.leader_index().filter(|i| !self.nodes[*i].is_full) else { return };
        let (num, len) = (1 + self.rng.below(3) as u32, self.rng.below(200) as usize);
        let node = &mut self.nodes[i];
        let epoch = node.member.epoch().expect("an open leader has an epoch");
        assert_eq!(node.opened, Some(epoch), "nothing_is_written_before_the_tail_is_committed: {}", node.id);
        let batch = node.log.append_own(epoch, num, &vec![self.rng.below(256) as u8; len]);
        node.waiting.push(WaitingPublish { batch: batch.clone() });
        self.check.on_append(&batch);
        self.check.on_own_append(node.id, epoch);
        self.give(i, Event::Sealed);
    }

    fn move_cursor(&mut self) {
        let Some(i) = self.leader_index() else { return };
        let name = ChannelName::new(["a", "b"][self.rng.below(2) as usize]).expect("a name");
        let sync = self.rng.chance(0.4);
        let node = &mut self.nodes[i];
        if node.operations.values().any(|o| o.image.name == name) {
            return;
        }
        let (epoch, committed) = (node.member.epoch().expect("an open leader has an epoch"), node.member.committed());
        let places: Vec<Position> = node
            .log
            .batches
            .iter()
            .map(|b| b.header.start())
            .chain([committed])
            .filter(|p| p.offset <= committed.offset)
            .collect();
        let at = places[self.rng.below(places.len() as u64) as usize];
        let old = node.log.channels.get(&name).cloned();
        let backward = old.as_ref().is_none_or(|o| at.log_id < o.confirmed.log_id);
        if backward && !sync {
            return;
        }
        let generation = old.as_ref().map_or(1, |o| o.generation + (backward || self.rng.chance(0.2) && sync) as u64);
        let mut intervals = vec![];
        if at.log_id.0 + 1 < committed.log_id.0 && self.rng.chance(0.5) {
            let start = crate::base::LogId(at.log_id.0 + 1);
            intervals.push(Interval { start, end: committed });
        }
        let image = CursorImage { ordered: sync, intervals, ..CursorImage::new(name.clone(), epoch, generation, at) };
        self.check.on_made(&image);
        let node = &mut self.nodes[i];
        node.log.channels.insert(name.clone(), image.clone());
        node.log.queue.push_back(DiskOp::Cursors(node.log.channels.clone(), None));
        if !sync {
            return self.give(i, Event::Cursor(CursorEvent::Moved { channel: name }));
        }
        self.next_request += 1;
        let request = self.next_request;
        let first = CursorImage { generation: 0, confirmed: Position::START, intervals: vec![], ..image.clone() };
        node.operations.insert(request, Operation { before: old.unwrap_or(first), image: image.clone() });
        // Its own record is durable first.
        while !self.nodes[i].log.queue.is_empty() && self.nodes[i].is_up {
            self.complete(i);
        }
        if self.nodes[i].operations.contains_key(&request) {
            self.give(i, Event::Cursor(CursorEvent::Sync { request, image }));
        }
    }

    fn complete(&mut self, i: usize) {
        let cleared = matches!(self.nodes[i].log.queue.front(), Some(DiskOp::Cleared));
        let mut out = VecDeque::new();
        self.nodes[i].complete(self.now, &mut out);
        if cleared {
            self.check.lost.remove(&self.nodes[i].id);
        }
        self.take(i, out);
    }

    // ---- running

    pub fn step(&mut self) {
        self.now = self.now + Duration::from_micros(self.rng.below(4000));
        self.renew_leases();
        self.control();
        match self.rng.below(100) {
            0..40 => self.deliver(),
            40..60 => {
                let i = self.rng.below(self.nodes.len() as u64) as usize;
                if self.nodes[i].is_up && !self.nodes[i].failed {
                    self.complete(i);
                }
            }
            60..66 => self.read(),
            66..72 => self.answer_store(),
            72..78 => self.watch(),
            78..84 if self.clients => self.publish(),
            84..86 if self.clients => self.move_cursor(),
            86 if self.rng.chance(0.4) && self.faults => self.fault(),
            87 => {
                let i = self.rng.below(self.nodes.len() as u64) as usize;
                let log = &mut self.nodes[i].log;
                // The store evicts what it has written.
                let index = self.rng.below(log.durable as u64 + 1) as usize;
                log.memory_from = log.memory_from.max(log.batches.get(index).map_or(0, |b| b.header.offset.get()));
            }
            88..90 if self.faults => self.disturb(),
            90 if self.faults => {
                let i = self.rng.below(self.nodes.len() as u64) as usize;
                let is_full = self.nodes[i].is_up && !self.nodes[i].failed && self.rng.chance(0.3);
                self.fill(i, is_full);
            }
            _ => self.tick(),
        }
        for (i, node) in self.nodes.iter().enumerate().filter(|(_, n)| n.is_up && n.member.check_read(self.now).is_ok()) {
            self.check.serves(node.id, node.member.epoch().expect("who serves leads"));
            let (holds, named) = (self.given[i] > self.now, self.store.leader);
            assert!(holds, "nobody_serves_past_its_lease: {}, whose lease ended at {:?}: {:?}", node.id, self.given[i], self.now);
            assert!(named.is_none_or(|id| id == node.id), "nobody_serves_while_another_may_lead: {}, of {named:?}", node.id);
        }
    }

    fn tick(&mut self) {
        for i in 0..self.nodes.len() {
            let node = &self.nodes[i];
            if node.is_up && node.member.deadline().is_some_and(|at| at <= self.now) {
                self.give(i, Event::Tick);
                let node = &self.nodes[i];
                let next = node.member.deadline();
                assert!(next.is_none_or(|at| at > self.now), "a tick leaves nothing due: {:?}", node.member);
            }
        }
    }

    /// Faults end; everything that can come back does.
    pub fn heal(&mut self) {
        self.faults = false;
        self.cut.clear();
        self.away.fill(Ticks(0));
        for i in 0..self.nodes.len() {
            if !self.nodes[i].is_up || self.nodes[i].failed {
                self.nodes[i].is_up = false;
                self.start(i);
            }
            self.renew_lease(i);
            self.fill(i, false);
        }
        let mut m = self.store.clone();
        m.replicas = self.nodes.iter().map(|n| n.id).collect();
        self.swap(m);
        // The controller sees to it that somebody leads.
        self.elect();
    }

    pub fn is_quiet(&self) -> bool {
        let n = self.nodes.len();
        let lead = self.nodes.iter().find(|x| x.member.check_write(self.now).is_ok());
        let Some(leader) = lead else { return false };
        self.store.isr.len() == n
            && leader.waiting.is_empty()
            && leader.operations.is_empty()
            && self.nodes.iter().all(|x| {
                x.log.queue.is_empty()
                    && x.log.end() == leader.log.end()
                    && x.member.committed() == leader.log.end().at
                    && !x.log.doubt().is_suspect()
                    && x.log.channels.keys().eq(leader.log.channels.keys())
                    && x.log.channels.values().zip(leader.log.channels.values()).all(|(a, b)| a.confirmed == b.confirmed)
            })
    }

    pub fn describe(&self) -> String {
        let nodes = self.nodes.iter().map(|n| {
            format!(
                "{}: {:?} epoch {:?} end {} durable {} vouched {} committed {} suspect {} queue {} waiting {}\n",
                n.id.0[0],
                n.member.state(),
                n.member.epoch(),
                n.log.end().at.offset,
                n.log.durable().at.offset,
                n.log.vouched().offset,
                n.member.committed().offset,
                n.log.doubt().is_suspect(),
                n.log.queue.len(),
                n.waiting.len(),
            )
        });
        let channels = self.nodes.iter().map(|n| {
            format!("{:?}\n", n.log.channels.values().map(|c| (c.epoch, c.generation, c.confirmed.offset)).collect::<Vec<_>>())
        });
        format!(
            "{:?}\n{}{}net {} orderly {}",
            self.store,
            nodes.collect::<String>(),
            channels.collect::<String>(),
            self.net.len(),
            self.is_orderly
        )
    }

    /// The bodies that are under way, by kind.
    pub fn talk(&self) -> String {
        self.net.iter().take(12).map(|(f, t, m)| format!("{}->{} {:?} {}\n", f.0[0], t.0[0], m.head, kind(&m.body))).collect()
    }

    /// Checks that all logs are the same, byte for byte, where both have it.
    pub fn compare(&self) {
        for a in &self.nodes {
            for b in &self.nodes {
                for batch in &a.log.batches {
                    let other = b.log.batches.iter().find(|x| x.header.offset == batch.header.offset);
                    assert!(other.is_none_or(|x| x.bytes == batch.bytes), "quiet_cluster_converges: logs differ");
                }
            }
        }
    }

    pub fn step_without_clients(&mut self) {
        let before = self.clients;
        self.clients = false;
        self.step();
        self.clients = before;
    }
}

fn lane_number(lane: Lane) -> u8 {
    match lane {
        Lane::Data => 0,
        Lane::Control => 1,
        Lane::CatchUp => 2,
    }
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Inquire(_) => "inquire",
        Body::EpochsAsk(_) => "epochs?",
        Body::Pull(_) => "pull",
        Body::Align(_) => "align",
        Body::Append(_) => "append",
        Body::Cursors(_) => "cursors",
        Body::Standing(_) => "standing",
        Body::Pulled(_) => "pulled",
        Body::Aligned(_) => "aligned",
        Body::Ack(_) => "ack",
        Body::CursorsAck(_) => "cursors ack",
        Body::Refused(_) => "refused",
        Body::Forward(_) => "forward",
        Body::Forwarded(_) => "forwarded",
        Body::Relay(_) => "relay",
        Body::Change(_) => "change",
        Body::Changed(_) => "changed",
    }
}
