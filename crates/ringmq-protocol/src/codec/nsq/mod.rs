//! The NSQ V2 protocol: bytes to commands, replies to bytes. Owns the wire form and nsqd's error codes and texts. Knows no connection
//! and no clock; each call brings the state that it needs.
//!
//! ```text
//! client:  "  V2"  then commands:  NAME params \n  [size u32 be, body]
//! server:  frames: size u32 be (bytes behind it), type u32 be (0 response, 1 error, 2 message), data
//! ```
//! Facts are from nsqd 1.3.0's protocol (clients compare its texts).

pub mod bodies;
pub mod command;
pub mod error;
pub mod frame;
pub mod identify;
pub mod layers;
pub mod limits;
pub mod request;
pub mod unfinished;

pub use bodies::{Bodies, MpubBodies};
pub use error::ClientError;
pub use limits::Limits;

/// First bytes of a client.
pub const MAGIC: &[u8; 4] = b"  V2";

/// The release of nsqd whose behaviour this protocol has. Clients compare it as a semantic version.
pub const NSQ_VERSION: &str = "1.3.0";

/// A command line, its newline included: nsqd's read buffer. A longer one closes the connection without a word.
pub const LINE_LEN_MAX: usize = 16 * 1024;

pub const OK: &[u8] = b"OK";
pub const CLOSE_WAIT: &[u8] = b"CLOSE_WAIT";
pub const HEARTBEAT: &[u8] = b"_heartbeat_";
