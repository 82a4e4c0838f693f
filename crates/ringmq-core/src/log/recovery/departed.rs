//! Partitions that moved to other nodes: journal records of one before the record of its deletion do not count any more.
//!
//! A replica that returns later begins with a record of its own, behind the deletion and after the files were removed. So the records
//! behind the last deletion belong to the present files; without such a record, the remaining files are removed.

use crate::base::TopicId;
use crate::format::journal::RecordKind;
use crate::journal::replay::Record;
use std::collections::BTreeMap;

/// A topic's id and a partition's number.
type Id = (TopicId, u16);

#[derive(Debug, Default)]
struct Deletions {
    /// Number of records of its deletion.
    records: u32,
    /// Number of them that redo has come to.
    passed: u32,
    has_come_back: bool,
}

/// All partitions that the journals delete.
#[derive(Debug, Default)]
pub struct Departed {
    all: BTreeMap<Id, Deletions>,
}

fn id_of(record: &Record) -> Id {
    (TopicId(record.header.topic_id), record.header.partition.get())
}

impl Departed {
    /// Looks at the next record of a journal, before anything is redone. True: it deletes its partition.
    pub fn see(&mut self, record: &Record) -> bool {
        let is_deletion = record.kind == RecordKind::PartitionDelete;
        if is_deletion {
            let deletions = self.all.entry(id_of(record)).or_default();
            (deletions.records, deletions.has_come_back) = (deletions.records + 1, false);
        } else if !self.all.is_empty()
            && let Some(deletions) = self.all.get_mut(&id_of(record))
        {
            deletions.has_come_back = true;
        }
        is_deletion
    }

    /// The partitions whose files go.
    pub fn gone(&self) -> impl Iterator<Item = Id> {
        self.all.iter().filter(|(_, d)| !d.has_come_back).map(|(id, _)| *id)
    }

    /// Redo comes to this record. True: it is to be redone.
    pub fn redo(&mut self, record: &Record) -> bool {
        if self.all.is_empty() {
            return true;
        }
        if record.kind == RecordKind::PartitionDelete
            && let Some(deletions) = self.all.get_mut(&id_of(record))
        {
            deletions.passed += 1;
            return false;
        }
        self.counts(id_of(record))
    }

    /// True if the present record of redo belongs to the partition's present files.
    pub fn counts(&self, id: Id) -> bool {
        self.all.get(&id).is_none_or(|d| d.passed >= d.records)
    }
}
