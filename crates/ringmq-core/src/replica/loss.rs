//! Committed data of another replica that a leader's log lacks: whether the leader accepts that replica's statement, and which of the
//! two logs an operator gives up.

use super::base::{Base, Cx, replica_log};
use super::error::ReplicaError;
use super::event::{Alarm, Effect, LogView, Loss, LossKind};
use super::leader::{Leader, Phase};
use crate::base::{Epoch, NodeId, Position};
use crate::codec::peer::message::Standing;
use crate::format::tail::Tail;
use crate::seam::membership::GivenUp;

/// True if a replica has committed data that is not in this, perhaps longer, log: its committed end lies beyond the end of this log's
/// epochs up to the replica's last one. `settled_on`: the end of this log when the leader's epoch opened, for a log that begins behind
/// all these epochs. Without this check such a replica would be restarted at this log's start, like a replica that is merely behind.
pub(super) fn lacks_committed(log: &dyn LogView, settled_on: Tail, epoch: Epoch, theirs: &Standing) -> bool {
    let has_it = theirs.committed.offset > theirs.start.offset && theirs.committed.offset <= theirs.durable.offset;
    let mut mine = Vec::with_capacity(1);
    log.all_epochs(Some(Epoch(theirs.last_epoch.0.saturating_add(1))), 1, &mut mine);
    let end = mine.first().map(|mine| mine.end).or((theirs.last_epoch < epoch).then_some(settled_on.at));
    has_it && end.is_some_and(|end| theirs.committed.offset > end.offset)
}

impl Leader {
    /// Leaves out a replica outside the ISR whose committed data this log lacks: an operator decides which of the two logs is kept.
    pub fn leaves_out(&mut self, cx: &mut Cx<'_>, node: NodeId, committed: Position) {
        self.stays_out = Some((node, committed));
        cx.out.push(Effect::Alarm(Alarm::StaysOut { node, committed }));
    }

    /// True if an operator accepted a loss in this epoch. A replica then gets this log even if it knows more to be committed: it refuses
    /// to truncate committed data that it still has, and a committed end of data that it lost itself blocks nothing.
    pub fn is_loss_accepted(&self, base: &Base) -> bool {
        self.accepts_loss.is_some() || self.has_told_loss(base)
    }

    /// True if the store has the loss that was accepted in this epoch.
    fn has_told_loss(&self, base: &Base) -> bool {
        base.membership.as_ref().and_then(|m| m.given_up).is_some_and(|loss| loss.epoch >= self.epoch)
    }

    /// Loss that an operator may accept while the leader is open, unless one was accepted in its epoch.
    pub fn open_loss(&self, base: &Base) -> Option<Loss> {
        let is_told = self.has_told_loss(base);
        let (_, committed) =
            self.stays_out.filter(|_| matches!(self.phase, Phase::Open) && self.give_up_at.is_none() && !is_told)?;
        let from = self.settled_on.at;
        let to = if committed.offset > from.offset { committed } else { from };
        Some(Loss { kind: LossKind::StaysOut, from, to })
    }

    /// An operator accepted a loss: tells the store the end of the log with which this epoch opened. The logs of all in-sync replicas
    /// are the same up to there.
    pub fn give_up(&mut self, base: &Base, cx: &mut Cx<'_>) {
        self.give_up_at = Some(cx.now + base.options.retry);
        let Tail { at, epoch: last_epoch, .. } = self.settled_on;
        cx.out.push(Effect::GiveUp { loss: GivenUp { epoch: self.epoch, last_epoch, end: at.offset } });
    }

    /// A replica says that this log lacks committed data. The leader accepts that from a member of the ISR: the member has what this
    /// node lost, so it must stay, the leader takes nothing more, and another epoch decides again. This node is suspect in it, also
    /// after a restart. Returns true if accepted; false where an operator accepted the loss.
    pub fn contradicts(&mut self, base: &mut Base, cx: &mut Cx<'_>, node: NodeId, alarm: Alarm) -> bool {
        let (Alarm::CommittedMissing { committed } | Alarm::BelowCommitted { committed }) = alarm else { return false };
        let in_sync = base.membership.as_ref().is_some_and(|m| m.is_in_sync(node));
        if !in_sync || self.accepts_loss.is_some() || !self.is_settled() {
            return false;
        }
        let limit = base.options.follower_limit;
        if let Some(peer) = self.peer(node) {
            peer.part(cx.now, limit);
        }
        self.missing = self.missing.filter(|(_, m)| m.offset > committed.offset).or(Some((node, committed)));
        replica_log!(
            error,
            base,
            epoch = self.epoch.number(),
            witness = cx.name_of(node),
            committed = committed.offset,
            end = cx.log.end().at.offset,
            "an in-sync replica has committed data that this leader lacks: keep that replica; the leader is elected anew"
        );
        cx.out.extend([Effect::Alarm(alarm), Effect::Doubted]);
        if matches!(self.phase, Phase::Settling { .. }) {
            cx.out.extend([Effect::Resign { to: Some(node) }, Effect::AskEpoch { above: base.fence() }]);
        } else {
            self.close(base, cx, ReplicaError::OutcomeUnknown);
            self.resign(base, cx, Some(node), base.options.retry);
        }
        true
    }
}
