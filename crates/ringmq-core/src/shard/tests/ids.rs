//! Message ids: over topics and partitions no two are equal, and one that names nothing here is not in flight.

use super::*;
use std::collections::BTreeSet;

#[test]
fn ids_differ_over_topics_and_partitions_and_stay() {
    for cores in [1, 2, 3] {
        let mut n = Node::new(cores, 3);
        let p = n.connect(0);
        let mut ids = BTreeSet::new();
        for topic in ["a", "b", "c"] {
            (0..12).for_each(|i| n.publish(p, topic, &i.to_string()));
            let mut deliveries = [1, 2].map(|attempts| {
                let c = n.connect(cores as usize - 1);
                n.send(c, format!("SUB {topic} ch\nRDY 100\n").as_bytes());
                let mut got = n.take(c).split_off(1);
                got.sort();
                assert!(got.len() == 12 && got.iter().all(|m| m.split(' ').nth(1) == Some(&attempts.to_string())), "{got:?}");
                let core = n.clients[&c].0;
                n.step(core, Event::Closed { conn: c });
                n.run();
                got.iter().map(|m| id_of(m).to_owned()).collect::<Vec<_>>()
            });
            assert_eq!(deliveries[0], deliveries[1], "{cores} cores: a message keeps its id");
            ids.extend(std::mem::take(&mut deliveries[0]));
        }
        assert_eq!(ids.len(), 36, "{cores} cores: {ids:?}");
    }
}

#[test]
fn an_id_that_names_nothing_in_the_topic_is_not_in_flight() {
    for cores in [1, 2] {
        let mut n = Node::new(cores, 3);
        let (p, c, d) = (n.connect(0), n.connect(0), n.connect(0));
        (0..6).for_each(|i| n.publish(p, "t", &i.to_string()));
        n.publish(p, "other", "x");
        n.send(c, b"SUB t ch\nRDY 100\n");
        let got = n.take(c).split_off(1);
        n.send(d, b"SUB_ORDERED other ch 0\n");
        assert_eq!(n.take(d), ["OK"]);
        let of = |partition, log_id| n.message_id("t", partition, log_id);
        let ids = [
            n.message_id("other", 0, 1),
            of(0, 0),
            of(2, 3),
            of(2, LogId::MAX.0),
            of(3, 1),
            of(1023, 0),
            of(1023, LogId::MAX.0),
            MessageId(0),
            MessageId(1),
            MessageId(u64::MAX),
        ];
        for id in ids {
            for (name, rest) in [("FIN", ""), ("REQ", " 0"), ("TOUCH", "")] {
                let hex = String::from_utf8(id.hex().to_vec()).expect("hex");
                n.send(c, format!("{name} {hex}{rest}\n").as_bytes());
                assert_eq!(n.take(c), [format!("E_{name}_FAILED {name} {hex} failed ID not in flight")], "{cores} cores");
                n.send(d, &[name.as_bytes(), b" ", &id.binary(), rest.as_bytes(), b"\n"].concat());
                let said = n.take(d);
                assert!(said.len() == 1 && said[0].starts_with(&format!("E_{name}_FAILED ")), "{cores} cores: {said:?}");
            }
        }
        for message in got {
            n.send(c, format!("FIN {}\n", id_of(&message)).as_bytes());
            assert_eq!(n.take(c), Vec::<String>::new(), "{cores} cores");
        }
        assert!(n.closed.is_empty());
    }
}
