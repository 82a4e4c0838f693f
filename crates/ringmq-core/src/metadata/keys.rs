//! The names of the keys: [`Layout`] makes and reads them.

use crate::base::{NodeId, TopicId, TopicName};
use bytes::Bytes;

/// A name of a cluster has at most so many characters.
const CLUSTER_LEN_MAX: usize = 64;

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no name of a cluster: 1 to {CLUSTER_LEN_MAX} characters of . a-z A-Z 0-9 _ - are expected")]
pub struct BadClusterName(pub String);

/// A key, without the prefix.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    Id,
    Controller,
    Node(NodeId),
    Member(NodeId),
    Drain(NodeId),
    Load(NodeId),
    Topic(TopicName),
    Partition(TopicId, u16),
    Gone(TopicId),
}

/// The prefix of the keys of all clusters.
pub const ROOT: &str = "/ringmq/";

/// The prefix that all keys of a cluster share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    prefix: String,
}

impl Layout {
    pub fn new(cluster: &str) -> Result<Layout, BadClusterName> {
        let is_plain = cluster.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if cluster.is_empty() || cluster.len() > CLUSTER_LEN_MAX || !is_plain {
            return Err(BadClusterName(cluster.into()));
        }
        Ok(Layout { prefix: format!("{ROOT}{cluster}/") })
    }

    /// Prefix of every key; it is listed and watched.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn key(&self, key: &Key) -> Bytes {
        let prefix = &self.prefix;
        Bytes::from(match key {
            Key::Id => format!("{prefix}id"),
            Key::Controller => format!("{prefix}ctl"),
            Key::Node(id) => format!("{prefix}node/{id}"),
            Key::Member(id) => format!("{prefix}member/{id}"),
            Key::Drain(id) => format!("{prefix}drain/{id}"),
            Key::Load(id) => format!("{prefix}load/{id}"),
            Key::Topic(name) => format!("{prefix}topic/{name}"),
            Key::Partition(topic, number) => format!("{prefix}part/{topic}/{number:04}"),
            Key::Gone(topic) => format!("{prefix}gone/{topic}"),
        })
    }

    /// Prefix of the keys of a topic's partitions.
    pub fn partitions(&self, topic: TopicId) -> Bytes {
        Bytes::from(format!("{}part/{topic}/", self.prefix))
    }

    /// `None`: the key is not one of this version.
    pub fn parse(&self, key: &[u8]) -> Option<Key> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        match rest.split_once('/') {
            None if rest == "id" => Some(Key::Id),
            None if rest == "ctl" => Some(Key::Controller),
            Some(("node", id)) => Some(Key::Node(NodeId(parse_id(id)?))),
            Some(("member", id)) => Some(Key::Member(NodeId(parse_id(id)?))),
            Some(("drain", id)) => Some(Key::Drain(NodeId(parse_id(id)?))),
            Some(("load", id)) => Some(Key::Load(NodeId(parse_id(id)?))),
            Some(("topic", name)) => Some(Key::Topic(TopicName::new(name).ok()?)),
            Some(("gone", id)) => Some(Key::Gone(TopicId(parse_id(id)?))),
            Some(("part", rest)) => {
                let (id, number) = rest.split_once('/')?;
                let is_number = number.len() == 4 && number.bytes().all(|b| b.is_ascii_digit());
                Some(Key::Partition(TopicId(parse_id(id)?), number.parse().ok().filter(|_| is_number)?))
            }
            _ => None,
        }
    }
}

/// 32 lower-case hex characters.
pub fn parse_id(text: &str) -> Option<[u8; 16]> {
    let mut id = [0; 16];
    if text.len() != 32 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, at) in id.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_back_and_nothing_else_is() {
        let layout = Layout::new("main").unwrap();
        let (node, topic) = (NodeId([0xa1; 16]), TopicId([7; 16]));
        let keys = [
            (Key::Id, "/ringmq/main/id"),
            (Key::Controller, "/ringmq/main/ctl"),
            (Key::Node(node), "/ringmq/main/node/a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1"),
            (Key::Member(node), "/ringmq/main/member/a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1"),
            (Key::Drain(node), "/ringmq/main/drain/a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1"),
            (Key::Load(node), "/ringmq/main/load/a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1"),
            (Key::Topic(TopicName::new("a.b").unwrap()), "/ringmq/main/topic/a.b"),
            (Key::Partition(topic, 42), "/ringmq/main/part/07070707070707070707070707070707/0042"),
            (Key::Gone(topic), "/ringmq/main/gone/07070707070707070707070707070707"),
        ];
        for (key, text) in keys {
            assert_eq!(layout.key(&key), text);
            assert_eq!(layout.parse(text.as_bytes()), Some(key));
        }
        assert!(layout.key(&Key::Partition(topic, 42)).starts_with(&layout.partitions(topic)));
        for other in ["/ringmq/other/id", "/ringmq/main/", "/ringmq/main/id/", "/ringmq/main/node/A1", "/ringmq/main/topic/a b"] {
            assert_eq!(layout.parse(other.as_bytes()), None, "{other}");
        }
        for number in ["42", "+042", "00042", ""] {
            let key = format!("/ringmq/main/part/{topic}/{number}");
            assert_eq!(layout.parse(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn a_name_of_a_cluster_leaves_its_prefix_alone() {
        for bad in ["", "a/b", "a b", &"n".repeat(65)] {
            assert!(Layout::new(bad).is_err(), "{bad}");
        }
    }
}
