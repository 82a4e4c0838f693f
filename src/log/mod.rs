//! Decides which bytes of a partition go where in its segments and commit logs, when, and what a found byte means.
//!
//! Pure. One [`PartitionLog`](partition::PartitionLog) lives on the core that owns the partition.

pub mod batch;
pub mod cursor;
pub mod format;
pub mod meta;
pub mod snapshot;
pub mod state;
pub mod storage;
