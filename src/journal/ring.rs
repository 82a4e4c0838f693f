//! The writing end of one core's journal: queues records, packs them into writes, and knows which part
//! of the ring may be written over.
//!
//! ```text
//! RING_START                                                              file_len
//!    |......free......|== tail: first write redo needs ==|== head ==|......free......|
//!                      ^ the durable checkpoint           ^ next write
//! ```
//! Owns positions, laps, sequences, the directory repeated by the next write, and the checkpoint slots. Never writes over
//! a byte at or after the durable checkpoint, never splits a write over the ring's end, and never issues anything again
//! after a failure.
//!
//! **Another write goes while some are in flight once half as much waits as they carry**, or an eighth of a write's most bytes
//! (64 KiB of 512). What comes sooner shares the next write, which costs the least; what waits longer would wait for a device that
//! could carry more. Up to [`DEPTH`] writes go side by side. They may complete in any order and become durable in their own, so at a
//! crash a write that is whole may stand behind one that is torn; recovery cuts both. Each says up to where the ring was durable
//! when it was issued.

use super::format::*;
use crate::base::{
    BLOCK, CoreId, DiskOp, Durability, FileId, IO_BYTES_MAX, LONG_WRITE_MIN, Position, TopicId, block_memory, block_up,
};
use crate::log::format::VERSION;
use crate::log::state::JournalIdentity;
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

/// One queued fact. `note` comes back when it is packed and when it is durable.
pub struct Record<N> {
    pub header: RecordHeader,
    pub payload: Bytes,
    /// Small number of the partition in its store: one directory entry per slot and write.
    pub slot: u32,
    /// Where the partition ends after this record.
    pub end: Position,
    pub note: N,
}

impl<N> Record<N> {
    /// What it takes in the ring at most, its directory entry and the repetition included.
    fn cost(&self) -> u64 {
        (self.header.padded_len() + 2 * size_of::<DirectoryEntry>()) as u64
    }
}

/// Where a write stands: enough for a checkpoint to point at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    sequence: u64,
    lap: u64,
    position: u64,
}

struct InFlight<N> {
    notes: Vec<N>,
    is_complete: bool,
    len: u64,
    /// All of it but the payloads that are parts.
    own: Bytes,
}

/// See the module's description. `N` is what the owner wants to hear back per record.
pub struct Ring<N> {
    core: CoreId,
    journal: JournalIdentity,
    /// Where the next write would stand if it fits there.
    head: Place,
    /// What the durable checkpoint points at.
    tail: Place,
    /// Writes from the tail on, oldest first.
    writes: VecDeque<Place>,
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
    /// The checkpoint that is being written.
    checkpointing: Option<Place>,
    /// Directory of the last write, and memory for the next one.
    previous: Vec<DirectoryEntry>,
    spare_directory: Vec<DirectoryEntry>,
    /// By slot: sequence of the write that last touched it, and its entry there.
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
        let first = Place { sequence: 1, lap: 1, position: RING_START };
        // An eighth, so that what a lap's end wastes never starves the ring.
        let eighth = (journal.file_len - RING_START) as usize / 8;
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
            previous: vec![],
            spare_directory: vec![],
            touched: vec![],
            poisoned: false,
            write_max: (eighth - eighth % BLOCK).min(IO_BYTES_MAX),
        }
    }

    /// No record's payload may be longer.
    pub fn payload_max(&self) -> usize {
        self.write_max / 2
    }

    /// From which length on a write has parts, and the shortest part. A small ring, as tests have, has them likewise.
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

    /// Whether publishes of this many bytes still fit, with a quarter of the ring kept for cursors, retention and
    /// what a lap's end wastes (rule 10).
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
        let (count, entries, records_len) = self.measure();
        let head_len = WriteHeader::head_len(entries, self.previous.len());
        let len = block_up((head_len + records_len) as u64);
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
        // the payloads that are parts, and what stands before each in `bytes`
        let mut long: Vec<(usize, Bytes)> = vec![];
        let mut directory = std::mem::take(&mut self.spare_directory);
        directory.clear();
        let mut notes = std::mem::take(&mut self.spare_notes);
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
        bytes.resize(len as usize - parts_len, 0);
        self.write_head(&mut bytes[..head_len], place, len, &directory, count, records_len);

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
        self.head = self.normal(Place { sequence: place.sequence + 1, lap: place.lap, position: place.position + len });
        let file = FileId::Journal(self.core.0);
        Some((place.sequence, DiskOp::Write { file, at: place.position, parts, durability: Durability::Durable }))
    }

    /// Empty memory for a write.
    fn take_memory(&mut self, len: usize) -> BytesMut {
        let spare = std::mem::take(&mut self.spare_memory);
        if spare.capacity() >= len { spare } else { block_memory(len.max(SPARE_MIN)) }
    }

    /// How many of the queued records fit one write, their directory entries and bytes.
    fn measure(&mut self) -> (usize, usize, usize) {
        let (mut count, mut entries, mut len) = (0, 0, 0);
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
            let (n, l) = (entries + is_new as usize, len + record.header.padded_len());
            let total = block_up((WriteHeader::head_len(n, self.previous.len()) + l) as u64) as usize;
            if total > self.write_max || n > self.directory_max() {
                break;
            }
            // Seen; the packing gives the entry its place.
            if is_new && record.slot != NO_SLOT {
                self.touched[record.slot as usize] = (sequence, UNPLACED);
            }
            (count, entries, len) = (count + 1, n, l);
        }
        (count, entries, len)
    }

    /// Where a write of `len` goes: at the head, or at the ring's start with the next lap.
    fn place(&self, len: u64) -> Option<Place> {
        let wrapped = Place { sequence: self.head.sequence, lap: self.head.lap + 1, position: RING_START };
        if self.head.lap == self.tail.lap {
            if self.head.position + len <= self.journal.file_len {
                return Some(self.head);
            }
            return (RING_START + len <= self.tail.position).then_some(wrapped);
        }
        (self.head.position + len <= self.tail.position).then_some(self.head)
    }

    /// A head at the very end of the file is one at the start of the next lap.
    fn normal(&self, place: Place) -> Place {
        if place.position + BLOCK as u64 > self.journal.file_len {
            return Place { lap: place.lap + 1, position: RING_START, ..place };
        }
        place
    }

    /// The ring never overwrites what the checkpoint still needs.
    fn assert_free(&self, place: Place, len: u64) {
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
        place: Place,
        len: u64,
        directory: &[DirectoryEntry],
        count: usize,
        records_len: usize,
    ) {
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
            records: (count as u32).into(),
            records_len: (records_len as u32).into(),
            reserved: [0; 32],
        };
        let at = size_of::<WriteHeader>();
        let (fixed, entries) = head.split_at_mut(at);
        fixed.copy_from_slice(header.as_bytes());
        let middle = size_of_val(directory);
        entries[..middle].copy_from_slice(directory.as_bytes());
        entries[middle..].copy_from_slice(self.previous.as_bytes());
        header.crc = crc32fast::hash(&head[8..]).into();
        head[..at].copy_from_slice(header.as_bytes());
    }

    /// The write with this sequence is complete. What became durable by that comes out of [`Ring::next_durable`].
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
            reserved: [0; 40],
        };
        crate::log::format::seal(&mut slot);
        let mut block = vec![0; BLOCK];
        block[..size_of::<Checkpoint>()].copy_from_slice(slot.as_bytes());
        DiskOp::Write {
            file: FileId::Journal(self.core.0),
            at: slot_sequence % 2 * BLOCK as u64,
            parts: vec![block.into()],
            durability: Durability::Durable,
        }
    }

    /// The slot is durable: what is before it may be written over.
    pub fn checkpointed(&mut self) {
        let place = self.checkpointing.take().expect("a checkpoint was being written");
        self.slot_sequence += 1;
        self.writes.drain(..((place.sequence - self.tail.sequence) as usize).min(self.writes.len()));
        self.tail = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;
    use crate::log::format::is_sealed;
    use zerocopy::FromBytes;

    fn ring() -> Ring<u64> {
        let journal =
            JournalIdentity { journal_id: [3; 16], generation: 2, file_len: Ring::<u64>::FILE_LEN_MIN, slot_sequence: 6 };
        Ring::new(CoreId(1), journal)
    }

    fn record(slot: u32, n: u64, len: usize) -> Record<u64> {
        let payload = Bytes::from(vec![n as u8; len]);
        let id = TopicId([slot as u8 + 1; 16]);
        let header = RecordHeader::new(RecordKind::Cursor, id, 0, n, 2, &payload);
        let end = Position { offset: n as i64, count: n as i64, log_id: crate::base::LogId(n + 1) };
        Record { header, payload, slot, end, note: n }
    }

    fn bytes(op: &DiskOp) -> (u64, Vec<u8>) {
        let DiskOp::Write { at, parts, .. } = op else { panic!("a ring writes") };
        (*at, parts.concat())
    }

    /// Packs and completes one write; where it stands and the notes it carried.
    fn write(ring: &mut Ring<u64>, file: &mut [u8]) -> Option<(u64, Vec<u64>)> {
        let (sequence, op) = ring.pack(|_, _| {})?;
        assert!(ring.pack(|_, _| {}).is_none(), "one write is in flight");
        let (at, bytes) = bytes(&op);
        file[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        ring.wrote(sequence);
        let notes = ring.next_durable().unwrap();
        let copy = notes.clone();
        ring.recycle(notes);
        Some((at, copy))
    }

    #[test]
    fn a_write_parses_back_with_its_directories() {
        let mut ring = ring();
        let mut file = vec![0; Ring::<u64>::FILE_LEN_MIN as usize];
        ring.queue(record(5, 1, 40));
        assert_eq!(write(&mut ring, &mut file), Some((RING_START, vec![1])));
        for (slot, n, len) in [(0, 2, 10), (7, 3, 3000), (0, 4, 0), (NO_SLOT - 1000, 5, 8)] {
            ring.queue(record(slot % 100, n, len));
        }
        let (at, notes) = write(&mut ring, &mut file).unwrap();
        assert_eq!((at, notes), (RING_START + BLOCK as u64, vec![2, 3, 4, 5]));
        let head = WriteHeader::parse(&file[at as usize..], &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap();
        let (h, ends) = (head.header, head.directory.iter().map(|d| d.end.count.get()).collect::<Vec<_>>());
        assert_eq!((h.sequence.get(), h.lap.get(), h.durable.get(), h.checkpoint.get()), (2, 1, 1, 6));
        assert_eq!((ends, head.previous.len()), (vec![4, 3, 5], 1), "one entry per partition, its last end");
        let found: Vec<_> = Records::new(&head, &file[at as usize..]).map(|r| r.unwrap().1.sequence.get()).collect();
        assert_eq!(found, [2, 3, 4, 5]);
        assert_eq!(h.len.get() as usize % BLOCK, 0);
    }

    #[test]
    fn large_writes_go_side_by_side_and_become_durable_in_order() {
        let mut ring = ring();
        let small = |n| record(0, n, 100);
        ring.queue(small(1));
        let (first, _) = ring.pack(|_, _| {}).unwrap();
        ring.queue(small(2));
        assert!(ring.pack(|_, _| {}).is_none(), "small ones wait and share");
        assert!(!ring.takes_write(1000) && ring.takes_write(64 * 1024));
        let mut sequences = vec![first];
        for n in 3..20 {
            ring.queue(record(n as u32, n, 10_000));
            sequences.extend(ring.pack(|_, _| {}).map(|(sequence, op)| {
                let (_, bytes) = bytes(&op);
                let head = WriteHeader::parse(&bytes, &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap().header;
                assert_eq!(head.durable.get(), 0, "nothing is complete yet");
                sequence
            }));
        }
        assert_eq!(sequences, [1, 2, 3, 4][..sequences.len()]);
        assert!(sequences.len() > 2 && sequences.len() <= DEPTH);
        for &sequence in sequences[1..].iter().rev() {
            ring.wrote(sequence);
            assert!(ring.next_durable().is_none(), "the first is not complete");
        }
        ring.wrote(first);
        assert_eq!(ring.next_durable().unwrap(), [1]);
        assert_eq!(ring.next_durable().unwrap()[..2], [2, 3]);
        while ring.next_durable().is_some() {}
        assert_eq!(ring.durable(), sequences.len() as u64);
        assert!(!ring.is_in_flight());
    }

    #[test]
    fn laps_never_touch_what_the_checkpoint_needs() {
        let mut rng = Rng::new(5);
        let mut ring = ring();
        let mut file = vec![0; Ring::<u64>::FILE_LEN_MIN as usize];
        // Sequence and place of each write that redo needs.
        let (mut live, mut n, mut full, mut wrapped): (Vec<(u64, u64, u64)>, _, _, _) = (vec![], 0, 0, 0);
        for _ in 0..20_000 {
            if rng.chance(0.02) && ring.durable() + 1 > ring.tail_sequence() {
                let target = ring.tail_sequence() + 1 + rng.below(ring.durable() + 1 - ring.tail_sequence());
                let (at, block) = bytes(&ring.checkpoint(target));
                let slot = Checkpoint::read_from_prefix(&block).unwrap().0;
                assert!(is_sealed(&block[..size_of::<Checkpoint>()]));
                assert_eq!(at, slot.slot_sequence.get() % 2 * BLOCK as u64);
                live.retain(|w| w.0 >= target);
                let expected = live.first().map_or(slot.position.get(), |w| w.1);
                assert_eq!((slot.position.get(), slot.sequence.get()), (expected, target));
                ring.checkpointed();
            }
            n += 1;
            if ring.is_queue_empty() {
                let len = rng.below(ring.payload_max() as u64) as usize;
                ring.queue(record(rng.below(9) as u32, n, len));
            }
            let Some((at, _)) = write(&mut ring, &mut file) else {
                full += 1;
                continue;
            };
            let head = WriteHeader::parse(&file[at as usize..], &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap().header;
            let end = at + head.len.get() as u64;
            assert!(live.iter().all(|&(_, a, e)| end <= a || e <= at), "a write over what redo needs");
            wrapped += (at == RING_START) as u32;
            live.push((ring.durable(), at, end));
            assert!(ring.used() <= ring.capacity());
        }
        assert!(full > 100 && wrapped > 20, "{full} {wrapped}");
    }

    #[test]
    fn a_long_write_in_parts_has_the_bytes_of_its_records() {
        let journal = JournalIdentity { journal_id: [3; 16], generation: 2, file_len: 64 << 20, slot_sequence: 6 };
        let (mut ring, mut rng) = (Ring::new(CoreId(1), journal), Rng::new(9));
        let lengths = [0, 1, 7, 200, PART_MIN - 1, PART_MIN, PART_MIN + 1, 30_001, ring.payload_max()];
        let (mut n, mut in_parts) = (0, 0);
        let mut written: Vec<(DiskOp, Vec<u8>)> = vec![];
        while ring.used() * 4 < ring.capacity() * 3 {
            for _ in 0..1 + rng.below(40) {
                n += 1;
                ring.queue(record(rng.below(9) as u32, n, lengths[rng.below(lengths.len() as u64) as usize]));
            }
            while let Some((sequence, op)) = ring.pack(|_, _| {}) {
                let DiskOp::Write { parts, .. } = &op else { panic!("a ring writes") };
                let (count, bytes) = (parts.len(), parts.concat());
                let head = WriteHeader::parse(&bytes, &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap();
                assert_eq!((head.header.len.get() as usize, bytes.len() % BLOCK), (bytes.len(), 0));
                for found in Records::new(&head, &bytes) {
                    let (_, header, payload) = found.unwrap();
                    assert!(payload.iter().all(|byte| *byte == header.sequence.get() as u8));
                }
                assert!(bytes.len() >= LONG_WRITE_MIN || count == 1);
                in_parts += (count > 1) as u32;
                written.push((op, bytes));
                ring.wrote(sequence);
                while let Some(notes) = ring.next_durable() {
                    ring.recycle(notes);
                }
            }
        }
        // the memory of a write that the disk still has is not used again
        assert!(written.iter().all(|(op, expected)| bytes(op).1 == *expected) && in_parts > 50, "{in_parts}");
    }
}
