//! Everything of a core but its sessions: the store, the partitions, the topics, the subscriptions. It is the sessions'
//! host, and answers other cores; what sessions are to hear of it is left in `replies`, `frames` and `resume`.

use super::event::Effect;
use super::message::{InFlightCommand, MeshMessage, OwnedBodies, PublishError, SubOptions, Ticket};
use super::partitions::{ChannelKey, ChannelState, Partition, Partitions, Publisher};
use super::subscription::{LendAction, Subscription};
use super::timers::{Timer, Timers};
use super::topics::{Topics, Waiters};
use crate::base::topic::home_core;
use crate::base::{
    ChannelName, ConnId, CoreId, Epoch, IdMap, LogId, Now, PartitionDir, PartitionId, Position, Rng, SubId, TopicId, TopicInfo,
    TopicName, TopicRef,
};
use crate::channel::{Channel, ChannelOptions};
use crate::codec::nsq::Bodies;
use crate::config::Settings;
use crate::log::cursor::CursorImage;
use crate::log::{Io, Notice, PartitionIdx, RecordTicket, Refusal, Store};
use crate::replica::Replica;
use crate::session::ReplySlot;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Publishes in a row to partitions of one other core before the connection moves there.
const MOVE_STREAK: u32 = 32;

/// What the shard knows of a connection beside its session.
#[derive(Debug, Default)]
pub(super) struct Track {
    toward: Option<CoreId>,
    streak: u32,
    /// Waits until nothing is outstanding, then goes there.
    pub moving: Option<CoreId>,
}

/// What a session hears of an earlier command.
pub(super) enum Heard {
    Answer(ReplySlot, Result<(), PublishError>),
    NotInFlight(crate::base::MessageId, InFlightCommand),
    /// The command it stalls on cannot be done.
    StallFailed(PublishError),
}

pub(super) struct Engine {
    pub core: CoreId,
    pub cores: u16,
    pub settings: Arc<Settings>,
    pub epoch: Epoch,
    pub rng: Rng,
    pub store: Store,
    pub partitions: Partitions,
    pub topics: Topics,
    pub subs: IdMap<ConnId, Subscription>,
    pub tracks: IdMap<ConnId, Track>,
    /// Where a client's messages of a partition come from, for partitions of this core.
    pub sub_keys: IdMap<(SubId, PartitionId), ChannelKey>,
    pub timers: Timers,
    pub stopping: bool,

    /// Scratch that one step fills and the shard empties.
    pub io: Io,
    pub notices: Vec<Notice>,
    pub passes: Vec<Effect>,
    pub replies: Vec<(ConnId, Heard)>,
    pub resume: Vec<ConnId>,
    pub moving: Vec<ConnId>,

    /// Channels that may have something to deliver, in turn.
    pub ready: VecDeque<ChannelKey>,
    /// Channels with FINs that no journal record holds yet.
    pub fins: Vec<ChannelKey>,
    /// Connections whose publish waits for room, oldest first.
    pub room_waiters: VecDeque<ConnId>,
    /// Publishes of other cores that wait for room, oldest first.
    parked: VecDeque<Parked>,
    /// SUBs whose channel's record is not durable yet.
    subscribing: VecDeque<(RecordTicket, SubId, PartitionId)>,
    /// Frames for clients of other cores, sent at the end of the turn.
    pub frames: IdMap<SubId, Vec<u8>>,
    /// Clients of other cores whose core said that their output is full.
    remote_blocked: rustc_hash::FxHashSet<SubId>,
    /// FINs for partitions of other cores, sent at the end of the turn.
    remote_fins: IdMap<(ConnId, PartitionId), Vec<LogId>>,
    next_ticket: u64,
    asked: IdMap<Ticket, Asked>,
    /// Bytes of publishes that other cores work on for this one.
    remote_bytes: u64,
    lend_scratch: Vec<LendAction>,
    durable_record: RecordTicket,
    pub read_only: Option<String>,
}

struct Parked {
    since: crate::base::Ticks,
    publisher: Publisher,
    topic: TopicRef,
    partition: PartitionId,
    bodies: OwnedBodies,
}

enum Asked {
    Publish { conn: ConnId, slot: ReplySlot, bytes: u64 },
    Topic { name: TopicName },
}

/// What came of an attempt to publish.
pub(super) enum Attempt {
    Accepted,
    Wait,
    Refused(PublishError),
}

impl Engine {
    pub fn new(core: CoreId, cores: u16, settings: Arc<Settings>, epoch: Epoch, store: Store, seed: u64) -> Self {
        Engine {
            core,
            cores,
            settings,
            epoch,
            rng: Rng::new(seed),
            store,
            partitions: Partitions::default(),
            topics: Topics::default(),
            subs: IdMap::default(),
            tracks: IdMap::default(),
            sub_keys: IdMap::default(),
            timers: Timers::default(),
            stopping: false,
            io: Vec::new(),
            notices: Vec::new(),
            passes: Vec::new(),
            replies: Vec::new(),
            resume: Vec::new(),
            moving: Vec::new(),
            ready: VecDeque::new(),
            fins: Vec::new(),
            room_waiters: VecDeque::new(),
            parked: VecDeque::new(),
            subscribing: VecDeque::new(),
            frames: IdMap::default(),
            remote_blocked: Default::default(),
            remote_fins: IdMap::default(),
            next_ticket: 0,
            asked: IdMap::default(),
            remote_bytes: 0,
            lend_scratch: Vec::new(),
            durable_record: RecordTicket::default(),
            read_only: None,
        }
    }

    pub fn channel_options(&self) -> ChannelOptions {
        ChannelOptions {
            confirm_window: self.settings.max_confirm_win as usize,
            max_msg_timeout: Duration::from_millis(self.settings.max_msg_timeout_ms),
            max_req_timeout: Duration::from_millis(self.settings.max_req_timeout_ms),
        }
    }

    pub fn pass(&mut self, to: CoreId, message: MeshMessage) {
        self.passes.push(Effect::Pass { to, message });
    }

    fn ticket(&mut self, asked: Asked) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.asked.insert(ticket, asked);
        ticket
    }

    // ---- topics

    /// Sees to it that the topic comes into being; `true` when it is known already.
    pub fn ensure_topic(&mut self, now: Now, name: &str) -> Result<bool, PublishError> {
        if self.topics.known(name).is_some() {
            return Ok(true);
        }
        if !self.topics.is_pending(name) {
            let name = TopicName::new(name).map_err(|_| PublishError::NoTopic)?;
            let home = home_core(&name, self.cores);
            if home == self.core {
                self.create_topic(now, name)?;
            } else {
                let ticket = self.ticket(Asked::Topic { name: name.clone() });
                self.topics.begin(name.clone(), None);
                self.pass(home, MeshMessage::EnsureTopic { ticket, name });
            }
        }
        Ok(false)
    }

    fn create_topic(&mut self, now: Now, name: TopicName) -> Result<(), PublishError> {
        if self.read_only.is_some() {
            return Err(PublishError::ReadOnly);
        }
        let id = TopicId(self.rng.bytes_16());
        let info = TopicInfo { name: name.clone(), id, partitions: self.settings.partitions };
        tracing::info!(topic = %name, id = %id, partitions = info.partitions, "creating topic");
        let record = self.store.log_topic_create(&info, now.unix_ns, &mut self.io);
        self.topics.begin(name, Some((info, record)));
        Ok(())
    }

    pub fn topic_known(&mut self, topic: TopicRef) {
        let waiters = self.topics.learn(topic.clone());
        self.tell_waiters(waiters, Ok(topic));
    }

    fn topic_failed(&mut self, name: &str, error: PublishError) {
        let waiters = self.topics.forget(name);
        self.tell_waiters(waiters, Err(error));
    }

    fn tell_waiters(&mut self, waiters: Waiters, result: Result<TopicRef, PublishError>) {
        for (core, ticket) in waiters.asked_by {
            self.pass(core, MeshMessage::Topic { ticket, result: result.clone() });
        }
        match result {
            Ok(_) => self.resume.extend(waiters.conns),
            Err(error) => self.replies.extend(waiters.conns.into_iter().map(|c| (c, Heard::StallFailed(error)))),
        }
    }

    // ---- partitions

    pub fn partition(&mut self, now: Now, topic: &TopicRef, partition: PartitionId) -> PartitionIdx {
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
        if let Some(idx) = self.partitions.find(&dir) {
            return idx;
        }
        let dir = Arc::new(dir);
        let idx = self.store.create(now, dir.clone(), &mut self.io);
        let replica = Replica::new(self.epoch, self.store.durable_end(idx));
        self.partitions.insert(idx, Partition::new(topic.clone(), dir, replica));
        idx
    }

    /// Takes a publish for a partition of this core.
    pub fn append<'a>(
        &mut self,
        now: Now,
        topic: &TopicRef,
        partition: PartitionId,
        publisher: Publisher,
        bodies: impl Iterator<Item = &'a [u8]>,
        count: usize,
        bytes: usize,
    ) -> Attempt {
        if self.stopping {
            return Attempt::Refused(PublishError::Stopping);
        }
        let idx = self.partition(now, topic, partition);
        match self.store.append(now, idx, bodies, count, bytes, &mut self.io) {
            Ok(ticket) => {
                let p = self.partitions.get_mut(idx);
                p.publishers.push_back((ticket, publisher));
                p.message_bytes += bytes as u64;
                Attempt::Accepted
            }
            Err(Refusal::Busy) => Attempt::Wait,
            Err(Refusal::DiskFull) => Attempt::Refused(PublishError::DiskFull),
            Err(Refusal::ReadOnly) => Attempt::Refused(PublishError::ReadOnly),
        }
    }

    /// A publish that a connection of this core makes: here, or passed to the partition's core.
    pub fn publish(&mut self, now: Now, conn: ConnId, topic: &str, bodies: &Bodies<'_>, slot: ReplySlot) -> Attempt {
        match self.ensure_topic(now, topic) {
            Ok(true) => {}
            Ok(false) => {
                self.topics.wait_conn(topic, conn);
                return Attempt::Wait;
            }
            Err(error) => return Attempt::Refused(error),
        }
        let (topic, partition) = self.topics.next_partition(topic).expect("the topic is known");
        let partition = PartitionId(partition);
        let owner = topic.core_of(partition, self.cores);
        if self.follow(conn, owner) {
            return Attempt::Wait;
        }
        if owner == self.core {
            let publisher = Publisher::Session(conn, slot);
            let attempt = self.append(now, &topic, partition, publisher, bodies.iter(), bodies.count(), bodies.bytes());
            if matches!(attempt, Attempt::Wait) {
                self.wait_for_room(now, conn);
            }
            return attempt;
        }
        let bytes = bodies.bytes() as u64;
        if self.remote_bytes > 0 && self.remote_bytes + bytes > self.settings.max_pub_waiting_size {
            self.wait_for_room(now, conn);
            return Attempt::Wait;
        }
        let mut owned = OwnedBodies { bytes: Vec::with_capacity(bodies.bytes()), ends: Vec::with_capacity(bodies.count()) };
        bodies.iter().for_each(|b| owned.push(b));
        self.remote_bytes += bytes;
        let ticket = self.ticket(Asked::Publish { conn, slot, bytes });
        self.pass(owner, MeshMessage::Publish { ticket, topic, partition, bodies: owned });
        Attempt::Accepted
    }

    fn wait_for_room(&mut self, now: Now, conn: ConnId) {
        self.room_waiters.push_back(conn);
        self.timers.at_most(Timer::Stalls, Some(now.ticks + Duration::from_millis(self.settings.pub_waiting_timeout_ms)));
    }

    /// Notes which core a connection publishes to; `true` when it is time for it to move there.
    fn follow(&mut self, conn: ConnId, owner: CoreId) -> bool {
        let track = self.tracks.entry(conn).or_default();
        track.streak = if track.toward == Some(owner) { track.streak + 1 } else { 1 };
        track.toward = Some(owner);
        if owner == self.core || track.streak < MOVE_STREAK || self.subs.contains_key(&conn) {
            return false;
        }
        track.moving = Some(owner);
        self.moving.push(conn);
        true
    }

    /// Room came back: whoever waits tries again, the oldest first.
    pub fn on_room(&mut self, now: Now) {
        while let Some(p) = self.parked.pop_front() {
            let (count, bytes) = (p.bodies.ends.len(), p.bodies.bytes.len());
            match self.append(now, &p.topic, p.partition, p.publisher, p.bodies.iter(), count, bytes) {
                Attempt::Accepted => {}
                Attempt::Refused(error) => self.tell_publisher(p.publisher, Err(error)),
                Attempt::Wait => {
                    self.parked.push_front(p);
                    break;
                }
            }
        }
        self.resume.extend(self.room_waiters.drain(..));
    }

    /// Publishes of other cores that waited too long for room.
    pub fn expire_parked(&mut self, now: Now) {
        let limit = Duration::from_millis(self.settings.pub_waiting_timeout_ms);
        while self.parked.front().is_some_and(|p| now.ticks.since(p.since) >= limit) {
            let p = self.parked.pop_front().expect("the front was looked at");
            self.tell_publisher(p.publisher, Err(PublishError::TooMuchWaiting));
        }
        if let Some(p) = self.parked.front() {
            self.timers.at_most(Timer::Stalls, Some(p.since + limit));
        }
    }

    fn tell_publisher(&mut self, publisher: Publisher, result: Result<(), PublishError>) {
        match publisher {
            Publisher::Session(conn, slot) => self.replies.push((conn, Heard::Answer(slot, result))),
            Publisher::Core(core, ticket) => self.pass(core, MeshMessage::Published { ticket, result }),
        }
    }

    // ---- what the store says

    pub fn on_notice(&mut self, now: Now, notice: Notice) {
        match notice {
            Notice::Durable { p, end, tickets_upto } => {
                self.partitions.get_mut(p).replica.on_local_durable(end);
                while let Some(&(ticket, publisher)) = self.partitions.get(p).publishers.front() {
                    if ticket > tickets_upto {
                        break;
                    }
                    self.partitions.get_mut(p).publishers.pop_front();
                    self.tell_publisher(publisher, Ok(()));
                }
                self.wake_channels(p);
            }
            Notice::AppendFailed { p, from, error } => {
                let publishers = &mut self.partitions.get_mut(p).publishers;
                let keep = publishers.partition_point(|(ticket, _)| *ticket < from);
                for (_, publisher) in publishers.split_off(keep) {
                    self.tell_publisher(publisher, Err(error));
                }
            }
            Notice::RecordDurable { upto } => {
                self.durable_record = upto;
                for topic in self.topics.created_up_to(upto) {
                    self.topic_known(topic);
                }
                while let Some(&(ticket, sub, partition)) = self.subscribing.front() {
                    if ticket > upto {
                        break;
                    }
                    self.subscribing.pop_front();
                    self.tell_subscriber(sub, partition, Ok(()));
                }
            }
            Notice::Readable { p } => self.wake_channels(p),
            Notice::Room => self.on_room(now),
            Notice::Found { .. } => {}
            Notice::Damage { .. } => {}
            Notice::ReadOnly { reason } => {
                tracing::error!(
                    core = self.core.0,
                    reason,
                    "this core takes no publish until a restart; consumers go on, FINs are not durable"
                );
                self.read_only = Some(reason);
                for name in self.topics.creations_failed() {
                    self.topic_failed(&name, PublishError::ReadOnly);
                }
                while let Some((_, sub, partition)) = self.subscribing.pop_front() {
                    self.tell_subscriber(sub, partition, Err(PublishError::ReadOnly));
                }
                self.on_room(now);
            }
            Notice::Stopped => self.passes.push(Effect::Stopped),
        }
    }

    pub fn wake_channels(&mut self, p: PartitionIdx) {
        let partition = self.partitions.get_mut(p);
        for (i, channel) in partition.channels.iter_mut() {
            if !channel.queued && !channel.subs.is_empty() {
                channel.queued = true;
                self.ready.push_back(ChannelKey { partition: p.0, channel: i as u32 });
            }
        }
    }

    pub fn wake_channel(&mut self, key: ChannelKey) {
        if let Some(channel) = self.partitions.channel_mut(key)
            && !channel.queued
        {
            channel.queued = true;
            self.ready.push_back(key);
        }
    }

    // ---- subscriptions, on the connection's core

    pub fn subscribe(
        &mut self,
        now: Now,
        conn: ConnId,
        topic: &str,
        channel: ChannelName,
        options: SubOptions,
        slot: ReplySlot,
    ) -> Attempt {
        if self.stopping {
            return Attempt::Refused(PublishError::Stopping);
        }
        match self.ensure_topic(now, topic) {
            Ok(true) => {}
            Ok(false) => {
                self.topics.wait_conn(topic, conn);
                return Attempt::Wait;
            }
            Err(error) => return Attempt::Refused(error),
        }
        let topic = self.topics.known(topic).expect("the topic is known").clone();
        if let Some(home) = self.best_core(&topic) {
            let track = self.tracks.entry(conn).or_default();
            track.moving = Some(home);
            self.moving.push(conn);
            return Attempt::Wait;
        }
        let sub = SubId { core: self.core, conn };
        let subscription = Subscription::new(topic.clone(), channel.clone(), slot, self.cores);
        let places: Vec<_> = subscription.parts.iter().map(|p| (p.partition, p.core)).collect();
        self.subs.insert(conn, subscription);
        for (partition, core) in places {
            if core == self.core {
                self.attach(now, sub, &topic, partition, &channel, options.clone());
            } else {
                let (topic, channel, options) = (topic.clone(), channel.clone(), options.clone());
                self.pass(core, MeshMessage::Subscribe { sub, topic, partition, channel, options });
            }
        }
        Attempt::Accepted
    }

    /// The core that has clearly more of the topic's partitions than this one.
    fn best_core(&self, topic: &TopicRef) -> Option<CoreId> {
        let mut counts = vec![0u16; self.cores as usize];
        (0..topic.partitions).for_each(|p| counts[topic.core_of(PartitionId(p), self.cores).0 as usize] += 1);
        let (best, &most) = counts.iter().enumerate().max_by_key(|(_, n)| **n)?;
        // Partitions are dealt out in turn, so counts differ by one at most: only a core that has none is clearly worse.
        (counts[self.core.0 as usize] == 0 && most > 0).then_some(CoreId(best as u16))
    }

    pub fn set_ready(&mut self, now: Now, conn: ConnId, rdy: u32) {
        let mut actions = std::mem::take(&mut self.lend_scratch);
        if let Some(s) = self.subs.get_mut(&conn) {
            s.set_rdy(rdy, &mut actions);
        }
        self.lend(now, conn, actions);
    }

    /// Carries out what a subscription decided; what a local partition gives back at once may lead to more.
    fn lend(&mut self, now: Now, conn: ConnId, mut actions: Vec<LendAction>) {
        let sub = SubId { core: self.core, conn };
        while let Some(action) = actions.pop() {
            let (LendAction::Lend { part, credit } | LendAction::Recall { part, credit }) = action;
            let Some(s) = self.subs.get(&conn) else { break };
            let (partition, core) = (s.parts[part].partition, s.parts[part].core);
            match action {
                _ if core != self.core => {
                    let lend = matches!(action, LendAction::Lend { .. });
                    let message = match lend {
                        true => MeshMessage::Lend { sub, partition, credit },
                        false => MeshMessage::Recall { sub, partition, credit },
                    };
                    self.pass(core, message);
                }
                LendAction::Lend { .. } => self.on_lent(sub, partition, credit),
                LendAction::Recall { .. } => {
                    let back = self.on_recall(sub, partition, credit);
                    if back > 0
                        && let Some(s) = self.subs.get_mut(&conn)
                    {
                        s.on_returned(part, back, &mut actions);
                    }
                }
            }
        }
        let _ = now;
        actions.clear();
        self.lend_scratch = actions;
    }

    fn on_returned(&mut self, now: Now, sub: SubId, partition: PartitionId, credit: u32) {
        let mut actions = std::mem::take(&mut self.lend_scratch);
        if let Some(s) = self.subs.get_mut(&sub.conn)
            && let Some(part) = s.part_of(partition)
        {
            s.on_returned(part, credit, &mut actions);
        }
        self.lend(now, sub.conn, actions);
    }

    fn on_hungry(&mut self, now: Now, sub: SubId, partition: PartitionId) {
        let mut actions = std::mem::take(&mut self.lend_scratch);
        if let Some(s) = self.subs.get_mut(&sub.conn)
            && let Some(part) = s.part_of(partition)
        {
            s.on_hungry(part, &mut actions);
        }
        self.lend(now, sub.conn, actions);
    }

    pub fn finish(&mut self, now: Now, conn: ConnId, partition: PartitionId, id: LogId) -> bool {
        let Some(core) = self.part_core(conn, partition) else { return false };
        if core != self.core {
            self.remote_fins.entry((conn, partition)).or_default().push(id);
            return true;
        }
        self.on_finish(now, SubId { core, conn }, partition, id)
    }

    pub fn requeue(&mut self, now: Now, conn: ConnId, partition: PartitionId, id: LogId, delay_ms: u64) -> bool {
        let Some(core) = self.part_core(conn, partition) else { return false };
        let sub = SubId { core: self.core, conn };
        if core != self.core {
            self.pass(core, MeshMessage::Requeue { sub, partition, id, delay_ms });
            return true;
        }
        self.on_requeue(now, sub, partition, id, delay_ms)
    }

    pub fn touch(&mut self, now: Now, conn: ConnId, partition: PartitionId, id: LogId) -> bool {
        let Some(core) = self.part_core(conn, partition) else { return false };
        let sub = SubId { core: self.core, conn };
        if core != self.core {
            self.pass(core, MeshMessage::Touch { sub, partition, id });
            return true;
        }
        self.on_touch(now, sub, partition, id)
    }

    fn part_core(&self, conn: ConnId, partition: PartitionId) -> Option<CoreId> {
        let s = self.subs.get(&conn)?;
        Some(s.parts[s.part_of(partition)?].core)
    }

    /// The client's output became full, or has room again.
    pub fn set_blocked(&mut self, conn: ConnId, blocked: bool) {
        let Some(s) = self.subs.get_mut(&conn) else { return };
        if s.blocked == blocked {
            return;
        }
        s.blocked = blocked;
        let sub = SubId { core: self.core, conn };
        let places: Vec<_> = s.parts.iter().map(|p| (p.partition, p.core)).collect();
        for (partition, core) in places {
            if core == self.core {
                self.on_block(sub, partition, blocked);
            } else {
                self.pass(core, MeshMessage::Block { sub, partition, blocked });
            }
        }
    }

    /// The connection is gone.
    pub fn forget_conn(&mut self, now: Now, conn: ConnId) {
        self.flush_remote_fins();
        self.tracks.remove(&conn);
        self.timers.remove(Timer::Session(conn));
        let Some(s) = self.subs.remove(&conn) else { return };
        let sub = SubId { core: self.core, conn };
        for part in &s.parts {
            if part.core == self.core {
                self.detach(now, sub, &s.topic, part.partition, &s.channel);
            } else {
                let (topic, channel) = (s.topic.clone(), s.channel.clone());
                self.pass(part.core, MeshMessage::Unsubscribe { sub, topic, partition: part.partition, channel });
            }
        }
    }

    pub fn flush_remote_fins(&mut self) {
        for ((conn, partition), ids) in std::mem::take(&mut self.remote_fins) {
            if let Some(core) = self.part_core(conn, partition) {
                self.pass(core, MeshMessage::Finish { sub: SubId { core: self.core, conn }, partition, ids });
            }
        }
    }

    fn tell_subscriber(&mut self, sub: SubId, partition: PartitionId, result: Result<(), PublishError>) {
        if sub.core != self.core {
            return self.pass(sub.core, MeshMessage::Subscribed { sub, partition, result });
        }
        let Some(s) = self.subs.get_mut(&sub.conn) else { return };
        s.failed = s.failed.or(result.err());
        s.unanswered = s.unanswered.saturating_sub(1);
        if s.unanswered == 0
            && let Some(slot) = s.slot.take()
        {
            let result = s.failed.map_or(Ok(()), Err);
            self.replies.push((sub.conn, Heard::Answer(slot, result)));
        }
    }

    // ---- subscriptions, on the partition's core

    /// Finds or creates the channel, adds the client, and answers when the channel is durable.
    fn attach(
        &mut self,
        now: Now,
        sub: SubId,
        topic: &TopicRef,
        partition: PartitionId,
        channel: &ChannelName,
        options: SubOptions,
    ) {
        let idx = self.partition(now, topic, partition);
        let i = match self.partitions.get(idx).channel(channel) {
            Some(i) => i,
            None => match self.create_channel(idx, channel.clone()) {
                Ok(i) => i,
                Err(error) => return self.tell_subscriber(sub, partition, Err(error)),
            },
        };
        let key = ChannelKey { partition: idx.0, channel: i };
        let c = self.partitions.channel_mut(key).expect("the channel was just found");
        c.machine.subscribe(now.ticks, sub, options);
        c.subs.push(sub);
        let created = c.created;
        self.sub_keys.insert((sub, partition), key);
        if created > self.durable_record {
            self.subscribing.push_back((created, sub, partition));
        } else {
            self.tell_subscriber(sub, partition, Ok(()));
        }
        self.wake_channel(key);
    }

    /// The first channel starts at the oldest message that is collected, later ones at the end, as nsqd's do.
    fn create_channel(&mut self, idx: PartitionIdx, name: ChannelName) -> Result<u32, PublishError> {
        if self.read_only.is_some() && !name.is_ephemeral() {
            return Err(PublishError::ReadOnly);
        }
        let first = self.partitions.get(idx).channels.is_empty();
        let confirmed = if first { self.store.collect_start(idx) } else { self.store.durable_end(idx) };
        let image = CursorImage {
            name: name.clone(),
            paused: false,
            ordered: false,
            epoch: self.epoch,
            generation: 0,
            confirmed,
            intervals: vec![],
        };
        tracing::info!(topic = %self.partitions.get(idx).topic.name, channel = %name, offset = confirmed.offset, "creating channel");
        let created = if name.is_ephemeral() { RecordTicket::default() } else { self.store.log_cursor(idx, &image) };
        Ok(self.add_channel(idx, image, created))
    }

    pub fn add_channel(&mut self, idx: PartitionIdx, image: CursorImage, created: RecordTicket) -> u32 {
        let options = self.channel_options();
        let partition = self.partitions.get_mut(idx);
        let name = image.name.clone();
        let machine = Channel::new(options, partition.dir.partition, image);
        let state = ChannelState { name, machine, queued: false, dirty: false, created, owed: Default::default(), subs: vec![] };
        partition.low_water_stale = true;
        partition.channels.insert(state) as u32
    }

    fn detach(&mut self, now: Now, sub: SubId, _topic: &TopicRef, partition: PartitionId, _channel: &ChannelName) {
        let Some(key) = self.sub_keys.remove(&(sub, partition)) else { return };
        self.subscribing.retain(|(_, s, p)| (*s, *p) != (sub, partition));
        self.frames.remove(&sub);
        self.remote_blocked.remove(&sub);
        let Some(c) = self.partitions.channel_mut(key) else { return };
        c.machine.unsubscribe(now.ticks, sub);
        c.subs.retain(|s| *s != sub);
        c.owed.remove(&sub);
        if c.subs.is_empty() && c.name.is_ephemeral() {
            self.drop_channel(key);
        } else {
            self.wake_channel(key);
        }
    }

    /// An ephemeral channel goes with its last client. When it was the last channel, the topic collects from here on.
    fn drop_channel(&mut self, key: ChannelKey) {
        let idx = key.partition_idx();
        let partition = self.partitions.get_mut(idx);
        partition.channels.remove(key.channel as usize);
        partition.low_water_stale = true;
        let last = partition.channels.is_empty();
        self.timers.remove(Timer::Channel(key));
        self.ready.retain(|k| *k != key);
        self.fins.retain(|k| *k != key);
        if last {
            let end = self.store.durable_end(idx);
            self.store.log_collect_start(idx, end);
        }
        self.update_low_water(idx);
    }

    fn on_lent(&mut self, sub: SubId, partition: PartitionId, credit: u32) {
        let Some(&key) = self.sub_keys.get(&(sub, partition)) else { return };
        let Some(c) = self.partitions.channel_mut(key) else { return };
        c.machine.lend(sub, credit);
        self.wake_channel(key);
    }

    /// What can be given back at once; the rest follows as messages are done.
    fn on_recall(&mut self, sub: SubId, partition: PartitionId, credit: u32) -> u32 {
        let Some(&key) = self.sub_keys.get(&(sub, partition)) else { return credit };
        let Some(c) = self.partitions.channel_mut(key) else { return credit };
        let unspent = c.machine.recall(sub);
        let give = unspent.min(credit);
        c.machine.lend(sub, unspent - give);
        if give < credit {
            *c.owed.entry(sub).or_default() += credit - give;
        }
        give
    }

    /// A message in flight is done: its credit is the client's again, or goes back to its core.
    pub fn on_freed(&mut self, now: Now, key: ChannelKey, sub: SubId) {
        let Some(c) = self.partitions.channel_mut(key) else { return };
        match c.owed.get_mut(&sub) {
            Some(owed) => {
                *owed -= 1;
                if *owed == 0 {
                    c.owed.remove(&sub);
                }
                let partition = self.partitions.get(key.partition_idx()).dir.partition;
                if sub.core == self.core {
                    self.on_returned(now, sub, partition, 1);
                } else {
                    self.pass(sub.core, MeshMessage::Returned { sub, partition, credit: 1 });
                }
            }
            None => c.machine.lend(sub, 1),
        }
        self.wake_channel(key);
    }

    fn on_finish(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId) -> bool {
        let Some(&key) = self.sub_keys.get(&(sub, partition)) else { return false };
        let Some(c) = self.partitions.channel_mut(key) else { return false };
        if c.machine.finish(now.ticks, sub, id).is_err() {
            return false;
        }
        self.mark_dirty(now, key);
        self.on_freed(now, key, sub);
        true
    }

    /// FINs of this channel wait for the journal; they are durable soon even when nothing is published.
    pub fn mark_dirty(&mut self, now: Now, key: ChannelKey) {
        let Some(c) = self.partitions.channel_mut(key) else { return };
        if c.dirty {
            return;
        }
        c.dirty = true;
        if self.fins.is_empty() {
            let at = now.ticks + Duration::from_millis(self.settings.fin_sync_interval_ms);
            self.timers.at_most(Timer::Fins, Some(at));
        }
        self.fins.push(key);
    }

    fn on_requeue(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId, delay_ms: u64) -> bool {
        let Some(&key) = self.sub_keys.get(&(sub, partition)) else { return false };
        let Some(c) = self.partitions.channel_mut(key) else { return false };
        if c.machine.requeue(now.ticks, sub, id, Duration::from_millis(delay_ms)).is_err() {
            return false;
        }
        let deadline = c.machine.deadline();
        self.timers.at_most(Timer::Channel(key), deadline);
        self.on_freed(now, key, sub);
        true
    }

    fn on_touch(&mut self, now: Now, sub: SubId, partition: PartitionId, id: LogId) -> bool {
        let Some(&key) = self.sub_keys.get(&(sub, partition)) else { return false };
        self.partitions.channel_mut(key).is_some_and(|c| c.machine.touch(now.ticks, sub, id).is_ok())
    }

    fn on_block(&mut self, sub: SubId, partition: PartitionId, blocked: bool) {
        let Some(&key) = self.sub_keys.get(&(sub, partition)) else { return };
        let Some(c) = self.partitions.channel_mut(key) else { return };
        c.machine.block(sub, blocked);
        if !blocked {
            self.wake_channel(key);
        }
    }

    /// Timeouts and due deferred messages of one channel.
    pub fn tick_channel(&mut self, now: Now, key: ChannelKey) {
        let Some(c) = self.partitions.channel_mut(key) else { return };
        let mut freed = vec![];
        c.machine.tick(now.ticks, &mut |sub| freed.push(sub));
        let deadline = c.machine.deadline();
        freed.into_iter().for_each(|sub| self.on_freed(now, key, sub));
        self.timers.at_most(Timer::Channel(key), deadline);
        self.wake_channel(key);
    }

    // ---- the mesh

    pub fn on_mesh(&mut self, now: Now, from: CoreId, message: MeshMessage) {
        match message {
            MeshMessage::EnsureTopic { ticket, name } => match self.ensure_topic(now, &name) {
                Ok(true) => {
                    let topic = self.topics.known(&name).expect("the topic is known").clone();
                    self.pass(from, MeshMessage::Topic { ticket, result: Ok(topic) });
                }
                Ok(false) => self.topics.wait_core(&name, from, ticket),
                Err(error) => self.pass(from, MeshMessage::Topic { ticket, result: Err(error) }),
            },
            MeshMessage::Topic { ticket, result } => {
                let Some(Asked::Topic { name }) = self.asked.remove(&ticket) else { return };
                match result {
                    Ok(topic) => self.topic_known(topic),
                    Err(error) => self.topic_failed(&name, error),
                }
            }
            MeshMessage::Publish { ticket, topic, partition, bodies } => {
                self.topic_known(topic.clone());
                let publisher = Publisher::Core(from, ticket);
                let (count, bytes) = (bodies.ends.len(), bodies.bytes.len());
                // Order: what waits already goes first.
                let attempt = match self.parked.is_empty() {
                    true => self.append(now, &topic, partition, publisher, bodies.iter(), count, bytes),
                    false => Attempt::Wait,
                };
                match attempt {
                    Attempt::Accepted => {}
                    Attempt::Refused(error) => self.tell_publisher(publisher, Err(error)),
                    Attempt::Wait => {
                        self.parked.push_back(Parked { since: now.ticks, publisher, topic, partition, bodies });
                        let limit = Duration::from_millis(self.settings.pub_waiting_timeout_ms);
                        self.timers.at_most(Timer::Stalls, Some(now.ticks + limit));
                    }
                }
            }
            MeshMessage::Published { ticket, result } => {
                let Some(Asked::Publish { conn, slot, bytes }) = self.asked.remove(&ticket) else { return };
                self.remote_bytes -= bytes;
                self.replies.push((conn, Heard::Answer(slot, result)));
                self.resume.extend(self.room_waiters.drain(..));
            }
            MeshMessage::Subscribe { sub, topic, partition, channel, options } => {
                self.topic_known(topic.clone());
                self.attach(now, sub, &topic, partition, &channel, options);
            }
            MeshMessage::Subscribed { sub, partition, result } => self.tell_subscriber(sub, partition, result),
            MeshMessage::Unsubscribe { sub, topic, partition, channel } => self.detach(now, sub, &topic, partition, &channel),
            MeshMessage::Lend { sub, partition, credit } => self.on_lent(sub, partition, credit),
            MeshMessage::Recall { sub, partition, credit } => {
                let back = self.on_recall(sub, partition, credit);
                if back > 0 {
                    self.pass(from, MeshMessage::Returned { sub, partition, credit: back });
                }
            }
            MeshMessage::Returned { sub, partition, credit } => self.on_returned(now, sub, partition, credit),
            MeshMessage::Hungry { sub, partition } => self.on_hungry(now, sub, partition),
            MeshMessage::Block { sub, partition, blocked } => {
                if blocked {
                    self.remote_blocked.insert(sub);
                } else {
                    self.remote_blocked.remove(&sub);
                }
                self.on_block(sub, partition, blocked);
            }
            MeshMessage::Finish { sub, partition, ids } => {
                for id in ids {
                    if !self.on_finish(now, sub, partition, id) {
                        let command = InFlightCommand::Finish;
                        self.pass(from, MeshMessage::NotInFlight { sub, partition, id, command });
                    }
                }
            }
            MeshMessage::Requeue { sub, partition, id, delay_ms } => {
                if !self.on_requeue(now, sub, partition, id, delay_ms) {
                    let command = InFlightCommand::Requeue;
                    self.pass(from, MeshMessage::NotInFlight { sub, partition, id, command });
                }
            }
            MeshMessage::Touch { sub, partition, id } => {
                if !self.on_touch(now, sub, partition, id) {
                    let command = InFlightCommand::Touch;
                    self.pass(from, MeshMessage::NotInFlight { sub, partition, id, command });
                }
            }
            MeshMessage::NotInFlight { sub, partition, id, command } => {
                let id = crate::base::MessageId::new(partition, id);
                self.replies.push((sub.conn, Heard::NotInFlight(id, command)));
            }
            // The shard looks at these before it asks the engine.
            MeshMessage::Deliver { .. }
            | MeshMessage::Connection { .. }
            | MeshMessage::StatsRequest { .. }
            | MeshMessage::Stats { .. } => {}
        }
    }

    // ---- FINs and retention

    /// Hands the FINs that wait to the journal; before the batches of the same turn, so that an OK to a later publish
    /// implies them.
    pub fn journal_fins(&mut self) {
        self.timers.remove(Timer::Fins);
        for key in std::mem::take(&mut self.fins) {
            let idx = key.partition_idx();
            let Some(c) = self.partitions.channel_mut(key) else { continue };
            c.dirty = false;
            let (finished, name) = (c.machine.take_finished(), c.name.clone());
            let generation = c.machine.generation();
            if let Some(intervals) = finished
                && !name.is_ephemeral()
            {
                self.store.log_finished(idx, &name, generation, &intervals);
            }
            self.partitions.get_mut(idx).low_water_stale = true;
            self.update_low_water(idx);
        }
    }

    pub fn update_low_water(&mut self, idx: PartitionIdx) {
        let collect_start: Position = self.store.collect_start(idx);
        let partition = self.partitions.get_mut(idx);
        if std::mem::take(&mut partition.low_water_stale) {
            let low = partition.low_water(collect_start);
            self.store.set_low_water(idx, low);
        }
    }

    // ---- for the shard

    /// A remote client's bundle of frames is on its way: it may have more.
    pub fn unblock_remote(&mut self, sub: SubId) {
        if self.remote_blocked.contains(&sub) {
            return;
        }
        let keys: Vec<_> = self.sub_keys.iter().filter(|((s, _), _)| *s == sub).map(|((_, p), _)| *p).collect();
        keys.into_iter().for_each(|partition| self.on_block(sub, partition, false));
    }

    pub fn tell_hungry(&mut self, now: Now, sub: SubId, partition: PartitionId) {
        if sub.core == self.core {
            self.on_hungry(now, sub, partition);
        } else {
            self.pass(sub.core, MeshMessage::Hungry { sub, partition });
        }
    }

    /// Whether somebody still waits for an answer.
    pub fn has_outstanding(&self) -> bool {
        !self.asked.is_empty() || self.partitions.iter().any(|(_, p)| !p.publishers.is_empty())
    }
}
