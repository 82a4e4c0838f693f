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
use super::checkpoint::{Checkpoint, SlotReason};
use super::core_logs::{CoreLogs, Op};
use super::notice::{CursorSource, Io, PartitionIdx};
use super::partition::PartitionLog;
use super::progress::Mark;
use super::recovery::scan::commit_record;
use super::rounds::Rounds;
use crate::base::{BLOCK, DiskDone, DiskError, DiskOp, Durability, Epoch, FileId, IO_BYTES_MAX, Now, Ticks};
use crate::format::cursor::CursorImage;
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
    /// True if [`Rounds`] counts this round: no publish waits for it, and it does not wait for space.
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

    /// The round is over, or waits for space. Returns the number to subtract in [`Rounds`].
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

impl PartitionLog {
    /// The last direct batch that may be written but is not synced.
    fn direct_until(&self) -> Option<u64> {
        let from = self.progress.enqueued().max(self.progress.synced().number);
        (from..self.progress.released()).rev().find(|&n| self.batches.get(n).is_some_and(|r| r.is_direct)).map(|n| n + 1)
    }

    /// Plans the commit records of the batches that are written and durable; the mark they end at.
    fn plan_commits(&mut self, epoch: Epoch, unix_ns: i64) -> Mark {
        let number = self.progress.written().number.min(self.progress.durable().number);
        if number <= self.progress.committed().number {
            return self.progress.committed();
        }
        let mut n = self.progress.committed().number;
        while n < number {
            let offset = self.batches.get(n).expect("an uncommitted batch is in memory").header().offset.get();
            let (index, segment) = self.segments.holding(offset);
            let border = self.segments.border(index);
            if self.writers.commit.base() != segment.base() {
                self.writers.commit = self.begin_file(COMMIT_MAGIC, index, epoch, unix_ns);
            }
            let mut data: Vec<u8> = Vec::with_capacity((number - n) as usize * COMMIT_RECORD_LEN);
            while n < number {
                let header = self.batches.get(n).expect("an uncommitted batch is in memory").header();
                if header.offset.get() >= border {
                    break;
                }
                data.extend_from_slice(commit_record(header, &self.dir).as_bytes());
                n += 1;
            }
            let file = self.writers.commit.file();
            if !self.flush.unsynced_commits.contains(&file) {
                self.flush.unsynced_commits.push(file);
            }
            self.writers.commit.write(vec![data.into()], Durability::Later, &mut self.flush.todo);
        }
        self.mark_at(self.progress.committed(), number)
    }

    /// Encodes the partition as it stands now: all small facts so far, and all batches that are synced in both files.
    fn take_snapshot(&mut self, channels: Vec<CursorImage>) {
        // This round synced both files after its writes, so everything written and committed is synced.
        assert!(
            self.progress.synced().number >= self.progress.committed().number
                && self.progress.durable().number >= self.progress.committed().number
        );
        let end = self.progress.committed();
        // A batch that the snapshot does not contain bounds it; the facts before the batch are contained.
        let next = self.batches.get(end.number);
        let applied = match next {
            Some(r) if r.record_sequence > 0 => r.record_sequence - 1,
            _ => self.journaled.sequence(),
        };
        let mut dirty_after = next.map(|r| r.write_sequence).filter(|&w| w > 0);
        let applied = self.truncation.as_ref().map_or(applied, |t| t.not_contained(applied, &mut dirty_after));
        let sequence = self.slots.next_sequence();
        let image = Snapshot {
            topic_id: self.dir.topic_id,
            partition: self.dir.partition,
            sequence,
            applied,
            epoch: end.epoch,
            start: self.start(),
            end: end.at,
            committed: self.shared.as_ref().map_or(end.at, |s| s.committed()),
            collect_start: self.borders.collect_start(),
            chain_crc: end.chain_crc,
            segment_base: self.segments.holding(end.at.offset).1.base(),
            doubt: self.damage.doubt(),
            unix_ns: end.unix_ns,
            channels,
            producers: self.producers.committed().iter().copied().collect(),
            promised: self.shared.as_ref().map_or(Epoch(0), |s| s.promised()),
            epochs: self.epochs.iter().take_while(|e| e.end.offset < end.at.offset).collect(),
            channels_lost: self.damage.channels_lost(),
            vouched: self.damage.vouched().filter(|v| self.shared.is_some() && v.at.offset < end.at.offset),
        };
        let image: Bytes = image.encode().into();
        assert_eq!(image.len() % BLOCK, 0);
        self.journaled.snapshot_taken(dirty_after);
        self.flush.copies = Snapshot::copies_behind(self.slots.sequence());
        self.want_slot(image);
    }

    /// Sees to space for an image in the next slot, which is written then.
    fn want_slot(&mut self, image: Bytes) {
        let (file, len) = (Snapshot::file(&self.dir, self.slots.next_sequence()), image.len() as u64);
        let f = &mut self.flush;
        (f.image, f.stage) = (image, FlushStage::SnapshotSpace);
        if !self.slots.has_space(len) {
            f.todo.push_back(DiskOp::Allocate { file, len });
        }
    }
}

/// Rounds of flushing, and the checkpoint that counts on them.
#[derive(Default)]
pub(super) struct Flushing {
    rounds: Rounds,
    checkpoint: Checkpoint,
}

impl Flushing {
    /// Hands sealed batches to the journal as far as they may go, and puts the partition in line when one must be synced first.
    pub fn advance(&mut self, core: &mut CoreLogs, p: PartitionIdx) {
        if core.queue_batches(p) {
            self.want(core, p, true);
        }
    }

    /// Puts a partition in line; `urgent`: a publish waits for it.
    pub fn want(&mut self, core: &mut CoreLogs, p: PartitionIdx, urgent: bool) {
        let part = &core.partitions[p.0 as usize];
        if part.is_closed() || part.is_busy() {
            return;
        }
        if urgent {
            self.break_off_waiting(core, p);
        }
        let part = &mut core.partitions[p.0 as usize];
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
    pub fn break_off_waiting(&mut self, core: &mut CoreLogs, p: PartitionIdx) {
        let part = &mut core.partitions[p.0 as usize];
        if part.flush.break_off() {
            part.journaled.snapshot_dropped();
            self.rounds.unstall(p);
        }
    }

    /// Background rounds at a time: few, until the space that they free is needed soon.
    fn rounds_max(&self, core: &CoreLogs) -> usize {
        let needs_journal = core.ring.is_filling() || core.admission.is_refused(Lack::Journal);
        let is_pressed = needs_journal || core.full_disk.is_short() || core.needs_memory() || core.is_stopping;
        if is_pressed { ROUNDS_MAX } else { ROUNDS_CALM }
    }

    /// Begins the rounds that may begin.
    pub fn start_rounds(&mut self, core: &mut CoreLogs, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        while !self.rounds.is_empty()
            && let Some((p, is_background)) = self.rounds.next(self.rounds_max(core))
        {
            self.begin_round(core, now, p, is_background);
            self.proceed(core, now, p, cursors, io);
        }
    }

    fn begin_round(&mut self, core: &mut CoreLogs, now: Now, p: PartitionIdx, is_background: bool) {
        let direct = core.part(p).direct_until();
        let epoch = core.options.epoch;
        let part = &mut core.partitions[p.0 as usize];
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
            let beside = core.part_mut(p).plan_commits(epoch, now.unix_ns);
            core.part_mut(p).flush.committed_beside = Some(beside);
        }
    }

    /// Takes a round as far as it goes without waiting.
    fn proceed(&mut self, core: &mut CoreLogs, now: Now, p: PartitionIdx, cursors: &dyn CursorSource, io: &mut Io) {
        loop {
            let f = &mut core.partitions[p.0 as usize].flush;
            let ops_max = if f.steps.is_empty() { OPS_MAX } else { DIRECT_OPS_MAX };
            while f.outstanding < ops_max
                && let Some(op) = f.todo.pop_front()
            {
                f.outstanding += 1;
                f.issued += 1;
                core.ops.issue(io, op, Op::Flush(p, f.issued - 1));
            }
            if f.outstanding > 0 || f.retry_at.is_some() {
                return;
            }
            let part = &mut core.partitions[p.0 as usize];
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
                        self.advance(core, p);
                    }
                    if let Some(mark) = beside {
                        core.part_mut(p).commit(mark);
                        core.batch_memory.evict(&mut core.partitions, p, core.options.tail_cache_bytes as usize);
                    }
                    if ends {
                        return self.end_round(core, p, io);
                    }
                    let epoch = core.options.epoch;
                    let until = core.part_mut(p).plan_commits(epoch, now.unix_ns);
                    let f = &mut core.partitions[p.0 as usize].flush;
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
                    core.batch_memory.evict(&mut core.partitions, p, core.options.tail_cache_bytes as usize);
                }
                FlushStage::CommitSync if !f.snapshot => return self.end_round(core, p, io),
                // The records that required this snapshot are in another one by now.
                FlushStage::CommitSync if part.journaled.dirty_from().is_none_or(|d| d > core.ring.durable()) => {
                    self.snapshot_stands(core, p);
                    return self.end_round(core, p, io);
                }
                FlushStage::CommitSync => part.take_snapshot(cursors.cursors(p)),
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
                        part.want_slot(image.into());
                        continue;
                    }
                    part.journaled.snapshot_stands();
                    part.slots.stands(part.progress.committed().at);
                    f.image = Bytes::new();
                    self.snapshot_stands(core, p);
                    return self.end_round(core, p, io);
                }
            }
        }
    }

    /// Two durable slots have all that this round was to bring.
    fn snapshot_stands(&mut self, core: &mut CoreLogs, p: PartitionIdx) {
        let part = &mut core.partitions[p.0 as usize];
        if std::mem::take(&mut part.flush.counts) {
            let target = self.checkpoint.flushed();
            // A truncation's record is in no snapshot before the truncation is complete; the checkpoint then passes less.
            let is_past = part.journaled.dirty_from().is_none_or(|d| d >= target) || part.truncation.is_some();
            assert!(is_past, "the snapshot contains what the checkpoint passes");
        }
        core.retention.look_at(p);
    }

    fn end_round(&mut self, core: &mut CoreLogs, p: PartitionIdx, io: &mut Io) {
        let part = &mut core.partitions[p.0 as usize];
        part.flush.stage = FlushStage::Idle;
        self.rounds.end_background(part.flush.uncount());
        self.want_if_due(core, p);
        self.finish_checkpoint(core, io);
    }

    /// Puts the partition in line when a direct batch, a checkpoint or enough bytes wait.
    pub fn want_if_due(&mut self, core: &mut CoreLogs, p: PartitionIdx) {
        let part = &core.partitions[p.0 as usize];
        // Direct batches take next to nothing of the ring, so the ring does not bound their bytes in memory.
        let is_much = core.needs_memory() && part.unflushed_bytes() > 0;
        if part.progress.is_held_back() && part.direct_until().is_some() {
            self.want(core, p, true);
        } else if part.flush.wants_snapshot || part.unflushed_bytes() >= core.options.flush_bytes || is_much {
            self.want(core, p, false);
        }
    }

    /// An operation of a round has finished.
    pub fn flushed(
        &mut self,
        core: &mut CoreLogs,
        now: Now,
        (p, index): (PartitionIdx, u32),
        outcome: Result<DiskDone, DiskError>,
        cursors: &dyn CursorSource,
        io: &mut Io,
    ) {
        let part = &mut core.partitions[p.0 as usize];
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
                    self.advance(core, p);
                }
                self.proceed(core, now, p, cursors, io);
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
                self.want_if_due(core, p);
            }
            Err(error) => self.poison_partition(core, p, &error),
        }
        self.finish_checkpoint(core, io);
    }

    /// Tries the snapshots again that found no space.
    pub fn retry_snapshots(&mut self, core: &mut CoreLogs, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        for p in self.rounds.stalled().to_vec() {
            let part = &mut core.partitions[p.0 as usize];
            if part.flush.retry_at.is_some_and(|at| at <= now.ticks) {
                part.flush.retry_at = None;
                let file = Snapshot::file(&part.dir, part.slots.next_sequence());
                let len = part.flush.image.len() as u64;
                part.flush.todo.push_back(DiskOp::Allocate { file, len });
                self.proceed(core, now, p, cursors, io);
            }
        }
    }

    pub fn snapshot_deadline(&self, core: &CoreLogs) -> Option<Ticks> {
        self.rounds.stalled().iter().filter_map(|p| core.partitions[p.0 as usize].flush.retry_at).min()
    }

    /// No round is under way, and none waits for space.
    pub fn is_idle(&mut self, core: &mut CoreLogs, p: PartitionIdx) -> bool {
        self.break_off_waiting(core, p);
        core.part(p).flush.stage == FlushStage::Idle
    }

    /// Whether a round is in line.
    pub fn has_line(&self) -> bool {
        !self.rounds.is_empty()
    }

    /// The partition is closed: no further round of it begins, and no checkpoint counts on it.
    pub fn give_up(&mut self, core: &mut CoreLogs, p: PartitionIdx) {
        let part = core.part_mut(p);
        self.rounds.end_background(part.flush.uncount());
        self.rounds.unstall(p);
        self.checkpoint.uncount(part.flush.give_up());
    }

    /// The partition is gone.
    pub fn forget(&mut self, p: PartitionIdx) {
        self.rounds.forget(p);
    }

    /// Closes the partition for writing, for good.
    pub fn poison_partition(&mut self, core: &mut CoreLogs, p: PartitionIdx, error: &DiskError) {
        if core.close_failed(p, error) {
            self.give_up(core, p);
            core.fail_batches(p);
        }
    }

    /// Begins a checkpoint when it is time.
    pub fn try_checkpoint(&mut self, core: &mut CoreLogs, io: &mut Io) {
        core.move_limit(io);
        let Some(due) = self.checkpoint.begin_if_due(core) else { return };
        for p in due {
            core.part_mut(p).flush.want_snapshot(true);
            self.want(core, p, false);
        }
        self.checkpoint.finish(core, io);
    }

    /// Writes the slot when all that the checkpoint passes stands in its files.
    pub fn finish_checkpoint(&mut self, core: &mut CoreLogs, io: &mut Io) {
        self.checkpoint.finish(core, io);
    }

    pub fn slot_written(&mut self, core: &mut CoreLogs, reason: SlotReason, io: &mut Io) {
        self.checkpoint.slot_written(core, reason, io);
    }

    /// True if the checkpoint finds no space for its snapshots, so the journal is not freed.
    pub fn lacks_space(&self, core: &CoreLogs) -> bool {
        !self.rounds.stalled().is_empty() || core.topics.waits_for_space()
    }

    #[cfg(test)]
    pub fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    #[cfg(test)]
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoint.is_running()
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
