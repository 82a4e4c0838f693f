//! Topics that this core knows, and the parties that wait for one to be created.
//!
//! A topic is created by its home core: a random id, a durable journal record, then the answer to all askers. No core uses a topic
//! before its record is durable, so recovery knows the topic of every batch.

use super::properties::Properties;
use crate::base::{ConnId, CoreId, PartitionId, Rng, TopicId, TopicInfo, TopicName, TopicRef};
use crate::log::{PartitionIdx, RecordTicket};
use crate::seam::message::{Share, Ticket};
use std::collections::{BTreeMap, HashMap};

pub struct Topics {
    entries: HashMap<TopicName, TopicState>,
    known: Vec<KnownTopic>,
    /// Place of the topic that a connection published to last, by the lower bits of its number: most publishes need no
    /// look into `entries`. Only a hint: the name says whether it holds.
    hints: Vec<u32>,
    /// Topics whose record waits for the journal, oldest first.
    creating: BTreeMap<RecordTicket, TopicName>,
    /// Number of topics of which each core is the home, as far as heard.
    counts: BTreeMap<CoreId, u64>,
    pub properties: Properties,
    ids: Rng,
}

/// Number of [`Topics::hints`]; a power of two.
const HINTS: usize = 1024;

#[derive(Debug)]
struct KnownTopic {
    topic: TopicRef,
    /// True unless the topic is [`TopicState::Leaving`].
    is_open: bool,
    next_partition: u16,
    /// The partitions of this core that were used.
    places: Vec<Option<PartitionIdx>>,
    /// Share of this node in each partition; `Some` in a cluster.
    shares: Option<Box<[KnownShare]>>,
}

/// Facts that a core has about one partition of a cluster's topic.
#[derive(Clone, Copy, Debug, Default)]
struct KnownShare {
    /// Version of the metadata that named the leader.
    version: u64,
    leads: bool,
    /// True if this node or another leads it.
    is_led: bool,
    share: Share,
}

#[derive(Debug)]
enum TopicState {
    /// The topic exists; its place in `known`.
    Known(usize),
    Pending {
        topic: Option<TopicRef>,
        conns: Vec<ConnId>,
        asked_by: Vec<WaitingCore>,
    },
    /// The topic may go, or goes; its place in `known`. A request for it waits as for a topic that is being created.
    Leaving {
        at: usize,
        waiters: Waiters,
        is_stuck: bool,
    },
}

/// Clients that waited for a topic that is now known, or never will be.
#[derive(Debug, Default)]
pub struct Waiters {
    pub conns: Vec<ConnId>,
    pub asked_by: Vec<WaitingCore>,
}

/// Core that wants the topic, with so many partitions if it is created (0: as the node decides).
#[derive(Debug)]
pub struct WaitingCore {
    pub from: CoreId,
    pub ticket: Ticket,
    pub partitions: u16,
}

impl Waiters {
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty() && self.asked_by.is_empty()
    }
}

impl Topics {
    pub fn new(seed: u64) -> Self {
        let (entries, known, hints, creating, counts, properties) = Default::default();
        Topics { entries, known, hints, creating, counts, properties, ids: Rng::new(seed) }
    }

    pub fn new_id(&mut self) -> TopicId {
        TopicId(self.ids.bytes_16())
    }

    /// Topics came to their home core, or went. Returns how many it has now.
    pub fn count(&mut self, home: CoreId, change: i64) -> u64 {
        let topics = self.counts.entry(home).or_default();
        *topics = topics.saturating_add_signed(change);
        *topics
    }

    /// Takes another core's number of topics.
    pub fn set_count(&mut self, home: CoreId, topics: u64) {
        self.counts.insert(home, topics);
    }

    /// Topics of the node, as far as heard.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    fn find(&self, name: &str) -> Option<usize> {
        match self.entries.get(name) {
            Some(TopicState::Known(at)) => Some(*at),
            _ => None,
        }
    }

    /// The topics behind this name, in the order of their names.
    pub fn after(&self, name: &str) -> Vec<TopicRef> {
        let mut topics: Vec<_> = self.all().filter(|t| *t.name > *name).cloned().collect();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        topics
    }

    pub fn all(&self) -> impl Iterator<Item = &TopicRef> {
        self.known.iter().map(|k| &k.topic)
    }

    pub fn known(&self, name: &str) -> Option<&TopicRef> {
        self.find(name).map(|at| &self.known[at].topic)
    }

    /// The topic to which the connection publishes, and the partition that is next in turn.
    pub fn next_partition(&mut self, name: &str, conn: ConnId) -> Option<(&TopicRef, PartitionId, Option<PartitionIdx>)> {
        if self.hints.is_empty() {
            self.hints.resize(HINTS, 0);
        }
        let hint = conn.0 as usize % HINTS;
        let mut at = self.hints[hint] as usize;
        if self.known.get(at).is_none_or(|k| !k.is_open || *k.topic.name != *name) {
            at = self.find(name)?;
            self.hints[hint] = at as u32;
        }
        let KnownTopic { topic, next_partition, places, .. } = &mut self.known[at];
        let partition = *next_partition;
        *next_partition = if partition + 1 == topic.partitions { 0 } else { partition + 1 };
        Some((topic, PartitionId(partition), places.get(partition as usize).copied().flatten()))
    }

    /// The topic, and this partition of it, if it has so many.
    pub fn this_partition(&self, name: &str, partition: PartitionId) -> Option<(&TopicRef, PartitionId, Option<PartitionIdx>)> {
        let KnownTopic { topic, places, .. } = &self.known[self.find(name)?];
        (partition.0 < topic.partitions).then(|| (topic, partition, places.get(partition.0 as usize).copied().flatten()))
    }

    // ---- of a cluster

    /// The partition that is next in turn of those that take publishes here or, as far as is known, at another node; else of those that
    /// this node leads, whose core knows why it takes nothing; else of all, whose core waits for a leader.
    pub fn next_shared(&mut self, name: &str) -> Option<(&TopicRef, PartitionId, Option<PartitionIdx>)> {
        let at = self.find(name)?;
        let KnownTopic { topic, next_partition, places, shares, .. } = &mut self.known[at];
        let shares = shares.as_deref()?;
        let turn = (0..shares.len()).map(|i| (*next_partition as usize + i) % shares.len());
        let is_led = |s: &KnownShare| s.share.serves || s.leads;
        let takes = |s: &KnownShare| s.share.writable || s.is_led && !s.leads;
        let has = |is: &dyn Fn(&KnownShare) -> bool| turn.clone().find(|&p| is(&shares[p]));
        let partition = has(&takes).or_else(|| has(&is_led)).or_else(|| has(&|_| true))?;
        *next_partition = ((partition + 1) % shares.len()) as u16;
        Some((topic, PartitionId(partition as u16), places.get(partition).copied().flatten()))
    }

    /// The partitions whose channels this node serves, and those that another node leads; all of a node that is alone.
    pub fn readable(&self, name: &str) -> Vec<PartitionId> {
        let Some(KnownTopic { topic, shares, .. }) = self.find(name).map(|at| &self.known[at]) else { return vec![] };
        let is_readable = |s: &KnownShare| s.share.serves || s.is_led && !s.leads;
        let all = (0..topic.partitions).map(PartitionId);
        all.filter(|p| shares.as_ref().is_none_or(|shares| shares.get(p.0 as usize).is_some_and(is_readable))).collect()
    }

    /// Takes the leader by this node's metadata.
    pub fn set_leads(&mut self, topic: &TopicRef, partition: PartitionId, version: u64, leads: bool, is_led: bool) {
        if let Some(known) = self.share_mut(topic, partition)
            && known.version < version
        {
            (known.version, known.leads, known.is_led) = (version, leads, is_led);
        }
    }

    /// Takes the share of the partition's core. True if it serves now and did not before.
    pub fn set_share(&mut self, topic: &TopicRef, partition: PartitionId, share: Share) -> bool {
        let Some(known) = self.share_mut(topic, partition) else { return false };
        let before = std::mem::replace(&mut known.share, share);
        share.serves && !before.serves
    }

    fn share_mut(&mut self, topic: &TopicRef, partition: PartitionId) -> Option<&mut KnownShare> {
        let at = self.find(&topic.name).filter(|&at| self.known[at].topic.id == topic.id)?;
        self.known[at].shares.as_deref_mut()?.get_mut(partition.0 as usize)
    }

    /// A topic of the cluster, from its metadata.
    pub fn learn_shared(&mut self, topic: &TopicRef) -> Waiters {
        let waiters = self.learn(topic);
        if let Some(at) = self.find(&topic.name) {
            let shares = &mut self.known[at].shares;
            shares.get_or_insert_with(|| vec![KnownShare::default(); topic.partitions as usize].into());
        }
        waiters
    }

    /// The topic has more partitions.
    pub fn grow(&mut self, topic: &TopicRef) {
        let is_it = |k: &&mut KnownTopic| k.topic.id == topic.id && k.topic.partitions < topic.partitions;
        if let Some(known) = self.known.iter_mut().find(is_it) {
            known.topic = topic.clone();
            if let Some(shares) = known.shares.take() {
                let mut shares = shares.into_vec();
                shares.resize(topic.partitions as usize, KnownShare::default());
                known.shares = Some(shares.into());
            }
        }
    }

    /// True if a publish to the topic can be answered here: this node serves a part of the topic, or other nodes lead all of it.
    pub fn is_settled(&self, name: &str) -> bool {
        let Some(shares) = self.find(name).and_then(|at| self.known[at].shares.as_deref()) else { return true };
        shares.iter().any(|s| s.share.serves) || shares.iter().all(|s| s.version > 0 && !s.leads)
    }

    /// Forgets a topic that the cluster no longer has.
    pub fn forget_shared(&mut self, topic: &TopicRef) -> Waiters {
        self.leave(topic);
        self.remove(topic)
    }

    // ---- of this core

    /// Index of a known topic's partition in this core's store, if it was used.
    pub fn place(&self, name: &str, partition: PartitionId) -> Option<PartitionIdx> {
        self.known[self.find(name)?].places.get(partition.0 as usize).copied().flatten()
    }

    pub fn set_place(&mut self, name: &str, partition: PartitionId, idx: PartitionIdx) {
        let Some(at) = self.find(name) else { return };
        let places = &mut self.known[at].places;
        if places.len() <= partition.0 as usize {
            places.resize(partition.0 as usize + 1, None);
        }
        places[partition.0 as usize] = Some(idx);
    }

    /// The partition is not in this core's store any more.
    pub fn forget_place(&mut self, name: &str, partition: PartitionId) {
        let at = self.find(name);
        if let Some(place) = at.and_then(|at| self.known[at].places.get_mut(partition.0 as usize)) {
            *place = None;
        }
    }

    pub fn is_pending(&self, name: &str) -> bool {
        matches!(self.entries.get(name), Some(TopicState::Pending { .. } | TopicState::Leaving { .. }))
    }

    /// True if the topic's removal needs a restart.
    pub fn is_stuck(&self, name: &str) -> bool {
        matches!(self.entries.get(name), Some(TopicState::Leaving { is_stuck: true, .. }))
    }

    fn leaving(&mut self, topic: &TopicRef) -> Option<&mut TopicState> {
        let entry = self.entries.get_mut(&topic.name)?;
        match entry {
            TopicState::Leaving { at, .. } if self.known[*at].topic.id == topic.id => Some(entry),
            _ => None,
        }
    }

    /// Makes the topic leave: it is not given out until [`Self::reopen`] or [`Self::remove`].
    pub fn leave(&mut self, topic: &TopicRef) {
        if let Some(entry) = self.entries.get_mut(&topic.name)
            && let TopicState::Known(at) = *entry
            && self.known[at].topic.id == topic.id
        {
            *entry = TopicState::Leaving { at, waiters: Waiters::default(), is_stuck: false };
            self.known[at].is_open = false;
        }
    }

    /// Reopens a topic whose removal was given up.
    pub fn reopen(&mut self, topic: &TopicRef) -> Waiters {
        let Some(entry) = self.leaving(topic) else { return Waiters::default() };
        let TopicState::Leaving { at, waiters, .. } = entry else { return Waiters::default() };
        let (at, waiters) = (*at, std::mem::take(waiters));
        *entry = TopicState::Known(at);
        self.known[at].is_open = true;
        waiters
    }

    /// Leaves a topic closed until a restart.
    pub fn stick(&mut self, topic: &TopicRef) -> Waiters {
        match self.leaving(topic) {
            Some(TopicState::Leaving { waiters, is_stuck, .. }) => {
                *is_stuck = true;
                std::mem::take(waiters)
            }
            _ => Waiters::default(),
        }
    }

    /// Clients that wait for a topic that is being removed.
    pub fn take_leaving_waiters(&mut self) -> Vec<Waiters> {
        let leaving = self.entries.values_mut().filter_map(|e| match e {
            TopicState::Leaving { waiters, .. } => Some(std::mem::take(waiters)),
            _ => None,
        });
        leaving.filter(|w| !w.is_empty()).collect()
    }

    /// Removes a topic.
    pub fn remove(&mut self, topic: &TopicRef) -> Waiters {
        if self.leaving(topic).is_none() {
            return Waiters::default();
        }
        let Some(TopicState::Leaving { at, waiters, .. }) = self.entries.remove(&topic.name) else { return Waiters::default() };
        self.known.swap_remove(at);
        if let Some(moved) = self.known.get(at)
            && let Some(TopicState::Known(place) | TopicState::Leaving { at: place, .. }) =
                self.entries.get_mut(&moved.topic.name)
        {
            *place = at;
        }
        waiters
    }

    /// Starts waiting. With a ticket the topic's record is on its way to this core's journal; else its home was asked.
    pub fn begin(&mut self, name: TopicName, created: Option<(TopicInfo, RecordTicket)>) {
        let topic = created.map(|(info, ticket)| {
            self.creating.insert(ticket, name.clone());
            TopicRef::new(info)
        });
        let old = self.entries.insert(name, TopicState::Pending { topic, conns: vec![], asked_by: vec![] });
        assert!(old.is_none(), "a topic is created once");
    }

    pub fn wait_conn(&mut self, name: &str, conn: ConnId) {
        if let Some(TopicState::Pending { conns, .. } | TopicState::Leaving { waiters: Waiters { conns, .. }, .. }) =
            self.entries.get_mut(name)
        {
            conns.push(conn);
        }
    }

    pub fn wait_core(&mut self, name: &str, asked: WaitingCore) {
        if let Some(TopicState::Pending { asked_by, .. } | TopicState::Leaving { waiters: Waiters { asked_by, .. }, .. }) =
            self.entries.get_mut(name)
        {
            asked_by.push(asked);
        }
    }

    /// The topic is known from now on.
    pub fn learn(&mut self, topic: &TopicRef) -> Waiters {
        if let Some(at) = self.find(&topic.name) {
            assert_eq!(self.known[at].topic.id, topic.id, "a topic's id never changes");
            return Waiters::default();
        }
        if matches!(self.entries.get(&topic.name), Some(TopicState::Leaving { .. })) {
            return Waiters::default(); // Known, and nobody's to use.
        }
        let entry = TopicState::Known(self.known.len());
        let known = KnownTopic { topic: topic.clone(), is_open: true, next_partition: 0, places: vec![], shares: None };
        self.known.push(known);
        match self.entries.insert(topic.name.clone(), entry) {
            Some(TopicState::Pending { conns, asked_by, .. }) => Waiters { conns, asked_by },
            _ => Waiters::default(),
        }
    }

    /// The topic could not be created.
    pub fn forget(&mut self, name: &str) -> Waiters {
        if !matches!(self.entries.get(name), Some(TopicState::Pending { .. })) {
            return Waiters::default();
        }
        match self.entries.remove(name) {
            Some(TopicState::Pending { conns, asked_by, .. }) => Waiters { conns, asked_by },
            _ => Waiters::default(),
        }
    }

    /// The topics created here whose record is durable now.
    pub fn created_up_to(&mut self, durable: RecordTicket) -> Vec<TopicRef> {
        let mut topics = vec![];
        while let Some(entry) = self.creating.first_entry() {
            if *entry.key() > durable {
                break;
            }
            if let Some(TopicState::Pending { topic: Some(topic), .. }) = self.entries.get(&entry.remove()) {
                topics.push(topic.clone());
            }
        }
        topics
    }

    /// Creations that will not become durable any more.
    pub fn creations_failed(&mut self) -> Vec<TopicName> {
        std::mem::take(&mut self.creating).into_values().collect()
    }
}
