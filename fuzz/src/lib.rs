//! Entry point of each fuzz target for arbitrary bytes: the same for libFuzzer (`fuzz_targets/`) and for `cargo test` (`tests/fuzz.rs`,
//! which takes this file in).

use ringmq::{codec, peer as links, session};
use ringmq_core::sim;

pub type Target = fn(&[u8]);

/// Fuzz targets, by the names of the files in `fuzz_targets/`.
pub const TARGETS: [(&str, Target); 9] = [
    ("batch", batch),
    ("body", body),
    ("headers", headers),
    ("snapshot", snapshot),
    ("journal_write", journal_write),
    ("data_path", data_path),
    ("nsq", nsq),
    ("native", native),
    ("peer", peer),
];

pub fn batch(bytes: &[u8]) {
    sim::fuzz::batch(bytes);
}

pub fn body(bytes: &[u8]) {
    sim::fuzz::body(bytes);
}

pub fn headers(bytes: &[u8]) {
    sim::fuzz::headers(bytes);
}

pub fn snapshot(bytes: &[u8]) {
    sim::fuzz::snapshot(bytes);
}

pub fn journal_write(bytes: &[u8]) {
    sim::fuzz::journal_write(bytes);
}

pub fn data_path(bytes: &[u8]) {
    sim::fuzz::data_path(bytes);
}

/// A client's whole conversation. The first 8 bytes seed the host's answers.
pub fn nsq(bytes: &[u8]) {
    let (seed, bytes) = bytes.split_first_chunk::<8>().map_or((0, bytes), |(seed, rest)| (u64::from_le_bytes(*seed), rest));
    session::fuzz::decoder(bytes);
    session::fuzz::session(bytes, seed);
    // past the magic, so that the commands are reached without guessing it
    session::fuzz::session(&[b"  V2", bytes].concat(), seed);
}

pub fn native(bytes: &[u8]) {
    session::native::fuzz::native_input(bytes);
    session::native::fuzz::native_metadata(bytes);
}

pub fn peer(bytes: &[u8]) {
    codec::peer::fuzz::peer_stream(bytes);
    codec::peer::fuzz::peer_metadata(bytes);
    links::fuzz::links_input(bytes);
    links::fuzz::links_frames(bytes);
}
