//! Result of a run, as `--json` writes it and `ringmq load report` reads it. Fields may be added, not changed.

use super::ledger::Verdict;
use super::options::Options;
use super::raw::Raw;
use super::record::Count;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

pub const FORMAT: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// [`FORMAT`]
    pub format: u32,
    pub label: String,
    pub started_unix_ms: u64,
    pub target: Target,
    pub setup: Setup,
    /// Measured time.
    pub seconds: f64,
    pub published: Option<Flow>,
    pub delivered: Option<Flow>,
    /// Latency from the intended send time to the answer, per publish (an MPUB is one).
    pub publish_latency: Option<Latency>,
    /// Latency from the intended send time to the delivery, per message.
    pub end_to_end_latency: Option<Latency>,
    /// Messages that the open loop should have sent in the measured time and could not.
    pub behind: u64,
    /// Deliveries of acknowledged messages, due in the measured time, that did not come; they stand in `end_to_end_latency` with their
    /// waiting time.
    pub undelivered: u64,
    pub errors: Vec<ErrorCount>,
    pub series: Vec<Second>,
    pub generator: Generator,
    pub server: Option<Server>,
    pub verify: Option<Verdict>,
    pub ramp: Option<Ramp>,
    /// Raw device figures of `--raw`.
    pub raw: Option<Raw>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub address: String,
    pub protocol: String,
    /// Kind of the server. Over the native protocol: RingMQ. Over NSQ, where a server tells its version alone: the process name of
    /// `--server-pid`.
    pub kind: Option<String>,
    /// Version that the server reports in the handshake.
    pub version: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub mode: String,
    /// Messages per second of the open loop; none: closed loop.
    pub rate: Option<f64>,
    pub size: String,
    pub batch: u32,
    pub connections: u32,
    pub consumers: u32,
    pub in_flight: u32,
    pub topics: usize,
    pub channels: usize,
    pub rdy: u32,
    pub warm_up_seconds: f64,
    pub threads: usize,
    /// Asked for of topics that were made; none: as the node decided.
    pub partitions: Option<u16>,
    /// Duration that was asked for; the measured duration is [`Run::seconds`].
    pub duration_seconds: f64,
    pub verify: bool,
    pub output_buffer_timeout_ms: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flow {
    pub messages: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    pub messages_per_second: f64,
    /// 10^6 bytes.
    pub megabytes_per_second: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    pub count: u64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub p99_99_us: f64,
    pub max_us: f64,
    /// Pairs of a percentile (0 to 100) and its microseconds, for plots.
    pub percentiles: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorCount {
    pub text: String,
    pub count: u64,
}

/// Line of progress: one interval of the measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Second {
    /// Seconds from the start of the measurement to the end of the interval.
    pub at: f64,
    pub published_per_second: f64,
    pub delivered_per_second: f64,
    /// Median latency of deliveries if the run has them, else of publishes; `None` when nothing came.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Generator {
    pub cpu_seconds: f64,
    /// Share of time in which the load generator's threads were busy; near 1 the load generator is the limit.
    pub busy: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    pub pid: u32,
    pub cpu_seconds: f64,
    /// CPU seconds per million published messages, in mode consume delivered ones.
    pub cpu_seconds_per_million: Option<f64>,
    /// Resident memory during the run, looked at ten times a second.
    pub peak_rss_bytes: u64,
    /// Highest resident memory since the server started.
    pub lifetime_peak_rss_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ramp {
    pub p99_limit_us: f64,
    /// The highest rate that kept it; none did.
    pub found: Option<f64>,
    pub steps: Vec<RampStep>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RampStep {
    pub rate: f64,
    pub messages_per_second: f64,
    pub p99_us: f64,
    pub undelivered: u64,
    pub kept: bool,
    /// Limits that the step broke, if the step is not kept.
    pub broke: Vec<String>,
}

impl Setup {
    pub fn of(options: &Options) -> Self {
        let mode = options.mode;
        Setup {
            mode: mode.name().into(),
            rate: options.rate,
            size: options.size.to_string(),
            batch: options.batch,
            connections: if mode.produces() { options.producers } else { 0 },
            consumers: if mode.consumes() { options.consumers } else { 0 },
            in_flight: options.in_flight,
            topics: options.topics.len(),
            channels: options.channels.len(),
            rdy: options.rdy,
            warm_up_seconds: options.warm_up.as_secs_f64(),
            threads: options.threads,
            partitions: options.partitions,
            duration_seconds: options.duration.as_secs_f64(),
            verify: options.verify,
            output_buffer_timeout_ms: options.output_buffer_timeout.map(|timeout| timeout.as_secs_f64() * 1e3),
        }
    }

    /// The result as one line for people.
    pub fn line(&self) -> String {
        let mut parts = vec![self.mode.clone()];
        if self.connections > 0 {
            parts.push(match self.rate {
                Some(rate) => format!("open loop {rate} msg/s"),
                None => "closed loop".into(),
            });
            parts.push(format!("size {}", self.size));
            parts.push(format!("batch {}", self.batch));
            parts.push(format!("{} connection(s) with {} in flight", self.connections, self.in_flight));
        }
        if self.consumers > 0 {
            parts.push(format!("{} consumer(s) with RDY {}", self.consumers, self.rdy));
        }
        parts.push(format!("{} topic(s), {} channel(s), {} thread(s)", self.topics, self.channels, self.threads));
        parts.extend(self.partitions.map(|n| format!("{n} partition(s) each")));
        parts.extend(self.output_buffer_timeout_ms.map(|ms| format!("output buffer timeout {ms} ms")));
        parts.extend(self.verify.then(|| "verified".to_string()));
        parts.join(", ")
    }
}

impl Flow {
    pub fn of(count: Count, seconds: f64) -> Self {
        let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        Flow {
            messages: count.messages,
            bytes: count.bytes,
            messages_per_second: per_second(count.messages),
            megabytes_per_second: per_second(count.bytes) / 1e6,
        }
    }
}

pub fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

impl Latency {
    /// `None` when nothing was timed.
    pub fn of(ns: &Histogram<u64>) -> Option<Self> {
        if ns.is_empty() {
            return None;
        }
        let at = |share: f64| us(ns.value_at_quantile(share));
        // The iterator's last steps repeat the largest value at 100 %.
        let mut percentiles: Vec<(f64, f64)> = Vec::new();
        for value in ns.iter_quantiles(5) {
            let percentile = value.quantile_iterated_to() * 100.0;
            if percentiles.last().is_none_or(|(last, _)| *last < percentile) {
                percentiles.push((percentile, us(value.value_iterated_to().min(ns.max()))));
            }
        }
        Some(Latency {
            count: ns.len(),
            mean_us: ns.mean() / 1000.0,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            p99_99_us: at(0.9999),
            max_us: us(ns.max()),
            percentiles,
        })
    }
}

/// The text form that HdrHistogram's plotters read; values in milliseconds.
pub fn hgrm(ns: &Histogram<u64>) -> String {
    use std::fmt::Write as _;
    let ms = |ns: f64| ns / 1e6;
    let mut out = format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    // A String takes all that is written to it.
    let mut total = 0;
    for value in ns.iter_quantiles(5) {
        total += value.count_since_last_iteration();
        let (at, share) = (ms(value.value_iterated_to().min(ns.max()) as f64), value.quantile_iterated_to());
        let _ = write!(out, "{at:12.6} {share:2.12} {total:>10}");
        let _ = if share < 1.0 { writeln!(out, " {:14.2}", 1.0 / (1.0 - share)) } else { writeln!(out) };
    }
    let _ = writeln!(out, "#[Mean    = {:12.6}, StdDeviation   = {:12.6}]", ms(ns.mean()), ms(ns.stdev()));
    let _ = writeln!(out, "#[Max     = {:12.6}, Total count    = {:12}]", ms(ns.max() as f64), ns.len());
    let _ = writeln!(out, "#[Buckets = {:12}, SubBuckets     = {:12}]", ns.buckets(), 2048);
    out
}
