//! Figures of a channel on one partition: numbers of events, and the times from publish to FIN. They begin when the channel is made.

use super::flights::Flight;
use crate::base::{Position, Ticks};
use crate::metrics::end_to_end::Window;
use crate::metrics::stats::ChannelStats;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Figures {
    /// Messages before the place where the channel stood when it was made.
    began: i64,
    requeue_count: u64,
    timeout_count: u64,
    /// Messages that an ephemeral channel did not wait for.
    dropped_count: u64,
    end_to_end: Option<Box<Window>>,
}

impl Figures {
    /// `window`: of the times from publish to FIN, which are not measured without one.
    pub(super) fn new(began: i64, window: Option<Duration>) -> Figures {
        let end_to_end = window.map(|length| Box::new(Window::new(length, Ticks::default())));
        Figures { began, requeue_count: 0, timeout_count: 0, dropped_count: 0, end_to_end }
    }

    pub(super) fn requeued(&mut self, num: u64) {
        self.requeue_count += num;
    }

    pub(super) fn timed_out(&mut self, num: u64) {
        self.timeout_count += num;
    }

    pub(super) fn dropped(&mut self, num: u64) {
        self.dropped_count += num;
    }

    /// The client of the flight finished its `num` messages.
    #[inline]
    pub(super) fn finished(&mut self, now: Ticks, flight: &Flight, num: u64) {
        if let Some(window) = &mut self.end_to_end {
            let took = now.since(flight.delivered) + Duration::from_secs_f32(flight.age_s);
            window.record(now, took, num);
        }
    }

    /// Forgets the times from publish to FIN that are older than their window.
    pub(super) fn move_window(&mut self, now: Ticks) {
        self.end_to_end.iter_mut().for_each(|window| window.move_on(now));
    }

    /// Statistics of a channel whose log ends at `end`; the others are zero.
    pub(super) fn stats(&self, end: Position) -> ChannelStats {
        ChannelStats {
            message_count: u64::try_from(end.count - self.began).unwrap_or(0),
            requeue_count: self.requeue_count,
            timeout_count: self.timeout_count,
            dropped_count: self.dropped_count,
            end_to_end: self.end_to_end.as_ref().map(|window| window.sample()),
            ..ChannelStats::default()
        }
    }
}
