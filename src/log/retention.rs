//! Retention.
use super::notice::{Io, PartitionIdx, RecordTicket};
use super::store::Store;
use crate::base::{DiskDone, DiskError, Now, Ticks};
#[derive(Default)]
pub struct Retention;
impl Store {
    pub(super) fn retain(&mut self, _now: Now, _io: &mut Io) {}
    pub(super) fn remove_upto(&mut self, _upto: RecordTicket, _io: &mut Io) {}
    pub(super) fn removed(&mut self, _p: PartitionIdx, _outcome: Result<DiskDone, DiskError>) {}
    pub(super) fn retention_tick(&mut self, _now: Now) {}
    pub(super) fn retention_deadline(&self) -> Option<Ticks> {
        None
    }
}
