//! Readers of ordered channels, and of channels whose offset is set meanwhile. Each reads one partition, over a connection on
//! that partition's core, so what the node sends is in the order in which the channel gave it: it is judged as it is sent, before
//! slow clients and late FINs blur it.
//!
//! These channels are outside of the rest of the book: who sets an offset is promised other messages than who does not.

use crate::base::{LogId, MessageId, PartitionId, Position, Rng};
use crate::codec::nsq::frame::{self, Frame};
use crate::codec::nsq::request;
use crate::log::recovery::Recovered;
use std::collections::{BTreeMap, BTreeSet};

use super::book::topic_name;

/// A topic and a partition.
pub type Place = (usize, u16);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Ordered,
    Moved,
}

impl Kind {
    pub fn channel(self) -> &'static str {
        match self {
            Kind::Ordered => "ordered",
            Kind::Moved => "moved",
        }
    }
}

#[derive(Debug, Default)]
struct Ordered {
    /// The last message that was sent to anybody, and whether somebody wrote FIN for it.
    last: LogId,
    is_finished: bool,
}

#[derive(Debug, Default)]
enum Stands {
    /// Never set, or the answer to the last attempt is not known.
    #[default]
    Anywhere,
    At(LogId),
}

#[derive(Debug, Default)]
struct Moved {
    stands: Stands,
    /// What may have been finished since it was set.
    finished: BTreeSet<LogId>,
    generation: u64,
}

#[derive(Debug, Default)]
pub struct Orders {
    ordered: BTreeMap<Place, Ordered>,
    moved: BTreeMap<Place, Moved>,
    /// Messages of ordered channels that were sent; offsets that were set, and looked for after a start.
    pub sent: u64,
    pub sets: u64,
    pub looked_for: u64,
}

impl Orders {
    pub fn places(&self, kind: Kind) -> Vec<Place> {
        match kind {
            Kind::Ordered => self.ordered.keys().copied().collect(),
            Kind::Moved => self.moved.keys().copied().collect(),
        }
    }

    fn subscribed(&mut self, kind: Kind, place: Place) {
        match kind {
            Kind::Ordered => drop(self.ordered.entry(place).or_default()),
            Kind::Moved => drop(self.moved.entry(place).or_default()),
        }
    }

    fn sent(&mut self, kind: Kind, place: Place, id: LogId) {
        match kind {
            Kind::Ordered => {
                let o = self.ordered.entry(place).or_default();
                let name = "ordered_channel_in_order";
                assert!(id >= o.last, "{name}: {id:?} of {place:?} comes after {:?}", o.last);
                let may_go_on = id == o.last || o.is_finished || o.last == LogId::default();
                assert!(may_go_on, "{name}: {id:?} of {place:?} comes before {:?} was finished", o.last);
                if id > o.last {
                    (o.last, o.is_finished) = (id, false);
                }
                self.sent += 1;
            }
            Kind::Moved => {
                let m = self.moved.entry(place).or_default();
                if let Stands::At(at) = m.stands {
                    assert!(id >= at, "set_offset_is_never_undone: {place:?} was set to {at:?}, and {id:?} comes");
                }
            }
        }
    }

    fn finished(&mut self, kind: Kind, place: Place, id: LogId) {
        match kind {
            Kind::Ordered => {
                let o = self.ordered.entry(place).or_default();
                o.is_finished |= id == o.last;
            }
            Kind::Moved => drop(self.moved.entry(place).or_default().finished.insert(id)),
        }
    }

    /// A set is asked for. `finished`: what connected clients have finished, perhaps not read by the node yet.
    pub fn set_asked(&mut self, place: Place, finished: BTreeSet<LogId>) {
        let m = self.moved.entry(place).or_default();
        (m.stands, m.finished) = (Stands::Anywhere, finished);
    }

    pub fn set_done(&mut self, place: Place, at: Position) {
        self.moved.entry(place).or_default().stands = Stands::At(at.log_id);
        self.sets += 1;
    }

    /// What a start found. `stored` has every message that is there, by topic.
    pub fn recovered(&mut self, r: &Recovered, topic_of: impl Fn(&str) -> usize, stored: &BTreeSet<(usize, MessageId)>) {
        let name = "set_offset_is_never_undone";
        for p in &r.partitions {
            let place = (topic_of(&p.topic.name), p.dir.partition.0);
            let Some(m) = self.moved.get_mut(&place) else { continue };
            let Some(image) = p.channels.iter().find(|c| &*c.name == Kind::Moved.channel()) else { continue };
            assert!(image.generation >= m.generation, "{name}: the generation of {place:?} fell: {image:?}");
            m.generation = image.generation;
            let Stands::At(at) = m.stands else { continue };
            self.looked_for += 1;
            assert!(image.confirmed.log_id >= at, "{name}: {place:?} was set to {at:?}: {image:?}");
            for id in (at.0..image.confirmed.log_id.0).map(LogId) {
                let is_there = stored.contains(&(place.0, MessageId::new(PartitionId(place.1), id)));
                assert!(
                    !is_there || m.finished.contains(&id),
                    "{name}: {place:?} was set to {at:?}, {id:?} unfinished: {image:?}"
                );
            }
        }
    }
}

/// One connection.
#[derive(Debug)]
pub struct Reader {
    pub kind: Kind,
    pub place: Place,
    pub out: Vec<u8>,
    /// Sent by the node, and come here: what is left of a frame.
    sent: Vec<u8>,
    got: Vec<u8>,
    is_subscribed: bool,
    pub has_failed: bool,
    held: BTreeSet<[u8; 16]>,
    pub finished: BTreeSet<LogId>,
}

impl Reader {
    pub fn new(kind: Kind, place: Place, rdy: u32) -> Self {
        let mut out = b"  V2".to_vec();
        let subscribe = match kind {
            Kind::Ordered => request::subscribe_ordered,
            Kind::Moved => request::subscribe_to,
        };
        subscribe(&mut out, &topic_name(place.0), kind.channel(), Some(PartitionId(place.1)));
        request::ready(&mut out, rdy);
        let (sent, got, held, finished) = (vec![], vec![], BTreeSet::new(), BTreeSet::new());
        Reader { kind, place, out, sent, got, is_subscribed: false, has_failed: false, held, finished }
    }

    pub fn is_satisfied(&self) -> bool {
        self.is_subscribed || self.has_failed
    }

    fn id(&self, id: &[u8; 16]) -> LogId {
        let id = match self.kind {
            Kind::Ordered => MessageId::from_binary(id),
            Kind::Moved => MessageId::from_hex(id).expect("an id is sixteen lower-case hex digits"),
        };
        assert_eq!(id.partition(), PartitionId(self.place.1), "it asked for one partition");
        id.log_id()
    }

    /// The node lets go of these bytes.
    pub fn node_sent(&mut self, orders: &mut Orders, bytes: &[u8]) {
        self.sent.extend_from_slice(bytes);
        let sent = std::mem::take(&mut self.sent);
        let (frames, used) = frame::decode_all(&sent).expect("well-formed frames");
        for f in frames {
            if let Frame::Message(m) = f {
                orders.sent(self.kind, self.place, self.id(&m.id));
            }
        }
        self.sent = sent[used..].to_vec();
    }

    pub fn receive(&mut self, orders: &mut Orders, bytes: &[u8]) {
        self.got.extend_from_slice(bytes);
        let got = std::mem::take(&mut self.got);
        let (frames, used) = frame::decode_all(&got).expect("well-formed frames");
        for f in frames {
            match f {
                Frame::Response(b"_heartbeat_") => request::nop(&mut self.out),
                Frame::Response(response) => {
                    assert_eq!(response, b"OK");
                    self.is_subscribed = true;
                    orders.subscribed(self.kind, self.place);
                }
                Frame::Error(error) => {
                    let text = String::from_utf8_lossy(error);
                    let is_passing = ["E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"].iter().any(|c| text.starts_with(c));
                    let is_refusal = ["E_SUB_FAILED", "E_TOPIC_NOT_EXIST"].iter().any(|c| text.starts_with(c));
                    assert!(is_passing || is_refusal, "{text}");
                    self.has_failed |= is_refusal;
                }
                Frame::Message(m) => {
                    self.held.insert(m.id);
                }
            }
        }
        self.got = got[used..].to_vec();
    }

    fn finish(&mut self, orders: &mut Orders, id: [u8; 16]) {
        request::finish(&mut self.out, &id);
        self.held.remove(&id);
        let id = self.id(&id);
        self.finished.insert(id);
        orders.finished(self.kind, self.place, id);
    }

    pub fn act(&mut self, orders: &mut Orders, rng: &mut Rng) {
        let Some(id) = self.held.iter().nth(rng.below(self.held.len().max(1) as u64) as usize).copied() else { return };
        match rng.below(12) {
            _ if self.has_failed => {}
            0 => {
                request::requeue(&mut self.out, &id, [0, 0, 2000][rng.below(3) as usize]);
                self.held.remove(&id);
            }
            1 => request::touch(&mut self.out, &id),
            2 => {
                request::finish(&mut self.out, &id);
                self.finish(orders, id);
            }
            3 => drop(self.held.remove(&id)),
            _ => self.finish(orders, id),
        }
    }

    pub fn act_quick(&mut self, orders: &mut Orders) {
        for id in self.held.clone() {
            self.finish(orders, id);
        }
    }
}
