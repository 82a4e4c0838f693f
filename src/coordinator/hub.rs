//! Link between the coordinator's thread and the cores: an inbox of facts for each core, one queue of questions, and the node's own
//! word about its place in the cluster.

use crate::agent::{Admin, AdminError, Agent};
use crate::base::{Ticks, TopicName};
use crate::metrics::node::Condition;
use crate::seam::cluster::{Ask, Fact};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// Wakes all cores.
pub type WakeCores = Box<dyn Fn() + Send + Sync>;

/// Facts that one core has not heard yet.
#[derive(Default)]
struct Inbox {
    has_news: AtomicBool,
    facts: Mutex<Vec<Fact>>,
}

/// Message to the coordinator's thread.
#[derive(Debug)]
pub enum ToCoordinator {
    Ask(Ask),
    /// Request of an operator, with the party that waits for its outcome.
    Admin {
        admin: Admin,
        answer: oneshot::Sender<Result<String, AdminError>>,
    },
    /// Request to look at the agent's view of the cluster.
    Look(AgentQuestion),
    /// KiB/s that were published to the partitions that this node leads.
    Load(Vec<(TopicName, u16, u32)>),
    /// The node stops: its lease is given back.
    Stop,
}

type LookAt = dyn FnOnce(&Agent, Ticks) + Send;

/// Question about the agent's state, answered on the coordinator's thread.
pub struct AgentQuestion(Box<LookAt>);

impl AgentQuestion {
    pub fn at(self, agent: &Agent, now: Ticks) {
        (self.0)(agent, now);
    }
}

impl std::fmt::Debug for AgentQuestion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Look")
    }
}

/// Shared by the coordinator's thread and all others of the node.
pub struct Hub {
    inboxes: Mutex<Vec<Arc<Inbox>>>,
    wake: OnceLock<WakeCores>,
    told: UnboundedSender<ToCoordinator>,
    condition: Mutex<Condition>,
}

impl Hub {
    pub fn new(told: UnboundedSender<ToCoordinator>) -> Hub {
        let failure = Some("the node has not registered with etcd yet".into());
        let condition = Mutex::new(Condition { failure, ..Condition::default() });
        Hub { inboxes: Mutex::default(), wake: OnceLock::new(), told, condition }
    }

    /// Sets the waker, once, when the cores exist.
    pub fn set_wake(&self, wake: WakeCores) {
        let _ = self.wake.set(wake);
    }

    /// Every core hears these facts, in this order, with its next turn.
    pub fn tell(&self, facts: &[Fact]) {
        if facts.is_empty() {
            return;
        }
        for inbox in self.inboxes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            inbox.facts.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(facts);
            inbox.has_news.store(true, Ordering::Release);
        }
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// Carries an operator's request. `None`: the node stops.
    pub async fn admin(&self, admin: Admin) -> Option<Result<String, AdminError>> {
        let (answer, answered) = oneshot::channel();
        self.send(ToCoordinator::Admin { admin, answer });
        answered.await.ok()
    }

    /// Runs `look` on the agent and returns its result. The thread renews the node's lease, so `look` is short. `None`: the node stops.
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Agent) -> T + Send + 'static) -> Option<T> {
        self.look_now(|agent, _| look(agent)).await
    }

    /// The same with the time.
    pub async fn look_now<T: Send + 'static>(&self, look: impl FnOnce(&Agent, Ticks) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        // The asker may have gone.
        self.send(ToCoordinator::Look(AgentQuestion(Box::new(move |agent: &Agent, now| drop(answer.send(look(agent, now)))))));
        answered.await.ok()
    }

    pub fn send(&self, told: ToCoordinator) {
        // Without the thread the node is about to end.
        let _ = self.told.send(told);
    }

    pub fn condition(&self) -> Condition {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_condition(&self, condition: Condition) {
        *self.condition.lock().unwrap_or_else(PoisonError::into_inner) = condition;
    }
}

/// Core's side of a coordinator with a store: its questions and their answers. It lives on the core's thread.
pub struct StoreDesk {
    hub: Arc<Hub>,
    inbox: Arc<Inbox>,
}

impl StoreDesk {
    /// A desk for one core, made before the coordinator's thread starts so that the core misses nothing.
    pub fn new(hub: Arc<Hub>) -> StoreDesk {
        let inbox = Arc::new(Inbox::default());
        hub.inboxes.lock().unwrap_or_else(PoisonError::into_inner).push(inbox.clone());
        StoreDesk { hub, inbox }
    }

    pub fn news(&mut self, hear: &mut dyn FnMut(Fact)) {
        if !self.has_news() {
            return;
        }
        self.inbox.has_news.store(false, Ordering::Release);
        let facts = std::mem::take(&mut *self.inbox.facts.lock().unwrap_or_else(PoisonError::into_inner));
        facts.into_iter().for_each(hear);
    }

    pub fn has_news(&self) -> bool {
        self.inbox.has_news.load(Ordering::Acquire)
    }

    pub fn ask(&mut self, ask: Ask) {
        self.hub.send(ToCoordinator::Ask(ask));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Ticks;
    use crate::base::{PartitionId, TopicId};
    use crate::codec::peer::message::Route;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::mpsc::unbounded_channel;

    const ROUTE: Route = Route { topic_id: TopicId([1; 16]), partition: PartitionId(0) };

    #[test]
    fn each_core_hears_everything_once_and_in_order() {
        let (sender, mut receiver) = unbounded_channel();
        let hub = Arc::new(Hub::new(sender));
        let mut desks = [StoreDesk::new(hub.clone()), StoreDesk::new(hub.clone())];
        let woken = Arc::new(AtomicUsize::new(0));
        hub.set_wake(Box::new({
            let woken = woken.clone();
            move || {
                woken.fetch_add(1, Ordering::SeqCst);
            }
        }));
        hub.tell(&[]);
        hub.tell(&[Fact::Read { revision: 1 }, Fact::Lease { until: Ticks(9), revision: 1 }]);
        hub.tell(&[Fact::Read { revision: 2 }]);
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        for desk in &mut desks {
            let mut heard = vec![];
            assert!(desk.has_news());
            desk.news(&mut |fact| heard.push(format!("{fact:?}")));
            assert!(heard.len() == 3 && heard[2].contains("revision: 2"), "{heard:?}");
            assert!(!desk.has_news());
            desk.news(&mut |fact| panic!("{fact:?} again"));
        }
        desks[1].ask(Ask::Refresh { route: ROUTE });
        assert!(matches!(receiver.try_recv(), Ok(ToCoordinator::Ask(Ask::Refresh { .. }))));
    }
}
