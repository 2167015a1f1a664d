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

/// The block of a page that begins with some words, all others zero: their tags and all operands.
fn told(words: &[u64]) -> (Vec<u8>, Vec<u8>) {
    let page = page_of(|n| words.get(n).copied().unwrap_or(0));
    let mut out = [0; PAGE_SIZE];
    let len_bytes = compress(&page, &mut out, COMPRESSED_BYTES_MAX).unwrap();
    assert_eq!(length_of(&page), Some(len_bytes));
    // At the end of a page it is the same, and nothing comes after it.
    let last = page_of(|n| (n + words.len()).checked_sub(WORDS).map_or(0, |at| words[at]));
    assert_eq!(length_of(&last), Some(len_bytes));
    let tags = (0..words.len()).map(|n| out[n / 2] >> (4 * (n & 1)) & 15).collect();
    (tags, out[TAGS_BYTES..len_bytes].to_vec())
}

/// Each way to tell a word, and its operand byte by byte: what is in a pool is read by others.
#[test]
fn each_way_to_tell_a_word() {
    let (far, not) = (0x0123_4567_89ab_cdef, !0x0123_4567_89ab_cdef);
    let whole = [0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01];
    let after = |operand: &[u8]| [&whole[..], operand].concat();
    let near = |bytes: u8| NEAR + bytes;
    for (words, tags, operands) in [
        (&[0, 0][..], &[ZERO, ZERO][..], vec![]),
        (&[5], &[SMALL + 1], vec![5]),
        (&[0x1234], &[SMALL + 2], vec![0x34, 0x12]),
        (&[far], &[WHOLE], whole.to_vec()),
        (&[0x1200_0034_0000], &[DIFFERS], vec![0b10_0100, 0x34, 0x12]),
        (&[far, 0x1200_0034_0000], &[WHOLE, SPARSE], after(&[0b10_0100, 0x34, 0x12])),
        (&[far, far ^ 1 << 56 ^ 0xff], &[WHOLE, DIFFERS], after(&[0b1000_0001, 0xff, 1])),
        (&[far, far + 8, far + 16], &[WHOLE, AHEAD, AHEAD], whole.to_vec()),
        (&[far, far ^ 0x20], &[WHOLE, near(1)], after(&[0, 0x20])),
        (&[far, 7, far ^ 0x2010], &[WHOLE, SMALL + 1, near(2)], after(&[7, 1, 0x10, 0x20])),
        (&[far, 7, far ^ 0x3_2010], &[WHOLE, SMALL + 1, near(3)], after(&[7, 1, 0x10, 0x20, 3])),
        (&[far, 7, far ^ 0x403_2010], &[WHOLE, SMALL + 1, near(4)], after(&[7, 1, 0x10, 0x20, 3, 4])),
        // A copy from two words before sets the stride.
        (&[far, not, far, not, far], &[WHOLE, WHOLE, COPY, SAME, SAME], {
            let whole_not = whole.map(|byte| !byte);
            [&whole[..], &whole_not, &[1]].concat()
        }),
    ] {
        assert_eq!(told(words), (tags.to_vec(), operands), "{words:x?}");
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

/// No byte is zero, and none is foreseen.
fn noise(state: &mut u64) -> u64 {
    draw(state) << 33 ^ draw(state) | 0x0101_0101_0101_0101
}

#[test]
fn noise_is_left() {
    let mut state = 7;
    assert_eq!(length_of(&page_of(|_| noise(&mut state))), None);
    // Half of a page of it is not, wherever it lies.
    for from in [0, WORDS / 4, WORDS / 2] {
        let words = |n: usize| if (from..from + WORDS / 2).contains(&n) { noise(&mut state) } else { 0 };
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

/// How many bytes the operands of these tags have, which lie in `operands`. None: there is no such tag.
fn operands_bytes(tags: &[u8], operands: &[u8]) -> Option<usize> {
    tags.iter().flat_map(|pair| [pair & 15, pair >> 4]).try_fold(0, |at, tag| {
        Some(
            at + match tag {
                ZERO..=AHEAD => 0,
                COPY..=7 => 1 + usize::from(tag - COPY),
                8 | 9 => usize::from(tag - 7),
                DIFFERS | SPARSE => 1 + operands.get(at)?.count_ones() as usize,
                WHOLE => 8,
                _ => return None,
            },
        )
    })
}

/// Whatever the bytes are: as long as its operands it is a block, and gives the same page each time.
#[test]
fn any_bytes_are_read() {
    let mut state = 11;
    let mut good = 0;
    for _ in 0..20_000 {
        let tags_most = 1 + draw(&mut state) as u8 % 14;
        let mut block = vec![0_u8; TAGS_BYTES + 9 * WORDS];
        for (at, byte) in block.iter_mut().enumerate() {
            let any = draw(&mut state) as u8;
            *byte = if at < TAGS_BYTES { (any % tags_most) | (((any >> 4) % tags_most) << 4) } else { any };
        }
        let (tags, operands) = block.split_at(TAGS_BYTES);
        let (mut first, mut second) = (Page::ZERO, Page([0xff; PAGE_SIZE]));
        let Some(len_bytes) = operands_bytes(tags, operands) else {
            assert!(!decompress(&block, &mut first.0), "there is no tag 13");
            continue;
        };
        block.truncate(TAGS_BYTES + len_bytes);
        assert!(decompress(&block, &mut first.0) && decompress(&block, &mut second.0));
        assert!(first.0 == second.0, "it depends on what was there before");
        // Neither longer nor shorter is it one; what is read of a part is not looked at.
        let cut = draw(&mut state) as usize % block.len();
        assert!(!decompress(&block[..cut], &mut first.0));
        block.push(0);
        assert!(!decompress(&block, &mut first.0));
        good += 1;
    }
    assert!(good > 15_000, "{good}");
}

#[test]
fn bytes_are_packed() {
    for which in 0..=255_u8 {
        let word = 0x8877_6655_4433_2211_u64;
        let packed = (0..8).filter(|byte| which >> byte & 1 == 1).rev();
        let expected = packed.fold(0, |packed, byte| packed << 8 | word >> (8 * byte) & 0xff);
        assert_eq!(pack(word, which), expected, "{which:08b}");
        assert_eq!(memspill_common::wordwise::set_bits(which), which.count_ones() as usize);
        let kept = (0..8).fold(0, |kept, byte| kept | u64::from(which >> byte & 1) << (8 * byte));
        assert_eq!(Marked::of(word & (kept * 0xff)).which(), which);
    }
}
