//! State of a core except its sessions: the parts that most machines use, and the machines. This file routes notices of the store and
//! messages of other cores to them; events for sessions go to the [`Outbox`](super::outbox::Outbox).

use super::attach::Attaching;
use super::bundles::Bundles;
use super::channels::Channels;
use super::consumers::Consumers;
use super::moves::Moves;
use super::operate::{Operating, Operators};
use super::outbox::LateAnswer;
use super::parts::CoreParts;
use super::publish::Publishing;
use super::questions::Question;
use super::removal::{Removals, Removing};
use super::replication::{Cluster, collect_from};
use super::search::{Finding, FindingFor, Searches};
use super::subscription::Subscriptions;
use super::timers::Timer;
use super::topics::WaitingCore;
use crate::base::{ConnId, CoreId, DiskError, MessagePlace, Now, Position};
use crate::codec::peer::error::PeerError;
use crate::log::Notice;
use crate::peer::Links;
use crate::replica;
use crate::seam::event::Effect;
use crate::seam::message::MeshMessage;
use crate::seam::outcome::{InFlightCommand, PublishError};

pub(super) struct Engine {
    pub core: CoreParts,
    /// The coordinator's facts and the replicas; `None` without a cluster.
    pub cluster: Option<Box<Cluster>>,
    pub removals: Removals,
    pub subs: Subscriptions,
    pub searches: Searches,
    pub moves: Moves,
    pub attaching: Attaching,
    pub operators: Operators,
    pub bundles: Bundles,
}

/// Outcome of an attempt to publish.
pub(super) enum Attempt {
    Accepted,
    Wait,
    Refused(PublishError),
}

impl Engine {
    pub fn new(core: CoreParts) -> Self {
        Engine {
            moves: Moves::new(core.cores),
            core,
            cluster: None,
            removals: Removals::default(),
            subs: Subscriptions::default(),
            searches: Searches::default(),
            attaching: Attaching::default(),
            operators: Operators::default(),
            bundles: Bundles::default(),
        }
    }

    pub fn channels(&mut self) -> Channels<'_> {
        self.core.channels()
    }

    #[inline]
    pub fn consumers(&mut self) -> Consumers<'_> {
        let Engine { core, cluster, subs, bundles, attaching, moves, removals, .. } = self;
        Consumers { core, cluster: cluster.as_deref_mut(), subs, bundles, attaching, moves, removals }
    }

    #[inline]
    pub fn publishing(&mut self) -> Publishing<'_> {
        let Engine { core, cluster, moves, removals, subs, bundles, .. } = self;
        Publishing { core, cluster: cluster.as_deref_mut(), moves, removals, subs, bundles }
    }

    #[inline]
    pub fn operating(&mut self) -> Operating<'_> {
        let Engine { core, operators, attaching, removals, searches, .. } = self;
        Operating { core, operators, attaching, removals, searches }
    }

    #[inline]
    pub fn removing(&mut self) -> Removing<'_> {
        let Engine { core, cluster, removals, subs, attaching, operators, searches, .. } = self;
        Removing { core, cluster: cluster.as_deref_mut(), removals, subs, attaching, operators, searches }
    }

    /// Links with the other nodes. `None`: this node is alone.
    pub fn links(&self) -> Option<&Links> {
        self.cluster.as_ref().map(|c| &c.peers.links)
    }

    pub fn links_mut(&mut self) -> Option<&mut Links> {
        self.cluster.as_mut().map(|c| &mut c.peers.links)
    }

    /// Sees to it that the topic comes into being; `true` when it is known already.
    pub fn ensure_topic(&mut self, now: Now, name: &str, partitions: u16) -> Result<bool, PublishError> {
        self.core.ensure_topic(now, self.cluster.as_deref_mut(), name, partitions)
    }

    pub fn pass(&mut self, to: CoreId, message: MeshMessage) {
        self.core.outbox.pass(to, message);
    }

    /// Takes a message that this core left for itself, or for a client or an operator at another node.
    pub fn on_near(&mut self, now: Now, to: CoreId, message: MeshMessage) {
        match &mut self.cluster {
            Some(cluster) if to == CoreId::GUESTS => cluster.tell_guest(message),
            _ => self.on_mesh(now, to, message),
        }
    }

    /// Takes a notice of the store.
    pub fn on_notice(&mut self, now: Now, notice: Notice) {
        match notice {
            Notice::Durable { p, end, tickets_upto } => match self.core.partitions.get_mut(p).alone_mut() {
                Some(replica) => {
                    replica.on_local_durable(end);
                    self.core.answer_publishers(self.cluster.as_deref_mut(), p, tickets_upto);
                    self.channels().wake_all(p);
                }
                None => drop(self.in_cluster(now, |c, core| c.durable(core, p, end, tickets_upto))),
            },
            Notice::AppendFailed { p, from, error } => {
                // For a replica the failure is definite for batches that were not sealed. When the whole journal fails,
                // publishers of batches that were sealed and sent to followers have heard before that the outcome is unknown.
                let publishers = &mut self.core.partitions.get_mut(p).publishers;
                let keep = publishers.partition_point(|(ticket, _, _)| *ticket < from);
                for (_, publisher, _) in publishers.split_off(keep) {
                    self.core.tell_publisher(self.cluster.as_deref_mut(), publisher, Err(error.into()));
                }
                self.in_cluster(now, |_, core| core.work.tell(p, replica::Event::LogFailed));
            }
            Notice::Truncated { p } => drop(self.in_cluster(now, |_, core| core.work.tell(p, replica::Event::Truncated))),
            Notice::Verbatim { token, result, .. } => {
                self.in_cluster(now, |c, core| c.on_verbatim(core, token, result.map_err(PeerError::from)));
            }
            Notice::RecordDurable { upto } => {
                for topic in self.core.topics.created_up_to(upto) {
                    self.core.topic_known(&topic);
                    self.core.outbox.catalog().list_topic(&topic, true);
                    self.core.outbox.pass_to_others(|| MeshMessage::TopicCreated { topic: topic.clone() });
                }
                self.removing().removals_durable(now, upto);
                self.cursors_durable(now, upto);
                self.operating().emptied_up_to(upto);
                self.in_cluster(now, |c, core| c.records_durable(core, now, upto));
                self.operators.losses.durable(&mut self.core.outbox, upto);
            }
            Notice::Readable { p } => {
                self.core.partitions.get_mut(p).channels.iter_mut().for_each(|(_, c)| c.machine.readable());
                self.channels().wake_all(p);
                self.operating().read_offsets(now, p);
            }
            Notice::Room => {
                self.in_cluster(now, |c, core| c.go_on_following(core));
                self.publishing().retry_waiting(now);
            }
            Notice::Found { token, result } => self.on_found(now, token, result),
            Notice::Damage { p, .. } => drop(self.in_cluster(now, |_, core| core.work.tell(p, replica::Event::Damaged))),
            Notice::Mended { p, is_whole } => {
                self.in_cluster(now, |_, core| core.work.tell(p, replica::Event::Mended { is_whole }));
            }
            Notice::ReadOnly { reason } => {
                tracing::error!(
                    core = self.core.id.0,
                    reason,
                    "this core takes no publish until a restart; consumers go on, except on ordered channels; FINs are not durable"
                );
                self.core.life.fail(reason);
                for name in self.core.topics.creations_failed() {
                    self.core.topic_failed(&name, PublishError::ReadOnly);
                }
                self.removing().removals_failed(now);
                self.core.syncs.fail();
                self.operating().emptying_failed();
                self.in_cluster(now, |_, core| core.work.tell_all(&core.partitions, || replica::Event::LogFailed));
                self.operators.losses.failed(&mut self.core.outbox);
                self.publishing().retry_waiting(now);
            }
            Notice::Removable { p, at } => drop(self.in_cluster(now, |c, core| collect_from(core, &mut c.store_work, p, at))),
            Notice::Removed { p, is_gone } => self.removing().partition_removed(now, p, is_gone),
            Notice::TopicRemoved { key, is_gone } => self.removing().topic_removed(now, key, is_gone),
            Notice::Stopped => {
                self.core.life.stopped();
                self.core.outbox.push(Effect::Stopped);
            }
        }
    }

    /// A search of a commit log has ended.
    fn on_found(&mut self, now: Now, token: u64, result: Result<Option<Position>, DiskError>) {
        let ended = self.searches.end(token, result, &self.core.partitions, &mut self.core.store, self.core.outbox.io());
        match ended {
            Some((Finding { what: FindingFor::Set { key, set, setter }, .. }, found)) => {
                self.operating().offset_found(now, key, set, setter, found);
            }
            Some((finding, found)) => self.core.place_found(now, finding, found),
            None => {}
        }
    }

    /// Takes a request, or an answer, of another core or of the HTTP thread.
    pub fn on_mesh(&mut self, now: Now, from: CoreId, message: MeshMessage) {
        match message {
            MeshMessage::EnsureTopic { ticket, name, partitions } => match self.ensure_topic(now, &name, partitions) {
                Ok(true) => {
                    let topic = self.core.topics.known(&name).expect("the topic is known").clone();
                    self.pass(from, MeshMessage::Topic { ticket, result: Ok(topic) });
                }
                Ok(false) => self.core.topics.wait_core(&name, WaitingCore { from, ticket, partitions }),
                Err(error) => self.pass(from, MeshMessage::Topic { ticket, result: Err(error) }),
            },
            MeshMessage::FindTopic { ticket, name } => {
                let result = self.core.topics.known(&name).cloned().ok_or(PublishError::NoTopic);
                self.pass(from, MeshMessage::Topic { ticket, result });
            }
            MeshMessage::EmptyTopic { ticket, topic, partition } => {
                self.operating().empty_topic(&topic, partition, (from, ticket));
            }
            MeshMessage::DeleteTopic { ticket, name } => self.removing().delete_topic(&name, (from, ticket)),
            MeshMessage::SetOffset { .. } | MeshMessage::SetOrder { .. } | MeshMessage::ChangeChannel { .. } => {
                self.on_operator(now, from, message);
            }
            MeshMessage::AcceptLoss { ticket, topic, partition, loss } => {
                self.accept_loss(now, (from, ticket), (&topic, partition), loss.as_deref());
            }
            // Cores do not ask each other; the HTTP thread does.
            MeshMessage::Authorize { .. }
            | MeshMessage::OffsetSet { .. }
            | MeshMessage::TopicChanged { .. }
            | MeshMessage::Catalog { .. }
            | MeshMessage::OrderSet { .. }
            | MeshMessage::ChannelChanged { .. }
            | MeshMessage::LedElsewhere { .. }
            | MeshMessage::LossAccepted { .. } => {}
            MeshMessage::Topic { ticket, result } => {
                let Some(Question::Topic { name }) = self.core.questions.close(ticket) else { return };
                match result {
                    Ok(topic) => self.core.topic_known(&topic),
                    Err(error) => self.core.topic_failed(&name, error),
                }
            }
            MeshMessage::Authorized { ticket, result } => {
                if let Some(Question::Auth { conn }) = self.core.questions.close(ticket) {
                    self.core.outbox.tell(conn, LateAnswer::Authorized(result));
                }
            }
            MeshMessage::TopicCount { topics } => self.core.topics.set_count(from, topics),
            MeshMessage::DiskFull { full } => self.core.store.set_other_full(from, full),
            MeshMessage::TopicCreated { topic } => match self.core.is_clustered {
                true => drop(self.in_cluster(now, |c, core| c.on_topic_recorded(core, now, &topic))),
                false => self.core.topic_known(&topic),
            },
            MeshMessage::TopicIdle { .. }
            | MeshMessage::CloseTopic { .. }
            | MeshMessage::Leave { .. }
            | MeshMessage::ReopenTopic { .. }
            | MeshMessage::DropTopic { .. }
            | MeshMessage::Dropped { .. }
            | MeshMessage::StuckTopic { .. } => self.removing().on_removal(now, from, message),
            MeshMessage::Publish { ticket, topic, partition, bodies } => {
                self.publishing().publish_passed(now, from, ticket, (topic, partition), bodies);
                self.work_off(now);
            }
            MeshMessage::Published { ticket, result } => {
                let Some(Question::Publish { conn, slot, .. }) = self.core.questions.close(ticket) else { return };
                self.core.outbox.tell(conn, LateAnswer::Answer(slot, result));
                self.publishing().retry_waiting_elsewhere();
            }
            MeshMessage::Subscribe { request } => self.consumers().on_subscribe(now, *request),
            MeshMessage::CreateChannel { topic, channel } => {
                self.consumers().on_create_channel(now, from, topic, channel);
            }
            MeshMessage::ChannelCreated { topic } => {
                self.consumers().on_channel_created(&topic);
                self.operating().go_on_operating(now);
            }
            MeshMessage::Subscribed { sub, partition, result } => self.consumers().on_subscribed(sub, partition, result),
            MeshMessage::Unsubscribe { sub, partition } => self.consumers().detach(sub, partition),
            MeshMessage::Lend { sub, partition, credit } => self.consumers().lend(sub, partition, credit),
            MeshMessage::Recall { sub, partition, credit } => {
                let back = self.consumers().recall(sub, partition, credit);
                if back > 0 {
                    self.pass(from, MeshMessage::Returned { sub, partition, credit: back });
                }
            }
            MeshMessage::Returned { sub, partition, credit } => self.consumers().on_returned(sub, partition, credit),
            MeshMessage::Hungry { sub, partition } => self.consumers().on_hungry(sub, partition),
            MeshMessage::Block { sub, partition, blocked } => {
                self.bundles.set_blocked(sub, blocked);
                self.consumers().block(sub, partition, blocked);
            }
            MeshMessage::Finish { sub, partition, ids } => {
                for id in ids {
                    if let Err(why) = self.consumers().on_finish(now, sub, partition, id) {
                        let place = MessagePlace::new(partition, id);
                        self.consumers().refuse_in_flight(sub, place, InFlightCommand::Finish, why);
                    }
                }
            }
            MeshMessage::Requeue { sub, partition, id, delay_ms } => {
                self.consumers().on_requeue_passed(now, sub, MessagePlace::new(partition, id), delay_ms);
            }
            MeshMessage::Touch { sub, partition, id } => {
                self.consumers().on_touch_passed(now, sub, MessagePlace::new(partition, id));
            }
            MeshMessage::Share { topic, partition, share } => self.on_share(now, &topic, partition, share),
            MeshMessage::PartLost { sub, partition } => self.consumers().on_part_lost(sub, partition),
            MeshMessage::ChannelDeleted { sub } => self.consumers().on_channel_deleted(sub),
            MeshMessage::InFlightFailed { sub, place, command, why } => {
                self.consumers().on_in_flight_failed(sub, place, command, why);
            }
            MeshMessage::Peer { from, addressed } => {
                self.in_cluster(now, |c, core| c.on_peer_message(core, now, from, *addressed));
            }
            // The shard looks at these before it asks the engine.
            MeshMessage::Deliver { .. }
            | MeshMessage::Connection { .. }
            | MeshMessage::StatsRequest { .. }
            | MeshMessage::Stats { .. } => {}
        }
    }

    /// Continues the removals of topics.
    pub fn settle_removals(&mut self, now: Now) {
        if self.removals.is_unsettled() {
            for (from, message) in self.removing().settle() {
                self.on_mesh(now, from, message);
            }
        }
    }

    /// The connection is gone.
    pub fn forget_conn(&mut self, conn: ConnId) {
        self.consumers().flush_fins();
        self.moves.forget(conn);
        self.core.timers.remove(Timer::Session(conn));
        self.searches.forget(conn);
        self.core.forget_native(conn);
        if let Some(topic) = self.consumers().forget(conn) {
            self.channels().topic_idle(&topic);
        }
    }

    /// Whether the lists are empty that a step works through.
    pub fn is_settled(&self) -> bool {
        self.core.outbox.is_settled()
            && !self.subs.has_opening()
            && !self.attaching.parked.is_resuming()
            && !self.core.syncs.has_ended()
            && self.core.work.is_empty()
            && !self.core.partitions.agenda.has_moved()
    }

    /// Whether the shard has something to carry through: such lists, or topics whose time may have come.
    pub fn has_unsettled(&self) -> bool {
        !self.is_settled() || self.removals.is_unsettled() || self.links().is_some_and(Links::has_events)
    }

    /// True if a client, or another core, still waits for an answer.
    pub fn has_outstanding(&self) -> bool {
        !self.core.questions.is_empty()
            || self.cluster.as_ref().is_some_and(|c| !c.forwards.is_empty())
            || self.core.partitions.iter().any(|(_, p)| !p.publishers.is_empty())
    }
}
