//! Numbers of messages that a client has published to each topic, for /stats.

/// Sorted by topic. A client that keeps to one topic costs a comparison per publish.
#[derive(Debug, Default)]
pub struct Published {
    counts: Vec<(Box<str>, u64)>,
    /// Index of the last one found.
    last: usize,
}

impl Published {
    pub fn add(&mut self, topic: &str, messages: usize) {
        if self.counts.get(self.last).is_none_or(|(t, _)| **t != *topic) {
            self.last = match self.counts.binary_search_by(|(t, _)| (**t).cmp(topic)) {
                Ok(at) => at,
                Err(at) => {
                    self.counts.insert(at, (topic.into(), 0));
                    at
                }
            };
        }
        self.counts[self.last].1 += messages as u64;
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(topic, count)| (&**topic, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_per_topic() {
        let mut p = Published::default();
        for (topic, n) in [("b", 1), ("a", 2), ("b", 3), ("c", 4), ("a", 5)] {
            p.add(topic, n);
        }
        assert_eq!(p.iter().collect::<Vec<_>>(), [("a", 7), ("b", 4), ("c", 4)]);
    }
}
