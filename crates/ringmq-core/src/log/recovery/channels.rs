//! What a journal's small facts do to the cursors of a partition.

use crate::base::{ChannelName, LogId, Position};
use crate::format::cursor::{CursorImage, Interval};

/// Adds confirmed intervals to a cursor and moves it over what is confirmed without a gap. Adding one twice changes nothing. Takes
/// the time of one walk over all its intervals, however many are added.
pub fn confirm(cursor: &mut CursorImage, intervals: &[Interval]) {
    let all = &mut cursor.intervals;
    all.extend(intervals.iter().filter(|i| i.start < i.end.log_id));
    // Two sorted runs are merged.
    all.sort_by_key(|i| i.start);
    all.dedup_by(|next, kept| {
        let joined = next.start <= kept.end.log_id;
        if joined && next.end.log_id > kept.end.log_id {
            kept.end = next.end;
        }
        joined
    });
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

pub fn position(channels: &[CursorImage], name: &ChannelName) -> Option<usize> {
    channels.iter().position(|c| c.name == *name)
}

/// Messages confirmed, for tests.
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
            let mut cursor = CursorImage {
                name: ChannelName::new("c").unwrap(),
                paused: false,
                ordered: false,
                first: false,
                epoch: Epoch(0),
                generation: 0,
                confirmed: at(1),
                intervals: vec![],
                handed: vec![],
            };
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
