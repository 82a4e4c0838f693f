//! Memory of batches that outlives the turn: a socket sends from it without a copy.
//!
//! A piece of a batch keeps the whole buffer that was read with it, so the buffer counts as lent until its last piece is dropped.
//!
//! **Bounds.** Lent memory is a part of the read cache: at most half of the cache's bound, and never so much that reads under way and
//! runs of this turn do not fit beside it. Without room the borrower copies, and its copy counts against the unsent bytes of its
//! connection. So a client that takes nothing keeps its lent memory for as long as it is connected, but does not block other readers,
//! and many such clients keep at most half of the cache. Lent pieces of batches that are in memory anyway count as well, because they
//! may outlive the batches.

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
    /// Further bytes that cannot be dropped: reads under way, and the runs that came in this turn.
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
    /// `run_bytes`: bytes of one read at most; a longer batch is read alone.
    pub(super) fn new(bytes_max: usize, run_bytes: usize) -> Lender {
        Lender { books: Arc::default(), bytes_max, run_bytes }
    }

    /// A part of a batch that stays valid until it is dropped. `None`: too much is lent already.
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
