//! Changes of a cursor with a waiting client: a new channel, or one that becomes ordered or ordinary; a FIN on an ordered channel; a set
//! offset; a channel that is paused or deleted ([`operate`](super::operate)). All take one way: the change is made, journaled, and final
//! with [`Engine::cursor_done`]. On an error it is reverted, under a higher generation of the cursor; the client hears that the outcome
//! is unknown.
//!
//! ```text
//! begin(key, change) ─> record ─ durable ─> end(request, Ok)          ─> the client is answered, the channel goes on
//!                              ─ journal fails ─> end(request, Err) ─> reverted
//! in a cluster, between durable and Ok: every in-sync replica has it durable (crates/ringmq-core/src/shard/replication/cursors.rs)
//! ```
//! Ephemeral channels are not journaled: their changes are final at once.

use super::engine::Engine;
use super::offsets::Setter;
use super::operate::Collects;
use super::outbox::LateAnswer;
use super::partitions::{ChannelKey, Partitions};
use super::replication::replicate_cursor;
use super::stop::Lifecycle;
use crate::base::{ChannelName, ConnId, CoreId, IdMap, LogId, MessagePlace, Now, PartitionId, Position, SubId, TopicId};
use crate::log::{PartitionIdx, RecordTicket, Store};
use crate::seam::{
    message::{MeshMessage, Ticket},
    outcome::{InFlightCommand, InFlightError, PublishError, SetOffsetError},
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
    /// The channel became ordered, or ordinary; its former order.
    Order {
        core: CoreId,
        ticket: Ticket,
        was: bool,
    },
    /// The channel was paused or unpaused; its former state.
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

/// A change whose record is durable on this node.
pub(super) struct DurableChange {
    pub request: CursorRequest,
    pub idx: PartitionIdx,
    pub name: ChannelName,
    /// The channel goes, and perhaps the partition's collect start moves.
    pub deletes: Option<Option<Position>>,
}

#[derive(Default)]
pub(super) struct CursorSyncs {
    last: u64,
    pending: IdMap<CursorRequest, Sync>,
    /// Requests whose record is not durable, in order.
    records: VecDeque<(RecordTicket, CursorRequest)>,
    /// Outcomes that were not handled yet.
    ended: Vec<(CursorRequest, Result<(), PublishError>)>,
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

    /// Journals a change that was made. It ends before the step does at the earliest.
    pub fn begin(
        &mut self,
        key: ChannelKey,
        change: CursorChange,
        partitions: &mut Partitions,
        store: &mut Store,
        life: &Lifecycle,
    ) -> CursorRequest {
        let idx = key.partition_idx();
        let (topic, partition) = (partitions.get(idx).dir.topic_id, partitions.get(idx).dir.partition);
        let c = partitions.channel_mut(key).expect("who changes a cursor has found its channel");
        let (name, refused) = (c.name.clone(), life.check_writable());
        let record = match &change {
            _ if name.is_ephemeral() || refused.is_err() => None,
            CursorChange::Finish { .. } => {
                let finishing: Vec<_> = c.machine.finishing().into_iter().collect();
                Some(store.log_finished(idx, &name, c.machine.generation(), &finishing))
            }
            CursorChange::Delete { .. } => Some(store.log_channel_delete(idx, &name)),
            CursorChange::Image { .. } | CursorChange::Set { .. } | CursorChange::Order { .. } | CursorChange::Pause { .. } => {
                Some(store.log_cursor(idx, &c.machine.image()))
            }
        };
        self.last += 1;
        let request = CursorRequest(self.last);
        match record {
            Some(record) => {
                self.records.push_back((record, request));
                self.is_unpacked = true;
            }
            None => self.end(request, if name.is_ephemeral() { Ok(()) } else { refused }),
        }
        self.pending.insert(request, Sync { key, topic, partition, name, change, is_issued: record.is_some() });
        request
    }

    /// The next change whose record is durable by now.
    fn pop_durable(&mut self, upto: RecordTicket) -> Option<DurableChange> {
        while let Some((_, request)) = self.records.pop_front_if(|r| r.0 <= upto) {
            let Some(Sync { key, name, change, .. }) = self.pending.get(&request) else { continue };
            let deletes = match change {
                CursorChange::Delete { collects, .. } => Some(collects.map(|c| c.to)),
                _ => None,
            };
            return Some(DurableChange { request, idx: key.partition_idx(), name: name.clone(), deletes });
        }
        None
    }

    /// No record becomes durable any more.
    pub fn fail(&mut self) {
        for (_, request) in std::mem::take(&mut self.records) {
            self.end(request, Err(PublishError::ReadOnly));
        }
    }

    /// The change is final, or will not be.
    pub fn end(&mut self, request: CursorRequest, result: Result<(), PublishError>) {
        self.ended.push((request, result));
    }

    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    fn take_ended(&mut self) -> Vec<(CursorRequest, Result<(), PublishError>)> {
        std::mem::take(&mut self.ended)
    }
}

impl Engine {
    /// Records up to here are durable. On a stand-alone node their changes are final.
    pub fn cursors_durable(&mut self, now: Now, upto: RecordTicket) {
        while let Some(durable) = self.core.syncs.pop_durable(upto) {
            let is_replicated = self.in_cluster(now, |_, core| replicate_cursor(core, &durable));
            if !is_replicated.unwrap_or(false) {
                self.core.syncs.end(durable.request, Ok(()));
            }
        }
    }

    /// Settles or reverts the changes whose outcome became known since the last call, and answers their clients.
    pub fn settle_cursors(&mut self, now: Now) {
        for (request, result) in self.core.syncs.take_ended() {
            self.cursor_done(now, request, result);
        }
    }

    /// Settles or reverts the change. Ignores an unknown request.
    ///
    /// An issued change is in this replica's journal, and perhaps on other replicas. Reverting it is a later change, which may be lost
    /// with this node: so no client is told that the change was not done, only that its outcome is unknown. A SUB or Subscribe gets the
    /// reason instead: it may be repeated without harm, and the reason says where.
    fn cursor_done(&mut self, now: Now, request: CursorRequest, result: Result<(), PublishError>) {
        let Some(Sync { key, topic, partition, name, change, is_issued }) = self.core.syncs.pending.remove(&request) else {
            return;
        };
        let is_here = self.core.partitions.channel_of(key, topic, &name).is_some();
        let reason = result;
        let result = result.map_err(|error| if is_issued { PublishError::Unknown } else { error });
        match change {
            CursorChange::Image { made_ordered } => {
                if result.is_err() && is_here {
                    self.channels().image_failed(key, made_ordered);
                }
                self.consumers().attaching_done(now, request, reason);
                self.core.native_channels_done(request, reason);
                self.operating().creators_done(request, result);
            }
            CursorChange::Finish { sub, by } => {
                if is_here {
                    self.channels().settle(key, result.is_ok());
                    self.consumers().freed(key, sub, 1);
                }
                self.tell_finisher(sub, partition, &by, result.is_ok() && is_here);
            }
            CursorChange::Order { core, ticket, was } => {
                if result.is_err() && is_here {
                    self.channels().take_back_order(key, was);
                }
                let result = match result {
                    Ok(()) if !is_here => Err(SetOffsetError::NoChannel),
                    result => result.map_err(SetOffsetError::Failed),
                };
                self.pass(core, MeshMessage::OrderSet { ticket, result });
            }
            CursorChange::Pause { core, ticket, was } => {
                if result.is_err() && is_here {
                    self.channels().take_back_pause(key, was);
                }
                let result = match result {
                    Ok(()) if !is_here => Err(SetOffsetError::NoChannel),
                    result => result.map(|()| false).map_err(SetOffsetError::Failed),
                };
                self.pass(core, MeshMessage::ChannelChanged { ticket, result });
            }
            CursorChange::Delete { core, ticket, collects } => {
                let result = self.channels().delete_done((key, topic, &name), collects, result);
                self.attaching.parked.resume();
                self.pass(core, MeshMessage::ChannelChanged { ticket, result: result.map(|()| false) });
            }
            CursorChange::Set { setter, at } => {
                if is_here {
                    self.channels().settle(key, result.is_ok());
                }
                let result = match result {
                    Ok(()) if !is_here => Err(SetOffsetError::NoChannel),
                    result => result.map(|()| at).map_err(SetOffsetError::Failed),
                };
                setter.tell(&mut self.core.outbox, result);
            }
        }
        self.operating().go_on(now, key);
    }

    fn tell_finisher(&mut self, sub: SubId, partition: PartitionId, by: &Finisher, kept: bool) {
        match *by {
            Finisher::Nsq(_) if kept => {}
            Finisher::Nsq(id) => {
                let place = MessagePlace::new(partition, id);
                self.consumers().refuse_in_flight(sub, place, InFlightCommand::Finish, InFlightError::NotInFlight);
            }
            Finisher::Native { request: 0, .. } => {}
            Finisher::Native { conn, request } => {
                self.core.outbox.tell(conn, LateAnswer::Native(request, NativeAnswer::Finished { num: kept as u64 }));
            }
        }
    }
}
