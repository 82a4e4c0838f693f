//! Counts of the operations in a run of clients, for tests.

/// Counts of the run's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub written: u64,
    pub acknowledged: u64,
    pub refused: u64,
    /// Publishes of which a client of a cluster heard that the outcome is unknown.
    pub unknown: u64,
    pub delivered: u64,
    pub finished: u64,
    /// FINs that an OK made durable, and that were looked for after a crash.
    pub settled: u64,
    /// Acknowledged messages that a recovery found, all recoveries together.
    pub survived: u64,
    /// Messages that were never acknowledged and are lost.
    pub gone: u64,
    /// Delivered messages whose segment is deleted.
    pub deleted: u64,
    /// Topics with messages before their first channel, which got them.
    pub firsts: u64,
    /// Batches that idempotent producers sent again, and answers that call one a duplicate.
    pub repeats: u64,
    pub duplicates: u64,
    /// Delivered over the native protocol.
    pub native_delivered: u64,
    /// Channels that a native Subscribe made, of one partition.
    pub native_channels: u64,
    /// FINs that a native client wrote before a publish that was acknowledged.
    pub native_claims: u64,
    /// Delivered messages that had a due time.
    pub deferred: u64,
    /// REQs for longer than the message timeout.
    pub put_off: u64,
    /// Copies that stood in a log after a startup.
    pub copies: u64,
    /// Copies of deferred publishes that were never delivered, as a startup found them.
    pub forwarded: u64,
}

impl Counts {
    /// Adds the counts of another run.
    pub fn add(&mut self, c: &Counts) {
        self.written += c.written;
        self.acknowledged += c.acknowledged;
        self.refused += c.refused;
        self.unknown += c.unknown;
        self.delivered += c.delivered;
        self.finished += c.finished;
        self.settled += c.settled;
        self.survived += c.survived;
        self.gone += c.gone;
        self.deleted += c.deleted;
        self.firsts += c.firsts;
        self.repeats += c.repeats;
        self.duplicates += c.duplicates;
        self.native_delivered += c.native_delivered;
        self.native_channels += c.native_channels;
        self.native_claims += c.native_claims;
        self.deferred += c.deferred;
        self.put_off += c.put_off;
        self.copies += c.copies;
        self.forwarded += c.forwarded;
    }
}
