//! Output of a session for its socket: frames in one piece of memory, and between them payloads that are lent to it.

use super::NativeSession;
use crate::base::Now;
use crate::codec::native::{Messages, Payload, Reply};
use crate::codec::output::Output;
use bytes::Bytes;
use std::mem;

/// Bytes that a frame takes beside its messages, at most.
const MESSAGES_HEAD: usize = 256;

/// Bytes that a connection's next output is expected to take at most, so that it grows once.
const OUTPUT_HINT_MAX: usize = 256 * 1024;

impl NativeSession {
    /// Messages for a subscription, and their bytes as stored.
    pub fn messages(&mut self, messages: Messages, payload: &[u8], crc: u32) {
        let out = roomy(&mut self.out, self.out_hint);
        out.reserve(MESSAGES_HEAD + payload.len());
        self.encoder.reply(out, 0, &Reply::Messages(messages), Payload { len: payload.len(), crc });
        out.extend_from_slice(payload);
    }

    /// The same for bytes that need not be copied: they go to the socket from where they stand.
    pub fn lent_messages(&mut self, messages: Messages, payload: Bytes, crc: u32) {
        self.encoder.reply(&mut self.out, 0, &Reply::Messages(messages), Payload { len: payload.len(), crc });
        self.pieces_bytes += self.out.len() + payload.len();
        self.pieces.extend([mem::take(&mut self.out).into(), payload]);
    }

    pub fn take_output(&mut self, now: Now) -> Option<Output> {
        let bytes = self.untaken();
        if bytes == 0 {
            return None;
        }
        if self.unsent == 0 {
            self.sent_since = now.ticks;
        }
        self.said_since = now.ticks;
        self.unsent += bytes;
        self.out_hint = self.out.len().min(OUTPUT_HINT_MAX);
        let rest = mem::take(&mut self.out);
        if self.pieces.is_empty() {
            return Some(Output::Whole(rest));
        }
        self.pieces_bytes = 0;
        let mut pieces = mem::take(&mut self.pieces);
        pieces.extend((!rest.is_empty()).then(|| rest.into()));
        Some(Output::Pieces(pieces))
    }

    /// Bytes for the socket that it was not given yet.
    pub(super) fn untaken(&self) -> usize {
        self.pieces_bytes + self.out.len()
    }
}

/// The output with room for about as much as was sent last time, so that a busy connection's grows once a turn.
pub(super) fn roomy(out: &mut Vec<u8>, hint: usize) -> &mut Vec<u8> {
    if out.capacity() == 0 {
        out.reserve(hint);
    }
    out
}
