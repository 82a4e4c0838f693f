//! Requests of this core's NSQ sessions.

use super::engine::{Attempt, Engine};
use super::questions::Question;
use crate::base::{ChannelName, ConnId, CoreId, MessageId, Now, PartitionId};
use crate::codec::nsq::{Bodies, ClientError};
use crate::seam::{
    message::{AuthQuery, MeshMessage, SubOptions},
    outcome::{InFlightError, PublishError},
};
use crate::session::{CommandKind, CommandTaken, Host, ReplySlot, Subscribe, failure};

impl Host for Engine {
    fn publish(
        &mut self,
        now: Now,
        conn: ConnId,
        topic: &str,
        partition: Option<PartitionId>,
        bodies: Bodies<'_>,
        slot: ReplySlot,
    ) -> CommandTaken {
        let asked = CommandKind::publish(&bodies);
        let attempt = self.publishing().publish(now, conn, topic, partition, &bodies, slot);
        self.work_off(now);
        match attempt {
            Attempt::Accepted => CommandTaken::Accepted,
            Attempt::Wait => self.stall(conn, asked),
            Attempt::Refused(error) => CommandTaken::Refused(self.refusal(asked, error, topic, partition)),
        }
    }

    fn subscribe(&mut self, now: Now, conn: ConnId, to: Subscribe<'_>, options: SubOptions, slot: ReplySlot) -> CommandTaken {
        let Ok(channel) = ChannelName::new(to.channel) else {
            return CommandTaken::Refused(ClientError::fatal("E_BAD_CHANNEL", "SUB channel name is not valid"));
        };
        match self.consumers().subscribe(now, conn, (to.topic, to.partition), channel, options, slot) {
            Attempt::Accepted => CommandTaken::Accepted,
            Attempt::Wait => self.stall(conn, CommandKind::Subscribe),
            Attempt::Refused(error) => CommandTaken::Refused(self.refusal(CommandKind::Subscribe, error, to.topic, to.partition)),
        }
    }

    fn ready(&mut self, _now: Now, conn: ConnId, count: u32) {
        self.consumers().set_ready(conn, count);
    }

    fn finish(&mut self, now: Now, conn: ConnId, id: MessageId) -> Result<(), InFlightError> {
        self.consumers().finish(now, conn, id)
    }

    fn requeue(&mut self, now: Now, conn: ConnId, id: MessageId, delay_ms: u64) -> Result<(), InFlightError> {
        self.consumers().requeue(now, conn, id, delay_ms)
    }

    fn touch(&mut self, now: Now, conn: ConnId, id: MessageId) -> Result<(), InFlightError> {
        self.consumers().touch(now, conn, id)
    }

    fn authorize(&mut self, conn: ConnId, query: AuthQuery) {
        let ticket = self.core.questions.open(Question::Auth { conn });
        self.pass(CoreId::HTTP, MeshMessage::Authorize { ticket, query: Box::new(query) });
    }

    fn close_subscription(&mut self, _now: Now, conn: ConnId) {
        self.consumers().set_ready(conn, 0);
    }
}

impl Engine {
    /// Error for a client, with the node that leads the partition where that is known.
    fn refusal(&self, asked: CommandKind, error: PublishError, topic: &str, partition: Option<PartitionId>) -> ClientError {
        let mut failure = failure(asked, error);
        if matches!(error, PublishError::NotLeader | PublishError::NotRelayed)
            && let Some(leader) = self.cluster.as_ref().and_then(|c| c.leader_elsewhere(topic, partition))
        {
            failure.text.extend_from_slice(format!(": {leader} does").as_bytes());
        }
        failure
    }

    fn stall(&mut self, conn: ConnId, asked: CommandKind) -> CommandTaken {
        self.moves.set_stalled_on(conn, asked);
        CommandTaken::Stall
    }
}
