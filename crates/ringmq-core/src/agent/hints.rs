//! Nodes whose process seems to have ended, before their lease ends.
//!
//! ```text
//! a core's connection to the node ends ──> its peer port is dialled ── refused, and once more ──> down
//!                                              │ silence: no hint, the lease decides               │ refused again each second
//!                                              └ it answers: nothing is wrong  <───────────────────┘
//! ```
//! A refusal shows that the machine is there and no process listens. It is a hint, no proof: a firewall refuses in the same way. The
//! actions on it are safe if it is wrong:
//! - A leader removes the node from its ISR, as it would a little later for lagging.
//! - The controller names other leaders. The log is safe: each commit of the former leader needs its whole ISR, whose members promise
//!   the higher epoch before the new leader opens, and the ISR shrinks by compare-and-swap alone. Guarantees that depend on time are
//!   kept by waiting: the new leader delivers nothing before the former one's session is over, or before the former leader says that it
//!   serves no more (`former` in the record).
//! - A node that finds the controller down takes the office from it. The term in each of its writes excludes the former controller.

use super::{Agent, Effect, Note, Purpose};
use crate::base::{NodeId, Ticks};
use crate::metadata::keys::Key;
use crate::metadata::request::{Compare, Op, Request, Txn};
use crate::seam::cluster::Fact;
use std::collections::BTreeMap;
use std::time::Duration;

/// Refusals one after the other that make a hint.
const REFUSALS: u32 = 2;
/// Other outcomes one after the other that end the doubt: a process that is about to end may still listen.
const DOUBTS: u32 = 3;
/// Pause between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// Pause between attempts while the node is taken for down.
const WATCH: Duration = Duration::from_secs(1);

/// Outcome of an attempt to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// A process listens.
    Reached,
    /// The machine answers, and no process listens.
    Refused,
    /// The machine does not answer in time, or there is no way to it.
    Silent,
}

#[derive(Debug)]
struct Doubt {
    session: u64,
    refusals: u32,
    /// Outcomes without a refusal since the last one.
    others: u32,
    /// `None`: an attempt is on its way.
    next: Option<Ticks>,
}

#[derive(Debug, Default)]
pub(super) struct Hints {
    doubts: BTreeMap<NodeId, Doubt>,
    pub is_deposing: bool,
}

impl Hints {
    pub fn deadline(&self) -> Option<Ticks> {
        self.doubts.values().filter_map(|d| d.next).min()
    }
}

impl Agent {
    /// A core lost its connection to the node.
    pub(super) fn peer_lost(&mut self, now: Ticks, node: NodeId) {
        let Some(session) = self.view.session(node).filter(|_| node != self.options.me) else { return };
        if self.hints.doubts.get(&node).is_none_or(|d| d.session != session) {
            self.hints.doubts.insert(node, Doubt { session, refusals: 0, others: 0, next: Some(now) });
        }
    }

    pub(super) fn go_on_hints(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        let view = &self.view;
        self.hints.doubts.retain(|node, d| view.session(*node) == Some(d.session) && view.member(*node).is_some());
        for (node, doubt) in &mut self.hints.doubts {
            if doubt.next.is_some_and(|at| now >= at)
                && let Some(member) = view.member(*node)
            {
                doubt.next = None;
                out.push(Effect::Probe { node: *node, address: member.value.peer_address.clone() });
            }
        }
        self.depose(now, out);
    }

    pub(super) fn probed(&mut self, now: Ticks, node: NodeId, probe: Probe, out: &mut Vec<Effect>) {
        let Some(doubt) = self.hints.doubts.get_mut(&node).filter(|d| d.next.is_none()) else { return };
        let was_down = doubt.refusals >= REFUSALS;
        match probe {
            Probe::Refused => (doubt.refusals, doubt.others) = (doubt.refusals.saturating_add(1), 0),
            Probe::Silent if was_down => {}
            Probe::Silent | Probe::Reached => (doubt.refusals, doubt.others) = (0, doubt.others + 1),
        }
        let is_down = doubt.refusals >= REFUSALS;
        doubt.next = Some(now + if is_down { WATCH } else { AGAIN });
        let session = doubt.session;
        if doubt.others >= DOUBTS {
            self.hints.doubts.remove(&node);
        }
        if is_down != was_down {
            self.controller.set_down(&self.view, node, Some(session).filter(|_| is_down));
            let name = self.view.member(node).map_or_else(|| node.to_string(), |e| e.value.name.clone());
            if is_down {
                out.push(Effect::Say(Note::Down { name }));
                out.push(Effect::Fact(Fact::NodeDown { node }));
            } else {
                out.push(Effect::Say(Note::NotDown { name }));
            }
        }
    }

    /// The controller's node is down: the office is free.
    fn depose(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        let Some(held) = self.view.controller().filter(|_| !self.hints.is_deposing) else { return };
        let (node, term) = (held.value.node, held.create_revision);
        let (Some(session), Some(_)) = (self.session.live(), self.view.session(node)) else { return };
        if !self.controller.is_down(&self.view, node) {
            return;
        }
        self.hints.is_deposing = true;
        let layout = self.view.layout();
        let key = layout.key(&Key::Controller);
        let compares = vec![
            Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() },
            Compare::CreateRevision { key: layout.key(&Key::Node(self.options.me)), is: session },
            Compare::CreateRevision { key: key.clone(), is: term },
        ];
        let txn = Txn { compares, then: vec![Op::Delete { key: key.clone() }], otherwise: vec![Op::Get { key }] };
        self.send(now, Purpose::Depose, Request::Txn(txn), out);
    }
}
