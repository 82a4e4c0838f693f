//! A batch whose body a client has encoded in the form of the disk: verified once, completed with a header, stored as it
//! came. No message is copied or encoded again.
//!
//! ```text
//! bytes   [128 zeros: the header's place][body as received]      -> verify -> NativeBatch -> Store::append_batch
//! ```
//! Pure, and of no partition yet: it may be verified on the connection's core and appended on another one.

use crate::format::batch::{BATCH_BODY_MAX, BATCH_HEADER_LEN, Batch, MESSAGE_OVERHEAD, Stamp};
use crate::format::producer::Sequence;

const MESSAGE_DUE: u16 = 1;
const MESSAGE_TRACE: u16 = 2;
const MESSAGE_EXT: u16 = 4;

/// Bounds of a body, and of each message in it.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Bytes of a message: its body and its ext.
    pub message_bytes_max: usize,
    /// Bytes of the whole body; at most [`BATCH_BODY_MAX`] counts.
    pub body_bytes_max: usize,
}

/// Facts of a body that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyInfo {
    /// Delta of its last message, which is its largest.
    pub last_delta_us: u32,
    /// Bytes of the messages' own bodies.
    pub message_bytes: usize,
}

/// Reason why a body is not stored. `message` counts from 0. The client is wrong, so a repeat is refused again; except [`BadBody::Crc`],
/// which may also come from a bit flipped on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    #[error("the batch has no message")]
    Empty,
    #[error("the body has {len} bytes, and the node takes at most {max}: publish fewer messages at a time")]
    TooBig { len: usize, max: usize },
    #[error("the body's crc32 is {found:08x}, and {expected:08x} was announced")]
    Crc { expected: u32, found: u32 },
    #[error("the body ends within message {message}")]
    Truncated { message: u32 },
    #[error("the body holds {found} messages or more, and {expected} were announced")]
    Count { expected: u32, found: u32 },
    #[error("message {message}: flags {flags:#06x} are not known to this node")]
    Flags { message: u32, flags: u16 },
    #[error("message {message} has a due time: the native protocol takes no delayed messages")]
    Delayed { message: u32 },
    #[error("message {message}: bytes 6 and 7 are reserved and must be zero")]
    Reserved { message: u32 },
    #[error("message {message} has {len} bytes, and the node takes at most {max}")]
    MessageTooBig { message: u32, len: usize, max: usize },
    #[error("message {message} is older than the one before it: deltas must not fall")]
    Order { message: u32 },
}

/// Holds a received body to the format (docs/on-disk.md, Batch): its crc once, then the head of each message.
pub fn verify_body(body: &[u8], num: u32, body_crc: u32, limits: &BodyLimits) -> Result<BodyInfo, BadBody> {
    let max = limits.body_bytes_max.min(BATCH_BODY_MAX);
    if num == 0 || body.is_empty() {
        return Err(BadBody::Empty);
    }
    if body.len() > max {
        return Err(BadBody::TooBig { len: body.len(), max });
    }
    let found = crc32fast::hash(body);
    if found != body_crc {
        return Err(BadBody::Crc { expected: body_crc, found });
    }
    let mut info = BodyInfo { last_delta_us: 0, message_bytes: 0 };
    let (mut rest, mut message) = (body, 0);
    while !rest.is_empty() {
        if message == num {
            return Err(BadBody::Count { expected: num, found: num.saturating_add(1) });
        }
        rest = verify_message(rest, message, limits, &mut info)?;
        message += 1;
    }
    if message != num {
        return Err(BadBody::Count { expected: num, found: message });
    }
    Ok(info)
}

/// Verifies the message at the start of `rest`. Returns the bytes behind it.
fn verify_message<'a>(rest: &'a [u8], message: u32, limits: &BodyLimits, info: &mut BodyInfo) -> Result<&'a [u8], BadBody> {
    let truncated = BadBody::Truncated { message };
    let (head, after) = rest.split_first_chunk::<MESSAGE_OVERHEAD>().ok_or(truncated)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (len, delta_us) = (word(0) as usize, word(8));
    let flags = u16::from_le_bytes([head[4], head[5]]);
    if flags & !(MESSAGE_DUE | MESSAGE_TRACE | MESSAGE_EXT) != 0 {
        return Err(BadBody::Flags { message, flags });
    }
    if flags & MESSAGE_DUE != 0 {
        return Err(BadBody::Delayed { message });
    }
    if head[6..8] != [0, 0] {
        return Err(BadBody::Reserved { message });
    }
    if delta_us < info.last_delta_us {
        return Err(BadBody::Order { message });
    }
    let len = len.checked_sub(MESSAGE_OVERHEAD - 4).ok_or(truncated)?;
    let (mut entry, after) = after.split_at_checked(len).ok_or(truncated)?;
    if flags & MESSAGE_TRACE != 0 {
        entry = entry.get(8..).ok_or(truncated)?;
    }
    let mut ext = 0;
    if flags & MESSAGE_EXT != 0 {
        let (ext_len, tail) = entry.split_first_chunk::<2>().ok_or(truncated)?;
        ext = u16::from_le_bytes(*ext_len) as usize;
        entry = tail.get(ext..).ok_or(truncated)?;
    }
    let (len, max) = (entry.len() + ext, limits.message_bytes_max);
    if len > max {
        return Err(BadBody::MessageTooBig { message, len, max });
    }
    info.last_delta_us = delta_us;
    info.message_bytes += entry.len();
    Ok(after)
}

/// A batch as a client sent it, verified, with room for its header.
#[derive(Debug, PartialEq, Eq)]
pub struct NativeBatch {
    bytes: Vec<u8>,
    num: u32,
    body_crc: u32,
    info: BodyInfo,
    sequence: Option<Sequence>,
}

impl NativeBatch {
    /// `bytes`: 128 bytes for the header, whatever they hold, and the body behind them. `sequence`: of an idempotent
    /// producer.
    pub fn verify(
        bytes: Vec<u8>,
        num: u32,
        body_crc: u32,
        sequence: Option<Sequence>,
        limits: &BodyLimits,
    ) -> Result<NativeBatch, BadBody> {
        let info = verify_body(bytes.get(BATCH_HEADER_LEN..).unwrap_or(&[]), num, body_crc, limits)?;
        Ok(NativeBatch { bytes, num, body_crc, info, sequence })
    }

    pub fn num(&self) -> u32 {
        self.num
    }

    /// Header and body.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the messages' own bodies.
    pub fn message_bytes(&self) -> usize {
        self.info.message_bytes
    }

    pub fn sequence(&self) -> Option<Sequence> {
        self.sequence
    }

    /// The base timestamp: its last message was made now, unless that would be before `from`, the batch before it.
    /// Searching by time counts on base timestamps that do not fall.
    pub(super) fn base_unix_ns(&self, now_unix_ns: i64, from: i64) -> i64 {
        now_unix_ns.saturating_sub(self.info.last_delta_us as i64 * 1000).max(from)
    }

    /// Writes the header into its place.
    pub fn seal(self, stamp: Stamp, base_unix_ns: i64) -> Batch {
        let sequence = self.sequence.map_or((0, 0), |s| (s.producer.get(), s.first));
        stamp.seal(self.bytes, self.num, self.body_crc, base_unix_ns, sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, LogId, PartitionId, Position, ProducerId, TopicId};
    use proptest::prelude::*;

    const LIMITS: BodyLimits = BodyLimits { message_bytes_max: 100, body_bytes_max: 10_000 };

    fn message(flags: u16, delta_us: u32, options: &[u8], body: &[u8]) -> Vec<u8> {
        let mut out = ((8 + options.len() + body.len()) as u32).to_le_bytes().to_vec();
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&delta_us.to_le_bytes());
        out.extend_from_slice(options);
        out.extend_from_slice(body);
        out
    }

    fn verify(body: &[u8], num: u32) -> Result<BodyInfo, BadBody> {
        verify_body(body, num, crc32fast::hash(body), &LIMITS)
    }

    #[test]
    fn a_body_is_held_to_the_format() {
        let (a, b) = (message(0, 5, &[], b"one"), message(MESSAGE_TRACE, 9, &[1; 8], b"two"));
        let ext = message(MESSAGE_TRACE | MESSAGE_EXT, 9, &[0, 0, 0, 0, 0, 0, 0, 0, 2, 0, b'{', b'}'], b"");
        let body = [a.clone(), b.clone(), ext.clone()].concat();
        assert_eq!(verify(&body, 3), Ok(BodyInfo { last_delta_us: 9, message_bytes: 6 }));
        assert_eq!(verify(&body, 2), Err(BadBody::Count { expected: 2, found: 3 }));
        assert_eq!(verify(&body, 4), Err(BadBody::Count { expected: 4, found: 3 }));
        assert_eq!(verify(&[], 1), Err(BadBody::Empty));
        assert_eq!(verify(&body, 0), Err(BadBody::Empty));
        assert!(matches!(verify_body(&body, 3, 1, &LIMITS), Err(BadBody::Crc { expected: 1, .. })));
        let small = BodyLimits { body_bytes_max: 20, ..LIMITS };
        let crc = crc32fast::hash(&body);
        assert_eq!(verify_body(&body, 3, crc, &small), Err(BadBody::TooBig { len: body.len(), max: 20 }));
        for cut in 1..body.len() {
            assert!(verify(&body[..cut], 3).is_err(), "cut at {cut}");
        }
        assert_eq!(verify(&[b, a.clone()].concat(), 2), Err(BadBody::Order { message: 1 }));
        assert_eq!(verify(&message(8, 0, &[], b"x"), 1), Err(BadBody::Flags { message: 0, flags: 8 }));
        let due = message(MESSAGE_DUE, 0, &[0; 8], b"x");
        assert_eq!(verify(&[a.clone(), due].concat(), 2), Err(BadBody::Delayed { message: 1 }));
        let mut reserved = a.clone();
        reserved[7] = 1;
        assert_eq!(verify(&reserved, 1), Err(BadBody::Reserved { message: 0 }));
        let big = message(MESSAGE_EXT, 0, &[1, 0, b'e'], &[0; 100]);
        assert_eq!(verify(&big, 1), Err(BadBody::MessageTooBig { message: 0, len: 101, max: 100 }));
        assert_eq!(verify(&[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1), Err(BadBody::Truncated { message: 0 }));
        assert!(NativeBatch::verify(vec![0; 128], 1, 0, None, &LIMITS).is_err());
        assert!(NativeBatch::verify(vec![0; 3], 1, 0, None, &LIMITS).is_err());
    }

    fn stamp() -> Stamp {
        let at = Position { offset: 1000, count: 41, log_id: LogId(42) };
        Stamp { topic_id: TopicId([7; 16]), partition: PartitionId(3), epoch: Epoch(2), at, prev_crc: 9 }
    }

    #[test]
    fn the_client_s_bytes_are_the_batch() {
        let body = [message(0, 5, &[], b"one"), message(0, 2_000_000, &[], b"two")].concat();
        let mut bytes = vec![0xaa; BATCH_HEADER_LEN];
        bytes.extend_from_slice(&body);
        let place = bytes.as_ptr();
        let sequence = Some(Sequence { producer: ProducerId::new(77).unwrap(), first: 30 });
        let native = NativeBatch::verify(bytes, 2, crc32fast::hash(&body), sequence, &LIMITS).unwrap();
        assert_eq!(
            (native.base_unix_ns(7_000_000_000, 0), native.base_unix_ns(7_000_000_000, 6_000_000_000)),
            (5_000_000_000, 6_000_000_000)
        );
        let batch = native.seal(stamp(), 5_000_000_000);
        assert_eq!(batch.bytes.as_ptr(), place, "nothing was copied");
        let found = Batch::parse(&batch.bytes, TopicId([7; 16]), PartitionId(3)).unwrap();
        assert_eq!((found.header.producer_id.get(), found.header.first_sequence.get()), (77, 30));
        assert_eq!(&found.bytes[BATCH_HEADER_LEN..], &body[..]);
        let m: Vec<_> = found.messages().map(|m| (m.log_id.0, m.unix_ns, m.body)).collect();
        assert_eq!(m, [(42, 5_000_005_000, &b"one"[..]), (43, 7_000_000_000, b"two")]);
    }

    proptest! {
        /// A batch that is accepted is one that every reader accepts, with as many messages as announced.
        #[test]
        fn what_is_taken_can_be_read(
            messages in proptest::collection::vec((0u16..16, 0u32..9, proptest::collection::vec(any::<u8>(), 0..30)), 1..6),
            flip in proptest::option::of((any::<proptest::sample::Index>(), 0u8..8)),
        ) {
            let mut body: Vec<u8> = messages.iter().flat_map(|(f, d, b)| message(*f, *d, &[], b)).collect();
            if let Some((at, bit)) = flip {
                let at = at.index(body.len());
                body[at] ^= 1 << bit;
            }
            let num = messages.len() as u32;
            let bytes = [vec![0; BATCH_HEADER_LEN], body.clone()].concat();
            if let Ok(native) = NativeBatch::verify(bytes, num, crc32fast::hash(&body), None, &LIMITS) {
                let message_bytes = native.message_bytes();
                let batch = native.seal(stamp(), 1);
                let found = Batch::parse(&batch.bytes, TopicId([7; 16]), PartitionId(3)).expect("it is a batch");
                prop_assert_eq!(found.messages().map(|m| m.body.len()).sum::<usize>(), message_bytes);
                prop_assert!(found.messages().all(|m| m.due_unix_ns.is_none()));
            }
        }
    }
}
