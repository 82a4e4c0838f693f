//! The report: one HTML page that needs nothing but itself. A table of figures, errors, then plots, of one run or several
//! side by side.

use super::plot::{self, Axis, Line};
use super::raw::Raw;
use super::result::{Flow, Latency, Run};
use super::table;
use std::fmt::Write as _;

const STYLE: &str = "\
:root{--ink:#1b1f24;--dim:#5c6670;--paper:#fff;--grid:#e3e7eb;\
--c0:#0b62c4;--c1:#d1540a;--c2:#128a5b;--c3:#a12a8e;--c4:#8a6d00;--c5:#0e8aa8;--c6:#c0243a}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--dim:#9aa5b1;--paper:#14171a;--grid:#2c3238;\
--c0:#5aa2f0;--c1:#f0904e;--c2:#4cc38f;--c3:#dc7fcb;--c4:#d9b93b;--c5:#52c4de;--c6:#f2707f}}\
body{margin:2rem auto;max-width:960px;padding:0 1rem;font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}\
h1{font-size:1.5rem;margin:0 0 .5rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}p,li{color:var(--dim)}\
svg{width:100%;height:auto;display:block}svg text{font-size:12px;fill:var(--dim)}svg .axis{fill:var(--ink)}\
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:2;stroke-linejoin:round}.dashed{stroke-dasharray:6 4}\
.dot{stroke-linecap:round;stroke-width:4}\
.wide{overflow-x:auto}table{border-collapse:collapse;white-space:nowrap}\
th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid var(--grid)}th:first-child{text-align:left}\
td{font-variant-numeric:tabular-nums}thead th{vertical-align:bottom}\
ul.key{list-style:none;margin:.5rem 0;padding:0}ul.key svg{display:inline-block;width:28px;height:10px;margin-right:.5rem}\
ul.key b{color:var(--ink)}.bad{color:var(--c6);font-weight:600}";

pub fn page(runs: &[Run]) -> String {
    let mut out = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    out += "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>ringmq load</title><style>";
    out += STYLE;
    for i in 0..plot::COLOURS {
        let _ = write!(out, ".c{i}{{stroke:var(--c{i})}}");
    }
    out += "</style></head><body>\n<h1>ringmq load</h1>\n";
    out += &key(runs);
    out += "<h2>Figures</h2>\n";
    out += &figures(runs);
    out += &trouble(runs);
    out += &latency_plot(runs, "Latency of publishing", "From when a publish was due to its answer.", |run| {
        run.publish_latency.as_ref()
    });
    out += &latency_plot(runs, "Latency end to end", "From when a message was due to be sent to its delivery.", |run| {
        run.end_to_end_latency.as_ref()
    });
    out += &rate_plot(runs);
    out += &tail_plot(runs);
    out += &ramps(runs);
    out + "</body></html>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The colours, each with its run.
fn key(runs: &[Run]) -> String {
    let mut out = String::from("<ul class=\"key\">\n");
    for (i, run) in runs.iter().enumerate() {
        let dashes = if i >= plot::COLOURS { " dashed" } else { "" };
        let mark =
            format!("<svg viewBox=\"0 0 28 10\"><path class=\"line c{}{dashes}\" d=\"M0 5H28\"/></svg>", i % plot::COLOURS);
        let what = format!("{} at {}, server {}", run.target.protocol, run.target.address, table::server(run));
        let line = format!("{what}; {}; {:.1} s", run.setup.line(), run.seconds);
        let raw = run.raw.as_ref().map_or(String::new(), |raw| format!("; raw disk: {}", raw.line(run.started_unix_ms)));
        let _ = writeln!(out, "<li>{mark}<b>{}</b>: {}{}</li>", escaped(&run.label), escaped(&line), escaped(&raw));
    }
    out + "</ul>\n"
}

fn time_axis(label: &'static str, values: impl Iterator<Item = f64> + Clone) -> Axis {
    let low = values.clone().fold(f64::MAX, f64::min).max(1.0);
    let high = values.fold(low, f64::max);
    // The decades are whole in their units.
    Axis::decades(label, low, high, |us| table::time(us).replace(".00", ""))
}

fn latency_plot(runs: &[Run], title: &str, about: &str, of: impl Fn(&Run) -> Option<&Latency>) -> String {
    let timed: Vec<(usize, &Latency)> = runs.iter().enumerate().filter_map(|(i, run)| Some((i, of(run)?))).collect();
    if timed.is_empty() {
        return String::new();
    }
    let y = time_axis("latency", timed.iter().flat_map(|(_, l)| l.percentiles.iter().map(|(_, us)| *us)));
    let mut deepest: f64 = 2.0;
    let mut lines = Vec::new();
    for (run, latency) in timed {
        let point = |(percentile, us): &(f64, f64)| Some((plot::nines(*percentile)?, us.max(1.0).log10()));
        // Beyond one in the count the plot would only repeat the maximum.
        let limit = (latency.count as f64).log10();
        let points: Vec<(f64, f64)> = latency.percentiles.iter().filter_map(point).filter(|(x, _)| *x <= limit).collect();
        deepest = deepest.max(points.last().map_or(0.0, |(x, _)| *x));
        lines.push(Line { run, dashed: false, pieces: vec![points] });
    }
    let x = Axis::nines("percentile", deepest.ceil() as usize);
    format!("<h2>{title} by percentile</h2>\n<p>{about}</p>\n{}\n", plot::svg(title, &x, &y, &lines))
}

fn seconds_axis(runs: &[Run]) -> Axis {
    let last = runs.iter().filter_map(|run| run.series.last()).map(|second| second.at).fold(0.0, f64::max);
    Axis::linear("seconds", last, seconds)
}

fn rate_plot(runs: &[Run]) -> String {
    let mut lines = Vec::new();
    let mut most: f64 = 0.0;
    for (run, result) in runs.iter().enumerate() {
        let both = result.published.is_some() && result.delivered.is_some();
        let mut line = |dashed: bool, points: Vec<(f64, f64)>| {
            most = points.iter().map(|(_, rate)| *rate).fold(most, f64::max);
            lines.push(Line { run, dashed, pieces: vec![points] });
        };
        if result.published.is_some() {
            line(false, result.series.iter().map(|s| (s.at, s.published_per_second)).collect());
        }
        if result.delivered.is_some() {
            line(both, result.series.iter().map(|s| (s.at, s.delivered_per_second)).collect());
        }
    }
    let y = Axis::linear("messages per second", most, rate);
    let plot = plot::svg("Rate over time", &seconds_axis(runs), &y, &lines);
    format!("<h2>Rate over time</h2>\n<p>Where a run does both, the dashed line is delivery.</p>\n{plot}\n")
}

fn tail_plot(runs: &[Run]) -> String {
    let tails = || runs.iter().flat_map(|run| &run.series).filter_map(|second| second.p99_us);
    if tails().next().is_none() {
        return String::new();
    }
    let y = time_axis("p99 of each second", tails());
    let line = |(run, result): (usize, &Run)| {
        let points = result.series.iter().map(|second| Some((second.at, second.p99_us?.max(1.0).log10())));
        Line { run, dashed: false, pieces: plot::pieces(points) }
    };
    let lines: Vec<Line> = runs.iter().enumerate().map(line).collect();
    let plot = plot::svg("p99 over time", &seconds_axis(runs), &y, &lines);
    let about = "End to end where a run consumes, else of publishing; no line where nothing came.";
    format!("<h2>p99 over time</h2>\n<p>{about}</p>\n{plot}\n")
}

/// The ticks of an axis are multiples of its step, and so rarely exact.
fn seconds(value: f64) -> String {
    format!("{}", (value * 1e3).round() / 1e3)
}

fn rate(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", (v / 1e4).round() / 100.0),
        v if v >= 1e3 => format!("{}k", (v / 1e2).round() / 10.0),
        v => format!("{}", (v * 10.0).round() / 10.0),
    }
}

/// Table of figures, one column per run.
fn figures(runs: &[Run]) -> String {
    let mut out = String::from("<div class=\"wide\"><table><thead><tr><th></th>");
    for run in runs {
        let _ = write!(out, "<th>{}</th>", escaped(&run.label));
    }
    out += "</tr></thead><tbody>\n";
    let mut row = |name: &str, cells: Vec<Option<String>>| {
        if cells.iter().any(Option::is_some) {
            let cells: String = cells.into_iter().map(|cell| format!("<td>{}</td>", cell.unwrap_or("–".into()))).collect();
            let _ = writeln!(out, "<tr><th>{name}</th>{cells}</tr>");
        }
    };
    let each = |of: &dyn Fn(&Run) -> Option<String>| runs.iter().map(of).collect::<Vec<_>>();
    type FlowOf = fn(&Run) -> &Option<Flow>;
    let flows: [(&str, FlowOf); 2] = [("published", |run| &run.published), ("delivered", |run| &run.delivered)];
    for (name, of) in flows {
        row(&format!("{name}, msg/s"), each(&|run| of(run).as_ref().map(|f| format!("{:.0}", f.messages_per_second))));
        row(&format!("{name}, MB/s"), each(&|run| of(run).as_ref().map(|f| format!("{:.2}", f.megabytes_per_second))));
        row(&format!("{name}, messages"), each(&|run| of(run).as_ref().map(|f| f.messages.to_string())));
    }
    type LatencyOf = fn(&Run) -> &Option<Latency>;
    let latencies: [(&str, LatencyOf); 2] =
        [("publish", |run| &run.publish_latency), ("end to end", |run| &run.end_to_end_latency)];
    for (name, of) in latencies {
        for (i, which) in ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"].iter().enumerate() {
            row(&format!("{name} {which}"), each(&|run| of(run).as_ref().map(|l| table::time(table::columns(l)[i]))));
        }
    }
    type RawOf = fn(&Raw) -> Option<String>;
    let raws: [(&str, RawOf); 8] = [
        ("publish p50, of a raw 4 KiB write", |raw| raw.publish_p50_of_raw.map(|times| format!("{times:.2} x"))),
        ("raw 4 KiB write + fdatasync, p50", |raw| raw.write_4k_p50_us.map(table::time)),
        ("published MB/s, of raw", |raw| raw.published_of_raw.map(|share| format!("{:.1} %", share * 100.0))),
        ("raw sequential, fdatasync per MiB, MB/s", |raw| {
            raw.sequential_synced_megabytes_per_second.map(|mb| format!("{mb:.0}"))
        }),
        ("published MB/s, of raw on new space", |raw| raw.published_of_raw_new.map(|share| format!("{:.1} %", share * 100.0))),
        ("raw sequential, the same on new space, MB/s", |raw| {
            raw.sequential_new_synced_megabytes_per_second.map(|mb| format!("{mb:.0}"))
        }),
        ("delivered MB/s, of raw read", |raw| raw.delivered_of_raw.map(|share| format!("{:.1} %", share * 100.0))),
        ("raw sequential read, MB/s", |raw| raw.sequential_read_megabytes_per_second.map(|mb| format!("{mb:.0}"))),
    ];
    for (name, of) in raws {
        row(name, each(&|run| run.raw.as_ref().and_then(of)));
    }
    row("behind, messages", each(&|run| (run.behind > 0).then(|| run.behind.to_string())));
    row("undelivered", each(&|run| (run.undelivered > 0).then(|| run.undelivered.to_string())));
    row("errors", each(&|run| Some(run.errors.iter().map(|e| e.count).sum::<u64>().to_string())));
    let server = |of: fn(&super::result::Server) -> Option<String>| each(&|run| run.server.as_ref().and_then(of));
    row("server, CPU s", server(|s| Some(format!("{:.2}", s.cpu_seconds))));
    row("server, CPU s per million", server(|s| s.cpu_seconds_per_million.map(|cpu| format!("{cpu:.3}"))));
    row("server, peak RSS MiB", server(|s| Some(format!("{:.1}", s.peak_rss_bytes as f64 / (1 << 20) as f64))));
    row("generator busy", each(&|run| Some(format!("{:.0} %", run.generator.busy * 100.0))));
    row("ramp found, msg/s", each(&|run| run.ramp.as_ref().map(|r| r.found.map_or("none".into(), |rate| format!("{rate:.0}")))));
    row("verify", each(&|run| run.verify.as_ref().map(|v| if v.ok { "ok".into() } else { "FAILED".into() })));
    out + "</tbody></table></div>\n"
}

/// The steps of each ramp, and why it went on as it did.
fn ramps(runs: &[Run]) -> String {
    let mut out = String::new();
    for run in runs {
        for step in run.ramp.iter().flat_map(|ramp| &ramp.steps) {
            let _ = writeln!(out, "<li>{}: {}</li>", escaped(&run.label), escaped(&super::ramp::line(step)));
        }
    }
    if out.is_empty() { out } else { format!("<h2>Ramp</h2>\n<ul>\n{out}</ul>\n") }
}

fn trouble(runs: &[Run]) -> String {
    let mut out = String::new();
    for run in runs {
        let label = escaped(&run.label);
        for error in &run.errors {
            let _ = writeln!(out, "<li>{label}: {} × {}</li>", error.count, escaped(&error.text));
        }
        if run.undelivered > 0 {
            let what = format!("{} deliveries of acknowledged messages did not come before the end", run.undelivered);
            let _ = writeln!(out, "<li class=\"bad\">{label}: {what}</li>");
        }
        if let Some(verdict) = run.verify.as_ref().filter(|verdict| !verdict.ok) {
            let what = format!("{}, {} broken of {}", table::missing(verdict), verdict.broken, verdict.acknowledged);
            let _ = writeln!(out, "<li class=\"bad\">{label}: verify FAILED: {what}</li>");
        }
    }
    if out.is_empty() { out } else { format!("<h2>Errors</h2>\n<ul>\n{out}</ul>\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_written_as_they_are_meant() {
        let axis = Axis::linear("seconds", 0.9, seconds);
        let texts: Vec<&str> = axis.ticks.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
    }
}
