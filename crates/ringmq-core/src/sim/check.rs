//! Reads a recovered partition back from the simulated disk, the long way, and reports contradictions.

use super::disk::SimDisk;
use crate::base::{BLOCK, FileId, block_down};
use crate::format::batch::{BATCH_HEADER_LEN, Batch, BatchHeader};
use crate::format::files::{Bad, CommitRecord, FileHeader, SEGMENT_MAGIC};
use crate::format::segment_table::SegmentTable;
use crate::log::recovery::scan::{commit_at, commit_record, segment_at};
use crate::log::state::RecoveredPartition;
use bytes::Bytes;
use std::collections::BTreeSet;
use zerocopy::{FromBytes, IntoBytes};

/// A batch of a log; `None` when only its header is intact.
pub type ReadBatch = (BatchHeader, Option<Batch>);

/// Every batch from the first segment's base to the end. Headers, chain, positions, commit records, file headers and the
/// tails handed to the engine must agree; only bodies may be damaged.
pub fn log_of(disk: &SimDisk, p: &RecoveredPartition) -> Result<Vec<ReadBatch>, String> {
    let mut log: Vec<ReadBatch> = vec![];
    let (mut at, mut chain, mut chain_open) = match p.files.segments.first() {
        Some(first) => (first.base, first.prev_crc, true),
        None if p.end.offset == 0 => return Ok(log),
        None => return Err(format!("no segment, but the end is {:?}", p.end)),
    };
    if p.start.offset < at.offset || p.start.offset > p.end.offset {
        return Err(format!("start {:?} lies outside of {:?} to {:?}", p.start, at, p.end));
    }
    let named = named_by_tables(disk, p)?;
    for (i, segment) in p.files.segments.iter().enumerate() {
        let base = segment.base.offset;
        if segment.base != at {
            return Err(format!("segment {base} begins at {:?}, the one before ends at {at:?}", segment.base));
        }
        let bytes = disk.contents(&FileId::Segment(p.dir.clone(), base)).ok_or(format!("segment {base} is not there"))?;
        let commits = disk.contents(&FileId::Commit(p.dir.clone(), base)).ok_or(format!("commit log {base} is not there"))?;
        match FileHeader::parse(bytes, SEGMENT_MAGIC, p.dir.topic_id, p.dir.partition, base) {
            Ok(header) if header.meta() == *segment => {}
            Ok(header) => return Err(format!("segment {base}: its header says {header:?}, recovery {segment:?}")),
            // A startup does not read it: it is the scrubber's to mend.
            Err(_) if named.contains(&base) => {}
            Err(bad) => return Err(format!("segment {base}: header: {bad}")),
        }
        let end = p.files.segments.get(i + 1).map_or(p.end.offset, |next| next.base.offset);
        let mut records = 0;
        while at.offset < end {
            let from = segment_at(base, at.offset) as usize;
            let head = bytes.get(from..).unwrap_or(&[]);
            let h = BatchHeader::parse(head, p.dir.topic_id, p.dir.partition)
                .map_err(|bad| format!("segment {base}: batch at offset {}: {bad}", at.offset))?;
            if h.start() != at || !(chain_open || h.prev_crc.get() == chain) {
                return Err(format!("the batch at {at:?} does not continue the log: {h:?}, chain {chain:x}"));
            }
            // A reader that begins here holds the batch to the segment's crc.
            if at.offset == base && !h.is_lost() && h.prev_crc.get() != segment.prev_crc {
                return Err(format!("segment {base}: its first batch is chained to {:x}: {segment:?}", h.prev_crc.get()));
            }
            let record = commits.get(commit_at(records) as usize..).and_then(|b| CommitRecord::read_from_prefix(b).ok());
            if record.map(|(r, _)| r) != Some(commit_record(&h, &p.dir)) {
                return Err(format!("commit log {base}: record {records} is not that of the batch at {at:?}"));
            }
            let rest = Bytes::copy_from_slice(&head[..head.len().min(h.len())]);
            log.push((h, Batch::parse(&rest, p.dir.topic_id, p.dir.partition).ok()));
            (at, chain, chain_open) = (h.end(), h.header_crc.get(), h.is_lost());
            records += 1;
        }
        if i + 1 == p.files.segments.len() {
            check_tails(p, bytes, commits, base, records)?;
        }
    }
    if at != p.end || (!log.is_empty() && chain != p.chain_crc) {
        return Err(format!("the log ends at {at:?} with crc {chain:x}, recovery says {:?} {:x}", p.end, p.chain_crc));
    }
    Ok(log)
}

/// The segments that tables name. The tables' facts about them must be true.
fn named_by_tables(disk: &SimDisk, p: &RecoveredPartition) -> Result<BTreeSet<i64>, String> {
    let mut named = BTreeSet::new();
    for segment in &p.files.segments {
        let base = segment.base.offset;
        let bytes = disk.contents(&FileId::Segment(p.dir.clone(), base)).unwrap_or(&[]);
        let table = match SegmentTable::parse(bytes, p.dir.topic_id, p.dir.partition, base) {
            Ok(table) => table,
            Err(Bad::Zero) => continue,
            Err(bad) => return Err(format!("segment {base}: table: {bad}")),
        };
        for m in table.segments() {
            let known = p.files.segments.iter().find(|s| s.base.offset == m.base.offset);
            if known.is_some_and(|s| s != m) {
                return Err(format!("segment {base}: its table says {m:?}, recovery {known:?}"));
            }
            named.insert(m.base.offset);
        }
    }
    Ok(named)
}

fn check_tails(p: &RecoveredPartition, bytes: &[u8], commits: &[u8], base: i64, records: u64) -> Result<(), String> {
    let lens = (bytes.len() as u64, commits.len() as u64);
    if lens != (p.files.segment_len, p.files.commit_len) || records != p.files.commit_records {
        return Err(format!("lengths {lens:?} and {records} records, recovery says {p:?}"));
    }
    for (file, at, tail) in [
        (bytes, segment_at(base, p.end.offset), &p.files.tail),
        (commits, commit_at(p.files.commit_records), &p.files.commit_tail),
    ] {
        let expected = &file[block_down(at) as usize..at as usize];
        if tail.len() >= BLOCK || expected != &tail[..] {
            return Err(format!("a tail of {} bytes is not what stands before byte {at}", tail.len()));
        }
    }
    Ok(())
}

/// Bytes of a header that has no body to show.
pub fn header_bytes(h: &BatchHeader) -> [u8; BATCH_HEADER_LEN] {
    h.as_bytes().try_into().expect("a header has its length")
}
