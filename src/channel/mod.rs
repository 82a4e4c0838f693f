//! Tracks one channel on one partition. Pure.
