//! One run from the first connection to the result: starts the threads, collects once a second, ends them.

use super::ledger::Verdict;
use super::options::{Mode, Options, Protocol};
use super::owed::OwedDeliveries;
use super::process::{self, Usage};
use super::record::{self, Count, LoadFigures, Recorder};
use super::result::{self, ErrorCount, Flow, Generator, Latency, Run, Second, Server, Setup, Target};
use super::shared::{Course, Phase, RunContext};
use super::worker::{Report, Worker};
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Interval of checks of the end and of the server's memory.
const TICK: Duration = Duration::from_millis(100);
const LINE_EVERY_NS: u64 = 1_000_000_000;

/// Deliveries that do not come for this long are not waited for, unless they are verified.
const QUIET_LIMIT: Duration = Duration::from_secs(1);

/// Lets every thread begin together.
const START_AFTER_NS: u64 = 20_000_000;

pub struct Finished {
    pub run: Run,
    pub seen: Box<LoadFigures>,
}

struct Running {
    shared: Arc<RunContext>,
    recorders: Vec<Arc<Recorder>>,
    threads: Vec<JoinHandle<()>>,
    phase: watch::Sender<Phase>,
    reports: mpsc::Receiver<Report>,
    /// Threads whose part is over.
    published: usize,
    consumed: usize,
    all: Box<LoadFigures>,
    /// Spare buffers, both empty between two uses. They are kept, since the pages of new ones would be touched while the server is
    /// measured.
    spare: Box<LoadFigures>,
    part: Option<Box<LoadFigures>>,
    kind: Option<String>,
    version: Option<String>,
    series: Vec<Second>,
    last_line_ns: u64,
    rss_max: u64,
    coming: Coming,
}

/// Time at which a delivery last came.
struct Coming {
    came: u64,
    at: Option<Instant>,
}

impl Coming {
    fn look(&mut self, came: u64, now: Instant) {
        if came > self.came {
            *self = Coming { came, at: Some(now) };
        }
    }

    fn within(&self, limit: Duration, now: Instant) -> bool {
        self.at.is_some_and(|at| now.duration_since(at) <= limit)
    }
}

/// Blocks for the whole run.
pub fn run(options: &Options) -> Result<Finished, String> {
    let mut running = Running::start(Arc::new(RunContext::new(options.clone())))?;
    let result = running.go();
    // Also after a failure nothing goes on in the background.
    let _ = running.phase.send(Phase::Stop);
    for thread in std::mem::take(&mut running.threads) {
        thread.join().map_err(|_| "a thread of the generator panicked")?;
    }
    Ok(running.finish(result?))
}

struct EndedRun {
    course: Course,
    used: CpuUsed,
    /// Deliveries that were waited for came up to the end of the wait, and not all of them.
    still_coming: bool,
}

/// CPU time over the measured part.
struct CpuUsed {
    own: f64,
    server: Option<(f64, Usage)>,
}

impl Running {
    fn start(shared: Arc<RunContext>) -> Result<Self, String> {
        let options = &shared.options;
        // at the start, as it may be gone at the end
        let kind = match options.protocol {
            Protocol::Native => Some("RingMQ".into()),
            Protocol::Nsq => options.server_pid.and_then(process::name),
        };
        if let Some(pid) = options.server_pid {
            process::usage(pid).map_err(|e| format!("--server-pid={pid}: {e}"))?;
        }
        let (phase, receiver) = watch::channel(Phase::Connect);
        let (sender, reports) = mpsc::channel();
        let producers = if options.mode.produces() { options.producers } else { 0 };
        let consumers = if options.mode.consumes() { options.consumers } else { 0 };
        let count = options.threads.min(producers.max(consumers) as usize);
        let share = |of: u32, thread: usize| (0..of).filter(|i| *i as usize % count == thread).collect();
        let mut recorders = Vec::new();
        let mut threads = Vec::new();
        for number in 0..count {
            let recorder = Arc::new(Recorder::new());
            recorders.push(recorder.clone());
            let worker = Worker {
                shared: shared.clone(),
                recorder,
                producers: share(producers, number),
                consumers: share(consumers, number),
                phase: receiver.clone(),
                reports: sender.clone(),
            };
            let thread = thread::Builder::new().name(format!("load-{number}")).spawn(|| worker.run());
            threads.push(thread.map_err(|e| format!("a thread cannot be started: {e}"))?);
        }
        Ok(Running {
            recorders,
            threads,
            phase,
            reports,
            published: 0,
            consumed: 0,
            all: Box::new(LoadFigures::new()),
            spare: Box::new(LoadFigures::new()),
            part: Some(Box::new(LoadFigures::new())),
            kind,
            version: None,
            series: Vec::new(),
            last_line_ns: 0,
            rss_max: 0,
            coming: Coming { came: 0, at: None },
            shared,
        })
    }

    fn go(&mut self) -> Result<EndedRun, String> {
        for _ in 0..self.threads.len() {
            match self.reports.recv() {
                Ok(Report::Connected(version)) => self.version = version.or(self.version.take()),
                Ok(Report::Failed(error)) => return Err(format!("{}: {error}", self.shared.options.address)),
                Ok(_) | Err(_) => return Err("a thread of the generator ended early".into()),
            }
        }
        let options = &self.shared.options;
        let start = self.shared.clock.now() + START_AFTER_NS;
        let measure = start + options.warm_up.as_nanos() as u64;
        let course = Course { start, measure, end: measure + options.duration.as_nanos() as u64 };
        self.shared.set_course(course);
        self.sleep_until(start);
        self.last_line_ns = start;
        // Without a warm-up the first message is measured already: the CPU time is read before it leaves.
        let mut before = self.usages();
        let _ = self.phase.send(Phase::Load);
        if !options.warm_up.is_zero() {
            self.watch(course.measure, &course)?;
            before = self.usages();
            self.line(&course);
        }
        self.watch(course.end, &course)?;
        let after = self.usages();
        self.line(&course);
        let still_coming = self.drain()?;
        let server = before.1.zip(after.1).map(|(before, after)| (after.cpu_seconds - before.cpu_seconds, after));
        let used = CpuUsed { own: after.0 - before.0, server };
        Ok(EndedRun { course, used, still_coming })
    }

    fn sleep_until(&self, at: u64) {
        thread::sleep(Duration::from_nanos(at.saturating_sub(self.shared.clock.now())));
    }

    /// Watches the run until then, or until the work is done.
    fn watch(&mut self, until: u64, course: &Course) -> Result<(), String> {
        loop {
            self.take_reports(Duration::ZERO)?;
            let now = self.shared.clock.now();
            self.look();
            if now >= until || self.is_done() {
                return Ok(());
            }
            if let Some(usage) = self.server_usage() {
                self.rss_max = self.rss_max.max(usage.resident_bytes);
            }
            if now >= self.last_line_ns + LINE_EVERY_NS {
                self.line(course);
            }
            let next = (now + TICK.as_nanos() as u64).min(until).min(self.last_line_ns + LINE_EVERY_NS);
            self.take_reports(Duration::from_nanos(next - now))?;
        }
    }

    fn is_done(&self) -> bool {
        let threads = self.threads.len();
        match self.shared.options.mode {
            // The last messages may still be with the server.
            Mode::Both => self.published == threads && (self.consumed == threads || self.shared.all_came()),
            Mode::Produce => self.published == threads,
            Mode::Consume => self.consumed == threads || self.shared.is_spent(),
        }
    }

    fn take_reports(&mut self, wait: Duration) -> Result<(), String> {
        let mut next = self.reports.recv_timeout(wait).ok();
        while let Some(report) = next {
            match report {
                Report::Published => self.published += 1,
                Report::Consumed => self.consumed += 1,
                Report::Connected(_) => {}
                Report::Failed(error) => return Err(error),
            }
            next = self.reports.try_recv().ok();
        }
        Ok(())
    }

    fn look(&mut self) {
        if self.shared.options.mode == Mode::Both {
            self.coming.look(self.shared.came(), Instant::now());
        }
    }

    /// Waits for answers and deliveries that are still on their way; true when the wait is over and some still come.
    fn drain(&mut self) -> Result<bool, String> {
        let (begin, wait) = (Instant::now(), self.shared.options.drain);
        let (limit, both) = (begin + wait, self.shared.options.mode == Mode::Both);
        // Producers have a limit of their own, and say so shortly after it.
        while self.published < self.threads.len() {
            self.take_reports(TICK)?;
            self.look();
            if Instant::now() > limit + Duration::from_secs(5) {
                return Err("a thread of the generator does not end".into());
            }
        }
        while both && !self.shared.all_came() && Instant::now() < limit {
            self.look();
            let now = Instant::now();
            if !self.shared.options.verify && begin + QUIET_LIMIT < now && !self.coming.within(QUIET_LIMIT, now) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.look();
        // a short wait has seen the last one that was on its way not long ago
        let recent = (wait / 4).clamp(2 * TICK, QUIET_LIMIT);
        Ok(both && !self.shared.all_came() && self.coming.within(recent, Instant::now()))
    }

    fn server_usage(&self) -> Option<Usage> {
        // It was there at the start; when it is gone the connections say so.
        self.shared.options.server_pid.and_then(|pid| process::usage(pid).ok())
    }

    fn usages(&self) -> (f64, Option<Usage>) {
        (process::usage(std::process::id()).map_or(0.0, |usage| usage.cpu_seconds), self.server_usage())
    }

    /// Collects the figures since the last line, and writes a line.
    fn line(&mut self, course: &Course) {
        let now = self.shared.clock.now();
        let seconds = (now - self.last_line_ns) as f64 / 1e9;
        // The time before the measurement is no part of its plots; the two meet at its beginning.
        let warming = self.last_line_ns < course.measure;
        self.last_line_ns = now;
        let mut part = self.part.take().unwrap_or_else(|| Box::new(LoadFigures::new()));
        self.collect(&mut part);
        if seconds >= 0.01 {
            self.tell(&part, course, now, seconds, warming);
        }
        part.clear();
        self.part = Some(part);
    }

    fn tell(&mut self, part: &LoadFigures, course: &Course, now: u64, seconds: f64, warming: bool) {
        let timed = if part.end_to_end.is_empty() { &part.publish } else { &part.end_to_end };
        let at = |share| (!timed.is_empty()).then(|| result::us(timed.value_at_quantile(share)));
        let second = Second {
            at: now.saturating_sub(course.measure) as f64 / 1e9,
            published_per_second: part.published_ever.messages as f64 / seconds,
            delivered_per_second: part.delivered_ever.messages as f64 / seconds,
            p50_us: at(0.5),
            p99_us: at(0.99),
        };
        if !self.shared.options.quiet {
            self.print(&second, part, seconds, warming);
        }
        if !warming {
            self.series.push(second);
        }
    }

    fn print(&self, second: &Second, part: &LoadFigures, seconds: f64, warming: bool) {
        let mode = self.shared.options.mode;
        let mut line = if warming { "warm-up".to_string() } else { format!("{:6.1}s", second.at) };
        let mut flow = |name: &str, count: Count| {
            let flow = Flow::of(count, seconds);
            line += &format!("  {name} {:.0} msg/s {:.1} MB/s", flow.messages_per_second, flow.megabytes_per_second);
        };
        if mode.produces() {
            flow("published", part.published_ever);
        }
        if mode.consumes() {
            flow("delivered", part.delivered_ever);
        }
        if let (Some(p50), Some(p99)) = (second.p50_us, second.p99_us) {
            line += &format!("  p50 {} p99 {}", super::table::time(p50), super::table::time(p99));
        }
        let errors: u64 = part.errors.values().sum();
        if errors > 0 {
            line += &format!("  errors {errors}");
        }
        // A failed write of progress is no reason to stop.
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    fn collect(&mut self, part: &mut LoadFigures) {
        for recorder in &self.recorders {
            recorder.swap(&mut self.spare);
            part.merge(&self.spare);
            self.spare.clear();
        }
        self.all.merge(part);
    }

    fn finish(mut self, ended: EndedRun) -> Finished {
        let EndedRun { course, used, still_coming } = ended;
        self.collect(&mut LoadFigures::new());
        let (shared, mut seen) = (self.shared, self.all);
        let undelivered = shared.owed().map_or(0, |owed| count_undelivered(owed, shared.clock.now(), &mut seen));
        let options = &shared.options;
        let measured = (course.end - course.measure) as f64 / 1e9;
        // A run that was limited to a number, or drained a backlog, is over with its last message.
        let early = options.messages.is_some() || options.mode == Mode::Consume;
        let last = shared.last_ns.load(Ordering::Relaxed).clamp(course.measure, course.end);
        let seconds = if early && last > course.measure { (last - course.measure) as f64 / 1e9 } else { measured };
        let ever = if options.mode.produces() { seen.published.messages } else { seen.delivered.messages };
        let server = used.server.zip(options.server_pid).map(|((cpu_seconds, usage), pid)| Server {
            pid,
            cpu_seconds,
            cpu_seconds_per_million: (ever > 0).then(|| cpu_seconds / ever as f64 * 1e6),
            peak_rss_bytes: self.rss_max.max(usage.resident_bytes),
            lifetime_peak_rss_bytes: usage.resident_bytes_max,
        });
        let verify: Option<Verdict> = shared.ledger().map(|ledger| ledger.verdict(still_coming));
        let run = Run {
            format: result::FORMAT,
            label: options.label.clone(),
            started_unix_ms: course.start / 1_000_000,
            target: Target {
                address: options.address.clone(),
                protocol: options.protocol.name().into(),
                kind: self.kind,
                version: self.version,
            },
            setup: Setup::of(options),
            seconds,
            published: options.mode.produces().then(|| Flow::of(seen.published, seconds)),
            delivered: options.mode.consumes().then(|| Flow::of(seen.delivered, seconds)),
            publish_latency: Latency::of(&seen.publish),
            end_to_end_latency: Latency::of(&seen.end_to_end),
            behind: seen.behind,
            undelivered,
            errors: seen.errors.iter().map(|(text, count)| ErrorCount { text: text.clone(), count: *count }).collect(),
            series: self.series,
            generator: Generator { cpu_seconds: used.own, busy: used.own / seconds / self.recorders.len() as f64 },
            server,
            verify,
            ramp: None,
            raw: None,
        };
        Finished { run, seen }
    }
}

/// Counts acknowledged and undelivered messages as waiting until `now` at least. Without them the end-to-end figures would cover only
/// deliveries.
fn count_undelivered(owed: &OwedDeliveries, now: u64, seen: &mut LoadFigures) -> u64 {
    let mut all = 0;
    for (deliveries, due_ns) in owed.left() {
        record::record(&mut seen.end_to_end, now.saturating_sub(due_ns), deliveries);
        all += deliveries;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_come_has_waited_to_the_end() {
        const S: u64 = 1_000_000_000;
        let (owed, mut seen) = (OwedDeliveries::new(Course { start: 0, measure: S, end: 3 * S }), LoadFigures::new());
        owed.acknowledged(S, 10);
        owed.delivered(S, 4);
        owed.acknowledged(2 * S, 100);
        assert_eq!(count_undelivered(&owed, 5 * S, &mut seen), 106);
        let near = |ns: u64, wanted: f64| (ns as f64 / wanted - 1.0).abs() < 0.01;
        assert!(seen.end_to_end.len() == 106 && near(seen.end_to_end.max(), 4e9) && near(seen.end_to_end.min(), 3e9));
    }

    #[test]
    fn what_comes_is_told_from_what_has_come() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut coming = Coming { came: 0, at: None };
        coming.look(0, at(0));
        assert!(!coming.within(QUIET_LIMIT, at(0)), "nothing ever came");
        coming.look(7, at(100));
        coming.look(7, at(900));
        assert!(coming.within(QUIET_LIMIT, at(1100)) && !coming.within(QUIET_LIMIT, at(1101)));
    }
}
