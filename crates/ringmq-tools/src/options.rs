//! `--consumer-opt` and `--producer-opt` of nsq_tail and to_nsq: a tool's description of itself for the node, TLS and AUTH. The names
//! are those of go-nsq's configuration.

use crate::secure::{Secure, Terms};
use clap::{Arg, ArgAction, ArgMatches};
use std::path::PathBuf;

/// Options of go-nsq that mean nothing to a tool that connects again every two seconds and neither compresses nor backs off.
const WITHOUT_EFFECT: [&str; 26] = [
    "backoff_multiplier",
    "backoff_strategy",
    "default_requeue_delay",
    "deflate",
    "deflate_level",
    "dial_timeout",
    "heartbeat_interval",
    "local_addr",
    "lookupd_authorization",
    "lookupd_poll_interval",
    "lookupd_poll_jitter",
    "lookupd_poll_timeout",
    "low_rdy_idle_timeout",
    "low_rdy_timeout",
    "max_attempts",
    "max_backoff_duration",
    "max_in_flight",
    "max_requeue_delay",
    "output_buffer_size",
    "output_buffer_timeout",
    "rdy_redistribute_interval",
    "read_timeout",
    "skip_lookupd",
    "snappy",
    "tls_config",
    "write_timeout",
];

/// Identity that a connection sends.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    pub user_agent: String,
    client_id: Option<String>,
    hostname: Option<String>,
    sample_rate: Option<u8>,
    msg_timeout_ms: Option<u64>,
    pub auth_secret: Option<String>,
    /// `None`: plaintext.
    pub secure: Option<Secure>,
}

pub fn arg(name: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("option,value").action(ArgAction::Append).help(
        "Option of the connection: tls_v1, tls_root_ca_file, tls_cert, tls_key, tls_insecure_skip_verify, tls_min_version, \
         auth_secret, client_id, hostname, user_agent, sample_rate, msg_timeout; may be repeated",
    )
}

impl Identity {
    /// Identity of the tool, by its options. Says on the standard error which of them have no effect.
    pub fn of(matches: &ArgMatches, name: &str, tool: &str) -> Result<Identity, String> {
        let given = matches.get_many::<String>(name).into_iter().flatten();
        let (identity, without_effect) = Identity::parse(given.map(String::as_str), tool)?;
        for option in without_effect {
            eprintln!("ringmq: {option}, of --{name}, has no effect here");
        }
        Ok(identity)
    }

    fn parse<'a>(given: impl Iterator<Item = &'a str>, tool: &str) -> Result<(Identity, Vec<String>), String> {
        let mut identity = Identity { user_agent: format!("ringmq-{tool}/{}", env!("CARGO_PKG_VERSION")), ..Identity::default() };
        let (mut terms, mut is_secure, mut without_effect) = (Terms::default(), false, vec![]);
        for option in given {
            // An option without a value is true, as in nsq_tail.
            let (option, value) = option.split_once(',').unwrap_or((option, "true"));
            let (name, text) = (option.replace('-', "_"), || Some(value.to_owned()));
            match name.as_str() {
                "tls_v1" => is_secure = boolean(option, value)?,
                "tls_root_ca_file" => terms.ca = Some(PathBuf::from(value)),
                "tls_cert" => terms.certificate = Some(PathBuf::from(value)),
                "tls_key" => terms.key = Some(PathBuf::from(value)),
                "tls_insecure_skip_verify" => terms.is_insecure = boolean(option, value)?,
                "tls_min_version" => terms.is_newest = is_newest(option, value)?,
                "auth_secret" => identity.auth_secret = text(),
                "client_id" => identity.client_id = text(),
                "hostname" => identity.hostname = text(),
                "user_agent" => identity.user_agent = value.to_owned(),
                "sample_rate" => {
                    let rate = value.parse().ok().filter(|rate| *rate <= 99);
                    identity.sample_rate = Some(rate.ok_or_else(|| wrong(option, value, "a number from 0 to 99"))?);
                }
                "msg_timeout" => {
                    let time = crate::address::duration(value).map_err(|e| format!("{option},{value}: {e}"))?;
                    identity.msg_timeout_ms = Some(time.as_millis() as u64);
                }
                known if WITHOUT_EFFECT.contains(&known) => without_effect.push(option.to_owned()),
                _ => return Err(format!("{option} is no option of a connection")),
            }
        }
        if is_secure {
            identity.secure = Some(terms.load()?);
        }
        Ok((identity, without_effect))
    }

    /// The body of an IDENTIFY.
    pub fn body(&self) -> String {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let or_host = |name: &Option<String>| name.clone().unwrap_or_else(|| host.trim().to_owned());
        let mut body = serde_json::json!({
            "client_id": or_host(&self.client_id),
            "hostname": or_host(&self.hostname),
            "user_agent": self.user_agent,
            "feature_negotiation": true,
            "tls_v1": self.secure.is_some(),
        });
        if let Some(rate) = self.sample_rate {
            body["sample_rate"] = rate.into();
        }
        if let Some(ms) = self.msg_timeout_ms {
            body["msg_timeout"] = ms.into();
        }
        body.to_string()
    }
}

fn wrong(option: &str, value: &str, wanted: &str) -> String {
    format!("{option},{value}: {wanted} is expected")
}

fn boolean(option: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(wrong(option, value, "true or false")),
    }
}

/// The tools speak TLS 1.2 and later, whatever older version is allowed.
fn is_newest(option: &str, value: &str) -> Result<bool, String> {
    match value {
        "ssl3.0" | "tls1.0" | "tls1.1" | "tls1.2" => Ok(false),
        "tls1.3" => Ok(true),
        _ => Err(wrong(option, value, "tls1.0, tls1.1, tls1.2 or tls1.3")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[&str]) -> Result<(Identity, Vec<String>), String> {
        Identity::parse(options.iter().copied(), "tail")
    }

    #[test]
    fn options_have_the_names_that_go_nsq_has() {
        let options = ["auth-secret,a,b", "client_id,me", "sample_rate,10", "msg_timeout,5s", "snappy,true"];
        let (identity, without_effect) = parsed(&options).expect("they are right");
        assert_eq!((identity.auth_secret.as_deref(), without_effect), (Some("a,b"), vec!["snappy".to_owned()]));
        let body: serde_json::Value = serde_json::from_str(&identity.body()).expect("JSON");
        assert_eq!((&body["client_id"], &body["sample_rate"], &body["msg_timeout"]), (&"me".into(), &10.into(), &5000.into()));
        assert_eq!((&body["tls_v1"], &body["feature_negotiation"]), (&false.into(), &true.into()));
    }

    #[test]
    fn an_option_that_is_wrong_is_named() {
        for (option, said) in [
            ("colour,red", "colour is no option"),
            ("tls_v1,perhaps", "tls_v1,perhaps: true or false"),
            ("sample_rate,100", "sample_rate,100: a number from 0 to 99"),
            ("tls_min_version,2", "tls_min_version,2: tls1.0"),
        ] {
            let error = parsed(&[option]).expect_err(option);
            assert!(error.starts_with(said), "{error}");
        }
        let error = parsed(&["tls_v1", "tls_insecure_skip_verify", "tls_cert,x.pem"]).expect_err("no key");
        assert!(error.contains("together"), "{error}");
        let error = parsed(&["tls_v1", "tls_root_ca_file,/nowhere.pem"]).expect_err("no file");
        assert!(error.starts_with("/nowhere.pem: cannot be read"), "{error}");
    }
}
