//! The file's text and its errors, what may follow what, the facts and answers of a core, and a node's coordinator over
//! files of its own.

use super::change::compare;
use super::*;
use crate::base::{BLOCK, Epoch, PartitionId, Ticks, TopicId};
use crate::codec::peer::message::Route;
use crate::seam::membership::Membership;
use crate::seam::membership::static_epoch;
use file::parse;
use offers::Offers;

const EXAMPLE: &str = include_str!("../../docs/cluster.example.toml");

fn id(text: &str) -> NodeId {
    NodeId(file::parse_id(&text.repeat(32)).unwrap())
}

/// Nodes a, b, c with the ids aa.., bb.., cc..; `topics` behind them.
fn text(version: u64, topics: &str) -> String {
    let mut text = format!("cluster_id = \"{}\"\nversion = {version}\n", "1".repeat(32));
    for (i, name) in ["a", "b", "c"].iter().enumerate() {
        let id = name.repeat(32);
        text += &format!("[[node]]\nname = \"{name}\"\nid = \"{id}\"\npeer_address = \"127.0.0.1:{}\"\n", 4170 + i);
    }
    text + topics
}

fn topic(name: &str, id: &str, partitions: &[&str]) -> String {
    let count = partitions.len();
    let mut text = format!("[[topic]]\nname = \"{name}\"\nid = \"{}\"\npartitions = {count}\n", id.repeat(32));
    for (number, partition) in partitions.iter().enumerate() {
        text += &format!("[[topic.partition]]\nnumber = {number}\n{partition}\n");
    }
    text
}

/// `abc` for `["a", "b", "c"]`.
fn list(names: &str) -> String {
    format!("{:?}", names.chars().map(String::from).collect::<Vec<_>>())
}

fn partition(replicas: &str, isr: &str, leader: &str, epoch: u64) -> String {
    let leader = if leader.is_empty() { String::new() } else { format!("leader = \"{leader}\"\n") };
    format!("replicas = {}\nisr = {}\n{leader}epoch = {epoch}", list(replicas), list(isr))
}

fn one(version: u64, isr: &str, leader: &str, epoch: u64) -> String {
    text(version, &topic("t", "7", &[&partition("abc", isr, leader, epoch)]))
}

#[test]
fn the_example_of_the_docs_is_read() {
    let file = parse(EXAMPLE).unwrap();
    assert_eq!(file.nodes.iter().map(|n| &*n.name).collect::<Vec<_>>(), ["a", "b", "c"]);
    let orders = file.topic(&crate::base::TopicName::new("orders").unwrap()).unwrap();
    assert_eq!(orders.info.partitions, 2);
    let p = orders.partition(PartitionId(1)).unwrap();
    assert_eq!((p.replicas.len(), p.isr.len(), p.min_isr), (3, 3, 2));
    assert_ne!(orders.partitions[0].leader, p.leader);
    assert!(file.resting().is_empty());
}

#[test]
fn two_files_that_say_the_same_in_another_order_are_equal() {
    let first = parse(&one(1, "abc", "a", 1)).unwrap();
    let second = one(1, "abc", "a", 1).replace(&list("abc"), &list("cab"));
    assert_eq!(parse(&second).unwrap(), first);
    let (head, nodes) = second.split_once("[[node]]").unwrap();
    let (first_node, rest) = nodes.split_once("[[node]]").unwrap();
    let (second_node, rest) = rest.split_once("[[node]]").unwrap();
    let swapped = format!("{head}[[node]]{second_node}[[node]]{first_node}[[node]]{rest}");
    assert_ne!(swapped, second);
    assert_eq!(parse(&swapped).unwrap(), first);
}

#[test]
fn every_error_names_its_line_and_what_would_be_right() {
    let good = one(1, "abc", "a", 3);
    assert!(parse(&good).is_ok());
    let many = format!("{:?}", (0..17).map(|n| format!("n{n}")).collect::<Vec<_>>());
    let many_nodes: String = (0..17)
        .map(|n| format!("[[node]]\nname = \"n{n}\"\nid = \"{n:032x}\"\npeer_address = \"h:{}\"\n", n + 1))
        .collect::<String>()
        .replace(&"0".repeat(32), &"e".repeat(32));
    for (was, is, line, wanted) in [
        ("version = 1", "version = 0", 2, "versions are 1 to 17592186044415"),
        ("version = 1", "version = 17592186044416", 2, "versions are 1 to"),
        ("version = 1", "verion = 1", 2, "unknown field `verion`"),
        ("version = 1", "version = \"x\"", 2, "invalid type"),
        ("version = 1", "version = 1\nleader = 1", 3, "unknown field `leader`"),
        (&"1".repeat(32), "11", 1, "cluster_id \"11\": 32 hex characters"),
        (&"b".repeat(32), &"g".repeat(32), 9, "a node's id"),
        (&"b".repeat(32), &"0".repeat(32), 9, "not all zero"),
        (&"b".repeat(32), &"a".repeat(32), 9, "nodes a and b have the same id (ringmq node-id"),
        ("name = \"b\"", "name = \"a\"", 8, "nodes a and a have the same name"),
        ("name = \"b\"", "name = \"b b\"", 8, "1 to 64 characters"),
        ("127.0.0.1:4171", "127.0.0.1:4170", 10, "nodes a and b have the same peer_address"),
        ("127.0.0.1:4171", "127.0.0.1:0", 10, "host:port is expected"),
        ("127.0.0.1:4171", "::1:5", 10, "host:port is expected"),
        ("name = \"t\"", "name = \"t t\"", 16, "topic \"t t\": a name has 1 to 64"),
        ("name = \"t\"", "name = \"t#ephemeral\"", 16, "ephemeral topics are not replicated"),
        (&"7".repeat(32), "x", 17, "a topic's id \"x\""),
        ("partitions = 1", "partitions = 0", 18, "0 partitions, 1 to 1024"),
        ("partitions = 1", "partitions = 2", 16, "no [[topic.partition]] with number = 1"),
        ("partitions = 1", "partitions = 1\nmin_isr = 4", 19, "min_isr 4: partition 0 of topic t has 3 replicas"),
        ("partitions = 1", "partitions = 1\nmin_isr = 0", 19, "so 1 to 3 are possible"),
        ("number = 0", "number = 1", 20, "partition 1 of topic t, which has those from 0 to 0"),
        ("replicas = [\"a\", \"b\", \"c\"]", "replicas = [\"a\", \"d\"]", 21, "no [[node]] has the name \"d\" in its replicas"),
        ("replicas = [\"a\", \"b\", \"c\"]", "replicas = [\"a\", \"a\"]", 21, "a stands in its replicas twice"),
        ("replicas = [\"a\", \"b\", \"c\"]", "replicas = []", 21, "0 replicas, 1 to 16"),
        ("replicas = [\"a\", \"b\", \"c\"]", "replicas = [\"a\", \"b\"]", 22, "c is in the isr and not among the replicas"),
        ("isr = [\"a\", \"b\", \"c\"]", "isr = []", 22, "an empty isr"),
        ("isr = [\"a\", \"b\", \"c\"]", "isr = [\"b\", \"c\"]", 23, "leader a is not in the isr"),
        ("leader = \"a\"", "leader = \"x\"", 23, "no [[node]] has the name \"x\" in its leader"),
        ("epoch = 3", "epoch = 0", 24, "epochs are 1 to 8388607"),
        ("epoch = 3", "epoch = 8388608", 24, "epochs are 1 to 8388607"),
        ("epoch = 3", "epoch = 3\nlider = \"a\"", 25, "unknown field `lider`"),
        ("epoch = 3", "epoch = 3\n[[topic.partition]]\nnumber = 0\nreplicas = []", 25, "missing field `isr`"),
    ] {
        let bad = good.replacen(was, is, 1);
        assert_ne!(bad, good, "{was}");
        let error = parse(&bad).expect_err(is);
        assert!(error.what.contains(wanted) && error.line == line, "{is:?}: {error}, and line {line} was expected: {wanted}");
    }
    let twice = format!("{good}[[topic.partition]]\nnumber = 0\n{}\n", partition("ab", "ab", "a", 1));
    assert!(parse(&twice).unwrap_err().what.contains("partition 0 of topic t stands there twice"));
    let same_name = format!("{good}{}", topic("t", "8", &[&partition("a", "a", "a", 1)]));
    assert!(parse(&same_name).unwrap_err().what.contains("topic t stands in the file twice"));
    let same_id = format!("{good}{}", topic("u", "7", &[&partition("a", "a", "a", 1)]));
    assert!(parse(&same_id).unwrap_err().what.contains("topics t and u have the same id"));
    let too_many = text(1, "") + &many_nodes + &topic("t", "7", &[&format!("replicas = {many}\nisr = [\"n1\"]\nepoch = 1")]);
    assert!(parse(&too_many).unwrap_err().what.contains("17 replicas, 1 to 16"));
}

#[test]
fn what_a_version_may_do_to_another() {
    let old = parse(&one(5, "abc", "a", 3)).unwrap();
    let judge = |new: &str| compare(&old, &parse(new).unwrap());
    let changes = |new: &str| judge(new).unwrap().iter().map(|c| c.to_string()).collect::<Vec<_>>();
    assert_eq!(changes(&one(5, "abc", "a", 3)), [] as [&str; 0]);
    assert_eq!(changes(&one(6, "abc", "a", 3)), [] as [&str; 0], "the version alone");
    assert_eq!(changes(&one(6, "ab", "a", 3)), [r#"partition 0 of topic t: isr ["a", "b", "c"] -> ["a", "b"]"#]);
    assert_eq!(changes(&one(6, "abc", "b", 4)), ["partition 0 of topic t: leader a -> b, epoch 3 -> 4"]);
    assert_eq!(changes(&one(6, "abc", "", 4)), ["partition 0 of topic t: leader a -> nobody, epoch 3 -> 4"]);
    assert_eq!(changes(&text(6, "")), ["topic t is gone"]);
    let moved = one(6, "abc", "a", 3).replace("4172", "9999");
    assert_eq!(changes(&moved), ["node c: peer_address 127.0.0.1:4172 -> 127.0.0.1:9999"]);
    let with_another = one(6, "abc", "a", 3) + &topic("u", "8", &[&partition("a", "a", "a", 1)]);
    assert_eq!(changes(&with_another), ["topic u is new"]);

    let refused = |new: &str, part: &str| {
        let error = judge(new).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&one(4, "abc", "a", 3), "version 4 is older than version 5");
    refused(&one(5, "ab", "a", 3), "the same version 5 (partition 0 of topic t: isr");
    refused(&one(6, "abc", "a", 2), "epoch 2 is below 3");
    refused(&one(6, "abc", "b", 3), "the leader changes from a to b in epoch 3");
    refused(&one(6, "abc", "", 3), "the leader changes from a to nobody in epoch 3");
    refused(&one(6, "abc", "a", 3).replace(&"1".repeat(32), &"2".repeat(32)), "belongs to another cluster");
    refused(&text(6, &topic("u", "7", &[&partition("abc", "abc", "a", 3)])), "has the id that topic t had");
    let two = [partition("abc", "abc", "a", 3), partition("abc", "abc", "a", 3)];
    refused(&text(6, &topic("t", "7", &[&two[0], &two[1]])), "has 2 partitions and had 1");

    // Between neighbours only: a node that was away sees several steps as one.
    let of_two = |version| parse(&one(version, "ab", "a", 3)).unwrap();
    let steps = [
        (text(6, &topic("t", "8", &[&partition("abc", "abc", "a", 3)])), "has another id"),
        (one(6, "abc", "c", 4), "c cannot lead: it is not in the isr in force ([\"a\", \"b\"])"),
        (one(6, "ab", "a", 3).replace(&"b".repeat(32), &"d".repeat(32)), "node b has another id"),
    ];
    for (new, part) in steps {
        let error = compare(&of_two(5), &parse(&new).unwrap()).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
        assert!(compare(&of_two(4), &parse(&new).unwrap()).is_ok(), "{part}");
    }
    let no_leader = parse(&one(5, "ab", "", 3)).unwrap();
    let error = compare(&no_leader, &parse(&one(6, "abc", "a", 4)).unwrap()).unwrap_err().to_string();
    assert!(error.contains("c cannot join the isr yet, since the partition has no leader"), "{error}");
    let fewer = parse(&text(5, &topic("t", "7", &[&partition("ab", "ab", "a", 3)]))).unwrap();
    let error = compare(&fewer, &parse(&one(6, "abc", "a", 3)).unwrap()).unwrap_err().to_string();
    assert!(error.contains("c cannot join the isr yet, since it is no replica"), "{error}");
    assert!(compare(&of_two(5), &parse(&one(6, "abc", "a", 3)).unwrap()).is_ok(), "it had time to catch up");
}

fn answers(me: &str, file: &str) -> Answers {
    Answers::new(id(me), 9, Arc::new(parse(file).unwrap()), Offers::default())
}

const ROUTE: Route = Route { topic_id: TopicId([0x77; 16]), partition: PartitionId(0) };

fn membership(fact: Option<Fact>) -> Membership {
    match fact {
        Some(Fact::Partition { topic, partition, membership }) => {
            assert_eq!((topic.id, partition), (ROUTE.topic_id, ROUTE.partition));
            membership
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_core_hears_nodes_topics_partitions_that_it_has_heard_all_and_its_lease() {
    let file = one(5, "ab", "a", 3) + &topic("u", "8", &[&partition("a", "a", "a", 1), &partition("b", "b", "b", 2)]);
    let facts = answers("a", &file).facts();
    let kinds: Vec<&str> = facts
        .iter()
        .map(|f| match f {
            Fact::Nodes(_) => "nodes",
            Fact::Topic(_) => "topic",
            Fact::Partition { .. } => "partition",
            Fact::Read { revision: 5 } => "read",
            Fact::Lease { until: Ticks(u64::MAX), revision: 5 } => "lease",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["nodes", "topic", "topic", "partition", "partition", "partition", "read", "lease"]);
    let Fact::Nodes(nodes) = &facts[0] else { panic!() };
    assert_eq!((nodes.len(), nodes[1].id, &*nodes[1].peer_address), (3, id("b"), "127.0.0.1:4171"));
    let m = membership(Some(facts[3].clone()));
    assert!(m.is_sane());
    assert_eq!((m.version, m.leader, m.min_isr), (5 << 20, Some(id("a")), 2));
    assert_eq!((m.replicas, m.isr), (vec![id("a"), id("b"), id("c")], vec![id("a"), id("b")]));
    assert_eq!(m.epoch, static_epoch(3, 9, 0).unwrap(), "the leader's has its generation");
    let elsewhere = answers("b", &file).facts()[3].clone();
    assert_eq!(membership(Some(elsewhere)).epoch, static_epoch(3, 0, 0).unwrap());
}

#[test]
fn an_epoch_is_given_once_and_above_what_was_promised() {
    let mut answers = answers("a", &one(5, "abc", "a", 3));
    let mut ask = |above| answers.answer(Ask::AskEpoch { route: ROUTE, above });
    let first = membership(ask(static_epoch(3, 9, 0).unwrap()).0);
    assert_eq!((first.epoch, first.version), (static_epoch(3, 9, 1).unwrap(), 5 << 20 | 1));
    assert_eq!(membership(ask(Epoch(1)).0).epoch, static_epoch(3, 9, 2).unwrap(), "never the same again");
    assert_eq!(membership(ask(static_epoch(3, 9, 500).unwrap()).0).epoch, static_epoch(3, 9, 501).unwrap());
    assert_eq!(membership(ask(static_epoch(3, 8, 77_000).unwrap()).0).epoch, static_epoch(3, 9, 502).unwrap());
    for above in [static_epoch(3, 10, 0).unwrap(), static_epoch(4, 1, 1).unwrap(), static_epoch(3, 9, (1 << 20) - 1).unwrap()] {
        let (fact, note) = ask(above);
        assert!(fact.is_none(), "{above:?}");
        assert!(note.unwrap().to_string().contains("bring that file to this node"), "{above:?}");
    }
    assert_eq!(ask(static_epoch(4, 1, 1).unwrap()).1, None, "it was said");
    assert_eq!(membership(ask(Epoch(1)).0).epoch, static_epoch(3, 9, 503).unwrap());
    // The count goes on under another version, and begins anew in another epoch, which is above all of the one before.
    let next = answers.adopt(Arc::new(parse(&one(6, "ab", "a", 3)).unwrap()));
    let m = next.into_iter().find(|f| matches!(f, Fact::Partition { .. }));
    assert_eq!(membership(m.clone()).epoch, static_epoch(3, 9, 503).unwrap());
    assert_eq!(membership(m).version, 6 << 20 | 503);
    let next = answers.adopt(Arc::new(parse(&one(7, "ab", "a", 4)).unwrap()));
    let m = membership(next.into_iter().find(|f| matches!(f, Fact::Partition { .. })));
    assert_eq!((m.epoch, m.version), (static_epoch(4, 9, 0).unwrap(), 7 << 20));
}

#[test]
fn who_does_not_lead_opens_nothing() {
    let mut answers = answers("b", &one(5, "abc", "a", 3));
    let m = membership(answers.answer(Ask::AskEpoch { route: ROUTE, above: Epoch(9) }).0);
    assert_eq!((m.epoch, m.version, m.leader), (static_epoch(3, 0, 0).unwrap(), 5 << 20, Some(id("a"))));
    let again = membership(answers.answer(Ask::Refresh { route: ROUTE }).0);
    assert_eq!(again, m);
    let elsewhere = Route { partition: PartitionId(1), ..ROUTE };
    assert!(answers.answer(Ask::Refresh { route: elsewhere }).0.is_none());
}

#[test]
fn what_a_leader_wants_is_refused_and_said_once() {
    let mut answers = answers("a", &one(5, "ab", "a", 3));
    let mut ask = |isr: &[&str]| {
        let isr = isr.iter().map(|n| id(n)).collect();
        let (fact, note) = answers.answer(Ask::Propose { route: ROUTE, version: 5 << 20, isr });
        assert!(matches!(fact, Some(Fact::ProposalRefused { route: ROUTE, version }) if version == 5 << 20), "{fact:?}");
        note.map(|n| (n.is_good(), n.to_string()))
    };
    let (is_good, said) = ask(&["a"]).unwrap();
    assert!(!is_good && said.contains("b does not keep up") && said.contains(r#"isr = ["a"], version = 6"#), "{said}");
    assert_eq!(ask(&["a"]), None, "a repeat is not said again");
    let (is_good, said) = ask(&["c", "a", "b"]).unwrap();
    assert!(is_good && said.contains("c has caught up") && said.contains(r#"isr = ["a", "b", "c"]"#), "{said}");
    let (fact, note) = answers.answer(Ask::Resign { route: ROUTE, to: None });
    let said = note.unwrap().to_string();
    assert!(fact.is_none() && said.contains(r#"another one of ["b"], epoch = 4, version = 6"#), "{said}");
    answers.adopt(Arc::new(parse(&one(6, "ab", "a", 3)).unwrap()));
    assert!(answers.answer(Ask::Resign { route: ROUTE, to: None }).1.is_some(), "under another version it is");
}

#[test]
fn a_topic_that_is_gone_is_told_first() {
    let mut answers = answers("a", &one(5, "ab", "a", 3));
    let facts = answers.adopt(Arc::new(parse(&text(6, "")).unwrap()));
    assert!(matches!(&facts[0], Fact::TopicGone(t) if t.id == ROUTE.topic_id), "{facts:?}");
    assert_eq!(facts.len(), 4, "and nodes, that this is all, and lease");
}

/// A data path with an id, and a cluster file that names it as node a.
struct NamedNode {
    _folder: tempfile::TempDir,
    settings: Settings,
    me: String,
}

impl NamedNode {
    fn new() -> NamedNode {
        let folder = tempfile::tempdir_in(".").unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let settings = Settings { data_path: path("data"), cluster_file: path("cluster"), ..Settings::default() };
        let me = node_id(Path::new(&settings.data_path), 11).unwrap().0.to_string();
        NamedNode { _folder: folder, settings, me }
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.settings.cluster_file, text.replace(&"a".repeat(32), &self.me)).unwrap();
    }

    fn open(&self) -> Result<Coordinator, String> {
        Coordinator::open(&self.settings).map(|c| c.expect("it has a cluster file")).map_err(|e| e.to_string())
    }
}

#[test]
fn a_restart_knows_which_file_was_in_force() {
    let place = NamedNode::new();
    place.write(&one(5, "abc", "a", 3));
    place.open().unwrap().begin(1).unwrap();
    place.write(&one(4, "abc", "a", 3));
    let error = place.open().err().unwrap();
    assert!(error.contains("version 4 is older than version 5") && error.contains("data/cluster.toml"), "{error}");
    place.write(&one(6, "abc", "b", 4));
    place.open().unwrap(); // looking changes nothing
    place.write(&one(5, "abc", "a", 3));
    place.open().unwrap().begin(2).unwrap();
    let alone = Settings { cluster_file: String::new(), ..place.settings.clone() };
    let error = Coordinator::open(&alone).err().unwrap().to_string();
    assert!(error.contains("belongs to a cluster"), "{error}");
    let error = place.open().unwrap().begin(GENERATION_MAX + 1).err().unwrap().to_string();
    assert!(error.contains("ran alone after"), "{error}");
    place.write(&text(9, "").replace(&"a".repeat(32), &"d".repeat(32)));
    let error = place.open().err().unwrap();
    assert!(error.contains(&format!("which is {}", place.me)), "{error}");
}

/// Every damage of a file of one block: a byte flipped, the file cut short, zeroed, or gone (`None`).
fn damages(whole: &[u8]) -> impl Iterator<Item = Option<Vec<u8>>> {
    let flipped = (0..whole.len()).step_by(7).map(|at| {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (at % 8);
        Some(bytes)
    });
    let cut = (0..whole.len()).step_by(97).map(|len| Some(whole[..len].to_vec()));
    flipped.chain(cut).chain([Some(vec![0; whole.len()]), None])
}

fn put(path: &Path, bytes: Option<Vec<u8>>) {
    match bytes {
        Some(bytes) => std::fs::write(path, bytes).unwrap(),
        None => std::fs::remove_file(path).unwrap(),
    }
}

#[test]
fn damage_of_one_copy_is_used_around_and_of_both_lets_no_older_file_in() {
    let place = NamedNode::new();
    let data = Path::new(&place.settings.data_path);
    let copies = copy::paths(data);
    let [older, newer] = [one(5, "abc", "a", 3), one(7, "abc", "b", 4)];
    place.write(&older);
    place.open().unwrap().begin(1).unwrap();
    place.write(&newer);
    place.open().unwrap().begin(2).unwrap();
    let whole = std::fs::read(&copies[0]).unwrap();
    assert_eq!(whole, std::fs::read(&copies[1]).unwrap());
    for (n, bad) in damages(&whole).enumerate() {
        let which = n % 2;
        put(&copies[which], bad.clone());
        place.write(&older);
        let error = place.open().err().unwrap();
        assert!(error.contains("version 5 is older than version 7"), "{n}: {error}");
        place.write(&newer);
        let coordinator = place.open().unwrap();
        let said: Vec<String> = coordinator.damage().iter().map(|d| d.to_string()).collect();
        let name = copies[which].display().to_string();
        assert!(said.len() == 1 && said[0].starts_with(&name) && said[0].contains("the other copy is used"), "{n}: {said:?}");
        // Both are gone: no file that is older than what was in force, and any other one.
        if n % 20 == 0 {
            put(&copies[1 - which], bad);
            place.write(&older);
            let error = place.open().err().unwrap();
            let is_named = error.contains("cluster.toml is damaged") && error.contains("cluster.toml.copy is damaged");
            assert!(error.contains("version 5 is older than version 7") && is_named, "{n}: {error}");
            place.write(&newer);
        }
        place.open().unwrap().begin(2).unwrap();
        assert!(copies.iter().all(|copy| std::fs::read(copy).unwrap() == whole), "{n}: it is mended");
        assert!(place.open().unwrap().damage().is_empty(), "{n}");
    }
    // A node whose copies do not hold goes on under a newer file, too, and knows that one then.
    copies.iter().for_each(|copy| put(copy, None));
    place.write(&one(8, "abc", "c", 5));
    place.open().unwrap().begin(3).unwrap();
    place.write(&newer);
    assert!(place.open().err().unwrap().contains("version 7 is older than version 8"));
}

/// Damages of each block of either copy of a file with several blocks: one flipped bit, a zeroed block, a file that ends there.
#[test]
fn each_block_of_the_copies_may_be_damaged() {
    let place = NamedNode::new();
    let data = Path::new(&place.settings.data_path);
    let copies = copy::paths(data);
    let topics = |epoch| -> String {
        let partition = partition("abc", "abc", "a", epoch);
        (1..90).map(|n| topic(&format!("topic{n}"), "7", &[&partition]).replace(&"7".repeat(32), &format!("{n:032x}"))).collect()
    };
    let [older, newer] = [text(5, &topics(3)), text(7, &topics(4))];
    for file in [&older, &newer] {
        place.write(file);
        place.open().unwrap().begin(1).unwrap();
    }
    let whole = std::fs::read(&copies[0]).unwrap();
    assert!(whole.len() > 3 * BLOCK, "{}", whole.len());
    for (block, which, rot) in (0..whole.len().div_ceil(BLOCK)).flat_map(|b| (0..6).map(move |n| (b, n % 2, n / 2))) {
        let (at, end) = (block * BLOCK, whole.len().min((block + 1) * BLOCK));
        let mut bytes = whole.clone();
        match rot {
            0 => bytes[at + (block * 7919) % (end - at)] ^= 4,
            1 => bytes[at..end].fill(0),
            _ => bytes.truncate(at),
        }
        let what = format!("block {block} of {}, {rot}", copies[which].display());
        std::fs::write(&copies[which], bytes).unwrap();
        place.write(&older);
        assert!(place.open().err().unwrap().contains("version 5 is older than version 7"), "{what}");
        place.write(&newer);
        let coordinator = place.open().unwrap();
        let said: Vec<String> = coordinator.damage().iter().map(|d| d.to_string()).collect();
        assert!(said.len() == 1 && said[0].starts_with(&*copies[which].display().to_string()), "{what}: {said:?}");
        coordinator.begin(2).unwrap();
        assert!(copies.iter().all(|copy| std::fs::read(copy).unwrap() == whole), "{what}: it is mended");
    }
}

/// A crash leaves this state between the two files, before node.meta has the version.
#[test]
fn a_version_that_a_crash_left_in_one_copy_is_in_force() {
    let place = NamedNode::new();
    let data = Path::new(&place.settings.data_path);
    let copies = copy::paths(data);
    for of_newer in [0, 1] {
        place.write(&one(5 + of_newer, "abc", "a", 3));
        place.open().unwrap().begin(1).unwrap();
        let before = std::fs::read(&copies[1]).unwrap();
        let text = one(6 + of_newer, "abc", "a", 3).replace(&"a".repeat(32), &place.me);
        copy::write(data, &text, 5 + of_newer).unwrap();
        std::fs::write(&copies[1], before).unwrap();
        let found = copy::read(data).unwrap();
        assert!(found.version == 6 + of_newer && found.damage.is_empty(), "{found:?}");
        assert!(place.open().err().unwrap().contains("older"));
    }
    // The first adoption of all.
    let place = NamedNode::new();
    let data = Path::new(&place.settings.data_path);
    place.write(&one(5, "abc", "a", 3));
    let text = one(5, "abc", "a", 3).replace(&"a".repeat(32), &place.me);
    copy::write(data, &text, 0).unwrap();
    std::fs::remove_file(&copy::paths(data)[1]).unwrap();
    assert!(place.open().unwrap().damage().is_empty());
    let alone = Settings { cluster_file: String::new(), ..place.settings.clone() };
    assert!(Coordinator::open(&alone).err().unwrap().to_string().contains("belongs to a cluster"));
}

#[test]
fn a_reread_reaches_the_cores_or_says_why_not() {
    let place = NamedNode::new();
    place.write(&one(5, "abc", "a", 3));
    let coordinator = place.open().unwrap();
    coordinator.begin(1).unwrap();
    let mut desk = coordinator.of_cores(1).unwrap();
    let hear = |desk: &mut Desk| {
        let mut facts = vec![];
        desk.news(&mut |fact| facts.push(fact));
        facts
    };
    assert_eq!(hear(&mut desk).len(), 5, "everything at the start");
    assert!(!desk.has_news() && hear(&mut desk).is_empty());
    assert_eq!(coordinator.reread().unwrap(), Reread::Same { version: 5 });
    for (bad, part) in [
        ("version =", "line 1"),
        (&one(6, "abc", "b", 3), "raise its epoch"),
        (&one(4, "abc", "a", 3), "older"),
        (&text(6, "").replace(&"a".repeat(32), &"d".repeat(32)), "names no node with the id"),
    ] {
        place.write(bad);
        let error = coordinator.reread().err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
        assert!(!desk.has_news() && coordinator.file().version == 5);
    }
    place.write(&one(6, "ab", "a", 3));
    assert!(matches!(coordinator.reread().unwrap(), Reread::Changed { version: 6, changes } if changes.len() == 1));
    assert!(desk.has_news());
    assert_eq!(membership(hear(&mut desk).into_iter().nth(2)).isr.len(), 2);
    place.write(&one(5, "abc", "a", 3));
    assert!(place.open().is_err(), "the copy is of version 6 by now");
    desk.ask(Ask::Refresh { route: ROUTE });
    assert!(desk.has_news());
    assert_eq!(hear(&mut desk).len(), 1);
}

/// A replica that was told that it may join may be added at any time: until the file's version rises the leader acknowledges nothing
/// without it.
#[test]
fn an_offer_binds_over_openings_and_restarts_until_the_version_rises() {
    let place = NamedNode::new();
    let joining = |fact: Option<Fact>| membership(fact).joining;
    let first = |coordinator: &Coordinator, generation| {
        let mut facts = vec![];
        let mut desk = coordinator.of_cores(generation).unwrap();
        desk.news(&mut |fact| facts.push(fact));
        (desk, facts.into_iter().find(|fact| matches!(fact, Fact::Partition { .. })))
    };
    place.write(&one(5, "a", "a", 3));
    let coordinator = place.open().unwrap();
    coordinator.begin(1).unwrap();
    let (mut desk, fact) = first(&coordinator, 1);
    let (version, epoch) = (membership(fact.clone()).version, membership(fact).epoch);
    place.write(&one(6, "ab", "a", 3));
    let error = coordinator.reread().err().unwrap().to_string();
    assert!(error.contains("has not said under version 5, which is in force, that b has caught up"), "{error}");
    desk.ask(Ask::Propose { route: ROUTE, version, isr: vec![coordinator.me(), id("b")] });
    while coordinator.offers.offers() == Offers::default() {
        std::thread::yield_now();
    }
    desk.ask(Ask::AskEpoch { route: ROUTE, above: epoch });
    let mut facts = vec![];
    desk.news(&mut |fact| facts.push(fact));
    assert_eq!(joining(facts.pop()), [id("b")], "another opening");
    drop((desk, coordinator));
    place.write(&one(5, "a", "a", 3));
    let coordinator = place.open().unwrap();
    coordinator.begin(2).unwrap();
    assert_eq!(joining(first(&coordinator, 2).1), [id("b")], "another life");
    // The operator may write this file now, and a node that starts with it takes it; a node that was not named is refused.
    place.write(&one(6, "abc", "a", 3));
    assert!(place.open().err().unwrap().contains("that c has caught up"));
    place.write(&one(6, "ab", "a", 3));
    place.open().unwrap();
    // Another version without it: the offer is void.
    place.write(&one(6, "a", "a", 3));
    coordinator.reread().unwrap();
    assert_eq!(joining(first(&coordinator, 2).1), []);
    place.write(&one(7, "ab", "a", 3));
    assert!(coordinator.reread().err().unwrap().to_string().contains("under version 6"));
    // Rot of one file is used around and mended, rot of both is refused.
    let paths = ["cluster.offers", "cluster.offers.copy"].map(|name| Path::new(&place.settings.data_path).join(name));
    let whole = std::fs::read_to_string(&paths[0]).unwrap();
    let rotten = whole.replace("version 5", "version 6");
    place.write(&one(6, "a", "a", 3));
    for path in &paths {
        std::fs::write(path, &rotten).unwrap();
        place.open().unwrap().begin(3).unwrap();
        assert!(paths.iter().all(|path| std::fs::read_to_string(path).unwrap() == whole), "{}", path.display());
    }
    paths.iter().for_each(|path| std::fs::write(path, &rotten).unwrap());
    assert!(place.open().err().unwrap().contains("cluster.offers is damaged (the checksum does not match)"));
}
