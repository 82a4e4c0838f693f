//! Nodes with several cores over a wire in memory that cuts the bytes anywhere, and what they may be told by strangers.

mod meeting;
mod strangers;

use super::*;
use crate::base::{ConnId, Epoch, Lent, LogId, Now, PartitionId, Peer, Position, Rng, Ticks, TopicId};
use crate::codec::peer::message::{Append, Batches, Body, EpochsAsk, Head, Message, Route, Session};
use crate::format::batch::{Batch, BatchBuilder, Stamp};
use crate::seam::cluster::ClusterNode;
use crate::seam::event::{DialError, Effect, Effects};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

const CLUSTER: ClusterId = ClusterId([5; 16]);
const AT: Position = Position { offset: 4096, count: 10, log_id: LogId(11) };

fn id(node: usize) -> NodeId {
    NodeId([node as u8 + 1; 16])
}

/// Node and core at an end of a wire.
type End = (usize, u16);

struct Wire {
    /// The dialler's end, then the acceptor's. `None`: the process there is gone.
    ends: [Option<End>; 2],
    conns: [ConnId; 2],
    /// Bytes under way to each end.
    bytes: [VecDeque<u8>; 2],
    /// Memory for the first of them.
    lent: [Option<Lent>; 2],
    /// The end wants to close once what it sent is delivered.
    closing: [bool; 2],
    closed: [bool; 2],
    /// True while nothing is delivered.
    is_cut: bool,
}

struct World {
    now: Now,
    rng: Rng,
    /// Links by node and core; empty while the node is away.
    nodes: Vec<Vec<Links>>,
    wires: Vec<Wire>,
    events: BTreeMap<End, Vec<LinkEvent>>,
    next_conn: u64,
    /// Most bytes that are delivered at a time.
    cut: u64,
    dials: usize,
    unreachable: bool,
    moves: usize,
    /// Number of times that lent memory came back.
    lent: usize,
}

fn all(num: usize) -> Vec<ClusterNode> {
    let node = |n: usize| ClusterNode::new(id(n), format!("n{n}"), format!("host{n}:1"));
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
            lent: 0,
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
                    let (bytes, lent) = Default::default();
                    self.wires.push(Wire { ends, conns, bytes, lent, closing: [false; 2], closed: [false; 2], is_cut: false });
                }
                Effect::Send { conn, bytes } => {
                    let (w, side) = self.wire(conn);
                    self.wires[w].bytes[1 - side].extend(bytes);
                }
                Effect::SendPieces { conn, pieces } => {
                    let (w, side) = self.wire(conn);
                    self.wires[w].bytes[1 - side].extend(pieces.concat());
                }
                Effect::ReceiveInto { conn, lent } => {
                    let (w, side) = self.wire(conn);
                    assert!(self.wires[w].lent[side].replace(lent).is_none(), "one at a time");
                }
                Effect::Close { conn } => {
                    let (w, side) = self.wire(conn);
                    self.wires[w].closing[side] = true;
                }
                Effect::Move { conn, to, session, unread } => {
                    self.moves += 1;
                    let (w, side) = self.wire(conn);
                    let conn = ConnId(self.next_conn);
                    self.next_conn += 1;
                    self.wires[w].conns[side] = conn;
                    self.wires[w].ends[side] = Some((at.0, to.0));
                    let links = &mut self.nodes[at.0][to.0 as usize];
                    links.adopted(self.now, conn, session.peer.clone(), session.into_state());
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

    /// Runs one turn of every core; true if anything happened.
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
                let lent = wire.lent[side].take_if(|_| !bytes.is_empty());
                let (to, from) = (wire.conns[side], wire.conns[1 - side]);
                let is_over = wire.bytes[side].is_empty() && (wire.closing[side] || wire.closing[1 - side]);
                let sender = wire.ends[1 - side];
                wire.closed[side] = is_over;
                happened |= !bytes.is_empty() || is_over;
                if !bytes.is_empty() {
                    let (links, mut rest) = (&mut self.nodes[node][core as usize], &bytes[..]);
                    if let Some(mut lent) = lent {
                        lent.put(&mut rest);
                        // whole or not, as it may be
                        if lent.wanted == 0 || self.rng.chance(0.5) {
                            self.lent += 1;
                            links.received(self.now, to, lent);
                        } else {
                            self.wires[w].lent[side] = Some(lent);
                        }
                    }
                    if !rest.is_empty() {
                        links.bytes(self.now, to, rest);
                    }
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
    message(Body::Append(Append { committed: AT, batches: Batches::new(vec![Bytes::from(vec![7; bytes])]) }))
}

fn ask(below: u64) -> Message {
    message(Body::EpochsAsk(EpochsAsk { below: Epoch(below) }))
}

fn of(from: usize, partition: u16, message: Message) -> LinkEvent {
    LinkEvent::Message { from: id(from), addressed: Addressed { route: route(partition), message } }
}

const SECOND: Duration = Duration::from_secs(1);
