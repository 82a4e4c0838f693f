//! The load generator, `ringmq load`: publishes to and consumes from a node, over its native protocol or that of
//! NSQ (so any nsqd too), measures, and verifies that nothing acknowledged is lost.
//!
//! A client like any other: it shares the codec with the node and nothing else. Threads with a tokio runtime each hold
//! the connections; a connection is a state machine that is polled by hand, so that the usual round trip is one write
//! and one read, without allocation or task switch. docs/load.md is its manual.

mod body;
mod consumer;
mod files;
mod html;
mod ledger;
mod link;
mod native;
mod nsq;
mod options;
mod owed;
mod pace;
mod plot;
mod process;
mod producer;
mod ramp;
mod raw;
mod record;
mod result;
mod run;
mod shared;
mod size;
mod table;
mod wire;
mod worker;

pub use options::{Invocation, Options, Outputs, ReportOptions, command, parse};
pub use result::Run;

use crate::runtime::cores::raise_open_files;
use files::{Files, Output};
use std::fs;
use std::io::Write as _;
use std::path::Path;

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A failed run; the text begins with the place.
    #[error("{0}")]
    Failed(String),
    #[error("{path}: {reason}")]
    File { path: String, reason: String },
}

/// Runs the load and writes the results; false when `--verify` found something, or nothing got through but errors.
pub fn run(options: &Options, outputs: &Outputs) -> Result<bool, LoadError> {
    // a file that is of no use is known before the load, not after it
    let files = Files::open(outputs, options.mode)?;
    // a connection is a file, or one for each core; where that fails, opening them says so
    let _ = raise_open_files();
    let raw = outputs.raw.as_deref().map(raw::read).transpose()?;
    let finished = match options.ramp {
        Some(limit) => ramp::ramp(options, limit),
        None => run::run(options),
    };
    let run::Finished { mut run, seen } = finished.map_err(LoadError::Failed)?;
    run.raw = raw.map(|report| raw::Raw::of(&report, &run));
    let table = std::io::stdout().write_all(table::text(&run).as_bytes());
    let timed = if options.mode.consumes() { &seen.end_to_end } else { &seen.publish };
    // one that cannot be written takes none of the others with it
    let written = [
        table.map_err(|e| file_error(Path::new("the standard output"), e)),
        files.json.map_or(Ok(()), |file| file.write(&json(&run)?)),
        files.hgrm.map_or(Ok(()), |file| file.write(&result::hgrm(timed))),
        files.hgrm_publish.map_or(Ok(()), |file| file.write(&result::hgrm(&seen.publish))),
        files.report.map_or(Ok(()), |file| file.write(&html::page(std::slice::from_ref(&run)))),
    ];
    written.into_iter().collect::<Result<(), _>>()?;
    let undelivered = run.undelivered;
    Ok(run.verify.is_none_or(|verdict| verdict.ok) && got_through(options.mode, &seen, undelivered))
}

fn json(run: &Run) -> Result<String, LoadError> {
    let text = serde_json::to_string_pretty(run).map_err(|e| LoadError::Failed(format!("the result as JSON: {e}")))?;
    Ok(text + "\n")
}

/// Whether messages got through; none without an error counts too, since there may have been none to consume.
fn got_through(mode: options::Mode, seen: &record::LoadFigures, undelivered: u64) -> bool {
    let published = !mode.produces() || seen.published_ever.messages > 0;
    let delivered = !mode.consumes() || seen.delivered_ever.messages > 0;
    published && delivered || seen.errors.is_empty() && undelivered == 0
}

/// `ringmq load report`.
pub fn report(options: &ReportOptions) -> Result<(), LoadError> {
    let mut runs = Vec::new();
    for path in &options.runs {
        let text = fs::read_to_string(path).map_err(|e| file_error(path, e))?;
        let run: Run = serde_json::from_str(&text).map_err(|e| file_error(path, format!("not a result of --json: {e}")))?;
        if run.format != result::FORMAT {
            return Err(file_error(
                path,
                format!("format {} is not known; this version reads format {}", run.format, result::FORMAT),
            ));
        }
        runs.push(run);
    }
    tell_apart(&mut runs);
    Output::open(&options.out)?.write(&html::page(&runs))
}

/// Numbers the labels that several runs share, so that a reader can tell their lines apart.
fn tell_apart(runs: &mut [Run]) {
    let labels: Vec<String> = runs.iter().map(|run| run.label.clone()).collect();
    for (i, run) in runs.iter_mut().enumerate() {
        let is_same = |label: &&String| **label == labels[i];
        if labels.iter().filter(is_same).count() > 1 {
            run.label = format!("{} #{}", labels[i], labels[..=i].iter().filter(is_same).count());
        }
    }
}

fn file_error(path: &Path, reason: impl ToString) -> LoadError {
    LoadError::File { path: path.display().to_string(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use options::Mode;

    #[test]
    fn runs_of_one_label_are_numbered() {
        let run = |label: &str| -> Run {
            serde_json::from_value(serde_json::json!({
                "format": 1, "label": label, "started_unix_ms": 0, "seconds": 1.0, "behind": 0,
                "undelivered": 0, "errors": [], "series": [],
                "target": { "address": "a", "protocol": "nsq", "version": null },
                "setup": {
                    "mode": "produce", "rate": null, "size": "100", "batch": 1, "connections": 1, "consumers": 0, "in_flight": 1,
                    "topics": 1, "channels": 1, "rdy": 1, "warm_up_seconds": 0.0, "threads": 1,
                    "duration_seconds": 1.0, "verify": false
                },
                "generator": { "cpu_seconds": 0.0, "busy": 0.0 }
            }))
            .expect("it is a result")
        };
        let mut runs = [run("a"), run("b"), run("a")];
        tell_apart(&mut runs);
        assert_eq!(runs.map(|run| run.label), ["a #1", "b", "a #2"]);
    }

    #[test]
    fn errors_and_nothing_else_are_a_failure() {
        let mut seen = record::LoadFigures::new();
        assert!(got_through(Mode::Consume, &seen, 0), "an empty topic");
        assert!(!got_through(Mode::Both, &seen, 1), "nothing came of what should have");
        seen.error("made up", 1);
        assert!(!got_through(Mode::Produce, &seen, 0) && !got_through(Mode::Consume, &seen, 0));
        seen.published_ever.add(1, 1);
        assert!(got_through(Mode::Produce, &seen, 0) && !got_through(Mode::Both, &seen, 0));
        seen.delivered_ever.add(1, 1);
        assert!(got_through(Mode::Both, &seen, 0) && got_through(Mode::Both, &seen, 1));
    }
}
