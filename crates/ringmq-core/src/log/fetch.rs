//! Answers to a reader of a partition's log that asks for an offset.

use crate::base::Position;
use crate::format::batch::Batch;

/// The answer for one offset, which is the start of a batch.
#[derive(Debug, Clone)]
pub enum Fetch {
    /// The batch that stands there, verified.
    Batch(Batch),
    /// The batch has to be read first: ask again when the partition is readable.
    Pending,
    /// The batch cannot be read now: the device refuses, or damage took it and another replica is asked for it. Nothing is skipped: the
    /// store tries again with growing pauses and says when the partition is readable. Buffers lent for the read may be used elsewhere
    /// meanwhile.
    Held,
    /// The durable log ends here.
    End,
    /// The batches there are lost to damage; the log goes on at `to`.
    Lost { from: Position, to: Position },
    /// Retention removed the requested batch: continue at `start`.
    Below { start: Position },
}
