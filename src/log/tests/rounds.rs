//! How many partitions are flushed at a time, and who goes first.

use super::*;
use crate::log::flush::{ROUNDS_CALM, ROUNDS_MAX};
use std::collections::BTreeSet;

fn is_segment(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Write { file: FileId::Segment(..), .. })
}

/// Each has one message that stands in the journal and not in its segment.
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

/// Appends what is long enough to go straight to its segment.
fn append_direct(rig: &mut Rig, p: PartitionIdx) -> AppendTicket {
    loop {
        match rig.append(p, &[&[1; 40 * 1024]]) {
            Ok(ticket) => break ticket,
            Err(Refusal::Busy) => {
                let index = rig.find(|op| matches!(op, DiskOp::AllocateSegment { .. } | DiskOp::Allocate { .. }));
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
    assert_eq!(in_rounds(&|store| store.running.is_none()), ROUNDS_CALM);
    assert_eq!(in_rounds(&|store| store.ring.used() * 16 < store.ring.capacity() * 9), ROUNDS_CALM, "there is time");
    assert_eq!(in_rounds(&|store| store.rounds == ROUNDS_CALM), ROUNDS_MAX, "there is not");
    rig.settle();
    assert!(rig.store.rounds == 0 && rig.store.running.is_none());
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
    let is_snapshot = |op: &DiskOp| matches!(op, DiskOp::Allocate { file: FileId::Snapshot(..), .. });
    for &p in stuck {
        rig.store.part_mut(p).snapshot_len = [0; 2];
        rig.store.part_mut(p).flush.want_snapshot(false);
        rig.store.want_flush(p, false);
    }
    rig.turn_end();
    while let Some(index) = rig.find(|op| !is_snapshot(op)) {
        rig.complete(index);
    }
    assert_eq!((rig.disk.pending.len(), rig.store.rounds), (ROUNDS_CALM, ROUNDS_CALM), "these may end yet");
    while rig.store.stalled_snapshots.len() < stuck.len() {
        match rig.find(is_snapshot) {
            Some(index) => drop(rig.fail(index, true)),
            None => rig.complete(0),
        }
    }
    assert_eq!(rig.store.rounds, 0, "these may not end for long");
    rig.store.want_flush(*last, false);
    rig.turn_end();
    assert_eq!(written(&rig).len(), 1);
    rig.settle();
    rig.store.stop(rig.now, &NoCursors, &mut rig.io);
    rig.settle();
    assert!(rig.notices.contains(&Notice::Stopped), "what they wait for stays in the journal");
    rig.tick(1100);
    rig.settle();
    assert!(rig.store.rounds == 0 && rig.store.stalled_snapshots.is_empty());
}

#[test]
fn a_direct_batch_goes_before_what_nobody_waits_for() {
    let mut rig = Rig::new(options());
    let parts = published(&mut rig, ROUNDS_CALM + 2);
    for &p in &parts {
        rig.store.want_flush(p, false);
    }
    rig.turn_end();
    assert_eq!((written(&rig).len(), rig.store.flush_queue.len()), (ROUNDS_CALM, 2));
    let last = parts[ROUNDS_CALM + 1];
    let ticket = append_direct(&mut rig, last);
    rig.turn_end();
    while let Some(index) = rig.find(|op| !is_segment(op)) {
        rig.complete(index);
    }
    assert_eq!((written(&rig).len(), rig.store.flush_queue.len()), (ROUNDS_CALM + 1, 1), "its round has begun");
    let file = FileId::Segment(rig.store.dir(last).clone(), 0);
    while let Some(index) = rig.find(|op| !is_segment(op) || op.file() == Some(&file)) {
        rig.complete(index);
        rig.turn_end();
    }
    let is_acknowledged =
        |n: &Notice| matches!(n, Notice::Durable { p, tickets_upto, .. } if *p == last && *tickets_upto == ticket);
    assert!(rig.notices.iter().any(is_acknowledged), "while the others still write");
    rig.settle();
    assert_eq!(rig.store.rounds, 0);
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
    assert_eq!((written(&rig).len(), rig.store.rounds), (ROUNDS_CALM, 0));
    for &p in others {
        rig.store.want_flush(p, false);
    }
    rig.turn_end();
    assert_eq!((written(&rig).len(), rig.store.rounds), (2 * ROUNDS_CALM, ROUNDS_CALM));
    rig.settle();
    assert_eq!(rig.store.rounds, 0);
}
