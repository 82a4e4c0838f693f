//! Channels of a replicated partition: what the leader's clients do to them reaches the followers, and what a leader says is
//! applied to those of a follower.
//!
//! ```text
//! leader     FINs journaled ─> Moved ─> (each interval) CollectCursors ─> the followers
//!            new channel: record durable ─> Sync ─> every ISR member has it ─> CursorDone ─> SUB is answered
//! follower   ApplyCursors ─> records durable ─> Applied
//! ```

use super::{Engine, Recorded};
use crate::base::{ChannelName, ConnId, Now, Position};
use crate::channel::Channel;
use crate::log::cursor::CursorImage;
use crate::log::{PartitionIdx, RecordTicket};
use crate::replica::message::{CURSORS_BYTES_MAX, Session};
use crate::replica::{Channels, CursorEvent, Event, NodeId, ReplicaError};
use crate::session::native::Answer;
use crate::shard::attach::Subscribing;
use crate::shard::engine::Heard;
use crate::shard::message::PublishError;
use crate::shard::native::failure_of;
use crate::shard::partitions::{ChannelKey, Role};

/// A change that counts when every in-sync replica has it: a channel that comes into being.
pub struct Operation {
    idx: PartitionIdx,
    channel: ChannelName,
    waiting: Vec<Waiting>,
}

/// Who hears of an operation's end.
pub enum Waiting {
    Sub(Subscribing),
    Native { conn: ConnId, request: u64, subscription: u32, answer: Answer },
}

impl Engine {
    // ---- a leader's

    /// A channel was created, in this record: it counts when the other replicas have it.
    pub(in crate::shard) fn replicate_creation(&mut self, key: ChannelKey, record: RecordTicket) {
        let idx = key.partition_idx();
        let Some(cluster) = &mut self.cluster else { return };
        let Some(c) = self.partitions.channel_mut(key) else { return };
        let request = cluster.number();
        c.creating = Some(request);
        cluster.records.push_back((record, idx, Recorded::Operation(request)));
        cluster.operations.insert(request, Operation { idx, channel: c.name.clone(), waiting: vec![] });
    }

    /// A client waits until the channel's creation counts; false: it does already.
    pub(in crate::shard) fn await_creation(&mut self, key: ChannelKey, who: impl FnOnce() -> Waiting) -> bool {
        let request = self.partitions.channel_mut(key).and_then(|c| c.creating);
        let operation = request.and_then(|r| self.cluster.as_mut()?.operations.get_mut(&r));
        let Some(operation) = operation else { return false };
        operation.waiting.push(who());
        true
    }

    /// Clients that are gone, or gave up, wait for nothing.
    pub(in crate::shard) fn forget_waiting(&mut self, is_gone: impl Fn(&Waiting) -> bool) {
        if let Some(cluster) = &mut self.cluster {
            cluster.operations.values_mut().for_each(|o| o.waiting.retain(|w| !is_gone(w)));
        }
    }

    /// A native client gives up a subscription that waits. Its request.
    pub(in crate::shard) fn take_waiting_native(&mut self, conn: ConnId, subscription: u32) -> Option<u64> {
        let operations = self.cluster.as_mut()?.operations.values_mut();
        let is_it = |w: &Waiting| matches!(w, Waiting::Native { conn: c, subscription: s, .. } if (*c, *s) == (conn, subscription));
        let (waiting, at) = operations.map(|o| &mut o.waiting).find_map(|w| w.iter().position(is_it).map(|at| (w, at)))?;
        match waiting.remove(at) {
            Waiting::Native { request, .. } => Some(request),
            Waiting::Sub(_) => None,
        }
    }

    fn image_of(&self, idx: PartitionIdx, name: &ChannelName) -> Option<CursorImage> {
        let p = self.partitions.get(idx);
        let epoch = p.seat()?.member.epoch()?;
        let c = &p.channels[p.channel(name)? as usize];
        Some(CursorImage { epoch, ..c.machine.image() })
    }

    /// The operation's own record is durable: now the other replicas.
    pub(super) fn operation_durable(&mut self, now: Now, request: u64) {
        let Some(Operation { idx, channel, .. }) = self.cluster_mut().operations.get(&request) else { return };
        let (idx, channel) = (*idx, channel.clone());
        match self.image_of(idx, &channel) {
            Some(image) => self.tell_member(now, idx, Event::Cursor(CursorEvent::Sync { request, image })),
            None => self.operation_done(now, request, Err(ReplicaError::NotLeader { leader: None })),
        }
    }

    /// Every in-sync replica has it, or it is taken back.
    pub(super) fn operation_done(&mut self, now: Now, request: u64, result: Result<(), ReplicaError>) {
        let Some(Operation { idx, channel, waiting }) = self.cluster_mut().operations.remove(&request) else { return };
        let found = self.partitions.get(idx).channel(&channel).map(|i| ChannelKey { partition: idx.0, channel: i });
        let key = found.filter(|key| self.partitions.channel_mut(*key).is_some_and(|c| c.creating == Some(request)));
        if let Some(c) = key.and_then(|key| self.partitions.channel_mut(key)) {
            c.creating = None;
        }
        for who in waiting {
            match (who, result) {
                (Waiting::Sub(s), Ok(())) => self.subscribed(s),
                (Waiting::Sub(s), Err(error)) => self.tell_subscriber(s.sub, s.partition, Err(PublishError::from(error))),
                (Waiting::Native { conn, request, answer, .. }, Ok(())) => {
                    self.replies.push((conn, Heard::Native(request, answer)));
                }
                (Waiting::Native { conn, request, subscription, .. }, Err(error)) => {
                    self.native_forget(now, conn, subscription);
                    let failure = failure_of(PublishError::from(error));
                    self.replies.push((conn, Heard::Native(request, Answer::Failed(failure))));
                }
            }
        }
        if let (Some(key), Err(error)) = (key, result) {
            self.take_back_creation(now, key, error);
        }
    }

    /// Nobody was told of the channel: it goes, here and wherever it got to. Who leads by now decides for a follower.
    fn take_back_creation(&mut self, now: Now, key: ChannelKey, error: ReplicaError) {
        let idx = key.partition_idx();
        let p = self.partitions.get(idx);
        if !p.seat().is_some_and(|s| s.is_leader()) {
            return;
        }
        let (channel, partition) = (p.channels[key.channel as usize].name.clone(), p.dir.partition);
        tracing::warn!(topic = %p.topic.name, %partition, %channel, %error, "a channel is not created");
        self.lose_clients(key, partition);
        self.delete_channel(now, key);
    }

    /// A durable channel goes, on this replica at once, on the others as they hear of it.
    fn delete_channel(&mut self, now: Now, key: ChannelKey) {
        let idx = key.partition_idx();
        let p = self.partitions.get_mut(idx);
        let Some(c) = p.channels.get(key.channel as usize) else { return };
        let (channel, generation) = (c.name.clone(), c.machine.generation());
        if let Role::Member(seat) = &mut p.replica {
            seat.generation_floor = seat.generation_floor.max(generation + 1);
        }
        self.forget_channel(key);
        self.store.log_channel_delete(idx, &channel);
        self.update_low_water(idx);
        let request = self.cluster_mut().number();
        self.tell_member(now, idx, Event::Cursor(CursorEvent::Delete { request, channel }));
    }

    /// FINs of the channel went to the journal: the followers hear of them with the next interval.
    pub(in crate::shard) fn cursor_moved(&mut self, now: Now, key: ChannelKey) {
        let idx = key.partition_idx();
        if self.cluster.is_none() || !self.partitions.get(idx).seat().is_some_and(|s| s.is_leader()) {
            return;
        }
        let Some(c) = self.partitions.channel_mut(key) else { return };
        if !std::mem::replace(&mut c.has_moved, true) {
            let channel = c.name.clone();
            self.tell_member(now, idx, Event::Cursor(CursorEvent::Moved { channel }));
        }
    }

    /// The channels as they are, for a follower.
    pub(super) fn collect_cursors(&mut self, now: Now, idx: PartitionIdx, (to, session): (NodeId, Session), wanted: Channels) {
        let p = self.partitions.get_mut(idx);
        let Some(epoch) = p.seat().and_then(|s| s.member.epoch()) else { return };
        let is_all = wanted == Channels::All;
        let mut cursors = vec![];
        for (_, c) in p.channels.iter_mut().filter(|(_, c)| !c.name.is_ephemeral()) {
            let is_wanted = match &wanted {
                Channels::All => true,
                Channels::Some(names) => names.contains(&c.name),
            };
            if is_wanted {
                // What happens from now on is told again.
                c.has_moved = false;
                cursors.push(CursorImage { epoch, ..c.machine.image() });
            }
        }
        fit(&mut cursors, CURSORS_BYTES_MAX);
        let collect_start = self.store.collect_start(idx);
        let event = CursorEvent::Collected { to, session, is_all, collect_start, cursors };
        self.tell_member(now, idx, Event::Cursor(event));
    }

    // ---- a follower's

    pub(super) fn apply_cursors(
        &mut self,
        now: Now,
        idx: PartitionIdx,
        number: u64,
        images: Vec<CursorImage>,
        deleted: Vec<ChannelName>,
        collect_start: Option<Position>,
    ) {
        let options = self.channel_options();
        let mut record = RecordTicket::default();
        for image in images {
            let p = self.partitions.get_mut(idx);
            let partition = p.dir.partition;
            record = self.store.log_cursor(idx, &image);
            self.store.lower_low_water(idx, image.confirmed);
            match p.channel(&image.name) {
                Some(i) => p.channels[i as usize].machine = Channel::new(options, partition, image),
                None => {
                    tracing::info!(topic = %p.topic.name, %partition, channel = %image.name, offset = image.confirmed.offset, "a channel, from the leader");
                    self.add_channel(idx, image, record);
                }
            }
        }
        for name in deleted {
            let p = self.partitions.get(idx);
            if let Some(i) = p.channel(&name) {
                tracing::info!(topic = %p.topic.name, partition = %p.dir.partition, channel = %name, "the leader deleted the channel");
                record = self.store.log_channel_delete(idx, &name);
                self.forget_channel(ChannelKey { partition: idx.0, channel: i });
            }
        }
        if let Some(at) = collect_start.filter(|at| *at != self.store.collect_start(idx)) {
            record = self.store.log_collect_start(idx, at);
        }
        self.partitions.get_mut(idx).low_water_stale = true;
        self.update_low_water(idx);
        // Numbers are answered in order: what needs no record waits for those before it.
        let records = &mut self.cluster_mut().records;
        let waits = records.iter().any(|(_, p, what)| *p == idx && matches!(what, Recorded::Applied(_)));
        if waits || record > self.durable_record {
            self.cluster_mut().records.push_back((record, idx, Recorded::Applied(number)));
        } else {
            self.cursors_applied(now, idx, number);
        }
    }

    pub(super) fn cursors_applied(&mut self, now: Now, idx: PartitionIdx, number: u64) {
        self.tell_member(now, idx, Event::Cursor(CursorEvent::Applied { number }));
    }
}

/// Leaves the highest intervals out until the cursors fit into one message: what they confirm is delivered again by a new leader.
fn fit(cursors: &mut [CursorImage], bytes_max: usize) {
    let mut bytes: usize = cursors.iter().map(CursorImage::encoded_len).sum();
    while bytes > bytes_max {
        let Some(longest) = cursors.iter_mut().max_by_key(|c| c.intervals.len()).filter(|c| !c.intervals.is_empty()) else { return };
        let before = longest.encoded_len();
        longest.intervals.truncate(longest.intervals.len() / 2);
        bytes -= before - longest.encoded_len();
    }
}
