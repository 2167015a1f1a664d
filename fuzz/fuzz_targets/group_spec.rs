//! libFuzzer's program for the target `group_spec`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::group_spec::check(input));
