//! Nodes, an etcd, the wires between them and the clients of one run.

use super::check::{Channel, History, check};
use super::clients::{self, Clients, NATIVE, ORDERED, PARTITIONS, STOCK};
use super::record::Topic;
use crate::node::cluster::{Cluster, until};
use crate::node::etcd::{FAST, Member};
use crate::node::small_disk::SmallDisk;
use crate::node::wires::Wires;
use crate::node::{Chance, Node};
use base64::Engine;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Names of the nodes; the fault that adds a node takes the name behind those of the start.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Replicas of each partition, and nodes at the start where `HISTORY_NODES` says nothing.
const REPLICAS: usize = 3;
/// Number of the party on the wires.
pub const ETCD: usize = NAMES.len();
pub const LEASE: Duration = Duration::from_secs(3);
/// Holds the data of a run of some minutes, and a node notices when it is full.
const DISK_BYTES: u64 = 512 << 20;
/// Acknowledged publishes of each topic that show that the cluster serves again.
const PROGRESS: usize = 5;
/// Consumers that have nothing new for so long get nothing more.
const QUIET_LIMIT: Duration = Duration::from_secs(40);

const FLAGS: &[&str] = &[
    "--shards=2",
    "--journal-bytes=8MiB",
    "--max-bytes-per-file=1MiB",
    // Kept although confirmed: the logs are read whole at the end.
    "--retention=1h",
    "--follower-limit=1500ms",
    "--replica-write-limit=3s",
    "--replica-retry=200ms",
    "--replica-heartbeat=200ms",
    "--lease-ttl=3s",
    "--lease-ttl-floor=1s",
    "--msg-timeout=3s",
    "--scrub-bytes-per-second=1MiB",
];

pub struct World {
    pub cluster: Cluster,
    pub etcd: Member,
    pub wires: Wires,
    /// Disk of the first node, for faults that need a small one.
    pub disk: Option<SmallDisk>,
    pub chance: Chance,
    pub clients: Clients,
    /// Nodes at the start. One more is prepared.
    first: usize,
    /// Ids of the nodes, as etcd knows them.
    ids: Vec<String>,
    seed: u64,
    told: String,
}

impl World {
    /// Everything runs, and clients publish and consume.
    pub fn start(seed: u64, first: usize, has_small_disk: bool) -> World {
        assert!((REPLICAS..NAMES.len()).contains(&first), "3 to 5 nodes");
        let etcd = Member::start(&FAST);
        let mut wires = Wires::new();
        let disk = has_small_disk.then(|| SmallDisk::new(DISK_BYTES));
        let mut nodes = Vec::new();
        for (number, name) in NAMES[..=first].iter().enumerate() {
            let url = format!("http://{}", wires.lay(Some(number), ETCD, etcd.client()));
            let mut node = Node::prepare_with_etcd(&[url], name, FLAGS);
            let peer = wires.lay(None, number, node.peer());
            node.with_flag(format!("--broadcast-peer-address={peer}"));
            if let (0, Some(disk)) = (number, &disk) {
                node.with_data(disk.path().join("data"));
            }
            nodes.push(node);
        }
        let id = |node: &Node| node.run(&["node-id", &format!("--data-path={}", node.data_path().display())]);
        let ids = nodes.iter().map(id).collect();
        let mut cluster = Cluster::of(nodes);
        for number in 0..first {
            cluster.nodes[number].spawn();
            wires.set_process(number, cluster.nodes[number].pid());
        }
        cluster.nodes[..first].iter_mut().for_each(|node| node.wait_ready().unwrap_or_else(|e| panic!("{e}")));
        cluster.wait_registered();
        for topic in Topic::ALL {
            let path = format!("/topic/create?topic={}&partition_num={PARTITIONS}&replicator={REPLICAS}", topic.name());
            let create = || cluster.nodes[0].post(&path, b"");
            until(|| create().is_ok_and(|answer| answer.contains("200 OK")), || format!("{path}: {:?}", create()));
        }
        let (tcp, native) = cluster.nodes.iter().map(|node| (node.tcp(), node.native())).unzip();
        let clients = Clients::start(tcp, native, seed);
        World { cluster, etcd, wires, disk, chance: Chance::new(seed), clients, first, ids, seed, told: String::new() }
    }

    /// A line of the run's log.
    pub fn tell(&mut self, what: &str) {
        let line = format!("{:8.3} s  {what}", self.clients.shared.recorder.elapsed().as_secs_f64());
        println!("{line}");
        let _ = writeln!(self.told, "{line}");
    }

    pub fn spawn(&mut self, node: usize) {
        self.cluster.nodes[node].spawn();
        self.wires.set_process(node, self.cluster.nodes[node].pid());
    }

    pub fn wait_ready(&mut self, node: usize) {
        self.cluster.nodes[node].wait_ready().unwrap_or_else(|e| panic!("node {}: {e}", NAMES[node]));
    }

    pub fn name(&self, node: usize) -> &'static str {
        NAMES[node]
    }

    pub fn running(&self) -> Vec<usize> {
        (0..self.cluster.nodes.len()).filter(|node| self.cluster.nodes[*node].is_up()).collect()
    }

    /// A node that leads a partition of chance.
    pub fn some_leader(&mut self) -> usize {
        let topic = Topic::ALL[self.chance.below(3) as usize];
        let partition = self.chance.below(PARTITIONS as u64) as usize;
        self.cluster.leader(topic.name(), partition)
    }

    pub fn some_node(&mut self) -> usize {
        let running = self.running();
        running[self.chance.below(running.len() as u64) as usize]
    }

    /// A node that has a replica of the partition.
    pub fn some_replica(&mut self, topic: &str, partition: usize) -> usize {
        let has = |node: &usize| ["leader", "follower"].contains(&self.cluster.role(*node, topic, partition).as_str());
        let nodes: Vec<usize> = self.running().into_iter().filter(has).collect();
        nodes[self.chance.below(nodes.len() as u64) as usize]
    }

    /// Milliseconds between the two.
    pub fn some_time(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.chance.below(most - least))
    }

    /// Every party but this one: nodes that run, and etcd.
    pub fn others(&self, node: usize) -> Vec<usize> {
        self.running().into_iter().chain([ETCD]).filter(|other| *other != node).collect()
    }

    /// Waits until every topic takes publishes again.
    pub fn wait_progress(&mut self) {
        let shared = self.clients.shared.clone();
        let before = Topic::ALL.map(|topic| shared.recorder.acknowledged_count(topic));
        let now = || Topic::ALL.map(|topic| shared.recorder.acknowledged_count(topic));
        until(
            || std::iter::zip(now(), before).all(|(now, before)| now >= before + PROGRESS),
            || format!("every topic takes publishes again: {before:?}, then {:?}\n{}", now(), self.logs()),
        );
    }

    fn logs(&self) -> String {
        let log = |(number, node): (usize, &Node)| format!("---- {}\n{}\n", NAMES[number], node.log());
        self.cluster.nodes.iter().enumerate().map(log).collect()
    }

    /// Leader of each partition and nodes in sync, as the leaders see it; so many of the partitions have all three.
    fn partitions_in_sync(&self) -> usize {
        let has_three = |topic: Topic, partition: usize| {
            self.running().into_iter().any(|node| {
                let replica = self.cluster.replica(node, topic.name(), partition);
                replica.is_some_and(|r| r["role"] == "leader" && r["isr"].as_array().is_some_and(|isr| isr.len() == REPLICAS))
            })
        };
        Topic::ALL.iter().map(|topic| (0..PARTITIONS as usize).filter(|p| has_three(*topic, *p)).count()).sum()
    }

    /// Waits until every partition has a leader and all of its replicas in sync.
    pub fn wait_in_sync(&self) {
        let all = Topic::ALL.len() * PARTITIONS as usize;
        until(
            || self.partitions_in_sync() == all,
            || format!("{} of {all} partitions are in sync\n{}", self.partitions_in_sync(), self.logs()),
        );
    }

    /// Partitions of which a node has a replica, and of which it is the leader.
    fn share_of(&self, node: usize) -> (usize, usize) {
        let (mut replicas, mut leaders) = (0, 0);
        for topic in Topic::ALL {
            for partition in 0..PARTITIONS as usize {
                let role = self.cluster.role(node, topic.name(), partition);
                leaders += (role == "leader") as usize;
                replicas += (role != "unknown" && role != "none") as usize;
            }
        }
        (replicas, leaders)
    }

    /// Whether the node that was not there at the start is there.
    pub fn has_added(&self) -> bool {
        self.cluster.nodes[self.first].is_up()
    }

    /// Starts that node; its name.
    pub fn add_node(&mut self) -> &'static str {
        self.spawn(self.first);
        self.wait_ready(self.first);
        NAMES[self.first]
    }

    /// Drains the node, with the record that `ringmq cluster drain` writes.
    pub fn drain(&self, node: usize) {
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let key = encode(&format!("/ringmq/main/drain/{}", self.ids[node]));
        let answer = self.etcd.post("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{}"}}"#, encode(r#"{"v":1}"#)));
        assert!(answer.contains("200 OK"), "{answer}");
        until(
            || self.share_of(node).1 == 0,
            || format!("{} leads nothing: {:?}\n{}", NAMES[node], self.share_of(node), self.logs()),
        );
    }

    pub fn wait_without_replicas(&self, node: usize) {
        until(
            || self.share_of(node).0 == 0,
            || format!("{} has no replica: {:?}\n{}", NAMES[node], self.share_of(node), self.logs()),
        );
    }

    pub fn end_drain(&self, node: usize) {
        let key = base64::engine::general_purpose::STANDARD.encode(format!("/ringmq/main/drain/{}", self.ids[node]));
        let answer = self.etcd.post("/v3/kv/deleterange", &format!(r#"{{"key":"{key}"}}"#));
        assert!(answer.contains("200 OK"), "{answer}");
    }

    /// Ends the run: everything that was acknowledged comes to every channel, the logs are read, the replicas compared, and the
    /// history is judged.
    pub fn finish(mut self) {
        self.wait_progress();
        self.wait_in_sync();
        self.clients.end_producers();
        let kept = self.clients.shared.clone();
        let shared = &*kept;
        let mut channels = vec![
            Channel { topic: Topic::Keyed, name: ORDERED, is_ordered: true },
            Channel { topic: Topic::Keyed, name: NATIVE, is_ordered: false },
        ];
        channels.extend([Topic::Plain, Topic::Deferred].map(|topic| Channel { topic, name: STOCK, is_ordered: false }));
        // The checker finds messages that do not come.
        let missing = || channels.iter().map(|channel| shared.recorder.missing(channel.topic, channel.name).len()).sum::<usize>();
        let (mut least, mut began) = (missing(), Instant::now());
        while least > 0 && began.elapsed() < QUIET_LIMIT {
            std::thread::sleep(Duration::from_millis(200));
            let now = missing();
            if now < least {
                (least, began) = (now, Instant::now());
            }
        }
        self.clients.end_consumers();
        let mut history = History { channels, ..History::default() };
        let logs = std::thread::scope(|scope| {
            let readers = Topic::ALL.map(|topic| (topic, scope.spawn(move || clients::read_logs(shared, topic))));
            readers.map(|(topic, reader)| (topic, reader.join().expect("a reader does not panic")))
        });
        for (topic, logs) in logs {
            history.logs.extend(logs.into_iter().map(|(partition, log)| ((topic, partition), log)));
        }
        history.events = shared.recorder.events();
        let mut complaints = shared.recorder.strange();
        complaints.extend(check(&history));
        let stored: usize = history.logs.values().map(Vec::len).sum();
        let counts = Topic::ALL.map(|topic| shared.recorder.acknowledged_count(topic));
        self.tell(&format!(
            "{} events, acknowledged {counts:?}, stored {stored}: {}",
            history.events.len(),
            super::outcomes(&history)
        ));
        if !complaints.is_empty() {
            let kept: Vec<_> = self.cluster.nodes.iter_mut().map(Node::keep).collect();
            panic!("seed {}\n{}\n{}\nlogs and data are kept: {kept:?}", self.seed, complaints.join("\n"), self.told);
        }
        self.compare(counts.iter().sum());
        self.tell("replicas are identical");
    }

    /// Stops all nodes and checks that all replicas of a partition have the same bytes.
    fn compare(&mut self, messages_min: usize) {
        if !self.has_added() {
            self.cluster.nodes.truncate(self.first);
            if self.first == REPLICAS {
                return self.cluster.stop_and_compare(messages_min);
            }
        }
        for node in &mut self.cluster.nodes {
            node.stop();
        }
        let paths: Vec<String> = self.cluster.nodes.iter().map(|node| node.data_path().display().to_string()).collect();
        let output = std::process::Command::new(crate::node::binary()).args(["inspect", "--compare"]).args(&paths).output();
        let text = String::from_utf8_lossy(&output.expect("the binary runs").stdout).into_owned();
        // A partition is on three of the nodes; a node that it left may still have it as it was.
        let is_well =
            |line: &&str| line.contains(": identical in ") || line.contains(": MISSING in ") || line.contains("data path");
        let bad: Vec<&str> = text.lines().filter(|line| line.contains(" partition ") && !is_well(line)).collect();
        assert!(bad.is_empty() && text.contains(": identical in "), "{text}");
    }
}
