//! libFuzzer's program for the target `lz4_page`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::lz4_page::check(input));
