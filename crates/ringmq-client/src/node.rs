//! The connections of a client, one per core that it uses, and its knowledge of where partitions live.
//!
//! A connection is made on first use, and again on the first use after it was lost. The pauses between attempts grow and are
//! randomised, so that the clients of a returning node do not all connect at once.

use super::error::{Error, Result};
use super::link::{BoxedStream, Connection, Introduction, RequestAnswer, TopicMap, partition_of};
use super::tls::{Secure, Unsecured};
use ringmq_protocol::codec::native::{Code, Request, Retry};
use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

/// A connection that held this long is not blamed for its end: the next is made at once.
const HELD: Duration = Duration::from_secs(10);
/// Nodes that are remembered.
const NODES_MAX: usize = 64;

/// Makes the byte streams of a client, below TLS: TCP, or something else.
pub type Connector = Arc<dyn Fn(Arc<str>) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>> + Send + Sync>;

pub(super) fn tcp() -> Connector {
    Arc::new(|address| {
        Box::pin(async move {
            let stream = TcpStream::connect(&*address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::pin(stream) as BoxedStream)
        })
    })
}

#[derive(Clone)]
pub(super) struct Config {
    pub address: Arc<str>,
    pub intro: Introduction,
    pub connect_limit: Duration,
    pub pause: Duration,
    pub pause_max: Duration,
    pub connector: Connector,
    pub secure: Option<Secure>,
}

/// Chance that is good enough for pauses and for the ids of producers.
pub(super) fn chance() -> u64 {
    // each RandomState has keys of its own, and the process's come from the operating system
    RandomState::new().hash_one(std::process::id())
}

/// A pause before try `failures + 1`: twice as long each time, between half of that and all of it.
pub(super) fn pause_after(failures: u32, first: Duration, longest: Duration) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let whole = first.saturating_mul(1 << (failures - 1).min(16)).min(longest);
    whole.mul_f64(0.5 + 0.5 * (chance() % 1024) as f64 / 1024.0)
}

#[derive(Default)]
struct Slot {
    state: tokio::sync::Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    link: Option<Arc<Connection>>,
    failures: u32,
    since: Option<Instant>,
    not_before: Option<Instant>,
}

type LeaderKey = (Arc<str>, Option<u16>);

pub(super) struct Inner {
    pub config: Config,
    slots: Mutex<HashMap<LeaderKey, Arc<Slot>>>,
    topics: Mutex<HashMap<String, Arc<TopicMap>>>,
    /// Native addresses of nodes of the cluster, the one that last answered first.
    nodes: Mutex<Vec<Arc<str>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Inner {
    pub fn new(config: Config) -> Inner {
        let nodes = Mutex::new(vec![config.address.clone()]);
        Inner { config, slots: Mutex::default(), topics: Mutex::default(), nodes }
    }

    /// A separate set of connections to the same node, which knows the topic's partitions.
    pub fn apart(&self, topic: &str, map: Arc<TopicMap>) -> Inner {
        let inner = Inner::new(self.config.clone());
        locked(&inner.nodes).clone_from(&locked(&self.nodes));
        locked(&inner.topics).insert(topic.to_owned(), map);
        inner
    }

    fn slot(&self, key: LeaderKey) -> Arc<Slot> {
        locked(&self.slots).entry(key).or_default().clone()
    }

    /// The connection to that core; a new one when there is none. One attempt, after the pause that is due.
    async fn link_at(&self, address: Arc<str>, core: Option<u16>) -> Result<Arc<Connection>> {
        let slot = self.slot((address.clone(), core));
        let mut state = slot.state.lock().await;
        if let Some(link) = &state.link {
            if link.is_alive() {
                return Ok(link.clone());
            }
            if state.since.is_some_and(|since| since.elapsed() >= HELD) {
                state.failures = 0;
                state.not_before = None;
            }
            state.link = None;
        }
        if let Some(at) = state.not_before {
            sleep_until(at).await;
        }
        let result = self.connect(address.clone(), core).await;
        let now = Instant::now();
        state.since = Some(now);
        state.not_before = Some(now + pause_after(state.failures, self.config.pause, self.config.pause_max));
        state.failures = state.failures.saturating_add(1);
        let link = result?;
        state.link = Some(link.clone());
        if core.is_none() {
            // it lives somewhere: that core's connection, unless there is one
            let slot = self.slot((address, Some(link.facts.core)));
            if let Ok(mut there) = slot.state.try_lock()
                && there.link.is_none()
            {
                there.link = Some(link.clone());
                there.since = Some(now);
            }
        }
        Ok(link)
    }

    async fn connect(&self, address: Arc<str>, core: Option<u16>) -> Result<Arc<Connection>> {
        let limit = self.config.connect_limit;
        let connecting = async {
            let failed = |source: io::Error| Error::Connect { address: address.clone(), source: Arc::new(source) };
            let mut stream = (self.config.connector)(address.clone()).await.map_err(failed)?;
            let secure = self.config.secure.as_ref();
            if let Some(secure) = secure {
                stream = secure.connect(&address, stream).await.map_err(|e| match e {
                    Unsecured::Tls(error) => Error::tls(&address, error),
                    Unsecured::Io(source) => failed(source),
                })?;
            }
            Connection::open(stream, secure, address.clone(), &self.config.intro, core).await
        };
        timeout(limit, connecting).await.unwrap_or_else(|_| Err(Error::Silent { address: address.clone(), limit }))
    }

    /// A connection for requests that every core answers.
    pub async fn any_link(&self) -> Result<Arc<Connection>> {
        let slots: Vec<_> = locked(&self.slots).values().cloned().collect();
        for slot in slots {
            if let Ok(state) = slot.state.try_lock()
                && let Some(link) = &state.link
                && link.is_alive()
            {
                return Ok(link.clone());
            }
        }
        let nodes = locked(&self.nodes).clone();
        let mut first = None;
        for address in nodes {
            match self.link_at(address.clone(), None).await {
                Ok(link) => {
                    self.learn([address]);
                    return Ok(link);
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(Error::Closed))
    }

    /// Nodes of the cluster; they are asked first from now on.
    fn learn(&self, addresses: impl IntoIterator<Item = Arc<str>>) {
        let mut nodes = locked(&self.nodes);
        for (i, address) in addresses.into_iter().enumerate() {
            nodes.retain(|n| *n != address);
            // An address may be named twice.
            let at = i.min(nodes.len());
            nodes.insert(at, address);
        }
        // Some nodes that are gone may stay in the list; the address that the program named always does.
        let own = nodes.iter().position(|n| *n == self.config.address);
        if nodes.len() > NODES_MAX {
            let own = own.filter(|own| *own >= NODES_MAX).map(|own| nodes.remove(own));
            nodes.truncate(NODES_MAX - own.is_some() as usize);
            nodes.extend(own);
        }
    }

    /// Takes an answer; where the node names itself, its address is filled in.
    fn heard(&self, link: &Connection, topics: &mut [TopicMap], nodes: Vec<Arc<str>>) {
        let here = link.facts.address.clone();
        for place in topics.iter_mut().flat_map(|t| &mut t.partitions).filter(|p| p.address.is_empty()) {
            place.address = here.clone();
        }
        self.learn(std::iter::once(here).chain(nodes));
    }

    /// The topic as the node has it now; `None` when there is none of that name.
    pub async fn refresh(&self, topic: &str) -> Result<Option<Arc<TopicMap>>> {
        Error::unless_it_fits("topic's name", topic)?;
        let link = self.any_link().await?;
        self.refresh_by(&link, topic).await
    }

    /// The same, by this connection's node.
    pub async fn refresh_by(&self, link: &Connection, topic: &str) -> Result<Option<Arc<TopicMap>>> {
        let request = Request::GetTopics { topics: vec![topic], after: "" };
        let found = match link.ask(&request).await? {
            RequestAnswer::Topics { mut topics, nodes, .. } => {
                self.heard(link, &mut topics, nodes);
                topics.into_iter().find(|t| t.name == topic).map(Arc::new)
            }
            other => return Err(unexpected(link, &other)),
        };
        match &found {
            Some(map) => drop(locked(&self.topics).insert(topic.to_owned(), map.clone())),
            None => drop(locked(&self.topics).remove(topic)),
        }
        Ok(found)
    }

    pub async fn create(&self, topic: &str, partitions: u16) -> Result<Arc<TopicMap>> {
        Error::unless_it_fits("topic's name", topic)?;
        let link = self.any_link().await?;
        match link.ask(&Request::CreateTopic { topic, partitions }).await? {
            RequestAnswer::Topics { mut topics, nodes, .. } if topics.len() == 1 => {
                self.heard(&link, &mut topics, nodes);
                let map = Arc::new(topics.into_iter().next().expect("there is one"));
                locked(&self.topics).insert(topic.to_owned(), map.clone());
                Ok(map)
            }
            other => Err(unexpected(&link, &other)),
        }
    }

    /// Lists all topics, ordered by name.
    pub async fn topics(&self) -> Result<Vec<TopicMap>> {
        let mut all: Vec<TopicMap> = Vec::new();
        loop {
            let link = self.any_link().await?;
            let after = all.last().map_or(String::new(), |t| t.name.clone());
            match link.ask(&Request::GetTopics { topics: Vec::new(), after: &after }).await? {
                RequestAnswer::Topics { mut topics, nodes, more } => {
                    self.heard(&link, &mut topics, nodes);
                    let none = topics.is_empty();
                    all.extend(topics);
                    if !more || none {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected(&link, &other)),
            }
        }
    }

    /// Returns a topic, from the cache or from a node.
    pub async fn topic(&self, topic: &str) -> Result<Option<Arc<TopicMap>>> {
        let known = locked(&self.topics).get(topic).cloned();
        match known {
            Some(map) => Ok(Some(map)),
            None => self.refresh(topic).await,
        }
    }

    /// Drops a cached topic that may be out of date.
    pub fn forget(&self, topic: &str) {
        locked(&self.topics).remove(topic);
    }

    /// The connection to the core where a partition lives.
    pub async fn link_for(&self, topic: &str, partition: u16) -> Result<Arc<Connection>> {
        let Some(map) = self.topic(topic).await? else { return Err(Error::NoTopic { topic: topic.into() }) };
        let Some(place) = map.partitions.get(partition as usize) else {
            let last = partition_of(map.partitions.len().saturating_sub(1)).0;
            return Err(Error::Partition { topic: topic.into(), partition, last });
        };
        let link = self.link_at(place.address.clone(), Some(place.core)).await;
        if link.is_err() {
            // Another node may lead by now.
            self.forget(topic);
        }
        link
    }

    /// Asks where a partition lives, and once more when it lives somewhere else by now.
    pub async fn ask_there(&self, topic: &str, partition: u16, request: &Request<'_>) -> Result<RequestAnswer> {
        let mut link = self.link_for(topic, partition).await?;
        match link.ask(request).await {
            Err(Error::Node { code: Code::WrongCore | Code::NotLeader, retry: Retry::Refresh, .. }) => {
                self.forget(topic);
                link = self.link_for(topic, partition).await?;
                link.ask(request).await
            }
            result => result,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for slot in locked(&self.slots).values() {
            if let Ok(state) = slot.state.try_lock()
                && let Some(link) = &state.link
            {
                link.close();
            }
        }
    }
}

pub(super) fn unexpected(link: &Connection, answer: &RequestAnswer) -> Error {
    Error::protocol(&link.facts.address, format_args!("the node sent an answer to no request: {answer:?}"))
}
