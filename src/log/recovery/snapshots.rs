//! The two snapshot slots of a partition: what they hold, and where a partition begins.

use super::RecoverError;
use super::table::{Row, finding};
use crate::base::{BLOCK, FileId, PartitionDir};
use crate::log::format::Bad;
use crate::log::snapshot::Snapshot;
use crate::log::storage::{Storage, read_range};
use std::sync::Arc;

finding! {
    /// The two snapshot slots.
    Pair {
        /// No file, or zeros, in both.
        Blank,
        /// A slot holds; the other holds an older one or was never written.
        Holds,
        /// A slot holds, the other is damaged or torn.
        OneBad,
        /// One was never written, the other does not hold.
        FirstBad,
        BothBad,
        /// A slot of a version that this build does not know.
        Unknown,
    }
}

finding! {
    /// What segments there are.
    Data {
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
    FreshUnlessOlder,
    /// Take the place from the segments and commit logs; cursors are lost but for what the journal holds.
    Rebuild,
    Halt,
}

/// | slots | segments | action | why |
/// |---|---|---|---|
/// | Holds | any | Use | the higher sequence |
/// | OneBad | any | UseIfProven | a torn newer one is still covered by the journal; else the newer one may have rotted |
/// | Blank | Nothing, FromStart | Fresh | no snapshot was taken yet |
/// | FirstBad | Nothing, FromStart | FreshUnlessOlder | the very first snapshot was torn, or it has rotted |
/// | Blank, FirstBad | FromLater | Rebuild | a snapshot must have been there |
/// | BothBad | any | Rebuild | two snapshots were there |
/// | Unknown | any | Halt | written by a newer version |
pub const SNAPSHOT_TABLE: &[Row<Pair, Data, (), SnapshotAction>] = &[
    Row { a: &[Pair::Holds], b: &[], c: &[], then: SnapshotAction::Use, why: "the higher sequence" },
    Row {
        a: &[Pair::OneBad],
        b: &[],
        c: &[],
        then: SnapshotAction::UseIfProven,
        why: "a torn newer one is still covered by the journal; else the newer one may have rotted",
    },
    Row {
        a: &[Pair::Blank],
        b: &[Data::Nothing, Data::FromStart],
        c: &[],
        then: SnapshotAction::Fresh,
        why: "no snapshot was taken yet",
    },
    Row {
        a: &[Pair::FirstBad],
        b: &[Data::Nothing, Data::FromStart],
        c: &[],
        then: SnapshotAction::FreshUnlessOlder,
        why: "the very first snapshot was torn, or it has rotted",
    },
    Row {
        a: &[Pair::Blank, Pair::FirstBad],
        b: &[Data::FromLater],
        c: &[],
        then: SnapshotAction::Rebuild,
        why: "a snapshot must have been there",
    },
    Row { a: &[Pair::BothBad], b: &[], c: &[], then: SnapshotAction::Rebuild, why: "two snapshots were there" },
    Row { a: &[Pair::Unknown], b: &[], c: &[], then: SnapshotAction::Halt, why: "written by a newer version" },
];

/// One slot, or why it does not hold.
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
        Ok(s) if s.sequence % 2 == slot as u64 => Ok(s),
        Ok(_) => Err(Bad::Foreign),
        Err(Bad::Short) if bytes.iter().all(|&b| b == 0) => Err(Bad::Zero),
        Err(bad) => Err(bad),
    })
}

/// The slot that a newer version wrote.
pub fn newer_slot(storage: &mut dyn Storage, dir: &Arc<PartitionDir>) -> Result<FileId, RecoverError> {
    let is_newer = matches!(read_slot(storage, dir, 0)?, Err(Bad::Version(_)));
    Ok(FileId::Snapshot(dir.clone(), if is_newer { 0 } else { 1 }))
}

/// What the slots hold, and the newest snapshot among them.
pub fn read_slots(storage: &mut dyn Storage, dir: &Arc<PartitionDir>) -> Result<(Pair, Option<Snapshot>), RecoverError> {
    let slots = [read_slot(storage, dir, 0)?, read_slot(storage, dir, 1)?];
    let count = |wanted: fn(&Bad) -> bool| slots.iter().filter(|s| s.as_ref().is_err_and(wanted)).count();
    let (blank, newer) = (count(|b| *b == Bad::Zero), count(|b| matches!(b, Bad::Version(_))));
    let holding = slots.iter().flatten().count();
    let pair = match (holding, blank, newer) {
        (_, _, 1..) => Pair::Unknown,
        (2, _, _) | (1, 1, _) => Pair::Holds,
        (1, _, _) => Pair::OneBad,
        (0, 2, _) => Pair::Blank,
        (0, 1, _) => Pair::FirstBad,
        _ => Pair::BothBad,
    };
    Ok((pair, slots.into_iter().flatten().max_by_key(|s| s.sequence)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::recovery::table;

    #[test]
    fn the_table_answers_everything_once() {
        table::check(SNAPSHOT_TABLE, include_str!("snapshots.rs"));
    }
}
