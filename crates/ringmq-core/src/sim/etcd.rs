//! A metadata store in memory that answers as etcd does: one history of revisions, compare-and-swap, leases, watches that can be compacted.
//!
//! It is linearizable and keeps its answers true. Late, repeated and lost answers are made by the carrier of the requests.

use crate::metadata::request::{Answer, Change, Compare, Failure, KeyValue, LeaseId, Listing, Op, Outcome, Request, Txn};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    /// Nanoseconds of the store's clock.
    ends: u64,
}

#[derive(Debug, Default)]
pub struct Etcd {
    revision: u64,
    keys: BTreeMap<Bytes, KeyValue>,
    leases: BTreeMap<LeaseId, Lease>,
    given: LeaseId,
    history: Vec<Change>,
    /// Events below are forgotten.
    compacted: u64,
    pub txns: u64,
}

impl Etcd {
    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.keys.get(key)
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.keys.values().map(|kv| kv.key.len() + kv.value.len()).sum()
    }

    pub fn carry(&mut self, now: u64, request: &Request) -> Outcome {
        self.expire(now);
        match request {
            Request::List => {
                Ok(Answer::Listed(Listing { revision: self.revision, entries: self.keys.values().cloned().collect() }))
            }
            Request::Txn(txn) => self.txn(txn),
            Request::Grant { ttl } => {
                self.given += 1;
                self.leases.insert(self.given, Lease { ttl: *ttl, ends: now + ttl.as_nanos() as u64 });
                Ok(Answer::Granted { lease: self.given, ttl: *ttl })
            }
            Request::Renew { lease } => {
                let renewed = self.leases.get_mut(lease).map(|l| {
                    l.ends = now + l.ttl.as_nanos() as u64;
                    l.ttl
                });
                Ok(Answer::Renewed { ttl: renewed })
            }
            Request::Revoke { lease } => {
                self.end(*lease);
                Ok(Answer::Revoked)
            }
        }
    }

    /// Leases end with their keys, all of a lease at one revision.
    pub fn expire(&mut self, now: u64) {
        let ended: Vec<LeaseId> = self.leases.iter().filter(|(_, l)| l.ends <= now).map(|(id, _)| *id).collect();
        ended.into_iter().for_each(|id| self.end(id));
    }

    /// All leases end at once: the store was asleep.
    pub fn end_all_leases(&mut self) {
        let all: Vec<LeaseId> = self.leases.keys().copied().collect();
        all.into_iter().for_each(|id| self.end(id));
    }

    /// All leases begin anew: another member of the store keeps their time.
    pub fn extend_all_leases(&mut self, now: u64) {
        self.leases.values_mut().for_each(|l| l.ends = now + l.ttl.as_nanos() as u64);
    }

    fn end(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
        let keys: Vec<Bytes> = self.keys.values().filter(|kv| kv.lease == Some(lease)).map(|kv| kv.key.clone()).collect();
        if !keys.is_empty() {
            self.revision += 1;
            keys.into_iter().for_each(|key| self.delete(key));
        }
    }

    fn delete(&mut self, key: Bytes) {
        if self.keys.remove(&key).is_some() {
            self.history.push(Change::Deleted { key, mod_revision: self.revision });
        }
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::CreateRevision { key, is } => self.keys.get(key).map_or(0, |kv| kv.create_revision) == *is,
            Compare::ModRevision { key, is } => self.keys.get(key).map_or(0, |kv| kv.mod_revision) == *is,
            Compare::Value { key, is } => self.keys.get(key).is_some_and(|kv| kv.value == *is),
        }
    }

    fn txn(&mut self, txn: &Txn) -> Outcome {
        const MAX: usize = crate::metadata::request::TXN_OPS_MAX;
        assert!(
            txn.compares.len() <= MAX && txn.then.len() <= MAX && txn.otherwise.len() <= MAX,
            "etcd takes no more: {}",
            txn.then.len()
        );
        let succeeded = txn.compares.iter().all(|c| self.holds(c));
        let ops = if succeeded { &txn.then } else { &txn.otherwise };
        let lacks = |op: &&Op| matches!(op, Op::Put { lease: Some(lease), .. } if !self.leases.contains_key(lease));
        if ops.iter().any(|op| lacks(&op)) {
            return Err(Failure::Refused("requested lease not found".into()));
        }
        self.txns += 1;
        if ops.iter().any(|op| !matches!(op, Op::Get { .. })) {
            self.revision += 1;
        }
        let mut reads = vec![];
        for op in ops {
            match op {
                Op::Put { key, value, lease } => {
                    let create_revision = self.keys.get(key).map_or(self.revision, |kv| kv.create_revision);
                    let (key, value, mod_revision) = (key.clone(), value.clone(), self.revision);
                    let kv = KeyValue { key, value, create_revision, mod_revision, lease: *lease };
                    self.history.push(Change::Put(kv.clone()));
                    self.keys.insert(kv.key.clone(), kv);
                }
                Op::Delete { key } => self.delete(key.clone()),
                Op::DeletePrefix { prefix } => {
                    let keys = self.keys.range(prefix.clone()..).map(|(k, _)| k).take_while(|k| k.starts_with(prefix));
                    let keys: Vec<Bytes> = keys.cloned().collect();
                    keys.into_iter().for_each(|key| self.delete(key));
                }
                Op::Get { key } => reads.push(self.keys.get(key).cloned()),
            }
        }
        Ok(Answer::Txn { succeeded, reads, revision: self.revision })
    }

    // ---- watches

    /// Changes from a revision on, in order. `None`: some of them are compacted.
    pub fn changes_from(&self, from: u64) -> Option<Vec<Change>> {
        if from <= self.compacted {
            return None;
        }
        let begin = self.history.partition_point(|c| revision_of(c) < from);
        Some(self.history[begin..].to_vec())
    }

    /// Forgets the events of all revisions up to this one.
    pub fn compact(&mut self, upto: u64) {
        self.compacted = self.compacted.max(upto.min(self.revision));
        let end = self.history.partition_point(|c| revision_of(c) <= self.compacted);
        self.history.drain(..end);
    }
}

pub fn revision_of(change: &Change) -> u64 {
    match change {
        Change::Put(kv) => kv.mod_revision,
        Change::Deleted { mod_revision, .. } => *mod_revision,
    }
}
