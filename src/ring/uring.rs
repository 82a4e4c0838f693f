//! The core's own ring: entries go in and are never lost, completions come out.
//!
//! When the submission queue is full, it is submitted at once; entries that the kernel does not take (it is out of memory, or wants
//! completions reaped first) wait in a backlog, in order. Each operation has one entry at most, so the backlog is bounded by the
//! connections and the operations of files.
//!
//! While the core is awake the kernel is told not to signal the eventfd. Going to sleep switches that on, then looks
//! for completions once more: [`Ring::arm_wake`].

use super::wake::WakeFd;
use super::{OpKind, of_user_data, user_data};
use io_uring::{IoUring, opcode, squeue, types};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 8;

/// A kernel that takes nothing in this many calls is asked again next turn.
const ENTER_TRIES_MAX: u32 = 16;

/// Ring of a core, shared by its users on the core's thread. A user borrows it for one call at most.
pub type SharedRing = Rc<RefCell<Ring>>;

pub struct Ring {
    uring: IoUring,
    /// Completed operations of files that were not taken yet: their ids and results.
    of_files: VecDeque<(u64, i32)>,
    backlog: VecDeque<squeue::Entry>,
    /// Target of the read from the eventfd, and whether this read is under way.
    woken: Box<u64>,
    is_listening: bool,
}

#[derive(Clone, Copy)]
pub struct Completion {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

impl Ring {
    /// Call on the thread that will use it: the kernel takes entries from that one alone.
    pub fn new(entries: u32, wake: &WakeFd) -> io::Result<Ring> {
        let uring = IoUring::builder()
            .setup_cqsize(entries * 4)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .build(entries)?;
        uring.submitter().register_eventfd(wake.raw())?;
        Ok(Ring { uring, of_files: VecDeque::new(), backlog: VecDeque::new(), woken: Box::new(0), is_listening: false })
    }

    pub fn shared(self) -> SharedRing {
        Rc::new(RefCell::new(self))
    }

    pub fn uring(&self) -> &IoUring {
        &self.uring
    }

    /// Queues an entry for the next `enter`.
    ///
    /// # Safety
    /// Memory that the entry points to stays valid until its last completion has been taken.
    pub unsafe fn push(&mut self, entry: squeue::Entry) {
        if self.backlog.is_empty() {
            // SAFETY: the caller's promise.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            // full: the kernel takes the present entries
            self.start();
            // SAFETY: the caller's promise.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// The next `entries` go to the kernel together, as linked ones must, unless others wait before them.
    pub fn make_room(&mut self, entries: usize) {
        let submission = self.uring.submission();
        let room = submission.capacity() - submission.len();
        drop(submission);
        if self.backlog.is_empty() && room < entries {
            self.start();
        }
    }

    /// Begins the queued operations, without running completions in the middle of a turn. Entries that the kernel does not take wait for
    /// the next `enter`.
    ///
    /// The kernel holds back the disk's requests of one call until it has gone over all of its entries, so a write that others
    /// follow in the same call begins only when they are done: sends take some 6 us each.
    pub fn start(&mut self) {
        let queued = self.fill();
        if queued > 0 {
            // SAFETY: no argument is passed.
            let _ = unsafe { self.uring.submitter().enter::<libc::sigset_t>(queued, 0, 0, None) };
        }
    }

    /// Submits everything and collects completions: one system call, unless there is a backlog.
    pub fn enter(&mut self) -> io::Result<()> {
        for _ in 0..ENTER_TRIES_MAX {
            let queued = self.fill();
            // SAFETY: no argument is passed.
            match unsafe { self.uring.submitter().enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None) } {
                Ok(_) if self.backlog.is_empty() && self.uring.submission().is_empty() => return Ok(()),
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(e) => match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // the kernel is short of memory, or completions must be taken first: next turn
                    Some(libc::EAGAIN | libc::EBUSY) => return Ok(()),
                    _ => return Err(e),
                },
            }
        }
        Ok(())
    }

    /// Enters the kernel like `enter`, and waits for a completion, blocking the thread.
    pub fn enter_and_wait(&mut self, at_most: Duration) -> io::Result<()> {
        let queued = self.fill();
        let limit = types::Timespec::from(at_most);
        let args = types::SubmitArgs::new().timespec(&limit);
        // SAFETY: `args` and the `limit` it points to outlive the call.
        let done = unsafe { self.uring.submitter().enter(queued, 1, ENTER_GETEVENTS | ENTER_EXT_ARG, Some(&args)) };
        match done {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Err(e),
            _ => Ok(()),
        }
    }

    /// Sees to it that a write of [`WakeFd`]'s eventfd for sleepers in this ring ends the sleep: its completion has
    /// [`OpKind::Wake`], and is to be told to [`Ring::heard`]. True: there is an entry to submit now.
    pub fn listen(&mut self, wake: &WakeFd) -> bool {
        if std::mem::replace(&mut self.is_listening, true) {
            return false;
        }
        let into = std::ptr::from_mut(&mut *self.woken).cast();
        let entry = opcode::Read::new(types::Fd(wake.raw_for_ring()), into, 8).build();
        // SAFETY: the eight bytes live until the completion, or for ever: see drop.
        unsafe { self.push(entry.user_data(user_data(OpKind::Wake, 0))) };
        true
    }

    /// The read that `listen` began has completed.
    pub fn heard(&mut self) {
        self.is_listening = false;
    }

    pub fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// Backlog to submission queue, as far as there is room; returns how many entries are queued.
    fn fill(&mut self) -> u32 {
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the promise of whoever pushed it.
            if unsafe { queue.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        queue.len() as u32
    }

    /// Looks at up to `most` completions and moves them to `into`; those of files wait for [`Ring::take_file`].
    pub fn take(&mut self, into: &mut Vec<Completion>, most: usize) {
        for c in self.uring.completion().take(most) {
            match of_user_data(c.user_data()) {
                Some((OpKind::Disk, id)) => self.of_files.push_back((id, c.result())),
                _ => into.push(Completion { user_data: c.user_data(), result: c.result(), flags: c.flags() }),
            }
        }
    }

    /// The id and the result of a completed operation of files, in the order of completion.
    pub fn take_file(&mut self) -> Option<(u64, i32)> {
        self.of_files.pop_front()
    }

    /// Completions are there, or an `enter` would bring some, or has some entries still to submit.
    pub fn has_work(&mut self) -> bool {
        !self.uring.completion().is_empty() || self.has_hidden_work()
    }

    /// Completions that show up at the next `enter` only (deferred task work, overflow), or entries to submit.
    pub fn has_hidden_work(&mut self) -> bool {
        let is_waiting = !self.backlog.is_empty();
        let queue = self.uring.submission();
        is_waiting || queue.taskrun() || queue.cq_overflow() || !queue.is_empty()
    }

    pub fn has_completions(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// The core is awake: completions need no signal.
    pub fn disarm_wake(&mut self) {
        let queue = self.uring.completion();
        if !queue.eventfd_disabled() {
            queue.disable_eventfd();
        }
    }

    /// Makes each later completion signal the eventfd. True: completions came before, do not sleep.
    ///
    /// The kernel queues the work, marks it in the flags, then checks whether it may signal. We permit the signal, fence, then read the
    /// mark. On x86 the kernel's mark is a full barrier, so one side sees the other. Elsewhere it is not, and only a system call that
    /// reads the queue is certain.
    pub fn arm_wake(&mut self) -> io::Result<bool> {
        self.uring.completion().enable_eventfd();
        fence(Ordering::SeqCst);
        if !cfg!(target_arch = "x86_64") {
            self.enter()?;
        }
        Ok(self.has_work())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.is_listening {
            // the kernel may still write there
            Box::leak(std::mem::take(&mut self.woken));
        }
    }
}
