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
    /// A message id has 10 bits for the partition.
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

/// What clients see: the partition in the top 10 bits, the log id below; on the wire 16 lower-case hex characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MessageId(pub u64);

impl MessageId {
    pub fn new(partition: PartitionId, log_id: LogId) -> Self {
        debug_assert!(log_id <= LogId::MAX && partition.0 < PartitionId::COUNT_MAX);
        MessageId((partition.0 as u64) << LogId::BITS | log_id.0)
    }

    pub fn partition(self) -> PartitionId {
        PartitionId((self.0 >> LogId::BITS) as u16)
    }

    pub fn log_id(self) -> LogId {
        LogId(self.0 & LogId::MAX.0)
    }

    /// The 16 characters of the wire.
    pub fn hex(self) -> [u8; 16] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        std::array::from_fn(|i| DIGITS[(self.0 >> (60 - 4 * i)) as usize & 15])
    }

    /// As the replicated NSQ has it: the id, and a trace id of zero.
    pub fn binary(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0.to_be_bytes());
        bytes
    }

    pub fn from_binary(bytes: &[u8; 16]) -> Self {
        let [id @ .., _, _, _, _, _, _, _, _] = *bytes;
        MessageId(u64::from_be_bytes(id))
    }

    /// `None` when a character is not lower-case hex.
    pub fn from_hex(hex: &[u8; 16]) -> Option<Self> {
        let mut id = 0;
        for &c in hex {
            let digit = match c {
                b'0'..=b'9' => c - b'0',
                b'a'..=b'f' => c - b'a' + 10,
                _ => return None,
            };
            id = id << 4 | digit as u64;
        }
        Some(MessageId(id))
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

    /// Whether a position that was read can be calculated with: a log never comes near these bounds.
    pub fn is_sane(self) -> bool {
        let range = 0..=i64::MAX / 2;
        range.contains(&self.offset) && range.contains(&self.count) && (1..=LogId::MAX.0 + 1).contains(&self.log_id.0)
    }
}

/// Write epoch of a partition; raised at every leader change and at every start of a stand-alone node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Epoch(pub u64);

/// One core's executor. The HTTP thread takes part in the mesh under a number of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CoreId(pub u16);

impl CoreId {
    pub const HTTP: CoreId = CoreId(u16::MAX);
}

/// A connection on one core. The number is never reused while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnId(pub u64);

/// One client's subscription, unique on the node: the connection's core and its number there.
/// A subscribed connection never changes its core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SubId {
    pub core: CoreId,
    pub conn: ConnId,
}

/// Where a client comes from, as text (`127.0.0.1:4711`): for logs and /stats only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer(pub std::sync::Arc<str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_id_keeps_its_partition_and_log_id() {
        let id = MessageId::new(PartitionId(1023), LogId::MAX);
        assert_eq!((id.partition(), id.log_id()), (PartitionId(1023), LogId::MAX));
        assert_eq!(&id.hex(), b"ffffffffffffffff");
        let id = MessageId::new(PartitionId(3), LogId(0x2a));
        assert_eq!(&id.hex(), b"00c000000000002a");
        assert_eq!(MessageId::from_hex(&id.hex()), Some(id));
        assert_eq!(MessageId::from_hex(b"00C000000000002A"), None);
    }
}
