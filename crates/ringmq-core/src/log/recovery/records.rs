//! Journal records of a partition: which of them its snapshot contains, and whether the journals have all that came since.
//!
//! A partition's records are numbered from 1, one more each. A number that is missing is damage, unless a damaged write explains it.

/// Journal records of one partition, as recovery comes to them.
pub struct Records {
    /// Sequence of the last record that is contained or was redone.
    last: u64,
    /// Sequence of the last record that the snapshot contains.
    contained: u64,
    /// Sequence above any that was ever used: the last one, where those before are unknown.
    floor: u64,
    /// True if the contained records are unknown: all found records are redone.
    is_unknown: bool,
    /// True without a snapshot: the journals must begin with the partition's first record, if it has any.
    expects_first: bool,
    /// True if the files show that the partition had records: if the journals have none, they are lost.
    needs_first: bool,
    /// True if only one snapshot slot is valid. It is complete if the journals have the record behind its last one; otherwise facts of
    /// another slot may be lost.
    is_unproven: bool,
    /// A damaged write without facts, or whose facts a copy has, explains that records are missing.
    is_gap_explained: bool,
    /// True if facts of a truncated write are kept: they may refer to batches truncated with it.
    has_kept: bool,
    /// The journals hold a record that the snapshot contains, or the first one behind: so they have all since.
    has_witness: bool,
}

/// Records that are missing before the next one of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gap {
    None,
    /// The partition's first record is missing, and no snapshot holds.
    First,
    /// Number of missing records.
    Missing(u64),
}

impl Records {
    /// Records of a partition without a snapshot. `needs_first`: its files tell that there were records.
    pub fn fresh(floor: u64, needs_first: bool) -> Records {
        Records {
            last: 0,
            contained: 0,
            floor,
            is_unknown: false,
            expects_first: true,
            needs_first,
            is_unproven: false,
            is_gap_explained: false,
            has_kept: false,
            has_witness: false,
        }
    }

    /// Records behind a snapshot that contains those up to `contained`. `is_unproven`: no other slot holds.
    pub fn behind(contained: u64, floor: u64, is_unproven: bool) -> Records {
        Records { last: contained, contained, expects_first: false, is_unproven, ..Records::fresh(floor, false) }
    }

    /// Records of a partition whose snapshots are lost.
    pub fn unknown(floor: u64) -> Records {
        Records { last: floor, is_unknown: true, expects_first: false, ..Records::fresh(floor, false) }
    }

    /// The next record of a journal. True: it is to be redone.
    pub fn see(&mut self, sequence: u64) -> (Gap, bool) {
        let is_first_missing = std::mem::take(&mut self.expects_first) && sequence > 1 && !self.is_gap_explained;
        if is_first_missing {
            self.lose_first();
        }
        self.has_witness |= sequence <= self.contained + 1;
        let is_new = sequence > self.last || self.is_unknown;
        let missing = sequence.saturating_sub(self.last + 1);
        let gap = match missing {
            _ if is_first_missing => Gap::First,
            1.. if !self.is_unknown && !self.is_gap_explained => Gap::Missing(missing),
            _ => Gap::None,
        };
        self.last = self.last.max(sequence);
        (gap, is_new)
    }

    /// A fact of a write that is truncated. Records before it may be truncated with it. True: it is to be redone.
    pub fn see_kept(&mut self, sequence: u64) -> bool {
        let is_new = sequence > self.last || self.is_unknown;
        self.has_kept |= is_new;
        self.last = self.last.max(sequence);
        is_new
    }

    /// The first record is lost, and which ones are contained is unknown.
    pub fn lose_first(&mut self) {
        (self.expects_first, self.is_unknown) = (false, true);
        self.last = self.last.max(self.floor);
    }

    pub fn explain_gap(&mut self) {
        self.is_gap_explained = true;
    }

    /// Sequence of the last record that is contained or was redone.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The sequences are known, from a snapshot or from the first record on.
    pub fn is_known(&self) -> bool {
        !self.is_unknown && !self.expects_first
    }

    /// The snapshot has all that there was, or the journals have all since.
    pub fn is_proven(&self) -> bool {
        !self.is_unproven || self.has_witness
    }

    pub fn needs_first(&self) -> bool {
        self.needs_first
    }

    pub fn is_gap_explained(&self) -> bool {
        self.is_gap_explained
    }

    pub fn has_kept(&self) -> bool {
        self.has_kept
    }

    pub fn has_witness(&self) -> bool {
        self.has_witness
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: u64 = 1 << 32;

    #[test]
    fn records_behind_a_snapshot_are_new_and_a_missing_one_is_noticed() {
        let mut records = Records::behind(7, FLOOR, true);
        assert_eq!((records.see(5), records.is_proven(), records.is_known()), ((Gap::None, false), true, true));
        assert_eq!((records.see(8), records.see(11)), ((Gap::None, true), (Gap::Missing(2), true)));
        assert_eq!(records.last(), 11);
        let mut next = Records::behind(7, FLOOR, true);
        assert!(!next.is_proven());
        assert_eq!((next.see(8), next.is_proven()), ((Gap::None, true), true), "the first one behind it is there");
        let mut late = Records::behind(7, FLOOR, true);
        assert_eq!((late.see(9), late.is_proven()), ((Gap::Missing(1), true), false));
        let mut explained = Records::behind(7, FLOOR, false);
        explained.explain_gap();
        assert_eq!(explained.see(9), (Gap::None, true));
    }

    #[test]
    fn without_a_snapshot_the_journal_begins_with_the_first_record_or_all_are_redone() {
        let mut fresh = Records::fresh(FLOOR, false);
        assert!(!fresh.is_known());
        assert_eq!((fresh.see(1), fresh.see(2), fresh.is_known()), ((Gap::None, true), (Gap::None, true), true));
        let mut lost = Records::fresh(FLOOR, true);
        assert_eq!((lost.see(2), lost.is_known(), lost.last()), ((Gap::First, true), false, FLOOR));
        assert_eq!((lost.see(3), lost.last()), ((Gap::None, true), FLOOR), "it is unknown whether it is contained");
        let mut unknown = Records::unknown(FLOOR);
        assert_eq!((unknown.see(9), unknown.see(4)), ((Gap::None, true), (Gap::None, true)));
    }

    #[test]
    fn a_fact_of_a_write_that_is_truncated_is_redone_once() {
        let mut records = Records::behind(7, FLOOR, false);
        assert!(!records.see_kept(7) && !records.has_kept());
        assert!(records.see_kept(9) && records.has_kept() && !records.see_kept(9));
    }
}
