//! Searches of commit logs, and who waits for their answers: a native client that finds a place or subscribes at one, and
//! whoever sets an offset.

use super::engine::Engine;
use super::offsets::Setter;
use super::outbox::Heard;
use super::partitions::ChannelKey;
use crate::base::{ConnId, IdMap, LogId, Now, Position};
use crate::codec::native::{Code, Retry, Start};
use crate::log::{PartitionIdx, SearchBy};
use crate::seam::message::{SetOffset, SubOptions};
use crate::seam::outcome::SetOffsetError;
use crate::session::native::{Failure, NativeAnswer, NativeSubscribe};

/// A search whose answer somebody waits for.
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
    fn begin(&mut self, finding: Finding) -> u64 {
        self.last += 1;
        self.open.insert(self.last, finding);
        self.last
    }

    fn end(&mut self, token: u64) -> Option<Finding> {
        self.open.remove(&token)
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

impl Engine {
    /// Starts the search for a place that the commit logs know.
    pub(super) fn search(&mut self, by: SearchBy, finding: Finding) {
        let idx = finding.idx;
        let token = self.searches.begin(finding);
        self.store.search(idx, by, token, self.outbox.io());
    }

    /// The answer of a search: the start of a batch at or before the place, or nothing by time.
    pub fn on_found(&mut self, now: Now, token: u64, result: Result<Option<Position>, crate::base::DiskError>) {
        let Some(Finding { conn, idx, start, what }) = self.searches.end(token) else { return };
        let end = self.partitions.get(idx).committed();
        // By time the first batch is found whose base is not before it; the one before may end with messages of that time.
        if let (Start::Timestamp(_), Ok(batch)) = (start, &result) {
            let before = batch.map_or(end, |b| b).offset - 1;
            if before >= self.store.start(idx).offset {
                let finding = Finding { conn, idx, start: Start::Offset(before), what };
                return self.search(SearchBy::Offset(before), finding);
            }
        }
        let what = match what {
            FindingFor::Set { key, set, setter } => {
                return match result {
                    Ok(batch) => self.offset_found(now, key, set, setter, batch.unwrap_or(end)),
                    Err(_) => self.tell_setter(setter, Err(SetOffsetError::Unreadable)),
                };
            }
            what => what,
        };
        let found = match result {
            Ok(Some(batch)) => Ok(inside(batch, start, end)),
            Ok(None) => Ok(end),
            Err(error) => Err(Failure::new(Code::Other, Retry::Later, format!("the commit log cannot be read: {error}"))),
        };
        let Some(conn) = conn else { return };
        match what {
            FindingFor::Set { .. } => {}
            FindingFor::Find { request } => {
                let answer = found.map_or_else(NativeAnswer::Failed, |at| NativeAnswer::Found { at });
                self.outbox.tell(conn, Heard::Native(request, answer));
            }
            FindingFor::Subscribe { subscribe, options } => {
                let request = subscribe.request;
                let done = found.and_then(|at| self.native_attach(now, conn, idx, &subscribe, options, Some(at)));
                if let Err(failure) = done {
                    self.outbox.tell(conn, Heard::Native(request, NativeAnswer::Failed(failure)));
                }
            }
        }
    }

    /// The same, for a channel that is to stand there.
    pub(super) fn search_offset(&mut self, by: SearchBy, key: ChannelKey, set: SetOffset, setter: Setter) {
        let start = set.to;
        self.search(by, Finding { conn: None, idx: key.partition_idx(), start, what: FindingFor::Set { key, set, setter } });
    }

    /// Position of a `start` that needs no search.
    pub(super) fn place_of(&self, idx: PartitionIdx, start: Start) -> Result<Option<Position>, SearchBy> {
        let committed = self.partitions.get(idx).committed();
        let oldest = self.store.start(idx);
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
