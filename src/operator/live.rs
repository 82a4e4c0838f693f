//! State of a cluster that only its nodes know, for `ringmq cluster status`: whether they answer, how far replicas have caught up, which
//! partitions need an operator, when a node that is away is replaced. A node that tells nothing leaves its part out; etcd alone is enough
//! for the rest of the page.

use super::ask::{Asker, HttpResponse, is_refused};
use crate::base::NodeId;
use crate::metadata::record::PartitionRecord;
use crate::metadata::view::View;
use ringmq_tools::text::bytes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

/// Time between the two looks that tell the rate of a catch-up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Time for a node's `/stats`. Of one that hangs nothing is told.
const STATS_LIMIT: Duration = Duration::from_secs(3);

/// Topic, partition and name of the node whose replica catches up.
pub type ReplicaName = (String, u16, String);

/// A catch-up, as the partition's leader sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatchUp {
    /// Bytes of the leader's log that the replica lacks.
    pub left: u64,
    /// Bytes per second by which `left` falls; 0: it does not.
    pub rate: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Live {
    /// Nodes that are registered and whose ports refuse connections.
    pub refusing: BTreeSet<NodeId>,
    /// Time until the replicas of a node that is away are made elsewhere, by the controller's clock and setting.
    pub replaced_in: BTreeMap<NodeId, Duration>,
    /// Partitions that may catch up before the controller makes further replicas: its `--rebuilds-max`. `None`: it told nothing.
    pub rebuilds_max: Option<usize>,
    pub catch_ups: BTreeMap<ReplicaName, CatchUp>,
    /// Alarms of leaders, by topic and partition.
    pub alarms: BTreeMap<(String, u16), String>,
    /// Failures that the cores of a node report: a full disk, a failed file. Each stands once.
    pub unhealthy: BTreeMap<NodeId, String>,
}

impl CatchUp {
    /// `None`: the rate tells no time.
    pub fn time_left(&self) -> Option<Duration> {
        (self.rate > 0).then(|| Duration::from_secs(self.left.div_ceil(self.rate)))
    }
}

impl std::fmt::Display for CatchUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} left", bytes(self.left))?;
        match self.time_left() {
            Some(time) => write!(f, ", {}/s, about {}", bytes(self.rate), period(time)),
            None if self.left > 0 => write!(f, ", no progress in the last second"),
            None => Ok(()),
        }
    }
}

/// Whole seconds, minutes or hours.
pub fn period(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 7200 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h", seconds.div_ceil(3600)),
    }
}

/// Asks the nodes, all at a time.
pub async fn gather(asker: &Asker, view: &View) -> Live {
    let refusing = refusing(view);
    let controller = view.controller().and_then(|e| view.member(e.value.node)?.value.http_address.clone());
    let is_short = view.members().any(|(id, _)| view.session(id).is_none() || view.is_draining(id));
    let told = match controller.filter(|_| is_short) {
        Some(address) => json(asker, &address, "/cluster/stats").await.unwrap_or_default(),
        None => Value::Null,
    };
    let stats = all_stats(asker, &registered(view)).await;
    let alarms = stats.values().flat_map(alarms_of).collect();
    let unhealthy = stats.iter().filter_map(|(id, stats)| Some((*id, failures_of(stats)?))).collect();
    let leaders = leaders_of_catch_ups(view);
    let first: BTreeMap<ReplicaName, u64> = stats.values().flat_map(lags_of).collect();
    let began = Instant::now();
    let mut catch_ups = BTreeMap::new();
    if !leaders.is_empty() && !first.is_empty() {
        sleep(LOOK_AGAIN).await;
        let second = all_stats(asker, &leaders).await.values().flat_map(lags_of).collect();
        catch_ups = rates(&first, &second, began.elapsed());
    }
    let rebuilds_max = told["rebuilds_max"].as_u64().and_then(|max| usize::try_from(max).ok());
    Live { refusing: refusing.await, replaced_in: replaced_in(&told), rebuilds_max, catch_ups, alarms, unhealthy }
}

/// Nodes that are registered, and refuse NSQ's and HTTP's connections: their process has ended, and its lease has not.
async fn refuses(tcp: Option<String>, http: Option<String>) -> bool {
    let known = [tcp, http].into_iter().flatten().filter(|address| !address.starts_with(':') && !address.ends_with(":0"));
    let mut refused = vec![];
    for address in known {
        refused.push(is_refused(&address).await);
    }
    !refused.is_empty() && refused.into_iter().all(|is_refused| is_refused)
}

fn refusing(view: &View) -> impl Future<Output = BTreeSet<NodeId>> + use<> {
    let there = view.members().filter(|(id, _)| view.session(*id).is_some());
    let asked: Vec<(NodeId, JoinHandle<bool>)> =
        there.map(|(id, e)| (id, spawn_local(refuses(e.value.tcp_address.clone(), e.value.http_address.clone())))).collect();
    async move {
        let mut refusing = BTreeSet::new();
        for (id, refuses) in asked {
            if refuses.await.unwrap_or(false) {
                refusing.insert(id);
            }
        }
        refusing
    }
}

/// HTTP addresses of the registered nodes.
fn registered(view: &View) -> BTreeMap<NodeId, String> {
    let there = view.members().filter(|(id, _)| view.session(*id).is_some());
    there.filter_map(|(id, e)| Some((id, e.value.http_address.clone()?))).collect()
}

/// HTTP addresses of the nodes that lead partitions with a living replica that is not in sync.
fn leaders_of_catch_ups(view: &View) -> BTreeMap<NodeId, String> {
    let is_behind = |p: &PartitionRecord| p.replicas.iter().any(|n| view.session(*n).is_some() && !p.isr.contains(n));
    let behind = view.partitions().filter(|(_, e)| is_behind(&e.value));
    let nodes: BTreeSet<NodeId> = behind.filter_map(|(_, e)| e.value.leader.map(|l| l.node)).collect();
    registered(view).into_iter().filter(|(id, _)| nodes.contains(id)).collect()
}

async fn json(asker: &Asker, address: &str, path: &str) -> Option<Value> {
    let body = asker.get(address, path).await.and_then(HttpResponse::good).ok()?;
    serde_json::from_str(&body).ok()
}

fn replaced_in(stats: &Value) -> BTreeMap<NodeId, Duration> {
    let row =
        |(id, ms): (&String, &Value)| Some((NodeId(crate::metadata::keys::parse_id(id)?), Duration::from_millis(ms.as_u64()?)));
    stats["replaced_in_ms"].as_object().into_iter().flatten().filter_map(row).collect()
}

/// `/stats` of those that answer.
async fn all_stats(asker: &Asker, addresses: &BTreeMap<NodeId, String>) -> BTreeMap<NodeId, Value> {
    let ask = |(id, address): (&NodeId, &String)| {
        let (id, asker, address) = (*id, asker.clone(), address.clone());
        spawn_local(async move {
            let stats = timeout(STATS_LIMIT, json(&asker, &address, "/stats?format=json&include_clients=false")).await;
            Some((id, stats.ok().flatten()?))
        })
    };
    let asked: Vec<_> = addresses.iter().map(ask).collect();
    let mut all = BTreeMap::new();
    for stats in asked {
        all.extend(stats.await.ok().flatten());
    }
    all
}

/// Failures that the cores of a node report. `None`: each core is well.
fn failures_of(stats: &Value) -> Option<String> {
    let cores = stats["cores"].as_array().into_iter().flatten();
    let failed = cores.filter_map(|core| core["health"].as_str()).filter(|health| *health != "OK");
    // The same failure of several cores differs in the core's number, which stands in front.
    let failures: BTreeSet<&str> = failed.map(|health| health.split_once(": ").map_or(health, |(_, failure)| failure)).collect();
    (!failures.is_empty()).then(|| failures.into_iter().collect::<Vec<_>>().join("; "))
}

/// The replicas of a node, by topic and partition, as its `/stats` has them.
fn replicas_of(stats: &Value) -> impl Iterator<Item = (&str, u16, &Value)> {
    stats["topics"].as_array().into_iter().flatten().flat_map(|topic| {
        let name = topic["topic_name"].as_str().unwrap_or_default();
        topic["replication"].as_array().into_iter().flatten().map(move |replica| {
            let number = replica["partition"].as_u64().and_then(|n| u16::try_from(n).ok()).unwrap_or_default();
            (name, number, replica)
        })
    })
}

/// Alarms of the partitions that the node leads.
fn alarms_of(stats: &Value) -> Vec<((String, u16), String)> {
    let leads = |replica: &Value| replica["role"].as_str().is_some_and(|role| role.starts_with("leader"));
    let row = |(topic, number, replica): (&str, u16, &Value)| {
        let alarm = replica["alarm"].as_str().filter(|_| leads(replica))?;
        Some(((topic.to_owned(), number), alarm.to_owned()))
    };
    replicas_of(stats).filter_map(row).collect()
}

/// Bytes that followers outside the ISR lack, from a leader's `/stats`.
fn lags_of(stats: &Value) -> Vec<(ReplicaName, u64)> {
    let mut lags = vec![];
    for (topic, number, replica) in replicas_of(stats) {
        for follower in replica["followers"].as_array().into_iter().flatten() {
            if let (Some(node), Some(false)) = (follower["node"].as_str(), follower["in_sync"].as_bool()) {
                let lag = follower["lag"].as_i64().unwrap_or_default();
                lags.push(((topic.to_owned(), number, node.to_owned()), u64::try_from(lag).unwrap_or(0)));
            }
        }
    }
    lags
}

/// Catch-up rates of the replicas that were behind at both looks.
fn rates(
    first: &BTreeMap<ReplicaName, u64>,
    second: &BTreeMap<ReplicaName, u64>,
    between: Duration,
) -> BTreeMap<ReplicaName, CatchUp> {
    let ms = u64::try_from(between.as_millis()).unwrap_or(u64::MAX).max(1);
    let row = |(place, left): (&ReplicaName, &u64)| {
        let fallen = first.get(place)?.saturating_sub(*left);
        Some((place.clone(), CatchUp { left: *left, rate: fallen.saturating_mul(1000) / ms }))
    };
    second.iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_catch_up_says_what_is_left_and_for_how_long() {
        let stats = |lag: i64| {
            let followers = json!([{ "node": "b", "in_sync": false, "lag": lag }, { "node": "c", "in_sync": true, "lag": 7 }]);
            json!({ "topics": [{ "topic_name": "t", "replication": [{ "partition": 3, "followers": followers }] }] })
        };
        let look = |lag: i64| lags_of(&stats(lag)).into_iter().collect::<BTreeMap<_, _>>();
        let said = |first: i64, second: i64| {
            let all = rates(&look(first), &look(second), Duration::from_secs(2));
            assert_eq!(all.keys().collect::<Vec<_>>(), [&("t".to_owned(), 3, "b".to_owned())]);
            all.values().map(CatchUp::to_string).collect::<String>()
        };
        assert_eq!(said(30 << 20, 20 << 20), "20.0 MiB left, 5.0 MiB/s, about 4 s");
        assert_eq!(said(2 << 30, (2 << 30) - (2 << 20)), "2.0 GiB left, 1.0 MiB/s, about 35 min");
        assert_eq!(said(20 << 20, 20 << 20), "20.0 MiB left, no progress in the last second");
        assert_eq!(said(10, 0), "0 B left, 5 B/s, about 0 s");
        assert_eq!(said(0, 0), "0 B left");
    }

    #[test]
    fn an_alarm_is_that_of_the_leader() {
        let replica = |role: &str| json!({ "partition": 1, "role": role, "alarm": format!("{role} needs an operator") });
        let stats =
            json!({ "topics": [{ "topic_name": "t", "replication": [replica("follower"), replica("leader, opening")] }] });
        assert_eq!(alarms_of(&stats), [(("t".to_owned(), 1), "leader, opening needs an operator".to_owned())]);
    }

    #[test]
    fn a_failure_of_several_cores_stands_once() {
        let stats = |healths: &[&str]| json!({ "cores": healths.iter().map(|h| json!({ "health": h })).collect::<Vec<_>>() });
        let full = ["core 0: the disk is full", "OK", "core 2: the disk is full"];
        assert_eq!(failures_of(&stats(&full)).unwrap(), "the disk is full");
        let slow = ["core 1 did not answer within 2s", "core 0: the disk is full"];
        assert_eq!(failures_of(&stats(&slow)).unwrap(), "core 1 did not answer within 2s; the disk is full");
        assert_eq!(failures_of(&stats(&["OK", "OK"])), None);
        assert_eq!(failures_of(&json!({})), None);
    }

    #[test]
    fn the_controller_says_when_a_node_is_replaced() {
        let (id, other) = ("01".repeat(16), "x");
        let stats = json!({ "replaced_in_ms": { id.as_str(): 90_000, other: 1 } });
        assert_eq!(replaced_in(&stats), BTreeMap::from([(NodeId([1; 16]), Duration::from_secs(90))]));
        assert_eq!(replaced_in(&json!({})), BTreeMap::new());
        assert_eq!([5, 90, 400, 9000].map(|s| period(Duration::from_secs(s))), ["5 s", "90 s", "7 min", "3 h"]);
    }
}
