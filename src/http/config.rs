//! GET and PUT /config/<setting>: nsqd's names, shapes, codes and texts. A setting of nsqd that this node does not have is
//! `INVALID_OPTION`, as an unknown one is. A value that PUT sets holds until the node stops.

use super::Node;
use super::body::{self, BodyError};
use super::publish::body_failure;
use super::routes::{Failure, Reply, json, text, versioned};
use crate::config::row::{Setting, Unit, Value};
use crate::config::{NSQD_KEYS, Settings, TABLE};
use hyper::body::Incoming;
use hyper::{Method, StatusCode};

pub const PREFIX: &str = "/config/";

const LOG_LEVEL: &str = "log_level";
const LOOKUPDS: &str = "nsqlookupd_tcp_addresses";

/// True if the path names a setting, known or not.
pub fn is_about(path: &str) -> bool {
    path.strip_prefix(PREFIX).is_some_and(|option| !option.is_empty() && !option.contains('/'))
}

pub async fn answer(node: &Node, method: &Method, path: &str, body: Incoming) -> Result<Reply, Failure> {
    let option = path.strip_prefix(PREFIX).unwrap_or_default();
    if method == Method::PUT {
        put(node, option, body).await?;
    }
    let shown = match option {
        LOG_LEVEL => level_number(node.around.log_level.get()).to_string(),
        LOOKUPDS => serde_json::json!(*node.lookupds.borrow()).to_string(),
        _ => {
            let setting = named(option).ok_or(bad("INVALID_OPTION"))?;
            match shown(setting, &node.settings) {
                ShownValue::Bare(word) => return Ok(versioned(text(StatusCode::OK, word))),
                ShownValue::Json(value) => value,
            }
        }
    };
    Ok(json(shown))
}

/// The setting that nsqd's file has under this key.
fn named(option: &str) -> Option<&'static Setting> {
    let other = |setting: &Setting| NSQD_KEYS.iter().find(|(_, flag)| *flag == setting.name).map(|(key, _)| *key);
    TABLE.iter().find(|setting| other(setting).map_or(setting.file_key() == option, |key| key == option))
}

fn bad(message: &'static str) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, message)
}

async fn put(node: &Node, option: &str, body: Incoming) -> Result<(), Failure> {
    let paid = body::read(node, body, node.settings.max_msg_size).await.map_err(|error| body_failure(error, "INVALID_VALUE"))?;
    if paid.bytes.is_empty() {
        return Err(body_failure(BodyError::TooBig, "INVALID_VALUE"));
    }
    match option {
        LOG_LEVEL => {
            let level = String::from_utf8_lossy(&paid.bytes).to_lowercase();
            if !["debug", "info", "warn", "error", "fatal"].contains(&level.as_str()) {
                return Err(bad("INVALID_VALUE"));
            }
            // Said while the level is the one of the two that writes more.
            tracing::info!(level, "the log level is changed over HTTP");
            let set = node.around.log_level.set(&level);
            set.map_err(|why| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("LOG_LEVEL_KEPT: {why}")))
        }
        LOOKUPDS => {
            let addresses: Option<Vec<String>> = serde_json::from_slice(&paid.bytes).map_err(|_| bad("INVALID_VALUE"))?;
            tracing::info!(?addresses, "the addresses of nsqlookupds are changed over HTTP");
            if let Some(discovery) = node.link.discovery() {
                discovery.set_lookupds(addresses.as_deref().unwrap_or_default());
            }
            node.lookupds.replace(addresses);
            Ok(())
        }
        _ => Err(bad("INVALID_OPTION")),
    }
}

/// nsqd's numbers. It has no `trace`.
fn level_number(level: &str) -> u8 {
    match level {
        "trace" | "debug" => 1,
        "warn" => 3,
        "error" => 4,
        "fatal" => 5,
        _ => 2,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ShownValue {
    Bare(String),
    Json(String),
}

/// Value as nsqd shows it: durations in nanoseconds, required TLS and its version as nsqd's numbers.
fn shown(setting: &Setting, settings: &Settings) -> ShownValue {
    match (setting.value(settings), setting.unit) {
        (Value::Number(ms), Unit::Millis) => ShownValue::Json((u128::from(ms) * 1_000_000).to_string()),
        (Value::Number(us), Unit::Micros) => ShownValue::Json((u128::from(us) * 1_000).to_string()),
        (Value::Number(number), _) => ShownValue::Json(number.to_string()),
        (Value::List(_), Unit::Shares) => ShownValue::Json(serde_json::json!(settings.end_to_end_quantiles()).to_string()),
        (Value::List(list), _) => ShownValue::Json(serde_json::json!(list).to_string()),
        (Value::Text(word), _) => match (setting.name, word.as_str()) {
            ("tls-required", "false") => ShownValue::Json("0".into()),
            ("tls-required", "tcp-https") => ShownValue::Json("1".into()),
            ("tls-required", _) => ShownValue::Json("2".into()),
            // The numbers of the protocol; older ones are not spoken.
            ("tls-min-version", version) => ShownValue::Json(if version == "tls1.3" { "772" } else { "771" }.into()),
            (_, "true" | "false") if matches!(setting.unit, Unit::Switch(_)) => ShownValue::Json(word),
            _ => ShownValue::Bare(word),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_shown_as_nsqd_shows_them() {
        let settings = Settings { data_path: "/x".into(), lookupd_tcp_addresses: vec!["a:1".into()], ..Settings::default() };
        let is = |key: &str| shown(named(key).unwrap_or_else(|| panic!("{key}")), &settings);
        for (key, wanted) in [
            ("msg_timeout", "60000000000"),
            ("max_msg_size", "1048576"),
            ("time_slice", "100000"),
            ("tls_required", "0"),
            ("tls_min_version", "771"),
            ("snappy", "true"),
            ("nsqlookupd_tcp_addresses", "[\"a:1\"]"),
            ("e2e_processing_latency_percentiles", "[]"),
        ] {
            assert_eq!(is(key), ShownValue::Json(wanted.into()), "{key}");
        }
        assert_eq!(
            (is("data_path"), is("tcp_address")),
            (ShownValue::Bare("/x".into()), ShownValue::Bare("0.0.0.0:4150".into()))
        );
        assert!(is_about("/config/x") && !is_about("/config/") && !is_about("/config") && !is_about("/config/a/b"));
        assert_eq!(["debug", "info", "warn", "error"].map(level_number), [1, 2, 3, 4]);
    }
}
