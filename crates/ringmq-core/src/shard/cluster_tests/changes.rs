//! Operators at nodes that do not lead the partition.

use super::operate::SetResult;
use super::*;
use crate::base::ChannelName;
use crate::codec::native::Start;
use crate::seam::message::{ChannelChange, SetOffset, SetOrder, Ticket};
use crate::seam::outcome::{SetOffsetError, Unwritable};

const CREATE: ChannelChange = ChannelChange::Create { first: None, is_alone: false };

impl Net {
    fn ask_for_order(&mut self, node: usize, ordered: bool) -> Option<Result<(), SetOffsetError>> {
        let (topic, channel) = (self.topic.clone(), ChannelName::new("ch").expect("valid"));
        let set = Box::new(SetOrder { topic, partition: PartitionId(0), channel, ordered });
        self.step(node, 0, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::SetOrder { ticket: Ticket(7), set } });
        self.run();
        self.nodes[node].http.drain(..).find_map(|m| match m {
            MeshMessage::OrderSet { ticket: Ticket(7), result } => Some(result),
            _ => None,
        })
    }

    /// Log id at which the channel stands.
    fn ask_for_offset(&mut self, node: usize, to: Start, force: bool) -> Option<Result<u64, SetOffsetError>> {
        let (topic, channel) = (self.topic.clone(), ChannelName::new("ch").expect("valid"));
        let set = Box::new(SetOffset { topic, partition: PartitionId(0), channel, to, from: None, force });
        self.step(node, 0, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::SetOffset { ticket: Ticket(8), set } });
        self.run();
        self.nodes[node].http.drain(..).find_map(|m| match m {
            MeshMessage::OffsetSet { ticket: Ticket(8), result } => Some(result.map(|at| at.log_id.0)),
            _ => None,
        })
    }
}

#[test]
fn a_channel_is_changed_at_any_node() {
    for cores in [1, 2] {
        let mut net = Net::with(cores, 1, Settings::default());
        let p = net.connect(1);
        ["0", "1", "2"].iter().for_each(|body| net.publish(p, body));
        assert_eq!(net.change_channel(1, ChannelChange::Pause), Err(SetOffsetError::NoChannel), "{cores} cores");
        assert_eq!(net.change_channel(1, CREATE), Ok(true), "it is the topic's first channel");
        assert_eq!(net.change_channel(2, CREATE), Ok(true), "and stays so");
        assert_eq!(net.change_channel(2, ChannelChange::Pause), Ok(false));
        assert!((0..3).all(|i| net.paused(i) == [true]), "all have it when it is answered");
        let (c, got) = net.subscribe(2, "ch", 9);
        assert!(got.is_empty(), "{got:?}");
        assert_eq!(net.change_channel(1, ChannelChange::Unpause), Ok(false));
        assert_eq!(bodies(&net.take(c)), ["0", "1", "2"]);
        assert_eq!(net.ask_for_order(1, true), Some(Ok(())));
        assert_eq!(net.ask_for_order(2, false), Some(Err(SetOffsetError::HasClients)));
        net.subscribe(0, "ch", 0);
        assert_eq!(net.ask_for_offset(1, Start::Count(1), false), Some(Err(SetOffsetError::NotFirstClient)));
        assert_eq!(net.ask_for_offset(1, Start::Default, true), Some(Err(SetOffsetError::NoPlace)));
        assert_eq!(net.ask_for_offset(1, Start::Count(1), true), Some(Ok(2)));
        net.ask_to_empty(2);
        assert_eq!(net.changed(2), Some(Ok(false)));
        assert!((0..3).all(|i| net.cursors(i)["ch"] == 4));
        net.ask_change_of(1, ChannelName::topic_pause(), ChannelChange::Create { first: Some(false), is_alone: true });
        assert_eq!(net.changed(1), Some(Ok(false)));
        assert!((0..3).all(|i| net.partition(i, 0).pause.is_some()));
        net.ask_change_of(2, ChannelName::topic_pause(), ChannelChange::Delete);
        assert_eq!(net.changed(2), Some(Ok(false)));
        assert_eq!(net.change_channel(1, ChannelChange::Delete), Ok(false));
        assert_eq!(net.change_channel(1, ChannelChange::Delete), Err(SetOffsetError::NoChannel));
        assert!((0..3).all(|i| net.cursors(i).is_empty()));
        assert!(net.closed.contains(&c), "its clients are disconnected, wherever they are");
    }
}

#[test]
fn a_change_hears_that_its_outcome_is_unknown_or_that_nobody_leads() {
    let failed = |error| -> Option<SetResult> { Some(Err(SetOffsetError::Failed(error))) };
    let mut net = Net::new();
    assert_eq!(net.change_channel(1, CREATE), Ok(true));
    net.nodes[2].is_slow = true;
    net.ask_change(1, ChannelChange::Pause);
    assert_eq!(net.changed(1), None, "a replica has not confirmed it");
    net.hang_up_all(1);
    net.run();
    assert_eq!(net.changed(1), failed(PublishError::Unknown));
    net.ask_change(1, ChannelChange::Pause);
    assert_eq!(net.changed(1), failed(PublishError::NotWritable(Unwritable::NoLeader)), "it is not reached");
    net.nodes[2].is_slow = false;
    net.pass_time(RECONNECT);
    assert_eq!(net.change_channel(1, ChannelChange::Unpause), Ok(false));
    assert!((0..3).all(|i| net.paused(i) == [false]));
    // Node 2 hears of its leadership last.
    net.metadata[0].version += 1;
    (net.metadata[0].leader, net.metadata[0].epoch) = (Some(id_of_node(2)), Epoch(2));
    (0..2).for_each(|i| net.tell_partition(i, 0));
    net.run();
    net.ask_change(1, ChannelChange::Pause);
    assert_eq!(net.changed(1), failed(PublishError::NotWritable(Unwritable::NoLeader)));
    net.change(0, |m| (m.leader, m.epoch) = (None, Epoch(5)));
    net.ask_change(1, ChannelChange::Pause);
    assert_eq!(net.changed(1), failed(PublishError::NotWritable(Unwritable::NoLeader)));
}
