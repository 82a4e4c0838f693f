//! Output of a session that is not sent yet.

use std::mem;

/// Bytes that a connection's next output is expected to take at most, so that it grows once.
const HINT_MAX: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct Output {
    /// Frames that wait to be taken.
    waiting: Vec<u8>,
    /// Bytes taken for sending, not yet sent.
    unsent: usize,
    /// Length of the last output, to make room for the next.
    hint: u32,
    /// True when something was sent since the last heartbeat.
    has_sent: bool,
    /// Heartbeat intervals in a row in which unsent output did not move.
    stuck_intervals: u8,
}

impl Output {
    /// Buffer that takes frames.
    pub fn frames(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// Buffer for frames that others follow. It has room for about as many bytes as were sent last time, so that a busy connection's
    /// output grows once a turn. An idle connection holds no memory: the buffer left with the sent bytes.
    pub fn roomy(&mut self) -> &mut Vec<u8> {
        if self.waiting.capacity() == 0 {
            self.waiting.reserve(self.hint as usize);
        }
        &mut self.waiting
    }

    /// Takes the frames out, for the layers of the connection.
    pub fn take_frames(&mut self) -> Vec<u8> {
        mem::take(&mut self.waiting)
    }

    /// The frames are about to be taken for sending.
    pub fn note_hint(&mut self) {
        if !self.waiting.is_empty() {
            self.hint = self.waiting.len().min(HINT_MAX) as u32;
        }
    }

    /// Notes that `bytes` bytes were taken for sending.
    pub fn taken(&mut self, bytes: usize) {
        if self.unsent == 0 {
            self.stuck_intervals = 0;
        }
        self.unsent += bytes;
    }

    pub fn sent(&mut self, bytes: usize) {
        self.unsent = self.unsent.checked_sub(bytes).expect("no more is sent than was taken");
        self.has_sent |= bytes > 0;
    }

    /// A heartbeat interval has passed: the number of intervals in a row in which unsent output did not move.
    pub fn end_interval(&mut self) -> u8 {
        let is_stuck = self.unsent > 0 && !mem::take(&mut self.has_sent);
        self.stuck_intervals = if is_stuck { self.stuck_intervals.saturating_add(1) } else { 0 };
        self.stuck_intervals
    }

    /// Bytes that the kernel has not taken yet.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.unsent
    }

    pub fn held_bytes(&self) -> usize {
        self.waiting.capacity()
    }
}
