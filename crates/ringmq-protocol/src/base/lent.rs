//! Memory that is lent to whoever receives: what comes goes to where it stays.

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
    /// Takes from `bytes` what is wanted.
    pub fn put(&mut self, bytes: &mut &[u8]) {
        let (now, rest) = bytes.split_at(self.wanted.min(bytes.len()));
        *bytes = rest;
        self.memory.extend_from_slice(now);
        self.wanted -= now.len();
    }

    /// Moves what is wanted of the first `most` bytes of `inbox`, and says how much that was.
    pub fn take(&mut self, inbox: &mut Vec<u8>, most: usize) -> usize {
        let taken = self.wanted.min(most);
        self.memory.extend(inbox.drain(..taken));
        self.wanted -= taken;
        taken
    }
}
