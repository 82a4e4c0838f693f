//! Output of a connection as the pieces of memory that the caller has: nothing is copied on its way to the kernel.
//!
//! The first `in_flight` pieces are the kernel's until its completion; they, the vectors that name them, and the header that names
//! those, neither move nor go before it.

use super::conn::Conn;
use bytes::{Buf, Bytes};
use std::collections::VecDeque;

/// Pieces of one send, at most: the kernel takes 1,024.
const VECTORS_MAX: usize = 256;

/// Approximate bytes of one send: the kernel takes them at once, and they are reported as sent together.
const SEND_BYTES: usize = 1024 * 1024;

pub(super) struct Pieces {
    queue: VecDeque<Bytes>,
    in_flight: usize,
    vectors: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("queue", &self.queue.len()).field("in_flight", &self.in_flight).finish()
    }
}

impl Pieces {
    fn new() -> Pieces {
        // SAFETY: a header of zeros names nothing.
        let header = unsafe { std::mem::zeroed() };
        Pieces { queue: VecDeque::new(), in_flight: 0, vectors: Vec::new(), header }
    }

    pub fn is_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.queue.push_back(piece);
        }
    }

    /// The header of the next send. It stands until [`Pieces::taken`].
    pub fn begin(&mut self) -> *const libc::msghdr {
        assert!(self.in_flight == 0 && !self.queue.is_empty(), "one send at a time, of something");
        self.vectors.clear();
        let mut bytes = 0;
        for piece in self.queue.iter().take(VECTORS_MAX) {
            if bytes >= SEND_BYTES {
                break;
            }
            bytes += piece.len();
            self.vectors.push(libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() });
        }
        self.in_flight = self.vectors.len();
        self.header.msg_iov = self.vectors.as_mut_ptr();
        self.header.msg_iovlen = self.vectors.len() as _;
        &raw const self.header
    }

    /// The send is over: the kernel took this many bytes.
    pub fn taken(&mut self, mut bytes: usize) {
        let asked: usize = self.queue.iter().take(self.in_flight).map(Bytes::len).sum();
        assert!(bytes <= asked, "the kernel took more than there was");
        self.in_flight = 0;
        while bytes > 0 {
            let piece = self.queue.front_mut().expect("counted");
            let now = bytes.min(piece.len());
            piece.advance(now);
            bytes -= now;
            if piece.is_empty() {
                self.queue.pop_front();
            }
        }
    }

    /// Drops the pieces that are not with the kernel.
    pub fn drop_rest(&mut self) {
        self.queue.truncate(self.in_flight);
    }
}

impl Conn {
    /// The queue of pieces; while it has any, all output goes out as pieces.
    pub fn pieces(&mut self) -> &mut Pieces {
        let queued = &mut self.queued;
        self.pieces.get_or_insert_with(|| {
            let mut pieces = Box::new(Pieces::new());
            pieces.push(std::mem::take(queued).into());
            pieces
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the kernel would send.
    fn seen(header: *const libc::msghdr) -> Vec<u8> {
        // SAFETY: the header and what it names stand while the send is in flight.
        let vectors = unsafe { std::slice::from_raw_parts((*header).msg_iov, (*header).msg_iovlen) };
        // SAFETY: likewise.
        let bytes = vectors.iter().map(|v| unsafe { std::slice::from_raw_parts(v.iov_base.cast::<u8>(), v.iov_len) });
        bytes.flatten().copied().collect()
    }

    #[test]
    fn whatever_the_kernel_takes_the_bytes_go_out_in_order() {
        let mut rng = crate::base::Rng::new(5);
        for _ in 0..200 {
            let (mut pieces, mut expected, mut out) = (Pieces::new(), vec![], vec![]);
            for n in 0..rng.below(600) {
                let big = if rng.chance(0.01) { 700_000 } else { 300 };
                let piece = vec![n as u8; rng.below(big) as usize];
                expected.extend_from_slice(&piece);
                pieces.push(piece.into());
            }
            while !pieces.is_empty() {
                let asked = seen(pieces.begin());
                assert!(pieces.is_in_flight());
                let taken = 1 + rng.below(asked.len() as u64) as usize;
                pieces.taken(taken);
                out.extend_from_slice(&asked[..taken]);
            }
            assert!(out == expected && !pieces.is_in_flight());
        }
    }

    #[test]
    fn what_is_with_the_kernel_stays_until_it_is_over() {
        let mut pieces = Pieces::new();
        (0..VECTORS_MAX + 3).for_each(|n| pieces.push(vec![n as u8].into()));
        let header = pieces.begin();
        pieces.drop_rest();
        assert_eq!(seen(header).len(), VECTORS_MAX);
        pieces.taken(VECTORS_MAX);
        assert!(pieces.is_empty() && !pieces.is_in_flight());
    }
}
