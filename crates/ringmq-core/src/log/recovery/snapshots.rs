//! The snapshot slots of a partition: their content, and the state with which the partition begins.

use super::RecoverError;
use super::partition::{Context, Partition};
use super::report::Severity;
use crate::base::{BLOCK, FileId, PartitionDir};
use crate::format::decision::{Row, finding};
use crate::format::files::Bad;
use crate::format::snapshot::{SLOTS, Snapshot};
use crate::format::storage::{Storage, read_range};
use std::sync::Arc;

finding! {
    /// The three snapshot slots.
    Found {
        /// No file, or zeros, in all.
        Blank,
        /// Two slots hold, or all.
        Two,
        One,
        /// The first slot does not hold, and the others were never written.
        FirstBad,
        NoneHolds,
        /// A slot of a version that this build does not know.
        Unknown,
    }
}

finding! {
    /// Segments of the partition.
    Data {
        /// No segment, or only the first one without a commit record, so no batch was durable.
        Nothing,
        /// The lowest one begins at offset 0.
        FromStart,
        /// Retention has removed the first ones.
        FromLater,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotAction {
    Use,
    /// Take the one that holds; damage unless the journal has all that it does not contain.
    UseIfProven,
    /// Begin at offset 0 with nothing: the journal holds all that happened.
    Fresh,
    /// Begin at offset 0; damage if the journal does not begin with the partition's first record.
    FreshIfFirst,
    /// Take the positions from the segments and commit logs; cursors are lost except those in the journal.
    Rebuild,
    Halt,
}

/// | slots | segments | action | why |
/// |---|---|---|---|
/// | Two | any | Use | the highest sequence: a record that the journal has freed stands in each two |
/// | One | any | UseIfProven | two are gone: one was torn and the other has rotted, or both have |
/// | Blank, FirstBad | Nothing | Fresh | nothing was ever durable but for what the journal has; a crash may tear the first slot |
/// | Blank, FirstBad | FromStart | FreshIfFirst | the journal frees the first record when all slots are written |
/// | Blank, FirstBad | FromLater | Rebuild | snapshots must have been there |
/// | NoneHolds | any | Rebuild | snapshots were there |
/// | Unknown | any | Halt | written by a newer version |
pub const SNAPSHOT_TABLE: &[Row<Found, Data, (), SnapshotAction>] = &[
    Row {
        a: &[Found::Two],
        b: &[],
        c: &[],
        then: SnapshotAction::Use,
        why: "the highest sequence: a record that the journal has freed stands in each two",
    },
    Row {
        a: &[Found::One],
        b: &[],
        c: &[],
        then: SnapshotAction::UseIfProven,
        why: "two are gone: one was torn and the other has rotted, or both have",
    },
    Row {
        a: &[Found::Blank, Found::FirstBad],
        b: &[Data::Nothing],
        c: &[],
        then: SnapshotAction::Fresh,
        why: "nothing was ever durable but for what the journal has; a crash may tear the first slot",
    },
    Row {
        a: &[Found::Blank, Found::FirstBad],
        b: &[Data::FromStart],
        c: &[],
        then: SnapshotAction::FreshIfFirst,
        why: "the journal frees the first record when all slots are written",
    },
    Row {
        a: &[Found::Blank, Found::FirstBad],
        b: &[Data::FromLater],
        c: &[],
        then: SnapshotAction::Rebuild,
        why: "snapshots must have been there",
    },
    Row { a: &[Found::NoneHolds], b: &[], c: &[], then: SnapshotAction::Rebuild, why: "snapshots were there" },
    Row { a: &[Found::Unknown], b: &[], c: &[], then: SnapshotAction::Halt, why: "written by a newer version" },
];

/// Reads one slot; the inner error is the reason why it does not hold.
fn read_slot(storage: &mut dyn Storage, dir: &Arc<PartitionDir>, slot: u8) -> Result<Result<Snapshot, Bad>, RecoverError> {
    let file = FileId::Snapshot(dir.clone(), slot);
    let first = match storage.len(&file)? {
        None | Some(0) => vec![],
        Some(_) => read_range(storage, &file, 0, BLOCK)?,
    };
    let decoded = Snapshot::len_of(&first).map(|len| if len > first.len() { Some(len) } else { None });
    let bytes = match decoded {
        Ok(Some(len)) => read_range(storage, &file, 0, len)?,
        _ => first,
    };
    Ok(match Snapshot::decode(&bytes, dir.topic_id, dir.partition) {
        Ok(s) if s.sequence % SLOTS as u64 == slot as u64 => Ok(s),
        Ok(_) => Err(Bad::Foreign),
        Err(Bad::Short) if bytes.iter().all(|&b| b == 0) => Err(Bad::Zero),
        Err(bad) => Err(bad),
    })
}

/// Content of a partition's slots.
pub struct Slots {
    pub found: Found,
    pub newest: Option<Snapshot>,
    /// True if another slot has the same content as the newest one.
    pub is_twice: bool,
    /// A slot that a newer version wrote.
    pub newer: Option<FileId>,
    /// Slots that do not hold, and whether only a partition's first round leaves them so: they are blank.
    pub bad: Vec<(FileId, bool)>,
}

impl Slots {
    pub fn read(storage: &mut dyn Storage, dir: &Arc<PartitionDir>) -> Result<Slots, RecoverError> {
        let mut slots = Slots { found: Found::Unknown, newest: None, is_twice: false, newer: None, bad: vec![] };
        let mut blank = vec![];
        let mut holding = 0;
        for slot in 0..SLOTS {
            let file = FileId::Snapshot(dir.clone(), slot);
            match read_slot(storage, dir, slot)? {
                Ok(next) => {
                    holding += 1;
                    slots.take(next);
                }
                Err(bad) => {
                    if matches!(bad, Bad::Version(_)) {
                        slots.newer = Some(file.clone());
                    }
                    blank.extend((bad == Bad::Zero).then_some(slot));
                    slots.bad.push((file, false));
                }
            }
        }
        let newest = slots.newest.as_ref().map_or(0, |s| s.sequence);
        for slot in &blank {
            let file = FileId::Snapshot(dir.clone(), *slot);
            let is_due = Snapshot::is_due(*slot, newest);
            slots.bad.iter_mut().filter(|(bad, _)| *bad == file).for_each(|(_, is_first)| *is_first = !is_due);
        }
        slots.found = match (&slots.newer, holding, blank.len()) {
            (Some(_), ..) => Found::Unknown,
            (_, 2.., _) => Found::Two,
            (_, 1, _) => Found::One,
            (_, _, 3) => Found::Blank,
            (_, _, 2) => Found::FirstBad,
            _ => Found::NoneHolds,
        };
        Ok(slots)
    }

    fn take(&mut self, next: Snapshot) {
        let is_same = self.newest.as_ref().is_some_and(|other| other.says_as(&next));
        match &self.newest {
            Some(other) if other.sequence > next.sequence => self.is_twice |= is_same,
            _ => (self.newest, self.is_twice) = (Some(next), is_same),
        }
    }
}

/// The snapshot slots of a partition.
pub struct FoundSlots {
    /// Sequence of the slot that was written last; where it is unknown, a number above any that was ever used.
    sequence: u64,
    /// Snapshot in the newest slot.
    newest: Option<Snapshot>,
    /// True if two slots have the content of `newest`.
    is_twice: bool,
    /// The slots that do not hold (see [`Slots`]), to be reported and written again.
    bad: Vec<(FileId, bool)>,
}

impl FoundSlots {
    /// The slots as they were read.
    pub fn of(slots: &mut Slots) -> FoundSlots {
        let newest = slots.newest.take();
        let sequence = newest.as_ref().map_or(0, |s| s.sequence);
        FoundSlots { sequence, newest, is_twice: slots.is_twice, bad: std::mem::take(&mut slots.bad) }
    }

    pub fn newest(&self) -> Option<&Snapshot> {
        self.newest.as_ref()
    }

    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Gives the next slot a sequence above `floor`, since the sequences of lost slots are unknown.
    pub fn raise(&mut self, floor: u64) {
        self.sequence = self.sequence.max(floor);
    }
}

impl Partition {
    /// Decides, without a snapshot, whether there never was one or it is lost. A partition without durable data gets slots that say so
    /// before any bytes in its files count as its own.
    pub(super) fn settle_first(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        if self.saved.newest.is_some() || self.records.has_witness() || self.records.is_gap_explained() {
            return Ok(());
        }
        if self.records.needs_first() {
            self.no_first_record(cx);
        } else if !self.is_damaged && !self.touched && !self.files.ahead().is_empty() {
            let nothing = self.snapshot();
            self.write_snapshots(cx, nothing.clone(), SLOTS as u64)?;
            (self.saved.newest, self.saved.is_twice) = (Some(nothing), true);
            self.saved.bad.clear();
        }
        Ok(())
    }

    /// A single valid slot is complete if the journal has the record behind its last one, or an earlier record. So is the very first
    /// snapshot: an interrupted startup wrote it, and never finished the next slot.
    pub(super) fn prove(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        // The crash may have torn the second one. The third, had it been written, would hold.
        let second = Snapshot::file(&self.dir, 2);
        let is_first_round = |(file, is_blank): &(FileId, bool)| *is_blank || *file == second;
        let is_very_first = self.saved.sequence == 1 && self.saved.bad.iter().all(is_first_round);
        if self.records.is_proven() || is_very_first {
            return Ok(());
        }
        let file = self.saved.bad.first().map_or(FileId::Snapshot(self.dir.clone(), 0), |(file, _)| file.clone());
        let what = "of three snapshots one holds, and others may have been newer: channels that were created and messages \
                    that were finished since may be missing";
        self.lose_channels(cx, file, what);
        self.reach_begun(cx, "a later segment begins behind it")
    }

    pub(super) fn report_bad_slots(&mut self, cx: &mut Context<'_>) {
        // The journal frees the first record when all slots are written.
        let is_first_round = self.records.has_witness() || self.saved.newest.is_none();
        for (file, _) in self.saved.bad.iter().filter(|(_, is_first)| !(*is_first && is_first_round)) {
            cx.report.note(Severity::Repaired, file, Some(0), "the snapshot is damaged: written again from the other slots");
        }
    }

    /// Writes one bad slot beside two valid ones, before anything else is written: with the newest content, under the slot's former
    /// sequence. So a crash during a later snapshot leaves two valid slots.
    pub(super) fn mend_slot(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        let (Some(newest), [(file, _)]) = (&self.saved.newest, &self.saved.bad[..]) else { return Ok(()) };
        let sequence = (0..SLOTS as u64).filter_map(|behind| newest.sequence.checked_sub(behind));
        let Some(sequence) = sequence.filter(|s| *s > 0).find(|s| Snapshot::file(&self.dir, *s) == *file) else { return Ok(()) };
        let (file, bytes) = (file.clone(), Snapshot { sequence, ..newest.clone() }.encode());
        self.write_whole_slot(cx, &file, &bytes)
    }

    /// Writes the newest slot again as it stands: the process that wrote it may have died before it was durable. Before another slot is
    /// written over, lest a power loss takes both.
    pub(super) fn write_back_newest(&self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        match &self.saved.newest {
            Some(newest) => Self::write_slot(cx, &Snapshot::file(&self.dir, newest.sequence), &newest.encode()),
            None => Ok(()),
        }
    }

    /// Number of slots to write until two have this state and all are valid: the next startup could not judge a bad slot any more.
    pub(super) fn copies(&self, snapshot: &Snapshot) -> u64 {
        match &self.saved.newest {
            None if self.touched || self.is_damaged || self.end.offset > 0 => SLOTS as u64,
            None => 0,
            Some(newest) if newest.says_as(snapshot) && self.saved.bad.is_empty() => !self.saved.is_twice as u64,
            Some(_) => 2,
        }
    }

    pub fn no_first_record(&mut self, cx: &mut Context<'_>) {
        self.records.lose_first();
        self.saved.raise(cx.sequence_floor);
        let file = FileId::Snapshot(self.dir.clone(), 1);
        self.lose_channels(cx, file, "no snapshot holds, and the journal does not begin with the partition: cursors are lost");
    }

    /// Writes the next slots, one after the other, with this snapshot.
    pub(super) fn write_snapshots(&mut self, cx: &mut Context<'_>, snapshot: Snapshot, copies: u64) -> Result<(), RecoverError> {
        cx.report.partitions_written += (copies > 0) as u64;
        for sequence in (self.saved.sequence + 1..).take(copies as usize) {
            let bytes = Snapshot { sequence, ..snapshot.clone() }.encode();
            let file = Snapshot::file(&self.dir, sequence);
            self.write_whole_slot(cx, &file, &bytes)?;
            self.saved.sequence = sequence;
        }
        Ok(())
    }

    /// Writes a slot that may be too short, or missing.
    fn write_whole_slot(&mut self, cx: &mut Context<'_>, file: &FileId, bytes: &[u8]) -> Result<(), RecoverError> {
        let allocated = cx.storage.allocate(file, bytes.len() as u64);
        if allocated.as_ref().is_err_and(|e| e.is_no_space()) && self.files.give_back(cx, self.end)? {
            cx.allocate(file, bytes.len() as u64)?;
        } else {
            allocated.or_else(|_| cx.allocate(file, bytes.len() as u64))?;
        }
        Self::write_slot(cx, file, bytes)
    }

    fn write_slot(cx: &mut Context<'_>, file: &FileId, bytes: &[u8]) -> Result<(), RecoverError> {
        for (i, piece) in bytes.chunks(crate::base::IO_BYTES_MAX).enumerate() {
            cx.storage.write(file, (i * crate::base::IO_BYTES_MAX) as u64, piece)?;
        }
        Ok(cx.storage.sync(file)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::decision;

    #[test]
    fn the_table_answers_everything_once() {
        decision::check(SNAPSHOT_TABLE, include_str!("snapshots.rs"));
    }
}
