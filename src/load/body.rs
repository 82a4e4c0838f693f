//! Content of a message of the load: its producer, its number, its due time, and a checksum when it is verified.
//!
//! ```text
//! magic u32 | run u32 | producer u32 | crc32 u32 (0: unchecked) | sequence u64 | intended unix ns u64 | filler
//! ```
//! The checksum is over the topic's name and all but itself. Little-endian.
//! A message that is shorter than the head is filler alone: it can be counted, not timed.

use crate::base::rng::Rng;

pub const HEAD_LEN: usize = 32;

const PLAIN: u32 = 0x524d_5131;
const CHECKED: u32 = 0x524d_5132;
const CRC_AT: usize = 12;

/// Fillers start at one of so many places, so that neighbours differ.
const FILLER_SHIFTS: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyHead {
    pub run: u32,
    pub producer: u32,
    pub sequence: u64,
    pub intended_ns: u64,
}

/// Bytes that do not compress, made once.
pub struct Filler(Vec<u8>);

impl Filler {
    pub fn new(len_max: usize) -> Self {
        let mut rng = Rng::new(0x10ad);
        Filler(std::iter::repeat_with(|| rng.next_u64().to_le_bytes()).flatten().take(len_max + FILLER_SHIFTS).collect())
    }

    fn piece(&self, sequence: u64, len: usize) -> &[u8] {
        let at = (sequence.wrapping_mul(61) % FILLER_SHIFTS as u64) as usize;
        &self.0[at..at + len]
    }
}

/// Appends a body of `len` bytes, at most the filler's `len_max`; with a checksum that begins with `seal`, or without.
pub fn write(out: &mut Vec<u8>, head: &BodyHead, len: usize, filler: &Filler, seal: Option<u32>) {
    if len < HEAD_LEN {
        out.extend_from_slice(filler.piece(head.sequence, len));
        return;
    }
    let start = out.len();
    let mut bytes = [0; HEAD_LEN];
    bytes[..4].copy_from_slice(&if seal.is_some() { CHECKED } else { PLAIN }.to_le_bytes());
    bytes[4..8].copy_from_slice(&head.run.to_le_bytes());
    bytes[8..12].copy_from_slice(&head.producer.to_le_bytes());
    bytes[16..24].copy_from_slice(&head.sequence.to_le_bytes());
    bytes[24..].copy_from_slice(&head.intended_ns.to_le_bytes());
    out.extend_from_slice(&bytes);
    out.extend_from_slice(filler.piece(head.sequence, len - HEAD_LEN));
    if let Some(seal) = seal {
        let crc = crc(&out[start..], seal);
        out[start + CRC_AT..start + CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fn crc(body: &[u8], seal: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(seal);
    hasher.update(&body[..CRC_AT]);
    hasher.update(&body[CRC_AT + 4..]);
    hasher.finalize()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyCheck {
    /// Body whose checksum is right, or was not verified.
    Whole(BodyHead),
    /// Body without a checksum.
    Plain(BodyHead),
    /// Body whose checksum does not match its bytes.
    Broken,
    /// Body of another program, or too short to tell.
    Foreign,
}

/// `seal`: the checksum of those that carry one is looked at.
pub fn read(body: &[u8], seal: Option<u32>) -> BodyCheck {
    let Some((head, _)) = body.split_first_chunk::<HEAD_LEN>() else { return BodyCheck::Foreign };
    let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes of the head"));
    let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes of the head"));
    let found = BodyHead { run: u32_at(4), producer: u32_at(8), sequence: u64_at(16), intended_ns: u64_at(24) };
    match u32_at(0) {
        CHECKED if seal.is_some_and(|seal| u32_at(CRC_AT) != crc(body, seal)) => BodyCheck::Broken,
        CHECKED => BodyCheck::Whole(found),
        PLAIN => BodyCheck::Plain(found),
        _ => BodyCheck::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_reads_back_and_every_flipped_bit_is_found() {
        let filler = Filler::new(200);
        let head = BodyHead { run: 7, producer: 3, sequence: u64::MAX - 1, intended_ns: 1 << 60 };
        for (len, seal) in [(HEAD_LEN, None), (HEAD_LEN, Some(9)), (100, None), (200, Some(8))] {
            let mut body = Vec::new();
            write(&mut body, &head, len, &filler, seal);
            let whole = if seal.is_some() { BodyCheck::Whole(head) } else { BodyCheck::Plain(head) };
            assert_eq!((body.len(), read(&body, seal), read(&body, None)), (len, whole, whole));
            if seal.is_some() {
                assert_eq!(read(&body, Some(7)), BodyCheck::Broken, "of another topic");
            }
            for bit in (0..len * 8).filter(|_| seal.is_some()) {
                body[bit / 8] ^= 1 << (bit % 8);
                assert!(!matches!(read(&body, seal), BodyCheck::Whole(_)), "bit {bit}");
                body[bit / 8] ^= 1 << (bit % 8);
            }
        }
        let mut short = Vec::new();
        write(&mut short, &head, 5, &filler, Some(1));
        assert_eq!((short.len(), read(&short, Some(1))), (5, BodyCheck::Foreign));
        assert_eq!(read(&[0; 50], Some(1)), BodyCheck::Foreign);
    }
}
