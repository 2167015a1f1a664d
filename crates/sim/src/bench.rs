//! One measurement: so many CPUs, processes and pages, one pattern of access, a stretch of virtual time.
//!
//! ```text
//!   outside of time: map all, the older half swapped out ─▶ tasks: warm-up ─▶ measured stretch ─▶ end
//! ```
//!
//! Counters are taken at the start of the stretch and at its end by the first task to come there; the profile, and what the
//! mechanisms did, are of warm-up and stretch together. What it does not do: report (scale.rs, seeds.rs).

use crate::device::{Faults, Kind, SimDevice};
use crate::host::{BATCH_PAGES, Host, Process, Reclaim, Worker};
use crate::target::Target;
use crate::zipf::Zipf;
use memspill_engine_sim::backing::{Backing, QueueId};
use memspill_engine_sim::engine::{Device, Engine};
use memspill_engine_sim::slots::SwapDevice;
use memspill_engine_sim::tuning::Tuning;
use memspill_engine_sim::units::{CpuId, PAGE_SIZE, Vpn};
use memspill_vcpu::profile::Entry;
use memspill_vcpu::random::Random;
use memspill_vcpu::{self as vcpu, Machine, World};
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
    /// Tasks, each on a CPU of its own.
    pub cpus: u32,
    pub cpus_per_socket: u32,
    /// Tasks of one process.
    pub threads: u32,
    pub pages_per_cpu: u64,
    /// The set of pages is so many times the budget, in percent.
    pub set_percent: u64,
    pub pattern: Pattern,
    pub kind: Kind,
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
}

/// What the mechanisms did while tasks ran, warm-up included, and for how many pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Mechanisms {
    /// Pages that went in or out.
    pub pages: u64,
    pub swapped_in: u64,
    /// Of those, the ones that came along with a page that faulted, and how many of them were touched before they left.
    pub readahead: u64,
    pub readahead_hits: u64,
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
    cpu_ns: Cell<u64>,
}

pub fn measure(setup: &Setup) -> Measured {
    let world = World::install(&Machine { cpus_per_socket: setup.cpus_per_socket, preemption: None });
    let (cpu_ns, counted, mechanisms) = run(setup);
    let profile = world.profile().report();
    Measured { counted, mechanisms, measured_ns: setup.measured_ns, cpu_ns, profile }
}

fn run(setup: &Setup) -> (u64, Counted, Mechanisms) {
    let host = Rc::new(make_host(setup));
    let processes = populate(setup, &host);
    let before = Mechanisms::of(&host);
    let zipf = (setup.pattern == Pattern::Zipf)
        .then(|| Rc::new(Zipf::new(setup.pages_per_cpu * u64::from(setup.threads))));
    let meter = Rc::new(Meter {
        start: Cell::default(),
        end: Cell::default(),
        accesses: Cell::new(0),
        running: Cell::new(setup.cpus),
        cpu_ns: Cell::new(0),
    });
    for cpu in 0..setup.cpus {
        let process = processes[(cpu / setup.threads) as usize].clone();
        let (setup, host, meter, zipf) = (setup.clone(), host.clone(), meter.clone(), zipf.clone());
        vcpu::spawn(cpu, format!("CPU {cpu}"), move || {
            task(&setup, &host, &meter, cpu, &process, zipf.as_deref());
        });
    }
    if let Reclaim::Background(reclaimers) = setup.reclaim {
        for index in setup.cpus..setup.cpus + reclaimers {
            let (host, meter) = (host.clone(), meter.clone());
            vcpu::spawn(index, format!("reclaimer on CPU {index}"), move || {
                host.reclaimer(CpuId(index), QueueId(index));
                meter.cpu_ns.set(meter.cpu_ns.get() + vcpu::now());
            });
        }
    }
    vcpu::run();
    host.engine.check();
    let start = meter.start.get().expect("a task has begun the measured stretch");
    let end = meter.end.get().expect("a task has ended the measured stretch");
    let counted = Counted {
        faults: end.faults - start.faults,
        swapped_in: end.swapped_in - start.swapped_in,
        swapped_out: end.swapped_out - start.swapped_out,
        accesses: end.accesses - start.accesses,
    };
    (meter.cpu_ns.get(), counted, Mechanisms::of(&host).since(&before))
}

impl Mechanisms {
    /// Since the host was made. To be called while no task runs.
    fn of(host: &Host) -> Mechanisms {
        let stats = &host.engine.stats;
        let swapped_in = stats.sum(|c| &c.pswpin);
        let mut sum = Mechanisms {
            pages: swapped_in + stats.sum(|c| &c.pswpout),
            swapped_in,
            readahead: stats.sum(|c| &c.swap_ra),
            readahead_hits: host.processes.borrow().iter().map(|p| p.target.readahead_hits()).sum(),
            ..Mechanisms::default()
        };
        for slots in host.engine.devices.iter().map(|device| device.slots.stats()) {
            sum.cluster_locks += slots.cluster_locks;
            sum.cluster_contended += slots.cluster_contended;
            sum.list_locks += slots.list_locks;
            sum.list_contended += slots.list_contended;
            sum.cgroup_locks += slots.cgroup_locks;
            sum.cgroup_contended += slots.cgroup_contended;
            sum.scan_steps += slots.scan_steps;
            sum.base_steps += slots.base_steps;
            sum.fallbacks += slots.failed[1..].iter().sum::<u64>();
        }
        sum
    }

    fn since(&self, before: &Mechanisms) -> Mechanisms {
        Mechanisms {
            pages: self.pages - before.pages,
            swapped_in: self.swapped_in - before.swapped_in,
            readahead: self.readahead - before.readahead,
            readahead_hits: self.readahead_hits - before.readahead_hits,
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
    let pages = setup.pages_per_cpu * u64::from(setup.cpus);
    let tasks = setup.cpus + if let Reclaim::Background(n) = setup.reclaim { n } else { 0 };
    // Room for all pages on each device, and for what is on its way.
    let slots = (pages + pages / 4 + u64::from(tasks) * BATCH_PAGES as u64 + 1024) as u32;
    let made: Vec<(Device, Arc<SimDevice>)> = (0..setup.devices)
        .map(|n| {
            let sim = Arc::new(SimDevice::new(setup.kind, slots, Faults::default(), Arc::clone(&lost)));
            let backing: Arc<dyn Backing> = sim.clone();
            let table = SwapDevice::new(slots, tasks, false, &setup.tuning);
            (Device::new(format!("device {n}"), 0, table, vcpu::Arc::from_std(backing)), sim)
        })
        .collect();
    let (devices, sims): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let limit_bytes = pages * PAGE_SIZE as u64 * 100 / setup.set_percent;
    Host::new(Engine::new(devices, limit_bytes, setup.tuning.clone()), sims, setup.reclaim)
}

/// Processes all of whose pages hold something, as many of them present as the budget has room for. They grow side by side,
/// so that each has its share of the budget.
fn populate(setup: &Setup, host: &Host) -> Vec<Rc<Process>> {
    let pages = setup.pages_per_cpu * u64::from(setup.threads);
    let new = |_| host.add_process(Arc::new(Target::new(pages, Arc::default())));
    let processes: Vec<Rc<Process>> = (0..setup.cpus.div_ceil(setup.threads)).map(new).collect();
    for first in (0..pages).step_by(BATCH_PAGES) {
        let last = pages.min(first + BATCH_PAGES as u64);
        for (n, process) in processes.iter().enumerate() {
            let stamp = |page| (n as u64 + 1) << 32 | (page + 1);
            (first..last).for_each(|page| process.target.map_present(page, stamp(page)));
            process.space.adopt(&host.engine, Vpn(first), Vpn(last));
            while host.engine.group.above_low_mark() && host.batch(CpuId(0), QueueId(0)) > 0 {}
        }
    }
    processes
}

fn task(setup: &Setup, host: &Rc<Host>, meter: &Meter, cpu: u32, process: &Rc<Process>, zipf: Option<&Zipf>) {
    let mut worker = Worker::new(host.clone(), cpu);
    let mut random = Random::new(setup.seed ^ u64::from(cpu) << 32);
    let pages = setup.pages_per_cpu * u64::from(setup.threads);
    let own_first = setup.pages_per_cpu * u64::from(cpu % setup.threads);
    let mut turn = random.below(setup.pages_per_cpu);
    let mut stamp = u64::from(cpu + 1) << 40 | 1 << 63;
    let end = setup.warm_up_ns + setup.measured_ns;
    while vcpu::now() < end {
        if vcpu::now() >= setup.warm_up_ns && meter.start.get().is_none() {
            meter.start.set(Some(counted(host, meter)));
        }
        let (page, write) = match setup.pattern {
            Pattern::Random { write_percent } => (random.below(pages), random.below(100) < write_percent),
            Pattern::Zipf => (zipf.expect("made for this pattern").page(&mut random), false),
            Pattern::Sequential => {
                turn = (turn + 1) % setup.pages_per_cpu;
                (own_first + turn, true)
            }
        };
        stamp += 1;
        worker.access(process, page, write.then_some(stamp));
        meter.accesses.set(meter.accesses.get() + 1);
    }
    if meter.end.get().is_none() {
        meter.end.set(Some(counted(host, meter)));
    }
    meter.cpu_ns.set(meter.cpu_ns.get() + vcpu::now());
    meter.running.set(meter.running.get() - 1);
    if meter.running.get() == 0 {
        host.stop();
    }
}

/// Reads the engine's counters for nothing: nobody does that in a real run.
fn counted(host: &Host, meter: &Meter) -> Counted {
    let stats = &host.engine.stats;
    let mut counted = Counted { accesses: meter.accesses.get(), ..Counted::default() };
    vcpu::untimed(|| {
        counted.faults = stats.sum(|c| &c.pgfault);
        counted.swapped_in = stats.sum(|c| &c.pswpin);
        counted.swapped_out = stats.sum(|c| &c.pswpout);
    });
    counted
}
