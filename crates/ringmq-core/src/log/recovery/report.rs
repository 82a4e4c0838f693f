//! Findings and actions of recovery, for the log and for tests.

use crate::base::FileId;
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Severity {
    /// A repair without a loss: a torn tail that was never acknowledged, a file that was rebuilt.
    Repaired,
    /// A copy of two did not hold. Nothing was lost: the other one was used, and this one is written again from it. The device is going
    /// bad.
    Mended,
    /// Data that was stored can no longer be read, or may be missing.
    Damage,
}

/// Unexpected state that recovery found, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub file: FileId,
    /// Byte position in the file.
    pub at: Option<u64>,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(at) = self.at {
            write!(f, " at byte {at}")?;
        }
        write!(f, ": {}", self.what)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Journals whose writes were redone, and those that an earlier start had closed.
    pub journals_replayed: u64,
    pub journals_closed: u64,
    pub writes: u64,
    pub records: u64,
    /// Batches that a journal held and their segment did not.
    pub batches_redone: u64,
    pub bytes_redone: u64,
    /// Batches that stood in a segment beyond everything the snapshot and the journal knew.
    pub batches_found: u64,
    pub partitions_written: u64,
}

impl Report {
    pub(crate) fn note(&mut self, severity: Severity, file: &FileId, at: Option<u64>, what: impl Into<String>) {
        self.findings.push(Finding { severity, file: file.clone(), at, what: what.into() });
    }

    pub fn has_damage(&self) -> bool {
        self.findings.iter().any(|f| f.severity == Severity::Damage)
    }
}
