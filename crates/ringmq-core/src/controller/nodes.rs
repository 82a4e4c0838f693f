//! Nodes with a session, and nodes that are away, since when. Every node notes this, since it may become the controller.
//!
//! A node is either here or away. A node that stays away for `replace_after` is late, and is replaced by others. When many leases end at
//! once, the elections for nodes that are likely to come back are held for one TTL.

use super::ControllerOptions;
use crate::base::{NodeId, Ticks};
use crate::metadata::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum Presence {
    Here {
        session: u64,
        since: Ticks,
        /// Start of the node's process.
        start: u64,
        /// The process is taken for ended before its lease is.
        is_down: bool,
    },
    Away {
        since: Ticks,
        /// The node was away when this node first saw it: cause and duration are unknown.
        is_found: bool,
        /// The node is late, and its partitions were looked at for that reason.
        is_replaced: bool,
    },
}

#[derive(Debug)]
pub(super) struct Nodes {
    me: NodeId,
    ttl: Duration,
    replace_after: Duration,
    known: BTreeMap<NodeId, Presence>,
    /// Time of a node's last lost session, and the start of its process. A process that began since then has no lease to lose.
    lost: BTreeMap<NodeId, (Ticks, u64)>,
    /// Time before which nothing moves: many leases ended at once.
    hold_until: Ticks,
    /// Time until which a node that was found away may come back: a mass expiry of leases may have been just before this process began.
    fresh_until: Ticks,
    /// Start of this node's process, once it was registered. The same start in another session says that its lease had ended.
    own_start: Option<u64>,
}

impl Nodes {
    pub fn new(me: NodeId, options: &ControllerOptions) -> Nodes {
        Nodes {
            me,
            ttl: options.ttl,
            replace_after: options.replace_after,
            known: BTreeMap::new(),
            lost: BTreeMap::new(),
            hold_until: Ticks(0),
            fresh_until: Ticks(0),
            own_start: None,
        }
    }

    // ---- observation

    /// Takes in the node's session. True: the node has come.
    pub fn see_session(&mut self, now: Ticks, view: &View, node: NodeId) -> bool {
        let before = match self.known.get(&node) {
            Some(Presence::Here { session, start, .. }) => Some((*session, *start)),
            _ => None,
        };
        if before.map(|(session, _)| session) == view.session(node) {
            // Only its value changed: the suspects.
            return false;
        }
        if let Some((_, start)) = before {
            self.lost.insert(node, (now, start));
        }
        let entry = view.node(node);
        let presence = match entry {
            Some(e) => Presence::Here { session: e.create_revision, since: now, start: e.value.start, is_down: false },
            None => Presence::Away { since: now, is_found: false, is_replaced: false },
        };
        self.known.insert(node, presence);
        if let Presence::Here { start, .. } = presence {
            if self.lost.get(&node).is_some_and(|(_, lost)| *lost < start) {
                self.lost.remove(&node);
            }
            if node == self.me {
                self.see_own(now, start);
            }
        }
        if before.is_some() {
            self.see_lost(now);
        }
        entry.is_some()
    }

    /// Takes in whether the node belongs to the cluster.
    pub fn see_member(&mut self, now: Ticks, view: &View, node: NodeId) {
        if view.member(node).is_none() && self.away_since(node).is_some() {
            self.known.remove(&node);
        } else if view.member(node).is_some() && view.session(node).is_none() {
            self.known.entry(node).or_insert(Presence::Away { since: now, is_found: true, is_replaced: false });
        }
    }

    /// Takes in that this node is registered. A process that begins holds back no election for a node whose session it saw ending.
    fn see_own(&mut self, now: Ticks, start: u64) {
        let until = now + self.ttl;
        if self.own_start == Some(start) {
            // The cause that ended this node's lease may have ended others'.
            self.hold_until = self.hold_until.max(until);
        } else {
            self.fresh_until = self.fresh_until.max(until);
        }
        self.own_start = Some(start);
    }

    /// Detects the loss of half of the nodes, and more than one, in one TTL: the store was asleep, or cut off from them.
    fn see_lost(&mut self, now: Ticks) {
        let ttl = self.ttl;
        self.lost.retain(|_, (at, _)| *at + ttl >= now);
        if self.lost.len() >= 2 && self.lost.len() * 2 >= self.known.len() {
            self.hold_until = self.hold_until.max(now + ttl);
        }
    }

    /// The session's process is taken for ended; `None`: the node's process is not.
    pub fn set_down(&mut self, node: NodeId, ended: Option<u64>) {
        if let Some(Presence::Here { session, is_down, .. }) = self.known.get_mut(&node) {
            *is_down = ended == Some(*session);
        }
    }

    // ---- nodes with a session

    /// Time since which the node has had its session.
    pub fn here_since(&self, node: NodeId) -> Option<Ticks> {
        match self.known.get(&node)? {
            Presence::Here { since, .. } => Some(*since),
            Presence::Away { .. } => None,
        }
    }

    /// Whether the node's process is taken for ended, though its lease is not.
    pub fn is_down(&self, view: &View, node: NodeId) -> bool {
        match self.known.get(&node) {
            Some(Presence::Here { session, is_down, .. }) => *is_down && view.session(node) == Some(*session),
            _ => false,
        }
    }

    pub fn down(&self, view: &View) -> BTreeSet<NodeId> {
        self.known.keys().copied().filter(|node| self.is_down(view, *node)).collect()
    }

    // ---- nodes that are away

    /// Time since which the node has had no session.
    pub fn away_since(&self, node: NodeId) -> Option<Ticks> {
        match self.known.get(&node)? {
            Presence::Here { .. } => None,
            Presence::Away { since, .. } => Some(*since),
        }
    }

    /// Time until the replicas of a node that is away are made elsewhere. `None`: it is there.
    pub fn replaced_in(&self, now: Ticks, node: NodeId) -> Option<Duration> {
        Some((self.away_since(node)? + self.replace_after).since(now))
    }

    /// Whether the node is away for too long.
    pub fn is_late(&self, now: Ticks, node: NodeId) -> bool {
        self.away_since(node).is_some_and(|since| now >= since + self.replace_after)
    }

    /// Nodes that are late now, each once.
    pub fn take_late(&mut self, now: Ticks) -> Vec<NodeId> {
        let mut late = vec![];
        for (node, presence) in &mut self.known {
            if let Presence::Away { since, is_replaced, .. } = presence
                && now >= *since + self.replace_after
                && !std::mem::replace(is_replaced, true)
            {
                late.push(*node);
            }
        }
        late
    }

    /// Times since when the nodes that are not replaced yet are away.
    fn missing(&self) -> impl Iterator<Item = Ticks> {
        self.known.values().filter_map(|presence| match presence {
            Presence::Away { since, is_replaced: false, .. } => Some(*since),
            _ => None,
        })
    }

    /// Time at which the next node is late.
    pub fn next_late(&self) -> Option<Ticks> {
        self.missing().map(|since| since + self.replace_after).min()
    }

    /// Whether no absent node may still come back.
    pub fn are_settled(&self, now: Ticks) -> bool {
        self.missing().next().is_none() && now >= self.held_until()
    }

    /// Whether one of these nodes without a session is likely to come back by itself.
    pub fn is_held(&self, now: Ticks, mut away: impl Iterator<Item = NodeId>) -> bool {
        let is_found = |node| matches!(self.known.get(&node), Some(Presence::Away { is_found: true, .. }));
        away.any(|node| now < self.hold_until || now < self.fresh_until && is_found(node))
    }

    /// Time at which nothing is held any more.
    pub fn held_until(&self) -> Ticks {
        self.hold_until.max(self.fresh_until)
    }
}
