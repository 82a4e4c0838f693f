//! Acceptance of a loss by an operator: the leader names the loss, and takes an acceptance only if it repeats that name.

use super::Engine;
use super::roles::role_of;
use crate::base::{CoreId, Now, PartitionDir, PartitionId, TopicRef};
use crate::log::{PartitionIdx, RecordTicket};
use crate::replica::states::State;
use crate::replica::{CursorEvent, Event, Loss, LossKind};
use crate::seam::membership::EPOCH_BASE;
use crate::seam::{
    message::{MeshMessage, Ticket},
    outcome::AcceptLossError,
};
use std::collections::VecDeque;

/// Loss that an operator accepted.
pub struct Accepted {
    pub what: String,
    /// The answer waits until this record is durable.
    record: Option<RecordTicket>,
}

/// An answer that waits for its record.
#[derive(Debug)]
struct Accepting {
    record: RecordTicket,
    from: CoreId,
    ticket: Ticket,
    what: String,
}

/// Losses that an operator accepted, in the order of their records.
#[derive(Default)]
pub struct Acceptances(VecDeque<Accepting>);

impl Engine {
    /// `loss`: as the refusal named it. The answer says what is lost by it.
    pub(in crate::shard) fn accept_loss(
        &mut self,
        now: Now,
        from: CoreId,
        ticket: Ticket,
        (topic, partition): (&TopicRef, PartitionId),
        loss: Option<&str>,
    ) {
        let result = match self.begin_acceptance(now, topic, partition, loss) {
            Ok(Accepted { what, record: Some(record) }) => {
                return self.operators.losses.0.push_back(Accepting { record, from, ticket, what });
            }
            Ok(Accepted { what, record: None }) => Ok(what),
            Err(error) => Err(error),
        };
        self.pass(from, MeshMessage::LossAccepted { ticket, result });
    }

    pub(in crate::shard) fn begin_acceptance(
        &mut self,
        now: Now,
        topic: &TopicRef,
        partition: PartitionId,
        loss: Option<&str>,
    ) -> Result<Accepted, AcceptLossError> {
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
        let idx = self.partitions.find(&dir).ok_or(AcceptLossError::NoReplica)?;
        if self.life.is_read_only() && loss.is_some_and(|loss| loss.starts_with(CHANNELS)) {
            return Err(AcceptLossError::ReadOnly);
        }
        let channels = self.store.channels_lost(idx);
        if channels > 0 && (loss == Some(&channels_name(channels)) || self.partitions.get(idx).seat().is_none()) {
            return self.accept_channels(now, idx, channels, loss);
        }
        let p = self.partitions.get_mut(idx);
        let Some(seat) = p.seat_mut() else {
            return Err(AcceptLossError::Nothing { role: "alone" });
        };
        let state = seat.member.state();
        let leads = matches!(state, State::Settling | State::Open | State::Closed);
        let awaited = self.store.log_view(idx).awaited().filter(|_| leads);
        let damage = awaited.map(|(from, to)| Loss { kind: LossKind::Damage, from, to });
        let all = || seat.member.loss().into_iter().chain(damage);
        let named = all().find(|known| loss == Some(known.name().as_str()));
        let found = named.or(all().next()).ok_or(AcceptLossError::Nothing { role: role_of(state) })?;
        if found.kind == LossKind::StaysOut && seat.member.epoch().is_none_or(|epoch| epoch.0 < EPOCH_BASE) {
            return Err(AcceptLossError::ByFile { what: found.to_string() });
        }
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
        Ok(Accepted { what: found.to_string(), record: None })
    }

    fn accept_channels(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        generation: u64,
        loss: Option<&str>,
    ) -> Result<Accepted, AcceptLossError> {
        let (name, what) = (channels_name(generation), CHANNELS_LOST.to_string());
        if loss != Some(&name) {
            return Err(AcceptLossError::NotNamed { name, what });
        }
        let p = self.partitions.get(idx);
        let (dir, leads) = (p.dir.clone(), p.seat().is_some_and(|seat| seat.is_leader()));
        tracing::warn!(topic = %dir.topic, partition = %dir.partition, loss = name, "an operator accepts a loss: {what}");
        let record = self.store.accept_channels_lost(idx);
        self.partitions.get_mut(idx).low_water_stale = true;
        self.channels().update_low_water(idx);
        if leads {
            self.tell_member(now, idx, Event::Cursor(CursorEvent::LossAccepted));
        }
        Ok(Accepted { what, record: Some(record) })
    }

    /// Records up to here are durable: so are these decisions.
    pub(in crate::shard) fn losses_durable(&mut self, upto: RecordTicket) {
        while let Some(Accepting { from, ticket, what, .. }) = self.operators.losses.0.pop_front_if(|a| a.record <= upto) {
            self.pass(from, MeshMessage::LossAccepted { ticket, result: Ok(what) });
        }
    }

    /// The journal has failed: whether the last decisions are kept is not known.
    pub(in crate::shard) fn losses_failed(&mut self) {
        for Accepting { from, ticket, .. } in std::mem::take(&mut self.operators.losses.0) {
            self.pass(from, MeshMessage::LossAccepted { ticket, result: Err(AcceptLossError::ReadOnly) });
        }
    }

    /// Text of /stats about lost channels; `None`: none were lost, or the loss was accepted.
    pub(in crate::shard) fn channels_lost(&self, idx: PartitionIdx) -> Option<String> {
        let generation = Some(self.store.channels_lost(idx)).filter(|generation| *generation > 0)?;
        Some(format!("{CHANNELS_LOST}; until POST /replica/acceptloss with loss={}", channels_name(generation)))
    }
}

const CHANNELS_LOST: &str = "damage may have taken channels: new channels begin at the oldest message, and no message is removed";

/// Prefix of the name of a loss of channels.
const CHANNELS: &str = "channels-";

fn channels_name(generation: u64) -> String {
    format!("{CHANNELS}{generation}")
}
