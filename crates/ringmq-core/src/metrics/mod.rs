//! Counts, times (HDR histograms) and renders. Pure.

pub mod buckets;
pub mod counters;
pub mod end_to_end;
pub mod latency;
pub mod node;
pub mod prometheus;
pub mod remote;
pub mod stats;
pub mod statsd;

pub use latency::Latency;
