//! Client errors that close a connection, as lines of the log: each names its client, and a hostile client cannot flood
//! the log: of each second a few are written, the rest is counted and the count is written.
//!
//! Lives on one core. Never decides anything.

use crate::base::Ticks;
use crate::base::client::ClientInfo;
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(1);
const LINES_PER_WINDOW: u32 = 10;

#[derive(Debug, Default)]
pub struct FaultLog {
    /// End of the window; `None` while there is none.
    ends: Option<Ticks>,
    written: u32,
    suppressed: u64,
}

impl FaultLog {
    /// Writes the line, or counts it. Answers when [`Self::tick`] has something to say.
    pub fn say(&mut self, now: Ticks, client: &ClientInfo, error: &str) -> Option<Ticks> {
        if self.is_let_through(now) {
            tracing::warn!(peer = client.remote_address, client = client.client_id, error, "closing a connection");
        }
        self.ends.filter(|_| self.suppressed > 0)
    }

    fn is_let_through(&mut self, now: Ticks) -> bool {
        self.tick(now);
        self.ends.get_or_insert(now + WINDOW);
        let is_in = self.written < LINES_PER_WINDOW;
        if is_in {
            self.written += 1;
        } else {
            self.suppressed += 1;
        }
        is_in
    }

    /// Ends a window that is over, and says how many lines it was spared.
    pub fn tick(&mut self, now: Ticks) {
        if self.ends.is_none_or(|ends| now < ends) {
            return;
        }
        if self.suppressed > 0 {
            tracing::warn!(suppressed = self.suppressed, "more connections were closed for client errors than are logged");
        }
        *self = FaultLog::default();
    }
}

#[cfg(test)]
mod tests {
    use crate::seam::faults::*;

    #[test]
    fn a_flood_is_counted_and_the_next_second_starts_anew() {
        let mut log = FaultLog::default();
        let client = ClientInfo::default();
        let said: Vec<bool> = (0..25).map(|i| log.say(Ticks(1 + i), &client, "E_INVALID x").is_some()).collect();
        assert_eq!(said.iter().filter(|asks| !**asks).count(), LINES_PER_WINDOW as usize);
        assert_eq!((log.written, log.suppressed), (LINES_PER_WINDOW, 15));
        let later = Ticks(1) + WINDOW;
        log.tick(Ticks(later.0 - 1));
        assert_eq!(log.suppressed, 15, "the second is not over");
        log.tick(later);
        assert_eq!((log.written, log.suppressed, log.ends), (0, 0, None));
        assert!(log.say(later, &client, "E_INVALID x").is_none());
    }
}
