//! The command line of `ringmq load`: flags, their bounds, and their conflicts.

use super::body::HEAD_LEN;
use super::size::Size;
use crate::base::{ChannelName, PartitionId, TopicName};
use crate::client::{Secure, Tls};
use crate::config::value;
use crate::format::batch::{BATCH_BODY_MAX, MESSAGE_OVERHEAD};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Produce,
    Consume,
    Both,
}

impl Mode {
    pub fn produces(self) -> bool {
        self != Mode::Consume
    }

    pub fn consumes(self) -> bool {
        self != Mode::Produce
    }

    pub fn name(self) -> &'static str {
        match self {
            Mode::Produce => "produce",
            Mode::Consume => "consume",
            Mode::Both => "both",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Nsq,
    Native,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Nsq => "nsq",
            Protocol::Native => "native",
        }
    }

    fn address(self) -> &'static str {
        match self {
            Protocol::Nsq => "127.0.0.1:4150",
            Protocol::Native => "127.0.0.1:4153",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub protocol: Protocol,
    /// Address as it was given.
    pub address: String,
    pub target: SocketAddr,
    /// TLS, native only.
    pub(super) secure: Option<Arc<Secure>>,
    pub mode: Mode,
    pub size: Size,
    pub batch: u32,
    /// Connections that publish, in all.
    pub producers: u32,
    /// Connections that consume, in all.
    pub consumers: u32,
    pub in_flight: u32,
    pub topics: Vec<String>,
    /// Partitions of each new topic; `None`: as the node decides.
    pub partitions: Option<u16>,
    /// Publishers and consumers keep to it.
    pub partition: Option<PartitionId>,
    /// Consumers read in log order.
    pub ordered: bool,
    pub channels: Vec<String>,
    pub rdy: u32,
    pub duration: Duration,
    pub warm_up: Duration,
    pub messages: Option<u64>,
    /// Messages per second over all connections; none: closed loop.
    pub rate: Option<f64>,
    /// The p99 that the ramp keeps below.
    pub ramp: Option<Duration>,
    pub threads: usize,
    pub verify: bool,
    pub drain: Duration,
    pub output_buffer_timeout: Option<Duration>,
    pub server_pid: Option<u32>,
    pub label: String,
    pub quiet: bool,
}

/// Files that are written at the end, and their content.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    pub json: Option<PathBuf>,
    pub hgrm: Option<PathBuf>,
    pub report: Option<PathBuf>,
    /// A result of `ringmq doctor --measure --json`, shown beside the run's.
    pub raw: Option<PathBuf>,
}

/// Runs that were written with `--json`, side by side.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    pub runs: Vec<PathBuf>,
    pub out: PathBuf,
}

#[derive(Debug)]
pub enum Invocation {
    Run(Box<Options>, Outputs),
    Report(ReportOptions),
}

pub fn command() -> Command {
    let flag =
        |name: &'static str, value: &'static str, help: &'static str| Arg::new(name).long(name).value_name(value).help(help);
    let number = |name, help, default: &'static str| flag(name, "number", help).default_value(default);
    let switch = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let path = |name, help| flag(name, "path", help).value_parser(clap::value_parser!(PathBuf));
    let report = Command::new("report")
        .about("Write one HTML page that shows several runs, as --json wrote them, side by side")
        .arg(Arg::new("runs").required(true).num_args(1..).value_name("JSON file").value_parser(clap::value_parser!(PathBuf)))
        .arg(path("out", "The page").required(true));
    Command::new("load")
        .about("Measure a node or an nsqd, or verify that it loses nothing")
        .subcommand(report)
        .args_conflicts_with_subcommands(true)
        .next_help_heading("Load")
        .arg(flag("address", "host:port", "The node [default: 127.0.0.1:4150; with --protocol=native 127.0.0.1:4153]"))
        .arg(flag("protocol", "name", "Protocol").value_parser(["nsq", "native"]).default_value("nsq"))
        .arg(flag("mode", "name", "Work of the run").value_parser(["produce", "consume", "both"]).default_value("produce"))
        .arg(
            flag("size", "bytes", "Body of a message: fixed (100, 4KiB), uniform (100-4KiB) or exponential (exp:1KiB)")
                .default_value("100"),
        )
        .arg(number("batch", "Messages of a publish: 1 is PUB, more are MPUB or, native, a batch", "1"))
        .arg(number("connections", "Connections that publish or, in mode consume, consume", "1"))
        .arg(flag(
            "consumers",
            "number",
            "Connections that consume [default: --connections, and at least one per topic and channel]",
        ))
        .arg(number("in-flight", "Publishes that a connection sends before the first is answered", "1"))
        .arg(flag("topic", "name", "The topic; with --topics the name before the number").default_value("load"))
        .arg(number("topics", "Topics; each connection publishes to its share of them", "1"))
        .arg(flag("partitions", "number", "Partitions of a topic that is made; native [default: as the node decides]"))
        .arg(flag("partition", "number", "Publish to and consume only this partition of each topic [default: all, in turn]"))
        .arg(switch("ordered", "Consume in log order: SUB_ORDERED, or native; one message at a time from each partition"))
        .arg(flag("channel", "name", "The channel; with --channels the name before the number").default_value("load"))
        .arg(number("channels", "Channels of each topic", "1"))
        .arg(number("rdy", "Messages that each consumer may have unconfirmed: RDY, or native credit", "2500"))
        .arg(flag(
            "output-buffer-timeout",
            "duration",
            "How long the server may hold deliveries back; nsq [default: as the server decides]",
        ))
        .arg(flag("tls-ca", "PEM file", "Speak TLS, native, with a node whose certificate a CA in this file has signed"))
        .arg(flag("tls-cert", "PEM file", "Certificate to show to a node that asks for one").requires("tls-ca"))
        .arg(flag("tls-key", "PEM file", "Private key of --tls-cert").requires("tls-cert"))
        .arg(flag("tls-name", "name", "Name in the node's certificate [default: the host of --address]").requires("tls-ca"))
        .next_help_heading("Course")
        .arg(flag("duration", "duration", "Time of the measurement; with --ramp, of each step").default_value("10s"))
        .arg(flag("warm-up", "duration", "Load before the measurement [default: 1s; with --messages 0]"))
        .arg(flag("messages", "number", "Stop after this many messages, at the latest after --duration"))
        .arg(flag(
            "rate",
            "messages/s",
            "Open loop: send at this rate, latency counts from the intended time; --ramp begins with it",
        ))
        .arg(switch("ramp", "Find the highest rate that keeps p99 below --p99 (of delivery in mode both, else of publishing)"))
        .arg(flag("p99", "duration", "The limit of --ramp"))
        .arg(switch("verify", "Exit with 1 unless every acknowledged message is consumed, intact; mode both"))
        .arg(flag("drain", "duration", "Longest wait at the end for answers and deliveries").default_value("10s"))
        .arg(number("threads", "Threads of the load generator", "1"))
        .next_help_heading("Output")
        .arg(flag("server-pid", "pid", "Measure CPU time and memory of this process too"))
        .arg(flag("label", "text", "Name of the run in reports [default: the mode and address]"))
        .arg(path("json", "File for the results"))
        .arg(path("hgrm", "File for the latencies, for HdrHistogram's plotters; mode both: publishing in <path>.publish"))
        .arg(path("report", "HTML page for the results"))
        .arg(path(
            "raw",
            "Show the figures beside those of the raw disk, from a file that ringmq doctor --measure --json has written",
        ))
        .arg(switch("quiet", "Print no line each second"))
        .after_help("Exit codes: 0 done, 1 the run failed, lost messages, or had errors and nothing else, 2 a wrong flag.")
}

pub fn parse(matches: &ArgMatches) -> Result<Invocation, String> {
    if let Some(("report", matches)) = matches.subcommand() {
        let runs = matches.get_many::<PathBuf>("runs").into_iter().flatten().cloned().collect();
        let out = matches.get_one::<PathBuf>("out").cloned().ok_or("--out is missing")?;
        return Ok(Invocation::Report(ReportOptions { runs, out }));
    }
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    let outputs = Outputs { json: path("json"), hgrm: path("hgrm"), report: path("report"), raw: path("raw") };
    Ok(Invocation::Run(Box::new(options(&Flags(matches))?), outputs))
}

struct Flags<'a>(&'a ArgMatches);

impl Flags<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get_one::<String>(name).map(String::as_str)
    }

    fn parsed<T>(&self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, String> {
        self.text(name).map(|text| parse(text).map_err(|why| format!("--{name}={text}: {why}"))).transpose()
    }

    fn whole<T: FromStr + PartialOrd + std::fmt::Display>(&self, name: &str, min: T, max: T) -> Result<Option<T>, String> {
        let wanted = || format!("a whole number between {min} and {max} is expected");
        self.parsed(name, |text| text.parse().ok().filter(|n| (&min..=&max).contains(&n)).ok_or_else(wanted))
    }

    /// Value of an option that has a default, so is always present.
    fn count(&self, name: &str, max: u32) -> Result<u32, String> {
        Ok(self.whole(name, 1, max)?.unwrap_or(1))
    }

    fn duration(&self, name: &str) -> Result<Option<Duration>, String> {
        self.parsed(name, |text| {
            let ns = value::parse_duration_ns(text)?;
            let limit = 24 * 3600 * 1_000_000_000u128;
            if ns > limit { Err("at most 24h".into()) } else { Ok(Duration::from_nanos(ns as u64)) }
        })
    }

    fn positive_duration(&self, name: &str) -> Result<Option<Duration>, String> {
        match self.duration(name)? {
            Some(Duration::ZERO) => Err(format!("--{name}=0: the time must be longer")),
            other => Ok(other),
        }
    }

    /// The name, or the name with a number behind it.
    fn names(&self, name: &str, count: u32, check: impl Fn(&str) -> Result<(), String>) -> Result<Vec<String>, String> {
        let base = self.text(name).unwrap_or_default();
        let all: Vec<String> = if count == 1 { vec![base.into()] } else { (0..count).map(|i| format!("{base}-{i}")).collect() };
        all.iter().try_for_each(|full| check(full).map_err(|why| format!("--{name}={base}: {full}: {why}")))?;
        Ok(all)
    }
}

fn options(flags: &Flags<'_>) -> Result<Options, String> {
    let mode = match flags.text("mode") {
        Some("consume") => Mode::Consume,
        Some("both") => Mode::Both,
        _ => Mode::Produce,
    };
    let protocol = if flags.text("protocol") == Some("native") { Protocol::Native } else { Protocol::Nsq };
    let topics = flags.count("topics", 100_000)?;
    let channels = flags.count("channels", 1_000)?;
    let producers = flags.count("connections", 100_000)?;
    let pairs = topics as u64 * channels as u64;
    let messages = flags.whole("messages", 1, 1u64 << 40)?;
    let rate = flags.parsed("rate", |text| match text.parse::<f64>() {
        Ok(rate) if (0.01..=1e9).contains(&rate) => Ok(rate),
        _ => Err("a number of messages per second between 0.01 and 1000000000 is expected".to_string()),
    })?;
    let limit = flags.positive_duration("p99")?;
    let ramp = match (flags.0.get_flag("ramp"), limit) {
        (true, None) => return Err("--ramp needs the limit of the latency, such as --p99=10ms".into()),
        (false, Some(_)) => return Err("--p99 is the limit of --ramp, which is not given".into()),
        (_, limit) => limit,
    };
    let address = flags.text("address").unwrap_or(protocol.address()).to_string();
    let options = Options {
        protocol,
        target: resolve(&address)?,
        label: flags.text("label").map_or_else(|| format!("{} {address}", mode.name()), String::from),
        secure: secure(flags)?,
        address,
        mode,
        size: flags.parsed("size", Size::from_str)?.unwrap_or(Size::Fixed(100)),
        batch: flags.count("batch", 1_000_000)?,
        producers,
        consumers: flags.whole("consumers", 1, 100_000)?.unwrap_or((producers as u64).max(pairs).min(100_000) as u32),
        in_flight: flags.count("in-flight", 1_000_000)?,
        topics: flags.names("topic", topics, |name| TopicName::new(name).map(|_| ()).map_err(|e| e.to_string()))?,
        partitions: flags.whole("partitions", 1, PartitionId::COUNT_MAX)?,
        partition: flags.whole("partition", 0, PartitionId::COUNT_MAX - 1)?.map(PartitionId),
        ordered: flags.0.get_flag("ordered"),
        channels: flags.names("channel", channels, |name| ChannelName::new(name).map(|_| ()).map_err(|e| e.to_string()))?,
        rdy: flags.count("rdy", 1_000_000)?,
        duration: flags.positive_duration("duration")?.unwrap_or(Duration::from_secs(10)),
        warm_up: flags.duration("warm-up")?.unwrap_or(Duration::from_secs(messages.is_none().into())),
        messages,
        rate,
        ramp,
        threads: flags.count("threads", 256)? as usize,
        verify: flags.0.get_flag("verify"),
        drain: flags.duration("drain")?.unwrap_or(Duration::from_secs(10)),
        output_buffer_timeout: flags.positive_duration("output-buffer-timeout")?,
        server_pid: flags.whole("server-pid", 1, i32::MAX as u32)?,
        quiet: flags.0.get_flag("quiet"),
    };
    check(&options, pairs)?;
    Ok(options)
}

fn secure(flags: &Flags<'_>) -> Result<Option<Arc<Secure>>, String> {
    let Some(ca) = flags.text("tls-ca") else { return Ok(None) };
    let mut tls = Tls::with_ca(ca);
    match (flags.text("tls-cert"), flags.text("tls-key")) {
        (Some(certificate), Some(key)) => tls = tls.identity(certificate, key),
        (Some(_), None) => return Err("--tls-cert needs --tls-key, the private key of that certificate".into()),
        _ => {}
    }
    if let Some(name) = flags.text("tls-name") {
        tls = tls.server_name(name);
    }
    tls.load().map(|secure| Some(Arc::new(secure))).map_err(|e| format!("TLS: {e}"))
}

fn resolve(address: &str) -> Result<SocketAddr, String> {
    let found = address.to_socket_addrs().map_err(|e| format!("--address={address}: {e}; host:port is expected"))?;
    found.into_iter().next().ok_or_else(|| format!("--address={address}: no such host"))
}

/// Checks options against each other.
fn check(options: &Options, pairs: u64) -> Result<(), String> {
    let no = |wrong: bool, why: &str| if wrong { Err(why.to_string()) } else { Ok(()) };
    let consume = options.mode == Mode::Consume;
    let native = options.protocol == Protocol::Native;
    no(options.partitions.is_some() && !native, "--partitions needs --protocol=native: the NSQ protocol cannot ask for them")?;
    no(
        options.output_buffer_timeout.is_some() && native,
        "--output-buffer-timeout belongs to the NSQ protocol: the native protocol holds no deliveries back",
    )?;
    no(options.secure.is_some() && !native, "--tls-ca needs --protocol=native: the load generator speaks no TLS with nsqd")?;
    no(
        native && options.mode.produces() && options.batch as usize * (MESSAGE_OVERHEAD + options.size.max()) > BATCH_BODY_MAX,
        &format!("--batch times --size is more than {BATCH_BODY_MAX} bytes, the most that a native batch has"),
    )?;
    no(
        !native && options.mode.produces() && options.batch as usize * (4 + options.size.max()) > i32::MAX as usize - 8,
        "--batch times --size is more than 2 GiB, the most that an MPUB can announce",
    )?;
    no(options.ordered && !options.mode.consumes(), "--ordered is for consuming: --mode=consume or both")?;
    no(consume && options.rate.is_some(), "--rate is for publishing: give --mode=publish or both")?;
    no(consume && options.ramp.is_some(), "--ramp is for publishing: give --mode=publish or both")?;
    no(
        options.verify && options.mode != Mode::Both,
        "--verify compares acknowledged messages with delivered ones: it needs --mode=both",
    )?;
    no(options.verify && options.ramp.is_some(), "--verify and --ramp do not go together: verify at the rate that was found")?;
    no(
        options.messages.is_some() && options.ramp.is_some(),
        "--messages and --ramp do not go together: a step has a --duration",
    )?;
    no(options.messages.is_some_and(|n| n < options.batch as u64), "--messages is less than one --batch")?;
    no(
        options.messages.is_some() && !options.warm_up.is_zero(),
        "--messages counts from the beginning: it needs --warm-up=0, its default",
    )?;
    no(
        options.mode == Mode::Both && matches!(options.size, Size::Fixed(n) if n < HEAD_LEN),
        &format!("--size: mode both needs at least {HEAD_LEN} bytes, which say when the message was sent"),
    )?;
    no(
        options.mode.consumes() && (options.consumers as u64) < pairs,
        &format!("--consumers={}: {pairs} are needed, one for each topic and channel", options.consumers),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Invocation, String> {
        let all = std::iter::once("load").chain(args.iter().copied());
        command().try_get_matches_from(all).map_err(|e| e.to_string()).and_then(|matches| parse(&matches))
    }

    #[test]
    fn flags_are_read() {
        command().debug_assert();
        let Ok(Invocation::Run(options, _)) =
            parsed(&["--mode=both", "--size=exp:1KiB", "--topics=3", "--channels=2", "--rate=5e3"])
        else {
            panic!("it is valid")
        };
        assert_eq!((options.topics.len(), options.channels[1].as_str(), options.consumers), (3, "load-1", 6));
        assert_eq!((options.rate, options.warm_up), (Some(5000.0), Duration::from_secs(1)));
        assert_eq!((options.protocol, options.address.as_str(), options.partitions), (Protocol::Nsq, "127.0.0.1:4150", None));
        let Ok(Invocation::Run(options, _)) = parsed(&["--protocol=native", "--partitions=3"]) else { panic!("it is valid") };
        assert_eq!(
            (options.protocol, options.address.as_str(), options.partitions),
            (Protocol::Native, "127.0.0.1:4153", Some(3))
        );
        let Ok(Invocation::Run(options, _)) = parsed(&["--mode=consume", "--partition=2", "--ordered"]) else {
            panic!("it is valid")
        };
        assert_eq!((options.partition, options.ordered), (Some(PartitionId(2)), true));
        let Ok(Invocation::Report(report)) = parsed(&["report", "a", "b", "--out", "c"]) else { panic!("it is valid") };
        assert_eq!(report.runs.len(), 2);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_flag_in_the_text() {
        for (args, says) in [
            (&["--protocol=http"][..], "possible values: nsq, native"),
            (&["--partitions=2"], "--partitions needs --protocol=native"),
            (&["--protocol=native", "--partitions=0"], "--partitions=0"),
            (&["--partition=1024"], "--partition=1024"),
            (&["--ordered"], "--mode=consume"),
            (&["--protocol=native", "--output-buffer-timeout=1ms"], "--output-buffer-timeout"),
            (&["--protocol=native", "--batch=100000", "--size=1KiB"], "--batch times --size"),
            (&["--tls-cert=a"], "--tls-ca"),
            (&["--tls-key=a", "--tls-ca=b"], "--tls-cert"),
            (&["--protocol=native", "--tls-ca=/no/such/file"], "/no/such/file: cannot be read"),
            (&["--batch=1000000", "--size=4KiB"], "--batch times --size"),
            (&["--mode=x"], "possible values"),
            (&["--size=0"], "--size=0"),
            (&["--batch=0"], "--batch=0: a whole number between 1"),
            (&["--rate=fast"], "--rate=fast"),
            (&["--rate=1", "--mode=consume"], "--rate"),
            (&["--ramp"], "--p99"),
            (&["--p99=1ms"], "--ramp"),
            (&["--verify"], "--mode=both"),
            (&["--mode=both", "--verify", "--ramp", "--p99=1s"], "--verify and --ramp"),
            (&["--mode=both", "--size=31"], "32 bytes"),
            (&["--mode=both", "--topics=2", "--consumers=1"], "--consumers=1"),
            (&["--messages=10", "--batch=20"], "--batch"),
            (&["--messages=10", "--warm-up=1s"], "--warm-up"),
            (&["--duration=10"], "--duration=10: the unit is missing"),
            (&["--duration=0"], "--duration=0"),
            (&["--topic=a b"], "--topic=a b"),
            (&["--address=nowhere"], "--address=nowhere"),
            (&["report", "a"], "--out"),
            (&["--what"], "--what"),
        ] {
            let error = parsed(args).expect_err(says);
            assert!(error.contains(says), "{args:?}: {error}");
        }
    }
}
