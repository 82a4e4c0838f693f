//! Clients of the native protocol in the world: which of them come, and those that see to it at rest that all is done.

use super::World;
use crate::base::{ConnId, Peer};
use crate::codec::native::Start;
use crate::seam::event::Event;
use crate::sim::node::any::AnyClient;
use crate::sim::node::book::ChannelKey;
use crate::sim::node::native::{NativeClient, NativeRole};
use crate::sim::node::reach::Reach;

impl World<'_> {
    fn native_client(&mut self, role: NativeRole, core: Option<u16>) -> NativeClient {
        self.next_conn += 1;
        NativeClient::new(self.next_conn, role, Reach::alone(self.topics), core)
    }

    fn open(&mut self, client: NativeClient) {
        let conn = ConnId(self.next_conn);
        let core = self.add_socket(AnyClient::Native(Box::new(client)));
        self.step(core, Event::OpenedNative { conn, peer: Peer("test:1".into()) });
    }

    /// Connects a client with a random role on a random core.
    pub(super) fn connect_natively(&mut self) {
        use NativeRole::{Both, Consumer, Idempotent, Publisher};
        let roles = [Publisher, Idempotent, Idempotent, Idempotent, Consumer, Consumer, Both];
        let role = roles[self.rng.below(roles.len() as u64) as usize].clone();
        let role = if self.plan.both > 0.0 && self.rng.chance(self.plan.both) { Both } else { role };
        let core = self.rng.chance(0.8).then(|| self.rng.below(self.shards.len() as u64) as u16);
        let client = self.native_client(role, core);
        self.open(client);
    }

    /// Makes each idempotent producer send its unanswered batches again and get an answer.
    pub(super) fn finish_producers(&mut self) {
        let mut asking = self.native_client(NativeRole::Ask, None);
        (0..self.topics as usize).for_each(|topic| asking.ask_topic(topic));
        self.open(asking);
        self.drain_all();
        for k in 0..self.book.producers.len() {
            let p = &self.book.producers[k];
            let Some(homes) = self.book.homes.get(&(0, p.topic)).filter(|_| !p.is_done()) else { continue };
            let core = homes[p.partition as usize];
            let client = self.native_client(NativeRole::Finish(k), Some(core));
            self.open(client);
        }
        self.drain_all();
    }

    /// A client at each partition of the channel.
    pub(super) fn drain_natively(&mut self, channel: &ChannelKey) {
        let homes = self.book.homes[&(0, channel.0)].clone();
        for (partition, core) in homes.into_iter().enumerate() {
            let mut client = self.native_client(NativeRole::Drain, Some(core));
            client.subscribe(self.book, channel.clone(), partition as u16, Start::Default);
            self.open(client);
        }
    }

    /// A batch to each partition.
    pub(super) fn publish_natively(&mut self) {
        for ((_, topic), homes) in self.book.homes.clone() {
            for (partition, core) in homes.into_iter().enumerate() {
                let mut client = self.native_client(NativeRole::Publisher, Some(core));
                client.publish_to(self.book, self.rng, topic, partition as u16);
                self.open(client);
            }
        }
    }
}
