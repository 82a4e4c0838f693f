//! The cluster file for one core: the facts in their order, and the file's answers to the core's requests.
//!
//! A file takes no proposals. A replica's proposal is logged, as a change to make in the file, and refused. An epoch is given here,
//! since it is composed of the file's epoch, the node's generation and the number of openings ([`static_epoch`]). A partition lives on
//! one core, so each core counts for its own.

use super::change::gone_topics;
use super::file::{ClusterFile, FilePartition, OPENINGS_BITS};
use super::offers::{Offers, ReportedOffer};
use crate::base::{Epoch, IdMap, PartitionId, Ticks, TopicRef};
use crate::codec::peer::message::Route;
use crate::seam::cluster::{Ask, ClusterNode, Fact};
use crate::seam::membership::static_epoch;
use crate::seam::outcome::PublishError;
use crate::{base::NodeId, seam::membership::Membership};
use std::fmt;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Answers {
    me: NodeId,
    generation: u64,
    file: Arc<ClusterFile>,
    /// Epoch of the file, and number of openings under it, by partition.
    openings: IdMap<Route, (u64, u64)>,
    /// Nodes that were offered a place in an ISR under the file in force, in this life or an earlier one.
    offers: Offers,
    /// Notes about partitions under the file in force, so that repeats are not logged.
    said: IdMap<Route, Vec<OperatorNote>>,
}

/// News for an operator, some of which ask for a change of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperatorNote {
    /// The leader would have this ISR.
    Wants {
        partition: String,
        leave: Vec<String>,
        join: Vec<String>,
        isr: String,
        version: u64,
    },
    Resigns {
        partition: String,
        isr: String,
        epoch: u64,
        version: u64,
    },
    /// No unused epoch is left.
    NoEpoch {
        partition: String,
        above: Epoch,
        epoch: u64,
    },
}

impl OperatorNote {
    /// True for news that needs no action.
    pub fn is_good(&self) -> bool {
        matches!(self, OperatorNote::Wants { leave, .. } if leave.is_empty())
    }

    /// Says it in the log.
    pub fn tell(&self) {
        match self {
            OperatorNote::Wants { .. } if self.is_good() => tracing::info!("{self}"),
            OperatorNote::Wants { .. } => tracing::warn!("{self}"),
            _ => tracing::error!("{self}"),
        }
    }
}

impl fmt::Display for OperatorNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OperatorNote::Wants { partition, leave, join, isr, version } => {
                match (leave.join(", "), join.join(", ")) {
                    (gone, new) if new.is_empty() => write!(f, "{partition}: {gone} does not keep up; publishes wait for it")?,
                    (gone, new) if gone.is_empty() => write!(f, "{partition}: {new} has caught up and may join the isr")?,
                    (gone, new) => write!(f, "{partition}: {gone} does not keep up, {new} has caught up")?,
                }
                write!(f, ". In the cluster file of every node: isr = {isr}, version = {version}; then SIGHUP to each")
            }
            OperatorNote::Resigns { partition, isr, epoch, version } => write!(
                f,
                "{partition}: this node should not lead the partition: a write failed here, or this node lost data that others have. In \
                 the cluster file of every node: leader = another one of {isr}, epoch = {epoch}, version = {version}; then SIGHUP to each"
            ),
            OperatorNote::NoEpoch { partition, above, epoch } => write!(
                f,
                "{partition}: this node is to lead in epoch {epoch} of the file, but epoch {} was promised to another leader, or \
                 is used up. If a newer cluster file has a higher epoch, bring that file to this node; otherwise raise epoch and version",
                above.0
            ),
        }
    }
}

impl Answers {
    pub fn new(me: NodeId, generation: u64, file: Arc<ClusterFile>, offers: Offers) -> Answers {
        Answers { me, generation, file, openings: IdMap::default(), offers, said: IdMap::default() }
    }

    /// Offers a place in the ISR, until the file's version rises, to the replicas that a leader proposes and the file does not have
    /// there. `None`: there is no such replica, or the leader asks for something else.
    pub fn offer(&mut self, ask: &Ask) -> Option<ReportedOffer> {
        let Ask::Propose { route, isr, .. } = ask else { return None };
        let p = self.file.topic_by_id(route.topic_id)?.partition(route.partition)?;
        let nodes: Vec<NodeId> = isr.iter().copied().filter(|n| !p.isr.contains(n)).collect();
        let told = ReportedOffer { version: self.file.version, route: *route, nodes, note: None };
        self.offers.add(&told);
        (!told.nodes.is_empty()).then_some(told)
    }

    /// Replicas outside the ISR that were offered a place in it.
    fn joining(&self, route: Route, p: &FilePartition) -> Vec<NodeId> {
        let is_offered = |n: &&NodeId| !p.isr.contains(n) && self.offers.has(self.file.version, route, **n);
        p.replicas.iter().filter(is_offered).copied().collect()
    }

    /// Every fact, in the order in which a core has to receive it.
    pub fn facts(&self) -> Vec<Fact> {
        let mut facts = vec![Fact::Nodes(self.nodes())];
        for topic in &self.file.topics {
            facts.push(Fact::Topic(topic.info.clone()));
        }
        for topic in &self.file.topics {
            let all = topic.partitions.iter().enumerate();
            facts.extend(all.filter_map(|(number, p)| self.partition(&topic.info, number as u16, p)));
        }
        let revision = self.file.version;
        facts.extend([Fact::Read { revision }, Fact::Lease { until: Ticks(u64::MAX), revision }]);
        facts
    }

    fn nodes(&self) -> Arc<[ClusterNode]> {
        let node = |n: &super::file::FileNode| ClusterNode {
            id: n.id,
            name: n.name.clone(),
            peer_address: n.peer_address.clone(),
            native_address: n.native_address.clone(),
            tcp_address: n.tcp_address.clone(),
            incarnation: 0,
        };
        self.file.nodes.iter().map(node).collect()
    }

    /// Adopts another file: facts about removed entries, then about all present ones, under the new version.
    pub fn adopt(&mut self, file: Arc<ClusterFile>) -> Vec<Fact> {
        let gone: Vec<TopicRef> = gone_topics(&self.file, &file).collect();
        self.file = file;
        self.said.clear();
        let file = self.file.clone();
        self.openings.retain(|route, _| file.topic_by_id(route.topic_id).is_some());
        gone.into_iter().map(Fact::TopicGone).chain(self.facts()).collect()
    }

    /// Answers a core's question. Returns the fact, and a note that was not logged before.
    pub fn answer(&mut self, ask: Ask) -> (Option<Fact>, Option<OperatorNote>) {
        let file = self.file.clone();
        let route = match &ask {
            Ask::Propose { route, .. } | Ask::AskEpoch { route, .. } => *route,
            Ask::GiveUp { route, .. } | Ask::Refresh { route } | Ask::Resign { route, .. } | Ask::Release { route } => *route,
            Ask::PeerLost { .. } | Ask::Leave { .. } | Ask::Doubt { .. } => return (None, None),
            Ask::CreateTopic { name, .. } => {
                return (Some(Fact::TopicRefused { name: name.clone(), error: PublishError::TopicNotExist }), None);
            }
        };
        let found = file.topic_by_id(route.topic_id).and_then(|t| Some((t, t.partition(route.partition)?)));
        let Some((topic, p)) = found else {
            // The topic has gone meanwhile.
            return (None, None);
        };
        let partition = format!("partition {} of topic {}", route.partition, topic.info.name);
        let next_version = file.version + 1;
        let (fact, note) = match ask {
            Ask::Propose { version, isr, .. } => {
                let isr_shown = file.names(&isr).to_string();
                let names = |of: &[NodeId], without: &[NodeId]| -> Vec<String> {
                    of.iter().filter(|n| !without.contains(n)).map(|n| file.name(*n)).collect()
                };
                // A replica that was offered a place in the ISR and does not keep up is waited for like a member.
                let counted: Vec<NodeId> = p.isr.iter().copied().chain(self.joining(route, p)).collect();
                let (leave, join) = (names(&counted, &isr), names(&isr, &p.isr));
                let note = OperatorNote::Wants { partition, leave, join, isr: isr_shown, version: next_version };
                (Some(Fact::ProposalRefused { route, version }), Some(note))
            }
            Ask::Refresh { .. } => (self.partition(&topic.info, route.partition.0, p), None),
            Ask::AskEpoch { .. } if p.leader != Some(self.me) => (self.partition(&topic.info, route.partition.0, p), None),
            Ask::AskEpoch { above, .. } => match self.open(route, p, above) {
                true => (self.partition(&topic.info, route.partition.0, p), None),
                false => (None, Some(OperatorNote::NoEpoch { partition, above, epoch: p.epoch })),
            },
            Ask::CreateTopic { .. } | Ask::Release { .. } | Ask::GiveUp { .. } => (None, None),
            Ask::PeerLost { .. } | Ask::Leave { .. } | Ask::Doubt { .. } => (None, None),
            Ask::Resign { .. } => {
                let others: Vec<NodeId> = p.isr.iter().copied().filter(|n| *n != self.me).collect();
                let isr = file.names(&others).to_string();
                (None, Some(OperatorNote::Resigns { partition, isr, epoch: p.epoch + 1, version: next_version }))
            }
        };
        let said = self.said.entry(route).or_default();
        let note = note.filter(|note| !said.contains(note));
        said.extend(note.clone());
        (fact, note)
    }

    fn openings(&self, route: Route, p: &FilePartition) -> u64 {
        match self.openings.get(&route) {
            Some((epoch, openings)) if *epoch == p.epoch => *openings,
            _ => 0,
        }
    }

    /// Counts the openings on until the epoch is above. Whether there is such an epoch.
    fn open(&mut self, route: Route, p: &FilePartition, above: Epoch) -> bool {
        let epoch_of = |openings| static_epoch(p.epoch, self.generation, openings);
        let mut openings = self.openings(route, p) + 1;
        if epoch_of(openings).is_some_and(|epoch| epoch <= above) {
            // The epoch is of the same file epoch and generation, or out of reach.
            openings = (above.0 & ((1 << OPENINGS_BITS) - 1)) + 1;
        }
        let is_above = epoch_of(openings).is_some_and(|epoch| epoch > above);
        if is_above {
            self.openings.insert(route, (p.epoch, openings));
        }
        is_above
    }

    /// `None`: this node leads it, and its epoch does not fit.
    fn partition(&self, topic: &TopicRef, number: u16, p: &FilePartition) -> Option<Fact> {
        let partition = PartitionId(number);
        let membership = self.membership(Route { topic_id: topic.id, partition }, p)?;
        Some(Fact::Partition { topic: topic.clone(), partition, membership })
    }

    fn membership(&self, route: Route, p: &FilePartition) -> Option<Membership> {
        let openings = self.openings(route, p);
        let epoch = match p.leader == Some(self.me) {
            true => static_epoch(p.epoch, self.generation, openings)?,
            false => static_epoch(p.epoch, 0, 0)?,
        };
        let joining = if p.leader == Some(self.me) { self.joining(route, p) } else { vec![] };
        Some(Membership { joining, ..p.membership(self.file.version << OPENINGS_BITS | openings, epoch) })
    }
}
