//! libFuzzer's program for the target `proc_text`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::proc_text::check(input));
