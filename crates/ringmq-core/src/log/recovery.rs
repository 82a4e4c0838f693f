//! Recovery: from any state that a crash leaves on the data path to partitions whose files are whole and synced, and empty journals
//! under a new generation. Blocking, before any executor runs; pure except for the given [`Storage`].
//!
//! ```text
//! node.meta -> scan every journal that is found (1) -> topics (2) -> open each partition (3)
//!   -> redo the journals' writes in order (4) -> finish each partition: sync, snapshot (5)
//!   -> raise the generation in node.meta: from here on the old journals are closed (6) -> new checkpoint slots (7)
//!   -> node.meta says that all journals are begun: from here on a missing one is a loss (8)
//! ```
//! A crash anywhere before (6) does not change the work of the next recovery: redo writes the same bytes to the same places, and a
//! snapshot names the last record that it contains. After (6) nothing in the journals is needed any more.
//!
//! Each structure's decision table stands with the code that asks it: journals in [`crate::journal::replay`], missing ones in
//! [`journals`], node.meta in [`node`], topics in [`topics`], snapshots in [`snapshots`], commit logs in [`partition`], file headers in
//! [`headers`], batches in [`scan`]. Recovery halts only where continuing could lose or invent data: at files of a newer version, at a
//! missing journal that may be found again, and when the disk refuses a write. Damage is reported and stepped over.
//!
//! A full disk: redo writes into space that was allocated before the batches were admitted, node.meta and the journals are rewritten in
//! place, a snapshot that must grow takes the space that its own partition had allocated ahead, and node.meta keeps 4 MiB that recovery
//! may use up. If that is not enough, recovery ends in [`RecoverError::NoSpace`]; nothing is lost then, since the journals are not
//! closed.

pub mod channels;
mod departed;
mod epochs;
mod files;
pub mod headers;
pub mod journals;
pub mod node;
pub mod partition;
#[cfg(test)]
mod producer_tests;
mod producers;
mod records;
mod redo;
pub mod report;
pub mod scan;
pub mod snapshots;
#[cfg(test)]
mod tests;
pub mod topics;
pub mod truncations;

use super::producers::ProducerLimits;
use super::state::RecoveredPartition;
use crate::base::{DiskError, Epoch, FileId, IdMap, PartitionId, Position, Rng, TopicId, TopicRef};
use crate::format::cursor::CursorImage;
use crate::format::journal::{DirectoryEntry, RING_START, RecordKind, WHOLE_TOPIC};
use crate::format::meta::{NodeMeta, TopicMeta};
use crate::format::storage::Storage;
use crate::format::{journal::JournalIdentity, snapshot::Doubt};
use crate::journal::replay::{self, ReadAhead, ReplayError, Ring, Slots, Write, WriteAction};
use departed::Departed;
use partition::{Context, Partition};
pub use report::{Finding, Report, Severity};
use std::collections::BTreeSet;
use truncations::Truncations;

#[derive(Clone, Copy, Debug)]
pub struct RecoverOptions {
    /// Number of cores, for which journals are made. Journals of other cores are replayed and removed.
    pub cores: u16,
    pub journal_bytes: u64,
    /// A segment is not made longer by recovery where it can begin a new one.
    pub segment_bytes: u64,
    pub now_unix_ns: i64,
    pub producers: ProducerLimits,
    /// Seed of new random ids.
    pub seed: u64,
    /// The generation for which [`RecoverError::LostJournals`] and [`RecoverError::LostNode`] are no error; 0: none.
    pub accept_lost_journal: u64,
    /// True for a node of a cluster: the epochs of its batches are composed with its generation
    /// ([`static_epoch`](crate::seam::membership::static_epoch)), or are other leaders', so the generation simply counts startups. On a
    /// stand-alone node it rises above all epochs found, since it is the epoch of this startup's batches.
    pub is_clustered: bool,
}

impl Recovered {
    /// Whether this is the first startup of the data path: there was no node.meta and no journal, whose generations would be lower.
    pub fn is_first_startup(&self) -> bool {
        self.generation == 1
    }
}

/// A journal is not made smaller: a turn's write must fit several times.
pub const JOURNAL_BYTES_MIN: u64 = RING_START + 256 * 1024;

#[derive(Debug)]
pub struct Recovered {
    pub node_id: [u8; 16],
    /// Generation of this startup: durable, and above that of each earlier startup. On a stand-alone node also above every batch's
    /// epoch, since it is the epoch of this startup's batches.
    pub generation: u64,
    pub topics: Vec<TopicRef>,
    /// Every partition of every topic, also those that have no file yet.
    pub partitions: Vec<RecoveredPartition>,
    /// Identities of the journals, one for each core.
    pub journals: Vec<JournalIdentity>,
    pub report: Report,
}

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{0}; the data path is unchanged, except for steps that the next startup repeats")]
    Disk(DiskError),
    #[error("{file}: the disk is full and recovery needs space; free some space on the data path and start again")]
    NoSpace { file: FileId },
    #[error(
        "{file} at byte {at}: written in a format that this build does not know; start the version that wrote it, or a newer one"
    )]
    Unknown { file: FileId, at: u64 },
    #[error(
        "{missing}. The node has written to it since its last startup, and the last acknowledged messages may exist nowhere else: \
         messages, finished messages and channels of {held}, and topics that were just created or deleted. Nothing was \
         changed. Put the file back and start again. If it is gone for good, start once with \
         --accept-lost-journal={generation}: these partitions then go on without the lost data, are reported as damaged, and stay marked \
         as suspect"
    )]
    LostJournals { missing: String, held: String, generation: u64 },
    #[error(
        "node.meta.0 and node.meta.1 are damaged or missing, beside {journals} journals and {topics} topics: the node's id is lost, and \
         whether a journal is missing too cannot be known. Nothing was changed. Put one of the two files back and start \
         again. If both are gone for good, start once with --accept-lost-journal={generation}: the node then goes on under a \
         new id, with the journals and topics that are there, and the content of a missing journal is lost without a report"
    )]
    LostNode { journals: usize, topics: usize, generation: u64 },
}

impl From<DiskError> for RecoverError {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::NoSpace { file } => RecoverError::NoSpace { file },
            other => RecoverError::Disk(other),
        }
    }
}

impl From<ReplayError> for RecoverError {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Disk(e) => e.into(),
            ReplayError::Unknown { file, at, .. } => RecoverError::Unknown { file, at },
        }
    }
}

fn unknown(file: FileId, at: u64) -> RecoverError {
    RecoverError::Unknown { file, at }
}

/// Brings the data path into a state from which the engine can go on. Run again after an error: it begins from scratch.
pub fn recover(storage: &mut dyn Storage, options: &RecoverOptions) -> Result<Recovered, RecoverError> {
    let mut report = Report::default();
    let mut rng = Rng::new(options.seed);
    let found_journals = storage.journals()?;
    let in_use = !found_journals.is_empty() || !storage.topics()?.is_empty();
    let node = node::read(storage, in_use, &mut rng, &mut report)?;
    let mut rings = Vec::new();
    for &core in &found_journals {
        let ring = replay::scan(storage, core, node.meta.generation)?;
        note_ring(&ring, &mut report);
        rings.push(ring);
    }
    let known = rings.iter().map(|r| r.generation).chain([node.meta.generation]).max().unwrap_or(0);
    if node.is_lost {
        if options.accept_lost_journal != known.max(1) {
            return Err(node::refuse(storage, known.max(1))?);
        }
        let what = "both files are bad, and the loss is accepted: the node gets a new id and a generation above all known ones";
        report.note(Severity::Damage, &FileId::Node(0), None, what);
    }
    let mut lost = journals::find_lost(&node.meta, &rings);
    if !lost.is_empty() && options.accept_lost_journal != node.meta.generation {
        return Err(journals::refuse(storage, &node.meta, &lost)?);
    }
    lost.iter_mut().for_each(|l| l.why.push_str(", and its loss is accepted: data that only it held is lost"));
    lost.extend(journals::find_truncated(&rings));
    for ring in rings.iter().filter(|r| !r.is_closed()) {
        journals::settle(storage, ring)?;
    }
    // Only a node.meta that was damaged lets journals of two generations be alive: the older one happened before.
    rings.sort_by_key(|r| (r.generation, r.core));
    let floor = known + if node.is_lost { node::GENERATION_LEAP } else { 1 };
    let label = format!("{floor}-{}", options.now_unix_ns);

    let Journaled { topics: journaled, departed, truncations } = look_through(storage, &rings)?;
    let topics = topics::gather(storage, &journaled, &label, options.now_unix_ns, &mut report)?;
    for (id, partition) in departed.gone() {
        if let Some(topic) = topics.iter().find(|t| t.id == id) {
            topics::remove_partition(storage, &topics::dir(&topic.name, id, PartitionId(partition)))?;
        }
    }
    let mut cx = Context {
        storage,
        report: &mut report,
        segment_bytes: options.segment_bytes,
        now_unix_ns: options.now_unix_ns,
        label: &label,
        generation: floor,
        sequence_floor: floor << 32,
        producers: options.producers,
    };
    let mut partitions = Partitions::open(&mut cx, &topics, &truncations, departed)?;
    for ring in &rings {
        partitions.redo_ring(&mut cx, ring, &journaled)?;
    }
    // Where node.meta is lost, the journals that are there tell how many there were.
    let cores = if node.meta.journals > 0 { node.meta.journals } else { rings.iter().map(|r| r.core + 1).max().unwrap_or(0) };
    partitions.lose_journals(&mut cx, &lost, cores);
    // Before any step looks behind the journal: findings there count where something is missing.
    partitions.all.iter_mut().for_each(|p| p.report_unfounded(&mut cx));
    partitions.complete_firsts(&topics, options.is_clustered);
    if options.is_clustered {
        partitions.remove_unused(&mut cx)?;
    }
    let mut partitions = partitions.finish(&mut cx)?;

    let epochs = match options.is_clustered {
        true => 0,
        false => partitions.iter().map(|p| p.epoch.0.saturating_add(1)).max().unwrap_or(0),
    };
    let (node_id, generation) = (node.meta.node_id, floor.max(epochs));
    partitions.iter_mut().for_each(|p| settle(p, options, generation));
    let mut meta = NodeMeta { node_id, generation, journals: 0, ..node.meta };
    // Both files each time: when one rots, the other has the same content. No journal is named until all are begun: the journals that a
    // crash leaves in between are empty.
    write_both(storage, &mut meta)?;
    let journals = journals::begin(storage, options, &rings, generation, &mut rng)?;
    meta.journals = options.cores;
    write_both(storage, &mut meta)?;
    node::reserve(storage, &mut report)?;
    Ok(Recovered { node_id, generation, topics, partitions, journals, report })
}

/// The file that was written last is the last to be written over.
fn write_both(storage: &mut dyn Storage, meta: &mut NodeMeta) -> Result<(), RecoverError> {
    for _ in 0..2 {
        meta.sequence += 1;
        node::write(storage, meta)?;
    }
    Ok(())
}

/// Whether a partition is one replica of several follows from the node, since its own word may be lost with a snapshot.
fn settle(p: &mut RecoveredPartition, options: &RecoverOptions, generation: u64) {
    if !options.is_clustered {
        // Stand-alone: the durable end is the committed end.
        (p.promised, p.committed) = (Epoch(0), p.end);
    } else {
        let is_of_peers = p.epoch.0 > generation;
        if p.promised == Epoch(0) && (is_of_peers || p.damage.doubt() == Doubt::Lost) {
            // Its own word is lost, or may be: a store's epochs are no higher than the generation. How far it is committed is not known.
            p.committed = p.start;
        }
        if is_of_peers {
            // A replica that stored a batch had promised to follow its epoch.
            p.promised = p.promised.max(p.epoch);
        }
    }
}

fn note_ring(ring: &Ring, report: &mut Report) {
    let file = FileId::Journal(ring.core);
    if ring.is_closed() {
        report.journals_closed += 1;
    } else {
        report.journals_replayed += 1;
    }
    if !ring.is_closed() && !ring.is_truncated() && ring.named_len > 0 && ring.named_len != ring.file_len {
        let what = format!("the file was {} bytes long, and is {}: nothing needed is lost", ring.named_len, ring.file_len);
        report.note(Severity::Repaired, &file, Some(ring.file_len), what);
    }
    match ring.slots {
        Slots::OneBad => report.note(Severity::Repaired, &file, Some(0), "one checkpoint slot is damaged"),
        Slots::BothBad => {
            report.note(Severity::Damage, &file, Some(0), "both checkpoint slots are damaged: the ring was searched for writes")
        }
        Slots::Blank | Slots::Hold | Slots::Unknown => {}
    }
}

/// Walks the writes of a ring in order. `each` is given every write, the last one included.
fn walk(
    storage: &mut dyn Storage,
    ring: &Ring,
    mut each: impl FnMut(&mut dyn Storage, Write) -> Result<(), RecoverError>,
) -> Result<(), RecoverError> {
    if ring.is_closed() {
        return Ok(());
    }
    let (mut sequence, mut ahead) = (ring.first, ReadAhead::default());
    loop {
        let write = ring.read(storage, &mut ahead, sequence)?;
        let action = write.action;
        each(storage, write)?;
        match action {
            WriteAction::End | WriteAction::Truncate => return Ok(()),
            WriteAction::DamageUnnamed => sequence = ring.after_unnamed(sequence),
            WriteAction::Apply | WriteAction::DamageOwn | WriteAction::DamageRepeated => sequence += 1,
        }
    }
}

/// Facts of the journals that have to be known before anything is redone.
#[derive(Default)]
struct Journaled {
    /// A partition's records may stand in another core's journal than its topic's creation.
    topics: topics::JournaledTopics,
    departed: Departed,
    /// Truncations. Bytes that one removes must not be redone over later bytes.
    truncations: Truncations,
}

fn look_through(storage: &mut dyn Storage, rings: &[Ring]) -> Result<Journaled, RecoverError> {
    let mut found = Journaled::default();
    let Journaled { topics: journaled, departed, truncations } = &mut found;
    for ring in rings {
        walk(storage, ring, |_, write| {
            for record in write.records.iter().chain(&write.kept) {
                match record.kind {
                    RecordKind::TopicCreate => {
                        journaled.create(TopicMeta::decode(&record.payload).expect("verified when it was read"));
                    }
                    RecordKind::TopicDelete => {
                        journaled.deleted.insert(TopicId(record.header.topic_id));
                    }
                    _ if departed.see(record) => {
                        truncations.forget(TopicId(record.header.topic_id), record.header.partition.get())
                    }
                    _ => truncations.see(record),
                }
            }
            Ok(())
        })?;
    }
    Ok(found)
}

/// All partitions of the node, found by their ids.
struct Partitions {
    all: Vec<Partition>,
    by_id: IdMap<(TopicId, u16), usize>,
    departed: Departed,
    /// Named by the journal, not there, and reported.
    unknown: BTreeSet<(TopicId, u16)>,
    /// Unnamed damage: every partition leaps over so many bytes.
    leap: u64,
    /// Partitions whose journal is gone.
    orphaned: BTreeSet<usize>,
}

impl Partitions {
    fn open(
        cx: &mut Context<'_>,
        topics: &[TopicRef],
        truncations: &Truncations,
        departed: Departed,
    ) -> Result<Partitions, RecoverError> {
        let mut all = Vec::new();
        let mut by_id = IdMap::default();
        for topic in topics {
            for partition in (0..topic.partitions).map(PartitionId) {
                by_id.insert((topic.id, partition.0), all.len());
                let dir = topics::dir(&topic.name, topic.id, partition);
                all.push(Partition::open(cx, topic, dir, truncations.of(topic.id, partition.0))?);
            }
            for extra in cx.storage.partitions(&topic.name)?.into_iter().filter(|p| p.0 >= topic.partitions) {
                let dir = topics::dir(&topic.name, topic.id, extra);
                if topics::is_blank(cx.storage, &dir)? {
                    // Folder of a deleted topic of this name with more partitions; nothing was written in it.
                    continue;
                }
                let file = FileId::Topic(dir, 0);
                cx.report.note(Severity::Damage, &file, None, format!("folder {extra} is not one of its partitions: not read"));
            }
        }
        Ok(Partitions { all, by_id, departed, unknown: BTreeSet::new(), leap: 0, orphaned: BTreeSet::new() })
    }

    fn redo_ring(&mut self, cx: &mut Context<'_>, ring: &Ring, journaled: &topics::JournaledTopics) -> Result<(), RecoverError> {
        let (report, segment_bytes, now_unix_ns) = (&mut *cx.report, cx.segment_bytes, cx.now_unix_ns);
        let (label, generation, sequence_floor, producers) = (cx.label, cx.generation, cx.sequence_floor, cx.producers);
        walk(cx.storage, ring, |storage, write| {
            let cx = &mut Context { storage, report, segment_bytes, now_unix_ns, label, generation, sequence_floor, producers };
            self.redo_write(cx, ring, &write, journaled)
        })
    }

    fn redo_write(
        &mut self,
        cx: &mut Context<'_>,
        ring: &Ring,
        write: &Write,
        journaled: &topics::JournaledTopics,
    ) -> Result<(), RecoverError> {
        let file = FileId::Journal(ring.core);
        let bad = write.bad.map_or(String::new(), |b| format!(": {b}"));
        cx.report.writes += (write.action == WriteAction::Apply) as u64;
        let is_explained = matches!(write.action, WriteAction::DamageOwn | WriteAction::DamageRepeated) && !write.lost_facts;
        for entry in write.directory.iter().filter(|_| is_explained) {
            if let Some(i) = self.named(entry) {
                self.all[i].records.explain_gap();
            }
        }
        if write.lost_copy {
            let what = format!("the copy of the facts of write {} is damaged; the write has them", write.sequence);
            cx.report.note(Severity::Repaired, &file, write.at, what);
        }
        if write.is_by_copy {
            let what = format!("write {} is damaged{bad}: its copy has all of its facts", write.sequence);
            cx.report.note(Severity::Mended, &file, write.at, what);
        }
        for record in &write.kept {
            if !self.departed.redo(record) {
                continue;
            }
            if let Some(&i) = self.by_id.get(&(TopicId(record.header.topic_id), record.header.partition.get())) {
                self.all[i].redo_kept(cx, record)?;
            }
        }
        for record in &write.records {
            cx.report.records += 1;
            if !self.departed.redo(record) {
                continue;
            }
            let id = (TopicId(record.header.topic_id), record.header.partition.get());
            match self.by_id.get(&id) {
                Some(&i) => self.all[i].redo(cx, record)?,
                None if id.1 == WHOLE_TOPIC || journaled.deleted.contains(&id.0) => {}
                None if !self.unknown.insert(id) => {}
                None => {
                    let what = format!("records of topic {} partition {}, which does not exist, from here on", id.0, id.1);
                    cx.report.note(Severity::Damage, &file, write.at, what);
                }
            }
        }
        match write.action {
            WriteAction::Apply | WriteAction::End => {}
            WriteAction::Truncate => {
                let and_more =
                    if ring.is_followed(write.sequence) { ", with whole writes that were issued beside it" } else { "" };
                let what = format!("write {} is torn and was never acknowledged: truncated{and_more}{bad}", write.sequence);
                cx.report.note(Severity::Repaired, &file, write.at, what);
                for entry in &write.directory {
                    if let Some(i) = self.named(entry) {
                        // The truncated bytes may be acknowledged batches that have rotted: only a comparison with a replica can tell.
                        let damage = &mut self.all[i].damage;
                        damage.set_doubt(damage.doubt().max(Doubt::Torn));
                    }
                }
            }
            WriteAction::DamageOwn | WriteAction::DamageRepeated => {
                let what = format!("write {} is damaged{bad}", write.sequence);
                cx.report.note(Severity::Damage, &file, write.at, what);
                self.reach(cx, &write.directory, write.lost_facts)?;
            }
            WriteAction::DamageUnnamed => {
                let next = ring.after_unnamed(write.sequence);
                let what =
                    format!("writes {} to {} are damaged and no later write names their partitions", write.sequence, next - 1);
                cx.report.note(Severity::Damage, &file, write.at, what);
                self.leap = self.leap.max(ring.file_len);
                for p in &mut self.all {
                    p.suspect();
                    p.damage.mark_channels_lost(cx.generation);
                }
            }
        }
        Ok(())
    }

    /// The partition that a write's directory names, if that is the one whose files are there.
    fn named(&self, entry: &DirectoryEntry) -> Option<usize> {
        let id = (TopicId(entry.topic_id), entry.partition.get());
        self.by_id.get(&id).copied().filter(|_| self.departed.counts(id))
    }

    /// Continues the victims of a damaged write behind the place where it left them.
    fn reach(&mut self, cx: &mut Context<'_>, directory: &[DirectoryEntry], lost_facts: bool) -> Result<(), RecoverError> {
        for entry in directory {
            if let Some(i) = self.named(entry) {
                self.all[i].touched = true;
                self.all[i].suspect();
                if lost_facts {
                    self.all[i].damage.mark_channels_lost(cx.generation);
                }
                self.all[i].reach(cx, Position::from(entry.end), "a journal write is damaged")?;
            }
        }
        Ok(())
    }

    /// Marks the partitions whose records were in a journal that is missing or truncated. `cores`: number of the node's cores when it
    /// wrote the journal.
    fn lose_journals(&mut self, cx: &mut Context<'_>, lost: &[journals::Lost], cores: u16) {
        for lost in lost {
            let file = FileId::Journal(lost.core);
            cx.report.note(Severity::Damage, &file, None, lost.why.clone());
            for (i, p) in self.all.iter_mut().enumerate() {
                if p.topic.core_of(p.dir.partition, cores).0 == lost.core {
                    let what = format!(
                        "the partition's journal {} is gone, or a part of it: the newest messages, channels and finished messages may be \
                         lost",
                        lost.core
                    );
                    p.lose_channels(cx, FileId::Snapshot(p.dir.clone(), 0), what);
                    p.touched = true;
                    self.orphaned.insert(i);
                }
            }
        }
    }

    /// A topic's first channel begins at the oldest message in every partition. Where a crash, or damage, has left none of
    /// it, it is made now, as its creation would have. In a cluster a partition of which nothing is here is others'.
    fn complete_firsts(&mut self, topics: &[TopicRef], is_clustered: bool) {
        for topic in topics {
            let firsts = self.by_id.get(&(topic.id, 0)).map_or(&[][..], |&zero| self.all[zero].channels.list());
            let firsts: Vec<CursorImage> = firsts.iter().filter(|c| c.first).cloned().collect();
            for &i in (1..topic.partitions).filter_map(|p| self.by_id.get(&(topic.id, p))) {
                if is_clustered && self.all[i].is_blank() {
                    continue;
                }
                firsts.iter().for_each(|first| self.all[i].complete_first(first));
            }
        }
    }

    /// Removes the space for snapshots of a partition that never had a record here and may never be used: other nodes have the
    /// partition.
    fn remove_unused(&self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        let is_unused =
            |i: usize, p: &Partition| p.is_blank() && p.files.ahead().is_empty() && self.leap == 0 && !self.orphaned.contains(&i);
        for (_, p) in self.all.iter().enumerate().filter(|(i, p)| is_unused(*i, p)) {
            topics::remove_blank(cx.storage, &p.dir)?;
        }
        Ok(())
    }

    fn finish(self, cx: &mut Context<'_>) -> Result<Vec<RecoveredPartition>, RecoverError> {
        let mut recovered = Vec::with_capacity(self.all.len());
        for (i, mut partition) in self.all.into_iter().enumerate() {
            if self.orphaned.contains(&i) {
                partition.advance(cx)?;
                partition.leap(
                    cx,
                    0,
                    "the journal of these partitions is gone; the message ids that it may have used are skipped",
                )?;
            }
            if self.leap > 0 {
                partition.advance(cx)?;
                partition.leap(
                    cx,
                    self.leap,
                    "the journal lost writes of unknown partitions; the message ids that they may have used are \
                    skipped",
                )?;
            }
            recovered.push(partition.finish(cx)?);
        }
        Ok(recovered)
    }
}
