//! Account of the time of a slow turn. A turn that holds a core holds all its partitions, so any turn longer than the setting is logged
//! with its parts: events (socket, mesh and disk completions, each stepped), deciding at the turn's end, carrying out. A process that
//! was stopped or lost its CPU shows up too, and looks like one part that took it all.

use crate::metrics::Latency;
use crate::metrics::stats::TurnStats;
use std::time::{Duration, Instant};

/// Interval of the log: more long turns than one per second are counted, not logged.
const LOG_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCounts {
    pub net_events: usize,
    pub messages: usize,
    pub disk_completions: usize,
    pub effects: usize,
}

/// The moments of one turn.
#[derive(Clone, Copy, Debug)]
pub struct TurnTimes {
    pub begun: Instant,
    pub events: Instant,
    pub decided: Instant,
    pub carried: Instant,
}

pub struct StallDetector {
    core: u16,
    limit: Duration,
    logged: Option<Instant>,
    unlogged: u64,
    /// Slow turns since startup.
    pub stalls: u64,
    pub longest: Duration,
    /// Time of all turns together.
    busy: Duration,
    /// Time of each turn.
    pub turns: Latency,
}

impl StallDetector {
    pub fn new(core: u16, limit: Duration) -> Self {
        StallDetector {
            core,
            limit,
            logged: None,
            unlogged: 0,
            stalls: 0,
            longest: Duration::ZERO,
            busy: Duration::ZERO,
            turns: Latency::new(),
        }
    }

    pub fn core(&self) -> u16 {
        self.core
    }

    /// Notes one turn; true when it was slow.
    pub fn turn(&mut self, times: TurnTimes, counts: TurnCounts) -> bool {
        let total = times.carried - times.begun;
        self.turns.record(total);
        self.busy += total;
        self.longest = self.longest.max(total);
        if total < self.limit {
            return false;
        }
        self.stalls += 1;
        if self.logged.is_some_and(|at| times.carried - at < LOG_EVERY) {
            self.unlogged += 1;
            return true;
        }
        let ms = |d: Duration| d.as_secs_f64() * 1e3;
        tracing::warn!(
            core = self.core,
            total_ms = ms(total),
            events_ms = ms(times.events - times.begun),
            step_ms = ms(times.decided - times.events),
            carry_ms = ms(times.carried - times.decided),
            net_events = counts.net_events,
            messages = counts.messages,
            disk_completions = counts.disk_completions,
            effects = counts.effects,
            not_logged_before = std::mem::take(&mut self.unlogged),
            "a turn was longer than --stall-log: everything on this core waited for it"
        );
        self.logged = Some(times.carried);
        true
    }

    /// Figures for /stats.
    pub fn stats(&self) -> TurnStats {
        let us = |share| self.turns.quantile(share).as_micros() as u64;
        TurnStats {
            count: self.turns.count(),
            busy_us: self.busy.as_micros() as u64,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: self.longest.as_micros() as u64,
            stalls: self.stalls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slow_turns_are_stalls() {
        let mut detector = StallDetector::new(0, Duration::from_millis(10));
        let begun = Instant::now();
        let turn = |ms: u64| {
            let carried = begun + Duration::from_millis(ms);
            TurnTimes { begun, events: begun, decided: carried, carried }
        };
        assert!(!detector.turn(turn(9), TurnCounts::default()));
        assert!(detector.turn(turn(10), TurnCounts::default()));
        assert!(detector.turn(turn(500), TurnCounts::default()), "counted, though too soon for the log");
        assert_eq!((detector.stalls, detector.unlogged, detector.turns.count()), (2, 1, 3));
        let stats = detector.stats();
        assert_eq!((stats.count, stats.stalls, stats.max_us, stats.busy_us), (3, 2, 500_000, 519_000));
        assert!((9_900..=10_100).contains(&stats.p50_us), "{stats:?}");
        assert_eq!(detector.longest, Duration::from_millis(500));
    }
}
