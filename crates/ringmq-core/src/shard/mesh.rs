//! What other cores (and the HTTP thread) ask of this one, and what they answer.

use super::engine::Engine;
use super::offsets::Setter;
use super::outbox::Heard;
use super::questions::Question;
use super::topics::WaitingCore;
use crate::base::{CoreId, MessagePlace, Now};
use crate::peer::LinkEvent;
use crate::seam::{
    message::MeshMessage,
    outcome::{InFlightCommand, PublishError},
};

impl Engine {
    pub fn on_mesh(&mut self, now: Now, from: CoreId, message: MeshMessage) {
        match message {
            MeshMessage::EnsureTopic { ticket, name, partitions } => match self.ensure_topic_with(now, &name, partitions) {
                Ok(true) => {
                    let topic = self.topics.known(&name).expect("the topic is known").clone();
                    self.pass(from, MeshMessage::Topic { ticket, result: Ok(topic) });
                }
                Ok(false) => self.topics.wait_core(&name, WaitingCore { from, ticket, partitions }),
                Err(error) => self.pass(from, MeshMessage::Topic { ticket, result: Err(error) }),
            },
            MeshMessage::FindTopic { ticket, name } => {
                let result = self.topics.known(&name).cloned().ok_or(PublishError::NoTopic);
                self.pass(from, MeshMessage::Topic { ticket, result });
            }
            MeshMessage::EmptyTopic { ticket, topic, partition } => self.empty_topic(&topic, partition, (from, ticket)),
            MeshMessage::DeleteTopic { ticket, name } => self.delete_topic(now, &name, (from, ticket)),
            MeshMessage::SetOffset { ticket, set } => self.set_offset(now, *set, Setter::Core(from, ticket)),
            MeshMessage::SetOrder { ticket, set } => self.set_order(now, *set, from, ticket),
            MeshMessage::ChangeChannel { ticket, set } => self.change_channel(now, *set, from, ticket),
            MeshMessage::AcceptLoss { ticket, topic, partition, loss } => {
                self.accept_loss(now, from, ticket, (&topic, partition), loss.as_deref());
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
                let Some(Question::Topic { name }) = self.questions.close(ticket) else { return };
                match result {
                    Ok(topic) => self.topic_known(&topic),
                    Err(error) => self.topic_failed(&name, error),
                }
            }
            MeshMessage::Authorized { ticket, result } => {
                if let Some(Question::Auth { conn }) = self.questions.close(ticket) {
                    self.outbox.tell(conn, Heard::Authorized(result));
                }
            }
            MeshMessage::TopicCount { topics } => self.topics.set_count(from, topics),
            MeshMessage::DiskFull { full } => self.store.set_other_full(from, full),
            MeshMessage::TopicCreated { topic } => match self.is_clustered() {
                true => self.on_topic_recorded(now, &topic),
                false => self.topic_known(&topic),
            },
            MeshMessage::TopicIdle { .. }
            | MeshMessage::CloseTopic { .. }
            | MeshMessage::Leave { .. }
            | MeshMessage::ReopenTopic { .. }
            | MeshMessage::DropTopic { .. }
            | MeshMessage::Dropped { .. }
            | MeshMessage::StuckTopic { .. } => self.on_removal(now, from, message),
            MeshMessage::Publish { ticket, topic, partition, bodies } => {
                self.publish_passed(now, from, ticket, (topic, partition), bodies);
            }
            MeshMessage::Published { ticket, result } => {
                let Some(Question::Publish { conn, slot, .. }) = self.questions.close(ticket) else { return };
                self.outbox.tell(conn, Heard::Answer(slot, result));
                self.retry_waiting_elsewhere();
            }
            MeshMessage::Subscribe { request } => self.on_subscribe(now, *request),
            MeshMessage::CreateChannel { topic, channel } => self.on_create_channel(now, from, topic, channel),
            MeshMessage::ChannelCreated { topic } => {
                self.on_channel_created(&topic);
                self.go_on_operating(now);
            }
            MeshMessage::Subscribed { sub, partition, result } => self.tell_subscriber(sub, partition, result),
            MeshMessage::Unsubscribe { sub, partition, .. } => self.detach(now, sub, partition),
            MeshMessage::Lend { sub, partition, credit } => self.on_lent(sub, partition, credit),
            MeshMessage::Recall { sub, partition, credit } => {
                let back = self.on_recall(sub, partition, credit);
                if back > 0 {
                    self.pass(from, MeshMessage::Returned { sub, partition, credit: back });
                }
            }
            MeshMessage::Returned { sub, partition, credit } => self.on_returned(sub, partition, credit),
            MeshMessage::Hungry { sub, partition } => self.on_hungry(sub, partition),
            MeshMessage::Block { sub, partition, blocked } => {
                self.bundles.set_blocked(sub, blocked);
                self.on_block(sub, partition, blocked);
            }
            MeshMessage::Finish { sub, partition, ids } => {
                for id in ids {
                    if let Err(why) = self.on_finish(now, sub, partition, id) {
                        let place = MessagePlace::new(partition, id);
                        let why = self.why_not_in_flight(sub, place, why);
                        self.tell_in_flight_failed(sub, place, InFlightCommand::Finish, why);
                    }
                }
            }
            MeshMessage::Requeue { sub, partition, id, delay_ms } => {
                if !self.on_requeue(now, sub, partition, id, delay_ms) {
                    self.refuse_in_flight(sub, MessagePlace::new(partition, id), InFlightCommand::Requeue);
                }
            }
            MeshMessage::Touch { sub, partition, id } => {
                if !self.on_touch(now, sub, partition, id) {
                    self.refuse_in_flight(sub, MessagePlace::new(partition, id), InFlightCommand::Touch);
                }
            }
            MeshMessage::Share { topic, partition, share } => self.on_share(now, &topic, partition, share),
            MeshMessage::PartLost { sub, partition } => self.part_lost(sub, partition),
            MeshMessage::ChannelDeleted { sub, .. } => self.subscription_deleted(sub),
            MeshMessage::InFlightFailed { sub, place, command, why } => self.tell_in_flight_failed(sub, place, command, why),
            MeshMessage::Peer { from, addressed } => {
                self.on_link_event(now, LinkEvent::Message { from, addressed: *addressed });
            }
            // The shard looks at these before it asks the engine.
            MeshMessage::Deliver { .. }
            | MeshMessage::Connection { .. }
            | MeshMessage::StatsRequest { .. }
            | MeshMessage::Stats { .. } => {}
        }
    }
}
