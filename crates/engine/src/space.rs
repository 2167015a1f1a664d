//! One address space: its page table, its LRU, its gate, and the changes that events bring.
//!
//! The page table is a map from chunk (2 MiB of addresses) to 512 words under one lock, the kernel's page of PTEs and its
//! lock. 8 bytes a page, only for chunks in which something was ever managed.
//!
//! Lock order: gate → chunk map → chunk → LRU. Two chunk locks are never held at once.
//!
//! The event functions (`unmap`, `remap`, `fork_into`) are called inside the gate's event side and with no batch of this
//! space being taken, so no page is EVICTING and no fill is between its check and its end.

use crate::engine::Engine;
use crate::gate::Gate;
use crate::group::Group;
use crate::memory::Memory;
use crate::readahead::Streams;
use crate::reclaim::lru::{Lru, Record};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, RwLock, lock};
use crate::units::{CpuId, SpaceId, Vpn};
use crate::word::{CANCELLED, HAS_ENTRY, MADE_OWN, State, SwapEntry, WANTED, Word};
use std::collections::BTreeMap;

/// Pages in a chunk of the page table (2 MiB).
pub const CHUNK_PAGES: u64 = 512;
/// Pages that share a stamp. Coarse, so that 16 bits of stamp span 4 million pages; the price is that a page which leaves
/// and comes back within 64 arrivals may have two live records, and leave a little early.
const STAMP_SHIFT: u32 = 6;
pub type Chunk = Mutex<[Word; CHUNK_PAGES as usize]>;

pub struct Space {
    pub id: SpaceId,
    pub memory: Arc<dyn Memory>,
    /// None: the root.
    group: Option<Arc<Group>>,
    pub gate: Gate,
    pub(crate) lru: Mutex<Lru>,
    pub(crate) streams: Mutex<Streams>,
    chunks: RwLock<BTreeMap<u64, Arc<Chunk>>>,
    next_stamp: AtomicU64,
    /// Ranges that are never managed, whatever their words say (the agent's own pages).
    excluded: RwLock<Vec<(Vpn, Vpn)>>,
    /// Words that mremap moved onto pages whose filler was still at work: the filler puts them there when it ends.
    pub(crate) displaced: Mutex<BTreeMap<Vpn, Word>>,
    /// Position in the round of reclaim, an f64 (see `reclaim/victim.rs`).
    pub(crate) pass_bits: AtomicU64,
    /// Reclaim takes less from it than from others.
    pub(crate) spared: AtomicBool,
    /// Reclaim takes nothing from it: its process stands still.
    pub(crate) aside: AtomicBool,
    /// Pages of this space that are charged: RESIDENT, EVICTING (until taken) and FILLING.
    resident_pages: AtomicU64,
    swapped_pages: AtomicU64,
    /// Pages that reclaim found unevictable; tried again now and then.
    pub(crate) parked: Mutex<Vec<Vpn>>,
    /// Pages may be shared with another process since a fork: take them with copy-on-write broken.
    pub cow: AtomicBool,
    /// Of the resident pages: those that are counted elsewhere too. The group's discount is the sum over all spaces, so
    /// that it follows when one comes or goes.
    discount_pages: AtomicU64,
    pub dead: AtomicBool,
}

impl Space {
    pub fn new(id: SpaceId, memory: Arc<dyn Memory>) -> Space {
        Space {
            id,
            memory,
            group: None,
            gate: Gate::new(),
            lru: Mutex::new(Lru::default()),
            streams: Mutex::new(Streams::default()),
            chunks: RwLock::new(BTreeMap::new()),
            next_stamp: AtomicU64::new(1),
            excluded: RwLock::new(Vec::new()),
            displaced: Mutex::new(BTreeMap::new()),
            pass_bits: AtomicU64::new(0),
            spared: AtomicBool::new(false),
            aside: AtomicBool::new(false),
            resident_pages: AtomicU64::new(0),
            swapped_pages: AtomicU64::new(0),
            parked: Mutex::new(Vec::new()),
            cow: AtomicBool::new(false),
            discount_pages: AtomicU64::new(0),
            dead: AtomicBool::new(false),
        }
    }

    /// In a group other than the root.
    pub fn in_group(self, group: Arc<Group>) -> Space {
        Space { group: Some(group), ..self }
    }
    /// The group that its pages are charged to.
    pub fn group<'a>(&'a self, engine: &'a Engine) -> &'a Arc<Group> {
        self.group.as_ref().unwrap_or(&engine.group)
    }

    pub fn resident_pages(&self) -> u64 {
        self.resident_pages.load(Ordering::Relaxed)
    }
    pub fn swapped_pages(&self) -> u64 {
        self.swapped_pages.load(Ordering::Relaxed)
    }
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Never manage these ranges.
    pub fn exclude(&self, ranges: Vec<(Vpn, Vpn)>) {
        *self.excluded.write().expect("excluded") = ranges;
    }
    pub(crate) fn is_excluded(&self, vpn: Vpn) -> bool {
        self.excluded.read().expect("excluded").iter().any(|(from, to)| (*from..*to).contains(&vpn))
    }

    /// Bytes of page table and LRU.
    pub fn table_bytes(&self) -> u64 {
        let chunks = self.chunks.read().expect("chunk map").len() as u64;
        chunks * (size_of::<Chunk>() as u64 + 64) + lock(&self.lru).bytes()
    }

    pub(crate) fn chunk(&self, vpn: Vpn) -> Option<Arc<Chunk>> {
        self.chunks.read().expect("chunk map").get(&(vpn.0 / CHUNK_PAGES)).cloned()
    }

    pub(crate) fn chunk_or_new(&self, vpn: Vpn) -> Arc<Chunk> {
        if let Some(chunk) = self.chunk(vpn) {
            return chunk;
        }
        let mut chunks = self.chunks.write().expect("chunk map");
        chunks
            .entry(vpn.0 / CHUNK_PAGES)
            .or_insert_with(|| Arc::new(Mutex::new([Word::NONE; CHUNK_PAGES as usize])))
            .clone()
    }

    /// The word of one page, for tests and reports.
    pub fn word(&self, vpn: Vpn) -> Word {
        self.chunk(vpn).map_or(Word::NONE, |c| lock(&c)[index(vpn)])
    }

    /// A RESIDENT word with a fresh stamp, and the LRU record that goes with it.
    pub(crate) fn fresh_resident(&self, vpn: Vpn, heat: u64) -> (Word, Record) {
        let stamp = self.next_stamp.fetch_add(1, Ordering::Relaxed) >> STAMP_SHIFT;
        let word = Word::NONE.with_state(State::Resident).with_stamp(stamp).with_heat(heat);
        (word, Record::new(vpn, word.stamp()))
    }

    /// As `fresh_resident`, for a page that was resident before: a kept copy stays with it.
    pub(crate) fn renewed(&self, vpn: Vpn, word: Word, heat: u64) -> (Word, Record) {
        let (fresh, record) = self.fresh_resident(vpn, heat);
        (word.held_entry().map_or(fresh, |entry| fresh.with_kept(entry)), record)
    }

    pub(crate) fn stamp_now(&self) -> u64 {
        self.next_stamp.load(Ordering::Relaxed) >> STAMP_SHIFT
    }

    pub(crate) fn count_resident(&self, pages: i64) {
        add_signed(&self.resident_pages, pages);
    }
    pub(crate) fn count_swapped(&self, pages: i64) {
        add_signed(&self.swapped_pages, pages);
    }

    /// Give up kept copies of resident pages until `want` slots are free. Returns them: their references are the caller's.
    pub(crate) fn give_up_kept(&self, want: usize) -> Vec<SwapEntry> {
        let mut given_up = Vec::new();
        let chunks: Vec<Arc<Chunk>> = self.chunks.read().expect("chunk map").values().cloned().collect();
        for chunk in chunks {
            if given_up.len() >= want {
                break;
            }
            for word in lock(&chunk).iter_mut().filter(|w| w.state() == State::Resident) {
                given_up.extend(word.held_entry());
                *word = word.without_kept();
            }
        }
        given_up
    }

    /// The first chunk at or after the one of `from`, and its first page.
    pub(crate) fn chunk_from(&self, from: Vpn) -> Option<(Vpn, Arc<Chunk>)> {
        let chunks = self.chunks.read().expect("chunk map");
        chunks.range(from.0 / CHUNK_PAGES..).next().map(|(n, chunk)| (Vpn(n * CHUNK_PAGES), chunk.clone()))
    }

    /// Visit the words of [from, to) that lie in existing chunks, one chunk lock at a time.
    fn for_range(&self, from: Vpn, to: Vpn, mut visit: impl FnMut(Vpn, &mut Word)) {
        let (first, last) = (from.0 / CHUNK_PAGES, to.0.div_ceil(CHUNK_PAGES));
        if first >= last {
            return;
        }
        let chunks: Vec<(u64, Arc<Chunk>)> = self
            .chunks
            .read()
            .expect("chunk map")
            .range(first..last)
            .map(|(n, chunk)| (*n, chunk.clone()))
            .collect();
        for (number, chunk) in chunks {
            let start = number * CHUNK_PAGES;
            let mut words = lock(&chunk);
            for page in from.0.max(start)..to.0.min(start + CHUNK_PAGES) {
                visit(Vpn(page), &mut words[(page - start) as usize]);
            }
        }
    }

    /// Forget chunks of [from, to) in which nothing is left.
    fn prune(&self, from: Vpn, to: Vpn) {
        let mut chunks = self.chunks.write().expect("chunk map");
        let range = from.0 / CHUNK_PAGES..to.0.div_ceil(CHUNK_PAGES).max(from.0 / CHUNK_PAGES);
        let empty: Vec<u64> = chunks
            .range(range)
            .filter(|(_, chunk)| {
                // Somebody else who holds it may be about to write a word.
                Arc::strong_count(chunk) == 1 && lock(chunk).iter().all(|w| w.state() == State::None)
            })
            .map(|(n, _)| *n)
            .collect();
        for number in empty {
            chunks.remove(&number);
        }
    }

    /// Pages found present by a scan and not yet known: charge them and put them into the LRU. Returns how many.
    pub fn adopt(&self, engine: &Engine, from: Vpn, to: Vpn) -> u64 {
        let mut adopted = 0;
        let mut at = from.0;
        while at < to.0 {
            let end = ((at / CHUNK_PAGES + 1) * CHUNK_PAGES).min(to.0);
            let chunk = self.chunk_or_new(Vpn(at));
            let mut words = lock(&chunk);
            let new = |p: &u64| words[index(Vpn(*p))].state() == State::None && !self.is_excluded(Vpn(*p));
            let new: Vec<u64> = (at..end).filter(new).collect();
            // Charged before they can be victims.
            self.group(engine).charge_adopted(new.len() as u64);
            self.count_resident(new.len() as i64);
            let mut lru = lock(&self.lru);
            for page in &new {
                let (resident, record) = self.fresh_resident(Vpn(*page), 0);
                words[index(Vpn(*page))] = resident;
                lru.push(record);
            }
            adopted += new.len() as u64;
            at = end;
        }
        adopted
    }

    /// These pages were shared since a fork, and are the process's own now: the next victims, before room is made by
    /// copying more.
    pub fn made_own(&self, pages: &[Vpn]) {
        for vpn in pages {
            let Some(chunk) = self.chunk(*vpn) else { continue };
            let word = &mut lock(&chunk)[index(*vpn)];
            if word.state() == State::Resident {
                *word = word.with(MADE_OWN);
                lock(&self.lru).push_oldest(Record::new(*vpn, word.stamp()));
            }
        }
    }

    /// MADV_COLD: the resident pages of [from, to) are the next victims, whatever was thought of them. Returns how many.
    pub fn cold(&self, from: Vpn, to: Vpn) -> usize {
        let mut records = Vec::new();
        self.for_range(from, to, |vpn, word| {
            if word.state() == State::Resident {
                // A new stamp, so that its old record is stale: else the queue would grow with each call.
                let (fresh, record) = self.fresh_resident(vpn, 0);
                *word = word.with_stamp(fresh.stamp()).with_heat(0);
                records.push(record);
            }
        });
        let pages = records.len();
        let mut lru = lock(&self.lru);
        records.into_iter().rev().for_each(|record| lru.push_oldest(record));
        pages
    }

    /// Victims of a batch that have no place to go: as before, and the next ones to be looked at. Returns those on which
    /// there was a fault meanwhile.
    pub(crate) fn put_back(&self, pages: &[Vpn]) -> Vec<Vpn> {
        let mut wanted = Vec::new();
        for vpn in pages.iter().rev() {
            let chunk = self.chunk_or_new(*vpn);
            let mut words = lock(&chunk);
            let word = &mut words[index(*vpn)];
            assert_eq!(word.state(), State::Evicting, "a victim changed under its batch");
            if word.has(WANTED) {
                wanted.push(*vpn);
            }
            *word = word.with_state(State::Resident).without(WANTED);
            lock(&self.lru).push_oldest(Record::new(*vpn, word.stamp()));
        }
        wanted
    }

    /// So many of the resident pages are in memory once and in several spaces: all but this space's share of them.
    pub fn set_discount(&self, engine: &Engine, pages: u64) {
        let before = self.discount_pages.swap(pages, Ordering::SeqCst);
        self.group(engine).change_discount(before, pages);
        // Released meanwhile: whichever of the two is later takes the figure away.
        if pages > 0 && self.dead.load(Ordering::SeqCst) {
            self.set_discount(engine, 0);
        }
    }

    /// Shared pages became this space's own: they are not counted twice any more.
    pub fn drop_discount(&self, engine: &Engine, pages: u64) {
        let drop = |d: u64| Some(d.saturating_sub(pages));
        let before = self.discount_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, drop).unwrap_or(0);
        self.group(engine).change_discount(before, before.saturating_sub(pages));
    }

    /// Now and then: pages that could not be taken as they were mapped get another chance, and stale LRU records go when
    /// they are the majority.
    pub fn tidy(&self) {
        self.unpark();
        self.sweep_beyond(2 * self.resident_pages() as usize + 4096);
    }

    /// Forget stale LRU records, if there are more than so many in all.
    fn sweep_beyond(&self, most: usize) {
        let stale = lock(&self.lru).len() > most;
        if stale {
            // Not under the LRU's lock: it comes after the chunks'.
            let mut records = std::mem::take(&mut *lock(&self.lru));
            records.sweep(|r| self.word(r.vpn()).state() == State::Resident && self.word(r.vpn()).stamp() == r.stamp());
            lock(&self.lru).put_before(records);
        }
    }

    fn unpark(&self) {
        // Taken apart from the loop, which would hold the lock until it ends: it comes after the chunks'.
        let parked = std::mem::take(&mut *lock(&self.parked));
        for vpn in parked {
            let Some(chunk) = self.chunk(vpn) else { continue };
            let word = lock(&chunk)[index(vpn)];
            if word.state() == State::Resident {
                lock(&self.lru).push(Record::new(vpn, word.stamp()));
            }
        }
    }

    /// The range is unmapped, or its pages were dropped: what was there is gone.
    pub fn unmap(&self, engine: &Engine, cpu: CpuId, from: Vpn, to: Vpn) {
        let mut entries = Vec::new();
        let (mut resident, mut swapped) = (0, 0);
        let mut displaced = Vec::new();
        self.for_range(from, to, |vpn, word| match word.state() {
            State::None => {}
            State::Resident => {
                resident += 1;
                entries.extend(word.held_entry());
                *word = Word::NONE;
            }
            State::Swapped => {
                swapped += 1;
                entries.push(word.entry());
                *word = Word::NONE;
            }
            // Its filler still reads the slot; it will see the mark, drop what it has and free the entry.
            State::Filling => {
                *word = word.with(CANCELLED);
                displaced.extend(lock(&self.displaced).remove(&vpn));
            }
            State::Poisoned => *word = Word::NONE,
            State::Evicting => panic!("an unmap is processed while a batch is being taken"),
        });
        for word in displaced {
            resident += u64::from(word.state() == State::Resident);
            swapped += i64::from(word.state() == State::Swapped);
            entries.extend(word.held_entry());
        }
        self.prune(from, to);
        self.group(engine).uncharge(cpu, resident);
        self.count_resident(-(resident as i64));
        self.count_swapped(-swapped);
        engine.free_entries(cpu, &entries);
    }

    /// mremap moved the mapping at `from` to `to`.
    pub fn remap(&self, engine: &Engine, cpu: CpuId, from: Vpn, to: Vpn, pages: u64) {
        let mut moved: Vec<(Vpn, Word)> = Vec::new();
        let mut dup: Vec<SwapEntry> = Vec::new();
        self.for_range(from, Vpn(from.0 + pages), |vpn, word| {
            let target = Vpn(to.0 + (vpn.0 - from.0));
            match word.state() {
                State::None => {}
                // The filler keeps its reference and ends at the old address; the new one gets a reference of its own.
                State::Filling => {
                    moved.extend(lock(&self.displaced).remove(&vpn).map(|w| (target, w)));
                    if word.has(HAS_ENTRY) && !word.has(CANCELLED) {
                        dup.push(word.entry());
                        moved.push((target, Word::swapped(word.entry())));
                    }
                    *word = word.with(CANCELLED);
                }
                State::Evicting => panic!("a remap is processed while a batch is being taken"),
                State::Resident | State::Swapped | State::Poisoned => {
                    moved.push((target, *word));
                    *word = Word::NONE;
                }
            }
        });
        engine.dup_entries(&dup);
        self.count_swapped(dup.len() as i64);
        // What the page table still says of the target range was unmapped by the same mremap.
        self.unmap(engine, cpu, to, Vpn(to.0 + pages));
        for (vpn, word) in moved {
            let chunk = self.chunk_or_new(vpn);
            let mut words = lock(&chunk);
            let there = &mut words[index(vpn)];
            if there.state() == State::Filling {
                // Claimed before the unmap above or since: either way what it brings is not what belongs here now.
                *there = there.with(CANCELLED);
                lock(&self.displaced).insert(vpn, word);
                continue;
            }
            words[index(vpn)] = self.settled(vpn, word);
        }
        self.prune(from, Vpn(from.0 + pages));
        // Each move leaves a stale record for each resident page: a program that moves memory often would fill ours.
        self.sweep_beyond(4 * self.resident_pages() as usize + 65536);
    }

    /// A word that comes to a new place: a resident page needs a stamp and a record of its own.
    pub(crate) fn settled(&self, vpn: Vpn, word: Word) -> Word {
        if word.state() != State::Resident {
            return word;
        }
        let (resident, record) = self.renewed(vpn, word, word.heat());
        lock(&self.lru).push(record);
        resident
    }

    /// The process forked: give the child a copy of the page table. Swapped pages are shared by count. Returns the pages
    /// that are resident in both, and so counted twice while they are one.
    pub fn fork_into(&self, engine: &Engine, cpu: CpuId, child: &Space) -> u64 {
        let (mut resident, mut swapped) = (0, 0);
        let chunks: Vec<(u64, Arc<Chunk>)> =
            self.chunks.read().expect("chunk map").iter().map(|(n, c)| (*n, c.clone())).collect();
        for (number, chunk) in chunks {
            let mut dup = Vec::new();
            let mut copy = [Word::NONE; CHUNK_PAGES as usize];
            {
                let words = lock(&chunk);
                for (i, word) in words.iter().enumerate() {
                    let displaced = lock(&self.displaced).get(&Vpn(number * CHUNK_PAGES + i as u64)).copied();
                    let word = displaced.as_ref().unwrap_or(word);
                    copy[i] = match word.state() {
                        // A kept copy stays the parent's.
                        State::Resident => {
                            resident += 1;
                            word.without_kept()
                        }
                        State::Swapped => *word,
                        State::Filling if word.has(HAS_ENTRY) && !word.has(CANCELLED) => {
                            Word::swapped(word.entry())
                        }
                        State::Poisoned => *word,
                        State::None | State::Filling => Word::NONE,
                        State::Evicting => panic!("a fork is processed while a batch is being taken"),
                    };
                    if copy[i].state() == State::Swapped {
                        swapped += 1;
                        dup.push(copy[i].entry());
                    }
                }
                // Under the chunk lock: the parent's reference cannot go before ours is there.
                engine.dup_entries(&dup);
            }
            let mut lru = lock(&child.lru);
            for (i, word) in copy.iter_mut().enumerate().filter(|(_, w)| w.state() == State::Resident) {
                let (fresh, record) = child.fresh_resident(Vpn(number * CHUNK_PAGES + i as u64), word.heat());
                *word = fresh;
                lru.push(record);
            }
            drop(lru);
            child.chunks.write().expect("chunk map").insert(number, Arc::new(Mutex::new(copy)));
        }
        child.count_resident(resident as i64);
        child.count_swapped(swapped);
        child.set_discount(engine, resident);
        child.group(engine).force_charge(cpu, resident);
        self.cow.store(true, Ordering::Relaxed);
        child.cow.store(true, Ordering::Relaxed);
        crate::stats::add(&engine.stats.rare().forks, 1);
        resident
    }

    /// Pages of [from, to) of which the page table knows something, at most so many.
    pub fn known(&self, from: Vpn, to: Vpn, most: usize) -> Vec<Vpn> {
        let mut known = Vec::new();
        self.for_range(from, to, |vpn, word| {
            if word.state() != State::None && known.len() < most {
                known.push(vpn);
            }
        });
        known
    }

    /// These pages are not there.
    pub fn drop_pages(&self, engine: &Engine, cpu: CpuId, pages: &[Vpn]) {
        pages.iter().for_each(|vpn| self.unmap(engine, cpu, *vpn, Vpn(vpn.0 + 1)));
    }

    /// What belongs on these pages cannot be said: whoever touches one that is not in memory gets SIGBUS.
    pub fn lose_pages(&self, engine: &Engine, cpu: CpuId, pages: &[Vpn]) {
        self.drop_pages(engine, cpu, pages);
        for vpn in pages {
            lock(&self.chunk_or_new(*vpn))[index(*vpn)] = Word::NONE.with_state(State::Poisoned);
        }
    }

    /// The address space is gone: free all that it held. A fill that is still under way ends by itself.
    pub fn release(&self, engine: &Engine, cpu: CpuId) {
        self.dead.store(true, Ordering::SeqCst);
        self.unmap(engine, cpu, Vpn(0), Vpn(1 << 52));
        self.set_discount(engine, 0);
        *lock(&self.lru) = Lru::default();
        lock(&self.parked).clear();
    }

    /// Where the page table has anything: whole chunks, ascending, those in a row as one.
    pub fn extents(&self) -> Vec<(Vpn, Vpn)> {
        let mut extents: Vec<(Vpn, Vpn)> = Vec::new();
        for number in self.chunks.read().expect("chunk map").keys() {
            let (from, to) = (Vpn(number * CHUNK_PAGES), Vpn((number + 1) * CHUNK_PAGES));
            match extents.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ => extents.push((from, to)),
            }
        }
        extents
    }

    /// The first chunk of the page table from number `from` on.
    pub(crate) fn next_chunk(&self, from: u64) -> Option<u64> {
        self.chunks.read().expect("chunk map").range(from..).next().map(|(number, _)| *number)
    }

    /// The words of one chunk, and those that wait there for a filler to end, under the chunk's lock.
    pub(crate) fn visit_chunk(&self, number: u64, mut visit: impl FnMut(&mut Word)) {
        let first = Vpn(number * CHUNK_PAGES);
        let Some(chunk) = self.chunk(first) else { return };
        let mut words = lock(&chunk);
        words.iter_mut().for_each(&mut visit);
        lock(&self.displaced).range_mut(first..Vpn(first.0 + CHUNK_PAGES)).for_each(|(_, word)| visit(word));
    }

    /// Every word, those included that wait for a filler to end; for the checker.
    pub(crate) fn each_word(&self, mut visit: impl FnMut(Vpn, Word)) {
        self.for_range(Vpn(0), Vpn(1 << 52), |vpn, word| visit(vpn, *word));
        lock(&self.displaced).iter().for_each(|(vpn, word)| visit(*vpn, *word));
    }
}

/// Position of a page in its chunk.
pub(crate) fn index(vpn: Vpn) -> usize {
    (vpn.0 % CHUNK_PAGES) as usize
}

fn add_signed(counter: &AtomicU64, n: i64) {
    let before = counter.fetch_add(n as u64, Ordering::Relaxed);
    debug_assert!(before.checked_add_signed(n).is_some(), "counter {before} + {n}");
}
