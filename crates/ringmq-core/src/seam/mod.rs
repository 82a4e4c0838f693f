//! The seam between deciding and carrying: what happens to a shard, what it wants done, and what cores tell each other.
//!
//! Data only. [`event`] is the contract of one core, [`message`] that between cores, [`cluster`] that with the coordinator.

pub mod cluster;
pub mod event;
mod expression;
pub mod faults;
pub mod grants;
pub mod membership;
pub mod message;
pub mod outcome;
