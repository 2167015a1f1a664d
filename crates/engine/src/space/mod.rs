//! One address space: its page table, its LRU, its gate, and the changes that events bring.
//!
//! The page table is a map from chunk (2 MiB of addresses) to 512 words under one lock, the kernel's page of
//! PTEs and its lock. 8 bytes a page, only for chunks in which something was ever managed.
//!
//! Lock order: gate → chunk map → chunk → LRU, streams, trust, pointers. Two chunk locks are never held at
//! once.
//!
//! Elsewhere: what events change (changes.rs), forks of which no event tells (child.rs), the choice of
//! victims (reclaim/victim.rs).

mod changes;
mod child;

use crate::gate::Gate;
use crate::group::Group;
use crate::memory::Memory;
use crate::pointers::Pointers;
use crate::readahead::HitWindow;
use crate::reclaim::lru::Record;
use crate::reclaim::queues::{Queues, Return, Source, Ways};
use crate::reclaim::turn::Turn;
use crate::swap::Swap;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, RwLock, lock};
use crate::trust::Trust;
use crate::units::{SpaceId, Vpn};
use crate::word::{CANCELLED, MADE_OWN, ON_TRIAL, STAMP_MASK, State, SwapEntry, WANTED, Word};
use memspill_common::streams::Streams;
use std::collections::BTreeMap;

/// Pages in a chunk of the page table (2 MiB).
pub const CHUNK_PAGES: u64 = 512;
/// Pages that share a stamp. Coarse, so that 16 bits of stamp span 4 million pages; the price is that a page
/// which leaves and comes back within 64 arrivals may have two live records, and leave a little early.
const STAMP_SHIFT: u32 = 6;
/// Pages that a space is charged for when it is picked for a batch.
const PICKED_PAGES: u64 = 64;

/// The words of a chunk, under its lock.
pub type Chunk = Mutex<[Word; CHUNK_PAGES as usize]>;

pub struct Space {
    pub id: SpaceId,
    pub memory: Arc<dyn Memory>,
    /// None: the root.
    group: Option<Arc<Group>>,
    pub gate: Gate,
    lru: Mutex<Queues>,
    streams: Mutex<Streams>,
    trust: Mutex<Trust>,
    window: HitWindow,
    pointers: Mutex<Pointers>,
    chunks: RwLock<BTreeMap<u64, Arc<Chunk>>>,
    next_stamp: AtomicU64,
    /// Ranges that are never managed, whatever their words say (the agent's own pages).
    excluded: RwLock<Vec<(Vpn, Vpn)>>,
    /// Words of pages that came to where a filler was still at work for what was there before (by mremap, or
    /// found by a scan): the filler puts them there when it ends.
    displaced: Mutex<BTreeMap<Vpn, Word>>,
    turn: Turn,
    /// Pages that are being brought because others have named them (predict.rs).
    named_under_way: AtomicU64,
    /// Pages of this space that are charged: RESIDENT, EVICTING (until taken) and FILLING.
    resident_pages: AtomicU64,
    swapped_pages: AtomicU64,
    /// Pages that reclaim found unevictable; tried again now and then.
    parked: Mutex<Vec<Vpn>>,
    /// Pages may be shared with another process since a fork: take them with copy-on-write broken.
    pub cow: AtomicBool,
    /// The resident pages that are counted elsewhere too. The group's discount is the sum over all spaces, so
    /// that it follows when one comes or goes.
    discount_pages: AtomicU64,
    dead: AtomicBool,
}

impl Space {
    pub fn new(id: SpaceId, memory: Arc<dyn Memory>) -> Space {
        Space {
            id,
            memory,
            group: None,
            gate: Gate::new(),
            lru: Mutex::new(Queues::default()),
            streams: Mutex::new(Streams::empty()),
            trust: Mutex::new(Trust::default()),
            window: HitWindow::default(),
            pointers: Mutex::new(Pointers::default()),
            chunks: RwLock::new(BTreeMap::new()),
            next_stamp: AtomicU64::new(1),
            excluded: RwLock::new(Vec::new()),
            displaced: Mutex::new(BTreeMap::new()),
            turn: Turn::new(),
            named_under_way: AtomicU64::new(0),
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
    pub fn group<'a>(&'a self, swap: &'a Swap) -> &'a Arc<Group> {
        self.group.as_ref().unwrap_or(swap.root())
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

    pub(crate) fn set_dead(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Never manage these ranges.
    pub fn exclude(&self, ranges: Vec<(Vpn, Vpn)>) {
        *self.excluded.write().expect("excluded") = ranges;
    }
    pub(crate) fn is_excluded(&self, vpn: Vpn) -> bool {
        self.excluded.read().expect("excluded").iter().any(|(from, to)| (*from..*to).contains(&vpn))
    }

    // ---- its turn among the spaces ------------------------------------------------------------------------

    pub(crate) fn pass(&self) -> f64 {
        self.turn.pass()
    }
    /// It is picked for a batch. One that has less gives all of it: it is charged for no more, or it would be
    /// so far ahead when it has grown that others had to give all that they have first.
    pub(crate) fn charge_pick(&self) {
        let part = PICKED_PAGES as f64 / self.resident_pages().max(PICKED_PAGES) as f64;
        self.turn.charge(self.turn.page_weight() * part);
    }
    /// From now on reclaim takes less than its share from this space, because it uses what it has; or its
    /// share again.
    pub fn spare(&self, spared: bool) {
        self.turn.spare(spared);
    }
    /// This space cannot give pages until further notice, because its process stands still: reclaim does not
    /// pick it, and so is not held up by it. With `aside` false it can again, and its turn comes as a new
    /// space's does, whatever it missed.
    pub fn set_aside(&self, aside: bool, all: &[Arc<Space>]) {
        if self.turn.set_aside(aside) && !aside {
            self.start_level_with(all);
        }
    }
    pub fn is_aside(&self) -> bool {
        self.turn.is_aside()
    }
    /// It was asked for a batch, and gave some pages or none. If none, it rests: the others are asked before
    /// it, until `Engine::end_rests`. (The cost of a pick would not do as a measure. It costs a small space
    /// all that it has, and a large one that has nothing to give, such as locked shared memory, next to
    /// nothing: that one was asked forty times for each batch.)
    pub fn note_asked(&self, gave: bool) {
        self.turn.note_asked(gave);
    }
    pub(crate) fn rests(&self) -> bool {
        self.turn.rests()
    }
    /// Level with those that give, of which this is the least pass.
    pub(crate) fn end_rest(&self, least: f64) {
        self.turn.set_pass(self.pass().max(least));
        self.turn.end_rest();
    }
    pub(crate) fn may_be_asked(&self) -> bool {
        !self.is_dead() && !self.is_aside() && self.resident_pages() > 0
    }
    /// It gave nothing when it was asked last.
    pub fn is_dry(&self) -> bool {
        self.turn.is_dry()
    }
    /// Start with the least pass of the others that give, so that a space that was not asked so far gives
    /// neither less nor more than they do from now on. The pass of one that gives nothing stands still: level
    /// with that, this space would have to give all at first.
    pub fn start_level_with(&self, all: &[Arc<Space>]) {
        let others = all.iter().filter(|s| s.id != self.id);
        self.turn.set_pass(self.pass().max(least_pass(others)));
    }

    // ---- words --------------------------------------------------------------------------------------------

    /// Bytes of the page table, and of the queues.
    pub fn table_bytes(&self) -> (u64, u64) {
        let chunks = self.chunks.read().expect("chunk map").len() as u64;
        (chunks * (size_of::<Chunk>() as u64 + 64), lock(&self.lru).bytes())
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

    /// How many stamps ago the page came in.
    pub(crate) fn age_of(&self, word: Word) -> u64 {
        let now = self.next_stamp.load(Ordering::Relaxed) >> STAMP_SHIFT;
        now.wrapping_sub(word.stamp()) & STAMP_MASK
    }

    /// The streams in which its faults come.
    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        lock(&self.streams)
    }

    /// How many of the pages that come with them are touched.
    pub(crate) fn trust(&self) -> MutexGuard<'_, Trust> {
        lock(&self.trust)
    }

    /// The pages around its faults that are read ahead.
    pub(crate) fn window(&self) -> &HitWindow {
        &self.window
    }

    /// What of the pages that its pages name is touched soon.
    pub(crate) fn pointers(&self) -> MutexGuard<'_, Pointers> {
        lock(&self.pointers)
    }

    /// Are pages brought that others name?
    pub fn follows_names(&self) -> bool {
        self.pointers().are_followed(self.stamp_now())
    }

    /// The sizes of windows of which too little is touched. Bit n: of 2^n pages up to 2^(n + 1).
    pub fn distrusted_windows(&self) -> u64 {
        self.trust().distrusted()
    }

    /// The stamp of a page that comes in now.
    pub(crate) fn stamp_now(&self) -> u64 {
        self.next_stamp.load(Ordering::Relaxed) >> STAMP_SHIFT
    }

    /// About so many stamps pass from when a page comes in to when it leaves, if it is not touched again.
    pub(crate) fn stay_stamps(&self) -> u64 {
        self.resident_pages() >> STAMP_SHIFT
    }

    // ---- the queues of its resident pages -----------------------------------------------------------------

    /// Two ways in which pages leave are tried on parts of it (reclaim/queues.rs).
    pub(crate) fn let_duel(&self, budget_bytes: u64) {
        lock(&self.lru).let_duel(budget_bytes);
    }
    pub(crate) fn ways(&self) -> Ways {
        lock(&self.lru).ways(self.resident_pages())
    }
    pub(crate) fn pop_next(&self) -> Option<(Record, Source)> {
        lock(&self.lru).pop()
    }
    pub(crate) fn push_next(&self, record: Record) {
        lock(&self.lru).push_next(record);
    }
    pub(crate) fn was_stale(&self, source: Source) {
        lock(&self.lru).was_stale(source);
    }
    pub(crate) fn gone_with(&self, vpn: Vpn, on_trial: bool, pages: usize) {
        lock(&self.lru).gone_with(vpn, on_trial, pages);
    }
    pub(crate) fn push_youngest(&self, records: impl IntoIterator<Item = Record>) {
        let mut lru = lock(&self.lru);
        records.into_iter().for_each(|record| lru.push(record, false));
    }
    /// Pages that have come, with those on trial told; and those of them that were swapped out.
    pub(crate) fn push_arrivals(&self, records: &[(Record, bool)], came_back: impl Iterator<Item = Return>) {
        let mut lru = lock(&self.lru);
        records.iter().for_each(|(record, on_trial)| lru.push(*record, *on_trial));
        lru.keep_score(came_back);
    }
    /// Pages that reclaim may look at.
    pub fn evictable(&self) -> usize {
        lock(&self.lru).len()
    }
    /// Put a page aside that cannot be taken as it is mapped now; `tidy` gives it another chance.
    pub(crate) fn park(&self, vpn: Vpn) {
        lock(&self.parked).push(vpn);
    }

    pub(crate) fn count_resident(&self, pages: i64) {
        add_signed(&self.resident_pages, pages);
    }
    pub(crate) fn count_swapped(&self, pages: i64) {
        add_signed(&self.swapped_pages, pages);
    }

    pub(crate) fn count_named_under_way(&self, pages: i64) {
        add_signed(&self.named_under_way, pages);
    }
    /// Pages are being brought because others have named them.
    pub fn named_under_way(&self) -> u64 {
        self.named_under_way.load(Ordering::Relaxed)
    }
    /// May another one be?
    pub(crate) fn has_room_for_named(&self) -> bool {
        self.named_under_way() < self.memory.room_for_unasked()
    }

    /// Give up kept copies of resident pages until there are `want` of them. Returns them; the caller drops
    /// their references.
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

    /// The first page at or after `from` of which the page table may know something.
    pub fn known_from(&self, from: Vpn) -> Option<Vpn> {
        self.chunk_from(from).map(|(first, _)| first.max(from))
    }

    /// Visit the words of [from, to) that lie in existing chunks, one chunk lock at a time.
    pub(crate) fn visit_words(&self, from: Vpn, to: Vpn, mut visit: impl FnMut(Vpn, &mut Word)) {
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

    /// Pages found present by a scan and not yet known: charge them and put them into the LRU. One whose word
    /// is still claimed by a filler for what was mapped there before waits in `displaced` for that one's end.
    /// Returns how many.
    pub fn adopt(&self, swap: &Swap, from: Vpn, to: Vpn) -> u64 {
        let mut adopted = 0;
        let mut at = from.0;
        while at < to.0 {
            let end = ((at / CHUNK_PAGES + 1) * CHUNK_PAGES).min(to.0);
            let chunk = self.chunk_or_new(Vpn(at));
            let mut words = lock(&chunk);
            let mut displaced = lock(&self.displaced);
            let is_new = |vpn: &Vpn| {
                let word = words[index(*vpn)];
                let is_unknown = match word.state() {
                    State::None => true,
                    State::Filling => word.has(CANCELLED) && !displaced.contains_key(vpn),
                    _ => false,
                };
                is_unknown && !self.is_excluded(*vpn)
            };
            let new: Vec<Vpn> = (at..end).map(Vpn).filter(is_new).collect();
            // Charged before they can be victims.
            self.group(swap).charge_adopted(new.len() as u64);
            self.count_resident(new.len() as i64);
            let mut records = Vec::with_capacity(new.len());
            for vpn in &new {
                let (resident, record) = self.fresh_resident(*vpn, 0);
                let word = &mut words[index(*vpn)];
                if word.state() == State::Filling {
                    displaced.insert(*vpn, resident);
                } else {
                    *word = resident;
                    records.push(record);
                }
            }
            drop(displaced);
            self.push_youngest(records);
            adopted += new.len() as u64;
            at = end;
        }
        adopted
    }

    /// Note that these pages, which were shared since a fork, are the process's own now. They become the next
    /// victims, so that the room comes from them and not from copying more shared pages.
    pub fn mark_own(&self, pages: &[Vpn]) {
        for vpn in pages {
            let Some(chunk) = self.chunk(*vpn) else { continue };
            let word = &mut lock(&chunk)[index(*vpn)];
            if word.state() == State::Resident {
                *word = word.with(MADE_OWN);
                lock(&self.lru).push_next(Record::new(*vpn, word.stamp()));
            }
        }
    }

    /// MADV_COLD: make the resident pages of [from, to), hot ones too, the next victims. Returns how many.
    pub fn make_cold(&self, from: Vpn, to: Vpn) -> usize {
        let mut records = Vec::new();
        self.visit_words(from, to, |vpn, word| {
            if word.state() == State::Resident {
                // A new stamp, so that its old record is stale: else the queue would grow with each call.
                let (fresh, record) = self.fresh_resident(vpn, 0);
                *word = word.with_stamp(fresh.stamp()).with_heat(0).without(ON_TRIAL);
                records.push(record);
            }
        });
        let pages = records.len();
        let mut lru = lock(&self.lru);
        records.into_iter().rev().for_each(|record| lru.push_next(record));
        pages
    }

    /// Make victims for which there is no slot RESIDENT again; they are the next victims. Returns those on
    /// which there was a fault meanwhile.
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
            lock(&self.lru).push_next(Record::new(*vpn, word.stamp()));
        }
        wanted
    }

    /// Set the discount: pages that are resident here and in other spaces, but in memory once, less this
    /// space's share of them.
    pub fn set_discount(&self, swap: &Swap, pages: u64) {
        let before = self.discount_pages.swap(pages, Ordering::SeqCst);
        self.group(swap).change_discount(before, pages);
        // The space may have been released meanwhile: whichever of the two comes later clears the figure.
        if pages > 0 && self.dead.load(Ordering::SeqCst) {
            self.set_discount(swap, 0);
        }
    }

    /// See `set_discount`.
    pub fn discount_pages(&self) -> u64 {
        self.discount_pages.load(Ordering::Relaxed)
    }

    /// Discount less, as far as so much is discounted here. Returns how much.
    pub(crate) fn drop_discount(&self, swap: &Swap, pages: u64) -> u64 {
        let drop = |d: u64| Some(d.saturating_sub(pages));
        let before =
            self.discount_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, drop).unwrap_or(0);
        let dropped = before.min(pages);
        self.group(swap).change_discount(before, before - dropped);
        dropped
    }

    /// To be called now and then: pages that could not be taken as they were mapped get another chance, and
    /// stale LRU records are dropped when they are the majority.
    pub fn tidy(&self) {
        self.unpark();
        self.sweep_beyond(2 * self.resident_pages() as usize + 4096);
    }

    /// Forget stale LRU records, if there are more than so many in all.
    fn sweep_beyond(&self, most: usize) {
        let stale = lock(&self.lru).len() > most;
        if stale {
            // Not under the LRU's lock: it comes after the chunks'.
            let mut records = lock(&self.lru).take_records();
            records.iter_mut().for_each(|records| {
                records.sweep(|r| {
                    self.word(r.vpn()).state() == State::Resident && self.word(r.vpn()).stamp() == r.stamp()
                });
            });
            lock(&self.lru).put_back_records(records);
        }
    }

    fn unpark(&self) {
        // Taken before the loop: in its head the lock would be held until it ends, and its order is after the
        // chunks'.
        let parked = std::mem::take(&mut *lock(&self.parked));
        for vpn in parked {
            let Some(chunk) = self.chunk(vpn) else { continue };
            let word = lock(&chunk)[index(vpn)];
            if word.state() == State::Resident {
                lock(&self.lru).push(Record::new(vpn, word.stamp()), false);
            }
        }
    }

    /// Pages of [from, to) of which the page table knows something, at most so many.
    pub fn known_pages(&self, from: Vpn, to: Vpn, most: usize) -> Vec<Vpn> {
        let mut known = Vec::new();
        self.visit_words(from, to, |vpn, word| {
            if word.state() != State::None && known.len() < most {
                known.push(vpn);
            }
        });
        known
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
    pub(crate) fn visit_all_words(&self, mut visit: impl FnMut(Vpn, Word)) {
        self.visit_words(Vpn(0), Vpn(1 << 52), |vpn, word| visit(vpn, *word));
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

/// The least pass of those that give; 0 if none does.
pub(crate) fn least_pass<'a>(spaces: impl Iterator<Item = &'a Arc<Space>>) -> f64 {
    let gives = |s: &&Arc<Space>| !s.rests() && s.may_be_asked() && s.evictable() > 0;
    let least = spaces.filter(gives).map(|s| s.pass()).fold(f64::INFINITY, f64::min);
    if least.is_finite() { least } else { 0.0 }
}
