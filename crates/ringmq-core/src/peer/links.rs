//! [`Links`]: events on the connections with other nodes, and their effects.

use super::conn::{Conn, Fault, FrameContent, Phase, weight};
use super::greet::OVERTAKEN;
use super::link_log::{LinkLog, UNKNOWN_TIMES};
use super::nodes::{Dial, Link, LinkId, Node, numbers};
use super::{HANDSHAKE_MAX, LinkEvent, LinkOptions, MovedGreeting, PAUSE_MAX, RELAYED_MAX, SILENT_MAX, STRANGERS_MAX};
use crate::base::NodeId;
use crate::base::{ConnId, IdMap, Lent, Now, Peer, Rng, Ticks};
use crate::codec::peer::message::{Lane, Message, Route};
use crate::codec::peer::{Addressed, Reject, RejectCode};
use crate::seam::cluster::ClusterNode;
use crate::seam::event::{DialError, Effect, Effects};
use crate::seam::message::{MovedSession, Protocol};
use std::collections::BTreeMap;
use std::time::Duration;

/// The links of one core.
#[derive(Debug)]
pub struct Links {
    pub(super) options: LinkOptions,
    pub(super) nodes: BTreeMap<NodeId, Node>,
    pub(super) conns: IdMap<ConnId, Conn>,
    /// Attempts that were not answered yet.
    dials: IdMap<u64, LinkId>,
    next_dial: u64,
    touched: Vec<ConnId>,
    effects: Effects,
    events: Vec<LinkEvent>,
    /// Earliest time at which something may be due.
    due: Option<Ticks>,
    rng: Rng,
    pub(super) said: LinkLog,
    pub(super) is_stopping: bool,
    unknown_frames: u64,
}

/// Reason why a link goes down, and whether another attempt soon may succeed.
pub(super) struct Loss {
    pub why: String,
    pub is_hopeless: bool,
    /// True for an end that needs no operator.
    pub is_orderly: bool,
    /// True if the peer's process stops.
    pub is_stop: bool,
    /// True where the peer may just not have read the metadata yet.
    pub may_pass: bool,
}

impl Loss {
    pub fn of(why: impl Into<String>) -> Loss {
        Loss { why: why.into(), is_hopeless: false, is_orderly: false, is_stop: false, may_pass: false }
    }
}

impl Links {
    pub fn new(options: LinkOptions) -> Links {
        let rng = Rng::new(options.seed);
        Links {
            options,
            nodes: BTreeMap::new(),
            conns: IdMap::default(),
            dials: IdMap::default(),
            next_dial: 0,
            touched: vec![],
            effects: vec![],
            events: vec![],
            due: None,
            rng,
            said: LinkLog::default(),
            is_stopping: false,
            unknown_frames: 0,
        }
    }

    /// Sets the nodes of the cluster. Connections of nodes that are no longer among them are closed.
    pub fn set_nodes(&mut self, now: Now, nodes: &[ClusterNode]) {
        let is_there = |id: &NodeId| nodes.iter().any(|n| n.id == *id);
        let gone: Vec<NodeId> = self.nodes.keys().filter(|id| !is_there(id)).copied().collect();
        for id in gone {
            let why = "the peer is no longer a node of the cluster";
            let numbers: Vec<u16> = self.nodes[&id].links.keys().copied().collect();
            for number in numbers {
                self.part(LinkId { node: id, number }, RejectCode::UnknownNode, why);
                self.down(now, LinkId { node: id, number }, &Loss { is_orderly: true, ..Loss::of(why) });
            }
            self.nodes.remove(&id);
        }
        let own = self.options.node;
        if let Some(node) = nodes.iter().find(|n| n.id == own) {
            self.options.incarnation = node.incarnation;
        }
        for node in nodes.iter().filter(|n| n.id != own) {
            self.outlive_incarnation(now, node);
            let (name, address) = (node.name.clone(), node.peer_address.clone());
            match self.nodes.get_mut(&node.id) {
                Some(known) if known.address == address => known.name = name,
                Some(known) => {
                    (known.name, known.address) = (name, address);
                    for link in known.links.values_mut() {
                        link.is_steady();
                        if let Dial::Wait { until } = &mut link.dial {
                            *until = now.ticks;
                        }
                    }
                    self.at_most(now.ticks);
                }
                None => {
                    let is_dialled = self.options.node < node.id;
                    let (links, cores, said) = (BTreeMap::new(), None, None);
                    let incarnation = node.incarnation;
                    let node_ = Node { name, address, is_dialled, cores, incarnation, links, is_connected: false, said };
                    self.nodes.insert(node.id, node_);
                    self.arrange(now, node.id);
                }
            }
        }
    }

    /// The metadata names the process that was registered last as the node: links with an earlier one end.
    fn outlive_incarnation(&mut self, now: Now, newest: &ClusterNode) {
        let Some(node) = self.nodes.get_mut(&newest.id) else { return };
        node.incarnation = node.incarnation.max(newest.incarnation);
        let last = node.incarnation;
        let is_old = |link: &Link| link.lanes().0 != 0 && link.life.incarnation < last;
        let old: Vec<u16> = node.links.iter().filter(|(_, link)| is_old(link)).map(|(number, _)| *number).collect();
        for number in old {
            let place = LinkId { node: newest.id, number };
            self.part(place, RejectCode::Other, OVERTAKEN);
            self.down(now, place, &Loss::of(OVERTAKEN));
        }
    }

    /// Queues a message on its lane. Dropped while the node is not connected.
    pub fn send(&mut self, to: NodeId, route: Route, message: Message) {
        self.send_on(to, message.body.lane(), route, message);
    }

    /// The same on another lane that the message may take: an `Append` of catch-up.
    pub fn send_on(&mut self, to: NodeId, lane: Lane, route: Route, message: Message) {
        let Some(node) = self.nodes.get(&to).filter(|node| node.is_connected) else { return };
        let Some(conn) = node.link_for(route).and_then(|link| link.conn(lane)) else { return };
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.queue(lane, Addressed { route, message });
        self.touch(conn);
    }

    /// True if messages reach the node.
    pub fn is_connected(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.is_connected)
    }

    /// True if the link of these messages takes more messages for clients of the node. Also true for a node that is not connected: its
    /// messages are dropped.
    pub fn has_room_for_relayed(&self, node: NodeId, route: Route) -> bool {
        let node = self.nodes.get(&node).filter(|node| node.is_connected);
        let conn = node.and_then(|node| node.link_for(route)?.conn(Lane::Data));
        conn.and_then(|conn| self.conns.get(&conn)).is_none_or(|c| c.relayed() < RELAYED_MAX)
    }

    /// Number of the node's cores, once the node has told it.
    pub fn cores_of(&self, node: NodeId) -> Option<u16> {
        self.nodes.get(&node)?.cores
    }

    /// State of the links: for each other node its id, whether messages reach it, and the bytes that wait to be sent.
    pub fn status(&self) -> impl Iterator<Item = (NodeId, bool, usize)> {
        let queued = |node: &Node| -> usize {
            let conns = node.links.values().flat_map(Link::conns);
            conns.filter_map(|conn| self.conns.get(&conn)).map(Conn::waiting).sum()
        };
        self.nodes.iter().map(move |(id, node)| (*id, node.is_connected, queued(node)))
    }

    pub fn connected(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.iter().filter(|(_, node)| node.is_connected).map(|(id, _)| *id)
    }

    pub fn owns(&self, conn: ConnId) -> bool {
        self.conns.contains_key(&conn)
    }

    /// Frames of kinds that this version does not know, skipped since startup.
    pub fn unknown_frames(&self) -> u64 {
        self.unknown_frames
    }

    /// True if there is no connection and none is under way.
    pub fn is_idle(&self) -> bool {
        self.conns.is_empty() && self.dials.is_empty()
    }

    /// True if [`Links::take`] has something to return.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub fn take(&mut self, events: &mut Vec<LinkEvent>) {
        events.append(&mut self.events);
    }

    // ---- events

    /// Handles a connection that another node opened.
    pub fn opened(&mut self, now: Now, conn: ConnId, peer: Peer) {
        let strangers = self.conns.values().filter(|c| matches!(c.phase, Phase::Stranger { .. })).count();
        let until = now.ticks + HANDSHAKE_MAX;
        let is_taken = !self.is_stopping && strangers < STRANGERS_MAX;
        self.add(conn, Conn::new(peer, if is_taken { Phase::Stranger { until } } else { Phase::Ended }, now.ticks));
        self.at_most(until);
    }

    /// A connection came over from another core; its unread bytes follow.
    pub fn adopted(&mut self, now: Now, conn: ConnId, peer: Peer, carried: MovedGreeting) {
        self.opened(now, conn, peer);
        let MovedGreeting { until } = carried;
        if let Some(c) = self.conns.get_mut(&conn) {
            c.has_moved = true;
            if let Phase::Stranger { until: at } = &mut c.phase {
                *at = until.min(*at);
            }
        }
    }

    /// The answer to [`Effect::Dial`].
    pub fn dialed(&mut self, now: Now, dial: u64, result: Result<ConnId, DialError>) {
        let place = self.dials.remove(&dial);
        let is_wanted = |p: &LinkId| {
            let link = self.nodes.get(&p.node).and_then(|node| node.links.get(&p.number));
            !self.is_stopping && link.is_some_and(|link| link.dial == Dial::Dialing)
        };
        let place = place.filter(is_wanted);
        match (place, result) {
            (Some(place), Ok(conn)) => self.say_hello(now, conn, place),
            (Some(place), Err(error)) => self.down(now, place, &Loss::of(error.to_string())),
            (None, Ok(conn)) => self.add(conn, Conn::new(Peer("unknown".into()), Phase::Ended, now.ticks)),
            (None, Err(_)) => {}
        }
    }

    /// Bytes came on a connection of ours.
    pub fn bytes(&mut self, now: Now, conn: ConnId, bytes: &[u8]) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.heard_at = now.ticks;
        match c.phase {
            Phase::Stranger { .. } | Phase::Hello { .. } => {
                c.held.extend_from_slice(bytes);
                self.greet(now, conn);
            }
            Phase::Leaving { .. } => c.held.extend_from_slice(bytes),
            Phase::Open { .. } => self.read(now, conn, bytes),
            Phase::Ended => {}
        }
    }

    /// Memory that a connection of ours lent for its bytes is back.
    pub fn received(&mut self, now: Now, conn: ConnId, lent: Lent) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.heard_at = now.ticks;
        let Phase::Open { place, .. } = c.phase else { return };
        let got = c.take_back(lent);
        self.on_got(now, conn, place, got);
        self.lend_at_end(conn);
    }

    /// The kernel took this many of the sent bytes.
    pub fn sent(&mut self, now: Now, conn: ConnId, bytes: usize) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.sent(now.ticks, bytes);
        if c.queued() > 0 {
            self.touch(conn);
        }
    }

    /// The connection is gone.
    pub fn closed(&mut self, now: Now, conn: ConnId) {
        let Some(c) = self.conns.remove(&conn) else { return };
        match c.phase {
            Phase::Open { place, .. } => self.down(now, place, &Loss::of("the peer closed the connection")),
            Phase::Hello { place, .. } => {
                let why = super::greet::ended_early(&c.held);
                self.down(now, place, &Loss::of(why));
            }
            Phase::Stranger { .. } if !c.held.is_empty() => {
                self.said.stranger(now.ticks, &c.peer, super::greet::ended_early(&c.held));
                self.at_most_of_said();
            }
            _ => {}
        }
    }

    /// Frames of an open connection.
    pub(super) fn read(&mut self, now: Now, conn: ConnId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(c) = self.conns.get_mut(&conn) else { return };
            let Phase::Open { place, .. } = c.phase else { return };
            let got = c.receive(&mut bytes);
            self.on_got(now, conn, place, got);
        }
        self.lend_at_end(conn);
    }

    fn on_got(&mut self, now: Now, conn: ConnId, place: LinkId, got: Result<Option<FrameContent>, Fault>) {
        match got {
            Ok(Some(got)) => self.on_frame(now, conn, place, got),
            Ok(None) => {}
            Err(fault) => self.broken(now, conn, place, fault),
        }
    }

    /// A long payload is under way: at the end of the turn its memory goes to where the rest of it comes from.
    fn lend_at_end(&mut self, conn: ConnId) {
        if let Some(min) = self.options.lend_min
            && self.conns.get(&conn).is_some_and(|c| c.can_lend(min))
        {
            self.touch(conn);
        }
    }

    fn on_frame(&mut self, now: Now, conn: ConnId, place: LinkId, got: FrameContent) {
        let is_up = self.link(place).is_some_and(Link::is_up);
        let Some(c) = self.conns.get_mut(&conn) else { return };
        match got {
            FrameContent::Messages(messages) if is_up => {
                let from = place.node;
                self.events.extend(messages.into_iter().map(|addressed| LinkEvent::Message { from, addressed }));
            }
            FrameContent::Messages(messages) => {
                // the other side has the last Welcome behind it, which is still on its way here
                c.early_bytes += messages.iter().map(|m| weight(&m.message)).sum::<usize>();
                c.early.extend(messages);
                if c.early_bytes > self.options.queue_bytes_max {
                    let why = "the peer sends messages before all lanes are connected";
                    self.part(place, RejectCode::Malformed, why);
                    self.down(now, place, &Loss::of(why));
                }
            }
            FrameContent::Ping => {
                let c_pieces = &mut c.pieces;
                c.encoder.pong(c_pieces);
                self.touch(conn);
            }
            FrameContent::Pong => {}
            FrameContent::Unknown => self.unknown_frames += 1,
            FrameContent::Greeting => {
                let why = "the peer repeats Hello or Welcome";
                self.part(place, RejectCode::Malformed, why);
                self.down(now, place, &Loss::of(why));
            }
            FrameContent::Reject(code, message) => self.down(now, place, &super::greet::rejected(code, &message)),
        }
    }

    fn broken(&mut self, now: Now, conn: ConnId, place: LinkId, fault: Fault) {
        self.reject(conn, fault.code(), &fault.to_string());
        self.down(now, place, &Loss::of(fault.to_string()));
    }

    // ---- time

    /// Time at which [`Self::tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        // events of a turn's end are due at once
        if self.events.is_empty() { self.due } else { Some(Ticks(0)) }
    }

    pub fn tick(&mut self, now: Now) {
        if self.due.is_none_or(|due| due > now.ticks) {
            return;
        }
        self.due = None;
        self.said.tick(now.ticks);
        self.at_most_of_said();
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns {
            self.tick_conn(now, conn);
        }
        self.start_dials(now);
    }

    fn tick_conn(&mut self, now: Now, conn: ConnId) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        match c.phase {
            Phase::Stranger { until } if until <= now.ticks => {
                let why = "the peer sent no Hello in time";
                self.said.stranger(now.ticks, &c.peer.clone(), why);
                self.at_most_of_said();
                self.reject(conn, RejectCode::Other, why);
            }
            Phase::Hello { place, until, .. } if until <= now.ticks => {
                let why = "the peer did not answer the handshake in time";
                self.reject(conn, RejectCode::Other, why);
                self.down(now, place, &Loss::of(why));
            }
            Phase::Stranger { until } | Phase::Hello { until, .. } => self.at_most(until),
            Phase::Open { place, silence_max, .. } => {
                let silent_until = c.heard_at + silence_max;
                // the socket must take something as often as the other side must hear something
                let stuck_until = c.taken_at + self.options.heartbeat * SILENT_MAX;
                let is_stuck = c.has_unsent() && stuck_until <= now.ticks;
                if silent_until <= now.ticks || is_stuck {
                    let why = if is_stuck { "the peer takes nothing" } else { "the peer is silent" };
                    let since = now.ticks.since(if is_stuck { c.taken_at } else { c.heard_at });
                    self.down(now, place, &Loss::of(format!("{why} for {} ms", since.as_millis())));
                    return;
                }
                let say_at = c.said_at + self.options.heartbeat;
                if say_at <= now.ticks {
                    let c_pieces = &mut c.pieces;
                    c.encoder.ping(c_pieces);
                    c.said_at = now.ticks;
                    self.touch(conn);
                }
                let Some(c) = self.conns.get(&conn) else { return };
                let stuck = if c.has_unsent() { Some(stuck_until) } else { None };
                let next = (c.said_at + self.options.heartbeat).min(silent_until);
                self.at_most(stuck.map_or(next, |at| at.min(next)));
            }
            Phase::Leaving { .. } | Phase::Ended => {}
        }
    }

    fn start_dials(&mut self, now: Now) {
        let places = self.nodes.iter().filter(|(_, node)| node.is_dialled).flat_map(|(id, node)| {
            let number = |number: &u16| LinkId { node: *id, number: *number };
            node.links.keys().map(number).collect::<Vec<_>>()
        });
        for place in places.collect::<Vec<_>>() {
            let Some(node) = self.nodes.get_mut(&place.node) else { continue };
            let Some(link) = node.links.get_mut(&place.number) else { continue };
            match link.dial {
                Dial::Wait { until } if until <= now.ticks => {
                    link.dial = Dial::Dialing;
                    self.next_dial += 1;
                    let (dial, address, name) = (self.next_dial, node.address.clone(), node.name.clone());
                    self.dials.insert(dial, place);
                    self.effects.push(Effect::Dial { dial, address, name });
                }
                Dial::Wait { until } => self.at_most(until),
                _ => {}
            }
        }
    }

    pub(super) fn at_most(&mut self, at: Ticks) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    pub(super) fn at_most_of_said(&mut self) {
        if let Some(at) = self.said.faults_at {
            self.at_most(at);
        }
    }

    // ---- links

    pub(super) fn link(&self, place: LinkId) -> Option<&Link> {
        self.nodes.get(&place.node)?.links.get(&place.number)
    }

    pub(super) fn link_mut(&mut self, place: LinkId) -> Option<&mut Link> {
        self.nodes.get_mut(&place.node)?.links.get_mut(&place.number)
    }

    /// Gives the node the links that it has with its number of cores.
    pub(super) fn arrange(&mut self, now: Now, id: NodeId) {
        let (core, cores) = (self.options.core.0, self.options.cores);
        let Some(node) = self.nodes.get(&id) else { return };
        let wanted: Vec<u16> = numbers(core, cores, node.cores).collect();
        let extra: Vec<u16> = node.links.keys().filter(|number| !wanted.contains(number)).copied().collect();
        let is_dialled = node.is_dialled;
        for number in extra {
            let place = LinkId { node: id, number };
            self.part(place, RejectCode::Other, "this link is no longer needed");
            self.down(now, place, &Loss { is_orderly: true, ..Loss::of("the peer has fewer cores now") });
            self.nodes.get_mut(&id).and_then(|node| node.links.remove(&number));
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        for number in wanted {
            let dial = if is_dialled { Dial::Wait { until: now.ticks } } else { Dial::Off };
            node.links.entry(number).or_insert_with(|| Link::new(dial));
        }
        if is_dialled {
            self.at_most(now.ticks);
        }
    }

    /// Says Reject on every connection of a link that is about to go.
    pub(super) fn part(&mut self, place: LinkId, code: RejectCode, why: &str) {
        for conn in self.link(place).map(Link::conns).unwrap_or_default() {
            self.reject(conn, code, why);
        }
    }

    /// The link is lost, or could not be made: its connections are closed, and the dialler tries again.
    pub(super) fn down(&mut self, now: Now, place: LinkId, loss: &Loss) {
        // one that shakes hands for this link goes with it
        let greeting = self.conns.iter().filter(|(_, c)| matches!(c.phase, Phase::Hello { place: p, .. } if p == place));
        let greeting: Vec<ConnId> = greeting.map(|(conn, _)| *conn).collect();
        let Some(node) = self.nodes.get_mut(&place.node) else { return };
        let Some(link) = node.links.get_mut(&place.number) else { return };
        if link.up_since.is_some_and(|since| now.ticks.since(since) >= PAUSE_MAX) {
            link.is_steady();
        }
        let is_early = loss.may_pass && link.attempts() < UNKNOWN_TIMES;
        let conns = link.clear();
        let mut next = None;
        if node.is_dialled && !self.is_stopping {
            let until = now.ticks + link.pause(&mut self.rng, loss.is_hopeless);
            link.dial = Dial::Wait { until };
            next = Some(until);
        }
        let (core, name, why) = (self.options.core.0, &node.name, loss.why.as_str());
        if node.is_connected {
            node.is_connected = false;
            node.said = Some(loss.why.clone());
            self.events.push(LinkEvent::Disconnected(place.node));
            self.events.extend(loss.is_stop.then_some(LinkEvent::Stopping(place.node)));
            match loss.is_orderly {
                true => tracing::info!(core, peer = %name, "a peer is disconnected: {why}"),
                false => tracing::warn!(core, peer = %name, "the connection to a peer is lost: {why}"),
            }
        } else if node.said.as_deref() != Some(why) && !is_early {
            node.said = Some(loss.why.clone());
            let address = &node.address;
            if node.is_dialled {
                tracing::warn!(core, peer = %name, %address, "no connection to a peer: {why}; trying again, logged once");
            } else {
                tracing::warn!(core, peer = %name, "no connection with a peer: {why}");
            }
        }
        for conn in conns.into_iter().chain(greeting) {
            self.end(conn);
        }
        if let Some(until) = next {
            self.at_most(until);
        }
    }

    /// Records that all lanes of a link are connected.
    pub(super) fn up(&mut self, now: Now, place: LinkId, version: &str) {
        let Some(node) = self.nodes.get_mut(&place.node) else { return };
        let Some(link) = node.links.get_mut(&place.number) else { return };
        link.up_since = Some(now.ticks);
        link.dial = Dial::Off;
        let conns = link.conns();
        if node.is_whole() && !node.is_connected {
            node.is_connected = true;
            node.said = None;
            let (core, name, cores) = (self.options.core.0, &node.name, node.cores);
            tracing::info!(core, peer = %name, cores, version, "connected to a peer");
            self.events.push(LinkEvent::Connected(place.node));
        }
        for conn in conns {
            let Some(c) = self.conns.get_mut(&conn) else { continue };
            let (from, early) = (place.node, std::mem::take(&mut c.early));
            c.early_bytes = 0;
            self.events.extend(early.into_iter().map(|addressed| LinkEvent::Message { from, addressed }));
        }
    }

    // ---- connections

    pub(super) fn add(&mut self, conn: ConnId, c: Conn) {
        let old = self.conns.insert(conn, c);
        assert!(old.is_none(), "a connection's number is never reused");
        self.touch(conn);
    }

    pub(super) fn touch(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(&conn)
            && !c.is_touched
        {
            c.is_touched = true;
            self.touched.push(conn);
        }
    }

    /// Says why, and closes.
    pub(super) fn reject(&mut self, conn: ConnId, code: RejectCode, message: &str) {
        if let Some(c) = self.conns.get_mut(&conn)
            && c.phase != Phase::Ended
        {
            let Conn { encoder, pieces, .. } = c;
            encoder.reject(pieces, &Reject { code, message });
            self.end(conn);
        }
    }

    /// Closes the connection after the encoded bytes are sent.
    pub(super) fn end(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.phase = Phase::Ended;
            c.drop_queues();
            self.touch(conn);
        }
    }

    // ---- the end of a turn

    /// Emits the turn's frames, dials, closes and moves.
    pub fn turn_end(&mut self, now: Now, out: &mut Effects) {
        out.append(&mut self.effects);
        // closing one connection adds others of its link to the list while it is read
        let mut at = 0;
        while let Some(&conn) = self.touched.get(at) {
            at += 1;
            self.flush(now, conn, out);
        }
        self.touched.clear();
    }

    fn flush(&mut self, now: Now, conn: ConnId, out: &mut Effects) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.is_touched = false;
        if let Phase::Leaving { to } = c.phase {
            let Some(c) = self.conns.remove(&conn) else { return };
            let session = MovedSession::new(c.peer, Protocol::Peer, MovedGreeting { until: now.ticks + HANDSHAKE_MAX });
            out.push(Effect::Move { conn, to, session, unread: c.held });
            return;
        }
        if c.queued() > self.options.queue_bytes_max
            && let Some(place) = c.place()
        {
            let why = format!("{} bytes wait for the peer's socket, more than the most in flight", c.queued());
            return self.down(now, place, &Loss::of(why));
        }
        out.extend(c.take_output(now.ticks, &self.options).map(|output| Effect::send(conn, output)));
        if let Some(min) = self.options.lend_min
            && matches!(c.phase, Phase::Open { .. })
            && let Some(lent) = c.lend(min)
        {
            out.push(Effect::ReceiveInto { conn, lent });
        }
        if c.phase == Phase::Ended && !std::mem::replace(&mut c.is_close_told, true) {
            out.push(Effect::Close { conn });
        }
    }

    /// The node stops: every connection is told so, and none is taken or dialled any more.
    pub fn stop(&mut self, now: Now) {
        if std::mem::replace(&mut self.is_stopping, true) {
            return;
        }
        let why = "this node is stopping";
        self.dials.clear(); // what still comes of them is closed
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns {
            self.reject(conn, RejectCode::Stopping, why);
        }
        let places = |(id, node): (&NodeId, &Node)| {
            let node_ = *id;
            node.links.keys().map(move |number| LinkId { node: node_, number: *number }).collect::<Vec<_>>()
        };
        for place in self.nodes.iter().flat_map(places).collect::<Vec<_>>() {
            if self.link(place).is_some_and(|link| !link.conns().is_empty()) {
                self.down(now, place, &Loss { is_orderly: true, ..Loss::of(why) });
            }
            if let Some(link) = self.link_mut(place) {
                link.dial = Dial::Off;
            }
        }
    }

    /// Longest silence of a peer that sends something every `heartbeat_ms`.
    pub(super) fn silence_max(heartbeat_ms: u32) -> Duration {
        Duration::from_millis(heartbeat_ms as u64).saturating_mul(SILENT_MAX)
    }
}
