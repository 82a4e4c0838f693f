//! A replica that follows: it promises, reports its ends, is truncated to the common prefix with its leader, and appends the leader's
//! batches.
//!
//! It accepts a leader that its own metadata names, in an epoch not below its promise. After a batch that does not continue its log it
//! refuses everything until the next session, in which the logs are compared again.

use super::base::{Base, Cx, replica_log};
use super::cursors::FollowerCursors;
use super::event::{Alarm, Effect};
use super::prefix::take_run;
use super::states::{State, Trigger};
use crate::base::NodeId;
use crate::base::{Epoch, Position};
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Ack, Align, Aligned, Append, Body, Head, Message, Pull, Pulled, Session, Standing};
use bytes::Bytes;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// `stood`: this session has heard where the log ends.
    Apart {
        stood: bool,
    },
    Promising,
    /// The crc that the leader's header before the truncation has, where it said so.
    Truncating {
        chain_crc: Option<u32>,
    },
    Aligned,
}

#[derive(Debug)]
pub(super) struct Follower {
    /// Leader of the session.
    leader: Option<NodeId>,
    head: Head,
    phase: Phase,
    /// Committed end that this session's leader told.
    told: Option<Position>,
    acked: Position,
    /// True if this replica stays out because it has given-up data: once the leader orders its log, it begins anew.
    is_given_up: bool,
    pub cursors: FollowerCursors,
}

impl Follower {
    pub fn new() -> Self {
        Follower {
            leader: None,
            head: Head { epoch: Epoch(0), session: Session(0) },
            phase: Phase::Apart { stood: false },
            told: None,
            acked: Position::START,
            is_given_up: false,
            cursors: FollowerCursors::default(),
        }
    }

    pub fn state(&self) -> State {
        match self.phase {
            Phase::Apart { .. } => State::Apart,
            Phase::Promising => State::Promising,
            Phase::Truncating { .. } => State::Truncating,
            Phase::Aligned => State::Aligned,
        }
    }

    pub fn on_message(&mut self, base: &mut Base, cx: &mut Cx<'_>, from: NodeId, message: Message) {
        let head = message.head;
        if let Body::Inquire(inquire) = &message.body {
            let behind = base.membership.as_ref().is_none_or(|m| m.version < inquire.membership_version);
            if behind {
                cx.out.push(Effect::Refresh);
            }
            match self.may_lead(base, from, head) {
                Ok(()) => self.begin(base, cx, from, head),
                Err(error) => cx.refuse(from, head, error),
            }
            return;
        }
        if head != self.head || self.leader != Some(from) {
            // The message is of another session. Only a leader of an older epoch is answered.
            if head.epoch < base.fence() && matches!(message.body, Body::Append(_) | Body::Align(_)) {
                cx.refuse(from, head, PeerError::StaleEpoch { promised: base.fence() });
            }
            return;
        }
        match message.body {
            Body::EpochsAsk(ask) if self.has_stood() => {
                cx.send(from, head, Body::Standing(self.standing(base, cx, Some(ask.below))));
            }
            Body::Pull(pull) if self.has_stood() || self.phase == Phase::Aligned => self.on_pull(cx, from, pull),
            Body::Align(align) if self.has_stood() => self.on_align(base, cx, align),
            Body::Append(append) if self.phase == Phase::Aligned => self.on_append(base, cx, append),
            Body::Cursors(cursors) if self.phase == Phase::Aligned => {
                if let Err(error) = self.cursors.on_cursors(cx, from, head, cursors) {
                    self.disagree(base, cx, error);
                }
            }
            _ => {}
        }
    }

    fn has_stood(&self) -> bool {
        self.phase == Phase::Apart { stood: true }
    }

    fn may_lead(&self, base: &Base, from: NodeId, head: Head) -> Result<(), PeerError> {
        let membership = base.membership.as_ref().ok_or(PeerError::UnknownPartition)?;
        if head.epoch < base.fence() {
            return Err(PeerError::StaleEpoch { promised: base.fence() });
        }
        if !membership.is_replica(base.me) {
            return Err(PeerError::NotMember);
        }
        if membership.leader != Some(from) { Err(PeerError::ForeignLeader) } else { Ok(()) }
    }

    fn begin(&mut self, base: &mut Base, cx: &mut Cx<'_>, from: NodeId, head: Head) {
        let is_old = self.leader == Some(from) && head.epoch == self.head.epoch && head.session <= self.head.session;
        if is_old || head.epoch < self.head.epoch {
            return;
        }
        (self.leader, self.head, self.told) = (Some(from), head, None);
        self.phase = Phase::Promising;
        base.go(Trigger::Inquired);
        self.cursors.begin();
        base.promise(head.epoch, cx.out);
        self.go_on(base, cx);
    }

    /// Continues after some of the log became durable.
    pub fn go_on(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Promising if base.is_settled(cx.log) => {
                base.taken = cx.log.end();
                self.phase = Phase::Apart { stood: true };
                base.go(Trigger::Stood);
                self.is_given_up = base.has_given_up(cx.log);
                if let Some(leader) = self.leader {
                    cx.send(leader, self.head, Body::Standing(self.standing(base, cx, None)));
                }
            }
            Phase::Aligned => {
                let durable = cx.log.durable().at;
                if durable.offset > self.acked.offset {
                    self.ack(cx, durable);
                }
                self.follow_committed(base, cx);
            }
            _ => {}
        }
    }

    /// The reply to an inquiry. Given-up data does not count as committed any more, also where this log begins behind the leader's end.
    fn standing(&self, base: &Base, cx: &Cx<'_>, below: Option<Epoch>) -> Standing {
        let mut standing = base.standing(cx.log, below);
        if self.is_given_up {
            standing.committed = Position::START;
        }
        standing
    }

    fn ack(&mut self, cx: &mut Cx<'_>, durable: Position) {
        self.acked = durable;
        if let Some(leader) = self.leader {
            cx.send(leader, self.head, Body::Ack(Ack { durable }));
        }
    }

    fn follow_committed(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        let Some(told) = self.told else { return };
        let durable = cx.log.durable().at;
        let end = if told.offset < durable.offset { told } else { durable };
        if base.remembers_given_up(self.head.epoch, told) {
            // No replica has that data any more, and a later opening would ask for it.
            base.committed = end;
            cx.out.push(Effect::GaveUp { committed: end });
        }
        base.commit(end, cx.out);
        self.cursors.on_end(cx, end);
        // It was compared, and has all that is committed, and the channels.
        if cx.log.doubt().is_suspect()
            && self.cursors.has_list()
            && durable.offset >= told.offset
            && cx.log.vouched() == cx.log.end().at
        {
            base.hand_overs = 0;
            cx.out.push(Effect::Cleared);
        }
    }

    fn on_align(&mut self, base: &mut Base, cx: &mut Cx<'_>, align: Align) {
        let end = cx.log.end();
        let goes_on = matches!(align, Align::Truncate { at, .. } if at.offset >= end.at.offset);
        if self.is_given_up && !goes_on {
            return self.begin_anew(base, cx, align);
        }
        let (to, floor) = match align {
            Align::Truncate { at, .. } => (at, base.truncation_floor(cx.log)),
            Align::Restart { start, .. } => (start, base.truncation_floor(cx.log)),
        };
        if to.offset < floor {
            cx.out.push(Effect::Alarm(Alarm::BelowCommitted { committed: base.committed }));
            return self.disagree(base, cx, PeerError::BelowCommitted { committed: base.committed });
        }
        if to.offset < base.committed.offset && to.offset < end.at.offset {
            // The replica's channels are truncated, too: it must not give them to another replica before it has the leader's.
            cx.out.push(Effect::Doubted);
        }
        match align {
            Align::Truncate { at, .. } if at.offset > end.at.offset => self.disagree(base, cx, PeerError::Gap { end: end.at }),
            Align::Truncate { at, chain_crc } if at == end.at => self.in_step(base, cx, chain_crc),
            Align::Truncate { at, chain_crc } => {
                self.phase = Phase::Truncating { chain_crc };
                base.go(Trigger::OrderedToTruncate);
                base.truncate(at, cx.out);
            }
            Align::Restart { start, chain_crc } => {
                self.phase = Phase::Truncating { chain_crc: Some(chain_crc) };
                base.go(Trigger::OrderedToTruncate);
                base.restart(start, chain_crc, cx.out);
            }
        }
    }

    /// Drops the whole copy of the log, and the producers that were counted from it.
    fn begin_anew(&mut self, base: &mut Base, cx: &mut Cx<'_>, align: Align) {
        let (start, chain_crc) = match align {
            // The logs are the same up to there, so also where this one begins.
            Align::Truncate { .. } => cx.log.start(),
            Align::Restart { start, chain_crc } => (start, chain_crc),
        };
        let (committed, end) = (base.committed.offset, cx.log.end().at.offset);
        replica_log!(warn, base, committed, end, "an operator gave up this replica's data: the replica begins anew");
        self.is_given_up = false;
        base.committed = start;
        cx.out.extend([Effect::GaveUp { committed: start }, Effect::Doubted]);
        self.phase = Phase::Truncating { chain_crc: Some(chain_crc) };
        base.go(Trigger::OrderedToTruncate);
        base.restart(start, chain_crc, cx.out);
    }

    pub fn on_truncated(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Truncating { chain_crc } => self.in_step(base, cx, chain_crc),
            _ => self.go_on(base, cx),
        }
    }

    /// The log ends where both are the same.
    fn in_step(&mut self, base: &mut Base, cx: &mut Cx<'_>, chain_crc: Option<u32>) {
        let end = cx.log.end();
        if chain_crc.is_some_and(|crc| crc != end.chain_crc) {
            return self.disagree(base, cx, PeerError::Diverged { offset: end.at.offset });
        }
        base.taken = end;
        self.acked = end.at;
        self.cursors.align(if base.committed.offset < end.at.offset { base.committed } else { end.at });
        let was_truncated = matches!(self.phase, Phase::Truncating { .. });
        base.go(if was_truncated { Trigger::Truncated } else { Trigger::OrderedInStep });
        self.phase = Phase::Aligned;
        if let Some(leader) = self.leader {
            cx.send(leader, self.head, Body::Aligned(Aligned { at: end.at }));
        }
    }

    fn on_append(&mut self, base: &mut Base, cx: &mut Cx<'_>, append: Append) {
        let in_file = cx.log.end().at.offset;
        match take_run(base.route, self.head.epoch, cx.log, &mut base.taken, &append.batches, append.committed, cx.out) {
            Ok(took) => {
                if self.told.is_none_or(|t| t.offset < append.committed.offset) {
                    self.told = Some(append.committed);
                }
                self.follow_committed(base, cx);
                if !took {
                    // A repeat, or a question: nothing will become durable that would answer it.
                    self.ack(cx, cx.log.durable().at);
                }
            }
            // The repeated batches wait for room in the store: their durable end will answer the leader.
            Err(PeerError::NotAligned) if in_file < base.taken.at.offset => {}
            Err(error) => self.disagree(base, cx, error),
        }
    }

    /// True if its log is a prefix of this leader's.
    pub fn is_in_step_with(&self, leader: NodeId, head: Head) -> bool {
        self.phase == Phase::Aligned && self.leader == Some(leader) && self.head == head
    }

    /// Replica that has the bytes that damage takes here.
    pub fn mend_source(&self) -> Option<(NodeId, Head)> {
        self.leader.filter(|_| self.phase == Phase::Aligned).map(|leader| (leader, self.head))
    }

    pub fn disagree(&mut self, base: &mut Base, cx: &mut Cx<'_>, error: PeerError) {
        if !matches!(self.phase, Phase::Apart { .. }) {
            base.go(Trigger::Disagreed);
        }
        self.phase = Phase::Apart { stood: false };
        if let Some(leader) = self.leader {
            cx.refuse(leader, self.head, error);
        }
    }

    fn on_pull(&mut self, cx: &mut Cx<'_>, from: NodeId, pull: Pull) {
        let bytes_max = (pull.bytes_max as usize).min(crate::codec::peer::message::APPEND_BYTES_MAX);
        cx.out.push(Effect::ReadLog { to: from, session: self.head.session, from: pull.from, bytes_max });
    }

    pub fn on_read(
        &mut self,
        cx: &mut Cx<'_>,
        to: NodeId,
        session: Session,
        from: Position,
        read: Result<Vec<Bytes>, PeerError>,
    ) {
        let is_aligned = self.phase == Phase::Aligned;
        if self.leader != Some(to) || self.head.session != session || !(is_aligned || self.has_stood()) {
            return;
        }
        let pulled = |batches| Body::Pulled(Pulled { from, batches: crate::codec::peer::message::Batches::new(batches) });
        let body = match read {
            Ok(batches) => pulled(batches),
            // The leader mends its own log, and finds another one that has it.
            Err(_) if is_aligned => pulled(vec![]),
            Err(error) => Body::Refused(error),
        };
        cx.send(to, self.head, body);
    }

    /// Answers the leader's waiting messages, as far as possible.
    pub fn on_applied(&mut self, base: &mut Base, cx: &mut Cx<'_>, number: u64) {
        if let Some(leader) = self.leader {
            self.cursors.on_applied(cx, leader, self.head, number);
        }
        if self.phase == Phase::Aligned {
            self.follow_committed(base, cx);
        }
    }

    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    pub fn epoch(&self) -> Epoch {
        self.head.epoch
    }
}
