//! Timings of one kind of write, and the figures that follow from them.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Durable writes of one size and depth; several rounds are put together.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Nanoseconds from issue to durable, one per write.
    pub ns: Vec<u64>,
    /// Time in which they were made.
    pub time: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub writes: u64,
    pub seconds: f64,
    pub writes_per_second: f64,
    /// 10^6 bytes.
    pub megabytes_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Samples {
    pub fn add(&mut self, other: Samples) {
        self.ns.extend(other.ns);
        self.time += other.time;
    }

    /// `None` when nothing was timed.
    pub fn figures(&self, bytes: usize) -> Option<Figures> {
        let mut ns = self.ns.clone();
        ns.sort_unstable();
        let max = *ns.last()?;
        // the least value that so many of a hundred do not exceed
        let at = |percent: usize| ns[(ns.len() * percent).div_ceil(100).max(1) - 1] as f64 / 1e3;
        let seconds = self.time.as_secs_f64();
        let writes_per_second = if seconds > 0.0 { ns.len() as f64 / seconds } else { 0.0 };
        Some(Figures {
            writes: ns.len() as u64,
            seconds,
            writes_per_second,
            megabytes_per_second: writes_per_second * bytes as f64 / 1e6,
            p50_us: at(50),
            p99_us: at(99),
            max_us: max as f64 / 1e3,
        })
    }
}

/// Bytes that went by one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    pub bytes: u64,
    pub time: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamFigures {
    pub bytes: u64,
    pub seconds: f64,
    /// 10^6 bytes.
    pub megabytes_per_second: f64,
}

impl Stream {
    pub fn add(&mut self, other: Stream) {
        self.bytes += other.bytes;
        self.time += other.time;
    }

    pub fn figures(&self) -> Option<StreamFigures> {
        let seconds = self.time.as_secs_f64();
        let megabytes_per_second = self.bytes as f64 / 1e6 / seconds;
        (self.bytes > 0 && seconds > 0.0).then_some(StreamFigures { bytes: self.bytes, seconds, megabytes_per_second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_the_samples() {
        assert_eq!(Samples::default().figures(4096), None);
        assert_eq!(Stream::default().figures(), None);
        let mut samples = Samples { ns: (1..=99).rev().map(|us| us * 1000).collect(), time: Duration::from_millis(500) };
        samples.add(Samples { ns: vec![1_000_000], time: Duration::from_millis(500) });
        let figures = samples.figures(10_000).unwrap(); // there are samples
        assert_eq!((figures.writes, figures.seconds, figures.writes_per_second), (100, 1.0, 100.0));
        assert_eq!((figures.p50_us, figures.p99_us, figures.max_us), (50.0, 99.0, 1000.0));
        assert_eq!(figures.megabytes_per_second, 1.0);
        let one = Samples { ns: vec![7000], time: Duration::ZERO }.figures(1).unwrap(); // there is one
        assert_eq!((one.p50_us, one.p99_us, one.max_us, one.writes_per_second), (7.0, 7.0, 7.0, 0.0));
        let stream = Stream { bytes: 3_000_000, time: Duration::from_millis(1500) };
        assert_eq!(stream.figures().map(|f| f.megabytes_per_second), Some(2.0));
    }
}
