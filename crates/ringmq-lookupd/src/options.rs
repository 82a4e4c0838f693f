//! The flags and the file of nsqlookupd, by its names. A flag wins over the file, the file over the default.

use crate::go;
use crate::registry::Limits;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::time::Duration;

/// Options in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub tcp_address: String,
    pub http_address: String,
    pub broadcast_address: String,
    pub hostname: String,
    pub log_level: String,
    pub log_prefix: String,
    pub inactive_producer_timeout: Duration,
    pub tombstone_lifetime: Duration,
    /// TCP connections at a time, and as many of HTTP.
    pub max_connections: usize,
    pub max_registrations: usize,
    /// Keys of the file that have no effect, a line each, for the log.
    pub without_effect: Vec<String>,
}

impl Options {
    pub fn limits(&self) -> Limits {
        Limits {
            inactive_producer_timeout: self.inactive_producer_timeout,
            tombstone_lifetime: self.tombstone_lifetime,
            entries_max: self.max_registrations,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("--config={path}: {reason}")]
    File { path: String, reason: String },
    #[error("{written}: {reason}")]
    Value { written: String, reason: String },
}

const LOG_LEVELS: [&str; 5] = ["debug", "info", "warn", "error", "fatal"];

/// Flags: name, default, description.
const FLAGS: [(&str, &str, &str); 9] = [
    ("tcp-address", "0.0.0.0:4160", "Address for nodes"),
    ("http-address", "0.0.0.0:4161", "Address for consumers and tools"),
    ("broadcast-address", "", "Address of this nsqlookupd as nodes should use it [default: the host's name]"),
    ("inactive-producer-timeout", "5m", "Silence after which a node is left out of answers"),
    ("tombstone-lifetime", "45s", "Time for which /lookup leaves out a node after /topic/tombstone"),
    ("log-level", "info", "Lowest level of logged lines: debug, info, warn, error or fatal"),
    ("log-prefix", "[nsqlookupd] ", "Prefix of each log line"),
    ("max-connections", "10000", "Most connections of nodes at a time, and most of HTTP; further ones are refused"),
    (
        "max-registrations",
        "1000000",
        "Most registrations of topics, channels and nodes, counted together; further ones are refused",
    ),
];

/// The flags for a short help: each with a value and a description.
pub fn brief() -> impl Iterator<Item = (String, &'static str)> {
    FLAGS.iter().map(|(name, default, about)| {
        let (value, about) = match *name {
            "broadcast-address" => ("HOST", "This host's address for nodes [its name]"),
            "log-prefix" => ("TEXT", "Prefix of each log line [[nsqlookupd]]"),
            "log-level" => (*default, "debug, info, warn, error or fatal"),
            "max-connections" => (*default, "Most connections of nodes, and most of HTTP"),
            "max-registrations" => (*default, "Most registrations, of all kinds together"),
            "inactive-producer-timeout" => (*default, "Silence that hides a node"),
            "tombstone-lifetime" => (*default, "Time that a tombstone hides a node"),
            _ => (*default, *about),
        };
        (format!("--{name}={value}"), about)
    })
}

/// Go accepts one dash before a long name; clap wants two. Arguments behind `--` are left alone.
pub fn normalise(args: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut is_literal = false;
    let fix = |arg: String| {
        is_literal |= arg == "--";
        let is_single = arg.starts_with('-') && !arg.starts_with("--") && arg.len() > 2;
        let is_name = arg.as_bytes().get(1).is_some_and(u8::is_ascii_alphabetic);
        if is_single && is_name && !is_literal { format!("-{arg}") } else { arg }
    };
    args.into_iter().map(fix).collect()
}

/// The command, by the name that the caller has for it.
pub fn command(name: &'static str) -> Command {
    let flags = FLAGS.map(|(name, default, about)| {
        let help = if default.is_empty() { about.to_owned() } else { format!("{about} [default: {}]", default.trim_end()) };
        let value = match name.rsplit('-').next() {
            Some("address") if name != "broadcast-address" => "host:port",
            Some("timeout" | "lifetime") => "duration",
            Some("connections" | "registrations") => "number",
            _ => "text",
        };
        Arg::new(name).long(name).value_name(value).help(help).overrides_with(name).allow_hyphen_values(true)
    });
    let boolean = |name: &'static str| {
        let arg = Arg::new(name).long(name).num_args(0..=1).require_equals(true).default_missing_value("true");
        arg.value_parser(go::parse_bool).overrides_with(name).action(ArgAction::Set)
    };
    Command::new(name)
        .about("Run nsqlookupd: nodes register, consumers look them up")
        .long_about(
            "Run nsqlookupd: nodes register their topics and channels over TCP, consumers and tools look nodes up over HTTP.\n\n\
             Called by the name `nsqlookupd` the binary does this, with the flags right behind the name.",
        )
        .disable_version_flag(true)
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("path")
                .help("TOML file with the settings below, with `_` in their names"),
        )
        .args(flags)
        .arg(boolean("version").help("Print the version"))
        .arg(boolean("verbose").hide(true))
        .after_help("SIGTERM and SIGINT stop it. Exit codes: 0 stopped, 1 failed, 2 a wrong flag or file.")
}

/// Output of `-version`, in the form that scripts know.
pub fn version(build: &str) -> String {
    format!("nsqlookupd v{} (built w/{build})", crate::NSQ_VERSION)
}

pub fn asks_for_version(matches: &ArgMatches) -> bool {
    matches.get_one::<bool>("version").copied().unwrap_or(false)
}

/// `read_file` gives the text of a path.
pub fn load(
    matches: &ArgMatches,
    hostname: &str,
    read_file: impl FnOnce(&str) -> Result<String, String>,
) -> Result<Options, OptionsError> {
    let mut file = toml::Table::new();
    let path = matches.get_one::<String>("config").filter(|path| !path.is_empty());
    if let Some(path) = path {
        let failed = |reason| OptionsError::File { path: path.clone(), reason };
        file = read_file(path).map_err(failed)?.parse().map_err(|error: toml::de::Error| failed(error.to_string()))?;
    }
    let key = |name: &str| name.replace('-', "_");
    let value = |name: &'static str| -> Result<Written, OptionsError> {
        if let Some(text) = matches.get_one::<String>(name) {
            return Ok(Written { name: format!("--{name}={text}"), text: text.clone() });
        }
        let default = FLAGS.iter().find(|(flag, ..)| *flag == name).map_or("", |(_, default, _)| default);
        let Some(value) = file.get(&key(name)) else { return Ok(Written { name: name.into(), text: default.into() }) };
        let text = match value {
            toml::Value::String(text) => text.clone(),
            // A number is milliseconds where a duration is meant, as nsqlookupd has it.
            toml::Value::Integer(number) if default.ends_with(['s', 'm']) => format!("{number}ms"),
            toml::Value::Integer(number) => number.to_string(),
            other => {
                let (written, reason) = (format!("{} = {other}", key(name)), "must be a string".into());
                return Err(OptionsError::Value { written, reason });
            }
        };
        Ok(Written { name: format!("{} = {value}", key(name)), text })
    };
    let known = |name: &String| FLAGS.iter().any(|(flag, ..)| key(flag) == *name) || name == "verbose";
    let mut without_effect: Vec<String> =
        file.keys().filter(|name| !known(name)).map(|name| format!("{name}: no such setting")).collect();
    if matches.get_one::<bool>("verbose") == Some(&true) {
        without_effect.push("--verbose: use --log-level".into());
    }
    let broadcast = value("broadcast-address")?.text;
    Ok(Options {
        tcp_address: value("tcp-address")?.address()?,
        http_address: value("http-address")?.address()?,
        broadcast_address: if broadcast.is_empty() { hostname.into() } else { broadcast },
        hostname: hostname.into(),
        log_level: value("log-level")?.level()?,
        log_prefix: value("log-prefix")?.text,
        inactive_producer_timeout: value("inactive-producer-timeout")?.duration()?,
        tombstone_lifetime: value("tombstone-lifetime")?.duration()?,
        max_connections: value("max-connections")?.count(1, 1_000_000)?,
        max_registrations: value("max-registrations")?.count(1, 1_000_000_000)?,
        without_effect,
    })
}

/// A value, and how the operator wrote it.
struct Written {
    name: String,
    text: String,
}

impl Written {
    fn wrong(self, reason: impl Into<String>) -> OptionsError {
        OptionsError::Value { written: self.name, reason: reason.into() }
    }

    fn address(self) -> Result<String, OptionsError> {
        match self.text.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => Ok(self.text),
            _ => Err(self.wrong("must be host:port, such as 0.0.0.0:4160 or :4160")),
        }
    }

    fn level(self) -> Result<String, OptionsError> {
        let level = self.text.to_ascii_lowercase();
        if LOG_LEVELS.contains(&level.as_str()) {
            Ok(level)
        } else {
            Err(self.wrong(format!("must be one of {}", LOG_LEVELS.join(", "))))
        }
    }

    fn duration(self) -> Result<Duration, OptionsError> {
        go::parse_duration(&self.text).map_err(|reason| self.wrong(reason))
    }

    fn count(self, min: usize, max: usize) -> Result<usize, OptionsError> {
        match self.text.parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(self.wrong(format!("must be a whole number between {min} and {max}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(args: &[&str], file: Option<&str>) -> Result<Options, String> {
        let args = normalise(std::iter::once("nsqlookupd").chain(args.iter().copied()).map(String::from));
        let matches = command("nsqlookupd").try_get_matches_from(args).map_err(|error| error.to_string())?;
        load(&matches, "host", |_| file.map(String::from).ok_or("no such file".into())).map_err(|error| error.to_string())
    }

    #[test]
    fn every_flag_has_its_default_and_both_spellings() {
        let defaults = loaded(&[], None).unwrap();
        assert_eq!((defaults.tcp_address.as_str(), defaults.http_address.as_str()), ("0.0.0.0:4160", "0.0.0.0:4161"));
        assert_eq!((defaults.broadcast_address.as_str(), defaults.log_prefix.as_str()), ("host", "[nsqlookupd] "));
        assert_eq!(defaults.inactive_producer_timeout, Duration::from_secs(300));
        assert_eq!(defaults.tombstone_lifetime, Duration::from_secs(45));
        for args in [
            &["-tombstone-lifetime", "1m30s"][..],
            &["--tombstone-lifetime=90s"],
            &["-tombstone-lifetime=1s", "-tombstone-lifetime=90s"],
        ] {
            assert_eq!(loaded(args, None).unwrap().tombstone_lifetime, Duration::from_secs(90), "{args:?}");
        }
    }

    #[test]
    fn the_file_is_nsqlookupds() {
        let file =
            "tcp_address = \":1\"\ninactive_producer_timeout = \"7s\"\ntombstone_lifetime = 500\nlog_level = \"WARN\"\nnope = 1";
        let options = loaded(&["--config=x", "-http-address=h:2"], Some(file)).unwrap();
        assert_eq!((options.tcp_address.as_str(), options.http_address.as_str()), (":1", "h:2"));
        assert_eq!(options.inactive_producer_timeout, Duration::from_secs(7));
        assert_eq!((options.tombstone_lifetime, options.log_level.as_str()), (Duration::from_millis(500), "warn"));
        assert_eq!(options.without_effect, ["nope: no such setting"]);
        assert_eq!(loaded(&["--config=x", "-tcp-address=h:3"], Some(file)).unwrap().tcp_address, "h:3", "a flag wins");
    }

    #[test]
    fn a_wrong_value_is_named_as_it_was_written() {
        for (args, file, wanted) in [
            (&["-inactive-producer-timeout=5"][..], None, "--inactive-producer-timeout=5: must be a duration"),
            (&["-log-level=loud"], None, "--log-level=loud: must be one of debug"),
            (&["-tcp-address=4160"], None, "--tcp-address=4160: must be host:port"),
            (&["-max-connections=0"], None, "--max-connections=0: must be a whole number between 1 and"),
            (&["-config=x"], None, "--config=x: no such file"),
            (&["-config=x"], Some("log_level = 1.5"), "log_level = 1.5: must be a string"),
            (&["-config=x"], Some("a = = b"), "--config=x: "),
            (&["-nope"], None, "unexpected argument"),
        ] {
            let error = loaded(args, file).unwrap_err();
            assert!(error.contains(wanted), "{args:?}: {error}");
        }
    }

    #[test]
    fn the_version_is_what_scripts_look_for() {
        assert!(version("x").starts_with("nsqlookupd v1.3.0 ("));
        let asks = |args: &[&str]| {
            asks_for_version(&command("nsqlookupd").try_get_matches_from(normalise(args.iter().map(|a| a.to_string()))).unwrap())
        };
        assert!(asks(&["nsqlookupd", "-version"]) && asks(&["nsqlookupd", "--version=true"]));
        assert!(!asks(&["nsqlookupd"]) && !asks(&["nsqlookupd", "-version=false"]));
    }
}
