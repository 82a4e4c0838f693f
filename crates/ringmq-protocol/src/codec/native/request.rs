//! Requests of a client.

use super::{Encoder, Malformed, Payload, RANGES_MAX, TOPICS_MAX, fb, frame};
use crate::base::{LogId, PartitionId};
use crate::codec::metadata::{check, table};

/// Kinds of frames from the client. Numbers are never used again for something else.
pub mod kind {
    pub const HELLO: u8 = 1;
    pub const PUBLISH: u8 = 2;
    pub const SUBSCRIBE: u8 = 3;
    pub const CREDIT: u8 = 4;
    pub const FINISH: u8 = 5;
    pub const REQUEUE: u8 = 6;
    pub const TOUCH: u8 = 7;
    pub const UNSUBSCRIBE: u8 = 8;
    pub const GET_TOPICS: u8 = 9;
    pub const CREATE_TOPIC: u8 = 10;
    pub const FIND: u8 = 11;
    pub const PING: u8 = 12;
    pub const SET_OFFSET: u8 = 13;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Hello(Hello<'a>),
    /// The payload is a batch's body as it stands on disk; the frame's payload crc is the body's.
    Publish(Publish<'a>),
    Subscribe(Subscribe<'a>),
    /// `messages` may be unfinished at any time; `bytes` of payload may have been sent since Subscribe, in all.
    Credit {
        subscription: u32,
        messages: u32,
        bytes: u64,
    },
    Finish {
        subscription: u32,
        ranges: Vec<IdRange>,
    },
    Requeue {
        subscription: u32,
        ranges: Vec<IdRange>,
        delay_ms: u32,
    },
    Touch {
        subscription: u32,
        ranges: Vec<IdRange>,
    },
    Unsubscribe {
        subscription: u32,
    },
    /// Names of topics, at most [`TOPICS_MAX`]. Empty: all behind `after`, ordered by name.
    GetTopics {
        topics: Vec<&'a str>,
        after: &'a str,
    },
    /// `partitions` 0: the node's default.
    CreateTopic {
        topic: &'a str,
        partitions: u16,
    },
    Find {
        topic: &'a str,
        partition: PartitionId,
        start: Start,
    },
    Ping,
    SetOffset(SetOffset<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    pub version: u16,
    pub oldest_version: u16,
    pub features: u64,
    pub client_id: &'a str,
    pub hostname: &'a str,
    pub user_agent: &'a str,
    /// Core on which the connection is to live.
    pub core: Option<u16>,
    /// The longest frame the client takes; 0: as long as the node's.
    pub max_frame_bytes: u32,
    /// 0: the node's default.
    pub heartbeat_ms: u32,
    pub auth_method: &'a str,
    pub auth: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish<'a> {
    pub topic: &'a str,
    pub partition: PartitionId,
    /// Messages in the payload, at least one.
    pub num: u32,
    /// Zero: not an idempotent producer.
    pub producer_id: u64,
    pub first_sequence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribe<'a> {
    pub subscription: u32,
    pub topic: &'a str,
    pub partition: PartitionId,
    pub channel: &'a str,
    /// Position at which a channel that is new in this partition begins.
    pub start: Start,
    /// 0: the node's default.
    pub message_timeout_ms: u32,
    /// True to make the channel ordered.
    pub ordered: bool,
}

/// A channel's new position in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetOffset<'a> {
    pub topic: &'a str,
    pub partition: PartitionId,
    pub channel: &'a str,
    /// New position; never [`Start::Default`].
    pub start: Start,
    /// True to set the offset also while several clients are subscribed.
    pub force: bool,
}

/// A place in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Position for NSQ clients: the first channel of a topic begins at the oldest message, later ones at the end.
    Default,
    Oldest,
    Newest,
    /// The batch that holds this virtual offset.
    Offset(i64),
    /// The message with this many before it.
    Count(i64),
    LogId(LogId),
    /// Position before the first message of this time (unix nanoseconds) or later; earlier messages of its batch may come.
    Timestamp(i64),
}

/// Log ids, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub first: LogId,
    pub last: LogId,
}

impl IdRange {
    /// Appends it to ranges that are noted as they come, or to the last of them where it continues that.
    pub fn append_to(self, ranges: &mut Vec<IdRange>) {
        match ranges.last_mut() {
            Some(last) if last.last.0 + 1 == self.first.0 => last.last = self.last,
            _ => ranges.push(self),
        }
    }
}

impl<'a> Request<'a> {
    pub fn decode(kind: u8, metadata: &'a [u8]) -> Result<Request<'a>, Malformed> {
        Ok(match kind {
            kind::HELLO => Request::Hello(hello(table::<fb::Hello>("Hello", metadata)?)),
            kind::PUBLISH => Request::Publish(publish(table::<fb::Publish>("Publish", metadata)?)?),
            kind::SUBSCRIBE => {
                let t = table::<fb::Subscribe>("Subscribe", metadata)?;
                Request::Subscribe(Subscribe {
                    subscription: t.subscription(),
                    topic: t.topic(),
                    partition: PartitionId(t.partition()),
                    channel: t.channel(),
                    start: Start::decode("Subscribe", t.start_at(), t.start())?,
                    message_timeout_ms: t.message_timeout_ms(),
                    ordered: t.ordered(),
                })
            }
            kind::CREDIT => {
                let t = table::<fb::Credit>("Credit", metadata)?;
                Request::Credit { subscription: t.subscription(), messages: t.messages(), bytes: t.bytes() }
            }
            kind::FINISH => {
                let t = table::<fb::Finish>("Finish", metadata)?;
                Request::Finish { subscription: t.subscription(), ranges: ranges("Finish", t.ranges())? }
            }
            kind::REQUEUE => {
                let t = table::<fb::Requeue>("Requeue", metadata)?;
                let ranges = ranges("Requeue", t.ranges())?;
                Request::Requeue { subscription: t.subscription(), ranges, delay_ms: t.delay_ms() }
            }
            kind::TOUCH => {
                let t = table::<fb::Touch>("Touch", metadata)?;
                Request::Touch { subscription: t.subscription(), ranges: ranges("Touch", t.ranges())? }
            }
            kind::UNSUBSCRIBE => {
                Request::Unsubscribe { subscription: table::<fb::Unsubscribe>("Unsubscribe", metadata)?.subscription() }
            }
            kind::GET_TOPICS => {
                let t = table::<fb::GetTopics>("GetTopics", metadata)?;
                check(t.topics().is_none_or(|v| v.len() <= TOPICS_MAX), "GetTopics", "topics")?;
                let topics = t.topics().map(|v| v.iter().collect()).unwrap_or_default();
                Request::GetTopics { topics, after: t.after().unwrap_or_default() }
            }
            kind::CREATE_TOPIC => {
                let t = table::<fb::CreateTopic>("CreateTopic", metadata)?;
                check(t.partitions() <= PartitionId::COUNT_MAX, "CreateTopic", "partitions")?;
                Request::CreateTopic { topic: t.topic(), partitions: t.partitions() }
            }
            kind::FIND => {
                let t = table::<fb::Find>("Find", metadata)?;
                let start = Start::decode("Find", t.start_at(), t.start())?;
                Request::Find { topic: t.topic(), partition: PartitionId(t.partition()), start }
            }
            kind::PING => Request::Ping,
            kind::SET_OFFSET => {
                let t = table::<fb::SetOffset>("SetOffset", metadata)?;
                Request::SetOffset(SetOffset {
                    topic: t.topic(),
                    partition: PartitionId(t.partition()),
                    channel: t.channel(),
                    start: Start::decode("SetOffset", t.start_at(), t.start())?,
                    force: t.force(),
                })
            }
            kind => return Err(Malformed::UnknownKind(kind)),
        })
    }
}

fn hello<'a>(t: fb::Hello<'a>) -> Hello<'a> {
    Hello {
        version: t.version(),
        oldest_version: t.oldest_version(),
        features: t.features(),
        client_id: t.client_id().unwrap_or_default(),
        hostname: t.hostname().unwrap_or_default(),
        user_agent: t.user_agent().unwrap_or_default(),
        core: u16::try_from(t.core()).ok(),
        max_frame_bytes: t.max_frame_bytes(),
        heartbeat_ms: t.heartbeat_ms(),
        auth_method: t.auth_method().unwrap_or_default(),
        auth: t.auth().map(|v| v.bytes()).unwrap_or_default(),
    }
}

fn publish<'a>(t: fb::Publish<'a>) -> Result<Publish<'a>, Malformed> {
    check(t.num() > 0, "Publish", "num")?;
    check(t.first_sequence().checked_add(t.num() as u64).is_some(), "Publish", "first_sequence")?;
    Ok(Publish {
        topic: t.topic(),
        partition: PartitionId(t.partition()),
        num: t.num(),
        producer_id: t.producer_id(),
        first_sequence: t.first_sequence(),
    })
}

fn ranges(kind: &'static str, found: flatbuffers::Vector<'_, fb::Range>) -> Result<Vec<IdRange>, Malformed> {
    check(found.len() <= RANGES_MAX, kind, "ranges")?;
    let mut ranges = Vec::with_capacity(found.len());
    for r in found {
        check(r.first() >= 1 && r.first() <= r.last() && r.last() <= LogId::MAX.0, kind, "ranges")?;
        ranges.push(IdRange { first: LogId(r.first()), last: LogId(r.last()) });
    }
    Ok(ranges)
}

impl Start {
    fn decode(kind: &'static str, at: fb::StartAt, value: i64) -> Result<Start, Malformed> {
        Ok(match at {
            fb::StartAt::Default => Start::Default,
            fb::StartAt::Oldest => Start::Oldest,
            fb::StartAt::Newest => Start::Newest,
            fb::StartAt::Timestamp => Start::Timestamp(value),
            fb::StartAt::Offset if value >= 0 => Start::Offset(value),
            fb::StartAt::Count if value >= 0 => Start::Count(value),
            fb::StartAt::LogId if (1..=LogId::MAX.0 as i64).contains(&value) => Start::LogId(LogId(value as u64)),
            _ => return Err(Malformed::Field { kind, field: "start" }),
        })
    }

    fn encode(self) -> (fb::StartAt, i64) {
        match self {
            Start::Default => (fb::StartAt::Default, 0),
            Start::Oldest => (fb::StartAt::Oldest, 0),
            Start::Newest => (fb::StartAt::Newest, 0),
            Start::Offset(offset) => (fb::StartAt::Offset, offset),
            Start::Count(count) => (fb::StartAt::Count, count),
            Start::LogId(id) => (fb::StartAt::LogId, id.0 as i64),
            Start::Timestamp(unix_ns) => (fb::StartAt::Timestamp, unix_ns),
        }
    }
}

impl Encoder {
    /// Appends the frame of `request`, but for its payload. Only Publish has one.
    pub fn request(&mut self, out: &mut Vec<u8>, id: u64, request: &Request<'_>, payload: Payload) {
        let b = &mut self.builder;
        b.reset();
        let kind = match request {
            Request::Hello(h) => {
                let args = fb::HelloArgs {
                    version: h.version,
                    oldest_version: h.oldest_version,
                    features: h.features,
                    client_id: Some(b.create_string(h.client_id)),
                    hostname: Some(b.create_string(h.hostname)),
                    user_agent: Some(b.create_string(h.user_agent)),
                    core: h.core.and_then(|c| i16::try_from(c).ok()).unwrap_or(-1),
                    max_frame_bytes: h.max_frame_bytes,
                    heartbeat_ms: h.heartbeat_ms,
                    auth_method: Some(b.create_string(h.auth_method)),
                    auth: Some(b.create_vector(h.auth)),
                };
                let root = fb::Hello::create(b, &args);
                b.finish_minimal(root);
                kind::HELLO
            }
            Request::Publish(p) => {
                let args = fb::PublishArgs {
                    topic: Some(b.create_string(p.topic)),
                    partition: p.partition.0,
                    num: p.num,
                    producer_id: p.producer_id,
                    first_sequence: p.first_sequence,
                };
                let root = fb::Publish::create(b, &args);
                b.finish_minimal(root);
                kind::PUBLISH
            }
            Request::Subscribe(s) => {
                let (start_at, start) = s.start.encode();
                let args = fb::SubscribeArgs {
                    subscription: s.subscription,
                    topic: Some(b.create_string(s.topic)),
                    partition: s.partition.0,
                    channel: Some(b.create_string(s.channel)),
                    start_at,
                    start,
                    message_timeout_ms: s.message_timeout_ms,
                    ordered: s.ordered,
                };
                let root = fb::Subscribe::create(b, &args);
                b.finish_minimal(root);
                kind::SUBSCRIBE
            }
            &Request::Credit { subscription, messages, bytes } => {
                let root = fb::Credit::create(b, &fb::CreditArgs { subscription, messages, bytes });
                b.finish_minimal(root);
                kind::CREDIT
            }
            Request::Finish { subscription, ranges } => {
                let ranges = Some(encode_ranges(b, ranges));
                let root = fb::Finish::create(b, &fb::FinishArgs { subscription: *subscription, ranges });
                b.finish_minimal(root);
                kind::FINISH
            }
            Request::Requeue { subscription, ranges, delay_ms } => {
                let ranges = Some(encode_ranges(b, ranges));
                let args = fb::RequeueArgs { subscription: *subscription, ranges, delay_ms: *delay_ms };
                let root = fb::Requeue::create(b, &args);
                b.finish_minimal(root);
                kind::REQUEUE
            }
            Request::Touch { subscription, ranges } => {
                let ranges = Some(encode_ranges(b, ranges));
                let root = fb::Touch::create(b, &fb::TouchArgs { subscription: *subscription, ranges });
                b.finish_minimal(root);
                kind::TOUCH
            }
            &Request::Unsubscribe { subscription } => {
                let root = fb::Unsubscribe::create(b, &fb::UnsubscribeArgs { subscription });
                b.finish_minimal(root);
                kind::UNSUBSCRIBE
            }
            Request::GetTopics { topics, after } => {
                assert!(topics.len() <= TOPICS_MAX, "a frame has its bounds: ask for the others in the next");
                let topics: Vec<_> = topics.iter().map(|t| b.create_string(t)).collect();
                let topics = Some(b.create_vector(&topics));
                let after = Some(b.create_string(after));
                let root = fb::GetTopics::create(b, &fb::GetTopicsArgs { topics, after });
                b.finish_minimal(root);
                kind::GET_TOPICS
            }
            &Request::CreateTopic { topic, partitions } => {
                let topic = Some(b.create_string(topic));
                let root = fb::CreateTopic::create(b, &fb::CreateTopicArgs { topic, partitions });
                b.finish_minimal(root);
                kind::CREATE_TOPIC
            }
            &Request::Find { topic, partition, start } => {
                let (start_at, start) = start.encode();
                let topic = Some(b.create_string(topic));
                let root = fb::Find::create(b, &fb::FindArgs { topic, partition: partition.0, start_at, start });
                b.finish_minimal(root);
                kind::FIND
            }
            Request::SetOffset(s) => {
                let (start_at, start) = s.start.encode();
                let args = fb::SetOffsetArgs {
                    topic: Some(b.create_string(s.topic)),
                    partition: s.partition.0,
                    channel: Some(b.create_string(s.channel)),
                    start_at,
                    start,
                    force: s.force,
                };
                let root = fb::SetOffset::create(b, &args);
                b.finish_minimal(root);
                kind::SET_OFFSET
            }
            Request::Ping => {
                let root = fb::Ping::create(b, &fb::PingArgs {});
                b.finish_minimal(root);
                kind::PING
            }
        };
        frame::encode(out, kind, id, b.finished_data(), payload.len, payload.crc);
    }
}

fn encode_ranges<'f>(
    b: &mut flatbuffers::FlatBufferBuilder<'f>,
    ranges: &[IdRange],
) -> flatbuffers::WIPOffset<flatbuffers::Vector<'f, fb::Range>> {
    assert!(ranges.len() <= RANGES_MAX, "a frame has its bounds: send the others in the next");
    b.create_vector_from_iter(ranges.iter().map(|r| fb::Range::new(r.first.0, r.last.0)))
}
