//! Pages in the file are encrypted one at a time, by AES-256-GCM.
//!
//! ```text
//!   write:  pages ──▶ a buffer ── seal ──▶ the medium;  ended well ─▶ record(slot, mark)
//!           (pages that are the writer's own, and that he does not need any more, where they are)
//!   read:   the medium ──▶ the reader's buffer ── open(slot) ──▶ the page, or Checksum
//! ```
//!
//! *The key* is drawn for each device when it is opened, lies in locked memory (`secret.rs`), and ends with
//! the device: nobody can read the file afterwards.
//!
//! *No nonce is used twice*: it is the number of the write, counted over all pages of the device, and not the
//! number of the slot. So a slot that is written again, or whose write is repeated after an error, is
//! encrypted in another way each time. The bytes in a slot were sealed under the nonce that its mark names.
//!
//! *A mark* is nonce and tag, 24 bytes for each slot, in RAM only. So the file has pages and nothing else,
//! and what is read is exactly what was written last to that slot: also an older page of the same slot, or
//! another slot's, has another tag.
//!
//! *A page that leaves memory again with the same bytes* is known by its tag, and is not written: a copy of
//! it is sealed under the nonce of its slot's mark, and nobody gets to see that copy.
//!
//! What it does not do: hide which slots are written, or when.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memspill_engine::backing::BackingError;
use memspill_engine::sync::lock;
use memspill_engine::units::{PAGE_SIZE, Page, PageBuf, SlotIndex, grow};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use zeroize::Zeroize;

use crate::arena::ZeroTable;
use crate::secret::Secret;

/// Pages that are sealed, then written, at a time: a batch of the engine's.
pub(super) const SEALED_PAGES_MAX: usize = 128;
/// Buffers that are kept for the next write.
const SPARE_BUFFERS_MAX: usize = 2;
/// Nonce and tag of a slot.
const WORDS_PER_SLOT: usize = 3;

/// By what a sealed page is opened again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    /// The number of the write, from 1.
    write: u64,
    tag: [u64; 2],
}

/// See the module's header.
pub(super) struct Seal {
    key: Secret<LessSafeKey>,
    writes: AtomicU64,
    marks: ZeroTable,
    spare: Mutex<Vec<PageBuf>>,
    /// A buffer was asked for since that was last looked at.
    used: AtomicBool,
    /// Bytes of all buffers, in use or spare.
    buffer_bytes: AtomicU64,
}

impl Seal {
    pub(super) fn new(slots: u32) -> io::Result<Seal> {
        Ok(Seal {
            key: Secret::new(draw_key)?,
            writes: AtomicU64::new(0),
            marks: ZeroTable::new(slots as usize * WORDS_PER_SLOT * 8)?,
            spare: Mutex::default(),
            used: AtomicBool::new(false),
            buffer_bytes: AtomicU64::new(0),
        })
    }

    pub(super) fn key_is_locked(&self) -> bool {
        self.key.is_locked()
    }

    /// A buffer for so many pages, `SEALED_PAGES_MAX` at most, to be given back by `give_buffer`.
    pub(super) fn buffer(&self, pages: usize) -> PageBuf {
        self.used.store(true, Ordering::Relaxed);
        let spare = lock(&self.spare).pop();
        // Room for the largest; what is not used of it takes no memory.
        let mut buf = spare.unwrap_or_else(|| PageBuf::with_capacity(SEALED_PAGES_MAX));
        let more = grow(&mut buf, pages);
        self.buffer_bytes.fetch_add((more * PAGE_SIZE) as u64, Ordering::Relaxed);
        buf
    }

    pub(super) fn give_buffer(&self, buf: PageBuf) {
        let mut spare = lock(&self.spare);
        let bytes = (buf.len() * PAGE_SIZE) as u64;
        if spare.len() < SPARE_BUFFERS_MAX {
            spare.push(buf);
        } else {
            self.buffer_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Turn the page into what may be written, once.
    pub(super) fn seal(&self, page: &mut Page) -> Mark {
        self.seal_as(self.writes.fetch_add(1, Ordering::Relaxed) + 1, page)
    }

    fn seal_as(&self, write: u64, page: &mut Page) -> Mark {
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(write), Aad::empty(), &mut page.0)
            .expect("a page is shorter than what a nonce is good for");
        let (words, _) = tag.as_ref().as_chunks::<8>();
        Mark { write, tag: [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])] }
    }

    /// The slot holds what was sealed so.
    pub(super) fn record(&self, slot: SlotIndex, mark: Mark) {
        let first = slot.index() * WORDS_PER_SLOT;
        for (at, word) in [mark.write, mark.tag[0], mark.tag[1]].into_iter().enumerate() {
            self.marks.word_to_write(first + at).store(word, Ordering::Release);
        }
    }

    /// Turn what came from the slot's place into the page again.
    pub(super) fn open(&self, slot: SlotIndex, page: &mut Page) -> Result<(), BackingError> {
        let mark = self.mark(slot);
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&mark.tag[0].to_le_bytes());
        tag[8..].copy_from_slice(&mark.tag[1].to_le_bytes());
        self.key
            .open_in_place_separate_tag(nonce(mark.write), Aad::empty(), Tag::from(tag), &mut page.0, 0..)
            .map(drop)
            .map_err(|_| BackingError::Checksum)
    }

    /// Are these the bytes that were sealed last for the slot?
    pub(super) fn fits(&self, slot: SlotIndex, page: &Page) -> bool {
        let mark = self.mark(slot);
        // Nothing was ever sealed as write 0, which stands for none.
        if mark.write == 0 {
            return false;
        }
        let mut copy = *page;
        let fits = self.seal_as(mark.write, &mut copy) == mark;
        // Nobody may see two texts sealed under one nonce, also not in a dump of this stack.
        copy.0.zeroize();
        fits
    }

    fn mark(&self, slot: SlotIndex) -> Mark {
        let word = |at| self.marks.word(slot.index() * WORDS_PER_SLOT + at).load(Ordering::Acquire);
        Mark { write: word(0), tag: [word(1), word(2)] }
    }

    /// Let go of the spare buffers if none was asked for since this was called last.
    pub(super) fn tidy(&self) {
        if !self.used.swap(false, Ordering::Relaxed) {
            self.let_go_of_buffers();
        }
    }

    /// No slot holds anything, and none will.
    pub(super) fn release(&self) {
        self.marks.release();
        self.let_go_of_buffers();
    }

    pub(super) fn let_go_of_buffers(&self) {
        let spare: Vec<PageBuf> = std::mem::take(&mut lock(&self.spare));
        let bytes: usize = spare.iter().map(|buf| buf.len() * PAGE_SIZE).sum();
        self.buffer_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn table_bytes(&self) -> u64 {
        self.marks.ram_bytes()
    }

    pub(super) fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes.load(Ordering::Relaxed)
    }
}

/// Does the CPU have the instructions by which encryption costs little?
pub fn cpu_does_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq")
}

fn nonce(write: u64) -> Nonce {
    let mut bytes = [0; ring::aead::NONCE_LEN];
    bytes[..8].copy_from_slice(&write.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn draw_key() -> io::Result<LessSafeKey> {
    let mut bytes = [0; 32];
    let mut drawn = 0;
    while drawn < bytes.len() {
        drawn += rustix::rand::getrandom(&mut bytes[drawn..], rustix::rand::GetRandomFlags::empty())?;
    }
    let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("256 bits");
    bytes.zeroize();
    Ok(LessSafeKey::new(key))
}

#[cfg(test)]
mod tests {
    use super::super::tests::page;
    use super::*;

    #[test]
    fn the_same_page_never_looks_the_same_twice() {
        let (seal, other) = (Seal::new(9).unwrap(), Seal::new(9).unwrap());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            for device in [&seal, &other] {
                let mut sealed = page(7);
                let mark = device.seal(&mut sealed);
                // Blocks of 16 bytes too: no two in all of these pages are alike.
                assert!(sealed.0.as_chunks::<16>().0.iter().all(|block| seen.insert(*block)));
                device.record(SlotIndex(3), mark);
                device.open(SlotIndex(3), &mut sealed).unwrap();
                assert!(sealed.0 == page(7).0);
            }
        }
    }

    /// Whoever can write to the medium changes nothing unseen: not a bit, and not by what was there before.
    #[test]
    fn only_what_was_written_last_is_opened() {
        let seal = Seal::new(9).unwrap();
        let sealed = |slot: u32, byte| {
            let mut page = page(byte);
            let mark = seal.seal(&mut page);
            seal.record(SlotIndex(slot), mark);
            page
        };
        let old = sealed(3, 1);
        let (new, other) = (sealed(3, 1), sealed(4, 1));
        let open = |slot, page: &Page| seal.open(SlotIndex(slot), &mut { *page });
        assert_eq!((open(3, &new), open(4, &other)), (Ok(()), Ok(())));
        for wrong in [&old, &other, &Page::ZERO] {
            assert_eq!(open(3, wrong), Err(BackingError::Checksum));
        }
        for bit in (0..PAGE_SIZE * 8).step_by(997) {
            let mut changed = new;
            changed.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(3, &changed), Err(BackingError::Checksum), "bit {bit}");
        }
        assert_eq!(open(8, &new), Err(BackingError::Checksum), "nothing was written there");
    }

    /// A page is known to be what its slot holds, to the bit, and by what was written last.
    #[test]
    fn only_what_was_written_last_fits() {
        let seal = Seal::new(9).unwrap();
        let write = |slot: u32, byte| {
            let mark = seal.seal(&mut page(byte));
            seal.record(SlotIndex(slot), mark);
        };
        write(3, 1);
        write(3, 2);
        write(4, 2);
        let fits = |slot, page: &Page| seal.fits(SlotIndex(slot), page);
        assert!(fits(3, &page(2)) && fits(4, &page(2)));
        assert!(!fits(3, &page(1)), "written before");
        assert!(!fits(8, &page(2)) && !fits(8, &Page::ZERO), "nothing was written there");
        for bit in (0..PAGE_SIZE * 8).step_by(997) {
            let mut changed = page(2);
            changed.0[bit / 8] ^= 1 << (bit % 8);
            assert!(!fits(3, &changed), "bit {bit}");
        }
        // The mark is as it was, and the next write has a number of its own.
        let mut sealed = page(5);
        let mark = seal.seal(&mut sealed);
        seal.record(SlotIndex(5), mark);
        assert!(fits(5, &page(5)) && !fits(5, &page(6)) && seal.open(SlotIndex(5), &mut sealed).is_ok());
        assert_eq!(seal.seal(&mut page(5)).write, mark.write + 1);
    }

    #[test]
    fn buffers_are_counted_and_come_back() {
        let seal = Seal::new(9).unwrap();
        let buffers: Vec<PageBuf> = [100, 128, 1].map(|pages| seal.buffer(pages)).into();
        assert_eq!((seal.buffer_bytes(), seal.table_bytes()), ((100 + 128 + 1) * 4096, 0));
        buffers.into_iter().for_each(|buf| seal.give_buffer(buf));
        assert_eq!(seal.buffer_bytes(), (100 + 128) * 4096);
        let used = [5, 5].map(|pages| seal.buffer(pages).len());
        assert_eq!(used, [128, 100], "the spare ones serve");
        assert_eq!(seal.buffer_bytes(), (100 + 128) * 4096);
        let third = seal.buffer(3);
        seal.give_buffer(third);
        let grown = seal.buffer(7);
        assert_eq!((grown.len(), seal.buffer_bytes()), (7, (100 + 128 + 7) * 4096));
        seal.give_buffer(grown);
        seal.tidy();
        assert_eq!(seal.buffer_bytes(), (100 + 128 + 7) * 4096, "one was asked for a moment ago");
        seal.tidy();
        assert_eq!(seal.buffer_bytes(), (100 + 128) * 4096, "those in use");
    }
}
