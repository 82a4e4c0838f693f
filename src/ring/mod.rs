//! A core's own io_uring ring, inside a glommio executor, and how the core sleeps and is woken.
//!
//! The operations that clients wait for go on this ring: socket bytes ([`crate::net`]) and the reads and writes of open files
//! ([`crate::disk`]). Opening, syncing, allocating and removing files stays with glommio, which brings the executor and its pool. It
//! knows neither connections nor files, and it never loses an entry or a completion.
//!
//! A core has two places to sleep in:
//!
//! | place | when | woken by |
//! |---|---|---|
//! | its own ring ([`Ring::enter_and_wait`]) | glommio has nothing under way | completions; its read of the one eventfd |
//! | glommio ([`Waiter`], [`Bell`]) | otherwise, and when idle for a while | the other eventfd, which the ring signals too |
//!
//! The first costs one system call and no task. The second costs some ten, since glommio looks after three rings and its
//! timers (docs/decisions/wake.md).
//!
//! | file | its concept |
//! |---|---|
//! | uring | submission that never loses an entry, completions |
//! | wake | the state of a core's sleep, and the eventfds |
//! | bell | an event between tasks of the executor |

mod bell;
mod uring;
mod wake;

pub use bell::Bell;
pub use uring::{Completion, Ring, SharedRing};
pub use wake::{Waiter, WakeFd};

/// Module that waits for a completion. Kind and id make the user data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum OpKind {
    Accept = 1,
    Receive,
    Send,
    Timer,
    /// Cancels and updates: their results are ignored.
    Control,
    /// The read of the eventfd that ends a sleep in the ring.
    Wake,
    Disk,
    Connect,
}

/// Bits of the kind in the user data; the rest is the id.
pub const KIND_BITS: u32 = 4;

/// `id` is below 2^60.
pub fn user_data(kind: OpKind, id: u64) -> u64 {
    debug_assert!(id < 1 << (u64::BITS - KIND_BITS));
    id << KIND_BITS | kind as u64
}

pub fn of_user_data(data: u64) -> Option<(OpKind, u64)> {
    let kind = match data & ((1 << KIND_BITS) - 1) {
        1 => OpKind::Accept,
        2 => OpKind::Receive,
        3 => OpKind::Send,
        4 => OpKind::Timer,
        5 => OpKind::Control,
        6 => OpKind::Wake,
        7 => OpKind::Disk,
        8 => OpKind::Connect,
        _ => return None,
    };
    Some((kind, data >> KIND_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::{opcode, types};
    use std::os::fd::AsRawFd;

    #[test]
    fn user_data_keeps_kind_and_id() {
        let id = (1 << 60) - 1;
        for kind in [
            OpKind::Accept,
            OpKind::Receive,
            OpKind::Send,
            OpKind::Timer,
            OpKind::Control,
            OpKind::Wake,
            OpKind::Disk,
            OpKind::Connect,
        ] {
            assert_eq!(of_user_data(user_data(kind, id)), Some((kind, id)));
        }
        assert_eq!(of_user_data(0), None);
    }

    #[test]
    fn what_was_started_is_done_before_the_turn_goes_on() {
        let wake = WakeFd::new().expect("an eventfd");
        let mut ring = Ring::new(8, &wake).expect("a ring");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let byte = [7u8];
        let entry = opcode::Write::new(types::Fd(writer.as_raw_fd()), byte.as_ptr(), 1).build();
        // SAFETY: the byte is there until the end of the test, which waits for the completion.
        unsafe { ring.push(entry.user_data(user_data(OpKind::Disk, 1))) };
        let mut unread = 0;
        // SAFETY: the number is writable.
        let mut count = || unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &mut unread) == 0 && unread > 0 };
        assert!(!count(), "an entry that was only queued does nothing yet");
        ring.start();
        assert!(count(), "the write was begun");
        ring.enter_and_wait(std::time::Duration::from_secs(10)).expect("the ring works");
        let mut completions = vec![];
        ring.take(&mut completions, 8);
        assert!(completions.is_empty(), "what completes for files is kept for them");
        assert_eq!((ring.take_file(), ring.take_file()), (Some((1, 1)), None));
    }
}
