//! Simulated surroundings under which the real code runs from one seed, in one thread.
//!
//! Pure, and only for tests: nothing here is used by a running node.

pub mod check;
pub mod cluster;
pub mod disk;
pub mod engine;
pub mod etcd;
pub mod follower;
pub mod fuzz;
pub mod memory;
pub mod node;
pub mod producer;
pub mod startup;
pub mod store;
