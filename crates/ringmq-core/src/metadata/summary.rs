//! Numbers of a cluster's metadata: how many partitions have no leader, too few replicas in sync, which nodes are away.

use super::record::PartitionRecord;
use super::view::View;
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    pub nodes: usize,
    pub nodes_away: usize,
    pub partitions: usize,
    pub without_leader: usize,
    pub below_min_isr: usize,
    pub too_few_in_sync: usize,
}

/// True if the partition has no leader, or its leader is not in that session any more.
pub fn has_no_leader(view: &View, record: &PartitionRecord) -> bool {
    record.leader.is_none_or(|l| view.session(l.node) != Some(l.session))
}

/// Number of in-sync replicas whose nodes are there: the others may be away for ever.
pub fn living_in_sync(view: &View, record: &PartitionRecord) -> usize {
    record.isr.iter().filter(|node| view.session(**node).is_some()).count()
}

/// Whether the partition takes no publish: too few of those in sync are there.
pub fn is_below_min_isr(view: &View, record: &PartitionRecord) -> bool {
    living_in_sync(view, record) < record.min_isr.into()
}

/// Whether fewer replicas are in sync and there than the topic, or an addition under way, wants.
pub fn lacks_in_sync(view: &View, record: &PartitionRecord, wanted: u8) -> bool {
    living_in_sync(view, record) < record.replicas.len().max(wanted.into())
}

impl Summary {
    /// Looks at every partition.
    pub fn of(view: &View) -> Summary {
        let mut sum = Summary { nodes: view.members().count(), ..Summary::default() };
        sum.nodes_away = view.members().filter(|(id, _)| view.session(*id).is_none()).count();
        for topic in view.topics() {
            for (_, entry) in view.partitions_of(topic.value.info.id) {
                let record = &entry.value;
                sum.partitions += 1;
                sum.without_leader += usize::from(has_no_leader(view, record));
                sum.below_min_isr += usize::from(is_below_min_isr(view, record));
                sum.too_few_in_sync += usize::from(lacks_in_sync(view, record, topic.value.record.replicas));
            }
        }
        sum
    }

    pub fn is_stable(&self) -> bool {
        self.without_leader + self.below_min_isr + self.too_few_in_sync + self.nodes_away == 0
    }
}

/// Answer of `/cluster/stats`.
pub fn stats(view: &View) -> Value {
    let sum = Summary::of(view);
    let node = |(id, e): (crate::base::NodeId, &super::view::Entry<super::record::MemberRecord>)| {
        let is_led = |at: &(crate::base::TopicId, u16)| {
            let leader = view.partition(at.0, at.1).and_then(|e| e.value.leader);
            leader.is_some_and(|l| l.node == id && view.session(id) == Some(l.session))
        };
        json!({
            "id": id.to_string(), "hostname": e.value.name, "tcp_address": e.value.tcp_address, "http_address": e.value.http_address,
            "zone": e.value.zone, "version": e.value.version, "alive": view.session(id).is_some(), "draining": view.is_draining(id),
            "replicas": view.topic_replicas_of(id).count(), "leads": view.topic_replicas_of(id).filter(is_led).count(),
        })
    };
    json!({
        "stable": sum.is_stable(),
        "partitions": sum.partitions,
        "without_leader": sum.without_leader,
        "below_min_isr": sum.below_min_isr,
        "too_few_in_sync": sum.too_few_in_sync,
        "node_stat_list": view.members().map(node).collect::<Vec<_>>(),
        "topn_topics": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{NodeId, TopicName};
    use crate::metadata::fixture::{TOPIC, n, put};
    use crate::metadata::keys::{Key, Layout};
    use crate::metadata::record::{Leader, MemberRecord, NodeRecord, Suspects, TopicRecord, encode};

    #[test]
    fn what_is_not_well_is_counted() {
        let mut view = View::new(Layout::new("c").unwrap(), 0);
        for b in 1..=3 {
            let member = MemberRecord { name: format!("n{b}"), peer_address: "h:1".into(), ..Default::default() };
            put(&mut view, b.into(), Key::Member(n(b)), encode(&member));
        }
        let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 1, suspects: Suspects::None };
        put(&mut view, 4, Key::Node(n(1)), encode(&node));
        let topic = TopicRecord::new(TOPIC, 3, 3, 2, Default::default());
        put(&mut view, 5, Key::Topic(TopicName::new("t").unwrap()), encode(&topic));
        let record = |leader: Leader, isr: Vec<NodeId>| PartitionRecord {
            isr,
            ..PartitionRecord::new(1, Some(leader), vec![n(1), n(2), n(3)], 2)
        };
        put(&mut view, 6, Key::Partition(TOPIC, 0), encode(&record(Leader { node: n(1), session: 4 }, vec![n(1)])));
        put(&mut view, 7, Key::Partition(TOPIC, 1), encode(&record(Leader { node: n(2), session: 2 }, vec![n(2), n(3)])));
        // The leader is there; the replicas that it waits for are not.
        put(&mut view, 8, Key::Partition(TOPIC, 2), encode(&record(Leader { node: n(1), session: 4 }, vec![n(1), n(2), n(3)])));
        let sum = Summary::of(&view);
        assert_eq!((sum.nodes, sum.nodes_away, sum.partitions), (3, 2, 3));
        assert_eq!((sum.without_leader, sum.below_min_isr, sum.too_few_in_sync, sum.is_stable()), (1, 3, 3, false));
        put(&mut view, 9, Key::Node(n(2)), encode(&node));
        let sum = Summary::of(&view);
        assert_eq!((sum.below_min_isr, sum.too_few_in_sync), (2, 3), "two of the last one's are there");
        put(&mut view, 10, Key::Node(n(3)), encode(&node));
        let sum = Summary::of(&view);
        assert_eq!((sum.below_min_isr, sum.too_few_in_sync), (1, 2), "only those that have left it");
        let stats = stats(&view);
        assert_eq!((&stats["stable"], &stats["node_stat_list"][0]["leads"]), (&json!(false), &json!(2)));
    }
}
