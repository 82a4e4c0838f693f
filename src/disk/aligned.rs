//! Memory for O_DIRECT: aligned to blocks, of whole blocks. It may go to another thread, so that what was read into it is
//! shared without a copy.

use crate::base::BLOCK;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

pub(super) struct Aligned {
    data: NonNull<u8>,
    len: usize,
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
        Aligned { data: NonNull::new(data).unwrap_or_else(|| handle_alloc_error(layout)), len }
    }

    /// The parts, one after the other; together they are whole blocks.
    pub fn of(parts: &[bytes::Bytes], len: usize) -> Aligned {
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

/// What the kernel writes to a file.
pub(super) enum Writable {
    /// One part that stands as O_DIRECT wants it.
    Lent(bytes::Bytes),
    Copied(Aligned),
}

impl Writable {
    /// The parts, one after the other; together they are whole blocks.
    pub fn of(parts: &[bytes::Bytes], len: usize) -> Writable {
        match parts {
            [part] if part.len() == len && len > 0 && len.is_multiple_of(BLOCK) && part.as_ptr().align_offset(BLOCK) == 0 => {
                Writable::Lent(part.clone())
            }
            parts => Writable::Copied(Aligned::of(parts, len)),
        }
    }

    pub fn as_ptr(&self) -> *const u8 {
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
}

/// Memory that the kernel fills. Only what it says it has filled is ever looked at.
pub(super) struct Unfilled(Aligned);

impl Unfilled {
    pub fn new(len: usize) -> Unfilled {
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
        // SAFETY: allocated with this layout, and ours.
        unsafe { dealloc(self.data.as_ptr(), layout(self.len)) }
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, BLOCK).expect("no write or read is that long")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

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
}
