//! The other nodes of the cluster, as one core sees them: their links, and when to dial.

use super::{PAUSE_MAX, PAUSE_MIN};
use crate::base::NodeId;
use crate::base::{ConnId, Rng, Ticks};
use crate::codec::peer::Lanes;
use crate::codec::peer::message::{Lane, Route};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A link of a core.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LinkId {
    pub node: NodeId,
    /// Number of the link among those of the two nodes.
    pub number: u16,
}

/// A process of a node, by its age: those that a metadata store registered by the order in which it did so, others by their startups.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct ProcessAge {
    pub incarnation: u64,
    pub generation: u64,
}

/// Dial state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dial {
    /// The other side dials, or all lanes are there.
    Off,
    Wait {
        until: Ticks,
    },
    Dialing,
    /// Connected; the handshake is not done.
    Greeting,
}

#[derive(Debug)]
pub(super) struct Link {
    /// Connection of each lane, in the order of their numbers on the wire.
    conns: [Option<ConnId>; 3],
    /// Process of the other node that the connections belong to.
    pub life: ProcessAge,
    pub dial: Dial,
    /// Attempts since it was last up for a while.
    attempts: u32,
    pub up_since: Option<Ticks>,
}

const LANES: [Lane; 3] = [Lane::Control, Lane::Data, Lane::CatchUp];

impl Link {
    pub fn new(dial: Dial) -> Link {
        Link { conns: [None; 3], life: ProcessAge::default(), dial, attempts: 0, up_since: None }
    }

    pub fn is_whole(&self) -> bool {
        self.conns.iter().all(Option::is_some)
    }

    pub fn is_up(&self) -> bool {
        self.up_since.is_some()
    }

    pub fn conn(&self, lane: Lane) -> Option<ConnId> {
        LANES.iter().zip(self.conns).find_map(|(l, conn)| conn.filter(|_| *l == lane))
    }

    /// Connections of the link, each once.
    pub fn conns(&self) -> Vec<ConnId> {
        let mut conns: Vec<ConnId> = self.conns.into_iter().flatten().collect();
        conns.dedup();
        conns
    }

    /// Lanes that have a connection.
    pub fn lanes(&self) -> Lanes {
        let has = LANES.iter().zip(self.conns).filter(|(_, conn)| conn.is_some());
        Lanes(has.fold(0, |lanes, (lane, _)| lanes | Lanes::of(*lane).0))
    }

    pub fn carry(&mut self, lanes: Lanes, conn: ConnId) {
        for (lane, place) in LANES.iter().zip(&mut self.conns) {
            if lanes.has(*lane) {
                *place = Some(conn);
            }
        }
    }

    /// Lets go of all connections.
    pub fn clear(&mut self) -> Vec<ConnId> {
        let conns = self.conns();
        self.conns = [None; 3];
        self.up_since = None;
        conns
    }

    /// Lanes to dial for: control and data first, on a connection of their own.
    pub fn missing(&self) -> Lanes {
        const FIRST: u8 = 0b011;
        let missing = Lanes::ALL.0 & !self.lanes().0;
        Lanes(if missing & FIRST != 0 { missing & FIRST } else { missing })
    }

    /// The pause before the next attempt; the first one after a while comes at once, or nearly.
    pub fn pause(&mut self, rng: &mut Rng, is_hopeless: bool) -> Duration {
        let most = match is_hopeless {
            true => PAUSE_MAX,
            false => PAUSE_MAX.min(PAUSE_MIN.saturating_mul(1 << self.attempts.min(16))),
        };
        self.attempts = self.attempts.saturating_add(1);
        let nanos = most.as_nanos() as u64;
        Duration::from_nanos(nanos - rng.below(nanos / 2))
    }

    /// Attempts since the link was last up for long.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Records that the link was up long enough.
    pub fn is_steady(&mut self) {
        self.attempts = 0;
    }
}

#[derive(Debug)]
pub(super) struct Node {
    pub name: Arc<str>,
    pub address: Arc<str>,
    /// True if this node dials the link.
    pub is_dialled: bool,
    /// Cores of the node, once a handshake told them.
    pub cores: Option<u16>,
    /// Highest incarnation of the node that the metadata or a handshake told. Earlier ones are refused.
    pub incarnation: u64,
    pub links: BTreeMap<u16, Link>,
    pub is_connected: bool,
    /// The last thing that the log said of failures.
    pub said: Option<String>,
}

impl Node {
    pub fn is_whole(&self) -> bool {
        self.cores.is_some() && !self.links.is_empty() && self.links.values().all(Link::is_up)
    }

    /// The newest of its lives that has a connection.
    pub fn life(&self) -> Option<ProcessAge> {
        self.links.values().filter(|link| link.lanes().0 != 0).map(|link| link.life).max()
    }

    /// The link for messages to this replica: always the same one.
    pub fn link_for(&self, route: Route) -> Option<&Link> {
        let (high, low) = route.topic_id.0.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().fold(0u64, |n, b| n << 8 | *b as u64);
        let number = (half(high) ^ half(low)).wrapping_add(route.partition.0 as u64) % (self.links.len().max(1) as u64);
        self.links.values().nth(number as usize)
    }
}

/// The numbers of the links that a core has, when the two nodes have so many cores.
pub(super) fn numbers(core: u16, cores: u16, theirs: Option<u16>) -> impl Iterator<Item = u16> {
    let most = theirs.unwrap_or(cores).max(cores);
    (core..most).step_by(cores as usize)
}
