//! /metrics of the whole node: the answers of all cores in Prometheus' text format.
//!
//! A topic's partitions are summed, as in /stats. Counters count from the startup of the node, except `ringmq_topic_messages_total` and
//! `ringmq_channel_messages_total`, which go on over restarts. Names of topics, channels and error kinds need no escaping: none of their
//! characters has a meaning in a label.

use super::buckets::Buckets;
use super::counters::{Counts, DiskWork};
use super::remote::{Outcomes, RemoteOutcome, RemoteStats};
use super::stats::{ChannelStats, LEASE_OVER, ShardStats};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Facts of the process beside the cores' answers.
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    pub version: &'static str,
    pub start_unix_s: i64,
    pub resident_bytes: u64,
    pub cpu_seconds: f64,
    pub spare_bytes: u64,
    pub journal_bytes: u64,
    /// Publishes over HTTP, from the request to the answer.
    pub http_publishes: Buckets,
    /// Name, help and value of gauges of the cluster.
    pub cluster: Vec<(&'static str, &'static str, usize)>,
}

/// Content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Default)]
struct TopicSum {
    depth: u64,
    messages: u64,
    bytes: u64,
    stored: u64,
    unreadable: u64,
    channels: BTreeMap<String, ChannelStats>,
}

pub fn render(shards: &[ShardStats], facts: &ProcessFacts) -> String {
    let mut page = Page(String::with_capacity(64 * 1024));
    page.process(facts);
    page.cores(shards);
    page.times(shards, facts);
    page.topics(&sums(shards));
    page.replication(shards);
    page.remote(shards);
    page.0
}

fn sums(shards: &[ShardStats]) -> BTreeMap<&str, TopicSum> {
    let mut topics: BTreeMap<&str, TopicSum> = BTreeMap::new();
    for shard in shards {
        for name in &shard.topics {
            topics.entry(name).or_default();
        }
        for p in &shard.partitions {
            let sum = topics.entry(&p.topic).or_default();
            sum.depth += p.depth;
            sum.messages += p.message_count;
            sum.bytes += p.message_bytes;
            sum.stored += p.stored_bytes;
            sum.unreadable += u64::from(p.unreadable.is_some());
            for c in &p.channels {
                sum.channels.entry(c.channel.clone()).or_default().add_counts(c);
            }
        }
    }
    topics
}

/// A family of one sample for each thing: name, type, help text, and its value.
type Row<T, V> = (&'static str, &'static str, &'static str, fn(&T) -> V);

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// A family without labels.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn labelled(&mut self, name: &str, labels: std::fmt::Arguments<'_>, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }

    fn process(&mut self, facts: &ProcessFacts) {
        self.family("ringmq_build_info", "gauge", "Version of the node; always 1.");
        self.labelled("ringmq_build_info", format_args!("version=\"{}\"", facts.version), 1);
        self.single("process_start_time_seconds", "gauge", "Start of the process since 1970 in seconds.", facts.start_unix_s);
        self.single("process_resident_memory_bytes", "gauge", "Resident memory of the process in bytes.", facts.resident_bytes);
        self.single(
            "process_cpu_seconds_total",
            "counter",
            "CPU time of the process in seconds, of user and system.",
            facts.cpu_seconds,
        );
        self.single(
            "ringmq_spare_bytes",
            "gauge",
            "Bytes of deleted segments that are kept on the disk for new segments.",
            facts.spare_bytes,
        );
        self.single("ringmq_journal_bytes", "gauge", "Size of all cores' journals on the disk in bytes.", facts.journal_bytes);
        for (name, help, value) in &facts.cluster {
            self.single(name, "gauge", help, value);
        }
    }

    fn cores(&mut self, shards: &[ShardStats]) {
        let rows: [Row<ShardStats, f64>; 9] = [
            ("ringmq_core_healthy", "gauge", "1 while the core serves and writes, else 0; /ping says what is wrong.", |s| {
                f64::from(u8::from(s.healthy))
            }),
            (
                "ringmq_core_closed_partitions",
                "gauge",
                "Partitions that the core leads in a cluster and that take no publish; /ping names one.",
                |s| s.closed.count as f64,
            ),
            ("ringmq_core_connections", "gauge", "Client connections of the core.", |s| s.connections as f64),
            ("ringmq_core_busy_seconds_total", "counter", "Time that the core's turns took, without its sleep.", |s| {
                s.turns.busy_us as f64 / 1e6
            }),
            ("ringmq_core_turns_total", "counter", "Turns of the core.", |s| s.turns.count as f64),
            ("ringmq_core_stalls_total", "counter", "Turns that were longer than --stall-log.", |s| s.turns.stalls as f64),
            ("ringmq_core_waiting_bytes", "gauge", "Bytes of publishes that wait for the disk.", |s| s.waiting_bytes as f64),
            (
                "ringmq_core_deleting_bytes",
                "gauge",
                "Bytes of segments that retention let go and that are not deleted yet.",
                |s| s.deleting_bytes as f64,
            ),
            ("ringmq_core_scrubs_total", "counter", "Complete passes of the scrubber over the core's data.", |s| s.scrubs as f64),
        ];
        for (name, kind, help, value) in rows {
            self.family(name, kind, help);
            for shard in shards {
                self.labelled(name, format_args!("core=\"{}\"", shard.core), value(shard));
            }
        }
        self.family(
            "ringmq_errors_total",
            "counter",
            "Errors by kind: the code that a client got, or the operation that failed.",
        );
        let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
        for (kind, count) in shards.iter().flat_map(|s| &s.counts.errors) {
            *errors.entry(kind).or_default() += count;
        }
        for (kind, count) in errors {
            self.labelled("ringmq_errors_total", format_args!("kind=\"{kind}\""), count);
        }
    }

    fn times(&mut self, shards: &[ShardStats], facts: &ProcessFacts) {
        let of_cores = |page: &mut Page, name: &str, help: &str, get: fn(&Counts) -> &Buckets| {
            page.family(name, "histogram", help);
            shards.iter().for_each(|s| page.histogram(name, &format!("core=\"{}\"", s.core), get(&s.counts)));
        };
        of_cores(
            self,
            "ringmq_publish_duration_seconds",
            "Time from the append of a publish to its durable end, in a cluster to its commit.",
            |c| &c.publishes,
        );
        of_cores(
            self,
            "ringmq_delivery_latency_seconds",
            "Time from a message's timestamp to its first delivery on a channel.",
            |c| &c.deliveries,
        );
        let name = "ringmq_http_publish_duration_seconds";
        self.family(name, "histogram", "Time from an HTTP publish request to its answer.");
        self.histogram(name, "", &facts.http_publishes);
        let name = "ringmq_disk_operation_duration_seconds";
        self.family(name, "histogram", "Time from the issue of a disk operation to its completion, as the core sees it.");
        for shard in shards {
            for work in DiskWork::ALL {
                let labels = format!("core=\"{}\",operation=\"{}\"", shard.core, work.name());
                self.histogram(name, &labels, &shard.counts.disk[work as usize]);
            }
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, buckets: &Buckets) {
        let comma = if labels.is_empty() { "" } else { "," };
        for (bound, count) in buckets.cumulative() {
            let _ = writeln!(self.0, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}");
        }
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let (sum, count) = (buckets.sum_seconds(), buckets.count());
        let _ = writeln!(self.0, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
        let _ = writeln!(self.0, "{name}_sum{braces} {sum}\n{name}_count{braces} {count}");
    }

    fn topics(&mut self, topics: &BTreeMap<&str, TopicSum>) {
        let rows: [Row<TopicSum, u64>; 5] = [
            ("ringmq_topic_messages_total", "counter", "Messages that were ever published to the topic.", |t| t.messages),
            ("ringmq_topic_bytes_total", "counter", "Bytes of message bodies published to the topic since the startup.", |t| {
                t.bytes
            }),
            ("ringmq_topic_depth", "gauge", "Messages that wait for the topic's first channel.", |t| t.depth),
            ("ringmq_topic_stored_bytes", "gauge", "Bytes of the topic's log that are stored here.", |t| t.stored),
            ("ringmq_topic_unreadable_partitions", "gauge", "Partitions of the topic that cannot be read at some place.", |t| {
                t.unreadable
            }),
        ];
        for (name, kind, help, value) in rows {
            self.family(name, kind, help);
            for (topic, sum) in topics {
                self.labelled(name, format_args!("topic=\"{topic}\""), value(sum));
            }
        }
        let rows: [Row<ChannelStats, u64>; 10] = [
            ("ringmq_channel_messages_total", "counter", "Messages that the channel got to deliver since it began.", |c| {
                c.message_count
            }),
            ("ringmq_channel_depth", "gauge", "Messages that the channel has still to deliver.", |c| c.depth),
            ("ringmq_channel_in_flight", "gauge", "Messages that are delivered and not finished.", |c| c.in_flight_count),
            ("ringmq_channel_deferred", "gauge", "Messages that wait for their due time.", |c| c.deferred_count),
            ("ringmq_channel_requeued_total", "counter", "Messages that consumers gave back with REQ.", |c| c.requeue_count),
            ("ringmq_channel_timed_out_total", "counter", "Messages that came back since their timeout passed.", |c| {
                c.timeout_count
            }),
            ("ringmq_channel_dropped_total", "counter", "Messages that an ephemeral channel dropped: mem-queue-size.", |c| {
                c.dropped_count
            }),
            ("ringmq_channel_clients", "gauge", "Clients that are subscribed to the channel.", |c| c.client_count),
            ("ringmq_channel_paused", "gauge", "1 while the channel is paused, else 0.", |c| c.paused.into()),
            (
                "ringmq_channel_held_bytes",
                "gauge",
                "Bytes of unfinished messages that keep the channel from reading on, else 0.",
                |c| c.full_bytes.unwrap_or(0),
            ),
        ];
        for (name, kind, help, value) in rows {
            self.family(name, kind, help);
            for (topic, sum) in topics {
                for (channel, stats) in &sum.channels {
                    self.labelled(name, format_args!("topic=\"{topic}\",channel=\"{channel}\""), value(stats));
                }
            }
        }
    }

    /// Metrics of a clustered node.
    fn replication(&mut self, shards: &[ShardStats]) {
        let replicas = || shards.iter().flat_map(|s| &s.partitions).filter_map(|p| Some((p, p.replication.as_ref()?)));
        if replicas().next().is_none() {
            return;
        }
        let name = "ringmq_replica_leads";
        self.family(name, "gauge", "1 where this node leads the partition and its lease holds, else 0.");
        for (p, r) in replicas() {
            let labels = format_args!("topic=\"{}\",partition=\"{}\"", p.topic, p.partition);
            self.labelled(name, labels, u8::from(r.role.starts_with("leader") && r.role != LEASE_OVER));
        }
        let name = "ringmq_partition_in_sync_replicas";
        self.family(name, "gauge", "Members of the partition's ISR, as this node knows it.");
        for (p, r) in replicas() {
            self.labelled(name, format_args!("topic=\"{}\",partition=\"{}\"", p.topic, p.partition), r.isr.len());
        }
        let name = "ringmq_replica_alarm";
        self.family(name, "gauge", "1 where the replica here waits for an operator, else 0.");
        for (p, r) in replicas() {
            let labels = format_args!("topic=\"{}\",partition=\"{}\"", p.topic, p.partition);
            self.labelled(name, labels, u8::from(r.alarm.is_some()));
        }
        let name = "ringmq_follower_lag_bytes";
        self.family(name, "gauge", "Bytes of a leader's log that are not durable on the follower.");
        for (p, r) in replicas() {
            for f in &r.followers {
                let labels =
                    format_args!("topic=\"{}\",partition=\"{}\",follower=\"{}\"", p.topic, p.partition, escaped(&f.node));
                self.labelled(name, labels, f.lag);
            }
        }
    }
}

impl Page {
    /// Publishes and subscriptions that pass from node to node in a cluster.
    fn remote(&mut self, shards: &[ShardStats]) {
        let cores = || shards.iter().filter_map(|s| Some((s.core, s.remote.as_ref()?)));
        if cores().next().is_none() {
            return;
        }
        let outcomes: [Row<RemoteStats, Outcomes>; 2] = [
            (
                "ringmq_forwards_total",
                "counter",
                "Publishes of this node's clients for leaders elsewhere, by what became of them.",
                |r| r.counts.forwards,
            ),
            (
                "ringmq_relays_total",
                "counter",
                "Subscriptions of this node's clients at leaders elsewhere, by what became of them.",
                |r| r.counts.relays,
            ),
        ];
        for (name, kind, help, get) in outcomes {
            self.family(name, kind, help);
            for (core, remote) in cores() {
                for (told, outcome) in RemoteOutcome::ALL {
                    let labels = format_args!("core=\"{core}\",outcome=\"{outcome}\"");
                    self.labelled(name, labels, get(remote).get(told));
                }
            }
        }
        let rows: [Row<RemoteStats, u64>; 10] = [
            ("ringmq_forwards_sent_total", "counter", "Publishes sent to leaders elsewhere, repeated ones again.", |r| {
                r.counts.forwarded.count
            }),
            ("ringmq_forwards_sent_bytes_total", "counter", "Bytes of their bodies.", |r| r.counts.forwarded.bytes),
            ("ringmq_forwards_waiting_bytes", "gauge", "Memory of publishes that wait for a leader elsewhere.", |r| {
                r.forwarding_bytes
            }),
            ("ringmq_forwards_received_total", "counter", "Publishes that other nodes sent here.", |r| r.counts.received.count),
            ("ringmq_forwards_received_bytes_total", "counter", "Bytes of their bodies.", |r| r.counts.received.bytes),
            ("ringmq_forwards_received_waiting_bytes", "gauge", "Memory of publishes of other nodes that wait for space.", |r| {
                r.parked_bytes
            }),
            ("ringmq_relays", "gauge", "Subscriptions of this node's clients at leaders elsewhere.", |r| r.relays),
            ("ringmq_relayed_bytes_total", "counter", "Bytes for this node's clients from leaders elsewhere.", |r| {
                r.counts.relayed.bytes
            }),
            ("ringmq_relay_guests", "gauge", "Subscriptions of other nodes' clients here.", |r| r.guests),
            ("ringmq_relay_guest_bytes_total", "counter", "Bytes for other nodes' clients.", |r| r.counts.delivered.bytes),
        ];
        for (name, kind, help, value) in rows {
            self.family(name, kind, help);
            for (core, remote) in cores() {
                self.labelled(name, format_args!("core=\"{core}\""), value(remote));
            }
        }
    }
}

/// A node's name comes from the cluster file.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::stats::{PartitionStats, ReplicationStats, TurnStats};
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn node(topics: usize, channels: usize) -> Vec<ShardStats> {
        let channel =
            |c: usize| ChannelStats { channel: format!("c{c}#ephemeral"), depth: 2, client_count: 1, ..Default::default() };
        let partition = |t: usize, partition| PartitionStats {
            topic: format!("t{t}"),
            partition,
            depth: 1,
            message_count: 3,
            channels: (0..channels).map(channel).collect(),
            ..Default::default()
        };
        let shard = |core: u16| {
            let mut counts = Counts::default();
            counts.publishes.record(Duration::from_micros(700));
            counts.errors.insert("E_INVALID".into(), 2);
            let partitions = (0..topics).map(|t| partition(t, core)).collect();
            let turns = TurnStats { count: 9, busy_us: 1_500_000, ..TurnStats::default() };
            let mut remote = RemoteStats { relays: 3, ..RemoteStats::default() };
            remote.counts.forwards.count(RemoteOutcome::Unknown);
            remote.counts.forwarded.add(70);
            let remote = Some(remote);
            ShardStats { core, healthy: true, partitions, counts, remote, turns, ..ShardStats::default() }
        };
        vec![shard(0), shard(1)]
    }

    /// The checks of promtool: one HELP and TYPE before the samples of a family, `_total` on counters alone, no sample twice.
    fn check(text: &str) {
        let (mut family, mut kind, mut seen, mut families) = ("", "", BTreeSet::new(), BTreeSet::new());
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a help text");
                assert!(families.insert(name), "{name} comes twice");
                assert!(help.ends_with('.'), "{help}");
                let typed = lines.next().and_then(|l| l.strip_prefix("# TYPE ")).expect("TYPE follows HELP");
                (family, kind) = typed.split_once(' ').expect("a type");
                assert_eq!(family, name);
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().expect("a name");
            let base = match kind {
                "histogram" => {
                    ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).expect("a part of a histogram")
                }
                _ => name,
            };
            assert_eq!(base, family, "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(series), "{series} comes twice");
        }
    }

    /// Grafana and Prometheus show nothing, and say nothing, where a metric has another name.
    #[test]
    fn the_dashboard_and_the_alert_rules_name_metrics_that_there_are() {
        let mut shards = node(1, 1);
        shards[0].partitions[0].replication = Some(Default::default());
        let text = render(&shards, &ProcessFacts::default());
        let families: BTreeSet<&str> = text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        // The numbers of a cluster come from the agent's view.
        let of_cluster = include_str!("../../../../src/http/statistics.rs");
        let files = [
            include_str!("../../../../contrib/prometheus/ringmq.rules.yml"),
            include_str!("../../../../contrib/grafana/ringmq.json"),
        ];
        for file in files {
            let words = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let named: BTreeSet<&str> = words.filter(|w| w.starts_with("ringmq_") || w.starts_with("process_")).collect();
            assert!(named.len() > 8, "{named:?}");
            for name in named {
                let parts = ["", "_bucket", "_sum", "_count"];
                let is_rendered = parts.iter().any(|end| name.strip_suffix(end).is_some_and(|base| families.contains(base)));
                assert!(is_rendered || of_cluster.contains(&format!("\"{name}\"")), "{name}");
            }
        }
    }

    #[test]
    fn a_replica_that_waits_for_an_operator_is_told() {
        let mut shards = node(2, 1);
        let alarmed = ReplicationStats { alarm: Some("no".into()), role: "leader, opening", ..Default::default() };
        shards[0].partitions[0].replication = Some(alarmed);
        shards[0].partitions[1].replication = Some(Default::default());
        let text = render(&shards, &ProcessFacts::default());
        check(&text);
        let told: Vec<&str> = text.lines().filter(|l| l.starts_with("ringmq_replica_alarm{")).collect();
        assert!(told.len() == 2 && told[0].ends_with(" 1") && told[1].ends_with(" 0"), "{told:?}");
    }

    #[test]
    fn the_page_is_well_formed_and_sums_partitions() {
        let facts = ProcessFacts { version: "1.2", ..ProcessFacts::default() };
        let text = render(&node(2, 2), &facts);
        check(&text);
        for line in [
            "ringmq_build_info{version=\"1.2\"} 1",
            "ringmq_topic_messages_total{topic=\"t1\"} 6",
            "ringmq_topic_depth{topic=\"t0\"} 2",
            "ringmq_channel_depth{topic=\"t0\",channel=\"c1#ephemeral\"} 4",
            "ringmq_channel_clients{topic=\"t0\",channel=\"c1#ephemeral\"} 1",
            "ringmq_core_busy_seconds_total{core=\"1\"} 1.5",
            "ringmq_errors_total{kind=\"E_INVALID\"} 4",
            "ringmq_publish_duration_seconds_bucket{core=\"0\",le=\"0.0005\"} 0",
            "ringmq_publish_duration_seconds_bucket{core=\"0\",le=\"0.001\"} 1",
            "ringmq_publish_duration_seconds_bucket{core=\"0\",le=\"+Inf\"} 1",
            "ringmq_publish_duration_seconds_sum{core=\"0\"} 0.0007",
            "ringmq_forwards_total{core=\"1\",outcome=\"unknown\"} 1",
            "ringmq_forwards_total{core=\"1\",outcome=\"done\"} 0",
            "ringmq_forwards_sent_bytes_total{core=\"1\"} 70",
            "ringmq_relays{core=\"0\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
