//! Rot that only another file can tell from what a crash leaves: of the newest snapshot, and behind a partition's end.

use super::*;
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader};
use crate::format::snapshot::Snapshot;
use crate::log::recovery::scan::{commit_at, segment_at};
use crate::log::recovery::snapshots::Slots;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// The paths of the newest two snapshots, the newest first, when all slots hold.
fn snapshots(engine: &Engine, p: usize) -> Option<[String; 2]> {
    let dir = &engine.parts[p].dir;
    let newest = engine.parts[p].snapshot_sequence;
    let path = |behind| Snapshot::file(dir, newest.checked_sub(behind).expect("three were written")).to_string();
    let is_whole = |path: &String| Snapshot::decode(engine.disk.contents_of(path), dir.topic_id, dir.partition).is_ok();
    let all = (newest >= SLOTS as u64).then(|| [0, 1, 2].map(path))?;
    let [first, second, third] = all.clone();
    all.iter().all(is_whole).then_some(if newest.is_multiple_of(2) { [first, second] } else { [first, third] })
}

/// A partition whose snapshots say more than its files and the journal beside, if `is_freed`.
fn with_snapshots(seed: u64, is_freed: bool) -> Option<(Engine, Model, usize, [String; 2])> {
    let (mut disk, mut model, _, mut rng) = grown(seed);
    let recovered = recover(&mut disk, &options(2, seed)).expect("it is whole");
    let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
    life(&mut engine, &mut model, &mut rng, 60).expect("no fault was asked for");
    for core in 0..2 {
        engine.checkpoint(core).expect("no fault was asked for");
    }
    let mut candidates: Vec<usize> = (0..engine.parts.len()).collect();
    if !is_freed {
        life(&mut engine, &mut model, &mut rng, 20).expect("no fault was asked for");
        // Durable snapshots of which the ring still has all: a crash before the checkpoint.
        candidates = (0..engine.parts.len()).collect();
        candidates.retain(|&p| engine.parts[p].record_sequence > engine.parts[p].applied);
        for &p in &candidates {
            engine.snapshot(p).expect("no fault was asked for");
        }
    }
    let candidates: Vec<_> = candidates.into_iter().filter_map(|p| Some((p, snapshots(&engine, p)?))).collect();
    let (p, paths) = candidates.get(rng.below(candidates.len().max(1) as u64) as usize).cloned()?;
    Some((engine, model, p, paths))
}

fn rot_of_a_slot(disk: &mut SimDisk, path: &str, rng: &mut Rng) {
    match rng.below(3) {
        0 => disk.scribble(path, 0, &[0; BLOCK]),
        1 => disk.cut(path, 0),
        _ => disk.flip(path, rng.below(100), rng.next_u64() as u32),
    }
}

#[test]
fn rot_of_a_snapshot_costs_nothing_and_is_reported() {
    let mut lost = 0;
    for seed in 0..60 {
        let Some((engine, mut model, p, paths)) = with_snapshots(seed, seed % 3 > 0) else { continue };
        let mut rng = Rng::new(seed);
        let path = &paths[rng.below(2) as usize];
        let (dir, sequence) = (engine.parts[p].dir.clone(), engine.parts[p].snapshot_sequence);
        let mut disk = engine.disk;
        rot_of_a_slot(&mut disk, path, &mut rng);
        let found = recover(&mut disk, &options(2, 9)).expect("it goes on");
        let what = format!("seed {seed}, {path}: {:?}", found.report);
        assert!(found.report.findings.iter().any(|f| f.file.to_string() == *path), "{what}");
        assert!(
            !found.report.has_damage()
                && found.partitions.iter().all(|r| !r.damage.doubt().is_suspect() && r.damage.channels_lost() == 0),
            "{what}"
        );
        assert_eq!(check(&disk, &found, &mut model, false), 0, "{what}");
        let part = found.partitions.iter().find(|r| r.dir == dir).expect("it is there");
        assert!(part.snapshot_sequence >= sequence, "{what}");
        let slots = Slots::read(&mut disk, &dir).expect("they can be read");
        assert!(slots.bad.is_empty() && slots.is_twice, "{what}: it is mended");
        let again = recover(&mut disk, &options(2, 9)).expect("it goes on");
        assert!(again.report.findings.is_empty(), "{what}: it is settled: {:?}", again.report);
        lost += 1;
    }
    assert!(lost > 30, "{lost}");
}

/// A startup that mends a slot writes the bad one before it writes over one that holds: wherever it crashes, two hold.
#[test]
fn two_snapshots_hold_at_each_point_of_a_start_that_mends_one() {
    let mut crashed = 0;
    for seed in 0..4 {
        let Some((engine, model, p, _)) = with_snapshots(seed, seed % 2 == 0) else { continue };
        let (dir, newest) = (engine.parts[p].dir.clone(), engine.parts[p].snapshot_sequence);
        let before = engine.disk;
        for behind in 0..SLOTS as u64 {
            let path = Snapshot::file(&dir, newest - behind).to_string();
            for crash_after in 0.. {
                let (mut disk, mut model) = (before.clone(), model.clone());
                disk.scribble(&path, 0, &[0x5a; BLOCK]);
                disk.faults.crash_after = Some(crash_after);
                let ended = recover(&mut disk, &options(2, 9)).is_ok();
                disk.faults.crash_after = None;
                disk.crash();
                let what = format!("seed {seed}, {path}, crash after {crash_after}");
                let slots = Slots::read(&mut disk, &dir).expect("they can be read");
                assert!(slots.bad.len() <= 1, "{what}: {:?}", slots.bad);
                // A slot that is written may be torn.
                let is_written = |path: &String| disk.contents_of(path) != before.contents_of(path);
                let others = (0..SLOTS).map(|slot| FileId::Snapshot(dir.clone(), slot).to_string()).filter(|p| *p != path);
                assert!(slots.bad.is_empty() || !others.into_iter().any(|p| is_written(&p)), "{what}: {:?}", slots.bad);
                if crash_after % 16 == 0 {
                    let found = recover(&mut disk, &options(2, 9)).expect("it goes on");
                    assert!(!found.report.has_damage(), "{what}: {:?}", found.report);
                    assert_eq!(check(&disk, &found, &mut model, false), 0, "{what}");
                }
                crashed += 1;
                if ended {
                    break;
                }
            }
        }
    }
    assert!(crashed > 100, "{crashed}");
}

/// A startup that finds batches of which no record is left writes the first slots. Wherever it crashes, the next one goes on as if nothing
/// had been.
#[test]
fn no_crash_among_the_first_snapshots_is_damage() {
    let (mut engine, _) = three_behind(5);
    let dir = engine.parts[0].dir.clone();
    engine.checkpoint(0).expect("no fault was asked for");
    let mut disk = engine.disk;
    let first = recover(&mut disk, &options(1, 3)).expect("it is whole").partitions.remove(0);
    let snapshot = Slots::read(&mut disk, &dir).expect("they can be read").newest.expect("it has one");
    let write = |disk: &mut SimDisk, sequence: u64, torn: bool| {
        let mut bytes = Snapshot { sequence, ..snapshot.clone() }.encode();
        if torn {
            bytes[60..].fill(0);
        }
        disk.scribble(&Snapshot::file(&dir, sequence).to_string(), 0, &bytes);
    };
    for written in 1..=SLOTS as u64 {
        for torn in [false, true] {
            let mut disk = disk.clone();
            (0..SLOTS).for_each(|slot| disk.scribble(&FileId::Snapshot(dir.clone(), slot).to_string(), 0, &[0; BLOCK]));
            (1..written).for_each(|sequence| write(&mut disk, sequence, false));
            write(&mut disk, written, torn && written > 1);
            let found = recover(&mut disk, &options(1, 4)).expect("it goes on");
            assert!(!found.report.has_damage(), "{written} {torn}: {:?}", found.report);
            assert_eq!(found.partitions[0].end, first.end);
        }
    }
    // The third slot is written behind two that hold: beside one alone it has rotted, and so has the second one.
    let mut disk = disk.clone();
    write(&mut disk, 1, false);
    [2, 3].into_iter().for_each(|sequence| write(&mut disk, sequence, true));
    assert!(recover(&mut disk, &options(1, 4)).expect("it goes on").report.has_damage());
}

#[test]
fn rot_of_two_snapshots_is_damage_unless_the_journal_has_what_they_held() {
    let (mut damaged, mut harmless) = (0, 0);
    for seed in 0..60 {
        let is_freed = seed % 2 == 0;
        let Some((engine, mut model, p, paths)) = with_snapshots(seed, is_freed) else { continue };
        let dir = engine.parts[p].dir.clone();
        let (mut disk, mut rng) = (engine.disk, Rng::new(seed));
        paths.iter().for_each(|path| rot_of_a_slot(&mut disk, path, &mut rng));
        let found = recover(&mut disk, &options(2, 9)).expect("it goes on");
        let what = format!("seed {seed}, {paths:?}: {:?}", found.report);
        let part = found.partitions.iter().find(|r| r.dir == dir).expect("it is there");
        assert!(found.report.findings.iter().any(|f| paths.contains(&f.file.to_string())), "{what}");
        assert_eq!((part.damage.doubt().is_suspect(), found.report.has_damage()), (is_freed, is_freed), "{what}");
        assert_eq!(check(&disk, &found, &mut model, is_freed), 0, "{what}");
        assert_eq!(part.damage.channels_lost() > 0, is_freed, "{what}");
        assert!(found.partitions.iter().filter(|r| r.dir != dir).all(|r| !r.damage.doubt().is_suspect()), "{what}");
        *(if is_freed { &mut damaged } else { &mut harmless }) += 1;
        let again = recover(&mut disk, &options(2, 9)).expect("it goes on");
        assert!(!again.report.has_damage(), "{what}: it is settled: {:?}", again.report);
        assert!(
            again.partitions.iter().all(|r| r.damage.doubt().is_suspect() == (is_freed && r.dir == dir)),
            "{what}: the mark stays"
        );
    }
    assert!(damaged > 10 && harmless > 10, "{damaged} {harmless}");
}

/// Zeros where a snapshot stood are no fresh partition: the journal would begin with its first record.
#[test]
fn blank_slots_beside_a_log_are_a_loss() {
    let (engine, _) = three_behind(4);
    let dir = engine.parts[0].dir.clone();
    let mut disk = engine.disk;
    (0..SLOTS).for_each(|slot| disk.scribble(&FileId::Snapshot(dir.clone(), slot).to_string(), 0, &[0; BLOCK]));
    let found = recover(&mut disk, &options(1, 3)).expect("it goes on");
    let named = |f: &Finding| f.file.to_string().contains("state.") && f.what.contains("no snapshot holds");
    assert!(found.report.has_damage() && found.report.findings.iter().any(named), "{:?}", found.report);
    assert!(found.partitions[0].damage.doubt().is_suspect());
    assert_eq!(log_of(&disk, &found.partitions[0]).map(|log| log.len()), Ok(4));
    // That channels are lost is known until somebody accepts it: that start's loss, and no later one.
    let lost = found.partitions[0].damage.channels_lost();
    assert!(lost == found.generation);
    let found = recover(&mut disk, &options(1, 4)).expect("it is whole");
    assert_eq!((found.partitions[0].damage.channels_lost(), found.report.has_damage()), (lost, false));
    for (upto, left) in [(lost - 1, lost), (lost, 0)] {
        let found = recover(&mut disk, &options(1, 5)).expect("it is whole");
        let mut engine = Engine::new(disk, found, SEGMENT_BYTES);
        let payload = bytes::Bytes::copy_from_slice(&upto.to_le_bytes());
        engine.write(0, &[(RecordKind::LossAccepted, Some(0), payload, dir.topic_id)]).expect("no fault was asked for");
        disk = engine.disk;
        let found = recover(&mut disk, &options(1, 6)).expect("it is whole");
        assert_eq!(found.partitions[0].damage.channels_lost(), left);
    }
}

/// The engine with one partition that has a snapshot, and three batches behind it that stand in the files.
fn three_behind(seed: u64) -> (Engine, Vec<(i64, i64)>) {
    let mut disk = SimDisk::new(seed);
    let first = recover(&mut disk, &options(1, seed)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, first, SEGMENT_BYTES);
    let info = TopicInfo { name: TopicName::new("t").expect("it is valid"), id: TopicId([7; 16]), partitions: 1 };
    engine.create_topic(info).expect("no fault was asked for");
    let mut ends = vec![];
    for n in 0..4u8 {
        engine.reserve(0, 64 * 1024).expect("no fault was asked for");
        engine.admit(0, 1000).expect("no fault was asked for");
        let batch = engine.make_batch(0, &[vec![n; 500]]);
        let fact = engine.batch_fact(0, &batch);
        engine.write(0, &[fact]).expect("no fault was asked for");
        ends.push((batch.header.offset.get(), batch.header.end().offset));
        engine.parts[0].pending.push(batch);
        if n == 0 {
            engine.checkpoint(0).expect("no fault was asked for");
        }
    }
    engine.flush(0).expect("no fault was asked for");
    (engine, ends.split_off(1))
}

/// The commit log tells without the journal that the log goes on behind a damaged batch.
#[test]
fn a_commit_record_tells_of_the_batches_behind_a_damaged_one() {
    for whole_batch in [false, true] {
        let (engine, batches) = three_behind(1);
        let generation = engine.generation;
        let mut disk = engine.disk;
        let base = engine.parts[0].bases.last().copied().expect("it has a segment");
        let segment = FileId::Segment(engine.parts[0].dir.clone(), base).to_string();
        let at = segment_at(base, batches[0].0) + if whole_batch { 0 } else { 200 };
        disk.scribble(&segment, at, &[0xee; 128]);
        disk.lose("journal/0", None);
        let accept = RecoverOptions { accept_lost_journal: generation, ..options(1, 9) };
        let found = recover(&mut disk, &accept).expect("the loss is accepted");
        let log = log_of(&disk, &found.partitions[0]).expect("the log is whole");
        let is_readable = |h: &BatchHeader| !h.is_lost();
        let there: Vec<(i64, bool)> = log.iter().map(|(h, b)| (h.offset.get(), b.is_some() && is_readable(h))).take(4).collect();
        let expected: Vec<(i64, bool)> =
            [(0, true)].into_iter().chain(batches.iter().enumerate().map(|(i, b)| (b.0, i > 0))).collect();
        assert_eq!(there, expected, "{:?}", found.report);
        assert!(found.partitions[0].damage.doubt().is_suspect() && found.partitions[0].end.offset >= batches[2].1);
        let named = |f: &Finding| f.file.to_string() == segment && f.what.contains("commit record names");
        assert!(found.report.findings.iter().any(named), "{:?}", found.report);
    }
}

/// Records behind the end would be taken for promises once the log has grown to their place.
#[test]
fn records_behind_the_end_of_a_commit_log_are_cleared() {
    let (engine, _) = three_behind(2);
    let (mut disk, dir) = (engine.disk, engine.parts[0].dir.clone());
    let found = recover(&mut disk, &options(1, 3)).expect("it is whole");
    let part = &found.partitions[0];
    let base = part.files.segments.last().expect("it has a segment").base.offset;
    let commit = FileId::Commit(dir, base).to_string();
    let at = commit_at(part.files.commit_records);
    disk.scribble(&commit, at + 128, &[0x77; 64]);
    let found = recover(&mut disk, &options(1, 4)).expect("it goes on");
    assert!(!found.report.has_damage(), "{:?}", found.report);
    let cleared = |f: &Finding| f.file.to_string() == commit && f.what.contains("cleared");
    assert!(found.report.findings.iter().any(cleared), "{:?}", found.report);
    assert!(disk.contents_of(&commit)[at as usize..].iter().all(|&b| b == 0));
    let again = recover(&mut disk, &options(1, 5)).expect("it goes on");
    assert!(!again.report.findings.iter().any(cleared), "{:?}", again.report);
}

/// A segment may stand on the space of another one, so anything may stand behind its end: also what a message holds.
#[test]
fn only_a_newer_batch_of_this_very_place_halts_a_start() {
    let (engine, batches) = three_behind(3);
    let dir = engine.parts[0].dir.clone();
    let base = engine.parts[0].bases.last().copied().expect("it has a segment");
    let segment = FileId::Segment(dir.clone(), base).to_string();
    let end = batches[2].1;
    let newer = |offset: i64, topic_id: TopicId| {
        let at = segment_at(base, batches[2].0) as usize;
        let stored = &engine.disk.contents_of(&segment)[at..at + BATCH_HEADER_LEN];
        let mut h = BatchHeader::read_from_bytes(stored).expect("it is a header");
        (h.version, h.offset, h.topic_id) = (9.into(), offset.into(), topic_id.0);
        h.seal();
        let mut disk = engine.disk.clone();
        disk.scribble(&segment, segment_at(base, end), h.as_bytes());
        recover(&mut disk, &options(1, 4)).map(|r| (r.report.has_damage(), r.partitions[0].end.offset))
    };
    for (offset, topic_id) in [(end + 128, dir.topic_id), (end, TopicId([0x55; 16]))] {
        let (has_damage, found) = newer(offset, topic_id).expect("it is nobody's");
        assert!(!has_damage && found >= end && found < end + 128, "{found} behind {end}");
    }
    assert!(matches!(newer(end, dir.topic_id), Err(RecoverError::Unknown { .. })));
}

/// The writer continues the last block from the bytes that are read of it: rotten bytes would be written again with each batch.
#[test]
fn rot_among_the_last_records_of_a_commit_log_is_mended_at_once() {
    for bytes in [12, 4, 60] {
        let (engine, _) = three_behind(2);
        let mut disk = engine.disk;
        let found = recover(&mut disk, &options(1, 3)).expect("it is whole");
        let part = &found.partitions[0];
        let base = part.files.segments.last().expect("it has a segment").base.offset;
        let commit = FileId::Commit(part.dir.clone(), base).to_string();
        disk.flip(&commit, commit_at(1) + bytes, 3);
        assert!(log_of(&disk, part).is_err());
        let found = recover(&mut disk, &options(1, 4)).expect("it goes on");
        assert!(!found.report.has_damage() && found.partitions[0].damage.doubt() == part.damage.doubt(), "{:?}", found.report);
        assert!(found.report.findings.iter().any(|f| f.file.to_string() == commit), "{:?}", found.report);
        assert_eq!(log_of(&disk, &found.partitions[0]).map(|log| log.len()), Ok(4));
        let again = recover(&mut disk, &options(1, 5)).expect("it goes on");
        assert!(again.report.findings.is_empty(), "{:?}", again.report);
    }
}

/// Retention removed everything, and no batch came behind that for which there would be another segment: a replica that begins there
/// needs the crc to which the next batch is chained.
#[test]
fn a_start_within_a_segment_tells_the_batch_before_it() {
    let (mut engine, _) = three_behind(3);
    let (start, chain_crc) = (engine.parts[0].end, engine.parts[0].chain_crc);
    let gone = engine.position_fact(0, RecordKind::Start, start);
    engine.write(0, &[gone]).expect("no fault was asked for");
    let told = |disk: &mut SimDisk, seed: u64| {
        let recovered = recover(disk, &options(1, seed)).expect("it is whole");
        let part = recovered.partitions[0].clone();
        assert!(part.files.segments[0].base.offset < start.offset && chain_crc != 0, "{part:?}");
        let log = crate::log::partition::PartitionLog::new(part.clone(), Epoch(9), 5);
        assert_eq!(crate::log::view::View::new(&log).start(), (start, chain_crc));
        (recovered, part.end)
    };
    let mut disk = engine.disk;
    let (recovered, end) = told(&mut disk, 3);
    assert_eq!(end, start);
    let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
    engine.reserve(0, 64 * 1024).expect("no fault was asked for");
    engine.admit(0, 1000).expect("no fault was asked for");
    let batch = engine.make_batch(0, &[vec![9; 500]]);
    let fact = engine.batch_fact(0, &batch);
    engine.write(0, &[fact]).expect("no fault was asked for");
    let (_, end) = told(&mut engine.disk, 4);
    assert_eq!(end, batch.header.end());
}

/// The older one says how far to look all the same (`journal::limit`).
#[test]
fn a_checkpoint_slot_that_was_never_written_or_rots_hides_no_write() {
    let slots = |disk: &SimDisk| disk.contents_of("journal/0")[..2 * BLOCK].to_vec();
    let mut moved = 0;
    for count in 2..47u8 {
        let mut disk = SimDisk::new(count as u64);
        let first = recover(&mut disk, &options(1, 1)).expect("an empty disk recovers");
        let mut engine = Engine::new(disk, first, SEGMENT_BYTES);
        let info = TopicInfo { name: TopicName::new("t").expect("it is valid"), id: TopicId([7; 16]), partitions: 1 };
        engine.create_topic(info).expect("no fault was asked for");
        let (mut now, mut end) = (slots(&engine.disk), 0);
        let mut older = now.clone();
        for n in 0..count {
            engine.admit(0, 1000).expect("no fault was asked for");
            let batch = engine.make_batch(0, &[vec![n; 500]]);
            let fact = engine.batch_fact(0, &batch);
            engine.write(0, &[fact]).expect("no fault was asked for");
            end = batch.header.end().offset;
            let next = slots(&engine.disk);
            if next != now {
                older = std::mem::replace(&mut now, next);
            }
        }
        moved += (older != now) as u32;
        let newest = (engine.journals[0].identity.slot_sequence % 2) as usize * BLOCK;
        for is_rotten in [false, true] {
            let mut disk = engine.disk.clone();
            match is_rotten {
                false => disk.scribble("journal/0", newest as u64, &older[newest..newest + BLOCK]),
                true => disk.flip("journal/0", newest as u64 + 50, 3),
            }
            disk.crash();
            let found = recover(&mut disk, &options(1, 9)).expect("it goes on");
            assert_eq!(found.partitions[0].end.offset, end, "{count} writes, {is_rotten}: {:?}", found.report);
            assert!(!found.report.has_damage(), "{:?}", found.report);
        }
    }
    assert!(moved > 20, "{moved}");
}

/// A replica that lost its snapshot took all that it had for committed, and the leader, which lacked a batch that was never
/// acknowledged, waited for an operator (seed 88120260001839).
#[test]
fn a_replica_without_its_snapshot_does_not_know_what_is_committed() {
    let (engine, _) = three_behind(3);
    let dir = engine.parts[0].dir.clone();
    let end = engine.parts[0].end;
    let mut disk = engine.disk;
    for slot in 0..SLOTS {
        let path = FileId::Snapshot(dir.clone(), slot).to_string();
        if disk.len_of(&path) > 0 {
            disk.scribble(&path, 0, &[0xa5; 64]);
        }
    }
    let clustered = RecoverOptions { is_clustered: true, ..options(1, 4) };
    let (mut alone, mut replica) = (disk.clone(), disk);
    let found = recover(&mut replica, &clustered).expect("it goes on");
    let p = &found.partitions[0];
    assert!(p.epoch.0 <= found.generation && p.promised == Epoch(0) && p.damage.doubt() == Doubt::Lost, "{p:?}");
    assert_eq!((p.end, p.committed), (end, p.start));
    let found = recover(&mut alone, &options(1, 4)).expect("it goes on");
    assert_eq!((found.partitions[0].end, found.partitions[0].committed), (end, end), "alone it has all that there is");
}

/// Seed 71114 of the cluster's simulator. The torn write leaves the head of an old write, and nothing of its records.
#[test]
fn a_torn_write_over_what_the_older_slot_passed_is_no_damage_when_the_newer_slot_rots() {
    use crate::format::journal::{JournalIdentity, RecordHeader, WriteHeader};
    use crate::journal::replay::{self, ReadAhead, Slots, WriteAction};
    use crate::journal::ring::{Record, Ring};

    let (core, journal_id, file_len) = (CoreId(1), [3; 16], Ring::<u64>::FILE_LEN_MIN);
    let mut ring = Ring::new(core, JournalIdentity { journal_id, generation: 2, file_len, slot_sequence: 6 });
    let mut file = vec![0; file_len as usize];
    let bytes = |op: &DiskOp| {
        let DiskOp::Write { at, parts, .. } = op else { panic!("a ring writes") };
        (*at as usize, parts.concat())
    };
    let put = |file: &mut [u8], op: &DiskOp| {
        let (at, bytes) = bytes(op);
        file[at..at + bytes.len()].copy_from_slice(&bytes);
        at
    };
    let queue = |ring: &mut Ring<u64>, n: u64| {
        let payload = bytes::Bytes::from(vec![n as u8; 6_000]);
        let header = RecordHeader::new(RecordKind::Committed, TopicId([1; 16]), 0, n, 2, &payload);
        ring.queue(Record { header, payload, slot: 0, end: Position::START, note: n });
    };
    let mut slot_at = 0;
    for n in 1..=37 {
        queue(&mut ring, n);
        // the last two say the same about redo
        if [20, 35, 36].contains(&n) {
            slot_at = put(&mut file, &ring.checkpoint(20));
            ring.checkpointed();
        }
        while let Some(op) = ring.move_limit(false) {
            slot_at = put(&mut file, &op);
            ring.checkpointed();
        }
        let (sequence, op) = ring.pack(|_, _| {}).expect("the ring has space");
        put(&mut file, &op);
        ring.wrote(sequence);
        ring.next_durable().expect("nothing else is in flight");
    }
    queue(&mut ring, 38);
    let (sequence, op) = ring.pack(|_, _| {}).expect("the ring has space");
    let (at, torn) = bytes(&op);
    let old = WriteHeader::parse(&file[at..], &journal_id, core, IO_BYTES_MAX).unwrap().header;
    assert_eq!((sequence, old.sequence.get(), torn.len()), (38, 6, 2 * BLOCK), "the next lap");
    file[at + BLOCK..at + 2 * BLOCK].copy_from_slice(&torn[BLOCK..]);
    file[slot_at + 20] ^= 1;

    let mut disk = SimDisk::new(1);
    disk.scribble(&FileId::Journal(1).to_string(), 0, &file);
    let found = replay::scan(&mut disk, 1, 2).unwrap();
    assert_eq!((found.slots, found.first, found.promised), (Slots::OneBad, 20, 36));
    let mut ahead = ReadAhead::default();
    for sequence in found.first..=37 {
        let write = found.read(&mut disk, &mut ahead, sequence).unwrap();
        assert_eq!(write.action, WriteAction::Apply, "{sequence}: {:?}", write.bad);
    }
    assert_eq!(found.read(&mut disk, &mut ahead, 38).unwrap().action, WriteAction::End);
}
