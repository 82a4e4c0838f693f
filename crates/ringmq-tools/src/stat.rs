//! `ringmq stat`: the figures of a channel every two seconds, as nsq_stat prints them; without names a table of everything.

use crate::address::{HTTP, LOOKUPD, Nodes, arg, positive_duration, tls_args};
use crate::stats::{Counts, StatsSample, rates};
use crate::text::{Table, short};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Lines between two heads.
const HEAD_EVERY: u64 = 25;

pub fn command() -> Command {
    let limit = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("duration").default_value(default).value_parser(positive_duration).help(help)
    };
    Command::new("stat")
        .about("Print depth, rates and counts of a channel, or of all topics")
        .long_about(
            "Print depth, rates and counts of a channel of a topic, a line every --interval, as nsq_stat does. Without --channel a table \
             of all topics and channels, once unless --count says otherwise.",
        )
        .arg(Arg::new("topic").long("topic").value_name("name").help("Topic"))
        .arg(Arg::new("channel").long("channel").value_name("name").requires("topic").help("Channel of the topic"))
        .arg(arg(HTTP, "HTTP address of a node; the figures of several add up [default: 127.0.0.1:4151]"))
        .arg(arg(LOOKUPD, "HTTP address of an nsqlookupd, which knows the nodes; may be repeated"))
        .args(tls_args())
        .arg(limit("interval", "2s", "Time between two reports"))
        .arg(limit("http-client-connect-timeout", "2s", "Time limit for connecting"))
        .arg(limit("http-client-request-timeout", "5s", "Time limit for an answer"))
        .arg(
            Arg::new("count")
                .long("count")
                .value_name("number")
                .value_parser(clap::value_parser!(u64).range(1..))
                .help("Number of reports [default: no end with --channel, else 1]"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print an object of JSON for each report"))
        .after_help("Exit codes: 0 ended, 1 failed, 2 a wrong call.")
}

pub fn execute(matches: &ArgMatches) -> ExitCode {
    let nodes = match Nodes::of(matches, HTTP, "127.0.0.1:4151") {
        Ok(nodes) => nodes,
        Err(error) => return crate::misused(&error),
    };
    let name = |name: &str| matches.get_one::<String>(name).cloned();
    let report = Report { nodes, topic: name("topic"), channel: name("channel"), json: matches.get_flag("json") };
    let interval = *matches.get_one::<Duration>("interval").expect("it has a default");
    let count = matches.get_one::<u64>("count").copied();
    crate::block_on(async {
        tokio::select! {
            result = report.run(interval, count) => result.map_or_else(|error| crate::failed(&error), |()| ExitCode::SUCCESS),
            () = crate::until_signal() => ExitCode::SUCCESS,
        }
    })
}

struct Report {
    nodes: Nodes,
    topic: Option<String>,
    channel: Option<String>,
    json: bool,
}

impl Report {
    async fn look(&self) -> Result<StatsSample, String> {
        let look = StatsSample::take(&self.nodes, self.topic.as_deref(), self.channel.as_deref(), false)
            .await
            .map_err(|e| e.to_string())?;
        look.troubles.iter().for_each(|trouble| eprintln!("ringmq: {trouble}"));
        Ok(look)
    }

    async fn run(&self, interval: Duration, count: Option<u64>) -> Result<(), String> {
        let is_of_channel = self.channel.is_some();
        let count = count.unwrap_or(if is_of_channel { u64::MAX } else { 1 });
        let mut before = self.look().await?;
        if !is_of_channel && count == 1 {
            self.table(&before, None);
            return self.unless_empty(&before);
        }
        for number in 0..count {
            self.channel_of(&before)?;
            tokio::time::sleep(interval).await;
            let look = self.look().await?;
            match is_of_channel {
                true => self.line(number, &look, &before)?,
                false => self.table(&look, Some(&before)),
            }
            before = look;
        }
        Ok(())
    }

    fn unless_empty(&self, look: &StatsSample) -> Result<(), String> {
        match &self.topic {
            Some(topic) if !look.topics.contains_key(topic) => {
                Err(format!("there is no topic {topic}: `ringmq topic list` shows the topics"))
            }
            _ => Ok(()),
        }
    }

    fn channel_of<'a>(&self, look: &'a StatsSample) -> Result<Option<&'a Counts>, String> {
        let (Some(topic), Some(channel)) = (&self.topic, &self.channel) else { return self.unless_empty(look).map(|()| None) };
        let found = look.topics.get(topic).and_then(|topic| topic.channels.get(channel));
        found
            .map(Some)
            .ok_or_else(|| format!("topic {topic} has no channel {channel}: `ringmq channel list {topic}` shows its channels"))
    }

    /// Prints the interval's numbers in nsq_stat's columns.
    fn line(&self, number: u64, look: &StatsSample, before: &StatsSample) -> Result<(), String> {
        let (Some(now), Some(then)) = (self.channel_of(look)?, self.channel_of(before)?) else { return Ok(()) };
        let seconds = look.at.duration_since(before.at).as_secs_f64();
        let (came, went) = rates(now, Some(then), seconds);
        if self.json {
            let json = serde_json::json!({ "topic": self.topic, "channel": self.channel, "ingress": came, "egress": went, "counts": now });
            crate::print(&format!("{json}\n"));
            return Ok(());
        }
        let mut text = String::new();
        if number.is_multiple_of(HEAD_EVERY) {
            text += "------rate------+----------------depth----------------+--------------metadata---------------\n";
            text += &format!(
                "{:>7} {:>7} | {:>7} {:>7} {:>7} {:>5} {:>5} | ",
                "ingress", "egress", "total", "mem", "disk", "inflt", "def"
            );
            text += &format!("{:>7} {:>7} {:>12} {:>7}\n", "req", "t-o", "msgs", "clients");
        }
        let (memory, disk) = (now.memory_depth(), now.backend_depth);
        text += &format!("{:7} {:7} | {:7} {memory:7} {disk:7} ", came as u64, went as u64, now.depth);
        text += &format!("{:5} {:5} | {:7} {:7} ", now.in_flight, now.deferred, now.requeued, now.timed_out);
        text += &format!("{:12} {:7}\n", now.messages, now.clients);
        crate::print(&text);
        Ok(())
    }

    fn table(&self, look: &StatsSample, before: Option<&StatsSample>) {
        if self.json {
            let seconds = before.map(|before| look.at.duration_since(before.at).as_secs_f64());
            crate::print(&format!("{}\n", serde_json::json!({ "seconds": seconds, "topics": look.topics })));
            return;
        }
        let mut table = Table::new(&[
            "topic",
            "channel",
            "depth",
            "in flight",
            "deferred",
            "requeued",
            "timed out",
            "in/s",
            "out/s",
            "clients",
            "",
        ]);
        let seconds = before.map_or(0.0, |before| look.at.duration_since(before.at).as_secs_f64());
        for (name, topic) in &look.topics {
            let was = before.and_then(|before| before.topics.get(name));
            row(&mut table, name, "", &topic.counts, was.map(|was| &was.counts), seconds);
            for (channel, counts) in &topic.channels {
                row(&mut table, "", channel, counts, was.and_then(|was| was.channels.get(channel)), seconds);
            }
        }
        let text = table.text(&[2, 3, 4, 5, 6, 7, 8, 9]);
        match (std::io::stdout().is_terminal(), text.split_once('\n')) {
            (true, Some((head, rest))) => crate::print(&format!("\x1b[1m{head}\x1b[0m\n{rest}")),
            _ => crate::print(&text),
        }
    }
}

fn row(table: &mut Table, topic: &str, channel: &str, now: &Counts, before: Option<&Counts>, seconds: f64) {
    let (came, went) = rates(now, before, seconds);
    let rate = |rate: f64| if before.is_some() { short(rate) } else { String::new() };
    let of_channel = |n: u64| if channel.is_empty() { String::new() } else { n.to_string() };
    let [flight, deferred, requeued, late, clients] =
        [now.in_flight, now.deferred, now.requeued, now.timed_out, now.clients].map(of_channel);
    let out = if channel.is_empty() { String::new() } else { rate(went) };
    let paused = if now.is_paused { "paused" } else { "" };
    let cells =
        [topic, channel, &now.depth.to_string(), &flight, &deferred, &requeued, &late, &rate(came), &out, &clients, paused];
    table.row(&cells);
}
