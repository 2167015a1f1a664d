//! Kept copies: a page that was read from a device whose writes are slow keeps its slot while it is in
//! memory. If the page leaves again unchanged, nothing is written.
//!
//! ```text
//!   swap-in:   SWAPPED(entry) ─ read ─▶ RESIDENT, entry kept   if the backing keeps the slot, and there are
//!                                                              slots enough
//!   swap-out:  bytes taken = what the slot holds, by its checksum or tag?
//!                yes ─▶ SWAPPED(entry): no slot, no write, a new shadow
//!                no  ─▶ as any page; the old slot is freed
//!   slots or disk run short: kept copies are given up, those of the first spaces and lowest addresses first
//! ```
//!
//! Why a checksum: userfaultfd's MOVE loses the mark that tells written pages from others, and reading the
//! mark before the MOVE races with writers. The bytes are in a frame anyway. (The kernel has the page's dirty
//! bit, and keeps the page in the swap cache; its rule for when slots are scarce, `vm_swap_full`, is used
//! here.)
//!
//! Invariants: a word holds a reference to its kept entry, as SWAPPED does. The slot of a kept entry holds
//! the page's bytes itself: a page that came out of the swap cache keeps nothing, since its slot may not be
//! written yet.
//!
//! What it does not do: keep copies in RAM (it would be the second copy of a page that is in memory).

use crate::frames::TakenPage;
use crate::space::{Space, index};
use crate::spaces::Spaces;
use crate::stats::add;
use crate::swap::Swap;
use crate::sync::{AtomicBool, Ordering, lock};
use crate::units::{CpuId, Page, Vpn};
use crate::word::SwapEntry;

/// Slots that are freed in one go when they run short: walking the page tables for each batch would cost too
/// much.
const GIVE_UP_SLOTS: usize = 4096;

/// What the engine knows of kept copies as a whole.
#[derive(Default)]
pub(crate) struct Kept {
    /// There has been a kept copy in this run. Most runs have none, and then no word is read.
    ever: AtomicBool,
    /// There may be a kept copy now. Only a walk of all page tables clears it.
    maybe: AtomicBool,
    /// A device found no room for a page: the next batch gives up kept copies first.
    give_up_asked: AtomicBool,
}

impl Kept {
    /// A device found no room for a page.
    pub fn ask_to_give_up(&self) {
        if self.has_ever_kept() {
            self.give_up_asked.store(true, Ordering::Relaxed);
        }
    }
    pub fn shall_give_up(&self) -> bool {
        self.give_up_asked.load(Ordering::Relaxed)
    }
    fn has_ever_kept(&self) -> bool {
        self.ever.load(Ordering::Relaxed)
    }
    fn note_kept(&self) {
        for flag in [&self.ever, &self.maybe] {
            if !flag.load(Ordering::Relaxed) {
                flag.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Shall the page that was read from `entry` keep it? Only while less than half of the slots are in use.
    pub fn shall_keep(&self, swap: &Swap, entry: SwapEntry) -> bool {
        let device = swap.device(entry);
        if !swap.tuning.keep_clean || !device.is_on() || device.backing.properties().synchronous {
            return false;
        }
        let used = device.slots.used_slots();
        let scarce = used > u64::from(device.backing.properties().slots) / 2
            || swap.groups.by_id(device.slots.group_of(entry.slot)).swap_is_scarce()
            || device.full.load(Ordering::Relaxed);
        let keeps = !scarce && device.backing.keeps(entry.slot, None);
        if keeps {
            self.note_kept();
        }
        keeps
    }

    /// Split the pages of a batch into those whose kept copy is still good and those that must be written;
    /// the kept copies of the latter are freed.
    pub fn split_clean(
        &self,
        swap: &Swap,
        cpu: CpuId,
        space: &Space,
        taken: Vec<TakenPage>,
        buf: &[Page],
    ) -> (Vec<(Vpn, SwapEntry)>, Vec<TakenPage>) {
        if !self.has_ever_kept() {
            return (Vec::new(), taken);
        }
        let (mut clean, mut stale, mut data) = (Vec::new(), Vec::new(), Vec::new());
        for page in taken {
            match take_kept(space, page.vpn) {
                Some(entry) if still_holds(swap, entry, page, buf) => clean.push((page.vpn, entry)),
                kept => {
                    stale.extend(kept);
                    data.push(page);
                }
            }
        }
        swap.free(cpu, &stale);
        let entries: Vec<SwapEntry> = clean.iter().map(|(_, entry)| *entry).collect();
        swap.renew_shadows(&entries);
        add(&swap.stats.on(cpu).swpout_clean, clean.len() as u64);
        (clean, data)
    }

    /// Free the kept copies of these pages, which are EVICTING.
    pub fn give_up_of(&self, swap: &Swap, cpu: CpuId, space: &Space, pages: impl Iterator<Item = Vpn>) {
        if self.has_ever_kept() {
            let entries: Vec<SwapEntry> = pages.filter_map(|vpn| take_kept(space, vpn)).collect();
            swap.free(cpu, &entries);
        }
    }

    /// Give up kept copies, which only save writes, because slots or disk space run short. Returns how many
    /// slots were freed.
    pub fn give_up(&self, swap: &Swap, cpu: CpuId, spaces: &Spaces) -> usize {
        self.give_up_asked.store(false, Ordering::Relaxed);
        // Cleared before the walk: a copy that is kept during the walk sets it again.
        if !self.maybe.swap(false, Ordering::SeqCst) {
            return 0;
        }
        let mut given_up = Vec::new();
        for space in spaces.to_vec() {
            given_up.extend(space.give_up_kept(GIVE_UP_SLOTS - given_up.len()));
            if given_up.len() >= GIVE_UP_SLOTS {
                self.maybe.store(true, Ordering::Relaxed);
                break;
            }
        }
        swap.free(cpu, &given_up);
        given_up.len()
    }
}

fn still_holds(swap: &Swap, entry: SwapEntry, page: TakenPage, buf: &[Page]) -> bool {
    swap.device(entry).backing.keeps(entry.slot, Some(&buf[page.place]))
}

/// Takes the kept entry out of the word of a page of the batch.
fn take_kept(space: &Space, vpn: Vpn) -> Option<SwapEntry> {
    let chunk = space.chunk(vpn)?;
    let word = &mut lock(&chunk)[index(vpn)];
    let entry = word.held_entry()?;
    *word = word.without_kept();
    Some(entry)
}
