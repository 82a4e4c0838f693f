//! Execution of a replica's effects.

use super::{Engine, Incoming, Reading, Recorded};
use crate::base::Now;
use crate::codec::peer::message::{Append, Batches, Body, Head, Lane, Message, Route};
use crate::format::batch::{BATCH_HEADER_LEN, Batch, MESSAGE_OVERHEAD};
use crate::log::{PartitionIdx, Refusal};
use crate::replica::{Alarm, Effect, Event, ReplicaError};
use crate::seam::cluster::Ask;
use crate::seam::event;
use crate::seam::outcome::PublishError;
use crate::shard::cursors::CursorRequest;
use crate::{base::NodeId, codec::peer::error::PeerError};
use bytes::Bytes;

impl Engine {
    pub(super) fn carry_out(&mut self, now: Now, idx: PartitionIdx, effect: Effect) {
        let p = self.partitions.get_mut(idx);
        let Some(seat) = p.seat_mut() else { return };
        let route = seat.member.route();
        match effect {
            Effect::Send { to, message } => self.send_peer(to, message.body.lane(), route, message),
            Effect::SendTail { to, head, from, end, committed } => {
                let batches = self.store.tail(idx, from.offset, end.offset).collect();
                self.send_append(to, Lane::Data, route, head, Append { committed, batches: Batches::new(batches) });
            }
            Effect::SendCatchUp { to, head, committed, batches } => {
                self.send_append(to, Lane::CatchUp, route, head, Append { committed, batches: Batches::new(batches) });
            }
            Effect::ReadLog { to, session, from, bytes_max } => {
                let cluster = self.cluster_mut();
                let token = cluster.number();
                cluster.readings.insert(token, Reading { idx, to, session, from });
                self.store.read_verbatim(idx, token, from, bytes_max, self.outbox.io());
            }
            Effect::LogEpoch { epoch } => {
                let record = self.store.log_epoch(idx, epoch);
                self.cluster_mut().records.push_back((record, idx, Recorded::Promise(epoch)));
            }
            Effect::Append { .. } if seat.has_failed => {}
            Effect::Append { batch, is_settled } => {
                seat.held.push_back(Incoming { batch, is_settled });
                self.append_held(now, idx);
            }
            Effect::Truncate { to } => {
                seat.held.clear();
                self.clamp_channels(now, idx, to);
                self.store.truncate(now, idx, to, self.outbox.io());
            }
            Effect::Restart { start, chain_crc } => {
                seat.held.clear();
                self.clamp_channels(now, idx, start);
                self.store.restart(now, idx, start, chain_crc, self.outbox.io());
            }
            Effect::Mend { batches } => self.store.mend(idx, batches, self.outbox.io()),
            Effect::Doubted => self.store.mark_suspect(idx),
            Effect::GaveUp { committed } => self.store.log_committed(idx, committed),
            Effect::Cleared => self.store.clear_suspect(idx),
            Effect::Committed { end } => {
                self.store.log_committed(idx, end);
                self.answer_committed(now, idx, end.offset);
            }
            Effect::Opened { epoch } => {
                self.store.set_epoch(idx, epoch);
                seat.collecting = 0;
                p.low_water_stale = true;
                self.channels().update_low_water(idx);
                self.store.look_at_retention(idx);
                self.channels().wake_all(idx);
            }
            Effect::Closed { error } => self.close_publishes(now, idx, error),
            Effect::Propose { version, isr } => self.outbox.push(event::Effect::Ask(Ask::Propose { route, version, isr })),
            Effect::GiveUp { loss } => self.outbox.push(event::Effect::Ask(Ask::GiveUp { route, loss })),
            Effect::AskEpoch { above } => self.outbox.push(event::Effect::Ask(Ask::AskEpoch { route, above })),
            Effect::Refresh => self.outbox.push(event::Effect::Ask(Ask::Refresh { route })),
            Effect::Resign { to } => self.outbox.push(event::Effect::Ask(Ask::Resign { route, to })),
            Effect::Release => self.outbox.push(event::Effect::Ask(Ask::Release { route })),
            Effect::Alarm(alarm) => p.raise_alarm(alarm),
            Effect::AlarmOver => self.end_alarm(idx, |alarm| matches!(alarm, Alarm::StaysOut { .. })),
            Effect::CollectCursors { to, session, channels } => self.collect_cursors(now, idx, (to, session), channels),
            Effect::ApplyCursors { number, images, deleted, collect_start, agreed_start, producers, channels_lost } => {
                self.apply_cursors(now, idx, number, (images, deleted), (collect_start, channels_lost), &producers);
                if let Some(at) = agreed_start {
                    self.store.set_agreed_start(idx, at);
                }
            }
            Effect::Agreed { at } => self.store.set_agreed_start(idx, at),
            Effect::CursorDone { request, result } => {
                self.syncs.end(CursorRequest(request), result.map_err(PublishError::from));
            }
        }
    }

    /// Sends to a replica of another node. The message is lost when there is no connection to that node: the machines ask again.
    pub(super) fn send_peer(&mut self, to: NodeId, lane: Lane, route: Route, message: Message) {
        if let Some(links) = self.links_mut() {
            links.send_on(to, lane, route, message);
        }
    }

    fn send_append(&mut self, to: NodeId, lane: Lane, route: Route, head: Head, append: Append) {
        self.send_peer(to, lane, route, Message { head, body: Body::Append(append) });
    }

    // ---- a follower's log

    /// Gives the store the batches of a peer that wait, as far as it has room.
    fn append_held(&mut self, now: Now, idx: PartitionIdx) {
        loop {
            let Some(seat) = self.partitions.get_mut(idx).seat_mut() else { return };
            let Some(Incoming { batch, is_settled }) = seat.held.pop_front() else { return };
            let bytes = message_bytes(&batch);
            match self.store.append_verbatim(idx, batch, is_settled, self.outbox.io()) {
                Ok(_) => self.partitions.get_mut(idx).message_bytes += bytes,
                Err((Refusal::Busy | Refusal::DiskFull, batch)) => {
                    if let Some(seat) = self.partitions.get_mut(idx).seat_mut() {
                        seat.held.push_front(Incoming { batch, is_settled });
                    }
                    return;
                }
                Err((Refusal::ReadOnly | Refusal::TooBig, _)) => {
                    if let Some(seat) = self.partitions.get_mut(idx).seat_mut() {
                        seat.held.clear();
                        seat.has_failed = true;
                    }
                    return self.tell_member(now, idx, Event::LogFailed);
                }
            }
        }
    }

    /// The store has room again.
    pub(in crate::shard) fn go_on_following(&mut self, now: Now) {
        if !self.is_clustered() {
            return;
        }
        let waits = |p: &crate::shard::partitions::Partition| p.seat().is_some_and(|s| !s.held.is_empty());
        let waiting: Vec<PartitionIdx> = self.partitions.iter().filter(|(_, p)| waits(p)).map(|(idx, _)| idx).collect();
        waiting.into_iter().for_each(|idx| self.append_held(now, idx));
    }

    /// The answer to a read of whole batches.
    pub(in crate::shard) fn on_verbatim(
        &mut self,
        now: Now,
        token: u64,
        result: Result<(Vec<Bytes>, crate::base::Position), PeerError>,
    ) {
        let Some(Reading { idx, to, session, from }) = self.cluster.as_mut().and_then(|c| c.readings.remove(&token)) else {
            return;
        };
        let (end, result) = match result {
            Ok((batches, end)) => (end, Ok(batches)),
            Err(error) => (from, Err(error)),
        };
        self.tell_member(now, idx, Event::LogRead { to, session, from, end, result });
    }

    // ---- publishers

    /// Answers the publishers of everything before `end`, which is committed, in order.
    pub(super) fn answer_committed(&mut self, now: Now, idx: PartitionIdx, end: i64) {
        let p = self.partitions.get_mut(idx);
        let Some(seat) = p.seat_mut() else { return };
        let mut upto = None;
        while let Some((_, ticket)) = seat.marks.pop_front_if(|m| m.0 <= end) {
            upto = Some(ticket);
        }
        let is_leader = seat.is_leader();
        if let Some(upto) = upto {
            self.answer_publishers(idx, upto);
        }
        if !is_leader {
            return;
        }
        self.channels().wake_all(idx);
        self.count_uncommitted(idx);
        let is_free = self.cluster.as_ref().is_some_and(|c| c.uncommitted <= self.settings.max_pub_waiting_size / 2);
        if is_free && self.waiting.is_any_here() {
            self.retry_waiting(now);
        }
    }

    /// Fails the publishes that are not committed: this epoch will not commit them.
    fn close_publishes(&mut self, now: Now, idx: PartitionIdx, error: ReplicaError) {
        let p = self.partitions.get_mut(idx);
        if let Some(seat) = p.seat_mut() {
            seat.marks.clear();
        }
        for (_, publisher, _) in std::mem::take(&mut p.publishers) {
            self.tell_publisher(publisher, Err(PublishError::from(error)));
        }
        self.count_uncommitted(idx);
        // Publishes that wait for room find out that there is nothing to wait for.
        self.retry_waiting(now);
    }
}

fn message_bytes(batch: &Batch) -> u64 {
    let around = BATCH_HEADER_LEN + batch.header.num.get() as usize * MESSAGE_OVERHEAD;
    batch.bytes.len().saturating_sub(around) as u64
}
