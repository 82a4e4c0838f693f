//! Lines for statsd, with nsqd's names: counters as their growth since the last push, gauges as they are.

use super::end_to_end::{EndToEnd, Sample};
use super::stats::{ChannelStats, ShardStats};
use std::collections::BTreeMap;

/// Figures of a node that are pushed. Counters are as of this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    topics: BTreeMap<String, TopicCounts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TopicCounts {
    messages: u64,
    bytes: u64,
    depth: u64,
    channels: BTreeMap<String, ChannelStats>,
}

impl TopicCounts {
    /// Latencies over all channels.
    fn end_to_end(&self) -> Option<Sample> {
        let mut samples = self.channels.values().filter_map(|c| c.end_to_end.as_ref());
        let mut all = samples.next()?.clone();
        samples.for_each(|sample| all.add(sample));
        Some(all)
    }
}

impl Pushed {
    pub fn of(shards: Vec<ShardStats>, without_ephemeral: bool) -> Self {
        let mut topics: BTreeMap<String, TopicCounts> = BTreeMap::new();
        let is_wanted = |name: &str| !(without_ephemeral && name.ends_with("#ephemeral"));
        for shard in shards {
            for name in shard.topics.into_iter().filter(|name| is_wanted(name)) {
                topics.entry(name).or_default();
            }
            for p in shard.partitions.into_iter().filter(|p| is_wanted(&p.topic)) {
                let sum = topics.entry(p.topic).or_default();
                sum.messages += p.message_count;
                sum.bytes += p.message_bytes;
                sum.depth += p.depth;
                for mut c in p.channels.into_iter().filter(|c| is_wanted(&c.channel)) {
                    let all = sum.channels.entry(std::mem::take(&mut c.channel)).or_default();
                    all.add_counts(&c);
                    if let Some(sample) = &c.end_to_end {
                        all.end_to_end.get_or_insert_default().add(sample);
                    }
                }
            }
        }
        Pushed { topics }
    }

    /// Lines of a push, without the prefix. `last` has the figures of the previous push; a new topic or channel grew from zero.
    /// `quantiles`: of the times from publish to FIN.
    pub fn lines(&self, last: &Pushed, quantiles: &[f64]) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, t) in &self.topics {
            let was = last.topics.get(name).cloned().unwrap_or_default();
            lines.push(grown(format_args!("topic.{name}.message_count"), t.messages, was.messages));
            lines.push(grown(format_args!("topic.{name}.message_bytes"), t.bytes, was.bytes));
            lines.push(gauge(format_args!("topic.{name}.depth"), t.depth));
            lines.push(gauge(format_args!("topic.{name}.backend_depth"), t.depth));
            for (what, value) in EndToEnd::of(t.end_to_end().as_ref(), quantiles).gauges() {
                lines.push(gauge(format_args!("topic.{name}.{what}"), value));
            }
            for (channel, c) in &t.channels {
                let was = was.channels.get(channel).cloned().unwrap_or_default();
                let at = |what: &str| format!("topic.{name}.channel.{channel}.{what}");
                lines.push(grown(format_args!("{}", at("message_count")), c.message_count, was.message_count));
                lines.push(gauge(format_args!("{}", at("depth")), c.depth));
                lines.push(gauge(format_args!("{}", at("backend_depth")), c.depth));
                lines.push(gauge(format_args!("{}", at("in_flight_count")), c.in_flight_count));
                lines.push(gauge(format_args!("{}", at("deferred_count")), c.deferred_count));
                lines.push(grown(format_args!("{}", at("requeue_count")), c.requeue_count, was.requeue_count));
                lines.push(grown(format_args!("{}", at("timeout_count")), c.timeout_count, was.timeout_count));
                lines.push(gauge(format_args!("{}", at("clients")), c.client_count));
                for (what, value) in EndToEnd::of(c.end_to_end.as_ref(), quantiles).gauges() {
                    lines.push(gauge(format_args!("{}", at(&what)), value));
                }
            }
        }
        lines
    }
}

/// Lines about memory, under nsqd's names, which are those of Go's heap. The resident memory counts as in use; the other values do not
/// exist here and are zero.
pub fn memory_lines(resident_bytes: u64) -> Vec<String> {
    let zero = ["heap_objects", "heap_idle_bytes"].map(|name| gauge(format_args!("mem.{name}"), 0));
    let rest = ["heap_released_bytes", "gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"];
    let mut lines: Vec<String> = zero.into();
    lines.push(gauge(format_args!("mem.heap_in_use_bytes"), resident_bytes));
    lines.extend(rest.map(|name| gauge(format_args!("mem.{name}"), 0)));
    lines.push(grown(format_args!("mem.gc_runs"), 0, 0));
    lines
}

/// A channel that was made anew under its name begins at zero again.
fn grown(name: std::fmt::Arguments<'_>, now: u64, was: u64) -> String {
    format!("{name}:{}|c\n", now.checked_sub(was).unwrap_or(now))
}

fn gauge(name: std::fmt::Arguments<'_>, value: u64) -> String {
    format!("{name}:{value}|g\n")
}

/// `--statsd-prefix` with `%s` for the node, whose dots and colons would be levels of the name, and `%%` for a percent sign.
pub fn prefix(setting: &str, broadcast_address: &str, http_port: u16) -> String {
    let host = if broadcast_address.contains(':') { format!("[{broadcast_address}]") } else { broadcast_address.to_owned() };
    let key = format!("{host}:{http_port}").replace(['.', ':'], "_");
    let prefix = setting.replace("%s", &key).replace("%%", "%");
    if prefix.is_empty() || prefix.ends_with('.') { prefix } else { format!("{prefix}.") }
}

/// Whole lines in packets of at most `max` bytes; a longer line is a packet of its own.
pub fn packets(prefix: &str, lines: &[String], max: usize) -> Vec<String> {
    let mut packets: Vec<String> = Vec::new();
    for line in lines {
        match packets.last_mut().filter(|packet| packet.len() + prefix.len() + line.len() <= max) {
            Some(packet) => packet.extend([prefix, line]),
            None => packets.push(format!("{prefix}{line}")),
        }
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::stats::PartitionStats;

    fn node(message_count: u64) -> Vec<ShardStats> {
        let channel =
            |name: &str| ChannelStats { channel: name.into(), message_count, depth: 4, client_count: 1, ..Default::default() };
        let partition = |partition| PartitionStats {
            topic: "t".into(),
            partition,
            message_count,
            channels: vec![channel("c"), channel("e#ephemeral")],
            ..Default::default()
        };
        vec![ShardStats {
            topics: vec!["t".into(), "x#ephemeral".into()],
            partitions: vec![partition(0), partition(1)],
            ..Default::default()
        }]
    }

    #[test]
    fn counters_are_what_they_grew_by_and_gauges_are_sums() {
        let (first, second) = (Pushed::of(node(3), false), Pushed::of(node(5), true));
        let lines = first.lines(&Pushed::default(), &[]);
        assert_eq!(lines.len(), 2 * 4 + 2 * 8);
        assert!(lines.contains(&"topic.t.message_count:6|c\n".into()) && lines.contains(&"topic.x#ephemeral.depth:0|g\n".into()));
        let lines = second.lines(&first, &[]);
        assert_eq!(lines.len(), 4 + 8, "{lines:?}");
        for line in [
            "topic.t.message_count:4|c\n",
            "topic.t.channel.c.message_count:4|c\n",
            "topic.t.channel.c.depth:8|g\n",
            "topic.t.channel.c.clients:1|g\n",
        ] {
            assert!(lines.contains(&line.into()), "{line} is not in {lines:?}");
        }
        assert!(
            Pushed::of(node(1), true).lines(&second, &[]).contains(&"topic.t.message_count:2|c\n".into()),
            "a topic that was made anew"
        );
    }

    #[test]
    fn the_prefix_names_the_node_and_packets_hold_whole_lines() {
        assert_eq!(prefix("nsq.%s", "10.0.0.1", 4151), "nsq.10_0_0_1_4151.");
        assert_eq!(prefix("a%%b.%s", "h", 1), "a%b.h_1.");
        assert_eq!((prefix("x.", "h", 1).as_str(), prefix("", "h", 1).as_str()), ("x.", ""));
        let lines: Vec<String> = ["a:1|c\n", "b:1|c\n", "c:1|c\n"].map(String::from).into();
        assert_eq!(packets("p.", &lines, 16), ["p.a:1|c\np.b:1|c\n", "p.c:1|c\n"]);
        assert_eq!(packets("p.", &lines, 3).len(), 3);
    }
}
