//! `ringmq check-flags`: the effect of an nsqd's flags and file here.

use crate::text::Table;
use crate::tips::without_far_tips;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use ringmq_core::config::file::FileError;
use ringmq_core::config::{self, ConfigError, LoadedSettings, Surroundings, flags};
use serde::Serialize;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Settings that nsqd has too, and that mean something else here.
const OTHERWISE: &[(&str, &str)] = &[
    ("data-path", "a folder in RingMQ's own formats; the backlog that an nsqd left there is imported at startup"),
    ("mem-queue-size", "bounds ephemeral channels, in each partition; every other message is in the log"),
    ("max-bytes-per-file", "size of a segment of a partition's log, not of a queue's file; the default is 128 MiB"),
    ("max-req-timeout", "delays are durable here, so the default is 30 days instead of an hour"),
    ("max-msg-size", "at most 63 MiB are taken here"),
    ("max-body-size", "at most 64 MiB are taken here"),
    ("tls-min-version", "TLS 1.2 and 1.3 alone are spoken; older versions mean tls1.2"),
    ("output-buffer-timeout", "the value is told to clients; output is sent at the end of each turn, whatever the value is"),
    ("max-output-buffer-size", "the value is told to clients; output is not held back until a buffer is full"),
    ("log-level", "fatal means error"),
    ("broadcast-address", "also the node's name in statsd"),
];

pub fn command() -> Command {
    Command::new("check-flags")
        .about("Explain an nsqd's flags and config file")
        .long_about(
            "Explain an nsqd's flags and config file: same here, different, or without effect, and why. Give the flags of \
             nsqd's command line, including --config=FILE; the word `nsqd` may stand in front, and the whole line may be one \
             quoted argument.",
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print a list of JSON"))
        .arg(
            Arg::new("flags")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_name("nsqd flags")
                .help("The line of flags: ringmq check-flags nsqd --mem-queue-size=0 --config=/etc/nsqd.cfg"),
        )
        .after_help("Exit codes: 0 `ringmq serve` takes all of it, 1 it refuses something, 2 a wrong call.")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Becomes {
    Same,
    Otherwise,
    Ignored,
    Refused,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The flag, or the key of the file, as written.
    pub written: String,
    pub becomes: Becomes,
    pub why: String,
}

pub fn execute(matches: &ArgMatches) -> ExitCode {
    let args = match words(matches.get_many::<String>("flags").into_iter().flatten().cloned().collect()) {
        Ok(args) => args,
        Err(error) => return crate::misused(&error),
    };
    let read = |path: &str| std::fs::read_to_string(path).map_err(|e| e.to_string());
    let findings = match judge(&args, read) {
        Ok(findings) => findings,
        Err(error) => return crate::misused(&error),
    };
    show(&findings, matches.get_flag("json"));
    let is_refused = findings.iter().any(|finding| finding.becomes == Becomes::Refused);
    if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The words of nsqd's line, without its own name. A line that was quoted as a whole is split as a shell does.
fn words(mut args: Vec<String>) -> Result<Vec<String>, &'static str> {
    if let [line] = &args[..]
        && line.contains(char::is_whitespace)
    {
        args = shlex::split(line).ok_or("the line has an unclosed quote")?;
    }
    if args.first().is_some_and(|first| !first.starts_with('-')) {
        args.remove(0);
    }
    Ok(args)
}

/// Judges each flag, and each key of the file that `--config` names.
pub fn judge(args: &[String], read: impl Fn(&str) -> Result<String, String>) -> Result<Vec<Finding>, String> {
    let (matches, mut findings) = parse(args)?;
    for id in matches.ids().map(|id| id.as_str()).filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine)) {
        match id {
            "config" | "words" => {}
            "version" => findings.push(Finding { written: "--version".into(), becomes: Becomes::Same, why: String::new() }),
            _ => findings.push(of_name(id, format!("--{id}"))),
        }
    }
    if let Some(words) = matches.get_many::<String>("words") {
        let why = "the first word that is no flag ends the flags, as in nsqd".into();
        findings.push(Finding { written: words.cloned().collect::<Vec<_>>().join(" "), becomes: Becomes::Ignored, why });
    }
    if let Some(path) = matches.get_one::<String>("config").filter(|path| !path.is_empty()) {
        let text = read(path).map_err(|why| format!("--config={path}: {why}"))?;
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| format!("--config={path}: {e}"))?;
        findings.extend(table.keys().filter(|key| *key != "topics").map(|key| of_name(key, key.clone())));
    }
    // Values, and rules between settings.
    let around = Surroundings { hostname: "localhost".into(), cpus: 1, working_directory: "/".into(), is_nsqd: true };
    match config::load(&matches, &around, |path| read(path)) {
        Ok(LoadedSettings { notes, .. }) => notes.warnings.into_iter().for_each(|note| {
            let name = name_of(&note).to_owned();
            tell(&mut findings, &name, Becomes::Otherwise, note);
        }),
        Err(errors) => errors.0.into_iter().for_each(|error| match error {
            ConfigError::Flag(bad) | ConfigError::File { error: FileError::BadValue(bad), .. } => {
                tell(&mut findings, name_of(&bad.written), Becomes::Refused, bad.to_string());
            }
            error => tell(&mut findings, "all together", Becomes::Refused, error.to_string()),
        }),
    }
    Ok(findings)
}

/// The name in `--name=value: why` or `name = value: why`.
fn name_of(written: &str) -> &str {
    written.split(['=', ' ']).next().unwrap_or_default()
}

/// Gives the flag or key of this name another verdict, or adds it.
fn tell(findings: &mut Vec<Finding>, name: &str, becomes: Becomes, why: String) {
    match findings.iter_mut().find(|finding| finding.written == name) {
        Some(finding) => (finding.becomes, finding.why) = (becomes, why),
        None => findings.push(Finding { written: name.into(), becomes, why }),
    }
}

/// Parses flags as nsqd does. Flags that nsqd does not know are left out, and each of them is a finding.
fn parse(args: &[String]) -> Result<(ArgMatches, Vec<Finding>), String> {
    let command = flags::add_flags(Command::new("nsqd").disable_version_flag(true))
        .arg(Arg::new("version").long("version").action(ArgAction::SetTrue))
        .arg(flags::words());
    let mut line = flags::normalise(std::iter::once("nsqd".to_owned()).chain(args.iter().cloned()));
    let mut findings = vec![];
    loop {
        let error = match command.clone().try_get_matches_from(&line) {
            Ok(matches) => return Ok((matches, findings)),
            Err(error) => without_far_tips(error),
        };
        let unknown = match (error.kind(), error.get(ContextKind::InvalidArg)) {
            (ErrorKind::UnknownArgument, Some(ContextValue::String(name))) => name_of(name).to_owned(),
            _ => return Err(error.to_string().trim().trim_start_matches("error: ").to_owned()),
        };
        let is_it = |word: &String| name_of(word) == unknown;
        let Some(at) = line.iter().position(is_it) else { return Err(error.to_string()) };
        let has_value = !line[at].contains('=') && line.get(at + 1).is_some_and(|next| !next.starts_with('-'));
        line.drain(at..=at + usize::from(has_value));
        let tip = match error.get(ContextKind::SuggestedArg) {
            Some(ContextValue::String(tip)) => format!("; did you mean {tip}?"),
            _ => String::new(),
        };
        findings.push(Finding { written: unknown, becomes: Becomes::Refused, why: format!("there is no such flag{tip}") });
    }
}

fn of_name(name: &str, written: String) -> Finding {
    let finding = |becomes, why: &str| Finding { written: written.clone(), becomes, why: why.into() };
    if let Some(row) = config::find(name) {
        return match OTHERWISE.iter().find(|(known, _)| *known == row.name) {
            Some((_, why)) => finding(Becomes::Otherwise, why),
            None => finding(Becomes::Same, ""),
        };
    }
    if let Some((_, why)) = config::ignored(name) {
        return finding(Becomes::Ignored, why);
    }
    finding(Becomes::Ignored, "there is no such setting, and nsqd ignores it, too")
}

fn show(findings: &[Finding], json: bool) {
    if json {
        crate::print(&(serde_json::to_string_pretty(findings).unwrap_or_default() + "\n"));
        return;
    }
    let colour = |becomes| match becomes {
        Becomes::Same => ("same", "\x1b[32m"),
        Becomes::Otherwise => ("other meaning", "\x1b[36m"),
        Becomes::Ignored => ("ignored", "\x1b[33m"),
        Becomes::Refused => ("refused", "\x1b[31m"),
    };
    let mut table = Table::new(&["flag or key", "here", "why"]);
    for Finding { written, becomes, why } in findings {
        table.row(&[written, colour(*becomes).0, why]);
    }
    let mut text = table.text(&[]);
    if std::io::stdout().is_terminal() {
        for (word, code) in [Becomes::Same, Becomes::Otherwise, Becomes::Ignored, Becomes::Refused].map(colour) {
            text = text.replace(&format!("  {word} "), &format!("  {code}{word}\x1b[0m "));
        }
    }
    crate::print(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(args: &[&str], file: &str) -> Vec<(String, Becomes)> {
        let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
        let findings = judge(&args, |_| Ok(file.to_owned())).expect("it can be judged");
        findings.into_iter().map(|finding| (finding.written, finding.becomes)).collect()
    }

    #[test]
    fn every_flag_that_nsqd_does_not_have_is_named_without_a_far_tip() {
        let args = ["-nope", "5", "--tcp-adress=:1", "-max-rdy-count=5"].map(String::from);
        let findings = judge(&args, |_| Ok(String::new())).expect("it can be judged");
        let told: Vec<_> = findings.iter().map(|f| (f.written.as_str(), f.becomes, f.why.as_str())).collect();
        assert_eq!(
            told,
            [
                ("--nope", Becomes::Refused, "there is no such flag"),
                ("--tcp-adress", Becomes::Refused, "there is no such flag; did you mean --tcp-address?"),
                ("--max-rdy-count", Becomes::Same, ""),
            ]
        );
    }

    #[test]
    fn a_line_may_be_one_quoted_argument() {
        let of = |args: &[&str]| words(args.iter().map(|arg| arg.to_string()).collect());
        let line = "/usr/bin/nsqd -msg-timeout 5s  --log-prefix='[x] '";
        assert_eq!(of(&[line]), Ok(["-msg-timeout", "5s", "--log-prefix=[x] "].map(String::from).to_vec()));
        assert_eq!(of(&["nsqd", "--log-prefix=[x] "]), Ok(vec!["--log-prefix=[x] ".into()]));
        assert!(of(&["nsqd --log-prefix='x"]).is_err());
    }

    #[test]
    fn a_value_that_is_not_in_force_as_written_is_otherwise() {
        let judged = judged(&["--max-msg-timeout=1000h", "--config=f"], "max_rdy_count = -1\nsnappi = true");
        let wanted =
            [("--max-msg-timeout", Becomes::Otherwise), ("max_rdy_count", Becomes::Otherwise), ("snappi", Becomes::Ignored)];
        assert_eq!(judged, wanted.map(|(name, becomes)| (name.to_owned(), becomes)));
    }

    #[test]
    fn each_flag_and_key_has_its_verdict() {
        let file = "sync_every = 5\nmax_rdy_count = 3\nnsqlookupd_tcp_addresses = [\"a:1\"]";
        let judged = judged(&["-mem-queue-size", "0", "--data-path=/x", "-msg-timeout=5s", "--config=f"], file);
        let becomes = |name: &str| judged.iter().find(|(written, _)| written == name).map(|(_, becomes)| *becomes);
        for (name, wanted) in [
            ("--mem-queue-size", Becomes::Otherwise),
            ("--data-path", Becomes::Otherwise),
            ("--msg-timeout", Becomes::Same),
            ("sync_every", Becomes::Ignored),
            ("max_rdy_count", Becomes::Same),
            ("nsqlookupd_tcp_addresses", Becomes::Same),
        ] {
            assert_eq!(becomes(name), Some(wanted), "{name}: {judged:?}");
        }
    }

    #[test]
    fn a_wrong_value_is_refused() {
        assert_eq!(judged(&["--msg-timeout=5"], ""), [("--msg-timeout".into(), Becomes::Refused)]);
        assert_eq!(judged(&["--config=f"], "tcp_address = 1"), [("tcp_address".into(), Becomes::Refused)]);
        let together = judged(&["--tls-cert=c"], "");
        assert_eq!(together, [("--tls-cert".into(), Becomes::Same), ("all together".into(), Becomes::Refused)]);
    }

    #[test]
    fn what_is_otherwise_is_a_setting() {
        for (name, why) in OTHERWISE {
            assert!(config::find(name).is_some() && why.len() > 15, "{name}");
        }
    }
}
