//! The TOML file of `--config`: nsqd's keys (`max_msg_size`), with `_` or `-`, and `[topics.<name>]` tables.

use super::{
    Notes, Settings, TopicSettings, find,
    row::{BadValue, ReadValue, Setting, Unit, Value},
};
use crate::base::TopicName;
use std::collections::BTreeMap;
use toml::{Table, Value as Toml};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("not valid TOML: {0}")]
    Syntax(String),
    #[error("topics is a table: [topics.<name>]")]
    NoTable,
    #[error("`{0}` and `{1}` are the same setting: keep one of them")]
    Twice(String, String),
    #[error(transparent)]
    BadValue(#[from] BadValue),
    #[error("[topics.{name}]: {reason}")]
    BadTopic { name: String, reason: String },
}

/// Puts the values of the file into `settings`. As in nsqd an unknown key has no effect; a note tells it.
/// Returns every error of the file, so that an operator mends the file once.
pub fn apply(text: &str, settings: &mut Settings) -> Result<Notes, Vec<FileError>> {
    let syntax = |e: toml::de::Error| vec![FileError::Syntax(e.to_string().trim().replace('\n', " "))];
    let table: Table = text.parse().map_err(syntax)?;
    let mut notes = Notes::default();
    let mut errors = Vec::new();
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for (key, value) in &table {
        if let Some(first) = seen.insert(key.replace('_', "-"), key) {
            errors.push(FileError::Twice(first.into(), key.clone()));
        } else if key == "topics" {
            errors.extend(apply_topics(value, settings));
        } else if let Err(error) = apply_key(key, value, settings, &mut notes) {
            errors.push(error.into());
        }
    }
    if errors.is_empty() { Ok(notes) } else { Err(errors) }
}

/// Puts one key into `settings`, and lines for the log into `notes`.
fn apply_key(key: &str, value: &Toml, settings: &mut Settings, notes: &mut Notes) -> Result<(), BadValue> {
    if let Some(row) = find(key) {
        let taken = read(row, key, value)?;
        notes.warnings.extend(taken.note.map(|note| format!("{key} = {value}: {note}")));
        (row.set)(settings, taken.value);
        settings.given.insert(row.name);
    } else if let Some((name, why)) = super::ignored(key) {
        notes.without_effect.push(format!("{name}: {why}"));
    } else {
        let written = if value.is_table() { format!("[{key}]") } else { key.to_owned() };
        notes.without_effect.push(format!("{written}: no such setting; `ringmq serve --help` lists the settings"));
    }
    Ok(())
}

/// A list has its flag's name in the plural in nsqd's file.
pub(super) fn is_key_of(name: &str, key: &str) -> bool {
    let key = key.replace('_', "-");
    key == name || key.strip_suffix('s') == Some(name)
}

fn read(row: &Setting, key: &str, value: &Toml) -> Result<ReadValue, BadValue> {
    let result = match value {
        // As in nsqd, whose flags know no commas.
        Toml::String(text) if row.unit == Unit::List => list(row, text.split(',').map(|one| Ok(one.trim().to_owned()))),
        Toml::String(text) => row.parse(text),
        Toml::Integer(number) => row.number(*number),
        Toml::Array(all) if row.is_list() => list(
            row,
            all.iter().map(|one| match one {
                Toml::String(text) => Ok(text.clone()),
                Toml::Integer(_) | Toml::Float(_) if row.unit == Unit::Shares => Ok(one.to_string()),
                _ => Err("must be a list of strings".to_owned()),
            }),
        ),
        Toml::Boolean(on) if matches!(row.unit, Unit::Switch(_)) => row.parse(if *on { "true" } else { "false" }),
        _ if row.is_list() => Err("must be a list of strings".into()),
        _ => Err("must be a string or an integer".into()),
    };
    result.map_err(|reason| BadValue { written: format!("{key} = {value}"), reason })
}

/// The values of a list's texts, joined.
fn list(row: &Setting, texts: impl Iterator<Item = Result<String, String>>) -> Result<ReadValue, String> {
    let (mut joined, mut notes) = (vec![], vec![]);
    for text in texts {
        let ReadValue { value, note } = row.parse(&text?)?;
        notes.extend(note);
        if let Value::List(more) = value {
            joined.extend(more);
        }
    }
    Ok(ReadValue { value: Value::List(joined), note: (!notes.is_empty()).then(|| notes.join("; ")) })
}

/// Puts the `[topics.<name>]` tables into `settings` and returns their errors.
fn apply_topics(topics: &Toml, settings: &mut Settings) -> Vec<FileError> {
    let Toml::Table(topics) = topics else {
        return vec![FileError::NoTable];
    };
    let mut errors = Vec::new();
    for (name, own) in topics {
        match topic_settings(name, own) {
            Ok(topic) => drop(settings.topics.insert(name.clone(), topic)),
            Err(reason) => errors.push(FileError::BadTopic { name: name.clone(), reason }),
        }
    }
    errors
}

fn topic_settings(name: &str, own: &Toml) -> Result<TopicSettings, String> {
    TopicName::new(name).map_err(|e| e.to_string())?;
    let Toml::Table(own) = own else { return Err("must be a table".into()) };
    let mut topic = TopicSettings::default();
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for (key, value) in own {
        // `retention_ms` says the unit of an integer; `retention` is the name that the node-wide setting has.
        let (row_name, slot) = match key.replace('-', "_").as_str() {
            "retention" | "retention_ms" => ("retention", &mut topic.retention_ms),
            "retention_bytes" => ("retention-bytes", &mut topic.retention_bytes),
            _ => return Err(format!("unknown key `{key}`: a topic has retention and retention_bytes")),
        };
        if let Some(first) = seen.insert(row_name, key) {
            return Err(FileError::Twice(first.into(), key.clone()).to_string());
        }
        let row = find(row_name).expect("both names are rows of the table");
        if let Value::Number(number) = read(row, key, value).map_err(|e| e.to_string())?.value {
            *slot = Some(number);
        }
    }
    Ok(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::default();
        let joined = |errors: Vec<FileError>| errors.iter().map(FileError::to_string).collect::<Vec<_>>().join("; ");
        apply(text, &mut settings).map(|_| settings).map_err(joined)
    }

    #[test]
    fn keys_are_nsqds_or_the_flags() {
        let settings = applied(
            "max_msg_size = 2048\nmsg-timeout = \"90s\"\nmax_msg_timeout = 120000\ndata_path = \"/x\"\n\
             journal_bytes = \"8MiB\"\nspin_before_park = \"5us\"\nlog_level = \"WARN\"",
        )
        .unwrap();
        assert_eq!((settings.max_msg_size, settings.msg_timeout_ms, settings.max_msg_timeout_ms), (2048, 90_000, 120_000));
        assert_eq!((settings.data_path.as_str(), settings.journal_bytes, settings.spin_before_park_us), ("/x", 8 << 20, 5));
        assert_eq!(settings.log_level, "warn");
    }

    #[test]
    fn every_error_of_a_file_is_told() {
        let text = "snappy = \"maybe\"\nshards = -1\nlog_level = 1\n[topics.a]\nx = 1\n[topics.\"b c\"]";
        let errors = apply(text, &mut Settings::default()).expect_err("nothing of it is right");
        let told = errors.iter().map(FileError::to_string).collect::<Vec<_>>();
        assert_eq!(errors.len(), 5, "{told:?}");
        for wanted in ["snappy = ", "shards = -1", "log_level", "[topics.a]", "[topics.b c]"] {
            assert!(told.iter().any(|error| error.contains(wanted)), "no {wanted} in {told:?}");
        }
    }

    #[test]
    fn errors_name_key_value_and_bounds() {
        for (text, wanted) in [
            ("journal_bytes = 12", "journal_bytes = 12: must be between 1MiB and 64GiB"),
            ("journal_bytes = -1", "journal_bytes = -1: must be between"),
            ("msg_timeout = \"90\"", "msg_timeout = \"90\": the unit is missing"),
            ("tcp_address = 4150", "tcp_address = 4150: must be a string"),
            ("tcp_address = \"x\"", "must be host:port"),
            ("snappy = \"maybe\"", "snappy = \"maybe\": must be true, false"),
            ("snappy = 2", "snappy = 2: must be true or false"),
            ("max_msg_size = 1\nmax-msg-size = 2", "`max-msg-size` and `max_msg_size` are the same setting"),
            ("sync_every = 1\nsync-every = 1", "`sync-every` and `sync_every` are the same setting"),
            ("[topics.a]\nretention = \"1s\"\nretention_ms = 5", "[topics.a]: `retention` and `retention_ms` are the same"),
            ("log_level = \"loud\"", "must be one of trace, debug"),
            ("a = ", "not valid TOML"),
            ("shards = 1.5", "must be a string or an integer"),
            ("topics = 1", "topics is a table"),
            ("[topics.\"a b\"]", "[topics.a b]: a name has"),
            ("[topics.a]\nreplicas = 1", "[topics.a]: unknown key `replicas`"),
            ("[topics.a]\nretention = \"x\"", "[topics.a]: retention = \"x\""),
        ] {
            let error = applied(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn topics_have_their_own_retention() {
        let settings =
            applied("retention = \"1h\"\n[topics.t]\nretention_ms = 5\n[topics.u]\nretention-bytes = \"1GiB\"").unwrap();
        assert_eq!(settings.retention_of("t"), (5, 0));
        assert_eq!(settings.retention_of("u"), (3_600_000, 1 << 30));
        assert_eq!(settings.retention_of("v"), (3_600_000, 0));
    }

    #[test]
    fn what_only_nsqd_needs_is_said_to_have_no_effect() {
        let mut settings = Settings::default();
        let notes = apply("sync_every = 10", &mut settings).unwrap();
        assert!(notes.without_effect[0].starts_with("sync-every: "), "{notes:?}");
    }

    #[test]
    fn an_unknown_key_or_section_is_told_and_has_no_effect_as_in_nsqd() {
        let notes = apply("max_mgs_size = 1\nmax_rdy_count = 2\n[section]\na = 1", &mut Settings::default()).unwrap();
        assert_eq!(notes.without_effect.len(), 2, "{notes:?}");
        for wanted in ["max_mgs_size: no such setting", "[section]: no such setting"] {
            assert!(notes.without_effect.iter().any(|note| note.starts_with(wanted)), "{notes:?}");
        }
    }

    #[test]
    fn a_number_that_nsqd_takes_is_taken_as_near_as_can_be() {
        let mut settings = Settings::default();
        let text = "max_msg_size = 200000000\nmsg_timeout = -5\nsnappy = 0\ndeflate = 1";
        let notes = apply(text, &mut settings).unwrap();
        assert_eq!(
            (settings.max_msg_size, settings.msg_timeout_ms, settings.snappy, settings.deflate),
            (63 << 20, 1, false, true)
        );
        assert_eq!(notes.warnings.len(), 4, "{notes:?}");
        let wanted = "max_msg_size = 200000000: 63MiB is in force: the largest value here";
        assert!(notes.warnings.contains(&wanted.to_owned()), "{notes:?}");
    }

    #[test]
    fn a_string_of_several_is_split_as_in_nsqd() {
        let settings = applied("nsqlookupd_tcp_addresses = \"a:1,b:2\"\nauth_http_addresses = \"c:3, d:4\"").unwrap();
        assert_eq!(settings.lookupd_tcp_addresses, ["a:1", "b:2"]);
        assert_eq!(settings.auth_http_address, ["c:3", "d:4"]);
    }
}
