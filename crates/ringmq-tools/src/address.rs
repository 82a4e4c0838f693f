//! Addresses of nodes and nsqlookupds, by the flags of nsq_tail, nsq_stat and to_nsq.

use crate::http::{Http, HttpError, Limits, escaped};
use crate::secure::Terms;
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::Value;
use std::path::PathBuf;
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
        .value_parser(move |text: &str| parse(text, name != TCP))
        .help(help)
}

/// The flags of nsqadmin for HTTPS: with an address that begins with `https://`, and where a node wants TLS.
pub fn tls_args() -> [Arg; 4] {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("file").value_parser(clap::value_parser!(PathBuf)).help(help)
    };
    [
        file(ROOT_CA, "CAs (PEM) that may have signed the certificate of a node's --https-address [default: the system's]"),
        file(CERT, "Certificate (PEM) to show to a node that asks for one"),
        file(KEY, "Private key (PEM) of that certificate"),
        Arg::new(INSECURE).long(INSECURE).action(ArgAction::SetTrue).help("Do not verify the node's certificate"),
    ]
}

const ROOT_CA: &str = "http-client-tls-root-ca-file";
const CERT: &str = "http-client-tls-cert";
const KEY: &str = "http-client-tls-key";
const INSECURE: &str = "http-client-tls-insecure-skip-verify";

/// Terms of HTTPS by these flags.
pub fn https_terms(matches: &ArgMatches) -> Result<Terms, String> {
    let file = |name| matches.try_get_one::<PathBuf>(name).ok().flatten().cloned();
    let is_insecure = matches.try_get_one::<bool>(INSECURE).ok().flatten().copied().unwrap_or(false);
    let terms = Terms { ca: file(ROOT_CA), certificate: file(CERT), key: file(KEY), is_insecure, is_newest: false };
    if terms.certificate.is_some() != terms.key.is_some() {
        return Err(format!("give --{CERT} and --{KEY} together"));
    }
    Ok(terms)
}

/// `is_http`: the address may have a scheme.
fn parse(text: &str, is_http: bool) -> Result<String, String> {
    let wanted = || "host:port is expected, such as 127.0.0.1:4151".to_owned();
    let (scheme, bare) = match text.split_once("://") {
        None => ("", text),
        Some(("http", rest)) => ("", rest),
        Some(("https", rest)) if is_http => ("https://", rest),
        Some(_) => return Err(wanted()),
    };
    let bare = bare.trim_end_matches('/');
    let (host, port) = bare.rsplit_once(':').ok_or_else(wanted)?;
    port.parse::<u16>().map_err(|_| wanted())?;
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    Ok(format!("{scheme}{host}:{port}"))
}

pub fn given(matches: &ArgMatches, name: &str) -> Vec<String> {
    matches.try_get_many::<String>(name).ok().flatten().into_iter().flatten().cloned().collect()
}

/// Go's durations, as the flags of NSQ's tools have them.
pub fn duration(text: &str) -> Result<Duration, String> {
    let ns = ringmq_core::config::value::parse_duration_ns(text)?;
    u64::try_from(ns).map(Duration::from_nanos).map_err(|_| "the duration is too long".into())
}

pub fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|d| if d.is_zero() { Err("must be positive".into()) } else { Ok(d) })
}

/// The nodes behind the flags: those that were named, or those that the nsqlookupds know, or the one of this machine.
#[derive(Clone, Debug)]
pub struct Nodes {
    named: Vec<String>,
    lookupds: Vec<String>,
    limits: Limits,
    terms: Terms,
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
        let (connect, answer) = (limit("http-client-connect-timeout", 2), limit("http-client-request-timeout", 5));
        Ok(Nodes { named, lookupds, limits: Limits { connect, answer }, terms: https_terms(matches)? })
    }

    pub fn is_looked_up(&self) -> bool {
        !self.lookupds.is_empty()
    }

    pub fn http(&self, address: &str) -> Http {
        Http::with(address, self.limits, self.terms.clone())
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
        for (text, address) in [("h:1", "h:1"), (":1", "127.0.0.1:1"), ("http://h:1/", "h:1"), ("https://h:1", "https://h:1")] {
            assert_eq!(parse(text, true).as_deref(), Ok(address));
        }
        assert!(parse("h", true).is_err() && parse("h:x", true).is_err() && parse("ftp://h:1", true).is_err());
        assert!(parse("https://h:1", false).is_err(), "the NSQ protocol has its own TLS");
    }

    #[test]
    fn a_node_of_a_lookup_has_an_address() {
        let node = serde_json::json!({ "broadcast_address": "::1", "tcp_port": 4150, "http_port": 4151 });
        assert_eq!(address_of(&node, "tcp_port").as_deref(), Some("[::1]:4150"));
        assert_eq!(address_of(&serde_json::json!({}), "tcp_port"), None);
    }
}
