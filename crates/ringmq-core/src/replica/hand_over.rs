//! A leader that is asked to hand over (`wanted` in the metadata), without a publish whose outcome is unknown.
//!
//! ```text
//! Open ── wanted is in step ──> Quiescing: new publishes wait, reads go on
//!                                  │  everything taken is committed, no operation of a channel is open
//!                                  │  the wanted leader gets the channels as they are now, and confirms them
//!   <── not done in time, or no ───┤
//!       longer wanted              v
//!                               Resigned: nothing is read or written; the store is asked to name the wanted one, again and again
//!                                  │
//!                                  v  metadata: another leads; or this one, in another epoch
//! ```
//! A resigned leader never opens again in its epoch: the store may have named the other leader already. When the store does not answer
//! for long, it asks for a new epoch of its own; that compare-and-swap excludes the resignation. FINs after the last message about the
//! channels are not passed on: these messages are redelivered.

use super::base::{Base, Cx, replica_log};
use super::error::ReplicaError;
use super::event::{Channels, Effect};
use super::leader::{Leader, Phase};
use super::peer::PeerPhase;
use super::states::Trigger;
use crate::base::{NodeId, Ticks};
use crate::codec::peer::message::Session;
use std::time::Duration;

/// Progress of a quiescing leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Round {
    Committing,
    /// The wanted one is being told the channels, in this session.
    Telling {
        session: Session,
    },
    /// The round was told under this number.
    Told {
        session: Session,
        seq: u64,
    },
}

impl Leader {
    /// Node to which this leader is to hand over.
    pub fn wanted(&self, base: &Base) -> Option<NodeId> {
        let membership = base.membership.as_ref()?;
        membership.wanted.filter(|to| *to != base.me && membership.is_in_sync(*to))
    }

    /// Begins to hand over, when the wanted one is in step. All that was taken is in the log.
    pub fn look_at_wanted(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        let Some(to) = self.wanted(base).filter(|_| matches!(self.phase, Phase::Open) && cx.now >= self.hand_over_at) else {
            return;
        };
        self.hand_over_at = cx.now + base.options.retry;
        let in_step = |p: &&super::peer::Peer| p.node == to && p.link == PeerPhase::Live && p.cursors.is_complete();
        if self.peers.iter().any(|p| in_step(&p)) && self.may_write(base).is_ok() {
            replica_log!(info, base, to = cx.name_of(to), "handing over: publishes wait");
            self.phase = Phase::Quiescing { to, until: cx.now + base.options.follower_limit / 2, round: Round::Committing };
            base.go(Trigger::AskedToHandOver);
            self.quiesce(base, cx);
        }
    }

    /// Goes a step further, when the one before is done.
    pub fn quiesce(&mut self, base: &mut Base, cx: &mut Cx<'_>) {
        let Phase::Quiescing { to, until, round } = self.phase else { return };
        if self.wanted(base) != Some(to) || cx.now >= until {
            return self.keep_on(base, cx);
        }
        let is_committed = base.committed.offset >= cx.log.end().at.offset && cx.log.durable().at == cx.log.end().at;
        let Some(peer) = self.peers.iter().find(|p| p.node == to && p.is_streaming()) else {
            return self.phase = Phase::Quiescing { to, until, round: Round::Committing };
        };
        let session = peer.session;
        let is_stale = match round {
            Round::Committing => true,
            Round::Telling { session: of } | Round::Told { session: of, .. } => of != session,
        };
        if is_stale {
            let is_ready = is_committed && self.cursors.is_quiet();
            let round = if is_ready { Round::Telling { session } } else { Round::Committing };
            self.phase = Phase::Quiescing { to, until, round };
            if is_ready {
                cx.out.push(Effect::CollectCursors { to, session, channels: Channels::All });
            }
        }
    }

    /// The channels went out to a follower under this number.
    pub fn channels_told(&mut self, node: NodeId, of: Session, number: u64) {
        if let Phase::Quiescing { to, round: round @ Round::Telling { .. }, .. } = &mut self.phase
            && (*to, *round) == (node, Round::Telling { session: of })
        {
            *round = Round::Told { session: of, seq: number };
        }
    }

    /// A follower has answered the channels of this number.
    pub fn channels_confirmed(
        &mut self,
        base: &mut Base,
        cx: &mut Cx<'_>,
        node: NodeId,
        (of, number): (Session, u64),
        is_ok: bool,
    ) {
        let Phase::Quiescing { to, round: Round::Told { session, seq }, until } = self.phase else { return };
        if (to, session, seq) != (node, of, number) {
            return;
        }
        if is_ok {
            return self.resign(base, cx, Some(to), base.options.write_limit);
        }
        self.phase = Phase::Quiescing { to, until, round: Round::Committing };
    }

    /// Ends writing in this epoch.
    pub fn close(&mut self, base: &Base, cx: &mut Cx<'_>, error: ReplicaError) {
        let (epoch, committed) = (self.epoch.number(), base.committed.offset);
        let is_opening = matches!(self.phase, Phase::Claiming | Phase::Asking | Phase::Trimming { .. } | Phase::Fetching { .. });
        // Nothing was taken in this epoch; or another node leads, or the topic is deleted.
        if is_opening || matches!(error, ReplicaError::NotLeader { .. }) {
            replica_log!(info, base, epoch, committed, "this node stops leading");
        } else {
            replica_log!(warn, base, epoch, committed, %error, "writes are disabled");
        }
        cx.out.push(Effect::Closed { error });
        self.cursors.fail_all(cx, error);
    }

    /// Ends a hand-over that no replica takes: this leader goes on, and tries again later.
    fn keep_on(&mut self, base: &mut Base, cx: &Cx<'_>) {
        replica_log!(info, base, "the hand-over is postponed: publishes go on");
        self.hand_over_at = cx.now + base.options.follower_limit;
        self.phase = Phase::Open;
        base.go(Trigger::KeptOn);
    }

    /// Serves nothing any more, and asks for another leader; for an epoch of its own when none is named for so long.
    pub fn resign(&mut self, base: &mut Base, cx: &mut Cx<'_>, to: Option<NodeId>, patience: Duration) {
        let (again_at, ask_at) = (cx.now + base.options.retry, cx.now + patience);
        self.phase = Phase::Resigned { to, again_at, ask_at };
        base.go(Trigger::HandedOver);
        self.cursors.fail_all(cx, ReplicaError::HandingOver);
        cx.out.push(Effect::Resign { to });
    }

    pub fn resigned_tick(&mut self, base: &Base, cx: &mut Cx<'_>) {
        let Phase::Resigned { to, again_at, ask_at } = self.phase else { return };
        let options = &base.options;
        if cx.now >= ask_at {
            self.phase = Phase::Resigned { to, again_at: Ticks(u64::MAX), ask_at: cx.now + options.follower_limit };
            cx.out.push(Effect::AskEpoch { above: base.fence() });
        } else if cx.now >= again_at {
            self.phase = Phase::Resigned { to, again_at: cx.now + options.retry, ask_at };
            cx.out.push(Effect::Resign { to });
        }
    }
}
