//! Two tables of a partition's producers: as all sealed batches tell them, and as those with a commit record do. A snapshot holds
//! the second; the first goes back to it when batches are forgotten.

use super::producers::{Before, Producers};
use super::recent::Recent;
use crate::format::batch::BatchHeader;
use crate::format::producer::Producer;

#[derive(Debug)]
pub struct ProducerTables {
    sealed: Producers,
    committed: Producers,
}

impl ProducerTables {
    /// The table that recovery read from the log.
    pub fn new(table: Producers) -> Self {
        ProducerTables { committed: table.clone(), sealed: table }
    }

    pub fn sealed(&self) -> &Producers {
        &self.sealed
    }

    pub fn committed(&self) -> &Producers {
        &self.committed
    }

    /// Counts a batch that was sealed.
    pub fn count(&mut self, h: &BatchHeader) {
        self.sealed.count(h);
    }

    /// Counts a batch that has its commit record. Returns the state that undoes this.
    pub fn commit(&mut self, h: &BatchHeader) -> Option<Before> {
        let before = self.committed.before(h);
        self.committed.count(h);
        before
    }

    /// Takes in producers of another replica, whose batches stand before `start`. Returns the producers that were not known here.
    pub fn adopt(&mut self, list: &[Producer], start: i64) -> Vec<Producer> {
        let adopted = self.committed.adopt(list, start);
        self.sealed.adopt(&adopted, start);
        adopted
    }

    /// Batches were forgotten: these, without a commit record, are left.
    pub fn recount<'a>(&mut self, left: impl Iterator<Item = &'a Recent>) {
        self.sealed = self.committed.clone();
        left.for_each(|r| self.sealed.count(r.header()));
    }

    /// Truncates the tables at `offset`; `before` undoes the last counts, newest first. To be [recounted](Self::recount).
    pub fn truncate(&mut self, offset: i64, before: impl Iterator<Item = Before>) {
        before.for_each(|b| self.committed.take_back(b));
        self.committed.truncate(offset);
    }

    /// Drops all producers: nothing is left of the log. The table has to be [recounted](Self::recount).
    pub fn restart(&mut self) {
        self.committed = Producers::new(self.committed.limits());
    }
}
