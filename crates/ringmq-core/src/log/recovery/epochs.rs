//! The epochs of a log of which no snapshot holds: a binary search of the commit logs finds them, since epochs never fall.
//!
//! Where a record does not hold, an epoch seems to end at the one before it: too early, which only makes two logs share less
//! than they do.

use super::RecoverError;
use super::partition::{Context, Partition};
use super::scan::{commit_index, commit_record_at};
use crate::base::{BLOCK, Epoch};
use crate::format::epochs::Epochs;
use crate::format::files::{COMMIT_RECORD_LEN, CommitRecord};
use crate::format::tail::Tail;

/// Records of one block.
const BLOCK_RECORDS: u64 = (BLOCK / COMMIT_RECORD_LEN) as u64;

impl Partition {
    /// The epochs of the present log: the known ones, or those found in the commit logs. All records are written.
    pub fn find_epochs(&mut self, cx: &mut Context<'_>) -> Result<(), RecoverError> {
        if self.epochs.is_none() {
            let mut epochs = Epochs::default();
            let mut last: Option<CommitRecord> = None;
            for (i, meta) in self.files.segments().iter().enumerate() {
                let (base, end) =
                    (meta.base.offset, self.files.segments().get(i + 1).map_or(self.end.offset, |next| next.base.offset));
                let count = commit_index(cx.storage, &self.dir, base, end)?;
                let mut index = 0;
                while index < count {
                    let Some(first) = commit_record_at(cx.storage, &self.dir, base, index)? else {
                        index = (index / BLOCK_RECORDS + 1) * BLOCK_RECORDS;
                        continue;
                    };
                    if let Some(before) = last.filter(|l| l.epoch.get() < first.epoch.get()) {
                        epochs.close(self.start, tail(&before));
                    }
                    (last, index) = self.last_of_epoch(cx, base, first, index, count)?;
                }
            }
            self.epochs = Some(epochs);
        }
        if let Some(epochs) = &mut self.epochs {
            epochs.trim(self.start);
        }
        Ok(())
    }

    /// The last record at or behind `low`, which is `first`, of the same epoch; and the index behind it.
    fn last_of_epoch(
        &self,
        cx: &mut Context<'_>,
        base: i64,
        first: CommitRecord,
        mut low: u64,
        mut high: u64,
    ) -> Result<(Option<CommitRecord>, u64), RecoverError> {
        let mut last = first;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match commit_record_at(cx.storage, &self.dir, base, middle)? {
                Some(r) if r.epoch == first.epoch => (low, last) = (middle, r),
                _ => high = middle,
            }
        }
        Ok((Some(last), high))
    }
}

fn tail(r: &CommitRecord) -> Tail {
    Tail { at: r.end(), chain_crc: r.batch_crc.get(), epoch: Epoch(r.epoch.get()) }
}
