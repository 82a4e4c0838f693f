//! The session itself: frames to host calls, answers and messages to output.

mod output;
mod silence;

use super::ROOM;
use super::host::{
    Failure, NativeAnswer, NativeFinished, NativeHost, NativePublish, NativeSetOffset, NativeSubscribe, NativeTaken,
    PartitionPlace, TopicEntry,
};
use crate::base::client::ClientInfo;
use crate::base::{ChannelName, ConnId, Lent, Now, PartitionId, Peer, Ticks, TopicName};
use crate::codec::input::{Frame, Input};
use crate::codec::native::frame::{FRAME_MAX, HELLO_FRAME_MAX, META_MAX};
use crate::codec::native::{
    Code, Encoder, FEATURES, FrameError, Hello, Malformed, NativeError, NodeInfo, OLDEST_VERSION, PartitionInfo, Payload, Reply,
    Request, Retry, Start, Subscribed, TopicInfo, Topics, VERSION, Welcome,
};
use crate::codec::nsq::Limits;
use crate::session::published::Published;
use bytes::Bytes;
use std::{mem, sync::Arc};

/// Intervals without a byte from the client, or without one taken by it, after which it is given up.
const SILENT_INTERVALS_MAX: u32 = 2;

/// Unfinished messages of a subscription at most: bounds the work at the end of a connection, or of one Finish.
const CREDIT_MAX: u32 = 100_000;

/// Payload of a frame with several messages, at most (a channel's turn).
const RUN_BYTES_MAX: usize = 256 * 1024;

/// The shortest heartbeat interval that a client may ask for.
const HEARTBEAT_MIN_MS: u32 = 1000;

/// Longest text of a client about itself, each.
const TEXT_MAX: usize = 256;

/// Unsent answers above which nothing more is read.
const OUTPUT_STOP: usize = 1024 * 1024;

/// A client's own description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    pub client_id: String,
    pub hostname: String,
    pub user_agent: String,
    pub remote_address: String,
    pub connected_unix_s: i64,
}

impl From<&ClientIdentity> for ClientInfo {
    fn from(i: &ClientIdentity) -> ClientInfo {
        ClientInfo {
            version: "native",
            client_id: i.client_id.clone(),
            hostname: i.hostname.clone(),
            user_agent: i.user_agent.clone(),
            remote_address: i.remote_address.clone(),
            connected_unix_s: i.connected_unix_s,
            ..ClientInfo::default()
        }
    }
}

/// Terms that the handshake settled.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    version: u16,
    features: u64,
    heartbeat_ms: u32,
    /// Request id of Hello, until it is answered.
    owed: Option<u64>,
}

/// State of a session that moves with its connection to another core.
#[derive(Debug)]
pub struct NativeCarried {
    agreed: Option<Agreed>,
    identity: ClientIdentity,
    published: Published,
}

/// A request that waits for the host.
#[derive(Debug)]
enum PendingRequest {
    Hello { core: u16 },
    Publish(NativePublish),
    Subscribe(NativeSubscribe),
    CreateTopic { request: u64, topic: String, partitions: u16 },
    Find { request: u64, topic: String, partition: PartitionId, start: Start },
    SetOffset(NativeSetOffset),
}

#[derive(Debug)]
struct Stalled {
    since: Ticks,
    what: PendingRequest,
}

/// A node's own description in Welcome.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts {
    pub node_id: [u8; 16],
    pub cores: u16,
    pub core: u16,
}

pub struct NativeSession {
    conn: ConnId,
    peer: Peer,
    limits: Arc<Limits>,
    node: NodeFacts,
    agreed: Option<Agreed>,
    identity: ClientIdentity,
    published: Published,
    // ---- input
    input: Input,
    stalled: Option<Stalled>,
    /// Bytes that came behind the request that waits.
    unparsed: Vec<u8>,
    /// Input is ignored from here on.
    ended: bool,
    // ---- output
    encoder: Encoder,
    /// Bytes that go out before `out`.
    pieces: Vec<Bytes>,
    pieces_bytes: usize,
    out: Vec<u8>,
    unsent: usize,
    out_hint: usize,
    /// Requests whose answer is owed.
    outstanding: usize,
    // ---- time
    read_since: Ticks,
    /// Time of the last send.
    said_since: Ticks,
    /// Time at which unsent output last moved, or there was none.
    sent_since: Ticks,
    is_dead: bool,
    /// Reason why the node ends the connection; taken once.
    fault: Option<Box<str>>,
}

impl NativeSession {
    pub fn new(conn: ConnId, peer: Peer, limits: Arc<Limits>, node: NodeFacts, now: Now) -> Self {
        let address = peer.0.to_string();
        let identity = ClientIdentity {
            client_id: address.clone(),
            remote_address: address,
            connected_unix_s: now.unix_ns / 1_000_000_000,
            ..ClientIdentity::default()
        };
        let carried = NativeCarried { agreed: None, identity, published: Published::default() };
        Self::adopt(conn, peer, carried, limits, node, now)
    }

    /// Goes on with a connection from another core; its unread bytes follow through [`Self::on_bytes`].
    pub fn adopt(conn: ConnId, peer: Peer, carried: NativeCarried, limits: Arc<Limits>, node: NodeFacts, now: Now) -> Self {
        let NativeCarried { agreed, identity, published } = carried;
        let max = if agreed.is_some() { frame_max(&limits) } else { HELLO_FRAME_MAX };
        let mut session = NativeSession {
            conn,
            peer,
            limits,
            node,
            agreed,
            identity,
            published,
            input: Input::new(max, ROOM),
            stalled: None,
            unparsed: Vec::new(),
            ended: false,
            encoder: Encoder::default(),
            pieces: Vec::new(),
            pieces_bytes: 0,
            out: Vec::new(),
            unsent: 0,
            out_hint: 0,
            outstanding: 0,
            read_since: now.ticks,
            said_since: now.ticks,
            sent_since: now.ticks,
            is_dead: false,
            fault: None,
        };
        session.welcome();
        session
    }

    /// Takes out the state that moves to another core, and the unparsed bytes. Only a connection whose Hello waits moves.
    pub fn carry(&mut self) -> (NativeCarried, Vec<u8>) {
        assert!(self.is_quiet() && !self.ended, "only a quiet connection moves");
        self.stalled = None;
        self.ended = true;
        let mut unread = self.input.take_head();
        unread.append(&mut self.unparsed);
        let carried = NativeCarried {
            agreed: self.agreed,
            identity: mem::take(&mut self.identity),
            published: mem::take(&mut self.published),
        };
        (carried, unread)
    }

    // ---- input

    pub fn on_bytes(&mut self, now: Now, bytes: &[u8], host: &mut impl NativeHost) {
        if self.ended {
            return;
        }
        self.read_since = now.ticks;
        if self.stalled.is_some() || !self.unparsed.is_empty() {
            return self.unparsed.extend_from_slice(bytes);
        }
        self.parse(now, bytes, host);
    }

    fn parse(&mut self, now: Now, mut bytes: &[u8], host: &mut impl NativeHost) {
        while !bytes.is_empty() && !self.ended {
            if self.stalled.is_some() || !self.has_room() {
                return self.unparsed.extend_from_slice(bytes);
            }
            // the input lends its buffer to the frame: it is out of the session meanwhile
            let mut input = mem::replace(&mut self.input, Input::new(0, ROOM));
            let next = input.next(&mut bytes, |h| h.kind == crate::codec::native::PUBLISH, &mut |f| self.frame(now, f, host));
            input.max = if self.agreed.is_some() { frame_max(&self.limits) } else { HELLO_FRAME_MAX };
            self.input = input;
            if let Err(error) = next {
                self.broken(&error);
            }
        }
    }

    /// Memory for the next receive: a long payload goes directly to its final place.
    pub fn lend(&mut self) -> Option<Lent> {
        if self.limits.native_is_plain && self.wants_reading() { self.input.lend(self.limits.in_place_min) } else { None }
    }

    /// Takes back the lent buffer with the received bytes.
    pub fn received(&mut self, now: Now, lent: Lent, host: &mut impl NativeHost) {
        if self.ended {
            return;
        }
        self.read_since = now.ticks;
        let mut input = mem::replace(&mut self.input, Input::new(0, ROOM));
        input.take_back(lent, &mut |f| self.frame(now, f, host));
        self.input = input;
    }

    /// The stream cannot be read on.
    fn broken(&mut self, error: &FrameError) {
        let code = if matches!(error, FrameError::TooLong { .. }) { Code::TooBig } else { Code::Malformed };
        self.fail(0, &Failure::fatal(code, error.to_string()));
    }

    fn frame(&mut self, now: Now, frame: Frame<'_>, host: &mut impl NativeHost) {
        let Frame { header, metadata, payload } = frame;
        let request = match Request::decode(header.kind, metadata) {
            Ok(request) => request,
            Err(error) => {
                let code = if matches!(error, Malformed::UnknownKind(_)) { Code::UnknownKind } else { Code::Malformed };
                return self.fail(header.request, &Failure::never(code, error.to_string()));
            }
        };
        let id = header.request;
        if let Request::Hello(hello) = request {
            return self.hello(now, id, &hello, host);
        }
        if self.agreed.is_none() {
            return self.fail(id, &Failure::fatal(Code::Malformed, "the first frame must be Hello"));
        }
        match request {
            Request::Hello(_) => {}
            Request::Publish(p) => {
                let publish = NativePublish {
                    request: id,
                    topic: p.topic.to_owned(),
                    partition: p.partition,
                    num: p.num,
                    producer_id: p.producer_id,
                    first_sequence: p.first_sequence,
                    body: payload,
                    body_crc: header.payload_crc,
                };
                match TopicName::new(p.topic) {
                    Ok(_) => self.ask(now, PendingRequest::Publish(publish), host),
                    Err(_) => self.fail(id, &bad_topic()),
                }
            }
            Request::Subscribe(s) => {
                if TopicName::new(s.topic).is_err() {
                    return self.fail(id, &bad_topic());
                }
                if ChannelName::new(s.channel).is_err() {
                    return self.fail(id, &Failure::never(Code::BadChannel, "the channel's name is not valid"));
                }
                let timeout = match s.message_timeout_ms {
                    0 => self.limits.msg_timeout_ms,
                    ms => (ms as u64).min(self.limits.max_msg_timeout_ms),
                };
                let subscribe = NativeSubscribe {
                    request: id,
                    subscription: s.subscription,
                    topic: s.topic.to_owned(),
                    partition: s.partition,
                    channel: s.channel.to_owned(),
                    start: s.start,
                    message_timeout_ms: timeout,
                    ordered: s.ordered,
                };
                self.ask(now, PendingRequest::Subscribe(subscribe), host);
            }
            Request::Credit { subscription, messages, bytes } => {
                let messages = messages.min(CREDIT_MAX);
                if !host.native_credit(self.conn, subscription, messages, bytes) {
                    self.no_subscription(id, subscription);
                }
            }
            Request::Finish { subscription, ranges } => match host.native_finish(now, self.conn, id, subscription, &ranges) {
                NativeFinished::Done(num) => self.done(id, subscription, Some(num)),
                NativeFinished::Waits => self.outstanding += (id != 0) as usize,
                NativeFinished::Refused(failure) if id != 0 => self.fail(id, &failure),
                // A client that asked for no answer gets none: the message comes again by its timeout.
                NativeFinished::Refused(_) => {}
                NativeFinished::NoSubscription => self.done(id, subscription, None),
            },
            Request::Requeue { subscription, ranges, delay_ms } => {
                let delay_ms = delay_ms.min(u32::try_from(self.limits.max_req_timeout_ms).unwrap_or(u32::MAX));
                let num = host.native_requeue(now, self.conn, subscription, &ranges, delay_ms);
                self.done(id, subscription, num);
            }
            Request::Touch { subscription, ranges } => {
                let num = host.native_touch(now, self.conn, subscription, &ranges);
                self.done(id, subscription, num);
            }
            Request::Unsubscribe { subscription } => {
                if host.native_unsubscribe(self.conn, subscription) {
                    self.reply(id, &Reply::Unsubscribed { subscription, reason: "" });
                } else {
                    self.no_subscription(id, subscription);
                }
            }
            Request::GetTopics { topics, after } => self.topics(id, &topics, after, host),
            Request::CreateTopic { topic, partitions } => match TopicName::new(topic) {
                Ok(_) => self.ask(now, PendingRequest::CreateTopic { request: id, topic: topic.to_owned(), partitions }, host),
                Err(_) => self.fail(id, &bad_topic()),
            },
            Request::Find { topic, partition, start } => {
                self.ask(now, PendingRequest::Find { request: id, topic: topic.to_owned(), partition, start }, host);
            }
            Request::SetOffset(s) => {
                let set = NativeSetOffset {
                    request: id,
                    topic: s.topic.to_owned(),
                    partition: s.partition,
                    channel: s.channel.to_owned(),
                    to: s.start,
                    force: s.force,
                };
                self.ask(now, PendingRequest::SetOffset(set), host);
            }
            Request::Ping => self.reply(id, &Reply::Pong),
        }
    }

    fn hello(&mut self, now: Now, id: u64, hello: &Hello<'_>, host: &mut impl NativeHost) {
        if self.agreed.is_some() {
            return self.fail(id, &Failure::fatal(Code::Malformed, "Hello comes once"));
        }
        if hello.oldest_version > VERSION || hello.version < OLDEST_VERSION || hello.oldest_version > hello.version {
            let why = format!(
                "this node speaks versions {OLDEST_VERSION} to {VERSION}, the client {} to {}",
                hello.oldest_version, hello.version
            );
            return self.fail(id, &Failure::fatal(Code::BadVersion, why));
        }
        let least = self.limits.max_msg_size.max(RUN_BYTES_MAX) + META_MAX;
        if hello.max_frame_bytes != 0 && (hello.max_frame_bytes as usize) < least {
            let why = format!("the client takes frames of {} bytes, this node sends up to {least}", hello.max_frame_bytes);
            return self.fail(id, &Failure::fatal(Code::TooBig, why));
        }
        let default = u32::try_from(self.limits.heartbeat_interval_ms).unwrap_or(u32::MAX);
        let most = u32::try_from(self.limits.max_heartbeat_interval_ms).unwrap_or(u32::MAX);
        self.agreed = Some(Agreed {
            version: hello.version.min(VERSION),
            features: hello.features & FEATURES,
            heartbeat_ms: if hello.heartbeat_ms == 0 { default } else { hello.heartbeat_ms.clamp(HEARTBEAT_MIN_MS, most) },
            owed: Some(id),
        });
        let text = |s: &str| s[..s.floor_char_boundary(TEXT_MAX)].to_owned();
        if !hello.client_id.is_empty() {
            self.identity.client_id = text(hello.client_id);
        }
        self.identity.hostname = text(hello.hostname);
        self.identity.user_agent = text(hello.user_agent);
        match hello.core {
            Some(core) if core < self.node.cores && core != self.node.core => {
                self.ask(now, PendingRequest::Hello { core }, host);
            }
            _ => self.welcome(),
        }
    }

    /// Answers Hello, on the core where the connection lives.
    fn welcome(&mut self) {
        let Some(agreed) = &mut self.agreed else { return };
        let Some(id) = agreed.owed.take() else { return };
        let welcome = Welcome {
            version: agreed.version,
            features: agreed.features,
            node_id: self.node.node_id,
            node_version: &self.limits.version,
            cores: self.node.cores,
            core: self.node.core,
            max_frame_bytes: frame_max(&self.limits) as u32,
            max_message_bytes: u32::try_from(self.limits.max_msg_size).unwrap_or(u32::MAX),
            heartbeat_ms: agreed.heartbeat_ms,
            message_timeout_ms: u32::try_from(self.limits.msg_timeout_ms).unwrap_or(u32::MAX),
        };
        self.encoder.reply(&mut self.out, id, &Reply::Welcome(welcome), Payload::NONE);
    }

    /// Asks the host; keeps the request when it has to wait.
    fn ask(&mut self, now: Now, mut what: PendingRequest, host: &mut impl NativeHost) {
        let (conn, mut counted) = (self.conn, 1);
        let taken = match &mut what {
            PendingRequest::Hello { core } => {
                counted = 0;
                if host.native_move(conn, *core) { NativeTaken::Stall } else { NativeTaken::Accepted }
            }
            PendingRequest::Publish(p) => host.native_publish(now, conn, p),
            PendingRequest::Subscribe(s) => host.native_subscribe(now, conn, s, &self.identity),
            PendingRequest::CreateTopic { request, topic, partitions } => {
                host.native_create_topic(now, conn, *request, topic, *partitions)
            }
            PendingRequest::Find { request, topic, partition, start } => {
                host.native_find(now, conn, *request, topic, *partition, *start)
            }
            PendingRequest::SetOffset(set) => host.native_set_offset(now, conn, set),
        };
        match taken {
            NativeTaken::Accepted => {
                self.outstanding += counted;
                match &what {
                    PendingRequest::Publish(p) => self.published.add(&p.topic, p.num as usize),
                    PendingRequest::Hello { .. } => self.welcome(),
                    _ => {}
                }
            }
            NativeTaken::Stall => self.stalled = Some(Stalled { since: now.ticks, what }),
            NativeTaken::Refused(failure) => self.fail(what.request(), &failure),
        }
    }

    fn topics(&mut self, id: u64, names: &[&str], after: &str, host: &mut impl NativeHost) {
        let (mut found, mut bytes, mut more) = (Vec::new(), 0, false);
        host.native_topics(names, after, &mut |topic: TopicEntry| {
            more = bytes >= Topics::FULL_BYTES;
            if !more {
                bytes += info(&topic).encoded_bytes();
                found.push(topic);
            }
            !more
        });
        let topics: Vec<TopicInfo<'_>> = found.iter().map(info).collect();
        self.tell_topics(id, topics, more, &host.native_nodes());
    }

    fn tell_topics(&mut self, id: u64, topics: Vec<TopicInfo<'_>>, more: bool, others: &[([u8; 16], Arc<str>)]) {
        let own = NodeInfo { id: self.node.node_id, address: "" };
        let others = others.iter().map(|(id, address)| NodeInfo { id: *id, address });
        let nodes = std::iter::once(own).chain(others).collect();
        self.reply(id, &Reply::Topics(Topics { topics, nodes, more }));
    }

    // ---- stalls

    /// Tries the request that waits again, then goes on.
    pub fn resume(&mut self, now: Now, host: &mut impl NativeHost) {
        let Some(Stalled { since, what }) = self.stalled.take() else { return };
        if self.ended {
            return;
        }
        self.ask(now, what, host);
        match &mut self.stalled {
            Some(again) => again.since = since,
            None => self.parse_rest(now, host),
        }
    }

    fn parse_rest(&mut self, now: Now, host: &mut impl NativeHost) {
        self.read_since = now.ticks;
        let rest = mem::take(&mut self.unparsed);
        self.parse(now, &rest, host);
    }

    /// Resumes work that waited for output space or answers.
    pub fn go_on(&mut self, now: Now, host: &mut impl NativeHost) {
        if !self.unparsed.is_empty() && self.stalled.is_none() && self.has_room() {
            self.parse_rest(now, host);
        }
    }

    pub fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    pub fn stalled_since(&self) -> Option<Ticks> {
        self.stalled.as_ref().map(|s| s.since)
    }

    /// Answers the request that waits with an error instead; `resume` is to be called after.
    pub fn fail_stalled(&mut self, now: Now, failure: &Failure, host: &mut impl NativeHost) {
        if let Some(Stalled { what, .. }) = self.stalled.take() {
            match what {
                PendingRequest::Hello { .. } => self.welcome(),
                what => self.fail(what.request(), failure),
            }
            self.parse_rest(now, host);
        }
    }

    // ---- answers

    /// The answer to a request that was accepted.
    pub fn answer(&mut self, request: u64, answer: NativeAnswer) {
        self.outstanding = self.outstanding.saturating_sub(1);
        match answer {
            NativeAnswer::Published { at, duplicate } => self.reply(request, &Reply::Published { at, duplicate }),
            NativeAnswer::Subscribed { subscription, created, at } => {
                self.reply(request, &Reply::Subscribed(Subscribed { subscription, created, at }));
            }
            NativeAnswer::Created(topic, others) => self.tell_topics(request, vec![info(&topic)], false, &others),
            NativeAnswer::Found { at } => self.reply(request, &Reply::Found(crate::codec::native::Found { at })),
            NativeAnswer::Finished { num } => self.reply(request, &Reply::Done { num }),
            NativeAnswer::Failed(failure) => self.fail(request, &failure),
        }
    }

    /// The node has ended a subscription.
    pub fn end_subscription(&mut self, subscription: u32, reason: &str) {
        self.reply(0, &Reply::Unsubscribed { subscription, reason });
    }

    fn done(&mut self, id: u64, subscription: u32, num: Option<u64>) {
        match num {
            Some(num) if id != 0 => self.reply(id, &Reply::Done { num }),
            Some(_) => {}
            None => self.no_subscription(id, subscription),
        }
    }

    /// Refuses a request for a subscription that does not exist. A request without an id gets no answer: a Finish may cross the end of
    /// its subscription.
    fn no_subscription(&mut self, id: u64, subscription: u32) {
        if id == 0 {
            return;
        }
        let why = format!("there is no subscription {subscription} on this connection");
        self.fail(id, &Failure::never(Code::BadSubscription, why));
    }

    fn fail(&mut self, request: u64, failure: &Failure) {
        let Failure { code, retry, message, core, fatal } = failure;
        let error = NativeError { code: *code, retry: *retry, message, core: *core, fatal: *fatal };
        self.reply(request, &Reply::Error(error));
        if *fatal {
            self.fault = Some(message.to_string().into());
            self.ended = true;
            self.stalled = None;
            self.unparsed = Vec::new();
        }
    }

    fn reply(&mut self, request: u64, reply: &Reply<'_>) {
        if !self.ended {
            let out = output::roomy(&mut self.out, self.out_hint);
            self.encoder.reply(out, request, reply, Payload::NONE);
        }
    }

    // ---- messages and output

    /// Takes the reason why the node ends this connection, once.
    pub fn take_fault(&mut self) -> Option<Box<str>> {
        self.fault.take()
    }

    pub fn on_sent(&mut self, now: Now, bytes: usize) {
        self.unsent = self.unsent.checked_sub(bytes).expect("no more is sent than was taken");
        self.sent_since = now.ticks;
    }

    /// No further messages for now: something is sent before this changes.
    pub fn is_output_full(&self) -> bool {
        self.untaken() + self.unsent > self.limits.output_full_bytes
    }

    /// True if the connection closes once its output is sent.
    pub fn is_closing(&self) -> bool {
        self.is_dead || self.ended
    }

    /// False: the socket is not to be read for now. Messages that wait to be sent do not stop a consumer's Finish.
    pub fn wants_reading(&self) -> bool {
        !self.ended && self.stalled.is_none() && self.unparsed.is_empty() && self.has_room()
    }

    /// True if another request may be answered.
    fn has_room(&self) -> bool {
        let full = self.limits.output_full_bytes + self.limits.output_stop_bytes;
        self.untaken() + self.unsent <= full.max(OUTPUT_STOP) && self.outstanding < self.limits.replies_max
    }

    /// The connection may move: its Hello waits for that.
    pub fn is_quiet(&self) -> bool {
        self.outstanding == 0 && self.untaken() == 0 && self.unsent == 0
    }

    // ---- for the shard

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn held_bytes(&self) -> usize {
        self.input.held_bytes() + self.unparsed.capacity() + self.out.capacity()
    }

    pub fn published(&self) -> impl Iterator<Item = (&str, u64)> {
        self.published.iter()
    }

    pub fn client_info(&self) -> ClientInfo {
        (&self.identity).into()
    }
}

impl PendingRequest {
    fn request(&self) -> u64 {
        match self {
            PendingRequest::Hello { .. } => 0,
            PendingRequest::Publish(p) => p.request,
            PendingRequest::Subscribe(s) => s.request,
            PendingRequest::CreateTopic { request, .. } | PendingRequest::Find { request, .. } => *request,
            PendingRequest::SetOffset(set) => set.request,
        }
    }
}

fn bad_topic() -> Failure {
    Failure::new(Code::BadTopic, Retry::Never, "the topic's name is not valid")
}

fn info(topic: &TopicEntry) -> TopicInfo<'_> {
    let partition = |(i, p): (usize, &PartitionPlace)| PartitionInfo { id: PartitionId(i as u16), core: p.core, node: p.node };
    TopicInfo { name: &topic.name, id: topic.id, partitions: topic.places.iter().enumerate().map(partition).collect() }
}

/// The longest frame that the node takes: a body of the usual size, with a batch's overhead for many small messages.
pub fn frame_max(limits: &Limits) -> usize {
    let body_max = limits.max_body_size.max(limits.max_msg_size);
    (body_max.saturating_mul(2) + 64 * 1024).min(FRAME_MAX)
}
