//! Connections as rows of bytes: between nodes, and of clients. Sent bytes are split anywhere, take time, stay in order, and arrive or
//! not; a connection may end at any moment, for each end at another one.

use super::events::Happening;
use super::plan::Coordination;
use super::tap::Talk;
use super::world::{MS, Phase, SECOND, US, World};
use crate::base::{ConnId, Lent, Peer};
use crate::seam::event::DialError;
use crate::seam::event::Event;
use crate::seam::message::MovedSession;
use crate::sim::node::any::AnyClient;
use std::collections::VecDeque;

/// Most bytes that may have arrived unread.
const INBOX_MAX: usize = 256 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    Node { node: usize, life: u64 },
    Client { is_native: bool },
}

#[derive(Debug)]
pub struct WireEnd {
    pub who: Who,
    /// `None` while it moves, and of a client.
    pub core: Option<usize>,
    /// True when the node was told of it, or the client is there.
    pub is_known: bool,
    pub is_paused: bool,
    /// The node closes it once all is sent.
    pub is_closing: bool,
    /// True if the connection went while it moved.
    pub has_gone_moving: bool,
    pub is_gone: bool,
    /// Bytes that arrived and were not read.
    inbox: Vec<u8>,
    /// Memory for the bytes that it reads next.
    lent: Option<Lent>,
    /// Bytes under way, with the time at which they arrive.
    pipe: VecDeque<(u64, Vec<u8>)>,
    last_due: u64,
    is_arriving: bool,
}

impl WireEnd {
    pub fn new(who: Who, core: Option<usize>) -> WireEnd {
        WireEnd {
            who,
            core,
            is_known: false,
            is_paused: false,
            is_closing: false,
            has_gone_moving: false,
            is_gone: false,
            inbox: vec![],
            lent: None,
            pipe: VecDeque::new(),
            last_due: 0,
            is_arriving: false,
        }
    }

    fn node(&self) -> Option<usize> {
        if let Who::Node { node, .. } = self.who { Some(node) } else { None }
    }
}

pub struct Wire {
    pub ends: [WireEnd; 2],
    /// True if the bytes under way are lost: nothing that is sent behind them arrives, though the ends do not know yet.
    is_reset: bool,
}

/// Connection number of an end, as its node has it.
fn conn_of(wire: u64, side: usize) -> ConnId {
    ConnId(wire << 1 | side as u64)
}

fn wire_of(conn: ConnId) -> (u64, usize) {
    (conn.0 >> 1, (conn.0 & 1) as usize)
}

impl World {
    /// The process that a happening of a wire concerns: that which hears of it.
    pub fn process_of_wire(&self, happening: &Happening) -> Option<(usize, u64)> {
        let (wire, side) = match happening {
            Happening::Accept { wire } => (*wire, 1),
            Happening::Arrive { wire, side } => (*wire, 1 - side),
            Happening::Sent { wire, side, .. }
            | Happening::Read { wire, side }
            | Happening::CloseNow { wire, side }
            | Happening::Closed { wire, side } => (*wire, *side),
            _ => return None,
        };
        match self.wires.get(&wire)?.ends[side].who {
            Who::Node { node, life } => Some((node, life)),
            Who::Client { .. } => None,
        }
    }

    fn add_wire(&mut self, ends: [WireEnd; 2]) -> u64 {
        let wire = self.next_wire;
        self.next_wire += 1;
        self.wires.insert(wire, Wire { ends, is_reset: false });
        wire
    }

    // ---- connecting

    pub fn dial(&mut self, n: usize, core: usize, dial: u64, address: &str) {
        self.trace([8, n as u64, core as u64, dial]);
        self.outcome.dials += 1;
        let life = self.nodes[n].life;
        let to = self.meta.node_at(address).expect("it dials what it was told of");
        let is_cut = self.cuts.contains(&(n, to)) || self.cuts.contains(&(to, n));
        let other = &self.nodes[to];
        let is_there = other.running.as_ref().is_some_and(|r| !r.is_stopping);
        if is_cut || !is_there {
            let after = if is_cut { SECOND } else { MS };
            let at = self.now + after;
            return self.queue.put(at, Happening::Dialed { node: n, life, core, dial, wire: None });
        }
        let (other_life, cores) = (other.life, other.cores as u64);
        let to_core = self.rng.below(cores) as usize;
        let dialer = WireEnd::new(Who::Node { node: n, life }, Some(core));
        let taker = WireEnd::new(Who::Node { node: to, life: other_life }, Some(to_core));
        let wire = self.add_wire([dialer, taker]);
        let (accept, dialed) = (self.now + 50 * US + self.rng.below(2 * MS), self.now + 50 * US + self.rng.below(2 * MS));
        let ends = &mut self.wires.get_mut(&wire).expect("just made").ends;
        (ends[0].last_due, ends[1].last_due) = (accept, dialed);
        self.queue.put(accept, Happening::Accept { wire });
        self.queue.put(dialed, Happening::Dialed { node: n, life, core, dial, wire: Some(wire) });
    }

    pub fn dialed(&mut self, n: usize, core: usize, dial: u64, wire: Option<u64>) {
        let taken = wire.and_then(|wire| Some((wire, self.wires.get_mut(&wire)?)));
        let result = match taken {
            Some((wire, w)) if !w.ends[0].is_gone && !w.ends[1].is_gone => {
                w.ends[0].is_known = true;
                Ok(conn_of(wire, 0))
            }
            Some((wire, w)) => {
                w.ends[0].is_gone = true;
                self.drop_if_done(wire);
                Err(DialError("reset".into()))
            }
            None => Err(DialError("refused, or no answer".into())),
        };
        self.step(n, core, Event::Dialed { dial, result });
    }

    /// A client's connection to a node that runs.
    pub fn connect(&mut self, n: usize, is_native: bool) -> u64 {
        let (life, cores) = (self.nodes[n].life, self.nodes[n].cores as u64);
        let core = self.rng.below(cores) as usize;
        let mut client = WireEnd::new(Who::Client { is_native }, None);
        client.is_known = true;
        let wire = self.add_wire([client, WireEnd::new(Who::Node { node: n, life }, Some(core))]);
        self.wires.get_mut(&wire).expect("just made").ends[0].last_due = self.now;
        self.queue.put(self.now, Happening::Accept { wire });
        wire
    }

    pub fn accept(&mut self, wire: u64) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        let [first, taker] = &mut w.ends;
        if taker.is_gone {
            return;
        }
        taker.is_known = true;
        let (n, core) = (taker.node().expect("a node takes"), taker.core.expect("it is new"));
        let (conn, peer) = (conn_of(wire, 1), Peer("test:1".into()));
        let event = match first.who {
            Who::Node { .. } => Event::OpenedPeer { conn, peer },
            Who::Client { is_native: true } => Event::OpenedNative { conn, peer },
            Who::Client { is_native: false } => Event::Opened { conn, peer },
        };
        self.step(n, core, event);
    }

    // ---- bytes

    pub fn send(&mut self, n: usize, core: usize, conn: ConnId, bytes: Vec<u8>) {
        self.trace([1, conn.0, bytes.len() as u64, crc32fast::hash(&bytes) as u64]);
        let (wire, side) = wire_of(conn);
        let w = self.wires.get_mut(&wire).expect("it sends on a connection that it has");
        let [own, other] = pair(&mut w.ends, side);
        assert!(own.core == Some(core) && !own.is_closing && !own.is_gone, "node{n} sends on an open socket of its own");
        if let Some(to) = other.node() {
            self.outcome.peer_bytes += bytes.len() as u64;
            let node = &self.nodes[n];
            let talk = Talk { from: node.id, life: node.life, to: self.nodes[to].id };
            let doubt = |key| node.running.as_ref().and_then(|r| r.doubts.get(&key).copied()).unwrap_or_default();
            self.tap.heard((wire, side), talk, &bytes, &self.meta, &mut self.check, &doubt);
            let said: Vec<String> = self.tap.said.iter_mut().flat_map(std::mem::take).collect();
            said.into_iter().for_each(|line| self.say(|| line));
        }
        if let Some(v) = self.clients.get_mut(&wire)
            && let AnyClient::Nsq(client) = &mut v.client
        {
            let is_relayed = self.meta.leader(v.key) != Some(v.node);
            client.node_sent(&self.book, &bytes, is_relayed);
        }
        self.put_on_wire(wire, side, bytes);
    }

    /// Sends bytes in pieces, each with its own time.
    pub fn put_on_wire(&mut self, wire: u64, side: usize, bytes: Vec<u8>) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        let [own, other] = pair(&mut w.ends, side);
        if other.is_gone || bytes.is_empty() {
            return;
        }
        let between = own.node().zip(other.node());
        let is_slow = between.is_some_and(|pair| self.slow.contains(&pair));
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let n = if self.rng.chance(0.7) { rest.len() } else { 1 + self.rng.below(rest.len() as u64) as usize };
            let mut latency = 40 * US + self.rng.below(400 * US);
            if self.rng.chance(0.03) {
                latency += self.rng.below(20 * MS);
            }
            if is_slow {
                latency = latency * 20 + n as u64 * 2 * US;
            }
            own.last_due = own.last_due.max(self.now + latency);
            own.pipe.push_back((own.last_due, rest[..n].to_vec()));
            rest = &rest[n..];
        }
        if !std::mem::replace(&mut own.is_arriving, true) {
            let at = own.pipe[0].0;
            self.queue.put(at, Happening::Arrive { wire, side });
        }
    }

    pub fn arrive(&mut self, wire: u64, side: usize) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        let is_reset = w.is_reset;
        let [own, other] = pair(&mut w.ends, side);
        let between = own.node().zip(other.node());
        let is_cut = between.is_some_and(|pair| self.cuts.contains(&pair));
        let is_full = other.inbox.len() > INBOX_MAX || !other.is_known && !other.is_gone;
        if is_cut || is_full || own.pipe.front().is_some_and(|(due, _)| *due > self.now) {
            let due = own.pipe.front().map_or(self.now, |p| p.0);
            let at = due.max(self.now + 5 * MS);
            return self.queue.put(at, Happening::Arrive { wire, side });
        }
        own.is_arriving = false;
        let Some((_, bytes)) = own.pipe.pop_front() else { return };
        if let Some((due, _)) = own.pipe.front() {
            own.is_arriving = true;
            let at = *due;
            self.queue.put(at, Happening::Arrive { wire, side });
        }
        let is_drained = own.pipe.is_empty() && own.is_closing;
        if own.node().is_some() && !own.is_gone {
            self.queue.put(self.now, Happening::Sent { wire, side, bytes: bytes.len() });
        }
        if is_drained {
            self.queue.put(self.now, Happening::CloseNow { wire, side });
        }
        if other.is_gone || is_reset {
            return;
        }
        if matches!(other.who, Who::Client { .. }) {
            return self.client_receives(wire, &bytes);
        }
        other.inbox.extend_from_slice(&bytes);
        self.read(wire, 1 - side);
    }

    /// The node reads the arrived bytes.
    pub fn read(&mut self, wire: u64, side: usize) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        let end = &mut w.ends[side];
        // Bytes under way when the socket was paused still come.
        if end.is_paused && !self.rng.chance(0.1) || end.inbox.is_empty() || end.is_closing || end.is_gone || !end.is_known {
            return;
        }
        let (Some(n), Some(core)) = (end.node(), end.core) else { return };
        let (bytes, conn) = (std::mem::take(&mut end.inbox), conn_of(wire, side));
        let Some(mut lent) = end.lent.take() else {
            return self.step(n, core, Event::Bytes { conn, bytes: &bytes });
        };
        let mut rest = &bytes[..];
        lent.put(&mut rest);
        end.inbox.extend_from_slice(rest);
        if !rest.is_empty() {
            self.queue.put(self.now, Happening::Read { wire, side });
        }
        // it comes back when all is there, and sometimes before
        if lent.wanted > 0 && !bytes.len().is_multiple_of(3) {
            end.lent = Some(lent);
            return self.cut_lent(wire);
        }
        self.outcome.lent += 1;
        self.step(n, core, Event::Received { conn, lent });
    }

    pub fn receive_into(&mut self, conn: ConnId, lent: Lent) {
        let (wire, side) = wire_of(conn);
        let end = &mut self.wires.get_mut(&wire).expect("a connection that it has").ends[side];
        assert!(end.lent.replace(lent).is_none(), "one piece of memory at a time");
        self.cut_lent(wire);
    }

    /// A node waits for bytes into memory that it lent: now and then the connection ends before they come.
    fn cut_lent(&mut self, wire: u64) {
        if self.phase == Phase::Faulty && self.faults.memory.lent_cut > 0.0 && self.rng.chance(self.faults.memory.lent_cut) {
            self.reset(wire);
        }
    }

    pub fn sent(&mut self, wire: u64, side: usize, bytes: usize) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        let end = &mut w.ends[side];
        if end.is_gone {
            return;
        }
        let Some(core) = end.core else {
            let at = self.now + 100 * US;
            return self.queue.put(at, Happening::Sent { wire, side, bytes });
        };
        let n = end.node().expect("only nodes hear of it");
        let conn = conn_of(wire, side);
        let first = self.rng.below(bytes as u64 + 1) as usize;
        for bytes in [first, bytes - first].into_iter().filter(|&n| n > 0) {
            self.step(n, core, Event::Sent { conn, bytes });
        }
    }

    pub fn pause_reading(&mut self, conn: ConnId, pauses: bool) {
        let (wire, side) = wire_of(conn);
        let end = &mut self.wires.get_mut(&wire).expect("a connection that it has").ends[side];
        end.is_paused = pauses;
        if !pauses {
            self.queue.put(self.now, Happening::Read { wire, side });
        }
    }

    pub fn move_out(&mut self, n: usize, core: usize, conn: ConnId) -> (u64, usize) {
        let (wire, side) = wire_of(conn);
        let end = &mut self.wires.get_mut(&wire).expect("a connection that it has").ends[side];
        assert!(end.core == Some(core) && !end.is_closing && end.lent.is_none(), "node{n} moves an open socket of its own");
        (end.core, end.is_paused) = (None, false);
        (wire, side)
    }

    pub fn move_in(&mut self, n: usize, to: usize, at: (u64, usize), session: Box<MovedSession>, unread: &[u8]) {
        let (wire, side) = at;
        let end = &mut self.wires.get_mut(&wire).expect("it lives until its Closed").ends[side];
        end.core = Some(to);
        let has_gone = end.has_gone_moving;
        let conn = conn_of(wire, side);
        self.step(n, to, Event::Adopted { conn, session });
        self.step(n, to, Event::Bytes { conn, bytes: unread });
        if has_gone {
            return self.queue.put(self.now, Happening::Closed { wire, side });
        }
        self.read(wire, side);
    }

    // ---- ends

    pub fn close(&mut self, n: usize, core: usize, conn: ConnId) {
        self.trace([2, conn.0, n as u64, core as u64]);
        let (wire, side) = wire_of(conn);
        let ends = &mut self.wires.get_mut(&wire).expect("it closes a connection that it has").ends;
        let end = &mut ends[side];
        assert!(!std::mem::replace(&mut end.is_closing, true), "closed once");
        let at = if end.pipe.is_empty() { self.now + 10 * US } else { self.now + SECOND };
        self.queue.put(at, Happening::CloseNow { wire, side });
        self.is_heard_no_more(wire, side);
    }

    /// A node closes a connection, or learns that it is gone, perhaps before its client does: the client's last requests are not read.
    fn is_heard_no_more(&mut self, wire: u64, side: usize) {
        if self.wires.get(&wire).is_some_and(|w| w.ends[1 - side].node().is_none()) {
            self.book.time_is(self.now / MS);
            self.book.asks_no_more(wire);
        }
    }

    /// Closes both ends: all output is sent, or it takes too long.
    pub fn close_now(&mut self, wire: u64, side: usize) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        if w.ends[side].is_gone {
            return;
        }
        w.ends[side].pipe.clear();
        let at = self.now + self.rng.below(2 * MS);
        self.queue.put(at, Happening::Closed { wire, side: 1 - side });
        self.closed(wire, side);
    }

    /// Tells one end that the connection is gone.
    pub fn closed(&mut self, wire: u64, side: usize) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        let end = &mut w.ends[side];
        if end.is_gone {
            return;
        }
        let Some(n) = end.node() else {
            end.is_gone = true;
            self.client_gone(wire);
            return self.drop_if_done(wire);
        };
        if end.is_known && end.core.is_none() {
            end.has_gone_moving = true;
            return;
        }
        end.is_gone = true;
        self.outcome.lent_cut += end.lent.is_some() as u64;
        let (core, is_known) = (end.core, end.is_known);
        if w.ends[1 - side].node().is_some() {
            self.book.time_is(self.now / MS);
            self.book.is_disturbed();
        }
        self.is_heard_no_more(wire, side);
        if let Some(core) = core.filter(|_| is_known) {
            self.step(n, core, Event::Closed { conn: conn_of(wire, side) });
        }
        self.drop_if_done(wire);
    }

    fn drop_if_done(&mut self, wire: u64) {
        if self.wires.get(&wire).is_some_and(|w| w.ends.iter().all(|e| e.is_gone)) {
            self.wires.remove(&wire);
            self.tap.forget(wire);
        }
    }

    /// The client closes its connection: its written bytes still arrive.
    pub fn hang_up(&mut self, wire: u64) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        let end = &mut w.ends[0];
        if end.is_gone {
            return;
        }
        end.is_gone = true;
        let at = end.last_due.max(self.now) + 1;
        self.queue.put(at, Happening::Closed { wire, side: 1 });
        self.client_gone(wire);
    }

    /// The network loses the connection: each end learns of it soon, and bytes under way are lost.
    pub fn reset(&mut self, wire: u64) {
        let Some(w) = self.wires.get_mut(&wire) else { return };
        self.outcome.resets += 1;
        w.is_reset = true;
        w.ends.iter_mut().for_each(|e| e.pipe.clear());
        for side in 0..2 {
            let at = self.soon(5 * MS);
            self.queue.put(at, Happening::Closed { wire, side });
        }
    }

    /// A process ended. A killed one's kernel says so to the others; one without power says nothing until it is asked.
    pub fn drop_wires_of(&mut self, n: usize, says_so: bool) {
        let all: Vec<u64> = self.wires.keys().copied().collect();
        for wire in all {
            for side in 0..2 {
                let Some(w) = self.wires.get_mut(&wire) else { break };
                let [own, other] = pair(&mut w.ends, side);
                if own.node() != Some(n) || own.is_gone {
                    continue;
                }
                own.is_gone = true;
                other.pipe.clear();
                // a part of its sent bytes is on the way
                let keep = self.rng.below(own.pipe.len() as u64 + 1) as usize;
                own.pipe.truncate(keep);
                let silent = !says_so && other.node().is_some() && self.phase == Phase::Faulty;
                let wait = if silent { self.rng.below(4 * SECOND) } else { self.rng.below(3 * MS) };
                let at = own.pipe.back().map_or(self.now, |p| p.0.max(self.now)) + wait;
                self.queue.put(at, Happening::Closed { wire, side: 1 - side });
                self.drop_if_done(wire);
            }
        }
    }

    /// Connections between nodes that are whole.
    pub fn peer_wires(&self) -> Vec<u64> {
        if self.plan.coordination == Coordination::Alone {
            return vec![];
        }
        let between = |w: &Wire| w.ends.iter().all(|e| e.node().is_some() && !e.is_gone);
        self.wires.iter().filter(|(_, w)| between(w)).map(|(wire, _)| *wire).collect()
    }
}

fn pair(ends: &mut [WireEnd; 2], side: usize) -> [&mut WireEnd; 2] {
    let [a, b] = ends;
    if side == 0 { [a, b] } else { [b, a] }
}
