//! The values of the keys: JSON objects, whose `v` is the version of their form.
//!
//! A reader takes every object of its own version or a lower one and ignores members that it does not know. It refuses a higher version.

use super::keys::parse_id;
use crate::base::{Epoch, NodeId, TopicId, TopicName};
use crate::seam::cluster::TopicProperties;
use crate::seam::membership::{EPOCH_BASE, GivenUp, Membership, REPLICAS_MAX};
use bytes::Bytes;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;

/// Version of the form of all values.
pub const VERSION: u32 = 1;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRecord {
    #[error("the record's version is {found}, and this node knows {VERSION}: a newer node wrote it. Upgrade this node")]
    Newer { found: u32 },
    #[error("{0}")]
    Broken(String),
}

#[derive(Serialize)]
struct Form<'a, T> {
    v: u32,
    #[serde(flatten)]
    record: &'a T,
}

#[derive(Deserialize)]
struct Probe {
    v: u32,
}

pub fn encode<T: Serialize>(record: &T) -> Bytes {
    let form = Form { v: VERSION, record };
    // Maps with keys that are no strings do not occur, and nothing else fails.
    Bytes::from(serde_json::to_vec(&form).expect("records are plain objects"))
}

pub fn decode<T: DeserializeOwned>(value: &[u8]) -> Result<T, BadRecord> {
    let broken = |e: serde_json::Error| BadRecord::Broken(format!("the value has an unexpected form: {e}"));
    let probe: Probe = serde_json::from_slice(value).map_err(broken)?;
    if probe.v > VERSION {
        return Err(BadRecord::Newer { found: probe.v });
    }
    serde_json::from_slice(value).map_err(broken)
}

/// Value of `id`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct ClusterRecord {
    #[serde(with = "one_id")]
    pub id: [u8; 16],
}

/// Value of `node/<id>`: the process that holds the session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct NodeRecord {
    /// The machine; `data_path` is the path on it. A process that holds the lock of the data path knows that another process with the
    /// same two has ended.
    pub machine: String,
    pub data_path: String,
    /// Generation of the node: rises with each of its starts.
    pub start: u64,
    /// Partitions whose replica here lost something that was complete once, and was not compared with another one since.
    #[serde(default)]
    pub suspects: Suspects,
}

/// Suspect replicas of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Suspects {
    /// More replicas than can be listed, or an unknown number.
    All,
    #[default]
    None,
    Some(BTreeSet<(TopicId, u16)>),
}

/// More are not listed.
const SUSPECTS_MAX: usize = 2000;

impl Suspects {
    pub fn of(partitions: BTreeSet<(TopicId, u16)>) -> Suspects {
        match partitions.len() {
            0 => Suspects::None,
            1..=SUSPECTS_MAX => Suspects::Some(partitions),
            _ => Suspects::All,
        }
    }

    pub fn has(&self, partition: (TopicId, u16)) -> bool {
        match self {
            Suspects::All => true,
            Suspects::None => false,
            Suspects::Some(partitions) => partitions.contains(&partition),
        }
    }
}

impl Serialize for Suspects {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let texts: Vec<String> = match self {
            Suspects::All => vec!["*".into()],
            Suspects::None => vec![],
            Suspects::Some(partitions) => partitions.iter().map(|(topic, number)| format!("{topic}/{number:04}")).collect(),
        };
        texts.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Suspects {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        if texts.iter().any(|text| text == "*") {
            return Ok(Suspects::All);
        }
        let one = |text: &String| {
            let (topic, number) = text.split_once('/')?;
            Some((TopicId(parse_id(topic)?), number.parse().ok()?))
        };
        let all: Option<BTreeSet<_>> = texts.iter().map(one).collect();
        all.map(Suspects::of).ok_or_else(|| D::Error::custom("a partition is <topic id>/<number>"))
    }
}

impl NodeRecord {
    /// Whether `other` had the data path that this process has locked.
    pub fn has_place_of(&self, other: &NodeRecord) -> bool {
        self.machine == other.machine && self.data_path == other.data_path
    }
}

/// Value of `member/<id>`: facts about a node that also hold while it is away.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct MemberRecord {
    pub name: String,
    pub peer_address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_address: Option<String>,
    /// Replicas of a partition stand in different zones where that can be had.
    #[serde(default)]
    pub zone: String,
    /// Share of replicas that the node takes, beside others: 100 is an ordinary node's.
    #[serde(default = "capacity_default")]
    pub capacity: u32,
    #[serde(default)]
    pub cores: u32,
    #[serde(default)]
    pub version: String,
    /// Random number of the process that was registered last, which is written with its session. Only its data path has all that was
    /// confirmed as this node. 0: no process was registered, or an operator removed the number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub process: u64,
    /// Revision of the store that the process had seen when it was first registered: later processes have larger ones. 0: like
    /// `process`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub incarnation: u64,
}

fn capacity_default() -> u32 {
    100
}

/// Value of `drain/<id>`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct DrainRecord {}

/// Value of `load/<id>`: rate of publishes to the partitions that a node leads.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct LoadRecord {
    pub kib_per_s: u32,
    /// Partitions that take most, the busiest first.
    #[serde(default)]
    pub busiest: Vec<PartitionLoad>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct PartitionLoad {
    #[serde(with = "one_id")]
    pub topic: TopicId,
    pub partition: u16,
    pub kib_per_s: u32,
}

/// Value of `ctl`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct ControllerRecord {
    #[serde(with = "one_id")]
    pub node: NodeId,
}

/// Value of `topic/<name>`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct TopicRecord {
    #[serde(with = "one_id")]
    pub id: TopicId,
    pub partitions: u16,
    /// Wanted replicas of each partition.
    pub replicas: u8,
    /// Number of in-sync replicas that a write to the topic's partitions needs.
    pub min_isr: u8,
    /// Partitions from this number on were added later. `None`: the topic has as many as at its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown_from: Option<u16>,
    /// Channels with which the partitions that were added begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<String>,
    #[serde(flatten)]
    pub properties: TopicProperties,
}

impl TopicRecord {
    /// A topic as it is created.
    pub fn new(id: TopicId, partitions: u16, replicas: u8, min_isr: u8, properties: TopicProperties) -> TopicRecord {
        TopicRecord { id, partitions, replicas, min_isr, grown_from: None, channels: vec![], properties }
    }
}

/// A leader: a node in one session.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Leader {
    #[serde(with = "one_id")]
    pub node: NodeId,
    pub session: u64,
}

/// The writer of a record, and the number of the write. A writer that does not know the outcome of a write finds it by this.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug, Default)]
pub struct Tag {
    pub session: u64,
    pub number: u64,
}

/// Value of `part/<topic id>/<0000>`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct PartitionRecord {
    /// Rises with each leader. [`store_epoch`] makes an [`Epoch`] of it.
    pub epoch: u64,
    pub leader: Option<Leader>,
    #[serde(with = "many_ids")]
    pub replicas: Vec<NodeId>,
    #[serde(with = "many_ids")]
    pub isr: Vec<NodeId>,
    pub min_isr: u8,
    /// Node to which the leader hands over, once nothing of its own is open.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe_id")]
    pub wanted: Option<NodeId>,
    /// Former leader whose lease may still hold; the leader delivers nothing before that lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<Leader>,
    /// Replica that an operator moves elsewhere: it goes when enough others are in sync.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe_id")]
    pub leaving: Option<NodeId>,
    /// Number of replicas that were ever removed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub removals: u64,
    /// Loss that an operator accepted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<GivenUpRecord>,
    pub tag: Tag,
}

/// [`GivenUp`] in a record.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct GivenUpRecord {
    /// Epoch of the partition, as in [`PartitionRecord::epoch`].
    pub epoch: u64,
    /// Last epoch of the log, with all bits, as text: a stand-alone node or a static file may have given it.
    #[serde(with = "epoch_text")]
    pub last_epoch: Epoch,
    pub end: i64,
}

impl GivenUpRecord {
    /// `None`: the epoch is not of the store.
    pub fn of(loss: &GivenUp) -> Option<GivenUpRecord> {
        let epoch = loss.epoch.0.checked_sub(EPOCH_BASE)?;
        Some(GivenUpRecord { epoch, last_epoch: loss.last_epoch, end: loss.end })
    }

    fn given_up(self) -> GivenUp {
        GivenUp { epoch: store_epoch(self.epoch), last_epoch: self.last_epoch, end: self.end }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl PartitionRecord {
    /// A partition whose replicas are all in sync.
    pub fn new(epoch: u64, leader: Option<Leader>, replicas: Vec<NodeId>, min_isr: u8) -> PartitionRecord {
        PartitionRecord {
            epoch,
            leader,
            isr: replicas.clone(),
            replicas,
            min_isr,
            wanted: None,
            former: None,
            leaving: None,
            removals: 0,
            given_up: None,
            tag: Tag::default(),
        }
    }

    /// Whether a node could work with it.
    pub fn is_sane(&self) -> bool {
        let once = |list: &[NodeId]| list.iter().enumerate().all(|(i, n)| !list[..i].contains(n));
        let is_replica = |n: &NodeId| self.replicas.contains(n);
        (1..=REPLICAS_MAX).contains(&self.replicas.len())
            && self.epoch < EPOCH_BASE
            && self.min_isr >= 1
            && once(&self.replicas)
            && once(&self.isr)
            && self.isr.iter().all(is_replica)
            && self.leader.is_none_or(|l| self.isr.contains(&l.node))
    }

    /// The membership for the replicas. `lost`: this node leads in another session than its own.
    pub fn membership(&self, mod_revision: u64, lost: bool) -> Membership {
        Membership {
            version: mod_revision << 1 | lost as u64,
            epoch: store_epoch(self.epoch),
            leader: self.leader.map(|l| l.node).filter(|_| !lost),
            replicas: self.replicas.clone(),
            isr: self.isr.clone(),
            joining: vec![],
            min_isr: self.min_isr.max(1) as usize,
            wanted: self.wanted,
            former: self.former.map(|l| l.node),
            removals: self.removals,
            given_up: self.given_up.map(GivenUpRecord::given_up),
        }
    }
}

pub fn store_epoch(number: u64) -> Epoch {
    Epoch(EPOCH_BASE | number)
}

/// Value of `gone/<topic id>`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct GoneRecord {
    #[serde(with = "topic_name")]
    pub name: TopicName,
    pub partitions: u16,
}

// ---- ids as text

/// 128 bits that have a text.
pub trait Id: Copy {
    fn of(bits: [u8; 16]) -> Self;
    fn bits(&self) -> [u8; 16];
}

impl Id for [u8; 16] {
    fn of(bits: [u8; 16]) -> Self {
        bits
    }
    fn bits(&self) -> [u8; 16] {
        *self
    }
}

impl Id for NodeId {
    fn of(bits: [u8; 16]) -> Self {
        NodeId(bits)
    }
    fn bits(&self) -> [u8; 16] {
        self.0
    }
}

impl Id for TopicId {
    fn of(bits: [u8; 16]) -> Self {
        TopicId(bits)
    }
    fn bits(&self) -> [u8; 16] {
        self.0
    }
}

fn text_of(id: &impl Id) -> String {
    NodeId(id.bits()).to_string()
}

fn id_of<I: Id, E: serde::de::Error>(text: &str) -> Result<I, E> {
    parse_id(text).map(I::of).ok_or_else(|| E::custom(format!("{text:?}: 32 lower-case hex characters are expected")))
}

mod one_id {
    use super::*;

    pub fn serialize<S: Serializer>(id: &impl Id, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text_of(id))
    }

    pub fn deserialize<'de, I: Id, D: Deserializer<'de>>(from: D) -> Result<I, D::Error> {
        id_of(&String::deserialize(from)?)
    }
}

mod many_ids {
    use super::*;

    pub fn serialize<S: Serializer>(ids: &[impl Id], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(ids.iter().map(text_of))
    }

    pub fn deserialize<'de, I: Id, D: Deserializer<'de>>(from: D) -> Result<Vec<I>, D::Error> {
        Vec::<String>::deserialize(from)?.iter().map(|text| id_of(text)).collect()
    }
}

mod maybe_id {
    use super::*;

    pub fn serialize<S: Serializer>(id: &Option<impl Id>, to: S) -> Result<S::Ok, S::Error> {
        id.as_ref().map(text_of).serialize(to)
    }

    pub fn deserialize<'de, I: Id, D: Deserializer<'de>>(from: D) -> Result<Option<I>, D::Error> {
        Option::<String>::deserialize(from)?.map(|text| id_of(&text)).transpose()
    }
}

mod epoch_text {
    use super::*;

    pub fn serialize<S: Serializer>(epoch: &Epoch, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&epoch.0.to_string())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Epoch, D::Error> {
        String::deserialize(from)?.parse().map(Epoch).map_err(D::Error::custom)
    }
}

mod topic_name {
    use super::*;

    pub fn serialize<S: Serializer>(name: &TopicName, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(name)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TopicName, D::Error> {
        TopicName::new(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition() -> PartitionRecord {
        let n = |b| NodeId([b; 16]);
        PartitionRecord {
            isr: vec![n(1)],
            tag: Tag { session: 90, number: 3 },
            ..PartitionRecord::new(7, Some(Leader { node: n(1), session: 90 }), vec![n(1), n(2)], 1)
        }
    }

    #[test]
    fn the_form_of_a_partition_is_frozen() {
        let text = concat!(
            r#"{"v":1,"epoch":7,"leader":{"node":"01010101010101010101010101010101","session":90},"#,
            r#""replicas":["01010101010101010101010101010101","02020202020202020202020202020202"],"#,
            r#""isr":["01010101010101010101010101010101"],"min_isr":1,"tag":{"session":90,"number":3}}"#
        );
        assert_eq!(encode(&partition()), text);
        assert_eq!(decode::<PartitionRecord>(text.as_bytes()), Ok(partition()));
        let former = Some(Leader { node: NodeId([2; 16]), session: 8 });
        let loss = GivenUp { epoch: store_epoch(6), last_epoch: store_epoch(4), end: 310 };
        let given_up = GivenUpRecord::of(&loss);
        let wanted =
            PartitionRecord { wanted: Some(NodeId([2; 16])), leader: None, former, removals: 3, given_up, ..partition() };
        let text = String::from_utf8(encode(&wanted).to_vec()).unwrap();
        assert!(text.contains(r#""given_up":{"epoch":6,"last_epoch":"9223372036854775812","end":310}"#), "{text}");
        assert_eq!(wanted.membership(5, false).given_up, Some(loss));
        assert_eq!(decode::<PartitionRecord>(&encode(&wanted)), Ok(wanted));
    }

    #[test]
    fn every_record_is_read_back() {
        let topic = TopicRecord::new(TopicId([3; 16]), 4, 3, 2, Default::default());
        let text = r#"{"v":1,"id":"03030303030303030303030303030303","partitions":4,"replicas":3,"min_isr":2}"#;
        assert_eq!(encode(&topic), text, "what is not said is not written");
        assert_eq!(decode(&encode(&topic)), Ok(topic.clone()));
        let properties = TopicProperties { retention_ms: Some(5), ordered: true, max_defer_ms: Some(9), ..Default::default() };
        let kept = TopicRecord { properties, ..topic };
        assert_eq!(decode(&encode(&kept)), Ok(kept));
        let member = MemberRecord { name: "a".into(), peer_address: "h:1".into(), capacity: 100, ..Default::default() };
        assert_eq!(decode(&encode(&member)), Ok(member));
        let gone = GoneRecord { name: TopicName::new("t").unwrap(), partitions: 2 };
        assert_eq!(decode(&encode(&gone)), Ok(gone));
        let cluster = ClusterRecord { id: [0xfe; 16] };
        for suspects in [Suspects::None, Suspects::All, Suspects::of([(TopicId([3; 16]), 7)].into())] {
            let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 4, suspects };
            assert_eq!(decode(&encode(&node)), Ok(node));
        }
        assert_eq!(decode(&encode(&cluster)), Ok(cluster));
        assert_eq!(decode(&encode(&DrainRecord {})), Ok(DrainRecord {}));
        let busiest = vec![PartitionLoad { topic: TopicId([3; 16]), partition: 7, kib_per_s: 90 }];
        let load = LoadRecord { kib_per_s: 100, busiest };
        let text =
            r#"{"v":1,"kib_per_s":100,"busiest":[{"topic":"03030303030303030303030303030303","partition":7,"kib_per_s":90}]}"#;
        assert_eq!(encode(&load), text);
        assert_eq!(decode(&encode(&load)), Ok(load));
        assert_eq!(decode(&encode(&ControllerRecord { node: NodeId([1; 16]) })), Ok(ControllerRecord { node: NodeId([1; 16]) }));
    }

    #[test]
    fn the_process_of_a_member_is_a_number_that_an_older_record_lacks() {
        let member = MemberRecord { name: "a".into(), process: u64::MAX - 1, ..Default::default() };
        assert_eq!(decode(&encode(&member)), Ok(member));
        let older = decode::<MemberRecord>(br#"{"v":1,"name":"a","peer_address":"h:1"}"#).unwrap();
        assert_eq!(older.process, 0);
        assert!(!encode(&older).windows(9).any(|text| text == b"\"process\""));
    }

    #[test]
    fn a_newer_version_is_refused_by_its_name_and_a_new_member_is_ignored() {
        let newer = decode::<TopicRecord>(br#"{"v":2,"whatever":[]}"#).unwrap_err();
        assert_eq!(newer, BadRecord::Newer { found: 2 });
        assert!(newer.to_string().contains("Upgrade this node"));
        let known = br#"{"v":1,"id":"03030303030303030303030303030303","partitions":1,"replicas":1,"min_isr":1,"soon":{"a":1}}"#;
        assert!(decode::<TopicRecord>(known).is_ok());
        for broken in [&b""[..], b"{}", b"[]", br#"{"v":1}"#, br#"{"v":1,"id":"xyz","partitions":1,"replicas":1,"min_isr":1}"#] {
            assert!(matches!(decode::<TopicRecord>(broken), Err(BadRecord::Broken(_))), "{broken:?}");
        }
    }

    #[test]
    fn a_record_that_nobody_can_work_with_is_noticed() {
        let n = |b| NodeId([b; 16]);
        assert!(partition().is_sane());
        assert!(!PartitionRecord { replicas: vec![], isr: vec![], leader: None, ..partition() }.is_sane());
        assert!(!PartitionRecord { isr: vec![n(1), n(3)], ..partition() }.is_sane());
        assert!(!PartitionRecord { leader: Some(Leader { node: n(2), session: 1 }), ..partition() }.is_sane());
        assert!(!PartitionRecord { epoch: 1 << 63, ..partition() }.is_sane());
    }
}
