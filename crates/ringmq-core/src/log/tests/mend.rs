//! Damage that is written again as another replica has it.

use super::follow::Peer;
use super::*;
use crate::format::batch::Batch;
use crate::format::files;

/// A replica's log of `n` batches of `len` bytes in the files alone, a segment for every few, and what its leader has.
fn in_files(n: usize, len: usize) -> (Rig, PartitionIdx, Peer) {
    let mut rig = Rig::new(StoreOptions { flush_bytes: 1, tail_cache_bytes: 0, ..options() });
    let p = rig.create("t");
    rig.store.log_epoch(p, Epoch(1));
    let mut peer = Peer::new("t");
    for i in 0..n {
        let batch = peer.batch(1, &vec![i as u8; len]);
        rig.append_verbatim(p, &batch);
        rig.settle();
    }
    rig.notices.clear();
    (rig, p, peer)
}

impl Rig {
    /// Flips a byte in the body of the batch, which neither the scrubber nor a reader has seen yet.
    fn rot(&mut self, peer: &Peer, i: usize) {
        let h = peer.batches[i].header;
        let (base, file) = self.segment_of(h.offset.get());
        file[files::FILE_HEADER_LEN as usize + (h.offset.get() - base) as usize + 150] ^= 1;
    }

    fn segment_of(&mut self, offset: i64) -> (i64, &mut Vec<u8>) {
        let of = |f: &FileId| if let FileId::Segment(_, base) = f { Some(*base) } else { None };
        let bases = self.disk.files.iter_mut().filter_map(|(f, bytes)| Some((of(f)?, bytes)));
        bases.filter(|(base, _)| *base <= offset).max_by_key(|(base, _)| *base).expect("it is stored")
    }

    /// A reader finds it, and waits.
    fn find_damage(&mut self, p: PartitionIdx, peer: &Peer, i: usize) {
        let offset = peer.batches[i].header.offset.get();
        assert!(matches!(self.fetch(p, offset), Fetch::Held), "who wants it waits: a peer may have it");
        assert!(self.store.held(p).is_some_and(|what| what.contains("damaged")));
    }

    fn mend(&mut self, p: PartitionIdx, batches: &[Batch]) -> bool {
        self.notices.clear();
        self.store.mend(p, batches.to_vec(), &mut self.io);
        self.settle();
        self.tick(0);
        let told = self.notices.iter().find_map(|n| if let Notice::Mended { is_whole, .. } = n { Some(*is_whole) } else { None });
        told.expect("a mend is answered")
    }

    fn images(&self) -> BTreeMap<FileId, Vec<u8>> {
        let is_segment = |f: &&FileId| matches!(f, FileId::Segment(..));
        self.disk.files.keys().filter(is_segment).map(|f| (f.clone(), self.disk.files[f].clone())).collect()
    }
}

#[test]
fn what_was_lost_stands_there_again_byte_by_byte() {
    for len in [60, 300, 5000, 20_000, 40_000] {
        let (mut rig, p, peer) = in_files(24, len);
        let whole = rig.images();
        // In the middle, the first of a file, two neighbours, the very last one with the block that is still written.
        for lost in [vec![3], vec![0], vec![9, 10], vec![23]] {
            lost.iter().for_each(|i| rig.rot(&peer, *i));
            lost.iter().for_each(|i| rig.find_damage(p, &peer, *i));
            let first = peer.batches[lost[0]].header.start();
            let view = rig.store.log_view(p);
            assert_eq!((view.vouched(), view.damage().map(|d| d.0)), (first, Some(first)), "{len} {lost:?}");
            let batches: Vec<Batch> = lost.iter().map(|i| peer.batches[*i].clone()).collect();
            assert!(rig.mend(p, &batches));
            assert!(rig.images() == whole, "{len} {lost:?}: the same bytes");
            let view = rig.store.log_view(p);
            assert_eq!((view.vouched(), view.damage(), view.end()), (peer.end.at, None, peer.end));
        }
        assert_eq!(rig.read_all(p).len(), 24);
        assert!(rig.store.held(p).is_none());
    }
}

/// The writer keeps the last block in memory: it must not write back what rot made of it.
#[test]
fn the_log_goes_on_behind_what_was_mended() {
    let (mut rig, p, mut peer) = in_files(5, 300);
    rig.rot(&peer, 4);
    rig.find_damage(p, &peer, 4);
    assert!(rig.mend(p, &[peer.batches[4].clone()]));
    for n in 0..10 {
        let batch = peer.batch(1, &[n; 700]);
        rig.append_verbatim(p, &batch);
        rig.settle();
    }
    assert_eq!(rig.read_all(p).len(), 15);
    let (_, file) = rig.segment_of(0);
    let stored = &file[files::FILE_HEADER_LEN as usize..][..peer.end.at.offset as usize];
    assert!(stored == peer.batches.iter().flat_map(|b| b.bytes.to_vec()).collect::<Vec<u8>>());
}

#[test]
fn a_part_of_what_is_lost_may_come_first() {
    let (mut rig, p, peer) = in_files(12, 300);
    (4..8).for_each(|i| rig.rot(&peer, i));
    (4..8).for_each(|i| rig.find_damage(p, &peer, i));
    assert!(rig.mend(p, &peer.batches[4..6]));
    let at = peer.batches[6].header.start();
    let view = rig.store.log_view(p);
    assert_eq!((view.vouched(), view.damage().map(|d| d.0)), (at, Some(at)));
    // Bytes behind the damage are not touched.
    assert!(rig.mend(p, &peer.batches[6..]));
    assert_eq!((rig.store.log_view(p).damage(), rig.read_all(p).len()), (None, 12));
}

#[test]
fn other_bytes_are_refused() {
    let (mut rig, p, peer) = in_files(12, 300);
    rig.rot(&peer, 4);
    rig.find_damage(p, &peer, 4);
    let mut other = Peer::new("t");
    (0..5).for_each(|i| drop(other.batch(1, &vec![i + 100; 300])));
    let before = rig.images();
    assert!(!rig.mend(p, &[other.batches[4].clone()]), "it does not go on behind the batch before");
    assert!(!rig.mend(p, &[peer.batches[3].clone()]), "that one is not lost");
    assert!(!rig.mend(p, &[]));
    assert!(rig.images() == before && rig.store.log_view(p).damage().is_some());
    assert!(rig.mend(p, &[peer.batches[4].clone()]));
}

#[test]
fn a_write_that_fails_poisons_and_a_read_that_fails_does_not() {
    let (mut rig, p, peer) = in_files(12, 300);
    rig.rot(&peer, 4);
    rig.find_damage(p, &peer, 4);
    rig.notices.clear();
    rig.store.mend(p, vec![peer.batches[4].clone()], &mut rig.io);
    rig.disk.take(&mut rig.io);
    rig.fail(0, false);
    assert!(rig.notices.contains(&Notice::Mended { p, is_whole: false }) && !rig.store.stats(p).read_only);
    rig.store.mend(p, vec![peer.batches[4].clone()], &mut rig.io);
    rig.disk.take(&mut rig.io);
    while rig.find(|op| matches!(op, DiskOp::Write { .. })).is_none() {
        rig.complete(0);
    }
    let write = rig.find(|op| matches!(op, DiskOp::Write { .. })).expect("just seen");
    rig.fail(write, false);
    assert!(rig.store.stats(p).read_only);
}

#[test]
fn a_truncation_and_a_mend_never_meet() {
    let (mut rig, p, peer) = in_files(12, 300);
    rig.rot(&peer, 4);
    rig.find_damage(p, &peer, 4);
    rig.store.mend(p, vec![peer.batches[4].clone()], &mut rig.io);
    rig.disk.take(&mut rig.io);
    let to = peer.batches[2].header.end();
    rig.store.truncate(rig.now, p, to, &mut rig.io);
    rig.settle();
    assert_eq!((rig.store.log_view(p).end().at, rig.read_all(p).len()), (to, 3));
    assert!(!rig.mend(p, &[peer.batches[4].clone()]), "nothing is lost any more");
}

#[test]
fn what_is_given_up_is_passed() {
    let (mut rig, p, peer) = in_files(12, 300);
    rig.rot(&peer, 4);
    rig.find_damage(p, &peer, 4);
    let h = peer.batches[4].header;
    rig.store.give_up_lost(p, h.end().offset - 1);
    assert!(matches!(rig.fetch(p, h.offset.get()), Fetch::Held));
    rig.store.give_up_lost(p, h.end().offset);
    assert!(matches!(rig.fetch(p, h.offset.get()), Fetch::Lost { to, .. } if to == h.end()));
    let view = rig.store.log_view(p);
    assert_eq!((view.awaited(), view.damage().is_some(), rig.store.held(p)), (None, true, None));
    assert_eq!(view.vouched(), h.start(), "nobody is told that it is there");
    assert!(rig.mend(p, &[peer.batches[4].clone()]), "who has it may still bring it");
    assert_eq!(rig.read_all(p).len(), 12);
}
