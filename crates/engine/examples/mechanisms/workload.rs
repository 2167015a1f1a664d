//! The calls that swap-out and swap-in make to a device for pages that go out and come back; there are no
//! pages.
//!
//! A batch: slots for it, into the swap cache, out of it again; then as many older pages of the same CPU give
//! their slots back. A device is 4 GiB and one workload's own.

use std::collections::VecDeque;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use memspill_engine::frames::BATCH_PAGES;
use memspill_engine::slots::{LockTotals, SlotStats, Slots};
use memspill_engine::tuning::Tuning;
use memspill_engine::units::{ClusterIndex, CpuId, FrameId, GroupId, Order, SlotIndex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const DEVICE_SLOTS: u32 = 1 << 20;
const TRUNK_CLUSTERS: u32 = 32;
/// Pages of one timed run, and of one count, all threads together.
pub const PAGES_PER_RUN: usize = 1 << 18;

/// How pages come back.
#[derive(Clone, Copy, PartialEq)]
pub enum Life {
    /// Batch by batch, the oldest first; the device is half empty, so there are always empty clusters.
    InOrder,
    /// One by one, at random; the device is nine tenths full, and no cluster is ever empty.
    Random,
}

impl Life {
    pub fn name(self) -> &'static str {
        match self {
            Life::InOrder => "in order",
            Life::Random => "at random",
        }
    }
}

pub struct Workload {
    device: Slots,
    life: Life,
    cpus: Vec<Mutex<Cpu>>,
}

/// What one thread has.
struct Cpu {
    id: CpuId,
    random: u64,
    held: VecDeque<SlotIndex>,
    /// Where its latest batch begins.
    at: Option<ClusterIndex>,
}

/// What was done for `pages` pages.
pub struct Counts {
    pub stats: SlotStats,
    pub pages: u64,
    pub batches: u64,
    /// Batches that began in the cluster, and in the trunk, of another CPU's latest batch.
    pub in_cluster_of_another: u64,
    pub in_trunk_of_another: u64,
}

impl Counts {
    pub fn per_page(&self, n: u64) -> f64 {
        n as f64 / self.pages as f64
    }

    pub fn percent_of_batches(&self, n: u64) -> f64 {
        n as f64 * 100.0 / self.batches as f64
    }
}

impl Workload {
    /// A device in the state that this life leads to.
    pub fn new(life: Life, threads: u32, tuning: &Tuning) -> Workload {
        let device = Slots::new(DEVICE_SLOTS, threads, false, tuning);
        let cpu = |id| Cpu { id: CpuId(id), random: u64::from(id), held: VecDeque::new(), at: None };
        let mut cpus: Vec<Cpu> = (0..threads).map(cpu).collect();
        let filled_by = |cpus: &mut [Cpu], pages: u32| {
            for batch in 0..pages as usize / BATCH_PAGES {
                cpus[batch % threads as usize].out(&device);
            }
        };
        match life {
            Life::InOrder => filled_by(&mut cpus, DEVICE_SLOTS / 2),
            Life::Random => {
                filled_by(&mut cpus, DEVICE_SLOTS);
                for cpu in &mut cpus {
                    let tenth = cpu.held.len() / 10;
                    cpu.give_back(&device, life, tenth);
                }
            }
        }
        Workload { device, life, cpus: cpus.into_iter().map(Mutex::new).collect() }
    }

    /// One thread plays all CPUs in turns.
    pub fn count(mut self) -> Counts {
        let before = self.device.stats();
        let (mut in_cluster, mut in_trunk) = (0, 0);
        let batches = PAGES_PER_RUN / BATCH_PAGES;
        let mut places = vec![None; self.cpus.len()];
        for batch in 0..batches {
            let n = batch % places.len();
            let cpu = self.cpus[n].get_mut().expect("nobody panicked");
            cpu.batch(&self.device, self.life);
            let others = || places.iter().enumerate().filter(|(i, _)| *i != n).filter_map(|(_, at)| *at);
            let trunk = |at: ClusterIndex| at.0 / TRUNK_CLUSTERS;
            in_cluster += u64::from(others().any(|at| Some(at) == cpu.at));
            in_trunk += u64::from(others().any(|at| Some(trunk(at)) == cpu.at.map(trunk)));
            places[n] = cpu.at;
        }
        self.check();
        Counts {
            stats: difference(&self.device.stats(), &before),
            pages: PAGES_PER_RUN as u64,
            batches: batches as u64,
            in_cluster_of_another: in_cluster,
            in_trunk_of_another: in_trunk,
        }
    }

    /// All threads at once: the time from the first one's start to the last one's end.
    pub fn time(&self) -> Duration {
        let together = Barrier::new(self.cpus.len());
        let batches = PAGES_PER_RUN / BATCH_PAGES / self.cpus.len();
        // Each thread takes its own times: the thread that waits for them may be the last to run again.
        let run = |n: usize| {
            pin(n);
            let mut cpu = self.cpus[n].lock().expect("nobody panicked");
            together.wait();
            let start = Instant::now();
            (0..batches).for_each(|_| cpu.batch(&self.device, self.life));
            (start, Instant::now())
        };
        let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.cpus.len()).map(|n| scope.spawn(move || run(n))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let first = spans.iter().map(|(start, _)| *start).min().expect("a thread");
        let last = spans.iter().map(|(_, end)| *end).max().expect("a thread");
        last - first
    }

    /// Locks that somebody else held: waited for, or left for another.
    pub fn contended(&self) -> u64 {
        let stats = self.device.stats();
        let locks =
            [stats.cluster_lock, stats.list_lock, stats.cgroup_lock, stats.device_lock, stats.trunk_lock];
        locks.iter().map(|lock| lock.contended).sum::<u64>() + stats.cluster_passed_by + stats.cgroup_retries
    }

    pub fn check(&self) {
        self.device.check();
        let held = self.cpus.iter().map(|cpu| cpu.lock().expect("nobody panicked").held.len()).sum::<usize>();
        assert_eq!(self.device.used_slots() as usize, held, "every page has its slot");
    }
}

/// The n-th thread on the n-th of the CPUs there are. Left alone, two threads of some milliseconds may run on
/// one CPU, one after the other, and never meet.
fn pin(n: usize) {
    let allowed = sched_getaffinity(None).expect("our own CPUs");
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(cpus[n % cpus.len()]);
    sched_setaffinity(None, &one).expect("one of them");
}

fn taken(after: LockTotals, before: LockTotals) -> LockTotals {
    LockTotals { taken: after.taken - before.taken, ..LockTotals::default() }
}

fn difference(after: &SlotStats, before: &SlotStats) -> SlotStats {
    SlotStats {
        cluster_lock: taken(after.cluster_lock, before.cluster_lock),
        list_lock: taken(after.list_lock, before.list_lock),
        cgroup_lock: taken(after.cgroup_lock, before.cgroup_lock),
        device_lock: taken(after.device_lock, before.device_lock),
        trunk_lock: taken(after.trunk_lock, before.trunk_lock),
        scan_steps: after.scan_steps - before.scan_steps,
        base_steps: after.base_steps - before.base_steps,
        ..SlotStats::default()
    }
}

impl Cpu {
    fn batch(&mut self, device: &Slots, life: Life) {
        self.out(device);
        self.give_back(device, life, BATCH_PAGES);
    }

    fn out(&mut self, device: &Slots) {
        let mut slots = Vec::with_capacity(BATCH_PAGES);
        device.alloc(self.id, Order::ZERO, BATCH_PAGES, GroupId(1), &mut slots);
        self.at = slots.first().map(|slot| slot.cluster());
        slots.sort_unstable();
        let cached: Vec<_> = slots.iter().map(|slot| (*slot, FrameId(slot.0))).collect();
        device.cache_add(&cached);
        let (mut frames, mut freed) = (Vec::new(), Vec::new());
        device.cache_delete(&slots, Some(1), &mut frames, &mut freed);
        assert!(frames.len() == slots.len() && freed.is_empty());
        self.held.extend(slots);
    }

    fn give_back(&mut self, device: &Slots, life: Life, pages: usize) {
        let mut slots = Vec::with_capacity(pages);
        for _ in 0..pages {
            let at = if life == Life::InOrder { 0 } else { self.below(self.held.len()) };
            let slot = if at == 0 { self.held.pop_front() } else { self.held.swap_remove_back(at) };
            slots.extend(slot);
        }
        let mut freed = Vec::with_capacity(pages);
        device.put(&slots, &mut freed);
        device.release(self.id, &freed);
    }

    fn below(&mut self, n: usize) -> usize {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.random >> 33) as usize) % n
    }
}
