//! [`Net`]: commands in, completions out.
//!
//! A command or a completion changes a connection's state and notes it in `todo`; `settle` then acts on the state (arm or cancel the
//! receive, cancel a send, finish). It runs at the end of `poll` and before a submission, never while completions are being read. Its
//! events wait in `news` for the end of a `poll`.
//!
//! **Memory and the kernel.** A receive writes into [`Buffers`], or into memory that `Conn::placed` has in flight; a send reads
//! `Conn::sending`, or the pieces in flight of `Conn::pieces`. All of that is neither changed nor freed before its completion.
//! `Conns::remove` asserts that nothing is in flight, so a completion always finds its connection.

mod accept;
mod dial;
mod receive;
mod shutdown;

use super::buffers::{Buffers, GROUP};
use super::conn::{CONNECTIONS_MAX, Conn, Conns, Moving, NO_CONN, Phase, Receive, user_data};
use super::timer::Timer;
use super::{NetError, NetEvent, NetOptions, listen};
use crate::base::{ConnId, CoreId, IdMap, Lent, Peer};
use crate::ring::{self, Completion, OpKind, Ring, SharedRing, WakeFd, of_user_data};
use crate::seam::message::MovedSession;
use bytes::Bytes;
use dial::Dials;
use io_uring::{cqueue, opcode, types};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completions that one `poll` handles: bounds how long a turn is.
const COMPLETIONS_MAX: usize = 512;

/// Time that a closing connection has to send its output, and then its peer to end.
const LINGER: Duration = Duration::from_secs(1);

/// Time that answers may still go out to a client that has closed its write side.
const HALF_CLOSE_GRACE: Duration = Duration::from_millis(200);

/// A connection that moves waits this long for its sends; then it is broken, and the other core hears the end of it.
const MOVE_PATIENCE: Duration = Duration::from_secs(5);

/// Pause between tries when the process or the system is out of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Pause between log lines about failing accepts.
const ACCEPT_LOG: Duration = Duration::from_secs(10);

/// Most bytes of one send: the kernel counts in 32 bits.
const SEND_BYTES_MAX: usize = 1 << 30;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Accept {
    Off,
    Armed,
    Cancelling,
}

struct Listening {
    /// `None` once the listener was closed.
    listener: Option<TcpListener>,
    accept: Accept,
}

/// News that `settle` has to report.
enum SocketNews {
    Ended { conn: ConnId, unanswered: bool },
    Closed { conn: ConnId },
    Moved { conn: ConnId, fd: OwnedFd, moving: Box<Moving> },
    Dialed { dial: u64, result: Result<(ConnId, Peer), String> },
}

/// The sockets of one core. Made and used on the executor's thread only (the ring takes entries from that thread alone).
pub struct Net {
    ring: SharedRing,
    /// Freed only after everything in flight was reaped; else it is left to the kernel for good.
    buffers: ManuallyDrop<Buffers>,
    conns: ManuallyDrop<Conns>,
    timer: ManuallyDrop<Timer>,
    dials: ManuallyDrop<Dials>,
    /// Error number if the eventfd that ends a sleep in the ring cannot be read.
    wake_failed: Option<i32>,
    /// Listeners, by their index in the `Opened` event of a connection.
    listeners: Vec<Listening>,
    accepting: bool,
    accept_retry_at: Option<Instant>,
    accept_logged_at: Option<Instant>,
    wake: Arc<WakeFd>,
    /// The caller's deadline.
    deadline: Option<Instant>,
    /// Ends of connection phases; may name connections that are gone or have moved on.
    phase_ends: BinaryHeap<Reverse<(Instant, ConnId)>>,
    todo: Vec<ConnId>,
    /// Connections settled at the next submission: the caller may first give memory for the next receive.
    later: Vec<ConnId>,
    news: VecDeque<SocketNews>,
    /// Receives that found no buffer, first come first served.
    starved: VecDeque<ConnId>,
    /// Connections whose end was not told yet.
    open: usize,
    completions: Vec<Completion>,
    is_shut_down: bool,
    /// The ring belongs to one thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Net {
    /// Sets up the ring, starts accepting. Call on the executor's thread.
    pub fn new(listener: TcpListener, options: NetOptions) -> Result<Net, NetError> {
        let wake = WakeFd::new().map_err(|cause| NetError::Ring { step: "eventfd", cause })?;
        Net::with_wake(vec![listener], options, wake)
    }

    /// Engine like that of `new`, with several listeners and a wake that other threads have already.
    pub fn with_wake(listeners: Vec<TcpListener>, options: NetOptions, wake: Arc<WakeFd>) -> Result<Net, NetError> {
        let ring = options.ring(&wake)?;
        Net::on_ring(listeners, options, wake, ring)
    }

    /// Sockets on a ring that the core shares with its files.
    pub fn on_ring(
        listeners: Vec<TcpListener>,
        options: NetOptions,
        wake: Arc<WakeFd>,
        ring: SharedRing,
    ) -> Result<Net, NetError> {
        if !options.buffers.is_power_of_two() || options.buffers > 1 << 15 || options.buffer_bytes == 0 {
            return Err(NetError::Options("the number of receive buffers must be a power of two up to 32,768, their size not 0"));
        }
        let buffers = Buffers::new(ring.borrow().uring(), options.buffers, options.buffer_bytes)
            .map_err(|cause| NetError::Ring { step: "receive buffers", cause })?;
        for listener in &listeners {
            listener.set_nonblocking(false).map_err(|cause| NetError::Ring { step: "listener", cause })?;
            listen::set_nodelay(listener.as_raw_fd()).map_err(|cause| NetError::Ring { step: "TCP_NODELAY", cause })?;
        }
        let listening = |listener| Listening { listener: Some(listener), accept: Accept::Off };
        Ok(Net {
            ring,
            buffers: ManuallyDrop::new(buffers),
            conns: ManuallyDrop::new(Conns::new()),
            timer: ManuallyDrop::new(Timer::new()),
            dials: ManuallyDrop::new(Dials::new()),
            listeners: listeners.into_iter().map(listening).collect(),
            wake_failed: None,
            accepting: true,
            accept_retry_at: None,
            accept_logged_at: None,
            wake,
            deadline: None,
            phase_ends: BinaryHeap::new(),
            todo: Vec::new(),
            later: Vec::new(),
            news: VecDeque::new(),
            starved: VecDeque::new(),
            open: 0,
            completions: Vec::with_capacity(COMPLETIONS_MAX),
            is_shut_down: false,
            _not_send: std::marker::PhantomData,
        })
    }

    /// Eventfd through which any thread may wake this core.
    pub fn wake_fd(&self) -> Arc<WakeFd> {
        self.wake.clone()
    }

    /// Connections whose `Closed` or `Moved` was not told yet.
    pub fn connections(&self) -> usize {
        self.open
    }

    // ---- commands. One for a connection that is gone does nothing: its end may be on the way to the caller.

    /// Sends bytes behind earlier ones. While a send is in flight, further bytes are joined into the next one. On a connection that is
    /// closing the bytes are dropped.
    pub fn send(&mut self, conn: ConnId, bytes: Vec<u8>) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        if bytes.is_empty() || c.broken || matches!(c.phase, Phase::Closing | Phase::Draining) {
            return;
        }
        c.unanswered = false;
        if c.pieces.is_some() {
            c.pieces().push(bytes.into());
        } else if !c.is_sending() {
            c.sending = bytes;
            c.sent = 0;
            push_send(&mut self.ring.borrow_mut(), c);
        } else if c.queued.is_empty() {
            c.queued = bytes;
        } else {
            c.queued.extend_from_slice(&bytes);
        }
    }

    /// The same for pieces of memory, which are not copied.
    pub fn send_pieces(&mut self, conn: ConnId, pieces: Vec<Bytes>) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        if c.broken || matches!(c.phase, Phase::Closing | Phase::Draining) {
            return;
        }
        c.unanswered = false;
        let waiting = c.pieces();
        pieces.into_iter().for_each(|piece| waiting.push(piece));
        if waiting.is_empty() {
            c.pieces = None;
        } else if !c.is_sending() {
            push_send(&mut self.ring.borrow_mut(), c);
        }
    }

    /// Stops receiving. Bytes that the kernel has already taken from the socket still come.
    pub fn pause(&mut self, conn: ConnId) {
        self.set_paused(conn, true);
    }

    pub fn resume(&mut self, conn: ConnId) {
        self.set_paused(conn, false);
    }

    fn set_paused(&mut self, conn: ConnId, paused: bool) {
        if let Some(c) = self.conns.get_mut(conn)
            && c.paused != paused
        {
            c.paused = paused;
            self.todo.push(conn);
        }
    }

    /// Closes once all bytes are sent, or cannot be sent for a second; `Closed` follows. No more bytes come.
    pub fn close(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        if matches!(c.phase, Phase::Open | Phase::HalfClosed) {
            c.phase = Phase::Closing;
            c.drop_lent();
            self.end_phase_at(conn, Instant::now() + LINGER);
            self.todo.push(conn);
        }
    }

    /// Stops receiving, waits for its sends, then hands the socket over in `Moved` with `unread` and the bytes received meanwhile. On a
    /// connection that is closing it does nothing: `Closed` is on its way. One for which memory was lent does not move.
    pub fn move_away(&mut self, conn: ConnId, to: CoreId, session: Box<MovedSession>, unread: Vec<u8>) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        if matches!(c.phase, Phase::Open | Phase::HalfClosed) {
            assert!(!c.has_lent(), "what came would be lost");
            c.phase = Phase::Moving(Box::new(Moving { to, session, unread }));
            self.end_phase_at(conn, Instant::now() + MOVE_PATIENCE);
            self.todo.push(conn);
        }
    }

    /// Takes over a socket that another core gave away. No `Opened` follows; its bytes come after what the other core
    /// had unread.
    ///
    /// Panics when the core has a million connections.
    pub fn adopt(&mut self, fd: OwnedFd) -> (ConnId, Peer) {
        // a peer that is gone is told by the first receive
        let peer = listen::peer(&fd).unwrap_or_else(|_| Peer("unknown".into()));
        let conn = self.conns.open(fd).expect("fewer than a million connections per core");
        self.open += 1;
        self.todo.push(conn);
        (conn, peer)
    }

    /// Wakes the core at `at`, not before; one that is past makes `submit` return true once. `None`: no deadline.
    /// A deadline is used up when it has passed. The core may also be woken at an earlier deadline that was replaced.
    pub fn set_deadline(&mut self, at: Option<Instant>) {
        self.deadline = at;
    }

    /// Closes the listeners. Connections that the kernel has accepted meanwhile are closed.
    pub fn stop_accepting(&mut self) {
        self.accepting = false;
        for (i, l) in self.listeners.iter_mut().enumerate() {
            match l.accept {
                Accept::Off => l.listener = None,
                Accept::Armed => {
                    l.accept = Accept::Cancelling;
                    push_cancel(&mut self.ring.borrow_mut(), user_data(OpKind::Accept, ConnId(i as u64)));
                }
                Accept::Cancelling => {}
            }
        }
    }

    // ---- turns

    /// Submits all that the commands asked for and collects completions: one system call, none when there is nothing to do.
    /// True: there is something for `poll`.
    pub fn submit(&mut self) -> io::Result<bool> {
        self.todo.append(&mut self.later);
        self.settle_all();
        self.arm_accept();
        let is_due = self.arm_timer();
        let mut ring = self.ring.borrow_mut();
        if ring.has_hidden_work() {
            ring.enter()?;
        }
        Ok(is_due || !self.news.is_empty() || ring.has_work())
    }

    /// The core is about to sleep in glommio on its [`crate::ring::Waiter`]: events from now on end that sleep. False: an event came
    /// meanwhile, do not sleep (or call `wake_fd().signal()` first).
    pub fn try_sleep(&mut self) -> io::Result<bool> {
        if !self.wake.try_sleep() {
            return Ok(false);
        }
        let mut ring = self.ring.borrow_mut();
        let is_late = ring.arm_wake()?;
        if is_late {
            ring.disarm_wake();
        }
        Ok(!is_late)
    }

    /// Blocks the thread until an operation completes or another thread wakes this core; at most for `at_most`, looking without a system
    /// call for the time of `spin` at first. True: run a turn. False: the time is over.
    pub fn park(&mut self, spin: Duration, at_most: Duration) -> io::Result<bool> {
        if let Some(errno) = self.wake_failed {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if !self.wake.try_park() {
            return Ok(true);
        }
        let mut ring = self.ring.borrow_mut();
        if ring.listen(&self.wake) {
            ring.enter()?;
        }
        if !spin.is_zero() {
            let begun = Instant::now();
            while begun.elapsed() < spin {
                if ring.has_work() {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
        }
        ring.enter_and_wait(at_most)?;
        Ok(ring.has_completions())
    }

    /// Hands out completed operations, at most a few hundred; returns the number of events.
    pub fn poll(&mut self, each: &mut dyn FnMut(NetEvent<'_>)) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let mut ring = self.ring.borrow_mut();
        ring.disarm_wake();
        self.wake.stay_awake();
        if !ring.has_completions() && ring.has_hidden_work() {
            // the completion that woke the thread is there once asked for. An error comes again at submit(), which tells it.
            let _ = ring.enter();
        }
        ring.take(&mut completions, COMPLETIONS_MAX);
        drop(ring);
        let mut events = 0;
        let mut buffers_given = 0;
        for c in completions.drain(..) {
            if let Some(buffer) = cqueue::buffer_select(c.flags) {
                events += self.received(c, Some(buffer), each);
                self.buffers.give(buffer);
                buffers_given += 1;
            } else {
                events += self.completed(c, each);
            }
        }
        self.completions = completions;
        if buffers_given > 0 {
            self.buffers.publish();
        }
        self.feed_starved(buffers_given);
        self.end_phases();
        self.take_resolved();
        self.end_dials();
        self.settle_all();
        while let Some(news) = self.news.pop_front() {
            events += 1;
            match news {
                SocketNews::Ended { conn, unanswered } => each(NetEvent::Ended { conn, unanswered }),
                SocketNews::Closed { conn } => each(NetEvent::Closed { conn }),
                SocketNews::Moved { conn, fd, moving } => {
                    let Moving { to, session, unread } = *moving;
                    each(NetEvent::Moved { conn, fd, to, session, unread });
                }
                SocketNews::Dialed { dial, result } => each(NetEvent::Dialed { dial, result }),
            }
        }
        events
    }

    /// A completion without a receive buffer.
    fn completed(&mut self, c: Completion, each: &mut dyn FnMut(NetEvent<'_>)) -> usize {
        match of_user_data(c.user_data) {
            Some((OpKind::Receive, _)) => self.received(c, None, each),
            Some((OpKind::Send, conn)) => self.sent(ConnId(conn), c.result, each),
            Some((OpKind::Accept, listener)) => self.accepted(c, listener as usize, each),
            Some((OpKind::Connect, dial)) => {
                self.connected(dial, c.result);
                0
            }
            Some((OpKind::Disk, _)) => unreachable!("the ring keeps what completes for files"),
            Some((OpKind::Wake, _)) => {
                self.ring.borrow_mut().heard();
                if c.result < 0 && !matches!(-c.result, libc::EINTR | libc::EAGAIN | libc::ECANCELED) {
                    self.wake_failed = Some(-c.result);
                }
                self.wake.take(); // the caller looks at the mesh after this poll
                0
            }
            Some((OpKind::Timer, _)) => {
                self.timer.fired();
                if self.deadline.is_some_and(|at| at <= Instant::now()) {
                    self.deadline = None;
                }
                0
            }
            Some((OpKind::Control, _)) => 0,
            None => unreachable!("the kernel answers only what was asked: {:#x}", c.user_data),
        }
    }

    fn sent(&mut self, conn: ConnId, result: i32, each: &mut dyn FnMut(NetEvent<'_>)) -> usize {
        let c = self.conns.get_mut(conn).expect("a connection stays until its operations are done");
        let mut events = 0;
        match result {
            1.. => {
                c.taken(result as usize);
                events = 1;
                each(NetEvent::Sent { conn, bytes: result as usize });
            }
            _ if matches!(-result, libc::EINTR | libc::EAGAIN) => c.taken(0),
            _ => c.broken = true, // reset, cancelled, or the kernel is out of memory
        }
        if c.has_rest() && c.send_cancelled {
            c.broken = true; // it was to be given up, and that much got out before
        }
        if c.broken {
            c.drop_output();
        } else if c.has_rest() {
            push_send(&mut self.ring.borrow_mut(), c);
        }
        if c.broken || !matches!(c.phase, Phase::Open) {
            self.todo.push(conn);
        }
        events
    }

    // ---- deadlines

    /// True: a deadline has passed already.
    fn arm_timer(&mut self) -> bool {
        let phase_end = self.phase_ends.peek().map(|Reverse((at, _))| *at);
        let retry = self.accept_retry_at.filter(|_| self.listeners.iter().any(|l| l.accept == Accept::Off));
        let dial_end = self.dials.deadline();
        let Some(at) = [self.deadline, phase_end, retry, dial_end].into_iter().flatten().min() else { return false };
        if self.timer.is_armed_by(at) {
            return false;
        }
        if at <= Instant::now() {
            self.deadline = self.deadline.filter(|d| *d > at);
            return true;
        }
        self.timer.arm(&mut self.ring.borrow_mut(), at, user_data(OpKind::Timer, NO_CONN), user_data(OpKind::Control, NO_CONN));
        false
    }

    fn end_phase_at(&mut self, conn: ConnId, at: Instant) {
        if let Some(c) = self.conns.get_mut(conn) {
            c.until = Some(at);
            self.phase_ends.push(Reverse((at, conn)));
        }
    }

    fn end_phases(&mut self) {
        if self.phase_ends.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(&Reverse((at, conn))) = self.phase_ends.peek()
            && at <= now
        {
            self.phase_ends.pop();
            self.todo.push(conn);
        }
    }

    // ---- connections

    /// Restarts as many starved receives as there may be buffers for: more would only fail again.
    fn feed_starved(&mut self, buffers_given: usize) {
        if self.starved.is_empty() {
            return;
        }
        let mut ring = self.ring.borrow_mut();
        let all_given = !ring.has_completions() && !ring.has_hidden_work();
        drop(ring);
        let feed = if all_given { usize::MAX } else { buffers_given };
        for _ in 0..feed.min(self.starved.len()) {
            let conn = self.starved.pop_front().expect("counted");
            if let Some(c) = self.conns.get_mut(conn)
                && c.receive == Receive::Starved
            {
                c.receive = Receive::Off;
                self.todo.push(conn);
            }
        }
    }

    fn settle_all(&mut self) {
        let mut todo = std::mem::take(&mut self.todo);
        for conn in todo.drain(..) {
            self.settle(conn);
        }
        debug_assert!(self.todo.is_empty(), "settling asks for no more settling");
        self.todo = todo;
    }

    /// Acts on the connection's state.
    fn settle(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        // the clock is read only where a phase may be over
        let is_over = c.until.is_some() && c.is_expired(Instant::now());
        match c.phase {
            Phase::Open if c.broken => self.give_up(conn),
            Phase::Open if c.ended => self.peer_ended(conn),
            Phase::Open => self.receive_if(conn, |c| !c.paused),
            Phase::HalfClosed if c.broken => self.give_up(conn),
            Phase::HalfClosed if is_over => self.flush_and_close(conn),
            Phase::HalfClosed => {}
            Phase::Closing if c.broken || is_over => self.give_up(conn),
            Phase::Closing if c.is_sending() => self.receive_if(conn, |_| true),
            Phase::Closing if c.ended => self.give_up(conn),
            Phase::Closing => {
                listen::shutdown_write(&c.fd);
                c.phase = Phase::Draining;
                self.open -= 1;
                self.news.push_back(SocketNews::Closed { conn });
                self.receive_if(conn, |_| true);
            }
            Phase::Draining if c.broken || c.ended || is_over => self.give_up(conn),
            Phase::Draining => self.receive_if(conn, |_| true),
            Phase::Moving(_) => {
                if is_over && c.is_sending() && !c.broken {
                    listen::shutdown_both(&c.fd); // its send fails now, and then its receive on the other core
                }
                if c.is_receiving() || c.is_sending() {
                    self.receive_if(conn, |_| false);
                } else {
                    self.finish(conn);
                }
            }
        }
    }

    fn peer_ended(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        c.phase = Phase::HalfClosed;
        self.news.push_back(SocketNews::Ended { conn, unanswered: c.unanswered });
        self.end_phase_at(conn, Instant::now() + HALF_CLOSE_GRACE);
    }

    fn flush_and_close(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        c.phase = Phase::Closing;
        if c.is_sending() {
            self.end_phase_at(conn, Instant::now() + LINGER);
        } else {
            self.give_up(conn);
        }
    }

    /// Ends all operations of a connection, then the connection. Nothing more goes in or out.
    fn give_up(&mut self, conn: ConnId) {
        self.receive_if(conn, |_| false);
        let Some(c) = self.conns.get_mut(conn) else { return };
        c.drop_queued();
        if c.is_sending() && !c.send_cancelled {
            c.send_cancelled = true;
            push_cancel(&mut self.ring.borrow_mut(), user_data(OpKind::Send, conn));
        }
        if !c.is_receiving() && !c.is_sending() {
            self.finish(conn);
        }
    }

    fn finish(&mut self, conn: ConnId) {
        let gone = self.conns.remove(conn);
        match gone.phase {
            Phase::Draining => return,
            Phase::Moving(moving) => self.news.push_back(SocketNews::Moved { conn, fd: gone.fd, moving }),
            _ => self.news.push_back(SocketNews::Closed { conn }),
        }
        self.open -= 1;
    }
}

/// Submits the next send; there is something to send.
fn push_send(ring: &mut Ring, c: &mut Conn) {
    let (fd, flags) = (types::Fd(c.fd.as_raw_fd()), libc::MSG_NOSIGNAL | libc::MSG_WAITALL);
    let entry = match &mut c.pieces {
        Some(pieces) if c.sending.is_empty() => opcode::SendMsg::new(fd, pieces.begin()).flags(flags as u32).build(),
        _ => {
            let rest = &c.sending[c.sent..];
            let len = rest.len().min(SEND_BYTES_MAX) as u32;
            opcode::Send::new(fd, rest.as_ptr(), len).flags(flags).build()
        }
    };
    // SAFETY: `sending`, and what `pieces` has in flight, are neither changed nor freed before the completion, and the connection
    // stays until then.
    unsafe { ring.push(entry.user_data(user_data(OpKind::Send, c.id))) };
}

fn push_cancel(ring: &mut Ring, target: u64) {
    let entry = opcode::AsyncCancel::new(target).build().user_data(user_data(OpKind::Control, NO_CONN));
    // SAFETY: the entry points to nothing.
    unsafe { ring.push(entry) };
}
