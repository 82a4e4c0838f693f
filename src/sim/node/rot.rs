//! Rot between two lives of a node: one file of what stands in two loses its block.

use crate::base::{BLOCK, Rng};
use crate::sim::disk::SimDisk;

/// The headers that a file begins with are no longer than this.
const HEADER_LEN: usize = 64;

/// Damages the first block of one file of node.meta, of a topic.meta, or of a segment or its commit log. Whether there was one.
/// The rest of a segment stands once, and its commit log is an index that a start does not read as a whole.
pub fn strike(disk: &mut SimDisk, rng: &mut Rng) -> bool {
    let stands_twice = |path: &&str| {
        let is_one = path.contains(".meta.") || path.ends_with(".segment") || path.ends_with(".commit");
        is_one && !path.contains('~') && disk.contents_of(path).iter().take(HEADER_LEN).any(|&b| b != 0)
    };
    let paths: Vec<String> = disk.paths().filter(stands_twice).map(String::from).collect();
    if paths.is_empty() {
        return false;
    }
    let path = &paths[rng.below(paths.len() as u64) as usize];
    match rng.below(4) {
        0 => disk.scribble(path, 0, &[0; BLOCK]),
        1 if path.contains(".meta.") => disk.cut(path, 0),
        2 if path.contains(".meta.") => disk.lose(path, None),
        _ => disk.flip(path, rng.below(HEADER_LEN as u64), rng.next_u64() as u32),
    }
    true
}
