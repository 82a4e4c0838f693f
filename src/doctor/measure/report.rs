//! Result of a measurement: the JSON that `--json` writes and `ringmq load --raw` reads, and a table for people. Fields may be added to
//! the JSON, not changed.

use super::samples::{Figures, StreamFigures};
use super::{DEPTHS, SIZES, WAYS, WritePath};
use crate::config::Settings;
use crate::doctor::{Finding, Level};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;

pub const FORMAT: u32 = 1;

/// Kind of the file, since other commands write JSON too.
pub const KIND: &str = "ringmq doctor --measure";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`KIND`]
    pub kind: String,
    /// [`FORMAT`]
    pub format: u32,
    /// Version of the program that measured.
    pub version: String,
    pub host: String,
    pub kernel: String,
    pub began_unix_ms: u64,
    /// Duration of the measurement.
    pub seconds: f64,
    pub data_path: String,
    /// The folder that was written in, gone since.
    pub folder: String,
    /// The CPU of the node's first core, to which everything was pinned.
    pub cpu: usize,
    /// Most that its files took.
    pub disk_bytes: u64,
    /// A node ran on the data path, and the figures include its load.
    pub node_ran: bool,
    pub notes: Vec<String>,
    /// Findings of `ringmq doctor`.
    pub findings: Vec<ReportedFinding>,
    pub durable: Vec<Durable>,
    pub sequential: Sequential,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportedFinding {
    /// ok, warn or fail.
    pub level: String,
    pub name: String,
    pub found: String,
    pub remedy: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Durable {
    pub way: WritePath,
    pub bytes: u64,
    /// Writes under way at a time.
    pub depth: usize,
    /// `None` when the time was over before.
    pub figures: Option<Figures>,
}

/// 1 MiB at a time, one at a time, on O_DIRECT.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sequential {
    /// New allocated space, an fdatasync per MiB.
    pub write_new_synced: Option<StreamFigures>,
    /// Written space, an fdatasync per MiB.
    pub write_synced: Option<StreamFigures>,
    /// Written space, one fdatasync at the end.
    pub write: Option<StreamFigures>,
    pub read: Option<StreamFigures>,
}

impl Report {
    pub(super) fn new(settings: &Settings, findings: &[Finding], folder: &Path, cpu: usize) -> Report {
        let kernel_says = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
            text.trim().to_owned()
        };
        Report {
            kind: KIND.into(),
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            host: kernel_says("hostname"),
            kernel: kernel_says("osrelease"),
            began_unix_ms: 0,
            seconds: 0.0,
            data_path: settings.data_path.clone(),
            folder: folder.display().to_string(),
            cpu,
            disk_bytes: 0,
            node_ran: false,
            notes: vec![],
            findings: findings.iter().map(ReportedFinding::of).collect(),
            durable: vec![],
            sequential: Sequential::default(),
        }
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map(|json| json + "\n").map_err(|e| e.to_string())
    }

    /// Parses a file that `--json` has written.
    pub fn parse(text: &str) -> Result<Report, String> {
        #[derive(Deserialize)]
        struct Head {
            kind: String,
            format: u32,
        }
        let not_ours = |why: String| format!("not a file of {KIND} --json: {why}");
        let head: Head = serde_json::from_str(text).map_err(|e| not_ours(e.to_string()))?;
        if head.kind != KIND {
            return Err(not_ours(format!("the file's kind is {:?}", head.kind)));
        }
        if head.format != FORMAT {
            return Err(format!("format {} is not known; this version reads format {FORMAT}", head.format));
        }
        serde_json::from_str(text).map_err(|e| not_ours(e.to_string()))
    }

    pub fn durable(&self, way: WritePath, bytes: u64, depth: usize) -> Option<&Figures> {
        self.durable.iter().find(|d| (d.way, d.bytes, d.depth) == (way, bytes, depth))?.figures.as_ref()
    }

    /// The report as a table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // A String takes all that is written to it.
        let _ = writeln!(out, "{}: Linux {}, CPU {}, measured for {:.1} s", self.data_path, self.kernel, self.cpu, self.seconds);
        let _ = writeln!(out, "in {}, {} MiB, removed again", self.folder, self.disk_bytes >> 20);
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        let _ = writeln!(out, "\ndurable writes; microseconds, MB = 10^6 bytes");
        let heads = [
            "node's journal: O_DSYNC, written space",
            "node's segment: fdatasync, new space",
            "plain pwrite + fdatasync, written space",
        ];
        let _ = writeln!(out, "{:>6} {:>5} | {:<39} | {:<39} | {:<39} |", "", "", heads[0], heads[1], heads[2]);
        let columns = format!("{:>8} {:>6} {:>7} {:>7} {:>7}", "writes/s", "MB/s", "p50", "p99", "max");
        let _ = writeln!(out, "{:>6} {:>5} | {columns} | {columns} | {columns} | journal p50,", "KiB", "depth");
        let _ = writeln!(out, "{:>6} {:>5} | {:39} | {:39} | {:39} | of plain", "", "", "", "", "");
        for bytes in SIZES.map(|bytes| bytes as u64) {
            for depth in DEPTHS {
                let _ = write!(out, "{:>6} {depth:>5} |", bytes >> 10);
                for way in WAYS {
                    let _ = write!(out, " {} |", cells(self.durable(way, bytes, depth)));
                }
                let p50 = |way| self.durable(way, bytes, depth).map(|f| f.p50_us).filter(|us| *us > 0.0);
                let _ = match p50(WritePath::Journal).zip(p50(WritePath::Raw)) {
                    Some((journal, raw)) => writeln!(out, " {:.2}", journal / raw),
                    None => writeln!(out, " -"),
                };
            }
        }
        let _ = writeln!(out, "\nsequential, plain, 1 MiB at a time{:>26}", "MB/s");
        let Sequential { write_new_synced, write_synced, write, read } = &self.sequential;
        for (name, figures) in [
            ("write, fdatasync per MiB, written space", write_synced),
            ("write, fdatasync per MiB, new space", write_new_synced),
            ("write, one fdatasync at the end, written space", write),
            ("read, past the page cache", read),
        ] {
            let rate = figures.as_ref().map_or("-".into(), |f| format!("{:.0}", f.megabytes_per_second));
            let _ = writeln!(out, "{name:<50} {rate:>9}");
        }
        out += "\nA node has 1 to 4 journal writes in flight. Depth n, plain, is n threads on that CPU.\n";
        out += "Compare with: p50 of the plain 4 KiB write at depth 1, and the first sequential rate (ringmq load --raw).\n";
        out
    }
}

fn cells(figures: Option<&Figures>) -> String {
    let Some(f) = figures else { return format!("{:>8} {:>6} {:>7} {:>7} {:>7}", "-", "-", "-", "-", "-") };
    let (rate, mb) = (f.writes_per_second, f.megabytes_per_second);
    format!("{rate:>8.0} {mb:>6.0} {:>7.0} {:>7.0} {:>7.0}", f.p50_us, f.p99_us, f.max_us)
}

impl ReportedFinding {
    fn of(finding: &Finding) -> ReportedFinding {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "fail",
        };
        let (found, remedy) = (finding.found.clone(), finding.remedy.clone());
        ReportedFinding { level: level.into(), name: finding.name.into(), found, remedy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new(&Settings::default(), &[Finding::warn("x", "y", "z")], Path::new("/there"), 3);
        let figures = |us: f64| Figures {
            writes: 9,
            seconds: 1.0,
            writes_per_second: 9.0,
            megabytes_per_second: 1.0,
            p50_us: us,
            p99_us: us,
            max_us: us,
        };
        report.durable = vec![
            Durable { way: WritePath::Raw, bytes: 4096, depth: 1, figures: Some(figures(100.0)) },
            Durable { way: WritePath::Journal, bytes: 4096, depth: 1, figures: Some(figures(150.0)) },
            Durable { way: WritePath::Segment, bytes: 4096, depth: 1, figures: None },
        ];
        report.sequential.read = Some(StreamFigures { bytes: 1, seconds: 1.0, megabytes_per_second: 2468.0 });
        report.notes.push("a note".into());
        report
    }

    #[test]
    fn what_is_written_is_read_again_and_other_files_are_not() {
        let report = report();
        let json = report.to_json().unwrap(); // it has no maps
        assert_eq!(Report::parse(&json), Ok(report));
        let newer = json.replace("\"format\": 1", "\"format\": 2").replace("durable", "endurable");
        assert_eq!(Report::parse(&newer), Err("format 2 is not known; this version reads format 1".into()));
        let more = json.replacen('{', "{\"later\": [1],", 1);
        assert!(Report::parse(&more).is_ok(), "fields may be added");
        for other in ["", "{}", "{\"kind\":\"x\",\"format\":1}", "[1]", &json[..json.len() / 2]] {
            let refused = Report::parse(other).unwrap_err();
            assert!(refused.starts_with("not a file of ringmq doctor --measure --json: "), "{refused}");
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_size_and_depth_and_a_dash_for_what_is_missing() {
        let table = report().table();
        let rows: Vec<&str> = table.lines().filter(|line| line.matches('|').count() == 4).collect();
        assert_eq!(rows.len(), 3 + SIZES.len() * DEPTHS.len(), "{table}");
        assert!(rows[3].ends_with("| 1.50") && rows[4].ends_with("| -"), "{table}");
        assert!(table.contains("note: a note") && table.contains("2468") && table.contains("CPU 3"), "{table}");
        assert!(rows.iter().all(|row| row.chars().count() < 155), "{table}");
    }
}
