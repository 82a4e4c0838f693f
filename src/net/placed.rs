//! Bytes that are received to where they stay: into memory that the caller lends, not into the shared buffers.
//!
//! ```text
//!   multishot ── receive_into ──> cancelled ── its last completion ──> one receive into the memory ── whole, or a while over ──> told
//!       ^                         (what it had taken is copied)            ^                                                    |
//!       |                                                                  |  receive_into                                      v
//!       '───────────────────────── more of them are not needed ────────────┴──── one receive into a shared buffer <─────────────'
//! ```
//! Where nothing comes for that while, the next receive has no end but the first bytes: a client that stays silent in the middle of a
//! body costs nothing.
//!
//! Two receives of a connection are never under way together, so the order of the bytes stands. The memory is the kernel's from
//! the receive's submission until its completion, whatever becomes of the connection meanwhile: it lives in [`Conn`], which stays
//! until then.

use super::conn::{Conn, NO_CONN, user_data};
use crate::base::Lent;
use crate::ring::{OpKind, Ring};
use io_uring::{opcode, squeue, types};
use std::os::fd::AsRawFd;

/// Time after which a partial receive is handed back: the caller hears that the other side says something.
static PATIENCE: types::Timespec = types::Timespec::new().nsec(10_000_000);

/// Number of receives into shared buffers that follow a receive into lent memory. Each lets the caller say where the rest goes, and
/// nothing has to be cancelled for it.
const SINGLES: u8 = 4;

/// The kernel counts in 32 bits.
const RECEIVE_BYTES_MAX: usize = 1 << 30;

/// State of a connection that was lent memory once.
#[derive(Debug, Default)]
pub(super) struct LentMemory {
    /// Lent memory; it neither moves nor goes while `is_in_flight`.
    lent: Option<Lent>,
    is_in_flight: bool,
    /// True once bytes were put there.
    has_come: bool,
    /// True after a time without input: the next receive ends with the first bytes, whenever they come.
    is_idle: bool,
    singles: u8,
}

impl LentMemory {
    /// The kernel put so many bytes behind those in the memory.
    fn came(&mut self, bytes: usize) {
        let lent = self.lent.as_mut().expect("what is with the kernel stays");
        assert!(self.is_in_flight && bytes <= lent.wanted, "the kernel put more than there was room");
        // SAFETY: `wanted` bytes have room ([`Conn::lend`] looked), and the kernel wrote the first of them.
        unsafe { lent.memory.set_len(lent.memory.len() + bytes) };
        lent.wanted -= bytes;
        self.has_come = true;
    }
}

impl Conn {
    /// Memory waits for bytes.
    pub fn has_lent(&self) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.lent.is_some())
    }

    /// Whether the receive that is under way goes to the lent memory.
    pub fn is_receiving_lent(&self) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.is_in_flight)
    }

    /// Lends memory for the next bytes.
    pub fn lend(&mut self, lent: Lent) {
        let placed = self.placed.get_or_insert_default();
        let room = lent.memory.capacity() - lent.memory.len();
        assert!(placed.lent.is_none() && (1..=room).contains(&lent.wanted), "one piece of memory at a time, with room");
        (placed.lent, placed.has_come, placed.is_idle, placed.singles) = (Some(lent), false, false, SINGLES);
    }

    /// Gives up lent memory, except memory in use by the kernel.
    pub fn drop_lent(&mut self) {
        self.placed.take_if(|placed| !placed.is_in_flight);
    }

    /// Copies wanted bytes from a shared buffer into lent memory. Returns the memory when it is complete.
    pub fn put_lent(&mut self, bytes: &mut &[u8]) -> Option<Lent> {
        let placed = self.placed.as_mut()?;
        placed.lent.as_mut()?.put(bytes);
        placed.has_come = true;
        placed.lent.take_if(|lent| lent.wanted == 0)
    }

    /// The receive into lent memory is over. Returns the memory if it has bytes, also from an earlier receive.
    pub fn received_lent(&mut self, result: i32) -> Option<Lent> {
        let placed = self.placed.as_mut()?;
        if result > 0 {
            placed.came(result as usize);
        }
        placed.is_in_flight = false;
        placed.is_idle = !placed.has_come;
        let has_come = placed.has_come;
        placed.lent.take_if(|_| has_come)
    }

    /// The next receive is for once: the caller may want to say where the rest goes.
    pub fn is_single(&self) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.singles > 0)
    }

    /// The receive that comes next, when it is not a multishot.
    pub fn push_single(&mut self, ring: &mut Ring, group: u16) -> bool {
        let (fd, name) = (types::Fd(self.fd.as_raw_fd()), user_data(OpKind::Receive, self.id));
        let Some(placed) = &mut self.placed else { return false };
        if let Some(lent) = &mut placed.lent {
            placed.is_in_flight = true;
            let room = &mut lent.memory.spare_capacity_mut()[..lent.wanted.min(RECEIVE_BYTES_MAX)];
            let entry = opcode::Recv::new(fd, room.as_mut_ptr().cast(), room.len() as u32);
            if placed.is_idle {
                // SAFETY: the memory neither moves nor goes before the completion.
                unsafe { ring.push(entry.build().user_data(name)) };
                return true;
            }
            let entry = entry.flags(libc::MSG_WAITALL).build();
            let limit = opcode::LinkTimeout::new(&PATIENCE).build();
            // else the limit would stand alone
            ring.make_room(2);
            // SAFETY: the memory neither moves nor goes before the completion; the limit is read at the submission, and static.
            unsafe {
                ring.push(entry.user_data(name).flags(squeue::Flags::IO_LINK));
                ring.push(limit.user_data(user_data(OpKind::Control, NO_CONN)));
            }
            return true;
        }
        let is_single = placed.singles > 0;
        if is_single {
            placed.singles -= 1;
            let entry = opcode::Recv::new(fd, std::ptr::null_mut(), 0).buf_group(group).build();
            // SAFETY: the entry points to nothing; the buffers of the group outlive the ring's operations.
            unsafe { ring.push(entry.user_data(name).flags(squeue::Flags::BUFFER_SELECT)) };
        }
        is_single
    }
}
