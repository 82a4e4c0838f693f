//! One timeout operation for all deadlines of a core's net.
//!
//! A deadline that moves later (each heartbeat does that) costs nothing: the operation fires at its old time, which is
//! one short turn, and is set again. Only one that moves earlier updates the operation.
//!
//! The operation counts the time in which the machine is suspended, as the core's own deadlines do. After such a time it fires early, by
//! the clock of this process: that is one short turn, too.

use crate::ring::Ring;
use io_uring::{opcode, types};
use std::time::{Duration, Instant};

pub(super) struct Timer {
    /// The kernel reads it while the entry is submitted.
    at: Box<types::Timespec>,
    armed: Option<Instant>,
}

impl Timer {
    pub fn new() -> Timer {
        Timer { at: Box::new(types::Timespec::new()), armed: None }
    }

    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// True if the timer fires at `at` or before.
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
        let rest = at.saturating_duration_since(Instant::now());
        *self.at = types::Timespec::from(boot_time() + rest);
        let (abs, boot) = (types::TimeoutFlags::ABS, types::TimeoutFlags::BOOTTIME);
        let entry = match self.armed.replace(at) {
            None => opcode::Timeout::new(&*self.at).flags(abs | boot).build().user_data(timer_data),
            // too late for an update? then the operation has fired, and is set anew after its completion
            // It keeps its clock.
            Some(_) => opcode::TimeoutUpdate::new(timer_data, &*self.at).flags(abs).build().user_data(update_data),
        };
        // SAFETY: the kernel reads `at` while it takes the entry, and it lives as long as the ring.
        unsafe { ring.push(entry) };
    }
}

/// Read after the rest is known, so that nothing fires early.
fn boot_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
