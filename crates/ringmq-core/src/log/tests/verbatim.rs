//! Reading batches as they stand, what damage does to what a replica vouches for, and publishes that wait for others.

use super::follow::{Peer, filled};
use super::*;
use crate::format::{files, tail::EpochEnd};
use crate::log::verbatim::Run;

impl Rig {
    fn read_verbatim(&mut self, p: PartitionIdx, from: Position, bytes_max: usize) -> Result<Run, Unreadable> {
        self.notices.clear();
        self.store.read_verbatim(p, 7, from, bytes_max, &mut self.io);
        self.settle();
        self.tick(0);
        let answer = self.notices.iter().find_map(|n| match n {
            Notice::Verbatim { p: of, token: 7, result } if *of == p => Some(result.clone()),
            _ => None,
        });
        answer.expect("a read is answered")
    }
}

/// `n` batches of `len` bytes, an epoch for every ten, in the files alone.
fn in_files(n: usize, len: usize) -> (Rig, PartitionIdx, Peer) {
    let (rig, p, peer) = filled(StoreOptions { flush_bytes: 1, tail_cache_bytes: 0, ..options() }, n, len);
    assert_eq!(rig.store.log_view(p).held(0), None, "nothing is in memory");
    (rig, p, peer)
}

#[test]
fn what_is_read_is_what_was_appended_in_runs_of_the_size_that_was_asked_for() {
    for len in [300, 20_000, 700_000] {
        let (mut rig, p, peer) = in_files(12, len);
        let cached = rig.store.read_bytes();
        let (mut at, mut found, mut runs) = (Position::START, vec![], 0);
        while at != peer.end.at {
            let (parts, end) = rig.read_verbatim(p, at, 50_000).unwrap();
            let bytes = parts.concat();
            assert_eq!(bytes.len() as i64, end.offset - at.offset);
            let one = peer.batches.iter().find(|b| b.header.start() == at).unwrap().bytes.len();
            assert!(bytes.len() <= 50_000.max(one), "at most what was asked for, or one batch");
            found.extend(bytes);
            (at, runs) = (end, runs + 1);
        }
        assert_eq!(found, peer.batches.iter().flat_map(|b| b.bytes.to_vec()).collect::<Vec<u8>>());
        assert!(runs == if len > 50_000 { 12 } else { runs.min(6) });
        assert_eq!((rig.store.read_bytes(), rig.store.reads.verbatim().bytes()), (cached, 0), "past the read cache");
        assert_eq!(rig.read_verbatim(p, at, 9), Ok((vec![], at)), "nothing is there yet");
        let beyond = Position { offset: at.offset + 1, ..at };
        assert_eq!(rig.read_verbatim(p, beyond, 9), Err(Unreadable::Gone(beyond.offset)));
        let guess = Position { log_id: LogId(99), ..Position::START };
        let (parts, end) = rig.read_verbatim(p, guess, 9).unwrap();
        let first = &peer.batches[0];
        assert_eq!((parts.concat(), end), (first.bytes.to_vec(), first.header.end()), "its offset names it");
    }
}

#[test]
fn who_goes_on_where_the_last_run_ended_finds_it_read() {
    let (mut rig, p, peer) = in_files(12, 20_000);
    let (mut at, mut found, mut waited) = (Position::START, vec![], vec![]);
    while at != peer.end.at {
        rig.notices.clear();
        rig.store.read_verbatim(p, 7, at, 50_000, &mut rig.io);
        rig.disk.take(&mut rig.io);
        waited.push(rig.disk.pending.len());
        let (parts, end) = {
            rig.settle();
            rig.tick(0);
            let answer = rig.notices.iter().find_map(|n| match n {
                Notice::Verbatim { result, .. } => Some(result.clone().unwrap()),
                _ => None,
            });
            answer.unwrap()
        };
        found.extend(parts.concat());
        at = end;
    }
    assert_eq!(found, peer.batches.iter().flat_map(|b| b.bytes.to_vec()).collect::<Vec<u8>>());
    // the second run begins the reading ahead, which gets to the end of the segment here
    assert!(waited[..2].iter().all(|n| *n > 0) && waited[2..].contains(&0), "{waited:?}");
    assert_eq!(rig.store.reads.verbatim().bytes(), 0, "nothing is left at the end");
}

#[test]
fn what_was_read_ahead_is_not_handed_out_after_a_truncation() {
    let (mut rig, p, mut peer) = in_files(9, 20_000);
    let (_, first) = rig.read_verbatim(p, Position::START, 41_000).unwrap();
    let (_, second) = rig.read_verbatim(p, first, 41_000).unwrap();
    assert!(rig.store.reads.verbatim().bytes() > 0 && second == peer.batches[3].header.end());
    rig.store.truncate(rig.now, p, second, &mut rig.io);
    assert_eq!(rig.store.reads.verbatim().bytes(), 0);
    rig.settle();
    peer.truncate(4);
    let other = peer.batch(9, &[0xee; 20_000]);
    rig.append_verbatim(p, &other);
    rig.settle();
    let (parts, end) = rig.read_verbatim(p, second, 41_000).unwrap();
    assert_eq!((parts.concat(), end), (other.bytes.to_vec(), peer.end.at));
}

#[test]
fn what_nobody_goes_on_with_makes_room() {
    let (mut rig, p, peer) = in_files(12, 20_000);
    for from in [0, 2, 4] {
        let (_, end) = rig.read_verbatim(p, peer.batches[from].header.start(), 41_000).unwrap();
        rig.read_verbatim(p, end, 41_000).unwrap();
    }
    let kept = rig.store.reads.verbatim().bytes();
    assert!(kept > 0 && !rig.store.reads.verbatim().reads(p), "it keeps nobody waiting");
    for token in 0..5 {
        rig.store.read_verbatim(p, token, peer.batches[9].header.start(), 4 << 20, &mut rig.io);
        assert!(rig.store.reads.verbatim().bytes() <= 4 << 20);
    }
    rig.settle();
    rig.tick(0);
    assert_eq!(rig.store.reads.verbatim().bytes(), 0);
}

#[test]
fn reads_stand_in_line_within_a_share_of_memory() {
    let (mut rig, p, peer) = in_files(12, 20_000);
    rig.notices.clear();
    for token in 0..30 {
        let from = peer.batches[token as usize % 12].header.start();
        rig.store.read_verbatim(p, token, from, 1 << 20, &mut rig.io);
        assert!(rig.store.reads.verbatim().bytes() <= 4 << 20);
    }
    assert!(rig.store.reads.verbatim().bytes() > 0);
    rig.settle();
    rig.tick(0);
    let answered = rig.notices.iter().filter(|n| matches!(n, Notice::Verbatim { result: Ok(_), .. })).count();
    assert_eq!((answered, rig.store.reads.verbatim().bytes()), (30, 0));
}

/// Each reader has half of its next run in memory; the other half needs room first.
#[test]
fn who_goes_on_stands_in_the_same_line() {
    let mut rig = Rig::new(StoreOptions { flush_bytes: 1, tail_cache_bytes: 0, max_bytes_per_file: 4 * MIB, ..options() });
    let mut logs = vec![];
    for n in 0..9 {
        let (p, mut peer) = (rig.create(&format!("t{n}")), Peer::new(&format!("t{n}")));
        for _ in 0..60 {
            let batch = peer.batch(1, &[n; 20_000]);
            rig.append_verbatim(p, &batch);
            rig.settle();
        }
        logs.push((p, peer));
    }
    let mut ends: Vec<Position> = vec![];
    for (p, _) in &logs {
        ends.push(rig.read_verbatim(*p, Position::START, 500_000).unwrap().1);
    }
    for round in 0..2 {
        rig.notices.clear();
        for ((p, _), from) in logs.iter().zip(&ends) {
            rig.store.read_verbatim(*p, 7, *from, 500_000, &mut rig.io);
            assert!(rig.store.reads.verbatim().bytes() <= 4 << 20, "{} bytes", rig.store.reads.verbatim().bytes());
        }
        rig.settle();
        rig.tick(0);
        for ((p, peer), end) in logs.iter().zip(&mut ends) {
            let answer = rig.notices.iter().find_map(|n| match n {
                Notice::Verbatim { p: of, result, .. } if of == p => Some(result.clone().unwrap()),
                _ => None,
            });
            let (parts, to) = answer.expect("each read is answered");
            let whole: Vec<u8> = peer.batches.iter().flat_map(|b| b.bytes.to_vec()).collect();
            assert!(parts.concat() == whole[end.offset as usize..to.offset as usize] && to.offset > end.offset, "round {round}");
            *end = to;
        }
    }
}

/// Bytes that were read ahead while damage was repaired may be the bytes from before the repair.
#[test]
fn what_was_read_while_damage_was_mended_is_not_taken_for_damage() {
    let mut rig = Rig::new(StoreOptions { flush_bytes: 1, tail_cache_bytes: 0, max_bytes_per_file: 4 * MIB, ..options() });
    let (p, mut peer) = (rig.create("t"), Peer::new("t"));
    rig.store.log_epoch(p, Epoch(1));
    for n in 0..60 {
        let batch = peer.batch(1, &[n; 20_000]);
        rig.append_verbatim(p, &batch);
        rig.settle();
    }
    let bad = peer.batches[40].clone();
    let (from, at) = (bad.header.start(), files::FILE_HEADER_LEN + bad.header.offset.get() as u64);
    rig.disk.files.get_mut(&FileId::Segment(dir("t"), 0)).expect("it is there")[at as usize + 200] ^= 1;
    assert!(matches!(rig.fetch(p, from.offset), Fetch::Held));
    // It waits for a round of flushing; meanwhile somebody reads.
    let batch = peer.batch(1, &[60; 300]);
    rig.append_verbatim(p, &batch);
    rig.turn_end();
    rig.complete(0);
    rig.store.mend(p, vec![bad], &mut rig.io);
    let is_run = |op: &DiskOp| matches!(op, DiskOp::Read { len, .. } if *len > BLOCK);
    rig.store.read_verbatim(p, 7, Position::START, 50_000, &mut rig.io);
    rig.disk.take(&mut rig.io);
    let first = rig.find(is_run).expect("it is in the file");
    rig.complete(first);
    let second = peer.batches[2].header.start();
    rig.notices.clear();
    rig.store.read_verbatim(p, 7, second, 50_000, &mut rig.io);
    rig.disk.take(&mut rig.io);
    let holds_it =
        |op: &DiskOp| matches!(op, DiskOp::Read { at: a, len, .. } if *len > BLOCK && (*a..*a + *len as u64).contains(&at));
    let ahead = rig.find(holds_it).expect("it reads ahead");
    rig.complete(ahead);
    while let Some(of_mend) = rig.find(|op| !is_run(op)) {
        rig.complete(of_mend);
    }
    assert!(rig.notices.contains(&Notice::Mended { p, is_whole: true }));
    rig.settle();
    rig.tick(0);
    let mut end = rig.notices.iter().find_map(|n| match n {
        Notice::Verbatim { result, .. } => Some(result.clone().unwrap().1),
        _ => None,
    });
    while let Some(next) = end.filter(|end| *end != peer.end.at) {
        end = Some(rig.read_verbatim(p, next, 50_000).unwrap().1);
    }
    assert_eq!((end, rig.store.log_view(p).damage()), (Some(peer.end.at), None));
}

#[test]
fn damage_lowers_what_the_replica_vouches_for_and_a_truncation_there_ends_it() {
    let (mut rig, p, peer) = in_files(30, 300);
    let h = peer.batches[14].header;
    let at = files::FILE_HEADER_LEN as usize + h.offset.get() as usize;
    rig.disk.files.get_mut(&FileId::Segment(dir("t"), 0)).expect("it is there")[at + 200] ^= 1;
    let (parts, end) = rig.read_verbatim(p, Position::START, 1 << 20).unwrap();
    assert_eq!((parts.concat().len() as i64, end), (h.offset.get(), h.start()), "up to the damage");
    assert_eq!(rig.read_verbatim(p, end, 1 << 20), Err(Unreadable::Damaged(h.offset.get())));
    assert!(rig.notices.iter().any(|n| matches!(n, Notice::Damage { from, .. } if *from == h.start())));
    let view = rig.store.log_view(p);
    assert_eq!((view.vouched(), view.end()), (h.start(), peer.end));
    let mut epochs = vec![];
    assert!(!view.epochs(None, 9, &mut epochs));
    let crc = h.prev_crc.get();
    assert_eq!(epochs[0], EpochEnd { epoch: Epoch(2), end: h.start(), chain_crc: crc });
    assert_eq!((epochs.len(), epochs[1].epoch), (2, Epoch(1)));
    rig.store.truncate(rig.now, p, h.start(), &mut rig.io);
    rig.settle();
    let view = rig.store.log_view(p);
    assert_eq!((view.vouched(), view.end().at, view.end().chain_crc), (h.start(), h.start(), crc));
    assert_eq!(rig.read_all(p).len(), 14);
}

#[test]
fn a_device_that_refuses_is_told_and_is_no_damage() {
    let (mut rig, p, peer) = in_files(3, 300);
    rig.notices.clear();
    rig.store.read_verbatim(p, 7, peer.batches[1].header.start(), 1 << 20, &mut rig.io);
    rig.disk.take(&mut rig.io);
    rig.fail(0, false);
    assert!(matches!(rig.notices[..], [Notice::Verbatim { result: Err(Unreadable::Refused(_)), .. }]), "{:?}", rig.notices);
    assert_eq!(rig.store.log_view(p).vouched(), peer.end.at);
}

#[test]
fn publishes_wait_for_the_others_while_they_are_held() {
    let mut rig = Rig::new(StoreOptions { max_pub_waiting_size: 20_000, ..options() });
    let p = rig.create("t");
    rig.store.log_epoch(p, Epoch(9));
    rig.store.set_epoch(p, Epoch(9));
    rig.publish(p, &[1; 4000]);
    rig.settle();
    let before = rig.store.durable_end(p);
    rig.store.hold_until_committed(p, true);
    let mut taken = 0;
    while rig.append(p, &[&[2; 4000]]).is_ok() {
        taken += 1;
        rig.settle();
    }
    assert_eq!((taken, rig.store.durable_end(p).count), (4, 5), "all are durable, and wait");
    rig.notices.clear();
    rig.store.log_committed(p, before);
    assert_eq!(rig.append(p, &[&[2; 4000]]), Err(Refusal::Busy), "nothing that is held was committed");
    let end = rig.store.durable_end(p);
    rig.store.log_committed(p, end);
    rig.settle();
    assert!(rig.notices.contains(&Notice::Room));
    assert_eq!(rig.store.waiting_bytes(), 0);
    rig.publish(p, &[3; 4000]);
    rig.settle();
    assert!(rig.store.waiting_bytes() > 0);
    rig.store.hold_until_committed(p, false);
    assert_eq!(rig.store.waiting_bytes(), 0, "who leads no longer waits for nobody");
}

#[test]
fn a_truncation_takes_back_what_is_held() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    rig.store.log_epoch(p, Epoch(9));
    rig.store.set_epoch(p, Epoch(9));
    rig.store.hold_until_committed(p, true);
    for _ in 0..5 {
        rig.publish(p, &[1; 4000]);
        rig.settle();
    }
    let Fetch::Batch(second) = rig.fetch(p, 4140) else { panic!("a batch begins there") };
    rig.store.truncate(rig.now, p, second.header.end(), &mut rig.io);
    rig.settle();
    assert_eq!(rig.store.waiting_bytes(), 2 * second.bytes.len() as u64);
    rig.store.log_committed(p, second.header.end());
    assert_eq!(rig.store.waiting_bytes(), 0);
}
