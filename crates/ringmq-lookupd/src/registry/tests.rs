use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    inactive_producer_timeout: Duration::from_secs(300),
    tombstone_lifetime: Duration::from_secs(45),
    entries_max: 1000,
};

fn at(seconds: u64) -> Now {
    Now { elapsed: Duration::from_secs(seconds), unix_ns: 1_000_000_000 * seconds as i64 }
}

fn info(number: u64) -> PeerInfo {
    PeerInfo {
        remote_address: format!("10.0.0.{number}:1"),
        hostname: format!("h{number}"),
        broadcast_address: format!("b{number}"),
        tcp_port: 4150,
        http_port: 4151,
        version: "1.3.0".into(),
        topology_zone: String::new(),
        topology_region: String::new(),
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn producers(registry: &Registry, topic: &str, now: Now) -> Option<Vec<String>> {
    let found = registry.lookup(TopicFilter::new(topic), now)?;
    Some(found.producers.iter().map(|info| info.hostname.clone()).collect())
}

#[test]
fn names_are_nsqs() {
    let longest = "x".repeat(64);
    for good in ["a", "A.b_c-1", "x#ephemeral", &longest] {
        assert!(Name::new(good).is_some(), "{good}");
    }
    for bad in ["", "#ephemeral", "a b", "ä", "a#x", "a#ephemeral#ephemeral", "*", &"x".repeat(65), &("x".repeat(55) + EPHEMERAL)]
    {
        assert!(Name::new(bad).is_none(), "{bad}");
    }
}

#[test]
fn a_silent_node_is_in_no_answer_until_it_pings() {
    let mut registry = Registry::new(LIMITS);
    let peer = registry.connect(info(1), at(0));
    registry.register(peer, &name("t"), None).unwrap();
    assert_eq!((producers(&registry, "t", at(300)).unwrap().len(), registry.nodes(at(300)).len()), (1, 1));
    assert_eq!((producers(&registry, "t", at(301)).unwrap().len(), registry.nodes(at(301)).len()), (0, 0));
    assert_eq!(registry.ping(peer, at(400)), Some(Duration::from_secs(400)));
    assert_eq!((producers(&registry, "t", at(700)).unwrap().len(), registry.nodes(at(700)).len()), (1, 1));
}

#[test]
fn a_tombstone_hides_a_node_for_one_topic_and_a_while() {
    let mut registry = Registry::new(LIMITS);
    let peer = registry.connect(info(1), at(0));
    registry.register(peer, &name("t"), None).unwrap();
    registry.register(peer, &name("u"), None).unwrap();
    registry.tombstone(TopicFilter::new("t"), "b1:4150", at(9));
    assert_eq!(producers(&registry, "t", at(9)).unwrap().len(), 1, "the port is HTTP's");
    registry.tombstone(TopicFilter::new("t"), "b1:4151", at(10));
    registry.register(peer, &name("t"), None).unwrap();
    assert_eq!(producers(&registry, "t", at(54)), Some(vec![]), "registering again does not lift it");
    assert_eq!(producers(&registry, "u", at(54)).unwrap().len(), 1);
    assert_eq!(registry.nodes(at(54))[0].tombstones, [true, false]);
    assert_eq!(producers(&registry, "t", at(55)).unwrap().len(), 1);
    assert_eq!(registry.nodes(at(55))[0].tombstones, [false, false]);
    registry.tombstone(TopicFilter::new("t"), "b1:4151", at(60));
    registry.unregister(peer, &name("t"), None);
    registry.register(peer, &name("t"), None).unwrap();
    assert_eq!(producers(&registry, "t", at(61)).unwrap().len(), 1, "a new registration has none");
}

#[test]
fn an_ephemeral_name_goes_with_its_last_producer_and_a_durable_one_stays() {
    let mut registry = Registry::new(LIMITS);
    let (one, two) = (registry.connect(info(1), at(0)), registry.connect(info(2), at(0)));
    for peer in [one, two] {
        registry.register(peer, &name("t"), Some(&name("c#ephemeral"))).unwrap();
        registry.register(peer, &name("t"), Some(&name("c"))).unwrap();
        registry.register(peer, &name("e#ephemeral"), Some(&name("c"))).unwrap();
    }
    registry.unregister(one, &name("t"), Some(&name("c#ephemeral")));
    assert_eq!(registry.channels(TopicFilter::new("t")), ["c", "c#ephemeral"]);
    registry.disconnect(two);
    assert_eq!(registry.channels(TopicFilter::new("t")), ["c"]);
    registry.disconnect(one);
    assert_eq!((registry.topics(), registry.channels(TopicFilter::new("t"))), (vec!["t"], vec!["c"]));
    assert_eq!(
        registry.channels(TopicFilter::new("e#ephemeral")),
        ["c"],
        "nsqlookupd, too, keeps a durable channel of such a topic"
    );
    assert_eq!(producers(&registry, "t", at(0)), Some(vec![]));
}

#[test]
fn a_full_registry_refuses_and_goes_on_when_there_is_room() {
    let mut registry = Registry::new(Limits { entries_max: 6, ..LIMITS });
    let peer = registry.connect(info(1), at(0));
    registry.register(peer, &name("t"), Some(&name("c"))).unwrap();
    assert_eq!(registry.register(peer, &name("u"), Some(&name("c"))), Err(Full { entries_max: 6 }));
    registry.register(peer, &name("u"), None).unwrap();
    assert_eq!(registry.create_topic(&name("v")), Err(Full { entries_max: 6 }));
    assert_eq!(registry.topics(), ["t", "u"]);
    registry.delete_topic(TopicFilter::Topic("t"));
    registry.create_channel(&name("v"), &name("c")).unwrap();
    assert_eq!(registry.entries, 4);
}

// ---- against a model that has no index

/// Registrations as one list that is searched from end to end.
#[derive(Default)]
struct Model {
    keys: BTreeSet<(String, Option<String>)>,
    producers: BTreeMap<(String, Option<String>, PeerId), Option<u64>>,
    peers: BTreeMap<PeerId, (u64, u64)>,
}

impl Model {
    fn leave(&mut self, peer: PeerId, leaves: impl Fn(&str, Option<&str>) -> bool) {
        let gone: Vec<_> = self.producers.keys().filter(|(t, c, p)| *p == peer && leaves(t, c.as_deref())).cloned().collect();
        for (topic, channel, peer) in gone {
            self.producers.remove(&(topic.clone(), channel.clone(), peer));
            let is_ephemeral = channel.as_ref().unwrap_or(&topic).ends_with(EPHEMERAL);
            let has_none = !self.producers.keys().any(|(t, c, _)| (t, c) == (&topic, &channel));
            if is_ephemeral && has_none {
                self.keys.remove(&(topic, channel));
            }
        }
    }

    fn add(&mut self, peer: Option<PeerId>, topic: &str, channel: Option<&str>) {
        for channel in [None, channel.map(String::from)] {
            self.keys.insert((topic.into(), channel.clone()));
            if let Some(peer) = peer {
                self.producers.entry((topic.into(), channel, peer)).or_default();
            }
        }
    }

    fn delete(&mut self, is: impl Fn(&str, Option<&str>) -> bool) {
        self.keys.retain(|(t, c)| !is(t, c.as_deref()));
        self.producers.retain(|(t, c, _), _| !is(t, c.as_deref()));
    }

    fn compare(&self, registry: &Registry, now: u64) {
        let topics: Vec<&str> = self.keys.iter().filter(|(_, c)| c.is_none()).map(|(t, _)| t.as_str()).collect();
        assert_eq!(registry.topics(), topics);
        assert_eq!(registry.entries, self.keys.len() + self.producers.len());
        let is_active = |peer: &PeerId| now - self.peers[peer].1 <= 300;
        for topic in TOPICS {
            let channels: Vec<&str> = self.keys.iter().filter(|(t, _)| t == topic).filter_map(|(_, c)| c.as_deref()).collect();
            assert_eq!(registry.channels(TopicFilter::new(topic)), channels);
            let of_topic = self.producers.iter().filter(|((t, c, peer), tombstone)| {
                t == topic && c.is_none() && is_active(peer) && tombstone.is_none_or(|then| now - then >= 45)
            });
            let hosts: Vec<String> = of_topic.map(|((_, _, peer), _)| format!("h{}", self.peers[peer].0)).collect();
            let expected = topics.contains(&topic).then_some(hosts);
            assert_eq!(producers(registry, topic, at(now)), expected);
        }
        let nodes: Vec<String> = registry.nodes(at(now)).iter().map(|node| node.info.hostname.clone()).collect();
        let active = self.peers.iter().filter(|(peer, _)| is_active(peer)).map(|(_, (number, _))| format!("h{number}"));
        assert_eq!(nodes, active.collect::<Vec<_>>());
        for node in registry.nodes(at(now)) {
            let (peer, _) = self.peers.iter().find(|(_, (n, _))| format!("h{n}") == node.info.hostname).expect("connected");
            let has = |t: &&str| self.producers.contains_key(&(t.to_string(), None, *peer));
            assert_eq!(node.topics, TOPICS.into_iter().filter(has).collect::<Vec<_>>());
        }
        let shown: usize = registry.debug().values().map(Vec::len).sum();
        assert_eq!(shown, self.peers.len() + self.producers.len());
    }
}

const TOPICS: [&str; 3] = ["t", "u", "v#ephemeral"];
const CHANNELS: [Option<&str>; 4] = [None, Some("c"), Some("d"), Some("e#ephemeral")];

#[derive(Clone, Copy, Debug)]
enum Op {
    Connect,
    Disconnect,
    Ping,
    Register,
    Unregister,
    Create,
    DeleteTopic,
    DeleteChannel,
    Tombstone,
    Wait(u64),
}

fn op() -> impl Strategy<Value = (Op, usize, usize, usize)> {
    let op = prop_oneof![
        2 => Just(Op::Connect),
        1 => Just(Op::Disconnect),
        2 => Just(Op::Ping),
        8 => Just(Op::Register),
        4 => Just(Op::Unregister),
        2 => Just(Op::Create),
        1 => Just(Op::DeleteTopic),
        2 => Just(Op::DeleteChannel),
        2 => Just(Op::Tombstone),
        3 => (1..200u64).prop_map(Op::Wait),
    ];
    (op, 0..8usize, 0..TOPICS.len(), 0..CHANNELS.len())
}

proptest! {
    #[test]
    fn the_registry_is_its_model(ops in prop::collection::vec(op(), 1..60)) {
        let (mut registry, mut model, mut now) = (Registry::new(LIMITS), Model::default(), 0);
        for (op, pick, topic, channel) in ops {
            let (topic, channel) = (TOPICS[topic], CHANNELS[channel]);
            let (topic_name, channel_name) = (name(topic), channel.map(name));
            let peer = model.peers.keys().nth(pick % model.peers.len().max(1)).copied();
            match (op, peer) {
                (Op::Wait(seconds), _) => now += seconds,
                (Op::Connect, _) => {
                    let number = registry.last_peer + 1;
                    let id = registry.connect(info(number), at(now));
                    model.peers.insert(id, (number, now));
                }
                (Op::Create, _) => {
                    match &channel_name {
                        Some(channel) => registry.create_channel(&topic_name, channel).unwrap(),
                        None => registry.create_topic(&topic_name).unwrap(),
                    }
                    model.add(None, topic, channel);
                }
                (Op::DeleteTopic, _) if pick == 0 => {
                    registry.delete_topic(TopicFilter::All);
                    model.delete(|_, _| true);
                }
                (Op::DeleteTopic, _) => {
                    registry.delete_topic(TopicFilter::Topic(topic));
                    model.delete(|t, _| t == topic);
                }
                (Op::DeleteChannel, _) => {
                    let Some(channel_name) = channel_name else { continue };
                    let was_there = model.keys.contains(&(topic.to_string(), channel.map(String::from)));
                    assert_eq!(registry.delete_channel(&topic_name, &channel_name), was_there);
                    model.delete(|t, c| t == topic && c == channel);
                }
                (_, None) => continue,
                (Op::Disconnect, Some(peer)) => {
                    registry.disconnect(peer);
                    model.leave(peer, |_, _| true);
                    model.peers.remove(&peer);
                }
                (Op::Ping, Some(peer)) => {
                    registry.ping(peer, at(now));
                    model.peers.get_mut(&peer).unwrap().1 = now;
                }
                (Op::Register, Some(peer)) => {
                    registry.register(peer, &topic_name, channel_name.as_ref()).unwrap();
                    model.add(Some(peer), topic, channel);
                }
                (Op::Unregister, Some(peer)) => {
                    registry.unregister(peer, &topic_name, channel_name.as_ref());
                    model.leave(peer, |t, c| t == topic && (channel.is_none() || c == channel));
                }
                (Op::Tombstone, Some(peer)) => {
                    let number = model.peers[&peer].0;
                    registry.tombstone(TopicFilter::Topic(topic), &format!("b{number}:4151"), at(now));
                    if let Some(tombstone) = model.producers.get_mut(&(topic.to_string(), None, peer)) {
                        *tombstone = Some(now);
                    }
                }
            }
            model.compare(&registry, now);
        }
    }
}
