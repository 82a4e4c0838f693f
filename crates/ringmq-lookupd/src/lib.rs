//! Discovery for NSQ clients: a stand-in for nsqlookupd 1.3.0, its TCP protocol, its HTTP API and its flags.
//!
//! Nodes tell it over TCP which topics and channels they have; consumers and tools ask it over HTTP which nodes have a topic. It keeps
//! everything in memory: a node that connects anew tells everything again.
//!
//! Pure (no socket, no clock, no `async`): [`registry`] knows the nodes of each topic and channel, [`session`] walks one connection
//! through the TCP protocol, [`routes`] answers a request. IO: [`daemon`] runs `tcp` and `http` around them on one thread of tokio.
//! [`options`] reads flags and file. Nothing that a client sends makes the process grow without bound: connections, lines, bodies and
//! the registry have limits.

pub mod daemon;
mod go;
pub mod http;
pub mod options;
pub mod registry;
pub mod routes;
pub mod session;
mod tcp;

/// The version of nsqd and nsqlookupd that is stood in for. Tools parse it as a semantic version and compare it among nodes.
pub const NSQ_VERSION: &str = "1.3.0";

/// Identity of the daemon, in its answer to IDENTIFY and in /info.
#[derive(Clone, Debug)]
pub struct About {
    pub hostname: String,
    pub broadcast_address: String,
    pub tcp_port: u16,
    pub http_port: u16,
}
