//! Addresses of nodes and nsqlookupds, by the flags of nsq_tail, nsq_stat and to_nsq.

use crate::http::{Http, HttpError, escaped};
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::Value;
use std::time::Duration;

pub const TCP: &str = "nsqd-tcp-address";
pub const HTTP: &str = "nsqd-http-address";
pub const LOOKUPD: &str = "lookupd-http-address";

/// A flag that may be repeated, or hold several addresses with commas between them.
pub fn arg(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("host:port")
        .action(ArgAction::Append)
        .value_delimiter(',')
        .value_parser(parse)
        .help(help)
}

fn parse(text: &str) -> Result<String, String> {
    let wanted = || "host:port is expected, such as 127.0.0.1:4151".to_owned();
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let (host, port) = bare.rsplit_once(':').ok_or_else(wanted)?;
    port.parse::<u16>().map_err(|_| wanted())?;
    Ok(if host.is_empty() { format!("127.0.0.1:{port}") } else { bare.to_owned() })
}

pub fn given(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.try_get_many::<String>(name).ok().flatten().into_iter().flatten().cloned().collect()
}

/// Go's durations, as the flags of NSQ's tools have them.
pub fn duration(text: &str) -> Result<Duration, String> {
    let ns = ringmq_core::config::value::parse_duration_ns(text)?;
    u64::try_from(ns).map(Duration::from_nanos).map_err(|_| "this is too long".into())
}

pub fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|d| if d.is_zero() { Err("must be positive".into()) } else { Ok(d) })
}

/// The nodes behind the flags: those that were named, or those that the nsqlookupds know, or the one of this machine.
#[derive(Clone, Debug)]
pub struct Nodes {
    named: Vec<String>,
    lookupds: Vec<String>,
    connect_limit: Duration,
    limit: Duration,
}

impl Nodes {
    pub fn of(matches: &ArgMatches, name: &str, default: &str) -> Result<Nodes, String> {
        let (mut named, lookupds) = (given(matches, name), given(matches, LOOKUPD));
        if !named.is_empty() && !lookupds.is_empty() {
            return Err(format!("give --{name} or --{LOOKUPD}, not both"));
        }
        if named.is_empty() && lookupds.is_empty() {
            named.push(default.into());
        }
        let limit = |name: &str, default| {
            matches.try_get_one::<Duration>(name).ok().flatten().copied().unwrap_or(Duration::from_secs(default))
        };
        let (connect_limit, limit) = (limit("http-client-connect-timeout", 2), limit("http-client-request-timeout", 5));
        Ok(Nodes { named, lookupds, connect_limit, limit })
    }

    pub fn is_looked_up(&self) -> bool {
        !self.lookupds.is_empty()
    }

    pub fn http(&self, address: &str) -> Http {
        Http::with_limits(address, self.connect_limit, self.limit)
    }

    /// NSQ addresses of those that have the topic.
    pub async fn tcp(&self, topic: &str) -> Result<Vec<String>, HttpError> {
        self.of_port(Some(topic), "tcp_port").await
    }

    /// HTTP addresses; of a topic, if one is named.
    pub async fn http_addresses(&self, topic: Option<&str>) -> Result<Vec<String>, HttpError> {
        self.of_port(topic, "http_port").await
    }

    /// A lookup that fails counts when all of them fail.
    async fn of_port(&self, topic: Option<&str>, port: &str) -> Result<Vec<String>, HttpError> {
        let (mut found, mut failure, mut is_answered) = (self.named.clone(), None, self.lookupds.is_empty());
        for lookupd in &self.lookupds {
            let path = topic.map_or_else(|| "/nodes".to_owned(), |topic| format!("/lookup?topic={}", escaped(topic)));
            match self.http(lookupd).get(&path).await {
                Ok(answer) => {
                    is_answered = true;
                    found.extend(answer["producers"].as_array().into_iter().flatten().filter_map(|node| address_of(node, port)));
                }
                // The topic is not known there.
                Err(error) if error.status() == Some(404) => is_answered = true,
                Err(error) => failure = Some(error),
            }
        }
        found.sort();
        found.dedup();
        match failure {
            Some(error) if !is_answered => Err(error),
            _ => Ok(found),
        }
    }
}

fn address_of(node: &Value, port: &str) -> Option<String> {
    let host = node["broadcast_address"].as_str()?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Some(format!("{host}:{}", node[port].as_u64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        assert_eq!(parse("h:1").as_deref(), Ok("h:1"));
        assert_eq!(parse(":1").as_deref(), Ok("127.0.0.1:1"));
        assert_eq!(parse("http://h:1/").as_deref(), Ok("h:1"));
        assert!(parse("h").is_err() && parse("h:x").is_err());
    }

    #[test]
    fn a_node_of_a_lookup_has_an_address() {
        let node = serde_json::json!({ "broadcast_address": "::1", "tcp_port": 4150, "http_port": 4151 });
        assert_eq!(address_of(&node, "tcp_port").as_deref(), Some("[::1]:4150"));
        assert_eq!(address_of(&serde_json::json!({}), "tcp_port"), None);
    }
}
