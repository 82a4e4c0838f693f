//! The checksum of a payload of batches, combined from the batches' checksums: each header has its body's crc, and combining crcs costs
//! next to nothing. So the sender goes over a long payload once, when it is read or sealed, and the receiver once.

use crate::codec::frame::{FrameError, Header, Payload, payload_crc};
use crate::format::batch::{BATCH_HEADER_LEN, BatchHeader};
use bytes::Bytes;
use crc32fast::Hasher;

/// Going over a shorter body again costs less.
const BODY_MIN: usize = 4 * 1024;

/// Payload of parts that were verified, or sealed here: a header's word for its body is taken. The reader of the frame refuses it if it
/// is wrong.
pub(super) fn payload(parts: &[Bytes]) -> Payload {
    let (mut crc, mut len) = (Hasher::new(), 0);
    for part in parts {
        len += part.len();
        let mut rest = &part[..];
        while let Some((batch, claimed, behind)) = next(rest).filter(|(batch, ..)| batch.len() >= BATCH_HEADER_LEN + BODY_MIN) {
            crc.update(&batch[..BATCH_HEADER_LEN]);
            crc.combine(&Hasher::new_with_initial_len(claimed, (batch.len() - BATCH_HEADER_LEN) as u64));
            rest = behind;
        }
        crc.update(rest);
    }
    Payload { len, crc: crc.finalize() }
}

/// Verifies a frame's payload; and whether it is whole batches, each with the body that its header says.
pub(super) fn check(header: &Header, payload: &[u8]) -> Result<bool, FrameError> {
    let (mut crc, mut rest, mut are_sound) = (Hasher::new(), payload, true);
    while let Some((batch, claimed, behind)) = next(rest) {
        let (head, body) = batch.split_at(BATCH_HEADER_LEN);
        let of_body = payload_crc(body);
        are_sound &= of_body == claimed || body.is_empty();
        crc.update(head);
        match body.len() {
            ..BODY_MIN => crc.update(body),
            len => crc.combine(&Hasher::new_with_initial_len(of_body, len as u64)),
        }
        rest = behind;
    }
    are_sound &= rest.is_empty();
    crc.update(rest);
    let is_intact = payload.len() == header.payload_len && crc.finalize() == header.payload_crc;
    if is_intact { Ok(are_sound) } else { Err(FrameError::Payload) }
}

/// The first batch by its header's length, the body's crc that the header names, and the bytes behind the batch. `None`: no whole batch.
fn next(bytes: &[u8]) -> Option<(&[u8], u32, &[u8])> {
    let (body_len, crc) = BatchHeader::stored_body(bytes)?;
    let (batch, behind) = bytes.split_at_checked(BATCH_HEADER_LEN + body_len)?;
    Some((batch, crc, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, LogId, PartitionId, Position, TopicId};
    use crate::format::batch::{Batch, BatchBuilder, Stamp};

    /// Batches of such bodies, and a lost one behind them.
    fn parts(lens: &[usize]) -> Vec<Bytes> {
        let (topic_id, partition) = (TopicId([7; 16]), PartitionId(0));
        let (mut at, mut parts, mut builder) = (Position::START, vec![], BatchBuilder::default());
        for &len in lens {
            builder.push(5, &vec![len as u8; len]);
            let batch = builder.seal(Stamp { topic_id, partition, epoch: Epoch(1), at, prev_crc: 0 });
            at = batch.header.end();
            parts.push(batch.bytes);
        }
        let to = Position { offset: at.offset + 5000, count: at.count + 3, log_id: LogId(at.log_id.0 + 3) };
        parts.push(Batch::lost(topic_id, partition, Epoch(1), at, to, 0).unwrap().bytes);
        parts
    }

    fn header(payload: &[u8]) -> Header {
        Header { kind: 0, flags: 0, meta_len: 0, payload_len: payload.len(), payload_crc: payload_crc(payload), request: 0 }
    }

    #[test]
    fn it_is_the_checksum_of_the_bytes() {
        for lens in [&[10][..], &[5000, 10, 70_000], &[4084, 4083, 4085], &[]] {
            let (parts, whole) = (parts(lens), parts(lens).concat());
            assert_eq!(payload(&parts), Payload::of(&whole), "{lens:?}");
            assert_eq!(payload(&[whole.clone().into()]), Payload::of(&whole), "{lens:?}");
            assert_eq!(check(&header(&whole), &whole), Ok(true));
        }
        assert_eq!((payload(&[]), check(&header(&[]), &[])), (Payload::NONE, Ok(true)));
    }

    #[test]
    fn a_changed_bit_is_seen_and_a_wrong_body_is_not_sound() {
        let mut whole = parts(&[300, 6000]).concat();
        let sound = header(&whole);
        for at in (0..whole.len()).step_by(7) {
            whole[at] ^= 4;
            assert_eq!(check(&sound, &whole), Err(FrameError::Payload), "{at}");
            let is_in_a_body = (128..440).contains(&at) || (568..6580).contains(&at);
            if is_in_a_body {
                assert_eq!(check(&header(&whole), &whole), Ok(false), "{at}");
            }
            whole[at] ^= 4;
        }
        assert_eq!(check(&header(&whole[1..]), &whole[1..]), Ok(false), "no batch begins there");
        assert_eq!(check(&header(&whole[..500]), &whole[..500]), Ok(false), "the second is cut off");
    }
}
