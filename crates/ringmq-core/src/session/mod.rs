//! Walks one client connection through its protocol states and limits. Pure.
//!
//! Owns the connection's unparsed bytes (at most one command, more only while it is stalled), its queue of replies and its unsent
//! output. Lives on the connection's core. Never blocks, never reads a clock, never touches a socket: the caller gives bytes and times,
//! and the session acts through its [`Host`].
//!
//! ```text
//! magic -> Init --SUB--> Subscribed --CLS--> Closing
//!            \______________|___________________|--- fatal error, timeout --> ended: input is ignored,
//!                                                    earlier replies and the error go out, then is_closing()
//! ```

pub mod fuzz;
mod host;
mod limits;
mod machine;
pub mod native;
mod published;
mod replies;
#[cfg(test)]
mod tests;

pub use crate::codec::nsq::command::ConnectionState;
pub use crate::codec::nsq::{Bodies, ClientError, Limits};
pub use host::{CommandTaken, Host, ReplySlot, Subscribe};
pub use machine::{Session, SessionState, failure};
pub use replies::CommandKind;
