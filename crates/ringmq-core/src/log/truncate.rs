//! Truncation of the log of a replica that has other bytes than its leader: to the end of a batch, or of all of it.
//!
//! ```text
//! Settling   the batches before the truncation go to the journal
//! Looking    the commit log names the batch that ends at the truncation, if it is not in memory
//! Recording  the record of the truncation becomes durable; until then nothing is changed
//! Draining   nothing of the partition is read or written any more
//! Looking    reads the files before the truncation: number of records, the last blocks
//! Wiping     memory is truncated; later files are removed, the last ones truncated, the rest of their last blocks zeroed, durably
//! done       Notice::Truncated
//! ```
//! So a checkpoint passes the record only when the truncation is complete (the snapshot that it needs waits), and nothing is appended
//! behind it before (appends are refused as busy): a batch in the journal behind the record proves that the truncation was complete. A
//! snapshot that does not contain the record describes the log before the truncation.
//!
//! A refused read is repeated each second. If damage hides the place, the log is truncated at the end of the last readable batch before
//! it: a replica may always have less.

use super::admission::Lack;
use super::chain::{Chain, ChainStop, Walk};
use super::core_logs::Op;
use super::deletes::delete;
use super::notice::{Io, Notice, PartitionIdx, RecordTicket};
use super::partition::PartitionLog;
use super::progress::Mark;
use super::recovery::scan::{commit_at, segment_at};
use super::segments::Segment;
use super::store::Store;
use super::writer::FileWriter;
use crate::base::{
    BLOCK, DiskDone, DiskError, DiskOp, Durability, Epoch, FileId, Now, PartitionDir, Position, Ticks, block_down, block_up,
};
use crate::format::batch::BATCH_HEADER_LEN;
use crate::format::files::SegmentMeta;
use crate::format::files::{COMMIT_MAGIC, COMMIT_RECORD_LEN, CommitRecord, FILE_HEADER_LEN, RawPosition, SEGMENT_MAGIC};
use crate::format::journal::RecordKind;
use crate::format::tail::Tail;
use bytes::Bytes;
use std::{collections::VecDeque, sync::Arc};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a segment that are looked through at a time.
const WALK_LEN: usize = 256 * 1024;

/// Place that is looked for in the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileSearch {
    /// The record that ends at the truncation stands in the blocks `lo .. hi` of the commit log.
    Commit {
        lo: u64,
        hi: u64,
    },
    /// No such record: the batches of the segment tell, header by header from here on.
    Walk {
        at: Mark,
        count: u64,
    },
    /// The last block of the commit log, then of the segment.
    CommitTail,
    SegmentTail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TruncationStage {
    Settling,
    Looking(FileSearch),
    Recording,
    Draining,
    Wiping,
}

/// Partitions with a truncation under way.
#[derive(Default)]
pub(super) struct Truncations(Vec<PartitionIdx>);

impl Truncations {
    /// The partition is being removed.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.0.retain(|&q| q != p);
    }
}

/// A truncation under way.
#[derive(Debug)]
pub struct Truncation {
    pub is_restart: bool,
    /// New end of the log; its crc is known when the truncation is recorded.
    pub tail: Tail,
    unix_ns: i64,
    /// Number of the first batch that goes.
    number: u64,
    stage: TruncationStage,
    /// The record of the truncation is durable, or the store stops and the record was given to the journal.
    is_frozen: bool,
    /// The segment that holds the end, its index, and its batches before the end.
    base: i64,
    count: u64,
    /// Bytes of the last blocks before the end; `None`: the files have nothing behind it.
    segment_tail: Option<Vec<u8>>,
    commit_tail: Option<Vec<u8>>,
    ticket: RecordTicket,
    /// Sequences of the record in the partition and of the journal write that holds it; zero before.
    sequence: u64,
    write_sequence: u64,
    todo: VecDeque<DiskOp>,
    is_waiting: bool,
    retry_at: Option<Ticks>,
}

impl Truncation {
    /// Looks for the place in the commit log.
    fn search(&mut self) {
        let records = (self.tail.at.offset - self.base) as u64 / BATCH_HEADER_LEN as u64 + 1;
        let hi = records.div_ceil((BLOCK / COMMIT_RECORD_LEN) as u64);
        self.stage = TruncationStage::Looking(FileSearch::Commit { lo: 0, hi });
    }

    /// A record was packed into a journal write.
    pub fn packed(&mut self, ticket: RecordTicket, write_sequence: u64) {
        if ticket == self.ticket {
            self.write_sequence = write_sequence;
        }
    }

    /// A snapshot that is taken now has the log as it was: the records up to which it contains all, when `applied` is that
    /// without the truncation. The checkpoint goes on to count on a later one.
    pub fn not_contained(&self, applied: u64, dirty_after: &mut Option<u64>) -> u64 {
        if self.sequence == 0 || applied < self.sequence {
            return applied;
        }
        if self.write_sequence > 0 {
            *dirty_after = Some(dirty_after.map_or(self.write_sequence, |d| d.min(self.write_sequence)));
        }
        self.sequence - 1
    }
}

impl PartitionLog {
    /// Whether the log is frozen: nothing but the truncation reads or writes it.
    pub fn is_truncating(&self) -> bool {
        self.truncation.as_ref().is_some_and(|t| t.is_frozen)
    }

    /// The log is about to begin anew, perhaps where it had a segment before.
    pub fn is_restarting(&self) -> bool {
        self.truncation.as_ref().is_some_and(|t| t.is_restart)
    }
}

impl Store {
    /// Truncates the log to `to`, the end of a batch, not below its start. Batches beyond that are not durable are forgotten without a
    /// notice: their publishers were told before that the outcome is unknown. [`Notice::Truncated`] when it is durable; until then
    /// appends are refused as busy, and the view shows the log as it will be.
    pub fn truncate(&mut self, now: Now, p: PartitionIdx, to: Position, io: &mut Io) {
        let part = self.core.part(p);
        assert!(to.offset >= part.start().offset, "a log is not truncated below its start");
        // Nothing of the log is left before its start.
        let is_all = to.offset == part.start().offset;
        let epoch = if is_all { Epoch(0) } else { part.epochs.epoch_at(to.offset).unwrap_or(part.progress.end().epoch) };
        let chain_crc = part.epochs.crc_at(to.offset).unwrap_or(0);
        self.begin_truncation(now, p, Tail { at: to, chain_crc, epoch }, false, io);
    }

    /// Drops the log: it begins, and ends, at `start`, behind a batch with this header crc. The same notice.
    pub fn restart(&mut self, now: Now, p: PartitionIdx, start: Position, chain_crc: u32, io: &mut Io) {
        self.begin_truncation(now, p, Tail { at: start, chain_crc, epoch: Epoch(0) }, true, io);
    }

    fn begin_truncation(&mut self, now: Now, p: PartitionIdx, tail: Tail, is_restart: bool, io: &mut Io) {
        let part = &mut self.core.partitions[p.0 as usize];
        assert!(part.truncation.is_none(), "a log is truncated once at a time");
        self.reads.drop_ahead(p);
        if is_restart {
            // the log may begin anew where one of them did
            self.core.retention.take_old(p).into_iter().for_each(|old| delete(old, &mut self.core.shared(io)));
        }
        let direct_len = self.core.direct_len();
        let part = &mut self.core.partitions[p.0 as usize];
        // The open batch was never handed out.
        let (dropped, cost) = part.open.drop_all();
        self.core.admission.dropped(dropped, cost);
        let number = if is_restart { part.batches.first() } else { part.batches.number_at(tail.at.offset) };
        for number in part.progress.released()..number {
            if let Some(r) = part.batches.get_mut(number) {
                r.is_direct |= r.bytes.len() >= direct_len;
            }
        }
        part.progress.release_before(number);
        part.truncation = Some(Box::new(Truncation {
            is_restart,
            tail,
            unix_ns: 0,
            number,
            stage: TruncationStage::Settling,
            is_frozen: false,
            base: tail.at.offset,
            count: 0,
            segment_tail: None,
            commit_tail: None,
            ticket: RecordTicket(0),
            sequence: 0,
            write_sequence: 0,
            todo: VecDeque::new(),
            is_waiting: false,
            retry_at: None,
        }));
        self.core.turn.must_seal(); // it has no open batch any more
        self.truncations.0.push(p);
        self.drive_truncations(now, io);
    }

    /// Takes each truncation as far as it goes without waiting.
    pub(super) fn drive_truncations(&mut self, now: Now, io: &mut Io) {
        if self.truncations.0.is_empty() || self.core.is_stopping {
            return;
        }
        for p in std::mem::take(&mut self.truncations.0) {
            // After a failure the next startup finishes the truncation, if it was recorded.
            let is_alive = !self.core.part(p).is_closed() && !self.core.ring.is_poisoned();
            if is_alive && !self.drive_truncation(now, p, io) {
                self.truncations.0.push(p);
            }
        }
    }

    /// A truncation goes no further once the store stops. With a record, its files are left to the next startup: a snapshot that is
    /// taken now does not contain the record, so another one would not help the checkpoint. Without a record, there is none.
    pub(super) fn stop_truncations(&mut self) {
        for p in &self.truncations.0 {
            if let Some(truncation) = &mut self.core.partitions[p.0 as usize].truncation {
                truncation.is_frozen |= truncation.sequence > 0;
            }
        }
    }

    /// Whether it is complete.
    fn drive_truncation(&mut self, now: Now, p: PartitionIdx, io: &mut Io) -> bool {
        loop {
            let part = &mut self.core.partitions[p.0 as usize];
            let Some(truncation) = &mut part.truncation else { return true };
            if truncation.is_waiting || truncation.retry_at.is_some_and(|at| at > now.ticks) {
                return false;
            }
            truncation.retry_at = None;
            match truncation.stage {
                TruncationStage::Settling if !truncation.is_restart && part.progress.enqueued() < truncation.number => {
                    self.flushing.advance(&mut self.core, p);
                    let part = self.core.part(p);
                    if part.truncation.as_ref().is_some_and(|truncation| part.progress.enqueued() < truncation.number) {
                        return false;
                    }
                }
                TruncationStage::Settling => self.settled(p),
                TruncationStage::Looking(_) => self.look(p, io),
                TruncationStage::Recording if truncation.ticket <= self.core.turn.durable_record() => {
                    (truncation.stage, truncation.is_frozen) = (TruncationStage::Draining, true)
                }
                TruncationStage::Recording => return false,
                TruncationStage::Draining => {
                    let is_used = part.space.is_growing()
                        || self.reads.is_any_in(p)
                        || self.core.part(p).is_mending()
                        // the name of a file that is deleted is taken until it is
                        || self.core.ops.is_any(|op| matches!(op, Op::Remove(q) if *q == p))
                        || !self.flushing.is_idle(&mut self.core, p);
                    if is_used {
                        return false;
                    }
                    self.frozen(now, p);
                }
                TruncationStage::Wiping => match truncation.todo.pop_front() {
                    Some(op) => {
                        truncation.is_waiting = true;
                        self.core.ops.issue(io, op, Op::Truncation(p));
                    }
                    None => {
                        self.end_truncation(p, io);
                        return true;
                    }
                },
            }
        }
    }

    /// The batch that ends at the truncation, from memory or else from the commit log.
    fn settled(&mut self, p: PartitionIdx) {
        let part = &mut self.core.partitions[p.0 as usize];
        let Some(mut truncation) = part.truncation.take() else { return };
        let segment = part.segments.holding(truncation.tail.at.offset).1.meta;
        truncation.base = segment.base.offset;
        let before = truncation.number.checked_sub(1).and_then(|n| part.batches.get(n)).map(|r| r.header());
        let marks = [part.progress.end(), part.progress.durable(), part.progress.committed()];
        let mark = marks.into_iter().find(|m| m.at == truncation.tail.at);
        let is_known = if truncation.is_restart {
            true
        } else if let Some(h) = before.filter(|h| h.end() == truncation.tail.at) {
            (truncation.tail.chain_crc, truncation.unix_ns) = (h.header_crc.get(), h.base_unix_ns.get());
            true
        } else if let Some(mark) = mark {
            (truncation.tail, truncation.unix_ns) = (mark.tail(), mark.unix_ns);
            true
        } else if segment.base == truncation.tail.at {
            truncation.tail.chain_crc = segment.prev_crc;
            true
        } else {
            truncation.search();
            false
        };
        part.truncation = Some(truncation);
        if is_known {
            self.record_truncation(p);
        }
    }

    /// Reads the files' state before the truncation, once nothing changes any more.
    fn frozen(&mut self, now: Now, p: PartitionIdx) {
        let part = &mut self.core.partitions[p.0 as usize];
        let Some(mut truncation) = part.truncation.take() else { return };
        let at = truncation.tail.at.offset;
        truncation.base = part.segments.holding(at).1.base();
        let (mut is_known, mut needs_tail) = (true, false);
        if !truncation.is_restart && at >= part.progress.committed().at.offset {
            // All that the commit log has stays.
            let is_begun = part.writers.commit.base() == truncation.base;
            let written = if is_begun { part.writers.commit.len_behind_header() / COMMIT_RECORD_LEN as u64 } else { 0 };
            let from = part.progress.committed().number.max(part.batches.number_at(truncation.base));
            truncation.count = written + truncation.number.saturating_sub(from);
            needs_tail = part.progress.written().at.offset > at;
        } else if !truncation.is_restart && truncation.base == at {
            // Only its header stands before it.
            (truncation.segment_tail, truncation.commit_tail) = (Some(vec![]), Some(vec![]));
        } else if !truncation.is_restart {
            truncation.search();
            is_known = false;
        }
        part.truncation = Some(truncation);
        if is_known && needs_tail {
            self.segment_tail(now, p);
        } else if is_known {
            self.apply_truncation(now, p);
        }
    }

    /// Continues when the place to truncate at is known, with the records before it.
    fn found_place(&mut self, now: Now, p: PartitionIdx) {
        let Some(truncation) = &mut self.core.part_mut(p).truncation else { return };
        if !truncation.is_frozen {
            self.record_truncation(p);
        } else if commit_at(truncation.count).is_multiple_of(BLOCK as u64) {
            truncation.commit_tail = Some(vec![]);
            self.segment_tail(now, p);
        } else {
            truncation.stage = TruncationStage::Looking(FileSearch::CommitTail);
        }
    }

    /// The segment's last block is needed next, unless the truncation is at a block's border.
    fn segment_tail(&mut self, now: Now, p: PartitionIdx) {
        let Some(truncation) = &mut self.core.part_mut(p).truncation else { return };
        truncation.stage = TruncationStage::Looking(FileSearch::SegmentTail);
        if segment_at(truncation.base, truncation.tail.at.offset).is_multiple_of(BLOCK as u64) {
            truncation.segment_tail = Some(vec![]);
            self.apply_truncation(now, p);
        }
    }

    /// Issues the read that is needed next.
    fn look(&mut self, p: PartitionIdx, io: &mut Io) {
        let part = &mut self.core.partitions[p.0 as usize];
        let (dir, Some(truncation)) = (part.dir.clone(), &mut part.truncation) else { return };
        let TruncationStage::Looking(look) = truncation.stage else { return };
        let (commit, segment) = (FileId::Commit(dir.clone(), truncation.base), FileId::Segment(dir, truncation.base));
        let (file, at, len) = match look {
            FileSearch::Commit { lo, hi } => (commit, FILE_HEADER_LEN + (lo + (hi - lo) / 2) * BLOCK as u64, BLOCK),
            FileSearch::CommitTail => (commit, block_down(commit_at(truncation.count)), BLOCK),
            FileSearch::SegmentTail => (segment, block_down(segment_at(truncation.base, truncation.tail.at.offset)), BLOCK),
            FileSearch::Walk { at, .. } => (segment, block_down(segment_at(truncation.base, at.at.offset)), WALK_LEN),
        };
        truncation.is_waiting = true;
        self.core.ops.issue(io, DiskOp::Read { file, at, len }, Op::Truncation(p));
    }

    /// An operation of a truncation has finished.
    pub(super) fn truncation_went_on(&mut self, now: Now, p: PartitionIdx, outcome: Result<DiskDone, DiskError>) {
        let is_stopping = self.core.is_stopping;
        let part = &mut self.core.partitions[p.0 as usize];
        // The batches that a failed journal did not take are not in memory any more.
        let is_alive = !part.is_closed() && !self.core.ring.is_poisoned() && !is_stopping;
        let Some(truncation) = part.truncation.as_mut().filter(|_| is_alive) else { return };
        truncation.is_waiting = false;
        let bytes = match (outcome, truncation.stage) {
            (Ok(DiskDone::Read(bytes)), _) => bytes,
            // A file that was never allocated has nothing to truncate.
            (Ok(_) | Err(DiskError::NotFound { .. }), _) => Bytes::new(),
            (Err(error), TruncationStage::Looking(_)) => {
                tracing::warn!(%error, "a log must be truncated and its files cannot be read: trying again");
                truncation.retry_at = Some(now.ticks + super::space::RETRY);
                return;
            }
            (Err(error), _) => return self.flushing.poison_partition(&mut self.core, p, &error),
        };
        let TruncationStage::Looking(look) = truncation.stage else { return };
        match look {
            FileSearch::Commit { lo, hi } => {
                let middle = lo + (hi - lo) / 2;
                let records = records_of(&bytes, &part.dir);
                let is_before = records.first().is_some_and(|(_, r)| r.offset.get() < truncation.tail.at.offset);
                let found = records.iter().find(|(_, r)| r.end() == truncation.tail.at);
                if let Some((index, r)) = found {
                    truncation.count = middle * (BLOCK / COMMIT_RECORD_LEN) as u64 + index + 1;
                    (truncation.tail.chain_crc, truncation.unix_ns) = (r.batch_crc.get(), r.unix_ns.get());
                    truncation.tail.epoch = Epoch(r.epoch.get());
                    self.found_place(now, p);
                } else if hi - lo <= 1 {
                    self.walk_to_place(p);
                } else {
                    let (lo, hi) = if is_before { (middle, hi) } else { (lo, middle) };
                    truncation.stage = TruncationStage::Looking(FileSearch::Commit { lo, hi });
                }
            }
            FileSearch::CommitTail => {
                let len = (commit_at(truncation.count) % BLOCK as u64) as usize;
                let mut tail = bytes.to_vec();
                tail.resize(len, 0);
                truncation.commit_tail = Some(tail);
                self.segment_tail(now, p);
            }
            FileSearch::SegmentTail => {
                let len = (segment_at(truncation.base, truncation.tail.at.offset) % BLOCK as u64) as usize;
                let mut tail = bytes.to_vec();
                tail.resize(len, 0);
                truncation.segment_tail = Some(tail);
                self.apply_truncation(now, p);
            }
            FileSearch::Walk { at, count } => self.walked(now, p, at, count, &bytes),
        }
    }

    /// The commit log does not know the place: it is damaged. The segment's headers are looked through.
    fn walk_to_place(&mut self, p: PartitionIdx) {
        let part = &mut self.core.partitions[p.0 as usize];
        let Some(truncation) = &mut part.truncation else { return };
        let (_, segment) = part.segments.at_base(truncation.base).expect("it was chosen");
        let SegmentMeta { base, prev_crc } = segment.meta;
        let epoch = part.epochs.epoch_at(base.offset).unwrap_or(Epoch(0));
        let at = Mark { number: 0, at: base, chain_crc: prev_crc, epoch, unix_ns: 0 };
        tracing::warn!(topic = %part.dir.topic, partition = %part.dir.partition, offset = truncation.tail.at.offset,
            "a commit log lacks the position to truncate at: scanning its segment");
        truncation.stage = TruncationStage::Looking(FileSearch::Walk { at, count: 0 });
    }

    /// Walks the headers from `at` on: to the truncation, to the end of the read bytes, or to an invalid one.
    fn walked(&mut self, now: Now, p: PartitionIdx, mut at: Mark, mut count: u64, bytes: &[u8]) {
        let part = &mut self.core.partitions[p.0 as usize];
        let Some(truncation) = &mut part.truncation else { return };
        let read_at = block_down(segment_at(truncation.base, at.at.offset));
        let (to, from) = (truncation.tail.at.offset, at.at.offset);
        let mut walk = Walk::new(&part.dir, from, to, Chain { at: Some(at.at), ..Chain::default() });
        let is_over = loop {
            let place = (segment_at(truncation.base, at.at.offset) - read_at) as usize;
            match walk.header(bytes.get(place..).unwrap_or_default()) {
                _ if walk.is_over() => break true,
                Ok(h) => {
                    walk.pass(&h);
                    let (number, epoch) = (at.number + 1, Epoch(h.epoch.get()));
                    at = Mark { number, at: h.end(), chain_crc: h.header_crc.get(), epoch, unix_ns: h.base_unix_ns.get() };
                    count += 1;
                }
                // It may continue in the next read.
                Err(ChainStop::More(_)) => break at.at.offset == from,
                Err(ChainStop::Bad(_) | ChainStop::Breaks(_)) => break true,
            }
        };
        if !is_over {
            truncation.stage = TruncationStage::Looking(FileSearch::Walk { at, count });
            return;
        }
        if truncation.is_frozen && at.at != truncation.tail.at {
            let file = FileId::Segment(part.dir.clone(), truncation.base);
            let message =
                format!("a batch ended at offset {}, and its segment no longer shows this end", truncation.tail.at.offset);
            return self.flushing.poison_partition(&mut self.core, p, &DiskError::Io { file, call: "read", errno: 5, message });
        }
        (truncation.tail, truncation.unix_ns, truncation.count) = (at.tail(), at.unix_ns, count);
        truncation.number = part.batches.number_at(at.at.offset).min(truncation.number);
        self.found_place(now, p);
    }

    /// Journals the truncation, whose facts are all known.
    fn record_truncation(&mut self, p: PartitionIdx) {
        let Some(truncation) = &self.core.part(p).truncation else { return };
        let (at, kind) = (truncation.tail.at, if truncation.is_restart { RecordKind::Restart } else { RecordKind::Truncate });
        let mut payload = RawPosition::from(at).as_bytes().to_vec();
        payload.extend_from_slice(&truncation.tail.chain_crc.to_le_bytes());
        payload.extend_from_slice(&[0; 4]);
        self.core.part_mut(p).journaled.set_end(at);
        let ticket = self.core.fact(p, kind, payload);
        let part = self.core.part_mut(p);
        let sequence = part.journaled.sequence();
        if let Some(truncation) = &mut part.truncation {
            (truncation.ticket, truncation.sequence, truncation.stage) = (ticket, sequence, TruncationStage::Recording);
        }
        self.flushing.want_if_due(&mut self.core, p);
    }

    /// The record is durable and nothing is under way: memory follows, and the files are next.
    fn apply_truncation(&mut self, now: Now, p: PartitionIdx) {
        let part = &mut self.core.partitions[p.0 as usize];
        let Some(mut truncation) = part.truncation.take() else { return };
        let Tail { at, chain_crc, epoch } = truncation.tail;
        let n = truncation.number;
        assert_eq!(
            part.progress.durable().number,
            part.progress.enqueued(),
            "what was journaled before the truncation's record is durable"
        );
        for number in part.progress.durable().number..part.progress.end().number {
            let r = part.batches.get(number).expect("a batch that is not durable is in memory");
            self.core.admission.dropped(r.bytes.len() as u64, r.cost);
        }
        self.core.admission.done(part.release_held(at.offset));
        let kept = n.max(part.batches.first());
        let unflushed = part.unflushed_bytes();
        self.core.batch_memory.eviction.drop_newest(p, part.progress.pinned().saturating_sub(kept));
        let was_committed = part.progress.committed().at.offset > at.offset;
        let was_written = part.progress.written().at.offset > at.offset;
        part.truncate_memory(Mark { number: n, at, chain_crc, epoch, unix_ns: truncation.unix_ns });
        self.core.batch_memory.eviction.dropped(unflushed - part.unflushed_bytes());
        part.truncate_tables(at, truncation.is_restart, was_committed);
        let removed = if truncation.is_restart { part.restart_files(at, chain_crc) } else { part.truncate_segments(&truncation) };
        part.truncate_writers(&truncation, (was_written, was_committed), self.core.options.epoch, now.unix_ns);
        part.plan_wipe(&mut truncation, removed);
        truncation.stage = TruncationStage::Wiping;
        part.truncation = Some(truncation);
        self.reads.forget_all(p);
        self.core.part_mut(p).reading.leave_line();
        if self.core.full_disk.forget(p) {
            self.core.admission.signal(Lack::Disk);
        }
    }

    fn end_truncation(&mut self, p: PartitionIdx, io: &mut Io) {
        self.core.part_mut(p).truncation = None;
        self.core.notices.push(Notice::Truncated { p });
        self.core.notices.push(Notice::Readable { p });
        self.core.admission.signal_all();
        self.core.retention.look_at(p);
        self.core.grow(p, io);
        self.flushing.want_if_due(&mut self.core, p);
    }

    pub(super) fn truncation_deadline(&self) -> Option<Ticks> {
        self.truncations.0.iter().filter_map(|p| self.core.part(*p).truncation.as_ref()?.retry_at).min()
    }
}

impl PartitionLog {
    /// Places of the log that are known beside its batches.
    fn truncate_tables(&mut self, at: Position, is_restart: bool, was_committed: bool) {
        if is_restart {
            self.borders.restart(at);
            self.epochs.clear();
            self.damage.restart();
            self.producers.restart();
            self.shared.iter_mut().for_each(|s| s.take_counted(i64::MIN).for_each(drop));
        } else {
            self.borders.truncate(at);
            self.epochs.truncate(at.offset);
            self.damage.truncate(at);
            if was_committed {
                let counted = self.shared.iter_mut().flat_map(|s| s.take_counted(at.offset));
                self.producers.truncate(at.offset, counted);
            }
        }
        self.recount_producers();
        self.slots.truncate(at);
        self.journaled.set_end(at);
        self.reading.truncate(at.offset);
    }

    /// Leaves the log one segment, which has no file yet. Returns the removed segments.
    fn restart_files(&mut self, at: Position, prev_crc: u32) -> Vec<FileId> {
        let removed = self.files_of(0);
        self.segments.restart(SegmentMeta { base: at, prev_crc });
        self.flush.unsynced_segments.clear();
        self.flush.unsynced_commits.clear();
        self.space = self.space.truncate(at.offset, 0, 0);
        removed
    }

    fn files_of(&self, from: usize) -> Vec<FileId> {
        let later = self.segments.iter().skip(from).map(Segment::base);
        later.flat_map(|base| [FileId::Segment(self.dir.clone(), base), FileId::Commit(self.dir.clone(), base)]).collect()
    }

    /// The log ends in an earlier segment, perhaps. The files behind that one.
    fn truncate_segments(&mut self, truncation: &Truncation) -> Vec<FileId> {
        let (index, _) = self.segments.holding(truncation.tail.at.offset);
        let removed = self.files_of(index + 1);
        self.segments.truncate(index, truncation.count);
        self.flush.unsynced_segments.retain(|f| !removed.contains(f));
        self.flush.unsynced_commits.retain(|f| !removed.contains(f));
        let lens = (block_up(segment_at(truncation.base, truncation.tail.at.offset)), block_up(commit_at(truncation.count)));
        self.space = self.space.truncate(truncation.base, lens.0, lens.1);
        removed
    }

    /// Moves both writers to the new ends of the files.
    fn truncate_writers(&mut self, truncation: &Truncation, (written, committed): (bool, bool), epoch: Epoch, unix_ns: i64) {
        let active = *self.segments.active();
        let bytes = (truncation.tail.at.offset - active.base()) as u64;
        let writer = |magic, at: u64, tail: &Option<Vec<u8>>| match tail {
            Some(tail) if at > FILE_HEADER_LEN => FileWriter::resume(self.dir.clone(), magic, active.base(), at, tail.clone()),
            _ => self.begin_file(magic, self.segments.len() - 1, epoch, unix_ns),
        };
        let segment =
            (written || truncation.is_restart).then(|| writer(SEGMENT_MAGIC, FILE_HEADER_LEN + bytes, &truncation.segment_tail));
        let commit = (committed || truncation.is_restart)
            .then(|| writer(COMMIT_MAGIC, commit_at(truncation.count), &truncation.commit_tail));
        if let Some(segment) = segment {
            self.writers.segment = segment;
        }
        if let Some(commit) = commit {
            self.writers.commit = commit;
        }
    }

    /// Later files go first; then the last ones are truncated, and zeros stand behind the end in their last blocks.
    fn plan_wipe(&self, truncation: &mut Truncation, removed: Vec<FileId>) {
        if !removed.is_empty() {
            truncation.todo.push_back(DiskOp::Remove { files: removed });
        }
        if truncation.is_restart {
            return;
        }
        let dir = &self.dir;
        let segment = (
            FileId::Segment(dir.clone(), truncation.base),
            segment_at(truncation.base, truncation.tail.at.offset),
            &truncation.segment_tail,
        );
        let commit = (FileId::Commit(dir.clone(), truncation.base), commit_at(truncation.count), &truncation.commit_tail);
        for (file, at, tail) in [segment, commit] {
            truncation.todo.push_back(DiskOp::Truncate { file: file.clone(), len: block_up(at) });
            if let Some(tail) = tail.as_ref().filter(|t| !t.is_empty()) {
                let mut block = tail.clone();
                block.resize(BLOCK, 0);
                let (at, parts) = (block_down(at), vec![block.into()]);
                truncation.todo.push_back(DiskOp::Write { file, at, parts, durability: Durability::Durable });
            }
        }
    }
}

/// The records of a block of a commit log that hold, with their index there.
fn records_of(bytes: &[u8], dir: &Arc<PartitionDir>) -> Vec<(u64, CommitRecord)> {
    let records = bytes.chunks_exact(COMMIT_RECORD_LEN).zip(0..);
    let parsed = records.filter_map(|(c, i)| CommitRecord::read_from_bytes(c).ok().map(|r| (i, r)));
    parsed.filter(|(_, r)| r.is_valid(dir.topic_id, dir.partition)).collect()
}
