//! A cluster's metadata as an operator reads it.

use super::PageKind;
use super::live::{Live, period};
use crate::base::NodeId;
use crate::metadata::record::PartitionRecord;
use crate::metadata::summary::{has_no_leader, is_below_min_isr, lacks_in_sync};
use crate::metadata::view::View;
use ringmq_tools::text::bytes;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Partitions that `status` names; of more it tells the number.
const NAMED_MAX: usize = 50;

/// Trouble of a partition whose leader raised an alarm.
const ALARM: &str = "needs an operator";

struct Node {
    id: NodeId,
    name: String,
    is_there: bool,
    /// Whether the node is registered and its ports refuse connections.
    is_refusing: bool,
    /// Failures that the node's cores report. `None`: the cores are well, or the node told nothing.
    failures: Option<String>,
    is_draining: bool,
    zone: String,
    version: String,
    address: String,
    replicas: usize,
    leads: usize,
    /// Published KiB per second, of late, to the partitions that the node leads; 0: too little to tell.
    kib_per_s: u32,
}

struct Topic {
    name: String,
    partitions: u16,
    replicas: u8,
    min_isr: u8,
    /// Settings that the topic has of its own.
    settings: Map<String, Value>,
}

struct Partition {
    topic: String,
    number: u16,
    /// Name of the leader. `None`: the partition has no leader, or the leader is away.
    leader: Option<String>,
    epoch: u64,
    isr: Vec<String>,
    replicas: Vec<String>,
    /// Deviations from the wanted state.
    troubles: Vec<&'static str>,
    /// Next step, of the cluster or of the operator.
    outlook: String,
}

pub struct Report {
    cluster: String,
    id: Option<[u8; 16]>,
    revision: u64,
    controller: Option<String>,
    nodes: Vec<Node>,
    topics: Vec<Topic>,
    partitions: Vec<Partition>,
    /// Changes that the cluster is making by itself, with the time that they take.
    work: Vec<String>,
}

impl Report {
    /// `topic`: only this one.
    pub fn of(view: &View, cluster: &str, topic: Option<&str>, live: &Live) -> Report {
        let name = |id: NodeId| view.member(id).map_or_else(|| id.to_string(), |e| e.value.name.clone());
        let mut nodes: Vec<Node> = view.members().map(|(id, e)| node(view, id, &e.value, live)).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let is_asked = |topic_name: &str| topic.is_none_or(|asked| asked == topic_name);
        let wanted: Vec<_> = view.topics().filter(|e| is_asked(&e.value.info.name)).collect();
        let partitions = wanted.iter().flat_map(|t| view.partitions_of(t.value.info.id).map(move |(number, e)| (t, number, e)));
        let partitions = partitions
            .map(|(t, number, e)| {
                let p = &e.value;
                let leader = p.leader.filter(|l| view.session(l.node) == Some(l.session)).map(|l| name(l.node));
                let mut troubles = vec![];
                if leader.is_none() {
                    troubles.push("no leader");
                } else if p.former.is_some() {
                    troubles.push("no deliveries yet");
                }
                if is_below_min_isr(view, p) {
                    troubles.push("below min_isr");
                }
                if lacks_in_sync(view, p, t.value.record.replicas) {
                    troubles.push("too few in sync");
                }
                let names = |ids: &[NodeId]| ids.iter().map(|id| name(*id)).collect();
                let (isr, replicas) = (names(&p.isr), names(&p.replicas));
                let topic = t.value.info.name.to_string();
                if live.alarms.contains_key(&(topic.clone(), number)) {
                    troubles.push(ALARM);
                }
                let outlook = outlook(view, p, t.value.record.replicas as usize, (&topic, number), live);
                Partition { topic, number, leader, epoch: p.epoch, isr, replicas, troubles, outlook }
            })
            .collect();
        let topics = wanted.iter().map(|e| {
            let r = &e.value.record;
            let name = e.value.info.name.to_string();
            let settings = match serde_json::to_value(r.properties) {
                Ok(Value::Object(settings)) => settings,
                _ => Map::new(),
            };
            Topic { name, partitions: r.partitions, replicas: r.replicas, min_isr: r.min_isr, settings }
        });
        Report {
            cluster: cluster.into(),
            id: view.cluster_id(),
            revision: view.read(),
            controller: view.controller().map(|e| name(e.value.node)),
            nodes,
            topics: topics.collect(),
            partitions,
            work: work(view, live),
        }
    }

    pub fn is_well(&self) -> bool {
        self.partitions.iter().all(|p| p.troubles.is_empty()) && self.nodes.iter().all(Node::is_well)
    }

    fn troubled(&self, trouble: &str) -> usize {
        self.partitions.iter().filter(|p| p.troubles.contains(&trouble)).count()
    }

    pub fn text(&self, what: PageKind) -> String {
        match what {
            PageKind::Status => self.status(),
            PageKind::Nodes => table(
                &["node", "state", "zone", "replicas", "leads", "KiB/s", "address", "version", "id"],
                self.nodes.iter().map(|n| {
                    let [replicas, leads, load] = [n.replicas.to_string(), n.leads.to_string(), n.kib_per_s.to_string()];
                    vec![
                        n.name.clone(),
                        n.state().into(),
                        n.zone.clone(),
                        replicas,
                        leads,
                        load,
                        n.address.clone(),
                        n.version.clone(),
                        n.id.to_string(),
                    ]
                }),
            ),
            PageKind::Topics => table(
                &["topic", "partitions", "replicas", "min_isr", "settings"],
                self.topics.iter().map(|t| {
                    let [partitions, replicas, min_isr] =
                        [t.partitions, t.replicas.into(), t.min_isr.into()].map(|n: u16| n.to_string());
                    let settings = t.settings.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
                    vec![t.name.clone(), partitions, replicas, min_isr, settings.join(" ")]
                }),
            ),
            PageKind::Partitions => partitions(self.partitions.iter()),
        }
    }

    fn status(&self) -> String {
        let mut text = String::new();
        let id = self.id.map_or_else(|| "none yet".into(), |id| NodeId(id).to_string());
        let named =
            |is_meant: fn(&&Node) -> bool| -> Vec<&str> { self.nodes.iter().filter(is_meant).map(|n| n.name.as_str()).collect() };
        let (away, refusing) = (named(|n| !n.is_there), named(|n| n.is_refusing));
        let _ = writeln!(text, "cluster     {} (id {id}, etcd's revision {})", self.cluster, self.revision);
        let _ = writeln!(text, "controller  {}", self.controller.as_deref().unwrap_or("none: no node is registered"));
        let _ = writeln!(
            text,
            "nodes       {}, away: {}{}",
            self.nodes.len(),
            if away.is_empty() { "none".into() } else { away.join(", ") },
            if refusing.is_empty() { String::new() } else { format!(", not answering: {}", refusing.join(", ")) }
        );
        let _ = writeln!(
            text,
            "partitions  {}, without a leader: {}, below min_isr: {}, too few in sync: {}{}",
            self.partitions.len(),
            self.troubled("no leader"),
            self.troubled("below min_isr"),
            self.troubled("too few in sync"),
            match self.troubled(ALARM) {
                0 => String::new(),
                alarms => format!(", need an operator: {alarms}"),
            }
        );
        if !self.work.is_empty() {
            let _ = writeln!(text, "under way   {}", self.work.join("; "));
        }
        for (name, failures) in self.nodes.iter().filter_map(|n| Some((&n.name, n.failures.as_ref()?))) {
            let _ = writeln!(text, "unhealthy   {name}: {failures}");
        }
        for n in self.nodes.iter().filter(|n| n.is_draining) {
            let _ = match n.replicas {
                0 => writeln!(text, "draining    {}: it is empty and may be stopped and removed", n.name),
                left => writeln!(text, "draining    {}: {left} replicas are left, {} of them lead", n.name, n.leads),
            };
        }
        let troubled: Vec<&Partition> = self.partitions.iter().filter(|p| !p.troubles.is_empty()).collect();
        if !troubled.is_empty() {
            text.push('\n');
            text += &partitions(troubled.iter().take(NAMED_MAX).copied());
        }
        if troubled.len() > NAMED_MAX {
            let _ = writeln!(text, "and {} more: ringmq cluster partitions", troubled.len() - NAMED_MAX);
        }
        text
    }

    pub fn json(&self, what: PageKind) -> Value {
        let nodes = || self.nodes.iter().map(Node::json).collect::<Vec<_>>();
        let topics = || self.topics.iter().map(Topic::json).collect::<Vec<_>>();
        let partitions = |only_troubled: bool| {
            let wanted = self.partitions.iter().filter(|p| !only_troubled || !p.troubles.is_empty());
            wanted.map(Partition::json).collect::<Vec<_>>()
        };
        match what {
            PageKind::Nodes => json!(nodes()),
            PageKind::Topics => json!(topics()),
            PageKind::Partitions => json!(partitions(false)),
            PageKind::Status => json!({
                "cluster": self.cluster,
                "id": self.id.map(|id| NodeId(id).to_string()),
                "revision": self.revision,
                "controller": self.controller,
                "is_well": self.is_well(),
                "under_way": self.work,
                "nodes": nodes(),
                "partitions": self.partitions.len(),
                "without_leader": self.troubled("no leader"),
                "below_min_isr": self.troubled("below min_isr"),
                "too_few_in_sync": self.troubled("too few in sync"),
                "need_an_operator": self.troubled(ALARM),
                "troubled": partitions(true),
            }),
        }
    }
}

/// Text about the cluster's action for a partition, or about the event that it waits for.
fn outlook(view: &View, p: &PartitionRecord, wanted: usize, at: (&str, u16), live: &Live) -> String {
    let name = |id: NodeId| view.member(id).map_or_else(|| id.to_string(), |e| e.value.name.clone());
    let names = |ids: &[NodeId]| ids.iter().map(|id| name(*id)).collect::<Vec<_>>().join(", ");
    let is_there = |id: &NodeId| view.session(*id).is_some();
    let alarm = live.alarms.get(&(at.0.to_owned(), at.1));
    let mut parts: Vec<String> = alarm.cloned().into_iter().collect();
    if has_no_leader(view, p) {
        parts.push(match (p.isr.iter().any(is_there), view.controller()) {
            (false, _) => format!("start one of {}: only these nodes have all acknowledged messages", names(&p.isr)),
            (true, None) => "waits for a controller: at most the time of a lease".into(),
            (true, Some(_)) => "a leader is being elected; after a mass expiry of leases this takes the time of a lease".into(),
        });
    } else if let Some(former) = p.former {
        parts.push(format!("deliveries wait for the lease of {}", name(former.node)));
    }
    if let Some(to) = p.wanted {
        parts.push(format!("is handed over to {}", name(to)));
    }
    let (coming, away): (Vec<NodeId>, Vec<NodeId>) =
        p.replicas.iter().copied().filter(|id| !p.isr.contains(id)).partition(is_there);
    let missed: Vec<NodeId> = p.isr.iter().copied().filter(|id| !is_there(id)).collect();
    if !missed.is_empty() && !has_no_leader(view, p) {
        parts.push(match is_below_min_isr(view, p) {
            true => format!("publishes wait for {}, which is away: start it", names(&missed)),
            false => format!("publishes wait until {}, which is away, leaves the ISR", names(&missed)),
        });
    }
    // A replica that stays out by the alarm does not catch up.
    for id in coming.into_iter().filter(|id| alarm.is_none() || live.refusing.contains(id)) {
        let node = name(id);
        let catch_up = live.catch_ups.get(&(at.0.to_owned(), at.1, node.clone()));
        parts.push(match catch_up {
            _ if live.refusing.contains(&id) => format!("{node} does not answer: start it"),
            Some(catch_up) => format!("{node} catches up: {catch_up}"),
            None => format!("{node} catches up"),
        });
    }
    let is_free = |id: &NodeId| !p.replicas.contains(id) && !view.is_draining(*id) && !live.refusing.contains(id);
    let may_be_replaced = view.nodes().any(|(id, _)| is_free(&id));
    for id in away {
        let later = match live.replaced_in.get(&id) {
            _ if !may_be_replaced => "since no other node can take its replica".into(),
            Some(left) if left.is_zero() => "or wait: its replica is made on another node, --rebuilds-max at a time".into(),
            Some(left) => format!("or another node replaces it in {}", period(*left)),
            None => "or another node replaces it after --replace-after".into(),
        };
        parts.push(format!("{} is away: start it, {later}", name(id)));
    }
    if p.replicas.len() < wanted {
        let missing = count(wanted - p.replicas.len(), "more node is", "more nodes are");
        parts.push(format!("{missing} needed for its replicas"));
    }
    parts.join("; ")
}

/// Changes that the cluster is making by itself.
fn work(view: &View, live: &Live) -> Vec<String> {
    let mut work = vec![];
    let catching_up: usize = view.partitions().map(|(_, e)| coming(view, live, &e.value)).sum();
    if catching_up > 0 {
        let left: u64 = live.catch_ups.values().map(|c| c.left).sum();
        let time =
            live.catch_ups.values().filter(|c| c.left > 0).map(|c| c.time_left()).max_by_key(|time| time.unwrap_or_default());
        let time = time.flatten().map_or_else(String::new, |time| format!(", about {}", period(time)));
        let left = if live.catch_ups.is_empty() { String::new() } else { format!(": {} left{time}", bytes(left)) };
        work.push(format!("{} up{left}", count(catching_up, "replica catches", "replicas catch")));
    }
    work.extend(waiting_rebuilds(view, live, catching_up_partitions(view, live)));
    let handed_over = view.partitions().filter(|(_, e)| e.value.wanted.is_some()).count();
    if handed_over > 0 {
        work.push(count(handed_over, "partition is handed over", "partitions are handed over"));
    }
    let can_be_led = |p: &PartitionRecord| p.isr.iter().any(|id| view.session(*id).is_some());
    // Without a topic, as after a creation that was never finished, a partition has no leader to be elected.
    let of_topics = view.partitions().filter(|((topic, _), _)| view.topic_by_id(*topic).is_some());
    let electing = of_topics.filter(|(_, e)| has_no_leader(view, &e.value) && can_be_led(&e.value)).count();
    if electing > 0 {
        work.push(count(electing, "leader is elected", "leaders are elected"));
    }
    work
}

/// Number of the partition's replicas that catch up.
fn coming(view: &View, live: &Live, p: &PartitionRecord) -> usize {
    let is_coming = |id: &&NodeId| !p.isr.contains(id) && view.session(**id).is_some() && !live.refusing.contains(id);
    p.replicas.iter().filter(is_coming).count()
}

fn catching_up_partitions(view: &View, live: &Live) -> usize {
    view.partitions().filter(|(_, e)| coming(view, live, &e.value) > 0).count()
}

/// Replicas of nodes to be replaced, or drained, that are not made yet since `--rebuilds-max` partitions catch up.
fn waiting_rebuilds(view: &View, live: &Live, catching_up: usize) -> Option<String> {
    let max = live.rebuilds_max.filter(|max| catching_up >= *max)?;
    let leaves = |id: &NodeId| view.is_draining(*id) || live.replaced_in.get(id).is_some_and(|left| left.is_zero());
    let mut waiting: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (_, e) in view.partitions().filter(|(_, e)| coming(view, live, &e.value) == 0) {
        e.value.replicas.iter().filter(|id| leaves(id)).for_each(|id| *waiting.entry(*id).or_default() += 1);
    }
    let name = |id: &NodeId| view.member(*id).map_or_else(|| id.to_string(), |e| e.value.name.clone());
    let whose: Vec<String> = waiting.iter().map(|(id, number)| format!("{number} of {}", name(id))).collect();
    let total = count(waiting.values().sum(), "replica waits", "replicas wait");
    (!whose.is_empty())
        .then(|| format!("{total} until fewer than {max} partitions catch up (--rebuilds-max): {}", whose.join(", ")))
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn node(view: &View, id: NodeId, member: &crate::metadata::record::MemberRecord, live: &Live) -> Node {
    let leads = |at: &(crate::base::TopicId, u16)| {
        view.partition(at.0, at.1)
            .and_then(|e| e.value.leader)
            .is_some_and(|l| l.node == id && view.session(id) == Some(l.session))
    };
    Node {
        id,
        name: member.name.clone(),
        is_there: view.session(id).is_some(),
        is_refusing: live.refusing.contains(&id),
        failures: live.unhealthy.get(&id).cloned(),
        is_draining: view.is_draining(id),
        zone: member.zone.clone(),
        version: member.version.clone(),
        address: member.tcp_address.clone().unwrap_or_default(),
        replicas: view.topic_replicas_of(id).count(),
        leads: view.topic_replicas_of(id).filter(leads).count(),
        kib_per_s: view.load(id).map_or(0, |e| e.value.kib_per_s),
    }
}

impl Node {
    fn is_well(&self) -> bool {
        self.is_there && !self.is_refusing && self.failures.is_none()
    }

    fn state(&self) -> &'static str {
        match (self.is_there, self.is_draining) {
            (true, _) if self.is_refusing => "not answering",
            (true, false) if self.failures.is_some() => "unhealthy",
            (true, false) => "there",
            (true, true) => "draining",
            (false, _) => "away",
        }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "id": self.id.to_string(), "state": self.state(), "zone": self.zone, "version": self.version,
            "tcp_address": self.address, "replicas": self.replicas, "leads": self.leads,
            "kib_per_s": self.kib_per_s, "failures": self.failures,
        })
    }
}

impl Topic {
    fn json(&self) -> Value {
        let mut json =
            json!({ "topic": self.name, "partitions": self.partitions, "replicas": self.replicas, "min_isr": self.min_isr });
        if let Value::Object(all) = &mut json {
            all.extend(self.settings.clone());
        }
        json
    }
}

impl Partition {
    fn json(&self) -> Value {
        json!({
            "topic": self.topic, "partition": self.number, "leader": self.leader, "epoch": self.epoch, "isr": self.isr,
            "replicas": self.replicas, "troubles": self.troubles, "outlook": self.outlook,
        })
    }
}

fn partitions<'a>(all: impl Iterator<Item = &'a Partition>) -> String {
    let row = |p: &Partition| {
        let leader = p.leader.clone().unwrap_or_else(|| "nobody".into());
        let (isr, replicas) = (p.isr.join(" "), p.replicas.join(" "));
        vec![
            p.topic.clone(),
            p.number.to_string(),
            leader,
            p.epoch.to_string(),
            isr,
            replicas,
            p.troubles.join(", "),
            p.outlook.clone(),
        ]
    };
    table(&["topic", "partition", "leader", "epoch", "isr", "replicas", "trouble", "what happens"], all.map(row))
}

/// Table with columns as wide as their content.
pub(super) fn table(heads: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<Vec<String>> = [heads.iter().map(|head| head.to_string()).collect()].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicName;
    use crate::metadata::fixture::{TOPIC, n, put};
    use crate::metadata::keys::{Key, Layout};
    use crate::metadata::record::{Leader, MemberRecord, NodeRecord, Suspects, TopicRecord, encode};
    use std::time::Duration;

    /// Nodes a and b, which lead and follow three partitions of c, which is away; c catches up nowhere.
    fn view() -> View {
        let mut view = View::new(Layout::new("c").unwrap(), 0);
        let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 1, suspects: Suspects::None };
        for (b, name) in [(1, "a"), (2, "b"), (3, "c")] {
            let member = MemberRecord { name: name.into(), peer_address: "h:1".into(), ..Default::default() };
            put(&mut view, b.into(), Key::Member(n(b)), encode(&member));
        }
        [1, 2].into_iter().for_each(|b| put(&mut view, 3 + u64::from(b), Key::Node(n(b)), encode(&node)));
        put(
            &mut view,
            6,
            Key::Topic(TopicName::new("t").unwrap()),
            encode(&TopicRecord::new(TOPIC, 3, 2, 1, Default::default())),
        );
        for number in 0..3 {
            // The first one's replica is made on b.
            let second = if number == 0 { vec![n(3), n(2)] } else { vec![n(3)] };
            let record = PartitionRecord {
                isr: vec![n(1)],
                ..PartitionRecord::new(1, Some(Leader { node: n(1), session: 4 }), [vec![n(1)], second].concat(), 1)
            };
            put(&mut view, 7 + u64::from(number), Key::Partition(TOPIC, number), encode(&record));
        }
        view
    }

    #[test]
    fn replicas_that_wait_for_others_are_counted_by_whose_they_are() {
        let view = view();
        let status = |live: &Live| Report::of(&view, "c", None, live).text(PageKind::Status);
        let late = BTreeMap::from([(n(3), Duration::ZERO)]);
        let full = Live { replaced_in: late.clone(), rebuilds_max: Some(1), ..Live::default() };
        let wanted = "2 replicas wait until fewer than 1 partitions catch up (--rebuilds-max): 2 of c";
        assert!(status(&full).contains(wanted), "{}", status(&full));
        let early = BTreeMap::from([(n(3), Duration::from_secs(9))]);
        for live in [
            Live { replaced_in: early, rebuilds_max: Some(1), ..Live::default() },
            Live { replaced_in: late.clone(), rebuilds_max: Some(2), ..Live::default() },
            Live { replaced_in: late, rebuilds_max: None, ..Live::default() },
        ] {
            assert!(!status(&live).contains("--rebuilds-max): "), "{}", status(&live));
        }
    }

    #[test]
    fn an_alarm_of_a_leader_is_a_trouble_with_what_it_says() {
        let view = view();
        let why = "replica b knows data to be committed that this leader lacks";
        let live = Live { alarms: BTreeMap::from([(("t".to_owned(), 0), why.to_owned())]), ..Live::default() };
        let report = Report::of(&view, "c", None, &live);
        let text = report.text(PageKind::Status);
        assert!(text.contains("too few in sync: 3, need an operator: 1\n"), "{text}");
        assert!(text.contains("too few in sync, needs an operator") && text.contains(&format!("  {why}; c is away")), "{text}");
        assert!(!text.contains("b catches up") && report.json(PageKind::Status)["need_an_operator"] == 1, "{text}");
    }

    #[test]
    fn a_node_with_a_full_disk_is_named() {
        let mut view = view();
        let healthy = Report::of(&view, "c", None, &Live::default());
        assert!(!healthy.text(PageKind::Status).contains("unhealthy"));
        // Nothing else is wrong with the cluster of a and b.
        let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 1, suspects: Suspects::None };
        put(&mut view, 20, Key::Node(n(3)), encode(&node));
        for number in 0..3 {
            let record = PartitionRecord::new(2, Some(Leader { node: n(1), session: 4 }), vec![n(1), n(3)], 1);
            put(&mut view, 21 + u64::from(number), Key::Partition(TOPIC, number), encode(&record));
        }
        let live = Live { unhealthy: BTreeMap::from([(n(2), "the disk is full".to_owned())]), ..Live::default() };
        assert!(Report::of(&view, "c", None, &Live::default()).is_well());
        let report = Report::of(&view, "c", None, &live);
        assert!(!report.is_well());
        let text = report.text(PageKind::Status);
        assert!(text.contains("\nunhealthy   b: the disk is full\n"), "{text}");
        let nodes = report.json(PageKind::Nodes);
        assert_eq!((&nodes[1]["state"], &nodes[1]["failures"]), (&json!("unhealthy"), &json!("the disk is full")));
        assert_eq!(nodes[0]["failures"], Value::Null);
    }
}
