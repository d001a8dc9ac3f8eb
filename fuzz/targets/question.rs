//! See [`fuzz::question`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::question(data));
