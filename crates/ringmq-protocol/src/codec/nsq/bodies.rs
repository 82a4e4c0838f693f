//! The bodies of one publish, borrowed from where they were received.

/// Bodies of a PUB, a DPUB or an MPUB, stored together or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies<'a> {
    One(&'a [u8]),
    /// Body of a DPUB: no channel delivers it before so many milliseconds have passed.
    Deferred {
        body: &'a [u8],
        delay_ms: u64,
    },
    Many(MpubBodies<'a>),
}

impl<'a> Bodies<'a> {
    pub fn iter(&self) -> BodiesIter<'a> {
        match *self {
            Bodies::One(body) | Bodies::Deferred { body, .. } => BodiesIter(Inner::One(Some(body).into_iter())),
            Bodies::Many(bodies) => BodiesIter(Inner::Many(bodies.wire)),
        }
    }

    /// Number of bodies, at least 1.
    pub fn count(&self) -> usize {
        match self {
            Bodies::One(_) | Bodies::Deferred { .. } => 1,
            Bodies::Many(bodies) => bodies.count as usize,
        }
    }

    /// Zero: they are due at once.
    pub fn delay_ms(&self) -> u64 {
        match self {
            Bodies::Deferred { delay_ms, .. } => *delay_ms,
            Bodies::One(_) | Bodies::Many(_) => 0,
        }
    }

    /// Bytes of all bodies together.
    pub fn bytes(&self) -> usize {
        match self {
            Bodies::One(body) | Bodies::Deferred { body, .. } => body.len(),
            Bodies::Many(bodies) => bodies.wire.len() - 4 * bodies.count as usize,
        }
    }
}

/// An MPUB's messages as they stand on the wire (size u32 be, body, ...), every size checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpubBodies<'a> {
    wire: &'a [u8],
    count: u32,
}

impl<'a> MpubBodies<'a> {
    /// `wire` holds exactly `count` messages: the decoder has walked them.
    pub(super) fn walked(wire: &'a [u8], count: u32) -> Self {
        MpubBodies { wire, count }
    }
}

#[derive(Clone, Debug)]
pub struct BodiesIter<'a>(Inner<'a>);

#[derive(Clone, Debug)]
enum Inner<'a> {
    One(std::option::IntoIter<&'a [u8]>),
    Many(&'a [u8]),
}

impl<'a> Iterator for BodiesIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match &mut self.0 {
            Inner::One(body) => body.next(),
            Inner::Many(wire) => {
                let (size, rest) = wire.split_first_chunk::<4>()?;
                let (body, rest) = rest.split_at(u32::from_be_bytes(*size) as usize);
                *wire = rest;
                Some(body)
            }
        }
    }
}
