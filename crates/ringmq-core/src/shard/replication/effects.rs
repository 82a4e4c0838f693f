//! Execution of a replica's effects.

use super::cursors::{apply_cursors, collect_cursors};
use super::roles::clamp_channels;
use super::store_work::{Reading, Recorded};
use super::{Cluster, CoreParts, Incoming, Work};
use crate::base::{Now, Position};
use crate::codec::peer::message::{Append, Batches, Body, Head, Lane, Message, Route};
use crate::format::batch::{BATCH_HEADER_LEN, Batch, MESSAGE_OVERHEAD};
use crate::log::{PartitionIdx, Refusal};
use crate::replica::{Alarm, Effect, Event, ReplicaError};
use crate::seam::cluster::Ask;
use crate::seam::outcome::PublishError;
use crate::shard::cursors::CursorRequest;
use crate::shard::partitions::Partition;
use crate::{base::NodeId, codec::peer::error::PeerError};
use bytes::Bytes;

impl Cluster {
    pub(super) fn carry_out(&mut self, core: &mut CoreParts, now: Now, idx: PartitionIdx, effect: Effect) {
        let p = core.partitions.get_mut(idx);
        let Some(seat) = p.seat_mut() else { return };
        let route = seat.member.route();
        match effect {
            Effect::Send { to, message } => self.peers.links.send(to, route, message),
            Effect::SendTail { to, head, from, end, committed } => {
                let batches = core.store.tail(idx, from.offset, end.offset).collect();
                self.send_append(to, Lane::Data, route, head, Append { committed, batches: Batches::new(batches) });
            }
            Effect::SendCatchUp { to, head, committed, batches } => {
                self.send_append(to, Lane::CatchUp, route, head, Append { committed, batches: Batches::new(batches) });
            }
            Effect::ReadLog { to, session, from, bytes_max } => {
                let token = self.store_work.read(Reading { idx, to, session, from });
                core.store.read_verbatim(idx, token, from, bytes_max, core.outbox.io());
            }
            Effect::LogEpoch { epoch } => {
                let record = core.store.log_epoch(idx, epoch);
                self.store_work.record(record, idx, Recorded::Promise(epoch));
            }
            Effect::Append { .. } if seat.has_failed => {}
            Effect::Append { batch, is_settled } => {
                seat.held.push_back(Incoming { batch, is_settled });
                self.append_held(core, idx);
            }
            Effect::Truncate { to } => {
                seat.held.clear();
                clamp_channels(core, now, idx, to);
                core.store.truncate(now, idx, to, core.outbox.io());
            }
            Effect::Restart { start, chain_crc } => {
                seat.held.clear();
                clamp_channels(core, now, idx, start);
                core.store.restart(now, idx, start, chain_crc, core.outbox.io());
            }
            Effect::Mend { batches } => core.store.mend(idx, batches, core.outbox.io()),
            Effect::Doubted => core.store.mark_suspect(idx),
            Effect::GaveUp { committed } => core.store.log_committed(idx, committed),
            Effect::Cleared => core.store.clear_suspect(idx),
            Effect::Committed { end } => {
                core.store.log_committed(idx, end);
                self.answer_committed(core, idx, end.offset);
            }
            Effect::Opened { epoch } => {
                core.store.set_epoch(idx, epoch);
                seat.collecting = 0;
                p.low_water_stale = true;
                core.channels().update_low_water(idx);
                core.store.look_at_retention(idx);
                core.channels().wake_all(idx);
            }
            Effect::Closed { error } => self.close_publishes(core, idx, error),
            Effect::Propose { version, isr } => core.outbox.ask(Ask::Propose { route, version, isr }),
            Effect::GiveUp { loss } => core.outbox.ask(Ask::GiveUp { route, loss }),
            Effect::AskEpoch { above } => core.outbox.ask(Ask::AskEpoch { route, above }),
            Effect::Refresh => core.outbox.ask(Ask::Refresh { route }),
            Effect::Resign { to } => core.outbox.ask(Ask::Resign { route, to }),
            Effect::Release => core.outbox.ask(Ask::Release { route }),
            Effect::Alarm(alarm) => p.raise_alarm(alarm, self.peers.nodes()),
            Effect::AlarmOver => p.end_alarm(|alarm| matches!(alarm, Alarm::StaysOut { .. })),
            Effect::CollectCursors { to, session, channels } => collect_cursors(core, idx, (to, session), channels),
            Effect::ApplyCursors { number, images, deleted, collect_start, agreed_start, producers, channels_lost } => {
                let (told, start) = ((images, deleted), (collect_start, channels_lost));
                apply_cursors(core, &mut self.store_work, (idx, number), told, start, &producers);
                if let Some(at) = agreed_start {
                    core.store.set_agreed_start(idx, at);
                }
            }
            Effect::Agreed { at } => core.store.set_agreed_start(idx, at),
            Effect::CursorDone { request, result } => {
                core.syncs.end(CursorRequest(request), result.map_err(PublishError::from));
            }
        }
    }

    fn send_append(&mut self, to: NodeId, lane: Lane, route: Route, head: Head, append: Append) {
        self.peers.links.send_on(to, lane, route, Message { head, body: Body::Append(append) });
    }

    // ---- a follower's log

    /// Gives the store the batches of a peer that wait, as far as it has room.
    fn append_held(&mut self, core: &mut CoreParts, idx: PartitionIdx) {
        let p = core.partitions.get_mut(idx);
        while let Some(Incoming { batch, is_settled }) = p.seat_mut().and_then(|seat| seat.held.pop_front()) {
            let bytes = message_bytes(&batch);
            let refused = core.store.append_verbatim(idx, batch, is_settled, core.outbox.io()).err();
            match (refused, p.seat_mut()) {
                (None, _) => p.message_bytes += bytes,
                (Some((Refusal::Busy | Refusal::DiskFull, batch)), Some(seat)) => {
                    return seat.held.push_front(Incoming { batch, is_settled });
                }
                (Some((Refusal::ReadOnly | Refusal::TooBig, _)), Some(seat)) => {
                    seat.held.clear();
                    seat.has_failed = true;
                    return core.work.tell(idx, Event::LogFailed);
                }
                (Some(_), None) => return,
            }
        }
    }

    /// The store has room again.
    pub(in crate::shard) fn go_on_following(&mut self, core: &mut CoreParts) {
        let waits = |p: &Partition| p.seat().is_some_and(|s| !s.held.is_empty());
        let waiting: Vec<PartitionIdx> = core.partitions.iter().filter(|(_, p)| waits(p)).map(|(idx, _)| idx).collect();
        waiting.into_iter().for_each(|idx| self.append_held(core, idx));
    }

    /// The answer to a read of whole batches.
    pub(in crate::shard) fn on_verbatim(
        &mut self,
        core: &mut CoreParts,
        token: u64,
        result: Result<(Vec<Bytes>, Position), PeerError>,
    ) {
        let Some(Reading { idx, to, session, from }) = self.store_work.take_read(token) else { return };
        let (end, result) = match result {
            Ok((batches, end)) => (end, Ok(batches)),
            Err(error) => (from, Err(error)),
        };
        core.work.tell(idx, Event::LogRead { to, session, from, end, result });
    }

    // ---- publishers

    /// Answers the publishers of everything before `end`, which is committed, in order.
    pub(super) fn answer_committed(&mut self, core: &mut CoreParts, idx: PartitionIdx, end: i64) {
        let Some(seat) = core.partitions.get_mut(idx).seat_mut() else { return };
        let mut upto = None;
        while let Some((_, ticket)) = seat.marks.pop_front_if(|m| m.0 <= end) {
            upto = Some(ticket);
        }
        let is_leader = seat.is_leader();
        if let Some(upto) = upto {
            core.answer_publishers(Some(self), idx, upto);
        }
        if !is_leader {
            return;
        }
        core.channels().wake_all(idx);
        self.count_uncommitted(core, idx);
        if self.uncommitted <= core.settings.max_pub_waiting_size / 2 && core.waiting.is_any_here() {
            core.work.push(Work::Retry);
        }
    }

    /// Fails the publishes that are not committed: this epoch will not commit them.
    fn close_publishes(&mut self, core: &mut CoreParts, idx: PartitionIdx, error: ReplicaError) {
        let p = core.partitions.get_mut(idx);
        if let Some(seat) = p.seat_mut() {
            seat.marks.clear();
        }
        for (_, publisher, _) in std::mem::take(&mut p.publishers) {
            core.tell_publisher(Some(self), publisher, Err(PublishError::from(error)));
        }
        // Publishes that wait for room find out that there is nothing to wait for.
        core.work.push(Work::Retry);
    }
}

fn message_bytes(batch: &Batch) -> u64 {
    let around = BATCH_HEADER_LEN + batch.header.num.get() as usize * MESSAGE_OVERHEAD;
    batch.bytes.len().saturating_sub(around) as u64
}
