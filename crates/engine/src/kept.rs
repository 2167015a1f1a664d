//! Kept copies: a page that was read from a device whose writes are dear keeps its slot while it is in memory, and if it
//! leaves again as it came, nothing is written.
//!
//! ```text
//!   swap-in:   SWAPPED(entry) ─ read ─▶ RESIDENT, entry kept (if the backing keeps the slot, and there are slots enough)
//!   swap-out:  staged bytes = what the slot holds, by its 64-bit checksum?
//!                yes ─▶ SWAPPED(entry): no slot, no write, a new shadow
//!                no  ─▶ as any page; the old slot is freed
//!   slots or disk run short: kept copies are given up, those of the first spaces and lowest addresses first
//! ```
//!
//! Why a checksum: userfaultfd's MOVE loses the mark that tells written pages from others, and a look at it before the MOVE
//! races with writers. The bytes are in staging anyway. (The kernel has the page's dirty bit, and keeps the page in the swap
//! cache; its rule for when slots are scarce, `vm_swap_full`, is used here.)
//!
//! Invariants: a word holds a reference to its kept entry, as SWAPPED does. A kept entry's slot has no frame that this page's
//! bytes depend on: pages that came out of the swap cache keep nothing.
//!
//! What it does not do: keep copies in RAM (it would be the second copy of a page that is in memory).

use crate::engine::Engine;
use crate::space::{Space, index};
use crate::stats::add;
use crate::swap_out::Staged;
use crate::sync::{AtomicBool, Ordering, lock};
use crate::units::{CpuId, PageBuf, Vpn};
use crate::word::SwapEntry;

/// Slots that are freed at once when they run short: a walk of the page tables for each batch would be dear.
const GIVE_UP_SLOTS: usize = 4096;

/// What the engine knows of kept copies as a whole.
#[derive(Default)]
pub(crate) struct Kept {
    /// There has been one: most runs have none, and then nothing is looked at.
    ever: AtomicBool,
    /// There may be one now. Only a walk of all page tables clears it.
    maybe: AtomicBool,
    /// A device found no room for a page: copies are to go before anything else is tried.
    must_go: AtomicBool,
}

impl Kept {
    pub fn must_go(&self) {
        if self.any() {
            self.must_go.store(true, Ordering::Relaxed);
        }
    }
    pub fn are_to_go(&self) -> bool {
        self.must_go.load(Ordering::Relaxed)
    }
    fn any(&self) -> bool {
        self.ever.load(Ordering::Relaxed)
    }
    fn note(&self) {
        for flag in [&self.ever, &self.maybe] {
            if !flag.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Engine {
    /// Shall the page that was read from `entry` keep it? While less than half of the slots is in use.
    pub(crate) fn keeps(&self, entry: SwapEntry) -> bool {
        let device = &self.devices[entry.device as usize];
        if !self.tuning.keep_clean || !device.is_on() || device.backing.properties().synchronous {
            return false;
        }
        let used = device.slots.used_slots();
        let scarce = used > u64::from(device.backing.properties().slots) / 2
            || self.groups.of(device.slots.group_of(entry.slot)).swap_is_scarce()
            || device.full.load(Ordering::Relaxed);
        let keeps = !scarce && device.backing.keeps(entry.slot);
        if keeps {
            self.kept.note();
        }
        keeps
    }

    /// Parts the staged pages whose kept copy is still good from those that must be written; the copies of the latter are
    /// freed.
    pub(crate) fn split_clean(
        &self,
        cpu: CpuId,
        space: &Space,
        staged: Vec<Staged>,
        buf: &PageBuf,
    ) -> (Vec<(Vpn, SwapEntry)>, Vec<Staged>) {
        if !self.kept.any() {
            return (Vec::new(), staged);
        }
        let (mut clean, mut stale, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for page in staged {
            match take_kept(space, page.vpn) {
                Some(entry) if self.still_holds(entry, page, buf) => clean.push((page.vpn, entry)),
                kept => {
                    stale.extend(kept);
                    data.push(page);
                }
            }
        }
        self.free_entries(cpu, &stale);
        let entries: Vec<SwapEntry> = clean.iter().map(|(_, entry)| *entry).collect();
        let shadow = self.evictions.load(Ordering::Relaxed);
        self.per_device(&entries, |device, slots| device.slots.set_shadow(slots, shadow));
        add(&self.stats.on(cpu).swpout_clean, clean.len() as u64);
        (clean, data)
    }

    fn still_holds(&self, entry: SwapEntry, page: Staged, buf: &PageBuf) -> bool {
        self.devices[entry.device as usize].backing.still_holds(entry.slot, &buf[page.place])
    }

    /// The kept copies of these pages, which are EVICTING, are of no use any more.
    pub(crate) fn give_up_kept_of(&self, cpu: CpuId, space: &Space, pages: impl Iterator<Item = Vpn>) {
        if self.kept.any() {
            let entries: Vec<SwapEntry> = pages.filter_map(|vpn| take_kept(space, vpn)).collect();
            self.free_entries(cpu, &entries);
        }
    }

    /// Slots or disk space run short: free what only spares writes. Returns how many slots.
    pub(crate) fn give_up_kept(&self, cpu: CpuId) -> usize {
        self.kept.must_go.store(false, Ordering::Relaxed);
        // Cleared before the walk: what is kept meanwhile sets it again.
        if !self.kept.maybe.swap(false, Ordering::SeqCst) {
            return 0;
        }
        let mut given_up = Vec::new();
        for space in self.spaces() {
            given_up.extend(space.give_up_kept(GIVE_UP_SLOTS - given_up.len()));
            if given_up.len() >= GIVE_UP_SLOTS {
                self.kept.maybe.store(true, Ordering::Relaxed);
                break;
            }
        }
        self.free_entries(cpu, &given_up);
        given_up.len()
    }
}

/// Takes the kept entry out of the word of a page of the batch.
fn take_kept(space: &Space, vpn: Vpn) -> Option<SwapEntry> {
    let chunk = space.chunk(vpn)?;
    let word = &mut lock(&chunk)[index(vpn)];
    let entry = word.held_entry()?;
    *word = word.without_kept();
    Some(entry)
}
