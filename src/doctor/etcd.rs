//! The members of the etcd that decides about the cluster: whether they answer, their version, their alarms.

use super::Finding;
use crate::config::Settings;
use crate::coordinator::store;
use crate::etcd::health::Health;

const NAME: &str = "etcd";

/// A line for each endpoint of `--etcd-endpoints`. None of them keeps a node from its start: it waits for its etcd.
pub fn check(settings: &Settings) -> Vec<Finding> {
    if !settings.has_etcd() {
        return vec![];
    }
    match store::health(settings) {
        Err(error) => vec![Finding::fail(NAME, error.to_string(), "correct this: the node does not start with it")],
        Ok(all) => all.iter().map(finding).collect(),
    }
}

fn finding(health: &Health) -> Finding {
    let Health { endpoint, version, alarms } = health;
    let version = match version {
        Err(why) => {
            return Finding::warn(NAME, format!("{endpoint}: {why}"), "the node serves once one of its endpoints answers");
        }
        Ok(version) => version,
    };
    let found = format!("{endpoint}: version {version}");
    if !alarms.is_empty() {
        let remedy =
            "etcd takes no write until it is compacted, defragmented and the alarm is disarmed (docs/cluster-failures.md)";
        return Finding::warn(NAME, format!("{found}, alarm {}", alarms.join(", ")), remedy);
    }
    if health.is_fit() == Some(false) {
        let remedy = "use 3.5.28, 3.6.9, 3.7 or later in production: this version may lose events and renew expired leases";
        return Finding::warn(NAME, found, remedy);
    }
    Finding::ok(NAME, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;
    use crate::etcd::Endpoint;

    #[test]
    fn an_old_version_an_alarm_and_a_silent_member_are_warnings() {
        let with = |version: Result<&str, &str>, alarms: &[&str]| {
            let endpoint = Endpoint::parse("http://h:1").expect("a URL");
            let version = version.map(String::from).map_err(String::from);
            finding(&Health { endpoint, version, alarms: alarms.iter().map(|a| a.to_string()).collect() })
        };
        assert_eq!(with(Ok("3.6.9"), &[]).level, Level::Ok);
        for (finding, part) in [
            (with(Ok("3.4.23"), &[]), "3.5.28"),
            (with(Ok("3.6.9"), &["NOSPACE"]), "NOSPACE"),
            (with(Err("no answer in time"), &[]), "no answer"),
        ] {
            assert!(finding.level == Level::Warn && finding.to_string().contains(part), "{finding}");
        }
        assert!(check(&Settings::default()).is_empty(), "a node without an etcd");
    }
}
