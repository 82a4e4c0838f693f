//! A batch: the messages that are appended, replicated and committed together. One header, one checksummed body.
//! Encoded once, by the leader; the same bytes stand in the journal, in the segment and in every replica.
//!
//! ```text
//! header, 128 bytes
//!   0 magic "RQB1"   4 header crc (of 8..128)   8 topic id   24 partition   26 flags   28 num
//!  32 epoch         40 log id   48 last log id  56 offset    64 count       72 base timestamp
//!  80 producer id   88 first sequence           96 body len 100 body crc   104 prev crc   108 version   110 zeros
//! body: per message
//!   0 len (of what follows)   4 flags   6 zero   8 delta us (from the base timestamp)   [12 due i64] [trace u64]
//!   [ext len u16, ext]   [first id u64, time i64, attempts u16, channel len u8, channel]   body
//! ```
//! The body is position-independent: ids come from a message's index, times from the header's base timestamp.

use crate::base::{Epoch, LogId, PartitionId, Position, TopicId};
use crate::format::files::{Bad, VERSION};
use bytes::Bytes;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const BATCH_MAGIC: [u8; 4] = *b"RQB1";
/// Longer batches have memory of their own; the small ones of a core stand behind each other.
pub const COPIED_MAX: usize = 8 * 1024;

pub const BATCH_HEADER_LEN: usize = size_of::<BatchHeader>();
/// A body is never longer; a length read from disk is held against it before it is believed.
pub const BATCH_BODY_MAX: usize = 64 * 1024 * 1024;
/// Bytes of one message beside its body, when it has no option.
pub const MESSAGE_OVERHEAD: usize = 12;
/// Bytes that a due time adds to that.
pub const DUE_LEN: usize = 8;
/// Bytes that a copy's option adds, beside the channel's name.
pub const COPY_LEN: usize = 19;

/// The batch has no body: its messages were lost to damage before they could be read. Readers step over it.
pub const BATCH_LOST: u16 = 1;
/// Messages of the batch have a due time: a reader that takes runs has to look at each message's head.
pub const BATCH_DUE: u16 = 2;

const MESSAGE_DUE: u16 = 1;
const MESSAGE_TRACE: u16 = 2;
const MESSAGE_EXT: u16 = 4;
const MESSAGE_COPY: u16 = 8;
const MESSAGE_FLAGS: u16 = MESSAGE_DUE | MESSAGE_TRACE | MESSAGE_EXT | MESSAGE_COPY;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct BatchHeader {
    pub magic: [u8; 4],
    /// Crc of all bytes of the header after it. As the body's crc is among them, it names the batch's bytes.
    pub header_crc: U32,
    pub topic_id: [u8; 16],
    pub partition: U16,
    pub flags: U16,
    pub num: U32,
    /// The epoch in which the leader appended it. It stays when the batch is copied.
    pub epoch: U64,
    pub log_id: U64,
    pub last_log_id: U64,
    /// Virtual offset of this header's first byte.
    pub offset: I64,
    /// Messages of the partition before this batch.
    pub count: I64,
    pub base_unix_ns: I64,
    /// Zero: no idempotent producer.
    pub producer_id: U64,
    pub first_sequence: U64,
    /// Length of the body; with [`BATCH_LOST`] the bytes that the lost messages occupied, not checksummed.
    pub body_len: U32,
    pub body_crc: U32,
    /// Header crc of the batch before; zero at the very start.
    pub prev_crc: U32,
    pub version: U16,
    pub reserved: [u8; 18],
}

const _: () = assert!(BATCH_HEADER_LEN == 128);

impl BatchHeader {
    /// The header at the start of `bytes`, whose crc, identity and bounds hold. The body is not looked at.
    pub fn parse(bytes: &[u8], topic_id: TopicId, partition: PartitionId) -> Result<BatchHeader, Bad> {
        let (h, _) = BatchHeader::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        crate::format::files::check(&h.magic, BATCH_MAGIC, h.as_bytes(), h.version.get())?;
        if h.topic_id != topic_id.0 || h.partition.get() != partition.0 {
            return Err(Bad::Foreign);
        }
        let (first, last, num) = (h.log_id.get(), h.last_log_id.get(), h.num.get() as u64);
        let in_order = first >= 1 && last >= first && h.start().is_sane() && last <= LogId::MAX.0;
        let counted = h.is_lost() || (num >= 1 && last.wrapping_sub(first) == num - 1);
        if !in_order || !counted || h.body_len.get() as usize > BATCH_BODY_MAX {
            return Err(Bad::Bounds);
        }
        Ok(h)
    }

    /// Length of the stored body and its crc, as the header at the start of `bytes` says. Not verified.
    pub fn stored_body(bytes: &[u8]) -> Option<(usize, u32)> {
        let (h, _) = BatchHeader::ref_from_prefix(bytes).ok()?;
        let len = if h.is_lost() { 0 } else { h.body_len.get() as usize };
        Some((len, h.body_crc.get()))
    }

    /// True if `bytes` begin with a header, of any version, of this topic, partition and offset. These three fields have the same place
    /// in every version.
    pub fn is_of(bytes: &[u8], topic_id: TopicId, partition: PartitionId, offset: i64) -> bool {
        BatchHeader::ref_from_prefix(bytes)
            .is_ok_and(|(h, _)| h.topic_id == topic_id.0 && h.partition.get() == partition.0 && h.offset.get() == offset)
    }

    pub fn seal(&mut self) {
        crate::format::files::seal(self);
    }

    pub fn is_lost(&self) -> bool {
        self.flags.get() & BATCH_LOST != 0
    }

    pub fn has_due(&self) -> bool {
        self.flags.get() & BATCH_DUE != 0
    }

    pub fn start(&self) -> Position {
        Position { offset: self.offset.get(), count: self.count.get(), log_id: LogId(self.log_id.get()) }
    }

    pub fn end(&self) -> Position {
        Position {
            offset: self.offset.get() + self.len() as i64,
            count: self.count.get() + self.num.get() as i64,
            log_id: LogId(self.last_log_id.get() + 1),
        }
    }

    /// Header and body, where they are stored: of a lost batch there is the header alone.
    pub fn stored_len(&self) -> usize {
        if self.is_lost() { BATCH_HEADER_LEN } else { self.len() }
    }

    /// Header and body.
    #[expect(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        BATCH_HEADER_LEN + self.body_len.get() as usize
    }
}

/// Identity and place of a batch, stamped on it when it is sealed.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub topic_id: TopicId,
    pub partition: PartitionId,
    pub epoch: Epoch,
    /// Position of the batch: the partition's end.
    pub at: Position,
    pub prev_crc: u32,
}

/// Builds one batch after the other.
///
/// A small one is built in memory that the next one is built in, too, and then copied to where batches of all partitions
/// stand behind each other ([`BatchBuilder::seal_in`]); a longer one keeps the memory it was built in.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    /// Length of the last batch: the next one is expected to be like it.
    last_len: usize,
    num: u32,
    base_unix_ns: i64,
    has_due: bool,
}

impl BatchBuilder {
    pub fn is_empty(&self) -> bool {
        self.num == 0
    }

    pub fn num(&self) -> u32 {
        self.num
    }

    /// Bytes so far, header included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Makes room for a batch that is about to begin with so many bytes.
    pub fn reserve(&mut self, bytes: usize) {
        let like_last = self.last_len.min(2 * COPIED_MAX);
        self.bytes.reserve_exact(bytes.max(like_last + like_last / 8));
    }

    /// Gives back memory that was kept for batches to come.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            *self = BatchBuilder::default();
        }
    }

    /// Appends a message without options.
    pub fn push(&mut self, unix_ns: i64, body: &[u8]) {
        self.push_due(unix_ns, None, body);
    }

    /// Appends a message that perhaps has a due time: no channel delivers it earlier.
    pub fn push_due(&mut self, unix_ns: i64, due_unix_ns: Option<i64>, body: &[u8]) {
        self.push_with(unix_ns, due_unix_ns, None, body);
    }

    /// Appends a copy for one channel, with its due time.
    pub fn push_copy(&mut self, unix_ns: i64, due_unix_ns: i64, copy_of: CopyOf<'_>, body: &[u8]) {
        self.push_with(unix_ns, Some(due_unix_ns), Some(copy_of), body);
    }

    fn push_with(&mut self, unix_ns: i64, due_unix_ns: Option<i64>, copy_of: Option<CopyOf<'_>>, body: &[u8]) {
        if self.num == 0 {
            self.bytes.resize(BATCH_HEADER_LEN, 0);
            self.base_unix_ns = unix_ns;
        }
        self.num += 1;
        let delta_us = ((unix_ns - self.base_unix_ns) / 1000).clamp(0, u32::MAX as i64) as u32;
        let mut head = [0; MESSAGE_OVERHEAD];
        let copy_len = copy_of.map_or(0, |copy| COPY_LEN + copy.channel.len());
        let options = if due_unix_ns.is_some() { DUE_LEN } else { 0 } + copy_len;
        let flags = if due_unix_ns.is_some() { MESSAGE_DUE } else { 0 } | if copy_of.is_some() { MESSAGE_COPY } else { 0 };
        head[..4].copy_from_slice(&((MESSAGE_OVERHEAD - 4 + options + body.len()) as u32).to_le_bytes());
        head[4..6].copy_from_slice(&flags.to_le_bytes());
        head[8..].copy_from_slice(&delta_us.to_le_bytes());
        self.bytes.extend_from_slice(&head);
        if let Some(due_unix_ns) = due_unix_ns {
            self.has_due = true;
            self.bytes.extend_from_slice(&due_unix_ns.to_le_bytes());
        }
        if let Some(CopyOf { log_id, unix_ns, attempts, channel }) = copy_of {
            self.bytes.extend_from_slice(&log_id.0.to_le_bytes());
            self.bytes.extend_from_slice(&unix_ns.to_le_bytes());
            self.bytes.extend_from_slice(&attempts.to_le_bytes());
            self.bytes.push(channel.len() as u8);
            self.bytes.extend_from_slice(channel.as_bytes());
        }
        self.bytes.extend_from_slice(body);
    }

    /// Fills in the header and hands out the finished bytes, in memory of their own; the builder is empty afterwards.
    pub fn seal(&mut self, stamp: Stamp) -> Batch {
        let header = self.finish(stamp);
        Batch { header, bytes: Bytes::from(std::mem::take(&mut self.bytes)) }
    }

    /// [`Self::seal`]; a batch of [`COPIED_MAX`] bytes or fewer stands where `keep` puts it.
    pub fn seal_in(&mut self, stamp: Stamp, keep: impl FnOnce(&[u8]) -> Bytes) -> Batch {
        if self.len() > COPIED_MAX {
            return self.seal(stamp);
        }
        let header = self.finish(stamp);
        let bytes = keep(&self.bytes);
        self.bytes.clear();
        Batch { header, bytes }
    }

    fn finish(&mut self, stamp: Stamp) -> BatchHeader {
        assert!(self.num > 0, "an empty batch has no meaning");
        let num = std::mem::take(&mut self.num);
        let flags = if std::mem::take(&mut self.has_due) { BATCH_DUE } else { 0 };
        let bytes = &mut self.bytes[..];
        self.last_len = bytes.len();
        let body_crc = crc32fast::hash(&bytes[BATCH_HEADER_LEN..]);
        let header = stamp.header(bytes.len(), (flags, num), body_crc, self.base_unix_ns, (0, 0));
        bytes[..BATCH_HEADER_LEN].copy_from_slice(header.as_bytes());
        header
    }
}

impl Stamp {
    /// Writes the header of `bytes`, whose body stands behind the header's place already. `sequence`: producer id and
    /// first sequence.
    pub fn seal(self, mut bytes: Vec<u8>, num: u32, body_crc: u32, base_unix_ns: i64, sequence: (u64, u64)) -> Batch {
        let header = self.header(bytes.len(), (0, num), body_crc, base_unix_ns, sequence);
        bytes[..BATCH_HEADER_LEN].copy_from_slice(header.as_bytes());
        Batch { header, bytes: bytes.into() }
    }

    /// Header of a sealed batch. `len`: bytes of header and body. `(flags, num)`: the header's fields.
    fn header(self, len: usize, (flags, num): (u16, u32), body_crc: u32, base_unix_ns: i64, sequence: (u64, u64)) -> BatchHeader {
        let mut header = BatchHeader {
            magic: BATCH_MAGIC,
            header_crc: 0.into(),
            topic_id: self.topic_id.0,
            partition: self.partition.0.into(),
            flags: flags.into(),
            num: num.into(),
            epoch: self.epoch.0.into(),
            log_id: self.at.log_id.0.into(),
            last_log_id: (self.at.log_id.0 + num as u64 - 1).into(),
            offset: self.at.offset.into(),
            count: self.at.count.into(),
            base_unix_ns: base_unix_ns.into(),
            producer_id: sequence.0.into(),
            first_sequence: sequence.1.into(),
            body_len: ((len - BATCH_HEADER_LEN) as u32).into(),
            body_crc: body_crc.into(),
            prev_crc: self.prev_crc.into(),
            version: VERSION.into(),
            reserved: [0; 18],
        };
        header.seal();
        header
    }
}

/// A whole batch whose header and body were verified (or built) once; the only form in which messages are handed on.
#[derive(Clone, Debug)]
pub struct Batch {
    pub header: BatchHeader,
    /// Header and body; of a lost batch the header alone.
    pub bytes: Bytes,
}

/// A batch as it was found: its header holds, its body was not looked at.
#[derive(Clone, Debug)]
pub struct FoundBatch {
    pub header: BatchHeader,
    bytes: Bytes,
}

impl FoundBatch {
    /// Takes the batch at the start of `bytes` out without copying.
    pub fn parse(bytes: &Bytes, topic_id: TopicId, partition: PartitionId) -> Result<FoundBatch, Bad> {
        let header = BatchHeader::parse(bytes, topic_id, partition)?;
        FoundBatch::of(header, bytes).ok_or(Bad::Short)
    }

    /// The same for a header that was parsed from the start of `bytes`. `None`: they end before the batch does.
    pub fn of(header: BatchHeader, bytes: &Bytes) -> Option<FoundBatch> {
        let len = header.stored_len();
        (bytes.len() >= len).then(|| FoundBatch { header, bytes: bytes.slice(..len) })
    }

    pub fn verify(self) -> Result<Batch, Bad> {
        self.verify_if(|body, crc| crc32fast::hash(body) == crc)
    }

    fn verify_if(self, holds: impl Fn(&[u8], u32) -> bool) -> Result<Batch, Bad> {
        let FoundBatch { header, bytes } = self;
        let batch = Batch { header, bytes };
        if header.is_lost() {
            return Ok(batch);
        }
        if !holds(&batch.bytes[BATCH_HEADER_LEN..], header.body_crc.get()) {
            return Err(Bad::Crc);
        }
        // The index of a message is its id, so a body with another number of messages is not this batch.
        if batch.messages().count() != header.num.get() as usize {
            return Err(Bad::Bounds);
        }
        Ok(batch)
    }
}

impl Batch {
    /// Verifies the batch at the start of `bytes`, header and body, and takes it out without copying.
    pub fn parse(bytes: &Bytes, topic_id: TopicId, partition: PartitionId) -> Result<Batch, Bad> {
        FoundBatch::parse(bytes, topic_id, partition)?.verify()
    }

    /// [`Batch::parse`] without the body's crc: the caller has verified it ([`BatchHeader::stored_body`]).
    pub fn parse_checked(bytes: &Bytes, topic_id: TopicId, partition: PartitionId) -> Result<Batch, Bad> {
        FoundBatch::parse(bytes, topic_id, partition)?.verify_if(|_, _| true)
    }

    /// Lost batch, in place of messages that can no longer be read: `from .. to` in ids, counts and bytes. It names no producer, since
    /// the lost messages may be those of several. The next append of a producer tells its sequence again. `None` when the gap has no
    /// room for a header (then it is not a gap that whole batches left).
    pub fn lost(
        topic_id: TopicId,
        partition: PartitionId,
        epoch: Epoch,
        from: Position,
        to: Position,
        prev_crc: u32,
    ) -> Option<Batch> {
        let body_len = u32::try_from(to.offset - from.offset - BATCH_HEADER_LEN as i64).ok()?;
        let num = u32::try_from(to.count - from.count).ok()?;
        let mut header = BatchHeader {
            magic: BATCH_MAGIC,
            header_crc: 0.into(),
            topic_id: topic_id.0,
            partition: partition.0.into(),
            flags: BATCH_LOST.into(),
            num: num.into(),
            epoch: epoch.0.into(),
            log_id: from.log_id.0.into(),
            last_log_id: (to.log_id.0 - 1).into(),
            offset: from.offset.into(),
            count: from.count.into(),
            base_unix_ns: 0.into(),
            producer_id: 0.into(),
            first_sequence: 0.into(),
            body_len: body_len.into(),
            body_crc: 0.into(),
            prev_crc: prev_crc.into(),
            version: VERSION.into(),
            reserved: [0; 18],
        };
        header.seal();
        Some(Batch { header, bytes: Bytes::copy_from_slice(header.as_bytes()) })
    }

    pub fn messages(&self) -> Messages<'_> {
        Messages {
            rest: &self.bytes[BATCH_HEADER_LEN..],
            log_id: self.header.log_id.get(),
            base_unix_ns: self.header.base_unix_ns.get(),
        }
    }
}

/// Message inside a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub log_id: LogId,
    pub unix_ns: i64,
    /// No channel delivers it earlier.
    pub due_unix_ns: Option<i64>,
    pub trace: u64,
    pub ext: &'a [u8],
    /// The message is there for one channel alone.
    pub copy_of: Option<CopyOf<'a>>,
    pub body: &'a [u8],
}

/// The message of a copy as its channel's clients know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOf<'a> {
    pub log_id: LogId,
    pub unix_ns: i64,
    /// Deliveries before.
    pub attempts: u16,
    /// Name of the channel, at most 255 bytes, as names are shorter.
    pub channel: &'a str,
}

impl<'a> CopyOf<'a> {
    /// Decodes the option at the start of `tail`. Returns it and the bytes behind it.
    fn parse(tail: &'a [u8]) -> Option<(CopyOf<'a>, &'a [u8])> {
        let (head, tail) = tail.split_first_chunk::<COPY_LEN>()?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("the range is 8 long"));
        let (channel, tail) = tail.split_at_checked(head[18] as usize)?;
        let channel = std::str::from_utf8(channel).ok()?;
        let attempts = u16::from_le_bytes([head[16], head[17]]);
        Some((CopyOf { log_id: LogId(word(0)), unix_ns: word(8) as i64, attempts, channel }, tail))
    }
}

/// The messages of a body, in order. Ends early at a length that does not fit: [`Batch::parse`] counts.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
    log_id: u64,
    base_unix_ns: i64,
}

impl<'a> Messages<'a> {
    /// Walks the body of a batch that a `Messages` was suspended on: `rest` begins at a message.
    pub fn resume(rest: &'a [u8], log_id: LogId, base_unix_ns: i64) -> Self {
        Messages { rest, log_id: log_id.0, base_unix_ns }
    }

    /// Bytes that were not walked yet.
    pub fn rest_len(&self) -> usize {
        self.rest.len()
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (head, rest) = self.rest.split_at_checked(4)?;
        let len = u32::from_le_bytes(head.try_into().ok()?) as usize;
        let (entry, rest) = rest.split_at_checked(len)?;
        let (head, mut tail) = entry.split_at_checked(MESSAGE_OVERHEAD - 4)?;
        let flags = u16::from_le_bytes([head[0], head[1]]);
        if flags & !MESSAGE_FLAGS != 0 {
            return None;
        }
        let delta_us = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let mut take_8 = || -> Option<[u8; 8]> {
            let (v, t) = tail.split_at_checked(8)?;
            tail = t;
            v.try_into().ok()
        };
        let due_unix_ns = if flags & MESSAGE_DUE != 0 { Some(i64::from_le_bytes(take_8()?)) } else { None };
        let trace = if flags & MESSAGE_TRACE != 0 { u64::from_le_bytes(take_8()?) } else { 0 };
        let ext: &[u8] = if flags & MESSAGE_EXT != 0 {
            let (len, t) = tail.split_at_checked(2)?;
            let (ext, t) = t.split_at_checked(u16::from_le_bytes([len[0], len[1]]) as usize)?;
            tail = t;
            ext
        } else {
            &[]
        };
        let copy_of = match flags & MESSAGE_COPY != 0 {
            true => {
                let (copy_of, t) = CopyOf::parse(tail)?;
                tail = t;
                Some(copy_of)
            }
            false => None,
        };
        let log_id = LogId(self.log_id);
        self.log_id += 1;
        self.rest = rest;
        Some(Message {
            log_id,
            unix_ns: self.base_unix_ns.saturating_add(delta_us as i64 * 1000),
            due_unix_ns,
            trace,
            ext,
            copy_of,
            body: tail,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::format::batch::*;

    fn stamp() -> Stamp {
        Stamp {
            topic_id: TopicId([7; 16]),
            partition: PartitionId(3),
            epoch: Epoch(2),
            at: Position { offset: 1000, count: 41, log_id: LogId(42) },
            prev_crc: 9,
        }
    }

    #[test]
    fn a_batch_comes_back_as_it_went() {
        let mut b = BatchBuilder::default();
        b.push(5_000_000, b"one");
        b.push(5_007_000, b"");
        let batch = b.seal(stamp());
        assert!(b.is_empty());
        let found = Batch::parse(&batch.bytes, TopicId([7; 16]), PartitionId(3)).unwrap();
        assert_eq!(found.header, batch.header);
        let m: Vec<_> = found.messages().map(|m| (m.log_id.0, m.unix_ns, m.body)).collect();
        assert_eq!(m, [(42, 5_000_000, &b"one"[..]), (43, 5_007_000, b"")]);
        assert_eq!(found.header.end(), Position { offset: 1000 + batch.bytes.len() as i64, count: 43, log_id: LogId(44) });
    }

    #[test]
    fn a_due_time_comes_back_and_marks_the_batch() {
        let mut b = BatchBuilder::default();
        b.push(5_000_000, b"now");
        b.push_due(5_000_000, Some(-7), b"late");
        assert_eq!(b.len(), BATCH_HEADER_LEN + 2 * MESSAGE_OVERHEAD + DUE_LEN + 7);
        let batch = b.seal(stamp());
        let found = Batch::parse(&batch.bytes, TopicId([7; 16]), PartitionId(3)).unwrap();
        let m: Vec<_> = found.messages().map(|m| (m.due_unix_ns, m.body)).collect();
        assert_eq!((found.header.has_due(), m), (true, vec![(None, &b"now"[..]), (Some(-7), b"late")]));
        b.push(5_000_000, b"now");
        assert!(!b.seal(stamp()).header.has_due(), "the mark is the batch's own");
    }

    #[test]
    fn a_copy_says_of_what_and_for_whom() {
        let mut b = BatchBuilder::default();
        let copy_of = CopyOf { log_id: LogId(7), unix_ns: -3, attempts: 9, channel: "a.channel" };
        b.push_copy(5_000_000, 77, copy_of, b"again");
        assert_eq!(b.len(), BATCH_HEADER_LEN + MESSAGE_OVERHEAD + DUE_LEN + COPY_LEN + 9 + 5);
        let batch = b.seal(stamp());
        let found = Batch::parse(&batch.bytes, TopicId([7; 16]), PartitionId(3)).unwrap();
        let m: Vec<_> = found.messages().map(|m| (m.log_id.0, m.due_unix_ns, m.copy_of, m.body)).collect();
        assert_eq!(m, [(42, Some(77), Some(copy_of), &b"again"[..])]);
    }

    #[test]
    fn no_changed_bit_passes() {
        let mut b = BatchBuilder::default();
        b.push(1, b"hello");
        let batch = b.seal(stamp());
        for bit in 0..batch.bytes.len() * 8 {
            let mut bytes = batch.bytes.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Batch::parse(&bytes.into(), TopicId([7; 16]), PartitionId(3)).is_err(), "bit {bit}");
        }
        assert_eq!(Batch::parse(&batch.bytes, TopicId([8; 16]), PartitionId(3)).unwrap_err(), Bad::Foreign);
        assert_eq!(Batch::parse(&vec![0; 500].into(), TopicId([0; 16]), PartitionId(0)).unwrap_err(), Bad::Zero);
    }
}
