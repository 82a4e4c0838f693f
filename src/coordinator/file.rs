//! The cluster file of an operator, read and checked. docs/cluster-file.md has its fields as a table, and docs/cluster.example.toml is
//! one that a test reads.
//!
//! Nothing in it is guessed: an unknown key, a name that no node has, a list that names somebody twice are errors, each with its line.
//! [`super::change`] judges the changes from one version to the next.

use crate::base::{Epoch, PartitionId, TopicId, TopicInfo, TopicName, TopicRef};
use crate::seam::membership::REPLICAS_MAX;
use crate::{base::NodeId, seam::membership::Membership};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use toml::Spanned;

/// A longer file is not read.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// A partition's metadata version is the file's, and below it so many bits for the openings of its leader.
pub const OPENINGS_BITS: u32 = 20;
/// Versions leave room for the openings.
pub const VERSION_MAX: u64 = u64::MAX >> OPENINGS_BITS;
/// Largest value of the file's part of an epoch.
pub use crate::seam::membership::FILE_EPOCH_MAX as EPOCH_MAX;

/// A cluster file that holds together. Equal ones say the same, in whatever order they say it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterFile {
    pub cluster_id: [u8; 16],
    /// 1 to [`VERSION_MAX`].
    pub version: u64,
    /// Nodes, ordered by name.
    pub nodes: Vec<FileNode>,
    /// Topics, ordered by name.
    pub topics: Vec<FileTopic>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileNode {
    pub name: Arc<str>,
    pub id: NodeId,
    /// host:port
    pub peer_address: Arc<str>,
    pub native_address: Option<Arc<str>>,
    pub tcp_address: Option<Arc<str>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileTopic {
    pub info: TopicRef,
    /// Partitions by number, as many as `info` says.
    pub partitions: Vec<FilePartition>,
}

/// Lists are sorted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilePartition {
    /// 1 to [`REPLICAS_MAX`].
    pub replicas: Vec<NodeId>,
    /// Ids of the in-sync replicas, at least one.
    pub isr: Vec<NodeId>,
    /// Leader, a member of the ISR.
    pub leader: Option<NodeId>,
    /// 1 to [`EPOCH_MAX`].
    pub epoch: u64,
    /// 1 to the number of replicas.
    pub min_isr: usize,
}

/// Fault of a file, with the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadFile {
    /// Line number, from 1.
    pub line: usize,
    pub what: String,
}

impl ClusterFile {
    pub fn node(&self, id: NodeId) -> Option<&FileNode> {
        self.nodes.iter().find(|n| n.id == id)
    }

    pub fn topic(&self, name: &TopicName) -> Option<&FileTopic> {
        self.topics.binary_search_by(|t| t.info.name.cmp(name)).ok().map(|i| &self.topics[i])
    }

    pub fn topic_by_id(&self, id: TopicId) -> Option<&FileTopic> {
        self.topics.iter().find(|t| t.info.id == id)
    }

    /// Names of nodes as the file has them, for log lines.
    pub fn names<'a>(&'a self, ids: &'a [NodeId]) -> Names<'a> {
        Names { file: self, ids }
    }

    /// A node's name, or its id when the file does not name it.
    pub fn name(&self, id: NodeId) -> String {
        self.node(id).map_or_else(|| id.to_string(), |n| n.name.to_string())
    }
}

impl ClusterFile {
    /// Partitions that take no publish as the file has them, a sentence each.
    pub fn resting(&self) -> Vec<String> {
        let mut resting = Vec::new();
        for topic in &self.topics {
            for (number, p) in topic.partitions.iter().enumerate() {
                let why = match p.leader {
                    None => "nobody leads".to_owned(),
                    Some(_) if p.isr.len() < p.min_isr => format!("isr has {} nodes, min_isr is {}", p.isr.len(), p.min_isr),
                    Some(_) => continue,
                };
                resting.push(format!("partition {number} of topic {}: {why}", topic.info.name));
            }
        }
        resting
    }
}

/// `["a", "b"]`, as it stands in the file.
pub struct Names<'a> {
    file: &'a ClusterFile,
    ids: &'a [NodeId],
}

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names: Vec<String> = self.ids.iter().map(|id| self.file.name(*id)).collect();
        names.sort_unstable();
        f.debug_list().entries(names).finish()
    }
}

impl FileTopic {
    pub fn partition(&self, partition: PartitionId) -> Option<&FilePartition> {
        self.partitions.get(partition.0 as usize)
    }
}

impl FilePartition {
    pub fn membership(&self, version: u64, epoch: Epoch) -> Membership {
        Membership { isr: self.isr.clone(), ..Membership::new(version, epoch, self.leader, self.replicas.clone(), self.min_isr) }
    }
}

// ---- content of the file

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    cluster_id: Spanned<String>,
    version: Spanned<u64>,
    #[serde(default)]
    node: Vec<RawNode>,
    #[serde(default)]
    topic: Vec<RawTopic>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: Spanned<String>,
    id: Spanned<String>,
    peer_address: Spanned<String>,
    native_address: Option<Spanned<String>>,
    tcp_address: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTopic {
    name: Spanned<String>,
    id: Spanned<String>,
    partitions: Spanned<u64>,
    min_isr: Option<Spanned<u64>>,
    #[serde(default)]
    partition: Vec<RawPartition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPartition {
    number: Spanned<u64>,
    replicas: Spanned<Vec<Spanned<String>>>,
    isr: Spanned<Vec<Spanned<String>>>,
    leader: Option<Spanned<String>>,
    epoch: Spanned<u64>,
}

/// Reads the file's text.
pub fn parse(text: &str) -> Result<ClusterFile, BadFile> {
    let reader = Reader { text };
    let raw: RawFile = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(text.len(), |span| span.start);
        BadFile { line: reader.line(at), what: e.message().trim().replace('\n', " ") }
    })?;
    reader.file(raw)
}

struct Reader<'a> {
    text: &'a str,
}

type NodesByName = BTreeMap<String, NodeId>;

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        before.iter().filter(|b| **b == b'\n').count() + 1
    }

    fn bad<T>(&self, at: &Spanned<T>, what: impl Into<String>) -> BadFile {
        BadFile { line: self.line(at.span().start), what: what.into() }
    }

    fn file(&self, raw: RawFile) -> Result<ClusterFile, BadFile> {
        let cluster_id = self.id(&raw.cluster_id, "cluster_id")?;
        let version = *raw.version.get_ref();
        if !(1..=VERSION_MAX).contains(&version) {
            return Err(self.bad(&raw.version, format!("version {version}: versions are 1 to {VERSION_MAX}")));
        }
        let nodes = self.nodes(raw.node)?;
        let by_name: NodesByName = nodes.iter().map(|n| (n.name.to_string(), n.id)).collect();
        let mut topics: Vec<FileTopic> = Vec::new();
        for raw in raw.topic {
            let (name, id) = (raw.name.clone(), raw.id.clone());
            let topic = self.topic(raw, &by_name)?;
            if topics.iter().any(|t| t.info.name == topic.info.name) {
                return Err(self.bad(&name, format!("topic {} stands in the file twice", topic.info.name)));
            }
            if let Some(other) = topics.iter().find(|t| t.info.id == topic.info.id) {
                let what = format!("topics {} and {} have the same id: each has its own", other.info.name, topic.info.name);
                return Err(self.bad(&id, what));
            }
            topics.push(topic);
        }
        topics.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        Ok(ClusterFile { cluster_id, version, nodes, topics })
    }

    fn nodes(&self, raw: Vec<RawNode>) -> Result<Vec<FileNode>, BadFile> {
        let mut nodes: Vec<FileNode> = Vec::new();
        for raw in raw {
            let name = raw.name.get_ref().as_str();
            if TopicName::new(name).is_err() || name.contains('#') {
                return Err(self.bad(&raw.name, format!("node name {name:?}: 1 to 64 characters of . a-z A-Z 0-9 _ -")));
            }
            let id = NodeId(self.id(&raw.id, "a node's id")?);
            let address = &*self.address(&raw.peer_address, "peer_address")?;
            let for_clients = |raw: &Option<Spanned<String>>, key| raw.as_ref().map(|a| self.address(a, key)).transpose();
            let native_address = for_clients(&raw.native_address, "native_address")?;
            let tcp_address = for_clients(&raw.tcp_address, "tcp_address")?;
            for other in &nodes {
                let (place, what) = if &*other.name == name {
                    (&raw.name, "name")
                } else if other.id == id {
                    (&raw.id, "id (ringmq node-id prints that of a data path)")
                } else if &*other.peer_address == address {
                    (&raw.peer_address, "peer_address")
                } else {
                    continue;
                };
                return Err(self.bad(place, format!("nodes {} and {name} have the same {what}: each has its own", other.name)));
            }
            nodes.push(FileNode { name: name.into(), id, peer_address: address.into(), native_address, tcp_address });
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    fn address(&self, raw: &Spanned<String>, key: &str) -> Result<Arc<str>, BadFile> {
        let address = raw.get_ref().as_str();
        if is_address(address) {
            return Ok(address.into());
        }
        Err(self.bad(raw, format!("{key} {address:?}: host:port is expected, such as \"10.0.0.1:4170\"")))
    }

    fn topic(&self, raw: RawTopic, nodes: &NodesByName) -> Result<FileTopic, BadFile> {
        let name = TopicName::new(raw.name.get_ref());
        let name = name.map_err(|e| self.bad(&raw.name, format!("topic {:?}: {e}", raw.name.get_ref())))?;
        if name.is_ephemeral() {
            return Err(self.bad(&raw.name, format!("topic {name}: ephemeral topics are not replicated")));
        }
        let id = TopicId(self.id(&raw.id, "a topic's id")?);
        let count = *raw.partitions.get_ref();
        if !(1..=PartitionId::COUNT_MAX as u64).contains(&count) {
            let what = format!("topic {name}: {count} partitions, 1 to {} are possible", PartitionId::COUNT_MAX);
            return Err(self.bad(&raw.partitions, what));
        }
        let mut partitions: Vec<Option<FilePartition>> = vec![None; count as usize];
        for raw_partition in raw.partition {
            let number = *raw_partition.number.get_ref();
            let place = raw_partition.number.clone();
            let partition = self.partition(&name, raw_partition, raw.min_isr.as_ref(), nodes)?;
            match partitions.get_mut(number as usize) {
                None => {
                    let what = format!("partition {number} of topic {name}, which has those from 0 to {}", count - 1);
                    return Err(self.bad(&place, what));
                }
                Some(Some(_)) => return Err(self.bad(&place, format!("partition {number} of topic {name} stands there twice"))),
                Some(none) => *none = Some(partition),
            }
        }
        if let Some(missing) = partitions.iter().position(Option::is_none) {
            let what =
                format!("topic {name} has {count} partitions, and there is no [[topic.partition]] with number = {missing}");
            return Err(self.bad(&raw.name, what));
        }
        let info = Arc::new(TopicInfo { name, id, partitions: count as u16 });
        Ok(FileTopic { info, partitions: partitions.into_iter().flatten().collect() })
    }

    fn partition(
        &self,
        topic: &TopicName,
        raw: RawPartition,
        min_isr: Option<&Spanned<u64>>,
        nodes: &NodesByName,
    ) -> Result<FilePartition, BadFile> {
        let of = format!("partition {} of topic {topic}", raw.number.get_ref());
        let replicas = self.list(&raw.replicas, "replicas", &of, nodes)?;
        let isr = self.list(&raw.isr, "isr", &of, nodes)?;
        if replicas.is_empty() || replicas.len() > REPLICAS_MAX {
            return Err(self.bad(&raw.replicas, format!("{of}: {} replicas, 1 to {REPLICAS_MAX} are possible", replicas.len())));
        }
        if isr.is_empty() {
            let what = format!(
                "{of}: an empty isr; keep the nodes with all acknowledged messages in it, without a leader if the partition must not serve"
            );
            return Err(self.bad(&raw.isr, what));
        }
        for name in raw.isr.get_ref() {
            if !replicas.contains(&nodes[name.get_ref()]) {
                let what = format!("{of}: {} is in the isr and not among the replicas", name.get_ref());
                return Err(self.bad(name, what));
            }
        }
        let leader = match &raw.leader {
            None => None,
            Some(name) => {
                let id = self.known(name, "leader", &of, nodes)?;
                if !isr.contains(&id) {
                    let what = format!(
                        "{of}: leader {} is not in the isr; only a node with all acknowledged messages may lead",
                        name.get_ref()
                    );
                    return Err(self.bad(name, what));
                }
                Some(id)
            }
        };
        let epoch = *raw.epoch.get_ref();
        if !(1..=EPOCH_MAX).contains(&epoch) {
            return Err(self.bad(&raw.epoch, format!("{of}: epoch {epoch}, epochs are 1 to {EPOCH_MAX}")));
        }
        let asked = min_isr.map(|m| *m.get_ref());
        let wanted = asked.unwrap_or(replicas.len() as u64 / 2 + 1);
        if let Some(place) = min_isr
            && !(1..=replicas.len() as u64).contains(&wanted)
        {
            let what = format!("min_isr {wanted}: {of} has {} replicas, so 1 to {} are possible", replicas.len(), replicas.len());
            return Err(self.bad(place, what));
        }
        Ok(FilePartition { replicas, isr, leader, epoch, min_isr: wanted as usize })
    }

    /// Ids, sorted.
    fn list(
        &self,
        raw: &Spanned<Vec<Spanned<String>>>,
        key: &str,
        of: &str,
        nodes: &NodesByName,
    ) -> Result<Vec<NodeId>, BadFile> {
        let mut ids = Vec::new();
        for name in raw.get_ref() {
            let id = self.known(name, key, of, nodes)?;
            if ids.contains(&id) {
                return Err(self.bad(name, format!("{of}: {} stands in its {key} twice", name.get_ref())));
            }
            ids.push(id);
        }
        ids.sort_unstable();
        Ok(ids)
    }

    fn known(&self, name: &Spanned<String>, key: &str, of: &str, nodes: &NodesByName) -> Result<NodeId, BadFile> {
        nodes.get(name.get_ref()).copied().ok_or_else(|| {
            let known: Vec<&str> = nodes.keys().map(String::as_str).collect();
            let what = format!("{of}: no [[node]] has the name {:?} in its {key}; there are {known:?}", name.get_ref());
            self.bad(name, what)
        })
    }

    fn id(&self, text: &Spanned<String>, what: &str) -> Result<[u8; 16], BadFile> {
        match parse_id(text.get_ref()) {
            Some(id) if id != [0; 16] => Ok(id),
            _ => {
                let what = format!("{what} {:?}: 32 hex characters are expected, not all zero", text.get_ref());
                Err(self.bad(text, what))
            }
        }
    }
}

/// 32 hex characters.
pub fn parse_id(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

/// host:port with a port to connect to; an IPv6 address stands in brackets.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_host = match host.strip_prefix('[') {
        Some(v6) => v6.ends_with(']') && v6.len() > 1,
        None => !host.is_empty() && !host.contains([':', '[', ']']) && !host.contains(char::is_whitespace),
    };
    is_host && text.len() <= 255 && port.parse::<u16>().is_ok_and(|port| port > 0)
}
