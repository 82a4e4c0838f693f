//! `ringmq cluster doctor`: the etcd of a cluster and its nodes, as they can be seen from here.
//!
//! The gathered data is [`ClusterHealth`]; [`findings`] judges it.

use super::finding::Finding;
use crate::etcd::health::Health;
use std::collections::BTreeMap;
use std::time::Duration;

/// A read of everything that takes longer makes failovers late.
const SLOW: Duration = Duration::from_millis(500);
/// Largest difference of nodes' clocks, which decide about due times and retention. Nodes answer in whole seconds.
const CLOCK_SECONDS_MAX: i64 = 3;
/// Part of etcd's quota that is left, at least.
const QUOTA_PERCENT_MAX: u64 = 80;

/// Settings that are the cluster's rather than a node's: a client must not hear one thing here and another there.
pub const AGREED: [&str; 11] = [
    "lease_ttl",
    "replicas",
    "min_isr",
    "partitions",
    "max_msg_size",
    "max_body_size",
    "max_req_timeout",
    "max_msg_timeout",
    "follower_limit",
    "replace_after",
    "rebuilds_max",
];

/// Facts that a node tells, or the reason why it tells nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Node {
    pub name: String,
    pub version: String,
    /// True while the node's lease holds.
    pub is_there: bool,
    /// Addresses that take no connection: which one, and why.
    pub unreachable: Vec<(String, String)>,
    /// Answer of `/ping`.
    pub ping: Option<String>,
    /// Difference of the node's clock to the clock of this machine, in seconds; positive: the node is ahead.
    pub clock_seconds: Option<i64>,
    /// Values of the settings [`AGREED`]; a setting that the node does not tell is missing.
    pub settings: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug, Default)]
pub struct ClusterHealth {
    pub members: Vec<Health>,
    /// Time of reading all keys, which takes a quorum; or why that failed.
    pub read: Option<Result<Duration, String>>,
    /// Bytes of the database and its quota, where etcd tells them.
    pub space: Option<(u64, u64)>,
    pub nodes: Vec<Node>,
}

pub fn findings(seen: &ClusterHealth) -> Vec<Finding> {
    let mut all: Vec<Finding> = seen.members.iter().map(member).collect();
    all.extend(seen.members.iter().filter(|health| !health.alarms.is_empty()).map(|health| {
        let found = format!("alarm {}", health.alarms.join(", "));
        Finding::bad("etcd", found, "compact, defragment, then `etcdctl alarm disarm`; raise etcd's quota")
    }));
    all.extend(seen.space.map(|(used, quota)| space(used, quota)));
    all.extend(seen.read.as_ref().map(|read| match read {
        Ok(took) if *took > SLOW => {
            let found = format!("reading everything took {} ms", took.as_millis());
            Finding::bad("etcd", found, "give etcd a faster disk, or use a closer etcd: leases and elections wait for it")
        }
        Ok(took) => Finding::good("etcd", format!("etcd has a quorum; reading everything took {} ms", took.as_millis())),
        Err(why) => Finding::bad("etcd", format!("etcd does not answer reads: {why}"), "start a majority of its members"),
    }));
    all.extend(seen.nodes.iter().flat_map(node));
    all.extend(versions(&seen.nodes));
    all.extend(AGREED.iter().filter_map(|setting| agreement(&seen.nodes, setting)));
    all
}

fn member(health: &Health) -> Finding {
    let about = format!("etcd {}", health.endpoint);
    match (&health.version, health.is_fit()) {
        (Ok(version), Some(true)) => Finding::good(about, format!("version {version}")),
        (Ok(version), _) => {
            let remedy = "use 3.5.28, 3.6.9, 3.7 or later: older versions may lose events of a watch, or renew an expired lease";
            Finding::bad(about, format!("version {version}"), remedy)
        }
        (Err(why), _) => {
            Finding::bad(about, format!("no answer: {why}"), "start this member, or take it out of --etcd-endpoints")
        }
    }
}

fn space(used: u64, quota: u64) -> Finding {
    let found = format!("{} MiB of {} MiB are in use", used >> 20, quota >> 20);
    if used.saturating_mul(100) > quota.saturating_mul(QUOTA_PERCENT_MAX) {
        return Finding::bad("etcd", found, "let etcd compact by itself, then `etcdctl defrag`; raise its quota");
    }
    Finding::good("etcd", found)
}

fn node(node: &Node) -> Vec<Finding> {
    let about = format!("node {}", node.name);
    if !node.is_there {
        return vec![Finding::bad(
            about,
            "the node is away: its lease is over",
            "start the node, or remove it with `ringmq cluster \
            remove`",
        )];
    }
    let mut all: Vec<Finding> = vec![];
    for (address, why) in &node.unreachable {
        let remedy =
            "open the address for nodes and clients, or give another one (--broadcast-address, --broadcast-peer-address)";
        all.push(Finding::bad(&about, format!("{address} takes no connection from here: {why}"), remedy));
    }
    if let Some(ping) = node.ping.as_ref().filter(|ping| *ping != "OK") {
        all.push(Finding::bad(&about, format!("/ping: {ping}"), "act on the answer (docs/operating.md)"));
    }
    if let Some(seconds) = node.clock_seconds.filter(|seconds| seconds.abs() >= CLOCK_SECONDS_MAX) {
        let found = format!("the node's clock differs by {seconds} s from this machine's");
        all.push(Finding::bad(&about, found, "run NTP on both: deferred messages and retention go by the clock"));
    }
    if all.is_empty() {
        all.push(Finding::good(about, format!("version {}, reachable and healthy", node.version)));
    }
    all
}

fn versions(nodes: &[Node]) -> Option<Finding> {
    let of = group(nodes.iter().filter(|node| node.is_there).map(|node| (node.version.as_str(), node.name.as_str())));
    let told = |(version, names): (&&str, &Vec<&str>)| format!("{version}: {}", names.join(" "));
    let found = of.iter().map(told).collect::<Vec<_>>().join("; ");
    (of.len() > 1).then(|| Finding::bad("versions", found, "end the upgrade: run one version on all nodes"))
}

fn agreement(nodes: &[Node], setting: &'static str) -> Option<Finding> {
    let of = group(nodes.iter().filter_map(|node| Some((node.settings.get(setting)?.as_str(), node.name.as_str()))));
    let told = |(value, names): (&&str, &Vec<&str>)| format!("{value} on {}", names.join(" "));
    let found = of.iter().map(told).collect::<Vec<_>>().join("; ");
    (of.len() > 1).then(|| Finding::bad(format!("setting {setting}"), found, "give all nodes the same value"))
}

fn group<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    pairs.for_each(|(value, name)| of.entry(value).or_default().push(name));
    of
}

/// Seconds since 1970 of the date in the head of an HTTP answer (`Sun, 06 Nov 1994 08:49:37 GMT`).
pub fn unix_seconds(date: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = date.split([' ', ':']).skip(1);
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let day = number(words.next())?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
    let (year, hour, minute, second) =
        (number(words.next())?, number(words.next())?, number(words.next())?, number(words.next())?);
    // Days of the years that begin in March, so that the leap day is a year's last.
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TABLE;
    use crate::etcd::Endpoint;

    fn health(version: &str) -> Health {
        let endpoint = Endpoint::parse("http://127.0.0.1:2379").unwrap();
        Health { endpoint, version: Ok(version.into()), alarms: vec![] }
    }

    fn well(name: &str) -> Node {
        let settings = [("replicas", "3".to_owned())].into();
        Node { name: name.into(), version: "1".into(), is_there: true, ping: Some("OK".into()), settings, ..Node::default() }
    }

    fn bad(seen: &ClusterHealth) -> Vec<String> {
        let found = findings(seen);
        assert!(found.iter().all(|f| f.is_bad != f.remedy.is_empty()), "each has a remedy: {found:?}");
        found.into_iter().filter(|f| f.is_bad).map(|f| format!("{}: {}", f.about, f.found)).collect()
    }

    #[test]
    fn a_cluster_that_is_well_has_no_bad_finding() {
        let read = Some(Ok(Duration::from_millis(20)));
        let seen = ClusterHealth {
            members: vec![health("3.6.9")],
            read,
            space: Some((1 << 20, 2 << 30)),
            nodes: vec![well("a"), well("b")],
        };
        assert_eq!(bad(&seen), [""; 0]);
        assert_eq!(findings(&seen).len(), 5);
    }

    #[test]
    fn what_is_not_well_is_named() {
        let mut old = health("3.4.1");
        old.alarms = vec!["NOSPACE".into()];
        let mut away = well("a");
        away.is_there = false;
        let mut other = well("b");
        other.settings.insert("replicas", "2".into());
        other.unreachable.push(("peer h:1".into(), "refused".into()));
        (other.ping, other.clock_seconds, other.version) = (Some("NOK - x".into()), Some(-4), "2".into());
        let seen = ClusterHealth {
            members: vec![old],
            read: Some(Err("no quorum".into())),
            space: Some((19 << 26, 20 << 26)),
            nodes: vec![away, other, well("c")],
        };
        let expected = [
            "etcd http://127.0.0.1:2379: version 3.4.1",
            "etcd: alarm NOSPACE",
            "etcd: 1216 MiB of 1280 MiB are in use",
            "etcd: etcd does not answer reads: no quorum",
            "node a: the node is away: its lease is over",
            "node b: peer h:1 takes no connection from here: refused",
            "node b: /ping: NOK - x",
            "node b: the node's clock differs by -4 s from this machine's",
            "versions: 1: c; 2: b",
            "setting replicas: 2 on b; 3 on a c",
        ];
        assert_eq!(bad(&seen), expected);
    }

    #[test]
    fn the_settings_that_must_agree_are_settings() {
        for agreed in AGREED {
            assert!(TABLE.iter().any(|setting| setting.file_key() == agreed), "{agreed}");
        }
    }

    #[test]
    fn a_date_of_http_is_read() {
        assert_eq!(unix_seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(unix_seconds("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(unix_seconds("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199));
        assert_eq!((unix_seconds(""), unix_seconds("Sun, 06 Foo 1994 08:49:37 GMT")), (None, None));
    }
}
