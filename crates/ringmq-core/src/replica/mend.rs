//! Repair of damage in a replica's log with another replica's batches: a follower asks its leader, a leader the followers whose logs
//! reach beyond the damage. Both logs are the same up to the aligned end, and (epoch, log id) names one batch, so the other replica has
//! the lost batches; the store checks the chain where it knows it.
//!
//! ```text
//! LogView::damage ─> Pull ─> Pulled: verified, one behind the other ─> Effect::Mend ─> Event::Mended ─> the next range
//!                     └── no answer, or nothing in it: another one is asked after the pause
//! ```
//! The repair runs beside all other work: nothing is truncated, no write waits, and readers wait at the damage. If the leader says that
//! none of its batches begins at the damage, the follower's log is compared anew, and ends where the damage begins.

use super::base::{Base, Cx, replica_log};
use super::event::{Alarm, Effect};
use super::leader::Leader;
use super::peer::Peer;
use crate::base::NodeId;
use crate::base::{Position, Ticks};
use crate::codec::peer::message::{APPEND_BYTES_MAX, Batches, Body, Head, Pull, Pulled};
use crate::format::batch::Batch;
use crate::format::files::Bad;

/// Number of failed tries after which an operator is told.
const TRIES_SAID: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct Mender {
    /// Node that was asked, and the position that it was asked for.
    asked: Option<(NodeId, Position)>,
    is_writing: bool,
    retry_at: Option<Ticks>,
    /// Number of tries since the last repair.
    tries: u32,
}

impl Mender {
    /// Requests the damaged range from `source`, unless it was just requested.
    pub fn ask(&mut self, base: &Base, cx: &mut Cx<'_>, source: impl FnOnce(u32, Position) -> Option<(NodeId, Head)>) {
        let Some((from, to)) = cx.log.damage() else {
            return *self = Mender::default();
        };
        if self.is_writing || self.retry_at.is_some_and(|at| cx.now < at) {
            return;
        }
        let source = source(self.tries, to);
        self.tries = self.tries.saturating_add(1);
        self.retry_at = Some(cx.now + base.options.retry);
        self.asked = source.map(|(node, _)| (node, from));
        if let Some((node, head)) = source {
            cx.send(node, head, Body::Pull(Pull { from, bytes_max: APPEND_BYTES_MAX as u32 }));
        }
        if self.tries == TRIES_SAID {
            cx.out.push(Effect::Alarm(Alarm::Damaged { from, to }));
        }
    }

    /// Takes an answer with the wanted bytes, or none of them.
    pub fn on_pulled(&mut self, base: &Base, cx: &mut Cx<'_>, node: NodeId, pulled: Pulled) {
        if self.asked != Some((node, pulled.from)) {
            return;
        }
        let Some((from, to)) = cx.log.damage().filter(|(from, _)| *from == pulled.from) else { return };
        self.asked = None;
        match run(base, pulled.batches, from, to) {
            Ok(batches) if !batches.is_empty() => {
                self.is_writing = true;
                cx.out.push(Effect::Mend { batches });
            }
            Ok(_) => {
                replica_log!(
                    debug,
                    base,
                    node = cx.name_of(node),
                    from = from.offset,
                    "a replica has no bytes that repair the damage here"
                );
            }
            Err(error) => replica_log!(
                warn, base, node = cx.name_of(node), from = from.offset, %error, "a repair from another replica fails its checks"
            ),
        }
    }

    /// Records that the repair is written; or that it failed and is tried again.
    pub fn on_mended(&mut self, is_whole: bool) {
        self.is_writing = false;
        if is_whole {
            (self.retry_at, self.tries) = (None, 0);
        }
    }

    /// Records that there is no peer to ask.
    pub fn rest(&mut self) {
        (self.asked, self.retry_at) = (None, None);
    }

    /// True if this node waits for an answer of `node`.
    pub fn waits_for(&self, node: NodeId) -> bool {
        self.asked.is_some_and(|(asked, _)| asked == node)
    }

    pub fn deadline(&self) -> Option<Ticks> {
        self.retry_at.filter(|_| !self.is_writing)
    }
}

impl Leader {
    /// Peer that has everything up to `to`; with each try another one, in turn.
    pub fn mend_source(&self, tries: u32, to: Position) -> Option<(NodeId, Head)> {
        let has_it = |p: &&Peer| p.is_streaming() && p.acked.offset >= to.offset;
        let count = self.peers.iter().filter(has_it).count();
        let chosen = (tries as usize).checked_rem(count)?;
        self.peers.iter().filter(has_it).nth(chosen).map(|p| (p.node, p.head(self.epoch)))
    }
}

/// The batches that stand between the two places, from the first on.
fn run(base: &Base, batches: Batches, from: Position, to: Position) -> Result<Vec<Batch>, Bad> {
    let (route, mut at, mut crc) = (base.route, from, None);
    let mut found: Vec<Batch> = vec![];
    for mut part in batches.parts {
        while !part.is_empty() {
            let batch = Batch::parse(&part, route.topic_id, route.partition)?;
            bytes::Buf::advance(&mut part, batch.bytes.len());
            let h = &batch.header;
            if h.end().offset > to.offset {
                return Ok(found);
            }
            // Where damage took the commit record before it too, its count and its id are not known: its offset names its place.
            let is_next = if found.is_empty() { h.offset.get() == from.offset } else { h.start() == at };
            if !is_next || crc.is_some_and(|crc| crc != h.prev_crc.get()) || h.is_lost() {
                return Err(Bad::Chain);
            }
            (at, crc) = (h.end(), Some(h.header_crc.get()));
            found.push(batch);
        }
    }
    Ok(found)
}
