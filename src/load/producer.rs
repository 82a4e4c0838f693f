//! One publishing connection: keeps its window full (closed loop) or its schedule (open loop), and times the answers.
//!
//! Open loop: a publish counts from its due time, also if the window, the socket or this thread held it up; so publishes behind a slow
//! answer are measured too (coordinated omission).

use super::body::{self, BodyHead};
use super::link::{Connection, PublishAnswer};
use super::pace::{Schedule, Timer};
use super::record::{self, LoadFigures, Recorder};
use super::shared::{Course, RunContext};
use crate::base::Rng;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// Publishes are encoded ahead of the socket up to here.
const UNSENT_MAX: usize = 512 * 1024;

struct PublishInFlight {
    intended_ns: u64,
    first: u64,
    count: u32,
    bytes: u64,
}

/// Publishes without an answer, by id. Answers of the NSQ protocol come in order and name none, native ones come as they come.
struct Window {
    /// Id of the first place; ids rise by one.
    first_id: u64,
    places: VecDeque<Option<PublishInFlight>>,
    len: usize,
}

impl Window {
    fn new(capacity: usize) -> Self {
        Window { first_id: 1, places: VecDeque::with_capacity(capacity), len: 0 }
    }

    fn next_id(&self) -> u64 {
        self.first_id + self.places.len() as u64
    }

    fn push(&mut self, waiting: PublishInFlight) {
        self.places.push_back(Some(waiting));
        self.len += 1;
    }

    /// Takes the waiting publish with this id; `None`: the oldest.
    fn take(&mut self, id: Option<u64>) -> Option<PublishInFlight> {
        let place = usize::try_from(id.unwrap_or(self.first_id).checked_sub(self.first_id)?).ok()?;
        let taken = self.places.get_mut(place)?.take()?;
        self.len -= 1;
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first_id += 1;
        }
        Some(taken)
    }

    /// Removes all waiting publishes and returns their number.
    fn clear(&mut self) -> usize {
        self.first_id = self.next_id();
        self.places.clear();
        std::mem::take(&mut self.len)
    }
}

pub struct Producer {
    pub number: u32,
    /// Indices of its topics, used in turn.
    pub topics: Vec<usize>,
    next_sequence: u64,
    rng: Rng,
    schedule: Option<Schedule>,
    timer: Option<Timer>,
    waiting: Window,
    /// True when nothing more will be published.
    ended: bool,
}

impl Producer {
    pub fn new(number: u32, shared: &RunContext) -> std::io::Result<Self> {
        let options = &shared.options;
        let (topics, producers) = (options.topics.len(), options.producers as usize);
        let own = |topic: &usize| topic % producers == number as usize % producers;
        let schedule = options.rate.map(|rate| Schedule::new(rate / options.batch as f64, number, options.producers));
        Ok(Producer {
            number,
            topics: if topics <= producers { vec![number as usize % topics] } else { (0..topics).filter(own).collect() },
            next_sequence: 0,
            rng: Rng::new(shared.run as u64 ^ (number as u64) << 32),
            schedule,
            timer: schedule.map(|_| Timer::new()).transpose()?,
            waiting: Window::new(options.in_flight as usize),
            ended: false,
        })
    }

    /// Counts publishes without an answer when the connection ends.
    pub fn give_up(&mut self, recorder: &Recorder, why: &str) {
        let waited = self.waiting.clear();
        if waited > 0 {
            recorder.lock().error(&format!("publishes without an answer: {why}"), waited as u64);
        }
    }

    /// Counts, at the very end, publishes that were due in the measured time and never sent.
    pub fn count_behind(&self, shared: &RunContext, recorder: &Recorder) {
        if let Some(schedule) = self.schedule.filter(|_| !shared.is_spent() || shared.options.messages.is_none()) {
            let options = &shared.options;
            let channels = if options.mode.consumes() { options.channels.len() as u64 } else { 0 };
            let now = shared.clock.now();
            count_left(&schedule, &shared.course(), now, options.batch as u64, channels, &mut recorder.lock());
        }
    }

    pub fn is_done(&self) -> bool {
        self.ended && self.waiting.len == 0
    }

    /// Ready when all is sent and answered, or the connection is broken.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        link: &mut Connection,
        shared: &RunContext,
        recorder: &Recorder,
    ) -> Poll<Result<(), String>> {
        let course = shared.course();
        loop {
            let due = self.fill(link, shared, &course);
            let mut progress = link.poll_flush(cx).map_err(|e| e.to_string())?;
            if link.poll_fill(cx).map_err(|e| e.to_string())? {
                self.answers(link, shared, recorder, &course)?;
                progress = true;
            }
            if self.is_done() && link.unsent() == 0 {
                return Poll::Ready(Ok(()));
            }
            if let (Some(due), Some(timer)) = (due, &mut self.timer) {
                progress |= timer.poll_until(cx, shared.clock.now(), due).map_err(|e| e.to_string())?.is_ready();
            }
            if !progress {
                return Poll::Pending;
            }
        }
    }

    /// Encodes the publishes that may go out now. Returns the due time of the next one if it waits for that.
    fn fill(&mut self, link: &mut Connection, shared: &RunContext, course: &Course) -> Option<u64> {
        let options = &shared.options;
        while !self.ended && self.waiting.len < options.in_flight as usize && link.unsent() < UNSENT_MAX {
            let now = shared.clock.now();
            let intended_ns = self.schedule.map_or(now, |schedule| course.start + schedule.due_ns());
            if now >= course.end || intended_ns >= course.end {
                self.ended = true;
                break;
            }
            if intended_ns > now {
                return Some(intended_ns);
            }
            let count = shared.claim(options.batch);
            if count == 0 {
                self.ended = true;
                break;
            }
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
            self.publish(link, shared, intended_ns, count);
        }
        None
    }

    fn publish(&mut self, link: &mut Connection, shared: &RunContext, intended_ns: u64, count: u32) {
        let options = &shared.options;
        let first = self.next_sequence;
        let mut bytes = 0;
        let (rng, number) = (&mut self.rng, self.number);
        let least = if options.mode.consumes() { body::HEAD_LEN } else { 1 };
        link.publish(options, self.waiting.next_id(), count, |topic, i, out| {
            let len = options.size.draw(rng).max(least);
            bytes += len as u64;
            let head = BodyHead { run: shared.run, producer: number, sequence: first + i as u64, intended_ns };
            body::write(out, &head, len, &shared.filler, shared.seal(topic));
        });
        self.next_sequence += count as u64;
        self.waiting.push(PublishInFlight { intended_ns, first, count, bytes });
    }

    fn answers(
        &mut self,
        link: &mut Connection,
        shared: &RunContext,
        recorder: &Recorder,
        course: &Course,
    ) -> Result<(), String> {
        let now = shared.clock.now();
        let mut seen = recorder.lock();
        link.answers(|answer| {
            let id = match answer {
                PublishAnswer::Done(id) => id,
                PublishAnswer::Refused(id, text) => {
                    seen.error(text, 1);
                    self.waiting.take(id);
                    return Ok(());
                }
            };
            let done = self.waiting.take(id).ok_or("the node sent an answer to no publish")?;
            shared.acknowledged.fetch_add(done.count as u64, Ordering::Relaxed);
            shared.saw(now);
            seen.published_ever.add(done.count as u64, done.bytes);
            if course.measures(now) {
                seen.published.add(done.count as u64, done.bytes);
            }
            if course.measures(done.intended_ns) {
                record::record(&mut seen.publish, now.saturating_sub(done.intended_ns), 1);
            }
            if let Some(owed) = shared.owed() {
                owed.acknowledged(done.intended_ns, done.count as u64 * shared.options.channels.len() as u64);
            }
            if let Some(mut ledger) = shared.ledger() {
                ledger.acknowledged(self.number, done.first, done.count as u64);
            }
            Ok(())
        })
    }
}

/// Counts skipped publishes of a schedule, and their deliveries, as waiting until `now` at least. Without them the percentiles would
/// cover only those that got through.
fn count_left(schedule: &Schedule, course: &Course, now: u64, batch: u64, channels: u64, seen: &mut LoadFigures) {
    for (publishes, due_ns) in schedule.left_within(course.measure - course.start, course.end - course.start) {
        let waited = now.saturating_sub(course.start + due_ns);
        seen.behind += publishes * batch;
        record::record(&mut seen.publish, waited, publishes);
        if channels > 0 {
            record::record(&mut seen.end_to_end, waited, publishes * batch * channels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_due_and_not_sent_has_waited_to_the_end() {
        let (mut schedule, mut seen) = (Schedule::new(1000.0, 0, 1), LoadFigures::new());
        let course = Course { start: 7_000_000_000, measure: 8_000_000_000, end: 10_000_000_000 };
        (0..1500).for_each(|_| schedule.advance());
        count_left(&schedule, &course, 10_500_000_000, 20, 2, &mut seen);
        assert_eq!((seen.behind, seen.publish.len(), seen.end_to_end.len()), (30_000, 1500, 60_000));
        let near = |ns: u64, wanted: f64| (ns as f64 / wanted - 1.0).abs() < 0.01;
        assert!(near(seen.publish.max(), 2e9) && near(seen.publish.min(), 0.501e9) && near(seen.end_to_end.max(), 2e9));
        seen.clear();
        (0..1500).for_each(|_| schedule.advance());
        count_left(&schedule, &course, 10_500_000_000, 20, 0, &mut seen);
        assert_eq!((seen.behind, seen.publish.len(), seen.end_to_end.len()), (0, 0, 0));
    }

    #[test]
    fn answers_come_in_any_order_or_without_a_name() {
        let mut window = Window::new(4);
        for first in 0..4 {
            assert_eq!(window.next_id(), first + 1);
            window.push(PublishInFlight { intended_ns: 0, first, count: 1, bytes: 0 });
        }
        let mut firsts = |ids: &[Option<u64>]| ids.iter().map(|id| window.take(*id).map(|w| w.first)).collect::<Vec<_>>();
        assert_eq!(firsts(&[Some(3), Some(3), Some(9), Some(0), None, None]), [Some(2), None, None, None, Some(0), Some(1)]);
        assert_eq!(firsts(&[Some(2), None, None]), [None, Some(3), None]);
        assert_eq!((window.len, window.next_id()), (0, 5));
        window.push(PublishInFlight { intended_ns: 0, first: 7, count: 1, bytes: 0 });
        assert_eq!((window.clear(), window.next_id()), (1, 6));
        assert!(window.take(Some(5)).is_none());
    }
}
