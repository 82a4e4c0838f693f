//! Several nodes as processes of their own, by a static cluster file each, with a TCP proxy on every link between two of them.
//!
//! Each node has its own copy of the file, which differs in one thing: the peer addresses are those of the proxies that
//! stand between this node and the others. So a test can cut a link, hold it (nothing comes through, nothing is closed), slow
//! it down, and heal it.

use super::{Client, Node};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than anything takes on a crowded machine.
pub const LIMIT: Duration = Duration::from_secs(90);
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Flags of a node with an etcd: short limits, so that a test does not wait; logs that are compared whole at the end.
pub const WITH_ETCD: [&str; 10] = [
    "--shards=2",
    "--journal-bytes=8MiB",
    "--max-bytes-per-file=1MiB",
    "--follower-limit=1500ms",
    "--retention=1h",
    "--replica-write-limit=3s",
    "--replica-retry=200ms",
    "--replica-heartbeat=200ms",
    "--lease-ttl=3s",
    "--lease-ttl-floor=1s",
];

// ---- links

const OPEN: u8 = 0;
/// Connections are closed, new ones too.
const CUT: u8 = 1;
/// Connections stay, nothing comes through.
const HELD: u8 = 2;

#[derive(Default)]
struct LinkState {
    mode: AtomicU8,
    delay_ms: AtomicU64,
    is_over: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

/// Proxy between a node and another one that it dials.
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<LinkState>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(LinkState::default());
        let shared = state.clone();
        std::thread::spawn(move || {
            for incoming in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                if shared.mode.load(Ordering::SeqCst) == CUT {
                    continue; // dropped, so closed
                }
                if let Ok(outgoing) = TcpStream::connect_timeout(&target, Duration::from_secs(1)) {
                    join(&shared, incoming, outgoing);
                }
            }
        });
        Proxy { address, state }
    }

    /// Holds all bytes back and closes no connection.
    pub fn hold(&self) {
        self.set(HELD);
    }

    pub fn heal(&self) {
        self.set(OPEN);
    }

    /// Connections end; new ones are taken.
    pub fn drop_connections(&self) {
        self.set(CUT);
        self.set(OPEN);
    }

    fn set(&self, mode: u8) {
        self.state.mode.store(mode, Ordering::SeqCst);
        if mode == CUT {
            for stream in self.state.connections.lock().expect("nobody panics with it").drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        self.set(CUT);
        let _ = TcpStream::connect(self.address); // the listener looks up
    }
}

fn join(state: &Arc<LinkState>, incoming: TcpStream, outgoing: TcpStream) {
    for (from, to) in [(&incoming, &outgoing), (&outgoing, &incoming)] {
        let (Ok(from), Ok(to), Ok(kept)) = (from.try_clone(), to.try_clone(), from.try_clone()) else { return };
        let _ = to.set_nodelay(true);
        state.connections.lock().expect("nobody panics with it").push(kept);
        let state = state.clone();
        std::thread::spawn(move || carry(&state, from, to));
    }
}

fn carry(state: &LinkState, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        std::thread::sleep(Duration::from_millis(state.delay_ms.load(Ordering::SeqCst)));
        while state.mode.load(Ordering::SeqCst) == HELD {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

// ---- the file

#[derive(Clone)]
pub struct FilePartition {
    /// Indices of nodes.
    pub replicas: Vec<usize>,
    pub isr: Vec<usize>,
    pub leader: Option<usize>,
    pub epoch: u64,
}

#[derive(Clone)]
pub struct FileTopic {
    pub name: String,
    pub id: String,
    pub min_isr: usize,
    pub partitions: Vec<FilePartition>,
}

/// Part of the cluster file that tests change; the nodes in it stay.
#[derive(Clone)]
pub struct ClusterFile {
    pub version: u64,
    pub topics: Vec<FileTopic>,
}

impl ClusterFile {
    pub fn partition(&mut self, topic: &str, number: usize) -> &mut FilePartition {
        let topic = self.topics.iter_mut().find(|t| t.name == topic).expect("the test made it");
        &mut topic.partitions[number]
    }

    /// Makes another node the leader, in a new epoch; `without` leaves the ISR.
    pub fn lead(&mut self, topic: &str, number: usize, leader: usize, without: Option<usize>) {
        let p = self.partition(topic, number);
        (p.leader, p.epoch) = (Some(leader), p.epoch + 1);
        p.isr.retain(|n| Some(*n) != without);
    }

    fn text(&self, cluster: &Cluster, of: usize) -> String {
        let names = |nodes: &[usize]| format!("{:?}", nodes.iter().map(|n| NAMES[*n]).collect::<Vec<_>>());
        let mut text = format!("cluster_id = \"{}\"\nversion = {}\n", "c".repeat(32), self.version);
        for (i, id) in cluster.ids.iter().enumerate() {
            let address = if i == of { cluster.nodes[i].peer() } else { cluster.link(of, i).address };
            text += &format!("[[node]]\nname = \"{}\"\nid = \"{id}\"\npeer_address = \"{address}\"\n", NAMES[i]);
            let (native, tcp) = (cluster.nodes[i].native(), cluster.nodes[i].tcp());
            text += &format!("native_address = \"{native}\"\ntcp_address = \"{tcp}\"\n");
        }
        for topic in &self.topics {
            let (name, id, min_isr, count) = (&topic.name, &topic.id, topic.min_isr, topic.partitions.len());
            text += &format!("[[topic]]\nname = \"{name}\"\nid = \"{id}\"\npartitions = {count}\nmin_isr = {min_isr}\n");
            for (number, p) in topic.partitions.iter().enumerate() {
                let leader = p.leader.map_or(String::new(), |l| format!("leader = \"{}\"\n", NAMES[l]));
                let (replicas, isr, epoch) = (names(&p.replicas), names(&p.isr), p.epoch);
                text += &format!(
                    "[[topic.partition]]\nnumber = {number}\nreplicas = {replicas}\nisr = {isr}\n{leader}epoch = {epoch}\n"
                );
            }
        }
        text
    }
}

// ---- the nodes

pub struct Cluster {
    pub nodes: Vec<Node>,
    ids: Vec<String>,
    pub file: ClusterFile,
    /// (who dials, whom)
    links: Vec<((usize, usize), Proxy)>,
}

impl Cluster {
    /// Three nodes with these topics (name, partitions), each partition on all of them; partition n is led by node n mod 3.
    /// ISR limits are short, so that a test does not wait.
    pub fn start(topics: &[(&str, usize)], flags: &[&str]) -> Cluster {
        let mut nodes: Vec<Node> = Vec::new();
        for _ in NAMES {
            // Kept although confirmed: the logs are compared whole at the end.
            let mut all = vec!["--shards=2", "--journal-bytes=8MiB", "--max-bytes-per-file=1MiB", "--follower-limit=1500ms"];
            all.extend(["--retention=1h", "--replica-write-limit=3s", "--replica-retry=200ms", "--replica-heartbeat=200ms"]);
            all.extend(flags);
            nodes.push(Node::prepare(&all));
        }
        let ids =
            nodes.iter().map(|node| node.run(&["node-id", &format!("--data-path={}", node.data_path().display())])).collect();
        let mut links = Vec::new();
        for from in 0..nodes.len() {
            for to in (0..nodes.len()).filter(|to| *to != from) {
                links.push(((from, to), Proxy::to(nodes[to].peer())));
            }
        }
        let all: Vec<usize> = (0..nodes.len()).collect();
        let topic = |(i, (name, count)): (usize, &(&str, usize))| FileTopic {
            name: name.to_string(),
            id: format!("{:032x}", 0xabc0 + i),
            min_isr: 2,
            partitions: (0..*count)
                .map(|n| FilePartition { replicas: all.clone(), isr: all.clone(), leader: Some(n % all.len()), epoch: 1 })
                .collect(),
        };
        let file = ClusterFile { version: 1, topics: topics.iter().enumerate().map(topic).collect() };
        let mut cluster = Cluster { nodes, ids, file, links };
        cluster.write_files();
        for node in &mut cluster.nodes {
            node.spawn();
        }
        for node in &mut cluster.nodes {
            node.wait_ready().unwrap_or_else(|e| panic!("{e}"));
        }
        cluster
    }

    /// Three nodes whose etcd says who leads what; its lease lasts three seconds, unless `flags` say otherwise.
    pub fn start_with_etcd(urls: &[String], flags: &[&str]) -> Cluster {
        Cluster::start_named(urls, &NAMES.map(|name| (name, "")), flags)
    }

    /// The same with nodes of these names and zones.
    pub fn start_named(urls: &[String], names: &[(&str, &str)], flags: &[&str]) -> Cluster {
        let node = |(name, zone): &(&str, &str)| {
            let zone = format!("--zone={zone}");
            let own = if zone.ends_with('=') { vec![] } else { vec![zone.as_str()] };
            Node::prepare_with_etcd(urls, name, &[&WITH_ETCD[..], flags, &own].concat())
        };
        let mut nodes: Vec<Node> = names.iter().map(node).collect();
        nodes.iter_mut().for_each(Node::spawn);
        nodes.iter_mut().for_each(|node| node.wait_ready().unwrap_or_else(|e| panic!("{e}")));
        let cluster = Cluster::of(nodes);
        cluster.wait_registered();
        cluster
    }

    /// Waits until the running nodes know each other. A node is ready before it is registered, and a topic that is created earlier has
    /// fewer replicas at first.
    pub fn wait_registered(&self) {
        let running = || self.nodes.iter().filter(|node| node.is_up());
        let count = running().count();
        let knows_all =
            |node: &Node| node.get("/cluster/stats").is_ok_and(|said| said.matches("\"alive\":true").count() == count);
        let said = || running().map(|node| node.get("/cluster/stats")).collect::<Vec<_>>();
        until(|| running().all(knows_all), || format!("all nodes are registered: {:?}", said()));
    }

    /// Cluster of these nodes, whose etcd has their partitions.
    pub fn of(nodes: Vec<Node>) -> Cluster {
        let file = ClusterFile { version: 0, topics: vec![] };
        Cluster { nodes, ids: vec![], file, links: vec![] }
    }

    /// The node that leads the partition, once one does.
    pub fn leader(&self, topic: &str, partition: usize) -> usize {
        let mut found = None;
        until(
            || {
                found = (0..self.nodes.len()).find(|n| self.nodes[*n].is_up() && self.role(*n, topic, partition) == "leader");
                found.is_some()
            },
            || {
                let logs: Vec<String> = self.nodes.iter().map(Node::log).collect();
                format!(
                    "somebody leads {topic}/{partition}:
{}",
                    logs.join(
                        "
----
"
                    )
                )
            },
        );
        found.expect("it was found")
    }

    fn link(&self, from: usize, to: usize) -> &Proxy {
        &self.links.iter().find(|(of, _)| *of == (from, to)).expect("each two have one").1
    }

    fn write_files(&self) {
        for (i, node) in self.nodes.iter().enumerate() {
            std::fs::write(node.cluster_file(), self.file.text(self, i)).expect("the folder is writable");
        }
    }

    /// The next version: to every node's file, and to those that run by SIGHUP. Returns when they say that it is in force.
    pub fn change(&mut self, change: impl FnOnce(&mut ClusterFile)) {
        change(&mut self.file);
        self.file.version += 1;
        self.write_files();
        let line = format!("another version of the cluster file is in force version={} ", self.file.version);
        let running: Vec<usize> = (0..self.nodes.len()).filter(|i| self.nodes[*i].is_up()).collect();
        running.iter().for_each(|i| self.nodes[*i].signal(libc::SIGHUP));
        for i in running {
            until(
                || self.nodes[i].whole_log().contains(&line),
                || format!("node {} takes version {}:\n{}", NAMES[i], self.file.version, self.nodes[i].log()),
            );
        }
    }

    pub fn cut(&self, one: usize, other: usize) {
        self.set_links(one, other, CUT);
    }

    pub fn hold(&self, one: usize, other: usize) {
        self.set_links(one, other, HELD);
    }

    pub fn heal(&self, one: usize, other: usize) {
        self.set_links(one, other, OPEN);
    }

    fn set_links(&self, one: usize, other: usize, mode: u8) {
        self.link(one, other).set(mode);
        self.link(other, one).set(mode);
    }

    pub fn delay(&self, one: usize, other: usize, ms: u64) {
        for link in [self.link(one, other), self.link(other, one)] {
            link.state.delay_ms.store(ms, Ordering::SeqCst);
        }
    }

    /// A replica as /stats shows it.
    pub fn replica(&self, node: usize, topic: &str, partition: usize) -> Option<serde_json::Value> {
        let answer = self.nodes[node].get(&format!("/stats?format=json&topic={topic}")).ok()?;
        let body = answer.split_once("\r\n\r\n")?.1;
        let stats: serde_json::Value = serde_json::from_str(body).ok()?;
        let replicas = stats["topics"][0]["replication"].as_array()?;
        replicas.iter().find(|r| r["partition"] == partition).cloned()
    }

    pub fn role(&self, node: usize, topic: &str, partition: usize) -> String {
        let replica = self.replica(node, topic, partition);
        replica.and_then(|r| r["role"].as_str().map(String::from)).unwrap_or_else(|| "unknown".into())
    }

    pub fn wait_role(&self, node: usize, topic: &str, partition: usize, role: &str) {
        until(
            || self.role(node, topic, partition) == role,
            || {
                let all: Vec<_> = (0..self.nodes.len()).map(|n| self.replica(n, topic, partition)).collect();
                format!("node {} is {role} of {topic}/{partition}: {all:#?}\n{}", NAMES[node], self.nodes[node].log())
            },
        );
    }

    /// Waits until these nodes have the leader's whole log, and know it to be committed.
    pub fn wait_equal(&self, nodes: &[usize], topic: &str, partition: usize) {
        let marks = |node: usize| {
            let r = self.replica(node, topic, partition)?;
            Some((r["end"].as_i64()?, r["durable"].as_i64()?, r["committed"].as_i64()?))
        };
        let are_equal = || {
            let all: Vec<_> = nodes.iter().map(|n| marks(*n)).collect();
            all[0].is_some_and(|(end, durable, committed)| end == durable && end == committed) && all.iter().all(|m| *m == all[0])
        };
        until(are_equal, || {
            let all: Vec<_> = nodes.iter().map(|n| self.replica(*n, topic, partition)).collect();
            format!("{nodes:?} have the same of {topic}/{partition}: {all:#?}")
        });
    }

    /// Stops all by SIGTERM, and sees that the replicas are identical; so many messages at least, in all partitions.
    pub fn stop_and_compare(&mut self, messages_min: usize) {
        for node in &mut self.nodes {
            node.stop();
        }
        let paths: Vec<String> = self.nodes.iter().map(|node| node.data_path().display().to_string()).collect();
        let mut args = vec!["inspect", "--compare"];
        args.extend(paths.iter().map(String::as_str));
        let text = self.nodes[0].run(&args);
        assert!(text.lines().last().is_some_and(|l| l.starts_with("identical: ")), "{text}");
        assert!(!text.contains("stand in journal"), "a stop leaves nothing in the journals alone: {text}");
        let count = |line: &str| line.rsplit_once(", ")?.1.strip_suffix(" messages")?.parse::<usize>().ok();
        let everywhere = format!(": identical in {} data paths", paths.len());
        let compared: usize = text.lines().filter(|l| l.contains(&everywhere)).filter_map(count).sum();
        assert!(compared >= messages_min, "{compared} messages were compared, {messages_min} acknowledged:\n{text}");
        for path in &paths {
            self.nodes[0].run(&["inspect", path]);
        }
    }
}

pub fn until(mut condition: impl FnMut() -> bool, what: impl Fn() -> String) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "not within {LIMIT:?}: {}", what());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Publishes numbered bodies to whatever node takes them, and knows which were acknowledged.
pub struct Publisher {
    addresses: Vec<SocketAddr>,
    topic: String,
    client: Option<Client>,
    at: usize,
    next: usize,
    pub acknowledged: Vec<Vec<u8>>,
    /// Publishes that were refused, or whose outcome nobody knows.
    pub failed: usize,
}

impl Publisher {
    pub fn new(cluster: &Cluster, topic: &str) -> Publisher {
        let addresses = cluster.nodes.iter().map(Node::tcp).collect();
        let topic = topic.to_string();
        Publisher { addresses, topic, client: None, at: 0, next: 0, acknowledged: vec![], failed: 0 }
    }

    /// Goes on with a later number.
    pub fn skip(&mut self, count: usize) {
        self.next += count;
    }

    /// Tries once; on an error the next publish goes to another node.
    pub fn try_publish(&mut self) -> bool {
        let body = [format!("{}-{} ", self.topic, self.next).as_bytes(), &vec![b'x'; self.next % 900]].concat();
        self.next += 1;
        let publish = |client: &mut Client| client.publish(&self.topic, &body);
        let fresh = || -> std::io::Result<Client> {
            let mut client = Client::connect(self.addresses[self.at])?;
            client.set_read_timeout(Duration::from_secs(10))?;
            Ok(client)
        };
        let mut client = match self.client.take().map_or_else(fresh, Ok) {
            Ok(client) => client,
            Err(_) => {
                self.at = (self.at + 1) % self.addresses.len();
                return false;
            }
        };
        match publish(&mut client) {
            Ok(()) => {
                self.acknowledged.push(body);
                self.client = Some(client);
                true
            }
            Err(_) => {
                self.failed += 1;
                self.at = (self.at + 1) % self.addresses.len();
                false
            }
        }
    }

    /// Publishes until `count` more messages are acknowledged.
    pub fn publish(&mut self, count: usize) {
        let wanted = self.acknowledged.len() + count;
        let began = Instant::now();
        while self.acknowledged.len() < wanted {
            if !self.try_publish() {
                assert!(began.elapsed() < LIMIT, "nobody acknowledges within {LIMIT:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Publishes on a thread until the handle is told to stop.
    pub fn in_background(mut self) -> Background {
        let stop = Arc::new(AtomicBool::new(false));
        let (count, is_over) = (Arc::new(AtomicU64::new(0)), stop.clone());
        let counted = count.clone();
        let thread = std::thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                if !self.try_publish() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                counted.store(self.acknowledged.len() as u64, Ordering::SeqCst);
            }
            self
        });
        Background { stop, count, thread }
    }
}

pub struct Background {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Publisher>,
}

impl Background {
    pub fn acknowledged(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until `count` more messages are acknowledged.
    pub fn wait_more(&self, count: u64) {
        let wanted = self.acknowledged() + count;
        until(|| self.acknowledged() >= wanted, || format!("{wanted} are acknowledged, and it is {}", self.acknowledged()));
    }

    /// A fault keeps an in-sync replica away: publishes in flight may still be acknowledged, then none is for so long.
    pub fn stands_still(&self, time: Duration) {
        let settling = Duration::from_millis(500);
        std::thread::sleep(settling);
        let before = self.acknowledged();
        std::thread::sleep(time.saturating_sub(settling));
        assert_eq!(self.acknowledged(), before, "acknowledged without a replica that is in sync");
    }

    pub fn stop(self) -> Publisher {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("the publisher does not panic")
    }
}

/// Consumes the channel at one node until all of these came; finishes what comes.
pub fn consume(address: SocketAddr, topic: &str, channel: &str, wanted: &[Vec<u8>]) {
    let mut missing: std::collections::HashSet<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
    let mut client = Client::connect(address).expect("the node runs");
    client.subscribe(topic, channel, 100).expect("it leads the topic");
    while !missing.is_empty() {
        let message = client.message().unwrap_or_else(|e| panic!("{} of {} are missing: {e}", missing.len(), wanted.len()));
        missing.remove(message.body.as_slice());
        client.finish(&message.id).expect("it reads");
    }
}

/// Changes a byte of a partition's segment `index`, so far behind its beginning, on the disk.
pub fn rot(node: &Node, topic: &str, partition: usize, index: usize, at: u64) {
    use std::os::unix::fs::FileExt;
    let folder = node.data_path().join(format!("topics/{topic}/{partition}"));
    let mut names: Vec<_> =
        std::fs::read_dir(&folder).expect("the partition is there").map(|e| e.expect("readable").path()).collect();
    names.retain(|p| p.extension().is_some_and(|e| e == "segment"));
    names.sort();
    assert!(index + 1 < names.len(), "a segment that is closed: {names:?}");
    let file = std::fs::File::options().read(true).write(true).open(&names[index]).expect("its own user may");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 4096 + at).expect("the segment is longer");
    file.write_all_at(&[byte[0] ^ 0x20], 4096 + at).expect("it is writable");
    file.sync_all().expect("it is writable");
}
