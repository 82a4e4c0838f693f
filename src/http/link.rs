//! Questions to the cores and their answers: a ticket per question, whatever else the mesh carries is not for us.

use crate::base::{CoreId, PartitionId, Position, TopicId, TopicInfo};
use crate::discovery::Discovery;
use crate::mesh::HttpPort;
use crate::metrics::stats::ShardStats;
use crate::seam::{
    message::{AuthQuery, MeshMessage, Share, Ticket},
    outcome::{AcceptLossError, PublishError, SetOffsetError},
};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

pub enum CoreAnswer {
    Topic(Result<crate::base::TopicRef, PublishError>),
    TopicChanged(Result<(), PublishError>),
    Published(Result<(), PublishError>),
    Stats(Box<ShardStats>),
    OffsetSet(Result<Position, SetOffsetError>),
    LossAccepted(Result<String, AcceptLossError>),
    OrderSet(Result<(), SetOffsetError>),
    ChannelChanged(Result<bool, SetOffsetError>),
}

/// The HTTP thread's end of the mesh. No borrow of it lives across an await.
pub struct CoreLink {
    cores: u16,
    port: RefCell<HttpPort>,
    waiting: RefCell<CoreQuestions>,
    /// Partitions, as their cores last reported them; in a cluster only.
    shares: RefCell<HashMap<TopicId, Vec<PartitionShare>>>,
    unflushed: Notify,
    /// Listener for topics and channels that come and go.
    discovery: RefCell<Option<Rc<Discovery>>>,
    /// Questions of cores for this thread: AUTH of clients.
    asked: RefCell<VecDeque<(CoreId, Ticket, Box<AuthQuery>)>>,
    has_asked: Notify,
}

/// State of a partition that its core told last.
#[derive(Clone, Copy, Default)]
struct PartitionShare {
    share: Share,
    is_led_elsewhere: bool,
}

#[derive(Default)]
struct CoreQuestions {
    last: u64,
    questions: HashMap<Ticket, oneshot::Sender<CoreAnswer>>,
}

/// Forgets its question when the asker is gone or has waited enough; a late answer is then dropped.
struct Question<'a> {
    link: &'a CoreLink,
    ticket: Ticket,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.link.waiting.borrow_mut().questions.remove(&self.ticket);
    }
}

impl CoreLink {
    pub fn new(port: HttpPort, cores: u16) -> Self {
        CoreLink {
            cores,
            port: RefCell::new(port),
            waiting: RefCell::default(),
            shares: RefCell::default(),
            unflushed: Notify::new(),
            discovery: RefCell::default(),
            asked: RefCell::default(),
            has_asked: Notify::new(),
        }
    }

    /// Sets the listener; call it before [`Self::carry`], so that no report of a core is missed.
    pub fn set_discovery(&self, discovery: Rc<Discovery>) {
        self.discovery.replace(Some(discovery));
    }

    pub fn cores(&self) -> u16 {
        self.cores
    }

    /// The first partition from `from` on, in turn, that takes publishes, here or at another node; else the first that this node leads,
    /// whose core has the reason of its refusal. `from` itself if no partition has a leader, or the node is stand-alone.
    pub fn partition_from(&self, topic: &TopicInfo, from: u16) -> u16 {
        let shares = self.shares.borrow();
        let Some(shares) = shares.get(&topic.id) else { return from };
        let turn = (0..topic.partitions).map(|i| (from + i) % topic.partitions);
        let has = |is: fn(&PartitionShare) -> bool| turn.clone().find(|&p| shares.get(p as usize).is_some_and(is));
        has(|k| k.share.writable || k.is_led_elsewhere).or_else(|| has(|k| k.share.serves)).unwrap_or(from)
    }

    pub fn discovery(&self) -> Option<Rc<Discovery>> {
        self.discovery.borrow().clone()
    }

    /// `None` when no answer came in time.
    pub async fn ask(&self, to: CoreId, limit: Duration, message: impl FnOnce(Ticket) -> MeshMessage) -> Option<CoreAnswer> {
        let (sender, receiver) = oneshot::channel();
        let ticket = {
            let mut waiting = self.waiting.borrow_mut();
            waiting.last += 1;
            let ticket = Ticket(waiting.last);
            waiting.questions.insert(ticket, sender);
            ticket
        };
        let _question = Question { link: self, ticket };
        self.port.borrow_mut().send(to, message(ticket));
        // Flushed once for all that ask in this turn of the thread.
        self.unflushed.notify_one();
        tokio::time::timeout(limit, receiver).await.ok()?.ok()
    }

    /// The next question of a core about a client that said AUTH; there is at most one a connection.
    pub async fn next_asked(&self) -> (CoreId, Ticket, Box<AuthQuery>) {
        loop {
            if let Some(asked) = self.asked.borrow_mut().pop_front() {
                return asked;
            }
            self.has_asked.notified().await;
        }
    }

    pub fn tell(&self, core: CoreId, message: MeshMessage) {
        self.port.borrow_mut().send(core, message);
        self.unflushed.notify_one();
    }

    /// Moves messages both ways, for ever.
    pub async fn carry(&self, mail: &Notify) {
        loop {
            tokio::select! {
                () = mail.notified() => self.drain(),
                () = self.unflushed.notified() => {}
            }
            // Also after a drain: a core may have made room for messages that did not fit before.
            self.port.borrow_mut().flush();
        }
    }

    fn note_partition(&self, topic: &TopicInfo, partition: PartitionId, change: impl FnOnce(&mut PartitionShare)) {
        let mut shares = self.shares.borrow_mut();
        let shares = shares.entry(topic.id).or_insert_with(|| vec![PartitionShare::default(); topic.partitions as usize]);
        if shares.len() < topic.partitions as usize {
            shares.resize(topic.partitions as usize, PartitionShare::default());
        }
        if let Some(known) = shares.get_mut(partition.0 as usize) {
            change(known);
        }
    }

    fn drain(&self) {
        let mut waiting = self.waiting.borrow_mut();
        self.port.borrow_mut().drain(&mut |from, message| {
            let (ticket, answer) = match message {
                MeshMessage::Topic { ticket, result } => (ticket, CoreAnswer::Topic(result)),
                MeshMessage::TopicChanged { ticket, result } => (ticket, CoreAnswer::TopicChanged(result)),
                MeshMessage::Published { ticket, result } => (ticket, CoreAnswer::Published(result)),
                MeshMessage::Stats { ticket, stats } => (ticket, CoreAnswer::Stats(stats)),
                MeshMessage::Catalog { changes } => {
                    if let Some(discovery) = &*self.discovery.borrow() {
                        discovery.changed(changes);
                    }
                    return;
                }
                MeshMessage::Share { topic, partition, share } => {
                    if let Some(discovery) = &*self.discovery.borrow() {
                        discovery.serves(&topic, partition, share.serves);
                    }
                    return self.note_partition(&topic, partition, |known| known.share = share);
                }
                MeshMessage::LedElsewhere { topic, partition, is_elsewhere } => {
                    return self.note_partition(&topic, partition, |known| known.is_led_elsewhere = is_elsewhere);
                }
                MeshMessage::OffsetSet { ticket, result } => (ticket, CoreAnswer::OffsetSet(result)),
                MeshMessage::OrderSet { ticket, result } => (ticket, CoreAnswer::OrderSet(result)),
                MeshMessage::ChannelChanged { ticket, result } => (ticket, CoreAnswer::ChannelChanged(result)),
                MeshMessage::LossAccepted { ticket, result } => (ticket, CoreAnswer::LossAccepted(result)),
                MeshMessage::Authorize { ticket, query } => {
                    self.asked.borrow_mut().push_back((from, ticket, query));
                    return self.has_asked.notify_one();
                }
                other => return tracing::error!(core = from.0, ?other, "the HTTP thread received a message that is not for it"),
            };
            if let Some(asker) = waiting.questions.remove(&ticket) {
                // The asker may have gone in this very turn.
                let _ = asker.send(answer);
            }
        });
    }
}
