//! Searches of commit logs, and the clients that wait for their answers: a native client that finds a place or subscribes at one, or a
//! set offset.

use super::offsets::Setter;
use super::partitions::{ChannelKey, Partitions};
use crate::base::{ConnId, DiskError, IdMap, LogId, Position};
use crate::codec::native::Start;
use crate::log::{Io, PartitionIdx, SearchBy, Store};
use crate::seam::message::{SetOffset, SubOptions};
use crate::session::native::NativeSubscribe;

/// A search with a waiting client.
#[derive(Debug)]
pub(super) struct Finding {
    /// The connection that waits: the search goes with it. `None`: another core waits.
    pub conn: Option<ConnId>,
    pub idx: PartitionIdx,
    pub start: Start,
    pub what: FindingFor,
}

#[derive(Debug)]
pub(super) enum FindingFor {
    Find { request: u64 },
    Subscribe { subscribe: NativeSubscribe, options: SubOptions },
    Set { key: ChannelKey, set: SetOffset, setter: Setter },
}

#[derive(Default)]
pub(super) struct Searches {
    /// Searches by the token of the store's answer.
    open: IdMap<u64, Finding>,
    last: u64,
}

impl Searches {
    /// Starts the search for a place that the commit logs know.
    pub fn begin(&mut self, by: SearchBy, finding: Finding, store: &mut Store, io: &mut Io) {
        self.last += 1;
        store.search(finding.idx, by, self.last, io);
        self.open.insert(self.last, finding);
    }

    /// The store has found the start of a batch at or before the place, or nothing by time. `None`: no client waits, or the search goes
    /// on: for a channel that moves to the place, the batch is read to find the border of its message.
    pub fn end(
        &mut self,
        token: u64,
        result: Result<Option<Position>, DiskError>,
        partitions: &Partitions,
        store: &mut Store,
        io: &mut Io,
    ) -> Option<(Finding, Result<Position, DiskError>)> {
        let finding = self.open.remove(&token)?;
        let (idx, end) = (finding.idx, partitions.get(finding.idx).committed());
        // By time the first batch is found whose base is not before it; the one before may end with messages of that time.
        if let (Start::Timestamp(_), Ok(batch)) = (finding.start, &result) {
            let before = batch.map_or(end, |b| b).offset - 1;
            if before >= store.start(idx).offset {
                let start = Start::Offset(before);
                self.begin(SearchBy::Offset(before), Finding { start, ..finding }, store, io);
                return None;
            }
        }
        let found = result.map(|batch| match (batch, &finding.what) {
            (None, _) => end,
            (Some(batch), FindingFor::Set { .. }) => batch,
            (Some(batch), FindingFor::Find { .. } | FindingFor::Subscribe { .. }) => inside(batch, finding.start, end),
        });
        Some((finding, found))
    }

    /// Whether a search is under way in the partition.
    pub fn is_any_in(&self, idx: PartitionIdx) -> bool {
        self.open.values().any(|f| f.idx == idx)
    }

    /// Searches that the connection waits for.
    pub fn count(&self, conn: ConnId) -> usize {
        self.open.values().filter(|f| f.conn == Some(conn)).count()
    }

    /// Whether the connection waits to subscribe under this number.
    pub fn is_subscribing(&self, conn: ConnId, number: u32) -> bool {
        self.open.values().any(|f| f.subscribes(conn, number))
    }

    /// Gives up the search with which the connection subscribes. Returns the request that waits.
    pub fn give_up(&mut self, conn: ConnId, number: u32) -> Option<u64> {
        let token = self.open.iter().find(|(_, f)| f.subscribes(conn, number)).map(|(&token, _)| token)?;
        match self.open.remove(&token)?.what {
            FindingFor::Subscribe { subscribe, .. } => Some(subscribe.request),
            FindingFor::Find { .. } | FindingFor::Set { .. } => None,
        }
    }

    /// The connection is gone.
    pub fn forget(&mut self, conn: ConnId) {
        self.open.retain(|_, f| f.conn != Some(conn));
    }
}

impl Finding {
    fn subscribes(&self, conn: ConnId, number: u32) -> bool {
        let is_number = matches!(&self.what, FindingFor::Subscribe { subscribe, .. } if subscribe.subscription == number);
        is_number && self.conn == Some(conn)
    }
}

/// Position of a `start` that needs no search.
pub(super) fn place_of(
    store: &Store,
    partitions: &Partitions,
    idx: PartitionIdx,
    start: Start,
) -> Result<Option<Position>, SearchBy> {
    let committed = partitions.get(idx).committed();
    let oldest = store.start(idx);
    Ok(match start {
        Start::Default => None,
        Start::Oldest => Some(oldest),
        Start::Newest => Some(committed),
        Start::Offset(offset) if offset >= committed.offset => Some(committed),
        Start::Offset(offset) if offset <= oldest.offset => Some(oldest),
        Start::Offset(offset) => return Err(SearchBy::Offset(offset)),
        Start::Count(count) if count >= committed.count => Some(committed),
        Start::Count(count) if count <= oldest.count => Some(oldest),
        Start::Count(count) => return Err(SearchBy::Count(count)),
        Start::LogId(id) if id >= committed.log_id => Some(committed),
        Start::LogId(id) if id <= oldest.log_id => Some(oldest),
        Start::LogId(id) => return Err(SearchBy::LogId(id)),
        Start::Timestamp(unix_ns) => return Err(SearchBy::UnixNs(unix_ns)),
    })
}

/// The place inside a batch that begins at `batch`; ids and counts of a batch are dense.
fn inside(batch: Position, start: Start, end: Position) -> Position {
    let skip = match start {
        Start::LogId(LogId(id)) => id.saturating_sub(batch.log_id.0),
        Start::Count(count) => (count - batch.count).max(0) as u64,
        _ => 0,
    };
    if batch.log_id.0 + skip >= end.log_id.0 {
        return end;
    }
    Position { offset: batch.offset, count: batch.count + skip as i64, log_id: LogId(batch.log_id.0 + skip) }
}
