//! The two clocks of a [`Now`]. All cores share them, so that ticks may cross the mesh.
//!
//! Ticks are CLOCK_BOOTTIME: a machine that was suspended finds its leases over when it wakes, as the metadata store does (rule 17).
//! CLOCK_MONOTONIC, and with it [`Instant`], stands still meanwhile.

use crate::base::{Now, Ticks};
use std::time::{Duration, Instant, SystemTime};

/// The two may be so far apart without a suspension: they are not read at the same moment.
const APART: Duration = Duration::from_millis(10);

/// Clock of one core.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The same moment on both, since the machine was last suspended.
    instant: Instant,
    ticks: Ticks,
}

impl Clock {
    pub fn start() -> Self {
        Clock { instant: Instant::now(), ticks: ticks() }
    }

    pub fn now(&mut self) -> Now {
        let now = ticks();
        if now.since(self.ticks).saturating_sub(self.instant.elapsed()) > APART {
            *self = Self::start();
        }
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds);
        Now { ticks: now, unix_ns: unix as i64 }
    }

    /// The moment of a tick, if the machine is not suspended before; one that is unreachably far is a century away.
    pub fn instant(&self, ticks: Ticks) -> Instant {
        let far = Duration::from_secs(100 * 365 * 86_400);
        self.instant + ticks.since(self.ticks).min(far)
    }
}

fn nanoseconds(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// CLOCK_BOOTTIME.
pub fn ticks() -> Ticks {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    Ticks(nanoseconds(Duration::new(now.tv_sec as u64, now.tv_nsec as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    const APART_HERE: &str = "RINGMQ_TEST_CLOCKS_ARE_APART";

    /// The other clocks of a process are not a machine's that was suspended, unless a time namespace says so; the test runs once
    /// more in one, where it may.
    #[test]
    fn ticks_go_on_while_a_machine_is_suspended() {
        let boot_time = || {
            let uptime = std::fs::read_to_string("/proc/uptime").expect("Linux has it");
            uptime.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok()).expect("seconds since the boot")
        };
        let (before, now, after) = (boot_time(), Clock::start().now().ticks, boot_time());
        let now = now.0 as f64 / 1e9;
        // It is told in hundredths.
        assert!(before - 0.01 <= now && now <= after + 0.01, "{before} <= {now} <= {after}");
        if std::env::var_os(APART_HERE).is_some() {
            return;
        }
        let mut again = Command::new(std::env::current_exe().expect("this test"));
        again.args(["--exact", "runtime::clock::tests::ticks_go_on_while_a_machine_is_suspended"]).env(APART_HERE, "");
        // SAFETY: a system call and a write of the child, which has one thread.
        unsafe {
            again.pre_exec(|| match libc::unshare(libc::CLONE_NEWTIME) {
                0 => std::fs::write("/proc/self/timens_offsets", "boottime 100000 0"),
                _ => Ok(()),
            });
        }
        let output = again.output().expect("this test runs once more");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn a_tick_keeps_its_moment_and_one_after_a_suspension_is_not_missed() {
        let mut clock = Clock::start();
        let now = clock.now().ticks;
        let later = now + Duration::from_secs(5);
        assert_eq!(clock.instant(later), clock.instant(later), "whenever it is asked");
        assert!(clock.instant(now) <= Instant::now() && clock.instant(Ticks(u64::MAX)) > clock.instant(later));
        // As if the ticks had stood at less when the instants began: the machine was suspended since.
        clock.ticks = Ticks(clock.ticks.0 - 3_000_000_000);
        let before = clock.instant(later);
        clock.now();
        assert!(clock.instant(later) < before, "it comes by so much earlier");
    }
}
