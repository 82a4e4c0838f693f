//! Memory for long reads and writes: blocks of huge pages, which a thread keeps for its next ones.
//!
//! Who reads a backlog reads into a megabyte after the other. On pages of 4 KiB the kernel looks up 256 of them for each and
//! names each to the device; a block of a huge page is one stretch. Where the system has no huge pages these are
//! ordinary ones. A block for a read is as long as [`read_memory`] says, which is what the reader counts; one for a write, a power
//! of two, from [`WRITE_BLOCK_MIN`] to the longest write.

use crate::base::{IO_BYTES_MAX, READ_BLOCK_LONG, READ_BLOCK_SHORT, read_memory};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

/// A huge page.
const REGION: usize = 2 * 1024 * 1024;
const _: () = assert!(REGION.is_multiple_of(READ_BLOCK_SHORT) && REGION.is_multiple_of(READ_BLOCK_LONG));
const _: () = assert!(REGION.is_multiple_of(IO_BYTES_MAX) && IO_BYTES_MAX.is_power_of_two());

/// A shorter write gains less than it wastes.
pub(super) const WRITE_BLOCK_MIN: usize = 64 * 1024;

/// Bytes of free blocks that a thread keeps.
const FREE_MAX: usize = 8 * 1024 * 1024;

/// One mapping, gone with its last block.
struct Region(NonNull<u8>);

// SAFETY: the mapping belongs to the process; who may touch which bytes of it is the blocks' matter.
unsafe impl Send for Region {}
// SAFETY: likewise.
unsafe impl Sync for Region {}

impl Region {
    fn new() -> Option<Region> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // Twice as much holds an aligned one.
        // SAFETY: a new mapping, nothing that exists is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * REGION, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start.cast::<u8>();
        let before = start.align_offset(REGION);
        // SAFETY: within the mapping of twice the length; nobody has seen what is given back.
        unsafe {
            let region = start.add(before);
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            if before < REGION {
                libc::munmap(region.add(REGION).cast(), REGION - before);
            }
            // Refused where there are none: then these are ordinary pages.
            libc::madvise(region.cast(), REGION, libc::MADV_HUGEPAGE);
            NonNull::new(region).map(Region)
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` kept; its blocks are gone.
        unsafe { libc::munmap(self.0.as_ptr().cast(), REGION) };
    }
}

/// A part of a region that nobody else has. Dropped, it is free again.
pub(super) struct Block(Option<Part>);

struct Part {
    region: Arc<Region>,
    at: usize,
    len: usize,
}

impl Part {
    /// Its memory goes at once; the mapping, with its last part.
    fn give_back(self) {
        // SAFETY: within the region, and nobody else's; nobody looks at it again.
        unsafe { libc::madvise(self.region.0.add(self.at).as_ptr().cast(), self.len, libc::MADV_DONTNEED) };
    }
}

#[derive(Default)]
struct Free {
    parts: Vec<Part>,
    bytes: usize,
}

thread_local! {
    static FREE: RefCell<Free> = RefCell::default();
}

impl Block {
    /// For a read of so many bytes; none, where it is too short to gain, or there is no memory.
    pub fn for_read(bytes: usize) -> Option<Block> {
        let len = read_memory(bytes);
        if len == READ_BLOCK_SHORT || len == READ_BLOCK_LONG { Self::take(len) } else { None }
    }

    /// For a write of so many bytes, likewise.
    pub fn for_write(bytes: usize) -> Option<Block> {
        if (WRITE_BLOCK_MIN..=IO_BYTES_MAX).contains(&bytes) { Self::take(bytes.next_power_of_two()) } else { None }
    }

    fn take(len: usize) -> Option<Block> {
        FREE.with_borrow_mut(|free| {
            // the last one that was given back is likeliest to be in the CPU's caches
            if let Some(at) = free.parts.iter().rposition(|part| part.len == len) {
                free.bytes -= len;
                return Some(Block(Some(free.parts.remove(at))));
            }
            let region = Arc::new(Region::new()?);
            let part = |at: usize| Part { region: region.clone(), at, len };
            free.parts.extend((1..REGION / len).map(|n| part(n * len)));
            free.bytes += REGION - len;
            Some(Block(Some(part(0))))
        })
    }

    pub fn as_ptr(&self) -> NonNull<u8> {
        let part = self.0.as_ref().expect("it has its part until it is dropped");
        // SAFETY: within the region.
        unsafe { part.region.0.add(part.at) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(part) = self.0.take() else { return };
        // a thread that ends keeps nothing
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            free.bytes += part.len;
            free.parts.push(part);
            while free.bytes > FREE_MAX {
                let part = free.parts.remove(0);
                free.bytes -= part.len;
                part.give_back();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_are_used_again() {
        assert!(Block::for_read(4096).is_none() && Block::for_read(READ_BLOCK_LONG + 4096).is_none());
        let mut blocks = vec![];
        for n in 0..40 {
            let (bytes, take): (usize, fn(usize) -> Option<Block>) = match n % 4 {
                0 => (READ_BLOCK_SHORT, Block::for_read),
                1 => (READ_BLOCK_SHORT + 4096, Block::for_read),
                2 => (WRITE_BLOCK_MIN, Block::for_write),
                _ => (IO_BYTES_MAX / 2 + 4096, Block::for_write),
            };
            let block = take(bytes).expect("there is memory");
            // SAFETY: that long, and nobody else's.
            unsafe { block.as_ptr().write_bytes(n, bytes) };
            blocks.push((n, bytes, block));
        }
        for (n, bytes, block) in &blocks {
            // SAFETY: just written.
            let seen = unsafe { std::slice::from_raw_parts(block.as_ptr().as_ptr(), *bytes) };
            assert!(seen.iter().all(|byte| byte == n), "{n}");
        }
        let last = blocks.pop().expect("forty").2;
        let at = last.as_ptr();
        drop(last);
        assert_eq!(Block::for_read(READ_BLOCK_SHORT).expect("it was given back").as_ptr(), at);
        drop(blocks);
        FREE.with_borrow(|free| {
            assert!(free.bytes <= FREE_MAX && free.bytes == free.parts.iter().map(|part| part.len).sum::<usize>());
        });
    }

    #[test]
    fn a_block_may_be_dropped_by_another_thread() {
        let block = Block::for_read(READ_BLOCK_LONG).expect("there is memory");
        // SAFETY: that long, and nobody else's.
        unsafe { block.as_ptr().write_bytes(1, READ_BLOCK_LONG) };
        std::thread::spawn(move || drop(block)).join().unwrap();
    }
}
