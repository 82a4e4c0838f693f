//! `ringmq pub`: publishes the lines of the standard input, as to_nsq does.

use crate::address::{TCP, arg, given, positive_duration};
use crate::nsq::{Connection, NsqError, Received};
use crate::options::Identity;
use crate::text::grouped;
use clap::{Arg, ArgMatches, Command};
use ringmq_protocol::codec::nsq::request;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};

/// Publishes of a connection that have no answer yet.
const WINDOW: usize = 1_000;

pub fn command() -> Command {
    Command::new("pub")
        .about("Publish the lines of the standard input to a topic")
        .long_about("Publish the lines of the standard input to a topic: a message each. Empty lines are skipped, as by to_nsq.")
        .arg(Arg::new("topic-name").value_name("topic").help("Topic, as with --topic").conflicts_with("topic"))
        .arg(Arg::new("topic").long("topic").value_name("name").help("Topic"))
        .arg(arg(TCP, "NSQ address of a node; each of several gets every message [default: 127.0.0.1:4150]"))
        .arg(
            Arg::new("delimiter")
                .long("delimiter")
                .value_name("character")
                .default_value("\n")
                .hide_default_value(true)
                .value_parser(delimiter)
                .help("Separator of messages: one byte [default: the end of a line]"),
        )
        .arg(
            Arg::new("rate")
                .long("rate")
                .value_name("number")
                .default_value("0")
                .value_parser(clap::value_parser!(u64))
                .help("Messages per second at most; 0: no limit"),
        )
        .arg(
            Arg::new("defer")
                .long("defer")
                .value_name("duration")
                .value_parser(positive_duration)
                .help("Time that each message waits in the node before it is delivered, such as 10s"),
        )
        .arg(crate::options::arg("producer-opt"))
        .after_help(
            "Counted messages are on the node's disk.\n\
             Exit codes: 0 all are published, 1 failed (the error says how many are published), 2 a wrong call.",
        )
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        [byte] => Ok(*byte),
        b"\\n" => Ok(b'\n'),
        b"\\t" => Ok(b'\t'),
        b"\\0" => Ok(0),
        _ => Err("one byte is expected, or \\n, \\t, \\0".into()),
    }
}

struct Publisher {
    topic: String,
    defer_ms: Option<u64>,
    connections: Vec<Lane>,
}

struct Lane {
    connection: Connection,
    owed: usize,
    published: u64,
}

impl Publisher {
    async fn publish(&mut self, body: &[u8]) -> Result<(), NsqError> {
        for lane in &mut self.connections {
            let out = &mut lane.connection.out;
            match self.defer_ms {
                Some(ms) => request::publish_deferred(out, &self.topic, ms, body),
                None => request::publish(out, &self.topic, body),
            }
            lane.owed += 1;
            if lane.connection.out.len() >= 64 << 10 {
                lane.connection.flush().await?;
            }
            while let Some(answer) = lane.connection.received()? {
                lane.answered(answer)?;
            }
            while lane.owed >= WINDOW {
                lane.wait().await?;
            }
        }
        Ok(())
    }

    /// Waits until every publish is answered.
    async fn settle(&mut self) -> Result<(), NsqError> {
        for lane in &mut self.connections {
            lane.connection.flush().await?;
            while lane.owed > 0 {
                lane.wait().await?;
            }
        }
        Ok(())
    }

    fn published(&self) -> u64 {
        self.connections.iter().map(|lane| lane.published).min().unwrap_or(0)
    }
}

impl Lane {
    async fn wait(&mut self) -> Result<(), NsqError> {
        self.connection.flush().await?;
        let answer = self.connection.receive().await?;
        self.answered(answer)
    }

    fn answered(&mut self, answer: Received) -> Result<(), NsqError> {
        match answer {
            Received::Ok => {
                self.owed -= 1;
                self.published += 1;
                Ok(())
            }
            Received::Error(text) => Err(self.connection.refused("PUB", text)),
            Received::Message(_) | Received::Json(_) => {
                Err(self.connection.refused("PUB", "the node's answer is not one to a publish".into()))
            }
        }
    }
}

pub fn execute(matches: &ArgMatches) -> ExitCode {
    let topic = matches.get_one::<String>("topic").or(matches.get_one::<String>("topic-name"));
    let Some(topic) = topic.cloned() else { return crate::misused(&"name a topic: ringmq pub TOPIC") };
    let mut addresses = given(matches, TCP);
    if addresses.is_empty() {
        addresses.push("127.0.0.1:4150".into());
    }
    let identity = match Identity::of(matches, "producer-opt", "pub") {
        Ok(identity) => identity,
        Err(error) => return crate::misused(&error),
    };
    let rate = *matches.get_one::<u64>("rate").expect("it has a default");
    let delimiter = *matches.get_one::<u8>("delimiter").expect("it has a default");
    let defer_ms = matches.get_one::<Duration>("defer").map(|d| d.as_millis() as u64);
    crate::block_on(async {
        let mut publisher = Publisher { topic, defer_ms, connections: vec![] };
        for address in &addresses {
            match Connection::connect(address, &identity).await {
                Ok(connection) => publisher.connections.push(Lane { connection, owed: 0, published: 0 }),
                Err(error) => return crate::failed(&error),
            }
        }
        if std::io::stdin().is_terminal() {
            eprintln!("ringmq: a line is a message; Ctrl-D ends");
        }
        let result = tokio::select! {
            result = lines(&mut publisher, delimiter, rate) => result,
            () = crate::until_signal() => Ok(()),
        };
        let result = match result {
            Ok(()) => publisher.settle().await.map_err(|e| e.to_string()),
            Err(error) => Err(error),
        };
        let published = grouped(publisher.published());
        match result {
            Ok(()) => {
                if std::io::stderr().is_terminal() {
                    eprintln!("ringmq: published {published} messages to {}", publisher.topic);
                }
                ExitCode::SUCCESS
            }
            Err(error) => crate::failed(&format!("{error}\n{published} messages were published before")),
        }
    })
}

/// Publishes until the input ends.
async fn lines(publisher: &mut Publisher, delimiter: u8, rate: u64) -> Result<(), String> {
    let mut input = BufReader::with_capacity(256 << 10, tokio::io::stdin());
    let (began, mut sent, mut line) = (Instant::now(), 0u64, vec![]);
    loop {
        line.clear();
        // Lines that were read are sent before the tool waits for more.
        if input.buffer().is_empty() && sent > 0 {
            publisher.settle().await.map_err(|e| e.to_string())?;
        }
        let len = input.read_until(delimiter, &mut line).await.map_err(|e| format!("the standard input: {e}"))?;
        if len == 0 {
            return Ok(());
        }
        if line.last() == Some(&delimiter) {
            line.pop();
        }
        if line.is_empty() {
            continue;
        }
        publisher.publish(&line).await.map_err(|e| e.to_string())?;
        sent += 1;
        if rate > 0 {
            let due = began + Duration::from_secs_f64(sent as f64 / rate as f64);
            if due > Instant::now() {
                publisher.settle().await.map_err(|e| e.to_string())?;
                tokio::time::sleep_until(due.into()).await;
            }
        }
    }
}
