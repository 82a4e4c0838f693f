//! Changes of whole topics by an operator, over all cores of a node.

use super::*;
use crate::base::{ChannelName, TopicName, TopicRef};
use crate::seam::{
    message::{ChangeChannel, ChannelChange, Ticket},
    outcome::{PublishError, SetOffsetError},
};

impl Node {
    fn home(&self, topic: &str) -> usize {
        home_core(&TopicName::new(topic).expect("valid"), self.shards.len() as u16).0 as usize
    }

    pub fn ask_delete(&mut self, topic: &str) {
        let (home, name) = (self.home(topic), TopicName::new(topic).expect("valid"));
        self.step(home, Event::Mesh { from: CoreId::HTTP, message: MeshMessage::DeleteTopic { ticket: Ticket(5), name } });
    }

    pub fn deleted(&mut self) -> Result<(), PublishError> {
        match self.http.pop() {
            Some(MeshMessage::TopicChanged { ticket: Ticket(5), result }) => result,
            other => panic!("no answer but {other:?}"),
        }
    }

    /// Fills the journal of a core with facts of its partition, which no checkpoint frees meanwhile: it takes no further record.
    fn fill_journal(&mut self, core: usize) {
        self.held = Some(vec![]);
        for _ in 0..1_000 {
            let parts::CoreParts { store, partitions, .. } = &mut self.shards[core].engine.core;
            let (idx, _) = partitions.iter().next().expect("it has a partition");
            store.log_collect_start(idx, store.collect_start(idx));
            self.run();
            if self.shards[core].engine.core.store.queued_bytes() > 0 {
                return;
            }
        }
        panic!("the journal is never full");
    }

    /// Checkpoints go on.
    fn let_checkpoints_go_on(&mut self) {
        let held = self.held.take().expect("they were held back");
        self.pending.extend(held);
        self.pass_time(Duration::from_secs(1));
    }

    fn topic_files(&self, topic: &str) -> usize {
        self.disk.files().filter(|f| f.to_string().starts_with(&format!("topics/{topic}/"))).count()
    }

    fn topic_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.shards.iter().flat_map(|s| s.stats(Ticks(0), None, None, false).topics).collect();
        names.sort();
        names
    }

    fn id_of_topic(&self, topic: &str) -> TopicRef {
        self.shards[self.home(topic)].engine.core.topics.known(topic).expect("it is known").clone()
    }

    fn knows_nothing_of(&self, topic: &str) -> bool {
        let left = |s: &Shard| {
            let e = &s.engine;
            e.core.partitions.iter().any(|(_, p)| *p.topic.name == *topic)
                || e.core.topics.known(topic).is_some()
                || e.core.topics.is_pending(topic)
        };
        let counted: u64 = self.shards[0].engine.core.topics.total();
        !self.shards.iter().any(left) && counted == self.topic_names().len() as u64
    }
}

#[test]
fn a_topic_goes_with_its_channels_clients_and_files_and_comes_back_as_another_one() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 4);
        let (p, a, b) = (n.connect(0), n.connect(0), n.connect(cores as usize - 1));
        for i in 0..8 {
            n.publish(p, "t", &i.to_string());
        }
        n.publish(p, "other", "stays");
        n.take(p);
        n.send(a, b"SUB t ch\nRDY 2\n");
        n.send(b, b"SUB t more\nRDY 2\n");
        assert_eq!(n.topic_names(), ["other", "t"], "{cores} cores");
        let (old, files) = (n.id_of_topic("t"), n.topic_files("t"));
        assert!(files >= 4, "{files}");
        n.ask_delete("t");
        // A publish comes while the topic goes.
        let mut late = vec![];
        request::publish(&mut late, "t", b"late");
        let core = n.clients[&p].0;
        n.step(core, Event::Bytes { conn: p, bytes: &late });
        n.run();
        assert_eq!((n.deleted(), n.take(p)), (Ok(()), vec!["OK".into()]));
        assert!(n.closed.contains(&a) && n.closed.contains(&b), "{:?}", n.closed);
        // The late one is of the old topic where its core had not heard of the deletion yet.
        n.publish(p, "t", "new");
        assert_eq!(n.take(p), ["OK"]);
        assert_ne!(n.id_of_topic("t").id, old.id);
        let c = n.connect(0);
        n.send(c, b"SUB t ch\nRDY 9\n");
        let got = n.take(c).split_off(1);
        let bodies: Vec<&str> = got.iter().map(|m| m.rsplit(' ').next().expect("a body")).collect();
        assert!(bodies == ["new"] || bodies == ["late", "new"], "{bodies:?}");
        n.ask_delete("t");
        n.run();
        assert_eq!((n.deleted(), n.topic_files("t"), n.topic_names()), (Ok(()), 0, vec!["other".to_string()]));
        assert!(n.knows_nothing_of("t"));
        n.ask_delete("t");
        n.run();
        assert_eq!(n.deleted(), Err(PublishError::NoTopic));
    }
}

/// The answer follows the record, not the request.
#[test]
fn a_deletion_is_answered_when_its_record_is_durable() {
    let mut n = Node::new(1, 1);
    let p = n.connect(0);
    n.publish(p, "t", "x");
    n.ask_delete("t");
    n.end_turn(0);
    assert!(n.http.is_empty(), "the record is on its way");
    assert!(n.topic_files("t") > 0);
    n.run();
    assert_eq!((n.deleted(), n.topic_files("t")), (Ok(()), 0));
}

/// The records of the topic's partitions fill the journal, and are all that a checkpoint could free.
#[test]
fn a_topic_goes_also_when_its_records_fill_the_journal() {
    for (cores, other) in [(1, 0), (2, 0), (2, 1)] {
        let mut n = Node::with(cores, Settings { partitions: 2, journal_bytes: 512 << 10, ..Settings::default() });
        let p = n.connect(0);
        (0..4).for_each(|_| n.publish(p, "t", "x"));
        n.take(p);
        n.fill_journal((n.home("t") + other) % cores as usize);
        n.ask_delete("t");
        n.run();
        match other {
            0 => assert!(n.http.is_empty(), "the journal has no room for the decision yet"),
            _ => assert_eq!(n.deleted(), Ok(()), "it is decided, and the other core has no room for its own record"),
        }
        n.let_checkpoints_go_on();
        if other == 0 {
            assert_eq!(n.deleted(), Ok(()), "{cores} cores");
        }
        assert!(n.topic_files("t") == 0 && n.knows_nothing_of("t"), "{cores} cores, {other}");
        n.publish(p, "t", "new");
        assert_eq!(n.take(p), ["OK"]);
    }
}

#[test]
fn a_core_that_cannot_write_keeps_the_topic() {
    for sick in [0, 1] {
        let mut n = Node::new(2, 2);
        let (p, c) = (n.connect(0), n.connect(0));
        (0..4).for_each(|_| n.publish(p, "t", "x"));
        n.send(c, b"SUB t ch\n");
        n.take(p);
        let other = (n.home("t") + sick) % 2;
        n.shards[other].engine.core.life.fail("its journal failed".into());
        n.ask_delete("t");
        n.run();
        assert_eq!(n.deleted(), Err(PublishError::ReadOnly));
        n.shards[other].engine.core.life.heal();
        assert_eq!(n.topic_names(), ["t"]);
        n.publish(p, "t", "y");
        assert_eq!(n.take(p), ["OK"], "it goes on");
        n.ask_delete("t");
        n.run();
        assert_eq!((n.deleted(), n.topic_files("t")), (Ok(()), 0));
    }
}

/// Changes of channels that are under way are answered first; later ones are answered that the topic is being deleted.
#[test]
fn changes_of_channels_and_a_deletion_are_all_answered() {
    for cores in [1, 2] {
        let mut n = Node::new(cores, 2);
        let p = n.connect(0);
        (0..4).for_each(|_| n.publish(p, "t", "x"));
        let topic = n.id_of_topic("t");
        let change = |n: &mut Node, partition, change| {
            let set = ChangeChannel {
                topic: topic.clone(),
                partition: PartitionId(partition),
                channel: ChannelName::new("ch").expect("valid"),
                change,
            };
            let core = topic.core_of(PartitionId(partition), cores).0 as usize;
            n.step(
                core,
                Event::Mesh { from: CoreId::HTTP, message: MeshMessage::ChangeChannel { ticket: Ticket(9), set: Box::new(set) } },
            );
        };
        change(&mut n, 0, ChannelChange::Create { first: None, is_alone: false });
        n.ask_delete("t");
        change(&mut n, 0, ChannelChange::Pause);
        n.run();
        let mut results: Vec<String> = n
            .http
            .drain(..)
            .map(|m| match m {
                MeshMessage::ChannelChanged { result: Ok(_), .. } => "changed".into(),
                MeshMessage::ChannelChanged { result: Err(SetOffsetError::Failed(PublishError::TopicGone)), .. } => "gone".into(),
                MeshMessage::TopicChanged { result, .. } => format!("deleted {result:?}"),
                other => panic!("{other:?}"),
            })
            .collect();
        results.sort();
        assert_eq!(results, ["changed", "deleted Ok(())", "gone"], "{cores} cores");
        assert_eq!(n.topic_files("t"), 0);
    }
}

/// Messages that wait for the first channel go, durably; a topic with a channel does not change.
#[test]
fn a_topic_without_channels_is_emptied_and_the_answer_follows_the_record() {
    for cores in [1, 2] {
        let mut n = Node::new(cores, 1);
        let (p, c) = (n.connect(0), n.connect(0));
        (0..3).for_each(|_| n.publish(p, "t", "old"));
        let topic = n.id_of_topic("t");
        let core = topic.core_of(PartitionId(0), cores).0 as usize;
        let empty = |n: &mut Node| {
            let message = MeshMessage::EmptyTopic { ticket: Ticket(5), topic: topic.clone(), partition: PartitionId(0) };
            n.step(core, Event::Mesh { from: CoreId::HTTP, message });
        };
        empty(&mut n);
        n.end_turn(core);
        assert!(n.http.is_empty(), "the record is on its way");
        n.run();
        assert_eq!(n.deleted(), Ok(()));
        n.publish(p, "t", "new");
        n.send(c, b"SUB t ch\nRDY 9\n");
        let got = n.take(c);
        assert!(got.len() == 2 && got[1].ends_with(" 1 new"), "{got:?}");
        empty(&mut n);
        n.run();
        assert_eq!(n.deleted(), Ok(()));
        let depth = n.shards[core].stats(Ticks(0), None, None, false).partitions[0].channels[0].depth;
        let in_flight = n.shards[core].stats(Ticks(0), None, None, false).partitions[0].channels[0].in_flight_count;
        assert_eq!((depth, in_flight), (0, 1), "a channel keeps what it has");
        n.shards[core].engine.core.life.fail("its journal failed".into());
        empty(&mut n);
        n.run();
        assert_eq!(n.deleted(), Err(PublishError::ReadOnly));
    }
}
