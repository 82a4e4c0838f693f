//! Changes of topics and channels as the HTTP thread receives them.

use super::*;
use crate::seam::message::CatalogChange;

/// Changes that were told since the last call, in the order of each core.
fn told(n: &mut Node) -> Vec<String> {
    let shown = n.catalog.drain(..).map(|change| match change {
        CatalogChange::Topic { topic, is_new } => format!("+{} {is_new}", topic.name),
        CatalogChange::TopicGone { topic } => format!("-{}", topic.name),
        CatalogChange::Channel { topic, partition, channel } => format!("+{}/{partition}/{channel}", topic.name),
        CatalogChange::ChannelGone { topic, partition, channel } => format!("-{}/{partition}/{channel}", topic.name),
    });
    let mut shown: Vec<String> = shown.collect();
    shown.sort();
    shown
}

#[test]
fn what_comes_and_goes_is_told_once_and_publishes_tell_nothing() {
    for cores in [1, 3] {
        let settings = Settings { partitions: 2, ..Settings::default() };
        let mut n = Node::with(cores, settings);
        let p = n.connect(0);
        n.publish(p, "t", "x");
        assert_eq!(told(&mut n), ["+t true"]);
        n.publish(p, "t", "y");
        n.publish(p, "t", "z");
        assert_eq!(told(&mut n), [""; 0]);
        let c = n.connect(0);
        n.send(c, b"SUB t c\n");
        assert_eq!(told(&mut n), ["+t/0/c", "+t/1/c"]);
        let e = n.connect(0);
        n.send(e, b"SUB v#ephemeral e#ephemeral\n");
        assert_eq!(told(&mut n), ["+v#ephemeral true", "+v#ephemeral/0/e#ephemeral", "+v#ephemeral/1/e#ephemeral"]);
        for core in 0..cores as usize {
            n.step(core, Event::Closed { conn: e });
        }
        n.run();
        assert_eq!(told(&mut n), ["-v#ephemeral", "-v#ephemeral/0/e#ephemeral", "-v#ephemeral/1/e#ephemeral"]);
    }
}
