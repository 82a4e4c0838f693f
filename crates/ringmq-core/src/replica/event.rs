//! Events and effects of a replica, and its view of its log: the whole contract with the shard.
//!
//! ```text
//! Event: Metadata, Lease, Message, Connected, Disconnected, Sealed, Durable, EpochDurable, Truncated, LogRead, LogFailed, ...
//! Effect: Send, SendTail, ReadLog, LogEpoch, Append, Truncate, Restart, Committed, Opened, Closed, Propose, AskEpoch, ...
//! ```
//! The log's marks are read through [`LogView`] when they are needed; an event only says that they moved, so nothing is
//! kept twice and nothing can disagree.

use super::error::ReplicaError;
use crate::base::NodeId;
use crate::base::{ChannelName, Epoch, Position, Ticks};
use crate::codec::peer::error::PeerError;
use crate::config::Settings;
use crate::format::batch::Batch;
use crate::format::cursor::CursorImage;
use crate::format::producer::Producer;
use crate::format::snapshot::Doubt;
pub use crate::format::tail::{BatchId, Tail};
use crate::seam::cluster::{ClusterNode, name_of};
use crate::seam::membership::{GivenUp, Membership};
use crate::{
    codec::peer::message::{Head, Message, Session},
    format::tail::EpochEnd,
};
use bytes::Bytes;
use std::time::Duration;

/// The replica's log, as the store of its core knows it without reading a file.
pub trait LogView {
    /// First position still stored, and the header crc of the batch before it.
    fn start(&self) -> (Position, u32);
    /// End behind all appended and sealed batches.
    fn end(&self) -> Tail;
    /// Durable end, at most the end.
    fn durable(&self) -> Tail;
    /// Position up to which the replica vouches for its log: the end, or the begin of the first damage.
    fn vouched(&self) -> Position;
    /// The first range of batches that damage took; both places are borders of batches as far as is known.
    fn damage(&self) -> Option<(Position, Position)>;
    /// Doubt that a recovery left, if no [`Effect::Cleared`] came since.
    fn doubt(&self) -> Doubt;
    /// The batch in memory that begins at `offset`, durable or not. `None`: no batch begins there, or it is not in memory.
    fn held(&self, offset: i64) -> Option<BatchId>;
    /// The end of the longest run of sealed batches from `from` on that is in memory and at most `bytes_max` long, one batch
    /// at least. `None`: not in memory, or nothing is there.
    fn run_end(&self, from: i64, bytes_max: usize) -> Option<Position>;
    /// Appends the newest `max` epochs below `below` of the log before [`LogView::vouched`], newest first. True if there are older ones.
    fn epochs(&self, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool;
    /// The same of all that the log holds, also behind damage.
    fn all_epochs(&self, below: Option<Epoch>, max: usize, out: &mut Vec<EpochEnd>) -> bool;
    /// (epoch, generation, confirmed) of a channel here, applied or being made durable. `None`: there is no such channel.
    fn cursor(&self, channel: &ChannelName) -> Option<(Epoch, u64, Position)>;
    /// True while damage may have taken channels, here or from a leader before, and no operator has accepted that.
    fn may_lack_channels(&self) -> bool;
    /// True if the journal has room for facts that can wait. A full disk may keep it from being freed for long.
    fn takes_facts(&self) -> bool;
    /// Adds the names of all channels that are replicated.
    fn channels(&self, out: &mut Vec<ChannelName>);
}

/// Bounds and limits of one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaOptions {
    /// Bytes sent to a follower and not acknowledged; one batch may exceed it.
    pub window_bytes: u64,
    /// Rate of catch-up for one follower. Zero: no limit.
    pub catch_up_bytes_per_second: u64,
    /// Pause before an unanswered request is repeated, in a new session.
    pub retry: Duration,
    /// Pause after which a follower in step is told the committed end, and asked for an answer.
    pub heartbeat: Duration,
    /// An ISR member that for so long had not all that the leader had is proposed for removal.
    pub follower_limit: Duration,
    /// A write that waits so long for a replica that cannot be removed ends as unknown. Above the limit of followers.
    pub write_limit: Duration,
    /// Cursors of ordinary channels are sent once per this interval.
    pub cursor_interval: Duration,
}

impl Default for ReplicaOptions {
    fn default() -> Self {
        ReplicaOptions {
            window_bytes: 8 * 1024 * 1024,
            catch_up_bytes_per_second: 0,
            retry: Duration::from_millis(500),
            heartbeat: Duration::from_millis(500),
            follower_limit: Duration::from_secs(3),
            write_limit: Duration::from_secs(5),
            cursor_interval: Duration::from_millis(100),
        }
    }
}

impl From<&Settings> for ReplicaOptions {
    fn from(settings: &Settings) -> Self {
        ReplicaOptions {
            window_bytes: settings.replica_window_bytes,
            catch_up_bytes_per_second: settings.catch_up_rate,
            retry: Duration::from_millis(settings.replica_retry_ms),
            heartbeat: Duration::from_millis(settings.replica_heartbeat_ms),
            follower_limit: Duration::from_millis(settings.follower_limit_ms),
            write_limit: Duration::from_millis(settings.replica_write_limit_ms),
            cursor_interval: Duration::from_millis(settings.cursor_sync_interval_ms),
        }
    }
}

#[derive(Debug)]
pub enum Event {
    /// A deadline has passed.
    Tick,
    /// The metadata store's word. May be old or repeated: versions tell.
    Metadata(Membership),
    /// The node's lease holds until then, by its own clock, as far as it [counts](super::lease). It begins as over.
    Lease {
        until: Ticks,
    },
    /// An [`Effect::Propose`] was refused: the version has changed. The repeat of an applied proposal is refused, too, so this does not
    /// end the proposal; metadata of a higher version does. A store that takes no proposals (the static file) answers with this.
    ProposalRefused {
        version: u64,
    },
    Message {
        from: NodeId,
        message: Message,
    },
    Connected {
        node: NodeId,
    },
    Disconnected {
        node: NodeId,
    },
    /// The node's process is taken for ended: a leader does not wait for it as long as for one that lags.
    Down {
        node: NodeId,
    },
    /// The leader's own batches were sealed: the log's end moved.
    Sealed,
    /// The log's durable end moved.
    Durable,
    /// The record of [`Effect::LogEpoch`] is durable.
    EpochDurable {
        epoch: Epoch,
    },
    /// [`Effect::Truncate`] or [`Effect::Restart`] is durable; the log ends there.
    Truncated,
    /// The answer to [`Effect::ReadLog`]: whole batches, verified, from there on. Empty when nothing is there.
    LogRead {
        to: NodeId,
        session: Session,
        from: Position,
        end: Position,
        result: Result<Vec<Bytes>, PeerError>,
    },
    /// The log has [damage](LogView::damage) that it did not have before.
    Damaged,
    /// [`Effect::Mend`] is done: the batches stand there, durably, or were not taken.
    Mended {
        is_whole: bool,
    },
    /// A write failed: appended bytes that are not durable never will be, and the log takes nothing more until a restart.
    LogFailed,
    /// An operator's answer to an [`Alarm`] with the [`Loss`] that was named: the opening under way goes on with the best there is, if
    /// that ends there or later. Of an open leader: replicas that stay out begin anew.
    AcceptLoss {
        from: Position,
    },
    Cursor(CursorEvent),
}

/// Changes of channels. Ephemeral ones are never reported.
#[derive(Debug)]
pub enum CursorEvent {
    /// An ordinary channel's cursor moved; it goes to the followers with the next interval.
    Moved { channel: ChannelName },
    /// A channel's state that counts only when every ISR member has it durable: FIN of an ordered channel, set offset, create,
    /// pause, empty. Here it is durable already, or becomes so; answered with [`Effect::CursorDone`].
    Sync { request: u64, image: CursorImage },
    /// The channel is gone here; where it was the last one, with the collect start from there on. Answered likewise.
    Delete { request: u64, channel: ChannelName, collect_start: Option<Position> },
    /// The cursors of [`Effect::CollectCursors`], all there are when all were asked for; of the others those that still exist.
    /// With them the idempotent producers that the log does not tell any more.
    Collected {
        to: NodeId,
        session: Session,
        is_all: bool,
        collect_start: Position,
        cursors: Vec<CursorImage>,
        producers: Vec<Producer>,
    },
    /// An operator has accepted that channels of this leader are lost: the others are told so.
    LossAccepted,
    /// The leader's collect start is durably at this position, and retention would remove the segments before it. The followers are
    /// told, and [`Effect::Agreed`] comes when they all have it.
    Collecting { at: Position },
    /// The [`Effect::ApplyCursors`] of this number is durable here.
    Applied { number: u64 },
}

#[derive(Debug)]
pub enum Effect {
    Send {
        to: NodeId,
        message: Message,
    },
    /// An `Append` on the data lane with the batches in memory from `from` to `end`; none when both are equal. At the turn's end one
    /// frame carries the batches of many partitions.
    SendTail {
        to: NodeId,
        head: Head,
        from: Position,
        end: Position,
        committed: Position,
    },
    /// Read whole batches verbatim from `from` on, up to about `bytes_max`, one at least; nothing beyond the durable end.
    ReadLog {
        to: NodeId,
        session: Session,
        from: Position,
        bytes_max: usize,
    },
    /// Batches that were read go out as an `Append` on the catch-up lane.
    SendCatchUp {
        to: NodeId,
        head: Head,
        committed: Position,
        batches: Vec<Bytes>,
    },
    /// Journal the promise to follow no lower epoch.
    LogEpoch {
        epoch: Epoch,
    },
    /// Append this batch verbatim: it goes on at the log's end. The store may hold it until it has room.
    Append {
        batch: Batch,
        /// True if the log is committed without this replica: no commit waits for it.
        is_settled: bool,
    },
    /// Truncate the log to `to`, durably. Everything that is not durable beyond it is forgotten.
    Truncate {
        to: Position,
    },
    /// Drop the log; it begins at `start`, behind a batch whose header has this crc.
    Restart {
        start: Position,
        chain_crc: u32,
    },
    /// Write these batches, verified and one behind the other, where damage took them.
    Mend {
        batches: Vec<Batch>,
    },
    /// Committed data goes with the truncation that follows, and the channels' records behind it: the replica is suspect until
    /// [`Effect::Cleared`].
    Doubted,
    /// An operator gave up data of the replica: its committed end goes back to `committed`, before the restart that follows.
    GaveUp {
        committed: Position,
    },
    /// The replica was compared with another member and lacks nothing: it is no longer suspect.
    Cleared,
    /// The committed end moved: answer the publishers up to it, wake the channels. Never goes back.
    Committed {
        end: Position,
    },
    /// The leader takes writes in this epoch from now on.
    Opened {
        epoch: Epoch,
    },
    /// End of writing in this epoch: publishers of uncommitted messages get `error`.
    Closed {
        error: ReplicaError,
    },
    /// Compare-and-swap in the metadata store: this ISR, if the version is still that one. May be asked again.
    Propose {
        version: u64,
        isr: Vec<NodeId>,
    },
    /// Durable word in the metadata store that an operator accepted this loss. Asked again until the metadata has it.
    GiveUp {
        loss: GivenUp,
    },
    /// The leader needs a new epoch above this one, by [`Event::Metadata`].
    AskEpoch {
        above: Epoch,
    },
    /// Read the partition's metadata anew.
    Refresh,
    /// Request not to lead the partition any more. The leader serves nothing from then on until the metadata says something new. `to`: the
    /// member of the ISR that should lead.
    Resign {
        to: Option<NodeId>,
    },
    /// Word to the store that nothing more is served here, after this node led.
    Release,
    Alarm(Alarm),
    /// End of [`Alarm::StaysOut`].
    AlarmOver,
    /// The leader's state of these channels, or of all, for a follower, stamped with its epoch: [`CursorEvent::Collected`].
    CollectCursors {
        to: NodeId,
        session: Session,
        channels: Channels,
    },
    /// A follower's channels change; durable before [`CursorEvent::Applied`]. Nothing to apply is durable at once.
    ApplyCursors {
        number: u64,
        images: Vec<CursorImage>,
        deleted: Vec<ChannelName>,
        collect_start: Option<Position>,
        agreed_start: Option<Position>,
        producers: Vec<Producer>,
        /// Whether channels may be lost, where that changes.
        channels_lost: Option<bool>,
    },
    /// Leader's border of retention: no later leader gives messages before it to a channel.
    Agreed {
        at: Position,
    },
    /// Result of a synchronous cursor operation. On an error the operation is taken back: the channel returns to its place under a
    /// higher generation, and is `Moved`.
    CursorDone {
        request: u64,
        result: Result<(), ReplicaError>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Channels {
    All,
    Some(Vec<ChannelName>),
}

/// Loss that a leader would take if it continued with the available data: the bytes between the two offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    pub kind: LossKind,
    pub from: Position,
    /// End of the loss, as far as it is known.
    pub to: Position,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossKind {
    /// The log would end at `from`: the replicas that have more are away.
    Tail,
    /// A loss like `Tail` whose bytes no available replica knows.
    Unknown,
    /// Damage that no other replica mends; the log behind it stays.
    Damage,
    /// A replica outside the ISR has it, which stays out as long as it keeps that.
    StaysOut,
}

impl Loss {
    /// Name of the loss, which an operator repeats to accept it.
    pub fn name(&self) -> String {
        format!("{}-{}", self.from.offset, self.to.offset)
    }
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (from, to, messages) = (self.from.offset, self.to.offset, self.to.count - self.from.count);
        match self.kind {
            LossKind::Tail => write!(
                f,
                "the log would end at offset {from}: acknowledged messages from there on are lost, and reach to offset {to} at least \
                 ({messages} messages)"
            ),
            LossKind::Unknown => write!(
                f,
                "the log would end at offset {from}, and every replica that answered lost data at its recovery: acknowledged messages \
                 behind that offset are lost (known up to offset {to})"
            ),
            LossKind::StaysOut => write!(
                f,
                "the log went on at offset {from} without data that a replica outside the ISR knows to be committed, up to offset {to}: \
                 the replica removes its copy and begins anew"
            ),
            LossKind::Damage => {
                write!(f, "channels would pass over the damaged messages from offset {from} to {to} ({messages} messages)")
            }
        }
    }
}

/// News that an operator must act on: nothing goes on by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Alarm {
    #[error("every in-sync replica that answered lost data at its recovery: start the others, or accept the loss")]
    OnlySuspects,
    #[error("the best log available lacks committed data (up to offset {}): keep and start the other in-sync replicas, or accept the loss",
        committed.offset)]
    CommittedMissing { committed: Position },
    #[error("the leader's log ends before the committed end of this replica (offset {}): this replica does not truncate", committed.offset)]
    BelowCommitted { committed: Position },
    #[error(
        "a replica that stays out of the ISR has committed data (up to offset {}) that this leader lacks: rescue that data, or accept \
         the loss; then the replica begins anew", committed.offset
    )]
    StaysOut { node: NodeId, committed: Position },
    #[error("the bytes from offset {} to {} are damaged, and no other replica has supplied them: start the others, or accept the loss",
        from.offset, to.offset)]
    Damaged { from: Position, to: Position },
}

impl Alarm {
    /// The alarm's text with the name of the node that it is about.
    pub fn text(&self, nodes: &[ClusterNode]) -> String {
        match self {
            Alarm::StaysOut { node, .. } => format!("node {}: {self}", name_of(nodes, *node)),
            _ => self.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_without_settings_are_those_of_the_settings() {
        assert_eq!(ReplicaOptions::from(&Settings::default()), ReplicaOptions::default());
        let settings = Settings { catch_up_rate: 7, follower_limit_ms: 1500, ..Settings::default() };
        let options = ReplicaOptions::from(&settings);
        assert_eq!((options.catch_up_bytes_per_second, options.follower_limit), (7, Duration::from_millis(1500)));
    }
}
