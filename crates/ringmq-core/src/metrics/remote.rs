//! Work of a clustered node's core for its clients at leaders elsewhere, and for clients of other nodes.

/// Outcome of a publish or subscription that another node leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteOutcome {
    /// Stored, or subscribed.
    Done,
    Refused,
    Unknown,
    /// The leader refused it for the moment: it is asked again, or the next leader is.
    Retried,
    /// The leader has forgotten the subscription, or is not reached any more.
    Lost,
}

impl RemoteOutcome {
    /// All outcomes, with their words in /metrics.
    pub const ALL: [(RemoteOutcome, &'static str); 5] = [
        (RemoteOutcome::Done, "done"),
        (RemoteOutcome::Refused, "refused"),
        (RemoteOutcome::Unknown, "unknown"),
        (RemoteOutcome::Retried, "retried"),
        (RemoteOutcome::Lost, "lost"),
    ];
}

/// Counts by outcome, since the startup of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcomes([u64; RemoteOutcome::ALL.len()]);

impl Outcomes {
    pub fn count(&mut self, told: RemoteOutcome) {
        self.0[told as usize] += 1;
    }

    pub fn get(&self, told: RemoteOutcome) -> u64 {
        self.0[told as usize]
    }
}

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: u64,
    pub bytes: u64,
}

impl Sum {
    pub fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes as u64;
    }
}

/// Counters since the startup of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteCounts {
    /// Publishes that went to leaders elsewhere, each as often as it was sent, and the bytes of their bodies.
    pub forwarded: Sum,
    pub forwards: Outcomes,
    /// The same of publishes that other nodes sent here.
    pub received: Sum,
    /// Subscriptions of this node's clients at leaders elsewhere.
    pub relays: Outcomes,
    /// Frames that leaders elsewhere sent for this node's clients, as pieces with their bytes.
    pub relayed: Sum,
    /// Messages delivered to clients of other nodes.
    pub delivered: Sum,
}

/// Counters, and present numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteStats {
    pub counts: RemoteCounts,
    /// Memory of publishes that wait for a leader, or for its answer.
    pub forwarding_bytes: u64,
    /// Memory of publishes of other nodes that wait for space.
    pub parked_bytes: u64,
    /// Subscriptions of this node's clients at leaders elsewhere.
    pub relays: u64,
    /// Subscriptions of other nodes' clients here.
    pub guests: u64,
}
