//! [`Links`]: the TLS of a core's connections, between its sockets and its shard.
//!
//! A connection without TLS passes through untouched. TLS' own bytes for a socket (handshake, alert) come while the sockets are being
//! read, and wait in `wires` until they can be written.
//!
//! **A connection that moves.** Two kinds of bytes were received and not looked at: plaintext that the session had not
//! parsed, and ciphertext that came after the decision. They never share a buffer: the plaintext is kept here while the
//! socket drains ([`Links::leave`]) and travels as the message's `unread`, for the session; the ciphertext travels beside the
//! keys in the opaque layer, and is decrypted on the other core after the session got its plaintext ([`Links::adopted`]).
//! It is not decrypted before it leaves, since the answer that TLS may owe to it could not be sent any more.

use super::files::{PeerTerms, Terms};
use super::reported::ReportedErrors;
use crate::base::{ConnId, IdMap, Now, Peer, Ticks};
use crate::seam::faults::FaultLog;
use crate::transport::tls::{Side, TlsEnd, TlsStream};
use crate::{base::client::ClientInfo, seam::message::Layer};
use std::sync::Arc;
use std::time::Duration;
use std::vec::Drain;

/// Time from a new connection to its keys.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Socket operations that TLS itself wants.
#[derive(Debug)]
pub enum Wire {
    Send {
        conn: ConnId,
        bytes: Vec<u8>,
    },
    /// Closes the connection after its output.
    Close {
        conn: ConnId,
    },
}

#[derive(Debug)]
struct Secured {
    link: TlsStream,
    peer: Peer,
    /// Plaintext that the session had not parsed when the connection was to move.
    unread: Vec<u8>,
}

const ENDED_EARLY: &str = "the peer closed the connection during the TLS handshake: see the peer's log";

/// State that travels with a connection in [`crate::seam::message::MeshMessage::Connection`].
struct MovedTls {
    link: TlsStream,
    ciphertext: Vec<u8>,
}

/// Listener that a connection came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    Native,
    Peer,
}

/// A connection that this node makes: where to, and when it must have its keys.
struct Dial {
    number: u64,
    until: Ticks,
}

/// The answer to a dial, once there are keys, or it is clear that there will be none.
pub type Dialed = (u64, Result<ConnId, String>);

pub struct Links {
    /// Terms of the native port; `None`: it has no TLS.
    terms: Option<Terms>,
    /// The same for other nodes.
    peers: Option<PeerTerms>,
    /// Dials under way: the address and the name of the node.
    dials: IdMap<u64, (Arc<str>, Arc<str>)>,
    /// Connections that were made and have no keys yet.
    dialling: IdMap<ConnId, Dial>,
    dialed: Vec<Dialed>,
    links: IdMap<ConnId, Secured>,
    /// Connections whose handshake failed: until they are closed they neither send nor receive.
    refused: IdMap<ConnId, ()>,
    wires: Vec<Wire>,
    faults: FaultLog,
    /// Time at which the log of faults has something to report.
    faults_at: Option<Ticks>,
    /// Last faults of other nodes, which try again and again.
    said: ReportedErrors,
}

impl Links {
    pub fn new(terms: Option<Terms>, peers: Option<PeerTerms>) -> Links {
        Links {
            terms,
            peers,
            dials: IdMap::default(),
            dialling: IdMap::default(),
            dialed: vec![],
            links: IdMap::default(),
            refused: IdMap::default(),
            wires: vec![],
            faults: FaultLog::default(),
            faults_at: None,
            said: ReportedErrors::default(),
        }
    }

    /// Registers a connection to a port that may have TLS.
    pub fn opened(&mut self, now: Now, conn: ConnId, peer: &Peer, port: Port) {
        let link = match port {
            Port::Native => self.terms.as_ref().map(|terms| TlsStream::accept(terms.config(), Side::Client)),
            Port::Peer => self.peers.as_ref().map(|terms| TlsStream::accept(terms.server(), Side::PeerThere)),
        };
        match link {
            None => {}
            Some(Ok(link)) => {
                self.links.insert(conn, Secured { link, peer: peer.clone(), unread: vec![] });
            }
            Some(Err(e)) => {
                self.complain(now, peer, &e.to_string(), port == Port::Peer);
                self.refused.insert(conn, ());
                self.wires.push(Wire::Close { conn });
            }
        }
    }

    /// Records that this node is about to connect to the node of this name.
    pub fn dial(&mut self, number: u64, address: &Arc<str>, name: &Arc<str>) {
        if self.peers.is_some() {
            self.dials.insert(number, (address.clone(), name.clone()));
        }
    }

    /// Takes the result of a connect. Returns the shard's event; `None`: it comes with `take_dialed`, once there are keys.
    pub fn connected(&mut self, now: Now, number: u64, result: Result<(ConnId, Peer), String>) -> Option<Dialed> {
        let named = self.dials.remove(&number);
        let (conn, peer) = match result {
            Ok(connected) => connected,
            Err(error) => return Some((number, Err(error))),
        };
        let (Some(terms), Some((address, name))) = (&self.peers, named) else { return Some((number, Ok(conn))) };
        let made = terms.client(&address, &name);
        match made.and_then(|(config, name)| TlsStream::dial(config, name).map_err(|e| e.to_string())) {
            Ok(mut link) => {
                let bytes = link.take_output();
                self.links.insert(conn, Secured { link, peer, unread: vec![] });
                self.dialling.insert(conn, Dial { number, until: now.ticks + HANDSHAKE_MAX });
                self.wires.push(Wire::Send { conn, bytes });
                None
            }
            Err(error) => {
                self.refused.insert(conn, ());
                self.wires.push(Wire::Close { conn });
                Some((number, Err(error)))
            }
        }
    }

    /// The answers to dials that waited for keys.
    pub fn take_dialed(&mut self) -> Vec<Dialed> {
        std::mem::take(&mut self.dialed)
    }

    /// Takes bytes from the socket; `each` gets the plaintext.
    pub fn received(&mut self, now: Now, conn: ConnId, bytes: &[u8], each: &mut dyn FnMut(&[u8])) {
        let Some(secured) = self.links.get_mut(&conn) else {
            if !self.refused.contains_key(&conn) {
                each(bytes);
            }
            return;
        };
        let end = secured.link.receive(bytes, each);
        if end.is_none()
            && !secured.link.is_handshaking()
            && let Some(dial) = self.dialling.remove(&conn)
        {
            self.dialed.push((dial.number, Ok(conn)));
        }
        self.settle(now, conn, end);
    }

    /// Sends the pending bytes of TLS, and closes after an end.
    fn settle(&mut self, now: Now, conn: ConnId, end: Option<TlsEnd>) {
        let Some(secured) = self.links.get_mut(&conn) else { return };
        let bytes = secured.link.take_output();
        if !bytes.is_empty() {
            self.wires.push(Wire::Send { conn, bytes });
        }
        if let Some(end) = end {
            self.wires.push(Wire::Close { conn });
            if let Some(dial) = self.dialling.remove(&conn) {
                // the dialler reports the error
                let error = if let TlsEnd::Fault(error) = end { error } else { ENDED_EARLY.to_owned() };
                self.dialed.push((dial.number, Err(error)));
            } else if let TlsEnd::Fault(error) = end {
                let (peer, is_peer) = (secured.peer.clone(), secured.link.side() != Side::Client);
                self.complain(now, &peer, &error, is_peer);
            }
        }
    }

    fn complain(&mut self, now: Now, peer: &Peer, error: &str, is_peer: bool) {
        if is_peer && !self.said.is_new(now.ticks, peer, error) {
            return;
        }
        let address = peer.0.to_string();
        let client = ClientInfo { client_id: address.clone(), remote_address: address, ..ClientInfo::default() };
        self.faults_at = self.faults.say(now.ticks, &client, error).or(self.faults_at);
    }

    /// True if the socket sends the session's bytes unchanged.
    pub fn is_plain(&self, conn: ConnId) -> bool {
        !self.links.contains_key(&conn) && !self.refused.contains_key(&conn)
    }

    /// Encrypts the session's output for the socket.
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

    /// Bytes to send before the node closes a connection.
    pub fn farewell(&mut self, conn: ConnId) -> Vec<u8> {
        let Some(secured) = self.links.get_mut(&conn) else { return vec![] };
        secured.link.close();
        secured.link.take_output()
    }

    /// The connection is gone.
    pub fn closed(&mut self, conn: ConnId) {
        self.links.remove(&conn);
        self.refused.remove(&conn);
        if let Some(dial) = self.dialling.remove(&conn) {
            self.dialed.push((dial.number, Err(ENDED_EARLY.to_owned())));
        }
    }

    /// The connection is to move. Returns the bytes that the net has to keep in front of those that still come.
    pub fn leave(&mut self, conn: ConnId, unread: Vec<u8>) -> Vec<u8> {
        let Some(secured) = self.links.get_mut(&conn) else { return unread };
        secured.unread = unread;
        vec![]
    }

    /// The connection has left, with its socket's unread bytes. Returns the session's unread bytes, and the layer below it.
    pub fn moved(&mut self, conn: ConnId, unread: Vec<u8>) -> (Vec<u8>, Option<Layer>) {
        let Some(Secured { mut link, unread: plaintext, .. }) = self.links.remove(&conn) else { return (unread, None) };
        link.rebase();
        (plaintext, Some(Box::new(MovedTls { link, ciphertext: unread })))
    }

    /// A connection came over, and its session has its unparsed bytes; `each` gets the plaintext behind them.
    pub fn adopted(&mut self, now: Now, conn: ConnId, peer: &Peer, layer: Layer, each: &mut dyn FnMut(&[u8])) {
        let MovedTls { link, ciphertext } = *layer.downcast().expect("only a core's links make layers");
        self.links.insert(conn, Secured { link, peer: peer.clone(), unread: vec![] });
        self.received(now, conn, &ciphertext, each);
    }

    /// Socket operations to carry out, in order, before anything else.
    pub fn wires(&mut self) -> Drain<'_, Wire> {
        self.wires.drain(..)
    }

    /// Time at which `tick` has work.
    pub fn deadline(&self) -> Option<Ticks> {
        self.dialling.values().map(|dial| dial.until).chain(self.faults_at).min()
    }

    pub fn tick(&mut self, now: Now) {
        let late = self.dialling.iter().filter(|(_, dial)| dial.until <= now.ticks).map(|(conn, _)| *conn);
        for conn in late.collect::<Vec<_>>() {
            if let Some(dial) = self.dialling.remove(&conn) {
                let error = "the peer does not answer the TLS handshake: check that it has --peer-tls-cert";
                self.dialed.push((dial.number, Err(error.into())));
                self.wires.push(Wire::Close { conn });
            }
        }
        if self.faults_at.is_some_and(|at| at <= now.ticks) {
            self.faults_at = None;
            self.faults.tick(now.ticks);
        }
    }
}
