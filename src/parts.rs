//! Where the binary calls the rooms that do the work.

use ringmq::config::Settings;
use ringmq::http::{HttpServer, HttpWake};
use ringmq::inspect::InspectOptions;
use ringmq::runtime::{Front, FrontStart, StopHandle, recover_shards, run_node as run};
use ringmq::{doctor as checks, runtime::NodeError};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Runs until SIGTERM or SIGINT.
pub fn run_node(settings: Settings) -> Result<(), NodeError> {
    let settings = Arc::new(settings);
    let stop = StopHandle::new();
    stop.on_signals().map_err(NodeError::Eventfd)?;
    run(settings.clone(), stop, front(settings), recover_shards)
}

/// The HTTP thread, as the runtime starts and ends it.
fn front(settings: Arc<Settings>) -> Front {
    let wake = Arc::new(HttpWake::default());
    let waker = wake.clone();
    let start = move |s: FrontStart| {
        let server = HttpServer::start(&settings, s.cores, s.tcp_address.port(), s.port, waker).map_err(|e| e.to_string())?;
        tracing::info!(http = %server.address(), "http listens");
        Ok(Box::new(move || server.stop()) as Box<dyn FnOnce()>)
    };
    Front { wake, start: Box::new(start) }
}

pub fn doctor(settings: &Settings) -> ExitCode {
    let findings = checks::check(settings);
    if let Err(error) = checks::print(&findings, &mut std::io::stdout()) {
        eprintln!("ringmq: cannot write to the standard output: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::from(checks::exit_code(&findings))
}

pub fn inspect(data_path: &str, options: &InspectOptions) -> ExitCode {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let clean = ringmq::inspect::run(Path::new(data_path), options, &mut out).map_err(|e| e.to_string());
    let clean = clean.and_then(|clean| out.flush().map(|()| clean).map_err(|e| format!("cannot print: {e}")));
    match clean {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ringmq: {error}");
            ExitCode::FAILURE
        }
    }
}

/// 1 also when `--verify` found something; the table has said what.
pub fn load(asked: &ringmq::load::Asked) -> ExitCode {
    let done = match asked {
        ringmq::load::Asked::Run(options, outputs) => ringmq::load::run(options, outputs),
        ringmq::load::Asked::Report(options) => ringmq::load::report(options).map(|()| true),
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
