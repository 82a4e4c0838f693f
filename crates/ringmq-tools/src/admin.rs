//! `ringmq topic` and `ringmq channel`: an operator's changes of topics and channels over HTTP.

use crate::address::{HTTP, LOOKUPD, Nodes, arg, given, tls_args};
use crate::http::{HttpError, escaped};
use crate::stats::{Counts, StatsSample};
use crate::text::{Table, bytes, grouped};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Operations on topics: name, description, and whether messages are deleted.
const TOPIC: [(&str, &str, bool); 5] = [
    ("create", "Create topics", false),
    ("delete", "Delete topics with their channels and messages", true),
    ("empty", "Drop the messages that wait for a topic's first channel", true),
    ("pause", "Stop the flow of messages from topics to their channels", false),
    ("unpause", "Resume the flow of messages from topics to their channels", false),
];
const CHANNEL: [(&str, &str, bool); 5] = [
    ("create", "Create channels", false),
    ("delete", "Delete channels with their waiting messages", true),
    ("empty", "Drop the waiting messages of channels", true),
    ("pause", "Stop deliveries", false),
    ("unpause", "Resume deliveries", false),
];

fn common(command: Command) -> Command {
    command
        .arg(arg(HTTP, "HTTP address of a node; each of several is asked, or one of a cluster [default: 127.0.0.1:4151]"))
        .arg(arg(LOOKUPD, "HTTP address of an nsqlookupd, which knows the nodes; may be repeated"))
        .args(tls_args())
}

fn yes() -> Arg {
    Arg::new("yes").long("yes").short('y').action(ArgAction::SetTrue).help("Do not ask for confirmation on a terminal")
}

pub fn topic_command() -> Command {
    let list = common(Command::new("list").about("List topics"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"));
    let others = TOPIC.map(|(name, about, _)| {
        common(Command::new(name).about(about)).arg(Arg::new("topic").value_name("topic").required(true).num_args(1..)).arg(yes())
    });
    group("topic", "List, create, delete, empty, pause or unpause topics").subcommand(list).subcommands(others)
}

pub fn channel_command() -> Command {
    let topic = || Arg::new("topic").value_name("topic").required(true);
    let list = common(Command::new("list").about("List the channels of a topic"))
        .arg(topic())
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON"));
    let others = CHANNEL.map(|(name, about, _)| {
        let channel = Arg::new("channel").value_name("channel").required(true).num_args(1..);
        common(Command::new(name).about(about)).arg(topic()).arg(channel).arg(yes())
    });
    group("channel", "List, create, delete, empty, pause or unpause channels").subcommand(list).subcommands(others)
}

fn group(name: &'static str, about: &'static str) -> Command {
    Command::new(name)
        .about(about)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help("Exit codes: 0 done, and durable; 1 failed; 2 a wrong call.")
}

pub fn execute_topic(matches: &ArgMatches) -> ExitCode {
    let (name, matches) = matches.subcommand().expect("clap asks for one");
    with_nodes(matches, async |nodes| match name {
        "list" => list_topics(&nodes, matches.get_flag("json")).await,
        _ => {
            let topics = given(matches, "topic");
            let paths = topics.iter().map(|topic| format!("/topic/{name}?topic={}", escaped(topic))).collect();
            let is_lossy = TOPIC.iter().any(|(known, _, is_lossy)| *known == name && *is_lossy);
            change(&nodes, matches, &format!("{name} topic {}", topics.join(", ")), paths, is_lossy).await
        }
    })
}

pub fn execute_channel(matches: &ArgMatches) -> ExitCode {
    let (name, matches) = matches.subcommand().expect("clap asks for one");
    let topic = matches.get_one::<String>("topic").expect("clap asks for it");
    with_nodes(matches, async |nodes| match name {
        "list" => list_channels(&nodes, topic, matches.get_flag("json")).await,
        _ => {
            let channels = given(matches, "channel");
            let path = |channel: &String| format!("/channel/{name}?topic={}&channel={}", escaped(topic), escaped(channel));
            let is_lossy = CHANNEL.iter().any(|(known, _, is_lossy)| *known == name && *is_lossy);
            let what = format!("{name} channel {} of {topic}", channels.join(", "));
            change(&nodes, matches, &what, channels.iter().map(path).collect(), is_lossy).await
        }
    })
}

fn with_nodes(matches: &ArgMatches, act: impl AsyncFnOnce(Nodes) -> Result<(), String>) -> ExitCode {
    match Nodes::of(matches, HTTP, "127.0.0.1:4151") {
        Ok(nodes) => crate::block_on(async { act(nodes).await.map_or_else(|e| crate::failed(&e), |()| ExitCode::SUCCESS) }),
        Err(error) => crate::misused(&error),
    }
}

/// Posts to every node; the first refusal ends it. Any node of a cluster acts for all of it.
async fn change(nodes: &Nodes, matches: &ArgMatches, what: &str, paths: Vec<String>, is_lossy: bool) -> Result<(), String> {
    if is_lossy && !matches.get_flag("yes") && std::io::stdin().is_terminal() && !is_confirmed(what) {
        return Err("nothing was changed".into());
    }
    let addresses = nodes.http_addresses(None).await.map_err(|e| e.to_string())?;
    let is_cluster = is_cluster(nodes, &addresses).await;
    for path in paths {
        let posted =
            if is_cluster { post_to_any(nodes, &addresses, &path).await } else { post_to_all(nodes, &addresses, &path).await };
        posted.map_err(|error| match error.status() {
            Some(404) => format!("{error}; `ringmq topic list` and `ringmq channel list TOPIC` show the existing names"),
            _ => error.to_string(),
        })?;
    }
    Ok(())
}

/// Whether the first node that answers belongs to a cluster with an etcd.
async fn is_cluster(nodes: &Nodes, addresses: &[String]) -> bool {
    for address in addresses {
        match nodes.http(address).get("/cluster/stats").await {
            Err(error) if error.status().is_none() => {}
            answer => return answer.is_ok(),
        }
    }
    false
}

/// The next node is asked only where the one before was not reached.
async fn post_to_any(nodes: &Nodes, addresses: &[String], path: &str) -> Result<(), HttpError> {
    let mut result = Ok(());
    for address in addresses {
        result = nodes.http(address).post(path).await;
        if !matches!(result, Err(HttpError::Connect { .. })) {
            break;
        }
    }
    result
}

/// A topic or channel is missing when all nodes say so.
async fn post_to_all(nodes: &Nodes, addresses: &[String], path: &str) -> Result<(), HttpError> {
    let (mut missing, mut is_done) = (None, addresses.is_empty());
    for address in addresses {
        match nodes.http(address).post(path).await {
            Ok(()) => is_done = true,
            Err(error) if error.status() == Some(404) => missing = missing.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    missing.filter(|_| !is_done).map_or(Ok(()), Err)
}

fn is_confirmed(what: &str) -> bool {
    eprint!("{what}: waiting messages will be lost. Go on? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

async fn list_topics(nodes: &Nodes, json: bool) -> Result<(), String> {
    let look = look(nodes, None).await?;
    if json {
        crate::print(&format!("{}\n", serde_json::json!(look.topics)));
        return Ok(());
    }
    if !std::io::stdout().is_terminal() {
        crate::print(&look.topics.keys().map(|name| format!("{name}\n")).collect::<String>());
        return Ok(());
    }
    let mut table = Table::new(&["topic", "channels", "messages", "size", "depth", ""]);
    for (name, topic) in &look.topics {
        let counts = &topic.counts;
        let cells = [topic.channels.len().to_string(), grouped(counts.messages), bytes(topic.bytes), grouped(counts.depth)];
        table.row(&[name, &cells[0], &cells[1], &cells[2], &cells[3], paused(counts)]);
    }
    crate::print(&table.text(&[1, 2, 3, 4]));
    Ok(())
}

async fn list_channels(nodes: &Nodes, topic: &str, json: bool) -> Result<(), String> {
    let look = look(nodes, Some(topic)).await?;
    let missing = || format!("there is no topic {topic}: `ringmq topic list` shows the topics");
    let channels = &look.topics.get(topic).ok_or_else(missing)?.channels;
    if json {
        crate::print(&format!("{}\n", serde_json::json!(channels)));
        return Ok(());
    }
    if !std::io::stdout().is_terminal() {
        crate::print(&channels.keys().map(|name| format!("{name}\n")).collect::<String>());
        return Ok(());
    }
    let mut table = Table::new(&["channel", "depth", "in flight", "deferred", "clients", ""]);
    for (name, counts) in channels {
        let cells = [counts.depth, counts.in_flight, counts.deferred, counts.clients].map(grouped);
        table.row(&[name, &cells[0], &cells[1], &cells[2], &cells[3], paused(counts)]);
    }
    crate::print(&table.text(&[1, 2, 3, 4]));
    Ok(())
}

async fn look(nodes: &Nodes, topic: Option<&str>) -> Result<StatsSample, String> {
    let look = StatsSample::take(nodes, topic, None, false).await.map_err(|e| e.to_string())?;
    look.troubles.iter().for_each(|trouble| eprintln!("ringmq: {trouble}"));
    Ok(look)
}

fn paused(counts: &Counts) -> &'static str {
    if counts.is_paused { "paused" } else { "" }
}
