//! A channel's cursor as it stands in a snapshot and travels in a journal record.

use super::format::{Bad, CURSOR_FIRST, CURSOR_ORDERED, CURSOR_PAUSED, RawCursor, RawInterval};
use crate::base::{ChannelName, Epoch, LogId, Position};
use zerocopy::{FromBytes, IntoBytes};

/// Messages `start ..= end.log_id - 1` are confirmed. When everything before `start` is confirmed too, the cursor
/// moves to `end`, whose offset is the start of the batch that holds `end.log_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub start: LogId,
    pub end: Position,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorImage {
    pub name: ChannelName,
    pub paused: bool,
    pub ordered: bool,
    /// It was its topic's first channel, so it begins at the oldest message in every partition.
    pub first: bool,
    pub epoch: Epoch,
    /// Raised by set, empty and backward moves; a higher one replaces all that a lower one said.
    pub generation: u64,
    /// Everything before is confirmed. Its offset is the start of the batch that holds `log_id`.
    pub confirmed: Position,
    /// Confirmed beyond that: ascending, disjoint, not touching.
    pub intervals: Vec<Interval>,
}

/// More are not believed. The confirm window keeps a channel far below.
pub const INTERVALS_MAX: usize = 1 << 20;

impl CursorImage {
    pub fn encoded_len(&self) -> usize {
        (size_of::<RawCursor>() + self.name.len() + self.intervals.len() * size_of::<RawInterval>()).next_multiple_of(8)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let len = self.encoded_len();
        let end = out.len() + len;
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let flags = flag(self.paused, CURSOR_PAUSED) | flag(self.ordered, CURSOR_ORDERED) | flag(self.first, CURSOR_FIRST);
        let raw = RawCursor {
            len: (len as u32).into(),
            name_len: (self.name.len() as u16).into(),
            flags: flags.into(),
            epoch: self.epoch.0.into(),
            generation: self.generation.into(),
            confirmed: self.confirmed.into(),
            intervals: (self.intervals.len() as u32).into(),
            reserved: [0; 12],
        };
        out.extend_from_slice(raw.as_bytes());
        out.extend_from_slice(self.name.as_bytes());
        for i in &self.intervals {
            out.extend_from_slice(RawInterval { start_id: i.start.0.into(), end: i.end.into() }.as_bytes());
        }
        out.resize(end, 0);
    }

    /// The cursor at the start of `bytes` and the bytes it takes. The crc around it was verified before.
    pub fn decode(bytes: &[u8]) -> Result<(CursorImage, usize), Bad> {
        let (raw, rest) = RawCursor::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        let (len, n) = (raw.len.get() as usize, raw.intervals.get() as usize);
        if n > INTERVALS_MAX || len > bytes.len() {
            return Err(Bad::Bounds);
        }
        let (name, rest) = rest.split_at_checked(raw.name_len.get() as usize).ok_or(Bad::Short)?;
        let name = std::str::from_utf8(name).ok().and_then(|n| ChannelName::new(n).ok()).ok_or(Bad::Bounds)?;
        let intervals = rest.get(..n * size_of::<RawInterval>()).ok_or(Bad::Short)?;
        let intervals = intervals.chunks_exact(size_of::<RawInterval>()).map(|c| {
            let raw = RawInterval::read_from_bytes(c).expect("a chunk has an interval's length");
            Interval { start: LogId(raw.start_id.get()), end: raw.end.into() }
        });
        let image = CursorImage {
            name,
            paused: raw.flags.get() & CURSOR_PAUSED != 0,
            ordered: raw.flags.get() & CURSOR_ORDERED != 0,
            first: raw.flags.get() & CURSOR_FIRST != 0,
            epoch: Epoch(raw.epoch.get()),
            generation: raw.generation.get(),
            confirmed: raw.confirmed.into(),
            intervals: intervals.collect(),
        };
        if len != image.encoded_len() {
            return Err(Bad::Bounds);
        }
        Ok((image, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_went() {
        let at = |n: i64| Position { offset: n * 100, count: n, log_id: LogId(n as u64 + 1) };
        let image = CursorImage {
            name: ChannelName::new("ch").unwrap(),
            paused: true,
            ordered: false,
            first: true,
            epoch: Epoch(4),
            generation: 2,
            confirmed: at(3),
            intervals: vec![Interval { start: LogId(6), end: at(8) }],
        };
        let mut bytes = vec![];
        image.encode(&mut bytes);
        assert_eq!(CursorImage::decode(&bytes).unwrap(), (image, bytes.len()));
        assert!((0..bytes.len()).all(|n| CursorImage::decode(&bytes[..n]).is_err()));
    }
}
