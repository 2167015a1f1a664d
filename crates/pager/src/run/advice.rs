//! Advice of programs about their pages (madvise), from the pager that is told of it to the threads that
//! follow it (`advice.rs` in the crate's root).
//!
//! ```text
//!   doorbell ─▶ ready ◀──▶ a thread takes the first, does one step of it, puts it back behind the others
//!                 ▲  └───▶ to be registered first ─▶ the monitor's next look ─┐
//!                 └───────────────────────────────────────────────────────────┘
//! ```
//!
//! A step is a batch or so. So how long somebody waits depends on how many others have advice under way, not
//! on how large their ranges are; and a process has no more of it here than [`WAITED_FOR_MAX`] and
//! [`AHEAD_MAX`].

use crate::process::Process;
use memspill_engine::space::Space;
use memspill_engine::units::Vpn;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Calls of a process that threads of it wait for. (Its agent rings half as many doorbells with them: each
/// call may be in two parts.)
const WAITED_FOR_MAX: usize = 16;
/// Calls that nobody waits for. Requests beyond that are not done.
const AHEAD_MAX: usize = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Pageout,
    Cold,
    WillNeed,
    /// The same, and its caller waits until it can use them.
    Bring,
}

/// What is still to be done of one call, or of a part of it.
#[derive(Clone)]
pub struct Advice {
    pub what: What,
    /// Whose pages; 0: the caller's. As the caller sees the number, and not believed yet.
    pub pid: u32,
    /// Whose pages, once that is known.
    pub process: Option<Arc<Process>>,
    /// Pages of this object of shared memory, by the object's numbers, and none of the process's own.
    pub object: Option<Arc<Space>>,
    /// The pages of objects in the range are in parts of their own.
    pub has_objects_apart: bool,
    pub next: Vpn,
    pub end: Vpn,
    pub caller: Arc<Process>,
    /// The caller waits at this one, until all parts of the call are done.
    pub doorbell: Option<Arc<usize>>,
    /// The monitor has looked at the range.
    pub looked_at: bool,
    /// Its second half, if it is large, is a part of its own.
    pub is_shared: bool,
    /// Pages that were brought.
    pub brought: u64,
    /// There was no room, and no earlier than this there may be some.
    pub not_before: Option<Instant>,
    /// Since when it gets no further.
    pub stuck_since: Option<Instant>,
}

impl Advice {
    /// A call of `caller` about these pages of process `pid`, of which nothing is done yet.
    pub fn new(
        what: What,
        caller: &Arc<Process>,
        doorbell: Option<usize>,
        pages: Range<Vpn>,
        pid: u32,
    ) -> Advice {
        Advice {
            what,
            pid,
            process: None,
            object: None,
            has_objects_apart: false,
            next: pages.start,
            end: pages.end,
            caller: caller.clone(),
            doorbell: doorbell.map(Arc::new),
            looked_at: false,
            is_shared: false,
            brought: 0,
            not_before: None,
            stuck_since: None,
        }
    }
}

#[derive(Default)]
struct Lists {
    ready: VecDeque<Advice>,
    to_register: Vec<Advice>,
}

#[derive(Default)]
pub struct AdviceQueue {
    lists: Mutex<Lists>,
    arrived: Condvar,
}

impl AdviceQueue {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().expect("advice")
    }

    /// A new one. False: its process has too many here.
    pub fn admit(&self, advice: Advice) -> bool {
        let mut lists = self.lists();
        let is_waited_for = advice.doorbell.is_some();
        let is_alike = |other: &&Advice| {
            other.caller.key == advice.caller.key && other.doorbell.is_some() == is_waited_for
        };
        let alike = lists.ready.iter().chain(&lists.to_register).filter(is_alike).count();
        if alike >= if is_waited_for { WAITED_FOR_MAX } else { AHEAD_MAX } {
            return false;
        }
        lists.ready.push_back(advice);
        self.arrived.notify_one();
        true
    }

    /// It is a step further.
    pub fn add(&self, advice: Advice) {
        self.lists().ready.push_back(advice);
        self.arrived.notify_one();
    }

    /// Goes on after the monitor's next look.
    pub fn add_to_register(&self, advice: Advice) {
        self.lists().to_register.push(advice);
    }

    /// The requests that wait for the look that begins now.
    pub fn take_to_register(&self) -> Vec<Advice> {
        std::mem::take(&mut self.lists().to_register)
    }

    /// The look is over.
    pub fn add_looked_at(&self, looked_at: Vec<Advice>) {
        for advice in looked_at {
            self.add(Advice { looked_at: true, ..advice });
        }
    }

    /// The first that may go on now. None: there was none for so long.
    pub fn next(&self, limit: Duration) -> Option<Advice> {
        let end = Instant::now() + limit;
        let mut lists = self.lists();
        loop {
            let now = Instant::now();
            let may_go_on = |advice: &Advice| advice.not_before.is_none_or(|at| at <= now);
            if let Some(first) = lists.ready.iter().position(may_go_on) {
                return lists.ready.remove(first);
            }
            if now >= end {
                return None;
            }
            let soonest = lists.ready.iter().filter_map(|advice| advice.not_before).fold(end, Instant::min);
            lists = self.arrived.wait_timeout(lists, soonest - now).expect("advice").0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::ProcessMemory;
    use crate::process::port::Port;
    use memspill_engine::units::SpaceId;
    use memspill_uffd::userfaultfd::Uffd;

    const SHORT: Duration = Duration::from_millis(5);

    fn process(key: u64) -> Arc<Process> {
        let uffd = Uffd::of_self(None).expect("a userfaultfd");
        let memory = Arc::new(ProcessMemory::new(Port::from(uffd), 1));
        let space = Arc::new(Space::new(SpaceId(key as u32), memory.clone()));
        Arc::new(Process::new(key, memory, space, None))
    }

    fn advice(caller: &Arc<Process>, doorbell: Option<usize>, next: u64) -> Advice {
        Advice::new(What::Pageout, caller, doorbell, Vpn(next)..Vpn(100), 0)
    }

    #[test]
    fn each_has_its_turn_and_nobody_has_many() {
        if Uffd::of_self(None).is_err() {
            return eprintln!("not tested: no userfaultfd");
        }
        let (queue, one, other) = (AdviceQueue::default(), process(1), process(2));
        assert!((0..16).all(|n| queue.admit(advice(&one, Some(n), n as u64))));
        assert!(!queue.admit(advice(&one, Some(0), 0)), "as many as it may have");
        assert!((0..16).all(|_| queue.admit(advice(&one, None, 0))), "nobody waits for these");
        assert!(!queue.admit(advice(&one, None, 0)));
        assert!(queue.admit(advice(&other, Some(3), 77)), "another process");
        let mut steps = 0;
        loop {
            let next = queue.next(SHORT).expect("there are some");
            if next.caller.key == 2 {
                break;
            }
            steps += 1;
            queue.add(next);
        }
        assert_eq!(steps, 32, "one step of each that came before");
    }

    #[test]
    fn what_has_to_wait_holds_up_nobody() {
        if Uffd::of_self(None).is_err() {
            return eprintln!("not tested: no userfaultfd");
        }
        let (queue, one) = (AdviceQueue::default(), process(1));
        let later = Instant::now() + 4 * SHORT;
        queue.add(Advice { not_before: Some(later), ..advice(&one, None, 1) });
        queue.add_to_register(advice(&one, None, 2));
        queue.add(advice(&one, None, 3));
        assert_eq!(queue.next(SHORT).map(|advice| advice.next), Some(Vpn(3)));
        assert!(queue.next(Duration::ZERO).is_none());
        queue.add_looked_at(queue.take_to_register());
        let looked_at = queue.next(SHORT).expect("the look is over");
        assert!(looked_at.looked_at && looked_at.next == Vpn(2));
        assert_eq!(queue.next(100 * SHORT).map(|advice| advice.next), Some(Vpn(1)));
        assert!(Instant::now() >= later);
    }
}
