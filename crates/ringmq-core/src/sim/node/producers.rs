//! Idempotent producers, as the book knows them. They outlive connections and lives of the node: unanswered batches are sent again, with
//! the same sequences, on another connection or to the next life; at times answered ones, too.
//!
//! `no_duplicate_from_idempotent_producer` is checked by their answers, and by the findings of each recovery.

use super::book::Book;
use crate::base::{LogId, MessagePlace, PartitionId, Position, Rng};
use crate::codec::native::{Code, NativeError, Retry};

/// Batches without an answer.
const WINDOW: usize = 6;

#[derive(Debug)]
struct Batch {
    first: u64,
    messages: Vec<usize>,
    tries: u32,
    is_acknowledged: bool,
}

/// Reason why a message may be missing with its segment.
pub enum Deleted {
    Yes,
    /// Possible: the message's place is unknown, if it ever had one.
    Perhaps,
    No,
}

#[derive(Debug)]
pub struct Producer {
    pub id: u64,
    pub topic: usize,
    pub partition: u16,
    batches: Vec<Batch>,
    /// The connection that sends for it; answers to others' tries still come.
    pub owner: u64,
    /// Sequence that the owner sends next.
    next: usize,
    /// Tries of the owner without an answer.
    pending: usize,
    /// True after a failure: nothing is sent until all are answered, then all go again from the first without an outcome.
    is_draining: bool,
    /// True once a recovery has found batches of the producer.
    is_stored: bool,
    /// Two connections of this life of the node, or to several nodes, sent for it: the answers to one say nothing of the other's.
    has_rival: bool,
    /// Refused until a restart: its partition is read-only.
    is_stuck: bool,
}

impl Producer {
    pub fn new(id: u64, topic: usize, partition: u16) -> Producer {
        Producer {
            id: id.max(1),
            topic,
            partition,
            batches: vec![],
            owner: 0,
            next: 0,
            pending: 0,
            is_draining: false,
            is_stored: false,
            has_rival: false,
            is_stuck: false,
        }
    }

    fn first_open(&self) -> usize {
        self.batches.iter().position(|b| !b.is_acknowledged).unwrap_or(self.batches.len())
    }

    pub fn is_done(&self) -> bool {
        self.first_open() == self.batches.len()
    }

    /// Makes this connection the owner.
    pub fn owned_by(&mut self, conn: u64) {
        self.has_rival |= self.owner != 0;
        (self.owner, self.next, self.pending, self.is_draining) = (conn, self.first_open(), 0, false);
    }

    /// The node is gone, and with it all connections.
    pub fn disconnected(&mut self) {
        self.owned_by(0);
        (self.has_rival, self.is_stuck) = (false, false);
    }

    fn known_to_the_node(&self) -> bool {
        self.is_stored || self.batches.iter().any(|b| b.is_acknowledged)
    }
}

impl Book {
    /// A connection ended: its unanswered batches get no answer any more.
    pub fn hung_up(&mut self, conn: u64) {
        self.set_ended(conn);
        self.asks_no_more(conn);
        self.producers.iter_mut().filter(|p| p.owner == conn).for_each(|p| p.owner = 0);
    }

    /// The batch that its owner sends now, if any. `rng`: new ones may be made, and old ones repeated.
    pub fn produce(&mut self, k: usize, conn: u64, rng: Option<&mut Rng>) -> Option<usize> {
        let p = &mut self.producers[k];
        if p.owner != conn || p.is_draining && p.pending > 0 || p.pending >= WINDOW {
            return None;
        }
        if p.is_draining {
            (p.is_draining, p.next) = (false, p.first_open());
        }
        let mut at = p.next;
        if let Some(rng) = rng {
            if at > 0 && rng.chance(0.1) {
                // as if the answer had been lost
                at -= 1 + rng.below(at.min(12) as u64) as usize;
            } else if at == p.batches.len() {
                let (topic, partition) = (p.topic, p.partition);
                let messages: Vec<usize> = (0..1 + rng.below(4)).map(|_| self.write_to(topic, Some(partition), rng)).collect();
                self.group(messages.clone());
                let p = &mut self.producers[k];
                let first = p.batches.last().map_or(0, |b| b.first + b.messages.len() as u64);
                p.batches.push(Batch { first, messages, tries: 0, is_acknowledged: false });
            }
        }
        let p = &mut self.producers[k];
        let batch = p.batches.get_mut(at)?;
        batch.tries += 1;
        (p.pending, p.next) = (p.pending + 1, p.next.max(at + 1));
        if batch.tries > 1 {
            self.counts.repeats += 1;
            let again = batch.messages.clone();
            again.into_iter().for_each(|n| self.sent_again(n));
        }
        Some(at)
    }

    /// First sequence and messages of a batch.
    pub fn batch(&self, k: usize, at: usize) -> (u64, &[usize]) {
        let batch = &self.producers[k].batches[at];
        (batch.first, &batch.messages)
    }

    fn answered(&mut self, k: usize, conn: u64) {
        let p = &mut self.producers[k];
        if p.owner == conn {
            p.pending -= 1;
        }
    }

    pub fn produced(&mut self, k: usize, conn: u64, batch: usize, place: Option<Position>, duplicate: bool) {
        self.answered(k, conn);
        let p = &mut self.producers[k];
        let (id, partition, b) = (p.id, PartitionId(p.partition), &mut p.batches[batch]);
        let name = "no_duplicate_from_idempotent_producer";
        let is_repeat = b.is_acknowledged && !p.has_rival;
        assert!(duplicate || !is_repeat, "{name}: {id:x} sequence {} was acknowledged and is stored again", b.first);
        assert!(!duplicate || b.tries > 1, "{name}: {id:x} sequence {} was sent once and is called a duplicate", b.first);
        let is_new = !std::mem::replace(&mut b.is_acknowledged, true);
        self.counts.duplicates += duplicate as u64;
        let messages = b.messages.clone();
        for (i, n) in messages.into_iter().enumerate() {
            if let Some(place) = place {
                self.placed(n, MessagePlace::new(partition, LogId(place.log_id.0 + i as u64)));
            }
            if is_new {
                self.acknowledged(n);
            }
        }
    }

    pub fn produce_failed(&mut self, k: usize, conn: u64, batch: usize, error: &NativeError<'_>) {
        self.answered(k, conn);
        let p = &mut self.producers[k];
        // sent in order, so a batch refused for its sequence follows another refused one
        let is_first_open = p.batches[..batch].iter().all(|b| b.is_acknowledged);
        match error.code {
            Code::UnknownProducer | Code::SequenceGap if p.has_rival => {}
            Code::UnknownProducer => {
                assert!(!p.known_to_the_node(), "no_duplicate_from_idempotent_producer: {:x} is forgotten", p.id);
                assert!(!is_first_open, "no_duplicate_from_idempotent_producer: {:x} begins and is not taken", p.id);
            }
            Code::SequenceGap => {
                assert!(error.retry == Retry::Later, "a gap is filled by sending again");
                assert!(!is_first_open, "no_duplicate_from_idempotent_producer: {:x} left no gap before batch {batch}", p.id);
            }
            // a leader that is no longer, or not yet, open
            Code::ReadOnly if error.retry == Retry::Later => {}
            Code::TooMuchWaiting | Code::DiskFull => assert_eq!(error.retry, Retry::Later, "{error:?}"),
            Code::Outcome => assert_eq!(error.retry, Retry::Unknown, "{error:?}"),
            Code::ReadOnly | Code::Stopping => {
                assert_eq!(error.retry, Retry::Refresh, "{error:?}");
                p.is_stuck = true;
                if p.owner == conn {
                    (p.owner, p.has_rival) = (0, true);
                }
            }
            // another node is asked
            Code::NotLeader | Code::WrongCore | Code::BadTopic => {
                if p.owner == conn {
                    (p.owner, p.has_rival) = (0, true);
                }
            }
            _ => panic!("{error:?} answers batch {batch} of {p:?}"),
        }
        p.is_draining |= p.owner == conn;
        self.counts.refused += 1;
    }

    /// Checks that a recovery found each producer's batches whole, in order, without a gap.
    pub fn producers_recovered(
        &mut self,
        stored: impl Fn(usize) -> Option<MessagePlace>,
        deleted: impl Fn(&Book, usize) -> Deleted,
    ) {
        for k in 0..self.producers.len() {
            let p = &self.producers[k];
            let (mut last, mut missing, mut is_stored) = (None, None, p.is_stored);
            for b in &p.batches {
                match stored(b.messages[0]) {
                    Some(id) => {
                        let name = "no_duplicate_from_idempotent_producer";
                        assert!(missing.is_none(), "{name}: {:x} has sequence {} without {missing:?}", p.id, b.first);
                        assert!(last < Some(id), "{name}: {:x} has sequence {} before the one before it", p.id, b.first);
                        (last, is_stored) = (Some(id), true);
                    }
                    None => match deleted(self, b.messages[0]) {
                        Deleted::Yes => is_stored = true,
                        Deleted::Perhaps => {}
                        Deleted::No => missing = missing.or(Some(b.first)),
                    },
                }
            }
            let p = &mut self.producers[k];
            p.is_stored = is_stored;
            p.disconnected();
        }
    }

    /// Checks at rest that each producer's batches are stored. `may_be_stuck`: a write may have failed.
    pub fn producers_converge(&self, may_be_stuck: bool) {
        for p in &self.producers {
            assert!(p.is_done() || may_be_stuck && p.is_stuck, "quiet_node_drains: an idempotent producer has no answer: {p:?}");
        }
    }
}
