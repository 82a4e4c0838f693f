//! The time slice that the node's threads ask the kernel for.
//!
//! A thread that wakes on the CPU of a busy thread may have to wait until that one has used up its slice, or for the next tick. The
//! kernel's workers that complete a durable write are among these threads, and so are those of clients on the same machine. With a short
//! slice a busy core gives way sooner, and gets the same time in all. tuning.md has measurements, beside other programs and alone.

use std::io;
use std::time::Duration;

/// Shortest slice that Linux takes.
pub const MIN: Duration = Duration::from_micros(100);
pub const MAX: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceState {
    InForce(Duration),
    /// Linux before 6.12.
    NotKnown,
    /// The operator chose another scheduling policy (chrt), which has its own rules.
    OtherPolicy,
}

/// Sets the slice of the calling thread and of threads that it starts from now on.
pub fn ask(slice: Duration) -> io::Result<SliceState> {
    let mut attr = get()?;
    if ![libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(attr.sched_policy as i32)) {
        return Ok(SliceState::OtherPolicy);
    }
    attr.sched_runtime = slice.clamp(MIN, MAX).as_nanos() as u64;
    attr.sched_deadline = 0;
    attr.sched_period = 0;
    // SAFETY: the structure is readable and says how long it is.
    if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let now = Duration::from_nanos(get()?.sched_runtime);
    Ok(if now.is_zero() { SliceState::NotKnown } else { SliceState::InForce(now) })
}

fn get() -> io::Result<libc::sched_attr> {
    // SAFETY: all of its fields are numbers; the call writes at most the size it is given.
    unsafe {
        let mut attr: libc::sched_attr = std::mem::zeroed();
        let size = size_of::<libc::sched_attr>();
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_inherit_the_slice() {
        let ours = || get().map(|attr| attr.sched_runtime).expect("a thread may ask for its own");
        std::thread::spawn(move || match ask(Duration::from_micros(150)).expect("it needs no privilege") {
            SliceState::InForce(slice) => {
                assert_eq!(slice, Duration::from_micros(150));
                assert_eq!(std::thread::spawn(ours).join().expect("no panic"), 150_000);
            }
            SliceState::NotKnown => assert_eq!(ours(), 0),
            SliceState::OtherPolicy => {}
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn what_linux_does_not_take_becomes_what_it_takes() {
        std::thread::spawn(|| {
            for (asked, got) in [(Duration::ZERO, MIN), (Duration::from_secs(9), MAX)] {
                if let SliceState::InForce(slice) = ask(asked).expect("it needs no privilege") {
                    assert_eq!(slice, got);
                }
            }
        })
        .join()
        .expect("no panic");
    }
}
