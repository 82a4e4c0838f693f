//! Events and effects of a shard: the whole contract between deciding and carrying.

use crate::base::{ConnId, CoreId, DiskDone, DiskError, DiskOp, Lent, OpId, Peer};
use crate::codec::output::Output;
use crate::seam::cluster::{Ask, Fact};
use crate::seam::message::{MeshMessage, MovedSession};
use bytes::Bytes;
use std::sync::Arc;

/// Reason why there is no connection: the system's error, for the log.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct DialError(pub String);

#[derive(Debug)]
pub enum Event<'a> {
    /// A deadline has passed (or may have).
    Tick,
    /// Every event of this turn was given: seal the batches, pack the journal, hand out the bytes for the sockets.
    TurnEnd,
    /// A client connected to this core's listener.
    Opened {
        conn: ConnId,
        peer: Peer,
    },
    /// The same, with the native protocol.
    OpenedNative {
        conn: ConnId,
        peer: Peer,
    },
    /// Another node connected to this core's listener for peers.
    OpenedPeer {
        conn: ConnId,
        peer: Peer,
    },
    /// The answer to [`Effect::Dial`].
    Dialed {
        dial: u64,
        result: Result<ConnId, DialError>,
    },
    /// The coordinator's word.
    Cluster(Fact),
    /// A connection came over from another core: its socket is `conn` here, its unread bytes follow as `Bytes`.
    Adopted {
        conn: ConnId,
        session: Box<MovedSession>,
    },
    /// Bytes arrived. They are valid for this call only.
    Bytes {
        conn: ConnId,
        bytes: &'a [u8],
    },
    /// Memory of an [`Effect::ReceiveInto`] comes back, with some or all of the wanted bytes behind its contents. It comes before any
    /// other bytes of the connection.
    Received {
        conn: ConnId,
        lent: Lent,
    },
    /// The kernel took this many of the bytes that were sent on the connection.
    Sent {
        conn: ConnId,
        bytes: usize,
    },
    /// The other side has closed its half: nothing more comes in. It may wait for answers, most of all where bytes came after the last send
    /// (`unanswered`).
    Ended {
        conn: ConnId,
        unanswered: bool,
    },
    /// The connection is gone; nothing more comes for it.
    Closed {
        conn: ConnId,
    },
    Mesh {
        from: CoreId,
        message: MeshMessage,
    },
    Disk {
        op: OpId,
        outcome: Result<DiskDone, DiskError>,
    },
    /// Finish: answer the commands in flight, close the connections, make all durable, then [`Effect::Stopped`].
    Stop,
}

#[derive(Debug)]
pub enum Effect {
    /// Output of a connection; at most one per connection and turn. The order per connection is kept.
    Send {
        conn: ConnId,
        bytes: Vec<u8>,
    },
    /// `Send` for long payloads: pieces of memory that go to the socket without a copy.
    SendPieces {
        conn: ConnId,
        pieces: Vec<Bytes>,
    },
    /// The next bytes of the connection go into this memory: they are not copied on the way from the socket.
    /// [`Event::Received`] gives it back, unless the connection ends before. One at a time; never on a connection with TLS, nor on
    /// one that moves.
    ReceiveInto {
        conn: ConnId,
        lent: Lent,
    },
    /// Stop, or resume, receiving from a connection. Bytes that were received before still come as `Bytes`.
    PauseReading {
        conn: ConnId,
    },
    ResumeReading {
        conn: ConnId,
    },
    /// Close the connection after all earlier bytes are sent, or cannot be sent for a second. `Event::Closed` follows.
    Close {
        conn: ConnId,
    },
    /// Move the connection to another core: stop receiving, take the receives that still complete, wait for its sends. Then hand over
    /// the socket, the session, and `unread` followed by the bytes received since. No `Closed` follows here.
    Move {
        conn: ConnId,
        to: CoreId,
        session: Box<MovedSession>,
        unread: Vec<u8>,
    },
    Disk {
        op: OpId,
        request: DiskOp,
    },
    /// Connect to another node's listener for peers; [`Event::Dialed`] answers, with the same number. With TLS its certificate
    /// must be for the host of the address, or for the node's name.
    Dial {
        dial: u64,
        address: Arc<str>,
        name: Arc<str>,
    },
    /// Question to the coordinator.
    Ask(Ask),
    /// Pass to another core (or the HTTP thread). Order per pair of cores is kept.
    Pass {
        to: CoreId,
        message: MeshMessage,
    },
    /// The shard cannot go on: an invariant of its files broke. The process stops with this sentence.
    Halt {
        reason: String,
    },
    /// Everything is durable and closed; the answer to [`Event::Stop`].
    Stopped,
}

impl Effect {
    pub fn send(conn: ConnId, output: Output) -> Effect {
        match output {
            Output::Whole(bytes) => Effect::Send { conn, bytes },
            Output::Pieces(pieces) => Effect::SendPieces { conn, pieces },
        }
    }
}

/// Effects in the order in which they are to be carried out.
pub type Effects = Vec<Effect>;
