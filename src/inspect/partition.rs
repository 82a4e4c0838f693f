//! Inspects one partition: its snapshots, then every batch of every segment beside its commit record.

use super::report::{batch_words, place, position};
use super::{InspectError, View};
use crate::base::{BLOCK, Epoch, FileId, PartitionDir, PartitionId, Position, ProducerId, TopicId};
use crate::format::batch::BatchHeader;
use crate::format::cursor::CursorImage;
use crate::format::files::{Bad, COMMIT_MAGIC, FileHeader, RawPosition, SEGMENT_MAGIC};
use crate::format::segment_table::{SegmentTable, TABLE_AT};
use crate::format::snapshot::{SLOTS, Snapshot};
use crate::format::storage::read_range;
use crate::log::chain::Chain;
use crate::log::recovery::headers;
use crate::log::recovery::scan::{BatchFound, Batches, commit_at, commit_record, commit_record_at, commit_records, segment_at};
use serde_json::{Value, json};
use std::sync::Arc;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U32, U64};

impl View<'_, '_> {
    pub fn partition(&mut self, dir: &Arc<PartitionDir>) -> Result<(), InspectError> {
        let newer = self.newer;
        let mut newest = self.snapshots(dir)?;
        if self.newer > newer {
            return self.say(&FileId::Snapshot(dir.clone(), 0), "the partition is not checked, since the check needs this file");
        }
        self.lost_channels(dir, newest.as_ref())?;
        let mut bases = self.storage.segments(dir)?;
        let applied = newest.as_ref().map_or(0, |s| s.applied);
        let truncations = self.truncations.of(dir.topic_id, dir.partition.0);
        let lowest = truncations.behind(applied).min_by_key(|c| (!c.is_restart, c.to.offset)).copied();
        self.limit = lowest.map(|c| c.to.offset);
        if let Some(truncation) = lowest {
            let (file, verb) = (FileId::Snapshot(dir.clone(), 0), if truncation.is_restart { "drops" } else { "truncates" });
            let to = place(truncation.to);
            self.say(&file, format!("a record that no snapshot contains {verb} the log: the log goes on at {to}"))?;
            if truncation.is_restart {
                return Ok(());
            }
            newest.iter_mut().filter(|s| s.end.offset > truncation.to.offset).for_each(|s| s.end = truncation.to);
            bases.retain(|&base| truncation.is_done || base <= truncation.to.offset);
        }
        let redo = self.redo.of(dir.topic_id, dir.partition.0, applied);
        let mut before: Option<(Position, u32, bool)> = None;
        self.segments.clear();
        // Retention says so before it removes a segment.
        let start = self.redo.start_of(dir.topic_id, dir.partition.0, applied);
        let start = newest.as_ref().map(|s| s.start.offset.max(start.unwrap_or(0)));
        if let (Some(from), Some(&first)) = (start, bases.first())
            && first > from
        {
            let file = FileId::Segment(dir.clone(), from);
            self.damage(&file, segment_at(from, from), format!("segments are missing from offset {from} to {first}"))?;
        }
        for (i, &base) in bases.iter().enumerate() {
            let next = bases.get(i + 1).copied();
            before = self.segment(dir, (base, next), newest.as_ref(), redo, before)?;
        }
        // Where retention has let go of all that was written there is nothing to end in.
        let end = before.map(|(end, ..)| end.offset).or(start).unwrap_or(0);
        if let Some(s) = newest.filter(|s| s.end.offset > end && self.newer == newer) {
            let file = FileId::Segment(dir.clone(), s.segment_base);
            self.damage(
                &file,
                segment_at(s.segment_base.min(end), end),
                format!("the snapshot knows of batches up to {}", place(s.end)),
            )?;
        }
        Ok(())
    }

    fn snapshots(&mut self, dir: &Arc<PartitionDir>) -> Result<Option<Snapshot>, InspectError> {
        let (mut newest, mut blank): (Option<Snapshot>, _) = (None, vec![]);
        for slot in 0..SLOTS {
            let file = FileId::Snapshot(dir.clone(), slot);
            let Some(len) = self.storage.len(&file)? else {
                blank.push(slot);
                continue;
            };
            let first = read_range(self.storage, &file, 0, BLOCK)?;
            let wanted = Snapshot::len_of(&first).unwrap_or(0).min(len as usize);
            let bytes = if wanted > first.len() { read_range(self.storage, &file, 0, wanted)? } else { first };
            match Snapshot::decode(&bytes, dir.topic_id, dir.partition) {
                Ok(s) => {
                    self.snapshot(&file, &s)?;
                    if newest.as_ref().is_none_or(|n| n.sequence < s.sequence) {
                        newest = Some(s);
                    }
                }
                Err(Bad::Zero | Bad::Short) if bytes.iter().all(|&b| b == 0) => blank.push(slot),
                Err(bad) => self.bad(&file, 0, bad, format!("the snapshot is damaged ({bad}); a torn one is no loss"))?,
            }
        }
        let sequence = newest.as_ref().map_or(0, |s| s.sequence);
        for slot in blank {
            let file = FileId::Snapshot(dir.clone(), slot);
            if Snapshot::is_due(slot, sequence) {
                self.bad(&file, 0, Bad::Zero, "no snapshot, though one was written here; the other slots have its content")?;
            } else {
                self.say(&file, "not written yet")?;
            }
        }
        Ok(newest)
    }

    /// Reports a loss of channels that no operator has accepted.
    fn lost_channels(&mut self, dir: &Arc<PartitionDir>, newest: Option<&Snapshot>) -> Result<(), InspectError> {
        let start = newest.map_or(0, |s| self.redo.channels_lost(dir.topic_id, dir.partition.0, s));
        if start == 0 {
            return Ok(());
        }
        let what = format!(
            "startup {start} may have lost channels: new channels begin at the oldest message, and no message is removed, until an \
             operator of the running node accepts that (POST /replica/acceptloss)"
        );
        self.damage(&FileId::Snapshot(dir.clone(), 0), 0, what)
    }

    /// Reports a valid snapshot.
    fn snapshot(&mut self, file: &FileId, s: &Snapshot) -> Result<(), InspectError> {
        let (channels, producers, is_suspect) = (s.channels.len(), s.producers.len(), s.doubt.is_suspect());
        let what = format!(
            "sequence {}, records up to {}, start at {}, end at {}, {channels} channels, {producers} producers{}",
            s.sequence,
            s.applied,
            place(s.start),
            place(s.end),
            if is_suspect { ", suspect" } else { "" }
        );
        let values = json!({
            "sequence": s.sequence, "applied": s.applied, "start": position(s.start), "end": position(s.end),
            "committed": position(s.committed), "promised_epoch": s.promised.number(), "channels": channels,
            "producers": producers, "is_suspect": is_suspect, "channels_lost": s.channels_lost
        });
        self.tell(file, what, values)?;
        if s.promised > Epoch(0) {
            let (promised, committed) = (s.promised.number(), place(s.committed));
            self.say(file, format!("one replica of several: epoch {promised} is promised, committed up to {committed}"))?;
        }
        if s.channels_lost > 0 {
            self.say(file, format!("startup {} may have lost channels", s.channels_lost))?;
        }
        if let Some(vouched) = s.vouched {
            self.say(file, format!("damage begins at {}", place(vouched.at)))?;
        }
        if !self.options.records {
            return Ok(());
        }
        for c in &s.channels {
            self.tell(file, format!("  {}", show_cursor(c)), cursor_values(c))?;
        }
        for e in &s.epochs {
            let values = json!({ "epoch": e.epoch.number(), "end": position(e.end), "crc": e.chain_crc });
            self.tell(file, format!("  epoch {} ends at {}, crc {:08x}", e.epoch.number(), place(e.end), e.chain_crc), values)?;
        }
        for p in &s.producers {
            let (id, places) = (p.id.to_string(), p.places().len());
            let what = format!("  producer {id}: next sequence {}, {places} places", p.next);
            self.tell(file, what, json!({ "producer": id, "next_sequence": p.next, "places": places }))?;
        }
        Ok(())
    }

    /// End of the segment's batches, the crc there, and whether the chain begins anew. `redo` holds the offsets from which a startup
    /// writes segments and commit logs again; files promise nothing behind them.
    fn segment(
        &mut self,
        dir: &Arc<PartitionDir>,
        (base, next): (i64, Option<i64>),
        newest: Option<&Snapshot>,
        (redo, redo_commits): (Option<i64>, Option<i64>),
        before: Option<(Position, u32, bool)>,
    ) -> Result<Option<(Position, u32, bool)>, InspectError> {
        let (segment, commit) = (FileId::Segment(dir.clone(), base), FileId::Commit(dir.clone(), base));
        let records = commit_records(self.storage, dir, base)?;
        let promised = [next, newest.map(|s| s.end.offset), records.last().map(|r| r.end().offset)];
        let promised = promised.into_iter().flatten().max().unwrap_or(base).min(next.unwrap_or(i64::MAX));
        let promised = promised.min(self.limit.unwrap_or(i64::MAX)).min(redo.unwrap_or(i64::MAX));
        let block = read_range(self.storage, &segment, 0, BLOCK)?;
        let held = FileHeader::parse(&block, SEGMENT_MAGIC, dir.topic_id, dir.partition, base);
        let is_held = held.is_ok();
        let meta = match held {
            Ok(h) => h.meta(),
            Err(Bad::Zero | Bad::Short) if promised <= base => {
                self.say(&segment, "not begun yet")?;
                return Ok(before);
            }
            Err(bad @ Bad::Version(_)) => {
                self.newer(&segment, 0, bad)?;
                return Ok(None);
            }
            Err(bad) => {
                self.damage(&segment, 0, format!("the file header is damaged: {bad}"))?;
                // Other faults of the file count only if it belongs here.
                let Some(meta) = headers::read(self.storage, dir, base).ok().and_then(|h| h.meta) else { return Ok(None) };
                meta
            }
        };
        let commit_block = read_range(self.storage, &commit, 0, BLOCK)?;
        match FileHeader::parse(&commit_block, COMMIT_MAGIC, dir.topic_id, dir.partition, base) {
            Ok(_) => {}
            // it is begun after its segment: with the first batch that is durable
            Err(Bad::Zero | Bad::Short) if promised <= base || redo_commits.is_some_and(|from| from <= base) => {
                self.say(&commit, "not begun yet")?;
            }
            Err(bad @ Bad::Version(_)) => {
                self.newer(&commit, 0, bad)?;
                return Ok(None);
            }
            Err(bad) => self.damage(&commit, 0, format!("the file header is damaged: {bad}; startup rebuilds it"))?,
        }
        // Behind the snapshot a startup writes it again where a crash has torn it.
        let is_settled = newest.is_some_and(|s| base < s.end.offset);
        self.table(&segment, dir, base, &block, is_settled)?;
        self.table(&commit, dir, base, &commit_block, is_settled)?;
        // A header that follows from the log alone does not know the chain.
        if is_held {
            self.segments.insert(base, meta);
        }
        let at = meta.base;
        let (mut chain, mut open) = (meta.prev_crc, true);
        if let Some((end, crc, was_open)) = before {
            let is_redone = end != at && redo.is_some_and(|from| from <= end.offset);
            if !is_redone && (end != at || !(was_open || crc == chain)) {
                let (at, end) = (place(at), place(end));
                self.damage(&segment, 0, format!("the segment begins at {at}; the segment before it ends at {end}"))?;
            }
            open = was_open;
        }
        let mut walk = Walk { at, epoch: 0, batches: 0, messages: 0, lost: 0 };
        let mut batches = Batches::new(dir, base);
        loop {
            if next.is_some_and(|n| walk.at.offset >= n) {
                break;
            }
            let expected = Chain { at: Some(walk.at), crc: (!open).then_some(chain), epoch: walk.epoch };
            let (found, h) = batches.judge(self.storage, walk.at.offset, &expected)?;
            let byte = segment_at(base, walk.at.offset);
            match (found, h) {
                (BatchFound::Whole | BatchFound::BodyBad, Some(h)) => {
                    if found == BatchFound::BodyBad && walk.at.offset < promised {
                        self.damage(&segment, byte + 128, format!("the body of the batch {} is damaged", show(&h)))?;
                    } else if found == BatchFound::BodyBad {
                        break;
                    }
                    if h.is_lost() {
                        self.damage(&segment, byte, format!("lost before, {} messages, {} bytes", h.num, h.body_len))?;
                        walk.lost += 1;
                    }
                    if self.options.records {
                        self.tell(&segment, format!("  byte {byte}: {}", show(&h)), batch_values(byte, &h))?;
                    }
                    let record = commit_record_at(self.storage, dir, base, walk.batches)?;
                    let is_indexed = h.end().offset <= records.last().map_or(base, |r| r.end().offset)
                        && self.limit.is_none_or(|limit| h.end().offset <= limit);
                    if is_indexed && record != Some(commit_record(&h, dir)) {
                        let what = format!("record {} is not that of the batch at offset {}", walk.batches, h.offset);
                        self.damage(&commit, commit_at(walk.batches), what)?;
                    }
                    walk.batches += 1;
                    walk.messages += h.num.get() as u64;
                    walk.epoch = h.epoch.get();
                    (walk.at, chain, open) = (h.end(), h.header_crc.get(), h.is_lost());
                }
                (BatchFound::Unknown, _) => {
                    self.newer(&segment, byte, "a batch of a version that is not known to this build")?;
                    return Ok(None);
                }
                _ if walk.at.offset < promised => {
                    let again = batches.find(self.storage, walk.at, promised)?.map(|h| h.start());
                    let to = again.map_or(promised, |p| p.offset);
                    let what = format!(
                        "offsets {} to {to} hold no batch but {}, and batches up to {promised} are known",
                        walk.at.offset,
                        batch_words(found)
                    );
                    self.damage(&segment, byte, what)?;
                    let Some(again) = again else { break };
                    (walk.at, open) = (again, true);
                    // The commit log goes on counting.
                    walk.batches = records.partition_point(|r| r.offset.get() < again.offset) as u64;
                }
                _ => break,
            }
        }
        let (n, m, end) = (walk.batches, walk.messages, walk.at);
        let values = json!({ "batches": n, "messages": m, "lost": walk.lost, "from": position(at), "to": position(end) });
        self.tell(&segment, format!("{n} batches, {m} messages, from {} to {}", place(at), place(end)), values)?;
        Ok(Some((end, chain, open)))
    }
}

impl View<'_, '_> {
    /// The table in the first block of one of a segment's files, against the segments before it that were looked at.
    fn table(
        &mut self,
        file: &FileId,
        dir: &Arc<PartitionDir>,
        base: i64,
        block: &[u8],
        is_settled: bool,
    ) -> Result<(), InspectError> {
        let table = match SegmentTable::parse(block, dir.topic_id, dir.partition, base) {
            Ok(table) => table,
            // There is no segment before it, or the file is being begun.
            Err(Bad::Zero | Bad::Short) => return Ok(()),
            Err(_) if !is_settled => {
                return self.say(file, "the table of the segments before it is incomplete: the next startup writes it");
            }
            Err(bad) => {
                let what = format!("the table of the segments before it is damaged: {bad}; it is written again");
                return self.damage(file, TABLE_AT as u64, what);
            }
        };
        if let (Some(first), Some(last)) = (table.segments().first(), table.segments().last()) {
            let (n, from, to) = (table.segments().len(), first.base.offset, last.base.offset);
            self.say(file, format!("names {n} segments before it, from offset {from} to {to}"))?;
        }
        for named in table.segments() {
            if self.options.records {
                let values = json!({ "base": position(named.base), "prev_crc": named.prev_crc });
                self.tell(file, format!("  begins at {}, prev crc {:08x}", place(named.base), named.prev_crc), values)?;
            }
            // Retention may have removed it.
            if let Some(&found) = self.segments.get(&named.base.offset).filter(|&found| is_settled && found != named) {
                let what = format!(
                    "it names a segment at {} behind crc {:08x}; the segment is at {} behind crc {:08x}",
                    place(named.base),
                    named.prev_crc,
                    place(found.base),
                    found.prev_crc
                );
                self.damage(file, TABLE_AT as u64, what)?;
            }
        }
        Ok(())
    }
}

struct Walk {
    at: Position,
    epoch: u64,
    batches: u64,
    messages: u64,
    lost: u64,
}

pub(super) fn show(h: &BatchHeader) -> String {
    let lost = if h.is_lost() { " LOST" } else { "" };
    let (ids, epoch) = (format!("{}..={}", h.log_id, h.last_log_id), Epoch(h.epoch.get()).number());
    let producer = ProducerId::new(h.producer_id.get())
        .map_or(String::new(), |id| format!(", producer {id} from sequence {}", h.first_sequence));
    format!("offset {}, ids {ids}, epoch {epoch}, {} bytes, crc {:08x}{producer}{lost}", h.offset, h.len(), h.header_crc.get())
}

fn show_cursor(c: &CursorImage) -> String {
    let paused = if c.paused { ", paused" } else { "" };
    let (name, confirmed, beyond) = (&c.name, c.confirmed, c.intervals.len());
    let confirmed = place(confirmed);
    let handed = match delivered(c) {
        0 => String::new(),
        n => format!(", {n} messages delivered before"),
    };
    format!("channel {name}: generation {}, confirmed up to {confirmed} and {beyond} intervals{paused}{handed}", c.generation)
}

/// Messages that had been delivered before a clean stop.
fn delivered(c: &CursorImage) -> u64 {
    c.handed.iter().map(|h| h.num as u64).sum()
}

fn cursor_values(c: &CursorImage) -> Value {
    json!({
        "channel": c.name.to_string(), "epoch": c.epoch.number(), "generation": c.generation, "confirmed": position(c.confirmed),
        "intervals": c.intervals.len(), "is_paused": c.paused, "is_ordered": c.ordered, "delivered": delivered(c)
    })
}

fn batch_values(byte: u64, h: &BatchHeader) -> Value {
    json!({
        "byte": byte, "offset": h.offset.get(), "log_id": h.log_id.get(), "last_log_id": h.last_log_id.get(),
        "epoch": Epoch(h.epoch.get()).number(), "bytes": h.len(), "messages": h.num.get(), "crc": h.header_crc.get(), "is_lost": h.is_lost()
    })
}

pub fn batch_line(payload: &[u8], topic: TopicId, partition: u16) -> String {
    BatchHeader::parse(payload, topic, PartitionId(partition)).map_or_else(|bad| bad.to_string(), |h| show(&h))
}

/// The position that a record's payload begins with, and the crc behind it, if there is one.
pub fn place_line(payload: &[u8]) -> String {
    let Ok((at, rest)) = RawPosition::read_from_prefix(payload) else { return Bad::Short.to_string() };
    let crc = U32::read_from_prefix(rest).map_or(String::new(), |(crc, _)| format!(", crc {:08x}", crc.get()));
    format!("{}{crc}", place(Position::from(at)))
}

pub fn epoch_line(payload: &[u8]) -> String {
    U64::read_from_prefix(payload)
        .map_or(Bad::Short.to_string(), |(epoch, _)| format!("epoch {} is promised", Epoch(epoch.get()).number()))
}

pub fn cursor_line(payload: &[u8]) -> String {
    CursorImage::decode(payload).map_or_else(|bad| bad.to_string(), |(c, _)| show_cursor(&c))
}
