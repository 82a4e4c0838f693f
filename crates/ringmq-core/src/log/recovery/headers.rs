//! The first blocks of a partition's segment and commit log files: their content, the repair of invalid ones, and the choice of those
//! that a startup reads.
//!
//! The block of a segment names those before it ([`SegmentTable`]): from the newest one backwards a startup reads the headers that no
//! table names, one in 143, and trusts the tables for the rest. The scrubber finds a rotten header that startup does not read
//! ([`crate::log::scrub`]).

use super::partition::{Context, Partition};
use super::report::{Report, Severity};
use super::scan::{Batches, commit_record_at};
use super::{RecoverError, unknown};
use crate::base::{BLOCK, Epoch, FileId, PartitionDir, Position};
use crate::format::decision::{Row, decide, finding};
use crate::format::files::SegmentMeta;
use crate::format::files::{Bad, COMMIT_MAGIC, FileHeader, SEGMENT_MAGIC};
use crate::format::segment_table::SegmentTable;
use crate::format::storage::{Storage, read_range};
use crate::log::chain::Chain;
use std::collections::BTreeMap;
use std::sync::Arc;

finding! {
    /// First block of a file.
    HeaderFound {
        Holds,
        /// No file, or zeros: it was allocated and never written.
        Blank,
        Bad,
        /// The header holds, but belongs to another topic, partition or place.
        Foreign,
        /// A version that this build does not know.
        Unknown,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderAction {
    Keep,
    /// Write it again from the commit log's header.
    RepairFromCommit,
    /// Write it again from the first commit record, the first batch, or the end of the log when it is just there.
    RepairFromLog,
    /// Rename the file, which is another topic's, and do not read it.
    SetAside,
    Halt,
}

/// | segment header | commit header | action | why |
/// |---|---|---|---|
/// | Holds | Holds, Blank, Bad, Foreign | Keep | the commit log is rebuilt where it is damaged |
/// | Blank, Bad | Holds | RepairFromCommit | both say the same |
/// | Blank, Bad | Blank, Bad, Foreign | RepairFromLog | the place follows from the batches |
/// | Foreign | Holds, Blank, Bad, Foreign | SetAside | never merged |
/// | Unknown | any | Halt | written by a newer version |
/// | Holds, Blank, Bad, Foreign | Unknown | Halt | written by a newer version |
pub const HEADER_TABLE: &[Row<HeaderFound, HeaderFound, (), HeaderAction>] = &[
    Row {
        a: &[HeaderFound::Holds],
        b: &[HeaderFound::Holds, HeaderFound::Blank, HeaderFound::Bad, HeaderFound::Foreign],
        c: &[],
        then: HeaderAction::Keep,
        why: "the commit log is rebuilt where it is damaged",
    },
    Row {
        a: &[HeaderFound::Blank, HeaderFound::Bad],
        b: &[HeaderFound::Holds],
        c: &[],
        then: HeaderAction::RepairFromCommit,
        why: "both say the same",
    },
    Row {
        a: &[HeaderFound::Blank, HeaderFound::Bad],
        b: &[HeaderFound::Blank, HeaderFound::Bad, HeaderFound::Foreign],
        c: &[],
        then: HeaderAction::RepairFromLog,
        why: "the place follows from the batches",
    },
    Row {
        a: &[HeaderFound::Foreign],
        b: &[HeaderFound::Holds, HeaderFound::Blank, HeaderFound::Bad, HeaderFound::Foreign],
        c: &[],
        then: HeaderAction::SetAside,
        why: "never merged",
    },
    Row { a: &[HeaderFound::Unknown], b: &[], c: &[], then: HeaderAction::Halt, why: "written by a newer version" },
    Row {
        a: &[HeaderFound::Holds, HeaderFound::Blank, HeaderFound::Bad, HeaderFound::Foreign],
        b: &[HeaderFound::Unknown],
        c: &[],
        then: HeaderAction::Halt,
        why: "written by a newer version",
    },
];

/// Outcome of the headers of a segment and its commit log.
pub struct Header {
    pub action: HeaderAction,
    /// `None`: nothing tells where the segment begins in counts and ids.
    pub meta: Option<SegmentMeta>,
    pub epoch: u64,
    /// Place that the commit log's own header names, if it holds.
    pub spare: Option<SegmentMeta>,
    /// The segments before it that its two files name, as far as their tables hold.
    tables: [SegmentTable; 2],
    /// File whose header holds and whose table does not.
    pub rotten_table: Option<FileId>,
}

/// The first block of one file.
struct Block {
    found: HeaderFound,
    header: Option<FileHeader>,
    /// Empty where no segment was before; `None` where it is damaged.
    table: Option<SegmentTable>,
}

fn read_one(storage: &mut dyn Storage, file: &FileId, magic: [u8; 4], base: i64) -> Result<Block, RecoverError> {
    let (found, header, table) = (HeaderFound::Blank, None, Some(SegmentTable::default()));
    let (FileId::Segment(dir, _) | FileId::Commit(dir, _)) = file else { return Ok(Block { found, header, table }) };
    let bytes = match storage.len(file)? {
        None => vec![],
        Some(_) => read_range(storage, file, 0, BLOCK)?,
    };
    let (found, header) = match FileHeader::parse(&bytes, magic, dir.topic_id, dir.partition, base) {
        Ok(h) => (HeaderFound::Holds, Some(h)),
        Err(Bad::Zero) => (HeaderFound::Blank, None),
        Err(Bad::Short) if bytes.iter().all(|&b| b == 0) => (HeaderFound::Blank, None),
        Err(Bad::Foreign) => (HeaderFound::Foreign, None),
        Err(Bad::Version(_)) => (HeaderFound::Unknown, None),
        Err(_) => (HeaderFound::Bad, None),
    };
    let table = match SegmentTable::parse(&bytes, dir.topic_id, dir.partition, base) {
        Ok(table) => Some(table),
        Err(Bad::Zero | Bad::Short) => Some(SegmentTable::default()),
        Err(_) => None,
    };
    Ok(Block { found, header, table })
}

/// Reads the headers of the segment at `base` and of its commit log, and decides. Writes nothing.
pub fn read(storage: &mut dyn Storage, dir: &Arc<PartitionDir>, base: i64) -> Result<Header, RecoverError> {
    let segment = FileId::Segment(dir.clone(), base);
    let commit = FileId::Commit(dir.clone(), base);
    let first = read_one(storage, &segment, SEGMENT_MAGIC, base)?;
    let spare = read_one(storage, &commit, COMMIT_MAGIC, base)?;
    let action = decide(HEADER_TABLE, first.found, spare.found, ()).then;
    let says = |h: FileHeader| (h.meta(), h.epoch.get());
    let told = match action {
        HeaderAction::Keep => first.header.map(says),
        HeaderAction::RepairFromCommit => spare.header.map(says),
        HeaderAction::RepairFromLog => from_log(storage, dir, base)?,
        HeaderAction::SetAside => None,
        HeaderAction::Halt => {
            let file = if first.found == HeaderFound::Unknown { segment } else { commit };
            return Err(unknown(file, 0));
        }
    };
    let (meta, epoch) = told.map_or((None, 0), |(meta, epoch)| (Some(meta), epoch));
    let rots = |b: &Block| b.found == HeaderFound::Holds && b.table.is_none();
    let rotten_table = [(&first, segment), (&spare, commit)].into_iter().find(|(b, _)| rots(b)).map(|(_, file)| file);
    let spare_meta = spare.header.filter(|_| spare.found == HeaderFound::Holds).map(|h| h.meta());
    let tables = [first.table.unwrap_or_default(), spare.table.unwrap_or_default()];
    Ok(Header { action, meta, epoch, spare: spare_meta, tables, rotten_table })
}

impl Header {
    /// The segments before it that the first of its files names whose table holds.
    fn table(&self) -> &SegmentTable {
        self.tables.iter().find(|t| !t.is_empty()).unwrap_or(&self.tables[0])
    }

    /// Whether both files begin as they should: at `meta`, behind the segments that `before` names.
    pub fn is_right(&self, meta: &SegmentMeta, before: &SegmentTable) -> bool {
        let holds = self.action == HeaderAction::Keep && self.rotten_table.is_none();
        holds && self.meta == Some(*meta) && self.spare == Some(*meta) && self.tables.iter().all(|t| t.covers(before))
    }
}

/// Begin of a segment by its first batch, or by the first record of its commit log (which does not know the chain: in that case the
/// segment's first batch cannot be read anyway).
fn from_log(storage: &mut dyn Storage, dir: &Arc<PartitionDir>, base: i64) -> Result<Option<(SegmentMeta, u64)>, RecoverError> {
    if let (_, Some(h)) = Batches::new(dir, base).judge(storage, base, &Chain::default())? {
        return Ok(Some((SegmentMeta { base: h.start(), prev_crc: h.prev_crc.get() }, h.epoch.get())));
    }
    let record = commit_record_at(storage, dir, base, 0)?.filter(|r| r.offset.get() == base);
    if let Some(r) = record {
        return Ok(Some((SegmentMeta { base: r.position(), prev_crc: 0 }, r.epoch.get())));
    }
    Ok((base == 0).then_some((SegmentMeta { base: Position::START, prev_crc: 0 }, 0)))
}

impl Partition {
    /// Learns of segments that begin before the end, from the newest one backwards. A segment without a known place is set aside.
    pub fn enter_old(&mut self, cx: &mut Context<'_>, bases: &[i64]) -> Result<(), RecoverError> {
        let (mut known, mut repairs) = (BTreeMap::new(), vec![]);
        for &base in bases.iter().rev() {
            self.files.leave_ahead(base);
            if known.contains_key(&base) {
                continue;
            }
            let header = read(cx.storage, &self.dir, base)?;
            let Some(meta) = header.meta else {
                self.suspect();
                set_aside(cx.storage, &self.dir, base, cx.label, "the file header is damaged", cx.report)?;
                continue;
            };
            known.insert(base, meta);
            // Retention has removed some that it names.
            let named = header.table().segments().iter().filter(|m| bases.binary_search(&m.base.offset).is_ok());
            for m in named {
                known.entry(m.base.offset).or_insert(*m);
            }
            let file = FileId::Segment(self.dir.clone(), base);
            if header.action != HeaderAction::Keep {
                repairs.push((meta, header.epoch, file, "the file header is damaged: written again"));
            } else if let Some(file) = header.rotten_table {
                repairs.push((meta, header.epoch, file, "the table of the segments before it is damaged: written again"));
            }
        }
        self.files.enter_known(known.into_values());
        for (meta, epoch, file, what) in repairs {
            cx.report.note(Severity::Repaired, &file, Some(0), what);
            for file in [FileId::Segment(self.dir.clone(), meta.base.offset), FileId::Commit(self.dir.clone(), meta.base.offset)]
            {
                cx.allocate(&file, BLOCK as u64)?;
            }
            self.files.write_headers(cx, &meta, Epoch(epoch))?;
        }
        Ok(())
    }
}

/// Renames a segment and its commit log.
pub fn set_aside(
    storage: &mut dyn Storage,
    dir: &Arc<PartitionDir>,
    base: i64,
    label: &str,
    why: &str,
    report: &mut Report,
) -> Result<(), RecoverError> {
    for file in [FileId::Segment(dir.clone(), base), FileId::Commit(dir.clone(), base)] {
        if storage.len(&file)?.is_some() {
            report.note(Severity::Damage, &file, None, format!("{why}; set aside as ~{label}"));
            storage.set_aside(&file, label)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::decision;
    use crate::log::recovery::scan;

    #[test]
    fn the_tables_answer_everything_once() {
        decision::check(HEADER_TABLE, include_str!("headers.rs"));
        decision::check(scan::SEGMENT_TABLE, include_str!("scan.rs"));
    }
}
