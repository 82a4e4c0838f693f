//! Discovery: this node's topics and channels, told to the nsqlookupds of `--lookupd-tcp-address`, and answered by the node itself on
//! `--lookupd-http-address`.
//!
//! It lives on the HTTP thread and owns the catalog of the node ([`catalog`]), which the cores feed with changes. One task for each
//! nsqlookupd ([`link`]) registers the catalog's entries; it connects again with growing pauses, and then registers everything again. A
//! new topic asks all of them for its known channels ([`known`]): those begin at the topic's first message, however late the answer is.

mod announced;
mod catalog;
mod known;
mod link;
mod local;
mod questions;

use crate::base::{ChannelName, PartitionId, TopicRef};
use crate::config::Settings;
use crate::seam::message::CatalogChange;
use catalog::Catalog;
pub use known::{asking, channels_of};
use link::Peer;
use local::Local;
use questions::{OpenQuestions, Question};
pub use ringmq_lookupd::NSQ_VERSION;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;

/// New topics whose channels are asked for at a time.
const ASKING_MAX: usize = 16;

/// Addresses and names that the node registers.
#[derive(Clone, Debug)]
pub struct Identity {
    pub broadcast_address: String,
    pub hostname: String,
    pub tcp_port: u16,
    pub http_port: u16,
}

/// Channels that a new topic is to get, each from the topic's first message on.
#[derive(Debug)]
pub struct ChannelsToCreate {
    pub topic: TopicRef,
    pub channels: Vec<ChannelName>,
    question: Question,
}

impl ChannelsToCreate {
    /// Whether the channel was deleted here since the nsqlookupds were asked: it is not wanted any more.
    pub fn is_deleted(&self, channel: &ChannelName) -> bool {
        self.question.is_deleted(channel)
    }
}

/// The running tasks; they end with their thread's `LocalSet`.
pub struct Discovery {
    catalog: RefCell<Catalog>,
    identity: Identity,
    /// Links in the order in which the nsqlookupds were named.
    peers: RefCell<Vec<(Rc<Peer>, AbortHandle)>>,
    local: Option<Local>,
    wanted: mpsc::UnboundedSender<ChannelsToCreate>,
    limits: known::Limits,
    asking: Semaphore,
    asked: RefCell<OpenQuestions>,
}

impl Discovery {
    /// Starts the tasks on this thread. `listener`: of `--lookupd-http-address`.
    pub fn start(
        settings: &Settings,
        identity: Identity,
        listener: Option<std::net::TcpListener>,
        stopping: watch::Receiver<()>,
    ) -> (Rc<Discovery>, mpsc::UnboundedReceiver<ChannelsToCreate>) {
        let (wanted, receiver) = mpsc::unbounded_channel();
        let local = listener.and_then(|listener| match listen(listener) {
            Ok((listener, address)) => {
                Some(Local::start(&identity, listener, address, settings.max_http_connections as usize, stopping))
            }
            Err(error) => {
                tracing::error!(%error, "the listener of --lookupd-http-address cannot be used");
                None
            }
        });
        let discovery = Rc::new(Discovery {
            catalog: RefCell::new(Catalog::new(settings.is_clustered())),
            identity,
            peers: RefCell::default(),
            local,
            wanted,
            limits: known::Limits::of(settings),
            asking: Semaphore::new(ASKING_MAX),
            asked: RefCell::default(),
        });
        discovery.set_lookupds(&settings.lookupd_tcp_addresses);
        (discovery, receiver)
    }

    /// The addresses of the nsqlookupds with which the node registers, from here on. The connections to others end, and with them their
    /// registrations.
    pub fn set_lookupds(self: &Rc<Self>, addresses: &[String]) {
        let mut old = std::mem::take(&mut *self.peers.borrow_mut());
        let mut peers: Vec<(Rc<Peer>, AbortHandle)> = Vec::new();
        for address in addresses {
            if peers.iter().any(|(peer, _)| peer.address() == address) {
                continue;
            }
            peers.push(match old.iter().position(|(peer, _)| peer.address() == address) {
                Some(at) => old.swap_remove(at),
                None => {
                    let peer = Rc::new(Peer::new(address.clone()));
                    let task = tokio::task::spawn_local(link::run(peer.clone(), self.clone(), self.identity.clone()));
                    (peer, task.abort_handle())
                }
            });
        }
        old.iter().for_each(|(_, task)| task.abort());
        self.peers.replace(peers);
    }

    fn peers(&self) -> Vec<Rc<Peer>> {
        self.peers.borrow().iter().map(|(peer, _)| peer.clone()).collect()
    }

    /// Takes a core's changes, in the order in which they happened there.
    pub fn changed(self: &Rc<Self>, changes: Vec<CatalogChange>) {
        for change in changes {
            if let CatalogChange::Topic { topic, is_new: true } = &change
                && !self.peers.borrow().is_empty()
            {
                let question = self.asked.borrow_mut().ask(topic.id);
                tokio::task::spawn_local(known::ask(self.clone(), topic.clone(), question));
            }
            if let CatalogChange::ChannelGone { topic, channel, .. } = &change {
                self.asked.borrow_mut().channel_gone(topic.id, channel);
            }
            let name = self.catalog.borrow_mut().apply(change);
            self.tell(name);
        }
    }

    /// Records whether this node of a cluster serves the partition.
    pub fn serves(&self, topic: &TopicRef, partition: PartitionId, serves: bool) {
        let name = self.catalog.borrow_mut().set_serves(topic, partition, serves);
        self.tell(name);
    }

    /// Channels of the topic that partitions here have: of one, or of all; those that the node serves, or all that it has replicas of.
    pub fn channels(&self, topic: &str, partition: Option<PartitionId>, is_served: bool) -> BTreeSet<String> {
        self.catalog.borrow().channels(topic, partition, is_served)
    }

    fn tell(&self, name: Option<crate::base::TopicName>) {
        let Some(name) = name else { return };
        if let Some(local) = &self.local {
            local.update(&name, self.catalog.borrow().announced(&name));
        }
        self.peers.borrow().iter().for_each(|(peer, _)| peer.touch(&name));
    }
}

fn listen(listener: std::net::TcpListener) -> std::io::Result<(TcpListener, SocketAddr)> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}
