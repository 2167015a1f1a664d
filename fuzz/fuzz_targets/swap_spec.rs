//! libFuzzer's program for the target `swap_spec`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::swap_spec::check(input));
