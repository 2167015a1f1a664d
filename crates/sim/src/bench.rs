//! One measurement: so many CPUs, processes and pages, one pattern of access, a stretch of virtual time.
//!
//! ```text
//!   outside of time: fragment the devices, map all, the older half swapped out
//!     ─▶ tasks: warm-up ─▶ measured stretch ─▶ end
//! ```
//!
//! The first task to reach the start of the stretch reads the counters, and so does the first to reach its
//! end. The profile, and the counts of the mechanisms, are of warm-up and stretch together.
//!
//! If programs store to fresh memory (`Pattern::Fresh`) there is no warm-up, and the stretch lasts until the
//! last one has stored to all of its pages. Memory grows as the kernel gives it, a folio for each fault, and
//! the engine adopts it.
//!
//! What it does not do: report (scale.rs, seeds.rs).

use crate::device::{DeviceKind, Faults, SimDevice};
use crate::fragments::{Fragmented, Fragments};
use crate::host::{BATCH_PAGES, Host, Process, Reclaim, Worker};
use crate::kernel::{Form, Kernel};
use crate::pagers::Pagers;
use crate::target::{Folios, Target};
use crate::zipf::{SIX_FIFTHS, Zipf};
use memspill_engine_sim::backing::{Backing, QueueId};
use memspill_engine_sim::devices::Device;
use memspill_engine_sim::engine::Engine;
use memspill_engine_sim::slots::Slots;
use memspill_engine_sim::tuning::{FolioSize, LargeFolios, Tuning};
use memspill_engine_sim::units::{CpuId, Order, PAGE_SIZE, Vpn};
use memspill_vcpu::profile::Entry;
use memspill_vcpu::random::Random;
use memspill_vcpu::{self as vcpu, Machine, Waiting, World, cost};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Pages at random; so many percent of the accesses are stores.
    Random { write_percent: u64 },
    /// Loads of which most are of a few pages (zipf.rs).
    Zipf,
    /// Each page after the other, round and round, all of them stores.
    Sequential,
    /// Each page after the other, once: stores to memory that is fresh. `full`: the budget is used up from
    /// the start on, else each program begins with nothing.
    Fresh { full: bool },
    /// The pages of `Setup::recorded`, one after the other, round and round; each task begins elsewhere.
    Recorded,
}

/// Whose work it is to bring pages and to take them out.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Work {
    /// memspill's: faults come by userfaultfd, pages are copied in, and leave by way of staging.
    #[default]
    Pager,
    /// The kernel's: a fault is an exception, pages are read to where they will be, and written from where
    /// they were.
    Kernel(Form),
}

/// In what pieces pages leave.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Pieces {
    /// As memspill has it: runs are unmapped, a batch is one request.
    #[default]
    Batch,
    /// As the kernel has it: each folio by itself.
    Folio,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub cpus: u32,
    /// Threads of programs, spread over the CPUs; where there are more of them, round and round.
    pub tasks: u32,
    pub cpus_per_socket: u32,
    /// Tasks of one process.
    pub threads: u32,
    pub pages_per_task: u64,
    /// The set of pages is so many times the budget, in percent.
    pub set_percent: u64,
    /// None: there is room for all, in empty clusters.
    pub fragmented: Option<Fragmented>,
    /// What a program does between two accesses.
    pub compute_ns: u64,
    pub pattern: Pattern,
    pub recorded: Rc<[u32]>,
    pub kind: DeviceKind,
    pub devices: u32,
    pub reclaim: Reclaim,
    /// In what pieces pages are unmapped, and in what devices read and write them.
    pub unmaps: Pieces,
    pub requests: Pieces,
    pub work: Work,
    /// Neighbours are read by slot, as the kernel reads those of shared memory, and not by address.
    pub by_slot: bool,
    pub tuning: Tuning,
    pub warm_up_ns: u64,
    pub measured_ns: u64,
}

/// What was counted in the measured stretch.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counted {
    pub faults: u64,
    pub swapped_in: u64,
    pub swapped_out: u64,
    pub accesses: u64,
    /// Time in which CPUs were not idle.
    pub cpu_ns: u64,
}

/// What the mechanisms did while tasks ran, warm-up included, and for how many pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Mechanisms {
    /// Pages that went in or out.
    pub pages: u64,
    pub swapped_in: u64,
    /// The pages that came along with a page that faulted, and how many of them were touched before they
    /// left.
    pub readahead: u64,
    pub readahead_hits: u64,
    /// Faults on pages that were swapped out, by where the page was found: in the swap cache; read by way
    /// of it; read past it.
    pub hits: u64,
    pub misses: u64,
    pub bypassed: u64,
    pub cluster_locks: u64,
    pub cgroup_locks: u64,
    pub cgroup_contended: u64,
    /// Trunks looked at from a scan base.
    pub base_steps: u64,
    /// Pages of folios of larger orders that left singly, as there was no room in a row.
    pub fallbacks: u64,
}

#[derive(Debug)]
pub struct Measured {
    pub counted: Counted,
    pub mechanisms: Mechanisms,
    pub measured_ns: u64,
    /// Time of all CPUs together, warm-up included, and of that the time in which they were not idle: the
    /// profile is a share of it.
    pub cpu_ns: u64,
    pub busy_ns: u64,
    /// Half of the faults took no longer, and 99 of 100.
    pub fault_ns: [u64; 2],
    /// The time of all CPUs in the measured stretch that is neither the program's own nor idle.
    pub system_ns: u64,
    pub profile: Vec<Entry>,
}

impl Measured {
    /// Pages in and out in a second of virtual time.
    pub fn pages_per_s(&self) -> f64 {
        (self.counted.swapped_in + self.counted.swapped_out) as f64 * 1e9 / self.measured_ns as f64
    }
}

/// The start of programs that store to fresh memory.
const BEGIN_WITHIN_NS: u64 = 100_000;

struct Meter {
    /// With the time.
    start: Cell<Option<(Counted, u64)>>,
    end: Cell<Option<(Counted, u64)>>,
    accesses: Cell<u64>,
    /// How long each fault of the stretch took.
    faults_ns: RefCell<Vec<u64>>,
    running: Cell<u32>,
    busy_ns: Cell<u64>,
}

pub fn measure(setup: &Setup) -> Measured {
    let world = World::install(&Machine {
        cpus_per_socket: setup.cpus_per_socket,
        preemption: None,
        waiting: match setup.work {
            Work::Pager => Waiting::Sleeps,
            Work::Kernel(_) => Waiting::Spins,
        },
    });
    if matches!(setup.work, Work::Kernel(form) if form.counts_cache) {
        world.counts_in_holds_of("CacheTrunk");
    }
    let measured = run_setup(setup);
    Measured { profile: world.profile().report(), ..measured }
}

/// All but the profile.
fn run_setup(setup: &Setup) -> Measured {
    let host = Rc::new(make_host(setup));
    if let Work::Kernel(form) = setup.work {
        let kernel = Kernel::new(form, setup.cpus, setup.cpus_per_socket);
        *host.kernel.borrow_mut() = Some(Rc::new(kernel));
    }
    let fragments =
        setup.fragmented.map(|how| Fragments::make(how, setup.seed, setup.pages_out(), &host.engine));
    let pagers = match setup.reclaim {
        Reclaim::Pagers(layout, back) => Some(Rc::new(Pagers::new(layout, back))),
        Reclaim::Direct | Reclaim::Background(_) | Reclaim::Both(_) => None,
    };
    if let Some(pagers) = &pagers {
        *host.pagers.borrow_mut() = Some(pagers.clone());
    }
    let processes = populate(setup, &host);
    let before = Mechanisms::of(&host);
    let zipf = (setup.pattern == Pattern::Zipf)
        .then(|| Rc::new(Zipf::new(setup.pages_per_task * u64::from(setup.threads), SIX_FIFTHS)));
    let meter = Rc::new(Meter {
        start: Cell::default(),
        end: Cell::default(),
        accesses: Cell::new(0),
        faults_ns: RefCell::default(),
        running: Cell::new(setup.tasks),
        busy_ns: Cell::default(),
    });
    for task in 0..setup.tasks {
        let process = processes[(task / setup.threads) as usize].clone();
        let (setup, host, meter, zipf) = (setup.clone(), host.clone(), meter.clone(), zipf.clone());
        let pagers = pagers.clone();
        vcpu::spawn(setup.cpu_of(task), format!("task {task}"), move || {
            run_task(&setup, &host, &meter, task, &process, zipf.as_deref(), pagers.as_deref());
        });
    }
    if let Reclaim::Background(reclaimers) = setup.reclaim {
        for index in setup.cpus..setup.cpus + reclaimers {
            let host = host.clone();
            vcpu::spawn(index, format!("reclaimer on CPU {index}"), move || {
                host.reclaimer(CpuId(index), QueueId(index));
            });
        }
    }
    if let Reclaim::Both(reclaimers) = setup.reclaim {
        for index in 0..reclaimers {
            let host = host.clone();
            let (cpu, queue) = (CpuId(setup.cpus + index), QueueId(setup.tasks + index));
            let last_of_socket = ((index + 1) * setup.cpus_per_socket - 1) % setup.cpus;
            vcpu::spawn_floating(last_of_socket, format!("reclaimer {index}"), move || {
                host.reclaimer(cpu, queue);
            });
        }
    }
    if let Some(pagers) = &pagers {
        spawn_pagers(setup, &host, pagers);
    }
    let ran_ns = vcpu::run();
    let mechanisms = Mechanisms::of(&host).since(&before);
    if let Some(fragments) = fragments {
        fragments.give_back(&host.engine);
    }
    host.engine.check();
    let (start, started_at) = meter.start.get().expect("a task has begun the measured stretch");
    let (end, ended_at) = meter.end.get().expect("a task has ended the measured stretch");
    let counted = Counted {
        faults: end.faults - start.faults,
        swapped_in: end.swapped_in - start.swapped_in,
        swapped_out: end.swapped_out - start.swapped_out,
        accesses: end.accesses - start.accesses,
        cpu_ns: end.cpu_ns - start.cpu_ns,
    };
    let own_ns = counted.accesses * (cost::ACCESS_NS + setup.compute_ns);
    Measured {
        counted,
        mechanisms,
        measured_ns: match setup.pattern {
            Pattern::Fresh { .. } => ended_at - started_at,
            _ => setup.measured_ns,
        },
        cpu_ns: ran_ns * u64::from(setup.all_cpus()),
        busy_ns: meter.busy_ns.get(),
        fault_ns: percentiles(meter.faults_ns.take()),
        system_ns: counted.cpu_ns.saturating_sub(own_ns),
        profile: Vec::new(),
    }
}

fn percentiles(mut faults_ns: Vec<u64>) -> [u64; 2] {
    faults_ns.sort_unstable();
    [50, 99].map(|percent| faults_ns.get(faults_ns.len() * percent / 100).copied().unwrap_or(0))
}

fn spawn_pagers(setup: &Setup, host: &Rc<Host>, pagers: &Rc<Pagers>) {
    for index in 0..pagers.layout.pagers {
        let (host, pagers) = (host.clone(), pagers.clone());
        vcpu::spawn(index % setup.cpus, format!("pager {index}"), move || pagers.pager(&host, index));
    }
    for index in 0..pagers.layout.reclaimers {
        let (host, pagers) = (host.clone(), pagers.clone());
        let cpu = (u64::from(index) * u64::from(setup.cpus) / u64::from(pagers.layout.reclaimers)) as u32;
        vcpu::spawn_floating(cpu, format!("reclaimer {index}"), move || pagers.reclaimer(&host, index));
    }
}

impl Setup {
    fn all_cpus(&self) -> u32 {
        self.cpus + if let Reclaim::Background(n) = self.reclaim { n } else { 0 }
    }

    fn cpu_of(&self, task: u32) -> u32 {
        match self.tasks < self.cpus {
            true => task * self.cpus / self.tasks,
            false => task % self.cpus,
        }
    }

    /// Queues of the devices.
    fn queues(&self) -> u32 {
        match self.reclaim {
            Reclaim::Direct => self.tasks,
            Reclaim::Background(n) | Reclaim::Both(n) => self.tasks + n,
            Reclaim::Pagers(layout, _) => layout.pagers + layout.reclaimers,
        }
    }

    /// CPUs, as the engine knows them.
    fn engine_cpus(&self) -> u32 {
        match self.reclaim {
            Reclaim::Direct => self.cpus,
            Reclaim::Background(n) | Reclaim::Both(n) => self.cpus + n,
            Reclaim::Pagers(..) => self.queues(),
        }
    }

    /// The pages of each task.
    fn fresh_pages(&self) -> u64 {
        match self.pattern {
            Pattern::Fresh { full: false } => self.pages_per_task,
            Pattern::Fresh { full: true } => {
                let fits = self.pages_per_task * 100 / self.set_percent;
                self.pages_per_task - fits / self.folio_pages() * self.folio_pages()
            }
            _ => 0,
        }
    }

    fn folio_pages(&self) -> u64 {
        self.folio_order().pages().into()
    }

    fn pages(&self) -> u64 {
        self.pages_per_task * u64::from(self.tasks)
    }

    fn limit_pages(&self) -> u64 {
        self.pages() * 100 / self.set_percent
    }

    /// Batches that are under way.
    fn pages_on_their_way(&self) -> u64 {
        u64::from(self.queues()) * BATCH_PAGES as u64
    }

    /// Pages that do not fit in the budget, and those that are on their way.
    fn pages_out(&self) -> u64 {
        self.pages().saturating_sub(self.limit_pages()) + self.pages_on_their_way()
    }

    /// The order of the folios that programs' memory is made of.
    fn folio_order(&self) -> Order {
        match self.tuning.folio {
            FolioSize::Fixed(order) => order,
            FolioSize::Auto => Order::ZERO,
        }
    }

    fn folios(&self) -> Folios {
        let (order, leave) = (self.folio_order(), self.leaving_order());
        Folios { order, leave, unmapped_by_run: self.unmaps == Pieces::Batch }
    }

    fn leaving_order(&self) -> Order {
        if self.tuning.large_folios == LargeFolios::Split { Order::ZERO } else { self.folio_order() }
    }

    /// The order of what is read or written in one request; None: the batch is.
    fn requested(&self) -> Option<Order> {
        (self.requests == Pieces::Folio).then_some(self.leaving_order())
    }
}

impl Mechanisms {
    /// Since the host was made. To be called while no task runs.
    fn of(host: &Host) -> Mechanisms {
        let stats = host.engine.stats();
        let swapped_in = stats.sum(|c| &c.pswpin);
        let mut sum = Mechanisms {
            pages: swapped_in + stats.sum(|c| &c.pswpout),
            swapped_in,
            readahead: stats.sum(|c| &c.swap_ra),
            readahead_hits: stats.sum(|c| &c.swap_ra_hit)
                + host.processes.borrow().iter().map(|p| p.target.readahead_hits()).sum::<u64>(),
            hits: stats.sum(|c| &c.swap_cache_hit),
            misses: stats.sum(|c| &c.swap_cache_miss),
            bypassed: stats.sum(|c| &c.swap_cache_bypass),
            fallbacks: stats.sum(|c| &c.swpout_split),
            ..Mechanisms::default()
        };
        for slots in host.engine.devices().iter().map(|device| device.slots.stats()) {
            sum.cluster_locks += slots.cluster_lock.taken;
            sum.cgroup_locks += slots.cgroup_lock.taken;
            sum.cgroup_contended += slots.cgroup_lock.contended;
            sum.base_steps += slots.base_steps;
        }
        sum
    }

    /// Faults on pages that were swapped out.
    pub fn swap_in_faults(&self) -> u64 {
        self.hits + self.misses + self.bypassed
    }

    fn since(&self, before: &Mechanisms) -> Mechanisms {
        Mechanisms {
            pages: self.pages - before.pages,
            swapped_in: self.swapped_in - before.swapped_in,
            readahead: self.readahead - before.readahead,
            readahead_hits: self.readahead_hits - before.readahead_hits,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            bypassed: self.bypassed - before.bypassed,
            cluster_locks: self.cluster_locks - before.cluster_locks,
            cgroup_locks: self.cgroup_locks - before.cgroup_locks,
            cgroup_contended: self.cgroup_contended - before.cgroup_contended,
            base_steps: self.base_steps - before.base_steps,
            fallbacks: self.fallbacks - before.fallbacks,
        }
    }
}

fn make_host(setup: &Setup) -> Host {
    let lost = Arc::default();
    let slots = match setup.fragmented {
        Some(how) => how.slots(),
        None => (setup.pages() + setup.pages() / 4 + setup.pages_on_their_way() + 1024) as u32,
    };
    let made: Vec<(Device, Arc<SimDevice>)> = (0..setup.devices)
        .map(|n| {
            let sim = SimDevice::new(setup.kind, slots, Faults::default(), Arc::clone(&lost));
            let is_fresh = matches!(setup.pattern, Pattern::Fresh { full: false });
            let sim = sim.rotating(setup.by_slot).in_pieces(setup.requested()).fresh(is_fresh);
            let sim = Arc::new(sim);
            let backing: Arc<dyn Backing> = sim.clone();
            let table = Slots::new(slots, setup.engine_cpus(), false, &setup.tuning);
            (Device::new(format!("device {n}"), 0, table, vcpu::Arc::from_std(backing)), sim)
        })
        .collect();
    let (devices, sims): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let limit_bytes = setup.limit_pages() * PAGE_SIZE as u64;
    Host::new(Engine::new(devices, limit_bytes, setup.tuning.clone()), sims, setup.reclaim)
}

/// Processes all of whose pages hold something, as many of them present as the budget has room for. They grow
/// side by side, so that each has its share of the budget. Memory that will be fresh is not there yet.
fn populate(setup: &Setup, host: &Host) -> Vec<Rc<Process>> {
    let pages = setup.pages_per_task * u64::from(setup.threads) - setup.fresh_pages();
    let target = || {
        let target = Target::new(Arc::default()).of_folios(setup.folios());
        if matches!(setup.work, Work::Kernel(_)) { target.of_the_kernel() } else { target }
    };
    let new = |_| host.add_process(Arc::new(target()), setup.threads == 1);
    let processes: Vec<Rc<Process>> = (0..setup.tasks.div_ceil(setup.threads)).map(new).collect();
    for first in (0..pages).step_by(BATCH_PAGES) {
        let last = pages.min(first + BATCH_PAGES as u64);
        for (n, process) in processes.iter().enumerate() {
            let stamp = |page| (n as u64 + 1) << 32 | (page + 1);
            (first..last).for_each(|page| process.target.map_present(page, stamp(page)));
            process.space.adopt(host.engine.swap(), Vpn(first), Vpn(last));
            while host.engine.root().above_low_mark() && host.take_batch(CpuId(0), QueueId(0)) > 0 {}
        }
    }
    processes
}

fn run_task(
    setup: &Setup,
    host: &Rc<Host>,
    meter: &Meter,
    task: u32,
    process: &Rc<Process>,
    zipf: Option<&Zipf>,
    pagers: Option<&Pagers>,
) {
    let cpu = setup.cpu_of(task);
    let mut worker = Worker::new(host.clone(), cpu, task);
    let mut random = Random::new(setup.seed ^ u64::from(task) << 32);
    let pages = setup.pages_per_task * u64::from(setup.threads);
    let own_first = setup.pages_per_task * u64::from(task % setup.threads);
    let mut turn = random.below((setup.recorded.len() as u64).max(setup.pages_per_task));
    let mut stamp = u64::from(task + 1) << 40 | 1 << 63;
    let (warm_up_ns, end) = match setup.pattern {
        Pattern::Fresh { .. } => (0, u64::MAX),
        _ => (setup.warm_up_ns, setup.warm_up_ns + setup.measured_ns),
    };
    if matches!(setup.pattern, Pattern::Fresh { .. }) {
        // Programs do not begin at once.
        vcpu::step(random.below(BEGIN_WITHIN_NS));
    }
    let mut fresh = own_first + setup.pages_per_task - setup.fresh_pages()..own_first + setup.pages_per_task;
    while vcpu::now() < end {
        if vcpu::now() >= warm_up_ns && meter.start.get().is_none() {
            meter.start.set(Some((counted(host, meter), vcpu::now())));
            meter.faults_ns.borrow_mut().clear();
        }
        let (page, write) = match setup.pattern {
            Pattern::Random { write_percent } => (random.below(pages), random.below(100) < write_percent),
            Pattern::Zipf => (zipf.expect("made for this pattern").page(&mut random), false),
            Pattern::Recorded => {
                turn = (turn + 1) % setup.recorded.len() as u64;
                (setup.recorded[turn as usize].into(), false)
            }
            Pattern::Sequential => {
                turn = (turn + 1) % setup.pages_per_task;
                (own_first + turn, true)
            }
            Pattern::Fresh { .. } => {
                let Some(page) = fresh.next() else { break };
                if !process.target.is_mapped(page) {
                    worker.grow(process, page..(page + setup.folio_pages()).min(fresh.end));
                }
                (page, true)
            }
        };
        stamp += 1;
        vcpu::step(setup.compute_ns);
        let began = vcpu::now();
        match pagers {
            Some(pagers) => pagers.access(process, cpu, page, write.then_some(stamp)),
            None => worker.access(process, page, write.then_some(stamp)),
        };
        let took_ns = vcpu::now() - began;
        if took_ns > cost::ACCESS_NS && meter.end.get().is_none() {
            meter.faults_ns.borrow_mut().push(took_ns);
        }
        meter.accesses.set(meter.accesses.get() + 1);
    }
    worker.end_growth(process);
    if meter.end.get().is_none() || end == u64::MAX {
        meter.end.set(Some((counted(host, meter), vcpu::now())));
    }
    meter.running.set(meter.running.get() - 1);
    if meter.running.get() == 0 {
        meter.busy_ns.set(vcpu::cpu_time());
        host.stop();
    }
}

/// Reads the engine's counters at no virtual cost, since no thread of a real run reads them.
fn counted(host: &Host, meter: &Meter) -> Counted {
    let stats = host.engine.stats();
    let (accesses, cpu_ns) = (meter.accesses.get(), vcpu::cpu_time());
    let mut counted = Counted { accesses, cpu_ns, ..Counted::default() };
    vcpu::untimed(|| {
        counted.faults = stats.sum(|c| &c.pgfault);
        counted.swapped_in = stats.sum(|c| &c.pswpin);
        counted.swapped_out = stats.sum(|c| &c.pswpout);
    });
    counted
}
