//! Work for other cores that one turn collects, so that a client's messages and a partition's FINs cross in one piece.

use super::parts::CoreParts;
use super::replication::Cluster;
use super::subscription::Subscriptions;
use crate::base::{ConnId, IdMap, LogId, PartitionId, SubId};
use crate::seam::message::MeshMessage;
use rustc_hash::FxHashSet;

#[derive(Default)]
pub(super) struct Bundles {
    /// Messages for clients of other cores.
    frames: IdMap<SubId, Vec<u8>>,
    /// Bytes of those that are for clients of other nodes.
    guest_bytes: usize,
    /// Clients whose core said that their output is full.
    blocked: FxHashSet<SubId>,
    /// FINs of this core's clients for partitions of other cores.
    fins: IdMap<(ConnId, PartitionId), Vec<LogId>>,
}

impl Bundles {
    /// Buffer for the client's messages of this turn.
    pub fn frames_for(&mut self, sub: SubId) -> &mut Vec<u8> {
        self.frames.entry(sub).or_default()
    }

    /// Bytes of messages of this turn for clients of other nodes.
    pub fn guest_bytes(&self) -> usize {
        self.guest_bytes
    }

    pub fn add_guest_bytes(&mut self, bytes: usize) {
        self.guest_bytes += bytes;
    }

    pub fn drop_frames(&mut self, sub: SubId) {
        self.frames.remove(&sub);
    }

    /// The turn's messages, which go on their way. The emptied list is given back. `None`: no client got any.
    #[inline]
    pub fn take_frames(&mut self) -> Option<IdMap<SubId, Vec<u8>>> {
        self.guest_bytes = 0;
        if self.frames.is_empty() { None } else { Some(std::mem::take(&mut self.frames)) }
    }

    pub fn give_back_frames(&mut self, emptied: IdMap<SubId, Vec<u8>>) {
        debug_assert!(emptied.is_empty() && self.frames.is_empty());
        self.frames = emptied;
    }

    /// The client's core says whether its output is full.
    pub fn set_blocked(&mut self, sub: SubId, blocked: bool) {
        if blocked {
            self.blocked.insert(sub);
        } else {
            self.blocked.remove(&sub);
        }
    }

    pub fn is_blocked(&self, sub: SubId) -> bool {
        self.blocked.contains(&sub)
    }

    pub fn finish(&mut self, conn: ConnId, partition: PartitionId, id: LogId) {
        self.fins.entry((conn, partition)).or_default().push(id);
    }

    pub fn has_fins(&self) -> bool {
        !self.fins.is_empty()
    }

    /// Passes on the FINs of this turn for partitions of other cores and nodes.
    #[inline]
    pub fn flush_fins(&mut self, core: &mut CoreParts, cluster: Option<&mut Cluster>, subs: &Subscriptions) {
        if let Some(cluster) = cluster {
            cluster.relays.flush(&mut cluster.peers);
        }
        if self.has_fins() {
            self.pass_fins(core, subs);
        }
    }

    fn pass_fins(&mut self, core: &mut CoreParts, subs: &Subscriptions) {
        for ((conn, partition), ids) in std::mem::take(&mut self.fins) {
            if let Some(to) = subs.part_core(conn, partition) {
                core.outbox.pass(to, MeshMessage::Finish { sub: SubId { core: core.id, conn }, partition, ids });
            }
        }
    }
}
