//! Text as Go's standard library makes it, where clients of a Go program can see it: query strings, durations, booleans, JSON.

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};
use std::io;
use std::time::Duration;

/// The parameters of a request; the first of a name counts.
#[derive(Debug, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// `None` when Go's `url.ParseQuery` gives an error: `;` and broken escapes. `+` is a space.
    pub fn parse(query: &str) -> Option<Self> {
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            if pair.contains(';') {
                return None;
            }
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((unescape(key, true)?, unescape(value, true)?));
        }
        Some(Query(pairs))
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

/// The text with its `%` escapes resolved; `None` when one is broken. In a query `+` is a space.
pub fn unescape(text: &str, in_query: bool) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' if in_query => b' ',
            b'%' => {
                let digit = |byte: u8| (byte as char).to_digit(16);
                (digit(bytes.next()?)? << 4 | digit(bytes.next()?)?) as u8
            }
            other => other,
        });
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// A value of a boolean flag.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false".into()),
    }
}

/// A value of a duration flag, such as `300ms` or `1m30.5s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const WANTED: &str = "must be a duration with units, such as 45s or 1m30s";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = 0.0;
    if rest.is_empty() {
        return Err(WANTED.into());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(WANTED)?;
        let number: f64 = rest[..digits].parse().map_err(|_| WANTED)?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(WANTED.into()),
        };
        sum += number * unit;
        rest = &rest[letters..];
    }
    // The longest that Go can hold.
    Duration::try_from_secs_f64(sum).ok().filter(|d| d.as_nanos() <= i64::MAX as u128).ok_or("the duration is too long".into())
}

/// JSON as `json.Marshal` writes it: `<`, `>`, `&` and two line separators are escaped, so that a page may hold it.
pub fn to_json(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, Escaping)).expect("it has no map with keys that are no strings");
    String::from_utf8(out).expect("a serializer writes UTF-8")
}

struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        let is_escaped = |c: char| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
        while let Some(at) = rest.find(is_escaped) {
            let found = rest[at..].chars().next().expect("it was found there");
            write!(writer, "{}\\u{:04x}", &rest[..at], found as u32)?;
            rest = &rest[at + found.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        CompactFormatter.write_char_escape(writer, escape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_go_reads_it() {
        let query = Query::parse("topic=a%2Db&x=1+2&topic=second&flag&&binary=0").unwrap();
        assert_eq!((query.get("topic"), query.get("x"), query.get("flag")), (Some("a-b"), Some("1 2"), Some("")));
        assert_eq!(query.get("none"), None);
        for bad in ["topic=a;b", "topic=%zz", "topic=%4"] {
            assert_eq!(Query::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_duration_has_units() {
        for (text, ms) in [("300ms", 300), ("1m30s", 90_000), ("1.5h", 5_400_000), ("0", 0), ("1h0m0.5s", 3_600_500)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "5", "5 s", "s", "-1s", "1d", "..s", "1e3s", "9999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn json_is_safe_in_a_page() {
        assert_eq!(to_json(&"a<b>&\"\n\u{2028}ä"), r#""a\u003cb\u003e\u0026\"\n\u2028ä""#);
    }
}
