//! Check that a connection's acknowledged publishes to a partition stand there in the order of its commands.

use super::book::Book;
use crate::base::LogId;
use std::collections::BTreeMap;

/// Acknowledged messages of each connection, in the order in which it published them.
#[derive(Default)]
pub struct Sequence {
    published: BTreeMap<u64, Vec<usize>>,
}

impl Book {
    /// The next messages of a connection are acknowledged.
    pub fn acknowledged_next(&mut self, conn: u64, messages: &[usize]) {
        self.sequence.published.entry(conn).or_default().extend(messages);
    }

    pub(super) fn a_connection_keeps_its_order(&self) {
        for (conn, messages) in &self.sequence.published {
            let mut last: BTreeMap<(usize, u16), (LogId, usize)> = BTreeMap::new();
            for &n in messages {
                let Some(at) = self.place(n) else { continue };
                let key = (self.topic_of(n), at.partition.0);
                let before = last.insert(key, (at.log_id, n));
                assert!(
                    before.is_none_or(|(id, _)| id < at.log_id),
                    "a_connection_keeps_its_order: connection {conn} published {before:?}, then message {n}, which stands at {at:?}"
                );
            }
        }
    }
}
