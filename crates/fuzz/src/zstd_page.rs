//! A page as zstd keeps it (`crates/backing/src/compress.rs`).

use memspill_backing::Algorithm;

pub fn check(input: &[u8]) {
    crate::packed_page::check(Algorithm::Zstd, input);
    crate::packed_page::check(Algorithm::ZstdFast, input);
}
