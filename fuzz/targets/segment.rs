//! See [`fuzz::segment`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::segment(data));
