//! What the changes of an address space mean for its page table: unmap, remap, fork, exit.
//!
//! The caller is alone in the gate, and no batch of this space is being taken. So no page is EVICTING, and no
//! fill is between its check and its end.
//!
//! A page that is FILLING belongs to its filler: a change only marks it CANCELLED, and the filler drops what
//! it has when it comes to install it. A word that a change has to put at such a page waits in `displaced`
//! until then. (With a generation in the FILLING word a change could overwrite the word. But then no word
//! would name the slot that the filler still holds, and the checker would need a list of those slots in place
//! of `displaced`; and a generation of 16 bits could come round while a slow device still reads.)

use super::{CHUNK_PAGES, Chunk, Space, index};
use crate::swap::Swap;
use crate::sync::{Arc, Mutex, Ordering, lock};
use crate::units::{CpuId, Vpn};
use crate::word::{CANCELLED, HAS_ENTRY, State, SwapEntry, Word};

impl Space {
    /// The range is unmapped, or its pages were dropped: what was there is gone.
    pub fn unmap(&self, swap: &Swap, cpu: CpuId, from: Vpn, to: Vpn) {
        let mut entries = Vec::new();
        let (mut resident, mut swapped) = (0, 0);
        let mut displaced = Vec::new();
        self.visit_words(from, to, |vpn, word| match word.state() {
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
        self.group(swap).uncharge(cpu, resident);
        self.count_resident(-(resident as i64));
        self.count_swapped(-swapped);
        swap.free(cpu, &entries);
    }

    /// mremap moved the mapping at `from` to `to`.
    pub fn remap(&self, swap: &Swap, cpu: CpuId, from: Vpn, to: Vpn, pages: u64) {
        let mut moved: Vec<(Vpn, Word)> = Vec::new();
        let mut dup: Vec<SwapEntry> = Vec::new();
        self.visit_words(from, Vpn(from.0 + pages), |vpn, word| {
            let target = Vpn(to.0 + (vpn.0 - from.0));
            match word.state() {
                State::None => {}
                // The filler keeps its reference and ends at the old address; the new one gets a reference of
                // its own.
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
        swap.dup(&dup);
        self.count_swapped(dup.len() as i64);
        // The same mremap has unmapped everything that the page table still says of the target range.
        self.unmap(swap, cpu, to, Vpn(to.0 + pages));
        for (vpn, word) in moved {
            let chunk = self.chunk_or_new(vpn);
            let mut words = lock(&chunk);
            let there = &mut words[index(vpn)];
            if there.state() == State::Filling {
                // Claimed before the unmap above or after it: in either case its filler brings bytes that do
                // not belong here any more.
                *there = there.with(CANCELLED);
                lock(&self.displaced).insert(vpn, word);
                continue;
            }
            words[index(vpn)] = self.settled(vpn, word);
        }
        self.prune(from, Vpn(from.0 + pages));
        // Each move leaves a stale record for each resident page: a program that moves its memory often would
        // fill our memory with them.
        self.sweep_beyond(4 * self.resident_pages() as usize + 65536);
    }

    /// The word for its new address: a resident page gets a new stamp and an LRU record.
    fn settled(&self, vpn: Vpn, word: Word) -> Word {
        if word.state() != State::Resident {
            return word;
        }
        let (resident, record) = self.renewed(vpn, word, word.heat());
        lock(&self.lru).push(record, false);
        resident
    }

    /// The new word of a claimed page that was not filled: the one of a page that came here while the filler
    /// was at work, else `word`.
    pub(crate) fn displaced_or(&self, vpn: Vpn, word: Word) -> Word {
        let displaced = lock(&self.displaced).remove(&vpn);
        displaced.map_or(word, |moved| self.settled(vpn, moved))
    }

    /// Pages at which a word waits for a filler to end.
    pub(crate) fn displaced_pages(&self) -> Vec<Vpn> {
        lock(&self.displaced).keys().copied().collect()
    }

    /// The process forked: give the child a copy of the page table. Swapped pages are shared by count.
    /// Returns the pages that are resident in both, and so counted twice while they are one.
    pub fn fork_into(&self, swap: &Swap, cpu: CpuId, child: &Space) -> u64 {
        let (mut resident, mut swapped) = (0u64, 0i64);
        let chunks: Vec<(u64, Arc<Chunk>)> =
            self.chunks.read().expect("chunk map").iter().map(|(n, c)| (*n, c.clone())).collect();
        for (number, chunk) in chunks {
            let mut copy = self.copy_chunk(swap, number, &chunk);
            resident += copy.iter().filter(|word| word.state() == State::Resident).count() as u64;
            swapped += copy.iter().filter(|word| word.state() == State::Swapped).count() as i64;
            let mut lru = lock(&child.lru);
            for (i, word) in copy.iter_mut().enumerate().filter(|(_, w)| w.state() == State::Resident) {
                let (fresh, record) = child.fresh_resident(Vpn(number * CHUNK_PAGES + i as u64), word.heat());
                *word = fresh;
                lru.push(record, false);
            }
            drop(lru);
            child.chunks.write().expect("chunk map").insert(number, Arc::new(Mutex::new(copy)));
        }
        child.count_resident(resident as i64);
        child.count_swapped(swapped);
        child.set_discount(swap, resident);
        child.group(swap).force_charge(cpu, resident);
        self.cow.store(true, Ordering::Relaxed);
        child.cow.store(true, Ordering::Relaxed);
        crate::stats::add(&swap.stats.rare().forks, 1);
        resident
    }

    /// A chunk's words as the child of a fork has them, with a reference of its own to each slot.
    pub(super) fn copy_chunk(&self, swap: &Swap, number: u64, chunk: &Chunk) -> [Word; CHUNK_PAGES as usize] {
        let mut dup = Vec::new();
        let mut copy = [Word::NONE; CHUNK_PAGES as usize];
        let words = lock(chunk);
        for (i, word) in words.iter().enumerate() {
            let displaced = lock(&self.displaced).get(&Vpn(number * CHUNK_PAGES + i as u64)).copied();
            let word = displaced.as_ref().unwrap_or(word);
            copy[i] = match word.state() {
                // A kept copy stays the parent's.
                State::Resident => word.without_kept(),
                State::Swapped => *word,
                State::Filling if word.has(HAS_ENTRY) && !word.has(CANCELLED) => Word::swapped(word.entry()),
                State::Poisoned => *word,
                State::None | State::Filling => Word::NONE,
                State::Evicting => panic!("a fork is processed while a batch is being taken"),
            };
            if copy[i].state() == State::Swapped {
                dup.push(copy[i].entry());
            }
        }
        // Under the chunk lock: the parent's reference cannot go before ours is there.
        swap.dup(&dup);
        copy
    }

    /// Forget these pages: they read as zero.
    pub fn drop_pages(&self, swap: &Swap, cpu: CpuId, pages: &[Vpn]) {
        pages.iter().for_each(|vpn| self.unmap(swap, cpu, *vpn, Vpn(vpn.0 + 1)));
    }

    /// Mark pages whose contents cannot be known: an access to one that is not in memory gets SIGBUS.
    pub fn lose_pages(&self, swap: &Swap, cpu: CpuId, pages: &[Vpn]) {
        self.drop_pages(swap, cpu, pages);
        for vpn in pages {
            lock(&self.chunk_or_new(*vpn))[index(*vpn)] = Word::NONE.with_state(State::Poisoned);
        }
    }

    /// The address space is gone: free all that it held. A fill that is still under way ends by itself.
    pub fn release(&self, swap: &Swap, cpu: CpuId) {
        self.dead.store(true, Ordering::SeqCst);
        self.unmap(swap, cpu, Vpn(0), Vpn(1 << 52));
        self.set_discount(swap, 0);
        lock(&self.lru).clear();
        lock(&self.parked).clear();
    }
}
