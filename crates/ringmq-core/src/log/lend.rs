//! Memory of batches that leaves the turn: what a socket sends from where it stands instead of from a copy.
//!
//! A piece of a batch keeps all of what was read with it, so that counts as lent until the last piece of it is dropped.
//!
//! **What bounds it.** What is lent takes its room from the read cache: at most half of the cache's bound, and never so much
//! that it does not fit beside what is being read and what came in this turn. Where there is no room, the borrower copies, and
//! its copy counts against what its connection may have unsent. So a client that takes nothing keeps what is lent to it
//! for as long as it stays connected, but it holds up nobody who reads on, and many of them keep no more than half of the cache. What
//! is lent of the batches that stand in memory anyhow counts as well, because it may outlive them there.

use crate::base::BLOCK;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug)]
pub struct Lender {
    books: Arc<Books>,
    /// The read cache's bound.
    bytes_max: usize,
    /// Bytes of the memory that a short piece may keep.
    run_bytes: usize,
}

#[derive(Debug, Default)]
struct Books {
    /// Bytes that all that was lent may keep.
    kept: AtomicUsize,
    /// Bytes that cannot be dropped beside that: reads under way, and what they brought in this turn.
    taken: AtomicUsize,
}

struct Lent {
    piece: Bytes,
    keeps: usize,
    books: Arc<Books>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.books.kept.fetch_sub(self.keeps, Ordering::Relaxed);
    }
}

impl Lender {
    /// `run_bytes`: what is read together, at most; batches that are longer stand alone.
    pub(super) fn new(bytes_max: usize, run_bytes: usize) -> Lender {
        Lender { books: Arc::default(), bytes_max, run_bytes }
    }

    /// A part of a batch for as long as somebody wants it; none when that is too much.
    pub fn lend(&self, batch: &Bytes, part: Range<usize>) -> Option<Bytes> {
        // a longer one stands in blocks of its own
        let keeps = (batch.len() + 2 * BLOCK).max(self.run_bytes);
        let kept = self.kept() + keeps;
        if kept > self.bytes_max / 2 || kept + self.books.taken.load(Ordering::Relaxed) > self.bytes_max {
            return None;
        }
        self.books.kept.fetch_add(keeps, Ordering::Relaxed);
        Some(Bytes::from_owner(Lent { piece: batch.slice(part), keeps, books: self.books.clone() }))
    }

    /// Bytes of the memory that is lent, or more where several pieces of it are.
    pub(super) fn kept(&self) -> usize {
        self.books.kept.load(Ordering::Relaxed)
    }

    pub(super) fn set_taken(&self, bytes: usize) {
        self.books.taken.store(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_counts_until_its_last_clone_is_dropped() {
        const RUN: usize = 100_000;
        let lender = Lender::new(5 * RUN, RUN);
        let (short, long) = (Bytes::from(vec![7; 900]), Bytes::from(vec![8; RUN]));
        let first = lender.lend(&short, 0..10).expect("there is room");
        let second = lender.lend(&long, 300..1000).expect("there is room");
        let kept = 2 * RUN + 2 * BLOCK;
        assert_eq!((&first[..], second.len(), lender.kept()), (&[7; 10][..], 700, kept));
        assert!(lender.lend(&short, 0..1).is_none(), "more than half");
        let rest = second.slice(600..);
        drop((second, long));
        assert_eq!((&rest[..], lender.kept()), (&[8; 100][..], kept));
        drop(rest);
        assert_eq!(lender.kept(), RUN);
        lender.set_taken(3 * RUN + 1);
        assert!(lender.lend(&short, 0..1).is_none(), "beside what is read");
        lender.set_taken(3 * RUN);
        let again = lender.lend(&short, 0..1).expect("just enough");
        drop((short, first, again));
        assert_eq!(lender.kept(), 0);
    }
}
