//! FINs of a channel of which the snapshot tells nothing.

use super::*;

/// The snapshot has the channels as they are when it is taken, but contains for sure only what stands before the first batch that it does
/// not hold: all behind that is redone over it. Here a FIN, and perhaps the deletion of its channel.
fn found(is_deleted: bool) -> Recovered {
    let mut disk = SimDisk::new(3);
    let first = recover(&mut disk, &options(1, 3)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, first, SEGMENT_BYTES);
    let info = TopicInfo { name: TopicName::new("t").expect("it is valid"), id: TopicId([7; 16]), partitions: 1 };
    engine.create_topic(info).expect("no fault was asked for");
    engine.admit(0, 9000).expect("no fault was asked for");
    let batch = engine.make_batch(0, &[vec![1; 500]]);
    let mut facts = vec![engine.batch_fact(0, &batch)];
    facts.extend(engine.confirm(0, "ch", &[Interval { start: LogId(1), end: batch.header.end() }]));
    engine.parts[0].pending.push(batch);
    if is_deleted {
        let image = engine.parts[0].channels[0].clone();
        facts.push(engine.cursor_fact(0, RecordKind::ChannelDelete, &image));
    }
    engine.write(0, &facts).expect("no fault was asked for");
    engine.parts[0].channels.clear();
    let behind = 1 + is_deleted as u64;
    engine.parts[0].record_sequence -= behind;
    engine.snapshot(0).expect("no fault was asked for");
    engine.parts[0].record_sequence += behind;
    engine.disk.crash();
    recover(&mut engine.disk, &options(1, 4)).expect("it recovers")
}

#[test]
fn fins_of_a_channel_that_is_deleted_behind_them_are_no_damage() {
    let (deleted, lost) = (found(true), found(false));
    assert!(!deleted.report.has_damage() && deleted.partitions[0].channels.is_empty(), "{:?}", deleted.report);
    assert!(!deleted.partitions[0].doubt.is_suspect());
    assert!(lost.report.has_damage() && lost.partitions[0].channels.len() == 1, "{:?}", lost.report);
}
