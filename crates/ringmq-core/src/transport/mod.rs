//! Layers between the socket and the session of an NSQ client, once IDENTIFY has asked for them: TLS, and above it snappy or deflate.
//! Bytes in, bytes out: it knows no socket, no command and no time.
//!
//! ```text
//!   wire bytes ── decode ──> TLS ──> snappy or deflate ──> bytes of the client
//!   wire bytes <── output <── TLS <── snappy or deflate <── seal <── bytes of the session
//! ```
//!
//! **Memory.** Received bytes are decoded a piece at a time, and only when the session takes them: a stream that unfolds to a thousand
//! times its size makes the session's pieces more, not longer, and unread bytes stay encoded.
//!
//! | file | its concept |
//! |---|---|
//! | tls | the TLS of one connection, also of native clients and peers |
//! | certificate | the common name in a client's certificate |
//! | snappy | the framing format of snappy |
//! | deflate | raw deflate |

mod certificate;
mod deflate;
mod snappy;
#[cfg(test)]
mod tests;

pub mod tls;

use crate::{
    base::client::TlsFacts,
    codec::nsq::layers::{Compression, Terms, Upgrade},
};
use deflate::Deflate;

use snappy::Snappy;
use std::mem;

use tls::{Side, TlsEnd, TlsStream};

/// Most wire bytes that one step decodes.
const PIECE: usize = 16 * 1024;

/// An emptied buffer larger than this gives its memory back.
const KEPT: usize = 512;

/// Result of a decoding step.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// More bytes may be there: call again.
    More,
    /// All input is decoded.
    Dry,
    /// The client has said that it is done, inside of TLS or of the compressed stream.
    End,
    /// Invalid input; the text is for people.
    Fault(String),
}

#[derive(Debug)]
enum Compressor {
    Snappy(Snappy),
    Deflate(Box<Deflate>),
}

#[derive(Debug)]
pub struct Transport {
    tls: Option<Box<TlsStream>>,
    compressor: Option<Compressor>,
    /// Wire bytes that are not decoded yet.
    wire: Vec<u8>,
    /// Bytes out of TLS, not decompressed yet.
    compressed: Vec<u8>,
    /// Output for the wire.
    out: Vec<u8>,
    /// TLS has said its end.
    tls_ended: bool,
    /// True when nothing is decoded any more.
    ended: bool,
}

/// Result of a decoding step: true if the stream has ended, or a description of its error.
type DecodeResult = Result<bool, String>;

/// Lets `step` take from the front of `buffer`.
fn take(buffer: &mut Vec<u8>, step: impl FnOnce(&mut &[u8]) -> DecodeResult) -> DecodeResult {
    let mut rest = &buffer[..];
    let result = step(&mut rest);
    let taken = buffer.len() - rest.len();
    buffer.drain(..taken);
    if buffer.is_empty() && buffer.capacity() > KEPT {
        *buffer = vec![];
    }
    result
}

impl Transport {
    /// `out` goes out first, as it is.
    pub fn new(out: Vec<u8>) -> Transport {
        Transport { tls: None, compressor: None, wire: vec![], compressed: vec![], out, tls_ended: false, ended: false }
    }

    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub fn compression(&self) -> Option<Compression> {
        self.compressor.as_ref().map(|compressor| match compressor {
            Compressor::Snappy(_) => Compression::Snappy,
            Compressor::Deflate(deflate) => Compression::Deflate(deflate.level()),
        })
    }

    /// Adds layers above the present ones. `unread`: bytes received behind those that were read. With TLS nothing is sealed until its
    /// handshake is over.
    pub fn begin(&mut self, upgrade: Upgrade, terms: Option<&Terms>, unread: &[u8]) -> Result<(), String> {
        assert!(self.compressor.is_none() && !(upgrade.tls && self.tls.is_some()), "a layer is added once, TLS below the other");
        let below = if self.tls.is_some() { &mut self.compressed } else { &mut self.wire };
        // the bytes kept before came after these
        below.splice(..0, unread.iter().copied());
        if upgrade.tls {
            let terms = terms.ok_or("this node has no TLS")?;
            let link = TlsStream::accept(terms.config(), Side::Upgraded).map_err(|e| e.to_string())?;
            self.tls = Some(Box::new(link));
        }
        self.compressor = upgrade.compression.map(|compression| match compression {
            Compression::Snappy => Compressor::Snappy(Snappy::default()),
            Compression::Deflate(level) => Compressor::Deflate(Box::new(Deflate::new(level))),
        });
        Ok(())
    }

    /// True during the handshake.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// `None` without TLS.
    pub fn tls_facts(&self) -> Option<TlsFacts> {
        self.tls.as_ref().map(|tls| tls.facts())
    }

    // ---- in

    /// Keeps received bytes for later.
    pub fn keep(&mut self, bytes: &[u8]) {
        if !self.ended {
            self.wire.extend_from_slice(bytes);
        }
    }

    /// Whether bytes were kept and not decoded.
    pub fn has_kept(&self) -> bool {
        let has_more = self.compressor.as_ref().is_some_and(Compressor::has_more);
        !self.ended && (has_more || self.tls_ended || !self.wire.is_empty() || !self.compressed.is_empty())
    }

    /// Decodes a piece of the kept bytes and of `bytes`, in this order. The decoded bytes are added to `plain`, the taken ones removed
    /// from `bytes`.
    pub fn decode(&mut self, bytes: &mut &[u8], plain: &mut Vec<u8>) -> Decoded {
        if self.ended {
            *bytes = &[];
            return Decoded::Dry;
        }
        let step = if !self.compressed.is_empty() || self.compressor.as_ref().is_some_and(Compressor::has_more) {
            self.decompress(plain)
        } else if self.tls_ended {
            Ok(true)
        } else if !self.wire.is_empty() {
            let mut wire = mem::take(&mut self.wire);
            let step = take(&mut wire, |rest| self.decode_wire(rest, plain));
            self.wire = wire;
            step
        } else if bytes.is_empty() {
            return Decoded::Dry;
        } else {
            self.decode_wire(bytes, plain)
        };
        let decoded = match step {
            Ok(false) => return Decoded::More,
            Ok(true) => Decoded::End,
            Err(fault) => Decoded::Fault(fault),
        };
        self.ended = true;
        (self.wire, self.compressed) = (vec![], vec![]);
        decoded
    }

    /// Decompresses a piece of the plaintext of TLS, or of the bytes that the decompressor has.
    fn decompress(&mut self, plain: &mut Vec<u8>) -> DecodeResult {
        let compressor = self.compressor.as_mut().expect("only what is compressed waits here");
        take(&mut self.compressed, |rest| compressor.decode(rest, plain))
    }

    fn decode_wire(&mut self, bytes: &mut &[u8], plain: &mut Vec<u8>) -> DecodeResult {
        let (mut piece, rest) = bytes.split_at(bytes.len().min(PIECE));
        let Some(tls) = &mut self.tls else {
            let len = piece.len();
            let step = match &mut self.compressor {
                Some(compressor) => compressor.decode(&mut piece, plain),
                None => {
                    plain.extend_from_slice(piece);
                    piece = &[];
                    Ok(false)
                }
            };
            *bytes = &bytes[len - piece.len()..];
            return step;
        };
        *bytes = rest;
        let into = if self.compressor.is_some() { &mut self.compressed } else { plain };
        let end = tls.receive(piece, &mut |said| into.extend_from_slice(said));
        self.take_from_tls();
        match end {
            None => Ok(false),
            // the bytes before its end come first
            Some(TlsEnd::Peer) => {
                self.tls_ended = true;
                Ok(false)
            }
            Some(TlsEnd::Fault(fault)) => Err(fault),
        }
    }

    // ---- out

    /// Encodes the session's output; the result is in `take_output`. Not during a handshake.
    pub fn seal(&mut self, plain: &[u8]) -> Result<(), String> {
        let Some(compressor) = &mut self.compressor else { return self.seal_uncompressed(plain) };
        if self.tls.is_none() {
            compressor.encode(plain, &mut self.out);
            return Ok(());
        }
        let mut compressed = vec![];
        compressor.encode(plain, &mut compressed);
        self.seal_uncompressed(&compressed)
    }

    /// The same below compression.
    pub fn seal_uncompressed(&mut self, bytes: &[u8]) -> Result<(), String> {
        let Some(tls) = &mut self.tls else {
            self.out.extend_from_slice(bytes);
            return Ok(());
        };
        let sent = tls.send(bytes);
        self.take_from_tls();
        match sent {
            Err(TlsEnd::Fault(fault)) => Err(fault),
            _ => Ok(()),
        }
    }

    /// TLS did not come about: these bytes go out in plain behind its last words.
    pub fn abandon(&mut self, bytes: &[u8]) {
        (self.tls, self.compressor, self.ended) = (None, None, true);
        self.out.extend_from_slice(bytes);
    }

    /// Says the end to the client; nothing follows.
    pub fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close(); // once
            self.take_from_tls();
        }
    }

    fn take_from_tls(&mut self) {
        if let Some(tls) = &mut self.tls {
            let mut made = tls.take_output();
            tls.sent(made.len()); // bytes on the wire are what counts here
            if self.out.is_empty() {
                self.out = made;
            } else {
                self.out.append(&mut made);
            }
        }
    }

    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Takes the output for the socket.
    pub fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.out)
    }

    /// Bytes that are not decoded or not sent yet, without the own memory of TLS and a compressor.
    pub fn held_bytes(&self) -> usize {
        self.wire.capacity() + self.compressed.capacity() + self.out.capacity()
    }
}

impl Compressor {
    /// True if more may come out without further input.
    fn has_more(&self) -> bool {
        matches!(self, Compressor::Deflate(deflate) if deflate.is_full())
    }

    /// Decodes one step of bounded size.
    fn decode(&mut self, bytes: &mut &[u8], plain: &mut Vec<u8>) -> DecodeResult {
        match self {
            Compressor::Snappy(snappy) => snappy.decode(bytes, plain),
            Compressor::Deflate(deflate) => deflate.decode(bytes, plain),
        }
    }

    fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        match self {
            Compressor::Snappy(snappy) => snappy.encode(plain, out),
            Compressor::Deflate(deflate) => deflate.encode(plain, out),
        }
    }
}
