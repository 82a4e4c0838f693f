//! Promises that a run must keep, checked by its history alone: the messages that clients sent, the answers and deliveries that they got,
//! their FINs, and the logs in the end. Pure: no clock, no socket. Each complaint begins with the checker's name.

use super::record::{Event, Fact, Message, Topic};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A channel that was consumed to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    pub topic: Topic,
    pub name: &'static str,
    /// True if one consumer at a time read each partition, by SUB_ORDERED.
    pub is_ordered: bool,
}

/// Messages of a partition's log with their log ids, by log id.
pub type Log = Vec<(u64, Message)>;

/// A run that is over.
#[derive(Default)]
pub struct History {
    /// Events in the order in which they happened.
    pub events: Vec<Event>,
    pub channels: Vec<Channel>,
    /// Messages that a reader found in each partition, from the first one on, when the cluster was at rest.
    pub logs: BTreeMap<(Topic, u16), Log>,
}

/// Events of one message; numbers are indices of events.
#[derive(Default)]
struct Fate {
    sent: Option<usize>,
    acknowledged: Option<usize>,
    refused: Option<usize>,
    unknown: Option<usize>,
}

/// Complaints per checker that are printed; a broken run has thousands.
const COMPLAINTS_MAX: usize = 5;

/// All complaints about a run; none when it kept every promise.
pub fn check(history: &History) -> Vec<String> {
    let judge = Judge::new(history);
    let all = [
        judge.told_once(),
        judge.acked_survives(),
        judge.acked_is_delivered(),
        judge.none_invented(),
        judge.refused_stays_away(),
        judge.consumed_is_committed(),
        judge.stored_once(),
        judge.log_keeps_real_time(),
        judge.producers_in_order(),
        judge.ordered_channel_in_order(),
        judge.deferred_not_early(),
    ];
    all.into_iter().flat_map(shortened).collect()
}

fn shortened(mut complaints: Vec<String>) -> Vec<String> {
    let more = complaints.len().saturating_sub(COMPLAINTS_MAX);
    complaints.truncate(COMPLAINTS_MAX);
    if more > 0 {
        complaints.push(format!("... and {more} more of the kind"));
    }
    complaints
}

struct Judge<'a> {
    history: &'a History,
    fates: HashMap<Message, Fate>,
    /// Partition and index in its log; of the first copy.
    places: HashMap<Message, (u16, usize)>,
}

impl Judge<'_> {
    fn new(history: &History) -> Judge<'_> {
        let mut fates: HashMap<Message, Fate> = HashMap::new();
        for (index, event) in history.events.iter().enumerate() {
            match event.fact {
                Fact::Sent { message, .. } => fates.entry(message).or_default().sent = Some(index),
                Fact::Acknowledged(message) => fates.entry(message).or_default().acknowledged = Some(index),
                Fact::Refused(message) => fates.entry(message).or_default().refused = Some(index),
                Fact::Unknown(message) => fates.entry(message).or_default().unknown = Some(index),
                Fact::Delivered { .. } | Fact::Finished { .. } => {}
            }
        }
        let mut places = HashMap::new();
        for ((_, partition), log) in &history.logs {
            for (index, (_, message)) in log.iter().enumerate() {
                places.entry(*message).or_insert((*partition, index));
            }
        }
        Judge { history, fates, places }
    }

    fn acknowledged(&self) -> impl Iterator<Item = (Message, usize)> {
        self.fates.iter().filter_map(|(message, fate)| Some((*message, fate.acknowledged?)))
    }

    /// Index of the event, channel, message, and the place that the client was given.
    fn deliveries(&self) -> impl Iterator<Item = (usize, &'static str, Message)> {
        self.history.events.iter().enumerate().filter_map(|(index, event)| match event.fact {
            Fact::Delivered { channel, message, .. } => Some((index, channel, message)),
            _ => None,
        })
    }

    fn stored(&self) -> impl Iterator<Item = Message> {
        self.history.logs.values().flatten().map(|(_, message)| *message)
    }

    /// Checks that each message has at most one outcome.
    fn told_once(&self) -> Vec<String> {
        let answers = |fate: &Fate| [fate.acknowledged, fate.refused, fate.unknown].into_iter().flatten().count();
        let twice = self.fates.iter().filter(|(_, fate)| answers(fate) > 1);
        twice.map(|(message, _)| format!("told_once: {message:?} has several outcomes")).collect()
    }

    /// Checks that every acknowledged message is in a log in the end.
    fn acked_survives(&self) -> Vec<String> {
        let lost = self.acknowledged().filter(|(message, _)| !self.places.contains_key(message));
        lost.map(|(message, at)| format!("acked_survives: {message:?}, acknowledged {}, is in no log", self.when(at))).collect()
    }

    /// Every channel of a topic got what was acknowledged.
    fn acked_is_delivered(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for channel in &self.history.channels {
            let of_channel =
                self.deliveries().filter(|(_, name, message)| *name == channel.name && message.topic == channel.topic);
            let given: BTreeSet<Message> = of_channel.map(|(.., message)| message).collect();
            let missing = self.acknowledged().filter(|(message, _)| message.topic == channel.topic && !given.contains(message));
            complaints.extend(missing.map(|(message, at)| {
                format!("acked_is_delivered: {message:?}, acknowledged {}, never came to {}", self.when(at), channel.name)
            }));
        }
        complaints
    }

    /// Checks that every stored message was sent, and every delivered one was sent before.
    fn none_invented(&self) -> Vec<String> {
        let is_sent = |message: &Message| self.fates.get(message).is_some_and(|fate| fate.sent.is_some());
        let strange = self.stored().filter(|message| !is_sent(message));
        let mut complaints: Vec<String> = strange.map(|m| format!("none_invented: {m:?} is stored and nobody sent it")).collect();
        for (index, channel, message) in self.deliveries() {
            let sent = self.fates.get(&message).and_then(|fate| fate.sent);
            if sent.is_none_or(|sent| sent > index) {
                complaints.push(format!("none_invented: {message:?} came to {channel} {} before it was sent", self.when(index)));
            }
        }
        complaints
    }

    /// Checks that a message refused as "not stored" is in no log and is delivered to no consumer.
    fn refused_stays_away(&self) -> Vec<String> {
        let refused = |message: &Message| self.fates.get(message).and_then(|fate| fate.refused);
        let stored = self.stored().filter_map(|m| Some((m, refused(&m)?)));
        let mut complaints: Vec<String> =
            stored.map(|(m, at)| format!("refused_stays_away: {m:?}, refused {}, is stored", self.when(at))).collect();
        for (index, channel, message) in self.deliveries() {
            if let Some(at) = refused(&message) {
                let (at, came) = (self.when(at), self.when(index));
                complaints.push(format!("refused_stays_away: {message:?}, refused {at}, came to {channel} {came}"));
            }
        }
        complaints
    }

    /// Checks that every delivered message is in a log in the end: it was committed, and not only on a replica that did not keep it.
    fn consumed_is_committed(&self) -> Vec<String> {
        let gone = self.deliveries().filter(|(.., message)| !self.places.contains_key(message));
        gone.map(|(at, channel, message)| {
            format!("consumed_is_committed: {message:?} came to {channel} {} and is in no log", self.when(at))
        })
        .collect()
    }

    /// No message is stored twice, and clients were given one place for one message: no producer of these runs sends a message again, but
    /// for the idempotent ones.
    fn stored_once(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut seen: HashMap<Message, (u16, u64)> = HashMap::new();
        for ((_, partition), log) in &self.history.logs {
            for (log_id, message) in log {
                if let Some(first) = seen.insert(*message, (*partition, *log_id)) {
                    complaints.push(format!("stored_once: {message:?} is at {first:?} and at {:?}", (partition, log_id)));
                }
            }
        }
        let mut ids: HashMap<(Topic, [u8; 16]), Message> = HashMap::new();
        let mut names: HashMap<Message, [u8; 16]> = HashMap::new();
        for event in &self.history.events {
            let Fact::Delivered { message, id: Some(id), channel } = event.fact else { continue };
            let other = ids.insert((message.topic, id), message).filter(|other| *other != message);
            if let Some(other) = other {
                complaints.push(format!("stored_once: {message:?} and {other:?} came to {channel} under one id"));
            }
            if names.insert(message, id).is_some_and(|before| before != id) {
                complaints.push(format!("stored_once: {message:?} came to {channel} under two ids"));
            }
        }
        complaints
    }

    /// Checks that a message that was acknowledged before another one was sent stands before it, if both are of one partition.
    fn log_keeps_real_time(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for log in self.history.logs.values() {
            // From the end: the earliest acknowledgement of what stands behind.
            let mut earliest: Option<(usize, Message)> = None;
            for (_, message) in log.iter().rev() {
                let Some(fate) = self.fates.get(message) else { continue };
                if let (Some(sent), Some((acknowledged, behind))) = (fate.sent, earliest)
                    && acknowledged < sent
                {
                    let (acked, sent) = (self.when(acknowledged), self.when(sent));
                    complaints.push(format!(
                        "log_keeps_real_time: {message:?}, sent {sent}, stands before {behind:?}, acknowledged {acked}"
                    ));
                }
                if let Some(at) = fate.acknowledged.filter(|at| earliest.is_none_or(|(earliest, _)| *at < earliest)) {
                    earliest = Some((at, *message));
                }
            }
        }
        complaints
    }

    /// Checks that the messages of one producer to one partition stand in the order of their numbers. A message without an
    /// acknowledgement may stand behind a later one: its producer gave it up.
    fn producers_in_order(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for ((topic, partition), log) in &self.history.logs {
            let mut last: HashMap<u16, u32> = HashMap::new();
            let is_acknowledged = |message: &Message| self.fates.get(message).is_some_and(|fate| fate.acknowledged.is_some());
            for message in log.iter().map(|(_, message)| message).filter(|message| is_acknowledged(message)) {
                let before = last.insert(message.producer, message.number);
                if let Some(before) = before.filter(|before| *before > message.number) {
                    complaints.push(format!("producers_in_order: {message:?} stands behind {before} in {topic:?}/{partition}"));
                }
            }
        }
        complaints
    }

    /// An ordered channel gives the messages of a partition as the log has them: after each the same again, or the next one once its
    /// consumer has finished it.
    fn ordered_channel_in_order(&self) -> Vec<String> {
        let ordered = self.history.channels.iter().filter(|channel| channel.is_ordered);
        ordered.flat_map(|channel| self.one_channel_in_order(*channel)).collect()
    }

    fn one_channel_in_order(&self, of: Channel) -> Vec<String> {
        let mut complaints = Vec::new();
        // By partition: the messages that were finished, from the first one on, and the one that is due.
        let mut finished: HashMap<u16, usize> = HashMap::new();
        let mut due: HashMap<u16, usize> = HashMap::new();
        for (at, event) in self.history.events.iter().enumerate() {
            let (channel, message, is_finish) = match event.fact {
                Fact::Delivered { channel, message, .. } => (channel, message, false),
                Fact::Finished { channel, message } => (channel, message, true),
                _ => continue,
            };
            let place = self.places.get(&message).filter(|_| channel == of.name && message.topic == of.topic);
            let Some((partition, index)) = place else { continue };
            let (finished, due) = (finished.entry(*partition).or_default(), due.entry(*partition).or_default());
            if is_finish {
                *finished = (*finished).max(index + 1);
                continue;
            }
            let (when, what) = (self.when(at), "ordered_channel_in_order");
            if *index != *due && *index + 1 != *due {
                complaints
                    .push(format!("{what}: {message:?} came {when} as number {index} of partition {partition}, due was {due}"));
            } else if *index > *finished {
                complaints.push(format!("{what}: {message:?} came {when} before what stands before it was finished"));
            }
            *due = index + 1;
        }
        complaints
    }

    /// No deferred message comes before its time.
    fn deferred_not_early(&self) -> Vec<String> {
        let mut due = HashMap::new();
        for event in &self.history.events {
            if let Fact::Sent { message, due: Some(at) } = event.fact {
                due.insert(message, at);
            }
        }
        let came = self.deliveries().map(|(index, channel, message)| (self.history.events[index].at, channel, message));
        came.filter_map(|(at, channel, message)| {
            let early = due.get(&message)?.checked_sub(at).filter(|early| !early.is_zero())?;
            Some(format!("deferred_not_early: {message:?} came to {channel} {early:?} too early"))
        })
        .collect()
    }

    /// The time of an event, for people.
    fn when(&self, index: usize) -> String {
        format!("at {:.3} s", self.history.events[index].at.as_secs_f64())
    }
}

#[cfg(test)]
mod tests;
