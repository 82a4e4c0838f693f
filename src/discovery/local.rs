//! The node as its own nsqlookupd: the same HTTP API, over a registry in which the node is the only producer.

use super::Identity;
use crate::base::{ChannelName, TopicName};
use ringmq_lookupd::NSQ_VERSION;
use ringmq_lookupd::daemon::RegistryClock;
use ringmq_lookupd::registry::{Limits, Name, PeerId, PeerInfo};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The node is always active. Entries that the API creates are added to the node's own.
const LIMITS: Limits =
    Limits { inactive_producer_timeout: Duration::MAX, tombstone_lifetime: Duration::from_secs(45), entries_max: 2_000_000 };

pub struct Local {
    shared: Rc<RegistryClock>,
    node: PeerId,
    told: RefCell<BTreeMap<TopicName, BTreeSet<ChannelName>>>,
}

impl Local {
    pub fn start(
        identity: &Identity,
        listener: TcpListener,
        address: SocketAddr,
        connections_max: usize,
        stopping: watch::Receiver<()>,
    ) -> Self {
        let shared = RegistryClock::new(LIMITS);
        let info = PeerInfo {
            remote_address: format!("{}:{}", identity.broadcast_address, identity.tcp_port),
            hostname: identity.hostname.clone(),
            broadcast_address: identity.broadcast_address.clone(),
            tcp_port: identity.tcp_port.into(),
            http_port: identity.http_port.into(),
            version: NSQ_VERSION.into(),
            topology_zone: String::new(),
            topology_region: String::new(),
        };
        let node = shared.with(|registry, now| registry.connect(info, now));
        tracing::info!(%address, "the node answers lookups");
        tokio::task::spawn_local(ringmq_lookupd::http::serve(listener, shared.clone(), connections_max, stopping));
        Local { shared, node, told: RefCell::default() }
    }

    /// The topic is announced with these channels, or not at all.
    pub fn update(&self, topic: &TopicName, channels: Option<&BTreeSet<ChannelName>>) {
        let mut told = self.told.borrow_mut();
        let before = told.remove(topic).unwrap_or_default();
        let none = BTreeSet::new();
        let after = channels.unwrap_or(&none);
        // Both rules for names are NSQ's.
        let Some(name) = Name::new(topic) else { return };
        self.shared.with(|registry, _| {
            let goes = before.difference(after).filter_map(|channel| Name::new(channel));
            goes.for_each(|channel| registry.unregister(self.node, &name, Some(&channel)));
            let mut result = Ok(());
            match channels {
                None => registry.unregister(self.node, &name, None),
                Some(_) => result = registry.register(self.node, &name, None),
            }
            for channel in after.difference(&before).filter_map(|channel| Name::new(channel)) {
                result = result.and(registry.register(self.node, &name, Some(&channel)));
            }
            if let Err(error) = result {
                tracing::warn!(%topic, %error, "a lookup found only a part of a topic");
            }
        });
        if let Some(channels) = channels {
            told.insert(topic.clone(), channels.clone());
        }
    }
}
