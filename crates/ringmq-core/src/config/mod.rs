//! Every setting, declared once: flags, TOML file, help and docs/settings.md follow from one table ([`table`]). Here are the
//! rules between settings, which no row can state.
//!
//! Pure: the file's text, the host's name and the number of CPUs are given, never looked up here.

pub mod doc;
pub mod file;
pub mod flags;
mod nsqd;
pub mod row;
mod table;
pub mod value;

pub use flags::{ConfigError, LoadedSettings, Notes, Surroundings, load};
use row::{Setting, Value};
use std::collections::BTreeMap;
pub use table::{Settings, TABLE};

/// Settings of nsqd that name something RingMQ does not have. They are accepted and named in the log.
pub static IGNORED: &[(&str, &str)] = &[
    ("sync-every", "every acknowledged message is synced"),
    ("sync-timeout", "every acknowledged message is synced"),
    ("queue-scan-selection-count", "timeouts are exact, there is no scan"),
    ("queue-scan-worker-pool-max", "timeouts are exact, there is no scan"),
    ("max-confirm-win", "channel-memory bounds the memory of unfinished messages, not their number"),
    ("node-id", "message ids come from the topic's random id and the partition's log"),
    ("id", "message ids come from the topic's random id and the partition's log"),
    ("worker-id", "message ids come from the topic's random id and the partition's log"),
    ("verbose", "use log-level"),
];

/// The name and the reason of a setting that is accepted and has no effect, by its flag or a key of the file.
pub fn ignored(name: &str) -> Option<&'static (&'static str, &'static str)> {
    IGNORED.iter().find(|(known, _)| file::is_key_of(known, name))
}

/// Settings that a topic may have of its own. `None`: the node's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicSettings {
    pub retention_ms: Option<u64>,
    pub retention_bytes: Option<u64>,
}

impl TopicSettings {
    /// (milliseconds, bytes): the topic's own where it has them, else the node's.
    pub fn retention(own: Option<&TopicSettings>, (ms, bytes): (u64, u64)) -> (u64, u64) {
        let own = own.cloned().unwrap_or_default();
        (own.retention_ms.unwrap_or(ms), own.retention_bytes.unwrap_or(bytes))
    }
}

impl Settings {
    /// Names of the settings that have another value in `other`.
    pub fn differences(&self, other: &Settings) -> Vec<&'static str> {
        let rows = TABLE.iter().filter(|row| (row.get)(self) != (row.get)(other)).map(|row| row.name);
        rows.chain((self.topics != other.topics).then_some("topics")).collect()
    }

    /// (milliseconds, bytes) for which a topic's messages are kept although every channel has confirmed them.
    pub fn retention_of(&self, topic: &str) -> (u64, u64) {
        TopicSettings::retention(self.topics.get(topic), (self.retention_ms, self.retention_bytes))
    }

    /// Raises limits that were not given, or that nsqd does not compare, to the values that other settings need.
    fn follow(&mut self, notes: &mut Notes) {
        if self.max_msg_timeout_ms < self.msg_timeout_ms {
            if self.given.contains("max-msg-timeout") {
                notes.warnings.push("max-msg-timeout is below msg-timeout, whose value is in force for both".into());
            }
            self.max_msg_timeout_ms = self.msg_timeout_ms;
        }
        if !self.given.contains("max-pub-waiting-size") {
            self.max_pub_waiting_size = self.max_pub_waiting_size.max(self.max_msg_size).max(self.max_body_size);
        }
    }

    /// Flags that give a node of this machine the settings that were given here, but for nsqlookupds, and tables of topics.
    pub fn as_flags(&self) -> Vec<String> {
        let rows = TABLE.iter().filter(|row| self.given.contains(row.name) && row.name != "lookupd-tcp-address");
        let flags = rows.map(|row| match row.value(self) {
            Value::List(values) => values.iter().map(|value| format!("--{}={value}", row.name)).collect(),
            value => vec![format!("--{}={}", row.name, row.show(&value))],
        });
        flags.flatten().collect()
    }

    /// Checks rules between settings, which no single row can state.
    fn check(&self) -> Result<(), ConfigError> {
        let pairs = [
            ("max-msg-size", self.max_msg_size, "max-pub-waiting-size", self.max_pub_waiting_size),
            ("max-body-size", self.max_body_size, "max-pub-waiting-size", self.max_pub_waiting_size),
        ];
        for (low_name, low, high_name, high) in pairs {
            if low > high {
                let show = |name: &str, n| find(name).map(|row| row.show(&Value::Number(n))).unwrap_or_default();
                return Err(ConfigError::Contradiction(format!(
                    "{low_name} ({}) must not be above {high_name} ({})",
                    show(low_name, low),
                    show(high_name, high)
                )));
            }
        }
        self.check_addresses()?;
        self.check_tls()?;
        self.check_native_tls()?;
        self.check_etcd()?;
        self.check_cluster()
    }

    /// Two ports at one address. Defaults that the node does without are not looked at.
    fn check_addresses(&self) -> Result<(), ConfigError> {
        let listeners = [
            ("tcp-address", &self.tcp_address, true),
            ("http-address", &self.http_address, true),
            ("native-address", &self.native_address, !self.is_native_optional()),
            ("https-address", &self.https_address, self.is_https_served() && self.given.contains("https-address")),
            ("lookupd-http-address", &self.lookupd_http_address, true),
            ("peer-address", &self.peer_address, self.is_clustered()),
        ];
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, address, is_held) in listeners {
            if !is_held || address.is_empty() || address.ends_with(":0") {
                continue;
            }
            if let Some(other) = seen.insert(address, name) {
                return Err(ConfigError::Contradiction(format!("{other} and {name} are both {address}: give each its own")));
            }
        }
        Ok(())
    }

    /// True if the node is one of several.
    pub fn is_clustered(&self) -> bool {
        !self.cluster_file.is_empty() || self.has_etcd()
    }

    /// True if an etcd decides about leaders.
    pub fn has_etcd(&self) -> bool {
        !self.etcd_endpoints.is_empty()
    }

    /// Number of in-sync replicas that a topic of the cluster needs for a write, unless the topic sets another number.
    pub fn min_isr_of(&self, replicas: u16) -> u16 {
        match self.min_isr {
            0 => replicas / 2 + 1,
            given => given.min(replicas),
        }
    }

    fn check_etcd(&self) -> Result<(), ConfigError> {
        let show = |name: &str, n| find(name).map(|row| row.show(&Value::Number(n))).unwrap_or_default();
        let first = self.etcd_endpoints.first();
        let given = |name: &str, text: &String| (!text.is_empty()).then(|| format!("{name} ({text})"));
        let of_etcd = [
            ("etcd-tls-ca", &self.etcd_tls_ca),
            ("etcd-tls-cert", &self.etcd_tls_cert),
            ("etcd-user", &self.etcd_user),
            ("zone", &self.zone),
        ];
        let alone = of_etcd.iter().find_map(|(name, text)| given(name, text));
        let pairs = [
            ("etcd-tls-cert", &self.etcd_tls_cert, "etcd-tls-key", &self.etcd_tls_key),
            ("etcd-tls-key", &self.etcd_tls_key, "etcd-tls-cert", &self.etcd_tls_cert),
            ("etcd-user", &self.etcd_user, "etcd-password-file", &self.etcd_password_file),
            ("etcd-password-file", &self.etcd_password_file, "etcd-user", &self.etcd_user),
        ];
        let lonely = pairs.iter().find(|(_, text, _, other)| !text.is_empty() && other.is_empty());
        let error = match (first, alone, lonely) {
            (Some(first), ..) if !self.cluster_file.is_empty() => format!(
                "etcd-endpoints ({first}) and cluster-file ({}) both name the leaders: give one of them",
                self.cluster_file
            ),
            (None, Some(alone), _) => format!("{alone} needs etcd-endpoints"),
            (_, _, Some((name, text, missing, _))) => format!("{name} ({text}) needs {missing}"),
            _ if self.http_address.is_empty() && self.is_clustered() => {
                "http-address must not be empty in a cluster, whose nodes ask each other over HTTP".into()
            }
            _ if !self.broadcast_peer_address.is_empty() && !has_host_and_port(&self.broadcast_peer_address) => {
                format!("broadcast-peer-address ({}) must be host:port", self.broadcast_peer_address)
            }
            _ if self.lease_ttl_ms < self.lease_ttl_floor_ms => format!(
                "lease-ttl ({}) must not be below lease-ttl-floor ({})",
                show("lease-ttl", self.lease_ttl_ms),
                show("lease-ttl-floor", self.lease_ttl_floor_ms)
            ),
            _ if self.min_isr > self.replicas => {
                format!(
                    "min-isr ({}) must not be above replicas ({}): no publish would ever be accepted",
                    self.min_isr, self.replicas
                )
            }
            _ => return Ok(()),
        };
        Err(ConfigError::Contradiction(error))
    }

    /// Names the setting that NSQ clients must satisfy and clients of the native protocol need not. `None`: there is none.
    fn native_bypasses(&self) -> Option<&'static str> {
        let (has_no_tls, asks_nobody) = (self.native_tls_cert.is_empty(), self.native_tls_client_ca.is_empty());
        let demands = [
            (!self.auth_http_address.is_empty() && asks_nobody, "--auth-http-address"),
            (!self.tls_client_auth_policy.is_empty() && asks_nobody, "--tls-client-auth-policy"),
            (self.is_tls_required() && has_no_tls, "--tls-required"),
        ];
        demands.iter().find(|(is_bypassed, _)| *is_bypassed).map(|(_, name)| *name)
    }

    /// Turns the native port off if it was not given and would surprise: under nsqd's name, since nsqd has no such port, and where it
    /// would bypass the TLS or AUTH of NSQ clients.
    fn guard_native(&mut self, is_nsqd: bool, notes: &mut Notes) {
        let is_set = ["native-address", "native-tls-cert"].iter().any(|name| self.given.contains(name));
        let bypassed = self.native_bypasses().filter(|_| !self.native_address.is_empty());
        let remedy = "--native-tls-cert, --native-tls-key and --native-tls-client-ca protect it";
        match bypassed {
            Some(name) if is_set => notes.warnings.push(format!(
                "the native protocol on {} bypasses {name}: its clients may do everything. {remedy}",
                self.native_address
            )),
            Some(name) if !is_nsqd => notes.warnings.push(format!(
                "the native protocol is not served, since it would bypass {name}. {remedy}; --native-address=ADDRESS serves it as it is"
            )),
            _ => {}
        }
        if !is_set && (is_nsqd || bypassed.is_some()) {
            self.native_address.clear();
        }
    }

    /// True if the node starts without the native protocol when its address is taken: the address was not given.
    pub fn is_native_optional(&self) -> bool {
        let asked = ["native-address", "native-tls-cert"];
        // With an etcd the others are told of it.
        let is_told = self.has_etcd();
        !is_told
            && !asked.iter().any(|name| self.given.contains(name))
            && self.native_address == Settings::default().native_address
    }

    fn check_cluster(&self) -> Result<(), ConfigError> {
        let show = |name: &str, n| find(name).map(|row| row.show(&Value::Number(n))).unwrap_or_default();
        let (limit, write_limit) = (self.follower_limit_ms, self.replica_write_limit_ms);
        if limit >= write_limit {
            return Err(ConfigError::Contradiction(format!(
                "follower-limit ({}) must be below replica-write-limit ({}): otherwise a publish fails before the silent replica leaves \
                 the ISR",
                show("follower-limit", limit),
                show("replica-write-limit", write_limit)
            )));
        }
        for (name, ms) in [("replica-retry", self.replica_retry_ms), ("replica-heartbeat", self.replica_heartbeat_ms)] {
            if ms > limit {
                return Err(ConfigError::Contradiction(format!(
                    "{name} ({}) must not be above follower-limit ({}): otherwise a pause removes a healthy follower from the ISR",
                    show(name, ms),
                    show("follower-limit", limit)
                )));
            }
        }
        let tls =
            [("peer-tls-cert", &self.peer_tls_cert), ("peer-tls-key", &self.peer_tls_key), ("peer-tls-ca", &self.peer_tls_ca)];
        let given = tls.iter().find(|(_, path)| !path.is_empty());
        let missing = tls.iter().find(|(_, path)| path.is_empty());
        let error = match (given, missing) {
            (Some((name, path)), Some((missing, _))) => {
                format!(
                    "{name} ({path}) needs {missing}: peers with TLS show each other certificates, which takes all three files"
                )
            }
            (Some((name, path)), None) if !self.is_clustered() => {
                format!("{name} ({path}) is for peers, and a node without --cluster-file and --etcd-endpoints has no peers")
            }
            _ => return Ok(()),
        };
        Err(ConfigError::Contradiction(error))
    }

    fn check_tls(&self) -> Result<(), ConfigError> {
        let (certificate, key, policy) = (&self.tls_cert, &self.tls_key, &self.tls_client_auth_policy);
        let error = match (certificate.is_empty(), key.is_empty()) {
            (false, true) => format!("tls-cert ({certificate}) needs tls-key, the private key of that certificate"),
            (true, false) => format!("tls-key ({key}) needs tls-cert, the certificate of that key"),
            (true, true) if self.tls_required != "false" => {
                format!("tls-required ({}) needs tls-cert and tls-key: without them no client can have TLS", self.tls_required)
            }
            (true, true) if !policy.is_empty() => {
                format!("tls-client-auth-policy ({policy}) needs tls-cert and tls-key: without TLS no client shows a certificate")
            }
            _ if !["", "require", "require-verify"].contains(&policy.as_str()) => {
                format!("tls-client-auth-policy ({policy}) must be require or require-verify")
            }
            _ => return Ok(()),
        };
        Err(ConfigError::Contradiction(error))
    }

    /// True if a client must ask for TLS before anything else: a setting, or implied by a policy for its certificate.
    pub fn is_tls_required(&self) -> bool {
        self.tls_required != "false" || !self.tls_client_auth_policy.is_empty()
    }

    /// Percentiles of the time from publish to FIN as shares of 1, the highest first.
    pub fn end_to_end_quantiles(&self) -> Vec<f64> {
        let mut shares: Vec<f64> = self.e2e_processing_latency_percentiles.iter().filter_map(|text| text.parse().ok()).collect();
        shares.sort_by(|a, b| b.total_cmp(a));
        shares
    }

    /// Window of these percentiles, if there are any.
    pub fn end_to_end_window(&self) -> Option<std::time::Duration> {
        let is_wanted = !self.e2e_processing_latency_percentiles.is_empty();
        is_wanted.then(|| std::time::Duration::from_millis(self.e2e_processing_latency_window_time_ms))
    }

    /// True if the node answers HTTPS.
    pub fn is_https_served(&self) -> bool {
        !self.tls_cert.is_empty() && !self.https_address.is_empty()
    }

    /// True if plain HTTP is closed.
    pub fn is_https_required(&self) -> bool {
        self.is_tls_required() && self.tls_required != "tcp-https"
    }

    fn check_native_tls(&self) -> Result<(), ConfigError> {
        let (certificate, key, ca) = (&self.native_tls_cert, &self.native_tls_key, &self.native_tls_client_ca);
        let given = |flag, path: &String| format!("{flag} ({path})");
        let error = match (certificate.is_empty(), key.is_empty()) {
            (false, true) => given("native-tls-cert", certificate) + " needs native-tls-key, the private key of that certificate",
            (true, false) => given("native-tls-key", key) + " needs native-tls-cert, the certificate of that key",
            (true, true) if !ca.is_empty() => {
                given("native-tls-client-ca", ca)
                    + " needs native-tls-cert and native-tls-key: without TLS no client shows a certificate"
            }
            (false, false) if self.native_address.is_empty() => {
                given("native-tls-cert", certificate) + " is for the native port, which native-address turns off"
            }
            _ => return Ok(()),
        };
        Err(ConfigError::Contradiction(error))
    }
}

/// nsqd's keys in its file and below /config that are not the names of its flags.
pub const NSQD_KEYS: [(&str, &str); 3] = [
    ("nsqlookupd_tcp_addresses", "lookupd-tcp-address"),
    ("auth_http_addresses", "auth-http-address"),
    ("e2e_processing_latency_percentiles", "e2e-processing-latency-percentile"),
];

/// The row of a name as a flag or the file may write it (`-` and `_` are the same).
pub fn find(name: &str) -> Option<&'static Setting> {
    let key = name.replace('-', "_");
    let name = NSQD_KEYS.iter().find(|(nsqds, _)| *nsqds == key).map_or(name, |(_, flag)| flag);
    TABLE.iter().find(|row| row.name.len() == name.len() && row.name == name.replace('_', "-"))
}

/// Whether others can connect to the address: a host's name or address, and a port.
fn has_host_and_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nsqds_keys_are_those_of_settings() {
        for (key, flag) in NSQD_KEYS {
            assert_eq!(find(key).map(|row| row.name), Some(flag));
            assert!(TABLE.iter().all(|row| row.file_key() != key), "{key} needs no row here");
        }
    }

    #[test]
    fn https_needs_a_certificate_and_an_address() {
        let is_served = |cert: &str, address: &str| {
            Settings { tls_cert: cert.into(), https_address: address.into(), ..Settings::default() }.is_https_served()
        };
        assert_eq!([("c", ":1"), ("c", ""), ("", ":1")].map(|(c, a)| is_served(c, a)), [true, false, false]);
    }

    #[test]
    fn a_topic_may_have_a_retention_of_its_own() {
        let mut settings = Settings { retention_ms: 5, retention_bytes: 6, ..Settings::default() };
        settings.topics.insert("t".into(), TopicSettings { retention_ms: Some(7), retention_bytes: None });
        assert_eq!(settings.retention_of("t"), (7, 6));
        assert_eq!(settings.retention_of("u"), (5, 6));
    }

    #[test]
    fn tls_takes_a_certificate_with_its_key() {
        let text = |flag: bool, text: &str| if flag { text.to_owned() } else { String::new() };
        let check = |cert, key, ca, address| {
            let settings = Settings {
                native_tls_cert: text(cert, "c.pem"),
                native_tls_key: text(key, "k.pem"),
                native_tls_client_ca: text(ca, "ca.pem"),
                native_address: text(address, "0.0.0.0:4153"),
                ..Settings::default()
            };
            settings.check().map_err(|e| e.to_string())
        };
        for (given, wanted) in [
            ((true, false, false, true), "native-tls-cert (c.pem) needs native-tls-key"),
            ((false, true, true, true), "native-tls-key (k.pem) needs native-tls-cert"),
            ((false, false, true, true), "native-tls-client-ca (ca.pem) needs native-tls-cert and native-tls-key"),
            ((true, true, false, false), "which native-address turns off"),
        ] {
            let error = check(given.0, given.1, given.2, given.3).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        for ok in [(true, true, true, true), (true, true, false, true), (false, false, false, true), (false, false, false, false)]
        {
            assert_eq!(check(ok.0, ok.1, ok.2, ok.3), Ok(()));
        }
    }

    #[test]
    fn nsq_clients_have_tls_with_a_certificate_and_its_key() {
        let check = |cert: &str, key: &str, policy: &str, required: &str| {
            let [tls_cert, tls_key, tls_client_auth_policy, tls_required] = [cert, key, policy, required].map(str::to_owned);
            let settings = Settings { tls_cert, tls_key, tls_client_auth_policy, tls_required, ..Settings::default() };
            settings.check().map(|()| (settings.is_tls_required(), settings.is_https_required())).map_err(|e| e.to_string())
        };
        for (given, wanted) in [
            (["c", "", "", "false"], "tls-cert (c) needs tls-key"),
            (["", "k", "", "false"], "tls-key (k) needs tls-cert"),
            (["", "", "", "tcp-https"], "tls-required (tcp-https) needs tls-cert"),
            (["", "", "require", "false"], "tls-client-auth-policy (require) needs tls-cert"),
            (["c", "k", "verify", "false"], "must be require or require-verify"),
        ] {
            let error = check(given[0], given[1], given[2], given[3]).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert_eq!(check("c", "k", "", "false"), Ok((false, false)));
        assert_eq!(check("c", "k", "", "tcp-https"), Ok((true, false)));
        assert_eq!(check("c", "k", "", "true"), Ok((true, true)));
        assert_eq!(check("c", "k", "require", "false"), Ok((true, true)), "as in nsqd");
        assert_eq!(check("c", "k", "require-verify", "tcp-https"), Ok((true, false)));
    }

    #[test]
    fn peers_speak_tls_with_all_three_files_and_only_in_a_cluster() {
        let check = |cert: &str, key: &str, ca: &str, cluster: &str| {
            let [peer_tls_cert, peer_tls_key, peer_tls_ca, cluster_file] = [cert, key, ca, cluster].map(str::to_owned);
            let settings = Settings { peer_tls_cert, peer_tls_key, peer_tls_ca, cluster_file, ..Settings::default() };
            settings.check().map_err(|e| e.to_string())
        };
        assert_eq!(check("c", "k", "a", "f"), Ok(()));
        assert_eq!(check("", "", "", "f"), Ok(()));
        for (given, wanted) in [
            (["c", "k", "", "f"], "peer-tls-cert (c) needs peer-tls-ca"),
            (["", "k", "a", "f"], "peer-tls-key (k) needs peer-tls-cert"),
            (["", "", "a", ""], "peer-tls-ca (a) needs peer-tls-cert"),
            (["c", "k", "a", ""], "a node without --cluster-file and"),
        ] {
            let error = check(given[0], given[1], given[2], given[3]).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn an_etcd_is_alone_in_saying_who_leads_what() {
        let check = |settings: Settings| settings.check().map_err(|e| e.to_string());
        let etcd = || Settings { etcd_endpoints: vec!["http://h:2379".into()], ..Settings::default() };
        assert_eq!(check(etcd()), Ok(()));
        let (text, none) = (String::from("x"), String::new());
        for (settings, wanted) in [
            (Settings { cluster_file: text.clone(), ..etcd() }, "both name the leaders"),
            (Settings { zone: text.clone(), ..Settings::default() }, "zone (x) needs etcd-endpoints"),
            (Settings { etcd_user: text.clone(), ..etcd() }, "etcd-user (x) needs etcd-password-file"),
            (Settings { etcd_tls_key: text.clone(), ..etcd() }, "etcd-tls-key (x) needs etcd-tls-cert"),
            (Settings { lease_ttl_ms: 2000, ..etcd() }, "lease-ttl (2s) must not be below lease-ttl-floor (5s)"),
            (Settings { min_isr: 4, etcd_user: none, ..etcd() }, "min-isr (4) must not be above replicas (3)"),
            (Settings { broadcast_peer_address: "db1".into(), ..etcd() }, "broadcast-peer-address (db1) must be host:port"),
            (Settings { broadcast_peer_address: "db1:0".into(), ..etcd() }, "broadcast-peer-address (db1:0) must be host:port"),
        ] {
            let error = check(settings).unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
        assert_eq!(check(Settings { lease_ttl_ms: 2000, lease_ttl_floor_ms: 1000, ..etcd() }), Ok(()));
        assert_eq!([1, 2, 3, 5].map(|replicas| etcd().min_isr_of(replicas)), [1, 2, 2, 3]);
        assert_eq!(Settings { min_isr: 3, ..etcd() }.min_isr_of(2), 2);
    }

    #[test]
    fn a_write_outlasts_the_follower_that_it_waits_for() {
        let with = |follower_limit_ms, replica_write_limit_ms, replica_heartbeat_ms| {
            Settings { follower_limit_ms, replica_write_limit_ms, replica_heartbeat_ms, ..Settings::default() }.check()
        };
        assert!(with(3000, 3001, 500).is_ok());
        let error = with(3000, 3000, 500).unwrap_err().to_string();
        assert!(error.contains("follower-limit (3s) must be below replica-write-limit (3s)"), "{error}");
        let error = with(1000, 3000, 1001).unwrap_err().to_string();
        assert!(error.contains("replica-heartbeat (1001ms) must not be above follower-limit (1s)"), "{error}");
    }

    #[test]
    fn two_ports_have_two_addresses() {
        let check = |tcp: &str, native: &str, https: &str| {
            let [tcp_address, native_address, https_address] = [tcp, native, https].map(str::to_owned);
            let settings = Settings { tcp_address, native_address, https_address, ..Settings::default() };
            settings.check().map_err(|e| e.to_string())
        };
        let error = check("0.0.0.0:4151", "", "").unwrap_err();
        assert_eq!(error, "tcp-address and http-address are both 0.0.0.0:4151: give each its own");
        assert!(check("h:1", "h:1", "").unwrap_err().contains("tcp-address and native-address"));
        assert_eq!(check("h:0", "h:0", "h:0"), Ok(()), "port 0 is another one each time");
        assert_eq!(check("0.0.0.0:4153", "0.0.0.0:4153", ""), Ok(()), "a default is done without");
        assert_eq!(check("0.0.0.0:4152", "", "0.0.0.0:4152"), Ok(()), "no HTTPS without a certificate");
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let settings = Settings { max_msg_size: 33 << 20, ..Settings::default() };
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains("max-msg-size (33MiB) must not be above max-pub-waiting-size (32MiB)"), "{error}");
    }
}
