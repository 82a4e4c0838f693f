//! Decisions of a RingMQ node: the storage engine, replicas, channels, sessions and the shard that owns them.
//!
//! Pure: no file, socket, thread, clock or random source, and nothing is async. This package depends on no crate that does IO, so the
//! compiler holds it to that; docs/architecture.md has the table of modules that tests/tidy.rs enforces.
//!
//! The feature `sim` adds the simulated disk, node and cluster that run this code in one thread from one seed.

pub mod agent;
pub mod channel;
pub mod config;
pub mod controller;
pub mod journal;
pub mod log;
pub mod metadata;
pub mod metrics;
pub mod peer;
pub mod replica;
pub mod seam;
pub mod session;
pub mod shard;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod transport;

pub use ringmq_protocol::{base, codec, format};
