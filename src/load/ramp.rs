//! The highest rate that keeps p99 below a limit: doubles until it breaks, then halves the gap.

use super::options::Options;
use super::result::{Ramp, RampStep, Run};
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

/// Rate to try next, from the findings so far.
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

    /// Next state; `None`: the search is over.
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
        let step = judge(now.next, &finished.run, limit_us);
        if !options.quiet {
            eprintln!("  {}", line(&step));
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

/// Judges a step; a step that consumes is judged by its deliveries alone.
fn judge(rate: f64, run: &Run, limit_us: f64) -> RampStep {
    let latency = if run.delivered.is_some() { &run.end_to_end_latency } else { &run.publish_latency };
    // None: nothing was timed
    let p99_us = latency.as_ref().map(|latency| latency.p99_us);
    let messages_per_second = run.published.as_ref().map_or(0.0, |flow| flow.messages_per_second);
    let mut broke = Vec::new();
    match p99_us {
        None => broke.push("nothing was timed".into()),
        Some(p99) if p99 > limit_us => broke.push(format!("p99 is above {}", table::time(limit_us))),
        Some(_) => {}
    }
    if messages_per_second < rate * RATE_REACHED {
        broke.push(format!("the rate is below {:.0}, {:.0} % of the planned rate", rate * RATE_REACHED, RATE_REACHED * 100.0));
    }
    if run.undelivered > 0 {
        broke.push(format!("{} undelivered", run.undelivered));
    }
    broke.extend(run.errors.iter().map(|error| format!("{} x {}", error.count, error.text)));
    let (undelivered, kept) = (run.undelivered, broke.is_empty());
    RampStep { rate, messages_per_second, p99_us: p99_us.unwrap_or(f64::MAX), undelivered, kept, broke }
}

/// Result of a step in one line, with the reason where it is not kept.
pub fn line(step: &RampStep) -> String {
    let (rate, reached) = (step.rate, step.messages_per_second);
    let p99 = if step.p99_us < f64::MAX { table::time(step.p99_us) } else { "none".into() };
    let word = if step.kept { "kept".into() } else { format!("broken: {}", step.broke.join("; ")) };
    format!("rate {rate:.0}: {reached:.0} msg/s, p99 {p99}: {word}")
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
    fn what_breaks_a_step_is_said() {
        let flow =
            |rate: u64| serde_json::json!({"messages": rate, "bytes": 0, "messages_per_second": rate, "megabytes_per_second": 0});
        let latency = |us: u64| {
            serde_json::json!({"count": 1, "mean_us": us, "p50_us": us, "p90_us": us, "p99_us": us, "p99_9_us": us, "p99_99_us": us,
                "max_us": us, "percentiles": []})
        };
        let base: Run = serde_json::from_value(serde_json::json!({
            "format": 1, "label": "", "started_unix_ms": 0, "seconds": 1, "behind": 0, "undelivered": 0, "errors": [], "series": [],
            "target": {"address": "", "protocol": "nsq"}, "published": flow(100), "publish_latency": latency(5),
            "setup": {"mode": "produce", "size": "1", "batch": 1, "connections": 1, "consumers": 0, "in_flight": 1, "topics": 1,
                "channels": 1, "rdy": 1, "warm_up_seconds": 0, "threads": 1,
                "duration_seconds": 1, "verify": false},
            "generator": {"cpu_seconds": 0, "busy": 0},
        }))
        .expect("a run has these fields");
        let both = Run {
            delivered: serde_json::from_value(flow(100)).expect("a flow"),
            end_to_end_latency: serde_json::from_value(latency(7)).expect("a latency"),
            ..base.clone()
        };
        let kept = |run: &Run, limit: f64| judge(100.0, run, limit).kept;
        assert!(kept(&base, 5.0) && !kept(&base, 4.0) && !judge(103.0, &base, 5.0).kept);
        assert!(kept(&both, 7.0) && !kept(&both, 6.0), "by the delivery");
        assert!(!kept(&Run { end_to_end_latency: None, ..both.clone() }, 1e9), "nothing was delivered");
        assert!(!kept(&Run { undelivered: 1, ..both.clone() }, 1e9));

        let error = serde_json::from_value(serde_json::json!([{"count": 3, "text": "E_BAD"}])).expect("errors");
        let why = |rate: f64, run: &Run, limit: f64| judge(rate, run, limit).broke.join("; ");
        assert_eq!(why(100.0, &base, 5.0), "");
        assert_eq!(why(100.0, &base, 4.0), "p99 is above 4us");
        assert_eq!(why(200.0, &base, 5.0), "the rate is below 196, 98 % of the planned rate");
        assert_eq!(
            why(100.0, &Run { undelivered: 2, errors: error, ..both.clone() }, 6.0),
            "p99 is above 6us; 2 undelivered; 3 x E_BAD"
        );
        let untimed = judge(100.0, &Run { end_to_end_latency: None, ..both }, 1e9);
        assert_eq!(line(&untimed), "rate 100: 100 msg/s, p99 none: broken: nothing was timed");
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
