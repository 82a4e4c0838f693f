//! The end of a run as text.

use super::ledger::Verdict;
use super::result::{Latency, Run};
use std::fmt::Write as _;

/// Microseconds in the unit that reads best.
pub fn time(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{us:.0}us"),
        us if us < 100_000.0 => format!("{:.2}ms", us / 1e3),
        us if us < 1_000_000.0 => format!("{:.0}ms", us / 1e3),
        us => format!("{:.2}s", us / 1e6),
    }
}

/// Name of the server, as far as it is known.
pub fn server(run: &Run) -> String {
    let version = run.target.version.as_deref();
    match &run.target.kind {
        Some(kind) => format!("{kind} {}", version.unwrap_or("of an unknown version")),
        None => version.map_or("of an unknown version".into(), |version| format!("version {version}")),
    }
}

pub fn text(run: &Run) -> String {
    let mut out = String::new();
    // A String takes all that is written to it.
    let _ = writeln!(out, "{}: {} {} (server {})", run.label, run.target.protocol, run.target.address, server(run));
    let _ = writeln!(out, "{}; measured {:.2} s\n", run.setup.line(), run.seconds);
    let _ = writeln!(out, "{:<12} {:>12} {:>12} {:>10}", "", "messages", "msg/s", "MB/s");
    for (name, flow) in [("published", &run.published), ("delivered", &run.delivered)] {
        if let Some(f) = flow {
            let (rate, mb) = (f.messages_per_second, f.megabytes_per_second);
            let _ = writeln!(out, "{name:<12} {:>12} {rate:>12.0} {mb:>10.2}", f.messages);
        }
    }
    let names = ["p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"];
    let _ = write!(out, "\n{:<12}", "latency");
    for name in names {
        let _ = write!(out, " {name:>9}");
    }
    out.push('\n');
    let mut timed = false;
    for (name, latency) in [("publish", &run.publish_latency), ("end to end", &run.end_to_end_latency)] {
        if let Some(latency) = latency {
            let _ = write!(out, "{name:<12}");
            for us in columns(latency) {
                let _ = write!(out, " {:>9}", time(us));
            }
            out.push('\n');
            timed = true;
        }
    }
    if !timed {
        out.push_str("nothing was timed\n");
    }
    out.push('\n');
    notes(run, &mut out);
    out
}

pub fn columns(l: &Latency) -> [f64; 7] {
    [l.p50_us, l.p90_us, l.p99_us, l.p99_9_us, l.p99_99_us, l.max_us, l.mean_us]
}

pub fn missing(verdict: &Verdict) -> String {
    match verdict.late {
        0 => format!("{} lost", verdict.lost),
        late => format!("{late} not delivered within --drain, and deliveries still came: raise --drain"),
    }
}

fn notes(run: &Run, out: &mut String) {
    if run.errors.is_empty() {
        out.push_str("errors: none\n");
    }
    for error in &run.errors {
        let _ = writeln!(out, "errors: {} x {}", error.count, error.text);
    }
    if run.behind > 0 {
        // A few at the very end are only unlucky.
        let sent = run.published.as_ref().map_or(0, |flow| flow.messages);
        let why = if run.behind * 100 > sent { ": the rate is too high" } else { "" };
        let _ = writeln!(out, "behind: {} due messages were not sent before the end{why}", run.behind);
    }
    if run.undelivered > 0 {
        let _ = writeln!(out, "undelivered: {} deliveries of acknowledged messages did not come before the end", run.undelivered);
    }
    if let Some(server) = &run.server {
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        let per = server.cpu_seconds_per_million.map_or("-".into(), |cpu| format!("{cpu:.3}"));
        let _ = writeln!(
            out,
            "server (pid {}): {:.2} CPU s, {per} CPU s per million messages, peak RSS {:.1} MiB ({:.1} MiB since it started)",
            server.pid,
            server.cpu_seconds,
            mib(server.peak_rss_bytes),
            mib(server.lifetime_peak_rss_bytes)
        );
    }
    if let Some(raw) = &run.raw {
        let _ = writeln!(out, "raw: {}", raw.line(run.started_unix_ms));
        for (name, compared) in raw.rows() {
            let _ = writeln!(out, "raw: {name}: {compared}");
        }
    }
    let busy = run.generator.busy * 100.0;
    let limit = if busy > 90.0 { ": the generator may be the limit, raise --threads" } else { "" };
    let _ = writeln!(out, "generator: {:.2} CPU s, busy {busy:.0} %{limit}", run.generator.cpu_seconds);
    if let Some(ramp) = &run.ramp {
        let limit = time(ramp.p99_limit_us);
        let _ = match ramp.found {
            Some(rate) => writeln!(out, "ramp: {rate:.0} msg/s is the highest rate tried that keeps p99 within {limit}"),
            None => writeln!(out, "ramp: no rate tried keeps p99 within {limit}"),
        };
        for step in &ramp.steps {
            let _ = writeln!(out, "ramp: {}", super::ramp::line(step));
        }
    }
    if let Some(v) = &run.verify {
        let word = if v.ok { "ok" } else { "FAILED" };
        let (acknowledged, consumed, missing) = (v.acknowledged, v.consumed, missing(v));
        let _ = writeln!(
            out,
            "verify: {word}: {acknowledged} acknowledged, {consumed} consumed, {missing}, {} broken, {} delivered again",
            v.broken, v.duplicates
        );
        let name = if v.late > 0 { "not delivered" } else { "lost" };
        for example in &v.examples {
            let _ = writeln!(out, "{name}: {example}");
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_are_short() {
        for (us, shown) in [(0.4, "0us"), (999.0, "999us"), (1500.0, "1.50ms"), (250_000.0, "250ms"), (2.5e6, "2.50s")] {
            assert_eq!(super::time(us), shown);
        }
    }
}
