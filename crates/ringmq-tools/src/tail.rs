//! `ringmq tail`: prints the messages of topics as they come, as nsq_tail does.

use crate::address::{LOOKUPD, Nodes, TCP, arg, given, tls_args};
use crate::nsq::{Connection, Message, NsqError, Received};
use crate::options::Identity;
use clap::{Arg, ArgAction, ArgMatches, Command};
use ringmq_protocol::codec::nsq::request;
use std::collections::HashSet;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Pause before a lost connection is made again, and between two lookups.
const RETRY: Duration = Duration::from_secs(2);

pub fn command() -> Command {
    Command::new("tail")
        .about("Print the messages of topics as they come")
        .long_about(
            "Print the messages of topics as they come, one per line, through an ephemeral channel: other consumers still get every \
             message. With --channel the messages come through that channel, and its other consumers do not get them.",
        )
        .arg(Arg::new("topics").value_name("topic").num_args(0..).help("Topics, as with --topic"))
        .arg(Arg::new("topic").long("topic").value_name("name").action(ArgAction::Append).help("Topic; may be repeated"))
        .arg(Arg::new("channel").long("channel").value_name("name").help("Channel [default: tail######%23ephemeral, of its own]"))
        .arg(arg(TCP, "NSQ address of a node; may be repeated [default: 127.0.0.1:4150]"))
        .arg(arg(LOOKUPD, "HTTP address of an nsqlookupd, which knows the nodes; may be repeated"))
        .args(tls_args())
        .arg(
            Arg::new("max-in-flight")
                .long("max-in-flight")
                .value_name("number")
                .default_value("200")
                .value_parser(clap::value_parser!(u32).range(1..))
                .help("Unfinished messages that a node may send"),
        )
        .arg(
            Arg::new("n")
                .short('n')
                .long("n")
                .value_name("number")
                .default_value("0")
                .value_parser(clap::value_parser!(u64))
                .help("End after this many messages; 0: never"),
        )
        .arg(
            Arg::new("print-topic")
                .long("print-topic")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(clap::value_parser!(bool))
                .help("Print the topic before each message"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print an object of JSON for each message"))
        .arg(crate::options::arg("consumer-opt"))
        .mut_arg("channel", |arg| arg.help("Channel [default: an ephemeral one of its own]"))
        .after_help("SIGINT ends it. Exit codes: 0 ended, 1 failed, 2 a wrong call.")
}

/// A message, and the receiver of the signal that it was printed.
type Item = (String, Message, oneshot::Sender<()>);

#[derive(Clone)]
struct TailTarget {
    topic: String,
    channel: String,
    ready: u32,
    identity: Identity,
}

pub fn execute(matches: &ArgMatches) -> ExitCode {
    let mut topics = given(matches, "topic");
    topics.extend(given(matches, "topics"));
    if topics.is_empty() {
        return misused_topic();
    }
    let nodes = match Nodes::of(matches, TCP, "127.0.0.1:4150") {
        Ok(nodes) => nodes,
        Err(error) => return crate::misused(&error),
    };
    let identity = match Identity::of(matches, "consumer-opt", "tail") {
        Ok(identity) => identity,
        Err(error) => return crate::misused(&error),
    };
    let total = *matches.get_one::<u64>("n").expect("it has a default");
    let ahead = *matches.get_one::<u32>("max-in-flight").expect("it has a default");
    let ready = if total > 0 { ahead.min(u32::try_from(total).unwrap_or(u32::MAX)) } else { ahead };
    let channel = matches.get_one::<String>("channel").cloned();
    let channel = channel.unwrap_or_else(|| format!("tail{:06}#ephemeral", crate::import::random_id() % 1_000_000));
    let printer = Printer {
        with_topic: matches.get_one::<bool>("print-topic").copied().unwrap_or(false),
        json: matches.get_flag("json"),
        is_terminal: std::io::stdout().is_terminal(),
    };
    crate::block_on(async {
        let (tx, rx) = mpsc::channel(ready as usize);
        for topic in topics {
            let wanted = TailTarget { topic, channel: channel.clone(), ready, identity: identity.clone() };
            tokio::spawn(follow(nodes.clone(), wanted, tx.clone()));
        }
        drop(tx);
        tokio::select! {
            code = show(rx, printer, total) => code,
            () = crate::until_signal() => ExitCode::SUCCESS,
        }
    })
}

fn misused_topic() -> ExitCode {
    crate::misused(&"name a topic: ringmq tail TOPIC (`ringmq topic list` shows the topics)")
}

/// Keeps a connection to each node that has the topic. The first one that fails where the node was named ends the tool.
async fn follow(nodes: Nodes, wanted: TailTarget, tx: mpsc::Sender<Result<Item, String>>) {
    let mut known = HashSet::new();
    loop {
        match nodes.tcp(&wanted.topic).await {
            Ok(addresses) => {
                for address in addresses.into_iter().filter(|address| known.insert(address.clone())) {
                    tokio::spawn(keep(address, wanted.clone(), nodes.is_looked_up(), tx.clone()));
                }
            }
            Err(error) if known.is_empty() => {
                let _ = tx.send(Err(error.to_string())).await;
                return;
            }
            Err(error) => eprintln!("ringmq: {error}"),
        }
        if !nodes.is_looked_up() {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Keeps consuming from one node, and reconnects when the connection is lost.
async fn keep(address: String, wanted: TailTarget, mut is_patient: bool, tx: mpsc::Sender<Result<Item, String>>) {
    loop {
        let error = match consume(&address, &wanted, &mut is_patient, &tx).await {
            Ok(()) => return,
            Err(error) => error,
        };
        if !is_patient || matches!(error, NsqError::Refused { .. }) {
            let _ = tx.send(Err(error.to_string())).await;
            return;
        }
        eprintln!("ringmq: {error}; connecting again");
        tokio::time::sleep(RETRY).await;
    }
}

/// Consumes until the printer is gone or the connection fails. `is_connected` is set once the connection is made.
async fn consume(
    address: &str,
    wanted: &TailTarget,
    is_connected: &mut bool,
    tx: &mpsc::Sender<Result<Item, String>>,
) -> Result<(), NsqError> {
    let TailTarget { topic, channel, ready, identity } = wanted;
    let mut connection = Connection::connect(address, identity).await?;
    connection.subscribe(topic, channel, *ready).await?;
    *is_connected = true;
    loop {
        match connection.receive().await? {
            Received::Message(message) => {
                let id = message.id;
                let (done, printed) = oneshot::channel();
                if tx.send(Ok((topic.clone(), message, done))).await.is_err() || printed.await.is_err() {
                    return Ok(());
                }
                request::finish(&mut connection.out, &id);
                // With messages that came meanwhile.
                if connection.out.len() > 4096 {
                    connection.flush().await?;
                }
            }
            Received::Error(text) if text.starts_with("E_FIN_FAILED") => {}
            Received::Error(text) => return Err(connection.refused("SUB", text)),
            Received::Ok | Received::Json(_) => {}
        }
    }
}

struct Printer {
    with_topic: bool,
    json: bool,
    is_terminal: bool,
}

impl Printer {
    fn line(&self, topic: &str, message: &Message) -> Vec<u8> {
        if self.json {
            let id = String::from_utf8_lossy(&message.id).into_owned();
            let body = match std::str::from_utf8(&message.body) {
                Ok(text) => ("body", text.to_owned()),
                Err(_) => ("body_hex", message.body.iter().map(|b| format!("{b:02x}")).collect()),
            };
            let (ns, attempts) = (message.unix_ns, message.attempts);
            let json = serde_json::json!({ "topic": topic, "id": id, "timestamp": ns, "attempts": attempts, body.0: body.1 });
            return format!("{json}\n").into_bytes();
        }
        let mut line = match (self.with_topic, self.is_terminal) {
            (false, _) => vec![],
            (true, false) => format!("{topic} | ").into_bytes(),
            (true, true) => format!("\x1b[36m{topic}\x1b[0m | ").into_bytes(),
        };
        line.extend_from_slice(&message.body);
        line.push(b'\n');
        line
    }
}

async fn show(mut rx: mpsc::Receiver<Result<Item, String>>, printer: Printer, total: u64) -> ExitCode {
    let (mut shown, mut last) = (0, None);
    while let Some(item) = rx.recv().await {
        let (topic, message, done) = match item {
            Ok(item) => item,
            Err(error) => return crate::failed(&error),
        };
        let line = printer.line(&topic, &message);
        let mut out = std::io::stdout().lock();
        if out.write_all(&line).and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
        shown += 1;
        let _ = done.send(());
        if total > 0 && shown >= total {
            last = Some(());
            break;
        }
    }
    if last.is_some() {
        // The last FIN is still on its way.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ExitCode::SUCCESS
}
