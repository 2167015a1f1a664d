//! libFuzzer's program for the target `command_line`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::command_line::check(input));
