//! The clients of one channel on one partition: their credit, the next one in turn, and those that wait for credit. Of messages it knows
//! only the list that a client has in flight.
//!
//! The turn goes round. Without ranged clients a turn is one message, among ranged ones it is one run. Where both kinds may receive, a
//! turn is [`SLICE`] messages for either, so that a run of thousands does not leave the others a thousandth.

use super::open::List;
use crate::base::{IdMap, LogId, SubId, Ticks, TimerId};
use crate::metrics::stats::ClientStats;
use crate::seam::message::SubOptions;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Messages of one turn where ranged clients and others share a channel.
const SLICE: u32 = 64;

#[derive(Debug)]
pub struct Client {
    pub sub: SubId,
    pub options: Box<SubOptions>,
    /// Time for which the client may keep a message without a TOUCH.
    pub timeout: Duration,
    pub credit: u32,
    /// True while the client's output is full.
    pub blocked: bool,
    /// Messages in flight at the client, in the order of their delivery.
    pub in_flight: List,
    /// True when the client takes runs and names ranges of ids.
    pub is_ranged: bool,
    /// Runs in flight at a ranged client, by the first log id. Empty for other clients.
    pub runs: BTreeMap<LogId, TimerId>,
    /// Messages.
    pub in_flight_count: u64,
    pub message_count: u64,
    pub finish_count: u64,
    pub requeue_count: u64,
    /// Stands in `Clients::ready`, in `Clients::starved`.
    is_ready: bool,
    is_starved: bool,
}

impl Client {
    fn may_receive(&self) -> bool {
        self.credit > 0 && !self.blocked
    }

    pub fn stats(&self) -> ClientStats {
        ClientStats {
            info: self.options.client.clone(),
            ready_count: self.credit as u64,
            in_flight_count: self.in_flight_count,
            message_count: self.message_count,
            finish_count: self.finish_count,
            requeue_count: self.requeue_count,
            sample_rate: self.options.sample_rate,
            msg_timeout_ms: self.options.msg_timeout_ms,
        }
    }
}

#[derive(Debug)]
pub struct Clients {
    /// Longest time for which a client may keep a message, with TOUCHes.
    max_msg_timeout: Duration,
    slab: Slab<Client>,
    numbers: IdMap<SubId, u32>,
    /// Clients that may receive, in turn. A client that may not any more is dropped when it is met.
    ready: VecDeque<u32>,
    /// Clients that ran out of credit and were not told of messages since; one that got credit is dropped when it is met.
    starved: Vec<u32>,
    /// Number of clients in `ready` that are not ranged.
    ready_singly: u32,
    /// Messages that are left of the turn of the first in `ready`, where a turn is [`SLICE`] messages. Never 0.
    slice: u32,
}

impl Clients {
    pub fn new(max_msg_timeout: Duration) -> Clients {
        Clients {
            max_msg_timeout,
            slab: Slab::new(),
            numbers: IdMap::default(),
            ready: VecDeque::new(),
            starved: vec![],
            ready_singly: 0,
            slice: SLICE,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    pub fn get(&self, number: u32) -> &Client {
        &self.slab[number as usize]
    }

    pub fn get_mut(&mut self, number: u32) -> &mut Client {
        &mut self.slab[number as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.slab.iter().map(|(_, client)| client)
    }

    pub fn find(&self, sub: SubId) -> Option<u32> {
        self.numbers.get(&sub).copied()
    }

    /// Panics when it is there already.
    pub fn insert(&mut self, sub: SubId, options: SubOptions) {
        let timeout = Duration::from_millis(options.msg_timeout_ms.max(1)).min(self.max_msg_timeout);
        let number = self.slab.insert(Client {
            sub,
            is_ranged: options.ranged,
            options: Box::new(options),
            timeout,
            credit: 0,
            blocked: false,
            in_flight: List::EMPTY,
            runs: BTreeMap::new(),
            in_flight_count: 0,
            message_count: 0,
            finish_count: 0,
            requeue_count: 0,
            is_ready: false,
            is_starved: false,
        }) as u32;
        assert!(self.numbers.insert(sub, number).is_none(), "a client subscribes once");
        self.starve(number);
    }

    /// Time until which a client may keep a message that it got at `delivered` and touches now.
    pub fn touched_until(&self, number: u32, delivered: Ticks, now: Ticks) -> Ticks {
        (now + self.get(number).timeout).min(delivered + self.max_msg_timeout)
    }

    /// Empties every client's list of messages in flight; `dropped` is told the client and the number of its messages.
    pub fn drop_in_flight(&mut self, dropped: &mut impl FnMut(SubId, u32)) {
        for (_, client) in self.slab.iter_mut().filter(|(_, c)| c.in_flight_count > 0) {
            dropped(client.sub, u32::try_from(client.in_flight_count).unwrap_or(u32::MAX));
            (client.in_flight, client.in_flight_count) = (List::EMPTY, 0);
            client.runs.clear();
        }
    }

    pub fn remove(&mut self, number: u32) -> Client {
        let client = self.slab.remove(number as usize);
        self.numbers.remove(&client.sub);
        if client.is_ready {
            self.ready.retain(|&n| n != number);
            self.ready_singly -= !client.is_ranged as u32;
        }
        if client.is_starved {
            self.starved.retain(|&n| n != number);
        }
        client
    }

    /// Makes the client ready again if it may receive: its credit rose, or its output has room.
    pub fn wake(&mut self, number: u32) {
        let client = &mut self.slab[number as usize];
        if client.may_receive() && !client.is_ready {
            client.is_ready = true;
            self.ready_singly += !client.is_ranged as u32;
            self.ready.push_back(number);
        }
    }

    /// Notes that the client has no credit, so that it is told when there are messages.
    pub fn starve(&mut self, number: u32) {
        let client = &mut self.slab[number as usize];
        if client.credit == 0 && !client.is_starved {
            client.is_starved = true;
            self.starved.push(number);
        }
    }

    /// Client whose turn it is.
    pub fn next(&mut self) -> Option<u32> {
        loop {
            let number = *self.ready.front()?;
            let client = &mut self.slab[number as usize];
            if client.may_receive() {
                return Some(number);
            }
            client.is_ready = false;
            self.ready_singly -= !client.is_ranged as u32;
            self.ready.pop_front();
            self.slice = SLICE;
        }
    }

    /// The turn goes on from the client that [`Clients::next`] named.
    pub fn rotate(&mut self) {
        self.slice = SLICE;
        if self.ready.len() > 1 {
            self.ready.rotate_left(1);
        }
    }

    /// Ranged clients and others may receive.
    fn is_mixed(&self) -> bool {
        self.ready_singly > 0 && (self.ready_singly as usize) < self.ready.len()
    }

    /// Messages that the ranged client which [`Clients::next`] named may take in one run.
    pub fn run_max(&self, number: u32) -> u32 {
        let credit = self.slab[number as usize].credit;
        if self.is_mixed() { credit.min(self.slice) } else { credit }
    }

    /// The client that [`Clients::next`] named took `num` messages.
    #[inline]
    pub fn spend(&mut self, number: u32, num: u32) {
        let client = &mut self.slab[number as usize];
        assert!(client.credit >= num, "a message goes out on credit only");
        client.credit -= num;
        client.message_count += num as u64;
        client.in_flight_count += num as u64;
        let starved = client.credit == 0;
        if self.is_mixed() && self.slice > num {
            self.slice -= num;
        } else {
            self.rotate();
        }
        if starved {
            self.starve(number);
        }
    }

    /// Names, once, each client that ran out of credit.
    pub fn tell_starved(&mut self, tell: &mut impl FnMut(SubId)) {
        for number in self.starved.drain(..) {
            let client = &mut self.slab[number as usize];
            client.is_starved = false;
            if client.credit == 0 {
                tell(client.sub);
            }
        }
    }
}
