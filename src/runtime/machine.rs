//! Machine that a core drives: [`Shard`](crate::shard) in production; tests drive the same loop with a toy.

use crate::base::{Now, Ticks};
use crate::seam::event::{Effects, Event};

pub trait Machine {
    /// Takes one event and appends its effects to `out`. Never blocks, never fails.
    fn step(&mut self, now: Now, event: Event<'_>, out: &mut Effects);

    /// Time at which [`Event::Tick`] next has work. A past time means: at once.
    fn deadline(&self) -> Option<Ticks>;
}
