//! Reads of a partition: which are under way, and how to read next.

/// See the module's description.
#[derive(Debug, Default)]
pub struct Reading {
    /// Offsets at which the reads in flight began.
    under_way: Vec<i64>,
    /// The partition stands in the reader's line for memory.
    is_waiting: bool,
    /// Offset below which a read failed: batches are read one by one up to it.
    careful_until: i64,
    /// Length of the batch that was read from a segment last: others are probably as long.
    batch_len: u32,
}

impl Reading {
    pub fn begin(&mut self, offset: i64) {
        self.under_way.push(offset);
    }

    pub fn end(&mut self, offset: i64) {
        self.under_way.retain(|&o| o != offset);
    }

    pub fn is_under_way(&self, offset: i64) -> bool {
        self.under_way.contains(&offset)
    }

    /// Reads in flight.
    pub fn count(&self) -> usize {
        self.under_way.len()
    }

    /// Puts the partition into the reader's line, unless it stands there. Returns whether it has to be added.
    pub fn wait(&mut self) -> bool {
        !std::mem::replace(&mut self.is_waiting, true)
    }

    /// The partition left the line.
    pub fn leave_line(&mut self) {
        self.is_waiting = false;
    }

    /// Whether a batch is read alone.
    pub fn is_careful(&self, offset: i64) -> bool {
        offset < self.careful_until
    }

    /// A read that went so far failed.
    pub fn be_careful(&mut self, until: i64) {
        self.careful_until = self.careful_until.max(until);
    }

    /// The log ends here.
    pub fn truncate(&mut self, offset: i64) {
        self.careful_until = self.careful_until.min(offset);
    }

    /// Length that the next batch probably has; zero: unknown.
    pub fn batch_len(&self) -> u32 {
        self.batch_len
    }

    pub fn found_batch(&mut self, len: usize) {
        self.batch_len = len as u32;
    }
}
