//! A page in compressed form (`crates/backing/src/compress.rs`).
//!
//! An input is read as a block that somebody kept, and as the contents of a page, again and again until it is
//! full.

use memspill_backing::compress::{COMPRESSED_BYTES_MAX, Compressor, Encoded, decompress, fill};
use memspill_engine::units::{PAGE_SIZE, Page};

pub fn check(input: &[u8]) {
    let (mut first, mut second) = (Page::ZERO, Page([0xff; PAGE_SIZE]));
    let whole = decompress(input, &mut first);
    assert_eq!(decompress(input, &mut second), whole, "it depends on what was there before");
    if whole {
        assert!(first.0 == second.0, "not all of the page was written");
        comes_back(&first);
    }
    let mut page = Page::ZERO;
    if !input.is_empty() {
        page.0.iter_mut().zip(input.iter().cycle()).for_each(|(to, from)| *to = *from);
    }
    comes_back(&page);
}

fn comes_back(page: &Page) {
    let mut compressor = Compressor::default();
    let mut back = Page([0xa5; PAGE_SIZE]);
    match compressor.encode(page) {
        Encoded::Same(word) => fill(&mut back, word),
        Encoded::Lz4(block) => {
            assert!((1..=COMPRESSED_BYTES_MAX).contains(&block.len()));
            assert!(decompress(block, &mut back), "our own block");
            // Shorter, it is none any more.
            let mut cut = Page::ZERO;
            assert!(!decompress(&block[..block.len() - 1], &mut cut), "a cut block");
        }
        Encoded::Raw => return,
    }
    assert!(back.0 == page.0, "another page came back");
}
