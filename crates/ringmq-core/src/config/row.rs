//! One row of the table of settings: what an operator may write for it and what comes of it.

use super::{
    Settings,
    value::{parse_bytes, parse_duration_ns, show_bytes, show_duration_ns},
};

/// A setting's value as the table handles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Text(String),
    List(Vec<String>),
}

/// Unit of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Count,
    Bytes,
    Millis,
    Micros,
    Text,
    /// `host:port`
    Address,
    /// Several of them.
    Addresses,
    /// One of these words.
    Word(&'static [&'static str]),
    /// On or off in the forms that Go takes, `on` without a value; or one of these further words.
    Switch(&'static [&'static str]),
    /// Texts: a flag is given once for each.
    List,
    /// Numbers above 0 and up to 1, with commas or one for each flag.
    Shares,
}

pub struct Setting {
    /// The flag, without its dashes in front; in the file with `-` or `_`. nsqd's where the thing is the same.
    pub name: &'static str,
    pub group: &'static str,
    pub unit: Unit,
    pub min: u64,
    pub max: u64,
    /// Text shown for a default whose number says nothing (`0` that means "as many as there are CPUs").
    pub default_shown: Option<&'static str>,
    pub about: &'static str,
    pub(super) get: fn(&Settings) -> Value,
    pub(super) set: fn(&mut Settings, Value),
}

/// Why a value was not taken; names the setting as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{written}: {reason}")]
pub struct BadValue {
    /// `--journal-bytes=12` or `journal_bytes = 12`
    pub written: String,
    pub reason: String,
}

impl Setting {
    pub fn value(&self, settings: &Settings) -> Value {
        (self.get)(settings)
    }

    pub fn file_key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Reads what stands behind a flag, or in a string of the file.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let number = match self.unit {
            Unit::Text => return Ok(Value::Text(text.into())),
            Unit::Switch(words) => return switch(text, words).map(|word| Value::Text(word.into())),
            Unit::Address => return address(text).map(Value::Text),
            // An empty one asks for nothing.
            Unit::Addresses | Unit::List | Unit::Shares if text.is_empty() => return Ok(Value::List(vec![])),
            Unit::Shares => return text.split(',').map(share).collect::<Result<_, _>>().map(Value::List),
            Unit::List => return Ok(Value::List(vec![text.into()])),
            Unit::Addresses => return address(text).map(|address| Value::List(vec![address])),
            // As nsqd's own example of a file has it: its default.
            Unit::Word(_) if text.is_empty() && self.name == "tls-min-version" => return Ok(self.value(&Settings::default())),
            Unit::Word(words) => {
                let word = text.to_ascii_lowercase();
                let known = words.contains(&word.as_str());
                return if known { Ok(Value::Text(word)) } else { Err(format!("must be one of {}", words.join(", "))) };
            }
            Unit::Count => text.parse().map_err(|_| format!("must be a whole number {}", self.bounds()))?,
            Unit::Bytes => parse_bytes(text)?,
            Unit::Millis => whole(parse_duration_ns(text)?, 1_000_000, "milliseconds")?,
            Unit::Micros => whole(parse_duration_ns(text)?, 1_000, "microseconds")?,
        };
        self.bounded(number)
    }

    /// An integer of the file. For a duration it is milliseconds, as nsqd reads it.
    pub fn number(&self, number: i64) -> Result<Value, String> {
        let number = u64::try_from(number).map_err(|_| format!("must be {}", self.bounds()))?;
        match self.unit {
            Unit::Count | Unit::Bytes | Unit::Millis => self.bounded(number),
            Unit::Micros => self.bounded(number.saturating_mul(1000)),
            Unit::Switch(_) => Err("must be true or false".into()),
            Unit::Text | Unit::Address | Unit::Word(_) => Err("must be a string".into()),
            Unit::Addresses | Unit::List => Err("must be a list of strings".into()),
            Unit::Shares => Err("must be a list of numbers".into()),
        }
    }

    fn bounded(&self, number: u64) -> Result<Value, String> {
        if (self.min..=self.max).contains(&number) {
            Ok(Value::Number(number))
        } else {
            Err(format!("must be {}", self.bounds()))
        }
    }

    pub fn bounds(&self) -> String {
        format!("between {} and {}", self.show_number(self.min), self.show_number(self.max))
    }

    fn show_number(&self, number: u64) -> String {
        match self.unit {
            Unit::Bytes => show_bytes(number),
            Unit::Millis => show_duration_ns(number as u128 * 1_000_000),
            Unit::Micros => show_duration_ns(number as u128 * 1_000),
            _ => number.to_string(),
        }
    }

    /// The value as it would be written on the command line.
    pub fn show(&self, value: &Value) -> String {
        match value {
            Value::Number(number) => self.show_number(*number),
            Value::Text(text) => text.clone(),
            Value::List(list) => list.join(","),
        }
    }

    /// True for a setting that may be given several times; the values join.
    pub fn is_list(&self) -> bool {
        matches!(self.unit, Unit::Addresses | Unit::List | Unit::Shares)
    }

    pub fn show_default(&self) -> String {
        match self.default_shown {
            Some(words) => words.into(),
            None => self.show(&(self.get)(&Settings::default())),
        }
    }

    /// Unit for help and docs.
    pub fn unit_name(&self) -> &'static str {
        match self.unit {
            Unit::Count => "number",
            Unit::Bytes => "bytes",
            Unit::Millis | Unit::Micros => "duration",
            Unit::Text => "text",
            Unit::Address | Unit::Addresses => "host:port",
            Unit::Word(_) => "word",
            Unit::Switch(_) => "true or false",
            Unit::List => "texts",
            Unit::Shares => "numbers",
        }
    }

    pub fn is_number(&self) -> bool {
        matches!(self.unit, Unit::Count | Unit::Bytes | Unit::Millis | Unit::Micros)
    }
}

/// Parses one share of [`Unit::Shares`], and writes it as Rust does.
fn share(text: &str) -> Result<String, String> {
    let number = text.trim().parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 1.0);
    number
        .map(|number| number.to_string())
        .ok_or_else(|| "must be numbers above 0 and up to 1.0, with commas between them".into())
}

/// Parses a boolean as Go's flag package does, or one of `words`.
fn switch(text: &str, words: &[&'static str]) -> Result<&'static str, String> {
    let lower = text.to_ascii_lowercase();
    if let Some(word) = words.iter().find(|word| **word == lower) {
        return Ok(word);
    }
    match go_bool(text) {
        Some(true) => Ok("true"),
        Some(false) => Ok("false"),
        None => Err(format!("must be {}", ["true", "false"].iter().chain(words).copied().collect::<Vec<_>>().join(", "))),
    }
}

/// A boolean as Go's flag package reads it.
pub(super) fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn whole(ns: u128, scale: u128, name: &str) -> Result<u64, String> {
    if !ns.is_multiple_of(scale) {
        return Err(format!("must be whole {name}"));
    }
    u64::try_from(ns / scale).map_err(|_| "this is too long".into())
}

/// `host:port` or `:port`; the host may be a name or an IPv6 address in brackets.
fn address(text: &str) -> Result<String, String> {
    const WANTED: &str = "must be host:port, such as 0.0.0.0:4150 or 127.0.0.1:4150 (port 0 takes a free one)";
    let (host, port) = text.rsplit_once(':').ok_or(WANTED)?;
    port.parse::<u16>().map_err(|_| WANTED)?;
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(WANTED.into());
    }
    Ok(if host.is_empty() { format!("0.0.0.0:{port}") } else { text.into() })
}

/// Type that a field of [`Settings`] can have.
pub(super) trait Field {
    fn get(&self) -> Value;
    fn set(&mut self, value: Value);
}

macro_rules! number_field {
    ($type:ty) => {
        impl Field for $type {
            fn get(&self) -> Value {
                Value::Number(*self as u64)
            }

            fn set(&mut self, value: Value) {
                // The row's bounds were checked, and a test checks that they fit the field.
                if let Value::Number(number) = value {
                    *self = <$type>::try_from(number).expect("the bounds of a row fit its field");
                }
            }
        }
    };
}
number_field!(u16);
number_field!(u64);

impl Field for bool {
    fn get(&self) -> Value {
        Value::Text(self.to_string())
    }

    fn set(&mut self, value: Value) {
        *self = value == Value::Text("true".into());
    }
}

impl Field for String {
    fn get(&self) -> Value {
        Value::Text(self.clone())
    }

    fn set(&mut self, value: Value) {
        if let Value::Text(text) = value {
            *self = text;
        }
    }
}

impl Field for Vec<String> {
    fn get(&self) -> Value {
        Value::List(self.clone())
    }

    fn set(&mut self, value: Value) {
        if let Value::List(list) = value {
            *self = list;
        }
    }
}
