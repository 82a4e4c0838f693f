//! IDENTIFY: a client's description of itself, its wishes, and the answer. Values out of range are refused, not clamped.

use super::{ClientError, Limits};
use crate::codec::nsq::layers::{Compression, Upgrade};
use serde::Serialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// nsqd's defaults for a client that asks for none.
const OUTPUT_BUFFER_SIZE: u64 = 16 * 1024;
const DEFLATE_LEVEL: u8 = 6;
const HEARTBEAT_INTERVAL_MIN_MS: u64 = 1000;
const MSG_TIMEOUT_MIN_MS: u64 = 1000;
const OUTPUT_BUFFER_SIZE_MIN: u64 = 64;
const SAMPLE_RATE_MAX: i64 = 99;

/// Bytes that are kept of each text of a client; the rest is dropped.
const TEXT_LEN_MAX: usize = 256;

/// Declares [`Request`] and how its JSON is read: as Go reads it into a struct.
macro_rules! request {
    ($($field:ident: $type:ty,)*) => {
        /// The JSON of the command, as Go reads it: unknown keys are ignored, `null` says nothing, upper and lower case of a key are the
        /// same, and of a key given twice the last one counts.
        #[derive(Debug, Default, PartialEq, Eq)]
        pub struct Request {
            $(pub $field: $type,)*
        }

        impl<'de> Visitor<'de> for Request {
            type Value = Request;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Request, A::Error> {
                while let Some(key) = map.next_key::<String>()? {
                    match key.to_ascii_lowercase().as_str() {
                        $(stringify!($field) => {
                            if let Some(value) = map.next_value::<Option<$type>>()? {
                                self.$field = value;
                            }
                        })*
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(self)
            }
        }
    };
}

request! {
    client_id: String,
    hostname: String,
    user_agent: String,
    feature_negotiation: bool,
    heartbeat_interval: i64,
    output_buffer_size: i64,
    output_buffer_timeout: i64,
    tls_v1: bool,
    snappy: bool,
    deflate: bool,
    deflate_level: i64,
    sample_rate: i32,
    msg_timeout: i64,
}

/// Agreed parameters of a connection. IDENTIFY changes the ones it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// `None`: the client asked for none, and is not looked after.
    pub heartbeat_interval_ms: Option<u64>,
    pub output_buffer_size: u64,
    pub output_buffer_timeout_ms: u64,
    /// Percent of messages to deliver; 0 means all.
    pub sample_rate: u8,
    pub msg_timeout_ms: u64,
}

impl Negotiated {
    pub fn new(limits: &Limits) -> Self {
        Negotiated {
            heartbeat_interval_ms: Some(limits.heartbeat_interval_ms),
            output_buffer_size: OUTPUT_BUFFER_SIZE,
            output_buffer_timeout_ms: limits.output_buffer_timeout_ms,
            sample_rate: 0,
            msg_timeout_ms: limits.msg_timeout_ms,
        }
    }
}

/// The answer's keys, in nsqd's order.
#[derive(Serialize)]
struct Response<'a> {
    max_rdy_count: u32,
    version: &'a str,
    max_msg_timeout: u64,
    msg_timeout: u64,
    tls_v1: bool,
    deflate: bool,
    deflate_level: u8,
    max_deflate_level: u8,
    snappy: bool,
    sample_rate: u8,
    auth_required: bool,
    output_buffer_size: u64,
    output_buffer_timeout: u64,
}

/// JSON in which two things that Go reads and serde refuses stand in another form of the same length: half of a surrogate pair is
/// U+FFFD, and an integer `-0` is 0.
fn as_go_reads(json: String) -> String {
    let mut bytes = json.into_bytes();
    let unit = |bytes: &[u8], at: usize| {
        let digits = bytes.get(at..at + 6).filter(|escape| escape.starts_with(b"\\u"))?;
        u16::from_str_radix(std::str::from_utf8(&digits[2..]).ok()?, 16).ok()
    };
    let (mut at, mut in_text) = (0, false);
    while at < bytes.len() {
        match (bytes[at], in_text) {
            (b'"', _) => in_text = !in_text,
            (b'\\', true) => match (unit(&bytes, at), unit(&bytes, at + 6)) {
                (Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => at += 11,
                (Some(0xD800..0xE000), _) => bytes[at + 2..at + 6].copy_from_slice(b"fffd"),
                _ => at += 1,
            },
            (b'-', false)
                if bytes.get(at + 1) == Some(&b'0') && !matches!(bytes.get(at + 2), Some(b'0'..=b'9' | b'.' | b'e' | b'E')) =>
            {
                bytes[at] = b' ';
            }
            _ => {}
        }
        at += 1;
    }
    String::from_utf8(bytes).expect("ASCII stands in the place of ASCII")
}

impl Request {
    pub fn parse(json: &[u8]) -> Result<Request, ClientError> {
        let bad = || ClientError::fatal("E_BAD_BODY", "IDENTIFY failed to decode JSON body");
        // bytes that are no UTF-8 become U+FFFD, as in Go
        let json = as_go_reads(String::from_utf8_lossy(json).into_owned());
        if json.trim_ascii() == "null" {
            return Ok(Request::default());
        }
        let mut from = serde_json::Deserializer::from_str(&json);
        let read = from.deserialize_map(Request::default()).and_then(|request| from.end().map(|()| request));
        let mut request = read.map_err(|_| bad())?;
        for text in [&mut request.client_id, &mut request.hostname, &mut request.user_agent] {
            text.truncate(text.floor_char_boundary(TEXT_LEN_MAX));
            text.shrink_to_fit();
        }
        Ok(request)
    }

    /// Checks the values in nsqd's order. Returns the values that are in force on the connection from now on.
    pub fn negotiate(&self, current: &Negotiated, limits: &Limits) -> Result<Negotiated, ClientError> {
        let mut new = *current;
        let bad = |what: &str, value: i64| ClientError::fatal("E_BAD_BODY", format!("IDENTIFY {what} ({value}) is invalid"));
        let within = |value: i64, min: u64, max: u64| u64::try_from(value).ok().filter(|v| (min..=max).contains(v));

        let asked = self.heartbeat_interval;
        new.heartbeat_interval_ms = match asked {
            -1 => None,
            0 => current.heartbeat_interval_ms,
            _ => Some(
                within(asked, HEARTBEAT_INTERVAL_MIN_MS, limits.max_heartbeat_interval_ms)
                    .ok_or_else(|| bad("heartbeat interval", asked))?,
            ),
        };
        let asked = self.output_buffer_timeout;
        new.output_buffer_timeout_ms = match asked {
            -1 => 0,
            0 => current.output_buffer_timeout_ms,
            _ => within(asked, limits.min_output_buffer_timeout_ms, limits.max_output_buffer_timeout_ms)
                .ok_or_else(|| bad("output buffer timeout", asked))?,
        };
        let asked = self.output_buffer_size;
        match asked {
            -1 => (new.output_buffer_size, new.output_buffer_timeout_ms) = (1, 0),
            0 => {}
            _ => {
                new.output_buffer_size = within(asked, OUTPUT_BUFFER_SIZE_MIN, limits.max_output_buffer_size)
                    .ok_or_else(|| bad("output buffer size", asked))?;
            }
        }
        let asked = i64::from(self.sample_rate);
        if !(0..=SAMPLE_RATE_MAX).contains(&asked) {
            return Err(bad("sample rate", asked));
        }
        new.sample_rate = asked as u8;
        let asked = self.msg_timeout;
        if asked != 0 {
            new.msg_timeout_ms =
                within(asked, MSG_TIMEOUT_MIN_MS, limits.max_msg_timeout_ms).ok_or_else(|| bad("msg timeout", asked))?;
        }
        Ok(new)
    }

    /// The features that the client asked for and this node does not have; `None`: it asked for none of them, or hears no answer.
    pub fn refused_features(&self, limits: &Limits) -> Option<String> {
        let asked = [
            (self.tls_v1 && limits.tls.is_none(), "tls_v1"),
            (self.snappy && !limits.snappy, "snappy"),
            (self.deflate && !limits.deflate, "deflate"),
        ];
        let names: Vec<&str> = asked.into_iter().filter_map(|(refused, name)| refused.then_some(name)).collect();
        (self.feature_negotiation && !names.is_empty()).then(|| names.join(", "))
    }

    /// The layers that the connection gets beside those that it has. Without feature negotiation there is none.
    pub fn upgrade(&self, limits: &Limits, has: Upgrade) -> Result<Upgrade, ClientError> {
        let failed = |text: &str| Err(ClientError::fatal("E_IDENTIFY_FAILED", text));
        if !self.feature_negotiation {
            return Ok(Upgrade::default());
        }
        let (deflate, snappy) = (limits.deflate && self.deflate, limits.snappy && self.snappy);
        let compression = match (deflate, snappy) {
            (true, true) => return failed("cannot enable both deflate and snappy compression"),
            (true, false) => Some(Compression::Deflate(self.deflate_level(limits))),
            (false, true) => Some(Compression::Snappy),
            (false, false) => None,
        };
        let tls = limits.tls.is_some() && self.tls_v1;
        if tls && has.tls {
            return failed("IDENTIFY failed the connection has TLS already");
        }
        if has.compression.is_some() && (tls || compression.is_some()) {
            return failed("IDENTIFY failed the connection is compressed already");
        }
        Ok(Upgrade { tls, compression })
    }

    /// The response frame's data: `OK` without feature negotiation, else the JSON.
    pub fn answer(&self, new: &Negotiated, upgrade: Upgrade, limits: &Limits) -> Vec<u8> {
        if !self.feature_negotiation {
            return super::OK.to_vec();
        }
        let response = Response {
            max_rdy_count: limits.max_rdy_count,
            version: &limits.version,
            max_msg_timeout: limits.max_msg_timeout_ms,
            msg_timeout: new.msg_timeout_ms,
            tls_v1: upgrade.tls,
            deflate: matches!(upgrade.compression, Some(Compression::Deflate(_))),
            deflate_level: self.deflate_level(limits),
            max_deflate_level: limits.max_deflate_level,
            snappy: upgrade.compression == Some(Compression::Snappy),
            sample_rate: new.sample_rate,
            auth_required: limits.auth_required,
            output_buffer_size: new.output_buffer_size,
            output_buffer_timeout: new.output_buffer_timeout_ms,
        };
        serde_json::to_vec(&response).expect("a struct of numbers and a string has a JSON form")
    }

    /// Level of deflate, the one value that is clamped: 6 without deflate or for 0 or less, the maximum for a higher one.
    fn deflate_level(&self, limits: &Limits) -> u8 {
        let is_given = limits.deflate && self.deflate && self.deflate_level > 0;
        let level = if is_given { u8::try_from(self.deflate_level).unwrap_or(u8::MAX) } else { DEFLATE_LEVEL };
        level.min(limits.max_deflate_level)
    }
}
