//! Owns one core's partitions and sessions and routes each event to its machine.
//!
//! Pure: the same code in production and in the simulator.

pub mod event;
pub mod message;
