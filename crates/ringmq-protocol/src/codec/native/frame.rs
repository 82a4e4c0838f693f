//! The bounds of this protocol's frames. The number of a header is the request id: the answer carries the same, and zero asks
//! for none. Its flags are zero, and ignored.

pub use crate::codec::frame::{FrameError, HEADER_LEN, Header, META_MAX, Payload, payload_crc};

/// A frame is never longer than this, header included, whatever the two sides agree on.
pub const FRAME_MAX: usize = 65 * 1024 * 1024;

/// Largest frame before the handshake has agreed on another limit.
pub const HELLO_FRAME_MAX: usize = 16 * 1024;

/// Appends header and metadata; the caller appends the payload of `payload_len` bytes, or sends it behind.
///
/// Panics on metadata or a frame beyond the format's bounds. The caller keeps to the bounds.
pub fn encode(out: &mut Vec<u8>, kind: u8, request: u64, metadata: &[u8], payload_len: usize, payload_crc: u32) {
    let payload = Payload { len: payload_len, crc: payload_crc };
    crate::codec::frame::encode(out, kind, 0, request, metadata, payload, FRAME_MAX);
}
