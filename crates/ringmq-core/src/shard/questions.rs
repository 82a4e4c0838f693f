//! Questions of this core to other threads that are not answered yet.

use crate::base::{ConnId, IdMap, TopicId, TopicName};
use crate::seam::message::Ticket;
use crate::session::ReplySlot;

pub(super) enum Question {
    /// A publish to a partition of another core; `bytes`: its memory at both ends.
    Publish {
        conn: ConnId,
        slot: ReplySlot,
        bytes: u64,
        topic: TopicId,
    },
    Topic {
        name: TopicName,
    },
    Auth {
        conn: ConnId,
    },
}

#[derive(Default)]
pub(super) struct Questions {
    last: u64,
    open: IdMap<Ticket, Question>,
    /// Bytes of the publishes in `open`.
    publish_bytes: u64,
}

impl Questions {
    /// A question that is asked now. Its ticket names it in the answer.
    pub fn open(&mut self, question: Question) -> Ticket {
        if let Question::Publish { bytes, .. } = &question {
            self.publish_bytes += bytes;
        }
        self.last += 1;
        let ticket = Ticket(self.last);
        self.open.insert(ticket, question);
        ticket
    }

    /// The question that was answered.
    pub fn close(&mut self, ticket: Ticket) -> Option<Question> {
        let question = self.open.remove(&ticket);
        if let Some(Question::Publish { bytes, .. }) = &question {
            self.publish_bytes -= bytes;
        }
        question
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Memory of publishes that other cores work on for this one.
    pub fn publish_bytes(&self) -> u64 {
        self.publish_bytes
    }

    /// Whether another core has not answered a publish to the topic.
    pub fn publishes_to(&self, topic: TopicId) -> bool {
        self.open.values().any(|q| matches!(q, Question::Publish { topic: id, .. } if *id == topic))
    }
}
