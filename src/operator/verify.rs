//! `ringmq cluster verify`: whether the metadata agrees with itself, and the replicas of each partition with it and with each other.
//!
//! Replicas move while they are asked, so the compared facts hold at any time: an in-sync follower that is asked after its leader has on
//! its disk all that the leader had committed, and a leader that is asked again afterwards has a committed end at least as high as the
//! follower's. Ends and reported damage are compared here; bytes are compared offline, by `ringmq inspect --compare`.

use super::finding::Finding;
use crate::base::{NodeId, TopicId};
use crate::metadata::record::PartitionRecord;
use crate::metadata::summary::{has_no_leader, is_below_min_isr, living_in_sync};
use crate::metadata::view::View;
use serde_json::Value;
use std::collections::BTreeMap;

/// A replica, as its node tells it in `/stats`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replica {
    pub role: String,
    pub epoch: u64,
    pub committed: i64,
    pub durable: i64,
    pub damaged: Option<i64>,
    pub alarm: Option<String>,
}

/// Replicas of a node by topic and partition.
pub type Replicas = BTreeMap<(String, u16), Replica>;

/// Reads the replicas from the answer to `/stats?format=json`.
pub fn replicas(stats: &Value) -> Replicas {
    let mut all = Replicas::new();
    for topic in stats["topics"].as_array().into_iter().flatten() {
        let name = topic["topic_name"].as_str().unwrap_or_default();
        for replica in topic["replication"].as_array().into_iter().flatten() {
            let number = replica["partition"].as_u64().and_then(|n| u16::try_from(n).ok()).unwrap_or_default();
            let text = |key: &str| replica[key].as_str().map(String::from);
            let found = Replica {
                role: text("role").unwrap_or_default(),
                epoch: replica["epoch"].as_u64().unwrap_or_default(),
                committed: replica["committed"].as_i64().unwrap_or_default(),
                durable: replica["durable"].as_i64().unwrap_or_default(),
                damaged: replica["damaged"].as_i64(),
                alarm: text("alarm"),
            };
            all.insert((name.to_owned(), number), found);
        }
    }
    all
}

/// Answers of the nodes: each node was asked in three rounds, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    /// Replicas of each node in the three rounds, or the reason why the node told nothing.
    pub nodes: BTreeMap<NodeId, Result<[Replicas; 3], String>>,
}

/// `topic`: only this one. `before`: the metadata before the rounds; of a partition that changed since, nothing is compared.
pub fn check(before: &View, view: &View, topic: Option<&str>, rounds: &Rounds) -> Vec<Finding> {
    let mut findings = vec![];
    let name = |id: NodeId| view.member(id).map_or_else(|| id.to_string(), |e| e.value.name.clone());
    for (node, told) in &rounds.nodes {
        if let Err(why) = told {
            let remedy = "start the node, or open its HTTP port; its replicas were not compared";
            findings.push(Finding::bad(format!("node {}", name(*node)), format!("not asked: {why}"), remedy));
        }
    }
    let mut partitions = 0usize;
    let told = findings.len();
    for entry in view.topics().filter(|e| topic.is_none_or(|asked| *asked == *e.value.info.name)) {
        let (info, wanted) = (&entry.value.info, entry.value.record.partitions);
        if view.gone(info.id).is_some() {
            continue;
        }
        for number in 0..wanted {
            let about = format!("{}/{number}", info.name);
            let Some(entry) = view.partition(info.id, number) else {
                findings.push(Finding::bad(
                    about,
                    "the metadata has no such partition",
                    "docs/cluster-failures.md, repair by hand",
                ));
                continue;
            };
            partitions += 1;
            findings.extend(metadata(view, &about, &entry.value));
            let is_same = before.partition(info.id, number).is_some_and(|e| e.mod_revision == entry.mod_revision);
            if is_same {
                findings.extend(compare(&about, &(info.name.to_string(), number), &entry.value, rounds, &name));
            }
        }
    }
    if topic.is_none() {
        findings.extend(strays(view));
    }
    if findings.len() == told {
        findings.push(Finding::good("partitions", format!("{partitions} compared: metadata and replicas agree")));
    }
    findings
}

fn metadata(view: &View, about: &str, record: &PartitionRecord) -> Vec<Finding> {
    let bad = |found: String, remedy: &str| Finding::bad(about, found, remedy);
    let mut findings = vec![];
    if !record.is_sane() {
        findings.push(bad(
            "the partition's record names a node twice, or a node that is no replica".into(),
            "docs/cluster-failures.md, repair by hand",
        ));
    }
    if has_no_leader(view, record) {
        findings.push(bad("the partition has no leader".into(), "`ringmq cluster status` has the reason"));
    }
    if is_below_min_isr(view, record) {
        let found = format!("{} replicas are in sync and alive, and min_isr is {}", living_in_sync(view, record), record.min_isr);
        findings.push(bad(found, "start the nodes that are away"));
    }
    for node in record.replicas.iter().filter(|node| view.member(**node).is_none()) {
        findings.push(bad(format!("replica {node} is on an unknown node"), "docs/cluster-failures.md, repair by hand"));
    }
    findings
}

/// Partitions whose topic is not there.
fn strays(view: &View) -> Vec<Finding> {
    let mut of: BTreeMap<TopicId, usize> = BTreeMap::new();
    for ((topic, _), _) in
        view.partitions().filter(|((topic, _), _)| view.topic_by_id(*topic).is_none() && view.gone(*topic).is_none())
    {
        *of.entry(topic).or_default() += 1;
    }
    let row = |(topic, count): (TopicId, usize)| {
        let found = format!("{count} partitions of a topic that the metadata does not have");
        Finding::bad(format!("topic {topic}"), found, "docs/cluster-failures.md, repair by hand")
    };
    of.into_iter().map(row).collect()
}

fn compare(
    about: &str,
    at: &(String, u16),
    record: &PartitionRecord,
    rounds: &Rounds,
    name: &dyn Fn(NodeId) -> String,
) -> Vec<Finding> {
    let mut findings = vec![];
    let told = |node: NodeId, round: usize| {
        let rounds = rounds.nodes.get(&node)?.as_ref().ok()?;
        Some(rounds[round].get(at))
    };
    for node in &record.replicas {
        // A node that is new to the partition, or was not asked, is no difference.
        let Some(Some(replica)) = told(*node, 1) else {
            if told(*node, 1).is_some() && record.isr.contains(node) {
                let found = format!("node {} is in sync by the metadata, and has no replica", name(*node));
                findings.push(Finding::bad(about, found, "keep its data path; look at that node's log"));
            }
            continue;
        };
        if let Some(offset) = replica.damaged {
            let found = format!("the replica on node {} is damaged from offset {offset}", name(*node));
            findings.push(Finding::bad(about, found, "the damage is repaired from another replica; check the disk"));
        }
        if let Some(alarm) = &replica.alarm {
            findings.push(Finding::bad(about, format!("node {}: {alarm}", name(*node)), "docs/cluster-failures.md, log lines"));
        }
    }
    let Some(leader) = record.leader.map(|l| l.node) else { return findings };
    let (Some(Some(first)), Some(Some(last))) = (told(leader, 0), told(leader, 2)) else { return findings };
    if last.role != "leader" || last.epoch != record.epoch {
        let found = format!(
            "node {} leads in epoch {} by the metadata, and says that its role is {}",
            name(leader),
            record.epoch,
            last.role
        );
        findings.push(Finding::bad(
            about,
            found,
            "repeat the command: a leader opens within seconds; otherwise look at that node's log",
        ));
        return findings;
    }
    if *first.role != *last.role || first.epoch != last.epoch {
        return findings;
    }
    for node in record.isr.iter().filter(|node| **node != leader) {
        let Some(Some(follower)) = told(*node, 1) else { continue };
        if follower.durable < first.committed {
            let found = format!("node {} has {} of the {} committed bytes", name(*node), follower.durable, first.committed);
            findings.push(Finding::bad(about, found, "this node must not lead: keep the others running, look at its log"));
        }
        if follower.committed > last.committed {
            let found =
                format!("node {} has {} committed bytes, and its leader {}", name(*node), follower.committed, last.committed);
            findings.push(Finding::bad(about, found, "keep both running; docs/cluster-failures.md, log lines"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicName;
    use crate::metadata::fixture::{TOPIC, n, put};
    use crate::metadata::keys::{Key, Layout};
    use crate::metadata::record::*;
    use crate::metadata::request::Change;
    use serde_json::json;

    /// Two nodes, and a partition that the first one leads in epoch 5.
    fn view() -> View {
        let mut view = View::new(Layout::new("c").unwrap(), 0);
        for b in [1, 2] {
            let member = MemberRecord { name: format!("n{b}"), peer_address: "h:1".into(), ..Default::default() };
            put(&mut view, u64::from(b), Key::Member(n(b)), encode(&member));
            let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 1, suspects: Suspects::None };
            put(&mut view, u64::from(b) + 2, Key::Node(n(b)), encode(&node));
        }
        let topic = TopicRecord::new(TOPIC, 1, 2, 2, Default::default());
        put(&mut view, 5, Key::Topic(TopicName::new("t").unwrap()), encode(&topic));
        let record = PartitionRecord::new(5, Some(Leader { node: n(1), session: 3 }), vec![n(1), n(2)], 2);
        put(&mut view, 6, Key::Partition(TOPIC, 0), encode(&record));
        view
    }

    fn told(role: &str, committed: i64, durable: i64) -> Replicas {
        let replica = json!({ "partition": 0, "role": role, "epoch": 5, "committed": committed, "durable": durable });
        replicas(&json!({ "topics": [{ "topic_name": "t", "replication": [replica] }] }))
    }

    fn found(view: &View, leader: [(i64, i64); 2], follower: (i64, i64)) -> String {
        let [first, last] = leader.map(|(committed, durable)| told("leader", committed, durable));
        let mut rounds = Rounds::default();
        rounds.nodes.insert(n(1), Ok([first.clone(), first, last]));
        let other = told("follower", follower.0, follower.1);
        rounds.nodes.insert(n(2), Ok([other.clone(), other.clone(), other]));
        check(view, view, None, &rounds)
            .iter()
            .map(|f| format!("{} {}: {}", f.is_bad, f.about, f.found))
            .collect::<Vec<_>>()
            .join("; ")
    }

    #[test]
    fn replicas_that_agree_are_one_line_and_what_is_missing_is_named() {
        let view = view();
        let well = "false partitions: 1 compared: metadata and replicas agree";
        assert_eq!(found(&view, [(100, 100), (100, 100)], (100, 100)), well);
        assert_eq!(found(&view, [(100, 150), (200, 200)], (200, 150)), well, "they move while they are asked");
        assert_eq!(found(&view, [(100, 100), (100, 100)], (90, 90)), "true t/0: node n2 has 90 of the 100 committed bytes");
        let ahead = "true t/0: node n2 has 120 committed bytes, and its leader 100";
        assert_eq!(found(&view, [(100, 100), (100, 100)], (120, 120)), ahead);
    }

    #[test]
    fn the_metadata_is_judged_without_any_node() {
        let mut view = view();
        let partition = encode(&view.partition(TOPIC, 0).unwrap().value.clone());
        put(&mut view, 7, Key::Partition(TopicId([8; 16]), 0), partition);
        let key = view.layout().key(&Key::Node(n(1)));
        view.learn(Change::Deleted { key, mod_revision: 8 });
        let mut rounds = Rounds::default();
        rounds.nodes.insert(n(2), Err("refused".into()));
        let findings = check(&view, &view, None, &rounds);
        let all: Vec<&str> = findings.iter().map(|f| f.found.as_str()).collect();
        let left = "1 partitions of a topic that the metadata does not have";
        assert_eq!(
            all,
            ["not asked: refused", "the partition has no leader", "1 replicas are in sync and alive, and min_isr is 2", left]
        );
        assert!(findings.iter().all(|f| f.is_bad && !f.remedy.is_empty()));
        assert_eq!(check(&view, &view, Some("u"), &Rounds::default())[0].found, "0 compared: metadata and replicas agree");
    }
}
