//! The ring, written and read back.

use super::*;
use crate::base::{IO_BYTES_MAX, Rng};
use crate::format::files::is_sealed;
use crate::journal::limit::first;
use zerocopy::FromBytes;

fn ring() -> Ring<u64> {
    let journal = JournalIdentity { journal_id: [3; 16], generation: 2, file_len: Ring::<u64>::FILE_LEN_MIN, slot_sequence: 6 };
    Ring::new(CoreId(1), journal)
}

fn record(slot: u32, n: u64, len: usize) -> Record<u64> {
    let payload = Bytes::from(vec![n as u8; len]);
    let id = TopicId([slot as u8 + 1; 16]);
    let header = RecordHeader::new(RecordKind::Finished, id, 0, n, 2, &payload);
    let end = Position { offset: n as i64, count: n as i64, log_id: crate::base::LogId(n + 1) };
    Record { header, payload, slot, end, note: n }
}

fn bytes(op: &DiskOp) -> (u64, Vec<u8>) {
    let DiskOp::Write { at, parts, .. } = op else { panic!("a ring writes") };
    (*at, parts.concat())
}

/// Writes the slots that are due.
fn move_limit(ring: &mut Ring<u64>) {
    while ring.move_limit(false).is_some() {
        ring.checkpointed();
    }
}

/// Packs and completes one write; where it stands and the notes it carried.
fn write(ring: &mut Ring<u64>, file: &mut [u8]) -> Option<(u64, Vec<u64>)> {
    let (sequence, op) = ring.pack(|_, _| {})?;
    assert!(ring.pack(|_, _| {}).is_none(), "one write is in flight");
    let (at, bytes) = bytes(&op);
    file[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
    ring.wrote(sequence);
    let notes = ring.next_durable().unwrap();
    let copy = notes.clone();
    ring.recycle(notes);
    Some((at, copy))
}

#[test]
fn a_write_parses_back_with_its_directories() {
    let mut ring = ring();
    let mut file = vec![0; Ring::<u64>::FILE_LEN_MIN as usize];
    ring.queue(record(5, 1, 40));
    assert_eq!(write(&mut ring, &mut file), Some((RING_START, vec![1])));
    for (slot, n, len) in [(0, 2, 10), (7, 3, 3000), (0, 4, 0), (NO_SLOT - 1000, 5, 8)] {
        ring.queue(record(slot % 100, n, len));
    }
    let (at, notes) = write(&mut ring, &mut file).unwrap();
    assert_eq!((at, notes), (RING_START + BLOCK as u64, vec![2, 3, 4, 5]));
    let head = WriteHeader::parse(&file[at as usize..], &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap();
    let (h, ends) = (head.header, head.directory.iter().map(|d| d.end.count.get()).collect::<Vec<_>>());
    assert_eq!((h.sequence.get(), h.lap.get(), h.durable.get(), h.checkpoint.get()), (2, 1, 1, 6));
    assert_eq!((ends, head.previous.len()), (vec![4, 3, 5], 1), "one entry per partition, its last end");
    let found: Vec<_> = Records::new(&head, &file[at as usize..]).map(|r| r.unwrap().1.sequence.get()).collect();
    assert_eq!(found, [2, 3, 4, 5]);
    assert_eq!(h.len.get() as usize % BLOCK, 0);
}

#[test]
fn large_writes_go_side_by_side_and_become_durable_in_order() {
    let mut ring = ring();
    let small = |n| record(0, n, 100);
    ring.queue(small(1));
    let (first, _) = ring.pack(|_, _| {}).unwrap();
    ring.queue(small(2));
    assert!(ring.pack(|_, _| {}).is_none(), "small ones wait and share");
    assert!(!ring.takes_write(1000) && ring.takes_write(64 * 1024));
    let mut sequences = vec![first];
    for n in 3..20 {
        ring.queue(record(n as u32, n, 10_000));
        sequences.extend(ring.pack(|_, _| {}).map(|(sequence, op)| {
            let (_, bytes) = bytes(&op);
            let head = WriteHeader::parse(&bytes, &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap().header;
            assert_eq!(head.durable.get(), 0, "nothing is complete yet");
            sequence
        }));
    }
    assert_eq!(sequences, [1, 2, 3, 4][..sequences.len()]);
    assert!(sequences.len() > 2 && sequences.len() <= DEPTH);
    for &sequence in sequences[1..].iter().rev() {
        ring.wrote(sequence);
        assert!(ring.next_durable().is_none(), "the first is not complete");
    }
    ring.wrote(first);
    assert_eq!(ring.next_durable().unwrap(), [1]);
    assert_eq!(ring.next_durable().unwrap()[..2], [2, 3]);
    while ring.next_durable().is_some() {}
    assert_eq!(ring.durable(), sequences.len() as u64);
    assert!(!ring.is_in_flight());
}

#[test]
fn laps_never_touch_what_the_checkpoint_needs() {
    let mut rng = Rng::new(5);
    let mut ring = ring();
    let mut file = vec![0; Ring::<u64>::FILE_LEN_MIN as usize];
    // Sequence and place of each write that redo needs.
    let (mut live, mut n, mut full, mut wrapped): (Vec<(u64, u64, u64)>, _, _, _) = (vec![], 0, 0, 0);
    for _ in 0..20_000 {
        if rng.chance(0.02) && ring.durable() + 1 > ring.tail_sequence() {
            let target = ring.tail_sequence() + 1 + rng.below(ring.durable() + 1 - ring.tail_sequence());
            let (at, block) = bytes(&ring.checkpoint(target));
            let slot = Checkpoint::read_from_prefix(&block).unwrap().0;
            assert!(is_sealed(&block[..size_of::<Checkpoint>()]));
            assert_eq!(at, slot.slot_sequence.get() % 2 * BLOCK as u64);
            live.retain(|w| w.0 >= target);
            let expected = live.first().map_or(slot.position.get(), |w| w.1);
            assert_eq!((slot.position.get(), slot.sequence.get()), (expected, target));
            ring.checkpointed();
        }
        n += 1;
        move_limit(&mut ring);
        if ring.is_queue_empty() {
            let len = rng.below(ring.payload_max() as u64) as usize;
            ring.queue(record(rng.below(9) as u32, n, len));
        }
        let Some((at, _)) = write(&mut ring, &mut file) else {
            full += 1;
            continue;
        };
        let head = WriteHeader::parse(&file[at as usize..], &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap().header;
        let end = at + head.len.get() as u64;
        assert!(live.iter().all(|&(_, a, e)| end <= a || e <= at), "a write over what redo needs");
        wrapped += (at == RING_START) as u32;
        live.push((ring.durable(), at, end));
        assert!(ring.used() <= ring.capacity());
    }
    assert!(full > 100 && wrapped > 20, "{full} {wrapped}");
}

#[test]
fn a_ring_that_takes_one_more_record_writes_all_that_waits_before_it_is_freed() {
    let mut rng = Rng::new(11);
    let mut ring = ring();
    let write = |ring: &mut Ring<u64>| {
        move_limit(ring);
        let Some((sequence, _)) = ring.pack(|_, _| {}) else { return false };
        ring.wrote(sequence);
        let notes = ring.next_durable().expect("nothing else is in flight");
        ring.recycle(notes);
        true
    };
    let (mut n, mut taken, mut waiting, mut refused) = (0, 0, 0, 0);
    for _ in 0..6_000 {
        let (len_max, count) = [(ring.payload_max() / 2, 4), (200, 60), (2_000, 20), (1, 200)][rng.below(4) as usize];
        for _ in 0..rng.below(count) {
            n += 1;
            let kind = if rng.chance(0.5) { RecordKind::Batch } else { RecordKind::Cursor };
            let mut record = record(rng.below(200) as u32, n, rng.below(len_max as u64 + 1) as usize);
            record.header = RecordHeader::new(kind, TopicId(record.header.topic_id), 0, n, 2, &record.payload);
            ring.queue(record);
        }
        for _ in 0..rng.below(4) {
            write(&mut ring);
        }
        if ring.takes_one_more() {
            (taken, waiting) = (taken + 1, waiting + !ring.is_queue_empty() as u32);
            n += 1;
            ring.queue(Record { slot: NO_SLOT, ..record(0, n, 0) });
            while !ring.is_queue_empty() {
                assert!(write(&mut ring), "{} bytes of {} wait", ring.queued_bytes(), ring.capacity());
            }
        } else if ring.durable() + 1 > ring.tail_sequence() {
            refused += 1;
            let target = ring.tail_sequence() + 1 + rng.below(ring.durable() + 1 - ring.tail_sequence());
            let target = if ring.queued_bytes() > ring.capacity() { ring.durable() + 1 } else { target };
            ring.checkpoint(target);
            ring.checkpointed();
        }
    }
    assert!(taken > 500 && waiting > 200 && refused > 500, "{taken} {waiting} {refused}");
    while !ring.is_queue_empty() {
        if !write(&mut ring) {
            ring.checkpoint(ring.durable() + 1);
            ring.checkpointed();
        }
    }
    ring.checkpoint(ring.durable() + 1);
    ring.checkpointed();
    assert!(ring.takes_one_more(), "an empty ring does, wherever it goes on");
}

#[test]
fn a_long_write_in_parts_has_the_bytes_of_its_records() {
    let journal = JournalIdentity { journal_id: [3; 16], generation: 2, file_len: 64 << 20, slot_sequence: 6 };
    let (mut ring, mut rng) = (Ring::new(CoreId(1), journal), Rng::new(9));
    let lengths = [0, 1, 7, 200, PART_MIN - 1, PART_MIN, PART_MIN + 1, 30_001, ring.payload_max()];
    let (mut n, mut in_parts) = (0, 0);
    let mut written: Vec<(DiskOp, Vec<u8>)> = vec![];
    while ring.used() * 4 < ring.capacity() * 3 {
        for _ in 0..1 + rng.below(40) {
            n += 1;
            ring.queue(record(rng.below(9) as u32, n, lengths[rng.below(lengths.len() as u64) as usize]));
        }
        move_limit(&mut ring);
        while let Some((sequence, op)) = ring.pack(|_, _| {}) {
            let DiskOp::Write { parts, .. } = &op else { panic!("a ring writes") };
            let (count, bytes) = (parts.len(), parts.concat());
            let head = WriteHeader::parse(&bytes, &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap();
            assert_eq!((head.header.len.get() as usize, bytes.len() % BLOCK), (bytes.len(), 0));
            for found in Records::new(&head, &bytes) {
                let (_, header, payload) = found.unwrap();
                assert!(payload.iter().all(|byte| *byte == header.sequence.get() as u8));
            }
            assert!(bytes.len() >= LONG_WRITE_MIN || count == 1);
            in_parts += (count > 1) as u32;
            written.push((op, bytes));
            ring.wrote(sequence);
            while let Some(notes) = ring.next_durable() {
                ring.recycle(notes);
            }
        }
    }
    // the memory of a write that the disk still has is not used again
    assert!(written.iter().all(|(op, expected)| bytes(op).1 == *expected) && in_parts > 50, "{in_parts}");
}

#[test]
fn no_write_goes_beyond_what_both_slots_say_and_a_closed_ring_says_where_it_ends() {
    let mut ring = ring();
    let mut file = vec![0; Ring::<u64>::FILE_LEN_MIN as usize];
    let mut slots = [first(travelled(1, RING_START, file.len() as u64), file.len() as u64); 2];
    let (mut rng, mut waited, mut end) = (Rng::new(3), 0, 0);
    for n in 1..2000 {
        if ring.is_queue_empty() {
            ring.queue(record(0, n, rng.below(ring.payload_max() as u64) as usize));
        }
        while let Some((at, _)) = write(&mut ring, &mut file) {
            let head = WriteHeader::parse(&file[at as usize..], &[3; 16], CoreId(1), IO_BYTES_MAX).unwrap().header;
            end = travelled(head.lap.get(), at, file.len() as u64) + head.len.get() as u64;
            assert!(slots.iter().all(|limit| end <= *limit), "{end} {slots:?}");
        }
        waited += !ring.is_queue_empty() as u32;
        let op = match rng.below(10) {
            0 if ring.durable() + 1 > ring.tail_sequence() => Some(ring.checkpoint(ring.durable() + 1)),
            1 => ring.move_limit(false),
            _ => None, // the disk is slow
        };
        if let Some(op) = op {
            let (at, block) = bytes(&op);
            slots[(at / BLOCK as u64) as usize] = Checkpoint::read_from_prefix(&block).unwrap().0.limit.get();
            ring.checkpointed();
        }
    }
    assert!(waited > 20, "{waited}");
    while !ring.is_queue_empty() {
        ring.checkpoint(ring.durable() + 1);
        ring.checkpointed();
        move_limit(&mut ring);
        write(&mut ring, &mut file);
    }
    let mut closing = 0;
    while let Some(op) = ring.move_limit(true) {
        let slot = Checkpoint::read_from_prefix(&bytes(&op).1).unwrap().0;
        closing += 1;
        assert!(slot.limit.get() >= end);
        slots[closing % 2] = slot.limit.get();
        ring.checkpointed();
    }
    assert!(closing == 2 && slots[0] == slots[1] && slots[0] < end + BLOCK as u64 * 9, "{closing} {slots:?} {end}");
}

/// The closing slot may become durable before the write does, and a startup would read nothing behind the slot.
#[test]
fn no_write_is_issued_beside_a_slot_that_says_that_nothing_follows() {
    let mut ring = ring();
    let mut file = vec![0; Ring::<u64>::FILE_LEN_MIN as usize];
    ring.queue(record(5, 1, 40));
    write(&mut ring, &mut file).expect("the ring has just begun");
    ring.move_limit(true).expect("the slots let writes go on");
    ring.queue(record(5, 2, 40));
    assert_eq!(write(&mut ring, &mut file), None);
    ring.checkpointed();
    while ring.move_limit(true).is_some() {
        ring.checkpointed();
    }
    let (_, notes) = write(&mut ring, &mut file).expect("both slots let the write go");
    assert_eq!(notes, vec![2]);
    assert_eq!(std::iter::from_fn(|| ring.move_limit(true).map(|_| ring.checkpointed())).count(), 2, "both say it again");
}
