//! Common prefix of two logs, from their epochs; and the check whether received batches continue a log.

use super::event::{Effect, LogView};
use crate::base::{Epoch, LogId, Position};
use crate::codec::peer::error::PeerError;
use crate::format::batch::BatchHeader;
use crate::format::files::Bad;
use crate::format::tail::{BatchId, Tail};
use crate::{
    codec::peer::message::{Batches, Route, Standing},
    format::tail::EpochEnd,
};

/// Common part of two logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Common {
    /// Everything up to here is common; with the header crc of the batch that ends here, where this log's epoch ends here too.
    At { at: Position, chain_crc: Option<u32> },
    /// No common position within the page: there are older epochs.
    Older { below: Epoch },
    /// No common position at all.
    Nothing,
}

/// Epochs of its own log that a replica compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whose {
    /// The leader: its log decides, and its damage is repaired.
    Leader,
    /// A replica that may take another's log: only the part that it vouches for counts.
    Candidate,
}

/// Finds the common part. (epoch, log id) names one batch, so logs that share an epoch share all before it, and part at the lesser of
/// its two ends.
pub(super) fn common(log: &dyn LogView, theirs: &Standing, whose: Whose) -> Common {
    let mut mine: Vec<EpochEnd> = Vec::with_capacity(1);
    let (start, start_crc) = log.start();
    for their in &theirs.epochs {
        mine.clear();
        let below = Some(Epoch(their.epoch.0.saturating_add(1)));
        match whose {
            Whose::Leader => log.all_epochs(below, 1, &mut mine),
            Whose::Candidate => log.epochs(below, 1, &mut mine),
        };
        let Some(mine) = mine.first().filter(|m| m.epoch == their.epoch) else { continue };
        let found = match mine.end.offset.cmp(&their.end.offset) {
            std::cmp::Ordering::Less => Common::At { at: mine.end, chain_crc: Some(mine.chain_crc) },
            std::cmp::Ordering::Greater => Common::At { at: their.end, chain_crc: None },
            std::cmp::Ordering::Equal if mine.chain_crc == their.chain_crc => {
                Common::At { at: mine.end, chain_crc: Some(mine.chain_crc) }
            }
            // Damage, or a bug: the batches there are not shared.
            std::cmp::Ordering::Equal => continue,
        };
        let Common::At { at, .. } = found else { return found };
        return if at.offset >= start.offset && at.offset >= theirs.start.offset { found } else { Common::Nothing };
    }
    match theirs.epochs.last() {
        Some(last) if theirs.more => Common::Older { below: last.epoch },
        // Where one log begins and the other ends, or begins, they meet: at the very start above all.
        _ if start == theirs.start && start_crc == theirs.start_crc => Common::At { at: start, chain_crc: Some(start_crc) },
        _ => Common::Nothing,
    }
}

/// The place in a run of batches, and the facts known about it.
struct Walk {
    /// The batch before: where it ends, its crc.
    before: Option<(Position, u32)>,
    /// A batch that is held was not proven to be the same.
    unproven: bool,
}

/// Takes the batches that continue the log at `taken`, the end of the batches given to it, and skips those that it has. Batches up to
/// `settled` are committed without this replica. True if any was taken. On an error the batches before it were taken.
pub(super) fn take_run(
    route: Route,
    leader_epoch: Epoch,
    log: &dyn LogView,
    taken: &mut Tail,
    batches: &Batches,
    settled: Position,
    out: &mut Vec<Effect>,
) -> Result<bool, PeerError> {
    let mut walk = Walk { before: None, unproven: false };
    let mut any = false;
    for mut part in batches.parts.iter().cloned() {
        while !part.is_empty() {
            let batch = batches.take(&mut part, route).map_err(PeerError::BadBatch)?;
            let h = &batch.header;
            let (at, crc) = (h.start(), h.header_crc.get());
            if h.epoch.get() > leader_epoch.0 {
                return Err(PeerError::BadBatch(Bad::Foreign));
            }
            if walk.before.is_some_and(|(end, before_crc)| end != at || before_crc != h.prev_crc.get()) {
                return Err(PeerError::BadBatch(Bad::Chain));
            }
            walk.before = Some((h.end(), crc));
            if at.offset < taken.at.offset {
                check_held(log, taken, h, &mut walk)?;
                continue;
            }
            if at.offset > taken.at.offset {
                return Err(PeerError::Gap { end: taken.at });
            }
            if at != taken.at || h.prev_crc.get() != taken.chain_crc {
                return Err(PeerError::Diverged { offset: at.offset });
            }
            if h.epoch.get() < taken.epoch.0 {
                return Err(PeerError::BadBatch(Bad::Chain));
            }
            // The chain also proves the batches before it.
            walk.unproven = false;
            *taken = Tail { at: h.end(), chain_crc: crc, epoch: Epoch(h.epoch.get()) };
            let is_settled = h.end().offset <= settled.offset;
            out.push(Effect::Append { batch, is_settled });
            any = true;
        }
    }
    if walk.unproven { Err(PeerError::NotAligned) } else { Ok(any) }
}

/// Checks a batch against the log. A stored batch is a success, not only the last one; other bytes under its id are not.
fn check_held(log: &dyn LogView, taken: &Tail, h: &BatchHeader, walk: &mut Walk) -> Result<(), PeerError> {
    let offset = h.offset.get();
    if h.end().offset > taken.at.offset {
        return Err(PeerError::Diverged { offset });
    }
    let id = BatchId {
        epoch: Epoch(h.epoch.get()),
        log_id: LogId(h.log_id.get()),
        last_log_id: LogId(h.last_log_id.get()),
        header_crc: h.header_crc.get(),
    };
    let is_last = h.end().offset == taken.at.offset;
    match log.held(offset) {
        Some(held) if held != id => return Err(PeerError::Diverged { offset }),
        None if is_last && id.header_crc != taken.chain_crc => return Err(PeerError::Diverged { offset }),
        // It stands in a file only: a later batch of the run proves it, as each names the crc of the one before.
        None if !is_last => walk.unproven = true,
        _ => walk.unproven = false,
    }
    Ok(())
}
