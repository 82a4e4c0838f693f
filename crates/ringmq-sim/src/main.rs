//! `ringmq-sim`: runs seeds of the cluster simulator, in processes of their own, so that a failure ends one seed and not the
//! rest; makes a failing seed smaller, and shows one step by step.

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use ringmq_core::sim::cluster::coverage::{Coverage, Transition};
use ringmq_core::sim::cluster::plan::{Coordination, FIELDS, Plan};
use ringmq_core::sim::cluster::run;
use ringmq_core::sim::cluster::shrink::{ReducedPlan, shrink};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Seeds of one process.
const CHUNK: u64 = 10;
const PROGRESS: Duration = Duration::from_secs(10);
/// A seed that takes longer does not end: it takes a second or two. The machine may be busy with other things.
const SEED_MAX: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    end_quietly_when_the_pipe_closes();
    sim(&command().get_matches())
}

/// Gives SIGPIPE its default action, which Rust's runtime takes away: `ringmq-sim --trace=17 | head` ends without a word, as other
/// Unix tools do.
fn end_quietly_when_the_pipe_closes() {
    // SAFETY: no other thread runs yet, and SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

fn command() -> Command {
    let number = |name: &'static str, what: &'static str| {
        Arg::new(name).long(name).value_name("number").value_parser(value_parser!(u64)).help(what)
    };
    Command::new("ringmq-sim")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Run a simulated cluster of the real code under faults, seed by seed, and check what it promises")
        .long_about(
            "Run a simulated cluster of the real code under faults, seed by seed, and check what it promises (docs/promise.md). \
             One seed decides everything: nodes, clients, network, disks, clocks, metadata store and faults. It touches no file \
             and no socket. A seed that fails is made smaller (fewer faults, less time, fewer clients) and printed with the \
             command that shows it.",
        )
        .arg(number("seeds", "How many seeds to run [default: 100]"))
        .arg(number("start", "The first one [default: 0]"))
        .arg(number("jobs", "How many at a time [default: the CPUs]"))
        .arg(number("trace", "Run this seed alone and print what happens, step by step"))
        .arg(number("nodes", "Nodes of each cluster, 1 to 5 [default: as each seed draws]"))
        .arg(number("span-ms", "How long faults come, in simulated milliseconds [default: as each seed draws]"))
        .arg(number("clients", "Clients at a time [default: as each seed draws]"))
        .arg(Arg::new("by").long("by").value_parser(["store", "etcd", "file", "alone"]).help(
            "Source of leaders and replicas: a test double of a store, the real agents over an etcd in memory, static files, or \
                     none, for one node alone [default: store or file, as each seed draws]",
        ))
        .arg(
            Arg::new("without")
                .long("without")
                .value_name("fault,fault")
                .value_delimiter(',')
                .help("Faults that are left out, as the plan names them"),
        )
        .arg(
            Arg::new("having")
                .long("having")
                .value_name("fault,fault")
                .value_delimiter(',')
                .help("Only the seeds that drew one of these faults"),
        )
        .arg(Arg::new("keep-going").long("keep-going").action(ArgAction::SetTrue).help("Do not make failing seeds smaller"))
        .arg(Arg::new("worker").long("worker").action(ArgAction::SetTrue).hide(true))
        .after_help("Exit codes: 0 every seed passed, 1 one failed, 2 a wrong call.")
}

/// Options of the command line that change a seed's plan.
#[derive(Clone, Default)]
struct SeedOptions {
    nodes: usize,
    by: Option<Coordination>,
    without: Vec<String>,
    having: Vec<String>,
    span_ms: Option<u64>,
    clients: Option<usize>,
}

impl SeedOptions {
    fn parse(matches: &ArgMatches) -> Result<SeedOptions, String> {
        let number = |name| matches.get_one::<u64>(name).copied();
        let by = matches.get_one::<String>("by").map(|by| match by.as_str() {
            "store" => Coordination::Store,
            "etcd" => Coordination::Etcd,
            "file" => Coordination::File,
            _ => Coordination::Alone,
        });
        let faults = |name| -> Vec<String> { matches.get_many::<String>(name).into_iter().flatten().cloned().collect() };
        let asked = SeedOptions {
            nodes: number("nodes").unwrap_or(0) as usize,
            by,
            without: faults("without"),
            having: faults("having"),
            span_ms: number("span-ms"),
            clients: number("clients").map(|n| n as usize),
        };
        if asked.nodes > 5 {
            return Err("a cluster has 1 to 5 nodes".into());
        }
        asked.plan(0)?;
        match asked.having.iter().find(|name| !FIELDS.iter().any(|f| f.0 == **name)) {
            Some(name) => Err(format!("there is no fault {name}")),
            None => Ok(asked),
        }
    }

    fn plan(&self, seed: u64) -> Result<Plan, String> {
        let mut plan = Plan::draw(seed, self.nodes, self.by);
        let cut = ReducedPlan {
            without: self.without.clone(),
            span_ms: self.span_ms.unwrap_or(plan.span_ms),
            clients: self.clients.unwrap_or(plan.clients),
        };
        cut.apply(&mut plan).map_err(|name| format!("there is no fault {name}"))?;
        Ok(plan)
    }

    fn has_it(&self, plan: &Plan) -> bool {
        self.having.is_empty() || plan.faults.names().iter().any(|name| self.having.iter().any(|h| h == name))
    }

    /// The same, smaller.
    fn cut(&self, cut: &ReducedPlan) -> SeedOptions {
        let mut without = self.without.clone();
        without.extend(cut.without.iter().cloned());
        SeedOptions { without, having: vec![], span_ms: Some(cut.span_ms), clients: Some(cut.clients), ..self.clone() }
    }

    fn args(&self) -> Vec<String> {
        let mut args = vec![];
        let mut give = |name: &str, value: String| args.push(format!("--{name}={value}"));
        if self.nodes > 0 {
            give("nodes", self.nodes.to_string());
        }
        if let Some(by) = self.by {
            give("by", format!("{by:?}").to_lowercase());
        }
        if !self.without.is_empty() {
            give("without", self.without.join(","));
        }
        if !self.having.is_empty() {
            give("having", self.having.join(","));
        }
        if let Some(span) = self.span_ms {
            give("span-ms", span.to_string());
        }
        if let Some(clients) = self.clients {
            give("clients", clients.to_string());
        }
        args
    }
}

fn sim(matches: &ArgMatches) -> ExitCode {
    let asked = match SeedOptions::parse(matches) {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("ringmq-sim: {error}");
            return ExitCode::from(2);
        }
    };
    let number = |name| matches.get_one::<u64>(name).copied();
    let (start, seeds) = (number("start").unwrap_or(0), number("seeds").unwrap_or(100));
    if let Some(seed) = number("trace") {
        return show(&asked, seed);
    }
    if matches.get_flag("worker") {
        return work(&asked, start, seeds);
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let jobs = number("jobs").unwrap_or(cpus).max(1);
    sweep(&asked, start..start.saturating_add(seeds), jobs, !matches.get_flag("keep-going"))
}

fn show(asked: &SeedOptions, seed: u64) -> ExitCode {
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false).without_time();
    log.with_writer(std::io::stdout).init();
    let plan = asked.plan(seed).expect("it was tried");
    exit_with_1_at_a_panic(seed);
    let outcome = run(&plan, Some(Box::new(|line| println!("{line}"))));
    println!("seed {seed} passed: {outcome:#?}");
    ExitCode::SUCCESS
}

/// A check that fails panics; by itself that ends the process by a signal in a release, and with 101 otherwise.
fn exit_with_1_at_a_panic(seed: u64) {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        println!("seed {seed} failed");
        std::process::exit(1);
    }));
}

/// Runs seeds one after the other, and says so; the first that fails ends the process.
fn work(asked: &SeedOptions, start: u64, seeds: u64) -> ExitCode {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        std::process::exit(1);
    });
    let coverage = Coverage::default();
    let _listens = tracing::subscriber::set_default(coverage.clone());
    for seed in start..start + seeds {
        println!("begin {seed}");
        let plan = asked.plan(seed).expect("it was tried");
        if !asked.has_it(&plan) {
            continue;
        }
        let outcome = run(&plan, None);
        coverage.take().into_iter().for_each(|(from, trigger)| println!("made {seed} {from} {trigger}"));
        println!("done {seed} {} {} {:016x}", outcome.counts.acknowledged, outcome.effects, outcome.trace);
    }
    ExitCode::SUCCESS
}

/// Message of a process that runs seeds.
enum WorkerReport {
    Done {
        acknowledged: u64,
        effects: u64,
    },
    Failed {
        seed: u64,
        why: String,
    },
    /// A seed that failed, with less of everything; and how many runs that took.
    Smaller {
        seed: u64,
        asked: SeedOptions,
        runs: u32,
    },
    /// A transition of a replica.
    Made(Transition),
    /// The process takes no more seeds.
    Over,
}

fn sweep(asked: &SeedOptions, seeds: std::ops::Range<u64>, jobs: u64, shrinks: bool) -> ExitCode {
    let (tell, hear) = channel();
    let begun = Instant::now();
    let all = seeds.end - seeds.start;
    for job in 0..jobs {
        let (tell, asked, seeds) = (tell.clone(), asked.clone(), seeds.clone());
        std::thread::spawn(move || {
            let mut at = seeds.start + job * CHUNK;
            while at < seeds.end {
                for (seed, why) in run_chunk(&asked, at..seeds.end.min(at + CHUNK), SEED_MAX, &tell) {
                    if shrinks {
                        let (asked, runs) = made_smaller(&asked, seed, &why);
                        let _ = tell.send(WorkerReport::Smaller { seed, asked, runs });
                    }
                }
                at += jobs * CHUNK;
            }
            let _ = tell.send(WorkerReport::Over);
        });
    }
    drop(tell);
    let (mut done, mut acknowledged, mut effects, mut over) = (0, 0, 0, 0);
    let (mut failed, coverage) = (BTreeMap::new(), Coverage::default());
    let mut spoke = begun;
    while over < jobs {
        match hear.recv_timeout(Duration::from_secs(1)) {
            Ok(WorkerReport::Done { acknowledged: a, effects: e }) => {
                (done, acknowledged, effects) = (done + 1, acknowledged + a, effects + e)
            }
            Ok(WorkerReport::Failed { seed, why }) => {
                done += 1;
                println!("seed {seed} failed: {why}{}", if shrinks { "; it is made smaller" } else { "" });
                failed.insert(seed, (why, asked.clone()));
            }
            Ok(WorkerReport::Smaller { seed, asked, runs }) => {
                println!("seed {seed} was made smaller in {runs} runs: {}", trace_command(seed, &asked));
                failed.entry(seed).and_modify(|(_, smaller)| *smaller = asked);
            }
            Ok(WorkerReport::Made(transition)) => coverage.add(transition),
            Ok(WorkerReport::Over) => over += 1,
            Err(RecvTimeoutError::Timeout) => {}
            // a thread of ours went down
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if spoke.elapsed() > PROGRESS {
            spoke = Instant::now();
            let rate = done as f64 / begun.elapsed().as_secs_f64();
            println!("{done} of {all} seeds, {rate:.2} seeds/s, {} failed", failed.len());
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{done} seeds in {seconds:.1} s ({:.2} seeds/s), {acknowledged} publishes acknowledged, {effects} effects, {} failed",
        done as f64 / seconds,
        failed.len()
    );
    println!("{}", coverage.text());
    for (seed, (why, asked)) in &failed {
        println!("seed {seed}: {why}\n  {}", trace_command(*seed, asked));
    }
    if failed.is_empty() && over == jobs { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn trace_command(seed: u64, asked: &SeedOptions) -> String {
    format!("cargo run --release -p ringmq-sim -- --trace={seed} {}", asked.args().join(" ")).trim_end().to_owned()
}

fn start(asked: &SeedOptions, start: u64, seeds: u64) -> std::io::Result<Child> {
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg("--worker").arg(format!("--start={start}")).arg(format!("--seeds={seeds}")).args(asked.args());
    // a worker ends with the process that started it
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Runs seeds in a process; after each seed that fails, in another one. Returns the seeds that failed, with the reason.
fn run_chunk(
    asked: &SeedOptions,
    seeds: std::ops::Range<u64>,
    limit: Duration,
    tell: &Sender<WorkerReport>,
) -> Vec<(u64, String)> {
    let mut failed = vec![];
    let mut at = seeds.start;
    while at < seeds.end {
        let ended = match start(asked, at, seeds.end - at) {
            Ok(child) => follow(child, at, limit, tell),
            Err(error) => {
                let _ = tell.send(WorkerReport::Failed { seed: at, why: format!("no process could be started: {error}") });
                break;
            }
        };
        let Err((seed, why)) = ended else { break };
        let _ = tell.send(WorkerReport::Failed { seed, why: why.clone() });
        failed.push((seed, why));
        at = seed + 1;
    }
    failed
}

/// Reads a worker's lines until it ends. The error has the seed that it began last, and the reason of its failure.
fn follow(mut child: Child, first: u64, limit: Duration, tell: &Sender<WorkerReport>) -> Result<(), (u64, String)> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    // both pipes are emptied at the same time, so that neither fills
    let complaint = std::thread::spawn(move || {
        let mut text = vec![];
        let _ = err.map(|mut err| err.read_to_end(&mut text));
        String::from_utf8_lossy(&text).into_owned()
    });
    let (say, lines) = channel();
    let reader = std::thread::spawn(move || {
        for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok) {
            let _ = say.send(line);
        }
    });
    let (mut begun, mut is_over) = (first, false);
    while !is_over {
        match lines.recv_timeout(limit) {
            Ok(line) => begun = heard(&line, tell).unwrap_or(begun),
            Err(RecvTimeoutError::Disconnected) => is_over = true,
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    if !is_over {
        let _ = child.kill();
    }
    let is_well = child.wait().is_ok_and(|status| status.success());
    let _ = reader.join();
    let text = complaint.join().unwrap_or_default();
    match (is_over, is_well) {
        (true, true) => Ok(()),
        (true, false) => Err((begun, reason(&text))),
        (false, _) => Err((begun, format!("no end: it was stopped after {} s", limit.as_secs_f64()))),
    }
}

/// The seed that a worker begins, when it says so.
fn heard(line: &str, tell: &Sender<WorkerReport>) -> Option<u64> {
    let mut words = line.split(' ');
    let (what, seed) = (words.next(), words.next().and_then(|n| n.parse().ok()));
    match (what, seed) {
        (Some("begin"), seed) => return seed,
        (Some("made"), Some(_)) => {
            if let (Some(from), Some(trigger)) = (words.next(), words.next()) {
                let _ = tell.send(WorkerReport::Made((from.to_owned(), trigger.to_owned())));
            }
        }
        (Some("done"), Some(_)) => {
            let mut number = || words.next().and_then(|n| n.parse().ok()).unwrap_or(0);
            let _ = tell.send(WorkerReport::Done { acknowledged: number(), effects: number() });
        }
        _ => {}
    }
    None
}

/// The first line that a panic says, behind where it was.
fn reason(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.contains("panicked at"));
    let place = lines.next().unwrap_or("it ended without a word");
    let what = lines.next().unwrap_or("");
    format!("{what} ({})", place.rsplit("panicked at ").next().unwrap_or(place).trim_end_matches(':'))
}

/// The name of the check, or the place of a panic: it must stay the same when a seed gets smaller.
fn kind(why: &str) -> &str {
    why.split([':', '(']).next().unwrap_or(why)
}

/// And in how many runs.
fn made_smaller(asked: &SeedOptions, seed: u64, why: &str) -> (SeedOptions, u32) {
    let plan = asked.plan(seed).expect("it was tried");
    let mut runs = 0;
    // a run that never ends takes the whole limit each time; a smaller one has to be quicker
    let limit = SEED_MAX / 10;
    let cut = shrink(&plan, &mut |cut| {
        runs += 1;
        let (tell, _hear) = channel();
        let failed = run_chunk(&asked.cut(cut), seed..seed + 1, limit, &tell);
        failed.iter().any(|(_, other)| kind(other) == kind(why))
    });
    (asked.cut(&cut), runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(args: &[&str]) -> Result<SeedOptions, String> {
        SeedOptions::parse(&command().try_get_matches_from([&["sim"], args].concat()).map_err(|e| e.to_string())?)
    }

    #[test]
    fn what_is_asked_goes_on_to_the_workers() {
        let given = ["--nodes=3", "--by=file", "--without=crash,pause", "--having=stop,rot", "--span-ms=500", "--clients=2"];
        let asked = asked(&given).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(asked.args(), given);
        let plan = asked.plan(9).expect("it was tried");
        assert_eq!((plan.nodes, plan.coordination, plan.span_ms, plan.clients), (3, Coordination::File, 500, 2));
        assert!(plan.faults.crash == 0.0 && plan.faults.pause == 0.0);
        let with = |seed: &u64| Plan::draw(*seed, 3, Some(Coordination::File)).faults.stop > 0.0;
        assert!((0..99).all(|seed| asked.has_it(&asked.plan(seed).expect("it was tried")) == with(&seed)), "no rot with files");
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        assert!(asked(&["--without=weather"]).is_err_and(|e| e.contains("weather")));
        assert!(asked(&["--having=weather"]).is_err_and(|e| e.contains("weather")));
        assert!(asked(&["--nodes=9"]).is_err() && asked(&["--by=vote"]).is_err());
    }

    /// The test is its own child, as the hook is one for the whole process.
    #[test]
    fn a_seed_that_is_shown_and_fails_ends_with_1() {
        if std::env::var_os("RINGMQ_SHOWN").is_some() {
            exit_with_1_at_a_panic(17);
            panic!("acked_survives: broken");
        }
        let mut child = std::process::Command::new(std::env::current_exe().expect("it runs"));
        child.args(["--exact", "tests::a_seed_that_is_shown_and_fails_ends_with_1", "--nocapture"]);
        let said = child.env("RINGMQ_SHOWN", "1").output().expect("it starts");
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        assert_eq!(said.status.code(), Some(1), "{out}{err}");
        assert!(out.contains("seed 17 failed") && err.contains("acked_survives: broken"), "{out}{err}");
    }

    #[test]
    fn a_panic_is_told_by_its_check() {
        let text =
            "thread 'main' panicked at crates/ringmq-core/src/sim/x.rs:7:5:\nacked_survives: message 3 is gone\nnote: run with\n";
        let why = reason(text);
        assert_eq!(why, "acked_survives: message 3 is gone (crates/ringmq-core/src/sim/x.rs:7:5)");
        assert_eq!(kind(&why), "acked_survives");
        assert_eq!(reason(""), " (it ended without a word)");
    }

    #[test]
    fn a_seed_that_does_not_end_is_named_and_stopped() {
        let say = |script: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let (tell, hear) = channel();
            let child = command.spawn().expect("there is a shell");
            let ended = follow(child, 3, Duration::from_millis(300), &tell);
            drop(tell);
            let is_known = |said: &WorkerReport| match said {
                WorkerReport::Done { acknowledged: 7, effects: 8 } => true,
                WorkerReport::Made((from, trigger)) => from == "Asking" && trigger == "HeardOther",
                _ => false,
            };
            (ended, hear.iter().filter(is_known).count())
        };
        assert_eq!(say("echo begin 3; echo made 3 Asking HeardOther; echo done 3 7 8 00; echo begin 4"), (Ok(()), 2));
        let (ended, done) = say("echo begin 3; echo done 3 7 8 00; echo begin 4; exec sleep 1000");
        assert!(done == 1 && ended.is_err_and(|(seed, why)| seed == 4 && kind(&why) == "no end"));
        let (ended, _) = say("echo begin 5; echo 'panicked at a.rs:1:2:' >&2; echo 'check: broken' >&2; exit 1");
        assert_eq!(ended, Err((5, "check: broken (a.rs:1:2)".into())));
    }
}
