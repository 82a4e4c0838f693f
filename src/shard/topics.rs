//! What this core knows of topics, and who waits for one to come into being.
//!
//! A topic is created by its home core: a random id, a durable journal record, then everybody who asked hears of it.
//! Nobody uses a topic before its record is durable, so no core ever holds a batch of a topic that recovery won't know.

use super::message::Ticket;
use crate::base::{ConnId, CoreId, TopicInfo, TopicName, TopicRef};
use crate::log::RecordTicket;
use std::collections::{BTreeMap, HashMap};

#[derive(Debug, Default)]
pub struct Topics {
    entries: HashMap<TopicName, Entry>,
    /// Topics whose record waits for the journal, oldest first.
    creating: BTreeMap<RecordTicket, TopicName>,
}

#[derive(Debug)]
enum Entry {
    Known { topic: TopicRef, next_partition: u16 },
    Pending { topic: Option<TopicRef>, conns: Vec<ConnId>, asked_by: Vec<(CoreId, Ticket)> },
}

/// Who waited for a topic that is now known, or never will be.
#[derive(Debug, Default)]
pub struct Waiters {
    pub conns: Vec<ConnId>,
    pub asked_by: Vec<(CoreId, Ticket)>,
}

impl Topics {
    pub fn known(&self, name: &str) -> Option<&TopicRef> {
        match self.entries.get(name) {
            Some(Entry::Known { topic, .. }) => Some(topic),
            _ => None,
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &TopicRef> {
        self.entries.values().filter_map(|e| match e {
            Entry::Known { topic, .. } => Some(topic),
            Entry::Pending { .. } => None,
        })
    }

    /// The topic and the partition that is next in turn.
    pub fn next_partition(&mut self, name: &str) -> Option<(TopicRef, u16)> {
        match self.entries.get_mut(name) {
            Some(Entry::Known { topic, next_partition }) => {
                let partition = *next_partition;
                *next_partition = (partition + 1) % topic.partitions;
                Some((topic.clone(), partition))
            }
            _ => None,
        }
    }

    pub fn is_pending(&self, name: &str) -> bool {
        matches!(self.entries.get(name), Some(Entry::Pending { .. }))
    }

    /// Starts waiting. With a ticket the topic's record is on its way to this core's journal; else its home was asked.
    pub fn begin(&mut self, name: TopicName, created: Option<(TopicInfo, RecordTicket)>) {
        let topic = created.map(|(info, ticket)| {
            self.creating.insert(ticket, name.clone());
            TopicRef::new(info)
        });
        let old = self.entries.insert(name, Entry::Pending { topic, conns: vec![], asked_by: vec![] });
        assert!(old.is_none(), "a topic is created once");
    }

    pub fn wait_conn(&mut self, name: &str, conn: ConnId) {
        if let Some(Entry::Pending { conns, .. }) = self.entries.get_mut(name) {
            conns.push(conn);
        }
    }

    pub fn wait_core(&mut self, name: &str, from: CoreId, ticket: Ticket) {
        if let Some(Entry::Pending { asked_by, .. }) = self.entries.get_mut(name) {
            asked_by.push((from, ticket));
        }
    }

    /// The topic is known from now on.
    pub fn learn(&mut self, topic: TopicRef) -> Waiters {
        if let Some(Entry::Known { topic: known, .. }) = self.entries.get(&topic.name) {
            assert_eq!(known.id, topic.id, "a topic's id never changes");
            return Waiters::default();
        }
        let name = topic.name.clone();
        match self.entries.insert(name, Entry::Known { topic, next_partition: 0 }) {
            Some(Entry::Pending { conns, asked_by, .. }) => Waiters { conns, asked_by },
            _ => Waiters::default(),
        }
    }

    /// The topic could not be created.
    pub fn forget(&mut self, name: &str) -> Waiters {
        match self.entries.remove(name) {
            Some(Entry::Pending { conns, asked_by, .. }) => Waiters { conns, asked_by },
            Some(known) => {
                let Entry::Known { topic, .. } = &known else { unreachable!("the other variant was matched above") };
                self.entries.insert(topic.name.clone(), known);
                Waiters::default()
            }
            None => Waiters::default(),
        }
    }

    /// The topics created here whose record is durable now.
    pub fn created_up_to(&mut self, durable: RecordTicket) -> Vec<TopicRef> {
        let mut topics = vec![];
        while let Some(entry) = self.creating.first_entry() {
            if *entry.key() > durable {
                break;
            }
            if let Some(Entry::Pending { topic: Some(topic), .. }) = self.entries.get(&entry.remove()) {
                topics.push(topic.clone());
            }
        }
        topics
    }

    /// Creations that will not become durable any more.
    pub fn creations_failed(&mut self) -> Vec<TopicName> {
        std::mem::take(&mut self.creating).into_values().collect()
    }
}
