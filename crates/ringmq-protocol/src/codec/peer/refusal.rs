//! A [`PeerError`] as a table. An error that only a later version knows counts as `NotAligned`: the logs are compared again in a new
//! session, and the leader's limit of followers bounds how often.

use super::decode::position;
use super::encode::{Builder, raw};
use super::fb;
use crate::base::Epoch;
use crate::codec::metadata::{Malformed, check};
use crate::codec::peer::error::PeerError;
use crate::format::files::Bad;

pub(super) fn encode<'f>(b: &mut Builder<'f>, error: &PeerError) -> flatbuffers::WIPOffset<fb::Refusal<'f>> {
    let at = match error {
        PeerError::Gap { end: at } | PeerError::BelowCommitted { committed: at } => Some(raw(*at)),
        _ => None,
    };
    let (bad, bad_number) = match error {
        PeerError::BadBatch(bad) => encode_bad(*bad),
        _ => (fb::Bad::Other, 0),
    };
    let args = fb::RefusalArgs {
        code: fb::RefusalCode(error.code()),
        epoch: if let PeerError::StaleEpoch { promised } = error { promised.0 } else { 0 },
        at: at.as_ref(),
        offset: if let PeerError::Diverged { offset } = error { *offset } else { 0 },
        bad,
        bad_number,
    };
    fb::Refusal::create(b, &args)
}

pub(super) fn decode(kind: &'static str, t: fb::Refusal<'_>) -> Result<PeerError, Malformed> {
    let at = || position(kind, "at", t.at().ok_or(Malformed::Field { kind, field: "at" })?);
    Ok(match t.code() {
        fb::RefusalCode::UnknownPartition => PeerError::UnknownPartition,
        fb::RefusalCode::StaleEpoch => PeerError::StaleEpoch { promised: Epoch(t.epoch()) },
        fb::RefusalCode::ForeignLeader => PeerError::ForeignLeader,
        fb::RefusalCode::NotMember => PeerError::NotMember,
        fb::RefusalCode::Gap => PeerError::Gap { end: at()? },
        fb::RefusalCode::Diverged => {
            check((0..=i64::MAX / 2).contains(&t.offset()), kind, "offset")?;
            PeerError::Diverged { offset: t.offset() }
        }
        fb::RefusalCode::BadBatch => PeerError::BadBatch(decode_bad(t.bad(), t.bad_number())),
        fb::RefusalCode::BelowCommitted => PeerError::BelowCommitted { committed: at()? },
        fb::RefusalCode::OutOfReach => PeerError::OutOfReach,
        fb::RefusalCode::Failed => PeerError::Failed,
        fb::RefusalCode::Ephemeral => PeerError::Ephemeral,
        fb::RefusalCode::Clamped => PeerError::Clamped,
        fb::RefusalCode::Superseded => PeerError::Superseded,
        fb::RefusalCode::NoRoom => PeerError::NoRoom,
        _ => PeerError::NotAligned,
    })
}

fn encode_bad(bad: Bad) -> (fb::Bad, u16) {
    match bad {
        Bad::Short => (fb::Bad::Short, 0),
        Bad::Zero => (fb::Bad::Zero, 0),
        Bad::Magic => (fb::Bad::Magic, 0),
        Bad::Crc => (fb::Bad::Crc, 0),
        Bad::Version(number) => (fb::Bad::Version, number),
        Bad::Foreign => (fb::Bad::Foreign, 0),
        Bad::Bounds => (fb::Bad::Bounds, 0),
        Bad::Chain => (fb::Bad::Chain, 0),
        Bad::Kind(number) => (fb::Bad::Kind, number),
    }
}

fn decode_bad(bad: fb::Bad, number: u16) -> Bad {
    match bad {
        fb::Bad::Short => Bad::Short,
        fb::Bad::Zero => Bad::Zero,
        fb::Bad::Magic => Bad::Magic,
        fb::Bad::Crc => Bad::Crc,
        fb::Bad::Version => Bad::Version(number),
        fb::Bad::Foreign => Bad::Foreign,
        fb::Bad::Chain => Bad::Chain,
        fb::Bad::Kind => Bad::Kind(number),
        _ => Bad::Bounds,
    }
}
