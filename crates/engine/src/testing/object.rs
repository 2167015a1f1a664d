//! An object of shared memory made of a map: what is in memory, what each page must read as, who has it
//! mapped and who waits.
//!
//! ```text
//!   mapper A ─┐                       ┌─ in memory, or away     one page for all who have it mapped
//!   mapper B ─┼─ touch ─▶ the object ─┤
//!   mapper C ─┘                       └─ poisoned               for each mapper by himself
//! ```
//!
//! As in the kernel (shared memory of which each mapping is registered with a userfaultfd for missing pages):
//!
//! * a page that is in memory is had by every mapper without a message, and one that is taken out leaves all
//!   of them at once;
//! * a fill goes to the object: nothing that a process changes makes it fail, and behind the object's end
//!   nothing is mapped;
//! * a waiter is woken by name only. The kernel looks at the waiter's own page table, so one that waits since
//!   after the fill needs its wake as well. So the pager notes each fault before it looks at the page's word;
//! * SIGBUS belongs to a mapping. It stays when the page is removed.
//!
//! A page that is there where one is filled in was made by somebody whom nobody has registered: a breach,
//! after which nobody is woken.
//!
//! What it does not do: lock, wait, wake. Its owner does.

use super::address_space::{AddressSpace, Touch};
use crate::memory::{Fill, Stop};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

pub struct SharedObject {
    content: AddressSpace<Infallible>,
    pages: u64,
    mappers: BTreeSet<u32>,
    /// (page, mapper) whose fault the pager has read.
    noted: BTreeSet<(u64, u32)>,
    /// What was lost there.
    poisoned: BTreeMap<(u64, u32), u64>,
    is_breached: bool,
}

impl SharedObject {
    /// Nobody has it mapped yet, and it is all zeros.
    pub fn new(pages: u64) -> SharedObject {
        let mut content = AddressSpace::default();
        content.map(0, pages);
        SharedObject {
            content,
            pages,
            mappers: BTreeSet::new(),
            noted: BTreeSet::new(),
            poisoned: BTreeMap::new(),
            is_breached: false,
        }
    }

    // ---- what processes do ----

    pub fn map(&mut self, mapper: u32) {
        self.mappers.insert(mapper);
    }
    /// A fork's child maps it, if its parent does.
    pub fn fork(&mut self, parent: u32, child: u32) {
        if self.is_mapped_by(parent) {
            self.mappers.insert(child);
        }
    }
    pub fn unmap(&mut self, mapper: u32) {
        self.mappers.remove(&mapper);
        self.poisoned.retain(|(_, of), _| *of != mapper);
    }
    pub fn is_mapped_by(&self, mapper: u32) -> bool {
        self.mappers.contains(&mapper)
    }
    pub fn mappers(&self) -> Vec<u32> {
        self.mappers.iter().copied().collect()
    }

    /// Access a page through a mapping: check what it reads as, and store `write` if given. `was_lost`: has a
    /// read of this stamp failed?
    pub fn touch(
        &mut self,
        mapper: u32,
        page: u64,
        write: Option<u64>,
        was_lost: impl Fn(u64) -> bool,
    ) -> Touch {
        if !self.is_mapped_by(mapper) {
            return Touch::NotMapped;
        }
        if let Some(stamp) = self.poisoned.get(&(page, mapper)) {
            assert!(was_lost(*stamp), "page {page:#x} is poisoned, but no read of it has failed");
            return Touch::Lost;
        }
        self.content.touch(page, write, was_lost)
    }

    /// A page that was there before anybody managed the object.
    pub fn make_present(&mut self, page: u64, stamp: impl FnOnce() -> u64) {
        self.content.make_present(page, stamp);
    }

    /// A hole (MADV_REMOVE): what is there is gone, for everybody.
    pub fn punch(&mut self, from: u64, to: u64) {
        self.content.zero(from, to);
    }
    /// The hole that the kernel makes itself, when the pager has made one already: only what was stored since
    /// then, and is in memory, goes.
    pub fn punch_again(&mut self, from: u64, to: u64) {
        (from..to).for_each(|page| self.content.vanish(page));
    }

    // ---- what the pager does ----

    /// To be called for each fault before its page is looked up.
    pub fn note_waiter(&mut self, page: u64, mapper: u32) {
        self.noted.insert((page, mapper));
    }

    /// The waiters that are to be woken now: (page, mapper).
    pub fn take_noted(&mut self, from: u64, to: u64) -> Vec<(u64, u32)> {
        if self.is_breached {
            return Vec::new();
        }
        let noted: Vec<(u64, u32)> = self.noted.range((from, 0)..(to, 0)).copied().collect();
        noted.iter().for_each(|waiter| _ = self.noted.remove(waiter));
        noted
    }

    // ---- what the engine does ----

    /// Take a page out of all mappings. Where none is in memory, zeros.
    pub fn take(&mut self, page: u64) -> u64 {
        self.content.take(page, || None).unwrap_or(0)
    }

    /// Fill pages in a row, with zeros or with what was swapped out. `stop`: end with this after so many
    /// pages.
    pub fn fill(
        &mut self,
        from: u64,
        stamps: impl ExactSizeIterator<Item = u64>,
        stop: Option<(usize, Stop)>,
        were_out: bool,
    ) -> Fill {
        let fill = self.content.fill(from, stamps, stop);
        self.is_breached |= were_out && fill.stop == Stop::Exists;
        fill
    }

    /// SIGBUS for each mapper that waits for the page, and is known to.
    pub fn poison(&mut self, page: u64) {
        let Some(truth) = self.content.truth(page) else { return };
        let noted: Vec<(u64, u32)> = self.noted.range((page, 0)..(page + 1, 0)).copied().collect();
        self.poisoned.extend(noted.into_iter().map(|waiter| (waiter, truth)));
    }

    // ---- what a test looks at ----

    pub fn pages(&self) -> u64 {
        self.pages
    }
    pub fn present(&self, from: u64, to: u64) -> impl Iterator<Item = u64> {
        self.content.present(from, to)
    }
    pub fn is_breached(&self) -> bool {
        self.is_breached
    }
}
