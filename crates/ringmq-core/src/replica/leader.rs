//! A replica that leads, once its epoch is open (or settling): progress of the followers, commit, changes of the ISR, and the moment
//! from which outcomes of writes are unknown.
//!
//! [`opening`](super::opening) opens the epoch.

use super::base::{Base, Cx, replica_log};
use super::cursor_sync::{CursorSync, Leading};
use super::error::ReplicaError;
use super::event::{Alarm, CursorEvent, Effect, Loss};
use super::hand_over::Round;
use super::loss::lacks_committed;
use super::peer::{Peer, PeerPhase};
use super::prefix::{Common, Whose, common};
use super::states::{State, Trigger};
use crate::base::{Epoch, NodeId, Position, Ticks};
use crate::codec::peer::error::{PeerError, Retry};
use crate::codec::peer::message::{Align, Body, Head, Inquire, Message, Session, Standing};
use crate::format::tail::Tail;
use crate::seam::membership::Membership;
use bytes::Bytes;

/// Phase of an opening, or of an open leader.
#[derive(Debug)]
pub(super) enum Phase {
    Claiming,
    Asking,
    /// Truncates its own tail; then takes the tail of `source` up to `end`.
    Trimming {
        source: NodeId,
        end: Position,
    },
    Fetching {
        source: NodeId,
        end: Position,
        retry_at: Ticks,
        until: Ticks,
    },
    /// Commits the log before the epoch's first batch; `tail` is its end.
    Settling {
        tail: Position,
    },
    Open,
    /// Takes no publish and brings everything to an end, to hand over to `to`, until then at the latest.
    Quiescing {
        to: NodeId,
        until: Ticks,
        round: Round,
    },
    /// Serves nothing: the store is asked again for another leader, or, when it does not answer, for an epoch.
    Resigned {
        to: Option<NodeId>,
        again_at: Ticks,
        ask_at: Ticks,
    },
    Closed {
        ask_at: Ticks,
    },
}

/// A compare-and-swap that the store has not answered.
#[derive(Debug)]
pub(super) struct Proposal {
    version: u64,
    isr: Vec<NodeId>,
    /// Counts from the moment of the proposal.
    grows: Option<NodeId>,
    retry_at: Ticks,
}

#[derive(Debug)]
pub(super) struct Leader {
    pub epoch: Epoch,
    pub phase: Phase,
    pub peers: Vec<Peer>,
    /// Last session of every peer, also of removed ones: a peer that is added again within the epoch knows the numbers from before.
    last_session: Session,
    proposal: Option<Proposal>,
    propose_at: Ticks,
    /// Time at which the asking began, or was last given up for want of answers.
    pub asking_since: Ticks,
    /// Time at which the log was decided.
    pub settling_since: Ticks,
    /// The leader's end at some time, not committed then, and that time.
    commit_mark: Option<(Position, Ticks)>,
    pub alarmed: Option<Alarm>,
    /// Time since which the tail that is to be committed fails its checks.
    damaged_since: Option<Ticks>,
    /// Loss that going on would cost, while an alarm reports it.
    pub loss: Option<Loss>,
    /// ISR member that knows data up to this position to be committed, while this log lacks it or differs there. Until the two are in
    /// step no replica is removed from the ISR, and no opening continues with a log that ends before it.
    pub missing: Option<(NodeId, Position)>,
    /// An operator accepted that the log ends there, or later.
    pub accepts_loss: Option<Position>,
    /// Replica outside the ISR that knows this to be committed while this log lacks it.
    pub stays_out: Option<(NodeId, Position)>,
    /// Log with which the epoch opened.
    pub settled_on: Tail,
    /// Time of the next word to the store that an operator accepted a loss, until the metadata has it.
    pub give_up_at: Option<Ticks>,
    /// Members that must have a batch durable, this node aside.
    required: Vec<NodeId>,
    /// Number of removed replicas, by the metadata of before.
    removals: Option<u64>,
    pub cursors: CursorSync,
    /// Time of the next attempt to hand over, where that is wanted.
    pub hand_over_at: Ticks,
}

impl Leader {
    pub fn new(epoch: Epoch, now: Ticks) -> Self {
        Leader {
            epoch,
            phase: Phase::Claiming,
            peers: vec![],
            last_session: Session(0),
            proposal: None,
            propose_at: now,
            commit_mark: None,
            asking_since: now,
            settling_since: now,
            alarmed: None,
            damaged_since: None,
            loss: None,
            missing: None,
            accepts_loss: None,
            stays_out: None,
            settled_on: Tail::START,
            give_up_at: None,
            required: vec![],
            removals: None,
            cursors: CursorSync::default(),
            hand_over_at: now,
        }
    }

    pub fn state(&self) -> State {
        match self.phase {
            Phase::Claiming => State::Claiming,
            Phase::Asking => State::Asking,
            Phase::Trimming { .. } => State::Trimming,
            Phase::Fetching { .. } => State::Fetching,
            Phase::Settling { .. } => State::Settling,
            Phase::Open => State::Open,
            Phase::Quiescing { .. } => State::Quiescing,
            Phase::Resigned { .. } => State::Resigned,
            Phase::Closed { .. } => State::Closed,
        }
    }

    pub fn peer(&mut self, node: NodeId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|p| p.node == node)
    }

    /// Begins a session with each of these.
    pub fn inquire(&mut self, base: &Base, cx: &mut Cx<'_>, which: impl Fn(&Peer, Ticks) -> bool) {
        let membership_version = base.membership.as_ref().map_or(0, |m| m.version);
        let inquire = Inquire { topic: base.topic.name.clone(), partitions: base.topic.partitions, membership_version };
        for peer in &mut self.peers {
            if which(peer, cx.now) {
                self.last_session.0 = self.last_session.0.saturating_add(1);
                peer.inquire(cx, self.epoch, self.last_session, inquire.clone(), &base.options);
            }
        }
    }

    /// The metadata changed, this node leads in the same epoch as before.
    pub fn on_membership(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        let Some(membership) = base.membership.as_ref() else { return };
        let me = base.me;
        self.peers.retain(|p| membership.is_replica(p.node));
        for &node in membership.replicas.iter().filter(|n| **n != me) {
            if self.peers.iter().all(|p| p.node != node) {
                self.peers.push(Peer::new(node, cx.now));
            }
        }
        if self.removals.replace(membership.removals).is_some_and(|before| before != membership.removals) {
            // A replica that was removed and added again has none of the batches that it acknowledged before.
            let outside = self.peers.iter_mut().filter(|p| !membership.is_in_sync(p.node));
            outside.for_each(|p| p.part(cx.now, std::time::Duration::ZERO));
        }
        if self.proposal.as_ref().is_some_and(|p| membership.version > p.version) {
            self.proposal = None;
        }
        self.missing.take_if(|(witness, _)| !membership.is_in_sync(*witness));
        self.give_up_at.take_if(|_| membership.given_up.is_some_and(|loss| loss.epoch >= self.epoch));
        if self.stays_out.take_if(|(node, _)| !membership.is_replica(*node)).is_some() {
            cx.out.push(Effect::AlarmOver);
        }
        self.count_required(membership, me);
        self.with_cursors(base, |sync, leading| sync.settle(cx, leading));
        self.cursors.agree(cx, &self.peers, &self.required, base.options.cursor_interval);
        match self.phase {
            Phase::Asking => self.decide(base, cx),
            _ => self.commit(base, cx),
        }
        self.pump(base, cx);
    }

    fn count_required(&mut self, membership: &Membership, me: NodeId) {
        self.required.clear();
        self.required.extend(membership.isr.iter().chain(&membership.joining).filter(|n| **n != me));
        if let Some(node) = self.proposal.as_ref().and_then(|p| p.grows)
            && !self.required.contains(&node)
        {
            self.required.push(node);
        }
    }

    pub fn on_message(&mut self, base: &mut Base, cx: &mut Cx<'_>, from: NodeId, message: Message) {
        let head = message.head;
        let epoch = self.epoch;
        let Some(peer) = self.peers.iter_mut().find(|p| p.node == from) else { return };
        if (head != Head { epoch, session: peer.session }) || matches!(self.phase, Phase::Closed { .. } | Phase::Resigned { .. })
        {
            return;
        }
        let options = base.options;
        match message.body {
            Body::Standing(standing) if peer.link == PeerPhase::Asked => {
                self.on_standing(base, cx, from, standing);
            }
            Body::Pulled(pulled) => self.on_pulled(base, cx, from, pulled),
            Body::Aligned(aligned) if peer.link == PeerPhase::Aligning => {
                peer.aligned(cx, aligned.at);
                self.missing.take_if(|(witness, _)| *witness == from);
                if self.stays_out.take_if(|(node, _)| *node == from).is_some() {
                    cx.out.push(Effect::AlarmOver);
                }
                self.commit(base, cx);
                self.pump(base, cx);
            }
            Body::Pull(pull) if peer.is_streaming() => peer.on_pull(cx, pull),
            Body::Ack(ack) if peer.is_streaming() => {
                peer.on_ack(cx, ack.durable, &options);
                self.commit(base, cx);
                self.pump_one(base, cx, from);
                self.grow(base, cx, from);
            }
            Body::CursorsAck(ack) => {
                let mut peer = self.peers.swap_remove(self.index(from));
                let is_ok = ack.result.is_ok();
                self.with_cursors(base, |sync, leading| sync.on_ack(cx, &mut peer, leading, ack.seq, ack.result));
                self.peers.push(peer);
                self.channels_confirmed(base, cx, from, (head.session, ack.seq), is_ok);
                self.cursors.agree(cx, &self.peers, &self.required, base.options.cursor_interval);
                self.commit(base, cx);
                self.grow(base, cx, from);
            }
            Body::Refused(error) => self.on_refused(base, cx, from, error),
            _ => {}
        }
    }

    pub fn is_session(&self, node: NodeId, head: Head) -> bool {
        self.peers.iter().any(|p| p.node == node && head == p.head(self.epoch))
    }

    /// The log is decided, and goes to the others.
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Settling { .. } | Phase::Open | Phase::Quiescing { .. })
    }

    /// True if another replica is in step, or on its way, and may have the bytes that damage destroys here.
    pub fn has_followers(&self) -> bool {
        self.is_settled() && !self.peers.is_empty()
    }

    fn index(&self, node: NodeId) -> usize {
        self.peers.iter().position(|p| p.node == node).expect("it was just found")
    }

    fn on_refused(&mut self, base: &mut Base, cx: &mut Cx<'_>, from: NodeId, error: PeerError) {
        let options = base.options;
        if let PeerError::BelowCommitted { committed } = error {
            if self.contradicts(base, cx, from, Alarm::BelowCommitted { committed }) {
                return;
            }
            self.leaves_out(cx, from, committed);
        }
        let Some(peer) = self.peer(from) else { return };
        if error.leaves_isr() {
            peer.left = true;
        }
        let pause = match error.retry() {
            // Space comes seldom, and each session brings the list of channels.
            _ if error == PeerError::NoRoom => options.follower_limit,
            // Nothing is wrong with the follower: it only has to be compared.
            Retry::AfterAlign if !error.leaves_isr() => std::time::Duration::ZERO,
            _ => options.retry,
        };
        peer.part(cx.now, pause);
        if error.retry() == Retry::AfterRefresh {
            cx.out.push(Effect::Refresh);
        }
        let follower = cx.name_of(from);
        match error {
            // The topic is new, and on its way there; or the removal from the ISR has its own line.
            PeerError::UnknownPartition | PeerError::NoRoom => replica_log!(debug, base, follower, %error, "a follower refuses"),
            _ => replica_log!(info, base, follower, %error, "a follower refuses"),
        }
        self.source_lost(base, cx, from);
    }

    fn on_standing(&mut self, base: &mut Base, cx: &mut Cx<'_>, from: NodeId, standing: Standing) {
        let Some(peer) = self.peer(from) else { return };
        match &mut peer.standing {
            // A later page: the ends are those of the first page.
            Some(first) => (first.epochs, first.more) = (standing.epochs, standing.more),
            none => *none = Some(standing),
        }
        // It waits for this node; only a page that gets lost has to be asked for again.
        let pause = if matches!(self.phase, Phase::Asking) { base.options.follower_limit } else { base.options.retry };
        if let Some(peer) = self.peer(from) {
            peer.retry_at = cx.now + pause;
        }
        match self.phase {
            Phase::Asking => self.decide(base, cx),
            Phase::Settling { .. } | Phase::Open | Phase::Quiescing { .. } => self.align(base, cx, from),
            _ => {}
        }
    }

    /// Orders a follower that has said where it stands to become a prefix of this log.
    pub fn align(&mut self, base: &mut Base, cx: &mut Cx<'_>, node: NodeId) {
        let (epoch, committed, is_loss_accepted) = (self.epoch, base.committed, self.is_loss_accepted(base));
        let Some(peer) = self.peers.iter_mut().find(|p| p.node == node) else { return };
        let Some(standing) = peer.standing.as_ref().filter(|_| peer.link == PeerPhase::Asked) else { return };
        let head = peer.head(epoch);
        let lacks =
            standing.committed.offset > cx.log.end().at.offset || lacks_committed(cx.log, self.settled_on, epoch, standing);
        if lacks && !is_loss_accepted {
            // It knows more to be committed than this log has: nothing there is truncated.
            let alarm = Alarm::CommittedMissing { committed: standing.committed };
            let committed = standing.committed;
            if !self.contradicts(base, cx, node, alarm) {
                self.leaves_out(cx, node, committed);
                if let Some(peer) = self.peer(node) {
                    peer.part(cx.now, base.options.follower_limit);
                }
            }
            return;
        }
        let (start, start_crc) = cx.log.start();
        let align = match common(cx.log, standing, Whose::Leader) {
            Common::At { at, chain_crc } => Align::Truncate { at, chain_crc },
            Common::Older { below } => {
                let body = Body::EpochsAsk(crate::codec::peer::message::EpochsAsk { below });
                return cx.send(node, head, body);
            }
            Common::Nothing => Align::Restart { start, chain_crc: start_crc },
        };
        replica_log!(debug, base, follower = cx.name_of(node), ?align, committed = committed.offset, "a follower is aligned");
        (peer.link, peer.standing) = (PeerPhase::Aligning, None);
        peer.retry_at = cx.now + base.options.retry;
        cx.send(node, head, Body::Align(align));
    }

    /// Ends writing in this epoch and asks for another one.
    fn shut(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        self.close(base, cx, ReplicaError::OutcomeUnknown);
        self.phase = Phase::Closed { ask_at: cx.now + base.options.follower_limit };
        base.go(Trigger::Unknown);
        cx.out.push(Effect::AskEpoch { above: base.fence() });
    }

    /// Sends to every peer the batches that its window and rate allow.
    pub fn pump(&mut self, base: &Base, cx: &mut Cx<'_>) {
        if !self.is_settled() {
            return;
        }
        for peer in &mut self.peers {
            let is_awaited = self.required.contains(&peer.node);
            peer.pump(cx, self.epoch, base.committed, is_awaited, &base.options);
            self.cursors.greet(cx, peer);
        }
    }

    fn pump_one(&mut self, base: &Base, cx: &mut Cx<'_>, node: NodeId) {
        let (epoch, index) = (self.epoch, self.index(node));
        let peer = &mut self.peers[index];
        peer.pump(cx, epoch, base.committed, self.required.contains(&node), &base.options);
        self.cursors.greet(cx, peer);
    }

    pub fn on_read(
        &mut self,
        base: &mut Base,
        cx: &mut Cx<'_>,
        (to, session): (NodeId, Session),
        (from, end): (Position, Position),
        read: Result<Vec<Bytes>, PeerError>,
    ) {
        let (epoch, committed, options) = (self.epoch, base.committed, base.options);
        let Some(peer) = self.peers.iter_mut().find(|p| p.node == to && p.session == session) else { return };
        if peer.mends.take_if(|at| *at == from).is_some() {
            return peer.on_mend_read(cx, Head { epoch, session }, from, read);
        }
        match read {
            Ok(batches) => {
                peer.on_read(cx, Head { epoch, session }, end, batches, committed);
                self.pump_one(base, cx, to);
            }
            // Retention has moved, or it cannot be read: the logs are compared again.
            Err(_) => peer.part(cx.now, options.retry),
        }
    }

    /// Own batches were sealed.
    pub fn on_sealed(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        self.note_uncommitted(base, cx);
        self.pump(base, cx);
    }

    /// The clock of a write begins when the one before it is committed.
    fn note_uncommitted(&mut self, base: &Base, cx: &Cx<'_>) {
        let end = cx.log.end().at;
        if self.commit_mark.is_none() && base.committed.offset < end.offset {
            self.commit_mark = Some((end, cx.now));
        }
    }

    /// Moves the committed end to the end that every member of the required set has durable.
    pub fn commit(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        let Some(membership) = base.membership.as_ref() else { return };
        // The tail was written when enough were in sync.
        let may_commit = membership.has_quorum() || matches!(self.phase, Phase::Settling { .. });
        if !self.is_settled() || !may_commit {
            return;
        }
        let (mut end, mut are_listed) = (cx.log.durable().at, true);
        for node in &self.required {
            // The acknowledgements of a replica that was not aligned in this epoch do not count.
            let peer = self.peers.iter().find(|p| p.node == *node);
            are_listed &= peer.is_some_and(|p| p.was_listed);
            let acked = peer.map_or(Position::START, |p| p.acked);
            if acked.offset < end.offset {
                end = acked;
            }
        }
        base.commit(end, cx.out);
        if self.commit_mark.is_some_and(|(at, _)| base.committed.offset >= at.offset) {
            self.commit_mark = None;
        }
        if let Phase::Settling { tail } = self.phase
            && base.committed.offset >= tail.offset
            // A channel of the epochs before, that a leader then told to few, may be here alone: it is told as final from now on.
            && are_listed
        {
            self.phase = Phase::Open;
            (base.hands_over_until, base.hand_overs) = (None, 0);
            base.go(Trigger::TailCommitted);
            self.commit_mark = None;
            cx.out.push(Effect::Opened { epoch: self.epoch });
            if self.accepts_loss.is_some() {
                self.give_up(base, cx);
            }
        }
        self.note_uncommitted(base, cx);
        self.quiesce(base, cx);
    }

    /// A follower that has everything is proposed for the ISR. It counts at once: the store may have taken it when its answer
    /// is late.
    fn grow(&mut self, base: &Base, cx: &mut Cx<'_>, node: NodeId) {
        let Some(membership) = base.membership.as_ref() else { return };
        if self.proposal.is_some()
            || membership.is_in_sync(node)
            || !matches!(self.phase, Phase::Open)
            || cx.now < self.propose_at
        {
            return;
        }
        let Some(peer) = self.peers.iter().find(|p| p.node == node) else { return };
        let has_channels = peer.cursors.is_complete() && self.cursors.is_agreed_by(&peer.cursors);
        if peer.link != PeerPhase::Live || peer.acked.offset < base.committed.offset || !has_channels {
            return;
        }
        let mut isr = membership.isr.clone();
        isr.push(node);
        self.propose(cx, membership, isr, Some(node), base);
    }

    /// Members that lag beyond the limit, or that have left, are proposed for removal, where that leaves enough.
    fn shrink(&mut self, base: &Base, cx: &mut Cx<'_>) {
        let Some(membership) = base.membership.as_ref() else { return };
        let may_shrink = self.is_settled() && self.missing.is_none();
        if self.proposal.is_some() || !may_shrink || cx.now < self.propose_at {
            return;
        }
        let limit = base.options.follower_limit;
        let opens = matches!(self.phase, Phase::Settling { .. });
        let lags = |p: &&Peer| p.left || cx.now >= p.caught_up_at + limit || opens && cx.now >= self.list_limit(p, limit);
        let lagging: Vec<NodeId> = self.peers.iter().filter(lags).map(|p| p.node).collect();
        let isr: Vec<NodeId> = membership.isr.iter().copied().filter(|n| !lagging.contains(n)).collect();
        if isr.len() == membership.isr.len() && !membership.joining.iter().any(|n| lagging.contains(n)) {
            return;
        }
        if isr.len() >= membership.min_isr {
            let lagging = lagging.iter().map(|node| cx.name_of(*node)).collect::<Vec<_>>().join(" ");
            replica_log!(warn, base, lagging, "removing in-sync replicas that lag or do not confirm the channels");
            self.propose(cx, membership, isr, None, base);
        } else {
            // Not allowed; looked at again.
            self.propose_at = cx.now + base.options.retry;
        }
    }

    /// Time until which a member may keep the epoch from opening because it has not confirmed the list of channels.
    fn list_limit(&self, peer: &Peer, limit: std::time::Duration) -> Ticks {
        if peer.was_listed { Ticks(u64::MAX) } else { self.settling_since + limit }
    }

    fn propose(&mut self, cx: &mut Cx<'_>, membership: &Membership, isr: Vec<NodeId>, grows: Option<NodeId>, base: &Base) {
        let version = membership.version;
        cx.out.push(Effect::Propose { version, isr: isr.clone() });
        self.proposal = Some(Proposal { version, isr, grows, retry_at: cx.now + base.options.retry });
        self.count_required(membership, base.me);
    }

    pub fn on_proposal_refused(&mut self, base: &mut Base, cx: &mut Cx<'_>, version: u64) {
        if self.proposal.as_ref().is_none_or(|p| p.version != version) {
            return;
        }
        // The refused request may be the repeat of an applied one: only newer metadata ends a proposal.
        if let Some(proposal) = &mut self.proposal {
            proposal.retry_at = cx.now + base.options.retry;
        }
        self.propose_at = cx.now + base.options.retry;
        cx.out.push(Effect::Refresh);
    }

    pub fn on_cursor(&mut self, base: &Base, cx: &mut Cx<'_>, event: CursorEvent) {
        if let (CursorEvent::Sync { request, .. } | CursorEvent::Delete { request, .. }, Err(error)) =
            (&event, self.may_write(base))
        {
            let result = Err(error);
            return cx.out.push(Effect::CursorDone { request: *request, result });
        }
        let told = if let CursorEvent::Collected { to, session, .. } = &event { Some((*to, *session)) } else { None };
        let mut peers = std::mem::take(&mut self.peers);
        self.with_cursors(base, |sync, leading| sync.on_event(cx, &mut peers, leading, event));
        self.peers = peers;
        if let Some((to, session)) = told
            && let Some(number) = self.peer(to).map(|p| p.cursors.last_number())
        {
            self.channels_told(to, session, number);
        }
    }

    fn with_cursors(&mut self, base: &Base, act: impl FnOnce(&mut CursorSync, &Leading<'_>)) {
        let mut sync = std::mem::take(&mut self.cursors);
        let leading = Leading {
            epoch: self.epoch,
            committed: base.committed,
            required: &self.required,
            has_quorum: base.membership.as_ref().is_some_and(Membership::has_quorum),
            flush: matches!(self.phase, Phase::Quiescing { .. }),
            interval: base.options.cursor_interval,
            limit: base.options.write_limit,
            retry: base.options.retry,
        };
        act(&mut sync, &leading);
        self.cursors = sync;
    }

    /// Refusal of a publish, or of a change of a channel with a waiting client; the lease is not checked.
    pub fn may_write(&self, base: &Base) -> Result<(), ReplicaError> {
        match (&self.phase, &base.membership) {
            (Phase::Open, Some(m)) if !m.has_quorum() => Err(ReplicaError::IsrTooSmall { isr: m.isr.len(), min_isr: m.min_isr }),
            (Phase::Open, _) => Ok(()),
            (Phase::Quiescing { .. } | Phase::Resigned { .. }, _) => Err(ReplicaError::HandingOver),
            (Phase::Closed { .. }, _) => Err(ReplicaError::WriteDisabled),
            _ => Err(ReplicaError::Opening),
        }
    }

    pub fn tick(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Claiming | Phase::Trimming { .. } => return,
            Phase::Closed { ask_at } => {
                if cx.now >= ask_at {
                    self.phase = Phase::Closed { ask_at: cx.now + base.options.follower_limit };
                    cx.out.push(Effect::AskEpoch { above: base.fence() });
                }
                return;
            }
            Phase::Resigned { .. } => return self.resigned_tick(base, cx),
            Phase::Fetching { .. } => self.fetch_tick(base, cx),
            Phase::Quiescing { .. } => self.quiesce(base, cx),
            Phase::Open => self.look_at_wanted(base, cx),
            _ => {}
        }
        let is_fetching = matches!(self.phase, Phase::Fetching { .. });
        // A peer that has answered is not asked again while this node takes the chosen tail.
        self.inquire(base, cx, |peer, now| peer.is_overdue(now) && !(is_fetching && peer.standing.is_some()));
        if matches!(self.phase, Phase::Asking) {
            return self.look_at_silence(base, cx);
        }
        if is_fetching {
            return;
        }
        for peer in &mut self.peers {
            peer.beat(cx, self.epoch, base.committed, &base.options);
        }
        self.pump(base, cx);
        self.shrink(base, cx);
        for index in 0..self.peers.len() {
            let node = self.peers[index].node;
            self.grow(base, cx, node);
        }
        let may_repeat = self.missing.is_none();
        if let Some(proposal) = self.proposal.as_mut().filter(|p| may_repeat && cx.now >= p.retry_at) {
            proposal.retry_at = cx.now + base.options.retry;
            cx.out.push(Effect::Propose { version: proposal.version, isr: proposal.isr.clone() });
        }
        if self.give_up_at.is_some_and(|at| cx.now >= at) {
            self.give_up(base, cx);
        }
        let mut peers = std::mem::take(&mut self.peers);
        self.with_cursors(base, |sync, leading| sync.tick(cx, &mut peers, leading));
        self.peers = peers;
        let is_late = self.commit_mark.is_some_and(|(_, since)| cx.now >= since + base.options.write_limit);
        if is_late && matches!(self.phase, Phase::Open) {
            self.shut(base, cx);
        }
        self.look_at_tail(base, cx);
    }

    /// Asks for a new epoch when the log that the opening chose turns out damaged, and no replica supplies the missing part for as long
    /// as a write waits: the next epoch chooses again.
    fn look_at_tail(&mut self, base: &Base, cx: &mut Cx<'_>) {
        let Phase::Settling { tail } = self.phase else { return };
        let damage = cx.log.damage().map_or(cx.log.vouched(), |(from, _)| from);
        if damage.offset >= tail.offset || damage.offset < base.committed.offset {
            return self.damaged_since = None;
        }
        if cx.now >= *self.damaged_since.get_or_insert(cx.now) + base.options.write_limit {
            replica_log!(warn, base, damage = damage.offset, "the chosen tail is damaged: asking for another epoch");
            self.damaged_since = Some(cx.now);
            cx.out.push(Effect::AskEpoch { above: base.fence() });
        }
    }

    pub fn on_connected(&mut self, cx: &mut Cx<'_>, node: NodeId) {
        let now = cx.now;
        if let Some(peer) = self.peer(node) {
            // Messages on their way may be lost.
            peer.part(now, std::time::Duration::ZERO);
        }
    }

    /// The node's process is taken for ended.
    pub fn on_down(&mut self, base: &mut Base, cx: &mut Cx<'_>, node: NodeId) {
        if let Some(peer) = self.peer(node).filter(|p| !p.is_streaming()) {
            peer.left = true;
            self.shrink(base, cx);
        }
    }

    pub fn deadline(&self, base: &Base) -> Option<Ticks> {
        let options = &base.options;
        match self.phase {
            Phase::Claiming | Phase::Trimming { .. } => return None,
            Phase::Closed { ask_at } => return Some(ask_at),
            Phase::Resigned { again_at, ask_at, .. } => return Some(again_at.min(ask_at)),
            _ => {}
        }
        let hands_over = match self.phase {
            Phase::Open => self.wanted(base).map(|_| self.hand_over_at),
            Phase::Quiescing { until, .. } => Some(until),
            _ => None,
        };
        let is_fetching = matches!(self.phase, Phase::Fetching { .. });
        let asked = self.peers.iter().filter(|p| !(is_fetching && p.standing.is_some()));
        let peers = asked.map(Peer::deadline);
        let fetch = if let Phase::Fetching { retry_at, .. } = self.phase { Some(retry_at) } else { None };
        if is_fetching || matches!(self.phase, Phase::Asking) {
            let gives_up = self.gives_up_at(base).filter(|_| !is_fetching);
            return peers.chain(fetch).chain(gives_up).min();
        }
        let is_open = !matches!(self.phase, Phase::Settling { .. });
        let late = self.commit_mark.filter(|_| matches!(self.phase, Phase::Open)).map(|(_, since)| since + options.write_limit);
        let limits = self.peers.iter().filter(|p| self.required.contains(&p.node)).map(|p| {
            let lags_at = p.caught_up_at + options.follower_limit;
            let unlisted_at = if is_open { Ticks(u64::MAX) } else { self.list_limit(p, options.follower_limit) };
            let at = if p.left { self.propose_at } else { lags_at.min(unlisted_at) };
            at.max(self.propose_at)
        });
        let shrinks = limits.filter(|_| self.proposal.is_none() && self.missing.is_none()).min();
        let proposal = self.proposal.as_ref().filter(|_| self.missing.is_none()).map(|p| p.retry_at);
        let damaged = self.damaged_since.filter(|_| !is_open).map(|since| since + options.write_limit);
        let others = [late, shrinks, proposal, damaged, self.cursors.deadline(), hands_over, self.give_up_at];
        peers.chain(others.into_iter().flatten()).min()
    }
}
