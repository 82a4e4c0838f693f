//! Splits a client's bytes into commands. A body that arrives whole is never copied; the limits of a line and a body bound the memory of
//! an incomplete command.

use super::{Session, Stalled};
use crate::base::{Lent, Now};
use crate::codec::nsq::command::{self, Context, Decoded, Progress};
use crate::codec::nsq::{LINE_LEN_MAX, MAGIC};
use crate::session::Host;
use std::mem;

/// An emptied input buffer larger than this gives its memory back: 10,000 idle connections must stay small.
const BUFFER_KEPT: usize = 512;

/// Condition under which the buffer is looked at again.
#[derive(Clone, Copy, Debug)]
enum NeededInput {
    Newline,
    /// Wait for at least `need` bytes in all; up to `expect` are collected.
    Bytes {
        need: usize,
        expect: usize,
    },
}

/// Whole commands may stand in the buffer: it is looked at as it is.
const ANYTHING: NeededInput = NeededInput::Bytes { need: 0, expect: 0 };

/// Received bytes that are not parsed.
#[derive(Debug)]
pub(super) struct Input {
    /// The start of an incomplete command; all that came since when the session stalls.
    buffer: Vec<u8>,
    /// True while the buffer's memory is lent to the receiver.
    is_lent: bool,
    wanted: NeededInput,
    progress: Progress,
}

impl Input {
    /// Goes on with bytes that were not parsed elsewhere.
    pub fn new(unparsed: Vec<u8>) -> Input {
        let wanted = if unparsed.is_empty() { NeededInput::Newline } else { ANYTHING };
        Input { buffer: unparsed, is_lent: false, wanted, progress: Progress::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    pub fn held_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    pub fn take(&mut self) -> Vec<u8> {
        mem::take(&mut self.buffer)
    }

    pub fn clear(&mut self) {
        self.buffer = Vec::new();
    }

    /// Drops the command at the start, of this length: it was answered.
    pub fn drop_command(&mut self, len: usize) {
        self.buffer.drain(..len);
    }

    /// Takes from `bytes` the missing part of the buffered command, as far as its length is known. Returns the rest.
    fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let lacking = match self.wanted {
            NeededInput::Newline => {
                let window = bytes.len().min(LINE_LEN_MAX.saturating_sub(self.buffer.len()));
                bytes[..window].iter().position(|&b| b == b'\n').map_or(window, |at| at + 1)
            }
            NeededInput::Bytes { expect, .. } => expect.saturating_sub(self.buffer.len()).min(bytes.len()),
        };
        let (taken, rest) = bytes.split_at(lacking);
        self.buffer.extend_from_slice(taken);
        rest
    }

    fn has_what_is_wanted(&self) -> bool {
        match self.wanted {
            NeededInput::Newline => self.buffer.last() == Some(&b'\n') || self.buffer.len() >= LINE_LEN_MAX,
            NeededInput::Bytes { need, .. } => self.buffer.len() >= need,
        }
    }

    /// Keeps the start of a command whose rest is still to come, with room for all of it.
    fn keep(&mut self, start: &[u8]) {
        self.make_room();
        self.buffer.extend_from_slice(start);
    }

    /// Puts the buffer back, whose first bytes were parsed.
    fn put_back(&mut self, mut buffer: Vec<u8>, parsed: usize) {
        if parsed < buffer.len() {
            buffer.drain(..parsed);
            self.buffer = buffer;
            self.make_room();
        } else if buffer.capacity() <= BUFFER_KEPT {
            buffer.clear();
            self.buffer = buffer;
        }
    }

    /// Makes room for the whole command that the buffer begins, once. (One that takes more than it claimed grows it again;
    /// the decoder bounds both.)
    fn make_room(&mut self) {
        if let NeededInput::Bytes { expect, .. } = self.wanted {
            self.buffer.reserve(expect.saturating_sub(self.buffer.len()));
        }
    }

    /// Bytes that the command lacks whose start is kept; none when it is lent, or may be short.
    fn missing(&self) -> Option<usize> {
        let NeededInput::Bytes { expect, .. } = self.wanted else { return None };
        (!self.is_lent && !self.buffer.is_empty()).then(|| expect.saturating_sub(self.buffer.len()))
    }

    fn lend(&mut self) -> Vec<u8> {
        self.make_room();
        self.is_lent = true;
        self.take()
    }
}

impl Session {
    /// Parses the client's bytes. Commands are parsed in place and bodies are lent to the host from there; only the start of an
    /// incomplete command is copied.
    pub fn on_bytes(&mut self, now: Now, bytes: &[u8], host: &mut impl Host) {
        if self.transport.is_some() {
            return self.on_wire(now, bytes, host);
        }
        self.on_plain(now, bytes, host);
        self.pump(now, host);
    }

    /// Parses the client's bytes behind TLS and compression.
    pub(super) fn on_plain(&mut self, now: Now, mut bytes: &[u8], host: &mut impl Host) {
        if self.ended {
            return;
        }
        while !self.input.is_empty() {
            if self.stalled.is_some() {
                return self.input.buffer.extend_from_slice(bytes);
            }
            bytes = self.input.fill(bytes);
            if !self.input.has_what_is_wanted() {
                return;
            }
            self.parse_buffer(now, host);
            if self.ended || self.begin_upgrade(now, bytes) {
                return;
            }
        }
        let parsed = self.parse(now, bytes, host);
        if self.ended || self.begin_upgrade(now, &bytes[parsed..]) {
            return;
        }
        if parsed < bytes.len() {
            self.input.keep(&bytes[parsed..]);
        }
    }

    /// Memory for the next receive: the rest of a long body goes directly behind its start.
    pub fn lend(&mut self) -> Option<Lent> {
        if self.transport.is_some() {
            return None; // what comes has to be decoded first
        }
        let wanted = self.input.missing().filter(|&missing| missing >= self.limits.in_place_min && self.wants_reading())?;
        Some(Lent { memory: self.input.lend(), wanted })
    }

    /// Takes back the lent buffer with the received bytes.
    pub fn received(&mut self, now: Now, lent: Lent, host: &mut impl Host) {
        assert!(mem::take(&mut self.input.is_lent), "only what is lent comes back");
        if self.ended {
            return;
        }
        self.input.buffer = lent.memory;
        if self.input.has_what_is_wanted() {
            self.parse_buffer(now, host);
            self.begin_upgrade(now, &[]);
            self.pump(now, host);
        }
    }

    pub(super) fn parse_buffer(&mut self, now: Now, host: &mut impl Host) {
        let buffer = self.input.take();
        let parsed = self.parse(now, &buffer, host);
        if !self.ended {
            self.input.put_back(buffer, parsed);
        }
    }

    /// Runs the commands at the start of `bytes`. Returns their length. The rest is an incomplete or stalled command, and the bytes
    /// behind it.
    fn parse(&mut self, now: Now, bytes: &[u8], host: &mut impl Host) -> usize {
        let mut at = 0;
        while !self.ended && self.upgrade.is_none() && at < bytes.len() {
            if !self.client.greeted {
                let Some(magic) = bytes.first_chunk::<4>() else {
                    self.input.wanted = NeededInput::Bytes { need: MAGIC.len(), expect: MAGIC.len() };
                    return 0;
                };
                self.greet(now, magic);
                at += MAGIC.len();
                continue;
            }
            let context = Context {
                limits: &self.limits,
                state: self.state,
                lacks_tls: self.limits.tls_required && !self.layers().tls,
                has_heartbeats: self.client.negotiated.heartbeat_interval_ms.is_some(),
                has_binary_ids: self.is_placed(),
            };
            match command::decode(&bytes[at..], &mut self.input.progress, &context) {
                Decoded::IncompleteLine => {
                    self.input.wanted = NeededInput::Newline;
                    return at;
                }
                Decoded::IncompleteBody { need, expect } => {
                    self.input.wanted = NeededInput::Bytes { need, expect };
                    return at;
                }
                Decoded::Command { command, len } => {
                    if !self.run(now, command, host) {
                        self.stalled = Some(Stalled { since: now.ticks, len });
                        self.input.wanted = ANYTHING;
                        return at;
                    }
                    self.read_since = now.ticks;
                    at += len;
                }
                Decoded::Authorize { topic } => match self.forbid(now, "MPUB", topic, "", host) {
                    None => self.input.progress.authorized = true,
                    Some(true) => {}
                    Some(false) => {
                        self.stalled = Some(Stalled { since: now.ticks, len: 0 });
                        self.input.wanted = ANYTHING;
                        return at;
                    }
                },
                Decoded::Fault(error) => self.end_with(&error),
                Decoded::LineTooLong => {
                    self.note_fault(&format!("a command line of more than {LINE_LEN_MAX} bytes"));
                    self.end(&[]);
                }
            }
        }
        at
    }
}
