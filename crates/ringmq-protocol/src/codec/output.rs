//! Output of a connection, for its socket.

use bytes::Bytes;

/// Shorter pieces are cheaper to copy than to name.
const PIECE_MIN: usize = 8 * 1024;

#[derive(Debug)]
pub enum Output {
    Whole(Vec<u8>),
    /// Pieces in order: each long payload as it is, the short bytes between two of them in one piece.
    Pieces(Vec<Bytes>),
}

impl Output {
    pub fn of(pieces: impl Iterator<Item = Bytes>) -> Output {
        let (mut done, mut short) = (vec![], vec![]);
        for piece in pieces {
            if piece.len() < PIECE_MIN {
                short.extend_from_slice(&piece);
                continue;
            }
            if !short.is_empty() {
                done.push(Bytes::from(std::mem::take(&mut short)));
            }
            done.push(piece);
        }
        if done.is_empty() {
            return Output::Whole(short);
        }
        if !short.is_empty() {
            done.push(short.into());
        }
        Output::Pieces(done)
    }

    /// Bytes of all output.
    pub fn bytes(&self) -> usize {
        match self {
            Output::Whole(bytes) => bytes.len(),
            Output::Pieces(pieces) => pieces.iter().map(Bytes::len).sum(),
        }
    }
}
