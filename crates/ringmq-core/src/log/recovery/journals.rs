//! Journals that must exist, the meaning of a missing one, and the journals of a new generation.
//!
//! node.meta names the journals only once all of them are begun, and stops naming them in the write that closes them:
//! so between a startup that raised the generation and its end, when they are removed, filled and begun, none is missed;
//! and one that is named has both slots of the node's generation, durable, whatever crash came.

use super::{JOURNAL_BYTES_MIN, RecoverError, RecoverOptions};
use crate::base::topic::home_core;
use crate::base::{BLOCK, DiskError, FileId, IO_BYTES_MAX, Rng, block_up};
use crate::format::decision::{Row, decide, finding};
use crate::format::journal::JournalIdentity;
use crate::format::journal::{Checkpoint, RING_START, travelled};
use crate::format::meta::NodeMeta;
use crate::format::storage::Storage;
use crate::journal::limit;
use crate::journal::replay::{self, Ring, Slots};

finding! {
    /// A journal in node.meta.
    Named {
        /// The journal was begun under the node's generation.
        Begun,
        /// The journal is not named: node.meta names none, or fewer.
        Unnamed,
    }
}

finding! {
    /// A journal on the disk.
    JournalFound {
        Missing,
        /// Neither a slot nor a write.
        Blank,
        /// The slots are of an older generation: a copy was put in the journal's place.
        Older,
        /// The journal is of the node's generation, or damaged.
        There,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalAction {
    Take,
    /// The journal's content is gone. Stop, unless this very loss was accepted.
    Refuse,
}

/// | named | journal | action | why |
/// |---|---|---|---|
/// | Unnamed | any | Take | a journal that is being begun holds nothing |
/// | Begun | There | Take | the usual case; what is damaged in it is judged write by write |
/// | Begun | Missing, Blank, Older | Refuse | it was written to, and may be found again |
pub const JOURNAL_TABLE: &[Row<Named, JournalFound, (), JournalAction>] = &[
    Row { a: &[Named::Unnamed], b: &[], c: &[], then: JournalAction::Take, why: "a journal that is being begun holds nothing" },
    Row {
        a: &[Named::Begun],
        b: &[JournalFound::There],
        c: &[],
        then: JournalAction::Take,
        why: "the usual case; what is damaged in it is judged write by write",
    },
    Row {
        a: &[Named::Begun],
        b: &[JournalFound::Missing, JournalFound::Blank, JournalFound::Older],
        c: &[],
        then: JournalAction::Refuse,
        why: "it was written to, and may be found again",
    },
];

/// A journal of which all is gone, or a part.
#[derive(Clone, Debug)]
pub struct Lost {
    pub core: u16,
    pub why: String,
}

/// The journals that were truncated below the length that their slots name. Such a journal does not end the startup: the rest of the file
/// cannot be found again.
pub fn find_truncated(rings: &[Ring]) -> Vec<Lost> {
    let why =
        |r: &Ring| format!("the file was {} bytes long, and is {}: writes behind its end are lost", r.named_len, r.file_len);
    rings.iter().filter(|r| r.is_truncated()).map(|r| Lost { core: r.core, why: why(r) }).collect()
}

/// The journals that node.meta names and that are not there.
pub fn find_lost(node: &NodeMeta, rings: &[Ring]) -> Vec<Lost> {
    let mut lost = vec![];
    for core in 0..node.journals {
        let found = match rings.iter().find(|r| r.core == core) {
            None => JournalFound::Missing,
            Some(r) if !r.is_closed() => JournalFound::There,
            // Both slots are bad and no write is left: judged like any damage.
            Some(r) if matches!(r.slots, Slots::BothBad) => JournalFound::There,
            Some(r) if r.generation > 0 => JournalFound::Older,
            Some(_) => JournalFound::Blank,
        };
        if decide(JOURNAL_TABLE, Named::Begun, found, ()).then == JournalAction::Refuse {
            let why = match found {
                JournalFound::Older => "it is an older copy of the journal that was in use",
                JournalFound::Blank => "it is empty, though it was in use",
                JournalFound::Missing | JournalFound::There => "it is missing",
            };
            lost.push(Lost { core, why: why.to_string() });
        }
    }
    lost
}

/// Partitions that a refusal names one by one.
const NAMES_MAX: usize = 8;

/// The error for journals that are gone: which, and whose records were there.
pub fn refuse(storage: &mut dyn Storage, node: &NodeMeta, lost: &[Lost]) -> Result<RecoverError, DiskError> {
    let missing: Vec<String> = lost.iter().map(|l| format!("{}: {}", FileId::Journal(l.core), l.why)).collect();
    let (mut names, mut more) = (vec![], 0);
    for topic in storage.topics()? {
        for partition in storage.partitions(&topic)? {
            let core = (home_core(&topic, node.journals).0 as u64 + partition.0 as u64) % node.journals as u64;
            if lost.iter().all(|l| l.core as u64 != core) {
                continue;
            }
            if names.len() < NAMES_MAX { names.push(format!("{topic}/{partition}")) } else { more += 1 }
        }
    }
    let held = match (names.is_empty(), more) {
        (true, _) => "no partition that has files yet".to_string(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more partitions", names.join(", ")),
    };
    Ok(RecoverError::LostJournals { missing: missing.join("; "), held, generation: node.generation })
}

/// Makes the writes durable that are about to be redone. The process that issued the last writes may have died while they were only in
/// the device's cache, or seen them fail. The effects of redo (it removes the files of a deleted topic) must not outlive the writes at a
/// power loss.
pub fn settle(storage: &mut dyn Storage, ring: &Ring) -> Result<(), RecoverError> {
    let file = FileId::Journal(ring.core);
    for (at, bytes) in ring.open_writes(storage)? {
        for (i, piece) in bytes.chunks(IO_BYTES_MAX).enumerate() {
            storage.write(&file, at + (i * IO_BYTES_MAX) as u64, piece)?;
        }
    }
    Ok(storage.sync(&file)?)
}

/// Gives each core an empty journal under the new generation. Files of the right length are used again as they are: the writes in their
/// rings are of an older generation.
pub fn begin(
    storage: &mut dyn Storage,
    options: &RecoverOptions,
    rings: &[Ring],
    generation: u64,
    rng: &mut Rng,
) -> Result<Vec<JournalIdentity>, RecoverError> {
    let file_len = block_up(options.journal_bytes).max(JOURNAL_BYTES_MIN);
    let gone = rings.iter().filter(|r| r.core >= options.cores || r.file_len != file_len);
    let gone: Vec<_> = gone.map(|r| FileId::Journal(r.core)).collect();
    storage.remove(&gone)?;
    let mut journals = Vec::new();
    for core in 0..options.cores {
        let file = FileId::Journal(core);
        let ring = rings.iter().find(|r| r.core == core && r.file_len == file_len && r.slots != Slots::Blank);
        if ring.is_none() {
            storage.fill(&file, file_len)?;
        }
        let journal_id = ring.and_then(|r| r.journal_id).unwrap_or_else(|| rng.bytes_16());
        let mut slot_sequence = ring.map_or(0, |r| r.slot_sequence);
        // Both slots: when one rots, the other says the same.
        for _ in 0..2 {
            slot_sequence += 1;
            let checkpoint = empty_checkpoint(core, journal_id, generation, slot_sequence, file_len);
            storage.write(&file, (slot_sequence % 2) * BLOCK as u64, &replay::slot_block(checkpoint))?;
            storage.sync(&file)?;
        }
        journals.push(JournalIdentity { journal_id, generation, file_len, slot_sequence });
    }
    Ok(journals)
}

fn empty_checkpoint(core: u16, journal_id: [u8; 16], generation: u64, slot_sequence: u64, file_len: u64) -> Checkpoint {
    Checkpoint {
        magic: [0; 4],
        crc: 0.into(),
        version: 0.into(),
        core: core.into(),
        reserved_32: 0.into(),
        journal_id,
        generation: generation.into(),
        slot_sequence: slot_sequence.into(),
        position: RING_START.into(),
        lap: 1.into(),
        sequence: 1.into(),
        durable: 0.into(),
        file_len: file_len.into(),
        limit: limit::first(travelled(1, RING_START, file_len), file_len).into(),
        reserved: [0; 32],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::decision;

    #[test]
    fn the_table_answers_everything_once() {
        decision::check(JOURNAL_TABLE, include_str!("journals.rs"));
    }
}
