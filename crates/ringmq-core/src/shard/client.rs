//! A connection's session, of either protocol, as the shard deals with it.

use super::engine::Engine;
use super::failures::failure_of;
use super::outbox::LateAnswer;
use crate::base::{Lent, Now, Peer, Ticks};
use crate::codec::output::Output;
use crate::session::native::NativeSession;
use crate::session::{CommandKind, ConnectionState, Session, failure};
use crate::{
    base::client::ClientInfo,
    seam::{
        grants::Grants,
        message::{MovedSession, Protocol},
        outcome::PublishError,
    },
};
use std::sync::Arc;

#[expect(clippy::large_enum_variant, reason = "NSQ connections are the many: no indirection for them")]
pub(super) enum Client {
    Nsq(Session),
    Native(Box<NativeSession>),
}

impl Client {
    pub fn on_bytes(&mut self, now: Now, bytes: &[u8], engine: &mut Engine) {
        match self {
            Client::Nsq(s) => s.on_bytes(now, bytes, engine),
            Client::Native(s) => s.on_bytes(now, bytes, engine),
        }
    }

    pub fn authorized(&mut self, now: Now, result: Result<Arc<Grants>, String>, engine: &mut Engine) {
        if let Client::Nsq(s) = self {
            s.authorized(now, result, engine);
        }
    }

    /// Parses the bytes that came along from another core.
    pub fn begin(&mut self, now: Now, engine: &mut Engine) {
        if let Client::Nsq(s) = self {
            s.resume(now, engine);
        }
    }

    /// Memory for the next receive, if a long body is awaited.
    pub fn lend(&mut self) -> Option<Lent> {
        match self {
            Client::Nsq(s) => s.lend(),
            Client::Native(s) => s.lend(),
        }
    }

    /// Takes back the lent buffer with the received bytes.
    pub fn received(&mut self, now: Now, lent: Lent, engine: &mut Engine) {
        match self {
            Client::Nsq(s) => s.received(now, lent, engine),
            Client::Native(s) => s.received(now, lent, engine),
        }
    }

    /// Ends the input. True: the session closes the connection when all is answered. The net waits for a native client's answers.
    pub fn on_end(&mut self) -> bool {
        let Client::Nsq(s) = self else { return false };
        s.on_end();
        true
    }

    pub fn on_sent(&mut self, now: Now, bytes: usize) {
        match self {
            Client::Nsq(s) => s.on_sent(bytes),
            Client::Native(s) => s.on_sent(now, bytes),
        }
    }

    pub fn tick(&mut self, now: Now) {
        match self {
            Client::Nsq(s) => s.tick(now),
            Client::Native(s) => s.tick(now),
        }
    }

    pub fn deadline(&self) -> Option<Ticks> {
        match self {
            Client::Nsq(s) => s.deadline(),
            Client::Native(s) => s.deadline(),
        }
    }

    /// Frames of another core for an NSQ client.
    pub fn append(&mut self, frames: &mut Vec<u8>) {
        if let Client::Nsq(s) = self {
            s.output().append(frames);
        }
    }

    /// Takes the reason why the node ends this connection, once.
    pub fn take_fault(&mut self) -> Option<Box<str>> {
        match self {
            Client::Nsq(s) => s.take_fault(),
            Client::Native(s) => s.take_fault(),
        }
    }

    pub fn take_output(&mut self, now: Now) -> Option<Output> {
        match self {
            Client::Nsq(s) => s.take_output().map(Output::Whole),
            Client::Native(s) => s.take_output(now),
        }
    }

    pub fn is_output_full(&self) -> bool {
        match self {
            Client::Nsq(s) => s.is_output_full(),
            Client::Native(s) => s.is_output_full(),
        }
    }

    pub fn is_closing(&self) -> bool {
        match self {
            Client::Nsq(s) => s.is_closing(),
            Client::Native(s) => s.is_closing(),
        }
    }

    pub fn wants_reading(&self) -> bool {
        match self {
            Client::Nsq(s) => s.wants_reading(),
            Client::Native(s) => s.wants_reading(),
        }
    }

    pub fn is_quiet(&self) -> bool {
        match self {
            Client::Nsq(s) => s.is_quiet(),
            Client::Native(s) => s.is_quiet(),
        }
    }

    pub fn is_stalled(&self) -> bool {
        match self {
            Client::Nsq(s) => s.is_stalled(),
            Client::Native(s) => s.is_stalled(),
        }
    }

    pub fn stalled_since(&self) -> Option<Ticks> {
        match self {
            Client::Nsq(s) => s.stalled_since(),
            Client::Native(s) => s.stalled_since(),
        }
    }

    pub fn resume(&mut self, now: Now, engine: &mut Engine) {
        match self {
            Client::Nsq(s) => s.resume(now, engine),
            Client::Native(s) => s.resume(now, engine),
        }
    }

    /// Refuses the waiting command; the commands behind it continue.
    pub fn fail_stalled(&mut self, now: Now, asked: CommandKind, error: PublishError, engine: &mut Engine) {
        match self {
            Client::Nsq(s) => {
                s.fail_stalled(failure(asked, error));
                s.resume(now, engine);
            }
            Client::Native(s) => s.fail_stalled(now, &failure_of(error), engine),
        }
    }

    #[inline]
    pub fn hear(&mut self, heard: LateAnswer) {
        match (self, heard) {
            (Client::Nsq(s), LateAnswer::Answer(slot, Ok(()))) => s.reply_ok(slot),
            (Client::Nsq(s), LateAnswer::Answer(slot, Err(error))) => s.fail(slot, error),
            (Client::Nsq(s), LateAnswer::InFlightFailed(id, command, why)) => s.in_flight_failed(id, command, why),
            (Client::Native(s), LateAnswer::Native(request, answer)) => s.answer(request, answer),
            (Client::Native(s), LateAnswer::NativeEnded(subscription, why)) => {
                s.end_subscription(subscription, why);
            }
            (Client::Nsq(s), LateAnswer::ChannelDeleted) => s.end_deleted(),
            (Client::Nsq(s), LateAnswer::SubscriptionLost(error)) => {
                s.lose_subscription(&failure(CommandKind::Subscribe, error));
            }
            // a connection keeps its protocol, and every answer fits its request
            _ => {}
        }
    }

    /// Resumes work that waited for output space or answers.
    pub fn go_on(&mut self, now: Now, engine: &mut Engine) {
        match self {
            Client::Nsq(s) => s.go_on(now, engine),
            Client::Native(s) => s.go_on(now, engine),
        }
    }

    pub fn peer(&self) -> &Peer {
        match self {
            Client::Nsq(s) => s.peer(),
            Client::Native(s) => s.peer(),
        }
    }

    /// The session as it moves to another core, and the bytes that it has not read.
    pub fn carry(&mut self, peer: Peer) -> (Box<MovedSession>, Vec<u8>) {
        match self {
            Client::Nsq(s) => {
                let (state, unread) = s.carry();
                (MovedSession::new(peer, Protocol::Nsq, state), unread)
            }
            Client::Native(s) => {
                let (state, unread) = s.carry();
                (MovedSession::new(peer, Protocol::Native, state), unread)
            }
        }
    }

    pub fn client_info(&self) -> ClientInfo {
        match self {
            Client::Nsq(s) => s.client_info(),
            Client::Native(s) => s.client_info(),
        }
    }

    /// True after CLS.
    pub fn is_unsubscribing(&self) -> bool {
        matches!(self, Client::Nsq(s) if s.state() == ConnectionState::Closing)
    }

    /// Topics and the messages taken for them from this client.
    pub fn published(&self) -> Vec<(String, u64)> {
        let own = |(topic, n): (&str, u64)| (topic.to_owned(), n);
        match self {
            Client::Nsq(s) => s.published().map(own).collect(),
            Client::Native(s) => s.published().map(own).collect(),
        }
    }
}
