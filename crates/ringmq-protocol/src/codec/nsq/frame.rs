//! Server frames: written by the node, read by clients (tests, the simulator, the load generator).
//!
//! ```text
//! size u32 be (of what follows) | type u32 be: 0 response, 1 error, 2 message | data
//! message data: timestamp i64 be (ns) | attempts u16 be | id, 16 bytes | body
//! ```

use super::error::ClientError;
use crate::base::MessageId;

const RESPONSE: u32 = 0;
const ERROR: u32 = 1;
const MESSAGE: u32 = 2;

/// Size and type.
pub const FRAME_HEAD_LEN: usize = 8;
/// Timestamp, attempts and id, before a message's body.
pub const MESSAGE_HEAD_LEN: usize = 8 + 2 + 16;

/// Offset and size, before the body of a message for `SUB_ORDERED`.
pub const PLACE_LEN: usize = 8 + 4;

/// Bytes of the frame around a message body.
pub const fn message_len(body: usize) -> usize {
    FRAME_HEAD_LEN + MESSAGE_HEAD_LEN + body
}

fn head(out: &mut Vec<u8>, kind: u32, data_len: usize) {
    // A single reserve for the frame; a body is limited far below 4 GiB before it gets here.
    out.reserve(FRAME_HEAD_LEN + data_len);
    out.extend_from_slice(&(4 + data_len as u32).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
}

pub fn response(out: &mut Vec<u8>, data: &[u8]) {
    head(out, RESPONSE, data.len());
    out.extend_from_slice(data);
}

pub fn error(out: &mut Vec<u8>, error: &ClientError) {
    head(out, ERROR, error.code.len() + 1 + error.text.len());
    out.extend_from_slice(error.code.as_bytes());
    out.push(b' ');
    out.extend_from_slice(&error.text);
}

/// An error without a text: nsqd's answer to a wrong magic.
pub fn bare_error(out: &mut Vec<u8>, code: &str) {
    head(out, ERROR, code.len());
    out.extend_from_slice(code.as_bytes());
}

pub fn message(out: &mut Vec<u8>, unix_ns: i64, attempts: u16, id: MessageId, body: &[u8]) {
    let mut start = [0; FRAME_HEAD_LEN + MESSAGE_HEAD_LEN];
    start[..4].copy_from_slice(&((4 + MESSAGE_HEAD_LEN + body.len()) as u32).to_be_bytes());
    start[4..8].copy_from_slice(&MESSAGE.to_be_bytes());
    start[8..16].copy_from_slice(&unix_ns.to_be_bytes());
    start[16..18].copy_from_slice(&attempts.to_be_bytes());
    start[18..].copy_from_slice(&id.hex());
    out.reserve(start.len() + body.len());
    out.extend_from_slice(&start);
    out.extend_from_slice(body);
}

/// A message as `SUB_ORDERED` gets it: the id in 16 bytes (the id, a trace id of zero), and before the body where the
/// message stands in the log and the bytes that it takes there.
pub fn placed_message(out: &mut Vec<u8>, unix_ns: i64, attempts: u16, id: MessageId, place: (i64, u32), body: &[u8]) {
    head(out, MESSAGE, MESSAGE_HEAD_LEN + PLACE_LEN + body.len());
    out.extend_from_slice(&unix_ns.to_be_bytes());
    out.extend_from_slice(&attempts.to_be_bytes());
    out.extend_from_slice(&id.binary());
    out.extend_from_slice(&place.0.to_be_bytes());
    out.extend_from_slice(&place.1.to_be_bytes());
    out.extend_from_slice(body);
}

/// A frame as a client finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    Response(&'a [u8]),
    /// `CODE text`
    Error(&'a [u8]),
    Message(MessageFrame<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageFrame<'a> {
    pub unix_ns: i64,
    pub attempts: u16,
    pub id: [u8; 16],
    pub body: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    #[error("a frame of {0} bytes: at least 4 and at most {max} are expected", max = FRAME_LEN_MAX)]
    Size(u32),
    #[error("a frame of the unknown type {0}")]
    Kind(u32),
    #[error("a message frame of {0} bytes has no room for its head")]
    Message(usize),
}

/// A client believes no larger frame.
pub const FRAME_LEN_MAX: u32 = 1 << 30;

/// The frame at the start of `bytes` and its whole length; `None` while it is incomplete.
pub fn decode(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, BadFrame> {
    let Some((size, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let size = u32::from_be_bytes(*size);
    if !(4..=FRAME_LEN_MAX).contains(&size) {
        return Err(BadFrame::Size(size));
    }
    let Some((content, _)) = rest.split_at_checked(size as usize) else { return Ok(None) };
    let (kind, data) = content.split_first_chunk::<4>().expect("the size is at least 4");
    let frame = match u32::from_be_bytes(*kind) {
        RESPONSE => Frame::Response(data),
        ERROR => Frame::Error(data),
        MESSAGE => Frame::Message(decode_message(data).ok_or(BadFrame::Message(data.len()))?),
        other => return Err(BadFrame::Kind(other)),
    };
    Ok(Some((frame, 4 + size as usize)))
}

fn decode_message(data: &[u8]) -> Option<MessageFrame<'_>> {
    let (unix_ns, rest) = data.split_first_chunk()?;
    let (attempts, rest) = rest.split_first_chunk()?;
    let (id, body) = rest.split_first_chunk()?;
    Some(MessageFrame { unix_ns: i64::from_be_bytes(*unix_ns), attempts: u16::from_be_bytes(*attempts), id: *id, body })
}

/// Decodes all whole frames of `bytes`; returns them and their length in bytes.
pub fn decode_all(bytes: &[u8]) -> Result<(Vec<Frame<'_>>, usize), BadFrame> {
    let (mut frames, mut at) = (Vec::new(), 0);
    while let Some((frame, len)) = decode(&bytes[at..])? {
        frames.push(frame);
        at += len;
    }
    Ok((frames, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_come_back_as_they_went() {
        let mut out = Vec::new();
        response(&mut out, b"OK");
        error(&mut out, &ClientError::fatal("E_INVALID", "no"));
        message(&mut out, -5, 3, MessageId(0xabc), b"body");
        assert_eq!(out.len(), 10 + 20 + message_len(4));
        let (frames, len) = decode_all(&out).unwrap();
        assert_eq!(len, out.len());
        let message = MessageFrame { unix_ns: -5, attempts: 3, id: *b"0000000000000abc", body: b"body" };
        assert_eq!(frames, [Frame::Response(b"OK"), Frame::Error(b"E_INVALID no"), Frame::Message(message)]);
        for cut in 0..10 {
            assert_eq!(decode(&out[..cut]), Ok(None));
        }
    }

    #[test]
    fn bad_frames_are_told_apart() {
        assert_eq!(decode(&[0, 0, 0, 3]), Err(BadFrame::Size(3)));
        assert_eq!(decode(&[0xff; 8]), Err(BadFrame::Size(u32::MAX)));
        assert_eq!(decode(&[0, 0, 0, 4, 0, 0, 0, 9]), Err(BadFrame::Kind(9)));
        assert_eq!(decode(&[0, 0, 0, 5, 0, 0, 0, 2, 1]), Err(BadFrame::Message(1)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_all(&bytes);
        }
    }
}
