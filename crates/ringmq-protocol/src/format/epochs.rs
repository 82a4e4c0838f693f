//! The epochs of one partition's log: where the batches of each end. Two logs that share an epoch share all before it. So replicas find
//! the common prefix of their logs by comparing these ends.
//!
//! ```text
//! batches   e3 e3 e3 | e5 | e9 e9 ...            closed: (3, end, crc) (5, end, crc)      the last epoch ends at the log's end
//! ```
//! An append adds an entry when the batch's epoch differs from the epoch of the batch before it. A truncation and retention remove
//! entries. A snapshot holds them. Without a valid snapshot, recovery finds the ends by a binary search of the commit logs, since epochs
//! never fall.

use crate::base::{Epoch, Position};
use crate::format::files::{Bad, RawEpochEnd};
use crate::format::tail::{EpochEnd, Tail};
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

/// More are not believed and not kept: the oldest is forgotten, as if retention had taken it.
pub const EPOCHS_MAX: usize = 1 << 16;

/// Epochs of a log, ascending, without the last one, whose end is the log's. Empty, it has allocated nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs {
    closed: VecDeque<EpochEnd>,
}

impl Epochs {
    /// Epochs from a list in the order of [`Epochs::iter`]. `None` when that cannot be: epochs and ends rise.
    pub fn restore(list: Vec<EpochEnd>) -> Option<Epochs> {
        let rises = list.windows(2).all(|w| w[0].epoch < w[1].epoch && w[0].end.offset < w[1].end.offset);
        (rises && list.len() <= EPOCHS_MAX).then(|| Epochs { closed: list.into() })
    }

    /// A batch of another epoch goes on at `end`. `start`: of the log.
    pub fn close(&mut self, start: Position, end: Tail) {
        let last = self.closed.back().map_or(start.offset, |e| e.end.offset.max(start.offset));
        if end.at.offset <= last {
            return; // Nothing of that epoch is stored.
        }
        assert!(self.closed.back().is_none_or(|e| e.epoch < end.epoch), "epochs never fall");
        if self.closed.len() == EPOCHS_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back(end.into());
    }

    /// Removes the entries behind `to`, the end of the truncated log. Returns the epoch of the batch that ends there if that is a closed
    /// epoch; otherwise it is the epoch of the log's last batch before the truncation.
    pub fn truncate(&mut self, to: i64) -> Option<Epoch> {
        let epoch = self.epoch_at(to);
        self.closed.truncate(self.closed.partition_point(|e| e.end.offset < to));
        epoch
    }

    /// The epoch of the batch that ends at `to`, or spans it, when that is closed.
    pub fn epoch_at(&self, to: i64) -> Option<Epoch> {
        let index = self.closed.partition_point(|e| e.end.offset < to);
        self.closed.get(index).map(|e| e.epoch)
    }

    /// The header crc of the batch that ends at `to`, when an epoch does.
    pub fn crc_at(&self, to: i64) -> Option<u32> {
        let index = self.closed.partition_point(|e| e.end.offset < to);
        self.closed.get(index).filter(|e| e.end.offset == to).map(|e| e.chain_crc)
    }

    /// The log begins at `start`.
    pub fn trim(&mut self, start: Position) {
        while self.closed.front().is_some_and(|e| e.end.offset <= start.offset) {
            self.closed.pop_front();
        }
    }

    pub fn clear(&mut self) {
        self.closed.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = EpochEnd> + '_ {
        self.closed.iter().copied()
    }

    pub fn newest_first(&self) -> impl Iterator<Item = EpochEnd> + '_ {
        self.closed.iter().rev().copied()
    }
}

impl EpochEnd {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let raw = RawEpochEnd {
            epoch: self.epoch.0.into(),
            end: self.end.into(),
            chain_crc: self.chain_crc.into(),
            reserved: 0.into(),
        };
        out.extend_from_slice(raw.as_bytes());
    }

    /// Decodes the entry at the start of `bytes`. Returns it and the bytes behind it.
    pub fn decode(bytes: &[u8]) -> Result<(EpochEnd, &[u8]), Bad> {
        let (raw, rest) = RawEpochEnd::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        let end = Position::from(raw.end);
        if !end.is_sane() {
            return Err(Bad::Bounds);
        }
        Ok((EpochEnd { epoch: Epoch(raw.epoch.get()), end, chain_crc: raw.chain_crc.get() }, rest))
    }
}

#[cfg(test)]
mod tests {
    use crate::base::LogId;
    use crate::format::epochs::*;

    fn at(n: i64) -> Position {
        Position { offset: n * 100, count: n, log_id: LogId(n as u64 + 1) }
    }

    fn tail(epoch: u64, n: i64) -> Tail {
        Tail { at: at(n), chain_crc: n as u32, epoch: Epoch(epoch) }
    }

    fn table() -> Epochs {
        let mut epochs = Epochs::default();
        epochs.close(at(0), tail(0, 0));
        [(3, 2), (5, 3), (9, 7)].into_iter().for_each(|(e, n)| epochs.close(at(0), tail(e, n)));
        epochs
    }

    fn shown(epochs: &Epochs) -> Vec<(u64, i64, u32)> {
        epochs.iter().map(|e| (e.epoch.0, e.end.count, e.chain_crc)).collect()
    }

    #[test]
    fn each_epoch_ends_where_the_next_begins() {
        let epochs = table();
        assert_eq!(shown(&epochs), [(3, 2, 2), (5, 3, 3), (9, 7, 7)]);
        assert_eq!(epochs.newest_first().next().unwrap().epoch, Epoch(9));
        assert_eq!((epochs.crc_at(300), epochs.crc_at(301)), (Some(3), None));
    }

    #[test]
    fn a_cut_tells_the_epoch_it_falls_into() {
        for (to, kept, epoch) in [(800, 3, None), (700, 2, Some(9)), (650, 2, Some(9)), (300, 1, Some(5)), (100, 0, Some(3))] {
            let mut epochs = table();
            assert_eq!(epochs.truncate(to).map(|e| e.0), epoch, "{to}");
            assert_eq!(epochs.iter().count(), kept, "{to}");
        }
    }

    #[test]
    fn retention_takes_whole_epochs_and_what_is_not_stored_has_no_end() {
        let mut epochs = table();
        epochs.trim(at(3));
        assert_eq!(shown(&epochs), [(9, 7, 7)]);
        epochs.trim(at(8));
        // All of epoch 12 lies before the start.
        epochs.close(at(8), tail(12, 8));
        assert_eq!(epochs, Epochs::default());
    }

    #[test]
    fn a_list_that_cannot_be_is_refused() {
        let list: Vec<EpochEnd> = table().iter().collect();
        assert_eq!(Epochs::restore(list.clone()), Some(table()));
        assert_eq!(Epochs::restore(vec![list[1], list[0]]), None);
        let same = EpochEnd { end: list[0].end, ..list[1] };
        assert_eq!(Epochs::restore(vec![list[0], same]), None);
        let mut bytes = vec![];
        list[2].encode(&mut bytes);
        assert_eq!(EpochEnd::decode(&bytes), Ok((list[2], &[][..])));
        assert!(EpochEnd::decode(&bytes[..39]).is_err());
    }
}
