//! One core's loop. Lives on the core's executor; the only place that calls the shard.
//!
//! ```text
//!   ┌─> net.poll, port.drain, disk.drain, Tick if due ──> step each ──> TurnEnd ──> carry out ──> port.flush, net.submit ─┐
//!   │                                                                                                                     │
//!   └──────────────── the bell (eventfd task, disk completions) <── await <── nothing waits, disk work, or 8 busy rounds ─┘
//! ```
//!
//! **Why a turn ends as it does.** glommio polls its rings (the disk, and the eventfd that wakes the core) only when no
//! task is runnable: a task that yields is runnable again at once, so yielding never reaches the reactor, and the preempt
//! timer that would cut in must be set never to fire (glommio 0.9.0 can sleep through it for good). So the loop has to
//! await something that only the reactor brings: the bell, which two things ring. (1) A task that reads the eventfd: it
//! completes for sockets, the mesh, timers, other threads, and when this loop itself wrote it with `signal` because work
//! is waiting; (2) a disk operation that has completed. The loop goes on without awaiting for a few rounds only (for more
//! while the disk is idle), and not at all when it has submitted disk work, which starts only when other tasks may run.

use super::account::{StallDetector, TurnCounts, TurnTimes};
use super::clock::Clock;
use super::machine::Machine;
use super::stop::CoresStop;
use crate::base::{CoreId, Now};
use crate::disk::{Completion, ShardDisk};
use crate::mesh::Port;
use crate::net::{Bell, Net, NetEvent, Waiter};
use crate::shard::event::{Effect, Effects, Event};
use crate::shard::message::MeshMessage;
use crate::tls::{Links, Wire};
use std::cell::Cell;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Busy turns before the executor's reactor gets one, while the disk has work: it brings the completions.
const ROUNDS: usize = 8;

/// The same while it has none: a pass of the reactor is some six system calls for nothing then.
const ROUNDS_WITHOUT_DISK: usize = 64;

/// Places of a core's listeners.
pub const NSQ: usize = 0;
pub const NATIVE: usize = 1;

pub struct Core<M> {
    pub id: CoreId,
    pub machine: M,
    pub net: Net,
    /// Between the sockets and the machine, where connections have TLS.
    pub links: Links,
    pub port: Port,
    pub disk: ShardDisk,
    /// Rung by the disk, and by the task that reads the eventfd.
    pub bell: Bell,
    pub clock: Clock,
    pub stop: Arc<CoresStop>,
    pub stalls: StallDetector,
}

/// What a turn leaves to the next.
#[derive(Default)]
struct Turn {
    effects: Effects,
    completions: Vec<Completion>,
    stop_told: bool,
    stopped: bool,
}

/// What is to follow a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Nothing waits: what comes rings the bell.
    Sleep,
    /// Something waits: another turn at once.
    Go,
    /// Something waits, and so does the disk: let the executor's other tasks and its reactor run.
    Reactor,
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
        'awake: loop {
            let mut next = Next::Go;
            for round in 1.. {
                next = self.turn(&mut turn)?;
                if turn.stopped && self.stop.is_complete() {
                    break 'awake;
                }
                let most = if self.disk.pending() > 0 { ROUNDS } else { ROUNDS_WITHOUT_DISK };
                if next != Next::Go || round >= most {
                    break;
                }
            }
            if next != Next::Sleep {
                wake.signal();
            }
            self.bell.wait().await;
        }
        ending.set(true);
        wake.signal();
        reader.await;
        let Core { net, disk, stalls, .. } = self;
        drop(net);
        disk.stop().await;
        Ok(stalls)
    }

    fn turn(&mut self, turn: &mut Turn) -> io::Result<Next> {
        let begun = Instant::now();
        let now = self.clock.at(begun);
        let mut counts = TurnCounts::default();
        if self.stop.is_requested() && !turn.stop_told {
            turn.stop_told = true;
            self.net.stop_accepting();
            self.machine.step(now, Event::Stop, &mut turn.effects);
        }
        self.collect(now, turn, &mut counts);
        let events = Instant::now();
        let now = self.clock.at(events);
        if self.machine.deadline().is_some_and(|at| at <= now.ticks) {
            self.machine.step(now, Event::Tick, &mut turn.effects);
        }
        self.links.tick(now);
        self.machine.step(now, Event::TurnEnd, &mut turn.effects);
        let decided = Instant::now();
        counts.effects = turn.effects.len();
        let disk_work = self.carry_out(now, turn);
        self.port.flush();
        let deadline = self.machine.deadline().into_iter().chain(self.links.deadline()).min();
        self.net.set_deadline(deadline.map(|at| self.clock.instant(at)));
        let is_busy = self.net.submit()?; // the kernel does much of its socket work in here
        let carried = Instant::now();
        self.stalls.turn(TurnTimes { begun, events, decided, carried }, counts);
        Ok(match (is_busy, disk_work) {
            (false, _) => Next::Sleep,
            (true, false) => Next::Go,
            (true, true) => Next::Reactor,
        })
    }

    /// Gives the machine everything that has happened.
    fn collect(&mut self, now: Now, turn: &mut Turn, counts: &mut TurnCounts) {
        let Core { machine, net, links, port, disk, .. } = self;
        let effects = &mut turn.effects;
        counts.net_events = net.poll(&mut |event| match event {
            NetEvent::Opened { conn, peer, listener: NATIVE } => {
                links.opened(now, conn, &peer);
                machine.step(now, Event::OpenedNative { conn, peer }, effects);
            }
            NetEvent::Opened { conn, peer, .. } => machine.step(now, Event::Opened { conn, peer }, effects),
            NetEvent::Bytes { conn, bytes } => {
                links.received(now, conn, bytes, &mut |bytes| machine.step(now, Event::Bytes { conn, bytes }, effects));
            }
            NetEvent::Sent { conn, bytes } => match links.sent(conn, bytes) {
                0 => {}
                bytes => machine.step(now, Event::Sent { conn, bytes }, effects),
            },
            NetEvent::Closed { conn } => {
                links.closed(conn);
                machine.step(now, Event::Closed { conn }, effects);
            }
            NetEvent::Moved { conn, fd, to, session, unread } => {
                let (unread, layer) = links.moved(conn, unread);
                port.send(to, MeshMessage::Connection { fd: fd.into_raw_fd(), session, unread, layer });
            }
        });
        counts.messages = port.drain(&mut |from, message| match message {
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
        });
        disk.drain(&mut turn.completions);
        counts.disk_completions = turn.completions.len();
        for Completion { op, outcome } in turn.completions.drain(..) {
            machine.step(now, Event::Disk { op, outcome }, effects);
        }
    }

    /// What TLS itself has for the sockets.
    fn carry_wires(&mut self) {
        for wire in self.links.wires() {
            match wire {
                Wire::Send { conn, bytes } => self.net.send(conn, bytes),
                Wire::Close { conn } => self.net.close(conn),
            }
        }
    }

    /// True when the disk got something.
    fn carry_out(&mut self, now: Now, turn: &mut Turn) -> bool {
        let mut disk_work = false;
        self.carry_wires(); // made before the effects
        for effect in turn.effects.drain(..) {
            match effect {
                Effect::Send { conn, bytes } => self.net.send(conn, self.links.seal(now, conn, bytes)),
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
                    self.disk.submit(op, request);
                    disk_work = true;
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
        disk_work
    }
}

/// Ends the process at once: an invariant of the files broke, and going on could make it worse. What was acknowledged is
/// durable, as after a kill.
pub fn halt(reason: &str) -> ! {
    tracing::error!("halt: {reason}");
    eprintln!("ringmq: halt: {reason}");
    // SAFETY: no destructor may run on the other cores' state; the exit code is the whole effect.
    unsafe { libc::_exit(1) }
}
