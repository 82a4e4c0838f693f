//! The highest rate that keeps p99 below a limit: doubles until it breaks, then halves the gap.

use super::options::Options;
use super::result::{Ramp, Step};
use super::run::{self, Finished};
use super::table;
use std::time::Duration;

const RATE_START: f64 = 1000.0;
const RATE_MIN: f64 = 1.0;

/// The answer is this near to the first rate that broke.
const PRECISION: f64 = 0.05;
const STEPS_MAX: usize = 40;

/// A step that does not reach its rate has not kept it, whatever its latency.
const RATE_REACHED: f64 = 0.98;

/// Which rate to try next, given what was found out.
#[derive(Clone, Copy, Debug)]
struct Search {
    next: f64,
    /// The highest kept and the lowest broken one.
    kept: Option<f64>,
    broken: Option<f64>,
}

impl Search {
    fn new(start: f64) -> Self {
        Search { next: start, kept: None, broken: None }
    }

    /// None: the search is over.
    fn after(self, kept: bool) -> Option<Search> {
        let mut now = self;
        *(if kept { &mut now.kept } else { &mut now.broken }) = Some(self.next);
        now.next = match (now.kept, now.broken) {
            (Some(kept), None) => kept * 2.0,
            (None, Some(broken)) => broken / 2.0,
            (Some(kept), Some(broken)) => (kept + broken) / 2.0,
            (None, None) => now.next,
        };
        let near = now.kept.zip(now.broken).is_some_and(|(kept, broken)| broken - kept <= broken * PRECISION);
        (!near && now.next >= RATE_MIN).then_some(now)
    }
}

/// The run of the best step; when none kept the limit, the last.
pub fn ramp(options: &Options, limit: Duration) -> Result<Finished, String> {
    let limit_us = limit.as_secs_f64() * 1e6;
    let mut steps = Vec::new();
    let mut best: Option<Finished> = None;
    let mut search = Some(Search::new(options.rate.unwrap_or(RATE_START)));
    let mut last = None;
    while let Some(now) = search.filter(|_| steps.len() < STEPS_MAX) {
        let finished = run::run(&Options { rate: Some(now.next), quiet: true, ..options.clone() })?;
        let step = judge(now.next, &finished, limit_us);
        if !options.quiet {
            let word = if step.kept { "kept" } else { "broken" };
            eprintln!("  rate {:.0}: {:.0} msg/s, p99 {}: {word}", step.rate, step.messages_per_second, table::time(step.p99_us));
        }
        search = now.after(step.kept);
        if step.kept && best.as_ref().is_none_or(|best| best.run.setup.rate < Some(step.rate)) {
            best = Some(finished);
        } else {
            last = Some(finished);
        }
        steps.push(step);
    }
    let found = best.as_ref().and_then(|best| best.run.setup.rate);
    let mut finished = best.or(last).ok_or("the ramp made no step")?;
    finished.run.ramp = Some(Ramp { p99_limit_us: limit_us, found, steps });
    Ok(finished)
}

fn judge(rate: f64, finished: &Finished, limit_us: f64) -> Step {
    let run = &finished.run;
    let latency = run.end_to_end_latency.as_ref().or(run.publish_latency.as_ref());
    let p99_us = latency.map_or(f64::MAX, |latency| latency.p99_us);
    let messages_per_second = run.published.as_ref().map_or(0.0, |flow| flow.messages_per_second);
    let kept = p99_us <= limit_us && messages_per_second >= rate * RATE_REACHED && run.errors.is_empty();
    Step { rate, messages_per_second, p99_us, kept }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(start: f64, limit: f64) -> (Option<f64>, usize) {
        let (mut search, mut steps, mut best) = (Some(Search::new(start)), 0, None);
        while let Some(now) = search.filter(|_| steps < STEPS_MAX) {
            steps += 1;
            let kept = now.next <= limit;
            best = if kept { Some(now.next) } else { best };
            search = now.after(kept);
        }
        (best, steps)
    }

    #[test]
    fn it_comes_near_from_below_and_from_above() {
        for start in [1.0, 1000.0, 1e7] {
            for limit in [3.0, 777.0, 123_456.0] {
                let (best, steps) = found(start, limit);
                let best = best.expect("there is one");
                assert!(best <= limit && best >= limit * 0.94, "{start} {limit}: {best}");
                assert!(steps < 35, "{start} {limit}: {steps} steps");
            }
        }
        assert_eq!(found(1000.0, 0.0).0, None);
    }
}
