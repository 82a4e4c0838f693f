//! Lines of the log: one per change, none while nothing changes.

use crate::base::NodeId;
use crate::base::client::ClientInfo;
use crate::base::{Peer, Ticks};
use crate::codec::peer::RejectCode;
use crate::seam::faults::FaultLog;
use std::collections::BTreeMap;

/// Attempts after which a node that one side does not know is logged: at a startup the metadata of one side may be younger.
pub(super) const UNKNOWN_TIMES: u32 = 4;

/// Refused nodes that are remembered; a further one starts the list anew.
const REFUSED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct LinkLog {
    /// Last refusal of each node, and how often in a row.
    refused: BTreeMap<NodeId, (RejectCode, u32)>,
    faults: FaultLog,
    pub faults_at: Option<Ticks>,
}

impl LinkLog {
    /// Logs that a node with this id is refused, if it is due.
    pub fn refused(&mut self, (core, peer): (u16, &Peer), (node, name): (NodeId, &str), code: RejectCode, why: &str) {
        if self.is_due(node, code) {
            tracing::warn!(core, peer = %peer.0, node = name, "a peer is refused: {why}");
        }
    }

    /// Whether a refusal is logged: a new one is, and that of an unknown node when it repeats.
    fn is_due(&mut self, node: NodeId, code: RejectCode) -> bool {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        let times = match self.refused.get(&node) {
            Some((last, times)) if *last == code => times.saturating_add(1),
            _ => 1,
        };
        self.refused.insert(node, (code, times));
        times == if code == RejectCode::UnknownNode { UNKNOWN_TIMES } else { 1 }
    }

    /// The next refusal of it is new.
    pub fn welcomed(&mut self, node: NodeId) {
        self.refused.remove(&node);
    }

    /// Logs a connection that ended before it named its node.
    pub fn stranger(&mut self, now: Ticks, peer: &Peer, why: &str) {
        let address = peer.0.to_string();
        let client = ClientInfo { client_id: "peer".into(), remote_address: address, ..ClientInfo::default() };
        self.faults_at = self.faults.say(now, &client, why).or(self.faults_at);
    }

    pub fn tick(&mut self, now: Ticks) {
        if self.faults_at.is_some_and(|at| at <= now) {
            self.faults_at = None;
            self.faults.tick(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_logged_once_and_that_of_an_unknown_node_when_it_persists() {
        let mut log = LinkLog::default();
        let node = NodeId([1; 16]);
        let mut due = |code| (0..6).map(|_| log.is_due(node, code)).collect::<Vec<_>>();
        assert_eq!(due(RejectCode::UnknownNode), [false, false, false, true, false, false]);
        assert_eq!(due(RejectCode::OtherCluster), [true, false, false, false, false, false]);
        log.welcomed(node);
        assert!(!log.is_due(node, RejectCode::UnknownNode));
    }
}
