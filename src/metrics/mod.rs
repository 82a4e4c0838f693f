//! Counts, times (HDR histograms) and renders. Pure.

pub mod latency;
pub mod node;
pub mod stats;

pub use latency::Latency;
