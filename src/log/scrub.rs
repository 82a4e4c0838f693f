//! Scrubbing: what is stored is read again in the background, one run at a time, at a limited rate, and verified as if
//! somebody fetched it (rule 15). Nothing of it is cached. A pass over all partitions of the core begins at most once in
//! [`PASS_MIN`]; so a small node is not kept awake.

use super::notice::{Io, PartitionIdx};
use super::read::Purpose;
use super::store::Store;
use crate::base::{Now, Ticks};
use std::time::Duration;

const PASS_MIN: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub struct Scrub {
    /// The next run to read.
    partition: usize,
    offset: i64,
    is_reading: bool,
    next_at: Ticks,
    pass_began: Option<Ticks>,
}

impl Store {
    /// Begins the next run when it is time.
    pub(super) fn scrub_next(&mut self, now: Now, io: &mut Io) {
        let rate = self.options.scrub_bytes_per_second;
        if rate == 0 || self.scrub.is_reading || self.is_stopping() || self.scrub.next_at > now.ticks {
            return;
        }
        self.scrub.pass_began.get_or_insert(now.ticks);
        // At most one walk over the partitions per tick.
        for index in self.scrub.partition..self.partitions.capacity() {
            if index != self.scrub.partition {
                (self.scrub.partition, self.scrub.offset) = (index, 0);
            }
            let Some(part) = self.partitions.get(index) else { continue };
            let p = PartitionIdx(index as u32);
            let mut offset = self.scrub.offset.max(part.start.offset);
            while let Some((_, to)) = part.lost_at(offset) {
                offset = to.offset;
            }
            let Some(limit) = self.readable_limit(p, offset) else { continue };
            let bytes = self.start_read(p, offset, limit, Purpose::Scrub, io);
            self.scrub.is_reading = true;
            self.scrub.next_at = now.ticks + Duration::from_nanos((bytes as u128 * 1_000_000_000 / rate as u128) as u64);
            return;
        }
        (self.scrub.partition, self.scrub.offset) = (0, 0);
        let began = self.scrub.pass_began.take().unwrap_or(now.ticks);
        self.scrub.next_at = (began + PASS_MIN).max(now.ticks + Duration::from_secs(1));
    }

    /// The partition's log was verified up to `offset`, or reported.
    pub(super) fn scrubbed(&mut self, _now: Now, p: PartitionIdx, offset: i64, _io: &mut Io) {
        self.scrub.is_reading = false;
        if self.scrub.partition == p.0 as usize {
            self.scrub.offset = self.scrub.offset.max(offset);
        }
    }

    pub(super) fn scrub_deadline(&self) -> Option<Ticks> {
        let is_off = self.options.scrub_bytes_per_second == 0 || self.scrub.is_reading || self.partitions.is_empty();
        (!is_off && !self.is_stopping()).then_some(self.scrub.next_at)
    }
}
