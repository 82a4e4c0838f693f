//! The registration database: which nodes have which topics and channels.
//!
//! Pure: the time is given. One instance per daemon, on its one thread. It owns every name and every producer and is the only place that
//! forgets them; the number of its entries is bounded ([`Limits`]).
//!
//! ```text
//! topics:   name -> producers           producer = peer, and when it was tombstoned for this topic
//! channels: topic -> name -> producers  (a channel may stand here without its topic, after the topic was unregistered)
//! peers:    one per TCP connection that has identified itself, with its registrations
//! ```
//!
//! A durable name stays when its last producer leaves, until it is deleted. An ephemeral one is removed with its last producer.

#[cfg(test)]
mod tests;

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The two clocks, as of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since some fixed moment; expiry is judged by it.
    pub elapsed: Duration,
    /// Is shown.
    pub unix_ns: i64,
}

/// Lifetimes of entries, and bounds on their number.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A producer that was silent for longer is in no answer.
    pub inactive_producer_timeout: Duration,
    pub tombstone_lifetime: Duration,
    /// Names, and producers of names, counted together.
    pub entries_max: usize,
}

/// Number of a node, valid as long as its connection lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(u64);

/// Description that a node gives of itself; the order of the fields is that of the JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerInfo {
    pub remote_address: String,
    pub hostname: String,
    pub broadcast_address: String,
    pub tcp_port: i64,
    pub http_port: i64,
    pub version: String,
    /// Topology of the node; only nodes newer than 1.3.0 tell it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topology_zone: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub topology_region: String,
}

/// Too much is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the registry is full with {entries_max} registrations; delete unneeded topics, or raise --max-registrations")]
pub struct Full {
    pub entries_max: usize,
}

/// A name of a topic or a channel: 1 to 64 of the letters that NSQ allows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(Box<str>);

const EPHEMERAL: &str = "#ephemeral";

impl Name {
    pub fn new(text: &str) -> Option<Name> {
        let stem = text.strip_suffix(EPHEMERAL).unwrap_or(text);
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        (text.len() <= 64 && !stem.is_empty() && stem.bytes().all(allowed)).then(|| Name(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_ephemeral(&self) -> bool {
        self.0.ends_with(EPHEMERAL)
    }
}

/// Topics of a question: one, or all of them (`*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicFilter<'a> {
    All,
    Topic(&'a str),
}

impl<'a> TopicFilter<'a> {
    pub fn new(text: &'a str) -> Self {
        if text == "*" { TopicFilter::All } else { TopicFilter::Topic(text) }
    }

    fn matches(self, topic: &Name) -> bool {
        match self {
            TopicFilter::All => true,
            TopicFilter::Topic(name) => name == topic.as_str(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Producer {
    tombstoned: Option<Now>,
}

type Producers = BTreeMap<PeerId, Producer>;

#[derive(Debug)]
struct Peer {
    info: PeerInfo,
    last_update: Now,
    topics: BTreeSet<Name>,
    channels: BTreeSet<(Name, Name)>,
}

#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    topics: BTreeMap<Name, Producers>,
    channels: BTreeMap<Name, BTreeMap<Name, Producers>>,
    peers: BTreeMap<PeerId, Peer>,
    last_peer: u64,
    /// Keys of `topics` and `channels`, and the producers below them.
    entries: usize,
}

/// The answer of /lookup.
#[derive(Debug, Serialize)]
pub struct Lookup<'a> {
    pub channels: Vec<&'a str>,
    pub producers: Vec<&'a PeerInfo>,
}

/// A row of /nodes.
#[derive(Debug, Serialize)]
pub struct Node<'a> {
    #[serde(flatten)]
    pub info: &'a PeerInfo,
    pub tombstones: Vec<bool>,
    pub topics: Vec<&'a str>,
}

/// A row of /debug.
#[derive(Debug, Serialize)]
pub struct DebugRow<'a> {
    pub broadcast_address: &'a str,
    pub hostname: &'a str,
    pub http_port: i64,
    pub id: &'a str,
    pub last_update: i64,
    pub tcp_port: i64,
    pub tombstoned: bool,
    pub tombstoned_at: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub topology_region: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub topology_zone: &'a str,
    pub version: &'a str,
}

/// Go's zero time in Unix nanoseconds, as it overflows.
const NEVER_UNIX_NS: i64 = -6_795_364_578_871_345_152;

impl Registry {
    pub fn new(limits: Limits) -> Self {
        Registry { limits, topics: BTreeMap::new(), channels: BTreeMap::new(), peers: BTreeMap::new(), last_peer: 0, entries: 0 }
    }

    // ---- requests of nodes

    /// A node that has identified itself. Its id is never given again.
    pub fn connect(&mut self, info: PeerInfo, now: Now) -> PeerId {
        self.last_peer += 1;
        let id = PeerId(self.last_peer);
        self.peers.insert(id, Peer { info, last_update: now, topics: BTreeSet::new(), channels: BTreeSet::new() });
        id
    }

    /// Answers how long ago the sign of life before this one was.
    pub fn ping(&mut self, peer: PeerId, now: Now) -> Option<Duration> {
        let peer = self.peers.get_mut(&peer)?;
        let silent = now.elapsed.saturating_sub(peer.last_update.elapsed);
        peer.last_update = now;
        Some(silent)
    }

    /// The node has the topic, and the channel of it. Repeating it changes nothing, also not a tombstone.
    pub fn register(&mut self, peer: PeerId, topic: &Name, channel: Option<&Name>) -> Result<(), Full> {
        // Two names and two producers at most.
        self.room_for(if channel.is_some() { 4 } else { 2 })?;
        let Some(known) = self.peers.get_mut(&peer) else { return Ok(()) };
        if let Some(channel) = channel
            && known.channels.insert((topic.clone(), channel.clone()))
        {
            self.entries += add_key(self.channels.entry(topic.clone()).or_default(), channel);
            self.channels.get_mut(topic).and_then(|of| of.get_mut(channel)).expect("added").insert(peer, Producer::default());
            self.entries += 1;
        }
        if known.topics.insert(topic.clone()) {
            self.entries += add_key(&mut self.topics, topic);
            self.topics.get_mut(topic).expect("it was added").insert(peer, Producer::default());
            self.entries += 1;
        }
        Ok(())
    }

    /// The node has no such topic any more, with all its channels; or only no such channel.
    pub fn unregister(&mut self, peer: PeerId, topic: &Name, channel: Option<&Name>) {
        let Some(known) = self.peers.get_mut(&peer) else { return };
        match channel {
            Some(channel) => {
                if known.channels.remove(&(topic.clone(), channel.clone())) {
                    self.leave_channel(peer, topic, channel);
                }
            }
            None => {
                let gone: Vec<_> = known.channels.iter().filter(|(of, _)| of == topic).cloned().collect();
                gone.iter().for_each(|pair| {
                    known.channels.remove(pair);
                });
                let had_topic = known.topics.remove(topic);
                gone.iter().for_each(|(topic, channel)| self.leave_channel(peer, topic, channel));
                if had_topic {
                    self.leave_topic(peer, topic);
                }
            }
        }
    }

    /// The node's connection is gone.
    pub fn disconnect(&mut self, peer: PeerId) {
        let Some(known) = self.peers.remove(&peer) else { return };
        known.channels.iter().for_each(|(topic, channel)| self.leave_channel(peer, topic, channel));
        known.topics.iter().for_each(|topic| self.leave_topic(peer, topic));
    }

    fn leave_topic(&mut self, peer: PeerId, topic: &Name) {
        let Some(producers) = self.topics.get_mut(topic) else { return };
        self.entries -= producers.remove(&peer).map_or(0, |_| 1);
        if producers.is_empty() && topic.is_ephemeral() {
            self.topics.remove(topic);
            self.entries -= 1;
        }
    }

    fn leave_channel(&mut self, peer: PeerId, topic: &Name, channel: &Name) {
        let Some(of_topic) = self.channels.get_mut(topic) else { return };
        let Some(producers) = of_topic.get_mut(channel) else { return };
        self.entries -= producers.remove(&peer).map_or(0, |_| 1);
        if producers.is_empty() && channel.is_ephemeral() {
            of_topic.remove(channel);
            self.entries -= 1;
            if of_topic.is_empty() {
                self.channels.remove(topic);
            }
        }
    }

    // ---- requests of operators

    /// A topic that no node needs to have.
    pub fn create_topic(&mut self, topic: &Name) -> Result<(), Full> {
        self.room_for(1)?;
        self.entries += add_key(&mut self.topics, topic);
        Ok(())
    }

    /// A channel, and its topic, that no node needs to have.
    pub fn create_channel(&mut self, topic: &Name, channel: &Name) -> Result<(), Full> {
        self.room_for(2)?;
        self.entries += add_key(self.channels.entry(topic.clone()).or_default(), channel);
        self.create_topic(topic)
    }

    /// Forgets the topic, with its channels and their producers, until a node registers it again.
    pub fn delete_topic(&mut self, wanted: TopicFilter<'_>) {
        let channels = self.channels.extract_if(.., |topic, _| wanted.matches(topic));
        let gone: usize = channels.map(|(_, of)| of.values().map(|producers| 1 + producers.len()).sum::<usize>()).sum();
        let topics = self.topics.extract_if(.., |topic, _| wanted.matches(topic));
        let gone = gone + topics.map(|(_, producers)| 1 + producers.len()).sum::<usize>();
        self.entries -= gone;
        for peer in self.peers.values_mut() {
            peer.topics.retain(|topic| !wanted.matches(topic));
            peer.channels.retain(|(topic, _)| !wanted.matches(topic));
        }
    }

    /// The channel is forgotten; `false` when it was not known.
    pub fn delete_channel(&mut self, topic: &Name, channel: &Name) -> bool {
        let Some(of_topic) = self.channels.get_mut(topic) else { return false };
        let Some(producers) = of_topic.remove(channel) else { return false };
        if of_topic.is_empty() {
            self.channels.remove(topic);
        }
        self.entries -= 1 + producers.len();
        let pair = (topic.clone(), channel.clone());
        for id in producers.keys() {
            self.peers.get_mut(id).expect("a producer is a peer").channels.remove(&pair);
        }
        true
    }

    /// /lookup names the node (`broadcast address:HTTP port`) no more for this topic, until the tombstone's life ends or the node
    /// registers it after it was unregistered.
    pub fn tombstone(&mut self, wanted: TopicFilter<'_>, node: &str, now: Now) {
        for (_, producers) in self.topics.iter_mut().filter(|(topic, _)| wanted.matches(topic)) {
            for (id, producer) in producers {
                let info = &self.peers[id].info;
                if format!("{}:{}", info.broadcast_address, info.http_port) == node {
                    producer.tombstoned = Some(now);
                }
            }
        }
    }

    fn room_for(&self, entries: usize) -> Result<(), Full> {
        let entries_max = self.limits.entries_max;
        if self.entries + entries > entries_max { Err(Full { entries_max }) } else { Ok(()) }
    }

    // ---- lookups

    pub fn topics(&self) -> Vec<&str> {
        self.topics.keys().map(Name::as_str).collect()
    }

    /// A name that several topics have stands here several times, when all are asked for.
    pub fn channels(&self, wanted: TopicFilter<'_>) -> Vec<&str> {
        let of_topic = self.channels.iter().filter(|(topic, _)| wanted.matches(topic));
        of_topic.flat_map(|(_, channels)| channels.keys().map(Name::as_str)).collect()
    }

    /// Producers of the topic that are active and not tombstoned for it. `None`: there is no such topic.
    pub fn lookup(&self, wanted: TopicFilter<'_>, now: Now) -> Option<Lookup<'_>> {
        let mut found = self.topics.iter().filter(|(topic, _)| wanted.matches(topic)).peekable();
        found.peek()?;
        // A node that has several of the topics stands in the answer once.
        let mut producers = Producers::new();
        found.for_each(|(_, of_topic)| {
            of_topic.iter().for_each(|(id, producer)| {
                producers.entry(*id).or_insert(*producer);
            })
        });
        let shown = producers.iter().filter(|(id, producer)| self.is_active(**id, now) && !self.is_buried(producer, now));
        let producers = shown.map(|(id, _)| &self.peers[id].info).collect();
        Some(Lookup { channels: self.channels(wanted), producers })
    }

    /// All active nodes, tombstoned ones included.
    pub fn nodes(&self, now: Now) -> Vec<Node<'_>> {
        let active = self.peers.iter().filter(|(id, _)| self.is_active(**id, now));
        let row = |(id, peer): (&PeerId, &'_ Peer)| {
            peer.topics.iter().map(|topic| self.is_buried(&self.topics[topic][id], now)).collect()
        };
        active
            .map(|(id, peer)| Node {
                info: &peer.info,
                tombstones: row((id, peer)),
                topics: peer.topics.iter().map(Name::as_str).collect(),
            })
            .collect()
    }

    /// Every registration, by `category:topic:channel`; names without producers are left out.
    pub fn debug(&self) -> BTreeMap<String, Vec<DebugRow<'_>>> {
        let rows = |producers: &Producers| producers.iter().map(|(id, p)| self.entry(*id, p.tombstoned)).collect::<Vec<_>>();
        let clients = ("client::".to_owned(), self.peers.keys().map(|id| self.entry(*id, None)).collect());
        let topics = self.topics.iter().map(|(topic, producers)| (format!("topic:{}:", topic.as_str()), rows(producers)));
        let channels = self.channels.iter().flat_map(|(topic, channels)| {
            let key = |channel: &Name| format!("channel:{}:{}", topic.as_str(), channel.as_str());
            channels.iter().map(move |(channel, producers)| (key(channel), rows(producers)))
        });
        std::iter::once(clients).chain(topics).chain(channels).filter(|(_, rows): &(_, Vec<_>)| !rows.is_empty()).collect()
    }

    fn entry(&self, id: PeerId, tombstoned: Option<Now>) -> DebugRow<'_> {
        let Peer { info, last_update, .. } = &self.peers[&id];
        DebugRow {
            broadcast_address: &info.broadcast_address,
            hostname: &info.hostname,
            http_port: info.http_port,
            id: &info.remote_address,
            last_update: last_update.unix_ns,
            tcp_port: info.tcp_port,
            tombstoned: tombstoned.is_some(),
            tombstoned_at: tombstoned.map_or(NEVER_UNIX_NS, |at| at.unix_ns),
            topology_region: &info.topology_region,
            topology_zone: &info.topology_zone,
            version: &info.version,
        }
    }

    fn is_active(&self, id: PeerId, now: Now) -> bool {
        let silent = now.elapsed.saturating_sub(self.peers[&id].last_update.elapsed);
        silent <= self.limits.inactive_producer_timeout
    }

    fn is_buried(&self, producer: &Producer, now: Now) -> bool {
        producer.tombstoned.is_some_and(|at| now.elapsed.saturating_sub(at.elapsed) < self.limits.tombstone_lifetime)
    }
}

/// Answers how many keys were added: 0 when it was there.
fn add_key(map: &mut BTreeMap<Name, Producers>, name: &Name) -> usize {
    if map.contains_key(name) {
        return 0;
    }
    map.insert(name.clone(), Producers::new());
    1
}
