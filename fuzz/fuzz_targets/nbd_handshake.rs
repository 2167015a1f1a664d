//! libFuzzer's program for the target `nbd_handshake`, which crates/fuzz describes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| memspill_fuzz::nbd_handshake::check(input));
