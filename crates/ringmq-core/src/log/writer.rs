//! Turns a growing byte string into aligned writes of one file after another: the segments of a partition, or its commit logs. Keeps the
//! last, partly filled block in memory and writes it whole again with the next bytes.
//!
//! Decides positions only. It assumes that its planned writes succeed: after a failure it must not be used again.

use crate::base::{BLOCK, DiskOp, Durability, FileId, IO_BYTES_MAX, PartitionDir, Position};
use crate::format::files::{FILE_HEADER_LEN, FileHeader, SEGMENT_MAGIC};
use crate::format::segment_table::SegmentTable;
use bytes::Bytes;
use std::{collections::VecDeque, sync::Arc};

#[derive(Debug)]
pub struct FileWriter {
    dir: Arc<PartitionDir>,
    magic: [u8; 4],
    /// Names the file.
    base: i64,
    /// Offset of the next byte.
    at: u64,
    /// Bytes of the last block below `at`.
    tail: Vec<u8>,
    /// File header that is not written yet.
    header: Option<Bytes>,
}

static ZEROS: [u8; BLOCK] = [0; BLOCK];

impl FileWriter {
    /// Continues a file of `at` bytes, header block included. `tail`: the bytes of its last, partly filled block.
    pub fn resume(dir: Arc<PartitionDir>, magic: [u8; 4], base: i64, at: u64, tail: Vec<u8>) -> Self {
        assert_eq!(at % BLOCK as u64, tail.len() as u64, "the tail is what the last block holds");
        FileWriter { dir, magic, base, at, tail, header: None }
    }

    /// A file of which nothing is written yet. `before`: the segments before it.
    pub fn begin(dir: Arc<PartitionDir>, header: FileHeader, before: &SegmentTable) -> Self {
        let base = Position::from(header.base).offset;
        let block = header.block(before).into();
        FileWriter { dir, magic: header.magic, base, at: FILE_HEADER_LEN, tail: vec![], header: Some(block) }
    }

    /// Bytes behind the file's header.
    pub fn len_behind_header(&self) -> u64 {
        self.at - FILE_HEADER_LEN
    }

    pub fn base(&self) -> i64 {
        self.base
    }

    pub fn file(&self) -> FileId {
        if self.magic == SEGMENT_MAGIC {
            FileId::Segment(self.dir.clone(), self.base)
        } else {
            FileId::Commit(self.dir.clone(), self.base)
        }
    }

    /// Plans writes of `data` behind the file's end; each is at most [`IO_BYTES_MAX`] and they do not overlap.
    pub fn write(&mut self, data: Vec<Bytes>, durability: Durability, out: &mut VecDeque<DiskOp>) {
        let len: u64 = data.iter().map(|d| d.len() as u64).sum();
        if len == 0 {
            return;
        }
        let mut parts = VecDeque::with_capacity(data.len() + 2);
        let start = match self.header.take() {
            Some(header) => {
                parts.push_back(header);
                0
            }
            None => {
                if !self.tail.is_empty() {
                    parts.push_back(Bytes::copy_from_slice(&self.tail));
                }
                self.at - self.tail.len() as u64
            }
        };
        self.at += len;
        self.keep_tail(&data);
        parts.extend(data);
        let padding = self.at.next_multiple_of(BLOCK as u64) - self.at;
        if padding > 0 {
            parts.push_back(Bytes::from_static(&ZEROS[..padding as usize]));
        }
        let file = self.file();
        let mut at = start;
        while !parts.is_empty() {
            let parts = take(&mut parts, IO_BYTES_MAX);
            let written: usize = parts.iter().map(Bytes::len).sum();
            out.push_back(DiskOp::Write { file: file.clone(), at, parts, durability });
            at += written as u64;
        }
    }

    /// Copies the last block's bytes in memory over `buffer`, which holds the file from `at` on.
    pub fn overlay(&self, at: u64, buffer: &mut [u8]) {
        let tail_at = self.at - self.tail.len() as u64;
        if let Some(place) = tail_at.checked_sub(at).filter(|place| *place + (self.tail.len() as u64) <= buffer.len() as u64) {
            buffer[place as usize..][..self.tail.len()].copy_from_slice(&self.tail);
        }
    }

    /// Changes written bytes from `at` on also in the last block's memory.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) {
        let tail_at = self.at - self.tail.len() as u64;
        let (from, to) = (at.max(tail_at), (at + bytes.len() as u64).min(self.at));
        if from < to {
            self.tail[(from - tail_at) as usize..(to - tail_at) as usize]
                .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
        }
    }

    /// Updates the bytes of the last block: the part of `data` in it, after the old tail if it is still the same block.
    fn keep_tail(&mut self, data: &[Bytes]) {
        let len = (self.at % BLOCK as u64) as usize;
        let total: usize = data.iter().map(Bytes::len).sum();
        if total >= len {
            self.tail.clear();
        }
        // Else the block is the old one and the data goes behind the old tail.
        let mut skip = total - (len - self.tail.len());
        for d in data {
            let from = skip.min(d.len());
            self.tail.extend_from_slice(&d[from..]);
            skip -= from;
        }
        assert_eq!(self.tail.len(), len);
    }
}

/// Takes the first `max` bytes off `parts`, splitting one part if necessary.
fn take(parts: &mut VecDeque<Bytes>, max: usize) -> Vec<Bytes> {
    let (mut taken, mut left) = (vec![], max);
    while left > 0 {
        let Some(mut part) = parts.pop_front() else { break };
        if part.len() > left {
            parts.push_front(part.split_off(left));
        }
        left -= part.len();
        taken.push(part);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, PartitionId, TopicId, TopicName};
    use crate::format::files::FileHeader;

    #[test]
    fn any_split_of_the_bytes_gives_the_same_file() {
        let dir = Arc::new(PartitionDir {
            topic: TopicName::new("t").expect("a valid name"),
            topic_id: TopicId([1; 16]),
            partition: PartitionId(0),
        });
        let mut rng = crate::base::Rng::new(7);
        for _ in 0..200 {
            let header = FileHeader::new(SEGMENT_MAGIC, TopicId([1; 16]), PartitionId(0), Position::START, 0, Epoch(1), 5);
            let mut expected = header.block(&SegmentTable::default());
            let mut writer = FileWriter::begin(dir.clone(), header, &SegmentTable::default());
            let mut file = vec![];
            for _ in 0..rng.below(8) + 1 {
                let big = if rng.chance(0.1) { 1_300_000 } else { 5000 };
                let data: Vec<Bytes> = (0..rng.below(4)).map(|i| vec![i as u8 + 1; rng.below(big) as usize].into()).collect();
                data.iter().for_each(|d| expected.extend_from_slice(d));
                let mut ops = VecDeque::new();
                writer.write(data, Durability::Later, &mut ops);
                for op in ops {
                    let DiskOp::Write { at, parts, .. } = op else { unreachable!("a writer writes") };
                    let bytes = parts.concat();
                    assert!(bytes.len() <= IO_BYTES_MAX && bytes.len() % BLOCK == 0 && at % BLOCK as u64 == 0);
                    let end = at as usize + bytes.len();
                    file.resize(end.max(file.len()), 0);
                    file[at as usize..end].copy_from_slice(&bytes);
                }
            }
            if !file.is_empty() {
                assert_eq!(&file[..expected.len()], &expected[..]);
                assert_eq!(file.len(), expected.len().next_multiple_of(BLOCK));
            }
        }
    }
}
