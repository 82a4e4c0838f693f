//! Memory of batches that leaves the turn: what a socket sends from where it stands instead of from a copy.
//!
//! A piece of a batch keeps all of what was read with it, so that counts as lent until the last piece of it is dropped,
//! and what is lent takes its room from the read cache, at most half of it. Where there is none, the borrower copies: a client
//! that takes nothing cannot hold up those who read on.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug)]
pub struct Lender {
    /// What all that was lent may keep.
    kept: Arc<AtomicUsize>,
    kept_max: usize,
    /// Of the memory that a short piece may keep.
    run_bytes: usize,
}

struct Lent {
    piece: Bytes,
    keeps: usize,
    kept: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.keeps, Ordering::Relaxed);
    }
}

impl Lender {
    /// `run_bytes`: what is read together, at most; batches that are longer stand alone.
    pub(super) fn new(kept_max: usize, run_bytes: usize) -> Lender {
        Lender { kept: Arc::default(), kept_max, run_bytes }
    }

    /// `piece` for as long as somebody wants it; none when too much is lent.
    pub fn lend(&self, piece: Bytes) -> Option<Bytes> {
        let keeps = piece.len().max(self.run_bytes);
        if self.kept() + keeps > self.kept_max {
            return None;
        }
        self.kept.fetch_add(keeps, Ordering::Relaxed);
        Some(Bytes::from_owner(Lent { piece, keeps, kept: self.kept.clone() }))
    }

    /// Bytes of the memory that is lent, or more where several pieces of it are.
    pub(super) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }
}

impl super::Store {
    /// Lends what was fetched to whoever needs it beyond the turn.
    pub fn lender(&self) -> Lender {
        self.cache.lender().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_counts_until_its_last_clone_is_dropped() {
        let lender = Lender::new(1000, 300);
        let batch = Bytes::from(vec![7; 900]);
        let first = lender.lend(batch.slice(..10)).expect("there is room");
        let second = lender.lend(batch.slice(10..710)).expect("just enough");
        assert_eq!((first.len(), second.len(), lender.kept()), (10, 700, 1000));
        assert!(lender.lend(batch.slice(..1)).is_none());
        let rest = second.slice(600..);
        drop(second);
        assert_eq!(lender.kept(), 1000);
        assert_eq!(*rest, [7; 100]);
        drop(rest);
        assert_eq!(lender.kept(), 300);
        drop(batch);
        assert_eq!(*first, [7; 10]);
        drop(first);
        assert_eq!(lender.kept(), 0);
    }
}
