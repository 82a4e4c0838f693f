//! `/stats` as nsqd's text.

use super::{Core, Memory, NodeStats, Topic};
use crate::metrics::stats::{LinkStats, ReplicationStats};
use std::fmt::Write;

impl NodeStats {
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let uptime = self.now_unix_s - self.start_time;
        writeln!(out, "nsqd v{} (ringmq {})", self.version, self.ringmq_version)?;
        writeln!(out, "start_time {}", show_unix_s(self.start_time))?;
        writeln!(out, "uptime {}", show_age(uptime))?;
        writeln!(out, "\nHealth: {}", self.health)?;
        self.memory.iter().try_for_each(|memory| memory.write_text(out))?;
        match self.topics.as_deref() {
            None | Some([]) => writeln!(out, "\nTopics: None")?,
            Some(topics) => {
                write!(out, "\nTopics:")?;
                topics.iter().try_for_each(|topic| topic.write_text(self.now_unix_s, out))?;
            }
        }
        match &self.producers {
            None => writeln!(out, "\nProducers: None")?,
            Some(producers) => {
                writeln!(out, "\nProducers:")?;
                producers.iter().try_for_each(|producer| {
                    let counts = producer.pub_counts.as_deref().unwrap_or_default();
                    let sum: u64 = counts.iter().map(|c| c.count).sum();
                    let topics: Vec<String> = counts.iter().map(|c| format!("{}={}", c.topic, c.count)).collect();
                    let (who, topics) = (producer.identity(), topics.join(","));
                    let age = show_age(self.now_unix_s - producer.connect_ts);
                    writeln!(out, "   [{} {who:<21}] msgs: {sum:<8} topics: {topics} connected: {age}", producer.version)
                })?;
            }
        }
        self.write_own_text(out)
    }

    /// Writes the lines that nsqd does not have, behind all that it has.
    fn write_own_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\nNode:\n   {:<25}\t{}", "spare_bytes", self.spare_bytes)?;
        self.extra.iter().try_for_each(|(name, value)| writeln!(out, "   {name:<25}\t{value}"))?;
        writeln!(out, "\nCores:")?;
        for Core { core, health, connections, turns: t, scrubs, deleting_bytes, links } in &self.cores {
            let times = format!("p50 {} p99 {} p99.9 {} max {} us", t.p50_us, t.p99_us, t.p999_us, t.max_us);
            let stalls = t.stalls;
            let background = format!("scrubs: {scrubs} deleting: {deleting_bytes} bytes");
            writeln!(
                out,
                "   [core {core:<4}] {health} connections: {connections} turns: {} {times} stalls: {stalls} {background}",
                t.count
            )?;
            for LinkStats { node, connected, queued_bytes } in links {
                let state = if *connected { "connected" } else { "not connected" };
                writeln!(out, "      link with {node}: {state} queued: {queued_bytes}")?;
            }
        }
        Ok(())
    }
}

impl Memory {
    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "\nMemory:")?;
        for (name, value) in [
            ("heap_objects", self.heap_objects),
            ("heap_idle_bytes", self.heap_idle_bytes),
            ("heap_in_use_bytes", self.heap_in_use_bytes),
            ("heap_released_bytes", self.heap_released_bytes),
            ("gc_pause_usec_100", self.gc_pause_usec_100),
            ("gc_pause_usec_99", self.gc_pause_usec_99),
            ("gc_pause_usec_95", self.gc_pause_usec_95),
            ("next_gc_bytes", self.next_gc_bytes),
            ("gc_total_runs", self.gc_total_runs),
        ] {
            writeln!(out, "   {name:<25}\t{value}")?;
        }
        Ok(())
    }
}

impl ReplicationStats {
    fn write_text(&self, topic_name: &str, out: &mut String) -> std::fmt::Result {
        let ReplicationStats { partition, role, epoch, committed, end, .. } = self;
        let (leader, isr) = (self.leader.as_deref().unwrap_or("nobody"), self.isr.join(","));
        writeln!(
            out,
            "   *R [{topic_name}/{partition}] {role} epoch: {epoch} leader: {leader} isr: {isr} committed: {committed} end: {end}"
        )?;
        for f in &self.followers {
            let in_sync = if f.in_sync { "in sync" } else { "out of sync" };
            writeln!(
                out,
                "      [{topic_name}/{partition}] follower {}: {}, {in_sync} acked: {} sent: {} lag: {}",
                f.node, f.state, f.acked, f.sent, f.lag
            )?;
        }
        self.alarm.iter().try_for_each(|alarm| writeln!(out, "      [{topic_name}/{partition}] ALARM: {alarm}"))
    }
}

impl Topic {
    fn write_text(&self, now_unix_s: i64, out: &mut String) -> std::fmt::Result {
        let Topic { topic_name, depth, backend_depth, message_count, .. } = self;
        let (paused, e2e) = (if self.paused { "*P " } else { "   " }, self.e2e_processing_latency.text());
        write!(out, "\n{paused}[{topic_name:<15}] depth: {depth:<5} be-depth: {backend_depth:<5} ")?;
        writeln!(out, "msgs: {message_count:<8} e2e%: {e2e}")?;
        self.unreadable.iter().try_for_each(|what| writeln!(out, "   *U [{topic_name}] unreadable: {what}"))?;
        self.channels_lost.iter().try_for_each(|what| writeln!(out, "   *L [{topic_name}] channels lost: {what}"))?;
        self.replication.iter().try_for_each(|r| r.write_text(topic_name, out))?;
        for c in &self.channels {
            let paused = if c.paused { "   *P " } else { "      " };
            write!(out, "{paused}[{:<25}] depth: {:<5} be-depth: {:<5} ", c.channel_name, c.depth, c.backend_depth)?;
            write!(out, "inflt: {:<4} def: {:<4} re-q: {:<5} ", c.in_flight_count, c.deferred_count, c.requeue_count)?;
            let e2e = c.e2e_processing_latency.text();
            writeln!(out, "timeout: {:<5} msgs: {:<8} e2e%: {e2e}", c.timeout_count, c.message_count)?;
            c.held.iter().try_for_each(|why| writeln!(out, "   *H [{}] held: {why}", c.channel_name))?;
            for client in c.clients.iter().flatten() {
                write!(out, "        [{} {:<21}] state: {} ", client.version, client.identity(), client.state)?;
                write!(out, "inflt: {:<4} rdy: {:<4} ", client.in_flight_count, client.ready_count)?;
                write!(out, "fin: {:<8} re-q: {:<8} ", client.finish_count, client.requeue_count)?;
                writeln!(out, "msgs: {:<8} connected: {}", client.message_count, show_age(now_unix_s - client.connect_ts))?;
            }
        }
        Ok(())
    }
}

/// `1h2m3s`, as Go shows a duration of whole seconds.
fn show_age(seconds: i64) -> String {
    let s = seconds.max(0);
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

/// RFC 3339 in UTC. The calendar is counted in years that begin in March, so that a leap day is a year's last.
fn show_unix_s(unix_s: i64) -> String {
    let (days, s) = (unix_s.div_euclid(86_400) + 719_468, unix_s.rem_euclid(86_400));
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_utc() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_286_029, "2026-11-21T18:33:49Z"),
        ] {
            assert_eq!(show_unix_s(unix_s), text);
        }
        assert_eq!((show_age(59), show_age(61), show_age(3_600)), ("59s".into(), "1m1s".into(), "1h0m0s".into()));
    }
}
