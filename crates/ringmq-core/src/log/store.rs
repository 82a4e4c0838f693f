//! The storage engine of one core: events in, disk operations and notices out. Its machines (`Flushing`, `Reads`, `Mends`)
//! borrow the core's logs and journal ring (`CoreLogs`) and do not see the store.
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

use super::admission::Lack;
use super::core_logs::{CoreLogs, Op, RecordPurpose};
use super::fetch::Fetch;
use super::flush::Flushing;
use super::lend::Lender;
use super::mend::Mends;
use super::notice::{CursorSource, Io, LogStats, Notice, PartitionIdx, RecordTicket, Refusal, SearchBy, StoreOptions};
use super::partition::{Closed, PartitionLog};
use super::read::Reads;
use super::removal::Removal;
use super::state::RecoveredPartition;
use super::truncate::Truncations;
use crate::base::{CoreId, DiskDone, DiskError, Epoch, Now, OpId, PartitionDir, Position, Ticks, TopicInfo};
use crate::config::TopicSettings;
use crate::format::batch::BATCH_HEADER_LEN;
use crate::format::files::{COMMIT_RECORD_LEN, FILE_HEADER_LEN};
use crate::format::journal::{RECORD_HEADER_LEN, RecordHeader, RecordKind, WHOLE_TOPIC};
use crate::format::meta::TopicMeta;
use crate::journal::ring::{NO_SLOT, Record};
use bytes::Bytes;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Bytes that the ring needs for a batch beside its own: record header, two directory entries, a share of a write's head.
const BATCH_COST: u64 = RECORD_HEADER_LEN as u64 + 2 * 48 + 16;

pub struct Store {
    pub(super) core: CoreLogs,
    pub(super) flushing: Flushing,
    pub(super) reads: Reads,
    pub(super) truncations: Truncations,
    pub(super) mends: Mends,
    pub(super) removal: Removal,
    /// [`Notice::Stopped`] was given out.
    has_stopped: bool,
    /// Scratch: partitions with records in a finished journal write.
    touched: Vec<PartitionIdx>,
}

impl Store {
    pub fn new(options: StoreOptions) -> Self {
        Store {
            flushing: Flushing::default(),
            reads: Reads::new(options.read_cache_bytes as usize),
            truncations: Truncations::default(),
            mends: Mends::default(),
            removal: Removal::default(),
            has_stopped: false,
            touched: vec![],
            core: CoreLogs::new(options),
        }
    }

    /// A partition as recovery left it.
    pub fn open(&mut self, recovered: RecoveredPartition) -> PartitionIdx {
        let is_alone = recovered.promised == Epoch(0);
        assert!(!is_alone || self.core.options.epoch >= recovered.epoch, "epochs never fall");
        let part = PartitionLog::new(recovered, self.core.options.epoch, 0);
        let p = PartitionIdx(self.core.partitions.insert(part) as u32);
        self.tell_of_lost_channels(p);
        self.core.opened(p);
        p
    }

    /// A new, empty partition; space for it is allocated at once.
    pub fn create(&mut self, now: Now, dir: Arc<PartitionDir>, io: &mut Io) -> PartitionIdx {
        let part = PartitionLog::empty(dir, self.core.options.epoch, now.unix_ns, self.core.options.producers);
        let p = PartitionIdx(self.core.partitions.insert(part) as u32);
        self.core.grow(p, io);
        p
    }

    /// End of all appends that a turn's end has sealed.
    pub fn end(&self, p: PartitionIdx) -> Position {
        self.core.part(p).progress.end().at
    }

    pub fn durable_end(&self, p: PartitionIdx) -> Position {
        self.core.part(p).progress.durable().at
    }

    pub fn start(&self, p: PartitionIdx) -> Position {
        self.core.part(p).start()
    }

    pub fn collect_start(&self, p: PartitionIdx) -> Position {
        self.core.part(p).borders.collect_start()
    }

    pub fn dir(&self, p: PartitionIdx) -> &Arc<PartitionDir> {
        &self.core.part(p).dir
    }

    pub fn stats(&self, p: PartitionIdx) -> LogStats {
        let stats = self.core.part(p).stats();
        LogStats { read_only: stats.read_only || self.core.is_read_only(), ..stats }
    }

    /// Number of passes of the scrubber over all partitions since anything of them was mended.
    pub fn scrubs(&self) -> u64 {
        self.reads.scrubs()
    }

    pub fn is_read_only(&self) -> bool {
        self.core.is_read_only()
    }

    /// True if the ring has room for the waiting records. Otherwise facts that can wait stay where they are: a full disk may prevent a
    /// checkpoint for long. No publish is admitted then either. (A journal that failed drops them.)
    pub fn takes_facts(&self) -> bool {
        let has_room = self.core.ring.used() + self.core.ring.queued_bytes() <= self.core.ring.capacity();
        self.core.ring.is_poisoned() || has_room && (self.core.ring.admits_fins() || !self.checkpoint_lacks_space())
    }

    /// Whether the record of a deletion is written before anything of the ring is freed. No partition is closed for a deletion before: no
    /// checkpoint flushes a closed one, so its records would keep the ring full for ever. (A journal that failed drops the record.)
    pub fn takes_deletion(&self) -> bool {
        self.core.ring.is_poisoned() || self.core.ring.takes_one_more()
    }

    /// Bytes of records that wait for a journal write.
    pub fn queued_bytes(&self) -> u64 {
        self.core.ring.queued_bytes()
    }

    /// The partition has an open batch, which is not sealed yet.
    pub fn has_open_batch(&self, p: PartitionIdx) -> bool {
        !self.core.part(p).open.is_empty()
    }

    /// Bytes that were appended and are not durable.
    pub fn waiting_bytes(&self) -> u64 {
        self.core.admission.waiting_bytes()
    }

    /// Whether batches were appended that no turn's end has seen: facts that must stand before them are to be logged now.
    pub fn has_batches(&self) -> bool {
        self.core.turn.has_unsealed()
    }

    /// Failures of files, a sentence each: no publish is taken until a restart. Empty when all is well.
    pub fn health(&self) -> Vec<String> {
        let core = &self.core;
        let mut sick: Vec<String> =
            core.failures.of_core().iter().map(|why| format!("no publish is taken until a restart: {why}")).collect();
        if let Some((n, p)) = core.failures.first() {
            let part = core.part(p);
            let why = match part.closed.as_deref() {
                Some(Closed::Failed(why)) => why,
                _ => "",
            };
            sick.push(format!("{n} partitions are read-only until a restart, the first is {}: {why}", part.dir));
        }
        if let Some(name) = core.topics.failed() {
            sick.push(format!("topic.meta of {} could not be written, the journal keeps its record until a restart", name));
        }
        if let Some(name) = core.topics.half_removed() {
            sick.push(format!("topic {name} could not be removed, the journal keeps its record until a restart"));
        }
        sick
    }

    /// Sentence about a full disk, which frees itself or is freed by an operator. `None`: it is not full.
    pub fn fullness(&self) -> Option<String> {
        match self.core.full_disk.first() {
            Some((n, p)) => {
                let dir = &self.core.part(p).dir;
                Some(format!("the disk is full: {n} partitions take no publish, the first is {dir}"))
            }
            None => self.checkpoint_lacks_space().then(|| "the disk is full: the checkpoint waits for space".into()),
        }
    }

    pub fn is_disk_full(&self) -> bool {
        self.core.full_disk.is_full()
    }

    /// Whether some core of the node lacks space.
    pub fn is_short_of_space(&self) -> bool {
        self.core.full_disk.is_short()
    }

    /// True if the checkpoint finds no space for its snapshots, so the journal is not freed.
    pub fn checkpoint_lacks_space(&self) -> bool {
        self.flushing.lacks_space(&self.core)
    }

    /// True if a publish or a new channel would wait for the journal as long as the disk is full. The rest of the
    /// journal is for the channels that are there.
    pub fn is_stuck(&self) -> bool {
        let core = &self.core;
        let is_full = core.admission.is_refused(Lack::Journal) || !core.ring.admits(core.admission.unpacked());
        is_full && !self.is_read_only() && self.checkpoint_lacks_space()
    }

    /// Refusal of an operator's change whose record the journal cannot take soon. A change may make room, so it is still taken when FINs
    /// wait in their channels.
    pub fn check_change(&self) -> Result<(), Refusal> {
        match () {
            () if self.is_read_only() || self.core.ring.admits_changes() => Ok(()),
            () if self.checkpoint_lacks_space() => Err(Refusal::DiskFull),
            () if self.core.is_kept() => Err(Refusal::ReadOnly),
            () => Ok(()),
        }
    }

    /// Notes that another core has no space, or has space again. While another core lacks space, this core frees bytes that it would keep
    /// otherwise.
    pub fn set_other_full(&mut self, core: CoreId, full: bool) {
        if self.core.full_disk.set_other(core, full) {
            self.core.look_at_all();
        }
    }

    /// True if a publish or a new channel would wait for the journal until a restart. The rest of the journal is for the channels that
    /// are there.
    pub fn is_kept_full(&self) -> bool {
        !self.core.ring.admits(self.core.admission.unpacked()) && self.core.is_kept()
    }

    /// Sets the offset before which all channels have confirmed everything. It never moves back, and stays while a lost channel may come
    /// again.
    pub fn set_low_water(&mut self, p: PartitionIdx, at: Position) {
        let is_short = self.core.full_disk.is_short();
        let part = self.core.part_mut(p);
        let moves = part.damage.channels_lost() == 0 && part.borders.raise_low_water(at);
        if moves && (is_short || part.segments.get(1).is_some_and(|s| s.base() <= at.offset)) {
            self.core.retention.look_at(p);
        }
    }

    /// A channel begins at `at`, which may lie before the other channels' confirmed positions.
    pub fn lower_low_water(&mut self, p: PartitionIdx, at: Position) {
        self.core.part_mut(p).borders.lower_low_water(at);
    }

    /// Sets the retention that the metadata gives a topic.
    pub fn set_topic_retention(&mut self, topic: &str, settings: TopicSettings) {
        let topics = &mut self.core.options.cluster_topics;
        match settings == TopicSettings::default() {
            true => drop(topics.remove(topic)),
            false => drop(topics.insert(topic.to_owned(), settings)),
        }
        self.core.retention.look_at_ages();
    }

    /// Bytes of segments that wait to be deleted.
    pub fn deleting_bytes(&self) -> u64 {
        self.core.retention.deleting_bytes()
    }

    /// The batch that begins at `offset`, if it is durable. [`Notice::Readable`] follows a [`Fetch::Pending`].
    pub fn fetch(&mut self, p: PartitionIdx, offset: i64, io: &mut Io) -> Fetch {
        self.reads.fetch(&mut self.core, p, offset, io)
    }

    /// Reads batches verbatim from `from` on, at most `bytes_max` or one, nothing beyond the durable end, not over a segment's border.
    /// [`Notice::Verbatim`] answers, perhaps not before the next completion or tick; with nothing where the log ends.
    pub fn read_verbatim(&mut self, p: PartitionIdx, token: u64, from: Position, bytes_max: usize, io: &mut Io) {
        self.reads.read_verbatim(&mut self.core, p, token, from, bytes_max, io);
    }

    /// Finds the batch that begins at or before the place asked for; by time the first batch at or after it. Clamped to the stored log.
    /// [`Notice::Found`] answers, perhaps not before the next completion or tick.
    pub fn search(&mut self, p: PartitionIdx, by: SearchBy, token: u64, io: &mut Io) {
        self.reads.search(&mut self.core, p, by, token, io);
    }

    /// Bytes that were read from segments, are being read, or are lent.
    pub fn read_bytes(&self) -> usize {
        self.reads.read_bytes()
    }

    /// Lends fetched batches beyond the turn.
    pub fn lender(&self) -> Lender {
        self.reads.lender()
    }

    /// Place where the partition cannot be read, if there is one, for /stats.
    pub fn held(&self, p: PartitionIdx) -> Option<String> {
        if let Some((from, to)) = self.log_view(p).awaited() {
            let (from, to) = (from.offset, to.offset);
            return Some(format!("from offset {from} to {to} (damaged: another replica is asked for it)"));
        }
        self.reads.held(p)
    }

    /// Ends the turn: seals the open batches, issues journal writes, and begins the work that is due. While the journal takes no further
    /// write the open batches stay open and grow.
    pub fn turn_end(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        self.reads.end_turn(&mut self.core, io);
        let is_busy = !self.core.ring.takes_write(self.core.admission.unpacked()) && !self.core.is_stopping;
        if is_busy && self.core.turn.may_stay_open() {
            // Each of them has an open batch, and nothing else.
            self.record_commits();
            return self.drive(now, cursors, io);
        }
        let mut unsealed = self.core.turn.take_unsealed();
        let direct_len = self.core.direct_len();
        unsealed.retain(|&p| {
            let part = &mut self.core.partitions[p.0 as usize];
            let stays_open = is_busy && part.open.len() < direct_len && !part.open.is_empty();
            if !stays_open && !part.open.is_empty() {
                part.seal(p, &mut self.core.batch_memory);
            }
            part.set_unsealed(stays_open);
            if part.progress.released() < part.progress.end().number
                && !part.is_closed()
                && part.truncation.is_none()
                && !self.core.ring.is_poisoned()
            {
                let direct_len = part.direct_len(direct_len);
                for n in part.progress.release() {
                    if let Some(r) = part.batches.get_mut(n) {
                        r.is_direct |= r.bytes.len() >= direct_len;
                    }
                }
                self.flushing.advance(&mut self.core, p);
            }
            stays_open
        });
        self.core.turn.keep(unsealed);
        let batch_bytes = self.core.batch_bytes();
        self.core.batch_memory.free_pieces(&mut self.core.partitions, batch_bytes);
        self.record_commits();
        self.drive(now, cursors, io);
    }

    /// Hands out notices now: a reader that was called at the turn's end need not wait for a tick.
    pub fn take_notices(&mut self, notices: &mut Vec<Notice>) {
        notices.append(&mut self.core.notices);
    }

    /// Continues all work that can go on.
    fn drive(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        self.core.retain(now, &mut self.flushing, &mut self.reads, io);
        self.core.pack(io);
        self.go_on(now, cursors, io);
        // A checkpoint that was due has begun.
        self.close_if_stuck();
    }

    /// Closes a full journal for which more facts wait than it holds, while nothing is under way that may free it: memory has its bound.
    /// Only small facts that cannot wait come to that, such as changes of channels with a waiting client. FINs wait, and a follower refuses
    /// its leader's channels ([`Store::takes_facts`]).
    fn close_if_stuck(&mut self) {
        if self.core.ring.queued_bytes() > self.core.ring.capacity() && !self.is_writing() {
            self.core.close_journal("the journal is full and cannot be freed, and too many facts wait for space");
        }
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
        let Some(op) = self.core.ops.take(op) else {
            panic!("{op:?} was not asked for, or completed twice");
        };
        match op {
            Op::Journal(sequence) => match outcome {
                Ok(_) => self.journal_wrote(sequence, io),
                Err(error) => self.core.poison_journal(&error),
            },
            Op::Slot(reason) => match outcome {
                Ok(_) => self.flushing.slot_written(&mut self.core, reason, io),
                Err(error) => self.core.poison_journal(&error),
            },
            Op::Space { p, which, base, len } => {
                if let Err(error) = self.core.allocated(now, p, (which, base, len), outcome, io) {
                    self.flushing.poison_partition(&mut self.core, p, &error);
                }
            }
            Op::Flush(p, index) => self.flushing.flushed(&mut self.core, now, (p, index), outcome, cursors, io),
            Op::Topic(key) => {
                if let Some(topic) = self.core.topics.written(now, key, outcome, &mut self.core.ops, io) {
                    self.flushing.finish_checkpoint(&mut self.core, io);
                    self.core.topics.go_on_behind(topic, &mut self.core.ops, io);
                }
            }
            Op::Read(key) => self.reads.read_done(&mut self.core, now, key, outcome, io),
            Op::Verbatim(key, at) => self.reads.verbatim_done(&mut self.core, key, at, outcome, io),
            Op::Search(key) => self.reads.search_read(&mut self.core, now, key, outcome, io),
            Op::Scrub => self.reads.scrub_done(&mut self.core, now, outcome, io),
            Op::Remove(p) => self.core.removed(now, p, outcome),
            Op::Truncation(p) => self.truncation_went_on(now, p, outcome),
            Op::Mend(p) => self.mends.went_on(&mut self.core, &mut self.flushing, &mut self.reads, p, outcome, io),
            Op::RemovePartition(p) => self.partition_removed(p, outcome),
            Op::RemoveTopic(key) => self.topic_removed(key, outcome, io),
        }
        if self.core.is_stopping {
            self.turn_end(now, cursors, io);
        } else {
            self.go_on(now, cursors, io);
        }
        notices.append(&mut self.core.notices);
    }

    /// A write is complete. Acknowledges the records that became durable.
    fn journal_wrote(&mut self, sequence: u64, io: &mut Io) {
        if self.core.ring.is_poisoned() {
            return; // The checkpoint's slot, or another write, failed meanwhile; nobody waits any more.
        }
        self.core.ring.wrote(sequence);
        while let Some(notes) = self.core.ring.next_durable() {
            self.write_durable(notes, io);
        }
    }

    fn write_durable(&mut self, notes: Vec<RecordPurpose>, io: &mut Io) {
        let mut upto = RecordTicket(0);
        let mut touched = std::mem::take(&mut self.touched);
        for &note in &notes {
            match note {
                RecordPurpose::Batch(p) => {
                    let part = &mut self.core.partitions[p.0 as usize];
                    let len = part.next_durable(self.core.ring.durable());
                    self.core.batch_memory.eviction.durable(len);
                    if !part.is_held() {
                        self.core.admission.done(len);
                    }
                    if !part.set_touched(true) {
                        touched.push(p);
                    }
                }
                RecordPurpose::Fact(_, ticket) | RecordPurpose::Topic(_, ticket) => upto = upto.max(ticket),
            }
        }
        self.core.ring.recycle(notes);
        if upto.0 > 0 {
            self.core.turn.make_durable(upto);
            self.core.notices.push(Notice::RecordDurable { upto });
            self.core.remove_upto(upto, io);
        }
        for p in touched.drain(..) {
            let part = self.core.part_mut(p);
            part.set_touched(false);
            let last = part.batches.get(part.progress.durable().number - 1).expect("what was just made durable is in memory");
            let notice = Notice::Durable { p, end: part.progress.durable().at, tickets_upto: last.tickets.1 };
            self.core.notices.push(notice);
            self.flushing.want_if_due(&mut self.core, p);
        }
        self.touched = touched;
        self.core.admission.signal(Lack::Memory);
    }

    /// Work that is due by time alone.
    pub fn tick(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io, notices: &mut Vec<Notice>) {
        self.core.retry_full_disk(now, io);
        self.flushing.retry_snapshots(&mut self.core, now, cursors, io);
        self.core.topics.retry(now, &mut self.core.ops, io);
        self.reads.tick(&mut self.core, now, io);
        self.core.retention_tick(now);
        self.go_on(now, cursors, io);
        notices.append(&mut self.core.notices);
    }

    /// Continues everything behind the journal that can go on.
    fn go_on(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        self.core.delete_old(now, io);
        self.try_removals(io);
        self.drive_truncations(now, io);
        self.mends.drive(&mut self.core, &mut self.flushing, &mut self.reads, io);
        self.flushing.try_checkpoint(&mut self.core, io);
        self.flushing.start_rounds(&mut self.core, now, cursors, io);
        self.check_stopped();
        if self.core.admission.take_signal() {
            self.core.notices.push(Notice::Room);
        }
    }

    /// Time at which [`Store::tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        let core = &self.core;
        if !core.notices.is_empty() {
            return Some(Ticks(0));
        }
        let retries = [core.full_disk.deadline(), self.flushing.snapshot_deadline(core), core.topics.deadline()];
        let background = [self.reads.deadline(core), core.retention.deadline(&core.ops), self.truncation_deadline()];
        retries.into_iter().chain(background).flatten().min()
    }

    /// Makes everything durable and checkpoints it; then [`Notice::Stopped`]. Nothing can be appended any more.
    pub fn stop(&mut self, now: Now, cursors: &dyn CursorSource, io: &mut Io) {
        if !self.core.is_stopping {
            self.core.is_stopping = true;
            self.reads.stop();
            self.stop_truncations();
        }
        self.turn_end(now, cursors, io);
    }

    /// Whether an operation other than an allocation or a read is in flight, or a flush round is in line. A round that waits for space is
    /// neither.
    fn is_writing(&self) -> bool {
        let is_write = |op: &Op| !matches!(op, Op::Space { .. } | Op::Read(_) | Op::Verbatim(..) | Op::Search(_));
        self.core.ops.is_any(is_write) || self.flushing.has_line()
    }

    fn check_stopped(&mut self) {
        // Records that cannot be freed now (a full disk, a failed file) stay in the journal, where recovery finds them.
        if self.core.is_stopping && !self.has_stopped && !self.is_writing() {
            self.has_stopped = true;
            self.core.notices.push(Notice::Stopped);
        }
    }

    /// Upper bound of the bytes held for batches, reads and caches: small batches count also with their pieces, and bytes that are lent
    /// and cached count twice.
    pub fn memory_bytes(&self) -> usize {
        let core = &self.core;
        core.batch_bytes() + core.batch_memory.bytes() + core.ring.queued_bytes() as usize + self.reads.memory_bytes()
    }

    /// Records a topic's creation; `topic.meta` is written before a checkpoint passes it.
    pub fn log_topic_create(&mut self, info: &TopicInfo, created_unix_ns: i64, io: &mut Io) -> RecordTicket {
        let (key, ticket, Epoch(epoch)) = (self.core.topics.next_key(), self.core.turn.next_record(), self.core.options.epoch);
        let meta = TopicMeta { info: info.clone(), created_unix_ns };
        let payload = Bytes::copy_from_slice(meta.header().as_bytes());
        let header = RecordHeader::new(RecordKind::TopicCreate, info.id, WHOLE_TOPIC, 1, epoch, &payload);
        let note = RecordPurpose::Topic(key, ticket);
        self.core.ring.queue(Record { header, payload, slot: NO_SLOT, end: Position::START, note });
        self.core.topics.create(key, &meta, &mut self.core.ops, io);
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
