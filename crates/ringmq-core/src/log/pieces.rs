//! A stretch of a file that several operations read, and its known part.
//!
//! Only bytes that lie in two pieces are copied.

use crate::base::{DiskDone, DiskError};
use bytes::Bytes;
use std::collections::VecDeque;

enum PieceState {
    Asked,
    Bytes(Bytes),
    Refused(String),
}

/// Range of the file that one operation reads; whole blocks.
struct Piece {
    at: u64,
    len: usize,
    found: PieceState,
}

impl Piece {
    fn end(&self) -> u64 {
        self.at + self.len as u64
    }
}

/// Reason why the known part ends.
pub(super) enum PiecesEnd {
    File,
    Refused(String),
}

/// Pieces of a file, one behind the other.
#[derive(Default)]
pub(super) struct Pieces(VecDeque<Piece>);

/// Part of the piece at this index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slice {
    index: usize,
    from: usize,
    to: usize,
}

impl Pieces {
    /// Length of all pieces.
    pub fn len(&self) -> usize {
        self.0.iter().map(|piece| piece.len).sum()
    }

    /// End of the last piece.
    pub fn end(&self) -> Option<u64> {
        self.0.back().map(Piece::end)
    }

    /// An operation that reads behind the last piece is under way.
    pub fn ask(&mut self, at: u64, len: usize) {
        assert!(self.end().is_none_or(|end| end == at), "a piece goes on where the one before it ends");
        self.0.push_back(Piece { at, len, found: PieceState::Asked });
    }

    /// Outcome of the operation that began at `at`.
    pub fn answer(&mut self, at: u64, outcome: Result<DiskDone, DiskError>) {
        let piece = self.0.iter_mut().find(|piece| piece.at == at).expect("a piece stays while it is under way");
        piece.found = match outcome {
            Ok(DiskDone::Read(bytes)) => PieceState::Bytes(bytes),
            Ok(_) => PieceState::Bytes(Bytes::new()),
            Err(error) => PieceState::Refused(error.to_string()),
        };
    }

    pub fn is_under_way(&self) -> bool {
        self.0.iter().any(|piece| matches!(piece.found, PieceState::Asked))
    }

    /// End of the known part from the first piece on, and the reason for it, unless an operation is under way there.
    pub fn known_until(&self) -> (u64, Option<PiecesEnd>) {
        let mut at = self.0.front().map_or(0, |piece| piece.at);
        for piece in &self.0 {
            match &piece.found {
                PieceState::Asked => return (at, None),
                PieceState::Refused(error) => return (at, Some(PiecesEnd::Refused(error.clone()))),
                PieceState::Bytes(bytes) => at += bytes.len() as u64,
            }
            if at < piece.end() {
                return (at, Some(PiecesEnd::File));
            }
        }
        (at, None)
    }

    /// The bytes from this place of the file on, at most `len`, as far as they are known; and of which piece they are a slice.
    pub fn bytes_at(&self, at: u64, len: usize) -> (Bytes, Option<Slice>) {
        let mut joined = vec![];
        for (index, piece) in self.0.iter().enumerate() {
            let PieceState::Bytes(bytes) = &piece.found else { break };
            let wanted = at + joined.len() as u64;
            if wanted >= piece.end() {
                continue;
            }
            let from = ((wanted - piece.at) as usize).min(bytes.len());
            let to = (from + len - joined.len()).min(bytes.len());
            if joined.is_empty() {
                if to - from == len {
                    return (bytes.slice(from..to), Some(Slice { index, from, to }));
                }
                joined.reserve_exact(len);
            }
            joined.extend_from_slice(&bytes[from..to]);
            if joined.len() == len || bytes.len() < piece.len {
                break;
            }
        }
        (joined.into(), None)
    }

    fn slice(&self, slice: Slice) -> Bytes {
        match &self.0[slice.index].found {
            PieceState::Bytes(bytes) => bytes.slice(slice.from..slice.to),
            _ => unreachable!("it was just looked at"),
        }
    }

    /// Drops the pieces that end before `at`, up to one that is under way.
    pub fn drop_before(&mut self, at: u64) {
        while self.0.pop_front_if(|piece| piece.end() <= at && !matches!(piece.found, PieceState::Asked)).is_some() {}
    }
}

/// Consecutive bytes taken from [`Pieces`]: consecutive bytes of one piece are one part.
#[derive(Default)]
pub(super) struct Parts {
    parts: Vec<Bytes>,
    /// The last part, as long as it grows.
    open: Option<Slice>,
    len: usize,
}

impl Parts {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the bytes that [`Pieces::bytes_at`] returned.
    pub fn push(&mut self, pieces: &Pieces, bytes: Bytes, slice: Option<Slice>) {
        self.len += bytes.len();
        match (&mut self.open, slice) {
            (Some(open), Some(next)) if open.index == next.index && open.to == next.from => open.to = next.to,
            (_, slice) => {
                self.parts.extend(self.open.take().map(|open| pieces.slice(open)));
                self.open = slice;
                if slice.is_none() {
                    self.parts.push(bytes);
                }
            }
        }
    }

    pub fn finish(mut self, pieces: &Pieces) -> Vec<Bytes> {
        self.parts.extend(self.open.map(|open| pieces.slice(open)));
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::FileId;

    fn pieces(found: [&[u8]; 2]) -> Pieces {
        let mut pieces = Pieces::default();
        for (at, bytes) in [10, 14].into_iter().zip(found) {
            pieces.ask(at, 4);
            pieces.answer(at, Ok(DiskDone::Read(Bytes::copy_from_slice(bytes))));
        }
        pieces
    }

    #[test]
    fn what_stands_in_two_pieces_is_joined() {
        let pieces = pieces([b"abcd", b"efgh"]);
        assert_eq!(pieces.bytes_at(11, 2), (Bytes::from_static(b"bc"), Some(Slice { index: 0, from: 1, to: 3 })));
        assert_eq!(pieces.bytes_at(12, 4), (Bytes::from_static(b"cdef"), None));
        assert_eq!(pieces.bytes_at(16, 9), (Bytes::from_static(b"gh"), None), "as far as they are known");
        assert!(matches!(pieces.known_until(), (18, None)));
    }

    #[test]
    fn the_first_piece_that_is_short_refused_or_under_way_ends_what_is_known() {
        let mut short = pieces([b"abc", b"efgh"]);
        assert!(matches!(short.known_until(), (13, Some(PiecesEnd::File))));
        assert_eq!(short.bytes_at(12, 4), (Bytes::from_static(b"c"), None));
        short.ask(18, 4);
        assert!(short.is_under_way() && short.len() == 12 && short.end() == Some(22));
        short.drop_before(18);
        assert!(matches!(short.known_until(), (18, None)));
        short.answer(18, Err(DiskError::NotFound { file: FileId::Journal(0) }));
        assert!(!short.is_under_way() && matches!(short.known_until(), (18, Some(PiecesEnd::Refused(_)))));
    }

    #[test]
    fn neighbours_in_a_piece_are_one_part() {
        let pieces = pieces([b"abcd", b"efgh"]);
        let mut parts = Parts::default();
        for (at, len) in [(10, 1), (11, 2), (13, 3), (16, 2)] {
            let (bytes, slice) = pieces.bytes_at(at, len);
            parts.push(&pieces, bytes, slice);
        }
        assert_eq!(parts.len(), 8);
        assert_eq!(parts.finish(&pieces), [&b"abc"[..], b"def", b"gh"]);
    }
}
