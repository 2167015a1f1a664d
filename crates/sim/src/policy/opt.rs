//! The bound: who is used again last leaves (Belady 1966), which takes the whole trace to know.

use super::machine::{Outcome, Page};
use std::collections::BinaryHeap;

/// Never again.
const NEVER: u32 = u32::MAX;

pub fn opt(accesses: &[Page], pages: u32, memory: u32) -> Outcome {
    let mut next_use = vec![NEVER; accesses.len()];
    let mut due = vec![NEVER; pages as usize];
    for (i, page) in accesses.iter().enumerate().rev() {
        next_use[i] = std::mem::replace(&mut due[*page as usize], i as u32);
    }
    // By page from now on: when it is due, as far as it is resident.
    let (mut resident, mut count) = (vec![false; pages as usize], 0);
    let mut was_here = vec![false; pages as usize];
    // A page whose due time has changed since is there again, with the later one.
    let mut by_due: BinaryHeap<(u32, Page)> = BinaryHeap::new();
    let mut outcome = Outcome::default();
    for (page, next) in accesses.iter().zip(&next_use) {
        let at = *page as usize;
        due[at] = *next;
        by_due.push((*next, *page));
        if resident[at] {
            continue;
        }
        match std::mem::replace(&mut was_here[at], true) {
            false => outcome.fresh += 1,
            true => outcome.faults += 1,
        }
        resident[at] = true;
        if count < memory {
            count += 1;
            continue;
        }
        // The page that has come is no victim, though it may be the one that is due last.
        let mut own = None;
        loop {
            let (when, victim) = by_due.pop().expect("memory holds other pages");
            if victim == *page {
                own = own.max(Some((when, victim)));
            } else if resident[victim as usize] && due[victim as usize] == when {
                resident[victim as usize] = false;
                break;
            }
        }
        by_due.extend(own.filter(|(when, _)| *when == *next));
    }
    outcome.with_time(accesses.len())
}
