//! A frame's metadata: from a flatbuffer to checked values. Only the codecs see a table.

use crate::base::{LogId, Position};

/// Length at which an error's text is truncated.
pub(super) const TEXT_MAX: usize = 4096;

/// Reason why a frame does not fit its kind. The stream itself is sound: the next frame can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    #[error("kind {0} is not known to this version of the protocol")]
    UnknownKind(u8),
    #[error("the metadata of a {kind} frame cannot be read, or lacks a required field")]
    Metadata { kind: &'static str },
    #[error("{field} of a {kind} frame is out of bounds")]
    Field { kind: &'static str, field: &'static str },
}

pub(super) fn table<'a, T: flatbuffers::Follow<'a> + flatbuffers::Verifiable + 'a>(
    kind: &'static str,
    metadata: &'a [u8],
) -> Result<T::Inner, Malformed> {
    flatbuffers::root::<T>(metadata).map_err(|_| Malformed::Metadata { kind })
}

pub(super) fn check(ok: bool, kind: &'static str, field: &'static str) -> Result<(), Malformed> {
    if ok { Ok(()) } else { Err(Malformed::Field { kind, field }) }
}

pub(super) fn position(
    kind: &'static str,
    field: &'static str,
    offset: i64,
    count: i64,
    log_id: u64,
) -> Result<Position, Malformed> {
    let at = Position { offset, count, log_id: LogId(log_id) };
    check(at.is_sane(), kind, field)?;
    Ok(at)
}

/// Longest prefix of whole characters within [`TEXT_MAX`] bytes.
pub(super) fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

/// The metadata as a later version may write it: its table has an unknown field, a text.
#[cfg(test)]
pub(super) fn with_later_field(metadata: &[u8]) -> Vec<u8> {
    const SLOTS: usize = 100;
    let u32_at = |at: usize| u32::from_le_bytes(metadata[at..at + 4].try_into().expect("four"));
    let table = u32_at(0) as usize;
    let vtable = (table as i64 - u32_at(table) as i32 as i64) as usize;
    let vtable_len = u16::from_le_bytes([metadata[vtable], metadata[vtable + 1]]) as usize;
    let mut out = metadata.to_vec();
    out.resize(out.len().next_multiple_of(8), 0);
    let field = out.len();
    out.extend_from_slice(&4u32.to_le_bytes());
    out.extend_from_slice(&5u32.to_le_bytes());
    out.extend_from_slice(b"later\0\0\0");
    let later = out.len();
    let mut slots = vec![0u16; 2 + SLOTS];
    for (slot, bytes) in slots.iter_mut().zip(metadata[vtable..vtable + vtable_len].chunks(2)) {
        *slot = u16::from_le_bytes([bytes[0], bytes[1]]);
    }
    slots[0] = 2 * (2 + SLOTS) as u16;
    slots[1] = (field + 4 - table) as u16;
    slots[1 + SLOTS] = (field - table) as u16;
    slots.iter().for_each(|slot| out.extend_from_slice(&slot.to_le_bytes()));
    out[table..table + 4].copy_from_slice(&(table as i32 - later as i32).to_le_bytes());
    out
}
