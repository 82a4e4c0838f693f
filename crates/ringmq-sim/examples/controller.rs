//! Cost of a large cluster's metadata for the node that is its controller: one real agent over an etcd in memory, beside nodes that are
//! keys only.
//!
//! ```sh
//! cargo run --release -p ringmq-sim --example controller -- 100 100000     # nodes, partitions
//! ```
//! Times are those of the agent's steps alone: the view, the facts for the cores, the controller's plans. The store takes no time.

use ringmq_core::agent::{Admin, Agent, AgentOptions, Effect, Event};
use ringmq_core::base::{NodeId, Ticks, TopicName};
use ringmq_core::controller::ControllerOptions;
use ringmq_core::metadata::keys::{Key, Layout};
use ringmq_core::metadata::record::{MemberRecord, NodeRecord, PartitionRecord, Suspects, encode};
use ringmq_core::metadata::request::{Op, Request, Txn};
use ringmq_core::sim::etcd::{Etcd, revision_of};
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(10);
/// Partitions of a topic, at most.
const TOPIC: usize = 1000;
const REPLICAS: u8 = 3;
/// Leases are renewed and single records change so often, for a mean.
const ROUNDS: u32 = 200;

fn id(n: usize) -> NodeId {
    NodeId((n as u128 + 1).to_be_bytes())
}

fn agent(layout: &Layout) -> Agent {
    Agent::new(AgentOptions {
        me: id(0),
        layout: layout.clone(),
        ttl: TTL,
        margin: TTL / 20,
        patience: Duration::from_secs(5),
        record: NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 1, suspects: Suspects::None },
        member: member(0),
        processes: vec![],
        cluster: None,
        seen: 0,
        fresh_id: [7; 16],
        replicas: REPLICAS,
        partitions: 1,
        controller: ControllerOptions { ttl: TTL, ..ControllerOptions::default() },
        seed: 1,
    })
}

fn member(n: usize) -> MemberRecord {
    MemberRecord { name: format!("n{n}"), zone: format!("z{}", n % 3), capacity: 100, ..MemberRecord::default() }
}

/// Requests that the agent made of the store, and the time that its steps took.
#[derive(Clone, Copy, Default)]
struct Cost {
    txns: u64,
    records: u64,
    bytes: u64,
    steps: Duration,
}

struct Rig {
    now: Ticks,
    store: Etcd,
    layout: Layout,
    agent: Agent,
    watched: u64,
    cost: Cost,
}

impl Rig {
    fn new(nodes: usize) -> Rig {
        let layout = Layout::new("scale").expect("a good name");
        let agent = agent(&layout);
        let mut rig = Rig { now: Ticks(1_000_000_000), store: Etcd::default(), layout, agent, watched: 1, cost: Cost::default() };
        rig.until_still();
        (1..nodes).for_each(|n| rig.arrive(n));
        rig.until_still();
        assert!(rig.agent.term().is_some(), "the only agent is the controller");
        rig
    }

    fn carry(&mut self, request: &Request) -> ringmq_core::metadata::request::Outcome {
        self.store.carry(self.now.0, request)
    }

    fn change(&mut self, then: Vec<Op>) {
        self.carry(&Request::Txn(Txn { then, ..Txn::default() })).expect("it is carried out");
    }

    /// Registers another node, whose lease never ends.
    fn arrive(&mut self, n: usize) {
        let node = NodeRecord { machine: format!("m{n}"), data_path: "/d".into(), start: 1, suspects: Suspects::None };
        let put = |key: Key, value| Op::Put { key: self.layout.key(&key), value, lease: None };
        let ops = vec![put(Key::Node(id(n)), encode(&node)), put(Key::Member(id(n)), encode(&member(n)))];
        self.change(ops);
    }

    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let (began, mut out) = (Instant::now(), vec![]);
            self.agent.step(self.now, event, &mut out);
            self.cost.steps += began.elapsed();
            for effect in out {
                match effect {
                    Effect::Send { token, request } => {
                        self.count(&request);
                        let outcome = self.carry(&request);
                        events.push(Event::Answered { token, outcome });
                    }
                    Effect::Watch { from } => self.watched = from,
                    Effect::Admin { result, .. } => drop(result.expect("it is done")),
                    _ => {}
                }
            }
        }
    }

    fn count(&mut self, request: &Request) {
        let Request::Txn(txn) = request else { return };
        self.cost.txns += 1;
        for op in &txn.then {
            if let Op::Put { key, value, .. } = op {
                self.cost.records += 1;
                self.cost.bytes += (key.len() + value.len()) as u64;
            }
        }
    }

    /// Brings all that the watch has, and ticks, until nothing follows.
    fn until_still(&mut self) {
        loop {
            let changes = self.store.changes_from(self.watched).expect("nothing is compacted unseen");
            if let Some(last) = changes.last().map(revision_of) {
                self.watched = last + 1;
                self.step(Event::Watched(changes));
                self.store.compact(last);
            } else if self.agent.deadline().is_some_and(|at| at <= self.now) {
                self.step(Event::Tick);
            } else {
                return;
            }
        }
    }

    fn create(&mut self, partitions: usize) {
        for (t, first) in (0..partitions).step_by(TOPIC).enumerate() {
            let count = TOPIC.min(partitions - first) as u16;
            let name = TopicName::new(&format!("topic{t}")).expect("a good name");
            let admin =
                Admin::CreateTopic { name, partitions: count, replicas: REPLICAS, min_isr: 2, properties: Default::default() };
            self.step(Event::Admin { token: t as u64, admin });
            self.until_still();
        }
    }

    /// Runs `doing` and returns its cost.
    fn measure(&mut self, doing: impl FnOnce(&mut Rig)) -> Cost {
        self.cost = Cost::default();
        doing(self);
        self.cost
    }

    /// Renewals of the lease, without anything else.
    fn renew(&mut self) {
        for _ in 0..ROUNDS {
            self.now = self.now + TTL / 5;
            self.until_still();
        }
    }

    /// A leader's change of one record, as the watch tells it.
    fn change_one(&mut self, round: usize) {
        let ((topic, number), entry) = self.agent.view().partitions().nth(round).expect("there are so many");
        let mut record: PartitionRecord = entry.value.clone();
        record.tag.number += 1;
        let op = Op::Put { key: self.layout.key(&Key::Partition(topic, number)), value: encode(&record), lease: None };
        self.change(vec![op]);
    }

    fn leads(&self, n: usize) -> usize {
        self.agent.view().partitions().filter(|(_, e)| e.value.leader.is_some_and(|l| l.node == id(n))).count()
    }
}

/// Most memory of this process so far, in MiB.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() / 1024
}

fn say(what: &str, cost: Cost) {
    let Cost { txns, records, bytes, steps } = cost;
    let rate = txns as f64 / steps.as_secs_f64().max(1e-9);
    println!("| {what} | {:.1} ms | {txns} | {records} | {bytes} | {rate:.0} |", steps.as_secs_f64() * 1e3);
}

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<usize>().ok());
    let (nodes, partitions) = (args.next().unwrap_or(100), args.next().unwrap_or(100_000));
    assert!(nodes > 3 && partitions >= ROUNDS as usize, "at least 4 nodes and {ROUNDS} partitions");
    let mut rig = Rig::new(nodes);
    println!("{nodes} nodes, {partitions} partitions of {REPLICAS} replicas\n");
    println!(
        "| what | time of the agent's steps | transactions | records | bytes written | transactions per second |\n|---|---|---|---|---|---|"
    );
    let cost = rig.measure(|rig| rig.create(partitions));
    say("create and place all", cost);
    let keys = (rig.store.len(), rig.store.bytes());
    let cost = rig.measure(Rig::renew);
    say(&format!("{ROUNDS} renewals of the own lease"), cost);
    let cost = rig.measure(|rig| {
        for round in 0..ROUNDS as usize {
            rig.change_one(round);
            rig.until_still();
        }
    });
    say(&format!("{ROUNDS} changes of one record each"), cost);
    let led = rig.leads(nodes - 1);
    let key = rig.layout.key(&Key::Node(id(nodes - 1)));
    let cost = rig.measure(|rig| {
        rig.change(vec![Op::Delete { key }]);
        rig.until_still();
    });
    assert_eq!(rig.leads(nodes - 1), 0, "others lead");
    say(&format!("a node ends that leads {led}"), cost);
    let (now, watched, layout) = (rig.now + TTL * 3, rig.watched, rig.layout.clone());
    let (store, agent) = (std::mem::take(&mut rig.store), agent(&layout));
    let before = memory();
    drop(rig);
    let mut next = Rig { now, store, layout, agent, watched, cost: Cost::default() };
    let cost = next.measure(Rig::until_still);
    assert!(next.agent.term().is_some(), "the next process of the node is the controller");
    say("a new process reads all and takes the office", cost);
    println!("\n{} keys, {} bytes with their values", keys.0, keys.1);
    println!("memory at most: {before} MiB with one agent and the store, {} MiB with another agent that reads all", memory());
}
