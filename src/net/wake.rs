//! Lets a core sleep in glommio and be woken by its own ring, another core or any thread.
//!
//! One eventfd per core: the kernel signals it for the core's ring, [`WakeFd::wake`] writes it, and glommio reads it
//! ([`Waiter`]), so that sockets, disk and mesh all end the same sleep.
//!
//! A wake must cost nothing while the core is awake, and must never be lost. The state is one word:
//!
//! ```text
//!            try_sleep                    wake: writes the eventfd
//!   AWAKE ------------> SLEEPING ----------------------------------> NOTIFIED
//!     ^ \__ wake: no write ______________________________________________^ |
//!     |____________________ try_sleep (refuses), or Waiter::wait __________|
//! ```
//!
//! **Why none is lost.** Every change is a read-modify-write, so all of them stand in one order, and each acquires what
//! the ones before released. A waker first publishes its item, then swaps in NOTIFIED. That swap stands either
//! - before the core takes the token (NOTIFIED -> AWAKE): the core then sees the item, as it looks at its queues in the
//!   turn that follows; or
//! - after that, and before try_sleep: try_sleep finds NOTIFIED and refuses; or
//! - after try_sleep: the swap returns SLEEPING, and that waker writes the eventfd.
//!
//! So nobody has to look at the queues once more between deciding to sleep and sleeping.

use crate::mesh::Wake;
use glommio::io::BufferedFile;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const AWAKE: u8 = 0;
const SLEEPING: u8 = 1;
const NOTIFIED: u8 = 2;

/// Wakes one core from any thread.
pub struct WakeFd {
    fd: OwnedFd,
    state: AtomicU8,
}

impl WakeFd {
    pub fn new() -> io::Result<Arc<WakeFd>> {
        // SAFETY: a plain system call. Blocking on purpose: a ring answers a non-blocking one with EAGAIN at once.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(WakeFd { fd, state: AtomicU8::new(AWAKE) }))
    }

    /// Ends the sleep of the core, or keeps it from falling asleep. One atomic operation while it is awake.
    pub fn wake(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == SLEEPING {
            self.signal();
        }
    }

    /// Makes the next [`Waiter::wait`] return, whatever the state: for a core that is busy but lets the executor's
    /// reactor (its disk) have a turn.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes, and the descriptor is ours.
        let written = unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        // it can fail only by a signal, or when 2^64-2 wakes are unread: then the reader wakes anyway
        debug_assert!(written == 8 || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted);
    }

    /// The core is about to sleep. False: somebody has woken it since the last time; run a turn instead.
    pub(super) fn try_sleep(&self) -> bool {
        match self.state.compare_exchange(AWAKE, SLEEPING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(SLEEPING) => true,
            Err(_) => {
                self.state.swap(AWAKE, Ordering::AcqRel);
                false
            }
        }
    }

    /// The core runs a turn though nobody woke it through here (a disk completion did): wakes need not write now.
    /// A NOTIFIED stays, since its item may have been published after the queues were last looked at.
    pub(super) fn stay_awake(&self) {
        if self.state.load(Ordering::Relaxed) == SLEEPING {
            let _ = self.state.compare_exchange(SLEEPING, AWAKE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    fn take(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Wake for WakeFd {
    fn wake(&self) {
        WakeFd::wake(self);
    }
}

/// The executor's side of a [`WakeFd`]: what the core sleeps on. Lives on the executor's thread.
pub struct Waiter {
    file: BufferedFile,
    wake: Arc<WakeFd>,
}

impl Waiter {
    /// Call inside the executor.
    pub fn new(wake: Arc<WakeFd>) -> io::Result<Waiter> {
        let copy = wake.fd.try_clone()?;
        // SAFETY: the copy is ours and goes over to the file, which closes it.
        let file = unsafe { BufferedFile::from_raw_fd(copy.into_raw_fd()) };
        Ok(Waiter { file, wake })
    }

    /// Returns when the ring has something or somebody called [`WakeFd::wake`]. The caller must run a turn (poll the
    /// net, drain the mesh) afterwards: the token is taken.
    ///
    /// Never drop this future before it is done: the read would go on and eat the next wake. So a task of its own loops
    /// on it, and ends only after a last [`WakeFd::signal`].
    pub async fn wait(&self) -> io::Result<()> {
        let read = self.file.read_at(0, 8).await;
        self.wake.take();
        read.map(drop).map_err(io::Error::from)
    }
}
