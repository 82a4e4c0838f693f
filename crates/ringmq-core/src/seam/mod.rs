//! The seam between deciding and carrying: events of a shard, its effects, and the messages between cores.
//!
//! Data only. [`event`] is the contract of one core, [`message`] the contract between cores, [`cluster`] the contract with the
//! coordinator.

pub mod cluster;
pub mod event;
mod expression;
pub mod faults;
pub mod grants;
pub mod membership;
pub mod message;
pub mod outcome;
