//! Connections between the nodes of a cluster: dialling, the handshake, heartbeats, and the frames of each turn. Pure: the shard gives
//! it the events of the sockets and carries out its effects; docs/peer.md has the rules of the wire.
//!
//! A [`Links`] lives on each core. **A link** joins a core of this node with a core of another. Link `k` of two nodes lives on core
//! `k mod cores` of each, for `k` below the larger number of cores, so that every core has one, and with equal numbers core `i`
//! talks to core `i`. A link has a connection for the lanes control and data, and one for catch-up, so that catch-up never
//! delays a commit. The node with the lower id dials.
//!
//! ```text
//!   dialler   Wait ─ its time ─> Dialing ─ Dialed ─> Hello sent ─ Welcome ─> open ─ lanes are missing ─> Wait (for the other one)
//!              ^                     │ refused            │ Reject, silence    │ all lanes are there
//!              └──── a pause ────────┴────────────────────┴──────────┐         v
//!   acceptor  opened ─ Hello ─> (moves to its core) ─ Welcome ─> open ──────> link up ─ either connection is lost ─> both closed
//! ```
//! A node is **connected**, for this core, while all links of this core to it are up. Messages at other times are dropped:
//! [`LinkEvent::Connected`] begins new sessions of the replicas. A partition's messages always take the same link of the core.
//!
//! | file | its concept |
//! |---|---|
//! | links | events and effects: the whole interface |
//! | nodes | the other nodes, their links, and when to dial |
//! | greet | Hello, Welcome, Reject |
//! | conn | one connection: frames in, queues and frames out |
//! | said | lines for the log, without floods |

mod conn;
pub mod fuzz;
mod greet;
mod link_log;
mod links;
mod nodes;
#[cfg(test)]
mod tests;

pub use greet::MovedGreeting;
pub use links::Links;

use crate::base::CoreId;
use crate::base::NodeId;
use crate::codec::peer::{Addressed, ClusterId};
use std::sync::Arc;
use std::time::Duration;

/// Interval in which something is sent at least, if only a Ping.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// Heartbeats of silence after which a connection is given up.
const SILENT_MAX: u32 = 2;

/// Time from a connection to the end of its handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Pauses between attempts double from `PAUSE_MIN` to `PAUSE_MAX`, minus a random part of at most half.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Connections without a Hello at most; further ones are closed.
const STRANGERS_MAX: usize = 256;

/// Bytes of the data lane that the socket has and did not take: so much stands in front of a control frame.
pub const DATA_UNSENT_MAX: usize = 1024 * 1024;

/// Bytes of messages for clients of another node that wait for a link: with more, these clients count as full.
pub const RELAYED_MAX: usize = if cfg!(test) { 32 * 1024 } else { 1024 * 1024 };

#[derive(Clone, Debug)]
pub struct LinkOptions {
    pub node: NodeId,
    pub cluster: ClusterId,
    /// Generation of the node: rises durably with each startup.
    pub generation: u64,
    /// Incarnation of this process, once the metadata says it. 0 without a store.
    pub incarnation: u64,
    pub core: CoreId,
    pub cores: u16,
    pub heartbeat: Duration,
    /// Version of the program, for logs.
    pub node_version: Arc<str>,
    /// Seed of the pauses between attempts.
    pub seed: u64,
    /// Bytes of catch-up that a socket has and did not take, above which none follow.
    pub catch_up_unsent_max: usize,
    /// Missing bytes, 1 or more, from which on a payload's memory is lent to the receiver ([`crate::seam::event::Effect::ReceiveInto`]).
    /// `None` with TLS.
    pub lend_min: Option<usize>,
    /// Bytes of messages that wait for a socket, above which its connection is closed. The machines have fewer in flight.
    pub queue_bytes_max: usize,
}

impl LinkOptions {
    /// Options with the usual bounds.
    pub fn new(node: NodeId, cluster: ClusterId, generation: u64, core: CoreId, cores: u16, seed: u64) -> LinkOptions {
        LinkOptions {
            node,
            cluster,
            generation,
            incarnation: 0,
            core,
            cores,
            heartbeat: HEARTBEAT,
            node_version: env!("CARGO_PKG_VERSION").into(),
            seed,
            catch_up_unsent_max: 1024 * 1024,
            lend_min: Some(64 * 1024),
            queue_bytes_max: 512 * 1024 * 1024,
        }
    }
}

/// Event of a core's links for its replicas, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are messages: a box would be an allocation for each")]
pub enum LinkEvent {
    Connected(NodeId),
    /// The link ended: messages under way in either direction may be lost.
    Disconnected(NodeId),
    /// The node ended the link because its process stops. Comes after [`LinkEvent::Disconnected`].
    Stopping(NodeId),
    Message {
        from: NodeId,
        addressed: Addressed,
    },
}
