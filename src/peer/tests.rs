//! Nodes with several cores over a wire in memory that cuts the bytes anywhere: meeting, exchanging, losing each other.

use super::*;
use crate::base::{ConnId, Epoch, LogId, Now, PartitionId, Peer, Position, Rng, Ticks, TopicId, TopicName};
use crate::codec::frame::{Header, Payload};
use crate::codec::peer::frame::FRAME_MAX;
use crate::codec::peer::{Encoder, Frame, Hello, Lanes, Layout, RejectCode, VERSION, Version};
use crate::replica::message::{
    Ack, Append, Batches, Body, EpochsAsk, Head, Inquire, Lane, Message, Pull, Pulled, Route, Session,
};
use crate::shard::cluster::ClusterNode;
use crate::shard::event::{DialError, Effect, Effects};
use crate::shard::message::MovedState;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

const CLUSTER: ClusterId = ClusterId([5; 16]);
const AT: Position = Position { offset: 4096, count: 10, log_id: LogId(11) };

fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 16])
}

/// Who is at an end of a wire.
type End = (usize, u16);

struct Wire {
    /// The dialler's end, then the acceptor's. `None`: the process there is gone.
    ends: [Option<End>; 2],
    conns: [ConnId; 2],
    /// On the way to each end.
    bytes: [VecDeque<u8>; 2],
    /// The end wants to close once what it sent is delivered.
    closing: [bool; 2],
    closed: [bool; 2],
    /// Nothing is delivered.
    is_cut: bool,
}

struct World {
    now: Now,
    rng: Rng,
    /// By node and core; empty while the node is away.
    nodes: Vec<Vec<Links>>,
    wires: Vec<Wire>,
    events: BTreeMap<End, Vec<LinkEvent>>,
    next_conn: u64,
    /// At most so many bytes at a time.
    cut: u64,
    dials: usize,
    unreachable: bool,
    moves: usize,
}

fn all(num: usize) -> Vec<ClusterNode> {
    let node = |n: usize| ClusterNode { id: id(n), name: format!("n{n}").into(), peer_address: format!("host{n}:1").into() };
    (0..num).map(node).collect()
}

impl World {
    fn new(cores: &[u16]) -> World {
        let mut world = World {
            now: Now { ticks: Ticks(1), unix_ns: 0 },
            rng: Rng::new(3),
            nodes: cores.iter().map(|_| vec![]).collect(),
            wires: vec![],
            events: BTreeMap::new(),
            next_conn: 1,
            cut: u64::MAX,
            dials: 0,
            unreachable: false,
            moves: 0,
        };
        for (node, cores) in cores.iter().enumerate() {
            world.start(node, *cores, 1, CLUSTER);
        }
        world
    }

    fn start(&mut self, node: usize, cores: u16, generation: u64, cluster: ClusterId) {
        let num = self.nodes.len();
        self.nodes[node] = (0..cores)
            .map(|core| {
                let mut links = Links::new(LinkOptions::new(id(node), cluster, generation, CoreId(core), cores, core as u64));
                links.set_nodes(self.now, &all(num));
                links
            })
            .collect();
    }

    /// The process is gone; the other ends hear of it when `hears`.
    fn kill(&mut self, node: usize, hears: bool) {
        self.nodes[node].clear();
        for wire in &mut self.wires {
            for side in 0..2 {
                if wire.ends[side].is_some_and(|(n, _)| n == node) {
                    wire.ends[side] = None;
                    wire.closing[side] = hears;
                }
            }
        }
    }

    fn effects(&mut self, at: End, effects: Effects) {
        for effect in effects {
            match effect {
                Effect::Dial { dial, address, .. } => {
                    self.dials += 1;
                    let node: usize = address["host".len()..address.len() - 2].parse().unwrap();
                    let cores = self.nodes[node].len() as u64;
                    let links = &mut self.nodes[at.0][at.1 as usize];
                    if cores == 0 || self.unreachable {
                        links.dialed(self.now, dial, Err(DialError("connection refused".into())));
                        continue;
                    }
                    let conns = [ConnId(self.next_conn), ConnId(self.next_conn + 1)];
                    self.next_conn += 2;
                    links.dialed(self.now, dial, Ok(conns[0]));
                    // any core accepts
                    let core = self.rng.below(cores) as u16;
                    self.nodes[node][core as usize].opened(self.now, conns[1], Peer(format!("from{}", at.0).into()));
                    let ends = [Some(at), Some((node, core))];
                    let bytes = Default::default();
                    self.wires.push(Wire { ends, conns, bytes, closing: [false; 2], closed: [false; 2], is_cut: false });
                }
                Effect::Send { conn, bytes } => {
                    let (w, side) = self.wire(conn);
                    self.wires[w].bytes[1 - side].extend(bytes);
                }
                Effect::Close { conn } => {
                    let (w, side) = self.wire(conn);
                    self.wires[w].closing[side] = true;
                }
                Effect::Move { conn, to, session, unread } => {
                    self.moves += 1;
                    let (w, side) = self.wire(conn);
                    let MovedState::Peer(carried) = session.state else { panic!("another protocol") };
                    let conn = ConnId(self.next_conn);
                    self.next_conn += 1;
                    self.wires[w].conns[side] = conn;
                    self.wires[w].ends[side] = Some((at.0, to.0));
                    let links = &mut self.nodes[at.0][to.0 as usize];
                    links.adopted(self.now, conn, session.peer, carried);
                    links.bytes(self.now, conn, &unread);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn wire(&self, conn: ConnId) -> (usize, usize) {
        let found = self.wires.iter().enumerate().find_map(|(w, wire)| Some((w, wire.conns.iter().position(|c| *c == conn)?)));
        found.expect("a wire of this number")
    }

    /// One turn of every core; whether anything happened.
    fn turn(&mut self) -> bool {
        let mut happened = false;
        for w in 0..self.wires.len() {
            for side in 0..2 {
                let wire = &mut self.wires[w];
                if wire.is_cut || wire.closed[side] {
                    continue;
                }
                let Some((node, core)) = wire.ends[side] else { continue };
                let most = wire.bytes[side].len().min(self.rng.below(self.cut.min(1 << 20)) as usize + 1);
                let bytes: Vec<u8> = wire.bytes[side].drain(..most).collect();
                let (to, from) = (wire.conns[side], wire.conns[1 - side]);
                let is_over = wire.bytes[side].is_empty() && (wire.closing[side] || wire.closing[1 - side]);
                let sender = wire.ends[1 - side];
                wire.closed[side] = is_over;
                happened |= !bytes.is_empty() || is_over;
                if !bytes.is_empty() {
                    self.nodes[node][core as usize].bytes(self.now, to, &bytes);
                    if let Some((node, core)) = sender {
                        self.nodes[node][core as usize].sent(self.now, from, bytes.len());
                    }
                }
                if is_over {
                    self.nodes[node][core as usize].closed(self.now, to);
                }
            }
        }
        for node in 0..self.nodes.len() {
            for core in 0..self.nodes[node].len() {
                let (links, mut effects) = (&mut self.nodes[node][core], vec![]);
                if links.deadline().is_some_and(|at| at <= self.now.ticks) {
                    links.tick(self.now);
                }
                links.turn_end(self.now, &mut effects);
                links.take(self.events.entry((node, core as u16)).or_default());
                happened |= !effects.is_empty();
                self.effects((node, core as u16), effects);
            }
        }
        happened
    }

    fn settle(&mut self) {
        while self.turn() {}
    }

    /// Lets this time pass, a deadline at a time.
    fn pass(&mut self, time: Duration) {
        let end = self.now.ticks + time;
        loop {
            self.settle();
            let next = self.nodes.iter().flatten().filter_map(Links::deadline).min();
            match next {
                Some(at) if at <= end => self.now.ticks = at.max(Ticks(self.now.ticks.0 + 1)),
                _ => break,
            }
        }
        self.now.ticks = end;
        self.settle();
    }

    fn heard(&mut self, node: usize, core: u16) -> Vec<LinkEvent> {
        std::mem::take(self.events.entry((node, core)).or_default())
    }

    fn links(&mut self, node: usize, core: u16) -> &mut Links {
        &mut self.nodes[node][core as usize]
    }

    fn all_connected(&self) -> bool {
        let others = self.nodes.len() - 1;
        self.nodes.iter().flatten().all(|links| links.connected().count() == others)
    }

    fn wires_of(&self, node: usize) -> Vec<usize> {
        let is_live = |w: &&Wire| !w.closed.iter().any(|c| *c) && w.ends.iter().flatten().any(|(n, _)| *n == node);
        self.wires.iter().enumerate().filter(|(_, w)| is_live(w)).map(|(i, _)| i).collect()
    }
}

fn route(partition: u16) -> Route {
    Route { topic_id: TopicId([4; 16]), partition: PartitionId(partition) }
}

fn message(body: Body) -> Message {
    Message { head: Head { epoch: Epoch(8), session: Session(2) }, body }
}

fn append(bytes: usize) -> Message {
    message(Body::Append(Append { committed: AT, batches: Batches(vec![Bytes::from(vec![7; bytes])]) }))
}

fn ask(below: u64) -> Message {
    message(Body::EpochsAsk(EpochsAsk { below: Epoch(below) }))
}

fn of(from: usize, partition: u16, message: Message) -> LinkEvent {
    LinkEvent::Message { from: id(from), addressed: Addressed { route: route(partition), message } }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn nodes_meet_and_every_lane_carries_messages_both_ways() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    assert!(world.all_connected());
    assert_eq!(world.wires.len(), 2, "one for control and data, one for catch-up");
    for (from, to) in [(0, 1), (1, 0)] {
        assert_eq!(world.heard(to, 0), [LinkEvent::Connected(id(from))]);
    }
    let pulled = message(Body::Pulled(Pulled { from: AT, batches: Batches(vec![Bytes::from(vec![3; 5000])]) }));
    let ack = message(Body::Ack(Ack { durable: AT }));
    for (from, to) in [(0, 1), (1, 0)] {
        let links = world.links(from, 0);
        links.send(id(to), route(0), append(100_000));
        links.send(id(to), route(1), append(7));
        links.send(id(to), route(0), ack.clone());
        links.send(id(to), route(2), ask(5));
        links.send(id(to), route(3), pulled.clone());
        links.send_on(id(to), Lane::CatchUp, route(3), append(9));
        world.settle();
        let mut heard = world.heard(to, 0);
        // control first, and each lane in order
        let control = heard.iter().position(|e| *e == of(from, 2, ask(5))).unwrap();
        let data = heard.iter().position(|e| *e == of(from, 0, append(100_000))).unwrap();
        assert!(control < data, "{heard:?}");
        let expected = [
            of(from, 2, ask(5)),
            of(from, 0, append(100_000)),
            of(from, 1, append(7)),
            of(from, 0, ack.clone()),
            of(from, 3, pulled.clone()),
            of(from, 3, append(9)),
        ];
        for event in expected {
            let at = heard.iter().position(|e| *e == event).expect("it came");
            heard.remove(at);
        }
        assert!(heard.is_empty());
    }
}

#[test]
fn any_cut_of_the_bytes_gives_the_same() {
    for cut in [1, 2, 7, 100, 5000] {
        let mut world = World::new(&[1, 1]);
        world.cut = cut;
        world.pass(SECOND);
        assert!(world.all_connected(), "{cut}");
        world.heard(1, 0);
        for i in 0..20 {
            world.links(0, 0).send(id(1), route(i), append(200));
        }
        world.settle();
        let expected: Vec<LinkEvent> = (0..20).map(|i| of(0, i, append(200))).collect();
        assert_eq!(world.heard(1, 0), expected, "{cut}");
    }
}

#[test]
fn the_appends_of_a_turn_share_a_frame() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    for i in 0..100 {
        world.links(0, 0).send(id(1), route(i), append(10));
    }
    let mut effects = vec![];
    let now = world.now;
    world.links(0, 0).turn_end(now, &mut effects);
    let [Effect::Send { bytes, .. }] = &effects[..] else { panic!("{effects:?}") };
    let (header, _) = Header::parse(bytes, FRAME_MAX).unwrap().unwrap();
    assert_eq!(header.frame_len(), bytes.len(), "one frame");
    world.effects((0, 0), effects);
    world.settle();
    assert_eq!(world.heard(1, 0).len(), 101);
}

#[test]
fn other_numbers_of_cores_have_links_on_every_core() {
    for (a, b) in [(1, 3), (3, 1), (2, 4), (4, 2), (3, 2), (2, 3)] {
        let mut world = World::new(&[a, b]);
        world.pass(SECOND);
        assert!(world.all_connected(), "{a} {b}");
        let links = a.max(b) as usize;
        assert_eq!(world.wires_of(0).len(), 2 * links, "{a} {b}");
        for w in world.wires_of(0) {
            // each on the core of its link on both sides
            let [Some((_, dialler)), Some((_, acceptor))] = world.wires[w].ends else { panic!("both live") };
            let k = (0..a.max(b)).find(|k| (k % a, k % b) == (dialler, acceptor));
            assert!(k.is_some(), "{a} {b}: {dialler} with {acceptor}");
        }
        // a partition's messages come on one core, in order
        for partition in 0..8 {
            for below in 0..3 {
                world.links(0, 0).send(id(1), route(partition), ask(below));
            }
        }
        world.settle();
        let mut found = BTreeMap::new();
        for core in 0..b {
            for event in world.heard(1, core) {
                if let LinkEvent::Message { addressed, .. } = event {
                    let Body::EpochsAsk(ask) = addressed.message.body else { panic!("it was an ask") };
                    found.entry(addressed.route.partition).or_insert_with(Vec::new).push((core, ask.below.0));
                }
            }
        }
        assert_eq!(found.len(), 8);
        assert!(found.values().all(|of| of.iter().map(|(core, below)| (core - of[0].0, *below)).eq([(0, 0), (0, 1), (0, 2)])));
    }
}

#[test]
fn a_connection_accepted_on_another_core_moves_before_it_is_welcomed() {
    let mut world = World::new(&[3, 3]);
    world.cut = 20;
    world.pass(SECOND);
    assert!(world.all_connected() && world.moves > 0);
    assert_eq!(world.wires_of(0).len(), 6);
}

#[test]
fn either_connection_lost_takes_the_other_with_it_and_the_dialler_comes_again() {
    for lost in 0..2 {
        let mut world = World::new(&[1, 1]);
        world.pass(SECOND);
        let wires = world.wires_of(0);
        world.heard(0, 0);
        world.heard(1, 0);
        world.wires[wires[lost]].closing = [true, true];
        world.settle();
        assert_eq!(world.heard(0, 0), [LinkEvent::Disconnected(id(1))]);
        assert_eq!(world.heard(1, 0), [LinkEvent::Disconnected(id(0))]);
        assert!(world.wires_of(0).is_empty());
        world.links(0, 0).send(id(1), route(0), ask(1));
        world.pass(SECOND);
        assert_eq!(world.heard(0, 0), [LinkEvent::Connected(id(1))]);
        assert_eq!(world.heard(1, 0), [LinkEvent::Connected(id(0))], "what was sent meanwhile was dropped");
    }
}

#[test]
fn a_silent_peer_is_given_up_after_two_heartbeats_and_an_idle_one_is_not() {
    let mut world = World::new(&[1, 1]);
    world.pass(60 * SECOND);
    assert!(world.all_connected() && world.dials == 2, "heartbeats keep it");
    world.heard(0, 0);
    world.heard(1, 0);
    let begun = world.now.ticks;
    world.wires.iter_mut().for_each(|w| w.is_cut = true);
    world.unreachable = true;
    while world.all_connected() {
        let at = world.nodes.iter().flatten().filter_map(Links::deadline).min().unwrap();
        world.now.ticks = at.max(Ticks(world.now.ticks.0 + 1));
        world.settle();
    }
    let took = world.now.ticks.since(begun);
    assert!(took >= SECOND && took <= 2 * SECOND, "{took:?}");
    world.pass(2 * SECOND);
    assert_eq!(world.heard(0, 0), [LinkEvent::Disconnected(id(1))]);
    assert_eq!(world.heard(1, 0), [LinkEvent::Disconnected(id(0))]);
    world.unreachable = false;
    world.pass(10 * SECOND);
    assert!(world.all_connected());
}

#[test]
fn pauses_between_attempts_grow_and_stay_bounded() {
    let mut world = World::new(&[1, 1]);
    world.unreachable = true;
    world.pass(SECOND);
    let first = world.dials;
    assert!((3..=10).contains(&first), "{first}");
    world.pass(100 * SECOND);
    let later = world.dials - first;
    assert!((20..=45).contains(&later), "{later} in 100 s");
    world.unreachable = false;
    world.pass(5 * SECOND);
    assert!(world.all_connected());
}

#[test]
fn a_node_that_starts_anew_replaces_its_old_life_even_if_that_is_not_seen_to_end() {
    for restarted in 0..2 {
        let mut world = World::new(&[2, 2]);
        world.pass(SECOND);
        for node in 0..2 {
            world.heard(node, 0);
        }
        world.kill(restarted, false);
        world.start(restarted, 2, 2, CLUSTER);
        world.pass(10 * SECOND);
        assert!(world.all_connected(), "{restarted}");
        let (gone, back) = (LinkEvent::Disconnected(id(restarted)), LinkEvent::Connected(id(restarted)));
        assert_eq!(world.heard(1 - restarted, 0), [gone, back]);
    }
}

#[test]
fn a_node_may_come_back_with_another_number_of_cores() {
    for (restarted, cores) in [(0, 1), (0, 4), (1, 1), (1, 4)] {
        let mut world = World::new(&[2, 2]);
        world.pass(SECOND);
        world.kill(restarted, true);
        world.settle();
        world.start(restarted, cores, 2, CLUSTER);
        world.pass(20 * SECOND);
        assert!(world.all_connected(), "{restarted} {cores}");
        assert_eq!(world.wires_of(0).len(), 2 * 2.max(cores as usize), "{restarted} {cores}");
    }
}

#[test]
fn three_nodes_meet_and_one_that_leaves_the_cluster_is_parted_with() {
    let mut world = World::new(&[1, 2, 1]);
    world.pass(SECOND);
    assert!(world.all_connected());
    let two = &all(3)[..2];
    let now = world.now;
    for node in 0..2 {
        for core in 0..world.nodes[node].len() as u16 {
            world.heard(node, core);
            world.links(node, core).set_nodes(now, two);
        }
    }
    world.heard(2, 0);
    world.pass(SECOND);
    assert_eq!(world.heard(0, 0), [LinkEvent::Disconnected(id(2))]);
    assert_eq!(world.heard(2, 0).len(), 2);
    assert!(world.links(0, 0).is_connected(id(1)) && !world.links(1, 0).is_connected(id(2)));
    // it is let in again
    let now = world.now;
    for node in 0..2 {
        for core in 0..world.nodes[node].len() as u16 {
            world.links(node, core).set_nodes(now, &all(3));
        }
    }
    world.pass(10 * SECOND);
    assert!(world.all_connected());
}

#[test]
fn a_node_that_stops_says_so() {
    for stopped in 0..2 {
        let mut world = World::new(&[1, 1]);
        world.pass(SECOND);
        let now = world.now;
        world.links(stopped, 0).stop(now);
        world.settle();
        assert!(world.links(stopped, 0).is_idle());
        assert!(!world.links(1 - stopped, 0).is_connected(id(stopped)));
        world.pass(20 * SECOND);
        assert!(!world.all_connected(), "and takes no connection any more");
        assert!(world.links(stopped, 0).is_idle());
    }
}

#[test]
fn catch_up_keeps_to_its_bound_and_commits_do_not_wait_for_it() {
    let mut world = World::new(&[1, 1]);
    world.links(0, 0).options.catch_up_unsent_max = 10_000;
    world.pass(SECOND);
    world.heard(1, 0);
    let wires = world.wires_of(0);
    for _ in 0..10 {
        world.links(0, 0).send_on(id(1), Lane::CatchUp, route(0), append(8000));
    }
    // the socket of catch-up takes nothing
    world.wires[wires[1]].is_cut = true;
    world.settle();
    let unsent = world.wires[wires[1]].bytes[1].len();
    assert!((8000..20_000).contains(&unsent), "{unsent}");
    world.links(0, 0).send(id(1), route(0), append(10));
    world.settle();
    assert_eq!(world.heard(1, 0), [of(0, 0, append(10))]);
    world.wires[wires[1]].is_cut = false;
    world.settle();
    assert_eq!(world.heard(1, 0).len(), 10);
}

#[test]
fn control_goes_before_data_that_waits() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    world.heard(1, 0);
    let first = world.wires_of(0)[0];
    world.wires[first].is_cut = true;
    for _ in 0..5 {
        world.links(0, 0).send(id(1), route(0), append(600_000));
    }
    world.settle();
    world.links(0, 0).send(id(1), route(1), ask(1));
    world.wires[first].is_cut = false;
    world.settle();
    let heard = world.heard(1, 0);
    let control = heard.iter().position(|e| *e == of(0, 1, ask(1))).unwrap();
    assert!(heard.len() == 6 && (1..=2).contains(&control), "{control}");
}

#[test]
fn a_queue_beyond_its_bound_ends_the_connection() {
    let mut world = World::new(&[1, 1]);
    world.pass(SECOND);
    world.links(0, 0).options.queue_bytes_max = 3_000_000;
    for _ in 0..10 {
        world.links(0, 0).send(id(1), route(0), append(600_000));
    }
    world.heard(0, 0);
    world.settle();
    assert_eq!(world.heard(0, 0), [LinkEvent::Disconnected(id(1))]);
    world.pass(SECOND);
    assert!(world.all_connected());
}

// ---- one core against bytes of another mind

/// An acceptor that knows node 0, which is the one that connects.
fn acceptor() -> (Links, Now) {
    let now = Now { ticks: Ticks(1), unix_ns: 0 };
    let mut links = Links::new(LinkOptions::new(id(1), CLUSTER, 1, CoreId(0), 1, 1));
    links.set_nodes(now, &all(2));
    (links, now)
}

fn hello() -> Hello<'static> {
    Hello {
        version: VERSION,
        features: 0,
        node_id: id(0),
        cluster_id: CLUSTER,
        generation: 1,
        node_version: "1",
        layout: Layout { cores: 1, core: 0, placement: Layout::BY_NAME },
        lanes: Lanes(0b011),
        heartbeat_ms: 1000,
        to_core: Some(0),
    }
}

fn hello_of(encoder: &mut Encoder, pieces: &mut Vec<Bytes>) -> Vec<u8> {
    encoder.hello(pieces, &hello());
    pieces.concat()
}

/// What a connection was sent, and whether it was closed.
fn outcome(links: &mut Links, now: Now, wanted: ConnId) -> (Vec<u8>, bool) {
    let (mut effects, mut sent, mut closed) = (vec![], vec![], false);
    links.turn_end(now, &mut effects);
    for effect in effects {
        match effect {
            Effect::Send { conn, bytes } if conn == wanted => sent.extend(bytes),
            Effect::Close { conn } if conn == wanted => closed = true,
            Effect::Send { .. } | Effect::Close { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    (sent, closed)
}

/// The code of the Reject that ends what was sent.
fn reject_code(mut sent: &[u8]) -> Option<RejectCode> {
    let mut code = None;
    while let Ok(Some((header, metadata))) = Header::parse(sent, FRAME_MAX) {
        code = match Frame::decode(&header, metadata, &Bytes::new()) {
            Ok(Frame::Reject(reject)) => Some(reject.code),
            _ => None,
        };
        sent = &sent[header.frame_len()..];
    }
    code
}

fn answer(hello: &Hello<'_>) -> Result<(), RejectCode> {
    let (mut links, now) = acceptor();
    let mut pieces = vec![];
    Encoder::default().hello(&mut pieces, hello);
    links.opened(now, ConnId(1), Peer("x".into()));
    links.bytes(now, ConnId(1), &pieces.concat());
    let (sent, closed) = outcome(&mut links, now, ConnId(1));
    match reject_code(&sent) {
        None => {
            let (header, metadata) = Header::parse(&sent, FRAME_MAX).unwrap().unwrap();
            let Ok(Frame::Welcome(welcome)) = Frame::decode(&header, metadata, &Bytes::new()) else { panic!("a Welcome") };
            assert!(!closed && welcome.lanes == Lanes(hello.lanes.0 & 0b111) && welcome.node_id == id(1));
            Ok(())
        }
        Some(code) => {
            assert!(closed);
            Err(code)
        }
    }
}

#[test]
fn who_does_not_belong_is_told_so() {
    assert_eq!(answer(&hello()), Ok(()));
    assert_eq!(answer(&Hello { version: Version { major: 2, minor: 0 }, ..hello() }), Err(RejectCode::BadVersion));
    assert_eq!(answer(&Hello { version: Version { major: 1, minor: 9 }, ..hello() }), Ok(()));
    assert_eq!(answer(&Hello { cluster_id: ClusterId([6; 16]), ..hello() }), Err(RejectCode::OtherCluster));
    assert_eq!(answer(&Hello { node_id: id(1), ..hello() }), Err(RejectCode::SameNode));
    assert_eq!(answer(&Hello { node_id: NodeId([0; 16]), ..hello() }), Err(RejectCode::UnknownNode));
    assert_eq!(answer(&Hello { lanes: Lanes(0x40), ..hello() }), Err(RejectCode::BadLanes));
    assert_eq!(answer(&Hello { to_core: Some(1), ..hello() }), Err(RejectCode::Malformed), "there is no such link");
    assert_eq!(answer(&Hello { heartbeat_ms: 0, ..hello() }), Err(RejectCode::Malformed));
}

#[test]
fn the_node_with_the_higher_id_does_not_dial() {
    let now = Now { ticks: Ticks(1), unix_ns: 0 };
    let mut links = Links::new(LinkOptions::new(id(0), CLUSTER, 1, CoreId(0), 1, 1));
    links.set_nodes(now, &all(2));
    let mut pieces = vec![];
    Encoder::default().hello(&mut pieces, &Hello { node_id: id(1), ..hello() });
    links.opened(now, ConnId(1), Peer("x".into()));
    links.bytes(now, ConnId(1), &pieces.concat());
    assert_eq!(reject_code(&outcome(&mut links, now, ConnId(1)).0), Some(RejectCode::Other));
}

#[test]
fn version_1_0_carries_all_lanes_on_one_connection_and_names_no_link() {
    // the recorded Hello of 1.0 has features and fields of its own; this is one that this node would take
    let (mut links, now) = acceptor();
    let mut pieces = vec![];
    let old = Hello { version: Version { major: 1, minor: 0 }, lanes: Lanes::ALL, to_core: None, ..hello() };
    let mut theirs = Encoder::default();
    theirs.hello(&mut pieces, &old);
    links.opened(now, ConnId(1), Peer("x".into()));
    links.bytes(now, ConnId(1), &pieces.concat());
    assert!(links.is_connected(id(0)), "one connection is the whole link");
    pieces.clear();
    theirs.messages(&mut pieces, Lane::Control, &[Addressed { route: route(1), message: ask(1) }]);
    links.bytes(now, ConnId(1), &pieces.concat());
    links.send(id(0), route(1), ask(2));
    links.send(id(0), route(1), message(Body::Pull(Pull { from: AT, bytes_max: 1 })));
    let mut events = vec![];
    links.take(&mut events);
    assert_eq!(events, [LinkEvent::Connected(id(0)), of(0, 1, ask(1))]);
    assert!(!outcome(&mut links, now, ConnId(1)).0.is_empty());
}

#[test]
fn a_peer_that_takes_nothing_is_given_up_though_it_talks() {
    let (mut links, begun) = acceptor();
    let (mut theirs, mut pieces) = (Encoder::default(), vec![]);
    theirs.hello(&mut pieces, &Hello { lanes: Lanes::ALL, ..hello() });
    links.opened(begun, ConnId(1), Peer("x".into()));
    links.bytes(begun, ConnId(1), &pieces.concat());
    let (welcome, _) = outcome(&mut links, begun, ConnId(1));
    links.sent(begun, ConnId(1), welcome.len());
    links.send(id(0), route(0), append(10));
    for tenth in 1..=20 {
        let now = Now { ticks: begun.ticks + tenth * SECOND / 10, ..begun };
        pieces.clear();
        theirs.pong(&mut pieces);
        links.bytes(now, ConnId(1), &pieces.concat());
        links.tick(now);
        let closed = outcome(&mut links, now, ConnId(1)).1;
        assert!(!closed, "{tenth}: the socket has it since the end of the first turn");
    }
    let late = Now { ticks: begun.ticks + SECOND * 21 / 10, ..begun };
    links.tick(late);
    assert!(outcome(&mut links, late, ConnId(1)).1);
    let mut events = vec![];
    links.take(&mut events);
    assert_eq!(events, [LinkEvent::Connected(id(0)), LinkEvent::Disconnected(id(0))]);
}

#[test]
fn of_two_connections_of_one_life_the_later_one_stays_and_of_two_lives_the_newer() {
    let (mut links, now) = acceptor();
    let connect = |links: &mut Links, conn: u64, generation: u64| {
        let mut pieces = vec![];
        Encoder::default().hello(&mut pieces, &Hello { generation, ..hello() });
        links.opened(now, ConnId(conn), Peer("x".into()));
        links.bytes(now, ConnId(conn), &pieces.concat());
    };
    let is_ended = |links: &Links, conn: u64| links.conns[&ConnId(conn)].phase == super::conn::Phase::Ended;
    connect(&mut links, 1, 5);
    assert!(!is_ended(&links, 1));
    connect(&mut links, 2, 5);
    assert!(is_ended(&links, 1) && !is_ended(&links, 2), "the later");
    connect(&mut links, 3, 6);
    assert!(is_ended(&links, 2) && !is_ended(&links, 3), "the newer life");
    connect(&mut links, 4, 5);
    assert!(!is_ended(&links, 3) && is_ended(&links, 4), "not the older");
}

#[test]
fn garbage_is_refused_before_and_after_the_handshake() {
    let before = [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 64],
        &[0xff; 24],
        &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
    ];
    for garbage in before {
        let (mut links, now) = acceptor();
        links.opened(now, ConnId(1), Peer("x".into()));
        links.bytes(now, ConnId(1), garbage);
        let (sent, closed) = outcome(&mut links, now, ConnId(1));
        assert_eq!((reject_code(&sent), closed), (Some(RejectCode::Malformed), true));
        links.bytes(now, ConnId(1), b"more");
        links.closed(now, ConnId(1));
        assert!(links.is_idle());
    }
    let ping_twice = |mut theirs: Encoder| {
        let mut pieces = vec![];
        theirs.ping(&mut pieces);
        let ping = pieces.concat();
        [ping.clone(), ping].concat()
    };
    let mut theirs = Encoder::default();
    let greeting = hello_of(&mut theirs, &mut vec![]);
    for (bytes, code) in [
        (vec![0; 24], RejectCode::Malformed),
        (greeting.clone(), RejectCode::Sequence),
        (ping_twice(theirs), RejectCode::Sequence),
    ] {
        let (mut links, now) = acceptor();
        links.opened(now, ConnId(1), Peer("x".into()));
        links.bytes(now, ConnId(1), &greeting);
        links.bytes(now, ConnId(1), &bytes);
        let (sent, closed) = outcome(&mut links, now, ConnId(1));
        assert_eq!((reject_code(&sent), closed), (Some(code), true));
    }
}

#[test]
fn frames_of_a_later_version_are_skipped_and_counted() {
    let (mut links, now) = acceptor();
    let (mut theirs, mut pieces) = (Encoder::default(), vec![]);
    let mut bytes = hello_of(&mut theirs, &mut pieces);
    crate::codec::frame::encode(&mut bytes, 99, 0, 2, &[1; 8], Payload::of(b"later"), FRAME_MAX);
    bytes.extend_from_slice(b"later");
    let mut ping = vec![];
    let ping_kind = 4;
    let empty_table = [4, 0, 0, 0, 0, 0, 0, 0];
    crate::codec::frame::encode(&mut ping, ping_kind, 0, 3, &empty_table, Payload::NONE, FRAME_MAX);
    bytes.extend(ping);
    links.opened(now, ConnId(1), Peer("x".into()));
    links.bytes(now, ConnId(1), &bytes);
    assert_eq!(links.unknown_frames(), 1);
    let (sent, closed) = outcome(&mut links, now, ConnId(1));
    assert!(!closed && reject_code(&sent).is_none());
}

#[test]
fn a_stranger_that_says_nothing_is_closed_and_there_are_not_too_many() {
    let (mut links, now) = acceptor();
    links.opened(now, ConnId(1), Peer("x".into()));
    let due = links.deadline().unwrap();
    let later = Now { ticks: due, ..now };
    links.tick(later);
    assert!(outcome(&mut links, later, ConnId(1)).1);
    for i in 2..(STRANGERS_MAX as u64 + 2) {
        links.opened(now, ConnId(i), Peer("x".into()));
    }
    assert!(!outcome(&mut links, now, ConnId(STRANGERS_MAX as u64 + 1)).1);
    links.opened(now, ConnId(9999), Peer("x".into()));
    assert!(outcome(&mut links, now, ConnId(9999)).1);
}

#[test]
fn another_node_behind_an_address_is_refused() {
    let now = Now { ticks: Ticks(1), unix_ns: 0 };
    let mut links = Links::new(LinkOptions::new(id(0), CLUSTER, 1, CoreId(0), 1, 1));
    links.set_nodes(now, &all(2));
    let mut effects = vec![];
    links.tick(now);
    links.turn_end(now, &mut effects);
    let Effect::Dial { dial, .. } = effects[0] else { panic!("{effects:?}") };
    links.dialed(now, dial, Ok(ConnId(1)));
    let mut pieces = vec![];
    Encoder::default().welcome(&mut pieces, &Hello { node_id: id(7), ..hello() });
    links.bytes(now, ConnId(1), &pieces.concat());
    let (sent, closed) = outcome(&mut links, now, ConnId(1));
    assert_eq!((reject_code(&sent), closed), (Some(RejectCode::Other), true));
    assert!(!links.is_connected(id(1)));
    // and an answer that comes when nobody waits for it is closed
    links.dialed(now, 77, Ok(ConnId(2)));
    assert!(outcome(&mut links, now, ConnId(2)).1 && links.owns(ConnId(2)));
    let topic = TopicName::new("t").unwrap();
    let inquire = Inquire { topic, partitions: 1, membership_version: 1 };
    links.send(id(1), route(0), message(Body::Inquire(inquire)));
    assert!(outcome(&mut links, now, ConnId(1)).0.is_empty(), "dropped while there is no link");
}
