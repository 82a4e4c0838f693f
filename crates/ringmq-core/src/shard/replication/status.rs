//! Figures of replicas and links for /stats.

use super::peers::Peers;
use super::roles::role_of;
use crate::log::{PartitionIdx, Store};
use crate::metrics::stats::{FollowerStats, LEASE_OVER, ReplicationStats};
use crate::shard::partitions::Partition;

/// State of the partition's replica here. `has_lease`: the node may lead. `None`: the partition has no replica.
pub(super) fn replication_stats(
    peers: &Peers,
    has_lease: bool,
    store: &Store,
    (idx, p): (PartitionIdx, &Partition),
) -> Option<ReplicationStats> {
    let seat = p.seat()?;
    let membership = seat.member.membership();
    let names = |of: fn(&crate::seam::membership::Membership) -> &[crate::base::NodeId]| {
        membership.map(|m| of(m).iter().map(|n| peers.name_of(*n)).collect()).unwrap_or_default()
    };
    let end = store.end(idx).offset;
    let follower = |f: crate::replica::FollowerStatus| FollowerStats {
        node: peers.name_of(f.node),
        in_sync: membership.is_some_and(|m| m.is_in_sync(f.node)),
        state: f.state,
        acked: f.acked.offset,
        sent: f.sent.offset,
        lag: end - f.acked.offset,
    };
    let leader = membership.and_then(|m| m.leader);
    let at = leader.and_then(|l| peers.node(l));
    Some(ReplicationStats {
        partition: p.dir.partition.0,
        role: if seat.is_leader() && !has_lease { LEASE_OVER } else { role_of(seat.member.state()) },
        epoch: seat.member.epoch().or(membership.map(|m| m.epoch)).unwrap_or_default().number(),
        leader: leader.map(|l| peers.name_of(l)),
        leader_tcp_address: at.and_then(|n| n.tcp_address.as_ref()).map(|a| a.to_string()),
        leader_native_address: at.and_then(|n| n.native_address.as_ref()).map(|a| a.to_string()),
        replicas: names(|m| &m.replicas),
        isr: names(|m| &m.isr),
        min_isr: membership.map_or(0, |m| m.min_isr),
        committed: seat.member.committed().offset,
        durable: store.durable_end(idx).offset,
        end,
        followers: seat.member.followers().map(follower).collect(),
        damaged: store.log_view(idx).damage().map(|(from, _)| from.offset),
        alarm: seat.alarm.map(|alarm| alarm.text(peers.nodes())),
    })
}
