//! Appends of publishes: the check for room (rule 10), and a client's own batches.
//!
//! A refused append has stored nothing; a taken one waits, sealed or in the open batch, for the turn's end.

use super::admission::Lack;
use super::native::NativeBatch;
use super::notice::{AppendTicket, Appended, BatchRefusal, Io, NotAppended, PartitionIdx, Refusal};
use super::store::{Store, batch_cost, commit_len};
use crate::base::{Now, Position};
use crate::format::batch::{BATCH_BODY_MAX, BATCH_HEADER_LEN, BatchBuilder, COPY_LEN, CopyOf, DUE_LEN, MESSAGE_OVERHEAD};
use crate::format::files::FILE_HEADER_LEN;
use crate::format::producer::{SequenceError, SequenceVerdict};

impl Store {
    /// [`Store::append_due`] of messages that are due at once.
    pub fn append<'a>(
        &mut self,
        now: Now,
        p: PartitionIdx,
        bodies: impl Iterator<Item = &'a [u8]>,
        count: usize,
        bytes: usize,
        io: &mut Io,
    ) -> Result<AppendTicket, Refusal> {
        self.append_due(now, p, bodies, count, bytes, None, io)
    }

    /// Appends messages to the partition's open batch: all or none, never split over two batches. `bytes`: length of all bodies. With a
    /// due time no channel delivers the messages earlier.
    #[expect(clippy::too_many_arguments)]
    pub fn append_due<'a>(
        &mut self,
        now: Now,
        p: PartitionIdx,
        bodies: impl Iterator<Item = &'a [u8]>,
        count: usize,
        bytes: usize,
        due_unix_ns: Option<i64>,
        io: &mut Io,
    ) -> Result<AppendTicket, Refusal> {
        assert!(count > 0, "an append has messages");
        let options = if due_unix_ns.is_some() { DUE_LEN } else { 0 };
        self.append_with(p, bytes + count * (MESSAGE_OVERHEAD + options), io, |builder| {
            let pushed = bodies.map(|body| builder.push_due(now.unix_ns, due_unix_ns, body)).count();
            assert!(pushed == count, "as announced");
        })
    }

    /// Appends a copy of a message for one channel, with its due time.
    pub fn append_copy(
        &mut self,
        now: Now,
        p: PartitionIdx,
        copy_of: CopyOf<'_>,
        due_unix_ns: i64,
        body: &[u8],
        io: &mut Io,
    ) -> Result<AppendTicket, Refusal> {
        let encoded = MESSAGE_OVERHEAD + DUE_LEN + COPY_LEN + copy_of.channel.len() + body.len();
        self.append_with(p, encoded, io, |builder| builder.push_copy(now.unix_ns, due_unix_ns, copy_of, body))
    }

    /// Appends the messages that `push` adds, `bytes` bytes.
    fn append_with(
        &mut self,
        p: PartitionIdx,
        encoded: usize,
        io: &mut Io,
        push: impl FnOnce(&mut BatchBuilder),
    ) -> Result<AppendTicket, Refusal> {
        if encoded > BATCH_BODY_MAX {
            // Many small messages: each has its head around it, so the limit of a command's body does not rule this out.
            return Err(Refusal::TooBig);
        }
        let is_new = self.admit(p, encoded, false, io)?;
        let direct_len = self.core.direct_len();
        if is_new {
            self.core.seal_open(p);
            self.core.part_mut(p).open.begin(BATCH_HEADER_LEN + encoded);
        }
        let part = &mut self.core.partitions[p.0 as usize];
        let ticket = part.open.next_ticket();
        let before = part.open.len();
        part.open.add(push);
        let grown = part.open.len() - before;
        assert!(grown == encoded + if is_new { BATCH_HEADER_LEN } else { 0 }, "as announced");
        if part.open.len() >= direct_len {
            self.core.turn.must_seal();
        }
        let cost = batch_cost(part.open.len(), direct_len);
        self.core.admission.take(grown as u64, part.open.set_cost(cost));
        self.core.mark_unsealed(p);
        Ok(ticket)
    }

    /// Appends a client's batch as one of its own, behind everything that was appended before. A producer's repeat is
    /// recognized and not stored again. A refusal hands the batch back.
    ///
    /// A batch that was refused as busy or for a full disk must be tried again before any later one of its producer:
    /// that would leave a gap.
    pub fn append_batch(&mut self, now: Now, p: PartitionIdx, batch: NativeBatch, io: &mut Io) -> Result<Appended, NotAppended> {
        match self.judge(p, &batch) {
            Ok(SequenceVerdict::New) => {}
            Ok(SequenceVerdict::Repeat { at, upto }) => return Ok(self.repeated(p, at, upto)),
            // Failed batches are forgotten, so that correct sequences may look wrong.
            Err(_) if self.takes_nothing(p) => return Err(NotAppended { why: Refusal::ReadOnly.into(), batch }),
            Err(why) => return Err(NotAppended { why: why.into(), batch }),
        }
        let len = batch.len();
        if let Err(why) = self.admit(p, len - BATCH_HEADER_LEN, true, io) {
            return Err(NotAppended { why: BatchRefusal::Store(why), batch });
        }
        let cost = batch_cost(len, self.core.direct_len());
        self.core.seal_open(p);
        let part = self.core.part_mut(p);
        let at = part.seal_native(now.unix_ns, batch, cost);
        let ticket = part.open.last_ticket();
        self.core.admission.take(len as u64, cost);
        self.core.turn.must_seal();
        self.core.mark_unsealed(p);
        Ok(Appended::New { at, ticket })
    }

    fn judge(&self, p: PartitionIdx, batch: &NativeBatch) -> Result<SequenceVerdict, SequenceError> {
        match batch.sequence() {
            Some(sequence) => self.core.part(p).producers.sealed().judge(sequence, batch.num()),
            None => Ok(SequenceVerdict::New),
        }
    }

    /// The answer to a repeat waits for the original, when that is not durable yet.
    fn repeated(&self, p: PartitionIdx, at: Option<Position>, upto: i64) -> Appended {
        let part = self.core.part(p);
        let ticket = (upto >= part.progress.durable().at.offset)
            .then(|| part.ticket_at(upto).expect("a producer's batch that is not durable is in memory"));
        Appended::Duplicate { at, ticket }
    }

    /// No publish to the partition until a restart.
    fn takes_nothing(&self, p: PartitionIdx) -> bool {
        self.core.is_read_only() || self.core.part(p).is_closed()
    }

    /// Whether there is memory, journal and disk for `encoded` more bytes (rule 10); whether they begin a new batch.
    /// `alone`: they are one of their own.
    pub(super) fn admit(&mut self, p: PartitionIdx, encoded: usize, alone: bool, io: &mut Io) -> Result<bool, Refusal> {
        if self.takes_nothing(p) {
            return Err(Refusal::ReadOnly);
        }
        if self.core.is_stopping {
            return Err(Refusal::Busy);
        }
        let waiting = self.core.admission.waiting_bytes();
        if waiting > 0 && waiting + encoded as u64 > self.core.options.max_pub_waiting_size {
            self.core.admission.refuse(Lack::Memory);
            return Err(Refusal::Busy);
        }
        let part = &self.core.partitions[p.0 as usize];
        if part.truncation.is_some() {
            self.core.admission.refuse(Lack::Space);
            return Err(Refusal::Busy);
        }
        let open = part.open.len();
        // Small publishes never add up to a batch that would have to go the long way of a direct one.
        let joins = !alone && open > 0 && open + encoded < self.core.direct_len();
        let len = if joins { open + encoded } else { BATCH_HEADER_LEN + encoded };
        let more = batch_cost(len, self.core.direct_len()) - if joins { part.open.cost() } else { 0 };
        if !self.core.ring.admits(self.core.admission.unpacked() + more) {
            self.core.admission.refuse(Lack::Journal);
            return Err(Refusal::Busy);
        }
        let base = part.segments.active().base();
        let (sealed, batches) = if open == 0 || joins { (0, 0) } else { (open as i64, 1) };
        let at = part.progress.end().at.offset + sealed;
        let segment = FILE_HEADER_LEN + (at - base) as u64 + len as u64;
        if segment > self.core.segment_max() && part.progress.end().at.offset + open as i64 > base {
            // It begins the next segment, behind all that was appended before.
            self.core.seal_open(p);
            self.core.part_mut(p).roll();
            self.core.reserve(p, FILE_HEADER_LEN + (BATCH_HEADER_LEN + encoded) as u64, commit_len(1), io)?;
            return Ok(true);
        }
        let batches = part.segments.batches() + batches + 1;
        self.core.reserve(p, segment, commit_len(batches), io)?;
        Ok(!joins)
    }
}
