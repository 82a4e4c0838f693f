//! Hello, Welcome, Reject: the node at the other end, the link of a connection, and its core.

use super::conn::{Conn, Fault, Phase};
use super::links::{Links, Loss};
use super::nodes::{Dial, Link, LinkId, ProcessAge};
use super::{HANDSHAKE_MAX, LinkOptions};
use crate::base::{ConnId, CoreId, NodeId, Now, Peer, Ticks};
use crate::codec::peer::frame::{HELLO_FRAME_MAX, Header};
use crate::codec::peer::{Agreed, FEATURES, Frame, Hello, Lanes, Layout, RejectCode, VERSION};
use bytes::Bytes;

/// State that moves with a connection to another core, beside its bytes, which have the Hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovedGreeting {
    /// Deadline of the handshake.
    pub(super) until: Ticks,
}

/// Fields of a Hello or Welcome that are used later.
#[derive(Clone, Copy, Debug)]
struct Them {
    place: LinkId,
    lanes: Lanes,
    life: ProcessAge,
    cores: u16,
    heartbeat_ms: u32,
}

/// Reason why a connection is refused.
struct Refusal {
    code: RejectCode,
    why: String,
}

fn life_of(greeting: &Hello<'_>) -> ProcessAge {
    ProcessAge { incarnation: greeting.incarnation, generation: greeting.generation }
}

fn refusal(code: RejectCode, why: impl Into<String>) -> Refusal {
    Refusal { code, why: why.into() }
}

/// The records of TLS begin like this, and frames do so once in many thousand.
fn looks_like_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x14..=0x17, 3, ..])
}

const SPEAKS_TLS: &str = "the peer speaks TLS, and this node does not with its peers: set --peer-tls-cert, --peer-tls-key and \
    --peer-tls-ca";

/// Said of a process whose data path has a copy that was registered later, and of one that ended before its successor was registered.
pub(super) const OVERTAKEN: &str = "a later process was registered as this node";

/// Likely reason of a connection that ended before its handshake, for the log.
pub(super) fn ended_early(held: &[u8]) -> &'static str {
    if looks_like_tls(held) { SPEAKS_TLS } else { "the peer closed the connection during the handshake" }
}

/// The other side said Reject.
pub(super) fn rejected(code: RejectCode, message: &str) -> Loss {
    let name = code.variant_name().unwrap_or("Other");
    let why = match code {
        RejectCode::Stopping => "the peer is stopping".to_owned(),
        _ => format!("the peer ended the connection ({name}) and says: {message}"),
    };
    let is_hopeless = matches!(
        code,
        RejectCode::BadVersion | RejectCode::OtherCluster | RejectCode::SameNode | RejectCode::BadLanes | RejectCode::Malformed
    );
    let is_stop = code == RejectCode::Stopping;
    Loss { why, is_hopeless, is_orderly: is_stop, is_stop, may_pass: code == RejectCode::UnknownNode }
}

fn hello(o: &LinkOptions, lanes: Lanes, link: u16) -> Hello<'_> {
    Hello {
        version: VERSION,
        features: FEATURES,
        node_id: o.node,
        cluster_id: o.cluster,
        generation: o.generation,
        node_version: &o.node_version,
        layout: Layout { cores: o.cores, core: o.core.0, placement: Layout::BY_NAME },
        lanes,
        heartbeat_ms: u32::try_from(o.heartbeat.as_millis()).unwrap_or(u32::MAX).max(1),
        link,
        incarnation: o.incarnation,
    }
}

impl Links {
    /// Sends Hello on a connection that this node dialled.
    pub(super) fn say_hello(&mut self, now: Now, conn: ConnId, place: LinkId) {
        let Some(node) = self.nodes.get_mut(&place.node) else { return };
        let (address, until) = (node.address.clone(), now.ticks + HANDSHAKE_MAX);
        let Some(link) = node.links.get_mut(&place.number) else { return };
        link.dial = Dial::Greeting;
        let asked = link.missing();
        let mut c = Conn::new(Peer(address), Phase::Hello { place, asked, until }, now.ticks);
        let Conn { encoder, pieces, .. } = &mut c;
        encoder.hello(pieces, &hello(&self.options, asked, place.number));
        self.add(conn, c);
        self.at_most(until);
    }

    /// Bytes before the handshake is done.
    pub(super) fn greet(&mut self, now: Now, conn: ConnId) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        let held = std::mem::take(&mut c.held);
        let mut seen = c.seen.clone();
        let first = match Header::parse(&held, HELLO_FRAME_MAX) {
            Err(e) => Err(Fault::Frame(e)),
            Ok(Some((header, metadata))) if held.len() >= header.frame_len() => {
                let payload = Bytes::copy_from_slice(&held[header.frame_len() - header.payload_len..header.frame_len()]);
                let checked = header.check_payload(&payload).map_err(Fault::Frame);
                let checked = checked.and_then(|()| seen.check(&header).map_err(Fault::Sequence));
                let frame = Frame::decode(&header, metadata, &payload).map_err(Fault::Malformed);
                checked.and(frame.map(|frame| (frame, header.frame_len())))
            }
            Ok(_) => {
                c.held = held;
                return;
            }
        };
        let (frame, len) = match first {
            Ok(first) => first,
            Err(fault) => {
                let is_tls = looks_like_tls(&held) && matches!(fault, Fault::Frame(_));
                let why = if is_tls { SPEAKS_TLS.to_owned() } else { fault.to_string() };
                return self.refuse(now, conn, None, &refusal(fault.code(), why));
            }
        };
        let phase = c.phase;
        c.seen = seen;
        match (frame, phase) {
            (Frame::Hello(hello), Phase::Stranger { .. }) => match self.judge(&hello, conn) {
                Ok((_, to)) if to != self.options.core => {
                    if let Some(c) = self.conns.get_mut(&conn) {
                        c.phase = Phase::Leaving { to };
                        c.held = held;
                        self.touch(conn);
                    }
                }
                Ok((them, _)) => self.welcome(now, conn, them, hello.node_version, &held[len..]),
                Err(refusal) => self.refuse(now, conn, Some(&hello), &refusal),
            },
            (Frame::Welcome(welcome), Phase::Hello { place, asked, .. }) => match self.accept(&welcome, place, asked) {
                Ok(them) => {
                    self.open(now, conn, them);
                    self.whole(now, them.place, welcome.node_version);
                    self.read(now, conn, &held[len..]);
                }
                Err(refusal) => self.refuse(now, conn, Some(&welcome), &refusal),
            },
            (Frame::Reject(reject), Phase::Hello { place, .. }) => self.down(now, place, &rejected(reject.code, reject.message)),
            (_, Phase::Stranger { .. }) => {
                self.refuse(now, conn, None, &refusal(RejectCode::Malformed, "the first frame must be Hello"));
            }
            _ => {
                self.refuse(now, conn, None, &refusal(RejectCode::Malformed, "the answer to Hello is Welcome or Reject"));
            }
        }
    }

    /// Checks the fields that Hello and Welcome share.
    fn common(&self, theirs: &Hello<'_>, lanes: Lanes) -> Result<Agreed, Refusal> {
        let mine = hello(&self.options, lanes, theirs.link);
        mine.agree(theirs).map_err(|code| {
            let why = match code {
                RejectCode::BadVersion => {
                    let (theirs, mine) = (theirs.version, mine.version);
                    format!(
                        "the peer speaks version {}.{} of the peer protocol, this node {}.{}",
                        theirs.major, theirs.minor, mine.major, mine.minor
                    )
                }
                RejectCode::OtherCluster => "the peer belongs to another cluster (cluster_id)".to_owned(),
                RejectCode::SameNode => {
                    "the peer has the id of this node: an address leads back here, or a data path was copied".to_owned()
                }
                RejectCode::BadLanes => "the peer has none of the lanes".to_owned(),
                _ => "the peer's layout or heartbeat is out of bounds".to_owned(),
            };
            refusal(code, why)
        })
    }

    /// A Hello, and the core that its connection is for.
    fn judge(&self, theirs: &Hello<'_>, conn: ConnId) -> Result<(Them, CoreId), Refusal> {
        let Agreed { lanes, .. } = self.common(theirs, Lanes::ALL)?;
        if self.is_stopping {
            return Err(refusal(RejectCode::Stopping, "this node is stopping"));
        }
        let id = theirs.node_id;
        let Some(node) = self.nodes.get(&id) else {
            return Err(refusal(RejectCode::UnknownNode, format!("node {id} is not known to the metadata here (yet)")));
        };
        if node.is_dialled {
            return Err(refusal(RejectCode::Other, "the node with the lower id must connect"));
        }
        let (own, other) = (self.options.cores, theirs.layout.cores);
        let number = theirs.link;
        if number >= own.max(other) {
            return Err(refusal(RejectCode::Malformed, format!("there is no link {number} with {own} and {other} cores")));
        }
        let life = self.check_life(id, theirs)?;
        let to = CoreId(number % own);
        if to != self.options.core && self.conns.get(&conn).is_some_and(|c| c.has_moved) {
            return Err(refusal(RejectCode::Malformed, "the connection has moved already"));
        }
        let place = LinkId { node: id, number };
        let them = Them { place, lanes, life, cores: other, heartbeat_ms: theirs.heartbeat_ms };
        Ok((them, to))
    }

    /// Refuses a process of the node that a later one replaced. Its confirmations would count as the later process's.
    fn check_life(&self, id: NodeId, theirs: &Hello<'_>) -> Result<ProcessAge, Refusal> {
        let (life, node) = (life_of(theirs), self.nodes.get(&id));
        if node.is_some_and(|node| node.incarnation > life.incarnation) {
            return Err(refusal(RejectCode::Other, OVERTAKEN));
        }
        if node.and_then(|node| node.life()).is_some_and(|newest| newest > life) {
            return Err(refusal(RejectCode::Other, "a later process of this node is connected"));
        }
        Ok(life)
    }

    /// Answers Hello with Welcome. An older connection for the same is dead, whatever its state is here.
    fn welcome(&mut self, now: Now, conn: ConnId, them: Them, version: &str, rest: &[u8]) {
        self.outlive(now, them);
        let has = self.link(them.place).map_or(Lanes(0), Link::lanes);
        if has.0 & them.lanes.0 != 0 {
            self.down(now, them.place, &Loss::of("the peer connected anew"));
        }
        let Some(Conn { encoder, pieces, .. }) = self.conns.get_mut(&conn) else { return };
        encoder.welcome(pieces, &hello(&self.options, them.lanes, them.place.number));
        self.touch(conn);
        self.open(now, conn, them);
        self.whole(now, them.place, version);
        self.read(now, conn, rest);
    }

    /// A Welcome, from the node that was dialled.
    fn accept(&self, welcome: &Hello<'_>, place: LinkId, asked: Lanes) -> Result<Them, Refusal> {
        let Agreed { lanes, .. } = self.common(welcome, asked)?;
        if welcome.node_id != place.node {
            let why =
                format!("node {} answers at the peer_address of node {}: correct that address", welcome.node_id, place.node);
            return Err(refusal(RejectCode::Other, why));
        }
        let life = self.check_life(place.node, welcome)?;
        Ok(Them { place, lanes, life, cores: welcome.layout.cores, heartbeat_ms: welcome.heartbeat_ms })
    }

    /// Links of an older life of the node are dead.
    fn outlive(&mut self, now: Now, them: Them) {
        let node = self.nodes.get(&them.place.node);
        let is_old = |link: &Link| link.lanes().0 != 0 && link.life < them.life;
        let old = node.into_iter().flat_map(|node| node.links.iter()).filter(|(_, link)| is_old(link));
        for number in old.map(|(number, _)| *number).collect::<Vec<_>>() {
            let place = LinkId { node: them.place.node, number };
            self.down(now, place, &Loss::of("the peer has started anew"));
        }
    }

    /// The handshake of a connection is done.
    fn open(&mut self, now: Now, conn: ConnId, them: Them) {
        self.outlive(now, them);
        let Some(node) = self.nodes.get_mut(&them.place.node) else { return };
        node.incarnation = node.incarnation.max(them.life.incarnation);
        if node.cores.replace(them.cores) != Some(them.cores) {
            self.arrange(now, them.place.node);
        }
        let Some(link) = self.link_mut(them.place) else { return self.end(conn) };
        link.life = them.life;
        link.carry(them.lanes, conn);
        let silence_max = Links::silence_max(them.heartbeat_ms);
        let heartbeat = self.options.heartbeat;
        if let Some(c) = self.conns.get_mut(&conn) {
            c.phase = Phase::Open { place: them.place, lanes: them.lanes, silence_max };
            (c.heard_at, c.said_at) = (now.ticks, now.ticks);
        }
        self.at_most(now.ticks + heartbeat.min(silence_max));
    }

    /// Reports the link as up, or dials for its missing connection.
    fn whole(&mut self, now: Now, place: LinkId, version: &str) {
        let is_dialled = self.nodes.get(&place.node).is_some_and(|node| node.is_dialled);
        let Some(link) = self.link_mut(place) else { return };
        if link.is_whole() {
            self.said.welcomed(place.node);
            self.up(now, place, version);
        } else if is_dialled {
            link.dial = Dial::Wait { until: now.ticks };
            self.at_most(now.ticks);
        }
    }

    /// Says Reject, and why to the log.
    fn refuse(&mut self, now: Now, conn: ConnId, them: Option<&Hello<'_>>, refusal: &Refusal) {
        let Refusal { code, why } = refusal;
        let Some(c) = self.conns.get(&conn) else { return };
        let (peer, phase) = (c.peer.clone(), c.phase);
        self.reject(conn, *code, why);
        match (phase, them) {
            (Phase::Hello { place, .. }, _) => {
                self.down(now, place, &Loss { is_hopeless: true, ..Loss::of(format!("this node refuses the peer: {why}")) });
            }
            (_, Some(them)) => {
                let id = them.node_id;
                let name = self.nodes.get(&id).map_or_else(|| id.to_string(), |node| node.name.to_string());
                self.said.refused((self.options.core.0, &peer), (id, &name), *code, why);
            }
            (_, None) => {
                self.said.stranger(now.ticks, &peer, why);
                self.at_most_of_said();
            }
        }
    }
}
