//! Checks that a node at rest loses nothing by stopping.

use super::{Book, topic_number};
use crate::log::recovery::Recovered;
use crate::log::recovery::channels::is_confirmed;

impl Book {
    /// Checks that a clean stop left no ephemeral topic on the disk.
    pub fn ephemeral_topics_go(&self, r: &Recovered) {
        let left = r.topics.iter().find(|t| t.name.is_ephemeral());
        assert!(left.is_none(), "ephemeral_topics_go: {left:?} is still there");
    }

    /// Checks that no cursor lost a FIN after a clean stop of a node at rest.
    pub fn a_clean_stop_forgets_no_fin(&self, r: &Recovered) {
        for p in &r.partitions {
            let topic = topic_number(&p.topic.name);
            for image in &p.channels {
                let known = self.channels.get(&(topic, image.name.to_string()));
                let finished = known.into_iter().flat_map(|c| &c.finished);
                for (n, id) in finished.map(|n| (n, self.places[n])).filter(|(_, id)| id.partition == p.dir.partition) {
                    assert!(is_confirmed(image, id.log_id), "quiet_node_drains: the stop forgot {n} ({id:?}) of {image:?}");
                }
            }
        }
    }
}
