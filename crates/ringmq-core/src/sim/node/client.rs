//! One random NSQ client: it writes real bytes, reads real frames, and tells the book.

use super::book::{Book, ChannelKey, EPHEMERAL, EPHEMERAL_TOPICS, Gone, OPERATED, ORDERED, passing_name, topic_name};
use super::reach::Reach;
use super::world::MSG_TIMEOUT_MS;
use crate::base::{LogId, MessageId, MessagePlace, Rng};
use crate::codec::nsq::frame::{self, Frame, PLACE_LEN};
use crate::codec::nsq::request;
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Publisher,
    Consumer,
    /// Subscribes and publishes.
    Both,
    /// Consumes in log order.
    Ordered,
    /// Consumes a channel that an operator pauses, empties and deletes.
    Operated,
    /// Consumes an ephemeral channel of a regular topic: nothing is owed to it.
    Ephemeral,
    /// Finishes all that it gets.
    Drain,
    /// Publishes to ephemeral topics, or consumes one over an ephemeral channel.
    Passing,
}

#[derive(Debug)]
enum Expect {
    /// Messages, and how many FINs were written before.
    Published(Vec<usize>, usize),
    Identified,
    Subscribed,
}

#[derive(Debug)]
pub struct Client {
    conn: u64,
    role: Role,
    pub reach: Reach,
    /// Commands that are to be written.
    pub out: Vec<u8>,
    got: Vec<u8>,
    /// Answers in the order of their commands.
    expects: VecDeque<Expect>,
    subscription: Option<ChannelKey>,
    is_subscribed: bool,
    pub has_failed: bool,
    /// True if the client wants to ask another node.
    pub wants_to_leave: bool,
    rdy: u32,
    /// The greatest RDY of this connection.
    rdy_most: u32,
    /// Messages without an answer, and when they came.
    held: BTreeMap<[u8; 16], u64>,
    /// FINs of this connection in order.
    fins: Vec<[u8; 16]>,
    /// Messages of an ephemeral topic that came.
    pub passed: u64,
    /// The ephemeral topic that it consumes.
    passing: Option<u64>,
    /// Id before which everything of a partition was finished for good when it subscribed, or when it got a later one.
    floors: BTreeMap<u16, LogId>,
    /// Guarantees about the channel that an operator changes, as of its subscription.
    operated: (u64, Gone),
    /// Bytes of the node that are no complete frame yet.
    sent: Vec<u8>,
}

impl Client {
    pub fn new(conn: u64, role: Role, reach: Reach) -> Self {
        Client {
            conn,
            role,
            reach,
            out: b"  V2".to_vec(),
            got: vec![],
            expects: VecDeque::new(),
            subscription: None,
            is_subscribed: false,
            has_failed: false,
            wants_to_leave: false,
            rdy: 0,
            rdy_most: 0,
            held: BTreeMap::new(),
            fins: vec![],
            passed: 0,
            passing: None,
            floors: BTreeMap::new(),
            operated: Default::default(),
            sent: vec![],
        }
    }

    pub fn is_satisfied(&self) -> bool {
        self.expects.is_empty() || self.has_failed
    }

    pub fn subscribe(&mut self, book: &mut Book, channel: ChannelKey, rdy: u32) {
        let (topic, partition) = (topic_name(channel.0), self.reach.named());
        if channel.1 == OPERATED {
            self.operated = book.asks_for_operated(&channel, self.reach.partition.unwrap_or(0));
        }
        if channel.1 == ORDERED {
            self.floors = book.finished_for_good(&channel);
            request::subscribe_ordered(&mut self.out, &topic, &channel.1, partition);
        } else {
            request::subscribe_to(&mut self.out, &topic, &channel.1, partition);
        }
        self.expects.push_back(Expect::Subscribed);
        self.subscription = Some(channel);
        self.ready(rdy);
    }

    fn ready(&mut self, rdy: u32) {
        request::ready(&mut self.out, rdy);
        (self.rdy, self.rdy_most) = (rdy, self.rdy_most.max(rdy));
    }

    fn message_id(&self, wire: [u8; 16]) -> MessageId {
        match &self.subscription {
            Some((_, channel)) if channel == ORDERED => MessageId::from_binary(&wire),
            _ => MessageId::from_hex(&wire).expect("an id is sixteen lower-case hex digits"),
        }
    }

    fn id(&self, book: &Book, wire: [u8; 16]) -> MessagePlace {
        let (topic, _) = self.subscription.as_ref().expect("only subscribers hear of ids");
        book.place_named(*topic, self.message_id(wire))
    }

    /// The channel whose messages come, once its SUB was answered.
    pub fn subscribed(&self) -> Option<&ChannelKey> {
        self.subscription.as_ref().filter(|_| self.is_subscribed && !self.has_failed)
    }

    pub fn consumes(&self, channel: &ChannelKey) -> bool {
        self.subscription.as_ref() == Some(channel) && !self.has_failed
    }

    /// True if a SUB of the channel that an operator changes may be under way for it: it has no answer, or its node in a cluster asks the
    /// next leader.
    pub fn asks_for_operated(&self) -> bool {
        let is_it = self.subscription.as_ref().is_some_and(|(_, channel)| channel == OPERATED);
        is_it && (!self.is_subscribed || self.reach.is_clustered && !self.has_failed)
    }

    /// The node sends these bytes. Another node that relays to it has sent them before.
    pub fn node_sent(&mut self, book: &Book, bytes: &[u8], is_relayed: bool) {
        let Some(channel) = self.subscription.clone().filter(|c| c.1 == OPERATED) else { return };
        self.sent.extend_from_slice(bytes);
        let sent = std::mem::take(&mut self.sent);
        let (frames, used) = frame::decode_all(&sent).expect("well-formed frames");
        for f in frames {
            let Frame::Message(m) = f else { continue };
            if is_relayed {
                continue;
            }
            let id = self.id(book, m.id);
            book.a_pause_holds(&channel, id);
            book.what_an_operator_removed_never_comes(&channel, id, m.body, book.gone(&channel, id.partition.0));
        }
        self.sent = sent[used..].to_vec();
    }

    pub fn is_passing(&self) -> bool {
        self.role == Role::Passing
    }

    /// Publishes to an ephemeral topic; subscribes to it first when asked to.
    pub fn pass(&mut self, book: &mut Book, topic: u64, subscribes: bool) {
        let name = passing_name(topic);
        if subscribes {
            request::subscribe(&mut self.out, &name, "channel#ephemeral");
            self.passing = Some(topic);
            self.ready(3);
        }
        request::publish(&mut self.out, &name, &book.pass(topic));
    }

    fn passed_by(&mut self, book: &Book, f: Frame<'_>) {
        match f {
            Frame::Response(b"_heartbeat_") => request::nop(&mut self.out),
            Frame::Response(response) => assert_eq!(response, b"OK"),
            Frame::Error(error) => {
                let text = String::from_utf8_lossy(error);
                self.has_failed |= !text.starts_with("E_FIN_FAILED");
            }
            Frame::Message(m) => {
                book.passed(self.passing.expect("messages come to subscribers"), m.body);
                self.passed += 1;
                request::finish(&mut self.out, &m.id);
            }
        }
    }

    /// Says something random that fits.
    pub fn act(&mut self, book: &mut Book, rng: &mut Rng) {
        if self.has_failed || self.wants_to_leave || self.expects.len() > 70 {
            return;
        }
        match self.role {
            Role::Publisher => self.publish(book, rng),
            Role::Drain => self.act_quick(book),
            Role::Passing => {
                let subscribes = self.passing.is_none() && rng.chance(0.2);
                self.pass(book, rng.below(EPHEMERAL_TOPICS), subscribes);
            }
            Role::Both if rng.chance(0.4) => self.publish(book, rng),
            Role::Both | Role::Consumer | Role::Ordered | Role::Operated | Role::Ephemeral => self.consume(book, rng),
        }
    }

    fn publish(&mut self, book: &mut Book, rng: &mut Rng) {
        let topic = self.reach.topic(rng);
        match rng.below(12) {
            0 if self.subscription.is_none() => {
                request::identify(&mut self.out, br#"{"client_id":"x","feature_negotiation":true}"#);
                self.expects.push_back(Expect::Identified);
            }
            1 | 2 => {
                let numbers: Vec<usize> =
                    (0..1 + rng.below(5)).map(|_| book.write_to(topic, self.reach.partition, rng)).collect();
                let to = self.reach.named();
                request::multi_publish_to(&mut self.out, &topic_name(topic), to, numbers.iter().map(|&n| book.body(n)));
                book.group(numbers.clone());
                self.expects.push_back(Expect::Published(numbers, self.fins.len()));
            }
            // Many in a row to one topic: the connection moves there.
            3 => {
                let topic = self.reach.topics[0];
                (0..rng.below(50)).for_each(|_| self.publish_one(book, topic, rng));
            }
            4 | 5 if self.reach.defers_publishes => self.publish_deferred(book, topic, rng),
            _ => self.publish_one(book, topic, rng),
        }
    }

    /// Reaches every partition of every topic.
    pub fn publish_to_all(&mut self, book: &mut Book, rng: &mut Rng) {
        for topic in self.reach.topics.clone() {
            (0..4).for_each(|_| self.publish_one(book, topic, rng));
        }
    }

    /// Publishes a few messages that are due soon.
    pub fn defer_some(&mut self, book: &mut Book, rng: &mut Rng) {
        for topic in self.reach.topics.clone() {
            (0..4).for_each(|_| self.publish_deferred(book, topic, rng));
        }
    }

    fn publish_one(&mut self, book: &mut Book, topic: usize, rng: &mut Rng) {
        let n = book.write_to(topic, self.reach.partition, rng);
        request::publish_to(&mut self.out, &topic_name(topic), self.reach.named(), book.body(n));
        self.expects.push_back(Expect::Published(vec![n], self.fins.len()));
    }

    fn publish_deferred(&mut self, book: &mut Book, topic: usize, rng: &mut Rng) {
        let (n, delay_ms) = (book.write_to(topic, self.reach.partition, rng), rng.below(5_000));
        book.is_due_in(n, delay_ms);
        request::publish_deferred(&mut self.out, &topic_name(topic), delay_ms, book.body(n));
        self.expects.push_back(Expect::Published(vec![n], self.fins.len()));
    }

    fn finish(&mut self, book: &mut Book, id: [u8; 16]) {
        request::finish(&mut self.out, &id);
        let id_ = self.id(book, id);
        let channel = self.subscription.as_ref().expect("only subscribers hold messages");
        self.held.remove(&id);
        if channel.1 == EPHEMERAL {
            return book.finished_by_ephemeral(channel.0, id_);
        }
        book.finished(channel, id_);
        self.fins.push(id);
    }

    fn consume(&mut self, book: &mut Book, rng: &mut Rng) {
        if self.subscription.is_none() {
            let channel = ["a", "b"][rng.below(2) as usize];
            let channel = match self.role {
                Role::Ordered => ORDERED,
                Role::Operated => OPERATED,
                Role::Ephemeral => EPHEMERAL,
                _ => channel,
            };
            let (channel, topic) = (channel.to_owned(), self.reach.topic(rng));
            book.subscribes(topic);
            if self.role == Role::Ephemeral {
                book.has_ephemeral(topic);
            }
            if self.reach.is_clustered || self.role == Role::Operated {
                // each partition judges for itself whether the channel is its first
                book.subscribes_natively(topic);
            }
            let rdy = rng.below(12) as u32;
            return self.subscribe(book, (topic, channel), rdy);
        }
        let nth = rng.below(self.held.len().max(1) as u64) as usize;
        let id = self.held.keys().nth(nth).copied();
        match (rng.below(20), id) {
            (0..2, _) => self.ready([0, 1, 2, 3, 10, 40][rng.below(6) as usize]),
            (2..4, Some(id)) => {
                let delay_ms = if rng.chance(0.5) { 0 } else { rng.below(3000) };
                let delay_ms = if self.puts_off_for_long(delay_ms) { MSG_TIMEOUT_MS + 1 + 3 * delay_ms } else { delay_ms };
                request::requeue(&mut self.out, &id, delay_ms);
                let channel = self.subscription.as_ref().expect("it holds messages");
                let place = self.id(book, id);
                self.held.remove(&id);
                if channel.1 == EPHEMERAL {
                    return;
                }
                if delay_ms > MSG_TIMEOUT_MS {
                    book.puts_off_for_long(channel, place);
                }
                book.deferred(self.conn, channel, place, delay_ms);
            }
            (4, Some(id)) => request::touch(&mut self.out, &id),
            (5, Some(id)) => {
                // A second FIN of the same message fails, and that is all.
                request::finish(&mut self.out, &id);
                self.finish(book, id);
            }
            (6..10, _) if self.held.len() > 1 => {
                for id in self.held.clone().into_keys() {
                    self.finish(book, id);
                }
            }
            (6.., Some(id)) => self.finish(book, id),
            _ => {}
        }
    }

    /// Whether a REQ names a delay longer than the message timeout: a copy goes into the log. An ordered channel makes none.
    fn puts_off_for_long(&self, delay_ms: u64) -> bool {
        let is_ordered = self.subscription.as_ref().is_some_and(|(_, channel)| channel == ORDERED);
        !is_ordered && self.role != Role::Ephemeral && self.reach.defers && delay_ms % 3 == 1
    }

    /// Acts for a client that is to be done soon.
    pub fn act_quick(&mut self, book: &mut Book) {
        if self.has_failed || self.subscription.is_none() {
            return;
        }
        for id in self.held.clone().into_keys() {
            self.finish(book, id);
        }
        if self.rdy == 0 {
            self.ready(1);
        }
    }

    pub fn receive(&mut self, book: &mut Book, bytes: &[u8]) {
        self.got.extend_from_slice(bytes);
        let got = std::mem::take(&mut self.got);
        let (frames, used) = frame::decode_all(&got).expect("well-formed frames");
        for f in frames {
            assert!(!self.has_failed, "nothing comes after a fatal error: {f:?}");
            if self.is_passing() {
                self.passed_by(book, f);
                continue;
            }
            match f {
                Frame::Response(b"_heartbeat_") => request::nop(&mut self.out),
                Frame::Response(response) => self.answered(book, response),
                Frame::Error(error) => self.refused(book, error),
                Frame::Message(m) => {
                    let channel = self.subscription.as_ref().expect("messages come to subscribers");
                    assert!(self.is_subscribed, "no message before SUB's OK");
                    let is_placed = channel.1 == ORDERED;
                    let body = m.body.get(if is_placed { PLACE_LEN } else { 0 }..).expect("it has its place in front");
                    book.message_ids_never_repeat(channel.0, self.message_id(m.id), body);
                    let id = self.id(book, m.id);
                    if channel.1 == OPERATED {
                        book.what_an_operator_removed_never_comes(channel, id, body, self.operated.1);
                    }
                    match channel.1 == EPHEMERAL {
                        true => book.comes_to_ephemeral(channel, id, body),
                        false => book.delivered(channel, id, body),
                    }
                    if is_placed {
                        let (floor, came) = (self.floors.entry(id.partition.0).or_default(), id.log_id);
                        let name = "acknowledged_cursor_survives_failover";
                        assert!(came >= *floor, "{name}: {id:?} comes to {channel:?} again, all before {floor:?} was finished");
                        *floor = came;
                    }
                    if self.reach.partition.is_none() && self.reach.is_clustered && self.role != Role::Ephemeral {
                        book.comes_from_any(channel, id.partition.0);
                    }
                    self.held.insert(m.id, book.now_ms);
                    book.rdy_is_never_exceeded(self.held.values(), self.rdy_most);
                }
            }
        }
        self.got = got[used..].to_vec();
    }

    fn answered(&mut self, book: &mut Book, response: &[u8]) {
        match (self.expects.pop_front(), response) {
            (Some(Expect::Published(numbers, fins)), b"OK") => {
                if let Some(channel) = self.subscription.as_ref().filter(|_| fins > 0) {
                    let fins = self.fins[..fins].iter().map(|&id| (channel.clone(), self.id(book, id))).collect();
                    book.claim(self.conn, numbers[0], fins);
                }
                book.acknowledged_next(self.conn, &numbers);
                numbers.into_iter().for_each(|n| book.acknowledged(n));
            }
            (Some(Expect::Subscribed), b"OK") => {
                self.is_subscribed = true;
                let channel = self.subscription.clone().expect("it asked");
                match self.reach.partition {
                    _ if channel.1 == EPHEMERAL => {}
                    Some(partition) if channel.1 == OPERATED => book.subscribed_to_operated(&channel, partition, self.operated.0),
                    Some(partition) => book.subscribed_to(channel, partition, None),
                    None if self.reach.is_clustered => book.subscribed_to_some(channel),
                    None => book.subscribed(channel),
                }
            }
            (Some(Expect::Identified), [b'{', ..]) => {}
            (expect, _) => panic!("{} answers {expect:?}", String::from_utf8_lossy(response)),
        }
    }

    fn refused(&mut self, book: &mut Book, error: &[u8]) {
        let text = String::from_utf8_lossy(error);
        let code = text.split(' ').next().expect("a code");
        match code {
            "E_FIN_FAILED" => {
                // one with a binary id is not looked for
                let is_binary = self.subscription.as_ref().is_some_and(|(_, channel)| channel == ORDERED);
                if let Some(id) = error.get(17..33).and_then(|id| id.try_into().ok()).filter(|_| !is_binary) {
                    let place = self.id(book, id);
                    book.fin_failed(self.conn, place);
                }
                return;
            }
            "E_REQ_FAILED" | "E_TOUCH_FAILED" => return book.not_deferred(self.subscription.as_ref()),
            _ => {}
        }
        book.counts.refused += 1;
        if self.reach.is_clustered && code.starts_with("E_FAILED_ON_NOT_") {
            self.wants_to_leave = true;
            if text.contains("SUB failed") {
                // refused, or lost later on; it ends the connection
                self.has_failed = true;
                return;
            }
            match self.expects.pop_front() {
                Some(Expect::Published(numbers, _)) => numbers.into_iter().for_each(|n| book.refused(n)),
                expect => panic!("{text} answers {expect:?}"),
            }
            return;
        }
        self.has_failed = true;
        book.counts.unknown += u64::from(self.reach.is_clustered && code.ends_with("PUB_FAILED"));
        match (self.expects.front(), code) {
            (Some(_), "E_TOPIC_NOT_EXIST") if self.reach.is_clustered => {}
            (Some(Expect::Published(..)), "E_PUB_TOO_MUCH_WAITING") => {}
            (Some(Expect::Published(n, _)), "E_PUB_FAILED" | "E_DPUB_FAILED") if n.len() == 1 => {}
            (Some(Expect::Published(..)), "E_MPUB_FAILED") => {}
            (Some(Expect::Subscribed), "E_SUB_FAILED") => {}
            (expect, _) => panic!("{text} answers {expect:?}"),
        }
    }
}
