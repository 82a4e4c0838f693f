//! Runs one partition replica: open the epoch, write, replicate, commit, catch up, change role. Pure: events in, effects out
//! ([`event`]); the messages between replicas are in [`message`].
//!
//! # The states
//! ```text
//!                    follower                                              leader
//!  Idle ──> Apart ──Inquired──> Promising                Claiming ──its promise is durable──> Asking
//!            ^ ^                    │                                     ┌──────────────────┘ │ │
//!            │ └──── Standing ──────┘                       its own log is the best           │ │ another's is
//!            │                                                            │      ┌────────────┘ v
//!            ├── Align ─> Truncating ─┐                                      │      v  goes on    Trimming
//!            │                     v                                      v   Fetching <────── its own tail goes
//!            └── disagrees ──── Aligned: Append, Ack                   Settling <──┘
//!                                                                         │ the tail is on every ISR member
//!  any ── a write failed ──> Failed                                       v
//!  any ── metadata ──> Idle, Apart, Claiming                            Open ── a write waits too long ──> Closed
//!                                          asked to hand over: Quiescing <─┘ └── it lacks what another has ──> Resigned
//!                                                                 └── all is committed, channels are told ──────^
//! ```
//! All transitions are data: [`states::TRANSITIONS`]. A lease is no state: an open leader whose lease is over takes no write and serves
//! no read or FIN. It continues in the same epoch if it still leads by metadata that was read after the lapse ([`lease`]).
//!
//! # What holds it together
//! - A batch commits when every member of the *required* set has it durable: the ISR of the newest known metadata, and a
//!   member whose growth was proposed, from the moment of the proposal. A removal counts once the store confirmed it. So the
//!   leader's set never lacks a node that the store could elect.
//! - Every elected leader is in that set, so its log has all committed batches; the same holds for every ISR member that answers its
//!   inquiry. The leader takes the log with the highest (last epoch, end): it has everything that an earlier epoch can have committed.
//!   Batches that only other logs have were never committed.
//! - (epoch, log id) names one batch: an epoch is opened once, its leader never truncates within it, so two logs that share an
//!   epoch share all before it; the common prefix is the lesser of the two ends of the newest shared epoch. The chain of
//!   header crcs checks that with the first batch that follows.
//! - A session's first answer waits until the follower's earlier appends are durable: from then on its log changes only by messages of
//!   that session, or of later ones.

mod base;
mod cursor_sync;
mod cursors;
pub mod error;
pub mod event;
mod follower;
mod hand_over;
mod leader;
pub mod lease;
mod loss;
mod member;
mod mend;
#[cfg(test)]
mod model;
mod opening;
mod peer;
mod prefix;
pub mod states;
#[cfg(test)]
mod tests;

pub use error::ReplicaError;
pub use event::{Alarm, Channels, CursorEvent, Effect, Event, LogView, Loss, LossKind, ReplicaOptions};
pub use member::{FollowerStatus, Member};

use crate::base::{Epoch, Position};

/// Replica of one partition.
#[derive(Debug)]
pub struct Replica {
    epoch: Epoch,
    committed: Position,
}

impl Replica {
    /// `committed`: the durable end that recovery found. A stand-alone node's epoch is its generation, raised durably before the first
    /// append; the node commits the recovered log under it.
    pub fn new(epoch: Epoch, committed: Position) -> Self {
        Replica { epoch, committed }
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Consumers see up to here only.
    pub fn committed(&self) -> Position {
        self.committed
    }

    /// The local log is durable up to `end`: with an ISR of one, that commits it.
    pub fn on_local_durable(&mut self, end: Position) {
        assert!(end.offset >= self.committed.offset, "the durable end never rewinds");
        self.committed = end;
    }
}
