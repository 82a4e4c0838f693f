//! Readers of ordered channels, and of channels whose offset is set meanwhile. Each reads one partition, over a connection on that
//! partition's core, so the node sends messages in the order of the channel: they are judged when they are sent, before slow clients and
//! late FINs blur the order.

use super::book::{Book, ChannelKey, MOVED, OPERATED, ORDERED, topic_name};
use crate::base::{LogId, MessageId, MessagePlace, PartitionId, Rng};
use crate::codec::nsq::frame::{self, Frame, PLACE_LEN};
use crate::codec::nsq::request;
use std::collections::BTreeSet;

/// A topic and a partition.
pub type TopicPartition = (usize, u16);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReaderKind {
    Ordered,
    Moved,
    Operated,
}

impl ReaderKind {
    pub fn channel(self) -> &'static str {
        match self {
            ReaderKind::Ordered => ORDERED,
            ReaderKind::Moved => MOVED,
            ReaderKind::Operated => OPERATED,
        }
    }

    pub fn of(channel: &str) -> Option<ReaderKind> {
        [ReaderKind::Ordered, ReaderKind::Moved, ReaderKind::Operated].into_iter().find(|k| k.channel() == channel)
    }
}

/// A consumer's connection.
#[derive(Debug)]
pub struct Reader {
    pub kind: ReaderKind,
    pub place: TopicPartition,
    channel: ChannelKey,
    /// Serial of the channel when it was asked for.
    serial: u64,
    out: Vec<u8>,
    /// Bytes of an incomplete frame, as the node sent them.
    sent: Vec<u8>,
    /// Bytes of an incomplete frame, as they came here.
    got: Vec<u8>,
    /// The node has sent its answer; it has come.
    is_answered: bool,
    is_subscribed: bool,
    pub has_failed: bool,
    held: BTreeSet<[u8; 16]>,
    /// FINs, each with its end in the written bytes.
    finished: Vec<(u64, LogId)>,
    /// Written bytes that have left.
    written: u64,
}

impl Reader {
    pub fn new(book: &mut Book, kind: ReaderKind, place: TopicPartition, rdy: u32) -> Self {
        let mut out = b"  V2".to_vec();
        let subscribe = match kind {
            ReaderKind::Ordered => request::subscribe_ordered,
            ReaderKind::Moved | ReaderKind::Operated => request::subscribe_to,
        };
        subscribe(&mut out, &topic_name(place.0), kind.channel(), Some(PartitionId(place.1)));
        request::ready(&mut out, rdy);
        let channel = (place.0, kind.channel().to_owned());
        let serial = if kind == ReaderKind::Operated { book.asks_for_operated(&channel, place.1).0 } else { 0 };
        let (sent, got, held, finished, written) = (vec![], vec![], BTreeSet::new(), vec![], 0);
        let (is_answered, is_subscribed, has_failed) = (false, false, false);
        Reader { kind, place, channel, serial, out, sent, got, is_answered, is_subscribed, has_failed, held, finished, written }
    }

    /// Output that is still to be written.
    pub fn pending_output(&mut self) -> &mut Vec<u8> {
        self.written += self.out.len() as u64;
        &mut self.out
    }

    /// Messages finished by the last `unread` bytes that were written, and by bytes still to be written.
    pub fn finished_unread(&self, unread: usize) -> impl Iterator<Item = MessagePlace> {
        let (read, partition) = (self.written - unread as u64, PartitionId(self.place.1));
        let unread = self.finished.iter().rev().take_while(move |(end, _)| *end > read);
        unread.map(move |(_, id)| MessagePlace::new(partition, *id))
    }

    pub fn is_satisfied(&self) -> bool {
        self.is_subscribed || self.has_failed
    }

    fn message_id(&self, wire: &[u8; 16]) -> MessageId {
        match self.kind {
            ReaderKind::Ordered => MessageId::from_binary(wire),
            ReaderKind::Moved | ReaderKind::Operated => {
                MessageId::from_hex(wire).expect("an id is sixteen lower-case hex digits")
            }
        }
    }

    fn id(&self, book: &Book, wire: &[u8; 16]) -> MessagePlace {
        let id = book.place_named(self.place.0, self.message_id(wire));
        assert_eq!(id.partition, PartitionId(self.place.1), "it asked for one partition");
        id
    }

    /// The node lets go of these bytes.
    pub fn node_sent(&mut self, book: &mut Book, bytes: &[u8]) {
        self.sent.extend_from_slice(bytes);
        let sent = std::mem::take(&mut self.sent);
        let (frames, used) = frame::decode_all(&sent).expect("well-formed frames");
        for f in frames {
            if matches!(f, Frame::Response(b"OK"))
                && !std::mem::replace(&mut self.is_answered, true)
                && self.kind == ReaderKind::Operated
            {
                book.subscribed_to_operated(&self.channel, self.place.1, self.serial);
            }
            let Frame::Message(m) = f else { continue };
            let id = self.id(book, &m.id);
            book.a_pause_holds(&self.channel, id);
            let body = match self.kind {
                ReaderKind::Ordered => {
                    book.leaves_in_order(&self.channel, id);
                    m.body.get(PLACE_LEN..).expect("it has its place in front")
                }
                ReaderKind::Moved => {
                    // A copy comes under the first id, wherever it stands.
                    if !book.may_be_twice(&self.channel, id) {
                        book.set_offset_is_never_undone(&self.channel, id, book.floor(&self.channel, self.place.1));
                    }
                    m.body
                }
                ReaderKind::Operated => {
                    let gone = book.gone(&self.channel, self.place.1);
                    book.what_an_operator_removed_never_comes(&self.channel, id, m.body, gone);
                    m.body
                }
            };
            book.message_ids_never_repeat(self.place.0, self.message_id(&m.id), body);
            book.delivered(&self.channel, id, body);
        }
        self.sent = sent[used..].to_vec();
    }

    pub fn receive(&mut self, book: &mut Book, bytes: &[u8]) {
        self.got.extend_from_slice(bytes);
        let got = std::mem::take(&mut self.got);
        let (frames, used) = frame::decode_all(&got).expect("well-formed frames");
        for f in frames {
            match f {
                Frame::Response(b"_heartbeat_") => request::nop(&mut self.out),
                Frame::Response(response) => {
                    assert_eq!(response, b"OK");
                    self.is_subscribed = true;
                    if self.kind != ReaderKind::Operated {
                        book.subscribed_to(self.channel.clone(), self.place.1, None);
                    }
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

    fn finish(&mut self, book: &mut Book, id: [u8; 16]) {
        request::finish(&mut self.out, &id);
        self.held.remove(&id);
        let id = self.id(book, &id);
        self.finished.push((self.written + self.out.len() as u64, id.log_id));
        book.finished(&self.channel, id);
    }

    pub fn act(&mut self, book: &mut Book, rng: &mut Rng) {
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
                self.finish(book, id);
            }
            3 => drop(self.held.remove(&id)),
            _ => self.finish(book, id),
        }
    }

    pub fn act_quick(&mut self, book: &mut Book) {
        for id in self.held.clone() {
            self.finish(book, id);
        }
    }
}
