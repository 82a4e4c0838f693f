//! Carries batches from memory and journal into segments and commit logs, and frees the ring behind them.
//!
//! One round per partition at a time, so each file has one writer:
//! ```text
//! Idle -> Segment (batches, aligned chunks) -> SegmentSync -> Commit (records) -> CommitSync -> SnapshotSpace -> Snapshot -> Idle
//!                                                                                     one slot after the other: ^            |
//!                                                                                                               '------------'
//!         a round driven by bytes skips the syncs and the snapshot; one for direct batches skips Commit too;
//!         one for a checkpoint does all
//! ```
//! Commit records are written for durable batches only. A direct batch is written before it is durable; once it is durable in the
//! segment, its header goes to the journal (rule 5). A direct batch need not wait for the round's end: if all before it is synced, a
//! round for direct batches uses durable writes, and when a write and all before it are complete, the batches that end there proceed.
//! Otherwise the round ends in a sync. The commit records of the former round's batches are written at the same time.
//!
//! A failed write poisons the partition: its files are not written again, it takes no publish, batches in memory stay readable, and the
//! checkpoint never passes its records. When the ring fills because of that, the whole core stops taking publishes.

use super::admission::Lack;
use super::notice::{CursorSource, Io, PartitionIdx};
use super::progress::Mark;
use super::recovery::scan::commit_record;
use super::store::{Op, Store};
use crate::base::{BLOCK, DiskDone, DiskError, DiskOp, Durability, Epoch, FileId, IO_BYTES_MAX, Now, Ticks};
use crate::format::files::{COMMIT_MAGIC, COMMIT_RECORD_LEN, FILE_HEADER_LEN, SEGMENT_MAGIC};
use crate::format::snapshot::Snapshot;
use bytes::Bytes;
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Rounds at a time that only bytes or a checkpoint drive; with [`OPS_MAX`] it bounds their operations in flight.
pub(super) const ROUNDS_MAX: usize = 16;
/// Rounds at a time while no publish waits for the space that they free. A checkpoint needs a round of every partition; many at a time
/// take core, memory and disk from publishes. With this limit 64 topics have a p99.9 of 3.0 ms instead of 5.5. Rounds for direct
/// batches, with the snapshots that the checkpoint needs of those partitions, are not counted.
pub(super) const ROUNDS_CALM: usize = 4;
/// Operations of one round in flight.
const OPS_MAX: usize = 4;
/// Most segment writes in flight in a round of direct batches, whose clients go on as its writes complete. Measured with a stream of 16
/// x 4 batches of 205 kB: 2, 3, 4, 6 and 16 writes gave 1.14, 1.23, 1.31, 1.36 and 1.12 GB/s.
const DIRECT_OPS_MAX: usize = 6;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushStage {
    Idle,
    Segment,
    SegmentSync,
    Commit,
    CommitSync,
    SnapshotSpace,
    Snapshot,
}

#[derive(Debug)]
pub struct Flush {
    pub stage: FlushStage,
    /// The partition is in the store's queue.
    pub is_queued: bool,
    /// True if [`Store::rounds`] counts this round: no publish waits for it, and it does not wait for space.
    is_background: bool,
    /// A snapshot is wanted by the next round, and a checkpoint counts on it.
    wants_snapshot: bool,
    is_awaited: bool,
    /// Steps of this round beside writing.
    sync: bool,
    snapshot: bool,
    /// Segment writes of the round that are durable when they complete, in order: the end of the last batch that is complete with the
    /// write, and whether the write is done.
    steps: VecDeque<(Mark, bool)>,
    /// Steps that were done and are gone from the list.
    steps_done: u32,
    /// Operations of the stage that were issued.
    issued: u32,
    /// `committed` after the segment writes.
    committed_beside: Option<Mark>,
    /// A checkpoint counts on this round.
    counts: bool,
    /// `written` or `committed` after the stage.
    until: Mark,
    todo: VecDeque<DiskOp>,
    outstanding: usize,
    pub unsynced_segments: Vec<FileId>,
    pub unsynced_commits: Vec<FileId>,
    image: Bytes,
    /// Slots that the image is still to be written to.
    copies: u64,
    /// Time of the next try of a snapshot that found no space.
    retry_at: Option<Ticks>,
    /// The operator was told that this one finds no space.
    is_told: bool,
}

impl Flush {
    /// The next round takes a snapshot; `awaited`: for a checkpoint that counts on it.
    pub fn want_snapshot(&mut self, awaited: bool) {
        self.wants_snapshot = true;
        self.is_awaited |= awaited;
    }

    /// The round is over, or waits for space. Returns the number to subtract in [`Store::rounds`].
    pub fn uncount(&mut self) -> usize {
        std::mem::take(&mut self.is_background) as usize
    }

    /// Breaks a round off that waits for space for its snapshot: another one is to take its place. False: it does not wait.
    pub fn break_off(&mut self) -> bool {
        let waits = self.retry_at.take().is_some();
        if waits {
            let counted = std::mem::take(&mut self.counts);
            self.want_snapshot(counted);
            (self.stage, self.image) = (FlushStage::Idle, Bytes::new());
        }
        waits
    }

    /// Drops the planned work. True if a checkpoint counted on this partition.
    pub fn give_up(&mut self) -> bool {
        self.todo.clear();
        self.steps.clear();
        self.committed_beside = None;
        self.retry_at = None;
        self.wants_snapshot = false;
        self.stage = FlushStage::Idle;
        std::mem::take(&mut self.counts) | std::mem::take(&mut self.is_awaited)
    }

    pub fn new(end: Mark) -> Self {
        Flush {
            stage: FlushStage::Idle,
            is_queued: false,
            is_background: false,
            wants_snapshot: false,
            is_awaited: false,
            sync: false,
            snapshot: false,
            steps: VecDeque::new(),
            steps_done: 0,
            issued: 0,
            committed_beside: None,
            counts: false,
            until: end,
            todo: VecDeque::new(),
            outstanding: 0,
            unsynced_segments: vec![],
            unsynced_commits: vec![],
            image: Bytes::new(),
            copies: 0,
            retry_at: None,
            is_told: false,
        }
    }
}

impl Flush {
    /// True once the round's snapshot is taken: later journal records are not in it.
    pub fn is_snapshot_taken(&self) -> bool {
        matches!(self.stage, FlushStage::SnapshotSpace | FlushStage::Snapshot)
    }

    /// End offset of this round's segment writes.
    pub fn written_until(&self) -> u64 {
        if self.stage == FlushStage::Segment { self.until.number } else { 0 }
    }

    /// The write number `index` is done. Returns the end of the last batch that is complete now, if that has moved.
    fn step_done(&mut self, index: u32) -> Option<Mark> {
        let place = index.checked_sub(self.steps_done)? as usize;
        self.steps.get_mut(place)?.1 = true;
        let mut complete = None;
        while let Some(&(mark, true)) = self.steps.front() {
            complete = Some(mark);
            self.steps.pop_front();
            self.steps_done += 1;
        }
        complete
    }
}

impl Store {
    /// Puts a partition in line; `urgent`: a publish waits for it.
    pub(super) fn want_flush(&mut self, p: PartitionIdx, urgent: bool) {
        let part = &self.partitions[p.0 as usize];
        if part.is_closed() || part.is_busy() {
            return;
        }
        if urgent {
            self.break_off_waiting(p);
        }
        let part = &mut self.partitions[p.0 as usize];
        if part.flush.stage != FlushStage::Idle {
            // A round that ends looks for itself whether another is due.
            return;
        }
        if part.flush.is_queued {
            if urgent {
                self.rounds.hurry(p);
            }
            return;
        }
        part.flush.is_queued = true;
        self.rounds.push(p, urgent);
    }

    /// A round that waits for space for its snapshot makes way for another, which takes one anew.
    pub(super) fn break_off_waiting(&mut self, p: PartitionIdx) {
        let part = &mut self.partitions[p.0 as usize];
        if part.flush.break_off() {
            part.journaled.snapshot_dropped();
            self.rounds.unstall(p);
        }
    }

    /// More is in memory for its segments than the journal explains.
    fn needs_memory(&self) -> bool {
        self.batch_memory.eviction.unflushed_bytes() > self.ring.capacity()
    }

    /// Background rounds at a time: few, until the space that they free is needed soon.
    fn rounds_max(&self) -> usize {
        let needs_journal = self.ring.is_filling() || self.admission.is_refused(Lack::Journal);
        let is_pressed = needs_journal || self.full_disk.is_short() || self.needs_memory() || self.is_stopping();
        if is_pressed { ROUNDS_MAX } else { ROUNDS_CALM }
    }

    /// Begins the rounds that may begin.
    pub(super) fn start_rounds(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        while !self.rounds.is_empty()
            && let Some((p, is_background)) = self.rounds.next(self.rounds_max())
        {
            self.begin_round(now, p, is_background);
            self.proceed(now, p, cursors, io);
        }
    }

    /// The last direct batch that may be written but is not synced.
    fn direct_until(&self, p: PartitionIdx) -> Option<u64> {
        let part = &self.partitions[p.0 as usize];
        let from = part.progress.enqueued().max(part.progress.synced().number);
        (from..part.progress.released()).rev().find(|&n| part.batches.get(n).is_some_and(|r| r.is_direct)).map(|n| n + 1)
    }

    fn begin_round(&mut self, now: Now, p: PartitionIdx, is_background: bool) {
        let direct = self.direct_until(p);
        let epoch = self.options.epoch;
        let part = &mut self.partitions[p.0 as usize];
        part.flush.is_queued = false;
        if part.is_closed() || part.is_busy() {
            return;
        }
        assert_eq!(part.flush.stage, FlushStage::Idle, "a partition has one round at a time");
        assert!(part.flush.outstanding == 0 && part.flush.todo.is_empty());
        part.flush.is_background = is_background;
        if is_background {
            self.rounds.begin_background();
        }
        let number = part.progress.durable().number.max(direct.unwrap_or(0)).max(part.progress.written().number);
        let until = part.mark_at(part.progress.written(), number);
        let is_synced =
            part.progress.synced().number == part.progress.written().number && part.flush.unsynced_segments.is_empty();
        let durability = if direct.is_some() && is_synced { Durability::Durable } else { Durability::Later };
        let (mut todo, mut steps) = (VecDeque::new(), VecDeque::new());
        let mut n = part.progress.written().number;
        while n < number {
            // As many batches as stand in one segment.
            let offset = part.batches.get(n).expect("an unwritten batch is in memory").header().offset.get();
            let (index, segment) = part.segments.holding(offset);
            let border = part.segments.border(index);
            if part.writers.segment.base() != segment.base() {
                part.writers.segment = part.begin_file(SEGMENT_MAGIC, index, epoch, now.unix_ns);
            }
            let mut data = Vec::with_capacity((number - n) as usize);
            while n < number {
                let r = part.batches.get(n).expect("an unwritten batch is in memory");
                if r.header().offset.get() >= border {
                    break;
                }
                data.push(r.bytes.clone());
                n += 1;
            }
            let file = part.writers.segment.file();
            let planned = todo.len();
            if durability == Durability::Durable {
                let at = FILE_HEADER_LEN + part.writers.segment.len_behind_header();
                let lens: Vec<usize> = data.iter().map(Bytes::len).collect();
                part.writers.segment.write(data, durability, &mut todo);
                let mut mark = steps.back().map_or(part.progress.written(), |(mark, _)| *mark);
                for number in complete_with(todo.range(planned..), at, n - lens.len() as u64, &lens) {
                    mark = part.mark_at(mark, number);
                    steps.push_back((mark, false));
                }
                continue;
            }
            if !part.flush.unsynced_segments.contains(&file) {
                part.flush.unsynced_segments.push(file);
            }
            part.writers.segment.write(data, durability, &mut todo);
        }
        let f = &mut part.flush;
        (f.steps, f.steps_done, f.issued) = (steps, 0, 0);
        f.todo = todo;
        f.until = until;
        f.snapshot = std::mem::take(&mut f.wants_snapshot);
        f.counts = std::mem::take(&mut f.is_awaited);
        f.sync = f.snapshot || direct.is_some();
        f.stage = FlushStage::Segment;
        if direct.is_some() {
            let beside = self.plan_commits(now, p);
            self.part_mut(p).flush.committed_beside = Some(beside);
        }
    }

    /// Plans the commit records of the batches that are written and durable; the mark they end at.
    fn plan_commits(&mut self, now: Now, p: PartitionIdx) -> Mark {
        let epoch = self.options.epoch;
        let part = &mut self.partitions[p.0 as usize];
        let number = part.progress.written().number.min(part.progress.durable().number);
        if number <= part.progress.committed().number {
            return part.progress.committed();
        }
        let mut n = part.progress.committed().number;
        while n < number {
            let offset = part.batches.get(n).expect("an uncommitted batch is in memory").header().offset.get();
            let (index, segment) = part.segments.holding(offset);
            let border = part.segments.border(index);
            if part.writers.commit.base() != segment.base() {
                part.writers.commit = part.begin_file(COMMIT_MAGIC, index, epoch, now.unix_ns);
            }
            let mut data: Vec<u8> = Vec::with_capacity((number - n) as usize * COMMIT_RECORD_LEN);
            while n < number {
                let header = part.batches.get(n).expect("an uncommitted batch is in memory").header();
                if header.offset.get() >= border {
                    break;
                }
                data.extend_from_slice(commit_record(header, &part.dir).as_bytes());
                n += 1;
            }
            let file = part.writers.commit.file();
            if !part.flush.unsynced_commits.contains(&file) {
                part.flush.unsynced_commits.push(file);
            }
            part.writers.commit.write(vec![data.into()], Durability::Later, &mut part.flush.todo);
        }
        part.mark_at(part.progress.committed(), number)
    }

    /// Takes a round as far as it goes without waiting.
    fn proceed(&mut self, now: Now, p: PartitionIdx, cursors: &dyn CursorSource, io: &mut Io) {
        loop {
            let f = &mut self.partitions[p.0 as usize].flush;
            let ops_max = if f.steps.is_empty() { OPS_MAX } else { DIRECT_OPS_MAX };
            while f.outstanding < ops_max
                && let Some(op) = f.todo.pop_front()
            {
                f.outstanding += 1;
                f.issued += 1;
                self.ops.issue(io, op, Op::Flush(p, f.issued - 1));
            }
            if f.outstanding > 0 || f.retry_at.is_some() {
                return;
            }
            let part = &mut self.partitions[p.0 as usize];
            let f = &mut part.flush;
            match f.stage {
                FlushStage::Idle => return,
                FlushStage::Segment => {
                    part.progress.write(f.until);
                    if f.sync {
                        f.todo = f.unsynced_segments.drain(..).map(|file| DiskOp::Sync { file }).collect();
                    }
                    f.stage = FlushStage::SegmentSync;
                }
                FlushStage::SegmentSync => {
                    let beside = f.committed_beside.take();
                    let ends = beside.is_some() && !f.snapshot;
                    if f.sync {
                        part.progress.sync();
                        self.advance(p);
                    }
                    if let Some(mark) = beside {
                        self.part_mut(p).commit(mark);
                        self.batch_memory.evict(&mut self.partitions, p, self.options.tail_cache_bytes as usize);
                    }
                    if ends {
                        return self.end_round(p, io);
                    }
                    let until = self.plan_commits(now, p);
                    let f = &mut self.partitions[p.0 as usize].flush;
                    f.until = until;
                    f.stage = FlushStage::Commit;
                }
                FlushStage::Commit => {
                    let until = f.until;
                    part.commit(until);
                    let f = &mut part.flush;
                    if f.snapshot {
                        f.todo = f.unsynced_commits.drain(..).map(|file| DiskOp::Sync { file }).collect();
                    }
                    f.stage = FlushStage::CommitSync;
                    self.batch_memory.evict(&mut self.partitions, p, self.options.tail_cache_bytes as usize);
                }
                FlushStage::CommitSync if !f.snapshot => return self.end_round(p, io),
                // The records that required this snapshot are in another one by now.
                FlushStage::CommitSync if part.journaled.dirty_from().is_none_or(|d| d > self.ring.durable()) => {
                    self.snapshot_stands(p);
                    return self.end_round(p, io);
                }
                FlushStage::CommitSync => self.take_snapshot(p, cursors),
                FlushStage::SnapshotSpace => {
                    if std::mem::take(&mut f.is_told) {
                        self.rounds.unstall(p);
                    }
                    let slot = part.slots.next_slot();
                    part.slots.allocated(slot, f.image.len() as u64);
                    let file = FileId::Snapshot(part.dir.clone(), slot);
                    let chunks = f.image.len().div_ceil(IO_BYTES_MAX);
                    for i in 0..chunks {
                        let at = i * IO_BYTES_MAX;
                        let part = f.image.slice(at..f.image.len().min(at + IO_BYTES_MAX));
                        let (file, parts) = (file.clone(), vec![part]);
                        f.todo.push_back(DiskOp::Write { file, at: at as u64, parts, durability: Durability::Durable });
                    }
                    f.stage = FlushStage::Snapshot;
                }
                FlushStage::Snapshot => {
                    part.slots.written();
                    f.copies -= 1;
                    if f.copies > 0 {
                        let image = Snapshot::renumber(&f.image, part.slots.next_sequence());
                        self.want_slot(p, image.into());
                        continue;
                    }
                    part.journaled.snapshot_stands();
                    part.slots.stands(part.progress.committed().at);
                    f.image = Bytes::new();
                    self.snapshot_stands(p);
                    return self.end_round(p, io);
                }
            }
        }
    }

    /// Two durable slots have all that this round was to bring.
    fn snapshot_stands(&mut self, p: PartitionIdx) {
        let part = &mut self.partitions[p.0 as usize];
        if std::mem::take(&mut part.flush.counts) {
            let target = self.checkpoint.flushed();
            // A truncation's record is in no snapshot before the truncation is complete; the checkpoint then passes less.
            let is_past = part.journaled.dirty_from().is_none_or(|d| d >= target) || part.truncation.is_some();
            assert!(is_past, "the snapshot contains what the checkpoint passes");
        }
        self.retention.look_at(p);
    }

    /// Encodes the partition as it stands now: all small facts so far, and all batches that are synced in both files.
    fn take_snapshot(&mut self, p: PartitionIdx, cursors: &dyn CursorSource) {
        let channels = cursors.cursors(p);
        let part = &mut self.partitions[p.0 as usize];
        // This round synced both files after its writes, so everything written and committed is synced.
        assert!(
            part.progress.synced().number >= part.progress.committed().number
                && part.progress.durable().number >= part.progress.committed().number
        );
        let end = part.progress.committed();
        // A batch that the snapshot does not contain bounds it; the facts before the batch are contained.
        let next = part.batches.get(end.number);
        let applied = match next {
            Some(r) if r.record_sequence > 0 => r.record_sequence - 1,
            _ => part.journaled.sequence(),
        };
        let mut dirty_after = next.map(|r| r.write_sequence).filter(|&w| w > 0);
        let applied = part.truncation.as_ref().map_or(applied, |t| t.not_contained(applied, &mut dirty_after));
        let sequence = part.slots.next_sequence();
        let image = Snapshot {
            topic_id: part.dir.topic_id,
            partition: part.dir.partition,
            sequence,
            applied,
            epoch: end.epoch,
            start: part.start(),
            end: end.at,
            committed: part.shared.as_ref().map_or(end.at, |s| s.committed()),
            collect_start: part.borders.collect_start(),
            chain_crc: end.chain_crc,
            segment_base: part.segments.holding(end.at.offset).1.base(),
            doubt: part.damage.doubt(),
            unix_ns: end.unix_ns,
            channels,
            producers: part.producers.committed().iter().copied().collect(),
            promised: part.shared.as_ref().map_or(Epoch(0), |s| s.promised()),
            epochs: part.epochs.iter().take_while(|e| e.end.offset < end.at.offset).collect(),
            channels_lost: part.damage.channels_lost(),
            vouched: part.damage.vouched().filter(|v| part.shared.is_some() && v.at.offset < end.at.offset),
        };
        let image: Bytes = image.encode().into();
        assert_eq!(image.len() % BLOCK, 0);
        part.journaled.snapshot_taken(dirty_after);
        part.flush.copies = Snapshot::copies_behind(part.slots.sequence());
        self.want_slot(p, image);
    }

    /// Sees to space for an image in the next slot, which is written then.
    fn want_slot(&mut self, p: PartitionIdx, image: Bytes) {
        let part = &mut self.partitions[p.0 as usize];
        let (file, len) = (Snapshot::file(&part.dir, part.slots.next_sequence()), image.len() as u64);
        let f = &mut part.flush;
        (f.image, f.stage) = (image, FlushStage::SnapshotSpace);
        if !part.slots.has_space(len) {
            f.todo.push_back(DiskOp::Allocate { file, len });
        }
    }

    fn end_round(&mut self, p: PartitionIdx, io: &mut Io) {
        let part = &mut self.partitions[p.0 as usize];
        part.flush.stage = FlushStage::Idle;
        self.rounds.end_background(part.flush.uncount());
        self.flush_if_due(p);
        self.finish_checkpoint(io);
    }

    /// Puts the partition in line when a direct batch, a checkpoint or enough bytes wait.
    pub(super) fn flush_if_due(&mut self, p: PartitionIdx) {
        let part = &self.partitions[p.0 as usize];
        // Direct batches take next to nothing of the ring, so the ring does not bound their bytes in memory.
        let is_much = self.needs_memory() && part.unflushed_bytes() > 0;
        if part.progress.is_held_back() && self.direct_until(p).is_some() {
            self.want_flush(p, true);
        } else if part.flush.wants_snapshot || part.unflushed_bytes() >= self.options.flush_bytes || is_much {
            self.want_flush(p, false);
        }
    }

    /// An operation of a round has finished.
    pub(super) fn flushed(
        &mut self,
        now: Now,
        (p, index): (PartitionIdx, u32),
        outcome: Result<DiskDone, DiskError>,
        cursors: &dyn CursorSource,
        io: &mut Io,
    ) {
        let part = &mut self.partitions[p.0 as usize];
        part.flush.outstanding -= 1;
        if part.is_closed() {
            return;
        }
        match outcome {
            Ok(_) => {
                if part.flush.stage == FlushStage::Segment
                    && let Some(mark) = part.flush.step_done(index)
                {
                    part.progress.write_durably(mark);
                    self.advance(p);
                }
                self.proceed(now, p, cursors, io);
            }
            Err(error) if error.is_no_space() && part.flush.stage == FlushStage::SnapshotSpace => {
                // Tried again each second; `health` goes on telling.
                if !std::mem::replace(&mut part.flush.is_told, true) {
                    tracing::warn!(%error, "no space for a snapshot: the checkpoint waits");
                }
                part.flush.retry_at = Some(now.ticks + super::space::RETRY);
                // It may take long, and the space that others free meanwhile may be enough for it.
                self.rounds.end_background(part.flush.uncount());
                self.rounds.stall(p);
                // A direct batch that came meanwhile does not wait for the snapshot's space.
                self.flush_if_due(p);
            }
            Err(error) => self.poison_partition(p, &error),
        }
        self.finish_checkpoint(io);
    }

    /// Tries the snapshots again that found no space.
    pub(super) fn retry_snapshots(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        for p in self.rounds.stalled().to_vec() {
            let part = &mut self.partitions[p.0 as usize];
            if part.flush.retry_at.is_some_and(|at| at <= now.ticks) {
                part.flush.retry_at = None;
                let file = Snapshot::file(&part.dir, part.slots.next_sequence());
                let len = part.flush.image.len() as u64;
                part.flush.todo.push_back(DiskOp::Allocate { file, len });
                self.proceed(now, p, cursors, io);
            }
        }
    }

    pub(super) fn snapshot_deadline(&self) -> Option<Ticks> {
        self.rounds.stalled().iter().filter_map(|p| self.partitions[p.0 as usize].flush.retry_at).min()
    }
}

/// Yields for each of `writes` the number of the first batch that does not end in it or before it. The writes hold batches of the
/// lengths `lens` from `at` of the file on; `first` is the number of the first batch.
fn complete_with<'a>(writes: impl Iterator<Item = &'a DiskOp>, at: u64, first: u64, lens: &[usize]) -> impl Iterator<Item = u64> {
    let mut ends = lens.iter().scan(at, |end, len| {
        *end += *len as u64;
        Some(*end)
    });
    let (mut number, mut next) = (first, ends.next());
    writes.map(move |write| {
        let DiskOp::Write { at: from, parts, .. } = write else { unreachable!("a writer writes") };
        let until = from + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        while next.is_some_and(|end| end <= until) {
            number += 1;
            next = ends.next();
        }
        number
    })
}
