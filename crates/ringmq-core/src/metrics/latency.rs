//! Durations: an HDR histogram of microseconds, and its one line for logs and /stats.
//!
//! Lives where it is recorded, on one thread; about 20 KB. It reads no clock: the caller measures.

use hdrhistogram::Histogram;
use std::{fmt, time::Duration};

/// Longer ones count as this long.
const US_MAX: u64 = 600_000_000;

pub struct Latency {
    us: Histogram<u64>,
}

impl Latency {
    pub fn new() -> Self {
        Latency { us: Histogram::new_with_bounds(1, US_MAX, 2).expect("the bounds are valid: 1 < 2 * US_MAX, 2 digits") }
    }

    pub fn record(&mut self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(US_MAX);
        self.us.saturating_record(us.clamp(1, US_MAX));
    }

    pub fn count(&self) -> u64 {
        self.us.len()
    }

    /// The time within which this share (0 to 1) of all was done.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_micros(self.us.value_at_quantile(share))
    }

    pub fn max(&self) -> Duration {
        Duration::from_micros(self.us.max())
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count() == 0 {
            return f.write_str("none");
        }
        write!(f, "count {}", self.count())?;
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
            write!(f, ", {name} {:?}", self.quantile(share))?;
        }
        write!(f, ", max {:?}", self.max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_quantiles_of_what_was_recorded() {
        let mut latency = Latency::new();
        assert_eq!(latency.to_string(), "none");
        (1..=1000).for_each(|ms| latency.record(Duration::from_millis(ms)));
        latency.record(Duration::MAX);
        latency.record(Duration::ZERO);
        assert_eq!(latency.count(), 1002);
        let p50 = latency.quantile(0.5).as_millis();
        assert!((490..=510).contains(&p50), "{p50}");
        assert!(latency.to_string().starts_with("count 1002, p50 50"), "{latency}");
    }
}
