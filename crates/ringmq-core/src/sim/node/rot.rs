//! Rot between two lives of a node: one block whose content stands in two places. Nothing is lost by it, and a startup finds no damage.

use crate::base::{BLOCK, Rng};
use crate::format::journal::{Checkpoint, FACTS_HEADER_LEN, FACTS_MAGIC, FactsHeader, RING_START, WRITE_MAGIC, WriteHeader};
use crate::sim::disk::SimDisk;
use zerocopy::FromBytes;

/// Kind of a block that stands in two places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// The first block of node.meta, of a topic.meta, or of a segment or its commit log. The rest of a segment stands once, and its
    /// commit log is an index that a startup does not read as a whole.
    Header,
    Snapshot,
    /// A checkpoint slot of a journal.
    Slot,
    /// The copy of the facts of a journal's write.
    Copy,
    /// A journal's write that holds facts alone.
    Facts,
}

impl BlockKind {
    pub const ALL: [BlockKind; 5] = [BlockKind::Header, BlockKind::Snapshot, BlockKind::Slot, BlockKind::Copy, BlockKind::Facts];
}

/// Place of a block that may rot.
struct Victim {
    path: String,
    at: usize,
    /// Bytes that count, from there on.
    len: usize,
}

/// The headers that a file begins with are no longer than this.
const HEADER_LEN: usize = 64;

/// Number of a journal's newest copies that may rot: those that a startup may redo.
const NEWEST: usize = 3;

/// Damages one block of some kind, if there is one.
pub fn strike(disk: &mut SimDisk, rng: &mut Rng) -> Option<BlockKind> {
    let kind = BlockKind::ALL[rng.below(BlockKind::ALL.len() as u64) as usize];
    let mut victims = vec![];
    for path in disk.paths().filter(|path| !path.contains('~')) {
        victims.extend(find(kind, path, disk.contents_of(path)));
    }
    victims.retain(|v| disk.contents_of(&v.path)[v.at..].iter().take(v.len).any(|&b| b != 0));
    let Victim { path, at, len } = victims.get(rng.below(victims.len().max(1) as u64) as usize)?;
    let is_small = kind == BlockKind::Snapshot || path.contains(".meta.");
    match rng.below(4) {
        0 => disk.scribble(path, *at as u64, &[0; BLOCK]),
        1 if is_small => disk.cut(path, 0),
        2 if is_small => disk.lose(path, None),
        _ => disk.flip(path, *at as u64 + rng.below(*len as u64), rng.next_u64() as u32),
    }
    Some(kind)
}

/// The blocks of a kind in a file.
fn find(kind: BlockKind, path: &str, bytes: &[u8]) -> Vec<Victim> {
    let victim = |at, len| Victim { path: path.to_owned(), at, len };
    let is_journal = path.starts_with("journal/");
    match kind {
        BlockKind::Header if path.contains(".meta.") || path.ends_with(".segment") || path.ends_with(".commit") => {
            vec![victim(0, HEADER_LEN)]
        }
        BlockKind::Snapshot if path.contains("/state.") => vec![victim(0, HEADER_LEN)],
        BlockKind::Slot if is_journal => [0, BLOCK].map(|at| victim(at, size_of::<Checkpoint>())).into(),
        BlockKind::Copy if is_journal => {
            newest_copies(bytes).into_iter().map(|(at, head)| victim(at, BLOCK.min(head.len.get() as usize))).collect()
        }
        BlockKind::Facts if is_journal => {
            let of_copy = |(at, head): (usize, FactsHeader)| {
                let main = at.checked_sub(BLOCK).filter(|_| head.is_all())?;
                let (write, _) = WriteHeader::read_from_prefix(&bytes[main..]).ok()?;
                let is_it = write.magic == WRITE_MAGIC && write.sequence == head.sequence && write.generation == head.generation;
                is_it.then(|| victim(main, size_of::<WriteHeader>() + write.records_len.get() as usize))
            };
            newest_copies(bytes).into_iter().filter_map(of_copy).collect()
        }
        _ => vec![],
    }
}

/// Places of the newest copies of a journal.
fn newest_copies(bytes: &[u8]) -> Vec<(usize, FactsHeader)> {
    let blocks = (RING_START as usize..bytes.len()).step_by(BLOCK);
    let head = |at: usize| {
        let block = bytes.get(at..at + FACTS_HEADER_LEN)?;
        let (head, _) = FactsHeader::read_from_prefix(block).ok()?;
        (head.magic == FACTS_MAGIC && head.position.get() == at as u64).then_some((at, head))
    };
    let mut copies: Vec<_> = blocks.filter_map(head).collect();
    copies.sort_by_key(|(_, head)| std::cmp::Reverse((head.generation.get(), head.sequence.get())));
    copies.truncate(NEWEST);
    copies
}
