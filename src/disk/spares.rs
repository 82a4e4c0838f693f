//! Segments that retention let go, kept for the next ones: space that was written before takes durable writes about half as fast again as
//! space that the file system has just given out (docs/benchmarks.md), and giving space back costs a file system that discards it more.
//!
//! They lie in `spare/`, each with its first block zeroed, durably; behind it stands what stood there, which is nobody's: no header names
//! it, and what a start finds behind the end of a log counts only if it continues that log ([`crate::log::recovery::scan`]).
//! ```text
//! topics/t/0/N.segment -> spare/7~ -> the old folder is synced -> first block zeroed, synced -> spare/7 -> topics/u/3/M.segment
//! ```
//! What a crash leaves as `7~` the next start removes. Where space is short they are given back, one after the other.

use super::blocking::AlignedBuffer;
use super::paths;
use crate::base::BLOCK;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shared by the cores of a node.
pub struct Spares {
    folder: PathBuf,
    max_bytes: u64,
    /// None is longer.
    segment_bytes: u64,
    kept: Mutex<Kept>,
}

/// A file that is neither in its old folder nor free for others.
pub(super) struct Moved {
    number: u64,
    len: u64,
}

#[derive(Default)]
struct Kept {
    /// Number and length, the oldest first.
    free: VecDeque<(u64, u64)>,
    /// Of those, and of what is about to be kept.
    bytes: u64,
    next: u64,
}

impl Spares {
    /// Takes what an earlier start has left, as far as it is of use; the rest is removed. `segment_bytes`: of a full segment.
    pub fn open(data: &Path, max_bytes: u64, segment_bytes: u64) -> io::Result<Spares> {
        let folder = data.join(paths::SPARES);
        let spares = Spares { folder, max_bytes, segment_bytes, kept: Mutex::default() };
        let entries = match fs::read_dir(&spares.folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(spares),
            Err(e) => return Err(e),
        };
        let mut found = vec![];
        for entry in entries {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(paths::spare_of);
            match number {
                Some((number, true)) => found.push((number, entry.metadata()?.len())),
                Some((_, false)) => fs::remove_file(entry.path())?,
                None => tracing::warn!(file = %entry.path().display(), "not a file of ours: it is left alone"),
            }
        }
        found.sort_unstable();
        let mut kept = spares.kept();
        for (number, len) in found {
            kept.next = number + 1;
            if spares.is_of_use(len) && kept.bytes + len <= max_bytes {
                kept.bytes += len;
                kept.free.push_back((number, len));
            } else {
                fs::remove_file(spares.path(number))?;
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
        Ok(spares)
    }

    /// Of files that are kept.
    pub fn bytes(&self) -> u64 {
        self.kept().bytes
    }

    /// Takes a segment's file, which nobody has open, out of its folder; the caller makes that durable. `None`: it stays.
    pub(super) fn move_in(&self, segment: &Path) -> Option<Moved> {
        let len = fs::metadata(segment).ok()?.len();
        let number = self.reserve(len)?;
        let moved = Moved { number, len };
        let renamed = fs::create_dir_all(&self.folder).and_then(|()| fs::rename(segment, self.path_of(&moved)));
        if let Err(e) = renamed {
            tracing::warn!(file = %segment.display(), "the space of a removed segment is not kept: {e}");
            self.kept().bytes -= len;
            return None;
        }
        Some(moved)
    }

    /// It is out of its folder durably: its space is free for others. False: it could not be kept.
    pub(super) fn keep(&self, moved: Moved) -> bool {
        let new = self.path_of(&moved);
        match zero_first_block(&new).and_then(|()| fs::rename(&new, self.path(moved.number))) {
            Ok(()) => {
                self.kept().free.push_back((moved.number, moved.len));
                true
            }
            Err(e) => {
                tracing::warn!(file = %new.display(), "the space of a removed segment is not kept: {e}");
                self.drop(moved);
                false
            }
        }
    }

    pub(super) fn drop(&self, moved: Moved) {
        let _ = fs::remove_file(self.path_of(&moved)); // else the next start does
        self.kept().bytes -= moved.len;
    }

    fn reserve(&self, len: u64) -> Option<u64> {
        let mut kept = self.kept();
        if !self.is_of_use(len) || kept.bytes + len > self.max_bytes {
            return None;
        }
        kept.bytes += len;
        kept.next += 1;
        Some(kept.next - 1)
    }

    /// Puts one of `min` to `max` bytes to this place, where nothing is; its length. The caller makes the name durable.
    pub fn take(&self, to: &Path, min: u64, max: u64) -> Option<u64> {
        let mut kept = self.kept();
        let i = kept.free.iter().position(|(_, len)| (min..=max).contains(len))?;
        let (number, len) = kept.free.remove(i)?;
        kept.bytes -= len;
        drop(kept);
        match fs::rename(self.path(number), to) {
            Ok(()) => Some(len),
            Err(e) => {
                tracing::warn!(from = %self.path(number).display(), to = %to.display(), "kept space is not used: {e}");
                let _ = fs::remove_file(self.path(number));
                None
            }
        }
    }

    /// Gives the oldest one back to the file system. False: there is none.
    pub fn give_back(&self) -> bool {
        let mut kept = self.kept();
        let Some((number, len)) = kept.free.pop_front() else { return false };
        kept.bytes -= len;
        drop(kept);
        match fs::remove_file(self.path(number)) {
            Ok(()) => tracing::info!(bytes = len, "space is short: that of a removed segment, kept for a new one, is given back"),
            Err(e) => tracing::warn!(file = %self.path(number).display(), "kept space was not given back: {e}"),
        }
        true
    }

    /// A full segment, or nearly: one that ended early would be a short one again.
    fn is_of_use(&self, len: u64) -> bool {
        (self.segment_bytes / 2..=self.segment_bytes).contains(&len) && len.is_multiple_of(BLOCK as u64) && len > BLOCK as u64
    }

    /// Until its first block is zeros.
    fn path_of(&self, moved: &Moved) -> PathBuf {
        self.folder.join(format!("{}~", moved.number))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(number.to_string())
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // nothing in there is left half changed
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn zero_first_block(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).custom_flags(libc::O_DIRECT | libc::O_CLOEXEC).open(path)?;
    file.write_all_at(&AlignedBuffer::zeroed(BLOCK), 0)?;
    file.sync_all()
}
