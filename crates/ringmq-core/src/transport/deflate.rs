//! Raw deflate, without a header, flushed after each write so that the other side has all of it.

use super::DecodeResult;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};

/// Most bytes that one step unpacks.
const UNPACKED: usize = 32 * 1024;

/// Room for the mark of a flush, and a little more.
const ROOM: usize = 64;

#[derive(Debug)]
pub struct Deflate {
    level: u8,
    pack: Compress,
    unpack: Decompress,
    /// The last step filled its room: more may come out without more going in.
    is_full: bool,
}

impl Deflate {
    pub fn new(level: u8) -> Deflate {
        let pack = Compress::new(flate2::Compression::new(level.into()), false);
        Deflate { level, pack, unpack: Decompress::new(false), is_full: false }
    }

    pub fn level(&self) -> u8 {
        self.level
    }

    pub fn encode(&mut self, mut plain: &[u8], out: &mut Vec<u8>) {
        if plain.is_empty() {
            return;
        }
        out.reserve(plain.len() / 2 + ROOM);
        // done when there is room left after a flush: else some of it is still inside
        loop {
            let before = self.pack.total_in();
            let status = self.pack.compress_vec(plain, out, FlushCompress::Sync);
            assert!(matches!(status, Ok(Status::Ok | Status::BufError)), "nothing that goes in can be wrong: {status:?}");
            plain = &plain[(self.pack.total_in() - before) as usize..];
            if plain.is_empty() && out.len() < out.capacity() {
                return;
            }
            out.reserve(plain.len() / 2 + ROOM);
        }
    }

    /// True if more may come out without further input.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    pub fn decode(&mut self, bytes: &mut &[u8], plain: &mut Vec<u8>) -> DecodeResult {
        let before = self.unpack.total_in();
        plain.reserve_exact(UNPACKED);
        let status = self.unpack.decompress_vec(bytes, plain, FlushDecompress::None);
        *bytes = &bytes[(self.unpack.total_in() - before) as usize..];
        self.is_full = plain.len() == plain.capacity();
        match status {
            Ok(status) => Ok(status == Status::StreamEnd),
            Err(_) => {
                Err("deflate: the received bytes cannot be decompressed: they must be raw deflate, without a header".into())
            }
        }
    }
}
