//! An idempotent producer of the simulated store: sends batches in order, repeats unanswered ones (also after a crash, with the same
//! sequences), and now and then batches that were answered long ago, as if the answer had been lost.
//!
//! Holds the log to: `no_duplicate_from_idempotent_producer`, each (producer, sequence) at most once, and acknowledged ones exactly
//! once, with the bytes that were sent.

use super::check::ReadBatch;
use crate::base::{Position, ProducerId, Rng};
use crate::format::batch::BATCH_HEADER_LEN;
use crate::format::producer::Sequence;
use crate::log::state::RecoveredPartition;
use crate::log::{AppendTicket, Appended, BodyLimits, NativeBatch, ProducerLimits, Producers};
use std::collections::BTreeMap;

/// Producers of each partition.
pub const PRODUCERS: usize = 4;
/// Batches that a producer has outstanding: more than the places that the store remembers.
const WINDOW: usize = 8;

struct SentBatch {
    first: u64,
    bodies: Vec<Vec<u8>>,
    /// Waits for this ticket's outcome.
    ticket: Option<AppendTicket>,
    /// Sent since the last crash.
    in_this_life: bool,
    was_sent: bool,
    acknowledged: bool,
    /// Position that the node told for the batch.
    at: Option<Position>,
}

pub struct IdempotentProducer {
    pub id: ProducerId,
    sent: Vec<SentBatch>,
    /// True if the partition may forget the producer, and then takes its first batches for a new one's.
    forgettable: bool,
}

impl IdempotentProducer {
    pub fn new(rng: &mut Rng, forgettable: bool) -> Self {
        IdempotentProducer { id: ProducerId::new(rng.next_u64() | 1).expect("it is odd"), sent: vec![], forgettable }
    }

    /// The node is gone, with all pending answers.
    pub fn disconnected(&mut self) {
        self.sent.iter_mut().for_each(|s| (s.ticket, s.in_this_life) = (None, s.acknowledged));
    }

    /// The batch to send now: the oldest that has no outcome and was not sent, else a new one; at times any old one.
    pub fn next_to_send(&mut self, rng: &mut Rng) -> Option<usize> {
        if !self.sent.is_empty() && rng.chance(0.2) {
            // Only batches that it has sent before, else it would make a gap itself.
            let sent = self.sent.iter().take_while(|s| s.in_this_life).count() as u64;
            if sent > 0 {
                return Some((sent - 1 - rng.below(sent.min(20))) as usize);
            }
        }
        if let Some(unsent) = self.sent.iter().position(|s| !s.in_this_life) {
            return Some(unsent);
        }
        if self.sent.iter().filter(|s| !s.acknowledged).count() >= WINDOW {
            return None;
        }
        let first = self.sent.last().map_or(0, |s| s.first + s.bodies.len() as u64);
        let len_max = [10, 200, 6000][rng.below(3) as usize];
        let body = |rng: &mut Rng| {
            let (len, seed) = (rng.below(len_max), rng.next_u64());
            (0..len).map(|i| (seed.wrapping_mul(i + 1) >> 24) as u8).collect()
        };
        let bodies = (0..1 + rng.below(3)).map(|_| body(rng)).collect();
        let (in_this_life, was_sent, acknowledged) = (false, false, false);
        self.sent.push(SentBatch { first, bodies, ticket: None, in_this_life, was_sent, acknowledged, at: None });
        Some(self.sent.len() - 1)
    }

    pub fn bodies(&self, sent: usize) -> &[Vec<u8>] {
        &self.sent[sent].bodies
    }

    pub fn batch(&self, sent: usize) -> NativeBatch {
        let s = &self.sent[sent];
        let mut bytes = vec![0; BATCH_HEADER_LEN];
        for body in &s.bodies {
            bytes.extend_from_slice(&(8 + body.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&[0; 8]);
            bytes.extend_from_slice(body);
        }
        let crc = crc32fast::hash(&bytes[BATCH_HEADER_LEN..]);
        let limits = BodyLimits { message_bytes_max: 1 << 20, body_bytes_max: 1 << 24 };
        let sequence = Some(Sequence { producer: self.id, first: s.first });
        NativeBatch::verify(bytes, s.bodies.len() as u32, crc, sequence, &limits).expect("it is as the format says")
    }

    /// The store has taken the batch, or has it. Whether a batch of an earlier life was taken anew.
    pub fn answered(&mut self, sent: usize, appended: Appended) -> bool {
        let forgettable = self.forgettable;
        let s = &mut self.sent[sent];
        let was_sent = std::mem::replace(&mut s.was_sent, true);
        s.in_this_life = true;
        match appended {
            Appended::New { at, ticket } => {
                assert!(!s.acknowledged || forgettable, "an acknowledged batch was stored again");
                (s.at, s.ticket) = (Some(at), Some(ticket));
                return was_sent;
            }
            Appended::Duplicate { at, ticket } => {
                assert!(was_sent, "what was never sent is said to be there");
                if let (Some(at), Some(known)) = (at, s.at.filter(|_| s.acknowledged && !forgettable)) {
                    assert_eq!(at, known, "a repeat is answered with another place than the original");
                }
                s.at = at.or(s.at);
                match ticket {
                    Some(ticket) => s.ticket = Some(ticket),
                    None => (s.ticket, s.acknowledged) = (None, true),
                }
            }
        }
        false
    }

    pub fn durable_upto(&mut self, upto: AppendTicket) {
        for s in self.sent.iter_mut().filter(|s| s.ticket.is_some_and(|t| t <= upto)) {
            (s.ticket, s.acknowledged) = (None, true);
        }
    }

    /// Makes later outcomes unknown; the producer tries again.
    pub fn failed_from(&mut self, from: AppendTicket) {
        for s in self.sent.iter_mut().filter(|s| s.ticket.is_some_and(|t| t >= from)) {
            (s.ticket, s.in_this_life) = (None, s.acknowledged);
        }
    }
}

/// Compares the recovered log, and its table of producers, with the producers.
pub fn check_log(log: &[ReadBatch], p: &RecoveredPartition, limits: ProducerLimits, producers: &mut [IdempotentProducer]) {
    let mut places: BTreeMap<(u64, u64), Position> = BTreeMap::new();
    let mut table = Producers::new(limits);
    let mut base = i64::MIN;
    for (h, _) in log {
        table.count(h);
        assert!(h.base_unix_ns.get() >= base, "a base timestamp falls at offset {}", h.offset);
        base = h.base_unix_ns.get();
        let (id, first) = (h.producer_id.get(), h.first_sequence.get());
        for sequence in (first..first + h.num.get() as u64).filter(|_| id != 0) {
            let twice = places.insert((id, sequence), h.start());
            assert!(
                twice.is_none() || limits.max < PRODUCERS,
                "no_duplicate_from_idempotent_producer: {id:x} has sequence {sequence} at {twice:?} and at offset {}",
                h.offset
            );
        }
    }
    let from = log.first().map_or(p.end.offset, |(h, _)| h.offset.get());
    if from == 0 {
        assert_eq!(p.producers, table, "the table of producers does not follow from the log");
    }
    for producer in producers.iter_mut() {
        for s in producer.sent.iter().filter(|s| s.acknowledged && limits.max >= PRODUCERS) {
            let at = places.get(&(producer.id.get(), s.first));
            let is_removed = s.at.is_none_or(|at| at.offset < from);
            assert!(
                at.is_some() || is_removed,
                "no_duplicate_from_idempotent_producer: {} lost its acknowledged sequence {}",
                producer.id,
                s.first
            );
        }
    }
}
