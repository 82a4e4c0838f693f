//! The cursors of a partition during recovery, and the effect of journal records on them.

use crate::base::{ChannelName, LogId, Position};
use crate::format::cursor::{CursorImage, Interval};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Number of FINs that wait at least before they are brought into their cursors.
const FINISHED_MIN: usize = 1 << 16;

/// The channels of one partition. FINs wait until something else happens to a channel, or until as many wait as the cursors have
/// intervals: bringing them in costs a walk over all intervals of their channels.
#[derive(Default)]
pub struct Channels {
    known: Vec<CursorImage>,
    /// Cursors that only FINs tell of.
    unfounded: Vec<CursorImage>,
    /// FINs that wait, by channel and generation.
    waiting: BTreeMap<(ChannelName, u64), CursorImage>,
    /// Number of intervals in `waiting`.
    waiting_intervals: usize,
}

impl Channels {
    pub fn of(known: Vec<CursorImage>) -> Channels {
        Channels { known, ..Channels::default() }
    }

    pub fn list(&self) -> &[CursorImage] {
        &self.known
    }

    pub fn into_list(self) -> Vec<CursorImage> {
        self.known
    }

    /// A cursor as its record says. `start`: of the log, here and below.
    pub fn set(&mut self, image: CursorImage, start: Position) {
        self.settle(start);
        self.unfounded.retain(|c| c.name != image.name);
        match self.known.iter_mut().find(|c| c.name == image.name) {
            Some(known) => *known = image,
            None => self.known.push(image),
        }
    }

    pub fn delete(&mut self, name: &ChannelName, start: Position) {
        self.settle(start);
        self.known.retain(|c| c.name != *name);
        self.unfounded.retain(|c| c.name != *name);
    }

    /// FINs of one channel.
    pub fn finish(&mut self, image: CursorImage, start: Position) {
        self.waiting_intervals += image.intervals.len();
        let key = (image.name.clone(), image.generation);
        match self.waiting.entry(key) {
            Entry::Vacant(new) => drop(new.insert(image)),
            Entry::Occupied(known) => known.into_mut().intervals.extend(image.intervals),
        }
        if self.waiting_intervals > FINISHED_MIN {
            let known: usize = self.known.iter().map(|c| c.intervals.len()).sum();
            if self.waiting_intervals > known {
                self.settle(start);
            }
        }
    }

    /// Brings the FINs that wait into their cursors.
    fn settle(&mut self, start: Position) {
        self.waiting_intervals = 0;
        // Lower generations of a channel come first: they say nothing of a higher one.
        std::mem::take(&mut self.waiting).into_values().for_each(|image| self.bring_in(image, start));
    }

    fn bring_in(&mut self, image: CursorImage, start: Position) {
        for known in [&mut self.known, &mut self.unfounded] {
            match known.iter_mut().find(|c| c.name == image.name) {
                Some(c) if c.generation == image.generation => return confirm(c, &image.intervals),
                Some(c) if c.generation > image.generation => return,
                _ => {}
            }
        }
        let mut cursor = reborn(&image, start);
        confirm(&mut cursor, &image.intervals);
        self.unfounded.retain(|c| c.name != image.name);
        self.unfounded.push(cursor);
    }

    /// Takes the cursors that only FINs told of. Behind all records.
    pub fn take_unfounded(&mut self, start: Position) -> Vec<CursorImage> {
        self.settle(start);
        std::mem::take(&mut self.unfounded)
    }

    /// A cursor that only FINs told of is the channel's.
    pub fn adopt(&mut self, cursor: CursorImage) {
        self.known.retain(|c| c.name != cursor.name);
        self.known.push(cursor);
    }

    /// The topic's first channel, as partition 0 has it, begins at `oldest` if it is missing. Whether it was.
    pub fn complete_first(&mut self, first: &CursorImage, oldest: Position) -> bool {
        let is_missing = self.known.iter().all(|c| c.name != first.name);
        if is_missing {
            self.known.push(CursorImage { generation: 0, ..reborn(first, oldest) });
        }
        is_missing
    }

    /// Brings every cursor back to a log that ends at `end`. Returns how many stood behind it.
    pub fn clamp(&mut self, end: Position, start: Position) -> usize {
        self.settle(start);
        self.known.iter_mut().chain(&mut self.unfounded).map(|cursor| clamp(cursor, end) as usize).sum()
    }
}

/// Adds confirmed intervals to a cursor and moves it over those that follow without a gap. Adding one twice changes nothing. Takes the
/// time of one walk over all its intervals, however many are added.
pub fn confirm(cursor: &mut CursorImage, intervals: &[Interval]) {
    let all = &mut cursor.intervals;
    all.extend(intervals.iter().filter(|i| i.start < i.end.log_id));
    // Two sorted runs are merged.
    all.sort_by_key(|i| i.start);
    Interval::join(all);
    let passed = all.partition_point(|i| i.start <= cursor.confirmed.log_id);
    for interval in all.drain(..passed) {
        if interval.end.log_id > cursor.confirmed.log_id {
            cursor.confirmed = interval.end;
        }
    }
}

/// A cursor that a snapshot lost and of which only confirmed intervals are known: everything else comes again.
pub fn reborn(image: &CursorImage, start: Position) -> CursorImage {
    CursorImage { confirmed: start, intervals: vec![], ..image.clone() }
}

/// Brings a cursor back to a log that ends before it.
pub fn clamp(cursor: &mut CursorImage, end: Position) -> bool {
    let beyond = cursor.confirmed.offset > end.offset || cursor.intervals.iter().any(|i| i.end.offset > end.offset);
    if beyond {
        if cursor.confirmed.offset > end.offset {
            cursor.confirmed = end;
        }
        cursor.intervals.retain(|i| i.end.offset <= end.offset && i.start > cursor.confirmed.log_id);
    }
    beyond
}

/// Whether a message is confirmed, for tests.
pub fn is_confirmed(cursor: &CursorImage, id: LogId) -> bool {
    let after = cursor.intervals.partition_point(|i| i.start <= id);
    id < cursor.confirmed.log_id || after > 0 && id < cursor.intervals[after - 1].end.log_id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, Rng};

    fn at(n: u64) -> Position {
        Position { offset: n as i64 * 100, count: n as i64 - 1, log_id: LogId(n) }
    }

    #[test]
    fn intervals_add_up_in_any_order() {
        let mut rng = Rng::new(1);
        for _ in 0..500 {
            let mut cursor = CursorImage::new(ChannelName::new("c").unwrap(), Epoch(0), 0, at(1));
            let mut model = [false; 40];
            for _ in 0..rng.below(30) {
                let start = 1 + rng.below(30);
                let end = start + 1 + rng.below(5);
                (start..end).for_each(|i| model[i as usize] = true);
                confirm(&mut cursor, &[Interval { start: LogId(start), end: at(end) }]);
            }
            for id in 1..40 {
                assert_eq!(is_confirmed(&cursor, LogId(id)), model[id as usize], "{id} {cursor:?}");
            }
            assert!(cursor.intervals.windows(2).all(|w| w[0].end.log_id < w[1].start), "{cursor:?}");
            assert!(cursor.intervals.iter().all(|i| i.start > cursor.confirmed.log_id));
        }
    }
}
