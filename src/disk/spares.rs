//! Segments that retention removed, kept for new ones: durable writes to used space are about half as fast again as to new space
//! (docs/decisions/spares.md), and freeing space is costly on a file system that discards.
//!
//! They lie in `spare/`, each with its first block zeroed, durably. The old batches behind it are harmless: no header names them, and
//! bytes behind the end of a log count only if they continue that log ([`crate::log::recovery::scan`]).
//! ```text
//! topics/t/0/N.segment -> spare/7-T-0-N~ -> the old folder is synced -> first block zeroed, synced -> spare/7-T-0-N
//!   -> topics/u/3/M.segment
//! ```
//! Their names have their origin (number, topic id, partition, base): a segment is reused by its own partition only if all its batches
//! lie before the new segment, and it is deleted with its partition. The next startup removes a file whose name ends in `~`. When space
//! is short they are freed. Errors here are only logged.

use super::blocking::AlignedBuffer;
use super::{lock, paths};
use crate::base::{BLOCK, PartitionDir, PartitionId, TopicId};
use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Shared by the cores of a node.
pub struct Spares {
    folder: PathBuf,
    max_bytes: u64,
    /// Length of the longest kept file, in bytes.
    segment_bytes: u64,
    kept: Mutex<SparePool>,
}

/// Contents of a kept file's name: its number, and the segment that it was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name {
    pub number: u64,
    pub topic_id: TopicId,
    pub partition: PartitionId,
    pub base: i64,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.number, self.topic_id, self.partition.0, self.base)
    }
}

impl Name {
    fn is_of(&self, dir: &PartitionDir) -> bool {
        (self.topic_id, self.partition) == (dir.topic_id, dir.partition)
    }
}

#[derive(Clone, Copy)]
struct Spare {
    name: Name,
    len: u64,
}

#[derive(Default)]
struct SparePool {
    /// The oldest first.
    free: VecDeque<Spare>,
    /// Bytes of kept files, and of files that are about to be kept.
    bytes: u64,
    /// Segments about to be kept.
    moving: usize,
    next: u64,
}

/// A file that is neither in its old folder nor free for others.
pub(super) struct Moved(Spare);

impl Spares {
    /// Takes over the usable files of an earlier process; removes the others. `segment_bytes`: length of a full segment.
    pub fn open(data: &Path, max_bytes: u64, segment_bytes: u64) -> Spares {
        let folder = data.join(paths::SPARES);
        let spares = Spares { folder, max_bytes, segment_bytes, kept: Mutex::default() };
        let entries = match fs::read_dir(&spares.folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return spares,
            Err(e) => {
                tracing::warn!(folder = %spares.folder.display(), "the space of removed segments is not kept: {e}");
                return Spares { max_bytes: 0, ..spares };
            }
        };
        let mut found = vec![];
        let mut kept = spares.kept();
        for entry in entries.filter_map(Result::ok) {
            let about = fs::symlink_metadata(entry.path()).ok().filter(|about| about.is_file());
            let Some((name, is_free, about)) =
                entry.file_name().to_str().and_then(paths::spare_of).and_then(|(name, is_free)| Some((name, is_free, about?)))
            else {
                tracing::warn!(file = %entry.path().display(), "an unknown file in spare/ is left alone");
                continue;
            };
            kept.next = kept.next.max(name.number.saturating_add(1));
            if is_free && spares.is_of_use(&about) {
                found.push(Spare { name, len: about.len() });
            } else {
                remove(&entry.path());
            }
        }
        found.sort_unstable_by_key(|spare| spare.name);
        for spare in found {
            if kept.bytes + spare.len <= max_bytes {
                kept.bytes += spare.len;
                kept.free.push_back(spare);
            } else {
                remove(&spares.path(&spare));
            }
        }
        if !kept.free.is_empty() {
            tracing::info!(
                segments = kept.free.len(),
                bytes = kept.bytes,
                "space of segments that were removed is kept for new ones"
            );
        }
        drop(kept);
        spares
    }

    /// Bytes of files that are kept or about to be kept.
    pub fn bytes(&self) -> u64 {
        self.kept().bytes
    }

    /// Takes a segment's closed file out of its folder; the caller makes that durable. `None`: it stays.
    pub(super) fn move_in(&self, segment: &Path, dir: &PartitionDir, base: i64) -> Option<Moved> {
        let about = fs::symlink_metadata(segment).ok()?;
        let moved = self.reserve(&about, dir, base)?;
        let renamed = fs::create_dir_all(&self.folder).and_then(|()| fs::rename(segment, self.path_of(&moved)));
        if let Err(e) = renamed {
            tracing::warn!(file = %segment.display(), "the space of a removed segment is not kept: {e}");
            self.moved(moved, false);
            return None;
        }
        Some(moved)
    }

    /// Keeps a file that was moved out of its folder durably. False: it could not be kept, and its space is free.
    pub(super) fn keep(&self, moved: Moved) -> bool {
        let new = self.path_of(&moved);
        let zeroed = zero_first_block(&new).and_then(|()| fs::rename(&new, self.path(&moved.0)));
        match &zeroed {
            Ok(()) => self.moved(moved, true),
            Err(e) => {
                tracing::warn!(file = %new.display(), "the space of a removed segment is not kept: {e}");
                self.drop(moved);
            }
        }
        zeroed.is_ok()
    }

    pub(super) fn drop(&self, moved: Moved) {
        remove(&self.path_of(&moved)); // else the next startup does
        self.moved(moved, false);
    }

    fn reserve(&self, about: &Metadata, dir: &PartitionDir, base: i64) -> Option<Moved> {
        let mut kept = self.kept();
        let len = about.len();
        if !self.is_of_use(about) || kept.bytes + len > self.max_bytes {
            return None;
        }
        let name = Name { number: kept.next, topic_id: dir.topic_id, partition: dir.partition, base };
        kept.next = kept.next.checked_add(1)?;
        kept.bytes += len;
        kept.moving += 1;
        Some(Moved(Spare { name, len }))
    }

    fn moved(&self, Moved(spare): Moved, is_kept: bool) {
        let mut kept = self.kept();
        kept.moving -= 1;
        match is_kept {
            true => kept.free.push_back(spare),
            false => kept.bytes -= spare.len,
        }
    }

    /// Puts one of `min` to `max` bytes to this place, where nothing is, for the segment of this base; its length. The caller makes the
    /// name durable.
    pub fn take(&self, to: &Path, (dir, base): (&PartitionDir, i64), (min, max): (u64, u64)) -> Option<u64> {
        // A partition whose own log has begun anew further back would find its old batches at their old places.
        let is_past = |s: &Spare| !s.name.is_of(dir) || s.name.base.saturating_add_unsigned(s.len) <= base;
        let mut kept = self.kept();
        let i = kept.free.iter().position(|s| (min..=max).contains(&s.len) && is_past(s))?;
        let spare = kept.free.remove(i)?;
        kept.bytes -= spare.len;
        drop(kept);
        match fs::rename(self.path(&spare), to) {
            Ok(()) => Some(spare.len),
            Err(e) => {
                tracing::warn!(from = %self.path(&spare).display(), to = %to.display(), "the kept space of a removed segment is not used: \
                    {e}");
                remove(&self.path(&spare));
                None
            }
        }
    }

    /// Gives the oldest one back to the file system. False: there is none.
    pub fn give_back(&self) -> bool {
        let mut kept = self.kept();
        let Some(spare) = kept.free.pop_front() else {
            // A file that is about to be kept is there in a moment.
            let is_one_coming = kept.moving > 0;
            drop(kept);
            if is_one_coming {
                std::thread::sleep(Duration::from_millis(1));
            }
            return is_one_coming;
        };
        kept.bytes -= spare.len;
        drop(kept);
        tracing::info!(bytes = spare.len, "space is short: a removed segment that was kept for a new one is freed");
        remove(&self.path(&spare));
        true
    }

    /// A partition is deleted: removes its kept segments.
    pub fn forget(&self, dir: &PartitionDir) {
        let mut kept = self.kept();
        let (of_it, others) = std::mem::take(&mut kept.free).into_iter().partition(|spare| spare.name.is_of(dir));
        kept.free = others;
        let of_it: VecDeque<Spare> = of_it;
        kept.bytes -= of_it.iter().map(|spare| spare.len).sum::<u64>();
        drop(kept);
        of_it.iter().for_each(|spare| remove(&self.path(spare)));
    }

    /// A full segment, or nearly (one that ended early would be a short one again), that has no other name and no hole.
    fn is_of_use(&self, about: &Metadata) -> bool {
        let len = about.len();
        let is_long = (self.segment_bytes / 2..=self.segment_bytes).contains(&len) && len > BLOCK as u64;
        is_long && len.is_multiple_of(BLOCK as u64) && about.is_file() && about.nlink() == 1 && about.blocks() * 512 >= len
    }

    /// Path of a kept file until its first block is zeroed.
    fn path_of(&self, Moved(spare): &Moved) -> PathBuf {
        self.folder.join(format!("{}~", spare.name))
    }

    fn path(&self, spare: &Spare) -> PathBuf {
        self.folder.join(spare.name.to_string())
    }

    fn kept(&self) -> MutexGuard<'_, SparePool> {
        // nothing in there is left half changed
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(path: &Path) {
    if let Err(e) = fs::remove_file(path)
        && e.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(file = %path.display(), "the kept space of a removed segment was not given back: {e}");
    }
}

fn zero_first_block(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path)?;
    if !lock::try_flock(file.as_raw_fd())? {
        return Err(io::Error::other("a write of a process that was killed is still under way"));
    }
    file.write_all_at(&AlignedBuffer::zeroed(BLOCK), 0)?;
    file.sync_all()
}
