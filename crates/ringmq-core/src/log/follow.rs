//! Log of a partition with several replicas, beyond what every partition does: the epoch of its own batches, a peer's batches as they
//! are, its promise, its committed end.
//!
//! A partition is one of several replicas from its first promise on ([`Store::log_epoch`]), also over restarts. Its epochs are the
//! metadata's; the node's generation stays that of files and records.

use super::admission::Lack;
use super::notice::{AppendTicket, Io, Notice, PartitionIdx, RecordTicket, Refusal};
use super::replica_state::ReplicaState;
use super::store::{Store, batch_cost};
use super::view::View;
use crate::base::{Epoch, Position};
use crate::format::batch::{BATCH_HEADER_LEN, Batch};
use crate::format::files::RawPosition;
use crate::format::journal::RecordKind;
use crate::format::snapshot::Doubt;
use bytes::Bytes;
use zerocopy::IntoBytes;

/// A settled batch of this length is written to its segment alone.
pub(super) const SETTLED_DIRECT_LEN: usize = 16 * 1024;

impl Store {
    /// The log as the replica's machine sees it; everything in it is in memory.
    pub fn log_view(&self, p: PartitionIdx) -> View<'_> {
        View::new(self.core.part(p))
    }

    /// Sets the epoch of new own batches, not below the epoch of the log's last batch. Earlier batches keep theirs.
    pub fn set_epoch(&mut self, p: PartitionIdx, epoch: Epoch) {
        self.core.seal_open(p);
        self.core.part_mut(p).set_epoch(epoch);
    }

    /// Seals the open batch: the log's end says all that there is.
    pub fn seal_open(&mut self, p: PartitionIdx) {
        self.core.seal_open(p);
    }

    /// Appends a peer's batch as it is, behind the end; its bytes, identity, place, chain and epoch were verified. It becomes durable,
    /// is flushed and counts for producers like an own one. A refusal hands it back: the caller keeps it, and the batches behind it, in
    /// order, until [`Notice::Room`](super::Notice::Room).
    ///
    /// `is_settled`: no commit waits for the batch. It then goes straight to its segment unless it is short, so that a log that catches
    /// up is written once, in writes as large as possible.
    pub fn append_verbatim(
        &mut self,
        p: PartitionIdx,
        batch: Batch,
        is_settled: bool,
        io: &mut Io,
    ) -> Result<AppendTicket, (Refusal, Batch)> {
        self.core.seal_open(p);
        let (h, end) = (&batch.header, self.core.part(p).progress.end());
        assert_eq!((h.start(), h.prev_crc.get()), (end.at, end.chain_crc), "a peer's batch goes on where the log ends");
        assert!(h.epoch.get() >= end.epoch.0, "epochs never fall");
        let len = batch.bytes.len();
        if let Err(why) = self.admit(p, len - BATCH_HEADER_LEN, true, io) {
            return Err((why, batch));
        }
        let is_direct = is_settled && len >= SETTLED_DIRECT_LEN;
        let cost = batch_cost(len, if is_direct { SETTLED_DIRECT_LEN } else { self.core.direct_len() });
        let part = self.core.part_mut(p);
        let ticket = part.push_verbatim(batch, is_direct, cost);
        self.core.admission.take(len as u64, cost);
        self.core.turn.must_seal();
        self.core.mark_unsealed(p);
        Ok(ticket)
    }

    /// The sealed batches in memory from `from` to `end`, for a frame; both are borders of batches there. Each begins with its
    /// header, which says its length (a lost batch is its header alone).
    pub fn tail(&self, p: PartitionIdx, from: i64, end: i64) -> impl Iterator<Item = Bytes> + '_ {
        let part = self.core.part(p);
        let first = part.batches.number_at(from);
        part.batches.from(first).take_while(move |r| r.header().offset.get() < end).map(|r| r.bytes.clone())
    }

    /// Journals the promise to follow no lower epoch. Seals the open batch: a replica reports its log's end only afterwards.
    pub fn log_epoch(&mut self, p: PartitionIdx, epoch: Epoch) -> RecordTicket {
        self.core.seal_open(p);
        let part = self.core.part_mut(p);
        // Until now it was the only replica: its durable end is its committed end.
        let durable = part.progress.durable().at;
        let shared = part.shared.get_or_insert_with(|| Box::new(ReplicaState::new(epoch, durable, Default::default())));
        shared.promise(epoch);
        self.core.fact(p, RecordKind::Epoch, epoch.0.to_le_bytes().to_vec())
    }

    /// The partition, which has promised something, is committed up to `at`. The next turn that writes to the journal anyway says
    /// so there, at most once.
    pub fn log_committed(&mut self, p: PartitionIdx, at: Position) {
        let part = self.core.part_mut(p);
        let durable = part.progress.durable().at.offset;
        let Some(shared) = &mut part.shared else { return };
        let is_due = shared.commit(at);
        let released = shared.release_before(at.offset, durable);
        if released > 0 {
            self.core.admission.done(released);
            self.core.admission.signal(Lack::Memory);
        }
        if is_due {
            self.core.turn.push_commit(p);
        }
    }

    /// Holds published bytes: while `holds`, those of the partition count against `max_pub_waiting_size` until [`Store::log_committed`]
    /// passes them, not only until they are durable here. For a leader of other replicas, from its opening to its closing.
    pub fn hold_until_committed(&mut self, p: PartitionIdx, holds: bool) {
        let part = self.core.part_mut(p);
        let durable = part.progress.durable().at.offset;
        let Some(shared) = &mut part.shared else { return };
        if holds {
            return shared.hold(durable);
        }
        let released = shared.end_hold(durable);
        if released > 0 {
            self.core.admission.done(released);
            self.core.admission.signal(Lack::Memory);
        }
    }

    /// Queues the partitions' committed ends at a turn's end, beside other queued records.
    pub(super) fn record_commits(&mut self) {
        if !self.core.turn.has_commits() || self.core.ring.is_queue_empty() || !self.takes_facts() {
            return;
        }
        for p in self.core.turn.take_commits() {
            let Some(shared) = &mut self.core.part_mut(p).shared else { continue };
            let at = shared.record();
            self.core.fact(p, RecordKind::Committed, RawPosition::from(at).as_bytes().to_vec());
        }
    }

    /// The partition is one replica of several: nothing goes that they have not agreed on.
    pub fn await_agreement(&mut self, p: PartitionIdx) {
        self.core.part_mut(p).borders.await_agreement();
    }

    /// No replica may need messages before `at`. Never moves back.
    pub fn set_agreed_start(&mut self, p: PartitionIdx, at: Position) {
        if self.core.part_mut(p).borders.agree(at) {
            self.core.retention.look_at(p);
        }
    }

    /// The partition may ask for an agreement again: [`Notice::Removable`].
    pub fn look_at_retention(&mut self, p: PartitionIdx) {
        self.core.retention.look_at(p);
    }

    /// Writes `batches`, verified, one behind the other, where damage took them: they begin with a lost range, and those that
    /// end in it and in its segment are taken. [`Notice::Mended`] follows.
    pub fn mend(&mut self, p: PartitionIdx, batches: Vec<Batch>, io: &mut Io) {
        self.mends.begin(&mut self.core, &mut self.flushing, &mut self.reads, p, batches, io);
    }

    /// Lets readers pass lost ranges that end up to `upto`, as on a partition that has no other replica.
    pub fn give_up_lost(&mut self, p: PartitionIdx, upto: i64) {
        if self.core.part_mut(p).shared.as_mut().is_some_and(|shared| shared.give_up(upto)) {
            self.core.notices.push(Notice::Readable { p });
        }
    }

    /// Makes the replica suspect, also after a restart: something that was committed, or said of channels, is lost here.
    pub fn mark_suspect(&mut self, p: PartitionIdx) {
        self.log_doubt(p, Doubt::Lost);
    }

    /// The replica was compared with another one and lacks nothing: it is no longer suspect.
    pub fn clear_suspect(&mut self, p: PartitionIdx) {
        self.log_doubt(p, Doubt::None);
    }

    fn log_doubt(&mut self, p: PartitionIdx, doubt: Doubt) {
        self.core.part_mut(p).damage.set_doubt(doubt);
        self.core.fact(p, RecordKind::Doubt, u64::from(doubt.is_suspect()).to_le_bytes().to_vec());
    }
}
