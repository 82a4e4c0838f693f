//! Memory that is lent to a receiver, so that a payload is received at its final place, without a copy.

pub struct Lent {
    /// Buffer with space for `wanted` bytes behind its contents.
    pub memory: Vec<u8>,
    pub wanted: usize,
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").field("len", &self.memory.len()).field("wanted", &self.wanted).finish()
    }
}

impl Lent {
    /// Takes the wanted bytes from the front of `bytes`.
    pub fn put(&mut self, bytes: &mut &[u8]) {
        let (now, rest) = bytes.split_at(self.wanted.min(bytes.len()));
        *bytes = rest;
        self.memory.extend_from_slice(now);
        self.wanted -= now.len();
    }

    /// Moves the wanted bytes out of the first `most` bytes of `inbox`. Returns their number.
    pub fn take(&mut self, inbox: &mut Vec<u8>, most: usize) -> usize {
        let taken = self.wanted.min(most);
        self.memory.extend(inbox.drain(..taken));
        self.wanted -= taken;
        taken
    }
}
