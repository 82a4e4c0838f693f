//! Asking the node to stop: by a handle, by SIGTERM or SIGINT, or because a core has ended. And asking it to read its
//! files again, by SIGHUP, since the same thread waits for all signals. SIGUSR1 and SIGUSR2, which else end a process, are answered
//! in the log alone.

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
    asked: Mutex<AskedFor>,
    changed: Condvar,
}

#[derive(Default)]
struct AskedFor {
    /// Reason to stop; `None`: no stop was asked for.
    stop: Option<String>,
    /// True after a SIGHUP that was not handled yet.
    hangup: bool,
}

impl StopHandle {
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for a stop, from any thread. The first reason counts.
    pub fn request(&self, reason: &str) {
        let mut asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.stop.get_or_insert_with(|| reason.to_owned());
        self.inner.requested.store(true, Ordering::Release);
        self.inner.changed.notify_all();
    }

    pub fn is_requested(&self) -> bool {
        self.inner.requested.load(Ordering::Acquire)
    }

    /// Acts like a SIGHUP.
    pub fn hangup(&self) {
        self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner).hangup = true;
        self.inner.changed.notify_all();
    }

    /// Blocks until a stop is requested; returns the reason. Calls `on_hangup`, on this thread, after a SIGHUP; several at once may be
    /// one call, but a call always follows the last one.
    pub fn wait(&self, mut on_hangup: impl FnMut()) -> String {
        let mut asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(reason) = &asked.stop {
                return reason.clone();
            }
            if std::mem::take(&mut asked.hangup) {
                drop(asked);
                on_hangup();
                asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            asked = self.inner.changed.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes SIGTERM and SIGINT ask to stop. A second one is only answered in the log, since supervisors and shells send
    /// both, or one twice, and the stop takes seconds at most; the third ends the process at once. To be called by the first thread
    /// before there are others, since they must inherit that these signals are not theirs.
    pub fn on_signals(&self) -> io::Result<()> {
        self.take(&[libc::SIGTERM, libc::SIGINT])
    }

    /// The same for a node, which no other signal that tools send to a daemon may end: SIGHUP makes [`StopHandle::wait`] say so.
    pub fn on_signals_of_a_node(&self) -> io::Result<()> {
        self.take(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2])
    }

    fn take(&self, taken: &[libc::c_int]) -> io::Result<()> {
        // SAFETY: the set is initialised by sigemptyset before it is used.
        let signals = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in taken {
                libc::sigaddset(&mut set, *signal);
            }
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            set
        };
        let stop = self.clone();
        let take_signals = move || {
            let mut earlier = 0;
            loop {
                let mut signal = 0;
                // SAFETY: both point to live values.
                if unsafe { libc::sigwait(&signals, &mut signal) } != 0 {
                    continue;
                }
                let name = match signal {
                    libc::SIGHUP => {
                        stop.hangup();
                        continue;
                    }
                    libc::SIGUSR1 | libc::SIGUSR2 => {
                        let name = if signal == libc::SIGUSR1 { "SIGUSR1" } else { "SIGUSR2" };
                        tracing::warn!("{name} has no effect: SIGHUP reads the node's files again, SIGTERM stops the node");
                        continue;
                    }
                    libc::SIGINT => "SIGINT",
                    _ => "SIGTERM",
                };
                match answer(earlier, stop.is_requested()) {
                    Reaction::Stop => stop.request(name),
                    Reaction::Wait => {
                        tracing::warn!(
                            "{name}: the node is stopping, for seconds at most; one more signal ends the process at once"
                        );
                    }
                    Reaction::Exit => {
                        tracing::warn!("{name} again: the process ends at once; acknowledged messages are durable");
                        // SAFETY: ends the process without running anything else, as intended.
                        unsafe { libc::_exit(128 + signal) }
                    }
                }
                earlier += 1;
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(take_signals)?;
        Ok(())
    }
}

/// Reaction to a stop signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reaction {
    Stop,
    /// The stop goes on.
    Wait,
    Exit,
}

/// `earlier`: signals before this one.
fn answer(earlier: u32, is_stopping: bool) -> Reaction {
    match (earlier, is_stopping) {
        (0, false) => Reaction::Stop,
        (0 | 1, _) => Reaction::Wait,
        _ => Reaction::Exit,
    }
}

/// Joint stop of a node's cores: each goes on answering the others until all are done.
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

    /// Reports that one core has made everything durable.
    pub fn core_stopped(&self) {
        self.stopped.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
    }

    pub fn is_complete(&self) -> bool {
        self.stopped.load(Ordering::Acquire) >= self.cores.len()
    }

    pub fn wake_all(&self) {
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
                    "the node did not stop within {} s: the process ends now; acknowledged messages are durable",
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
    fn the_third_signal_ends_the_process_and_the_second_does_not() {
        assert_eq!([0, 1, 2, 3].map(|n| answer(n, n > 0)), [Reaction::Stop, Reaction::Wait, Reaction::Exit, Reaction::Exit]);
        assert_eq!(answer(0, true), Reaction::Wait, "it stops for another reason already");
    }

    #[test]
    fn the_first_reason_wakes_the_waiter() {
        let stop = StopHandle::new();
        let waiter = std::thread::spawn({
            let stop = stop.clone();
            move || stop.wait(|| {})
        });
        assert!(!stop.is_requested());
        stop.request("first");
        stop.request("second");
        assert_eq!(waiter.join().unwrap(), "first");
        assert!(stop.is_requested());
    }

    #[test]
    fn a_hangup_is_heard_once_and_does_not_stop() {
        let stop = StopHandle::new();
        stop.hangup();
        let (heard, inner) = (AtomicUsize::new(0), stop.clone());
        let reason = stop.wait(|| match heard.fetch_add(1, Ordering::SeqCst) {
            // while the first is dealt with
            0 => inner.hangup(),
            _ => inner.request("enough"),
        });
        assert_eq!((reason.as_str(), heard.load(Ordering::SeqCst)), ("enough", 2));
    }
}
