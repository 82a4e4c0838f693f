//! Counts, times (HDR histograms) and renders. Pure.

pub mod stats;
