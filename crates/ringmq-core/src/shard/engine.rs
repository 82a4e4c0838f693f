//! Everything of a core but its sessions: the store, the partitions, the topics, the subscriptions. It is the sessions'
//! host, and answers other cores; what sessions are to hear of it is left in the [`Outbox`].

use super::agenda::Agenda;
use super::attach::Attaching;
use super::bundles::Bundles;
use super::catalog::Catalog;
use super::copies::Copies;
use super::cursors::CursorSyncs;
use super::deliver::Lending;
use super::moves::Moves;
use super::native::NativeClients;
use super::operate::Operators;
use super::outbox::Outbox;
use super::partitions::{ChannelKey, Partition, Partitions};
use super::questions::Questions;
use super::removal::Removals;
use super::replication::Cluster;
use super::room::OpenMemory;
use super::search::Searches;
use super::stop::Life;
use super::subscription::Subscriptions;
use super::timers::Timers;
use super::topics::Topics;
use super::waiting::Waiting;
use crate::base::{CoreId, Epoch, Now, PartitionDir, PartitionId, TopicRef};
use crate::channel::ChannelOptions;
use crate::codec::peer::error::PeerError;
use crate::config::Settings;
use crate::log::{AppendTicket, Notice, PartitionIdx, Store};
use crate::metrics::counters::Counters;
use crate::peer::Links;
use crate::replica::{self, Replica};
use crate::seam::event::Effect;
use crate::seam::{message::MeshMessage, outcome::PublishError};
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Engine {
    pub core: CoreId,
    pub cores: u16,
    pub settings: Arc<Settings>,
    pub epoch: Epoch,
    pub store: Store,
    pub lending: Lending,
    pub partitions: Partitions,
    pub topics: Topics,
    /// The coordinator's facts and the replicas; `None` without a cluster.
    pub cluster: Option<Box<Cluster>>,
    pub removals: Removals,
    pub subs: Subscriptions,
    pub native: NativeClients,
    pub searches: Searches,
    pub moves: Moves,
    pub timers: Timers,
    /// Stage of a stop, and work that is still accepted.
    pub life: Life,
    pub outbox: Outbox,
    pub agenda: Agenda,
    pub waiting: Waiting,
    pub attaching: Attaching,
    pub syncs: CursorSyncs,
    pub operators: Operators,
    pub bundles: Bundles,
    pub questions: Questions,
    pub open_memory: OpenMemory,
    pub copies: Copies,
    pub catalog: Catalog,
    pub counters: Counters,
}

/// Outcome of an attempt to publish.
pub(super) enum Attempt {
    Accepted,
    Wait,
    Refused(PublishError),
}

impl Engine {
    pub fn new(core: CoreId, cores: u16, settings: Arc<Settings>, epoch: Epoch, store: Store, seed: u64) -> Self {
        Engine {
            catalog: Catalog::new(core, cores),
            counters: Counters::default(),
            copies: Copies::new(&settings),
            open_memory: OpenMemory::new(settings.channel_memory),
            core,
            cores,
            settings,
            epoch,
            lending: Lending::new(store.lender()),
            store,
            partitions: Partitions::default(),
            topics: Topics::new(seed),
            cluster: None,
            removals: Removals::default(),
            subs: Subscriptions::default(),
            native: NativeClients::default(),
            searches: Searches::default(),
            moves: Moves::new(cores),
            timers: Timers::default(),
            life: Life::default(),
            outbox: Outbox::default(),
            agenda: Agenda::default(),
            waiting: Waiting::default(),
            attaching: Attaching::default(),
            syncs: CursorSyncs::default(),
            operators: Operators::default(),
            bundles: Bundles::default(),
            questions: Questions::default(),
        }
    }

    /// Whether the node is one of several that replicate partitions, even if it is the only one at present.
    pub fn is_clustered(&self) -> bool {
        self.cluster.is_some()
    }

    pub fn channel_options(&self) -> ChannelOptions {
        ChannelOptions {
            max_msg_timeout: Duration::from_millis(self.settings.max_msg_timeout_ms),
            max_req_timeout: Duration::from_millis(self.settings.max_req_timeout_ms),
            end_to_end: self.settings.end_to_end_window(),
        }
    }

    /// Moves the windows of statistics before they are read.
    pub fn move_windows(&mut self, now: Now) {
        if self.settings.end_to_end_window().is_some() {
            let all = self.partitions.channels_mut().flat_map(|(_, channels)| channels.iter_mut());
            all.for_each(|(_, c)| c.machine.move_window(now.ticks));
        }
    }

    pub fn pass(&mut self, to: CoreId, message: MeshMessage) {
        if to == CoreId::GUESTS {
            return self.tell_guest(message);
        }
        self.outbox.pass(to, message);
    }

    /// A partition of this core, made when it is used for the first time. In a cluster only the metadata makes partitions.
    pub fn partition(&mut self, now: Now, topic: &TopicRef, partition: PartitionId) -> Result<PartitionIdx, PublishError> {
        if let Some(idx) = self.topics.place(&topic.name, partition) {
            return Ok(idx);
        }
        if self.is_clustered() {
            return Err(PublishError::NotLeader);
        }
        let dir = PartitionDir { topic: topic.name.clone(), topic_id: topic.id, partition };
        let idx = self.partitions.find(&dir).unwrap_or_else(|| {
            let dir = Arc::new(dir);
            let idx = self.store.create(now, dir.clone(), self.outbox.io());
            let replica = Replica::new(self.epoch, self.store.durable_end(idx));
            self.partitions.insert(idx, Partition::alone(topic.clone(), dir, replica));
            idx
        });
        self.topics.set_place(&topic.name, partition, idx);
        Ok(idx)
    }

    pub fn on_notice(&mut self, now: Now, notice: Notice) {
        match notice {
            Notice::Durable { p, end, tickets_upto } => match self.partitions.get_mut(p).alone_mut() {
                Some(replica) => {
                    replica.on_local_durable(end);
                    self.answer_publishers(p, tickets_upto);
                    self.wake_channels(p);
                }
                None => self.member_durable(now, p, end, tickets_upto),
            },
            Notice::AppendFailed { p, from, error } => {
                // Of a replica that is definite for what was not sealed. When the whole journal fails, what was sealed and
                // sent to followers has been told before that nobody knows.
                let publishers = &mut self.partitions.get_mut(p).publishers;
                let keep = publishers.partition_point(|(ticket, _, _)| *ticket < from);
                for (_, publisher, _) in publishers.split_off(keep) {
                    self.tell_publisher(publisher, Err(error.into()));
                }
                self.tell_member(now, p, replica::Event::LogFailed);
            }
            Notice::Truncated { p } => self.tell_member(now, p, replica::Event::Truncated),
            Notice::Verbatim { token, result, .. } => {
                self.on_verbatim(now, token, result.map_err(PeerError::from));
            }
            Notice::RecordDurable { upto } => {
                for topic in self.topics.created_up_to(upto) {
                    self.topic_known(&topic);
                    self.catalog.list_topic(&topic, true);
                    let this = self.core;
                    for core in (0..self.cores).map(CoreId).filter(|&core| core != this) {
                        self.pass(core, MeshMessage::TopicCreated { topic: topic.clone() });
                    }
                }
                self.removals_durable(now, upto);
                self.cursors_durable(now, upto);
                self.emptied_up_to(upto);
                self.member_records(now, upto);
                self.losses_durable(upto);
            }
            Notice::Readable { p } => {
                self.partitions.get_mut(p).channels.iter_mut().for_each(|(_, c)| c.machine.readable());
                self.wake_channels(p);
                self.read_offsets(now, p);
            }
            Notice::Room => {
                self.go_on_following(now);
                self.retry_waiting(now);
            }
            Notice::Found { token, result } => self.on_found(now, token, result),
            Notice::Damage { p, .. } => self.tell_member(now, p, replica::Event::Damaged),
            Notice::Mended { p, is_whole } => self.member_mended(now, p, is_whole),
            Notice::ReadOnly { reason } => {
                tracing::error!(
                    core = self.core.0,
                    reason,
                    "this core takes no publish until a restart; consumers go on (not of ordered channels), FINs are not durable"
                );
                self.life.fail(reason);
                for name in self.topics.creations_failed() {
                    self.topic_failed(&name, PublishError::ReadOnly);
                }
                self.removals_failed(now);
                self.cursors_failed(now);
                self.emptying_failed();
                self.members_failed(now);
                self.losses_failed();
                self.retry_waiting(now);
            }
            Notice::Removable { p, at } => self.collect_from(p, at),
            Notice::Removed { p, is_gone } => self.partition_removed(now, p, is_gone),
            Notice::TopicRemoved { key, is_gone } => self.topic_removed(now, key, is_gone),
            Notice::Stopped => {
                self.life.stopped();
                self.outbox.push(Effect::Stopped);
            }
        }
    }

    /// Everything up to the ticket is committed: its publishers hear of it, in order.
    pub fn answer_publishers(&mut self, p: PartitionIdx, upto: AppendTicket) {
        while let Some((_, publisher, since)) =
            self.partitions.get_mut(p).publishers.pop_front_if(|(ticket, _, _)| *ticket <= upto)
        {
            self.counters.published(since);
            self.tell_publisher(publisher, Ok(()));
        }
    }

    pub fn wake_channels(&mut self, p: PartitionIdx) {
        let partition = self.partitions.get_mut(p);
        for (i, channel) in partition.channels.iter_mut() {
            if !channel.subs.is_empty() || channel.machine.wants_copies() {
                self.agenda.wake(ChannelKey { partition: p.0, channel: i as u32 }, channel);
            }
        }
    }

    pub fn wake_channel(&mut self, key: ChannelKey) {
        if let Some(channel) = self.partitions.channel_mut(key) {
            self.agenda.wake(key, channel);
        }
    }

    /// Whether the shard has something to carry through: lists that are filled, topics and SUBs whose time may have come.
    pub fn has_unsettled(&self) -> bool {
        !self.outbox.is_settled()
            || self.subs.has_opening()
            || self.removals.is_unsettled()
            || self.links().is_some_and(Links::has_events)
    }

    /// Whether somebody still waits for an answer.
    pub fn has_outstanding(&self) -> bool {
        !self.questions.is_empty() || self.has_forwarded() || self.partitions.iter().any(|(_, p)| !p.publishers.is_empty())
    }
}
