//! Repair of damage: another replica's bytes of a range that is lost here are written at their place.
//!
//! ```text
//! Waiting   for the round of flushing that writes the partition's files
//! Reading   the blocks that the range shares with its neighbours
//! Writing   whole blocks, durably; until it is done no round begins
//! done      the range is no longer lost, Notice::Mended
//! ```
//! The bytes of the neighbours are written as they were read, so a torn write changes none of them. In the file's last block, which its
//! writer has in memory, the bytes come from the writer and are also put there. The scrubber repairs damaged commit records
//! ([`super::scrub`]).

use super::flush::FlushStage;
use super::notice::{Io, Notice, PartitionIdx};
use super::recovery::scan::segment_at;
use super::store::{Op, Store};
use crate::base::{BLOCK, DiskDone, DiskError, DiskOp, Durability, Epoch, FileId, IO_BYTES_MAX, Position, block_down, block_up};
use crate::format::batch::Batch;
use crate::format::tail::Tail;
use bytes::Bytes;
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MendStage {
    Waiting,
    Reading,
    Writing,
}

/// Range of damage that is being repaired from a replica.
#[derive(Debug)]
pub struct Mend {
    batches: Vec<Batch>,
    stage: MendStage,
    /// Base offset of the segment.
    base: i64,
    /// File position of the buffer, whole blocks.
    at: u64,
    buffer: Vec<u8>,
    /// Blocks that are to be read.
    shared: VecDeque<u64>,
    todo: VecDeque<DiskOp>,
}

impl Mend {
    fn from(&self) -> Position {
        self.batches[0].header.start()
    }

    fn to(&self) -> Position {
        self.batches[self.batches.len() - 1].header.end()
    }

    /// The partition's files are being written by it.
    pub fn is_under_way(&self) -> bool {
        self.stage != MendStage::Waiting
    }
}

impl Store {
    /// Writes `batches`, verified, one behind the other, where damage took them: they begin with a lost range, and those that
    /// end in it and in its segment are taken. [`Notice::Mended`] follows.
    pub fn mend(&mut self, p: PartitionIdx, batches: Vec<Batch>, io: &mut Io) {
        let part = self.part(p);
        let first = batches.first().map(|b| b.header);
        let lost = first
            .and_then(|h| part.damage.lost_at(h.offset.get()))
            .filter(|l| first.is_some_and(|h| h.start().offset == l.0.offset));
        let is_able = part.mend.is_none() && part.truncation.is_none() && !part.is_closed() && !self.is_stopping();
        let (Some((from, to)), true) = (lost, is_able) else {
            return self.not_mended(p, "the range is not lost, or the log is being truncated");
        };
        let (index, segment) = part.segments.holding(from.offset);
        let base = segment.base();
        let border = part.segments.border(index);
        let limit = border.min(to.offset).min(part.progress.written().at.offset);
        let fits = |b: &Batch| b.header.end().offset <= limit && !b.header.is_lost();
        let kept: Vec<Batch> = batches.into_iter().take_while(fits).collect();
        let (Some(head), Some(last)) = (kept.first(), kept.last()) else {
            return self.not_mended(p, "the received batches do not end where the damage ends");
        };
        let known = part.damage.vouched().filter(|v| v.at.offset == from.offset);
        let goes_on = known.is_none_or(|v| v.at == head.header.start() && v.chain_crc == head.header.prev_crc.get());
        let end = last.header.end();
        let meets = end.offset != to.offset || end == to;
        let behind = part.segments.get(index + 1).filter(|s| s.base() == end.offset);
        let is_chained = behind.is_none_or(|s| s.meta.prev_crc == last.header.header_crc.get());
        if !(goes_on && meets && is_chained) {
            return self.not_mended(p, "the received batches are not the lost ones");
        }
        let (a, z) = (segment_at(base, from.offset), segment_at(base, end.offset));
        let (at, until) = (block_down(a), block_up(z));
        let mut shared: VecDeque<u64> = VecDeque::new();
        if !a.is_multiple_of(BLOCK as u64) {
            shared.push_back(at);
        }
        if !z.is_multiple_of(BLOCK as u64) && shared.front() != Some(&block_down(z)) {
            shared.push_back(block_down(z));
        }
        let buffer = vec![0; (until - at) as usize];
        let mend = Mend { batches: kept, stage: MendStage::Waiting, base, at, buffer, shared, todo: VecDeque::new() };
        self.part_mut(p).mend = Some(Box::new(mend));
        self.rewrites.mends.push(p);
        self.drive_mend(p, io);
    }

    /// Lets readers pass lost ranges that end up to `upto`, as on a partition that has no other replica.
    pub fn give_up_lost(&mut self, p: PartitionIdx, upto: i64) {
        if self.part_mut(p).shared.as_mut().is_some_and(|shared| shared.give_up(upto)) {
            self.notices.push(Notice::Readable { p });
        }
    }

    /// The range stays lost; the caller may bring the batches again.
    fn not_mended(&mut self, p: PartitionIdx, why: &str) {
        let dir = &self.part(p).dir;
        tracing::warn!(topic = %dir.topic, partition = %dir.partition, why, "damage is not repaired yet");
        self.notices.push(Notice::Mended { p, is_whole: false });
    }

    pub(super) fn drive_mends(&mut self, io: &mut Io) {
        if self.rewrites.mends.is_empty() {
            return;
        }
        for p in self.rewrites.mends.clone() {
            self.drive_mend(p, io);
        }
    }

    fn drive_mend(&mut self, p: PartitionIdx, io: &mut Io) {
        let is_stopping = self.is_stopping();
        let part = &mut self.partitions[p.0 as usize];
        let start = part.start().offset;
        let Some(mend) = part.mend.as_mut().filter(|m| !m.is_under_way()) else { return };
        let is_void = part.truncation.is_some() || part.closed.is_some() || is_stopping || mend.from().offset < start;
        if is_void {
            return self.end_mend(p, false);
        }
        if part.flush.stage == FlushStage::Idle {
            mend.stage = MendStage::Reading;
            self.mend_next(p, io);
        }
    }

    /// The next read, or write.
    fn mend_next(&mut self, p: PartitionIdx, io: &mut Io) {
        let part = &mut self.partitions[p.0 as usize];
        let Some(mend) = &mut part.mend else { return };
        let file = FileId::Segment(part.dir.clone(), mend.base);
        if let Some(&at) = mend.shared.front() {
            return self.ops.issue(io, DiskOp::Read { file, at, len: BLOCK }, Op::Mend(p));
        }
        if mend.stage == MendStage::Reading {
            mend.stage = MendStage::Writing;
            let mut at = segment_at(mend.base, mend.from().offset);
            let is_active = part.writers.segment.base() == mend.base;
            if is_active {
                part.writers.segment.overlay(mend.at, &mut mend.buffer);
            }
            for batch in &mend.batches {
                let place = (at - mend.at) as usize;
                mend.buffer[place..place + batch.bytes.len()].copy_from_slice(&batch.bytes);
                if is_active {
                    part.writers.segment.patch(at, &batch.bytes);
                }
                at += batch.bytes.len() as u64;
            }
            let mut bytes = Bytes::from(std::mem::take(&mut mend.buffer));
            let mut at = mend.at;
            while !bytes.is_empty() {
                let part = bytes.split_to(bytes.len().min(IO_BYTES_MAX));
                let len = part.len() as u64;
                let (file, parts) = (file.clone(), vec![part]);
                mend.todo.push_back(DiskOp::Write { file, at, parts, durability: Durability::Durable });
                at += len;
            }
        }
        match mend.todo.pop_front() {
            Some(op) => self.ops.issue(io, op, Op::Mend(p)),
            None => self.end_mend(p, true),
        }
    }

    pub(super) fn mend_went_on(&mut self, p: PartitionIdx, outcome: Result<DiskDone, DiskError>, io: &mut Io) {
        let part = &mut self.partitions[p.0 as usize];
        let Some(mend) = &mut part.mend else { return };
        let (at, is_reading) = (mend.at, mend.stage == MendStage::Reading);
        if part.closed.is_some() {
            return self.end_mend(p, false);
        }
        match outcome {
            Ok(done) if is_reading => {
                let block = mend.shared.pop_front().unwrap_or(at);
                if let DiskDone::Read(bytes) = done {
                    let place = (block - at) as usize;
                    mend.buffer[place..place + bytes.len().min(BLOCK)].copy_from_slice(&bytes[..bytes.len().min(BLOCK)]);
                }
                self.mend_next(p, io);
            }
            Ok(_) => self.mend_next(p, io),
            Err(error) if is_reading => {
                tracing::warn!(%error, "bytes beside damage cannot be read: the damage is not repaired yet");
                self.end_mend(p, false);
            }
            Err(error) => {
                self.poison_partition(p, &error);
                self.end_mend(p, false);
            }
        }
    }

    fn end_mend(&mut self, p: PartitionIdx, is_whole: bool) {
        self.rewrites.mends.retain(|q| *q != p);
        let part = &mut self.partitions[p.0 as usize];
        let Some(mend) = part.mend.take() else { return };
        self.verbatim.drop_ahead(p);
        if is_whole {
            let (from, to) = (mend.from(), mend.to());
            part.find_again(from, to, &mend.batches[mend.batches.len() - 1]);
            self.scrub.mended();
            let (dir, messages) = (&part.dir, to.count - from.count);
            tracing::info!(topic = %dir.topic, partition = %dir.partition, from = from.offset, to = to.offset, messages,
                "damage is repaired with another replica's bytes");
        }
        self.notices.push(Notice::Mended { p, is_whole });
        self.notices.push(Notice::Readable { p });
        self.admission.signal_all();
        self.retention.look_at(p);
        self.flush_if_due(p);
    }
}

impl super::partition::PartitionLog {
    /// Moves the start of the known damage behind this batch, which ends at `to`; the replica vouches for its log up to the next
    /// damage.
    fn find_again(&mut self, from: Position, to: Position, last: &Batch) {
        let Some(next) = self.damage.mend(from.offset, to) else { return };
        self.unvouch(next, None);
        if next.offset == to.offset {
            let h = &last.header;
            self.damage.vouch(Tail { at: to, chain_crc: h.header_crc.get(), epoch: Epoch(h.epoch.get()) });
        }
    }

    /// A range is being written where it was lost.
    pub fn is_mending(&self) -> bool {
        self.mend.as_ref().is_some_and(|m| m.is_under_way())
    }
}
