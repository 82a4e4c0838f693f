//! An idempotent producer as a partition knows it, and its bytes in snapshots and peer frames.

use super::files::{Bad, RawProducer, RawProducerBatch};
use crate::base::{Position, ProducerId};
use zerocopy::{FromBytes, IntoBytes};

/// Batches of a producer whose place is remembered.
pub const PLACES_MAX: usize = 5;

/// More are not believed; also the bound of the setting.
pub const PRODUCERS_MAX: usize = 1 << 16;

/// Producer of a batch, and the sequence of its first message; each message takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub producer: ProducerId,
    pub first: u64,
}

/// Reason why a producer's batch was refused. Nothing was stored, and a repeat is refused again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    #[error("sequence {found} leaves a gap: the partition expects {expected} of this producer; send what is missing first")]
    Gap { expected: u64, found: u64 },
    #[error(
        "sequences {first} to {last} are stored in part, or in other batches: the next is {expected}; repeat batches unchanged"
    )]
    Overlap { expected: u64, first: u64, last: u64 },
    #[error(
        "the partition does not know this producer, or has forgotten it, so earlier batches may be stored or not; begin at sequence 0 \
         under a new producer id"
    )]
    UnknownProducer,
    #[error("sequences end at 2^64 - 1: go on under a new producer id")]
    TooHigh,
}

/// Verdict of the table on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceVerdict {
    New,
    /// The batch is in the table already.
    Repeat {
        /// Start of the original, when it is one of the last few.
        at: Option<Position>,
        /// Offset of a batch at or behind the original: when that batch is durable, the original is.
        upto: i64,
    },
}

/// Start and number of messages of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlace {
    pub at: Position,
    pub num: u32,
}

const NOWHERE: BatchPlace = BatchPlace { at: Position::START, num: 0 };

/// State of an idempotent producer in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    pub id: ProducerId,
    /// Sequence of its next message.
    pub next: u64,
    /// The log's time at its last batch.
    pub last_unix_ns: i64,
    places: [BatchPlace; PLACES_MAX],
    places_len: u8,
}

impl Producer {
    /// Largest encoded length of a producer.
    pub const ENCODED_MAX: usize = size_of::<RawProducer>() + PLACES_MAX * size_of::<RawProducerBatch>();

    /// A producer whose last batches stand at `places`, oldest first. `None` when they cannot be.
    pub fn new(id: ProducerId, next: u64, last_unix_ns: i64, places: &[BatchPlace]) -> Option<Producer> {
        let sum: u64 = places.iter().map(|p| p.num as u64).sum();
        let ascend = places.windows(2).all(|w| w[0].at.offset < w[1].at.offset);
        let sane = places.iter().all(|p| p.num > 0 && p.at.is_sane());
        if places.is_empty() || places.len() > PLACES_MAX || sum > next || !ascend || !sane {
            return None;
        }
        let mut producer = Producer { id, next, last_unix_ns, places: [NOWHERE; PLACES_MAX], places_len: places.len() as u8 };
        producer.places[..places.len()].copy_from_slice(places);
        Some(producer)
    }

    /// A producer of which no batch is remembered yet.
    pub fn unplaced(id: ProducerId, next: u64, last_unix_ns: i64) -> Producer {
        Producer { id, next, last_unix_ns, places: [NOWHERE; PLACES_MAX], places_len: 0 }
    }

    /// Last batches of the producer, oldest first; they follow each other in sequence and end at `next`.
    pub fn places(&self) -> &[BatchPlace] {
        &self.places[..self.places_len as usize]
    }

    /// Offset of its last batch.
    pub fn last_offset(&self) -> i64 {
        self.places().last().map_or(0, |p| p.at.offset)
    }

    /// Remembers its next batch, and forgets the oldest one.
    pub fn push(&mut self, place: BatchPlace) {
        if self.places_len as usize == PLACES_MAX {
            self.places.copy_within(1.., 0);
            self.places_len -= 1;
        }
        self.places[self.places_len as usize] = place;
        self.places_len += 1;
    }

    /// A batch whose sequences are all below `next`.
    pub fn find(&self, first: u64, num: u32) -> Result<SequenceVerdict, SequenceError> {
        let mut from = self.next;
        let mut upto = 0;
        for place in self.places().iter().rev() {
            from -= place.num as u64;
            upto = place.at.offset;
            if from == first && place.num == num {
                return Ok(SequenceVerdict::Repeat { at: Some(place.at), upto });
            }
        }
        match first.checked_add(num as u64) {
            // The batch is not remembered: it lies before the remembered ones.
            Some(end) if end <= from => Ok(SequenceVerdict::Repeat { at: None, upto }),
            end => Err(SequenceError::Overlap { expected: self.next, first, last: end.unwrap_or(u64::MAX) - 1 }),
        }
    }

    pub fn encoded_len(&self) -> usize {
        size_of::<RawProducer>() + self.places().len() * size_of::<RawProducerBatch>()
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let raw = RawProducer {
            id: self.id.get().into(),
            next: self.next.into(),
            last_unix_ns: self.last_unix_ns.into(),
            batches: (self.places().len() as u32).into(),
            reserved: 0.into(),
        };
        out.extend_from_slice(raw.as_bytes());
        for place in self.places() {
            let raw = RawProducerBatch { at: place.at.into(), num: place.num.into(), reserved: 0.into() };
            out.extend_from_slice(raw.as_bytes());
        }
    }

    pub fn encode_all(list: &[Producer]) -> Vec<u8> {
        let mut out = Vec::with_capacity(list.iter().map(Producer::encoded_len).sum());
        list.iter().for_each(|p| p.encode(&mut out));
        out
    }

    /// Decodes the producers that fill `bytes`.
    pub fn decode_all(mut bytes: &[u8]) -> Result<Vec<Producer>, Bad> {
        let mut list = vec![];
        while !bytes.is_empty() {
            let (producer, len) = Producer::decode(bytes)?;
            list.push(producer);
            bytes = &bytes[len..];
        }
        Ok(list)
    }

    /// Forgets the newest batch, and takes its sequences back. `false`: none is remembered.
    pub fn pop(&mut self) -> bool {
        let Some(last) = self.places().last().copied() else { return false };
        self.next -= last.num as u64;
        self.places_len -= 1;
        true
    }

    /// The producer at the start of `bytes`, and its length.
    pub fn decode(bytes: &[u8]) -> Result<(Producer, usize), Bad> {
        let (raw, mut rest) = RawProducer::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        let len = raw.batches.get() as usize;
        if len > PLACES_MAX {
            return Err(Bad::Bounds);
        }
        let mut places = [NOWHERE; PLACES_MAX];
        for place in &mut places[..len] {
            let (raw, after) = RawProducerBatch::read_from_prefix(rest).map_err(|_| Bad::Short)?;
            *place = BatchPlace { at: raw.at.into(), num: raw.num.get() };
            rest = after;
        }
        let id = ProducerId::new(raw.id.get()).ok_or(Bad::Bounds)?;
        let producer = Producer::new(id, raw.next.get(), raw.last_unix_ns.get(), &places[..len]).ok_or(Bad::Bounds)?;
        Ok((producer, bytes.len() - rest.len()))
    }
}
