//! Reads a journal back: the valid writes of its ring in order, and a finding about each invalid one.
//!
//! Owns the decisions about a journal's bytes; [`crate::log::recovery`] applies the records to partitions. Never writes. Where the
//! checkpoint slots hold, the ring is read once from the checkpoint to the slots' limit, since evidence of damage (a later write) may
//! stand anywhere before it, and nowhere behind it ([`super::limit`]). Else the whole ring is. Records are then read write by write.
//!
//! A write is *promised*, known to have been complete, when the checkpoint or any later write says so: each names the sequence up to
//! which the ring was durable when it was issued. The mere presence of a later write proves nothing, since several may be in flight: the
//! writes behind a torn one are truncated with it.

use super::heads::{FoundHeads, WriteHead, needed_parts, read_needed_heads};
use super::ring::DEPTH;
use crate::base::{BLOCK, CoreId, DiskError, FileId, IO_BYTES_MAX, block_up};
use crate::format::batch::{Batch, BatchHeader};
use crate::format::cursor::CursorImage;
use crate::format::decision::{Row, decide, finding};
use crate::format::files::{self, Bad, RawPosition, VERSION};
use crate::format::journal::*;
use crate::format::meta::TopicMeta;
use crate::format::producer::Producer;
use crate::format::storage::{Storage, read_range};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::{FromBytes, IntoBytes};

finding! {
    /// The two checkpoint slots.
    Slots {
        /// No file, or both are zeros.
        Blank,
        /// A slot holds, the other one holds too or was never written.
        Hold,
        /// A slot holds, the other one is damaged.
        OneBad,
        BothBad,
        /// A slot of a version that this build does not know.
        Unknown,
    }
}

finding! {
    /// Generation of the best slot that holds, beside the node's.
    Age { Older, Current, NoSlot }
}

/// Action for a journal file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingAction {
    /// An earlier startup replayed the journal: ignore its content.
    Closed,
    /// Redo from the slot.
    Follow,
    /// Redo all writes of the node's generation (or a higher one) that the ring holds.
    Search,
    Halt,
}

/// | slots | age | action | why |
/// |---|---|---|---|
/// | Blank | any | Search | never used, unless the ring holds writes |
/// | Hold | Older | Closed | replayed, then a generation was begun |
/// | Hold | Current | Follow | the usual case |
/// | OneBad | Older | Search | the damaged slot may have been the newer one |
/// | OneBad | Current | Follow | unless later writes know of a newer slot: then as Search |
/// | BothBad | any | Search | what redo needs was never written over |
/// | Unknown | any | Halt | written by a newer version |
/// | Hold, OneBad | NoSlot | Search | cannot be: a slot that holds has a generation |
pub const RING_TABLE: &[Row<Slots, Age, (), RingAction>] = &[
    Row { a: &[Slots::Blank], b: &[], c: &[], then: RingAction::Search, why: "never used, unless the ring holds writes" },
    Row { a: &[Slots::Hold], b: &[Age::Older], c: &[], then: RingAction::Closed, why: "replayed, then a generation was begun" },
    Row { a: &[Slots::Hold], b: &[Age::Current], c: &[], then: RingAction::Follow, why: "the usual case" },
    Row {
        a: &[Slots::OneBad],
        b: &[Age::Older],
        c: &[],
        then: RingAction::Search,
        why: "the damaged slot may have been the newer one",
    },
    Row {
        a: &[Slots::OneBad],
        b: &[Age::Current],
        c: &[],
        then: RingAction::Follow,
        why: "unless later writes know of a newer slot: then as Search",
    },
    Row { a: &[Slots::BothBad], b: &[], c: &[], then: RingAction::Search, why: "what redo needs was never written over" },
    Row { a: &[Slots::Unknown], b: &[], c: &[], then: RingAction::Halt, why: "written by a newer version" },
    Row {
        a: &[Slots::Hold, Slots::OneBad],
        b: &[Age::NoSlot],
        c: &[],
        then: RingAction::Search,
        why: "cannot be: a slot that holds has a generation",
    },
];

finding! {
    /// The next write by sequence.
    WriteFound {
        /// Head, directories and every record hold; or the copy of its facts does, and that is all it held.
        Holds,
        /// The head holds, so its directory can be believed; a record does not.
        RecordsBad,
        /// Bytes of the write are there, but the head does not hold.
        HeadTorn,
        Nothing,
    }
}

finding! {
    /// Whether the write is known to have been complete.
    Promise { Promised, Open }
}

finding! {
    /// Whether the next write's head holds: it repeats the directory. Of one that is not promised: whether any later one does.
    Repeat { Repeated, Unrepeated }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteAction {
    Apply,
    /// The write was in flight at the crash: drop it whole, and those after it. The ring ends here.
    Truncate,
    End,
    /// Apply the valid records. The partitions of the write's own directory continue behind the ends that it names.
    DamageOwn,
    /// The partitions of the directory that the next write repeats go on behind the ends it gives.
    DamageRepeated,
    /// Damage whose partitions are not known: every partition goes on behind anything that the write could have held.
    DamageUnnamed,
}

/// | write | promise | repeat | action | why |
/// |---|---|---|---|---|
/// | Holds | any | any | Apply | whole, so it may be kept whether it was acknowledged or not |
/// | RecordsBad | Promised | any | DamageOwn | it was complete once; its head names the victims |
/// | HeadTorn, Nothing | Promised | Repeated | DamageRepeated | it was complete once; its successor names the victims |
/// | HeadTorn, Nothing | Promised | Unrepeated | DamageUnnamed | it was complete once; two heads in a row are gone |
/// | RecordsBad, HeadTorn | Open | any | Truncate | a torn tail: in flight at the crash, never acknowledged |
/// | Nothing | Open | Repeated | Truncate | in flight at the crash beside the one after it, never acknowledged |
/// | Nothing | Open | Unrepeated | End | nothing was in flight |
pub const WRITE_TABLE: &[Row<WriteFound, Promise, Repeat, WriteAction>] = &[
    Row {
        a: &[WriteFound::Holds],
        b: &[],
        c: &[],
        then: WriteAction::Apply,
        why: "whole, so it may be kept whether it was acknowledged or not",
    },
    Row {
        a: &[WriteFound::RecordsBad],
        b: &[Promise::Promised],
        c: &[],
        then: WriteAction::DamageOwn,
        why: "it was complete once; its head names the victims",
    },
    Row {
        a: &[WriteFound::HeadTorn, WriteFound::Nothing],
        b: &[Promise::Promised],
        c: &[Repeat::Repeated],
        then: WriteAction::DamageRepeated,
        why: "it was complete once; its successor names the victims",
    },
    Row {
        a: &[WriteFound::HeadTorn, WriteFound::Nothing],
        b: &[Promise::Promised],
        c: &[Repeat::Unrepeated],
        then: WriteAction::DamageUnnamed,
        why: "it was complete once; two heads in a row are gone",
    },
    Row {
        a: &[WriteFound::RecordsBad, WriteFound::HeadTorn],
        b: &[Promise::Open],
        c: &[],
        then: WriteAction::Truncate,
        why: "a torn tail: in flight at the crash, never acknowledged",
    },
    Row {
        a: &[WriteFound::Nothing],
        b: &[Promise::Open],
        c: &[Repeat::Repeated],
        then: WriteAction::Truncate,
        why: "in flight at the crash beside the one after it, never acknowledged",
    },
    Row {
        a: &[WriteFound::Nothing],
        b: &[Promise::Open],
        c: &[Repeat::Unrepeated],
        then: WriteAction::End,
        why: "nothing was in flight",
    },
];

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error("{file} at byte {at}: {what}; start the version that wrote it, or a newer one")]
    Unknown { file: FileId, at: u64, what: Bad },
}

/// A write of the ring whose head holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WriteSpan {
    at: u64,
    len: u32,
}

/// A journal file before its records are looked at.
#[derive(Debug)]
pub struct Ring {
    pub core: u16,
    pub file_len: u64,
    pub slots: Slots,
    pub action: RingAction,
    /// Id in the best slot, or in the writes that were found. `None`: the file holds nothing that names it.
    pub journal_id: Option<[u8; 16]>,
    /// Generation of the writes to redo; without any, that of the best slot. Zero when unknown.
    pub generation: u64,
    /// The highest of a slot that holds; 0 when none does.
    pub slot_sequence: u64,
    pub checkpoint: Option<Checkpoint>,
    /// Length of the file as the best slot names it; 0: no slot holds.
    pub named_len: u64,
    /// Redo begins at this sequence.
    pub first: u64,
    /// Writes up to this sequence are known to have been complete.
    pub promised: u64,
    places: BTreeMap<u64, WriteSpan>,
    torn: BTreeMap<u64, u64>,
    /// Copies of the facts of writes, by the write's sequence.
    copies: BTreeMap<u64, WriteSpan>,
}

/// Record that was verified.
#[derive(Clone, Debug)]
pub struct Record {
    pub kind: RecordKind,
    pub header: RecordHeader,
    pub payload: Bytes,
}

/// Facts of a write as its copy has them.
#[derive(Default)]
struct FactsCopy {
    records: Vec<Record>,
    /// The write held nothing else.
    is_all: bool,
}

/// Write of a journal as redo sees it.
#[derive(Debug)]
pub struct Write {
    pub sequence: u64,
    /// Position in the file, when the write's place is known.
    pub at: Option<u64>,
    pub action: WriteAction,
    /// Records that hold, in order, also by a copy; none of a write that is truncated.
    pub records: Vec<Record>,
    /// Facts of a write that is truncated, whose copy holds: they may be kept whether they were acknowledged or not.
    pub kept: Vec<Record>,
    /// A damaged write may have had facts that no copy has.
    pub lost_facts: bool,
    /// The write holds, and the copy of its facts does not.
    pub lost_copy: bool,
    /// The write does not hold, and the copy has all that it held.
    pub is_by_copy: bool,
    /// Directory of a damaged write: the ends of its partitions after it. For a truncated write: the partitions that it and the writes
    /// behind it are known to touch.
    pub directory: Vec<DirectoryEntry>,
    /// Reason why the write is invalid. `None`: it is valid.
    pub bad: Option<Bad>,
}

/// Reads the slots and every head of the ring that may count.
pub fn scan(storage: &mut dyn Storage, core: u16, node_generation: u64) -> Result<Ring, ReplayError> {
    let file = FileId::Journal(core);
    let file_len = storage.len(&file)?.unwrap_or(0);
    let (slots, best) = read_slots(storage, core, file_len)?;
    let age = match &best {
        None => Age::NoSlot,
        Some(c) if c.generation.get() < node_generation => Age::Older,
        Some(_) => Age::Current,
    };
    let action = decide(RING_TABLE, slots, age, ()).then;
    let mut ring = Ring {
        core,
        file_len,
        slots,
        action,
        journal_id: best.map(|c| c.journal_id),
        generation: best.map_or(0, |c| c.generation.get()),
        slot_sequence: best.map_or(0, |c| c.slot_sequence.get()),
        checkpoint: best,
        named_len: best.map_or(0, |c| c.file_len.get()),
        first: 1,
        promised: 0,
        places: BTreeMap::new(),
        torn: BTreeMap::new(),
        copies: BTreeMap::new(),
    };
    match action {
        RingAction::Closed => return Ok(ring),
        RingAction::Halt => return Err(ReplayError::Unknown { file, at: 0, what: Bad::Version(0) }),
        RingAction::Follow | RingAction::Search => {}
    }
    let FoundHeads { mut heads, copies } = read_needed_heads(storage, &ring)?;
    let oldest = if action == RingAction::Follow { ring.generation } else { node_generation };
    heads.retain(|h| h.header.generation.get() >= oldest);
    let Some(live) = heads.iter().filter(|h| h.bad.is_none()).map(|h| h.header.generation.get()).max() else {
        if action == RingAction::Search {
            ring.action = RingAction::Closed;
        } else {
            ring.begin_at_checkpoint();
            ring.note_torn(&heads);
            ring.note_copies(&copies);
        }
        return Ok(ring);
    };
    heads.retain(|h| h.header.generation.get() == live);
    let holding = || heads.iter().filter(|h| h.bad.is_none()).map(|h| &h.header);
    ring.journal_id = holding().map(|h| h.journal_id).next();
    let newest_slot = holding().map(|h| h.checkpoint.get()).max().unwrap_or(0);
    // Redo needs at most one lap of the ring. Heads of older laps stand where a lap's end was left unused; between them
    // and the others there is a gap that is no damage.
    let newest_lap = holding().map(|h| h.lap.get()).max().unwrap_or(0);
    let needed = holding().filter(|h| h.lap.get().saturating_add(1) >= newest_lap);
    let lowest = needed.map(|h| h.sequence.get()).min().unwrap_or(1);
    let is_slot_newest = ring.generation == live && newest_slot <= ring.slot_sequence;
    ring.generation = live;
    if is_slot_newest {
        ring.begin_at_checkpoint();
    } else {
        // The newest checkpoint is lost. The writes behind it were never written over, so the ring has all that redo needs. Redo skips
        // the older ones. An older checkpoint of this generation still tells what redo never needs: a write that was torn at the crash
        // may stand over a part of that.
        let older = ring.checkpoint.take().filter(|c| c.generation.get() == live);
        ring.first = older.map_or(lowest, |c| lowest.max(c.sequence.get()));
    }
    ring.promised = holding().map(|h| h.durable.get()).max().unwrap_or(0).max(ring.promised);
    ring.places = holding().map(|h| (h.sequence.get(), WriteSpan { at: h.position.get(), len: h.len.get() })).collect();
    ring.note_torn(&heads);
    ring.note_copies(&copies);
    let first = ring.first;
    ring.places.retain(|&s, _| s >= first);
    // A torn header is not trusted, except for its statement about former writes: that stands in one sector with the fields that
    // identify a header of this ring.
    let end = ring.places.last_key_value().map_or(ring.first, |(&last, _)| last + 1).max(ring.promised + 1);
    for head in heads.iter().filter(|h| h.bad.is_some()).map(|h| &h.header) {
        let (sequence, durable) = (head.sequence.get(), head.durable.get());
        let is_next = sequence >= end && sequence <= end + DEPTH as u64;
        if is_next && durable < sequence && sequence - durable <= DEPTH as u64 {
            ring.promised = ring.promised.max(durable);
        }
    }
    Ok(ring)
}

impl Ring {
    fn begin_at_checkpoint(&mut self) {
        if let Some(c) = &self.checkpoint {
            (self.first, self.promised) = (c.sequence.get(), c.durable.get());
        }
    }

    fn note_copies(&mut self, copies: &[FactsHeader]) {
        let ours = copies.iter().filter(|c| c.generation.get() == self.generation && c.sequence.get() >= self.first);
        self.copies = ours.map(|c| (c.sequence.get(), WriteSpan { at: c.position.get(), len: c.len.get() })).collect();
    }

    fn note_torn(&mut self, heads: &[WriteHead]) {
        let torn = heads.iter().filter(|h| h.bad.is_some()).map(|h| (h.header.sequence.get(), h.header.position.get()));
        self.torn = torn.collect();
    }

    /// The file ends before a place where writes that redo needs may have stood.
    pub fn is_truncated(&self) -> bool {
        let is_short = !self.is_closed() && self.file_len < self.named_len;
        is_short && needed_parts(self, self.named_len).is_none_or(|parts| parts.iter().any(|part| part.end > self.file_len))
    }

    /// The sequence to read after a damaged write that no later write names: the last of a run of such writes.
    pub fn after_unnamed(&self, sequence: u64) -> u64 {
        let next = self.places.range(sequence + 1..).next().map(|(&s, _)| s - 1);
        next.unwrap_or(self.promised + 1).max(sequence + 1)
    }

    /// Whether the head of any later write holds.
    pub fn is_followed(&self, sequence: u64) -> bool {
        self.places.range(sequence + 1..).next().is_some()
    }

    /// Whether any write is to be looked at.
    pub fn is_closed(&self) -> bool {
        self.action == RingAction::Closed
    }

    /// The write with this sequence, read and verified, with its action. Begin with [`Ring::first`]; the ring ends after `Truncate` and
    /// `End`.
    pub fn read(&self, storage: &mut dyn Storage, ahead: &mut ReadAhead, sequence: u64) -> Result<Write, ReplayError> {
        let promise = match sequence <= self.promised {
            true => Promise::Promised,
            false => Promise::Open,
        };
        let is_followed = match promise {
            Promise::Promised => self.places.contains_key(&(sequence + 1)),
            Promise::Open => self.is_followed(sequence),
        };
        let repeat = match is_followed {
            true => Repeat::Repeated,
            false => Repeat::Unrepeated,
        };
        let place = self.places.get(&sequence);
        let at = place.map(|p| p.at).or(self.torn.get(&sequence).copied());
        let mut write = Write {
            sequence,
            at: at.or(self.copies.get(&sequence).map(|copy| copy.at)),
            action: WriteAction::End,
            records: vec![],
            kept: vec![],
            lost_facts: false,
            lost_copy: false,
            is_by_copy: false,
            directory: vec![],
            bad: None,
        };
        let (mut facts, has_copy) = (None, self.copies.contains_key(&sequence));
        let mut found = match place {
            Some(place) => {
                let (head, bytes) = self.read_write(storage, ahead, *place)?;
                write.directory = head.directory.clone();
                facts = Some(head.header.facts.get());
                (write.records, write.bad) = self.verify(&head, &bytes, place.at)?;
                if write.bad.is_none() { WriteFound::Holds } else { WriteFound::RecordsBad }
            }
            None => {
                write.bad = Some(if at.is_some() { Bad::Crc } else { Bad::Zero });
                if write.at.is_some() { WriteFound::HeadTorn } else { WriteFound::Nothing }
            }
        };
        let mut copy = if found == WriteFound::Holds { FactsCopy::default() } else { self.read_copy(storage, sequence)? };
        if copy.is_all {
            found = WriteFound::Holds;
            (write.records, write.is_by_copy) = (copy.records.clone(), true);
        }
        write.action = decide(WRITE_TABLE, found, promise, repeat).then;
        match write.action {
            WriteAction::DamageRepeated => {
                let next = self.places[&(sequence + 1)];
                let next = self.read_write(storage, ahead, next)?.0;
                (write.directory, facts) = (next.previous, Some(next.header.previous_facts.get()));
            }
            WriteAction::Truncate => {
                write.records.clear();
                write.kept = std::mem::take(&mut copy.records);
                for &place in self.places.range(sequence + 1..).map(|(_, place)| place) {
                    let head = self.read_write(storage, ahead, place)?.0;
                    write.directory.extend(head.previous);
                    write.directory.extend(head.directory);
                }
            }
            WriteAction::Apply | WriteAction::DamageOwn | WriteAction::DamageUnnamed | WriteAction::End => {}
        }
        match write.action {
            WriteAction::Apply => write.lost_copy = facts.is_some_and(|len| len > 0) && !has_copy,
            WriteAction::DamageOwn | WriteAction::DamageRepeated | WriteAction::DamageUnnamed => {
                write.lost_facts = !has_copy && facts.is_none_or(|len| len > 0);
                let key = |r: &Record| (r.header.topic_id, r.header.partition.get(), r.header.sequence.get());
                let known: BTreeSet<_> = write.records.iter().map(key).collect();
                write.records.extend(copy.records.into_iter().filter(|r| !known.contains(&key(r))));
                // Records of each partition in order, behind the records that create topics.
                write.records.sort_by_key(|r| (r.header.topic_id, r.header.partition.get(), r.header.sequence.get()));
            }
            WriteAction::Truncate | WriteAction::End => {}
        }
        Ok(write)
    }

    /// The facts of a write as its copy has them; none where there is no copy that holds.
    fn read_copy(&self, storage: &mut dyn Storage, sequence: u64) -> Result<FactsCopy, ReplayError> {
        let Some(place) = self.copies.get(&sequence) else { return Ok(FactsCopy::default()) };
        let bytes: Bytes = read_range(storage, &FileId::Journal(self.core), place.at, place.len as usize)?.into();
        let Ok(head) = FactsHeader::parse(&bytes, self.file_len as usize) else { return Ok(FactsCopy::default()) };
        let (mut records, mut is_whole) = (vec![], true);
        for record in Records::of_facts(&head, &bytes) {
            match record {
                Ok((kind, header, payload)) => {
                    let record = Record { kind, header, payload: bytes.slice_ref(payload) };
                    is_whole &= record.verify().is_ok();
                    records.push(record);
                }
                Err(what @ (Bad::Version(_) | Bad::Kind(_))) => {
                    return Err(ReplayError::Unknown { file: FileId::Journal(self.core), at: place.at, what });
                }
                Err(_) => is_whole = false,
            }
        }
        Ok(if is_whole { FactsCopy { records, is_all: head.is_all() } } else { FactsCopy::default() })
    }

    /// The writes that are not known to have been complete, up to the first that does not hold: place and bytes.
    pub fn open_writes(&self, storage: &mut dyn Storage) -> Result<Vec<(u64, Bytes)>, ReplayError> {
        let (mut found, mut ahead) = (vec![], ReadAhead::default());
        for sequence in self.first.max(self.promised + 1).. {
            if let Some(&place) = self.places.get(&sequence) {
                let (head, bytes) = self.read_write(storage, &mut ahead, place)?;
                if self.verify(&head, &bytes, place.at)?.1.is_none() {
                    found.push((place.at, bytes));
                    continue;
                }
            }
            // The facts of a truncated write may be kept, from their copy.
            if let Some(place) = self.copies.get(&sequence) {
                let len = block_up(place.len as u64) as usize;
                found.push((place.at, read_range(storage, &FileId::Journal(self.core), place.at, len)?.into()));
            }
            if !self.read_copy(storage, sequence)?.is_all {
                break;
            }
        }
        Ok(found)
    }

    /// A write whose head was found to hold. The disk may fail between the two reads: then it is a head that does not.
    fn read_write(
        &self,
        storage: &mut dyn Storage,
        ahead: &mut ReadAhead,
        place: WriteSpan,
    ) -> Result<(ParsedHead, Bytes), ReplayError> {
        let file = FileId::Journal(self.core);
        let bytes = ahead.read(storage, &file, place)?;
        let journal_id = self.journal_id.expect("a ring with writes has an id");
        match WriteHeader::parse(&bytes, &journal_id, CoreId(self.core), self.file_len as usize) {
            Ok(head) => Ok((head, bytes)),
            Err(bad) => {
                let message = format!("the write at {} held when it was first read, then it did not: {bad}", place.at);
                Err(DiskError::Io { file, call: "read", errno: 5, message }.into())
            }
        }
    }

    /// The valid records, and the reason why the first invalid one is invalid.
    fn verify(&self, head: &ParsedHead, bytes: &Bytes, at: u64) -> Result<(Vec<Record>, Option<Bad>), ReplayError> {
        let mut records = Vec::with_capacity((head.header.records.get() as usize).min(bytes.len() / RECORD_HEADER_LEN));
        let mut first_bad = None;
        for record in Records::new(head, bytes) {
            let checked = record.and_then(|(kind, header, payload)| {
                let record = Record { kind, header, payload: bytes.slice_ref(payload) };
                record.verify().map(|_| record)
            });
            match checked {
                Ok(record) => records.push(record),
                Err(what @ (Bad::Version(_) | Bad::Kind(_))) => {
                    return Err(ReplayError::Unknown { file: FileId::Journal(self.core), at, what });
                }
                Err(bad) => first_bad = first_bad.or(Some(bad)),
            }
        }
        if first_bad.is_none() && records.len() != head.header.records.get() as usize {
            first_bad = Some(Bad::Short);
        }
        Ok((records, first_bad))
    }
}

/// Bytes that were read of a journal beyond the write that was asked for: writes are small, and follow each other.
#[derive(Default)]
pub struct ReadAhead {
    at: u64,
    bytes: Bytes,
}

impl ReadAhead {
    fn read(&mut self, storage: &mut dyn Storage, file: &FileId, place: WriteSpan) -> Result<Bytes, DiskError> {
        let len = place.len as usize;
        let held = |ahead: &ReadAhead| {
            let from = usize::try_from(place.at.checked_sub(ahead.at)?).ok()?;
            (from + len <= ahead.bytes.len()).then(|| ahead.bytes.slice(from..from + len))
        };
        if let Some(bytes) = held(self) {
            return Ok(bytes);
        }
        (self.at, self.bytes) = (place.at, read_range(storage, file, place.at, len.max(IO_BYTES_MAX))?.into());
        Ok(self.bytes.slice(..len.min(self.bytes.len())))
    }
}

impl Record {
    /// Checks that the payload is of the record's kind. The record's crc is verified already; a batch's body has its own.
    fn verify(&self) -> Result<(), Bad> {
        use RecordKind::*;
        let (topic_id, partition) = (crate::base::TopicId(self.header.topic_id), self.header.partition.get());
        let id = crate::base::PartitionId(partition);
        match self.kind {
            Batch => self::Batch::parse(&self.payload, topic_id, id).map(drop),
            DirectBatch => BatchHeader::parse(&self.payload, topic_id, id).map(drop),
            Cursor | Finished | ChannelDelete => CursorImage::decode(&self.payload).map(drop),
            Truncate | Restart if self.payload.len() < size_of::<RawPosition>() + 8 => Err(Bad::Short),
            Epoch | LossAccepted | Doubt | ChannelsLost if self.payload.len() < size_of::<u64>() => Err(Bad::Short),
            Epoch | LossAccepted | Doubt | ChannelsLost => Ok(()),
            Producers => Producer::decode_all(&self.payload).map(drop),
            Truncate | Restart | Start | CollectStart | Committed => {
                RawPosition::read_from_prefix(&self.payload).map(drop).map_err(|_| Bad::Short)
            }
            TopicCreate => TopicMeta::decode(&self.payload).map(drop),
            TopicDelete | PartitionDelete => Ok(()),
        }
    }
}

/// Parses the checkpoint slot at the start of a block. The error is the first reason why it is invalid.
pub fn parse_slot(block: &[u8], core: u16, slot: u64, file_len: u64) -> Result<Checkpoint, Bad> {
    let (c, _) = Checkpoint::read_from_prefix(block).map_err(|_| Bad::Short)?;
    files::check(&c.magic, CHECKPOINT_MAGIC, c.as_bytes(), c.version.get())?;
    if c.core.get() != core || c.slot_sequence.get() % 2 != slot {
        return Err(Bad::Foreign);
    }
    // The file may have been truncated since: the slot's position refers to the length that the slot names.
    let (position, file_len) = (c.position.get(), file_len.max(c.file_len.get()));
    let in_ring = (RING_START..=file_len).contains(&position) && position % BLOCK as u64 == 0;
    if c.sequence.get() == 0 || !in_ring || c.durable.get().saturating_add(1) < c.sequence.get() {
        return Err(Bad::Bounds);
    }
    Ok(c)
}

/// The bytes of a checkpoint slot: one block.
pub fn slot_block(mut checkpoint: Checkpoint) -> Vec<u8> {
    checkpoint.magic = CHECKPOINT_MAGIC;
    checkpoint.version = VERSION.into();
    files::seal(&mut checkpoint);
    let mut block = vec![0; BLOCK];
    block[..size_of::<Checkpoint>()].copy_from_slice(checkpoint.as_bytes());
    block
}

fn read_slots(storage: &mut dyn Storage, core: u16, file_len: u64) -> Result<(Slots, Option<Checkpoint>), ReplayError> {
    let bytes = match file_len {
        0 => vec![],
        _ => read_range(storage, &FileId::Journal(core), 0, RING_START as usize)?,
    };
    let mut found = Vec::new();
    for slot in 0..2 {
        let block = bytes.get(slot as usize * BLOCK..).unwrap_or(&[]);
        found.push(match parse_slot(block, core, slot, file_len) {
            Err(Bad::Short) if block.iter().all(|&b| b == 0) => Err(Bad::Zero),
            other => other,
        });
    }
    let best = found.iter().flatten().max_by_key(|c| c.slot_sequence.get()).copied();
    let is = |wanted: fn(&Bad) -> bool| found.iter().filter(|f| f.as_ref().is_err_and(wanted)).count();
    let blank = is(|b| *b == Bad::Zero);
    let slots = if is(|b| matches!(b, Bad::Version(_))) > 0 {
        Slots::Unknown
    } else if best.is_some() {
        // A journal begins with its two slots, one after the other: from the second one on none is blank.
        let is_begun = best.is_some_and(|c| c.slot_sequence.get() > 1);
        if is(|b| *b != Bad::Zero) > 0 || blank > 0 && is_begun { Slots::OneBad } else { Slots::Hold }
    } else if blank == 2 {
        Slots::Blank
    } else {
        Slots::BothBad
    };
    Ok((slots, best))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::decision;

    #[test]
    fn the_tables_answer_everything_once() {
        decision::check(RING_TABLE, include_str!("replay.rs"));
        decision::check(WRITE_TABLE, include_str!("replay.rs"));
    }
}
