//! Drives the shards: starts one executor per core, collects events, lets the shard decide, carries out its effects, and accounts for
//! the time. Owns threads, clocks and signals; decides nothing.
//!
//! | file | its concept |
//! |---|---|
//! | machine | the machine that a core drives: the shard, or a small one in tests |
//! | turn | one core's loop: collect, step, carry out, sleep |
//! | account | where a slow turn spent its time |
//! | clock | the two clocks of [`crate::base::Now`] |
//! | cores | one pinned executor per shard: start, wait, stop |
//! | slice | the time slice that the node's threads ask the kernel for |
//! | node | a whole node: lock, checks, recovery, cores, HTTP |
//! | start | from a recovered data path to the shards |
//! | stop | asking the node to stop, also by signal |

pub mod account;
pub mod clock;
pub mod cores;
pub mod machine;
pub mod node;
pub mod slice;
pub mod startup;
pub mod stop;
#[cfg(test)]
mod tests;
pub mod turn;

pub use cores::{CoresOptions, run_cores};
pub use machine::Machine;
pub use node::{Front, FrontStart, NodeError, Recovered, Recovering, run_node};
pub use startup::recover_shards;
pub use stop::StopHandle;
