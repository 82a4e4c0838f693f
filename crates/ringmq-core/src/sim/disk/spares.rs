//! The space of retired segments, as the real disk keeps it: the rules are those of `crate::disk::spares`, except for lengths.

use super::{File, SimDisk};
use crate::base::{BLOCK, DiskError, FileId};
use crate::format::storage::Storage;

impl SimDisk {
    pub(super) fn retire(&mut self, segment: FileId, commit: FileId) -> Result<bool, DiskError> {
        self.tick()?;
        let spare = self.files.remove(&segment.to_string());
        Storage::remove(self, &[commit])?;
        let Some(mut spare) = spare.filter(|f| f.len() > BLOCK && self.sparing.chance(0.5)) else { return Ok(false) };
        spare.begin_anew();
        self.spares.push((segment, spare));
        Ok(true)
    }

    pub(super) fn allocate_segment(&mut self, file: &FileId, len: u64, max: u64) -> Result<u64, DiskError> {
        let FileId::Segment(dir, base) = file else { panic!("{file} is no segment") };
        let fits = |(was, f): &(FileId, File)| {
            let FileId::Segment(of, old) = was else { return false };
            let is_past = (of.topic_id, of.partition) != (dir.topic_id, dir.partition) || old + f.len() as i64 <= *base;
            (len..=max).contains(&(f.len() as u64)) && is_past
        };
        let is_there = self.files.contains_key(&file.to_string());
        match self.spares.iter().position(fits).filter(|_| !is_there) {
            None => Storage::allocate(self, file, len)?,
            Some(i) => {
                self.tick()?;
                self.counts.reused += 1;
                let (_, spare) = self.spares.remove(i);
                self.files.insert(file.to_string(), spare);
            }
        }
        Ok(self.len_of(&file.to_string()))
    }
}
