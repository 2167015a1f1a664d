//! A page in compressed form, for the targets of each algorithm.
//!
//! An input is read as a block that somebody kept, and as the contents of a page, again and again until it is
//! full.

use memspill_backing::compress::{Algorithm, COMPRESSED_BYTES_MAX, Codec, Encoded, fill};
use memspill_engine::units::{PAGE_SIZE, Page};

pub fn check(algorithm: Algorithm, input: &[u8]) {
    let mut codec = Codec::default();
    let (mut first, mut second) = (Page::ZERO, Page([0xff; PAGE_SIZE]));
    let whole = codec.decompress(algorithm, input, &mut first);
    let again = codec.decompress(algorithm, input, &mut second);
    assert_eq!(again, whole, "it depends on what was there before");
    if whole {
        assert!(first.0 == second.0, "not all of the page was written");
        comes_back(&mut codec, algorithm, &first);
    }
    let mut page = Page::ZERO;
    if !input.is_empty() {
        page.0.iter_mut().zip(input.iter().cycle()).for_each(|(to, from)| *to = *from);
    }
    comes_back(&mut codec, algorithm, &page);
}

fn comes_back(codec: &mut Codec, algorithm: Algorithm, page: &Page) {
    let mut back = Page([0xa5; PAGE_SIZE]);
    match codec.encode(algorithm, page) {
        Encoded::Same(word) => fill(&mut back, word),
        Encoded::Block(block) => {
            assert!((1..=COMPRESSED_BYTES_MAX).contains(&block.len()));
            let block = block.to_vec();
            assert!(codec.decompress(algorithm, &block, &mut back), "our own block");
            // Shorter, it is none any more.
            let mut cut = Page::ZERO;
            assert!(!codec.decompress(algorithm, &block[..block.len() - 1], &mut cut), "a cut block");
        }
        Encoded::Raw => return,
    }
    assert!(back.0 == page.0, "another page came back");
}
