//! The frame of the native and of the peer protocol: a fixed header, a small flatbuffer, and a payload that is never copied into one.
//! Each protocol defines the longest frame and the meaning of request and flags.
//!
//! ```text
//!  0 crc u32           of bytes 4 .. 24 + meta_len
//!  4 len u32           bytes after the header: metadata, then payload
//!  8 kind u8           9 flags u8
//! 10 meta_len u16      a multiple of 8; zeros follow the flatbuffer
//! 12 payload crc u32   of the payload; zero without one
//! 16 request u64       a request id, or a sequence
//! 24 metadata, payload
//! ```
//! The crc comes first of all checks on content: a run of zero bytes is a valid flatbuffer of nothing but defaults, and a
//! valid frame nowhere.

pub const HEADER_LEN: usize = 24;

/// Longest metadata: a multiple of 8 that a u16 holds.
pub const META_MAX: usize = 65_528;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: u8,
    /// Lane of a peer's frame. Ignored in a client's frame.
    pub flags: u8,
    /// Bytes of metadata, padding included.
    pub meta_len: usize,
    pub payload_len: usize,
    pub payload_crc: u32,
    /// Sequence of a peer's frame.
    pub request: u64,
}

/// Reason why the stream cannot be read on. No next frame can be found, so the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {len} bytes is longer than the {max} that this side takes")]
    TooLong { len: u64, max: usize },
    #[error("the frame's metadata of {meta} bytes does not fit into its {len} bytes, or is no multiple of 8")]
    Metadata { meta: usize, len: usize },
    #[error("checksum mismatch in the frame's header and metadata: another protocol, or a damaged stream")]
    Checksum,
    #[error("checksum mismatch in the frame's payload")]
    Payload,
}

impl Header {
    /// The header and metadata at the start of `bytes`, verified; `None` when more bytes are needed. `max` is the
    /// longest frame that this side takes, and a length is held against it before anything waits for that many bytes.
    pub fn parse(bytes: &[u8], max: usize) -> Result<Option<(Header, &[u8])>, FrameError> {
        let Some(head) = bytes.get(..HEADER_LEN) else { return Ok(None) };
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let len = u32_at(4) as usize;
        let meta_len = u16::from_le_bytes([head[10], head[11]]) as usize;
        if len > max.saturating_sub(HEADER_LEN) {
            return Err(FrameError::TooLong { len: len as u64 + HEADER_LEN as u64, max });
        }
        if meta_len > len || !meta_len.is_multiple_of(8) {
            return Err(FrameError::Metadata { meta: meta_len, len });
        }
        let Some(checked) = bytes.get(4..HEADER_LEN + meta_len) else { return Ok(None) };
        if crc32fast::hash(checked) != u32_at(0) {
            return Err(FrameError::Checksum);
        }
        let request = u64::from_le_bytes(head[16..24].try_into().expect("eight bytes"));
        let header =
            Header { kind: head[8], flags: head[9], meta_len, payload_len: len - meta_len, payload_crc: u32_at(12), request };
        Ok(Some((header, &checked[HEADER_LEN - 4..])))
    }

    /// Bytes of the whole frame.
    pub fn frame_len(&self) -> usize {
        HEADER_LEN + self.meta_len + self.payload_len
    }

    pub fn check_payload(&self, payload: &[u8]) -> Result<(), FrameError> {
        let is_intact = payload.len() == self.payload_len && payload_crc(payload) == self.payload_crc;
        if is_intact { Ok(()) } else { Err(FrameError::Payload) }
    }
}

/// The crc that a frame carries for this payload.
pub fn payload_crc(payload: &[u8]) -> u32 {
    if payload.is_empty() { 0 } else { crc32fast::hash(payload) }
}

/// Length and checksum of the bytes that follow a frame's metadata; the caller appends the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    pub len: usize,
    pub crc: u32,
}

impl Payload {
    pub const NONE: Payload = Payload { len: 0, crc: 0 };

    pub fn of(bytes: &[u8]) -> Payload {
        Payload { len: bytes.len(), crc: payload_crc(bytes) }
    }

    /// Payload of consecutive pieces.
    pub fn of_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Payload {
        let (mut len, mut crc) = (0, crc32fast::Hasher::new());
        for part in parts {
            len += part.len();
            crc.update(part);
        }
        // the checksum of nothing is zero, too
        Payload { len, crc: crc.finalize() }
    }
}

/// Appends header and metadata; the caller appends the payload.
///
/// Panics on metadata or a frame beyond the format's bounds (`max`: bytes of the whole frame). The caller keeps to the bounds.
pub fn encode(out: &mut Vec<u8>, kind: u8, flags: u8, request: u64, metadata: &[u8], payload: Payload, max: usize) {
    let meta_len = metadata.len().next_multiple_of(8);
    let fits = meta_len <= META_MAX && HEADER_LEN + meta_len + payload.len <= max;
    assert!(fits, "a frame has its bounds");
    let start = out.len();
    out.reserve(HEADER_LEN + meta_len);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&((meta_len + payload.len) as u32).to_le_bytes());
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&(meta_len as u16).to_le_bytes());
    out.extend_from_slice(&payload.crc.to_le_bytes());
    out.extend_from_slice(&request.to_le_bytes());
    out.extend_from_slice(metadata);
    out.resize(start + HEADER_LEN + meta_len, 0);
    let crc = crc32fast::hash(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 65 * 1024 * 1024;

    fn frame(metadata: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut out = vec![];
        encode(&mut out, 7, 2, 99, metadata, Payload::of(payload), MAX);
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn a_frame_comes_back_and_every_prefix_asks_for_more() {
        let bytes = frame(b"metadata!", b"payload");
        for len in 0..bytes.len() - 7 {
            assert_eq!(Header::parse(&bytes[..len], 4096), Ok(None), "{len}");
        }
        let (header, meta) = Header::parse(&bytes, 4096).unwrap().unwrap();
        let crc = crc32fast::hash(b"payload");
        assert_eq!(header, Header { kind: 7, flags: 2, meta_len: 16, payload_len: 7, payload_crc: crc, request: 99 });
        assert_eq!(meta, b"metadata!\0\0\0\0\0\0\0");
        assert_eq!(header.frame_len(), bytes.len());
        assert_eq!(header.check_payload(b"payload"), Ok(()));
        assert_eq!(header.check_payload(b"payloaD"), Err(FrameError::Payload));
    }

    #[test]
    fn no_changed_bit_of_header_or_metadata_passes() {
        let bytes = frame(b"metadata", b"");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // a longer length waits for more, at most; none is taken for a frame
            assert!(!matches!(Header::parse(&changed, MAX), Ok(Some(_))), "bit {bit}");
        }
    }

    #[test]
    fn zeros_and_other_protocols_are_refused() {
        assert_eq!(Header::parse(&[0; 64], 4096), Err(FrameError::Checksum));
        assert!(Header::parse(b"  V2IDENTIFY\n\0\0\0\0\0\0\0\0\0\0\0", 16 * 1024).is_err());
        assert!(Header::parse(b"GET /ping HTTP/1.1\r\nHost: there\r\n", 16 * 1024).is_err());
        assert!(Header::parse(&[0xff; 24], MAX).is_err());
    }

    #[test]
    fn a_payload_of_parts_is_that_of_the_whole() {
        assert_eq!(Payload::of_parts([&b"pay"[..], b"", b"load"].into_iter()), Payload::of(b"payload"));
        assert_eq!(Payload::of_parts([].into_iter()), Payload::NONE);
    }
}
