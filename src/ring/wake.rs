//! Whether a core is awake, and how any thread ends its sleep.
//!
//! A wake must cost nothing while the core is awake, and must never be lost. The state is one word:
//!
//! ```text
//!            try_sleep, try_park                      wake: writes an eventfd
//!   AWAKE -----------------------> SLEEPING, PARKED ----------------------------> NOTIFIED
//!     ^ \__ wake: no write ___________________________________________________________^ |
//!     |__________________ try_* (refuses), Waiter::wait, WakeFd::take ________________|
//! ```
//! A core that is SLEEPING does so in glommio's reactor, which reads the one eventfd (the kernel signals it for the core's own
//! ring, too); one that is PARKED waits in its own ring, which reads the other.
//!
//! **Why none is lost.** Every change is a read-modify-write, so all of them have one order, and each acquires the writes that the
//! former ones released. A waker first publishes its item, then swaps in NOTIFIED. That swap stands either
//! - before the core takes the token (NOTIFIED -> AWAKE): the core then sees the item, as it looks at its queues in the
//!   turn that follows; or
//! - after that, and before try_sleep: try_sleep finds NOTIFIED and refuses; or
//! - after try_sleep: the swap returns SLEEPING (or PARKED), and that waker writes the eventfd.
//!
//! So the core need not look at the queues once more between deciding to sleep and sleeping.

use crate::mesh::Wake;
use glommio::io::BufferedFile;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const AWAKE: u8 = 0;
const SLEEPING: u8 = 1;
const NOTIFIED: u8 = 2;
const PARKED: u8 = 3;

/// Wakes one core from any thread.
pub struct WakeFd {
    /// Eventfd of a sleep in glommio.
    fd: OwnedFd,
    /// Eventfd of a sleep in the core's own ring.
    ring_fd: OwnedFd,
    state: AtomicU8,
}

impl WakeFd {
    pub fn new() -> io::Result<Arc<WakeFd>> {
        Ok(Arc::new(WakeFd { fd: eventfd()?, ring_fd: eventfd()?, state: AtomicU8::new(AWAKE) }))
    }

    /// Ends the sleep of the core, or keeps it from falling asleep. One atomic operation while it is awake.
    pub fn wake(&self) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            SLEEPING => self.signal(),
            PARKED => write_one(&self.ring_fd),
            _ => {}
        }
    }

    /// Makes the next [`Waiter::wait`] return, whatever the state: for a core that is busy but lets the executor's
    /// reactor (its disk) have a turn.
    pub fn signal(&self) {
        write_one(&self.fd);
    }

    /// The core is about to sleep in glommio. False: it was woken since the last time; run a turn instead.
    pub fn try_sleep(&self) -> bool {
        self.leave(SLEEPING)
    }

    /// The core is about to wait in its own ring, which [`super::Ring::listen`]s. False as above.
    pub fn try_park(&self) -> bool {
        self.leave(PARKED)
    }

    fn leave(&self, to: u8) -> bool {
        match self.state.compare_exchange(AWAKE, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(state) if state == to => true,
            Err(_) => {
                self.state.swap(AWAKE, Ordering::AcqRel);
                false
            }
        }
    }

    /// The core runs a turn that a completion, not a waker, has begun: wakes need not write now. A NOTIFIED stays, since its item may
    /// have been published after the queues were last looked at.
    pub fn stay_awake(&self) {
        let state = self.state.load(Ordering::Relaxed);
        if matches!(state, SLEEPING | PARKED) {
            let _ = self.state.compare_exchange(state, AWAKE, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Takes the token: the core looks at its queues in the turn that has begun.
    pub fn take(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(super) fn raw_for_ring(&self) -> RawFd {
        self.ring_fd.as_raw_fd()
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call. Blocking on purpose: a ring answers a non-blocking one with EAGAIN at once.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn write_one(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight readable bytes, and the descriptor is open.
    let written = unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    // it can fail only by a signal, or when 2^64-2 wakes are unread: then the reader wakes anyway
    debug_assert!(written == 8 || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted);
}

impl Wake for WakeFd {
    fn wake(&self) {
        WakeFd::wake(self);
    }
}

/// The executor's side of a [`WakeFd`]: the core sleeps on it. Lives on the executor's thread.
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

    /// Returns when the ring has a completion or a thread called [`WakeFd::wake`]. The caller must run a turn (poll the net, drain the
    /// mesh) afterwards: the token is taken.
    ///
    /// Never drop this future before it is done: the read would go on and eat the next wake. So a task of its own loops
    /// on it, and ends only after a last [`WakeFd::signal`].
    pub async fn wait(&self) -> io::Result<()> {
        let read = self.file.read_at(0, 8).await;
        self.wake.take();
        read.map(drop).map_err(io::Error::from)
    }
}
