//! The page table of a child that is made in two steps: where the kernel does not tell of forks, the process
//! itself says that it is about to fork, and its child says later that it is there.
//!
//! ```text
//!   about to fork   copy_slots_to   what is SWAPPED, or being brought: so in the child, with a reference of
//!                                   its own to each slot; what is in memory is only listed
//!   it has forked   brought_since   what the parent has brought in between, and the child may have in memory
//!   the child came  settle          what the child has in memory is RESIDENT, and gives its slot back
//! ```
//!
//! Between the first step and the last nothing may be taken out of the parent before it has forked, and
//! the child is a space of the engine, so that swapoff and the checker meet its slots; but it has no
//! memory yet: it is set aside, and nothing is put into it.
//!
//! What it does not do: find out what the child has in memory, or judge whether it can have that.

use super::{CHUNK_PAGES, Chunk, Space};
use crate::swap::Swap;
use crate::sync::{Arc, Mutex, Ordering, lock};
use crate::units::{CpuId, Vpn};
use crate::word::{State, Word};

/// Pages in a row, [from, to).
pub type Run = (Vpn, Vpn);

fn push(runs: &mut Vec<Run>, vpn: Vpn) {
    match runs.last_mut() {
        Some(last) if last.1 == vpn => last.1 = Vpn(vpn.0 + 1),
        _ => runs.push((vpn, Vpn(vpn.0 + 1))),
    }
}

impl Space {
    /// This process is about to fork: give the child, which is empty, a copy of the page table without
    /// what is in memory. Returns that.
    ///
    /// The caller is alone in the gate, and no batch of this space is being taken.
    pub fn copy_slots_to(&self, swap: &Swap, child: &Space) -> Vec<Run> {
        let mut resident = Vec::new();
        for (number, chunk) in self.all_chunks() {
            let mut copy = self.copy_chunk(swap, number, &chunk);
            for (i, word) in copy.iter_mut().enumerate().filter(|(_, word)| word.state() == State::Resident) {
                push(&mut resident, Vpn(number * CHUNK_PAGES + i as u64));
                *word = Word::NONE;
            }
            let swapped = copy.iter().filter(|word| word.state() == State::Swapped).count();
            if copy.iter().any(|word| word.state() != State::None) {
                child.chunks.write().expect("chunk map").insert(number, Arc::new(Mutex::new(copy)));
                child.count_swapped(swapped as i64);
            }
        }
        crate::stats::add(&swap.stats.rare().forks, 1);
        resident
    }

    /// Pages that are SWAPPED in the child, and not in this space any more.
    pub fn brought_since(&self, child: &Space) -> Vec<Run> {
        let mut brought = Vec::new();
        for (number, chunk) in child.all_chunks() {
            let theirs = *lock(&chunk);
            let ours = self.chunk(Vpn(number * CHUNK_PAGES));
            let ours = ours.map_or([Word::NONE; CHUNK_PAGES as usize], |chunk| *lock(&chunk));
            for (i, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
                if theirs.state() == State::Swapped && ours.state() != State::Swapped {
                    push(&mut brought, Vpn(number * CHUNK_PAGES + i as u64));
                }
            }
        }
        brought
    }

    /// Pages of [from, to) that are SWAPPED.
    pub fn swapped_in(&self, from: Vpn, to: Vpn) -> Vec<Run> {
        let mut swapped = Vec::new();
        self.visit_words(from, to, |vpn, word| {
            if word.state() == State::Swapped {
                push(&mut swapped, vpn);
            }
        });
        swapped
    }

    /// This is a child that has these pages in memory, which it shares with its parent.
    pub fn settle(&self, swap: &Swap, cpu: CpuId, parent: &Space, present: &[Run]) {
        let mut resident = 0;
        // Before they are charged: who looks meanwhile is not to count them twice.
        self.set_discount(swap, present.iter().map(|(from, to)| to.0 - from.0).sum());
        for (from, to) in present {
            self.unmap(swap, cpu, *from, *to);
            resident += self.adopt(swap, *from, *to);
        }
        self.set_discount(swap, resident);
        parent.cow.store(true, Ordering::Relaxed);
        self.cow.store(true, Ordering::Relaxed);
    }

    fn all_chunks(&self) -> Vec<(u64, Arc<Chunk>)> {
        self.chunks.read().expect("chunk map").iter().map(|(n, c)| (*n, c.clone())).collect()
    }
}
