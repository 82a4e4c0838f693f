//! Partitions that clients name, ordered channels, and offsets that are set, over all cores of a node.

use super::*;
use crate::base::{ChannelName, MessageId, PartitionId, Position};
use crate::{
    codec::native::Start,
    seam::{
        message::{SetOffset, SetOrder, Ticket},
        outcome::SetOffsetError,
    },
};

/// A message as SUB_ORDERED gets it.
#[derive(Debug, PartialEq)]
struct OrderedMessage {
    id: MessageId,
    attempts: u16,
    offset: i64,
    body: String,
}

impl Node {
    fn take_placed(&mut self, conn: ConnId) -> Vec<OrderedMessage> {
        let bytes = std::mem::take(&mut self.clients.get_mut(&conn).expect("known").1);
        let (frames, _) = frame::decode_all(&bytes).expect("well-formed frames");
        let placed = |f: Frame<'_>| match f {
            Frame::Message(m) => {
                let (offset, rest) = m.body.split_first_chunk::<8>().expect("an offset");
                let (size, body) = rest.split_first_chunk::<4>().expect("a size");
                assert!(u32::from_be_bytes(*size) as usize >= body.len());
                let (offset, body) = (i64::from_be_bytes(*offset), String::from_utf8_lossy(body).into_owned());
                Some(OrderedMessage { id: MessageId::from_binary(&m.id), attempts: m.attempts, offset, body })
            }
            Frame::Response(_) => None,
            Frame::Error(e) => panic!("{}", String::from_utf8_lossy(e)),
        };
        frames.into_iter().filter_map(placed).collect()
    }

    fn in_flight(&mut self, conn: ConnId, name: &str, id: MessageId, rest: &str) {
        self.send(conn, &[name.as_bytes(), b" ", &id.binary(), rest.as_bytes(), b"\n"].concat());
    }

    pub(super) fn publish_to(&mut self, conn: ConnId, partition: u16, bodies: &[&str]) {
        let mut bytes = vec![];
        request::multi_publish_to(&mut bytes, "t", Some(PartitionId(partition)), bodies.iter().map(|b| b.as_bytes()));
        self.send(conn, &bytes);
    }

    fn set_offset(&mut self, partition: u16, to: Start, force: bool) -> Result<Position, SetOffsetError> {
        self.change_offset(partition, to, None, force)
    }

    fn finish_stretch(&mut self, partition: u16, first: u64, last: u64) -> Result<Position, SetOffsetError> {
        self.change_offset(partition, Start::LogId(LogId(last + 1)), Some(LogId(first)), true)
    }

    fn change_offset(&mut self, partition: u16, to: Start, from: Option<LogId>, force: bool) -> Result<Position, SetOffsetError> {
        let topic = self.shards[0].engine.core.topics.known("t").expect("it is known everywhere").clone();
        let core = topic.core_of(PartitionId(partition), self.shards.len() as u16).0 as usize;
        let channel = ChannelName::new("ch").expect("valid");
        let set = Box::new(SetOffset { topic, partition: PartitionId(partition), channel, to, from, force });
        let message = MeshMessage::SetOffset { ticket: Ticket(5), set };
        self.step(core, Event::Mesh { from: CoreId::HTTP, message });
        self.run();
        match self.http.pop() {
            Some(MeshMessage::OffsetSet { ticket: Ticket(5), result }) => result,
            other => panic!("no answer but {other:?}"),
        }
    }
}

#[test]
fn a_publish_and_a_sub_keep_to_the_partition_they_name() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 3);
        let (p, c, all) = (n.connect(0), n.connect(0), n.connect(0));
        n.publish_to(p, 2, &["a", "b"]);
        n.send(p, b"PUB t 1\n\0\0\0\x01xPUB t 2\n\0\0\0\x01c");
        assert_eq!(n.take(p), ["OK"; 3]);
        n.send(c, b"SUB t ch 2\nRDY 9\n");
        let got = n.take(c);
        let bodies: Vec<_> = got[1..].iter().map(|m| m.rsplit(' ').next().expect("a body")).collect();
        assert_eq!((&*got[0], &bodies[..]), ("OK", &["a", "b", "c"][..]), "{cores} cores");
        for message in &got[1..] {
            n.send(c, format!("FIN {}\n", id_of(message)).as_bytes());
        }
        assert!(n.take(c).is_empty());
        n.send(all, b"SUB t ch\nRDY 9\n");
        assert_eq!(n.take(all).len(), 2, "what is left is in partition 1");
    }
}

#[test]
fn a_partition_that_is_not_there_is_refused() {
    for (command, code) in [
        (&b"PUB t 3\n\0\0\0\x01x"[..], "E_TOPIC_NOT_EXIST"),
        (b"MPUB t 1024\n\0\0\0\x09\0\0\0\x01\0\0\0\x01x", "E_TOPIC_NOT_EXIST"),
        (b"SUB t ch 99999999999999999999\n", "E_TOPIC_NOT_EXIST"),
        (b"SUB_ORDERED t ch 3\n", "E_TOPIC_NOT_EXIST"),
        (b"PUB t 1.5\n", "E_BAD_PARTITION"),
        (b"SUB t ch -2\n", "E_BAD_PARTITION"),
    ] {
        let mut n = Node::new(2, 3);
        let c = n.connect(0);
        n.send(c, command);
        let got = n.take(c);
        assert!(got.len() == 1 && got[0].starts_with(code), "{}: {got:?}", String::from_utf8_lossy(command));
        assert_eq!(n.closed, [c]);
    }
}

#[test]
fn an_ordered_channel_gives_one_message_at_a_time_once_the_fin_before_is_durable() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 2);
        let (p, a, b) = (n.connect(0), n.connect(0), n.connect(cores as usize - 1));
        n.publish_to(p, 1, &["one", "two"]);
        n.publish_to(p, 1, &["three"]);
        n.send(a, b"SUB_ORDERED t ch 1\nRDY 9\n");
        let first = n.take_placed(a);
        assert_eq!((first.len(), &*first[0].body, first[0].attempts), (1, "one", 1), "{cores} cores");
        n.send(b, b"SUB_ORDERED t ch 1\nRDY 9\n");
        assert!(n.take_placed(b).is_empty());
        n.in_flight(a, "TOUCH", first[0].id, "");
        let core = n.clients[&a].0;
        n.step(core, Event::Bytes { conn: a, bytes: &[b"FIN ", &first[0].id.binary()[..], b"\n"].concat() });
        n.end_turn(core);
        n.end_turn(core);
        assert!(n.take_placed(a).is_empty() && n.take_placed(b).is_empty(), "the FIN is on its way to the disk");
        n.run();
        let next = |n: &mut Node| {
            let (to_a, to_b) = (n.take_placed(a), n.take_placed(b));
            assert_eq!(to_a.len() + to_b.len(), 1, "{to_a:?} {to_b:?}");
            let conn = if to_a.is_empty() { b } else { a };
            (conn, to_a.into_iter().chain(to_b).next().expect("there is one"))
        };
        let (owner, second) = next(&mut n);
        assert_eq!((&*second.body, second.attempts), ("two", 1));
        assert!(second.offset > first[0].offset && second.id == n.message_id("t", 1, 2));
        // Its delay is not kept, and its message neither.
        n.in_flight(owner, "REQ", second.id, " 5000");
        assert!(n.take_placed(a).is_empty() && n.take_placed(b).is_empty());
        n.in_flight(owner, "REQ", second.id, " 0");
        let (owner, again) = next(&mut n);
        assert_eq!((again.id, again.attempts), (second.id, 2));
        let other = if owner == a { b } else { a };
        let core = n.clients[&owner].0;
        n.step(core, Event::Closed { conn: owner });
        n.run();
        let again = n.take_placed(other);
        assert_eq!((again[0].id, again[0].attempts), (second.id, 3));
        n.in_flight(other, "FIN", again[0].id, "");
        assert_eq!(n.take_placed(other)[0].body, "three");
    }
}

#[test]
fn a_fin_that_does_not_become_durable_fails_and_its_channel_stands_still() {
    let mut n = Node::new(1, 1);
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish_to(p, 0, &["one", "two"]);
    n.send(c, b"SUB_ORDERED t ch\nRDY 9\n");
    let id = n.take_placed(c)[0].id;
    n.step(0, Event::Bytes { conn: c, bytes: &[b"FIN ", &id.binary()[..], b"\n"].concat() });
    n.end_turn(0);
    let is_journal = |(_, _, op): &(usize, OpId, DiskOp)| matches!(op.file(), Some(FileId::Journal(_)));
    let at = n.pending.iter().position(is_journal).expect("the FIN's record");
    let (_, op, request) = n.pending.remove(at).expect("it is there");
    let file = request.file().expect("a write").clone();
    n.step(0, Event::Disk { op, outcome: Err(DiskError::Io { file, call: "write", errno: 5, message: String::new() }) });
    n.run();
    let bytes = n.clients[&c].1.clone();
    let (frames, _) = frame::decode_all(&bytes).expect("well-formed frames");
    assert!(matches!(frames[0], Frame::Error(e) if e.starts_with(b"E_FIN_FAILED FIN ")), "{frames:?}");
    // No FIN of this core becomes durable any more: a quick client would get the same message for ever.
    assert_eq!(frames.len(), 1, "{frames:?}");
    let other = n.connect(0);
    n.send(other, b"SUB_ORDERED t ch\nRDY 9\n");
    n.pass_time(Duration::from_secs(100));
    n.run();
    let (frames, _) = frame::decode_all(&n.clients[&other].1).expect("well-formed frames");
    assert!(frames.iter().all(|f| !matches!(f, Frame::Message(_))), "{frames:?}");
}

#[test]
fn an_ordered_channel_stays_ordered_for_a_plain_sub() {
    let mut n = Node::new(1, 1);
    let (p, a, b) = (n.connect(0), n.connect(0), n.connect(0));
    n.publish_to(p, 0, &["one", "two", "three"]);
    n.send(b, b"SUB t ch\nRDY 9\n");
    assert_eq!(n.take(b).len(), 4);
    // Messages in flight are dropped, and come in order from here on.
    n.send(a, b"SUB_ORDERED t ch 0\n");
    assert_eq!(n.take(a), ["OK"]);
    let (first, second) = (n.id("t", 0, 1), n.id("t", 0, 2));
    assert_eq!(n.take(b), [format!("{first} 1 one")]);
    n.send(b, format!("FIN {second}\nFIN {first}\n").as_bytes());
    let got = n.take(b);
    assert_eq!(got, [format!("E_FIN_FAILED FIN {second} failed ID not in flight"), format!("{second} 1 two")]);
}

#[test]
fn an_offset_is_set_to_a_messages_border_and_what_was_out_is_void() {
    for cores in [1, 2] {
        let mut n = Node::new(cores, 2);
        let (p, c) = (n.connect(0), n.connect(0));
        n.publish_to(p, 1, &["1", "2", "3"]);
        n.pass_time(Duration::from_secs(1));
        let then = n.now.unix_ns;
        n.publish_to(p, 1, &["4", "5"]);
        n.take(p);
        assert_eq!(n.set_offset(1, Start::Count(0), false), Err(SetOffsetError::NoChannel));
        n.send(c, b"SUB t ch 1\nRDY 3\n");
        let ids: Vec<String> = n.take(c)[1..].iter().map(|m| id_of(m).to_owned()).collect();
        n.send(c, format!("FIN {}\n", ids[0]).as_bytes());
        n.take(c);
        let body = |m: &String| m.rsplit(' ').next().expect("a body").to_owned();
        let bodies = |n: &mut Node| n.take(c).iter().map(body).collect::<Vec<_>>();
        for (to, count, expected) in [
            (Start::Count(1), 1, vec!["2", "3", "4"]),
            (Start::Oldest, 0, vec!["1", "2", "3"]),
            (Start::Timestamp(then), 3, vec!["4", "5"]),
            (Start::Offset(1), 0, vec!["1", "2", "3"]),
            (Start::Newest, 5, vec![]),
            (Start::LogId(crate::base::LogId(5)), 4, vec!["5"]),
        ] {
            let at = n.set_offset(1, to, false).expect("it is set");
            assert_eq!((at.count, at.log_id.0), (count, count as u64 + 1), "{to:?}, {cores} cores");
            assert_eq!(bodies(&mut n), expected, "{to:?}, {cores} cores");
        }
        n.send(c, format!("FIN {}\n", ids[1]).as_bytes());
        assert!(n.take(c)[0].starts_with("E_FIN_FAILED"), "a late FIN");
        let other = n.connect(0);
        n.send(other, b"SUB t ch 1\n");
        assert_eq!(n.set_offset(1, Start::Oldest, false), Err(SetOffsetError::NotFirstClient));
        assert_eq!(n.set_offset(1, Start::Oldest, true).map(|at| at.count), Ok(0));
        assert_eq!(n.set_offset(1, Start::Default, true), Err(SetOffsetError::NoPlace));
    }
}

/// A stretch that an operator finishes is finished, whether it was delivered or not, and the rest comes.
#[test]
fn a_stretch_is_finished_for_one_channel() {
    for cores in [1, 2] {
        let mut n = Node::new(cores, 2);
        let (p, c) = (n.connect(0), n.connect(0));
        n.publish_to(p, 1, &["1", "2", "3"]);
        n.publish_to(p, 1, &["4", "5"]);
        n.take(p);
        n.send(c, b"SUB t ch 1\nRDY 1\n");
        n.take(c);
        let at = n.finish_stretch(1, 2, 4).expect("it is finished");
        assert_eq!((at.count, at.log_id.0), (4, 5), "{cores} cores");
        n.send(c, b"RDY 5\n");
        let bodies: Vec<String> = n.take(c).iter().map(|m| m.rsplit(' ').next().expect("a body").to_owned()).collect();
        assert_eq!(bodies, ["1", "5"], "{cores} cores");
        assert_eq!(n.finish_stretch(1, 90, 99).map(|at| at.log_id.0), Ok(6), "nothing is there");
    }
}

/// The place that a client was told of a message is that message's.
#[test]
fn an_offset_that_a_client_was_told_is_where_its_message_stands() {
    let mut n = Node::new(1, 1);
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish_to(p, 0, &["first", "second", "third"]);
    n.send(c, b"SUB_ORDERED t ch 0\nRDY 1\n");
    let mut places = vec![];
    for _ in 0..3 {
        let got = n.take_placed(c).pop().expect("one at a time");
        n.in_flight(c, "FIN", got.id, "");
        places.push((got.offset, got.body));
    }
    for (offset, body) in places.into_iter().rev() {
        n.set_offset(0, Start::Offset(offset), false).expect("it is set");
        assert_eq!(n.take_placed(c).pop().expect("it comes").body, body);
    }
}

/// A change of the offset waits while a FIN of the ordered channel is on its way to the disk.
#[test]
fn an_offset_waits_for_the_fin_before_it() {
    let mut n = Node::new(1, 1);
    let (p, c) = (n.connect(0), n.connect(0));
    n.publish_to(p, 0, &["one", "two", "three"]);
    n.send(c, b"SUB_ORDERED t ch 0\nRDY 9\n");
    let id = n.take_placed(c)[0].id;
    n.step(0, Event::Bytes { conn: c, bytes: &[b"FIN ", &id.binary()[..], b"\n"].concat() });
    assert_eq!(n.set_offset(0, Start::Count(2), false).map(|at| at.count), Ok(2));
    let bodies: Vec<_> = n.take_placed(c).into_iter().map(|m| m.body).collect();
    assert_eq!(bodies.last().map(String::as_str), Some("three"), "{bodies:?}");
}

impl Node {
    fn set_order(&mut self, partition: u16, ordered: bool) {
        let topic = self.shards[0].engine.core.topics.known("t").expect("it is known everywhere").clone();
        let core = topic.core_of(PartitionId(partition), self.shards.len() as u16).0 as usize;
        let channel = ChannelName::new("ch").expect("valid");
        let set = Box::new(SetOrder { topic, partition: PartitionId(partition), channel, ordered });
        let message = MeshMessage::SetOrder { ticket: Ticket(6), set };
        self.step(core, Event::Mesh { from: CoreId::HTTP, message });
    }

    fn order_set(&mut self) -> Result<(), SetOffsetError> {
        self.run();
        match self.http.pop() {
            Some(MeshMessage::OrderSet { ticket: Ticket(6), result }) => result,
            other => panic!("no answer but {other:?}"),
        }
    }
}

#[test]
fn a_channel_is_made_ordered_and_ordinary_again() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 2);
        let (p, c) = (n.connect(0), n.connect(0));
        n.publish_to(p, 1, &["one", "two", "three"]);
        n.take(p);
        n.send(c, b"SUB t ch 1\nRDY 9\n");
        assert_eq!(n.take(c).len(), 4, "{cores} cores: an ordinary one gives all");
        n.set_order(1, true);
        assert_eq!((n.order_set(), n.http.len()), (Ok(()), 0));
        let got = n.take(c);
        assert!(got.len() == 1 && got[0].ends_with("one"), "what was in flight comes again, one at a time: {got:?}");
        n.send(c, format!("FIN {}\n", id_of(&got[0])).as_bytes());
        assert!(n.take(c).iter().map(|m| m.rsplit(' ').next()).eq([Some("two")]));
        n.set_order(1, false);
        assert_eq!(n.order_set(), Err(SetOffsetError::HasClients));
        n.set_order(1, true);
        assert_eq!(n.order_set(), Ok(()), "it is that already");
        n.step(n.clients[&c].0, Event::Closed { conn: c });
        n.run();
        n.set_order(1, false);
        assert_eq!(n.order_set(), Ok(()));
        let c = n.connect(0);
        n.send(c, b"SUB t ch 1\nRDY 9\n");
        assert_eq!(n.take(c).len(), 3, "both that are left");
        n.set_order(0, true);
        assert_eq!(n.order_set(), Err(SetOffsetError::NoChannel));
    }
}
