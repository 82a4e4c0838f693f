//! One publishing connection: keeps its window full (closed loop) or its schedule (open loop), and times the answers.
//!
//! Open loop: a publish counts from when it was due, also when the window, the socket or this thread held it up; so what
//! waits behind a slow answer is measured too (coordinated omission). Answers come in the order of the publishes.

use super::body::{self, Head};
use super::pace::{Schedule, Timer};
use super::record::{self, Recorder};
use super::shared::{Course, Shared};
use super::wire::Wire;
use crate::base::Rng;
use crate::codec::nsq::frame::{self, Frame};
use crate::codec::nsq::{HEARTBEAT, OK, request};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// Publishes are encoded ahead of the socket up to here.
const UNSENT_MAX: usize = 512 * 1024;

struct Waiting {
    intended_ns: u64,
    first: u64,
    count: u32,
    bytes: u64,
}

pub struct Producer {
    number: u32,
    /// Indices of its topics, used in turn.
    topics: Vec<usize>,
    turn: usize,
    next_sequence: u64,
    rng: Rng,
    schedule: Option<Schedule>,
    timer: Option<Timer>,
    waiting: VecDeque<Waiting>,
    /// Nothing more will be published.
    ended: bool,
}

impl Producer {
    pub fn new(number: u32, shared: &Shared) -> std::io::Result<Self> {
        let options = &shared.options;
        let (topics, producers) = (options.topics.len(), options.producers as usize);
        let own = |topic: &usize| topic % producers == number as usize % producers;
        let schedule = options.rate.map(|rate| Schedule::new(rate / options.batch as f64, number, options.producers));
        Ok(Producer {
            number,
            topics: if topics <= producers { vec![number as usize % topics] } else { (0..topics).filter(own).collect() },
            turn: 0,
            next_sequence: 0,
            rng: Rng::new(shared.run as u64 ^ (number as u64) << 32),
            schedule,
            timer: schedule.map(|_| Timer::new()).transpose()?,
            waiting: VecDeque::with_capacity(options.in_flight as usize),
            ended: false,
        })
    }

    /// What is still without an answer when the connection ends.
    pub fn give_up(&mut self, recorder: &Recorder, why: &str) {
        let mut seen = recorder.lock();
        if !self.waiting.is_empty() {
            seen.error(&format!("publishes without an answer: {why}"), self.waiting.len() as u64);
        }
        self.waiting.clear();
    }

    /// At the very end: what was due and never sent.
    pub fn count_behind(&self, shared: &Shared, recorder: &Recorder) {
        let course = shared.course();
        if let Some(schedule) = self.schedule.filter(|_| !shared.is_spent() || shared.options.messages.is_none()) {
            recorder.lock().behind += schedule.left_before(course.end - course.start) * shared.options.batch as u64;
        }
    }

    pub fn is_done(&self) -> bool {
        self.ended && self.waiting.is_empty()
    }

    /// Ready when all is sent and answered, or the connection is broken.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        wire: &mut Wire,
        shared: &Shared,
        recorder: &Recorder,
    ) -> Poll<Result<(), String>> {
        let course = shared.course();
        loop {
            let due = self.fill(wire, shared, &course);
            let mut progress = wire.poll_flush(cx).map_err(|e| e.to_string())?;
            if wire.poll_fill(cx).map_err(|e| e.to_string())? {
                self.answers(wire, shared, recorder, &course)?;
                progress = true;
            }
            if self.is_done() && wire.unsent() == 0 {
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

    /// Encodes what may go out now; answers when the next is due if that is what it waits for.
    fn fill(&mut self, wire: &mut Wire, shared: &Shared, course: &Course) -> Option<u64> {
        let options = &shared.options;
        while !self.ended && self.waiting.len() < options.in_flight as usize && wire.unsent() < UNSENT_MAX {
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
            self.publish(wire, shared, intended_ns, count);
        }
        None
    }

    fn publish(&mut self, wire: &mut Wire, shared: &Shared, intended_ns: u64, count: u32) {
        let options = &shared.options;
        let topic = &options.topics[self.topics[self.turn]];
        self.turn = if self.turn + 1 == self.topics.len() { 0 } else { self.turn + 1 };
        let first = self.next_sequence;
        let mut bytes = 0;
        let rng = &mut self.rng;
        let least = if options.mode.consumes() { body::HEAD_LEN } else { 1 };
        let mut write = |i: u32, out: &mut Vec<u8>| {
            let len = options.size.draw(rng).max(least);
            bytes += len as u64;
            let head = Head { run: shared.run, producer: self.number, sequence: first + i as u64, intended_ns };
            body::write(out, &head, len, &shared.filler, options.verify);
        };
        match count {
            1 if options.batch == 1 => request::publish_with(&mut wire.out, topic, |out| write(0, out)),
            _ => request::multi_publish_with(&mut wire.out, topic, count, write),
        }
        self.next_sequence += count as u64;
        self.waiting.push_back(Waiting { intended_ns, first, count, bytes });
    }

    /// An error frame answers the oldest publish too; a fatal one is followed by the end of the connection.
    fn answers(&mut self, wire: &mut Wire, shared: &Shared, recorder: &Recorder, course: &Course) -> Result<(), String> {
        let now = shared.clock.now();
        let (input, out) = wire.split();
        let mut at = 0;
        let mut seen = recorder.lock();
        while let Some((frame, len)) = frame::decode(&input[at..]).map_err(|e| e.to_string())? {
            at += len;
            match frame {
                Frame::Response(OK) => {
                    let done = self.waiting.pop_front().ok_or("an answer to nothing")?;
                    shared.acknowledged.fetch_add(done.count as u64, Ordering::Relaxed);
                    shared.saw(now);
                    seen.published_ever.add(done.count as u64, done.bytes);
                    if course.measures(now) {
                        seen.published.add(done.count as u64, done.bytes);
                    }
                    if course.measures(done.intended_ns) {
                        record::record(&mut seen.publish, now.saturating_sub(done.intended_ns));
                    }
                    if let Some(mut ledger) = shared.ledger() {
                        ledger.acknowledged(self.number, done.first, done.count as u64);
                    }
                }
                Frame::Response(HEARTBEAT) => request::nop(out),
                Frame::Response(other) => return Err(format!("an unexpected answer: {}", String::from_utf8_lossy(other))),
                Frame::Error(text) => {
                    seen.error(&String::from_utf8_lossy(text), 1);
                    self.waiting.pop_front();
                }
                Frame::Message(_) => return Err("a message on a connection that has no subscription".into()),
            }
        }
        wire.took(at);
        Ok(())
    }
}
