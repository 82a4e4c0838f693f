//! Load of the partitions that this node leads, reported to its coordinator once a minute: the controller balances by it.

use super::Node;
use super::statistics::ask_all;
use crate::base::TopicName;
use crate::coordinator::hub::ToCoordinator;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A look costs each core a pass over its channels, as a scrape of metrics does.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Bytes published so far by topic and partition.
type Bytes = HashMap<(String, u16), u64>;

pub async fn tell(node: Rc<Node>) {
    let Some(hub) = node.around.hub.clone() else { return };
    let (mut before, mut at) = (led(&node).await, Instant::now());
    loop {
        sleep(LOOK_EVERY).await;
        let (now, seconds) = (led(&node).await, at.elapsed().as_secs().max(1));
        at = Instant::now();
        hub.send(ToCoordinator::Load(rates(&before, &now, seconds)));
        before = now;
    }
}

async fn led(node: &Node) -> Bytes {
    let shards = ask_all(node, None, None, false).await;
    let partitions = shards.into_iter().flat_map(|shard| shard.partitions);
    let led = partitions.filter(|p| p.replication.as_ref().is_some_and(|r| r.role == "leader"));
    led.map(|p| ((p.topic, p.partition), p.message_bytes)).collect()
}

/// A partition that was not led before counts from the next look on.
fn rates(before: &Bytes, now: &Bytes, seconds: u64) -> Vec<(TopicName, u16, u32)> {
    let rate = |((topic, partition), bytes): (&(String, u16), &u64)| {
        let published = bytes.saturating_sub(*before.get(&(topic.clone(), *partition))?);
        let kib_per_s = u32::try_from(published / seconds / 1024).unwrap_or(u32::MAX);
        Some((TopicName::new(topic).ok()?, *partition, kib_per_s)).filter(|_| kib_per_s > 0)
    };
    now.iter().filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_what_came_since_the_last_look() {
        let bytes = |all: &[(&str, u16, u64)]| all.iter().map(|(t, p, b)| ((t.to_string(), *p), *b)).collect::<Bytes>();
        let before = bytes(&[("t", 0, 1 << 20), ("t", 1, 5), ("gone", 0, 7)]);
        let now = bytes(&[("t", 0, 61 << 20), ("t", 1, 5), ("new", 0, 9 << 30)]);
        assert_eq!(rates(&before, &now, 60), [(TopicName::new("t").unwrap(), 0, 1024)]);
        assert_eq!(rates(&now, &before, 60), [], "a node that began anew");
    }
}
