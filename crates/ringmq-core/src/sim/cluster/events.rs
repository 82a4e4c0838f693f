//! Future events, by their time. Events of a node's process end with it, and wait while it stands still.

use crate::metadata::{self, request::Request};
use crate::seam::cluster::{Ask, Fact};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

pub enum Happening {
    /// Completion of a disk operation.
    Disk {
        node: usize,
        life: u64,
    },
    /// The next message from one core to another.
    Mail {
        node: usize,
        life: u64,
        from: usize,
        to: usize,
    },
    TurnEnd {
        node: usize,
        life: u64,
        core: usize,
    },
    Tick {
        node: usize,
        life: u64,
        core: usize,
    },
    Fact {
        node: usize,
        life: u64,
        core: usize,
        fact: Fact,
    },
    /// Question of a core that reaches the store.
    Ask {
        node: usize,
        life: u64,
        ask: Ask,
    },
    /// Conclusions of a node's agent, for one core, in order.
    Facts {
        node: usize,
        life: u64,
        core: usize,
        facts: Arc<[Fact]>,
    },
    /// Question of a core that reaches the agent of its node.
    AskAgent {
        node: usize,
        life: u64,
        ask: Ask,
    },
    AgentTick {
        node: usize,
        life: u64,
    },
    /// Request of an agent that reaches the etcd, and its outcome.
    Request {
        node: usize,
        life: u64,
        token: u64,
        request: Box<Request>,
    },
    Answered {
        node: usize,
        life: u64,
        token: u64,
        outcome: Box<metadata::request::Outcome>,
    },
    /// A watch delivers its changes.
    WatchDue {
        node: usize,
        life: u64,
    },
    /// A node renews its lease; then the store's answer, with the moment at which it asked and the revision of all metadata then.
    Renew {
        node: usize,
        life: u64,
    },
    Renewed {
        node: usize,
        life: u64,
        asked: u64,
        revision: u64,
    },
    /// A node reads all that the store has.
    Look {
        node: usize,
        life: u64,
    },
    /// The answer to a dial; `wire` is there when it was taken.
    Dialed {
        node: usize,
        life: u64,
        core: usize,
        dial: u64,
        wire: Option<u64>,
    },
    /// The other end takes a connection.
    Accept {
        wire: u64,
    },
    /// A piece arrives that `side` sent.
    Arrive {
        wire: u64,
        side: usize,
    },
    /// The kernel has taken the bytes that `side` sent.
    Sent {
        wire: u64,
        side: usize,
        bytes: usize,
    },
    /// `side` goes on reading.
    Read {
        wire: u64,
        side: usize,
    },
    /// A close that waited for sent bytes has waited long enough.
    CloseNow {
        wire: u64,
        side: usize,
    },
    /// `side` hears that the connection is gone.
    Closed {
        wire: u64,
        side: usize,
    },
    /// A client says something.
    Act {
        wire: u64,
    },
    /// A client comes.
    Visit,
    /// The controller looks.
    Control,
    /// A fault of [`super::plan::FIELDS`], by its place there.
    Fault(usize),
    /// End of a fault of a node or a connection.
    Mended(FaultEnd),
    Start {
        node: usize,
    },
    /// A pause of the node's process may be over.
    Wake {
        node: usize,
    },
    /// The operator's newest file arrives.
    Install {
        node: usize,
        version: u64,
    },
    /// Power loss of all nodes.
    AllDown,
    /// A disk is looked at, from time to time.
    Probes,
    /// A node's disk is looked at.
    Probe {
        node: usize,
    },
}

#[derive(Clone, Copy, Debug)]
pub enum FaultEnd {
    Cut(usize, usize),
    Slow(usize, usize),
    StoreAway(usize),
    StoreAsleep,
    Shaky(usize),
    Full(usize),
}

impl Happening {
    /// Process that the event concerns, if any.
    pub fn process(&self) -> Option<(usize, u64)> {
        use Happening::*;
        match self {
            Disk { node, life }
            | Mail { node, life, .. }
            | TurnEnd { node, life, .. }
            | Tick { node, life, .. }
            | Fact { node, life, .. }
            | Renew { node, life }
            | Renewed { node, life, .. }
            | Look { node, life }
            | Facts { node, life, .. }
            | AskAgent { node, life, .. }
            | AgentTick { node, life }
            | Answered { node, life, .. }
            | WatchDue { node, life }
            | Dialed { node, life, .. } => Some((*node, *life)),
            // it has left the node
            Ask { .. } | Request { .. } => None,
            _ => None,
        }
    }
}

/// Events ordered by time, and by insertion at one time. Events stay in place, only their indices move.
#[derive(Default)]
pub struct Queue {
    order: BinaryHeap<Reverse<(u64, u64, usize)>>,
    happenings: Slab<Happening>,
    next: u64,
}

impl Queue {
    pub fn put(&mut self, at: u64, happening: Happening) {
        let place = self.happenings.insert(happening);
        self.order.push(Reverse((at, self.next, place)));
        self.next += 1;
    }

    pub fn pop(&mut self) -> Option<(u64, Happening)> {
        let Reverse((at, _, place)) = self.order.pop()?;
        Some((at, self.happenings.remove(place)))
    }

    pub fn next_at(&self) -> Option<u64> {
        self.order.peek().map(|Reverse((at, ..))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_orders_and_then_the_order_of_putting() {
        let mut queue = Queue::default();
        for (at, node) in [(5, 1), (3, 2), (5, 3)] {
            queue.put(at, Happening::Start { node });
        }
        assert_eq!(queue.next_at(), Some(3));
        let order: Vec<usize> = std::iter::from_fn(|| queue.pop())
            .map(|(_, h)| if let Happening::Start { node } = h { node } else { panic!("only starts") })
            .collect();
        assert_eq!(order, [2, 1, 3]);
    }
}
