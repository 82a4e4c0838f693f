//! POST /replica/acceptloss: an operator's decision, passed to the partition's core.

use super::Node;
use super::channels::{ANSWER_LIMIT, find_topic};
use super::link::CoreAnswer;
use super::publish::partition_of;
use super::routes::{Failure, Query};
use crate::base::{PartitionId, TopicName};
use crate::seam::{message::MeshMessage, outcome::AcceptLossError};
use hyper::StatusCode;

/// `POST /replica/acceptloss?topic=...[&partition=...][&loss=FROM-TO]`, at the node that leads or is to lead. Without the loss, or with
/// another one than the leader names, nothing happens and the answer names it.
pub async fn accept_loss(node: &Node, query: Result<Query, Failure>) -> Result<String, Failure> {
    let query = query?;
    let bad = |message: &'static str| Failure::new(StatusCode::BAD_REQUEST, message);
    let topic = query.get("topic").ok_or(bad("MISSING_ARG_TOPIC"))?;
    let topic = TopicName::new(topic).map_err(|_| bad("INVALID_ARG_TOPIC"))?;
    let partition = partition_of(&query)?.unwrap_or(PartitionId(0));
    let loss = query.get("loss").map(String::from);
    let topic = find_topic(node, topic).await?;
    if partition.0 >= topic.partitions {
        return Err(Failure::new(StatusCode::NOT_FOUND, "PARTITION_NOT_FOUND"));
    }
    let core = topic.core_of(partition, node.link.cores());
    let ask = |ticket| MeshMessage::AcceptLoss { ticket, topic, partition, loss };
    match node.link.ask(core, ANSWER_LIMIT, ask).await {
        Some(CoreAnswer::LossAccepted(Ok(lost))) => Ok(serde_json::json!({ "accepted": lost }).to_string()),
        Some(CoreAnswer::LossAccepted(Err(error))) => Err(match error {
            AcceptLossError::NoReplica => Failure::new(StatusCode::NOT_FOUND, format!("NO_REPLICA: {error}")),
            AcceptLossError::Nothing { .. } => Failure::new(StatusCode::CONFLICT, format!("NOTHING_TO_ACCEPT: {error}")),
            AcceptLossError::ByFile { .. } => Failure::new(StatusCode::CONFLICT, format!("NOT_BY_FILE: {error}")),
            AcceptLossError::ReadOnly => Failure::new(StatusCode::SERVICE_UNAVAILABLE, format!("READ_ONLY: {error}")),
            AcceptLossError::NotNamed { .. } => Failure::new(StatusCode::CONFLICT, format!("LOSS_NOT_NAMED: {error}")),
        }),
        _ => Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "OUTCOME_UNKNOWN: the core did not answer")),
    }
}
