//! Silence of either side: a silent client is given up, and the node says something in time.

use super::{NativeSession, Reply, SILENT_INTERVALS_MAX};
use crate::base::{Now, Ticks};
use std::time::Duration;

impl NativeSession {
    /// Gives up a client that is silent, or takes nothing, for two intervals.
    pub fn tick(&mut self, now: Now) {
        // while the node does not read, a silent client is not to blame
        if !self.ended && !self.wants_reading() {
            self.read_since = now.ticks;
        }
        if self.silence_deadline().is_some_and(|at| now.ticks >= at) {
            self.ended = true;
            self.is_dead = true;
        } else if self.pong_at().is_some_and(|at| now.ticks >= at) {
            // the client hears something at least this often
            self.said_since = now.ticks;
            self.reply(0, &Reply::Pong);
        }
    }

    pub fn deadline(&self) -> Option<Ticks> {
        self.silence_deadline().into_iter().chain(self.pong_at()).min()
    }

    fn pong_at(&self) -> Option<Ticks> {
        let agreed = self.agreed.as_ref().filter(|_| !self.ended && self.unsent == 0)?;
        Some(self.said_since + Duration::from_millis(agreed.heartbeat_ms as u64))
    }

    fn silence_deadline(&self) -> Option<Ticks> {
        if self.is_dead {
            return None;
        }
        let ms = self.agreed.map_or(self.limits.heartbeat_interval_ms, |a| a.heartbeat_ms as u64);
        let patience = Duration::from_millis(ms) * SILENT_INTERVALS_MAX;
        let stuck = (self.unsent > 0).then_some(self.sent_since + patience);
        Some(stuck.map_or(self.read_since + patience, |stuck| stuck.min(self.read_since + patience)))
    }
}
