//! One partition's log in memory: how far it was appended, journaled, written, synced; its recent batches; its
//! segments and the space allocated for them.
//!
//! [`Progress`](super::progress::Progress) has the picture of a batch's way. Decides nothing about IO: [`flush`](super::flush) and
//! [`store`](super::store) move the borders.

use super::borders::Borders;
use super::damage::Damage;
use super::flush::Flush;
use super::journaled::{Journaled, SnapshotSlots};
use super::memory::BatchMemory;
use super::mend::Mend;
use super::native::NativeBatch;
use super::notice::{AppendTicket, LogStats, PartitionIdx};
use super::open_batch::OpenBatch;
use super::producer_tables::ProducerTables;
use super::producers::ProducerLimits;
use super::progress::{Mark, Progress};
use super::reading::Reading;
use super::recent::{Recent, RecentBatches};
use super::replica_state::ReplicaState;
use super::segments::{Segment, Segments};
use super::space::Space;
use super::state::RecoveredPartition;
use super::truncate::Truncation;
use super::writer::FileWriter;
use crate::base::{BLOCK, Epoch, PartitionDir, Position, TopicInfo};
use crate::format::batch::COPIED_MAX;
use crate::format::batch::{Batch, Stamp};
use crate::format::epochs::Epochs;
use crate::format::files::SegmentMeta;
use crate::format::files::{COMMIT_MAGIC, COMMIT_RECORD_LEN, FILE_HEADER_LEN, FileHeader, SEGMENT_MAGIC};
use std::sync::Arc;

/// Multiple of `direct-bytes` that has to wait for a partition to be written to as a stream ...
const STREAM_WAITING: usize = 4;
/// ... in which this part of `direct-bytes` is long enough to be written once ...
const STREAM_PART: usize = 4;
/// ... until so often nothing waited when something came.
const STREAM_LASTS: u8 = 16;

pub struct PartitionLog {
    pub dir: Arc<PartitionDir>,
    pub borders: Borders,
    pub damage: Damage,
    /// Epoch of new own batches, not below the epoch of the log's last batch.
    epoch: Epoch,
    /// All epochs of the log but the last one, which ends at its end.
    pub epochs: Epochs,
    pub progress: Progress,
    pub batches: RecentBatches,
    /// Bytes of the batches from `pinned` to `durable`.
    unflushed_bytes: u64,
    pub open: OpenBatch,
    pub producers: ProducerTables,
    /// The partition is in the store's list for the turn's end.
    is_unsealed: bool,
    /// True if the partition is in the store's list of partitions with records in the journal write that just finished.
    is_touched: bool,
    /// Number of streams, not zero while the partition is written to as a stream.
    streams: u8,
    pub segments: Segments,
    /// Space of the last segment's files.
    pub space: Space,
    pub writers: Writers,
    pub flush: Flush,
    pub journaled: Journaled,
    pub slots: SnapshotSlots,
    pub reading: Reading,
    /// `None`: the partition has no other replica.
    pub shared: Option<Box<ReplicaState>>,
    /// The truncation under way.
    pub truncation: Option<Box<Truncation>>,
    /// Range that damage took and that is being written again.
    pub mend: Option<Box<Mend>>,
    /// `None`: its files are written.
    pub closed: Option<Box<Closed>>,
}

/// Writers of the last segment's files.
pub struct Writers {
    pub segment: FileWriter,
    pub commit: FileWriter,
}

/// Reason why a partition's files are not written any more.
pub enum Closed {
    /// A write failed, as the text says.
    Failed(String),
    /// The partition, or its topic, is being removed.
    Leaving,
}

impl PartitionLog {
    /// Log of which nothing exists yet.
    pub fn empty(dir: Arc<PartitionDir>, epoch: Epoch, unix_ns: i64, limits: ProducerLimits) -> Self {
        let topic = TopicInfo { name: dir.topic.clone(), id: dir.topic_id, partitions: dir.partition.0 + 1 };
        let nothing = RecoveredPartition::empty(Arc::new(topic), dir, limits);
        Self::new(nothing, epoch, unix_ns)
    }

    /// Log of a recovered partition. `epoch`: of this startup, also used for a segment that has to be begun.
    pub fn new(r: RecoveredPartition, epoch: Epoch, unix_ns: i64) -> Self {
        let (mut metas, mut segment_len, mut commit_len, mut batches) =
            (r.files.segments, r.files.segment_len, r.files.commit_len, r.files.commit_records);
        if metas.is_empty() {
            metas.push(SegmentMeta { base: r.end, prev_crc: r.chain_crc });
            (segment_len, commit_len, batches) = (0, 0, 0);
        }
        let segments = Segments::new(&metas, batches);
        let last = segments.active().meta;
        let bytes = r.end.offset - last.base.offset;
        assert!(bytes >= 0, "the last segment holds the end");
        let header = |magic| {
            let (id, partition) = (r.dir.topic_id, r.dir.partition);
            FileHeader::new(magic, id, partition, last.base, last.prev_crc, epoch, unix_ns)
        };
        let before = segments.table_of(segments.len() - 1);
        // The header of an empty file may not be there yet; writing it (again) does no harm.
        let segment_writer = if bytes == 0 {
            FileWriter::begin(r.dir.clone(), header(SEGMENT_MAGIC), &before)
        } else {
            FileWriter::resume(r.dir.clone(), SEGMENT_MAGIC, last.base.offset, FILE_HEADER_LEN + bytes as u64, r.files.tail)
        };
        let commit_writer = if batches == 0 {
            FileWriter::begin(r.dir.clone(), header(COMMIT_MAGIC), &before)
        } else {
            let at = FILE_HEADER_LEN + batches * COMMIT_RECORD_LEN as u64;
            FileWriter::resume(r.dir.clone(), COMMIT_MAGIC, last.base.offset, at, r.files.commit_tail)
        };
        let end = Mark { number: 0, at: r.end, chain_crc: r.chain_crc, epoch: r.epoch, unix_ns: r.last_unix_ns };
        let is_shared = r.promised > Epoch(0);
        PartitionLog {
            borders: Borders::new(r.start, r.start_crc, r.collect_start),
            damage: r.damage,
            // A replica of several is told its epoch. Should it be alone from now on, it writes above all that it promised.
            epoch: if is_shared { epoch.max(Epoch(r.promised.max(r.epoch).0.saturating_add(1))) } else { epoch },
            epochs: r.epochs,
            progress: Progress::new(end),
            batches: RecentBatches::default(),
            unflushed_bytes: 0,
            open: OpenBatch::default(),
            producers: ProducerTables::new(r.producers),
            is_unsealed: false,
            is_touched: false,
            streams: 0,
            segments,
            space: Space::new(last.base.offset, segment_len, commit_len, r.snapshot_sequence),
            writers: Writers { segment: segment_writer, commit: commit_writer },
            flush: Flush::new(end),
            journaled: Journaled::new(r.record_sequence, r.end),
            slots: SnapshotSlots::new(r.snapshot_sequence, r.end),
            reading: Reading::default(),
            shared: is_shared.then(|| Box::new(ReplicaState::new(r.promised, r.committed, r.counted))),
            truncation: None,
            mend: None,
            closed: None,
            dir: r.dir,
        }
    }

    /// Whether the partition is closed for writing.
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// The partition, or its topic, is being removed.
    pub fn is_leaving(&self) -> bool {
        matches!(self.closed.as_deref(), Some(Closed::Leaving))
    }

    /// New own batches get this epoch.
    pub fn set_epoch(&mut self, epoch: Epoch) {
        assert!(epoch >= self.progress.end().epoch, "epochs never fall");
        self.epoch = epoch;
    }

    /// Notes whether the partition is in the store's list for the turn's end. Whether it was.
    pub fn set_unsealed(&mut self, is_unsealed: bool) -> bool {
        std::mem::replace(&mut self.is_unsealed, is_unsealed)
    }

    /// Notes whether the partition is in the store's list of partitions with records in a finished journal write. Returns the former
    /// value.
    pub fn set_touched(&mut self, is_touched: bool) -> bool {
        std::mem::replace(&mut self.is_touched, is_touched)
    }

    /// First position still stored.
    pub fn start(&self) -> Position {
        self.borders.start()
    }

    /// A journal write with this sequence holds a record of the partition.
    pub fn mark_dirty(&mut self, write_sequence: u64) {
        self.journaled.mark_dirty(write_sequence, self.flush.is_snapshot_taken());
    }

    /// Batches below this number were given to the disk, or will be by the round under way.
    pub fn flush_until(&self) -> u64 {
        self.flush.written_until().max(self.progress.written().number)
    }

    /// The batch with this number, if it is durable and in memory.
    pub fn durable_batch(&self, number: u64) -> Option<&Recent> {
        self.batches.get(number).filter(|_| number < self.progress.durable().number)
    }

    /// End of the written part of the segment that holds `offset`; `None` when `offset` is beyond it.
    pub fn readable_limit(&self, offset: i64) -> Option<i64> {
        if self.is_truncating() {
            return None;
        }
        let (index, _) = self.segments.holding(offset);
        let border = self.segments.border(index);
        let limit = border.min(self.progress.written().at.offset).min(self.progress.durable().at.offset);
        (offset < limit).then_some(limit)
    }

    /// The durable batch in memory that begins at `offset`.
    pub fn recent_at(&self, offset: i64) -> Option<&Recent> {
        let (number, found) = self.batches.starting_at(offset)?;
        (number < self.progress.durable().number).then_some(found)
    }

    /// Start of the first durable batch in memory that is younger than this time.
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

    /// Lets batches that stand in segment and commit log leave the memory. Returns their lengths.
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

    /// Length from which on the open batch goes straight to its segment; `usual`: the setting.
    ///
    /// A direct batch costs two durable writes in a row, but half of the bandwidth and less of the core. That pays where much waits,
    /// since then no publish waits for one batch alone. There shorter batches are direct, too, until several in a row had nothing before
    /// them.
    pub fn direct_len(&mut self, usual: usize) -> usize {
        let waiting = (self.progress.end().at.offset - self.progress.durable().at.offset) as usize;
        if waiting >= STREAM_WAITING * usual {
            self.streams = STREAM_LASTS;
        } else if self.progress.released() == self.progress.durable().number {
            self.streams = self.streams.saturating_sub(1);
        }
        if self.streams > 0 { usual / STREAM_PART } else { usual }
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
            // A lost batch takes no bytes in the segment: the log continues in the next one.
            self.roll();
        }
        ticket
    }

    fn push(&mut self, batch: Batch, tickets: (AppendTicket, AppendTicket), cost: u64) {
        let end = self.progress.end();
        if batch.header.epoch.get() != end.epoch.0 {
            self.epochs.close(self.start(), end.tail());
        }
        self.progress.seal(&batch.header);
        self.segments.count_batch();
        let bytes = batch.bytes;
        self.batches.push(Recent { bytes, tickets, is_direct: false, cost, record_sequence: 0, write_sequence: 0 });
        assert_eq!(self.batches.end(), self.progress.end().number, "recent batches end at the end");
    }

    /// Batches up to `mark` stand in segment and commit log.
    pub fn commit(&mut self, mark: Mark) {
        for number in self.progress.committed().number..mark.number {
            let r = self.batches.get(number).expect("an uncommitted batch is in memory");
            let before = self.producers.commit(r.header());
            if let Some(shared) = &mut self.shared {
                shared.count(before);
            }
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
        assert!(self.open.is_empty(), "what is open stands before the new segment");
        let last_unix_ns = self.batches.last().map(|r| r.header().base_unix_ns.get());
        self.segments.roll(end, last_unix_ns);
        self.space = self.space.next(end.at.offset);
    }

    /// The header for a file of `segment` that is begun now.
    pub fn file_header(&self, magic: [u8; 4], segment: &Segment, epoch: Epoch, unix_ns: i64) -> FileHeader {
        let SegmentMeta { base, prev_crc } = segment.meta;
        FileHeader::new(magic, self.dir.topic_id, self.dir.partition, base, prev_crc, epoch, unix_ns)
    }

    /// A file of the segment of this index that is begun now.
    pub fn begin_file(&self, magic: [u8; 4], index: usize, epoch: Epoch, unix_ns: i64) -> FileWriter {
        let segment = self.segments.get(index).expect("a file is of a segment");
        let header = self.file_header(magic, segment, epoch, unix_ns);
        FileWriter::begin(self.dir.clone(), header, &self.segments.table_of(index))
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

    /// Forgets the batches from `number` on, and the open one: they will never be durable. Returns their bytes, and the ring space set
    /// aside for them.
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
        self.producers.recount(self.batches.from(self.progress.committed().number));
    }

    /// Durable bytes go on counting as waiting, until they are committed.
    pub fn is_held(&self) -> bool {
        self.shared.as_ref().is_some_and(|s| s.is_held())
    }

    /// Releases durable bytes from `offset` on that still count as waiting. Returns how many.
    pub fn release_held(&mut self, offset: i64) -> u64 {
        let durable = self.progress.durable().at.offset;
        self.shared.as_mut().map_or(0, |s| s.release_from(offset, durable))
    }

    /// No round of flushing may begin: its files are being truncated or mended.
    pub fn is_busy(&self) -> bool {
        self.is_truncating() || self.is_mending()
    }

    /// True if readers wait at the damage up to `to`: another replica may have the lost bytes, and no operator gave them up.
    pub fn waits_for(&self, to: Position) -> bool {
        self.shared.as_ref().is_some_and(|s| s.waits_for(to))
    }

    pub fn stats(&self) -> LogStats {
        LogStats {
            messages: (self.progress.durable().at.count - self.start().count).max(0) as u64,
            bytes: (self.progress.durable().at.offset - self.start().offset).max(0) as u64,
            segments: self.segments.len() as u64,
            unflushed_bytes: self.unflushed_bytes,
            read_only: self.is_closed(),
            disk_full: self.space.is_full,
        }
    }

    /// Length a file must have so that `bytes` of a segment fit behind its header.
    pub fn blocks(bytes: u64) -> u64 {
        (FILE_HEADER_LEN + bytes).next_multiple_of(BLOCK as u64)
    }
}
