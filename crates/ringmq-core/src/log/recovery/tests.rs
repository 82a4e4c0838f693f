//! Recovery over the simulated disk, from files that the plain engine of [`crate::sim::engine`] left: crashes at any
//! operation, also of recovery itself, and damage of every kind.

use super::*;
use crate::base::*;
use crate::format::cursor::{CursorImage, Interval};
use crate::format::journal::RecordKind;
use crate::format::snapshot::SLOTS;
use crate::log::recovery::channels::is_confirmed;
use crate::sim::check::log_of;
use crate::sim::disk::SimDisk;
use crate::sim::engine::{Crashed, Engine};
use bytes::Bytes;
use std::collections::BTreeMap;

mod copies;
mod deleted;
mod killed;
mod lost;
mod rot;
mod segments;
mod torn;

const SEGMENT_BYTES: u64 = 48 * 1024;

fn options(cores: u16, seed: u64) -> RecoverOptions {
    RecoverOptions {
        cores,
        journal_bytes: JOURNAL_BYTES_MIN,
        segment_bytes: SEGMENT_BYTES,
        now_unix_ns: 5,
        producers: Default::default(),
        seed,
        accept_lost_journal: 0,
        is_clustered: false,
    }
}

/// Batches that were acknowledged, and those that were under way at the crash.
#[derive(Default, Clone)]
struct Model {
    /// Acknowledged batches in order, by topic and partition.
    acked: BTreeMap<(TopicId, u16), Vec<(i64, Bytes)>>,
    maybe: BTreeMap<(TopicId, u16), (i64, Bytes)>,
    cursors: BTreeMap<(TopicId, u16), Vec<CursorImage>>,
    maybe_cursors: BTreeMap<(TopicId, u16), Vec<CursorImage>>,
    starts: BTreeMap<(TopicId, u16), i64>,
    topics: Vec<TopicId>,
}

fn key(engine: &Engine, p: usize) -> (TopicId, u16) {
    (engine.parts[p].dir.topic_id, engine.parts[p].dir.partition.0)
}

fn bodies(rng: &mut Rng) -> Vec<Vec<u8>> {
    let len_max = [20, 300, 3000][rng.below(3) as usize];
    (0..1 + rng.below(4)).map(|_| vec![rng.next_u64() as u8; rng.below(len_max) as usize]).collect()
}

/// Runs one turn of the engine: a batch for some partitions of a core, some finished messages, one journal write.
fn turn(engine: &mut Engine, model: &mut Model, rng: &mut Rng) -> Result<(), Crashed> {
    let core = rng.below(engine.journals.len() as u64) as usize;
    engine.reserve(core, 64 * 1024)?;
    let (mut facts, mut batches, mut cursors) = (vec![], vec![], vec![]);
    for p in 0..engine.parts.len() {
        if engine.parts[p].core != core || rng.chance(0.5) {
            continue;
        }
        if rng.chance(0.7) {
            let bodies = bodies(rng);
            let len = bodies.iter().map(|b| b.len() + 12).sum::<usize>() + 128;
            engine.admit(p, len)?;
            let batch = engine.make_batch(p, &bodies);
            facts.push(engine.batch_fact(p, &batch));
            model.maybe.insert(key(engine, p), (batch.header.offset.get(), batch.bytes.clone()));
            batches.push((p, batch));
        }
        if rng.chance(0.4) {
            let end = engine.parts[p].end;
            let start = LogId(1 + rng.below(end.log_id.0));
            if start < end.log_id {
                let name = ["a", "b"][rng.below(2) as usize];
                facts.extend(engine.confirm(p, name, &[Interval { start, end }]));
                cursors.push(p);
                model.maybe_cursors.insert(key(engine, p), engine.parts[p].channels.clone());
            }
        }
        if rng.chance(0.05) && engine.parts[p].bases.len() > 2 {
            // Retention: everything before the last segment.
            let part = &mut engine.parts[p];
            let at = part.end;
            (part.start, part.bases) = (at, part.bases.split_off(part.bases.len() - 1));
            facts.push(engine.position_fact(p, RecordKind::Start, at));
            model.starts.insert(key(engine, p), at.offset);
        }
    }
    if facts.is_empty() {
        return Ok(());
    }
    engine.write(core, &facts)?;
    for (p, batch) in batches {
        model.maybe.remove(&key(engine, p));
        model.acked.entry(key(engine, p)).or_default().push((batch.header.offset.get(), batch.bytes.clone()));
        engine.parts[p].pending.push(batch);
    }
    for p in cursors {
        model.maybe_cursors.remove(&key(engine, p));
        model.cursors.insert(key(engine, p), engine.parts[p].channels.clone());
    }
    Ok(())
}

fn life(engine: &mut Engine, model: &mut Model, rng: &mut Rng, turns: u64) -> Result<(), Crashed> {
    for _ in 0..turns {
        match rng.below(20) {
            0 if engine.parts.len() < 6 => {
                let n = engine.parts.len();
                let name = TopicName::new(&format!("t{n}")).unwrap();
                let info = TopicInfo { name, id: TopicId(rng.bytes_16()), partitions: 1 + rng.below(3) as u16 };
                engine.create_topic(info.clone())?;
                model.topics.push(info.id);
            }
            1 | 2 if !engine.parts.is_empty() => {
                let p = rng.below(engine.parts.len() as u64) as usize;
                let bodies = vec![vec![7; 1000 + rng.below(20_000) as usize]];
                let at = engine.parts[p].end.offset;
                match engine.publish_direct(p, &bodies) {
                    Ok(batch) => model.acked.entry(key(engine, p)).or_default().push((at, batch.bytes)),
                    Err(crashed) => {
                        // The bytes are known only once it is made; any whole batch at that place is it.
                        model.maybe.insert(key(engine, p), (at, Bytes::new()));
                        return Err(crashed);
                    }
                }
            }
            3 | 4 if !engine.parts.is_empty() => {
                let p = rng.below(engine.parts.len() as u64) as usize;
                engine.flush(p)?;
            }
            5 => engine.checkpoint(rng.below(engine.journals.len() as u64) as usize)?,
            _ => turn(engine, model, rng)?,
        }
    }
    Ok(())
}

/// Recovers, with crashes on the way.
fn recover_somehow(disk: &mut SimDisk, rng: &mut Rng, cores: u16) -> Recovered {
    for round in 0.. {
        disk.faults.crash_after = (round < 4 && rng.chance(0.6)).then(|| rng.below(120));
        match recover(disk, &options(cores, rng.next_u64())) {
            Ok(recovered) => {
                disk.faults.crash_after = None;
                return recovered;
            }
            Err(e) => {
                assert!(disk.is_crashed(), "recovery gave up: {e}");
                if rng.chance(0.5) { disk.crash() } else { disk.kill() }
            }
        }
    }
    unreachable!("the last rounds do not crash")
}

/// Holds what recovery brought against what was acknowledged; how many batches are lost, which only damage may do.
fn check(disk: &SimDisk, recovered: &Recovered, model: &mut Model, damaged: bool) -> usize {
    let mut lost = 0;
    let found: BTreeMap<_, _> = recovered.partitions.iter().map(|p| ((p.dir.topic_id, p.dir.partition.0), p)).collect();
    for id in &model.topics {
        assert!(recovered.topics.iter().any(|t| t.id == *id), "an acknowledged topic is gone");
    }
    for (key, p) in &found {
        let log = log_of(disk, p).unwrap_or_else(|e| panic!("{}/{}: {e}", p.topic.name, key.1));
        let acked = model.acked.remove(key).unwrap_or_default();
        let maybe = model.maybe.remove(key);
        let by_offset: BTreeMap<i64, &Bytes> = acked.iter().map(|(at, b)| (*at, b)).collect();
        let first = p.files.segments.first().map_or(0, |m| m.base.offset);
        let mut kept = vec![];
        for (h, batch) in &log {
            let at = h.offset.get();
            match (by_offset.get(&at), batch) {
                (_, Some(b)) if b.header.is_lost() => assert!(damaged, "{at} is lost without damage"),
                (Some(&bytes), Some(b)) => assert_eq!(bytes, &b.bytes, "offset {at} holds another batch"),
                (None, Some(b)) => {
                    let (maybe_at, bytes) = maybe.as_ref().unwrap_or_else(|| panic!("invented a batch at {at}"));
                    assert!(*maybe_at == at && (bytes.is_empty() || *bytes == b.bytes), "invented a batch at {at}");
                }
                (_, None) => assert!(damaged, "the body at {at} is damaged"),
            }
            if let Some(b) = batch.as_ref().filter(|b| !b.header.is_lost()) {
                kept.push((at, b.bytes.clone()));
            }
        }
        let end = acked.last().map_or(0, |(at, b)| at + b.len() as i64);
        assert!(p.end.offset >= end, "the log ends at {} before what was acknowledged, {end}", p.end.offset);
        let (expected, got) = (acked.iter().filter(|(at, _)| *at >= first).count(), kept.len());
        lost += expected.saturating_sub(got);
        if !damaged {
            assert!(got >= expected, "{} of {expected} acknowledged batches are there", got);
            let start = model.starts.get(key).copied().unwrap_or(0);
            assert!(p.start.offset <= start, "the start moved to {}, not {start}", p.start.offset);
            assert!(p.damage.lost().is_empty(), "{:?}", p.damage.lost());
            check_cursors(p, model, key);
        }
        model.acked.insert(*key, kept);
        model.cursors.insert(*key, p.channels.clone());
        model.starts.insert(*key, p.start.offset);
    }
    model.maybe.clear();
    model.maybe_cursors.clear();
    for p in recovered.partitions.iter() {
        assert!(p.epoch.0 < recovered.generation, "the generation is above every epoch");
    }
    lost
}

fn check_cursors(p: &RecoveredPartition, model: &Model, key: &(TopicId, u16)) {
    let acked = model.cursors.get(key).cloned().unwrap_or_default();
    let most = model.maybe_cursors.get(key).unwrap_or(&acked);
    for cursor in &acked {
        let found = p.channels.iter().find(|c| c.name == cursor.name).expect("an acknowledged channel is gone");
        for id in (1..p.end.log_id.0).map(LogId) {
            assert!(!is_confirmed(cursor, id) || is_confirmed(found, id), "{}: {} was finished", cursor.name, id.0);
        }
    }
    for found in &p.channels {
        let most = most.iter().find(|c| c.name == found.name).expect("an invented channel");
        for id in (1..p.end.log_id.0).map(LogId) {
            assert!(!is_confirmed(found, id) || is_confirmed(most, id), "{}: {} was not finished", found.name, id.0);
        }
    }
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut disk = SimDisk::new(seed ^ 0xd15c);
    let mut model = Model::default();
    let mut generation = 0;
    for _ in 0..4 {
        let cores = 1 + rng.below(3) as u16;
        let recovered = recover_somehow(&mut disk, &mut rng, cores);
        assert!(recovered.generation > generation && recovered.journals.len() == cores as usize);
        generation = recovered.generation;
        check(&disk, &recovered, &mut model, false);
        assert!(!recovered.report.has_damage(), "{:?}", recovered.report);
        let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
        engine.disk.faults.crash_after = rng.chance(0.7).then(|| rng.below(400));
        let _ = life(&mut engine, &mut model, &mut rng, 60);
        disk = engine.disk;
        if rng.chance(0.7) { disk.crash() } else { disk.kill() }
    }
}

#[test]
fn what_was_acknowledged_survives_any_crash() {
    for seed in 0..300 {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            panic!("seed {seed}");
        }
    }
}

/// A node that ran for a while, was stopped at once, with everything issued complete.
fn grown(seed: u64) -> (SimDisk, Model, Vec<crate::sim::engine::Journal>, Rng) {
    let mut rng = Rng::new(seed);
    let mut disk = SimDisk::new(seed);
    let mut model = Model::default();
    let recovered = recover(&mut disk, &options(2, seed)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
    life(&mut engine, &mut model, &mut rng, 80).expect("no fault was asked for");
    (engine.disk, model, engine.journals, rng)
}

/// Recovers after damage, checks, then goes on and recovers again: the repaired log must carry a further life.
fn survive_damage(mut disk: SimDisk, mut model: Model, rng: &mut Rng, what: &str) -> (usize, Report) {
    let recovered = recover(&mut disk, &options(2, 9)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let lost = check(&disk, &recovered, &mut model, true);
    let report = recovered.report.clone();
    let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
    life(&mut engine, &mut model, rng, 30).expect("no fault was asked for");
    let mut disk = engine.disk;
    disk.crash();
    let again = recover(&mut disk, &options(1, 10)).unwrap_or_else(|e| panic!("{what}, later: {e}"));
    check(&disk, &again, &mut model, true);
    (lost, report)
}

#[test]
fn one_rotten_bit_outside_of_segments_and_rings_costs_no_message() {
    let mut noticed = 0;
    for seed in 0..150 {
        let (mut disk, model, _, mut rng) = grown(seed);
        let paths: Vec<String> = disk.paths().filter(|p| !p.ends_with(".segment")).map(String::from).collect();
        let path = &paths[rng.below(paths.len() as u64) as usize];
        let len = if path.starts_with("journal") { RING_START } else { 4096 };
        let at = rng.below(len.min(300));
        disk.flip(path, at, rng.next_u64() as u32);
        let what = format!("seed {seed}, {path} at {at}");
        let (lost, report) = survive_damage(disk, model, &mut rng, &what);
        assert_eq!(lost, 0, "{what}: {report:?}");
        noticed += !report.findings.is_empty() as u32;
    }
    assert!(noticed > 50, "{noticed}");
}

#[test]
fn a_rotten_journal_write_loses_its_own_batches_alone_and_no_id_comes_again() {
    let (mut lost_any, mut noticed) = (0, 0);
    for seed in 0..200 {
        let (mut disk, model, journals, mut rng) = grown(seed);
        let core = rng.below(2) as usize;
        // The last write has no witness: rot there is a torn tail. So it is left alone.
        let Some(candidates) = journals[core].writes.len().checked_sub(1).filter(|&n| n > 0) else { continue };
        let (_, position, len) = journals[core].writes[rng.below(candidates as u64) as usize];
        let in_write = match seed % 3 {
            0 => rng.below(128),
            1 => rng.below(600.min(len)),
            _ => rng.below(len),
        };
        disk.flip(&format!("journal/{core}"), position + in_write, rng.next_u64() as u32);
        let what = format!("seed {seed}, core {core}, write at {position}, byte {in_write}");
        let (lost, report) = survive_damage(disk, model, &mut rng, &what);
        assert!(lost <= 8, "{what}: {lost} batches: {report:?}");
        lost_any += (lost > 0) as u32;
        noticed += report.has_damage() as u32;
    }
    assert!(lost_any > 10 && noticed > 40, "{lost_any} {noticed}");
}

#[test]
fn without_its_files_a_partition_keeps_what_the_journal_has() {
    let mut anew = 0;
    for seed in 0..60 {
        let (mut disk, mut model, _, mut rng) = grown(seed);
        let of_segments: Vec<String> = disk.paths().filter(|p| p.ends_with(".segment")).map(String::from).collect();
        if of_segments.is_empty() {
            continue;
        }
        let (dir, _) = of_segments[rng.below(of_segments.len() as u64) as usize].rsplit_once('/').expect("it lies in a folder");
        let below: Vec<String> = disk.paths().filter(|p| p.starts_with(&format!("{dir}/"))).map(String::from).collect();
        for path in &below {
            disk.lose(path, None);
        }
        let recovered = recover(&mut disk, &options(2, 9)).unwrap_or_else(|e| panic!("seed {seed}, {dir}: {e}"));
        if recovered.report.findings.iter().any(|f| f.what.contains("the journal goes on behind it")) {
            check(&disk, &recovered, &mut model, true);
            // The lost batch filled a segment, and the next one begins the chain anew.
            let begins = |p: &RecoveredPartition, at| p.files.segments.iter().any(|m| m.base.offset > 0 && m.base == at);
            anew += recovered.partitions.iter().any(|p| p.damage.lost().iter().any(|l| begins(p, l.1))) as u32;
        }
    }
    assert!(anew > 3, "{anew}");
}

#[test]
fn two_rotten_heads_in_a_row_skip_ids_everywhere() {
    let mut leaps = 0;
    for seed in 0..60 {
        let (mut disk, model, journals, mut rng) = grown(seed);
        let n = journals[0].writes.len();
        if n < 4 {
            continue;
        }
        let first = rng.below(n as u64 - 3) as usize;
        for (_, position, _) in &journals[0].writes[first..first + 2] {
            disk.flip("journal/0", position + 20, 3);
        }
        let (_, report) = survive_damage(disk, model, &mut rng, &format!("seed {seed}, write {first}"));
        leaps += report.findings.iter().any(|f| f.what.contains("may have used are skipped")) as u32;
    }
    assert!(leaps > 10, "{leaps}");
}

#[test]
fn a_lost_checkpoint_slot_after_many_laps_costs_nothing() {
    let mut searched = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut disk = SimDisk::new(seed);
        let mut model = Model::default();
        let recovered = recover(&mut disk, &options(1, seed)).expect("an empty disk recovers");
        let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
        life(&mut engine, &mut model, &mut rng, 400).expect("no fault was asked for");
        let (journal, mut disk) = (&engine.journals[0], engine.disk);
        if journal.lap < 3 || journal.writes.is_empty() {
            continue;
        }
        // A write behind the newest slot tells that there was one.
        disk.flip("journal/0", journal.identity.slot_sequence % 2 * BLOCK as u64 + 40, 3);
        let recovered = recover(&mut disk, &options(1, 9)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let report = &recovered.report;
        assert!(!report.has_damage(), "seed {seed}: {report:?}");
        assert_eq!(check(&disk, &recovered, &mut model, false), 0, "seed {seed}");
        searched += 1;
    }
    assert!(searched > 10, "{searched}");
}

#[test]
fn all_snapshot_files_are_there_after_the_first_snapshot() {
    let mut disk = SimDisk::new(1);
    let recovered = recover(&mut disk, &options(1, 1)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
    let info = TopicInfo { name: TopicName::new("t").unwrap(), id: TopicId([4; 16]), partitions: 1 };
    engine.create_topic(info).expect("no fault was asked for");
    let cursor = CursorImage::new(ChannelName::new("c").unwrap(), Epoch(1), 0, Position::START);
    let fact = engine.cursor_fact(0, RecordKind::Cursor, &cursor);
    engine.write(0, &[fact]).expect("no fault was asked for");
    let mut disk = engine.disk;
    let recovered = recover(&mut disk, &options(1, 2)).expect("it is whole");
    assert_eq!((recovered.partitions[0].snapshot_sequence, recovered.partitions[0].channels.len()), (3, 1));
    assert!((0..SLOTS).all(|slot| disk.paths().any(|path| path == format!("topics/t/0/state.{slot}"))));
    assert_eq!(recover(&mut disk, &options(1, 3)).expect("it is whole").partitions[0].channels, [cursor]);
}

#[test]
fn any_damage_anywhere_ends_in_a_recovered_node_and_never_in_a_panic() {
    for seed in 0..250 {
        let (mut disk, _, _, mut rng) = grown(seed);
        let paths: Vec<String> = disk.paths().map(String::from).collect();
        for _ in 0..1 + rng.below(6) {
            let path = &paths[rng.below(paths.len() as u64) as usize];
            let len = if disk.paths().any(|p| p == path) { disk.len_of(path) } else { 0 };
            if len == 0 {
                continue;
            }
            let at = rng.below(len);
            match rng.below(6) {
                0 => disk.lose(path, None),
                1 => disk.scribble(path, at - at % 512, &[0; 512]),
                2 => disk.scribble(path, at - at % 4096, &rng.next_u64().to_le_bytes().repeat(64)),
                _ => disk.flip(path, at, rng.next_u64() as u32),
            }
        }
        for _ in 0..2 {
            let mut asked = options(2, seed);
            let recovered = loop {
                match recover(&mut disk, &asked) {
                    Ok(recovered) => break recovered,
                    Err(RecoverError::LostJournals { generation, .. } | RecoverError::LostNode { generation, .. })
                        if asked.accept_lost_journal == 0 =>
                    {
                        asked.accept_lost_journal = generation;
                    }
                    Err(e) => panic!("seed {seed}: {e}"),
                }
            };
            assert!(recovered.journals.len() == 2);
        }
    }
}

#[test]
fn a_read_error_is_tried_again() {
    for seed in 0..40 {
        let (mut disk, mut model, _, _) = grown(seed);
        disk.faults.read_error = 0.02;
        if let Ok(recovered) = recover(&mut disk, &options(2, 1)) {
            disk.faults.read_error = 0.0;
            check(&disk, &recovered, &mut model, false);
        }
    }
}

#[test]
fn a_full_disk_still_starts() {
    for seed in 0..60 {
        let (mut disk, mut model, _, _) = grown(seed);
        disk.faults.capacity = disk.used_bytes();
        let recovered = recover(&mut disk, &options(2, 1)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        check(&disk, &recovered, &mut model, false);
    }
}

#[test]
fn a_topic_folder_with_another_id_is_set_aside() {
    let (mut disk, mut model, _, mut rng) = (0..).map(grown).find(|g| g.1.topics.len() > 1).expect("some seed has topics");
    let name = recover(&mut disk, &options(2, 1)).expect("it is whole").topics[0].name.clone();
    let mut engine = {
        let recovered = recover(&mut disk, &options(2, 1)).expect("it is whole");
        Engine::new(disk, recovered, SEGMENT_BYTES)
    };
    // The journal says that the name belongs to a new id: the old folder was never removed.
    let info = TopicInfo { name: name.clone(), id: TopicId(rng.bytes_16()), partitions: 1 };
    let meta = crate::format::meta::TopicMeta { info: info.clone(), created_unix_ns: 3 };
    let payload = zerocopy::IntoBytes::as_bytes(&meta.header()).to_vec();
    engine.write(0, &[(RecordKind::TopicCreate, None, payload.into(), info.id)]).expect("no fault was asked for");
    let mut disk = engine.disk;
    let recovered = recover(&mut disk, &options(2, 2)).expect("it is set aside");
    assert_eq!(recovered.topics.iter().find(|t| t.name == name).map(|t| t.id), Some(info.id));
    assert!(disk.paths().any(|p| p.starts_with(&format!("topics/{name}~"))));
    model.topics.clear();
}

#[test]
fn a_folder_that_is_none_of_its_topic_is_reported_unless_it_is_blank() {
    let (mut disk, _, _, _) = (0..).map(grown).find(|g| !g.1.topics.is_empty()).expect("some seed has topics");
    let name = recover(&mut disk, &options(2, 1)).expect("it is whole").topics[0].name.clone();
    let path = format!("topics/{name}/900/00000000000000000000.segment");
    for (bytes, is_damage) in [(vec![0; 4 * BLOCK], false), (vec![1; 8], true)] {
        disk.scribble(&path, 0, &bytes);
        let report = recover(&mut disk, &options(2, 2)).expect("it starts").report;
        assert_eq!(report.has_damage(), is_damage, "{report:?}");
    }
}

#[test]
fn a_file_of_a_newer_version_halts_with_its_name() {
    let (mut disk, _, _, _) = (0..).map(grown).find(|g| g.1.topics.len() > 1).expect("some seed has topics");
    let path = disk.paths().find(|p| p.ends_with("topic.meta.1")).expect("there is a topic").to_string();
    let mut header = disk.contents_of(&path)[..192].to_vec();
    header[8] = 9;
    let crc = crc32fast::hash(&header[8..]);
    header[4..8].copy_from_slice(&crc.to_le_bytes());
    disk.scribble(&path, 0, &header);
    let error = recover(&mut disk, &options(2, 2)).expect_err("it must not be read");
    assert!(matches!(error, RecoverError::Unknown { .. }) && error.to_string().contains("topic.meta"), "{error}");
}

#[test]
fn a_direct_batch_with_a_damaged_body_is_lost_alone_and_never_torn() {
    let mut disk = SimDisk::new(3);
    let recovered = recover(&mut disk, &options(1, 3)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
    let name = TopicName::new("t").unwrap();
    engine.create_topic(TopicInfo { name, id: TopicId([6; 16]), partitions: 1 }).expect("no fault");
    let before = engine.publish_direct(0, &[vec![1; 9000]]).expect("no fault");
    // The last thing in the journal, so no later write speaks for it: its body was durable all the same.
    let direct = engine.publish_direct(0, &[vec![2; 9000], vec![3; 10]]).expect("no fault");
    let at = direct.header.offset.get();
    let mut disk = engine.disk;
    let path = "topics/t/0/00000000000000000000.segment";
    disk.flip(path, scan::segment_at(0, at + 4000), 0);
    for start in 0..2 {
        let recovered = recover(&mut disk, &options(1, 4)).expect("it is stepped over");
        let p = &recovered.partitions[0];
        let log = log_of(&disk, p).expect("the log is whole");
        assert_eq!(p.end, direct.header.end());
        assert_eq!(log[0].1.as_ref().map(|b| &b.bytes), Some(&before.bytes));
        assert!(log.len() == 2 && log[1].0.is_lost() && log[1].0.end() == p.end && p.damage.doubt().is_suspect());
        assert_eq!(recovered.report.has_damage(), start == 0, "{:?}", recovered.report);
    }
}

#[test]
fn a_replica_keeps_its_small_generation_and_alone_it_leaps_above_all_epochs() {
    use crate::seam::membership::{GENERATION_MAX, static_epoch};
    let clustered = RecoverOptions { is_clustered: true, ..options(2, 9) };
    let leaders = static_epoch(3, 7, 4).unwrap();
    let (mut rng, mut model) = (Rng::new(4), Model::default());
    let mut disk = SimDisk::new(4);
    let mut recovered = recover(&mut disk, &clustered).unwrap();
    assert_eq!(recovered.generation, 1);
    recovered.generation = leaders.0; // the epoch of the engine's batches
    let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
    life(&mut engine, &mut model, &mut rng, 80).unwrap();
    let mut disk = engine.disk;
    disk.kill();
    for generation in [2, 3] {
        let again = recover(&mut disk, &clustered).unwrap();
        assert_eq!(again.generation, generation, "it counts the starts");
        let of_peers: Vec<_> = again.partitions.iter().filter(|p| p.end.offset > 0).collect();
        assert!(of_peers.len() > 1 && of_peers.iter().all(|p| p.epoch == leaders && p.promised >= leaders));
        assert!(of_peers.iter().all(|p| p.committed == p.start), "how far peers have it is not known");
    }
    let alone = recover(&mut disk, &options(2, 9)).unwrap();
    assert!(alone.generation > leaders.0 && alone.generation > GENERATION_MAX, "{}", alone.generation);
    assert!(alone.partitions.iter().all(|p| p.promised == Epoch(0) && p.committed == p.end));
    let back = recover(&mut disk, &clustered).unwrap();
    assert!(back.generation > alone.generation, "a generation never falls, so it is found out");
}
