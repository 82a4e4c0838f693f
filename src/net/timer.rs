//! One timeout operation for all deadlines of a core's net.
//!
//! A deadline that moves later (each heartbeat does that) costs nothing: the operation fires at its old time, which is
//! one short turn, and is set again. Only one that moves earlier updates the operation.

use crate::ring::Ring;
use io_uring::{opcode, types};
use std::time::Instant;

pub(super) struct Timer {
    /// The same moment on both clocks; the kernel's was read later, so that nothing fires early.
    base: Instant,
    base_monotonic_ns: u64,
    /// The kernel reads it while the entry is submitted.
    at: Box<types::Timespec>,
    armed: Option<Instant>,
}

impl Timer {
    pub fn new() -> Timer {
        let base = Instant::now();
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is writable; this clock always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        let base_monotonic_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        Timer { base, base_monotonic_ns, at: Box::new(types::Timespec::new()), armed: None }
    }

    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// Whether it fires at `at` or before.
    pub fn is_armed_by(&self, at: Instant) -> bool {
        self.armed.is_some_and(|armed| armed <= at)
    }

    /// The operation completed.
    pub fn fired(&mut self) {
        self.armed = None;
    }

    /// Sees to it that the operation fires at `at` or before.
    pub fn arm(&mut self, ring: &mut Ring, at: Instant, timer_data: u64, update_data: u64) {
        if self.is_armed_by(at) {
            return;
        }
        let ns = self.base_monotonic_ns + at.saturating_duration_since(self.base).as_nanos() as u64;
        *self.at = types::Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
        let entry = match self.armed.replace(at) {
            None => opcode::Timeout::new(&*self.at).flags(types::TimeoutFlags::ABS).build().user_data(timer_data),
            // too late for an update? then the operation has fired, and is set anew after its completion
            Some(_) => {
                opcode::TimeoutUpdate::new(timer_data, &*self.at).flags(types::TimeoutFlags::ABS).build().user_data(update_data)
            }
        };
        // SAFETY: the kernel reads `at` while it takes the entry, and it lives as long as the ring.
        unsafe { ring.push(entry) };
    }
}
