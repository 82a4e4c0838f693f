//! The raw limit of a data path, as `ringmq doctor --measure --json` has written it, beside a run.

use super::result::Run;
use super::{LoadError, file_error};
use crate::doctor::measure::{Report, WritePath};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Raw device figures that a run is compared with. `None`: one of the two was not measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Raw {
    pub host: String,
    pub data_path: String,
    pub cpu: usize,
    pub began_unix_ms: u64,
    /// A node ran meanwhile.
    pub node_ran: bool,
    /// pwrite + fdatasync of 4 KiB, one at a time.
    pub write_4k_p50_us: Option<f64>,
    /// Sequential writes over written space with an fdatasync per MiB, in 10^6 bytes per second.
    pub sequential_synced_megabytes_per_second: Option<f64>,
    /// The same on space that was allocated and never written, as a segment's is.
    pub sequential_new_synced_megabytes_per_second: Option<f64>,
    pub sequential_read_megabytes_per_second: Option<f64>,
    /// p50 of publishing to p50 of that write.
    pub publish_p50_of_raw: Option<f64>,
    /// MB/s that were published to the synced sequential rate.
    pub published_of_raw: Option<f64>,
    pub published_of_raw_new: Option<f64>,
    /// MB/s that were delivered to the sequential read rate; says something when they came from the disk.
    pub delivered_of_raw: Option<f64>,
}

pub fn read(path: &Path) -> Result<Report, LoadError> {
    let text = std::fs::read_to_string(path).map_err(|e| file_error(path, e))?;
    Report::parse(&text).map_err(|e| file_error(path, e))
}

impl Raw {
    pub fn of(report: &Report, run: &Run) -> Raw {
        let write = report.durable(WritePath::Raw, 4096, 1).map(|figures| figures.p50_us);
        let synced = report.sequential.write_synced.as_ref().map(|figures| figures.megabytes_per_second);
        let new_synced = report.sequential.write_new_synced.as_ref().map(|figures| figures.megabytes_per_second);
        let read = report.sequential.read.as_ref().map(|figures| figures.megabytes_per_second);
        let to = |ours: Option<f64>, raw: Option<f64>| ours.zip(raw.filter(|raw| *raw > 0.0)).map(|(ours, raw)| ours / raw);
        let rate = |flow: &Option<super::result::Flow>| flow.as_ref().map(|flow| flow.megabytes_per_second);
        Raw {
            host: report.host.clone(),
            data_path: report.data_path.clone(),
            cpu: report.cpu,
            began_unix_ms: report.began_unix_ms,
            node_ran: report.node_ran,
            write_4k_p50_us: write,
            sequential_synced_megabytes_per_second: synced,
            sequential_new_synced_megabytes_per_second: new_synced,
            sequential_read_megabytes_per_second: read,
            publish_p50_of_raw: to(run.publish_latency.as_ref().map(|latency| latency.p50_us), write),
            published_of_raw: to(rate(&run.published), synced),
            published_of_raw_new: to(rate(&run.published), new_synced),
            delivered_of_raw: to(rate(&run.delivered), read),
        }
    }

    /// Place and time of the raw measurement, for people.
    pub fn line(&self, run_began_unix_ms: u64) -> String {
        let apart = run_began_unix_ms.abs_diff(self.began_unix_ms) / 1000;
        let when = if self.began_unix_ms <= run_began_unix_ms { "before" } else { "after" };
        let apart = match apart {
            seconds @ 0..120 => format!("{seconds} s"),
            seconds @ 120..7200 => format!("{} min", seconds / 60),
            seconds => format!("{} h", seconds / 3600),
        };
        let beside = if self.node_ran { ", while a node ran there" } else { "" };
        format!("{} of {}, CPU {}, {apart} {when} this run{beside}", self.data_path, self.host, self.cpu)
    }

    /// Rows of the comparison.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let us = |us: f64| super::table::time(us);
        let mb = |mb: f64| format!("{mb:.0} MB/s");
        let share = |share: f64| format!("{:.1} %", share * 100.0);
        let row = |name, ratio: Option<String>, raw: Option<String>| Some((name, format!("{} of {}", ratio?, raw?)));
        let rows = [
            row(
                "publish p50, of a raw 4 KiB write",
                self.publish_p50_of_raw.map(|times| format!("{times:.2} x")),
                self.write_4k_p50_us.map(us),
            ),
            row(
                "published MB/s, of raw with fdatasync per MiB",
                self.published_of_raw.map(share),
                self.sequential_synced_megabytes_per_second.map(mb),
            ),
            row(
                "published MB/s, of the same on new space",
                self.published_of_raw_new.map(share),
                self.sequential_new_synced_megabytes_per_second.map(mb),
            ),
            row(
                "delivered MB/s, of raw sequential read",
                self.delivered_of_raw.map(share),
                self.sequential_read_megabytes_per_second.map(mb),
            ),
        ];
        rows.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> Raw {
        Raw {
            host: "h".into(),
            data_path: "/d".into(),
            cpu: 0,
            began_unix_ms: 1_000_000,
            node_ran: false,
            write_4k_p50_us: Some(100.0),
            sequential_synced_megabytes_per_second: Some(1000.0),
            sequential_new_synced_megabytes_per_second: Some(500.0),
            sequential_read_megabytes_per_second: None,
            publish_p50_of_raw: Some(1.5),
            published_of_raw: Some(0.4),
            published_of_raw_new: Some(0.8),
            delivered_of_raw: None,
        }
    }

    #[test]
    fn what_was_not_measured_has_no_row() {
        let rows = raw().rows();
        assert_eq!(rows[0], ("publish p50, of a raw 4 KiB write", "1.50 x of 100us".into()));
        assert_eq!(rows[1], ("published MB/s, of raw with fdatasync per MiB", "40.0 % of 1000 MB/s".into()));
        assert_eq!(rows[2], ("published MB/s, of the same on new space", "80.0 % of 500 MB/s".into()));
        assert_eq!(rows.len(), 3);
    }

    #[test]
    fn it_says_how_far_apart_the_two_were() {
        assert_eq!(raw().line(1_090_000), "/d of h, CPU 0, 90 s before this run");
        assert_eq!(raw().line(1_000_000 + 600_000), "/d of h, CPU 0, 10 min before this run");
        let beside = Raw { node_ran: true, ..raw() };
        assert_eq!(beside.line(0), "/d of h, CPU 0, 16 min after this run, while a node ran there");
    }
}
