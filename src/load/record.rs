//! Observations of one thread's connections since they were last collected: one lock per batch of frames, and the collector takes the
//! whole by swapping it, once a second.

use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Ten minutes in nanoseconds; a longer time counts as this.
const NS_MAX: u64 = 600_000_000_000;

/// Further texts count as one.
const ERROR_TEXTS_MAX: usize = 64;

pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NS_MAX, 3).expect("the bounds are valid: 1 < 2 * NS_MAX, 3 digits")
}

pub fn record(histogram: &mut Histogram<u64>, ns: u64, times: u64) {
    histogram.saturating_record_n(ns.max(1), times);
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Count {
    pub messages: u64,
    pub bytes: u64,
}

impl Count {
    pub fn add(&mut self, messages: u64, bytes: u64) {
        self.messages += messages;
        self.bytes += bytes;
    }
}

pub struct LoadFigures {
    /// Publishes at any time, for the progress line.
    pub published_ever: Count,
    pub delivered_ever: Count,
    /// Messages within the measured time.
    pub published: Count,
    pub delivered: Count,
    /// Nanoseconds, of publishes and messages whose intended time is within the measured time.
    pub publish: Histogram<u64>,
    pub end_to_end: Histogram<u64>,
    /// Messages that an open loop should have sent and could not.
    pub behind: u64,
    pub errors: BTreeMap<String, u64>,
}

impl LoadFigures {
    pub fn new() -> Self {
        LoadFigures {
            published_ever: Count::default(),
            delivered_ever: Count::default(),
            published: Count::default(),
            delivered: Count::default(),
            publish: histogram(),
            end_to_end: histogram(),
            behind: 0,
            errors: BTreeMap::new(),
        }
    }

    pub fn error(&mut self, text: &str, count: u64) {
        let text = without_ids(text);
        if self.errors.len() < ERROR_TEXTS_MAX || self.errors.contains_key(&text) {
            *self.errors.entry(text).or_default() += count;
        } else {
            *self.errors.entry("other errors".into()).or_default() += count;
        }
    }

    pub fn merge(&mut self, other: &LoadFigures) {
        let counts = [
            (&mut self.published_ever, other.published_ever),
            (&mut self.delivered_ever, other.delivered_ever),
            (&mut self.published, other.published),
            (&mut self.delivered, other.delivered),
        ];
        counts.into_iter().for_each(|(to, from)| to.add(from.messages, from.bytes));
        // Adding an empty one costs as much as a full one: it walks all places.
        let times = [(&mut self.publish, &other.publish), (&mut self.end_to_end, &other.end_to_end)];
        for (to, from) in times.into_iter().filter(|(_, from)| !from.is_empty()) {
            to.add(from).expect("both have the same bounds");
        }
        self.behind += other.behind;
        other.errors.iter().for_each(|(text, count)| self.error(text, *count));
    }

    /// Keeps the memory of the histograms.
    pub fn clear(&mut self) {
        (self.published_ever, self.delivered_ever) = Default::default();
        (self.published, self.delivered) = Default::default();
        [&mut self.publish, &mut self.end_to_end].into_iter().filter(|h| !h.is_empty()).for_each(|h| h.reset());
        self.behind = 0;
        self.errors.clear();
    }
}

/// The same error of different messages has one text: a word of 16 hex digits is an id.
fn without_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() == 16 && word.bytes().all(|b| b.is_ascii_hexdigit());
    text.split(' ').map(|word| if is_id(word) { "<id>" } else { word }).collect::<Vec<_>>().join(" ")
}

/// Results of a thread's connections.
pub struct Recorder(Mutex<Box<LoadFigures>>);

impl Recorder {
    pub fn new() -> Self {
        Recorder(Mutex::new(Box::new(LoadFigures::new())))
    }

    pub fn lock(&self) -> MutexGuard<'_, Box<LoadFigures>> {
        self.0.lock().expect("no thread panics while it counts")
    }

    /// Takes the figures since the last call; `fresh` must be clear.
    pub fn swap(&self, fresh: &mut Box<LoadFigures>) {
        std::mem::swap(&mut *self.lock(), fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_a_cleared_one_is_empty() {
        let (mut all, mut part) = (LoadFigures::new(), LoadFigures::new());
        for round in 1..=3u64 {
            part.published.add(10, 100);
            record(&mut part.publish, round * 1000, 1);
            record(&mut part.publish, u64::MAX, 1);
            part.error("E_FIN_FAILED FIN 0123456789abcdef failed", 2);
            all.merge(&part);
            part.clear();
            assert_eq!((part.publish.len(), part.published, part.errors.len()), (0, Count::default(), 0));
        }
        assert_eq!((all.published.messages, all.publish.len()), (30, 6));
        assert_eq!(all.errors.into_iter().collect::<Vec<_>>(), [("E_FIN_FAILED FIN <id> failed".to_string(), 6)]);
    }

    #[test]
    fn many_different_errors_stay_few() {
        let mut seen = LoadFigures::new();
        (0..1000).for_each(|i| seen.error(&format!("error {i}"), 1));
        assert_eq!((seen.errors.len(), seen.errors.values().sum::<u64>()), (ERROR_TEXTS_MAX + 1, 1000));
    }
}
