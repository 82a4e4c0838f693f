//! One connection of a node: the TCP protocol `  V1` as a machine that takes bytes and gives bytes.
//!
//! ```text
//! magic "  V1" -> lines: PING | IDENTIFY <4 bytes of length, JSON> | REGISTER topic [channel] | UNREGISTER topic [channel]
//! answer: 4 bytes of length, then `OK`, JSON, or `E_CODE text`
//! ```
//! Every error ends the connection, after it was told, but for a registry that is full. Pure: sockets and clocks are elsewhere.

mod identity;
#[cfg(test)]
mod tests;

use crate::registry::{Name, Now, PeerId, Registry};
use crate::{About, NSQ_VERSION, go};
use std::time::Duration;

/// The longest line. A command needs 150 bytes; words behind its parameters are ignored.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// The longest body of IDENTIFY. nsqd sends about 150 bytes.
const IDENTITY_BYTES_MAX: usize = 64 * 1024;
const MAGIC: &[u8] = b"  V1";

/// Fate of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    /// The connection ends after its output is sent.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaits {
    Magic,
    Line,
    IdentityLength,
    Identity(usize),
    Nothing,
}

/// Refusal that a client reads, as `CODE text`.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    text: Vec<u8>,
    is_fatal: bool,
}

impl Refusal {
    fn new(code: &str, text: impl AsRef<[u8]>) -> Self {
        Refusal { text: [code.as_bytes(), b" ", text.as_ref()].concat(), is_fatal: true }
    }
}

#[derive(Debug)]
pub struct Session {
    remote_address: String,
    awaits: Awaits,
    input: Vec<u8>,
    peer: Option<PeerId>,
}

impl Session {
    pub fn new(remote_address: String) -> Self {
        Session { remote_address, awaits: Awaits::Magic, input: Vec::new(), peer: None }
    }

    /// True once the node has identified itself.
    pub fn is_identified(&self) -> bool {
        self.peer.is_some()
    }

    /// Takes bytes of the node, of any number. The answers are appended to `out`.
    pub fn receive(&mut self, bytes: &[u8], registry: &mut Registry, about: &About, now: Now, out: &mut Vec<u8>) -> Flow {
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let rest = &self.input[at..];
            let (used, result) = match self.awaits {
                Awaits::Nothing => return Flow::Close,
                Awaits::Magic => match rest.get(..MAGIC.len()) {
                    None => break,
                    Some(MAGIC) => {
                        self.awaits = Awaits::Line;
                        (MAGIC.len(), Ok(None))
                    }
                    // Without a space behind it, unlike every other error.
                    Some(_) => (MAGIC.len(), Err(Refusal { text: b"E_BAD_PROTOCOL".to_vec(), is_fatal: true })),
                },
                Awaits::Line => match rest.iter().position(|byte| *byte == b'\n') {
                    Some(end) if end <= LINE_BYTES_MAX => {
                        let line = rest[..end].to_vec();
                        (end + 1, self.command(&line, registry, now))
                    }
                    None if rest.len() <= LINE_BYTES_MAX => break,
                    _ => (rest.len(), Err(Refusal::new("E_INVALID", "a command is too long"))),
                },
                Awaits::IdentityLength => match rest.first_chunk::<4>() {
                    None => break,
                    Some(length) => {
                        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(usize::MAX);
                        self.awaits = Awaits::Identity(length);
                        let too_long = Refusal::new("E_BAD_BODY", "IDENTIFY body is too long");
                        (4, if length <= IDENTITY_BYTES_MAX { Ok(None) } else { Err(too_long) })
                    }
                },
                Awaits::Identity(length) => match rest.get(..length) {
                    None => break,
                    Some(body) => {
                        let body = body.to_vec();
                        self.awaits = Awaits::Line;
                        (length, self.identify(&body, registry, about, now).map(Some))
                    }
                },
            };
            at += used;
            if self.answer(result, out) == Flow::Close {
                return Flow::Close;
            }
        }
        self.input.drain(..at);
        Flow::Continue
    }

    /// The node sends nothing more.
    pub fn end_of_input(&mut self, out: &mut Vec<u8>) {
        let text = match self.awaits {
            Awaits::IdentityLength => "IDENTIFY failed to read body size",
            Awaits::Identity(_) => "IDENTIFY failed to read body",
            Awaits::Magic | Awaits::Line | Awaits::Nothing => return,
        };
        self.answer(Err(Refusal::new("E_BAD_BODY", text)), out);
    }

    /// The connection is gone, in whatever way.
    pub fn end(&mut self, registry: &mut Registry) {
        self.awaits = Awaits::Nothing;
        if let Some(peer) = self.peer.take() {
            tracing::info!(node = self.remote_address, "a node is gone: its registrations are removed");
            registry.disconnect(peer);
        }
    }

    fn answer(&mut self, result: Result<Option<Vec<u8>>, Refusal>, out: &mut Vec<u8>) -> Flow {
        match result {
            Ok(None) => Flow::Continue,
            Ok(Some(text)) => {
                frame(&text, out);
                Flow::Continue
            }
            Err(refusal) => {
                tracing::warn!(node = self.remote_address, error = %String::from_utf8_lossy(&refusal.text), "a node's connection is \
                    refused");
                frame(&refusal.text, out);
                if refusal.is_fatal {
                    self.awaits = Awaits::Nothing;
                    self.input = Vec::new();
                    return Flow::Close;
                }
                Flow::Continue
            }
        }
    }

    fn command(&mut self, line: &[u8], registry: &mut Registry, now: Now) -> Result<Option<Vec<u8>>, Refusal> {
        // Words between single spaces: two in a row have an empty word between them.
        let mut words = line.trim_ascii().split(|byte| *byte == b' ');
        let command = words.next().unwrap_or_default();
        match command {
            b"PING" => {
                if let Some(silent) = self.peer.and_then(|peer| registry.ping(peer, now)) {
                    self.log_ping(silent);
                }
                Ok(Some(b"OK".to_vec()))
            }
            b"IDENTIFY" if self.peer.is_some() => Err(Refusal::new("E_INVALID", "cannot IDENTIFY again")),
            b"IDENTIFY" => {
                self.awaits = Awaits::IdentityLength;
                Ok(None)
            }
            b"REGISTER" | b"UNREGISTER" => {
                let Some(peer) = self.peer else { return Err(Refusal::new("E_INVALID", "client must IDENTIFY")) };
                let (topic, channel) = names(command, words)?;
                if command == b"REGISTER" {
                    let full =
                        |error| Refusal { is_fatal: false, ..Refusal::new("E_TOO_MANY_REGISTRATIONS", format!("{error}")) };
                    registry.register(peer, &topic, channel.as_ref()).map_err(full)?;
                } else {
                    registry.unregister(peer, &topic, channel.as_ref());
                }
                let (did, channel) = (String::from_utf8_lossy(command), channel.as_ref().map_or("", Name::as_str));
                tracing::info!(node = self.remote_address, topic = topic.as_str(), channel, "{did}");
                Ok(Some(b"OK".to_vec()))
            }
            other => Err(Refusal::new("E_INVALID", [b"invalid command ", other].concat())),
        }
    }

    fn identify(&mut self, body: &[u8], registry: &mut Registry, about: &About, now: Now) -> Result<Vec<u8>, Refusal> {
        let info = identity::parse(body, &self.remote_address).map_err(|text| Refusal::new("E_BAD_BODY", text))?;
        tracing::info!(
            node = self.remote_address,
            address = info.broadcast_address,
            tcp_port = info.tcp_port,
            http_port = info.http_port,
            version = info.version,
            "a node has identified itself"
        );
        self.peer = Some(registry.connect(info, now));
        let answer = serde_json::json!({
            "broadcast_address": about.broadcast_address,
            "hostname": about.hostname,
            "http_port": about.http_port,
            "tcp_port": about.tcp_port,
            "version": NSQ_VERSION,
        });
        Ok(go::to_json(&answer).into_bytes())
    }

    fn log_ping(&self, silent: Duration) {
        tracing::debug!(node = self.remote_address, ?silent, "a node sent a PING");
    }
}

/// The topic and the channel, if one is named, of REGISTER and UNREGISTER.
fn names<'a>(command: &[u8], mut words: impl Iterator<Item = &'a [u8]>) -> Result<(Name, Option<Name>), Refusal> {
    let refused =
        |code, kind: &[u8], name: &[u8]| Refusal::new(code, [command, b" ", kind, b" name '", name, b"' is not valid"].concat());
    let name = |word: &[u8]| std::str::from_utf8(word).ok().and_then(Name::new);
    let Some(topic) = words.next() else {
        return Err(Refusal::new("E_INVALID", [command, b" insufficient number of params"].concat()));
    };
    let channel = words.next().filter(|word| !word.is_empty());
    let topic = name(topic).ok_or_else(|| refused("E_BAD_TOPIC", b"topic", topic))?;
    let channel = channel.map(|word| name(word).ok_or_else(|| refused("E_BAD_CHANNEL", b"channel", word))).transpose()?;
    Ok((topic, channel))
}

fn frame(text: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(text.len()).expect("an answer is short");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(text);
}
