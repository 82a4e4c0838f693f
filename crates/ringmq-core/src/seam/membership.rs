//! Replicas of a partition by the metadata store, and the way epochs are made.

use crate::base::Epoch;
use crate::base::NodeId;

/// Largest believable number of replicas of one partition.
pub const REPLICAS_MAX: usize = 16;

/// Loss that an operator accepted. From then on the log with which the epoch opened is the partition's. All other data of lower epochs
/// is given up, on every replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GivenUp {
    /// Epoch that opened with the log.
    pub epoch: Epoch,
    /// Last epoch in that log, and the offset of its end.
    pub last_epoch: Epoch,
    pub end: i64,
}

/// Version of a partition's metadata. Versions rise with every change; an older or equal one is ignored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// Version in the metadata store, which a compare-and-swap of the leader names.
    pub version: u64,
    /// Epoch that the leader is to write in; for others the lowest epoch that a leader of this version may have.
    pub epoch: Epoch,
    pub leader: Option<NodeId>,
    /// Replicas, in sync or catching up; at most [`REPLICAS_MAX`].
    pub replicas: Vec<NodeId>,
    /// Replicas that must have a batch durable before it commits.
    pub isr: Vec<NodeId>,
    /// Replicas outside the ISR that an operator may add to it at any time, since a leader reported that they have caught up. They
    /// count as members for this leader. Empty with a metadata store.
    pub joining: Vec<NodeId>,
    /// Smallest ISR that takes a write. At least 1.
    pub min_isr: usize,
    /// Member of the ISR that the leader is to hand over to.
    pub wanted: Option<NodeId>,
    /// Leader of before whose lease may hold: until it does not, nothing is delivered by another one.
    pub former: Option<NodeId>,
    /// Number of replicas that were ever removed. A removed node that becomes a replica again begins empty.
    pub removals: u64,
    pub given_up: Option<GivenUp>,
}

impl Membership {
    /// A partition whose replicas are all in sync.
    pub fn new(version: u64, epoch: Epoch, leader: Option<NodeId>, replicas: Vec<NodeId>, min_isr: usize) -> Membership {
        Membership {
            version,
            epoch,
            leader,
            isr: replicas.clone(),
            replicas,
            joining: vec![],
            min_isr,
            wanted: None,
            former: None,
            removals: 0,
            given_up: None,
        }
    }

    pub fn is_replica(&self, node: NodeId) -> bool {
        self.replicas.contains(&node)
    }

    pub fn is_in_sync(&self, node: NodeId) -> bool {
        self.isr.contains(&node)
    }

    /// True if the node's copy is needed no more: it is no replica, and all that is committed stands at those that are.
    pub fn has_moved_from(&self, node: NodeId) -> bool {
        let counts = self.replicas.iter().chain(&self.joining).chain(&self.former).any(|n| *n == node);
        !counts && self.leader.is_some() && self.has_quorum()
    }

    /// True if enough replicas are in sync for a write, or for a change of a channel with a waiting client.
    pub fn has_quorum(&self) -> bool {
        self.isr.len() >= self.min_isr
    }

    /// Members of the ISR that a leader hears before it opens, itself included. An ISR that is smaller than a raised min_isr is heard as
    /// a whole: it opens, takes no writes, and can grow.
    pub fn opening_quorum(&self) -> usize {
        self.min_isr.min(self.isr.len())
    }

    /// True if the membership is consistent: the ISR lies in the replicas, the leader in the ISR, no node stands twice.
    pub fn is_sane(&self) -> bool {
        let once = |list: &[NodeId]| list.iter().enumerate().all(|(i, n)| !list[..i].contains(n));
        self.replicas.len() <= REPLICAS_MAX
            && self.min_isr >= 1
            && once(&self.replicas)
            && once(&self.isr)
            && self.isr.iter().chain(&self.joining).all(|n| self.is_replica(*n))
            && self.leader.is_none_or(|l| self.is_in_sync(l))
    }
}

/// Lowest epoch of a metadata store: above every epoch of a static file and of a stand-alone node. So a log that began without a store
/// can continue under one.
pub const EPOCH_BASE: u64 = Epoch::STORE_BASE;

const STARTS_BITS: u32 = 20;
/// Epochs of a static file end here.
pub const FILE_EPOCH_MAX: u64 = (1 << 23) - 1;
/// A node with a higher generation cannot lead under a static file.
pub const GENERATION_MAX: u64 = (1 << STARTS_BITS) - 1;
const OPENINGS_BITS: u32 = 20;

/// The epoch of a leader whose metadata cannot be written (the static cluster file): the file's epoch (23 bits), then the
/// node's generation, which each startup raises durably (20 bits), then how often the leader opened in this life (20 bits).
/// So no two openings ever share one, as a file epoch names one leader. `None` when a part is used up: a higher file
/// epoch, or a restart, helps.
pub fn static_epoch(file: u64, generation: u64, openings: u64) -> Option<Epoch> {
    let fits = file <= FILE_EPOCH_MAX && generation < 1 << STARTS_BITS && openings < 1 << OPENINGS_BITS;
    const { assert!(STARTS_BITS + OPENINGS_BITS == Epoch::STATIC_BITS) };
    fits.then_some(Epoch(file << Epoch::STATIC_BITS | generation << OPENINGS_BITS | openings))
}

#[cfg(test)]
mod tests {
    use crate::seam::membership::*;

    #[test]
    fn people_see_the_numbers_that_epochs_were_given_as() {
        let of_file = static_epoch(FILE_EPOCH_MAX, GENERATION_MAX, 7).unwrap();
        assert_eq!([of_file, Epoch(EPOCH_BASE | 5), Epoch(12)].map(Epoch::number), [FILE_EPOCH_MAX, 5, 12]);
    }

    #[test]
    fn static_epochs_rise_with_each_part_and_never_wrap() {
        let e = |f, g, o| static_epoch(f, g, o).unwrap();
        assert!(e(1, 9, 9) < e(1, 9, 10) && e(1, 9, 10) < e(1, 10, 0) && e(1, (1 << 20) - 1, 5) < e(2, 1, 0));
        assert_eq!(e(0, 0, 3), Epoch(3));
        assert_eq!(static_epoch(1 << 23, 1, 1), None);
        assert_eq!(static_epoch(1, 1 << 20, 1), None);
        assert_eq!(static_epoch(1, 1, 1 << 20), None);
        let highest = static_epoch((1 << 23) - 1, (1 << 20) - 1, (1 << 20) - 1).unwrap();
        assert_eq!(highest.0, EPOCH_BASE - 1, "a metadata store's are above");
    }

    #[test]
    fn an_impossible_membership_is_noticed() {
        let n = |i| NodeId([i; 16]);
        let good = Membership { isr: vec![n(1)], ..Membership::new(1, Epoch(1), Some(n(1)), vec![n(1), n(2)], 1) };
        assert!(good.is_sane());
        assert!(!Membership { leader: Some(n(2)), ..good.clone() }.is_sane(), "a leader out of sync");
        assert!(!Membership { isr: vec![n(1), n(3)], ..good.clone() }.is_sane(), "an ISR member that is no replica");
        assert!(!Membership { replicas: vec![n(1), n(1)], ..good.clone() }.is_sane(), "somebody twice");
        assert!(!Membership { min_isr: 0, ..good }.is_sane());
    }

    #[test]
    fn a_copy_is_needed_until_others_lead_with_enough_in_sync_and_no_lease_of_the_node_may_hold() {
        let n = |i| NodeId([i; 16]);
        let moved = Membership { removals: 1, ..Membership::new(1, Epoch(1), Some(n(1)), vec![n(1), n(2)], 2) };
        assert!(moved.has_moved_from(n(3)) && !moved.has_moved_from(n(1)));
        for needed in [
            Membership { leader: None, ..moved.clone() },
            Membership { isr: vec![n(1)], ..moved.clone() },
            Membership { former: Some(n(3)), ..moved.clone() },
            Membership { replicas: vec![n(1), n(2), n(3)], ..moved.clone() },
        ] {
            assert!(!needed.has_moved_from(n(3)), "{needed:?}");
        }
    }
}
