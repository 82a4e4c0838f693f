//! A log as one replica of several: a peer's batches, epochs, promises, and what the view tells.

use super::native::native;
use super::*;
use crate::format::batch::{BATCH_HEADER_LEN, Batch, BatchBuilder, Stamp};
use crate::format::tail::Tail;
use crate::log::follow::SETTLED_DIRECT_LEN;
use zerocopy::IntoBytes;

/// A leader's log that exists nowhere.
pub struct Peer {
    dir: Arc<PartitionDir>,
    pub end: Tail,
    pub batches: Vec<Batch>,
}

impl Peer {
    pub fn new(topic: &str) -> Peer {
        Peer { dir: dir(topic), end: Tail::START, batches: vec![] }
    }

    /// The next batch in `epoch`.
    pub fn batch(&mut self, epoch: u64, body: &[u8]) -> Batch {
        let mut builder = BatchBuilder::default();
        builder.push(1_000, body);
        let (topic_id, partition) = (self.dir.topic_id, self.dir.partition);
        let stamp = Stamp { topic_id, partition, epoch: Epoch(epoch), at: self.end.at, prev_crc: self.end.chain_crc };
        let batch = builder.seal(stamp);
        self.push(batch.clone());
        batch
    }

    /// The next one, of an idempotent producer.
    pub fn batch_of(&mut self, epoch: u64, producer: u64, first: u64, body: &[u8]) -> Batch {
        let end = self.end;
        let Batch { mut header, bytes } = self.batch(epoch, body);
        self.batches.pop();
        self.end = end;
        (header.producer_id, header.first_sequence) = (producer.into(), first.into());
        header.seal();
        let batch = Batch { header, bytes: [header.as_bytes(), &bytes[BATCH_HEADER_LEN..]].concat().into() };
        self.push(batch.clone());
        batch
    }

    /// Forgets all batches but the first `n`.
    pub fn truncate(&mut self, n: usize) {
        let batches = std::mem::take(&mut self.batches);
        self.end = Tail::START;
        batches.into_iter().take(n).for_each(|batch| self.push(batch));
    }

    fn push(&mut self, batch: Batch) {
        let h = &batch.header;
        self.end = Tail { at: h.end(), chain_crc: h.header_crc.get(), epoch: Epoch(h.epoch.get()) };
        self.batches.push(batch);
    }
}

impl Rig {
    pub fn append_verbatim(&mut self, p: PartitionIdx, batch: &Batch) -> AppendTicket {
        self.append_as(p, batch, false)
    }

    fn append_as(&mut self, p: PartitionIdx, batch: &Batch, is_settled: bool) -> AppendTicket {
        let mut batch = batch.clone();
        for _ in 0..100 {
            let taken = self.store.append_verbatim(p, batch, is_settled, &mut self.io);
            self.disk.take(&mut self.io);
            match taken {
                Ok(ticket) => return ticket,
                Err((Refusal::Busy, back)) => batch = back,
                Err((other, _)) => panic!("{other}"),
            }
            self.settle();
        }
        panic!("there is never room");
    }

    pub fn epochs(&self, p: PartitionIdx) -> Vec<(u64, i64)> {
        let mut out = vec![];
        assert!(!self.store.log_view(p).epochs(None, 99, &mut out), "it tells all there are");
        out.iter().map(|e| (e.epoch.0, e.end.offset)).collect()
    }
}

/// A peer's log of `n` batches of `len` bytes, an epoch for every ten, in a store.
pub fn filled(options: StoreOptions, n: usize, len: usize) -> (Rig, PartitionIdx, Peer) {
    let mut rig = Rig::new(options);
    let p = rig.create("t");
    let mut peer = Peer::new("t");
    for i in 0..n {
        let batch = peer.batch(1 + i as u64 / 10, &vec![i as u8; len]);
        rig.append_verbatim(p, &batch);
    }
    rig.settle();
    (rig, p, peer)
}

#[test]
fn a_peer_s_batches_are_stored_as_they_came_small_and_large() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let mut peer = Peer::new("t");
    for n in 0..30u8 {
        let len = [10, 3000, 40_000][n as usize % 3];
        let batch = peer.batch(1 + n as u64 / 10, &vec![n; len]);
        rig.append_verbatim(p, &batch);
    }
    assert_eq!(rig.store.log_view(p).end(), peer.end);
    rig.settle();
    let view = rig.store.log_view(p);
    assert_eq!((view.durable(), view.vouched()), (peer.end, peer.end.at));
    let ends: Vec<(u64, i64)> =
        [29, 19, 9].map(|i: usize| (peer.batches[i].header.epoch.get(), peer.batches[i].header.end().offset)).into();
    assert_eq!(rig.epochs(p), ends);
    assert_eq!(rig.read_all(p).len(), 30);
    let mut at = 0;
    for batch in &peer.batches {
        let Fetch::Batch(found) = rig.fetch(p, at) else { panic!("it is stored") };
        assert_eq!(found.bytes, batch.bytes, "the same bytes");
        at = found.header.end().offset;
    }
    assert!(rig.redo_count(RecordKind::DirectBatch) > 0, "large ones go straight to the segment");
}

#[test]
fn a_refused_batch_comes_back_and_room_is_told() {
    let mut rig = Rig::new(StoreOptions { max_pub_waiting_size: 9000, ..options() });
    let p = rig.create("t");
    let mut peer = Peer::new("t");
    let first = peer.batch(1, &[1; 6000]);
    rig.append_verbatim(p, &first);
    let second = peer.batch(1, &[2; 6000]);
    let (why, back) = rig.store.append_verbatim(p, second.clone(), false, &mut rig.io).unwrap_err();
    assert_eq!((why, back.bytes), (Refusal::Busy, second.bytes.clone()));
    rig.notices.clear();
    rig.settle();
    assert!(rig.notices.contains(&Notice::Room));
    rig.append_verbatim(p, &second);
    rig.settle();
    assert_eq!(rig.store.log_view(p).durable(), peer.end);
}

#[test]
fn the_view_tells_what_is_in_memory() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let mut peer = Peer::new("t");
    for n in 0..5 {
        let batch = peer.batch(4 + n / 3, &[n as u8; 1000]);
        rig.append_verbatim(p, &batch);
    }
    let (lens, view) = (peer.batches[0].bytes.len() as i64, rig.store.log_view(p));
    assert_eq!((view.start(), view.durable()), ((Position::START, 0), Tail::START));
    assert_eq!(view.held(lens), Some((&peer.batches[1].header).into()));
    assert_eq!((view.held(lens + 1), view.held(5 * lens)), (None, None));
    let run = |from, max| view.run_end(from, max).map(|at| at.offset / lens);
    assert_eq!(
        [run(0, 1), run(0, 2 * lens as usize), run(lens, 99_999), run(5 * lens, 9), run(3, 9)],
        [Some(1), Some(2), Some(5), None, None]
    );
    let bytes: Vec<_> = rig.store.tail(p, lens, 4 * lens).collect();
    assert_eq!(bytes, [1, 2, 3].map(|i: usize| peer.batches[i].bytes.clone()));
    assert_eq!(rig.store.tail(p, 2 * lens, 2 * lens).count(), 0);
    let mut out = vec![];
    assert!(view.epochs(None, 1, &mut out));
    assert!(!view.epochs(Some(Epoch(5)), 1, &mut out));
    assert_eq!(out.iter().map(|e| (e.epoch.0, e.end.offset / lens)).collect::<Vec<_>>(), [(5, 5), (4, 3)]);
}

#[test]
fn own_batches_take_the_epoch_that_was_set_and_what_was_open_keeps_the_old_one() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    rig.append(p, &[b"alone"]).unwrap();
    rig.store.set_epoch(p, Epoch(77));
    assert_eq!(rig.store.end(p).count, 1, "it was sealed");
    rig.append(p, &[b"led"]).unwrap();
    rig.append_batch(p, native(5, 0, &[b"native"], 0)).unwrap();
    rig.settle();
    let ends = rig.epochs(p);
    assert_eq!(ends.iter().map(|e| e.0).collect::<Vec<_>>(), [77, 4]);
    assert_eq!(rig.store.log_view(p).end().epoch, Epoch(77));
    assert_eq!(rig.read_all(p).len(), 3);
}

#[test]
fn how_far_it_is_committed_goes_along_with_other_records_once_a_turn() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    rig.append(p, &[b"one"]).unwrap();
    let ticket = rig.store.log_epoch(p, Epoch(9));
    rig.settle();
    assert!(rig.notices.contains(&Notice::RecordDurable { upto: ticket }));
    let first = rig.store.durable_end(p);
    rig.store.log_committed(p, first);
    rig.settle();
    assert_eq!(rig.redo_count(RecordKind::Committed), 0, "nothing else is to be written");
    rig.append(p, &[b"two"]).unwrap();
    rig.turn_end();
    rig.store.log_committed(p, first);
    rig.settle();
    assert_eq!(rig.redo_count(RecordKind::Committed), 1, "once, and not again when nothing moved");
    let (_, header, payload) = rig.redo().into_iter().find(|r| r.0 == RecordKind::Epoch).unwrap();
    assert_eq!((header.epoch.get(), payload), (4, 9u64.to_le_bytes().to_vec()), "records carry the node's generation");
}

#[test]
fn what_nobody_waits_for_is_written_once() {
    for (is_settled, len) in [(true, 17_000), (true, 15_000), (false, 17_000)] {
        let mut rig = Rig::new(options());
        let p = rig.create("t");
        let mut peer = Peer::new("t");
        for n in 0..4 {
            let batch = peer.batch(1, &vec![n; len]);
            rig.append_as(p, &batch, is_settled);
            rig.settle();
        }
        assert_eq!((rig.store.durable_end(p), rig.store.core.admission.unpacked()), (peer.end.at, 0));
        let is_once = rig.store.core.ring.used() < 4 * len as u64;
        assert_eq!(is_once, is_settled && len > SETTLED_DIRECT_LEN, "{} bytes of the journal", rig.store.core.ring.used());
        assert!(rig.read_all(p) == (0..4).map(|n| vec![n; len]).collect::<Vec<_>>());
    }
}

/// A full disk makes retention remove the whole log. The end that the log tells is as before: no replica takes it for a lesser one.
#[test]
fn a_log_that_retention_emptied_tells_the_epoch_of_its_end() {
    let mut rig = Rig::new(options());
    let p = rig.create("t");
    let mut peer = Peer::new("t");
    for n in 0..30 {
        let batch = peer.batch(1 + n / 10, &[n as u8; 1000]);
        rig.append_verbatim(p, &batch);
    }
    rig.settle();
    rig.store.set_low_water(p, peer.end.at);
    rig.store.set_other_full(CoreId(1), true);
    (0..5).for_each(|_| rig.settle());
    let view = rig.store.log_view(p);
    assert_eq!((view.start().0, view.end()), (peer.end.at, peer.end), "nothing is left of it");
    assert_eq!(rig.epochs(p), [(3, peer.end.at.offset)]);
    let batch = peer.batch(4, b"next");
    rig.append_verbatim(p, &batch);
    rig.settle();
    assert_eq!(rig.epochs(p)[0], (4, peer.end.at.offset));
}
