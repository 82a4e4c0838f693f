//! A process is killed, what it wrote last stands in the device's cache alone, a start acts by it, and the power goes on
//! the way of that start.

use super::*;
use crate::journal::format::RecordKind;
use crate::log::snapshot::Snapshot;

/// Operations of a start after which the power goes.
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

/// A start that loses power after so many operations, and one that ends.
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
    for (seed, after) in (0..6).flat_map(|seed| (0..OPS).map(move |after| (seed, after))) {
        let mut engine = node(seed);
        let end = engine.parts[0].end;
        engine.disk.faults.crash_after = Some(0);
        let record = (RecordKind::TopicDelete, None, Bytes::new(), TopicId([6; 16]));
        engine.write(0, &[record]).expect_err("it is in flight when the process dies");
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
    assert!(gone > 100, "{gone} {there}");
}

#[test]
fn a_snapshot_in_the_cache_is_durable_before_the_other_slot_is_written_over() {
    let mut began = 0;
    for (seed, after) in (0..6).flat_map(|seed| (0..OPS).map(move |after| (seed, after))) {
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
        // Something that it does not have, so that the start takes one of its own.
        let facts = engine.confirm(0, "later", &[]);
        engine.write(0, &facts).expect("no fault");
        engine.disk.kill();
        let end = engine.parts[0].end;
        let (disk, recovered) = start_twice(engine.disk, after);
        assert!(!recovered.report.has_damage(), "seed {seed}, after {after}: {:?}", recovered.report);
        let p = &recovered.partitions[0];
        assert!(p.end == end && p.channels.len() == 13 && !p.suspect, "seed {seed}, after {after}: {p:?}");
        began += (p.snapshot_sequence > sequence) as u32;
        assert_eq!(log_of(&disk, p).expect("the log is whole").len(), 2);
    }
    assert!(began > 100, "{began}");
}
