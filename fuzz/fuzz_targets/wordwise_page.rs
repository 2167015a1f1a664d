//! libFuzzer's program for the target `wordwise_page`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::wordwise_page::check(input));
