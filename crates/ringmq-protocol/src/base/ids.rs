//! Ids and positions. Each is a type of its own, so that an offset never passes for a count.

use std::fmt;
use std::num::NonZeroU64;

/// Random 128 bits, given to a topic at its creation. A name that comes back with another id is other data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TopicId(pub [u8; 16]);

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// 0-based part of a topic, below [`PartitionId::COUNT_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PartitionId(pub u16);

impl PartitionId {
    /// A message id has 10 bits for the partition ([`super::MessageIds`]).
    pub const COUNT_MAX: u16 = 1024;
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a message in its partition: 54 bits, consecutive, the first is 1. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct LogId(pub u64);

impl LogId {
    pub const BITS: u32 = 54;
    pub const MAX: LogId = LogId((1 << Self::BITS) - 1);
    pub const FIRST: LogId = LogId(1);
}

/// An idempotent producer: chosen at random by a client for one run of its own. Zero stands for none on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProducerId(pub NonZeroU64);

impl ProducerId {
    pub fn new(id: u64) -> Option<Self> {
        NonZeroU64::new(id).map(ProducerId)
    }

    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.get())
    }
}

/// A place in a partition's endless log, always at the start of a batch (or at the end of the log).
/// The three travel together, so that a depth is a subtraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Position {
    /// Virtual offset in bytes, batch headers included; never rewinds, never reused after a commit.
    pub offset: i64,
    /// Messages before this place.
    pub count: i64,
    /// Log id of the first message at or after this place.
    pub log_id: LogId,
}

impl Position {
    pub const START: Position = Position { offset: 0, count: 0, log_id: LogId::FIRST };

    /// True if a position that was read is within bounds that no log comes near, so that sums cannot overflow.
    pub fn is_sane(self) -> bool {
        let range = 0..=i64::MAX / 2;
        range.contains(&self.offset) && range.contains(&self.count) && (1..=LogId::MAX.0 + 1).contains(&self.log_id.0)
    }
}

/// Write epoch of a partition; raised at every leader change and at every startup of a stand-alone node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Epochs of a metadata store begin here, above all of static files and of nodes that are alone.
    pub const STORE_BASE: u64 = 1 << 63;
    /// Bits of a static file's epoch below the number in the file.
    pub const STATIC_BITS: u32 = 40;

    /// The number for people: that in the metadata store or the static file, or the generation of a node that is alone. Several epochs
    /// of a static file have one number.
    pub fn number(self) -> u64 {
        match self.0 {
            epoch if epoch >= Self::STORE_BASE => epoch - Self::STORE_BASE,
            epoch if epoch >> Self::STATIC_BITS > 0 => epoch >> Self::STATIC_BITS,
            epoch => epoch,
        }
    }
}

/// Number of a core's executor. The HTTP thread takes part in the mesh under a number of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CoreId(pub u16);

impl CoreId {
    pub const HTTP: CoreId = CoreId(u16::MAX);
    /// Stands for the cores of all other nodes: each core numbers the subscriptions of their clients at its partitions by itself.
    pub const GUESTS: CoreId = CoreId(u16::MAX - 1);
}

/// A connection on one core. The number is never reused while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnId(pub u64);

/// A client's subscription, unique on the node: the connection's core and its number there. A subscribed connection never changes its
/// core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SubId {
    pub core: CoreId,
    pub conn: ConnId,
}

/// Address of a client as text (`127.0.0.1:4711`), for logs and /stats only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer(pub std::sync::Arc<str>);
