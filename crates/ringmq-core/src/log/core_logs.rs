//! Logs of a core with the journal that they share: the part of the store that all its machines work with.

use super::admission::Admission;
use super::checkpoint::SlotReason;
use super::failure::Failures;
use super::memory::BatchMemory;
use super::notice::{Io, Notice, PartitionIdx, RecordTicket, StoreOptions};
use super::partition::PartitionLog;
use super::retention::Retention;
use super::space::{FullDisk, Which};
use super::topic_files::TopicFiles;
use super::turn::Turn;
use crate::base::{BLOCK, DiskOp, IdMap, OpId, Position, block_down};
use crate::format::batch::BATCH_HEADER_LEN;
use crate::format::files::RawPosition;
use crate::format::journal::{RecordHeader, RecordKind};
use crate::journal::ring::{Record, Ring};
use slab::Slab;
use zerocopy::IntoBytes;

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

    /// Takes out an operation that is complete.
    pub fn take(&mut self, op: OpId) -> Option<Op> {
        self.live.remove(&op)
    }

    pub fn is_any(&self, is: impl Fn(&Op) -> bool) -> bool {
        self.live.values().any(is)
    }
}

/// The logs, and what goes out to the disk and to the shard: all that the readers work with.
pub(super) struct Shared<'a> {
    pub logs: &'a mut Slab<PartitionLog>,
    pub ops: &'a mut Ops,
    pub notices: &'a mut Vec<Notice>,
    pub io: &'a mut Io,
}

impl Shared<'_> {
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

pub(super) struct CoreLogs {
    pub options: StoreOptions,
    pub ring: Ring<RecordPurpose>,
    pub partitions: Slab<PartitionLog>,
    pub ops: Ops,
    /// Given out with the next completion or tick.
    pub notices: Vec<Notice>,
    pub is_stopping: bool,
    pub turn: Turn,
    pub admission: Admission,
    pub batch_memory: BatchMemory,
    pub topics: TopicFiles,
    pub failures: Failures,
    pub full_disk: FullDisk,
    pub retention: Retention,
}

impl CoreLogs {
    pub fn new(options: StoreOptions) -> Self {
        CoreLogs {
            ring: Ring::new(options.core, options.journal),
            partitions: Slab::new(),
            ops: Ops::default(),
            notices: vec![],
            is_stopping: false,
            turn: Turn::default(),
            admission: Admission::default(),
            batch_memory: BatchMemory::default(),
            topics: TopicFiles::default(),
            failures: Failures::default(),
            full_disk: FullDisk::default(),
            retention: Retention::default(),
            options,
        }
    }

    pub fn part(&self, p: PartitionIdx) -> &PartitionLog {
        &self.partitions[p.0 as usize]
    }

    pub fn part_mut(&mut self, p: PartitionIdx) -> &mut PartitionLog {
        &mut self.partitions[p.0 as usize]
    }

    pub fn shared<'a>(&'a mut self, io: &'a mut Io) -> Shared<'a> {
        Shared { logs: &mut self.partitions, ops: &mut self.ops, notices: &mut self.notices, io }
    }

    /// Length of a full segment.
    pub fn segment_max(&self) -> u64 {
        block_down(self.options.max_bytes_per_file).max(4 * BLOCK as u64)
    }

    /// Length from which on a batch goes straight to its segment.
    pub fn direct_len(&self) -> usize {
        (self.options.direct_bytes as usize).clamp(BATCH_HEADER_LEN, self.ring.payload_max())
    }

    pub fn is_read_only(&self) -> bool {
        self.failures.is_core_closed()
    }

    /// Bytes of batches in memory.
    pub fn batch_bytes(&self) -> usize {
        self.admission.waiting_bytes() as usize + self.batch_memory.durable_bytes()
    }

    /// More is in memory for its segments than the journal explains.
    pub fn needs_memory(&self) -> bool {
        self.batch_memory.eviction.unflushed_bytes() > self.ring.capacity()
    }

    /// The turn's end has to look at the partition.
    pub fn mark_unsealed(&mut self, p: PartitionIdx) {
        if !self.part_mut(p).set_unsealed(true) {
            self.turn.push_unsealed(p);
        }
    }

    /// Seals the open batch, if there is one.
    pub fn seal_open(&mut self, p: PartitionIdx) {
        let part = &mut self.partitions[p.0 as usize];
        if !part.open.is_empty() {
            part.seal(p, &mut self.batch_memory);
            self.turn.must_seal();
        }
    }

    /// Hands sealed batches to the journal, in order, up to a direct one that is not synced yet. True if such a one is left.
    pub fn queue_batches(&mut self, p: PartitionIdx) -> bool {
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
        part.progress.is_held_back()
    }

    /// Gives a small fact to the journal.
    pub fn fact(&mut self, p: PartitionIdx, kind: RecordKind, payload: Vec<u8>) -> RecordTicket {
        let ticket = self.turn.next_record();
        let part = &mut self.partitions[p.0 as usize];
        let sequence = part.journaled.next_sequence();
        let (id, partition, epoch) = (part.dir.topic_id, part.dir.partition.0, self.options.epoch.0);
        let header = RecordHeader::new(kind, id, partition, sequence, epoch, &payload);
        let (payload, end) = (payload.into(), part.journaled.end());
        self.ring.queue(Record { header, payload, slot: p.0, end, note: RecordPurpose::Fact(p, ticket) });
        ticket
    }

    pub fn log_position(&mut self, p: PartitionIdx, kind: RecordKind, at: Position) -> RecordTicket {
        self.fact(p, kind, RawPosition::from(at).as_bytes().to_vec())
    }

    /// Issues journal writes of the queued records, up to the number allowed in flight.
    pub fn pack(&mut self, io: &mut Io) {
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

    /// Keeps the journal's limit ahead of its writes; at a stop, makes both slots say that none follows.
    pub fn move_limit(&mut self, io: &mut Io) {
        if let Some(op) = self.ring.move_limit(self.is_stopping) {
            self.ops.issue(io, op, Op::Slot(SlotReason::Limit));
        }
    }

    /// True if nothing of the journal is freed until a restart: the ring begins with records that a failed file needs.
    pub fn is_kept(&self) -> bool {
        let needed = self.failures.needed(&self.partitions).chain(self.topics.failed_records());
        needed.min().is_some_and(|from| from <= self.ring.tail_sequence())
    }

    /// The first position after `offset` that memory knows.
    pub fn next_in_memory(&self, p: PartitionIdx, offset: i64) -> Position {
        let part = self.part(p);
        let found = part.batches.get(part.batches.number_at(offset + 1)).map(|r| r.header().start());
        found.filter(|f| f.offset < part.progress.durable().at.offset).unwrap_or(part.progress.durable().at)
    }
}
