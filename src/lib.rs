//! RingMQ: a message queue storage node for Linux.
//!
//! Pure rooms decide, IO rooms carry; docs/architecture.md has the table of rooms that tests/tidy.rs enforces.

pub mod base;
pub mod channel;
pub mod client;
pub mod codec;
pub mod config;
pub mod coordinator;
pub mod discovery;
pub mod disk;
pub mod doctor;
pub mod format;
pub mod http;
pub mod inspect;
pub mod journal;
pub mod load;
pub mod log;
pub mod mesh;
pub mod metrics;
pub mod net;
pub mod peer;
pub mod replica;
pub mod ring;
pub mod runtime;
pub mod seam;
pub mod session;
pub mod shard;
pub mod sim;
pub mod tls;
pub mod transport;
