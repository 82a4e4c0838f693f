//! The links with other nodes, as the shard drives them, and what it does with what they say.
//!
//! With as many cores on both sides a message arrives on the core of its partition. Else it may arrive on another one, and is
//! passed over the mesh, in order. Connected and Disconnected are each core's own: what is sent from it goes over its own links.

use super::cluster::ClusterOptions;
use super::engine::Engine;
use super::event::{DialError, Effect, Effects};
use super::message::MeshMessage;
use crate::base::topic::core_of;
use crate::base::{ConnId, CoreId, Now, Peer};
use crate::codec::peer::{Addressed, ClusterId};
use crate::config::Settings;
use crate::peer::{Carried, LinkEvent, LinkOptions, Links};
use crate::replica::NodeId;
use crate::replica::message::Body;
use std::time::Duration;

/// Keeps the pauses between attempts apart from what else a core draws.
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
    Links::new(LinkOptions { heartbeat, ..LinkOptions::new(node, id, generation, core, cores, seed ^ SEED_OF_LINKS) })
}

impl Engine {
    pub fn peer_opened(&mut self, now: Now, conn: ConnId, peer: Peer, out: &mut Effects) {
        match &mut self.links {
            Some(links) => links.opened(now, conn, peer),
            None => out.push(Effect::Close { conn }),
        }
    }

    pub fn peer_dialed(&mut self, now: Now, dial: u64, result: Result<ConnId, DialError>, out: &mut Effects) {
        match (&mut self.links, result) {
            (Some(links), result) => links.dialed(now, dial, result),
            (None, Ok(conn)) => out.push(Effect::Close { conn }),
            (None, Err(_)) => {}
        }
    }

    pub fn peer_adopted(&mut self, now: Now, conn: ConnId, peer: Peer, carried: Carried, out: &mut Effects) {
        match &mut self.links {
            Some(links) => links.adopted(now, conn, peer, carried),
            None => out.push(Effect::Close { conn }),
        }
    }

    /// Gives what the links heard to whom it is for.
    pub fn hear_links(&mut self, now: Now) {
        let Some(links) = &mut self.links else { return };
        let mut events = std::mem::take(&mut self.link_events);
        links.take(&mut events);
        for event in events.drain(..) {
            match event {
                LinkEvent::Message { from, addressed } => match self.core_of_message(&addressed) {
                    Some(core) if core != self.core => self.pass(core, MeshMessage::Peer { from, addressed }),
                    _ => self.on_link_event(now, LinkEvent::Message { from, addressed }),
                },
                event => self.on_link_event(now, event),
            }
        }
        self.link_events = events;
    }

    /// Where the partition lives. `None`: its topic is not known; this core answers that.
    fn core_of_message(&self, addressed: &Addressed) -> Option<CoreId> {
        let route = addressed.route;
        if let Some(topic) = self.cluster_topic(route.topic_id) {
            return Some(topic.core_of(route.partition, self.cores));
        }
        match &addressed.message.body {
            Body::Inquire(inquire) => Some(core_of(&inquire.topic, route.partition, self.cores)),
            _ => None,
        }
    }

    /// What another node says, and whether it can be heard at all.
    pub fn on_link_event(&mut self, now: Now, event: LinkEvent) {
        match event {
            LinkEvent::Connected(node) => self.on_peer(now, node, true),
            LinkEvent::Disconnected(node) => self.on_peer(now, node, false),
            LinkEvent::Message { from, addressed } => self.on_peer_message(now, from, addressed),
        }
    }

    pub fn end_links_turn(&mut self, now: Now, out: &mut Effects) {
        if let Some(links) = &mut self.links {
            links.turn_end(now, out);
        }
    }

    /// Tells the other nodes that this one goes.
    pub fn stop_links(&mut self, now: Now, out: &mut Effects) {
        if let Some(links) = &mut self.links {
            links.stop(now);
        }
        self.end_links_turn(now, out);
    }
}
