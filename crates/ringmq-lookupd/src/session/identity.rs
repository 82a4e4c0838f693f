//! The body of IDENTIFY: JSON, with the latitude of Go's decoder, which nodes in other languages may have come to rely on.

use crate::registry::PeerInfo;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// The error is the text that the node hears.
pub fn parse(body: &[u8], remote_address: &str) -> Result<PeerInfo, &'static str> {
    let text = String::from_utf8_lossy(body);
    let Ok(Fields(info)) = serde_json::from_str::<Option<Fields>>(&text).map(Option::unwrap_or_default) else {
        return Err("IDENTIFY failed to decode JSON body");
    };
    let required = [&info.broadcast_address, &info.version];
    if required.iter().any(|text| text.is_empty()) || info.tcp_port == 0 || info.http_port == 0 {
        return Err("IDENTIFY missing fields");
    }
    Ok(PeerInfo { remote_address: remote_address.into(), ..info })
}

/// Letter case of a key does not matter, the last one of a name counts, `null` changes nothing, other keys are ignored.
struct Fields(PeerInfo);

impl Default for Fields {
    fn default() -> Self {
        Fields(PeerInfo {
            remote_address: String::new(),
            hostname: String::new(),
            broadcast_address: String::new(),
            tcp_port: 0,
            http_port: 0,
            version: String::new(),
            topology_zone: String::new(),
            topology_region: String::new(),
        })
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let Fields(mut info) = Fields::default();
        while let Some(key) = map.next_key::<String>()? {
            let text = match key.to_ascii_lowercase().as_str() {
                "tcp_port" => {
                    info.tcp_port = map.next_value::<Option<i64>>()?.unwrap_or(info.tcp_port);
                    continue;
                }
                "http_port" => {
                    info.http_port = map.next_value::<Option<i64>>()?.unwrap_or(info.http_port);
                    continue;
                }
                "remote_address" => &mut info.remote_address,
                "hostname" => &mut info.hostname,
                "broadcast_address" => &mut info.broadcast_address,
                "version" => &mut info.version,
                "topology_zone" => &mut info.topology_zone,
                "topology_region" => &mut info.topology_region,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if let Some(value) = map.next_value::<Option<String>>()? {
                *text = value;
            }
        }
        Ok(Fields(info))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_with_gos_latitude() {
        let parsed = |text: &[u8]| parse(text, "r:1");
        let body = br#"{"Broadcast_Address":"old","broadcast_address":"b","tcp_port":1,"HTTP_PORT":2,"version":"v",
            "version":null,"extra":{"a":[1]},"remote_address":"forged"}"#;
        let info = parsed(body).unwrap();
        assert_eq!((info.broadcast_address.as_str(), info.tcp_port, info.http_port, info.version.as_str()), ("b", 1, 2, "v"));
        assert_eq!((info.remote_address.as_str(), info.hostname.as_str()), ("r:1", ""));
        for missing in [&b"{}"[..], b"null", br#"{"broadcast_address":"b","tcp_port":0,"http_port":2,"version":"v"}"#] {
            assert_eq!(parsed(missing), Err("IDENTIFY missing fields"));
        }
        for broken in [&b""[..], b"[]", b"{", b"{}x", br#"{"tcp_port":"1"}"#, br#"{"tcp_port":1.5}"#, br#"{"version":1}"#] {
            assert_eq!(parsed(broken), Err("IDENTIFY failed to decode JSON body"));
        }
    }
}
