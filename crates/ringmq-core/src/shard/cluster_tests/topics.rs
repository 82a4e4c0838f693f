//! Topics of the metadata, and what nodes make of them.

use super::*;

impl Net {
    /// The topic goes, and another one of the name comes, of one partition with these replicas, the first of them its leader.
    fn replace_topic(&mut self, replicas: &[usize]) {
        let old = self.topic.clone();
        let topic = TopicInfo { name: old.name.clone(), id: TopicId([8; 16]), partitions: 1 };
        self.topic = topic.into();
        let nodes: Vec<NodeId> = replicas.iter().map(|i| id_of_node(*i)).collect();
        let m = &mut self.metadata[0];
        (m.version, m.leader, m.isr, m.replicas) = (m.version + 1, Some(nodes[0]), nodes.clone(), nodes);
        for node in 0..3 {
            self.tell(node, Fact::TopicGone(old.clone()));
            self.tell(node, Fact::Topic(self.topic.clone()));
            self.tell_partition(node, 0);
        }
        self.run();
        self.pass_time(Duration::from_secs(1));
    }

    /// The operator moves the data path away, and the node starts on an empty one.
    fn wipe(&mut self, node: usize) {
        self.kill(node);
        self.nodes[node].disk = SimDisk::new(node as u64);
        self.restart(node);
    }
}

/// Nodes that have the old topic keep it and take nothing of the new one, also in the folder of the old one.
#[test]
fn a_name_that_comes_back_with_another_id_is_another_topic() {
    let mut net = Net::new();
    let p = net.connect(0);
    (0..4).for_each(|i| net.publish(p, &format!("old{i}")));
    net.subscribe(0, "ch", 0);
    assert_eq!(net.take(p), ["OK"; 4]);
    net.replace_topic(&[0, 1, 2]);
    let p = net.connect(0);
    net.publish(p, "new");
    assert!(net.take(p).iter().all(|told| told.starts_with("E_")), "nothing is stored beside the old topic");
    for node in 0..2 {
        net.wipe(node);
    }
    net.pass_time(RECONNECT);
    // Two of three have it. Node 2 still has the old one.
    net.change(0, |m| m.isr.retain(|n| *n != id_of_node(2)));
    net.pass_time(RECONNECT);
    let p = net.connect(0);
    (0..2).for_each(|i| net.publish(p, &format!("new{i}")));
    assert_eq!(net.take(p), ["OK"; 2]);
    let (_, got) = net.subscribe(0, "ch", 9);
    assert_eq!(bodies(&got), ["new0", "new1"], "the first channel of another topic, and nothing of the old one");
    assert_eq!(net.metadata[0].isr.len(), 2, "node 2 is no replica of it");
    let of_node = |net: &Net, node: usize| -> Vec<(TopicId, i64)> {
        let e = &net.nodes[node].shards[0].engine;
        e.core.partitions.iter().map(|(idx, p)| (p.dir.topic_id, e.core.store.durable_end(idx).count)).collect()
    };
    assert_eq!(of_node(&net, 2), [(TopicId([9; 16]), 4)], "what it had stays as it was");
    net.kill(2);
    net.restart(2);
    net.pass_time(RECONNECT);
    assert_eq!(of_node(&net, 2), [(TopicId([9; 16]), 4)], "over a startup, too");
    net.wipe(2);
    net.pass_time(RECONNECT);
    assert!((0..3).all(|node| of_node(&net, node) == [(TopicId([8; 16]), 2)]));
    assert_eq!((net.metadata[0].isr.len(), net.cursors(2).len()), (3, 1));
}

/// Nodes lead partitions apart from each other, as nsqd's do: which channel is the first one is the partition's own.
#[test]
fn each_partition_of_a_cluster_says_which_channel_is_its_first() {
    let mut net = Net::with(1, 2, Settings::default());
    net.elect(1, 1);
    for (node, body) in [(0, "zero"), (1, "one")] {
        let (p, mut bytes) = (net.connect(node), vec![]);
        request::publish_to(&mut bytes, "t", Some(PartitionId(node as u16)), body.as_bytes());
        net.send(p, &bytes);
        assert_eq!(net.take(p), ["OK"]);
    }
    for (node, channel, expected) in [(0, "a", vec!["zero"]), (1, "b", vec!["one"]), (0, "b", vec![]), (1, "a", vec![])] {
        let (c, mut bytes) = (net.connect(node), vec![]);
        request::subscribe_to(&mut bytes, "t", channel, Some(PartitionId(node as u16)));
        request::ready(&mut bytes, 9);
        net.send(c, &bytes);
        let got = net.take(c);
        assert_eq!((got[0].as_str(), bodies(&got[1..])), ("OK", expected), "{channel} at node {node}");
        net.leave(c);
    }
    // It stays so with the next leaders.
    net.elect(0, 2);
    net.elect(1, 2);
    net.pass_time(Duration::from_secs(1));
    for (channel, expected) in [("a", vec!["zero"]), ("b", vec!["one"])] {
        let (_, got) = net.subscribe(2, channel, 9);
        assert_eq!(bodies(&got), expected, "{channel}");
    }
}

/// Three nodes whose topics a client's first command creates.
fn creating(cores: u16) -> Net {
    Net::with(cores, 1, Settings { etcd_endpoints: vec!["http://e:1".into()], ..Settings::default() })
}

fn publish_new(net: &mut Net, conn: ConnId, body: &str) {
    let mut bytes = vec![];
    request::publish(&mut bytes, "new", body.as_bytes());
    net.send(conn, &bytes);
}

#[test]
fn a_first_publish_asks_for_its_topic_once_and_waits_until_it_has_a_leader() {
    let mut net = creating(2);
    let clients: Vec<ConnId> = (0..6).map(|i| net.connect_to(i % 2, i / 2 % 2)).collect();
    clients.iter().enumerate().for_each(|(i, conn)| publish_new(&mut net, *conn, &i.to_string()));
    assert_eq!(net.wanted.len(), 4, "each core that was asked asks once: {:?}", net.wanted);
    assert!(net.wanted.iter().all(|name| **name == *"new") && clients.iter().all(|conn| net.take(*conn).is_empty()));
    let topic = TopicInfo { name: TopicName::new("new").expect("valid"), id: TopicId([7; 16]), partitions: 1 };
    net.topic = topic.into();
    for node in 0..3 {
        net.tell(node, Fact::Topic(net.topic.clone()));
    }
    net.run();
    assert!(clients.iter().all(|conn| net.take(*conn).is_empty()), "nobody knows yet who leads it");
    net.elect(0, 0);
    net.pass_time(Duration::from_secs(1));
    assert!(clients.into_iter().all(|conn| net.take(conn) == ["OK"]), "at the leader, and at a node that forwards");
}

#[test]
fn a_topic_that_does_not_come_is_an_error_in_time() {
    let mut net = creating(1);
    let (late, refused, ephemeral) = (net.connect(0), net.connect(1), net.connect(2));
    publish_new(&mut net, late, "x");
    publish_new(&mut net, refused, "x");
    let name = TopicName::new("new").expect("valid");
    net.tell(1, Fact::TopicRefused { name, error: PublishError::TooManyTopics });
    net.run();
    let told = net.take(refused);
    assert!(told[0].contains("--max-topics"), "{told:?}");
    let mut bytes = vec![];
    request::publish(&mut bytes, "new#ephemeral", b"x");
    net.send(ephemeral, &bytes);
    assert!(net.take(ephemeral)[0].starts_with("E_TOPIC_NOT_EXIST"));
    net.pass_time(Duration::from_millis(net.settings.pub_waiting_timeout_ms + 100));
    let told = net.take(late);
    assert!(told[0].starts_with("E_FAILED_ON_NOT_WRITABLE"), "{told:?}");
    publish_new(&mut net, late, "again");
    assert_eq!(net.wanted.len(), 3, "it is asked for once more");
}
