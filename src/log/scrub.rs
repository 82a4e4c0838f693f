//! Scrub.
use super::notice::Io;
use super::store::Store;
use crate::base::{Now, Ticks};
#[derive(Default)]
pub struct Scrub;
impl Store {
    pub(super) fn scrub_next(&mut self, _now: Now, _io: &mut Io) {}
    pub(super) fn scrub_deadline(&self) -> Option<Ticks> {
        None
    }
}
