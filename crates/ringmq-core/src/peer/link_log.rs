//! Lines of the log: one per change, none while nothing changes.

use crate::base::NodeId;
use crate::base::client::ClientInfo;
use crate::base::{Peer, Ticks};
use crate::codec::peer::RejectCode;
use crate::seam::faults::FaultLog;
use std::collections::BTreeMap;

/// Refused nodes that are remembered; a further one starts the list anew.
const REFUSED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct LinkLog {
    /// Last refusal of each node.
    refused: BTreeMap<NodeId, RejectCode>,
    faults: FaultLog,
    pub faults_at: Option<Ticks>,
}

impl LinkLog {
    /// A node that is known by its id is refused: said when it is new.
    pub fn refused(&mut self, core: u16, peer: &Peer, node: NodeId, code: RejectCode, why: &str) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        if self.refused.insert(node, code) != Some(code) {
            tracing::warn!(core, peer = %peer.0, %node, "a peer is refused: {why}");
        }
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
