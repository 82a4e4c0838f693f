//! The newest batches of a partition in memory: contiguous, ascending, found by number or by offset.

use super::notice::AppendTicket;
use crate::format::batch::{Batch, BatchHeader};
use bytes::Bytes;
use std::collections::VecDeque;
use zerocopy::FromBytes;

/// A batch in memory.
#[derive(Debug)]
pub struct Recent {
    /// The batch, header and body.
    pub bytes: Bytes,
    /// Tickets of its first and last append.
    pub tickets: (AppendTicket, AppendTicket),
    pub is_direct: bool,
    /// Bytes of the ring that were set aside for it until it is packed.
    pub cost: u64,
    /// Sequence of its journal record; zero before it is enqueued.
    pub record_sequence: u64,
    /// Sequence of the journal write that holds the record; zero before it is packed.
    pub write_sequence: u64,
}

impl Recent {
    pub fn header(&self) -> &BatchHeader {
        BatchHeader::ref_from_prefix(&self.bytes).expect("a batch has a header").0
    }

    pub fn batch(&self) -> Batch {
        Batch { header: *self.header(), bytes: self.bytes.clone() }
    }
}

/// The batches of a partition in memory. The last one ends where the log does, unless a failed file or journal made the log forget some.
#[derive(Debug, Default)]
pub struct RecentBatches {
    /// Number of the oldest one.
    first: u64,
    batches: VecDeque<Recent>,
}

impl RecentBatches {
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Number of the batch that is pushed next.
    pub fn end(&self) -> u64 {
        self.first + self.batches.len() as u64
    }

    pub fn len(&self) -> usize {
        self.batches.len()
    }

    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub fn get(&self, number: u64) -> Option<&Recent> {
        self.batches.get(number.checked_sub(self.first)? as usize)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Recent> {
        self.batches.get_mut(number.checked_sub(self.first)? as usize)
    }

    /// The batch whose number has this low half.
    pub fn get_by_low(&mut self, low: u32) -> Option<&mut Recent> {
        self.batches.get_mut(low.wrapping_sub(self.first as u32) as usize)
    }

    pub fn last(&self) -> Option<&Recent> {
        self.batches.back()
    }

    /// Number of the first batch that begins at `offset` or behind it.
    pub fn number_at(&self, offset: i64) -> u64 {
        self.number_where(|h| h.offset.get() < offset)
    }

    /// Number of the first batch of which `is_before` does not hold; it holds of those before that.
    pub fn number_where(&self, is_before: impl Fn(&BatchHeader) -> bool) -> u64 {
        self.first + self.batches.partition_point(|r| is_before(r.header())) as u64
    }

    /// The batch that begins at `offset`, with its number.
    pub fn starting_at(&self, offset: i64) -> Option<(u64, &Recent)> {
        let number = self.number_at(offset);
        self.get(number).filter(|r| r.header().offset.get() == offset).map(|r| (number, r))
    }

    /// The batches from `number` on.
    pub fn from(&self, number: u64) -> impl Iterator<Item = &Recent> + '_ {
        self.batches.iter().skip(number.saturating_sub(self.first) as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Recent> + '_ {
        self.batches.iter()
    }

    pub fn push(&mut self, batch: Recent) {
        self.batches.push_back(batch);
    }

    /// Forgets the oldest batch. Its bytes.
    pub fn pop(&mut self) -> Option<Bytes> {
        let oldest = self.batches.pop_front()?;
        self.first += 1;
        Some(oldest.bytes)
    }

    /// Forgets the batches from `number` on.
    pub fn forget_from(&mut self, number: u64) {
        self.batches.truncate(number.saturating_sub(self.first) as usize);
    }

    /// The log ends at `number`, perhaps before all that is here.
    pub fn truncate(&mut self, number: u64) {
        self.first = self.first.min(number);
        self.forget_from(number);
    }
}
