//! One connection's subscription, on the connection's core: it owns RDY and lends it to the partitions.
//!
//! ```text
//! RDY n ──> sum of what is lent <= n      a partition delivers while in flight < what it was lent;
//!           Lend / Recall                 what a FIN, REQ or timeout frees stays with the partition that had it
//!           Hungry / Returned
//! ```
//! So never more than RDY messages are in flight in all, whatever the number of partitions and cores.

use crate::base::{ChannelName, ConnId, CoreId, IdMap, MessageId, MessageIds, MessagePlace, PartitionId, SubId, Ticks, TopicRef};
use crate::seam::{
    message::{SubOptions, SubRequest},
    outcome::PublishError,
};
use crate::session::ReplySlot;
use std::collections::BTreeSet;
use std::time::Duration;

/// Change of the credit that a partition has for a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LendAction {
    Lend { part: usize, credit: u32 },
    Recall { part: usize, credit: u32 },
}

#[derive(Debug)]
pub struct Part {
    pub partition: PartitionId,
    pub core: CoreId,
    /// Credit that is lent and not returned, with recalled credit that is not back yet.
    pub lent: u32,
    recalled: u32,
    /// SUB counts its answer.
    is_awaited: bool,
    /// Place in the queue of partitions that have messages and no credit.
    hungry: Option<u64>,
}

impl Part {
    pub fn new(partition: PartitionId, core: CoreId) -> Self {
        Part { partition, core, lent: 0, recalled: 0, is_awaited: true, hungry: None }
    }
}

/// Subscriptions of this core's NSQ connections.
#[derive(Default)]
pub struct Subscriptions {
    by_conn: IdMap<ConnId, Subscription>,
    /// Connections whose SUB the first partition has answered: the other partitions are asked next.
    opening: Vec<ConnId>,
    /// Emptied list of decisions.
    spare: Vec<LendAction>,
    /// Connections that lack a partition which they want, in a cluster.
    lacking: BTreeSet<ConnId>,
    /// Time of the last request for the partitions that connections lack.
    asked_at: Ticks,
}

/// Pause before a partition whose leader was lost, or refused, is asked for again.
const REJOIN_PAUSE: Duration = Duration::from_millis(200);

impl Subscriptions {
    pub fn get(&self, conn: ConnId) -> Option<&Subscription> {
        self.by_conn.get(&conn)
    }

    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut Subscription> {
        self.by_conn.get_mut(&conn)
    }

    pub fn contains(&self, conn: ConnId) -> bool {
        self.by_conn.contains_key(&conn)
    }

    /// Core of the partition, if the connection reads it.
    pub fn part_core(&self, conn: ConnId, partition: PartitionId) -> Option<CoreId> {
        let s = self.get(conn)?;
        Some(s.parts[s.part_of(partition)?].core)
    }

    /// Place of the message with this id in the topic that the connection has subscribed to, and the partition's core. `None`: the
    /// subscription has no such partition.
    pub fn place_named(&self, conn: ConnId, id: MessageId) -> Option<(CoreId, MessagePlace)> {
        let s = self.get(conn)?;
        let place = s.ids.place(id);
        Some((s.parts[s.part_of(place.partition)?].core, place))
    }

    pub fn insert(&mut self, conn: ConnId, subscription: Subscription) {
        self.by_conn.insert(conn, subscription);
    }

    pub fn remove(&mut self, conn: ConnId) -> Option<Subscription> {
        self.by_conn.remove(&conn)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Subscription)> {
        self.by_conn.iter().map(|(conn, s)| (*conn, s))
    }

    /// The connection wants a partition that it does not have. Returns when it may ask for it.
    pub fn lacks(&mut self, conn: ConnId) -> Ticks {
        self.lacking.insert(conn);
        self.asked_at + REJOIN_PAUSE
    }

    /// The connections that lack a partition: they ask now.
    pub fn take_lacking(&mut self, now: Ticks) -> Vec<ConnId> {
        self.asked_at = now;
        std::mem::take(&mut self.lacking).into_iter().filter(|conn| self.by_conn.contains_key(conn)).collect()
    }

    pub fn expect_opening(&mut self, conn: ConnId) {
        self.opening.push(conn);
    }

    pub fn has_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    pub fn take_opening(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.opening)
    }

    /// Lets the connection's subscription decide, and returns its actions. The caller carries them out and gives the list back.
    pub fn decide(&mut self, conn: ConnId, decide: impl FnOnce(&mut Subscription, &mut Vec<LendAction>)) -> Vec<LendAction> {
        let mut actions = std::mem::take(&mut self.spare);
        if let Some(s) = self.by_conn.get_mut(&conn) {
            decide(s, &mut actions);
        }
        actions
    }

    pub fn give_back(&mut self, mut actions: Vec<LendAction>) {
        actions.clear();
        self.spare = actions;
    }
}

/// The partitions of a cluster's topic that a subscription reads.
#[derive(Debug)]
struct Follows {
    /// The only partition that the subscription reads; `None`: all.
    only: Option<PartitionId>,
    /// Time since which the subscription has none of its partitions.
    idle_since: Option<Ticks>,
    /// The log has that it goes on without a partition.
    is_told: bool,
}

#[derive(Debug)]
pub struct Subscription {
    pub topic: TopicRef,
    /// Message ids of the topic, as the client sees them.
    pub ids: MessageIds,
    pub channel: ChannelName,
    /// Ascending.
    pub parts: Vec<Part>,
    /// Partitions that the subscription reads in a cluster, from whichever leader. `None`: the node is stand-alone.
    follows: Option<Follows>,
    /// SUB's answer, until every partition has its cursor durable.
    pub slot: Option<ReplySlot>,
    unanswered: usize,
    failed: Option<PublishError>,
    /// True after the channel was deleted in one of its partitions: the connection ends.
    pub channel_deleted: bool,
    pub blocked: bool,
    pub options: SubOptions,
    /// The first partition has answered and the others were asked; until then nothing is lent.
    is_open: bool,
    /// Whether the channel is its topic's first one, as the first partition said.
    first: Option<bool>,
    /// True if the channel is the first one of each partition, which judges that for itself.
    pub is_alone: bool,
    rdy: u32,
    hungry_seq: u64,
}

impl Subscription {
    pub fn new(topic: TopicRef, channel: ChannelName, options: SubOptions, slot: ReplySlot, parts: Vec<Part>) -> Self {
        Subscription {
            is_open: parts.len() == 1,
            unanswered: parts.len(),
            parts,
            follows: None,
            ids: MessageIds::of(topic.id),
            topic,
            channel,
            slot: Some(slot),
            failed: None,
            channel_deleted: false,
            blocked: false,
            options,
            first: None,
            is_alone: false,
            rdy: 0,
            hungry_seq: 0,
        }
    }

    /// The subscription reads all partitions of a cluster's topic, or only one, from whichever leader.
    pub fn follow(&mut self, only: Option<PartitionId>) {
        self.follows = Some(Follows { only, idle_since: None, is_told: false });
        (self.is_open, self.is_alone) = (true, true);
    }

    /// The request to a partition.
    pub fn request(&self, sub: SubId, partition: PartitionId) -> SubRequest {
        let (topic, channel, options) = (self.topic.clone(), self.channel.clone(), self.options.clone());
        SubRequest { sub, topic, partition, channel, options, first: self.first, is_alone: self.is_alone }
    }

    pub fn part_of(&self, partition: PartitionId) -> Option<usize> {
        // As a rule its partitions follow each other.
        let first = self.parts.first()?.partition;
        match self.parts.get(partition.0.checked_sub(first.0)? as usize) {
            Some(part) if part.partition == partition => Some((partition.0 - first.0) as usize),
            _ => self.parts.binary_search_by_key(&partition, |p| p.partition).ok(),
        }
    }

    /// A partition comes to it; nothing is lent to it yet.
    pub fn join(&mut self, part: Part) {
        let i = self.parts.partition_point(|p| p.partition < part.partition);
        self.parts.insert(i, part);
        if self.slot.is_some() {
            self.unanswered += 1;
        }
    }

    /// Whether partitions have leaders that may change.
    pub fn follows_leaders(&self) -> bool {
        self.follows.is_some()
    }

    /// Whether it wants the partition and does not have it.
    pub fn lacks(&self, partition: PartitionId) -> bool {
        let wants = |f: &Follows| f.only.is_none_or(|only| only == partition);
        self.follows.as_ref().is_some_and(wants) && self.part_of(partition).is_none()
    }

    /// Whether it has a partition, which has answered.
    fn has_any(&self) -> bool {
        self.parts.iter().any(|part| !part.is_awaited)
    }

    pub fn lacks_any(&self) -> bool {
        let wanted = |f: &Follows| f.only.map_or(self.topic.partitions as usize, |_| 1);
        self.follows.as_ref().is_some_and(|f| self.parts.len() < wanted(f))
    }

    /// Takes in a partition's answer to SUB: whether the channel is the topic's first one, or a refusal. True: the first partition has
    /// answered, and the others are to be asked.
    pub fn on_answer(&mut self, partition: PartitionId, result: Result<bool, PublishError>) -> bool {
        self.failed = self.failed.or(result.err());
        self.answered(partition);
        if let Some(follows) = &mut self.follows {
            if result.is_ok() {
                (follows.idle_since, follows.is_told) = (None, false);
            }
            return false;
        }
        if partition != self.parts[0].partition {
            return false;
        }
        self.first = result.ok();
        if result.is_err() {
            // No other partition is asked.
            self.unanswered = 0;
        }
        result.is_ok()
    }

    /// The answer to SUB, once: when every partition has answered, and there is one.
    pub fn take_answer(&mut self) -> Option<(ReplySlot, Result<(), PublishError>)> {
        let is_answered = self.unanswered == 0 && (!self.parts.is_empty() || self.failed.is_some());
        let slot = self.slot.take_if(|_| is_answered)?;
        Some((slot, self.failed.map_or(Ok(()), Err)))
    }

    /// Whether the connection may leave a topic behind in which no channel of it says so when it goes.
    pub fn leaves_no_channel(&self) -> bool {
        self.slot.is_some() || self.failed.is_some() || self.channel_deleted
    }

    /// Whether the subscription has had none of its partitions for so long. To be asked now and then, since when it has none.
    pub fn is_idle_for(&mut self, now: Ticks, limit: Duration) -> bool {
        let is_idle = !self.has_any();
        let Some(follows) = &mut self.follows else { return false };
        follows.idle_since = is_idle.then(|| follows.idle_since.unwrap_or(now));
        follows.idle_since.is_some_and(|since| now.since(since) >= limit)
    }

    /// The log has, once, that the subscription goes on without a partition.
    pub fn log_refusal(&mut self, partition: PartitionId, error: PublishError) {
        let Some(follows) = &mut self.follows else { return };
        if !std::mem::replace(&mut follows.is_told, true) {
            let (topic, channel) = (&self.topic.name, &self.channel);
            tracing::warn!(%topic, %partition, %channel, %error, "a subscription goes on without a partition, and tries the partition \
                again; logged once");
        }
    }

    fn answered(&mut self, partition: PartitionId) {
        if let Some(i) = self.part_of(partition)
            && std::mem::replace(&mut self.parts[i].is_awaited, false)
        {
            self.unanswered = self.unanswered.saturating_sub(1);
        }
    }

    /// A partition has dropped the subscription, and the credit that it was lent.
    pub fn leave(&mut self, partition: PartitionId, out: &mut Vec<LendAction>) {
        if let Some(i) = self.part_of(partition) {
            self.answered(partition);
            self.parts.remove(i);
            if !self.parts.is_empty() {
                self.balance(out);
            }
        }
    }

    /// Partitions that know of this client.
    pub fn asked(&self) -> usize {
        if self.is_open { self.parts.len() } else { 1 }
    }

    /// Lends the client's RDY to the partitions, which have all been asked for the channel.
    pub fn open(&mut self, out: &mut Vec<LendAction>) {
        self.is_open = true;
        self.balance(out);
    }

    pub fn set_rdy(&mut self, rdy: u32, out: &mut Vec<LendAction>) {
        self.rdy = rdy;
        self.balance(out);
    }

    pub fn on_hungry(&mut self, part: usize, out: &mut Vec<LendAction>) {
        if self.parts.len() > 1 && self.parts[part].hungry.is_none() {
            self.hungry_seq += 1;
            self.parts[part].hungry = Some(self.hungry_seq);
            self.balance(out);
        }
    }

    pub fn on_returned(&mut self, part: usize, credit: u32, out: &mut Vec<LendAction>) {
        let p = &mut self.parts[part];
        assert!(credit <= p.lent, "a partition returns only what it was lent");
        p.lent -= credit;
        p.recalled = p.recalled.saturating_sub(credit);
        self.balance(out);
    }

    fn balance(&mut self, out: &mut Vec<LendAction>) {
        if !self.is_open || self.parts.is_empty() {
            return;
        }
        let lent: u32 = self.parts.iter().map(|p| p.lent).sum();
        let coming_back: u32 = self.parts.iter().map(|p| p.recalled).sum();
        if lent - coming_back > self.rdy {
            self.recall(lent - coming_back - self.rdy, None, out);
        } else if lent < self.rdy {
            self.lend(self.rdy - lent, out);
        }
        self.feed_hungry(out);
    }

    /// Lends credit: to the hungry partitions first, the longest waiting first; then to those with least credit.
    fn lend(&mut self, mut spare: u32, out: &mut Vec<LendAction>) {
        while spare > 0 {
            let hungry = self.parts.iter().filter(|p| p.hungry.is_some()).count() as u32;
            let next = match hungry {
                0 => (0..self.parts.len()).min_by_key(|&i| self.parts[i].lent),
                _ => (0..self.parts.len()).filter(|&i| self.parts[i].hungry.is_some()).min_by_key(|&i| self.parts[i].hungry),
            };
            let part = next.expect("a topic has a partition");
            let sharers = if hungry > 0 { hungry } else { self.parts.len() as u32 };
            let credit = spare.div_ceil(sharers);
            self.parts[part].lent += credit;
            self.parts[part].hungry = None;
            spare -= credit;
            out.push(LendAction::Lend { part, credit });
        }
    }

    /// Takes `credit` back from those that have most, sparing `except`.
    fn recall(&mut self, mut credit: u32, except: Option<usize>, out: &mut Vec<LendAction>) {
        while credit > 0 {
            let held = |p: &Part| p.lent - p.recalled;
            let richest = (0..self.parts.len()).filter(|&i| Some(i) != except).max_by_key(|&i| held(&self.parts[i]));
            let Some(part) = richest.filter(|&i| held(&self.parts[i]) > 0) else { return };
            let take = credit.min(held(&self.parts[part]).div_ceil(2));
            self.parts[part].recalled += take;
            credit -= take;
            out.push(LendAction::Recall { part, credit: take });
        }
    }

    /// A hungry partition without credit gets some back from the others, so that none starves when RDY is small.
    fn feed_hungry(&mut self, out: &mut Vec<LendAction>) {
        let fair = (self.rdy / self.parts.len() as u32).max(1);
        let coming_back: u32 = self.parts.iter().map(|p| p.recalled).sum();
        let waiting = (0..self.parts.len()).filter(|&i| self.parts[i].hungry.is_some() && self.parts[i].lent < fair);
        let Some(part) = waiting.min_by_key(|&i| self.parts[i].hungry) else { return };
        if self.rdy > 0 && coming_back == 0 {
            self.recall(fair - self.parts[part].lent, Some(part), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Rng, TopicId, TopicInfo, TopicName};

    fn subscription(partitions: u16) -> Subscription {
        let topic = TopicInfo { name: TopicName::new("t").expect("valid"), id: TopicId([1; 16]), partitions };
        let options = SubOptions {
            msg_timeout_ms: 1,
            sample_rate: 0,
            ranged: false,
            ordered: false,
            placed: false,
            client: Default::default(),
        };
        let topic = TopicRef::from(topic);
        let parts = (0..partitions).map(|p| Part::new(PartitionId(p), topic.core_of(PartitionId(p), 2))).collect();
        let mut s = Subscription::new(topic, ChannelName::new("c").expect("valid"), options, ReplySlot(0), parts);
        s.open(&mut vec![]);
        s
    }

    #[test]
    fn one_partition_gets_all() {
        let (mut s, mut out) = (subscription(1), vec![]);
        s.set_rdy(10, &mut out);
        assert_eq!(out, [LendAction::Lend { part: 0, credit: 10 }]);
        out.clear();
        s.set_rdy(4, &mut out);
        assert_eq!(out.iter().map(|a| if let LendAction::Recall { credit, .. } = a { *credit } else { 0 }).sum::<u32>(), 6);
    }

    #[test]
    fn nothing_is_lent_before_all_partitions_are_asked() {
        let (mut s, mut out) = (subscription(2), vec![]);
        s.is_open = false;
        s.set_rdy(10, &mut out);
        s.on_hungry(0, &mut out);
        assert!(out.is_empty() && s.asked() == 1);
        s.open(&mut out);
        assert_eq!(s.parts.iter().map(|p| p.lent).sum::<u32>(), 10);
    }

    /// Partitions that always have messages: each gets its turn even when RDY is 1, and RDY is never exceeded.
    #[test]
    fn no_partition_starves_and_rdy_holds() {
        for (partitions, rdy) in [(3, 1), (2, 1), (4, 2), (5, 100)] {
            let (mut s, mut rng) = (subscription(partitions), Rng::new(7));
            let n = partitions as usize;
            let (mut credit, mut owed, mut flying, mut served) = (vec![0u32; n], vec![0u32; n], vec![0u32; n], vec![0u32; n]);
            let mut actions = vec![];
            s.set_rdy(rdy, &mut actions);
            for _ in 0..20_000 {
                for a in std::mem::take(&mut actions) {
                    match a {
                        LendAction::Lend { part, credit: c } => credit[part] += c,
                        LendAction::Recall { part, credit: c } => {
                            let give = c.min(credit[part]);
                            credit[part] -= give;
                            owed[part] += c - give;
                            if give > 0 {
                                s.on_returned(part, give, &mut actions);
                            }
                        }
                    }
                }
                assert!(credit.iter().chain(&flying).sum::<u32>() <= rdy);
                let p = rng.below(n as u64) as usize;
                if flying[p] > 0 && rng.chance(0.5) {
                    flying[p] -= 1;
                    if owed[p] > 0 {
                        owed[p] -= 1;
                        s.on_returned(p, 1, &mut actions);
                    } else {
                        credit[p] += 1;
                    }
                } else if credit[p] > 0 {
                    credit[p] -= 1;
                    flying[p] += 1;
                    served[p] += 1;
                } else if flying[p] == 0 {
                    s.on_hungry(p, &mut actions);
                }
            }
            assert!(served.iter().all(|&n| n > 200), "{partitions} partitions, RDY {rdy}: {served:?}");
        }
    }
}
