//! The framing format of snappy: chunks of at most 64 KiB, each with its checksum.
//!
//! ```text
//! kind u8 | len u24 le | kind 0: crc u32 le, a snappy block;  kind 1: crc u32 le, bytes as they are
//!                        kind 0xff: "sNaPpY", first of all;   kind 0x80 to 0xfe: skipped;   all others: an error
//! ```

use super::DecodeResult;
use snap::raw;
use std::cell::RefCell;

/// Bytes of one chunk before compression.
const BLOCK: usize = 64 * 1024;
/// The longest that such a chunk can be: a checksum and a block that does not compress.
const CHUNK_MAX: usize = 4 + 76_490;
const HEAD: usize = 4;
const CRC: usize = 4;

const COMPRESSED: u8 = 0x00;
const PLAIN: u8 = 0x01;
const IDENTIFIER: &[u8] = b"\xff\x06\x00\x00sNaPpY";

/// A block that does not get shorter by at least an eighth goes out as it is: that saves the client the unpacking.
const SAVED_MIN: usize = 8;

thread_local! {
    /// Tables that hold nothing from one block to the next.
    static ENCODER: RefCell<raw::Encoder> = RefCell::new(raw::Encoder::new());
}

#[derive(Debug, Default)]
pub struct Snappy {
    /// The start of a chunk whose rest is still to come.
    partial: Vec<u8>,
    /// Bytes of a chunk that says nothing, still to come.
    skip: usize,
    has_heard: bool,
    has_said: bool,
}

impl Snappy {
    pub fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        if !self.has_said {
            self.has_said = true;
            out.extend_from_slice(IDENTIFIER);
        }
        ENCODER.with_borrow_mut(|encoder| plain.chunks(BLOCK).for_each(|block| encode_block(encoder, block, out)));
    }

    /// Takes one chunk at most.
    pub fn decode(&mut self, bytes: &mut &[u8], plain: &mut Vec<u8>) -> DecodeResult {
        let skipped = self.skip.min(bytes.len());
        (self.skip, *bytes) = (self.skip - skipped, &bytes[skipped..]);
        if self.partial.is_empty()
            && let Some(len) = chunk_len(bytes)
            && len <= bytes.len()
        {
            let (chunk, rest) = bytes.split_at(len);
            *bytes = rest;
            return self.chunk(chunk, plain);
        }
        while !bytes.is_empty() {
            let wanted = chunk_len(&self.partial).unwrap_or(HEAD);
            let (now, rest) = bytes.split_at(bytes.len().min(wanted - self.partial.len()));
            self.partial.extend_from_slice(now);
            *bytes = rest;
            self.check_head()?;
            if self.skip_head() {
                break;
            }
            if chunk_len(&self.partial) == Some(self.partial.len()) {
                let chunk = std::mem::take(&mut self.partial);
                return self.chunk(&chunk, plain);
            }
        }
        Ok(false)
    }

    /// Refuses a head that is not to be believed before its chunk is collected.
    fn check_head(&self) -> Result<(), String> {
        let &[kind, a, b, c, ..] = &self.partial[..] else { return Ok(()) };
        check(kind, u32::from_le_bytes([a, b, c, 0]) as usize, self.has_heard)
    }

    /// True: the collected bytes are the head of a chunk to skip, whose bytes are not kept.
    fn skip_head(&mut self) -> bool {
        match self.partial[..] {
            [0x80..=0xfe, a, b, c] if self.has_heard => {
                self.skip = u32::from_le_bytes([a, b, c, 0]) as usize;
                self.partial = vec![];
                true
            }
            _ => false,
        }
    }

    fn chunk(&mut self, chunk: &[u8], plain: &mut Vec<u8>) -> DecodeResult {
        let (head, data) = chunk.split_at(HEAD);
        check(head[0], data.len(), self.has_heard)?;
        let failed = match head[0] {
            COMPRESSED => unpack(data, plain),
            PLAIN => verbatim(data, plain),
            0xff if chunk == IDENTIFIER => {
                self.has_heard = true;
                None
            }
            0xff => Some("the stream's identifier is another one"),
            _ => None, // a chunk to skip
        };
        failed.map_or(Ok(false), |what| Err(format!("snappy: {what}")))
    }
}

/// Length of a chunk with its header, once the header is there.
fn chunk_len(bytes: &[u8]) -> Option<usize> {
    let &[_, a, b, c, ..] = bytes else { return None };
    Some(HEAD + u32::from_le_bytes([a, b, c, 0]) as usize)
}

fn check(kind: u8, len: usize, has_heard: bool) -> Result<(), String> {
    match kind {
        0xff if len == IDENTIFIER.len() - HEAD => Ok(()),
        _ if !has_heard => Err("snappy: the stream does not begin with snappy's stream identifier".into()),
        COMPRESSED | PLAIN if (CRC..=CHUNK_MAX).contains(&len) => Ok(()),
        COMPRESSED | PLAIN => Err(format!("snappy: a chunk of {len} bytes, {CRC} to {CHUNK_MAX} are allowed")),
        0x80..=0xfe => Ok(()),
        kind => Err(format!("snappy: a chunk of the unknown kind {kind:#04x}")),
    }
}

fn encode_block(encoder: &mut raw::Encoder, block: &[u8], out: &mut Vec<u8>) {
    let at = out.len();
    out.resize(at + HEAD + CRC + raw::max_compress_len(block.len()), 0);
    let body = at + HEAD + CRC;
    let packed = encoder.compress(block, &mut out[body..]).expect("the block is short and there is room for it");
    let (kind, len) = if packed + packed / SAVED_MIN < block.len() {
        (COMPRESSED, packed)
    } else {
        out[body..body + block.len()].copy_from_slice(block);
        (PLAIN, block.len())
    };
    out.truncate(body + len);
    out[at..at + HEAD].copy_from_slice(&((CRC + len) as u32).to_le_bytes());
    out.copy_within(at..at + 3, at + 1);
    out[at] = kind;
    out[at + HEAD..body].copy_from_slice(&masked(block).to_le_bytes());
}

/// The checksum of the format: a CRC-32C, turned and shifted.
fn masked(plain: &[u8]) -> u32 {
    crc32c::crc32c(plain).rotate_right(15).wrapping_add(0xa282_ead8)
}

const DAMAGED: Option<&str> = Some("a chunk's checksum is wrong");
const TOO_LONG: Option<&str> = Some("a chunk announces more than 64 KiB");

fn unpack(data: &[u8], plain: &mut Vec<u8>) -> Option<&'static str> {
    const BROKEN: Option<&str> = Some("a chunk cannot be decompressed");
    let (crc, packed) = data.split_first_chunk::<CRC>()?;
    let Ok(len) = raw::decompress_len(packed) else { return BROKEN };
    if len > BLOCK {
        return TOO_LONG;
    }
    let at = plain.len();
    plain.resize(at + len, 0);
    if raw::Decoder::new().decompress(packed, &mut plain[at..]) != Ok(len) {
        plain.truncate(at);
        return BROKEN;
    }
    if masked(&plain[at..]) != u32::from_le_bytes(*crc) {
        plain.truncate(at);
        return DAMAGED;
    }
    None
}

fn verbatim(data: &[u8], plain: &mut Vec<u8>) -> Option<&'static str> {
    let (crc, bytes) = data.split_first_chunk::<CRC>()?;
    if bytes.len() > BLOCK {
        return TOO_LONG;
    }
    if masked(bytes) != u32::from_le_bytes(*crc) {
        return DAMAGED;
    }
    plain.extend_from_slice(bytes);
    None
}
