//! Random lives of a channel against a naive model: a map of the state that each message must have, by the channel's inputs and
//! deliveries, compared after every step. The model knows single messages only: a channel with its runs and ranges must act as it would
//! message by message.

use super::deliver::Turn;
use super::{Channel, ChannelOptions, NotInFlight, Run, Sink, Source};
use crate::base::{ChannelName, ConnId, CoreId, Epoch, LogId, PartitionId, Position, Rng, SubId, Ticks, TopicId};
use crate::format::batch::{Batch, BatchBuilder, Message, Messages, Stamp};
use crate::format::cursor::{CursorImage, Interval};
use crate::log::confirmed::Confirmed;
use crate::log::fetch::Fetch;
use crate::{base::client::ClientInfo, seam::message::SubOptions};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NS_PER_MS: u64 = 1_000_000;
const CLIENTS: u64 = 4;
const PARTITION: PartitionId = PartitionId(3);
const MAX_MSG_TIMEOUT: Duration = Duration::from_millis(900);
const MAX_REQ_TIMEOUT: Duration = Duration::from_millis(5_000);
/// Messages and bytes of a turn that takes all there is.
const LARGE_TURN: (usize, usize) = (2500, 256 * 1024);

#[derive(Clone, Debug)]
enum Item {
    Batch(Batch),
    /// Answered as [`Fetch::Lost`].
    Lost,
    /// Ids that no batch has, at the offset of the next item.
    Gap,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Unread,
    InFlight { client: u64, delivered: u64, deadline: u64 },
    Waiting,
    Deferred { due: u64 },
    Done,
}

#[derive(Clone, Copy)]
struct Client {
    credit: u32,
    blocked: bool,
    timeout_ms: u64,
    ranged: bool,
}

/// Log, clients and what every message's state must be.
struct Model {
    items: Vec<(Position, Position, Item)>,
    end: Position,
    state: BTreeMap<u64, (State, u16)>,
    clients: BTreeMap<u64, Client>,
    paused: bool,
    now: u64,
    rng: Rng,
    /// Percentage of fetches that are not ready; `refuse`: of deliveries that are refused.
    pending: u64,
    refuse: u64,
    fetch_was_pending: bool,
    /// Messages that this delivery handed out.
    delivered_count: u64,
    /// Due times of the messages that have one; the wall clock is `now`.
    due: BTreeMap<u64, u64>,
}

fn sub(client: u64) -> SubId {
    SubId { core: CoreId(1), conn: ConnId(client) }
}

/// Latest time at which a deferred message may come, in milliseconds: a long delay is rounded up.
fn coarse(due_ms: u64) -> u64 {
    due_ms.next_multiple_of(64)
}

fn body(id: u64) -> Vec<u8> {
    format!("message {id}").into_bytes().repeat(1 + id as usize % 3)
}

impl Model {
    fn add(&mut self, item: Item, to: Position) {
        for id in self.end.log_id.0..to.log_id.0 {
            self.state.insert(id, (State::Unread, 0));
        }
        self.items.push((self.end, to, item));
        self.end = to;
    }

    fn publish(&mut self, num: u64, delays_ms: &[u64]) {
        let mut builder = BatchBuilder::default();
        for n in 0..num {
            let id = self.end.log_id.0 + n;
            let delay_ms = delays_ms.get(n as usize % delays_ms.len().max(1)).copied().unwrap_or(0);
            let due = (delay_ms > 0).then(|| self.now + delay_ms * NS_PER_MS - 1);
            self.due.extend(due.map(|due| (id, due)));
            builder.push_due(1, due.map(|due| due as i64), &body(id));
        }
        let batch =
            builder.seal(Stamp { topic_id: TopicId([1; 16]), partition: PARTITION, epoch: Epoch(1), at: self.end, prev_crc: 0 });
        let to = batch.header.end();
        self.add(Item::Batch(batch), to);
    }

    fn lose(&mut self, num: u64, kind: u8) {
        let bytes = if kind == 2 { 0 } else { 128 + num as i64 * 20 };
        let to = Position {
            offset: self.end.offset + bytes,
            count: self.end.count + num as i64,
            log_id: LogId(self.end.log_id.0 + num),
        };
        let item = match kind {
            0 => Item::Lost,
            1 => Item::Batch(Batch::lost(TopicId([1; 16]), PARTITION, Epoch(1), self.end, to, 0).expect("there is room")),
            _ => Item::Gap,
        };
        self.add(item, to);
        if kind == 2 {
            self.publish(1, &[]);
        }
    }

    fn done_runs(&self) -> Vec<Interval> {
        let mut runs: Vec<Interval> = vec![Interval { start: LogId(1), end: self.position_of(1) }];
        for (&id, _) in self.state.iter().filter(|(_, s)| s.0 == State::Done) {
            let end = self.position_of(id + 1);
            match runs.last_mut() {
                Some(run) if run.end.log_id.0 == id => run.end = end,
                _ => runs.push(Interval { start: LogId(id), end }),
            }
        }
        runs
    }

    fn position_of(&self, id: u64) -> Position {
        let at = self.items.partition_point(|(_, to, _)| to.log_id.0 <= id);
        let Some(&(from, _, _)) = self.items.get(at) else { return self.end };
        Position { offset: from.offset, count: from.count + (id - from.log_id.0) as i64, log_id: LogId(id) }
    }

    fn count(&self, is: impl Fn(&State) -> bool) -> u64 {
        self.state.values().filter(|s| is(&s.0)).count() as u64
    }

    fn held_by(&self, client: u64) -> Vec<u64> {
        let is_his = |s: &State| matches!(s, State::InFlight { client: c, .. } if *c == client);
        self.state.iter().filter(|(_, s)| is_his(&s.0)).map(|(&id, _)| id).collect()
    }

    /// A range, and what a command about it concerns: nothing for a client that is not ranged.
    fn held_in(&self, client: u64, range: Around) -> (LogId, LogId, Vec<u64>) {
        let mut ids = self.held_by(client);
        let middle = ids.get(range.nth % ids.len().max(1)).copied().unwrap_or(1);
        let first = middle.saturating_sub(range.before);
        let last = first.saturating_add(range.ids).wrapping_sub(1);
        let is_ranged = self.clients.get(&client).is_some_and(|c| c.ranged);
        ids.retain(|id| is_ranged && (first..=last).contains(id));
        (LogId(first), LogId(last), ids)
    }

    fn touched(&mut self, client: u64, id: u64) {
        let (now, timeout) = (self.now, self.clients[&client].timeout_ms * NS_PER_MS);
        let Some((State::InFlight { deadline, delivered, .. }, _)) = self.state.get_mut(&id) else { panic!("held") };
        *deadline = (now + timeout).min(*delivered + MAX_MSG_TIMEOUT.as_nanos() as u64);
    }
}

impl Source for Model {
    fn fetch(&mut self, offset: i64) -> Fetch {
        if offset == self.end.offset {
            return Fetch::End;
        }
        if self.rng.below(100) < self.pending {
            self.fetch_was_pending = true;
            return Fetch::Pending;
        }
        let is_there = |(from, _, item): &&(Position, Position, Item)| from.offset == offset && !matches!(item, Item::Gap);
        let (from, to, item) = self.items.iter().find(is_there).expect("a batch start").clone();
        // A gap counts as confirmed once the channel reaches it.
        let gaps = self.items.iter().filter(|(_, to, item)| to.offset == offset && matches!(item, Item::Gap));
        let mut gone: Vec<u64> = gaps.flat_map(|(from, to, _)| from.log_id.0..to.log_id.0).collect();
        let answer = match item {
            Item::Batch(batch) => {
                if batch.header.is_lost() {
                    gone.extend(from.log_id.0..to.log_id.0);
                }
                Fetch::Batch(batch)
            }
            _ => {
                gone.extend(from.log_id.0..to.log_id.0);
                Fetch::Lost { from, to }
            }
        };
        for id in gone {
            self.state.insert(id, (State::Done, 0));
        }
        answer
    }

    fn unix_ns(&self) -> i64 {
        self.now as i64
    }
}

/// The sink checks each delivery against the model that the source changes, so both are one thing behind a cell.
struct Shared<'a>(&'a std::cell::RefCell<Model>);

impl Source for Shared<'_> {
    fn fetch(&mut self, offset: i64) -> Fetch {
        self.0.borrow_mut().fetch(offset)
    }

    fn unix_ns(&self) -> i64 {
        self.0.borrow().unix_ns()
    }
}

impl Sink for Shared<'_> {
    fn deliver(&mut self, to: SubId, message: &Message<'_>, attempts: u16, _: Option<(i64, u32)>) -> bool {
        let model = &mut *self.0.borrow_mut();
        let log_id = message.log_id.0;
        assert_eq!(message.body, &*body(log_id));
        if !model.takes(to, 1, false) {
            return false;
        }
        model.delivered(to, log_id, attempts);
        true
    }

    fn deliver_range(&mut self, to: SubId, run: &Run<'_>) -> bool {
        let model = &mut *self.0.borrow_mut();
        assert!(run.num > 0);
        if !model.takes(to, run.num, true) {
            return false;
        }
        let start = model.position_of(run.first.0);
        assert_eq!((run.batch.header.offset.get(), run.count), (start.offset, start.count));
        assert_eq!(run.is_whole_batch(), run.num == run.batch.header.num.get());
        let mut messages = Messages::resume(run.stored(), run.first, 0);
        for log_id in run.first.0..=run.last().0 {
            let message = messages.next().expect("a run has its messages");
            assert_eq!((message.log_id.0, message.body), (log_id, &*body(log_id)));
            model.delivered(to, log_id, run.attempts);
        }
        assert_eq!(messages.rest_len(), 0);
        true
    }
}

impl Model {
    /// The client is asked to take messages, and says whether it does.
    fn takes(&mut self, to: SubId, num: u32, ranged: bool) -> bool {
        assert!(!self.paused);
        let refuse = self.rng.below(100) < self.refuse;
        let client = self.clients.get_mut(&to.conn.0).expect("subscribed");
        assert!(client.credit >= num && !client.blocked, "credit is never exceeded");
        assert_eq!(client.ranged, ranged);
        if refuse {
            client.blocked = true;
            return false;
        }
        client.credit -= num;
        self.delivered_count += num as u64;
        true
    }

    fn delivered(&mut self, to: SubId, log_id: u64, attempts: u16) {
        let timeout = self.clients[&to.conn.0].timeout_ms * NS_PER_MS;
        let (state, tries) = self.state[&log_id];
        assert_eq!(attempts, tries + 1);
        if state == State::Unread && self.due.contains_key(&log_id) {
            assert!(self.due[&log_id] <= self.now, "never early");
        } else if state == State::Unread {
            let is_first = |(id, s): &(&u64, &(State, u16))| s.0 == State::Unread && !self.due.contains_key(*id);
            let first = self.state.iter().find(is_first).map(|(&id, _)| id);
            assert_eq!(first, Some(log_id), "new messages come in log order");
            assert!(self.fetch_was_pending || self.count(|s| *s == State::Waiting) == 0, "waiting ones come first");
        } else {
            assert_eq!(state, State::Waiting, "delivered once at a time, and never after its FIN");
        }
        let in_flight = State::InFlight { client: to.conn.0, delivered: self.now, deadline: self.now + timeout };
        self.state.insert(log_id, (in_flight, attempts));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish { num: u64, delays_ms: Vec<u64> },
    Lose { num: u64, kind: u8 },
    Subscribe { client: u64, timeout_ms: u64, ranged: bool },
    Unsubscribe { client: u64 },
    Lend { client: u64, credit: u32 },
    Recall { client: u64 },
    Block { client: u64, blocked: bool },
    Pause { paused: bool },
    Deliver { pending: u64, refuse: u64, turn: (usize, usize) },
    Finish { client: u64, nth: usize, times: usize },
    Foreign { client: u64, id: u64 },
    Requeue { client: u64, nth: usize, delay_ms: u64 },
    Touch { client: u64, nth: usize },
    FinishRange { client: u64, range: Around },
    RequeueRange { client: u64, range: Around, delay_ms: u64 },
    TouchRange { client: u64, range: Around },
    Advance { ns: u64 },
    Journal,
    Snapshot,
    Restart,
}

/// A range of ids: it begins so many before the `nth` that the client has, and has so many ids.
#[derive(Clone, Copy, Debug)]
struct Around {
    nth: usize,
    before: u64,
    ids: u64,
}

fn around() -> impl Strategy<Value = Around> {
    let ids = prop_oneof![4 => 0u64..12, 4 => 0u64..60, 1 => Just(u64::MAX)];
    let before = prop_oneof![2 => Just(0), 1 => 0u64..20];
    (any::<usize>(), before, ids).prop_map(|(nth, before, ids)| Around { nth, before, ids })
}

/// Mostly none; of the others some are due now, soon, or long after.
fn delays() -> impl Strategy<Value = Vec<u64>> {
    let delay = prop_oneof![2 => Just(0u64), 3 => 1u64..300, 1 => 60_000u64..61_000];
    prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(delay, 1..8)]
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    let client = 0..CLIENTS;
    let turn = prop_oneof![2 => Just(LARGE_TURN), 1 => (1usize..40, 1usize..2000)];
    let step = prop_oneof![
        6 => (1u64..30, delays()).prop_map(|(num, delays_ms)| Step::Publish { num, delays_ms }),
        1 => (1u64..9, 0u8..3).prop_map(|(num, kind)| Step::Lose { num, kind }),
        3 => (client.clone(), prop_oneof![20u64..400, Just(5_000)], any::<bool>())
            .prop_map(|(client, timeout_ms, ranged)| Step::Subscribe { client, timeout_ms, ranged }),
        1 => client.clone().prop_map(|client| Step::Unsubscribe { client }),
        6 => (client.clone(), prop_oneof![0u32..20, 0u32..200]).prop_map(|(client, credit)| Step::Lend { client, credit }),
        1 => client.clone().prop_map(|client| Step::Recall { client }),
        2 => (client.clone(), prop::bool::weighted(0.3)).prop_map(|(client, blocked)| Step::Block { client, blocked }),
        1 => prop::bool::weighted(0.3).prop_map(|paused| Step::Pause { paused }),
        9 => (prop_oneof![Just(0u64), Just(40)], prop_oneof![Just(0u64), Just(20)], turn)
            .prop_map(|(pending, refuse, turn)| Step::Deliver { pending, refuse, turn }),
        12 => (client.clone(), any::<usize>(), 1usize..8).prop_map(|(client, nth, times)| Step::Finish { client, nth, times }),
        2 => (client.clone(), 0u64..200).prop_map(|(client, id)| Step::Foreign { client, id }),
        3 => (client.clone(), any::<usize>(), prop_oneof![Just(0u64), 1u64..300, Just(1_000_000)])
            .prop_map(|(client, nth, delay_ms)| Step::Requeue { client, nth, delay_ms }),
        2 => (client.clone(), any::<usize>()).prop_map(|(client, nth)| Step::Touch { client, nth }),
        6 => (client.clone(), around()).prop_map(|(client, range)| Step::FinishRange { client, range }),
        3 => (client.clone(), around(), prop_oneof![Just(0u64), 1u64..300, Just(1_000_000)])
            .prop_map(|(client, range, delay_ms)| Step::RequeueRange { client, range, delay_ms }),
        2 => (client.clone(), around()).prop_map(|(client, range)| Step::TouchRange { client, range }),
        4 => prop_oneof![0..3 * NS_PER_MS, 0..200 * NS_PER_MS, 0..2_000 * NS_PER_MS].prop_map(|ns| Step::Advance { ns }),
        2 => Just(Step::Journal),
        1 => Just(Step::Snapshot),
        1 => Just(Step::Restart),
    ];
    (prop_oneof![Just(0usize), Just(4096), Just(usize::MAX)], prop::collection::vec(step, 1..150))
}

struct Life {
    channel: Channel,
    model: std::cell::RefCell<Model>,
    /// Cursor that a restart continues from.
    stored: CursorImage,
    /// Bytes that open messages may take.
    room: usize,
}

impl Life {
    fn new(room: usize) -> Self {
        let stored = CursorImage::new(ChannelName::new("ch").expect("a valid name"), Epoch(1), 7, Position::START);
        let model = Model {
            items: vec![],
            end: Position::START,
            state: BTreeMap::new(),
            clients: BTreeMap::new(),
            paused: false,
            now: 1_000_000_007,
            rng: Rng::new(1),
            pending: 0,
            refuse: 0,
            fetch_was_pending: false,
            delivered_count: 0,
            due: BTreeMap::new(),
        };
        Life { channel: Self::channel(room, &stored), model: model.into(), stored, room }
    }

    fn channel(room: usize, stored: &CursorImage) -> Channel {
        let options = ChannelOptions { max_msg_timeout: MAX_MSG_TIMEOUT, max_req_timeout: MAX_REQ_TIMEOUT, end_to_end: None };
        let mut channel = Channel::new(options, PARTITION, stored.clone());
        channel.set_room(room);
        channel
    }

    fn journal(&mut self) {
        let mut replayed = Confirmed::new(self.stored.confirmed);
        self.stored.intervals.iter().for_each(|&i| replayed.insert(i));
        assert_eq!(
            self.channel.is_dirty(),
            self.channel.image().intervals != self.stored.intervals || self.channel.confirmed() != self.stored.confirmed
        );
        for interval in self.channel.take_finished().unwrap_or_default() {
            replayed.insert(interval);
        }
        self.stored.confirmed = replayed.position();
        self.stored.intervals = replayed.intervals().collect();
        self.stored.paused = self.channel.is_paused();
        assert_eq!(self.stored, self.channel.image(), "what was taken leads from image to image");
    }

    fn restart(&mut self) {
        self.channel = Self::channel(self.room, &self.stored);
        let mut known = Confirmed::new(self.stored.confirmed);
        self.stored.intervals.iter().for_each(|&i| known.insert(i));
        let model = self.model.get_mut();
        model.clients.clear();
        model.paused = self.stored.paused;
        for (&id, state) in &mut model.state {
            *state = (if known.contains(LogId(id)) { State::Done } else { State::Unread }, 0);
        }
    }

    fn step(&mut self, step: Step) {
        let Life { channel, model, .. } = self;
        let now = Ticks(model.get_mut().now);
        match step {
            Step::Publish { num, delays_ms } => model.get_mut().publish(num, &delays_ms),
            Step::Lose { num, kind } => model.get_mut().lose(num, kind),
            Step::Subscribe { client, timeout_ms, ranged } => {
                if model.get_mut().clients.contains_key(&client) {
                    return;
                }
                let options = SubOptions {
                    msg_timeout_ms: timeout_ms,
                    sample_rate: 50 * ranged as u8,
                    ranged,
                    ordered: false,
                    placed: false,
                    client: ClientInfo::default(),
                };
                channel.subscribe(sub(client), options);
                let timeout_ms = timeout_ms.min(MAX_MSG_TIMEOUT.as_millis() as u64);
                model.get_mut().clients.insert(client, Client { credit: 0, blocked: false, timeout_ms, ranged });
            }
            Step::Unsubscribe { client } => {
                let held = model.get_mut().held_by(client);
                assert_eq!(channel.unsubscribe(sub(client)), held.len());
                held.iter().for_each(|id| model.get_mut().state.get_mut(id).expect("held").0 = State::Waiting);
                model.get_mut().clients.remove(&client);
            }
            Step::Lend { client, credit } => {
                channel.lend(sub(client), credit);
                model.get_mut().clients.entry(client).and_modify(|c| c.credit += credit);
            }
            Step::Recall { client } => {
                let credit = model.get_mut().clients.get_mut(&client).map(|c| std::mem::take(&mut c.credit));
                assert_eq!(channel.recall(sub(client)), credit.unwrap_or(0));
            }
            Step::Block { client, blocked } => {
                channel.block(sub(client), blocked);
                model.get_mut().clients.entry(client).and_modify(|c| c.blocked = blocked);
            }
            Step::Pause { paused } => {
                channel.set_paused(paused);
                // A pause is journaled by the shard, as a whole cursor.
                model.get_mut().paused = paused;
            }
            Step::Deliver { pending, refuse, turn } => {
                let m = model.get_mut();
                (m.pending, m.refuse, m.fetch_was_pending) = (pending, refuse, false);
                for turns in 1.. {
                    assert!(turns < 10_000, "progress");
                    let bounds = Turn::new(now, turn.0, turn.1);
                    let more = channel.deliver_turn(bounds, &mut Shared(model), &mut Shared(model));
                    let m = model.get_mut();
                    assert!(std::mem::take(&mut m.delivered_count) <= turn.0 as u64, "a turn is bounded");
                    if !more {
                        break;
                    }
                    assert!(turn != LARGE_TURN, "everything fits a turn here");
                }
                let m = model.get_mut();
                let can = !m.paused && m.clients.values().any(|c| c.credit > 0 && !c.blocked) && !m.fetch_was_pending;
                if can {
                    assert_eq!(m.count(|s| *s == State::Waiting), 0);
                    let is_full = channel.is_full(m.end) && channel.open_bytes() >= self.room;
                    let has_come = |id| m.due.get(id).is_none_or(|due| coarse(due.div_ceil(NS_PER_MS)) <= m.now / NS_PER_MS);
                    let owed = m.state.iter().filter(|(id, s)| s.0 == State::Unread && has_come(id)).count();
                    assert!(is_full || owed == 0, "all that may go out went out");
                }
            }
            Step::Finish { client, nth, times } => {
                for n in 0..times {
                    let held = model.get_mut().held_by(client);
                    let Some(&id) = held.get((nth.wrapping_add(n * 7)) % held.len().max(1)) else { return };
                    channel.finish(now, sub(client), LogId(id)).expect("it has it");
                    model.get_mut().state.get_mut(&id).expect("held").0 = State::Done;
                    assert_eq!(channel.finish(now, sub(client), LogId(id)), Err(NotInFlight));
                }
            }
            Step::Foreign { client, id } => {
                if !model.get_mut().held_by(client).contains(&id) {
                    assert_eq!(channel.finish(now, sub(client), LogId(id)), Err(NotInFlight));
                    assert_eq!(channel.requeue(now, sub(client), LogId(id), Duration::ZERO), Err(NotInFlight));
                    assert_eq!(channel.touch(now, sub(client), LogId(id)), Err(NotInFlight));
                }
            }
            Step::Requeue { client, nth, delay_ms } => {
                let held = model.get_mut().held_by(client);
                let Some(&id) = held.get(nth % held.len().max(1)) else { return };
                let delay = Duration::from_millis(delay_ms);
                channel.requeue(now, sub(client), LogId(id), delay).expect("it has it");
                let due = (now + delay.min(MAX_REQ_TIMEOUT)).0;
                let state = if delay_ms == 0 { State::Waiting } else { State::Deferred { due } };
                model.get_mut().state.get_mut(&id).expect("held").0 = state;
            }
            Step::Touch { client, nth } => {
                let held = model.get_mut().held_by(client);
                let Some(&id) = held.get(nth % held.len().max(1)) else { return };
                channel.touch(now, sub(client), LogId(id)).expect("it has it");
                model.get_mut().touched(client, id);
            }
            Step::FinishRange { client, range } => {
                let (first, last, ids) = model.get_mut().held_in(client, range);
                assert_eq!(channel.finish_range(now, sub(client), first, last), ids.len() as u64);
                ids.iter().for_each(|id| model.get_mut().state.get_mut(id).expect("held").0 = State::Done);
                assert_eq!(channel.finish_range(now, sub(client), first, last), 0);
            }
            Step::RequeueRange { client, range, delay_ms } => {
                let (first, last, ids) = model.get_mut().held_in(client, range);
                let delay = Duration::from_millis(delay_ms);
                assert_eq!(channel.requeue_range(now, sub(client), first, last, delay), ids.len() as u64);
                let due = (now + delay.min(MAX_REQ_TIMEOUT)).0;
                let state = if delay_ms == 0 { State::Waiting } else { State::Deferred { due } };
                ids.iter().for_each(|id| model.get_mut().state.get_mut(id).expect("held").0 = state);
            }
            Step::TouchRange { client, range } => {
                let (first, last, ids) = model.get_mut().held_in(client, range);
                assert_eq!(channel.touch_range(now, sub(client), first, last), ids.len() as u64);
                ids.iter().for_each(|&id| model.get_mut().touched(client, id));
            }
            Step::Advance { ns } => {
                let m = model.get_mut();
                m.now += ns;
                let (mut late, mut expected) = ([0; CLIENTS as usize], [0; CLIENTS as usize]);
                channel.tick(Ticks(m.now), &mut |sub, num| late[sub.conn.0 as usize] += num);
                let has_come = |at: u64| at.div_ceil(NS_PER_MS) <= m.now / NS_PER_MS;
                for (state, _) in m.state.values_mut() {
                    match *state {
                        State::InFlight { client, deadline, .. } if has_come(deadline) => {
                            expected[client as usize] += 1;
                            *state = State::Waiting;
                        }
                        State::Deferred { due } if has_come(due) => *state = State::Waiting,
                        _ => {}
                    }
                }
                assert_eq!(late, expected);
            }
            Step::Journal => self.journal(),
            Step::Snapshot => {
                channel.take_finished();
                self.stored = channel.image();
            }
            Step::Restart => self.restart(),
        }
    }

    fn check(&mut self) {
        let Life { channel, model, .. } = self;
        let model = model.get_mut();
        let put_off = model.due.keys().filter(|id| model.state[id].0 == State::Unread).count() as u64;
        let open = model.count(|s| !matches!(s, State::Unread | State::Done)) + put_off;
        assert!(!channel.is_full(model.end) || open > 0, "who holds has something that can be finished");
        let mut runs = model.done_runs();
        let confirmed = runs.remove(0).end;
        let image = channel.image();
        assert_eq!((image.confirmed, channel.confirmed()), (confirmed, confirmed));
        assert_eq!(image.intervals, runs);
        assert_eq!((image.generation, image.paused), (7, model.paused));
        let waiting = model.count(|s| matches!(s, State::Unread | State::Waiting));
        // Messages that are not due may have been read, or not. A stretch with a due message waits as a whole.
        let (deferred, asked) = (channel.deferred_count(), model.count(|s| matches!(s, State::Deferred { .. })));
        assert_eq!(channel.depth(model.end) + deferred, waiting + asked);
        assert!((asked..=asked + put_off).contains(&deferred));
        assert_eq!(channel.in_flight_count(), model.count(|s| matches!(s, State::InFlight { .. })));
        let stats = channel.stats(model.end, true);
        assert_eq!(stats.client_count, model.clients.len() as u64);
        for client in channel.clients() {
            let (id, Client { credit, .. }) = (client.conn.0, model.clients[&client.conn.0]);
            let nth = channel.clients().position(|c| c == client).expect("it was just named");
            let (held, figures) = (model.held_by(id).len() as u64, &stats.clients[nth]);
            assert_eq!((figures.in_flight_count, figures.ready_count), (held, credit as u64));
        }
        let mut hungry = BTreeSet::new();
        channel.hungry(model.end, &mut |sub| assert!(hungry.insert(sub.conn.0), "named once"));
        assert!(hungry.iter().all(|c| model.clients[c].credit == 0));
    }

    /// Empties the channel: a client that finishes all messages must reach this after any course of events.
    fn drain(&mut self) {
        for client in 0..CLIENTS {
            self.step(Step::Unsubscribe { client });
        }
        self.step(Step::Pause { paused: false });
        let ranged = self.model.get_mut().now.is_multiple_of(2);
        self.step(Step::Subscribe { client: 0, timeout_ms: 400, ranged });
        for round in 0.. {
            assert!(round < 10_000, "progress");
            self.step(Step::Lend { client: 0, credit: 5 });
            self.step(Step::Deliver { pending: 0, refuse: 0, turn: LARGE_TURN });
            self.step(Step::Finish { client: 0, nth: round * 31, times: 5 });
            self.step(Step::Advance { ns: 10 * NS_PER_MS });
            let model = self.model.get_mut();
            if model.count(|s| *s != State::Done) == 0 {
                break;
            }
        }
        self.check();
        assert_eq!(self.channel.confirmed(), self.model.get_mut().end);
        self.journal();
        assert!(self.stored.intervals.is_empty() && self.channel.deadline().is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn a_channel_does_what_the_model_does((room, steps) in steps()) {
        let mut life = Life::new(room);
        for step in steps {
            life.step(step);
            life.check();
        }
        life.drain();
    }
}
