//! Counts of a core's work since its startup. The shard records; /metrics shows.

use super::buckets::Buckets;
use crate::base::{DiskOp, FileId, IdMap, OpId, Ticks};
use std::collections::BTreeMap;
use std::time::Duration;

/// Kinds of errors come from the code, of clients' commands too; more than these are none.
const ERROR_KINDS_MAX: usize = 64;
const OTHER: &str = "other";

/// Kind of file operation, as /metrics distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskWork {
    JournalWrite,
    Write,
    Read,
    Sync,
}

impl DiskWork {
    pub const ALL: [DiskWork; 4] = [DiskWork::JournalWrite, DiskWork::Write, DiskWork::Read, DiskWork::Sync];

    pub fn name(self) -> &'static str {
        match self {
            DiskWork::JournalWrite => "journal_write",
            DiskWork::Write => "write",
            DiskWork::Read => "read",
            DiskWork::Sync => "sync",
        }
    }

    fn of(request: &DiskOp) -> Option<DiskWork> {
        match request {
            DiskOp::Write { file: FileId::Journal(_), .. } => Some(DiskWork::JournalWrite),
            DiskOp::Write { .. } => Some(DiskWork::Write),
            DiskOp::Read { .. } => Some(DiskWork::Read),
            DiskOp::Sync { .. } => Some(DiskWork::Sync),
            _ => None,
        }
    }
}

/// A copy of this travels to the HTTP thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Time from the append of a publish to its durable end (in a cluster: its commit).
    pub publishes: Buckets,
    /// Time from a message's timestamp to its first delivery.
    pub deliveries: Buckets,
    pub disk: [Buckets; DiskWork::ALL.len()],
    /// Errors by kind.
    pub errors: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
pub struct Counters {
    pub counts: Counts,
    /// The time of the step that is being taken.
    now: Ticks,
    disk: IdMap<OpId, (DiskWork, Ticks)>,
}

impl Counters {
    pub fn begin_step(&mut self, now: Ticks) {
        self.now = now;
    }

    pub fn now(&self) -> Ticks {
        self.now
    }

    pub fn published(&mut self, since: Ticks) {
        self.counts.publishes.record(self.now.since(since));
    }

    /// Messages that go out at `unix_ns` since 1970. The first delivery is timed; a clock that was set back makes it no time.
    pub fn handed_out(&mut self, attempts: u16, unix_ns: i64, stamped_unix_ns: i64, num: u64) {
        if attempts > 1 {
            return;
        }
        let took = u64::try_from(unix_ns.saturating_sub(stamped_unix_ns)).unwrap_or(0);
        self.counts.deliveries.record_many(Duration::from_nanos(took), num);
    }

    pub fn disk_began(&mut self, op: OpId, request: &DiskOp) {
        if let Some(work) = DiskWork::of(request) {
            self.disk.insert(op, (work, self.now));
        }
    }

    pub fn disk_done(&mut self, op: OpId, is_failed: bool) {
        let Some((work, since)) = self.disk.remove(&op) else { return };
        self.counts.disk[work as usize].record(self.now.since(since));
        if is_failed {
            self.failed(match work {
                DiskWork::JournalWrite => "disk_journal_write",
                DiskWork::Write => "disk_write",
                DiskWork::Read => "disk_read",
                DiskWork::Sync => "disk_sync",
            });
        }
    }

    pub fn failed(&mut self, kind: &str) {
        if let Some(count) = self.counts.errors.get_mut(kind) {
            *count += 1;
            return;
        }
        let is_label = kind.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !kind.is_empty() && kind.len() <= 64;
        let kind = if is_label && self.counts.errors.len() < ERROR_KINDS_MAX { kind } else { OTHER };
        *self.counts.errors.entry(kind.to_owned()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::CoreId;

    #[test]
    fn kinds_of_errors_are_bounded_and_safe_in_a_label() {
        let mut counters = Counters::default();
        for i in 0..200 {
            counters.failed(&format!("E_{i}"));
        }
        counters.failed("E_0");
        counters.failed("a\"b");
        counters.failed("");
        let errors = &counters.counts.errors;
        assert_eq!((errors.len(), errors["E_0"], errors[OTHER]), (ERROR_KINDS_MAX + 1, 2, 200 - ERROR_KINDS_MAX as u64 + 2));
    }

    #[test]
    fn an_operation_is_timed_from_its_issue_to_its_end() {
        let mut counters = Counters::default();
        counters.begin_step(Ticks(1_000));
        counters.disk_began(OpId(1), &DiskOp::Sync { file: FileId::Journal(CoreId(0).0) });
        counters.begin_step(Ticks(3_001_000));
        counters.disk_done(OpId(1), true);
        counters.disk_done(OpId(1), true);
        let sync = &counters.counts.disk[DiskWork::Sync as usize];
        assert_eq!((sync.count(), sync.sum_seconds()), (1, 0.003));
        assert_eq!(counters.counts.errors["disk_sync"], 1);
    }
}
