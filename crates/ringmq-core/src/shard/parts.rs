//! Parts of a core that most of its machines work on, in one struct: a machine borrows all of them by one reference.

use super::copies::{Copies, CopyOutcome};
use super::cursors::CursorSyncs;
use super::failures::failure_of;
use super::native::NativeClients;
use super::outbox::{LateAnswer, Outbox};
use super::partitions::{ChannelKey, Partitions, Publisher};
use super::questions::Questions;
use super::replication::{Cluster, WorkQueue};
use super::stop::Lifecycle;
use super::timers::Timers;
use super::topics::Topics;
use super::waiting::WaitingPublishes;
use crate::base::topic::home_core;
use crate::base::{CoreId, Epoch, Now, SubId, TopicRef};
use crate::config::Settings;
use crate::log::{AppendTicket, PartitionIdx, Store};
use crate::metrics::counters::Counters;
use crate::seam::message::MeshMessage;
use crate::seam::outcome::PublishError;
use crate::session::native::NativeAnswer;
use std::sync::Arc;

pub(super) struct CoreParts {
    pub id: CoreId,
    /// Cores of this node.
    pub cores: u16,
    /// Whether the node is one of several that replicate partitions, even if it is the only one at present.
    pub is_clustered: bool,
    pub epoch: Epoch,
    pub settings: Arc<Settings>,
    /// Stage of a stop, and work that is still accepted.
    pub life: Lifecycle,
    pub store: Store,
    pub partitions: Partitions,
    pub topics: Topics,
    pub native: NativeClients,
    pub waiting: WaitingPublishes,
    pub copies: Copies,
    pub syncs: CursorSyncs,
    pub timers: Timers,
    pub counters: Counters,
    pub outbox: Outbox,
    /// Work of a cluster's machines that is done before the step ends.
    pub work: WorkQueue,
    pub questions: Questions,
}

impl CoreParts {
    pub fn new(
        (id, cores): (CoreId, u16),
        is_clustered: bool,
        settings: Arc<Settings>,
        epoch: Epoch,
        store: Store,
        seed: u64,
    ) -> Self {
        CoreParts {
            partitions: Partitions::new(settings.channel_memory, settings.mem_queue_size),
            waiting: WaitingPublishes::new(&settings),
            copies: Copies::new(&settings),
            id,
            cores,
            is_clustered,
            epoch,
            settings,
            life: Lifecycle::default(),
            store,
            topics: Topics::new(seed),
            native: NativeClients::default(),
            syncs: CursorSyncs::default(),
            timers: Timers::default(),
            counters: Counters::default(),
            outbox: Outbox::new(id, cores),
            work: WorkQueue::default(),
            questions: Questions::default(),
        }
    }

    pub fn is_home_of(&self, topic: &TopicRef) -> bool {
        home_core(&topic.name, self.cores) == self.id
    }

    /// Topics of which this core is the home came or went. The others hear of it a moment later, so cores that create
    /// at the same time may pass the node's limit by one each.
    pub fn count_topics(&mut self, change: i64) {
        let topics = self.topics.count(self.id, change);
        self.outbox.pass_to_others(|| MeshMessage::TopicCount { topics });
    }

    /// Moves the windows of statistics before they are read.
    pub fn move_windows(&mut self, now: Now) {
        if self.settings.end_to_end_window().is_some() {
            let all = self.partitions.channels_mut().flat_map(|(_, channels)| channels.iter_mut());
            all.for_each(|(_, c)| c.machine.move_window(now.ticks));
        }
    }

    /// Tells the other cores when this core's disk has become full, or is no longer.
    pub fn tell_full(&mut self) {
        let full = self.store.is_disk_full();
        if self.waiting.note_full(full) {
            self.outbox.pass_to_others(|| MeshMessage::DiskFull { full });
        }
    }

    // ---- publishers

    pub fn tell_publisher(&mut self, cluster: Option<&mut Cluster>, publisher: Publisher, result: Result<(), PublishError>) {
        // A failure of another node's client is counted by that node, once it is told.
        if let Err(error) = result
            && !publisher.is_of_node()
        {
            self.counters.failed(error.kind());
        }
        match publisher {
            Publisher::Session(conn, slot) => self.outbox.tell(conn, LateAnswer::Answer(slot, result)),
            Publisher::Copy(key, id, number) => self.copies.note(CopyOutcome { key, id, number, is_committed: result.is_ok() }),
            Publisher::Core(core, ticket) => self.outbox.pass(core, MeshMessage::Published { ticket, result }),
            Publisher::Node(origin) => {
                let cluster = cluster.expect("only a cluster has other nodes");
                cluster.forwards.answer(&mut cluster.peers, origin, result);
            }
            Publisher::Native { conn, request, at, duplicate } => {
                let answer = match result {
                    Ok(()) => NativeAnswer::Published { at, duplicate },
                    Err(error) => NativeAnswer::Failed(failure_of(error)),
                };
                self.outbox.tell(conn, LateAnswer::Native(request, answer));
            }
        }
    }

    /// Answers the publishers of everything up to the ticket, which is committed, in order.
    pub fn answer_publishers(&mut self, mut cluster: Option<&mut Cluster>, idx: PartitionIdx, upto: AppendTicket) {
        let is_committed = |(ticket, ..): &mut (AppendTicket, _, _)| *ticket <= upto;
        while let Some((_, publisher, since)) = self.partitions.get_mut(idx).publishers.pop_front_if(is_committed) {
            self.counters.published(since);
            match publisher {
                // The common case, without a call.
                Publisher::Session(conn, slot) => self.outbox.tell(conn, LateAnswer::Answer(slot, Ok(()))),
                publisher => self.tell_publisher(cluster.as_deref_mut(), publisher, Ok(())),
            }
        }
    }

    // ---- channels

    /// The clients were taken off the channel, which was `deleted`, or is led elsewhere: they are told.
    pub fn end_subscriptions(&mut self, key: ChannelKey, subs: Vec<SubId>, deleted: bool) {
        let partition = self.partitions.get(key.partition_idx()).dir.partition;
        for sub in subs {
            self.partitions.forget_client(sub, partition);
            let is_here = sub.core == self.id;
            if let Some(number) = is_here.then(|| self.native.end(sub.conn, key)).flatten() {
                let why = if deleted { "the channel was deleted" } else { "this node does not lead the partition any more" };
                self.outbox.tell(sub.conn, LateAnswer::NativeEnded(number, why));
            } else {
                let lost = MeshMessage::PartLost { sub, partition };
                self.outbox.pass(sub.core, if deleted { MeshMessage::ChannelDeleted { sub } } else { lost });
            }
        }
    }

    /// Takes the clients off the channel of a topic that goes. A native client whose subscription was not answered yet keeps it until
    /// it is: it knows no number that could end.
    pub fn end_clients(&mut self, key: ChannelKey) {
        let Some(c) = self.partitions.channel_mut(key) else { return };
        let ended = c.take_off(|s| s.core != self.id || !self.native.is_subscribing(s.conn));
        self.end_subscriptions(key, ended, true);
    }

    /// Closes a partition for writing; its channels are gone.
    pub fn close_partition(&mut self, idx: PartitionIdx) {
        for key in self.partitions.channel_keys(idx) {
            self.end_clients(key);
            self.channels().forget(key);
        }
        self.store.close_partition(idx, self.outbox.io());
    }
}
