//! Flags: nsqd's spellings (`-x v`, `--x=v`, `--x v`), then the file, then the surroundings, into [`Settings`].

use super::{
    Settings, TABLE, file, find,
    row::{self, BadValue, Unit},
};
use clap::{Arg, ArgAction, ArgMatches, Command};

/// Defaults of the environment, where neither a flag nor the file sets a value.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub hostname: String,
    pub cpus: u16,
    pub working_directory: String,
}

/// The settings in force, and what of the input had no effect (a line each, for the log).
#[derive(Debug)]
pub struct Asked {
    pub settings: Settings,
    pub without_effect: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Flag(#[from] BadValue),
    #[error("--config={path}: {reason}")]
    Unreadable { path: String, reason: String },
    #[error("--config={path}: {error}")]
    File { path: String, error: file::FileError },
    #[error("{0}")]
    Contradiction(String),
}

/// Everything that is wrong with the flags and the file, a line each.
#[derive(Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        ConfigErrors(vec![error])
    }
}

impl std::fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ConfigError::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// Go accepts one dash before a long name; clap wants two. What stands behind `--` is left alone.
pub fn normalise(args: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut literal = false;
    let fix = |arg: String| {
        literal |= arg == "--";
        let single = arg.starts_with('-') && !arg.starts_with("--") && arg.len() > 2;
        // A name, not a negative number.
        let named = arg.as_bytes().get(1).is_some_and(u8::is_ascii_alphabetic);
        if single && named && !literal { format!("-{arg}") } else { arg }
    };
    args.into_iter().map(fix).collect()
}

/// The settings that `-h` shows, which fits a screen; `--help` shows all.
const SHORT: &[&str] = &[
    "data-path",
    "tcp-address",
    "http-address",
    "native-address",
    "broadcast-address",
    "lookupd-tcp-address",
    "shards",
    "log-level",
    "max-msg-size",
    "msg-timeout",
    "tls-cert",
    "tls-key",
    "auth-http-address",
    "cluster-file",
];

fn first_sentence(about: &str) -> &str {
    let end = about.find(". ").or_else(|| about.find("; ")).unwrap_or(about.len());
    about[..end].trim_end_matches(" (docs/native.md)")
}

/// Adds every setting of the table, and `--config`, to a command.
pub fn add_flags(command: Command) -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("path")
        .help("TOML file with the settings below, `-` or `_` in their names; flags win over it")
        .help_heading("Node");
    let ignored = super::IGNORED.iter().map(|(name, _)| {
        let arg = Arg::new(*name).long(*name).hide(true);
        match *name {
            // A boolean as Go reads it: alone it is true, and a value stands behind `=`.
            "verbose" | "worker-id" => {
                let arg = arg.num_args(0..=1).require_equals(true).default_missing_value("true");
                arg.value_parser(go_bool).overrides_with(*name)
            }
            _ => arg.action(ArgAction::Append),
        }
    });
    let settings = TABLE.iter().map(|row| {
        let bounds = if row.is_number() { format!("; {}", row.bounds()) } else { String::new() };
        let arg = Arg::new(row.name)
            .long(row.name)
            .value_name(row.unit_name())
            .help(format!("{} [default: {}]", first_sentence(row.about), row.show_default()))
            .long_help(format!("{} [default: {}{bounds}]", row.about, row.show_default()))
            .hide_short_help(!SHORT.contains(&row.name))
            .help_heading(row.group)
            .action(if row.is_list() { ArgAction::Append } else { ArgAction::Set });
        match row.unit {
            // As in Go: alone it is true, and a value stands behind `=`.
            Unit::Switch(_) => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            _ => arg,
        }
    });
    // As in nsqd the last one counts.
    let settings = settings.zip(TABLE).map(|(arg, row)| if row.is_list() { arg } else { arg.overrides_with(row.name) });
    command.arg(config).args(settings).args(ignored)
}

fn go_bool(text: &str) -> Result<bool, String> {
    row::go_bool(text).ok_or_else(|| "must be true or false".into())
}

/// Reads the settings: a flag wins over the file, and the file over the default. `read_file` returns the text of the file at
/// a path, or the reason why it cannot be read. Every wrong flag and key is told at once.
pub fn load(
    matches: &ArgMatches,
    surroundings: &Surroundings,
    read_file: impl FnOnce(&str) -> Result<String, String>,
) -> Result<Asked, ConfigErrors> {
    let is_given = |name: &str| matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
    let mut errors = Vec::new();
    let mut settings = Settings::default();
    let mut without_effect = Vec::new();
    if let Some(path) = matches.get_one::<String>("config") {
        match read_file(path) {
            Err(reason) => errors.push(ConfigError::Unreadable { path: path.clone(), reason }),
            Ok(text) => match file::apply(&text, &mut settings) {
                Ok(notes) => without_effect = notes,
                Err(wrong) => {
                    errors.extend(wrong.into_iter().map(|error| ConfigError::File { path: path.clone(), error }));
                }
            },
        }
    }
    for row in TABLE {
        let Some(texts) = matches.get_many::<String>(row.name) else { continue };
        let (texts, mut list) = (texts.collect::<Vec<_>>(), vec![]);
        for text in texts {
            match row.parse(text) {
                Ok(value) => {
                    let value = match value {
                        super::Value::List(more) => {
                            list.extend(more);
                            super::Value::List(list.clone())
                        }
                        other => other,
                    };
                    (row.set)(&mut settings, value);
                    settings.given.insert(row.name);
                }
                Err(reason) => {
                    errors.push(ConfigError::Flag(BadValue { written: format!("--{}={text}", row.name), reason }));
                }
            }
        }
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors));
    }
    for (name, why) in super::IGNORED {
        let is_off = *name == "verbose" && matches.get_one::<bool>(name) == Some(&false);
        if is_given(name) && !is_off {
            without_effect.push(format!("--{name}: {why}"));
        }
    }
    if settings.max_bytes_per_file < super::SEGMENT_MIN {
        without_effect
            .push(format!("max-bytes-per-file={}: it is 1MiB, the least that a segment has", settings.max_bytes_per_file));
        settings.max_bytes_per_file = super::SEGMENT_MIN;
    }
    if settings.data_path.is_empty() {
        settings.data_path = surroundings.working_directory.clone();
    }
    if settings.broadcast_address.is_empty() {
        settings.broadcast_address = surroundings.hostname.clone();
    }
    if settings.node_name.is_empty() {
        settings.node_name = surroundings.hostname.clone();
    }
    if settings.shards == 0 {
        settings.shards = surroundings.cpus.clamp(1, find("shards").map_or(1, |row| row.max as u16));
    }
    settings.check()?;
    Ok(Asked { settings, without_effect })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(args: &[&str], file: Option<&str>) -> Result<Asked, String> {
        let args = normalise(std::iter::once("serve").chain(args.iter().copied()).map(String::from));
        let matches = add_flags(Command::new("serve")).try_get_matches_from(args).map_err(|e| e.to_string())?;
        let around = Surroundings { hostname: "host".into(), cpus: 3, working_directory: "/here".into() };
        load(&matches, &around, |_| file.map(String::from).ok_or("no such file".into())).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_are_written_as_for_nsqd() {
        for args in [
            &["-msg-timeout", "90s"][..],
            &["-msg-timeout=90s"],
            &["--msg-timeout=90s"],
            &["--msg-timeout", "90s"],
            &["--msg-timeout=1s", "--msg-timeout=1m30s"],
        ] {
            assert_eq!(asked(args, None).unwrap().settings.msg_timeout_ms, 90_000, "{args:?}");
        }
        assert_eq!(asked(&["--tcp-address=:5150"], None).unwrap().settings.tcp_address, "0.0.0.0:5150");
    }

    #[test]
    fn the_surroundings_fill_what_nobody_says() {
        let settings = asked(&[], None).unwrap().settings;
        assert_eq!((settings.data_path.as_str(), settings.broadcast_address.as_str(), settings.shards), ("/here", "host", 3));
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = Some("shards = 7\nmax_rdy_count = 9");
        let settings = asked(&["--config=x", "--shards=2"], file).unwrap().settings;
        assert_eq!((settings.shards, settings.max_rdy_count), (2, 9));
    }

    #[test]
    fn a_native_address_that_nobody_gave_may_be_done_without() {
        let is_optional = |args: &[&str], file| asked(args, file).unwrap().settings.is_native_optional();
        assert!(is_optional(&["--tcp-address=:5150"], None));
        assert!(is_optional(&["--config=x"], Some("tcp_address = \":5150\"")));
        assert!(!is_optional(&["--native-address=0.0.0.0:4153"], None), "the default, and yet it was asked for");
        assert!(!is_optional(&["--config=x"], Some("native_address = \"0.0.0.0:4153\"")));
        assert!(!is_optional(&["--native-tls-cert=c", "--native-tls-key=k"], None));
    }

    #[test]
    fn errors_name_what_was_written() {
        for (args, wanted) in [
            (&["--journal-bytes=12"][..], "--journal-bytes=12: must be between 1MiB and 64GiB"),
            (&["--msg-timeout=60"], "--msg-timeout=60: no unit"),
            (&["--config=x"], "--config=x: no such file"),
            (&["--msg-timeout=1h"], "msg-timeout (1h) must not be above max-msg-timeout (15m)"),
            (&["--shards=-1"], "--shards=-1: must be a whole number between 0 and 1024"),
            (&["--joournal-bytes=1"], "unexpected argument"),
        ] {
            let error = asked(args, None).expect_err("refused");
            assert!(error.contains(wanted), "{args:?}: {error}");
        }
        let error = asked(&["--config=x"], Some("tcp_address = 1")).unwrap_err();
        assert!(error.starts_with("--config=x: tcp_address = 1: "), "{error}");
    }

    #[test]
    fn a_flag_that_only_nsqd_needs_is_taken_and_named() {
        let asked = asked(&["-sync-every=5", "--verbose", "--max-rdy-count=5"], None).unwrap();
        assert_eq!(asked.without_effect.len(), 2, "{:?}", asked.without_effect);
        assert_eq!(asked.settings.max_rdy_count, 5);
    }

    #[test]
    fn a_list_is_given_by_several_flags_or_by_nsqds_key() {
        let lookupds = |args: &[&str], file: Option<&str>| asked(args, file).map(|asked| asked.settings.lookupd_tcp_addresses);
        let two = || vec!["h:4160".to_owned(), "0.0.0.0:1".to_owned()];
        assert_eq!(lookupds(&["-lookupd-tcp-address=h:4160", "--lookupd-tcp-address", ":1"], None), Ok(two()));
        for key in ["nsqlookupd_tcp_addresses", "lookupd-tcp-address"] {
            let file = format!("{key} = [\"h:4160\", \":1\"]");
            assert_eq!(lookupds(&["--config=x"], Some(&file)), Ok(two()));
            assert_eq!(lookupds(&["--config=x", "-lookupd-tcp-address=i:2"], Some(&file)), Ok(vec!["i:2".into()]), "a flag wins");
        }
        assert_eq!(lookupds(&["-lookupd-tcp-address="], None), Ok(vec![]), "an empty one asks for nothing");
        assert_eq!(lookupds(&["--config=x"], Some("nsqlookupd_tcp_addresses = []")), Ok(vec![]));
        for (args, file, wanted) in [
            (&["-lookupd-tcp-address=h"][..], None, "--lookupd-tcp-address=h: must be host:port"),
            (&["--config=x"], Some("nsqlookupd_tcp_addresses = [1]"), "must be a list of strings"),
            (&["--config=x"], Some("nsqlookupd_tcp_addresses = [\"h\"]"), "must be host:port"),
        ] {
            let error = lookupds(args, file).unwrap_err();
            assert!(error.contains(wanted), "{args:?}: {error}");
        }
    }

    #[test]
    fn percentiles_are_written_as_for_nsqd() {
        let of = |args: &[&str], file: Option<&str>| asked(args, file).map(|asked| asked.settings.end_to_end_quantiles());
        let flag = "-e2e-processing-latency-percentile";
        for args in [&[flag, "0.5,1.0, 0.99"][..], &[&*format!("{flag}=0.5,1"), flag, "0.99"]] {
            assert_eq!(of(args, None), Ok(vec![1.0, 0.99, 0.5]), "{args:?}");
        }
        for file in ["[\"0.99\", \"1.0,0.5\"]", "[0.99, 0.5, 1]"] {
            let file = format!("e2e_processing_latency_percentiles = {file}");
            assert_eq!(of(&["--config=x"], Some(&file)), Ok(vec![1.0, 0.99, 0.5]), "{file}");
        }
        let none = asked(&[], None).unwrap().settings;
        assert_eq!((none.end_to_end_quantiles(), none.end_to_end_window()), (vec![], None));
        for wrong in ["0", "1.1", "-1", "x", "0.9,", "NaN"] {
            let error = of(&[&format!("{flag}={wrong}")], None).unwrap_err();
            assert!(error.contains("must be numbers above 0"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_small_file_of_nsqds_is_the_smallest_segment_and_named() {
        let asked = asked(&["-max-bytes-per-file=1024"], None).unwrap();
        assert_eq!((asked.settings.max_bytes_per_file, asked.without_effect.len()), (1 << 20, 1), "{:?}", asked.without_effect);
    }

    #[test]
    fn every_wrong_flag_and_key_is_told_at_once() {
        let file = Some("shards = 3000\nnope = 1\nlog_level = \"loud\"");
        let error = asked(&["--config=x", "--journal-bytes=12"], file).expect_err("refused");
        assert_eq!(error.lines().count(), 4, "{error}");
    }

    #[test]
    fn a_switch_is_written_as_in_go() {
        let of = |args: &[&str], file| asked(args, file).map(|asked| asked.settings);
        let tls = ["-tls-cert=c", "-tls-key=k"];
        for (flag, required) in [
            ("-tls-required", "true"),
            ("--tls-required=T", "true"),
            ("-tls-required=0", "false"),
            ("-tls-required=TCP-HTTPS", "tcp-https"),
        ] {
            assert_eq!(of(&[&tls[..], &[flag]].concat(), None).unwrap().tls_required, required);
        }
        let settings = of(&["-snappy=false", "-deflate=1", "-deflate"], None).unwrap();
        assert_eq!((settings.snappy, settings.deflate), (false, true));
        let settings = of(&["--config=x", "-deflate"], Some("snappy = false\ndeflate = false\ntls_required = false")).unwrap();
        assert_eq!((settings.snappy, settings.deflate), (false, true), "flags win");
        let servers = of(&["--auth-http-address=a:1", "-auth-http-address", "b:2"], None).unwrap().auth_http_address;
        assert_eq!(servers, ["a:1", "b:2"]);
        let file = Some("auth_http_addresses = [\"c:3\"]\noutput_buffer_timeout = \"1s\"");
        let settings = of(&["--config=x"], file).unwrap();
        assert_eq!((settings.auth_http_address, settings.output_buffer_timeout_ms), (vec!["c:3".to_owned()], 1000));
        assert!(of(&["-snappy=maybe"], None).unwrap_err().contains("--snappy=maybe: must be true, false"));
        let error = of(&["-tls-required=maybe"], None).unwrap_err();
        assert!(error.contains("must be true, false, tcp-https"), "{error}");
    }

    #[test]
    fn a_boolean_flag_may_carry_its_value() {
        for (args, notes) in [
            (&["-verbose"][..], 1),
            (&["-verbose=true"], 1),
            (&["--verbose=false"], 0),
            (&["-verbose=0"], 0),
            (&["--verbose", "--verbose=F"], 0),
        ] {
            assert_eq!(asked(args, None).unwrap().without_effect.len(), notes, "{args:?}");
        }
        let error = asked(&["--verbose=maybe"], None).unwrap_err();
        assert!(error.contains("must be true or false"), "{error}");
        assert!(asked(&["--verbose", "false"], None).is_err(), "as in Go the value stands behind `=`");
    }

    #[test]
    fn one_dash_is_two_for_names_alone() {
        let given = ["-x-y", "-h", "-1", "--z", "v", "--", "-after"].map(String::from);
        assert_eq!(normalise(given), ["--x-y", "-h", "-1", "--z", "v", "--", "-after"]);
    }
}
