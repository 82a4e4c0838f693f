//! POST /channel/create, delete, empty, pause and unpause, nsqd's; /channel/setoffset and /channel/setorder with the replicated NSQ's
//! parameters; /channel/finish. Answered when every partition's core says that it is final.
//!
//! Several partitions are changed one after the other, and not as a whole: where one fails, the answer names it and the partitions that
//! were changed before. Partitions behind it were not asked.

use super::Node;
use super::body;
use super::link::CoreAnswer;
use super::publish::{body_failure, core_failure, partition_of};
use super::routes::{Failure, Query};
use crate::base::topic::home_core;
use crate::base::{ChannelName, LogId, PartitionId, Position, TopicName, TopicRef};
use crate::{
    codec::native::Start,
    seam::{
        message::{ChangeChannel, ChannelChange, MeshMessage, SetOffset, SetOrder},
        outcome::SetOffsetError,
    },
};
use hyper::StatusCode;
use hyper::body::Incoming;
use std::time::Duration;

/// A core that has not answered by now may have set the offset or not.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// `virtual_queue:` and the largest number.
const BODY_MAX: u64 = 64;

/// `POST /channel/setoffset?topic=...&channel=...[&partition=...][&force=true]` with a body `type:value`. Of all
/// partitions when none is named; where each stands then is the answer.
pub async fn set_offset(node: &Node, query: Result<Query, Failure>, body: Incoming) -> Result<String, Failure> {
    let named = ChannelRequest::of(query?)?;
    let force = named.query.get("force").is_some_and(|value| !matches!(value, "false" | "0"));
    let paid = body::read(node, body, BODY_MAX).await.map_err(|error| body_failure(error, "BODY_TOO_BIG"))?;
    let to = std::str::from_utf8(&paid.bytes).ok().and_then(parse_place).ok_or(Failure::new(
        StatusCode::BAD_REQUEST,
        "INVALID_OFFSET: expected virtual_queue:<offset>, msgcount:<count>, timestamp:<unix seconds> or special:-1",
    ))?;
    let (topic, partitions) = named.find(node).await?;
    // Partitions one after the other: a reason to refuse the first mostly refuses all, and then nothing was set.
    let mut done: Vec<(PartitionId, Position)> = Vec::new();
    for &partition in &partitions {
        let set = SetOffset { topic: topic.clone(), partition, channel: named.channel.clone(), to, from: None, force };
        match set_one(node, set).await {
            Ok(at) => done.push((partition, at)),
            Err(failure) => return Err(partly(failure, partition, &partitions)),
        }
    }
    let at = |(p, at): &(PartitionId, Position)| {
        let (offset, count, log_id) = (at.offset, at.count, at.log_id.0);
        serde_json::json!({ "partition": p.0, "virtual_offset": offset, "count": count, "log_id": log_id })
    };
    Ok(serde_json::json!({ "partitions": done.iter().map(at).collect::<Vec<_>>() }).to_string())
}

/// `POST /channel/finish?topic=...&channel=...&first=<log id>&last=<log id>[&partition=...]`: these messages are finished for the channel,
/// read or not. Log ids are a partition's own, so one partition is meant: the topic's only one, or that which is named.
pub async fn finish(node: &Node, query: Result<Query, Failure>) -> Result<String, Failure> {
    let named = ChannelRequest::of(query?)?;
    let bad = |message: &'static str| Failure::new(StatusCode::BAD_REQUEST, message);
    let id = |name: &str| named.query.get(name)?.parse::<u64>().ok().filter(|id| (1..LogId::MAX.0).contains(id));
    let (first, last) = (id("first").ok_or(bad("INVALID_ARG_FIRST"))?, id("last").ok_or(bad("INVALID_ARG_LAST"))?);
    if first > last {
        return Err(bad("INVALID_ARG_LAST"));
    }
    let (topic, partitions) = named.find(node).await?;
    let &[partition] = &partitions[..] else { return Err(bad("MISSING_ARG_PARTITION")) };
    let (channel, to, from) = (named.channel.clone(), Start::LogId(LogId(last + 1)), Some(LogId(first)));
    let at = set_one(node, SetOffset { topic, partition, channel, to, from, force: true }).await?;
    Ok(serde_json::json!({ "partition": partition.0, "finished_before": at.log_id.0 }).to_string())
}

/// `POST /channel/setorder?topic=...&channel=...&order=true|false[&partition=...]`. Of all partitions when none is named.
pub async fn set_order(node: &Node, query: Result<Query, Failure>) -> Result<String, Failure> {
    let named = ChannelRequest::of(query?)?;
    let ordered = match named.query.get("order") {
        Some("true" | "1") => true,
        Some("false" | "0") => false,
        Some(_) => return Err(Failure::new(StatusCode::BAD_REQUEST, "INVALID_ARG_ORDER")),
        None => return Err(Failure::new(StatusCode::BAD_REQUEST, "MISSING_ARG_ORDER")),
    };
    let (topic, partitions) = named.find(node).await?;
    for &partition in &partitions {
        let core = topic.core_of(partition, node.link.cores());
        let set = Box::new(SetOrder { topic: topic.clone(), partition, channel: named.channel.clone(), ordered });
        let result = match node.link.ask(core, ANSWER_LIMIT, |ticket| MeshMessage::SetOrder { ticket, set }).await {
            Some(CoreAnswer::OrderSet(result)) => result.map_err(refused),
            _ => Err(no_answer()),
        };
        result.map_err(|failure| partly(failure, partition, &partitions))?;
    }
    let numbers: Vec<u16> = partitions.iter().map(|p| p.0).collect();
    Ok(serde_json::json!({ "ordered": ordered, "partitions": numbers }).to_string())
}

/// Operation on a channel that nsqd has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    Create,
    Delete,
    Empty,
    Pause,
    Unpause,
}

impl Operation {
    pub fn of(path: &str) -> Option<Operation> {
        Some(match path {
            "/channel/create" => Operation::Create,
            "/channel/delete" => Operation::Delete,
            "/channel/empty" => Operation::Empty,
            "/channel/pause" => Operation::Pause,
            "/channel/unpause" => Operation::Unpause,
            _ => return None,
        })
    }
}

/// `POST /channel/<operation>?topic=...&channel=...[&partition=...]`: in all partitions that have the channel, partition 0 first, since
/// it decides for the others.
pub async fn operate(node: &Node, query: Result<Query, Failure>, operation: Operation) -> Result<(), Failure> {
    let named = ChannelRequest::of(query?)?;
    let is_alone = named.partition.is_some();
    let (topic, partitions) = named.find(node).await?;
    let (mut done, mut first) = (Vec::new(), None);
    for &partition in &partitions {
        let change = match operation {
            Operation::Create => Some(ChannelChange::Create { first, is_alone }),
            Operation::Delete => Some(ChannelChange::Delete),
            Operation::Pause => Some(ChannelChange::Pause),
            Operation::Unpause => Some(ChannelChange::Unpause),
            Operation::Empty => None,
        };
        let (core, channel) = (topic.core_of(partition, node.link.cores()), named.channel.clone());
        let answer = match change {
            Some(change) => {
                let set = Box::new(ChangeChannel { topic: topic.clone(), partition, channel, change });
                node.link.ask(core, ANSWER_LIMIT, |ticket| MeshMessage::ChangeChannel { ticket, set }).await
            }
            None => {
                let set = SetOffset { topic: topic.clone(), partition, channel, to: Start::Newest, from: None, force: true };
                node.link.ask(core, ANSWER_LIMIT, |ticket| MeshMessage::SetOffset { ticket, set: Box::new(set) }).await
            }
        };
        let failure = match answer {
            Some(CoreAnswer::ChannelChanged(Ok(is_first))) => {
                first = first.or(Some(is_first));
                done.push(partition.0);
                continue;
            }
            Some(CoreAnswer::OffsetSet(Ok(_))) => {
                done.push(partition.0);
                continue;
            }
            Some(CoreAnswer::ChannelChanged(Err(error)) | CoreAnswer::OffsetSet(Err(error))) => match error {
                SetOffsetError::NoChannel => continue,
                error => refused(error),
            },
            _ => no_answer(),
        };
        return Err(half_done(failure, partition, &done, &partitions));
    }
    if done.is_empty() { Err(Failure::new(StatusCode::NOT_FOUND, "CHANNEL_NOT_FOUND")) } else { Ok(()) }
}

/// Says which of several partitions failed, and in which it was done; those behind were not asked.
pub(super) fn half_done(failure: Failure, partition: PartitionId, done: &[u16], all: &[PartitionId]) -> Failure {
    if all.len() == 1 {
        return failure;
    }
    let names: Vec<String> = done.iter().map(u16::to_string).collect();
    let before = if names.is_empty() { "none".into() } else { names.join(", ") };
    Failure::new(failure.status, format!("{} (partition {}; done before: {before})", failure.message, partition.0))
}

/// The channel that a request is about.
struct ChannelRequest {
    query: Query,
    topic: TopicName,
    channel: ChannelName,
    partition: Option<PartitionId>,
}

impl ChannelRequest {
    fn of(query: Query) -> Result<ChannelRequest, Failure> {
        let bad = |message: &'static str| Failure::new(StatusCode::BAD_REQUEST, message);
        let topic = query.get("topic").ok_or(bad("MISSING_ARG_TOPIC"))?;
        let topic = TopicName::new(topic).map_err(|_| bad("INVALID_ARG_TOPIC"))?;
        let channel = query.get("channel").ok_or(bad("MISSING_ARG_CHANNEL"))?;
        let channel = ChannelName::new(channel).map_err(|_| bad("INVALID_ARG_CHANNEL"))?;
        let partition = partition_of(&query)?;
        Ok(ChannelRequest { query, topic, channel, partition })
    }

    /// The topic, and the partition that was named, or all.
    async fn find(&self, node: &Node) -> Result<(TopicRef, Vec<PartitionId>), Failure> {
        let topic = find_topic(node, self.topic.clone()).await?;
        let partitions = match self.partition {
            Some(p) if p.0 >= topic.partitions => return Err(Failure::new(StatusCode::NOT_FOUND, "PARTITION_NOT_FOUND")),
            Some(p) => vec![p],
            None => (0..topic.partitions).map(PartitionId).collect(),
        };
        Ok((topic, partitions))
    }
}

/// Parses a place in the form of the replicated NSQ: `type:value`.
fn parse_place(text: &str) -> Option<Start> {
    let (kind, value) = text.trim().split_once(':')?;
    let value: i64 = value.trim().parse().ok()?;
    match kind {
        "virtual_queue" if value >= 0 => Some(Start::Offset(value)),
        "msgcount" if value >= 0 => Some(Start::Count(value)),
        "timestamp" if value >= 0 => Some(Start::Timestamp(value.checked_mul(1_000_000_000)?)),
        "special" if value == -1 => Some(Start::Newest),
        _ => None,
    }
}

pub(super) async fn find_topic(node: &Node, name: TopicName) -> Result<TopicRef, Failure> {
    let home = home_core(&name, node.link.cores());
    match node.link.ask(home, ANSWER_LIMIT, |ticket| MeshMessage::FindTopic { ticket, name }).await {
        Some(CoreAnswer::Topic(Ok(topic))) => Ok(topic),
        Some(_) => Err(Failure::new(StatusCode::NOT_FOUND, "TOPIC_NOT_FOUND")),
        None => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "NO_ANSWER: a core is busy; nothing was changed")),
    }
}

async fn set_one(node: &Node, set: SetOffset) -> Result<Position, Failure> {
    let core = set.topic.core_of(set.partition, node.link.cores());
    let ask = |ticket| MeshMessage::SetOffset { ticket, set: Box::new(set) };
    let result = match node.link.ask(core, ANSWER_LIMIT, ask).await {
        Some(CoreAnswer::OffsetSet(result)) => result,
        _ => return Err(no_answer()),
    };
    result.map_err(refused)
}

fn no_answer() -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "OUTCOME_UNKNOWN: the core did not answer")
}

pub(super) fn refused(error: SetOffsetError) -> Failure {
    match error {
        SetOffsetError::NoPartition => Failure::new(StatusCode::NOT_FOUND, "PARTITION_NOT_FOUND"),
        SetOffsetError::NoChannel => Failure::new(StatusCode::NOT_FOUND, "CHANNEL_NOT_FOUND"),
        SetOffsetError::NotFirstClient => Failure::new(StatusCode::CONFLICT, format!("NOT_FIRST_CLIENT: {error}")),
        SetOffsetError::HasClients => Failure::new(StatusCode::CONFLICT, format!("HAS_CLIENTS: {error}")),
        SetOffsetError::NoPlace => Failure::new(StatusCode::BAD_REQUEST, format!("INVALID_OFFSET: {error}")),
        SetOffsetError::Unreadable => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("UNREADABLE: {error}")),
        SetOffsetError::Failed(error) => core_failure(error),
    }
}

/// Says which of several partitions failed, and which were set before it; those behind it were not asked.
fn partly(failure: Failure, partition: PartitionId, all: &[PartitionId]) -> Failure {
    if all.len() == 1 {
        return failure;
    }
    let names: Vec<String> = all.iter().take_while(|p| **p != partition).map(|p| p.0.to_string()).collect();
    let before = if names.is_empty() { "none".into() } else { names.join(", ") };
    let message = format!("{} (partition {}; set before: {before})", failure.message, partition.0);
    Failure::new(failure.status, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_type_and_a_value() {
        for (text, place) in [
            ("virtual_queue:4096", Some(Start::Offset(4096))),
            ("msgcount:0", Some(Start::Count(0))),
            (" timestamp:1700000000\n", Some(Start::Timestamp(1_700_000_000_000_000_000))),
            ("special:-1", Some(Start::Newest)),
            ("special:0", None),
            ("virtual_queue:-1", None),
            ("timestamp:9223372036854775807", None),
            ("msgcount", None),
            ("other:1", None),
            ("msgcount:1x", None),
        ] {
            assert_eq!(parse_place(text), place, "{text}");
        }
    }
}
