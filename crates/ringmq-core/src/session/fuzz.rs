//! Entry points for random bytes: the fuzz targets and `cargo test` run the same. For any input there is no panic, memory is bounded, and
//! frames are whole.

use super::{Bodies, CommandTaken, ConnectionState, Host, Limits, ReplySlot, Session, Subscribe};
use crate::base::{ConnId, Lent, MessageId, Now, PartitionId, Peer, Rng, Ticks};
use crate::codec::nsq::command::{Context, Decoded, Progress, decode};
use crate::codec::nsq::{ClientError, LINE_LEN_MAX, frame};
use crate::config::Settings;
use crate::seam::{
    message::{AuthQuery, SubOptions},
    outcome::{InFlightError, PublishError},
};
use std::{sync::Arc, time::Duration};

/// Answers at random, from a seed.
struct RandomHost {
    rng: Rng,
    waiting: Vec<ReplySlot>,
}

impl RandomHost {
    fn take(&mut self, slot: ReplySlot) -> CommandTaken {
        match self.rng.below(10) {
            0 => CommandTaken::Stall,
            1 => CommandTaken::Refused(ClientError::passing("E_PUB_FAILED", "no")),
            _ => {
                self.waiting.push(slot);
                CommandTaken::Accepted
            }
        }
    }

    fn in_flight(&mut self) -> Result<(), InFlightError> {
        if self.rng.below(2) == 0 { Ok(()) } else { Err(InFlightError::NotInFlight) }
    }
}

impl Host for RandomHost {
    fn publish(
        &mut self,
        _: Now,
        _: ConnId,
        _: &str,
        _: Option<PartitionId>,
        bodies: Bodies<'_>,
        slot: ReplySlot,
    ) -> CommandTaken {
        assert_eq!(bodies.iter().count(), bodies.count());
        assert_eq!(bodies.iter().map(<[u8]>::len).sum::<usize>(), bodies.bytes());
        assert!(bodies.iter().all(|body| !body.is_empty()));
        self.take(slot)
    }
    fn subscribe(&mut self, _: Now, _: ConnId, _: Subscribe<'_>, _: SubOptions, slot: ReplySlot) -> CommandTaken {
        self.take(slot)
    }
    fn ready(&mut self, _: Now, _: ConnId, _: u32) {}
    fn finish(&mut self, _: Now, _: ConnId, _: MessageId) -> Result<(), InFlightError> {
        self.in_flight()
    }
    fn requeue(&mut self, _: Now, _: ConnId, _: MessageId, _: u64) -> Result<(), InFlightError> {
        self.in_flight()
    }
    fn touch(&mut self, _: Now, _: ConnId, _: MessageId) -> Result<(), InFlightError> {
        self.in_flight()
    }
    fn authorize(&mut self, _: ConnId, _: AuthQuery) {}
    fn close_subscription(&mut self, _: Now, _: ConnId) {}
}

/// A socket that receives in place what the session says.
#[derive(Default)]
pub(super) struct Socket {
    lent: Option<Lent>,
}

impl Socket {
    /// Receives bytes; lent buffers return when all is there, and sometimes before.
    pub fn receive(&mut self, s: &mut Session, now: Now, mut bytes: &[u8], host: &mut impl Host) {
        let is_late = bytes.len().is_multiple_of(3);
        while !bytes.is_empty() {
            let Some(mut lent) = self.lent.take() else {
                // as one receive into a shared buffer: the session says afterwards where the rest goes
                let (piece, rest) = bytes.split_at(bytes.len().min(100));
                bytes = rest;
                s.on_bytes(now, piece, host);
                self.lent = s.lend();
                continue;
            };
            lent.put(&mut bytes);
            if lent.wanted > 0 && !is_late {
                self.lent = Some(lent);
                return;
            }
            s.received(now, lent, host);
            self.lent = s.lend();
        }
    }

    /// Ends the input.
    pub fn end(&mut self, s: &mut Session, now: Now, host: &mut impl Host) {
        if let Some(lent) = self.lent.take() {
            s.received(now, lent, host);
        }
    }
}

/// Small, so that short inputs reach the limits.
fn limits() -> Limits {
    let settings = Settings { max_msg_size: 100, max_body_size: 400, ..Settings::default() };
    Limits { replies_max: 8, in_place_min: 30, ..Limits::from(&settings) }
}

/// Feeds `bytes` to a session in random pieces, with a host, completions, ticks and sends at random.
pub fn session(bytes: &[u8], seed: u64) {
    let limits = Arc::new(limits());
    let bound = limits.max_body_size + LINE_LEN_MAX + 4;
    let mut host = RandomHost { rng: Rng::new(seed), waiting: Vec::new() };
    let mut now = Now::default();
    let mut s = Session::new(ConnId(1), Peer("fuzz:1".into()), limits, now);
    let mut output = Vec::new();
    let (mut rest, mut socket) = (bytes, Socket::default());
    while !rest.is_empty() && !s.is_closing() {
        let (piece, after) = rest.split_at(1 + host.rng.below(rest.len() as u64) as usize);
        rest = after;
        socket.receive(&mut s, now, piece, &mut host);
        assert!(s.is_stalled() || s.buffered() <= bound, "{} bytes are buffered", s.buffered());
        while s.is_stalled() {
            if host.rng.below(20) == 0 {
                let error = ClientError::fatal("E_PUB_TOO_MUCH_WAITING", "no room");
                s.fail_stalled(error);
            }
            s.resume(now, &mut host);
        }
        while !host.waiting.is_empty() && host.rng.below(3) > 0 {
            let at = host.rng.below(host.waiting.len() as u64) as usize;
            let slot = host.waiting.swap_remove(at);
            if host.rng.below(30) == 0 { s.fail(slot, PublishError::DiskFull) } else { s.reply_ok(slot) }
        }
        if let Some(sent) = s.take_output() {
            s.on_sent(sent.len());
            output.extend(sent);
        }
        now.ticks = Ticks(now.ticks.0) + Duration::from_millis(host.rng.below(20_000));
        s.tick(now);
    }
    socket.end(&mut s, now, &mut host);
    std::mem::take(&mut host.waiting).into_iter().for_each(|slot| s.reply_ok(slot));
    output.extend(s.take_output().unwrap_or_default());
    let (_, whole) = frame::decode_all(&output).expect("a session writes frames");
    assert_eq!(whole, output.len(), "only whole frames leave");
}

/// Decodes `bytes` as commands in each state, and as frames.
pub fn decoder(bytes: &[u8]) {
    let limits = limits();
    let states = [ConnectionState::Init, ConnectionState::Subscribed, ConnectionState::Closing];
    for (state, has_binary_ids) in states.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let context = Context { limits: &limits, state, has_heartbeats: true, lacks_tls: false, has_binary_ids };
        let mut rest = bytes;
        while let Decoded::Command { len, .. } = decode(rest, &mut Progress::default(), &context) {
            assert!(len > 0 && len <= rest.len());
            rest = &rest[len..];
        }
    }
    // Whether they are frames does not matter here.
    let _ = frame::decode_all(bytes);
}
