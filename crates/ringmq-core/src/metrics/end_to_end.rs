//! Time from the publish of a message to its FIN, as nsqd's `--e2e-processing-latency-*` has it: a window that moves on by halves, and the
//! percentiles that /stats and statsd show of it.
//!
//! A channel of a partition has one, on the partition's core. It reads no clock.

use crate::base::Ticks;
use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use std::time::Duration;

/// Microseconds, to two digits.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample(Histogram<u32>);

// A histogram has no floats in it.
impl Eq for Sample {}

impl Default for Sample {
    fn default() -> Self {
        Sample(Histogram::new(2).expect("two digits are allowed"))
    }
}

impl Sample {
    fn record(&mut self, took: Duration, num: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).clamp(1, US_MAX);
        // It grows as it has to.
        let _ = self.0.record_n(us, u32::try_from(num).unwrap_or(u32::MAX));
    }

    pub fn add(&mut self, other: &Sample) {
        let _ = self.0.add(&other.0);
    }
}

/// Longer ones count as this long: a year.
const US_MAX: u64 = 366 * 86_400 * 1_000_000;

/// Latencies of a channel in the last window.
#[derive(Debug)]
pub struct Window {
    half: Duration,
    /// Start of the current half.
    begun: Ticks,
    current: Sample,
    before: Sample,
}

impl Window {
    pub fn new(length: Duration, now: Ticks) -> Self {
        Window { half: length / 2, begun: now, current: Sample::default(), before: Sample::default() }
    }

    /// Records finished messages.
    pub fn record(&mut self, now: Ticks, took: Duration, num: u64) {
        self.move_on(now);
        self.current.record(took, num);
    }

    pub fn move_on(&mut self, now: Ticks) {
        let passed = now.since(self.begun);
        if passed < self.half {
            return;
        }
        let current = std::mem::take(&mut self.current);
        self.before = if passed < self.half * 2 { current } else { Sample::default() };
        // Halves keep their beginnings, so that a time counts equally long wherever in its half it was measured.
        let halves = passed.as_nanos() / self.half.as_nanos().max(1);
        self.begun = self.begun + self.half * u32::try_from(halves).unwrap_or(u32::MAX);
    }

    /// Sample as of the last [`Window::move_on`].
    pub fn sample(&self) -> Sample {
        let mut all = self.current.clone();
        all.add(&self.before);
        all
    }
}

/// End-to-end latency in /stats, in nsqd's shape. Without percentiles asked for, or a channel that could have them, there are none.
#[derive(Debug, Default, Serialize)]
pub struct EndToEnd {
    count: u64,
    percentiles: Option<Vec<Percentile>>,
}

#[derive(Debug, Serialize)]
struct Percentile {
    #[serde(serialize_with = "as_go_does")]
    quantile: f64,
    /// Nanoseconds.
    value: u64,
}

/// Writes a whole number without a decimal point, as Go does.
fn as_go_does<S: Serializer>(quantile: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if *quantile == 1.0 { serializer.serialize_u64(1) } else { serializer.serialize_f64(*quantile) }
}

impl EndToEnd {
    pub fn of(sample: Option<&Sample>, quantiles: &[f64]) -> Self {
        let Some(Sample(us)) = sample.filter(|_| !quantiles.is_empty()) else { return EndToEnd::default() };
        let value = |quantile| if us.is_empty() { 0 } else { us.value_at_quantile(quantile) * 1_000 };
        let percentiles = quantiles.iter().map(|&quantile| Percentile { quantile, value: value(quantile) });
        EndToEnd { count: us.len(), percentiles: Some(percentiles.collect()) }
    }

    /// Text after `e2e%:`.
    pub fn text(&self) -> String {
        let shown = self.percentiles.iter().flatten().map(|p| human(p.value as f64));
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Gauges of statsd: end of the name, nanoseconds.
    pub fn gauges(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let name = |quantile: f64| format!("e2e_processing_latency_{:.0}", quantile * 100.0);
        self.percentiles.iter().flatten().map(move |p| (name(p.quantile), p.value))
    }
}

fn human(ns: f64) -> String {
    for (unit, length) in [("s", 1e9), ("ms", 1e6), ("us", 1e3)] {
        if ns > length {
            return format!("{:.1}{unit}", ns / length);
        }
    }
    format!("{ns:.1}ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Ticks {
        Ticks(0) + SECOND * seconds as u32
    }

    #[test]
    fn a_window_forgets_by_halves() {
        let mut window = Window::new(SECOND * 10, at(0));
        window.record(at(1), SECOND, 1);
        window.record(at(6), SECOND, 2);
        let count = |window: &mut Window, s| {
            window.move_on(at(s));
            window.sample().0.len()
        };
        assert_eq!([6, 9, 10, 14].map(|s| count(&mut window, s)), [3, 3, 2, 2]);
        window.record(at(14), SECOND, 4);
        assert_eq!([14, 15, 19, 20, 100].map(|s| count(&mut window, s)), [6, 4, 4, 0, 0]);
        window.record(at(1_000), SECOND, 1);
        assert_eq!(count(&mut window, 1_000), 1);
    }

    #[test]
    fn percentiles_are_shown_as_nsqd_shows_them() {
        let mut sample = Sample::default();
        (1..=100).for_each(|ms| sample.record(Duration::from_millis(ms), 1));
        let mut both = Sample::default();
        both.add(&sample);
        assert_eq!(both, sample);
        let json = |sample: Option<&Sample>, quantiles: &[f64]| serde_json::to_value(EndToEnd::of(sample, quantiles)).unwrap();
        let shown = json(Some(&both), &[1.0, 0.5]);
        assert_eq!((&shown["count"], &shown["percentiles"][0]["quantile"]), (&100.into(), &1.into()));
        let value = |n: usize| shown["percentiles"][n]["value"].as_f64().unwrap();
        assert!((99e6..102e6).contains(&value(0)) && (49e6..52e6).contains(&value(1)), "{shown}");
        assert_eq!(json(Some(&both), &[]).to_string(), r#"{"count":0,"percentiles":null}"#);
        assert_eq!(json(None, &[0.9]).to_string(), r#"{"count":0,"percentiles":null}"#);
        let none = json(Some(&Sample::default()), &[0.99]).to_string();
        assert_eq!(none, r#"{"count":0,"percentiles":[{"quantile":0.99,"value":0}]}"#);
        assert_eq!([2e9, 1.5e6, 1e6, 12.0].map(human), ["2.0s", "1.5ms", "1000.0us", "12.0ns"]);
        let names: Vec<_> = EndToEnd::of(Some(&both), &[0.999, 0.9]).gauges().map(|g| g.0).collect();
        assert_eq!(names, ["e2e_processing_latency_100", "e2e_processing_latency_90"]);
    }
}
