//! Memory for O_DIRECT: aligned to blocks, of whole blocks; long stretches are of huge pages ([`super::blocks`]). It may go to another
//! thread, so that the bytes read are shared without a copy.

use super::blocks::Block;
use crate::base::{BLOCK, LONG_WRITE_MIN};
use bytes::Bytes;
use io_uring::{opcode, squeue, types};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

pub(super) struct Aligned {
    data: NonNull<u8>,
    len: usize,
    /// Huge-page block that holds the bytes; `None`: they stand in memory of their own.
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
        let aligned = match Block::for_write(len) {
            Some(block) => Aligned { data: block.as_ptr(), len, block: Some(block) },
            // SAFETY: all of it is written below.
            None => unsafe { Aligned::uninit(len) },
        };
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

    /// Pointer for the kernel to read from or, while nobody else has the memory, to write to.
    pub fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

/// Bytes that the kernel writes to a file, in whole blocks.
pub(super) enum Writable {
    /// A single short part that is already aligned as O_DIRECT wants it.
    Lent(Bytes),
    Copied(Aligned),
}

impl Writable {
    /// The parts, one after the other; together they are whole blocks.
    ///
    /// A long write is always copied: on pages of 4 KiB from all over the memory it takes the kernel and the device longer than the
    /// copy and a write out of a block.
    pub fn of(parts: &[Bytes], len: usize) -> Writable {
        match parts {
            [part] if part.len() == len && len < LONG_WRITE_MIN && is_aligned(part) => Writable::Lent(part.clone()),
            _ => Writable::Copied(Aligned::of(parts, len)),
        }
    }

    fn as_ptr(&self) -> *const u8 {
        match self {
            Writable::Lent(part) => part.as_ptr(),
            Writable::Copied(memory) => memory.as_ptr(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Writable::Lent(part) => part.len(),
            Writable::Copied(memory) => memory.len(),
        }
    }

    /// The operation that writes it, which must not outlive it; durable when it completes, if `flags` say so.
    pub fn entry(&self, fd: types::Fd, at: u64, flags: i32) -> squeue::Entry {
        opcode::Write::new(fd, self.as_ptr(), self.len() as u32).offset(at).rw_flags(flags).build()
    }
}

fn is_aligned(part: &Bytes) -> bool {
    (part.as_ptr() as usize).is_multiple_of(BLOCK) && part.len().is_multiple_of(BLOCK)
}

/// Memory that the kernel fills. Only bytes that the kernel reports as filled are ever read.
pub(super) struct Unfilled(Aligned);

impl Unfilled {
    pub fn new(len: usize) -> Unfilled {
        if let Some(block) = Block::for_read(len) {
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
        // SAFETY: both are that long, and the compared bytes were written.
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

    #[test]
    fn only_a_short_write_of_one_aligned_part_is_not_copied() {
        let memory = |len: usize| {
            let mut memory = crate::base::block_memory(len + 1);
            memory.extend((0..len + 1).map(|n| ((n * 7) >> 3) as u8));
            memory.freeze()
        };
        let short = memory(BLOCK);
        let halves =
            [memory(LONG_WRITE_MIN).slice(..LONG_WRITE_MIN / 2), memory(LONG_WRITE_MIN).slice(1..LONG_WRITE_MIN / 2 + 1)];
        let cases: [(&[Bytes], bool); 5] = [
            (&[short.slice(..BLOCK)], true),
            (&[short.slice(1..BLOCK + 1)], false),
            (&[short.slice(..100), short.slice(..BLOCK - 100)], false),
            (&[memory(LONG_WRITE_MIN).slice(..LONG_WRITE_MIN)], false),
            (&halves, false),
        ];
        for (parts, is_lent) in cases {
            let expected = parts.concat();
            let writable = Writable::of(parts, expected.len());
            // SAFETY: it stands while the writable does.
            let seen = unsafe { std::slice::from_raw_parts(writable.as_ptr(), writable.len()) };
            assert!(seen == expected && (writable.as_ptr() as usize).is_multiple_of(BLOCK));
            assert_eq!(matches!(writable, Writable::Lent(_)), is_lent);
        }
    }
}
