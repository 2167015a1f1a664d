//! A swap device is switched off: the pages that it holds move to the other devices, slot to slot.
//!
//! ```text
//!   begin: LEAVING, no slot is allocated there any more
//!   walk over the page tables of all spaces, chunk by chunk; for each batch of words that name the device:
//!     hold the slots
//!       ─▶ bytes: swap cache, or one read ─▶ slots elsewhere, same owner ─▶ one write ─▶ shadows
//!       ─▶ words: those that still name the old slot name the new one        under their chunk's lock
//!       ─▶ drop both references; a slot that other words still name is remembered, old with new, until
//!          the walk meets them
//!   walk after walk until no slot is in use: OFF, the backing is closed
//! ```
//!
//! No page is swapped in: a job under pressure has no room for that. Pages that still wait in the swap cache
//! to be written are copied from there, so a device that fails in writing can be switched off.
//!
//! Why no page is lost or old: a slot's bytes never change while it has a reference, and swapoff holds one.
//! So the copy is right for every word that names the old slot, whenever the walk meets that word. A page
//! that is FILLING keeps its reference to the old slot and ends as it would have without swapoff; if it
//! becomes SWAPPED again, a later walk meets it. So it is with words that are between two places (a remap, a
//! fork, a batch that is being taken): the device is off only when none of its slots is in use, and then none
//! can be allocated ([`Slots::retire`]).
//!
//! Kept copies (kept.rs) are given up where they are met, and also on the other devices when those run short.
//!
//! Folios of larger orders move page by page, into single slots; they are folios again the next time that
//! they leave memory.
//!
//! Slots shared by a fork stay shared: the walk visits a chunk in all spaces before it goes on to the next,
//! and a slot with references elsewhere stays in `shared`. Beyond `SHARED_MAX` such slots are forgotten, and
//! a sharer that is met later gets a copy.
//!
//! It ends early if it is told to stop, if the other devices have no room, or if pages cannot be read. Then
//! the device is on again, and pages that were moved stay where they are now. Pages that cannot be read stay
//! on the device, and an access to them gets SIGBUS, as without swapoff.
//!
//! There is one swapoff at a time. Its caller is a thread of its own, with a queue of its own; between two
//! steps the engine may be checked.
//!
//! What it does not do: obey the groups' swap limits (a page that moves takes a second slot for a moment),
//! wait (a step that can do nothing says so), or choose which pages stay when there is no room for all.
//!
//! [`Slots::retire`]: crate::slots::Slots::retire

use crate::backing::{BackingError, Chore, PageWrite, QueueId, ReadDone, ReadRequest, ReadStart};
use crate::devices::DeviceState;
use crate::frames::CachedPage;
use crate::kept::Kept;
use crate::spaces::Spaces;
use crate::stats::add;
use crate::swap::Swap;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use crate::units::{CpuId, GroupId, Order, Page, PageBuf, SlotIndex, page_buf};
use crate::word::{State, SwapEntry, Word};
use std::collections::{BTreeMap, BTreeSet};

/// Pages moved in one step.
pub const STEP_PAGES: usize = 64;
/// Shared slots that are remembered, 64 bytes each.
const SHARED_MAX: usize = 1 << 16;
/// When this many pages could not be read, the device has failed, and trying the others is useless.
const UNREADABLE_MAX: usize = 4096;
/// After this many steps in a row that got slots and wrote nothing there is no room, whatever the counters
/// say.
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
    /// The number of pages that could not be read; all others were moved, unless there were more than can be
    /// tried.
    Unreadable {
        pages: usize,
    },
    Stopped,
}

impl std::fmt::Display for SwapoffError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SwapoffError::NoSuchDevice => write!(f, "there is no such swap device"),
            SwapoffError::NotOn => write!(f, "the device is not on"),
            SwapoffError::Busy => write!(f, "another swapoff is under way: wait for it, or stop it"),
            SwapoffError::LastDevice => {
                write!(f, "it is the last device that is on: switch another one on first")
            }
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
    /// The number of page-table words that name another device now. Go on.
    Moved(usize),
    /// A read is in flight or could not be made now, or the pages that are left are being filled or moved by
    /// other threads: try again in a while.
    Wait,
    End(Result<(), SwapoffError>),
}

/// How far a swapoff is.
struct Progress {
    place: u8,
    /// The next chunk of the walk, by number.
    next_chunk: u64,
    /// Chunks in which the batch was found, first and last.
    chunks: (u64, u64),
    /// This walk has met words that name the device.
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

impl Progress {
    fn new(place: usize) -> Progress {
        Progress {
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

    /// References held between two steps.
    fn held(&self) -> impl Iterator<Item = SwapEntry> {
        self.reading.iter().chain(self.shared.keys()).chain(self.shared.values()).copied()
    }
}

/// Pages whose bytes are at hand: slot and place in the buffer, one reference held to each slot.
type Loaded = Vec<(SwapEntry, usize)>;

/// The swapoff of an engine, if one is under way.
#[derive(Default)]
pub(crate) struct Swapoff {
    under_way: Mutex<Option<Progress>>,
    stop: AtomicBool,
}

impl Swapoff {
    /// The device takes no pages from now on. `step` does the rest, and must be called until it says `End`.
    pub fn begin(&self, swap: &Swap, place: usize) -> Result<(), SwapoffError> {
        let mut under_way = lock(&self.under_way);
        if under_way.is_some() {
            return Err(SwapoffError::Busy);
        }
        let device = swap.devices.get(place).ok_or(SwapoffError::NoSuchDevice)?;
        if !device.is_on() {
            return Err(SwapoffError::NotOn);
        }
        if swap.devices.takers().all(|taker| taker == place) {
            return Err(SwapoffError::LastDevice);
        }
        self.stop.store(false, Ordering::Relaxed);
        swap.devices.set_state(place, DeviceState::Leaving);
        *under_way = Some(Progress::new(place));
        Ok(())
    }

    /// The swapoff that is under way is to end at its next step.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// References held between two steps.
    pub fn held(&self) -> Vec<SwapEntry> {
        lock(&self.under_way).iter().flat_map(Progress::held).collect()
    }
}

/// One step of a swapoff.
pub(crate) struct SwapoffStep<'a> {
    pub swap: &'a Swap,
    pub spaces: &'a Spaces,
    pub kept: &'a Kept,
    pub cpu: CpuId,
    /// Used by nobody else.
    pub queue: QueueId,
}

impl SwapoffStep<'_> {
    /// One batch.
    pub fn run(&self, swapoff: &Swapoff) -> Step {
        let mut under_way = lock(&swapoff.under_way);
        let off = under_way.as_mut().expect("a swapoff is under way");
        let step = self.step(off, &swapoff.stop);
        if let Step::End(result) = step {
            let held: Vec<SwapEntry> = off.held().collect();
            self.swap.free(self.cpu, &held);
            // Closed before it is off: once it is off its place may go to another device, and whoever sees it
            // off may unmount its file.
            if result.is_ok() {
                self.swap.devices[usize::from(off.place)].backing.housekeep(Chore::Close);
            }
            let state = if result.is_ok() { DeviceState::Off } else { DeviceState::On };
            self.swap.devices.set_state(usize::from(off.place), state);
            self.forgive_writes();
            *under_way = None;
        }
        step
    }

    /// Let failing devices for which no page waits take pages again. Writes that failed in this swapoff left
    /// no page waiting, and pages that waited may have been moved: no retry would show that the device works.
    fn forgive_writes(&self) {
        let waiting: BTreeSet<u8> = self.swap.unwritten.pages().iter().map(|p| p.entry.device).collect();
        let none_waits = self.swap.devices.iter().zip(0..).filter(|(_, place)| !waiting.contains(place));
        none_waits.for_each(|(device, _)| device.errors.allow_one_try());
    }

    fn step(&self, off: &mut Progress, stop: &AtomicBool) -> Step {
        // First, and even when it is to stop: until the read ends, the backing uses the buffer and the slots.
        if !off.reading.is_empty() {
            let mut done = Vec::new();
            self.swap.devices[usize::from(off.place)].backing.reap(self.queue, &mut done);
            return match done.pop() {
                Some(done) => self.move_read(off, done),
                None => Step::Wait,
            };
        }
        if stop.load(Ordering::Relaxed) {
            return Step::End(Err(SwapoffError::Stopped));
        }
        let (batch, moved) = self.collect(off);
        if !batch.is_empty() {
            return self.move_batch(off, batch, moved);
        }
        if moved > 0 {
            return Step::Moved(moved);
        }
        self.end_of_walk(off)
    }

    /// The next slots of the walk, a reference held to each. Words that name a slot which was moved before
    /// are settled here; returns how many those were.
    fn collect(&self, off: &mut Progress) -> (Vec<SwapEntry>, usize) {
        let spaces = self.spaces.with_leaving();
        let mut batch: Vec<SwapEntry> = Vec::new();
        let mut known: BTreeSet<SwapEntry> = BTreeSet::new();
        let mut left: Vec<SwapEntry> = Vec::new();
        off.chunks = (u64::MAX, 0);
        while batch.len() < STEP_PAGES && left.is_empty() {
            let Some(number) = spaces.iter().filter_map(|s| s.next_chunk(off.next_chunk)).min() else {
                break;
            };
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
                    } else if !off.unreadable.contains(&entry)
                        && batch.len() < STEP_PAGES
                        && known.insert(entry)
                    {
                        self.swap.devices[usize::from(off.place)].slots.dup(entry.slot);
                        batch.push(entry);
                        off.chunks = (off.chunks.0.min(number), number);
                    }
                });
            }
            // A full batch may have left words of this chunk behind: then the same chunk comes again.
            off.next_chunk = if batch.len() < STEP_PAGES { number + 1 } else { number };
        }
        off.met |= !batch.is_empty() || !left.is_empty();
        self.swap.free(self.cpu, &left);
        (batch, left.len())
    }

    /// Make a word name its new slot, under the lock of its chunk. As in a fork, the new reference is taken
    /// before the old one is dropped.
    fn rename(&self, word: &mut Word, new: SwapEntry) {
        self.swap.devices[usize::from(new.device)].slots.dup(new.slot);
        *word = word.with_entry(new);
    }

    /// Move what is in the swap cache now; read the rest.
    fn move_batch(&self, off: &mut Progress, batch: Vec<SwapEntry>, moved: usize) -> Step {
        let mut buf = off.spare.take().unwrap_or_else(|| page_buf(STEP_PAGES));
        let mut cached: Loaded = Vec::new();
        let mut missing: Vec<SwapEntry> = Vec::new();
        let slots: Vec<SlotIndex> = batch.iter().map(|entry| entry.slot).collect();
        let there = self.swap.cache_copy(self.cpu, off.place, &slots, &mut buf);
        let mut absent = there.absent.into_iter().peekable();
        for (at, entry) in batch.into_iter().enumerate() {
            match absent.next_if_eq(&at) {
                None => cached.push((entry, at)),
                Some(_) => missing.push(entry),
            }
        }
        let cached = self.relocate(off, cached, &buf);
        if missing.is_empty() {
            off.spare = Some(buf);
            return cached.map_or_else(|e| Step::End(Err(e)), |n| Step::Moved(n + moved));
        }
        if let Err(error) = cached {
            self.swap.free(self.cpu, &missing);
            return Step::End(Err(error));
        }
        let slots = missing.iter().map(|entry| entry.slot).collect();
        off.reading = missing;
        match self.swap.devices[usize::from(off.place)]
            .backing
            .read(self.queue, ReadRequest { token: 0, slots, buf, is_awaited: false })
        {
            ReadStart::Done(done) => self.move_read(off, done),
            ReadStart::Pending => Step::Wait,
        }
    }

    fn move_read(&self, off: &mut Progress, done: ReadDone) -> Step {
        let mut loaded: Loaded = Vec::new();
        let mut unread: Vec<SwapEntry> = Vec::new();
        for (at, (entry, result)) in
            std::mem::take(&mut off.reading).into_iter().zip(&done.results).enumerate()
        {
            match result {
                Ok(()) => loaded.push((entry, at)),
                Err(error) => {
                    self.swap.devices[usize::from(off.place)].errors.note_read(error);
                    if !error.is_transient() {
                        off.unreadable.insert(entry);
                    }
                    unread.push(entry);
                }
            }
        }
        // A page whose read failed for want of memory is met again in the next walk.
        let pause = done.results.iter().any(|result| result.as_ref().is_err_and(BackingError::is_transient));
        self.swap.free(self.cpu, &unread);
        let moved = self.relocate(off, loaded, &done.buf);
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

    /// Store these pages elsewhere and let the words name the new slots; gives the references to the old ones
    /// back. Returns how many words were changed.
    fn relocate(&self, off: &mut Progress, loaded: Loaded, buf: &[Page]) -> Result<usize, SwapoffError> {
        if loaded.is_empty() {
            return Ok(0);
        }
        let placed = self.allocate_elsewhere(&loaded);
        let has_slots = !placed.is_empty();
        let new_of = self.write_elsewhere(placed, buf);
        off.unwritten_steps = if new_of.is_empty() { off.unwritten_steps + 1 } else { 0 };
        let moved = self.rename_all(off, &new_of);
        self.let_go(off, loaded, new_of);
        if !has_slots || off.unwritten_steps > UNWRITTEN_MAX {
            return Err(SwapoffError::NoRoom);
        }
        add(&self.swap.stats.on(self.cpu).swapoff_moved, moved as u64);
        Ok(moved)
    }

    /// A new slot for each page, or for as many as there is room for: old slot, new slot, place in the
    /// buffer.
    fn allocate_elsewhere(&self, loaded: &Loaded) -> Vec<(SwapEntry, SwapEntry, usize)> {
        let mut by_owner: BTreeMap<GroupId, Vec<(SwapEntry, usize)>> = BTreeMap::new();
        for (old, at) in loaded {
            let owner = self.swap.devices[usize::from(old.device)].slots.group_of(old.slot);
            by_owner.entry(owner).or_default().push((*old, *at));
        }
        let mut placed = Vec::with_capacity(loaded.len());
        for (owner, pages) in by_owner {
            let mut news = Vec::with_capacity(pages.len());
            self.alloc_elsewhere(owner, pages.len(), &mut news);
            if news.len() < pages.len() && self.kept.give_up(self.swap, self.cpu, self.spaces) > 0 {
                self.alloc_elsewhere(owner, pages.len(), &mut news);
            }
            // Pages that lie together go on lying together.
            news.sort_unstable();
            placed.extend(pages.into_iter().zip(news).map(|((old, at), new)| (old, new, at)));
        }
        placed
    }

    /// Up to `n` slots in all for a group, whose limits say nothing here: the old slots go.
    fn alloc_elsewhere(&self, owner: GroupId, n: usize, news: &mut Vec<SwapEntry>) {
        let (group, missing) = (self.swap.groups.by_id(owner), n - news.len());
        group.force_charge_swap(missing as u64);
        let got = self.swap.alloc_charged(self.cpu, group, Order::ZERO, missing, news);
        group.uncharge_swap((missing - got) as u64);
    }

    /// Write the pages to their new slots; returns those that are there, old to new, each with what was known
    /// of it.
    fn write_elsewhere(
        &self,
        placed: Vec<(SwapEntry, SwapEntry, usize)>,
        buf: &[Page],
    ) -> BTreeMap<SwapEntry, SwapEntry> {
        let mut new_of = BTreeMap::new();
        for (n, device) in self.swap.devices.iter().enumerate() {
            let pages: Vec<_> = placed.iter().filter(|(_, new, _)| usize::from(new.device) == n).collect();
            if pages.is_empty() {
                continue;
            }
            let writes: Vec<PageWrite> =
                pages.iter().map(|(_, new, at)| PageWrite { slot: new.slot, page: &buf[*at] }).collect();
            let mut results = Vec::with_capacity(writes.len());
            device.backing.write(self.queue, &writes, &mut results);
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
            self.swap.free(self.cpu, &failed);
            // After the free, which clears `full`: slots given back here are no sign of room.
            for error in results.iter().filter_map(|result| result.as_ref().err()) {
                match error {
                    BackingError::Full => device.full.store(true, Ordering::Relaxed),
                    error => device.errors.note_write(error),
                }
            }
        }
        new_of
    }

    /// The new slot gets the old one's shadow. A page that is still in the swap cache has none yet: it left
    /// now.
    fn copy_shadow(&self, old: SwapEntry, new: SwapEntry) {
        let shadow = self.swap.devices[usize::from(old.device)].slots.shadow(old.slot);
        let shadow = shadow.unwrap_or_else(|| self.swap.eviction_clock());
        self.swap.devices[usize::from(new.device)].slots.set_shadow(&[new.slot], shadow);
    }

    fn rename_all(&self, off: &Progress, new_of: &BTreeMap<SwapEntry, SwapEntry>) -> usize {
        let (mut number, last) = off.chunks;
        let spaces = self.spaces.with_leaving();
        let mut moved = 0;
        while let Some(next) =
            spaces.iter().filter_map(|s| s.next_chunk(number)).min().filter(|next| *next <= last)
        {
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
            self.swap.free(self.cpu, &left);
            number = next + 1;
        }
        moved
    }

    /// Drop the references held for the batch, old and new. If somebody else has a reference to the old slot
    /// too, both are kept in `shared`.
    fn let_go(&self, off: &mut Progress, loaded: Loaded, new_of: BTreeMap<SwapEntry, SwapEntry>) {
        let mut free: Vec<SwapEntry> = Vec::new();
        for (old, _) in loaded {
            let has_sharers = self.swap.devices[usize::from(old.device)].slots.count(old.slot) > 1;
            match new_of.get(&old) {
                Some(new) if has_sharers && off.shared.len() < SHARED_MAX => _ = off.shared.insert(old, *new),
                new => free.extend([old].iter().chain(new)),
            }
        }
        self.swap.free(self.cpu, &free);
    }

    /// A walk over all page tables has ended: is the device empty?
    fn end_of_walk(&self, off: &mut Progress) -> Step {
        let device = &self.swap.devices[usize::from(off.place)];
        let mut free: Vec<SwapEntry> = Vec::new();
        off.shared.retain(|old, new| {
            let needed = device.slots.count(old.slot) > 1;
            if !needed {
                free.extend([*old, *new]);
            }
            needed
        });
        self.swap.free(self.cpu, &free);
        off.unreadable.retain(|entry| device.slots.count(entry.slot) > 0);
        let is_orphan =
            |p: &mut CachedPage| p.entry.device == off.place && device.slots.count(p.entry.slot) == 0;
        let orphans = self.swap.unwritten.take_if(is_orphan);
        self.swap.free_orphans(self.cpu, &orphans);
        // Clusters that wait are discarded before the device is off, as in the kernel.
        if device.discard_waiting() {
            return Step::Moved(0);
        }
        if device.slots.retire(self.cpu) {
            return Step::End(Ok(()));
        }
        if !off.met && !off.unreadable.is_empty() {
            return Step::End(Err(SwapoffError::Unreadable { pages: off.unreadable.len() }));
        }
        off.next_chunk = 0;
        if std::mem::replace(&mut off.met, false) { Step::Moved(0) } else { Step::Wait }
    }
}

/// The kept copy on this device of a page that is in memory.
fn kept_copy(word: Word, place: u8) -> Option<SwapEntry> {
    word.held_entry().filter(|entry| word.state() == State::Resident && entry.device == place)
}

/// The slot of this device that a page is in.
fn named(word: Word, place: u8) -> Option<SwapEntry> {
    (word.state() == State::Swapped && word.entry().device == place).then(|| word.entry())
}
