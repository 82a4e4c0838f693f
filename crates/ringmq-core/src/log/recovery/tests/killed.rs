//! A process is killed, so that what it wrote last stands in the device's cache alone, or it sees a write or a sync fail,
//! after which no later sync is to be trusted with it. A startup finds it whole and acts by it, and the power goes on the way
//! of that start or behind it.

use super::*;
use crate::format::journal::RecordKind;
use crate::format::meta::TopicMeta;
use crate::format::snapshot::Snapshot;
use crate::format::storage::{Storage, overlay};
use crate::sim::disk::{Faults, NO_FAULTS};

const FAILING: Faults = Faults { write_error: 1.0, sync_error: 1.0, ..NO_FAULTS };

/// Operations of a startup after which the power goes.
const OPS: u64 = 60;

/// A node with a topic of one partition that stands in its files and a snapshot, and a ring that knows of it by a later batch.
fn node(seed: u64) -> Engine {
    let mut disk = SimDisk::new(seed);
    let recovered = recover(&mut disk, &options(1, seed)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, recovered, SEGMENT_BYTES);
    let info = TopicInfo { name: TopicName::new("t").unwrap(), id: TopicId([6; 16]), partitions: 1 };
    engine.create_topic(info).expect("no fault");
    // So many that no sector holds a whole snapshot.
    let facts: Vec<_> = (0..12).flat_map(|n| engine.confirm(0, &format!("channel{n}"), &[])).collect();
    engine.write(0, &facts).expect("no fault");
    publish(&mut engine);
    engine.checkpoint(0).expect("no fault");
    publish(&mut engine);
    engine
}

fn publish(engine: &mut Engine) {
    engine.admit(0, 1000).expect("no fault");
    let batch = engine.make_batch(0, &[vec![1; 500]]);
    let fact = engine.batch_fact(0, &batch);
    engine.write(0, &[fact]).expect("no fault");
    engine.parts[0].pending.push(batch);
}

/// A startup that loses power after so many operations, and one that ends.
fn start_twice(mut disk: SimDisk, after: u64) -> (SimDisk, Recovered) {
    disk.faults.crash_after = Some(after);
    let is_cut_short = recover(&mut disk, &options(1, 2)).is_err();
    assert!(is_cut_short == disk.is_crashed(), "nothing else is wrong");
    disk.crash();
    let recovered = recover(&mut disk, &options(1, 3)).unwrap_or_else(|e| panic!("after {after}: {e}"));
    (disk, recovered)
}

#[test]
fn a_deleted_topic_is_gone_with_its_record_or_there_with_all_it_had() {
    let (mut gone, mut there) = (0, 0);
    for (seed, after) in (0..16).flat_map(|seed| (0..OPS / 2).map(move |after| (seed, after))) {
        let mut engine = node(seed);
        let end = engine.parts[0].end;
        match seed % 2 {
            0 => engine.disk.faults.crash_after = Some(0),
            _ => engine.disk.faults = FAILING,
        }
        let record = (RecordKind::TopicDelete, None, Bytes::new(), TopicId([6; 16]));
        engine.write(0, &[record]).expect_err("it is in flight when the process dies, or fails");
        engine.disk.faults = Faults::default();
        engine.disk.kill();
        let (_, recovered) = start_twice(engine.disk, after);
        assert!(!recovered.report.has_damage(), "seed {seed}, after {after}: {:?}", recovered.report);
        match &recovered.partitions[..] {
            [] => gone += 1,
            [p] => {
                assert_eq!(p.end, end, "seed {seed}, after {after}");
                there += 1;
            }
            more => panic!("{} partitions", more.len()),
        }
    }
    assert!(gone > 100 && there > 100, "{gone} {there}");
}

#[test]
fn a_snapshot_in_the_cache_is_durable_before_the_other_slot_is_written_over() {
    let mut began = 0;
    for (seed, after) in (0..3).flat_map(|seed| (0..OPS).map(move |after| (seed, after))) {
        let mut engine = node(seed);
        let sequence = engine.parts[0].snapshot_sequence + 1;
        let file = Snapshot::file(&engine.parts[0].dir, sequence);
        // The last operation of the snapshot is its write.
        engine.flush(0).expect("no fault");
        for operations in 0.. {
            engine.disk.faults.crash_after = Some(operations);
            engine.parts[0].snapshot_sequence = sequence - 1;
            let is_cut_short = engine.snapshot(0).is_err();
            engine.disk.kill();
            let is_there = engine.disk.contents(&file).and_then(|bytes| Snapshot::len_of(bytes).ok().map(|len| &bytes[..len]));
            let is_there = is_there
                .is_some_and(|b| Snapshot::decode(b, TopicId([6; 16]), PartitionId(0)).is_ok_and(|s| s.sequence == sequence));
            assert!(is_cut_short, "its write is seen in flight");
            if is_there {
                break;
            }
        }
        // Something that it does not have, so that the startup takes one of its own.
        let facts = engine.confirm(0, "later", &[]);
        engine.write(0, &facts).expect("no fault");
        engine.disk.kill();
        let end = engine.parts[0].end;
        let (disk, recovered) = start_twice(engine.disk, after);
        assert!(!recovered.report.has_damage(), "seed {seed}, after {after}: {:?}", recovered.report);
        let p = &recovered.partitions[0];
        assert!(p.end == end && p.channels.len() == 13 && !p.damage.doubt().is_suspect(), "seed {seed}, after {after}: {p:?}");
        began += (p.snapshot_sequence > sequence) as u32;
        assert_eq!(log_of(&disk, p).expect("the log is whole").len(), 2);
    }
    assert!(began > 50, "{began}");
}

/// Recovers, loses power, recovers; nothing that the first startup found may go.
fn survives(mut disk: SimDisk, what: &str) -> Recovered {
    disk.faults = Faults::default();
    let first = recover(&mut disk, &options(1, 2)).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(!first.report.has_damage(), "{what}: {:?}", first.report);
    disk.crash();
    let again = recover(&mut disk, &options(1, 3)).unwrap_or_else(|e| panic!("{what}, again: {e}"));
    assert!(!again.report.has_damage(), "{what}, again: {:?}", again.report);
    assert_eq!(again.partitions.len(), first.partitions.len(), "{what}");
    for (a, b) in again.partitions.iter().zip(&first.partitions) {
        assert!(a.end == b.end && a.channels == b.channels, "{what}: {a:?} was {b:?}");
        assert!(log_of(&disk, a).unwrap_or_else(|e| panic!("{what}: {e}")).iter().all(|(_, batch)| batch.is_some()), "{what}");
    }
    again
}

#[test]
fn a_batch_that_a_failed_write_or_sync_left_is_written_again() {
    let (mut found, mut cut) = (0, 0);
    for seed in 0..60 {
        let mut engine = node(seed);
        engine.flush(0).expect("no fault");
        engine.admit(0, 9000).expect("no fault");
        let end = engine.parts[0].end;
        let batch = engine.make_batch(0, &[vec![2; 8000]]);
        let file = FileId::Segment(engine.parts[0].dir.clone(), 0);
        let disk = &mut engine.disk;
        let faults = if seed % 2 == 0 { FAILING } else { Faults { write_error: 0.0, ..FAILING } };
        Storage::sync(disk, &file).expect("no fault");
        disk.faults = faults;
        let written = overlay(disk, &file, scan::segment_at(0, end.offset), &batch.bytes);
        assert!(written.and_then(|_| Storage::sync(disk, &file)).is_err());
        let recovered = survives(engine.disk, &format!("seed {seed}"));
        match recovered.partitions[0].end {
            e if e == end => cut += 1,
            e => {
                assert_eq!(e, batch.header.end());
                found += 1;
            }
        }
    }
    assert!(found > 20 && cut > 10, "{found} {cut}");
}

#[test]
fn a_snapshot_that_a_failed_write_left_is_written_again() {
    let mut used = 0;
    for seed in 0..40 {
        let mut engine = node(seed);
        engine.flush(0).expect("no fault");
        engine.disk.faults = Faults { sync_error: 0.0, ..FAILING };
        engine.snapshot(0).expect_err("its write fails");
        let (dir, sequence) = (engine.parts[0].dir.clone(), engine.parts[0].snapshot_sequence);
        let left = engine.disk.contents_of(&Snapshot::file(&dir, sequence).to_string());
        used += Snapshot::decode(left, dir.topic_id, dir.partition).is_ok_and(|s| s.sequence == sequence) as u32;
        let recovered = survives(engine.disk, &format!("seed {seed}"));
        let p = &recovered.partitions[0];
        assert!(p.channels.len() == 12 && !p.damage.doubt().is_suspect());
    }
    assert!(used > 5, "{used}");
}

#[test]
fn a_topic_that_a_failed_write_left_is_written_again() {
    for seed in 0..40 {
        let mut engine = node(seed);
        let info = TopicInfo { name: TopicName::new("u").unwrap(), id: TopicId([7; 16]), partitions: 1 };
        engine.create_topic(info.clone()).expect("no fault");
        let file = |copy| FileId::Topic(engine.parts[1].dir.clone(), copy);
        let files = [file(0), file(1)];
        files.iter().for_each(|file| engine.disk.scribble(&file.to_string(), 0, &[0; BLOCK]));
        engine.disk.faults = FAILING;
        let meta = TopicMeta { info, created_unix_ns: 1 };
        for file in &files {
            Storage::write(&mut engine.disk, file, 0, &meta.encode()).expect_err("it fails");
        }
        let recovered = survives(engine.disk, &format!("seed {seed}"));
        assert_eq!(recovered.topics.len(), 2, "seed {seed}");
    }
}

/// Redo brings the journal's batches into segments of their own, and a sync of them fails (seed 90030260001549).
#[test]
fn a_segment_whose_first_block_a_failed_sync_left_is_written_again() {
    let mut failed = 0;
    for seed in 0..40 {
        let mut engine = node(seed);
        for n in 0..12u8 {
            engine.reserve(0, 16 * 1024).expect("no fault");
            let batch = engine.make_batch(0, &[vec![n; 7000]]);
            let fact = engine.batch_fact(0, &batch);
            engine.write(0, &[fact]).expect("no fault");
        }
        engine.disk.crash();
        let small = RecoverOptions { segment_bytes: 16 * 1024, ..options(1, 2) };
        engine.disk.faults = Faults { sync_error: 0.3, ..NO_FAULTS };
        failed += recover(&mut engine.disk, &small).is_err() as u32;
        engine.disk.kill();
        engine.disk.faults = Faults::default();
        let recovered = recover(&mut engine.disk, &small).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let p = &recovered.partitions[0];
        assert!(p.files.segments.len() > 1, "seed {seed}: {:?}", p.files.segments);
        let bases = p.files.segments.iter().map(|m| m.base.offset);
        let files = bases.flat_map(|at| [FileId::Segment(p.dir.clone(), at), FileId::Commit(p.dir.clone(), at)]);
        let paths: Vec<String> = files.map(|file| file.to_string()).collect();
        let firsts = |disk: &SimDisk| paths.iter().map(|path| disk.contents_of(path)[..BLOCK].to_vec()).collect::<Vec<_>>();
        let before = firsts(&engine.disk);
        engine.disk.crash();
        assert!(firsts(&engine.disk) == before, "seed {seed}: a first block is not durable");
        survives(engine.disk, &format!("seed {seed}"));
    }
    assert!(failed > 20, "{failed}");
}

/// A follower takes its leader's collect start at once, and the log up to there later (seed 90030260001808).
#[test]
fn a_replica_whose_log_ends_before_its_leaders_collect_start_is_not_damaged() {
    for (is_replica, is_clustered) in [(true, true), (false, false)] {
        let mut engine = node(1);
        let (end, id) = (engine.parts[0].end, engine.parts[0].dir.topic_id);
        let beyond = Position { offset: end.offset + 500, count: end.count + 1, log_id: LogId(end.log_id.0 + 1) };
        let promise = (RecordKind::Epoch, Some(0), Bytes::copy_from_slice(&9u64.to_le_bytes()), id);
        let facts = [promise, engine.position_fact(0, RecordKind::CollectStart, beyond)];
        engine.write(0, if is_replica { &facts } else { &facts[1..] }).expect("no fault");
        let found = recover(&mut engine.disk, &RecoverOptions { is_clustered, ..options(1, 2) }).expect("it goes on");
        let p = &found.partitions[0];
        assert_eq!((p.collect_start, p.end), (end, end));
        assert_eq!(found.report.has_damage(), !is_replica, "{:?}", found.report);
        assert_eq!(p.damage.doubt().is_suspect(), !is_replica);
    }
}
