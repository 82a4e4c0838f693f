//! Batches that are written only once: long ones, and a stream of shorter ones.

use super::*;
use crate::base::Durability;
use crate::format::journal::JournalIdentity;

fn is_journal(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Write { file: FileId::Journal(_), .. })
}

fn is_segment(op: &DiskOp) -> bool {
    matches!(op, DiskOp::Write { file: FileId::Segment(..), durability: Durability::Durable, .. })
}

fn roomy() -> StoreOptions {
    let journal = JournalIdentity { file_len: 8 * MIB, ..options().journal };
    StoreOptions { journal, max_bytes_per_file: 16 * MIB, flush_bytes: MIB, max_pub_waiting_size: 8 * MIB, ..options() }
}

#[test]
fn a_direct_batch_goes_on_with_the_write_that_it_ends_in() {
    let mut rig = Rig::new(roomy());
    let p = rig.create("t");
    // A later round need not sync what was written before it.
    rig.publish(p, &vec![1; 40_000]);
    rig.settle();
    let space = rig.store.append(rig.now, p, std::iter::once(&vec![0; 3_000_000][..]), 1, 3_000_000, &mut rig.io);
    assert!(space.is_err(), "the segment is to grow first");
    rig.settle();
    rig.notices.clear();
    for n in 0..4u8 {
        rig.append(p, &[&vec![n; 300_000]]).expect("there is room");
    }
    rig.turn_end();
    // 1.2 MB are three writes; they end in the second, the fourth, and the fifth batch.
    let writes = |rig: &Rig| rig.disk.pending.iter().filter(|(_, op)| is_segment(op)).count();
    assert_eq!(writes(&rig), 3);
    let second = rig.find(is_segment).expect("they are pending") + 1;
    rig.complete(second);
    rig.turn_end();
    assert!(rig.find(is_journal).is_none(), "the write before it is not done");
    let first = rig.find(is_segment).expect("it is pending");
    rig.complete(first);
    rig.turn_end();
    let journal = rig.find(is_journal).expect("three batches stand in the segment");
    rig.complete(journal);
    assert_eq!((rig.store.durable_end(p).count, writes(&rig)), (1 + 3, 1));
    rig.settle();
    assert_eq!(rig.store.durable_end(p).count, 5);
    assert!(rig.find(|op| matches!(op, DiskOp::Sync { .. })).is_none());
    assert_eq!(rig.read_all(p).iter().map(Vec::len).collect::<Vec<_>>(), [40_000, 300_000, 300_000, 300_000, 300_000]);
}

#[test]
fn what_streams_is_written_once_until_hardly_anything_waits() {
    let mut rig = Rig::new(roomy());
    let p = rig.create("t");
    let publish = |rig: &mut Rig, len: usize| {
        while rig.append(p, &[&vec![7; len]]).is_err() {
            let grows = rig.find(|op| matches!(op, DiskOp::Allocate { .. })).expect("it waits for space");
            rig.complete(grows);
        }
        rig.store.seal_open(p);
        rig.turn_end();
    };
    let direct = |rig: &Rig| rig.redo_count(RecordKind::DirectBatch);
    publish(&mut rig, 20_000);
    rig.settle();
    assert_eq!(direct(&rig), 0, "alone, it waits for the journal once");
    for _ in 0..10 {
        publish(&mut rig, 20_000);
    }
    rig.settle();
    let streamed = direct(&rig);
    assert!((3..=6).contains(&streamed), "from 128 KiB on: {streamed}");
    for _ in 0..20 {
        publish(&mut rig, 20_000);
        rig.settle();
    }
    let lasted = direct(&rig) - streamed;
    assert!((10..=16).contains(&lasted), "some more, as what streamed may have paused: {lasted}");
    assert_eq!(rig.read_all(p).len(), 31);
}
