//! A process whose agent makes a fork: from the copying of its page table until it has forked nothing of it
//! is taken out, and what other threads change is noted, for the child may have seen it or not.
//!
//! The evictor's turn is the fork's meanwhile (`Process::begin_fork`): no batch is taken, nothing is
//! registered by the monitor, and a command that is late was cut off before.

use crate::process::ranges::Range;
use std::sync::Mutex;

/// What has changed under a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disturbed {
    Unmapped(Range),
    /// Its pages were dropped: a child may have them or not.
    Dropped(Range),
    /// To an address.
    Moved(Range, u64),
}

/// Is a fork under way, and what has changed since it began?
#[derive(Default)]
pub struct Forking(Mutex<Option<Vec<Disturbed>>>);

impl Forking {
    pub fn begin(&self) {
        *self.0.lock().expect("fork") = Some(Vec::new());
    }

    /// By whoever processes events.
    pub fn note(&self, what: impl IntoIterator<Item = Disturbed>) {
        if let Some(noted) = &mut *self.0.lock().expect("fork") {
            noted.extend(what);
        }
    }

    /// What was noted so far.
    pub fn noted(&self) -> Vec<Disturbed> {
        self.0.lock().expect("fork").clone().unwrap_or_default()
    }

    pub fn is_under_way(&self) -> bool {
        self.0.lock().expect("fork").is_some()
    }

    /// False: none was under way.
    pub fn end(&self) -> bool {
        self.0.lock().expect("fork").take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_noted_while_a_fork_is_under_way() {
        let (held, change) = (Forking::default(), Disturbed::Unmapped((1, 2)));
        held.note([change]);
        assert!(!held.is_under_way() && !held.end());
        held.begin();
        held.note([change]);
        assert_eq!(held.noted(), [change]);
        assert!(held.end() && !held.end());
        held.begin();
        assert_eq!(held.noted(), []);
    }
}
