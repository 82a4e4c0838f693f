//! node.meta: who this node is, and the generation that closes all journals before it.

use super::report::{Report, Severity};
use super::table::{Row, decide, finding};
use super::{RecoverError, unknown};
use crate::base::{BLOCK, FileId, Rng};
use crate::log::format::Bad;
use crate::log::meta::{NODE_META_LEN, NodeMeta};
use crate::log::storage::{Storage, read_range};

finding! {
    /// The two slots of node.meta.
    NodeFound {
        /// No file, or both are zeros.
        Blank,
        /// A slot holds, the other holds too or was never written.
        Holds,
        /// A slot holds, the other does not.
        OneBad,
        NoneHolds,
        /// A slot of a version that this build does not know.
        Unknown,
    }
}

finding! {
    /// Whether the data path has a journal or a topic.
    DataPath { Empty, InUse }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeAction {
    /// Take the higher sequence.
    Use,
    /// The first start.
    Create,
    /// A new node id; a generation above all that the journals and logs name.
    Rebuild,
    Halt,
}

/// | slots | data path | action | why |
/// |---|---|---|---|
/// | Holds, OneBad | any | Use | journals and logs tell when the damaged slot was the newer one |
/// | Blank, NoneHolds | Empty | Create | the first start, or one that was torn before anything was stored |
/// | Blank, NoneHolds | InUse | Rebuild | the generation follows from journals and logs |
/// | Unknown | any | Halt | written by a newer version |
pub const NODE_TABLE: &[Row<NodeFound, DataPath, (), NodeAction>] = &[
    Row {
        a: &[NodeFound::Holds, NodeFound::OneBad],
        b: &[],
        c: &[],
        then: NodeAction::Use,
        why: "journals and logs tell when the damaged slot was the newer one",
    },
    Row {
        a: &[NodeFound::Blank, NodeFound::NoneHolds],
        b: &[DataPath::Empty],
        c: &[],
        then: NodeAction::Create,
        why: "the first start, or one that was torn before anything was stored",
    },
    Row {
        a: &[NodeFound::Blank, NodeFound::NoneHolds],
        b: &[DataPath::InUse],
        c: &[],
        then: NodeAction::Rebuild,
        why: "the generation follows from journals and logs",
    },
    Row { a: &[NodeFound::Unknown], b: &[], c: &[], then: NodeAction::Halt, why: "written by a newer version" },
];

/// A generation leaps by so much when nothing certain is known of the last one.
pub const GENERATION_LEAP: u64 = 1 << 16;

/// Whose a data path is, by its node.meta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// Nothing was stored there yet.
    None,
    Known([u8; 16]),
    /// node.meta does not hold, or is missing beside journals or topics: a recovery would make another node of it.
    Lost,
}

/// Looks without changing anything.
pub fn identify(storage: &mut dyn Storage) -> Result<Identity, RecoverError> {
    let slots = read_slots(storage)?;
    let is_blank = slots.iter().all(|s| matches!(s, Err(Bad::Zero)));
    match slots.iter().flatten().max_by_key(|m| m.sequence) {
        _ if slots.iter().any(|s| matches!(s, Err(Bad::Version(_)))) => Err(unknown(FileId::Node, 0)),
        Some(meta) => Ok(Identity::Known(meta.node_id)),
        None if is_blank && storage.journals()?.is_empty() && storage.topics()?.is_empty() => Ok(Identity::None),
        None => Ok(Identity::Lost),
    }
}

/// Gives a data path that has no node.meta its id, durably; its first start keeps it.
pub fn create(storage: &mut dyn Storage, rng: &mut Rng) -> Result<[u8; 16], RecoverError> {
    let meta = fresh(rng);
    write(storage, &meta)?;
    Ok(meta.node_id)
}

fn fresh(rng: &mut Rng) -> NodeMeta {
    NodeMeta { node_id: rng.bytes_16(), sequence: 0, generation: 0, journals: 0 }
}

/// The node as found, or as it begins.
pub struct Node {
    pub meta: NodeMeta,
    /// The generation is a guess from below.
    pub is_uncertain: bool,
}

fn read_slots(storage: &mut dyn Storage) -> Result<[Result<NodeMeta, Bad>; 2], RecoverError> {
    let file = FileId::Node;
    let bytes = match storage.len(&file)? {
        None => vec![],
        Some(_) => read_range(storage, &file, 0, NODE_META_LEN as usize)?,
    };
    Ok(std::array::from_fn(|slot| {
        let block = bytes.get(slot * BLOCK..).unwrap_or(&[]);
        match NodeMeta::decode(block) {
            Ok(m) if NodeMeta::slot_at(m.sequence) != (slot * BLOCK) as u64 => Err(Bad::Foreign),
            Err(Bad::Short) if block.iter().all(|&b| b == 0) => Err(Bad::Zero),
            other => other,
        }
    }))
}

pub fn read(storage: &mut dyn Storage, in_use: bool, rng: &mut Rng, report: &mut Report) -> Result<Node, RecoverError> {
    let file = FileId::Node;
    let slots = read_slots(storage)?;
    let best = slots.iter().flatten().max_by_key(|m| m.sequence).copied();
    let is_bad = slots.iter().any(|s| s.is_err_and(|b| b != Bad::Zero));
    let found = if slots.iter().any(|s| matches!(s, Err(Bad::Version(_)))) {
        NodeFound::Unknown
    } else {
        match (best, is_bad) {
            (Some(_), false) => NodeFound::Holds,
            (Some(_), true) => NodeFound::OneBad,
            (None, false) => NodeFound::Blank,
            (None, true) => NodeFound::NoneHolds,
        }
    };
    let data = if in_use { DataPath::InUse } else { DataPath::Empty };
    let fresh = fresh(rng);
    match decide(NODE_TABLE, found, data, ()).then {
        NodeAction::Use => {
            if is_bad {
                report.note(Severity::Repaired, &file, None, "one slot does not hold: the other is used");
            }
            Ok(Node { meta: best.expect("the table's row needs a slot that holds"), is_uncertain: false })
        }
        NodeAction::Create => Ok(Node { meta: fresh, is_uncertain: false }),
        NodeAction::Rebuild => {
            report.note(Severity::Damage, &file, None, "no slot holds: the node gets a new id and a generation above all known");
            Ok(Node { meta: fresh, is_uncertain: true })
        }
        NodeAction::Halt => Err(unknown(file, 0)),
    }
}

/// node.meta is this long, though its slots take two blocks: on a full disk recovery cuts the rest off and has room to
/// finish in. It comes back when there is room again.
pub const RESERVE_LEN: u64 = NODE_META_LEN + 4 * 1024 * 1024;

/// Frees the reserve. Whether there was any.
pub fn give_back(storage: &mut dyn Storage) -> Result<bool, RecoverError> {
    let is_there = storage.len(&FileId::Node)?.is_some_and(|len| len > NODE_META_LEN);
    if is_there {
        storage.truncate(&FileId::Node, NODE_META_LEN)?;
    }
    Ok(is_there)
}

/// Takes the reserve again when there is room.
pub fn reserve(storage: &mut dyn Storage, report: &mut Report) -> Result<(), RecoverError> {
    match storage.allocate(&FileId::Node, RESERVE_LEN) {
        Err(e) if e.is_no_space() => {
            report.note(Severity::Repaired, &FileId::Node, None, "the disk is full: the room kept for recovery is used up");
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Makes the next slot durable.
pub fn write(storage: &mut dyn Storage, meta: &NodeMeta) -> Result<(), RecoverError> {
    storage.allocate(&FileId::Node, NODE_META_LEN)?;
    storage.write(&FileId::Node, NodeMeta::slot_at(meta.sequence), &meta.encode())?;
    storage.sync(&FileId::Node)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::recovery::table;

    #[test]
    fn the_table_answers_everything_once() {
        table::check(NODE_TABLE, include_str!("node.rs"));
    }
}
