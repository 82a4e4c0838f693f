//! Follower as its leader sees it: its ends, the batches on their way to it, and the time since which it lags.
//!
//! ```text
//! Apart ──Inquire──> Asked ──Standing──> (chosen epoch) Aligning ──Aligned──> CatchingUp <──> Live
//!   ^                                                                             │             │
//!   └────────────── no answer within the retry pause, a refusal, a lost connection ┴─────────────┘
//! ```
//! Live: batches go out from memory as they are sealed, in a window. CatchingUp: they are read from the files, one read at a time, at a
//! limited rate; when the follower has all sent batches and the rest is in memory, it is live, without a pause. For a follower that no
//! write waits for, the rest is at most the bytes of a second at the rate.

use super::base::Cx;
use super::cursor_sync::CursorLink;
use super::event::{Effect, ReplicaOptions};
use crate::base::NodeId;
use crate::base::{Epoch, Position, Ticks};
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{APPEND_BYTES_MAX, Batches, Body, Head, Inquire, Pull, Pulled, Session, Standing};
use bytes::Bytes;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PeerPhase {
    Apart,
    Asked,
    Aligning,
    CatchingUp,
    Live,
}

impl PeerPhase {
    pub fn name(self) -> &'static str {
        match self {
            PeerPhase::Apart => "apart",
            PeerPhase::Asked => "asked",
            PeerPhase::Aligning => "aligning",
            PeerPhase::CatchingUp => "catching up",
            PeerPhase::Live => "live",
        }
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    pub node: NodeId,
    pub link: PeerPhase,
    pub session: Session,
    /// Standing that the peer last reported in this epoch, before it was aligned.
    pub standing: Option<Standing>,
    /// True if the peer confirmed the list of this leader's channels in its epoch, and so was in step.
    pub was_listed: bool,
    /// Durable end of the leader's log at the follower. Within an epoch it goes back only by a new alignment.
    pub acked: Position,
    pub sent: Position,
    reading: bool,
    /// Position that the peer asked for to repair its log, while it is being read.
    pub mends: Option<Position>,
    /// Time of the next attempt, after a mismatch or without an answer.
    pub retry_at: Ticks,
    beat_at: Ticks,
    /// A beat was sent that nothing answered yet.
    beating: bool,
    /// Time for which the peer is known to have had everything that the leader had then.
    pub caught_up_at: Ticks,
    /// The leader's end at some time, and that time.
    mark: (Position, Ticks),
    /// True after a refusal that no retry mends: the peer is removed without waiting for the limit.
    pub left: bool,
    /// Catch-up bytes that may be sent, as of `budget_at`.
    budget: i64,
    budget_at: Ticks,
    /// Time until which only the rate holds the next read back.
    paced_until: Option<Ticks>,
    pub cursors: CursorLink,
}

impl Peer {
    pub fn new(node: NodeId, now: Ticks) -> Self {
        Peer {
            node,
            link: PeerPhase::Apart,
            session: Session(0),
            standing: None,
            was_listed: false,
            acked: Position::START,
            sent: Position::START,
            reading: false,
            mends: None,
            retry_at: now,
            beat_at: now,
            beating: false,
            caught_up_at: now,
            mark: (Position::START, now),
            left: false,
            budget: 0,
            budget_at: now,
            paced_until: None,
            cursors: CursorLink::default(),
        }
    }

    pub fn head(&self, epoch: Epoch) -> Head {
        Head { epoch, session: self.session }
    }

    /// Begins a session, of a number that this leader has given to none.
    pub fn inquire(&mut self, cx: &mut Cx<'_>, epoch: Epoch, session: Session, inquire: Inquire, options: &ReplicaOptions) {
        self.session = session;
        self.link = PeerPhase::Asked;
        (self.reading, self.beating, self.standing, self.mends) = (false, false, None, None);
        self.retry_at = cx.now + options.retry;
        self.cursors.begin();
        cx.send(self.node, self.head(epoch), Body::Inquire(inquire));
    }

    /// Sends nothing until the next session, which begins after a pause.
    pub fn part(&mut self, now: Ticks, pause: Duration) {
        self.link = PeerPhase::Apart;
        self.retry_at = now + pause;
    }

    pub fn is_streaming(&self) -> bool {
        matches!(self.link, PeerPhase::CatchingUp | PeerPhase::Live)
    }

    /// Records that the peer's log is a prefix of this one, up to `at`.
    pub fn aligned(&mut self, cx: &Cx<'_>, at: Position) {
        (self.acked, self.sent, self.left) = (at, at, false);
        self.link = PeerPhase::CatchingUp;
        self.beat_at = cx.now;
        self.budget_at = cx.now;
        self.heard(cx);
    }

    pub fn on_ack(&mut self, cx: &Cx<'_>, durable: Position, options: &ReplicaOptions) {
        self.beating = false;
        if durable.offset > self.acked.offset && durable.offset <= self.sent.offset {
            self.acked = durable;
            self.retry_at = cx.now + options.retry;
        }
        self.heard(cx);
    }

    /// Notes whether it has all that the leader had when it was last marked.
    fn heard(&mut self, cx: &Cx<'_>) {
        if self.acked.offset >= self.mark.0.offset {
            self.caught_up_at = self.mark.1;
            self.mark = (cx.log.end().at, cx.now);
        }
    }

    /// The clock of the limit begins now.
    pub fn forgive(&mut self, cx: &Cx<'_>) {
        self.caught_up_at = cx.now;
        self.mark = (cx.log.end().at, cx.now);
    }

    fn has_outstanding(&self) -> bool {
        match self.link {
            PeerPhase::Apart => true,
            PeerPhase::Asked | PeerPhase::Aligning => true,
            PeerPhase::CatchingUp | PeerPhase::Live => {
                self.acked.offset < self.sent.offset || self.beating || self.cursors.is_waiting()
            }
        }
    }

    /// An answer, or an attempt, is overdue.
    pub fn is_overdue(&self, now: Ticks) -> bool {
        self.has_outstanding() && now >= self.retry_at
    }

    /// Sends the batches that window and rate allow. `is_awaited`: writes wait for the peer.
    pub fn pump(&mut self, cx: &mut Cx<'_>, epoch: Epoch, committed: Position, is_awaited: bool, options: &ReplicaOptions) {
        let end = cx.log.end().at;
        let may_go_live = self.may_go_live(cx, end, is_awaited, options);
        if self.link == PeerPhase::CatchingUp && self.acked == self.sent && !self.reading && may_go_live {
            self.link = PeerPhase::Live;
        }
        if self.link == PeerPhase::Live {
            self.pump_memory(cx, epoch, end, committed, options);
        }
        if self.link == PeerPhase::CatchingUp {
            self.pump_files(cx, end, may_go_live, options);
        }
    }

    /// True if the rest is in memory and may go out at once: of a peer for which no write waits, at most the bytes of a second.
    fn may_go_live(&self, cx: &Cx<'_>, end: Position, is_awaited: bool, options: &ReplicaOptions) -> bool {
        let (left, rate) = (end.offset.saturating_sub(self.sent.offset), options.catch_up_bytes_per_second);
        let is_held_back = rate > 0 && !is_awaited && u64::try_from(left).is_ok_and(|left| left > rate);
        !is_held_back && self.is_in_memory(cx, end)
    }

    fn is_in_memory(&self, cx: &Cx<'_>, end: Position) -> bool {
        self.sent.offset >= end.offset || cx.log.run_end(self.sent.offset, APPEND_BYTES_MAX).is_some()
    }

    fn pump_memory(&mut self, cx: &mut Cx<'_>, epoch: Epoch, end: Position, committed: Position, options: &ReplicaOptions) {
        while self.sent.offset < end.offset {
            let in_flight = (self.sent.offset - self.acked.offset) as u64;
            let room = options.window_bytes.saturating_sub(in_flight);
            if in_flight > 0 && room == 0 {
                return;
            }
            let bytes_max = APPEND_BYTES_MAX.min(room as usize);
            let Some(run) = cx.log.run_end(self.sent.offset, bytes_max) else {
                if in_flight == 0 {
                    self.link = PeerPhase::CatchingUp;
                }
                return;
            };
            if in_flight > 0 && (run.offset - self.sent.offset) as u64 > room {
                return;
            }
            if in_flight == 0 && !self.beating {
                self.retry_at = cx.now + options.retry;
            }
            cx.out.push(Effect::SendTail { to: self.node, head: self.head(epoch), from: self.sent, end: run, committed });
            self.sent = run;
            self.beat_at = cx.now + options.heartbeat;
        }
    }

    fn pump_files(&mut self, cx: &mut Cx<'_>, end: Position, may_go_live: bool, options: &ReplicaOptions) {
        self.paced_until = None;
        let in_flight = (self.sent.offset - self.acked.offset) as u64;
        let durable = cx.log.durable().at;
        if self.reading || in_flight >= options.window_bytes || self.sent.offset >= durable.offset.min(end.offset) {
            return;
        }
        // The rest is in memory: it waits only until the sent bytes are acknowledged.
        if in_flight > 0 && may_go_live {
            return;
        }
        self.refill(cx.now, options);
        let rate = options.catch_up_bytes_per_second;
        if rate > 0 && self.budget <= 0 {
            let nanos = (self.budget.unsigned_abs() as u128 + 1) * 1_000_000_000 / rate as u128;
            let pause = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)) + Duration::from_millis(1);
            self.paced_until = Some(cx.now + pause);
            return;
        }
        self.reading = true;
        let (to, session, from) = (self.node, self.session, self.sent);
        let bytes_max =
            usize::try_from(rate).ok().filter(|rate| *rate > 0).map_or(APPEND_BYTES_MAX, |rate| rate.min(APPEND_BYTES_MAX));
        cx.out.push(Effect::ReadLog { to, session, from, bytes_max });
    }

    /// Serves a repair of the peer: one read at a time.
    pub fn on_pull(&mut self, cx: &mut Cx<'_>, pull: Pull) {
        if self.mends.is_none() && pull.from.offset < self.sent.offset {
            self.mends = Some(pull.from);
            let bytes_max = (pull.bytes_max as usize).min(APPEND_BYTES_MAX);
            cx.out.push(Effect::ReadLog { to: self.node, session: self.session, from: pull.from, bytes_max });
        }
    }

    pub fn on_mend_read(&self, cx: &mut Cx<'_>, head: Head, from: Position, read: Result<Vec<Bytes>, PeerError>) {
        let body = match read {
            Ok(batches) => Body::Pulled(Pulled { from, batches: Batches::new(batches) }),
            Err(PeerError::OutOfReach) => Body::Refused(PeerError::OutOfReach),
            // It cannot be read here either (yet).
            Err(_) => Body::Pulled(Pulled { from, batches: Batches::default() }),
        };
        cx.send(self.node, head, body);
    }

    fn refill(&mut self, now: Ticks, options: &ReplicaOptions) {
        let rate = options.catch_up_bytes_per_second;
        let elapsed = now.since(self.budget_at).as_nanos().min(1_000_000_000) as u64;
        let more = (rate as u128 * elapsed as u128 / 1_000_000_000) as u64;
        self.budget = self.budget.saturating_add_unsigned(more).min(i64::try_from(rate).unwrap_or(i64::MAX));
        self.budget_at = now;
    }

    /// Sends batches that were read.
    pub fn on_read(&mut self, cx: &mut Cx<'_>, head: Head, end: Position, batches: Vec<Bytes>, committed: Position) {
        self.reading = false;
        if self.link != PeerPhase::CatchingUp || end.offset <= self.sent.offset {
            return;
        }
        self.budget = self.budget.saturating_sub(end.offset - self.sent.offset);
        self.sent = end;
        cx.out.push(Effect::SendCatchUp { to: self.node, head, committed, batches });
    }

    /// Tells a quiet follower the committed end, and asks for an answer.
    pub fn beat(&mut self, cx: &mut Cx<'_>, epoch: Epoch, committed: Position, options: &ReplicaOptions) {
        if !self.is_streaming() || cx.now < self.beat_at || self.acked.offset < self.sent.offset {
            return;
        }
        if !self.beating {
            self.retry_at = cx.now + options.retry;
        }
        (self.beating, self.beat_at) = (true, cx.now + options.heartbeat);
        let (from, end) = (self.sent, self.sent);
        cx.out.push(Effect::SendTail { to: self.node, head: self.head(epoch), from, end, committed });
    }

    /// Time at which the peer next has work, the limit of lagging peers aside.
    pub fn deadline(&self) -> Ticks {
        let mut at = if self.has_outstanding() { self.retry_at } else { self.beat_at };
        if self.is_streaming() && self.acked == self.sent {
            at = at.min(self.beat_at);
        }
        if let Some(paced) = self.paced_until.filter(|_| self.link == PeerPhase::CatchingUp) {
            at = at.min(paced);
        }
        at
    }
}
