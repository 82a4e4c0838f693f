//! One row of the table of settings: the texts that an operator may write, and their values.

use super::{
    Settings, nsqd,
    value::{parse_bytes, parse_duration_ns, show_bytes, show_duration_ns},
};

/// A setting's value as the table handles it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Text(String),
    List(Vec<String>),
}

/// A value, and a note about it for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadValue {
    pub value: Value,
    /// Reason why the value differs from the written one.
    pub note: Option<String>,
}

impl From<Value> for ReadValue {
    fn from(value: Value) -> Self {
        ReadValue { value, note: None }
    }
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
    /// Word of this list.
    Word(&'static [&'static str]),
    /// Switch: on or off in the forms that Go takes, `on` without a value; or a word of this list.
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

/// Reason why a value was refused; names the setting as the operator wrote it.
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

    /// Parses the value of a flag, or a string of the file.
    pub fn parse(&self, text: &str) -> Result<ReadValue, String> {
        let value = match self.unit {
            Unit::Text => Value::Text(text.into()),
            Unit::Switch(words) => Value::Text(switch(text, words)?.into()),
            Unit::Address if text.is_empty() && self.name == "tcp-address" => return Ok(hidden_port()),
            // No HTTP at all.
            Unit::Address if text.is_empty() && self.name == "http-address" => Value::Text(String::new()),
            Unit::Address => Value::Text(address(text)?),
            // An empty one asks for nothing.
            Unit::Addresses | Unit::List | Unit::Shares if text.is_empty() => Value::List(vec![]),
            Unit::Shares => Value::List(text.split(',').map(share).collect::<Result<_, _>>()?),
            Unit::List => Value::List(vec![text.into()]),
            Unit::Addresses => return addresses(text),
            // As nsqd's own example of a file has it: its default.
            Unit::Word(_) if text.is_empty() && self.name == "tls-min-version" => self.value(&Settings::default()),
            Unit::Word(words) => {
                let word = text.to_ascii_lowercase();
                let known = words.contains(&word.as_str());
                Value::Text(known.then_some(word).ok_or_else(|| format!("must be one of {}", words.join(", ")))?)
            }
            Unit::Count => {
                let wanted = || format!("must be a whole number {}", self.bounds());
                return self.bounded(nsqd::integer(text).ok_or_else(wanted)?.into()).map_err(|_| wanted());
            }
            Unit::Bytes => {
                let number = nsqd::integer(text).map(i128::from).map_or_else(|| parse_bytes(text).map(i128::from), Ok);
                return self.bounded(number?);
            }
            Unit::Millis => return self.duration(text, 1_000_000, "milliseconds"),
            Unit::Micros => return self.duration(text, 1_000, "microseconds"),
        };
        Ok(value.into())
    }

    /// Reads a duration in units of `scale` nanoseconds.
    fn duration(&self, text: &str, scale: u128, name: &str) -> Result<ReadValue, String> {
        if !nsqd::is_unbounded(self) {
            return self.bounded(whole(parse_duration_ns(text)?, scale, name)?.into());
        }
        let (sign, rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
        let ns = parse_duration_ns(rest)?;
        let number = i128::try_from(ns.div_ceil(scale)).map_err(|_| "the duration is too long")?;
        let mut taken = self.bounded(sign * number)?;
        if taken.note.is_none() && !ns.is_multiple_of(scale) {
            taken.note = Some(format!("{} is in force, the next whole number of {name}", self.show(&taken.value)));
        }
        Ok(taken)
    }

    /// An integer of the file. For a duration it is milliseconds, as nsqd reads it.
    pub fn number(&self, number: i64) -> Result<ReadValue, String> {
        match self.unit {
            Unit::Count | Unit::Bytes | Unit::Millis => self.bounded(number.into()),
            Unit::Micros => self.bounded(i128::from(number) * 1000),
            Unit::Switch(_) => self.switch_number(number),
            Unit::Text | Unit::Address | Unit::Word(_) => Err("must be a string".into()),
            Unit::Addresses | Unit::List => Err("must be a list of strings".into()),
            Unit::Shares => Err("must be a list of numbers".into()),
        }
    }

    /// 0 is false and 1 is true, as elsewhere. nsqd reads them the other way round, surely by mistake.
    fn switch_number(&self, number: i64) -> Result<ReadValue, String> {
        let (word, theirs) = match number {
            0 => ("false", "true"),
            1 => ("true", "false"),
            _ => return Err("must be true or false".into()),
        };
        let note = format!("{word} is in force; write true or false, since nsqd reads {number} as {theirs}");
        Ok(ReadValue { value: Value::Text(word.into()), note: Some(note) })
    }

    fn bounded(&self, number: i128) -> Result<ReadValue, String> {
        let within = u64::try_from(number).ok().filter(|number| (self.min..=self.max).contains(number));
        if let Some(number) = within {
            return Ok(Value::Number(number).into());
        }
        let (number, why) = nsqd::instead(self, number).ok_or_else(|| format!("must be {}", self.bounds()))?;
        Ok(ReadValue { value: Value::Number(number), note: Some(format!("{} is in force: {why}", self.show_number(number))) })
    }

    pub fn bounds(&self) -> String {
        format!("between {} and {}", self.show_number(self.min), self.show_number(self.max))
    }

    /// The bounds as a cell of a table.
    pub fn range(&self) -> String {
        format!("{} to {}", self.show_number(self.min), self.show_number(self.max))
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
    u64::try_from(ns / scale).map_err(|_| "the duration is too long".into())
}

/// Stand-in for a port that nsqd can do without, and this node cannot.
fn hidden_port() -> ReadValue {
    const LOCAL: &str = "127.0.0.1:0";
    let note =
        format!("{LOCAL} is in force: a free port that only this host reaches, since the node always listens for NSQ clients");
    ReadValue { value: Value::Text(LOCAL.into()), note: Some(note) }
}

/// Addresses with commas between them. One without a port is left out: nsqd tries it again and again, in vain.
fn addresses(text: &str) -> Result<ReadValue, String> {
    let (with_port, without): (Vec<&str>, Vec<&str>) = text.split(',').map(str::trim).partition(|one| one.contains(':'));
    let list = with_port.into_iter().map(address).collect::<Result<_, _>>().map(Value::List)?;
    let note = (!without.is_empty()).then(|| format!("{} is left out: an address is host:port", without.join(", ")));
    Ok(ReadValue { value: list, note })
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
