//! Carries out the disk operations of one core on its glommio executor. Lives on that executor; decides nothing.
//!
//! ```text
//! submit_on(ring, op) -> a read or write of an open file: the core's own ring -> completed(id) -> done
//!        \-> submit(op) -> [queue, when too much is in flight] -> one local task per operation -> done -> the loop's bell
//! ```
//! It must never do these, because of glommio:
//! - open any file before the probe file. glommio's first `dma_open` on an executor reads the very file it opens to
//!   find out whether the device can be polled; an empty file answers wrongly, and that is remembered. So [`ShardDisk::start`]
//!   opens a file that is not empty, reads it back and refuses to start when that fails.
//! - cancel a write. Dropping the future of a write does not undo it, so every operation is a detached task.
//! - write a file again of which a write or a sync has failed. It is poisoned: further writes answer that error untried.

use super::aligned::{Unfilled, Writable};
use super::blocks;
use super::files::{self, disk_errno};
use super::open_files::{FileInUse, OpenFiles};
use super::paths;
use super::ring_ops::{InRing, Memory, RingOps, RingOutcome};
use super::spares::Spares;
use crate::base::{BLOCK, DiskDone, DiskError, DiskOp, Durability, FileId, IO_BYTES_MAX, OpId, READ_BYTES_MAX};
use crate::ring::{Bell, Ring};
use bytes::Bytes;
use glommio::io::DmaFile;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone)]
pub struct DiskOptions {
    /// Files that may be open on this core before idle ones are closed for others. Files in use are not closed.
    pub open_files_max: usize,
    /// Operations under way; more wait their turn. Below the depth of the executor's rings.
    pub in_flight_max: usize,
    /// Space of removed segments that is kept for new ones.
    pub spares: Option<Arc<Spares>>,
}

impl Default for DiskOptions {
    fn default() -> Self {
        DiskOptions { open_files_max: 256, in_flight_max: 512, spares: None }
    }
}

#[derive(Debug)]
pub struct Completion {
    pub op: OpId,
    pub outcome: Result<DiskDone, DiskError>,
}

#[derive(Debug, thiserror::Error)]
pub enum DiskStartError {
    #[error("{path}: {call} failed: {message}; the data path needs a file system with O_DIRECT: see ringmq doctor")]
    Probe { path: PathBuf, call: &'static str, message: String },
    #[error("{path} reads back {got} of {wanted} bytes correctly: the device's poll queue would misread files")]
    Poisoned { path: PathBuf, got: usize, wanted: usize },
}

/// Cheap to clone; all clones are the same disk.
#[derive(Clone)]
pub struct ShardDisk {
    inner: Rc<Inner>,
}

struct Inner {
    data: PathBuf,
    options: DiskOptions,
    files: Rc<OpenFiles>,
    queue: RefCell<VecDeque<(OpId, DiskOp)>>,
    /// Number of operations in flight through glommio.
    in_flight: Cell<usize>,
    in_ring: RefCell<RingOps>,
    done: RefCell<Vec<Completion>>,
    bell: Bell,
}

impl ShardDisk {
    /// Must be the executor's first use of glommio's files. `bell` is rung whenever something is done.
    pub async fn start(data: &Path, options: DiskOptions, bell: Bell) -> Result<ShardDisk, DiskStartError> {
        probe(data).await?;
        blocks::fill();
        let files = Rc::new(OpenFiles::new(data.to_owned(), options.open_files_max));
        let inner = Inner {
            data: data.to_owned(),
            options,
            files,
            queue: RefCell::default(),
            in_flight: Cell::new(0),
            in_ring: RefCell::default(),
            done: RefCell::default(),
            bell,
        };
        Ok(ShardDisk { inner: Rc::new(inner) })
    }

    /// Begins an operation; its completion comes out of [`Self::drain`], also when it fails. Operations on different places run at the
    /// same time and end in any order. But a sync and a truncation wait for earlier writes to the file, a removal for all earlier
    /// operations on it. An operation that is to follow a removal must wait for its completion.
    pub fn submit(&self, op: OpId, request: DiskOp) {
        let inner = &self.inner;
        // the journal never waits behind others: every acknowledgement of the core hangs on it
        let is_journal = matches!(request.file(), Some(FileId::Journal(_)));
        if is_journal || (inner.in_flight.get() < inner.options.in_flight_max && inner.queue.borrow().is_empty()) {
            begin(inner, op, request);
        } else {
            inner.queue.borrow_mut().push_back((op, request));
        }
    }

    /// Submits like `submit`, on the core's own ring where that can be. False: the request is with glommio, whose reactor must run.
    pub fn submit_on(&self, ring: &mut Ring, op: OpId, request: DiskOp) -> bool {
        match self.for_ring(op, &request) {
            Some(operation) => self.inner.in_ring.borrow_mut().begin(ring, operation),
            None => {
                self.submit(op, request);
                return false;
            }
        }
        true
    }

    /// The form of an operation that the ring can take: one call on an open file, and nothing else.
    fn for_ring(&self, op: OpId, request: &DiskOp) -> Option<InRing> {
        let inner = &self.inner;
        let (file, at) = match request {
            DiskOp::Write { file: file @ FileId::Journal(_), at, .. } => (file, *at),
            DiskOp::Write { file, at, .. } | DiskOp::Read { file, at, .. } => {
                if inner.in_ring.borrow().len() >= inner.options.in_flight_max || !inner.queue.borrow().is_empty() {
                    return None;
                }
                (file, *at)
            }
            _ => return None,
        };
        let used = inner.files.use_file(file);
        let Some(handle) = used.open_handle().filter(|_| used.poisoned().is_none()) else {
            inner.files.release(used);
            return None;
        };
        let memory = match request {
            DiskOp::Write { parts, durability, .. } => {
                let len = checked_len(file, at, parts);
                Memory::Write { from: Writable::of(parts, len), ticket: used.begin_write(), durability: *durability }
            }
            DiskOp::Read { len, .. } => {
                check_read(at, *len);
                Memory::Read { into: Unfilled::new(*len) }
            }
            _ => unreachable!("sorted out above"),
        };
        Some(InRing { op, used, handle, at, memory })
    }

    /// Takes the ring's answers to operations of [`Self::submit_on`]; the completions come out of [`Self::drain`].
    pub fn take_completed(&self, ring: &mut Ring) {
        while let Some((id, result)) = ring.take_file() {
            let answer = self.inner.in_ring.borrow_mut().completed(ring, id, result);
            if let RingOutcome::Done { op, used, outcome } = answer {
                self.inner.files.release(used);
                self.inner.done.borrow_mut().push(Completion { op, outcome });
            }
        }
    }

    /// Operations on the ring: their memory is the kernel's until they are completed.
    pub fn in_ring(&self) -> usize {
        self.inner.in_ring.borrow().len()
    }

    /// Appends the completed operations to `into`.
    pub fn drain(&self, into: &mut Vec<Completion>) {
        into.append(&mut self.inner.done.borrow_mut());
    }

    pub fn has_done(&self) -> bool {
        !self.inner.done.borrow().is_empty()
    }

    /// Operations under way or waiting, with glommio.
    pub fn pending(&self) -> usize {
        self.inner.in_flight.get() + self.inner.queue.borrow().len()
    }

    pub fn open_files(&self) -> usize {
        self.inner.files.open_count()
    }

    /// Waits for the operations under way and closes the files, so that their locks are free when this returns. No operation may be on
    /// the ring any more.
    pub async fn stop(self) {
        while self.pending() > 0 {
            self.inner.bell.wait().await;
        }
        self.inner.files.close_all().await;
    }
}

/// See the top of the file. The probe file is written by [`files::write_probe`] before there are executors.
async fn probe(data: &Path) -> Result<(), DiskStartError> {
    let path = data.join(paths::PROBE);
    let failed = |call, message: String| DiskStartError::Probe { path: path.clone(), call, message };
    let wanted = files::probe_bytes();
    // looked at with std first: an empty one must not get as far as glommio
    let found = std::fs::metadata(&path).map_err(|e| failed("stat", e.to_string()))?.len();
    if found < wanted.len() as u64 {
        return Err(failed("the check of its length", format!("the file has {found} bytes, not {}", wanted.len())));
    }
    let file = DmaFile::open(&path).await.map_err(|e| failed("open", e.to_string()))?;
    let read = file.read_at_aligned(0, wanted.len()).await.map_err(|e| failed("read", e.to_string()))?;
    let got = read.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
    drop(read);
    file.close().await.map_err(|e| failed("close", e.to_string()))?;
    if got != wanted.len() {
        return Err(DiskStartError::Poisoned { path, got, wanted: wanted.len() });
    }
    Ok(())
}

fn begin(inner: &Rc<Inner>, op: OpId, request: DiskOp) {
    inner.in_flight.set(inner.in_flight.get() + 1);
    // noted before the task first runs: operations on a file count in the order in which they were submitted
    let started = Started::new(&inner.files, &request);
    let inner = inner.clone();
    glommio::spawn_local(async move {
        let outcome = carry_out(&inner, &started, request).await;
        if let (Some(used), Some(ticket)) = (&started.file, started.write) {
            used.end_write(ticket);
        }
        if let Some(used) = started.file {
            inner.files.release(used);
        }
        finish(&inner, op, outcome);
    })
    .detach();
}

fn finish(inner: &Rc<Inner>, op: OpId, outcome: Result<DiskDone, DiskError>) {
    inner.done.borrow_mut().push(Completion { op, outcome });
    inner.in_flight.set(inner.in_flight.get() - 1);
    inner.bell.ring();
    while inner.in_flight.get() < inner.options.in_flight_max {
        let Some((op, request)) = inner.queue.borrow_mut().pop_front() else { break };
        begin(inner, op, request);
    }
}

/// Resources that an operation holds while it is under way.
struct Started {
    file: Option<FileInUse>,
    write: Option<u64>,
}

impl Started {
    fn new(files: &OpenFiles, request: &DiskOp) -> Self {
        let file = request.file().map(|file| files.use_file(file));
        let write = match (&file, request) {
            (Some(used), DiskOp::Write { .. }) => Some(used.begin_write()),
            _ => None,
        };
        Started { file, write }
    }

    fn used(&self) -> &FileInUse {
        self.file.as_ref().expect("operations on one file hold it")
    }
}

async fn carry_out(inner: &Rc<Inner>, started: &Started, request: DiskOp) -> Result<DiskDone, DiskError> {
    match request {
        DiskOp::Write { file, at, parts, durability } => {
            let used = started.used();
            if let Some(error) = used.poisoned() {
                return Err(error);
            }
            let handle = inner.files.handle(used).await?;
            let written = write(&handle, &file, at, &parts, durability).await;
            written.inspect_err(|e| used.poison(e)).map(|()| DiskDone::Done)
        }
        DiskOp::Sync { file } => {
            let used = started.used();
            used.writes_before().await;
            if let Some(error) = used.poisoned() {
                return Err(error);
            }
            let handle = inner.files.handle(used).await?;
            sync(&handle, &file).await.inspect_err(|e| used.poison(e)).map(|()| DiskDone::Done)
        }
        DiskOp::Read { file, at, len } => {
            check_read(at, len);
            let handle = inner.files.handle(started.used()).await?;
            let read = handle.read_at_aligned(at, len).await.map_err(|e| glommio_error(&file, "read", &e))?;
            Ok(DiskDone::Read(Bytes::copy_from_slice(&read)))
        }
        DiskOp::Allocate { file, len } => {
            if let Some(error) = started.used().poisoned() {
                return Err(error);
            }
            blocking(inner, move |data, spares| files::allocate(data, &file, len, spares).map(|()| DiskDone::Done)).await
        }
        DiskOp::AllocateSegment { file, len, max } => {
            if let Some(error) = started.used().poisoned() {
                return Err(error);
            }
            let lens = (len, max);
            blocking(inner, move |data, spares| files::allocate_segment(data, &file, lens, spares).map(DiskDone::Allocated)).await
        }
        DiskOp::Retire { segment, commit } => {
            let paths = [segment.to_string(), commit.to_string()];
            inner.files.begin_removal(&paths);
            evict(inner, &paths).await; // nobody reads what stands there next for what stood there
            let done =
                blocking(inner, move |data, spares| files::retire(data, segment, commit, spares).map(DiskDone::Retired)).await;
            inner.files.end_removal(&paths);
            done
        }
        DiskOp::Truncate { file, len } => {
            started.used().writes_before().await;
            if let Some(error) = started.used().poisoned() {
                return Err(error);
            }
            blocking(inner, move |data, _| files::truncate(data, &file, len).map(|()| DiskDone::Done)).await
        }
        DiskOp::Remove { files } => {
            let paths: Vec<String> = files.iter().map(FileId::to_string).collect();
            inner.files.begin_removal(&paths);
            evict(inner, &paths).await;
            let done = blocking(inner, move |data, _| files::remove(data, &files).map(|()| DiskDone::Done)).await;
            inner.files.end_removal(&paths);
            done
        }
        DiskOp::RemovePartition { dir } => {
            let folder = [dir.to_string()];
            inner.files.begin_removal(&folder);
            evict(inner, &inner.files.below(&folder[0])).await;
            let done =
                blocking(inner, move |data, spares| files::remove_partition(data, &dir, spares).map(|()| DiskDone::Done)).await;
            inner.files.end_removal(&folder);
            done
        }
    }
}

fn checked_len(file: &FileId, at: u64, parts: &[Bytes]) -> usize {
    let len = parts.iter().map(Bytes::len).sum::<usize>();
    assert!(
        at.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK) && (1..=IO_BYTES_MAX).contains(&len),
        "a write of whole blocks: {len} bytes at {at} of {file}"
    );
    len
}

fn check_read(at: u64, len: usize) {
    assert!(
        at.is_multiple_of(BLOCK as u64) && len.is_multiple_of(BLOCK) && (1..=READ_BYTES_MAX).contains(&len),
        "a read of whole blocks: {at} {len}"
    );
}

async fn write(handle: &DmaFile, file: &FileId, at: u64, parts: &[Bytes], durability: Durability) -> Result<(), DiskError> {
    let len = checked_len(file, at, parts);
    let mut buffer = handle.alloc_dma_buffer(len);
    let mut rest = buffer.as_bytes_mut();
    for part in parts {
        let (head, tail) = rest.split_at_mut(part.len());
        head.copy_from_slice(part);
        rest = tail;
    }
    let written = handle.write_at(buffer, at).await.map_err(|e| glommio_error(file, "write", &e))?;
    if written != len {
        return Err(DiskError::ShortWrite { file: file.clone(), at, len, written });
    }
    let is_synchronous = matches!(file, FileId::Journal(_));
    if durability == Durability::Durable && !is_synchronous {
        sync(handle, file).await?;
    }
    Ok(())
}

async fn sync(handle: &DmaFile, file: &FileId) -> Result<(), DiskError> {
    handle.fdatasync().await.map_err(|e| glommio_error(file, "fdatasync", &e))
}

fn glommio_error(file: &FileId, call: &'static str, error: &glommio::GlommioError<()>) -> DiskError {
    disk_errno(file, call, error.raw_os_error().unwrap_or(0), error.to_string())
}

/// Runs a blocking call on the executor's pool, where it does not stop the core.
async fn blocking(
    inner: &Rc<Inner>,
    call: impl FnOnce(&Path, Option<&Spares>) -> Result<DiskDone, DiskError> + Send + 'static,
) -> Result<DiskDone, DiskError> {
    let (data, spares) = (inner.data.clone(), inner.options.spares.clone());
    glommio::executor().spawn_blocking(move || call(&data, spares.as_deref())).await
}

/// Closes files that are to be removed, after the operations under way on them.
async fn evict(inner: &Rc<Inner>, paths: &[String]) {
    for path in paths {
        inner.files.evict(path).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn only_whole_blocks_go_to_the_device_and_never_many_of_them() {
        let file = FileId::Journal(0);
        let write = |at, len: usize| catch_unwind(AssertUnwindSafe(|| checked_len(&file, at, &[vec![0; len].into()])));
        let read = |at, len| catch_unwind(|| check_read(at, len));
        for len in [BLOCK, IO_BYTES_MAX] {
            assert_eq!(write(BLOCK as u64, len).ok(), Some(len));
            assert!(read(BLOCK as u64, len).is_ok());
        }
        assert!(write(0, READ_BYTES_MAX).is_err() && read(0, READ_BYTES_MAX).is_ok());
        for (at, len) in [(0, 0), (0, 512), (512, BLOCK), (0, READ_BYTES_MAX + BLOCK), (0, 1 << 23)] {
            assert!(write(at, len).is_err() && read(at, len).is_err(), "{len} bytes at {at}");
        }
    }
}
