//! Partitions with a replica on this node that have no leader: the time since which they have none, and their log lines.
//!
//! An election takes time, so nothing is logged before a lease's time is over. A look costs a pass over the replicas of this node; it is
//! made once a second while the metadata changes, or while something is wrong.

use super::Note;
use crate::base::{NodeId, Ticks, TopicId};
use crate::metadata::summary::has_no_leader;
use crate::metadata::view::View;
use std::collections::BTreeMap;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Partitions that a line names. Of more it tells the number.
const NAMED_MAX: usize = 5;

#[derive(Debug)]
pub(super) struct Leaderless {
    me: NodeId,
    /// Time that an election may take.
    patience: Duration,
    /// Time since which partitions have had no leader, as far as this node has looked.
    since: BTreeMap<(TopicId, u16), Ticks>,
    /// Number of partitions that the log was told of last.
    said: usize,
    /// Revision of the last look.
    looked: Option<u64>,
    look_at: Ticks,
}

impl Leaderless {
    pub fn new(me: NodeId, patience: Duration) -> Leaderless {
        Leaderless { me, patience, since: BTreeMap::new(), said: 0, looked: None, look_at: Ticks(0) }
    }

    fn has_work(&self, view: &View) -> bool {
        self.looked != Some(view.read()) || !self.since.is_empty()
    }

    pub fn deadline(&self, view: &View) -> Option<Ticks> {
        self.has_work(view).then_some(self.look_at)
    }

    /// A line for the log where there is news.
    pub fn look(&mut self, now: Ticks, view: &View) -> Option<Note> {
        if now < self.look_at || !self.has_work(view) {
            return None;
        }
        self.look_at = now + LOOK_EVERY;
        self.looked = Some(view.read());
        let is_unled = |at: &(TopicId, u16)| {
            let record = view.partition(at.0, at.1).filter(|_| view.gone(at.0).is_none() && view.topic_by_id(at.0).is_some());
            record.is_some_and(|e| has_no_leader(view, &e.value))
        };
        let unled = view.replicas_of(self.me).filter(is_unled);
        self.since = unled.map(|at| (at, self.since.get(&at).copied().unwrap_or(now))).collect();
        let late = self.late(now).count();
        if late == self.said {
            return None;
        }
        self.said = late;
        Some(match self.text(now, view) {
            Some(text) => Note::NoLeader { text },
            None => Note::AllLed,
        })
    }

    fn late(&self, now: Ticks) -> impl Iterator<Item = (TopicId, u16)> + '_ {
        self.since.iter().filter(move |(_, since)| now >= **since + self.patience).map(|(at, _)| *at)
    }

    /// Number of partitions here without a leader, also those whose election may be under way.
    pub fn len(&self) -> usize {
        self.since.len()
    }

    /// Describes the partitions that have had no leader for too long, and the replicas that have to return for that. `None`: there are
    /// none.
    pub fn text(&self, now: Ticks, view: &View) -> Option<String> {
        let late: Vec<_> = self.late(now).collect();
        let named = late.iter().take(NAMED_MAX).filter_map(|at| {
            let (topic, record) = (view.topic_by_id(at.0)?, &view.partition(at.0, at.1)?.value);
            let is_alone = !record.isr.iter().any(|node| view.session(*node).is_some());
            let name = |id: &NodeId| view.member(*id).map_or_else(|| id.to_string(), |e| e.value.name.clone());
            let isr: Vec<String> = record.isr.iter().map(name).collect();
            let remedy = match is_alone {
                true => format!(" (start one of {}: only these nodes have all acknowledged messages)", isr.join(", ")),
                false => String::new(),
            };
            Some(format!("{}/{}{remedy}", topic.value.info.name, at.1))
        });
        let named: Vec<String> = named.collect();
        let more = late.len().saturating_sub(NAMED_MAX);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let count = late.len();
        let what = if count == 1 { "partition of this node has" } else { "partitions of this node have" };
        (count > 0).then(|| format!("{count} {what} no leader: {}{more}", named.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicName;
    use crate::metadata::keys::{Key, Layout};
    use crate::metadata::record::*;
    use crate::metadata::request::{Change, KeyValue};

    const TOPIC: TopicId = TopicId([9; 16]);
    const SECOND: u64 = 1_000_000_000;

    fn n(b: u8) -> NodeId {
        NodeId([b; 16])
    }

    struct Rig {
        view: View,
        revision: u64,
        looks: Leaderless,
    }

    impl Rig {
        fn put(&mut self, key: Key, value: bytes::Bytes) {
            self.revision += 1;
            let key = self.view.layout().key(&key);
            let kv = KeyValue { key, value, create_revision: self.revision, mod_revision: self.revision, lease: None };
            self.view.watched([Change::Put(kv)]);
        }

        fn node(&mut self, b: u8) {
            let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 1, suspects: Suspects::None };
            self.put(Key::Node(n(b)), encode(&node));
        }

        fn part(&mut self, number: u16, leader: u8, isr: &[u8]) {
            let leader = self.view.session(n(leader)).map(|session| Leader { node: n(leader), session });
            let isr: Vec<NodeId> = isr.iter().map(|b| n(*b)).collect();
            let record = PartitionRecord { isr, ..PartitionRecord::new(1, leader, vec![n(1), n(2)], 1) };
            self.put(Key::Partition(TOPIC, number), encode(&record));
        }

        fn look(&mut self, seconds: u64) -> Option<String> {
            self.looks.look(Ticks(seconds * SECOND), &self.view).map(|note| note.to_string())
        }

        fn text(&self, seconds: u64) -> Option<String> {
            self.looks.text(Ticks(seconds * SECOND), &self.view)
        }
    }

    #[test]
    fn a_partition_without_a_leader_is_told_when_an_election_had_its_time() {
        let (view, looks) = (View::new(Layout::new("c").unwrap(), 0), Leaderless::new(n(1), Duration::from_secs(10)));
        let mut rig = Rig { view, revision: 0, looks };
        (1..=2).for_each(|b| rig.node(b));
        let member = MemberRecord { name: "b".into(), peer_address: "h:1".into(), ..Default::default() };
        rig.put(Key::Member(n(2)), encode(&member));
        let topic = TopicRecord::new(TOPIC, 2, 2, 1, Default::default());
        rig.put(Key::Topic(TopicName::new("t").unwrap()), encode(&topic));
        rig.part(0, 2, &[2]);
        rig.part(1, 1, &[1, 2]);
        assert_eq!((rig.look(1), rig.text(1)), (None, None));
        assert_eq!(rig.looks.deadline(&rig.view), None, "nothing changes");
        rig.revision += 1;
        let (key, mod_revision) = (rig.view.layout().key(&Key::Node(n(2))), rig.revision);
        rig.view.watched([Change::Deleted { key, mod_revision }]);
        assert_eq!(rig.looks.deadline(&rig.view), Some(Ticks(2 * SECOND)));
        assert_eq!((rig.look(3), rig.looks.len(), rig.text(12)), (None, 1, None), "an election may be under way");
        let text =
            "1 partition of this node has no leader: t/0 (start one of b: only these nodes have all acknowledged messages)";
        assert_eq!((rig.look(13).as_deref(), rig.text(13).as_deref()), (Some(text), Some(text)));
        assert_eq!(rig.look(14), None, "it is said once");
        rig.node(2);
        rig.part(0, 2, &[2]);
        assert_eq!(rig.look(15).as_deref(), Some("all partitions of this node have a leader again"));
        assert_eq!((rig.text(15), rig.looks.len(), rig.looks.deadline(&rig.view)), (None, 0, None));
    }
}
