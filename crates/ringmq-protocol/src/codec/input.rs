//! Bytes to frames. A header and its metadata are collected in one small buffer; a payload goes straight to its final place, with room
//! in front for a header of the node. Never holds more than one frame. Memory grows with the bytes received, now or for earlier frames:
//! a claimed length alone costs none. The memory of a long payload can be lent to the receiver, so that the payload is not copied.

use super::frame::{FrameError, HEADER_LEN, Header};
use crate::base::Lent;

/// Bytes reserved for a payload of an unknown sender before they arrive.
const RESERVE_FIRST: usize = 64 * 1024;

/// Most bytes reserved on the strength of the payload before.
const RESERVE_KNOWN: usize = 1024 * 1024;

/// Bytes reserved for each byte that arrived.
const RESERVE_FACTOR: usize = 3;

#[derive(Debug)]
pub struct Input {
    /// The longest frame that is taken.
    pub max: usize,
    /// Zeros in front of each payload.
    room: usize,
    /// Bytes reserved for a payload before they arrive.
    reserve: usize,
    /// Header and metadata, as far as they came.
    head: Vec<u8>,
    body: Option<Body>,
}

#[derive(Debug)]
struct Body {
    header: Header,
    /// Header and metadata.
    head: Vec<u8>,
    /// Empty when the payload is dropped.
    payload: Vec<u8>,
    missing: usize,
    kept: bool,
    /// The payload's memory is lent, so long when it was.
    lent: Option<usize>,
}

impl Body {
    fn is_lendable(&self, min: usize) -> bool {
        self.kept && self.lent.is_none() && self.missing >= min
    }

    /// Memory for so much more, at least.
    fn make_room(&mut self, more: usize) {
        if self.payload.len() + more > self.payload.capacity() {
            self.payload.reserve_exact(self.missing.min(RESERVE_FACTOR * self.payload.len() + more));
        }
    }
}

/// A whole frame.
#[derive(Debug)]
pub struct Frame<'a> {
    pub header: Header,
    pub metadata: &'a [u8],
    /// The room's zeros, then the payload; empty when there is none, or when it was dropped.
    pub payload: Vec<u8>,
}

impl Input {
    pub fn new(max: usize, room: usize) -> Input {
        Input { max, room, reserve: RESERVE_FIRST, head: Vec::new(), body: None }
    }

    /// Input of a known sender: reserves so many bytes for a payload at once.
    pub fn reserving(self, reserve: usize) -> Input {
        Input { reserve, ..self }
    }

    /// Takes from `bytes` until a frame is whole, and gives it to `each`; false when there are too few. `keeps` says whether
    /// the payload of such a frame is wanted.
    pub fn next(
        &mut self,
        bytes: &mut &[u8],
        keeps: impl Fn(&Header) -> bool,
        each: &mut dyn FnMut(Frame<'_>),
    ) -> Result<bool, FrameError> {
        if self.body.is_none() && !self.begin(bytes, keeps, each)? {
            return Ok(false);
        }
        // a frame without a payload was given away in `begin`
        let Some(body) = &mut self.body else { return Ok(true) };
        assert!(body.lent.is_none(), "what comes goes to the memory that is lent");
        let (now, rest) = bytes.split_at(body.missing.min(bytes.len()));
        *bytes = rest;
        if body.kept {
            body.make_room(now.len());
            body.payload.extend_from_slice(now);
        }
        body.missing -= now.len();
        Ok(self.end_of_payload(each))
    }

    /// True: the payload is whole, and was given away with its frame.
    fn end_of_payload(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> bool {
        let Some(Body { header, head, payload, kept, .. }) = self.body.take_if(|body| body.missing == 0) else {
            return false;
        };
        if kept {
            self.reserve = self.reserve.max(header.payload_len.min(RESERVE_KNOWN));
        }
        each(Frame { header, metadata: &head[HEADER_LEN..], payload });
        true
    }

    /// True if at least `min` bytes (1 or more) of the current payload are missing and wanted.
    pub fn is_lendable(&self, min: usize) -> bool {
        self.body.as_ref().is_some_and(|body| body.is_lendable(min))
    }

    /// Lends the payload's memory, if [`Input::is_lendable`]: the next bytes of the stream, `min` at least, go there. Nothing is given
    /// to [`Input::next`] before it is back.
    pub fn lend(&mut self, min: usize) -> Option<Lent> {
        let body = self.body.as_mut().filter(|body| body.is_lendable(min))?;
        body.make_room(min);
        body.lent = Some(body.payload.len());
        let room = body.payload.capacity() - body.payload.len();
        Some(Lent { memory: std::mem::take(&mut body.payload), wanted: room.min(body.missing) })
    }

    /// Takes lent memory back with its contents. True: the frame is complete and was given to `each`.
    pub fn take_back(&mut self, lent: Lent, each: &mut dyn FnMut(Frame<'_>)) -> bool {
        let body = self.body.as_mut().expect("a payload whose memory is lent is not over");
        let before = body.lent.take().expect("only what is lent comes back");
        let came = lent.memory.len().checked_sub(before).filter(|came| *came <= body.missing);
        body.missing -= came.expect("bytes of the payload were added, and no others");
        body.payload = lent.memory;
        self.end_of_payload(each)
    }

    /// True when a header and its metadata are whole: the frame was given away, or its payload comes next.
    fn begin(
        &mut self,
        bytes: &mut &[u8],
        keeps: impl Fn(&Header) -> bool,
        each: &mut dyn FnMut(Frame<'_>),
    ) -> Result<bool, FrameError> {
        if self.head.is_empty()
            && let Some((header, metadata)) = Header::parse(bytes, self.max)?
            && header.payload_len == 0
        {
            // the common case of small requests: nothing is copied
            *bytes = &bytes[header.frame_len()..];
            each(Frame { header, metadata, payload: Vec::new() });
            return Ok(true);
        }
        loop {
            let wanted = match self.head.get(10..12) {
                Some(len) if self.head.len() >= HEADER_LEN => HEADER_LEN + u16::from_le_bytes([len[0], len[1]]) as usize,
                _ => HEADER_LEN,
            };
            let (now, rest) = bytes.split_at(wanted.saturating_sub(self.head.len()).min(bytes.len()));
            *bytes = rest;
            self.head.extend_from_slice(now);
            match Header::parse(&self.head, self.max)? {
                Some((header, _)) if header.payload_len == 0 => {
                    let head = std::mem::take(&mut self.head);
                    each(Frame { header, metadata: &head[HEADER_LEN..], payload: Vec::new() });
                    return Ok(true);
                }
                Some((header, _)) => {
                    let (head, kept) = (std::mem::take(&mut self.head), keeps(&header));
                    let mut payload = Vec::new();
                    if kept {
                        payload.reserve_exact(self.room + header.payload_len.min(self.reserve));
                        payload.resize(self.room, 0);
                    }
                    self.body = Some(Body { header, head, payload, missing: header.payload_len, kept, lent: None });
                    return Ok(true);
                }
                None if bytes.is_empty() => return Ok(false),
                None => {}
            }
        }
    }

    /// The input stands between two frames.
    pub fn is_idle(&self) -> bool {
        self.head.is_empty() && self.body.is_none()
    }

    /// Takes the bytes of an incomplete header. A session moves only between the payloads of frames.
    pub fn take_head(&mut self) -> Vec<u8> {
        assert!(self.body.is_none(), "a connection moves before its first payload");
        std::mem::take(&mut self.head)
    }

    pub fn held_bytes(&self) -> usize {
        self.head.capacity() + self.body.as_ref().map_or(0, |b| b.head.capacity() + b.payload.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::native::frame::{encode, payload_crc};
    use proptest::prelude::*;

    const ROOM: usize = 128;
    const LENT_MIN: usize = 64 * 1024;

    proptest! {
        /// However the stream is cut, the same frames come out.
        #[test]
        fn any_cut_gives_the_same_frames(
            frames in prop::collection::vec((any::<u8>(), 0..9usize, 0..300usize), 1..12),
            cuts in prop::collection::vec(1..400usize, 1..60),
        ) {
            let (mut stream, mut expected) = (vec![], vec![]);
            for (kind, meta, len) in frames {
                let (meta, payload) = (vec![kind; meta * 8], vec![kind ^ 0x55; len]);
                encode(&mut stream, kind, 7, &meta, len, payload_crc(&payload));
                stream.extend_from_slice(&payload);
                expected.push((kind, meta, if kind % 3 == 0 { vec![] } else { payload }));
            }
            let (mut input, mut found, mut cuts) = (Input::new(1 << 20, ROOM), vec![], cuts.into_iter().cycle());
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let (mut now, after) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                rest = after;
                while !now.is_empty() {
                    let mut take = |f: Frame<'_>| {
                        let payload = f.payload.get(ROOM..).unwrap_or_default().to_vec();
                        found.push((f.header.kind, f.metadata.to_vec(), payload));
                    };
                    input.next(&mut now, |h| h.kind % 3 != 0, &mut take).expect("the stream is sound");
                }
            }
            prop_assert_eq!(found, expected);
            prop_assert!(input.is_idle());
        }
    }

    #[test]
    fn a_length_alone_costs_no_memory() {
        let mut stream = vec![];
        encode(&mut stream, 2, 1, &[0; 8], 60 << 20, 0);
        let mut input = Input::new(64 << 20, 0);
        let mut rest = &stream[..];
        assert!(!input.next(&mut rest, |_| true, &mut |_| panic!("nothing is whole")).unwrap());
        assert!(input.held_bytes() < 100 * 1024);
        let mut rest = &[0; 100 * 1024][..];
        assert!(!input.next(&mut rest, |_| true, &mut |_| panic!("nothing is whole")).unwrap());
        assert!(input.held_bytes() < 1024 * 1024, "it grows by what came");
        let mut input = Input::new(64 << 20, 0);
        for (len, least, most) in [(300_000, 64 * 1024, 100 * 1024), (60 << 20, 300_000, 400_000)] {
            let mut stream = vec![];
            encode(&mut stream, 2, 1, &[0; 8], len, payload_crc(&vec![0; len]));
            assert!(!input.next(&mut &stream[..], |_| true, &mut |_| panic!("nothing is whole")).unwrap());
            assert!((least..most).contains(&input.held_bytes()), "{} for {len} bytes", input.held_bytes());
            let mut whole = false;
            input.next(&mut &vec![0; len][..], |_| true, &mut |_| whole = true).unwrap();
            assert!(whole);
        }
        let mut rest = &stream[..];
        assert!(matches!(Input::new(1 << 20, ROOM).next(&mut rest, |_| true, &mut |_| {}), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn lent_memory_gives_the_same_frames() {
        let (mut rng, mut lent) = (crate::base::Rng::new(11), 0);
        for round in 0..60 {
            let (mut stream, mut expected) = (vec![], vec![]);
            for _ in 0..6 {
                let len = if rng.chance(0.3) { rng.below(2_500_000) } else { rng.below(130_000) } as usize;
                let payload: Vec<u8> = (0..len).map(|n| ((n * 7) >> 3) as u8).collect();
                encode(&mut stream, 2, 1, &[0; 8], len, payload_crc(&payload));
                stream.extend_from_slice(&payload);
                expected.push(payload);
            }
            let (mut input, mut found) = (Input::new(4 << 20, ROOM).reserving(1 << 20), vec![]);
            let (mut rest, most) = (&stream[..], if round % 2 == 0 { 20_000 } else { 900_000 });
            while !rest.is_empty() {
                let (mut now, after) = rest.split_at((1 + rng.below(most) as usize).min(rest.len()));
                rest = after;
                let mut each = |f: Frame<'_>| {
                    found.push(f.payload.get(ROOM..).unwrap_or_default().to_vec());
                };
                while !now.is_empty() {
                    if input.is_lendable(LENT_MIN) && rng.chance(0.7) {
                        let mut memory = input.lend(LENT_MIN).expect("it is lendable");
                        assert!(memory.wanted >= LENT_MIN && !input.is_lendable(1) && input.lend(1).is_none());
                        memory.put(&mut now);
                        lent += 1;
                        input.take_back(memory, &mut each);
                    } else {
                        input.next(&mut now, |_| true, &mut each).expect("the stream is sound");
                    }
                }
            }
            assert!(input.is_idle() && found == expected);
        }
        assert!(lent > 100, "{lent}");
    }
}
