//! The ids, positions, times and small containers that every room shares.
//!
//! Pure: nothing here reads a clock, a file, a socket or a random source, and nothing is async.

pub mod client;
pub mod file;
pub mod ids;
pub mod lent;
pub mod message_id;
pub mod name;
pub mod node;
pub mod rng;
pub mod shared;
pub mod time;
pub mod topic;
pub mod wheel;

pub use file::{DiskDone, DiskError, DiskOp, Durability, FileId, OpId, PartitionDir, block_memory};
pub use ids::{ConnId, CoreId, Epoch, LogId, PartitionId, Peer, Position, ProducerId, SubId, TopicId};
pub use lent::Lent;
pub use message_id::{MessageId, MessageIds, MessagePlace};
pub use name::{ChannelName, NameError, TopicName};
pub use node::NodeId;
pub use rng::{Rng, mix};
pub use shared::Shared;
pub use time::{Now, Ticks};
pub use topic::{TopicInfo, TopicRef};
pub use wheel::{TimerId, Wheel};

/// Every offset, length and buffer of a direct IO is a multiple of this, whatever the device says it would accept
/// (a device reports its logical block, 512; the physical one is 4,096).
pub const BLOCK: usize = 4096;

/// Largest single read or write, except sequential reads: larger reads were seen to hang in D state.
pub const IO_BYTES_MAX: usize = 512 * 1024;

/// Length from which a write is copied into a huge-page block first. A shorter one gains less than it wastes.
pub const LONG_WRITE_MIN: usize = 64 * 1024;

/// Largest single sequential read. In single pages it is still one request: virtio takes 254 of them.
pub const READ_BYTES_MAX: usize = 960 * 1024;
const _: () = assert!(IO_BYTES_MAX <= READ_BYTES_MAX && READ_BYTES_MAX <= 1 << 20);

/// Memory of long reads comes in blocks of these lengths.
pub const READ_BLOCK_SHORT: usize = 512 * 1024;
pub const READ_BLOCK_LONG: usize = 1024 * 1024;

const READ_SHORT_MIN: usize = READ_BLOCK_SHORT / 2 + 1;
const READ_LONG_MIN: usize = READ_BLOCK_SHORT + 1;

/// Bytes of memory that a read of `len` bytes takes.
pub const fn read_memory(len: usize) -> usize {
    match len {
        READ_SHORT_MIN..=READ_BLOCK_SHORT => READ_BLOCK_SHORT,
        READ_LONG_MIN..=READ_BLOCK_LONG => READ_BLOCK_LONG,
        _ => len,
    }
}

/// Rounds up to whole blocks.
pub const fn block_up(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK as u64)
}

/// Rounds down to whole blocks.
pub const fn block_down(bytes: u64) -> u64 {
    bytes - bytes % BLOCK as u64
}

/// Maps keyed by our own small ids: a fast hash, never fed by bytes a client chooses.
pub type IdMap<K, V> = rustc_hash::FxHashMap<K, V>;
