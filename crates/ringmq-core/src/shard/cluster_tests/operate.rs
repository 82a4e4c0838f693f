//! An operator pauses, empties and deletes a channel: on every replica, and whoever leads next has it.

use super::*;
use crate::base::ChannelName;
use crate::log::recovery::snapshots::Slots;
use crate::{
    codec::native::Start,
    seam::{
        message::{ChangeChannel, ChannelChange, SetOffset, Ticket},
        outcome::SetOffsetError,
    },
};

pub(super) type SetResult = Result<bool, SetOffsetError>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperationEnd {
    /// Another node leads; that node may have the operation.
    LeaderGoes,
    /// The operation is given up, and taken back.
    NotConfirmed,
    /// The write of its record fails.
    JournalFails,
}

impl Net {
    pub(super) fn ask_change(&mut self, node: usize, change: ChannelChange) {
        self.ask_change_of(node, ChannelName::new("ch").expect("valid"), change);
    }

    pub(super) fn ask_change_of(&mut self, node: usize, channel: ChannelName, change: ChannelChange) {
        let set = Box::new(ChangeChannel { topic: self.topic.clone(), partition: PartitionId(0), channel, change });
        let message = MeshMessage::ChangeChannel { ticket: Ticket(1), set };
        self.step(node, 0, Event::Mesh { from: CoreId::HTTP, message });
        self.run();
    }

    pub(super) fn ask_to_empty(&mut self, node: usize) {
        let (topic, channel) = (self.topic.clone(), ChannelName::new("ch").expect("valid"));
        let set = Box::new(SetOffset { topic, partition: PartitionId(0), channel, to: Start::Newest, from: None, force: true });
        self.step(node, 0, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::SetOffset { ticket: Ticket(1), set } });
        self.run();
    }

    pub(super) fn changed(&mut self, node: usize) -> Option<SetResult> {
        self.nodes[node].http.drain(..).rev().find_map(|m| match m {
            MeshMessage::ChannelChanged { result, .. } => Some(result),
            MeshMessage::OffsetSet { result, .. } => Some(result.map(|_| false)),
            _ => None,
        })
    }

    /// Ends a change of node 0 that node 2 has not confirmed.
    pub(super) fn end_of_change(&mut self, end: OperationEnd) {
        match end {
            OperationEnd::LeaderGoes => self.elect(0, 1),
            OperationEnd::NotConfirmed => {
                self.is_store_there = false;
                self.pass_time(Duration::from_secs(6));
            }
            OperationEnd::JournalFails => {
                self.nodes[0].disk.faults.write_error = 1.0;
                self.nodes[0].is_slow = false;
                self.run();
            }
        }
    }

    pub(super) fn change_channel(&mut self, node: usize, change: ChannelChange) -> SetResult {
        self.ask_change(node, change);
        self.changed(node).expect("it is answered")
    }

    /// A change at node 0 waits for node 2, which is slow: it is taken back, and node 2 comes round.
    fn is_taken_back(&mut self) {
        self.is_store_there = false;
        self.pass_time(Duration::from_secs(12));
        assert_eq!(self.changed(0), Some(Err(SetOffsetError::Failed(PublishError::Unknown))));
        self.nodes[2].is_slow = false;
        self.is_store_there = true;
        self.pass_time(RECONNECT);
    }

    fn generations(&self, node: usize) -> Vec<u64> {
        self.partition(node, 0).channels.iter().map(|(_, c)| c.machine.generation()).collect()
    }

    /// Offset up to which the partition's newest snapshot contains its log.
    fn snapshot_end(&mut self, node: usize) -> i64 {
        let dir = self.partition(node, 0).dir.clone();
        let slots = Slots::read(&mut self.nodes[node].disk, &dir).expect("it can be read");
        slots.newest.map_or(0, |s| s.end.offset)
    }

    pub(super) fn paused(&self, node: usize) -> Vec<bool> {
        self.partition(node, 0).channels.iter().map(|(_, c)| c.machine.is_paused()).collect()
    }
}

#[test]
fn a_pause_holds_on_all_replicas_and_with_the_next_leader() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "0");
    let (_, got) = net.subscribe(0, "ch", 9);
    assert_eq!(bodies(&got), ["0"]);
    let before = net.generations(0);
    assert_eq!(net.change_channel(0, ChannelChange::Pause), Ok(false));
    assert!((0..3).all(|i| net.paused(i) == [true]), "all have it when it is answered");
    assert!((0..3).all(|i| net.generations(i) > before), "what was said before it is older");
    net.elect(0, 1);
    let (c, got) = net.subscribe(1, "ch", 9);
    assert!(got.is_empty(), "{got:?}");
    assert_eq!(net.change_channel(1, ChannelChange::Unpause), Ok(false));
    assert_eq!(bodies(&net.take(c)), ["0"]);
    assert!((0..3).all(|i| net.paused(i) == [false]));
}

#[test]
fn a_pause_of_the_topic_holds_on_all_replicas_and_with_the_next_leader() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "0");
    let (c, got) = net.subscribe(0, "ch", 9);
    assert_eq!(bodies(&got), ["0"]);
    let change = |net: &mut Net, node: usize, change: ChannelChange| {
        net.ask_change_of(node, ChannelName::topic_pause(), change);
        net.changed(node).expect("it is answered")
    };
    let pause = ChannelChange::Create { first: Some(false), is_alone: true };
    let is_paused = |net: &Net| [0, 1, 2].map(|i| net.partition(i, 0).pause.is_some());
    assert_eq!((change(&mut net, 0, pause), is_paused(&net)), (Ok(false), [true; 3]), "all have it when it is answered");
    net.publish(p, "1");
    assert_eq!(net.take(c), Vec::<String>::new());
    net.elect(0, 1);
    let (c, got) = net.subscribe(1, "ch", 9);
    assert_eq!(bodies(&got), ["0"], "what was published before the pause, and no more");
    assert_eq!((change(&mut net, 1, ChannelChange::Delete), is_paused(&net)), (Ok(false), [false; 3]));
    assert_eq!(bodies(&net.take(c)), ["1"]);
}

#[test]
fn a_pause_that_a_replica_does_not_confirm_is_taken_back() {
    let mut net = Net::new();
    net.subscribe(0, "ch", 0);
    net.nodes[2].is_slow = true;
    net.ask_change(0, ChannelChange::Pause);
    assert_eq!((net.changed(0), net.paused(0)), (None, vec![true]), "nobody is told, and nothing goes out");
    let asked = net.generations(0);
    net.is_taken_back();
    assert!((0..3).all(|i| net.generations(i) > asked), "the pause is older than its end");
    assert!((0..3).all(|i| net.paused(i) == [false]), "{:?}", [net.paused(0), net.paused(1), net.paused(2)]);
}

#[test]
fn of_a_change_that_was_issued_nobody_says_that_nothing_was_done() {
    let create = ChannelChange::Create { first: Some(true), is_alone: true };
    for ends in [OperationEnd::LeaderGoes, OperationEnd::NotConfirmed, OperationEnd::JournalFails] {
        for change in [Some(ChannelChange::Pause), Some(ChannelChange::Delete), Some(create), None] {
            let mut net = Net::new();
            if change != Some(create) {
                net.subscribe(0, "ch", 0);
            }
            net.nodes[2].is_slow = true;
            net.nodes[0].is_slow = ends == OperationEnd::JournalFails;
            match change {
                Some(change) => net.ask_change(0, change),
                None => net.ask_to_empty(0),
            }
            assert_eq!(net.changed(0), None);
            net.end_of_change(ends);
            let unknown = Err(SetOffsetError::Failed(PublishError::Unknown));
            assert_eq!(net.changed(0), Some(unknown), "{change:?}, {ends:?}");
        }
    }
}

#[test]
fn an_emptied_channel_stays_empty_with_the_next_leader() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..4).for_each(|i| net.publish(p, &i.to_string()));
    net.subscribe(0, "ch", 2);
    net.ask_to_empty(0);
    assert_eq!(net.changed(0), Some(Ok(false)));
    net.elect(0, 2);
    let (_, got) = net.subscribe(2, "ch", 9);
    assert!(got.is_empty(), "{got:?}");
}

#[test]
fn a_deleted_channel_is_gone_on_all_replicas_and_nothing_of_it_comes_back() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..4).for_each(|i| net.publish(p, &i.to_string()));
    let (c, got) = net.subscribe(0, "ch", 2);
    net.finish(c, &got[..1]);
    assert_eq!(net.change_channel(0, ChannelChange::Delete), Ok(false));
    assert!(net.closed.contains(&c));
    assert!((0..3).all(|i| net.cursors(i).is_empty()));
    // The next leader begins the channel anew, behind its former offset.
    net.elect(0, 1);
    let p = net.connect(1);
    net.publish(p, "4");
    let (_, got) = net.subscribe(1, "ch", 9);
    assert_eq!(bodies(&got), ["4"]);
    for node in 0..3 {
        net.kill(node);
        net.restart(node);
    }
    net.pass_time(RECONNECT);
    net.elect(0, 0);
    let (_, got) = net.subscribe(0, "ch", 9);
    assert_eq!(bodies(&got), ["4"]);
}

/// The follower knows the old channel in a high generation; the new one is of the same leader.
#[test]
fn a_follower_that_was_away_takes_the_new_channel_for_the_old_one() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..4).for_each(|i| net.publish(p, &i.to_string()));
    net.subscribe(0, "ch", 0);
    for change in [ChannelChange::Pause, ChannelChange::Unpause, ChannelChange::Pause] {
        assert_eq!(net.change_channel(0, change), Ok(false));
    }
    net.isolate(2, true);
    net.change(0, |m| m.isr.retain(|n| *n != id_of_node(2)));
    assert_eq!(net.change_channel(0, ChannelChange::Delete), Ok(false));
    net.subscribe(0, "ch", 0);
    let here = net.cursors(0);
    assert_eq!((net.cursors(1), net.paused(2)), (here.clone(), vec![true]));
    net.isolate(2, false);
    net.pass_time(RECONNECT);
    assert_eq!((net.cursors(2), net.paused(2)), (here, vec![false]));
}

#[test]
fn a_deletion_that_a_replica_does_not_confirm_is_taken_back() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..3).for_each(|i| net.publish(p, &i.to_string()));
    net.subscribe(0, "ch", 0);
    net.nodes[2].is_slow = true;
    net.ask_change(0, ChannelChange::Delete);
    let late = net.connect(0);
    net.send(late, b"SUB t ch\n");
    assert_eq!((net.changed(0), net.take(late)), (None, vec![]), "who comes waits");
    net.is_taken_back();
    assert_eq!(net.nodes[0].shards[0].engine.core.store.collect_start(net.index(0)).offset, 0, "a new channel gets all there is");
    assert_eq!(net.cursors(0), BTreeMap::from([("ch".into(), 1)]));
    assert!((1..3).all(|i| net.cursors(i) == net.cursors(0)), "the others have it again");
    let (_, got) = net.subscribe(0, "ch", 9);
    assert!(!got.is_empty(), "it goes on where it stood");
}

/// A snapshot that is taken while the deletion is not final stands for its record from then on.
#[test]
fn a_snapshot_has_no_channel_that_is_being_deleted() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "0");
    net.subscribe(0, "ch", 0);
    net.nodes[2].is_slow = true;
    net.ask_change(0, ChannelChange::Delete);
    let before = net.snapshot_end(0);
    // The journal wants to be emptied.
    let is_taken = (0..80).any(|_| {
        net.publish(p, &"x".repeat(60_000));
        net.snapshot_end(0) > before
    });
    assert!(is_taken && net.changed(0).is_none(), "a snapshot is taken meanwhile");
    net.nodes[2].is_slow = false;
    net.run();
    assert_eq!(net.changed(0), Some(Ok(false)));
    net.kill(0);
    net.restart(0);
    net.pass_time(RECONNECT);
    net.elect(0, 0);
    assert!((0..3).all(|i| net.cursors(i).is_empty()), "{:?}", [net.cursors(0), net.cursors(1), net.cursors(2)]);
}

/// The others may have deleted it, and hear only later that it stays.
#[test]
fn who_comes_behind_a_deletion_that_was_taken_back_waits_until_all_have_the_channel() {
    let mut net = Net::new();
    let p = net.connect(0);
    net.publish(p, "0");
    net.subscribe(0, "ch", 0);
    net.nodes[2].is_slow = true;
    net.is_store_there = false;
    net.ask_change(0, ChannelChange::Delete);
    let answer = (0..300).find_map(|_| {
        net.pass_time(Duration::from_millis(50));
        net.changed(0)
    });
    assert!(matches!(answer, Some(Err(SetOffsetError::Failed(_)))) && net.cursors(1).is_empty(), "{answer:?}");
    let c = net.connect(0);
    net.send(c, b"SUB t ch\n");
    assert_eq!(net.take(c), [""; 0]);
    net.nodes[2].is_slow = false;
    net.run();
    assert_eq!(net.take(c), ["OK"]);
    assert!((0..3).all(|i| net.cursors(i) == BTreeMap::from([("ch".into(), 1)])));
}
