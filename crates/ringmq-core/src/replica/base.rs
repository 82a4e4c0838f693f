//! State of a replica in any role: its metadata, its promise, its committed end, and the end of the batches given to its log.

use super::event::{Effect, LogView, ReplicaOptions};
use super::states::{State, Trigger, next};
use crate::base::{Epoch, Position, Ticks, TopicRef};
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Body, Head, Message, Route, Standing};
use crate::format::tail::Tail;
use crate::seam::cluster::{ClusterNode, name_of};
use crate::{base::NodeId, seam::membership::Membership};

#[derive(Debug)]
pub(super) struct Base {
    pub me: NodeId,
    pub topic: TopicRef,
    pub route: Route,
    pub options: ReplicaOptions,
    pub membership: Option<Membership>,
    /// Promised epoch: no lower one is followed, and none that is not higher is opened.
    pub promised: Epoch,
    pub promise_durable: Epoch,
    /// Lower bound of the committed end. Beyond the durable end only after this replica lost something.
    pub committed: Position,
    /// End of the batches given to the log. The store may hold some of them until it has room.
    pub taken: Tail,
    /// Truncations that are not durable yet.
    pub truncations: u32,
    /// Time until which this leader waits for another one, that lost less, to lead instead.
    pub hands_over_until: Option<Ticks>,
    /// Number of such waits since the replica was last compared.
    pub hand_overs: u32,
    /// Number of times that this replica gave up to open since it last heard of enough members.
    pub given_up: u32,
    /// Highest epoch in any message received while this node led a lower one. No epoch up to it is opened.
    pub heard: Epoch,
    pub lease_until: Ticks,
    pub state: State,
    #[cfg(test)]
    pub trace: Vec<(State, Trigger, State)>,
}

/// Line of the log about a replica: each names its topic and partition.
macro_rules! replica_log {
    ($level:ident, $base:expr, $($line:tt)+) => {
        tracing::$level!(topic = %$base.topic.name, partition = %$base.route.partition, $($line)+)
    };
}
pub(super) use replica_log;

/// Context of one step.
pub(super) struct Cx<'a> {
    pub now: Ticks,
    pub log: &'a dyn LogView,
    pub nodes: &'a [ClusterNode],
    pub out: &'a mut Vec<Effect>,
}

impl Cx<'_> {
    /// Name of a node for the log.
    pub fn name_of(&self, node: NodeId) -> String {
        name_of(self.nodes, node)
    }

    pub fn send(&mut self, to: NodeId, head: Head, body: Body) {
        self.out.push(Effect::Send { to, message: Message { head, body } });
    }

    pub fn refuse(&mut self, to: NodeId, head: Head, error: PeerError) {
        self.send(to, head, Body::Refused(error));
    }
}

impl Base {
    /// A transition of the table.
    pub fn go(&mut self, trigger: Trigger) {
        let to = next(self.state, trigger);
        debug_assert!(to.is_some(), "{:?} does not happen in {:?}", trigger, self.state);
        let to = to.unwrap_or(self.state);
        tracing::debug!(topic = %self.topic.name, partition = %self.route.partition, from = ?self.state, ?trigger, ?to, "replica");
        #[cfg(test)]
        self.trace.push((self.state, trigger, to));
        self.state = to;
    }

    /// Epoch below which no leader is followed.
    pub fn fence(&self) -> Epoch {
        self.promised.max(self.membership.as_ref().map_or(Epoch(0), |m| m.epoch))
    }

    /// True if no request to the log is outstanding: its end, its durable end and the end of the batches given to it are equal.
    pub fn is_settled(&self, log: &dyn LogView) -> bool {
        let end = log.end().at;
        self.truncations == 0
            && self.promise_durable >= self.promised
            && end == log.durable().at
            && end.offset >= self.taken.at.offset
    }

    /// The promise to follow no lower epoch, if it is a new one.
    pub fn promise(&mut self, epoch: Epoch, out: &mut Vec<Effect>) {
        if epoch > self.promised {
            self.promised = epoch;
            out.push(Effect::LogEpoch { epoch });
        }
    }

    /// The committed end never goes back.
    pub fn commit(&mut self, end: Position, out: &mut Vec<Effect>) {
        if end.offset > self.committed.offset {
            self.committed = end;
            out.push(Effect::Committed { end });
        }
    }

    /// Lowest offset to which this replica may be truncated. Data known to be committed stays, unless damage destroyed it already. 0 for
    /// an empty log, wherever it begins.
    pub fn truncation_floor(&self, log: &dyn LogView) -> i64 {
        let (start, vouched) = (log.start().0.offset, log.vouched().offset);
        if vouched <= start { 0 } else { self.committed.offset.min(vouched) }
    }

    /// True for a replica outside the ISR that holds committed data which an operator gave up: its epochs are below the one that opened
    /// after the loss, and its committed data is not all in the log with which that epoch opened. False if it lost a part of its log:
    /// the epochs of the lost part are unknown.
    pub fn has_given_up(&self, log: &dyn LogView) -> bool {
        let Some(membership) = &self.membership else { return false };
        let Some(loss) = membership.given_up.filter(|_| !membership.is_in_sync(self.me)) else { return false };
        let end = log.end();
        if end.epoch >= loss.epoch || self.committed.offset > end.at.offset {
            return false;
        }
        // Logs that share an epoch share all before it.
        let mut last = Vec::with_capacity(1);
        log.all_epochs(Some(Epoch(loss.last_epoch.0.saturating_add(1))), 1, &mut last);
        let has_that_log = last.first().is_some_and(|l| l.epoch == loss.last_epoch && l.end.offset >= loss.end);
        !has_that_log || self.committed.offset > loss.end
    }

    /// True for a follower in step whose leader opened this epoch after an accepted loss, and which knows more to be committed than the
    /// leader, whose committed end is `told`: all of that was committed in earlier epochs, and given up.
    pub fn remembers_given_up(&self, epoch: Epoch, told: Position) -> bool {
        let loss = self.membership.as_ref().and_then(|m| m.given_up);
        let is_of_epoch = loss.is_some_and(|loss| loss.epoch == epoch && told.offset >= loss.end);
        is_of_epoch && self.committed.offset > told.offset
    }

    pub fn truncate(&mut self, to: Position, out: &mut Vec<Effect>) {
        self.truncations += 1;
        out.push(Effect::Truncate { to });
    }

    pub fn restart(&mut self, start: Position, chain_crc: u32, out: &mut Vec<Effect>) {
        self.truncations += 1;
        out.push(Effect::Restart { start, chain_crc });
    }

    pub fn standing(&self, log: &dyn LogView, below: Option<Epoch>) -> Standing {
        let mut epochs = Vec::new();
        let more = log.epochs(below, crate::codec::peer::message::EPOCHS_MAX, &mut epochs);
        let (start, start_crc) = log.start();
        let mut last = Vec::with_capacity(1);
        log.epochs(None, 1, &mut last);
        Standing {
            start,
            start_crc,
            last_epoch: last.first().map_or(Epoch(0), |e| e.epoch),
            durable: log.vouched(),
            committed: self.committed,
            // The damaged range may have held all that this replica has of something.
            suspect: log.doubt().is_suspect() || log.vouched() != log.end().at,
            epochs,
            more,
        }
    }
}
