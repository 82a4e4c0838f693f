//! The links with other nodes: how the shard drives them, and where their messages go.
//!
//! With as many cores on both sides a message arrives on the core of its partition. Else it may arrive on another one, and is passed
//! over the mesh, in order. Connected and Disconnected are each core's own: its messages go over its own links.

use super::Shard;
use super::engine::Engine;
use super::parts::CoreParts;
use super::replication::Cluster;
use crate::base::NodeId;
use crate::base::topic::core_of;
use crate::base::{ConnId, CoreId, Now, Peer};
use crate::codec::peer::message::Body;
use crate::codec::peer::{Addressed, ClusterId};
use crate::config::Settings;
use crate::peer::{LinkEvent, LinkOptions, Links, MovedGreeting};
use crate::replica;
use crate::seam::cluster::ClusterOptions;
use crate::seam::event::{DialError, Effect, Effects};
use crate::seam::message::MeshMessage;
use std::time::Duration;

/// Seed of the pauses between attempts, so that they do not depend on a core's other random numbers.
const SEED_OF_LINKS: u64 = 0x7065_6572_6c69_6e6b;

/// Heartbeats of the links for each one of the replicas: two of the former in silence are less than a follower may be silent.
const HEARTBEATS: u64 = 2;

pub(super) fn links(
    cluster: &ClusterOptions,
    settings: &Settings,
    node_id: [u8; 16],
    core: CoreId,
    cores: u16,
    seed: u64,
) -> Links {
    let (node, id, generation) = (NodeId(node_id), ClusterId(cluster.cluster_id), cluster.generation);
    let heartbeat = Duration::from_millis(settings.replica_heartbeat_ms.saturating_mul(HEARTBEATS));
    // bytes of a connection with TLS are decrypted first
    let lend_min = settings.peer_tls_cert.is_empty().then_some(settings.receive_in_place_bytes as usize);
    Links::new(LinkOptions { heartbeat, lend_min, ..LinkOptions::new(node, id, generation, core, cores, seed ^ SEED_OF_LINKS) })
}

/// Core of this node, which has so many, on which the partition lives. `None`: its topic is not known.
fn core_for(cluster: &Cluster, addressed: &Addressed, cores: u16) -> Option<CoreId> {
    let route = addressed.route;
    let asker = match &addressed.message.body {
        Body::Forwarded(answer) => Some(answer.asker),
        Body::Changed(answer) => Some(answer.asker),
        _ => None,
    };
    if let Some(asker) = asker {
        return (asker.core.0 < cores).then_some(asker.core);
    }
    if let Some(topic) = cluster.topic(route.topic_id) {
        return Some(topic.core_of(route.partition, cores));
    }
    match &addressed.message.body {
        Body::Inquire(inquire) => Some(core_of(&inquire.topic, route.partition, cores)),
        _ => None,
    }
}

impl Shard {
    pub(super) fn peer_opened(&mut self, now: Now, conn: ConnId, peer: Peer, out: &mut Effects) {
        match self.engine.links_mut() {
            Some(links) => links.opened(now, conn, peer),
            None => out.push(Effect::Close { conn }),
        }
    }

    pub(super) fn peer_dialed(&mut self, now: Now, dial: u64, result: Result<ConnId, DialError>, out: &mut Effects) {
        match (self.engine.links_mut(), result) {
            (Some(links), result) => links.dialed(now, dial, result),
            (None, Ok(conn)) => out.push(Effect::Close { conn }),
            (None, Err(_)) => {}
        }
    }

    pub(super) fn peer_adopted(&mut self, now: Now, conn: ConnId, peer: Peer, carried: MovedGreeting, out: &mut Effects) {
        match self.engine.links_mut() {
            Some(links) => links.adopted(now, conn, peer, carried),
            None => out.push(Effect::Close { conn }),
        }
    }

    /// Routes the events of the links.
    pub(super) fn hear_links(&mut self, now: Now) {
        let Some(cluster) = &mut self.engine.cluster else { return };
        let mut events = cluster.peers.take_events();
        for event in events.drain(..) {
            match event {
                LinkEvent::Connected(node) => self.on_link(now, node, true),
                LinkEvent::Disconnected(node) => self.on_link(now, node, false),
                LinkEvent::Stopping(node) => self.on_stopping(now, node),
                LinkEvent::Message { from, addressed } => self.hear_peer(now, from, addressed),
            }
        }
        if let Some(cluster) = &mut self.engine.cluster {
            cluster.peers.give_back(events);
        }
    }

    fn on_link(&mut self, now: Now, node: NodeId, is_connected: bool) {
        self.engine.in_cluster(now, |c, core| c.on_peer(core, now, node, is_connected));
    }

    /// Handles the stop of another node's process: leaders wait for its confirmations no longer than it takes to remove it from the ISR.
    fn on_stopping(&mut self, now: Now, node: NodeId) {
        self.engine.in_cluster(now, |_, core| core.work.tell_all(&core.partitions, || replica::Event::Down { node }));
    }

    /// Routes a peer's message. A message for a partition of another core goes there; one about an unknown topic is answered here.
    fn hear_peer(&mut self, now: Now, from: NodeId, addressed: Addressed) {
        let Engine { core: CoreParts { id: this, cores, .. }, cluster, .. } = &self.engine;
        match cluster.as_ref().and_then(|c| core_for(c, &addressed, *cores)).filter(|core| core != this) {
            Some(core) => self.engine.pass(core, MeshMessage::Peer { from, addressed: Box::new(addressed) }),
            None => drop(self.engine.in_cluster(now, |c, core| c.on_peer_message(core, now, from, addressed))),
        }
    }

    pub(super) fn end_links_turn(&mut self, now: Now, out: &mut Effects) {
        if let Some(links) = self.engine.links_mut() {
            links.turn_end(now, out);
        }
    }

    /// Tells the other nodes that this one goes.
    pub(super) fn stop_links(&mut self, now: Now, out: &mut Effects) {
        if let Some(links) = self.engine.links_mut() {
            links.stop(now);
        }
        self.end_links_turn(now, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Epoch, PartitionId, Ticks, TopicId, TopicInfo, TopicName};
    use crate::codec::peer::message::{EpochsAsk, Head, Inquire, Lane, Message, Route, Session};
    use crate::codec::peer::{Encoder, Hello, Lanes, Layout, VERSION};
    use crate::format::journal::JournalIdentity;
    use crate::seam::cluster::{ClusterNode, Fact};
    use crate::seam::event::Event;
    use crate::shard::{LENT_MIN, Shard, ShardOptions};
    use std::sync::Arc;

    const OWN: NodeId = NodeId([5; 16]);
    const LOWER: NodeId = NodeId([1; 16]);
    const HIGHER: NodeId = NodeId([9; 16]);

    /// Core 0 of 2, alone or with a lower and a higher node.
    fn shard(is_clustered: bool) -> Shard {
        let settings = Arc::new(Settings { journal_bytes: 1 << 20, ..Settings::default() });
        let journal = JournalIdentity { journal_id: [1; 16], generation: 1, file_len: settings.journal_bytes, slot_sequence: 1 };
        Shard::new(ShardOptions {
            core: CoreId(0),
            cores: 2,
            settings,
            epoch: Epoch(1),
            journal,
            topics: vec![],
            partitions: vec![],
            seed: 1,
            connections_max: 0,
            node_id: OWN.0,
            cluster: is_clustered.then_some(ClusterOptions { cluster_id: [7; 16], generation: 3, creates_topics: false }),
            lent_min: LENT_MIN,
            tls: None,
        })
    }

    struct World {
        shard: Shard,
        now: Now,
    }

    impl World {
        /// Steps, ends the turn, and returns the effects except those on files.
        fn step(&mut self, event: Event<'_>) -> Effects {
            let mut out = vec![];
            self.shard.step(self.now, event, &mut out);
            self.shard.step(self.now, Event::Tick, &mut out);
            self.shard.step(self.now, Event::TurnEnd, &mut out);
            out.retain(|effect| !matches!(effect, Effect::Disk { .. }));
            out
        }
    }

    fn clustered() -> (World, Effects) {
        let mut world = World { shard: shard(true), now: Now { ticks: Ticks(1), unix_ns: 1 } };
        let node = |(id, name): (NodeId, &str)| ClusterNode::new(id, name, format!("{name}:1"));
        let nodes = [(LOWER, "lower"), (OWN, "own"), (HIGHER, "higher")].map(node);
        let effects = world.step(Event::Cluster(Fact::Nodes(nodes.into())));
        (world, effects)
    }

    /// Makes both connections of the lower node's link; `said` follows the handshake on the first.
    fn meet(world: &mut World, said: &[Addressed]) -> Effects {
        let mut effects = vec![];
        let mut first = Encoder::default();
        for (conn, lanes) in [(1, 0b011), (2, 0b100)] {
            let hello = Hello {
                version: VERSION,
                features: 0,
                node_id: LOWER,
                cluster_id: ClusterId([7; 16]),
                generation: 1,
                node_version: "",
                layout: Layout { cores: 2, core: 0, placement: Layout::BY_NAME },
                lanes: Lanes(lanes),
                heartbeat_ms: 1000,
                link: 0,
                incarnation: 0,
            };
            let mut pieces = vec![];
            let encoder = if conn == 1 { &mut first } else { &mut Encoder::default() };
            encoder.hello(&mut pieces, &hello);
            effects.extend(world.step(Event::OpenedPeer { conn: ConnId(conn), peer: Peer("there:1".into()) }));
            effects.extend(world.step(Event::Bytes { conn: ConnId(conn), bytes: &pieces.concat() }));
        }
        let mut pieces = vec![];
        first.messages(&mut pieces, Lane::Control, said);
        effects.extend(world.step(Event::Bytes { conn: ConnId(1), bytes: &pieces.concat() }));
        effects
    }

    #[test]
    fn a_node_that_is_alone_takes_no_peer() {
        let mut world = World { shard: shard(false), now: Now { ticks: Ticks(1), unix_ns: 1 } };
        let out = world.step(Event::OpenedPeer { conn: ConnId(1), peer: Peer("there:1".into()) });
        assert!(matches!(out[..], [Effect::Close { conn: ConnId(1) }]), "{out:?}");
    }

    #[test]
    fn the_higher_node_is_dialled_and_the_connection_greeted() {
        let (mut world, effects) = clustered();
        let [Effect::Dial { dial, address, name }] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!((&**address, &**name), ("higher:1", "higher"));
        let out = world.step(Event::Dialed { dial: *dial, result: Ok(ConnId(7)) });
        assert!(matches!(out[..], [Effect::Send { conn: ConnId(7), .. }]), "{out:?}");
        let out = world.step(Event::Closed { conn: ConnId(7) });
        assert!(out.is_empty() && world.shard.deadline().is_some_and(|at| at > world.now.ticks), "again after a pause: {out:?}");
    }

    #[test]
    fn messages_for_partitions_of_another_core_are_passed_on() {
        let (mut world, _) = clustered();
        let topic = Arc::new(TopicInfo { name: TopicName::new("t").unwrap(), id: TopicId([3; 16]), partitions: 4 });
        world.step(Event::Cluster(Fact::Topic(topic.clone())));
        let message = |topic_id, partition, body| {
            let head = Head { epoch: Epoch(1), session: Session(1) };
            Addressed { route: Route { topic_id, partition: PartitionId(partition) }, message: Message { head, body } }
        };
        let ask = |partition| message(topic.id, partition, Body::EpochsAsk(EpochsAsk { below: Epoch(1) }));
        let inquire = |topic: &TopicName, partition| {
            let inquire = Inquire { topic: topic.clone(), partitions: 4, membership_version: 1 };
            message(TopicId([4; 16]), partition, Body::Inquire(inquire))
        };
        // of a known topic, of an unknown one with a name, and of a wholly unknown one
        let unknown = message(TopicId([8; 16]), 1, Body::EpochsAsk(EpochsAsk { below: Epoch(1) }));
        let other = TopicName::new("other").unwrap();
        let mut said: Vec<Addressed> = (0..4).map(ask).chain((0..4).map(|p| inquire(&other, p))).collect();
        said.push(unknown);
        let effects = meet(&mut world, &said);
        let passed: Vec<Addressed> = effects
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::Pass { to, message: MeshMessage::Peer { from, addressed } } => {
                    assert_eq!((to, from), (CoreId(1), LOWER));
                    Some(*addressed)
                }
                _ => None,
            })
            .collect();
        let is_elsewhere = |m: &&Addressed| match &m.message.body {
            Body::Inquire(i) => core_of(&i.topic, m.route.partition, 2) == CoreId(1),
            _ => m.route.topic_id == topic.id && topic.core_of(m.route.partition, 2) == CoreId(1),
        };
        let expected: Vec<Addressed> = said.iter().filter(is_elsewhere).cloned().collect();
        assert_eq!(expected.len(), 4);
        assert_eq!(passed, expected, "in order");
    }

    #[test]
    fn a_node_that_stops_ends_its_links_before_its_store() {
        let (mut world, _) = clustered();
        meet(&mut world, &[]);
        let out = world.step(Event::Stop);
        let closes = out.iter().filter(|e| matches!(e, Effect::Close { .. })).count();
        assert_eq!(closes, 2, "{out:?}");
        assert!(!out.iter().any(|e| matches!(e, Effect::Stopped)), "not before they are closed");
        for conn in [1, 2] {
            world.step(Event::Closed { conn: ConnId(conn) });
        }
        let links = world.shard.engine.links().unwrap();
        assert!(links.is_idle() && links.connected().count() == 0);
    }
}
