//! Requests of a node to the metadata store and the store's answers: data only.
//!
//! A revision counts the changes of the whole store. Every key has the revision of its creation and the revision of its last change.

use bytes::Bytes;
use std::time::Duration;

/// The store's name of a lease.
pub type LeaseId = i64;

/// Changes of one key in a transaction, at most. The store refuses more.
pub const TXN_OPS_MAX: usize = 128;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    pub create_revision: u64,
    pub mod_revision: u64,
    /// `None`: it hangs on no lease.
    pub lease: Option<LeaseId>,
}

/// All keys of the prefix, as of one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    pub revision: u64,
    pub entries: Vec<KeyValue>,
}

/// A change of one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    Put(KeyValue),
    Deleted { key: Bytes, mod_revision: u64 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// 0: the key is not there.
    CreateRevision {
        key: Bytes,
        is: u64,
    },
    /// 0: the key is not there.
    ModRevision {
        key: Bytes,
        is: u64,
    },
    Value {
        key: Bytes,
        is: Bytes,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Writes a key. Without a lease the key is taken off the lease that it had.
    Put {
        key: Bytes,
        value: Bytes,
        lease: Option<LeaseId>,
    },
    Delete {
        key: Bytes,
    },
    /// Deletes all keys with the prefix. One operation, whatever their number.
    DeletePrefix {
        prefix: Bytes,
    },
    Get {
        key: Bytes,
    },
}

/// Transaction: all of `then` at one revision if all compares hold, otherwise all of `otherwise`. No key is changed twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Txn {
    pub compares: Vec<Compare>,
    pub then: Vec<Op>,
    pub otherwise: Vec<Op>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Lists all keys of the prefix; every page as of the first page's revision. Linearizable.
    List,
    Txn(Txn),
    Grant {
        ttl: Duration,
    },
    /// Renews a lease once.
    Renew {
        lease: LeaseId,
    },
    Revoke {
        lease: LeaseId,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Listed(Listing),
    /// Answer to a transaction. `reads`: one for each `Get` of the branch that was taken, in its order. `revision`: the store's; a
    /// branch with writes was written at it.
    Txn {
        succeeded: bool,
        reads: Vec<Option<KeyValue>>,
        revision: u64,
    },
    /// Answer to a grant. The store may give another time than the requested one.
    Granted {
        lease: LeaseId,
        ttl: Duration,
    },
    /// `None`: the lease is gone.
    Renewed {
        ttl: Option<Duration>,
    },
    /// The lease is revoked, or was gone before.
    Revoked,
}

/// Reason why a request has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The store has the request and says no: it was not carried out, and never will be.
    #[error("the metadata store refuses: {0}")]
    Refused(String),
    /// The request was not carried out, and never will be: no member of the store was reached.
    #[error("the metadata store does not answer: {0}")]
    Unreached(String),
    /// The request may have been carried out, or may still be: only another compare-and-swap of the same keys shuts it out.
    #[error("the outcome of a request to the metadata store is unknown: {0}")]
    Unknown(String),
}

pub type Outcome = Result<Answer, Failure>;
