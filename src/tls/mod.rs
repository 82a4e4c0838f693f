//! TLS of the native port and between nodes, by rustls: keys and records of each connection, between its socket and its session;
//! and the files of all TLS of the node, that of NSQ clients included, whose connections crates/ringmq-core/src/transport carries.
//!
//! Owns the certificates in memory and every connection's keys. Touches no socket: the runtime gives it received bytes and sends its
//! output, so that a session sees plaintext only and knows nothing of TLS. Handshakes run on the connection's core.
//!
//! ```text
//!   net ── ciphertext ──> Links::received ──> Event::Bytes        Event::Sent <── Links::sent <── taken ── net
//!   net <── ciphertext ── Links::seal <── Effect::Send            net <── Links::wires: handshake, alerts, closing
//! ```
//!
//! Between nodes each side shows a certificate that the other's CA has signed. One that dials is told of its connection when the
//! keys are there.
//!
//! | file | its concept |
//! |---|---|
//! | files | the settings' PEM files, checked before the node starts |
//! | pem | the content of PEM files, for clients too |
//! | links | all of a core's connections, and how one moves |
//! | names | for which names a node's certificate may be |
//! | shown | a client that must show any certificate |
//! | said | faults of other nodes that the log has already |

mod files;
mod links;
mod names;
mod reported;
mod shown;
#[cfg(test)]
pub(crate) mod tests;

pub use files::{
    Flags, NATIVE, NSQ, PEER, PeerTerms, Terms, TlsError, doubt_of_own, etcd_client, https_client, nsq_terms, reread_nsq,
};
pub use links::{Dialed, Links, Port, Wire};
pub use ringmq_protocol::pem::{self, PemError};
