//! The plainest engine that writes the formats: one thing at a time, everything said twice. Recovery is tested against
//! the files that it leaves, and it knows what it acknowledged.
//!
//! Not the store: it shares no code with it but the encodings and the limit of a journal's writes.

use super::disk::SimDisk;
use crate::base::*;
use crate::format::batch::{Batch, BatchBuilder, Stamp};
use crate::format::cursor::{CursorImage, Interval};
use crate::format::files::{self, COMMIT_MAGIC, COMMIT_RECORD_LEN, FileHeader, RawPosition, SEGMENT_MAGIC, VERSION};
use crate::format::journal::JournalIdentity;
use crate::format::journal::*;
use crate::format::meta::TopicMeta;
use crate::format::segment_table::SegmentTable;
use crate::format::snapshot::Snapshot;
use crate::format::storage::{Storage, overlay};
use crate::journal::limit::Limit;
use crate::journal::replay::slot_block;
use crate::log::recovery::scan::{commit_at, commit_record, segment_at};
use crate::log::recovery::{Recovered, channels};
use crate::log::state::RecoveredPartition;
use crate::log::{NativeBatch, ProducerLimits, Producers};
use bytes::Bytes;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A partition as the engine holds it.
#[derive(Clone, Debug)]
pub struct Part {
    pub dir: Arc<PartitionDir>,
    pub topic: TopicRef,
    pub core: usize,
    pub start: Position,
    pub end: Position,
    pub collect_start: Position,
    pub chain_crc: u32,
    pub epoch: Epoch,
    pub record_sequence: u64,
    pub snapshot_sequence: u64,
    /// Journal records up to here are in the last snapshot.
    pub applied: u64,
    /// Base, prev_crc and records of the last segment.
    pub bases: Vec<i64>,
    pub records: u64,
    pub segment_len: u64,
    /// Batches that are journaled and not in the segment.
    pub pending: Vec<Batch>,
    pub channels: Vec<CursorImage>,
    pub producers: Producers,
    last_base: (Position, u32),
}

/// A journal's writing end.
#[derive(Clone, Debug)]
pub struct Journal {
    pub core: u16,
    pub identity: JournalIdentity,
    pub position: u64,
    pub lap: u64,
    pub sequence: u64,
    pub durable: u64,
    /// Position, lap and sequence.
    pub tail: (u64, u64, u64),
    limit: Limit,
    pub previous: Vec<DirectoryEntry>,
    pub previous_facts: u64,
    /// Sequence, position and length of each write since the checkpoint.
    pub writes: Vec<(u64, u64, u64)>,
}

/// A record to be packed: kind, partition (none: the topic as a whole), payload.
pub type Fact = (RecordKind, Option<usize>, Bytes, TopicId);

pub struct Engine {
    pub disk: SimDisk,
    pub parts: Vec<Part>,
    pub journals: Vec<Journal>,
    pub generation: u64,
    pub segment_bytes: u64,
    next_op: u64,
}

/// The machine has crashed under the engine.
#[derive(Debug)]
pub struct Crashed;

impl Engine {
    /// Continues from a recovered state.
    pub fn new(disk: SimDisk, recovered: Recovered, segment_bytes: u64) -> Engine {
        let cores = recovered.journals.len() as u16;
        let journal = |(core, &identity): (usize, &JournalIdentity)| Journal {
            core: core as u16,
            identity,
            position: RING_START,
            lap: 1,
            sequence: 1,
            durable: 0,
            tail: (RING_START, 1, 1),
            limit: Limit::begun(travelled(1, RING_START, identity.file_len), identity.file_len),
            previous: vec![],
            previous_facts: 0,
            writes: vec![],
        };
        let journals = recovered.journals.iter().enumerate().map(journal).collect();
        let parts = recovered.partitions.into_iter().map(|p| Part::new(p, cores)).collect();
        Engine { disk, parts, journals, generation: recovered.generation, segment_bytes, next_op: 0 }
    }

    fn op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    /// Issues a write and waits for it.
    fn put(&mut self, file: FileId, at: u64, bytes: Vec<u8>, durability: Durability) -> Result<(), Crashed> {
        let id = self.op();
        self.disk.submit(id, DiskOp::Write { file, at, parts: vec![bytes.into()], durability });
        match self.disk.complete() {
            Some((_, Ok(_))) => Ok(()),
            _ => Err(Crashed),
        }
    }

    /// Creates a topic: the record first, then topic.meta.
    pub fn create_topic(&mut self, info: TopicInfo) -> Result<(), Crashed> {
        let topic = Arc::new(info);
        let cores = self.journals.len() as u16;
        let meta = TopicMeta { info: (*topic).clone(), created_unix_ns: 1 };
        let core = crate::base::topic::home_core(&topic.name, cores).0 as usize;
        self.reserve(core, BLOCK as u64)?;
        self.write(core, &[(RecordKind::TopicCreate, None, meta.header().as_bytes().to_vec().into(), topic.id)])?;
        for partition in (0..topic.partitions).map(PartitionId) {
            let dir = Arc::new(PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition });
            self.parts.push(Part::fresh(dir, topic.clone(), cores));
        }
        for copy in [0, 1] {
            let file = FileId::Topic(self.parts[self.parts.len() - 1].dir.clone(), copy);
            self.disk.allocate(&file, BLOCK as u64).map_err(|_| Crashed)?;
            self.put(file, 0, meta.encode(), Durability::Durable)?;
        }
        Ok(())
    }

    /// A batch behind the partition's end: not yet anywhere.
    pub fn make_batch(&mut self, p: usize, bodies: &[Vec<u8>]) -> Batch {
        let generation = self.generation;
        let part = &mut self.parts[p];
        let mut builder = BatchBuilder::default();
        bodies.iter().for_each(|b| builder.push(1_000, b));
        let (topic_id, partition) = (part.dir.topic_id, part.dir.partition);
        let batch = builder.seal(Stamp { topic_id, partition, epoch: Epoch(generation), at: part.end, prev_crc: part.chain_crc });
        part.epoch = Epoch(generation);
        (part.end, part.chain_crc) = (batch.header.end(), batch.header.header_crc.get());
        batch
    }

    /// The same with a client's body.
    pub fn make_native(&mut self, p: usize, native: NativeBatch) -> Batch {
        let part = &mut self.parts[p];
        let (topic_id, partition, epoch) = (part.dir.topic_id, part.dir.partition, Epoch(self.generation));
        let batch = native.seal(Stamp { topic_id, partition, epoch, at: part.end, prev_crc: part.chain_crc }, 1_000);
        part.epoch = epoch;
        part.producers.count(&batch.header);
        (part.end, part.chain_crc) = (batch.header.end(), batch.header.header_crc.get());
        batch
    }

    /// Makes room in the last segment, or begins a new one, before the batch is journaled (rule 10).
    pub fn admit(&mut self, p: usize, len: usize) -> Result<(), Crashed> {
        let part = &self.parts[p];
        let base = part.bases.last().copied();
        let needs_new = base.is_none_or(|b| {
            let used = segment_at(b, part.end.offset) + len as u64;
            used > self.segment_bytes && part.end.offset > b
        });
        if needs_new {
            self.flush(p)?;
            let part = &mut self.parts[p];
            part.bases.push(part.end.offset);
            (part.records, part.segment_len, part.last_base) = (0, 0, (part.end, part.chain_crc));
        }
        let part = &self.parts[p];
        let (dir, base, end) = (part.dir.clone(), part.bases[part.bases.len() - 1], part.end.offset);
        let segment_len = block_up(segment_at(base, end) + len as u64);
        let commit_len = block_up(commit_at(part.records + part.pending.len() as u64 + 1));
        self.disk.allocate(&FileId::Segment(dir.clone(), base), segment_len).map_err(|_| Crashed)?;
        self.disk.allocate(&FileId::Commit(dir, base), commit_len).map_err(|_| Crashed)
    }

    /// Writes the journal once. Ok: the write is durable, everything in it may be acknowledged.
    pub fn write(&mut self, core: usize, facts: &[Fact]) -> Result<(), Crashed> {
        let (mut records, mut directory) = (vec![], Vec::<DirectoryEntry>::new());
        let (mut copied, mut copy) = (0, vec![]);
        for (kind, p, payload, topic_id) in facts {
            let (partition, sequence, end) = match p {
                Some(p) => {
                    let part = &mut self.parts[*p];
                    part.record_sequence += 1;
                    (part.dir.partition.0, part.record_sequence, part.end)
                }
                None => (WHOLE_TOPIC, 1, Position::START),
            };
            let h = RecordHeader::new(*kind, *topic_id, partition, sequence, self.generation, payload);
            let at = records.len();
            records.extend_from_slice(h.as_bytes());
            records.extend_from_slice(payload);
            records.resize(records.len().next_multiple_of(8), 0);
            if kind.stands_twice() {
                copied += 1;
                copy.extend_from_slice(&records[at..]);
            }
            directory.retain(|e| e.topic_id != topic_id.0 || e.partition.get() != partition);
            directory.push(DirectoryEntry::new(*topic_id, partition, end));
        }
        let head_len = WriteHeader::head_len(directory.len(), self.journals[core].previous.len());
        let main_len = block_up((head_len + records.len()) as u64);
        let copy_len = if copied == 0 { 0 } else { block_up((FACTS_HEADER_LEN + copy.len()) as u64) };
        let len = main_len + copy_len;
        assert!(self.room(core) >= len, "reserve() comes before anything is appended");
        let j = &mut self.journals[core];
        if j.position + len > j.identity.file_len {
            (j.position, j.lap) = (RING_START, j.lap + 1);
        }
        let end = travelled(j.lap, j.position, j.identity.file_len) + len;
        while !self.journals[core].limit.lets(end) {
            self.write_slot(core)?;
        }
        let j = &mut self.journals[core];
        let header = WriteHeader {
            magic: WRITE_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            core: j.core.into(),
            len: (len as u32).into(),
            journal_id: j.identity.journal_id,
            generation: j.identity.generation.into(),
            lap: j.lap.into(),
            sequence: j.sequence.into(),
            durable: j.durable.into(),
            checkpoint: j.identity.slot_sequence.into(),
            position: j.position.into(),
            directory: (directory.len() as u32).into(),
            previous: (j.previous.len() as u32).into(),
            records: (facts.len() as u32).into(),
            records_len: (records.len() as u32).into(),
            facts: (copy_len as u32).into(),
            previous_facts: (j.previous_facts as u32).into(),
            reserved: [0; 24],
        };
        let mut bytes = header.as_bytes().to_vec();
        directory.iter().chain(&j.previous).for_each(|e| bytes.extend_from_slice(e.as_bytes()));
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&records);
        bytes.resize(main_len as usize, 0);
        if copied > 0 {
            bytes.extend_from_slice(FactsHeader::seal(&header, j.position + main_len, copied, &copy).as_bytes());
            bytes.extend_from_slice(&copy);
        }
        bytes.resize(len as usize, 0);
        let at = j.position;
        j.writes.push((j.sequence, at, len));
        (j.position, j.previous, j.previous_facts) = (at + len, directory, copy_len);
        j.sequence += 1;
        self.put(FileId::Journal(core as u16), at, bytes, Durability::Durable)?;
        let j = &mut self.journals[core];
        j.durable = j.sequence - 1;
        Ok(())
    }

    /// Sees to room in the ring for a write of so many bytes. Before anything is appended: a checkpoint takes in all there is.
    pub fn reserve(&mut self, core: usize, len: u64) -> Result<(), Crashed> {
        if self.room(core) < len + 2 * BLOCK as u64 { self.checkpoint(core) } else { Ok(()) }
    }

    /// Bytes that may be written before the checkpoint is in the way.
    fn room(&self, core: usize) -> u64 {
        let j = &self.journals[core];
        let capacity = j.identity.file_len - RING_START;
        let used: u64 = j.writes.iter().map(|w| w.2).sum();
        // The end of a lap wastes at most one write.
        capacity.saturating_sub(used + capacity / 4)
    }

    /// Writes the journaled batches into the segment and its commit log. Not synced.
    pub fn flush(&mut self, p: usize) -> Result<(), Crashed> {
        let pending = std::mem::take(&mut self.parts[p].pending);
        let part = &self.parts[p];
        let Some(&base) = part.bases.last() else { return Ok(()) };
        let (segment, commit) = (FileId::Segment(part.dir.clone(), base), FileId::Commit(part.dir.clone(), base));
        if part.records == 0 {
            self.write_headers(p)?;
        }
        for batch in &pending {
            let at = segment_at(base, batch.header.offset.get());
            self.overlay(&segment, at, &batch.bytes)?;
            let record = commit_record(&batch.header, &self.parts[p].dir);
            let at = commit_at(self.parts[p].records);
            self.overlay(&commit, at, record.as_bytes())?;
            self.parts[p].records += 1;
        }
        Ok(())
    }

    fn write_headers(&mut self, p: usize) -> Result<(), Crashed> {
        let part = &self.parts[p];
        let (at, prev_crc) = part.last_base;
        let (dir, epoch) = (part.dir.clone(), Epoch(self.generation));
        for (file, magic) in
            [(FileId::Segment(dir.clone(), at.offset), SEGMENT_MAGIC), (FileId::Commit(dir.clone(), at.offset), COMMIT_MAGIC)]
        {
            // As builds before the table wrote it.
            let none = SegmentTable::default();
            let block = FileHeader::new(magic, dir.topic_id, dir.partition, at, prev_crc, epoch, 0).block(&none);
            self.disk.allocate(&file, BLOCK as u64).map_err(|_| Crashed)?;
            self.put(file, 0, block, Durability::Later)?;
        }
        Ok(())
    }

    fn overlay(&mut self, file: &FileId, at: u64, bytes: &[u8]) -> Result<(), Crashed> {
        overlay(&mut self.disk, file, at, bytes).map_err(|_| Crashed)
    }

    /// Rule 5: the whole batch goes to its segment, durably; then its header to the journal.
    pub fn publish_direct(&mut self, p: usize, bodies: &[Vec<u8>]) -> Result<Batch, Crashed> {
        let len: usize = bodies.iter().map(|b| b.len() + 12).sum::<usize>() + 128;
        self.reserve(self.parts[p].core, BLOCK as u64)?;
        self.admit(p, len)?;
        self.flush(p)?;
        let batch = self.make_batch(p, bodies);
        let part = &self.parts[p];
        let (dir, base) = (part.dir.clone(), part.bases[part.bases.len() - 1]);
        let file = FileId::Segment(dir.clone(), base);
        self.overlay(&file, segment_at(base, batch.header.offset.get()), &batch.bytes)?;
        self.disk.sync(&file).map_err(|_| Crashed)?;
        let payload = batch.bytes.slice(..128);
        self.write(self.parts[p].core, &[(RecordKind::DirectBatch, Some(p), payload, dir.topic_id)])?;
        let record = commit_record(&batch.header, &dir);
        self.overlay(&FileId::Commit(dir, base), commit_at(self.parts[p].records), record.as_bytes())?;
        self.parts[p].records += 1;
        Ok(batch)
    }

    /// Writes everything of a partition into its files, durably, and a snapshot that says so.
    pub fn snapshot(&mut self, p: usize) -> Result<(), Crashed> {
        self.flush(p)?;
        for base in self.parts[p].bases.clone() {
            let dir = self.parts[p].dir.clone();
            for file in [FileId::Segment(dir.clone(), base), FileId::Commit(dir.clone(), base)] {
                self.disk.sync(&file).map_err(|_| Crashed)?;
            }
        }
        let part = &self.parts[p];
        let snapshot = Snapshot {
            topic_id: part.dir.topic_id,
            partition: part.dir.partition,
            sequence: part.snapshot_sequence + 1,
            applied: part.record_sequence,
            epoch: part.epoch,
            start: part.start,
            end: part.end,
            committed: part.end,
            collect_start: part.collect_start,
            chain_crc: part.chain_crc,
            segment_base: part.bases.last().copied().unwrap_or(0),
            doubt: Default::default(),
            unix_ns: 0,
            channels: part.channels.clone(),
            producers: part.producers.iter().copied().collect(),
            promised: Epoch(0),
            epochs: vec![],
            vouched: None,
            channels_lost: 0,
        };
        let bytes = snapshot.encode();
        for _ in 0..Snapshot::copies_behind(part.snapshot_sequence) {
            self.parts[p].snapshot_sequence += 1;
            let sequence = self.parts[p].snapshot_sequence;
            let file = Snapshot::file(&self.parts[p].dir, sequence);
            self.disk.allocate(&file, bytes.len() as u64).map_err(|_| Crashed)?;
            self.put(file, 0, Snapshot::renumber(&bytes, sequence), Durability::Durable)?;
        }
        self.parts[p].applied = self.parts[p].record_sequence;
        Ok(())
    }

    /// Empties the ring: all partitions of the core into their files, then the slot.
    pub fn checkpoint(&mut self, core: usize) -> Result<(), Crashed> {
        for p in 0..self.parts.len() {
            // As the store: never without a record in the journal that the last one does not contain.
            if self.parts[p].core == core && self.parts[p].record_sequence > self.parts[p].applied {
                self.snapshot(p)?;
            }
        }
        let j = &mut self.journals[core];
        (j.tail, j.writes) = ((j.position, j.lap, j.sequence), vec![]);
        self.write_slot(core)
    }

    /// A slot that points at the tail and lets writes go further than the one before.
    fn write_slot(&mut self, core: usize) -> Result<(), Crashed> {
        let j = &mut self.journals[core];
        j.identity.slot_sequence += 1;
        let (position, lap, sequence) = j.tail;
        let limit = j.limit.next(travelled(j.lap, j.position, j.identity.file_len), false);
        let mut checkpoint = Checkpoint {
            magic: CHECKPOINT_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            core: j.core.into(),
            reserved_32: 0.into(),
            journal_id: j.identity.journal_id,
            generation: j.identity.generation.into(),
            slot_sequence: j.identity.slot_sequence.into(),
            position: position.into(),
            lap: lap.into(),
            sequence: sequence.into(),
            durable: j.durable.into(),
            file_len: j.identity.file_len.into(),
            limit: limit.into(),
            reserved: [0; 32],
        };
        files::seal(&mut checkpoint);
        let at = (j.identity.slot_sequence % 2) * BLOCK as u64;
        self.put(FileId::Journal(core as u16), at, slot_block(checkpoint), Durability::Durable)?;
        self.journals[core].limit.written();
        Ok(())
    }

    /// A batch fact, once [`Engine::admit`] made room and [`Engine::make_batch`] the batch.
    pub fn batch_fact(&self, p: usize, batch: &Batch) -> Fact {
        (RecordKind::Batch, Some(p), batch.bytes.clone(), self.parts[p].dir.topic_id)
    }

    pub fn cursor_fact(&self, p: usize, kind: RecordKind, image: &CursorImage) -> Fact {
        let mut payload = vec![];
        image.encode(&mut payload);
        (kind, Some(p), payload.into(), self.parts[p].dir.topic_id)
    }

    pub fn position_fact(&self, p: usize, kind: RecordKind, at: Position) -> Fact {
        (kind, Some(p), RawPosition::from(at).as_bytes().to_vec().into(), self.parts[p].dir.topic_id)
    }

    /// Confirms messages on a channel of the engine, made when it is new; the facts for the journal.
    pub fn confirm(&mut self, p: usize, name: &str, intervals: &[Interval]) -> Vec<Fact> {
        let name = ChannelName::new(name).expect("a test's name is valid");
        let mut facts = vec![];
        let i = match self.parts[p].channels.iter().position(|c| c.name == name) {
            Some(i) => i,
            None => {
                let epoch = Epoch(self.generation);
                let confirmed = self.parts[p].start;
                let image = CursorImage::new(name, epoch, 1, confirmed);
                facts.push(self.cursor_fact(p, RecordKind::Cursor, &image));
                self.parts[p].channels.push(image);
                self.parts[p].channels.len() - 1
            }
        };
        let cursor = &mut self.parts[p].channels[i];
        channels::confirm(cursor, intervals);
        // As the store does: intervals alone.
        let confirmed = Position { offset: 0, count: 0, log_id: LogId(0) };
        let image = CursorImage { confirmed, intervals: intervals.to_vec(), ..cursor.clone() };
        facts.push(self.cursor_fact(p, RecordKind::Finished, &image));
        facts
    }
}

impl Part {
    fn new(p: RecoveredPartition, cores: u16) -> Part {
        let last = p.files.segments.last().copied();
        Part {
            core: p.topic.core_of(p.dir.partition, cores).0 as usize,
            dir: p.dir,
            topic: p.topic,
            start: p.start,
            end: p.end,
            collect_start: p.collect_start,
            chain_crc: p.chain_crc,
            epoch: p.epoch,
            record_sequence: p.record_sequence,
            snapshot_sequence: p.snapshot_sequence,
            applied: p.record_sequence,
            bases: p.files.segments.iter().map(|m| m.base.offset).collect(),
            records: p.files.commit_records,
            segment_len: p.files.segment_len,
            pending: vec![],
            channels: p.channels,
            producers: p.producers,
            last_base: last.map_or((Position::START, 0), |m| (m.base, m.prev_crc)),
        }
    }

    fn fresh(dir: Arc<PartitionDir>, topic: TopicRef, cores: u16) -> Part {
        Part {
            core: topic.core_of(dir.partition, cores).0 as usize,
            dir,
            topic,
            start: Position::START,
            end: Position::START,
            collect_start: Position::START,
            chain_crc: 0,
            epoch: Epoch(0),
            record_sequence: 0,
            snapshot_sequence: 0,
            applied: 0,
            bases: vec![],
            records: 0,
            segment_len: 0,
            pending: vec![],
            channels: vec![],
            producers: Producers::new(ProducerLimits::default()),
            last_base: (Position::START, 0),
        }
    }
}

const _: () = assert!(BLOCK.is_multiple_of(COMMIT_RECORD_LEN));
