//! A swap device is switched off: the pages that it holds move to the other devices, slot to slot.
//!
//! ```text
//!   begin: LEAVING, no slot is allocated there any more
//!   pass over the page tables of all spaces, chunk by chunk; for each batch of words that name the device:
//!     hold the slots ─▶ bytes: swap cache, or one read ─▶ slots elsewhere, same owner ─▶ one write ─▶ shadows
//!       ─▶ words: those that still name the old slot name the new one        under their chunk's lock
//!       ─▶ let go of both; what somebody else still refers to is remembered, old with new, for the next of his words
//!   pass after pass until no slot is in use: OFF, the backing is closed
//! ```
//!
//! Nothing is swapped in: a job that is pressed has no room for that, and a device that fails need not be read for pages
//! that still wait in the swap cache to be written.
//!
//! Why no page is lost or old: a slot's bytes never change while it has a reference, and the references held here cannot be
//! overtaken, so what was copied is what a word that names the old slot means, whenever it is looked at. A page that is
//! FILLING keeps its reference to the old slot and ends as it would have; should it be given back, it is met again. Words
//! that are on their way (a remap, a fork, a batch that is being taken) are met in a later pass: the device is off only when
//! none of its slots is in use, and then none can be allocated ([`SwapDevice::retire`]).
//!
//! Kept copies (kept.rs) are given up where they are met, and also on the other devices when those run short.
//!
//! Folios of larger orders move page by page, into single slots; they leave as folios again when they were in memory.
//!
//! Shared slots (fork) stay shared: the pass goes through the same chunk of all spaces before the next, and a slot with
//! references elsewhere stays in `shared`. Beyond `SHARED_MAX` of those they are forgotten, and a later sharer gets a copy.
//!
//! It ends early, with the device on again and what was moved where it is, if it is told to stop, if the others have no
//! room, or if pages cannot be read: those stay where they are and are lost only to who touches them, as without swapoff.
//!
//! One at a time. The caller is a thread of its own, with a queue of its own; between two steps the engine may be checked.
//!
//! What it does not do: look at the groups' swap limits (a page that moves takes a second slot for a moment), wait (a step that
//! can do nothing says so), choose what remains when there is no room for all.
//!
//! [`SwapDevice::retire`]: crate::slots::SwapDevice::retire

use crate::backing::{BackingError, PageWrite, QueueId, ReadDone, ReadRequest, ReadStart};
use crate::devices::DeviceState;
use crate::engine::Engine;
use crate::stats::add;
use crate::sync::{Ordering, lock};
use crate::units::{CpuId, GroupId, Order, Page, PageBuf, SlotIndex, page_buf};
use crate::word::{State, SwapEntry, Word};
use std::collections::{BTreeMap, BTreeSet};

/// Pages moved in one step.
pub const STEP_PAGES: usize = 64;
/// Shared slots that are remembered, 64 bytes each.
const SHARED_MAX: usize = 1 << 16;
/// Pages that cannot be read: from so many on it is the device, and there is no use in trying all of them.
const UNREADABLE_MAX: usize = 4096;
/// Steps in a row that found slots and wrote nothing: there is no room, whatever the devices say.
const UNWRITTEN_MAX: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapoffError {
    NoSuchDevice,
    /// It is off, or leaving.
    NotOn,
    /// Another swapoff is under way.
    Busy,
    LastDevice,
    /// The other devices have no room for the rest.
    NoRoom,
    /// So many pages could not be read; all others were moved, unless there were more than can be tried.
    Unreadable { pages: usize },
    Stopped,
}

impl std::fmt::Display for SwapoffError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SwapoffError::NoSuchDevice => write!(f, "there is no such swap device"),
            SwapoffError::NotOn => write!(f, "the device is not on"),
            SwapoffError::Busy => write!(f, "another swapoff is under way: wait for it, or stop it"),
            SwapoffError::LastDevice => write!(f, "it is the last device that is on: switch another one on first"),
            SwapoffError::NoRoom => {
                write!(f, "the other devices have no room for its pages: switch another one on first")
            }
            SwapoffError::Unreadable { pages } => {
                write!(f, "{pages} pages cannot be read: they stay there, and access to them gets SIGBUS")
            }
            SwapoffError::Stopped => write!(f, "stopped"),
        }
    }
}
impl std::error::Error for SwapoffError {}

/// What a step has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// So many page-table words name another device now. Go on.
    Moved(usize),
    /// A read is in flight or could not be made now, or what is left is in the hands of others: try again in a while.
    Wait,
    End(Result<(), SwapoffError>),
}

/// A swapoff under way.
pub(crate) struct Swapoff {
    place: u8,
    /// The next chunk of the pass, by number.
    next_chunk: u64,
    /// Chunks in which the batch was found, first and last.
    chunks: (u64, u64),
    /// This pass has met words that name the device.
    met: bool,
    /// Slots whose read is in flight, one reference held to each.
    reading: Vec<SwapEntry>,
    /// Moved, and referred to by others still: old to new, one reference held to each.
    shared: BTreeMap<SwapEntry, SwapEntry>,
    unreadable: BTreeSet<SwapEntry>,
    /// Steps in a row that wrote nothing.
    unwritten_steps: u32,
    spare: Option<PageBuf>,
}

impl Swapoff {
    fn new(place: usize) -> Swapoff {
        Swapoff {
            place: place as u8,
            next_chunk: 0,
            chunks: (0, 0),
            met: false,
            reading: Vec::new(),
            shared: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            unwritten_steps: 0,
            spare: None,
        }
    }

    /// References held between two steps; for the checker.
    pub(crate) fn held(&self) -> impl Iterator<Item = SwapEntry> {
        self.reading.iter().chain(self.shared.keys()).chain(self.shared.values()).copied()
    }
}

/// Pages whose bytes are at hand: slot and place in the buffer, one reference held to each slot.
type Loaded = Vec<(SwapEntry, usize)>;

impl Engine {
    /// The device takes no pages from now on. `swapoff_step` does the rest, and must be called until it says `End`.
    pub fn swapoff_begin(&self, place: usize) -> Result<(), SwapoffError> {
        let mut under_way = lock(&self.swapoff);
        if under_way.is_some() {
            return Err(SwapoffError::Busy);
        }
        let device = self.devices.get(place).ok_or(SwapoffError::NoSuchDevice)?;
        if !device.is_on() {
            return Err(SwapoffError::NotOn);
        }
        if self.devices.takers().all(|taker| taker == place) {
            return Err(SwapoffError::LastDevice);
        }
        self.swapoff_stop.store(false, Ordering::Relaxed);
        self.devices.set_state(place, DeviceState::Leaving);
        *under_way = Some(Swapoff::new(place));
        Ok(())
    }

    /// The swapoff that is under way is to end at its next step.
    pub fn swapoff_stop(&self) {
        self.swapoff_stop.store(true, Ordering::Relaxed);
    }

    /// One batch. `queue`: used by nobody else.
    pub fn swapoff_step(&self, cpu: CpuId, queue: QueueId) -> Step {
        let mut under_way = lock(&self.swapoff);
        let off = under_way.as_mut().expect("a swapoff is under way");
        let step = self.step(cpu, queue, off);
        if let Step::End(result) = step {
            let held: Vec<SwapEntry> = off.held().collect();
            self.free_entries(cpu, &held);
            // Closed before it is off: then its place may be another's, and its file is let go of when it is said to be.
            if result.is_ok() {
                self.devices[usize::from(off.place)].backing.close();
            }
            let state = if result.is_ok() { DeviceState::Off } else { DeviceState::On };
            self.devices.set_state(usize::from(off.place), state);
            self.forgive_writes();
            *under_way = None;
        }
        step
    }

    /// Writes that failed here left no page waiting on their device, and pages that waited there may have been moved: nobody
    /// would see that it can be written again.
    fn forgive_writes(&self) {
        let waiting: BTreeSet<u8> = lock(&self.unwritten).iter().map(|(entry, _)| entry.device).collect();
        let none_waits = self.devices.iter().zip(0..).filter(|(_, place)| !waiting.contains(place));
        none_waits.for_each(|(device, _)| device.errors.none_waits());
    }

    fn step(&self, cpu: CpuId, queue: QueueId, off: &mut Swapoff) -> Step {
        // First, and even when it is to stop: the buffer and the slots are the backing's until the read ends.
        if !off.reading.is_empty() {
            let mut done = Vec::new();
            self.devices[usize::from(off.place)].backing.reap(queue, &mut done);
            return match done.pop() {
                Some(done) => self.move_read(cpu, queue, off, done),
                None => Step::Wait,
            };
        }
        if self.swapoff_stop.load(Ordering::Relaxed) {
            return Step::End(Err(SwapoffError::Stopped));
        }
        let (batch, moved) = self.collect(cpu, off);
        if !batch.is_empty() {
            return self.move_batch(cpu, queue, off, batch, moved);
        }
        if moved > 0 {
            return Step::Moved(moved);
        }
        self.end_of_pass(cpu, off)
    }

    /// The next slots of the pass, a reference held to each. Words that name a slot which was moved before are settled
    /// here; returns how many those were.
    fn collect(&self, cpu: CpuId, off: &mut Swapoff) -> (Vec<SwapEntry>, usize) {
        let spaces = self.all_spaces();
        let mut batch: Vec<SwapEntry> = Vec::new();
        let mut known: BTreeSet<SwapEntry> = BTreeSet::new();
        let mut left: Vec<SwapEntry> = Vec::new();
        off.chunks = (u64::MAX, 0);
        while batch.len() < STEP_PAGES && left.is_empty() {
            let Some(number) = spaces.iter().filter_map(|s| s.next_chunk(off.next_chunk)).min() else { break };
            for space in &spaces {
                space.visit_chunk(number, |word| {
                    if let Some(copy) = kept_copy(*word, off.place) {
                        *word = word.without_kept();
                        left.push(copy);
                    }
                    let Some(entry) = named(*word, off.place) else { return };
                    if let Some(new) = off.shared.get(&entry) {
                        self.rename(word, *new);
                        left.push(entry);
                    } else if !off.unreadable.contains(&entry) && batch.len() < STEP_PAGES && known.insert(entry) {
                        self.devices[usize::from(off.place)].slots.dup(entry.slot);
                        batch.push(entry);
                        off.chunks = (off.chunks.0.min(number), number);
                    }
                });
            }
            // A batch that is full may have left some behind: the same chunk again.
            off.next_chunk = if batch.len() < STEP_PAGES { number + 1 } else { number };
        }
        off.met |= !batch.is_empty() || !left.is_empty();
        self.free_entries(cpu, &left);
        (batch, left.len())
    }

    /// Under the word's chunk lock: as in a fork, no reference goes before its successor is there.
    fn rename(&self, word: &mut Word, new: SwapEntry) {
        self.devices[usize::from(new.device)].slots.dup(new.slot);
        *word = word.with_entry(new);
    }

    /// Move what is in the swap cache now; read the rest.
    fn move_batch(&self, cpu: CpuId, queue: QueueId, off: &mut Swapoff, batch: Vec<SwapEntry>, moved: usize) -> Step {
        let mut buf = off.spare.take().unwrap_or_else(|| page_buf(STEP_PAGES));
        let mut cached: Loaded = Vec::new();
        let mut missing: Vec<SwapEntry> = Vec::new();
        let slots: Vec<SlotIndex> = batch.iter().map(|entry| entry.slot).collect();
        let mut absent = self.copy_from_cache(cpu, off.place, &slots, &mut buf).into_iter().peekable();
        for (at, entry) in batch.into_iter().enumerate() {
            match absent.next_if_eq(&at) {
                None => cached.push((entry, at)),
                Some(_) => missing.push(entry),
            }
        }
        let cached = self.relocate(cpu, queue, off, cached, &buf);
        if missing.is_empty() {
            off.spare = Some(buf);
            return cached.map_or_else(|e| Step::End(Err(e)), |n| Step::Moved(n + moved));
        }
        if let Err(error) = cached {
            self.free_entries(cpu, &missing);
            return Step::End(Err(error));
        }
        let slots = missing.iter().map(|entry| entry.slot).collect();
        off.reading = missing;
        match self.devices[usize::from(off.place)].backing.read(queue, ReadRequest { token: 0, slots, buf }) {
            ReadStart::Done(done) => self.move_read(cpu, queue, off, done),
            ReadStart::Pending => Step::Wait,
        }
    }

    fn move_read(&self, cpu: CpuId, queue: QueueId, off: &mut Swapoff, done: ReadDone) -> Step {
        let mut loaded: Loaded = Vec::new();
        let mut unread: Vec<SwapEntry> = Vec::new();
        for (at, (entry, result)) in std::mem::take(&mut off.reading).into_iter().zip(&done.results).enumerate() {
            match result {
                Ok(()) => loaded.push((entry, at)),
                Err(error) => {
                    self.devices[usize::from(off.place)].errors.note_read(error);
                    if !error.passes() {
                        off.unreadable.insert(entry);
                    }
                    unread.push(entry);
                }
            }
        }
        // What can be read in a moment is met again in the next pass.
        let pause = done.results.iter().any(|result| result.as_ref().is_err_and(BackingError::passes));
        self.free_entries(cpu, &unread);
        let moved = self.relocate(cpu, queue, off, loaded, &done.buf);
        off.spare = Some(done.buf);
        match moved {
            Ok(_) if off.unreadable.len() > UNREADABLE_MAX => {
                Step::End(Err(SwapoffError::Unreadable { pages: off.unreadable.len() }))
            }
            Ok(0) if pause => Step::Wait,
            Ok(moved) => Step::Moved(moved),
            Err(error) => Step::End(Err(error)),
        }
    }

    /// Store these pages elsewhere and let the words name the new slots; gives the references to the old ones back.
    /// Returns how many words were changed.
    fn relocate(
        &self,
        cpu: CpuId,
        queue: QueueId,
        off: &mut Swapoff,
        loaded: Loaded,
        buf: &[Page],
    ) -> Result<usize, SwapoffError> {
        if loaded.is_empty() {
            return Ok(0);
        }
        let placed = self.allocate_elsewhere(cpu, &loaded);
        let has_slots = !placed.is_empty();
        let new_of = self.write_elsewhere(cpu, queue, placed, buf);
        off.unwritten_steps = if new_of.is_empty() { off.unwritten_steps + 1 } else { 0 };
        let moved = self.rename_all(cpu, off, &new_of);
        self.let_go(cpu, off, loaded, new_of);
        if !has_slots || off.unwritten_steps > UNWRITTEN_MAX {
            return Err(SwapoffError::NoRoom);
        }
        add(&self.stats.on(cpu).swapoff_moved, moved as u64);
        Ok(moved)
    }

    /// A new slot for each page, or for as many as there is room for: old slot, new slot, place in the buffer.
    fn allocate_elsewhere(&self, cpu: CpuId, loaded: &Loaded) -> Vec<(SwapEntry, SwapEntry, usize)> {
        let mut by_owner: BTreeMap<GroupId, Vec<(SwapEntry, usize)>> = BTreeMap::new();
        for (old, at) in loaded {
            let owner = self.devices[usize::from(old.device)].slots.group_of(old.slot);
            by_owner.entry(owner).or_default().push((*old, *at));
        }
        let mut placed = Vec::with_capacity(loaded.len());
        for (owner, pages) in by_owner {
            let mut news = Vec::with_capacity(pages.len());
            self.alloc_elsewhere(cpu, owner, pages.len(), &mut news);
            if news.len() < pages.len() && self.give_up_kept(cpu) > 0 {
                self.alloc_elsewhere(cpu, owner, pages.len(), &mut news);
            }
            // Pages that lie together go on lying together.
            news.sort_unstable();
            placed.extend(pages.into_iter().zip(news).map(|((old, at), new)| (old, new, at)));
        }
        placed
    }

    /// Up to `n` slots in all for a group, whose limits say nothing here: the old slots go.
    fn alloc_elsewhere(&self, cpu: CpuId, owner: GroupId, n: usize, news: &mut Vec<SwapEntry>) {
        let (group, missing) = (self.groups.of(owner), n - news.len());
        group.force_charge_swap(missing as u64);
        let got = self.alloc_charged(cpu, group, Order::ZERO, missing, news);
        group.uncharge_swap((missing - got) as u64);
    }

    /// Write the pages to their new slots; returns those that are there, old to new, each with what was known of it.
    fn write_elsewhere(
        &self,
        cpu: CpuId,
        queue: QueueId,
        placed: Vec<(SwapEntry, SwapEntry, usize)>,
        buf: &[Page],
    ) -> BTreeMap<SwapEntry, SwapEntry> {
        let mut new_of = BTreeMap::new();
        for (n, device) in self.devices.iter().enumerate() {
            let pages: Vec<_> = placed.iter().filter(|(_, new, _)| usize::from(new.device) == n).collect();
            if pages.is_empty() {
                continue;
            }
            let writes: Vec<PageWrite> =
                pages.iter().map(|(_, new, at)| PageWrite { slot: new.slot, page: &buf[*at] }).collect();
            let mut results = Vec::with_capacity(writes.len());
            device.backing.write(queue, &writes, &mut results);
            let mut failed = Vec::new();
            for ((old, new, _), result) in pages.into_iter().zip(&results) {
                if result.is_ok() {
                    self.copy_shadow(*old, *new);
                    new_of.insert(*old, *new);
                } else {
                    failed.push(*new);
                }
            }
            if failed.len() < results.len() {
                device.errors.note_written();
            }
            self.free_entries(cpu, &failed);
            // After that: what was given back here is no room.
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                match error {
                    BackingError::Full => device.full.store(true, Ordering::Relaxed),
                    error => device.errors.note_write(error),
                }
            }
        }
        new_of
    }

    /// When the page left memory. One that was still in the swap cache has left just now.
    fn copy_shadow(&self, old: SwapEntry, new: SwapEntry) {
        let shadow = self.devices[usize::from(old.device)].slots.shadow(old.slot);
        let shadow = shadow.unwrap_or_else(|| self.evictions.load(Ordering::Relaxed));
        self.devices[usize::from(new.device)].slots.set_shadow(&[new.slot], shadow);
    }

    fn rename_all(&self, cpu: CpuId, off: &Swapoff, new_of: &BTreeMap<SwapEntry, SwapEntry>) -> usize {
        let (mut number, last) = off.chunks;
        let spaces = self.all_spaces();
        let mut moved = 0;
        while let Some(next) = spaces.iter().filter_map(|s| s.next_chunk(number)).min().filter(|next| *next <= last) {
            let mut left = Vec::new();
            for space in &spaces {
                space.visit_chunk(next, |word| {
                    let Some(old) = named(*word, off.place) else { return };
                    if let Some(new) = new_of.get(&old) {
                        self.rename(word, *new);
                        left.push(old);
                    }
                });
            }
            moved += left.len();
            self.free_entries(cpu, &left);
            number = next + 1;
        }
        moved
    }

    /// The references held for the batch, old and new; except where somebody else has one to the old slot too.
    fn let_go(&self, cpu: CpuId, off: &mut Swapoff, loaded: Loaded, new_of: BTreeMap<SwapEntry, SwapEntry>) {
        let mut free: Vec<SwapEntry> = Vec::new();
        for (old, _) in loaded {
            let has_sharers = self.devices[usize::from(old.device)].slots.count(old.slot) > 1;
            match new_of.get(&old) {
                Some(new) if has_sharers && off.shared.len() < SHARED_MAX => _ = off.shared.insert(old, *new),
                new => free.extend([old].iter().chain(new)),
            }
        }
        self.free_entries(cpu, &free);
    }

    /// All page tables were looked at: is the device empty?
    fn end_of_pass(&self, cpu: CpuId, off: &mut Swapoff) -> Step {
        let device = &self.devices[usize::from(off.place)];
        let mut free: Vec<SwapEntry> = Vec::new();
        off.shared.retain(|old, new| {
            let needed = device.slots.count(old.slot) > 1;
            if !needed {
                free.extend([*old, *new]);
            }
            needed
        });
        self.free_entries(cpu, &free);
        off.unreadable.retain(|entry| device.slots.count(entry.slot) > 0);
        let waiting = |(entry, _): &mut (SwapEntry, _)| entry.device == off.place && device.slots.count(entry.slot) == 0;
        let orphans: Vec<_> = lock(&self.unwritten).extract_if(.., waiting).collect();
        self.free_orphans(cpu, &orphans);
        // As the kernel: before it is off.
        if device.discard_waiting() {
            return Step::Moved(0);
        }
        if device.slots.retire(cpu) {
            return Step::End(Ok(()));
        }
        if !off.met && !off.unreadable.is_empty() {
            return Step::End(Err(SwapoffError::Unreadable { pages: off.unreadable.len() }));
        }
        off.next_chunk = 0;
        if std::mem::replace(&mut off.met, false) { Step::Moved(0) } else { Step::Wait }
    }
}

/// The slot of this device that only spares a write: the page is in memory.
fn kept_copy(word: Word, place: u8) -> Option<SwapEntry> {
    word.held_entry().filter(|entry| word.state() == State::Resident && entry.device == place)
}

/// The slot of this device that a page is in.
fn named(word: Word, place: u8) -> Option<SwapEntry> {
    (word.state() == State::Swapped && word.entry().device == place).then(|| word.entry())
}
