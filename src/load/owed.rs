//! Messages that were acknowledged and have not come, by their due time: the deliveries that no consumer can time.

use super::shared::Course;
use std::sync::atomic::{AtomicI64, Ordering};

/// Slices of the measured time at most, each of at least a millisecond; the owed publishes are known for each.
const SLICES_MAX: u64 = 65_536;
const SLICE_NS_MIN: u64 = 1_000_000;

/// Deliveries of messages that are due within the measured time. An acknowledgement may come after the delivery: a slice is below
/// zero then for a while.
pub struct OwedDeliveries {
    course: Course,
    slice_ns: u64,
    slices: Vec<AtomicI64>,
}

impl OwedDeliveries {
    pub fn new(course: Course) -> Self {
        let len = course.end - course.measure;
        let slice_ns = len.div_ceil(SLICES_MAX).max(SLICE_NS_MIN);
        let slices = (0..len.div_ceil(slice_ns)).map(|_| AtomicI64::new(0)).collect();
        OwedDeliveries { course, slice_ns, slices }
    }

    pub fn acknowledged(&self, due_ns: u64, deliveries: u64) {
        self.add(due_ns, deliveries as i64);
    }

    pub fn delivered(&self, due_ns: u64, deliveries: u64) {
        self.add(due_ns, -(deliveries as i64));
    }

    fn add(&self, due_ns: u64, deliveries: i64) {
        if self.course.measures(due_ns) {
            self.slices[((due_ns - self.course.measure) / self.slice_ns) as usize].fetch_add(deliveries, Ordering::Relaxed);
        }
    }

    /// Number of undelivered messages, and the time at which the latest was due.
    pub fn left(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counts = self.slices.iter().map(|slice| slice.load(Ordering::Relaxed));
        counts.enumerate().filter(|(_, count)| *count > 0).map(|(i, count)| {
            let end = self.course.measure + (i as u64 + 1) * self.slice_ns;
            (count as u64, end.min(self.course.end))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_come_is_known_with_when_it_was_due() {
        const S: u64 = 1_000_000_000;
        let owed = OwedDeliveries::new(Course { start: 7 * S, measure: 8 * S, end: 10 * S });
        // before and after the measured time
        owed.acknowledged(8 * S - 1, 5);
        owed.acknowledged(10 * S, 5);
        assert_eq!(owed.left().count(), 0);
        owed.delivered(9 * S, 3);
        assert_eq!(owed.left().count(), 0, "not acknowledged yet");
        owed.acknowledged(9 * S, 10);
        owed.acknowledged(10 * S - 1, 2);
        assert_eq!(owed.left().collect::<Vec<_>>(), [(7, 9 * S + SLICE_NS_MIN), (2, 10 * S)]);
        owed.delivered(9 * S, 7);
        owed.delivered(10 * S - 1, 2);
        assert_eq!(owed.left().count(), 0);
    }

    #[test]
    fn a_day_takes_no_more_memory() {
        let course = Course { start: 0, measure: 5, end: 5 + 24 * 3600 * 1_000_000_000 };
        let owed = OwedDeliveries::new(course);
        assert!(owed.slices.len() as u64 <= SLICES_MAX);
        owed.acknowledged(course.end - 1, 1);
        assert_eq!(owed.left().collect::<Vec<_>>(), [(1, course.end)]);
    }
}
