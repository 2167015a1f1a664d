//! Each way to tell a word, and pages and blocks of all kinds there and back.

use memspill_engine::units::PAGE_SIZE;

use super::*;
use crate::compress::COMPRESSED_BYTES_MAX;

fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn page_of(mut word: impl FnMut(usize) -> u64) -> Page {
    let mut page = Page::ZERO;
    for (n, bytes) in page.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = word(n).to_le_bytes();
    }
    page
}

/// The length of its block; it has come back.
fn length_of(page: &Page) -> Option<usize> {
    let mut out = [0; PAGE_SIZE];
    let len_bytes = compress(page, &mut out, COMPRESSED_BYTES_MAX)?;
    let mut back = Page([0xa5; PAGE_SIZE]);
    assert!(decompress(&out[..len_bytes], &mut back.0));
    assert!(back.0 == page.0, "another page came back");
    // Neither less nor more of it is a block.
    assert!(!decompress(&out[..len_bytes - 1], &mut back.0));
    assert!(!decompress(&out[..len_bytes + 1], &mut back.0));
    Some(len_bytes)
}

/// Each tag once, by a page that needs it. All others of its words are zero, or as the one before.
#[test]
fn each_way_to_tell_a_word() {
    let zeros = length_of(&page_of(|_| 0)).unwrap();
    assert_eq!(zeros, TAGS_BYTES);
    let far = 0x0123_4567_89ab_cdef;
    for (words, operand_bytes) in [
        (&[5][..], 1),
        (&[0x1234], 2),
        (&[far], 8),
        // SPARSE: two bytes of eight, at both ends.
        (&[0x1200_0000_0000_0034], 3),
        // COPY from two words before sets the stride, and SAME follows it.
        (&[far, far ^ !0, far, far ^ !0, far, far ^ !0], 8 + 8 + 1),
        // NEAR by one to four bytes.
        (&[far, far ^ 1], 8 + 2),
        (&[far, far ^ 0x100], 8 + 3),
        (&[far, far ^ 0x101], 8 + 3),
        (&[far, 7, far ^ 0x1_0101], 8 + 1 + 4),
        (&[far, 7, far ^ 0x101_0101], 8 + 1 + 5),
        // DIFFERS in its highest and lowest byte.
        (&[far, far ^ 0xff00_0000_0000_00ff], 8 + 3),
        // AHEAD: pointers to themselves, in a row.
        (&[far, far + 8, far + 16], 8),
    ] {
        let page = page_of(|n| words.get(n).copied().unwrap_or(0));
        assert_eq!(length_of(&page), Some(TAGS_BYTES + operand_bytes), "{words:x?}");
        // And with nothing after it.
        let last = page_of(|n| (n + words.len()).checked_sub(WORDS).map_or(0, |at| words[at]));
        assert_eq!(length_of(&last), Some(TAGS_BYTES + operand_bytes), "{words:x?} at the end");
    }
}

/// A distance of 256 words is told, and one more is not.
#[test]
fn as_far_back_as_a_byte_says() {
    let far = 0x0123_4567_89ab_cdef;
    for (apart, operand_bytes) in [(DISTANCE_MAX, 8 + 1), (DISTANCE_MAX + 1, 8 + 8)] {
        let page = page_of(|n| if n == 3 || n == 3 + apart { far } else { 0 });
        assert_eq!(length_of(&page), Some(TAGS_BYTES + operand_bytes), "{apart}");
    }
}

#[test]
fn whatever_a_page_holds_comes_back() {
    let mut state = 1;
    let (mut blocks, mut longest) = (0, 0);
    for _ in 0..20_000 {
        let stride = 1 + draw(&mut state) as usize % 80;
        let noise_of_64 = draw(&mut state) % 40;
        let pointers = 0x7f00_0000_0000 + (draw(&mut state) << 12);
        let mut words = [0_u64; WORDS];
        for n in 0..WORDS {
            let earlier = words[n.saturating_sub(1 + draw(&mut state) as usize % 300)];
            let strided = words[n.saturating_sub(stride)];
            let some_bytes = draw(&mut state) & draw(&mut state) << (draw(&mut state) % 60);
            words[n] = match draw(&mut state) % 64 {
                kind if kind < noise_of_64 => draw(&mut state) << 33 ^ draw(&mut state),
                kind if kind < 30 => strided,
                kind if kind < 36 => strided.wrapping_add(8 * stride as u64),
                kind if kind < 42 => pointers + draw(&mut state) % 5000 * 16,
                kind if kind < 48 => draw(&mut state) >> (draw(&mut state) % 32),
                kind if kind < 54 => earlier ^ some_bytes,
                kind if kind < 58 => some_bytes,
                _ => 0,
            };
        }
        if let Some(len_bytes) = length_of(&page_of(|n| words[n])) {
            blocks += 1;
            longest = longest.max(len_bytes);
        }
    }
    assert!(blocks > 15_000 && longest > COMPRESSED_BYTES_MAX - 64, "{blocks} blocks, of {longest} at most");
}

#[test]
fn noise_is_left() {
    let mut state = 7;
    let noise = page_of(|_| draw(&mut state) << 33 ^ draw(&mut state));
    assert_eq!(length_of(&noise), None);
    // Half of a page of it is not, wherever it lies.
    for from in [0, WORDS / 4, WORDS / 2] {
        let words =
            |n: usize| if (from..from + WORDS / 2).contains(&n) { draw(&mut state) << 33 | 1 } else { 0 };
        assert!(length_of(&page_of(words)).is_some(), "{from}");
    }
}

/// A list of records, as of `struct { count, type, key, own address, value }`, shrinks to a third.
#[test]
fn records_become_short() {
    let mut state = 3;
    let records = page_of(|n| match n % 6 {
        0 => 1 + draw(&mut state) % 3,
        1 => 0x55d0_1234_5670,
        2 => 0x7f3a_1000_0000 + n as u64 * 8 + 32,
        3 => 0x3030_3030_3030_3030 + ((draw(&mut state) % 10) << 56) + ((draw(&mut state) % 10) << 48),
        4 => 8,
        _ => draw(&mut state) % 60_000,
    });
    let len_bytes = length_of(&records).unwrap();
    assert!(len_bytes < PAGE_SIZE / 3, "{len_bytes}");
}

/// Whatever the bytes are, it ends, and the same block gives the same page.
#[test]
fn any_bytes_are_read() {
    let mut state = 11;
    let mut good = 0;
    for _ in 0..20_000 {
        let len_bytes = draw(&mut state) as usize % PAGE_SIZE;
        let tags_most = 1 + draw(&mut state) as u8 % 16;
        let mut block = vec![0_u8; len_bytes];
        for (at, byte) in block.iter_mut().enumerate() {
            let any = draw(&mut state) as u8;
            *byte = if at < TAGS_BYTES { (any % tags_most) | (((any >> 4) % tags_most) << 4) } else { any };
        }
        let (mut first, mut second) = (Page::ZERO, Page([0xff; PAGE_SIZE]));
        let whole = decompress(&block, &mut first.0);
        assert_eq!(decompress(&block, &mut second.0), whole);
        good += u32::from(whole);
        if whole {
            assert!(first.0 == second.0, "it depends on what was there before");
        }
        // As long as its operands are, it is a block.
        if let Some(tags) = block.get(..TAGS_BYTES)
            && tags_most <= AHEAD + 1
        {
            assert!(decompress(tags, &mut first.0));
        }
    }
    assert!(good < 20_000);
}

#[test]
fn bytes_are_packed() {
    for which in 0..=255_u8 {
        let word = 0x8877_6655_4433_2211_u64;
        let packed = (0..8).filter(|byte| which >> byte & 1 == 1).rev();
        let expected = packed.fold(0, |packed, byte| packed << 8 | word >> (8 * byte) & 0xff);
        assert_eq!(pack(word, which), expected, "{which:08b}");
        assert_eq!(decode::set_bits(which), which.count_ones() as usize);
        let kept = (0..8).fold(0, |kept, byte| kept | u64::from(which >> byte & 1) << (8 * byte));
        assert_eq!(Marked::of(word & (kept * 0xff)).which(), which);
    }
}
