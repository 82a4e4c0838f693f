//! /stats of the whole node: the answers of all cores as one, in nsqd's JSON shape and in nsqd's text.
//!
//! A topic's partitions are summed, since an NSQ tool knows nothing of partitions.

mod text;

use super::end_to_end::{EndToEnd, Sample};
use super::stats::{ChannelStats, ClientStats, LinkStats, ProducerStats, ReplicationStats, ShardStats, TurnStats};
use crate::base::client::{ClientInfo, Identity};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Filter of a request.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub topic: Option<String>,
    pub channel: Option<String>,
    pub clients: bool,
}

/// Facts of the node beside the cores' answers.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Release of nsqd that the node stands in for.
    pub nsqd_version: &'static str,
    pub version: &'static str,
    pub start_unix_s: i64,
    pub now_unix_s: i64,
    /// `None`: memory was not asked for.
    pub resident_bytes: Option<u64>,
    /// Space of segments that were removed, kept for new ones.
    pub spare_bytes: u64,
    /// Quantiles of the times from publish to FIN, between 0 and 1.
    pub quantiles: Vec<f64>,
    /// Place of the node in a cluster.
    pub condition: Condition,
    /// Lines of our own for the text form: name and value.
    pub extra: Vec<(&'static str, String)>,
}

/// Condition of a node in its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Reason why the node serves no client, while other nodes do. `None`: it serves.
    pub failure: Option<String>,
    /// Problems that would be no better at another node.
    pub warnings: Vec<String>,
}

/// Asks for [`NodeFacts::spare_bytes`].
pub type SpareBytes = Box<dyn Fn() -> u64 + Send>;

#[derive(Serialize)]
pub struct NodeStats {
    version: &'static str,
    health: String,
    start_time: i64,
    topics: Option<Vec<Topic>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    producers: Option<Vec<Client>>,
    /// Figures of each core; nsqd has none.
    cores: Vec<Core>,
    /// Ours: of the disk, kept for new segments.
    spare_bytes: u64,
    ringmq_version: &'static str,
    #[serde(skip)]
    now_unix_s: i64,
    #[serde(skip)]
    extra: Vec<(&'static str, String)>,
}

#[derive(Serialize)]
struct Core {
    core: u16,
    health: String,
    connections: u64,
    turns: TurnStats,
    scrubs: u64,
    deleting_bytes: u64,
    /// Ours: with the other nodes, in a cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<LinkStats>,
}

#[derive(Serialize)]
struct Topic {
    topic_name: String,
    channels: Vec<Channel>,
    depth: u64,
    backend_depth: u64,
    message_count: u64,
    message_bytes: u64,
    paused: bool,
    e2e_processing_latency: EndToEnd,
    /// Ours: where partitions cannot be read. nsqd has no such thing, so it is there only when it is true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
    /// Ours: of which partitions damage may have taken channels, likewise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    channels_lost: Vec<String>,
    /// Ours: the replicas of this node, in a cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    replication: Vec<ReplicationStats>,
}

#[derive(Serialize, Default)]
struct Channel {
    channel_name: String,
    depth: u64,
    backend_depth: u64,
    in_flight_count: u64,
    deferred_count: u64,
    message_count: u64,
    requeue_count: u64,
    timeout_count: u64,
    client_count: u64,
    clients: Option<Vec<Client>>,
    paused: bool,
    e2e_processing_latency: EndToEnd,
    /// Ours: why it reads no further. There only when it is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<String>,
}

#[derive(Serialize, Default)]
struct Client {
    client_id: String,
    hostname: String,
    version: &'static str,
    remote_address: String,
    /// Number of the state in nsqd.
    state: u8,
    ready_count: u64,
    in_flight_count: u64,
    message_count: u64,
    finish_count: u64,
    requeue_count: u64,
    connect_ts: i64,
    sample_rate: u8,
    deflate: bool,
    snappy: bool,
    user_agent: String,
    #[serde(skip_serializing_if = "is_false")]
    authed: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    auth_identity: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    auth_identity_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub_counts: Option<Vec<PubCount>>,
    tls: bool,
    tls_cipher_suite: String,
    tls_version: &'static str,
    tls_negotiated_protocol: String,
    tls_negotiated_protocol_is_mutual: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

#[derive(Serialize)]
struct PubCount {
    topic: String,
    count: u64,
}

/// Memory, under nsqd's names, which are those of Go's heap. Here `heap_in_use_bytes` is the resident memory; there is no collector.
#[derive(Serialize, Default)]
struct Memory {
    heap_objects: u64,
    heap_idle_bytes: u64,
    heap_in_use_bytes: u64,
    heap_released_bytes: u64,
    gc_pause_usec_100: u64,
    gc_pause_usec_99: u64,
    gc_pause_usec_95: u64,
    next_gc_bytes: u64,
    gc_total_runs: u64,
}

/// nsqd's numbers for a client that consumes, and for one that has said CLS.
const SUBSCRIBED: u8 = 3;
const CLOSING: u8 = 4;

impl NodeStats {
    pub fn merge(shards: Vec<ShardStats>, filter: &Filter, facts: NodeFacts) -> Self {
        let health = health(&shards, &facts.condition);
        let cores = shards.iter().map(|s| {
            let health = if s.healthy { "OK".into() } else { s.health.clone() };
            Core {
                core: s.core,
                health,
                connections: s.connections,
                turns: s.turns,
                scrubs: s.scrubs,
                deleting_bytes: s.deleting_bytes,
                links: s.links.clone(),
            }
        });
        let cores = cores.collect();
        let mut topics: BTreeMap<String, TopicSum> = BTreeMap::new();
        let mut producers = Vec::new();
        let closing: BTreeSet<String> = shards.iter().flat_map(|shard| shard.closing.iter().cloned()).collect();
        for shard in shards {
            for name in shard.topics.into_iter().filter(|name| filter.topic.as_ref().is_none_or(|wanted| wanted == name)) {
                topics.entry(name).or_default();
            }
            for partition in shard.partitions {
                if filter.topic.as_ref().is_some_and(|name| *name != partition.topic) {
                    continue;
                }
                let sum = topics.entry(partition.topic).or_default();
                sum.depth += partition.depth;
                sum.paused |= partition.paused;
                sum.message_count += partition.message_count;
                sum.message_bytes += partition.message_bytes;
                sum.replication.extend(partition.replication);
                sum.unreadable.extend(partition.unreadable.map(|what| format!("partition {} {what}", partition.partition)));
                sum.channels_lost
                    .extend(partition.channels_lost.map(|what| format!("partition {}: {what}", partition.partition)));
                for channel in partition.channels {
                    if filter.channel.as_ref().is_none_or(|name| *name == channel.channel) {
                        sum.channels.entry(channel.channel.clone()).or_default().add(channel);
                    }
                }
            }
            if filter.clients {
                producers.extend(shard.producers.into_iter().map(|p| producer(p, filter)));
            }
        }
        let nothing_found = filter.topic.is_some() && topics.is_empty();
        let mut topics: Vec<Topic> = topics
            .into_iter()
            .filter(|(_, sum)| filter.channel.is_none() || !sum.channels.is_empty())
            .map(|(name, sum)| sum.into_topic(name, filter.clients, &facts.quantiles))
            .collect();
        let channels = topics.iter_mut().flat_map(|topic| &mut topic.channels);
        for client in channels.flat_map(|channel| channel.clients.iter_mut().flatten()) {
            if closing.contains(&client.remote_address) {
                client.state = CLOSING;
            }
        }
        producers.sort_by(|a, b| a.remote_address.cmp(&b.remote_address));
        NodeStats {
            version: facts.nsqd_version,
            health,
            start_time: facts.start_unix_s,
            topics: (!nothing_found).then_some(topics),
            memory: facts.resident_bytes.map(|bytes| Memory { heap_in_use_bytes: bytes, ..Memory::default() }),
            // As nsqd, which looks no further then.
            producers: (!producers.is_empty() && !nothing_found).then_some(producers),
            cores,
            now_unix_s: facts.now_unix_s,
            spare_bytes: facts.spare_bytes,
            ringmq_version: facts.version,
            extra: facts.extra,
        }
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("plain structs of numbers and strings always encode")
    }
}

/// Body of /ping: `OK`, `OK - ` and a warning, or `NOK - ` and the reason why clients should go to another node.
fn health(shards: &[ShardStats], condition: &Condition) -> String {
    let (minor, major): (Vec<&ShardStats>, Vec<&ShardStats>) = shards.iter().filter(|s| !s.healthy).partition(|s| s.serves);
    let failures = major.iter().map(|s| s.health.clone()).chain(condition.failure.clone());
    let warnings = minor.iter().map(|s| s.health.clone()).chain(condition.warnings.iter().cloned());
    let failures: Vec<String> = failures.collect();
    let all: Vec<String> = failures.iter().cloned().chain(warnings).chain(closed_partitions(shards)).collect();
    match (failures.is_empty(), all.is_empty()) {
        (_, true) => "OK".into(),
        (true, false) => format!("OK - {}", all.join("; ")),
        (false, false) => format!("NOK - {}", all.join("; ")),
    }
}

fn closed_partitions(shards: &[ShardStats]) -> Option<String> {
    let count: u64 = shards.iter().map(|s| s.closed.count).sum();
    let example = &shards.iter().find(|s| s.closed.count > 0)?.closed.example;
    let what = if count == 1 { "1 partition that this node leads takes" } else { "partitions that this node leads take" };
    let number = if count == 1 { String::new() } else { format!("{count} ") };
    Some(format!("{number}{what} no publish: {example}"))
}

/// Answer of /ping, and whether a load balancer may send clients to the node.
pub fn ping(shards: &[ShardStats], condition: &Condition) -> (String, bool) {
    let health = health(shards, condition);
    let serves = !health.starts_with("NOK");
    (health, serves)
}

#[derive(Default)]
struct TopicSum {
    depth: u64,
    paused: bool,
    message_count: u64,
    message_bytes: u64,
    unreadable: Vec<String>,
    channels_lost: Vec<String>,
    replication: Vec<ReplicationStats>,
    channels: BTreeMap<String, ChannelSum>,
}

#[derive(Default)]
struct ChannelSum {
    sum: Channel,
    full_bytes: u64,
    end_to_end: Option<Sample>,
    /// Clients by remote address.
    clients: BTreeMap<String, Client>,
}

impl TopicSum {
    fn into_topic(self, topic_name: String, with_clients: bool, quantiles: &[f64]) -> Topic {
        let mut all: Option<Sample> = None;
        for sample in self.channels.values().filter_map(|channel| channel.end_to_end.as_ref()) {
            all.get_or_insert_default().add(sample);
        }
        let channels = self.channels.into_iter().map(|(name, channel)| channel.into_channel(name, with_clients, quantiles));
        Topic {
            topic_name,
            channels: channels.collect(),
            depth: self.depth,
            backend_depth: self.depth,
            message_count: self.message_count,
            message_bytes: self.message_bytes,
            paused: self.paused,
            e2e_processing_latency: EndToEnd::of(all.as_ref(), quantiles),
            unreadable: self.unreadable,
            channels_lost: self.channels_lost,
            replication: {
                let mut replication = self.replication;
                replication.sort_by_key(|r| r.partition);
                replication
            },
        }
    }
}

impl ChannelSum {
    /// Adds one partition's statistics of the channel. A client that is subscribed to several partitions is one client.
    fn add(&mut self, part: ChannelStats) {
        let sum = &mut self.sum;
        sum.depth += part.depth;
        sum.in_flight_count += part.in_flight_count;
        sum.deferred_count += part.deferred_count;
        sum.message_count += part.message_count;
        sum.requeue_count += part.requeue_count;
        sum.timeout_count += part.timeout_count;
        sum.paused |= part.paused;
        self.full_bytes += part.full_bytes.unwrap_or(0);
        if let Some(sample) = &part.end_to_end {
            self.end_to_end.get_or_insert_default().add(sample);
        }
        sum.client_count = sum.client_count.max(part.client_count);
        for client in part.clients {
            match self.clients.get_mut(&client.info.remote_address) {
                Some(known) => known.add(&client),
                None => drop(self.clients.insert(client.info.remote_address.clone(), consumer(client))),
            }
        }
    }

    fn into_channel(self, channel_name: String, with_clients: bool, quantiles: &[f64]) -> Channel {
        let ChannelSum { sum, clients, full_bytes, end_to_end } = self;
        Channel {
            channel_name,
            held: (full_bytes > 0).then(|| {
                format!(
                    "unfinished messages take {full_bytes} bytes: the channel reads no further messages until some are finished \
                     (channel-memory)"
                )
            }),
            e2e_processing_latency: EndToEnd::of(end_to_end.as_ref(), quantiles),
            // Everything is on disk.
            backend_depth: sum.depth,
            client_count: sum.client_count.max(clients.len() as u64),
            clients: with_clients.then(|| clients.into_values().collect()),
            ..sum
        }
    }
}

/// A client without its counts.
fn client(info: ClientInfo) -> Client {
    let tls = *info.layers.tls.unwrap_or_default();
    let has_tls = !tls.version.is_empty();
    let authed = info.auth.is_some();
    let Identity { identity, identity_url } = *info.auth.unwrap_or_default();
    Client {
        client_id: info.client_id,
        hostname: info.hostname,
        version: info.version,
        remote_address: info.remote_address,
        connect_ts: info.connected_unix_s,
        user_agent: info.user_agent,
        authed,
        auth_identity: identity,
        auth_identity_url: identity_url,
        deflate: info.layers.deflate,
        snappy: info.layers.snappy,
        tls: has_tls,
        tls_cipher_suite: tls.cipher_suite,
        tls_version: tls.version,
        tls_negotiated_protocol: tls.protocol,
        // as Go says it of every connection with TLS
        tls_negotiated_protocol_is_mutual: has_tls,
        ..Client::default()
    }
}

fn consumer(stats: ClientStats) -> Client {
    Client {
        state: SUBSCRIBED,
        ready_count: stats.ready_count,
        in_flight_count: stats.in_flight_count,
        message_count: stats.message_count,
        finish_count: stats.finish_count,
        requeue_count: stats.requeue_count,
        sample_rate: stats.sample_rate,
        ..client(stats.info)
    }
}

fn producer(producer: ProducerStats, filter: &Filter) -> Client {
    let counts = producer.topics.into_iter().filter(|(topic, _)| filter.topic.as_ref().is_none_or(|name| name == topic));
    let counts = counts.map(|(topic, count)| PubCount { topic, count }).collect();
    Client { pub_counts: Some(counts), ..client(producer.info) }
}

impl Client {
    /// Adds the client's counts at another partition. The RDY count is the connection's, the same at each partition.
    fn add(&mut self, other: &ClientStats) {
        self.ready_count = self.ready_count.max(other.ready_count);
        self.in_flight_count += other.in_flight_count;
        self.message_count += other.message_count;
        self.finish_count += other.finish_count;
        self.requeue_count += other.requeue_count;
    }

    fn identity(&self) -> String {
        let port = self.remote_address.rsplit(':').next().unwrap_or_default();
        let agent = if self.user_agent.is_empty() { String::new() } else { format!(" {}", self.user_agent) };
        format!("{}:{port}{agent}", self.hostname)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::stats::{ClosedPartitions, PartitionStats};

    fn info(port: u16) -> ClientInfo {
        ClientInfo {
            version: "V2",
            client_id: "cid".into(),
            hostname: "hn".into(),
            user_agent: "ua/1".into(),
            remote_address: format!("127.0.0.1:{port}"),
            connected_unix_s: 1_795_286_030,
            ..ClientInfo::default()
        }
    }

    fn shard(core: u16, partition: u16) -> ShardStats {
        let client =
            ClientStats { info: info(60254), ready_count: 1, in_flight_count: 1, message_count: 1, ..Default::default() };
        let channel = ChannelStats {
            channel: "ch".into(),
            depth: 1,
            in_flight_count: 1,
            message_count: 2,
            client_count: 1,
            clients: vec![client],
            ..Default::default()
        };
        let partitions = vec![PartitionStats {
            topic: "pp".into(),
            partition,
            depth: 1,
            message_count: 2,
            message_bytes: 2,
            stored_bytes: 2,
            channels: vec![channel],
            ..PartitionStats::default()
        }];
        let producers = vec![ProducerStats { info: info(60246), topics: vec![("pp".into(), 2), ("qq".into(), 1)] }];
        ShardStats { core, connections: 1, partitions, producers, healthy: true, ..ShardStats::default() }
    }

    fn facts() -> NodeFacts {
        let extra = vec![("http_publish", "none".to_string())];
        NodeFacts {
            nsqd_version: "1.3.0",
            version: "0.1.0",
            start_unix_s: 1_795_286_029,
            now_unix_s: 1_795_286_031,
            resident_bytes: None,
            spare_bytes: 7,
            quantiles: vec![],
            condition: Condition::default(),
            extra,
        }
    }

    fn merged(shards: Vec<ShardStats>, topic: Option<&str>, channel: Option<&str>, clients: bool) -> NodeStats {
        let filter = Filter { topic: topic.map(Into::into), channel: channel.map(Into::into), clients };
        NodeStats::merge(shards, &filter, facts())
    }

    /// The keys and their order are nsqd 1.3.0's own, but for `cores`, `spare_bytes` and `ringmq_version` at the end;
    /// `backend_depth` (everything is on disk here) differs.
    #[test]
    fn the_json_is_nsqds() {
        const TLS: &str = r#""tls":false,"tls_cipher_suite":"","tls_version":"","tls_negotiated_protocol":"",
            "tls_negotiated_protocol_is_mutual":false"#;
        const E2E: &str = r#""e2e_processing_latency":{"count":0,"percentiles":null}"#;
        let client = format!(
            r#"{{"client_id":"cid","hostname":"hn","version":"V2","remote_address":"127.0.0.1:60254","state":3,
            "ready_count":1,"in_flight_count":1,"message_count":1,"finish_count":0,"requeue_count":0,
            "connect_ts":1795286030,"sample_rate":0,"deflate":false,"snappy":false,"user_agent":"ua/1",{TLS}}}"#
        );
        let channel = format!(
            r#"{{"channel_name":"ch","depth":1,"backend_depth":1,"in_flight_count":1,"deferred_count":0,"message_count":2,
            "requeue_count":0,"timeout_count":0,"client_count":1,"clients":[{client}],"paused":false,{E2E}}}"#
        );
        let producer = format!(
            r#"{{"client_id":"cid","hostname":"hn","version":"V2","remote_address":"127.0.0.1:60246","state":0,
            "ready_count":0,"in_flight_count":0,"message_count":0,"finish_count":0,"requeue_count":0,
            "connect_ts":1795286030,"sample_rate":0,"deflate":false,"snappy":false,"user_agent":"ua/1",
            "pub_counts":[{{"topic":"pp","count":2}}],{TLS}}}"#
        );
        let wanted = format!(
            r#"{{"version":"1.3.0","health":"OK","start_time":1795286029,"topics":[{{"topic_name":"pp",
            "channels":[{channel}],"depth":1,"backend_depth":1,"message_count":2,"message_bytes":2,"paused":false,{E2E}}}],
            "producers":[{producer}],"cores":[{{"core":0,"health":"OK","connections":1,
            "turns":{{"count":0,"p50_us":0,"p99_us":0,"p999_us":0,"max_us":0,"stalls":0}},"scrubs":0,"deleting_bytes":0}}],
            "spare_bytes":7,"ringmq_version":"0.1.0"}}"#
        );
        let wanted: String = wanted.lines().map(str::trim).collect();
        assert_eq!(merged(vec![shard(0, 0)], Some("pp"), Some("ch"), true).json(), wanted);
    }

    #[test]
    fn the_text_is_nsqds() {
        let wanted = [
            "nsqd v1.3.0 (ringmq 0.1.0)",
            "start_time 2026-11-21T18:33:49Z",
            "uptime 2s",
            "",
            "Health: OK",
            "",
            "Topics:",
            "   [pp             ] depth: 1     be-depth: 1     msgs: 2        e2e%: ",
            "      [ch                       ] depth: 1     be-depth: 1     inflt: 1    def: 0    re-q: 0     timeout: 0     \
             msgs: 2        e2e%: ",
            "        [V2 hn:60254 ua/1        ] state: 3 inflt: 1    rdy: 1    fin: 0        re-q: 0        msgs: 1        \
             connected: 1s",
            "",
            "Producers:",
            "   [V2 hn:60246 ua/1        ] msgs: 3        topics: pp=2,qq=1 connected: 1s",
            "",
            "Node:",
            "   spare_bytes              \t7",
            "   http_publish             \tnone",
            "",
            "Cores:",
            "   [core 0   ] OK connections: 1 turns: 0 p50 0 p99 0 p99.9 0 max 0 us stalls: 0 scrubs: 0 deleting: 0 bytes",
            "",
        ];
        assert_eq!(merged(vec![shard(0, 0)], None, None, true).text(), wanted.join("\n"));
    }

    #[test]
    fn partitions_are_summed_and_a_client_of_several_is_one() {
        let stats = merged(vec![shard(0, 0), shard(1, 1)], None, None, true);
        let topics = stats.topics.as_ref().expect("asked for all");
        let channel = &topics[0].channels[0];
        assert_eq!((topics.len(), topics[0].message_count, topics[0].channels.len()), (1, 4, 1));
        assert_eq!((channel.depth, channel.in_flight_count, channel.client_count), (2, 2, 1));
        let client = &channel.clients.as_ref().expect("clients were asked for")[0];
        assert_eq!((client.ready_count, client.in_flight_count), (1, 2));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let mut sick = shard(0, 3);
        sick.partitions[0].channels_lost = Some("some".into());
        sick.partitions[0].unreadable = Some("at offset 7 (tried 4 times: EIO)".into());
        let stats = merged(vec![sick], None, None, false);
        assert!(stats.json().contains(r#""unreadable":["partition 3 at offset 7 (tried 4 times: EIO)"]"#));
        assert!(stats.text().contains("   *U [pp] unreadable: partition 3 at offset 7"));
        assert!(stats.json().contains(r#""channels_lost":["partition 3: some"]"#));
        assert!(stats.text().contains("   *L [pp] channels lost: partition 3: some"));
    }

    #[test]
    fn a_channel_that_holds_is_named_with_the_reason() {
        assert!(!merged(vec![shard(0, 0)], None, None, false).json().contains("held"));
        let (mut full, mut other) = (shard(0, 0), shard(1, 1));
        full.partitions[0].channels[0].full_bytes = Some(4000);
        other.partitions[0].channels[0].full_bytes = Some(300);
        let stats = merged(vec![full, other], None, None, false);
        assert!(stats.json().contains(r#""held":"unfinished messages take 4300 bytes: "#), "{}", stats.json());
        assert!(stats.text().contains("   *H [ch] held: unfinished messages take 4300 bytes: "), "{}", stats.text());
    }

    #[test]
    fn filters_hide_the_rest() {
        let json = |topic, channel| merged(vec![shard(0, 0)], topic, channel, false).json();
        assert!(json(Some("zz"), None).contains(r#""topics":null,"producers":null"#));
        assert!(json(Some("pp"), Some("zz")).contains(r#""topics":[],"producers":null"#));
        assert!(json(None, None).contains(r#""client_count":1,"clients":null"#));
        assert!(merged(vec![shard(0, 0)], Some("zz"), None, true).text().contains("Topics: None"));
    }

    #[test]
    fn one_sick_core_makes_the_node_sick() {
        let sick = ShardStats { healthy: false, health: "core 1: read-only".into(), ..shard(1, 1) };
        let fine = Condition::default();
        let away = Condition { failure: Some("the lease is over".into()), ..Condition::default() };
        assert_eq!(ping(&[shard(0, 0), sick.clone()], &fine), ("NOK - core 1: read-only".into(), false));
        assert_eq!(ping(&[shard(0, 0), sick], &away), ("NOK - core 1: read-only; the lease is over".into(), false));
        assert_eq!(ping(&[shard(0, 0)], &away), ("NOK - the lease is over".into(), false));
        assert_eq!(ping(&[shard(0, 0)], &fine), ("OK".into(), true));
    }

    /// A load balancer takes no node out for a problem that another node would also have.
    #[test]
    fn a_node_that_serves_warns_and_stays_well() {
        let warned = Condition { warnings: vec!["orders/0 has no leader".into()], ..Condition::default() };
        assert_eq!(ping(&[shard(0, 0)], &warned), ("OK - orders/0 has no leader".into(), true));
        let full = ShardStats { healthy: false, serves: true, health: "core 0: the disk is full".into(), ..shard(0, 0) };
        assert_eq!(
            ping(std::slice::from_ref(&full), &warned),
            ("OK - core 0: the disk is full; orders/0 has no leader".into(), true)
        );
        let closed = |core, count, example: &str| ShardStats {
            closed: ClosedPartitions { count, example: example.into() },
            ..shard(core, core)
        };
        let said = |shards: &[ShardStats]| ping(shards, &Condition::default()).0;
        assert_eq!(
            said(&[closed(0, 0, ""), closed(1, 1, "t/1: why")]),
            "OK - 1 partition that this node leads takes no publish: t/1: why"
        );
        assert_eq!(
            said(&[closed(0, 2, "t/0: why"), closed(1, 1, "")]),
            "OK - 3 partitions that this node leads take no publish: t/0: why"
        );
        let away = Condition { failure: Some("the lease is over".into()), ..warned };
        assert_eq!(
            ping(&[full], &away),
            ("NOK - the lease is over; core 0: the disk is full; orders/0 has no leader".into(), false)
        );
    }
}
