//! A channel's cursor as it stands in a snapshot and travels in a journal record.

use crate::base::{ChannelName, Epoch, LogId, Position};
use crate::format::files::{Bad, CURSOR_FIRST, CURSOR_ORDERED, CURSOR_PAUSED, RawCursor, RawHanded};
use crate::format::intervals;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Messages `start ..= end.log_id - 1` are confirmed. When everything before `start` is confirmed too, the cursor
/// moves to `end`, whose offset is the start of the batch that holds `end.log_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub start: LogId,
    pub end: Position,
}

impl Interval {
    /// Joins intervals that touch or overlap. `intervals` ascend by their start.
    pub fn join(intervals: &mut Vec<Interval>) {
        intervals.dedup_by(|next, kept| {
            let is_joined = next.start <= kept.end.log_id;
            if is_joined && next.end.log_id > kept.end.log_id {
                kept.end = next.end;
            }
            is_joined
        });
    }
}

/// Consecutive messages that had been delivered before a clean stop, and are not confirmed: people act on attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    pub start: LogId,
    /// Number of messages, at least one.
    pub num: u32,
    /// Deliveries so far.
    pub attempts: u16,
    /// Time before which they do not come again; zero: at once.
    pub due_unix_ns: i64,
    /// Seconds that were left until then as the node stopped, rounded up; [`u16::MAX`]: as many or more.
    pub wait_s: u16,
}

impl Handed {
    /// `wait_s` of a message that waited so much longer as the node stopped.
    pub fn seconds(wait: Duration) -> u16 {
        wait.as_nanos().div_ceil(1_000_000_000).try_into().unwrap_or(u16::MAX)
    }

    /// Remaining wait after the startup. A clock that was set back meanwhile does not make it longer than it was at the stop.
    pub fn wait(&self, now_unix_ns: i64) -> Duration {
        let by_clock = Duration::from_nanos(self.due_unix_ns.saturating_sub(now_unix_ns).max(0).unsigned_abs());
        let at_stop = if self.wait_s == u16::MAX { Duration::MAX } else { Duration::from_secs(self.wait_s.into()) };
        by_clock.min(at_stop)
    }

    /// Log id behind the last message.
    pub fn end(&self) -> LogId {
        LogId(self.start.0.saturating_add(self.num as u64))
    }

    fn raw(&self) -> RawHanded {
        let &Handed { start, num, attempts, due_unix_ns, wait_s } = self;
        let (log_id, num, due_unix_ns) = (start.0.into(), num.into(), due_unix_ns.into());
        RawHanded { log_id, num, attempts: attempts.into(), wait_s: wait_s.into(), due_unix_ns }
    }

    fn of(raw: &RawHanded) -> Handed {
        let (start, num, attempts) = (LogId(raw.log_id.get()), raw.num.get(), raw.attempts.get());
        Handed { start, num, attempts, due_unix_ns: raw.due_unix_ns.get(), wait_s: raw.wait_s.get() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorImage {
    pub name: ChannelName,
    pub paused: bool,
    pub ordered: bool,
    /// The channel was its topic's first one, so it begins at the oldest message in every partition.
    pub first: bool,
    pub epoch: Epoch,
    /// Raised by set, empty and backward moves; a higher one replaces all that a lower one said.
    pub generation: u64,
    /// Position up to which everything is confirmed. Its offset is the start of the batch that holds `log_id`.
    pub confirmed: Position,
    /// Confirmed beyond that: ascending, disjoint, not touching.
    pub intervals: Vec<Interval>,
    /// Ascending and disjoint; in snapshots alone. Ids that are confirmed by now are no matter.
    pub handed: Vec<Handed>,
}

impl CursorImage {
    /// An ordinary channel that stands here and has confirmed nothing beyond.
    pub fn new(name: ChannelName, epoch: Epoch, generation: u64, confirmed: Position) -> Self {
        let (paused, ordered, first) = (false, false, false);
        CursorImage { name, paused, ordered, first, epoch, generation, confirmed, intervals: vec![], handed: vec![] }
    }

    pub fn encoded_len(&self) -> usize {
        let handed = self.handed.len() * size_of::<RawHanded>();
        (size_of::<RawCursor>() + self.name.len() + intervals::len(self.confirmed, &self.intervals) + handed)
            .next_multiple_of(CURSOR_ALIGN)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let flags = flag(self.paused, CURSOR_PAUSED) | flag(self.ordered, CURSOR_ORDERED) | flag(self.first, CURSOR_FIRST);
        let raw = RawCursor {
            len: 0.into(),
            name_len: (self.name.len() as u16).into(),
            flags: flags.into(),
            epoch: self.epoch.0.into(),
            generation: self.generation.into(),
            confirmed: self.confirmed.into(),
            intervals: (self.intervals.len() as u32).into(),
            handed: (self.handed.len() as u32).into(),
            reserved: [0; 8],
        };
        out.extend_from_slice(raw.as_bytes());
        out.extend_from_slice(self.name.as_bytes());
        let mut before = self.confirmed;
        for interval in &self.intervals {
            intervals::push(out, before, interval);
            before = interval.end;
        }
        self.handed.iter().for_each(|handed| out.extend_from_slice(handed.raw().as_bytes()));
        finish_cursor(out, begin, self.intervals.len());
    }

    /// The cursor at the start of `bytes` and the bytes it takes. The crc around it was verified before.
    pub fn decode(bytes: &[u8]) -> Result<(CursorImage, usize), Bad> {
        let (raw, rest) = RawCursor::read_from_prefix(bytes).map_err(|_| Bad::Short)?;
        let (len, n) = (raw.len.get() as usize, raw.intervals.get() as usize);
        if len > bytes.len() || len < size_of::<RawCursor>() {
            return Err(Bad::Bounds);
        }
        let rest = &rest[..len - size_of::<RawCursor>()];
        let (name, rest) = rest.split_at_checked(raw.name_len.get() as usize).ok_or(Bad::Short)?;
        let name = std::str::from_utf8(name).ok().and_then(|n| ChannelName::of_cursor(n).ok()).ok_or(Bad::Bounds)?;
        let (mut rest, mut before) = (rest, raw.confirmed.into());
        // Each takes a byte at least.
        let mut intervals = Vec::with_capacity(n.min(rest.len()));
        for _ in 0..n {
            let interval = intervals::take(&mut rest, before)?;
            before = interval.end;
            intervals.push(interval);
        }
        let mut handed = Vec::with_capacity((raw.handed.get() as usize).min(rest.len() / size_of::<RawHanded>()));
        for _ in 0..raw.handed.get() {
            let (one, behind) = RawHanded::read_from_prefix(rest).map_err(|_| Bad::Short)?;
            handed.push(Handed::of(&one));
            rest = behind;
        }
        if !handed.iter().all(|h| h.num > 0) || !handed.windows(2).all(|w| w[0].end() <= w[1].start) {
            return Err(Bad::Bounds);
        }
        if rest.len() >= CURSOR_ALIGN || rest.iter().any(|&b| b != 0) {
            return Err(Bad::Bounds);
        }
        let image = CursorImage {
            name,
            paused: raw.flags.get() & CURSOR_PAUSED != 0,
            ordered: raw.flags.get() & CURSOR_ORDERED != 0,
            first: raw.flags.get() & CURSOR_FIRST != 0,
            epoch: Epoch(raw.epoch.get()),
            generation: raw.generation.get(),
            confirmed: raw.confirmed.into(),
            intervals,
            handed,
        };
        Ok((image, len))
    }
}

/// A cursor's bytes end at a multiple.
const CURSOR_ALIGN: usize = 8;

/// Pads a cursor that begins at `begin` and has so many intervals, and says so in its header.
fn finish_cursor(out: &mut Vec<u8>, begin: usize, intervals: usize) {
    out.resize(begin + (out.len() - begin).next_multiple_of(CURSOR_ALIGN), 0);
    let len = (out.len() - begin) as u32;
    let raw = RawCursor::mut_from_prefix(&mut out[begin..]).expect("a cursor begins with its header").0;
    (raw.len, raw.intervals) = (len.into(), (intervals as u32).into());
}

#[cfg(test)]
mod tests {
    use crate::format::cursor::*;

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
            handed: vec![
                Handed { start: LogId(4), num: 2, attempts: 3, due_unix_ns: 0, wait_s: 0 },
                Handed { start: LogId(9), num: 1, attempts: u16::MAX, due_unix_ns: 7, wait_s: 5 },
            ],
        };
        let mut bytes = vec![];
        image.encode(&mut bytes);
        assert_eq!(CursorImage::decode(&bytes).unwrap(), (image, bytes.len()));
        assert!((0..bytes.len()).all(|n| CursorImage::decode(&bytes[..n]).is_err()));
    }

    #[test]
    fn delivered_messages_that_overlap_are_not_believed() {
        let at = Position { offset: 0, count: 0, log_id: LogId(1) };
        let handed = |start, num| Handed { start: LogId(start), num, attempts: 1, due_unix_ns: 0, wait_s: 0 };
        for (handed, is_well) in [
            (vec![handed(1, 2), handed(3, 1)], true),
            (vec![handed(1, 3), handed(3, 1)], false),
            (vec![handed(3, 1), handed(1, 1)], false),
            (vec![handed(1, 0)], false),
        ] {
            let (name, intervals) = (ChannelName::new("ch").unwrap(), vec![]);
            let (paused, ordered, first, epoch, generation) = (false, false, false, Epoch(0), 0);
            let image = CursorImage { name, paused, ordered, first, epoch, generation, confirmed: at, intervals, handed };
            let mut bytes = vec![];
            image.encode(&mut bytes);
            assert_eq!(CursorImage::decode(&bytes).is_ok(), is_well, "{:?}", image.handed);
        }
    }
}
