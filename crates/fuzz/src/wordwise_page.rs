//! A page as wordwise keeps it (`crates/backing/src/wordwise.rs`).

use memspill_backing::Algorithm;

pub fn check(input: &[u8]) {
    crate::packed_page::check(Algorithm::Wordwise, input);
}
