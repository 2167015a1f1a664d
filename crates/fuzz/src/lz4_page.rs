//! A page as LZ4 keeps it (`crates/backing/src/compress.rs`).

use memspill_backing::Algorithm;

pub fn check(input: &[u8]) {
    crate::packed_page::check(Algorithm::Lz4, input);
}
