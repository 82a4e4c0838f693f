//! The first blocks of a partition's segment and commit log files: what they say, and what is done when they do not hold.

use super::report::{Report, Severity};
use super::scan::{Batches, commit_record_at};
use super::table::{Row, decide, finding};
use super::{RecoverError, unknown};
use crate::base::{BLOCK, Epoch, FileId, PartitionDir, Position};
use crate::log::format::{Bad, COMMIT_MAGIC, FileHeader, SEGMENT_MAGIC};
use crate::log::state::SegmentMeta;
use crate::log::storage::{Storage, read_range};
use std::sync::Arc;

finding! {
    /// First block of a file.
    HeaderFound {
        Holds,
        /// No file, or zeros: it was allocated and never written.
        Blank,
        Bad,
        /// It holds, but belongs to another topic, partition or place.
        Foreign,
        /// Of a version that this build does not know.
        Unknown,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderAction {
    Keep,
    /// Write it again from what the commit log's header says.
    RepairFromCommit,
    /// Write it again from the first commit record, the first batch, or the end of the log when it is just there.
    RepairFromLog,
    /// Another topic's file: rename it, never read it.
    SetAside,
    Halt,
}

/// | segment header | commit header | action | why |
/// |---|---|---|---|
/// | Holds | Holds, Blank, Bad, Foreign | Keep | the commit log is rebuilt where it does not hold |
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
        why: "the commit log is rebuilt where it does not hold",
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

/// What the headers of a segment and its commit log came to.
pub struct Header {
    pub action: HeaderAction,
    /// `None`: nothing tells where the segment begins in counts and ids.
    pub meta: Option<SegmentMeta>,
    pub epoch: u64,
    /// The commit log's own header holds.
    pub commit_holds: bool,
}

fn read_one(
    storage: &mut dyn Storage,
    file: &FileId,
    magic: [u8; 4],
    base: i64,
) -> Result<(HeaderFound, Option<FileHeader>), RecoverError> {
    let (FileId::Segment(dir, _) | FileId::Commit(dir, _)) = file else { return Ok((HeaderFound::Blank, None)) };
    let bytes = match storage.len(file)? {
        None => vec![],
        Some(_) => read_range(storage, file, 0, BLOCK)?,
    };
    Ok(match FileHeader::parse(&bytes, magic, dir.topic_id, dir.partition, base) {
        Ok(h) => (HeaderFound::Holds, Some(h)),
        Err(Bad::Zero) => (HeaderFound::Blank, None),
        Err(Bad::Short) if bytes.iter().all(|&b| b == 0) => (HeaderFound::Blank, None),
        Err(Bad::Foreign) => (HeaderFound::Foreign, None),
        Err(Bad::Version(_)) => (HeaderFound::Unknown, None),
        Err(_) => (HeaderFound::Bad, None),
    })
}

/// Reads the headers of the segment at `base` and of its commit log, and decides. Writes nothing.
pub fn read(storage: &mut dyn Storage, dir: &Arc<PartitionDir>, base: i64) -> Result<Header, RecoverError> {
    let segment = FileId::Segment(dir.clone(), base);
    let commit = FileId::Commit(dir.clone(), base);
    let (found, header) = read_one(storage, &segment, SEGMENT_MAGIC, base)?;
    let (commit_found, commit_header) = read_one(storage, &commit, COMMIT_MAGIC, base)?;
    let action = decide(HEADER_TABLE, found, commit_found, ()).then;
    let says = |h: FileHeader| (SegmentMeta { base: h.base.into(), prev_crc: h.prev_crc.get() }, h.epoch.get());
    let told = match action {
        HeaderAction::Keep => header.map(says),
        HeaderAction::RepairFromCommit => commit_header.map(says),
        HeaderAction::RepairFromLog => from_log(storage, dir, base)?,
        HeaderAction::SetAside => None,
        HeaderAction::Halt => {
            let file = if found == HeaderFound::Unknown { segment } else { commit };
            return Err(unknown(file, 0));
        }
    };
    let (meta, epoch) = told.map_or((None, 0), |(meta, epoch)| (Some(meta), epoch));
    Ok(Header { action, meta, epoch, commit_holds: commit_found == HeaderFound::Holds })
}

/// Where a segment begins as its first batch says, or the first record of its commit log (which does not know the chain:
/// then the segment's first batch could not be read anyway).
fn from_log(storage: &mut dyn Storage, dir: &Arc<PartitionDir>, base: i64) -> Result<Option<(SegmentMeta, u64)>, RecoverError> {
    if let (_, Some(h)) = Batches::new(dir, base).judge(storage, base, None)?
        && h.offset.get() == base
    {
        return Ok(Some((SegmentMeta { base: h.start(), prev_crc: h.prev_crc.get() }, h.epoch.get())));
    }
    let record = commit_record_at(storage, dir, base, 0)?.filter(|r| r.offset.get() == base);
    if let Some(r) = record {
        return Ok(Some((SegmentMeta { base: r.position(), prev_crc: 0 }, r.epoch.get())));
    }
    Ok((base == 0).then_some((SegmentMeta { base: Position::START, prev_crc: 0 }, 0)))
}

/// Writes both headers. The files are allocated.
pub fn write(
    storage: &mut dyn Storage,
    dir: &Arc<PartitionDir>,
    meta: &SegmentMeta,
    epoch: Epoch,
    now_unix_ns: i64,
) -> Result<(), RecoverError> {
    let block = |magic| FileHeader::new(magic, dir.topic_id, dir.partition, meta.base, meta.prev_crc, epoch, now_unix_ns).block();
    storage.write(&FileId::Segment(dir.clone(), meta.base.offset), 0, &block(SEGMENT_MAGIC))?;
    storage.write(&FileId::Commit(dir.clone(), meta.base.offset), 0, &block(COMMIT_MAGIC))?;
    Ok(())
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
    use crate::log::recovery::{scan, table};

    #[test]
    fn the_tables_answer_everything_once() {
        table::check(HEADER_TABLE, include_str!("headers.rs"));
        table::check(scan::SEGMENT_TABLE, include_str!("scan.rs"));
    }
}
