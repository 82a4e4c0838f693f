//! Changes of a cursor for which somebody waits: a channel that comes to be, or becomes ordered or ordinary; a FIN on an ordered channel;
//! an offset that is set; a channel that is paused or deleted ([`operate`](super::operate)). All take one way: the change is made,
//! journaled, and final when [`Engine::cursor_done`] says so.
//! On an error it is taken back, under a higher generation of the cursor; who waits hears that the outcome is unknown.
//!
//! ```text
//! sync_cursor(key, change) ─> record ─ durable ─> cursor_done(request, Ok)   ─> who waits is answered, the channel goes on
//!                                    ─ journal fails ─> cursor_done(request, Err) ─> taken back
//! in a cluster, between durable and Ok: every in-sync replica has it durable (crates/ringmq-core/src/shard/replication/cursors.rs)
//! ```
//! Ephemeral channels are not journaled: their changes are final at once.

use super::engine::Engine;
use super::offsets::Setter;
use super::operate::Collects;
use super::outbox::LateAnswer;
use super::partitions::ChannelKey;
use crate::base::{ChannelName, ConnId, CoreId, IdMap, LogId, MessagePlace, Now, PartitionId, Position, SubId, TopicId};
use crate::log::RecordTicket;
use crate::seam::{
    message::{MeshMessage, Ticket},
    outcome::{InFlightCommand, PublishError, SetOffsetError},
};
use crate::session::native::NativeAnswer;
use std::collections::VecDeque;

/// A change that is not final; 0 stands for none. Rises with each over the whole core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct CursorRequest(pub u64);

/// A change of a cursor, and its waiting client.
#[derive(Debug)]
pub(super) enum CursorChange {
    /// The channel is there, as it stands; whether it was made ordered just now. SUBs wait for it.
    Image {
        made_ordered: bool,
    },
    /// The FIN that the ordered channel calls `finishing`.
    Finish {
        sub: SubId,
        by: Finisher,
    },
    Set {
        setter: Setter,
        at: Position,
    },
    /// The channel became ordered, or ordinary; what it was.
    Order {
        core: CoreId,
        ticket: Ticket,
        was: bool,
    },
    /// The channel was paused or goes on; what it was.
    Pause {
        core: CoreId,
        ticket: Ticket,
        was: bool,
    },
    /// The channel goes.
    Delete {
        core: CoreId,
        ticket: Ticket,
        collects: Option<Collects>,
    },
}

#[derive(Debug)]
pub(super) enum Finisher {
    Nsq(LogId),
    Native { conn: ConnId, request: u64 },
}

#[derive(Debug)]
struct Sync {
    key: ChannelKey,
    /// A key's numbers are used again.
    topic: TopicId,
    partition: PartitionId,
    name: ChannelName,
    change: CursorChange,
    /// True once its record went to the journal.
    is_issued: bool,
}

#[derive(Default)]
pub(super) struct CursorSyncs {
    last: u64,
    pending: IdMap<CursorRequest, Sync>,
    /// Requests whose record is not durable, in order.
    records: VecDeque<(RecordTicket, CursorRequest)>,
    /// The journal has not been asked to take the last one: a turn has to end.
    pub is_unpacked: bool,
}

impl CursorSyncs {
    pub fn is_pending(&self, request: CursorRequest) -> bool {
        self.pending.contains_key(&request)
    }

    /// A change of one of the topic's channels is not final.
    pub fn is_any_of(&self, topic: TopicId) -> bool {
        self.pending.values().any(|s| s.topic == topic)
    }

    /// A change of this channel is not final, of whatever kind.
    pub fn changes(&self, key: ChannelKey) -> bool {
        self.pending.values().any(|s| s.key == key)
    }
}

impl Engine {
    /// The core stops, and all clients have left: the last snapshots tell what was delivered and not finished. In a cluster another
    /// node leads from here on, which hears of no attempts.
    pub(super) fn keep_attempts(&mut self, now: Now) {
        if self.is_clustered() || self.life.is_read_only() {
            return;
        }
        for (idx, channels) in self.partitions.channels_mut() {
            for (_, c) in channels.iter_mut().filter(|(_, c)| !c.name.is_ephemeral() && !c.machine.is_syncing()) {
                if c.machine.keep_attempts(now) {
                    // A record, so that the partition has a snapshot to take.
                    self.store.log_cursor(idx, &c.machine.image());
                }
            }
        }
    }

    /// Journals what was changed. Its outcome is told by [`Engine::cursor_done`], which for a change that is final at once
    /// was called before this returns.
    pub(super) fn sync_cursor(&mut self, now: Now, key: ChannelKey, change: CursorChange) -> CursorRequest {
        let idx = key.partition_idx();
        let (topic, partition) = (self.partitions.get(idx).dir.topic_id, self.partitions.get(idx).dir.partition);
        let c = self.partitions.channel_mut(key).expect("who changes a cursor has found its channel");
        let name = c.name.clone();
        let record = match (&change, self.life.is_read_only()) {
            _ if name.is_ephemeral() => Some(None),
            (_, true) => None,
            (CursorChange::Finish { .. }, false) => {
                let finishing: Vec<_> = c.machine.finishing().into_iter().collect();
                let generation = c.machine.generation();
                Some(Some(self.store.log_finished(idx, &name, generation, &finishing)))
            }
            (CursorChange::Delete { .. }, false) => Some(Some(self.store.log_channel_delete(idx, &name))),
            (
                CursorChange::Image { .. } | CursorChange::Set { .. } | CursorChange::Order { .. } | CursorChange::Pause { .. },
                false,
            ) => {
                let image = c.machine.image();
                Some(Some(self.store.log_cursor(idx, &image)))
            }
        };
        self.syncs.last += 1;
        let request = CursorRequest(self.syncs.last);
        let is_issued = matches!(record, Some(Some(_)));
        self.syncs.pending.insert(request, Sync { key, topic, partition, name, change, is_issued });
        match record {
            Some(Some(record)) => {
                self.syncs.records.push_back((record, request));
                self.syncs.is_unpacked = true;
            }
            Some(None) => self.cursor_done(now, request, Ok(())),
            None => self.cursor_done(now, request, Err(PublishError::ReadOnly)),
        }
        request
    }

    /// Records up to here are durable; alone, a node asks nobody else.
    pub fn cursors_durable(&mut self, now: Now, upto: RecordTicket) {
        while let Some((_, request)) = self.syncs.records.pop_front_if(|r| r.0 <= upto) {
            let Some(Sync { key, name, change, .. }) = self.syncs.pending.get(&request) else { continue };
            let (idx, name) = (key.partition_idx(), name.clone());
            let deletes = match change {
                CursorChange::Delete { collects, .. } => Some(collects.map(|c| c.to)),
                _ => None,
            };
            if !self.replicate_cursor(now, idx, &name, request, deletes) {
                self.cursor_done(now, request, Ok(()));
            }
        }
    }

    /// No record becomes durable any more.
    pub fn cursors_failed(&mut self, now: Now) {
        while let Some((_, request)) = self.syncs.records.pop_front() {
            self.cursor_done(now, request, Err(PublishError::ReadOnly));
        }
    }

    /// The change is final, or is taken back. Of a request that is not known any more nothing happens.
    ///
    /// A change that was issued stands in this replica's journal, and perhaps with others. Taking it back is a later change, which may
    /// be lost with this node: so nobody is told that it was not done, only that the outcome is unknown. A SUB or Subscribe hears the
    /// reason instead: it is repeated without harm, and the reason says where.
    pub(super) fn cursor_done(&mut self, now: Now, request: CursorRequest, result: Result<(), PublishError>) {
        let Some(Sync { key, topic, partition, name, change, is_issued }) = self.syncs.pending.remove(&request) else { return };
        let is_here = self.partitions.channel_of(key, topic, &name).is_some();
        let reason = result;
        let result = result.map_err(|error| if is_issued { PublishError::Unknown } else { error });
        match change {
            CursorChange::Image { made_ordered } => {
                if let (Some(c), Err(_)) = (self.partitions.channel_of(key, topic, &name), result) {
                    // The next change tries again.
                    c.is_uncertain = true;
                    if made_ordered && !c.machine.is_syncing() {
                        self.take_back_order(now, key, false);
                    }
                }
                self.attaching_done(now, request, reason);
                self.native_channels_done(now, request, reason);
                self.creators_done(request, result);
            }
            CursorChange::Finish { sub, by } => {
                if is_here {
                    self.settle_cursor(now, key, result.is_ok());
                    self.on_freed(key, sub, 1);
                }
                self.tell_finisher(sub, partition, &by, result.is_ok() && is_here);
            }
            CursorChange::Order { core, ticket, was } => {
                let channel = self.partitions.channel_of(key, topic, &name);
                if result.is_err() && channel.is_some_and(|c| !c.machine.is_syncing()) {
                    self.take_back_order(now, key, was);
                }
                let result = match result {
                    Ok(()) if !is_here => Err(SetOffsetError::NoChannel),
                    result => result.map_err(SetOffsetError::Failed),
                };
                self.pass(core, MeshMessage::OrderSet { ticket, result });
            }
            CursorChange::Pause { core, ticket, was } => {
                if result.is_err() && is_here {
                    self.take_back_pause(now, key, was);
                }
                let result = match result {
                    Ok(()) if !is_here => Err(SetOffsetError::NoChannel),
                    result => result.map(|()| false).map_err(SetOffsetError::Failed),
                };
                self.pass(core, MeshMessage::ChannelChanged { ticket, result });
            }
            CursorChange::Delete { core, ticket, collects } => {
                let result = self.delete_done(now, (key, topic, &name), collects, result);
                self.pass(core, MeshMessage::ChannelChanged { ticket, result: result.map(|()| false) });
            }
            CursorChange::Set { setter, at } => {
                if is_here {
                    self.settle_cursor(now, key, result.is_ok());
                }
                let result = match result {
                    Ok(()) if !is_here => Err(SetOffsetError::NoChannel),
                    result => result.map(|()| at).map_err(SetOffsetError::Failed),
                };
                self.tell_setter(setter, result);
            }
        }
        self.go_on_setting(now, key);
        self.go_on_ordering(now, key);
        self.go_on_operating(now);
        self.go_on_emptying();
    }

    /// The change of the channel's cursor is final, or was taken back.
    pub(super) fn settle_cursor(&mut self, now: Now, key: ChannelKey, kept: bool) {
        let idx = key.partition_idx();
        let Some(c) = self.partitions.channel_mut(key) else { return };
        c.machine.settle(kept);
        let owes_image = std::mem::take(&mut c.owes_image);
        if owes_image {
            c.machine.raise_generation();
        }
        if !kept || owes_image {
            self.log_taken_back(now, key);
        }
        self.partitions.get_mut(idx).low_water_stale = true;
        self.update_low_water(idx);
        self.partitions.wake(key);
    }

    fn take_back_order(&mut self, now: Now, key: ChannelKey, was: bool) {
        let Some(c) = self.partitions.channel_mut(key) else { return };
        let mut dropped = vec![];
        c.machine.set_ordered(was, &mut |sub, num| dropped.push((sub, num)));
        c.machine.raise_generation();
        self.log_taken_back(now, key);
        dropped.into_iter().for_each(|(sub, num)| self.on_freed(key, sub, num));
    }

    pub(super) fn log_taken_back(&mut self, now: Now, key: ChannelKey) {
        let read_only = self.life.is_read_only();
        let Some(c) = self.partitions.channel_mut(key).filter(|c| !read_only && !c.name.is_ephemeral()) else { return };
        let image = c.machine.image();
        self.store.log_cursor(key.partition_idx(), &image);
        self.cursor_moved(now, key);
    }

    fn tell_finisher(&mut self, sub: SubId, partition: PartitionId, by: &Finisher, kept: bool) {
        match *by {
            Finisher::Nsq(_) if kept => {}
            Finisher::Nsq(id) => {
                self.refuse_in_flight(sub, MessagePlace::new(partition, id), InFlightCommand::Finish);
            }
            Finisher::Native { request: 0, .. } => {}
            Finisher::Native { conn, request } => {
                self.outbox.tell(conn, LateAnswer::Native(request, NativeAnswer::Finished { num: kept as u64 }));
            }
        }
    }
}
