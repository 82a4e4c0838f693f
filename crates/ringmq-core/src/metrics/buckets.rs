//! A histogram with fixed bounds, for Prometheus: a few counters, cheap enough for each message.

use std::time::Duration;

/// Upper bounds of the buckets; longer times are counted behind the last.
pub const BOUNDS_US: [u64; 18] = [
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
    60_000_000,
    600_000_000,
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    counts: [u64; BOUNDS_US.len() + 1],
    sum_us: u64,
}

impl Buckets {
    pub fn record(&mut self, duration: Duration) {
        self.record_many(duration, 1);
    }

    /// Records `num` events of the same duration.
    pub fn record_many(&mut self, duration: Duration, num: u64) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.counts[BOUNDS_US.partition_point(|&bound| bound < us)] += num;
        self.sum_us = self.sum_us.saturating_add(us.saturating_mul(num));
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum_seconds(&self) -> f64 {
        self.sum_us as f64 / 1e6
    }

    /// Number of events up to each bound in seconds.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut sum = 0;
        BOUNDS_US.iter().zip(self.counts).map(move |(&bound, count)| {
            sum += count;
            (bound as f64 / 1e6, sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_in_the_first_bucket_that_holds_it() {
        let mut buckets = Buckets::default();
        for us in [0, 50, 51, 1_000, 700_000_000] {
            buckets.record(Duration::from_micros(us));
        }
        buckets.record_many(Duration::from_millis(2), 3);
        let at = |seconds: f64| buckets.cumulative().find(|(bound, _)| *bound == seconds).expect("a bound").1;
        assert_eq!((at(50e-6), at(100e-6), at(0.001), at(0.0025), at(600.0)), (2, 3, 4, 7, 7));
        assert_eq!((buckets.count(), buckets.sum_seconds()), (8, 700.007101));
    }
}
