//! Acceptance of a loss by an operator: the leader names the loss, and takes an acceptance only if it repeats that name.

use super::CoreParts;
use super::roles::{note_damage, role_of};
use crate::base::{CoreId, PartitionDir, PartitionId, TopicRef};
use crate::log::{PartitionIdx, RecordTicket, Store};
use crate::replica::states::State;
use crate::replica::{CursorEvent, Event, Loss, LossKind};
use crate::seam::membership::EPOCH_BASE;
use crate::seam::{
    message::{MeshMessage, Ticket},
    outcome::AcceptLossError,
};
use crate::shard::outbox::Outbox;
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

impl Acceptances {
    /// Answers an operator: at once, or when the decision is durable.
    pub(in crate::shard) fn answer(
        &mut self,
        outbox: &mut Outbox,
        from: CoreId,
        ticket: Ticket,
        result: Result<Accepted, AcceptLossError>,
    ) {
        let result = match result {
            Ok(Accepted { what, record: Some(record) }) => return self.0.push_back(Accepting { record, from, ticket, what }),
            Ok(Accepted { what, record: None }) => Ok(what),
            Err(error) => Err(error),
        };
        outbox.pass(from, MeshMessage::LossAccepted { ticket, result });
    }

    /// Records up to here are durable: so are these decisions.
    pub(in crate::shard) fn durable(&mut self, outbox: &mut Outbox, upto: RecordTicket) {
        while let Some(Accepting { from, ticket, what, .. }) = self.0.pop_front_if(|a| a.record <= upto) {
            outbox.pass(from, MeshMessage::LossAccepted { ticket, result: Ok(what) });
        }
    }

    /// The journal has failed: whether the last decisions are kept is not known.
    pub(in crate::shard) fn failed(&mut self, outbox: &mut Outbox) {
        for Accepting { from, ticket, .. } in std::mem::take(&mut self.0) {
            outbox.pass(from, MeshMessage::LossAccepted { ticket, result: Err(AcceptLossError::ReadOnly) });
        }
    }
}

/// Accepts a loss in a partition of this core. `loss`: as the refusal named it.
pub(in crate::shard) fn accept(
    core: &mut CoreParts,
    topic: &TopicRef,
    partition: PartitionId,
    loss: Option<&str>,
) -> Result<Accepted, AcceptLossError> {
    let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
    let idx = core.partitions.find(&dir).ok_or(AcceptLossError::NoReplica)?;
    if core.life.is_read_only() && loss.is_some_and(|loss| loss.starts_with(CHANNELS)) {
        return Err(AcceptLossError::ReadOnly);
    }
    let channels = core.store.channels_lost(idx);
    if channels > 0 && (loss == Some(&channels_name(channels)) || core.partitions.get(idx).seat().is_none()) {
        return accept_channels(core, idx, channels, loss);
    }
    let Some(seat) = core.partitions.get_mut(idx).seat_mut() else {
        return Err(AcceptLossError::Nothing { role: "alone" });
    };
    let state = seat.member.state();
    let leads = matches!(state, State::Settling | State::Open | State::Closed);
    let awaited = core.store.log_view(idx).awaited().filter(|_| leads);
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
        core.store.give_up_lost(idx, seat.given_up);
        note_damage(core, idx);
    } else {
        core.work.tell(idx, Event::AcceptLoss { from: found.from });
    }
    Ok(Accepted { what: found.to_string(), record: None })
}

fn accept_channels(
    core: &mut CoreParts,
    idx: PartitionIdx,
    generation: u64,
    loss: Option<&str>,
) -> Result<Accepted, AcceptLossError> {
    let (name, what) = (channels_name(generation), CHANNELS_LOST.to_string());
    if loss != Some(&name) {
        return Err(AcceptLossError::NotNamed { name, what });
    }
    let p = core.partitions.get_mut(idx);
    tracing::warn!(topic = %p.dir.topic, partition = %p.dir.partition, loss = name, "an operator accepts a loss: {what}");
    let record = core.store.accept_channels_lost(idx);
    p.low_water_stale = true;
    p.update_low_water(idx, &mut core.store);
    if p.seat().is_some_and(|seat| seat.is_leader()) {
        core.work.tell(idx, Event::Cursor(CursorEvent::LossAccepted));
    }
    Ok(Accepted { what, record: Some(record) })
}

/// Text of /stats about lost channels; `None`: none were lost, or the loss was accepted.
pub(in crate::shard) fn channels_lost(store: &Store, idx: PartitionIdx) -> Option<String> {
    let generation = Some(store.channels_lost(idx)).filter(|generation| *generation > 0)?;
    Some(format!("{CHANNELS_LOST}; until POST /replica/acceptloss with loss={}", channels_name(generation)))
}

const CHANNELS_LOST: &str = "damage may have taken channels: new channels begin at the oldest message, and no message is removed";

/// Prefix of the name of a loss of channels.
const CHANNELS: &str = "channels-";

fn channels_name(generation: u64) -> String {
    format!("{CHANNELS}{generation}")
}
