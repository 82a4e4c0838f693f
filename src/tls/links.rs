//! [`Links`]: the TLS of a core's connections, between its sockets and its shard.
//!
//! A connection without TLS passes through untouched. What TLS itself has for a socket (handshake, alert) comes while the
//! sockets are being read, and waits in `wires` until they can be written.
//!
//! **A connection that moves.** Two kinds of bytes were received and not looked at: plaintext that the session had not
//! parsed, and ciphertext that came after the decision. They never share a buffer: the plaintext is kept here while the
//! socket drains ([`Links::leave`]) and travels as the message's `unread`, for the session; the ciphertext travels beside the
//! keys in the opaque layer, and is decrypted on the other core after the session got its plaintext ([`Links::adopted`]).
//! It is not decrypted before it leaves, since the answer that TLS may owe to it could not be sent any more.

use super::files::Terms;
use super::link::{End, Link};
use crate::base::{ConnId, IdMap, Now, Peer, Ticks};
use crate::shard::faults::FaultLog;
use crate::shard::message::{ClientInfo, Layer};
use std::vec::Drain;

/// What TLS itself wants done with a socket.
#[derive(Debug)]
pub enum Wire {
    Send {
        conn: ConnId,
        bytes: Vec<u8>,
    },
    /// After what was sent.
    Close {
        conn: ConnId,
    },
}

#[derive(Debug)]
struct Secured {
    link: Link,
    peer: Peer,
    /// Plaintext that the session had not parsed when the connection was to move.
    unread: Vec<u8>,
}

/// What travels with a connection in [`crate::shard::message::MeshMessage::Connection`].
struct Carried {
    link: Link,
    ciphertext: Vec<u8>,
}

pub struct Links {
    /// For new connections of the native port; `None`: they have no TLS.
    terms: Option<Terms>,
    links: IdMap<ConnId, Secured>,
    /// Those that were to have TLS and could not: until they are closed nothing is heard from them, and nothing said.
    refused: IdMap<ConnId, ()>,
    wires: Vec<Wire>,
    faults: FaultLog,
    /// When the log of faults has something to say.
    faults_at: Option<Ticks>,
}

impl Links {
    pub fn new(terms: Option<Terms>) -> Links {
        let (links, refused) = (IdMap::default(), IdMap::default());
        Links { terms, links, refused, wires: vec![], faults: FaultLog::default(), faults_at: None }
    }

    /// A client has connected to the port that has TLS, if any has.
    pub fn opened(&mut self, now: Now, conn: ConnId, peer: &Peer) {
        let Some(terms) = &self.terms else { return };
        match Link::new(terms.config()) {
            Ok(link) => {
                self.links.insert(conn, Secured { link, peer: peer.clone(), unread: vec![] });
            }
            Err(e) => {
                self.complain(now, peer, &e.to_string());
                self.refused.insert(conn, ());
                self.wires.push(Wire::Close { conn });
            }
        }
    }

    /// Bytes came from the socket; what they say is given to `each`.
    pub fn received(&mut self, now: Now, conn: ConnId, bytes: &[u8], each: &mut dyn FnMut(&[u8])) {
        let Some(secured) = self.links.get_mut(&conn) else {
            if !self.refused.contains_key(&conn) {
                each(bytes);
            }
            return;
        };
        let end = secured.link.receive(bytes, each);
        self.settle(now, conn, end);
    }

    /// Sends what TLS owes, and closes after an end.
    fn settle(&mut self, now: Now, conn: ConnId, end: Option<End>) {
        let Some(secured) = self.links.get_mut(&conn) else { return };
        let bytes = secured.link.take_output();
        if !bytes.is_empty() {
            self.wires.push(Wire::Send { conn, bytes });
        }
        if let Some(end) = end {
            self.wires.push(Wire::Close { conn });
            if let End::Fault(error) = end {
                let peer = secured.peer.clone();
                self.complain(now, &peer, &error);
            }
        }
    }

    fn complain(&mut self, now: Now, peer: &Peer, error: &str) {
        let address = peer.0.to_string();
        let client = ClientInfo { client_id: address.clone(), remote_address: address, ..ClientInfo::default() };
        self.faults_at = self.faults.say(now.ticks, &client, error).or(self.faults_at);
    }

    /// What the socket is to send for what the session sends.
    pub fn seal(&mut self, now: Now, conn: ConnId, bytes: Vec<u8>) -> Vec<u8> {
        let Some(secured) = self.links.get_mut(&conn) else {
            return if self.refused.contains_key(&conn) { vec![] } else { bytes };
        };
        match secured.link.send(&bytes) {
            Ok(()) => secured.link.take_output(),
            Err(end) => {
                self.settle(now, conn, Some(end));
                vec![]
            }
        }
    }

    /// The kernel took so many bytes; answers how many of the session's that were.
    pub fn sent(&mut self, conn: ConnId, bytes: usize) -> usize {
        self.links.get_mut(&conn).map_or(bytes, |secured| secured.link.sent(bytes))
    }

    /// What is to be sent before the node closes a connection.
    pub fn farewell(&mut self, conn: ConnId) -> Vec<u8> {
        let Some(secured) = self.links.get_mut(&conn) else { return vec![] };
        secured.link.close();
        secured.link.take_output()
    }

    /// The connection is gone.
    pub fn closed(&mut self, conn: ConnId) {
        self.links.remove(&conn);
        self.refused.remove(&conn);
    }

    /// The connection is to move; answers what the net has to keep in front of the bytes that still come.
    pub fn leave(&mut self, conn: ConnId, unread: Vec<u8>) -> Vec<u8> {
        let Some(secured) = self.links.get_mut(&conn) else { return unread };
        secured.unread = unread;
        vec![]
    }

    /// The connection has left, with what its socket had unread; answers what the session has, and what lies below it.
    pub fn moved(&mut self, conn: ConnId, unread: Vec<u8>) -> (Vec<u8>, Option<Layer>) {
        let Some(Secured { mut link, unread: plaintext, .. }) = self.links.remove(&conn) else { return (unread, None) };
        link.rebase();
        (plaintext, Some(Box::new(Carried { link, ciphertext: unread })))
    }

    /// A connection came over, and its session has what it had not parsed; `each` gets what came behind that.
    pub fn adopted(&mut self, now: Now, conn: ConnId, peer: &Peer, layer: Layer, each: &mut dyn FnMut(&[u8])) {
        let Carried { link, ciphertext } = *layer.downcast().expect("only a core's links make layers");
        self.links.insert(conn, Secured { link, peer: peer.clone(), unread: vec![] });
        self.received(now, conn, &ciphertext, each);
    }

    /// What is to be done with the sockets, in order, before anything else is.
    pub fn wires(&mut self) -> Drain<'_, Wire> {
        self.wires.drain(..)
    }

    /// When `tick` has work.
    pub fn deadline(&self) -> Option<Ticks> {
        self.faults_at
    }

    pub fn tick(&mut self, now: Now) {
        if self.faults_at.is_some_and(|at| at <= now.ticks) {
            self.faults_at = None;
            self.faults.tick(now.ticks);
        }
    }
}
