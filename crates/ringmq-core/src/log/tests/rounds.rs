//! How many partitions are flushed at a time, and who goes first.

use super::*;
use crate::log::flush::{ROUNDS_CALM, ROUNDS_MAX};
use std::collections::BTreeSet;

fn is_segment(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Write { file: FileId::Segment(..), .. })
}

fn is_snapshot_space(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Allocate { file: FileId::Snapshot(..), .. })
}

/// Partitions with one message each, which is in the journal and not in its segment.
fn published(rig: &mut Rig, count: usize) -> Vec<PartitionIdx> {
    let parts: Vec<_> = (0..count).map(|n| rig.create(&format!("t{n}"))).collect();
    for &p in &parts {
        rig.publish(p, &[7; 300]);
    }
    rig.settle();
    parts
}

/// The partitions whose segments are being written to.
fn written(rig: &Rig) -> BTreeSet<FileId> {
    rig.disk.pending.iter().filter(|(_, op)| is_segment(op)).filter_map(|(_, op)| op.file().cloned()).collect()
}

/// Starts the partitions' rounds, as many as may begin: each asks for space for a snapshot.
fn ask_for_space(rig: &mut Rig, parts: &[PartitionIdx]) {
    for &p in parts {
        rig.store.core.part_mut(p).slots.forget_space();
        rig.store.core.part_mut(p).flush.want_snapshot(false);
        rig.store.flushing.want(&mut rig.store.core, p, false);
    }
    rig.turn_end();
    while let Some(index) = rig.find(|op| !is_snapshot_space(op)) {
        rig.complete(index);
    }
}

/// Appends what is long enough to go straight to its segment.
fn append_direct(rig: &mut Rig, p: PartitionIdx) -> AppendTicket {
    loop {
        match rig.append(p, &[&[1; 40 * 1024]]) {
            Ok(ticket) => break ticket,
            Err(Refusal::Busy) => {
                let index = rig
                    .find(|op| matches!(op, DiskOp::AllocateSegment { .. } | DiskOp::Allocate { .. }) && !is_snapshot_space(op));
                rig.complete(index.expect("it waits for space"));
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_checkpoint_flushes_few_partitions_at_a_time_until_the_ring_fills() {
    let mut rig = Rig::new(options());
    let parts: Vec<_> = (0..40).map(|n| rig.create(&format!("t{n}"))).collect();
    let mut in_rounds = |goes_on: &dyn Fn(&Store) -> bool| {
        let mut turns = 0;
        while goes_on(&rig.store) {
            for &p in &parts {
                rig.append(p, &[&[7; 300]]).unwrap();
            }
            rig.turn_end();
            while let Some(index) = rig.find(|op| !is_segment(op)) {
                rig.complete(index);
            }
            turns += 1;
            assert!(turns < 1000, "it comes to that");
        }
        written(&rig).len()
    };
    assert_eq!(in_rounds(&|store| !store.flushing.is_checkpointing()), ROUNDS_CALM);
    assert_eq!(in_rounds(&|store| store.core.ring.used() * 16 < store.core.ring.capacity() * 9), ROUNDS_CALM, "there is time");
    assert_eq!(in_rounds(&|store| store.flushing.rounds().background() == ROUNDS_CALM), ROUNDS_MAX, "there is not");
    rig.settle();
    assert!(rig.store.flushing.rounds().background() == 0 && !rig.store.flushing.is_checkpointing());
    for p in parts {
        let durable = rig.store.durable_end(p).count as usize;
        assert_eq!(rig.read_all(p).len(), durable);
    }
}

#[test]
fn rounds_that_wait_for_space_keep_nobody_from_beginning_and_no_stop() {
    let mut rig = Rig::new(options());
    let parts = published(&mut rig, ROUNDS_MAX + 2);
    let (last, stuck) = parts.split_last().expect("some");
    ask_for_space(&mut rig, stuck);
    assert_eq!(
        (rig.disk.pending.len(), rig.store.flushing.rounds().background()),
        (ROUNDS_CALM, ROUNDS_CALM),
        "these may end yet"
    );
    while rig.store.flushing.rounds().stalled().len() < stuck.len() {
        match rig.find(is_snapshot_space) {
            Some(index) => drop(rig.fail(index, true)),
            None => rig.complete(0),
        }
    }
    assert_eq!(rig.store.flushing.rounds().background(), 0, "these may not end for long");
    rig.store.flushing.want(&mut rig.store.core, *last, false);
    rig.turn_end();
    assert_eq!(written(&rig).len(), 1);
    rig.settle();
    rig.store.stop(rig.now, &NoCursors, &mut rig.io);
    rig.settle();
    assert!(rig.notices.contains(&Notice::Stopped), "what they wait for stays in the journal");
    rig.tick(1100);
    rig.settle();
    assert!(rig.store.flushing.rounds().background() == 0 && rig.store.flushing.rounds().stalled().is_empty());
}

#[test]
fn a_direct_batch_goes_before_what_nobody_waits_for() {
    let mut rig = Rig::new(options());
    let parts = published(&mut rig, ROUNDS_CALM + 2);
    for &p in &parts {
        rig.store.flushing.want(&mut rig.store.core, p, false);
    }
    rig.turn_end();
    assert_eq!((written(&rig).len(), rig.store.flushing.rounds().calm()), (ROUNDS_CALM, 2));
    let last = parts[ROUNDS_CALM + 1];
    let ticket = append_direct(&mut rig, last);
    rig.turn_end();
    while let Some(index) = rig.find(|op| !is_segment(op)) {
        rig.complete(index);
    }
    assert_eq!((written(&rig).len(), rig.store.flushing.rounds().calm()), (ROUNDS_CALM + 1, 1), "its round has begun");
    let file = FileId::Segment(rig.store.dir(last).clone(), 0);
    while let Some(index) = rig.find(|op| !is_segment(op) || op.file() == Some(&file)) {
        rig.complete(index);
        rig.turn_end();
    }
    let is_acknowledged =
        |n: &Notice| matches!(n, Notice::Durable { p, tickets_upto, .. } if *p == last && *tickets_upto == ticket);
    assert!(rig.notices.iter().any(is_acknowledged), "while the others still write");
    rig.settle();
    assert_eq!(rig.store.flushing.rounds().background(), 0);
}

#[test]
fn streams_of_direct_batches_leave_room_for_other_rounds() {
    let mut rig = Rig::new(options());
    let parts = published(&mut rig, 2 * ROUNDS_CALM);
    let (streams, others) = parts.split_at(ROUNDS_CALM);
    for &p in streams {
        append_direct(&mut rig, p);
    }
    rig.turn_end();
    assert_eq!((written(&rig).len(), rig.store.flushing.rounds().background()), (ROUNDS_CALM, 0));
    for &p in others {
        rig.store.flushing.want(&mut rig.store.core, p, false);
    }
    rig.turn_end();
    assert_eq!((written(&rig).len(), rig.store.flushing.rounds().background()), (2 * ROUNDS_CALM, ROUNDS_CALM));
    rig.settle();
    assert_eq!(rig.store.flushing.rounds().background(), 0);
}

fn no_space(rig: &mut Rig) {
    let index = rig.find(is_snapshot_space).expect("it asks for space");
    rig.fail(index, true);
}

/// Ends all operations but those of a snapshot's space.
fn others_end(rig: &mut Rig) {
    rig.turn_end();
    while let Some(index) = rig.find(|op| !is_snapshot_space(op)) {
        rig.complete(index);
        rig.turn_end();
    }
}

#[test]
fn a_direct_batch_does_not_wait_for_the_space_of_a_snapshot() {
    for comes_first in [false, true] {
        let mut rig = Rig::new(options());
        let p = published(&mut rig, 1)[0];
        ask_for_space(&mut rig, &[p]);
        if !comes_first {
            no_space(&mut rig);
        }
        let ticket = append_direct(&mut rig, p);
        rig.turn_end();
        if comes_first {
            no_space(&mut rig);
        }
        others_end(&mut rig);
        let is_acknowledged =
            |n: &Notice| matches!(n, Notice::Durable { p: at, tickets_upto, .. } if *at == p && *tickets_upto == ticket);
        assert!(rig.notices.iter().any(is_acknowledged), "before the stall: {comes_first}");
        // The snapshot is not forgotten.
        no_space(&mut rig);
        assert_eq!((rig.store.flushing.rounds().stalled().len(), rig.store.flushing.rounds().background()), (1, 0));
        rig.tick(1100);
        rig.settle();
        assert!(rig.store.flushing.rounds().background() == 0 && rig.store.flushing.rounds().stalled().is_empty());
        assert_eq!(rig.read_all(p).len(), 2);
    }
}

#[test]
fn that_a_checkpoint_lacks_space_holds_until_there_is_some() {
    let mut rig = Rig::new(options());
    let p = published(&mut rig, 1)[0];
    ask_for_space(&mut rig, &[p]);
    assert!(!rig.store.checkpoint_lacks_space(), "it may get some");
    for _ in 0..3 {
        no_space(&mut rig);
        assert!(rig.store.checkpoint_lacks_space());
        rig.tick(1100);
        assert!(rig.store.checkpoint_lacks_space(), "also while it is asked for again");
    }
    rig.settle();
    assert!(!rig.store.checkpoint_lacks_space());
}

#[test]
fn a_topic_file_that_failed_lacks_no_space() {
    let mut rig = Rig::new(options());
    let d = dir("t");
    let info = TopicInfo { name: d.topic.clone(), id: d.topic_id, partitions: 1 };
    rig.store.log_topic_create(&info, rig.now.unix_ns, &mut rig.io);
    rig.turn_end();
    let space = |op: &DiskOp| matches!(op, DiskOp::Allocate { file: FileId::Topic(..), .. });
    for (no_space, lacks) in [(true, true), (true, true), (false, false)] {
        let index = rig.find(space).expect("it is asked for");
        rig.fail(index, no_space);
        assert_eq!(rig.store.checkpoint_lacks_space(), lacks);
        rig.tick(1100);
        assert_eq!(rig.store.checkpoint_lacks_space(), lacks, "a second later");
    }
}

/// Logs facts of so many bytes at once. Returns the last one's ticket.
fn log_facts(rig: &mut Rig, p: PartitionIdx, bytes: u64) -> RecordTicket {
    let until = rig.store.queued_bytes() + bytes;
    let mut last = RecordTicket(0);
    while rig.store.queued_bytes() < until {
        last = rig.store.log_collect_start(p, Position::START);
    }
    last
}

/// No write is in flight while they wait for a slot, of the limit or of a checkpoint, or for what the checkpoint waits for.
#[test]
fn more_facts_than_the_journal_holds_wait_for_the_checkpoint_that_frees_it() {
    for is_newest_first in [false, true] {
        let mut rig = Rig::new(options());
        let p = published(&mut rig, 1)[0];
        let last = log_facts(&mut rig, p, 4 * MIB);
        rig.turn_end();
        while !rig.disk.pending.is_empty() {
            rig.complete(if is_newest_first { rig.disk.pending.len() - 1 } else { 0 });
            rig.turn_end();
        }
        assert!(!rig.store.is_read_only() && rig.store.queued_bytes() == 0, "newest first: {is_newest_first}");
        assert!(rig.notices.contains(&Notice::RecordDurable { upto: last }) && rig.laps() > 2);
    }
}

#[test]
fn more_facts_than_the_journal_holds_close_it_when_the_disk_is_full() {
    let mut rig = Rig::new(options());
    let p = published(&mut rig, 1)[0];
    ask_for_space(&mut rig, &[p]);
    no_space(&mut rig);
    log_facts(&mut rig, p, 2 * MIB);
    others_end(&mut rig);
    let (waiting, capacity) = (rig.store.queued_bytes(), rig.store.core.ring.capacity());
    assert!(waiting > 0 && waiting <= capacity && !rig.store.is_read_only(), "{waiting}");
    log_facts(&mut rig, p, MIB);
    rig.tick(1100);
    rig.turn_end();
    assert!(!rig.store.is_read_only(), "it is asked for space again");
    no_space(&mut rig);
    rig.turn_end();
    assert!(rig.store.is_read_only() && rig.store.queued_bytes() == 0);
}
