//! The binary: picks the subcommand, reads the settings, starts the log, and hands over.
//!
//! Exit codes: 0 done (also after SIGTERM and SIGINT), 1 it failed, 2 a wrong call; `inspect` has
//! one more.

mod brief;
mod parts;
mod reread;

use clap::{Arg, ArgMatches, Command};
use reread::LogLevel;
use ringmq::config::{self, LoadedSettings, Surroundings};
use ringmq::inspect::{Format, InspectOptions};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const FAILED: u8 = 1;
const MISUSED: u8 = 2;
const HELP_COLUMNS_MAX: usize = 140;

fn main() -> ExitCode {
    let args = config::flags::normalise(as_named(std::env::args().collect()));
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => {
            end_quietly_when_the_pipe_closes();
            ringmq_tools::tips::without_far_tips(error).exit()
        }
    };
    // A node must not end because the pipe of its log was closed; `load` goes on measuring.
    if !matches!(matches.subcommand_name(), Some("serve" | "load" | "lookupd")) {
        end_quietly_when_the_pipe_closes();
    }
    match matches.subcommand() {
        Some((name @ ("serve" | "lookupd"), matches)) if brief::is_asked_for(matches) => {
            print!("{}", short_help(name));
            ExitCode::SUCCESS
        }
        Some(("serve", matches)) if matches.get_one::<bool>("version") == Some(&true) => {
            println!("{}", version(if is_named_nsqd() { "nsqd" } else { "ringmq" }));
            ExitCode::SUCCESS
        }
        Some(("serve", matches)) if !is_named_nsqd() && matches.contains_id("words") => {
            misused("`serve` takes only flags: give the value behind `=`, as in --snappy=false")
        }
        Some(("serve", matches)) => with_settings(matches, |settings, level| serve(matches, settings, level)),
        Some(("doctor", matches)) => with_settings(matches, |settings, _| parts::doctor(&settings, measuring(matches))),
        Some(("inspect", matches)) => inspect(matches),
        Some(("cluster", matches)) => with_settings(matches, |settings, _| cluster(matches, &settings)),
        Some(("node-id", matches)) => parts::node_id(matches.get_one::<String>("data-path").expect("clap asks for it")),
        Some(("load", matches)) => load(matches),
        Some(("lookupd", matches)) => lookupd(matches),
        Some(("version", _)) => {
            println!("{}", version("ringmq"));
            ExitCode::SUCCESS
        }
        Some(("completions", matches)) => ringmq_tools::shell::completions(matches, command()),
        Some(("man", matches)) => ringmq_tools::shell::man(matches, command()),
        Some((name, matches)) => ringmq_tools::run(name, matches).expect("a subcommand that is not above is a tool"),
        None => unreachable!("clap asks for one of the subcommands"),
    }
}

/// Gives SIGPIPE its default action, which Rust's runtime takes away: a command whose output goes to a closed pipe
/// (`ringmq inspect ... | head`) ends without a word, as other Unix tools do.
fn end_quietly_when_the_pipe_closes() {
    // SAFETY: no other thread runs yet, and SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Version text that scripts parse. A binary that is called by nsqd's name gives the release of nsqd that it stands in for.
fn version(name: &str) -> String {
    let own = concat!("ringmq", env!("CARGO_PKG_VERSION"));
    match name {
        // The form of `nsqd v1.3.0 (built w/go1.21.1)`.
        "nsqd" => format!("nsqd v{} (built w/{own})", ringmq_lookupd::NSQ_VERSION),
        _ => format!("ringmq v{} (stands in for nsqd v{})", env!("CARGO_PKG_VERSION"), ringmq_lookupd::NSQ_VERSION),
    }
}

/// Name that the program was called by, where it is one that stands for a daemon of NSQ.
fn program() -> &'static str {
    let path = std::env::args().next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    ["nsqd", "nsqlookupd"].into_iter().find(|known| *known == name).unwrap_or("ringmq")
}

fn is_named_nsqd() -> bool {
    program() == "nsqd"
}

/// The call of a daemon, without its flags.
fn call_of(daemon: &str) -> String {
    match program() {
        "ringmq" => format!("ringmq {daemon}"),
        name => name.into(),
    }
}

/// The short help of a daemon, by the name that it was called.
fn short_help(daemon: &str) -> String {
    let call = call_of(daemon);
    match daemon {
        "serve" => brief::text(&call, "Run the node", config::flags::first_day()),
        _ => brief::text(&call, "Run nsqlookupd", ringmq_lookupd::options::brief()),
    }
}

/// A link of the name `nsqd` or `nsqlookupd` makes the binary a stand-in for it: its flags come right behind the name.
fn as_named(mut args: Vec<String>) -> Vec<String> {
    let name = args.first().and_then(|path| path.rsplit('/').next());
    let subcommand = match name {
        Some("nsqd") => "serve",
        Some("nsqlookupd") => "lookupd",
        _ => return args,
    };
    args.insert(1, subcommand.into());
    args
}

fn command() -> Command {
    let serve = Command::new("serve")
        .about("Run the node")
        .disable_version_flag(true)
        .arg(
            Arg::new("version")
                .long("version")
                .num_args(0..=1)
                .require_equals(true)
                .default_value("false")
                .default_missing_value("true")
                .hide_default_value(true)
                .hide_possible_values(true)
                .value_parser(clap::builder::BoolishValueParser::new())
                .help("Print the version")
                .help_heading("Node"),
        )
        .long_about(
            "Run the node: NSQ clients on --tcp-address, HTTP on --http-address, data below --data-path.\n\n\
             Sizes are bytes, or carry KiB, MiB, GiB or TiB. Durations carry a unit, as in 250ms, 60s, 1m30s.\n\
             Called by the name `nsqd` the binary does this, with the flags right behind the name.",
        )
        .after_long_help(
            "SIGTERM and SIGINT stop the node within seconds; every acknowledged message is durable at any time.\n\
             A second signal changes nothing, a third ends the process at once.\n\
             SIGHUP reloads the log-level of the --config file, the TLS files and the cluster file.\n\
             Exit codes: 0 stopped, 1 failed (the last log line says why), 2 a wrong flag or file.",
        );
    let doctor = Command::new("doctor")
        .about("Check whether this machine can run the node")
        .long_about(
            "Check whether this machine can run the node with these settings, a line for each check. With --measure also \
             how fast a durable write is on the data path: the node's way of writing beside plain pwrite and fdatasync, \
             for 4 KiB to 1 MiB and 1 to 64 writes at a time, pinned to the CPU of the node's first core.",
        )
        .arg(
            Arg::new("measure")
                .long("measure")
                .action(clap::ArgAction::SetTrue)
                .help("Measure the data path, in a new folder that is removed at the end; a node may run meanwhile")
                .help_heading("Measure"),
        )
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("number")
                .requires("measure")
                .value_parser(seconds)
                .help("Approximate time of the measurement in seconds, 0.1 to 600 [default: 30]")
                .help_heading("Measure"),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .value_name("path")
                .requires("measure")
                .help("File for the measurements, for ringmq load --raw")
                .help_heading("Measure"),
        )
        .after_help(
            "Exit codes: 0 the node can run here, 1 the node cannot run, or the measurement failed, 2 a wrong flag or file.",
        );
    let inspect = Command::new("inspect")
        .about("Print and verify the files of a data path")
        .long_about(
            "Print and verify the journals, segments, commit logs and snapshots of a data path, best while no node runs on it.",
        )
        .arg(
            Arg::new("data-path")
                .required(true)
                .num_args(1..)
                .value_name("data path")
                .help("Data path of the node (--data-path); several with --compare"),
        )
        .arg(
            Arg::new("compare")
                .long("compare")
                .action(clap::ArgAction::SetTrue)
                .help("Compare the replicas in several data paths up to their committed ends"),
        )
        .arg(Arg::new("topic").long("topic").value_name("name").help("Only this topic"))
        .arg(
            Arg::new("partition")
                .long("partition")
                .value_name("number")
                .value_parser(clap::value_parser!(u16))
                .help("Only this partition of each topic"),
        )
        .arg(Arg::new("records").long("records").action(clap::ArgAction::SetTrue).help("Print every record, batch and cursor"))
        .arg(
            Arg::new("json")
                .long("json")
                .action(clap::ArgAction::SetTrue)
                .help("Print an object of JSON on each line; the last one has the verdict"),
        )
        .after_help(
            "A data path of a running node may be read: the first and the last line then say WARNING, since findings may be half-written \
             data.\n\
             Exit codes: 0 all is well, 1 damage, a difference or an unreadable file, 2 a wrong call, 3 a newer version of ringmq wrote a \
             file: use that version.",
        );
    let cluster = Command::new("cluster")
        .about("Print the state of a cluster with an etcd, or change it")
        .long_about(
            "Print the state of the cluster --cluster-name in the etcd of --etcd-endpoints, or change it. `verify`, `doctor` and `expand` \
             also ask nodes; the other words only need etcd. `status` lists what needs attention: absent nodes, partitions \
             without a leader or with too few replicas in sync, and the repairs under way. `verify` compares the replicas \
             on the nodes with each other and with the metadata. `doctor` checks etcd and each node. Both exit with 1 when an operator \
             must act. `init` creates the cluster's id; otherwise the first node creates it. `expand` raises the partitions of \
             --topic to --partitions. `move` hands a partition over to --to; with --from it moves a replica. `rebalance` hands \
             partitions over to their first replicas. `drain` moves all replicas off a node, `undrain` takes that back, `remove` forgets \
             an empty and stopped node.",
        )
        .arg(
            Arg::new("what")
                .required(true)
                .value_parser(clap::builder::PossibleValuesParser::new(
                    ringmq::operator::WORDS.into_iter().chain(ringmq::operator::checks::WORDS).chain(ringmq::operator::change::WORDS),
                ))
                .help("What to print, or to change"),
        )
        .arg(Arg::new("json").long("json").action(clap::ArgAction::SetTrue).help("Print JSON").help_heading("Print"))
        .arg(Arg::new("topic").long("topic").value_name("name").help("Only this topic; the topic to move or expand").help_heading("Print"))
        .arg(
            of_change(Arg::new("partition").long("partition"), "number", "Partition to move")
                .value_parser(clap::value_parser!(u16)),
        )
        .arg(of_change(Arg::new("from").long("from"), "node", "Node to move a replica from; without it the leader moves"))
        .arg(of_change(Arg::new("to").long("to"), "node", "Node that gets the moved replica, or leads"))
        .arg(of_change(Arg::new("node").long("node"), "node", "Node to drain, undrain or remove, by its name or id"))
        .arg(
            Arg::new("wait")
                .long("wait")
                .action(clap::ArgAction::SetTrue)
                .help("Wait until the drained node is empty")
                .help_heading("Change"),
        )
        .args(ringmq_tools::address::tls_args().map(|flag| flag.help_heading("HTTPS of nodes")))
        .after_help("Exit codes: 0 all is well, 1 an operator must act, or etcd does not answer, 2 a wrong call.");
    let node_id = Command::new("node-id")
        .about("Print the id of a data path's node, for the cluster file")
        .long_about("Print the id of a data path's node, for the cluster file. An empty data path gets its id now.")
        .arg(
            Arg::new("data-path").long("data-path").required(true).value_name("path").help("Data path of the node (--data-path)"),
        )
        .after_help("Exit codes: 0 printed, 1 failed (the message says why).");
    Command::new("ringmq")
        .about("A durable message queue for NSQ clients")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .term_width(help_width())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .help_template("{about}. {usage-heading} {usage}\n\n{subcommands}{after-help}")
        .after_help("`ringmq COMMAND -h` shows a command's flags; `ringmq -V` the version.")
        .subcommand(daemon(config::flags::add_flags(serve).arg(config::flags::words())))
        .subcommands(ringmq_tools::commands())
        .subcommand(config::flags::add_flags(doctor))
        .subcommand(inspect)
        .subcommand(config::flags::add_flags(cluster))
        .subcommand(node_id)
        .subcommand(ringmq::load::command())
        .subcommand(daemon(ringmq_lookupd::options::command("lookupd")))
        .subcommands(ringmq_tools::shell::commands())
        .subcommand(Command::new("version").about("Print the version"))
}

/// The command of a daemon, with a usage by the name that it was called.
fn daemon(command: Command) -> Command {
    let usage = format!("{} [FLAGS]", call_of(command.get_name()));
    brief::with_help(command.override_usage(usage))
}

/// Columns that a help text has, 0 for no limit: a terminal's, but no more than are easy to read. In a pipe a sentence is a line.
fn help_width() -> usize {
    if !std::io::stdout().is_terminal() {
        return 0;
    }
    // SAFETY: an all-zero `winsize` is valid, and the kernel writes into it no more than its size.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: `size` lives during the call.
    let is_known = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0 && size.ws_col > 0;
    if is_known { HELP_COLUMNS_MAX.min(size.ws_col.into()) } else { 0 }
}

fn with_settings(matches: &ArgMatches, then: impl FnOnce(config::Settings, LogLevel) -> ExitCode) -> ExitCode {
    match asked(matches) {
        Ok(LoadedSettings { settings, notes }) => {
            let level = reread::start_log(&settings);
            notes.warnings.iter().for_each(|note| tracing::warn!("{note}"));
            notes.without_effect.iter().for_each(|note| tracing::warn!("a setting without effect: {note}"));
            then(settings, level)
        }
        Err(error) => {
            error.lines().for_each(|line| eprintln!("{}: {line}", program()));
            ExitCode::from(MISUSED)
        }
    }
}

/// Reads the settings that the flags and the config file give now.
fn asked(matches: &ArgMatches) -> Result<LoadedSettings, String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|e| e.to_string());
    surroundings().and_then(|around| config::load(matches, &around, read).map_err(|e| e.to_string()))
}

fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "localhost".into());
    name.trim().to_owned()
}

fn surroundings() -> Result<Surroundings, String> {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let here = std::env::current_dir().map_err(|e| format!("the working directory cannot be found: {e}"))?;
    Ok(Surroundings {
        hostname: hostname(),
        cpus: u16::try_from(cpus).unwrap_or(u16::MAX),
        working_directory: here.to_string_lossy().into_owned(),
        is_nsqd: is_named_nsqd(),
    })
}

fn serve(matches: &ArgMatches, settings: config::Settings, level: LogLevel) -> ExitCode {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        data_path = settings.data_path,
        shards = settings.shards,
        "starting"
    );
    let mut in_force = settings.clone();
    let has_file = matches.get_one::<String>("config").is_some_and(|path| !path.is_empty());
    let reread = || reread::config(has_file.then(|| asked(matches)), &mut in_force, &level);
    match parts::run_node(settings, Box::new(level.clone()), reread) {
        Ok(()) => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(FAILED)
        }
    }
}

fn measuring(matches: &ArgMatches) -> Option<parts::Measuring> {
    let time = matches.get_one::<Duration>("seconds").copied().unwrap_or(Duration::from_secs(30));
    let json = matches.get_one::<String>("json").map(PathBuf::from);
    matches.get_flag("measure").then_some(parts::Measuring { time, json })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.1..=600.0).contains(number));
    number.map(Duration::from_secs_f64).ok_or_else(|| "a number between 0.1 and 600 is expected".into())
}

fn inspect(matches: &ArgMatches) -> ExitCode {
    let data_paths: Vec<String> = matches.get_many::<String>("data-path").expect("clap asks for it").cloned().collect();
    let options = InspectOptions {
        topic: matches.get_one::<String>("topic").cloned(),
        partition: matches.get_one::<u16>("partition").copied(),
        records: matches.get_flag("records"),
        format: if matches.get_flag("json") { Format::Json } else { Format::Text },
    };
    match (matches.get_flag("compare"), &data_paths[..]) {
        (true, [_, _, ..]) => parts::inspect(|out| ringmq::inspect::compare::run(&data_paths, &options, out)),
        (true, _) => misused("--compare takes two data paths at least"),
        (false, [data_path]) => parts::inspect(|out| ringmq::inspect::run(Path::new(data_path), &options, out)),
        (false, _) => misused("give one data path, or several with --compare"),
    }
}

/// A flag of the words of `ringmq cluster` that change something.
fn of_change(flag: Arg, value: &'static str, help: &'static str) -> Arg {
    flag.value_name(value).help(help).help_heading("Change")
}

fn cluster(matches: &ArgMatches, settings: &config::Settings) -> ExitCode {
    let word = matches.get_one::<String>("what").expect("clap asks for it");
    let asker = match ringmq_tools::address::https_terms(matches) {
        Ok(terms) => ringmq::operator::ask::Asker::new(terms),
        Err(error) => return misused(&error),
    };
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let names = ringmq::operator::change::Names {
        topic: text("topic"),
        partitions: settings.given.contains("partitions").then_some(settings.partitions),
        partition: matches.get_one::<u16>("partition").copied(),
        from: text("from"),
        to: text("to"),
        node: text("node"),
        waits: matches.get_flag("wait"),
    };
    if let Err(error) = ringmq::operator::check_call(settings, word, &names) {
        return misused(&error);
    }
    if let Some(word) = ringmq::operator::change::WORDS.into_iter().find(|known| known == word) {
        return parts::change_cluster(settings, &asker, word, &names);
    }
    let (topic, is_json) = (matches.get_one::<String>("topic").map(String::as_str), matches.get_flag("json"));
    match ringmq::operator::PageKind::of(word) {
        Some(what) => parts::cluster(settings, &asker, what, topic, is_json),
        None => parts::check_cluster(settings, &asker, word, topic, is_json),
    }
}

fn misused(what: &str) -> ExitCode {
    eprintln!("{}: {what}", program());
    ExitCode::from(MISUSED)
}

fn lookupd(matches: &ArgMatches) -> ExitCode {
    if ringmq_lookupd::options::asks_for_version(matches) {
        println!("{}", ringmq_lookupd::options::version(concat!("ringmq", env!("CARGO_PKG_VERSION"))));
        return ExitCode::SUCCESS;
    }
    let read = |path: &str| std::fs::read_to_string(path).map_err(|e| e.to_string());
    match ringmq_lookupd::options::load(matches, &hostname(), read) {
        Ok(options) => {
            start_lookupd_log(&options);
            options.without_effect.iter().for_each(|note| tracing::warn!("a setting without effect: {note}"));
            parts::lookupd(options)
        }
        Err(error) => misused(&error.to_string()),
    }
}

/// Starts the log of nsqlookupd on standard error; each line begins with `--log-prefix`.
fn start_lookupd_log(options: &ringmq_lookupd::options::Options) {
    let prefix = options.log_prefix.clone();
    let log = tracing_subscriber::fmt().with_max_level(reread::level_of(&options.log_level)).with_ansi(false);
    log.with_writer(move || parts::Prefixed::new(&prefix)).init();
}

fn load(matches: &ArgMatches) -> ExitCode {
    match ringmq::load::parse(matches) {
        Ok(asked) => parts::load(&asked),
        Err(error) => {
            eprintln!("ringmq: {error}");
            ExitCode::from(MISUSED)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_tip_names_something_alike() {
        let told = |args: &[&str]| {
            let error = command().try_get_matches_from(args).expect_err("there is no such flag or command");
            ringmq_tools::tips::without_far_tips(error).to_string()
        };
        for (args, tip) in [
            (&["ringmq", "serve", "--joournal-bytes=1"][..], Some("--journal-bytes")),
            (&["ringmq", "serve", "--tcp-adress"], Some("--tcp-address")),
            (&["ringmq", "serve", "--nope"], None),
            (&["ringmq", "inspect", "--nope"], None),
            (&["ringmq", "doctr"], Some("doctor")),
            (&["ringmq", "launch"], None),
        ] {
            let text = told(args);
            match tip {
                Some(tip) => assert!(text.contains("tip:") && text.contains(tip), "{text}"),
                None => assert!(!text.contains("tip:"), "{text}"),
            }
        }
    }

    #[test]
    fn a_measurement_has_bounds() {
        let parsed = |args: &[&str]| command().try_get_matches_from([&["ringmq", "doctor"], args].concat());
        let matches = parsed(&["--measure", "--seconds=0.5", "--json", "x", "--data-path", "d"]).unwrap(); // it is valid
        let asked = measuring(matches.subcommand_matches("doctor").unwrap()).unwrap(); // it was given
        assert_eq!((asked.time, asked.json), (Duration::from_millis(500), Some("x".into())));
        let plain = parsed(&[]).unwrap(); // it is valid
        assert!(measuring(plain.subcommand_matches("doctor").unwrap()).is_none());
        for wrong in [&["--measure", "--seconds=0"][..], &["--measure", "--seconds=NaN"], &["--seconds=3"], &["--json=x"]] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_name_says_what_to_do() {
        let args = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        for (given, meant) in [
            (&["/usr/bin/nsqd", "-x"][..], &["/usr/bin/nsqd", "serve", "-x"][..]),
            (&["./nsqlookupd"], &["./nsqlookupd", "lookupd"]),
            (&["ringmq", "doctor"], &["ringmq", "doctor"]),
        ] {
            assert_eq!(as_named(args(given)), args(meant));
        }
    }
}
