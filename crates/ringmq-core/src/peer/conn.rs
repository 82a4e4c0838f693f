//! One connection: bytes to frames, and the messages that wait for its socket to frames.

use super::nodes::LinkId;
use super::{DATA_UNSENT_MAX, LinkOptions};
use crate::base::{CoreId, Lent, Peer, Ticks};
use crate::codec::frame::FrameError;
use crate::codec::input::{self, Input};
use crate::codec::output::Output;
use crate::codec::peer::frame::{FRAME_MAX, Header};
use crate::codec::peer::message::{APPEND_BYTES_MAX, Append, Body, Lane, Message, Relayed};
use crate::codec::peer::{Addressed, Encoder, Frame, Lanes, Malformed, RejectCode, SequenceError, Sequences, check_payload};
use crate::format::cursor::CursorImage;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;

/// Approximate bytes of a message beside its batches.
const MESSAGE_BYTES: usize = 160;

/// Bytes reserved at once for a payload of another node: a run of batches of the usual length.
const RESERVE: usize = APPEND_BYTES_MAX + 4096;

/// Highest priority first.
const LANES: [Lane; 3] = [Lane::Control, Lane::Data, Lane::CatchUp];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Accepted connection whose node is not known yet.
    Stranger {
        until: Ticks,
    },
    /// Dialled connection for these lanes; Hello was sent.
    Hello {
        place: LinkId,
        asked: Lanes,
        until: Ticks,
    },
    Open {
        place: LinkId,
        lanes: Lanes,
        silence_max: Duration,
    },
    /// Connection that moves to another core at the end of the turn.
    Leaving {
        to: CoreId,
    },
    /// Closed at the end of the turn, or being closed.
    Ended,
}

/// Contents of a frame.
#[derive(Debug)]
pub(super) enum FrameContent {
    Messages(Vec<Addressed>),
    Ping,
    Pong,
    Reject(RejectCode, String),
    /// A second Hello or Welcome.
    Greeting,
    /// Frame of a later version.
    Unknown,
}

/// Reason why nothing more can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
}

impl Fault {
    pub fn code(&self) -> RejectCode {
        if matches!(self, Fault::Sequence(_)) { RejectCode::Sequence } else { RejectCode::Malformed }
    }
}

#[derive(Debug)]
pub(super) struct Conn {
    pub peer: Peer,
    pub phase: Phase,
    /// True for a connection that came from another core.
    pub has_moved: bool,
    /// True while the connection is in the list of those with work at the turn's end.
    pub is_touched: bool,
    pub is_close_told: bool,
    // ---- input
    /// Bytes before the handshake is done.
    pub held: Vec<u8>,
    /// Messages that came before the link was up, and their bytes.
    pub early: Vec<Addressed>,
    pub early_bytes: usize,
    input: Input,
    pub seen: Sequences,
    pub heard_at: Ticks,
    // ---- output
    pub encoder: Encoder,
    /// Frames for the socket.
    pub pieces: Vec<Bytes>,
    /// Waiting messages by priority.
    queues: [VecDeque<Addressed>; 3],
    /// Bytes of the messages in them.
    queued: usize,
    /// Bytes of the messages for clients among them.
    relayed: usize,
    /// Bytes that the socket has and did not send.
    unsent: usize,
    pub said_at: Ticks,
    /// Time at which the socket last sent something, or had nothing to send.
    pub taken_at: Ticks,
}

impl Conn {
    pub fn new(peer: Peer, phase: Phase, now: Ticks) -> Conn {
        Conn {
            peer,
            phase,
            has_moved: false,
            is_touched: false,
            is_close_told: false,
            held: vec![],
            early: vec![],
            early_bytes: 0,
            input: Input::new(FRAME_MAX, 0).reserving(RESERVE),
            seen: Sequences::default(),
            heard_at: now,
            encoder: Encoder::default(),
            pieces: vec![],
            queues: Default::default(),
            queued: 0,
            relayed: 0,
            unsent: 0,
            said_at: now,
            taken_at: now,
        }
    }

    pub fn place(&self) -> Option<LinkId> {
        match self.phase {
            Phase::Hello { place, .. } | Phase::Open { place, .. } => Some(place),
            _ => None,
        }
    }

    /// Takes the next frame from `bytes`; `None`: it is not whole.
    pub fn receive(&mut self, bytes: &mut &[u8]) -> Result<Option<FrameContent>, Fault> {
        self.take_frame(|input, each| input.next(bytes, |_| true, each).map(|_| ()))
    }

    /// A long payload is received to where it stays.
    pub fn lend(&mut self, min: usize) -> Option<Lent> {
        self.input.lend(min)
    }

    pub fn can_lend(&self, min: usize) -> bool {
        self.input.is_lendable(min)
    }

    /// Takes lent memory back with its contents; returns the frame that is complete by that.
    pub fn take_back(&mut self, lent: Lent) -> Result<Option<FrameContent>, Fault> {
        self.take_frame(|input, each| {
            input.take_back(lent, each);
            Ok(())
        })
    }

    fn take_frame(
        &mut self,
        from: impl FnOnce(&mut Input, &mut dyn FnMut(input::Frame<'_>)) -> Result<(), FrameError>,
    ) -> Result<Option<FrameContent>, Fault> {
        let Conn { input, seen, .. } = self;
        let mut got = None;
        from(input, &mut |raw| got = Some(look_at(seen, &raw.header, raw.metadata, &raw.payload.into())))?;
        got.transpose()
    }

    pub fn queue(&mut self, lane: Lane, message: Addressed) {
        self.queued += weight(&message.message);
        self.relayed += relayed(&message.message);
        self.queues[place_of(lane)].push_back(message);
    }

    pub fn queued(&self) -> usize {
        self.queued
    }

    pub fn relayed(&self) -> usize {
        self.relayed
    }

    /// Bytes that wait to be sent, and bytes that the socket has not sent.
    pub fn waiting(&self) -> usize {
        self.queued + self.unsent
    }

    pub fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// Drops all waiting messages.
    pub fn drop_queues(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        (self.queued, self.relayed) = (0, 0);
        (self.early, self.held) = (vec![], vec![]);
    }

    pub fn sent(&mut self, now: Ticks, bytes: usize) {
        self.unsent = self.unsent.saturating_sub(bytes);
        self.taken_at = now;
    }

    /// Output at the end of a turn: control first, then data, then catch-up. Data and catch-up wait while the socket has too much.
    pub fn take_output(&mut self, now: Ticks, options: &LinkOptions) -> Option<Output> {
        if self.queued > 0 {
            self.encode(options.catch_up_unsent_max);
        }
        if self.pieces.is_empty() {
            return None;
        }
        let output = Output::of(self.pieces.drain(..));
        if self.unsent == 0 {
            self.taken_at = now;
        }
        self.unsent += output.bytes();
        self.said_at = now;
        Some(output)
    }

    fn encode(&mut self, catch_up_unsent_max: usize) {
        let len = |pieces: &[Bytes]| pieces.iter().map(Bytes::len).sum::<usize>();
        let mut ahead = self.unsent + len(&self.pieces);
        for (lane, most) in LANES.into_iter().zip([usize::MAX, DATA_UNSENT_MAX, catch_up_unsent_max.max(1)]) {
            let queue = &mut self.queues[place_of(lane)];
            while !queue.is_empty() && ahead < most {
                let (mut num, mut bytes) = (0, 0);
                while let Some(next) = queue.get(num)
                    && (num == 0 || bytes + weight(&next.message) <= most - ahead)
                {
                    bytes += weight(&next.message);
                    num += 1;
                }
                let run: Vec<Addressed> = queue.drain(..num).collect();
                let before = self.pieces.len();
                self.encoder.messages(&mut self.pieces, lane, &run);
                self.queued -= bytes;
                self.relayed -= run.iter().map(|m| relayed(&m.message)).sum::<usize>();
                ahead += len(&self.pieces[before..]);
            }
        }
    }
}

fn place_of(lane: Lane) -> usize {
    match lane {
        Lane::Control => 0,
        Lane::Data => 1,
        Lane::CatchUp => 2,
    }
}

/// Bytes of messages for clients.
fn relayed(message: &Message) -> usize {
    if let Body::Relay(Relayed::Deliver(frames)) = &message.body { frames.len() } else { 0 }
}

/// Memory that a message keeps, about.
pub(super) fn weight(message: &Message) -> usize {
    MESSAGE_BYTES
        + match &message.body {
            Body::Append(m) => m.batches.len(),
            Body::Pulled(m) => m.batches.len(),
            Body::Forward(m) => m.bodies.as_bytes().len(),
            Body::Relay(Relayed::Deliver(frames)) => frames.len(),
            Body::Cursors(m) => m.cursors.iter().map(CursorImage::encoded_len).sum::<usize>() + m.deleted.len() * 64,
            Body::Standing(m) => m.epochs.len() * 48,
            _ => 0,
        }
}

/// Decodes a complete frame.
fn look_at(seen: &mut Sequences, header: &Header, metadata: &[u8], payload: &Bytes) -> Result<FrameContent, Fault> {
    let are_sound = check_payload(header, payload)?;
    seen.check(header)?;
    Ok(match Frame::decode(header, metadata, payload) {
        Ok(Frame::Messages(mut messages)) => {
            // of several messages each has to see for itself where its batches begin
            if let [Addressed { message: Message { body: Body::Append(Append { batches, .. }), .. }, .. }] = &mut messages[..]
                && are_sound
            {
                batches.note_checked();
            }
            FrameContent::Messages(messages)
        }
        Ok(Frame::Ping) => FrameContent::Ping,
        Ok(Frame::Pong) => FrameContent::Pong,
        Ok(Frame::Reject(reject)) => FrameContent::Reject(reject.code, reject.message.to_owned()),
        Ok(Frame::Hello(_) | Frame::Welcome(_)) => FrameContent::Greeting,
        Err(Malformed::UnknownKind(_)) => FrameContent::Unknown,
        Err(e) => return Err(e.into()),
    })
}
