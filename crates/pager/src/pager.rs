//! What the supervisor's threads share.
//!
//! ```text
//!   pager 0..n   one per CPU, pinned, each with an epoll of its own over every userfaultfd     fault.rs, events.rs
//!   reclaimers   evict, compress, write, move out to the file                                  evict.rs
//!   monitor      growth, what is not managed, shared pages, dead processes                     growth.rs
//!   door         agents that connect                                                           handshake.rs
//!   main         the target, signals, the end                                                  supervisor.rs
//! ```
//!
//! Lock order: gate (events) → batch lock → chunk; and `processes` is never held while another is taken.

use crate::process::Process;
use memspill_engine::engine::Engine;
use memspill_engine::swap_in::Fault;
use memspill_engine::units::PAGE_SIZE;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};

/// A fault that waits for room.
pub struct Waiting {
    pub process: Arc<Process>,
    pub fault: Fault,
}

/// One pager thread's side of things.
pub struct PagerCpu {
    /// The kernel's number of the CPU to which the thread is pinned.
    pub cpu: usize,
    pub epoll: OwnedFd,
    /// Written when there is room for `waiting`.
    pub poke: OwnedFd,
    pub waiting: Mutex<VecDeque<Waiting>>,
    /// One that waited is being tried again, and is not in `waiting` meanwhile.
    pub tries_again: AtomicBool,
    /// Since when it is at work, in µs since the start; 0 while it waits.
    pub busy_since_us: AtomicU64,
}

impl PagerCpu {
    /// Does a fault wait for room?
    pub fn has_waiting(&self) -> bool {
        // Under the lock, with which the mark is set and taken away.
        let waiting = self.waiting.lock().expect("waiting");
        !waiting.is_empty() || self.tries_again.load(Ordering::Relaxed)
    }

    /// The first fault that waits for room, to be tried again. Until `tries_again` is taken away, one that finds no
    /// room again counts as waiting all the time: who looks for faults that get no room would miss them now and then,
    /// and so never find that nothing goes on.
    pub fn next_waiting(&self) -> Option<Waiting> {
        let mut waiting = self.waiting.lock().expect("waiting");
        let next = waiting.pop_front();
        if next.is_some() {
            self.tries_again.store(true, Ordering::Relaxed);
        }
        next
    }

    pub fn busy_for(&self) -> Option<Duration> {
        let since_us = self.busy_since_us.load(Ordering::Relaxed);
        (since_us > 0).then(|| Duration::from_micros(now_us().saturating_sub(since_us)))
    }
}

/// µs since the first call.
pub fn now_us() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_micros() as u64 + 1
}

/// Page tables, LRU lists and swap maps, and the pages (resident and swapped) that they were for.
#[derive(Clone, Copy, Default)]
pub struct Tables {
    pub bytes: u64,
    pub managed_pages: u64,
}

pub struct Pager {
    pub engine: Engine,
    pub cpus: Vec<PagerCpu>,
    pub reclaimers: u32,
    processes: RwLock<HashMap<u64, Arc<Process>>>,
    next_key: AtomicU64,
    reclaim_wanted: AtomicBool,
    reclaim: (Mutex<u64>, Condvar),
    /// Memory is tight: everything is registered, new mappings too.
    pub pressed: AtomicBool,
    pub stopping: AtomicBool,
    pub token: crate::token::Token,
    pub quiet: crate::quiet::Quiet,
    /// The first reason to end everything; the main thread acts on it.
    pub verdict: Mutex<Option<Verdict>>,
    pub settings: Settings,
    /// Parts of `other_bytes` that the monitor measures: unmanaged memory of the targets, tables, our own.
    pub measured_bytes: AtomicU64,
    /// The most RAM that the devices held, as it was seen after each batch.
    pub largest_pool_bytes: AtomicU64,
    /// When the engine's tables were at their largest.
    pub largest_tables: Mutex<Tables>,
    pub socket: crate::handshake::Door,
    pub membership: crate::groups::Membership,
    /// Page faults served, for latency: nanoseconds summed by power of two.
    pub fault_ns: crate::histogram::Histogram,
}

/// Why the supervisor must end the run by itself.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub exit_code: i32,
    pub message: String,
}

/// What to do when nothing can be swapped out any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFull {
    Kill,
    Grow,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub memory_max_bytes: u64,
    pub on_full: OnFull,
    pub verbose: bool,
    pub check: bool,
}

/// Keys of the epolls that are not processes.
pub const KEY_POKE: u64 = u64::MAX;
pub const KEY_READS: u64 = u64::MAX - 1;

impl Pager {
    pub fn new(
        engine: Engine,
        cpus: Vec<PagerCpu>,
        reclaimers: u32,
        settings: Settings,
        socket: crate::handshake::Door,
        membership: crate::groups::Membership,
    ) -> Pager {
        Pager {
            engine,
            cpus,
            reclaimers,
            processes: RwLock::new(HashMap::new()),
            next_key: AtomicU64::new(1),
            reclaim_wanted: AtomicBool::new(false),
            reclaim: (Mutex::new(0), Condvar::new()),
            pressed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            token: crate::token::Token::default(),
            quiet: crate::quiet::Quiet::new(settings.check),
            verdict: Mutex::new(None),
            settings,
            measured_bytes: AtomicU64::new(0),
            largest_pool_bytes: AtomicU64::new(0),
            largest_tables: Mutex::new(Tables::default()),
            socket,
            membership,
            fault_ns: crate::histogram::Histogram::default(),
        }
    }

    pub fn new_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    pub fn process(&self, key: u64) -> Option<Arc<Process>> {
        self.processes.read().expect("processes").get(&key).cloned()
    }
    pub fn processes(&self) -> Vec<Arc<Process>> {
        self.processes.read().expect("processes").values().cloned().collect()
    }
    pub fn process_of_pid(&self, pid: u32) -> Option<Arc<Process>> {
        let processes = self.processes.read().expect("processes");
        processes.values().find(|p| p.memory.pid() == pid && !p.dying.load(Ordering::Relaxed)).cloned()
    }

    /// Make a process known to the engine and to every pager thread.
    pub fn add_process(&self, process: Arc<Process>) -> std::io::Result<()> {
        process.space.join(&self.engine.spaces());
        self.engine.add_space(process.space.clone());
        self.processes.write().expect("processes").insert(process.key, process.clone());
        for cpu in &self.cpus {
            crate::fault::watch(&cpu.epoll, &process.memory.uffd, process.key)?;
        }
        Ok(())
    }

    /// The address space is gone: free everything that it held.
    pub fn remove_process(&self, process: &Arc<Process>) {
        if self.processes.write().expect("processes").remove(&process.key).is_none() {
            return;
        }
        crate::home::remove(self, process);
        let pass = process.space.gate.enter_events();
        let batch = process.batch.lock().expect("batch");
        process.space.release(&self.engine, crate::cpu());
        drop(batch);
        drop(pass);
        self.engine.remove_space(&process.space);
        self.poke_waiting();
    }

    /// Wake a reclaimer if usage calls for it.
    pub fn kick_reclaim(&self) {
        if self.engine.groups.above_high_mark() && !self.reclaim_wanted.swap(true, Ordering::Relaxed) {
            *self.reclaim.0.lock().expect("reclaim") += 1;
            self.reclaim.1.notify_all();
        }
    }

    pub fn reclaim_is_wanted(&self) -> bool {
        self.reclaim_wanted.load(Ordering::Relaxed)
    }

    /// Sleep until reclaim is wanted, at most `timeout`. `seen` is the number of the last call that was answered.
    pub fn wait_for_kick(&self, seen: &mut u64, timeout: std::time::Duration) {
        let guard = self.reclaim.0.lock().expect("reclaim");
        let (guard, _) =
            self.reclaim.1.wait_timeout_while(guard, timeout, |n| *n == *seen).expect("reclaim");
        *seen = *guard;
        drop(guard);
        self.reclaim_wanted.store(false, Ordering::Relaxed);
    }

    /// Let the pagers try again what waits for room.
    pub fn poke_waiting(&self) {
        for cpu in &self.cpus {
            if !cpu.waiting.lock().expect("waiting").is_empty() {
                let _ = rustix::io::write(&cpu.poke, &1u64.to_ne_bytes());
            }
        }
    }

    /// Pages that left or were filled since the start: as long as it grows, nobody waits for ever.
    pub fn moved(&self) -> u64 {
        let stats = &self.engine.stats;
        stats.sum(|c| &c.pgsteal) + stats.sum(|c| &c.zero_fill) + stats.sum(|c| &c.swap_cache_hit) + stats.sum(|c| &c.pswpin)
    }

    /// RAM that swap devices hold.
    pub fn pool_bytes(&self) -> u64 {
        self.engine.devices.iter().map(|d| d.backing.usage().ram_bytes).sum()
    }

    /// Memory of our own that is neither pool nor staging: tables, stacks, code's data.
    pub fn own_bytes(&self) -> u64 {
        let anon_bytes = crate::proc::statm(std::process::id()).map_or(0, |s| s.anon_bytes);
        anon_bytes.saturating_sub(self.pool_bytes() + self.engine.staging_bytes())
    }

    /// What counts against the budget, for people.
    pub fn account(&self) -> String {
        let processes = self.processes();
        let managed: u64 = processes.iter().map(|p| p.space.resident_pages()).sum();
        let unmanaged_bytes: u64 = processes.iter().map(|p| p.unmanaged_bytes.load(Ordering::Relaxed)).sum();
        let own_bytes = self.measured_bytes.load(Ordering::Relaxed).saturating_sub(unmanaged_bytes) + self.engine.staging_bytes();
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let largest = crate::unmanaged::largest(self).map_or(String::new(), |what| format!("; {what}"));
        format!(
            "{} MiB managed, but shared, locked or in work; {} MiB not managed; compressed pool {} MiB, \
             memspill itself {} MiB{largest}",
            mib(managed * PAGE_SIZE as u64),
            mib(unmanaged_bytes),
            mib(self.pool_bytes()),
            mib(own_bytes)
        )
    }

    /// To be called now and then.
    pub fn note_tables(&self) {
        let pages = |s: &Arc<memspill_engine::space::Space>| s.resident_pages() + s.swapped_pages();
        let managed_pages = self.engine.spaces().iter().map(pages).sum();
        let now = Tables { bytes: self.engine.table_bytes(), managed_pages };
        let mut largest = self.largest_tables.lock().expect("tables");
        if now.bytes > largest.bytes {
            *largest = now;
        }
    }

    /// Pool, staging and tables change with every batch: bring the group's figure up to date.
    pub fn update_other_bytes(&self) {
        let pool = self.pool_bytes();
        self.largest_pool_bytes.fetch_max(pool, Ordering::Relaxed);
        let measured = self.measured_bytes.load(Ordering::Relaxed);
        self.engine.group.set_other_bytes(pool + self.engine.staging_bytes() + measured);
    }

    /// End the run. Only the first reason counts.
    pub fn give_up(&self, exit_code: i32, message: String) {
        let mut verdict = self.verdict.lock().expect("verdict");
        if verdict.is_none() {
            *verdict = Some(Verdict { exit_code, message });
            // SIGCHLD is what the main thread waits for; it looks at the verdict whenever it wakes.
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::CHILD,
            );
        }
    }
}
