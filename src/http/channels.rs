//! POST /channel/setoffset: the replicated NSQ's parameters; answered when every partition's core says that it is final.

use super::Node;
use super::body;
use super::link::Answer;
use super::publish::{body_failure, core_failure, partition_of};
use super::routes::{Failure, Query};
use crate::base::topic::home_core;
use crate::base::{ChannelName, PartitionId, Position, TopicName, TopicRef};
use crate::shard::message::{MeshMessage, SetOffset, SetOffsetError, Start};
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
    let query = query?;
    let bad = |message: &'static str| Failure::new(StatusCode::BAD_REQUEST, message);
    let topic = query.get("topic").ok_or(bad("MISSING_ARG_TOPIC"))?;
    let topic = TopicName::new(topic).map_err(|_| bad("INVALID_ARG_TOPIC"))?;
    let channel = query.get("channel").ok_or(bad("MISSING_ARG_CHANNEL"))?;
    let channel = ChannelName::new(channel).map_err(|_| bad("INVALID_ARG_CHANNEL"))?;
    let partition = partition_of(&query)?;
    let force = query.get("force").is_some_and(|value| !matches!(value, "false" | "0"));
    let paid = body::read(node, body, BODY_MAX).await.map_err(|error| body_failure(error, "BODY_TOO_BIG"))?;
    let to = std::str::from_utf8(&paid.bytes).ok().and_then(parse_place).ok_or(Failure::new(
        StatusCode::BAD_REQUEST,
        "INVALID_OFFSET: expected virtual_queue:<offset>, msgcount:<count>, timestamp:<unix seconds> or special:-1",
    ))?;
    let topic = find_topic(node, topic).await?;
    let partitions: Vec<PartitionId> = match partition {
        Some(p) if p.0 >= topic.partitions => return Err(Failure::new(StatusCode::NOT_FOUND, "PARTITION_NOT_FOUND")),
        Some(p) => vec![p],
        None => (0..topic.partitions).map(PartitionId).collect(),
    };
    // One after the other: what refuses the first mostly refuses all, and then nothing was set.
    let mut done: Vec<(PartitionId, Position)> = Vec::new();
    for partition in partitions {
        let set = SetOffset { topic: topic.clone(), partition, channel: channel.clone(), to, force };
        match set_one(node, set).await {
            Ok(at) => done.push((partition, at)),
            Err(failure) => return Err(partly(failure, partition, &done)),
        }
    }
    let at = |(p, at): &(PartitionId, Position)| {
        let (offset, count, log_id) = (at.offset, at.count, at.log_id.0);
        serde_json::json!({ "partition": p.0, "virtual_offset": offset, "count": count, "log_id": log_id })
    };
    Ok(serde_json::json!({ "partitions": done.iter().map(at).collect::<Vec<_>>() }).to_string())
}

/// What the replicated NSQ takes: `type:value`.
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
        Some(Answer::Topic(Ok(topic))) => Ok(topic),
        Some(_) => Err(Failure::new(StatusCode::NOT_FOUND, "TOPIC_NOT_FOUND")),
        None => Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "NO_ANSWER: a core is busy; nothing was changed")),
    }
}

async fn set_one(node: &Node, set: SetOffset) -> Result<Position, Failure> {
    let core = set.topic.core_of(set.partition, node.link.cores());
    let ask = |ticket| MeshMessage::SetOffset { ticket, set: Box::new(set) };
    let result = match node.link.ask(core, ANSWER_LIMIT, ask).await {
        Some(Answer::OffsetSet(result)) => result,
        _ => return Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "OUTCOME_UNKNOWN: the core did not answer")),
    };
    result.map_err(|error| match error {
        SetOffsetError::NoPartition => Failure::new(StatusCode::NOT_FOUND, "PARTITION_NOT_FOUND"),
        SetOffsetError::NoChannel => Failure::new(StatusCode::NOT_FOUND, "CHANNEL_NOT_FOUND"),
        SetOffsetError::NotFirstClient => Failure::new(StatusCode::CONFLICT, format!("NOT_FIRST_CLIENT: {error}")),
        SetOffsetError::NoPlace => Failure::new(StatusCode::BAD_REQUEST, format!("INVALID_OFFSET: {error}")),
        SetOffsetError::Unreadable => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("UNREADABLE: {error}")),
        SetOffsetError::Failed(error) => core_failure(error),
    })
}

/// Says of which partition it is, when others were set before.
fn partly(failure: Failure, partition: PartitionId, done: &[(PartitionId, Position)]) -> Failure {
    if done.is_empty() {
        return failure;
    }
    let names: Vec<String> = done.iter().map(|(p, _)| p.0.to_string()).collect();
    let message = format!("{} (partition {}; set before: {})", failure.message, partition.0, names.join(", "));
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
