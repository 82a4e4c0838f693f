//! Behaviour below `min_isr`: the replicas that are left answer for nothing that the next leader may not have.

use super::*;
use crate::base::{ChannelName, LogId};
use crate::codec::native::{IdRange, Request, SetOffset as NativeSet, Start as NativeStart};
use crate::{
    codec::native::Start,
    seam::{
        message::{ChangeChannel, ChannelChange, SetOffset, SetOrder, Ticket},
        outcome::{SetOffsetError, Unwritable},
    },
};

const TOO_FEW: PublishError = PublishError::NotWritable(Unwritable::IsrTooSmall);
const WHY: &str = "the partition accepts no write: too few replicas are in sync";

/// State of a channel: name, generation, first message that is not confirmed, whether it is paused and ordered.
type Shape = (String, u64, LogId, bool, bool);

impl Net {
    /// The store, which takes no proposal from now on, has so many of the nodes in sync.
    pub(super) fn in_sync(&mut self, nodes: usize) {
        self.is_store_there = false;
        self.change(0, |m| m.isr = (0..nodes).map(id_of_node).collect());
    }

    /// Makes an operator's change at node 0 and returns its answer.
    fn operate(&mut self, message: MeshMessage) -> Result<(), SetOffsetError> {
        self.nodes[0].http.clear();
        self.step(0, 0, Event::Mesh { from: CoreId::HTTP, message });
        self.run();
        let heard = self.nodes[0].http.drain(..).find_map(|m| match m {
            MeshMessage::ChannelChanged { result, .. } => Some(result.map(drop)),
            MeshMessage::OffsetSet { result, .. } => Some(result.map(drop)),
            MeshMessage::OrderSet { result, .. } => Some(result),
            _ => None,
        });
        heard.expect("it is answered")
    }

    /// All operations of an operator on a channel, by name.
    fn operations(&self, channel: &str) -> Vec<(String, MeshMessage)> {
        let (topic, channel) = (self.topic.clone(), ChannelName::new(channel).expect("valid"));
        let (ticket, partition) = (Ticket(1), PartitionId(0));
        let create = ChannelChange::Create { first: Some(true), is_alone: true };
        let changes = [ChannelChange::Pause, ChannelChange::Unpause, ChannelChange::Delete, create].map(|change| {
            let set = Box::new(ChangeChannel { topic: topic.clone(), partition, channel: channel.clone(), change });
            (format!("{change:?}"), MeshMessage::ChangeChannel { ticket, set })
        });
        let set =
            SetOffset { topic: topic.clone(), partition, channel: channel.clone(), to: Start::Newest, from: None, force: true };
        let order = SetOrder { topic, partition, channel, ordered: true };
        let others = [
            ("offset".to_owned(), MeshMessage::SetOffset { ticket, set: Box::new(set) }),
            ("order".to_owned(), MeshMessage::SetOrder { ticket, set: Box::new(order) }),
        ];
        changes.into_iter().chain(others).collect()
    }

    pub(super) fn make_ordered(&mut self, channel: &str) {
        let (_, order) = self.operations(channel).pop().expect("the last one");
        assert_eq!(self.operate(order), Ok(()));
    }

    /// States of every channel, by node.
    fn channels(&self) -> Vec<Vec<Shape>> {
        let of = |node: usize| {
            let channels = self.partition(node, 0).channels.iter().map(|(_, c)| {
                let m = &c.machine;
                (c.name.to_string(), m.generation(), m.confirmed().log_id, m.is_paused(), m.is_ordered())
            });
            channels.collect()
        };
        (0..3).map(of).collect()
    }
}

#[test]
fn an_ordered_fin_is_refused_and_its_message_stays_in_flight() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..2).for_each(|i| net.publish(p, &i.to_string()));
    net.subscribe(0, "ch", 0);
    net.make_ordered("ch");
    let (c, got) = net.subscribe(0, "ch", 1);
    let (plain, others) = net.subscribe(0, "plain", 9);
    net.publish(p, "2");
    let others = [others, net.take(plain)].concat();
    net.in_sync(1);
    let before = net.channels();
    net.finish(c, &got);
    let id = got[0].split(' ').next().expect("an id");
    assert_eq!(net.take(c), [format!("E_FIN_FAILED FIN {id} failed {WHY}")]);
    assert_eq!(net.channels(), before);
    net.finish(plain, &others);
    net.pass_time(Duration::from_secs(1));
    assert!(net.take(plain).is_empty() && !others.is_empty(), "nobody waits for an ordinary one");
    assert!((0..3).all(|i| net.cursors(i)["plain"] == 4), "{:?}", net.channels());
    net.in_sync(2);
    net.finish(c, &got);
    assert_eq!(bodies(&net.take(c)), ["1"], "the same FIN is taken, and the next message comes");
}

#[test]
fn a_sub_is_refused_where_it_changes_a_channel_that_others_have() {
    let mut net = Net::new();
    net.subscribe(0, "ch", 0);
    net.in_sync(1);
    let before = net.channels();
    for sub in ["SUB t new\n", "SUB_ORDERED t ch\n"] {
        let c = net.connect(0);
        net.send(c, sub.as_bytes());
        assert_eq!(net.take(c), [format!("E_FAILED_ON_NOT_WRITABLE SUB failed {WHY}")], "{sub}");
        assert!(net.closed.contains(&c));
    }
    assert_eq!(net.channels(), before);
    net.subscribe(0, "ch", 0);
    net.subscribe(0, "own#ephemeral", 0);
}

#[test]
fn what_an_operator_asks_for_is_refused_and_nothing_has_changed() {
    let mut net = Net::new();
    net.subscribe(0, "ch", 0);
    net.in_sync(1);
    let before = net.channels();
    for channel in ["ch", "new"] {
        for (name, message) in net.operations(channel) {
            let is_there = channel == "ch";
            let (is_create, told) = (name.starts_with("Create"), net.operate(message));
            let expected = match (is_create, is_there) {
                (true, true) => Ok(()),
                (false, false) => Err(SetOffsetError::NoChannel),
                _ => Err(SetOffsetError::Failed(TOO_FEW)),
            };
            assert_eq!(told, expected, "{name} {channel}");
        }
    }
    assert_eq!(net.channels(), before);
    net.in_sync(2);
    net.pass_time(RECONNECT);
    for (name, message) in net.operations("ch") {
        assert_eq!(net.operate(message), Ok(()), "{name}");
    }
}

#[test]
fn a_native_client_is_refused_and_may_ask_again_later() {
    let mut net = Net::new();
    let p = net.connect_native(0);
    (1..3).for_each(|i| net.produce(p, i + 1, i));
    net.subscribe(0, "plain", 0);
    net.subscribe_native(p, 9, true);
    net.ask(p, 0, &Request::Credit { subscription: 1, messages: 9, bytes: 1 << 20 }, b"");
    net.hear(p);
    net.in_sync(1);
    let before = net.channels();
    let one = |id| vec![IdRange { first: LogId(id), last: LogId(id) }];
    let set = NativeSet { topic: "t", partition: PartitionId(0), channel: "ch", start: NativeStart::Newest, force: false };
    net.ask(p, 10, &Request::Finish { subscription: 1, ranges: one(1) }, b"");
    net.ask(p, 0, &Request::Finish { subscription: 1, ranges: one(1) }, b"");
    net.ask(p, 11, &Request::SetOffset(set), b"");
    let other = net.connect_native(0);
    net.ask_to_subscribe(other, 12, "new", false);
    net.ask_to_subscribe(other, 13, "plain", true);
    let told = [net.hear(p), net.hear(other)].concat();
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told.iter().all(|s| s.contains("code: ReadOnly, retry: Later") && s.contains(WHY)), "{told:?}");
    assert_eq!(net.channels(), before);
    net.in_sync(2);
    net.ask(p, 14, &Request::Finish { subscription: 1, ranges: one(1) }, b"");
    let told = net.hear(p);
    assert!(told.iter().any(|s| s.starts_with("14 Done { num: 1 }")), "{told:?}");
}

/// The change was begun when enough replicas were in sync; those that are left are too few to make it final.
#[test]
fn what_was_under_way_is_not_final_before_enough_are_in_sync_again() {
    let mut net = Net::new();
    net.subscribe(0, "ch", 0);
    (1..3).for_each(|i| net.nodes[i].is_slow = true);
    let (_, pause) = net.operations("ch").swap_remove(0);
    net.step(0, 0, Event::Mesh { from: CoreId::HTTP, message: pause });
    net.run();
    net.nodes[0].http.clear();
    net.in_sync(1);
    let answers = |net: &Net| net.nodes[0].http.iter().filter(|m| matches!(m, MeshMessage::ChannelChanged { .. })).count();
    assert_eq!(answers(&net), 0);
    net.nodes[1].is_slow = false;
    net.run();
    assert_eq!(answers(&net), 0);
    net.in_sync(2);
    assert_eq!(answers(&net), 1);
}

/// A load balancer leaves the node in: no other one takes more, and this one forwards what others lead.
#[test]
fn partitions_that_take_no_publish_are_told_and_leave_the_node_well() {
    let mut net = Net::with(1, 2, Settings::default());
    let health = |net: &Net, node: usize| {
        let stats = net.nodes[node].shards[0].stats(net.now.ticks, None, None, false);
        crate::metrics::node::ping(&[stats], &Default::default())
    };
    assert_eq!(health(&net, 0), ("OK".into(), true));
    net.in_sync(1);
    let why = "OK - 1 partition that this node leads takes no publish: t/0: 1 replicas are in sync, and a write needs 2";
    assert_eq!((health(&net, 0), health(&net, 1)), ((why.into(), true), ("OK".into(), true)));
    net.in_sync(3);
    assert_eq!(health(&net, 0), ("OK".into(), true));
    let p = net.connect(0);
    net.nodes[0].disk.faults.no_space = 1.0;
    for _ in 0..200 {
        net.publish(p, &"x".repeat(100_000));
    }
    let (full, serves) = health(&net, 0);
    assert!(serves && full.starts_with("OK - core 0: the disk is full: "), "{full}");
}
