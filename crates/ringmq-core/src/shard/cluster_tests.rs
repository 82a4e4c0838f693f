//! Three nodes in one thread: their shards with their links, a disk for each that does what it is told (or waits), a network
//! that carries the links' bytes, and a metadata store that the test plays.

use super::*;
use crate::base::{DiskError, DiskOp, FileId, Lent, OpId, PartitionId, Peer, TopicId, TopicInfo, TopicName};
use crate::codec::nsq::frame::Frame;
use crate::codec::nsq::{frame, request};
use crate::log::ProducerLimits;
use crate::log::recovery::{RecoverOptions, recover};
use crate::replica::states::State;
use crate::seam::cluster::{Ask, ClusterNode, ClusterOptions, Fact};
use crate::seam::event::DialError;
use crate::seam::membership::Membership;
use crate::seam::{message::MeshMessage, outcome::PublishError};
use crate::sim::disk::SimDisk;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

mod changes;
mod damage;
mod deletion;
mod failover;
mod forward;
mod full;
mod growth;
mod moved;
mod native;
mod operate;
mod quorum;
mod relay;
mod roles;
mod topics;
mod writes;

const JOURNAL: u64 = 4 << 20;

/// Longer than the longest pause before a node is dialled again, and what the replicas then have to say.
const RECONNECT: Duration = Duration::from_secs(10);

fn id_of_node(i: usize) -> NodeId {
    NodeId([i as u8 + 1; 16])
}

struct Node {
    shards: Vec<Shard>,
    disk: SimDisk,
    /// Operations that the disk was not given yet, by core.
    asked: VecDeque<(usize, OpId, DiskOp)>,
    /// The core of each operation that the disk has, by the disk's number.
    under_way: HashMap<OpId, (usize, OpId)>,
    next_op: u64,
    /// The journal's writes wait.
    is_slow: bool,
    /// Writes to segments and commit logs fail.
    do_files_fail: bool,
    mesh: VecDeque<(CoreId, CoreId, MeshMessage)>,
    http: Vec<MeshMessage>,
    generation: u64,
    is_down: bool,
}

impl Node {
    fn is_held(&self, op: &DiskOp) -> bool {
        self.is_slow && matches!(op.file(), Some(FileId::Journal(_)))
    }
}

enum OnWire {
    Bytes(Vec<u8>),
    Closed,
}

struct Net {
    nodes: Vec<Node>,
    settings: Arc<Settings>,
    /// Number of cores of a node that starts.
    cores: u16,
    now: Now,
    topic: TopicRef,
    /// The metadata of each partition, by number.
    metadata: Vec<Membership>,
    /// The end of every node's first lease.
    lease: Ticks,
    /// True while the store takes proposals and gives epochs.
    is_store_there: bool,
    /// Events between nodes that come next at an end of a connection.
    wire: VecDeque<(ConnId, OnWire)>,
    /// The node and core of each end, and the other end.
    links: HashMap<ConnId, (usize, usize, ConnId)>,
    /// Destination that a node lent for the next bytes of a connection.
    lent: HashMap<ConnId, Lent>,
    cut: BTreeSet<(usize, usize)>,
    /// Bytes that a node's sockets to others hold back while they take nothing: by node its core, the connection and the bytes.
    stuck: BTreeMap<usize, Vec<(usize, ConnId, Vec<u8>)>>,
    /// Node, core and what came.
    clients: HashMap<ConnId, (usize, usize, Vec<u8>)>,
    closed: Vec<ConnId>,
    next_conn: u64,
    resigned: Vec<usize>,
    /// Doubts that nodes reported of their replicas.
    doubts: Vec<(usize, bool)>,
    /// Number of [`Ask::Leave`].
    leaves_asked: usize,
    /// Topics that a core asked for.
    wanted: Vec<TopicName>,
    /// Nodes that came to the ISR, with what their disks had of channels then.
    joined: Vec<(usize, BTreeMap<String, u64>)>,
}

impl Net {
    /// Three nodes with one core each; all replicate the topic "t", node 0 leads.
    fn new() -> Net {
        Self::with(1, 1, Settings::default())
    }

    fn with(cores: u16, partitions: u16, settings: Settings) -> Net {
        Self::with_lease(cores, partitions, settings, Ticks(u64::MAX))
    }

    fn with_lease(cores: u16, partitions: u16, settings: Settings, lease: Ticks) -> Net {
        let settings = Arc::new(Settings { partitions, journal_bytes: JOURNAL, ..settings });
        let topic = TopicInfo { name: TopicName::new("t").expect("valid"), id: TopicId([9; 16]), partitions };
        let nodes: Vec<NodeId> = (0..3).map(id_of_node).collect();
        let membership = Membership::new(1, Epoch(1), Some(nodes[0]), nodes, 2);
        let mut net = Net {
            nodes: vec![],
            settings,
            cores,
            now: Now { ticks: Ticks(1), unix_ns: 1_700_000_000_000_000_000 },
            topic: topic.into(),
            metadata: vec![membership; partitions as usize],
            lease,
            is_store_there: true,
            wire: VecDeque::new(),
            links: HashMap::new(),
            lent: HashMap::new(),
            cut: BTreeSet::new(),
            stuck: BTreeMap::new(),
            clients: HashMap::new(),
            closed: vec![],
            next_conn: 0,
            resigned: vec![],
            doubts: vec![],
            leaves_asked: 0,
            wanted: vec![],
            joined: vec![],
        };
        for i in 0..3 {
            let node = net.start(i, SimDisk::new(i as u64));
            net.nodes.push(node);
        }
        (0..3).for_each(|i| net.tell_all(i));
        net.run();
        net.pass_time(Duration::from_secs(1));
        net
    }

    fn recover_options(&self, i: usize) -> RecoverOptions {
        RecoverOptions {
            cores: self.cores,
            journal_bytes: JOURNAL,
            segment_bytes: self.settings.max_bytes_per_file,
            now_unix_ns: self.now.unix_ns,
            producers: ProducerLimits::default(),
            seed: i as u64 + 1,
            accept_lost_journal: 0,
            is_clustered: true,
        }
    }

    /// Recovers what is there and starts on it; the metadata comes later.
    fn start(&mut self, i: usize, mut disk: SimDisk) -> Node {
        let mut recovered = recover(&mut disk, &self.recover_options(i)).expect("a disk without faults");
        let generation = recovered.generation;
        let cluster = ClusterOptions { cluster_id: [5; 16], generation, creates_topics: self.settings.has_etcd() };
        let shard = |core: u16| {
            let own =
                |p: &mut crate::log::state::RecoveredPartition| p.topic.core_of(p.dir.partition, self.cores) == CoreId(core);
            Shard::new(ShardOptions {
                core: CoreId(core),
                cores: self.cores,
                settings: self.settings.clone(),
                epoch: Epoch(generation),
                journal: recovered.journals[core as usize],
                topics: recovered.topics.clone(),
                partitions: recovered.partitions.extract_if(.., own).collect(),
                seed: core as u64,
                connections_max: 0,
                node_id: id_of_node(i).0,
                cluster: Some(cluster.clone()),
                lent_min: LENT_MIN,
                tls: None,
            })
        };
        let shards = (0..self.cores).map(shard).collect();
        let (asked, under_way, mesh) = Default::default();
        let (next_op, is_slow, do_files_fail, http, is_down) = (0, false, false, vec![], false);
        Node { shards, disk, asked, under_way, next_op, is_slow, do_files_fail, mesh, http, generation, is_down }
    }

    // ---- the metadata store

    fn tell_all(&mut self, node: usize) {
        let named = |i: usize| {
            let name = ["a", "b", "c"][i];
            let native_address = Some(format!("{name}:1").into());
            let tcp_address = (i != 2).then(|| format!("{name}:2").into());
            ClusterNode { native_address, tcp_address, ..ClusterNode::new(id_of_node(i), name, i.to_string()) }
        };
        self.tell(node, Fact::Nodes((0..3).map(named).collect()));
        self.tell(node, Fact::Lease { until: self.lease, revision: 1 });
        self.tell(node, Fact::Topic(self.topic.clone()));
        (0..self.topic.partitions).for_each(|p| self.tell_partition(node, p));
        self.tell(node, Fact::Read { revision: 1 });
    }

    fn tell_partition(&mut self, node: usize, partition: u16) {
        let (topic, membership) = (self.topic.clone(), self.metadata[partition as usize].clone());
        self.tell(node, Fact::Partition { topic, partition: PartitionId(partition), membership });
    }

    /// Tells every core of the node.
    fn tell(&mut self, node: usize, fact: Fact) {
        for core in 0..self.nodes[node].shards.len() {
            self.step(node, core, Event::Cluster(fact.clone()));
        }
    }

    /// Changes the metadata of a partition, and everybody hears of it.
    fn change(&mut self, partition: u16, change: impl FnOnce(&mut Membership)) {
        let m = &mut self.metadata[partition as usize];
        m.version += 1;
        change(m);
        (0..3).for_each(|i| self.tell_partition(i, partition));
        self.run();
    }

    /// Makes another node the leader, in a new epoch.
    fn elect(&mut self, partition: u16, node: usize) {
        self.change(partition, |m| (m.leader, m.epoch) = (Some(id_of_node(node)), Epoch(m.epoch.0 + 1)));
        self.pass_time(Duration::from_millis(10));
    }

    fn answer(&mut self, node: usize, ask: Ask) {
        let route = match &ask {
            Ask::Propose { route, .. } | Ask::AskEpoch { route, .. } | Ask::Refresh { route } | Ask::Resign { route, .. } => {
                route
            }
            Ask::GiveUp { route, .. } => route,
            Ask::CreateTopic { name, .. } => return self.wanted.push(name.clone()),
            Ask::Release { .. } | Ask::PeerLost { .. } => return,
            Ask::Doubt { is_suspect, .. } => return self.doubts.push((node, *is_suspect)),
            Ask::Leave { route, version } => {
                self.leaves_asked += 1;
                let is_newest = self.metadata[route.partition.0 as usize].version == *version;
                if self.is_store_there && is_newest && route.topic_id == self.topic.id {
                    self.tell(node, Fact::MayLeave { route: *route, version: *version });
                }
                return;
            }
        };
        let partition = route.partition.0;
        let m = &self.metadata[partition as usize];
        match ask {
            Ask::Propose { version, isr, .. } if self.is_store_there && m.version == version => {
                let joins: Vec<usize> =
                    (0..3).filter(|i| isr.contains(&id_of_node(*i)) && !m.is_in_sync(id_of_node(*i))).collect();
                joins.into_iter().for_each(|i| self.joined.push((i, self.cursors_on_disk(i))));
                self.change_soon(partition, |m| m.isr = isr)
            }
            Ask::Propose { route, version, .. } => self.tell(node, Fact::ProposalRefused { route, version }),
            Ask::AskEpoch { above, .. } if self.is_store_there => {
                let epoch = Epoch(above.0.max(m.epoch.0) + 1);
                self.change_soon(partition, |m| m.epoch = epoch);
            }
            Ask::AskEpoch { .. } => {}
            Ask::GiveUp { loss, .. } => self.change_soon(partition, |m| m.given_up = Some(loss)),
            Ask::Refresh { .. } => self.tell_partition(node, partition),
            Ask::Resign { to, .. } => {
                self.resigned.push(node);
                if let Some(to) = to.filter(|to| m.wanted == Some(*to)) {
                    let epoch = Epoch(m.epoch.0 + 1);
                    self.change_soon(partition, |m| (m.leader, m.epoch, m.wanted) = (Some(to), epoch, None));
                }
            }
            Ask::CreateTopic { .. } | Ask::Release { .. } => {}
            Ask::PeerLost { .. } | Ask::Leave { .. } | Ask::Doubt { .. } => {}
        }
    }

    fn change_soon(&mut self, partition: u16, change: impl FnOnce(&mut Membership)) {
        let m = &mut self.metadata[partition as usize];
        m.version += 1;
        change(m);
        (0..3).for_each(|i| self.tell_partition(i, partition));
    }

    // ---- the nodes

    fn step(&mut self, node: usize, core: usize, event: Event<'_>) {
        if self.nodes[node].is_down {
            return;
        }
        let mut out = vec![];
        let shard = &mut self.nodes[node].shards[core];
        shard.step(self.now, event, &mut out);
        self.carry(node, core, out);
    }

    fn carry(&mut self, node: usize, core: usize, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Send { conn, bytes } if self.links.contains_key(&conn) => self.send_peer(node, core, conn, bytes),
                Effect::SendPieces { conn, pieces } => self.send_peer(node, core, conn, pieces.concat()),
                Effect::ReceiveInto { conn, lent } => assert!(self.lent.insert(conn, lent).is_none(), "one at a time"),
                Effect::Close { conn } if self.links.contains_key(&conn) => self.hang_up(conn),
                Effect::Move { conn, to, session, unread } if self.links.contains_key(&conn) => {
                    let to = to.0 as usize;
                    self.links.get_mut(&conn).expect("just looked at").1 = to;
                    self.step(node, to, Event::Adopted { conn, session });
                    self.step(node, to, Event::Bytes { conn, bytes: &unread });
                }
                Effect::Dial { dial, address, .. } => self.dial(node, core, dial, address.parse().expect("a node's number")),
                Effect::Send { conn, bytes } => {
                    self.clients.get_mut(&conn).expect("known").2.extend(&bytes);
                    self.step(node, core, Event::Sent { conn, bytes: bytes.len() });
                }
                Effect::Close { conn } => {
                    self.closed.push(conn);
                    self.step(node, core, Event::Closed { conn });
                }
                Effect::Move { conn, to, session, unread } => {
                    let (node, _, got) = self.clients.remove(&conn).expect("known");
                    let to = to.0 as usize;
                    self.clients.insert(conn, (node, to, got));
                    self.step(node, to, Event::Adopted { conn, session });
                    self.step(node, to, Event::Bytes { conn, bytes: &unread });
                }
                Effect::Disk { op, request } => self.nodes[node].asked.push_back((core, op, request)),
                Effect::Pass { to: CoreId::HTTP, message: MeshMessage::Catalog { .. } } => {}
                Effect::Pass { to: CoreId::HTTP, message } => self.nodes[node].http.push(message),
                Effect::Pass { to, message } => self.nodes[node].mesh.push_back((CoreId(core as u16), to, message)),
                Effect::Ask(ask) => self.answer(node, ask),
                Effect::Halt { reason } => panic!("halted: {reason}"),
                Effect::Stopped | Effect::PauseReading { .. } | Effect::ResumeReading { .. } => {}
            }
        }
    }

    // ---- the network

    fn send_peer(&mut self, node: usize, core: usize, conn: ConnId, bytes: Vec<u8>) {
        if let Some(stuck) = self.stuck.get_mut(&node) {
            return stuck.push((core, conn, bytes));
        }
        let Some(&(.., other)) = self.links.get(&conn) else { return };
        self.step(node, core, Event::Sent { conn, bytes: bytes.len() });
        self.wire.push_back((other, OnWire::Bytes(bytes)));
    }

    /// The sockets of the node to others take everything again.
    fn unstick(&mut self, node: usize) {
        for (core, conn, bytes) in self.stuck.remove(&node).unwrap_or_default() {
            self.send_peer(node, core, conn, bytes);
        }
        self.run();
    }

    fn dial(&mut self, node: usize, core: usize, dial: u64, to: usize) {
        if self.cut.contains(&(node, to)) || self.nodes[to].is_down {
            let result = Err(DialError("nobody answers".into()));
            return self.step(node, core, Event::Dialed { dial, result });
        }
        let (here, there) = (ConnId(self.next_conn + 1), ConnId(self.next_conn + 2));
        self.next_conn += 2;
        // The kernel gives it to any core.
        let there_core = self.next_conn as usize / 2 % self.nodes[to].shards.len();
        self.links.insert(here, (node, core, there));
        self.links.insert(there, (to, there_core, here));
        self.step(to, there_core, Event::OpenedPeer { conn: there, peer: Peer("test:2".into()) });
        self.step(node, core, Event::Dialed { dial, result: Ok(here) });
    }

    /// Closes a connection between nodes: here at once, at the other end when what was sent has arrived.
    fn hang_up(&mut self, conn: ConnId) {
        let Some((node, core, other)) = self.links.remove(&conn) else { return };
        self.wire.push_back((other, OnWire::Closed));
        self.step(node, core, Event::Closed { conn });
    }

    fn carry_wire(&mut self) -> bool {
        let Some((conn, what)) = self.wire.pop_front() else { return false };
        let Some(&(node, core, _)) = self.links.get(&conn) else { return true };
        match what {
            OnWire::Bytes(bytes) => {
                let mut rest = &bytes[..];
                if let Some(mut lent) = self.lent.remove(&conn) {
                    lent.put(&mut rest);
                    self.step(node, core, Event::Received { conn, lent });
                }
                if !rest.is_empty() {
                    self.step(node, core, Event::Bytes { conn, bytes: rest });
                }
            }
            OnWire::Closed => {
                self.links.remove(&conn);
                self.step(node, core, Event::Closed { conn });
            }
        }
        true
    }

    /// Gives a node's disk one operation, or its answer to the node. False: it has none.
    fn turn_disk(&mut self, node: usize) -> bool {
        let n = &mut self.nodes[node];
        if let Some(at) = n.asked.iter().position(|(_, _, op)| !n.is_held(op)) {
            let (core, op, request) = n.asked.remove(at).expect("it was just found");
            let fails = |file: &FileId| matches!(file, FileId::Segment(..) | FileId::Commit(..));
            if let DiskOp::Write { file, .. } = &request
                && n.do_files_fail
                && fails(file)
            {
                let error = DiskError::Io { file: file.clone(), call: "write", errno: 5, message: "broken".into() };
                self.step(node, core, Event::Disk { op, outcome: Err(error) });
                return true;
            }
            n.next_op += 1;
            n.under_way.insert(OpId(n.next_op), (core, op));
            n.disk.submit(OpId(n.next_op), request);
            return true;
        }
        let Some((number, outcome)) = n.disk.complete() else { return false };
        let (core, op) = n.under_way.remove(&number).expect("it was submitted");
        self.step(node, core, Event::Disk { op, outcome });
        true
    }

    fn turn(&mut self, node: usize) -> bool {
        let mut did = self.turn_disk(node);
        if let Some((from, to, message)) = self.nodes[node].mesh.pop_front() {
            self.step(node, to.0 as usize, Event::Mesh { from, message });
            did = true;
        }
        for core in 0..self.nodes[node].shards.len() {
            self.step(node, core, Event::TurnEnd);
            if self.nodes[node].shards[core].deadline().is_some_and(|at| at <= self.now.ticks) {
                self.step(node, core, Event::Tick);
                self.step(node, core, Event::TurnEnd);
            }
        }
        let n = &self.nodes[node];
        did || !n.under_way.is_empty() || n.asked.iter().any(|(_, _, op)| !n.is_held(op))
    }

    /// Runs until nothing is left to do without time passing.
    fn run(&mut self) {
        for _ in 0..20_000 {
            let mut did = false;
            for node in 0..3 {
                if !self.nodes[node].is_down {
                    did |= self.turn(node);
                }
            }
            did |= self.carry_wire();
            if !did && self.wire.is_empty() && self.nodes.iter().all(|n| n.is_down || n.mesh.is_empty()) {
                return;
            }
        }
        panic!("the cluster never comes to rest");
    }

    /// Passes time in steps that are shorter than the waits of the replicas.
    fn pass_time(&mut self, time: Duration) {
        let end = self.now.ticks + time;
        while self.now.ticks < end {
            let step = end.since(self.now.ticks).min(Duration::from_millis(50));
            self.now.ticks = self.now.ticks + step;
            self.now.unix_ns += step.as_nanos() as i64;
            for node in 0..3 {
                (0..self.nodes[node].shards.len()).for_each(|core| self.step(node, core, Event::Tick));
            }
            self.run();
        }
    }

    /// Cuts a node off from the others, or lets everything through again.
    fn isolate(&mut self, node: usize, is_cut: bool) {
        for other in (0..3).filter(|i| *i != node) {
            for pair in [(node, other), (other, node)] {
                if is_cut {
                    self.cut.insert(pair)
                } else {
                    self.cut.remove(&pair)
                };
            }
        }
        if is_cut {
            self.hang_up_all(node);
        }
    }

    /// Every connection with the node is lost, and what was on its way.
    fn hang_up_all(&mut self, node: usize) {
        let of_node = self.links.iter().filter(|(_, (of, ..))| *of == node);
        let ends: Vec<ConnId> = of_node.flat_map(|(conn, (.., other))| [*conn, *other]).collect();
        self.wire.retain(|(conn, _)| !ends.contains(conn));
        for conn in ends {
            if let Some((of, core, _)) = self.links.remove(&conn) {
                self.step(of, core, Event::Closed { conn });
            }
        }
    }

    /// The process ends at once; data that was not durable may be gone.
    fn kill(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        n.is_down = true;
        self.hang_up_all(node);
        let n = &mut self.nodes[node];
        (n.asked, n.under_way, n.mesh) = Default::default();
        n.disk.crash();
        self.clients.retain(|_, (of, ..)| *of != node);
    }

    fn restart(&mut self, node: usize) {
        let disk = std::mem::replace(&mut self.nodes[node].disk, SimDisk::new(0));
        self.nodes[node] = self.start(node, disk);
        self.tell_all(node);
        self.run();
    }

    // ---- clients

    fn connect(&mut self, node: usize) -> ConnId {
        self.connect_to(node, 0)
    }

    fn connect_to(&mut self, node: usize, core: usize) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.clients.insert(conn, (node, core, vec![]));
        self.step(node, core, Event::Opened { conn, peer: Peer("test:1".into()) });
        self.send(conn, b"  V2");
        conn
    }

    /// Gives it to the node, which does nothing yet.
    fn put(&mut self, conn: ConnId, bytes: &[u8]) {
        let (node, core, _) = self.clients[&conn];
        self.step(node, core, Event::Bytes { conn, bytes });
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        self.put(conn, bytes);
        self.run();
    }

    fn publish(&mut self, conn: ConnId, body: &str) {
        let mut bytes = vec![];
        request::publish(&mut bytes, "t", body.as_bytes());
        self.send(conn, &bytes);
    }

    /// Whole frames that arrived, heartbeats left out: responses, errors, and messages as their bodies behind their ids.
    fn take(&mut self, conn: ConnId) -> Vec<String> {
        let bytes = std::mem::take(&mut self.clients.get_mut(&conn).expect("known").2);
        let (frames, used) = frame::decode_all(&bytes).expect("well-formed frames");
        assert_eq!(used, bytes.len());
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let show = |f: Frame<'_>| match f {
            Frame::Response(r) => text(r),
            Frame::Error(e) => text(e),
            Frame::Message(m) => format!("{} {}", text(&m.id), text(m.body)),
        };
        frames.into_iter().map(show).filter(|f| f != "_heartbeat_").collect()
    }

    /// Bodies that came to an ordered subscription, OKs left out.
    fn take_placed(&mut self, conn: ConnId) -> Vec<String> {
        let bytes = std::mem::take(&mut self.clients.get_mut(&conn).expect("known").2);
        let (frames, _) = frame::decode_all(&bytes).expect("well-formed frames");
        let body = |f: Frame<'_>| match f {
            Frame::Message(m) => Some(String::from_utf8_lossy(&m.body[frame::PLACE_LEN..]).into_owned()),
            Frame::Response(_) => None,
            Frame::Error(e) => panic!("{}", String::from_utf8_lossy(e)),
        };
        frames.into_iter().filter_map(body).collect()
    }

    /// The client goes without a word.
    fn leave(&mut self, conn: ConnId) {
        let (node, core, _) = self.clients.remove(&conn).expect("known");
        self.step(node, core, Event::Closed { conn });
        self.run();
    }

    /// A client of the channel with this RDY, and what it got beside its OK.
    fn subscribe(&mut self, node: usize, channel: &str, rdy: u32) -> (ConnId, Vec<String>) {
        let c = self.connect(node);
        self.send(c, format!("SUB t {channel}\nRDY {rdy}\n").as_bytes());
        let mut got = self.take(c);
        assert_eq!(got.first().map(String::as_str), Some("OK"), "{got:?}");
        (c, got.split_off(1))
    }

    fn finish(&mut self, conn: ConnId, messages: &[String]) {
        let fins: String = messages.iter().map(|m| format!("FIN {}\n", m.split(' ').next().expect("an id"))).collect();
        self.send(conn, fins.as_bytes());
    }

    // ---- what the test looks at

    fn partition(&self, node: usize, partition: u16) -> &partitions::Partition {
        let cores = self.nodes[node].shards.len() as u16;
        let core = self.topic.core_of(PartitionId(partition), cores).0 as usize;
        let e = &self.nodes[node].shards[core].engine;
        e.core.partitions.iter().map(|(_, p)| p).find(|p| p.dir.partition == PartitionId(partition)).expect("the node has it")
    }

    fn durable(&self, node: usize) -> i64 {
        let e = &self.nodes[node].shards[0].engine;
        let (idx, _) = e.core.partitions.iter().next().expect("the node has the partition");
        e.core.store.durable_end(idx).count
    }

    /// Epochs of the batches of the first partition, newest first.
    fn epochs(&self, node: usize) -> Vec<u64> {
        let e = &self.nodes[node].shards[0].engine;
        let (idx, _) = e.core.partitions.iter().next().expect("the node has the partition");
        let mut epochs = vec![];
        e.core.store.log_view(idx).epochs(None, 10, &mut epochs);
        epochs.iter().map(|e| e.epoch.0).collect()
    }

    fn index(&self, node: usize) -> crate::log::PartitionIdx {
        self.nodes[node].shards[0].engine.core.partitions.iter().next().expect("the node has the partition").0
    }

    fn state(&self, node: usize) -> State {
        self.partition(node, 0).seat().expect("a replica").member.state()
    }

    /// The same of what a startup would find, if the node lost power now.
    fn cursors_on_disk(&self, node: usize) -> BTreeMap<String, u64> {
        let mut disk = self.nodes[node].disk.clone();
        disk.crash();
        let recovered = recover(&mut disk, &self.recover_options(node)).expect("a disk without faults");
        let channels = recovered.partitions.iter().flat_map(|p| &p.channels);
        channels.map(|c| (c.name.to_string(), c.confirmed.log_id.0)).collect()
    }

    /// Log id of the first message that is not confirmed in a channel, by its name.
    fn cursors(&self, node: usize) -> BTreeMap<String, u64> {
        let channels = self.partition(node, 0).channels.iter();
        channels.map(|(_, c)| (c.name.to_string(), c.machine.confirmed().log_id.0)).collect()
    }
}

fn bodies(messages: &[String]) -> Vec<&str> {
    messages.iter().map(|m| m.split(' ').nth(1).unwrap_or_else(|| panic!("no message: {m}"))).collect()
}
