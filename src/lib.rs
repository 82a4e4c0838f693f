//! RingMQ: a message queue storage node for Linux.
//!
//! The modules here carry: files, sockets, threads. `ringmq-core` decides. docs/architecture.md has the table of modules that
//! tests/tidy.rs enforces.

pub mod coordinator;
pub mod discovery;
pub mod disk;
pub mod doctor;
pub mod etcd;
pub mod http;
pub mod inspect;
pub mod load;
pub mod mesh;
pub mod net;
pub mod operator;
pub mod ring;
pub mod runtime;
pub mod tls;

pub use ringmq_client as client;
pub use ringmq_core::{
    agent, channel, config, controller, journal, log, metadata, metrics, peer, replica, seam, session, shard, transport,
};
pub use ringmq_protocol::{base, codec, format};
