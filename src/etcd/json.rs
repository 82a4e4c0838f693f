//! Requests and answers as the gateway has them: protobuf's JSON. Bytes are base64, numbers of 64 bits are strings, and zero or empty
//! values are left out.

use super::fault::Fault;
use crate::metadata::request::{Answer, Change, Compare, KeyValue, Op, Txn};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::time::Duration;

fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The first key behind all keys that begin so.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Everything there is.
    vec![0]
}

/// Keys of the prefix from `first` on; `revision` 0: the newest, by agreement of the members.
pub fn range(first: &[u8], prefix: &[u8], limit: usize, revision: u64) -> Value {
    json!({
        "key": text(first),
        "range_end": text(&end_of(prefix)),
        "limit": limit.to_string(),
        "revision": revision.to_string(),
    })
}

pub fn watch(prefix: &[u8], from: u64) -> Value {
    json!({ "create_request": { "key": text(prefix), "range_end": text(&end_of(prefix)), "start_revision": from.to_string() } })
}

pub fn txn(txn: &Txn) -> Value {
    let ops = |ops: &[Op]| ops.iter().map(op).collect::<Vec<_>>();
    json!({
        "compare": txn.compares.iter().map(compare).collect::<Vec<_>>(),
        "success": ops(&txn.then),
        "failure": ops(&txn.otherwise),
    })
}

fn compare(compare: &Compare) -> Value {
    let (target, key, name, is) = match compare {
        Compare::CreateRevision { key, is } => ("CREATE", key, "create_revision", is.to_string()),
        Compare::ModRevision { key, is } => ("MOD", key, "mod_revision", is.to_string()),
        Compare::Value { key, is } => ("VALUE", key, "value", text(is)),
    };
    json!({ "target": target, "result": "EQUAL", "key": text(key), name: is })
}

fn op(op: &Op) -> Value {
    match op {
        Op::Put { key, value, lease } => {
            let lease = lease.unwrap_or(0).to_string();
            json!({ "request_put": { "key": text(key), "value": text(value), "lease": lease } })
        }
        Op::Delete { key } => json!({ "request_delete_range": { "key": text(key) } }),
        Op::DeletePrefix { prefix } => {
            json!({ "request_delete_range": { "key": text(prefix), "range_end": text(&end_of(prefix)) } })
        }
        Op::Get { key } => json!({ "request_range": { "key": text(key) } }),
    }
}

// ---- answers

/// A number, or a string that is one.
fn number<'de, T: std::str::FromStr, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let value = Value::deserialize(from)?;
    let digits = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    digits.parse().map_err(|_| serde::de::Error::custom(format!("{digits:?} is no number")))
}

fn base64<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    let written = String::deserialize(from)?;
    STANDARD.decode(written).map(Bytes::from).map_err(serde::de::Error::custom)
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RangeEntry {
    #[serde(deserialize_with = "base64")]
    key: Bytes,
    #[serde(deserialize_with = "base64")]
    value: Bytes,
    #[serde(deserialize_with = "number")]
    create_revision: u64,
    #[serde(deserialize_with = "number")]
    mod_revision: u64,
    #[serde(deserialize_with = "number")]
    lease: i64,
}

impl From<RangeEntry> for KeyValue {
    fn from(RangeEntry { key, value, create_revision, mod_revision, lease }: RangeEntry) -> KeyValue {
        KeyValue { key, value, create_revision, mod_revision, lease: Some(lease).filter(|lease| *lease != 0) }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RangeAnswer {
    header: Header,
    kvs: Vec<RangeEntry>,
    more: bool,
}

pub struct Page {
    pub revision: u64,
    pub entries: Vec<KeyValue>,
    pub more: bool,
}

fn read<T: for<'de> Deserialize<'de>>(value: Value) -> Result<T, Fault> {
    serde_json::from_value(value).map_err(Fault::not_etcd)
}

pub fn page(value: Value) -> Result<Page, Fault> {
    let RangeAnswer { header, kvs, more } = read(value)?;
    Ok(Page { revision: header.revision, entries: kvs.into_iter().map(KeyValue::from).collect(), more })
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TxnAnswer {
    header: Header,
    succeeded: bool,
    responses: Vec<OpAnswer>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OpAnswer {
    response_range: Option<RangeAnswer>,
}

pub fn committed(value: Value) -> Result<Answer, Fault> {
    let TxnAnswer { header, succeeded, responses } = read(value)?;
    let ranges = responses.into_iter().filter_map(|answer| answer.response_range);
    let reads = ranges.map(|range| range.kvs.into_iter().next().map(KeyValue::from)).collect();
    Ok(Answer::Txn { succeeded, reads, revision: header.revision })
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct LeaseAnswer {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: i64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    ttl: i64,
}

pub fn granted(value: Value) -> Result<Answer, Fault> {
    let LeaseAnswer { id, ttl } = read(value)?;
    match u64::try_from(ttl) {
        Ok(seconds @ 1..) if id != 0 => Ok(Answer::Granted { lease: id, ttl: Duration::from_secs(seconds) }),
        _ => Err(Fault::not_etcd(format!("lease {id} with a TTL of {ttl}"))),
    }
}

/// A lease that is over is no error: its answer has no TTL.
pub fn renewed(value: Value) -> Result<Answer, Fault> {
    let LeaseAnswer { ttl, .. } = read(value.get("result").cloned().unwrap_or_default())?;
    let ttl = u64::try_from(ttl).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    Ok(Answer::Renewed { ttl })
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WatchAnswer {
    created: bool,
    canceled: bool,
    cancel_reason: String,
    #[serde(deserialize_with = "number")]
    compact_revision: u64,
    events: Vec<EventAnswer>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct EventAnswer {
    #[serde(rename = "type")]
    kind: String,
    kv: RangeEntry,
}

/// Message of a watch.
#[derive(Debug, PartialEq)]
pub enum WatchMessage {
    Created,
    Changes(Vec<Change>),
    Compacted { revision: u64 },
    Canceled(String),
}

pub fn told(value: Value) -> Result<WatchMessage, Fault> {
    let WatchAnswer { created, canceled, cancel_reason, compact_revision, events } =
        read(value.get("result").cloned().unwrap_or_default())?;
    if canceled {
        return Ok(match compact_revision {
            0 => WatchMessage::Canceled(cancel_reason),
            revision => WatchMessage::Compacted { revision },
        });
    }
    if created && events.is_empty() {
        return Ok(WatchMessage::Created);
    }
    let change = |EventAnswer { kind, kv }: EventAnswer| match kind.as_str() {
        "DELETE" => Change::Deleted { key: kv.key, mod_revision: kv.mod_revision },
        _ => Change::Put(kv.into()),
    };
    Ok(WatchMessage::Changes(events.into_iter().map(change).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), b"\0");
    }

    #[test]
    fn a_txn_is_written_as_the_gateway_reads_it() {
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b/"));
        let wanted = json!({
            "compare": [
                { "target": "CREATE", "result": "EQUAL", "key": "YQ==", "create_revision": "0" },
                { "target": "MOD", "result": "EQUAL", "key": "YQ==", "mod_revision": "7" },
                { "target": "VALUE", "result": "EQUAL", "key": "YQ==", "value": "Yi8=" },
            ],
            "success": [
                { "request_put": { "key": "YQ==", "value": "Yi8=", "lease": "9" } },
                { "request_delete_range": { "key": "Yi8=", "range_end": "YjA=" } },
            ],
            "failure": [{ "request_range": { "key": "YQ==" } }, { "request_delete_range": { "key": "YQ==" } }],
        });
        let written = txn(&Txn {
            compares: vec![
                Compare::CreateRevision { key: a.clone(), is: 0 },
                Compare::ModRevision { key: a.clone(), is: 7 },
                Compare::Value { key: a.clone(), is: b.clone() },
            ],
            then: vec![Op::Put { key: a.clone(), value: b.clone(), lease: Some(9) }, Op::DeletePrefix { prefix: b }],
            otherwise: vec![Op::Get { key: a.clone() }, Op::Delete { key: a }],
        });
        assert_eq!(written, wanted);
    }

    #[test]
    fn what_is_left_out_is_zero() {
        let answer = committed(json!({ "header": { "revision": "5" }, "responses": [{ "response_range": {} }, {}] })).unwrap();
        assert_eq!(answer, Answer::Txn { succeeded: false, reads: vec![None], revision: 5 });
        assert_eq!(renewed(json!({ "result": { "ID": "7" } })).unwrap(), Answer::Renewed { ttl: None });
        let ttl = Some(Duration::from_secs(3));
        assert_eq!(renewed(json!({ "result": { "ID": "7", "TTL": "3" } })).unwrap(), Answer::Renewed { ttl });
        assert!(granted(json!({ "ID": "7" })).is_err());
    }

    #[test]
    fn messages_of_a_watch_are_told_apart() {
        let result = |value: Value| told(json!({ "result": value })).unwrap();
        assert_eq!(result(json!({ "header": { "revision": "4" }, "created": true })), WatchMessage::Created);
        assert_eq!(result(json!({ "canceled": true, "compact_revision": "3" })), WatchMessage::Compacted { revision: 3 });
        assert_eq!(result(json!({ "canceled": true, "cancel_reason": "no" })), WatchMessage::Canceled("no".into()));
        let events = json!({ "events": [
            { "kv": { "key": "YQ==", "value": "Yg==", "create_revision": "2", "mod_revision": "3", "lease": "8" } },
            { "type": "DELETE", "kv": { "key": "YQ==", "mod_revision": "4" } },
        ] });
        let (key, value) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        let put = KeyValue { key: key.clone(), value, create_revision: 2, mod_revision: 3, lease: Some(8) };
        assert_eq!(result(events), WatchMessage::Changes(vec![Change::Put(put), Change::Deleted { key, mod_revision: 4 }]));
        assert!(told(json!({ "result": { "events": [{ "kv": { "mod_revision": "x" } }] } })).is_err());
    }
}
