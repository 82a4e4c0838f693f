//! The states of a replica, and every transition there is, as data: the tests see that the machines make no other, and that
//! each one happens.

use State::*;
use Trigger::*;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum State {
    /// The node is not a known replica of the partition.
    Idle,
    /// Follows no leader yet, or leader and replica refused each other: takes no batch before the logs are compared.
    Apart,
    /// The promise, or an earlier append, is not durable yet; the replica reports its standing after that.
    Promising,
    /// The log is being truncated to the common prefix with the leader's.
    Truncating,
    /// The log is a prefix of the leader's, and takes batches.
    Aligned,
    /// Leads by the metadata; its own promise is not durable yet.
    Claiming,
    /// Hears where the others stand.
    Asking,
    /// Truncates the batches that the chosen log does not have.
    Trimming,
    /// Takes the chosen log's tail.
    Fetching,
    /// Brings its tail to all ISR members: that commits it.
    Settling,
    /// Takes writes.
    Open,
    /// Takes no writes for a moment, to hand over without a write whose outcome is unknown.
    Quiescing,
    /// Serves nothing, and waits for another leader to be named.
    Resigned,
    /// Could not commit the batches that it took: the next epoch decides.
    Closed,
    /// A write failed here.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Trigger {
    /// Metadata: another node leads, or none.
    ToFollow,
    /// Metadata: leads, in a new epoch.
    ToLead,
    /// Metadata: no replica any more.
    Dropped,
    /// A session begins.
    Inquired,
    /// Every written batch is durable: the replica reports its standing.
    Stood,
    /// The leader's order, with something to truncate.
    OrderedToTruncate,
    /// The leader's order, and nothing is to be truncated.
    OrderedInStep,
    /// The truncation is durable.
    Truncated,
    /// An append does not continue the log.
    Disagreed,
    /// Enough were heard, its own log is the one.
    HeardSelf,
    /// Enough were heard, another's goes on from its end.
    HeardBetter,
    /// The same, and its own tail has to go.
    HeardOther,
    /// The chosen tail is here, durably.
    Fetched,
    /// The chosen member says nothing any more.
    SourceLost,
    /// The tail is on all ISR members.
    TailCommitted,
    /// Metadata: another member is to lead, and it is in step.
    AskedToHandOver,
    /// The hand-over took too long, or is not wanted any more.
    KeptOn,
    /// Everything is committed and told, or another replica has the data that is missing here.
    HandedOver,
    /// A write waited too long.
    Unknown,
    /// A write failed.
    LogBroke,
}

/// Transitions: from, trigger, to. Others do not happen, or change no state.
pub const TRANSITIONS: &[(State, Trigger, State)] = &[
    (Idle, ToFollow, Apart),
    (Idle, ToLead, Claiming),
    (Apart, Inquired, Promising),
    (Apart, OrderedInStep, Aligned),
    (Apart, OrderedToTruncate, Truncating),
    (Apart, ToFollow, Apart),
    (Apart, ToLead, Claiming),
    (Apart, Dropped, Idle),
    (Promising, Inquired, Promising),
    (Promising, Stood, Apart),
    (Promising, ToFollow, Apart),
    (Promising, ToLead, Claiming),
    (Promising, Dropped, Idle),
    (Truncating, Truncated, Aligned),
    (Truncating, Disagreed, Apart),
    (Truncating, Inquired, Promising),
    (Truncating, ToFollow, Apart),
    (Truncating, ToLead, Claiming),
    (Truncating, Dropped, Idle),
    (Aligned, Disagreed, Apart),
    (Aligned, Inquired, Promising),
    (Aligned, ToFollow, Apart),
    (Aligned, ToLead, Claiming),
    (Aligned, Dropped, Idle),
    (Claiming, Stood, Asking),
    (Asking, HeardSelf, Settling),
    (Asking, HeardBetter, Fetching),
    (Asking, HeardOther, Trimming),
    (Trimming, Truncated, Fetching),
    (Fetching, Fetched, Settling),
    (Fetching, SourceLost, Asking),
    (Settling, TailCommitted, Open),
    (Open, Unknown, Closed),
    (Open, AskedToHandOver, Quiescing),
    (Open, HandedOver, Resigned),
    (Quiescing, KeptOn, Open),
    (Quiescing, HandedOver, Resigned),
    (Claiming, ToLead, Claiming),
    (Asking, ToLead, Claiming),
    (Trimming, ToLead, Claiming),
    (Fetching, ToLead, Claiming),
    (Settling, ToLead, Claiming),
    (Open, ToLead, Claiming),
    (Quiescing, ToLead, Claiming),
    (Resigned, ToLead, Claiming),
    (Closed, ToLead, Claiming),
    (Claiming, ToFollow, Apart),
    (Asking, ToFollow, Apart),
    (Trimming, ToFollow, Apart),
    (Fetching, ToFollow, Apart),
    (Settling, ToFollow, Apart),
    (Open, ToFollow, Apart),
    (Quiescing, ToFollow, Apart),
    (Resigned, ToFollow, Apart),
    (Closed, ToFollow, Apart),
    (Claiming, Dropped, Idle),
    (Asking, Dropped, Idle),
    (Trimming, Dropped, Idle),
    (Fetching, Dropped, Idle),
    (Settling, Dropped, Idle),
    (Open, Dropped, Idle),
    (Quiescing, Dropped, Idle),
    (Resigned, Dropped, Idle),
    (Closed, Dropped, Idle),
    (Idle, LogBroke, Failed),
    (Apart, LogBroke, Failed),
    (Promising, LogBroke, Failed),
    (Truncating, LogBroke, Failed),
    (Aligned, LogBroke, Failed),
    (Claiming, LogBroke, Failed),
    (Asking, LogBroke, Failed),
    (Trimming, LogBroke, Failed),
    (Fetching, LogBroke, Failed),
    (Settling, LogBroke, Failed),
    (Open, LogBroke, Failed),
    (Quiescing, LogBroke, Failed),
    (Resigned, LogBroke, Failed),
    (Closed, LogBroke, Failed),
];

/// State after a trigger.
pub fn next(from: State, trigger: Trigger) -> Option<State> {
    TRANSITIONS.iter().find(|(f, t, _)| (*f, *t) == (from, trigger)).map(|(_, _, to)| *to)
}
