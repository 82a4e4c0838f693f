//! Performs the disk operations that the pure rooms ask for: on a core's executor ([`ShardDisk`]), and before there are
//! any, blocking ([`BlockingStorage`]).
//!
//! Two processes never write the same data path: [`DataLock`] keeps a second one out, and every file is flock'ed through
//! the very description that writes it, which requests still in flight in the kernel hold too when their process is
//! killed. So a new process waits for them instead of racing with them.

mod aligned;
pub mod blocking;
mod blocks;
mod event;
pub mod files;
pub mod lock;
mod names;
mod open_files;
pub mod paths;
mod ring_ops;
pub mod shard_disk;
pub mod spares;
#[cfg(test)]
mod tests;

pub use blocking::BlockingStorage;
pub use lock::{DataLock, LockError};
pub use shard_disk::{Completion, DiskOptions, DiskStartError, ShardDisk};
