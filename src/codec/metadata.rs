//! A frame's metadata: from a flatbuffer to values that were checked. Nobody beyond the codecs sees a table.

use crate::base::{LogId, Position};

/// An error's text is cut there.
pub(super) const TEXT_MAX: usize = 4096;

/// Why a frame is not what its kind says. The stream itself is sound: the next frame can be read.
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

/// At most [`TEXT_MAX`] bytes of a text, whole characters.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}
