//! One connection's session: input to host calls, host answers to output.

mod answers;
mod auth;
mod client;
mod failures;
mod input;
mod output;
mod time;
mod wire;

use super::host::{CommandTaken, Host, ReplySlot, Subscribe};
use super::published::Published;
use super::replies::{CommandKind, Replies};
use crate::base::{ConnId, MessageId, Now, Peer, Ticks};
use crate::codec::nsq::command::{Command, ConnectionState};
use crate::codec::nsq::error::quoted;
use crate::codec::nsq::identify::{Negotiated, Request};
use crate::codec::nsq::layers::{Compression, Upgrade};
use crate::codec::nsq::unfinished::unfinished;
use crate::codec::nsq::{Bodies, CLOSE_WAIT, ClientError, Limits, MAGIC, OK, frame};
use crate::transport::Transport;
use crate::{
    base::client::{ClientInfo, Layers},
    seam::{
        message::SubOptions,
        outcome::{InFlightCommand, InFlightError, PublishError},
    },
};
use client::{Client, Identity};
pub use failures::failure;
use failures::in_flight_error;
use input::Input;
use output::Output;
use std::{mem, sync::Arc};

/// Error frames that may wait behind earlier replies before nothing more is read.
const REPLY_BYTES_MAX: usize = 256 * 1024;

/// Characters of an error's text that the log shows.
const FAULT_LEN_MAX: usize = 200;

/// Intervals without a byte from the client, or without one taken by it, after which it is given up.
const SILENT_INTERVALS_MAX: u32 = 2;

/// State of a session that moves with its connection to another core.
#[derive(Debug)]
pub struct SessionState {
    client: Client,
    transport: Option<Box<Transport>>,
    /// Bytes that came out of it and were not parsed.
    unparsed: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Stalled {
    since: Ticks,
    /// Length of the command, at the start of the buffer.
    len: usize,
}

/// The SUB that was accepted.
#[derive(Debug)]
struct Subscription {
    /// Reply slot of the SUB.
    slot: ReplySlot,
    /// `topic:channel`, for the text of an error.
    name: Box<str>,
    /// The SUB was a SUB_ORDERED: ids are binary, and messages come with their place.
    is_placed: bool,
}

#[derive(Debug)]
pub struct Session {
    conn: ConnId,
    peer: Peer,
    limits: Arc<Limits>,
    // ---- protocol
    client: Client,
    state: ConnectionState,
    subscription: Option<Subscription>,
    // ---- input
    input: Input,
    stalled: Option<Stalled>,
    /// The session stalls until every earlier reply has left, and not on the host.
    waits_for_replies: bool,
    /// The session stalls until the auth server has answered.
    waits_for_auth: bool,
    /// The client has said that nothing more comes.
    peer_ended: bool,
    /// Input is ignored from here on.
    ended: bool,
    // ---- between the socket and the above
    /// Layers of the connection; most have none.
    transport: Option<Box<Transport>>,
    /// Layers that the last IDENTIFY asked for, until they are begun.
    upgrade: Option<Upgrade>,
    /// Time by which a handshake of TLS must be over.
    handshake_until: Option<Ticks>,
    // ---- output
    replies: Replies,
    output: Output,
    // ---- time
    /// Time at which the last command was complete, or no command could be expected.
    read_since: Ticks,
    next_heartbeat: Ticks,
    /// True if the connection is given up: unsent bytes stay unsent.
    is_dead: bool,
    /// Reason why the node ends the connection, until the shard has taken it for the log.
    fault: Option<Box<str>>,
}

impl Session {
    pub fn new(conn: ConnId, peer: Peer, limits: Arc<Limits>, now: Now) -> Self {
        let client = Client {
            greeted: false,
            negotiated: Negotiated::new(&limits),
            identity: None,
            published: Published::default(),
            connected_unix_s: now.unix_ns / 1_000_000_000,
            auth: None,
        };
        Self::adopt(conn, peer, SessionState { client, transport: None, unparsed: vec![] }, limits, now)
    }

    /// Continues a connection from another core: [`Self::resume`] parses the buffered bytes, and the unread bytes follow through
    /// [`Self::on_bytes`].
    pub fn adopt(conn: ConnId, peer: Peer, carried: SessionState, limits: Arc<Limits>, now: Now) -> Self {
        let mut session = Session {
            conn,
            peer,
            limits,
            client: carried.client,
            state: ConnectionState::Init,
            subscription: None,
            input: Input::new(carried.unparsed),
            stalled: None,
            waits_for_replies: false,
            waits_for_auth: false,
            peer_ended: false,
            ended: false,
            transport: carried.transport,
            upgrade: None,
            handshake_until: None,
            replies: Replies::default(),
            output: Output::default(),
            read_since: now.ticks,
            next_heartbeat: now.ticks,
            is_dead: false,
            fault: None,
        };
        session.schedule_heartbeat(now.ticks);
        session
    }

    /// Takes out the state that moves to another core, and the unparsed bytes, which the adopting session gets first.
    ///
    /// # Panics
    /// When the session is not quiet, or subscribed: replies or messages would be lost.
    pub fn carry(&mut self) -> (SessionState, Vec<u8>) {
        assert!(self.is_quiet() && self.state == ConnectionState::Init && !self.ended, "only a quiet connection moves");
        self.stalled = None;
        self.ended = true;
        let mut unread = self.input.take();
        let transport = self.transport.take();
        let client = Client {
            identity: self.client.identity.take(),
            published: mem::take(&mut self.client.published),
            auth: self.client.auth.take(),
            ..self.client
        };
        // the socket's own unread bytes are of another kind
        let unparsed = if transport.is_some() { mem::take(&mut unread) } else { vec![] };
        (SessionState { client, transport, unparsed }, unread)
    }

    // ---- commands

    fn greet(&mut self, now: Now, magic: &[u8; 4]) {
        if magic != MAGIC {
            let mut answer = Vec::new();
            frame::bare_error(&mut answer, "E_BAD_PROTOCOL");
            self.note_fault(&format!("E_BAD_PROTOCOL magic {}", quoted(magic)));
            return self.end(&answer);
        }
        self.client.greeted = true;
        self.read_since = now.ticks;
        self.schedule_heartbeat(now.ticks);
    }

    /// False when the host stalls on the command.
    fn run(&mut self, now: Now, command: Command<'_>, host: &mut impl Host) -> bool {
        let conn = self.conn;
        match command {
            Command::Publish { topic, partition, bodies } => {
                let asked = CommandKind::publish(&bodies);
                let name = match &bodies {
                    Bodies::One(_) => Some("PUB"),
                    Bodies::Deferred { .. } => Some("DPUB"),
                    // An MPUB's was looked at before its body was.
                    Bodies::Many(_) => None,
                };
                if let Some(name) = name
                    && let Some(ran) = self.forbid(now, name, topic, "", host)
                {
                    return ran;
                }
                match host.publish(now, conn, topic, partition, bodies, self.replies.next_slot()) {
                    CommandTaken::Accepted => {
                        self.client.published.add(topic, bodies.count());
                        self.replies.wait(asked);
                    }
                    CommandTaken::Stall => return false,
                    CommandTaken::Refused(error) => self.answer_error(&error),
                }
            }
            Command::Finish(id) => {
                let done = self.message_id(id).map_or(Err(InFlightError::NotInFlight), |id| host.finish(now, conn, id));
                self.answer_in_flight(done, id, InFlightCommand::Finish);
            }
            Command::Requeue { id, delay_ms } => {
                let done =
                    self.message_id(id).map_or(Err(InFlightError::NotInFlight), |id| host.requeue(now, conn, id, delay_ms));
                self.answer_in_flight(done, id, InFlightCommand::Requeue);
            }
            Command::Touch(id) => {
                let done = self.message_id(id).map_or(Err(InFlightError::NotInFlight), |id| host.touch(now, conn, id));
                self.answer_in_flight(done, id, InFlightCommand::Touch);
            }
            Command::Ready(count) => host.ready(now, conn, count),
            Command::Subscribe { topic, channel, partition, is_ordered } => {
                let name = if is_ordered { "SUB_ORDERED" } else { "SUB" };
                if let Some(ran) = self.forbid(now, name, topic, channel, host) {
                    return ran;
                }
                let slot = self.replies.next_slot();
                if is_ordered && self.client.negotiated.sample_rate > 0 {
                    self.answer_error(&ClientError::fatal("E_INVALID", "SUB_ORDERED does not go with a sample rate"));
                    return true;
                }
                match host.subscribe(now, conn, Subscribe { topic, channel, partition }, self.sub_options(is_ordered), slot) {
                    CommandTaken::Accepted => {
                        self.state = ConnectionState::Subscribed;
                        let name = format!("{topic}:{channel}").into();
                        self.subscription = Some(Subscription { slot, name, is_placed: is_ordered });
                        self.replies.wait(CommandKind::Subscribe);
                    }
                    CommandTaken::Stall => return false,
                    CommandTaken::Refused(error) => self.answer_error(&error),
                }
            }
            Command::Close => {
                self.state = ConnectionState::Closing;
                host.close_subscription(now, conn);
                self.replies.push_response(CLOSE_WAIT, self.output.roomy());
            }
            Command::Identify(json) => return self.identify(now, json),
            Command::Auth(secret) => return self.ask_auth(secret, host),
            Command::Nop => {}
        }
        true
    }

    /// False when it has to wait for the replies to earlier commands: they go out before the layers that it asks for.
    fn identify(&mut self, now: Now, json: &[u8]) -> bool {
        let negotiated = Request::parse(json).and_then(|request| {
            let new = request.negotiate(&self.client.negotiated, &self.limits)?;
            let upgrade = request.upgrade(&self.limits, self.layers())?;
            Ok((request, new, upgrade))
        });
        let (request, new, upgrade) = match negotiated {
            Ok(negotiated) => negotiated,
            Err(error) => {
                self.answer_error(&error);
                return true;
            }
        };
        self.waits_for_replies = !upgrade.is_none() && !self.replies.is_empty();
        if self.waits_for_replies {
            return false;
        }
        if let Some(features) = request.refused_features(&self.limits) {
            let (client, address) = (&request.client_id, &self.peer.0);
            tracing::warn!(
                client, %address, features,
                "a client asked for features that this node does not have: the answer to IDENTIFY says which are off"
            );
        }
        let answer = request.answer(&new, upgrade, &self.limits);
        let changed = new.heartbeat_interval_ms != self.client.negotiated.heartbeat_interval_ms;
        self.client.negotiated = new;
        if changed {
            self.schedule_heartbeat(now.ticks);
        }
        self.client.identity =
            Some(Box::new(Identity { client_id: request.client_id, hostname: request.hostname, user_agent: request.user_agent }));
        let mut response = Vec::new();
        frame::response(&mut response, &answer);
        self.answer_frame(&response);
        self.upgrade = (!upgrade.is_none()).then_some(upgrade);
        true
    }

    /// The layers that the connection has.
    fn layers(&self) -> Upgrade {
        self.transport.as_ref().map_or_else(Upgrade::default, |t| Upgrade { tls: t.has_tls(), compression: t.compression() })
    }

    // ---- stalls

    /// Parses the buffered bytes: the host has room again, or has the answer for which it waited.
    pub fn resume(&mut self, now: Now, host: &mut impl Host) {
        if self.waits_for_auth && !self.ended {
            return;
        }
        self.waits_for_replies = false;
        if self.ended || self.input.is_empty() {
            self.stalled = None;
            self.pump(now, host);
            return self.settle_end();
        }
        let before = self.stalled.take();
        let len = self.input.len();
        self.parse_buffer(now, host);
        match (before, &mut self.stalled) {
            // The same command again: it has waited since then.
            (Some(before), Some(again)) if self.input.len() == len => again.since = before.since,
            _ => self.read_since = now.ticks,
        }
        self.begin_upgrade(now, &[]);
        self.pump(now, host);
        self.settle_end();
    }

    /// Continues the work that waited for room in the output, or for earlier replies to leave.
    pub fn go_on(&mut self, now: Now, host: &mut impl Host) {
        if self.waits_for_replies && self.replies.is_empty() {
            self.resume(now, host);
        } else {
            self.pump(now, host);
            self.settle_end();
        }
    }

    /// The client's side of the connection is closed: received commands are carried out, their answers go out, and then the connection
    /// closes.
    pub fn on_end(&mut self) {
        self.peer_ended = true;
        self.settle_end();
    }

    /// Called once everything before the client's end is parsed. Answers an incomplete command with the error of its missing part.
    fn settle_end(&mut self) {
        let has_kept = self.transport.as_ref().is_some_and(|transport| transport.has_kept());
        if !self.peer_ended || self.ended || self.stalled.is_some() || has_kept {
            return;
        }
        match unfinished(self.input.bytes()).filter(|_| self.client.greeted) {
            Some(error) => self.end_with(&error),
            None => self.end(&[]),
        }
    }

    pub fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    pub fn stalled_since(&self) -> Option<Ticks> {
        self.stalled.map(|stalled| stalled.since)
    }

    // ---- output

    /// Buffer for message frames ([`frame::message`]), sent beside the replies in writing order.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.output.roomy()
    }

    /// Bytes to be sent now. [`Self::on_sent`] follows for all of it.
    pub fn take_output(&mut self) -> Option<Vec<u8>> {
        self.output.note_hint();
        let out = if self.transport.is_some() { self.seal_output() } else { self.output.take_frames() };
        if out.is_empty() {
            return None;
        }
        self.output.taken(out.len());
        Some(out)
    }

    pub fn on_sent(&mut self, bytes: usize) {
        self.output.sent(bytes);
    }

    /// No further message is to be handed to this connection for now: too much is unsent, or the answer to its SUB has not
    /// left yet (behind the replies to earlier publishes), which no message may overtake. In both cases something is sent
    /// before this changes, so asking again after `on_sent` is enough.
    pub fn is_output_full(&self) -> bool {
        self.output.len() > self.limits.output_full_bytes
            || self.subscription.as_ref().is_some_and(|sub| !self.replies.has_left(sub.slot))
    }

    // ---- for the shard

    /// True if the connection closes once its output is sent; it reads nothing more.
    pub fn is_closing(&self) -> bool {
        self.is_dead || self.replies.is_closed()
    }

    /// False: the socket is not to be read for now. Bytes that are under way may still be given.
    pub fn wants_reading(&self) -> bool {
        !self.ended
            && self.stalled.is_none()
            && !self.is_overfull()
            && self.replies.len() < self.limits.replies_max
            && self.replies.frame_bytes() < REPLY_BYTES_MAX
    }

    fn is_overfull(&self) -> bool {
        self.output.len() > self.limits.output_stop_bytes
    }

    /// No reply is owed and nothing is unsent: the connection may move (it may stall on a command, which moves with it).
    pub fn is_quiet(&self) -> bool {
        let has_output = self.output.len() > 0 || self.transport.as_ref().is_some_and(|t| t.has_output());
        self.replies.is_empty() && !has_output
    }

    pub fn conn(&self) -> ConnId {
        self.conn
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn state(&self) -> ConnectionState {
        self.state
    }

    /// Unparsed input, in bytes.
    pub fn buffered(&self) -> usize {
        self.input.len()
    }

    /// Memory held for input, output and replies, in bytes: none, or next to none, while a connection idles.
    pub fn held_bytes(&self) -> usize {
        let transport = self.transport.as_ref().map_or(0, |t| t.held_bytes());
        self.input.held_bytes() + self.output.held_bytes() + self.replies.held_bytes() + transport
    }

    /// Output that the kernel has not taken yet, in bytes.
    pub fn unsent(&self) -> usize {
        self.output.len()
    }

    /// Topics and the messages accepted for them from this client.
    pub fn published(&self) -> impl Iterator<Item = (&str, u64)> {
        self.client.published.iter()
    }

    /// The client's identity: its address before IDENTIFY, as in nsqd.
    pub fn client_info(&self) -> ClientInfo {
        let (address, host) = (&*self.peer.0, self.remote_host());
        let Identity { client_id, hostname, user_agent } = match &self.client.identity {
            Some(identity) => (**identity).clone(),
            None => Identity { client_id: host.into(), hostname: host.into(), user_agent: String::new() },
        };
        let (remote_address, connected_unix_s) = (address.into(), self.client.connected_unix_s);
        let compression = self.layers().compression;
        let layers = Layers {
            tls: self.transport.as_ref().and_then(|t| t.tls_facts()).map(Box::new),
            snappy: compression == Some(Compression::Snappy),
            deflate: matches!(compression, Some(Compression::Deflate(_))),
        };
        let auth = self.client.auth.as_ref().and_then(|auth| auth.identity()).map(Box::new);
        ClientInfo { version: "V2", client_id, hostname, user_agent, remote_address, connected_unix_s, layers, auth }
    }

    /// The address without its port.
    fn remote_host(&self) -> &str {
        let host = self.peer.0.rsplit_once(':').map_or(&*self.peer.0, |(host, _port)| host);
        host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
    }

    fn message_id(&self, id: &[u8; 16]) -> Option<MessageId> {
        if self.is_placed() { Some(MessageId::from_binary(id)) } else { MessageId::from_hex(id) }
    }

    /// Messages go out with binary ids and their place ([`frame::placed_message`]).
    pub fn is_placed(&self) -> bool {
        self.subscription.as_ref().is_some_and(|sub| sub.is_placed)
    }

    fn sub_options(&self, is_ordered: bool) -> SubOptions {
        SubOptions {
            msg_timeout_ms: self.client.negotiated.msg_timeout_ms,
            sample_rate: self.client.negotiated.sample_rate,
            ranged: false,
            ordered: is_ordered,
            placed: is_ordered,
            client: self.client_info(),
        }
    }
}
