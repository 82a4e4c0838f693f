//! Version and alarms of each member, for doctor and the log.

use super::fault;
use super::link::{Endpoint, EtcdConnection};
use super::{CONNECT_PATIENCE, Etcd, PATIENCE};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

/// Condition of one endpoint, for an operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Health {
    pub endpoint: Endpoint,
    /// `3.5.28`; or why it is not known.
    pub version: Result<String, String>,
    /// Alarms that are on, such as `NOSPACE`.
    pub alarms: Vec<String>,
}

impl Health {
    /// Whether the version is one that production may rely on. `None`: it is not known.
    pub fn is_fit(&self) -> Option<bool> {
        self.version.as_deref().ok().map(is_fit)
    }
}

/// True for 3.5.28, 3.6.9, 3.7 and later versions of each: older ones lose events of watches, or renew leases that are over.
pub fn is_fit(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 5, patch) => patch >= 28,
        (3, 6, patch) => patch >= 9,
        (3, minor, _) => minor >= 7,
        (major, ..) => major > 3,
    }
}

impl Etcd {
    /// Asks every endpoint, one after the other.
    pub async fn health(&self) -> Vec<Health> {
        let mut all = vec![];
        for endpoint in &self.options.endpoints {
            all.push(Health { endpoint: endpoint.clone(), version: self.version(endpoint).await, alarms: vec![] });
        }
        let alarms = self.alarms().await;
        // Alarms are the cluster's: any member tells all of them.
        if let Some(first) = all.first_mut() {
            first.alarms = alarms;
        }
        all
    }

    async fn version(&self, endpoint: &Endpoint) -> Result<String, String> {
        let until = Instant::now() + PATIENCE;
        let asked = async {
            let connected = EtcdConnection::connect(endpoint, self.options.tls.clone(), Instant::now() + CONNECT_PATIENCE).await;
            let mut link = connected.map_err(|e| fault::Fault::from(e).to_string())?;
            let replied = link.get("/version", 64 << 10).await.map_err(|e| fault::Fault::from(e).to_string())?;
            let value: Value = serde_json::from_slice(&replied.body).map_err(|e| format!("this is not etcd: {e}"))?;
            let version = value["etcdserver"].as_str().ok_or("this is not etcd: the answer has no version")?;
            Ok(version.to_owned())
        };
        timeout_at(until, asked).await.unwrap_or_else(|_| Err("no answer in time".into()))
    }

    /// Bytes of the database of a member, and its quota. `None`: it does not tell them (3.6 and later do).
    pub async fn space(&self) -> Option<(u64, u64)> {
        let answer = self.ask("/v3/maintenance/status", &serde_json::json!({}), PATIENCE).await.ok()?;
        let number = |key: &str| answer[key].as_str().and_then(|text| text.parse::<u64>().ok()).filter(|bytes| *bytes > 0);
        Some((number("dbSize")?, number("dbSizeQuota")?))
    }

    async fn alarms(&self) -> Vec<String> {
        let asked = self.ask("/v3/maintenance/alarm", &serde_json::json!({ "action": "GET" }), PATIENCE).await;
        let Ok(answer) = asked else { return vec![] };
        let alarms = answer["alarms"].as_array().cloned().unwrap_or_default();
        let mut names: Vec<String> = alarms.iter().filter_map(|alarm| alarm["alarm"].as_str().map(str::to_owned)).collect();
        names.sort();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_the_fixes_are_fit() {
        for (version, fit) in [
            ("3.4.23", false),
            ("3.4.99", false),
            ("3.5.27", false),
            ("3.5.28", true),
            ("3.6.8", false),
            ("3.6.9", true),
            ("3.7.0-rc.0", true),
            ("4.0.0", true),
            ("", false),
        ] {
            assert_eq!(is_fit(version), fit, "{version}");
        }
    }
}
