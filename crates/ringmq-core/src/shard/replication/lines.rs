//! Publishes of one core for partitions that other nodes lead, until their outcome is known. A [`Line`] has those of one partition, in
//! order.
//!
//! ```text
//! Held ─ a leader is connected ─> Sent ─ stored, or refused for good ─> told
//!  ^                               │ ├── the link is lost, or no answer in time ─> told: unknown
//!  └─ not stored, may be later ────┘
//! ```
//! **Order.** The publishes sent to a leader between two refusals are one attempt. A leader that refused one publish of an attempt
//! refuses the rest of the attempt, so the refused ones are sent again in their order, before later publishes. Nothing goes to another
//! leader while a publish is in flight. A publish with an unknown outcome is never sent again.

use crate::base::{IdMap, NodeId, Ticks};
use crate::codec::peer::message::{PackedBodies, Route, Session};
use crate::seam::outcome::{PublishError, Unwritable};
use crate::shard::partitions::Publisher;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of a line in flight at most. A single publish may be larger.
const WINDOW: u64 = 4 << 20;

/// Pause before a leader that refused is asked again, unless the metadata names another.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SendState {
    /// Waits to be sent; carries the error for its publisher if it waits for too long.
    Held(PublishError),
    Sent(Ticks),
}

/// A publish whose outcome is not known.
#[derive(Debug)]
pub struct Pending {
    pub ticket: u64,
    pub publisher: Publisher,
    pub bodies: PackedBodies,
    pub delay_ms: u64,
    came: Ticks,
    state: SendState,
}

#[derive(Debug, Default)]
struct Line {
    pending: VecDeque<Pending>,
    /// Node that the last attempt went to.
    to: Option<NodeId>,
    attempt: Session,
    /// Publishes of the attempt that were not answered, and their memory. While the leader has refused none, they are the first ones.
    num_sent: usize,
    bytes_sent: u64,
    /// The leader has refused one of the attempt.
    is_refused: bool,
    retry_at: Ticks,
}

/// Next step of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Wait,
    /// Send held publishes in this attempt, as far as the window allows.
    Send(Session),
}

#[derive(Debug, Default)]
pub struct Lines {
    tickets: u64,
    attempts: u32,
    bytes: u64,
    lines: IdMap<Route, Line>,
}

/// Whether a publish that was refused may be stored in a moment, by this leader or the next one. Nothing of it was stored.
pub fn may_be_stored_later(error: PublishError) -> bool {
    use Unwritable::{Busy, Opening};
    matches!(error, PublishError::NotLeader | PublishError::NotWritable(Opening | Busy) | PublishError::Stopping)
}

impl Pending {
    fn is_held(&self) -> bool {
        matches!(self.state, SendState::Held(_))
    }

    fn cost(&self) -> u64 {
        self.bodies.as_bytes().len() as u64 + size_of::<Pending>() as u64
    }

    /// Time at which the publish is given up.
    fn until(&self, limit: Duration) -> Ticks {
        match self.state {
            SendState::Held(_) => self.came + limit,
            SendState::Sent(at) => at + limit,
        }
    }
}

impl Lines {
    /// Memory of everything that waits.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether a publish to the partition has others before it.
    pub fn has(&self, route: Route) -> bool {
        self.lines.contains_key(&route)
    }

    pub fn routes(&self) -> Vec<Route> {
        let mut routes: Vec<Route> = self.lines.keys().copied().collect();
        routes.sort_unstable_by_key(|r| (r.topic_id, r.partition));
        routes
    }

    /// Partitions whose last attempt went to the node.
    pub fn routes_to(&self, node: NodeId) -> Vec<Route> {
        let mut routes = self.routes();
        routes.retain(|route| self.lines[route].to == Some(node));
        routes
    }

    pub fn push(&mut self, now: Ticks, route: Route, publisher: Publisher, bodies: PackedBodies, delay_ms: u64) {
        self.tickets += 1;
        let state = SendState::Held(PublishError::NotWritable(Unwritable::NoLeader));
        let pending = Pending { ticket: self.tickets, publisher, bodies, delay_ms, came: now, state };
        self.bytes += pending.cost();
        self.lines.entry(route).or_default().pending.push_back(pending);
    }

    /// Step that the partition's line may take when `leader` leads the partition.
    pub fn next(&mut self, now: Ticks, route: Route, leader: NodeId) -> Next {
        let Some(line) = self.lines.get_mut(&route) else { return Next::Wait };
        let is_same = line.to == Some(leader);
        if line.num_sent > 0 {
            return if is_same && !line.is_refused { Next::Send(line.attempt) } else { Next::Wait };
        }
        if is_same && line.is_refused && line.retry_at > now {
            return Next::Wait;
        }
        self.attempts = self.attempts.wrapping_add(1).max(1);
        (line.to, line.attempt, line.is_refused) = (Some(leader), Session(self.attempts), false);
        Next::Send(line.attempt)
    }

    /// Marks held publishes as sent, as far as the window allows, and returns them in order.
    pub fn send(&mut self, now: Ticks, route: Route) -> impl Iterator<Item = &Pending> {
        let mut sent = 0..0;
        if let Some(line) = self.lines.get_mut(&route) {
            // sent publishes stand before held ones: an attempt is sent in order, and none follows a refusal
            sent.start = line.num_sent;
            while let Some(pending) = line.pending.get_mut(line.num_sent) {
                let cost = pending.cost();
                if line.num_sent > 0 && line.bytes_sent + cost > WINDOW {
                    break;
                }
                pending.state = SendState::Sent(now);
                line.num_sent += 1;
                line.bytes_sent += cost;
            }
            sent.end = line.num_sent;
        }
        self.lines.get(&route).into_iter().flat_map(move |line| line.pending.range(sent.clone()))
    }

    /// Takes the first one that is held out of a line of which nothing is on its way: this node is to append it.
    pub fn take_first(&mut self, route: Route) -> Option<Pending> {
        let line = self.lines.get_mut(&route).filter(|line| line.num_sent == 0)?;
        let pending = line.pending.pop_front()?;
        self.bytes -= pending.cost();
        Some(pending)
    }

    /// Gives it back: this node does not append it now.
    pub fn give_back(&mut self, now: Ticks, route: Route, mut pending: Pending, error: PublishError) {
        pending.state = SendState::Held(error);
        self.bytes += pending.cost();
        let line = self.lines.entry(route).or_default();
        line.pending.push_front(pending);
        (line.is_refused, line.retry_at) = (true, now + RETRY_PAUSE);
    }

    /// The leader refused it, and may store it later. False: it is not known any more.
    pub fn hold(&mut self, now: Ticks, route: Route, ticket: u64, error: PublishError) -> bool {
        let Some(line) = self.lines.get_mut(&route) else { return false };
        let Some(pending) = line.find(ticket) else { return false };
        pending.state = SendState::Held(error);
        let cost = pending.cost();
        line.is_back(cost);
        (line.is_refused, line.retry_at) = (true, now + RETRY_PAUSE);
        true
    }

    /// Takes a publish whose outcome is known. `None`: it was given up before.
    pub fn finish(&mut self, route: Route, ticket: u64) -> Option<Publisher> {
        let line = self.lines.get_mut(&route)?;
        line.find(ticket)?;
        let at = line.pending.binary_search_by_key(&ticket, |p| p.ticket).ok()?;
        let pending = line.pending.remove(at)?;
        line.is_back(pending.cost());
        self.bytes -= pending.cost();
        Some(pending.publisher)
    }

    /// The connection with the leader is lost: the outcome of the sent publishes is unknown.
    pub fn lose(&mut self, route: Route, told: &mut Vec<(Publisher, PublishError)>) {
        self.give_up(route, told, |p| match p.state {
            SendState::Sent(_) => Some(PublishError::Unknown),
            SendState::Held(_) => None,
        });
    }

    /// Fails held publishes, which will not be stored: the topic is gone, or the node stops.
    pub fn refuse_held(&mut self, route: Route, error: PublishError, told: &mut Vec<(Publisher, PublishError)>) {
        self.give_up(route, told, |p| p.is_held().then_some(error));
    }

    /// Gives up publishes that have waited for too long.
    pub fn expire(&mut self, now: Ticks, limit: Duration, route: Route, told: &mut Vec<(Publisher, PublishError)>) {
        let is_behind = self.lines.get(&route).is_some_and(|line| line.num_sent > 0 && !line.is_refused);
        self.give_up(route, told, |p| match p.state {
            _ if p.until(limit) > now => None,
            SendState::Held(_) if is_behind => Some(PublishError::TooMuchWaiting),
            SendState::Held(error) => Some(error),
            SendState::Sent(_) => Some(PublishError::Unknown),
        });
    }

    fn give_up(
        &mut self,
        route: Route,
        told: &mut Vec<(Publisher, PublishError)>,
        is_over: impl Fn(&Pending) -> Option<PublishError>,
    ) {
        let Some(line) = self.lines.get_mut(&route) else { return };
        let (mut freed, mut num_back, mut bytes_back) = (0, 0, 0);
        line.pending.retain(|p| {
            let Some(error) = is_over(p) else { return true };
            freed += p.cost();
            if !p.is_held() {
                (num_back, bytes_back) = (num_back + 1, bytes_back + p.cost());
            }
            told.push((p.publisher, error));
            false
        });
        (line.num_sent, line.bytes_sent) = (line.num_sent - num_back, line.bytes_sent - bytes_back);
        self.bytes -= freed;
    }

    /// Time at which a leader that refused is asked again. `None`: nothing waits for that.
    pub fn retry_at(&self, route: Route) -> Option<Ticks> {
        self.lines.get(&route).and_then(Line::retry_at)
    }

    /// Forgets a line in which nothing waits.
    pub fn tidy(&mut self, route: Route) {
        if self.lines.get(&route).is_some_and(|line| line.pending.is_empty()) {
            self.lines.remove(&route);
        }
    }

    /// Time at which something is to be given up or tried again.
    pub fn deadline(&self, limit: Duration) -> Option<Ticks> {
        let of_line = |line: &Line| line.pending.iter().map(|p| p.until(limit)).chain(line.retry_at()).min();
        self.lines.values().filter_map(of_line).min()
    }
}

impl Line {
    fn retry_at(&self) -> Option<Ticks> {
        (self.is_refused && self.num_sent == 0 && !self.pending.is_empty()).then_some(self.retry_at)
    }

    /// A publish of this cost is not on its way any more.
    fn is_back(&mut self, cost: u64) {
        self.num_sent -= 1;
        self.bytes_sent -= cost;
    }

    fn find(&mut self, ticket: u64) -> Option<&mut Pending> {
        let at = self.pending.binary_search_by_key(&ticket, |p| p.ticket).ok()?;
        self.pending.get_mut(at).filter(|p| !p.is_held())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{CoreId, PartitionId, TopicId};
    use crate::seam::message::Ticket;

    const ROUTE: Route = Route { topic_id: TopicId([1; 16]), partition: PartitionId(0) };
    const A: NodeId = NodeId([1; 16]);
    const B: NodeId = NodeId([2; 16]);
    const LIMIT: Duration = Duration::from_secs(13);

    fn push(lines: &mut Lines, now: u64, number: u64) {
        let publisher = Publisher::Core(CoreId(0), Ticket(number));
        lines.push(Ticks(now), ROUTE, publisher, PackedBodies::pack([&b"body"[..]].into_iter()), 0);
    }

    fn numbers(told: &[(Publisher, PublishError)]) -> Vec<(u64, PublishError)> {
        let number = |p: &Publisher| if let Publisher::Core(_, ticket) = p { ticket.0 } else { panic!("{p:?}") };
        told.iter().map(|(p, error)| (number(p), *error)).collect()
    }

    /// The tickets of the publishes that go out now.
    fn send(lines: &mut Lines, now: u64, leader: NodeId) -> Vec<u64> {
        match lines.next(Ticks(now), ROUTE, leader) {
            Next::Wait => vec![],
            Next::Send(_) => lines.send(Ticks(now), ROUTE).map(|p| p.ticket).collect(),
        }
    }

    #[test]
    fn what_is_refused_goes_again_in_order_and_before_what_came_later() {
        let mut lines = Lines::default();
        (1..4).for_each(|n| push(&mut lines, 1, n));
        assert_eq!(send(&mut lines, 1, A), [1, 2, 3]);
        assert!(lines.hold(Ticks(2), ROUTE, 2, PublishError::NotLeader));
        push(&mut lines, 3, 4);
        assert!(send(&mut lines, 3, A).is_empty() && send(&mut lines, 3, B).is_empty(), "the attempt is not over");
        assert!(lines.finish(ROUTE, 1).is_some() && lines.hold(Ticks(4), ROUTE, 3, PublishError::NotLeader));
        assert!(send(&mut lines, 5, A).is_empty(), "the same leader again after a pause only");
        assert_eq!(send(&mut lines, 5, B), [2, 3, 4], "another one at once");
        push(&mut lines, 6, 5);
        assert_eq!(send(&mut lines, 6, B), [5], "pipelined");
        let first = lines.lines[&ROUTE].attempt;
        (2..=5).for_each(|ticket| assert!(lines.finish(ROUTE, ticket).is_some() && lines.finish(ROUTE, ticket).is_none()));
        lines.tidy(ROUTE);
        assert!(lines.is_empty() && lines.bytes() == 0);
        push(&mut lines, 7, 6);
        assert_eq!(send(&mut lines, 7, B), [6]);
        assert!(lines.lines[&ROUTE].attempt > first, "no attempt has the number of another");
    }

    /// The leader has a window of each line, however much waits.
    #[test]
    fn no_more_is_on_its_way_than_the_window_allows() {
        let mut lines = Lines::default();
        let half = vec![b'x'; WINDOW as usize / 2];
        let big = vec![b'x'; 2 * WINDOW as usize];
        for (n, body) in [&half, &half, &big, &half].into_iter().enumerate() {
            let publisher = Publisher::Core(CoreId(0), Ticket(n as u64));
            lines.push(Ticks(1), ROUTE, publisher, PackedBodies::pack([&body[..]].into_iter()), 0);
        }
        assert_eq!(send(&mut lines, 1, A), [1], "two do not fit, by what they cost beside their bytes");
        assert!(lines.finish(ROUTE, 1).is_some());
        assert_eq!(send(&mut lines, 2, A), [2]);
        assert!(lines.hold(Ticks(3), ROUTE, 2, PublishError::TooMuchWaiting));
        assert_eq!(send(&mut lines, 3 + RETRY_PAUSE.as_nanos() as u64, A), [2], "again, and not more");
        assert!(lines.finish(ROUTE, 2).is_some());
        assert_eq!(send(&mut lines, 4, A), [3], "one that is larger than the window goes alone");
        let (mut told, end) = (vec![], Ticks(2) + LIMIT);
        lines.expire(end, LIMIT, ROUTE, &mut told);
        assert_eq!(numbers(&told), [(3, PublishError::TooMuchWaiting)], "the leader is there, and slow");
        lines.lose(ROUTE, &mut told);
        assert_eq!((lines.lines[&ROUTE].bytes_sent, lines.bytes()), (0, 0));
    }

    #[test]
    fn an_unknown_outcome_is_told_and_never_tried_again() {
        let mut lines = Lines::default();
        (1..4).for_each(|n| push(&mut lines, 1, n));
        assert_eq!(send(&mut lines, 1, A).len(), 3);
        assert!(lines.hold(Ticks(2), ROUTE, 3, PublishError::NotLeader));
        let mut told = vec![];
        assert_eq!(lines.routes_to(A), [ROUTE]);
        assert!(lines.routes_to(B).is_empty());
        lines.lose(ROUTE, &mut told);
        assert_eq!(numbers(&told), [(1, PublishError::Unknown), (2, PublishError::Unknown)]);
        assert_eq!(send(&mut lines, 3, B), [3], "it is known of this one that it was not stored");
        assert!(!lines.hold(Ticks(3), ROUTE, 1, PublishError::NotLeader) && lines.finish(ROUTE, 2).is_none(), "too late");
    }

    #[test]
    fn nothing_waits_for_longer_than_the_limit() {
        let mut lines = Lines::default();
        push(&mut lines, 0, 1);
        assert_eq!(send(&mut lines, 0, A), [1]);
        assert!(lines.hold(Ticks(5), ROUTE, 1, PublishError::Stopping));
        assert_eq!(lines.deadline(LIMIT), Some(Ticks(5) + RETRY_PAUSE));
        let (mut told, end) = (vec![], Ticks(0) + LIMIT);
        assert_eq!(send(&mut lines, end.0 - 1, A), [1]);
        push(&mut lines, end.0 - 1, 2);
        lines.expire(end, LIMIT, ROUTE, &mut told);
        assert!(told.is_empty(), "one that was sent has as long from then on");
        lines.expire(end + LIMIT, LIMIT, ROUTE, &mut told);
        let behind = PublishError::TooMuchWaiting;
        assert_eq!(numbers(&told), [(1, PublishError::Unknown), (2, behind)], "the leader had not answered the first one");
        assert_eq!(lines.bytes(), 0);
    }
}
