//! Properties of a peer's frame beyond [`crate::codec::frame`]: its bounds, its lane, its sequence.
//!
//! The flags of the header are the lane: 0 control, 1 data, 2 catch-up. The request is the sequence: each side counts the frames that it
//! sends on each lane of a connection, from 1. A lane delivers in order and without loss, or its connection ends.

pub use crate::codec::frame::{FrameError, HEADER_LEN, Header, META_MAX};

use crate::codec::peer::message::{CURSORS_BYTES_MAX, CURSORS_MAX, Lane, RUN_BYTES_MAX};

/// Names of deleted channels: a length and at most 64 bytes each.
pub(super) const DELETED_BYTES_MAX: usize = CURSORS_MAX * 65;

const PAYLOAD_MAX: usize = CURSORS_BYTES_MAX + DELETED_BYTES_MAX;

/// A frame is never longer than this, header included.
pub const FRAME_MAX: usize = HEADER_LEN + META_MAX + PAYLOAD_MAX;

const _: () = assert!(RUN_BYTES_MAX <= PAYLOAD_MAX && FRAME_MAX < u32::MAX as usize);

/// Largest frame before the handshake.
pub const HELLO_FRAME_MAX: usize = 16 * 1024;

const LANES: [Lane; 3] = [Lane::Control, Lane::Data, Lane::CatchUp];

pub(super) fn number(lane: Lane) -> u8 {
    match lane {
        Lane::Control => 0,
        Lane::Data => 1,
        Lane::CatchUp => 2,
    }
}

/// The lane of a frame. `None`: one of a later version.
pub fn lane(header: &Header) -> Option<Lane> {
    LANES.get(header.flags as usize).copied()
}

/// Bits of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lanes(pub u8);

impl Lanes {
    pub const ALL: Lanes = Lanes(0b111);

    pub fn of(lane: Lane) -> Lanes {
        Lanes(1 << number(lane))
    }

    pub fn has(self, lane: Lane) -> bool {
        self.0 & Lanes::of(lane).0 != 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("frame {found} of the {lane:?} lane came where {expected} was expected: the connection lost or repeated something")]
pub struct SequenceError {
    pub lane: Lane,
    pub expected: u64,
    pub found: u64,
}

/// Counts the frames of one direction of a connection, lane by lane.
#[derive(Clone, Default, Debug)]
pub struct Sequences([u64; 3]);

impl Sequences {
    /// The sequence of the next frame to send.
    pub fn next(&mut self, lane: Lane) -> u64 {
        let count = &mut self.0[number(lane) as usize];
        *count += 1;
        *count
    }

    /// Checks the sequence of a frame, also of an unknown kind. Frames of unknown lanes are not counted.
    pub fn check(&mut self, header: &Header) -> Result<(), SequenceError> {
        let Some(lane) = lane(header) else { return Ok(()) };
        let expected = self.next(lane);
        if header.request == expected { Ok(()) } else { Err(SequenceError { lane, expected, found: header.request }) }
    }
}
