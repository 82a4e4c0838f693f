//! Moves socket bytes of one core on the core's own ring ([`crate::ring`]), inside a glommio executor.
//!
//! glommio's own streams cost two to three times as much per request (docs/decisions/wake.md has the figures). [`Net`] owns the core's
//! listeners, its client sockets, the shared receive buffers and the bytes that wait to be sent. It lives on the executor's thread and
//! does not know the bytes' meaning. It never blocks, and it never drops bytes of a connection that lives.
//!
//! The core's loop owns the ring and shares it with its files. [`Net`] submits for both, and takes the completions of sockets. So a
//! core's loop is (src/runtime/turn.rs has it in full):
//!
//! ```text
//! loop {
//!     net.poll(each);  port.drain(each);  disk.take_completed(ring);  ...decide, net.send(...), port.send(...)...;  port.flush();
//!     net.set_deadline(next);
//!     if net.submit()? { continue }              // something waits already; let the reactor run now and then
//!     if nothing is under way in glommio { net.park(...)? }
//!     else { if !net.try_sleep()? { net.wake_fd().signal() }  bell.wait().await }   // a task loops: waiter.wait().await, bell.ring()
//! }
//! ```
//!
//! **Awaiting the bell, without `try_sleep` having returned true and without `signal`, may sleep for ever**: the kernel
//! is told to be quiet while the core is awake.
//!
//! | file | its concept |
//! |---|---|
//! | engine | [`Net`]: commands in, completions out |
//! | conn | one connection's state, and ids that are never reused |
//! | pieces | sends from the caller's own pieces of memory |
//! | placed | receives to a payload's final place |
//! | buffers, memory | receive buffers that the kernel picks from |
//! | timer | one timeout operation for all deadlines |
//! | listen | listening and dialling sockets, socket options |
//! | holder | the owner of an address that is in use |
//! | reserve | an address that is this process's alone before it listens |

mod buffers;
mod conn;
mod engine;
mod holder;
mod listen;
mod memory;
mod pieces;
mod placed;
mod reserve;
mod timer;

pub use engine::Net;
pub use holder::Holder;
pub use listen::{keep_alive, listen};
pub use reserve::Reserved;

use crate::base::{ConnId, CoreId, Lent, Peer};
use crate::ring::{Ring, SharedRing, WakeFd};
use crate::seam::message::MovedSession;
use std::io;
use std::os::fd::OwnedFd;

/// Memory of one core's net: `buffers * buffer_bytes` for receiving, shared by all connections and touched only as far as it is used,
/// plus about 250 bytes per idle connection, plus the bytes that wait to be sent.
#[derive(Clone, Copy, Debug)]
pub struct NetOptions {
    /// Receive buffers, a power of two, at most 32,768. How many completions with bytes one turn can have.
    pub buffers: u16,
    /// Bytes of one receive buffer.
    pub buffer_bytes: u32,
    /// Submission entries, a power of two; completions have four times as many. More work than that is not refused, it
    /// costs more system calls.
    pub ring_entries: u32,
}

impl Default for NetOptions {
    /// 8 MiB of receive buffers per core.
    fn default() -> Self {
        NetOptions { buffers: 512, buffer_bytes: 16 * 1024, ring_entries: 1024 }
    }
}

impl NetOptions {
    /// Ring of a core, for its sockets and files. Call on the thread that will use it.
    pub fn ring(&self, wake: &WakeFd) -> Result<SharedRing, NetError> {
        if !self.ring_entries.is_power_of_two() || self.ring_entries > 1 << 14 {
            return Err(NetError::Options("the number of ring entries must be a power of two up to 16,384"));
        }
        let ring = Ring::new(self.ring_entries, wake).map_err(|cause| NetError::Ring { step: "io_uring_setup", cause })?;
        Ok(ring.shared())
    }
}

/// An event on the sockets.
#[derive(Debug)]
pub enum NetEvent<'a> {
    /// A client connected to the listener at this place.
    Opened { conn: ConnId, peer: Peer, listener: usize },
    /// The answer to [`Net::dial`]; an error names the address.
    Dialed { dial: u64, result: Result<(ConnId, Peer), String> },
    /// Bytes arrived, in order. They are valid for this call only.
    Bytes { conn: ConnId, bytes: &'a [u8] },
    /// The answer to [`Net::receive_into`]: some or all of the bytes that were wanted, before those of any `Bytes`.
    Received { conn: ConnId, lent: Lent },
    /// The kernel took this many of the sent bytes.
    Sent { conn: ConnId, bytes: usize },
    /// The other side has closed its half: no bytes follow. `unanswered`: bytes came after the last send. If the owner does not close
    /// the connection, `Closed` comes a moment later.
    Ended { conn: ConnId, unanswered: bool },
    /// The connection is over; nothing more comes for it.
    Closed { conn: ConnId },
    /// A connection is ready to go to another core. `unread` also has the bytes received meanwhile. No further event follows.
    Moved { conn: ConnId, fd: OwnedFd, to: CoreId, session: Box<MovedSession>, unread: Vec<u8> },
}

/// Reason why a core cannot open its sockets.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("{address} is not an address to listen on ({cause}): give host:port, for example 0.0.0.0:4150")]
    Address { address: String, cause: io::Error },
    #[error("{address} is in use: {holder}; stop it or choose another address")]
    InUse { address: String, holder: Holder },
    #[error("listening on {address} is not permitted: use a port of 1024 or more, or give the process CAP_NET_BIND_SERVICE")]
    Forbidden { address: String },
    #[error("{address} is not an address of this machine: see `ip address`")]
    NotHere { address: String },
    #[error("cannot listen on {address}: {cause}")]
    Listen { address: String, cause: io::Error },
    #[error(
        "cannot set up the io_uring ring for sockets ({step}: {cause}): Linux 6.1 or later, io_uring permitted \
         (sysctl kernel.io_uring_disabled, the container's seccomp profile) and enough locked memory (ulimit -l) are needed"
    )]
    Ring { step: &'static str, cause: io::Error },
    #[error("{0}")]
    Options(&'static str),
}
