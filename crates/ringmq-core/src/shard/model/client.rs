//! Random NSQ clients, and the book of what they were promised.

use crate::base::Rng;
use crate::codec::nsq::frame::{self, Frame};
use crate::codec::nsq::request;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Publisher,
    Consumer,
    /// Subscribes and publishes.
    Both,
    /// Finishes all that it gets.
    Drain,
}

impl Role {
    pub fn draw(rng: &mut Rng) -> Role {
        [Role::Publisher, Role::Publisher, Role::Consumer, Role::Consumer, Role::Both][rng.below(5) as usize]
    }
}

struct Message {
    topic: usize,
    body: Vec<u8>,
    /// Channels whose SUB was answered before this was published.
    owed: Vec<String>,
    acknowledged: bool,
}

/// Topics from here on are ephemeral: they come and go with their channel.
pub const EPHEMERAL: usize = 100;

pub struct Book {
    topics: usize,
    /// Clients use the ephemeral topic as well.
    pub has_ephemeral: bool,
    /// True when nobody subscribes to an ephemeral channel.
    pub is_durable: bool,
    /// Topics that some client has begun to subscribe to, and what was acknowledged before.
    subscribed: BTreeSet<usize>,
    early: BTreeMap<usize, BTreeSet<usize>>,
    messages: Vec<Message>,
    /// Deliveries in channels whose SUB was answered, by topic and channel name.
    channels: BTreeMap<(usize, String), BTreeSet<usize>>,
    /// A message's id never names another.
    ids: BTreeMap<(usize, [u8; 16]), usize>,
}

impl Book {
    pub fn new(topics: usize) -> Self {
        let (has_ephemeral, is_durable) = (false, false);
        let (subscribed, early) = (BTreeSet::new(), BTreeMap::new());
        Book {
            topics,
            has_ephemeral,
            is_durable,
            subscribed,
            early,
            messages: vec![],
            channels: BTreeMap::new(),
            ids: BTreeMap::new(),
        }
    }

    /// Channels that outlive their clients.
    pub fn channels(&self) -> Vec<(usize, String)> {
        self.channels.keys().filter(|(_, c)| !c.ends_with("#ephemeral")).cloned().collect()
    }

    fn draw_topic(&self, rng: &mut Rng) -> usize {
        if self.has_ephemeral && rng.chance(0.4) { EPHEMERAL } else { rng.below(self.topics as u64) as usize }
    }

    fn acknowledged(&mut self, n: usize) {
        let message = &mut self.messages[n];
        message.acknowledged = true;
        if !self.subscribed.contains(&message.topic) {
            self.early.entry(message.topic).or_default().insert(n);
        }
    }

    /// Checks that messages before any SUB came to the first channel, all of them, and to no other. Returns how many.
    pub fn check_one_is_first(&self) -> usize {
        let mut firsts = 0;
        for ((topic, channel), got) in &self.channels {
            let Some(early) = self.early.get(topic).filter(|early| !got.is_disjoint(early)) else { continue };
            let n = got.intersection(early).count();
            assert_eq!(n, early.len(), "{topic}/{channel} got a part of what was there before it");
            firsts += 1;
        }
        assert!(firsts <= self.early.len(), "two channels of a topic were first");
        firsts
    }

    fn write(&mut self, topic: usize, rng: &mut Rng) -> usize {
        let n = self.messages.len();
        let len = match rng.below(20) {
            0 => 10_000 + rng.below(30_000),
            1..5 => rng.below(3000),
            _ => rng.below(60),
        };
        let mut body = format!("{n} ").into_bytes();
        body.extend((0..len).map(|i| (i as usize * 7 + n) as u8));
        let owed = self.channels().into_iter().filter(|(t, _)| *t == topic).map(|(_, c)| c).collect();
        self.messages.push(Message { topic, body, owed, acknowledged: false });
        n
    }

    fn delivered(&mut self, topic: usize, channel: &str, id: [u8; 16], body: &[u8]) {
        let number = body.split(|&b| b == b' ').next().and_then(|n| std::str::from_utf8(n).ok()?.parse().ok());
        let n: usize = number.expect("a body begins with its number");
        let message = self.messages.get(n).expect("nothing is invented");
        assert!(message.topic == topic && message.body == body, "message {n} is intact and of this topic");
        if topic < EPHEMERAL {
            assert_eq!(*self.ids.entry((topic, id)).or_insert(n), n, "an id names one message");
        }
        self.channels.entry((topic, channel.to_owned())).or_default().insert(n);
    }

    pub fn check_all_delivered(&self) {
        for (n, m) in self.messages.iter().enumerate().filter(|(_, m)| m.acknowledged) {
            for channel in &m.owed {
                let got = &self.channels[&(m.topic, channel.clone())];
                assert!(got.contains(&n), "message {n} was acknowledged and never came to {}/{channel}", m.topic);
            }
        }
    }
}

#[derive(Debug)]
enum Expect {
    Published(Vec<usize>),
    Identified,
    Subscribed,
    CloseWait,
}

#[derive(Debug)]
pub struct Client {
    role: Role,
    /// Commands that are to be written.
    pub out: Vec<u8>,
    got: Vec<u8>,
    /// Answers in the order of their commands.
    expects: VecDeque<Expect>,
    subscription: Option<(usize, String)>,
    subscribed: bool,
    closing: bool,
    failed: bool,
    rdy: u32,
    rdy_max: u32,
    /// Messages that are not finished, with the number of time jumps before they came.
    held: BTreeMap<[u8; 16], u32>,
}

pub fn topic_name(topic: usize) -> String {
    format!("topic{topic}{}", if topic < EPHEMERAL { "" } else { "#ephemeral" })
}

impl Client {
    pub fn new(role: Role) -> Self {
        Client {
            role,
            out: vec![],
            got: vec![],
            expects: VecDeque::new(),
            subscription: None,
            subscribed: false,
            closing: false,
            failed: false,
            rdy: 0,
            rdy_max: 0,
            held: BTreeMap::new(),
        }
    }

    pub fn is_satisfied(&self) -> bool {
        self.expects.is_empty() || self.failed
    }

    /// Subscribed to the ephemeral topic, or about to.
    pub fn is_passing(&self) -> bool {
        self.subscription.as_ref().is_some_and(|(topic, _)| *topic >= EPHEMERAL)
    }

    /// The first messages of a topic.
    pub fn publish_some(&mut self, book: &mut Book, rng: &mut Rng) {
        (0..8).for_each(|_| self.publish_one(book, 0, rng));
    }

    pub fn is_closing(&self) -> bool {
        self.closing
    }

    pub fn subscribe(&mut self, book: &mut Book, topic: usize, channel: String, rdy: u32) {
        book.subscribed.insert(topic);
        request::subscribe(&mut self.out, &topic_name(topic), &channel);
        self.expects.push_back(Expect::Subscribed);
        self.subscription = Some((topic, channel));
        self.ready(rdy);
    }

    fn ready(&mut self, rdy: u32) {
        request::ready(&mut self.out, rdy);
        self.rdy = rdy;
        self.rdy_max = self.rdy_max.max(rdy);
    }

    /// Says something random that fits.
    pub fn act(&mut self, book: &mut Book, rng: &mut Rng) {
        if self.failed || self.expects.len() > 70 {
            return;
        }
        match self.role {
            Role::Publisher => self.publish(book, rng),
            Role::Drain => self.act_quick(),
            Role::Both if rng.chance(0.3) => self.publish(book, rng),
            Role::Both | Role::Consumer => self.consume(book, rng),
        }
    }

    fn publish(&mut self, book: &mut Book, rng: &mut Rng) {
        let topic = book.draw_topic(rng);
        match rng.below(10) {
            0 if self.subscription.is_none() => {
                request::identify(&mut self.out, br#"{"client_id":"x","feature_negotiation":true}"#);
                self.expects.push_back(Expect::Identified);
            }
            1 => {
                let numbers: Vec<usize> = (0..1 + rng.below(5)).map(|_| book.write(topic, rng)).collect();
                let bodies = numbers.iter().map(|&n| book.messages[n].body.as_slice());
                request::multi_publish(&mut self.out, &topic_name(topic), bodies);
                self.expects.push_back(Expect::Published(numbers));
            }
            2 => {
                // Many to one topic: the connection moves there.
                for _ in 0..rng.below(40) {
                    self.publish_one(book, 0, rng);
                }
            }
            _ => self.publish_one(book, topic, rng),
        }
    }

    fn publish_one(&mut self, book: &mut Book, topic: usize, rng: &mut Rng) {
        let n = book.write(topic, rng);
        request::publish(&mut self.out, &topic_name(topic), &book.messages[n].body);
        self.expects.push_back(Expect::Published(vec![n]));
    }

    fn consume(&mut self, book: &mut Book, rng: &mut Rng) {
        if self.subscription.is_none() {
            let channel = ["a", "b", "c#ephemeral"][rng.below(if book.is_durable { 2 } else { 3 }) as usize];
            let (topic, rdy) = (book.draw_topic(rng), rng.below(8) as u32);
            let channel = if topic < EPHEMERAL { channel } else { "c#ephemeral" };
            return self.subscribe(book, topic, channel.into(), rdy);
        }
        let nth = rng.below(self.held.len().max(1) as u64) as usize;
        let id = self.held.keys().nth(nth).copied();
        match (rng.below(20), id) {
            (0..3, _) if !self.closing => self.ready([0, 1, 1, 2, 3, 10, 40][rng.below(7) as usize]),
            (3, _) if !self.closing && rng.chance(0.1) => {
                request::close(&mut self.out);
                self.closing = true;
                self.expects.push_back(Expect::CloseWait);
            }
            (4..7, Some(id)) => {
                request::requeue(&mut self.out, &id, if rng.chance(0.5) { 0 } else { rng.below(3000) });
                self.held.remove(&id);
            }
            (7, Some(id)) => request::touch(&mut self.out, &id),
            (8, Some(id)) => {
                // A second FIN of the same message fails, and that is all.
                request::finish(&mut self.out, &id);
                request::finish(&mut self.out, &id);
                self.held.remove(&id);
            }
            (9.., Some(id)) => {
                request::finish(&mut self.out, &id);
                self.held.remove(&id);
            }
            _ => {}
        }
    }

    /// Acts as a client that wants to finish soon.
    pub fn act_quick(&mut self) {
        if self.failed || self.subscription.is_none() {
            return;
        }
        for id in std::mem::take(&mut self.held).into_keys() {
            request::finish(&mut self.out, &id);
        }
        if self.rdy == 0 && !self.closing {
            self.ready(1);
        }
    }

    pub fn receive(&mut self, book: &mut Book, bytes: &[u8], jumps: u32) {
        self.got.extend_from_slice(bytes);
        let got = std::mem::take(&mut self.got);
        let (frames, used) = frame::decode_all(&got).expect("well-formed frames");
        for f in frames {
            assert!(!self.failed, "nothing comes after a fatal error: {f:?}");
            match f {
                Frame::Response(b"_heartbeat_") => request::nop(&mut self.out),
                Frame::Response(response) => self.answered(book, response),
                Frame::Error(error) => self.refused(&String::from_utf8_lossy(error)),
                Frame::Message(m) => {
                    let (topic, channel) = self.subscription.clone().expect("messages come to subscribers");
                    assert!(self.subscribed, "no message before SUB's OK");
                    book.delivered(topic, &channel, m.id, m.body);
                    // A redelivery may come after the FIN for the copy before it: only the first is surely held.
                    self.held.insert(m.id, if m.attempts == 1 { jumps } else { u32::MAX });
                    let fresh = self.held.values().filter(|&&j| j == jumps).count();
                    assert!(fresh <= self.rdy_max as usize, "{fresh} in flight, RDY {} at most", self.rdy_max);
                }
            }
        }
        self.got = got[used..].to_vec();
    }

    fn answered(&mut self, book: &mut Book, response: &[u8]) {
        match (self.expects.pop_front(), response) {
            (Some(Expect::Published(numbers)), b"OK") => numbers.into_iter().for_each(|n| book.acknowledged(n)),
            (Some(Expect::Subscribed), b"OK") => {
                self.subscribed = true;
                book.channels.entry(self.subscription.clone().expect("it asked")).or_default();
            }
            (Some(Expect::Identified), [b'{', ..]) | (Some(Expect::CloseWait), b"CLOSE_WAIT") => {}
            (expect, _) => panic!("{} answers {expect:?}", String::from_utf8_lossy(response)),
        }
    }

    fn refused(&mut self, error: &str) {
        let code = error.split(' ').next().expect("a code");
        if matches!(code, "E_FIN_FAILED" | "E_REQ_FAILED" | "E_TOUCH_FAILED") {
            return;
        }
        self.failed = true;
        match (self.expects.front(), code) {
            (Some(Expect::Published(_)), "E_PUB_TOO_MUCH_WAITING") => {}
            (Some(Expect::Published(n)), "E_PUB_FAILED" | "E_DPUB_FAILED") if n.len() == 1 => {}
            (Some(Expect::Published(_)), "E_MPUB_FAILED") => {}
            (Some(Expect::Subscribed), "E_SUB_FAILED") => {}
            (expect, _) => panic!("{error} answers {expect:?}"),
        }
    }
}
