//! Pages that hold one number, repeated: any part of a page tells what was stored, and a torn page shows.
//!
//! Stamps are never used twice, so a page that is in the wrong place, or older than it may be, reads as the
//! wrong stamp.

use crate::units::{PAGE_SIZE, Page};

/// What a failed read leaves behind, which must never be seen.
pub const GARBAGE: u64 = 0xDEAD_BEEF_DEAD_BEEF;

pub fn stamped(stamp: u64) -> Page {
    let mut page = Page::ZERO;
    page.0.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    page
}

pub fn stamp_of(page: &Page) -> u64 {
    let first: [u8; 8] = page.0[..8].try_into().expect("8 bytes");
    assert!(page.0[..PAGE_SIZE - 8] == page.0[8..], "a torn page");
    u64::from_le_bytes(first)
}

#[cfg(all(test, not(any(loom, simulated))))]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_and_a_torn_page_shows() {
        let mut page = stamped(0x0102_0304_0506_0708);
        assert_eq!(stamp_of(&page), 0x0102_0304_0506_0708);
        page.0[2000] ^= 1;
        assert!(std::panic::catch_unwind(|| stamp_of(&page)).is_err());
    }
}
