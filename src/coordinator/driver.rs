//! The coordinator's thread: carries the pure [`Agent`]'s requests to the store, brings it answers, watch events and the cores'
//! questions, and passes its facts to the cores.
//!
//! It decides only how long to sleep. Its clock is CLOCK_BOOTTIME, as the cores' is: leases go on while a machine is suspended.

use super::hub::{Hub, ToCoordinator};
use super::memory::Memory;
use crate::agent::{Admin, AdminError, Agent, AgentOptions, Effect, Event, Note, Probe, StoreTrouble};
use crate::base::{NodeId, Ticks, TopicName};
use crate::config::Settings;
use crate::controller::ControllerOptions;
use crate::etcd::{Store, WatchEnd};
use crate::metadata::keys::Layout;
use crate::metadata::record::{MemberRecord, NodeRecord, Suspects};
use crate::metrics::node::Condition;
use crate::seam::cluster::{Ask, Fact};
use crate::seam::outcome::{PublishError, Unwritable};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Longest sleep: tokio's clock stands still while the machine is suspended.
const SLEEP_MAX: Duration = Duration::from_millis(500);
/// Pause before the end of a watch is told: a whole listing follows it.
const WATCH_PAUSE: Duration = Duration::from_millis(50);
/// Time by which a lease is taken to end early: it covers the scheduling of this process and clocks that run at different rates.
const MARGIN: Duration = Duration::from_millis(500);
/// Backstop: the client of the store answers earlier.
const PATIENCE: Duration = Duration::from_secs(5);
/// A host that does not answer a SYN within this says nothing.
const PROBE_LIMIT: Duration = Duration::from_millis(500);
/// The same line of the log again, at most once in this time.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Identity and addresses of the node.
pub struct NodeIdentity {
    pub member: MemberRecord,
    /// Id of the machine. With the data path it names the process that holds the lock.
    pub machine: String,
    pub generation: u64,
    pub memory: Memory,
    pub data: PathBuf,
    pub layout: Layout,
    pub settings: Arc<Settings>,
    /// CLOCK_BOOTTIME.
    pub now: fn() -> Ticks,
    pub seed: u64,
}

impl NodeIdentity {
    fn agent(&self) -> Agent {
        let NodeIdentity { settings, memory, .. } = self;
        let ttl = Duration::from_millis(settings.lease_ttl_ms);
        let data_path = self.data.canonicalize().unwrap_or_else(|_| self.data.clone()).to_string_lossy().into_owned();
        let record =
            NodeRecord { machine: self.machine.clone(), data_path, start: self.generation, suspects: Suspects::default() };
        Agent::new(AgentOptions {
            me: memory.node,
            layout: self.layout.clone(),
            ttl,
            margin: MARGIN,
            patience: PATIENCE,
            record,
            member: self.member.clone(),
            processes: memory.processes.clone(),
            cluster: Some(memory.id),
            seen: memory.revision,
            // Never used: the cluster has an id.
            fresh_id: memory.id,
            replicas: u8::try_from(settings.replicas).unwrap_or(u8::MAX),
            partitions: settings.partitions,
            controller: ControllerOptions {
                ttl,
                replace_after: Duration::from_millis(settings.replace_after_ms),
                rebuilds_max: usize::try_from(settings.rebuilds_max).unwrap_or(usize::MAX),
                ..ControllerOptions::default()
            },
            seed: self.seed,
        })
    }
}

fn serves_until_the_end(why: &StoreTrouble) -> String {
    format!("{why}: the node serves until its lease is over")
}

/// Topics that clients want and that wait for a session.
const POSTPONED_MAX: usize = 1_024;

/// Party that waits for the outcome of an operator's request.
enum RequestWaiter {
    Operator(oneshot::Sender<Result<String, AdminError>>),
    /// Clients, on the cores, of a topic that is to have so many partitions.
    Clients(TopicName, u16),
}

struct Driver<S> {
    store: Rc<S>,
    agent: Agent,
    place: NodeIdentity,
    hub: Arc<Hub>,
    /// Channel for events of the tasks of requests and of the watch.
    heard: UnboundedSender<Event>,
    watch: Option<AbortHandle>,
    waiting: BTreeMap<u64, RequestWaiter>,
    /// Topics that clients wanted while this node had no session, with their partitions. The cores end the waits of the clients.
    postponed: BTreeMap<TopicName, u16>,
    tokens: u64,
    /// Reason why the agent refuses the store, or its last message about the lease.
    trouble: String,
    /// The last line of the log, and when.
    said: Option<(String, Instant)>,
    /// True if the file has the remembered state.
    is_written: bool,
    is_over: bool,
}

/// Runs until the node stops and its lease is given back.
pub async fn run(store: impl Store + 'static, place: NodeIdentity, hub: Arc<Hub>, mut told: UnboundedReceiver<ToCoordinator>) {
    let (heard, mut events) = unbounded_channel();
    let mut driver = Driver {
        store: Rc::new(store),
        agent: place.agent(),
        place,
        hub,
        heard,
        watch: None,
        waiting: BTreeMap::new(),
        postponed: BTreeMap::new(),
        tokens: 0,
        trouble: "etcd was not read yet".into(),
        said: None,
        is_written: true,
        is_over: false,
    };
    driver.step([Event::Tick]);
    while !driver.is_over {
        let first = tokio::select! {
            biased;
            event = events.recv() => event,
            told = told.recv() => told.and_then(|told| driver.event(told)),
            () = sleep(driver.pause()) => Some(Event::Tick),
        };
        // Events that wait behind it are one step for the cores.
        let mut all: Vec<Event> = first.into_iter().collect();
        while let Ok(event) = events.try_recv() {
            all.push(event);
        }
        while let Ok(told) = told.try_recv() {
            all.extend(driver.event(told));
        }
        driver.step(all);
    }
}

impl<S: Store + 'static> Driver<S> {
    fn pause(&self) -> Duration {
        let now = (self.place.now)();
        self.agent.deadline().map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX))
    }

    fn event(&mut self, told: ToCoordinator) -> Option<Event> {
        let (admin, waiting) = match told {
            ToCoordinator::Stop => return Some(Event::Stop),
            // Several cores may ask for one topic.
            ToCoordinator::Ask(Ask::CreateTopic { name, .. }) if self.is_wanted(&name) => return None,
            ToCoordinator::Ask(Ask::CreateTopic { name, partitions }) => {
                let min_isr = u8::try_from(self.place.settings.min_isr).unwrap_or(u8::MAX);
                (
                    Admin::CreateTopic { name: name.clone(), partitions, replicas: 0, min_isr, properties: Default::default() },
                    RequestWaiter::Clients(name, partitions),
                )
            }
            ToCoordinator::Ask(ask) => return Some(Event::Ask(ask)),
            ToCoordinator::Load(loads) => return Some(Event::Load(loads)),
            ToCoordinator::Look(look) => {
                look.at(&self.agent, (self.place.now)());
                return None;
            }
            ToCoordinator::Admin { admin, answer } => (admin, RequestWaiter::Operator(answer)),
        };
        self.tokens += 1;
        self.waiting.insert(self.tokens, waiting);
        Some(Event::Admin { token: self.tokens, admin })
    }

    fn is_wanted(&self, name: &TopicName) -> bool {
        let is_it = |waiting: &RequestWaiter| matches!(waiting, RequestWaiter::Clients(wanted, _) if wanted == name);
        self.postponed.contains_key(name) || self.waiting.values().any(is_it)
    }

    fn step(&mut self, events: impl IntoIterator<Item = Event>) {
        let mut effects = vec![];
        for event in events {
            self.agent.step((self.place.now)(), event, &mut effects);
        }
        let mut facts = vec![];
        let mut remembered = None;
        for effect in effects {
            match effect {
                Effect::Send { token, request } => {
                    let (store, heard) = (self.store.clone(), self.heard.clone());
                    tokio::task::spawn_local(async move {
                        let outcome = store.carry(request).await;
                        let _ = heard.send(Event::Answered { token, outcome });
                    });
                }
                Effect::Probe { node, address } => self.probe(node, address),
                Effect::Watch { from } => self.watch(from),
                Effect::Fact(fact) => facts.push(fact),
                // The newest one of the step. Nothing of it goes out before its end: tasks run when this one waits.
                Effect::Remember { cluster, seen } => remembered = Some((cluster, seen)),
                Effect::Admin { token, result } => facts.extend(self.done(token, result)),
                Effect::Refuse(error) => {
                    self.trouble = error.to_string();
                    self.say(tracing::Level::ERROR, error.to_string());
                }
                Effect::Say(note) => self.note(&note),
                Effect::Registered => {
                    self.place.memory.processes = vec![self.place.member.process];
                    self.is_written = false;
                }
                Effect::Stopped => self.is_over = true,
            }
        }
        if let Some((cluster, seen)) = remembered {
            let memory = &mut self.place.memory;
            (memory.id, memory.revision) = (cluster, memory.revision.max(seen));
            self.is_written = false;
        }
        self.write_memory();
        self.hub.tell(&facts);
        self.hub.set_condition(self.condition());
        self.resume_postponed();
    }

    /// Asks again for the topics that waited for a session.
    fn resume_postponed(&mut self) {
        if self.postponed.is_empty() || self.agent.session().is_none() {
            return;
        }
        let wanted = std::mem::take(&mut self.postponed).into_iter();
        let asks = wanted.map(|(name, partitions)| ToCoordinator::Ask(Ask::CreateTopic { name, partitions }));
        let events: Vec<Event> = asks.filter_map(|ask| self.event(ask)).collect();
        self.step(events);
    }

    /// Condition for /ping. Without a lease the node serves no client. A partition without a leader would be no better at another node.
    fn condition(&self) -> Condition {
        let trouble = self.agent.store_trouble();
        match self.agent.session() {
            Some(_) => Condition {
                failure: None,
                warnings: self.agent.trouble((self.place.now)()).into_iter().chain(trouble.map(serves_until_the_end)).collect(),
            },
            None => {
                let why = trouble.map(|why| format!("; {why}")).unwrap_or_default();
                Condition { failure: Some(format!("{}{why}", self.trouble)), warnings: vec![] }
            }
        }
    }

    /// Answers the party that waits for a request's outcome.
    fn done(&mut self, token: u64, result: Result<String, AdminError>) -> Option<Fact> {
        match self.waiting.remove(&token)? {
            RequestWaiter::Operator(answer) => {
                let _ = answer.send(result);
                None
            }
            // In the first moments of a node. The topic may well be there.
            RequestWaiter::Clients(name, partitions)
                if result == Err(AdminError::NoSession) && self.postponed.len() < POSTPONED_MAX =>
            {
                self.postponed.insert(name, partitions);
                None
            }
            RequestWaiter::Clients(name, _) => {
                // A topic that exists with other properties exists.
                let error = result.err().filter(|error| !matches!(error, AdminError::TopicDiffers(_)))?;
                self.say(tracing::Level::WARN, format!("topic {name}, which a client wants, is not created: {error}"));
                Some(Fact::TopicRefused { name, error: PublishError::NotWritable(Unwritable::NotCreated) })
            }
        }
    }

    fn note(&mut self, note: &Note) {
        let text = note.to_string();
        let level = match note {
            Note::Lapsed | Note::SessionOver { .. } | Note::WaitsForOther { .. } => {
                self.trouble = text.clone();
                tracing::Level::ERROR
            }
            Note::Unreadable(_) => tracing::Level::ERROR,
            Note::Failed(_) | Note::Down { .. } | Note::NoLeader { .. } => tracing::Level::WARN,
            _ => tracing::Level::INFO,
        };
        self.say(level, text);
    }

    fn say(&mut self, level: tracing::Level, text: String) {
        if self.said.as_ref().is_some_and(|(last, at)| *last == text && at.elapsed() < SAID_EVERY) {
            return;
        }
        match level {
            tracing::Level::ERROR => tracing::error!("{text}"),
            tracing::Level::WARN => tracing::warn!("{text}"),
            _ => tracing::info!("{text}"),
        }
        self.said = Some((text, Instant::now()));
    }

    fn probe(&self, node: NodeId, address: String) {
        let heard = self.heard.clone();
        tokio::task::spawn_local(async move {
            let probe = match timeout(PROBE_LIMIT, TcpStream::connect(&address)).await {
                Ok(Ok(_)) => Probe::Reached,
                Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Probe::Refused,
                Ok(Err(_)) | Err(_) => Probe::Silent,
            };
            let _ = heard.send(Event::Probed { node, probe });
        });
    }

    fn watch(&mut self, from: u64) {
        if let Some(before) = self.watch.take() {
            before.abort();
        }
        let (store, heard) = (self.store.clone(), self.heard.clone());
        let task = tokio::task::spawn_local(async move {
            let end = store.follow(from, &mut |changes| drop(heard.send(Event::Watched(changes)))).await;
            match end {
                WatchEnd::Lost(why) => tracing::info!("the watch of etcd is lost, and all keys are listed again: {why}"),
                WatchEnd::Compacted { revision } => {
                    tracing::info!(revision, "etcd has compacted the watch's next revision: all keys are listed again");
                }
            }
            sleep(WATCH_PAUSE).await;
            let _ = heard.send(Event::WatchLost);
        });
        self.watch = Some(task.abort_handle());
    }

    fn write_memory(&mut self) {
        if self.is_written {
            return;
        }
        match self.place.memory.write(&self.place.data) {
            Ok(()) => self.is_written = true,
            Err(error) => self.say(tracing::Level::ERROR, format!("the newest revision of etcd is not stored: {error}")),
        }
    }
}
