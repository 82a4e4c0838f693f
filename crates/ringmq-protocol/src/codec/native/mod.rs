//! The native client protocol: frames ([`frame`]), requests of clients ([`Request`]) and answers of nodes ([`Reply`]).
//!
//! `schema/native.fbs` describes the metadata, docs/native.md the whole protocol. Only this module sees flatbuffers: here a table
//! becomes a struct that borrows from the frame, after its required fields and numbers were checked. The same code serves both ends.

pub mod frame;
#[rustfmt::skip]
#[allow(warnings, clippy::all, clippy::pedantic)]
mod generated;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use crate::codec::metadata::Malformed;
pub use frame::{FrameError, HEADER_LEN, Header, Payload};
pub use generated::ringmq::native::{Code, Retry};
pub use reply::{Found, Messages, NativeError, NodeInfo, PartitionInfo, Reply, Subscribed, TopicInfo, Topics, Welcome};
pub use request::kind::PUBLISH;
pub use request::{Hello, IdRange, Publish, Request, SetOffset, Start, Subscribe};

use generated::ringmq::native as fb;

/// The version of the protocol that this build speaks, and the oldest that it still does.
pub const VERSION: u16 = 1;
pub const OLDEST_VERSION: u16 = 1;

/// Bits of `features` that this build has. Bits that both sides name are in force. None is defined yet.
pub const FEATURES: u64 = 0;

/// Ranges in one Finish, Requeue or Touch at most: as many as fit into the longest metadata beside its other fields.
pub const RANGES_MAX: usize = 4000;

/// Names in one GetTopics.
pub const TOPICS_MAX: usize = 500;

/// Encodes frames; keeps its buffer. One per connection.
#[derive(Default)]
pub struct Encoder {
    builder: flatbuffers::FlatBufferBuilder<'static>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encoder")
    }
}
