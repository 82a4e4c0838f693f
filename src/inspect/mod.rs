//! `ringmq inspect`: prints and verifies the files of a data path, offline, and says exactly where damage is.
//!
//! Reads only, and reads everything: unlike recovery it walks every segment. Traces of a crash (a torn journal tail, batches that are
//! not in their segment yet) are no damage. Not for a data path that a running node owns: bytes there may be half written, and a first
//! and a last line say so.
//!
//! Every line begins with the file; a line about damage has the byte position and `DAMAGE`. A structure of a newer version of the
//! program has `NEWER` instead: it is no damage, it cannot be verified here, and checks that depend on it are left out.

pub mod compare;
mod files;
mod partition;
mod report;

pub use report::Format;

use crate::base::{BLOCK, DiskError, FileId, IdMap, PartitionDir, PartitionId, Position, TopicId, TopicName};
use crate::disk::lock;
use crate::format::batch::BatchHeader;
use crate::format::files::SegmentMeta;
use crate::format::files::{Bad, RawPosition};
use crate::format::journal::{RecordKind, WHOLE_TOPIC};
use crate::format::meta::TopicMeta;
use crate::format::producer::Producer;
use crate::format::snapshot::Snapshot;
use crate::format::storage::{Storage, read_range};
use crate::journal::replay::{self, ReadAhead, Record, ReplayError, WriteAction};
use crate::log::recovery::RecoverError;
use crate::log::recovery::node::{newest, read_both};
use crate::log::recovery::topics::{self, dir};
use crate::log::recovery::truncations::Truncations;
use files::Files;
use report::{Report, place, position, record_words};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

#[derive(Clone, Debug, Default)]
pub struct InspectOptions {
    /// Topic to look at; `None`: all.
    pub topic: Option<String>,
    /// Partition of each topic to look at; `None`: all.
    pub partition: Option<u16>,
    /// Every record, batch and cursor; a summary of each file otherwise.
    pub records: bool,
    pub format: Format,
}

/// Overall result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Clean,
    /// Data is damaged, was lost before, or differs.
    Damaged,
    /// Data was written by a newer version, and the rest says little without it.
    Newer,
}

impl Verdict {
    fn of(damage: u64, newer: u64) -> Verdict {
        match (damage, newer) {
            (0, 0) => Verdict::Clean,
            (_, 0) => Verdict::Damaged,
            _ => Verdict::Newer,
        }
    }

    /// The verdict in JSON.
    fn word(self) -> &'static str {
        match self {
            Verdict::Clean => "clean",
            Verdict::Damaged => "damaged",
            Verdict::Newer => "newer",
        }
    }

    /// Exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::Clean => 0,
            Verdict::Damaged => 1,
            Verdict::Newer => 3,
        }
    }
}

/// Remedy for files of a newer version.
const NEWER: &str = "written by a newer version of ringmq than this one: use that version, or a later one";

#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error("{path} is not a data path: it has no node.meta, journal or topics")]
    NotADataPath { path: String },
    #[error("there is no topic {topic} in {path}: {there}")]
    NoSuchTopic { topic: String, path: String, there: String },
    #[error("there is no partition {partition} in {path}{of}")]
    NoSuchPartition { partition: u16, path: String, of: String },
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

/// Prints to `out`.
pub fn run(data_path: &Path, options: &InspectOptions, out: &mut dyn Write) -> Result<Verdict, InspectError> {
    let mut files = data_path_files(data_path)?;
    check_names(&mut [(data_path.display().to_string(), &mut files)], options)?;
    let mut report = Report::new(out, options.format);
    under_warning(&[data_path], &mut report, |report| whole(&mut files, options, report))
}

fn whole(files: &mut Files, options: &InspectOptions, report: &mut Report) -> Result<Verdict, InspectError> {
    for name in files.names("topics")?.into_iter().filter(|n| n.contains('~')) {
        report.note("found", format!("topics/{name}: set aside by an earlier recovery"), json!({ "set_aside": name }))?;
    }
    look(files, options, report)
}

/// Refuses a topic or a partition that none of the data paths has: a misspelt name must not read as "clean".
fn check_names(paths: &mut [(String, &mut Files)], options: &InspectOptions) -> Result<(), InspectError> {
    let (mut names, mut has_partition) = (vec![], false);
    for (_, files) in &mut *paths {
        for name in files.topics()? {
            if options.topic.as_ref().is_none_or(|topic| *topic == *name) {
                has_partition |= files.partitions(&name)?.iter().any(|p| options.partition.is_none_or(|asked| asked == p.0));
            }
            names.push(name.to_string());
        }
    }
    names.sort_unstable();
    names.dedup();
    let path = paths.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(topic) = options.topic.clone().filter(|topic| !names.contains(topic)) {
        let there = match names.len() {
            0 => "it has no topics".into(),
            n if n <= NAMES_SHOWN_MAX => format!("its topics are {}", names.join(", ")),
            n => format!("its {n} topics begin with {}", names[..NAMES_SHOWN_MAX].join(", ")),
        };
        return Err(InspectError::NoSuchTopic { topic, path, there });
    }
    match options.partition {
        Some(partition) if !has_partition => {
            let of = options.topic.as_ref().map_or(String::new(), |topic| format!(" of the topic {topic}"));
            Err(InspectError::NoSuchPartition { partition, path, of })
        }
        _ => Ok(()),
    }
}

const NAMES_SHOWN_MAX: usize = 20;

/// Runs `look`, and prints before and behind its output which of the data paths a node owns. That is no error: the output may still be
/// of use.
fn under_warning(
    data_paths: &[&Path],
    report: &mut Report,
    look: impl FnOnce(&mut Report) -> Result<Verdict, InspectError>,
) -> Result<Verdict, InspectError> {
    let warn = |report: &mut Report, was: &[bool]| -> Result<Vec<bool>, InspectError> {
        let mut owned = vec![];
        for (i, path) in data_paths.iter().enumerate() {
            // A user without permission for the lock gets the next errors about unreadable files.
            let owner = lock::owner(path).unwrap_or_default();
            let who = match &owner {
                Some(holder) => format!("a node ({holder}) owns this data path"),
                None if was.get(i) == Some(&true) => "a node owned this data path, and has ended meanwhile".into(),
                None => String::new(),
            };
            if !who.is_empty() {
                let what = "findings may be half-written data and not damage: stop the node";
                let lock = path.join("LOCK").display().to_string();
                report.note(
                    "warning",
                    format!("{lock}: WARNING: {who}: {what}"),
                    json!({ "data_path": path, "pid": owner.as_ref().map(|o| &o.pid) }),
                )?;
            }
            owned.push(owner.is_some());
        }
        Ok(owned)
    };
    let was = warn(report, &[])?;
    let verdict = look(report);
    warn(report, &was)?;
    verdict
}

fn data_path_files(data_path: &Path) -> Result<Files, InspectError> {
    let is_one = ["node.meta.0", "node.meta.1", "journal", "topics"].iter().any(|n| data_path.join(n).exists());
    if !is_one {
        return Err(InspectError::NotADataPath { path: data_path.display().to_string() });
    }
    Ok(Files::new(data_path))
}

/// The same over any storage.
pub fn inspect(storage: &mut dyn Storage, options: &InspectOptions, out: &mut dyn Write) -> Result<Verdict, InspectError> {
    look(storage, options, &mut Report::new(out, options.format))
}

fn look(storage: &mut dyn Storage, options: &InspectOptions, report: &mut Report) -> Result<Verdict, InspectError> {
    let (truncations, redo) = (Truncations::default(), Redo::default());
    let mut view = View {
        storage,
        options,
        report,
        damage: 0,
        newer: 0,
        truncations,
        limit: None,
        redo,
        created: BTreeSet::new(),
        segments: BTreeMap::new(),
    };
    let (generation, journals) = view.node()?;
    for core in view.storage.journals()? {
        view.journal(core, generation)?;
    }
    if view.newer > 0 {
        let what = "topics are not checked: the journals' records of them cannot be read";
        view.report.note("found", what, Value::Null)?;
    } else {
        view.topics(journals)?;
    }
    let verdict = Verdict::of(view.damage, view.newer);
    let (damaged, newer) = (view.damage, view.newer);
    let what = match (damaged, newer) {
        (0, 0) => "clean".into(),
        (n, 0) => format!("{n} damaged places"),
        (0, n) => format!("{n} places {NEWER}"),
        (n, m) => format!("{n} damaged places, and {m} {NEWER}"),
    };
    view.report.note("verdict", what, json!({ "verdict": verdict.word(), "damaged": damaged, "newer": newer }))?;
    Ok(verdict)
}

struct View<'a, 'b> {
    pub storage: &'a mut dyn Storage,
    pub options: &'a InspectOptions,
    report: &'a mut Report<'b>,
    pub damage: u64,
    /// Places that a newer version wrote.
    pub newer: u64,
    /// Truncations in the journals.
    pub truncations: Truncations,
    /// Offset at which the journals truncate this partition; nothing is promised behind it.
    pub limit: Option<i64>,
    pub redo: Redo,
    /// Topics whose creation the journals still have.
    created: BTreeSet<TopicName>,
    /// Segments of the partition that were looked at.
    pub segments: BTreeMap<i64, SegmentMeta>,
}

/// Work that a startup does again, by the journals: the files need not have it yet.
#[derive(Default)]
pub(crate) struct Redo {
    /// Batches by topic and partition.
    batches: IdMap<(TopicId, u16), Vec<RedoBatch>>,
    /// Sequence and offset of each new log start that retention journaled.
    starts: IdMap<(TopicId, u16), Vec<(u64, i64)>>,
    /// Lost channels by the records, in order.
    losses: IdMap<(TopicId, u16), Vec<LossRecord>>,
}

struct LossRecord {
    sequence: u64,
    /// Startup that may have lost channels, or the last one whose loss is accepted.
    start: u64,
    is_accepted: bool,
}

struct RedoBatch {
    sequence: u64,
    offset: i64,
    /// True if the journal holds the body too.
    has_body: bool,
}

impl Redo {
    fn see(&mut self, record: &Record) {
        let (id, partition) = (TopicId(record.header.topic_id), record.header.partition.get());
        if record.kind == RecordKind::Start
            && let Ok((at, _)) = RawPosition::read_from_prefix(&record.payload)
        {
            let at = (record.header.sequence.get(), Position::from(at).offset);
            return self.starts.entry((id, partition)).or_default().push(at);
        }
        let is_accepted = record.kind == RecordKind::LossAccepted;
        if (is_accepted || record.kind == RecordKind::ChannelsLost)
            && let Ok((start, _)) = U64::read_from_prefix(&record.payload)
        {
            let loss = LossRecord { sequence: record.header.sequence.get(), start: start.get(), is_accepted };
            return self.losses.entry((id, partition)).or_default().push(loss);
        }
        if !matches!(record.kind, RecordKind::Batch | RecordKind::DirectBatch) {
            return;
        }
        if let Ok(h) = BatchHeader::parse(&record.payload, id, PartitionId(partition)) {
            let (sequence, has_body) = (record.header.sequence.get(), record.kind == RecordKind::Batch);
            let batch = RedoBatch { sequence, offset: h.offset.get(), has_body };
            self.batches.entry((id, partition)).or_default().push(batch);
        }
    }

    /// Log start by records that no snapshot has applied.
    pub fn start_of(&self, topic: TopicId, partition: u16, applied: u64) -> Option<i64> {
        let all = self.starts.get(&(topic, partition)).into_iter().flatten();
        all.filter(|(sequence, _)| *sequence > applied).map(|(_, offset)| *offset).max()
    }

    /// Startup that may have lost channels, from the snapshot and the records redone over it; 0: none.
    pub fn channels_lost(&self, topic: TopicId, partition: u16, snapshot: &Snapshot) -> u64 {
        let all = self.losses.get(&(topic, partition)).into_iter().flatten();
        all.filter(|loss| loss.sequence > snapshot.applied).fold(snapshot.channels_lost, |lost, loss| match loss.is_accepted {
            true if lost <= loss.start => 0,
            true => lost,
            false => lost.max(loss.start),
        })
    }

    /// Offsets from which a startup writes segments, and commit logs, again. `applied`: of the snapshot.
    pub fn of(&self, topic: TopicId, partition: u16, applied: u64) -> (Option<i64>, Option<i64>) {
        let all = || self.batches.get(&(topic, partition)).into_iter().flatten().filter(|b| b.sequence > applied);
        let segment = all().filter(|b| b.has_body).map(|b| b.offset).min();
        (segment, all().map(|b| b.offset).min())
    }
}

impl View<'_, '_> {
    pub fn damage(&mut self, file: &FileId, at: u64, what: impl std::fmt::Display) -> Result<(), InspectError> {
        self.damage += 1;
        Ok(self.report.damage(file, at, what)?)
    }

    /// Reports bytes that fail a check: damage, described by `what`, or a newer version.
    pub fn bad(&mut self, file: &FileId, at: u64, bad: Bad, what: impl std::fmt::Display) -> Result<(), InspectError> {
        match bad {
            Bad::Version(_) | Bad::Kind(_) => self.newer(file, at, bad),
            _ => self.damage(file, at, what),
        }
    }

    pub fn newer(&mut self, file: &FileId, at: u64, what: impl std::fmt::Display) -> Result<(), InspectError> {
        self.newer += 1;
        Ok(self.report.newer(file, at, format!("{what}: {NEWER}"))?)
    }

    pub fn say(&mut self, file: &FileId, what: impl std::fmt::Display) -> Result<(), InspectError> {
        self.tell(file, what, Value::Null)
    }

    /// The same with the values that the words tell, for programs.
    pub fn tell(&mut self, file: &FileId, what: impl std::fmt::Display, values: Value) -> Result<(), InspectError> {
        Ok(self.report.found(Some(file), what, values)?)
    }

    /// The node's generation and how many journals must be there, as far as that is known.
    fn node(&mut self) -> Result<(u64, u16), InspectError> {
        let both = read_both(self.storage)?;
        for (slot, found) in both.iter().enumerate() {
            let file = FileId::Node(slot as u8);
            match found {
                Ok(m) => {
                    let id: String = m.node_id.iter().map(|b| format!("{b:02x}")).collect();
                    let journals = if m.journals == 0 { "not named".into() } else { m.journals.to_string() };
                    let cluster = match m.cluster_version {
                        0 => String::new(),
                        version => format!(", cluster file of version {version}"),
                    };
                    let what = format!("generation {}, sequence {}, journals {journals}{cluster}", m.generation, m.sequence);
                    let values = json!({
                        "node_id": id, "generation": m.generation, "sequence": m.sequence, "journals": m.journals,
                        "cluster_version": m.cluster_version
                    });
                    self.tell(&file, format!("node {id}, {what}"), values)?;
                }
                Err(Bad::Zero) if newest(&both).is_none_or(|m| m.sequence <= 1) => self.say(&file, "not written yet")?,
                Err(Bad::Zero) => self.damage(&file, 0, "it is missing, or zeros")?,
                Err(bad) => self.bad(&file, 0, *bad, bad)?,
            }
        }
        let newest = newest(&both);
        Ok(newest.map_or((0, 0), |n| (n.generation, n.journals)))
    }

    fn journal(&mut self, core: u16, generation: u64) -> Result<(), InspectError> {
        let (file, newer) = (FileId::Journal(core), self.newer);
        let len = self.storage.len(&file)?.unwrap_or(0);
        for slot in 0..2u64 {
            let block = read_range(self.storage, &file, slot * BLOCK as u64, BLOCK)?;
            match replay::parse_slot(&block, core, slot, len) {
                Ok(c) => self.tell(
                    &file,
                    format!(
                        "slot {slot}: generation {}, slot sequence {}, redo from write {} at byte {}, complete up to write {}",
                        c.generation, c.slot_sequence, c.sequence, c.position, c.durable
                    ),
                    json!({
                        "slot": slot, "generation": c.generation.get(), "slot_sequence": c.slot_sequence.get(),
                        "redo_write": c.sequence.get(), "redo_byte": c.position.get(), "complete_write": c.durable.get()
                    }),
                )?,
                Err(Bad::Zero | Bad::Short) => self.say(&file, format!("slot {slot}: not written yet"))?,
                Err(bad) => self.bad(&file, slot * BLOCK as u64, bad, format!("slot {slot}: {bad}"))?,
            }
        }
        let ring = match replay::scan(self.storage, core, generation) {
            Ok(ring) => ring,
            Err(ReplayError::Disk(e)) => return Err(e.into()),
            Err(ReplayError::Unknown { .. }) if self.newer > newer => return Ok(()), // a slot, which was told
            Err(ReplayError::Unknown { at, what, .. }) => return self.newer(&file, at, what),
        };
        if ring.is_closed() {
            return self.say(&file, "closed: everything in it was replayed");
        }
        let (mut writes, mut records) = (0, 0);
        let (mut sequence, mut ahead) = (ring.first, ReadAhead::default());
        loop {
            let write = match ring.read(self.storage, &mut ahead, sequence) {
                Ok(write) => write,
                Err(ReplayError::Disk(e)) => return Err(e.into()),
                Err(ReplayError::Unknown { at, what, .. }) => return self.newer(&file, at, what),
            };
            let what = match (write.lost_copy, write.is_by_copy) {
                (true, _) => Some(format!("the copy of the facts of write {sequence} is damaged; the write has them")),
                (_, true) => Some(format!("write {sequence} is damaged; its copy has all of its facts")),
                (false, false) => None,
            };
            match what {
                // A crash may have torn it.
                Some(what) if sequence > ring.promised => self.say(&file, what)?,
                Some(what) => self.damage(&file, write.at.unwrap_or(0), what)?,
                None => {}
            }
            if write.action == WriteAction::Apply {
                writes += 1;
                records += write.records.len();
                for record in &write.records {
                    self.truncations.see(record);
                    self.redo.see(record);
                    if record.kind == RecordKind::TopicCreate {
                        self.created.extend(TopicMeta::decode(&record.payload).map(|meta| meta.info.name));
                    }
                }
                if self.options.records {
                    self.records(&file, &write)?;
                }
            }
            let at = write.at.unwrap_or(0);
            let bad = write.bad.map_or(String::new(), |b| b.to_string());
            match write.action {
                WriteAction::End => break,
                WriteAction::Truncate => {
                    self.say(&file, format!("write {sequence} at byte {at} is torn ({bad}): the next startup truncates it"))?;
                    break;
                }
                WriteAction::Apply => sequence += 1,
                WriteAction::DamageOwn | WriteAction::DamageRepeated => {
                    self.damage(&file, at, format!("write {sequence} was complete once: {bad}"))?;
                    for e in &write.directory {
                        let (id, end) = (TopicId(e.topic_id), crate::base::Position::from(e.end));
                        let what = format!("  it touched topic {id} partition {}, up to {}", e.partition, place(end));
                        let values = json!({ "topic_id": id.to_string(), "partition": e.partition.get(), "end": position(end) });
                        self.tell(&file, what, values)?;
                    }
                    sequence += 1;
                }
                WriteAction::DamageUnnamed => {
                    let next = ring.after_unnamed(sequence);
                    self.damage(&file, at, format!("writes {sequence} to {} were complete once; nothing names them", next - 1))?;
                    sequence = next;
                }
            }
        }
        let values = json!({ "writes": writes, "records": records, "bytes": len });
        self.tell(&file, format!("{writes} writes with {records} records to redo, {len} bytes long"), values)
    }

    fn records(&mut self, file: &FileId, write: &replay::Write) -> Result<(), InspectError> {
        let values = json!({ "write": write.sequence, "byte": write.at, "records": write.records.len() });
        self.tell(file, format!("write {} at byte {}", write.sequence, write.at.unwrap_or(0)), values)?;
        for r in &write.records {
            let partition = Some(r.header.partition.get()).filter(|p| *p != WHOLE_TOPIC);
            let of = partition.map_or(String::new(), |p| format!(" partition {p}"));
            let id = TopicId(r.header.topic_id);
            let what = match r.kind {
                RecordKind::Batch | RecordKind::DirectBatch => partition::batch_line(&r.payload, id, r.header.partition.get()),
                RecordKind::Cursor | RecordKind::Finished | RecordKind::ChannelDelete => partition::cursor_line(&r.payload),
                RecordKind::TopicCreate => TopicMeta::decode(&r.payload).map_or(String::new(), |m| m.info.name.to_string()),
                RecordKind::Truncate
                | RecordKind::Restart
                | RecordKind::Start
                | RecordKind::CollectStart
                | RecordKind::Committed => partition::place_line(&r.payload),
                RecordKind::Epoch => partition::epoch_line(&r.payload),
                RecordKind::LossAccepted => "an operator accepted that channels are lost".into(),
                RecordKind::ChannelsLost => "the leader says that channels may be lost".into(),
                RecordKind::Producers => format!("{} producers", Producer::decode_all(&r.payload).map_or(0, |list| list.len())),
                RecordKind::Doubt if r.payload.iter().all(|b| *b == 0) => "no longer".to_owned(),
                RecordKind::Doubt | RecordKind::TopicDelete | RecordKind::PartitionDelete => String::new(),
            };
            let (kind, sequence) = (record_words(r.kind), r.header.sequence.get());
            let values =
                json!({ "record": kind, "topic_id": id.to_string(), "partition": partition, "sequence": sequence, "what": what });
            self.tell(file, format!("  {kind}, topic {id}{of}, sequence {sequence}: {what}"), values)?;
        }
        Ok(())
    }

    fn topics(&mut self, journals: u16) -> Result<(), InspectError> {
        let found = self.storage.journals()?;
        for core in (0..journals).filter(|core| !found.contains(core)) {
            self.damage(&FileId::Journal(core), 0, "node.meta names this journal, and the file is missing")?;
        }
        for name in self.storage.topics()? {
            if self.options.topic.as_ref().is_none_or(|t| *t == *name) {
                self.topic(&name)?;
            }
        }
        Ok(())
    }

    fn topic(&mut self, name: &TopicName) -> Result<(), InspectError> {
        let both = topics::read_both(self.storage, name)?;
        let file = |copy: usize| FileId::Topic(dir(name, TopicId::default(), PartitionId(0)), copy as u8);
        let whole: Vec<&TopicMeta> = both.iter().flatten().collect();
        if both.iter().all(|found| *found == Err(Bad::Zero)) && self.storage.partitions(name)?.is_empty() {
            return self.say(&file(0), "not written yet");
        }
        for (copy, found) in both.iter().enumerate() {
            match found {
                Ok(m) if m.info.name != *name => self.damage(&file(copy), 44, format!("the file is of topic {}", m.info.name))?,
                Ok(m) if *m != *whole[0] => self.damage(&file(copy), 0, "the file differs from the other copy")?,
                Ok(_) => {}
                // A kill came between the files: the journal still has the topic.
                Err(Bad::Zero) if self.created.contains(name) => self.say(&file(copy), "not written yet")?,
                Err(Bad::Zero) => self.damage(&file(copy), 0, "it is missing, or zeros")?,
                Err(bad) => self.bad(&file(copy), 0, *bad, bad)?,
            }
        }
        let Some(info) = whole.first().map(|m| m.info.clone()).filter(|info| info.name == *name) else { return Ok(()) };
        let values = json!({ "topic": name.to_string(), "topic_id": info.id.to_string(), "partitions": info.partitions });
        self.tell(&file(0), format!("topic {} with {} partitions", info.id, info.partitions), values)?;
        for partition in self.storage.partitions(name)? {
            if self.options.partition.is_none_or(|p| p == partition.0) {
                let dir: Arc<PartitionDir> = dir(name, info.id, partition);
                self.partition(&dir)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
