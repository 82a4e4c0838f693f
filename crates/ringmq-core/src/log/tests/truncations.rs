//! Truncating a log: to a place in memory or in the files, over segments, with writes in flight, and all of it.

use super::follow::{Peer, filled};
use super::*;
use crate::format::files;
use crate::format::tail::Tail;
use crate::log::producers::Producers;

impl Rig {
    fn truncate(&mut self, p: PartitionIdx, to: Position) {
        self.store.truncate(self.now, p, to, &mut self.io);
        self.disk.take(&mut self.io);
    }

    fn is_truncated(&mut self, p: PartitionIdx) -> bool {
        let found = self.notices.contains(&Notice::Truncated { p });
        self.notices.retain(|n| *n != Notice::Truncated { p });
        found
    }
}

fn tail_before(peer: &Peer, n: usize) -> Tail {
    let Some(h) = n.checked_sub(1).map(|i| peer.batches[i].header) else { return Tail::START };
    Tail { at: h.end(), chain_crc: h.header_crc.get(), epoch: Epoch(h.epoch.get()) }
}

/// Checks that every file is zero behind the log's end.
fn check_nothing_behind(rig: &Rig, p: PartitionIdx) {
    let end = rig.store.log_view(p).end().at.offset;
    for (file, bytes) in &rig.disk.files {
        let at = match file {
            FileId::Segment(_, base) if *base <= end => files::FILE_HEADER_LEN + (end - base) as u64,
            FileId::Segment(_, base) => panic!("segment {base} lies behind the end"),
            _ => continue,
        };
        assert!(bytes.get(at as usize..).unwrap_or(&[]).iter().all(|&b| b == 0), "{file} behind byte {at}");
    }
}

#[test]
fn a_log_is_truncated_wherever_the_place_stands_and_goes_on_there() {
    for (len, tail_cache_bytes) in [(500, 64 * 1024), (500, 0), (5000, 0), (40_000, 0)] {
        for keep in [0, 1, 17, 59, 60] {
            let options = StoreOptions { tail_cache_bytes, flush_bytes: 10_000, ..options() };
            let (mut rig, p, mut peer) = filled(options, 60, len);
            let to = tail_before(&peer, keep);
            rig.truncate(p, to.at);
            assert_eq!(rig.store.log_view(p).end().at, to.at, "the view tells at once");
            assert_eq!(rig.append(p, &[b"now"]), Err(Refusal::Busy));
            rig.settle();
            assert!(rig.is_truncated(p));
            let view = rig.store.log_view(p);
            assert_eq!((view.end(), view.durable()), (to, to), "{len} {tail_cache_bytes} {keep}");
            check_nothing_behind(&rig, p);
            peer.batches.truncate(keep);
            peer.end = to;
            for n in 0..40 {
                let batch = peer.batch(90 + n / 20, &vec![n as u8; len + n as usize]);
                rig.append_verbatim(p, &batch);
            }
            rig.settle();
            assert_eq!(rig.store.log_view(p).durable(), peer.end);
            assert_eq!(rig.read_all(p).len(), keep + 40);
            let newest: Vec<u64> = rig.epochs(p).iter().map(|e| e.0).take(2).collect();
            assert_eq!(newest, [91, 90]);
            assert!(rig.notices.iter().all(|n| !matches!(n, Notice::Damage { .. } | Notice::AppendFailed { .. })));
        }
    }
}

#[test]
fn nothing_is_truncated_before_its_record_is_durable() {
    let (mut rig, p, peer) = filled(StoreOptions { flush_bytes: 1000, ..options() }, 30, 3000);
    let before = rig.disk.files.clone();
    rig.truncate(p, tail_before(&peer, 12).at);
    for _ in 0..50 {
        rig.turn_end();
        let is_journal = |op: &DiskOp| matches!(op, DiskOp::Write { file: FileId::Journal(_), .. });
        let Some(other) = rig.find(|op| !is_journal(op)) else { break };
        rig.complete(other);
    }
    assert!(!rig.is_truncated(p) && rig.disk.pending.len() == 1);
    assert!(before.iter().all(|(file, bytes)| rig.disk.files[file] == *bytes), "only its record is under way");
    rig.settle();
    assert!(rig.is_truncated(p));
    assert_eq!(rig.redo_count(RecordKind::Truncate), 1);
}

/// Found by a seed: the record of a truncation became durable during the stop, no snapshot contained it, and the checkpoint of the
/// stop asked for another snapshot without end.
#[test]
fn a_stop_ends_wherever_a_truncation_stands() {
    for steps in 0..12 {
        let options = StoreOptions { tail_cache_bytes: 0, flush_bytes: 1000, ..options() };
        let (mut rig, p, peer) = filled(options, 30, 3000);
        rig.truncate(p, tail_before(&peer, 12).at);
        for _ in 0..steps {
            rig.turn_end();
            if !rig.disk.pending.is_empty() {
                rig.complete(0);
            }
        }
        rig.store.stop(rig.now, &NoCursors, &mut rig.io);
        rig.disk.take(&mut rig.io);
        for _ in 0..100 {
            rig.turn_end();
            if !rig.disk.pending.is_empty() {
                rig.complete(0);
            }
        }
        assert!(rig.notices.contains(&Notice::Stopped), "stopped after {steps} completions");
    }
}

#[test]
fn a_truncation_waits_for_what_is_under_way_and_forgets_what_was_never_given_to_the_journal() {
    let (mut rig, p, mut peer) = filled(options(), 10, 1000);
    let to = peer.end;
    // One in a journal write, a large one on its way to the segment, a small one held behind it.
    for len in [1000, 60_000, 1000] {
        let batch = peer.batch(9, &vec![7; len]);
        rig.append_verbatim(p, &batch);
        rig.turn_end();
    }
    assert!(rig.disk.pending.len() > 1, "several writes are under way");
    rig.truncate(p, to.at);
    rig.settle();
    assert!(rig.is_truncated(p));
    assert_eq!((rig.store.log_view(p).end(), rig.store.memory_bytes() < 200_000), (to, true));
    check_nothing_behind(&rig, p);
    assert_eq!(rig.read_all(p).len(), 10);
    assert_eq!(rig.store.waiting_bytes(), 0);
    assert_eq!(rig.store.core.admission.unpacked(), 0);
}

#[test]
fn a_restart_drops_everything_and_begins_elsewhere() {
    let (mut rig, p, _) = filled(StoreOptions { flush_bytes: 1000, tail_cache_bytes: 0, ..options() }, 40, 9000);
    assert!(rig.disk.files.keys().filter(|f| matches!(f, FileId::Segment(..))).count() > 1);
    for start in [900_000, 100] {
        let at = Position { offset: start, count: 500, log_id: LogId(501) };
        rig.store.restart(rig.now, p, at, 77, &mut rig.io);
        rig.settle();
        assert!(rig.is_truncated(p));
        let view = rig.store.log_view(p);
        let tail = Tail { at, chain_crc: 77, epoch: Epoch(0) };
        assert_eq!((view.start(), view.end(), view.durable()), ((at, 77), tail, tail));
        let mut peer = Peer::new("t");
        peer.end = tail;
        for n in 0..20 {
            let batch = peer.batch(3, &[n; 9000]);
            rig.append_verbatim(p, &batch);
        }
        rig.settle();
        assert_eq!(rig.epochs(p), [(3, peer.end.at.offset)]);
        assert_eq!(rig.read_all(p).len(), 20);
        let kept = rig.disk.files.keys().filter(|f| matches!(f, FileId::Segment(_, base) if *base < start)).count();
        assert_eq!(kept, 0);
    }
}

#[test]
fn where_the_commit_log_is_damaged_the_segment_tells_the_place() {
    for (hole, kept) in [(None, 20), (Some(11), 11)] {
        let (mut rig, p, peer) = filled(StoreOptions { flush_bytes: 1000, tail_cache_bytes: 0, ..options() }, 60, 500);
        // The rest of the last block is what the writer would write next; the place to truncate at stands before it.
        rig.disk.files.get_mut(&FileId::Commit(dir("t"), 0)).expect("it is there")[4096..].fill(0xee);
        if let Some(n) = hole {
            let at = files::FILE_HEADER_LEN as usize + peer.batches[n].header.offset.get() as usize;
            rig.disk.files.get_mut(&FileId::Segment(dir("t"), 0)).expect("it is there")[at + 40] ^= 1;
        }
        rig.truncate(p, tail_before(&peer, 20).at);
        rig.settle();
        assert!(rig.is_truncated(p));
        assert_eq!(rig.store.log_view(p).end(), tail_before(&peer, kept), "a replica may have less, not what it cannot tell");
        check_nothing_behind(&rig, p);
    }
}

#[test]
fn a_device_that_refuses_is_asked_again_and_a_failed_truncation_makes_the_partition_read_only() {
    let (mut rig, p, peer) = filled(StoreOptions { flush_bytes: 1000, tail_cache_bytes: 0, ..options() }, 60, 500);
    rig.truncate(p, tail_before(&peer, 20).at);
    let read = rig.find(|op| matches!(op, DiskOp::Read { .. })).expect("the commit log is read");
    rig.fail(read, false);
    assert!(rig.disk.pending.is_empty() && rig.store.deadline().is_some());
    rig.tick(1000);
    assert!(rig.find(|op| matches!(op, DiskOp::Read { .. })).is_some(), "it is tried again");
    for _ in 0..100 {
        rig.turn_end();
        if let Some(cut) = rig.find(|op| matches!(op, DiskOp::Truncate { .. })) {
            rig.fail(cut, false);
            break;
        }
        rig.complete(0);
    }
    rig.settle();
    assert!(!rig.is_truncated(p) && rig.store.stats(p).read_only);
    assert_eq!(rig.store.log_view(p).end().at, tail_before(&peer, 20).at, "its record is durable");
}

#[test]
fn a_journal_that_fails_while_a_truncation_looks_at_the_files_ends_it() {
    let (mut rig, p, mut peer) = filled(StoreOptions { flush_bytes: 1000, tail_cache_bytes: 0, ..options() }, 30, 3000);
    let q = rig.create("other");
    rig.settle();
    // Not given to the journal when the truncation comes.
    let batch = peer.batch(9, &[7; 1000]);
    rig.append_verbatim(p, &batch);
    rig.truncate(p, tail_before(&peer, 12).at);
    // The last thing that is looked at before memory is truncated.
    let is_read = |op: &DiskOp| matches!(op, DiskOp::Read { file: FileId::Segment(..), .. });
    let read = loop {
        rig.turn_end();
        match rig.find(is_read).filter(|_| rig.redo_count(RecordKind::Truncate) == 1) {
            Some(read) => break rig.disk.pending[read].0,
            None => rig.complete(0),
        }
    };
    rig.append(q, &[b"x"]).expect("there is room");
    rig.turn_end();
    let journal = rig.find(|op| matches!(op, DiskOp::Write { file: FileId::Journal(_), .. })).expect("a journal write");
    rig.fail(journal, false);
    let read = rig.disk.pending.iter().position(|(id, _)| *id == read).expect("it is under way");
    rig.complete(read);
    rig.settle();
    assert!(!rig.is_truncated(p) && rig.store.is_read_only());
}

/// Far more batches of a producer go than the table remembers of one.
#[test]
fn what_is_truncated_was_never_counted_for_its_producer() {
    for (committed, keep) in [(0, 0), (0, 1), (0, 17), (10, 10), (10, 31), (30, 59), (30, 60)] {
        let mut rig = Rig::new(StoreOptions { tail_cache_bytes: 0, flush_bytes: 2_000, ..options() });
        let p = rig.create("t");
        rig.store.log_epoch(p, Epoch(1));
        let mut peer = Peer::new("t");
        for i in 0..60u64 {
            let batch = peer.batch_of(1, 1 + i % 3, i / 3, &[i as u8; 300]);
            rig.append_verbatim(p, &batch);
            rig.settle();
        }
        let told = |n: usize| {
            let mut table = Producers::new(ProducerLimits::default());
            peer.batches[..n].iter().for_each(|b| table.count(&b.header));
            table
        };
        let flushed = rig.store.core.part(p).producers.committed().iter().map(|p| p.next).max();
        assert!(flushed > Some(12), "most of it is counted as flushed: {flushed:?}");
        rig.store.log_committed(p, tail_before(&peer, committed).at);
        rig.truncate(p, tail_before(&peer, keep).at);
        rig.settle();
        assert!(rig.is_truncated(p));
        assert_eq!(*rig.store.core.part(p).producers.sealed(), told(keep), "{committed} {keep}");
    }
}
