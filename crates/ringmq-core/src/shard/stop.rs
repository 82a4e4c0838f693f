//! Stages of a core's stop: first it answers, then it closes its connections and links, then its store.
//!
//! ```text
//! Running ─ Event::Stop ─> Answering ─ all answered, or 2 s ─> Closing ─ all closed, or 2 s ─> Flushing ─ the store is done ─> Stopped
//! ```
//! A journal that failed makes the core read-only until a restart, whether it stops or not.

use super::Shard;
use super::outbox::LateAnswer;
use super::timers::Timer;
use crate::base::{Now, Ticks};
use crate::peer::Links;
use crate::seam::event::{Effect, Effects};
use crate::seam::outcome::PublishError;
use std::time::Duration;

/// Time that a stopping core waits for outstanding answers, and then again for its connections to close.
const STOP_ANSWERS: Duration = Duration::from_secs(2);
const STOP_CLOSES: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Default)]
enum StopStage {
    #[default]
    Running,
    Answering {
        until: Ticks,
    },
    Closing {
        until: Ticks,
    },
    Flushing,
    /// The store has said that it is done: nothing reaches it any more.
    Stopped,
}

#[derive(Default)]
pub(super) struct Lifecycle {
    stop: StopStage,
    /// Reason why nothing more becomes durable.
    read_only: Option<String>,
}

impl Lifecycle {
    /// Whether the shard is stopping: it takes nothing new.
    pub fn is_stopping(&self) -> bool {
        !matches!(self.stop, StopStage::Running)
    }

    pub fn is_stopped(&self) -> bool {
        matches!(self.stop, StopStage::Stopped)
    }

    pub fn stopped(&mut self) {
        self.stop = StopStage::Stopped;
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only.is_some()
    }

    pub fn read_only(&self) -> Option<&str> {
        self.read_only.as_deref()
    }

    /// The journal takes nothing more.
    pub fn fail(&mut self, reason: String) {
        self.read_only = Some(reason);
    }

    #[cfg(test)]
    pub fn heal(&mut self) {
        self.read_only = None;
    }

    /// Whether something new is taken.
    pub fn check_running(&self) -> Result<(), PublishError> {
        if self.is_stopping() { Err(PublishError::Stopping) } else { Ok(()) }
    }

    /// Whether a record may become durable.
    pub fn check_writable(&self) -> Result<(), PublishError> {
        if self.is_read_only() { Err(PublishError::ReadOnly) } else { Ok(()) }
    }
}

impl Shard {
    pub(super) fn begin_stop(&mut self, now: Now) {
        if self.engine.core.life.is_stopping() {
            return;
        }
        tracing::info!(core = self.engine.core.id.0, connections = self.conns.len(), "stopping");
        let until = now.ticks + STOP_ANSWERS;
        self.engine.core.life.stop = StopStage::Answering { until };
        self.engine.core.timers.at_most(Timer::Stop, Some(until));
        let stalled = self.conns.iter().filter(|(_, c)| c.session.is_stalled()).map(|(conn, _)| *conn);
        stalled.for_each(|conn| self.engine.core.outbox.tell(conn, LateAnswer::StallFailed(PublishError::Stopping)));
        self.engine.in_cluster(now, |c, core| c.forwards.refuse_waiting(core, &mut c.peers, None, PublishError::Stopping));
        self.engine.removing().stop_removals();
        self.engine.publishing().retry_waiting(now);
    }

    /// Enters, at a turn's end, the next stage of a stop once this one is done.
    pub(super) fn go_on_stopping(&mut self, now: Now, out: &mut Effects) {
        if let StopStage::Answering { until } = self.engine.core.life.stop
            && (now.ticks >= until || !self.engine.has_outstanding())
        {
            let until = now.ticks + STOP_CLOSES;
            self.engine.core.life.stop = StopStage::Closing { until };
            self.engine.core.timers.at_most(Timer::Stop, Some(until));
            for (conn, c) in self.conns.iter_mut().filter(|(_, c)| !c.closing) {
                c.closing = true;
                out.push(Effect::Close { conn: *conn });
            }
            self.stop_links(now, out);
        }
        if let StopStage::Closing { until } = self.engine.core.life.stop
            && (now.ticks >= until || (self.conns.is_empty() && self.engine.links().is_none_or(Links::is_idle)))
        {
            self.engine.core.life.stop = StopStage::Flushing;
            if !self.engine.core.is_clustered {
                self.engine.channels().keep_attempts(now);
            }
            self.engine.channels().journal_fins(now, true);
            let e = &mut self.engine;
            e.core.store.stop(now, &e.core.partitions, e.core.outbox.io());
            self.settle(now);
            self.emit(out);
        }
    }
}
