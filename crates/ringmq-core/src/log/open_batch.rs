//! The batch of a partition that messages are still added to, until its turn ends.

use super::memory::BatchMemory;
use super::notice::AppendTicket;
use crate::format::batch::{Batch, BatchBuilder, Stamp};

/// The open batch, and the tickets of the partition's appends.
#[derive(Debug, Default)]
pub struct OpenBatch {
    builder: BatchBuilder,
    /// Bytes of the ring that are set aside for it.
    cost: u64,
    /// Ticket of its first append.
    first_ticket: AppendTicket,
    /// Ticket of the partition's newest append.
    last_ticket: AppendTicket,
}

impl OpenBatch {
    pub fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// Bytes as they stand, header included; 0: it is empty.
    pub fn len(&self) -> usize {
        self.builder.len()
    }

    pub fn cost(&self) -> u64 {
        self.cost
    }

    pub fn last_ticket(&self) -> AppendTicket {
        self.last_ticket
    }

    /// Ticket of the first append in it.
    pub fn unsealed(&self) -> Option<AppendTicket> {
        (!self.is_empty()).then_some(self.first_ticket)
    }

    /// The next append begins the batch, which will have at least `len` bytes.
    pub fn begin(&mut self, len: usize) {
        assert!(self.is_empty(), "what came before stands before it");
        self.first_ticket = AppendTicket(self.last_ticket.0 + 1);
        self.builder.reserve(len);
    }

    /// The ticket of a new append.
    pub fn next_ticket(&mut self) -> AppendTicket {
        self.last_ticket.0 += 1;
        self.last_ticket
    }

    /// Adds the messages that `push` pushes.
    pub fn add(&mut self, push: impl FnOnce(&mut BatchBuilder)) {
        push(&mut self.builder);
    }

    /// Sets `cost` bytes of the ring aside for it. How many more that is.
    pub fn set_cost(&mut self, cost: u64) -> u64 {
        cost - std::mem::replace(&mut self.cost, cost)
    }

    /// The batch as it is sealed: with the tickets of its first and last append, and its cost. Another one may begin.
    pub fn seal(&mut self, stamp: Stamp, memory: &mut BatchMemory) -> (Batch, (AppendTicket, AppendTicket), u64) {
        let batch = self.builder.seal_in(stamp, |bytes| memory.keep(bytes));
        (batch, (self.first_ticket, self.last_ticket), std::mem::take(&mut self.cost))
    }

    /// Drops the messages without a notice. Returns their bytes, and the ring space set aside for them.
    pub fn drop_all(&mut self) -> (u64, u64) {
        let len = std::mem::take(&mut self.builder).len();
        (len as u64, std::mem::take(&mut self.cost))
    }

    /// Gives memory back that a long batch took.
    pub fn shrink(&mut self) {
        self.builder.shrink();
    }
}
