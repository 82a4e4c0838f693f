//! What /stats says of a replica.

use super::roles::role_of;
use super::{Cluster, Engine};
use crate::log::PartitionIdx;
use crate::metrics::stats::{FollowerStats, LinkStats, ReplicationStats};

impl Engine {
    /// This core's links with the other nodes.
    pub(in crate::shard) fn link_stats(&self) -> Vec<LinkStats> {
        let Some(cluster) = &self.cluster else { return vec![] };
        let link = |(node, connected, queued)| LinkStats { node: cluster.name_of(node), connected, queued_bytes: queued as u64 };
        cluster.links.status().map(link).collect()
    }

    /// `None` of a partition without replicas.
    pub(in crate::shard) fn replication_stats(&self, idx: PartitionIdx) -> Option<ReplicationStats> {
        let cluster: &Cluster = self.cluster.as_ref()?;
        let p = self.partitions.get(idx);
        let seat = p.seat()?;
        let membership = seat.member.membership();
        let names = |of: fn(&crate::seam::membership::Membership) -> &[crate::base::NodeId]| {
            membership.map(|m| of(m).iter().map(|n| cluster.name_of(*n)).collect()).unwrap_or_default()
        };
        let end = self.store.end(idx).offset;
        let follower = |f: crate::replica::FollowerStatus| FollowerStats {
            node: cluster.name_of(f.node),
            in_sync: membership.is_some_and(|m| m.is_in_sync(f.node)),
            state: f.state,
            acked: f.acked.offset,
            sent: f.sent.offset,
            lag: end - f.acked.offset,
        };
        let leader = membership.and_then(|m| m.leader);
        let at = cluster.nodes.iter().find(|n| Some(n.id) == leader);
        Some(ReplicationStats {
            partition: p.dir.partition.0,
            role: role_of(seat.member.state()),
            epoch: seat.member.epoch().or(membership.map(|m| m.epoch)).unwrap_or_default().0,
            leader: leader.map(|l| cluster.name_of(l)),
            leader_tcp_address: at.and_then(|n| n.tcp_address.as_ref()).map(|a| a.to_string()),
            leader_native_address: at.and_then(|n| n.native_address.as_ref()).map(|a| a.to_string()),
            replicas: names(|m| &m.replicas),
            isr: names(|m| &m.isr),
            min_isr: membership.map_or(0, |m| m.min_isr),
            committed: seat.member.committed().offset,
            durable: self.store.durable_end(idx).offset,
            end,
            followers: seat.member.followers().map(follower).collect(),
            damaged: self.store.log_view(idx).damage().map(|(from, _)| from.offset),
            alarm: seat.alarm.map(|a| a.to_string()),
        })
    }
}
