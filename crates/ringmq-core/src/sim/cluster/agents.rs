//! The agents of the nodes, which are the real ones, and the way between them and the etcd: requests and answers that are lost, late or of
//! unknown outcome; watches that come late, twice, in part, or are compacted; a store that sleeps.

use super::events::{FaultEnd, Happening};
use super::node::CLUSTER;
use super::plan::StoreFaults;
use super::world::{MS, Phase, SECOND, World};
use crate::agent::{Agent, AgentOptions, Effect, Event, Note, Probe};
use crate::controller::ControllerOptions;
use crate::metadata::record::{MemberRecord, NodeRecord, Suspects};
use crate::metadata::request::{Change, Failure, Request};
use crate::seam::cluster::{Ask, Fact};
use crate::seam::event::Event as CoreEvent;
use crate::sim::etcd::revision_of;
use std::sync::Arc;
use std::time::Duration;

/// Time that a lease of the etcd is given.
pub const TTL: Duration = Duration::from_nanos(super::meta::LEASE);

/// Position of a node's watch.
struct Watch {
    from: u64,
    is_due: bool,
}

/// A node's agent.
pub struct Seat {
    agent: Agent,
    watch: Option<Watch>,
    /// Times at which each core receives the last fact it was sent.
    told_at: Vec<u64>,
    /// Revision up to which each core was told everything.
    read: Vec<u64>,
    tick_at: u64,
}

impl Seat {
    pub fn read(&self, core: usize) -> u64 {
        self.read[core]
    }
}

impl World {
    /// The agent of a process that starts now.
    pub fn new_seat(&mut self, n: usize) -> Box<Seat> {
        let node = &self.nodes[n];
        let known = &self.meta.nodes[n];
        let member = MemberRecord {
            name: known.name.to_string(),
            peer_address: known.peer_address.to_string(),
            zone: format!("zone{}", n % 2),
            capacity: 100,
            process: node.generation + 1,
            ..MemberRecord::default()
        };
        let record = NodeRecord {
            machine: format!("machine{n}"),
            data_path: "/data".into(),
            start: node.generation,
            suspects: Suspects::default(),
        };
        let controller = ControllerOptions {
            ttl: TTL,
            replace_after: Duration::from_secs(2),
            rebuilds_max: 4,
            hand_overs_max: 2,
            calm: Duration::from_millis(500),
        };
        let options = AgentOptions {
            me: node.id,
            layout: self.meta.store.layout.clone(),
            ttl: TTL,
            margin: TTL / 5,
            patience: TTL / 10,
            record,
            member,
            processes: (1..=node.generation + 1).collect(),
            cluster: node.remembered.map(|(cluster, _)| cluster),
            seen: node.remembered.map_or(0, |(_, seen)| seen),
            fresh_id: CLUSTER,
            replicas: self.plan.replicas as u8,
            partitions: 1,
            controller,
            seed: self.rng.next_u64(),
        };
        let cores = node.cores as usize;
        let (told_at, read) = (vec![0; cores], vec![0; cores]);
        Box::new(Seat { agent: Agent::new(options), watch: None, told_at, read, tick_at: u64::MAX })
    }

    fn seat(&mut self, n: usize) -> Option<&mut Seat> {
        self.nodes[n].running.as_mut()?.seat.as_deref_mut()
    }

    /// Faults of the store and of the way to it, while there are any.
    fn store_faults(&self) -> StoreFaults {
        if self.phase == Phase::Faulty { self.faults.store } else { StoreFaults::default() }
    }

    pub fn step_agent(&mut self, n: usize, event: Event) {
        let now = self.nodes[n].clocks(self.now).ticks;
        let Some(seat) = self.seat(n) else { return };
        let (mut out, mut facts, mut probes) = (vec![], vec![], vec![]);
        seat.agent.step(now, event, &mut out);
        for effect in out {
            match effect {
                Effect::Send { token, request } => self.ask_store(n, token, request),
                Effect::Watch { from } => self.watch(n, from),
                // No probe has an answer here: a silent node is replaced when its lease is over.
                Effect::Probe { node, .. } => probes.push(node),
                Effect::Fact(fact) => {
                    if let Fact::Partition { membership, .. } = &fact {
                        let remembered = self.nodes[n].remembered.map_or(0, |(_, seen)| seen);
                        assert!(remembered >= membership.version >> 1, "node{n} acts upon a revision that it does not remember");
                    }
                    facts.push(fact);
                }
                Effect::Remember { cluster, seen } => {
                    let before = self.nodes[n].remembered.map_or(0, |(_, seen)| seen);
                    self.nodes[n].remembered = Some((cluster, seen.max(before)));
                }
                Effect::Admin { token, result } => self.operator_is_told(token, result),
                Effect::Refuse(error) => panic!("node{n} refuses the store that it was always in: {error}"),
                Effect::Say(note) => {
                    self.meta.counts.lapses += (note == Note::Lapsed) as u64;
                    self.say(|| format!("node{n}: {note}"));
                }
                Effect::Registered | Effect::Stopped => {}
            }
        }
        if !facts.is_empty() {
            self.only_a_deleted_topic_goes(n, &facts);
            self.tell_in_order(n, facts.into());
        }
        self.arm_agent(n);
        for node in probes {
            self.step_agent(n, Event::Probed { node, probe: Probe::Silent });
        }
    }

    fn tell_in_order(&mut self, n: usize, facts: Arc<[Fact]>) {
        let life = self.nodes[n].life;
        for core in 0..self.nodes[n].cores as usize {
            let soon = self.soon(3 * MS);
            let Some(seat) = self.seat(n) else { return };
            let at = soon.max(seat.told_at[core]);
            seat.told_at[core] = at;
            self.queue.put(at, Happening::Facts { node: n, life, core, facts: facts.clone() });
        }
    }

    pub fn facts_come(&mut self, n: usize, core: usize, facts: &[Fact]) {
        for fact in facts {
            if let (Fact::Read { revision }, Some(seat)) = (fact, self.seat(n)) {
                seat.read[core] = seat.read[core].max(*revision);
            }
            self.step(n, core, CoreEvent::Cluster(fact.clone()));
        }
    }

    pub fn agent_is_asked(&mut self, n: usize, life: u64, ask: Ask) {
        self.look_who_proposes(n, life, &ask);
        self.step_agent(n, Event::Ask(ask));
    }

    fn arm_agent(&mut self, n: usize) {
        let (life, base, earliest) = (self.nodes[n].life, self.nodes[n].ticks_base, self.now + MS);
        let Some(seat) = self.seat(n) else { return };
        let Some(deadline) = seat.agent.deadline() else { return };
        let at = deadline.0.saturating_sub(base).max(earliest);
        if at < seat.tick_at {
            seat.tick_at = at;
            self.queue.put(at, Happening::AgentTick { node: n, life });
        }
    }

    pub fn agent_tick(&mut self, n: usize) {
        let (real, now) = (self.now, self.nodes[n].clocks(self.now).ticks);
        let Some(seat) = self.seat(n) else { return };
        if seat.tick_at <= real {
            seat.tick_at = u64::MAX;
        }
        match seat.agent.deadline() {
            Some(at) if at <= now => self.step_agent(n, Event::Tick),
            _ => self.arm_agent(n),
        }
    }

    /// Gives the lease back once all work is durable and answered; the answer is ignored.
    pub fn give_lease_back(&mut self, n: usize, seat: Option<Box<Seat>>) {
        let Some(mut seat) = seat.filter(|_| self.phase != Phase::Ending) else { return };
        let mut out = vec![];
        seat.agent.step(self.nodes[n].clocks(self.now).ticks, Event::Stop, &mut out);
        for effect in out {
            if let Effect::Send { token, request } = effect {
                self.ask_store(n, token, request);
            }
        }
    }

    // ---- requests

    fn ask_store(&mut self, n: usize, token: u64, request: Request) {
        let f = self.store_faults();
        if self.nodes[n].is_store_away || self.rng.chance(f.request_lost) {
            self.meta.counts.requests_lost += 1;
            return;
        }
        let late = if self.rng.chance(f.request_late) { self.rng.below(3 * SECOND) } else { 0 };
        let (at, life) = (self.soon(3 * MS) + late, self.nodes[n].life);
        self.queue.put(at, Happening::Request { node: n, life, token, request: Box::new(request) });
    }

    pub fn store_hears(&mut self, n: usize, life: u64, token: u64, request: Box<Request>) {
        let wakes = self.meta.store.asleep_until;
        if wakes > self.now {
            if self.rng.chance(0.5) {
                let at = wakes + self.rng.below(3 * MS);
                self.queue.put(at, Happening::Request { node: n, life, token, request });
            }
            return;
        }
        let mut outcome = self.meta.store.etcd.carry(self.now, &request);
        self.trace([8, n as u64, self.meta.store.etcd.revision(), outcome.is_ok() as u64]);
        self.store_changed();
        let f = self.store_faults();
        if self.nodes[n].is_store_away || self.rng.chance(f.answer_lost) {
            if self.rng.chance(0.5) {
                return;
            }
            outcome = Err(Failure::Unknown("the connection ended".into()));
        }
        if self.nodes[n].running.is_some() && self.nodes[n].life == life {
            let at = self.soon(3 * MS);
            self.queue.put(at, Happening::Answered { node: n, life, token, outcome: Box::new(outcome) });
        }
    }

    // ---- the store

    /// Leases end by the store's clock.
    pub fn time_goes_by_in_the_store(&mut self) {
        if self.meta.store.asleep_until <= self.now {
            self.meta.store.etcd.expire(self.now);
            self.store_changed();
        }
    }

    /// Takes in changes of the store, and gives every watch something to tell.
    pub fn store_changed(&mut self) {
        let (changed, removed) = self.meta.look_at_etcd();
        for key in changed {
            let newest = self.meta.entries[&key].now.clone();
            self.book.term_ends(key.0, key.1);
            self.say(|| format!("store: {key:?} {newest:?}"));
        }
        for removal in removed {
            self.no_only_copy_is_removed(&removal);
        }
        (0..self.nodes.len()).for_each(|n| self.watch_soon(n));
    }

    pub fn store_falls_asleep(&mut self) {
        let until = self.now + self.rng.below(2 * super::meta::LEASE);
        self.meta.store.asleep_until = until;
        self.queue.put(until, Happening::Mended(FaultEnd::StoreAsleep));
    }

    /// Wakes the store. Its leases go on by its clock, begin anew, as with another leader of it, or end all at once. Its watches may
    /// be lost.
    pub fn store_wakes(&mut self) {
        if std::mem::take(&mut self.meta.store.asleep_until) == 0 {
            return;
        }
        match self.rng.below(3) {
            0 => {}
            1 => self.meta.store.etcd.extend_all_leases(self.now),
            _ => self.meta.store.etcd.end_all_leases(),
        }
        self.time_goes_by_in_the_store();
        for n in 0..self.nodes.len() {
            if self.rng.chance(0.5) {
                self.lose_watch(n);
            }
        }
    }

    // ---- watches

    fn watch(&mut self, n: usize, from: u64) {
        if let Some(seat) = self.seat(n) {
            seat.watch = Some(Watch { from, is_due: false });
        }
        self.watch_soon(n);
    }

    /// The watch tells soon, if it has something to tell.
    fn watch_soon(&mut self, n: usize) {
        let (revision, life) = (self.meta.store.etcd.revision(), self.nodes[n].life);
        let f = self.store_faults();
        let late = if self.rng.chance(f.watch_late) { self.rng.below(3 * SECOND) } else { 0 };
        let at = self.soon(3 * MS) + late;
        let Some(watch) = self.seat(n).and_then(|seat| seat.watch.as_mut()) else { return };
        if watch.from <= revision && !std::mem::replace(&mut watch.is_due, true) {
            self.queue.put(at, Happening::WatchDue { node: n, life });
        }
    }

    fn lose_watch(&mut self, n: usize) {
        if self.seat(n).is_some_and(|seat| seat.watch.take().is_some()) {
            self.meta.counts.watches_lost += 1;
            self.step_agent(n, Event::WatchLost);
        }
    }

    pub fn watch_tells(&mut self, n: usize) {
        let Some(watch) = self.seat(n).and_then(|seat| seat.watch.as_mut()) else { return };
        let from = watch.from;
        watch.is_due = false;
        if self.nodes[n].is_store_away || self.meta.store.asleep_until > self.now {
            // A connection that is silent for long is given up.
            if self.rng.chance(0.03) {
                return self.lose_watch(n);
            }
            let (at, life) = (self.now + 50 * MS, self.nodes[n].life);
            return self.queue.put(at, Happening::WatchDue { node: n, life });
        }
        let f = self.store_faults();
        let etcd = &mut self.meta.store.etcd;
        if self.rng.chance(f.watch_compacted) {
            etcd.compact(etcd.revision().saturating_sub(self.rng.below(4)));
        }
        let again = if self.rng.chance(f.watch_twice) { 1 + self.rng.below(8) } else { 0 };
        let Some(mut changes) = etcd.changes_from(from) else { return self.lose_watch(n) };
        if changes.len() > 1 && self.rng.chance(0.2) {
            let first = revision_of(&changes[0]);
            changes.retain(|change| revision_of(change) == first);
        }
        let Some(next) = changes.last().map(|change| revision_of(change) + 1) else { return };
        let old = etcd.changes_from(from.saturating_sub(again)).unwrap_or_default();
        let told: Vec<Change> = old.into_iter().filter(|change| revision_of(change) < next).collect();
        let told = if told.is_empty() { changes } else { told };
        if let Some(watch) = self.seat(n).and_then(|seat| seat.watch.as_mut()) {
            watch.from = next;
        }
        self.step_agent(n, Event::Watched(told));
        self.watch_soon(n);
    }

    /// State of the agents, for the message of a failure.
    pub fn describe_agents(&self) -> String {
        let agents =
            self.nodes.iter().enumerate().filter_map(|(n, node)| Some((n, &node.running.as_ref()?.seat.as_ref()?.agent)));
        let one = |(n, agent): (usize, &Agent)| {
            let (session, term, read) = (agent.session(), agent.term(), agent.view().read());
            format!(
                "agent of node{n}: session {session:?}, term {term:?}, read {read}, rebuilds {}\n",
                agent.controller().rebuilding()
            )
        };
        agents.map(one).collect()
    }

    pub fn core_has_read(&self, n: usize, core: usize) -> u64 {
        self.nodes[n].running.as_ref().and_then(|r| r.seat.as_ref()).map_or(0, |seat| seat.read(core))
    }
}
