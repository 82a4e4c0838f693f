//! Topics of the data path: the folders' topic.meta, two equal files, compared with the journals' records of creation and deletion.

use super::report::{Report, Severity};
use super::{RecoverError, unknown};
use crate::base::{BLOCK, FileId, PartitionDir, PartitionId, TopicId, TopicInfo, TopicName, TopicRef};
use crate::format::decision::{Row, decide, finding};
use crate::format::files::{Bad, COMMIT_MAGIC, FileHeader, SEGMENT_MAGIC, SNAPSHOT_MAGIC, SnapshotHeader, is_sealed};
use crate::format::meta::{TOPIC_META_LEN, TopicMeta};
use crate::format::snapshot::SLOTS;
use crate::format::storage::{Storage, read_range};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

finding! {
    /// The two files of topic.meta together.
    MetaFound {
        /// Both files hold and agree, or the journal has the same topic with more partitions.
        Holds,
        /// A single copy holds; the other is missing, or zeros.
        OneMissing,
        /// A single copy holds; the other does not, or says the same of fewer partitions.
        OneBad,
        /// A copy holds and names another topic than the folder, another id than the journal, or than the other copy.
        Other,
        /// Neither is there, or both are zeros.
        Blank,
        /// Neither holds, and one is damaged.
        Bad,
        /// A copy has a version that this build does not know.
        Unknown,
    }
}

finding! {
    /// A topic of this name in the journals.
    Journaled { Created, Silent }
}

finding! {
    /// Whether the folder has partitions.
    Folder { Empty, HasPartitions }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopicAction {
    Keep,
    /// Write the other file.
    Complete,
    /// The same: it is reported as rot.
    Mend,
    /// Write topic.meta from the journal's record.
    Write,
    /// Rename the folder, then write the journal's topic, if it has one, into a new folder.
    SetAside,
    /// Take the topic's id and partitions from the files in its folder.
    Rebuild,
    /// An unfinished creation that was never acknowledged.
    Ignore,
    Halt,
}

/// | topic.meta | journal | folder | action | why |
/// |---|---|---|---|---|
/// | Holds | any | any | Keep | the usual case |
/// | OneMissing | Created | any | Complete | the crash came between the two |
/// | OneMissing | Silent | any | Mend | both are durable before the journal forgets the topic |
/// | OneBad | any | any | Mend | a write of a block that holds so little is not torn |
/// | Other | any | any | SetAside | another id is other data: never merged |
/// | Blank, Bad | Created | any | Write | created just before the crash |
/// | Blank | Silent | Empty | Ignore | its record was not durable, so nobody was told |
/// | Bad | Silent | Empty | SetAside | a topic that nothing tells the id of |
/// | Blank, Bad | Silent | HasPartitions | Rebuild | each file in it has the id |
/// | Unknown | any | any | Halt | written by a newer version |
pub const TOPIC_TABLE: &[Row<MetaFound, Journaled, Folder, TopicAction>] = &[
    Row { a: &[MetaFound::Holds], b: &[], c: &[], then: TopicAction::Keep, why: "the usual case" },
    Row {
        a: &[MetaFound::OneMissing],
        b: &[Journaled::Created],
        c: &[],
        then: TopicAction::Complete,
        why: "the crash came between the two",
    },
    Row {
        a: &[MetaFound::OneMissing],
        b: &[Journaled::Silent],
        c: &[],
        then: TopicAction::Mend,
        why: "both are durable before the journal forgets the topic",
    },
    Row {
        a: &[MetaFound::OneBad],
        b: &[],
        c: &[],
        then: TopicAction::Mend,
        why: "a write of a block that holds so little is not torn",
    },
    Row { a: &[MetaFound::Other], b: &[], c: &[], then: TopicAction::SetAside, why: "another id is other data: never merged" },
    Row {
        a: &[MetaFound::Blank, MetaFound::Bad],
        b: &[Journaled::Created],
        c: &[],
        then: TopicAction::Write,
        why: "created just before the crash",
    },
    Row {
        a: &[MetaFound::Blank],
        b: &[Journaled::Silent],
        c: &[Folder::Empty],
        then: TopicAction::Ignore,
        why: "its record was not durable, so nobody was told",
    },
    Row {
        a: &[MetaFound::Bad],
        b: &[Journaled::Silent],
        c: &[Folder::Empty],
        then: TopicAction::SetAside,
        why: "a topic that nothing tells the id of",
    },
    Row {
        a: &[MetaFound::Blank, MetaFound::Bad],
        b: &[Journaled::Silent],
        c: &[Folder::HasPartitions],
        then: TopicAction::Rebuild,
        why: "each file in it has the id",
    },
    Row { a: &[MetaFound::Unknown], b: &[], c: &[], then: TopicAction::Halt, why: "written by a newer version" },
];

/// Topics that the journals create and delete.
#[derive(Debug, Default)]
pub struct JournaledTopics {
    /// The last one of each name, with the most partitions that it had.
    pub created: BTreeMap<TopicName, TopicMeta>,
    pub deleted: BTreeSet<TopicId>,
}

impl JournaledTopics {
    pub fn create(&mut self, meta: TopicMeta) {
        // Another ring may have the topic as it was before it got more partitions.
        let is_smaller = |known: &TopicMeta| known.info.id == meta.info.id && known.info.partitions > meta.info.partitions;
        if !self.created.get(&meta.info.name).is_some_and(is_smaller) {
            self.created.insert(meta.info.name.clone(), meta);
        }
    }

    fn live(&self, name: &TopicName) -> Option<&TopicMeta> {
        self.created.get(name).filter(|m| !self.deleted.contains(&m.info.id))
    }
}

fn meta_files(name: &TopicName, id: TopicId) -> [FileId; 2] {
    [0, 1].map(|copy| FileId::Topic(dir(name, id, PartitionId(0)), copy))
}

/// Reads both files of a topic's topic.meta, as they are. [`Bad::Zero`]: missing, or zeros.
pub fn read_both(storage: &mut dyn Storage, name: &TopicName) -> Result<[Result<TopicMeta, Bad>; 2], RecoverError> {
    let mut read = |file: &FileId| -> Result<_, RecoverError> {
        let bytes = match storage.len(file)? {
            None => vec![],
            Some(_) => read_range(storage, file, 0, BLOCK)?,
        };
        Ok(match TopicMeta::decode(&bytes) {
            Err(Bad::Short) if bytes.iter().all(|&b| b == 0) => Err(Bad::Zero),
            other => other,
        })
    };
    let [first, second] = meta_files(name, TopicId::default());
    Ok([read(&first)?, read(&second)?])
}

/// Judges two files together. Returns the topic when they name one.
fn judge(both: &[Result<TopicMeta, Bad>; 2], name: &TopicName, expected: Option<&TopicMeta>) -> (MetaFound, Option<TopicMeta>) {
    let is = |wanted: fn(&Bad) -> bool| both.iter().any(|s| s.as_ref().is_err_and(wanted));
    let [is_newer, is_blank] = [is(|bad| matches!(bad, Bad::Version(_))), is(|bad| *bad == Bad::Zero)];
    let is_bad = is(|bad| !matches!(bad, Bad::Zero | Bad::Version(_)));
    let whole: Vec<&TopicMeta> = both.iter().flatten().collect();
    let most = expected.into_iter().chain(whole.iter().copied()).max_by_key(|m| m.info.partitions);
    let is_grown = |a: &TopicMeta, b: &TopicMeta| a.info.id == b.info.id && a.info.partitions != b.info.partitions;
    let is_other = |m: &&TopicMeta| m.info.name != *name || expected.is_some_and(|e| e.info.id != m.info.id);
    let found = match whole[..] {
        _ if is_newer => MetaFound::Unknown,
        [] if is_bad => MetaFound::Bad,
        [] => MetaFound::Blank,
        _ if whole.iter().any(is_other) => MetaFound::Other,
        // More partitions were on their way to the files.
        [one, other] if is_grown(one, other) && expected.is_none() => MetaFound::OneBad,
        [one, other] if one != other && !is_grown(one, other) => MetaFound::Other,
        [_, _] => MetaFound::Holds,
        _ if is_blank => MetaFound::OneMissing,
        _ => MetaFound::OneBad,
    };
    let holds = matches!(found, MetaFound::Holds | MetaFound::OneMissing | MetaFound::OneBad);
    (found, most.filter(|_| holds).cloned())
}

pub fn dir(name: &TopicName, topic_id: TopicId, partition: PartitionId) -> Arc<PartitionDir> {
    Arc::new(PartitionDir { topic: name.clone(), topic_id, partition })
}

/// Every topic of the node, by name; folders are repaired, set aside or removed on the way.
pub fn gather(
    storage: &mut dyn Storage,
    journaled: &JournaledTopics,
    label: &str,
    now_unix_ns: i64,
    report: &mut Report,
) -> Result<Vec<TopicRef>, RecoverError> {
    let mut topics: BTreeMap<TopicName, TopicRef> = BTreeMap::new();
    let folders = storage.topics()?;
    for name in &folders {
        if let Some(topic) = gather_one(storage, name, journaled, label, now_unix_ns, report)? {
            topics.insert(name.clone(), topic);
        }
    }
    for name in journaled.created.keys().filter(|n| !folders.contains(n)) {
        if let Some(meta) = journaled.live(name) {
            write_meta(storage, meta)?;
            topics.insert(name.clone(), Arc::new(meta.info.clone()));
        }
    }
    Ok(topics.into_values().collect())
}

fn gather_one(
    storage: &mut dyn Storage,
    name: &TopicName,
    journaled: &JournaledTopics,
    label: &str,
    now_unix_ns: i64,
    report: &mut Report,
) -> Result<Option<TopicRef>, RecoverError> {
    let files = meta_files(name, TopicId::default());
    let expected = journaled.live(name);
    let mut both = read_both(storage, name)?;
    let deleted = both.iter().flatten().find(|m| journaled.deleted.contains(&m.info.id)).cloned();
    if let Some(meta) = deleted {
        remove(storage, name, &meta.info, &both)?;
        both = read_both(storage, name)?;
    }
    let (found, meta) = judge(&both, name, expected);
    // Where one holds, the other one; where both do, the one that knows of fewer partitions.
    let bad = match &both {
        [Ok(one), Ok(other)] => usize::from(one.info.partitions > other.info.partitions),
        [first, _] => usize::from(first.is_ok()),
    };
    if matches!(found, MetaFound::Blank | MetaFound::Bad) {
        // The topic.meta of a topic that was deleted soon after its creation may never have been written.
        for p in storage.partitions(name)? {
            if let Some(id) = first_id(storage, name, p)?.filter(|id| journaled.deleted.contains(id)) {
                remove_partition(storage, &dir(name, id, p))?;
            }
        }
    }
    let partitions = storage.partitions(name)?;
    let mut has_files = false;
    for &p in &partitions {
        has_files |= first_id(storage, name, p)?.is_some();
    }
    let journal = if expected.is_some() { Journaled::Created } else { Journaled::Silent };
    let folder = if has_files { Folder::HasPartitions } else { Folder::Empty };
    match decide(TOPIC_TABLE, found, journal, folder).then {
        TopicAction::Keep => {
            if expected.is_some() || !has_files {
                // Its journal is closed soon, or nothing was ever stored below it: another process may have died before
                // the file was durable, or seen its write fail.
                write_meta(storage, meta.as_ref().expect("it holds"))?;
            }
            Ok(meta.map(|m| Arc::new(m.info)))
        }
        action @ (TopicAction::Complete | TopicAction::Mend) => {
            let (severity, what) = match action {
                TopicAction::Mend => (Severity::Mended, "the file is damaged or missing: written again from the other copy"),
                _ => (Severity::Repaired, "the file was not written yet, or is gone: written from the other copy"),
            };
            report.note(severity, &files[bad], Some(0), what);
            let meta = meta.expect("one holds");
            write_copy(storage, &meta, bad)?;
            write_copy(storage, &meta, 1 - bad)?;
            Ok(Some(Arc::new(meta.info)))
        }
        TopicAction::Write => {
            let meta = expected.expect("the table's row needs a record");
            if found == MetaFound::Bad {
                let which = usize::from(both[0] == Err(Bad::Zero));
                report.note(Severity::Mended, &files[which], Some(0), "damaged: written again from the journal");
            }
            write_meta(storage, meta)?;
            Ok(Some(Arc::new(meta.info.clone())))
        }
        TopicAction::SetAside => {
            let what = format!("the file is damaged or is not of the topic of this folder: set aside as {name}~{label}");
            report.note(Severity::Damage, &files[0], None, what);
            storage.set_aside_topic(name, label)?;
            let Some(meta) = expected else { return Ok(None) };
            write_meta(storage, meta)?;
            Ok(Some(Arc::new(meta.info.clone())))
        }
        TopicAction::Rebuild => {
            let mut id = None;
            for &p in &partitions {
                id = id.or(first_id(storage, name, p)?);
            }
            let id = id.expect("the table's row needs files");
            let count = partitions.last().map_or(1, |p| p.0 + 1).min(PartitionId::COUNT_MAX);
            let info = TopicInfo { name: name.clone(), id, partitions: count };
            report.note(
                Severity::Damage,
                &files[0],
                Some(0),
                format!(
                    "both copies are damaged: rebuilt with id {id} and the {count} partitions that have files; \
                     partitions that never had a message are lost"
                ),
            );
            write_meta(storage, &TopicMeta { info: info.clone(), created_unix_ns: now_unix_ns })?;
            Ok(Some(Arc::new(info)))
        }
        TopicAction::Ignore => Ok(None),
        TopicAction::Halt => {
            let newer = both.iter().position(|s| matches!(s, Err(Bad::Version(_)))).unwrap_or(0);
            Err(unknown(files[newer].clone(), 0))
        }
    }
}

fn write_meta(storage: &mut dyn Storage, meta: &TopicMeta) -> Result<(), RecoverError> {
    write_copy(storage, meta, 0)?;
    write_copy(storage, meta, 1)
}

fn write_copy(storage: &mut dyn Storage, meta: &TopicMeta, copy: usize) -> Result<(), RecoverError> {
    let [first, second] = meta_files(&meta.info.name, meta.info.id);
    let file = if copy == 0 { first } else { second };
    if storage.allocate(&file, TOPIC_META_LEN).is_err_and(|e| e.is_no_space()) {
        super::node::give_back(storage)?;
    }
    storage.allocate(&file, TOPIC_META_LEN)?;
    storage.write(&file, 0, &meta.encode())?;
    storage.sync(&file)?;
    Ok(())
}

/// Removes a deleted topic's files. A topic.meta that names another topic stays.
fn remove(
    storage: &mut dyn Storage,
    name: &TopicName,
    info: &TopicInfo,
    both: &[Result<TopicMeta, Bad>; 2],
) -> Result<(), RecoverError> {
    for partition in storage.partitions(name)? {
        remove_partition(storage, &dir(name, info.id, partition))?;
    }
    let others = both.iter().map(|found| found.as_ref().is_ok_and(|m| m.info.id != info.id));
    let gone = meta_files(name, info.id).into_iter().zip(others).filter(|(_, is_other)| !is_other);
    Ok(storage.remove(&gone.map(|(file, _)| file).collect::<Vec<_>>())?)
}

/// Removes a partition's files, and so its folder: the snapshots are the last of them.
pub fn remove_partition(storage: &mut dyn Storage, dir: &Arc<PartitionDir>) -> Result<(), RecoverError> {
    let files = files(storage, dir)?;
    Ok(storage.remove(&files)?)
}

/// Removes a partition's files if nothing was written to them.
pub fn remove_blank(storage: &mut dyn Storage, dir: &Arc<PartitionDir>) -> Result<(), RecoverError> {
    let mut is_any = false;
    for file in files(storage, dir)? {
        is_any |= storage.len(&file)?.is_some();
    }
    if is_any && is_blank(storage, dir)? { remove_partition(storage, dir) } else { Ok(()) }
}

/// Every file that a partition may have; a snapshot slot need not be there.
fn files(storage: &mut dyn Storage, dir: &Arc<PartitionDir>) -> Result<Vec<FileId>, RecoverError> {
    let mut files: Vec<_> = storage.segments(dir)?.into_iter().map(|b| FileId::Segment(dir.clone(), b)).collect();
    files.extend(storage.commits(dir)?.into_iter().map(|b| FileId::Commit(dir.clone(), b)));
    files.extend((0..SLOTS).map(|slot| FileId::Snapshot(dir.clone(), slot)));
    Ok(files)
}

/// Whether nothing was ever written to a partition's folder.
pub fn is_blank(storage: &mut dyn Storage, dir: &Arc<PartitionDir>) -> Result<bool, RecoverError> {
    for file in files(storage, dir)? {
        if storage.len(&file)?.is_some() && read_range(storage, &file, 0, BLOCK)?.iter().any(|&b| b != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The topic id that the first readable file of a partition carries.
fn first_id(storage: &mut dyn Storage, name: &TopicName, partition: PartitionId) -> Result<Option<TopicId>, RecoverError> {
    for file in files(storage, &dir(name, TopicId::default(), partition))? {
        if storage.len(&file)?.is_none() {
            continue;
        }
        let block = read_range(storage, &file, 0, BLOCK)?;
        if let Ok((h, _)) = FileHeader::read_from_prefix(&block)
            && (h.magic == SEGMENT_MAGIC || h.magic == COMMIT_MAGIC)
            && is_sealed(h.as_bytes())
        {
            return Ok(Some(TopicId(h.topic_id)));
        }
        if let Ok((h, _)) = SnapshotHeader::read_from_prefix(&block) {
            let len = h.len.get() as usize;
            if h.magic == SNAPSHOT_MAGIC && len <= block.len() && is_sealed(&block[..len]) {
                return Ok(Some(TopicId(h.topic_id)));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::decision;

    #[test]
    fn the_table_answers_everything_once() {
        decision::check(TOPIC_TABLE, include_str!("topics.rs"));
    }
}
