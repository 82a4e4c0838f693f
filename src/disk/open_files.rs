//! The open files of one core: opened and locked on first use, shared by the operations on a file, closed when idle or when too many are
//! open. A file in use is never closed; a journal stays open, since its lock is the fence.

use super::event::Waiters;
use super::files::{disk_errno, disk_error};
use super::{lock, paths};
use crate::base::{DiskError, FileId};
use glommio::io::{DmaFile, OpenOptions};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A file with nothing in use for this long is closed.
const IDLE: Duration = Duration::from_secs(20);

/// A file that is open, in use, or poisoned.
pub(super) struct OpenFile {
    pub file: FileId,
    /// The error of the write or sync that failed: no other write touches the file.
    poisoned: RefCell<Option<DiskError>>,
    handle: RefCell<Option<Rc<DmaFile>>>,
    /// The handle is just being opened or closed.
    changing: Cell<bool>,
    /// Number and error of the last failed opening, for the operations that waited for it.
    failed: RefCell<Option<DiskError>>,
    failures: Cell<u64>,
    /// Operations under way.
    users: Cell<u32>,
    /// Tickets of writes under way, and the next one: a sync waits for those before it.
    writes: RefCell<Vec<u64>>,
    next_write: Cell<u64>,
    changed: Waiters,
    last_used: Cell<Instant>,
}

impl OpenFile {
    fn new(file: FileId) -> Self {
        OpenFile {
            file,
            poisoned: RefCell::default(),
            handle: RefCell::default(),
            changing: Cell::new(false),
            failed: RefCell::default(),
            failures: Cell::new(0),
            users: Cell::new(0),
            writes: RefCell::default(),
            next_write: Cell::new(0),
            changed: Waiters::default(),
            last_used: Cell::new(Instant::now()),
        }
    }

    fn is_pinned(&self) -> bool {
        matches!(self.file, FileId::Journal(_))
    }

    /// Written whole, once in a long while: nothing is gained by keeping it open, and there may be thousands.
    fn is_seldom(&self) -> bool {
        matches!(self.file, FileId::Topic(..) | FileId::Snapshot(..))
    }

    fn is_idle(&self) -> bool {
        self.users.get() == 0 && !self.changing.get()
    }

    /// The descriptor, if it is there without waiting.
    pub fn open_handle(&self) -> Option<Rc<DmaFile>> {
        self.handle.borrow().clone()
    }

    pub fn poisoned(&self) -> Option<DiskError> {
        self.poisoned.borrow().clone()
    }

    /// The first error stays.
    pub fn poison(&self, error: &DiskError) {
        self.poisoned.borrow_mut().get_or_insert_with(|| error.clone());
    }

    pub fn begin_write(&self) -> u64 {
        let ticket = self.next_write.get();
        self.next_write.set(ticket + 1);
        self.writes.borrow_mut().push(ticket);
        ticket
    }

    pub fn end_write(&self, ticket: u64) {
        self.writes.borrow_mut().retain(|t| *t != ticket);
        self.changed.wake_all();
    }

    /// Waits for the writes that are under way now.
    pub async fn writes_before(&self) {
        let before = self.next_write.get();
        while self.writes.borrow().iter().any(|t| *t < before) {
            self.changed.changed().await;
        }
    }
}

/// A file in use: not closed while this lives.
pub(super) struct FileInUse {
    file: Rc<OpenFile>,
}

impl Drop for FileInUse {
    fn drop(&mut self) {
        self.file.users.set(self.file.users.get() - 1);
        self.file.last_used.set(Instant::now());
        self.file.changed.wake_all();
    }
}

impl std::ops::Deref for FileInUse {
    type Target = OpenFile;
    fn deref(&self) -> &OpenFile {
        &self.file
    }
}

pub(super) struct OpenFiles {
    data: PathBuf,
    /// Number of files that may be open as long as idle ones can be closed.
    max: usize,
    /// Open files by path below the data path. Several ids may name one file (a topic's file, by any of its partitions). The file has
    /// one description all the same, since a second description would be kept out by our own lock.
    files: RefCell<HashMap<String, Rc<OpenFile>>>,
    /// Files and folders that are being unlinked. None of them is opened meanwhile: glommio looks at the path again after
    /// the open, and panics when it is gone.
    removing: RefCell<HashSet<String>>,
    open: Cell<usize>,
    sweeping: Cell<bool>,
}

impl OpenFiles {
    pub fn new(data: PathBuf, max: usize) -> Self {
        OpenFiles {
            data,
            max: max.max(1),
            files: RefCell::default(),
            removing: RefCell::default(),
            open: Cell::new(0),
            sweeping: Cell::new(false),
        }
    }

    pub fn open_count(&self) -> usize {
        self.open.get()
    }

    /// Notes a user of the file; opens nothing.
    pub fn use_file(&self, file: &FileId) -> FileInUse {
        let mut files = self.files.borrow_mut();
        let file = files.entry(file.to_string()).or_insert_with(|| Rc::new(OpenFile::new(file.clone()))).clone();
        file.users.set(file.users.get() + 1);
        FileInUse { file }
    }

    /// The descriptor, opened and locked if it was not.
    pub async fn handle(self: &Rc<Self>, used: &FileInUse) -> Result<Rc<DmaFile>, DiskError> {
        let failures = used.failures.get();
        loop {
            if let Some(handle) = &*used.handle.borrow() {
                return Ok(handle.clone());
            }
            if used.failures.get() != failures
                && let Some(error) = &*used.failed.borrow()
            {
                return Err(error.clone()); // who opened it for all of us could not
            }
            if !used.changing.get() {
                break;
            }
            used.changed.changed().await;
        }
        if self.is_removing(&used.file.file) {
            return Err(DiskError::NotFound { file: used.file.file.clone() });
        }
        used.changing.set(true);
        self.close_least_used();
        let opened = self.open(&used.file.file).await;
        used.changing.set(false);
        let result = match opened {
            Ok(handle) => {
                let handle = Rc::new(handle);
                *used.handle.borrow_mut() = Some(handle.clone());
                self.open.set(self.open.get() + 1);
                self.sweep_while_open();
                Ok(handle)
            }
            Err(error) => {
                *used.failed.borrow_mut() = Some(error.clone());
                used.failures.set(used.failures.get() + 1);
                Err(error)
            }
        };
        used.changed.wake_all();
        result
    }

    async fn open(&self, file: &FileId) -> Result<DmaFile, DiskError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if matches!(file, FileId::Journal(_)) {
            // one completion per durable write instead of two, at half the CPU
            options.custom_flags(libc::O_DSYNC);
        }
        let opened = options.dma_open(paths::path_of(&self.data, file)).await;
        let handle = opened.map_err(|e| disk_errno(file, "open", e.raw_os_error().unwrap_or(0), e.to_string()))?;
        let deadline = Instant::now() + lock::FILE_LOCK_WAIT;
        loop {
            match lock::try_flock(handle.as_raw_fd()) {
                Ok(true) => return Ok(handle),
                Ok(false) if Instant::now() < deadline => glommio::timer::sleep(lock::LOCK_RETRY).await,
                Ok(false) => {
                    let message = "another process has the file open for writing: stop that process".into();
                    return Err(disk_errno(file, "flock", libc::EWOULDBLOCK, message));
                }
                Err(e) => return Err(disk_error(file, "flock", &e)),
            }
        }
    }

    /// Makes room for one more when the bound is reached and idle ones are there.
    fn close_least_used(self: &Rc<Self>) {
        while self.open.get() >= self.max {
            let files = self.files.borrow();
            let closable = files.values().filter(|f| f.is_idle() && !f.is_pinned() && f.handle.borrow().is_some());
            let Some(oldest) = closable.min_by_key(|f| f.last_used.get()).cloned() else { return };
            drop(files);
            self.close(oldest);
        }
    }

    /// Closes in a task of its own. An operation on the file meanwhile waits for it, so that our own lock does not block it.
    fn close(self: &Rc<Self>, file: Rc<OpenFile>) {
        let Some(handle) = file.handle.take() else { return };
        self.open.set(self.open.get() - 1);
        file.changing.set(true);
        let this = self.clone();
        glommio::spawn_local(async move {
            if let Err(e) = handle.close_rc().await {
                tracing::warn!(file = %file.file, "close failed: {e}");
            }
            file.changing.set(false);
            file.changed.wake_all();
            this.forget(&file);
        })
        .detach();
    }

    /// A file that is neither open, in use nor poisoned costs nothing.
    fn forget(&self, file: &OpenFile) {
        if file.is_idle() && file.handle.borrow().is_none() && file.poisoned.borrow().is_none() {
            let (path, mut files) = (file.file.to_string(), self.files.borrow_mut());
            // an operation that waited for this file may find another in its place
            if files.get(&path).is_some_and(|known| std::ptr::eq(&**known, file)) {
                files.remove(&path);
            }
        }
    }

    /// Refuses to open anything at or below these paths until [`Self::end_removal`].
    pub fn begin_removal(&self, paths: &[String]) {
        self.removing.borrow_mut().extend(paths.iter().cloned());
    }

    pub fn end_removal(&self, paths: &[String]) {
        let mut removing = self.removing.borrow_mut();
        removing.retain(|path| !paths.contains(path));
    }

    fn is_removing(&self, file: &FileId) -> bool {
        let removing = self.removing.borrow();
        let path = if removing.is_empty() { return false } else { file.to_string() };
        removing.iter().any(|r| path.strip_prefix(r.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }

    /// Gives a use of a file back; call it when the user is gone.
    pub fn release(self: &Rc<Self>, used: FileInUse) {
        let file = used.file.clone();
        drop(used);
        if file.is_seldom() && file.is_idle() {
            self.close(file.clone());
        }
        self.forget(&file);
    }

    /// Closes a file for good, after all that uses it is done: it is about to be removed. Its poison goes with it.
    pub async fn evict(&self, path: &str) {
        let Some(file) = self.files.borrow().get(path).cloned() else { return };
        while !file.is_idle() {
            file.changed.changed().await;
        }
        file.poisoned.take();
        if let Some(handle) = file.handle.take() {
            self.open.set(self.open.get() - 1);
            file.changing.set(true);
            if let Err(e) = handle.close_rc().await {
                tracing::warn!(file = %file.file, "close failed: {e}");
            }
            file.changing.set(false);
            file.changed.wake_all();
        }
        self.forget(&file);
    }

    /// Paths of the files below a folder that are known now.
    pub fn below(&self, folder: &str) -> Vec<String> {
        let is_below = |path: &&String| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        self.files.borrow().keys().filter(is_below).cloned().collect()
    }

    /// Closes idle files: one task per core, as long as there is something to close.
    fn sweep_while_open(self: &Rc<Self>) {
        if self.sweeping.replace(true) {
            return;
        }
        let this = self.clone();
        glommio::spawn_local(async move {
            loop {
                glommio::timer::sleep(IDLE / 2).await;
                let (mut left, mut idle) = (0, vec![]);
                for file in this.files.borrow().values().filter(|f| !f.is_pinned() && f.handle.borrow().is_some()) {
                    if file.is_idle() && file.last_used.get().elapsed() >= IDLE {
                        idle.push(file.clone());
                    } else {
                        left += 1;
                    }
                }
                idle.into_iter().for_each(|file| this.close(file));
                if left == 0 {
                    break;
                }
            }
            this.sweeping.set(false);
        })
        .detach();
    }

    /// Closes all, for the end of the executor. Nothing may be in use.
    pub async fn close_all(&self) {
        let all: Vec<Rc<OpenFile>> = self.files.borrow_mut().drain().map(|(_, file)| file).collect();
        for file in all {
            while file.changing.get() {
                file.changed.changed().await;
            }
            if let Some(handle) = file.handle.take() {
                let _ = handle.close_rc().await;
            }
        }
        self.open.set(0);
    }
}
