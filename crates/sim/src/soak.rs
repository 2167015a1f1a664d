//! `memspill-lab sim soak`: random histories with faults of devices and preemption at any lock, checked all
//! along.
//!
//! ```text
//!   seed ─▶ machine, devices, fault plan, knobs ─▶ tasks: touch, map, unmap, mremap, fork, exit, reclaim, …
//!                                                    │ 20 virtual ms
//!                                                    ▼
//!           quiet: checker ─▶ every page of every process is read ─▶ all exit: no slot, page or byte is left
//! ```
//!
//! In half of the histories processes have objects of shared memory mapped (object.rs), which their children
//! inherit, and access them, make holes in them and let go of them besides.
//!
//! Each touch compares the page with what was last stored there (target.rs); a page may be lost only if a
//! read of it has failed. A history depends on nothing but its seed, so a failure is repeated by that seed
//! alone. Faults of devices end before the history does, so that all pages that wait can be written.
//!
//! What it does not do: weak memory orderings, and what only a kernel can do (guard pages, pinned pages, hard
//! limits).

use crate::device::{DeviceKind, Faults, SimDevice};
use crate::host::{BATCH_PAGES, Host, Process, Reclaim, Worker};
use crate::object::{Object, SharedSpace};
use crate::target::{Lost, Refusals, Target, Touch};
use memspill_engine_sim::backing::{Backing, QueueId};
use memspill_engine_sim::devices::Device;
use memspill_engine_sim::engine::Engine;
use memspill_engine_sim::slots::Slots;
use memspill_engine_sim::swapoff::Step;
use memspill_engine_sim::tuning::{FolioSize, Tuning};
use memspill_engine_sim::units::{CpuId, PAGE_SIZE, Vpn};
use memspill_engine_sim::word::ENTRY_DEVICES_MAX;
use memspill_vcpu::random::Random;
use memspill_vcpu::{self as vcpu, Machine, Preemption, Waiting, World};
use serde_json::json;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Virtual time of a history, without its end.
const HISTORY_NS: u64 = 20_000_000;

/// How often things happened: the engine's counters by name, and what the processes did.
pub type Coverage = BTreeMap<&'static str, u64>;

/// Used by who switches a device off.
const SWAPOFF_QUEUE: QueueId = QueueId(1000);
/// A swapoff that can do nothing looks again after this long.
const SWAPOFF_WAIT_NS: u64 = 5_000;

/// Version of the JSON's shape.
const SCHEMA: u32 = 1;

pub fn table(first_seed: u64, histories: u64, coverage: &Coverage) -> String {
    let last = first_seed + histories - 1;
    let mut text = format!("{histories} histories, seeds {first_seed} to {last}: nothing wrong. In them:\n");
    coverage.iter().for_each(|(name, count)| text.push_str(&format!("  {name:<20} {count:>12}\n")));
    text
}

pub fn json(first_seed: u64, histories: u64, coverage: &Coverage) -> String {
    let soak = json!({
        "schema": SCHEMA,
        "first_seed": first_seed,
        "histories": histories,
        "counters": coverage,
    });
    format!("{soak:#}\n")
}

/// What one history is made of, drawn from its seed.
struct Plan {
    tasks: u32,
    processes_max: usize,
    /// The pages of a process.
    pages: u64,
    limit_pages: u64,
    reclaim: Reclaim,
    tuning: Tuning,
    /// Most pages of a batch, but for a neighbourhood that it takes whole.
    batch_pages: u64,
    devices: Vec<DevicePlan>,
    refusals: Refusals,
    preemption: Preemption,
    /// Objects of shared memory at once, and the pages of each.
    objects_max: usize,
    object_pages: u64,
}

#[derive(Clone, Copy)]
struct DevicePlan {
    kind: DeviceKind,
    faults: Faults,
    /// With `discard=pages`.
    discard: bool,
    keeps: bool,
    rotational: bool,
}

impl Plan {
    fn draw(random: &mut Random) -> Plan {
        let mut tuning = Tuning::default();
        if random.one_in(4) {
            tuning = Tuning { folio: FolioSize::Auto, ..Tuning::drawn(|| random.draw() as u32) };
        } else if random.one_in(2) {
            tuning = Tuning::drawn(|| random.draw() as u32);
        }
        let mut batch_pages = BATCH_PAGES as u64;
        if let FolioSize::Fixed(order) = tuning.folio {
            batch_pages = batch_pages.max(u64::from(order.pages()));
        }
        let mut chance = |of: &[u64]| of[random.below(of.len() as u64) as usize];
        let devices = (0..chance(&[1, 1, 2])).map(|_| {
            let kind = [DeviceKind::Ram, DeviceKind::Nvme][chance(&[0, 1]) as usize];
            // Its server, before faults end.
            let is_away = kind == DeviceKind::Nvme && chance(&[0, 1]) == 1;
            let away_from_ns = HISTORY_NS / 100 * chance(&[1, 5, 20]);
            let away_for_ns = HISTORY_NS / 100 * chance(&[1, 5, 20]);
            let faults = Faults {
                away_from_ns,
                away_until_ns: if is_away { away_from_ns + away_for_ns } else { 0 },
                seed: chance(&[1, 2, 3]),
                read_fails: chance(&[0, 0, 200]),
                write_fails: chance(&[0, 0, 20, 300]),
                full: chance(&[0, 0, 50]),
                short: chance(&[0, 0, 10, 200]),
                delays: chance(&[0, 3, 20]),
                longest_delay_ns: chance(&[100_000, 3_000_000]),
                until_ns: HISTORY_NS / 2,
            };
            let (discard, keeps) = (chance(&[0, 1]) == 1, chance(&[0, 1]) == 1);
            DevicePlan { kind, faults, discard, keeps, rotational: chance(&[0, 0, 1]) == 1 }
        });
        let devices = devices.collect();
        let refusals = Refusals {
            busy: chance(&[0, 0, 10, 100]),
            unevictable: chance(&[0, 0, 10, 100]),
            until_ns: HISTORY_NS / 2,
        };
        Plan {
            devices,
            refusals,
            objects_max: chance(&[0, 0, 1, 2]) as usize,
            object_pages: chance(&[70, 300, 700]),
            tasks: 2 + chance(&[0, 1, 2, 4]) as u32,
            processes_max: chance(&[1, 2, 4]) as usize,
            // Up to two chunks of the page table and a part of a third.
            pages: chance(&[200, 600, 1200]),
            limit_pages: chance(&[300, 400, 700, 1500]),
            reclaim: [Reclaim::Direct, Reclaim::Background(1), Reclaim::Background(2)]
                [chance(&[0, 1, 2]) as usize],
            preemption: Preemption {
                seed: random.draw(),
                one_in: 20 + random.below(500),
                longest_ns: 20_000 << (3 * random.below(3)),
            },
            tuning,
            batch_pages,
        }
    }
}

/// Run the history of one seed to its end. Panics with what is wrong.
pub fn history(seed: u64, coverage: &mut Coverage) {
    let mut random = Random::new(seed);
    let plan = Plan::draw(&mut random);
    let preemption = Some(plan.preemption);
    let machine = Machine { cpus_per_socket: 4, preemption, waiting: Waiting::Sleeps };
    let world = World::install(&machine);
    {
        let lost: Arc<Lost> = Arc::default();
        let host = Rc::new(make_host(&plan, &lost));
        let history = Rc::new(History {
            host: host.clone(),
            lost,
            pages: plan.pages,
            processes_max: plan.processes_max,
            refusals: plan.refusals,
            stamps: Cell::new(0),
            running: Cell::new(plan.tasks),
            swapoffs: Cell::new(0),
            objects_max: plan.objects_max,
            object_pages: plan.object_pages,
            mappers: Cell::new(0),
            shared: SharedCounts::default(),
        });
        let first = history.new_process();
        if history.objects_max > 0 {
            history.new_object(CpuId(0), &first);
        }
        history.spawn_tasks(&plan, &mut random);
        vcpu::run();
        history.check_at_rest();
        history.end_all_processes();
        for (name, count, _) in host.engine.stats().list() {
            *coverage.entry(name).or_default() += count;
        }
        *coverage.entry("swapoffs").or_default() += history.swapoffs.get();
        let discarded =
            host.engine.devices().iter().map(|device| device.slots.stats().discarded_clusters).sum::<u64>();
        *coverage.entry("discarded_clusters").or_default() += discarded;
        let SharedCounts { objects, accesses, holes } = &history.shared;
        for (name, count) in
            [("shared_objects", objects), ("shared_accesses", accesses), ("shared_holes", holes)]
        {
            *coverage.entry(name).or_default() += count.get();
        }
    }
    drop(world);
}

fn make_host(plan: &Plan, lost: &Arc<Lost>) -> Host {
    let cpus = plan.tasks + 3;
    // No more than may be needed at once, so that slots are soon used again: then bytes left over from an
    // earlier use would be noticed.
    let in_batches = (plan.batch_pages + 16) * u64::from(cpus);
    let shared = plan.objects_max as u64 * plan.object_pages;
    let slots = (plan.processes_max as u64 * plan.pages + shared + in_batches) as u32;
    let (mut devices, mut sims) = (Vec::new(), Vec::new());
    for device in &plan.devices {
        let (device, sim) = make_device(device, slots, cpus, &plan.tuning, lost);
        devices.push(device);
        sims.push(sim);
    }
    let engine = Engine::new(devices, plan.limit_pages * PAGE_SIZE as u64, plan.tuning.clone());
    let host = Host::new(engine, sims, plan.reclaim);
    host.counts_frames.set(false);
    host
}

fn make_device(
    plan: &DevicePlan,
    slots: u32,
    cpus: u32,
    tuning: &Tuning,
    lost: &Arc<Lost>,
) -> (Device, Arc<SimDevice>) {
    let sim = SimDevice::new(plan.kind, slots, plan.faults, lost.clone());
    let sim = Arc::new(sim.discarding(plan.discard).keeping(plan.keeps).rotating(plan.rotational));
    let backing: Arc<dyn Backing> = sim.clone();
    let table = Slots::new(slots, cpus, false, tuning);
    (Device::new("device".into(), 0, table, vcpu::Arc::from_std(backing)), sim)
}

struct History {
    host: Rc<Host>,
    lost: Arc<Lost>,
    pages: u64,
    processes_max: usize,
    refusals: Refusals,
    stamps: Cell<u64>,
    running: Cell<u32>,
    /// Devices that have gone off.
    swapoffs: Cell<u64>,
    objects_max: usize,
    object_pages: u64,
    /// Names given to processes that have objects mapped.
    mappers: Cell<u32>,
    shared: SharedCounts,
}

/// What was done to shared memory.
#[derive(Default)]
struct SharedCounts {
    objects: Cell<u64>,
    accesses: Cell<u64>,
    holes: Cell<u64>,
}

impl History {
    fn new_process(&self) -> Rc<Process> {
        let target = Target::new(self.lost.clone()).refusing(self.refusals, self.stamp());
        target.map(0, self.pages / 2);
        target.set_mapper(self.new_mapper());
        self.host.add_process(Arc::new(target), false)
    }

    fn new_mapper(&self) -> u32 {
        self.mappers.set(self.mappers.get() + 1);
        self.mappers.get()
    }

    /// The process has a new object mapped, and has stored to a part of it before anybody manages it.
    fn new_object(&self, cpu: CpuId, process: &Process) {
        let object = Object::new(self.object_pages, self.lost.clone(), self.refusals, self.stamp());
        object.map(process.target.mapper());
        (0..self.object_pages / 8).for_each(|page| object.make_present(page, self.stamp()));
        let shared = self.host.add_object(Arc::new(object));
        self.shared.objects.set(self.shared.objects.get() + 1);
        // Another task has ended it meanwhile, and did not find this object yet.
        if process.target.is_dead() {
            self.host.unmap_object(cpu, &shared, process);
        }
    }

    fn stamp(&self) -> u64 {
        self.stamps.set(self.stamps.get() + 1);
        self.stamps.get()
    }

    fn spawn_tasks(self: &Rc<History>, plan: &Plan, random: &mut Random) {
        for cpu in 0..plan.tasks {
            let (history, seed) = (self.clone(), random.draw());
            vcpu::spawn(cpu, format!("CPU {cpu}"), move || {
                let worker = Worker::new(history.host.clone(), cpu, cpu);
                Actor { history: &history, worker, random: Random::new(seed) }.act_until_the_end();
                history.running.set(history.running.get() - 1);
                if history.running.get() == 0 {
                    history.host.stop();
                }
            });
        }
        if let Reclaim::Background(reclaimers) = plan.reclaim {
            for index in plan.tasks..plan.tasks + reclaimers {
                let host = self.host.clone();
                let body = move || host.reclaimer(CpuId(index), QueueId(index));
                vcpu::spawn(index, format!("reclaimer on CPU {index}"), body);
            }
        }
    }

    /// While no task runs: all tables agree, and every page can be read.
    fn check_at_rest(self: &Rc<History>) {
        self.host.engine.check();
        let history = self.clone();
        vcpu::spawn(0, "reader".into(), move || {
            let mut worker = Worker::new(history.host.clone(), 0, 0);
            let processes = history.host.processes.borrow().clone();
            for process in &processes {
                worker.read_all_messages(process);
                (0..history.pages).for_each(|page| _ = worker.access(process, page, None));
                for shared in history.host.objects.borrow().clone() {
                    let pages = 0..shared.object.pages;
                    pages.for_each(|page| _ = worker.access_object(process, &shared, page, None));
                }
            }
        });
        self.host.stopping.set(false);
        // No reclaimer runs any more, so the reader makes room itself.
        self.host.reclaim.set(Reclaim::Direct);
        vcpu::run();
        self.host.engine.check();
        let objects = self.host.objects.borrow();
        assert!(
            objects.iter().all(|shared| !shared.object.is_breached()),
            "only pagers make pages of objects"
        );
    }

    /// All processes end, and nothing is left.
    fn end_all_processes(&self) {
        let host = &self.host;
        let processes = host.processes.borrow().clone();
        for process in &processes {
            host.unmap_all_objects(CpuId(0), process);
            process.target.exit();
            host.remove_process(CpuId(0), process);
        }
        assert!(host.objects.borrow().is_empty(), "an object that nobody has mapped");
        host.engine.write_again(CpuId(0), QueueId(0));
        host.engine.check();
        assert_eq!(host.engine.used_slots(), 0, "slots are in use when all processes have ended");
        assert_eq!(
            host.engine.groups().charged_pages(host.engine.root()),
            0,
            "pages are charged when all processes have ended"
        );
        let all_empty = host.devices.borrow().iter().all(|d| d.is_empty());
        assert!(all_empty, "devices hold pages when all processes have ended");
    }
}

/// One task's actions until the history ends.
struct Actor<'a> {
    history: &'a History,
    worker: Worker,
    random: Random,
}

impl Actor<'_> {
    fn act_until_the_end(&mut self) {
        while vcpu::now() < HISTORY_NS {
            let processes = self.history.host.processes.borrow().clone();
            let process = &processes[self.random.below(processes.len() as u64) as usize];
            if self.history.objects_max > 0 && self.random.one_in(3) {
                self.act_on_objects(process);
                continue;
            }
            match self.random.below(100) {
                0..72 => self.access_pages(process),
                72..90 => self.change_mappings(process),
                90..97 => _ = self.history.host.take_batch(self.worker.cpu, self.worker.queue),
                97 => process.space.tidy(),
                98 => self.swapoff(),
                _ => self.exit(process),
            }
        }
        // Events of these processes are read now, while a task is left that can read them.
        let processes = self.history.host.processes.borrow().clone();
        processes.iter().for_each(|process| self.worker.read_all_messages(process));
    }

    /// Pages at random, or one after the other.
    fn access_pages(&mut self, process: &Rc<Process>) {
        let stream = self.random.one_in(3);
        let pages = self.history.pages;
        let first = self.random.below(pages);
        for i in 0..1 + self.random.below(40) {
            let page = if stream { (first + i) % pages } else { self.random.below(pages) };
            let write =
                self.random.one_in(2).then(|| if self.random.one_in(10) { 0 } else { self.history.stamp() });
            if self.worker.access(process, page, write) == Touch::NotMapped && process.target.is_dead() {
                return;
            }
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let longest = if self.random.one_in(4) { self.history.pages / 3 } else { 40 };
        let pages = 1 + self.random.below(longest);
        let from = self.random.below(self.history.pages - pages);
        (from, from + pages)
    }

    fn change_mappings(&mut self, process: &Rc<Process>) {
        if process.target.is_dead() {
            return;
        }
        let (from, to) = self.range();
        let target = &process.target;
        match self.random.below(10) {
            0..4 => target.map(from, to),
            4..6 => target.unmap(from, to),
            6..9 => {
                let (other, _) = self.range();
                let pages = (to - from).min(self.history.pages - other);
                if other + pages <= from || from + pages <= other {
                    target.remap(from, other, pages);
                }
            }
            _ if self.history.host.processes.borrow().len() < self.history.processes_max => {
                let child = target.fork();
                child.set_mapper(self.history.new_mapper());
                let objects = self.history.host.objects.borrow();
                objects.iter().for_each(|shared| shared.object.fork(target.mapper(), child.mapper()));
            }
            _ => {}
        }
        // As in the kernel: the thread that changes an address space waits until its event was read.
        self.worker.read_all_messages(process);
    }

    /// A device goes off, all the way or halfway, and another one comes in its place.
    fn swapoff(&mut self) {
        let host = self.history.host.clone();
        let devices = host.engine.devices().len() as u64;
        let has_place =
            devices < ENTRY_DEVICES_MAX as u64 || host.engine.devices().iter().any(|device| device.is_off());
        if has_place && self.random.one_in(2) {
            let slots = host.engine.devices()[0].slots.all_slots() as u32 + 1;
            let kind = if self.random.one_in(2) { DeviceKind::Ram } else { DeviceKind::Nvme };
            let (discard, keeps) = (self.random.one_in(2), self.random.one_in(2));
            let rotational = self.random.one_in(3);
            let plan = DevicePlan { kind, faults: Faults::default(), discard, keeps, rotational };
            let (device, sim) = make_device(&plan, slots, 1, host.engine.tuning(), &self.history.lost);
            // Known to the workers before any of them may have to reap its reads.
            host.devices.borrow_mut().push(sim);
            host.engine.swapon(device).expect("a place is left");
        }
        if host.engine.swapoff_begin(self.random.below(devices) as usize).is_err() {
            return;
        }
        let mut steps = self.random.below(100);
        let result = loop {
            match host.engine.swapoff_step(self.worker.cpu, SWAPOFF_QUEUE) {
                Step::End(result) => break result,
                Step::Moved(_) => {}
                Step::Wait => vcpu::step(SWAPOFF_WAIT_NS),
            }
            steps = steps.saturating_sub(1);
            if steps == 0 && self.random.one_in(2) {
                host.engine.swapoff_stop();
            }
            // This task is a pager too: others may wait for events that it has to read.
            let processes = host.processes.borrow().clone();
            processes.iter().filter(|p| p.target.has_events()).for_each(|p| self.worker.read_messages(p));
        };
        self.history.swapoffs.set(self.history.swapoffs.get() + u64::from(result.is_ok()));
    }

    fn exit(&mut self, process: &Rc<Process>) {
        let living = self.history.host.processes.borrow().iter().filter(|p| !p.target.is_dead()).count();
        if living > 1 && !process.target.is_dead() && !process.target.has_events() && self.random.one_in(3) {
            process.target.exit();
            self.history.host.unmap_all_objects(self.worker.cpu, process);
            self.history.host.remove_process(self.worker.cpu, process);
        }
    }

    // -- shared memory --

    fn act_on_objects(&mut self, process: &Rc<Process>) {
        let host = self.history.host.clone();
        let objects = host.objects.borrow().clone();
        if objects.len() < self.history.objects_max && self.random.one_in(10) && !process.target.is_dead() {
            return self.history.new_object(self.worker.cpu, process);
        }
        if objects.is_empty() {
            return;
        }
        let shared = &objects[self.random.below(objects.len() as u64) as usize];
        if !shared.object.is_mapped_by(process.target.mapper()) {
            return;
        }
        if shared.space.is_aside() && self.random.one_in(4) {
            return shared.adopt(&host.engine);
        }
        let pages = 1 + self.random.below(40);
        let from = self.random.below(shared.object.pages);
        let to = (from + pages).min(shared.object.pages);
        match self.random.below(100) {
            0..80 => self.access_pages_of(process, shared, from, pages),
            80..88 => {
                self.history.shared.holes.set(self.history.shared.holes.get() + 1);
                host.punch(self.worker.cpu, shared, from, to);
            }
            88..93 => host.page_out_object(self.worker.cpu, self.worker.queue, shared, from, to),
            93..96 => _ = shared.space.make_cold(Vpn(from), Vpn(to)),
            96..99 => shared.space.tidy(),
            _ => host.unmap_object(self.worker.cpu, shared, process),
        }
    }

    /// Pages at random, or one after the other.
    fn access_pages_of(&mut self, process: &Rc<Process>, shared: &SharedSpace, first: u64, count: u64) {
        let stream = self.random.one_in(3);
        let pages = shared.object.pages;
        self.history.shared.accesses.set(self.history.shared.accesses.get() + count);
        for i in 0..count {
            let page = if stream { (first + i) % pages } else { self.random.below(pages) };
            let write =
                self.random.one_in(2).then(|| if self.random.one_in(10) { 0 } else { self.history.stamp() });
            if self.worker.access_object(process, shared, page, write) == Touch::NotMapped {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine_sim::tuning::KNOBS;
    use std::collections::BTreeSet;

    /// The histories of a soak are made with every value of every knob, of those that have few.
    #[test]
    fn every_knob_is_drawn() {
        let plans: Vec<Plan> = (1..=400).map(|seed| Plan::draw(&mut Random::new(seed))).collect();
        for knob in KNOBS {
            let drawn: BTreeSet<String> = plans.iter().map(|plan| knob.value_in(&plan.tuning)).collect();
            let all: BTreeSet<String> = (0..64).map(|number| knob.value_of(number)).collect();
            let few = all.len() <= 12;
            assert!(
                if few { drawn == all } else { drawn.len() > 12 },
                "{} is only drawn as {drawn:?}",
                knob.name
            );
        }
    }
}
