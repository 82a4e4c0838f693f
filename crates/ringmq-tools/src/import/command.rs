//! The flags of `ringmq import`.

use super::node::OwnNode;
use super::progress::Progress;
use super::source::Source;
use super::summary::Summary;
use super::{ImportError, Options, Target, default_state, dry_run, name_of, run};
use crate::http::Http;
use clap::{Arg, ArgAction, ArgMatches, Command};
use ringmq_client::Client;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit code of an import that left something out; [`Summary::is_partial`].
const PARTIAL: u8 = 3;

pub fn command() -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    Command::new("import")
        .about("Import the backlogs of a stopped nsqd")
        .long_about(
            "Import the backlogs in the data path of a stopped nsqd 1.x: its topics and channels, paused or not, and their messages. Each \
             channel gets the messages that waited for it, and no others. The nsqd's files stay as they are.\n\n\
             With --into no node may run on that data path: the import runs a node of its own there, which nobody else can reach. Without \
             --into the messages go to the running node of --native-address and --http-address. That node's channels of the same names \
             are paused meanwhile.\n\n\
             An import that was interrupted goes on when the same command is run again. Stored messages are not stored twice.",
        )
        .arg(Arg::new("source").required(true).value_name("nsqd data path").help("Data path of the nsqd (--data-path)"))
        .arg(Arg::new("into").long("into").value_name("path").help("Data path of a node that does not run; the path may be new"))
        .arg(
            Arg::new("native-address")
                .long("native-address")
                .value_name("host:port")
                .default_value("127.0.0.1:4153")
                .conflicts_with("into")
                .help("Native address of the running node"),
        )
        .arg(
            Arg::new("http-address")
                .long("http-address")
                .value_name("host:port")
                .default_value("127.0.0.1:4151")
                .conflicts_with("into")
                .help("HTTP address of the same node"),
        )
        .arg(Arg::new("topic").long("topic").value_name("name").action(ArgAction::Append).help("Only this topic; may be repeated"))
        .arg(
            Arg::new("state")
                .long("state")
                .value_name("file")
                .help("File for the progress [default: ringmq-import.json in the nsqd's data path]"),
        )
        .arg(flag("dry-run", "Count everything and change nothing"))
        .arg(flag("skip-too-large", "Leave out messages that are larger than the node takes, instead of ending"))
        .arg(flag("accept-duplicates", "Continue although the node has forgotten an earlier run's progress: messages may be stored twice"))
        .arg(flag("json", "Print the summary as JSON"))
        .arg(flag("quiet", "Print no progress"))
        .arg(
            Arg::new("serve")
                .last(true)
                .num_args(0..)
                .value_name("flags of serve")
                .help("Behind `--`, with --into: flags for the import's own node, such as --config=/etc/ringmq/ringmq.toml"),
        )
        .after_help(
            "Run the import as the node's user: with --into the new files belong to the user of the import.\n\
             Exit codes: 0 done, 1 failed (run it again to go on), 2 a wrong call, 3 done, and something was left out (the summary \
             names it).",
        )
}

pub fn execute(matches: &ArgMatches) -> ExitCode {
    let source = PathBuf::from(matches.get_one::<String>("source").expect("clap asks for it"));
    let state = matches.get_one::<String>("state").map(PathBuf::from).unwrap_or_else(|| default_state(&source));
    let options = Options {
        source,
        state,
        topics: matches.get_many::<String>("topic").into_iter().flatten().cloned().collect(),
        skip_too_large: matches.get_flag("skip-too-large"),
        accept_duplicates: matches.get_flag("accept-duplicates"),
        dry_run: matches.get_flag("dry-run"),
    };
    crate::block_on(async {
        match import(matches, &options).await {
            Ok(summary) => {
                let text = match matches.get_flag("json") {
                    true => serde_json::to_string_pretty(&summary).unwrap_or_default() + "\n",
                    false => summary.text(),
                };
                crate::print(&text);
                if summary.is_partial() { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS }
            }
            Err(error) => crate::failed(&error),
        }
    })
}

async fn import(matches: &ArgMatches, options: &Options) -> Result<Summary, ImportError> {
    let source = Source::open(&options.source)?;
    if options.dry_run {
        return dry_run(options, &source);
    }
    let is_quiet = matches.get_flag("quiet");
    let Some(into) = matches.get_one::<String>("into").map(PathBuf::from) else {
        let address = |name: &str| matches.get_one::<String>(name).expect("it has a default").clone();
        let (native, http) = (address("native-address"), address("http-address"));
        let target = connect(&native, &http).await?;
        return run(options, &source, &target, &native, Progress::of_command(is_quiet)).await;
    };
    let flags: Vec<String> = matches.get_many::<String>("serve").into_iter().flatten().cloned().collect();
    let node = OwnNode::start(&into, &flags, &|| false).await?;
    into_own(node, &into, options, &source, Progress::of_command(is_quiet)).await
}

/// Imports into a node of its own, which is stopped in the end.
pub(super) async fn into_own(
    node: OwnNode,
    into: &Path,
    options: &Options,
    source: &Source,
    progress: Progress,
) -> Result<Summary, ImportError> {
    let target = connect(&node.native, &node.http).await?;
    let summary = run(options, source, &target, &name_of(into, &options.source), progress).await?;
    drop(target);
    node.stop(into)?;
    Ok(summary)
}

async fn connect(native: &str, http: &str) -> Result<Target, ImportError> {
    let failed = |source| ImportError::Client { address: native.into(), source };
    let client = Client::builder().address(native).client_id("ringmq-import").connect().await.map_err(failed)?;
    let http = Http::new(http);
    http.get("/info").await?;
    let message_max = client.message_bytes_max().await.map_err(failed)?;
    Ok(Target { client, http, message_max })
}
