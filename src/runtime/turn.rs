//! One core's loop. Lives on the core's executor; the only place that calls the shard.
//!
//! ```text
//!   ┌─> net.poll, port.drain, disk.drain, Tick if due ──> step each ──> TurnEnd ──> carry out ──> port.flush, net.submit ─┐
//!   │                                                                                                                     │
//!   ├── something waits already <─────────────────────────────────────────────────────────────────────────────────────────┤
//!   ├── net.park: asleep in the core's own ring <────────────────────────────── nothing waits, nothing is with glommio <──┤
//!   └── the bell (eventfd task, glommio's completions) <── await <── glommio has work, or was not asked for a while <─────┘
//! ```
//!
//! **Two places to sleep.** Sockets and the journal are on the core's own ring, so most sleeps are one system call there
//! (src/ring). glommio polls its rings (files that are opened, synced, removed; its timers) only when no task is
//! runnable: a task that yields is runnable again at once, so yielding never reaches the reactor, and the preempt timer
//! that would cut in must be set never to fire (glommio 0.9.0 can sleep through it for good). So for the reactor the loop
//! awaits something that only the reactor brings: the bell, which two things ring. (1) A task that reads the eventfd: it
//! completes for sockets, the mesh, timers, other threads, and when this loop itself wrote it with `signal` because work
//! is waiting; (2) a file operation of glommio's that has completed. `Core::run` says when.

use super::account::{StallDetector, TurnCounts, TurnTimes};
use super::clock::Clock;
use super::machine::Machine;
use super::stop::CoresStop;
use crate::base::{CoreId, Now};
use crate::coordinator::cluster::CoreDesk;
use crate::disk::{Completion, ShardDisk};
use crate::mesh::Port;
use crate::net::{Net, NetEvent};
use crate::ring::{Bell, SharedRing, Waiter};
use crate::seam::event::{DialError, Effect, Effects, Event};
use crate::seam::message::MeshMessage;
use crate::tls::{self, Dialed, Links, Wire};
use std::cell::Cell;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns before the executor's reactor gets one, while it has operations: it brings their completions.
const ROUNDS: usize = 8;

/// Sends behind an operation of the disk in one turn that make it worth a call of its own: see `Ring::start`.
const SENDS_BEHIND: u32 = 2;

/// The longest time without a pass of the reactor: its timers close idle files. Then a core that has nothing to do sleeps there.
const REACTOR_PAUSE: Duration = Duration::from_millis(100);

/// Kind of client that connects to a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListenerKind {
    Nsq,
    Native,
    /// Other nodes.
    Peer,
}

pub struct Core<M> {
    pub id: CoreId,
    pub machine: M,
    /// Coordinator of a clustered node.
    pub coordinator: Option<CoreDesk>,
    /// Ring of this core; `net` and `disk` put their operations on it.
    pub ring: SharedRing,
    pub net: Net,
    /// Kinds of the core's listeners.
    pub places: Vec<ListenerKind>,
    /// TLS between the sockets and the machine, where connections have it.
    pub links: Links,
    pub port: Port,
    pub disk: ShardDisk,
    /// Rung by the disk, and by the task that reads the eventfd.
    pub bell: Bell,
    pub clock: Clock,
    /// Time to look for events before a sleep.
    pub spin: Duration,
    pub stop: Arc<CoresStop>,
    pub stalls: StallDetector,
}

/// State that a turn leaves to the next.
#[derive(Default)]
struct Turn {
    effects: Effects,
    completions: Vec<Completion>,
    stop_told: bool,
    stopped: bool,
}

/// Result of a turn for the next.
struct TurnResult {
    at: Instant,
    /// True when work waits already.
    is_busy: bool,
    /// glommio got operations, which start only when its reactor runs.
    gave_reactor_work: bool,
}

impl<M: Machine> Core<M> {
    /// Runs until all cores have stopped; then nothing of this core is in flight.
    pub async fn run(mut self) -> io::Result<StallDetector> {
        let wake = self.net.wake_fd();
        let waiter = Waiter::new(wake.clone())?;
        let ending = Rc::new(Cell::new(false));
        let reader = glommio::spawn_local({
            let (bell, ending) = (self.bell.clone(), ending.clone());
            async move {
                // never cancelled: a dropped read would eat the next wake
                while !ending.get() {
                    if let Err(e) = waiter.wait().await {
                        halt(&format!("the eventfd of a core cannot be read: {e}"));
                    }
                    bell.ring();
                }
            }
        });
        let mut turn = Turn::default();
        let (mut rounds, mut reactor_at) = (0, Instant::now());
        loop {
            let ended = self.turn(&mut turn)?;
            if turn.stopped && self.stop.is_complete() {
                break;
            }
            rounds += 1;
            let is_reactor_due = ended.gave_reactor_work
                || ended.at.duration_since(reactor_at) >= REACTOR_PAUSE
                || (self.disk.pending() > 0 && (rounds >= ROUNDS || !ended.is_busy));
            if !is_reactor_due {
                if !ended.is_busy {
                    // disk operations end in a worker of the kernel, whose CPU may be this one
                    let spin = if self.disk.in_ring() == 0 { self.spin } else { Duration::ZERO };
                    self.net.park(spin, REACTOR_PAUSE)?;
                }
                continue;
            }
            if ended.is_busy || !self.net.try_sleep()? {
                wake.signal();
            }
            self.bell.wait().await;
            (rounds, reactor_at) = (0, Instant::now());
        }
        while self.disk.in_ring() > 0 {
            self.net.submit()?;
            self.net.park(Duration::ZERO, REACTOR_PAUSE)?;
            self.net.poll(&mut |_| {});
            self.disk.take_completed(&mut self.ring.borrow_mut());
        }
        ending.set(true);
        wake.signal();
        reader.await;
        let Core { net, disk, stalls, .. } = self;
        drop(net);
        disk.stop().await;
        Ok(stalls)
    }

    fn turn(&mut self, turn: &mut Turn) -> io::Result<TurnResult> {
        let begun = Instant::now();
        let mut counts = TurnCounts::default();
        self.collect(turn, &mut counts);
        let events = Instant::now();
        let now = self.clock.now();
        // behind the poll, which may have taken the wake that came with it
        if self.stop.is_requested() && !turn.stop_told {
            turn.stop_told = true;
            self.net.stop_accepting();
            self.machine.step(now, Event::Stop, &mut turn.effects);
        }
        if self.machine.deadline().is_some_and(|at| at <= now.ticks) {
            self.machine.step(now, Event::Tick, &mut turn.effects);
        }
        self.links.tick(now);
        tell_dialed(&mut self.machine, self.links.take_dialed(), now, &mut turn.effects);
        self.machine.step(now, Event::TurnEnd, &mut turn.effects);
        let decided = Instant::now();
        counts.effects = turn.effects.len();
        let gave_reactor_work = self.carry_out(now, turn);
        self.port.flush();
        let deadline = self.machine.deadline().into_iter().chain(self.links.deadline()).min();
        self.net.set_deadline(deadline.map(|at| self.clock.instant(at)));
        let is_answered = self.coordinator.as_ref().is_some_and(CoreDesk::has_news);
        let is_busy = self.net.submit()? || is_answered; // the kernel does much of its socket work in here
        let carried = Instant::now();
        self.stalls.turn(TurnTimes { begun, events, decided, carried }, counts);
        Ok(TurnResult { at: carried, is_busy, gave_reactor_work })
    }

    /// Gives the machine all events. The clock is read after each look at the ring and at a queue: an earlier time would be older than
    /// the events found there, and a deferred publish would be due too early.
    fn collect(&mut self, turn: &mut Turn, counts: &mut TurnCounts) {
        let Core { clock, machine, coordinator, ring, net, places, links, port, disk, .. } = self;
        let Turn { effects, .. } = turn;
        if let Some(desk) = coordinator {
            // first of all at the startup: before a connection is taken
            desk.news(&mut |fact| machine.step(clock.now(), Event::Cluster(fact), effects));
        }
        let mut polled = None;
        counts.net_events = net.poll(&mut |event| {
            let now = *polled.get_or_insert_with(|| clock.now());
            match event {
                NetEvent::Opened { conn, peer, listener } => match places[listener] {
                    ListenerKind::Nsq => machine.step(now, Event::Opened { conn, peer }, effects),
                    ListenerKind::Native => {
                        links.opened(now, conn, &peer, tls::Port::Native);
                        machine.step(now, Event::OpenedNative { conn, peer }, effects);
                    }
                    ListenerKind::Peer => {
                        links.opened(now, conn, &peer, tls::Port::Peer);
                        machine.step(now, Event::OpenedPeer { conn, peer }, effects);
                    }
                },
                NetEvent::Dialed { dial, result } => tell_dialed(machine, links.connected(now, dial, result), now, effects),
                NetEvent::Bytes { conn, bytes } => {
                    links.received(now, conn, bytes, &mut |bytes| machine.step(now, Event::Bytes { conn, bytes }, effects));
                    tell_dialed(machine, links.take_dialed(), now, effects);
                }
                NetEvent::Received { conn, lent } => machine.step(now, Event::Received { conn, lent }, effects),
                NetEvent::Sent { conn, bytes } => match links.sent(conn, bytes) {
                    0 => {}
                    bytes => machine.step(now, Event::Sent { conn, bytes }, effects),
                },
                NetEvent::Ended { conn, unanswered } => machine.step(now, Event::Ended { conn, unanswered }, effects),
                NetEvent::Closed { conn } => {
                    links.closed(conn);
                    machine.step(now, Event::Closed { conn }, effects);
                }
                NetEvent::Moved { conn, fd, to, session, unread } => {
                    let (unread, layer) = links.moved(conn, unread);
                    port.send(to, MeshMessage::Connection { fd: fd.into_raw_fd(), session, unread, layer });
                }
            }
        });
        let mut drained: Option<(CoreId, Now)> = None;
        counts.messages = port.drain(&mut |from, message| {
            let (_, now) = match drained {
                Some(of) if of.0 == from => of,
                _ => *drained.insert((from, clock.now())),
            };
            match message {
                MeshMessage::Connection { fd, session, unread, layer } => {
                    // SAFETY: the other core has given the descriptor away with this message, which is the only one to name it.
                    let (conn, peer) = net.adopt(unsafe { OwnedFd::from_raw_fd(fd) });
                    machine.step(now, Event::Adopted { conn, session }, effects);
                    let mut bytes = |bytes: &[u8]| machine.step(now, Event::Bytes { conn, bytes }, effects);
                    if !unread.is_empty() {
                        bytes(&unread);
                    }
                    if let Some(layer) = layer {
                        links.adopted(now, conn, &peer, layer, &mut bytes);
                    }
                }
                message => machine.step(now, Event::Mesh { from, message }, effects),
            }
        });
        disk.take_completed(&mut ring.borrow_mut());
        disk.drain(&mut turn.completions);
        counts.disk_completions = turn.completions.len();
        let now = clock.now();
        for Completion { op, outcome } in turn.completions.drain(..) {
            machine.step(now, Event::Disk { op, outcome }, &mut turn.effects);
        }
    }

    /// Carries out the socket operations that TLS itself wants.
    fn carry_wires(&mut self) {
        for wire in self.links.wires() {
            match wire {
                Wire::Send { conn, bytes } => self.net.send(conn, bytes),
                Wire::Close { conn } => self.net.close(conn),
            }
        }
    }

    /// True when glommio got something of the disk's.
    fn carry_out(&mut self, now: Now, turn: &mut Turn) -> bool {
        let mut gave_reactor_work = false;
        let (mut disk_waits, mut sends) = (false, 0);
        self.carry_wires(); // made before the effects
        for effect in turn.effects.drain(..) {
            if disk_waits && matches!(effect, Effect::Send { .. } | Effect::SendPieces { .. }) {
                sends += 1;
                // with one send the kernel does not hold the write back
                if sends == SENDS_BEHIND {
                    self.ring.borrow_mut().start();
                    disk_waits = false;
                }
            }
            match effect {
                Effect::Send { conn, bytes } => self.net.send(conn, self.links.seal(now, conn, bytes)),
                Effect::SendPieces { conn, pieces } if self.links.is_plain(conn) => self.net.send_pieces(conn, pieces),
                Effect::SendPieces { conn, pieces } => self.net.send(conn, self.links.seal(now, conn, pieces.concat())),
                Effect::ReceiveInto { conn, lent } => {
                    assert!(self.links.is_plain(conn), "what comes of a connection with TLS is decrypted first");
                    self.net.receive_into(conn, lent);
                }
                Effect::PauseReading { conn } => self.net.pause(conn),
                Effect::ResumeReading { conn } => self.net.resume(conn),
                Effect::Close { conn } => {
                    self.net.send(conn, self.links.farewell(conn));
                    self.net.close(conn);
                }
                Effect::Move { conn, to, session, unread } => {
                    let unread = self.links.leave(conn, unread);
                    self.net.move_away(conn, to, session, unread);
                }
                Effect::Pass { to, message: MeshMessage::Stats { ticket, mut stats } } => {
                    // The machine knows no clock, so it cannot say how long its turns take.
                    stats.turns = self.stalls.stats();
                    self.port.send(to, MeshMessage::Stats { ticket, stats });
                }
                Effect::Pass { to, message } => self.port.send(to, message),
                Effect::Disk { op, request } => {
                    let is_on_ring = self.disk.submit_on(&mut self.ring.borrow_mut(), op, request);
                    (disk_waits, sends) = (disk_waits || is_on_ring, 0);
                    gave_reactor_work |= !is_on_ring;
                }
                Effect::Dial { dial, address, name } => {
                    self.links.dial(dial, &address, &name);
                    self.net.dial(dial, &address);
                }
                Effect::Ask(ask) => {
                    if let Some(desk) = &mut self.coordinator {
                        desk.ask(ask);
                    }
                }
                Effect::Halt { reason } => halt(&reason),
                Effect::Stopped => {
                    if !std::mem::replace(&mut turn.stopped, true) {
                        tracing::info!(core = self.id.0, "core stopped");
                        self.stop.core_stopped();
                    }
                }
            }
        }
        self.carry_wires(); // what could not be sealed
        gave_reactor_work
    }
}

fn tell_dialed<M: Machine>(machine: &mut M, dialed: impl IntoIterator<Item = Dialed>, now: Now, effects: &mut Effects) {
    for (dial, result) in dialed {
        machine.step(now, Event::Dialed { dial, result: result.map_err(DialError) }, effects);
    }
}

/// Ends the process at once: an invariant of the files broke, and going on could make it worse. Acknowledged messages are durable, as
/// after a kill.
pub fn halt(reason: &str) -> ! {
    tracing::error!("halt: {reason}");
    eprintln!("ringmq: halt: {reason}");
    // SAFETY: no destructor may run on the other cores' state; the exit code is the whole effect.
    unsafe { libc::_exit(1) }
}
