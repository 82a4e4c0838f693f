//! Answers of a node, and its unasked frames: messages, and the end of a subscription.

use super::{Code, Encoder, IdRange, Malformed, Payload, Retry, fb, frame};
use crate::base::{LogId, PartitionId, Position, TopicId};
use crate::codec::metadata::{check, position, table, truncated};

/// Kinds of frames from the node. Numbers are never used again for something else.
pub mod kind {
    pub const WELCOME: u8 = 129;
    pub const PUBLISHED: u8 = 130;
    pub const SUBSCRIBED: u8 = 131;
    pub const MESSAGES: u8 = 132;
    pub const DONE: u8 = 133;
    pub const UNSUBSCRIBED: u8 = 134;
    pub const TOPICS: u8 = 135;
    pub const FOUND: u8 = 136;
    pub const PONG: u8 = 137;
    pub const ERROR: u8 = 138;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    Welcome(Welcome<'a>),
    /// Durable on every in-sync replica. `None`: a repeat of a batch whose place is not known any more.
    Published {
        at: Option<Position>,
        duplicate: bool,
    },
    Subscribed(Subscribed),
    /// The payload: `num` messages of one batch as they stand on disk.
    Messages(Messages),
    Done {
        num: u64,
    },
    /// The answer to an Unsubscribe, or unasked when the node ended the subscription.
    Unsubscribed {
        subscription: u32,
        reason: &'a str,
    },
    Topics(Topics<'a>),
    Found(Found),
    Pong,
    Error(NativeError<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    pub version: u16,
    pub features: u64,
    pub node_id: [u8; 16],
    pub node_version: &'a str,
    pub cores: u16,
    pub core: u16,
    pub max_frame_bytes: u32,
    pub max_message_bytes: u32,
    pub heartbeat_ms: u32,
    pub message_timeout_ms: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    pub subscription: u32,
    /// The channel was new in this partition.
    pub created: bool,
    /// First message that is not confirmed.
    pub at: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    pub subscription: u32,
    pub log_id: LogId,
    pub num: u32,
    /// Messages of the partition before the first.
    pub count: i64,
    pub batch_offset: i64,
    pub base_unix_ns: i64,
    pub attempts: u16,
}

impl Messages {
    pub fn ids(&self) -> IdRange {
        IdRange { first: self.log_id, last: LogId(self.log_id.0 + self.num as u64 - 1) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Topics<'a> {
    pub topics: Vec<TopicInfo<'a>>,
    pub nodes: Vec<NodeInfo<'a>>,
    /// True if others follow the last one.
    pub more: bool,
}

impl Topics<'_> {
    /// A node fills an answer up to about this much metadata; the largest topic fits behind it.
    pub const FULL_BYTES: usize = 48 * 1024;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInfo<'a> {
    pub id: [u8; 16],
    /// Host and port of its native protocol; empty: the node that answered.
    pub address: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicInfo<'a> {
    pub name: &'a str,
    pub id: TopicId,
    pub partitions: Vec<PartitionInfo>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    pub id: PartitionId,
    pub core: u16,
    /// Place of its leader in the answer's `nodes`.
    pub node: u16,
}

impl TopicInfo<'_> {
    /// Bytes of metadata that it takes, at most.
    pub fn encoded_bytes(&self) -> usize {
        self.name.len() + 6 * self.partitions.len() + 80
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub at: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeError<'a> {
    pub code: Code,
    pub retry: Retry,
    pub message: &'a str,
    /// Core of the partition, with [`Code::WrongCore`].
    pub core: u16,
    /// True when the node closes the connection after the answer.
    pub fatal: bool,
}

impl<'a> Reply<'a> {
    pub fn decode(kind: u8, metadata: &'a [u8]) -> Result<Reply<'a>, Malformed> {
        Ok(match kind {
            kind::WELCOME => {
                let t = table::<fb::Welcome>("Welcome", metadata)?;
                Reply::Welcome(Welcome {
                    version: t.version(),
                    features: t.features(),
                    node_id: id_16("Welcome", "node_id", t.node_id())?,
                    node_version: t.node_version(),
                    cores: t.cores(),
                    core: t.core(),
                    max_frame_bytes: t.max_frame_bytes(),
                    max_message_bytes: t.max_message_bytes(),
                    heartbeat_ms: t.heartbeat_ms(),
                    message_timeout_ms: t.message_timeout_ms(),
                })
            }
            kind::PUBLISHED => {
                let t = table::<fb::Published>("Published", metadata)?;
                let at = match t.log_id() {
                    0 => None,
                    id => Some(position("Published", "position", t.offset(), t.count(), id)?),
                };
                Reply::Published { at, duplicate: t.duplicate() }
            }
            kind::SUBSCRIBED => {
                let t = table::<fb::Subscribed>("Subscribed", metadata)?;
                let at = position("Subscribed", "position", t.offset(), t.count(), t.log_id())?;
                Reply::Subscribed(Subscribed { subscription: t.subscription(), created: t.created(), at })
            }
            kind::MESSAGES => {
                let t = table::<fb::Messages>("Messages", metadata)?;
                let last = t.log_id().checked_add(t.num() as u64).filter(|&end| end <= LogId::MAX.0 + 1);
                check(t.num() > 0 && t.log_id() > 0 && last.is_some(), "Messages", "log_id")?;
                Reply::Messages(Messages {
                    subscription: t.subscription(),
                    log_id: LogId(t.log_id()),
                    num: t.num(),
                    count: t.count(),
                    batch_offset: t.batch_offset(),
                    base_unix_ns: t.base_unix_ns(),
                    attempts: t.attempts(),
                })
            }
            kind::DONE => Reply::Done { num: table::<fb::Done>("Done", metadata)?.num() },
            kind::UNSUBSCRIBED => {
                let t = table::<fb::Unsubscribed>("Unsubscribed", metadata)?;
                Reply::Unsubscribed { subscription: t.subscription(), reason: t.reason().unwrap_or_default() }
            }
            kind::TOPICS => {
                let t = table::<fb::Topics>("Topics", metadata)?;
                let node = |n: fb::Node<'a>| {
                    Ok(NodeInfo { id: id_16("Topics", "node_id", n.node_id())?, address: n.address().unwrap_or_default() })
                };
                let nodes: Vec<_> = t.nodes().iter().map(node).collect::<Result<_, Malformed>>()?;
                let topics: Vec<_> = t.topics().iter().map(topic).collect::<Result<_, _>>()?;
                let is_known = |p: &PartitionInfo| (p.node as usize) < nodes.len();
                check(topics.iter().flat_map(|t| &t.partitions).all(is_known), "Topics", "node")?;
                Reply::Topics(Topics { topics, nodes, more: t.more() })
            }
            kind::FOUND => {
                let t = table::<fb::Found>("Found", metadata)?;
                Reply::Found(Found { at: position("Found", "position", t.offset(), t.count(), t.log_id())? })
            }
            kind::PONG => Reply::Pong,
            kind::ERROR => {
                let t = table::<fb::Error>("Error", metadata)?;
                Reply::Error(NativeError {
                    // of a later version: as the first
                    code: t.code().variant_name().map_or(Code::Other, |_| t.code()),
                    retry: t.retry().variant_name().map_or(Retry::Never, |_| t.retry()),
                    message: t.message(),
                    core: t.core(),
                    fatal: t.fatal(),
                })
            }
            kind => return Err(Malformed::UnknownKind(kind)),
        })
    }
}

/// Every partition of the topic is there once, and there is one at least: clients choose among them by number.
fn topic<'a>(t: fb::Topic<'a>) -> Result<TopicInfo<'a>, Malformed> {
    let partition = |p: &fb::Partition| PartitionInfo { id: PartitionId(p.id()), core: p.core(), node: p.node() };
    let mut partitions: Vec<_> = t.partitions().iter().map(partition).collect();
    partitions.sort_by_key(|p| p.id);
    let are_all = partitions.iter().zip(0..).all(|(p, number)| p.id.0 == number);
    check(!partitions.is_empty() && are_all, "Topics", "partitions")?;
    Ok(TopicInfo { name: t.name(), id: TopicId(id_16("Topics", "topic_id", t.topic_id())?), partitions })
}

fn id_16(kind: &'static str, field: &'static str, found: flatbuffers::Vector<'_, u8>) -> Result<[u8; 16], Malformed> {
    found.bytes().try_into().map_err(|_| Malformed::Field { kind, field })
}

impl Encoder {
    /// Appends the frame of `reply`, but for its payload. Only Messages has one.
    pub fn reply(&mut self, out: &mut Vec<u8>, id: u64, reply: &Reply<'_>, payload: Payload) {
        let b = &mut self.builder;
        b.reset();
        let kind = match reply {
            Reply::Welcome(w) => {
                let args = fb::WelcomeArgs {
                    version: w.version,
                    features: w.features,
                    node_id: Some(b.create_vector(&w.node_id)),
                    node_version: Some(b.create_string(w.node_version)),
                    cores: w.cores,
                    core: w.core,
                    max_frame_bytes: w.max_frame_bytes,
                    max_message_bytes: w.max_message_bytes,
                    heartbeat_ms: w.heartbeat_ms,
                    message_timeout_ms: w.message_timeout_ms,
                };
                let root = fb::Welcome::create(b, &args);
                b.finish_minimal(root);
                kind::WELCOME
            }
            &Reply::Published { at, duplicate } => {
                let args = match at {
                    Some(at) => fb::PublishedArgs { log_id: at.log_id.0, offset: at.offset, count: at.count, duplicate },
                    None => fb::PublishedArgs { duplicate, ..Default::default() },
                };
                let root = fb::Published::create(b, &args);
                b.finish_minimal(root);
                kind::PUBLISHED
            }
            &Reply::Subscribed(Subscribed { subscription, created, at }) => {
                let Position { offset, count, log_id } = at;
                let args = fb::SubscribedArgs { subscription, created, offset, count, log_id: log_id.0 };
                let root = fb::Subscribed::create(b, &args);
                b.finish_minimal(root);
                kind::SUBSCRIBED
            }
            Reply::Messages(m) => {
                let args = fb::MessagesArgs {
                    subscription: m.subscription,
                    log_id: m.log_id.0,
                    num: m.num,
                    count: m.count,
                    batch_offset: m.batch_offset,
                    base_unix_ns: m.base_unix_ns,
                    attempts: m.attempts,
                };
                let root = fb::Messages::create(b, &args);
                b.finish_minimal(root);
                kind::MESSAGES
            }
            &Reply::Done { num } => {
                let root = fb::Done::create(b, &fb::DoneArgs { num });
                b.finish_minimal(root);
                kind::DONE
            }
            &Reply::Unsubscribed { subscription, reason } => {
                let reason = Some(b.create_string(truncated(reason)));
                let root = fb::Unsubscribed::create(b, &fb::UnsubscribedArgs { subscription, reason });
                b.finish_minimal(root);
                kind::UNSUBSCRIBED
            }
            Reply::Topics(Topics { topics, nodes, more }) => {
                let topics: Vec<_> = topics
                    .iter()
                    .map(|t| {
                        let partitions = t.partitions.iter().map(|p| fb::Partition::new(p.id.0, p.core, p.node));
                        let args = fb::TopicArgs {
                            name: Some(b.create_string(t.name)),
                            topic_id: Some(b.create_vector(&t.id.0)),
                            partitions: Some(b.create_vector_from_iter(partitions)),
                        };
                        fb::Topic::create(b, &args)
                    })
                    .collect();
                let nodes: Vec<_> = nodes
                    .iter()
                    .map(|n| {
                        let args =
                            fb::NodeArgs { node_id: Some(b.create_vector(&n.id)), address: Some(b.create_string(n.address)) };
                        fb::Node::create(b, &args)
                    })
                    .collect();
                let (topics, nodes) = (Some(b.create_vector(&topics)), Some(b.create_vector(&nodes)));
                let root = fb::Topics::create(b, &fb::TopicsArgs { topics, nodes, more: *more });
                b.finish_minimal(root);
                kind::TOPICS
            }
            Reply::Found(Found { at }) => {
                let args = fb::FoundArgs { offset: at.offset, count: at.count, log_id: at.log_id.0 };
                let root = fb::Found::create(b, &args);
                b.finish_minimal(root);
                kind::FOUND
            }
            Reply::Pong => {
                let root = fb::Pong::create(b, &fb::PongArgs {});
                b.finish_minimal(root);
                kind::PONG
            }
            Reply::Error(e) => {
                let message = Some(b.create_string(truncated(e.message)));
                let args = fb::ErrorArgs { code: e.code, retry: e.retry, message, core: e.core, fatal: e.fatal };
                let root = fb::Error::create(b, &args);
                b.finish_minimal(root);
                kind::ERROR
            }
        };
        frame::encode(out, kind, id, b.finished_data(), payload.len, payload.crc);
    }
}
