//! Decides place and time of a partition's writes to its segments and commit logs, and the meaning of the bytes found there.
//!
//! Pure. One [`Store`](store::Store) lives on each core and owns the logs of the core's partitions.

mod admission;
mod ahead;
pub mod append;
mod borders;
pub mod cache;
pub mod chain;
pub mod checkpoint;
pub mod confirmed;
mod core_logs;
mod damage;
mod deletes;
mod eviction;
pub mod facts;
pub mod failure;
pub mod fetch;
pub mod flush;
mod follow;
mod hold;
mod journaled;
mod lend;
pub mod memory;
mod mend;
pub mod native;
pub mod notice;
mod open_batch;
pub mod partition;
mod pieces;
mod producer_tables;
pub mod producers;
pub mod progress;
pub mod read;
mod reader;
mod reading;
mod recent;
pub mod recovery;
mod removal;
mod replica_state;
pub mod retention;
mod rounds;
pub mod scrub;
pub mod search;
mod segments;
pub mod space;
pub mod state;
pub mod store;
mod topic_files;
pub mod truncate;
mod turn;
pub mod verbatim;
pub mod view;
pub mod writer;

pub use fetch::Fetch;
pub use lend::Lender;
pub use native::{BadBody, BodyInfo, BodyLimits, NativeBatch};
pub use notice::{
    AppendError, AppendTicket, Appended, BatchRefusal, CursorSource, Io, LogStats, NotAppended, Notice, PartitionIdx,
    RecordTicket, Refusal, SearchBy, StoreOptions,
};
pub use producers::{ProducerLimits, Producers};
pub use store::Store;
pub use verbatim::Unreadable;
pub use view::View;

#[cfg(test)]
mod tests;
