//! The payload of Cursors: each cursor as in a snapshot, then of each deleted channel `len u8` and its name.

use crate::base::ChannelName;
use crate::codec::metadata::{Malformed, check};
use crate::codec::peer::message::PRODUCERS_TOLD_MAX;
use crate::format::cursor::CursorImage;
use crate::format::producer::Producer;

const KIND: &str = "Cursors";

/// Bytes of a name's length.
const LEN: usize = 1;

pub(super) fn encode(cursors: &[CursorImage], deleted: &[ChannelName]) -> Vec<u8> {
    let names: usize = deleted.iter().map(|name| LEN + name.len()).sum();
    let mut out = Vec::with_capacity(cursors.iter().map(CursorImage::encoded_len).sum::<usize>() + names);
    cursors.iter().for_each(|cursor| cursor.encode(&mut out));
    for name in deleted {
        out.push(u8::try_from(name.len()).expect("a channel's name has at most 64 bytes"));
        out.extend_from_slice(name.as_bytes());
    }
    out
}

/// Decodes the cursors in `bytes`. The vectors grow with the bytes that are there, not with the claimed number.
pub(super) fn decode_cursors(mut bytes: &[u8], num: u32) -> Result<Vec<CursorImage>, Malformed> {
    let mut cursors = Vec::new();
    for _ in 0..num {
        let (cursor, taken) = CursorImage::decode(bytes).map_err(|_| Malformed::Field { kind: KIND, field: "cursors" })?;
        check(is_sound(&cursor), KIND, "cursors")?;
        bytes = &bytes[taken..];
        cursors.push(cursor);
    }
    check(bytes.is_empty(), KIND, "cursors")?;
    Ok(cursors)
}

/// Checks a peer's cursor before it is used in calculations. (This node wrote the cursors on its own disk.)
fn is_sound(cursor: &CursorImage) -> bool {
    let mut before = cursor.confirmed.log_id;
    let mut follows = |i: &crate::format::cursor::Interval| {
        let follows = before <= i.start && i.start < i.end.log_id && i.end.is_sane();
        before = i.end.log_id;
        follows
    };
    cursor.confirmed.is_sane() && cursor.intervals.iter().all(&mut follows)
}

pub(super) fn decode_producers(bytes: &[u8]) -> Result<Vec<Producer>, Malformed> {
    const BAD: Malformed = Malformed::Field { kind: KIND, field: "producers" };
    let producers = Producer::decode_all(bytes).map_err(|_| BAD)?;
    if producers.len() <= PRODUCERS_TOLD_MAX { Ok(producers) } else { Err(BAD) }
}

pub(super) fn decode_deleted(mut bytes: &[u8], num: u32) -> Result<Vec<ChannelName>, Malformed> {
    const BAD: Malformed = Malformed::Field { kind: KIND, field: "deleted" };
    let mut deleted = Vec::new();
    for _ in 0..num {
        let (&len, rest) = bytes.split_first().ok_or(BAD)?;
        let (name, rest) = rest.split_at_checked(len as usize).ok_or(BAD)?;
        let name = std::str::from_utf8(name).map_err(|_| BAD)?;
        deleted.push(ChannelName::of_cursor(name).map_err(|_| BAD)?);
        bytes = rest;
    }
    if bytes.is_empty() { Ok(deleted) } else { Err(BAD) }
}
