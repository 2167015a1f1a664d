//! libFuzzer's program for the target `agent`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::agent::check(input));
