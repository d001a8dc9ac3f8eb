//! See [`fuzz::kv`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::kv(data));
