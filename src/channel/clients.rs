//! The clients of one channel on one partition: their credit, who is next, and who waits for credit. It knows nothing
//! of messages beyond the list of those a client has.

use super::open::List;
use crate::base::{IdMap, SubId};
use crate::metrics::stats::ClientStats;
use crate::shard::message::SubOptions;
use slab::Slab;
use std::{collections::VecDeque, time::Duration};

#[derive(Debug)]
pub struct Client {
    pub sub: SubId,
    pub options: Box<SubOptions>,
    /// As long as it may keep a message without a TOUCH.
    pub timeout: Duration,
    pub credit: u32,
    /// Its output is full.
    pub blocked: bool,
    /// What it has, in the order in which it went out.
    pub in_flight: List,
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

#[derive(Debug, Default)]
pub struct Clients {
    slab: Slab<Client>,
    numbers: IdMap<SubId, u32>,
    /// Whoever may receive, in turn. Who may not any more is dropped when it is met.
    ready: VecDeque<u32>,
    /// Whoever ran out of credit and was not told of messages since; who got credit is dropped when it is met.
    starved: Vec<u32>,
}

impl Clients {
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
    pub fn insert(&mut self, sub: SubId, options: SubOptions, timeout: Duration) {
        let number = self.slab.insert(Client {
            sub,
            options: Box::new(options),
            timeout,
            credit: 0,
            blocked: false,
            in_flight: List::EMPTY,
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

    pub fn remove(&mut self, number: u32) -> Client {
        let client = self.slab.remove(number as usize);
        self.numbers.remove(&client.sub);
        if client.is_ready {
            self.ready.retain(|&n| n != number);
        }
        if client.is_starved {
            self.starved.retain(|&n| n != number);
        }
        client
    }

    /// Its credit or its output changed for the better.
    pub fn wake(&mut self, number: u32) {
        let client = &mut self.slab[number as usize];
        if client.may_receive() && !client.is_ready {
            client.is_ready = true;
            self.ready.push_back(number);
        }
    }

    /// It has no credit: say so when there are messages.
    pub fn starve(&mut self, number: u32) {
        let client = &mut self.slab[number as usize];
        if client.credit == 0 && !client.is_starved {
            client.is_starved = true;
            self.starved.push(number);
        }
    }

    /// Whose turn it is.
    pub fn next(&mut self) -> Option<u32> {
        loop {
            let number = *self.ready.front()?;
            let client = &mut self.slab[number as usize];
            if client.may_receive() {
                return Some(number);
            }
            client.is_ready = false;
            self.ready.pop_front();
        }
    }

    /// The turn goes on from the client that [`Clients::next`] named.
    pub fn rotate(&mut self) {
        if self.ready.len() > 1 {
            self.ready.rotate_left(1);
        }
    }

    /// The client that [`Clients::next`] named took a message.
    pub fn spend(&mut self, number: u32) {
        let client = &mut self.slab[number as usize];
        assert!(client.credit > 0, "a message goes out on credit only");
        client.credit -= 1;
        client.message_count += 1;
        client.in_flight_count += 1;
        let starved = client.credit == 0;
        self.rotate();
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
