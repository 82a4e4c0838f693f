//! The replies a session owes, in the order of their commands.
//!
//! Neighbours of a kind are one run, so a thousand pipelined PUBs are one entry and cost no allocation each. A reply that
//! comes out of order splits its run; one that comes in order goes straight to the output.

use super::host::ReplySlot;
use crate::codec::nsq::{Bodies, frame};
use std::collections::VecDeque;

/// Command that a slot waits for; names the error when it fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandKind {
    Publish,
    DeferredPublish,
    MultiPublish,
    Subscribe,
}

impl CommandKind {
    pub fn publish(bodies: &Bodies<'_>) -> CommandKind {
        match bodies {
            Bodies::One(_) => CommandKind::Publish,
            Bodies::Deferred { .. } => CommandKind::DeferredPublish,
            Bodies::Many(_) => CommandKind::MultiPublish,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ReplyContent {
    Waiting(CommandKind),
    /// A response that is known for the whole run.
    Response(&'static [u8]),
    /// Encoded frame.
    Frame(Box<[u8]>),
    /// Encoded frame (perhaps empty) after which nothing leaves.
    Last(Box<[u8]>),
}

#[derive(Debug)]
struct Run {
    first: u64,
    count: u32,
    what: ReplyContent,
}

#[derive(Debug, Default)]
pub struct Replies {
    runs: VecDeque<Run>,
    /// The slot whose reply leaves next.
    head: u64,
    /// The slot given out next.
    next: u64,
    /// Bytes of frames that wait behind earlier replies.
    frame_bytes: usize,
    /// The last frame left: nothing is queued or taken any more.
    is_closed: bool,
}

/// An emptied queue larger than this gives its memory back.
const RUNS_KEPT: usize = 32;

impl Replies {
    pub fn len(&self) -> usize {
        (self.next - self.head) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    pub fn held_bytes(&self) -> usize {
        self.frame_bytes + self.runs.capacity() * size_of::<Run>()
    }

    /// The slot that the next command gets.
    pub fn next_slot(&self) -> ReplySlot {
        ReplySlot(self.next)
    }

    pub fn has_left(&self, slot: ReplySlot) -> bool {
        slot.0 < self.head
    }

    /// Takes the next slot for a reply that is still to come.
    pub fn wait(&mut self, asked: CommandKind) {
        self.push(ReplyContent::Waiting(asked));
    }

    /// Queues a response that is known already, or lets it out at once.
    pub fn push_response(&mut self, data: &'static [u8], out: &mut Vec<u8>) {
        if self.is_empty() {
            return frame::response(out, data);
        }
        self.push(ReplyContent::Response(data));
    }

    /// [`Self::push_response`] for an encoded frame.
    pub fn push_frame(&mut self, frame: &[u8], out: &mut Vec<u8>) {
        if self.is_empty() {
            return out.extend_from_slice(frame);
        }
        self.frame_bytes += frame.len();
        self.push(ReplyContent::Frame(frame.into()));
    }

    /// The frame (empty: none) after which nothing leaves.
    pub fn push_last(&mut self, frame: &[u8], out: &mut Vec<u8>) {
        self.push(ReplyContent::Last(frame.into()));
        self.drain(out);
    }

    fn push(&mut self, what: ReplyContent) {
        if self.is_closed {
            return;
        }
        let first = self.next;
        self.next += 1;
        match self.runs.back_mut() {
            Some(back) if back.what.joins(&what) => back.count += 1,
            _ => self.runs.push_back(Run { first, count: 1, what }),
        }
    }

    /// Command that the slot waits for; `None` once nothing is taken any more.
    ///
    /// # Panics
    /// When the slot is not waiting: a reply given twice would answer another command's client falsely.
    pub fn asked(&self, slot: ReplySlot) -> Option<CommandKind> {
        self.find(slot).map(|at| match self.runs[at].what {
            ReplyContent::Waiting(asked) => asked,
            _ => panic!("slot {} was answered before", slot.0),
        })
    }

    pub fn respond(&mut self, slot: ReplySlot, data: &'static [u8], out: &mut Vec<u8>) {
        self.settle(slot, ReplyContent::Response(data), out);
    }

    pub fn respond_frame(&mut self, slot: ReplySlot, frame: &[u8], is_last: bool, out: &mut Vec<u8>) {
        if is_last {
            self.settle(slot, ReplyContent::Last(frame.into()), out);
        } else {
            self.frame_bytes += frame.len();
            self.settle(slot, ReplyContent::Frame(frame.into()), out);
        }
    }

    fn find(&self, slot: ReplySlot) -> Option<usize> {
        if self.is_closed {
            return None;
        }
        assert!((self.head..self.next).contains(&slot.0), "slot {} is not outstanding", slot.0);
        // The common case first: replies come in order.
        let front = self.runs.front().expect("a slot is outstanding");
        if slot.0 < front.first + front.count as u64 {
            return Some(0);
        }
        Some(self.runs.partition_point(|run| run.first <= slot.0) - 1)
    }

    fn settle(&mut self, slot: ReplySlot, what: ReplyContent, out: &mut Vec<u8>) {
        let Some(mut at) = self.find(slot) else { return };
        let run = &mut self.runs[at];
        let ReplyContent::Waiting(asked) = run.what else { panic!("slot {} was answered before", slot.0) };
        let before = (slot.0 - run.first) as u32;
        let after = run.count - before - 1;
        if slot.0 == self.head {
            // Leaves at once; the run shrinks from its front.
            if after == 0 {
                self.runs.pop_front();
            } else {
                (run.first, run.count) = (slot.0 + 1, after);
            }
            self.head += 1;
            self.emit(&what, 1, out);
            return self.drain(out);
        }
        if before == 0 && at > 0 && self.runs[at - 1].what.joins(&what) {
            self.runs[at - 1].count += 1;
            if after == 0 {
                self.runs.remove(at);
            } else {
                let run = &mut self.runs[at];
                (run.first, run.count) = (slot.0 + 1, after);
            }
            return;
        }
        let answered = Run { first: slot.0, count: 1, what };
        let rest = Run { first: slot.0 + 1, count: after, what: ReplyContent::Waiting(asked) };
        if before == 0 {
            self.runs[at] = answered;
        } else {
            self.runs[at].count = before;
            at += 1;
            self.runs.insert(at, answered);
        }
        if after > 0 {
            self.runs.insert(at + 1, rest);
        }
    }

    /// Moves the replies that no longer wait to the output.
    fn drain(&mut self, out: &mut Vec<u8>) {
        while let Some(run) = self.runs.pop_front_if(|run| !matches!(run.what, ReplyContent::Waiting(_))) {
            self.head += run.count as u64;
            self.emit(&run.what, run.count, out);
        }
        if self.runs.is_empty() && self.runs.capacity() > RUNS_KEPT {
            self.runs = VecDeque::new();
        }
    }

    fn emit(&mut self, what: &ReplyContent, count: u32, out: &mut Vec<u8>) {
        match what {
            ReplyContent::Waiting(_) => unreachable!("only answered runs are let out"),
            ReplyContent::Response(data) => (0..count).for_each(|_| frame::response(out, data)),
            ReplyContent::Frame(bytes) => {
                self.frame_bytes -= bytes.len();
                out.extend_from_slice(bytes);
            }
            ReplyContent::Last(bytes) => {
                out.extend_from_slice(bytes);
                *self = Replies { head: self.next, next: self.next, is_closed: true, ..Replies::default() };
            }
        }
    }
}

impl ReplyContent {
    fn joins(&self, next: &ReplyContent) -> bool {
        match (self, next) {
            (ReplyContent::Waiting(a), ReplyContent::Waiting(b)) => a == b,
            (ReplyContent::Response(a), ReplyContent::Response(b)) => a == b,
            _ => false,
        }
    }
}
