//! Checksums by which a page is known to be the one that was written, on devices without encryption (else
//! `seal.rs`): 64 bits for each slot.
//!
//! The sum (XXH3) is over the bytes and the slot's number, so that a write that went to the wrong place is
//! found too. Sums are in RAM only: a swap file means nothing after its process. A page that leaves memory
//! again with the same bytes is known by them and needs no write: this is why they have 64 bits and not 32,
//! and why they are seeded with a number that is drawn for each device and told to nobody. (Anybody who knew
//! it could give a program two pages with one sum, and the second would be lost.)

use std::io;
use std::sync::atomic::Ordering;

use memspill_engine::backing::BackingError;
use memspill_engine::units::{Page, SlotIndex};

use crate::arena::ZeroTable;

pub(super) struct Sums {
    table: ZeroTable,
    seed: u64,
}

impl Sums {
    pub(super) fn new(slots: u32) -> io::Result<Sums> {
        Ok(Sums { table: ZeroTable::new(slots as usize * 8)?, seed: drawn()? })
    }

    /// The sum of `page` in `slot`.
    pub(super) fn of(&self, slot: SlotIndex, page: &Page) -> u64 {
        checksum(self.seed, slot, page)
    }

    /// The page of which this is the sum was written to `slot`.
    pub(super) fn record(&self, slot: SlotIndex, sum: u64) {
        self.table.word_to_write(slot.index()).store(sum, Ordering::Release);
    }

    /// Are these the bytes that were written last?
    pub(super) fn fits(&self, slot: SlotIndex, page: &Page) -> bool {
        self.table.word(slot.index()).load(Ordering::Acquire) == self.of(slot, page)
    }

    /// Look at a page as it came from the device.
    pub(super) fn verify(&self, slot: SlotIndex, page: &Page) -> Result<(), BackingError> {
        if self.fits(slot, page) { Ok(()) } else { Err(BackingError::Checksum) }
    }

    pub(super) fn release(&self) {
        self.table.release();
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        self.table.ram_bytes()
    }
}

/// 64 bits over a page and the number of its slot.
pub fn checksum(seed: u64, slot: SlotIndex, page: &Page) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(&page.0, seed ^ u64::from(slot.0))
}

fn drawn() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // The kernel never gives so few bytes in parts.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use memspill_engine::units::PAGE_SIZE;

    use super::*;

    #[test]
    fn checksum_sees_every_bit_and_the_slot() {
        let mut page = Box::new(Page::ZERO);
        for (at, byte) in page.0.iter_mut().enumerate() {
            *byte = (at * 7) as u8;
        }
        let slot = SlotIndex(77);
        let seed = drawn().unwrap();
        let checksum = |slot, page: &Page| super::checksum(seed, slot, page);
        let good = checksum(slot, &page);
        assert_ne!(good, checksum(SlotIndex(78), &page));
        for bit in 0..PAGE_SIZE * 8 {
            page.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(good, checksum(slot, &page), "bit {bit}");
            page.0[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(good, checksum(slot, &page));
        // Two words exchanged within a lane, and across lanes.
        for other in [8, 64, 72] {
            for at in 0..8 {
                page.0.swap(at, other + at);
            }
            assert_ne!(good, checksum(slot, &page));
            for at in 0..8 {
                page.0.swap(at, other + at);
            }
        }
    }

    #[test]
    fn a_sum_of_one_device_says_nothing_about_another() {
        let sum = || checksum(Sums::new(2).unwrap().seed, SlotIndex(1), &Page::ZERO);
        assert_ne!(sum(), sum(), "whoever knows its sum can make another page that has it");
    }
}
