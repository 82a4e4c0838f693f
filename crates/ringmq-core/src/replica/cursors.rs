//! A follower's cursors (rule 3): which of the leader's cursors are new, wait for the log, or are applied.
//!
//! ```text
//! (epoch, generation, log id) of the message    lower epoch or generation than here: superseded; than the kept one: clamped
//!                                              same, and not beyond: old news, nothing to do
//! confirmed, or an interval, beyond the end    kept until a flush moves the end; the largest of a channel wins
//!                                              with the flush flag: the end moves now; a cursor still beyond is applied up to it
//! a channel that is new here                   begins at once, as far as the end goes
//! ```
//! The *end* is the lesser of the leader's committed end, as it came with the cursors, and this log's durable end; a flush moves it
//! there. The answer says that a cursor was kept or clamped, and the leader sends it again.
//!
//! While the journal has no room, changes of channels are refused, and the session ends: this replica leaves the ISR, where that leaves
//! enough. The list of a later session brings the refused changes. Starts are taken, and cursors that let retention free space.

use super::base::Cx;
use super::event::Effect;
use crate::base::NodeId;
use crate::base::{ChannelName, Epoch, LogId, Position};
use crate::codec::peer::error::PeerError;
use crate::codec::peer::message::{Body, Cursors, CursorsAck, Head};
use crate::format::cursor::CursorImage;
use crate::format::producer::Producer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug)]
pub(super) struct FollowerCursors {
    end: Position,
    cached: BTreeMap<ChannelName, CursorImage>,
    last_seq: u64,
    list: List,
    next_number: u64,
    /// Writes under way: the number, and the answer that then goes out. A write of an older session has none.
    applying: VecDeque<(u64, Option<CursorsAck>)>,
}

impl Default for FollowerCursors {
    fn default() -> Self {
        FollowerCursors {
            end: Position::START,
            cached: BTreeMap::new(),
            last_seq: 0,
            list: List::Missing,
            next_number: 0,
            applying: VecDeque::new(),
        }
    }
}

/// List of all channels of the leader, in this session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum List {
    /// Not named, or clamped at the end.
    Missing,
    /// Being made durable under this number.
    Applying(u64),
    Durable,
}

type CursorOrder = (Epoch, u64, LogId);

fn key(image: &CursorImage) -> CursorOrder {
    (image.epoch, image.generation, image.confirmed.log_id)
}

/// Changes of one message.
#[derive(Default)]
struct Changes {
    images: Vec<CursorImage>,
    deleted: Vec<ChannelName>,
    /// Collect start and agreed start.
    starts: (Option<Position>, Option<Position>),
    producers: Vec<Producer>,
    channels_lost: Option<bool>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.starts == (None, None) && !self.can_wait()
    }

    /// True if the changes are more than starts, by which retention may free space.
    fn can_wait(&self) -> bool {
        let has_facts = !self.producers.is_empty() || self.channels_lost.is_some();
        has_facts || !self.images.is_empty() || !self.deleted.is_empty()
    }

    /// The starts, and the cursors that here keep segments on whose removal the replicas agreed. Each cursor is taken once per agreement,
    /// so that these take little of a full journal.
    fn that_free_space(self, cx: &Cx<'_>) -> Changes {
        let agreed = self.starts.1.map_or(0, |at| at.offset);
        let keeps_segments = |image: &CursorImage| {
            let here = cx.log.cursor(&image.name);
            here.is_some_and(|(_, _, confirmed)| confirmed.offset < agreed) && image.confirmed.offset >= agreed
        };
        let images = self.images.into_iter().filter(keeps_segments).collect();
        Changes { images, starts: self.starts, ..Changes::default() }
    }
}

impl FollowerCursors {
    /// A session begins: numbers begin anew, and answers of the former session are dropped.
    pub fn begin(&mut self) {
        (self.last_seq, self.list) = (0, List::Missing);
        self.applying.iter_mut().for_each(|a| a.1 = None);
    }

    /// True if the follower has every channel of this leader, unclamped and durable.
    pub fn has_list(&self) -> bool {
        self.list == List::Durable
    }

    /// The log ends elsewhere now. `end`: its committed end.
    pub fn align(&mut self, end: Position) {
        self.end = end;
    }

    /// Fails if the journal has no room: the session is to begin anew, and with it the list.
    pub fn on_cursors(&mut self, cx: &mut Cx<'_>, from: NodeId, head: Head, message: Cursors) -> Result<(), PeerError> {
        // In order, without a gap: a missing message may be a deletion.
        if message.seq != self.last_seq.saturating_add(1) {
            return Ok(());
        }
        self.last_seq = message.seq;
        let mut changes = Changes::default();
        if message.flush {
            self.flush(cx, message.committed, &mut changes);
        }
        let mut names: BTreeSet<ChannelName> = BTreeSet::new();
        let mut result = Ok(());
        for image in message.cursors {
            names.insert(image.name.clone());
            result = self.judge(cx, image, message.flush, &mut changes).and(result);
        }
        if message.is_all {
            self.list = List::Missing;
            let mut here = vec![];
            cx.log.channels(&mut here);
            changes.deleted.extend(here.into_iter().filter(|c| !names.contains(c)));
            self.cached.retain(|name, _| names.contains(name));
        }
        for name in message.deleted {
            self.cached.remove(&name);
            changes.deleted.push(name);
        }
        let ack = CursorsAck { seq: message.seq, result };
        changes.starts = (message.collect_start, message.agreed_start);
        changes.producers = message.producers;
        let is_had = message.is_all && result.is_ok();
        // A clamped list may lack the very channels that are lost here.
        let is_complete = is_had || self.list != List::Missing;
        let is_news = message.channels_lost != cx.log.may_lack_channels() && (message.channels_lost || is_complete);
        changes.channels_lost = (!message.flush && is_news).then_some(message.channels_lost);
        if changes.is_empty() && self.applying.is_empty() {
            if is_had {
                self.list = List::Durable;
            }
            cx.send(from, head, Body::CursorsAck(ack));
            return Ok(());
        }
        if changes.can_wait() && !cx.log.takes_facts() {
            self.apply(cx, changes.that_free_space(cx), None);
            return Err(PeerError::NoRoom);
        }
        self.apply(cx, changes, Some(ack));
        if is_had {
            self.list = List::Applying(self.next_number);
        }
        Ok(())
    }

    /// The log's end for cursors may have moved.
    pub fn on_end(&mut self, cx: &mut Cx<'_>, committed: Position) {
        if self.cached.is_empty() || !cx.log.takes_facts() {
            return;
        }
        let mut changes = Changes::default();
        self.flush(cx, committed, &mut changes);
        if !changes.images.is_empty() {
            self.apply(cx, changes, None);
        }
    }

    pub fn on_applied(&mut self, cx: &mut Cx<'_>, leader: NodeId, head: Head, number: u64) {
        if matches!(self.list, List::Applying(n) if n <= number) {
            self.list = List::Durable;
        }
        while self.applying.front().is_some_and(|a| a.0 <= number) {
            if let Some((_, Some(ack))) = self.applying.pop_front() {
                cx.send(leader, head, Body::CursorsAck(ack));
            }
        }
    }

    fn apply(&mut self, cx: &mut Cx<'_>, changes: Changes, ack: Option<CursorsAck>) {
        self.next_number += 1;
        self.applying.push_back((self.next_number, ack));
        let (Changes { images, deleted, starts, producers, channels_lost }, number) = (changes, self.next_number);
        let (collect_start, agreed_start) = starts;
        cx.out.push(Effect::ApplyCursors { number, images, deleted, collect_start, agreed_start, producers, channels_lost });
    }

    /// Moves the end, and takes the kept cursors that it reaches.
    fn flush(&mut self, cx: &Cx<'_>, committed: Position, changes: &mut Changes) {
        let durable = cx.log.durable().at;
        self.end = if committed.offset < durable.offset { committed } else { durable };
        let end = self.end;
        let reached: Vec<ChannelName> = self.cached.iter().filter(|(_, c)| fits(c, end)).map(|(n, _)| n.clone()).collect();
        for name in reached {
            let Some(image) = self.cached.remove(&name) else { continue };
            // A cursor that came meanwhile may be newer.
            if cx.log.cursor(&name).is_none_or(|(e, g, at)| key(&image) > (e, g, at.log_id)) {
                changes.images.push(image);
            }
        }
    }

    fn judge(&mut self, cx: &Cx<'_>, image: CursorImage, flush: bool, changes: &mut Changes) -> Result<(), PeerError> {
        if image.name.is_ephemeral() {
            return Err(PeerError::Ephemeral);
        }
        let kept = self.cached.get(&image.name).map(key);
        let standing = changes.images.iter().rev().find(|c| c.name == image.name).map(key);
        let here = cx.log.cursor(&image.name).map(|(e, g, at)| (e, g, at.log_id));
        let newest = here.max(standing);
        if let Some((epoch, generation, _)) = newest.max(kept)
            && (image.epoch, image.generation) < (epoch, generation)
        {
            // The cached cursor is in memory alone: until it is applied, neither of the two is durable here.
            return Err(if kept.is_some() { PeerError::Clamped } else { PeerError::Superseded });
        }
        if newest.is_some_and(|n| key(&image) < n) {
            return Ok(());
        }
        if fits(&image, self.end) {
            if kept.is_some_and(|k| k <= key(&image)) {
                self.cached.remove(&image.name);
            }
            changes.images.push(image);
            return Ok(());
        }
        if flush || here.is_none() {
            changes.images.push(clamped(&image, self.end));
        }
        if self.cached.get(&image.name).is_none_or(|c| key(c) <= key(&image)) {
            self.cached.insert(image.name.clone(), image);
        }
        Err(PeerError::Clamped)
    }
}

/// True if everything that the image confirms lies before `end`.
fn fits(image: &CursorImage, end: Position) -> bool {
    image.confirmed.log_id <= end.log_id && image.intervals.last().is_none_or(|i| i.end.log_id <= end.log_id)
}

/// The image, clamped at the end.
fn clamped(image: &CursorImage, end: Position) -> CursorImage {
    let confirmed = if image.confirmed.log_id <= end.log_id { image.confirmed } else { end };
    let intervals = image.intervals.iter().filter(|i| i.start >= confirmed.log_id && i.end.log_id <= end.log_id);
    CursorImage { confirmed, intervals: intervals.copied().collect(), ..image.clone() }
}
