//! Agents of several nodes over a store in memory, with requests and watches that come late, twice, or not at all.

use super::*;
use crate::base::{TopicId, TopicName};
use crate::metadata::record::{PartitionRecord, Suspects, decode};
use crate::seam::membership::Membership;
use crate::sim::etcd::{Etcd, revision_of};
use std::collections::BTreeSet;

mod asks;
mod copies;
mod store;

const MS: u64 = 1_000_000;
const TTL: Duration = Duration::from_secs(3);

fn id(n: usize) -> NodeId {
    NodeId([n as u8 + 1; 16])
}

/// A node's cores, as far as they know who leads.
#[derive(Default)]
struct Core {
    memberships: BTreeMap<(TopicId, u16), Membership>,
    read: u64,
    until: u64,
    gone: BTreeSet<TopicId>,
    /// Versions of the metadata by which replicas may leave.
    may_leave: Vec<u64>,
    /// Number of nodes that it has or takes links with.
    nodes: usize,
    /// Partitions that the node resigned in an epoch, and for whom: it serves nothing of them in that epoch.
    resigned: BTreeMap<(TopicId, u16), (u64, Option<NodeId>)>,
}

impl Core {
    fn hear(&mut self, fact: Fact) {
        match fact {
            Fact::Partition { topic, partition, membership } => {
                assert!(membership.is_sane());
                let at = (topic.id, partition.0);
                if self.memberships.get(&at).is_none_or(|m| m.version < membership.version) {
                    self.memberships.insert(at, membership);
                }
            }
            Fact::Read { revision } => self.read = self.read.max(revision),
            Fact::Lease { until, revision } => {
                assert!(revision <= self.read, "a lease counts at once");
                self.until = self.until.max(until.0);
            }
            Fact::MayLeave { version, .. } => self.may_leave.push(version),
            Fact::Nodes(nodes) => self.nodes = nodes.len(),
            Fact::TopicDeleted(topic) => {
                self.gone.insert(topic.id);
                self.memberships.retain(|at, _| at.0 != topic.id);
            }
            _ => {}
        }
    }
}

struct Node {
    agent: Agent,
    core: Core,
    effects: Vec<Effect>,
    /// Revision at which the node's watch goes on. `None`: there is no watch yet.
    watch: Option<u64>,
    /// Time until which the node stands still.
    paused: u64,
    /// True when the node's process is gone, or a firewall rejects its connections.
    is_refusing: bool,
    /// Attempts to connect that it waits for.
    probes: Vec<NodeId>,
    starts: u64,
    refused: Vec<AgentError>,
    admin: Vec<Result<String, AdminError>>,
    remembered: u64,
}

/// Faults of a carried request or a watch, in percent.
#[derive(Default, Clone, Copy)]
struct Faults {
    lost: u64,
    unknown_done: u64,
    watch_late: u64,
    watch_lost: u64,
}

struct World {
    now: u64,
    store: Etcd,
    nodes: Vec<Node>,
    /// Requests on their way to the store, and answers on their way back: when, node, start, token, and what.
    requests: Vec<(u64, usize, u64, u64, Request)>,
    answers: Vec<(u64, usize, u64, u64, Outcome)>,
    faults: Faults,
    rng: Rng,
    /// Leader of each epoch of a partition.
    led: BTreeMap<((TopicId, u16), u64), NodeId>,
    store_away: u64,
    /// Answer of each request that the function picks.
    failing: Option<(Picks, Failure)>,
}

/// Whether a request is of the ones that fail.
type Picks = fn(&Request) -> bool;

fn agent(n: usize, start: u64, seen: u64, cluster: Option<[u8; 16]>) -> Agent {
    Agent::new(AgentOptions {
        me: id(n),
        layout: Layout::new("c").unwrap(),
        ttl: TTL,
        margin: Duration::from_millis(500),
        patience: Duration::from_secs(1),
        record: NodeRecord { machine: format!("m{n}"), data_path: "/d".into(), start, suspects: Suspects::None },
        member: MemberRecord {
            name: format!("n{n}"),
            zone: format!("z{}", n % 3),
            capacity: 100,
            process: start,
            ..Default::default()
        },
        processes: (1..=start).collect(),
        cluster,
        seen,
        fresh_id: [7; 16],
        replicas: 3,
        partitions: 1,
        controller: ControllerOptions { replace_after: Duration::from_secs(60), ..Default::default() },
        seed: n as u64 * 1000 + start,
    })
}

impl World {
    fn new(nodes: usize, seed: u64) -> World {
        let node = |n| Node {
            agent: agent(n, 1, 0, None),
            core: Core::default(),
            effects: vec![],
            watch: None,
            paused: 0,
            is_refusing: false,
            probes: vec![],
            starts: 1,
            refused: vec![],
            admin: vec![],
            remembered: 0,
        };
        World {
            now: 1_000 * MS,
            store: Etcd::default(),
            nodes: (0..nodes).map(node).collect(),
            requests: vec![],
            answers: vec![],
            faults: Faults::default(),
            rng: Rng::new(seed),
            led: BTreeMap::new(),
            store_away: 0,
            failing: None,
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    fn step(&mut self, n: usize, event: Event) {
        let now = Ticks(self.now);
        let mut out = std::mem::take(&mut self.nodes[n].effects);
        self.nodes[n].agent.step(now, event, &mut out);
        for effect in out.drain(..) {
            match effect {
                Effect::Send { token, request } => {
                    let at = self.now + (1 + self.rng.below(4)) * MS;
                    self.requests.push((at, n, self.nodes[n].starts, token, request));
                }
                Effect::Probe { node, .. } => self.nodes[n].probes.push(node),
                Effect::Watch { from } => self.nodes[n].watch = Some(from),
                Effect::Fact(fact) => {
                    if let Fact::Partition { membership, .. } = &fact {
                        assert!(self.nodes[n].remembered >= membership.version >> 1, "remembered before a core acts upon it");
                    }
                    self.nodes[n].core.hear(fact);
                }
                Effect::Remember { seen, .. } => self.nodes[n].remembered = seen,
                Effect::Admin { result, .. } => self.nodes[n].admin.push(result),
                Effect::Refuse(error) => self.nodes[n].refused.push(error),
                Effect::Registered | Effect::Say(_) | Effect::Stopped => {}
            }
        }
        self.nodes[n].effects = out;
    }

    /// Acts as the leaders among the replicas do: they hand over as they are asked to, and repeat that.
    fn hand_over(&mut self, n: usize) {
        let core = &mut self.nodes[n].core;
        let led = core.memberships.iter().filter(|(_, m)| m.leader == Some(id(n)));
        for (at, m) in led {
            if let Some(to) = m.wanted.filter(|to| *to != id(n) && m.is_in_sync(*to)) {
                core.resigned.insert(*at, (m.epoch.0, Some(to)));
            }
        }
        let asks: Vec<Event> = (core.resigned.iter())
            .filter(|(at, (epoch, _))| core.memberships.get(at).is_some_and(|m| m.leader == Some(id(n)) && m.epoch.0 == *epoch))
            .map(|((topic_id, number), (_, to))| {
                let route =
                    crate::codec::peer::message::Route { topic_id: *topic_id, partition: crate::base::PartitionId(*number) };
                Event::Ask(Ask::Resign { route, to: *to })
            })
            .collect();
        let release = |(at, m): (&(TopicId, u16), &Membership)| {
            let route = crate::codec::peer::message::Route { topic_id: at.0, partition: crate::base::PartitionId(at.1) };
            (m.former == Some(id(n)) && m.leader != Some(id(n))).then_some(Event::Ask(Ask::Release { route }))
        };
        let released: Vec<Event> = self.nodes[n].core.memberships.iter().filter_map(release).collect();
        asks.into_iter().chain(released).for_each(|ask| self.step(n, ask));
    }

    /// kill -9, and the next process of the same data path.
    fn restart(&mut self, n: usize, after: u64) {
        let node = &mut self.nodes[n];
        node.starts += 1;
        node.agent = agent(n, node.starts, node.remembered, Some([7; 16]).filter(|_| node.remembered > 0));
        (node.core, node.watch, node.paused) = (Core::default(), None, self.now + after);
        (node.is_refusing, node.probes) = (false, vec![]);
    }

    /// Closes the node's listener and ends its connections.
    fn refuse(&mut self, n: usize) {
        self.nodes[n].is_refusing = true;
        for other in (0..self.nodes.len()).filter(|other| *other != n) {
            if self.nodes[other].paused <= self.now {
                self.step(other, Event::Ask(Ask::PeerLost { node: id(n) }));
            }
        }
    }

    /// kill -9.
    fn kill(&mut self, n: usize) {
        self.nodes[n].paused = u64::MAX;
        self.refuse(n);
    }

    fn answer_probes(&mut self, n: usize) {
        for node in std::mem::take(&mut self.nodes[n].probes) {
            let other = &self.nodes[node.0[0] as usize - 1];
            let probe = match (other.is_refusing, other.paused > self.now) {
                (true, _) => Probe::Refused,
                (false, true) => Probe::Silent,
                (false, false) => Probe::Reached,
            };
            self.step(n, Event::Probed { node, probe });
        }
    }

    /// A millisecond goes by.
    fn tick(&mut self) {
        self.now += MS;
        let now = self.now;
        if now >= self.store_away {
            self.store.expire(now);
            self.carry_requests();
            self.carry_watches();
        }
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.answers).into_iter().partition(|a| a.0 <= now);
        self.answers = later;
        for (at, n, start, token, outcome) in due {
            if self.nodes[n].starts != start {
                continue;
            }
            if self.nodes[n].paused > now {
                self.answers.push((at, n, start, token, outcome));
                continue;
            }
            self.step(n, Event::Answered { token, outcome });
        }
        for n in 0..self.nodes.len() {
            let is_due = self.nodes[n].agent.deadline().is_some_and(|at| at.0 <= now);
            if is_due && self.nodes[n].paused <= now {
                self.step(n, Event::Tick);
            }
            if self.nodes[n].paused <= now {
                self.answer_probes(n);
            }
            if now.is_multiple_of(100 * MS) && self.nodes[n].paused <= now {
                self.hand_over(n);
            }
        }
        self.check();
    }

    fn carry_requests(&mut self) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.requests).into_iter().partition(|r| r.0 <= now);
        self.requests = later;
        for (_, n, start, token, request) in due {
            let f = self.faults;
            if self.chance(f.lost) {
                if self.chance(50) {
                    // It comes much later, when nobody waits for it.
                    self.requests.push((now + self.rng.below(3_000) * MS, n, 0, token, request));
                }
                continue;
            }
            let outcome = match &self.failing {
                Some((picks, failure)) if picks(&request) => Err(failure.clone()),
                _ => self.store.carry(now, &request),
            };
            if self.chance(f.unknown_done) {
                continue;
            }
            self.answers.push((now + (1 + self.rng.below(3)) * MS, n, start, token, outcome));
        }
    }

    fn carry_watches(&mut self) {
        for n in 0..self.nodes.len() {
            let Some(from) = self.nodes[n].watch.filter(|_| self.nodes[n].paused <= self.now) else { continue };
            let f = self.faults;
            if self.chance(f.watch_late) {
                continue;
            }
            match self.store.changes_from(from) {
                Some(changes) if changes.is_empty() => {}
                Some(changes) if !self.chance(f.watch_lost) => {
                    self.nodes[n].watch = changes.last().map(|c| revision_of(c) + 1);
                    self.step(n, Event::Watched(changes));
                }
                _ => {
                    self.nodes[n].watch = None;
                    self.step(n, Event::WatchLost);
                }
            }
        }
    }

    fn run(&mut self, ms: u64) {
        (0..ms).for_each(|_| self.tick());
    }

    fn serves(&self, n: usize, at: (TopicId, u16)) -> Option<u64> {
        let core = &self.nodes[n].core;
        let m = core.memberships.get(&at)?;
        let has_resigned = core.resigned.get(&at).is_some_and(|(epoch, _)| *epoch == m.epoch.0);
        let waits = m.former.is_some_and(|former| former != id(n));
        (m.leader == Some(id(n)) && self.now < core.until && !has_resigned && !waits).then_some(m.epoch.0)
    }

    /// Two leaders never serve at once, an epoch has one leader.
    fn check(&mut self) {
        let mut serving: BTreeMap<(TopicId, u16), usize> = BTreeMap::new();
        for n in 0..self.nodes.len() {
            let led: Vec<_> = self.nodes[n].core.memberships.keys().copied().collect();
            for at in led {
                let Some(epoch) = self.serves(n, at) else { continue };
                let other = serving.insert(at, n);
                assert_eq!(other, None, "two leaders of {at:?} serve at once: {other:?} and {n}");
                let first = *self.led.entry((at, epoch)).or_insert(id(n));
                assert_eq!(first, id(n), "an epoch has one leader");
            }
        }
    }

    fn records(&self) -> Vec<((TopicId, u16), PartitionRecord)> {
        let layout = Layout::new("c").unwrap();
        let all = self.store.changes_from(self.store.revision() + 1).map(|_| ());
        assert!(all.is_some());
        let mut found = vec![];
        for node in &self.nodes {
            for (at, _) in node.agent.view().partitions() {
                let key = layout.key(&Key::Partition(at.0, at.1));
                if let Some(kv) = self.store.get(&key) {
                    found.push((at, decode(&kv.value).unwrap()));
                }
            }
        }
        found.dedup_by(|a, b| a.0 == b.0);
        found
    }

    fn create(&mut self, n: usize, name: &str, partitions: u16) {
        let admin = Admin::CreateTopic {
            name: TopicName::new(name).unwrap(),
            partitions,
            replicas: 0,
            min_isr: 0,
            properties: Default::default(),
        };
        self.step(n, Event::Admin { token: 1, admin });
    }

    /// Partitions that take publishes at the node.
    fn written_at(&self, n: usize) -> usize {
        let core = &self.nodes[n].core;
        core.memberships.values().filter(|m| m.leader == Some(id(n)) && self.now < core.until).count()
    }

    fn led_by(&self, n: usize) -> usize {
        self.nodes[n].core.memberships.keys().filter(|at| self.serves(n, **at).is_some()).count()
    }
}

fn cluster(nodes: usize) -> World {
    let mut world = World::new(nodes, 1);
    world.run(300);
    assert!((0..nodes).all(|n| world.nodes[n].agent.session().is_some()));
    world
}

#[test]
fn nodes_register_one_is_the_controller_and_topics_get_leaders() {
    let mut world = cluster(3);
    assert_eq!(world.nodes.iter().filter(|n| n.agent.term().is_some()).count(), 1);
    world.create(1, "t", 130);
    world.run(200);
    assert_eq!(world.nodes[1].admin, [Ok("topic t exists".to_string())]);
    let led: Vec<usize> = (0..3).map(|n| world.led_by(n)).collect();
    assert_eq!(led.iter().sum::<usize>(), 130);
    assert!(led.iter().all(|l| (42..=45).contains(l)), "{led:?}");
    // Asked of all nodes at once it is made once.
    (0..3).for_each(|n| world.create(n, "u", 4));
    world.run(100);
    assert!(world.nodes.iter().all(|n| n.admin.last() == Some(&Ok("topic u exists".to_string()))));
    assert_eq!((0..3).map(|n| world.led_by(n)).sum::<usize>(), 134);
}

#[test]
fn a_killed_node_is_replaced_within_its_lease_and_leads_again_when_it_is_back() {
    let mut world = cluster(3);
    world.create(0, "t", 30);
    world.run(6_000);
    let killed = world.nodes.iter().position(|n| n.agent.term().is_some()).unwrap();
    world.nodes[killed].paused = u64::MAX;
    let others = |w: &World| (0..3).filter(|n| *n != killed).map(|n| w.led_by(n)).sum::<usize>();
    world.run(TTL.as_millis() as u64 + 100);
    assert_eq!(others(&world), 30, "the controller went with it, too");
    for (_, record) in world.records().into_iter().filter(|(_, r)| r.epoch > 1) {
        assert_eq!((record.isr.len(), record.replicas.len()), (2, 3), "who led and is away is not in sync");
    }
    world.restart(killed, 0);
    world.run(500);
    assert!(world.nodes[killed].agent.session().is_some());
    assert_eq!(world.led_by(killed), 0, "another session of the same node leads nothing");
    // It is back in every ISR, and has been there for a while.
    let isr = (0..3).map(id).collect::<Vec<_>>();
    for n in (0..3).filter(|n| *n != killed) {
        for ((topic_id, number), m) in world.nodes[n].core.memberships.clone() {
            let route = crate::codec::peer::message::Route { topic_id, partition: crate::base::PartitionId(number) };
            world.step(n, Event::Ask(Ask::Propose { route, version: m.version, isr: isr.clone() }));
        }
    }
    world.run(45_000);
    let led: Vec<usize> = (0..3).map(|n| world.led_by(n)).collect();
    assert_eq!(led, [10, 10, 10], "its leaders are handed back");
}

#[test]
fn a_leader_that_resigns_names_the_next_one_at_once_and_nobody_where_that_one_is_away() {
    let mut world = cluster(3);
    world.create(0, "t", 1);
    world.run(200);
    let (at, record) = world.records()[0].clone();
    let index = |node: NodeId| node.0[0] as usize - 1;
    let (from, to) = (index(record.leader.unwrap().node), index(record.replicas[1]));
    let resign = |world: &mut World, from: usize, epoch: u64, to: usize| {
        world.nodes[from].core.resigned.insert(at, (crate::metadata::record::store_epoch(epoch).0, Some(id(to))));
        world.hand_over(from);
    };
    resign(&mut world, from, 1, to);
    world.run(20);
    let next = world.records()[0].1.clone();
    assert_eq!((next.epoch, next.leader.unwrap().node, next.isr.len()), (2, id(to), 3), "without the controller");
    assert!(world.serves(to, at).is_some());
    let third = 3 - from - to;
    world.nodes[third].paused = u64::MAX;
    world.run(TTL.as_millis() as u64 + 100);
    resign(&mut world, to, 2, third);
    world.run(50);
    let last = world.records()[0].1.clone();
    assert_eq!((last.epoch, last.leader.unwrap().node), (3, id(from)), "the controller elects");
}

#[test]
fn who_refuses_connections_is_replaced_at_once_and_nothing_is_delivered_before_its_lease_is_over() {
    for was_controller in [true, false] {
        let mut world = cluster(3);
        world.create(0, "t", 30);
        world.run(2_000);
        let killed = world.nodes.iter().position(|n| n.agent.term().is_some() == was_controller).unwrap();
        let served = (0..3).filter(|n| *n != killed).map(|n| world.led_by(n)).sum::<usize>();
        world.kill(killed);
        world.run(300);
        let others = || (0..3).filter(move |n| *n != killed);
        assert_eq!(others().map(|n| world.written_at(n)).sum::<usize>(), 30, "was the controller: {was_controller}");
        assert_eq!(others().map(|n| world.led_by(n)).sum::<usize>(), served, "what it led is delivered by nobody else yet");
        assert!(world.records().iter().all(|(_, r)| r.leader.unwrap().node != id(killed)));
        world.run(TTL.as_millis() as u64);
        assert_eq!(others().map(|n| world.led_by(n)).sum::<usize>(), 30);
        world.restart(killed, 0);
        world.run(500);
        assert!(world.nodes[killed].agent.session().is_some());
    }
}

#[test]
fn who_only_seems_to_be_gone_gives_its_word_and_deliveries_go_on() {
    let mut world = cluster(3);
    world.create(0, "t", 30);
    world.run(2_000);
    let controller = world.nodes.iter().position(|n| n.agent.term().is_some()).unwrap();
    let seeming = (controller + 1) % 3;
    world.refuse(seeming);
    world.run(800);
    assert_eq!(world.written_at(seeming), 0);
    assert_eq!((0..3).map(|n| world.led_by(n)).sum::<usize>(), 30, "long before its lease could end");
    // Also the controller's place may be taken from one that lives.
    world.refuse(controller);
    world.run(800);
    assert!(world.nodes[controller].agent.term().is_none());
    world.nodes.iter_mut().for_each(|n| n.is_refusing = false);
    world.run(3_000);
    assert_eq!(world.nodes.iter().filter(|n| n.agent.term().is_some()).count(), 1);
    assert_eq!((0..3).map(|n| world.led_by(n)).sum::<usize>(), 30);
}

#[test]
fn a_restarted_process_takes_its_dead_predecessors_place_at_once() {
    let mut world = cluster(3);
    world.create(0, "t", 6);
    world.run(4_000);
    let before = world.nodes[1].agent.session().unwrap();
    world.restart(1, 0);
    world.run(300);
    let after = world.nodes[1].agent.session().unwrap();
    assert!(after > before);
    assert_eq!((0..3).map(|n| world.led_by(n)).sum::<usize>(), 6);
}

#[test]
fn a_copied_data_path_is_refused() {
    let mut world = cluster(3);
    let mut copy = agent(1, 9, 0, None);
    copy.options.record.machine = "elsewhere".into();
    world.nodes[2].agent = copy;
    world.nodes[2].core = Core::default();
    world.nodes[2].starts += 1;
    world.run(TTL.as_millis() as u64 * 3 + 500);
    assert!(world.nodes[1].core.nodes == 3 && world.nodes[2].core.nodes == 0, "it has no links: it would confirm as another");
    assert!(matches!(&world.nodes[2].refused[..], [AgentError::IdInUse { .. }]), "{:?}", world.nodes[2].refused);
}

#[test]
fn a_store_that_slept_moves_nothing_when_all_come_back() {
    let mut world = cluster(3);
    world.create(0, "t", 9);
    world.run(4_000);
    let before: Vec<_> = world.records().into_iter().map(|(at, r)| (at, r.leader.unwrap().node)).collect();
    world.store_away = world.now + 6_000 * MS;
    world.run(5_900);
    assert_eq!((0..3).map(|n| world.led_by(n)).sum::<usize>(), 0, "all stopped by their own clocks");
    world.run(3_000);
    let after: Vec<_> = world.records().into_iter().map(|(at, r)| (at, r.leader.unwrap().node)).collect();
    assert_eq!(before, after);
    assert!(world.records().iter().all(|(_, r)| r.isr.len() == 3), "nobody left an ISR");
    assert_eq!((0..3).map(|n| world.led_by(n)).sum::<usize>(), 9);
}

#[test]
fn a_wiped_store_changes_nothing() {
    let mut world = cluster(3);
    world.create(0, "t", 3);
    world.run(200);
    world.store = Etcd::default();
    (0..3).for_each(|n| world.step(n, Event::WatchLost));
    world.run(4_000);
    assert!(world.nodes.iter().all(|n| n.refused.iter().any(|e| matches!(e, AgentError::Store(ViewError::WentBack { .. })))));
    assert!(world.nodes.iter().all(|n| n.core.gone.is_empty() && n.core.memberships.len() == 3));
    assert_eq!(world.store.len(), 0, "nothing is written either");
}

#[test]
fn a_deleted_topic_is_told_as_gone_everywhere() {
    let mut world = cluster(3);
    world.create(0, "t", 3);
    world.run(100);
    let admin = Admin::DeleteTopic { name: TopicName::new("t").unwrap() };
    world.step(2, Event::Admin { token: 2, admin });
    world.run(100);
    assert!(world.nodes.iter().all(|n| n.core.gone.len() == 1 && n.core.memberships.is_empty()));
}

/// Found by the cluster simulator (seed 950000000000342): the watch of the node that was asked was late, so that it said of a topic that
/// another node had deleted that the topic was there.
#[test]
fn an_answer_that_the_view_alone_gives_is_confirmed_by_the_store() {
    let mut world = cluster(3);
    world.create(0, "t", 3);
    world.run(100);
    world.faults.watch_late = 100;
    let name = TopicName::new("t").unwrap();
    let key = Layout::new("c").unwrap().key(&Key::Topic(name.clone()));
    let delete = |world: &mut World, n: usize| {
        world.step(n, Event::Admin { token: 2, admin: Admin::DeleteTopic { name: name.clone() } });
        world.run(100);
    };
    delete(&mut world, 2);
    assert!(world.store.get(&key).is_none() && world.nodes[1].agent.view().topic(&name).is_some());
    world.create(1, "t", 3);
    world.run(100);
    assert!(world.store.get(&key).is_some() && world.nodes[2].agent.view().topic(&name).is_none());
    delete(&mut world, 2);
    assert!(world.store.get(&key).is_none());
    delete(&mut world, 2);
    assert!(matches!(world.nodes[2].admin.last(), Some(Err(AdminError::NoTopic(_)))), "{:?}", world.nodes[2].admin);
}

/// A whole life under faults, then quiet: every partition is led, and only by members of its ISR.
fn life(seed: u64) {
    let mut world = World::new(4, seed);
    world.run(500);
    world.create(0, "t", 12);
    world.run(200);
    let rng = &mut world.rng;
    world.faults =
        Faults { lost: rng.below(12), unknown_done: rng.below(12), watch_late: rng.below(95), watch_lost: rng.below(20) };
    for _ in 0..25 {
        let n = world.rng.below(4) as usize;
        let pause = world.rng.below(6_000) * MS;
        match world.rng.below(7) {
            0 => world.restart(n, pause),
            1 => world.nodes[n].paused = world.now + pause,
            2 => world.store_away = world.now + pause,
            3 => {
                let upto = world.store.revision();
                world.store.compact(upto);
            }
            4 => world.store.end_all_leases(),
            5 if world.rng.below(2) == 0 => world.refuse(n),
            _ => ask_something(&mut world, n),
        }
        let ms = world.rng.below(2_000);
        if world.store_away > world.now {
            // Its leases end while it is away only when it slept.
            world.run(ms);
        }
        world.run(ms);
    }
    world.faults = Faults::default();
    (world.store_away, world.requests) = (0, vec![]);
    world.nodes.iter_mut().for_each(|n| (n.paused, n.is_refusing) = (0, false));
    world.run(12_000);
    let records = world.records();
    for (at, record) in &records {
        let leader = record.leader.unwrap_or_else(|| panic!("seed {seed}: {at:?} has no leader: {record:?}"));
        let n = leader.node.0[0] as usize - 1;
        assert!(record.isr.contains(&leader.node));
        assert!(world.serves(n, *at).is_some(), "seed {seed}: {at:?}: {record:?} of {:?}", world.nodes[n].agent.session());
    }
}

fn ask_something(world: &mut World, n: usize) {
    let led: Vec<_> = world.nodes[n].core.memberships.iter().map(|(at, m)| (*at, m.clone())).collect();
    for ((topic_id, number), m) in led {
        let route = crate::codec::peer::message::Route { topic_id, partition: crate::base::PartitionId(number) };
        let ask = match world.rng.below(5) {
            4 => {
                let to = Some(m.isr[world.rng.below(m.isr.len() as u64) as usize]).filter(|to| *to != id(n));
                if m.leader == Some(id(n)) {
                    world.nodes[n].core.resigned.insert((topic_id, number), (m.epoch.0, to));
                }
                continue;
            }
            0 => Ask::AskEpoch { route, above: m.epoch },
            1 => Ask::Propose { route, version: m.version, isr: m.replicas.clone() },
            2 => Ask::Propose { route, version: m.version, isr: vec![id(n)] },
            _ => Ask::Refresh { route },
        };
        world.step(n, Event::Ask(ask));
    }
}

#[test]
fn faults_of_the_store_and_the_nodes_never_make_two_leaders_and_end_with_one() {
    (0..12).for_each(life);
}
