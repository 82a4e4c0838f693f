//! One connection's state, and ids that name one connection for ever.
//!
//! ```text
//!              peer ends                     grace over, close()
//!   Open ------------ (Ended is told) -> HalfClosed --.
//!     |  \---- close() -----------------------------. |
//!     |                                             v v       all sent, peer has not ended
//!     |                                          Closing --------------------------------> Draining (Closed was told)
//!     |                                             | all sent and peer ended, or time out     | peer ends, or time out
//!     |  move_away()                                v                                          v
//!     '-------------> Moving ---> gone (Moved)     gone (Closed)                              gone
//! ```
//! A broken connection (reset, failed send) goes from each state to gone once its operations have completed. HalfClosed: a client may
//! send its commands, end its side and then read the answers (`nc -N` does), or the error about its incomplete last command. The shard
//! closes when all answers are given; if it does not, the grace is over a little later. Draining: closing a socket that has unread bytes
//! resets it, and a reset can destroy the bytes just sent, such as the error frame with the reason. So further input is thrown away
//! until the peer has read its end.

use super::pieces::Pieces;
use super::placed::LentMemory;
use crate::base::{ConnId, CoreId};
use crate::ring::{self, KIND_BITS, OpKind};
use crate::seam::message::MovedSession;
use slab::Slab;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Bits of a slot number: at most a million connections per core, and 2^40 connections before a number repeats.
const SLOT_BITS: u32 = 20;

pub(super) const CONNECTIONS_MAX: usize = 1 << SLOT_BITS;

/// The receive of a connection, most of the time a multishot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Receive {
    Off,
    Armed,
    Cancelling,
    /// Off, because there was no buffer; armed again when there are some.
    Starved,
}

#[derive(Debug)]
pub(super) enum Phase {
    Open,
    HalfClosed,
    Closing,
    Draining,
    Moving(Box<Moving>),
}

#[derive(Debug)]
pub(super) struct Moving {
    pub to: CoreId,
    pub session: Box<MovedSession>,
    pub unread: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub id: ConnId,
    pub fd: OwnedFd,
    pub phase: Phase,
    pub receive: Receive,
    pub paused: bool,
    /// The receive has come to its end: nothing more will come in.
    pub ended: bool,
    /// Reset, or a send failed: nothing more can go out.
    pub broken: bool,
    /// Bytes came in after the last send.
    pub unanswered: bool,
    pub send_cancelled: bool,
    /// End of the phase.
    pub until: Option<Instant>,
    /// Output that is with the kernel, untouched until its completion. Empty: no send is in flight.
    pub sending: Vec<u8>,
    /// Bytes of `sending` that the kernel has taken.
    pub sent: usize,
    /// Goes next.
    pub queued: Vec<u8>,
    /// Goes after `sending`, instead of `queued`; there while it has something.
    pub pieces: Option<Box<Pieces>>,
    /// State of lent receive memory; present since memory was lent.
    pub placed: Option<Box<LentMemory>>,
}

impl Conn {
    pub fn is_receiving(&self) -> bool {
        matches!(self.receive, Receive::Armed | Receive::Cancelling)
    }

    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty() || self.pieces.as_ref().is_some_and(|p| p.is_in_flight())
    }

    /// The send is over, the kernel took this many bytes. Prepares the next send.
    pub fn taken(&mut self, bytes: usize) {
        if self.sending.is_empty() {
            if let Some(pieces) = &mut self.pieces {
                pieces.taken(bytes);
            }
        } else {
            self.sent += bytes;
            assert!(self.sent <= self.sending.len(), "the kernel took more than there was");
            if self.sent == self.sending.len() {
                self.sending = std::mem::take(&mut self.queued);
                self.sent = 0;
            }
        }
        self.pieces.take_if(|pieces| pieces.is_empty());
    }

    /// True when no send is in flight and there is something to send.
    pub fn has_rest(&self) -> bool {
        !self.sending.is_empty() || self.pieces.is_some()
    }

    /// Drops all output; no send is in flight, and none follows.
    pub fn drop_output(&mut self) {
        (self.sending, self.queued, self.pieces) = (Vec::new(), Vec::new(), None);
    }

    /// Drops all output that is not with the kernel.
    pub fn drop_queued(&mut self) {
        self.queued = Vec::new();
        if let Some(pieces) = &mut self.pieces {
            pieces.drop_rest();
        }
        self.pieces.take_if(|pieces| pieces.is_empty());
    }

    pub fn is_expired(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

pub(super) fn user_data(kind: OpKind, conn: ConnId) -> u64 {
    ring::user_data(kind, conn.0)
}

/// Connection of operations that belong to none: no connection has this number, as the first serial is 1.
pub(super) const NO_CONN: ConnId = ConnId(0);

/// The connections of a core by id.
pub(super) struct Conns {
    slots: Slab<Conn>,
    serial: u64,
}

impl Conns {
    pub fn new() -> Conns {
        Conns { slots: Slab::new(), serial: 0 }
    }

    /// `None` when there are as many as an id can tell apart.
    pub fn open(&mut self, fd: OwnedFd) -> Option<ConnId> {
        if self.slots.len() >= CONNECTIONS_MAX {
            return None;
        }
        self.serial += 1;
        assert!(self.serial < 1 << (u64::BITS - SLOT_BITS - KIND_BITS), "2^40 connections were opened");
        let place = self.slots.vacant_entry();
        let id = ConnId(self.serial << SLOT_BITS | place.key() as u64);
        place.insert(Conn {
            id,
            fd,
            phase: Phase::Open,
            receive: Receive::Off,
            paused: false,
            ended: false,
            broken: false,
            unanswered: false,
            send_cancelled: false,
            until: None,
            sending: Vec::new(),
            sent: 0,
            queued: Vec::new(),
            pieces: None,
            placed: None,
        });
        Some(id)
    }

    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        let slot = (id.0 & (CONNECTIONS_MAX as u64 - 1)) as usize;
        self.slots.get_mut(slot).filter(|c| c.id == id)
    }

    /// Removes a connection that has no operation with the kernel.
    pub fn remove(&mut self, id: ConnId) -> Conn {
        let conn = self.slots.remove((id.0 & (CONNECTIONS_MAX as u64 - 1)) as usize);
        assert!(conn.id == id && !conn.is_receiving() && !conn.is_sending(), "{id:?} is still in use");
        conn
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Conn> {
        self.slots.iter_mut().map(|(_, c)| c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn an_id_names_one_connection_for_ever() {
        let mut conns = Conns::new();
        let first = conns.open(fd()).unwrap();
        conns.remove(first);
        let second = conns.open(fd()).unwrap();
        assert_ne!(first, second);
        assert!(conns.get_mut(first).is_none());
        assert_eq!(conns.get_mut(second).unwrap().id, second);
        assert_ne!(first, NO_CONN);
    }

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Conn>() <= 128, "{}", size_of::<Conn>());
    }
}
