//! /stats and /ping: every core is asked, and a core that does not answer makes the node sick.

use super::link::CoreAnswer;
use super::routes::{Query, Reply, json, text, versioned, with_type};
use super::{Node, unix_s};
use crate::agent::StoreTrouble;
use crate::base::{ChannelName, CoreId, TopicName};
use crate::discovery::NSQ_VERSION;
use crate::metadata::summary::Summary;
use crate::metrics::node::{Condition, Filter, NodeFacts, NodeStats};
use crate::metrics::prometheus::{self, ProcessFacts};
use crate::metrics::stats::ShardStats;
use crate::seam::message::MeshMessage;
use hyper::StatusCode;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A core whose turn takes longer is not well.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Asking for the statistics of one topic gets a core's health and little else. It need not exist.
const PROBE: &str = "ping#ephemeral";

/// Answer to /ping: `OK`, perhaps with a warning, or 500 and the reason why clients should go to another node.
pub async fn ping(node: &Node) -> Reply {
    let probe = TopicName::new(PROBE).ok();
    let shards = ask_all(node, probe, None, false).await;
    let (health, serves) = crate::metrics::node::ping(&shards, &condition(node));
    text(if serves { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }, health)
}

fn condition(node: &Node) -> Condition {
    node.around.hub.as_ref().map(|hub| hub.condition()).unwrap_or_default()
}

pub async fn stats(node: &Node, query: &Query) -> Reply {
    let wanted = |key: &str| query.get(key).filter(|value| !value.is_empty()).map(String::from);
    let filter = Filter { topic: wanted("topic"), channel: wanted("channel"), clients: query.is_wanted("include_clients") };
    // A name that cannot exist finds nothing; the cores are asked for their health all the same.
    let topic = filter.topic.as_deref().and_then(|name| TopicName::new(name).or_else(|_| TopicName::new(PROBE)).ok());
    let channel = filter.channel.as_deref().and_then(|name| ChannelName::new(name).ok());
    let shards = ask_all(node, topic, channel, filter.clients).await;
    let facts = NodeFacts {
        nsqd_version: NSQ_VERSION,
        version: env!("CARGO_PKG_VERSION"),
        start_unix_s: node.start_unix_s,
        now_unix_s: unix_s(),
        resident_bytes: query.is_wanted("include_mem").then(resident_bytes),
        spare_bytes: (node.around.spare_bytes)(),
        quantiles: node.settings.end_to_end_quantiles(),
        condition: condition(node),
        extra: vec![
            ("connections", shards.iter().map(|s| s.connections).sum::<u64>().to_string()),
            ("http_publish", node.publish_latency.borrow().to_string()),
        ],
    };
    let stats = NodeStats::merge(shards, &filter, facts);
    if query.get("format") == Some("json") { json(stats.json()) } else { versioned(text(StatusCode::OK, stats.text())) }
}

/// Metrics for Prometheus. Cores give numbers alone; this thread renders the text.
pub async fn metrics(node: &Node) -> Reply {
    let shards = ask_all(node, None, None, false).await;
    let cluster = cluster_numbers(node).await;
    let facts = ProcessFacts {
        version: env!("CARGO_PKG_VERSION"),
        start_unix_s: node.start_unix_s,
        resident_bytes: resident_bytes(),
        cpu_seconds: cpu_seconds(),
        spare_bytes: (node.around.spare_bytes)(),
        journal_bytes: node.settings.journal_bytes * u64::from(node.link.cores()),
        http_publishes: node.publish_times.borrow().clone(),
        cluster,
    };
    with_type(StatusCode::OK, prometheus::CONTENT_TYPE, prometheus::render(&shards, &facts).into())
}

/// Numbers of a cluster that etcd decides; empty when the coordinator does not answer.
async fn cluster_numbers(node: &Node) -> Vec<(&'static str, &'static str, usize)> {
    let Some(hub) = &node.around.hub else { return vec![] };
    let look = hub
        .look(|agent| (Summary::of(agent.view()), agent.leaderless(), agent.session().is_some(), agent.store_trouble().cloned()));
    let Ok(Some((sum, own_without_leader, is_in_session, trouble))) = tokio::time::timeout(ANSWER_LIMIT, look).await else {
        return vec![];
    };
    let is_away = matches!(trouble, Some(StoreTrouble::Away(_)));
    let is_refused = matches!(trouble, Some(StoreTrouble::Refused(_)));
    vec![
        ("ringmq_cluster_lease", "1 while this node's lease holds; else 0: it serves nothing", usize::from(is_in_session)),
        (
            "ringmq_cluster_etcd_away",
            "1 while etcd does not answer this node: the node serves until its lease is over",
            usize::from(is_away),
        ),
        (
            "ringmq_cluster_refused",
            "1 while etcd answers and refuses this node, for example its login: the node serves until its lease is over",
            usize::from(is_refused),
        ),
        ("ringmq_cluster_partitions", "Partitions of the cluster, as this node knows it", sum.partitions),
        ("ringmq_cluster_partitions_without_leader", "Partitions that nobody leads", sum.without_leader),
        (
            "ringmq_cluster_own_partitions_without_leader",
            "Partitions with a replica on this node that nobody leads",
            own_without_leader,
        ),
        (
            "ringmq_cluster_partitions_below_min_isr",
            "Partitions that take no publish: too few replicas in sync",
            sum.below_min_isr,
        ),
        (
            "ringmq_cluster_partitions_too_few_in_sync",
            "Partitions with fewer replicas in sync than they should have",
            sum.too_few_in_sync,
        ),
        ("ringmq_cluster_nodes", "Nodes that ever registered and were not removed", sum.nodes),
        ("ringmq_cluster_nodes_away", "Nodes of them without a session", sum.nodes_away),
    ]
}

pub async fn ask_all(node: &Node, topic: Option<TopicName>, channel: Option<ChannelName>, clients: bool) -> Vec<ShardStats> {
    let ask = async |core: u16| {
        let (topic, channel) = (topic.clone(), channel.clone());
        let request = |ticket| MeshMessage::StatsRequest { ticket, topic, channel, clients };
        match node.link.ask(CoreId(core), ANSWER_LIMIT, request).await {
            Some(CoreAnswer::Stats(stats)) => *stats,
            _ => {
                let health = format!("core {core} did not answer within {ANSWER_LIMIT:?}");
                ShardStats { core, healthy: false, health, ..ShardStats::default() }
            }
        }
    };
    join_all((0..node.link.cores()).map(ask)).await
}

/// Awaits all futures at once: a slow core does not delay the questions to the others.
pub async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    enum Slot<F, T> {
        Running(Pin<Box<F>>),
        Done(T),
    }
    let mut slots: Vec<Slot<_, T>> = futures.map(|future| Slot::Running(Box::pin(future))).collect();
    std::future::poll_fn(|cx| {
        let mut ready = true;
        for slot in &mut slots {
            if let Slot::Running(future) = slot {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *slot = Slot::Done(value),
                    std::task::Poll::Pending => ready = false,
                }
            }
        }
        if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    let done = |slot| match slot {
        Slot::Done(value) => Some(value),
        Slot::Running(_) => None,
    };
    slots.into_iter().filter_map(done).collect()
}

/// CPU seconds of user and system, from ticks of a hundredth of a second; 0 when /proc cannot be read.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the process stands in parentheses and may contain anything; field 3 follows it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    (ticks(14) + ticks(15)) as f64 / 100.0
}

/// 0 when /proc does not say.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
