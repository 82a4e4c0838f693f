//! Verified runs of a log that laggards share.
#[derive(Default)]
pub struct ReadCache;
impl ReadCache {
    pub fn new(_bytes_max: usize) -> Self {
        ReadCache
    }
    pub fn bytes(&self) -> usize {
        0
    }
}
