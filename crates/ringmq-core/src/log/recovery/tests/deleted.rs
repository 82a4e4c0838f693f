//! FINs of a channel of which the snapshot tells nothing.
//!
//! The snapshot has the channels as they are when it is taken, but contains for sure only what stands before the first batch that it does
//! not hold: all behind that is redone over it. A channel that is being deleted is not in it, though its FINs may stand behind, and the
//! record of the deletion be under way.

use super::*;
use crate::log::recovery::scan::segment_at;

/// Content of the journal behind the FIN when the power goes.
#[derive(Clone, Copy, PartialEq)]
enum Behind {
    Nothing,
    Deletion,
    /// The whole cursor once more.
    Cursor,
    /// A batch, and a record before it is missing.
    Gap,
}

/// Engine with one topic of one partition, which has room.
fn engine() -> Engine {
    let mut disk = SimDisk::new(3);
    let first = recover(&mut disk, &options(1, 3)).expect("an empty disk recovers");
    let mut engine = Engine::new(disk, first, SEGMENT_BYTES);
    let info = TopicInfo { name: TopicName::new("t").expect("it is valid"), id: TopicId([7; 16]), partitions: 1 };
    engine.create_topic(info).expect("no fault was asked for");
    engine.admit(0, 9000).expect("no fault was asked for");
    engine
}

/// `before`: the generation under which the snapshot has the channel.
fn found(behind: Behind, before: Option<u64>) -> Recovered {
    let mut engine = engine();
    let batch = engine.make_batch(0, &[vec![1; 500], vec![2; 500]]);
    let mut facts = vec![engine.batch_fact(0, &batch)];
    facts.extend(engine.confirm(0, "ch", &[Interval { start: LogId(2), end: batch.header.end() }]));
    engine.parts[0].pending.push(batch);
    let image = engine.parts[0].channels[0].clone();
    match behind {
        Behind::Nothing | Behind::Gap => {}
        Behind::Deletion => facts.push(engine.cursor_fact(0, RecordKind::ChannelDelete, &image)),
        Behind::Cursor => facts.push(engine.cursor_fact(0, RecordKind::Cursor, &image)),
    }
    engine.write(0, &facts).expect("no fault was asked for");
    let behind_fin = engine.parts[0].record_sequence;
    let at = engine.parts[0].end;
    if behind == Behind::Gap {
        engine.parts[0].record_sequence += 1;
        let fact = engine.position_fact(0, RecordKind::CollectStart, at);
        engine.write(0, &[fact]).expect("no fault was asked for");
    }
    let written = engine.parts[0].record_sequence;
    let older = |generation| CursorImage { generation, confirmed: at, intervals: vec![], ..image };
    engine.parts[0].channels = before.map(older).into_iter().collect();
    // The batch and the cursor's record are contained.
    assert!(behind_fin >= 3);
    engine.parts[0].record_sequence = 2;
    engine.snapshot(0).expect("no fault was asked for");
    engine.parts[0].record_sequence = written;
    engine.disk.crash();
    let found = recover(&mut engine.disk, &options(1, 4)).expect("it recovers");
    let again = recover(&mut engine.disk, &options(1, 5)).expect("it recovers");
    assert!(!again.report.has_damage() && again.partitions[0].channels == found.partitions[0].channels, "{:?}", again.report);
    found
}

fn is_sound(found: &Recovered) -> bool {
    !found.report.has_damage() && !found.partitions[0].damage.doubt().is_suspect()
}

#[test]
fn fins_of_a_channel_that_is_deleted_behind_them_are_no_damage() {
    let deleted = found(Behind::Deletion, None);
    assert!(is_sound(&deleted) && deleted.partitions[0].channels.is_empty(), "{:?}", deleted.report);
}

#[test]
fn a_deletion_of_which_only_the_snapshot_is_durable_is_no_damage() {
    let deleted = found(Behind::Nothing, None);
    assert!(is_sound(&deleted) && deleted.partitions[0].channels.is_empty(), "{:?}", deleted.report);
    assert!(deleted.report.findings.iter().any(|f| f.what.starts_with("channel ch ")), "{:?}", deleted.report);
}

#[test]
fn fins_before_a_cursor_that_only_the_snapshot_has_are_over() {
    let replaced = found(Behind::Nothing, Some(0));
    let channels = &replaced.partitions[0].channels;
    assert!(is_sound(&replaced) && channels[0].generation == 0 && channels[0].intervals.is_empty(), "{:?}", replaced.report);
    assert_eq!(channels[0].confirmed, replaced.partitions[0].end, "as the snapshot has it");
}

#[test]
fn a_cursor_behind_the_fins_tells_all_of_its_channel() {
    for before in [None, Some(0)] {
        let told = found(Behind::Cursor, before);
        let channels = &told.partitions[0].channels;
        assert!(is_sound(&told) && channels.len() == 1 && channels[0].generation == 1, "{:?}", told.report);
        assert!(!is_confirmed(&channels[0], LogId(1)) && is_confirmed(&channels[0], LogId(2)));
    }
}

#[test]
fn a_channel_is_lost_where_a_record_is_missing() {
    for before in [None, Some(0)] {
        let lost = found(Behind::Gap, before);
        let channels = &lost.partitions[0].channels;
        assert!(lost.report.has_damage() && lost.partitions[0].damage.doubt().is_suspect(), "{:?}", lost.report);
        assert!(channels.len() == 1 && !is_confirmed(&channels[0], LogId(1)) && is_confirmed(&channels[0], LogId(2)));
        assert!(lost.report.findings.iter().any(|f| f.what.starts_with("channel ch was lost")), "{:?}", lost.report);
    }
}

/// Damage that only the FIN tells of is known before the log's end is looked for: there a commit record is believed that names a batch
/// which does not hold.
#[test]
fn a_fin_of_a_channel_that_nothing_made_is_damage_before_the_end_is_found() {
    let mut engine = engine();
    let journaled = engine.make_batch(0, &[vec![1; 500]]);
    let fin = engine.confirm(0, "ch", &[Interval { start: LogId(1), end: journaled.header.end() }]).pop().expect("it confirms");
    let facts = [engine.batch_fact(0, &journaled), fin];
    engine.write(0, &facts).expect("no fault was asked for");
    let not_journaled = engine.make_batch(0, &[vec![2; 500]]);
    let (at, end) = (not_journaled.header.offset.get(), not_journaled.header.end());
    engine.parts[0].pending.extend([journaled, not_journaled]);
    engine.flush(0).expect("no fault was asked for");
    let mut disk = engine.disk;
    disk.kill();
    let segment = disk.paths().find(|p| p.ends_with(".segment")).expect("there is a segment").to_owned();
    disk.scribble(&segment, segment_at(0, at) + 300, &[9; 8]);
    let found = recover(&mut disk, &options(1, 4)).expect("it recovers");
    assert!(found.report.has_damage() && found.partitions[0].damage.doubt().is_suspect(), "{:?}", found.report);
    assert_eq!(found.partitions[0].end, end, "{:?}", found.report);
}
