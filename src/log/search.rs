//! Search.
use super::notice::Io;
use super::store::Store;
use crate::base::{DiskDone, DiskError, Now};
pub struct Search;
impl Store {
    pub(super) fn search_read(&mut self, _now: Now, _key: u32, _outcome: Result<DiskDone, DiskError>, _io: &mut Io) {}
}
