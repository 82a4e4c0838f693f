//! Channels that an nsqlookupd knows of a topic which is new here: created in all its partitions, each from its first message on.

use super::Node;
use super::channels::ANSWER_LIMIT;
use super::link::CoreAnswer;
use crate::base::PartitionId;
use crate::discovery::ChannelsToCreate;
use crate::seam::message::{ChangeChannel, ChannelChange, MeshMessage};
use std::rc::Rc;
use tokio::sync::mpsc::UnboundedReceiver;

pub async fn create(node: Rc<Node>, mut wanted: UnboundedReceiver<ChannelsToCreate>) {
    while let Some(wanted) = wanted.recv().await {
        let topic = &wanted.topic;
        for channel in &wanted.channels {
            for partition in (0..topic.partitions).map(PartitionId) {
                // Looked at again for each partition: a deletion may come at any time.
                if wanted.is_deleted(channel) {
                    tracing::info!(topic = %topic.name, %channel, "a known channel was deleted meanwhile: it is not created");
                    break;
                }
                // As the topic's first one: it begins where the topic does, though others may have come before it.
                let change = ChannelChange::Create { first: Some(true), is_alone: false };
                let set = Box::new(ChangeChannel { topic: topic.clone(), partition, channel: channel.clone(), change });
                let core = topic.core_of(partition, node.link.cores());
                match node.link.ask(core, ANSWER_LIMIT, |ticket| MeshMessage::ChangeChannel { ticket, set }).await {
                    Some(CoreAnswer::ChannelChanged(Ok(_))) => {}
                    Some(CoreAnswer::ChannelChanged(Err(error))) => {
                        tracing::warn!(topic = %topic.name, %partition, %channel, %error, "a known channel is not created");
                    }
                    _ => {
                        tracing::warn!(topic = %topic.name, %partition, %channel, "no core answers whether a known channel is created")
                    }
                }
            }
        }
    }
}
