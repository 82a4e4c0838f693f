//! One random client of the native protocol: it writes real frames, reads real frames, and tells the book.
//!
//! It holds itself: `credit_is_kept` (no more messages or bytes than were granted) and `channel_begins_where_told`.

use super::book::{Book, ChannelKey, Floor, MOVED, topic_name};
use super::producers::Producer;
use super::reach::Reach;
use crate::base::{LogId, MessagePlace, PartitionId, Rng};
use crate::codec::native::frame::FRAME_MAX;
use crate::codec::native::{
    Code, Encoder, FEATURES, HEADER_LEN, Header, Hello, IdRange, Messages, NativeError, Payload, Publish, Reply, Request, Retry,
    SetOffset, Start, Subscribe, VERSION,
};
use crate::format::batch::Messages as Walk;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NativeRole {
    /// Asks for the topics, and no more.
    Ask,
    Publisher,
    /// Sends for idempotent producers of the book.
    Idempotent,
    /// Sends the batches for which this producer has no answer.
    Finish(usize),
    Consumer,
    /// Consumes a channel whose offset it sets now and then.
    Mover,
    /// Consumes and publishes.
    Both,
    /// Finishes all that it gets.
    Drain,
}

#[derive(Debug)]
enum Pending {
    Hello,
    Topic(usize),
    /// Target of the publish.
    Publish {
        to: (usize, u16),
        messages: Vec<usize>,
    },
    Produce(usize, usize),
    Subscribe(u32),
    /// Ids of a subscription, and whether it finishes them.
    Done {
        sub: u32,
        ids: Vec<MessagePlace>,
        is_fin: bool,
    },
    Unsubscribe(u32),
    Set {
        channel: ChannelKey,
        partition: u16,
    },
    Find,
    Ping,
}

#[derive(Debug)]
struct Sub {
    channel: ChannelKey,
    partition: u16,
    start: Start,
    /// The end of the partition when it was asked for, as far as it was known.
    end: LogId,
    is_live: bool,
    /// Guarantee that nothing before comes.
    floor: Option<Floor>,
    held: BTreeSet<u64>,
    /// The highest credit ever granted.
    credit: u32,
    /// Bytes granted and bytes received since the Subscribe.
    granted: u64,
    came: u64,
}

#[derive(Debug)]
pub struct NativeClient {
    conn: u64,
    role: NativeRole,
    pub reach: Reach,
    /// Bytes to be written.
    pub out: Vec<u8>,
    got: Vec<u8>,
    encoder: Encoder,
    next_request: u64,
    pending: BTreeMap<u64, Pending>,
    /// Core of the connection, once it is welcome.
    core: Option<u16>,
    subs: BTreeMap<u32, Sub>,
    next_sub: u32,
    producer: Option<usize>,
    /// FINs that the node said it took, and the request.
    fins: Vec<(u64, ChannelKey, MessagePlace)>,
    /// Age of the connection: messages may have timed out.
    pub age_ms: u64,
    /// Age before which a refused request is not tried again.
    again_at_ms: u64,
    pub has_failed: bool,
    /// True if the client wants to ask another node.
    pub wants_to_leave: bool,
    /// A publish was refused, or its outcome is unknown.
    pub lacks_publish: bool,
}

impl NativeClient {
    pub fn new(conn: u64, role: NativeRole, reach: Reach, core: Option<u16>) -> Self {
        let mut client = NativeClient {
            conn,
            role,
            reach,
            out: vec![],
            got: vec![],
            encoder: Encoder::default(),
            next_request: 1,
            pending: BTreeMap::new(),
            core: None,
            subs: BTreeMap::new(),
            next_sub: 1,
            producer: None,
            fins: vec![],
            age_ms: 0,
            again_at_ms: 0,
            has_failed: false,
            wants_to_leave: false,
            lacks_publish: false,
        };
        let hello = Hello {
            version: VERSION,
            oldest_version: VERSION,
            features: FEATURES,
            client_id: "native",
            hostname: "",
            user_agent: "",
            core,
            max_frame_bytes: 0,
            heartbeat_ms: 0,
            auth_method: "",
            auth: &[],
        };
        client.ask(&Request::Hello(hello), Pending::Hello);
        client
    }

    pub fn is_satisfied(&self) -> bool {
        self.pending.is_empty() || self.has_failed
    }

    pub fn consumes(&self, channel: &ChannelKey) -> bool {
        !self.has_failed && self.subs.values().any(|s| s.channel == *channel)
    }

    fn ask(&mut self, request: &Request<'_>, pending: Pending) {
        self.encoder.request(&mut self.out, self.next_request, request, Payload::NONE);
        self.pending.insert(self.next_request, pending);
        self.next_request += 1;
    }

    fn tell(&mut self, request: &Request<'_>) {
        self.encoder.request(&mut self.out, 0, request, Payload::NONE);
    }

    /// Says something random that fits.
    pub fn act(&mut self, book: &mut Book, rng: &mut Rng) {
        if self.has_failed || self.wants_to_leave || self.core.is_none() || self.pending.len() > 40 {
            return;
        }
        let topic = self.reach.topic(rng);
        if self.homes(book, topic).is_none() {
            return self.ask_topic(topic);
        }
        match self.role {
            NativeRole::Ask => {}
            NativeRole::Publisher => self.publish(book, rng, topic),
            NativeRole::Idempotent | NativeRole::Finish(_) => self.produce(book, rng, topic),
            NativeRole::Both if rng.chance(0.4) => self.publish(book, rng, topic),
            NativeRole::Both | NativeRole::Consumer | NativeRole::Mover => self.consume(book, rng, topic),
            NativeRole::Drain => self.act_quick(book),
        }
    }

    /// Acts for a client that is to be done soon.
    pub fn act_quick(&mut self, book: &mut Book) {
        if self.has_failed || self.core.is_none() {
            return;
        }
        if let NativeRole::Finish(k) = self.role
            && self.producer.is_none()
        {
            self.producer = Some(k);
            book.producers[k].owned_by(self.conn);
        }
        let producer = self.producer.filter(|_| self.age_ms >= self.again_at_ms);
        while let Some((k, at)) = producer.and_then(|k| book.produce(k, self.conn, None).map(|at| (k, at))) {
            self.send_batch(book, k, at);
        }
        let live: Vec<u32> = self.subs.iter().filter(|(_, s)| s.is_live).map(|(&n, _)| n).collect();
        for number in live {
            let sub = self.subs.get_mut(&number).expect("it is live");
            let held: Vec<u64> = sub.held.iter().copied().collect();
            if sub.granted < u64::MAX / 2 || sub.credit == 0 {
                self.credit(number, 20, u64::MAX / 2);
            }
            self.finish(book, number, &held, true);
        }
    }

    pub fn ask_topic(&mut self, topic: usize) {
        if !self.pending.values().any(|p| matches!(p, Pending::Topic(t) if *t == topic)) {
            self.ask(&Request::CreateTopic { topic: &topic_name(topic), partitions: 0 }, Pending::Topic(topic));
        }
    }

    /// A partition of the topic on this core; at times, or when there is none, of another.
    fn pick(&self, book: &Book, rng: &mut Rng, topic: usize) -> (u16, bool) {
        let homes = self.homes(book, topic).expect("it was asked for");
        let here: Vec<u16> = (0..homes.len() as u16).filter(|&p| Some(homes[p as usize]) == self.core).collect();
        let partition = match here.is_empty() || rng.chance(0.02) {
            true => rng.below(homes.len() as u64) as u16,
            false => here[rng.below(here.len() as u64) as usize],
        };
        (partition, here.contains(&partition))
    }

    /// The cores of a topic's partitions on this node.
    fn homes<'a>(&self, book: &'a Book, topic: usize) -> Option<&'a Vec<u16>> {
        book.homes.get(&(self.reach.node, topic))
    }

    fn home(&self, book: &Book, (topic, partition): (usize, u16)) -> Option<u16> {
        Some(self.homes(book, topic)?[partition as usize])
    }

    // ---- publishing

    fn publish(&mut self, book: &mut Book, rng: &mut Rng, topic: usize) {
        let (partition, is_here) = self.pick(book, rng, topic);
        if !is_here && rng.chance(0.8) {
            return;
        }
        self.publish_to(book, rng, topic, partition);
    }

    pub fn publish_to(&mut self, book: &mut Book, rng: &mut Rng, topic: usize, partition: u16) {
        let messages: Vec<usize> = (0..1 + rng.below(5)).map(|_| book.write_to(topic, Some(partition), rng)).collect();
        book.group(messages.clone());
        let pending = Pending::Publish { to: (topic, partition), messages: messages.clone() };
        self.send(book, (topic, partition), &messages, (0, 0), pending);
    }

    fn send(&mut self, book: &Book, to: (usize, u16), messages: &[usize], sequence: (u64, u64), pending: Pending) {
        let mut body = vec![];
        for &n in messages {
            let bytes = book.body(n);
            body.extend_from_slice(&(8 + bytes.len() as u32).to_le_bytes());
            body.extend_from_slice(&[0; 8]);
            body.extend_from_slice(bytes);
        }
        let (producer_id, first_sequence) = sequence;
        let (topic, partition) = (&topic_name(to.0)[..], PartitionId(to.1));
        let publish = Publish { topic, partition, num: messages.len() as u32, producer_id, first_sequence };
        self.encoder.request(&mut self.out, self.next_request, &Request::Publish(publish), Payload::of(&body));
        self.out.extend_from_slice(&body);
        self.pending.insert(self.next_request, pending);
        self.next_request += 1;
    }

    fn produce(&mut self, book: &mut Book, rng: &mut Rng, topic: usize) {
        let Some(k) = self.producer else {
            let (partition, is_here) = self.pick(book, rng, topic);
            let known: Vec<usize> = (0..book.producers.len())
                .filter(|&k| (book.producers[k].topic, book.producers[k].partition) == (topic, partition))
                .collect();
            if !is_here {
                return;
            }
            let k = match known.is_empty() || known.len() < 3 && rng.chance(0.2) {
                true => {
                    book.producers.push(Producer::new(rng.next_u64(), topic, partition));
                    book.producers.len() - 1
                }
                false => known[rng.below(known.len() as u64) as usize],
            };
            book.producers[k].owned_by(self.conn);
            self.producer = Some(k);
            return;
        };
        if let Some(at) = book.produce(k, self.conn, Some(rng)) {
            self.send_batch(book, k, at);
        }
    }

    fn send_batch(&mut self, book: &Book, k: usize, at: usize) {
        let p = &book.producers[k];
        let (first, messages) = book.batch(k, at);
        self.send(book, (p.topic, p.partition), messages, (p.id, first), Pending::Produce(k, at));
    }

    // ---- consuming

    fn consume(&mut self, book: &mut Book, rng: &mut Rng, topic: usize) {
        let live: Vec<u32> = self.subs.iter().filter(|(_, s)| s.is_live).map(|(&n, _)| n).collect();
        if self.subs.len() < 3 && (live.is_empty() || rng.chance(0.05)) {
            let (partition, is_here) = self.pick(book, rng, topic);
            let channel = ["a", "b", "m", "n"][rng.below(4) as usize];
            let channel = if self.role == NativeRole::Mover { MOVED } else { channel }.to_owned();
            let is_twice = self.subs.values().any(|s| s.partition == partition && s.channel == (topic, channel.clone()));
            if (is_here || rng.chance(0.1)) && !is_twice {
                let start = match rng.below(8) {
                    0 | 1 => Start::Default,
                    2 => Start::Newest,
                    3 => Start::Offset(rng.below(200_000) as i64),
                    4 => Start::Count(rng.below(100) as i64),
                    5 => Start::LogId(LogId(1 + rng.below(150))),
                    6 => Start::Timestamp(1_700_000_000_000_000_000 + rng.below(20_000_000_000) as i64),
                    _ => Start::Oldest,
                };
                self.subscribe(book, (topic, channel), partition, start);
            }
            return;
        }
        let Some(&number) = live.get(rng.below(live.len().max(1) as u64) as usize) else { return };
        let sub = &self.subs[&number];
        let held: Vec<u64> = sub.held.iter().copied().collect();
        let from = rng.below(held.len().max(1) as u64) as usize;
        let some = &held[from.min(held.len())..held.len().min(from + 1 + rng.below(6) as usize)];
        match rng.below(24) {
            0..4 => {
                let (credit, granted) = (rng.below(30) as u32, sub.granted + rng.below(30_000));
                self.credit(number, credit, granted);
            }
            4 | 5 if !some.is_empty() => {
                let delay_ms = if rng.chance(0.5) { 0 } else { rng.below(3000) as u32 };
                let request = Request::Requeue { subscription: number, ranges: ranges(some), delay_ms };
                self.about(number, some, false, &request, rng.chance(0.5));
                self.subs.get_mut(&number).expect("it is live").held.retain(|id| !some.contains(id));
            }
            6 if !some.is_empty() => {
                let request = Request::Touch { subscription: number, ranges: ranges(some) };
                self.about(number, some, false, &request, rng.chance(0.5));
            }
            7 if rng.chance(0.15) => {
                self.subs.get_mut(&number).expect("it is live").is_live = false;
                self.ask(&Request::Unsubscribe { subscription: number }, Pending::Unsubscribe(number));
            }
            7 | 8 if self.role == NativeRole::Mover => self.set_offset(book, rng, number),
            8 => {
                let (topic, partition) = (sub.channel.0, PartitionId(sub.partition));
                let start = Start::Count(rng.below(200) as i64);
                self.ask(&Request::Find { topic: &topic_name(topic), partition, start }, Pending::Find);
            }
            9..14 => self.finish(book, number, &held, rng.chance(0.7)),
            _ => self.finish(book, number, some, rng.chance(0.7)),
        }
    }

    pub fn subscribe(&mut self, book: &mut Book, channel: ChannelKey, partition: u16, start: Start) {
        let number = self.next_sub;
        self.next_sub += 1;
        book.subscribes_natively(channel.0);
        if matches!(start, Start::Count(_) | Start::LogId(_)) {
            book.may_begin_inside(&channel);
        }
        let request = Subscribe {
            subscription: number,
            topic: &topic_name(channel.0),
            partition: PartitionId(partition),
            channel: &channel.1,
            start,
            message_timeout_ms: 0,
            ordered: false,
        };
        self.ask(&Request::Subscribe(request), Pending::Subscribe(number));
        let (end, held, floor) = (book.end_known(channel.0, partition), BTreeSet::new(), book.floor(&channel, partition));
        let (is_live, credit, granted, came) = (false, 0, 0, 0);
        self.subs.insert(number, Sub { channel, partition, start, end, is_live, floor, held, credit, granted, came });
    }

    /// Moves the channel of a subscription to a message that is known to be there.
    fn set_offset(&mut self, book: &mut Book, rng: &mut Rng, number: u32) {
        let (channel, partition) = (self.subs[&number].channel.clone(), self.subs[&number].partition);
        let end = book.end_known(channel.0, partition);
        if end.0 < 2 || !book.may_set(&channel, partition) {
            return;
        }
        let to = LogId(1 + rng.below(end.0 - 1));
        book.may_begin_inside(&channel);
        book.sets(self.conn, &channel, partition, to, BTreeSet::new());
        let (topic, start, force) = (&topic_name(channel.0)[..], Start::LogId(to), true);
        let set = SetOffset { topic, partition: PartitionId(partition), channel: &channel.1, start, force };
        self.ask(&Request::SetOffset(set), Pending::Set { channel: channel.clone(), partition });
    }

    fn credit(&mut self, number: u32, messages: u32, bytes: u64) {
        let sub = self.subs.get_mut(&number).expect("it is live");
        (sub.credit, sub.granted) = (sub.credit.max(messages), sub.granted.max(bytes));
        self.tell(&Request::Credit { subscription: number, messages, bytes });
    }

    fn finish(&mut self, book: &mut Book, number: u32, ids: &[u64], is_asked: bool) {
        if ids.is_empty() {
            return;
        }
        let sub = self.subs.get_mut(&number).expect("it is live");
        for id in ids {
            sub.held.remove(id);
            let place = MessagePlace::new(PartitionId(sub.partition), LogId(*id));
            book.finished(&sub.channel, place);
            book.writes_fin(self.conn, self.next_request, &sub.channel, place);
        }
        self.about(number, ids, true, &Request::Finish { subscription: number, ranges: ranges(ids) }, is_asked);
    }

    /// Writes a request about messages, with or without an answer.
    fn about(&mut self, number: u32, ids: &[u64], is_fin: bool, request: &Request<'_>, is_asked: bool) {
        if !is_asked {
            return self.tell(request);
        }
        let partition = PartitionId(self.subs[&number].partition);
        let ids = ids.iter().map(|&id| MessagePlace::new(partition, LogId(id))).collect();
        self.ask(request, Pending::Done { sub: number, ids, is_fin });
    }

    // ---- received bytes

    pub fn receive(&mut self, book: &mut Book, bytes: &[u8]) {
        self.got.extend_from_slice(bytes);
        let got = std::mem::take(&mut self.got);
        let mut rest = &got[..];
        while let Some((header, metadata)) = Header::parse(rest, FRAME_MAX).expect("a sound frame") {
            let Some(frame) = rest.get(..header.frame_len()) else { break };
            let payload = &frame[HEADER_LEN + header.meta_len..];
            header.check_payload(payload).expect("a sound payload");
            assert!(!self.has_failed, "nothing comes after a fatal error");
            let reply = Reply::decode(header.kind, metadata).expect("a known reply");
            match header.request {
                0 => self.unasked(book, &reply, payload),
                id => {
                    let pending = self.pending.remove(&id).unwrap_or_else(|| panic!("{reply:?} answers nothing"));
                    book.has_read(self.conn, id);
                    self.answered(book, id, pending, &reply);
                }
            }
            rest = &rest[header.frame_len()..];
        }
        self.got = rest.to_vec();
    }

    fn unasked(&mut self, book: &mut Book, reply: &Reply<'_>, payload: &[u8]) {
        match reply {
            Reply::Messages(m) => self.messages(book, m, payload),
            // with a number: the answer to one without looks like this
            Reply::Pong => self.ask(&Request::Ping, Pending::Ping),
            Reply::Unsubscribed { subscription, .. } => drop(self.subs.remove(subscription)),
            Reply::Error(e) if e.fatal => {
                assert_eq!(e.code, Code::Stopping, "{e:?}");
                self.has_failed = true;
            }
            other => panic!("nobody asked: {other:?}"),
        }
    }

    fn messages(&mut self, book: &mut Book, m: &Messages, payload: &[u8]) {
        let sub = self.subs.get_mut(&m.subscription).expect("messages of a subscription that there is");
        assert!(m.attempts > 0 && m.num > 0, "{m:?}");
        assert!(sub.came < sub.granted, "credit_is_kept: {} of {} bytes came before {m:?}", sub.came, sub.granted);
        sub.came += payload.len() as u64;
        let mut walk = Walk::resume(payload, m.log_id, m.base_unix_ns);
        let mut num = 0;
        for message in walk.by_ref() {
            let at = MessagePlace::new(PartitionId(sub.partition), message.log_id);
            let id = message.copy_of.map_or(at, |copy_of| book.comes_as_copy(&sub.channel, at, copy_of, message.body));
            book.set_offset_is_never_undone(&sub.channel, at, sub.floor);
            book.delivered(&sub.channel, id, message.body);
            book.counts.native_delivered += 1;
            sub.held.insert(message.log_id.0);
            num += 1;
        }
        assert!(num == m.num && walk.rest_len() == 0, "none_invented: {num} messages of {m:?}");
        let is_in_time = self.age_ms < super::world::MSG_TIMEOUT_MS;
        // only the node drops the messages that were in flight when the offset was set
        let is_kept = sub.held.len() <= sub.credit as usize || !is_in_time || sub.channel.1 == MOVED;
        assert!(is_kept, "credit_is_kept: {} of {} messages are held", sub.held.len(), sub.credit);
    }

    fn answered(&mut self, book: &mut Book, request: u64, pending: Pending, reply: &Reply<'_>) {
        if let Reply::Error(error) = reply {
            return self.refused(book, pending, error);
        }
        match (pending, reply) {
            (Pending::Hello, Reply::Welcome(w)) => self.core = Some(w.core),
            (Pending::Topic(topic), Reply::Topics(t)) => {
                let homes = t.topics[0].partitions.iter().map(|p| p.core).collect();
                book.homes.insert((self.reach.node, topic), homes);
            }
            (Pending::Publish { to, messages }, &Reply::Published { at, duplicate }) => {
                let at = at.expect("what is new has a place");
                let home = self.home(book, to);
                assert!(!duplicate && (home.is_none() || home == self.core), "{reply:?}");
                for (i, &n) in messages.iter().enumerate() {
                    book.placed(n, MessagePlace::new(PartitionId(to.1), LogId(at.log_id.0 + i as u64)));
                    book.acknowledged(n);
                }
                // a Done comes before the answers to later requests
                let before = self.fins.iter().filter(|(of, ..)| *of < request);
                let fins: Vec<_> = before.map(|(_, channel, id)| (channel.clone(), *id)).collect();
                if !fins.is_empty() {
                    book.counts.native_claims += fins.len() as u64;
                    book.claim(self.conn, messages[0], fins);
                }
            }
            (Pending::Produce(k, batch), &Reply::Published { at, duplicate }) => {
                book.produced(k, self.conn, batch, at, duplicate);
            }
            (Pending::Subscribe(number), Reply::Subscribed(s)) => {
                assert_eq!(s.subscription, number);
                let sub = self.subs.get_mut(&number).expect("it was asked for");
                sub.is_live = true;
                let least = match sub.start {
                    Start::Newest => sub.end,
                    Start::LogId(id) => id.min(sub.end),
                    _ => LogId(0),
                };
                let is_there = !s.created || s.at.log_id >= least;
                assert!(is_there, "channel_begins_where_told: {:?} of at least {:?}, and {s:?}", sub.start, sub.end);
                book.subscribed_to(sub.channel.clone(), sub.partition, s.created.then_some(s.at.log_id));
                self.credit(number, 10, 20_000);
            }
            (Pending::Done { sub, ids, is_fin }, Reply::Done { num }) => {
                assert!(*num <= ids.len() as u64, "{num} of {ids:?}");
                if is_fin
                    && *num == ids.len() as u64
                    && let Some(sub) = self.subs.get(&sub)
                {
                    self.fins.extend(ids.into_iter().map(|id| (request, sub.channel.clone(), id)));
                }
            }
            (Pending::Unsubscribe(number), Reply::Unsubscribed { .. }) => drop(self.subs.remove(&number)),
            (Pending::Set { channel, partition }, Reply::Found(found)) => book.was_set(&channel, partition, found.at.log_id),
            (Pending::Find, Reply::Found(_)) | (Pending::Ping, Reply::Pong) => {}
            (pending, reply) => panic!("{reply:?} answers {pending:?}"),
        }
    }

    fn refused(&mut self, book: &mut Book, pending: Pending, e: &NativeError<'_>) {
        book.counts.refused += 1;
        let is_publish = matches!(pending, Pending::Publish { .. } | Pending::Produce(..));
        book.counts.unknown += u64::from(is_publish && e.code == Code::Outcome);
        let is_elsewhere = self.reach.is_clustered && matches!(e.code, Code::NotLeader | Code::BadTopic);
        self.wants_to_leave |= is_elsewhere;
        self.lacks_publish |= matches!(pending, Pending::Publish { .. });
        let is_ending = is_elsewhere || matches!(e.code, Code::ReadOnly | Code::Stopping | Code::DiskFull | Code::TooMuchWaiting);
        if matches!(e.code, Code::DiskFull | Code::TooMuchWaiting) || e.code == Code::ReadOnly && e.retry == Retry::Later {
            self.again_at_ms = self.age_ms + 100;
        }
        assert_eq!(e.retry == Retry::Unknown, e.code == Code::Outcome, "{e:?}");
        if e.code == Code::WrongCore {
            let to = match &pending {
                Pending::Publish { to, .. } => *to,
                Pending::Subscribe(number) => (self.subs[number].channel.0, self.subs[number].partition),
                other => panic!("{e:?} answers {other:?}"),
            };
            let home = self.home(book, to);
            assert!(
                home.is_none_or(|h| h == e.core && home != self.core) && e.retry == Retry::Refresh,
                "{e:?}: it is on core {home:?}"
            );
        }
        match pending {
            Pending::Publish { messages, .. } if e.retry != Retry::Unknown => {
                assert!(is_ending || e.code == Code::WrongCore, "{e:?} answers a publish");
                messages.into_iter().for_each(|n| book.refused(n));
            }
            Pending::Publish { .. } => {}
            Pending::Produce(k, batch) => book.produce_failed(k, self.conn, batch, e),
            Pending::Subscribe(number) => {
                let may_be = is_ending || matches!(e.code, Code::WrongCore | Code::Other | Code::Outcome);
                assert!(may_be, "{e:?} answers Subscribe");
                self.subs.remove(&number);
            }
            Pending::Topic(_) | Pending::Find => assert!(is_ending || matches!(e.code, Code::Other | Code::Outcome), "{e:?}"),
            // it was ended, by either side
            Pending::Done { sub, .. } | Pending::Unsubscribe(sub) => {
                let is_gone = self.subs.get(&sub).is_none_or(|s| !s.is_live);
                assert!(is_elsewhere || is_gone && e.code == Code::BadSubscription, "{e:?}");
            }
            Pending::Set { channel, partition } => {
                assert!(is_ending || matches!(e.code, Code::Other | Code::Outcome | Code::BadStart | Code::BadChannel), "{e:?}");
                book.set_failed(&channel, partition, e.retry == Retry::Unknown);
            }
            Pending::Hello | Pending::Ping => panic!("{e:?} answers Hello or Ping"),
        }
        self.has_failed |= e.fatal;
    }
}

/// Fewest ranges that name these ascending ids.
fn ranges(ids: &[u64]) -> Vec<IdRange> {
    let mut ranges: Vec<IdRange> = vec![];
    for &id in ids {
        match ranges.last_mut() {
            Some(last) if last.last.0 + 1 == id => last.last = LogId(id),
            _ => ranges.push(IdRange { first: LogId(id), last: LogId(id) }),
        }
    }
    ranges
}

/// A publish that was refused for a moment at rest was not taken: each partition must take one.
#[test]
fn who_was_refused_a_publish_lacks_it() {
    let (mut book, mut rng) = (Book::default(), Rng::new(1));
    let reach = Reach { is_clustered: true, ..Reach::alone(1) };
    let mut client = NativeClient::new(1, NativeRole::Publisher, reach, None);
    client.publish_to(&mut book, &mut rng, 0, 0);
    let pending = client.pending.remove(&(client.next_request - 1)).expect("it was just sent");
    let opening = NativeError { code: Code::ReadOnly, retry: Retry::Later, message: "", core: 0, fatal: false };
    assert!(!client.lacks_publish);
    client.refused(&mut book, pending, &opening);
    assert!(client.lacks_publish && !client.has_failed && !client.wants_to_leave);
}
