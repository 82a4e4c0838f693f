//! A reader that goes on from batch to batch, while the disk answers in any order.

use super::*;
use crate::format::files;
use std::collections::VecDeque;

const CACHE: usize = 8 * MIB as usize;

/// A log of batches of these lengths, none of them in memory.
fn written(bodies: impl Iterator<Item = usize>) -> (Rig, PartitionIdx, usize) {
    let mut options = options();
    (options.read_cache_bytes, options.max_bytes_per_file) = (CACHE as u64, 64 * MIB);
    let mut rig = Rig::new(options);
    let p = rig.create("t");
    let mut count = 0;
    for len in bodies {
        rig.publish(p, &vec![count as u8; len]);
        rig.settle();
        count += 1;
    }
    rig.tick(60_000);
    rig.settle();
    (rig.read_bytes, rig.reads) = (0, 0);
    (rig, p, count)
}

/// Reads all of it, and keeps some of what is lent; how many reads were under way at most.
fn read_in_sequence(rig: &mut Rig, p: PartitionIdx, rng: &mut Rng, lent_part: f64, refused: f64) -> (usize, usize) {
    let (mut at, mut count, mut under_way) = (rig.store.start(p), 0usize, 0);
    let (lender, mut lent) = (rig.store.lender(), VecDeque::new());
    loop {
        let fetched = rig.store.fetch(p, at.offset, &mut rig.io);
        rig.disk.take(&mut rig.io);
        assert!(rig.read_memory() <= CACHE, "{} bytes at {at:?}", rig.read_memory());
        under_way = under_way.max(rig.disk.pending.iter().filter(|(_, op)| matches!(op, DiskOp::Read { .. })).count());
        match fetched {
            Fetch::Batch(batch) => {
                assert_eq!(batch.header.start(), at);
                assert!(batch.messages().all(|m| m.body.iter().all(|byte| *byte == count as u8)));
                (at, count) = (batch.header.end(), count + 1);
                let from = rng.below(batch.bytes.len() as u64) as usize;
                if rng.chance(lent_part) {
                    lent.extend(lender.lend(&batch.bytes, from..batch.bytes.len()));
                }
                while rng.chance(0.5) && !lent.is_empty() {
                    lent.swap_remove_back(rng.below(lent.len() as u64) as usize);
                }
                if rng.chance(0.7) {
                    continue;
                }
            }
            Fetch::End => return (count, under_way),
            Fetch::Pending | Fetch::Held => {}
            other => panic!("{other:?} at {at:?}"),
        }
        rig.turn_end();
        if rig.disk.pending.is_empty() {
            rig.tick(1000);
        } else {
            let index = rng.below(rig.disk.pending.len() as u64) as usize;
            let is_read = matches!(rig.disk.pending[index].1, DiskOp::Read { .. });
            if is_read && rng.chance(refused) { drop(rig.fail(index, false)) } else { rig.complete(index) }
        }
        // the lent part of a cached run counts twice until then
        rig.turn_end();
        assert!(rig.store.read_bytes() <= CACHE, "{} at {at:?}", rig.store.read_bytes());
    }
}

#[test]
fn the_disk_has_several_reads_at_a_time_and_little_is_read_twice() {
    let mut rng = Rng::new(11);
    for batches in ["alike", "not alike"] {
        let mut lengths = Rng::new(12);
        let len = |_| if batches == "alike" { 120_000 } else { 1000 + lengths.below(240_000) as usize };
        let (mut rig, p, count) = written((0..150).map(len));
        let (found, under_way) = read_in_sequence(&mut rig, p, &mut rng, 0.0, 0.0);
        assert_eq!((found, under_way), (count, 3), "{batches}");
        let log = rig.store.durable_end(p).offset as usize;
        assert!(rig.read_bytes > log / 2, "most of it is not in memory");
        assert!(rig.read_bytes < log * 21 / 20, "{batches}: {} bytes were read of a log of {log}", rig.read_bytes);
        // one run was looked for before anybody read on
        assert!(rig.store.reads.reader().bytes() == 0 && rig.reads < count);
    }
}

#[test]
fn a_device_that_refuses_reads_costs_no_batch() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut lengths = Rng::new(seed + 100);
        let (mut rig, p, count) = written((0..60).map(|_| 1000 + lengths.below(400_000) as usize));
        assert_eq!(read_in_sequence(&mut rig, p, &mut rng, 0.9, 0.1).0, count, "{seed}");
    }
}

#[test]
fn what_follows_damage_is_read_and_only_that_batch_is_lost() {
    let (mut rig, p, count) = written((0..40).map(|_| 100_000));
    let file = FileId::Segment(dir("t"), 0);
    let batch = rig.store.durable_end(p).offset / count as i64;
    // in a body, so that it is found when the batch is asked for, and in a header
    let places = [(5, 5000), (17, 8)];
    let mut damaged = rig.disk.files.remove(&file).expect("one segment");
    places.iter().for_each(|(n, at)| damaged[(files::FILE_HEADER_LEN as i64 + n * batch + at) as usize] ^= 1);
    rig.disk.files.insert(file, damaged);
    let (mut at, mut lost) = (0, vec![]);
    while at < rig.store.durable_end(p).offset {
        at = match rig.fetch(p, at) {
            Fetch::Batch(found) if found.header.is_lost() => {
                lost.push(at / batch);
                found.header.end().offset
            }
            Fetch::Batch(found) => {
                assert!(found.messages().all(|m| m.body.len() == 100_000 && m.body.iter().all(|b| *b == (at / batch) as u8)));
                found.header.end().offset
            }
            Fetch::Lost { from, to } => {
                lost.push(from.offset / batch);
                to.offset
            }
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(lost, [5, 17]);
}
