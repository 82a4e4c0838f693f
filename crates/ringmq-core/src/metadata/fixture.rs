//! Records put into a view, for tests.

use super::keys::Key;
use super::request::{Change, KeyValue};
use super::view::View;
use crate::base::{NodeId, TopicId};
use bytes::Bytes;

pub const TOPIC: TopicId = TopicId([9; 16]);

pub fn n(b: u8) -> NodeId {
    NodeId([b; 16])
}

/// The store has had the key since this revision, and the view learns so.
pub fn put(view: &mut View, revision: u64, key: Key, value: Bytes) {
    let key = view.layout().key(&key);
    view.learn(Change::Put(KeyValue { key, value, create_revision: revision, mod_revision: revision, lease: None }));
}
