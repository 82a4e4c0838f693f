//! The two clocks of a [`Now`]. All cores of a process share one, so that ticks may cross the mesh.

use crate::base::{Now, Ticks};
use std::time::{Duration, Instant, SystemTime};

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Ticks count from here.
    pub fn start() -> Self {
        Clock { start: Instant::now() }
    }

    pub fn now(&self) -> Now {
        self.at(Instant::now())
    }

    pub fn at(&self, instant: Instant) -> Now {
        let nanoseconds = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds);
        Now { ticks: Ticks(nanoseconds(instant.saturating_duration_since(self.start))), unix_ns: unix as i64 }
    }

    /// The moment of a tick; one that is unreachably far is a century away.
    pub fn instant(&self, ticks: Ticks) -> Instant {
        let far = Duration::from_secs(100 * 365 * 86_400);
        self.start + Duration::from_nanos(ticks.0).min(far)
    }
}
