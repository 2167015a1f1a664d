//! Which pagers a process's faults wake.
//!
//! ```text
//!   faults of several threads   ALL       every pager is woken; the one on the CPU that faulted comes first
//!   faults of one thread        HOME(n)   only the pager on the CPU where that thread last ran
//! ```
//!
//! Waking the pager on the faulting CPU is a switch; waking one more on an idle CPU sends it an interrupt (4 to 5 µs for
//! the thread that faulted, in a virtual machine), takes that CPU from reclaim, and now and then the late one steals a
//! fault and serves it from afar. Random faults of one process: 85k accesses/s with all pagers woken, 133k with one.
//! What was tried and lost: one exclusive waiter (wakes an idle CPU), pagers of a high priority, fewer pagers.
//!
//! The home is looked at again every `LOOK_EVERY` faults; until then a thread that has moved is served from afar, which
//! is slow and correct. A pager that is stuck (it waits for a batch of a process stopped in the middle of one) is
//! nobody's home.

use crate::pager::Pager;
use crate::process::Process;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// A look at where a thread runs costs 3 µs.
const LOOK_EVERY: u32 = 32;
const STUCK: Duration = Duration::from_millis(10);

const ALL: u32 = u32::MAX;
const REMOVED: u32 = u32::MAX - 1;

pub struct Home {
    /// Index of the only pager that watches, `ALL`, or `REMOVED`.
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

impl Home {
    pub fn is_all(&self) -> bool {
        self.pager.load(Ordering::Relaxed) == ALL
    }
}

/// A fault of thread `tid` has been read.
pub fn note_fault(pager: &Pager, process: &Process, tid: u32) {
    if pager.cpus.len() < 2 {
        return;
    }
    let home = &process.home;
    match home.tid.load(Ordering::Relaxed) {
        0 => home.tid.store(tid, Ordering::Relaxed),
        first if first != tid => home.mixed.store(true, Ordering::Relaxed),
        _ => {}
    }
    if home.faults.fetch_add(1, Ordering::Relaxed) < LOOK_EVERY {
        return;
    }
    home.faults.store(0, Ordering::Relaxed);
    home.tid.store(0, Ordering::Relaxed);
    if home.mixed.swap(false, Ordering::Relaxed) {
        set(pager, process, None);
    } else {
        let cpu = crate::proc::last_cpu(process.memory.pid(), tid);
        set(pager, process, cpu.and_then(|cpu| pager.cpus.iter().position(|p| p.cpu == cpu)));
    }
}

/// All faults that have come lately are of one thread?
pub fn one_thread_faults(pager: &Pager) -> bool {
    let processes = pager.processes();
    let mut homes = processes.iter().filter(|p| !p.home.is_all());
    homes.next().is_some() && homes.next().is_none()
}

/// A pager that is busy for long may be stuck: let the others see what it would have to serve.
pub fn release_stuck(pager: &Pager) {
    for (index, cpu) in pager.cpus.iter().enumerate() {
        if cpu.busy_for().is_none_or(|busy| busy <= STUCK) {
            continue;
        }
        let at_home = |p: &Process| p.home.pager.load(Ordering::Relaxed) == index as u32;
        pager.processes().iter().filter(|p| at_home(p)).for_each(|p| set(pager, p, None));
    }
}

/// The process is gone: nobody watches it, and nobody begins to.
pub fn remove(pager: &Pager, process: &Process) {
    let _change = process.home.change.lock().expect("home");
    process.home.pager.store(REMOVED, Ordering::Relaxed);
    for cpu in &pager.cpus {
        crate::fault::unwatch(&cpu.epoll, &process.memory.uffd);
    }
}

/// First who comes, then who goes, so that no fault is unseen in between (epoll reports what is readable when it is
/// added).
fn set(pager: &Pager, process: &Process, wanted: Option<usize>) {
    let home = &process.home;
    let wanted_word = wanted.map_or(ALL, |n| n as u32);
    let Ok(_change) = home.change.try_lock() else { return };
    let now = home.pager.load(Ordering::Relaxed);
    if now == wanted_word || now == REMOVED {
        return;
    }
    let uffd = &process.memory.uffd;
    for (_, cpu) in pager.cpus.iter().enumerate().filter(|(i, _)| wanted.is_none_or(|w| w == *i)) {
        match crate::fault::watch(&cpu.epoll, uffd, process.key) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return,
            _ => {}
        }
    }
    for (_, cpu) in pager.cpus.iter().enumerate().filter(|(i, _)| wanted.is_some_and(|w| w != *i)) {
        crate::fault::unwatch(&cpu.epoll, uffd);
    }
    home.pager.store(wanted_word, Ordering::Relaxed);
}
