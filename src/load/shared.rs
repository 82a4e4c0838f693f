//! State that all connections of a run share: the clock, the course of the run, and the counts over all threads.

use super::body::Filler;
use super::ledger::Ledger;
use super::options::{Mode, Options};
use super::owed::OwedDeliveries;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Unix nanoseconds that never go back: it times messages of one process, and messages of another within the accuracy of the machines'
/// clocks.
#[derive(Clone, Copy)]
pub struct Clock {
    start: Instant,
    unix_ns: u64,
}

impl Clock {
    pub fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { start: Instant::now(), unix_ns: since.as_nanos() as u64 }
    }

    pub fn now(&self) -> u64 {
        self.unix_ns + self.start.elapsed().as_nanos() as u64
    }

    pub fn instant(&self, unix_ns: u64) -> Instant {
        self.start + Duration::from_nanos(unix_ns.saturating_sub(self.unix_ns))
    }
}

/// Unix nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Load begins.
    pub start: u64,
    /// Measuring begins.
    pub measure: u64,
    pub end: u64,
}

impl Course {
    pub fn measures(&self, at: u64) -> bool {
        (self.measure..self.end).contains(&at)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Connect,
    Load,
    Stop,
}

pub struct RunContext {
    pub options: Options,
    pub clock: Clock,
    /// Names the run in its messages.
    pub run: u32,
    pub filler: Filler,
    /// Start values of checksums by topic, so that a message that comes in another topic is found.
    seals: Vec<u32>,
    course: OnceLock<Course>,
    owed: OnceLock<OwedDeliveries>,
    /// Messages that may still be published or, in mode consume, delivered.
    budget: AtomicI64,
    pub acknowledged: AtomicU64,
    /// Messages of this run.
    pub delivered: AtomicU64,
    /// The last acknowledgement or delivery that counted.
    pub last_ns: AtomicU64,
    ledger: Option<Mutex<Ledger>>,
}

impl RunContext {
    pub fn new(options: Options) -> Self {
        let clock = Clock::new();
        let ledger = options.verify.then(|| Mutex::new(Ledger::new(options.producers as usize, options.channels.len())));
        RunContext {
            run: (clock.now() ^ (std::process::id() as u64) << 20) as u32,
            filler: Filler::new(if options.mode.produces() { options.size.max() } else { 0 }),
            seals: options.topics.iter().map(|name| crc32fast::hash(name.as_bytes())).collect(),
            course: OnceLock::new(),
            owed: OnceLock::new(),
            budget: AtomicI64::new(options.messages.map_or(i64::MAX, |n| n as i64)),
            acknowledged: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            ledger,
            clock,
            options,
        }
    }

    /// Start value of a topic's checksums; `None`: messages are not verified.
    pub fn seal(&self, topic: usize) -> Option<u32> {
        self.options.verify.then(|| self.seals[topic])
    }

    pub fn set_course(&self, course: Course) {
        assert!(self.course.set(course).is_ok(), "a run has one course");
        if self.options.mode == Mode::Both {
            self.owed.get_or_init(|| OwedDeliveries::new(course));
        }
    }

    pub fn course(&self) -> Course {
        *self.course.get().expect("it is set before the phase Load")
    }

    /// Undelivered messages in mode both.
    pub fn owed(&self) -> Option<&OwedDeliveries> {
        self.owed.get()
    }

    pub fn ledger(&self) -> Option<MutexGuard<'_, Ledger>> {
        self.ledger.as_ref().map(|ledger| ledger.lock().expect("no thread panics while it keeps the books"))
    }

    /// Takes up to `wanted` messages out of the budget.
    pub fn claim(&self, wanted: u32) -> u32 {
        if self.options.messages.is_none() {
            return wanted;
        }
        let before = self.budget.fetch_sub(wanted as i64, Ordering::Relaxed);
        before.clamp(0, wanted as i64) as u32
    }

    pub fn is_spent(&self) -> bool {
        self.budget.load(Ordering::Relaxed) <= 0
    }

    pub fn saw(&self, now: u64) {
        self.last_ns.fetch_max(now, Ordering::Relaxed);
    }

    /// Rises as long as deliveries come that are waited for; with the books, those that came before do not count.
    pub fn came(&self) -> u64 {
        self.ledger().map_or_else(|| self.delivered.load(Ordering::Relaxed), |ledger| ledger.matched())
    }

    /// Whether every acknowledged message has come on every channel.
    pub fn all_came(&self) -> bool {
        match self.ledger() {
            Some(ledger) => ledger.is_complete(),
            None => {
                let wanted = self.acknowledged.load(Ordering::Relaxed) * self.options.channels.len() as u64;
                self.delivered.load(Ordering::Relaxed) >= wanted
            }
        }
    }
}
