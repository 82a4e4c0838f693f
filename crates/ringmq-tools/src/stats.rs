//! Statistics of one or more nodes, added up, and rates between two looks at them.

use crate::address::Nodes;
use crate::http::{HttpError, escaped};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub depth: u64,
    pub backend_depth: u64,
    pub in_flight: u64,
    pub deferred: u64,
    pub requeued: u64,
    pub timed_out: u64,
    pub messages: u64,
    pub clients: u64,
    /// Paused on any node.
    pub is_paused: bool,
}

impl Counts {
    fn add(&mut self, json: &Value) {
        let number = |name: &str| json[name].as_u64().unwrap_or(0);
        self.depth += number("depth");
        self.backend_depth += number("backend_depth");
        self.in_flight += number("in_flight_count");
        self.deferred += number("deferred_count");
        self.requeued += number("requeue_count");
        self.timed_out += number("timeout_count");
        self.messages += number("message_count");
        self.clients += json["client_count"].as_u64().unwrap_or_else(|| json["clients"].as_array().map_or(0, |c| c.len() as u64));
        self.is_paused |= json["paused"].as_bool().unwrap_or(false);
    }

    pub fn memory_depth(&self) -> u64 {
        self.depth.saturating_sub(self.backend_depth)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topic {
    #[serde(flatten)]
    pub counts: Counts,
    pub bytes: u64,
    pub channels: BTreeMap<String, Counts>,
}

/// Answers of the nodes at one time.
#[derive(Clone, Debug)]
pub struct StatsSample {
    pub at: Instant,
    pub topics: BTreeMap<String, Topic>,
    /// Nodes that are not well or did not answer, and why.
    pub troubles: Vec<String>,
    pub nodes: usize,
    pub connections: u64,
    /// Resident bytes, as far as nodes say.
    pub memory_bytes: u64,
    /// Publishes by their duration in seconds: cumulative, as Prometheus has it. Empty where no node says.
    pub publish_buckets: BTreeMap<u64, u64>,
}

impl StatsSample {
    pub fn empty() -> StatsSample {
        StatsSample {
            at: Instant::now(),
            topics: BTreeMap::new(),
            troubles: vec![],
            nodes: 0,
            connections: 0,
            memory_bytes: 0,
            publish_buckets: BTreeMap::new(),
        }
    }

    /// Asks every node. A silent node is a trouble, unless all are silent.
    pub async fn take(
        nodes: &Nodes,
        topic: Option<&str>,
        channel: Option<&str>,
        with_latency: bool,
    ) -> Result<StatsSample, HttpError> {
        let mut look = StatsSample::empty();
        let mut query = "/stats?format=json&include_clients=false&include_mem=true".to_owned();
        for (name, value) in [("topic", topic), ("channel", channel)] {
            query += &value.map(|value| format!("&{name}={}", escaped(value))).unwrap_or_default();
        }
        let mut failure = None;
        for address in nodes.http_addresses(topic).await? {
            let http = nodes.http(&address);
            match http.get(&query).await {
                Ok(stats) => look.add(&address, &stats),
                Err(error) => {
                    look.troubles.push(error.to_string());
                    failure = Some(error);
                    continue;
                }
            }
            if with_latency && let Ok(text) = http.text("/metrics").await {
                look.add_latency(&text);
            }
        }
        match failure {
            Some(error) if look.nodes == 0 => Err(error),
            _ => Ok(look),
        }
    }

    fn add(&mut self, address: &str, stats: &Value) {
        self.nodes += 1;
        let health = stats["health"].as_str().unwrap_or("OK");
        if health != "OK" {
            self.troubles.push(format!("{address}: {health}"));
        }
        self.memory_bytes += stats["memory"]["heap_in_use_bytes"].as_u64().unwrap_or(0);
        self.connections +=
            stats["cores"].as_array().into_iter().flatten().filter_map(|core| core["connections"].as_u64()).sum::<u64>();
        for topic in stats["topics"].as_array().into_iter().flatten() {
            let Some(name) = topic["topic_name"].as_str() else { continue };
            let known = self.topics.entry(name.to_owned()).or_default();
            known.counts.add(topic);
            known.bytes += topic["message_bytes"].as_u64().unwrap_or(0);
            for channel in topic["channels"].as_array().into_iter().flatten() {
                let Some(name) = channel["channel_name"].as_str() else { continue };
                known.channels.entry(name.to_owned()).or_default().add(channel);
            }
        }
    }

    fn add_latency(&mut self, metrics: &str) {
        for line in metrics.lines() {
            let Some(rest) = line.strip_prefix("ringmq_publish_duration_seconds_bucket{") else { continue };
            let Some((labels, count)) = rest.split_once("} ") else { continue };
            let le = labels.split(',').find_map(|label| label.strip_prefix("le=\"")?.strip_suffix('"'));
            // `+Inf` is infinite for Rust, too.
            let micros = le.and_then(|le| le.trim_start_matches('+').parse::<f64>().ok()).map(|s| (s * 1e6).min(1e15) as u64);
            if let (Some(micros), Ok(count)) = (micros, count.trim().parse::<u64>()) {
                *self.publish_buckets.entry(micros).or_default() += count;
            }
        }
    }

    /// Time within which a share of the publishes since `before` was answered: the upper bound of its bucket.
    pub fn publish_quantile(&self, before: &StatsSample, share: f64) -> Option<Duration> {
        let since = |micros: &u64, count: &u64| count.saturating_sub(before.publish_buckets.get(micros).copied().unwrap_or(0));
        let total = self.publish_buckets.iter().map(|(micros, count)| since(micros, count)).max().filter(|total| *total > 0)?;
        let wanted = (total as f64 * share).ceil() as u64;
        let (micros, _) = self.publish_buckets.iter().find(|(micros, count)| since(micros, count) >= wanted)?;
        Some(Duration::from_micros(*micros))
    }
}

/// Messages per second into a topic or channel, and out of it.
pub fn rates(now: &Counts, before: Option<&Counts>, seconds: f64) -> (f64, f64) {
    let Some(before) = before.filter(|_| seconds > 0.0) else { return (0.0, 0.0) };
    let came = now.messages.saturating_sub(before.messages) as f64;
    let waits = |c: &Counts| (c.depth + c.in_flight + c.deferred) as f64;
    let went = (came - (waits(now) - waits(before))).max(0.0);
    (came / seconds, went / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_add_up() {
        let mut look = StatsSample::empty();
        let stats = serde_json::json!({ "health": "OK", "memory": { "heap_in_use_bytes": 5 }, "cores": [{ "connections": 2 }],
            "topics": [{ "topic_name": "t", "depth": 1, "message_count": 4, "message_bytes": 9, "paused": false,
                "channels": [{ "channel_name": "c", "depth": 3, "backend_depth": 1, "client_count": 2, "paused": true }] }] });
        look.add("a", &stats);
        look.add("b", &stats);
        let topic = &look.topics["t"];
        assert_eq!((look.nodes, look.connections, topic.counts.messages, topic.bytes), (2, 4, 8, 18));
        assert_eq!(
            (topic.channels["c"].memory_depth(), topic.channels["c"].clients, topic.channels["c"].is_paused),
            (4, 4, true)
        );
        look.add("c", &serde_json::json!({ "health": "NOK - x", "topics": null }));
        assert_eq!(look.troubles, ["c: NOK - x"]);
    }

    #[test]
    fn rates_count_what_came_and_what_went() {
        let counts = |messages, depth| Counts { messages, depth, ..Counts::default() };
        assert_eq!(rates(&counts(300, 50), Some(&counts(100, 70)), 2.0), (100.0, 110.0));
        assert_eq!(rates(&counts(300, 50), None, 2.0), (0.0, 0.0));
        // The node was started anew.
        assert_eq!(rates(&counts(0, 50), Some(&counts(100, 20)), 1.0), (0.0, 0.0));
    }

    #[test]
    fn a_latency_is_that_of_the_interval() {
        let text = |fast: u64, slow: u64| {
            let all = fast + slow;
            let line = |le, n| format!("ringmq_publish_duration_seconds_bucket{{core=\"0\",le=\"{le}\"}} {n}\n");
            line("0.001", fast) + &line("0.01", all) + &line("+Inf", all)
        };
        let (mut before, mut now) = (StatsSample::empty(), StatsSample::empty());
        before.add_latency(&text(1000, 0));
        now.add_latency(&text(1090, 10));
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!((now.publish_quantile(&before, 0.5), now.publish_quantile(&before, 0.99)), (ms(1), ms(10)));
        assert_eq!(now.publish_quantile(&now, 0.5), None);
    }
}
