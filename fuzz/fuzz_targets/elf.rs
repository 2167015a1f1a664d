//! libFuzzer's program for the target `elf`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::elf::check(input));
