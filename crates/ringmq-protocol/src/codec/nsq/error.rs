//! The errors a client hears: nsqd's codes and texts. A fatal one closes the connection after its frame.

use std::fmt::{self, Write};

/// `CODE text` on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientError {
    pub code: &'static str,
    /// Text of the answer: bytes, since nsqd echoes bytes of the client.
    pub text: Vec<u8>,
    pub fatal: bool,
}

impl ClientError {
    pub fn fatal(code: &'static str, text: impl Into<Vec<u8>>) -> Self {
        ClientError { code, text: text.into(), fatal: true }
    }

    /// The connection goes on.
    pub fn passing(code: &'static str, text: impl Into<Vec<u8>>) -> Self {
        ClientError { code, text: text.into(), fatal: false }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, String::from_utf8_lossy(&self.text))
    }
}

/// A name as Go's `%q` shows it, as in nsqd's texts.
pub fn quoted(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\x07' => out.push_str("\\a"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x0b' => out.push_str("\\v"),
                ' '..='~' => out.push(c),
                '\0'..='\x7f' => escape(&mut out, format_args!("\\x{:02x}", c as u32)),
                // A character that Rust does not escape stays; the others have Go's form.
                _ if c.escape_debug().len() == 1 => out.push(c),
                '\u{80}'..='\u{ffff}' => escape(&mut out, format_args!("\\u{:04x}", c as u32)),
                _ => escape(&mut out, format_args!("\\U{:08x}", c as u32)),
            }
        }
        for byte in chunk.invalid() {
            escape(&mut out, format_args!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    out
}

fn escape(out: &mut String, what: fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a String takes all that is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_go_quotes() {
        for (name, want) in [
            (&b"a b"[..], r#""a b""#),
            (b"", r#""""#),
            (b"a\"\\\n\x07\x00\x7f", r#""a\"\\\n\a\x00\x7f""#),
            ("ä€".as_bytes(), "\"ä€\""),
            ("\u{85}\u{200b}\u{e0001}".as_bytes(), r#""\u0085\u200b\U000e0001""#),
            (b"a\xff\xc3", r#""a\xff\xc3""#),
        ] {
            assert_eq!(quoted(name), want);
        }
    }
}
