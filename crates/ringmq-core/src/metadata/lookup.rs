//! nsqlookupd's answers for a whole cluster, from a node's view of the metadata: the leaders of a topic's partitions, the topics, the
//! nodes.
//!
//! The metadata has no channels: a [`TopicLookup`] names the nodes that have them, and takes them for its JSON.

use super::record::MemberRecord;
use super::summary::has_no_leader;
use super::view::{Entry, Topic, View};
use crate::base::NodeId;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Use that a client wants to make of a topic's partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Access {
    #[default]
    Read,
    /// Only the partitions that take publishes.
    Write,
}

impl Access {
    pub fn of(word: &str) -> Option<Access> {
        match word {
            "" | "r" => Some(Access::Read),
            "w" => Some(Access::Write),
            _ => None,
        }
    }
}

/// A node as lookups name it; the order of the fields is that of the JSON.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct Producer {
    pub id: String,
    pub remote_address: String,
    pub hostname: String,
    pub broadcast_address: String,
    pub tcp_port: u16,
    pub http_port: u16,
    pub version: String,
    pub distributed_id: String,
}

impl Producer {
    /// The producer of a node. `None`: the node has no address for clients. `version`: the version of the nsqd whose protocol the node
    /// speaks.
    fn of(id: NodeId, member: &MemberRecord, version: &str) -> Option<Producer> {
        let (host, tcp_port) = split(member.tcp_address.as_deref()?)?;
        Some(Producer {
            id: id.to_string(),
            remote_address: member.tcp_address.clone()?,
            hostname: member.name.clone(),
            broadcast_address: host.to_owned(),
            tcp_port,
            http_port: member.http_address.as_deref().and_then(split).map_or(0, |(_, port)| port),
            version: version.to_owned(),
            distributed_id: id.to_string(),
        })
    }
}

/// Host and port. An IPv6 address loses its brackets.
fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((bare, port.parse().ok()?))
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
struct Meta {
    partition_num: u16,
    replica: u8,
    extend_support: bool,
    ordered: bool,
    multi_part: bool,
    disable_channel_auto_create: bool,
}

impl Meta {
    fn of(topic: &Topic) -> Meta {
        Meta {
            partition_num: topic.record.partitions,
            replica: topic.record.replicas,
            extend_support: false,
            ordered: topic.record.properties.ordered,
            // A node may always have several of them.
            multi_part: true,
            disable_channel_auto_create: topic.record.properties.channels_by_operator,
        }
    }
}

/// A topic, and the leaders of its partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicLookup {
    meta: Meta,
    leaders: BTreeMap<u16, NodeId>,
    producers: BTreeMap<NodeId, Producer>,
    http_addresses: BTreeMap<NodeId, String>,
}

/// A topic that was not deleted.
fn topic<'a>(view: &'a View, name: &str) -> Option<&'a Entry<Topic>> {
    view.topic(name).filter(|e| view.gone(e.value.info.id).is_none())
}

fn leaders<'a>(view: &'a View, topic: &Topic, access: Access) -> impl Iterator<Item = (u16, NodeId)> + use<'a> {
    view.partitions_of(topic.info.id).filter_map(move |(number, entry)| {
        let record = &entry.value;
        let is_wanted = access == Access::Read || record.isr.len() >= usize::from(record.min_isr);
        let leader = record.leader.filter(|_| is_wanted && !has_no_leader(view, record))?;
        Some((number, leader.node))
    })
}

impl TopicLookup {
    /// `partition`: only this one. `None`: there is no such topic.
    pub fn of(view: &View, name: &str, partition: Option<u16>, access: Access, version: &str) -> Option<TopicLookup> {
        let topic = &topic(view, name)?.value;
        let mut found = TopicLookup {
            meta: Meta::of(topic),
            leaders: BTreeMap::new(),
            producers: BTreeMap::new(),
            http_addresses: BTreeMap::new(),
        };
        for (number, node) in leaders(view, topic, access).filter(|(number, _)| partition.is_none_or(|asked| asked == *number)) {
            let Some(member) = view.member(node).map(|e| &e.value) else { continue };
            let Some(producer) = Producer::of(node, member, version) else { continue };
            found.leaders.insert(number, node);
            found.producers.insert(node, producer);
            if let Some(address) = &member.http_address {
                found.http_addresses.insert(node, address.clone());
            }
        }
        Some(found)
    }

    /// Whether each partition has a leader with an HTTP address.
    pub fn is_led(&self) -> bool {
        let leads = |number| self.leaders.get(&number).is_some_and(|node| self.http_addresses.contains_key(node));
        (0..self.meta.partition_num).all(leads)
    }

    /// Nodes that lead something of it, with their HTTP addresses: they know its channels.
    pub fn http_addresses(&self) -> &BTreeMap<NodeId, String> {
        &self.http_addresses
    }

    /// Answer of `/lookup`.
    pub fn json(&self, channels: &BTreeSet<String>, has_meta: bool) -> Value {
        let partitions: Map<String, Value> =
            self.leaders.iter().map(|(number, node)| (number.to_string(), json!(self.producers[node]))).collect();
        let mut answer = json!({
            "channels": channels,
            "producers": self.producers.values().collect::<Vec<_>>(),
            "partitions": partitions,
        });
        if has_meta {
            answer["meta"] = json!(self.meta);
        }
        answer
    }
}

/// Answer of `/topics`.
pub fn topics(view: &View, has_meta: bool) -> Value {
    let all: Vec<&Entry<Topic>> = view.topics().filter(|e| view.gone(e.value.info.id).is_none()).collect();
    let names: Vec<&str> = all.iter().map(|e| e.value.info.name.as_str()).collect();
    if !has_meta {
        return json!({ "topics": names });
    }
    let meta = all.iter().map(|e| {
        let mut meta = json!(Meta::of(&e.value));
        meta["topic_name"] = json!(e.value.info.name.as_str());
        meta
    });
    json!({ "topics": names, "meta_info": meta.collect::<Vec<_>>() })
}

/// Answer of `/nodes`: the nodes with a valid lease, with their partitions. Looks at every partition.
pub fn nodes(view: &View, version: &str) -> Value {
    let mut led: BTreeMap<NodeId, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
    for entry in view.topics().filter(|e| view.gone(e.value.info.id).is_none()) {
        for (number, node) in leaders(view, &entry.value, Access::Read) {
            led.entry(node).or_default().entry(entry.value.info.name.as_str()).or_default().push(number.to_string());
        }
    }
    let rows = view.members().filter(|(id, _)| view.session(*id).is_some()).filter_map(|(id, e)| {
        let mut row = json!(Producer::of(id, &e.value, version)?);
        let partitions = led.remove(&id).unwrap_or_default();
        row["tombstones"] = json!(vec![false; partitions.len()]);
        row["topics"] = json!(partitions.keys().collect::<Vec<_>>());
        row["partitions"] = json!(partitions);
        Some(row)
    });
    json!({ "producers": rows.collect::<Vec<_>>() })
}

/// Answer of `/listlookup`: every node answers lookups on its HTTP port. The leader is the controller.
pub fn lookups(view: &View) -> Value {
    let row = |id: NodeId| {
        let member = &view.member(id)?.value;
        let (host, http) = member.http_address.as_deref().and_then(split)?;
        let port =
            |address: &Option<String>| address.as_deref().and_then(split).map_or_else(String::new, |(_, port)| port.to_string());
        let rpc = port(&Some(member.peer_address.clone()));
        Some(json!({
            "ID": id.to_string(), "NodeIP": host, "TcpPort": port(&member.tcp_address), "HttpPort": http.to_string(), "RpcPort": rpc,
            "Epoch": 0,
        }))
    };
    let rows: Vec<Value> = view.nodes().filter_map(|(id, _)| row(id)).collect();
    let nobody = json!({ "ID": "", "NodeIP": "", "TcpPort": "", "HttpPort": "", "RpcPort": "", "Epoch": 0 });
    let leader = view.controller().and_then(|e| {
        let mut row = row(e.value.node)?;
        row["Epoch"] = json!(e.create_revision);
        Some(row)
    });
    json!({ "lookupdnodes": rows, "lookupdleader": leader.unwrap_or(nobody) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::TopicName;
    use crate::metadata::fixture::{TOPIC, n, put};
    use crate::metadata::keys::{Key, Layout};
    use crate::metadata::record::*;
    use crate::metadata::request::Change;

    fn partition(view: &mut View, revision: u64, number: u16, leader: Leader, isr: &[u8]) {
        let isr = isr.iter().map(|b| n(*b)).collect();
        let record = PartitionRecord { isr, ..PartitionRecord::new(revision, Some(leader), vec![n(1), n(2)], 2) };
        put(view, revision, Key::Partition(TOPIC, number), encode(&record));
    }

    /// View in which nodes 1 and 2, in sessions 3 and 4, lead a partition each; only node 1's takes publishes.
    fn view() -> View {
        let mut view = View::new(Layout::new("c").unwrap(), 0);
        for b in [1, 2] {
            let member = MemberRecord {
                name: format!("n{b}"),
                peer_address: format!("h{b}:5170"),
                tcp_address: Some(format!("h{b}:4150")),
                http_address: Some(format!("[::{b}]:4151")),
                ..Default::default()
            };
            put(&mut view, u64::from(b), Key::Member(n(b)), encode(&member));
            let node = NodeRecord { machine: "m".into(), data_path: "/d".into(), start: 1, suspects: Suspects::None };
            put(&mut view, u64::from(b) + 2, Key::Node(n(b)), encode(&node));
        }
        let topic = TopicRecord::new(TOPIC, 2, 2, 2, Default::default());
        put(&mut view, 5, Key::Topic(TopicName::new("t").unwrap()), encode(&topic));
        partition(&mut view, 6, 0, Leader { node: n(1), session: 3 }, &[1, 2]);
        partition(&mut view, 7, 1, Leader { node: n(2), session: 4 }, &[2]);
        put(&mut view, 8, Key::Controller, encode(&ControllerRecord { node: n(2) }));
        view
    }

    fn lookup(view: &View, partition: Option<u16>, access: Access) -> Value {
        TopicLookup::of(view, "t", partition, access, "1.3.0").expect("it is there").json(&["c".to_owned()].into(), false)
    }

    fn ports(answer: &Value) -> Vec<&str> {
        answer["producers"].as_array().unwrap().iter().map(|p| p["hostname"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_lookup_names_the_leaders_as_nsqlookupd_names_producers() {
        let view = view();
        let answer = TopicLookup::of(&view, "t", None, Access::Read, "1.3.0").unwrap().json(&["c".to_owned()].into(), true);
        let first = json!({
            "id": n(1).to_string(), "remote_address": "h1:4150", "hostname": "n1", "broadcast_address": "h1", "tcp_port": 4150,
            "http_port": 4151, "version": "1.3.0", "distributed_id": n(1).to_string(),
        });
        let meta = json!({
            "partition_num": 2, "replica": 2, "extend_support": false, "ordered": false, "multi_part": true,
            "disable_channel_auto_create": false,
        });
        assert_eq!((&answer["channels"], &answer["meta"]), (&json!(["c"]), &meta));
        assert_eq!((&answer["producers"][0], &answer["partitions"]["0"]), (&first, &first));
        assert_eq!((answer["partitions"]["1"]["hostname"].as_str(), ports(&answer)), (Some("n2"), vec!["n1", "n2"]));
        assert_eq!(lookup(&view, None, Access::Read).get("meta"), None, "only who asks for it gets it");
    }

    #[test]
    fn access_and_partition_choose_among_the_leaders() {
        let view = view();
        assert_eq!(ports(&lookup(&view, None, Access::Write)), ["n1"], "the other partition is below its min_isr");
        assert_eq!(ports(&lookup(&view, Some(1), Access::Read)), ["n2"]);
        assert_eq!(ports(&lookup(&view, Some(7), Access::Read)), [""; 0]);
        assert!(TopicLookup::of(&view, "u", None, Access::Read, "1.3.0").is_none());
        assert_eq!((Access::of(""), Access::of("w"), Access::of("x")), (Some(Access::Read), Some(Access::Write), None));
    }

    #[test]
    fn who_leads_in_a_session_that_is_over_is_in_no_answer() {
        let mut view = view();
        let key = view.layout().key(&Key::Node(n(1)));
        view.learn(Change::Deleted { key, mod_revision: 9 });
        assert_eq!(ports(&lookup(&view, None, Access::Read)), ["n2"]);
        assert_eq!(ports(&nodes(&view, "1.3.0")), ["n2"]);
        // Another one leads, as soon as the view says so.
        partition(&mut view, 10, 0, Leader { node: n(2), session: 4 }, &[2]);
        let answer = lookup(&view, None, Access::Read);
        assert_eq!((ports(&answer), answer["partitions"]["0"]["hostname"].as_str()), (vec!["n2"], Some("n2")));
    }

    #[test]
    fn nodes_topics_and_lookups_are_listed() {
        let mut view = view();
        let all = nodes(&view, "1.3.0");
        assert_eq!((&all["producers"][1]["topics"], &all["producers"][1]["partitions"]), (&json!(["t"]), &json!({ "t": ["1"] })));
        assert_eq!(all["producers"][1]["tombstones"], json!([false]));
        assert_eq!(topics(&view, false), json!({ "topics": ["t"] }));
        assert_eq!(topics(&view, true)["meta_info"][0]["topic_name"], "t");
        let list = lookups(&view);
        let row = |b: u8, epoch: u64| {
            json!({
                "ID": n(b).to_string(), "NodeIP": format!("::{b}"), "TcpPort": "4150", "HttpPort": "4151", "RpcPort": "5170",
                "Epoch": epoch,
            })
        };
        assert_eq!(list, json!({ "lookupdnodes": [row(1, 0), row(2, 0)], "lookupdleader": row(2, 8) }));
        // A deleted topic is gone, whatever key stays.
        put(&mut view, 11, Key::Gone(TOPIC), encode(&GoneRecord { name: TopicName::new("t").unwrap(), partitions: 2 }));
        assert_eq!(topics(&view, false), json!({ "topics": [] }));
        assert!(TopicLookup::of(&view, "t", None, Access::Read, "1.3.0").is_none());
        assert_eq!(nodes(&view, "1.3.0")["producers"][0]["topics"], json!([]));
    }
}
