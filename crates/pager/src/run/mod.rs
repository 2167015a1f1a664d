//! What the supervisor's threads share: the table of processes, who waits for what, and how the run ends.
//!
//! ```text
//!   pager 0..n   one per CPU, pinned, each with an epoll of its own over every userfaultfd     faults/
//!   reclaimers   evict, compress, write, move out to the file                                  reclaim/
//!   monitor      growth, what is not managed, shared pages, dead processes                     monitor/
//!   door         agents that connect                                                           door/
//!   ctl          what `memspill ctl` asks                                                      ctl/
//!   main         the target, signals, the end                                                  supervisor.rs
//!        │ each uses
//!        ▼
//!   Run ─┬─ table of processes ──▶ process/
//!        ├─ engine                 pages, slots, the group's account
//!        ├─ cpus, watch            the pager threads: whom they watch, faults that wait for room
//!        ├─ account                what else counts against the budget
//!        ├─ token                  the thread that keeps what it brings in
//!        ├─ files                  shared memory that has a descriptor
//!        ├─ forks_waiting          forks that wait for room
//!        ├─ advice                 what programs have said of their pages, and is still to be done
//!        ├─ detach                 how far it is that all are let go (memspill attach)
//!        ├─ recording              --record
//!        ├─ sampling               --report: some of the faults
//!        └─ quiet                  --check
//! ```
//!
//! Nothing here knows those threads. The table of processes is never held while another lock is taken.

pub mod account;
pub mod advice;
pub mod cpus;
pub mod detach;
pub mod files;
pub mod forks_waiting;
pub mod openings;
pub mod pool_reads;
pub mod quiet_points;
pub mod rates;
pub mod reads;
pub mod record;
pub mod sampling;
pub mod token;
pub mod watch;

use crate::exit;
use crate::histogram::Histogram;
use crate::pool_share;
use crate::process::Process;
use crate::shared::Object;
use crate::stall::Stall;
use crate::times::now_us;
use crate::working_set::{Counts, RunMemory};
use account::Account;
use advice::AdviceQueue;
use cpus::PagerCpu;
use detach::Detach;
use files::Files;
use forks_waiting::ForksWaiting;
use memspill_engine::backing::QueueId;
use memspill_engine::devices::Device;
use memspill_engine::engine::Engine;
use memspill_engine::group::Group;
use memspill_engine::layout;
use memspill_engine::space::Space;
use memspill_engine::units::PAGE_SIZE;
use memspill_uffd::shmem::Id;
use openings::Openings;
use quiet_points::QuietPoints;
use record::Recording;
use sampling::Sampling;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, RwLock};
use std::time::Duration;
use token::{SERVES_ALONE_CPUS_MAX, Token};

pub struct Run {
    pub engine: Engine,
    pub cpus: Vec<PagerCpu>,
    pub layout: Layout,
    pub settings: Settings,
    pub quiet: QuietPoints,
    pub account: Account,
    /// Time in which its processes wait for memory.
    pub stall: Stall,
    /// µs that processes waited that have ended since they were looked at.
    stalls_rest_us: AtomicU64,
    /// How long pages were away, as of the monitor's last look.
    working_set: Mutex<Counts>,
    /// What a pool in front of a file may take of the budget.
    pool_share_percent: AtomicU32,
    started_us: u64,
    pub advice: AdviceQueue,
    pub detach: Detach,
    pub openings: Openings,
    pub token: Token,
    pub files: Files,
    pub forks_waiting: ForksWaiting,
    pub recording: Recording,
    pub sampling: Sampling,
    /// The pager that `poke_for_room` looks at first.
    next_poked: AtomicUsize,
    processes: RwLock<HashMap<u64, Arc<Process>>>,
    /// Shared memory that is managed, each object once.
    objects: RwLock<HashMap<u64, Arc<Object>>>,
    next_key: AtomicU64,
    reclaim_wanted: AtomicBool,
    /// How often reclaim was called for, and who waits for that.
    reclaim_calls: (Mutex<u64>, Condvar),
    looks: (Mutex<Looks>, Condvar),
    /// Memory is tight: everything is registered, new mappings too.
    memory_is_tight: AtomicBool,
    stopping: AtomicBool,
    /// The first reason to end everything; the main thread acts on it.
    verdict: Mutex<Option<Verdict>>,
    /// A device whose file programs read is swapped off, or was.
    are_pool_reads_over: AtomicBool,
    /// The device whose pool programs may read; None: of none.
    shared_place: OnceLock<Option<usize>>,
}

/// The monitor's looks by number, as they are asked for.
#[derive(Default)]
struct Looks {
    asked: u64,
    /// Answered by a look that began after it was asked for.
    done: u64,
}

/// Why the supervisor must end the run by itself.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub exit_code: i32,
    pub message: String,
}

/// The policy for when nothing can be swapped out any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnFull {
    Kill,
    Grow,
}

/// The policy for a run that does next to nothing but wait for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OnThrash {
    Warn,
    Grow,
    Kill,
}

impl OnFull {
    /// Either, by what is done.
    pub fn either<T>(self, kill: T, grow: T) -> T {
        match self {
            OnFull::Kill => kill,
            OnFull::Grow => grow,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub memory_max_bytes: u64,
    pub on_full: OnFull,
    pub on_thrash: OnThrash,
    /// Whoever is more times slower than this, over such a window, thrashes.
    pub max_slowdown: f64,
    pub thrash_window: Duration,
    pub verbose: bool,
    pub check: bool,
    /// Idle CPUs do not halt while faults come often.
    pub keep_cpus_awake: bool,
    pub shared: Shared,
}

/// What is done about shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Shared {
    /// Nothing: it is not counted.
    None,
    /// All of it is counted, and none managed: where that cannot be. Nobody asks for this.
    #[cfg_attr(feature = "clap", value(skip))]
    Counted,
    /// All of it is counted, and MAP_SHARED | MAP_ANONYMOUS and mappings of /dev/zero are managed.
    Anonymous,
    /// Memfds and files of tmpfs are managed too.
    All,
}

/// Threads that serve faults, threads that reclaim, and threads that follow advice; each has a queue of every
/// backing, pagers first; then one for pages that are given back, and the last one is swapoff's.
#[derive(Clone, Copy)]
pub struct Layout {
    pub pagers: u32,
    pub reclaimers: u32,
    pub advisers: u32,
}

impl Layout {
    pub fn queues(&self) -> u32 {
        self.pagers + self.reclaimers + self.advisers + 2
    }

    /// That by which the pages of files are given back.
    pub fn files_queue(&self) -> QueueId {
        QueueId(self.queues() - 2)
    }

    pub fn reclaim_queue(&self, reclaimer: u32) -> QueueId {
        QueueId(self.pagers + reclaimer)
    }

    pub fn advice_queue(&self, adviser: u32) -> QueueId {
        QueueId(self.pagers + self.reclaimers + adviser)
    }

    /// Swapoff's, and that of all else that people ask for: writes are in turn on a queue.
    pub fn ctl_queue(&self) -> QueueId {
        QueueId(self.queues() - 1)
    }
}

impl Run {
    pub fn new(
        engine: Engine,
        cpus: Vec<PagerCpu>,
        layout: Layout,
        settings: Settings,
        files: Files,
        recording: Recording,
        sampling: Sampling,
    ) -> Run {
        let token = Token::new(cpus.len() <= SERVES_ALONE_CPUS_MAX);
        Run {
            engine,
            cpus,
            layout,
            quiet: QuietPoints::new(settings.check),
            settings,
            account: Account::default(),
            stall: Stall::since(now_us()),
            stalls_rest_us: AtomicU64::new(0),
            working_set: Mutex::default(),
            pool_share_percent: AtomicU32::new(pool_share::PERCENT_AT_FIRST),
            started_us: now_us(),
            advice: AdviceQueue::default(),
            detach: Detach::default(),
            openings: Openings::default(),
            token,
            files,
            forks_waiting: ForksWaiting::default(),
            recording,
            sampling,
            next_poked: AtomicUsize::new(0),
            processes: RwLock::default(),
            objects: RwLock::default(),
            next_key: AtomicU64::new(1),
            are_pool_reads_over: AtomicBool::new(false),
            shared_place: OnceLock::new(),
            reclaim_wanted: AtomicBool::new(false),
            reclaim_calls: (Mutex::new(0), Condvar::new()),
            looks: (Mutex::new(Looks::default()), Condvar::new()),
            memory_is_tight: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            verdict: Mutex::new(None),
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

    pub fn pids(&self) -> Vec<u32> {
        self.processes().iter().map(|process| process.memory.pid()).collect()
    }

    pub fn process_count(&self) -> usize {
        self.processes.read().expect("processes").len()
    }

    pub fn process_of_pid(&self, pid: u32) -> Option<Arc<Process>> {
        let processes = self.processes.read().expect("processes");
        processes.values().find(|process| process.memory.pid() == pid && !process.is_dying()).cloned()
    }

    /// Make a process known to the engine and to every pager thread.
    pub fn add_process(&self, process: Arc<Process>) -> std::io::Result<()> {
        process.space.start_level_with(&self.engine.spaces());
        self.engine.add_space(process.space.clone());
        self.processes.write().expect("processes").insert(process.key, process.clone());
        self.end_pool_reads_if_over(&process);
        process.tell_room(self.engine.swap());
        watch::watch_new(&self.cpus, &process)
    }

    /// The same for the child of a fork by the agent, whose space is known already and has been set aside.
    pub fn add_inherited(&self, process: Arc<Process>) -> std::io::Result<()> {
        self.processes.write().expect("processes").insert(process.key, process.clone());
        self.end_pool_reads_if_over(&process);
        process.tell_room(self.engine.swap());
        process.space.set_aside(false, &self.engine.spaces());
        watch::watch_new(&self.cpus, &process)
    }

    /// The device in whose file programs may find their pages by themselves, and its place. It is one device
    /// for as long as the run lasts: the child of a fork knows slots from its parent.
    pub fn shared_pool(&self) -> Option<(u8, &Device)> {
        let can_be = |device: &Device| device.is_on() && device.backing.pool_file().is_some();
        let devices = || self.engine.devices().iter().enumerate();
        let first = || devices().find(|(_, device)| can_be(device)).map(|(place, _)| place);
        let place = match self.shared_place.get() {
            Some(place) => *place,
            None => *self.shared_place.get_or_init(first),
        }?;
        let (_, device) = devices().find(|(at, device)| *at == place && can_be(device))?;
        Some((place as u8, device)).filter(|_| !self.are_pool_reads_over.load(Ordering::SeqCst))
    }

    /// Before slots of a device get other pages, while their own are away: nobody reads its file any more.
    pub fn end_pool_reads(&self) {
        self.are_pool_reads_over.store(true, Ordering::SeqCst);
        self.processes().iter().for_each(|process| self.end_pool_reads_if_over(process));
    }

    /// After it can be found: whoever ends it for all either finds the process, or is seen here.
    fn end_pool_reads_if_over(&self, process: &Process) {
        if self.are_pool_reads_over.load(Ordering::SeqCst) {
            process.memory.port.end_pool_reads();
        }
    }

    /// The address space is gone: free everything that it held.
    pub fn remove_process(&self, process: &Arc<Process>) {
        if self.processes.write().expect("processes").remove(&process.key).is_none() {
            return;
        }
        self.stalls_rest_us.fetch_add(process.stall.rest_us(now_us()), Ordering::Relaxed);
        process.sharing.ends();
        watch::unwatch_gone(&self.cpus, process);
        let held = process.hold_pages();
        let discount_pages = process.space.discount_pages();
        process.space.release(self.engine.swap(), crate::cpu());
        drop(held);
        self.engine.remove_space(&process.space);
        self.engine.note_gone(discount_pages);
        self.poke_waiting();
    }

    /// Since the start.
    pub fn elapsed_us(&self) -> u64 {
        now_us() - self.started_us
    }

    /// To which time since the start it is known how long was waited: the monitor looks now and then.
    pub fn stalls_known_us(&self) -> u64 {
        let now_us = now_us();
        (now_us - self.started_us).saturating_sub(self.stall.since_look_us(now_us))
    }

    /// How long processes have waited that have ended since the last look.
    pub fn take_rest_of_stalls_us(&self) -> u64 {
        self.stalls_rest_us.swap(0, Ordering::Relaxed)
    }

    pub fn pool_share_percent(&self) -> u32 {
        self.pool_share_percent.load(Ordering::Relaxed)
    }

    pub fn set_pool_share_percent(&self, percent: u32) {
        self.pool_share_percent.store(percent, Ordering::Relaxed);
    }

    /// What pages that came back tell of larger budgets, from the start to the monitor's last look.
    pub fn working_set(&self) -> Counts {
        self.working_set.lock().expect("working set").clone()
    }

    /// The monitor's look.
    pub fn note_working_set(&self) {
        let engine = &self.engine;
        let bytes = |of: fn(&Space) -> u64| {
            engine.spaces().iter().map(|space| of(space)).sum::<u64>() as f64 * PAGE_SIZE as f64
        };
        let pools = account::pools(engine);
        let held = RunMemory {
            budget_bytes: engine.root().limit_bytes() as f64,
            resident_bytes: bytes(Space::resident_pages),
            swapped_bytes: bytes(Space::swapped_pages),
            pool_bytes: pools.ram_bytes as f64,
            pooled_bytes: pools.ram_pages as f64 * PAGE_SIZE as f64,
        };
        let evicted_pages = engine.stats().sum(|counters| &counters.pgsteal);
        let distances = engine.swap().refaults.distances();
        self.working_set.lock().expect("working set").add(distances, evicted_pages, held);
    }

    pub fn object(&self, key: u64) -> Option<Arc<Object>> {
        self.objects.read().expect("objects").get(&key).cloned()
    }

    pub fn objects(&self) -> Vec<Arc<Object>> {
        self.objects.read().expect("objects").values().cloned().collect()
    }

    pub fn object_of(&self, id: Id) -> Option<Arc<Object>> {
        let objects = self.objects.read().expect("objects");
        objects.values().find(|object| object.id() == id).cloned()
    }

    /// Make an object known to the engine. It gives no pages until it is adopted.
    pub fn add_object(&self, object: Arc<Object>) {
        object.space.set_aside(true, &[]);
        self.engine.add_space(object.space.clone());
        self.objects.write().expect("objects").insert(object.key, object);
    }

    /// Nobody has it mapped, or it is not managed any more and all of it is in memory.
    pub fn remove_object(&self, object: &Object) {
        self.objects.write().expect("objects").remove(&object.key);
        let held = object.hold_pages();
        object.space.release(self.engine.swap(), crate::cpu());
        drop(held);
        self.engine.remove_space(&object.space);
        if object.is_file {
            object.let_go();
            self.publish_files();
        }
        self.poke_waiting();
    }

    /// Are files of shared memory managed?
    pub fn manages_files(&self) -> bool {
        self.files.watch.is_some()
    }

    pub fn has_files(&self) -> bool {
        self.objects().iter().any(|object| object.is_file)
    }

    /// Tell all agents which files may be managed.
    pub fn publish_files(&self) {
        let ids = || {
            let files = self.objects().into_iter().filter(|object| object.is_file);
            files.map(|object| object.id()).collect()
        };
        self.files.publish(ids, || self.processes());
    }

    /// Processes that have the object mapped.
    pub fn mappers(&self, object: u64) -> Vec<Arc<Process>> {
        let has = |process: &Arc<Process>| !process.memory.shared.of(object).is_empty();
        self.processes().into_iter().filter(has).collect()
    }

    /// Wake a reclaimer if usage calls for it.
    pub fn kick_reclaim(&self) {
        // The look before the swap: pagers of many CPUs would take the line from one another.
        if self.engine.groups().above_high_mark()
            && !self.reclaim_wanted.load(Ordering::Relaxed)
            && !self.reclaim_wanted.swap(true, Ordering::Relaxed)
        {
            *self.reclaim_calls.0.lock().expect("reclaim") += 1;
            match self.reclaimers_call_each_other() {
                true => self.reclaim_calls.1.notify_one(),
                false => self.reclaim_calls.1.notify_all(),
            }
        }
    }

    /// A reclaimer is at work, and this is not enough: another one wakes up, where not all do at once.
    pub fn kick_another_reclaimer(&self) {
        if self.reclaimers_call_each_other() {
            self.kick_reclaim();
        }
    }

    fn reclaimers_call_each_other(&self) -> bool {
        self.layout.reclaimers > layout::WOKEN_TOGETHER
    }

    pub fn reclaim_is_wanted(&self) -> bool {
        self.reclaim_wanted.load(Ordering::Relaxed)
    }

    /// Sleep until reclaim is wanted, at most for `limit`. `seen` is the number of the last call that was
    /// answered.
    pub fn wait_for_kick(&self, seen: &mut u64, limit: Duration) {
        let calls = self.reclaim_calls.0.lock().expect("reclaim");
        let (calls, _) =
            self.reclaim_calls.1.wait_timeout_while(calls, limit, |n| *n == *seen).expect("reclaim");
        *seen = *calls;
        drop(calls);
        self.reclaim_wanted.store(false, Ordering::Relaxed);
    }

    /// Let the monitor look at once.
    pub fn ask_for_look(&self) {
        self.looks.0.lock().expect("looks").asked += 1;
        self.looks.1.notify_all();
    }

    /// The number of the last look that was asked for. The monitor takes it when it begins one.
    pub fn looks_asked(&self) -> u64 {
        self.looks.0.lock().expect("looks").asked
    }

    /// Has the monitor counted all memory since the look of this number was asked for?
    pub fn has_looked(&self, asked: u64) -> bool {
        self.looks.0.lock().expect("looks").done >= asked
    }

    /// A look has been done that answers all up to this number.
    pub fn note_looked(&self, asked: u64) {
        self.looks.0.lock().expect("looks").done = asked;
    }

    /// The monitor's pause between two looks.
    pub fn wait_for_look(&self, limit: Duration) {
        let looks = self.looks.0.lock().expect("looks");
        drop(
            self.looks.1.wait_timeout_while(looks, limit, |looks| looks.asked == looks.done).expect("looks"),
        );
    }

    /// Let the pagers try again what waits for room.
    pub fn poke_waiting(&self) {
        self.cpus.iter().for_each(|cpu| _ = cpu.poke());
    }

    /// There is room for so many pages. If there are many pagers, only those try again whose faults use that
    /// up, in turns: if all did, hundreds would find no room. One that finds room for all that waited there
    /// pokes the next (`serve_waiting`), so that none waits while there is room. With several groups all are
    /// poked: who comes first may wait for another group's room.
    pub fn poke_for_room(&self, pages: usize) {
        if self.cpus.len() <= layout::WATCHERS_MAX as usize || self.engine.groups().all().len() > 1 {
            return self.poke_waiting();
        }
        if pages == 0 {
            return;
        }
        let (first, mut left) = (self.next_poked.load(Ordering::Relaxed), pages);
        for next in first..first + self.cpus.len() {
            left = left.saturating_sub(self.cpus[next % self.cpus.len()].poke());
            if left == 0 {
                return self.next_poked.store((next + 1) % self.cpus.len(), Ordering::Relaxed);
            }
        }
    }

    /// A pager has found room for all that waited there: so may the next one, where not all are poked at
    /// once.
    pub fn poke_another_pager(&self) {
        if self.cpus.len() > layout::WATCHERS_MAX as usize && self.engine.groups().all().len() == 1 {
            self.poke_for_room(1);
        }
    }

    /// How long faults have taken, of all pagers.
    pub fn fault_times(&self) -> Histogram {
        Histogram::sum(self.cpus.iter().map(|cpu| &cpu.fault_ns))
    }

    /// Whose faults wait for room, each as often as it has some.
    pub fn waiting_processes(&self) -> Vec<Arc<Process>> {
        self.cpus.iter().flat_map(PagerCpu::waiting_processes).collect()
    }

    /// Pages that left or were filled since the start: as long as it grows, nobody waits for ever.
    pub fn moved_pages(&self) -> u64 {
        let stats = self.engine.stats();
        stats.sum(|c| &c.pgsteal)
            + stats.sum(|c| &c.zero_fill)
            + stats.sum(|c| &c.swap_cache_hit)
            + stats.sum(|c| &c.pswpin)
    }

    /// Is memory tight, so that everything is registered?
    pub fn is_memory_tight(&self) -> bool {
        self.memory_is_tight.load(Ordering::Relaxed)
    }

    /// From now on it is, until the end of the run.
    pub fn note_memory_tight(&self) {
        self.memory_is_tight.store(true, Ordering::Relaxed);
    }

    /// Are the threads to end?
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub fn update_account(&self) {
        self.account.update(&self.engine);
    }

    pub fn verdict(&self) -> Option<Verdict> {
        self.verdict.lock().expect("verdict").clone()
    }

    /// End the run, for memspill itself cannot go on.
    pub fn fail(&self, message: String) {
        self.end_with(exit::OWN_FAILURE, message);
    }

    /// End the run, for its programs cannot go on.
    pub fn kill(&self, reason: &str) {
        self.end_with(exit::KILLED, format!("killed: {reason}"));
    }

    /// A group gets no room any more: the policy of `--on-full`. It needs so much, where that is known:
    /// then it grows to that and a quarter, for small steps would take a line each. Else by an eighth.
    pub fn no_way_out(&self, group: &Group, needed_bytes: Option<u64>, reason: &str, fix: &str) {
        match self.settings.on_full {
            OnFull::Kill => self.kill(&format!("{reason}; {fix}")),
            OnFull::Grow => {
                let limit_bytes = match needed_bytes {
                    Some(bytes) => bytes / 4 * 5,
                    None => group.max_bytes() + group.max_bytes() / 8,
                };
                group.set_limit_bytes(limit_bytes);
                let what = match group.parent {
                    None => "the budget".to_string(),
                    Some(_) => format!("group {}", group.name),
                };
                eprintln!("memspill: {reason}; {what} grows to {} MiB", limit_bytes >> 20);
                self.poke_waiting();
            }
        }
    }

    /// Only the first reason counts.
    fn end_with(&self, exit_code: i32, message: String) {
        let mut verdict = self.verdict.lock().expect("verdict");
        if verdict.is_none() {
            *verdict = Some(Verdict { exit_code, message });
            // SIGCHLD is what the main thread waits for; it looks at the verdict whenever it wakes.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::CHILD);
        }
    }
}
