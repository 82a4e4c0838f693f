//! Packs a turn's durable facts into aligned blocks of a ring, says when they are durable, and replays them.
//!
//! Pure. One journal per core.

mod heads;
pub mod limit;
pub mod replay;
pub mod ring;
