#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ringmq::session::native::fuzz::native_input(bytes);
    ringmq::session::native::fuzz::native_metadata(bytes);
});
