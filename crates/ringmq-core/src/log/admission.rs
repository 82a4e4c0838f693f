//! Waiting of publishes: bytes that are on their way, the part of the ring that they will take, and the resources whose lack refused a
//! publish.

/// Resource whose lack refused a publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lack {
    /// Allocated space, which is on its way.
    Space,
    /// Space on a full disk.
    Disk,
    /// A free part of the journal.
    Journal,
    /// Memory for bytes that wait to be durable.
    Memory,
}

/// A set of [`Lack`]s.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Lacks(u8);

impl Lacks {
    const ALL: Lacks = Lacks(0b1111);

    fn of(lack: Lack) -> Self {
        Lacks(1 << lack as u8)
    }

    fn add(&mut self, lack: Lack) {
        self.0 |= Lacks::of(lack).0;
    }

    fn shares_any(self, other: Lacks) -> bool {
        self.0 & other.0 != 0
    }
}

#[derive(Default)]
pub(super) struct Admission {
    /// Bytes appended and not durable; of partitions that hold them until then, not committed.
    waiting_bytes: u64,
    /// Bytes of the ring that admitted batches will take.
    unpacked: u64,
    /// Lacks that refused appends, and those that ended since.
    refused: Lacks,
    changed: Lacks,
}

impl Admission {
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub fn unpacked(&self) -> u64 {
        self.unpacked
    }

    /// Counts bytes that were taken, and their cost in the ring.
    pub fn take(&mut self, bytes: u64, cost: u64) {
        self.waiting_bytes += bytes;
        self.unpacked += cost;
    }

    /// `cost` of the space set aside here was queued: from now on the ring's queue counts it.
    pub fn enqueued(&mut self, cost: u64) {
        self.unpacked -= cost;
    }

    /// Counts bytes that no longer wait: durable, or dropped.
    pub fn done(&mut self, bytes: u64) {
        self.waiting_bytes -= bytes;
    }

    /// Counts bytes that were dropped before they were in the ring's queue.
    pub fn dropped(&mut self, bytes: u64, cost: u64) {
        self.done(bytes);
        self.enqueued(cost);
    }

    /// The journal failed: nothing waits any more.
    pub fn drop_all(&mut self) {
        (self.waiting_bytes, self.unpacked) = (0, 0);
    }

    /// Notes that a publish was refused and waits for this resource to change.
    pub fn refuse(&mut self, lack: Lack) {
        self.refused.add(lack);
    }

    pub fn is_refused(&self, lack: Lack) -> bool {
        self.refused.shares_any(Lacks::of(lack))
    }

    /// Signals that a lack may have ended.
    pub fn signal(&mut self, lack: Lack) {
        self.changed.add(lack);
    }

    /// Signals all resources as changed: a refused publish learns by trying which one it was.
    pub fn signal_all(&mut self) {
        self.changed = Lacks::ALL;
    }

    /// True if a refused append may be tried again. Resets the signal.
    pub fn take_signal(&mut self) -> bool {
        let is_worth_it = self.refused.shares_any(std::mem::take(&mut self.changed));
        if is_worth_it {
            self.refused = Lacks::default();
        }
        is_worth_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_refused_tries_again_when_that_has_changed() {
        let mut admission = Admission::default();
        admission.signal_all();
        assert!(!admission.take_signal(), "nobody was refused");
        admission.refuse(Lack::Journal);
        admission.signal(Lack::Disk);
        assert!(!admission.take_signal() && admission.is_refused(Lack::Journal) && !admission.is_refused(Lack::Disk));
        admission.signal(Lack::Journal);
        assert!(admission.take_signal() && !admission.is_refused(Lack::Journal));
        admission.signal(Lack::Journal);
        assert!(!admission.take_signal(), "once");
    }
}
