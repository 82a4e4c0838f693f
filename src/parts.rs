//! Adapters between the binary and the modules that do the work.

use ringmq::config::Settings;
use ringmq::http::{HttpServer, HttpWake, Listeners, LogLevel, NodeHandles};
use ringmq::inspect::{InspectError, Verdict};
use ringmq::net::Reserved;
use ringmq::operator::ask::Asker;
use ringmq::runtime::{Front, FrontStart, StopHandle, recover_shards, run_node as run};
use ringmq::{doctor as checks, runtime::NodeError};
use ringmq_tools::import::{ImportError, startup, summary::Summary};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Time in which a killed nsqlookupd lets go of its addresses.
const LOOKUPD_ADDRESS_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(
        "the backlog that an nsqd left in {data_path} is not imported: {source}. The node does not start without it, unless \
         --import-nsqd=false leaves it in nsqd's files"
    )]
    Import { data_path: String, source: ImportError },
    #[error(
        "an nsqd left its files in {data_path}, and a node of a cluster does not import them by itself: start it with \
         --import-nsqd=false, then run `ringmq import {data_path}` with the addresses of the node that leads the topics"
    )]
    ImportInCluster { data_path: String },
}

/// Runs until SIGTERM or SIGINT; `reread` is called on SIGHUP.
pub fn run_node(settings: Settings, log_level: Box<dyn LogLevel>, mut reread: impl FnMut()) -> Result<(), StartError> {
    let settings = Arc::new(settings);
    let stop = StopHandle::new();
    stop.on_signals_of_a_node().map_err(NodeError::Signals)?;
    import_from_nsqd(&settings, &stop)?;
    if stop.is_requested() {
        return Ok(());
    }
    let reread_with_checks = || {
        reread();
        checks::tls_files(&settings).iter().for_each(log);
    };
    Ok(run(settings.clone(), stop, front(settings.clone(), log_level), examine, recover_shards, reread_with_checks)?)
}

/// Imports the backlog that an nsqd left in the data path, once. A stop meanwhile is no error: the next startup goes on.
fn import_from_nsqd(settings: &Settings, stop: &StopHandle) -> Result<(), StartError> {
    let data_path = Path::new(&settings.data_path);
    let failed = |source| StartError::Import { data_path: settings.data_path.clone(), source };
    if !settings.import_nsqd || !startup::is_pending(data_path).map_err(failed)? {
        return Ok(());
    }
    if settings.is_clustered() {
        return Err(StartError::ImportInCluster { data_path: settings.data_path.clone() });
    }
    tracing::info!(data_path = settings.data_path, "importing nsqd's backlog before the node serves");
    let is_stopped = {
        let stop = stop.clone();
        move || stop.is_requested()
    };
    match startup::import(data_path, &settings.as_flags(), |line| tracing::info!("{line}"), is_stopped) {
        Ok(summary) => {
            tell_import(&summary);
            Ok(())
        }
        Err(ImportError::Interrupted) => {
            tracing::info!("the import of nsqd's backlog was interrupted; the next startup continues it");
            Ok(())
        }
        Err(error) => Err(failed(error)),
    }
}

fn tell_import(summary: &Summary) {
    summary.left_out.iter().for_each(|left_out| tracing::warn!("the import of nsqd's backlog left out {left_out}"));
    summary.notes.iter().for_each(|note| tracing::info!("import: {note}"));
    tracing::info!(
        messages = summary.messages,
        bytes = summary.body_bytes,
        "imported nsqd's backlog; nsqd's files are as they were, and no longer needed"
    );
}

/// The doctor's checks at startup: warnings and failures are logged. Returns the number of failures.
fn examine(settings: &Settings) -> usize {
    let findings = checks::check(settings);
    findings.iter().for_each(log);
    findings.iter().filter(|finding| finding.level == checks::Level::Fail).count()
}

fn log(finding: &checks::Finding) {
    match finding.level {
        checks::Level::Ok => {}
        checks::Level::Warn => tracing::warn!("{}", finding.text()),
        checks::Level::Fail => tracing::error!("{}", finding.text()),
    }
}

/// Runs until SIGTERM or SIGINT.
pub fn lookupd(options: ringmq_lookupd::options::Options) -> ExitCode {
    let open =
        |address: &str| Reserved::take(address, LOOKUPD_ADDRESS_WAIT).and_then(Reserved::listen).map_err(|e| e.to_string());
    match ringmq_lookupd::daemon::run(options, open) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The standard error, for one line of the log, which gets a prefix.
pub struct Prefixed {
    line: Vec<u8>,
}

impl Prefixed {
    pub fn new(prefix: &str) -> Self {
        Prefixed { line: prefix.as_bytes().to_vec() }
    }
}

impl std::io::Write for Prefixed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The subscriber makes a writer for each line.
impl Drop for Prefixed {
    fn drop(&mut self) {
        let _ = std::io::stderr().write_all(&self.line);
    }
}

/// The HTTP thread, as the runtime starts and ends it.
fn front(settings: Arc<Settings>, log_level: Box<dyn LogLevel>) -> Front {
    let wake = Arc::new(HttpWake::default());
    let waker = wake.clone();
    let start = move |s: FrontStart| {
        let tcp_port = s.tcp_address.port();
        let listeners = Listeners { http: s.listener, lookups: s.lookups, https: s.https };
        let around = NodeHandles { spare_bytes: s.spare_bytes, log_level, hub: s.hub };
        let server =
            HttpServer::start(&settings, listeners, s.cores, tcp_port, s.port, waker, around).map_err(|e| e.to_string())?;
        Ok(Box::new(move || server.stop()) as Box<dyn FnOnce()>)
    };
    Front { wake, start: Box::new(start) }
}

/// Arguments of `doctor --measure`.
pub struct Measuring {
    pub time: Duration,
    pub json: Option<PathBuf>,
}

pub fn doctor(settings: &Settings, measuring: Option<Measuring>) -> ExitCode {
    let mut findings = checks::check(settings);
    if measuring.is_none() {
        // A measurement runs beside a node, too.
        findings.extend(checks::occupied(settings));
    }
    if let Err(error) = checks::print(&findings, &mut std::io::stdout()) {
        return failed(format!("cannot write to the standard output: {error}"));
    }
    let code = checks::exit_code(&findings);
    match measuring {
        Some(_) if code != 0 => failed("nothing was measured: correct the FAIL lines above first".into()),
        Some(asked) => match measure(settings, &findings, &asked) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(error),
        },
        None => ExitCode::from(code),
    }
}

fn failed(error: String) -> ExitCode {
    eprintln!("ringmq: {error}");
    ExitCode::FAILURE
}

fn measure(settings: &Settings, findings: &[checks::Finding], asked: &Measuring) -> Result<(), String> {
    let stop = StopHandle::new();
    stop.on_signals().map_err(|e| format!("cannot wait for signals: {e}"))?;
    let is_terminal = std::io::stderr().is_terminal();
    eprintln!("measuring {} for about {} s ...", settings.data_path, asked.time.as_secs_f64());
    let mut shown = 0;
    let progress = |share: f64| {
        let percent = (share * 100.0) as u32;
        if is_terminal && percent > shown {
            shown = percent;
            eprint!("\r{percent} %\r");
        }
    };
    let report = checks::measure::measure(settings, findings, asked.time, &stop, progress).map_err(|e| e.to_string())?;
    let print = |text: &str| std::io::stdout().write_all(text.as_bytes());
    print(&format!("\n{}", report.table())).map_err(|e| format!("cannot write to the standard output: {e}"))?;
    match &asked.json {
        Some(path) => std::fs::write(path, report.to_json()?).map_err(|e| format!("{}: {e}", path.display())),
        None => Ok(()),
    }
}

/// Runs `look`, which prints, and turns its verdict into an exit code.
pub fn inspect(look: impl FnOnce(&mut dyn std::io::Write) -> Result<Verdict, InspectError>) -> ExitCode {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let verdict = look(&mut out).map_err(|e| e.to_string());
    let verdict = verdict.and_then(|verdict| out.flush().map(|()| verdict).map_err(|e| format!("cannot print: {e}")));
    match verdict {
        Ok(verdict) => ExitCode::from(verdict.exit_code()),
        Err(error) => {
            eprintln!("ringmq: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Exit code of `ringmq cluster`: 1 also when the cluster has a problem, which the table shows.
pub fn cluster(
    settings: &Settings,
    asker: &Asker,
    what: ringmq::operator::PageKind,
    topic: Option<&str>,
    is_json: bool,
) -> ExitCode {
    match ringmq::operator::run(settings, asker, what, topic, is_json, &mut std::io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(error.to_string()),
    }
}

/// `init`, `verify` and `doctor`; 1 also when something bad was found.
pub fn check_cluster(settings: &Settings, asker: &Asker, word: &str, topic: Option<&str>, is_json: bool) -> ExitCode {
    use ringmq::operator::checks;
    let out = &mut std::io::stdout();
    let done = match word {
        "init" => match ringmq::runtime::node::random_id() {
            Ok(random) => checks::init(settings, random, is_json, out).map(|_| true),
            Err(error) => return failed(error.to_string()),
        },
        "verify" => checks::verify(settings, asker, topic, is_json, out),
        _ => checks::doctor(settings, asker, is_json, out),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(error.to_string()),
    }
}

pub fn change_cluster(
    settings: &Settings,
    asker: &Asker,
    word: &'static str,
    names: &ringmq::operator::change::Names,
) -> ExitCode {
    match ringmq::operator::change::run(settings, asker, word, names, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error.to_string()),
    }
}

pub fn node_id(data_path: &str) -> ExitCode {
    let random = ringmq::runtime::node::random().map_err(|e| e.to_string());
    match random.and_then(|random| ringmq::coordinator::node_id(Path::new(data_path), random).map_err(|e| e.to_string())) {
        Ok((id, is_new)) => {
            if is_new {
                eprintln!("ringmq: created for {data_path}, which was empty");
            }
            println!("{id}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(error),
    }
}

/// Exit code of `ringmq load`: 1 also when `--verify` found a problem, which the table shows.
pub fn load(asked: &ringmq::load::Invocation) -> ExitCode {
    let done = match asked {
        ringmq::load::Invocation::Run(options, outputs) => ringmq::load::run(options, outputs),
        ringmq::load::Invocation::Report(options) => ringmq::load::report(options).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ringmq: {error}");
            ExitCode::FAILURE
        }
    }
}
