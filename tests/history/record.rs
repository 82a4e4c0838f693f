//! The record of a run: each thing that a client did or saw, with its time, in one order for all.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Topic {
    /// Plain publishes of NSQ clients.
    Plain,
    /// Messages with keys, of idempotent producers.
    Keyed,
    /// Deferred publishes.
    Deferred,
}

impl Topic {
    pub const ALL: [Topic; 3] = [Topic::Plain, Topic::Keyed, Topic::Deferred];

    pub fn name(self) -> &'static str {
        match self {
            Topic::Plain => "plain",
            Topic::Keyed => "keyed",
            Topic::Deferred => "deferred",
        }
    }
}

/// A message's name, which is also what its body follows from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Message {
    pub topic: Topic,
    pub producer: u16,
    pub number: u32,
}

impl Message {
    pub fn body(&self) -> Vec<u8> {
        let mut body = format!("{} {} {} ", self.topic.name(), self.producer, self.number).into_bytes();
        let fill = (self.number as usize).wrapping_mul(7919) % 4000;
        body.extend((0..fill).map(|n| b'a' + ((n + self.number as usize) % 26) as u8));
        body
    }

    /// The message that has this body, to the last byte.
    pub fn of(body: &[u8]) -> Option<Message> {
        let mut words = body.splitn(4, |byte| *byte == b' ').map(std::str::from_utf8);
        let mut word = || words.next()?.ok();
        let name = word()?;
        let topic = Topic::ALL.into_iter().find(|topic| topic.name() == name)?;
        let message = Message { topic, producer: word()?.parse().ok()?, number: word()?.parse().ok()? };
        (message.body() == body).then_some(message)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Fact {
    /// A client is about to send it. A deferred one must not come before `due`, a time of the record.
    Sent {
        message: Message,
        due: Option<Duration>,
    },
    Acknowledged(Message),
    /// The client was told that nothing of it is stored.
    Refused(Message),
    /// The client was told nothing, or that the outcome is unknown.
    Unknown(Message),
    /// A consumer got it; NSQ clients under an id.
    Delivered {
        channel: &'static str,
        message: Message,
        id: Option<[u8; 16]>,
    },
    Finished {
        channel: &'static str,
        message: Message,
    },
}

#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Time since the beginning of the record.
    pub at: Duration,
    pub fact: Fact,
}

/// Shared by all clients of a run.
pub struct Recorder {
    began: Instant,
    kept: Mutex<Recording>,
}

#[derive(Default)]
struct Recording {
    events: Vec<Event>,
    /// Delivered messages that are no messages of this run.
    strange: Vec<String>,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { began: Instant::now(), kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Recording> {
        self.kept.lock().expect("nobody panics with it")
    }

    pub fn note(&self, fact: Fact) {
        let mut kept = self.kept();
        // With the lock held: the order of the events is that of their times.
        let at = self.began.elapsed();
        kept.events.push(Event { at, fact });
    }

    /// Notes that it will be sent, and may come after the delay.
    pub fn note_deferred(&self, message: Message, delay: Duration) {
        let due = Some(self.began.elapsed() + delay);
        self.note(Fact::Sent { message, due });
    }

    /// Notes what came; its message, if it is one.
    pub fn note_delivered(&self, channel: &'static str, body: &[u8], id: Option<[u8; 16]>) -> Option<Message> {
        match Message::of(body) {
            Some(message) => self.note(Fact::Delivered { channel, message, id }),
            None => self.note_strange(channel, body),
        }
        Message::of(body)
    }

    pub fn note_strange(&self, where_: &str, body: &[u8]) {
        let beginning = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        self.kept().strange.push(format!("none_invented: {where_} got {} bytes that nobody sent: {beginning:?}", body.len()));
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Number of acknowledged publishes to the topic.
    pub fn acknowledged_count(&self, topic: Topic) -> usize {
        let is_one = |event: &&Event| matches!(event.fact, Fact::Acknowledged(message) if message.topic == topic);
        self.kept().events.iter().filter(is_one).count()
    }

    /// Acknowledged messages that did not come to the channel.
    pub fn missing(&self, topic: Topic, name: &str) -> BTreeSet<Message> {
        let kept = self.kept();
        let mut missing = BTreeSet::new();
        for event in &kept.events {
            if let Fact::Acknowledged(message) = event.fact
                && message.topic == topic
            {
                missing.insert(message);
            }
        }
        for event in &kept.events {
            if let Fact::Delivered { message, channel, .. } = event.fact
                && channel == name
            {
                missing.remove(&message);
            }
        }
        missing
    }

    /// Messages that a client was told or given of the topic, so that they must be in the logs.
    pub fn must_be_stored(&self, topic: Topic) -> BTreeSet<Message> {
        let kept = self.kept();
        let of = |event: &Event| match event.fact {
            Fact::Acknowledged(message) | Fact::Delivered { message, .. } => Some(message),
            _ => None,
        };
        kept.events.iter().filter_map(of).filter(|message| message.topic == topic).collect()
    }

    pub fn events(&self) -> Vec<Event> {
        self.kept().events.clone()
    }

    pub fn strange(&self) -> Vec<String> {
        self.kept().strange.clone()
    }
}
