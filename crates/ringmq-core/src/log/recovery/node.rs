//! node.meta: the node's id, and the generation that closes all journals before it. Two files, so that no block, and no file, has both
//! copies.

use super::report::{Report, Severity};
use super::{RecoverError, unknown};
use crate::base::{BLOCK, FileId, Rng};
use crate::format::decision::{Row, decide, finding};
use crate::format::files::Bad;
use crate::format::meta::{NODE_META_LEN, NodeMeta};
use crate::format::storage::{Storage, read_range};

finding! {
    /// The two files of node.meta.
    NodeFound {
        /// Neither is there, or both are zeros.
        Blank,
        /// Both files hold, or the first one ever written does and the other was not written yet.
        Holds,
        /// A single copy holds; the other does not, or is missing.
        OneBad,
        NoneHolds,
        /// A file of a version that this build does not know.
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
    /// The first startup.
    Create,
    /// Stop, unless this very loss was accepted. Then: a new node id; a generation above all that the journals and logs name.
    Refuse,
    Halt,
}

/// | files | data path | action | why |
/// |---|---|---|---|
/// | Holds, OneBad | any | Use | both are written, and say the same, before anything depends on it |
/// | Blank, NoneHolds | Empty | Create | the first startup, or one that was torn before anything was stored |
/// | Blank, NoneHolds | InUse | Refuse | whose data it is, and which journals there were, is not known |
/// | Unknown | any | Halt | written by a newer version |
pub const NODE_TABLE: &[Row<NodeFound, DataPath, (), NodeAction>] = &[
    Row {
        a: &[NodeFound::Holds, NodeFound::OneBad],
        b: &[],
        c: &[],
        then: NodeAction::Use,
        why: "both are written, and say the same, before anything depends on it",
    },
    Row {
        a: &[NodeFound::Blank, NodeFound::NoneHolds],
        b: &[DataPath::Empty],
        c: &[],
        then: NodeAction::Create,
        why: "the first startup, or one that was torn before anything was stored",
    },
    Row {
        a: &[NodeFound::Blank, NodeFound::NoneHolds],
        b: &[DataPath::InUse],
        c: &[],
        then: NodeAction::Refuse,
        why: "whose data it is, and which journals there were, is not known",
    },
    Row { a: &[NodeFound::Unknown], b: &[], c: &[], then: NodeAction::Halt, why: "written by a newer version" },
];

/// A generation leaps by so much when nothing certain is known of the last one.
pub const GENERATION_LEAP: u64 = 1 << 16;

/// Owner of a data path, by its node.meta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// The data path is empty.
    None,
    Known([u8; 16]),
    /// node.meta does not hold, or is missing beside journals or topics: a recovery would make another node of it.
    Lost,
}

/// Looks without changing anything.
pub fn identify(storage: &mut dyn Storage) -> Result<Identity, RecoverError> {
    let found = read_both(storage)?;
    let is_blank = found.iter().all(|s| matches!(s, Err(Bad::Zero)));
    if let Some(slot) = newer_version(&found) {
        return Err(unknown(FileId::Node(slot), 0));
    }
    match newest(&found) {
        Some(meta) => Ok(Identity::Known(meta.node_id)),
        None if is_blank && storage.journals()?.is_empty() && storage.topics()?.is_empty() => Ok(Identity::None),
        None => Ok(Identity::Lost),
    }
}

/// Gives a data path that has no node.meta its id, durably; its first startup keeps it.
pub fn create(storage: &mut dyn Storage, rng: &mut Rng) -> Result<[u8; 16], RecoverError> {
    let meta = fresh(rng);
    write(storage, &meta)?;
    write(storage, &NodeMeta { sequence: meta.sequence + 1, ..meta })?;
    Ok(meta.node_id)
}

/// The highest version of a cluster file that was in force here, as far as node.meta tells. Changes nothing.
pub fn cluster_version(storage: &mut dyn Storage) -> Result<u64, RecoverError> {
    Ok(newest(&read_both(storage)?).map_or(0, |m| m.cluster_version))
}

/// A cluster file of this version is in force: durable, in both files, when done. A version never becomes lower.
pub fn adopt_cluster(storage: &mut dyn Storage, version: u64) -> Result<(), RecoverError> {
    let Some(meta) = newest(&read_both(storage)?) else { return Err(refuse(storage, 1)?) };
    if meta.cluster_version >= version {
        return Ok(());
    }
    // The file that was written last is the last to be written over.
    for sequence in [meta.sequence + 1, meta.sequence + 2] {
        write(storage, &NodeMeta { sequence, cluster_version: version, ..meta })?;
    }
    Ok(())
}

fn fresh(rng: &mut Rng) -> NodeMeta {
    NodeMeta { node_id: rng.bytes_16(), sequence: 0, generation: 0, journals: 0, cluster_version: 0 }
}

/// The node as found, or as it begins.
pub struct Node {
    pub meta: NodeMeta,
    /// True when no copy holds: the id is new, and the generation is a lower bound.
    pub is_lost: bool,
}

/// Reads both files, as they are.
pub fn read_both(storage: &mut dyn Storage) -> Result<[Result<NodeMeta, Bad>; 2], RecoverError> {
    let mut read = |slot| -> Result<_, RecoverError> {
        let file = FileId::Node(slot);
        let block = match storage.len(&file)? {
            None => vec![],
            Some(_) => read_range(storage, &file, 0, BLOCK)?,
        };
        Ok(match NodeMeta::decode(&block) {
            Ok(m) if m.file() != file => Err(Bad::Foreign),
            Err(Bad::Short) if block.iter().all(|&b| b == 0) => Err(Bad::Zero),
            other => other,
        })
    };
    Ok([read(0)?, read(1)?])
}

/// Copy that counts.
pub fn newest(both: &[Result<NodeMeta, Bad>; 2]) -> Option<NodeMeta> {
    both.iter().flatten().max_by_key(|m| m.sequence).copied()
}

fn newer_version(both: &[Result<NodeMeta, Bad>; 2]) -> Option<u8> {
    both.iter().position(|s| matches!(s, Err(Bad::Version(_)))).map(|slot| slot as u8)
}

pub fn read(storage: &mut dyn Storage, in_use: bool, rng: &mut Rng, report: &mut Report) -> Result<Node, RecoverError> {
    let both = read_both(storage)?;
    let best = newest(&both);
    let is_blank = |s: &Result<NodeMeta, Bad>| matches!(s, Err(Bad::Zero));
    // The other one of the two that a data path begins with.
    let is_first = |m: NodeMeta| m.sequence <= 1 && both.iter().any(is_blank);
    let newer = newer_version(&both);
    let found = match best {
        _ if newer.is_some() => NodeFound::Unknown,
        Some(meta) if both.iter().all(Result::is_ok) || is_first(meta) => NodeFound::Holds,
        Some(_) => NodeFound::OneBad,
        None if both.iter().all(is_blank) => NodeFound::Blank,
        None => NodeFound::NoneHolds,
    };
    let data = if in_use { DataPath::InUse } else { DataPath::Empty };
    let fresh = fresh(rng);
    match decide(NODE_TABLE, found, data, ()).then {
        NodeAction::Use => {
            if found == NodeFound::OneBad {
                let bad = both.iter().position(Result::is_err).expect("one is damaged") as u8;
                report.note(
                    Severity::Mended,
                    &FileId::Node(bad),
                    Some(0),
                    "the file is damaged: written again from the other copy",
                );
            }
            Ok(Node { meta: best.expect("the table's row needs one that holds"), is_lost: false })
        }
        NodeAction::Create => Ok(Node { meta: fresh, is_lost: false }),
        NodeAction::Refuse => Ok(Node { meta: fresh, is_lost: true }),
        NodeAction::Halt => Err(unknown(FileId::Node(newer.unwrap_or(0)), 0)),
    }
}

/// The error for a node.meta that is gone. `known`: the highest generation that a journal tells.
pub fn refuse(storage: &mut dyn Storage, known: u64) -> Result<RecoverError, RecoverError> {
    let (journals, topics) = (storage.journals()?.len(), storage.topics()?.len());
    Ok(RecoverError::LostNode { journals, topics, generation: known })
}

/// File that keeps space for recovery: on a full disk, recovery truncates it behind its block and has room to finish in. The space is
/// taken again when there is some.
const RESERVED: FileId = FileId::Node(0);
pub const RESERVE_LEN: u64 = NODE_META_LEN + 4 * 1024 * 1024;

/// Frees the reserve. Whether there was any.
pub fn give_back(storage: &mut dyn Storage) -> Result<bool, RecoverError> {
    let is_there = storage.len(&RESERVED)?.is_some_and(|len| len > NODE_META_LEN);
    if is_there {
        storage.truncate(&RESERVED, NODE_META_LEN)?;
    }
    Ok(is_there)
}

/// Takes the reserve again when there is room.
pub fn reserve(storage: &mut dyn Storage, report: &mut Report) -> Result<(), RecoverError> {
    match storage.allocate(&RESERVED, RESERVE_LEN) {
        Err(e) if e.is_no_space() => {
            report.note(Severity::Repaired, &RESERVED, None, "the disk is full: the room kept for recovery is used up");
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Makes the file of this sequence durable.
pub fn write(storage: &mut dyn Storage, meta: &NodeMeta) -> Result<(), RecoverError> {
    let file = meta.file();
    if storage.allocate(&file, NODE_META_LEN).is_err_and(|e| e.is_no_space()) {
        give_back(storage)?;
        storage.allocate(&file, NODE_META_LEN)?;
    }
    storage.write(&file, 0, &meta.encode())?;
    storage.sync(&file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::decision;

    #[test]
    fn the_table_answers_everything_once() {
        decision::check(NODE_TABLE, include_str!("node.rs"));
    }
}
