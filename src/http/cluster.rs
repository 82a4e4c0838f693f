//! HTTP calls of operators to a cluster whose metadata an etcd keeps: `/topic/meta/update`, `/topic/partition/...`, `/cluster/...`. Any
//! node answers. Each call is idempotent: a repeated one answers that it is so already.

use super::channels::ANSWER_LIMIT;
use super::publish::topic_of;
use super::routes::{Failure, Query};
use super::topics::{existing, not_found};
use super::{Node, lookups};
use crate::agent::{Admin, AdminError, Agent, TopicChange};
use crate::base::{ChannelName, Ticks};
use crate::config;
use crate::coordinator::hub::Hub;
use crate::metadata::summary;
use crate::seam::cluster::TopicProperties;
use hyper::StatusCode;
use serde_json::Value;
use std::str::FromStr;
use tokio::time::timeout;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Days of `retention=`, at most.
const RETENTION_DAYS_MAX: u64 = 60;

/// `POST /topic/create?topic=...` of a cluster.
pub async fn create(hub: &Hub, query: &Query) -> Result<(), Failure> {
    let name = topic_of(query)?;
    if name.is_ephemeral() {
        return Err(bad("INVALID_TOPIC: an ephemeral topic is of one node, not of a cluster"));
    }
    check_syncdisk(query)?;
    let properties = TopicProperties {
        retention_ms: retention(query)?.flatten(),
        retention_bytes: number(query, "retention_bytes")?,
        ordered: flag(query, "orderedmulti")?.unwrap_or(false),
        channels_by_operator: flag(query, "disable_channel_auto_create")?.unwrap_or(false),
        max_msg_size: limit(query, "max_msg_size", "max-msg-size")?.flatten(),
        max_defer_ms: limit(query, "max_defer", "max-req-timeout")?.flatten(),
    };
    let admin = Admin::CreateTopic {
        name,
        partitions: positive(query, "partition_num")?,
        replicas: positive(query, "replicator")?,
        min_isr: positive(query, "min_isr")?,
        properties,
    };
    carry(hub, admin).await
}

/// `POST /topic/delete?topic=...` of a cluster. `partition=**` changes nothing: the whole topic is deleted anyway.
pub async fn delete(hub: &Hub, query: &Query) -> Result<(), Failure> {
    if query.get("partition").is_some_and(|partition| partition != "**") {
        return Err(bad("INVALID_ARG: partition can only be **: a topic is deleted as a whole"));
    }
    carry(hub, Admin::DeleteTopic { name: existing(query)? }).await
}

/// `POST /topic/meta/update?topic=...`: parameters that are not named stay.
pub async fn update(node: &Node, query: Result<Query, Failure>) -> Result<(), Failure> {
    let (query, hub) = (query?, hub(node)?);
    check_syncdisk(&query)?;
    if query.get("partition_num").is_some() {
        return Err(bad("INVALID_ARG: POST /topic/partition/expand adds partitions"));
    }
    let bytes: Option<u64> = number(&query, "retention_bytes")?;
    let change = TopicChange {
        replicas: number(&query, "replicator")?,
        min_isr: number(&query, "min_isr")?,
        retention_ms: retention(&query)?,
        retention_bytes: bytes.map(|bytes| Some(bytes).filter(|bytes| *bytes > 0)),
        ordered: flag(&query, "orderedmulti")?,
        channels_by_operator: flag(&query, "disable_channel_auto_create")?,
        max_msg_size: limit(&query, "max_msg_size", "max-msg-size")?,
        max_defer_ms: limit(&query, "max_defer", "max-req-timeout")?,
    };
    carry(hub, Admin::AlterTopic { name: existing(&query)?, change }).await
}

/// `POST /topic/partition/expand?topic=...&partition_num=...`: the topic has so many partitions from now on, never fewer.
pub async fn expand(node: &Node, query: Result<Query, Failure>) -> Result<(), Failure> {
    let (query, hub) = (query?, hub(node)?);
    let name = existing(&query)?;
    let partitions =
        number(&query, "partition_num")?.filter(|partitions| *partitions > 0).ok_or_else(|| bad("MISSING_ARG_PARTITION_NUM"))?;
    let channels = lookups::all_channels(node, &name).await?;
    let channels = channels.iter().filter_map(|channel| ChannelName::new(channel).ok()).filter(|c| !c.is_ephemeral()).collect();
    carry(hub, Admin::ExpandTopic { name, partitions, channels }).await
}

/// `POST /topic/partition/move?topic=...&partition=...&move_to=...`, with `move_leader=true` or `move_from=...`.
pub async fn move_partition(node: &Node, query: Result<Query, Failure>) -> Result<(), Failure> {
    let (query, hub) = (query?, hub(node)?);
    let name = existing(&query)?;
    let partition = number(&query, "partition")?.ok_or_else(|| bad("MISSING_ARG_PARTITION"))?;
    let text = |key: &str| query.get(key).filter(|text| !text.is_empty()).map(String::from);
    let to = text("move_to").ok_or_else(|| bad("MISSING_ARG_MOVE_TO: a node's name or id"))?;
    let admin = match (flag(&query, "move_leader")?.unwrap_or(false), text("move_from")) {
        (true, _) => Admin::MoveLeader { name, partition, to },
        (false, Some(from)) => Admin::MoveReplica { name, partition, from, to },
        (false, None) => return Err(bad("MISSING_ARG_MOVE_FROM: a node's name or id, unless move_leader=true")),
    };
    carry(hub, admin).await
}

/// `POST /cluster/node/remove?remove_node=...`: the node is drained; asked again when it is empty and stopped, the cluster forgets it.
/// The answer says which of the two was done.
pub async fn remove_node(node: &Node, query: Result<Query, Failure>) -> Result<String, Failure> {
    let (query, hub) = (query?, hub(node)?);
    let name = query.get("remove_node").filter(|name| !name.is_empty()).ok_or_else(|| bad("MISSING_ARG_REMOVE_NODE"))?.to_owned();
    match timeout(ANSWER_LIMIT, hub.admin(Admin::RemoveNode { node: name.clone() })).await {
        Ok(Some(Err(kept @ (AdminError::NodeInUse { .. } | AdminError::NodeAlive(_))))) => {
            carry(hub, Admin::Drain { node: name }).await?;
            Ok(not_removed_yet(&kept))
        }
        Ok(Some(Ok(removed))) => Ok(removed),
        Ok(Some(Err(error))) => Err(failure_of(error)),
        _ => Err(no_answer()),
    }
}

/// The answer for a node that is drained and still known to the cluster.
fn not_removed_yet(kept: &AdminError) -> String {
    match kept {
        AdminError::NodeInUse { node, replicas } => format!(
            "node {node} is being drained and has {replicas} replicas, so it is not removed yet: repeat the request when it has none and \
             is stopped. Replicas that no other node can take stay on it: add a node, or lower the replicas of the topics"
        ),
        AdminError::NodeAlive(node) => format!(
            "node {node} is drained and has no replicas, and is not removed yet: stop it, and repeat the request (after a kill wait until \
             its lease is over)"
        ),
        other => other.to_string(),
    }
}

/// `POST /cluster/node/drain` and `/cluster/node/undrain?node=...`.
pub async fn drain(node: &Node, query: Result<Query, Failure>, is_wanted: bool) -> Result<(), Failure> {
    let (query, hub) = (query?, hub(node)?);
    let name = query.get("node").filter(|name| !name.is_empty()).ok_or_else(|| bad("MISSING_ARG_NODE"))?.to_owned();
    carry(hub, if is_wanted { Admin::Drain { node: name } } else { Admin::Undrain { node: name } }).await
}

/// The numbers of the metadata; of the controller also the time until the replicas of each node that is away are made elsewhere, and
/// the number of partitions that may catch up at a time.
fn stats_of(agent: &Agent, now: Ticks) -> Value {
    let (view, controller) = (agent.view(), agent.controller());
    let mut stats = summary::stats(view);
    if controller.is_in_office() {
        let left = view.members().filter_map(|(id, _)| {
            let left = controller.replaced_in(now, id)?.as_millis();
            Some((id.to_string(), u64::try_from(left).unwrap_or(u64::MAX).into()))
        });
        stats["replaced_in_ms"] = Value::Object(left.collect());
        stats["rebuilds_max"] = controller.options().rebuilds_max.into();
    }
    stats
}

/// `GET /cluster/stats`: this node's view of the cluster.
pub async fn stats(node: &Node) -> Result<String, Failure> {
    let look = hub(node)?.look_now(|agent, now| stats_of(agent, now).to_string());
    timeout(ANSWER_LIMIT, look).await.ok().flatten().ok_or_else(no_answer)
}

pub fn hub(node: &Node) -> Result<&Hub, Failure> {
    let alone = || Failure::new(StatusCode::CONFLICT, "NOT_IN_A_CLUSTER: this node has no --etcd-endpoints");
    node.around.hub.as_deref().ok_or_else(alone)
}

/// Carries out an operator's request; returns when the metadata store has it.
async fn carry(hub: &Hub, admin: Admin) -> Result<(), Failure> {
    match timeout(ANSWER_LIMIT, hub.admin(admin)).await {
        Ok(Some(result)) => told(result),
        Err(_) | Ok(None) => Err(no_answer()),
    }
}

fn told(result: Result<String, AdminError>) -> Result<(), Failure> {
    result.map(drop).map_err(failure_of)
}

fn failure_of(error: AdminError) -> Failure {
    let status = match &error {
        AdminError::NoTopic(_) => return not_found(),
        AdminError::NoNode(_) | AdminError::NoPartition { .. } => StatusCode::NOT_FOUND,
        AdminError::BadTopic | AdminError::AmbiguousNode(_) => StatusCode::BAD_REQUEST,
        AdminError::TopicDiffers(_)
        | AdminError::Shrinks { .. }
        | AdminError::NodeInUse { .. }
        | AdminError::NodeAlive(_)
        | AdminError::NodeNotUsable(_)
        | AdminError::NotThere { .. }
        | AdminError::ThereAlready { .. }
        | AdminError::NotInSync { .. } => StatusCode::CONFLICT,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    Failure::new(status, format!("NOT_DONE: {error}"))
}

fn bad(message: &'static str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, message)
}

fn no_answer() -> Failure {
    let why = "OUTCOME_UNKNOWN: the metadata store did not answer in time: repeat the request";
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, why)
}

fn number<T: FromStr>(query: &Query, key: &'static str) -> Result<Option<T>, Failure> {
    let wrong = |_| Failure::new(StatusCode::BAD_REQUEST, format!("INVALID_ARG: {key} is not a whole number, or too large"));
    query.get(key).filter(|text| !text.is_empty()).map(|text| text.parse().map_err(wrong)).transpose()
}

/// Parses a number of at least 1. 0: it is not given, and the cluster's default holds.
fn positive<T: FromStr + Default + PartialEq>(query: &Query, key: &'static str) -> Result<T, Failure> {
    match number(query, key)? {
        Some(zero) if zero == T::default() => {
            Err(Failure::new(StatusCode::BAD_REQUEST, format!("INVALID_ARG: {key} is at least 1")))
        }
        value => Ok(value.unwrap_or_default()),
    }
}

/// 0: none but the nodes'. Refused above the largest value of the nodes' setting: no node would ever take so much.
fn limit(query: &Query, key: &'static str, setting: &str) -> Result<Option<Option<u64>>, Failure> {
    let limit: Option<u64> = number(query, key)?;
    let most = config::TABLE.iter().find(|row| row.name == setting).map_or(u64::MAX, |row| row.max);
    if limit.is_some_and(|limit| limit > most) {
        let why = format!("INVALID_ARG: {key} is at most {most}: --{setting} of a node cannot be more");
        return Err(Failure::new(StatusCode::BAD_REQUEST, why));
    }
    Ok(limit.map(|limit| Some(limit).filter(|limit| *limit > 0)))
}

fn flag(query: &Query, key: &'static str) -> Result<Option<bool>, Failure> {
    match query.get(key) {
        None | Some("") => Ok(None),
        Some("true" | "1") => Ok(Some(true)),
        Some("false" | "0") => Ok(Some(false)),
        Some(_) => Err(Failure::new(StatusCode::BAD_REQUEST, format!("INVALID_ARG: {key} is true or false"))),
    }
}

/// Every publish is on the disks of all in-sync replicas before it is acknowledged: a number is taken and changes nothing.
fn check_syncdisk(query: &Query) -> Result<(), Failure> {
    number::<u32>(query, "syncdisk").map(drop)
}

/// Parses `retention`, in days. `Some(None)` or 0: the nodes' settings hold.
fn retention(query: &Query) -> Result<Option<Option<u64>>, Failure> {
    let days: Option<u64> = number(query, "retention")?;
    if days.is_some_and(|days| days > RETENTION_DAYS_MAX) {
        return Err(bad("INVALID_ARG: retention is 0 to 60 days"));
    }
    Ok(days.map(|days| Some(days * DAY_MS).filter(|ms| *ms > 0)))
}
