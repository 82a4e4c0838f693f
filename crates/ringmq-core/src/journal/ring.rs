//! The writing end of one core's journal: queues records, packs them into writes, and knows which part of the ring may be overwritten.
//!
//! ```text
//! RING_START                                                              file_len
//!    |......free......|== tail: first write redo needs ==|== head ==|......free......|
//!                      ^ the durable checkpoint           ^ next write
//! ```
//! Owns positions, laps, sequences, the directory repeated by the next write, and the checkpoint slots. Never overwrites a byte at or
//! after the durable checkpoint, never splits a write over the ring's end, and never issues anything after a failure.
//!
//! **While writes are in flight, the next one is issued when the waiting bytes reach half of theirs**, or an eighth of the longest write
//! (64 KiB of 512). Fewer bytes wait and share the next write, which costs the least; waiting for more would leave the device idle. Up
//! to [`DEPTH`] writes are in flight. They may complete in any order and become durable in sequence, so at a crash a whole write may
//! stand behind a torn one; recovery truncates both. Each write names the sequence up to which the ring was durable when it was issued.

use super::limit::{self, Limit};
use crate::base::{BLOCK, CoreId, DiskOp, Durability, FileId, LONG_WRITE_MIN, Position, TopicId, block_memory, block_up};
use crate::format::files::VERSION;
use crate::format::journal::JournalIdentity;
use crate::format::journal::*;
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Slot of a record that concerns a topic as a whole.
pub const NO_SLOT: u32 = u32::MAX;

/// Writes in flight at most.
pub const DEPTH: usize = 4;

/// Memory that is kept from one write to the next: at least and at most so long.
const SPARE_MIN: usize = 16 * 1024;
const SPARE_MAX: usize = 256 * 1024;

/// A payload of so many bytes is not copied into a long write but given to the disk as a part, since the disk copies that write once more.
const PART_MIN: usize = 4 * 1024;

/// Index of a directory entry that has no place yet.
const UNPLACED: u32 = u32::MAX;

/// Fact that is queued for the journal. `note` comes back when it is packed and when it is durable.
pub struct Record<N> {
    pub header: RecordHeader,
    pub payload: Bytes,
    /// Small number of the partition in its store: one directory entry per slot and write.
    pub slot: u32,
    /// End of the partition after this record.
    pub end: Position,
    pub note: N,
}

impl<N> Record<N> {
    /// Bytes that the record takes in the ring at most, its directory entry, the repetition, and a copy included.
    fn cost(&self) -> u64 {
        (self.header.padded_len() + self.fact_len() + 2 * size_of::<DirectoryEntry>()) as u64
    }

    /// Bytes of its copy; 0: it stands once.
    fn fact_len(&self) -> usize {
        let stands_twice = RecordKind::from_u16(self.header.kind.get()).is_some_and(RecordKind::stands_twice);
        if stands_twice { self.header.padded_len() } else { 0 }
    }
}

/// Position of a write: enough for a checkpoint to point at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WritePlace {
    sequence: u64,
    lap: u64,
    position: u64,
}

impl WritePlace {
    fn travelled(&self, file_len: u64) -> u64 {
        travelled(self.lap, self.position, file_len)
    }
}

/// Part of the queue that goes into one write.
struct Measured {
    count: usize,
    entries: usize,
    records_len: usize,
    /// Bytes of the copies, their head not included.
    facts_len: usize,
}

/// The records of a write that stand twice, as the copy has them.
#[derive(Default)]
struct Facts {
    count: u32,
    bytes: Vec<u8>,
}

impl Facts {
    fn push<N>(&mut self, record: &Record<N>) {
        let end = self.bytes.len() + record.header.padded_len();
        self.bytes.extend_from_slice(record.header.as_bytes());
        self.bytes.extend_from_slice(&record.payload);
        self.bytes.resize(end, 0);
        self.count += 1;
    }
}

/// Bytes of a write that the copies take: blocks of their own, so that none holds both.
fn facts_space(facts_len: usize) -> u64 {
    if facts_len == 0 { 0 } else { block_up((FACTS_HEADER_LEN + facts_len) as u64) }
}

struct InFlight<N> {
    notes: Vec<N>,
    is_complete: bool,
    len: u64,
    /// Bytes of the write, without payloads that are parts of their own.
    own: Bytes,
}

/// The ring of a core (see the module's description). `N`: the value that the owner gets back when a record is durable.
pub struct Ring<N> {
    core: CoreId,
    journal: JournalIdentity,
    /// Place of the next write, if the write fits there.
    head: WritePlace,
    /// Place that the durable checkpoint points at.
    tail: WritePlace,
    /// Writes from the tail on, oldest first.
    writes: VecDeque<WritePlace>,
    /// Every write up to this sequence is complete.
    durable: u64,
    slot_sequence: u64,
    queue: VecDeque<Record<N>>,
    queued_cost: u64,
    /// Writes that are issued and not durable, oldest first.
    in_flight: VecDeque<InFlight<N>>,
    spare_notes: Vec<N>,
    /// Memory of a write that is over, for the next one.
    spare_memory: BytesMut,
    /// Place that the slot that is being written points at.
    checkpointing: Option<WritePlace>,
    /// Limit of writes by the slots.
    limit: Limit,
    /// True while the node stops: the next write may be the last.
    is_closing: bool,
    /// Directory of the last write, and memory for the next one.
    previous: Vec<DirectoryEntry>,
    /// Bytes of the copy of that write's facts.
    previous_facts: usize,
    spare_directory: Vec<DirectoryEntry>,
    /// Sequence of the write that last touched a slot, and its entry there, by slot.
    touched: Vec<(u64, u32)>,
    poisoned: bool,
    write_max: usize,
}

impl<N: Copy> Ring<N> {
    /// Smallest file a ring can live in.
    pub const FILE_LEN_MIN: u64 = RING_START + 256 * 1024;

    /// An empty ring: the file's checkpoint says lap 1, sequence 1, [`RING_START`].
    pub fn new(core: CoreId, journal: JournalIdentity) -> Self {
        assert!(journal.file_len >= Self::FILE_LEN_MIN, "a ring of {} bytes cannot hold a write", journal.file_len);
        let first = WritePlace { sequence: 1, lap: 1, position: RING_START };
        let travelled = first.travelled(journal.file_len);
        Ring {
            core,
            journal,
            head: first,
            tail: first,
            writes: VecDeque::new(),
            durable: 0,
            slot_sequence: journal.slot_sequence,
            queue: VecDeque::new(),
            queued_cost: 0,
            in_flight: VecDeque::new(),
            spare_notes: vec![],
            spare_memory: BytesMut::new(),
            checkpointing: None,
            limit: Limit::begun(travelled, journal.file_len),
            is_closing: false,
            previous: vec![],
            previous_facts: 0,
            spare_directory: vec![],
            touched: vec![],
            poisoned: false,
            write_max: limit::write_max(journal.file_len) as usize,
        }
    }

    /// No record's payload may be longer.
    pub fn payload_max(&self) -> usize {
        self.write_max / 2
    }

    /// Length from which on a write has parts, and of the shortest part. A small ring, as tests have, has them likewise.
    fn long_min(&self) -> usize {
        LONG_WRITE_MIN.min(self.write_max / 8)
    }

    fn part_min(&self) -> usize {
        PART_MIN.min(self.write_max / 64)
    }

    /// Partitions in one write; so that two directories leave room for the longest record.
    fn directory_max(&self) -> usize {
        self.write_max / 8 / size_of::<DirectoryEntry>()
    }

    pub fn capacity(&self) -> u64 {
        self.journal.file_len - RING_START
    }

    /// Bytes that may not be written over, those wasted at a lap's end included.
    pub fn used(&self) -> u64 {
        if self.head.lap == self.tail.lap {
            self.head.position - self.tail.position
        } else {
            self.journal.file_len - self.tail.position + self.head.position - RING_START
        }
    }

    /// True if publishes of this many bytes still fit. A quarter of the ring is kept for cursors, retention and the unused bytes at a
    /// lap's end (rule 10).
    pub fn admits(&self, bytes: u64) -> bool {
        self.has_free(bytes + self.capacity() / 4)
    }

    /// Whether FINs still fit that need not be journaled now, where the ring may not be freed for long.
    pub fn admits_fins(&self) -> bool {
        self.has_free(self.capacity() / 8)
    }

    /// The same of operators' changes: the rest is for retention.
    pub fn admits_changes(&self) -> bool {
        self.has_free(self.capacity() / 16)
    }

    /// Whether all that is queued, and a small record behind it, is written before anything is freed. The writes are counted so that
    /// they are no fewer than those that come: two in a row carry more than half of a longest write.
    pub fn takes_one_more(&self) -> bool {
        let writes = 2 + self.queued_cost / (self.write_max as u64 / 4);
        let per_write = 2 * BLOCK + size_of::<WriteHeader>() + FACTS_HEADER_LEN;
        let needed = self.queued_cost + size_of_val(&self.previous[..]) as u64 + writes * per_write as u64;
        let free = match self.head.lap == self.tail.lap {
            true => (self.journal.file_len - self.head.position).max(self.tail.position - RING_START),
            false => self.tail.position - self.head.position,
        };
        needed <= free
    }

    fn has_free(&self, bytes: u64) -> bool {
        self.used() + self.queued_cost + bytes <= self.capacity()
    }

    /// Time for a checkpoint.
    pub fn is_half_full(&self) -> bool {
        self.used() * 2 >= self.capacity()
    }

    /// Half of the way from half full to where no publish is admitted.
    pub fn is_filling(&self) -> bool {
        self.used() * 8 >= self.capacity() * 5
    }

    /// Every write up to this sequence is complete.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The first write that redo would need.
    pub fn tail_sequence(&self) -> u64 {
        self.tail.sequence
    }

    pub fn is_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether another write is issued now, when `more` bytes are queued as well.
    pub fn takes_write(&self, more: u64) -> bool {
        if self.in_flight.is_empty() {
            return true;
        }
        let waiting = self.queued_cost + more;
        let carried: u64 = self.in_flight.iter().map(|write| write.len).sum();
        self.in_flight.len() < DEPTH && waiting >= (carried / 2).min(self.write_max as u64 / 8)
    }

    pub fn is_checkpointing(&self) -> bool {
        self.checkpointing.is_some()
    }

    pub fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Bytes of queued records.
    pub fn queued_bytes(&self) -> u64 {
        self.queued_cost
    }

    /// Dropped when the ring is poisoned: it will never be durable.
    pub fn queue(&mut self, record: Record<N>) {
        assert!(record.payload.len() <= self.payload_max(), "a record of {} bytes does not fit a write", record.payload.len());
        if !self.poisoned {
            self.queued_cost += record.cost();
            self.queue.push_back(record);
        }
    }

    /// Takes queued records into one write, as many as fit; its sequence is for [`Ring::wrote`]. `None` when there is none,
    /// enough is in flight, or the ring is full. `packed` hears of each record with the write's sequence.
    pub fn pack(&mut self, mut packed: impl FnMut(u64, N)) -> Option<(u64, DiskOp)> {
        if self.queue.is_empty() || !self.takes_write(0) || self.poisoned {
            return None;
        }
        let Measured { count, entries, records_len, facts_len } = self.measure();
        let head_len = WriteHeader::head_len(entries, self.previous.len());
        let main_len = block_up((head_len + records_len) as u64);
        let len = main_len + facts_space(facts_len);
        assert!(count > 0 && len as usize <= self.write_max, "the first record always fits");
        let Some(place) = self.place(len) else {
            // The next attempt must count these slots anew.
            for record in self.queue.iter().take(count).filter(|r| r.slot != NO_SLOT) {
                self.touched[record.slot as usize] = (0, 0);
            }
            return None;
        };
        self.assert_free(place, len);

        let part_min = if len as usize >= self.long_min() { self.part_min() } else { usize::MAX };
        let payloads = self.queue.iter().take(count).map(|record| record.payload.len());
        let parts_len: usize = payloads.filter(|len| *len >= part_min).sum();
        let mut bytes = self.take_memory(len as usize - parts_len);
        bytes.resize(head_len, 0);
        // the payloads that are parts, each with the length of `bytes` before it
        let mut long: Vec<(usize, Bytes)> = vec![];
        let mut directory = std::mem::take(&mut self.spare_directory);
        directory.clear();
        let mut notes = std::mem::take(&mut self.spare_notes);
        let mut facts = Facts::default();
        for record in self.queue.drain(..count) {
            self.queued_cost -= record.cost();
            let entry = DirectoryEntry::new(TopicId(record.header.topic_id), record.header.partition.get(), record.end);
            match self.touched.get_mut(record.slot as usize) {
                Some(&mut (sequence, index)) if sequence == place.sequence && index != UNPLACED => {
                    directory[index as usize] = entry;
                }
                Some(touched) => {
                    *touched = (place.sequence, directory.len() as u32);
                    directory.push(entry);
                }
                None => directory.push(entry),
            }
            if record.fact_len() > 0 {
                facts.push(&record);
            }
            bytes.extend_from_slice(record.header.as_bytes());
            let padding = record.header.padded_len() - record.header.len.get() as usize;
            if record.payload.len() < part_min {
                bytes.extend_from_slice(&record.payload);
            } else {
                long.push((bytes.len(), record.payload));
            }
            bytes.extend_from_slice(&[0; 8][..padding]);
            packed(place.sequence, record.note);
            notes.push(record.note);
        }
        assert_eq!(directory.len(), entries, "the directory is as measured");
        assert_eq!(bytes.len() + parts_len, head_len + records_len, "the records are as measured");
        assert_eq!(facts.bytes.len(), facts_len, "the facts are as measured");
        bytes.resize(main_len as usize - parts_len, 0);
        let measured = Measured { count, entries, records_len, facts_len };
        let header = self.write_head(&mut bytes[..head_len], place, len, &directory, &measured);
        if facts_len > 0 {
            let head = FactsHeader::seal(&header, place.position + main_len, facts.count, &facts.bytes);
            bytes.extend_from_slice(head.as_bytes());
            bytes.extend_from_slice(&facts.bytes);
            bytes.resize(len as usize - parts_len, 0);
        }
        self.previous_facts = facts_space(facts_len) as usize;

        let own = bytes.freeze();
        let mut parts = Vec::with_capacity(2 * long.len() + 1);
        let mut from = 0;
        for (at, payload) in long {
            parts.extend([own.slice(from..at), payload]);
            from = at;
        }
        parts.push(own.slice(from..));
        self.spare_directory = std::mem::replace(&mut self.previous, directory);
        self.in_flight.push_back(InFlight { notes, is_complete: false, len, own });
        self.writes.push_back(place);
        self.head = self.normal(WritePlace { sequence: place.sequence + 1, lap: place.lap, position: place.position + len });
        let file = FileId::Journal(self.core.0);
        Some((place.sequence, DiskOp::Write { file, at: place.position, parts, durability: Durability::Durable }))
    }

    /// Empty memory for a write.
    fn take_memory(&mut self, len: usize) -> BytesMut {
        let spare = std::mem::take(&mut self.spare_memory);
        if spare.capacity() >= len { spare } else { block_memory(len.max(SPARE_MIN)) }
    }

    /// Measures how many of the queued records fit one write, their directory entries and bytes.
    fn measure(&mut self) -> Measured {
        let (mut count, mut entries, mut len, mut facts) = (0, 0, 0, 0);
        let sequence = self.head.sequence;
        for record in &self.queue {
            let is_new = match self.touched.get(record.slot as usize) {
                Some((s, _)) => *s != sequence,
                None => {
                    if record.slot != NO_SLOT {
                        self.touched.resize(record.slot as usize + 1, (0, 0));
                    }
                    true
                }
            };
            let (n, l, f) = (entries + is_new as usize, len + record.header.padded_len(), facts + record.fact_len());
            let total = block_up((WriteHeader::head_len(n, self.previous.len()) + l) as u64) + facts_space(f);
            if total as usize > self.write_max || n > self.directory_max() {
                break;
            }
            // Seen; the packing gives the entry its place.
            if is_new && record.slot != NO_SLOT {
                self.touched[record.slot as usize] = (sequence, UNPLACED);
            }
            (count, entries, len, facts) = (count + 1, n, l, f);
        }
        Measured { count, entries, records_len: len, facts_len: facts }
    }

    /// Position of a write of `len` bytes, if it may be issued now.
    fn place(&self, len: u64) -> Option<WritePlace> {
        let place = self.free_place(len)?;
        self.limit.lets(place.travelled(self.journal.file_len) + len).then_some(place)
    }

    /// Position of a write of `len` bytes: at the head, or at the ring's start with the next lap.
    fn free_place(&self, len: u64) -> Option<WritePlace> {
        let wrapped = WritePlace { sequence: self.head.sequence, lap: self.head.lap + 1, position: RING_START };
        if self.head.lap == self.tail.lap {
            if self.head.position + len <= self.journal.file_len {
                return Some(self.head);
            }
            return (RING_START + len <= self.tail.position).then_some(wrapped);
        }
        (self.head.position + len <= self.tail.position).then_some(self.head)
    }

    /// A head at the very end of the file is one at the start of the next lap.
    fn normal(&self, place: WritePlace) -> WritePlace {
        if place.position + BLOCK as u64 > self.journal.file_len {
            return WritePlace { lap: place.lap + 1, position: RING_START, ..place };
        }
        place
    }

    /// Panics if a write would overwrite bytes at or after the durable checkpoint.
    fn assert_free(&self, place: WritePlace, len: u64) {
        assert!(place.position >= RING_START && place.position + len <= self.journal.file_len, "a write stays in the ring");
        if place.lap == self.tail.lap {
            assert!(place.position >= self.tail.position);
        } else {
            assert!(place.lap == self.tail.lap + 1 && place.position + len <= self.tail.position, "{place:?} {:?}", self.tail);
        }
    }

    fn write_head(
        &self,
        head: &mut [u8],
        place: WritePlace,
        len: u64,
        directory: &[DirectoryEntry],
        measured: &Measured,
    ) -> WriteHeader {
        let mut header = WriteHeader {
            magic: WRITE_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            core: self.core.0.into(),
            len: (len as u32).into(),
            journal_id: self.journal.journal_id,
            generation: self.journal.generation.into(),
            lap: place.lap.into(),
            sequence: place.sequence.into(),
            durable: self.durable.into(),
            checkpoint: self.slot_sequence.into(),
            position: place.position.into(),
            directory: (directory.len() as u32).into(),
            previous: (self.previous.len() as u32).into(),
            records: (measured.count as u32).into(),
            records_len: (measured.records_len as u32).into(),
            facts: (facts_space(measured.facts_len) as u32).into(),
            previous_facts: (self.previous_facts as u32).into(),
            reserved: [0; 24],
        };
        let at = size_of::<WriteHeader>();
        let (fixed, entries) = head.split_at_mut(at);
        fixed.copy_from_slice(header.as_bytes());
        let middle = size_of_val(directory);
        entries[..middle].copy_from_slice(directory.as_bytes());
        entries[middle..].copy_from_slice(self.previous.as_bytes());
        header.crc = crc32fast::hash(&head[8..]).into();
        head[..at].copy_from_slice(header.as_bytes());
        header
    }

    /// The write with this sequence is complete. [`Ring::next_durable`] gives the records that became durable by that.
    pub fn wrote(&mut self, sequence: u64) {
        let index = sequence.checked_sub(self.durable + 1).expect("a write completes once");
        self.in_flight[index as usize].is_complete = true;
    }

    /// Makes the next write durable, if it and all before it are complete: its notes, in order. Hand them back with
    /// [`Ring::recycle`].
    pub fn next_durable(&mut self) -> Option<Vec<N>> {
        let InFlight { notes, own, .. } = self.in_flight.pop_front_if(|write| write.is_complete)?;
        self.durable += 1;
        // Unless the disk still has it.
        if let Ok(mut memory) = own.try_into_mut()
            && (self.spare_memory.capacity()..=SPARE_MAX).contains(&memory.capacity())
        {
            memory.clear();
            self.spare_memory = memory;
        }
        Some(notes)
    }

    pub fn recycle(&mut self, mut notes: Vec<N>) {
        notes.clear();
        self.spare_notes = notes;
    }

    /// A write failed: nothing is ever written again.
    pub fn poison(&mut self) {
        self.poisoned = true;
        self.in_flight.clear();
        self.queue.clear();
        self.queued_cost = 0;
    }

    /// The write of a slot that lets writes go further, or, where the ring closes (`is_closing`) and none is in flight, no
    /// further. `None` when no slot has to be written for that, or one is being written.
    pub fn move_limit(&mut self, is_closing: bool) -> Option<DiskOp> {
        self.is_closing = is_closing;
        let head = self.head.travelled(self.journal.file_len);
        let is_due = !self.poisoned && self.checkpointing.is_none() && self.limit.is_due(head, self.is_closed());
        is_due.then(|| self.checkpoint(self.tail.sequence))
    }

    fn is_closed(&self) -> bool {
        self.is_closing && self.queue.is_empty() && self.in_flight.is_empty()
    }

    /// The write of a checkpoint slot: redo begins at the write with `sequence`, which is at most one past the durable
    /// ones. Everything before it stands, synced, in the partitions' own files.
    pub fn checkpoint(&mut self, sequence: u64) -> DiskOp {
        assert!(!self.poisoned && self.checkpointing.is_none());
        assert!(sequence >= self.tail.sequence && sequence <= self.durable + 1, "a checkpoint passes complete writes only");
        // Absent when it was not written yet: then it will stand at the head.
        let index = (sequence - self.tail.sequence) as usize;
        let place = self.writes.get(index).copied().unwrap_or(self.head);
        assert_eq!(place.sequence, sequence);
        self.checkpointing = Some(place);
        let limit = self.limit.next(self.head.travelled(self.journal.file_len), self.is_closed());
        let slot_sequence = self.slot_sequence + 1;
        let mut slot = Checkpoint {
            magic: CHECKPOINT_MAGIC,
            crc: 0.into(),
            version: VERSION.into(),
            core: self.core.0.into(),
            reserved_32: 0.into(),
            journal_id: self.journal.journal_id,
            generation: self.journal.generation.into(),
            slot_sequence: slot_sequence.into(),
            position: place.position.into(),
            lap: place.lap.into(),
            sequence: sequence.into(),
            durable: self.durable.into(),
            file_len: self.journal.file_len.into(),
            limit: limit.into(),
            reserved: [0; 32],
        };
        crate::format::files::seal(&mut slot);
        let mut block = vec![0; BLOCK];
        block[..size_of::<Checkpoint>()].copy_from_slice(slot.as_bytes());
        DiskOp::Write {
            file: FileId::Journal(self.core.0),
            at: slot_sequence % 2 * BLOCK as u64,
            parts: vec![block.into()],
            durability: Durability::Durable,
        }
    }

    /// The slot is durable: the bytes before its position may be overwritten.
    pub fn checkpointed(&mut self) {
        let place = self.checkpointing.take().expect("a checkpoint was being written");
        self.limit.written();
        self.slot_sequence += 1;
        self.writes.drain(..((place.sequence - self.tail.sequence) as usize).min(self.writes.len()));
        self.tail = place;
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
