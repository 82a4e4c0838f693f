//! Asking the node to stop: by a handle, by SIGTERM or SIGINT, or because a core has ended.

use crate::mesh::Wake;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Cheap to clone; all clones are the same request.
#[derive(Clone, Default)]
pub struct StopHandle {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    requested: AtomicBool,
    reason: Mutex<Option<String>>,
    changed: Condvar,
}

impl StopHandle {
    pub fn new() -> Self {
        Self::default()
    }

    /// From any thread. The first reason counts.
    pub fn request(&self, reason: &str) {
        let mut known = self.inner.reason.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| reason.to_owned());
        self.inner.requested.store(true, Ordering::Release);
        self.inner.changed.notify_all();
    }

    pub fn is_requested(&self) -> bool {
        self.inner.requested.load(Ordering::Acquire)
    }

    /// Blocks until somebody asks; returns why.
    pub fn wait(&self) -> String {
        let mut reason = self.inner.reason.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(reason) = &*reason {
                return reason.clone();
            }
            reason = self.inner.changed.wait(reason).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes SIGTERM and SIGINT ask to stop; a second one ends the process at once. To be called by the first thread
    /// before there are others, since they must inherit that these signals are not theirs.
    pub fn on_signals(&self) -> io::Result<()> {
        // SAFETY: the set is initialised by sigemptyset before it is used.
        let signals = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            set
        };
        let stop = self.clone();
        let take_signals = move || {
            loop {
                let mut signal = 0;
                // SAFETY: both point to live values.
                if unsafe { libc::sigwait(&signals, &mut signal) } != 0 {
                    continue;
                }
                let name = if signal == libc::SIGINT { "SIGINT" } else { "SIGTERM" };
                if stop.is_requested() {
                    tracing::warn!("{name} again: the process ends at once; what was acknowledged is durable");
                    // SAFETY: ends the process without running anything else, which is what is wanted.
                    unsafe { libc::_exit(128 + signal) }
                }
                stop.request(name);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(take_signals)?;
        Ok(())
    }
}

/// How the cores of a node stop together: each goes on answering the others until all are done.
pub struct CoresStop {
    requested: AtomicBool,
    stopped: AtomicUsize,
    cores: Vec<Arc<dyn Wake>>,
}

impl CoresStop {
    pub fn new(cores: Vec<Arc<dyn Wake>>) -> Self {
        CoresStop { requested: AtomicBool::new(false), stopped: AtomicUsize::new(0), cores }
    }

    pub fn request(&self) {
        self.requested.store(true, Ordering::Release);
        self.wake_all();
    }

    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// One core has made everything durable.
    pub fn core_stopped(&self) {
        self.stopped.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    pub fn is_complete(&self) -> bool {
        self.stopped.load(Ordering::Acquire) >= self.cores.len()
    }

    fn wake_all(&self) {
        self.cores.iter().for_each(|core| core.wake());
    }
}

/// Ends the process when a graceful stop takes longer than `limit`; nothing acknowledged is lost by that.
pub fn exit_after(limit: Duration) -> impl Drop {
    struct Guard(Arc<AtomicBool>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let done = Arc::new(AtomicBool::new(false));
    let guard = Guard(done.clone());
    let watch = move || {
        let deadline = Instant::now() + limit;
        while !done.load(Ordering::Acquire) {
            if Instant::now() >= deadline {
                tracing::error!(
                    "the node did not stop within {} s: the process ends now; what was acknowledged is durable",
                    limit.as_secs()
                );
                // SAFETY: as above.
                unsafe { libc::_exit(1) }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // without the thread the stop is merely not bounded
    let _ = std::thread::Builder::new().name("stop limit".into()).spawn(watch);
    guard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_wakes_the_waiter() {
        let stop = StopHandle::new();
        let waiter = std::thread::spawn({
            let stop = stop.clone();
            move || stop.wait()
        });
        assert!(!stop.is_requested());
        stop.request("first");
        stop.request("second");
        assert_eq!(waiter.join().unwrap(), "first");
        assert!(stop.is_requested());
    }
}
