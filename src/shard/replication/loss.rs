//! An operator lets go of what cannot be had: the leader says what that is, and takes only the one who repeats it.

use super::Engine;
use super::roles::role_of;
use crate::base::{Now, PartitionDir, PartitionId, TopicRef};
use crate::replica::states::State;
use crate::replica::{Event, Loss, LossKind};
use crate::shard::message::AcceptLossError;
use crate::shard::partitions::Role;

impl Engine {
    /// `loss`: as the refusal named it. What is lost by it.
    pub(in crate::shard) fn accept_loss(
        &mut self,
        now: Now,
        topic: &TopicRef,
        partition: PartitionId,
        loss: Option<&str>,
    ) -> Result<String, AcceptLossError> {
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
        let idx = self.partitions.find(&dir).ok_or(AcceptLossError::NoReplica)?;
        let p = self.partitions.get_mut(idx);
        let Role::Member(seat) = &mut p.replica else { return Err(AcceptLossError::NoReplica) };
        let state = seat.member.state();
        let leads = matches!(state, State::Settling | State::Open | State::Closed);
        let awaited = self.store.log_view(idx).awaited().filter(|_| leads);
        let damage = awaited.map(|(from, to)| Loss { kind: LossKind::Damage, from, to });
        let found = seat.member.loss().or(damage).ok_or(AcceptLossError::Nothing { role: role_of(state) })?;
        if loss != Some(found.name().as_str()) {
            return Err(AcceptLossError::NotNamed { name: found.name(), what: found.to_string() });
        }
        tracing::error!(topic = %topic.name, %partition, loss = found.name(), "an operator accepts a loss: {found}");
        if found.kind == LossKind::Damage {
            seat.given_up = seat.given_up.max(found.to.offset);
            self.store.give_up_lost(idx, seat.given_up);
            self.note_damage(idx);
        } else {
            self.tell_member(now, idx, Event::AcceptLoss { from: found.from });
        }
        Ok(found.to_string())
    }
}
