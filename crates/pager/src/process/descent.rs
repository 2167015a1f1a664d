//! The descent of a fork's child: by what it is found out which process it is, and whether it has all that
//! its parent had.
//!
//! The kernel tells of a fork before there is a process that could be asked. The child's first fault comes
//! from its parent's ident page, which is missing in each child; random bytes that are put there are in the
//! child's memory and in nobody else's. How that is done is told in `faults/fork.rs`.

use crate::proc::Proof;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// What is known of a child at the fork.
pub struct Descent {
    /// By which it is found out which process it is. The page is its parent's ident page.
    pub proof: Proof,
    /// It could not be found out what it has where: whatever it lacks is lost.
    pub hopeless: bool,
    /// It may not have all of its parent's memory: to be looked at before its first fault is served.
    inherits_in_part: AtomicBool,
    first_look: Mutex<()>,
}

impl Descent {
    pub fn new(proof: Proof, hopeless: bool, inherits_in_part: bool) -> Descent {
        let inherits_in_part = AtomicBool::new(inherits_in_part);
        Descent { proof, hopeless, inherits_in_part, first_look: Mutex::new(()) }
    }

    /// Is all that its page table has inherited in its memory too?
    pub fn is_whole(&self) -> bool {
        !self.inherits_in_part.load(Ordering::Acquire)
    }

    /// The parts that it has not inherited are forgotten.
    pub fn set_whole(&self) {
        self.inherits_in_part.store(false, Ordering::Release);
    }

    /// To be held while it is found out what the child is and has.
    pub fn first_look(&self) -> MutexGuard<'_, ()> {
        self.first_look.lock().expect("first look")
    }
}
