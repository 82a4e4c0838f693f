//! One partition's log in memory: how far it was appended, journaled, written, synced; its recent batches; its
//! segments and the space allocated for them.
//!
//! [`Progress`](super::progress::Progress) has the picture of a batch's way. Decides nothing about IO: [`flush`](super::flush) and
//! [`store`](super::store) move the borders.

use super::flush::Flush;
use super::memory::BatchMemory;
use super::mend::Mend;
use super::native::NativeBatch;
use super::notice::{AppendTicket, LogStats, PartitionIdx};
use super::open_batch::OpenBatch;
use super::producers::{Before, ProducerLimits, Producers};
use super::progress::{Mark, Progress};
use super::recent::{Recent, RecentBatches};
use super::space::Space;
use super::state::RecoveredPartition;
use super::truncate::Cut;
use super::writer::FileWriter;
use crate::base::{BLOCK, Epoch, PartitionDir, Position, TopicInfo};
use crate::format::batch::COPIED_MAX;
use crate::format::batch::{Batch, BatchHeader, Stamp};
use crate::format::epochs::Epochs;
use crate::format::files::{COMMIT_MAGIC, COMMIT_RECORD_LEN, CommitRecord, FILE_HEADER_LEN, FileHeader, SEGMENT_MAGIC};
use crate::format::segment_table::SegmentTable;
use crate::format::snapshot::SLOTS;
use crate::format::tail::Tail;
use crate::format::{files::SegmentMeta, snapshot::Doubt};
use std::{collections::VecDeque, sync::Arc};

/// With so many times `direct-bytes` waiting, a partition is written to as a stream ...
const STREAM_WAITING: usize = 4;
/// ... in which this part of `direct-bytes` is long enough to be written once ...
const STREAM_PART: usize = 4;
/// ... until so often nothing waited when something came.
const STREAM_LASTS: u8 = 16;

/// A segment and its commit log.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub meta: SegmentMeta,
    /// Of its newest batch; `None` when it was not closed in this process and nobody looked yet.
    pub last_unix_ns: Option<i64>,
}

/// What a partition with several replicas has beside.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The highest epoch that was promised.
    pub promised: Epoch,
    /// How far it is committed, as was told, and as the journal or a snapshot says.
    pub committed: Position,
    pub recorded: Position,
    /// In the store's list for a turn's end.
    pub is_due: bool,
    /// Of the log, what is durable from this offset on still counts as published and waiting.
    pub held_from: Option<i64>,
    /// What is lost and ends up to here is given up: readers pass it. What ends beyond is waited for.
    pub given_up: i64,
    /// What `committed_producers` was before each batch behind `committed`, since the start: a cut takes those back.
    pub counted: VecDeque<Before>,
}

impl Shared {
    pub fn new(promised: Epoch, committed: Position) -> Self {
        let (is_due, held_from, given_up, counted) = (false, None, 0, VecDeque::new());
        Shared { promised, committed, recorded: committed, is_due, held_from, given_up, counted }
    }
}

pub struct PartitionLog {
    pub dir: Arc<PartitionDir>,
    // ---- the log
    pub start: Position,
    /// Header crc of the batch before the start that recovery found, should that lie within a segment.
    pub start_crc: u32,
    pub collect_start: Position,
    pub low_water: Position,
    /// Retention removes nothing beyond this offset, whatever the channels have confirmed: another replica may need it.
    pub agreed_start: i64,
    pub doubt: Doubt,
    /// The generation of the start that may have lost channels, until somebody accepts that; zero: none.
    pub channels_lost: u64,
    /// What damage took, ascending, disjoint.
    pub lost: Vec<(Position, Position)>,
    /// Where the first damage begins.
    pub vouched: Option<Box<Tail>>,
    /// Of new own batches.
    pub epoch: Epoch,
    /// `None`: the partition has no other replica.
    pub shared: Option<Box<Shared>>,
    /// The cut under way.
    pub cut: Option<Box<Cut>>,
    /// What damage took and is being written again.
    pub mend: Option<Box<Mend>>,
    pub progress: Progress,
    /// All epochs of the log but the last one, which ends at its end.
    pub epochs: Epochs,
    pub batches: RecentBatches,
    /// Bytes of the batches from `pinned` to `durable`.
    unflushed_bytes: u64,
    pub open: OpenBatch,
    /// Idempotent producers as all sealed batches tell them, and as those below `committed` do: what a snapshot holds,
    /// and what the first goes back to when batches are forgotten.
    pub producers: Producers,
    pub committed_producers: Producers,
    /// In the store's list for the turn's end.
    pub is_dirty: bool,
    /// In the list of what the journal write that just finished has made durable.
    pub is_touched: bool,
    // ---- files
    /// Ascending, never empty; the last one takes new batches.
    pub segments: VecDeque<Segment>,
    /// Batches of the last segment.
    pub segment_batches: u64,
    /// Not zero: it is written to as a stream.
    pub streams: u8,
    pub space: Space,
    pub segment_writer: FileWriter,
    pub commit_writer: FileWriter,
    pub flush: Flush,
    // ---- journal and snapshots
    pub record_sequence: u64,
    /// Where the partition ends after the last batch given to the journal.
    pub journal_end: Position,
    pub snapshot_sequence: u64,
    /// Allocated lengths of the slots as far as known.
    pub snapshot_len: [u64; SLOTS as usize],
    /// First journal write with a record that not two durable slots contain.
    pub dirty_from: Option<u64>,
    /// The same beyond the snapshot that is being written to its slots.
    pub dirty_after: Option<u64>,
    /// End of the last durable snapshot: redo needs no segment below it.
    pub snapshot_end: Position,
    /// Why this partition's files are not written any more.
    pub poisoned: Option<String>,
    /// Its topic is being removed.
    pub is_leaving: bool,
    // ---- reading
    /// Reads in flight, by the offset they began at.
    pub reads: Vec<i64>,
    /// In the reader's line for room.
    pub waits_to_read: bool,
    /// Below this offset a read failed: batches are read one by one.
    pub careful_until: i64,
    /// Of the batch that was read from a segment last: others are probably as long.
    pub read_batch_len: u32,
}

impl PartitionLog {
    /// One of which nothing exists yet.
    pub fn empty(dir: Arc<PartitionDir>, epoch: Epoch, unix_ns: i64, limits: ProducerLimits) -> Self {
        let topic = TopicInfo { name: dir.topic.clone(), id: dir.topic_id, partitions: dir.partition.0 + 1 };
        let nothing = RecoveredPartition {
            topic: Arc::new(topic),
            start: Position::START,
            start_crc: 0,
            end: Position::START,
            collect_start: Position::START,
            chain_crc: 0,
            epoch: Epoch(0),
            epochs: Epochs::default(),
            promised: Epoch(0),
            committed: Position::START,
            vouched: None,
            doubt: Doubt::None,
            channels_lost: 0,
            record_sequence: 0,
            snapshot_sequence: 0,
            segments: vec![],
            segment_len: 0,
            commit_len: 0,
            tail: vec![],
            commit_tail: vec![],
            commit_records: 0,
            channels: vec![],
            lost: vec![],
            producers: Producers::new(limits),
            counted: VecDeque::new(),
            last_unix_ns: 0,
            dir,
        };
        Self::new(nothing, epoch, unix_ns)
    }

    /// `epoch`: of this start, also that of a segment that has to be begun.
    pub fn new(r: RecoveredPartition, epoch: Epoch, unix_ns: i64) -> Self {
        let mut segments: VecDeque<Segment> = r.segments.iter().map(|&meta| Segment { meta, last_unix_ns: None }).collect();
        let (mut segment_len, mut commit_len, mut batches) = (r.segment_len, r.commit_len, r.commit_records);
        if segments.is_empty() {
            let meta = SegmentMeta { base: r.end, prev_crc: r.chain_crc };
            segments.push_back(Segment { meta, last_unix_ns: None });
            (segment_len, commit_len, batches) = (0, 0, 0);
        }
        let last = segments.back().expect("one was just added").meta;
        let bytes = r.end.offset - last.base.offset;
        assert!(bytes >= 0, "the last segment holds the end");
        let header = |magic| {
            let (id, partition) = (r.dir.topic_id, r.dir.partition);
            FileHeader::new(magic, id, partition, last.base, last.prev_crc, epoch, unix_ns)
        };
        let before = SegmentTable::of(segments.range(..segments.len() - 1).map(|s| s.meta));
        // The header of an empty file may not be there yet; writing it (again) does no harm.
        let segment_writer = if bytes == 0 {
            FileWriter::begin(r.dir.clone(), header(SEGMENT_MAGIC), &before)
        } else {
            FileWriter::resume(r.dir.clone(), SEGMENT_MAGIC, last.base.offset, FILE_HEADER_LEN + bytes as u64, r.tail)
        };
        let commit_writer = if batches == 0 {
            FileWriter::begin(r.dir.clone(), header(COMMIT_MAGIC), &before)
        } else {
            let at = FILE_HEADER_LEN + batches * COMMIT_RECORD_LEN as u64;
            FileWriter::resume(r.dir.clone(), COMMIT_MAGIC, last.base.offset, at, r.commit_tail)
        };
        let end = Mark { number: 0, at: r.end, chain_crc: r.chain_crc, epoch: r.epoch, unix_ns: r.last_unix_ns };
        PartitionLog {
            start: r.start,
            start_crc: r.start_crc,
            collect_start: r.collect_start,
            low_water: r.start,
            agreed_start: i64::MAX,
            doubt: r.doubt,
            channels_lost: r.channels_lost,
            lost: r.lost,
            vouched: r.vouched.map(Box::new),
            // A replica of several is told its epoch. Should it be alone from now on, it writes above all that it promised.
            epoch: if r.promised == Epoch(0) { epoch } else { epoch.max(Epoch(r.promised.max(r.epoch).0.saturating_add(1))) },
            shared: (r.promised > Epoch(0))
                .then(|| Box::new(Shared { counted: r.counted, ..Shared::new(r.promised, r.committed) })),
            cut: None,
            mend: None,
            progress: Progress::new(end),
            epochs: r.epochs,
            batches: RecentBatches::default(),
            unflushed_bytes: 0,
            open: OpenBatch::default(),
            committed_producers: r.producers.clone(),
            producers: r.producers,
            is_dirty: false,
            is_touched: false,
            segments,
            segment_batches: batches,
            streams: 0,
            space: Space::new(last.base.offset, segment_len, commit_len, r.snapshot_sequence),
            segment_writer,
            commit_writer,
            flush: Flush::new(end),
            record_sequence: r.record_sequence,
            journal_end: r.end,
            snapshot_sequence: r.snapshot_sequence,
            snapshot_len: [0; SLOTS as usize],
            dirty_from: None,
            dirty_after: None,
            snapshot_end: r.end,
            poisoned: None,
            is_leaving: false,
            reads: vec![],
            waits_to_read: false,
            careful_until: 0,
            read_batch_len: 0,
            dir: r.dir,
        }
    }

    /// A journal write with this sequence holds a record of the partition.
    pub fn mark_dirty(&mut self, write_sequence: u64) {
        self.dirty_from.get_or_insert(write_sequence);
        if self.flush.is_snapshot_taken() {
            self.dirty_after.get_or_insert(write_sequence);
        }
    }

    /// Batches below this number were given to the disk, or will be by the round under way.
    pub fn flush_until(&self) -> u64 {
        self.flush.written_until().max(self.progress.written().number)
    }

    /// The batch with this number, if it is durable and in memory.
    pub fn durable_batch(&self, number: u64) -> Option<&Recent> {
        self.batches.get(number).filter(|_| number < self.progress.durable().number)
    }

    /// The durable batch in memory that begins at `offset`.
    pub fn recent_at(&self, offset: i64) -> Option<&Recent> {
        let (number, found) = self.batches.starting_at(offset)?;
        (number < self.progress.durable().number).then_some(found)
    }

    /// Where the first durable batch in memory begins that is younger than this.
    pub fn first_durable_after(&self, unix_ns: i64) -> Option<Position> {
        let numbers = self.batches.first()..self.progress.durable().number;
        let mut headers = numbers.zip(self.batches.iter()).map(|(_, r)| r.header());
        headers.find(|h| h.base_unix_ns.get() > unix_ns).map(|h| h.start())
    }

    /// Bytes that are durable and stand in no segment, or in no commit log, yet.
    pub fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes
    }

    /// The next batch is durable with this journal write. Its length.
    pub fn next_durable(&mut self, write_sequence: u64) -> u64 {
        let r = self.batches.get(self.progress.durable().number).expect("a batch that is not durable is in memory");
        assert!(r.write_sequence == write_sequence, "batches become durable with their own write");
        self.progress.make_durable(r.header());
        let len = r.bytes.len() as u64;
        self.unflushed_bytes += len;
        len
    }

    /// What stands in segment and commit log may leave the memory. The lengths of those batches.
    pub fn unpin(&mut self) -> impl Iterator<Item = usize> + '_ {
        self.progress.unpin().map(|number| {
            let len = self.batches.get(number).expect("a pinned batch is in memory").bytes.len();
            self.unflushed_bytes -= len as u64;
            len
        })
    }

    /// The log ends at `mark`: forgets the batches behind it.
    pub fn truncate_memory(&mut self, mark: Mark) {
        for number in mark.number.max(self.batches.first()).max(self.progress.pinned())..self.progress.durable().number {
            self.unflushed_bytes -= self.batches.get(number).expect("a pinned batch is in memory").bytes.len() as u64;
        }
        self.batches.truncate(mark.number);
        self.progress.truncate(mark);
    }

    /// The mark after the batches below `number`, reached from `mark`; all of them are in memory.
    pub fn mark_at(&self, mark: Mark, number: u64) -> Mark {
        (mark.number..number)
            .fold(mark, |m, n| m.after(self.batches.get(n).expect("a batch that is in no segment yet is in memory").header()))
    }

    /// What was appended goes on now: the length from which on it goes straight to its segment, when `usual` is what the settings say.
    ///
    /// Written once costs two durable writes in a row, but half of the bandwidth and less of the core: worth it where much waits, so
    /// that nobody waits for one batch alone. Then shorter ones are, too, until one after the other had nothing before it.
    pub fn direct_len(&mut self, usual: usize) -> usize {
        let waiting = (self.progress.end().at.offset - self.progress.durable().at.offset) as usize;
        if waiting >= STREAM_WAITING * usual {
            self.streams = STREAM_LASTS;
        } else if self.progress.released() == self.progress.durable().number {
            self.streams = self.streams.saturating_sub(1);
        }
        if self.streams > 0 { usual / STREAM_PART } else { usual }
    }

    pub fn active(&self) -> &Segment {
        self.segments.back().expect("a partition has a segment")
    }

    /// The segment that holds `offset`, with its index. The first one for anything below.
    pub fn segment_of(&self, offset: i64) -> (usize, &Segment) {
        let after = self.segments.partition_point(|s| s.meta.base.offset <= offset);
        let index = after.saturating_sub(1);
        (index, &self.segments[index])
    }

    fn stamp(&self) -> Stamp {
        let (topic_id, partition, epoch) = (self.dir.topic_id, self.dir.partition, self.epoch);
        let end = self.progress.end();
        Stamp { topic_id, partition, epoch, at: end.at, prev_crc: end.chain_crc }
    }

    /// Makes the open batch a sealed one; `p` is this partition.
    pub fn seal(&mut self, p: PartitionIdx, memory: &mut BatchMemory) {
        let stamp = self.stamp();
        let (batch, tickets, cost) = self.open.seal(stamp, memory);
        if batch.bytes.len() <= COPIED_MAX {
            memory.note(p, self.progress.end().number);
        }
        self.push(batch, tickets, cost);
    }

    /// Seals a client's batch behind the last one; there is no open one. Where it begins.
    pub fn seal_native(&mut self, now_unix_ns: i64, native: NativeBatch, cost: u64) -> Position {
        assert!(self.open.is_empty(), "what came before stands before it");
        let Mark { at, unix_ns, .. } = self.progress.end();
        let base_unix_ns = native.base_unix_ns(now_unix_ns, unix_ns);
        let batch = native.seal(self.stamp(), base_unix_ns);
        self.producers.count(&batch.header);
        let ticket = self.open.next_ticket();
        self.push(batch, (ticket, ticket), cost);
        at
    }

    /// A peer's batch, as it is.
    pub fn push_verbatim(&mut self, batch: Batch, is_direct: bool, cost: u64) -> AppendTicket {
        self.producers.count(&batch.header);
        let (ticket, is_lost) = (self.open.next_ticket(), batch.header.is_lost());
        let number = self.progress.end().number;
        self.push(batch, (ticket, ticket), cost);
        if let Some(r) = self.batches.get_mut(number) {
            r.is_direct = is_direct;
        }
        if is_lost {
            // Its body takes no bytes in the segment: the log goes on in the next one.
            self.roll();
        }
        ticket
    }

    fn push(&mut self, batch: Batch, tickets: (AppendTicket, AppendTicket), cost: u64) {
        let end = self.progress.end();
        if batch.header.epoch.get() != end.epoch.0 {
            self.epochs.close(self.start, end.tail());
        }
        self.progress.seal(&batch.header);
        self.segment_batches += 1;
        let bytes = batch.bytes;
        self.batches.push(Recent { bytes, tickets, is_direct: false, cost, record_sequence: 0, write_sequence: 0 });
        assert_eq!(self.batches.end(), self.progress.end().number, "recent batches end at the end");
    }

    /// Batches up to `mark` stand in segment and commit log.
    pub fn commit(&mut self, mark: Mark) {
        for number in self.progress.committed().number..mark.number {
            let r = self.batches.get(number).expect("an uncommitted batch is in memory");
            if let Some(shared) = &mut self.shared {
                shared.counted.extend(self.committed_producers.before(r.header()));
            }
            self.committed_producers.count(r.header());
        }
        self.progress.commit(mark);
    }

    /// The last ticket of the batch in memory that begins at `offset`.
    pub fn ticket_at(&self, offset: i64) -> Option<AppendTicket> {
        self.batches.starting_at(offset).map(|(_, r)| r.tickets.1)
    }

    /// Begins a new segment at the end.
    pub fn roll(&mut self) {
        let end = self.progress.end();
        assert!(self.open.is_empty() && self.active().meta.base.offset < end.at.offset);
        let last_unix_ns = self.batches.last().map(|r| r.header().base_unix_ns.get());
        self.segments.back_mut().expect("a partition has a segment").last_unix_ns = last_unix_ns;
        let meta = SegmentMeta { base: end.at, prev_crc: end.chain_crc };
        self.segments.push_back(Segment { meta, last_unix_ns: None });
        self.segment_batches = 0;
        self.space = self.space.next(meta.base.offset);
    }

    /// The header for a file of `segment` that is begun now.
    pub fn file_header(&self, magic: [u8; 4], segment: &Segment, epoch: Epoch, unix_ns: i64) -> FileHeader {
        let SegmentMeta { base, prev_crc } = segment.meta;
        FileHeader::new(magic, self.dir.topic_id, self.dir.partition, base, prev_crc, epoch, unix_ns)
    }

    /// The segments before the one of this index.
    pub fn table_of(&self, index: usize) -> SegmentTable {
        SegmentTable::of(self.segments.range(..index).map(|s| s.meta))
    }

    /// A file of the segment of this index that is begun now.
    pub fn begin_file(&self, magic: [u8; 4], index: usize, epoch: Epoch, unix_ns: i64) -> FileWriter {
        let header = self.file_header(magic, &self.segments[index], epoch, unix_ns);
        FileWriter::begin(self.dir.clone(), header, &self.table_of(index))
    }

    pub fn commit_record(&self, h: &BatchHeader) -> CommitRecord {
        let record = CommitRecord {
            log_id: h.log_id,
            epoch: h.epoch,
            last_log_id: h.last_log_id,
            offset: h.offset,
            count: h.count,
            unix_ns: h.base_unix_ns,
            size: (h.len() as u32).into(),
            num: h.num,
            batch_crc: h.header_crc,
            crc: 0.into(),
        };
        record.seal(self.dir.topic_id, self.dir.partition)
    }

    /// Forgets the oldest batch in memory, which stands in segment and commit log.
    pub fn evict(&mut self) -> usize {
        assert!(self.batches.first() < self.progress.pinned(), "what is not in a segment yet is never evicted");
        let evicted = self.batches.pop().map_or(0, |bytes| bytes.len());
        if self.batches.is_empty() {
            self.open.shrink();
        }
        evicted
    }

    /// Forgets the batches from `number` on, and the open one: they will never be durable. Their bytes, and what was set aside for
    /// them of the ring.
    pub fn forget_from(&mut self, number: u64) -> (u64, u64) {
        let (mut dropped, mut cost) = self.open.drop_all();
        for r in self.batches.from(number) {
            dropped += r.bytes.len() as u64;
            cost += r.cost;
        }
        self.batches.forget_from(number);
        // Their producers did not write them.
        self.recount_producers();
        (dropped, cost)
    }

    /// Counts the batches in memory behind those that the table of the files has.
    pub fn recount_producers(&mut self) {
        self.producers = self.committed_producers.clone();
        let number = self.progress.committed().number;
        self.batches.from(number).for_each(|r| self.producers.count(r.header()));
    }

    /// What becomes durable goes on counting as waiting, until it is committed.
    pub fn is_held(&self) -> bool {
        self.shared.as_ref().is_some_and(|s| s.held_from.is_some())
    }

    /// What is durable and still counts as waiting, from `offset` on, does so no longer. So many bytes.
    pub fn release_held(&mut self, offset: i64) -> u64 {
        let durable = self.progress.durable().at.offset;
        let held = self.shared.as_mut().and_then(|s| s.held_from.as_mut());
        held.map_or(0, |from| {
            let bytes = durable - offset.max(*from).min(durable);
            *from = offset.min(*from);
            bytes as u64
        })
    }

    /// No round of flushing may begin: its files are being cut or mended.
    pub fn is_busy(&self) -> bool {
        self.is_cutting() || self.is_mending()
    }

    /// Adds to what is known to be lost.
    pub fn add_lost(&mut self, from: Position, to: Position) {
        let index = self.lost.partition_point(|l| l.0.offset < from.offset);
        if let Some(before) = index.checked_sub(1).and_then(|i| self.lost.get_mut(i))
            && before.1.offset >= from.offset
        {
            if to.offset > before.1.offset {
                before.1 = to;
            }
            return;
        }
        self.lost.insert(index, (from, to));
    }

    /// The lost range that holds `offset`.
    pub fn lost_at(&self, offset: i64) -> Option<(Position, Position)> {
        let index = self.lost.partition_point(|l| l.0.offset <= offset).checked_sub(1)?;
        self.lost.get(index).copied().filter(|l| offset < l.1.offset)
    }

    /// Whether readers wait for what is lost up to `to`: another replica may have it, and nobody gave it up.
    pub fn waits_for(&self, to: Position) -> bool {
        self.shared.as_ref().is_some_and(|s| to.offset > s.given_up)
    }

    pub fn stats(&self) -> LogStats {
        LogStats {
            messages: (self.progress.durable().at.count - self.start.count).max(0) as u64,
            bytes: (self.progress.durable().at.offset - self.start.offset).max(0) as u64,
            segments: self.segments.len() as u64,
            unflushed_bytes: self.unflushed_bytes,
            read_only: self.poisoned.is_some(),
            disk_full: self.space.is_full,
        }
    }

    /// Length a file must have so that `bytes` of a segment fit behind its header.
    pub fn blocks(bytes: u64) -> u64 {
        (FILE_HEADER_LEN + bytes).next_multiple_of(BLOCK as u64)
    }
}
