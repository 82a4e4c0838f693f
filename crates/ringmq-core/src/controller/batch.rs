//! Transactions of records: their compares, the number in flight, and the number of records of the next one.

use super::PartitionKey;
use crate::base::NodeId;
use crate::metadata::keys::Key;
use crate::metadata::record::{PartitionRecord, Tag, encode};
use crate::metadata::request::{Compare, Op, Txn};
use crate::metadata::view::{Entry, View};
use std::collections::BTreeMap;

/// Partitions of a transaction at most. With their compares they stay below the store's limit.
const BATCH_MAX: usize = 100;
/// Compares of a transaction, at most.
const COMPARES_MAX: usize = 124;
/// The controller's writes are numbered apart from those that its node makes as a leader in the same session.
const TAGS: u64 = 1 << 62;
/// Transactions on their way, at most.
const IN_FLIGHT_MAX: usize = 4;

/// Records to write at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    pub partitions: Vec<PartitionKey>,
    pub txn: Txn,
}

#[derive(Debug)]
pub(super) struct Writes {
    /// Batches on their way.
    batches: usize,
    /// Records of the next batch, at most.
    batch_max: usize,
    /// Number of the last record.
    last: u64,
}

impl Writes {
    pub fn new() -> Writes {
        Writes { batches: 0, batch_max: BATCH_MAX, last: 0 }
    }

    pub fn may_begin(&self) -> bool {
        self.batches < IN_FLIGHT_MAX
    }

    pub fn tag(&mut self, session: u64) -> Tag {
        self.last += 1;
        Tag { session, number: TAGS | self.last }
    }

    pub fn begun(&mut self) {
        self.batches += 1;
    }

    /// Takes a batch's outcome. A record that changed meanwhile fails all others of its transaction: smaller batches follow.
    pub fn settled(&mut self, batch: &Batch, succeeded: bool) {
        self.batches = self.batches.saturating_sub(1);
        self.batch_max = if succeeded { (self.batch_max * 2).min(BATCH_MAX) } else { (batch.partitions.len() / 2).max(1) };
    }

    pub fn has_room(&self, draft: &Draft) -> bool {
        draft.partitions.len() < self.batch_max && draft.compares.len() + draft.sessions.len() < COMPARES_MAX
    }

    /// Forgets the batches on their way.
    pub fn clear(&mut self) {
        *self = Writes { last: self.last, ..Writes::new() };
    }
}

/// A batch that is being put together.
#[derive(Default)]
pub(super) struct Draft {
    partitions: Vec<PartitionKey>,
    /// Sessions that the batch relies on; 0: the node has none.
    sessions: BTreeMap<NodeId, u64>,
    compares: Vec<Compare>,
    then: Vec<Op>,
}

impl Draft {
    pub fn add(&mut self, view: &View, at: PartitionKey, before: &Entry<PartitionRecord>, next: &PartitionRecord) {
        let key = view.layout().key(&Key::Partition(at.0, at.1));
        self.compares.push(Compare::ModRevision { key: key.clone(), is: before.mod_revision });
        if let Some(leader) = next.leader.filter(|l| before.value.leader != Some(*l)) {
            self.sessions.insert(leader.node, leader.session);
            // The record may be newer than the leader's session in this view.
            let before = before.value.leader.map(|l| l.node);
            self.sessions.extend(before.map(|node| (node, view.session(node).unwrap_or(0))));
        }
        self.then.push(Op::Put { key, value: encode(next), lease: None });
        self.partitions.push(at);
    }

    /// `None`: there is nothing to write.
    pub fn batch(self, view: &View, term: u64) -> Option<Batch> {
        let Draft { partitions, sessions, compares, then } = self;
        if partitions.is_empty() {
            return None;
        }
        let layout = view.layout();
        let fixed = [
            Compare::Value { key: layout.key(&Key::Id), is: view.cluster_value().clone() },
            Compare::CreateRevision { key: layout.key(&Key::Controller), is: term },
        ];
        let of_node = |(node, is): (&NodeId, &u64)| Compare::CreateRevision { key: layout.key(&Key::Node(*node)), is: *is };
        // The keys that may have made it fail are read, so that the next attempt does not fail by them again.
        let of_partition = |at: &PartitionKey| Key::Partition(at.0, at.1);
        let others = [Key::Controller].into_iter().chain(sessions.keys().map(|node| Key::Node(*node)));
        let read = others.chain(partitions.iter().map(of_partition));
        let otherwise = read.map(|key| Op::Get { key: layout.key(&key) }).collect();
        let compares = fixed.into_iter().chain(sessions.iter().map(of_node)).chain(compares).collect();
        Some(Batch { txn: Txn { compares, then, otherwise }, partitions })
    }
}
