//! Memory of a core's batches, and the place of small ones in it: behind each other, in pieces, in the order in which they are sealed.
//!
//! That is nearly the order in which they leave, costs no allocation each, and is written and read from its start to its end. A piece is
//! freed with its last batch. So a batch that stays long, of a partition with little traffic, would keep the memory of its neighbours:
//! when pieces take much more than their batches, the batches of the oldest piece get memory of their own.
//!
//! ```text
//! pieces   |a b . . . .|. . . b .|. . a . c|a a b c c b|c c a ..
//!           ^ moved out first                           ^ being filled     (. has left)
//! ```

use super::eviction::Eviction;
use super::notice::PartitionIdx;
use super::partition::PartitionLog;
use crate::format::batch::COPIED_MAX;
use bytes::{Bytes, BytesMut};
use slab::Slab;
use std::collections::VecDeque;

const PIECE_LEN: usize = 8 * COPIED_MAX;
/// Bytes that pieces may take beyond twice the bytes of their batches.
pub(super) const SLACK: usize = 64 * PIECE_LEN;

#[derive(Default)]
pub struct BatchMemory {
    /// Batches that may leave the memory.
    pub(super) eviction: Eviction,
    piece: BytesMut,
    is_new: bool,
    /// The batches of each piece that may be there still, oldest first: partition, and the low half of the number. The last piece is
    /// the one that is being filled.
    pieces: VecDeque<Vec<(PartitionIdx, u32)>>,
}

impl BatchMemory {
    pub fn keep(&mut self, batch: &[u8]) -> Bytes {
        if self.piece.capacity() < batch.len() {
            self.piece = BytesMut::with_capacity(PIECE_LEN);
            self.is_new = true;
        }
        self.piece.extend_from_slice(batch);
        self.piece.split().freeze()
    }

    /// The batch that was just kept is this one.
    pub(super) fn note(&mut self, p: PartitionIdx, number: u64) {
        if std::mem::take(&mut self.is_new) {
            self.pieces.push_back(vec![]);
        }
        if let Some(piece) = self.pieces.back_mut() {
            piece.push((p, number as u32));
        }
    }

    /// Bytes of batches that are durable.
    pub fn durable_bytes(&self) -> usize {
        self.eviction.unflushed_bytes() as usize + self.eviction.line_bytes()
    }

    /// Bytes that the pieces take, at most, beside the one that is being filled.
    pub fn bytes(&self) -> usize {
        self.pieces.len().saturating_sub(1) * PIECE_LEN
    }

    /// Frees memory at a turn's end: pieces of which nothing is left are forgotten; where they take too much beside `batch_bytes` of
    /// batches, the rest of a piece is moved out.
    pub(super) fn free_pieces(&mut self, partitions: &mut Slab<PartitionLog>, batch_bytes: usize) {
        let bytes_max = 2 * batch_bytes + SLACK;
        while self.pieces.len() > 1 {
            let must_go = self.bytes() > bytes_max;
            let Some(oldest) = self.pieces.front_mut() else { return };
            while let Some(&(p, number)) = oldest.last() {
                let part = partitions.get_mut(p.0 as usize);
                if let Some(r) = part.and_then(|part| part.batches.get_by_low(number)).filter(|r| r.bytes.len() <= COPIED_MAX) {
                    if !must_go {
                        return;
                    }
                    r.bytes = Bytes::copy_from_slice(&r.bytes);
                }
                oldest.pop();
            }
            self.pieces.pop_front();
        }
    }

    /// Lets batches of the partition that now stand in segment and commit log leave the memory. Such batches of the core are kept within
    /// `bytes_max`; the oldest leave first.
    pub(super) fn evict(&mut self, partitions: &mut Slab<PartitionLog>, p: PartitionIdx, bytes_max: usize) {
        for bytes in partitions[p.0 as usize].unpin() {
            self.eviction.push(p, bytes);
        }
        while let Some((p, bytes)) = self.eviction.pop_beyond(bytes_max) {
            let evicted = partitions[p.0 as usize].evict();
            assert_eq!(evicted, bytes, "batches leave in the order in which they were unpinned");
        }
    }
}
