//! Reading.
use super::fetch::Fetch;
use super::notice::{Io, PartitionIdx};
use super::store::Store;
use crate::base::{DiskDone, DiskError, Now, Ticks};
#[derive(Default)]
pub struct Reader;
impl Reader {
    pub fn bytes(&self) -> usize {
        0
    }
}
impl Store {
    pub fn fetch(&mut self, p: PartitionIdx, offset: i64, _io: &mut Io) -> Fetch {
        let part = self.part(p);
        if offset < part.start.offset {
            return Fetch::Below { start: part.start };
        }
        if offset >= part.durable.at.offset {
            return Fetch::End;
        }
        match part.recent_at(offset) {
            Some((_, r)) => Fetch::Batch(r.batch.clone()),
            None => Fetch::Pending,
        }
    }
    pub(super) fn read_done(&mut self, _now: Now, _key: u32, _outcome: Result<DiskDone, DiskError>, _io: &mut Io) {}
    pub(super) fn retry_reads(&mut self, _now: Now) {}
    pub(super) fn read_deadline(&self) -> Option<Ticks> {
        None
    }
}
