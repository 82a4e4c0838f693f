//! Makes a channel ordered, or ordinary again, because an operator says so. `SUB_ORDERED` does the former by itself.
//!
//! It is a change of the cursor like others ([`cursors`](super::cursors)): made, journaled, and answered when it is final. What is in
//! flight, waits or is deferred is dropped and comes again. A channel with clients does not become ordinary: those that came by
//! `SUB_ORDERED` would get what they did not ask for.

use super::cursors::CursorChange;
use super::engine::Engine;
use super::partitions::ChannelKey;
use crate::base::{CoreId, Now};
use crate::seam::message::SetOrder;
use crate::seam::{
    message::{MeshMessage, Ticket},
    outcome::SetOffsetError,
};

/// One that waits until another change of the cursor is final.
struct Orderer {
    key: ChannelKey,
    set: SetOrder,
    core: CoreId,
    ticket: Ticket,
}

/// Changes that wait, in the order in which they came.
#[derive(Default)]
pub(super) struct Orders(Vec<Orderer>);

impl Engine {
    pub(super) fn set_order(&mut self, now: Now, set: SetOrder, core: CoreId, ticket: Ticket) {
        let key = match self.may_set_order(now, &set) {
            Ok(key) => key,
            Err(error) => return self.pass(core, MeshMessage::OrderSet { ticket, result: Err(error) }),
        };
        let Some(c) = self.partitions.channel_mut(key) else { return };
        if c.machine.is_syncing() {
            return self.operators.orders.0.push(Orderer { key, set, core, ticket });
        }
        let was = c.machine.is_ordered();
        let mut dropped = vec![];
        c.machine.set_ordered(set.ordered, &mut |sub, num| dropped.push((sub, num)));
        let SetOrder { topic, partition, channel, ordered } = set;
        tracing::info!(topic = %topic.name, %partition, %channel, ordered, "setting the channel's order");
        self.sync_cursor(now, key, CursorChange::Order { core, ticket, was });
        dropped.into_iter().for_each(|(sub, num)| self.on_freed(key, sub, num));
        self.wake_channel(key);
    }

    fn may_set_order(&mut self, now: Now, set: &SetOrder) -> Result<ChannelKey, SetOffsetError> {
        let key = self.channel_to_set(now, &set.topic, set.partition, &set.channel)?;
        let c = self.partitions.channel_mut(key).ok_or(SetOffsetError::NoChannel)?;
        let is_change = c.machine.is_ordered() != set.ordered;
        if is_change && !set.ordered && !c.subs.is_empty() { Err(SetOffsetError::HasClients) } else { Ok(key) }
    }

    /// A change of this channel's cursor was settled.
    pub(super) fn go_on_ordering(&mut self, now: Now, key: ChannelKey) {
        for Orderer { set, core, ticket, .. } in self.operators.orders.0.extract_if(.., |o| o.key == key).collect::<Vec<_>>() {
            self.set_order(now, set, core, ticket);
        }
    }
}
