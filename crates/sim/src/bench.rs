//! One measurement: so many CPUs, processes and pages, one pattern of access, a stretch of virtual time.
//!
//! ```text
//!   outside of time: map all, the older half swapped out ─▶ tasks: warm-up ─▶ measured stretch ─▶ end
//! ```
//!
//! The first task to reach the start of the stretch reads the counters, and so does the first to reach its
//! end. The profile, and the counts of the mechanisms, are of warm-up and stretch together. What it does not
//! do: report (scale.rs, seeds.rs).

use crate::device::{DeviceKind, Faults, SimDevice};
use crate::host::{BATCH_PAGES, Host, Process, Reclaim, Worker};
use crate::pagers::Pagers;
use crate::target::Target;
use crate::zipf::Zipf;
use memspill_engine_sim::backing::{Backing, QueueId};
use memspill_engine_sim::devices::Device;
use memspill_engine_sim::engine::Engine;
use memspill_engine_sim::slots::Slots;
use memspill_engine_sim::tuning::Tuning;
use memspill_engine_sim::units::{CpuId, PAGE_SIZE, Vpn};
use memspill_vcpu::profile::Entry;
use memspill_vcpu::random::Random;
use memspill_vcpu::{self as vcpu, Machine, World, cost};
use std::cell::Cell;
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
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub seed: u64,
    pub cpus: u32,
    /// Threads of programs; the n-th is on CPU n, round and round.
    pub tasks: u32,
    pub cpus_per_socket: u32,
    /// Tasks of one process.
    pub threads: u32,
    pub pages_per_task: u64,
    /// The set of pages is so many times the budget, in percent.
    pub set_percent: u64,
    /// How full the devices are with what does not fit in the budget, in percent; 0: there is room for all.
    pub full_percent: u64,
    /// What a program does between two accesses.
    pub compute_ns: u64,
    pub pattern: Pattern,
    pub kind: DeviceKind,
    pub devices: u32,
    pub reclaim: Reclaim,
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
    /// Of those, the ones that came along with a page that faulted, and how many of them were touched before
    /// they left.
    pub readahead: u64,
    pub readahead_hits: u64,
    /// Faults on pages that were swapped out, by where the page was found: in the swap cache; read by way
    /// of it; read past it.
    pub hits: u64,
    pub misses: u64,
    pub bypassed: u64,
    pub cluster_locks: u64,
    pub cluster_contended: u64,
    pub list_locks: u64,
    pub list_contended: u64,
    pub cgroup_locks: u64,
    pub cgroup_contended: u64,
    /// 64-bit words of free bitmaps looked at, and trunks looked at from a scan base.
    pub scan_steps: u64,
    pub base_steps: u64,
    /// Folios of larger orders that got no slots and were split.
    pub fallbacks: u64,
}

#[derive(Debug)]
pub struct Measured {
    pub counted: Counted,
    pub mechanisms: Mechanisms,
    pub measured_ns: u64,
    /// Time of all tasks together, warm-up included: what the profile is a share of.
    pub cpu_ns: u64,
    /// Of the measured stretch: time of all CPUs that is neither the program's own nor idle.
    pub system_ns: u64,
    pub profile: Vec<Entry>,
}

impl Measured {
    /// Pages in and out in a second of virtual time.
    pub fn pages_per_s(&self) -> f64 {
        (self.counted.swapped_in + self.counted.swapped_out) as f64 * 1e9 / self.measured_ns as f64
    }
}

struct Meter {
    start: Cell<Option<Counted>>,
    end: Cell<Option<Counted>>,
    accesses: Cell<u64>,
    running: Cell<u32>,
}

pub fn measure(setup: &Setup) -> Measured {
    let world = World::install(&Machine { cpus_per_socket: setup.cpus_per_socket, preemption: None });
    let (cpu_ns, counted, mechanisms) = run_setup(setup);
    let profile = world.profile().report();
    let own_ns = counted.accesses * (cost::ACCESS_NS + setup.compute_ns);
    let system_ns = counted.cpu_ns.saturating_sub(own_ns);
    Measured { counted, mechanisms, measured_ns: setup.measured_ns, cpu_ns, system_ns, profile }
}

fn run_setup(setup: &Setup) -> (u64, Counted, Mechanisms) {
    let host = Rc::new(make_host(setup));
    let pagers = match setup.reclaim {
        Reclaim::Pagers(layout, back) => Some(Rc::new(Pagers::new(layout, back))),
        Reclaim::Direct | Reclaim::Background(_) => None,
    };
    if let Some(pagers) = &pagers {
        *host.pagers.borrow_mut() = Some(pagers.clone());
    }
    let processes = populate(setup, &host);
    let before = Mechanisms::of(&host);
    let zipf = (setup.pattern == Pattern::Zipf)
        .then(|| Rc::new(Zipf::new(setup.pages_per_task * u64::from(setup.threads))));
    let meter = Rc::new(Meter {
        start: Cell::default(),
        end: Cell::default(),
        accesses: Cell::new(0),
        running: Cell::new(setup.tasks),
    });
    for task in 0..setup.tasks {
        let process = processes[(task / setup.threads) as usize].clone();
        let (setup, host, meter, zipf) = (setup.clone(), host.clone(), meter.clone(), zipf.clone());
        let pagers = pagers.clone();
        vcpu::spawn(task % setup.cpus, format!("task {task}"), move || {
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
    if let Some(pagers) = &pagers {
        spawn_pagers(setup, &host, pagers);
    }
    let ran_ns = vcpu::run();
    host.engine.check();
    let start = meter.start.get().expect("a task has begun the measured stretch");
    let end = meter.end.get().expect("a task has ended the measured stretch");
    let counted = Counted {
        faults: end.faults - start.faults,
        swapped_in: end.swapped_in - start.swapped_in,
        swapped_out: end.swapped_out - start.swapped_out,
        accesses: end.accesses - start.accesses,
        cpu_ns: end.cpu_ns - start.cpu_ns,
    };
    (ran_ns * u64::from(setup.all_cpus()), counted, Mechanisms::of(&host).since(&before))
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

    /// CPUs and queues of the engine.
    fn queues(&self) -> u32 {
        match self.reclaim {
            Reclaim::Direct => self.tasks,
            Reclaim::Background(n) => self.tasks + n,
            Reclaim::Pagers(layout, _) => layout.pagers + layout.reclaimers,
        }
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
            ..Mechanisms::default()
        };
        for slots in host.engine.devices().iter().map(|device| device.slots.stats()) {
            sum.cluster_locks += slots.cluster_lock.taken;
            sum.cluster_contended += slots.cluster_lock.contended;
            sum.list_locks += slots.list_lock.taken;
            sum.list_contended += slots.list_lock.contended;
            sum.cgroup_locks += slots.cgroup_lock.taken;
            sum.cgroup_contended += slots.cgroup_lock.contended;
            sum.scan_steps += slots.scan_steps;
            sum.base_steps += slots.base_steps;
            sum.fallbacks += slots.failed[1..].iter().sum::<u64>();
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
            cluster_contended: self.cluster_contended - before.cluster_contended,
            list_locks: self.list_locks - before.list_locks,
            list_contended: self.list_contended - before.list_contended,
            cgroup_locks: self.cgroup_locks - before.cgroup_locks,
            cgroup_contended: self.cgroup_contended - before.cgroup_contended,
            scan_steps: self.scan_steps - before.scan_steps,
            base_steps: self.base_steps - before.base_steps,
            fallbacks: self.fallbacks - before.fallbacks,
        }
    }
}

fn make_host(setup: &Setup) -> Host {
    let lost = Arc::default();
    let pages = setup.pages_per_task * u64::from(setup.tasks);
    let queues = setup.queues();
    let on_its_way = u64::from(queues) * BATCH_PAGES as u64;
    let slots = match setup.full_percent {
        0 => pages + pages / 4 + on_its_way + 1024,
        full => {
            let out = pages - pages * 100 / setup.set_percent + on_its_way;
            (out * 100 / full / u64::from(setup.devices)).next_multiple_of(512)
        }
    };
    let slots = slots as u32;
    let made: Vec<(Device, Arc<SimDevice>)> = (0..setup.devices)
        .map(|n| {
            let sim = Arc::new(SimDevice::new(setup.kind, slots, Faults::default(), Arc::clone(&lost)));
            let backing: Arc<dyn Backing> = sim.clone();
            let table = Slots::new(slots, queues, false, &setup.tuning);
            (Device::new(format!("device {n}"), 0, table, vcpu::Arc::from_std(backing)), sim)
        })
        .collect();
    let (devices, sims): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let limit_bytes = pages * PAGE_SIZE as u64 * 100 / setup.set_percent;
    Host::new(Engine::new(devices, limit_bytes, setup.tuning.clone()), sims, setup.reclaim)
}

/// Processes all of whose pages hold something, as many of them present as the budget has room for. They grow
/// side by side, so that each has its share of the budget.
fn populate(setup: &Setup, host: &Host) -> Vec<Rc<Process>> {
    let pages = setup.pages_per_task * u64::from(setup.threads);
    let new = |_| host.add_process(Arc::new(Target::new(Arc::default())), setup.threads == 1);
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
    let cpu = task % setup.cpus;
    let mut worker = Worker::new(host.clone(), cpu, task);
    let mut random = Random::new(setup.seed ^ u64::from(task) << 32);
    let pages = setup.pages_per_task * u64::from(setup.threads);
    let own_first = setup.pages_per_task * u64::from(task % setup.threads);
    let mut turn = random.below(setup.pages_per_task);
    let mut stamp = u64::from(task + 1) << 40 | 1 << 63;
    let end = setup.warm_up_ns + setup.measured_ns;
    while vcpu::now() < end {
        if vcpu::now() >= setup.warm_up_ns && meter.start.get().is_none() {
            meter.start.set(Some(counted(host, meter)));
        }
        let (page, write) = match setup.pattern {
            Pattern::Random { write_percent } => (random.below(pages), random.below(100) < write_percent),
            Pattern::Zipf => (zipf.expect("made for this pattern").page(&mut random), false),
            Pattern::Sequential => {
                turn = (turn + 1) % setup.pages_per_task;
                (own_first + turn, true)
            }
        };
        stamp += 1;
        vcpu::step(setup.compute_ns);
        match pagers {
            Some(pagers) => pagers.access(process, cpu, page, write.then_some(stamp)),
            None => worker.access(process, page, write.then_some(stamp)),
        };
        meter.accesses.set(meter.accesses.get() + 1);
    }
    if meter.end.get().is_none() {
        meter.end.set(Some(counted(host, meter)));
    }
    meter.running.set(meter.running.get() - 1);
    if meter.running.get() == 0 {
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
