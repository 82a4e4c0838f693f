//! Carries messages between cores, and between the cores and the HTTP thread.
//!
//! It owns one bounded single-producer single-consumer queue per ordered pair. All messages of one turn for one target travel as one
//! bundle: one queue item, at most one wake. A [`Port`] belongs to one thread; nothing here blocks or drops. Order is kept per pair. It
//! does not know the messages' meaning.
//!
//! ```text
//! core 0: send, send, send -> flush --[bundle of 3]--> queue 0->1 --> drain on core 1
//!                                   \-- wake (once; free when core 1 is awake: ring::WakeFd)
//! ```
//!
//! **A full queue.** The bundle stays with its sender and grows; the protocol bounds its growth (every request is paid for by an
//! unanswered command, a lent credit or a connection). The receiver wakes the sender once it has made room, so that no core polls. That
//! handshake is the classic store-then-look on both sides: the sender stores `starved`, fences, and tries again; the receiver pops,
//! fences, and looks at `starved`. Both fences are sequentially consistent, so at least one of the two sees the other's write: the
//! second try finds the room, or the receiver finds the flag and wakes.
//!
//! **Why no wake is lost.** A bundle is pushed before [`Wake::wake`] is called; `ring::wake` says why that is enough.

use crate::base::CoreId;
use crate::seam::message::MeshMessage;
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Bundles (not messages) that one queue holds: turns by which a receiver may lag before its senders keep bundles.
const BUNDLES_MAX: usize = 64;

/// Makes a sleeping thread look at its queues. Cheap when it is awake; callable from any thread.
pub trait Wake: Send + Sync {
    fn wake(&self);
}

/// Flag that the two ends of a queue share: the sender has a bundle that did not fit.
type Starved = Arc<AtomicBool>;

struct Outgoing {
    queue: Producer<Vec<MeshMessage>>,
    starved: Starved,
    /// Messages of this turn, and of earlier turns that did not fit.
    bundle: Vec<MeshMessage>,
}

struct Incoming {
    queue: Consumer<Vec<MeshMessage>>,
    starved: Starved,
}

/// A thread's end of the mesh.
pub struct Port {
    own: CoreId,
    /// Outgoing queues by target: the cores, then HTTP. The core's own entry is among them: a message to oneself comes back at the next
    /// drain.
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    /// Wakers by target, like `outgoing`; empty until connected.
    wakers: Vec<Arc<dyn Wake>>,
}

/// The HTTP thread's end: the same thing under the number [`CoreId::HTTP`].
pub type HttpPort = Port;

/// Ports for `cores` cores, in their order, and for the HTTP thread.
pub fn mesh(cores: u16) -> (Vec<Port>, HttpPort) {
    assert!(cores > 0, "a node has at least one core");
    let ends = cores as usize + 1;
    let own = |i: usize| if i == ends - 1 { CoreId::HTTP } else { CoreId(i as u16) };
    let mut ports: Vec<Port> =
        (0..ends).map(|i| Port { own: own(i), outgoing: Vec::new(), incoming: Vec::new(), wakers: Vec::new() }).collect();
    for from in 0..ends {
        for to in 0..ends {
            let (producer, consumer) = RingBuffer::new(BUNDLES_MAX);
            let starved = Starved::default();
            ports[from].outgoing.push(Outgoing { queue: producer, starved: starved.clone(), bundle: Vec::new() });
            ports[to].incoming.push(Incoming { queue: consumer, starved });
        }
    }
    let http = ports.pop().expect("there is one port more than cores");
    (ports, http)
}

impl Port {
    pub fn core(&self) -> CoreId {
        self.own
    }

    /// The wakers of all cores, in their order, and of the HTTP thread. Before this a flush wakes no thread.
    pub fn connect_wakers(&mut self, cores: &[Arc<dyn Wake>], http: Arc<dyn Wake>) {
        assert_eq!(cores.len() + 1, self.outgoing.len(), "one waker per core");
        self.wakers = cores.iter().cloned().chain([http]).collect();
    }

    /// Joins the bundle for `to`, which leaves at the next [`Port::flush`].
    ///
    /// Panics when there is no such core.
    pub fn send(&mut self, to: CoreId, message: MeshMessage) {
        let place = self.place(to);
        self.outgoing[place].bundle.push(message);
    }

    /// Pushes every bundle that has something in it and wakes its receiver. A bundle without room stays and is tried again at the next
    /// flush; this thread is woken when there is room.
    pub fn flush(&mut self) {
        for (place, out) in self.outgoing.iter_mut().enumerate() {
            if out.bundle.is_empty() {
                continue;
            }
            let pushed = out.push() || {
                out.starved.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst); // pairs with the one in drain()
                out.push()
            };
            if pushed && let Some(waker) = self.wakers.get(place) {
                waker.wake(); // a receiver that leaves no room was woken for each bundle that it has
            }
        }
    }

    /// Hands out the messages received so far, in order per sender; returns their number.
    pub fn drain(&mut self, each: &mut dyn FnMut(CoreId, MeshMessage)) -> usize {
        let http = self.incoming.len() - 1;
        let mut messages = 0;
        for (place, incoming) in self.incoming.iter_mut().enumerate() {
            let from = if place == http { CoreId::HTTP } else { CoreId(place as u16) };
            let bundles = incoming.queue.slots(); // later ones wait for the next turn: a fast sender cannot hold us here
            for _ in 0..bundles {
                let bundle = incoming.queue.pop().expect("counted above, and this is the only consumer");
                messages += bundle.len();
                bundle.into_iter().for_each(|m| each(from, m));
            }
            if bundles > 0 {
                fence(Ordering::SeqCst); // pairs with the one in flush()
                if incoming.starved.load(Ordering::Relaxed)
                    && incoming.starved.swap(false, Ordering::Relaxed)
                    && let Some(waker) = self.wakers.get(place)
                {
                    waker.wake();
                }
            }
        }
        messages
    }

    /// True while messages of an earlier flush still wait for space.
    pub fn has_overflow(&self) -> bool {
        self.outgoing.iter().any(|o| !o.bundle.is_empty())
    }

    /// Messages that wait here for a flush or for room, for the metrics.
    pub fn waiting(&self) -> usize {
        self.outgoing.iter().map(|o| o.bundle.len()).sum()
    }

    fn place(&self, core: CoreId) -> usize {
        let http = self.outgoing.len() - 1;
        match core {
            CoreId::HTTP => http,
            CoreId(n) => {
                assert!((n as usize) < http, "core {n} of {http}");
                n as usize
            }
        }
    }
}

impl Outgoing {
    /// False when there is no room; the bundle is still here then.
    fn push(&mut self) -> bool {
        if self.queue.is_full() {
            return false;
        }
        self.queue.push(std::mem::take(&mut self.bundle)).expect("it is not full, and this is the only producer");
        true
    }
}

#[cfg(test)]
mod tests;
