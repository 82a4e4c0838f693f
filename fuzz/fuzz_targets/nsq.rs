//! Random bytes as a client's whole conversation: `cargo fuzz run nsq`. The first 8 bytes seed the host's answers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (seed, bytes) = data.split_first_chunk::<8>().map_or((0, data), |(seed, rest)| (u64::from_le_bytes(*seed), rest));
    ringmq::session::fuzz::decoder(bytes);
    ringmq::session::fuzz::session(bytes, seed);
    // Past the magic, so that the commands are reached without guessing it.
    ringmq::session::fuzz::session(&[b"  V2", bytes].concat(), seed);
});
