//! One consuming connection: answers every message with FIN at once, and times how long each was on its way.

use super::body::{self, Found};
use super::record::{self, Recorder};
use super::shared::Shared;
use super::wire::Wire;
use crate::codec::nsq::frame::{self, Frame};
use crate::codec::nsq::{HEARTBEAT, request};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

/// With more FINs unsent it reads no further.
const UNSENT_MAX: usize = 1 << 20;

pub struct Consumer {
    pub topic: usize,
    pub channel: usize,
}

impl Consumer {
    pub fn new(number: u32, shared: &Shared) -> Self {
        let topics = shared.options.topics.len();
        Consumer { topic: number as usize % topics, channel: number as usize / topics % shared.options.channels.len() }
    }

    /// Ready when the connection is broken; in mode consume also when as many came as were asked for.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        wire: &mut Wire,
        shared: &Shared,
        recorder: &Recorder,
    ) -> Poll<Result<(), String>> {
        loop {
            let mut progress = wire.poll_flush(cx).map_err(|e| e.to_string())?;
            if wire.unsent() < UNSENT_MAX && wire.poll_fill(cx).map_err(|e| e.to_string())? {
                self.take(wire, shared, recorder)?;
                progress = true;
            }
            if !shared.options.mode.produces() && shared.is_spent() && wire.unsent() == 0 {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                return Poll::Pending;
            }
        }
    }

    fn take(&mut self, wire: &mut Wire, shared: &Shared, recorder: &Recorder) -> Result<(), String> {
        let (now, course) = (shared.clock.now(), shared.course());
        let (verify, produces) = (shared.options.verify, shared.options.mode.produces());
        let (input, out) = wire.split();
        let (mut at, mut messages, mut bytes, mut own) = (0, 0u64, 0u64, 0u64);
        let mut seen = recorder.lock();
        let mut ledger = shared.ledger();
        while let Some((frame, len)) = frame::decode(&input[at..]).map_err(|e| e.to_string())? {
            at += len;
            match frame {
                Frame::Message(message) => {
                    request::finish(out, &message.id);
                    messages += 1;
                    bytes += message.body.len() as u64;
                    let found = body::read(message.body, verify);
                    if let Found::Whole(head) = found {
                        own += (head.run == shared.run) as u64;
                        // A backlog was sent before the run.
                        if course.measures(if produces { head.intended_ns } else { now }) {
                            record::record(&mut seen.end_to_end, now.saturating_sub(head.intended_ns));
                        }
                    }
                    match (&mut ledger, found) {
                        (Some(ledger), Found::Whole(head)) if head.run == shared.run => {
                            ledger.consumed(self.channel, head.producer, head.sequence);
                        }
                        (Some(ledger), Found::Broken) => ledger.broken(),
                        _ => {}
                    }
                }
                Frame::Response(HEARTBEAT) => request::nop(out),
                Frame::Response(other) => return Err(format!("an unexpected answer: {}", String::from_utf8_lossy(other))),
                Frame::Error(text) => seen.error(&String::from_utf8_lossy(text), 1),
            }
        }
        if messages > 0 {
            shared.delivered.fetch_add(own, Ordering::Relaxed);
            self.count(shared, &mut seen, now, messages, bytes);
        }
        drop((seen, ledger));
        wire.took(at);
        Ok(())
    }

    fn count(&self, shared: &Shared, seen: &mut record::Seen, now: u64, messages: u64, bytes: u64) {
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
