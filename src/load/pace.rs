//! A timer of the kernel's precision for open loops: tokio's own counts whole milliseconds, which is longer than the measured times. One
//! per connection; polled like a future.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;

pub struct Timer {
    fd: AsyncFd<OwnedFd>,
    /// Time the timer is set to, on the caller's clock.
    armed_ns: Option<u64>,
}

impl Timer {
    /// Inside a tokio runtime.
    pub fn new() -> io::Result<Timer> {
        // SAFETY: no memory is handed over; a negative answer is an error and is not used as a descriptor.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the descriptor stays open and the same while the AsyncFd owns it: it is never replaced or handed out.
        let fd = unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) }?;
        Ok(Timer { fd, armed_ns: None })
    }

    /// Ready when `now` has reached `due`, or soon after it should have; ask again with a new `now` then.
    pub fn poll_until(&mut self, cx: &mut Context<'_>, now: u64, due: u64) -> Poll<io::Result<()>> {
        if due <= now {
            return Poll::Ready(Ok(()));
        }
        if self.armed_ns != Some(due) {
            self.set(due - now)?;
            self.armed_ns = Some(due);
        }
        // Setting it again takes back an expiry that was not read, so it is never read.
        let mut expired = ready!(self.fd.poll_read_ready(cx))?;
        expired.clear_ready();
        self.armed_ns = None;
        Poll::Ready(Ok(()))
    }

    fn set(&self, ns: u64) -> io::Result<()> {
        // SAFETY: plain numbers, zero is valid.
        let mut spec: libc::itimerspec = unsafe { std::mem::zeroed() };
        spec.it_value.tv_sec = (ns / 1_000_000_000) as libc::time_t;
        spec.it_value.tv_nsec = (ns % 1_000_000_000) as libc::c_long;
        // SAFETY: the descriptor is ours, `spec` lives through the call, and the old value is not asked for.
        match unsafe { libc::timerfd_settime(self.fd.as_raw_fd(), 0, &spec, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Number of pieces in which skipped publishes are reported.
const LEFT_MAX: u64 = 10_000;

/// Due times of the publishes of one connection in an open loop. Exact over hours: each time is computed from the first.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    first_ns: f64,
    step_ns: f64,
    next: u64,
}

impl Schedule {
    /// `rate` in publishes per second over all `connections`, which take turns.
    pub fn new(rate: f64, connection: u32, connections: u32) -> Self {
        let gap = 1e9 / rate;
        Schedule { first_ns: gap * connection as f64, step_ns: gap * connections as f64, next: 0 }
    }

    /// Due time in ns after the start.
    pub fn due_ns(&self) -> u64 {
        (self.first_ns + self.step_ns * self.next as f64) as u64
    }

    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// Publishes that were not taken, and are due in that time: how many, and when. Of very many, some are named together, with the
    /// time of the last of them.
    pub fn left_within(&self, from_ns: u64, end_ns: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let before = |ns: u64| ((ns as f64 - self.first_ns) / self.step_ns).ceil().max(0.0) as u64;
        let (first, end) = (before(from_ns).max(self.next), before(end_ns));
        let (schedule, together) = (*self, end.saturating_sub(first).div_ceil(LEFT_MAX).max(1));
        (first..end).step_by(usize::try_from(together).unwrap_or(usize::MAX)).map(move |at| {
            let num = together.min(end - at);
            (num, Schedule { next: at + num - 1, ..schedule }.due_ns())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_a_rate_evenly() {
        let mut schedules: Vec<_> = (0..4).map(|i| Schedule::new(1000.0, i, 4)).collect();
        let mut due: Vec<u64> =
            (0..10).flat_map(|_| schedules.iter_mut().map(|s| (s.due_ns(), s.advance()).0).collect::<Vec<_>>()).collect();
        due.sort_unstable();
        assert_eq!(due, (0..40).map(|i| i * 1_000_000).collect::<Vec<_>>());
        let left = |s: &Schedule, from, end| s.left_within(from, end).collect::<Vec<_>>();
        assert_eq!(schedules.iter().flat_map(|s| left(s, 0, 50_000_000)).map(|(num, _)| num).sum::<u64>(), 10);
        assert_eq!(left(&schedules[0], 0, 1), []);
        assert_eq!(left(&schedules[0], 42_000_000, 50_000_000), [(1, 44_000_000), (1, 48_000_000)]);
        let many = left(&Schedule::new(1e9, 0, 1), 0, 3_600_000_000_000);
        assert_eq!(many.iter().map(|(num, _)| num).sum::<u64>(), 3_600_000_000_000);
        assert!(many.len() as u64 <= LEFT_MAX && many.last() == Some(&(360_000_000, 3_599_999_999_999)));
    }

    #[test]
    fn the_timer_is_precise_and_can_be_set_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let mut timer = Timer::new().unwrap();
            let start = std::time::Instant::now();
            for round in 1..=20u64 {
                let due = round * 300_000;
                std::future::poll_fn(|cx| {
                    let now = start.elapsed().as_nanos() as u64;
                    // The second call of a poll finds it armed.
                    if timer.poll_until(cx, now, due)?.is_ready() && now < due {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    if now < due { Poll::Pending } else { Poll::Ready(io::Result::Ok(())) }
                })
                .await
                .unwrap();
                assert!(start.elapsed().as_nanos() as u64 >= due);
            }
        });
    }
}
