//! Walks one connection of the native protocol through its states. Pure; docs/native.md has the rules.
//!
//! Owns the received part of an incomplete frame, the request that waits for room, and the unsent output. The shard owns the
//! connection's subscriptions and publishes, and answers by request id: replies need no order.
//!
//! ```text
//! new ─ Hello ─> (moves to another core) ─ Welcome ─> open ─ fatal error, silence ─> ended: the error goes out, then is_closing()
//! ```

pub mod fuzz;
mod host;
mod machine;
#[cfg(test)]
mod tests;

pub use host::{
    Failure, NativeAnswer, NativeFinished, NativeHost, NativePublish, NativeSetOffset, NativeSubscribe, NativeTaken,
    PartitionPlace, TopicEntry,
};
pub use machine::{ClientIdentity, NativeCarried, NativeSession, NodeFacts};

/// Room in front of a payload: a batch's header.
pub const ROOM: usize = crate::seam::message::BATCH_ROOM;
