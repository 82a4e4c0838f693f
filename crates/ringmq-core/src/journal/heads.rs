//! Heads of the writes in a ring, and the copies of their facts. It reads blocks, and looks at no record.

use super::replay::{ReplayError, Ring, RingAction, Slots};
use crate::base::{BLOCK, CoreId, FileId, IO_BYTES_MAX};
use crate::format::files::Bad;
use crate::format::journal::*;
use crate::format::storage::{Storage, read_range};
use std::ops::Range;
use zerocopy::FromBytes;

/// A block that begins like a write of this journal. Without `bad` its head holds.
pub(super) struct WriteHead {
    pub header: WriteHeader,
    pub bad: Option<Bad>,
}

/// Heads that stand at the start of a ring's blocks.
#[derive(Default)]
pub(super) struct FoundHeads {
    pub heads: Vec<WriteHead>,
    pub copies: Vec<FactsHeader>,
}

/// The write headers between the checkpoint and the limit, or those of the whole ring if the slots do not name the two.
pub(super) fn read_needed_heads(storage: &mut dyn Storage, ring: &Ring) -> Result<FoundHeads, ReplayError> {
    let Some(needed) = needed_parts(ring, ring.file_len) else {
        return read_heads(storage, ring, RING_START..ring.file_len);
    };
    let mut found = FoundHeads::default();
    for part in needed {
        let more = read_heads(storage, ring, part)?;
        found.heads.extend(more.heads);
        found.copies.extend(more.copies);
    }
    let knows_newer = |h: &WriteHead| h.bad.is_none() && h.header.checkpoint.get() > ring.slot_sequence;
    match found.heads.iter().any(|h| h.header.generation.get() >= ring.generation && knows_newer(h)) {
        // A slot that was durable is lost, and its limit with it.
        true => read_heads(storage, ring, RING_START..ring.file_len),
        false => Ok(found),
    }
}

/// The parts of a file of `file_len` in which writes behind the checkpoint may stand, in the order of the writes. `None`: anywhere.
pub(super) fn needed_parts(ring: &Ring, file_len: u64) -> Option<Vec<Range<u64>>> {
    let checkpoint = ring.checkpoint.filter(|_| ring.action == RingAction::Follow && ring.slots == Slots::Hold)?;
    let (from, limit) = (checkpoint.position.get(), checkpoint.limit.get());
    // The limit counts laps of the length that the slots say.
    if checkpoint.file_len.get() != file_len {
        return None;
    }
    let len = limit.saturating_sub(travelled(checkpoint.lap.get(), from, file_len));
    let first = from..from.saturating_add(len).min(file_len);
    let rest = RING_START..RING_START + (len - (first.end - first.start));
    if rest.end > from {
        return None;
    }
    Some([first, rest].into_iter().filter(|part| !part.is_empty()).collect())
}

/// Every block of that part of the ring that begins with a head of this journal, whether it holds or not; and the copies of facts that
/// do.
fn read_heads(storage: &mut dyn Storage, ring: &Ring, part: Range<u64>) -> Result<FoundHeads, ReplayError> {
    let file = FileId::Journal(ring.core);
    let FoundHeads { mut heads, mut copies } = FoundHeads::default();
    let mut at = part.start;
    while at < part.end {
        let len = (part.end - at).min(IO_BYTES_MAX as u64) as usize;
        let window = read_range(storage, &file, at, len)?;
        for (i, block) in window.chunks_exact(BLOCK).enumerate() {
            let Ok((h, _)) = WriteHeader::read_from_prefix(block) else { continue };
            let block_at = at + (i * BLOCK) as u64;
            if h.magic == FACTS_MAGIC {
                copies.extend(read_facts_head(storage, ring, block_at, &window[i * BLOCK..])?);
                continue;
            }
            let is_ours = h.magic == WRITE_MAGIC
                && h.position.get() == block_at
                && h.core.get() == ring.core
                && ring.journal_id.is_none_or(|id| id == h.journal_id);
            if !is_ours {
                continue;
            }
            let len_max = (ring.file_len - block_at) as usize;
            let mut parsed = WriteHeader::parse(&window[i * BLOCK..], &h.journal_id, CoreId(ring.core), len_max);
            if parsed == Err(Bad::Short) {
                let (n, m) = (h.directory.get() as usize, h.previous.get() as usize);
                let whole = read_range(storage, &file, block_at, WriteHeader::head_len(n, m).min(len_max))?;
                parsed = WriteHeader::parse(&whole, &h.journal_id, CoreId(ring.core), len_max);
            }
            match parsed {
                Ok(p) if p.header.len.get() == 0 => heads.push(WriteHead { header: h, bad: Some(Bad::Bounds) }),
                Ok(p) => heads.push(WriteHead { header: p.header, bad: None }),
                Err(what @ Bad::Version(_)) => return Err(ReplayError::Unknown { file, at: block_at, what }),
                Err(bad) => heads.push(WriteHead { header: h, bad: Some(bad) }),
            }
        }
        at += len as u64;
    }
    Ok(FoundHeads { heads, copies })
}

/// The head of a copy that holds and belongs there. `bytes` begin there, and may end before it does.
fn read_facts_head(storage: &mut dyn Storage, ring: &Ring, at: u64, bytes: &[u8]) -> Result<Option<FactsHeader>, ReplayError> {
    let file = FileId::Journal(ring.core);
    let len_max = (ring.file_len - at) as usize;
    let mut parsed = FactsHeader::parse(bytes, len_max);
    if parsed == Err(Bad::Short) {
        let len = FactsHeader::read_from_prefix(bytes).map_or(0, |(h, _)| h.len.get() as usize);
        parsed = FactsHeader::parse(&read_range(storage, &file, at, len.min(len_max))?, len_max);
    }
    match parsed {
        Ok(h) => {
            let is_ours =
                h.position.get() == at && h.core.get() == ring.core && ring.journal_id.is_none_or(|id| id == h.journal_id);
            Ok(is_ours.then_some(h))
        }
        Err(what @ Bad::Version(_)) => Err(ReplayError::Unknown { file, at, what }),
        Err(_) => Ok(None),
    }
}
