//! Order in which batches of a core may leave its memory, oldest first, and how much has to stay.

use super::notice::PartitionIdx;
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Eviction {
    /// Bytes durable that may not leave the memory yet.
    unflushed_bytes: u64,
    /// Batches that may leave it, oldest first, with their bytes.
    line: VecDeque<(PartitionIdx, u32)>,
    /// Bytes of those.
    line_bytes: usize,
}

impl Eviction {
    pub fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes
    }

    /// Bytes of the batches that may leave the memory.
    pub fn line_bytes(&self) -> usize {
        self.line_bytes
    }

    /// A batch of so many bytes is durable.
    pub fn durable(&mut self, bytes: u64) {
        self.unflushed_bytes += bytes;
    }

    /// Subtracts unflushed bytes that are gone.
    pub fn dropped(&mut self, bytes: u64) {
        self.unflushed_bytes -= bytes;
    }

    /// A batch stands in segment and commit log.
    pub fn push(&mut self, p: PartitionIdx, bytes: usize) {
        self.dropped(bytes as u64);
        self.line.push_back((p, bytes as u32));
        self.line_bytes += bytes;
    }

    /// The batch that leaves next, with its bytes, where those in line have more than this.
    pub fn pop_beyond(&mut self, bytes_max: usize) -> Option<(PartitionIdx, usize)> {
        let (p, bytes) = self.line.pop_front_if(|_| self.line_bytes > bytes_max)?;
        self.line_bytes -= bytes as usize;
        Some((p, bytes as usize))
    }

    /// The newest batches in line of a partition, so many, are gone: it was truncated.
    pub fn drop_newest(&mut self, p: PartitionIdx, mut count: u64) {
        let mut index = self.line.len();
        while count > 0 {
            index -= 1;
            if self.line[index].0 == p {
                let (_, bytes) = self.line.remove(index).expect("it was just looked at");
                self.line_bytes -= bytes as usize;
                count -= 1;
            }
        }
    }

    /// The partition is gone; so many of its bytes had to stay.
    pub fn forget(&mut self, p: PartitionIdx, unflushed_bytes: u64) {
        self.dropped(unflushed_bytes);
        self.line_bytes -= self.line.iter().filter(|t| t.0 == p).map(|t| t.1 as usize).sum::<usize>();
        self.line.retain(|t| t.0 != p);
    }
}
