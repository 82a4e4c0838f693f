//! Messages on their way into the log, encoded once: in the form in which they will stand there.

use super::error::{Error, Result};
use bytes::Bytes;
use ringmq_protocol::format::batch::{BATCH_BODY_MAX, MESSAGE_OVERHEAD};
use std::time::Instant;

/// Messages that are stored together, all or nothing, in one partition. Bodies are copied once, into their final form.
///
/// ```
/// let mut batch = ringmq_client::Batch::with_capacity(2, 64);
/// batch.push(b"first");
/// batch.push(b"second");
/// assert_eq!(batch.num(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Batch {
    body: Vec<u8>,
    num: u32,
    base: Option<Instant>,
    last_delta_us: u32,
    message_max: usize,
}

impl Batch {
    /// A batch without messages.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Room for so many messages of so many bytes in all, so that nothing grows.
    pub fn with_capacity(messages: usize, bytes: usize) -> Batch {
        Batch { body: Vec::with_capacity(messages * MESSAGE_OVERHEAD + bytes), ..Batch::default() }
    }

    /// Appends a message, made now.
    pub fn push(&mut self, message: &[u8]) {
        self.push_at(Instant::now(), message);
    }

    /// Appends a message, made at `at`. The log keeps times that do not fall: an earlier time counts as that of the message before.
    pub fn push_at(&mut self, at: Instant, message: &[u8]) {
        let base = *self.base.get_or_insert(at);
        let delta_us = u32::try_from(at.saturating_duration_since(base).as_micros()).unwrap_or(u32::MAX);
        self.last_delta_us = self.last_delta_us.max(delta_us);
        // a message too long for its own length field is refused when the batch is sent
        let len = u32::try_from(MESSAGE_OVERHEAD - 4 + message.len()).unwrap_or(u32::MAX);
        let mut head = [0; MESSAGE_OVERHEAD];
        head[..4].copy_from_slice(&len.to_le_bytes());
        head[8..].copy_from_slice(&self.last_delta_us.to_le_bytes());
        self.body.reserve(MESSAGE_OVERHEAD + message.len());
        self.body.extend_from_slice(&head);
        self.body.extend_from_slice(message);
        self.num += 1;
        self.message_max = self.message_max.max(message.len());
    }

    /// The number of its messages.
    pub fn num(&self) -> u32 {
        self.num
    }

    /// True if the batch has no messages.
    pub fn is_empty(&self) -> bool {
        self.num == 0
    }

    /// Bytes as stored, without the batch's own header.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Checks the batch against the node's limits.
    pub(super) fn check(&self, limits: &Limits) -> Result<()> {
        if self.num == 0 {
            return Err(Error::Empty);
        }
        if self.message_max > limits.message_bytes {
            return Err(Error::TooBig { len: self.message_max, max: limits.message_bytes });
        }
        if self.body.len() > limits.body_bytes {
            return Err(Error::TooBig { len: self.body.len(), max: limits.body_bytes });
        }
        Ok(())
    }

    pub(super) fn into_body(self) -> Bytes {
        self.body.into()
    }
}

/// Limits of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub message_bytes: usize,
    pub body_bytes: usize,
}

impl Limits {
    /// Limits for messages and frames of these lengths. A few hundred bytes of a frame go to its head and metadata, the rest to the
    /// body.
    pub fn new(message_bytes: usize, frame_bytes: usize) -> Limits {
        Limits { message_bytes, body_bytes: frame_bytes.saturating_sub(1024).min(BATCH_BODY_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringmq_core::log::native::{BodyLimits, verify_body};
    use std::time::Duration;

    #[test]
    fn what_is_encoded_is_what_the_node_takes() {
        let (mut batch, base) = (Batch::new(), Instant::now());
        for (ms, body) in [(5, &b"one"[..]), (9, b""), (7, b"three")] {
            batch.push_at(base + Duration::from_millis(ms), body);
        }
        let body = batch.clone().into_body();
        let limits = BodyLimits { message_bytes_max: 5, body_bytes_max: 100 };
        let info = verify_body(&body, 3, crc32fast::hash(&body), &limits).expect("as the node asks for");
        assert_eq!((info.last_delta_us, info.message_bytes), (4000, 8));
        assert!(batch.check(&Limits { message_bytes: 5, body_bytes: body.len() }).is_ok());
        assert!(matches!(batch.check(&Limits { message_bytes: 4, body_bytes: 100 }), Err(Error::TooBig { len: 5, max: 4 })));
        assert!(matches!(batch.check(&Limits { message_bytes: 5, body_bytes: 9 }), Err(Error::TooBig { max: 9, .. })));
        assert!(matches!(Batch::new().check(&Limits { message_bytes: 5, body_bytes: 9 }), Err(Error::Empty)));
    }
}
