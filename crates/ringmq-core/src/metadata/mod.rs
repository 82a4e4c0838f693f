//! The metadata of a cluster in a store: its keys, their values, and the meaning of a change for a node.
//!
//! Pure: requests to the store and its answers are data. An IO module speaks with the store (etcd).
//!
//! # The keys
//! All stand below `/ringmq/<cluster>/`. Values are JSON with a format version.
//!
//! | key | lease | content |
//! |---|---|---|
//! | `id` | no | 128 random bits, made once; every write compares it |
//! | `node/<node id>` | yes | the process; its create_revision names the *session* |
//! | `member/<node id>` | no | name, addresses, zone, capacity, version. It stays when the lease ends |
//! | `drain/<node id>` | no | an operator takes the node out of use |
//! | `load/<node id>` | yes | KiB/s published to the partitions that the node leads, and the busiest of them |
//! | `ctl` | yes | the controller; its create_revision is the *term* |
//! | `topic/<name>` | no | topic id, partitions, replicas, min_isr, retention, ordered |
//! | `part/<topic id>/<0000>` | no | epoch, leader, replicas, ISR, `wanted`, `former`, `leaving`, `removals`, `given_up`, tag |
//! | `gone/<topic id>` | no | tombstone: only this deletes a topic |
//!
//! # What holds it together
//! - A partition's leader is a node *in a session*. Only that session gives it up, until the session's key is gone. If its process seems
//!   to have ended, another node may lead, but delivers nothing until that key is gone (`former`). So the holder of the session's lease
//!   may deliver for its partitions, and a node that returns in another session leads nothing.
//! - A missing key means nothing. A topic is deleted when its tombstone is seen.
//! - A store that was wiped, or went back, is refused ([`view::ViewError`]).

pub mod facts;
#[cfg(any(test, feature = "sim"))]
pub mod fixture;
pub mod keys;
pub mod lookup;
pub mod record;
pub mod request;
pub mod summary;
pub mod view;
