//! libFuzzer's program for the target `zstd_page`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::zstd_page::check(input));
