//! First channel of a topic, where partitions would say different things.

use super::*;

/// A client of one partition has made a channel there: partition 0 does not know it, or is the only one that does.
#[test]
fn what_partition_0_says_of_a_channel_holds_in_every_partition() {
    for (cores, alone_in) in [(1, 0), (2, 0), (1, 1), (2, 1)] {
        let mut n = Node::new(cores, 2);
        let p = n.connect(0);
        n.publish_to(p, 0, &["zero"]);
        n.publish_to(p, 1, &["one"]);
        let alone = n.connect(0);
        n.send(alone, format!("SUB t alone {alone_in}\nRDY 0\n").as_bytes());
        let c = n.connect(cores as usize - 1);
        n.send(c, b"SUB t ch\nRDY 9\n");
        let mut got: Vec<String> = n.take(c).iter().map(|m| m.rsplit(' ').next().expect("a body").to_owned()).collect();
        got.sort();
        let expected: &[&str] = if alone_in == 0 { &["OK"] } else { &["OK", "one", "zero"] };
        assert_eq!(got, expected, "{cores} cores, partition {alone_in} has another channel");
    }
}
