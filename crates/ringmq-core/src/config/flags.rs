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
    /// Whether the program was called by nsqd's name.
    pub is_nsqd: bool,
}

/// Settings in force, with the lines that the log should have of them.
#[derive(Debug)]
pub struct LoadedSettings {
    pub settings: Settings,
    pub notes: Notes,
}

/// Lines for the log.
#[derive(Debug, Default)]
pub struct Notes {
    /// Settings without effect here.
    pub without_effect: Vec<String>,
    /// Settings of which another value is in force.
    pub warnings: Vec<String>,
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

/// Every fault of the flags and the file, a line each.
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

/// Go accepts one dash before a long name; clap wants two. Arguments behind `--` are left alone.
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

/// Flags of an operator's first day, which `-h` shows on one screen: name, sample value (empty: the default), and description.
pub const FIRST_DAY: &[(&str, &str, &str)] = &[
    ("data-path", "FOLDER", "Journal and topics [the working directory]"),
    ("tcp-address", "", "NSQ clients"),
    ("http-address", "", "HTTP clients"),
    ("native-address", "", "Clients of the native protocol; empty: none"),
    ("broadcast-address", "HOST", "This node, for its clients [the host's name]"),
    ("lookupd-tcp-address", "HOST:PORT", "An nsqlookupd; may be repeated"),
    ("shards", "N", "Cores [as many as there are CPUs]"),
    ("log-level", "", "debug, info, warn, error or fatal"),
    ("max-msg-size", "", "Largest message"),
    ("msg-timeout", "", "Time from a delivery to its FIN"),
    ("max-req-timeout", "", "Longest delay of a message"),
    ("tls-cert", "FILE", "Certificate for NSQ clients and HTTPS"),
    ("tls-key", "FILE", "Private key of --tls-cert"),
    ("auth-http-address", "HOST:PORT", "Server that knows the clients' permissions"),
    ("statsd-address", "HOST:PORT", "statsd daemon that gets statistics"),
    ("cluster-file", "FILE", "A cluster of fixed nodes and leaders"),
    ("etcd-endpoints", "URL", "A cluster with failover; may be repeated"),
];

/// The flags of [`FIRST_DAY`] with their values and descriptions.
pub fn first_day() -> impl Iterator<Item = (String, &'static str)> {
    FIRST_DAY.iter().map(|(name, sample, about)| {
        let default = find(name).map(row::Setting::show_default).unwrap_or_default();
        let value = if sample.is_empty() { default.split(';').next().unwrap_or_default() } else { sample };
        (format!("--{name}={value}"), *about)
    })
}

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
            .hide_short_help(!FIRST_DAY.iter().any(|(name, ..)| *name == row.name))
            .help_heading(row.group)
            .action(if row.is_list() { ArgAction::Append } else { ArgAction::Set });
        match row.unit {
            // As in Go: alone it is true, and a value stands behind `=`.
            Unit::Switch(_) => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            // As in Go: the next word is the value, whatever it begins with.
            _ => arg.allow_hyphen_values(true),
        }
    });
    // As in nsqd the last one counts.
    let settings = settings.zip(TABLE).map(|(arg, row)| if row.is_list() { arg } else { arg.overrides_with(row.name) });
    command.arg(config).args(settings).args(ignored)
}

/// The words behind the flags. As in Go the first word that is no flag ends the flags.
pub fn words() -> Arg {
    Arg::new("words").num_args(0..).trailing_var_arg(true).hide(true)
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
) -> Result<LoadedSettings, ConfigErrors> {
    let is_given = |name: &str| matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
    let mut errors = Vec::new();
    let mut settings = Settings::default();
    let mut notes = Notes::default();
    if let Some(path) = matches.get_one::<String>("config").filter(|path| !path.is_empty()) {
        match read_file(path) {
            Err(reason) => errors.push(ConfigError::Unreadable { path: path.clone(), reason }),
            Ok(text) => match file::apply(&text, &mut settings) {
                Ok(of_file) => notes = of_file,
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
                Ok(taken) => {
                    notes.warnings.extend(taken.note.map(|note| format!("--{}={text}: {note}", row.name)));
                    let value = match taken.value {
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
            notes.without_effect.push(format!("--{name}: {why}"));
        }
    }
    if let Ok(Some(words)) = matches.try_get_many::<String>("words") {
        let words = words.map(String::as_str).collect::<Vec<_>>().join(" ");
        notes.without_effect.push(format!("`{words}`: the first word that is no flag ends the flags, as in nsqd"));
    }
    if settings.max_bytes_per_file < super::table::SEGMENT_MIN {
        notes.without_effect.push(format!(
            "max-bytes-per-file={}: 1MiB is in force, the smallest size of a segment",
            settings.max_bytes_per_file
        ));
        settings.max_bytes_per_file = super::table::SEGMENT_MIN;
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
    settings.follow(&mut notes);
    settings.guard_native(surroundings.is_nsqd, &mut notes);
    settings.check()?;
    Ok(LoadedSettings { settings, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(args: &[&str], file: Option<&str>) -> Result<LoadedSettings, String> {
        asked_as(false, args, file)
    }

    /// Settings of a program that was called by nsqd's name, or not.
    fn asked_as(is_nsqd: bool, args: &[&str], file: Option<&str>) -> Result<LoadedSettings, String> {
        let args = normalise(std::iter::once("serve").chain(args.iter().copied()).map(String::from));
        let matches = add_flags(Command::new("serve")).arg(words()).try_get_matches_from(args).map_err(|e| e.to_string())?;
        let around = Surroundings { hostname: "host".into(), cpus: 3, working_directory: "/here".into(), is_nsqd };
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
    fn the_first_days_flags_are_settings_with_values() {
        for ((name, ..), (flag, _)) in FIRST_DAY.iter().zip(first_day()) {
            assert!(find(name).is_some() && !flag.ends_with('='), "{name}: {flag}");
        }
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
    fn the_native_port_bypasses_no_tls_and_no_auth_that_nsq_clients_need() {
        let tls = ["--tls-cert=c", "--tls-key=k"];
        let of = |is_nsqd, args: &[&str]| {
            let asked = asked_as(is_nsqd, args, None).unwrap();
            (asked.settings.native_address, asked.notes.warnings)
        };
        let demands = [
            ("--tls-required", "--tls-required"),
            ("--tls-client-auth-policy=require", "--tls-client-auth-policy"),
            ("--auth-http-address=a:1", "--auth-http-address"),
        ];
        for (flag, named) in demands {
            let (address, warnings) = of(false, &[&tls[..], &[flag]].concat());
            assert!(address.is_empty() && warnings.len() == 1 && warnings[0].contains(named), "{flag}: {address} {warnings:?}");
            assert!(warnings[0].contains("--native-address"), "the remedy: {warnings:?}");
            let (address, warnings) = of(true, &[&tls[..], &[flag, "--native-address=:5"]].concat());
            assert_eq!(address, ":5", "{flag}: it was asked for");
            assert!(warnings.len() == 1 && warnings[0].contains(named), "{flag}: {warnings:?}");
            let native = ["--native-tls-cert=c", "--native-tls-key=k", "--native-tls-client-ca=a"];
            let (address, warnings) = of(false, &[&tls[..], &native, &[flag]].concat());
            assert_eq!((address.as_str(), warnings), ("0.0.0.0:4153", vec![]), "{flag}");
        }
        let native = ["--tls-required", "--native-tls-cert=c", "--native-tls-key=k"];
        assert_eq!(of(false, &[&tls[..], &native].concat()), ("0.0.0.0:4153".into(), vec![]));
        assert_eq!(of(false, &tls).0, "0.0.0.0:4153", "TLS is offered, not demanded");
        assert_eq!(of(true, &[]), (String::new(), vec![]), "nsqd has no such port");
        assert_eq!(of(true, &["--native-address=0.0.0.0:4153"]), ("0.0.0.0:4153".into(), vec![]));
    }

    #[test]
    fn a_word_that_is_no_flag_ends_the_flags_as_in_nsqd() {
        let asked = asked(&["-max-rdy-count=5", "-snappy", "false", "-max-rdy-count=6"], None).unwrap();
        assert_eq!((asked.settings.max_rdy_count, asked.settings.snappy), (5, true));
        let told = &asked.notes.without_effect;
        assert!(told.len() == 1 && told[0].starts_with("`false --max-rdy-count=6`: "), "{told:?}");
    }

    #[test]
    fn errors_name_what_was_written() {
        for (args, wanted) in [
            (&["--journal-bytes=12"][..], "--journal-bytes=12: must be between 1MiB and 64GiB"),
            (&["--msg-timeout=60"], "--msg-timeout=60: the unit is missing"),
            (&["--config=x"], "--config=x: no such file"),
            (
                &["--max-msg-size=2MiB", "--max-pub-waiting-size=1MiB"],
                "max-msg-size (2MiB) must not be above max-pub-waiting-size",
            ),
            (&["--max-deflate-level=10"], "--max-deflate-level=10: must be a whole number between 1 and 9"),
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
        assert_eq!(asked.notes.without_effect.len(), 2, "{:?}", asked.notes.without_effect);
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
            (&["-lookupd-tcp-address=h:x"][..], None, "--lookupd-tcp-address=h:x: must be host:port"),
            (&["--config=x"], Some("nsqlookupd_tcp_addresses = [1]"), "must be a list of strings"),
            (&["--config=x"], Some("nsqlookupd_tcp_addresses = [\"h:\"]"), "must be host:port"),
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
        assert_eq!(
            (asked.settings.max_bytes_per_file, asked.notes.without_effect.len()),
            (1 << 20, 1),
            "{:?}",
            asked.notes.without_effect
        );
    }

    #[test]
    fn every_wrong_flag_and_key_is_told_at_once() {
        let file = Some("shards = 3000\nmax_deflate_level = 0\nlog_level = \"loud\"");
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
            assert_eq!(asked(args, None).unwrap().notes.without_effect.len(), notes, "{args:?}");
        }
        let error = asked(&["--verbose=maybe"], None).unwrap_err();
        assert!(error.contains("must be true or false"), "{error}");
        assert_eq!(asked(&["--verbose", "false"], None).unwrap().notes.without_effect.len(), 2, "the value stands behind `=`");
    }

    #[test]
    fn a_value_that_nsqd_takes_ends_no_start() {
        let taken = |flag: &str| asked(&[flag], None).unwrap_or_else(|error| panic!("{flag}: {error}"));
        // (flag, name of a row, its value in force, whether the log tells it)
        for (flag, name, wanted, is_told) in [
            ("--max-msg-size=10485760", "max-msg-size", "10MiB", false),
            ("--max-msg-size=0x100000", "max-msg-size", "1MiB", false),
            ("--max-msg-size=50000000", "max-pub-waiting-size", "50000000", false),
            ("--max-msg-size=200000000", "max-msg-size", "63MiB", true),
            ("--max-body-size=200000000", "max-body-size", "64MiB", true),
            ("--msg-timeout=20m", "max-msg-timeout", "20m", false),
            ("--max-msg-timeout=72h", "max-msg-timeout", "3d", false),
            ("--max-heartbeat-interval=2h", "max-heartbeat-interval", "2h", false),
            ("--max-req-timeout=1000h", "max-req-timeout", "30d", true),
            ("--max-rdy-count=10000000", "max-rdy-count", "10000000", false),
            ("--max-rdy-count=99999999999", "max-rdy-count", "2147483647", true),
            ("--max-rdy-count=0", "max-rdy-count", "0", false),
            ("--max-rdy-count=-1", "max-rdy-count", "0", true),
            ("--output-buffer-timeout=0", "output-buffer-timeout", "0", false),
            ("--output-buffer-timeout=1500us", "output-buffer-timeout", "2ms", true),
            ("--min-output-buffer-timeout=0", "min-output-buffer-timeout", "0", false),
            ("--min-output-buffer-timeout=-1s", "min-output-buffer-timeout", "0", true),
            ("--max-channel-consumers=-1", "max-channel-consumers", "0", true),
            ("--http-client-request-timeout=0", "http-client-request-timeout", "1h", true),
            ("--broadcast-tcp-port=70000", "broadcast-tcp-port", "0", true),
            ("--lookupd-tcp-address=a:1,host", "lookupd-tcp-address", "a:1", true),
            ("--config=", "shards", "3", false),
            ("--http-address=", "http-address", "", false),
            ("--tcp-address=", "tcp-address", "127.0.0.1:0", true),
        ] {
            let LoadedSettings { settings, notes } = taken(flag);
            let row = find(name).expect("a row");
            assert_eq!(row.show(&row.value(&settings)), wanted, "{flag}");
            assert_eq!(notes.warnings.len(), usize::from(is_told), "{flag}: {notes:?}");
            assert!(notes.warnings.iter().all(|note| note.starts_with(&format!("{flag}: "))), "{notes:?}");
        }
        let apart = asked(&["-max-channel-consumers", "-1", "-max-rdy-count", "7"], None).unwrap().settings;
        assert_eq!((apart.max_channel_consumers, apart.max_rdy_count), (0, 7), "the next word is the value");
        let both = asked(&["--msg-timeout=20m", "--max-msg-timeout=10m"], None).unwrap();
        assert_eq!((both.settings.max_msg_timeout_ms, both.notes.warnings.len()), (20 * 60_000, 1), "{:?}", both.notes);
    }

    #[test]
    fn one_dash_is_two_for_names_alone() {
        let given = ["-x-y", "-h", "-1", "--z", "v", "--", "-after"].map(String::from);
        assert_eq!(normalise(given), ["--x-y", "-h", "-1", "--z", "v", "--", "-after"]);
    }
}
