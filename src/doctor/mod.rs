//! Looks at the machine before the node relies on it: one line per check, with the remedy. `ringmq doctor` prints all of them, `serve`
//! logs warnings and refuses to start on a failure.
//!
//! Changes nothing, except a scratch file in the data path that is removed again. `--measure` adds the speed of that path ([`measure`]).

mod cluster;
mod etcd;
pub mod measure;
mod memory;
mod occupied;
mod storage;
mod system;
mod tls;

use crate::config::Settings;
use rustls::pki_types::UnixTime;
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Ok,
    Warn,
    /// The node does not start.
    Fail,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub level: Level,
    /// Name of the check.
    pub name: &'static str,
    /// Result in words.
    pub found: String,
    /// Remedy; empty when the check is ok.
    pub remedy: String,
}

impl Finding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Finding { level: Level::Ok, name, found: found.into(), remedy: String::new() }
    }

    fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { level: Level::Warn, name, found: found.into(), remedy: remedy.into() }
    }

    fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { level: Level::Fail, name, found: found.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        write!(f, "{level}  {}", self.text())
    }
}

impl Finding {
    /// The finding without its level, for a log line, which has one.
    pub fn text(&self) -> String {
        let remedy = if self.remedy.is_empty() { String::new() } else { format!("; {}", self.remedy) };
        format!("{}: {}{remedy}", self.name, self.found)
    }
}

/// Runs all checks, most important first.
pub fn check(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![system::kernel(), system::io_uring(), system::cpus(settings)];
    findings.extend([memory::memlock(settings), memory::open_files(settings), memory::huge_pages()]);
    findings.extend(tls::check(settings, UnixTime::now()));
    findings.extend(storage::check(settings));
    findings.extend(cluster::check(settings));
    findings.extend(etcd::check(settings));
    findings
}

/// Findings about the TLS files that the settings name.
pub fn tls_files(settings: &Settings) -> Vec<Finding> {
    tls::check(settings, UnixTime::now()).into_iter().collect()
}

/// Findings about a data path or addresses that another process holds. Not part of [`check`]: a node that starts takes them.
pub fn occupied(settings: &Settings) -> Vec<Finding> {
    occupied::check(settings)
}

/// Prints one line per finding.
pub fn print(findings: &[Finding], out: &mut dyn std::io::Write) -> std::io::Result<()> {
    findings.iter().try_for_each(|finding| writeln!(out, "{finding}"))
}

/// 0 when the node would start.
pub fn exit_code(findings: &[Finding]) -> u8 {
    findings.iter().any(|finding| finding.level == Level::Fail).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_runs_these_tests_passes_and_every_complaint_has_a_remedy() {
        let temp = tempfile::tempdir_in(".").unwrap();
        let data_path = temp.path().join("not/there/yet").to_str().unwrap().to_owned();
        let findings = check(&Settings { data_path, shards: 2, ..Settings::default() });
        let mut printed = vec![];
        print(&findings, &mut printed).unwrap();
        let printed = String::from_utf8(printed).unwrap();
        assert_eq!(printed.lines().count(), findings.len(), "one line each: {printed}");
        assert_eq!(exit_code(&findings), 0, "{printed}");
        assert!(findings.iter().all(|f| (f.level == Level::Ok) == f.remedy.is_empty()), "{printed}");
        assert!(temp.path().read_dir().unwrap().next().is_none(), "nothing is left behind");
        let failed = Finding::fail("x", "y", "z");
        assert_eq!((exit_code(std::slice::from_ref(&failed)), failed.to_string().as_str()), (1, "FAIL  x: y; z"));
    }
}
