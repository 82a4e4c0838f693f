//! [`TlsStream`]: the TLS of one connection, without its socket: ciphertext in, plaintext out, and the other way.
//!
//! Owns the keys, an incomplete record, and the bytes that the kernel still has to take. Plaintext is passed on at once and never waits
//! here: a connection that is paused or moves leaves at most one partial record behind.

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, Error, InvalidMessage, ServerConfig,
    ServerConnection,
};
use std::collections::VecDeque;
use std::io::{BufRead, Write};
use std::sync::Arc;

/// Plaintext of one record, the most that TLS allows.
const RECORD: usize = 16 * 1024;

/// Most bytes that a record adds to its plaintext, with the ciphers of this node.
const RECORD_OVERHEAD: usize = 64;

/// Reason why a connection is of no more use.
#[derive(Debug, PartialEq, Eq)]
pub enum TlsEnd {
    /// The peer has said that it is done.
    Peer,
    Fault(String),
}

/// Plaintext that counts as sent when the kernel has taken this much ciphertext of the connection.
#[derive(Debug)]
struct PlaintextMark {
    until: u64,
    plaintext: usize,
}

#[derive(Debug)]
pub struct TlsStream {
    tls: Connection,
    side: Side,
    /// Ciphertext for the socket.
    out: Vec<u8>,
    /// Plaintext that was to be sent before there were keys.
    early: Vec<u8>,
    /// Bytes of ciphertext that were ever made, and that the kernel has taken.
    made: u64,
    taken: u64,
    owed: VecDeque<PlaintextMark>,
    /// True when neither input nor plaintext follows.
    ended: bool,
}

/// Kind of the other end, which decides on the texts of errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// A client of the native port.
    Client,
    /// An NSQ client, once IDENTIFY has asked for it.
    Upgraded,
    /// A node that connected.
    PeerThere,
    /// A node that was dialled.
    PeerDialled,
}

impl TlsStream {
    /// TlsStream of an accepted connection.
    pub fn accept(config: Arc<ServerConfig>, side: Side) -> Result<TlsStream, Error> {
        Ok(TlsStream::new(ServerConnection::new(config)?.into(), side))
    }

    /// TlsStream of a dialled connection. Its first bytes are in `take_output`.
    pub fn dial(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<TlsStream, Error> {
        let mut link = TlsStream::new(ClientConnection::new(config, name)?.into(), Side::PeerDialled);
        link.drain();
        Ok(link)
    }

    fn new(tls: Connection, side: Side) -> TlsStream {
        TlsStream { tls, side, out: vec![], early: vec![], made: 0, taken: 0, owed: VecDeque::new(), ended: false }
    }

    pub fn side(&self) -> Side {
        self.side
    }

    pub fn facts(&self) -> crate::base::client::TlsFacts {
        let certificates = self.tls.peer_certificates().unwrap_or_default();
        crate::base::client::TlsFacts {
            version: match self.tls.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLS1.2",
                Some(rustls::ProtocolVersion::TLSv1_3) => "TLS1.3",
                _ => "",
            },
            cipher_suite: self.tls.negotiated_cipher_suite().map(|suite| suite_name(suite.suite())).unwrap_or_default(),
            protocol: self.tls.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default(),
            common_name: certificates.first().and_then(|c| super::certificate::common_name(c)).unwrap_or_default(),
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Takes ciphertext, gives plaintext to `each`, in order. `take_output` then has the answer, if there is one.
    pub fn receive(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Option<TlsEnd> {
        let (mut end, mut is_plaintext) = (None, false);
        while !bytes.is_empty() && !self.ended {
            let was_handshake = self.tls.is_handshaking();
            let processed = match self.tls.read_tls(&mut bytes) {
                Ok(0) => break,
                Ok(_) => self.tls.process_new_packets(),
                Err(e) => Err(Error::General(e.to_string())),
            };
            // also the plaintext before a wrong record
            let mut reader = self.tls.reader();
            while let Ok(plaintext) = reader.fill_buf()
                && !plaintext.is_empty()
            {
                let len = plaintext.len();
                each(plaintext);
                reader.consume(len);
            }
            end = match processed {
                Ok(state) if state.peer_has_closed() => {
                    self.tls.send_close_notify();
                    Some(TlsEnd::Peer)
                }
                Ok(_) => None,
                Err(e) => {
                    is_plaintext = self.side == Side::Upgraded && self.made == 0 && is_no_tls(&e);
                    Some(TlsEnd::Fault(fault(&e, was_handshake, self.side)))
                }
            };
            self.ended = end.is_some();
        }
        // A client that speaks no TLS gets no alert, as in nsqd: it would precede the error that says so.
        if !is_plaintext {
            self.drain();
        }
        if !self.ended && !self.early.is_empty() && !self.tls.is_handshaking() {
            let early = std::mem::take(&mut self.early);
            if let Err(e) = self.put(&early) {
                self.ended = true;
                end = Some(TlsEnd::Fault(e.to_string()));
            }
        }
        end
    }

    /// Encrypts plaintext for the peer; `take_output` has the result. Nothing after the end.
    pub fn send(&mut self, plaintext: &[u8]) -> Result<(), TlsEnd> {
        if self.ended {
            return Ok(());
        }
        if self.tls.is_handshaking() {
            self.early.extend_from_slice(plaintext);
            return Ok(());
        }
        self.put(plaintext).map_err(|e| {
            self.ended = true;
            TlsEnd::Fault(e.to_string())
        })
    }

    /// A record at a time: so much of the plaintext is told as sent together.
    fn put(&mut self, plaintext: &[u8]) -> std::io::Result<()> {
        self.out.reserve(plaintext.len() + plaintext.len().div_ceil(RECORD) * RECORD_OVERHEAD);
        for record in plaintext.chunks(RECORD) {
            self.tls.writer().write_all(record)?;
            self.drain();
            self.owed.push_back(PlaintextMark { until: self.made, plaintext: record.len() });
        }
        Ok(())
    }

    /// Moves out rustls' bytes for the socket, so that its own buffers stay empty.
    fn drain(&mut self) {
        let before = self.out.len();
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.out) {
                Ok(1..) => {}
                Ok(0) | Err(_) => break, // a vector takes all
            }
        }
        self.made += (self.out.len() - before) as u64;
    }

    /// Ciphertext for the socket, to be sent whole and in this order.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Says the end to the peer (in `take_output`); nothing follows.
    pub fn close(&mut self) {
        if !self.ended {
            self.ended = true;
            self.tls.send_close_notify();
            self.drain();
        }
    }

    /// The kernel took so much ciphertext. Returns the plaintext bytes that are wholly sent by that. Handshakes, alerts and the overhead
    /// of records do not count.
    pub fn sent(&mut self, ciphertext: usize) -> usize {
        self.taken += ciphertext as u64;
        let mut plaintext = 0;
        while let Some(owed) = self.owed.pop_front_if(|owed| owed.until <= self.taken) {
            plaintext += owed.plaintext;
        }
        plaintext
    }

    /// Restarts the count of sent bytes for another socket: all former ciphertext is sent, or never will be.
    pub fn rebase(&mut self) {
        self.taken = self.made;
        self.owed.clear();
    }
}

/// Registered name of the suite; rustls's own differs in the prefix of TLS 1.3.
fn suite_name(suite: rustls::CipherSuite) -> String {
    suite.as_str().map_or_else(|| format!("{suite:?}"), |name| name.replacen("TLS13_", "TLS_", 1))
}

/// True if the bytes of a handshake's beginning are no record of TLS.
fn is_no_tls(error: &Error) -> bool {
    matches!(error, Error::InvalidMessage(InvalidMessage::InvalidContentType))
}

fn fault(error: &Error, is_handshake: bool, side: Side) -> String {
    if matches!(side, Side::PeerThere | Side::PeerDialled)
        && let Some(fault) = peer_fault(error, is_handshake, side)
    {
        return fault;
    }
    match error {
        error if is_handshake && side == Side::Upgraded && is_no_tls(error) => {
            "tls: first record does not look like a TLS handshake".into() // Go's text
        }
        Error::InvalidMessage(_) if is_handshake && side == Side::Upgraded => {
            format!("IDENTIFY asked for TLS, and the received bytes are not TLS ({error})")
        }
        Error::InvalidMessage(_) if is_handshake => format!("this port speaks TLS, and the received bytes are not TLS ({error})"),
        error if is_handshake => format!("the TLS handshake failed: {error}"),
        error => format!("TLS: {error}"),
    }
}

/// Explanation of faults that only a link between nodes has.
fn peer_fault(error: &Error, is_handshake: bool, side: Side) -> Option<String> {
    Some(match error {
        Error::InvalidMessage(_) if is_handshake && side == Side::PeerDialled => {
            "the peer does not speak TLS, and this node does with its peers: give the peer --peer-tls-cert, too".into()
        }
        Error::InvalidMessage(_) if is_handshake => {
            "this node speaks TLS with its peers, and the received bytes are not TLS: give the peer --peer-tls-cert, too".into()
        }
        Error::NoCertificatesPresented => "the peer shows no certificate; --peer-tls-ca asks each peer for one".into(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the peer's certificate is signed by no CA of --peer-tls-ca".into()
        }
        Error::InvalidCertificate(
            what @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
        ) => {
            format!("the peer's certificate has neither the host of its peer_address nor its name in the cluster: {what}")
        }
        Error::InvalidCertificate(what) => format!("the peer's certificate is not valid: {what}"),
        Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::AccessDenied),
        ) => format!("the peer refuses the certificate of this node ({alert:?}): see the peer's log, and --peer-tls-cert here"),
        _ => return None,
    })
}
