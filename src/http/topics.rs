//! POST /topic/create, delete, empty, pause and unpause: nsqd's parameters, codes and texts. Answered when the change is durable.
//! In a cluster the cluster file, or the metadata store ([`cluster`]), says which topics there are.

use super::channels::{ANSWER_LIMIT, find_topic, half_done, refused};
use super::link::CoreAnswer;
use super::publish::{core_failure, topic_of};
use super::routes::{Failure, Query};
use super::{Node, cluster};
use crate::base::topic::home_core;
use crate::base::{ChannelName, PartitionId, TopicName};
use crate::seam::message::{ChangeChannel, ChannelChange, MeshMessage};
use crate::seam::outcome::{PublishError, SetOffsetError};
use hyper::StatusCode;

/// `POST /topic/create?topic=...`: nothing changes where the topic is there already.
pub async fn create(node: &Node, query: Result<Query, Failure>) -> Result<(), Failure> {
    let query = query?;
    let name = topic_of(&query)?;
    if let Some(hub) = &node.around.hub {
        return cluster::create(hub, &query).await;
    }
    let home = home_core(&name, node.link.cores());
    match node.link.ask(home, ANSWER_LIMIT, |ticket| MeshMessage::EnsureTopic { ticket, name, partitions: 0 }).await {
        Some(CoreAnswer::Topic(Ok(_))) => Ok(()),
        Some(CoreAnswer::Topic(Err(PublishError::TopicNotExist))) => Err(ruled_by_the_file()),
        Some(CoreAnswer::Topic(Err(error))) => Err(core_failure(error)),
        _ => Err(no_answer()),
    }
}

/// `POST /topic/delete?topic=...`: the topic goes with its channels and messages, and its clients are disconnected.
pub async fn delete(node: &Node, query: Result<Query, Failure>) -> Result<(), Failure> {
    let query = query?;
    let name = existing(&query)?;
    if let Some(hub) = &node.around.hub {
        node.topics.borrow_mut().forget(&name);
        return cluster::delete(hub, &query).await;
    }
    if node.settings.is_clustered() {
        return Err(ruled_by_the_file());
    }
    let home = home_core(&name, node.link.cores());
    let answer = node.link.ask(home, ANSWER_LIMIT, |ticket| MeshMessage::DeleteTopic { ticket, name: name.clone() }).await;
    // The partition that a publish remembers is of a topic that is gone.
    node.topics.borrow_mut().forget(&name);
    match answer {
        Some(CoreAnswer::TopicChanged(Ok(()))) => Ok(()),
        Some(CoreAnswer::TopicChanged(Err(PublishError::NoTopic))) => Err(not_found()),
        Some(CoreAnswer::TopicChanged(Err(error))) => Err(core_failure(error)),
        _ => Err(no_answer()),
    }
}

/// `POST /topic/empty?topic=...`: drops the messages that wait for the topic's first channel, in one partition after the other.
pub async fn empty(node: &Node, query: Result<Query, Failure>) -> Result<(), Failure> {
    let topic = find_topic(node, topic_of(&query?)?).await?;
    if node.settings.is_clustered() {
        let why =
            "NOT_IN_A_CLUSTER: a topic of a cluster is not emptied as a whole: POST /channel/empty for each of its channels";
        return Err(Failure::new(StatusCode::CONFLICT, why));
    }
    let partitions: Vec<PartitionId> = (0..topic.partitions).map(PartitionId).collect();
    for (i, &partition) in partitions.iter().enumerate() {
        let (core, topic) = (topic.core_of(partition, node.link.cores()), topic.clone());
        let failure = match node.link.ask(core, ANSWER_LIMIT, |ticket| MeshMessage::EmptyTopic { ticket, topic, partition }).await
        {
            Some(CoreAnswer::TopicChanged(Ok(()))) => continue,
            Some(CoreAnswer::TopicChanged(Err(error))) => core_failure(error),
            _ => no_answer(),
        };
        let done: Vec<u16> = partitions[..i].iter().map(|p| p.0).collect();
        return Err(half_done(failure, partition, &done, &partitions));
    }
    Ok(())
}

/// `POST /topic/pause` and `/topic/unpause?topic=...`: keeps later publishes in the topic, in one partition after the other.
///
/// A pause is a cursor of the partition, so it is made and removed like a channel's cursor.
pub async fn pause(node: &Node, query: Result<Query, Failure>, paused: bool) -> Result<(), Failure> {
    let topic = find_topic(node, existing(&query?)?).await?;
    let (channel, partitions) = (ChannelName::topic_pause(), (0..topic.partitions).map(PartitionId).collect::<Vec<_>>());
    let mut done = Vec::new();
    for &partition in &partitions {
        let change = match paused {
            true => ChannelChange::Create { first: Some(false), is_alone: true },
            false => ChannelChange::Delete,
        };
        let core = topic.core_of(partition, node.link.cores());
        let set = Box::new(ChangeChannel { topic: topic.clone(), partition, channel: channel.clone(), change });
        let failure = match node.link.ask(core, ANSWER_LIMIT, |ticket| MeshMessage::ChangeChannel { ticket, set }).await {
            // Not paused before.
            Some(CoreAnswer::ChannelChanged(Ok(_) | Err(SetOffsetError::NoChannel))) => {
                done.push(partition.0);
                continue;
            }
            Some(CoreAnswer::ChannelChanged(Err(error))) => refused(error),
            _ => no_answer(),
        };
        return Err(half_done(failure, partition, &done, &partitions));
    }
    Ok(())
}

/// A name that cannot exist is not found, as nsqd has it.
pub fn existing(query: &Query) -> Result<TopicName, Failure> {
    let name = query.get("topic").ok_or(Failure::new(StatusCode::BAD_REQUEST, "MISSING_ARG_TOPIC"))?;
    TopicName::new(name).map_err(|_| not_found())
}

pub fn not_found() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "TOPIC_NOT_FOUND")
}

fn ruled_by_the_file() -> Failure {
    let why = "RULED_BY_CLUSTER_FILE: the file of --cluster-file names the topics of this node: change that file, on every node";
    Failure::new(StatusCode::CONFLICT, why)
}

fn no_answer() -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "OUTCOME_UNKNOWN: the core did not answer in time: repeat the request")
}
