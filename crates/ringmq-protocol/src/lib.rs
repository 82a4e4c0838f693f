//! Definitions that RingMQ's node, its clients and its tools share: ids and positions, the bytes of files and of the wire.
//!
//! Shapes and their checks, and no behaviour. docs/architecture.md has the table of modules that tests/tidy.rs enforces.

pub mod base;
pub mod codec;
pub mod format;
pub mod pem;
