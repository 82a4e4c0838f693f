//! Reads and writes of open files on the core's own ring ([`crate::ring`]): the journal's write, which clients wait for, without a task,
//! and in the turn's one system call. Decides nothing; other operations go to glommio.
//!
//! A write in flight is never given up: its memory, its file and its ticket stay here until the kernel has answered.

use super::aligned::{Unfilled, Writable};
use super::files::disk_errno;
use super::open_files::FileInUse;
use crate::base::{DiskDone, DiskError, Durability, FileId, OpId};
use crate::ring::{OpKind, Ring, user_data};
use glommio::io::DmaFile;
use io_uring::{opcode, types};
use slab::Slab;
use std::os::fd::AsRawFd;
use std::rc::Rc;

#[derive(Default)]
pub(super) struct RingOps {
    slots: Slab<InRing>,
}

pub(super) struct InRing {
    pub op: OpId,
    pub used: FileInUse,
    /// Keeps the descriptor open.
    pub handle: Rc<DmaFile>,
    pub at: u64,
    pub memory: Memory,
}

pub(super) enum Memory {
    /// The ticket is the file's ([`super::open_files::OpenFile::begin_write`]).
    Write {
        from: Writable,
        ticket: u64,
        durability: Durability,
    },
    Read {
        into: Unfilled,
    },
}

pub(super) enum RingOutcome {
    /// The kernel wants to be asked once more, and was.
    Again,
    Done {
        op: OpId,
        used: FileInUse,
        outcome: Result<DiskDone, DiskError>,
    },
}

impl RingOps {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn begin(&mut self, ring: &mut Ring, operation: InRing) {
        let id = self.slots.insert(operation);
        self.push(ring, id);
    }

    fn push(&self, ring: &mut Ring, id: usize) {
        let o = &self.slots[id];
        let fd = types::Fd(o.handle.as_raw_fd());
        let entry = match &o.memory {
            Memory::Write { from, durability, .. } => from.entry(fd, o.at, flags(*durability)),
            Memory::Read { into } => opcode::Read::new(fd, into.as_ptr(), into.len() as u32).offset(o.at).build(),
        };
        // SAFETY: descriptor and memory stay in the slot until the completion; see drop.
        unsafe { ring.push(entry.user_data(user_data(OpKind::Disk, id as u64))) };
    }

    /// `id` and `result` as the kernel answered.
    pub fn completed(&mut self, ring: &mut Ring, id: u64, result: i32) -> RingOutcome {
        let id = id as usize;
        if matches!(-result, libc::EAGAIN | libc::EINTR) {
            self.push(ring, id); // nothing was read or written
            return RingOutcome::Again;
        }
        let InRing { op, used, handle, at, memory } = self.slots.remove(id);
        drop(handle);
        let outcome = match memory {
            Memory::Write { from, ticket, .. } => {
                let outcome = written(&used.file, at, from.len(), result);
                if let Err(error) = &outcome {
                    used.poison(error);
                }
                used.end_write(ticket);
                outcome
            }
            Memory::Read { into } => match usize::try_from(result) {
                // SAFETY: the kernel says so.
                Ok(len) => Ok(DiskDone::Read(unsafe { into.filled(len) })),
                Err(_) => Err(failed(&used.file, "read", result)),
            },
        };
        RingOutcome::Done { op, used, outcome }
    }
}

/// Flags of one write: O_DSYNC where the write is to be durable.
fn flags(durability: Durability) -> i32 {
    match durability {
        Durability::Durable => libc::RWF_DSYNC,
        Durability::Later => 0,
    }
}

fn written(file: &FileId, at: u64, len: usize, result: i32) -> Result<DiskDone, DiskError> {
    match usize::try_from(result) {
        Ok(written) if written == len => Ok(DiskDone::Done),
        Ok(written) => Err(DiskError::ShortWrite { file: file.clone(), at, len, written }),
        Err(_) => Err(failed(file, "write", result)),
    }
}

fn failed(file: &FileId, call: &'static str, result: i32) -> DiskError {
    disk_errno(file, call, -result, std::io::Error::from_raw_os_error(-result).to_string())
}

impl Drop for RingOps {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            tracing::error!("{} file operations did not end: their memory is left to the kernel", self.slots.len());
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_is_short_is_a_fault() {
        let file = FileId::Journal(0);
        assert!(matches!(written(&file, 4096, 8192, 8192), Ok(DiskDone::Done)));
        let short = DiskError::ShortWrite { file: file.clone(), at: 4096, len: 8192, written: 4096 };
        assert_eq!(written(&file, 4096, 8192, 4096).err(), Some(short));
        assert!(written(&file, 4096, 8192, -libc::ENOSPC).is_err_and(|e| e.is_no_space()));
    }
}
