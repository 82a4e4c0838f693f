#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ringmq_fuzz::data_path(bytes));
