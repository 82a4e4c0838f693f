//! The bytes of a journal file.
//!
//! ```text
//! block 0, 1   checkpoint slots, written in turn; the valid one with the higher sequence counts
//! from 8192    the ring: writes of whole blocks, one after the other; a write never wraps: when it does not fit
//!              before the end of the file, the next one begins at the ring's start with the next lap
//! a write      [WriteHeader 128][directory of this write][directory of the write before][records][zeros to a block]
//!              where some of its records are facts that stand twice: [FactsHeader 64][those records][zeros to a block]
//! a record     [RecordHeader 48][payload][zeros to a multiple of 8]
//! ```
//! A write's own crc covers its header and both directories. A record's crc covers its header and payload; of a batch
//! record the header and the batch's header only, since the batch's body has a crc of its own (one pass over the bytes).

use crate::base::{CoreId, Position, TopicId};
use crate::format::batch::BATCH_HEADER_LEN;
use crate::format::files::{Bad, RawPosition, VERSION};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const WRITE_MAGIC: [u8; 4] = *b"RQJ1";
pub const FACTS_MAGIC: [u8; 4] = *b"RQF1";
pub const CHECKPOINT_MAGIC: [u8; 4] = *b"RQK1";

/// Position in the file at which the ring begins.
pub const RING_START: u64 = 2 * crate::base::BLOCK as u64;

/// Partition number of a record that concerns a topic as a whole.
pub const WHOLE_TOPIC: u16 = u16::MAX;

/// 128 bytes, then zeros to a block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct Checkpoint {
    pub magic: [u8; 4],
    pub crc: U32,
    pub version: U16,
    pub core: U16,
    pub reserved_32: U32,
    /// Random, given when the file was created.
    pub journal_id: [u8; 16],
    /// The node's generation that owns the ring's content.
    pub generation: U64,
    /// Sequence of this slot: even ones stand in block 0, odd ones in block 1.
    pub slot_sequence: U64,
    /// Start of redo: file position, lap and sequence of the first write that it needs. When nothing is to be redone,
    /// where the next write will stand.
    pub position: U64,
    pub lap: U64,
    pub sequence: U64,
    /// Every write up to this sequence was complete: a bad block among them is damage.
    pub durable: U64,
    /// Length of the file.
    pub file_len: U64,
    /// Upper bound of the ends of the generation's writes, counted as [`travelled`] does.
    pub limit: U64,
    pub reserved: [u8; 32],
}

/// A place in a ring as a number that rises over laps.
pub fn travelled(lap: u64, position: u64, file_len: u64) -> u64 {
    lap.saturating_mul(file_len - RING_START).saturating_add(position - RING_START)
}

/// Head of one journal write. 128 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct WriteHeader {
    pub magic: [u8; 4],
    /// Crc of the header and both directories after it.
    pub crc: U32,
    pub version: U16,
    pub core: U16,
    /// Bytes of the write, a whole number of blocks.
    pub len: U32,
    pub journal_id: [u8; 16],
    pub generation: U64,
    pub lap: U64,
    /// Rises by one with each write, from 1, over laps, within a generation.
    pub sequence: U64,
    /// Every write up to this sequence was complete when this one was issued.
    pub durable: U64,
    /// `slot_sequence` of the newest durable checkpoint: tells when a slot that held is lost.
    pub checkpoint: U64,
    /// File position of this header.
    pub position: U64,
    /// Entries of this write's directory, and of the repeated one of the write before.
    pub directory: U32,
    pub previous: U32,
    pub records: U32,
    /// Bytes of all records.
    pub records_len: U32,
    /// Bytes of the copy of this write's facts, and of the copy of the former write; 0: no copy.
    pub facts: U32,
    pub previous_facts: U32,
    pub reserved: [u8; 24],
}

/// Head of the copy of a write's facts, which stands in blocks of its own at the write's end. 64 bytes, then the records.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct FactsHeader {
    pub magic: [u8; 4],
    /// Crc of all that follows it, to the end of the last record.
    pub crc: U32,
    pub version: U16,
    pub core: U16,
    /// Bytes of this header and the records.
    pub len: U32,
    pub journal_id: [u8; 16],
    pub generation: U64,
    /// Sequence of the write.
    pub sequence: U64,
    /// File position of this header.
    pub position: U64,
    pub records: U32,
    /// Records of the write, of which these are some, or all.
    pub all: U32,
}

pub const FACTS_HEADER_LEN: usize = size_of::<FactsHeader>();

impl FactsHeader {
    /// Header of the copy at `position` that belongs to the write with this head. `facts`: the records.
    pub fn seal(write: &WriteHeader, position: u64, records: u32, facts: &[u8]) -> FactsHeader {
        let mut header = FactsHeader {
            magic: FACTS_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            core: write.core,
            len: ((FACTS_HEADER_LEN + facts.len()) as u32).into(),
            journal_id: write.journal_id,
            generation: write.generation,
            sequence: write.sequence,
            position: position.into(),
            records: records.into(),
            all: write.records,
        };
        let mut crc = crc32fast::Hasher::new();
        crc.update(&header.as_bytes()[8..]);
        crc.update(facts);
        header.crc = crc.finalize().into();
        header
    }

    /// The copy has all that the write has.
    pub fn is_all(&self) -> bool {
        self.records == self.all
    }

    /// Parses and verifies the copy at the start of `bytes`.
    pub fn parse(bytes: &[u8], len_max: usize) -> Result<FactsHeader, Bad> {
        let (h, _) = FactsHeader::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        if h.magic != FACTS_MAGIC {
            return Err(Bad::Magic);
        }
        let len = h.len.get() as usize;
        if len < FACTS_HEADER_LEN || len > len_max {
            return Err(Bad::Bounds);
        }
        let covered = bytes.get(8..len).ok_or(Bad::Short)?;
        if h.crc.get() != crc32fast::hash(covered) {
            return Err(Bad::Crc);
        }
        if h.version.get() != VERSION {
            return Err(Bad::Version(h.version.get()));
        }
        Ok(h)
    }
}

/// Entry of a write's directory: where a partition ends after the write. 48 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct DirectoryEntry {
    pub topic_id: [u8; 16],
    /// Or [`WHOLE_TOPIC`].
    pub partition: U16,
    pub reserved: [u8; 6],
    pub end: RawPosition,
}

impl DirectoryEntry {
    pub fn new(topic_id: TopicId, partition: u16, end: Position) -> Self {
        DirectoryEntry { topic_id: topic_id.0, partition: partition.into(), reserved: [0; 6], end: end.into() }
    }
}

/// Head of one record. 48 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq, Eq)]
#[repr(C)]
pub struct RecordHeader {
    pub crc: U32,
    /// Header and payload, padding not.
    pub len: U32,
    pub kind: U16,
    /// Or [`WHOLE_TOPIC`].
    pub partition: U16,
    pub reserved_32: U32,
    pub topic_id: [u8; 16],
    /// Sequence of the record in its partition (in its topic, for [`WHOLE_TOPIC`]): one more with each record, over generations. Redo
    /// skips a record that the partition has already.
    pub sequence: U64,
    pub epoch: U64,
}

pub const RECORD_HEADER_LEN: usize = size_of::<RecordHeader>();

/// Kind of a record. Numbers are never reused; an unknown one stops the recovery with a clear error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum RecordKind {
    /// A whole batch.
    Batch = 1,
    /// A batch's header; the body stands, synced, in its segment.
    DirectBatch = 2,
    /// A channel and its cursor (`RawCursor`, name, intervals): it exists, and stands here. Creation, set, empty, pause.
    Cursor = 3,
    /// Messages finished since the last record: channel name and intervals, encoded as a cursor whose `confirmed` is not used.
    Finished = 4,
    /// A channel is gone: a cursor without intervals.
    ChannelDelete = 5,
    /// The log is truncated: `RawPosition` of the new end, then the header crc of the batch before it (u32, u32 zero).
    Truncate = 6,
    /// Retention: `RawPosition` of the new start.
    Start = 7,
    /// `TopicHeader`.
    TopicCreate = 8,
    TopicDelete = 9,
    /// `RawPosition` at which the topic's next first channel starts in this partition.
    CollectStart = 10,
    /// The replica promised to follow no lower epoch: u64.
    Epoch = 11,
    /// The partition is committed that far, at least: `RawPosition`.
    Committed = 12,
    /// The log was dropped and begins at a `RawPosition`; then the header crc of the batch before it (u32, u32 zero).
    Restart = 13,
    /// Idempotent producers that another replica knows, whose batches stand before the start: each as in a snapshot.
    Producers = 14,
    /// An operator has accepted that startups up to this generation may have lost channels: u64.
    LossAccepted = 15,
    /// u64: 1, the replica lacks something that it had, until it was compared with another one; 0, it was.
    Doubt = 16,
    /// Channels may be lost, as the leader says, until an operator accepts it: u64, the generation of this startup.
    ChannelsLost = 17,
    /// The node is no replica of the partition any more: its files go, and nothing before the record counts.
    PartitionDelete = 18,
}

impl RecordKind {
    /// True for a fact, of which a copy stands in the same write: no message and no other record has its content. (A message whose FIN
    /// is lost is redelivered, and a committed end is a lower bound.)
    pub fn stands_twice(self) -> bool {
        use RecordKind::*;
        !matches!(self, Batch | DirectBatch | Finished | Committed)
    }

    pub fn from_u16(kind: u16) -> Option<Self> {
        use RecordKind::*;
        let small = [Cursor, Finished, ChannelDelete, Start, TopicCreate, TopicDelete, CollectStart, Epoch, Committed];
        [Batch, DirectBatch, Truncate, Restart, Producers, LossAccepted, Doubt, ChannelsLost, PartitionDelete]
            .into_iter()
            .chain(small)
            .find(|k| *k as u16 == kind)
    }
}

impl RecordHeader {
    /// A sealed header for `payload`.
    pub fn new(kind: RecordKind, topic_id: TopicId, partition: u16, sequence: u64, epoch: u64, payload: &[u8]) -> Self {
        let mut h = RecordHeader {
            crc: 0.into(),
            len: ((RECORD_HEADER_LEN + payload.len()) as u32).into(),
            kind: (kind as u16).into(),
            partition: partition.into(),
            reserved_32: 0.into(),
            topic_id: topic_id.0,
            sequence: sequence.into(),
            epoch: epoch.into(),
        };
        h.crc = h.crc_of(payload).into();
        h
    }

    pub fn crc_of(&self, payload: &[u8]) -> u32 {
        let covered =
            if self.kind.get() == RecordKind::Batch as u16 { payload.len().min(BATCH_HEADER_LEN) } else { payload.len() };
        // In one piece where it is short: of a small batch, starting a crc costs more than its bytes.
        let (fields, payload) = (&self.as_bytes()[4..], &payload[..covered]);
        let mut short = [0; WRITE_MAGIC.len() + RECORD_HEADER_LEN - 4 + BATCH_HEADER_LEN];
        let (magic, rest) = short.split_at_mut(WRITE_MAGIC.len());
        let (head, body) = rest.split_at_mut(fields.len());
        magic.copy_from_slice(&WRITE_MAGIC);
        head.copy_from_slice(fields);
        match body.get_mut(..covered) {
            Some(body) => {
                body.copy_from_slice(payload);
                crc32fast::hash(&short[..WRITE_MAGIC.len() + fields.len() + covered])
            }
            None => {
                let mut h = crc32fast::Hasher::new();
                h.update(&short[..WRITE_MAGIC.len() + fields.len()]);
                h.update(payload);
                h.finalize()
            }
        }
    }

    pub fn padded_len(&self) -> usize {
        (self.len.get() as usize).next_multiple_of(8)
    }
}

/// A parsed write: the headers hold; the records were not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedHead {
    pub header: WriteHeader,
    pub directory: Vec<DirectoryEntry>,
    /// The directory of the write before.
    pub previous: Vec<DirectoryEntry>,
    /// Offset of the records in the write.
    pub records_at: usize,
}

impl WriteHeader {
    /// Bytes of header and directories.
    pub fn head_len(directory: usize, previous: usize) -> usize {
        size_of::<WriteHeader>() + (directory + previous) * size_of::<DirectoryEntry>()
    }

    /// Parses and verifies the head of the write at the start of `bytes` (which may end after the head).
    /// Lengths are held against `len_max` before they are believed.
    pub fn parse(bytes: &[u8], journal_id: &[u8; 16], core: CoreId, len_max: usize) -> Result<ParsedHead, Bad> {
        let (h, rest) = WriteHeader::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        if h.as_bytes().iter().all(|&b| b == 0) {
            return Err(Bad::Zero);
        }
        if h.magic != WRITE_MAGIC {
            return Err(Bad::Magic);
        }
        let (n, m) = (h.directory.get() as usize, h.previous.get() as usize);
        let entry = size_of::<DirectoryEntry>();
        let head_len = (n + m).checked_mul(entry).and_then(|d| d.checked_add(size_of::<WriteHeader>())).ok_or(Bad::Bounds)?;
        if head_len > len_max {
            return Err(Bad::Bounds);
        }
        if bytes.len() < head_len {
            return Err(Bad::Short);
        }
        if h.crc.get() != crc32fast::hash(&bytes[8..head_len]) {
            return Err(Bad::Crc);
        }
        if h.version.get() != VERSION {
            return Err(Bad::Version(h.version.get()));
        }
        if h.journal_id != *journal_id || h.core.get() != core.0 {
            return Err(Bad::Foreign);
        }
        let len = h.len.get() as usize;
        if len > len_max || !len.is_multiple_of(crate::base::BLOCK) || head_len + h.records_len.get() as usize > len {
            return Err(Bad::Bounds);
        }
        let parse = |bytes: &[u8]| -> Vec<DirectoryEntry> {
            bytes
                .chunks_exact(entry)
                .map(|c| DirectoryEntry::read_from_bytes(c).expect("a chunk has an entry's length"))
                .collect()
        };
        let (directory, previous) = (parse(&rest[..n * entry]), parse(&rest[n * entry..(n + m) * entry]));
        Ok(ParsedHead { header: h, directory, previous, records_at: head_len })
    }
}

/// The records of a write, in order; ends with an error at the first that does not hold.
pub struct Records<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> Records<'a> {
    /// `bytes` is the whole write.
    pub fn new(head: &ParsedHead, bytes: &'a [u8]) -> Self {
        let end = (head.records_at + head.header.records_len.get() as usize).min(bytes.len());
        Records { rest: &bytes[head.records_at..end], left: head.header.records.get() }
    }

    /// `bytes` begins with the copy, which holds.
    pub fn of_facts(head: &FactsHeader, bytes: &'a [u8]) -> Self {
        Records { rest: &bytes[FACTS_HEADER_LEN..head.len.get() as usize], left: head.records.get() }
    }
}

impl<'a> Iterator for Records<'a> {
    /// Kind, header, payload. A batch's body is not verified here.
    type Item = Result<(RecordKind, RecordHeader, &'a [u8]), Bad>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let parsed = (|| {
            let (h, _) = RecordHeader::read_from_prefix(self.rest).map_err(|_| Bad::Short)?;
            let len = h.len.get() as usize;
            if len < RECORD_HEADER_LEN || h.padded_len() > self.rest.len() {
                return Err(Bad::Bounds);
            }
            let payload = &self.rest[RECORD_HEADER_LEN..len];
            if h.crc.get() != h.crc_of(payload) {
                return Err(Bad::Crc);
            }
            let kind = RecordKind::from_u16(h.kind.get()).ok_or(Bad::Kind(h.kind.get()))?;
            self.rest = &self.rest[h.padded_len()..];
            Ok((kind, h, payload))
        })();
        if parsed.is_err() {
            self.left = 0;
        }
        Some(parsed)
    }
}

const _: () = {
    assert!(size_of::<Checkpoint>() == 128);
    assert!(size_of::<WriteHeader>() == 128);
    assert!(size_of::<FactsHeader>() == 64);
    assert!(size_of::<DirectoryEntry>() == 48);
    assert!(size_of::<RecordHeader>() == 48);
};

/// A journal that stands empty under a new generation: lap 1, sequence 1, the next write at
/// [`RING_START`](crate::format::journal::RING_START).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalIdentity {
    pub journal_id: [u8; 16],
    pub generation: u64,
    /// Length of the file, whole blocks.
    pub file_len: u64,
    /// Sequence of the newest checkpoint slot; the next checkpoint takes the one after it, in the slot of its parity.
    pub slot_sequence: u64,
}
