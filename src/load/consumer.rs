//! One consuming connection: confirms every message at once, and times how long each was on its way.

use super::body::{self, BodyCheck};
use super::link::{Connection, Delivered};
use super::owed::OwedDeliveries;
use super::record::{self, LoadFigures, Recorder};
use super::shared::RunContext;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// Number of unsent confirmations above which the consumer stops reading.
const UNSENT_MAX: usize = 1 << 20;

pub struct Consumer {
    pub topic: usize,
    pub channel: usize,
}

impl Consumer {
    pub fn new(number: u32, shared: &RunContext) -> Self {
        let topics = shared.options.topics.len();
        Consumer { topic: number as usize % topics, channel: number as usize / topics % shared.options.channels.len() }
    }

    /// Ready when the connection is broken; in mode consume also when as many came as were asked for.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        link: &mut Connection,
        shared: &RunContext,
        recorder: &Recorder,
    ) -> Poll<Result<(), String>> {
        loop {
            let mut progress = link.poll_flush(cx).map_err(|e| e.to_string())?;
            if link.unsent() < UNSENT_MAX && link.poll_fill(cx).map_err(|e| e.to_string())? {
                self.take(link, shared, recorder)?;
                progress = true;
            }
            if !shared.options.mode.produces() && shared.is_spent() && link.unsent() == 0 {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                return Poll::Pending;
            }
        }
    }

    fn take(&mut self, link: &mut Connection, shared: &RunContext, recorder: &Recorder) -> Result<(), String> {
        let (now, course) = (shared.clock.now(), shared.course());
        let (seal, produces) = (shared.seal(self.topic), shared.options.mode.produces());
        let (mut messages, mut bytes, mut own) = (0u64, 0u64, 0u64);
        let mut times = Times::default();
        let mut seen = recorder.lock();
        let mut ledger = shared.ledger();
        link.deliveries(|delivered| {
            let body = match delivered {
                Delivered::Message(body) => body,
                Delivered::Error(text) => return seen.error(text, 1),
            };
            messages += 1;
            bytes += body.len() as u64;
            let found = body::read(body, seal);
            // of this run, and as far as the books know not for the second time
            let mut fresh = matches!(found, BodyCheck::Whole(head) | BodyCheck::Plain(head) if head.run == shared.run);
            own += fresh as u64;
            match (&mut ledger, found) {
                (Some(ledger), BodyCheck::Whole(head)) if head.run == shared.run => {
                    fresh = ledger.consumed(self.channel, head.producer, head.sequence);
                }
                // a body with the mark of this run has a checksum, and every body with room for the mark has one
                (Some(ledger), BodyCheck::Plain(head)) if head.run == shared.run => ledger.broken(),
                (Some(ledger), BodyCheck::Foreign) if body.len() >= body::HEAD_LEN => ledger.broken(),
                (Some(ledger), BodyCheck::Broken) => ledger.broken(),
                _ => {}
            }
            if let BodyCheck::Whole(head) | BodyCheck::Plain(head) = found {
                // A backlog was sent before the run.
                if course.measures(if produces { head.intended_ns } else { now }) {
                    times.add(&mut seen, shared.owed(), now, head.intended_ns, fresh);
                }
            }
        })?;
        times.add(&mut seen, shared.owed(), now, 0, false);
        if messages > 0 {
            shared.delivered.fetch_add(own, Ordering::Relaxed);
            self.count(shared, &mut seen, now, messages, bytes);
        }
        Ok(())
    }

    fn count(&self, shared: &RunContext, seen: &mut LoadFigures, now: u64, messages: u64, bytes: u64) {
        seen.delivered_ever.add(messages, bytes);
        let counted = if shared.options.mode.produces() { messages } else { shared.claim(messages as u32) as u64 };
        if counted > 0 && shared.course().measures(now) {
            seen.delivered.add(counted, bytes * counted / messages);
            if !shared.options.mode.produces() {
                shared.saw(now);
            }
        }
    }
}

/// Messages of one publish have one time: they are recorded together.
#[derive(Default)]
struct Times {
    intended_ns: u64,
    count: u64,
    /// Deliveries among these that were owed until now.
    fresh: u64,
}

impl Times {
    /// Records those before when the time is another one; 0 is none.
    fn add(&mut self, seen: &mut LoadFigures, owed: Option<&OwedDeliveries>, now: u64, intended_ns: u64, fresh: bool) {
        if intended_ns != self.intended_ns {
            if self.count > 0 {
                record::record(&mut seen.end_to_end, now.saturating_sub(self.intended_ns), self.count);
            }
            if let Some(owed) = owed.filter(|_| self.fresh > 0) {
                owed.delivered(self.intended_ns, self.fresh);
            }
            *self = Times { intended_ns, ..Times::default() };
        }
        self.count += 1;
        self.fresh += fresh as u64;
    }
}
