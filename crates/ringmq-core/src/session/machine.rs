//! One connection's session: input to host calls, host answers to output.

mod answers;
mod auth;
mod failures;
mod input;
mod time;
mod wire;

use super::host::{Host, ReplySlot, Subscribe, Taken};
use super::published::Published;
use super::replies::{CommandKind, Replies};
use crate::base::{ConnId, MessageId, Now, Peer, Ticks};
use crate::codec::nsq::command::{Command, Progress, State};
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
pub use failures::failure;
use failures::in_flight_error;
use std::{mem, sync::Arc};

/// An emptied input buffer larger than this gives its memory back: 10,000 idle connections must stay small.
const BUFFER_KEPT: usize = 512;

/// Bytes that a connection's next output is expected to take at most, so that it grows once.
const OUTPUT_HINT_MAX: usize = 64 * 1024;

/// Error frames that may wait behind earlier replies before nothing more is read.
const REPLY_BYTES_MAX: usize = 256 * 1024;

/// Characters of an error's text that the log shows.
const FAULT_LEN_MAX: usize = 200;

/// Intervals without a byte from the client, or without one taken by it, after which it is given up.
const SILENT_INTERVALS_MAX: u32 = 2;

/// State of a session that moves with its connection to another core.
#[derive(Debug, Default)]
pub struct Carried {
    greeted: bool,
    negotiated: Option<Negotiated>,
    identity: Option<Box<Identity>>,
    published: Published,
    connected_unix_s: i64,
    transport: Option<Box<Transport>>,
    /// Bytes that came out of it and were not parsed.
    unparsed: Vec<u8>,
    auth: Option<Box<auth::Auth>>,
}

/// A client's own description.
#[derive(Clone, Debug, Default)]
struct Identity {
    client_id: String,
    hostname: String,
    user_agent: String,
}

#[derive(Clone, Copy, Debug)]
struct Stalled {
    since: Ticks,
    /// Length of the command, at the start of the buffer.
    len: usize,
}

/// How much the buffer needs before it is looked at again.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Newline,
    /// Wait for at least `need` bytes in all; up to `expect` are collected.
    Bytes {
        need: usize,
        expect: usize,
    },
}

#[derive(Debug)]
pub struct Session {
    conn: ConnId,
    peer: Peer,
    limits: Arc<Limits>,
    // ---- protocol
    /// The magic came.
    greeted: bool,
    state: State,
    /// The SUB was a SUB_ORDERED: ids are binary, and messages come with their place.
    is_placed: bool,
    /// Reply slot of the SUB that was accepted.
    sub_slot: Option<ReplySlot>,
    /// `topic:channel` of it, until it is answered.
    sub_name: Box<str>,
    negotiated: Negotiated,
    identity: Option<Box<Identity>>,
    published: Published,
    connected_unix_s: i64,
    // ---- input
    /// The start of an incomplete command; all that came since when stalled.
    buffer: Vec<u8>,
    /// The buffer's memory is with whoever receives.
    is_lent: bool,
    wanted: Wanted,
    progress: Progress,
    stalled: Option<Stalled>,
    /// The session stalls until every earlier reply has left, and not on the host.
    waits_for_replies: bool,
    /// The session stalls until the auth server has answered.
    waits_for_auth: bool,
    auth: Option<Box<auth::Auth>>,
    /// The client has said that nothing more comes.
    peer_ended: bool,
    /// Input is ignored from here on.
    ended: bool,
    // ---- between the socket and the above
    /// Layers of the connection; most have none.
    transport: Option<Box<Transport>>,
    /// Layers that the last IDENTIFY asked for, until they are begun.
    upgrade: Option<Upgrade>,
    /// A handshake of TLS must be over by then.
    handshake_until: Option<Ticks>,
    // ---- output
    replies: Replies,
    out: Vec<u8>,
    /// Taken for sending, not yet sent.
    unsent: usize,
    /// Size of the last output, to make room for the next.
    out_hint: u32,
    // ---- time
    /// Time at which the last command was complete, or no command could be expected.
    read_since: Ticks,
    next_heartbeat: Ticks,
    /// Heartbeat intervals in a row in which unsent output did not move.
    stuck_intervals: u32,
    has_sent: bool,
    /// Given up: what is unsent stays unsent.
    is_dead: bool,
    /// Why the node ends the connection, until the shard has taken it for the log.
    fault: Option<Box<str>>,
}

impl Session {
    pub fn new(conn: ConnId, peer: Peer, limits: Arc<Limits>, now: Now) -> Self {
        let carried = Carried { connected_unix_s: now.unix_ns / 1_000_000_000, ..Carried::default() };
        Self::adopt(conn, peer, carried, limits, now)
    }

    /// Goes on with a connection from another core: [`Self::resume`] parses what came along, and its unread bytes follow through
    /// [`Self::on_bytes`].
    pub fn adopt(conn: ConnId, peer: Peer, carried: Carried, limits: Arc<Limits>, now: Now) -> Self {
        let negotiated = carried.negotiated.unwrap_or_else(|| Negotiated::new(&limits));
        let mut session = Session {
            conn,
            peer,
            limits,
            greeted: carried.greeted,
            state: State::Init,
            is_placed: false,
            sub_slot: None,
            sub_name: Box::default(),
            negotiated,
            identity: carried.identity,
            published: carried.published,
            connected_unix_s: carried.connected_unix_s,
            // it may hold whole commands
            wanted: if carried.unparsed.is_empty() { Wanted::Newline } else { Wanted::Bytes { need: 0, expect: 0 } },
            buffer: carried.unparsed,
            is_lent: false,
            progress: Progress::default(),
            stalled: None,
            waits_for_replies: false,
            waits_for_auth: false,
            auth: carried.auth,
            peer_ended: false,
            ended: false,
            transport: carried.transport,
            upgrade: None,
            handshake_until: None,
            replies: Replies::default(),
            out: Vec::new(),
            unsent: 0,
            out_hint: 0,
            read_since: now.ticks,
            next_heartbeat: now.ticks,
            stuck_intervals: 0,
            has_sent: false,
            is_dead: false,
            fault: None,
        };
        session.schedule_heartbeat(now.ticks);
        session
    }

    /// Takes out what moves to another core, and the bytes that were not parsed: to be given to the adopting session first.
    ///
    /// # Panics
    /// When the session is not quiet, or subscribed: replies or messages would be lost.
    pub fn carry(&mut self) -> (Carried, Vec<u8>) {
        assert!(self.is_quiet() && self.state == State::Init && !self.ended, "only a quiet connection moves");
        self.stalled = None;
        self.ended = true;
        let mut buffer = mem::take(&mut self.buffer);
        let transport = self.transport.take();
        let carried = Carried {
            greeted: self.greeted,
            negotiated: Some(self.negotiated),
            identity: self.identity.take(),
            published: mem::take(&mut self.published),
            connected_unix_s: self.connected_unix_s,
            // the socket's own unread bytes are of another kind
            unparsed: if transport.is_some() { mem::take(&mut buffer) } else { vec![] },
            transport,
            auth: self.auth.take(),
        };
        (carried, buffer)
    }

    // ---- commands

    fn greet(&mut self, now: Now, magic: &[u8; 4]) {
        if magic != MAGIC {
            let mut answer = Vec::new();
            frame::bare_error(&mut answer, "E_BAD_PROTOCOL");
            self.note_fault(&format!("E_BAD_PROTOCOL magic {}", quoted(magic)));
            return self.end(&answer);
        }
        self.greeted = true;
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
                    Taken::Accepted => {
                        self.published.add(topic, bodies.count());
                        self.replies.wait(asked);
                    }
                    Taken::Stall => return false,
                    Taken::Refused(error) => self.answer_error(&error),
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
                if is_ordered && self.negotiated.sample_rate > 0 {
                    self.answer_error(&ClientError::fatal("E_INVALID", "SUB_ORDERED does not go with a sample rate"));
                    return true;
                }
                match host.subscribe(now, conn, Subscribe { topic, channel, partition }, self.sub_options(is_ordered), slot) {
                    Taken::Accepted => {
                        self.state = State::Subscribed;
                        self.is_placed = is_ordered;
                        self.sub_slot = Some(slot);
                        self.sub_name = format!("{topic}:{channel}").into();
                        self.replies.wait(CommandKind::Subscribe);
                    }
                    Taken::Stall => return false,
                    Taken::Refused(error) => self.answer_error(&error),
                }
            }
            Command::Close => {
                self.state = State::Closing;
                host.close_subscription(now, conn);
                let out = roomy(&mut self.out, self.out_hint);
                self.replies.push_response(CLOSE_WAIT, out);
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
            let new = request.negotiate(&self.negotiated, &self.limits)?;
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
        let changed = new.heartbeat_interval_ms != self.negotiated.heartbeat_interval_ms;
        self.negotiated = new;
        if changed {
            self.schedule_heartbeat(now.ticks);
        }
        self.identity =
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

    /// Parses what is buffered: the host has room again, or what it waited for is there.
    pub fn resume(&mut self, now: Now, host: &mut impl Host) {
        if self.waits_for_auth && !self.ended {
            return;
        }
        self.waits_for_replies = false;
        if self.ended || self.buffer.is_empty() {
            self.stalled = None;
            self.pump(now, host);
            return self.settle_end();
        }
        let before = self.stalled.take();
        let len = self.buffer.len();
        self.parse_buffer(now, host);
        match (before, &mut self.stalled) {
            // The same command again: it has waited since then.
            (Some(before), Some(again)) if self.buffer.len() == len => again.since = before.since,
            _ => self.read_since = now.ticks,
        }
        self.begin_upgrade(now, &[]);
        self.pump(now, host);
        self.settle_end();
    }

    /// Goes on with what waited for room in the output, or for replies to leave.
    pub fn go_on(&mut self, now: Now, host: &mut impl Host) {
        if self.waits_for_replies && self.replies.is_empty() {
            self.resume(now, host);
        } else {
            self.pump(now, host);
            self.settle_end();
        }
    }

    /// The client's side of the connection is closed: what it sent is worked off, its answers go out, and then the connection closes.
    pub fn on_end(&mut self) {
        self.peer_ended = true;
        self.settle_end();
    }

    /// Once all is parsed that came before the client's end. A command that is not whole is answered with what it lacks.
    fn settle_end(&mut self) {
        let has_kept = self.transport.as_ref().is_some_and(|transport| transport.has_kept());
        if !self.peer_ended || self.ended || self.stalled.is_some() || has_kept {
            return;
        }
        match unfinished(&self.buffer).filter(|_| self.greeted) {
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
        roomy(&mut self.out, self.out_hint)
    }

    /// Bytes to be sent now. [`Self::on_sent`] follows for all of it.
    pub fn take_output(&mut self) -> Option<Vec<u8>> {
        if !self.out.is_empty() {
            self.out_hint = self.out.len().min(OUTPUT_HINT_MAX) as u32;
        }
        let out = if self.transport.is_some() { self.seal_output() } else { mem::take(&mut self.out) };
        if out.is_empty() {
            return None;
        }
        if self.unsent == 0 {
            self.stuck_intervals = 0;
        }
        self.unsent += out.len();
        Some(out)
    }

    pub fn on_sent(&mut self, bytes: usize) {
        self.unsent = self.unsent.checked_sub(bytes).expect("no more is sent than was taken");
        self.has_sent |= bytes > 0;
    }

    /// No further message is to be handed to this connection for now: too much is unsent, or the answer to its SUB has not
    /// left yet (behind the replies to earlier publishes), which no message may overtake. In both cases something is sent
    /// before this changes, so asking again after `on_sent` is enough.
    pub fn is_output_full(&self) -> bool {
        self.out.len() + self.unsent > self.limits.output_full_bytes
            || self.sub_slot.is_some_and(|slot| !self.replies.has_left(slot))
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
        self.out.len() + self.unsent > self.limits.output_stop_bytes
    }

    /// No reply is owed and nothing is unsent: the connection may move (it may stall on a command, which moves with it).
    pub fn is_quiet(&self) -> bool {
        let has_output = !self.out.is_empty() || self.transport.as_ref().is_some_and(|t| t.has_output());
        self.replies.is_empty() && !has_output && self.unsent == 0
    }

    pub fn conn(&self) -> ConnId {
        self.conn
    }

    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Unparsed input, in bytes.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Memory held for input, output and replies, in bytes: none, or next to none, while a connection idles.
    pub fn held_bytes(&self) -> usize {
        let transport = self.transport.as_ref().map_or(0, |t| t.held_bytes());
        self.buffer.capacity() + self.out.capacity() + self.replies.held_bytes() + transport
    }

    /// Output that the kernel has not taken yet, in bytes.
    pub fn unsent(&self) -> usize {
        self.out.len() + self.unsent
    }

    /// Topics and the messages accepted for them from this client.
    pub fn published(&self) -> impl Iterator<Item = (&str, u64)> {
        self.published.iter()
    }

    /// The client's identity: its address before IDENTIFY, as in nsqd.
    pub fn client_info(&self) -> ClientInfo {
        let (address, host) = (&*self.peer.0, self.remote_host());
        let Identity { client_id, hostname, user_agent } = match &self.identity {
            Some(identity) => (**identity).clone(),
            None => Identity { client_id: host.into(), hostname: host.into(), user_agent: String::new() },
        };
        let (remote_address, connected_unix_s) = (address.into(), self.connected_unix_s);
        let compression = self.layers().compression;
        let layers = Layers {
            tls: self.transport.as_ref().and_then(|t| t.tls_facts()).map(Box::new),
            snappy: compression == Some(Compression::Snappy),
            deflate: matches!(compression, Some(Compression::Deflate(_))),
        };
        let auth = self.auth.as_ref().and_then(|auth| auth.identity()).map(Box::new);
        ClientInfo { version: "V2", client_id, hostname, user_agent, remote_address, connected_unix_s, layers, auth }
    }

    /// The address without its port.
    fn remote_host(&self) -> &str {
        let host = self.peer.0.rsplit_once(':').map_or(&*self.peer.0, |(host, _port)| host);
        host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
    }

    fn message_id(&self, id: &[u8; 16]) -> Option<MessageId> {
        if self.is_placed { Some(MessageId::from_binary(id)) } else { MessageId::from_hex(id) }
    }

    /// Messages go out with binary ids and their place ([`frame::placed_message`]).
    pub fn is_placed(&self) -> bool {
        self.is_placed
    }

    fn sub_options(&self, is_ordered: bool) -> SubOptions {
        SubOptions {
            msg_timeout_ms: self.negotiated.msg_timeout_ms,
            sample_rate: self.negotiated.sample_rate,
            ranged: false,
            ordered: is_ordered,
            placed: is_ordered,
            client: self.client_info(),
        }
    }
}

/// The output with room for about as much as was sent last time, so that a busy connection's grows once a turn. An idle
/// one holds none: it went away with what was sent.
fn roomy(out: &mut Vec<u8>, hint: u32) -> &mut Vec<u8> {
    if out.capacity() == 0 {
        out.reserve(hint as usize);
    }
    out
}
