//! What a journal's small facts do to the cursors of a partition.

use crate::base::{ChannelName, LogId, Position};
use crate::log::cursor::{CursorImage, Interval};

/// Adds confirmed intervals to a cursor and moves it over what is confirmed without a gap. Adding one twice changes nothing.
pub fn confirm(cursor: &mut CursorImage, intervals: &[Interval]) {
    for &new in intervals {
        if new.start < new.end.log_id {
            insert(&mut cursor.intervals, new);
        }
    }
    let passed = cursor.intervals.iter().take_while(|i| i.start <= cursor.confirmed.log_id).count();
    for interval in cursor.intervals.drain(..passed) {
        if interval.end.log_id > cursor.confirmed.log_id {
            cursor.confirmed = interval.end;
        }
    }
    // Moving the cursor may have reached further intervals.
    if cursor.intervals.first().is_some_and(|i| i.start <= cursor.confirmed.log_id) {
        confirm(cursor, &[]);
    }
}

/// Keeps the list ascending, disjoint and not touching.
fn insert(intervals: &mut Vec<Interval>, new: Interval) {
    let from = intervals.partition_point(|i| i.end.log_id < new.start);
    let to = from + intervals[from..].iter().take_while(|i| i.start <= new.end.log_id).count();
    let merged = intervals[from..to]
        .iter()
        .fold(new, |m, i| Interval { start: m.start.min(i.start), end: if i.end.log_id > m.end.log_id { i.end } else { m.end } });
    intervals.splice(from..to, [merged]);
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
    id < cursor.confirmed.log_id || cursor.intervals.iter().any(|i| i.start <= id && id < i.end.log_id)
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
