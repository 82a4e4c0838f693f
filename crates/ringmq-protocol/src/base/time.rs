//! Time as a pure room sees it: given with each event, never read.

use std::{ops::Add, time::Duration};

/// Nanoseconds of a clock that never goes back, and that goes on while the machine is suspended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Ticks(pub u64);

impl Ticks {
    pub fn since(self, earlier: Ticks) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Ticks {
    type Output = Ticks;
    fn add(self, d: Duration) -> Ticks {
        Ticks(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The two clocks at the moment of an event. Deadlines use `ticks`; timestamps of messages use `unix_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    pub ticks: Ticks,
    /// Nanoseconds since 1970; may jump.
    pub unix_ns: i64,
}
