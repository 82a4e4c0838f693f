//! A node's lease. It counts once the node has read the metadata as of the lease's revision (rule 17).
//!
//! A store that renews a lease promises one thing: until the lease ends, it makes no other node the leader of a partition that this node
//! leads *by the metadata of that revision*. So the node must have read all changes up to that revision.
//!
//! ```text
//! revision   5        6: another leader is named       7
//! store   ───┼────────┼────────────────────────────────┼──>
//! lease      renewed at 5: holds to its end            renewed at 7: counts when the node has read up to 7, and then the node
//!                      the other leader waits for it    knows that it leads no more
//! ```
//! So a node whose lease lapsed serves nothing before it has read the metadata anew; one whose lease is renewed in time goes on
//! while it reads.

use crate::base::Ticks;
use std::collections::VecDeque;

/// Renewals whose metadata is still to be read; an older one is given up for a newer one.
const WAITING_MAX: usize = 16;

/// Lease of a node, as one of its cores knows it.
#[derive(Debug, Default)]
pub struct Lease {
    until: Ticks,
    /// Revision up to which all changes of the metadata are known here.
    read: u64,
    /// Renewals at later revisions: revision and end, both rising.
    waiting: VecDeque<(u64, Ticks)>,
}

impl Lease {
    /// Time until which the node may serve its partitions, by its own clock.
    pub fn until(&self) -> Ticks {
        self.until
    }

    /// The store renewed the lease at `revision`, and it holds to `until`, by the node's clock counted from the sending of the request.
    /// May be old or repeated.
    pub fn renewed(&mut self, until: Ticks, revision: u64) {
        if revision <= self.read {
            self.until = self.until.max(until);
        } else if self.waiting.back().is_none_or(|(_, last)| until > *last) {
            if self.waiting.len() == WAITING_MAX {
                self.waiting.pop_back();
            }
            self.waiting.push_back((revision, until));
        }
    }

    /// Records that all changes of the metadata up to `revision` are known.
    pub fn has_read(&mut self, revision: u64) {
        self.read = self.read.max(revision);
        while let Some((_, until)) = self.waiting.pop_front_if(|(at, _)| *at <= self.read) {
            self.until = self.until.max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_once_the_metadata_of_its_revision_was_read() {
        let mut lease = Lease::default();
        assert_eq!(lease.until(), Ticks(0), "it begins as over");
        lease.renewed(Ticks(100), 7);
        lease.has_read(6);
        assert_eq!(lease.until(), Ticks(0));
        lease.has_read(7);
        assert_eq!(lease.until(), Ticks(100));
        lease.renewed(Ticks(150), 7);
        assert_eq!(lease.until(), Ticks(150), "nothing changed since");
        // Another change: a renewal before it holds, a renewal after it waits.
        lease.renewed(Ticks(200), 8);
        lease.renewed(Ticks(250), 9);
        assert_eq!(lease.until(), Ticks(150));
        lease.has_read(8);
        assert_eq!(lease.until(), Ticks(200));
        lease.has_read(20);
        lease.renewed(Ticks(240), 8);
        assert_eq!(lease.until(), Ticks(250), "an old word takes nothing away");
    }

    #[test]
    fn a_node_that_reads_slowly_gets_its_lease_all_the_same_and_remembers_a_bounded_number() {
        let mut lease = Lease::default();
        (1..1000).for_each(|n| lease.renewed(Ticks(n), n));
        assert_eq!(lease.waiting.len(), WAITING_MAX);
        lease.has_read(1);
        assert_eq!(lease.until(), Ticks(1), "the store is always ahead");
        lease.has_read(999);
        assert_eq!(lease.until(), Ticks(999), "the newest is kept, too");
    }
}
