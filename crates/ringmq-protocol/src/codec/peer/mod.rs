//! The peer protocol: messages between the nodes of a cluster, as frames of [`crate::codec::frame`].
//!
//! `schema/peer.fbs` describes the metadata, docs/peer.md the whole protocol, [`crate::codec::peer::message`] the meaning of the
//! messages. Both directions: [`Encoder`] and [`Frame::decode`]. Batches are never copied into a flatbuffer: the encoder passes on the
//! given pieces, and decoded batches are slices of the payload that was read (except short runs, [`Frame::decode`]).

mod batches;
mod change;
mod cursors;
mod decode;
mod encode;
pub mod error;
pub mod frame;
pub mod fuzz;
#[rustfmt::skip]
#[allow(warnings, clippy::all, clippy::pedantic)]
mod generated;
mod handshake;
pub mod message;
mod refusal;
pub mod relay;
#[cfg(test)]
mod tests;

pub use crate::codec::metadata::Malformed;
pub use encode::Encoder;
pub use frame::{Lanes, SequenceError, Sequences};
pub use generated::ringmq::peer::{Outcome, RejectCode};
pub use handshake::{Agreed, ClusterId, Hello, Layout, Reject, Version};

use crate::codec::frame::{FrameError, Header};
use crate::codec::peer::message::{Body, Lane, Message, Route};
use generated::ringmq::peer as fb;

/// The version of the protocol that this build speaks.
pub const VERSION: Version = Version { major: 1, minor: 0 };

/// Feature bits of this build, of which those that both sides have are in force. Version 1.0 has none.
pub const FEATURES: u64 = 0;

/// Messages of one frame that several share; more are in the next.
pub const ENTRIES_MAX: usize = 512;

/// Bytes of one frame of appends or forwards beyond the first one, so that a frame of the data lane keeps no other waiting.
pub const TURN_BYTES_MAX: usize = crate::codec::peer::message::APPEND_BYTES_MAX;

/// Kinds of frames. Numbers are never used again for something else.
mod kind {
    // of the connection
    pub const HELLO: u8 = 1;
    pub const WELCOME: u8 = 2;
    pub const REJECT: u8 = 3;
    pub const PING: u8 = 4;
    pub const PONG: u8 = 5;
    // from the leader
    pub const INQUIRE: u8 = 16;
    pub const EPOCHS_ASK: u8 = 17;
    pub const PULL: u8 = 18;
    pub const ALIGN: u8 = 19;
    pub const APPENDS: u8 = 20;
    pub const CURSORS: u8 = 21;
    // from the follower
    pub const STANDING: u8 = 32;
    pub const PULLED: u8 = 33;
    pub const ALIGNED: u8 = 34;
    pub const ACKS: u8 = 35;
    pub const CURSORS_ACK: u8 = 36;
    pub const REFUSED: u8 = 37;
    // between any two nodes
    pub const FORWARDS: u8 = 48;
    pub const OUTCOMES: u8 = 49;
    pub const RELAYS: u8 = 50;
    pub const CHANGE: u8 = 51;
    pub const CHANGED: u8 = 52;
}

/// Verifies a frame's payload. True: it is whole batches, and the checksum of each body is as its header says.
pub fn check_payload(header: &Header, payload: &[u8]) -> Result<bool, FrameError> {
    match header.kind {
        kind::APPENDS | kind::PULLED => batches::check(header, payload),
        _ => header.check_payload(payload).map(|()| false),
    }
}

/// A message and the replica that it is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addressed {
    pub route: Route,
    pub message: Message,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    Hello(Hello<'a>),
    Welcome(Hello<'a>),
    Reject(Reject<'a>),
    Ping,
    Pong,
    /// Messages of one kind, in the order in which they were sent.
    Messages(Vec<Addressed>),
}

/// True if such a message travels on this lane.
fn fits(body: &Body, lane: Lane) -> bool {
    match body {
        // the lane of its question, which is any
        Body::Refused(_) => true,
        Body::Append(_) => lane != Lane::Control,
        body => body.lane() == lane,
    }
}
