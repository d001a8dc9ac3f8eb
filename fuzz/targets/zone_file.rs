//! See [`fuzz::zone_file`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::zone_file(data));
