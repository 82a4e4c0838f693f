//! One replica of a partition that has several: its role by the metadata, and which machine an event is for.

use super::base::{Base, Cx, replica_log};
use super::error::ReplicaError;
use super::event::{CursorEvent, Effect, Event, LogView, Loss, ReplicaOptions};
use super::follower::Follower;
use super::leader::{Leader, Phase};
use super::mend::Mender;
use super::states::{State, Trigger};
use crate::base::{Epoch, PartitionId, Position, Ticks, TopicRef};
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Body, Message, Route};
use crate::format::tail::Tail;
use crate::seam::cluster::ClusterNode;
use crate::{base::NodeId, seam::membership::Membership};

/// The highest epoch that a message tells of: its sender's, or the one that the sender has promised.
fn epoch_in(message: &Message) -> Epoch {
    match message.body {
        Body::Refused(PeerError::StaleEpoch { promised }) => promised.max(message.head.epoch),
        _ => message.head.epoch,
    }
}

#[derive(Debug)]
enum Role {
    Idle,
    Failed,
    Follower(Box<Follower>),
    Leader(Box<Leader>),
}

/// State of a follower in the leader's epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FollowerStatus {
    pub node: NodeId,
    pub state: &'static str,
    /// End of the log that is durable at the follower.
    pub acked: Position,
    pub sent: Position,
}

/// The machine; see the room's description.
#[derive(Debug)]
pub struct Member {
    base: Base,
    /// True if this node had the replica before this life.
    is_recovered: bool,
    role: Role,
    mender: Mender,
    /// The metadata says that this node may still deliver: when it says again that it does not.
    release_at: Option<Ticks>,
    /// The metadata names this node, in an epoch that it must not open (again): when it asks for another.
    ask_at: Option<Ticks>,
}

impl Member {
    /// A replica of a new partition, or as recovery left it: the highest promise found, and the known committed end.
    pub fn new(
        me: NodeId,
        topic: TopicRef,
        partition: PartitionId,
        options: ReplicaOptions,
        recovered: Option<(Epoch, Position)>,
    ) -> Self {
        let (promised, committed) = recovered.unwrap_or((Epoch(0), Position::START));
        let route = Route { topic_id: topic.id, partition };
        let base = Base {
            me,
            topic,
            route,
            options,
            membership: None,
            promised,
            promise_durable: promised,
            committed,
            taken: Tail::START,
            truncations: 0,
            hands_over_until: None,
            hand_overs: 0,
            given_up: 0,
            heard: Epoch(0),
            lease_until: Ticks(0),
            state: State::Idle,
            #[cfg(test)]
            trace: vec![],
        };
        Member {
            base,
            is_recovered: recovered.is_some(),
            role: Role::Idle,
            mender: Mender::default(),
            release_at: None,
            ask_at: None,
        }
    }

    /// Consumers see up to here only, and only of a leader.
    pub fn committed(&self) -> Position {
        self.base.committed
    }

    pub fn state(&self) -> State {
        self.base.state
    }

    pub fn membership(&self) -> Option<&Membership> {
        self.base.membership.as_ref()
    }

    pub fn route(&self) -> Route {
        self.base.route
    }

    /// The epoch of new batches; of a leader only.
    pub fn epoch(&self) -> Option<Epoch> {
        if let Role::Leader(l) = &self.role { Some(l.epoch) } else { None }
    }

    /// Loss that an operator may accept: of a leader that cannot open its epoch without it, or beside which a replica stays out.
    pub fn loss(&self) -> Option<Loss> {
        match &self.role {
            Role::Leader(leader) if matches!(leader.phase, Phase::Asking) => leader.loss,
            Role::Leader(leader) => leader.open_loss(&self.base),
            _ => None,
        }
    }

    /// The other replicas, as a leader sees them.
    pub fn followers(&self) -> impl Iterator<Item = FollowerStatus> + '_ {
        let peers = if let Role::Leader(l) = &self.role { &l.peers[..] } else { &[] };
        peers.iter().map(|p| FollowerStatus { node: p.node, state: p.link.name(), acked: p.acked, sent: p.sent })
    }

    /// Refusal of a publish now, or of a change of a channel with a waiting client.
    pub fn check_write(&self, now: Ticks) -> Result<(), ReplicaError> {
        self.check_lead(now)?.may_write(&self.base)
    }

    /// True if another node, which led before, may still deliver.
    pub fn waits_for_former(&self) -> bool {
        self.base.membership.as_ref().and_then(|m| m.former).is_some_and(|former| former != self.base.me)
    }

    /// Refusal of a delivery or FIN now.
    pub fn check_read(&self, now: Ticks) -> Result<(), ReplicaError> {
        let phase = &self.check_lead(now)?.phase;
        if self.waits_for_former() {
            return Err(ReplicaError::FormerMayServe);
        }
        match phase {
            Phase::Open | Phase::Quiescing { .. } | Phase::Closed { .. } => Ok(()),
            Phase::Resigned { .. } => Err(ReplicaError::HandingOver),
            _ => Err(ReplicaError::Opening),
        }
    }

    fn check_lead(&self, now: Ticks) -> Result<&Leader, ReplicaError> {
        match &self.role {
            Role::Leader(_) if now >= self.base.lease_until => Err(ReplicaError::LeaseOver),
            Role::Leader(leader) => Ok(leader),
            Role::Failed => Err(ReplicaError::Failed),
            _ => Err(ReplicaError::NotLeader { leader: self.base.membership.as_ref().and_then(|m| m.leader) }),
        }
    }

    /// Takes one event; `out` gets the effects, in order; they are carried out before the next event. Log lines have the names of `nodes`.
    pub fn step(&mut self, now: Ticks, (log, nodes): (&dyn LogView, &[ClusterNode]), event: Event, out: &mut Vec<Effect>) {
        let mut cx = Cx { now, log, nodes, out };
        self.take(&mut cx, event);
        self.mend(&mut cx);
        if let Role::Follower(f) = &self.role {
            debug_assert_eq!(f.state(), self.base.state);
        }
        if let Role::Leader(l) = &self.role {
            debug_assert_eq!(l.state(), self.base.state);
        }
    }

    fn take(&mut self, cx: &mut Cx<'_>, event: Event) {
        let base = &mut self.base;
        match event {
            Event::Metadata(membership) => return self.on_metadata(cx, membership),
            Event::LogFailed => return self.on_log_failed(cx),
            Event::Message { from, message } => return self.on_message(cx, from, message),
            Event::Lease { until } => base.lease_until = until,
            Event::EpochDurable { epoch } => base.promise_durable = base.promise_durable.max(epoch),
            Event::Truncated => {
                base.truncations = base.truncations.saturating_sub(1);
                base.taken = cx.log.end();
            }
            Event::Mended { is_whole } => self.mender.on_mended(is_whole),
            Event::Tick if self.release_at.is_some_and(|at| cx.now >= at) => self.release(cx),
            Event::Tick if self.ask_at.is_some_and(|at| cx.now >= at) => self.ask_epoch(cx),
            _ => {}
        }
        let base = &mut self.base;
        match (&mut self.role, event) {
            (Role::Leader(l), Event::Tick) => l.tick(base, cx),
            (Role::Leader(l), Event::ProposalRefused { version }) => l.on_proposal_refused(base, cx, version),
            (Role::Leader(l), Event::Connected { node } | Event::Disconnected { node }) => l.on_connected(cx, node),
            (Role::Leader(l), Event::Down { node }) => l.on_down(base, cx, node),
            (Role::Leader(l), Event::Sealed) => l.on_sealed(base, cx),
            (Role::Leader(l), Event::Durable | Event::EpochDurable { .. }) => l.go_on(base, cx),
            (Role::Leader(l), Event::Truncated) => l.on_truncated(base, cx),
            (Role::Leader(l), Event::LogRead { to, session, from, end, result }) => {
                l.on_read(base, cx, (to, session), (from, end), result);
            }
            (Role::Leader(l), Event::AcceptLoss { from }) => l.accept_loss(base, cx, from),
            (Role::Leader(l), Event::Cursor(event)) => l.on_cursor(base, cx, event),
            (Role::Follower(f), Event::Durable | Event::EpochDurable { .. }) => f.go_on(base, cx),
            (Role::Follower(f), Event::Truncated) => f.on_truncated(base, cx),
            (Role::Follower(f), Event::LogRead { to, session, from, result, .. }) => f.on_read(cx, to, session, from, result),
            (Role::Follower(f), Event::Cursor(CursorEvent::Applied { number })) => f.on_applied(base, cx, number),
            (_, Event::Cursor(CursorEvent::Sync { request, .. } | CursorEvent::Delete { request, .. })) => {
                let error = self.check_write(cx.now).err().unwrap_or(ReplicaError::Opening);
                cx.out.push(Effect::CursorDone { request, result: Err(error) });
            }
            _ => {}
        }
    }

    /// True if the event may end the epoch that this node leads in. Everything taken in the epoch must be in the log before the event
    /// is given: a publish that is in no batch yet would count as not stored.
    pub fn may_end_leading(&self, event: &Event) -> bool {
        let Role::Leader(leader) = &self.role else { return false };
        match event {
            Event::Metadata(_) | Event::LogFailed => true,
            // The leader's reaction may be its last message.
            Event::Tick => matches!(leader.phase, Phase::Open) && leader.wanted(&self.base).is_some(),
            Event::Message { message, .. } => epoch_in(message) > leader.epoch,
            _ => false,
        }
    }

    /// Stops leading at once when a message shows a higher epoch, promised by a replica or led in, whatever the lease says. The replica
    /// leads again only in an epoch above that one.
    fn hear_epoch(&mut self, cx: &mut Cx<'_>, message: &Message) {
        let heard = epoch_in(message);
        if let Role::Leader(leader) = &self.role
            && heard > leader.epoch
        {
            let (epoch, next) = (leader.epoch.number(), heard.number());
            match leader.phase {
                Phase::Resigned { .. } => replica_log!(info, self.base, epoch, next, "the next leader is there"),
                _ => replica_log!(warn, self.base, epoch, heard = next, "a higher epoch exists: this node stops leading"),
            }
            self.base.heard = self.base.heard.max(heard);
            cx.out.push(Effect::Refresh);
            self.follow(cx, heard, None);
            self.ask_epoch(cx);
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: NodeId, message: Message) {
        self.hear_epoch(cx, &message);
        let base = &mut self.base;
        let is_question = matches!(message.body, Body::Inquire(_) | Body::Append(_));
        match &mut self.role {
            Role::Follower(f) if self.mender.waits_for(from) && f.is_in_step_with(from, message.head) => match message.body {
                Body::Pulled(pulled) => self.mender.on_pulled(base, cx, from, pulled),
                // No batch begins there in the leader's log.
                Body::Refused(PeerError::OutOfReach) => f.disagree(base, cx, PeerError::NotAligned),
                _ => f.on_message(base, cx, from, message),
            },
            Role::Leader(l) if self.mender.waits_for(from) && l.is_session(from, message.head) => match message.body {
                Body::Pulled(pulled) => self.mender.on_pulled(base, cx, from, pulled),
                _ => l.on_message(base, cx, from, message),
            },
            Role::Follower(f) => f.on_message(base, cx, from, message),
            Role::Leader(l) if !matches!(message.body, Body::Inquire(_)) => l.on_message(base, cx, from, message),
            Role::Leader(_) | Role::Idle => {
                // By the metadata here the sender does not lead: one of the two is behind.
                if is_question {
                    cx.out.push(Effect::Refresh);
                    let fence = base.fence();
                    let error = if message.head.epoch < fence {
                        PeerError::StaleEpoch { promised: fence }
                    } else if matches!(self.role, Role::Idle) {
                        PeerError::NotMember
                    } else {
                        PeerError::ForeignLeader
                    };
                    cx.refuse(from, message.head, error);
                }
            }
            Role::Failed if is_question => cx.refuse(from, message.head, PeerError::Failed),
            Role::Failed => {}
        }
    }

    /// Requests damaged batches from a replica that has them.
    fn mend(&mut self, cx: &mut Cx<'_>) {
        match &self.role {
            Role::Leader(l) if l.has_followers() => self.mender.ask(&self.base, cx, |tries, to| l.mend_source(tries, to)),
            Role::Follower(f) => match f.mend_source() {
                Some(source) => self.mender.ask(&self.base, cx, |_, _| Some(source)),
                None => self.mender.rest(),
            },
            _ => self.mender.rest(),
        }
    }

    fn on_metadata(&mut self, cx: &mut Cx<'_>, membership: Membership) {
        self.take_metadata(cx, membership);
        self.release(cx);
    }

    /// Tells as a former leader that this replica serves nothing more, and repeats that until the metadata has it.
    fn release(&mut self, cx: &mut Cx<'_>) {
        let is_former = self.base.membership.as_ref().is_some_and(|m| m.former == Some(self.base.me));
        let is_due = is_former && !matches!(self.role, Role::Leader(_));
        self.release_at = is_due.then_some(cx.now + self.base.options.retry);
        if is_due {
            cx.out.push(Effect::Release);
        }
    }

    fn take_metadata(&mut self, cx: &mut Cx<'_>, membership: Membership) {
        let base = &mut self.base;
        let is_old = base.membership.as_ref().is_some_and(|m| m.version >= membership.version);
        if is_old || !membership.is_sane() {
            return;
        }
        let (epoch, leader, mine) = (membership.epoch, membership.leader, membership.is_replica(base.me));
        base.membership = Some(membership);
        self.ask_at = None;
        if matches!(self.role, Role::Failed) {
            return;
        }
        if !mine {
            self.step_down(cx);
            if !matches!(self.role, Role::Idle) {
                self.base.go(Trigger::Dropped);
                self.role = Role::Idle;
            }
        } else if leader == Some(self.base.me) {
            self.lead(cx, epoch);
        } else {
            self.follow(cx, epoch, leader);
        }
    }

    fn lead(&mut self, cx: &mut Cx<'_>, epoch: Epoch) {
        let base = &mut self.base;
        // The first epoch that this life hears of may have been opened in an earlier one: damage may have taken the promise, and the last
        // write of a journal can be lost without a trace.
        let may_have_opened = self.is_recovered && matches!(self.role, Role::Idle);
        if may_have_opened {
            base.promise(epoch, cx.out);
        }
        match &mut self.role {
            Role::Leader(l) if l.epoch >= epoch => l.on_membership(base, cx),
            _ if epoch > base.promised.max(base.heard) => {
                // This epoch decides the writes that the last one left open.
                if let Role::Leader(l) = &mut self.role
                    && !matches!(l.phase, Phase::Closed { .. })
                {
                    l.close(base, cx, ReplicaError::OutcomeUnknown);
                }
                base.go(Trigger::ToLead);
                base.promise(epoch, cx.out);
                let mut leader = Box::new(Leader::new(epoch, cx.now));
                if let Role::Leader(before) = &self.role {
                    leader.missing = before.missing;
                }
                leader.on_membership(base, cx);
                leader.go_on(base, cx);
                self.role = Role::Leader(leader);
            }
            _ => {
                // It was opened before, perhaps by this node in an earlier life, or a higher one was heard of: nothing may be written
                // in it again.
                self.follow(cx, epoch, None);
                self.ask_epoch(cx);
            }
        }
    }

    fn ask_epoch(&mut self, cx: &mut Cx<'_>) {
        self.ask_at = Some(cx.now + self.base.options.follower_limit);
        cx.out.push(Effect::AskEpoch { above: self.base.fence().max(self.base.heard) });
    }

    fn follow(&mut self, cx: &mut Cx<'_>, epoch: Epoch, leader: Option<NodeId>) {
        if let Role::Follower(f) = &self.role {
            let is_same = f.leader().is_none_or(|l| Some(l) == leader && f.epoch() >= epoch);
            if is_same {
                return;
            }
        }
        self.step_down(cx);
        self.base.hands_over_until = None;
        self.base.go(Trigger::ToFollow);
        let mut follower = Box::new(Follower::new());
        if let Role::Follower(old) = &mut self.role {
            follower.cursors = std::mem::take(&mut old.cursors);
            follower.cursors.begin();
        }
        self.role = Role::Follower(follower);
    }

    /// The leader leads no longer: waiting clients get an error.
    fn step_down(&mut self, cx: &mut Cx<'_>) {
        let leader = self.base.membership.as_ref().and_then(|m| m.leader);
        if let Role::Leader(l) = &mut self.role {
            let issued = self.base.committed.offset < cx.log.end().at.offset;
            let error = if issued { ReplicaError::OutcomeUnknown } else { ReplicaError::NotLeader { leader } };
            l.close(&self.base, cx, error);
            // Batches that it got as a follower, or fetched, may wait for room in the store: they still come before anything else.
            let end = cx.log.end();
            if end.at.offset >= self.base.taken.at.offset {
                self.base.taken = end;
            }
        }
    }

    fn on_log_failed(&mut self, cx: &mut Cx<'_>) {
        if matches!(self.role, Role::Failed) {
            return;
        }
        if matches!(self.role, Role::Leader(_)) {
            self.step_down(cx);
            cx.out.push(Effect::Resign { to: None });
        }
        self.base.go(Trigger::LogBroke);
        self.role = Role::Failed;
    }

    /// Time at which [`Event::Tick`] next has work.
    pub fn deadline(&self) -> Option<Ticks> {
        let role = if let Role::Leader(l) = &self.role { l.deadline(&self.base) } else { None };
        role.into_iter().chain(self.ask_at).chain(self.release_at).chain(self.mender.deadline()).min()
    }

    #[cfg(test)]
    pub(super) fn take_trace(&mut self) -> Vec<(State, Trigger, State)> {
        std::mem::take(&mut self.base.trace)
    }
}
