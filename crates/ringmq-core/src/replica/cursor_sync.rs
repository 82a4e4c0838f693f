//! A leader's cursors on their way to the followers. Ordinary channels: those that moved, once per interval, with all their intervals;
//! no client waits. Ordered FIN, set offset, empty, create, pause, delete: answered when every member of the required set has applied
//! the whole change durably. The image with the higher generation wins, so a pause raises the generation as a set offset does, and a
//! late repeat is superseded. A deletion has no generation: no other operation of the channel runs beside it, no list names the channel
//! from the start of the deletion on, and a later channel of the name has a higher generation than the deleted one.
//!
//! A follower gets the whole list when it becomes live; changes then follow in order. A message without an answer ends the session, and
//! the next session begins with a list, so nothing is missing for long.
//!
//! **A follower joins the ISR with every channel complete.** An operation that a follower clamps, or that fails, leaves the channel
//! incomplete there, whether the operation waits for this follower or not: the channel is sent with each interval until an answer is OK.
//!
//! **Retention needs an agreement.** The leader tells all followers its collect start, the position before which it gives nothing to a
//! new channel. When every member of the required set has it durable, it is the *agreed start*: the leader removes the segments before
//! it, and allows the followers to do so. So no later leader gives a channel messages that another replica has removed.

use super::base::Cx;
use super::error::ReplicaError;
use super::event::{Channels, CursorEvent, Effect};
use super::peer::{Peer, PeerPhase};
use crate::base::NodeId;
use crate::base::{ChannelName, Epoch, Position, Ticks};
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Body, Cursors, Head};
use crate::format::cursor::CursorImage;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Contents of a numbered message of a session.
#[derive(Debug, PartialEq, Eq)]
enum SentContent {
    /// List of channels, with its collect start.
    List(Position),
    Moved(Position, Vec<ChannelName>),
    Operation {
        request: u64,
        channel: ChannelName,
        deletes: bool,
    },
}

impl SentContent {
    fn is_operation(&self, number: u64) -> bool {
        matches!(self, SentContent::Operation { request, .. } if *request == number)
    }
}

/// The cursors of one session.
#[derive(Debug)]
pub(super) struct CursorLink {
    seq: u64,
    sent: VecDeque<(u64, SentContent)>,
    list: List,
    /// Channels whose acknowledged state the follower may lack, with the number of the message at that time. An OK to a later message
    /// with the channel removes it.
    incomplete: BTreeMap<ChannelName, u64>,
    /// The collect start that it has, durably.
    collects: Position,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum List {
    #[default]
    None,
    Asked,
    /// Later changes follow it, in order.
    Sent,
    /// The follower has every channel that there was.
    Confirmed,
}

impl Default for CursorLink {
    fn default() -> Self {
        CursorLink { seq: 0, sent: VecDeque::new(), list: List::None, incomplete: BTreeMap::new(), collects: Position::START }
    }
}

impl CursorLink {
    pub fn begin(&mut self) {
        *self = CursorLink::default();
    }

    /// Number of the last message.
    pub fn last_number(&self) -> u64 {
        self.seq
    }

    pub fn is_waiting(&self) -> bool {
        !self.sent.is_empty()
    }

    /// True if changes are sent: the follower has the list, or gets it before them.
    fn is_listed(&self) -> bool {
        matches!(self.list, List::Sent | List::Confirmed)
    }

    /// True if this follower has all channels durably, as far as any client was told of them.
    pub fn is_complete(&self) -> bool {
        self.list == List::Confirmed && self.sent.is_empty() && self.incomplete.is_empty()
    }

    /// Marks a channel whose changes so far do not count.
    fn doubt(&mut self, channel: &ChannelName) {
        if self.is_listed() {
            self.incomplete.insert(channel.clone(), self.seq);
        }
    }

    /// The incomplete channels that are not on their way.
    fn to_repeat(&self) -> impl Iterator<Item = &ChannelName> {
        let is_under_way = |name: &ChannelName, after: u64| {
            self.sent.iter().any(|(seq, s)| *seq > after && matches!(s, SentContent::Moved(_, names) if names.contains(name)))
        };
        self.incomplete.iter().filter(move |(name, after)| !is_under_way(name, **after)).map(|(name, _)| name)
    }
}

#[derive(Debug)]
enum CursorOperation {
    Set(CursorImage),
    /// Deletion of a channel, with its collect start.
    Delete(ChannelName, Option<Position>),
}

impl CursorOperation {
    fn channel(&self) -> &ChannelName {
        match self {
            CursorOperation::Set(image) => &image.name,
            CursorOperation::Delete(channel, _) => channel,
        }
    }
}

#[derive(Debug)]
struct Operation {
    what: CursorOperation,
    until: Ticks,
    /// Members of the required set that have not confirmed yet.
    waits_for: Vec<NodeId>,
}

#[derive(Debug)]
pub(super) struct CursorSync {
    moved: BTreeSet<ChannelName>,
    /// Collect start that the followers are to have at least, and the one that all have.
    collecting: Position,
    agreed: Position,
    /// True if one of the two has moved since the last interval.
    has_start: bool,
    operations: BTreeMap<u64, Operation>,
    next_at: Option<Ticks>,
}

impl Default for CursorSync {
    fn default() -> Self {
        CursorSync {
            moved: BTreeSet::new(),
            collecting: Position::START,
            agreed: Position::START,
            has_start: false,
            operations: BTreeMap::new(),
            next_at: None,
        }
    }
}

/// The leader's side of things, as of now.
pub(super) struct Leading<'a> {
    pub epoch: Epoch,
    pub committed: Position,
    pub required: &'a [NodeId],
    /// True if enough replicas are in sync for a write: with fewer nothing is final.
    pub has_quorum: bool,
    /// True before a hand-over: the follower's end moves to the committed end with the next message.
    pub flush: bool,
    pub interval: Duration,
    pub limit: Duration,
    pub retry: Duration,
}

impl CursorSync {
    pub fn on_event(&mut self, cx: &mut Cx<'_>, peers: &mut [Peer], leading: &Leading<'_>, event: CursorEvent) {
        match event {
            CursorEvent::Moved { channel } => {
                if !peers.is_empty() && !self.moved.contains(&channel) {
                    self.moved.insert(channel);
                    self.next_at.get_or_insert(cx.now + leading.interval);
                }
            }
            CursorEvent::Sync { request, image } => self.operate(cx, peers, leading, request, CursorOperation::Set(image)),
            CursorEvent::Delete { request, channel, collect_start } => {
                self.moved.remove(&channel);
                self.operate(cx, peers, leading, request, CursorOperation::Delete(channel, collect_start));
            }
            CursorEvent::Collecting { at } => {
                if at.offset > self.collecting.offset {
                    self.collecting = at;
                    self.tell_start(cx, leading.interval);
                    self.agree(cx, peers, leading.required, leading.interval);
                }
            }
            CursorEvent::LossAccepted => self.tell_start(cx, leading.interval),
            CursorEvent::Collected { to, session, is_all, collect_start, cursors, producers } => {
                if let Some(peer) = peers.iter_mut().find(|p| p.node == to && p.session == session && p.is_streaming()) {
                    let names = cursors.iter().map(|c| c.name.clone()).collect();
                    let sent = if is_all { SentContent::List(collect_start) } else { SentContent::Moved(collect_start, names) };
                    if is_all {
                        peer.cursors.list = List::Sent;
                    }
                    let message = Cursors {
                        seq: 0,
                        committed: leading.committed,
                        flush: leading.flush,
                        is_all,
                        collect_start: Some(collect_start),
                        agreed_start: Some(self.agreed).filter(|at| *at != Position::START),
                        cursors,
                        deleted: vec![],
                        producers,
                        channels_lost: cx.log.may_lack_channels(),
                    };
                    send(cx, peer, leading, sent, message);
                }
            }
            // The event is from a time when this replica followed.
            CursorEvent::Applied { .. } => {}
        }
    }

    fn tell_start(&mut self, cx: &Cx<'_>, interval: Duration) {
        self.has_start = true;
        self.next_at.get_or_insert(cx.now + interval);
    }

    /// Agrees on a collect start: the lowest durable one of all required members and this leader. Retention may remove the segments
    /// before it.
    pub fn agree(&mut self, cx: &mut Cx<'_>, peers: &[Peer], required: &[NodeId], interval: Duration) {
        let of = |node: &NodeId| peers.iter().find(|p| p.node == *node).map_or(Position::START, |p| p.cursors.collects);
        let starts = required.iter().map(of).chain([self.collecting]);
        let at = starts.min_by_key(|at| at.offset).unwrap_or(Position::START);
        if at.offset > self.agreed.offset {
            self.agreed = at;
            cx.out.push(Effect::Agreed { at });
            self.tell_start(cx, interval);
        }
    }

    /// True if the follower was told the agreed start, so that it gives no channel messages that may be removed.
    pub fn is_agreed_by(&self, link: &CursorLink) -> bool {
        link.collects.offset >= self.agreed.offset
    }

    fn operate(&mut self, cx: &mut Cx<'_>, peers: &mut [Peer], leading: &Leading<'_>, request: u64, what: CursorOperation) {
        let waits_for: Vec<NodeId> = leading.required.iter().copied().filter(|n| peers.iter().any(|p| p.node == *n)).collect();
        for peer in peers.iter_mut().filter(|p| p.cursors.is_listed()) {
            self.send_operation(cx, peer, leading, request, &what);
        }
        if waits_for.is_empty() {
            return cx.out.push(Effect::CursorDone { request, result: Ok(()) });
        }
        self.operations.insert(request, Operation { what, until: cx.now + leading.limit, waits_for });
    }

    fn send_operation(&self, cx: &mut Cx<'_>, peer: &mut Peer, leading: &Leading<'_>, request: u64, what: &CursorOperation) {
        let (cursors, deleted, collect_start) = match what {
            CursorOperation::Set(image) => (vec![image.clone()], vec![], None),
            CursorOperation::Delete(channel, collect_start) => (vec![], vec![channel.clone()], *collect_start),
        };
        let committed = leading.committed;
        let message = Cursors {
            seq: 0,
            committed,
            flush: true,
            is_all: false,
            collect_start,
            agreed_start: None,
            cursors,
            deleted,
            producers: vec![],
            channels_lost: false,
        };
        let (channel, deletes) = (what.channel().clone(), matches!(what, CursorOperation::Delete(..)));
        send(cx, peer, leading, SentContent::Operation { request, channel, deletes }, message);
    }

    pub fn on_ack(&mut self, cx: &mut Cx<'_>, peer: &mut Peer, leading: &Leading<'_>, seq: u64, result: Result<(), PeerError>) {
        let Some(index) = peer.cursors.sent.iter().position(|s| s.0 == seq) else { return };
        let Some((_, sent)) = peer.cursors.sent.remove(index) else { return };
        peer.retry_at = cx.now + leading.retry;
        // Whether or not the cursors became durable with it.
        if let SentContent::List(start) | SentContent::Moved(start, _) = &sent {
            peer.cursors.collects = *start;
        }
        match (sent, result) {
            (SentContent::List(_), Ok(())) => {
                (peer.cursors.list, peer.was_listed) = (List::Confirmed, true);
                peer.cursors.incomplete.retain(|_, after| *after > seq);
                // It may have missed those in the sessions before.
                let missed: Vec<u64> =
                    self.operations.iter().filter(|(_, o)| o.waits_for.contains(&peer.node)).map(|(r, _)| *r).collect();
                for request in missed {
                    self.send_operation(cx, peer, leading, request, &self.operations[&request].what);
                }
            }
            (SentContent::List(_), Err(_)) => {
                peer.cursors.list = List::None;
                self.next_at.get_or_insert(cx.now + leading.interval);
            }
            (SentContent::Moved(_, names), Err(_)) => {
                self.moved.extend(names);
                self.next_at.get_or_insert(cx.now + leading.interval);
            }
            (SentContent::Moved(_, names), Ok(())) => {
                peer.cursors.incomplete.retain(|name, after| *after > seq || !names.contains(name));
            }
            // The cursor that supersedes the operation came from this leader, later, and is durable at the follower.
            (SentContent::Operation { request, channel, deletes }, Ok(()) | Err(PeerError::Superseded)) => {
                if deletes {
                    peer.cursors.incomplete.remove(&channel);
                }
                if let Some(operation) = self.operations.get_mut(&request) {
                    operation.waits_for.retain(|n| *n != peer.node);
                    self.finish(cx, leading);
                }
            }
            // It is not that far: again with the next interval.
            (SentContent::Operation { channel, .. }, Err(_)) => {
                peer.cursors.incomplete.insert(channel, seq);
                self.next_at.get_or_insert(cx.now + leading.interval);
            }
        }
    }

    /// The required set may be another.
    pub fn settle(&mut self, cx: &mut Cx<'_>, leading: &Leading<'_>) {
        self.operations.values_mut().for_each(|o| o.waits_for.retain(|n| leading.required.contains(n)));
        self.finish(cx, leading);
    }

    fn finish(&mut self, cx: &mut Cx<'_>, leading: &Leading<'_>) {
        if !leading.has_quorum {
            return;
        }
        self.operations.retain(|&request, o| {
            if o.waits_for.is_empty() {
                cx.out.push(Effect::CursorDone { request, result: Ok(()) });
            }
            !o.waits_for.is_empty()
        });
    }

    /// A follower became live: it needs the list.
    pub fn greet(&mut self, cx: &mut Cx<'_>, peer: &mut Peer) {
        if peer.link == PeerPhase::Live && peer.cursors.list == List::None {
            peer.cursors.list = List::Asked;
            let (to, session) = (peer.node, peer.session);
            cx.out.push(Effect::CollectCursors { to, session, channels: Channels::All });
        }
    }

    pub fn tick(&mut self, cx: &mut Cx<'_>, peers: &mut [Peer], leading: &Leading<'_>) {
        let now = cx.now;
        self.operations.retain(|&request, o| {
            if o.until <= now {
                // Some followers have the change and some do not: all get the former state under a higher generation.
                peers.iter_mut().for_each(|p| p.cursors.doubt(o.what.channel()));
                self.next_at.get_or_insert(now + leading.interval);
                cx.out.push(Effect::CursorDone { request, result: Err(ReplicaError::NotConfirmed) });
            }
            o.until > now
        });
        if self.next_at.is_none_or(|at| at > now) {
            return;
        }
        self.next_at = None;
        let names: Vec<ChannelName> = std::mem::take(&mut self.moved).into_iter().collect();
        let has_start = std::mem::take(&mut self.has_start);
        for peer in peers.iter_mut() {
            self.greet(cx, peer);
            if !peer.cursors.is_listed() {
                continue;
            }
            let mut wanted = names.clone();
            wanted.extend(peer.cursors.to_repeat().filter(|name| !names.contains(name)).cloned());
            if !wanted.is_empty() || has_start {
                let (to, session) = (peer.node, peer.session);
                cx.out.push(Effect::CollectCursors { to, session, channels: Channels::Some(wanted) });
            }
            if !peer.cursors.incomplete.is_empty() {
                self.next_at = Some(now + leading.interval);
            }
            for (request, operation) in &self.operations {
                let is_under_way = peer.cursors.sent.iter().any(|(_, s)| s.is_operation(*request));
                if operation.waits_for.contains(&peer.node) && !is_under_way {
                    self.send_operation(cx, peer, leading, *request, &operation.what);
                }
            }
        }
    }

    /// Fails all waiting operations: the leader leads no longer, or writes are disabled.
    pub fn fail_all(&mut self, cx: &mut Cx<'_>, error: ReplicaError) {
        for request in std::mem::take(&mut self.operations).into_keys() {
            cx.out.push(Effect::CursorDone { request, result: Err(error) });
        }
    }

    /// True if no operation is waited for.
    pub fn is_quiet(&self) -> bool {
        self.operations.is_empty()
    }

    pub fn deadline(&self) -> Option<Ticks> {
        self.next_at.into_iter().chain(self.operations.values().map(|o| o.until)).min()
    }
}

fn send(cx: &mut Cx<'_>, peer: &mut Peer, leading: &Leading<'_>, sent: SentContent, message: Cursors) {
    if !peer.cursors.is_waiting() {
        peer.retry_at = cx.now + leading.retry;
    }
    peer.cursors.seq += 1;
    let seq = peer.cursors.seq;
    peer.cursors.sent.push_back((seq, sent));
    let head = Head { epoch: leading.epoch, session: peer.session };
    cx.send(peer.node, head, Body::Cursors(Cursors { seq, ..message }));
}
