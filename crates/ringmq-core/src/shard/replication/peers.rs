//! The other nodes: their names and addresses, the leader of each partition by the newest metadata, and the links of this core with them.
//! Every core hears all metadata, so each of them knows who leads what.

use crate::base::{CoreId, IdMap, Now, PartitionId, TopicId, TopicRef};
use crate::codec::peer::message::{Asker, Route};
use crate::metrics::remote::RemoteCounts;
use crate::metrics::stats::LinkStats;
use crate::peer::{LinkEvent, Links};
use crate::seam::cluster::{ClusterNode, name_of};
use crate::seam::outcome::PublishError;
use crate::session::native::PartitionPlace;
use crate::{base::NodeId, seam::membership::Membership};
use std::sync::Arc;

pub struct Peers {
    me: NodeId,
    /// Generation of this node: it rises with each startup.
    generation: u64,
    core: CoreId,
    /// Cores of this node.
    cores: u16,
    nodes: Arc<[ClusterNode]>,
    /// Leader of each partition by the newest metadata, with that metadata's version.
    leaders: IdMap<Route, (u64, Option<NodeId>)>,
    pub links: Links,
    /// Emptied list of link events, kept for its memory.
    spare_events: Vec<LinkEvent>,
    /// Traffic between this core and other nodes for clients.
    pub counts: RemoteCounts,
}

impl Peers {
    pub fn new(me: NodeId, generation: u64, (core, cores): (CoreId, u16), links: Links) -> Self {
        Peers {
            me,
            generation,
            core,
            cores,
            nodes: Arc::new([]),
            leaders: IdMap::default(),
            links,
            spare_events: vec![],
            counts: RemoteCounts::default(),
        }
    }

    pub fn me(&self) -> NodeId {
        self.me
    }

    // ---- nodes

    pub(super) fn set_nodes(&mut self, now: Now, nodes: Arc<[ClusterNode]>) {
        self.links.set_nodes(now, &nodes);
        self.nodes = nodes;
    }

    pub fn nodes(&self) -> &[ClusterNode] {
        &self.nodes
    }

    pub(super) fn node(&self, node: NodeId) -> Option<&ClusterNode> {
        self.nodes.iter().find(|n| n.id == node)
    }

    pub fn name_of(&self, node: NodeId) -> String {
        name_of(&self.nodes, node)
    }

    pub(super) fn names_of(&self, nodes: &[NodeId]) -> String {
        nodes.iter().map(|n| self.name_of(*n)).collect::<Vec<_>>().join(" ")
    }

    /// The other nodes whose native address is known, always in the same order.
    pub fn nodes_elsewhere(&self) -> impl Iterator<Item = (NodeId, &Arc<str>)> {
        let others = self.nodes.iter().filter(|n| n.id != self.me);
        others.filter_map(|n| Some((n.id, n.native_address.as_ref()?)))
    }

    // ---- leaders

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

    pub(super) fn forget_leaders(&mut self, topic: TopicId) {
        self.leaders.retain(|route, _| route.topic_id != topic);
    }

    /// Whether the metadata names the partition.
    pub(super) fn is_named(&self, route: Route) -> bool {
        self.leaders.contains_key(&route)
    }

    pub(super) fn leader(&self, route: Route) -> Option<NodeId> {
        self.leaders.get(&route)?.1
    }

    /// The other node that leads the partition and is connected. With another number of cores than this node
    /// has, it takes no relay: all that is said takes one link, and both ends hear when that is lost.
    pub fn relays_to(&self, route: Route) -> Result<Option<NodeId>, PublishError> {
        let leader = self.leader(route).filter(|leader| *leader != self.me && self.links.is_connected(*leader));
        match leader {
            Some(leader) if self.links.cores_of(leader) != Some(self.cores) => Err(PublishError::NotRelayed),
            leader => Ok(leader),
        }
    }

    /// Address under which clients reach the partition at another node. `None`: this node leads it, it has no leader, or the address is
    /// unknown.
    pub fn place_elsewhere(&self, topic: &TopicRef, partition: PartitionId) -> Option<PartitionPlace> {
        let leader = self.leader(Route { topic_id: topic.id, partition })?;
        let index = self.nodes_elsewhere().position(|(id, _)| id == leader)?;
        // A client that asks the wrong core of it is told the right one.
        let cores = self.links.cores_of(leader).unwrap_or(1);
        Some(PartitionPlace { node: index as u16 + 1, core: topic.core_of(partition, cores).0 })
    }

    /// The node that leads a partition, or all of a topic that is led, by its name, and where clients of NSQ find it if the cluster's
    /// file says so. `None`: it is this one, or several, or not known.
    pub(super) fn leader_elsewhere(&self, topic: &TopicRef, partition: Option<PartitionId>) -> Option<String> {
        let asked = partition.map_or(0..topic.partitions, |p| p.0..p.0.saturating_add(1));
        let mut leaders = asked.filter_map(|p| self.leader(Route { topic_id: topic.id, partition: PartitionId(p) }));
        let leader = leaders.next().filter(|l| *l != self.me && leaders.all(|other| other == *l))?;
        let node = self.node(leader)?;
        Some(match &node.tcp_address {
            Some(address) => format!("{} at {address}", node.name),
            None => node.name.to_string(),
        })
    }

    // ---- links

    /// Address of a question of this core, for its answer.
    pub(super) fn asker(&self, ticket: u64) -> Asker {
        Asker { generation: self.generation, core: self.core, ticket }
    }

    /// Whether this core asked. False: the question is of an earlier life of this node, perhaps with other cores.
    pub(super) fn has_asked(&self, asker: &Asker) -> bool {
        (asker.generation, asker.core) == (self.generation, self.core)
    }

    /// Events of the links; [`Self::give_back`] returns the list, emptied.
    pub fn take_events(&mut self) -> Vec<LinkEvent> {
        let mut events = std::mem::take(&mut self.spare_events);
        self.links.take(&mut events);
        events
    }

    pub fn give_back(&mut self, events: Vec<LinkEvent>) {
        self.spare_events = events;
    }

    /// State of this core's links with the other nodes.
    pub fn link_stats(&self) -> Vec<LinkStats> {
        let link = |(node, connected, queued)| LinkStats { node: self.name_of(node), connected, queued_bytes: queued as u64 };
        self.links.status().map(link).collect()
    }
}
