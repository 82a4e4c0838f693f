//! `ringmq inspect --compare`: whether the replicas of each partition hold the same bytes, from the data paths of nodes
//! that are stopped.
//!
//! Partitions belong together by their topic's id. Data up to the lowest committed end must be the same in all, batch headers included,
//! however each of them split its segments. Data behind it may differ: it was acknowledged to no client. Cursors are shown side by side
//! and not judged: a follower is behind by an interval.
//!
//! The newest cluster file in the data paths names the replicas of each partition. In a cluster with an etcd no data path has them: a
//! partition is compared where it is found, and a partition in only one data path is named and counted. Data paths of no cluster should
//! all have all partitions. A missing replica, a part that could not be compared, and an unreadable copy count as differences.
//!
//! Reads each log once, a piece of every replica at a time; a difference is looked into with the commit log.

use super::files::Files;
use super::partition::show;
use super::report::Report;
use super::{InspectError, InspectOptions, NEWER, Verdict, check_names, data_path_files, under_warning};
use crate::base::NodeId;
use crate::base::{FileId, IO_BYTES_MAX, PartitionDir, PartitionId, Position, TopicId, TopicName};
use crate::coordinator::copy;
use crate::coordinator::file::ClusterFile;
use crate::coordinator::memory::Memory;
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader};
use crate::format::cursor::CursorImage;
use crate::format::files::Bad;
use crate::format::meta::TopicMeta;
use crate::format::snapshot::Snapshot;
use crate::format::storage::{Storage, read_range};
use crate::journal::replay::{self, ReadAhead, ReplayError, WriteAction};
use crate::log::recovery::node::{newest, read_both};
use crate::log::recovery::scan::{commit_index, commit_record_at, segment_at};
use crate::log::recovery::snapshots::Slots;
use crate::log::recovery::topics::{self, dir};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Data path that is compared.
pub struct ComparedPath<'a> {
    /// Path as the operator wrote it.
    pub label: String,
    pub storage: &'a mut dyn Storage,
}

/// Compares data paths, two at least.
pub fn run(paths: &[String], options: &InspectOptions, out: &mut dyn Write) -> Result<Verdict, InspectError> {
    let (mut cluster, mut unread): (Option<ClusterFile>, _) = (None, vec![]);
    let mut etcd: BTreeMap<[u8; 16], String> = BTreeMap::new();
    for path in paths {
        match copy::read(Path::new(path)) {
            Ok(in_force) => {
                unread.extend(in_force.damage.iter().map(|damage| format!("{path}: the copy of the cluster file: {damage}")));
                cluster = std::cmp::max_by_key(cluster, in_force.file, |file| file.as_ref().map(|f| f.version));
            }
            Err(error) => unread.push(format!("{path}: the copies of the cluster file cannot be read: {error}")),
        }
        match Memory::read(Path::new(path)) {
            Ok(memory) => etcd.extend(memory.map(|memory| (memory.id, memory.cluster))),
            Err(error) => unread.push(format!("{path}: {error}")),
        }
    }
    if etcd.len() > 1 {
        let ids: Vec<String> = etcd.iter().map(|(id, name)| format!("{name} ({})", NodeId(*id))).collect();
        unread.push(format!("the data paths are of several clusters: {}", ids.join(", ")));
    }
    let placement = match (&cluster, etcd.first_key_value()) {
        (Some(file), _) => Placement::File(file),
        (None, Some((_, name))) => Placement::WhereFound(name),
        (None, None) => Placement::Everywhere,
    };
    let mut files = paths.iter().map(|path| data_path_files(Path::new(path))).collect::<Result<Vec<Files>, _>>()?;
    let mut named: Vec<(String, &mut Files)> = paths.iter().cloned().zip(&mut files).collect();
    check_names(&mut named, options)?;
    let each = paths.iter().zip(&mut files);
    let sides = each.map(|(path, files)| ComparedPath { label: path.clone(), storage: files as &mut dyn Storage }).collect();
    let data_paths: Vec<&Path> = paths.iter().map(Path::new).collect();
    let mut report = Report::new(out, options.format);
    under_warning(&data_paths, &mut report, |report| compare_all(sides, placement, &unread, options, report))
}

/// Source that says which data path should hold which partition.
#[derive(Clone, Copy)]
pub enum Placement<'a> {
    File(&'a ClusterFile),
    /// Every data path should hold every partition.
    Everywhere,
    /// The etcd of the cluster of this name says so, which is not asked: none is missing.
    WhereFound(&'a str),
}

/// Topic, its id, number of the partition.
type ComparedPartition = (TopicName, TopicId, u16);

/// The same over any storage.
pub fn compare(
    sides: Vec<ComparedPath<'_>>,
    placement: Placement<'_>,
    options: &InspectOptions,
    out: &mut dyn Write,
) -> Result<Verdict, InspectError> {
    compare_all(sides, placement, &[], options, &mut Report::new(out, options.format))
}

/// Compares all partitions. `unread`: errors of copies of the cluster file. Each is a difference.
fn compare_all(
    sides: Vec<ComparedPath<'_>>,
    placement: Placement<'_>,
    unread: &[String],
    options: &InspectOptions,
    report: &mut Report,
) -> Result<Verdict, InspectError> {
    let mut comparison = Comparison { sides, report, differences: unread.len() as u64, newer: 0, unread: BTreeSet::new() };
    for what in unread {
        comparison.report.note("difference", what, Value::Null)?;
    }
    let mut found: BTreeMap<ComparedPartition, Vec<(usize, Replica)>> = BTreeMap::new();
    let mut nodes = vec![];
    for side in 0..comparison.sides.len() {
        nodes.push(comparison.stopped_well(side)?);
        for replica in comparison.replicas(side, options)? {
            let key = (replica.dir.topic.clone(), replica.dir.topic_id, replica.dir.partition.0);
            found.entry(key).or_default().push((side, replica));
        }
    }
    let expected = match placement {
        Placement::File(file) => {
            for (side, node) in comparison.sides.iter().zip(&nodes) {
                if node.is_none_or(|id| file.node(id).is_none()) {
                    comparison.differences += 1;
                    let label = &side.label;
                    let what = format!("{label}: the data path's node is unknown, or the cluster file does not name it");
                    comparison.report.note("difference", what, json!({ "data_path": label }))?;
                }
            }
            by_file(file, &nodes, options)
        }
        Placement::WhereFound(name) => {
            let what = format!(
                "the data paths are of cluster {name}, whose etcd says which node has which partition: the replicas in these data paths \
                 are compared; ringmq cluster verify says which replicas are missing"
            );
            comparison.report.note("found", what, json!({ "cluster": name }))?;
            BTreeMap::new()
        }
        Placement::Everywhere => found.keys().map(|key| (key.clone(), (0..nodes.len()).collect())).collect(),
    };
    let keys: BTreeSet<&ComparedPartition> = found.keys().chain(expected.keys()).collect();
    let (mut compared, mut single) = (0, 0);
    for key in keys {
        let replicas = found.get(key).map_or(&[][..], Vec::as_slice);
        let is_missing =
            |side: &&usize| !replicas.iter().any(|(s, _)| s == *side) && !comparison.unread.contains(&(**side, key.0.clone()));
        let missing: Vec<usize> = expected.get(key).iter().flat_map(|sides| sides.iter().filter(is_missing)).copied().collect();
        comparison.partition(key, replicas, &missing)?;
        compared += (replicas.len() > 1) as usize;
        single += (replicas.len() == 1) as usize;
    }
    if compared == 0 && comparison.newer == 0 {
        comparison.differences += 1;
        let what = "nothing was compared: no partition is in two of the data paths";
        comparison.report.note("difference", what, Value::Null)?;
    }
    let (differences, newer) = (comparison.differences, comparison.newer);
    let what = match (differences, newer) {
        (0, 0) if single > 0 => format!("identical: {compared} partitions; {single} more are in one data path only"),
        (0, 0) => format!("identical: {compared} partitions"),
        (n, 0) => format!("{n} differences"),
        (n, m) => format!("{n} differences in the readable part; {m} places {NEWER}"),
    };
    let verdict = Verdict::of(differences, newer);
    let values = json!({
        "verdict": verdict.word(), "partitions": compared, "in_one_data_path": single, "differences": differences, "newer": newer,
    });
    comparison.report.note("verdict", what, values)?;
    Ok(verdict)
}

/// Sides that should hold each partition, for partitions of which at least one side is a replica.
fn by_file(file: &ClusterFile, nodes: &[Option<NodeId>], options: &InspectOptions) -> BTreeMap<ComparedPartition, Vec<usize>> {
    let mut expected = BTreeMap::new();
    for topic in file.topics.iter().filter(|t| options.topic.as_ref().is_none_or(|name| *name == *t.info.name)) {
        for (number, partition) in (0u16..).zip(&topic.partitions) {
            let sides: Vec<usize> =
                (0..nodes.len()).filter(|side| nodes[*side].is_some_and(|n| partition.replicas.contains(&n))).collect();
            if !sides.is_empty() && options.partition.is_none_or(|asked| asked == number) {
                expected.insert((topic.info.name.clone(), topic.info.id, number), sides);
            }
        }
    }
    expected
}

/// Whether anything was written of the topic's partitions: a removal that a startup ended may leave empty folders of partitions.
fn is_any_written(storage: &mut dyn Storage, name: &TopicName) -> Result<bool, InspectError> {
    for partition in storage.partitions(name)? {
        if !topics::is_blank(storage, &dir(name, TopicId::default(), partition))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A partition on one side.
struct Replica {
    dir: Arc<PartitionDir>,
    /// `None`: nothing of it was ever durable in its own files.
    snapshot: Option<Snapshot>,
    /// First offsets of its segments.
    bases: Vec<i64>,
}

impl Replica {
    fn start(&self) -> Position {
        self.snapshot.as_ref().map_or(Position::START, |s| s.start)
    }

    /// Committed position that the replica knows and holds.
    fn committed(&self) -> Position {
        let least = |s: &Snapshot| std::cmp::min_by_key(s.committed, s.end, |p| p.offset);
        self.snapshot.as_ref().map_or(Position::START, least)
    }

    /// Start of the segment that has this offset, and of the next segment.
    fn segment(&self, offset: i64) -> Option<(i64, i64)> {
        let after = self.bases.partition_point(|base| *base <= offset);
        let base = *self.bases.get(after.checked_sub(1)?)?;
        Some((base, self.bases.get(after).copied().unwrap_or(i64::MAX)))
    }
}

struct Comparison<'a, 'b, 'c> {
    sides: Vec<ComparedPath<'a>>,
    report: &'b mut Report<'c>,
    differences: u64,
    /// Places that a newer version wrote.
    newer: u64,
    /// Topics of a side of which not every partition could be read: said where it was found.
    unread: BTreeSet<(usize, TopicName)>,
}

impl Comparison<'_, '_, '_> {
    /// Reports a data path whose journal has records that its files lack; these are not compared. Returns the node of the data path.
    fn stopped_well(&mut self, side: usize) -> Result<Option<NodeId>, InspectError> {
        let ComparedPath { label, storage } = &mut self.sides[side];
        let newest = newest(&read_both(*storage)?);
        let generation = newest.as_ref().map_or(0, |m| m.generation);
        for core in storage.journals()? {
            match records_to_redo(*storage, core, generation) {
                Ok(0) => {}
                Ok(n) => {
                    self.differences += 1;
                    let what = format!(
                        "{label}: {n} records stand in journal {core} alone and are not compared; start the node and stop it by SIGTERM"
                    );
                    self.report.note("difference", what, json!({ "data_path": label, "journal": core, "records": n }))?;
                }
                Err(ReplayError::Disk(e)) => return Err(e.into()),
                Err(ReplayError::Unknown { at, .. }) => {
                    self.newer += 1;
                    let what = format!("{label}: journal {core} at byte {at}: NEWER: {NEWER}");
                    self.report.note("newer", what, json!({ "data_path": label, "journal": core, "byte": at }))?;
                }
            }
        }
        Ok(newest.map(|m| NodeId(m.node_id)))
    }

    fn replicas(&mut self, side: usize, options: &InspectOptions) -> Result<Vec<Replica>, InspectError> {
        let mut replicas = Vec::new();
        let ComparedPath { label, storage } = &mut self.sides[side];
        for name in storage.topics()? {
            if options.topic.as_ref().is_some_and(|t| *t != *name) {
                continue;
            }
            let file = |copy: usize| FileId::Topic(dir(&name, TopicId::default(), PartitionId(0)), copy as u8);
            let both = topics::read_both(*storage, &name)?;
            if let Some((copy, bad)) = newer_version(&both) {
                self.newer += 1;
                let file = file(copy).to_string();
                let what = format!("{label}: {file}: NEWER: {bad}: {NEWER}");
                self.report.note("newer", what, json!({ "data_path": label, "file": file }))?;
                self.unread.insert((side, name));
                continue;
            }
            let [first, second] = both;
            let info = match first.or(second) {
                Ok(meta) => meta.info,
                Err(bad) => {
                    let file = file(0);
                    if is_any_written(*storage, &name)? {
                        self.differences += 1;
                        let what = format!("{label}: {file}: {bad}, so the topic is unknown");
                        self.report.note("difference", what, json!({ "data_path": label, "file": file.to_string() }))?;
                        self.unread.insert((side, name));
                    }
                    continue;
                }
            };
            for partition in storage.partitions(&name)? {
                if options.partition.is_some_and(|p| p != partition.0) {
                    continue;
                }
                let dir = dir(&name, info.id, partition);
                let slots = Slots::read(*storage, &dir)?;
                if let Some(file) = slots.newer {
                    self.newer += 1;
                    let what = format!("{label}: {file}: NEWER: {NEWER}");
                    self.report.note("newer", what, json!({ "data_path": label, "file": file.to_string() }))?;
                    self.unread.insert((side, name.clone()));
                    continue;
                }
                let bases = storage.segments(&dir)?;
                if bases.is_empty() && topics::is_blank(*storage, &dir)? {
                    // An empty folder, of a partition that was removed.
                    continue;
                }
                replicas.push(Replica { dir, snapshot: slots.newest, bases });
            }
        }
        Ok(replicas)
    }

    fn partition(
        &mut self,
        key: &ComparedPartition,
        replicas: &[(usize, Replica)],
        missing: &[usize],
    ) -> Result<(), InspectError> {
        let (topic, id, number) = key;
        let what = format!("topic {topic} ({id}) partition {number}");
        // Every line about the partition has these values.
        let of = |values: Value| {
            let mut of = json!({ "topic": topic.to_string(), "topic_id": id.to_string(), "partition": number });
            if let (Value::Object(of), Value::Object(values)) = (&mut of, values) {
                of.extend(values);
            }
            of
        };
        for side in missing {
            self.differences += 1;
            let label = &self.sides[*side].label;
            self.report.note("difference", format!("{what}: MISSING in {label}"), of(json!({ "data_path": label })))?;
        }
        let [_, _, ..] = replicas else {
            if let [(only, _)] = replicas {
                let label = &self.sides[*only].label;
                self.report.note("found", format!("{what}: only in {label}"), of(json!({ "data_path": label })))?;
            }
            return Ok(());
        };
        let longest = |p: &Position| p.offset;
        let from = replicas.iter().map(|(_, r)| r.start()).max_by_key(longest).unwrap_or(Position::START);
        let to = replicas.iter().map(|(_, r)| r.committed()).min_by_key(longest).unwrap_or(Position::START);
        let range = format!("from offset {} to {}", from.offset, to.offset);
        if from.offset >= to.offset {
            // nothing to compare is told where all ends are the same: nothing was published, or all of it was removed
            let is_different =
                |r: &Replica| r.committed().offset != from.offset || r.snapshot.is_none() != replicas[0].1.snapshot.is_none();
            let differs = replicas.iter().any(|(_, r)| is_different(r));
            self.differences += differs as u64;
            let kind = if differs { "difference" } else { "found" };
            let text = format!("{what}: no committed data is in all of them ({range})");
            self.report.note(kind, text, of(json!({ "from": from.offset, "to": to.offset })))?;
        } else {
            match self.first_difference(replicas, from.offset, to.offset)? {
                None => {
                    let (places, messages) = (replicas.len(), to.count - from.count);
                    let text = format!("{what}: identical in {places} data paths {range}, {messages} messages");
                    let values = json!({ "from": from.offset, "to": to.offset, "messages": messages });
                    self.report.note("found", text, of(values))?;
                }
                Some(at) => {
                    self.differences += 1;
                    let text = format!("{what}: DIFFERS at offset {at} ({range} was compared)");
                    self.report.note("difference", text, of(json!({ "from": from.offset, "to": to.offset, "at": at })))?;
                    self.look_into(replicas, at)?;
                }
            }
        }
        for (side, r) in replicas {
            let label = &self.sides[*side].label;
            match &r.snapshot {
                None => self.report.note("found", format!("  {label}: no snapshot"), of(json!({ "data_path": label })))?,
                Some(s) => {
                    let (start, committed, end) = (s.start.offset, s.committed.offset, s.end.offset);
                    let suspect = if s.doubt.is_suspect() { ", suspect" } else { "" };
                    let text = format!("  {label}: start {start}, committed {committed}, end {end}{suspect}");
                    let values = json!({ "data_path": label, "start": start, "committed": committed, "end": end });
                    self.report.note("found", text, of(values))?;
                }
            }
        }
        self.cursors(replicas)
    }

    /// The first offset in `from .. to` at which the replicas have not the same byte.
    fn first_difference(&mut self, replicas: &[(usize, Replica)], from: i64, to: i64) -> Result<Option<i64>, InspectError> {
        let mut at = from;
        while at < to {
            let mut piece_end = to.min(at + IO_BYTES_MAX as i64);
            for (_, r) in replicas {
                piece_end = piece_end.min(r.segment(at).map_or(at + 1, |(_, next)| next));
            }
            let len = (piece_end - at) as usize;
            let first = self.read(&replicas[0], at, len)?;
            let mut differs: Option<usize> = if first.len() < len { Some(first.len()) } else { None };
            for replica in &replicas[1..] {
                let other = self.read(replica, at, len)?;
                let same = first.iter().zip(&other).take_while(|(a, b)| a == b).count();
                if same < len {
                    differs = Some(differs.map_or(same, |d| d.min(same)));
                }
            }
            let Some(index) = differs else {
                at = piece_end;
                continue;
            };
            // The bytes in place of a lost batch's messages are no message.
            match self.lost_batch(replicas, at + index as i64)? {
                Some(end) => at = end,
                None => return Ok(Some(at + index as i64)),
            }
        }
        Ok(None)
    }

    /// Bytes of the log; short where the replica has no more in this segment.
    fn read(&mut self, (side, replica): &(usize, Replica), offset: i64, len: usize) -> Result<Vec<u8>, InspectError> {
        let Some((base, next)) = replica.segment(offset) else { return Ok(vec![]) };
        let len = len.min(next.saturating_sub(offset) as usize);
        let file = FileId::Segment(replica.dir.clone(), base);
        Ok(read_range(self.sides[*side].storage, &file, segment_at(base, offset), len)?)
    }

    /// The header of the batch that has this offset, by the replica's own index.
    fn header(&mut self, replica: &(usize, Replica), offset: i64) -> Result<Option<BatchHeader>, InspectError> {
        let Some((base, _)) = replica.1.segment(offset) else { return Ok(None) };
        let (storage, dir) = (&mut *self.sides[replica.0].storage, &replica.1.dir);
        let behind = commit_index(storage, dir, base, offset + 1)?;
        let Some(index) = behind.checked_sub(1) else { return Ok(None) };
        let Some(record) = commit_record_at(storage, dir, base, index)? else { return Ok(None) };
        let bytes = self.read(replica, record.offset.get(), BATCH_HEADER_LEN)?;
        let dir = &replica.1.dir;
        Ok(BatchHeader::parse(&bytes, dir.topic_id, dir.partition).ok())
    }

    /// End of a lost batch that all replicas have there; `at` is behind its header.
    fn lost_batch(&mut self, replicas: &[(usize, Replica)], at: i64) -> Result<Option<i64>, InspectError> {
        let Some(first) = self.header(&replicas[0], at)? else { return Ok(None) };
        let is_behind = at >= first.offset.get() + BATCH_HEADER_LEN as i64 && at < first.end().offset;
        if !first.is_lost() || !is_behind {
            return Ok(None);
        }
        for replica in &replicas[1..] {
            if self.header(replica, at)? != Some(first) {
                return Ok(None);
            }
        }
        Ok(Some(first.end().offset))
    }

    fn look_into(&mut self, replicas: &[(usize, Replica)], at: i64) -> Result<(), InspectError> {
        for replica in replicas {
            let batch = match self.header(replica, at)? {
                Some(h) => format!("in the batch {}", show(&h)),
                None => "in no batch that its index knows, or whose header holds".into(),
            };
            let place = match replica.1.segment(at) {
                Some((base, _)) => {
                    format!("{} byte {}", FileId::Segment(replica.1.dir.clone(), base), segment_at(base, at))
                }
                None => "no segment".into(),
            };
            let label = &self.sides[replica.0].label;
            self.report.note("found", format!("  {label}: {place}, {batch}"), json!({ "data_path": label }))?;
        }
        Ok(())
    }

    fn cursors(&mut self, replicas: &[(usize, Replica)]) -> Result<(), InspectError> {
        let channels = |r: &Replica| r.snapshot.iter().flat_map(|s| s.channels.clone()).collect::<Vec<CursorImage>>();
        let all: Vec<Vec<CursorImage>> = replicas.iter().map(|(_, r)| channels(r)).collect();
        let names: BTreeSet<_> = all.iter().flatten().map(|c| c.name.clone()).collect();
        for name in names {
            self.report.note("found", format!("  channel {name}"), json!({ "channel": name.to_string() }))?;
            for ((side, _), channels) in replicas.iter().zip(&all) {
                let shown = match channels.iter().find(|c| c.name == name) {
                    None => "not there".into(),
                    Some(c) => {
                        let paused = if c.paused { ", paused" } else { "" };
                        let (at, beyond) = (c.confirmed, c.intervals.len());
                        let (epoch, generation) = (c.epoch.number(), c.generation);
                        format!(
                            "confirmed {} messages up to offset {} and {beyond} intervals, epoch {epoch}, generation {generation}{paused}",
                            at.count, at.offset
                        )
                    }
                };
                let label = &self.sides[*side].label;
                let values = json!({ "data_path": label, "channel": name.to_string() });
                self.report.note("found", format!("    {label}: {shown}"), values)?;
            }
        }
        Ok(())
    }
}

fn newer_version(both: &[Result<TopicMeta, Bad>; 2]) -> Option<(usize, Bad)> {
    let mut bad = both.iter().enumerate().filter_map(|(copy, found)| Some((copy, *found.as_ref().err()?)));
    bad.find(|(_, bad)| matches!(bad, Bad::Version(_)))
}

fn records_to_redo(storage: &mut dyn Storage, core: u16, generation: u64) -> Result<usize, ReplayError> {
    let ring = replay::scan(storage, core, generation)?;
    if ring.is_closed() {
        return Ok(0);
    }
    let (mut records, mut sequence, mut ahead) = (0, ring.first, ReadAhead::default());
    loop {
        let write = ring.read(storage, &mut ahead, sequence)?;
        records += write.records.len();
        sequence = match write.action {
            WriteAction::End | WriteAction::Truncate => return Ok(records),
            // it held one at least
            WriteAction::DamageUnnamed => {
                records += 1;
                ring.after_unnamed(sequence)
            }
            WriteAction::DamageOwn | WriteAction::DamageRepeated => {
                records += 1;
                sequence + 1
            }
            WriteAction::Apply => sequence + 1,
        };
    }
}
