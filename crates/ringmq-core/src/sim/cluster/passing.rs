//! Messages of the topics that come and go, by their ids, and the check of the disks in the end: nothing of a deleted topic
//! (`a_deleted_topic_leaves_nothing`), nothing of one topic in another one of its name, and every acknowledged message of the present
//! topics (`acked_survives`).

use super::store::PASSING;
use super::world::World;
use crate::base::{CoreId, PartitionId, TopicId, TopicRef};
use crate::log::recovery::Recovered;
use crate::seam::event::Event;
use crate::seam::message::{MeshMessage, OwnedBodies, Ticket};
use crate::sim::check::log_of;
use crate::sim::node::book::topic_number;
use std::collections::{BTreeMap, BTreeSet};

/// Tickets of these publishes begin here.
const TICKETS: u64 = 1 << 40;

#[derive(Default)]
pub struct PassingBook {
    sent: u64,
    /// The partition of each publish without an answer.
    asked: BTreeMap<u64, (TopicId, u16)>,
    acked: BTreeMap<(TopicId, u16), BTreeSet<u64>>,
}

impl PassingBook {
    fn answered(&mut self, ticket: Ticket, is_stored: bool) {
        if let Some(at) = self.asked.remove(&ticket.0).filter(|_| is_stored) {
            self.acked.entry(at).or_default().insert(ticket.0);
        }
    }
}

fn body(topic: &TopicRef, n: u64) -> Vec<u8> {
    let mut body = format!("{n} {} ", topic.id).into_bytes();
    body.resize(100 + n as usize % 3000, b'.');
    body
}

/// The number of a message, and the topic it was published to.
fn parse(body: &[u8]) -> (u64, String) {
    let text = String::from_utf8_lossy(body);
    let mut words = text.split(' ');
    let n = words.next().and_then(|n| n.parse().ok()).expect("bodies begin with a number");
    (n, words.next().unwrap_or_default().to_owned())
}

impl World {
    /// Publishes a message to each of some topics, at the partition's leader.
    pub fn publish_to_passing(&mut self) {
        let there: Vec<(usize, TopicRef)> = self.meta.topics.range(PASSING..).map(|(n, t)| (*n, t.clone())).collect();
        for (number, topic) in there {
            if !self.rng.chance(0.3) {
                continue;
            }
            let partition = self.rng.below(topic.partitions.into()) as u16;
            let listens = |n: &usize| self.takes_clients(*n) && self.nodes[*n].paused_until <= self.now;
            let Some(n) = self.meta.leader((number, partition)).filter(listens) else { continue };
            let book = &mut self.operator.passing;
            book.sent += 1;
            let ticket = TICKETS + book.sent;
            book.asked.insert(ticket, (topic.id, partition));
            let mut bodies = OwnedBodies::default();
            bodies.push(&body(&topic, ticket));
            let (partition, ticket) = (PartitionId(partition), Ticket(ticket));
            let core = topic.core_of(partition, self.nodes[n].cores).0 as usize;
            let message = MeshMessage::Publish { ticket, topic, partition, bodies };
            self.step(n, core, Event::Mesh { from: CoreId::HTTP, message });
        }
    }

    pub fn passing_is_told(&mut self, ticket: Ticket, is_stored: bool) {
        self.operator.passing.answered(ticket, is_stored);
    }

    /// A recovery at the end, when every node has heard of every deletion.
    pub fn look_for_passing(&mut self, n: usize, recovered: &Recovered) {
        // Files that a core could not remove, after a failure, are removed at the node's next startup.
        for topic in recovered.topics.iter().filter(|_| !self.nodes[n].has_failed) {
            let deleted = self.meta.store.deleted(topic.id);
            assert!(deleted.is_none(), "a_deleted_topic_leaves_nothing: node{n} has {topic:?}, deleted at {deleted:?}");
        }
        for p in recovered.partitions.iter().filter(|p| topic_number(&p.topic.name) >= PASSING) {
            let at = (p.topic.id, p.dir.partition.0);
            let log = match log_of(&self.nodes[n].disk, p) {
                Err(_) if self.nodes[n].is_damaged => continue,
                Err(e) => panic!("damage_is_repaired_or_reported: node{n} {:?}: {e}", p.topic),
                Ok(log) => log,
            };
            let mut stored = BTreeSet::new();
            for message in log.iter().filter_map(|(_, batch)| batch.as_ref()).flat_map(|b| b.messages()) {
                let (number, topic) = parse(message.body);
                let is_its = topic == at.0.to_string();
                assert!(is_its, "a_deleted_topic_leaves_nothing: message {number} of {topic} stands in {:?} on node{n}", p.topic);
                stored.insert(number);
            }
            let key = self.meta.topics.iter().find(|(_, t)| t.id == at.0).map(|(number, _)| (*number, at.1));
            let keeps = key.is_some_and(|key| self.meta.is_in_sync(key, n) && !self.nodes[n].is_damaged);
            let acked = self.operator.passing.acked.get(&at).filter(|_| keeps);
            let lost = acked.and_then(|acked| acked.iter().find(|number| !stored.contains(number)));
            assert!(lost.is_none(), "acked_survives: message {lost:?} of {:?} is not on node{n}", p.topic);
        }
    }
}
