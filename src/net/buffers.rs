//! The receive buffers of one core, shared by all its connections: the kernel picks one when bytes are there.
//!
//! A buffer is the kernel's from [`Buffers::give`] until a completion names it; then it is ours until it is given back.
//! The memory must outlive every receive of the ring.

use super::memory::Pages;
use io_uring::{IoUring, types::BufRingEntry};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

/// The first: the kernel finds group 0 without walking its tree of groups, at every receive.
pub(super) const GROUP: u16 = 0;

/// The kernel goes round all buffers, and most receives are short. At a distance of a power of two their first lines
/// would all fall into the same few cache sets; three lines more spread them.
const STAGGER: usize = 3 * 64;

pub(super) struct Buffers {
    /// The ring of free buffers that the kernel reads.
    entries: Pages,
    memory: Pages,
    count: u16,
    bytes_each: usize,
    /// Bytes from one buffer to the next.
    distance: usize,
    /// Index of the next free buffer; published by `publish`.
    tail: u16,
}

impl Buffers {
    /// `count` is a power of two.
    pub fn new(uring: &IoUring, count: u16, bytes_each: u32) -> io::Result<Self> {
        let entries = Pages::new(count as usize * size_of::<BufRingEntry>())?;
        let distance = bytes_each as usize + STAGGER;
        let memory = Pages::new(count as usize * distance)?;
        // SAFETY: `entries` has room for `count` entries; Net drops it after the ring has let go of it.
        unsafe { uring.submitter().register_buf_ring_with_flags(entries.start() as u64, count, GROUP, 0)? };
        let mut buffers = Buffers { entries, memory, count, bytes_each: bytes_each as usize, distance, tail: 0 };
        (0..count).for_each(|b| buffers.give(b));
        buffers.publish();
        Ok(buffers)
    }

    /// Bytes that a completion put into `buffer`.
    pub fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        assert!(buffer < self.count && len <= self.bytes_each, "the kernel named a buffer that it was not given");
        // SAFETY: in bounds (above), initialised (fresh pages are zero), and not the kernel's until it is given back,
        // which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.memory.start().add(buffer as usize * self.distance), len) }
    }

    /// Back to the kernel, at the next `publish`.
    pub fn give(&mut self, buffer: u16) {
        assert!(buffer < self.count);
        let place = (self.tail & (self.count - 1)) as usize;
        // SAFETY: in bounds; the kernel reads an entry only below the published tail, and there are never more free
        // buffers than entries.
        unsafe {
            let entry = &mut *self.entries.start().cast::<BufRingEntry>().add(place);
            entry.set_addr(self.memory.start().add(buffer as usize * self.distance) as u64);
            entry.set_len(self.bytes_each as u32);
            entry.set_bid(buffer);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    pub fn publish(&self) {
        // SAFETY: the tail lies in the first entry's reserved bytes, aligned for a u16; the kernel only reads it.
        let tail = unsafe { &*(BufRingEntry::tail(self.entries.start().cast()) as *const AtomicU16) };
        tail.store(self.tail, Ordering::Release);
    }
}
