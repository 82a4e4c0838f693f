//! The storage engine of one core: events in, disk operations and notices out. It owns the core's journal ring, the
//! logs of its partitions, and their caches.
//!
//! ```text
//! append -> open batch -> turn_end: sealed -> ring queue -> one durable journal write -> Notice::Durable
//!                                   direct -> segment, synced -> its header -> ring queue ...
//! later: flush (segments, commit logs), checkpoint (snapshots, slot), read, search, retention, scrub
//! ```
//! The shard calls [`Store::turn_end`] at the end of every turn: nothing else seals a batch or writes the journal, so
//! that the facts a turn logged before it stand before its batches (rule 20). Notices come from `completed` and `tick`.
//!
//! Never acknowledges a batch that is not durable, never reads a clock, never does IO itself.

use super::admission::{Admission, Lack};
use super::cache::ReadCache;
use super::failure::Failures;
use super::memory::BatchMemory;
use super::notice::{CursorSource, Io, LogStats, Notice, PartitionIdx, RecordTicket, StoreOptions};
use super::partition::PartitionLog;
use super::reader::Reader;
use super::rounds::Rounds;
use super::scrub::Scrub;
use super::search::Searches;
use super::space::{FullDisk, Which};
use super::state::RecoveredPartition;
use super::topic_files::TopicFiles;
use super::turn::Turn;
use super::verbatim::Verbatim;
use crate::base::{
    BLOCK, DiskDone, DiskError, DiskOp, Epoch, IdMap, Now, OpId, PartitionDir, Position, Ticks, TopicInfo, block_down,
};
use crate::format::batch::BATCH_HEADER_LEN;
use crate::format::files::{COMMIT_RECORD_LEN, FILE_HEADER_LEN};
use crate::format::journal::{RECORD_HEADER_LEN, RecordHeader, RecordKind, WHOLE_TOPIC};
use crate::format::meta::TopicMeta;
use crate::journal::ring::{NO_SLOT, Record, Ring};
use bytes::Bytes;
use slab::Slab;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes that the ring needs for a batch beside its own: record header, two directory entries, a share of a write's head.
const BATCH_COST: u64 = RECORD_HEADER_LEN as u64 + 2 * 48 + 16;

/// Purpose of an operation in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Journal write with this sequence.
    Journal(u64),
    Slot(super::checkpoint::SlotReason),
    Space {
        p: PartitionIdx,
        which: Which,
        base: i64,
        len: u64,
    },
    /// Operation of a round, with its number in its stage's list.
    Flush(PartitionIdx, u32),
    Topic(u64),
    Read(u32),
    /// The read, and where in the file.
    Verbatim(u32, u64),
    Search(u32),
    Scrub,
    Remove(PartitionIdx),
    Truncation(PartitionIdx),
    Mend(PartitionIdx),
    RemovePartition(PartitionIdx),
    RemoveTopic(u64),
}

/// Operations in flight.
#[derive(Default)]
pub(super) struct Ops {
    last: u64,
    live: IdMap<OpId, Op>,
}

impl Ops {
    pub fn issue(&mut self, io: &mut Io, request: DiskOp, op: Op) {
        self.last += 1;
        let id = OpId(self.last);
        self.live.insert(id, op);
        io.push((id, request));
    }

    pub fn is_any(&self, is: impl Fn(&Op) -> bool) -> bool {
        self.live.values().any(is)
    }
}

/// Parts of the store that its machines work with.
pub(super) struct StoreParts<'a> {
    pub logs: &'a mut Slab<PartitionLog>,
    pub ops: &'a mut Ops,
    pub notices: &'a mut Vec<Notice>,
    pub io: &'a mut Io,
}

impl StoreParts<'_> {
    pub fn log(&self, p: PartitionIdx) -> &PartitionLog {
        &self.logs[p.0 as usize]
    }

    pub fn log_mut(&mut self, p: PartitionIdx) -> &mut PartitionLog {
        &mut self.logs[p.0 as usize]
    }

    pub fn issue(&mut self, request: DiskOp, op: Op) {
        self.ops.issue(self.io, request, op);
    }
}

/// Purpose of a journal record, which comes back with it.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordPurpose {
    Batch(PartitionIdx),
    Fact(PartitionIdx, RecordTicket),
    Topic(u64, RecordTicket),
}

/// Partitions whose stored batches are being changed, which goes on after each completion.
#[derive(Default)]
pub(super) struct Rewrites {
    /// Partitions with a truncation under way.
    pub truncations: Vec<PartitionIdx>,
    /// Partitions where damage is being mended.
    pub mends: Vec<PartitionIdx>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stopping {
    No,
    Asked,
    Told,
}

pub struct Store {
    pub(super) options: StoreOptions,
    pub(super) ring: Ring<RecordPurpose>,
    pub(super) partitions: Slab<PartitionLog>,
    pub(super) ops: Ops,
    /// Given out with the next completion or tick.
    pub(super) notices: Vec<Notice>,
    stopping: Stopping,
    pub(super) turn: Turn,
    /// Scratch: partitions with records in a finished journal write.
    touched: Vec<PartitionIdx>,
    pub(super) rewrites: Rewrites,
    pub(super) admission: Admission,
    pub(super) full_disk: FullDisk,
    pub(super) rounds: Rounds,
    pub(super) checkpoint: super::checkpoint::Checkpoint,
    pub(super) failures: Failures,
    pub(super) topics: TopicFiles,
    pub(super) removal: super::removal::Removal,
    pub(super) batch_memory: BatchMemory,
    pub(super) reader: Reader,
    pub(super) verbatim: Verbatim,
    pub(super) searches: Searches,
    pub(super) retention: super::retention::Retention,
    pub(super) scrub: Scrub,
}

impl Store {
    pub fn new(options: StoreOptions) -> Self {
        let ring = Ring::new(options.core, options.journal);
        Store {
            ring,
            partitions: Slab::new(),
            ops: Ops::default(),
            notices: vec![],
            stopping: Stopping::No,
            turn: Turn::default(),
            touched: vec![],
            rewrites: Rewrites::default(),
            admission: Admission::default(),
            full_disk: FullDisk::default(),
            rounds: Rounds::default(),
            checkpoint: Default::default(),
            failures: Failures::default(),
            topics: TopicFiles::default(),
            removal: Default::default(),
            batch_memory: BatchMemory::default(),
            reader: Reader::new(ReadCache::new(options.read_cache_bytes as usize)),
            verbatim: Default::default(),
            searches: Searches::default(),
            retention: Default::default(),
            scrub: Default::default(),
            options,
        }
    }

    /// A partition as recovery left it.
    pub fn open(&mut self, recovered: RecoveredPartition) -> PartitionIdx {
        let is_alone = recovered.promised == Epoch(0);
        assert!(!is_alone || self.options.epoch >= recovered.epoch, "epochs never fall");
        let part = PartitionLog::new(recovered, self.options.epoch, 0);
        let p = PartitionIdx(self.partitions.insert(part) as u32);
        self.opened(p);
        p
    }

    /// A new, empty partition; space for it is allocated at once.
    pub fn create(&mut self, now: Now, dir: Arc<PartitionDir>, io: &mut Io) -> PartitionIdx {
        let part = PartitionLog::empty(dir, self.options.epoch, now.unix_ns, self.options.producers);
        let p = PartitionIdx(self.partitions.insert(part) as u32);
        self.grow(p, io);
        p
    }

    /// Length of a full segment.
    pub(super) fn segment_max(&self) -> u64 {
        block_down(self.options.max_bytes_per_file).max(4 * BLOCK as u64)
    }

    /// Length from which on a batch goes straight to its segment.
    pub(super) fn direct_len(&self) -> usize {
        (self.options.direct_bytes as usize).clamp(BATCH_HEADER_LEN, self.ring.payload_max())
    }

    pub(super) fn shared<'a>(&'a mut self, io: &'a mut Io) -> StoreParts<'a> {
        StoreParts { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io }
    }

    /// The reader, and the parts that it uses.
    pub(super) fn with_reader<'a>(&'a mut self, io: &'a mut Io) -> (&'a mut Reader, StoreParts<'a>) {
        (&mut self.reader, StoreParts { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io })
    }

    /// The scrubber, and the parts that it uses.
    pub(super) fn with_scrub<'a>(&'a mut self, io: &'a mut Io) -> (&'a mut Scrub, StoreParts<'a>) {
        (&mut self.scrub, StoreParts { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io })
    }

    /// The verbatim reads, and the parts that they use.
    pub(super) fn with_verbatim<'a>(&'a mut self, io: &'a mut Io) -> (&'a mut Verbatim, StoreParts<'a>) {
        (&mut self.verbatim, StoreParts { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io })
    }

    pub(super) fn part(&self, p: PartitionIdx) -> &PartitionLog {
        &self.partitions[p.0 as usize]
    }

    pub(super) fn part_mut(&mut self, p: PartitionIdx) -> &mut PartitionLog {
        &mut self.partitions[p.0 as usize]
    }

    /// End of all appends that a turn's end has sealed.
    pub fn end(&self, p: PartitionIdx) -> Position {
        self.part(p).progress.end().at
    }

    pub fn durable_end(&self, p: PartitionIdx) -> Position {
        self.part(p).progress.durable().at
    }

    pub fn start(&self, p: PartitionIdx) -> Position {
        self.part(p).start()
    }

    pub fn collect_start(&self, p: PartitionIdx) -> Position {
        self.part(p).borders.collect_start()
    }

    pub fn dir(&self, p: PartitionIdx) -> &Arc<PartitionDir> {
        &self.part(p).dir
    }

    pub fn stats(&self, p: PartitionIdx) -> LogStats {
        let stats = self.part(p).stats();
        LogStats { read_only: stats.read_only || self.is_read_only(), ..stats }
    }

    /// Number of passes of the scrubber over all partitions since anything of them was mended.
    pub fn scrubs(&self) -> u64 {
        self.scrub.passes()
    }

    pub fn is_read_only(&self) -> bool {
        self.failures.is_core_closed()
    }

    /// True if the ring has room for the waiting records. Otherwise facts that can wait stay where they are: a full disk may prevent a
    /// checkpoint for long. No publish is admitted then either. (A journal that failed drops them.)
    pub fn takes_facts(&self) -> bool {
        let has_room = self.ring.used() + self.ring.queued_bytes() <= self.ring.capacity();
        self.ring.is_poisoned() || has_room && (self.ring.admits_fins() || !self.checkpoint_lacks_space())
    }

    /// Whether the record of a deletion is written before anything of the ring is freed. No partition is closed for a deletion before: no
    /// checkpoint flushes a closed one, so its records would keep the ring full for ever. (A journal that failed drops the record.)
    pub fn takes_deletion(&self) -> bool {
        self.ring.is_poisoned() || self.ring.takes_one_more()
    }

    /// Bytes of records that wait for a journal write.
    pub fn queued_bytes(&self) -> u64 {
        self.ring.queued_bytes()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping != Stopping::No
    }

    /// The turn's end has to look at the partition.
    pub(super) fn mark_unsealed(&mut self, p: PartitionIdx) {
        if !self.part_mut(p).set_unsealed(true) {
            self.turn.push_unsealed(p);
        }
    }

    /// The partition has an open batch, which is not sealed yet.
    pub fn has_open_batch(&self, p: PartitionIdx) -> bool {
        !self.part(p).open.is_empty()
    }

    /// Bytes that were appended and are not durable.
    pub fn waiting_bytes(&self) -> u64 {
        self.admission.waiting_bytes()
    }

    /// Whether batches were appended that no turn's end has seen: facts that must stand before them are to be logged now.
    pub fn has_batches(&self) -> bool {
        self.turn.has_unsealed()
    }

    /// Ends the turn: seals the open batches, issues journal writes, and begins the work that is due. While the journal takes no further
    /// write the open batches stay open and grow.
    pub fn turn_end(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        self.end_reads_turn(io);
        let is_busy = !self.ring.takes_write(self.admission.unpacked()) && !self.is_stopping();
        if is_busy && self.turn.may_stay_open() {
            // Each of them has an open batch, and nothing else.
            self.record_commits();
            return self.drive(now, cursors, io);
        }
        let mut unsealed = self.turn.take_unsealed();
        let direct_len = self.direct_len();
        unsealed.retain(|&p| {
            let part = &mut self.partitions[p.0 as usize];
            let stays_open = is_busy && part.open.len() < direct_len && !part.open.is_empty();
            if !stays_open && !part.open.is_empty() {
                part.seal(p, &mut self.batch_memory);
            }
            part.set_unsealed(stays_open);
            if part.progress.released() < part.progress.end().number
                && !part.is_closed()
                && part.truncation.is_none()
                && !self.ring.is_poisoned()
            {
                let direct_len = part.direct_len(direct_len);
                for n in part.progress.release() {
                    if let Some(r) = part.batches.get_mut(n) {
                        r.is_direct |= r.bytes.len() >= direct_len;
                    }
                }
                self.advance(p);
            }
            stays_open
        });
        self.turn.keep(unsealed);
        let batch_bytes = self.batch_bytes();
        self.batch_memory.free_pieces(&mut self.partitions, batch_bytes);
        self.record_commits();
        self.drive(now, cursors, io);
    }

    /// Hands out notices now: a reader that was called at the turn's end need not wait for a tick.
    pub fn take_notices(&mut self, notices: &mut Vec<Notice>) {
        notices.append(&mut self.notices);
    }

    /// Continues all work that can go on.
    fn drive(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        self.retain(now, io);
        self.pack(io);
        self.go_on(now, cursors, io);
        // A checkpoint that was due has begun.
        self.close_if_stuck();
    }

    /// Hands sealed batches to the journal, in order, up to a direct one that is not synced yet.
    pub(super) fn advance(&mut self, p: PartitionIdx) {
        let part = &mut self.partitions[p.0 as usize];
        while part.progress.is_held_back() && !self.ring.is_poisoned() {
            let number = part.progress.enqueued();
            let is_synced = part.progress.synced().number > number;
            let sequence = part.journaled.sequence() + 1;
            let (topic_id, partition) = (part.dir.topic_id, part.dir.partition.0);
            let r = part.batches.get_mut(number).expect("a batch that is not durable is in memory");
            let (kind, payload) = match r.is_direct {
                false => (RecordKind::Batch, r.bytes.clone()),
                true if is_synced => (RecordKind::DirectBatch, r.bytes.slice(..BATCH_HEADER_LEN)),
                true => break,
            };
            r.record_sequence = sequence;
            let end = r.header().end();
            let epoch = self.options.epoch.0;
            let header = RecordHeader::new(kind, topic_id, partition, sequence, epoch, &payload);
            self.ring.queue(Record { header, payload, slot: p.0, end, note: RecordPurpose::Batch(p) });
            // From here on the ring's queue counts it.
            self.admission.enqueued(r.cost);
            part.journaled.next_sequence();
            part.journaled.set_end(end);
            part.progress.enqueue();
        }
        if part.progress.is_held_back() {
            self.want_flush(p, true);
        }
    }

    /// Issues journal writes of the queued records, up to the number allowed in flight.
    fn pack(&mut self, io: &mut Io) {
        let (partitions, topics) = (&mut self.partitions, &mut self.topics);
        let mut packed = |sequence, note| match note {
            RecordPurpose::Batch(p) => {
                let part = &mut partitions[p.0 as usize];
                part.mark_dirty(sequence);
                let number = part.progress.pack();
                let r = part.batches.get_mut(number).expect("a batch that is not durable is in memory");
                r.write_sequence = sequence;
            }
            RecordPurpose::Fact(p, ticket) => {
                let part = &mut partitions[p.0 as usize];
                part.mark_dirty(sequence);
                if let Some(truncation) = &mut part.truncation {
                    truncation.packed(ticket, sequence);
                }
            }
            RecordPurpose::Topic(key, _) => topics.packed(key, sequence),
        };
        while let Some((sequence, op)) = self.ring.pack(&mut packed) {
            self.ops.issue(io, op, Op::Journal(sequence));
        }
    }

    /// Closes a full journal for which more facts wait than it holds, while nothing is under way that may free it: memory has its bound.
    /// Only small facts that cannot wait come to that, such as changes of channels with a waiting client. FINs wait, and a follower refuses
    /// its leader's channels ([`Store::takes_facts`]).
    fn close_if_stuck(&mut self) {
        if self.ring.queued_bytes() > self.ring.capacity() && !self.is_writing() {
            self.close_journal("the journal is full and cannot be freed, and too many facts wait for space");
        }
    }

    /// Gives a small fact to the journal.
    pub(super) fn fact(&mut self, p: PartitionIdx, kind: RecordKind, payload: Vec<u8>) -> RecordTicket {
        let ticket = self.turn.next_record();
        let part = &mut self.partitions[p.0 as usize];
        let sequence = part.journaled.next_sequence();
        let (id, partition, epoch) = (part.dir.topic_id, part.dir.partition.0, self.options.epoch.0);
        let header = RecordHeader::new(kind, id, partition, sequence, epoch, &payload);
        let (payload, end) = (payload.into(), part.journaled.end());
        self.ring.queue(Record { header, payload, slot: p.0, end, note: RecordPurpose::Fact(p, ticket) });
        ticket
    }

    /// An operation that the store asked for has finished. Completions may come late and in any order.
    pub fn completed(
        &mut self,
        now: Now,
        op: OpId,
        outcome: Result<DiskDone, DiskError>,
        cursors: &dyn CursorSource,
        io: &mut Io,
        notices: &mut Vec<Notice>,
    ) {
        let Some(op) = self.ops.live.remove(&op) else {
            panic!("{op:?} was not asked for, or completed twice");
        };
        match op {
            Op::Journal(sequence) => match outcome {
                Ok(_) => self.journal_wrote(sequence, io),
                Err(error) => self.poison_journal(&error),
            },
            Op::Slot(reason) => match outcome {
                Ok(_) => self.slot_written(reason, io),
                Err(error) => self.poison_journal(&error),
            },
            Op::Space { p, which, base, len } => self.allocated(now, p, (which, base, len), outcome, io),
            Op::Flush(p, index) => self.flushed(now, (p, index), outcome, cursors, io),
            Op::Topic(key) => {
                if let Some(topic) = self.topics.written(now, key, outcome, &mut self.ops, io) {
                    self.finish_checkpoint(io);
                    self.topics.go_on_behind(topic, &mut self.ops, io);
                }
            }
            Op::Read(key) => self.read_done(now, key, outcome, io),
            Op::Verbatim(key, at) => self.verbatim_done(key, at, outcome, io),
            Op::Search(key) => self.search_read(now, key, outcome, io),
            Op::Scrub => {
                let is_short = self.is_short_of_space();
                let (scrub, mut shared) = self.with_scrub(io);
                scrub.done(now, outcome, is_short, &mut shared);
            }
            Op::Remove(p) => self.removed(now, p, outcome),
            Op::Truncation(p) => self.truncation_went_on(now, p, outcome),
            Op::Mend(p) => self.mend_went_on(p, outcome, io),
            Op::RemovePartition(p) => self.partition_removed(p, outcome),
            Op::RemoveTopic(key) => self.topic_removed(key, outcome, io),
        }
        if self.is_stopping() {
            self.turn_end(now, cursors, io);
        } else {
            self.go_on(now, cursors, io);
        }
        notices.append(&mut self.notices);
    }

    /// A write is complete. Acknowledges the records that became durable.
    fn journal_wrote(&mut self, sequence: u64, io: &mut Io) {
        if self.ring.is_poisoned() {
            return; // The checkpoint's slot, or another write, failed meanwhile; nobody waits any more.
        }
        self.ring.wrote(sequence);
        while let Some(notes) = self.ring.next_durable() {
            self.write_durable(notes, io);
        }
    }

    fn write_durable(&mut self, notes: Vec<RecordPurpose>, io: &mut Io) {
        let mut upto = RecordTicket(0);
        let mut touched = std::mem::take(&mut self.touched);
        for &note in &notes {
            match note {
                RecordPurpose::Batch(p) => {
                    let part = &mut self.partitions[p.0 as usize];
                    let len = part.next_durable(self.ring.durable());
                    self.batch_memory.eviction.durable(len);
                    if !part.is_held() {
                        self.admission.done(len);
                    }
                    if !part.set_touched(true) {
                        touched.push(p);
                    }
                }
                RecordPurpose::Fact(_, ticket) | RecordPurpose::Topic(_, ticket) => upto = upto.max(ticket),
            }
        }
        self.ring.recycle(notes);
        if upto.0 > 0 {
            self.turn.make_durable(upto);
            self.notices.push(Notice::RecordDurable { upto });
            self.remove_upto(upto, io);
        }
        for p in touched.drain(..) {
            let part = self.part_mut(p);
            part.set_touched(false);
            let last = part.batches.get(part.progress.durable().number - 1).expect("what was just made durable is in memory");
            let notice = Notice::Durable { p, end: part.progress.durable().at, tickets_upto: last.tickets.1 };
            self.notices.push(notice);
            self.flush_if_due(p);
        }
        self.touched = touched;
        self.admission.signal(Lack::Memory);
    }

    /// Work that is due by time alone.
    pub fn tick(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io, notices: &mut Vec<Notice>) {
        self.retry_full_disk(now, io);
        self.retry_snapshots(now, cursors, io);
        self.topics.retry(now, &mut self.ops, io);
        if !self.is_stopping() {
            let mut shared = StoreParts { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io };
            self.reader.retry_holds(now, &self.searches, &mut shared);
        }
        let mut shared = StoreParts { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io };
        self.scrub.begin_next(now, self.options.scrub_bytes_per_second, &mut self.reader, &mut shared);
        self.retention_tick(now);
        self.go_on(now, cursors, io);
        notices.append(&mut self.notices);
    }

    /// Continues everything behind the journal that can go on.
    fn go_on(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        self.delete_old(now, io);
        self.try_removals(io);
        self.drive_truncations(now, io);
        self.drive_mends(io);
        self.try_checkpoint(io);
        self.start_rounds(now, cursors, io);
        self.check_stopped();
        if self.admission.take_signal() {
            self.notices.push(Notice::Room);
        }
    }

    /// Time at which [`Store::tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        if !self.notices.is_empty() || self.reader.has_called() {
            return Some(Ticks(0));
        }
        let scrubs = self.options.scrub_bytes_per_second > 0 && !self.partitions.is_empty();
        let scrub = self.scrub.deadline().filter(|_| scrubs);
        let holds = self.reader.holds.deadline().filter(|_| !self.is_stopping());
        let retries = [self.full_disk.deadline(), self.snapshot_deadline(), self.topics.deadline(), holds];
        let background =
            [scrub, self.retention_deadline(), self.retention.deletes.deadline(&self.ops), self.truncation_deadline()];
        retries.into_iter().chain(background).flatten().min()
    }

    /// Makes everything durable and checkpoints it; then [`Notice::Stopped`]. Nothing can be appended any more.
    pub fn stop(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        if self.stopping == Stopping::No {
            self.stopping = Stopping::Asked;
            self.verbatim.stop();
            self.scrub.stop();
            self.stop_truncations();
        }
        self.turn_end(now, cursors, io);
    }

    /// Whether an operation other than an allocation or a read is in flight, or a flush round is in line. A round that waits for space is
    /// neither.
    fn is_writing(&self) -> bool {
        let is_write = |op: &Op| !matches!(op, Op::Space { .. } | Op::Read(_) | Op::Verbatim(..) | Op::Search(_));
        self.ops.is_any(is_write) || !self.rounds.is_empty()
    }

    fn check_stopped(&mut self) {
        if self.stopping != Stopping::Asked {
            return;
        }
        // Records that cannot be freed now (a full disk, a failed file) stay in the journal, where recovery finds them.
        if !self.is_writing() {
            self.stopping = Stopping::Told;
            self.notices.push(Notice::Stopped);
        }
    }

    /// Bytes of batches in memory.
    pub(super) fn batch_bytes(&self) -> usize {
        self.admission.waiting_bytes() as usize + self.batch_memory.durable_bytes()
    }

    /// Upper bound of the bytes held for batches, reads and caches: small batches count also with their pieces, and bytes that are lent
    /// and cached count twice.
    pub fn memory_bytes(&self) -> usize {
        self.batch_bytes()
            + self.batch_memory.bytes()
            + self.ring.queued_bytes() as usize
            + self.read_bytes()
            + self.verbatim.bytes()
    }

    /// Records a topic's creation; `topic.meta` is written before a checkpoint passes it.
    pub fn log_topic_create(&mut self, info: &TopicInfo, created_unix_ns: i64, io: &mut Io) -> RecordTicket {
        let (key, ticket, Epoch(epoch)) = (self.topics.next_key(), self.turn.next_record(), self.options.epoch);
        let meta = TopicMeta { info: info.clone(), created_unix_ns };
        let payload = Bytes::copy_from_slice(meta.header().as_bytes());
        let header = RecordHeader::new(RecordKind::TopicCreate, info.id, WHOLE_TOPIC, 1, epoch, &payload);
        let note = RecordPurpose::Topic(key, ticket);
        self.ring.queue(Record { header, payload, slot: NO_SLOT, end: Position::START, note });
        self.topics.create(key, &meta, &mut self.ops, io);
        ticket
    }
}

/// Bytes that a batch of this length takes in the ring.
pub(super) fn batch_cost(len: usize, direct_len: usize) -> u64 {
    let payload = if len >= direct_len { BATCH_HEADER_LEN } else { len };
    BATCH_COST + payload.next_multiple_of(8) as u64
}

/// Length of a commit log with this many records.
pub(super) fn commit_len(records: u64) -> u64 {
    FILE_HEADER_LEN + records * COMMIT_RECORD_LEN as u64
}
