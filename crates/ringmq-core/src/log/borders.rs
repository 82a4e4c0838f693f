//! Borders of a partition's log: its beginning, and how far retention may move that.

use crate::base::Position;

#[derive(Clone, Copy, Debug)]
pub struct Borders {
    /// First position still stored.
    start: Position,
    /// Header crc of the batch before the start that recovery found, should that lie within a segment.
    start_crc: u32,
    /// Position at which the topic's next first channel begins.
    collect_start: Position,
    /// Position up to which all channels have confirmed everything.
    low_water: Position,
    /// Retention removes nothing beyond this offset, whatever the channels have confirmed: another replica may need it.
    agreed_start: i64,
}

impl Borders {
    pub fn new(start: Position, start_crc: u32, collect_start: Position) -> Self {
        Borders { start, start_crc, collect_start, low_water: start, agreed_start: i64::MAX }
    }

    pub fn start(&self) -> Position {
        self.start
    }

    pub fn start_crc(&self) -> u32 {
        self.start_crc
    }

    pub fn collect_start(&self) -> Position {
        self.collect_start
    }

    pub fn set_collect_start(&mut self, at: Position) {
        self.collect_start = at;
    }

    pub fn low_water(&self) -> Position {
        self.low_water
    }

    /// Whether the low water mark moved. It never moves back.
    pub fn raise_low_water(&mut self, at: Position) -> bool {
        let moves = at.offset > self.low_water.offset;
        if moves {
            self.low_water = at;
        }
        moves
    }

    /// A channel begins at `at`.
    pub fn lower_low_water(&mut self, at: Position) {
        if at.offset < self.low_water.offset {
            self.low_water = at;
        }
    }

    /// Lets retention remove nothing until the replicas have agreed on it.
    pub fn await_agreement(&mut self) {
        self.agreed_start = 0;
    }

    /// No replica may need messages before `at`. True if `at` is higher than before.
    pub fn agree(&mut self, at: Position) -> bool {
        let is_news = at.offset > self.agreed_start;
        self.agreed_start = self.agreed_start.max(at.offset);
        is_news
    }

    /// True if the replicas have agreed that none may need messages before `at`.
    pub fn is_agreed(&self, at: Position) -> bool {
        at.offset <= self.agreed_start
    }

    /// Retention removed the segments before `at`.
    pub fn move_start(&mut self, at: Position) {
        assert!(at.offset >= self.start.offset, "a start never moves back");
        self.start = at;
    }

    /// The log ends at `at`.
    pub fn truncate(&mut self, at: Position) {
        for border in [&mut self.collect_start, &mut self.low_water] {
            if border.offset > at.offset {
                *border = at;
            }
        }
    }

    /// The log begins, and ends, at `at`.
    pub fn restart(&mut self, at: Position) {
        self.start = at;
        self.truncate(at);
    }
}
