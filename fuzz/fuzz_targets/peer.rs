#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ringmq::codec::peer::fuzz::peer_stream(bytes);
    ringmq::codec::peer::fuzz::peer_metadata(bytes);
    ringmq::peer::fuzz::links_input(bytes);
    ringmq::peer::fuzz::links_frames(bytes);
});
