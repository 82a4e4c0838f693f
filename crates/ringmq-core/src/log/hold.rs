//! Places of the log that the device refuses to read. That is no damage: nothing is skipped, and a reader of a batch there waits. The
//! store itself tries again, with growing pauses, with the blocks of that batch alone, until the batch is read, is found damaged, or is
//! removed by retention, also when no reader asks any more. At most one such try for each place is under way, and it never takes the
//! room of other reads.

use super::core_logs::Shared;
use super::notice::{Notice, PartitionIdx};
use super::partition::PartitionLog;
use super::reader::{Purpose, Reader};
use super::search::Searches;
use crate::base::{BLOCK, Now, Ticks};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A place that was refused so often is spoken of.
const TRIES_SAID: u32 = 3;
/// Tries of a core under way: a device that takes long to refuse must not take all the reads there may be.
const PROBES_MAX: usize = 8;
/// Bytes of the read cache that are kept for them.
pub(super) const PROBE_ROOM: usize = PROBES_MAX * BLOCK;

struct Hold {
    tries: u32,
    since: Ticks,
    /// `None` while it is tried.
    next_at: Option<Ticks>,
    error: String,
}

impl Hold {
    fn is_said(&self) -> bool {
        self.tries >= TRIES_SAID
    }
}

#[derive(Default)]
pub struct Holds {
    places: BTreeMap<(PartitionIdx, i64), Hold>,
    due: BTreeSet<(Ticks, PartitionIdx, i64)>,
}

impl Holds {
    pub fn is_held(&self, p: PartitionIdx, offset: i64) -> bool {
        !self.places.is_empty() && self.places.contains_key(&(p, offset))
    }

    /// Time at which a place is tried again.
    pub fn deadline(&self) -> Option<Ticks> {
        self.due.first().map(|d| d.0)
    }

    /// First place of the partition that cannot be read, in words, for /stats.
    pub fn describe(&self, p: PartitionIdx) -> Option<String> {
        let mut said = self.said(p);
        let (offset, hold) = said.next()?;
        let more = said.count();
        let more = if more > 0 { format!(", and at {more} more") } else { String::new() };
        Some(format!("at offset {offset} (tried {} times: {}){more}", hold.tries, hold.error))
    }

    fn said(&self, p: PartitionIdx) -> impl Iterator<Item = (i64, &Hold)> {
        self.places.range((p, i64::MIN)..=(p, i64::MAX)).filter(|(_, h)| h.is_said()).map(|(&(_, o), h)| (o, h))
    }

    pub fn forget(&mut self, p: PartitionIdx) {
        self.places.retain(|&(q, _), _| q != p);
        self.due.retain(|&(_, q, _)| q != p);
    }

    fn schedule(&mut self, p: PartitionIdx, offset: i64, at: Ticks) {
        let hold = self.places.get_mut(&(p, offset)).expect("what is scheduled is held");
        if let Some(old) = hold.next_at.replace(at) {
            self.due.remove(&(old, p, offset));
        }
        self.due.insert((at, p, offset));
    }

    fn remove(&mut self, p: PartitionIdx, offset: i64) -> Option<Hold> {
        let hold = self.places.remove(&(p, offset))?;
        if let Some(at) = hold.next_at {
            self.due.remove(&(at, p, offset));
        }
        Some(hold)
    }
}

/// Pause after this many tries.
fn pause(tries: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << (tries.max(1) - 1).min(16)).min(PAUSE_MAX)
}

impl Reader {
    /// The batch at `offset` could not be read.
    pub(super) fn hold(
        &mut self,
        now: Now,
        p: PartitionIdx,
        offset: i64,
        error: String,
        log: &PartitionLog,
        notices: &mut Vec<Notice>,
    ) {
        if log.is_leaving() {
            return; // Nobody wants to read it.
        }
        let was_said = self.holds.said(p).next().is_some();
        let new = Hold { tries: 0, since: now.ticks, next_at: None, error: String::new() };
        let hold = self.holds.places.entry((p, offset)).or_insert(new);
        hold.tries = hold.tries.saturating_add(1);
        hold.error = error;
        let (tries, is_said) = (hold.tries, hold.is_said());
        self.holds.schedule(p, offset, now.ticks + pause(tries));
        if is_said && !was_said {
            let (dir, error) = (&log.dir, &self.holds.places[&(p, offset)].error);
            tracing::error!(topic = %dir.topic, partition = %dir.partition, offset, error,
                "a read keeps failing: channels of this partition hold there and skip nothing; the read is tried again; check the device");
        }
        notices.push(Notice::Readable { p });
    }

    /// The place was read, was judged, or is gone. Nothing happens when it is not held.
    pub(super) fn release(&mut self, now: Now, p: PartitionIdx, offset: i64, log: &PartitionLog, notices: &mut Vec<Notice>) {
        let Some(hold) = self.holds.remove(p, offset) else { return };
        if hold.is_said() && self.holds.said(p).next().is_none() {
            let dir = &log.dir;
            let (tries, seconds) = (hold.tries, now.ticks.since(hold.since).as_secs());
            tracing::info!(topic = %dir.topic, partition = %dir.partition, offset, tries, seconds,
                "reads of this partition succeed again: its channels go on");
        }
        notices.push(Notice::Readable { p });
    }

    /// Tries again the places that are due, unless a search for the end of the batch there is under way.
    pub(super) fn retry_holds(&mut self, now: Now, searches: &Searches, shared: &mut Shared<'_>) {
        while let Some(&(at, p, offset)) = self.holds.due.first() {
            if at > now.ticks {
                return;
            }
            let log = shared.log(p);
            let is_settled =
                log.start().offset > offset || log.damage.lost_at(offset).is_some() || log.recent_at(offset).is_some();
            let Some(limit) = log.readable_limit(offset).filter(|_| !is_settled) else {
                self.release(now, p, offset, &shared.logs[p.0 as usize], shared.notices);
                continue;
            };
            let is_busy = log.reading.is_under_way(offset) || searches.is_for_extent_of(p, offset);
            if is_busy || self.probes() >= PROBES_MAX || !self.has_probe_room() {
                self.holds.schedule(p, offset, now.ticks + PAUSE_MIN);
                continue;
            }
            self.holds.due.pop_first();
            self.holds.places.get_mut(&(p, offset)).expect("what is due is held").next_at = None;
            self.start_read(p, offset, limit, Purpose::Probe, shared);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        assert_eq!([1, 2, 3, 7, 8, u32::MAX].map(|n| pause(n).as_millis()), [100, 200, 400, 6400, 10_000, 10_000]);
    }
}
