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

use super::core_logs::{CoreLogs, Op};
use super::flush::{FlushStage, Flushing};
use super::notice::{Io, Notice, PartitionIdx};
use super::read::Reads;
use super::recovery::scan::segment_at;
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

/// Partitions where damage is being mended.
#[derive(Default)]
pub(super) struct Mends(Vec<PartitionIdx>);

impl Mends {
    /// See [`Store::mend`](super::Store::mend).
    pub fn begin(
        &mut self,
        core: &mut CoreLogs,
        flushing: &mut Flushing,
        reads: &mut Reads,
        p: PartitionIdx,
        batches: Vec<Batch>,
        io: &mut Io,
    ) {
        let part = core.part(p);
        let first = batches.first().map(|b| b.header);
        let lost = first
            .and_then(|h| part.damage.lost_at(h.offset.get()))
            .filter(|l| first.is_some_and(|h| h.start().offset == l.0.offset));
        let is_able = part.mend.is_none() && part.truncation.is_none() && !part.is_closed() && !core.is_stopping;
        let (Some((from, to)), true) = (lost, is_able) else {
            return not_mended(core, p, "the range is not lost, or the log is being truncated");
        };
        let (index, segment) = part.segments.holding(from.offset);
        let base = segment.base();
        let border = part.segments.border(index);
        let limit = border.min(to.offset).min(part.progress.written().at.offset);
        let fits = |b: &Batch| b.header.end().offset <= limit && !b.header.is_lost();
        let kept: Vec<Batch> = batches.into_iter().take_while(fits).collect();
        let (Some(head), Some(last)) = (kept.first(), kept.last()) else {
            return not_mended(core, p, "the received batches do not end where the damage ends");
        };
        let known = part.damage.vouched().filter(|v| v.at.offset == from.offset);
        let goes_on = known.is_none_or(|v| v.at == head.header.start() && v.chain_crc == head.header.prev_crc.get());
        let end = last.header.end();
        let meets = end.offset != to.offset || end == to;
        let behind = part.segments.get(index + 1).filter(|s| s.base() == end.offset);
        let is_chained = behind.is_none_or(|s| s.meta.prev_crc == last.header.header_crc.get());
        if !(goes_on && meets && is_chained) {
            return not_mended(core, p, "the received batches are not the lost ones");
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
        core.part_mut(p).mend = Some(Box::new(mend));
        self.0.push(p);
        self.drive_one(core, flushing, reads, p, io);
    }

    pub fn drive(&mut self, core: &mut CoreLogs, flushing: &mut Flushing, reads: &mut Reads, io: &mut Io) {
        if self.0.is_empty() {
            return;
        }
        for p in self.0.clone() {
            self.drive_one(core, flushing, reads, p, io);
        }
    }

    fn drive_one(&mut self, core: &mut CoreLogs, flushing: &mut Flushing, reads: &mut Reads, p: PartitionIdx, io: &mut Io) {
        let is_stopping = core.is_stopping;
        let part = &mut core.partitions[p.0 as usize];
        let start = part.start().offset;
        let Some(mend) = part.mend.as_mut().filter(|m| !m.is_under_way()) else { return };
        let is_void = part.truncation.is_some() || part.closed.is_some() || is_stopping || mend.from().offset < start;
        if is_void {
            return self.end(core, flushing, reads, p, false);
        }
        if part.flush.stage == FlushStage::Idle {
            mend.stage = MendStage::Reading;
            self.go_on(core, flushing, reads, p, io);
        }
    }

    /// The next read, or write.
    fn go_on(&mut self, core: &mut CoreLogs, flushing: &mut Flushing, reads: &mut Reads, p: PartitionIdx, io: &mut Io) {
        let part = &mut core.partitions[p.0 as usize];
        let Some(mend) = &mut part.mend else { return };
        let file = FileId::Segment(part.dir.clone(), mend.base);
        if let Some(&at) = mend.shared.front() {
            return core.ops.issue(io, DiskOp::Read { file, at, len: BLOCK }, Op::Mend(p));
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
            Some(op) => core.ops.issue(io, op, Op::Mend(p)),
            None => self.end(core, flushing, reads, p, true),
        }
    }

    pub fn went_on(
        &mut self,
        core: &mut CoreLogs,
        flushing: &mut Flushing,
        reads: &mut Reads,
        p: PartitionIdx,
        outcome: Result<DiskDone, DiskError>,
        io: &mut Io,
    ) {
        let part = &mut core.partitions[p.0 as usize];
        let Some(mend) = &mut part.mend else { return };
        let (at, is_reading) = (mend.at, mend.stage == MendStage::Reading);
        if part.closed.is_some() {
            return self.end(core, flushing, reads, p, false);
        }
        match outcome {
            Ok(done) if is_reading => {
                let block = mend.shared.pop_front().unwrap_or(at);
                if let DiskDone::Read(bytes) = done {
                    let place = (block - at) as usize;
                    mend.buffer[place..place + bytes.len().min(BLOCK)].copy_from_slice(&bytes[..bytes.len().min(BLOCK)]);
                }
                self.go_on(core, flushing, reads, p, io);
            }
            Ok(_) => self.go_on(core, flushing, reads, p, io),
            Err(error) if is_reading => {
                tracing::warn!(%error, "bytes beside damage cannot be read: the damage is not repaired yet");
                self.end(core, flushing, reads, p, false);
            }
            Err(error) => {
                flushing.poison_partition(core, p, &error);
                self.end(core, flushing, reads, p, false);
            }
        }
    }

    fn end(&mut self, core: &mut CoreLogs, flushing: &mut Flushing, reads: &mut Reads, p: PartitionIdx, is_whole: bool) {
        self.0.retain(|q| *q != p);
        let part = &mut core.partitions[p.0 as usize];
        let Some(mend) = part.mend.take() else { return };
        reads.drop_ahead(p);
        if is_whole {
            let (from, to) = (mend.from(), mend.to());
            part.find_again(from, to, &mend.batches[mend.batches.len() - 1]);
            reads.mended();
            let (dir, messages) = (&part.dir, to.count - from.count);
            tracing::info!(topic = %dir.topic, partition = %dir.partition, from = from.offset, to = to.offset, messages,
                "damage is repaired with another replica's bytes");
        }
        core.notices.push(Notice::Mended { p, is_whole });
        core.notices.push(Notice::Readable { p });
        core.admission.signal_all();
        core.retention.look_at(p);
        flushing.want_if_due(core, p);
    }
}

/// The range stays lost; the caller may bring the batches again.
fn not_mended(core: &mut CoreLogs, p: PartitionIdx, why: &str) {
    let dir = &core.part(p).dir;
    tracing::warn!(topic = %dir.topic, partition = %dir.partition, why, "damage is not repaired yet");
    core.notices.push(Notice::Mended { p, is_whole: false });
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
