//! A leader opens its epoch before it writes (rule 2): its own promise becomes durable, at least min_isr members of the ISR (itself
//! included) report their ends, and the longest tail is taken and committed under the new epoch.
//!
//! ```text
//! answers                                                action
//! fewer than min_isr ISR members, and not all of them    ask on, and resign now and then: the others may reach each other
//! an in-sync replica that is not suspect,                the highest (last epoch, end) is the log: it has all that an earlier
//! or the whole ISR, which has more than one              epoch can have committed
//! only suspects, and not the whole ISR; or the ISR is    no leader rather than a wrong one: an operator may accept the loss
//! this one of several replicas, and it lost something
//! that was complete once
//! the ISR is this one, and only a torn tail is lost      its log: writes in flight at a crash, or failed ones, were never acknowledged
//! the highest log lacks data known to be committed, or   no leader, as above
//! is this log and differs from such data
//! this one is suspect, and another in-sync one is not;   it resigns, and goes on only if no other takes over for long, or if the
//! or it lost something that was complete once, and all   partition comes back to it again and again
//! others are suspect, too
//! ```
//! Batches that the leader vouched for may turn out damaged when they are read for the others. If no replica has them for as long as a
//! write waits, the leader asks for another epoch, and vouches for less there. So a tail that only this leader had, and that was never
//! told to be committed, is dropped by the rules above, without an operator.
//!
//! A partition with one replica opens in any case: there is no replica to compare with, and its recovery has reported the loss. A tail
//! that no record names as complete is torn, or it was acknowledged last and has rotted since. So it is compared with another in-sync
//! replica if there is one. Without one, no other replica has it either, and otherwise every crash under a write would wait for an
//! operator. The leader's own log is truncated only where the chosen log differs, under this new epoch, and never below its committed
//! end, except where damage destroyed that already, or where an operator accepted that loss.

use super::base::{Base, Cx, replica_log};
use super::event::{Alarm, Effect, Loss, LossKind};
use super::leader::{Leader, Phase};
use super::peer::PeerPhase;
use super::prefix::{Common, Whose, common, take_run};
use super::states::Trigger;
use crate::base::{NodeId, Position, Ticks};
use crate::codec::peer::message::{APPEND_BYTES_MAX, Body, EpochsAsk, Pull, Pulled, Standing};
use crate::format::snapshot::Doubt;

/// Number of times that a replica lets other suspects lead before it leads with the data it has.
const HAND_OVERS_MAX: u32 = 8;
/// The wait for answers doubles so often, at most.
const GIVEN_UP_MAX: u32 = 6;

/// Position where this log differs from a member's log although the member's committed end lies beyond it.
fn contradicted(cx: &Cx<'_>, heard: &[(NodeId, &Standing)]) -> Option<Position> {
    let parts_at = |theirs: &Standing| match common(cx.log, theirs, Whose::Leader) {
        Common::At { at, .. } => Some(at),
        Common::Nothing => Some(cx.log.start().0),
        // Not known before it is aligned.
        Common::Older { .. } => None,
    };
    let parted = heard.iter().filter_map(|(_, s)| Some((parts_at(s)?, s)));
    let is_cut =
        |at: &Position, s: &Standing| s.durable.offset > s.start.offset && at.offset < s.committed.offset.min(s.durable.offset);
    parted.filter(|(at, s)| is_cut(at, s)).map(|(at, _)| at).min_by_key(|at| at.offset)
}

impl Leader {
    /// Continues after some of the log became durable.
    pub fn go_on(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Claiming if base.is_settled(cx.log) => {
                base.taken = cx.log.end();
                self.phase = Phase::Asking;
                base.go(Trigger::Stood);
                self.on_membership(base, cx);
                self.tick(base, cx);
            }
            Phase::Asking => self.decide(base, cx),
            Phase::Fetching { end, .. } => {
                if base.taken.at.offset >= end.offset && base.is_settled(cx.log) {
                    self.settle(base, cx, Trigger::Fetched);
                }
            }
            _ => {
                self.commit(base, cx);
                self.pump(base, cx);
            }
        }
    }

    pub fn on_truncated(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        match self.phase {
            Phase::Trimming { source, end } if base.is_settled(cx.log) => self.fetch(base, cx, Trigger::Truncated, source, end),
            _ => self.go_on(base, cx),
        }
    }

    /// Chooses the log to go on with, when enough were heard.
    pub fn decide(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        // A part of a tail whose source was lost may still wait for room in the store.
        if !base.is_settled(cx.log) {
            return;
        }
        let Some(membership) = base.membership.as_ref() else { return };
        let own = base.standing(cx.log, None);
        let isr: Vec<NodeId> = membership.isr.iter().copied().filter(|n| *n != base.me).collect();
        let heard: Vec<(NodeId, &Standing)> = isr
            .iter()
            .filter_map(|n| self.peers.iter().find(|p| p.node == *n))
            .filter_map(|p| Some((p.node, p.standing.as_ref()?)))
            .collect();
        if heard.len() + 1 < membership.opening_quorum() {
            return;
        }
        base.given_up = 0;
        let is_all = heard.len() == isr.len();
        let is_alone = membership.replicas.len() == 1;
        let is_torn_only = cx.log.doubt() == Doubt::Torn && cx.log.vouched() == cx.log.end().at;
        let is_compared_with_all = is_all && (!heard.is_empty() || is_torn_only);
        let compared = !own.suspect || heard.iter().any(|(_, s)| !s.suspect) || is_compared_with_all;
        let rank = |s: &Standing| (s.last_epoch, s.durable.offset);
        let best = heard.iter().copied().max_by_key(|(_, s)| rank(s)).filter(|(_, s)| rank(s) > rank(&own));
        let known = heard
            .iter()
            .map(|(_, s)| s.committed)
            .chain(self.missing.map(|(_, m)| m))
            .chain([own.committed])
            .max_by_key(|c| c.offset)
            .unwrap_or(own.committed);
        let (last_epoch, end) = best.map_or((own.last_epoch, own.durable), |(_, s)| (s.last_epoch, s.durable));
        let accepts_loss = is_alone || self.accepts_loss.is_some_and(|from| end.offset >= from.offset);
        let to = if known.offset > end.offset { known } else { end };
        if !compared && !accepts_loss {
            self.loss = Some(Loss { kind: LossKind::Unknown, from: end, to });
            return self.alarm(cx, Alarm::OnlySuspects);
        }
        if known.offset > end.offset && !accepts_loss {
            self.loss = Some(Loss { kind: LossKind::Tail, from: end, to });
            return self.alarm(cx, Alarm::CommittedMissing { committed: known });
        }
        if best.is_none()
            && !accepts_loss
            && let Some(at) = contradicted(cx, &heard)
        {
            // Long enough, and another replica is there: the one with the committed data should lead.
            self.loss = Some(Loss { kind: LossKind::Tail, from: at, to });
            let to = heard.iter().max_by_key(|(_, s)| s.committed.offset).map(|(node, _)| *node);
            cx.out.push(Effect::Resign { to });
            return self.alarm(cx, Alarm::CommittedMissing { committed: known });
        }
        let sound = heard.iter().copied().filter(|(_, s)| !s.suspect).max_by_key(|(_, s)| rank(s)).map(|(node, _)| node);
        // Most other suspects merely truncated a torn tail, and have all channels. Their answers do not say which of them: a replica
        // that lost more hands over in turn. Damage that is found at run time also destroys the channels' last records, once the log is
        // truncated there.
        let has_lost = cx.log.doubt() == Doubt::Lost || own.durable.offset < own.committed.offset;
        let may_lack_less = has_lost && !heard.is_empty() && self.accepts_loss.is_none();
        if (own.suspect && sound.is_some() || may_lack_less) && self.hands_over(base, cx, sound) {
            return;
        }
        // A single replica keeps the log behind its damage.
        let left = if is_alone { cx.log.durable().at } else { end };
        if base.committed.offset > left.offset {
            // Only if the loss was accepted, or no replica can know better. A startup before the next commit must not ask about it
            // again.
            base.committed = left;
            cx.out.push(Effect::GaveUp { committed: left });
        }
        let Some((source, standing)) = best else {
            if own.durable.offset < cx.log.end().at.offset && !is_alone {
                // Damage destroyed something, and no other replica has it: the log continues from the start of the damage.
                if has_lost {
                    cx.out.push(Effect::Doubted);
                }
                base.truncate(own.durable, cx.out);
                self.phase = Phase::Trimming { source: base.me, end: own.durable };
                return base.go(Trigger::HeardOther);
            }
            return self.settle(base, cx, Trigger::HeardSelf);
        };
        let (epoch, own) = (last_epoch.number(), own.durable.offset);
        replica_log!(info, base, source = cx.name_of(source), epoch, end = end.offset, own, "another replica has a longer log");
        let found = common(cx.log, standing, Whose::Candidate);
        self.go_to(base, cx, source, end, found);
    }

    /// Resigns when too few answer for as long as a write waits and a follower may be silent: the others may reach each other, and one
    /// of them should lead. If too few are alive, no other leader is better, so each wait is twice as long as the one before.
    pub fn look_at_silence(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        if self.gives_up_at(base).is_none_or(|at| cx.now < at) {
            return;
        }
        base.given_up += 1;
        self.asking_since = cx.now;
        replica_log!(warn, base, "too few in-sync replicas answer this node: another one should lead");
        cx.out.push(Effect::Resign { to: None });
    }

    /// `None`: enough have answered.
    pub fn gives_up_at(&self, base: &Base) -> Option<Ticks> {
        let membership = base.membership.as_ref()?;
        let heard = self.peers.iter().filter(|p| p.standing.is_some() && membership.isr.contains(&p.node)).count();
        let patience = (base.options.write_limit + base.options.follower_limit) * (1 << base.given_up.min(GIVEN_UP_MAX));
        (heard + 1 < membership.opening_quorum()).then(|| self.asking_since + patience)
    }

    /// Asks for another leader when this replica is suspect, and waits for one; returns whether it waits. A suspect may have lost more
    /// than its log shows, above all the last state of its channels, which a leader gives to all replicas. It does not wait for ever:
    /// the store may name no other leader, or all replicas may have lost something. `to`: the best of those that lost nothing.
    fn hands_over(&self, base: &mut Base, cx: &mut Cx<'_>, to: Option<NodeId>) -> bool {
        if base.hands_over_until.is_none() {
            if to.is_none() && base.hand_overs >= HAND_OVERS_MAX {
                return false;
            }
            base.hand_overs += 1;
        }
        let patience = base.options.write_limit + base.options.follower_limit;
        let until = *base.hands_over_until.get_or_insert(cx.now + patience);
        if cx.now < until {
            let others = if to.is_some() { "is sound" } else { "may have lost less" };
            replica_log!(warn, base, "this replica lost something, and another in-sync replica {others}: that one should lead");
            cx.out.push(Effect::Resign { to });
        }
        cx.now < until
    }

    /// Makes the own log a prefix of the chosen one, then takes the rest.
    fn go_to(&mut self, base: &mut Base, cx: &mut Cx<'_>, source: NodeId, end: Position, found: Common) {
        let epoch = self.epoch;
        let Some(peer) = self.peers.iter().find(|p| p.node == source) else { return };
        let Some(standing) = &peer.standing else { return };
        let (to, restart) = match found {
            Common::At { at, .. } => (at, None),
            Common::Nothing => (standing.start, Some(standing.start_crc)),
            Common::Older { below } => {
                let head = peer.head(epoch);
                return cx.send(source, head, Body::EpochsAsk(EpochsAsk { below }));
            }
        };
        let is_kept = to.offset < base.truncation_floor(cx.log);
        if is_kept && self.accepts_loss.is_none_or(|from| to.offset < from.offset) {
            self.loss = Some(Loss { kind: LossKind::Tail, from: to, to: base.committed });
            return self.alarm(cx, Alarm::CommittedMissing { committed: base.committed });
        }
        if to.offset < base.committed.offset && to.offset < cx.log.end().at.offset {
            // Until the log is decided it must not give its channels, which are truncated too, to another replica.
            cx.out.push(Effect::Doubted);
        }
        if is_kept {
            base.committed = to;
            cx.out.push(Effect::GaveUp { committed: to });
        }
        match restart {
            Some(crc) => base.restart(to, crc, cx.out),
            None if to.offset < cx.log.end().at.offset => base.truncate(to, cx.out),
            None => return self.fetch(base, cx, Trigger::HeardBetter, source, end),
        }
        self.phase = Phase::Trimming { source, end };
        base.go(Trigger::HeardOther);
    }

    fn alarm(&mut self, cx: &mut Cx<'_>, alarm: Alarm) {
        if self.alarmed != Some(alarm) {
            self.alarmed = Some(alarm);
            cx.out.push(Effect::Alarm(alarm));
        }
    }

    fn fetch(&mut self, base: &mut Base, cx: &mut Cx<'_>, trigger: Trigger, source: NodeId, end: Position) {
        base.taken = cx.log.end();
        base.go(trigger);
        let (retry_at, until) = (cx.now + base.options.retry, cx.now + base.options.follower_limit);
        self.phase = Phase::Fetching { source, end, retry_at, until };
        if base.taken.at.offset >= end.offset {
            return self.settle(base, cx, Trigger::Fetched);
        }
        self.pull(base, cx, source);
    }

    fn pull(&mut self, base: &Base, cx: &mut Cx<'_>, source: NodeId) {
        let epoch = self.epoch;
        let Some(head) = self.peer(source).map(|p| p.head(epoch)) else { return };
        let pull = Pull { from: base.taken.at, bytes_max: APPEND_BYTES_MAX as u32 };
        cx.send(source, head, Body::Pull(pull));
    }

    pub fn on_pulled(&mut self, base: &mut Base, cx: &mut Cx<'_>, from: NodeId, pulled: Pulled) {
        let Phase::Fetching { source, end, .. } = self.phase else { return };
        // The answer is to a repeated request, or to one of another peer.
        if source != from || pulled.from != base.taken.at {
            return;
        }
        match take_run(base.route, self.epoch, cx.log, &mut base.taken, &pulled.batches, Position::START, cx.out) {
            Ok(true) => {
                let (retry_at, until) = (cx.now + base.options.retry, cx.now + base.options.follower_limit);
                self.phase = Phase::Fetching { source, end, retry_at, until };
                if base.taken.at.offset < end.offset {
                    self.pull(base, cx, source);
                }
            }
            Ok(false) => {}
            Err(error) => {
                replica_log!(warn, base, source = cx.name_of(source), %error, "the chosen tail does not continue this log");
                self.source_lost(base, cx, source);
            }
        }
    }

    pub fn fetch_tick(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        let Phase::Fetching { source, end, retry_at, until } = self.phase else { return };
        if base.taken.at.offset >= end.offset {
            // It has all of it, only not durable yet.
            self.phase = Phase::Fetching { source, end, retry_at: cx.now + base.options.retry, until };
        } else if cx.now >= until {
            self.source_lost(base, cx, source);
        } else if cx.now >= retry_at {
            self.phase = Phase::Fetching { source, end, retry_at: cx.now + base.options.retry, until };
            self.pull(base, cx, source);
        }
    }

    /// The chosen member is gone: all members are asked again.
    pub fn source_lost(&mut self, base: &mut Base, cx: &mut Cx<'_>, node: NodeId) {
        if !matches!(self.phase, Phase::Fetching { source, .. } if source == node) {
            return;
        }
        self.phase = Phase::Asking;
        base.go(Trigger::SourceLost);
        self.inquire(base, cx, |_, _| true);
    }

    /// The log is decided: it goes to the followers.
    fn settle(&mut self, base: &mut Base, cx: &mut Cx<'_>, trigger: Trigger) {
        let tail = cx.log.end().at;
        let doubt = cx.log.doubt();
        // Compared, or accepted as it is: another startup that asks for the same decision would ask in vain.
        let is_settled = self.accepts_loss.is_some() || self.peers.iter().any(|p| p.standing.is_some());
        if doubt == Doubt::Torn || doubt == Doubt::Lost && is_settled {
            cx.out.push(Effect::Cleared);
        }
        base.taken = cx.log.end();
        self.settled_on = cx.log.end();
        (self.alarmed, self.loss) = (None, None);
        self.missing.take_if(|_| self.accepts_loss.is_some());
        self.phase = Phase::Settling { tail };
        self.settling_since = cx.now;
        base.go(trigger);
        let asked: Vec<NodeId> = self.peers.iter().filter(|p| p.link == PeerPhase::Asked).map(|p| p.node).collect();
        self.peers.iter_mut().for_each(|p| p.forgive(cx));
        for node in asked {
            self.align(base, cx, node);
        }
        self.commit(base, cx);
    }

    pub fn accept_loss(&mut self, base: &mut Base, cx: &mut Cx<'_>, from: Position) {
        if matches!(self.phase, Phase::Open) {
            return self.give_up(base, cx);
        }
        self.accepts_loss = Some(from);
        if matches!(self.phase, Phase::Asking) {
            self.decide(base, cx);
        }
    }
}
