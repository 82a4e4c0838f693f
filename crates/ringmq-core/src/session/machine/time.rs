//! Heartbeats, and when a client is given up.

use super::{SILENT_INTERVALS_MAX, Session};
use crate::base::{Now, Ticks};
use crate::codec::nsq::{HEARTBEAT, frame};
use std::time::Duration;

impl Session {
    /// Heartbeats, and giving up clients that say nothing, leave a command unfinished, or read nothing for two intervals.
    pub fn tick(&mut self, now: Now) {
        if self.is_dead {
            return;
        }
        let now = now.ticks;
        // While the node does not read, or owes an answer, a silent client is not to blame. That it takes its output is
        // watched apart.
        if !self.ended && (!self.wants_reading() || !self.replies.is_empty()) {
            self.read_since = now;
        }
        if self.handshake_until.is_some_and(|until| now >= until) {
            return self.fail_handshake("the TLS handshake took too long");
        }
        if self.read_deadline().is_some_and(|deadline| now >= deadline) {
            return self.give_up("the client sent nothing for two heartbeat intervals, or left a command unfinished");
        }
        if self.heartbeat_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.schedule_heartbeat(now);
        if u32::from(self.output.end_interval()) >= SILENT_INTERVALS_MAX {
            self.give_up("the client took no output for two heartbeat intervals");
        } else if !self.ended && !self.is_overfull() && self.handshake_until.is_none() {
            frame::response(self.output.frames(), HEARTBEAT);
        }
    }

    /// Time at which [`Self::tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        if self.is_dead {
            return None;
        }
        self.read_deadline().into_iter().chain(self.heartbeat_deadline()).chain(self.handshake_until).min()
    }

    fn interval(&self) -> Option<Duration> {
        self.client.negotiated.heartbeat_interval_ms.map(Duration::from_millis)
    }

    pub(super) fn schedule_heartbeat(&mut self, now: Ticks) {
        if let Some(interval) = self.interval() {
            self.next_heartbeat = now + interval;
        }
    }

    fn heartbeat_deadline(&self) -> Option<Ticks> {
        (self.client.greeted && self.client.negotiated.heartbeat_interval_ms.is_some()).then_some(self.next_heartbeat)
    }

    /// Time by which the client has to send something. Without heartbeats a client may be silent for ever, but one that has ended is
    /// not waited for longer than usual.
    fn read_deadline(&self) -> Option<Ticks> {
        let usual = Duration::from_millis(self.limits.heartbeat_interval_ms);
        let interval = self.interval().or(self.ended.then_some(usual))?;
        Some(self.read_since + interval * SILENT_INTERVALS_MAX)
    }

    fn give_up(&mut self, why: &str) {
        self.note_fault(why);
        self.ignore_input();
        self.is_dead = true;
    }
}
