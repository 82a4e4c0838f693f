//! Bound of the ring that its writes may use before a slot is written: it bounds the part of the ring that a startup reads.
//!
//! Each checkpoint slot carries a *limit*: no write of the generation ends beyond it. A write waits until **both** durable slots,
//! and the one that is being written, let it go that far, so that a slot which is lost, or rots, hides no write: the other one
//! still says how far to look for evidence (rule 4).
//! A slot lets writes go a sixteenth of the ring beyond the head; the next slots are written while two of the longest writes still
//! fit. At a stop both slots say that nothing follows, and a startup reads nothing of the ring.

use crate::base::{IO_BYTES_MAX, block_down};
use crate::format::journal::RING_START;

/// Length of the longest write: an eighth of the ring, so that the unused bytes at a lap's end never fill it.
pub fn write_max(file_len: u64) -> u64 {
    block_down((file_len - RING_START) / 8).min(IO_BYTES_MAX as u64)
}

/// Bytes that a slot lets writes go beyond the head: 4 MiB of 64.
fn stride(file_len: u64) -> u64 {
    block_down((file_len - RING_START) / 16).max(4 * write_max(file_len))
}

/// Bytes that must be free: a write, and the unused bytes at a lap's end before it.
fn left_min(file_len: u64) -> u64 {
    2 * write_max(file_len)
}

/// Limit of the slots that begin a generation: the ring is empty, and its first write stands at `travelled`. No further than must
/// be, so that little is read of the ring of a core that had nothing to do.
pub fn first(travelled: u64, file_len: u64) -> u64 {
    travelled + left_min(file_len)
}

/// The limits of a ring's two slots.
#[derive(Clone, Debug)]
pub struct Limit {
    stride: u64,
    left_min: u64,
    /// Limits of the older and of the newer durable slot.
    durable: [u64; 2],
    /// Limit of the slot that is being written, or of the newer durable one.
    writing: u64,
}

impl Limit {
    /// The limit after a startup wrote both slots.
    pub fn begun(travelled: u64, file_len: u64) -> Limit {
        let first = first(travelled, file_len);
        Limit { stride: stride(file_len), left_min: left_min(file_len), durable: [first; 2], writing: first }
    }

    /// The slot that is being written counts as well: a closing slot says less than the slots before it, and a crash may leave it
    /// as the newest one.
    fn allowed(&self) -> u64 {
        self.durable[0].min(self.durable[1]).min(self.writing)
    }

    /// Whether a write that ends there may be issued.
    pub fn lets(&self, end: u64) -> bool {
        end <= self.allowed()
    }

    /// Whether a slot is to be written for the limit's sake. `is_closed`: no write follows.
    pub fn is_due(&self, head: u64, is_closed: bool) -> bool {
        if is_closed { self.durable != [head; 2] } else { self.allowed() < head + self.left_min }
    }

    /// The limit that the slot which is about to be written says.
    pub fn next(&mut self, head: u64, is_closed: bool) -> u64 {
        self.writing = if is_closed { head } else { head + self.stride };
        self.writing
    }

    /// The slot that was being written is durable.
    pub fn written(&mut self) {
        self.durable = [self.durable[1], self.writing];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_write_goes_no_further_than_both_slots_let_it() {
        let mut limit = Limit::begun(100 * MIB, 64 * MIB + RING_START);
        assert!(limit.lets(101 * MIB) && !limit.lets(101 * MIB + 1));
        assert!(!limit.is_due(100 * MIB, false) && limit.is_due(100 * MIB + 1, false));
        assert_eq!(limit.next(100 * MIB, false), 104 * MIB);
        limit.written();
        assert!(!limit.lets(101 * MIB + 1) && limit.is_due(100 * MIB + 1, false), "the older slot says less");
        limit.next(100 * MIB, false);
        limit.written();
        assert!(limit.lets(104 * MIB) && !limit.is_due(103 * MIB, false) && limit.is_due(103 * MIB + 1, false));
    }

    #[test]
    fn a_closed_ring_takes_no_write_until_both_slots_say_more() {
        let mut limit = Limit::begun(0, 64 * MIB + RING_START);
        for is_due in [true, true, false] {
            assert_eq!(limit.is_due(5 * MIB, true), is_due);
            assert_eq!(limit.next(5 * MIB, true), 5 * MIB);
            limit.written();
        }
        assert!(limit.lets(5 * MIB) && !limit.lets(5 * MIB + 1) && limit.is_due(5 * MIB, false));
    }

    #[test]
    fn a_closing_slot_that_is_being_written_stops_writes_at_once() {
        let mut limit = Limit::begun(0, 64 * MIB + RING_START);
        assert!(limit.lets(MIB));
        limit.next(MIB / 2, true);
        assert!(!limit.lets(MIB), "the slot may become durable before the write, and say that nothing follows");
        limit.written();
        limit.next(MIB / 2, false);
        limit.written();
        assert!(!limit.lets(MIB) && limit.is_due(MIB / 2, false), "the older slot still says so");
        limit.next(MIB / 2, false);
        limit.written();
        assert!(limit.lets(MIB));
    }

    #[test]
    fn a_write_always_fits_behind_two_slots() {
        for file_len in [RING_START + 256 * 1024, MIB, 64 * MIB, 64 << 30] {
            assert!(stride(file_len) >= 2 * 2 * write_max(file_len) && stride(file_len) <= file_len - RING_START);
        }
    }
}
