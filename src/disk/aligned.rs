//! Memory for O_DIRECT: aligned to blocks, of whole blocks. It may go to another thread, so that what was read into it is
//! shared without a copy.

use super::blocks::Block;
use crate::base::BLOCK;
use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

/// Shorter stretches are cheaper to copy than to name.
const LENT_MIN: usize = 16 * BLOCK;

pub(super) struct Aligned {
    data: NonNull<u8>,
    len: usize,
    /// Where it stands, if not in memory of its own.
    block: Option<Block>,
}

// SAFETY: it owns its memory alone.
unsafe impl Send for Aligned {}
// SAFETY: shared, it can only be read.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// `len` bytes of any content, for the kernel to fill.
    ///
    /// # Safety
    /// No byte is looked at before something was written there.
    unsafe fn uninit(len: usize) -> Aligned {
        assert!(len > 0 && len.is_multiple_of(BLOCK), "whole blocks: {len}");
        let layout = layout(len);
        // SAFETY: the layout's size is not zero.
        let data = unsafe { alloc(layout) };
        Aligned { data: NonNull::new(data).unwrap_or_else(|| handle_alloc_error(layout)), len, block: None }
    }

    /// The parts, one after the other; together they are whole blocks.
    pub fn of(parts: &[Bytes], len: usize) -> Aligned {
        // SAFETY: all of it is written below.
        let aligned = unsafe { Aligned::uninit(len) };
        let mut at = 0;
        for part in parts {
            assert!(part.len() <= len - at, "the parts are as long as was said");
            // SAFETY: it fits, and the memory is new.
            unsafe { aligned.data.as_ptr().add(at).copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            at += part.len();
        }
        assert_eq!(at, len, "the parts are as long as was said");
        aligned
    }

    /// For the kernel to read or, while nobody else has it, to write.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

/// What the kernel writes to a file: whole blocks.
pub(super) enum Writable {
    One(Stretch),
    Several {
        stretches: Vec<Stretch>,
        /// Their places.
        vectors: Vec<libc::iovec>,
    },
}

/// Whole blocks that stand together.
pub(super) enum Stretch {
    /// Of one part, which stands as O_DIRECT wants it.
    Lent(Bytes),
    Copied(Aligned),
}

impl Stretch {
    fn as_ptr(&self) -> *const u8 {
        match self {
            Stretch::Lent(part) => part.as_ptr(),
            Stretch::Copied(memory) => memory.as_ptr(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Stretch::Lent(part) => part.len(),
            Stretch::Copied(memory) => memory.len(),
        }
    }
}

impl Writable {
    /// The parts, one after the other; together they are whole blocks. What of a long part stands in memory as it does in its block
    /// of the file is not copied.
    pub fn of(parts: &[Bytes], len: usize) -> Writable {
        let (mut stretches, mut at, mut from) = (vec![], 0, 0);
        for part in parts {
            let lent = lendable(part, at);
            if !lent.is_empty() && (lent.len() >= LENT_MIN || parts.len() == 1) {
                let (start, end) = (at + lent.start, at + lent.end);
                if from < start {
                    stretches.push(Stretch::Copied(Aligned::of(&cut(parts, from, start), start - from)));
                }
                stretches.push(Stretch::Lent(part.slice(lent)));
                from = end;
            }
            at += part.len();
        }
        assert_eq!(at, len, "the parts are as long as was said");
        if stretches.is_empty() {
            return Writable::One(Stretch::Copied(Aligned::of(parts, len)));
        }
        if from < len {
            stretches.push(Stretch::Copied(Aligned::of(&cut(parts, from, len), len - from)));
        }
        if stretches.len() == 1
            && let Some(one) = stretches.pop()
        {
            return Writable::One(one);
        }
        let vector = |s: &Stretch| libc::iovec { iov_base: s.as_ptr().cast_mut().cast(), iov_len: s.len() };
        let vectors = stretches.iter().map(vector).collect();
        Writable::Several { stretches, vectors }
    }

    pub fn len(&self) -> usize {
        match self {
            Writable::One(stretch) => stretch.len(),
            Writable::Several { stretches, .. } => stretches.iter().map(Stretch::len).sum(),
        }
    }

    /// The operation that writes it, which must not outlive it; durable when it completes, if `flags` say so.
    pub fn entry(&self, fd: types::Fd, at: u64, flags: i32) -> squeue::Entry {
        match self {
            Writable::One(stretch) => {
                opcode::Write::new(fd, stretch.as_ptr(), stretch.len() as u32).offset(at).rw_flags(flags).build()
            }
            Writable::Several { vectors, .. } => {
                opcode::Writev::new(fd, vectors.as_ptr(), vectors.len() as u32).offset(at).rw_flags(flags).build()
            }
        }
    }
}

/// The whole blocks of a part that begins `at` bytes behind a block's start in the file and that stand likewise in memory.
fn lendable(part: &Bytes, at: usize) -> Range<usize> {
    let start = at.next_multiple_of(BLOCK) - at;
    let blocks = part.len().saturating_sub(start) / BLOCK * BLOCK;
    let is_aligned = (part.as_ptr() as usize + start).is_multiple_of(BLOCK);
    if is_aligned { start..start + blocks } else { 0..0 }
}

/// The bytes `from..to` of the parts.
fn cut(parts: &[Bytes], from: usize, to: usize) -> Vec<Bytes> {
    let (mut at, mut found) = (0, vec![]);
    for part in parts {
        let range = from.saturating_sub(at).min(part.len())..to.saturating_sub(at).min(part.len());
        if !range.is_empty() {
            found.push(part.slice(range));
        }
        at += part.len();
    }
    found
}

/// Memory that the kernel fills. Only what it says it has filled is ever looked at.
pub(super) struct Unfilled(Aligned);

impl Unfilled {
    pub fn new(len: usize) -> Unfilled {
        if let Some(block) = Block::take(len) {
            return Unfilled(Aligned { data: block.as_ptr(), len, block: Some(block) });
        }
        // SAFETY: nobody can look before `filled`.
        Unfilled(unsafe { Aligned::uninit(len) })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// The first `filled` bytes were written.
    pub unsafe fn filled(self, filled: usize) -> bytes::Bytes {
        assert!(filled <= self.0.len, "the kernel has filled more than there was");
        bytes::Bytes::from_owner(Filled { memory: self.0, filled })
    }
}

struct Filled {
    memory: Aligned,
    filled: usize,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `Unfilled::filled` was told that these were written; nobody writes them any more.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.filled) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        if self.block.is_none() {
            // SAFETY: allocated with this layout, and ours.
            unsafe { dealloc(self.data.as_ptr(), layout(self.len)) }
        }
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, BLOCK).expect("no write or read is that long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_and_keeps_its_bytes() {
        let parts = [Bytes::from(vec![1; 5]), Bytes::new(), Bytes::from(vec![2; 2 * BLOCK - 5])];
        let aligned = Aligned::of(&parts, 2 * BLOCK);
        assert!((aligned.as_ptr() as usize).is_multiple_of(BLOCK));
        let unfilled = Unfilled::new(2 * BLOCK);
        // SAFETY: both are that long; what is looked at was written.
        let bytes = unsafe {
            unfilled.as_ptr().copy_from_nonoverlapping(aligned.as_ptr(), 7);
            unfilled.filled(7)
        };
        assert_eq!(*bytes, [1, 1, 1, 1, 1, 2, 2]);
        let copy = bytes.slice(4..);
        std::thread::spawn(move || drop(bytes)).join().unwrap();
        assert_eq!(*copy, [1, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "as long as was said")]
    fn parts_that_are_too_short_are_a_defect() {
        Aligned::of(&[Bytes::from_static(b"x")], BLOCK);
    }

    fn written(writable: &Writable) -> Vec<u8> {
        // SAFETY: they stand while the writable does.
        let bytes = |s: &Stretch| unsafe { std::slice::from_raw_parts(s.as_ptr(), s.len()) }.to_vec();
        match writable {
            Writable::One(stretch) => bytes(stretch),
            Writable::Several { stretches, vectors, .. } => {
                assert!(stretches.iter().zip(vectors).all(|(s, v)| s.as_ptr() == v.iov_base.cast() && s.len() == v.iov_len));
                stretches.iter().flat_map(bytes).collect()
            }
        }
    }

    fn stretches(writable: &Writable) -> Vec<&Stretch> {
        match writable {
            Writable::One(stretch) => vec![stretch],
            Writable::Several { stretches, .. } => stretches.iter().collect(),
        }
    }

    #[test]
    fn what_stands_in_memory_as_in_its_block_is_lent() {
        let mut rng = crate::base::Rng::new(3);
        let mut lent_at_all = 0;
        for _ in 0..300 {
            let memory = Aligned::of(&[vec![7; 64 * BLOCK].into()], 64 * BLOCK);
            // SAFETY: all of it was written.
            let memory = unsafe { Unfilled(memory).filled(64 * BLOCK) };
            let (mut parts, mut len) = (vec![], 0);
            for n in 0..rng.below(4) {
                if rng.chance(0.3) {
                    parts.push(Bytes::from(vec![n as u8; rng.below(9000) as usize]));
                } else {
                    // congruent, most of the time
                    let start = len % BLOCK + if rng.chance(0.2) { 1 } else { 0 };
                    parts.push(memory.slice(start..start + rng.below(60 * BLOCK as u64) as usize));
                }
                len = parts.iter().map(Bytes::len).sum();
            }
            let padding = len.next_multiple_of(BLOCK) - len + if len == 0 { BLOCK } else { 0 };
            parts.push(vec![9; padding].into());
            let expected = parts.concat();
            let writable = Writable::of(&parts, expected.len());
            assert!(written(&writable) == expected && writable.len() == expected.len());
            for stretch in stretches(&writable) {
                assert!((stretch.as_ptr() as usize).is_multiple_of(BLOCK) && stretch.len().is_multiple_of(BLOCK));
                lent_at_all += matches!(stretch, Stretch::Lent(_)) as u32;
            }
        }
        assert!(lent_at_all > 100, "{lent_at_all}");
    }
}
