//! The partitions of this core: each with its replica, its channels, and its waiting publishers; which channels have work at the end
//! of a turn ([`agenda`]), and the memory of their open messages ([`room`]).

mod agenda;
mod channel_state;
mod room;

use super::replication::{Origin, Seat};
use crate::base::{
    ChannelName, ConnId, CoreId, IdMap, LogId, MessagePlace, Now, PartitionDir, PartitionId, Position, SubId, Ticks, TopicId,
    TopicRef,
};
use crate::channel::{Channel, Tail};
use crate::codec::peer::message::Route;
use crate::format::cursor::CursorImage;
use crate::log::{AppendTicket, CursorSource, PartitionIdx, Store};
use crate::replica::{Alarm, Replica};
use crate::seam::{
    cluster::ClusterNode,
    message::Ticket,
    outcome::{InFlightError, PublishError},
};
use crate::session::ReplySlot;
use agenda::Agenda;
pub use channel_state::ChannelState;
use room::OpenMemory;
use slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A channel on this core, for timers and ready lists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ChannelKey {
    pub partition: u32,
    pub channel: u32,
}

impl ChannelKey {
    pub fn partition_idx(self) -> PartitionIdx {
        PartitionIdx(self.partition)
    }
}

/// Recipient of a publish's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Publisher {
    Session(ConnId, ReplySlot),
    Core(CoreId, Ticket),
    Node(Origin),
    /// A native request: its batch begins at `at`, as far as that is known; it may have been there before.
    Native {
        conn: ConnId,
        request: u64,
        at: Option<Position>,
        duplicate: bool,
    },
    /// The channel, of whose message with this id it is a copy, by the number of the attempt.
    Copy(ChannelKey, LogId, u64),
}

impl Publisher {
    /// Whether a client of another node hears of it.
    pub fn is_of_node(self) -> bool {
        matches!(self, Publisher::Node(_))
    }
}

/// Outcome of a FIN.
pub enum Finished {
    /// No further work: the channel has a turn and a journal write coming.
    Quietly,
    /// The FIN waits for the journal, and the message's credit is free.
    Frees,
    /// The FIN is a change of the cursor that is not final.
    Waits,
}

/// Machine that decides the committed end.
enum Role {
    /// The node is alone.
    Alone(Replica),
    /// Replica of a cluster's partition, perhaps the only one.
    Member(Box<Seat>),
    /// Replica of a partition that goes, as the cluster deleted its topic or moved the replica: nothing is decided any more, and nothing
    /// served.
    Retired { committed: Position },
}

pub struct Partition {
    pub topic: TopicRef,
    pub dir: Arc<PartitionDir>,
    role: Role,
    /// Channels, and the mark of a pause, which is a cursor and no channel ([`Partition::pause`]).
    pub channels: Slab<ChannelState>,
    /// Place of that mark, while the topic is paused.
    pub pause: Option<u32>,
    /// Waiting publishers in order, each with the time since when.
    pub publishers: VecDeque<(AppendTicket, Publisher, Ticks)>,
    pub message_bytes: u64,
    /// Tail of the log that is kept for ephemeral channels, while there are any, or for an ephemeral topic's first one.
    tail: Option<Box<Tail>>,
    pub low_water_stale: bool,
    /// Generation of a new channel: higher than the generation of every deleted one.
    pub generation_floor: u64,
}

impl Partition {
    /// Partition of a node that is alone.
    pub fn alone(topic: TopicRef, dir: Arc<PartitionDir>, replica: Replica) -> Self {
        Self::new(topic, dir, Role::Alone(replica))
    }

    /// Partition of a cluster.
    pub fn member(topic: TopicRef, dir: Arc<PartitionDir>, seat: Box<Seat>) -> Self {
        Self::new(topic, dir, Role::Member(seat))
    }

    fn new(topic: TopicRef, dir: Arc<PartitionDir>, role: Role) -> Self {
        Partition {
            topic,
            dir,
            role,
            channels: Slab::new(),
            pause: None,
            publishers: VecDeque::new(),
            message_bytes: 0,
            tail: None,
            low_water_stale: true,
            generation_floor: 0,
        }
    }

    /// Consumers see up to here only.
    pub fn committed(&self) -> Position {
        match &self.role {
            Role::Alone(replica) => replica.committed(),
            Role::Member(seat) => seat.member.committed(),
            Role::Retired { committed } => *committed,
        }
    }

    /// End of the messages that flow to channels: the committed end, or the topic's pause.
    pub fn flows_to(&self) -> Position {
        let mark = self.pause.map(|i| self.channels[i as usize].machine.confirmed());
        mark.map_or(self.committed(), |mark| std::cmp::min_by_key(mark, self.committed(), |p| p.offset))
    }

    /// Channels that clients know.
    pub fn open_channels(&self) -> impl Iterator<Item = (u32, &ChannelState)> {
        self.channels.iter().map(|(i, c)| (i as u32, c)).filter(|(i, _)| Some(*i) != self.pause)
    }

    pub fn has_channels(&self) -> bool {
        self.channels.len() > usize::from(self.pause.is_some())
    }

    fn retire(&mut self) -> Option<Box<Seat>> {
        let retired = Role::Retired { committed: self.committed() };
        match std::mem::replace(&mut self.role, retired) {
            Role::Member(seat) => Some(seat),
            other => {
                self.role = other;
                None
            }
        }
    }

    pub fn is_retired(&self) -> bool {
        matches!(self.role, Role::Retired { .. })
    }

    /// Replica of a cluster's partition. `None`: the node is alone, or the partition goes.
    pub fn seat(&self) -> Option<&Seat> {
        if let Role::Member(seat) = &self.role { Some(seat) } else { None }
    }

    pub fn seat_mut(&mut self) -> Option<&mut Seat> {
        if let Role::Member(seat) = &mut self.role { Some(seat) } else { None }
    }

    /// The same, and the channels that it looks at.
    pub fn seat_and_channels(&mut self) -> Option<(&mut Seat, &Slab<ChannelState>)> {
        if let Role::Member(seat) = &mut self.role { Some((seat, &self.channels)) } else { None }
    }

    /// Decider of a node that is alone.
    pub fn alone_mut(&mut self) -> Option<&mut Replica> {
        if let Role::Alone(replica) = &mut self.role { Some(replica) } else { None }
    }

    /// Whether a publish may be appended.
    pub fn check_write(&self, now: Ticks) -> Result<(), PublishError> {
        match &self.role {
            Role::Alone(_) => Ok(()),
            Role::Member(seat) => seat.member.check_write(now).map_err(PublishError::from),
            Role::Retired { .. } => Err(PublishError::TopicNotExist),
        }
    }

    /// Whether its channels may deliver, take FINs and SUBs.
    pub fn check_read(&self, now: Ticks) -> Result<(), PublishError> {
        match &self.role {
            Role::Alone(_) => Ok(()),
            Role::Member(seat) => seat.member.check_read(now).map_err(PublishError::from),
            Role::Retired { .. } => Err(PublishError::TopicNotExist),
        }
    }

    /// True if a channel of this name is being deleted: a SUB of it waits.
    pub fn is_deleting(&self, name: &ChannelName) -> bool {
        self.channel(name).is_some_and(|i| self.channels[i as usize].machine.is_deleting())
    }

    /// Whether a channel counts as the topic's first, as partition 0 says. A channel without the flag that is alone (a native client
    /// made it) is as good as the first.
    pub fn was_first(&self, channel: u32) -> bool {
        self.channels[channel as usize].machine.is_first() || self.open_channels().count() == 1
    }

    /// The append whose commit answers the repeat of a durable original at `at`, or at an unknown place. `None`: it is committed and
    /// answered. The original may be uncommitted, or committed and waiting for batches behind it in the same journal write.
    pub fn original_at(&self, at: Option<Position>) -> Option<AppendTicket> {
        let is_it =
            |publisher: &Publisher| matches!(publisher, Publisher::Native { at: place, .. } if place.is_some() && *place == at);
        let waiting = self.publishers.iter().find(|(_, publisher, _)| is_it(publisher));
        waiting.map(|(ticket, _, _)| *ticket).or_else(|| self.seat()?.commits_at(at))
    }

    pub fn raise_alarm(&mut self, alarm: Alarm, nodes: &[ClusterNode]) {
        if let Some(seat) = self.seat_mut()
            && seat.raise(alarm)
        {
            let alarm = alarm.text(nodes);
            tracing::error!(topic = %self.topic.name, partition = %self.dir.partition, alarm, "the partition needs an operator");
        }
    }

    pub fn end_alarm(&mut self, is_over: impl FnOnce(&Alarm) -> bool) {
        if let Some(seat) = self.seat_mut()
            && seat.end_alarm(is_over)
        {
            tracing::info!(topic = %self.topic.name, partition = %self.dir.partition, "the partition's alarm is over");
        }
    }

    pub fn channel(&self, name: &str) -> Option<u32> {
        self.channels.iter().find(|(_, c)| &*c.name == name).map(|(key, _)| key as u32)
    }

    /// Tells the store where the low water stands, if that may have changed.
    pub fn update_low_water(&mut self, idx: PartitionIdx, store: &mut Store) {
        if std::mem::take(&mut self.low_water_stale) {
            let low = self.low_water(store.collect_start(idx));
            store.set_low_water(idx, low);
        }
    }

    /// Position up to which every channel has confirmed everything, and at which no channel begins after a topic's pause. An ephemeral
    /// channel needs nothing before the floor of the [`Tail`], even where it has it in flight.
    pub fn low_water(&self, collect_start: Position) -> Position {
        let floor = self.floor();
        let needed = self.channels.iter().map(|(_, c)| match c.name.is_ephemeral() {
            true => later(c.machine.confirmed(), floor),
            false => c.machine.confirmed(),
        });
        let collect_start = self.collected_from(collect_start);
        let collected = (!self.has_channels()).then_some(collect_start);
        needed.chain(collected).min_by_key(|p| p.offset).unwrap_or(collect_start)
    }

    /// Position at which the topic's next first channel begins: an ephemeral topic keeps no more than an ephemeral channel.
    pub fn collected_from(&self, collect_start: Position) -> Position {
        let floor = self.floor().filter(|_| self.topic.name.is_ephemeral());
        later(collect_start, floor)
    }

    fn floor(&self) -> Option<Position> {
        self.tail.as_ref()?.floor(self.flows_to())
    }

    fn keep_tail(&mut self, kept: u64) {
        let end = self.flows_to();
        self.tail.get_or_insert_with(|| Box::new(Tail::new(kept, end)));
    }

    /// An ephemeral channel is gone.
    fn forget_tail(&mut self) {
        let is_needed = self.topic.name.is_ephemeral() || self.channels.iter().any(|(_, c)| c.name.is_ephemeral());
        self.tail.take_if(|_| !is_needed);
    }

    /// Drops the messages beyond an ephemeral channel's bound. Logs a line about it, at most once in [`TOLD_EVERY`].
    fn drop_old(&mut self, now: Now, channel: u32) {
        if self.tail.is_none() {
            return;
        }
        let end = self.flows_to();
        let Partition { topic, dir, channels, tail: Some(tail), .. } = self else { return };
        let Some(c) = channels.get_mut(channel as usize) else { return };
        let dropped = c.machine.drop_old(tail, end);
        if dropped > 0 && c.tell_dropped_at <= now.ticks {
            c.tell_dropped_at = now.ticks + TOLD_EVERY;
            tracing::warn!(
                topic = %topic.name, partition = %dir.partition, channel = %c.name, dropped, mem_queue_size = tail.kept(),
                "the ephemeral channel has more messages than it may keep, and drops the oldest"
            );
        }
    }
}

/// Shortest time between two log lines about one channel.
const TOLD_EVERY: Duration = Duration::from_secs(60);

fn later(at: Position, floor: Option<Position>) -> Position {
    floor.filter(|floor| floor.offset > at.offset).unwrap_or(at)
}

const KNOWN: &str = "an index that the store knows has a partition";

fn channel_at(slots: &mut [Option<Partition>], key: ChannelKey) -> Option<&mut ChannelState> {
    slots.get_mut(key.partition as usize)?.as_mut()?.channels.get_mut(key.channel as usize)
}

/// Partitions by the store's index; both grow together.
pub struct Partitions {
    slots: Vec<Option<Partition>>,
    by_dir: HashMap<Arc<PartitionDir>, PartitionIdx>,
    /// Partitions with a replica of a cluster that is not retired.
    members: IdMap<Route, PartitionIdx>,
    /// The channel from which an NSQ client gets a partition's messages.
    clients: IdMap<(SubId, PartitionId), ChannelKey>,
    pub(super) agenda: Agenda,
    open_memory: OpenMemory,
    /// Messages that a partition keeps for its ephemeral channels.
    ephemeral_max: u64,
}

impl Partitions {
    /// No partitions yet; the open messages of all channels may take so many bytes, and a partition keeps so many messages for ephemeral
    /// channels.
    pub fn new(channel_memory: u64, ephemeral_max: u64) -> Self {
        Partitions {
            slots: vec![],
            by_dir: HashMap::new(),
            members: IdMap::default(),
            clients: IdMap::default(),
            agenda: Agenda::default(),
            open_memory: OpenMemory::new(channel_memory),
            ephemeral_max,
        }
    }

    pub fn insert(&mut self, idx: PartitionIdx, mut partition: Partition) {
        let i = idx.0 as usize;
        if partition.topic.name.is_ephemeral() {
            partition.keep_tail(self.ephemeral_max);
        }
        if self.slots.len() <= i {
            self.slots.resize_with(i + 1, || None);
        }
        self.by_dir.insert(partition.dir.clone(), idx);
        if let Some(seat) = partition.seat() {
            self.members.insert(seat.member.route(), idx);
        }
        let old = self.slots[i].replace(partition);
        assert!(old.is_none(), "the store reuses an index only after it was removed");
    }

    /// The store has removed it; the index may come again for another one.
    pub fn remove(&mut self, idx: PartitionIdx) {
        if let Some(partition) = self.slots.get_mut(idx.0 as usize).and_then(Option::take)
            && self.by_dir.get(&partition.dir) == Some(&idx)
        {
            self.by_dir.remove(&partition.dir);
        }
    }

    /// Takes the partition's replica out, for good: the partition goes.
    pub fn retire(&mut self, idx: PartitionIdx) -> Option<Box<Seat>> {
        let seat = self.get_mut(idx).retire()?;
        self.members.remove(&seat.member.route());
        Some(seat)
    }

    /// Makes the partition unfindable by its name, as if this node never had it.
    pub fn unlist(&mut self, idx: PartitionIdx) {
        let dir = self.get(idx).dir.clone();
        self.by_dir.remove(&dir);
    }

    /// The partitions of the topic.
    pub fn of_topic(&self, topic: TopicId) -> Vec<PartitionIdx> {
        self.iter().filter(|(_, p)| p.topic.id == topic).map(|(idx, _)| idx).collect()
    }

    /// The partition of this core, if it has a replica of a cluster that is not retired.
    pub fn member_at(&self, route: Route) -> Option<PartitionIdx> {
        self.members.get(&route).copied()
    }

    /// Such partitions of the topic.
    pub fn members_of(&self, topic: TopicId) -> impl Iterator<Item = (PartitionId, PartitionIdx)> {
        let of_topic = self.members.iter().filter(move |(route, _)| route.topic_id == topic);
        of_topic.map(|(route, idx)| (route.partition, *idx))
    }

    /// The partitions that have a replica of a cluster.
    pub fn members(&self) -> Vec<PartitionIdx> {
        self.iter().filter(|(_, p)| p.seat().is_some()).map(|(idx, _)| idx).collect()
    }

    pub fn channel_keys(&self, idx: PartitionIdx) -> Vec<ChannelKey> {
        let channels = self.get(idx).channels.iter();
        channels.map(|(i, _)| ChannelKey { partition: idx.0, channel: i as u32 }).collect()
    }

    /// The more exact reason why a message is not in flight for the client, if known; else `why`.
    pub fn why_not_in_flight(&self, sub: SubId, place: MessagePlace, why: InFlightError) -> InFlightError {
        let channel = self.of_client(sub, place.partition).and_then(|key| self.look_at_channel(key));
        let is_anothers = channel.is_some_and(|c| c.machine.is_anothers(sub, place.log_id));
        if why == InFlightError::NotInFlight && is_anothers { InFlightError::NotOwned } else { why }
    }

    /// Finishes a message that is in flight for the client.
    pub fn finish(&mut self, now: Ticks, key: ChannelKey, sub: SubId, id: LogId) -> Result<Finished, InFlightError> {
        let c = self.served_mut(now, key).ok_or(InFlightError::NotInFlight)?;
        if c.machine.is_ordered() {
            self.check_change(now, key).map_err(InFlightError::Refused)?;
        }
        let c = self.channel_mut(key).ok_or(InFlightError::NotInFlight)?;
        c.machine.finish(now, sub, id).map_err(|_| InFlightError::NotInFlight)?;
        Ok(match () {
            () if c.takes_fins_quietly() => {
                // The common case, in one look at the channel.
                c.machine.lend(sub, 1);
                Finished::Quietly
            }
            () if c.machine.finishing().is_some() => Finished::Waits,
            () => Finished::Frees,
        })
    }

    /// Counts `num` messages in flight as done: their credit is the client's again, but for the returned part, which was recalled.
    pub fn free(&mut self, key: ChannelKey, sub: SubId, num: u32) -> u32 {
        let Some(c) = channel_at(&mut self.slots, key) else { return 0 };
        let back = c.free(sub, num);
        self.agenda.wake(key, c);
        back
    }

    /// The channel from which the client gets this partition's messages.
    pub fn of_client(&self, sub: SubId, partition: PartitionId) -> Option<ChannelKey> {
        self.clients.get(&(sub, partition)).copied()
    }

    pub fn set_client(&mut self, sub: SubId, partition: PartitionId, key: ChannelKey) {
        self.clients.insert((sub, partition), key);
    }

    pub fn forget_client(&mut self, sub: SubId, partition: PartitionId) -> Option<ChannelKey> {
        self.clients.remove(&(sub, partition))
    }

    pub fn find(&self, dir: &PartitionDir) -> Option<PartitionIdx> {
        self.by_dir.get(dir).copied()
    }

    pub fn get(&self, idx: PartitionIdx) -> &Partition {
        self.slots[idx.0 as usize].as_ref().expect(KNOWN)
    }

    /// The same, of an index that may be gone.
    pub fn look(&self, idx: PartitionIdx) -> Option<&Partition> {
        self.slots.get(idx.0 as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, idx: PartitionIdx) -> &mut Partition {
        self.slots[idx.0 as usize].as_mut().expect(KNOWN)
    }

    /// The channel, if it may be used now.
    pub fn served_mut(&mut self, now: Ticks, key: ChannelKey) -> Option<&mut ChannelState> {
        let partition = self.slots.get_mut(key.partition as usize)?.as_mut()?;
        partition.check_read(now).ok()?;
        partition.channels.get_mut(key.channel as usize)
    }

    /// Refuses a change of the channel with a waiting client below `min_isr`: the remaining replicas would confirm a change that the
    /// next leader may lack. Changes of ephemeral channels are never refused: only this replica has them.
    pub fn check_change(&self, now: Ticks, key: ChannelKey) -> Result<(), PublishError> {
        let Some(p) = self.look(key.partition_idx()) else { return Ok(()) };
        let is_replicated = p.channels.get(key.channel as usize).is_some_and(|c| !c.name.is_ephemeral());
        if is_replicated { p.check_write(now) } else { Ok(()) }
    }

    /// Whether a client may be added: where that changes the channel, or its last change is uncertain, others have to confirm it.
    pub fn check_join(&self, now: Ticks, key: ChannelKey, makes_ordered: bool) -> Result<(), PublishError> {
        let c = &self.get(key.partition_idx()).channels[key.channel as usize];
        let changes = c.is_uncertain || makes_ordered && !c.machine.is_ordered();
        if changes { self.check_change(now, key) } else { Ok(()) }
    }

    /// The channel, if the slot has not been given to another one since.
    pub fn channel_of(&mut self, key: ChannelKey, topic: TopicId, name: &ChannelName) -> Option<&mut ChannelState> {
        let is_it = self.look(key.partition_idx()).is_some_and(|p| p.dir.topic_id == topic);
        self.channel_mut(key).filter(|c| is_it && c.name == *name)
    }

    fn look_at_channel(&self, key: ChannelKey) -> Option<&ChannelState> {
        self.look(key.partition_idx())?.channels.get(key.channel as usize)
    }

    pub fn channel_mut(&mut self, key: ChannelKey) -> Option<&mut ChannelState> {
        channel_at(&mut self.slots, key)
    }

    /// A channel comes to the partition, or the mark of a pause.
    pub fn add_channel(&mut self, idx: PartitionIdx, name: ChannelName, machine: Channel) -> u32 {
        let ephemeral_max = self.ephemeral_max;
        let partition = self.get_mut(idx);
        let is_pause = name.is_topic_pause();
        if name.is_ephemeral() {
            partition.keep_tail(ephemeral_max);
        }
        partition.low_water_stale = true;
        let place = partition.channels.insert(ChannelState::new(name, machine)) as u32;
        if is_pause {
            partition.pause = Some(place);
        }
        place
    }

    /// Forgets a channel without clients, and everything here that names its slot, which may be reused. Returns its name.
    pub fn remove_channel(&mut self, key: ChannelKey) -> ChannelName {
        let partition = self.get_mut(key.partition_idx());
        let gone = partition.channels.remove(key.channel as usize);
        partition.low_water_stale = true;
        if partition.pause == Some(key.channel) {
            partition.pause = None;
        }
        if gone.name.is_ephemeral() {
            partition.forget_tail();
        }
        self.open_memory.forget(key, gone.open_bytes);
        self.agenda.forget(key);
        gone.name
    }

    // ---- turns of channels

    /// The channel may have something to deliver.
    pub fn wake(&mut self, key: ChannelKey) {
        if let Some(c) = channel_at(&mut self.slots, key) {
            self.agenda.wake(key, c);
        }
    }

    /// The partition's channels may have something to deliver, to copy or to drop. Whether the low water may have moved.
    pub(super) fn wake_all(&mut self, idx: PartitionIdx) -> bool {
        let partition = self.slots[idx.0 as usize].as_mut().expect(KNOWN);
        let end = partition.flows_to();
        partition.low_water_stale |= partition.tail.as_mut().is_some_and(|tail| tail.reach(end));
        let Partition { channels, tail, low_water_stale, .. } = partition;
        for (i, channel) in channels.iter_mut() {
            let has_old = || tail.as_ref().is_some_and(|tail| channel.machine.has_old(tail, end));
            if !channel.subs.is_empty() || channel.machine.wants_copies() || has_old() {
                self.agenda.wake(ChannelKey { partition: idx.0, channel: i as u32 }, channel);
            }
        }
        *low_water_stale && tail.is_some()
    }

    /// FINs of the channel wait for the journal. True: they are the only ones.
    pub fn add_fins(&mut self, key: ChannelKey) -> bool {
        let Some(c) = channel_at(&mut self.slots, key).filter(|c| !c.dirty) else { return false };
        let is_first = !self.agenda.has_fins();
        self.agenda.add_fins(key, c);
        is_first
    }

    /// The channel whose turn comes, with the room that it has for open messages.
    pub fn begin_turn(&mut self, key: ChannelKey) -> Option<&mut ChannelState> {
        let c = channel_at(&mut self.slots, key)?;
        self.open_memory.give_room(c);
        c.queued = false;
        Some(c)
    }

    /// Drops the messages beyond an ephemeral channel's bound, counts the open messages after the channel's turn, and logs if they fill
    /// the channel's memory.
    pub fn end_turn(&mut self, now: Now, key: ChannelKey) {
        let Some(Some(partition)) = self.slots.get_mut(key.partition as usize) else { return };
        partition.drop_old(now, key.channel);
        if self.open_memory.count(partition, key) {
            self.open_memory.tell_held(now, partition, key);
        }
    }

    /// Counts a channel's open messages.
    pub fn count_open(&mut self, key: ChannelKey) {
        if let Some(Some(partition)) = self.slots.get_mut(key.partition as usize) {
            self.open_memory.count(partition, key);
        }
    }

    /// Wakes the channels that hold for memory, once some became free.
    #[inline]
    pub fn wake_holding(&mut self) {
        if let Some(holding) = self.open_memory.take_holding() {
            holding.into_iter().for_each(|key| self.wake(key));
        }
    }

    /// The oldest message that a new channel may have. No replica removes messages behind the lowest such position of all possible
    /// leaders, so every one of them has the messages that a channel begun here needs.
    pub fn oldest(&self, idx: PartitionIdx, store: &Store) -> Position {
        let collected_from = self.get(idx).collected_from(store.collect_start(idx));
        std::cmp::max_by_key(collected_from, store.start(idx), |p| p.offset)
    }

    /// The channel's cursor moved in the journal: a leader's replica hears of it, once until it asks for the cursor.
    pub fn note_moved(&mut self, key: ChannelKey) {
        if self.look(key.partition_idx()).and_then(Partition::seat).is_some_and(Seat::is_leader)
            && let Some(c) = channel_at(&mut self.slots, key)
        {
            self.agenda.note_moved(key, c);
        }
    }

    /// Bytes of all open messages.
    #[cfg(test)]
    pub fn open_bytes(&self) -> usize {
        self.open_memory.used_bytes()
    }

    // ----

    pub fn channels_mut(&mut self) -> impl Iterator<Item = (PartitionIdx, &mut Slab<ChannelState>)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(i, p)| Some((PartitionIdx(i as u32), &mut p.as_mut()?.channels)))
    }

    pub fn iter(&self) -> impl Iterator<Item = (PartitionIdx, &Partition)> {
        self.slots.iter().enumerate().filter_map(|(i, p)| Some((PartitionIdx(i as u32), p.as_ref()?)))
    }
}

impl CursorSource for Partitions {
    /// Cursors for a snapshot or a list. Without ephemeral channels, which never reach the disk, and channels that are being deleted,
    /// which are gone there already.
    fn cursors(&self, idx: PartitionIdx) -> Vec<CursorImage> {
        let channels = self.get(idx).channels.iter();
        channels.filter(|(_, c)| !c.name.is_ephemeral() && !c.machine.is_deleting()).map(|(_, c)| c.machine.image()).collect()
    }
}
