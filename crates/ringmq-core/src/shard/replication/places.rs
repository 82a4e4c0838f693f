//! Addresses of partitions that this node does not lead: every core hears all metadata, and tells the addresses of the other nodes that
//! the cluster's file has for clients.

use super::Cluster;
use crate::base::{PartitionId, TopicRef};
use crate::codec::peer::message::Route;
use crate::session::native::PartitionPlace;
use crate::{base::NodeId, seam::membership::Membership};
use std::sync::Arc;

impl Cluster {
    /// Whether another node leads the partition now, if that has changed.
    pub(super) fn note_leader(&mut self, route: Route, membership: &Membership) -> Option<bool> {
        let known = self.leaders.entry(route).or_insert((0, None));
        let is_elsewhere = |leader: Option<NodeId>| leader.is_some_and(|l| l != self.me);
        let before = is_elsewhere(known.1);
        if membership.version >= known.0 {
            *known = (membership.version, membership.leader);
        }
        let now = is_elsewhere(known.1);
        (now != before).then_some(now)
    }

    /// The other nodes whose native address is known, always in the same order.
    pub(in crate::shard) fn nodes_elsewhere(&self) -> impl Iterator<Item = (NodeId, &Arc<str>)> {
        let others = self.nodes.iter().filter(|n| n.id != self.me);
        others.filter_map(|n| Some((n.id, n.native_address.as_ref()?)))
    }

    /// Address under which clients reach the partition at another node. `None`: this node leads it, it has no leader, or the address is
    /// unknown.
    pub(in crate::shard) fn place_elsewhere(&self, topic: &TopicRef, partition: PartitionId) -> Option<PartitionPlace> {
        let route = Route { topic_id: topic.id, partition };
        let leader = self.leaders.get(&route)?.1?;
        let index = self.nodes_elsewhere().position(|(id, _)| id == leader)?;
        // A client that asks the wrong core of it is told the right one.
        let cores = self.links.cores_of(leader).unwrap_or(1);
        Some(PartitionPlace { node: index as u16 + 1, core: topic.core_of(partition, cores).0 })
    }

    /// The node that leads a partition, or all of a topic that is led, by its name, and where clients of NSQ find it if the cluster's
    /// file says so. `None`: it is this one, or several, or not known.
    pub(in crate::shard) fn leader_elsewhere(&self, topic: &str, partition: Option<PartitionId>) -> Option<String> {
        let topic = self.topics.values().find(|t| *t.name == *topic)?;
        let asked = partition.map_or(0..topic.partitions, |p| p.0..p.0.saturating_add(1));
        let leader_of = |p| self.leaders.get(&Route { topic_id: topic.id, partition: PartitionId(p) })?.1;
        let mut leaders = asked.filter_map(leader_of);
        let leader = leaders.next().filter(|l| *l != self.me && leaders.all(|other| other == *l))?;
        let node = self.nodes.iter().find(|n| n.id == leader)?;
        Some(match &node.tcp_address {
            Some(address) => format!("{} at {address}", node.name),
            None => node.name.to_string(),
        })
    }
}
