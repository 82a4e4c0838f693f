//! The bytes of the node's files, and the types for them: headers, batches, positions, cursors, snapshots, records of the journal.
//!
//! Layouts, their checks, and the mechanism of decision tables. `journal` and `log` write and recover the files; `codec` sends some of
//! the structures to peers and clients.
//!
//! | file | its concept |
//! |---|---|
//! | files | headers of segments, commit logs, snapshots, meta files; magic, version and crc of each |
//! | batch | messages that are stored and replicated together |
//! | tail | ends of a log, and the identity of a batch |
//! | cursor | a channel's cursor and its confirmed intervals |
//! | producer | an idempotent producer |
//! | intervals | ranges of log ids, packed |
//! | epochs | where the epochs of a log end |
//! | snapshot | a partition's state beside its log |
//! | segment_table | the segments before one, in its header block |
//! | meta | topic.meta and node.meta |
//! | journal | checkpoint slots, writes and records of the journal |
//! | decision | decision tables as data |
//! | storage | the files as recovery reads and repairs them |

pub mod batch;
pub mod cursor;
pub mod decision;
pub mod epochs;
pub mod files;
pub mod intervals;
pub mod journal;
pub mod meta;
pub mod producer;
pub mod segment_table;
pub mod snapshot;
pub mod storage;
pub mod tail;
