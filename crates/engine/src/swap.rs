//! What a page table may ask of swap: slots for its pages, one reference to an entry more or less, and what
//! the swap cache has of it.
//!
//! ```text
//!   space, reclaim, swap_out, swap_in, swapoff
//!        │ alloc        dup, free            cache_add, cache_copy, cache_delete
//!        ▼              ▼                    ▼
//!   ┌─ Swap ───────────────────────────────────────────────┐
//!   │  devices: slots, backing        frames: bytes        │   each slot is charged to a group
//!   └──────────────────────────────────────────────────────┘
//! ```
//!
//! An entry names a device and a slot. The holder of an entry has a reference to its slot, and drops it here.
//! A slot that has lost its last reference is discarded from its backing first, and may be allocated again
//! only after that.
//!
//! What it does not do: know an address space, read or write.

use crate::ahead::{Ahead, AheadPage, AheadSlot, Look};
use crate::devices::{Device, Devices};
use crate::frames::{BATCH_PAGES, CachedPage, Frames};
use crate::group::{Group, Groups};
use crate::refaults::Refaults;
use crate::stats::{Stats, add};
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, lock};
use crate::tuning::Tuning;
use crate::units::{CpuId, FrameId, Order, Page, SlotIndex};
use crate::unwritten::Unwritten;
use crate::word::SwapEntry;

/// A page that was read ahead is dropped by reclaim when more pages have left memory since than this part
/// of the limit, and than `AHEAD_WAIT_MIN`: the windows of some dozen streams have come round by then.
const AHEAD_PART: u64 = 16;
const AHEAD_WAIT_MIN: u64 = 64;
/// Pages that a fault drops at once where it finds no room.
const AHEAD_DROP: usize = 32;

/// What became of slots that were looked for in the swap cache: their places.
pub(crate) struct Cached {
    /// Not there.
    pub absent: Vec<usize>,
    /// There, because they had been read ahead.
    pub ahead: Vec<usize>,
}

pub struct Swap {
    pub devices: Devices,
    pub groups: Groups,
    pub stats: Stats,
    pub refaults: Refaults,
    pub tuning: Tuning,
    pub(crate) frames: Frames,
    pub(crate) ahead: Ahead,
    pub(crate) unwritten: Unwritten,
    /// Pages taken out so far: the clock of refault distances.
    evictions: AtomicU32,
    /// Which of the devices of one priority is asked first next time.
    next_device: AtomicU32,
    /// A page found no place on any device since this was last cleared.
    is_full: AtomicBool,
    /// The last error that belongs to no device, for the line on stderr.
    last_error: Mutex<Option<String>>,
}

impl Swap {
    pub(crate) fn new(devices: Vec<Device>, groups: Groups, tuning: Tuning) -> Swap {
        Swap {
            devices: Devices::new(devices),
            groups,
            stats: Stats::default(),
            refaults: Refaults::default(),
            frames: Frames::new(BATCH_PAGES.max(tuning.folio_pages())),
            ahead: Ahead::default(),
            tuning,
            evictions: AtomicU32::new(0),
            next_device: AtomicU32::new(0),
            is_full: AtomicBool::new(false),
            unwritten: Unwritten::default(),
            last_error: Mutex::new(None),
        }
    }

    /// The device of the page that an entry names.
    pub(crate) fn device(&self, entry: SwapEntry) -> &Device {
        &self.devices[usize::from(entry.device)]
    }

    pub fn used_slots(&self) -> u64 {
        self.devices.iter().map(|d| d.slots.used_slots()).sum()
    }

    // ---- slots --------------------------------------------------------------------------------------------

    /// Slots for up to `n` folios of `order` that belong to `group`, the first slot of each: from the first
    /// device that has some; equal priorities take turns. Large folios are split rather than sent to a device
    /// of lower priority.
    pub(crate) fn alloc(
        &self,
        cpu: CpuId,
        group: &Group,
        order: Order,
        n: usize,
        out: &mut Vec<SwapEntry>,
    ) -> usize {
        let pages = u64::from(order.pages());
        let charged = group.charge_swap(n as u64 * pages);
        let got = self.alloc_charged(cpu, group, order, (charged / pages) as usize, out);
        group.uncharge_swap(charged - got as u64 * pages);
        got
    }

    /// As `alloc`, of pages that are charged.
    pub(crate) fn alloc_charged(
        &self,
        cpu: CpuId,
        group: &Group,
        order: Order,
        n: usize,
        out: &mut Vec<SwapEntry>,
    ) -> usize {
        let mut got = 0;
        let turn = self.next_device.fetch_add(1, Ordering::Relaxed) as usize;
        let mut slots = Vec::with_capacity(n);
        let takers: Vec<usize> = self.takers(group).collect();
        for equals in takers.chunk_by(|a, b| self.devices[*a].priority == self.devices[*b].priority) {
            let mut has_room = false;
            for i in 0..equals.len() {
                let device = equals[(turn + i) % equals.len()];
                let target = &self.devices[device];
                if got == n || !self.takes_pages(device) {
                    continue;
                }
                // Not asked for single pages, which go on to the next device in any case: it is a sum over
                // the counters of all CPUs.
                has_room |= order != Order::ZERO && target.slots.free_slots() > 0;
                slots.clear();
                got += target.slots.alloc(cpu, order, n - got, group.id, &mut slots);
                out.extend(slots.iter().map(|slot| SwapEntry { device: device as u8, slot: *slot }));
            }
            if has_room {
                break;
            }
        }
        got
    }

    /// Does the device at this place get no pages because writes to it fail?
    pub fn is_failing(&self, place: usize) -> bool {
        let errors = &self.devices[place].errors;
        errors.is_failing() || errors.has_write_error() && self.unwritten.are_many(place)
    }

    /// Does the device at this place get no pages, though it works?
    pub fn is_full_for_now(&self, place: usize) -> bool {
        self.devices[place].full.load(Ordering::Relaxed) || self.unwritten.are_many(place)
    }

    fn takes_pages(&self, place: usize) -> bool {
        self.devices[place].takes_pages() && !self.unwritten.are_many(place)
    }

    /// Places of the devices that pages of the group may go to, in the order in which they are asked.
    fn takers(&self, group: &Group) -> impl Iterator<Item = usize> {
        let takes_all = !group.names_devices();
        self.devices.takers().filter(move |place| takes_all || group.may_swap_to(&self.devices[*place].name))
    }

    /// May one more page of the group leave, by its limits on swap and the devices that it names? Whether
    /// there is room on all devices together is not asked.
    pub fn gives_swap(&self, group: &Group) -> bool {
        let has_room = |place: usize| self.takes_pages(place) && self.devices[place].slots.free_slots() > 0;
        group.has_swap() && (!group.names_devices() || self.takers(group).any(has_room))
    }

    /// Pages of the group for which there are slots now.
    pub(crate) fn room_pages(&self, group: &Group) -> usize {
        let allowed = group.swap_room_pages();
        let takers = self.takers(group).filter(|place| self.takes_pages(*place));
        let free: u64 = takers.map(|place| self.devices[place].slots.free_slots()).sum();
        free.min(allowed) as usize
    }

    // ---- references ---------------------------------------------------------------------------------------

    /// One more reference to each entry (fork, mremap of a page that is being filled).
    pub(crate) fn dup(&self, entries: &[SwapEntry]) {
        self.per_device(entries, |device, slots| device.slots.dup_many(slots));
    }

    /// Drop a reference to each entry.
    pub(crate) fn free(&self, cpu: CpuId, entries: &[SwapEntry]) {
        self.per_device(entries, |device, slots| {
            let mut freed = Vec::new();
            let frames = device.slots.put(slots, &mut freed);
            self.give_up_ahead(cpu, frames);
            self.discard_and_release(cpu, device, &freed);
        });
    }

    /// As `free` of one entry.
    pub(crate) fn free_one(&self, cpu: CpuId, entry: SwapEntry) {
        let device = self.device(entry);
        let (frame, is_dying) = device.slots.put_one(entry.slot);
        frame.into_iter().for_each(|frame| self.uncharge_ahead(cpu, self.ahead.take(frame)));
        if !is_dying {
            return;
        }
        device.backing.discard(&[entry.slot]);
        device.note_room();
        if let Some(group) = device.slots.release_one(cpu, entry.slot) {
            self.groups.by_id(group).uncharge_swap(1);
        }
    }

    /// Discard the copies of slots that have lost their last reference, make the slots free, and uncharge
    /// their owners.
    fn discard_and_release(&self, cpu: CpuId, device: &Device, freed: &[SlotIndex]) {
        if freed.is_empty() {
            return;
        }
        device.backing.discard(freed);
        device.note_room();
        for (group, slots) in device.slots.release(cpu, freed) {
            self.groups.by_id(group).uncharge_swap(u64::from(slots));
        }
    }

    fn per_device(&self, entries: &[SwapEntry], mut act: impl FnMut(&Device, &[SlotIndex])) {
        if entries.is_empty() {
            return;
        }
        let mut slots = Vec::with_capacity(entries.len());
        for (n, device) in self.devices.iter().enumerate() {
            slots.clear();
            slots.extend(entries.iter().filter(|e| e.device as usize == n).map(|e| e.slot));
            if !slots.is_empty() {
                // In runs, so that each cluster is locked once.
                slots.sort_unstable();
                act(device, &slots);
            }
        }
    }

    // ---- the swap cache -----------------------------------------------------------------------------------

    pub(crate) fn cache_add(&self, pages: &[CachedPage]) {
        for (n, device) in self.devices.iter().enumerate() {
            let batch: Vec<(SlotIndex, FrameId)> = pages
                .iter()
                .filter(|p| p.entry.device as usize == n)
                .map(|p| (p.entry.slot, p.frame))
                .collect();
            if !batch.is_empty() {
                device.slots.cache_add(&batch);
            }
        }
    }

    /// Copy what is in the swap cache of these slots of a device, a lock for each cluster. The caller has a
    /// reference to each slot. A page that was read ahead leaves the cache: it is a copy of what the slot
    /// holds.
    pub(crate) fn cache_copy(
        &self,
        cpu: CpuId,
        device: u8,
        slots: &[SlotIndex],
        pages: &mut [Page],
    ) -> Cached {
        let device = &self.devices[device as usize];
        let mut hits: Vec<(usize, FrameId)> = Vec::new();
        let mut ahead: Vec<(usize, FrameId)> = Vec::new();
        device.slots.cache_get_many(slots, |place, frame| {
            if frame.is_read_ahead() { ahead.push((place, frame)) } else { hits.push((place, frame)) }
        });
        for (place, frame) in &ahead {
            let page = self.ahead.take(*frame);
            pages[*place] = *page.bytes();
            device.slots.set_shadow(&slots[*place..=*place], page.shadow);
            self.uncharge_ahead(cpu, page);
        }
        let ahead: Vec<usize> = ahead.into_iter().map(|(place, _)| place).collect();
        let mut found: Vec<usize> =
            hits.iter().map(|(place, _)| *place).chain(ahead.iter().copied()).collect();
        found.sort_unstable();
        let mut found = found.into_iter().peekable();
        let absent = (0..slots.len()).filter(|place| found.next_if_eq(place).is_none()).collect();
        if hits.is_empty() {
            return Cached { absent, ahead };
        }
        let bytes = self.frames.get_many(hits.iter().map(|(_, frame)| *frame));
        for ((place, _), (batch, at)) in hits.iter().zip(&bytes) {
            pages[*place] = batch[*at];
        }
        drop(bytes);
        let pinned: Vec<SlotIndex> = hits.iter().map(|(place, _)| slots[*place]).collect();
        let (mut frames, mut freed) = (Vec::new(), Vec::new());
        device.slots.cache_unpin_many(&pinned, |i, release| {
            frames.extend(release.frame_freed.then_some(hits[i].1));
            freed.extend(release.slot_freed.then_some(pinned[i]));
        });
        if !frames.is_empty() {
            self.frames.free_frames(&frames);
        }
        self.discard_and_release(cpu, device, &freed);
        Cached { absent, ahead }
    }

    /// These slots of a device leave the swap cache, each keeping the shadow if it still has a reference.
    pub(crate) fn cache_delete(&self, cpu: CpuId, device: &Device, slots: &[SlotIndex], shadow: Option<u32>) {
        let (mut frames, mut freed) = (Vec::new(), Vec::new());
        device.slots.cache_delete(slots, shadow, &mut frames, &mut freed);
        self.frames.free_frames(&frames);
        self.discard_and_release(cpu, device, &freed);
    }

    /// Pages that waited in the swap cache to be written, and that nobody needs any more.
    pub(crate) fn free_orphans(&self, cpu: CpuId, orphans: &[CachedPage]) {
        for page in orphans {
            self.cache_delete(cpu, self.device(page.entry), &[page.entry.slot], None);
        }
    }

    // ---- pages that were read ahead -----------------------------------------------------------------------

    /// Hold these slots to read them ahead, each charged to its owner: those that have their page nowhere
    /// else, and that there is room for.
    pub(crate) fn begin_read_ahead(
        &self,
        cpu: CpuId,
        device: &Device,
        slots: &[SlotIndex],
    ) -> Vec<AheadSlot> {
        let mut held: Vec<AheadSlot> = Vec::with_capacity(slots.len());
        device.slots.hold_to_read_ahead(slots, |at, shadow, owner| {
            held.push(AheadSlot { slot: slots[at], owner, shadow });
        });
        let mut without_room: Vec<SlotIndex> = Vec::new();
        held.retain(|ahead| {
            let group = self.groups.by_id(ahead.owner);
            let charged = group.try_charge(cpu, 1, group.gap_bytes() / 2);
            without_room.extend((!charged).then_some(ahead.slot));
            charged
        });
        self.end_holds(cpu, device, without_room.into_iter().map(|slot| (slot, None)).collect());
        held
    }

    /// The end of `begin_read_ahead`: each slot with its page, if it could be read. Into the swap cache with
    /// those that are still wanted there.
    pub(crate) fn end_read_ahead<'a>(
        &self,
        cpu: CpuId,
        device: u8,
        read: impl Iterator<Item = (&'a AheadSlot, Option<&'a Page>)>,
    ) {
        let now = self.eviction_clock();
        let framed = |(of, page): (&AheadSlot, Option<&Page>)| match page {
            Some(page) => {
                let entry = SwapEntry { device, slot: of.slot };
                (of.slot, Some(self.ahead.insert(entry, of, now, page)))
            }
            None => {
                self.groups.by_id(of.owner).uncharge(cpu, 1);
                (of.slot, None)
            }
        };
        self.end_holds(cpu, &self.devices[usize::from(device)], read.map(framed).collect());
    }

    fn end_holds(&self, cpu: CpuId, device: &Device, holds: Vec<(SlotIndex, Option<FrameId>)>) {
        let mut freed = Vec::new();
        let gone = device.slots.end_read_ahead(&holds, &mut freed);
        self.give_up_ahead(cpu, gone);
        self.discard_and_release(cpu, device, &freed);
    }

    /// Frames that are in no slot's word any more.
    fn give_up_ahead(&self, cpu: CpuId, frames: Vec<FrameId>) {
        frames.into_iter().for_each(|frame| self.uncharge_ahead(cpu, self.ahead.take(frame)));
    }

    fn uncharge_ahead(&self, cpu: CpuId, page: AheadPage) {
        self.groups.by_id(page.owner).uncharge(cpu, 1);
        self.ahead.give_back(page);
    }

    /// Reclaim for `group`: drop up to `n` pages that have waited so long that nobody is likely to want them,
    /// and that are the first to go for this. Returns how many.
    pub(crate) fn drop_stale_ahead(&self, cpu: CpuId, group: &Group, n: usize) -> usize {
        let now = self.eviction_clock();
        let longest = (group.least_limit_pages() / AHEAD_PART).max(AHEAD_WAIT_MIN);
        let is_stale = |page: &AheadPage| u64::from(now.wrapping_sub(page.read_at)) > longest;
        self.drop_ahead(cpu, n, |page| if is_stale(page) { Look::Taken } else { Look::Enough })
    }

    /// There is no room for a page of `group`: drop some that make room for it, however young.
    pub(crate) fn drop_ahead_for(&self, cpu: CpuId, group: &Group) -> usize {
        let full = group.full_one();
        let helps = |page: &AheadPage| self.groups.by_id(page.owner).is_within(full);
        self.drop_ahead(cpu, AHEAD_DROP, |page| if helps(page) { Look::Taken } else { Look::Stays })
    }

    /// Drop up to `n` pages, the oldest first.
    pub(crate) fn drop_oldest_ahead(&self, cpu: CpuId, n: usize) -> usize {
        self.drop_ahead(cpu, n, |_| Look::Taken)
    }

    fn drop_ahead(&self, cpu: CpuId, n: usize, mut which: impl FnMut(&AheadPage) -> Look) -> usize {
        if self.ahead.len() == 0 || n == 0 {
            return 0;
        }
        let dropped = self.ahead.take_oldest(n, |page, frame| match which(page) {
            Look::Taken => {
                let slots = &self.device(page.entry).slots;
                // Or a fault has it in this moment.
                let dropped = slots.drop_read_ahead(page.entry.slot, frame, page.shadow);
                if dropped { Look::Taken } else { Look::Stays }
            }
            look => look,
        });
        let pages = dropped.len();
        dropped.into_iter().for_each(|page| self.uncharge_ahead(cpu, page));
        add(&self.stats.on(cpu).pgsteal, pages as u64);
        pages
    }

    // ---- the clock of refault distances -------------------------------------------------------------------

    /// The shadow of a page that leaves now.
    pub(crate) fn eviction_clock(&self) -> u32 {
        self.evictions.load(Ordering::Relaxed)
    }

    pub(crate) fn count_evicted(&self, pages: usize) {
        self.evictions.fetch_add(pages as u32, Ordering::Relaxed);
    }

    /// These pages leave memory again, and their slots hold their bytes already: new shadows.
    pub(crate) fn renew_shadows(&self, entries: &[SwapEntry]) {
        let shadow = self.eviction_clock();
        self.per_device(entries, |device, slots| device.slots.set_shadow(slots, shadow));
    }

    // ---- what the supervisor is told ----------------------------------------------------------------------

    /// A page found no place on any device since `clear_full`.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }
    pub fn clear_full(&self) {
        self.is_full.store(false, Ordering::Relaxed);
    }
    pub(crate) fn set_full(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// Note that no slot could be allocated.
    pub(crate) fn note_no_slot(&self) {
        add(&self.stats.rare().swap_full, 1);
        // Swap is not full if some device will take pages as soon as the machine has memory for the requests.
        let short = self.devices.iter().find(|device| device.is_on() && device.errors.is_short());
        match short {
            Some(device) => {
                let name = &device.name;
                self.note_error(format!("there is no memory for the requests to swap device {name}"));
            }
            None => self.set_full(),
        }
    }

    pub(crate) fn note_error(&self, error: String) {
        *lock(&self.last_error) = Some(error);
    }
    /// The last error that belongs to no device, once.
    pub fn take_error(&self) -> Option<String> {
        lock(&self.last_error).take()
    }

    /// The root of the groups, whose maximum is the budget.
    pub fn root(&self) -> &Arc<Group> {
        self.groups.root()
    }
}
