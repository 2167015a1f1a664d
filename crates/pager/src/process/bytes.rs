//! A slice of pages seen as the bytes that it is.
#![allow(unsafe_code, reason = "a slice of pages seen as the bytes that it is")]

use memspill_engine::units::{PAGE_SIZE, Page};

/// The pages' bytes, to be read.
pub fn bytes_of(pages: &[Page]) -> &[u8] {
    // SAFETY: Page is [u8; PAGE_SIZE] with no padding (asserted beside it), and the length is the same in
    // bytes.
    unsafe { std::slice::from_raw_parts(pages.as_ptr().cast(), size_of_val(pages)) }
}

/// The pages' bytes, to be written.
pub fn bytes_of_mut(pages: &mut [Page]) -> &mut [u8] {
    // SAFETY: as above, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast(), pages.len() * PAGE_SIZE) }
}
