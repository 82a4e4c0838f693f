//! Load of the partitions that this node leads, as the controller is told it: seldom, and only when it has changed by much.
//!
//! The key stands under the node's lease, so it goes with the node. A write that fails is not repeated: the next one says more.

use super::{Agent, Effect, Purpose};
use crate::base::{Ticks, TopicName};
use crate::metadata::keys::Key;
use crate::metadata::record::{LoadRecord, PartitionLoad, encode};
use crate::metadata::request::{Compare, Op, Request, Txn};
use std::time::Duration;

/// Partitions that are named.
const BUSIEST_MAX: usize = 8;
/// Pause between two records.
const PAUSE: Duration = Duration::from_secs(60);
/// A smaller change of the sum is none.
const CHANGE_KIB_PER_S: u32 = 256;

#[derive(Debug, Default)]
pub(super) struct Published {
    session: u64,
    kib_per_s: u32,
    next: Ticks,
}

impl Published {
    /// Whether the sum differs by a quarter, and by more than noise. Nothing at all needs no record.
    fn is_news(&self, now: Ticks, session: u64, kib_per_s: u32) -> bool {
        if self.session != session {
            return kib_per_s >= CHANGE_KIB_PER_S;
        }
        let change = self.kib_per_s.abs_diff(kib_per_s);
        now >= self.next && change >= CHANGE_KIB_PER_S && change >= self.kib_per_s / 4
    }
}

impl Agent {
    pub(super) fn load(&mut self, now: Ticks, loads: &[(TopicName, u16, u32)], out: &mut Vec<Effect>) {
        let (Some(session), Some(lease)) = (self.session.live(), self.session.lease()) else { return };
        let kib_per_s = loads.iter().fold(0u32, |sum, (_, _, one)| sum.saturating_add(*one));
        if !self.published.is_news(now, session, kib_per_s) {
            return;
        }
        self.published = Published { session, kib_per_s, next: now + PAUSE };
        let known = loads.iter().filter_map(|(name, partition, kib_per_s)| {
            let topic = self.view.topic(name)?.value.info.id;
            Some(PartitionLoad { topic, partition: *partition, kib_per_s: *kib_per_s })
        });
        let mut busiest: Vec<PartitionLoad> = known.filter(|load| load.kib_per_s > 0).collect();
        busiest.sort_by_key(|load| std::cmp::Reverse((load.kib_per_s, load.topic, load.partition)));
        busiest.truncate(BUSIEST_MAX);
        let layout = self.view.layout();
        let compares = vec![
            Compare::Value { key: layout.key(&Key::Id), is: self.view.cluster_value().clone() },
            Compare::CreateRevision { key: layout.key(&Key::Node(self.options.me)), is: session },
        ];
        let key = layout.key(&Key::Load(self.options.me));
        let value = encode(&LoadRecord { kib_per_s, busiest });
        let txn = Txn { compares, then: vec![Op::Put { key, value, lease: Some(lease) }], otherwise: vec![] };
        self.send(now, Purpose::Load, Request::Txn(txn), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_when_the_sum_has_changed_by_much() {
        const SECOND: u64 = 1_000_000_000;
        let now = |seconds: u64| Ticks(seconds * SECOND);
        let first = Published::default();
        assert!(!first.is_news(now(1), 5, 255) && first.is_news(now(1), 5, 256), "an idle node writes nothing");
        let told = Published { session: 5, kib_per_s: 4000, next: now(60) };
        assert!(!told.is_news(now(59), 5, 9000), "seldom");
        assert!(!told.is_news(now(60), 5, 4900) && !told.is_news(now(60), 5, 3100));
        assert!(told.is_news(now(60), 5, 5000) && told.is_news(now(60), 5, 3000) && told.is_news(now(60), 5, 0));
        assert!(told.is_news(now(1), 6, 4000), "the record of another session is gone");
        let little = Published { session: 5, kib_per_s: 100, next: now(60) };
        assert!(!little.is_news(now(60), 5, 300));
    }
}
