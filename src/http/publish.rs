//! POST /pub and /mpub: nsqd's parameters and errors, and the replicated NSQ's `partition`; acknowledged when the partition's
//! core says that it is durable.

use super::Node;
use super::body::{self, BodyError, Paid};
use super::link::CoreAnswer;
use super::routes::{Failure, Query};
use crate::base::topic::home_core;
use crate::base::{PartitionId, TopicName, TopicRef};
use crate::seam::{
    message::{MeshMessage, OwnedBodies},
    outcome::{OverLimit, PublishError},
};
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A core that has not answered by now may have stored the messages or not.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Topics remembered at most: their names come from clients.
const TOPICS_MAX: usize = 4096;
/// Number of times that a publish may meet a topic that is being deleted before its client hears of it.
const GONE_TRIES: usize = 5;

/// Topics that were published to, and the partition that is next.
#[derive(Default)]
pub struct Topics {
    known: HashMap<TopicName, (TopicRef, u16)>,
    next_ephemeral: u64,
}

/// `POST /pub?topic=...`: the body is the message.
pub async fn publish(node: &Node, query: Result<Query, Failure>, body: Incoming, began: Instant) -> Result<(), Failure> {
    let paid = match body::read(node, body, node.settings.max_msg_size).await {
        Ok(paid) => paid,
        Err(error) => return Err(body_failure(error, "MSG_TOO_BIG")),
    };
    if paid.bytes.is_empty() {
        return Err(Failure::new(StatusCode::BAD_REQUEST, "MSG_EMPTY"));
    }
    let query = query?;
    let topic = topic_of(&query)?;
    let partition = partition_of(&query)?;
    let delay_ms = delay_of(node, &query)?;
    let ends = vec![paid.bytes.len() as u32];
    let Paid { bytes, budget } = paid;
    let result = store(node, topic, partition, OwnedBodies { bytes, ends, delay_ms }, began).await;
    drop(budget);
    result
}

/// `POST /mpub?topic=...`: a message per line, or with `binary` the body of an MPUB. All or nothing.
pub async fn publish_many(node: &Node, query: Result<Query, Failure>, body: Incoming, began: Instant) -> Result<(), Failure> {
    if body.size_hint().lower() > node.settings.max_body_size {
        return Err(body_failure(BodyError::TooBig, "BODY_TOO_BIG"));
    }
    let query = query?;
    let topic = topic_of(&query)?;
    let partition = partition_of(&query)?;
    let delay_ms = delay_of(node, &query)?;
    // An unknown value of `binary` means true, as in nsqd.
    let binary = query.get("binary").is_some_and(|value| !matches!(value, "false" | "0"));
    let paid = match body::read(node, body, node.settings.max_body_size).await {
        Ok(paid) => paid,
        Err(error) => return Err(body_failure(error, "BODY_TOO_BIG")),
    };
    let max = node.settings.max_msg_size;
    let bodies = if binary { split_binary(&paid.bytes, max) } else { split_lines(&paid.bytes, max) };
    let mut bodies = bodies.map_err(|code| Failure::new(StatusCode::PAYLOAD_TOO_LARGE, code))?;
    bodies.delay_ms = delay_ms;
    let Paid { bytes, budget } = paid;
    drop(bytes);
    if bodies.ends.is_empty() {
        return Ok(());
    }
    let result = store(node, topic, partition, bodies, began).await;
    drop(budget);
    result
}

pub fn body_failure(error: BodyError, too_big: &'static str) -> Failure {
    match error {
        BodyError::TooBig => Failure::new(StatusCode::PAYLOAD_TOO_LARGE, too_big),
        BodyError::NoRoom => core_failure(PublishError::TooMuchWaiting),
        BodyError::TooSlow => Failure::new(StatusCode::REQUEST_TIMEOUT, "BODY_TIMEOUT"),
        BodyError::Broken => Failure::new(StatusCode::BAD_REQUEST, "BAD_BODY"),
    }
}

pub fn topic_of(query: &Query) -> Result<TopicName, Failure> {
    let name = query.get("topic").ok_or(Failure::new(StatusCode::BAD_REQUEST, "MISSING_ARG_TOPIC"))?;
    TopicName::new(name).map_err(|_| Failure::new(StatusCode::BAD_REQUEST, "INVALID_TOPIC"))
}

/// The partition that is named, if any. Which there are is known later.
pub fn partition_of(query: &Query) -> Result<Option<PartitionId>, Failure> {
    let Some(number) = query.get("partition") else { return Ok(None) };
    let number = number.parse().map_err(|_| Failure::new(StatusCode::BAD_REQUEST, "INVALID_ARG_PARTITION"))?;
    Ok(Some(PartitionId(number)))
}

/// `defer`: milliseconds before which no channel delivers the messages. nsqd knows it of `/pub` alone.
fn delay_of(node: &Node, query: &Query) -> Result<u64, Failure> {
    let Some(defer) = query.get("defer") else { return Ok(0) };
    match defer.parse::<u64>() {
        Ok(ms) if ms <= node.settings.max_req_timeout_ms => Ok(ms),
        _ => Err(Failure::new(StatusCode::BAD_REQUEST, "INVALID_DEFER")),
    }
}

/// Empty lines are no messages; the last line needs no newline.
fn split_lines(bytes: &[u8], max_msg_size: u64) -> Result<OwnedBodies, &'static str> {
    let mut bodies = OwnedBodies::default();
    bodies.bytes.reserve_exact(bytes.len());
    for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        if line.len() as u64 > max_msg_size {
            return Err("MSG_TOO_BIG");
        }
        bodies.push(line);
    }
    Ok(bodies)
}

/// `[u32 count]`, then `[u32 size][body]` each, big-endian. Bytes behind the last message are ignored, as in nsqd.
fn split_binary(bytes: &[u8], max_msg_size: u64) -> Result<OwnedBodies, &'static str> {
    let (count, mut rest) = be_u32(bytes).ok_or("BAD_BODY")?;
    // A message takes five bytes at least; so the count is believed only as far as the body can hold it.
    if count == 0 || count as usize > rest.len() / 5 {
        return Err(if count as i32 > 0 && count as usize <= bytes.len() { "BAD_MESSAGE" } else { "BAD_BODY" });
    }
    let mut bodies = OwnedBodies::default();
    bodies.bytes.reserve_exact(rest.len());
    for _ in 0..count {
        let (size, after) = be_u32(rest).ok_or("BAD_MESSAGE")?;
        if size == 0 || size as u64 > max_msg_size || size as usize > after.len() {
            return Err("BAD_MESSAGE");
        }
        let (message, next) = after.split_at(size as usize);
        bodies.push(message);
        rest = next;
    }
    Ok(bodies)
}

fn be_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*head), rest))
}

/// Publishes to that partition of the topic, or the next one. A deleted topic is forgotten, so that the next publish creates it.
async fn store(
    node: &Node,
    name: TopicName,
    partition: Option<PartitionId>,
    bodies: OwnedBodies,
    began: Instant,
) -> Result<(), Failure> {
    // The topic may go between the answer to where it is and the publish: the next one of its name takes it then.
    let mut result = store_once(node, &name, partition, &bodies).await;
    for _ in 1..GONE_TRIES {
        if result != Err(PublishError::TopicGone) {
            break;
        }
        node.topics.borrow_mut().forget(&name);
        result = store_once(node, &name, partition, &bodies).await;
    }
    match result {
        Ok(()) => {
            let took = began.elapsed();
            node.publish_latency.borrow_mut().record(took);
            node.publish_times.borrow_mut().record(took);
        }
        Err(PublishError::NoTopic | PublishError::TopicNotExist | PublishError::NotLeader) => {
            node.topics.borrow_mut().forget(&name)
        }
        Err(_) => {}
    }
    result.map_err(core_failure)
}

async fn store_once(
    node: &Node,
    name: &TopicName,
    partition: Option<PartitionId>,
    bodies: &OwnedBodies,
) -> Result<(), PublishError> {
    let (topic, next) = route(node, name).await?;
    let partition = partition.unwrap_or_else(|| PartitionId(node.link.partition_from(&topic, next.0)));
    if partition.0 >= topic.partitions {
        return Err(PublishError::NoPartition);
    }
    let core = topic.core_of(partition, node.link.cores());
    let publish = |ticket| MeshMessage::Publish { ticket, topic, partition, bodies: bodies.clone() };
    match node.link.ask(core, ANSWER_LIMIT, publish).await {
        Some(CoreAnswer::Published(result)) => result,
        _ => Err(PublishError::Unknown),
    }
}

/// The topic, created if need be, and the partition whose turn it is.
async fn route(node: &Node, name: &TopicName) -> Result<(TopicRef, PartitionId), PublishError> {
    if let Some(route) = node.topics.borrow_mut().next(name) {
        return Ok(route);
    }
    let home = home_core(name, node.link.cores());
    let ensure = |ticket| MeshMessage::EnsureTopic { ticket, name: name.clone(), partitions: 0 };
    let topic = match node.link.ask(home, ANSWER_LIMIT, ensure).await {
        Some(CoreAnswer::Topic(result)) => result?,
        // Nothing was published, so this is no unknown outcome.
        _ => return Err(PublishError::NoTopic),
    };
    let mut topics = node.topics.borrow_mut();
    if name.is_ephemeral() {
        // The remembered partition could be of a topic that is gone.
        let partition = PartitionId((topics.next_ephemeral % topic.partitions as u64) as u16);
        topics.next_ephemeral += 1;
        return Ok((topic, partition));
    }
    topics.remember(topic);
    topics.next(name).ok_or(PublishError::NoTopic)
}

impl Topics {
    fn next(&mut self, name: &TopicName) -> Option<(TopicRef, PartitionId)> {
        let (topic, next) = self.known.get_mut(name)?;
        let partition = PartitionId(*next % topic.partitions);
        *next = (partition.0 + 1) % topic.partitions;
        Some((topic.clone(), partition))
    }

    /// Forgets a topic that was deleted or is led elsewhere.
    pub fn forget(&mut self, name: &TopicName) {
        self.known.remove(name);
    }

    fn remember(&mut self, topic: TopicRef) {
        if self.known.len() >= TOPICS_MAX {
            self.known.clear();
        }
        // Another request may have remembered it meanwhile, and its turn goes on.
        self.known.entry(topic.name.clone()).or_insert((topic, 0));
    }
}

/// HTTP status of a core's error.
pub fn core_failure(error: PublishError) -> Failure {
    let (status, code) = match error {
        PublishError::DiskFull => (StatusCode::INSUFFICIENT_STORAGE, "DISK_FULL"),
        PublishError::ReadOnly => (StatusCode::SERVICE_UNAVAILABLE, "READ_ONLY"),
        PublishError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "EXITING"),
        PublishError::TooBig => (StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_BIG"),
        PublishError::OverLimit(OverLimit::Message { .. }) => (StatusCode::PAYLOAD_TOO_LARGE, "MSG_TOO_BIG"),
        PublishError::OverLimit(OverLimit::Delay { .. }) => (StatusCode::BAD_REQUEST, "INVALID_DEFER"),
        PublishError::TooMuchWaiting => (StatusCode::TOO_MANY_REQUESTS, "TOO_MUCH_WAITING"),
        PublishError::TopicGone => (StatusCode::SERVICE_UNAVAILABLE, "TOPIC_GONE"),
        PublishError::TooManyTopics => (StatusCode::FORBIDDEN, "TOO_MANY_TOPICS"),
        PublishError::TooManyChannels => (StatusCode::INTERNAL_SERVER_ERROR, "TOO_MANY_CHANNELS"),
        PublishError::TooManyConsumers => (StatusCode::INTERNAL_SERVER_ERROR, "TOO_MANY_CONSUMERS"),
        PublishError::NoTopic => (StatusCode::INTERNAL_SERVER_ERROR, "NO_TOPIC"),
        PublishError::NoPartition => (StatusCode::NOT_FOUND, "PARTITION_NOT_FOUND"),
        PublishError::Unknown => (StatusCode::INTERNAL_SERVER_ERROR, "OUTCOME_UNKNOWN"),
        PublishError::TopicNotExist => (StatusCode::NOT_FOUND, "TOPIC_NOT_FOUND"),
        PublishError::NotRegistered => (StatusCode::FORBIDDEN, "CHANNEL_NOT_REGISTERED"),
        PublishError::NotLeader | PublishError::NotRelayed => (StatusCode::MISDIRECTED_REQUEST, "E_FAILED_ON_NOT_LEADER"),
        PublishError::NotWritable(_) => (StatusCode::SERVICE_UNAVAILABLE, "E_FAILED_ON_NOT_WRITABLE"),
    };
    Failure::new(status, format!("{code}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(bodies: Result<OwnedBodies, &'static str>) -> Result<Vec<Vec<u8>>, &'static str> {
        bodies.map(|b| b.iter().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn lines_are_messages() {
        assert_eq!(list(split_lines(b"x\ny\n\nz", 9)), Ok(vec![b"x".to_vec(), b"y".to_vec(), b"z".to_vec()]));
        assert_eq!(list(split_lines(b"x\r\n", 9)), Ok(vec![b"x\r".to_vec()]));
        assert_eq!(list(split_lines(b"", 9)), Ok(vec![]));
        assert_eq!(list(split_lines(b"ok\n0123456789\n", 9)), Err("MSG_TOO_BIG"));
    }

    /// The cases and codes were observed on nsqd 1.3.0.
    #[test]
    fn a_binary_body_is_mpubs() {
        let two = b"\0\0\0\x02\0\0\0\x01a\0\0\0\x01b";
        assert_eq!(list(split_binary(two, 9)), Ok(vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(list(split_binary(b"\0\0\0\x01\0\0\0\x01axx", 9)), Ok(vec![b"a".to_vec()]));
        for (body, code) in [
            (&b""[..], "BAD_BODY"),
            (b"abc", "BAD_BODY"),
            (b"\0\0\0\0", "BAD_BODY"),
            (b"\xff\xff\xff\xff\0\0\0\x01a", "BAD_BODY"),
            (b"\0\0\0\x02\0\0\0\x01a\0\0\0\0", "BAD_MESSAGE"),
            (b"\0\0\0\x02\0\0\0\x01a\0\0\0\x05b", "BAD_MESSAGE"),
            (b"\0\0\0\x01\0\0\0\x0a0123456789", "BAD_MESSAGE"),
        ] {
            assert_eq!(list(split_binary(body, 9)), Err(code), "{body:?}");
        }
    }
}
