//! Readahead: which pages are read together with a page that faulted, and how they get into the swap cache.
//!
//! ```text
//!   fault misses the swap cache
//!     ─▶ the size of the window, from earlier hits (readahead.rs)
//!     ─▶ candidates: pages around the page, or slots around its slot, that are on the same device and not in
//!        the swap cache ─▶ their slots are held, their pages charged ─▶ one read of all
//!   the read is done
//!     ─▶ the page that faulted is installed like any other
//!     ─▶ the others go into the swap cache, if they are still swapped out
//! ```
//!
//! Readahead locks no page: the neighbours stay in the state SWAPPED, and whatever happens to them meanwhile
//! (a fault, an unmap, a fork, a swapoff) happens as if they were not being read. The reader holds a
//! reference to each slot, so that the slot is not used for another page; a slot that has no other reference
//! when the read is done is freed. A fault on a page that is just being read ahead reads the page a second
//! time.
//!
//! What it does not do: map the neighbours, or wait for anything.

use crate::backing::ReadDone;
use crate::devices::Device;
use crate::fill::{FillJob, ReadWith, SwapIn};
use crate::space::{CHUNK_PAGES, index};
use crate::stats::add;
use crate::sync::lock;
use crate::tuning::Readahead;
use crate::units::{SlotIndex, Vpn};
use crate::word::{State, SwapEntry};

impl SwapIn<'_> {
    /// Is a page that is read from this slot looked up in the swap cache, and are its neighbours read with
    /// it?
    pub(crate) fn reads_ahead(&self, entry: SwapEntry) -> bool {
        match self.swap.tuning.readahead {
            Readahead::Stream => false,
            Readahead::Always => true,
            Readahead::Auto => {
                let device = self.swap.device(entry);
                !(device.backing.properties().synchronous && device.slots.count(entry.slot) == 1)
            }
        }
    }

    /// The most pages that one read from this slot brings in, the page that faulted included.
    pub(crate) fn most_read_ahead(&self, entry: SwapEntry) -> u64 {
        if self.reads_ahead(entry) { self.window_max() } else { 1 }
    }

    fn window_max(&self) -> u64 {
        1 << self.swap.tuning.page_cluster.min(5)
    }

    /// Count a fault that has found its page in the swap cache. `ahead`: the page had been read ahead.
    pub(crate) fn note_hit(&self, job: &FillJob, entry: SwapEntry, ahead: bool) {
        if self.swap.tuning.readahead == Readahead::Stream {
            return;
        }
        let device = self.swap.device(entry);
        if !device.backing.properties().rotational {
            let window = job.space.window();
            window.passed(job.fault.0);
            if ahead {
                window.hit();
            }
        } else if ahead {
            device.window.hit();
        }
    }

    /// Choose what is read with the page of this job, which was not in the swap cache; hold the slots and
    /// charge the pages.
    pub(crate) fn choose_neighbours(&self, job: &FillJob) -> ReadWith {
        let entry = job.pages[0].entry.expect("a swapped page has an entry");
        let device = self.swap.device(entry);
        let max = self.window_max();
        device.slots.pass_cache(entry.slot);
        let (mut slots, mut behind) = if device.backing.properties().rotational {
            slots_around(device, entry.slot, max)
        } else {
            self.entries_around(job, entry.device, max)
        };
        if slots.is_empty() && behind.is_empty() || !device.is_on() {
            return ReadWith::default();
        }
        let before = slots.len();
        slots.append(&mut behind);
        let held = self.swap.begin_read_ahead(self.cpu, device, &slots);
        add(&self.swap.stats.on(self.cpu).swap_ra, held.len() as u64);
        // `held` has the order of `slots`, and lacks some of them.
        let mut next = held.iter().peekable();
        let in_front =
            slots[..before].iter().filter(|slot| next.next_if(|ahead| ahead.slot == **slot).is_some());
        ReadWith { before: in_front.count(), slots: held }
    }

    /// The slots of the pages before the page that faulted, and of those behind it, in the order of
    /// addresses. They are all in its chunk and on its device.
    fn entries_around(&self, job: &FillJob, device: u8, max: u64) -> (Vec<SlotIndex>, Vec<SlotIndex>) {
        let fault = job.fault.0;
        let window = job.space.window().around(fault, max);
        if window == (fault..fault + 1) {
            return Default::default();
        }
        let chunk_first = fault - fault % CHUNK_PAGES;
        let chunk = job.space.chunk_or_new(job.fault);
        let words = lock(&chunk);
        let of = |pages: std::ops::Range<u64>| -> Vec<SlotIndex> {
            let words = pages.map(|page| words[index(Vpn(page))]);
            let swapped =
                words.filter(|word| word.state() == State::Swapped && word.entry().device == device);
            swapped.map(|word| word.entry().slot).collect()
        };
        (of(window.start.max(chunk_first)..fault), of(fault + 1..window.end.min(chunk_first + CHUNK_PAGES)))
    }

    /// Put the neighbours of a page into the swap cache when their common read is done. Returns what a read
    /// of the page alone would have returned.
    pub(crate) fn settle_neighbours(&mut self, job: &mut FillJob, mut done: ReadDone) -> ReadDone {
        let ReadWith { slots, before } = std::mem::take(&mut job.ahead);
        let places = (0..before).chain(before + 1..slots.len() + 1);
        let device = job.pages[0].device();
        let of = |(ahead, place): (_, usize)| (ahead, done.results[place].is_ok().then(|| &done.buf[place]));
        let read = done.results.iter().filter(|result| result.is_ok()).count();
        let own = usize::from(done.results[before].is_ok());
        add(&self.swap.stats.on(self.cpu).pswpin, (read - own) as u64);
        self.swap.end_read_ahead(self.cpu, device, slots.iter().zip(places).map(of));
        let mut one = self.scratch.buffer(1);
        one[0] = done.buf[before];
        self.scratch.give_back(std::mem::replace(&mut done.buf, one));
        done.results = vec![done.results.swap_remove(before)];
        done.slots = vec![done.slots[before]];
        done
    }
}

/// The slots before and behind a slot on its device, for devices on which seeks dominate.
fn slots_around(device: &Device, slot: SlotIndex, max: u64) -> (Vec<SlotIndex>, Vec<SlotIndex>) {
    let window = device.window.aligned(u64::from(slot.0), max);
    let of = |slots: std::ops::Range<u64>| slots.map(|slot| SlotIndex(slot as u32)).collect();
    let last = device.slots.all_slots();
    (of(window.start.max(1)..u64::from(slot.0)), of(u64::from(slot.0) + 1..window.end.min(last + 1)))
}
