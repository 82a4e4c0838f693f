//! Memory for long reads and writes: blocks of huge pages, which a thread keeps for its next ones.
//!
//! A backlog is read into one megabyte after the other. On pages of 4 KiB the kernel looks up 256 of them for each and names each to the
//! device; a block of a huge page is one stretch. Without huge pages these are ordinary ones. A block for a read has the length of
//! [`read_memory`], which the reader counts; one for a write, a power of two, from twice [`LONG_WRITE_MIN`] to the longest write.
//!
//! The kernel clears a page at its first use: a tenth of a millisecond for a huge one, and five where a virtual machine's host has yet
//! to find memory for it. The whole core waits for that, so its kept blocks are touched before it takes connections.

use crate::base::{BLOCK, IO_BYTES_MAX, LONG_WRITE_MIN, READ_BLOCK_LONG, READ_BLOCK_SHORT, read_memory};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

/// A huge page.
const REGION: usize = 2 * 1024 * 1024;
const _: () = assert!(REGION.is_multiple_of(READ_BLOCK_SHORT) && REGION.is_multiple_of(READ_BLOCK_LONG));
const _: () = assert!(REGION.is_multiple_of(IO_BYTES_MAX) && IO_BYTES_MAX.is_power_of_two());

/// Bytes of free blocks that a thread keeps.
pub(super) const FREE_MAX: usize = 8 * 1024 * 1024;

/// Mapping of one huge page, unmapped when its last block is dropped.
struct Region(NonNull<u8>);

// SAFETY: the mapping belongs to the process; each block's owner touches only its own bytes.
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

    /// A region whose pages the kernel has cleared already.
    fn touched() -> Option<Region> {
        let region = Region::new()?;
        for at in (0..REGION).step_by(BLOCK) {
            // SAFETY: within the region, and nobody has a part of it yet.
            unsafe { region.0.add(at).write_volatile(0) };
        }
        Some(region)
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

/// The parts of one region that are free here.
struct FreeParts {
    region: Arc<Region>,
    /// Bytes of each part.
    len: usize,
    at: Vec<usize>,
}

impl FreeParts {
    fn whole(region: Arc<Region>, len: usize) -> FreeParts {
        FreeParts { region, len, at: (0..REGION / len).rev().map(|n| n * len).collect() }
    }

    fn bytes(&self) -> usize {
        self.at.len() * self.len
    }
}

/// Regions and parts that a thread keeps. A part that is given back alone splits a huge page for good. So whole regions are given back
/// first, then the parts of the region with the fewest free ones. Parts are taken from the region with the fewest left, so that others
/// become whole.
#[derive(Default)]
struct Free {
    regions: Vec<FreeParts>,
    bytes: usize,
}

impl Free {
    fn take(&mut self, len: usize) -> Option<Part> {
        let fitting = self.regions.iter().enumerate().filter(|(_, free)| free.len == len);
        let index = match fitting.min_by_key(|(_, free)| free.at.len()) {
            Some((index, _)) => index,
            None => self.region_for(len)?,
        };
        let free = &mut self.regions[index];
        let part = Part { region: free.region.clone(), at: free.at.pop()?, len };
        self.bytes -= len;
        if free.at.is_empty() {
            self.regions.swap_remove(index);
        }
        Some(part)
    }

    /// The index of a whole region, of parts of this length from now on.
    fn region_for(&mut self, len: usize) -> Option<usize> {
        if let Some(whole) = self.regions.iter().position(|free| free.bytes() == REGION) {
            let free = &mut self.regions[whole];
            debug_assert_eq!(Arc::strong_count(&free.region), 1, "nobody has a part of it");
            *free = FreeParts::whole(free.region.clone(), len);
            return Some(whole);
        }
        // kept blocks of other lengths make room, and not this one when it comes back
        while self.bytes > FREE_MAX - REGION {
            self.give_back();
        }
        self.add(Region::new()?, len);
        Some(self.regions.len() - 1)
    }

    fn add(&mut self, region: Region, len: usize) {
        self.regions.push(FreeParts::whole(Arc::new(region), len));
        self.bytes += REGION;
    }

    /// Keeps as much as it may, of memory that was touched.
    fn fill(&mut self) {
        while self.bytes + REGION <= FREE_MAX
            && let Some(region) = Region::touched()
        {
            self.add(region, IO_BYTES_MAX);
        }
    }

    fn put(&mut self, part: Part) {
        let Part { region, at, len } = part;
        self.bytes += len;
        match self.regions.iter_mut().find(|free| Arc::ptr_eq(&free.region, &region)) {
            Some(free) => free.at.push(at),
            None => self.regions.push(FreeParts { region, len, at: vec![at] }),
        }
        while self.bytes > FREE_MAX {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some(whole) = self.regions.iter().position(|free| free.bytes() == REGION) {
            self.bytes -= REGION;
            self.regions.swap_remove(whole);
            return;
        }
        let Some(index) = (0..self.regions.len()).min_by_key(|&index| self.regions[index].bytes()) else { return };
        let free = &mut self.regions[index];
        if let Some(at) = free.at.pop() {
            // SAFETY: within the region, and nobody else's; nobody looks at it again. The mapping goes with the last part.
            unsafe { libc::madvise(free.region.0.add(at).as_ptr().cast(), free.len, libc::MADV_DONTNEED) };
            self.bytes -= free.len;
            if free.at.is_empty() {
                self.regions.swap_remove(index);
            }
        }
    }
}

thread_local! {
    static FREE: RefCell<Free> = RefCell::default();
}

/// Prepares this thread's blocks, so that no request waits for the first ones.
pub(super) fn fill() {
    FREE.with_borrow_mut(Free::fill);
}

/// Bytes that are ready for this thread.
#[cfg(test)]
pub(super) fn ready() -> usize {
    FREE.with_borrow(|free| free.bytes)
}

impl Block {
    /// A block for a read of `bytes`. `None` where the read is too short to gain, or memory is short.
    pub fn for_read(bytes: usize) -> Option<Block> {
        let len = read_memory(bytes);
        if len == READ_BLOCK_SHORT || len == READ_BLOCK_LONG { Self::take(len) } else { None }
    }

    /// A block for a write of `bytes`. `None` where the write is too short to gain, or memory is short.
    pub fn for_write(bytes: usize) -> Option<Block> {
        let len = bytes.next_power_of_two().max(2 * LONG_WRITE_MIN);
        if (LONG_WRITE_MIN..=IO_BYTES_MAX).contains(&bytes) { Self::take(len) } else { None }
    }

    fn take(len: usize) -> Option<Block> {
        FREE.with_borrow_mut(|free| Some(Block(Some(free.take(len)?))))
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
        let _ = FREE.try_with(|free| free.borrow_mut().put(part));
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
                2 => (LONG_WRITE_MIN, Block::for_write),
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
        assert_eq!(Block::for_write(IO_BYTES_MAX / 2 + 4096).expect("it was given back").as_ptr(), at);
        // giving back a part of a region leaves its other parts intact
        let mut n = 0;
        blocks.retain(|_| {
            n += 1;
            n % 3 == 0
        });
        for (n, bytes, block) in &blocks {
            // SAFETY: written above.
            let seen = unsafe { std::slice::from_raw_parts(block.as_ptr().as_ptr(), *bytes) };
            assert!(seen.iter().all(|byte| byte == n), "{n}");
        }
        drop(blocks);
        FREE.with_borrow(|free| {
            let bytes: usize = free.regions.iter().map(FreeParts::bytes).sum();
            assert!(free.bytes <= FREE_MAX && free.bytes == bytes && bytes > 0);
            assert!(free.regions.iter().all(|free| !free.at.is_empty()));
        });
    }

    #[test]
    fn what_a_burst_left_makes_room_for_another_length() {
        let mut free = Free::default();
        let burst: Vec<_> = (0..16).map(|_| free.take(IO_BYTES_MAX).expect("there is memory")).collect();
        burst.into_iter().for_each(|part| free.put(part));
        let mut kept = None;
        for _ in 0..3 {
            let part = free.take(IO_BYTES_MAX / 4).expect("there is memory");
            let region = Arc::downgrade(&part.region);
            assert!(kept.replace(region.clone()).is_none_or(|last| last.ptr_eq(&region)), "the same one");
            free.put(part);
            assert!(region.upgrade().is_some() && free.bytes <= FREE_MAX);
        }
    }

    #[test]
    fn parts_that_are_left_over_make_room_for_another_length() {
        let mut free = Free::default();
        let in_region = REGION / IO_BYTES_MAX;
        let regions = FREE_MAX / REGION + 1;
        let burst: Vec<_> = (0..regions * in_region).map(|n| (n, free.take(IO_BYTES_MAX).expect("there is memory"))).collect();
        // one of each region
        let (held, rest): (Vec<_>, Vec<_>) = burst.into_iter().partition(|(n, _)| n % in_region == 0);
        rest.into_iter().for_each(|(_, part)| free.put(part));
        assert!(free.bytes > FREE_MAX - REGION && free.regions.iter().all(|free| free.bytes() < REGION), "no whole one");
        let part = free.take(IO_BYTES_MAX / 4).expect("there is memory");
        assert!(free.bytes <= FREE_MAX && held.iter().all(|(_, other)| !Arc::ptr_eq(&other.region, &part.region)));
        free.put(part);
        held.into_iter().for_each(|(_, part)| free.put(part));
        let bytes: usize = free.regions.iter().map(FreeParts::bytes).sum();
        assert!(free.bytes == bytes && bytes <= FREE_MAX);
    }

    #[test]
    fn what_is_filled_is_taken_for_any_length() {
        let mut free = Free::default();
        free.fill();
        assert!(free.bytes == FREE_MAX && free.regions.len() == FREE_MAX / REGION);
        let filled: Vec<_> = free.regions.iter().map(|free| Arc::downgrade(&free.region)).collect();
        let lens = [2 * LONG_WRITE_MIN, READ_BLOCK_SHORT, READ_BLOCK_LONG, 4 * LONG_WRITE_MIN];
        let parts: Vec<_> = lens.into_iter().map(|len| free.take(len).expect("it is there")).collect();
        let is_filled = |part: &Part| filled.iter().any(|region| std::ptr::eq(region.as_ptr(), Arc::as_ptr(&part.region)));
        assert!(parts.iter().all(is_filled) && filled.iter().all(|region| region.upgrade().is_some()));
        parts.into_iter().for_each(|part| free.put(part));
        assert_eq!(free.bytes, FREE_MAX);
        free.fill();
        assert_eq!((free.bytes, free.regions.len()), (FREE_MAX, FREE_MAX / REGION), "no more than is kept");
    }

    #[test]
    fn regions_end_one_after_the_other() {
        let (len, mut free) = (2 * LONG_WRITE_MIN, Free::default());
        let in_region = REGION / len;
        let regions = 2 * FREE_MAX / REGION;
        let mut parts: Vec<_> = (0..regions * in_region).map(|_| free.take(len)).collect();
        // one of each region in turn
        for n in 0..parts.len() {
            let part = parts[n % regions * in_region + n / regions].take();
            free.put(part.expect("there was memory"));
            assert!(free.bytes <= FREE_MAX);
        }
        let whole = free.regions.iter().filter(|free| free.bytes() == REGION).count();
        assert!(whole >= FREE_MAX / REGION - 1, "{whole} of {} are whole", free.regions.len());
    }

    #[test]
    fn a_block_may_be_dropped_by_another_thread() {
        let block = Block::for_read(READ_BLOCK_LONG).expect("there is memory");
        // SAFETY: that long, and nobody else's.
        unsafe { block.as_ptr().write_bytes(1, READ_BLOCK_LONG) };
        std::thread::spawn(move || drop(block)).join().unwrap();
    }
}
