//! Message ids of NSQ clients, 64 bits.
//!
//! ```text
//! id = (partition << 54 | log id) + shift(topic id), modulo 2^64
//! ```
//! Every partition numbers its messages from 1, so without the shift the ids of all topics would be the same. The shift is 64 bits
//! that depend on every bit of the topic's random id, and on nothing else: a message has its id on every node and for ever, and a
//! name that comes back as another topic has other ids.
//!
//! Within a topic no two ids are equal. Two topics have an id in common only where their runs of consecutive ids meet. That is
//! why the shift is added: a sum leaves a partition's ids in one run. Of 1,000 topics with one partition and 10^9 messages each,
//! any two runs meet with a probability of 1 in 18,000. Ids that are scattered over the 64 bits one by one would give some 27,000
//! equal pairs of the same messages.

use super::{LogId, PartitionId, TopicId, mix};

/// Place of a message in its topic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MessagePlace {
    pub partition: PartitionId,
    pub log_id: LogId,
}

impl MessagePlace {
    pub const fn new(partition: PartitionId, log_id: LogId) -> Self {
        MessagePlace { partition, log_id }
    }
}

/// The message ids of one topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageIds {
    shift: u64,
}

impl MessageIds {
    pub fn of(topic: TopicId) -> Self {
        let bits = u128::from_be_bytes(topic.0);
        MessageIds { shift: mix(mix((bits >> 64) as u64) ^ bits as u64) }
    }

    pub fn id(self, place: MessagePlace) -> MessageId {
        debug_assert!(place.log_id <= LogId::MAX && place.partition.0 < PartitionId::COUNT_MAX);
        let number = (place.partition.0 as u64) << LogId::BITS | place.log_id.0;
        MessageId(number.wrapping_add(self.shift))
    }

    /// Place that the id names in this topic. A client may send any id: partition and message need not exist.
    pub fn place(self, id: MessageId) -> MessagePlace {
        let number = id.0.wrapping_sub(self.shift);
        MessagePlace::new(PartitionId((number >> LogId::BITS) as u16), LogId(number & LogId::MAX.0))
    }
}

/// A message's id; on the wire 16 lower-case hex characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct MessageId(pub u64);

impl MessageId {
    /// The 16 characters of the wire.
    pub fn hex(self) -> [u8; 16] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        std::array::from_fn(|i| DIGITS[(self.0 >> (60 - 4 * i)) as usize & 15])
    }

    /// Binary form of the replicated NSQ: the id, and a trace id of zero.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rng;

    fn place(partition: u16, log_id: u64) -> MessagePlace {
        MessagePlace::new(PartitionId(partition), LogId(log_id))
    }

    /// Consumers keep ids for longer than a build lives: these never change.
    #[test]
    fn golden_ids() {
        let hex = |topic: u128, partition, log_id| {
            let id = MessageIds::of(TopicId(topic.to_be_bytes())).id(place(partition, log_id));
            String::from_utf8(id.hex().to_vec()).unwrap()
        };
        let topic = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210;
        assert_eq!(hex(topic, 0, 1), "12606bc1c15101c9");
        assert_eq!(hex(topic, 0, 2), "12606bc1c15101ca");
        assert_eq!(hex(topic, 3, 42), "13206bc1c15101f2");
        assert_eq!(hex(topic, 1023, LogId::MAX.0), "12606bc1c15101c7");
        assert_eq!(hex(0, 0, 1), "a706dd2f4d197e70");
        assert_eq!(hex(1, 0, 1), "08b4fda8c892b50f");
        assert_eq!(hex(1 << 64, 0, 1), "5e41ab087439611f");
        assert_eq!(hex(u128::MAX, 0, 1), "6309143e67a47937");
    }

    #[test]
    fn an_id_is_written_and_read() {
        let id = MessageId(0x00c0_0000_0000_002a);
        assert_eq!(&id.hex(), b"00c000000000002a");
        assert_eq!(MessageId::from_hex(&id.hex()), Some(id));
        assert_eq!(MessageId::from_hex(b"00C000000000002A"), None);
        assert_eq!(MessageId::from_binary(&id.binary()), id);
    }

    /// Any 64 bits name one offset of any topic, and no two values the same.
    #[test]
    fn an_id_names_one_place() {
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            let ids = MessageIds::of(TopicId(rng.bytes_16()));
            let at = place(rng.below(PartitionId::COUNT_MAX as u64) as u16, rng.below(LogId::MAX.0 + 1));
            assert_eq!(ids.place(ids.id(at)), at);
            let any = MessageId(rng.next_u64());
            assert_eq!(ids.id(ids.place(any)), any);
            for at in [place(0, 1), place(0, LogId::MAX.0), place(1023, 0), place(1023, LogId::MAX.0)] {
                assert_eq!(ids.place(ids.id(at)), at);
            }
        }
    }

    /// Message ids of one partition follow each other. Message ids of two topics are far apart even if the topic ids differ in one bit.
    #[test]
    fn topics_are_far_apart() {
        let mut rng = Rng::new(2);
        for _ in 0..100 {
            let topic = rng.bytes_16();
            let ids = MessageIds::of(TopicId(topic));
            assert_eq!(ids.id(place(7, 1001)).0, ids.id(place(7, 1)).0.wrapping_add(1000));
            for bit in 0..128 {
                let mut other = topic;
                other[bit / 8] ^= 1 << (bit % 8);
                let apart = MessageIds::of(TopicId(other)).shift.wrapping_sub(ids.shift);
                assert!(apart.min(apart.wrapping_neg()) > 1 << 30, "bit {bit} of {topic:x?}: {apart:x}");
            }
        }
    }
}
