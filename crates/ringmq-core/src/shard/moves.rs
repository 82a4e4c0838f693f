//! Connections that move to the core of their partitions: those that publish there for a while, or want to read there.

use super::Shard;
use super::timers::Timer;
use crate::base::{ConnId, CoreId, IdMap};
use crate::seam::event::{Effect, Effects};
use crate::session::CommandKind;

/// Publishes in a row to partitions of one other core before the connection moves there.
const MOVE_STREAK: u32 = 32;

/// Core that a connection publishes to, number of its publishes there in a row, and the core that it moves to.
#[derive(Debug, Default)]
struct Track {
    toward: Option<CoreId>,
    streak: u32,
    /// The connection goes there once nothing of it is outstanding.
    moving: Option<CoreId>,
    /// Command on which the connection last stalled.
    stalled: Option<CommandKind>,
}

pub(super) struct Moves {
    /// Whether there is another core to move to.
    has_others: bool,
    tracks: IdMap<ConnId, Track>,
    /// Connections that a turn's end looks at: each of them may be moving.
    due: Vec<ConnId>,
}

impl Moves {
    pub fn new(cores: u16) -> Self {
        Moves { has_others: cores > 1, tracks: IdMap::default(), due: vec![] }
    }

    /// The connection published to a partition of this core.
    pub fn published_here(&mut self, conn: ConnId) {
        if self.has_others
            && let Some(track) = self.tracks.get_mut(&conn)
        {
            track.toward = None;
        }
    }

    /// The connection publishes to a partition of another core; true when it is time to move there.
    pub fn publishes_at(&mut self, conn: ConnId, owner: CoreId) -> bool {
        let track = self.tracks.entry(conn).or_default();
        track.streak = if track.toward == Some(owner) { track.streak + 1 } else { 1 };
        track.toward = Some(owner);
        track.streak >= MOVE_STREAK
    }

    /// The connection moves as soon as nothing of it is outstanding; until then its command waits.
    pub fn begin(&mut self, conn: ConnId, to: CoreId) {
        self.tracks.entry(conn).or_default().moving = Some(to);
        self.due.push(conn);
    }

    pub fn is_moving(&self, conn: ConnId) -> bool {
        self.has_others && self.destination(conn).is_some()
    }

    fn destination(&self, conn: ConnId) -> Option<CoreId> {
        self.tracks.get(&conn)?.moving
    }

    fn stay(&mut self, conn: ConnId) {
        if let Some(track) = self.tracks.get_mut(&conn) {
            track.moving = None;
        }
    }

    pub fn stalled_on(&self, conn: ConnId) -> Option<CommandKind> {
        self.tracks.get(&conn)?.stalled
    }

    pub fn set_stalled_on(&mut self, conn: ConnId, asked: CommandKind) {
        self.tracks.entry(conn).or_default().stalled = Some(asked);
    }

    pub fn forget(&mut self, conn: ConnId) {
        self.tracks.remove(&conn);
    }
}

impl Shard {
    /// Moves, at a turn's end, connections of which nothing is outstanding here.
    pub(super) fn move_quiet(&mut self, out: &mut Effects) {
        if self.engine.moves.due.is_empty() {
            return;
        }
        for conn in std::mem::take(&mut self.engine.moves.due) {
            let Some(c) = self.conns.get_mut(&conn) else { continue };
            let Some(to) = self.engine.moves.destination(conn) else { continue };
            if !c.session.is_stalled() || c.session.is_closing() || c.closing {
                // It was answered otherwise meanwhile, and stays.
                self.engine.moves.stay(conn);
                continue;
            }
            if !c.session.is_quiet() {
                self.engine.moves.due.push(conn);
                continue;
            }
            let mut c = self.conns.remove(&conn).expect("it was just looked at");
            let peer = c.session.peer().clone();
            let (session, unread) = c.session.carry(peer);
            tracing::debug!(conn = conn.0, to = to.0, "connection moves to the core of its partitions");
            self.engine.moves.forget(conn);
            self.engine.core.timers.remove(Timer::Session(conn));
            out.push(Effect::Move { conn, to, session, unread });
        }
    }
}
