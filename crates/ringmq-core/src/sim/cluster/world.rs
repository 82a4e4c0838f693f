//! The cluster and its surroundings, and the loop that makes the next event happen.

use super::check::Checker;
use super::clients::Visitor;
use super::events::{FaultEnd, Happening, Queue};
use super::meta::{Meta, TopicPartition};
use super::node::{Mail, Node, recover_options};
use super::operator::Operator;
use super::plan::{Coordination, Faults, Plan};
use super::tap::Tap;
use super::topics::Wishes;
use super::wires::Wire;
use super::{RunOutcome, Sink};
use crate::agent;
use crate::base::NodeId;
use crate::base::{CoreId, DiskDone, DiskError, DiskOp, FileId, OpId, Rng, Ticks, TopicId, TopicInfo, TopicName, TopicRef};
use crate::log::recovery::recover;
use crate::metrics::stats::ShardStats;
use crate::replica::states::State;
use crate::seam::cluster::{Ask, Fact};
use crate::seam::event::{Effect, Effects, Event};
use crate::sim::disk::SimDisk;
use crate::sim::node::book::{Book, topic_name};
use rustc_hash::FxBuildHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::sync::Arc;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Faults come.
    Faulty,
    /// Phase without faults: there must be progress.
    Healed,
    /// Nodes stop for good.
    Ending,
}

pub struct World {
    pub plan: Plan,
    pub faults: Faults,
    pub phase: Phase,
    pub rng: Rng,
    /// Nanoseconds since the beginning.
    pub now: u64,
    pub queue: Queue,
    pub nodes: Vec<Node>,
    pub wires: BTreeMap<u64, Wire>,
    pub next_wire: u64,
    pub clients: BTreeMap<u64, Visitor>,
    pub book: Book,
    pub meta: Meta,
    pub check: Checker,
    pub tap: Tap,
    pub outcome: RunOutcome,
    /// Pairs of nodes between which nothing gets through, or everything is late.
    pub cuts: BTreeSet<(usize, usize)>,
    pub slow: BTreeSet<(usize, usize)>,
    /// The one node whose disk may lose data.
    pub victim: Option<usize>,
    /// Depth of channels, from the last answers.
    pub left: Vec<(usize, ShardStats)>,
    pub operator: Operator,
    /// State of each replica at the end of its core's last turn.
    pub roles: BTreeMap<(usize, TopicPartition), State>,
    sink: Option<Sink>,
    scratch: Effects,
}

impl World {
    pub fn new(plan: &Plan, sink: Option<Sink>) -> World {
        let mut rng = Rng::new(plan.seed);
        let mut nodes = vec![];
        for _ in 0..plan.nodes {
            let mut disk = SimDisk::new(rng.next_u64());
            let options = recover_options(1, 1_700_000_000_000_000_000, rng.next_u64(), false);
            let recovered = recover(&mut disk, &options).expect("an empty disk is fine");
            let mut node = Node::new(disk, NodeId(recovered.node_id), rng.below(1000 * SECOND));
            node.generation = recovered.generation;
            nodes.push(node);
        }
        let ids: Vec<NodeId> = nodes.iter().map(|n| n.id).collect();
        let topics: Vec<TopicRef> = (0..plan.topics)
            .map(|t| {
                let name = TopicName::new(&topic_name(t)).expect("a valid name");
                let drawn = 1 + rng.below(plan.partitions_max) as u16;
                let partitions = if plan.coordination == Coordination::Alone { 1 } else { drawn };
                Arc::new(TopicInfo { name, id: TopicId(rng.bytes_16()), partitions })
            })
            .collect();
        let wishes = Wishes::new(topics.iter().map(|t| (t.name.clone(), t.partitions)).collect());
        let meta = Meta::new(plan, &ids, topics, &mut rng);
        let victim = plan.faults.damage().then(|| rng.below(plan.nodes as u64) as usize);
        let mut world = World {
            plan: plan.clone(),
            faults: plan.faults,
            phase: Phase::Faulty,
            rng,
            now: 0,
            queue: Queue::default(),
            nodes,
            wires: BTreeMap::new(),
            next_wire: 1,
            clients: BTreeMap::new(),
            book: Book::default(),
            meta,
            check: Checker::new(plan.topics),
            tap: Tap::default(),
            outcome: RunOutcome::default(),
            cuts: BTreeSet::new(),
            slow: BTreeSet::new(),
            victim,
            left: vec![],
            operator: Operator::new(wishes),
            roles: BTreeMap::new(),
            sink,
            scratch: vec![],
        };
        world.book.is_delay_checked = plan.faults.pause + plan.faults.slow_disk == 0.0;
        world.tap.said = world.sink.is_some().then(Vec::new);
        world.say(|| format!("{plan:?}"));
        for n in 0..plan.nodes {
            world.queue.put(n as u64 * MS, Happening::Start { node: n });
        }
        world.queue.put(MS, Happening::Visit);
        world.queue.put(50 * MS, Happening::Control);
        let first = world.soon(800 * MS);
        world.queue.put(first, Happening::Probes);
        world.plan_faults();
        world
    }

    pub fn outcome(mut self) -> RunOutcome {
        self.outcome.counts = self.book.counts;
        self.outcome.metadata = self.meta.counts;
        (self.outcome.batches_replicated, self.outcome.clamped) = (self.tap.batches, self.tap.clamped);
        self.outcome.reused = self.nodes.iter().map(|n| n.disk.counts.reused).sum();
        (self.outcome.paused, self.outcome.removed, self.outcome.operated_looked_for) = self.book.operators_counts();
        self.outcome
    }

    pub fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.sink {
            sink(&format!("{:>10.3} ms  {}", self.now as f64 / MS as f64, what()));
        }
    }

    pub fn trace(&mut self, words: [u64; 4]) {
        let t = &mut self.outcome.trace;
        words.into_iter().for_each(|w| *t = (t.rotate_left(5) ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }

    /// Random time within the next `span`.
    pub fn soon(&mut self, span: u64) -> u64 {
        self.now + self.rng.below(span.max(1))
    }

    pub fn live(&mut self) {
        self.run_until(self.plan.span_ms * MS);
    }

    pub fn run_until(&mut self, end: u64) {
        while self.queue.next_at().is_some_and(|at| at <= end) {
            let (at, happening) = self.queue.pop().expect("just seen");
            self.now = self.now.max(at);
            self.happen(happening);
        }
        self.now = self.now.max(end);
    }

    fn happen(&mut self, happening: Happening) {
        let process = happening.process().or_else(|| self.process_of_wire(&happening));
        if let Some((n, life)) = process {
            let node = &self.nodes[n];
            if node.running.is_none() || node.life != life {
                return;
            }
            if node.paused_until > self.now {
                return self.nodes[n].held.push(happening);
            }
        }
        match happening {
            Happening::Disk { node, .. } => self.disk_done(node),
            Happening::Mail { node, from, to, .. } => self.deliver_mail(node, from, to),
            Happening::TurnEnd { node, core, .. } => self.step(node, core, Event::TurnEnd),
            Happening::Tick { node, core, .. } => self.tick(node, core),
            Happening::Fact { node, core, fact, .. } => self.step(node, core, Event::Cluster(fact)),
            Happening::Ask { node, life, ask } => self.asked(node, life, ask),
            Happening::Facts { node, core, facts, .. } => self.facts_come(node, core, &facts),
            Happening::AskAgent { node, life, ask } => self.agent_is_asked(node, life, ask),
            Happening::AgentTick { node, .. } => self.agent_tick(node),
            Happening::Request { node, life, token, request } => self.store_hears(node, life, token, request),
            Happening::Answered { node, token, outcome, .. } => {
                self.step_agent(node, agent::Event::Answered { token, outcome: *outcome });
            }
            Happening::WatchDue { node, .. } => self.watch_tells(node),
            Happening::Renew { node, life } => self.renew(node, life),
            Happening::Renewed { node, asked, revision, .. } => self.renewed(node, asked, revision),
            Happening::Look { node, life } => self.look_at_store(node, life),
            Happening::Dialed { node, core, dial, wire, .. } => self.dialed(node, core, dial, wire),
            Happening::Accept { wire } => self.accept(wire),
            Happening::Arrive { wire, side } => self.arrive(wire, side),
            Happening::Sent { wire, side, bytes } => self.sent(wire, side, bytes),
            Happening::Read { wire, side } => self.read(wire, side),
            Happening::CloseNow { wire, side } => self.close_now(wire, side),
            Happening::Closed { wire, side } => self.closed(wire, side),
            Happening::Act { wire } => self.act(wire),
            Happening::Visit => self.visit(),
            Happening::Control => self.control(),
            Happening::Fault(field) => self.fault(field),
            Happening::Mended(mend) => self.mended(mend),
            Happening::Start { node } => self.start(node),
            Happening::Wake { node } => self.wake(node),
            Happening::Install { node, version } => self.install(node, version),
            Happening::AllDown => self.all_go_down(),
            Happening::Probes => self.probe_some(),
            Happening::Probe { node } if self.nodes[node].running.is_some() => self.probe(node),
            Happening::Probe { .. } => {}
        }
    }

    /// Gives a process whose pause is over the events that came meanwhile.
    pub fn wake(&mut self, n: usize) {
        if self.nodes[n].paused_until <= self.now {
            for happening in std::mem::take(&mut self.nodes[n].held) {
                self.queue.put(self.now, happening);
            }
        }
    }

    // ---- a process

    pub fn step(&mut self, n: usize, core: usize, event: Event<'_>) {
        let now = self.nodes[n].clocks(self.now);
        let Some(r) = &mut self.nodes[n].running else { return };
        let is_end = matches!(event, Event::TurnEnd);
        let opens = !is_end && !std::mem::replace(&mut r.is_turn_open[core], !is_end);
        if is_end {
            r.is_turn_open[core] = false;
        }
        let mut out = std::mem::take(&mut self.scratch);
        r.shards[core].step(now, event, &mut out);
        self.book.learn_topics(&r.shards[core], self.plan.topics);
        if opens {
            let (at, life) = (self.soon(150 * US), self.nodes[n].life);
            self.queue.put(at, Happening::TurnEnd { node: n, life, core });
        }
        if is_end {
            self.look_who_serves(n, core);
            self.look_at_roles(n, core);
        }
        for effect in out.drain(..) {
            if !self.carry(n, core, effect) {
                break;
            }
        }
        out.clear();
        self.scratch = out;
        self.arm_tick(n, core);
        let is_done = |r: &super::node::Running| r.is_stopping && r.is_stopped.iter().all(|s| *s);
        if self.nodes[n].running.as_ref().is_some_and(is_done) {
            self.has_stopped(n);
        }
    }

    /// Carries out an effect; true if the process goes on.
    fn carry(&mut self, n: usize, core: usize, effect: Effect) -> bool {
        self.outcome.effects += 1;
        let Some(r) = &mut self.nodes[n].running else { return false };
        if let Some(left) = &mut r.effects_left {
            if *left == 0 {
                let is_kill = self.rng.chance(0.35);
                self.go_down(n, is_kill);
                return false;
            }
            *left -= 1;
        }
        match effect {
            Effect::Send { conn, bytes } => self.send(n, core, conn, bytes),
            Effect::SendPieces { conn, pieces } => self.send(n, core, conn, pieces.concat()),
            Effect::ReceiveInto { conn, lent } => self.receive_into(conn, lent),
            Effect::Close { conn } => self.close(n, core, conn),
            Effect::PauseReading { conn } => self.pause_reading(conn, true),
            Effect::ResumeReading { conn } => self.pause_reading(conn, false),
            Effect::Move { conn, to, session, unread } => {
                self.trace([3, conn.0, to.0 as u64, unread.len() as u64]);
                let (wire, side) = self.move_out(n, core, conn);
                self.post(n, core, to.0 as usize, Mail::Moved { wire, side, session, unread });
            }
            Effect::Disk { op, request } => self.submit(n, core, op, request),
            Effect::Dial { dial, address, .. } => self.dial(n, core, dial, &address),
            Effect::Ask(ask) => {
                self.trace([7, n as u64, core as u64, 0]);
                let (at, life) = (self.soon(4 * MS), self.nodes[n].life);
                self.say(|| format!("node{n} asks {ask:?}"));
                let happening = match self.plan.coordination {
                    Coordination::Etcd => Happening::AskAgent { node: n, life, ask },
                    _ => Happening::Ask { node: n, life, ask },
                };
                self.queue.put(at, happening);
            }
            Effect::Pass { to: CoreId::HTTP, message } => self.note_left(n, message),
            Effect::Pass { to, message } => {
                self.trace([4, core as u64, to.0 as u64, n as u64]);
                assert_ne!(to.0 as usize, core, "nobody passes to itself");
                self.post(n, core, to.0 as usize, Mail::Mesh(message));
            }
            Effect::Halt { reason } => panic!("node{n} halted: {reason}"),
            Effect::Stopped => {
                let r = self.nodes[n].running.as_mut().expect("it runs");
                assert!(!std::mem::replace(&mut r.is_stopped[core], true), "stopped once");
            }
        }
        true
    }

    fn post(&mut self, n: usize, from: usize, to: usize, mail: Mail) {
        let (at, life) = (self.soon(60 * US), self.nodes[n].life);
        let r = self.nodes[n].running.as_mut().expect("it runs");
        r.mail.entry((from, to)).or_default().push_back(mail);
        self.queue.put(at, Happening::Mail { node: n, life, from, to });
    }

    fn deliver_mail(&mut self, n: usize, from: usize, to: usize) {
        let r = self.nodes[n].running.as_mut().expect("it runs");
        let mail = r.mail.get_mut(&(from, to)).and_then(|q| q.pop_front()).expect("one for each time");
        match mail {
            Mail::Mesh(message) => self.step(n, to, Event::Mesh { from: CoreId(from as u16), message }),
            Mail::Moved { wire, side, session, unread } => self.move_in(n, to, (wire, side), session, &unread),
        }
    }

    pub fn arm_tick(&mut self, n: usize, core: usize) {
        let (life, base) = (self.nodes[n].life, self.nodes[n].ticks_base);
        let earliest = self.now + 20 * US;
        let Some(r) = &mut self.nodes[n].running else { return };
        let Some(deadline) = r.shards[core].deadline() else { return };
        let at = deadline.0.saturating_sub(base).max(earliest);
        if at < r.tick_at[core] {
            r.tick_at[core] = at;
            self.queue.put(at, Happening::Tick { node: n, life, core });
        }
    }

    fn tick(&mut self, n: usize, core: usize) {
        let now = self.nodes[n].clocks(self.now);
        let r = self.nodes[n].running.as_mut().expect("it runs");
        if r.tick_at[core] <= self.now {
            r.tick_at[core] = u64::MAX;
        }
        match r.shards[core].deadline() {
            Some(at) if at <= now.ticks => self.step(n, core, Event::Tick),
            _ => self.arm_tick(n, core),
        }
    }

    // ---- disks

    fn submit(&mut self, n: usize, core: usize, op: OpId, request: DiskOp) {
        let file = request.file().map_or(0, |f| FxBuildHasher.hash_one(f));
        let (what, is_journal) = match &request {
            DiskOp::Write { file, at, parts, .. } => {
                let crc = parts.iter().fold(0, |crc, p| crc << 1 ^ crc32fast::hash(p) as u64);
                (at ^ crc << 20, matches!(file, FileId::Journal(_)))
            }
            DiskOp::Read { at, .. } => (*at, false),
            DiskOp::Allocate { len, .. } | DiskOp::AllocateSegment { len, .. } | DiskOp::Truncate { len, .. } => (*len, false),
            _ => (0, false),
        };
        self.trace([5, (n * 64 + core) as u64, file, what]);
        if is_journal && let DiskOp::Write { at, parts, .. } = &request {
            self.note_journal_write(n, core, *at, parts.iter().map(|p| p.len() as u64).sum());
        }
        let is_removal = matches!(request, DiskOp::Remove { .. } | DiskOp::Retire { .. } | DiskOp::RemovePartition { .. });
        if is_removal && self.faults.crash_at_removal > 0.0 && self.rng.chance(self.faults.crash_at_removal) {
            let left = self.rng.below(6);
            self.nodes[n].running.as_mut().expect("it runs").effects_left.get_or_insert(left);
        }
        let latency = match self.rng.below(20) {
            0 => self.rng.below(8 * MS),
            _ => 30 * US + self.rng.below(700 * US),
        };
        let node = &mut self.nodes[n];
        let r = node.running.as_mut().expect("it runs");
        assert!(!r.is_stopped[core], "nothing is written after the stop: {:?}", request.file());
        r.next_op += 1;
        r.ops.insert(OpId(r.next_op), (core, op, is_journal));
        node.disk.submit(OpId(r.next_op), request);
        let (at, life) = (node.disk_stands_until.max(self.now) + latency, node.life);
        self.queue.put(at, Happening::Disk { node: n, life });
    }

    fn note_journal_write(&mut self, n: usize, core: usize, at: u64, len: u64) {
        let latest = &mut self.nodes[n].running.as_mut().expect("it runs").journal[core];
        if latest.len() == super::node::JOURNAL_WRITES {
            latest.pop_front();
        }
        latest.push_back((at, len));
    }

    fn disk_done(&mut self, n: usize) {
        let (now, life) = (self.now, self.nodes[n].life);
        let node = &mut self.nodes[n];
        if node.disk_stands_until > now {
            return self.queue.put(node.disk_stands_until, Happening::Disk { node: n, life });
        }
        let (id, mut outcome) = node.disk.complete().expect("one for each operation");
        let was_read = matches!(outcome, Err(DiskError::Io { call: "read", .. }));
        let r = node.running.as_mut().expect("it runs");
        let (core, op, is_journal) = r.ops.remove(&id).expect("every operation completes once");
        let fails = is_journal && std::mem::take(&mut self.nodes[n].fails_journal);
        if is_journal && self.phase == Phase::Faulty && (self.rng.chance(self.faults.journal_error) || fails) {
            let file = FileId::Journal(core as u16);
            outcome = Err(DiskError::Io { file, call: "write", errno: 5, message: "injected".into() });
        }
        if let Err(e) = &outcome {
            self.nodes[n].has_failed |= !was_read && !e.is_no_space();
            let e = e.to_string();
            self.say(|| format!("node{n}: {e}"));
        }
        self.trace([6, id.0, outcome.is_ok() as u64, matches!(outcome, Ok(DiskDone::Read(_))) as u64]);
        self.step(n, core, Event::Disk { op, outcome });
    }

    // ---- the metadata store

    fn asked(&mut self, n: usize, life: u64, ask: Ask) {
        if self.nodes[n].is_store_away {
            return;
        }
        if self.plan.coordination == Coordination::File {
            // it may have been asked for another epoch
            self.all_terms_end();
        }
        self.look_who_proposes(n, life, &ask);
        let answer = self.meta.ask(n, ask, self.now, &mut self.rng);
        if let Some(key) = answer.changed {
            self.changed(key);
        }
        if let Some(fact) = answer.fact.filter(|_| self.nodes[n].life == life) {
            self.tell_all_cores(n, &fact);
        }
    }

    /// A node that asks for another ISR has decided which log is the one.
    pub fn look_who_proposes(&mut self, n: usize, life: u64, ask: &Ask) {
        if let Ask::Propose { route, version, .. } = ask
            && let Some(key) = self.meta.key(*route)
            && let Some(r) = self.nodes[n].running.as_ref().filter(|_| self.nodes[n].life == life)
        {
            let (id, newest) = (self.nodes[n].id, &self.meta.entries[&key].now);
            if newest.version == *version && newest.leader == Some(id) && self.plan.coordination != Coordination::File {
                let doubt = r.doubts.get(&key).copied().unwrap_or_default();
                self.tap.proposes(id, life, key, &self.meta, doubt);
            }
        }
    }

    /// Every watch is told of a partition's newest metadata, as watches do.
    pub fn changed(&mut self, key: TopicPartition) {
        let newest = self.meta.entries[&key].now.clone();
        self.book.term_ends(key.0, key.1);
        self.say(|| format!("store: {key:?} {newest:?}"));
        for n in 0..self.nodes.len() {
            if self.nodes[n].running.is_none() || self.nodes[n].is_store_away {
                continue;
            }
            let fact = self.meta.fact(n, key);
            let f = if self.phase == Phase::Faulty { self.faults } else { Faults::default() };
            if self.rng.chance(f.store.watch_compacted) {
                let (at, life) = (self.soon(2 * SECOND), self.nodes[n].life);
                self.queue.put(at, Happening::Look { node: n, life });
                continue;
            }
            let late = if self.rng.chance(f.store.watch_late) { self.rng.below(3 * SECOND) } else { 0 };
            self.tell(n, &fact, late);
            if self.rng.chance(f.store.watch_twice) {
                let again = self.rng.below(2 * SECOND);
                self.tell(n, &fact, again);
            }
        }
    }

    /// Tells every core a fact, each at a time of its own.
    fn tell(&mut self, n: usize, fact: &Fact, late: u64) {
        let life = self.nodes[n].life;
        for core in 0..self.nodes[n].cores as usize {
            let at = self.soon(3 * MS) + late;
            self.queue.put(at, Happening::Fact { node: n, life, core, fact: fact.clone() });
        }
    }

    pub fn tell_all_cores(&mut self, n: usize, fact: &Fact) {
        self.tell(n, fact, 0);
    }

    /// Tells every core all facts in order.
    fn look_at_store(&mut self, n: usize, life: u64) {
        if self.nodes[n].is_store_away {
            let at = self.now + 50 * MS;
            return self.queue.put(at, Happening::Look { node: n, life });
        }
        self.nodes[n].read = self.meta.revision;
        let facts = self.meta.all_facts(n);
        for core in 0..self.nodes[n].cores as usize {
            let mut at = self.now;
            for fact in &facts {
                at += self.rng.below(200 * US);
                self.queue.put(at, Happening::Fact { node: n, life, core, fact: fact.clone() });
            }
        }
    }

    fn renew(&mut self, n: usize, life: u64) {
        let every = self.now + super::meta::LEASE / 4 + self.rng.below(50 * MS);
        self.queue.put(every, Happening::Renew { node: n, life });
        if self.nodes[n].is_store_away {
            return;
        }
        self.meta.renew(n, self.now);
        let at = self.soon(5 * MS);
        self.queue.put(at, Happening::Renewed { node: n, life, asked: self.now, revision: self.meta.revision });
    }

    fn renewed(&mut self, n: usize, asked: u64, revision: u64) {
        let until = Ticks(self.nodes[n].ticks_base + asked + super::meta::LEASE * 4 / 5);
        self.tell_all_cores(n, &Fact::Lease { until, revision });
        if self.nodes[n].read < revision {
            let is_late = self.phase == Phase::Faulty && self.rng.chance(self.faults.store.watch_late);
            let late = if is_late { self.rng.below(3 * SECOND) } else { 0 };
            let (at, life) = (self.soon(20 * MS) + late, self.nodes[n].life);
            self.queue.put(at, Happening::Look { node: n, life });
        }
    }

    fn control(&mut self) {
        let at = self.now + 100 * MS;
        self.queue.put(at, Happening::Control);
        if self.plan.coordination == Coordination::Store {
            for key in self.meta.control(self.now, &mut self.rng) {
                self.changed(key);
            }
        }
        if self.plan.coordination == Coordination::Etcd {
            self.time_goes_by_in_the_store();
            self.operator_goes_on();
        }
        self.watch_over();
        self.losses_are_accepted();
    }

    fn install(&mut self, n: usize, version: u64) {
        self.all_terms_end();
        if self.meta.install_file(n, version) && self.nodes[n].running.is_some() {
            let life = self.nodes[n].life;
            self.queue.put(self.now, Happening::Look { node: n, life });
        }
    }

    fn all_terms_end(&mut self) {
        self.meta.keys().into_iter().for_each(|(topic, partition)| self.book.term_ends(topic, partition));
    }

    pub fn mended(&mut self, mend: FaultEnd) {
        match mend {
            FaultEnd::Cut(a, b) => drop(self.cuts.remove(&(a, b))),
            FaultEnd::Slow(a, b) => drop(self.slow.remove(&(a, b))),
            FaultEnd::Shaky(n) => {
                self.nodes[n].is_shaky = false;
                self.nodes[n].disk.faults = self.disk_faults(n);
            }
            FaultEnd::StoreAsleep => self.store_wakes(),
            FaultEnd::Full(n) => self.nodes[n].disk.faults = self.disk_faults(n),
            FaultEnd::StoreAway(n) => {
                self.nodes[n].is_store_away = false;
                if self.plan.coordination != Coordination::Etcd {
                    let life = self.nodes[n].life;
                    self.queue.put(self.now, Happening::Look { node: n, life });
                }
            }
        }
        self.say(|| format!("mended: {mend:?}"));
    }
}
