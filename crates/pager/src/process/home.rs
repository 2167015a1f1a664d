//! Whose faults wake which pager thread: what is remembered for one process. The policy, and how pagers begin
//! and cease to watch, is in `run/watch.rs`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Faults between two looks at where the thread runs: a look costs 3 µs.
const FAULTS_BETWEEN_LOOKS: u32 = 32;

const ALL: u32 = u32::MAX;
const REMOVED: u32 = u32::MAX - 1;
const IN_TURNS: u32 = u32::MAX - 2;

/// Who watches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watchers {
    /// Each message wakes all.
    All,
    /// Each wakes one of them.
    InTurns,
    /// This pager and no other.
    One(usize),
}

impl Watchers {
    fn word(self) -> u32 {
        match self {
            Watchers::All => ALL,
            Watchers::InTurns => IN_TURNS,
            Watchers::One(pager) => pager as u32,
        }
    }
}

pub struct Home {
    /// `Watchers::word`, or `REMOVED`.
    pager: AtomicU32,
    /// Faults since the last look, the first one's thread, and whether others have faulted too.
    faults: AtomicU32,
    tid: AtomicU32,
    mixed: AtomicBool,
    change: Mutex<()>,
}

impl Default for Home {
    fn default() -> Home {
        Home {
            pager: AtomicU32::new(ALL),
            faults: AtomicU32::new(0),
            tid: AtomicU32::new(0),
            mixed: AtomicBool::new(false),
            change: Mutex::new(()),
        }
    }
}

/// Whose faults there were since the last look.
#[derive(PartialEq, Eq, Debug)]
pub enum Faulted {
    OneThread,
    Several,
}

impl Home {
    /// A fault of thread `tid` has been read. After every FAULTS_BETWEEN_LOOKS of them it is said whether one
    /// thread has made them all.
    pub fn note_fault(&self, tid: u32) -> Option<Faulted> {
        match self.tid.load(Ordering::Relaxed) {
            0 => self.tid.store(tid, Ordering::Relaxed),
            first if first != tid => self.mixed.store(true, Ordering::Relaxed),
            _ => {}
        }
        if self.faults.fetch_add(1, Ordering::Relaxed) < FAULTS_BETWEEN_LOOKS {
            return None;
        }
        self.faults.store(0, Ordering::Relaxed);
        self.tid.store(0, Ordering::Relaxed);
        let several = self.mixed.swap(false, Ordering::Relaxed);
        Some(if several { Faulted::Several } else { Faulted::OneThread })
    }

    pub fn is(&self, watchers: Watchers) -> bool {
        self.pager.load(Ordering::Relaxed) == watchers.word()
    }

    /// Has it one pager?
    pub fn is_one(&self) -> bool {
        ![ALL, IN_TURNS, REMOVED].contains(&self.pager.load(Ordering::Relaxed))
    }

    /// Change who watches. `watch` makes it so, and says whether that went well. Nothing is done if it is so
    /// already, or somebody else is just changing it.
    pub fn change(&self, wanted: Watchers, watch: impl FnOnce() -> bool) {
        let wanted = wanted.word();
        let Ok(_change) = self.change.try_lock() else { return };
        let now = self.pager.load(Ordering::Relaxed);
        if now != wanted && now != REMOVED && watch() {
            self.pager.store(wanted, Ordering::Relaxed);
        }
    }

    /// The process is gone: nobody watches it after `unwatch`, and nobody begins to.
    pub fn remove(&self, unwatch: impl FnOnce()) {
        let _change = self.change.lock().expect("home");
        self.pager.store(REMOVED, Ordering::Relaxed);
        unwatch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_and_then_it_is_told_whose_faults_there_were() {
        let home = Home::default();
        let told = |tids: &[u32]| {
            (0..=FAULTS_BETWEEN_LOOKS as usize).find_map(|n| home.note_fault(tids[n % tids.len()]))
        };
        assert_eq!(told(&[7]), Some(Faulted::OneThread));
        assert_eq!(told(&[7, 7, 8]), Some(Faulted::Several));
        assert_eq!(told(&[8]), Some(Faulted::OneThread));
    }

    #[test]
    fn of_a_process_that_is_gone_nothing_is_watched() {
        let home = Home::default();
        home.change(Watchers::One(1), || true);
        assert!(home.is(Watchers::One(1)) && home.is_one());
        home.change(Watchers::InTurns, || false);
        assert!(home.is(Watchers::One(1)), "it did not go well");
        home.change(Watchers::InTurns, || true);
        assert!(home.is(Watchers::InTurns) && !home.is_one());
        home.remove(|| ());
        home.change(Watchers::All, || unreachable!("nobody begins to"));
        assert!(!home.is_one());
    }
}
