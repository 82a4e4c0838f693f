//! The part of /stats that this core contributes.

use super::Shard;
use super::replication::loss::channels_lost;
use crate::base::topic::home_core;
use crate::base::{ChannelName, Ticks, TopicName, TopicRef};
use crate::metrics::stats::{ClosedPartitions, PartitionStats, ProducerStats, ShardStats};
use crate::replica::ReplicaError;

impl Shard {
    /// Failures of this core, a sentence each: any of them makes /ping fail.
    fn failures(&self) -> Vec<String> {
        let mut sick = self.engine.core.store.health();
        // The store tells it too, but a notice may still be on its way.
        if let Some(reason) = self.engine.core.life.read_only().filter(|_| !self.engine.core.store.is_read_only()) {
            sick.insert(0, reason.to_owned());
        }
        sick
    }

    /// Partitions that this core leads and that take no publish. Where the node's lease is over, that is said instead.
    fn closed_partitions(&self, now: Ticks) -> ClosedPartitions {
        let mut closed = ClosedPartitions::default();
        for (_, p) in self.engine.core.partitions.iter() {
            let Some(seat) = p.seat().filter(|seat| seat.is_leader()) else { continue };
            match seat.member.check_write(now) {
                Ok(()) | Err(ReplicaError::LeaseOver | ReplicaError::HandingOver) => {}
                Err(error) => {
                    if closed.count == 0 {
                        closed.example = format!("{}/{}: {error}", p.topic.name, p.dir.partition);
                    }
                    closed.count += 1;
                }
            }
        }
        closed
    }

    pub(super) fn stats(
        &self,
        now: Ticks,
        topic: Option<&TopicName>,
        channel: Option<&ChannelName>,
        clients: bool,
    ) -> ShardStats {
        let e = &self.engine;
        let failures = self.failures();
        // A node of a cluster forwards also with a full disk, and clients gain nothing at another node: this one still leads its
        // partitions.
        let serves = failures.is_empty() && e.core.is_clustered;
        let sick: Vec<String> = failures.into_iter().chain(e.core.store.fullness()).collect();
        let mut stats = ShardStats {
            core: e.core.id.0,
            connections: self.conns.len() as u64,
            healthy: sick.is_empty(),
            health: if sick.is_empty() { String::new() } else { format!("core {}: {}", e.core.id.0, sick.join(", ")) },
            serves,
            closed: self.closed_partitions(now),
            links: e.cluster.as_ref().map_or_else(Vec::new, |c| c.peers.link_stats()),
            scrubs: e.core.store.scrubs(),
            deleting_bytes: e.core.store.deleting_bytes(),
            waiting_bytes: e.core.store.waiting_bytes(),
            counts: e.core.counters.counts.clone(),
            remote: e.cluster.as_ref().map(|c| c.remote_stats(e.core.waiting.bytes_of_nodes())),
            ..Default::default()
        };
        // A topic that is being removed, or whose removal is stuck, is not listed.
        let is_open = |t: &TopicRef| e.core.is_clustered || e.core.topics.known(&t.name).is_some_and(|known| known.id == t.id);
        let is_asked_for = |t: &TopicRef| topic.is_none_or(|name| *name == t.name) && is_open(t);
        if !e.core.is_clustered {
            let own = e.core.topics.all().filter(|t| is_asked_for(t) && home_core(&t.name, e.core.cores) == e.core.id);
            stats.topics = own.map(|t| t.name.to_string()).collect();
        }
        for (idx, p) in e.core.partitions.iter().filter(|(_, p)| is_asked_for(&p.topic)) {
            // A batch that is not committed is no message yet, and on a read-only core never becomes one.
            let end = p.committed();
            let unread = |from: i64| (end.count - from).max(0) as u64;
            let flows_to = p.flows_to();
            let channels: Vec<_> = (p.open_channels())
                .filter(|(_, c)| channel.is_none_or(|name| *name == c.name))
                .map(|(_, c)| c.machine.stats(flows_to, clients))
                .collect();
            let own_from = if p.has_channels() { flows_to } else { p.collected_from(e.core.store.collect_start(idx)) };
            stats.partitions.push(PartitionStats {
                topic: p.topic.name.to_string(),
                partition: p.dir.partition.0,
                depth: unread(own_from.count),
                paused: p.pause.is_some(),
                message_count: end.count as u64,
                message_bytes: p.message_bytes,
                stored_bytes: u64::try_from(end.offset - e.core.store.start(idx).offset).unwrap_or(0),
                unreadable: e.core.store.held(idx),
                channels_lost: channels_lost(&e.core.store, idx),
                replication: e.cluster.as_ref().and_then(|c| c.replication_stats(now, &e.core.store, idx, p)),
                channels,
            });
        }
        if clients {
            let closing = self.conns.values().filter(|c| c.session.is_unsubscribing());
            stats.closing = closing.map(|c| c.session.peer().0.to_string()).collect();
            stats.producers = (self.conns.values())
                .filter(|c| !c.session.published().is_empty())
                .map(|c| ProducerStats { info: c.session.client_info(), topics: c.session.published() })
                .collect();
        }
        stats
    }
}
