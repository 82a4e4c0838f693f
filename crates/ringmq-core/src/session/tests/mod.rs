//! A mock host, and what every test of the session needs.

mod auth;
mod commands;
mod flow;
mod layers;
mod random;

use super::*;
use crate::base::{ConnId, MessageId, Now, PartitionId, Peer, Ticks};
use crate::codec::nsq::frame::{Frame, decode_all};
use crate::config::Settings;
use crate::seam::{
    message::{AuthQuery, SubOptions},
    outcome::InFlightError,
};
use std::sync::Arc;
use std::time::Duration;

/// Writes down what it is asked. Ids with an odd number are not in flight.
#[derive(Default)]
pub struct MockHost {
    pub calls: Vec<String>,
    pub waiting: Vec<ReplySlot>,
    /// Answers for the next publishes and subscribes; accepted when it is empty.
    pub next: Vec<CommandTaken>,
}

impl MockHost {
    fn take(&mut self, slot: ReplySlot) -> CommandTaken {
        let taken = self.next.pop().unwrap_or(CommandTaken::Accepted);
        if taken == CommandTaken::Accepted {
            self.waiting.push(slot);
        }
        taken
    }

    fn in_flight(&mut self, what: String, id: MessageId) -> Result<(), InFlightError> {
        self.calls.push(format!("{what} {:x}", id.0));
        if id.0.is_multiple_of(2) { Ok(()) } else { Err(InFlightError::NotInFlight) }
    }
}

impl Host for MockHost {
    fn publish(
        &mut self,
        _: Now,
        _: ConnId,
        topic: &str,
        partition: Option<PartitionId>,
        bodies: Bodies<'_>,
        slot: ReplySlot,
    ) -> CommandTaken {
        let all: Vec<_> = bodies.iter().map(|b| String::from_utf8_lossy(b).into_owned()).collect();
        assert_eq!((all.len(), bodies.iter().map(<[u8]>::len).sum()), (bodies.count(), bodies.bytes()));
        let kind = match bodies {
            Bodies::One(_) => "pub".into(),
            Bodies::Deferred { delay_ms, .. } => format!("dpub {delay_ms}"),
            Bodies::Many(_) => "mpub".into(),
        };
        let at = partition.map_or(String::new(), |p| format!("/{p}"));
        self.calls.push(format!("{kind} {topic}{at} {}", all.join(",")));
        self.take(slot)
    }

    fn subscribe(&mut self, _: Now, _: ConnId, to: Subscribe<'_>, o: SubOptions, slot: ReplySlot) -> CommandTaken {
        let at = to.partition.map_or(String::new(), |p| format!("/{p}"));
        let order = if o.ordered { " ordered" } else { "" };
        self.calls.push(format!("sub {}{at} {} {} {}{order}", to.topic, to.channel, o.msg_timeout_ms, o.sample_rate));
        self.take(slot)
    }

    fn ready(&mut self, _: Now, _: ConnId, count: u32) {
        self.calls.push(format!("rdy {count}"));
    }

    fn finish(&mut self, _: Now, _: ConnId, id: MessageId) -> Result<(), InFlightError> {
        self.in_flight("fin".into(), id)
    }

    fn requeue(&mut self, _: Now, _: ConnId, id: MessageId, delay_ms: u64) -> Result<(), InFlightError> {
        self.in_flight(format!("req {delay_ms}"), id)
    }

    fn touch(&mut self, _: Now, _: ConnId, id: MessageId) -> Result<(), InFlightError> {
        self.in_flight("touch".into(), id)
    }

    fn authorize(&mut self, _: ConnId, query: AuthQuery) {
        let secret = String::from_utf8_lossy(&query.secret).into_owned();
        self.calls.push(format!("auth {} tls={} {:?} {secret}", query.remote_ip, query.tls, query.common_name));
    }

    fn close_subscription(&mut self, _: Now, _: ConnId) {
        self.calls.push("cls".into());
    }
}

pub fn at(ms: u64) -> Now {
    let ticks = Ticks(0) + Duration::from_millis(ms);
    Now { ticks, unix_ns: 1_700_000_000_000_000_000 + ticks.0 as i64 }
}

pub fn limits() -> Limits {
    Limits::from(&Settings::default())
}

pub fn session_with(limits: Limits) -> Session {
    Session::new(ConnId(1), Peer("10.0.0.7:4711".into()), Arc::new(limits), at(0))
}

pub fn session() -> Session {
    session_with(limits())
}

/// A session whose client has sent the magic.
pub fn greeted() -> Session {
    let mut s = session();
    s.on_bytes(at(0), b"  V2", &mut MockHost::default());
    s
}

/// Frames as text: `= response`, `! error`, `* body of a message`. Takes the output as sent.
pub fn texts(s: &mut Session) -> Vec<String> {
    let out = s.take_output().unwrap_or_default();
    s.on_sent(out.len());
    let (frames, len) = decode_all(&out).expect("the session writes whole frames");
    assert_eq!(len, out.len());
    let text = |kind: &str, data: &[u8]| format!("{kind} {}", String::from_utf8_lossy(data));
    frames
        .iter()
        .map(|frame| match frame {
            Frame::Response(data) => text("=", data),
            Frame::Error(data) => text("!", data),
            Frame::Message(message) => text("*", message.body),
        })
        .collect()
}

/// `line`, newline, size and body.
pub fn with_body(line: &str, body: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b"\n", &(body.len() as u32).to_be_bytes(), body].concat()
}

pub fn sized(bodies: &[&[u8]]) -> Vec<u8> {
    let mut wire = (bodies.len() as u32).to_be_bytes().to_vec();
    for body in bodies {
        wire.extend((body.len() as u32).to_be_bytes());
        wire.extend_from_slice(body);
    }
    wire
}
