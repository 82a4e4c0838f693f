//! The things that a step leaves for others: effects for the runtime, and news that the core's own machines have yet to hear.
//!
//! The engine fills the outbox. The shard settles it (notices of the store, answers to sessions, connections that try again) until
//! nothing is left, and then hands the effects to the runtime, disk operations first.

use super::catalog::Catalog;
use super::removal::Asker;
use super::topics::{Waiters, WaitingCore};
use crate::base::{ConnId, CoreId, TopicRef};
use crate::log::{Io, Notice};
use crate::metrics::counters::Counters;
use crate::seam::cluster::Ask;
use crate::seam::event::{Effect, Effects};
use crate::seam::{
    grants::Grants,
    message::MeshMessage,
    outcome::{InFlightCommand, InFlightError, PublishError},
};
use crate::session::ReplySlot;
use crate::session::native::NativeAnswer;
use std::sync::Arc;

/// Late answer to a session's command.
pub(super) enum LateAnswer {
    Answer(ReplySlot, Result<(), PublishError>),
    InFlightFailed(crate::base::MessageId, InFlightCommand, InFlightError),
    /// Answer of the auth server, or why there is none.
    Authorized(Result<Arc<Grants>, String>),
    /// The command it stalls on cannot be done.
    StallFailed(PublishError),
    /// The answer to a native request.
    Native(u64, NativeAnswer),
    /// End of a native subscription, by its number: another node leads the partition, or the channel is no more; in words.
    NativeEnded(u32, &'static str),
    /// The channel that the connection has subscribed to was deleted.
    ChannelDeleted,
    /// Messages of a partition that another node leads.
    Frames(bytes::Bytes),
    /// The connection's subscription has no leader, or its leader refuses it for this reason.
    SubscriptionLost(PublishError),
}

/// List that grows while its former entries are worked through. Both halves keep their memory.
pub(super) struct Relay<T> {
    filling: Vec<T>,
    spare: Vec<T>,
}

impl<T> Default for Relay<T> {
    fn default() -> Self {
        Relay { filling: vec![], spare: vec![] }
    }
}

impl<T> Relay<T> {
    pub fn is_empty(&self) -> bool {
        self.filling.is_empty()
    }

    /// Takes the present entries; later ones wait for the next call.
    pub fn take(&mut self) -> Vec<T> {
        std::mem::replace(&mut self.filling, std::mem::take(&mut self.spare))
    }

    /// Memory of a list that [`Self::take`] gave, emptied.
    pub fn give_back(&mut self, emptied: Vec<T>) {
        debug_assert!(emptied.is_empty());
        self.spare = emptied;
    }
}

pub(super) struct Outbox {
    core: CoreId,
    /// Cores of this node.
    cores: u16,
    /// Disk operations that the store wants.
    io: Io,
    /// All other effects, in order.
    effects: Vec<Effect>,
    /// Notices of the store that the engine has not taken.
    pub notices: Relay<Notice>,
    /// Messages of this core to itself, and to clients and operators at other nodes ([`CoreId::GUESTS`]), that were not heard yet.
    pub near: Relay<(CoreId, MeshMessage)>,
    /// Answers that sessions have not taken.
    pub answers: Relay<(ConnId, LateAnswer)>,
    /// Connections whose stalled command is tried again.
    resuming: Vec<ConnId>,
    /// Topics and channels that came or went.
    catalog: Catalog,
}

impl Outbox {
    pub fn new(core: CoreId, cores: u16) -> Self {
        Outbox {
            core,
            cores,
            io: Io::default(),
            effects: vec![],
            notices: Relay::default(),
            near: Relay::default(),
            answers: Relay::default(),
            resuming: vec![],
            catalog: Catalog::new(core, cores),
        }
    }

    /// Topics and channels of this core, for discovery.
    pub fn catalog(&mut self) -> &mut Catalog {
        &mut self.catalog
    }

    /// Buffer for the store's operations.
    pub fn io(&mut self) -> &mut Io {
        &mut self.io
    }

    /// Buffers for the store's operations and notices.
    pub fn of_store(&mut self) -> (&mut Io, &mut Vec<Notice>) {
        (&mut self.io, &mut self.notices.filling)
    }

    pub fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Hands the message to a core. This core, and clients and operators at other nodes, hear it before the step ends.
    pub fn pass(&mut self, to: CoreId, message: MeshMessage) {
        match to == self.core || to == CoreId::GUESTS {
            true => self.near.filling.push((to, message)),
            false => self.effects.push(Effect::Pass { to, message }),
        }
    }

    /// Hands a message to each other core.
    pub fn pass_to_others(&mut self, message: impl Fn() -> MeshMessage) {
        for core in (0..self.cores).map(CoreId).filter(|core| *core != self.core) {
            self.effects.push(Effect::Pass { to: core, message: message() });
        }
    }

    /// Asks the coordinator.
    pub fn ask(&mut self, ask: Ask) {
        self.effects.push(Effect::Ask(ask));
    }

    pub fn tell_waiters(&mut self, waiters: Waiters, result: Result<TopicRef, PublishError>) {
        for WaitingCore { from, ticket, .. } in waiters.asked_by {
            self.pass(from, MeshMessage::Topic { ticket, result: result.clone() });
        }
        match result {
            Ok(_) => self.resume(waiters.conns),
            Err(error) => waiters.conns.into_iter().for_each(|c| self.tell(c, LateAnswer::StallFailed(error))),
        }
    }

    /// Answers the operators that asked for a change of a topic.
    pub fn answer_askers(&mut self, askers: Vec<Asker>, result: Result<(), PublishError>) {
        for (core, ticket) in askers {
            self.pass(core, MeshMessage::TopicChanged { ticket, result });
        }
    }

    pub fn tell(&mut self, conn: ConnId, heard: LateAnswer) {
        self.answers.filling.push((conn, heard));
    }

    pub fn resume(&mut self, conns: impl IntoIterator<Item = ConnId>) {
        self.resuming.extend(conns);
    }

    pub fn take_resuming(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.resuming)
    }

    /// Whether the core's own machines have heard everything.
    pub fn is_settled(&self) -> bool {
        let Outbox { notices, near, answers, resuming, .. } = self;
        notices.is_empty() && near.is_empty() && answers.is_empty() && resuming.is_empty()
    }

    /// Hands all effects to the runtime. Most steps have none: each list is looked at first.
    #[inline]
    pub fn emit(&mut self, counters: &mut Counters, out: &mut Effects) {
        if let Some(changes) = self.catalog.take() {
            self.pass(CoreId::HTTP, MeshMessage::Catalog { changes });
        }
        if !self.io.is_empty() {
            self.emit_disk(counters, out);
        }
        if !self.effects.is_empty() {
            out.append(&mut self.effects);
        }
    }

    fn emit_disk(&mut self, counters: &mut Counters, out: &mut Effects) {
        for (op, request) in self.io.drain(..) {
            counters.disk_began(op, &request);
            out.push(Effect::Disk { op, request });
        }
    }
}
