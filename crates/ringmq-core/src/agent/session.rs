//! The node's session: registered under a lease, renewed, confirmed after a lapse, given up at the end.

use super::{Agent, AgentError, AgentOptions, Effect, Note, Purpose, RETRY};
use crate::base::{Ticks, TopicId};
use crate::codec::peer::message::Route;
use crate::metadata::keys::Key;
use crate::metadata::record::{MemberRecord, NodeRecord, Suspects, encode};
use crate::metadata::request::{Answer, Change, Compare, LeaseId, Op, Request, Txn};
use crate::seam::cluster::Fact;
use std::collections::BTreeSet;
use std::time::Duration;

/// Renewals in one TTL.
const RENEWALS: u32 = 5;
/// Number of TTLs after which a node id that another place holds counts as in use there.
const FOREIGN_TTLS: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Phase {
    /// No session; everything is read first.
    #[default]
    Reading,
    /// No session; one is being made, by one request at a time. The time: not before.
    Entering {
        not_before: Ticks,
        is_asking: bool,
    },
    Live {
        session: u64,
        renew_at: Ticks,
        is_renewing: bool,
    },
    /// The own deadline passed. `is_read`: everything was listed since, and the session was among it.
    Lapsed {
        session: u64,
        is_read: bool,
        renew_at: Ticks,
        is_renewing: bool,
    },
    Leaving,
    Stopped,
}

#[derive(Debug, Default)]
pub(super) struct Session {
    phase: Phase,
    lease: Option<LeaseId>,
    ttl: Duration,
    /// End of the lease by the own clock; the cores know it.
    until: Ticks,
    /// Revision that was read when the session began or was confirmed.
    read: u64,
    /// Time since which another place holds this node's key.
    foreign: Option<(u64, Ticks)>,
    /// Replicas here that lost something.
    suspects: BTreeSet<(TopicId, u16)>,
    /// The key's value is not written before.
    value_at: Ticks,
}

impl Session {
    pub fn live(&self) -> Option<u64> {
        match self.phase {
            Phase::Live { session, .. } => Some(session),
            _ => None,
        }
    }

    pub fn lease(&self) -> Option<LeaseId> {
        self.lease
    }

    pub fn value_at(&self) -> Ticks {
        self.value_at
    }

    pub fn is_stopped(&self) -> bool {
        self.phase == Phase::Stopped
    }

    pub fn deadline(&self) -> Option<Ticks> {
        match self.phase {
            Phase::Live { renew_at, is_renewing, .. } => Some(if is_renewing { self.until } else { self.until.min(renew_at) }),
            Phase::Lapsed { is_read: true, is_renewing: false, renew_at, .. } => Some(renew_at),
            Phase::Entering { not_before, is_asking: false } => Some(not_before),
            _ => None,
        }
    }
}

impl Agent {
    /// The own clock says that the lease is over, before anything else is looked at.
    pub(super) fn lapse_if_due(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        if let Phase::Live { session, .. } = self.session.phase
            && now >= self.session.until
        {
            self.session.phase = Phase::Lapsed { session, is_read: false, renew_at: now, is_renewing: false };
            out.push(Effect::Say(Note::Lapsed));
            // A listing that is on its way was asked for before the lapse.
            self.pending.retain(|_, p| !matches!(p.purpose, Purpose::List { .. } | Purpose::Renew));
            self.list_at = Some(now);
        }
    }

    pub(super) fn go_on_session(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        match self.session.phase {
            Phase::Live { session, renew_at, is_renewing: false } if now >= renew_at => {
                let next = now + self.session.ttl / RENEWALS;
                self.session.phase = Phase::Live { session, renew_at: next, is_renewing: true };
                self.renew(now, out);
            }
            Phase::Lapsed { session, is_read: true, renew_at, is_renewing: false } if now >= renew_at => {
                self.session.phase = Phase::Lapsed { session, is_read: true, renew_at: now + RETRY, is_renewing: true };
                self.renew(now, out);
            }
            Phase::Entering { not_before, is_asking: false } if now >= not_before => self.enter(now, out),
            _ => {}
        }
    }

    fn renew(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        if let Some(lease) = self.session.lease {
            self.send(now, Purpose::Renew, Request::Renew { lease }, out);
        }
    }

    /// Takes in that everything was listed.
    pub(super) fn confirm(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        self.is_campaigning = false;
        match self.session.phase {
            Phase::Reading => self.session.phase = Phase::Entering { not_before: now, is_asking: false },
            Phase::Lapsed { session, is_renewing, .. } => {
                if self.view.session(self.options.me) == Some(session) {
                    self.session.read = self.view.read();
                    self.session.phase = Phase::Lapsed { session, is_read: true, renew_at: now, is_renewing };
                } else {
                    self.end_session(now, out);
                }
            }
            _ => self.see_own_key(now, out),
        }
    }

    /// The key of this node changed, or may have.
    pub(super) fn see_own_key(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        if let Phase::Live { session, .. } | Phase::Lapsed { session, .. } = self.session.phase
            && self.view.session(self.options.me) != Some(session)
        {
            self.end_session(now, out);
        }
        if let Phase::Entering { is_asking: false, .. } = self.session.phase {
            self.session.phase = Phase::Entering { not_before: now, is_asking: false };
        }
    }

    fn end_session(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        if let Phase::Live { session, .. } | Phase::Lapsed { session, .. } = self.session.phase {
            out.push(Effect::Say(Note::SessionOver { session }));
            self.pending.retain(|_, p| !matches!(p.purpose, Purpose::Renew));
            self.session.lease = None;
            self.tell_session(now, None, out);
            self.session.phase = Phase::Reading;
            self.list_soon(now);
        }
    }

    fn tell_session(&mut self, now: Ticks, session: Option<u64>, out: &mut Vec<Effect>) {
        let mut facts = vec![];
        self.told.enter(&self.view, session, &mut facts);
        self.tell(now, facts, out);
    }

    // ---- the way into a session

    fn enter(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        let Some(there) = self.view.node(self.options.me) else {
            self.session.foreign = None;
            if self.is_overtaken() {
                out.push(Effect::Refuse(AgentError::Overtaken { me: self.options.me }));
                self.session.phase = Phase::Entering { not_before: now + self.options.ttl, is_asking: false };
                return;
            }
            let ttl = self.options.ttl;
            self.session.phase = Phase::Entering { not_before: now, is_asking: true };
            return self.send(now, Purpose::Grant, Request::Grant { ttl }, out);
        };
        let (other, lease, session) = (there.value.clone(), there.lease, there.create_revision);
        if let Some(lease) = lease.filter(|_| self.options.record.has_place_of(&other)) {
            out.push(Effect::Say(Note::PredecessorRevoked));
            self.session.phase = Phase::Entering { not_before: now, is_asking: true };
            return self.send(now, Purpose::Revoke, Request::Revoke { lease }, out);
        }
        // The other process's lease ends by itself, if the process is gone.
        let NodeRecord { machine, data_path, .. } = other;
        let since = match self.session.foreign {
            Some((known, since)) if known == session => since,
            _ => {
                self.session.foreign = Some((session, now));
                out.push(Effect::Say(Note::WaitsForOther { machine: machine.clone(), data_path: data_path.clone() }));
                now
            }
        };
        let until = since + self.options.ttl * FOREIGN_TTLS;
        if now >= until {
            out.push(Effect::Refuse(AgentError::IdInUse { me: self.options.me, machine, data_path }));
            self.session.foreign = Some((session, now));
        }
        self.session.phase = Phase::Entering { not_before: until.max(now + RETRY), is_asking: false };
    }

    /// True if another data path was registered as this node since this one was: that one has all later confirmed data.
    fn is_overtaken(&self) -> bool {
        let AgentOptions { me, processes, member, .. } = &self.options;
        let last = self.view.member(*me).map_or(0, |there| there.value.process);
        last != 0 && last != member.process && !processes.contains(&last)
    }

    /// Incarnation of this process, which it keeps once it was registered. The record of an earlier process is not newer than the view,
    /// and the transaction that registers this one compares that record.
    fn incarnation(&self) -> u64 {
        let last = self.view.member(self.options.me).map(|there| &there.value);
        last.filter(|last| last.process == self.options.member.process).map_or(self.view.newest(), |last| last.incarnation)
    }

    fn register(&mut self, now: Ticks, lease: LeaseId, out: &mut Vec<Effect>) {
        let record = MemberRecord { incarnation: self.incarnation(), ..self.options.member.clone() };
        let (me, layout) = (self.options.me, self.view.layout());
        let (node, member) = (layout.key(&Key::Node(me)), layout.key(&Key::Member(me)));
        let compares = vec![
            Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() },
            Compare::CreateRevision { key: node.clone(), is: 0 },
            // As it was when this data path was found to be the newest.
            Compare::ModRevision { key: member.clone(), is: self.view.mod_revision(&Key::Member(me)).unwrap_or(0) },
        ];
        let then = vec![
            Op::Put { key: node.clone(), value: encode(&self.options.record), lease: Some(lease) },
            Op::Put { key: member, value: encode(&record), lease: None },
        ];
        let txn = Txn { compares, then, otherwise: vec![Op::Get { key: node }] };
        self.send(now, Purpose::Register { lease }, Request::Txn(txn), out);
    }

    pub(super) fn session_answered(
        &mut self,
        now: Ticks,
        sent: Ticks,
        purpose: Purpose,
        (request, answer): (&Request, Answer),
        out: &mut Vec<Effect>,
    ) {
        match (purpose, answer) {
            (Purpose::Revoke, Answer::Revoked) => self.read_again(now),
            (Purpose::Leave, Answer::Revoked) => self.left(out),
            (Purpose::Grant, Answer::Granted { lease, ttl }) => {
                self.session.lease = Some(lease);
                (self.session.ttl, self.session.until) = (ttl, self.until(sent, ttl));
                self.register(now, lease, out);
            }
            (Purpose::Register { lease }, Answer::Txn { succeeded, reads, revision }) => {
                let first = reads.first().cloned().flatten();
                // An earlier copy of this request may have been the one that did it.
                let session = match &first {
                    _ if succeeded => Some(revision),
                    Some(kv) => Some(kv.create_revision).filter(|_| kv.lease == Some(lease)),
                    None => None,
                };
                match session {
                    Some(session) if now < self.session.until => {
                        self.registered(now, session, out);
                        match succeeded {
                            true => self.learn_txn(now, request, true, reads, revision, out),
                            false => self.learn(now, first.into_iter().map(Change::Put), out),
                        }
                    }
                    _ => self.read_again(now),
                }
            }
            (Purpose::Renew, Answer::Renewed { ttl }) => self.renewed(now, sent, ttl, out),
            (purpose, _) => self.session_failed(now, &purpose, out),
        }
    }

    pub(super) fn session_failed(&mut self, now: Ticks, purpose: &Purpose, out: &mut Vec<Effect>) {
        match purpose {
            Purpose::Leave => self.left(out),
            Purpose::Renew => match &mut self.session.phase {
                Phase::Live { renew_at, is_renewing, .. } | Phase::Lapsed { renew_at, is_renewing, .. } => {
                    (*renew_at, *is_renewing) = (now + RETRY, false);
                }
                _ => {}
            },
            _ => self.read_again(now),
        }
    }

    /// Reads the changes that came in between, before the next attempt.
    fn read_again(&mut self, now: Ticks) {
        if let Phase::Entering { .. } = self.session.phase {
            self.session.phase = Phase::Reading;
            self.list_at = Some(now + RETRY);
        }
    }

    fn until(&self, sent: Ticks, ttl: Duration) -> Ticks {
        sent + ttl.saturating_sub(self.options.margin)
    }

    fn registered(&mut self, now: Ticks, session: u64, out: &mut Vec<Effect>) {
        self.session.phase = Phase::Live { session, renew_at: now + self.session.ttl / RENEWALS, is_renewing: false };
        self.session.read = self.view.read();
        self.options.processes = vec![self.options.member.process];
        out.push(Effect::Registered);
        out.push(Effect::Say(Note::Registered { session }));
        self.tell_session(now, Some(session), out);
        self.tell_lease(out);
    }

    fn tell_lease(&self, out: &mut Vec<Effect>) {
        out.push(Effect::Fact(Fact::Lease { until: self.session.until, revision: self.session.read }));
    }

    fn renewed(&mut self, now: Ticks, sent: Ticks, ttl: Option<Duration>, out: &mut Vec<Effect>) {
        let Some(ttl) = ttl else { return self.end_session(now, out) };
        let until = self.until(sent, ttl);
        match self.session.phase {
            Phase::Live { session, renew_at, .. } => {
                self.session.phase = Phase::Live { session, renew_at, is_renewing: false };
            }
            Phase::Lapsed { session, is_read: true, .. } if until > now => {
                let renew_at = now + ttl / RENEWALS;
                self.session.phase = Phase::Live { session, renew_at, is_renewing: false };
                out.push(Effect::Say(Note::Confirmed { session }));
            }
            Phase::Lapsed { session, is_read, renew_at, .. } => {
                self.session.phase = Phase::Lapsed { session, is_read, renew_at, is_renewing: false };
                return;
            }
            _ => return,
        }
        self.session.ttl = ttl;
        self.session.until = self.session.until.max(until);
        self.tell_lease(out);
    }

    // ---- its value, and its end

    pub(super) fn doubt(&mut self, route: Route, is_suspect: bool) {
        let at = (route.topic_id, route.partition.0);
        match is_suspect {
            true => drop(self.session.suspects.insert(at)),
            false => drop(self.session.suspects.remove(&at)),
        }
        self.options.record.suspects = Suspects::of(self.session.suspects.clone());
    }

    /// Whether the session's key says something else of the suspects here, and nothing is on its way to change that.
    pub(super) fn is_value_old(&self) -> bool {
        let is_old = |session| {
            let known = self.view.node(self.options.me).filter(|e| e.create_revision == session);
            known.is_some_and(|e| e.value.suspects != self.options.record.suspects)
        };
        let mut under_way = self.pending.values().chain(&self.again);
        self.session.live().is_some_and(is_old) && !under_way.any(|p| matches!(p.purpose, Purpose::NodeValue))
    }

    /// The one function that writes the session's key again: under its lease, so that it goes with it.
    pub(super) fn tell_doubts(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        if now < self.session.value_at || !self.is_value_old() {
            return;
        }
        self.session.value_at = now + RETRY;
        let (Some(session), Some(lease)) = (self.session.live(), self.session.lease) else { return };
        let layout = self.view.layout();
        let key = layout.key(&Key::Node(self.options.me));
        let compares = vec![
            Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() },
            Compare::CreateRevision { key: key.clone(), is: session },
        ];
        let then = vec![Op::Put { key: key.clone(), value: encode(&self.options.record), lease: Some(lease) }];
        let txn = Txn { compares, then, otherwise: vec![Op::Get { key }] };
        self.send(now, Purpose::NodeValue, Request::Txn(txn), out);
    }

    /// The node serves nothing any more: its lease is given back, so that others lead at once.
    pub(super) fn stop(&mut self, now: Ticks, out: &mut Vec<Effect>) {
        self.remember(now, out);
        self.pending.clear();
        self.again.clear();
        self.list_at = None;
        match self.session.lease {
            Some(lease) => {
                self.session.phase = Phase::Leaving;
                self.send(now, Purpose::Leave, Request::Revoke { lease }, out);
            }
            None => self.left(out),
        }
    }

    fn left(&mut self, out: &mut Vec<Effect>) {
        self.session.phase = Phase::Stopped;
        self.session.lease = None;
        out.push(Effect::Stopped);
    }
}
