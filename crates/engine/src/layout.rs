//! How many threads a front end has for so many CPUs: one rule, which the pager ships and the simulator runs.
//!
//! ```text
//!   pagers       one for each CPU, so that a fault is served where it was made
//!   reclaimers   one for each CPU up to four, and then one for every two CPUs
//!   watchers     pagers that the faults of one process wake, unless one thread makes them all: then that
//!                thread's home alone
//! ```
//!
//! What it does not do: start threads, or say where they run.

/// Pagers that watch one process at most: each of them is woken for each fault.
pub const WATCHERS_MAX: u32 = 8;
/// Up to so many reclaimers are woken all at once. If there are more, one is woken; it calls the next if it
/// is not enough.
pub const WOKEN_TOGETHER: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub pagers: u32,
    pub reclaimers: u32,
}

/// Threads of one CPU more (their buffers, their allocator) are worth it for so much of the budget.
const BUDGET_BYTES_PER_CPU: u64 = 64 << 20;
/// This many CPUs have their threads with any budget.
const CPUS_ALWAYS: u64 = 8;

impl Layout {
    /// For a run with this budget.
    pub fn for_run(cpus: u32, budget_bytes: u64) -> Layout {
        let worth = (budget_bytes / BUDGET_BYTES_PER_CPU).max(CPUS_ALWAYS);
        Layout::for_cpus(cpus.min(u32::try_from(worth).unwrap_or(u32::MAX)))
    }

    pub fn for_cpus(cpus: u32) -> Layout {
        let pagers = cpus.max(1);
        Layout { pagers, reclaimers: pagers.min(4).max(pagers / 2) }
    }
}

/// Does this pager of so many watch a process that has no home? Different processes have different watchers,
/// where there are more pagers than watch one.
pub fn watches(pagers: u32, pager: u32, process: u64) -> bool {
    let watchers = pagers.min(WATCHERS_MAX);
    let first = (process % u64::from(pagers) * u64::from(watchers) % u64::from(pagers)) as u32;
    (pager + pagers - first) % pagers < watchers
}

#[cfg(all(test, not(simulated)))]
mod tests {
    use super::*;

    #[test]
    fn small_machines_have_what_they_had_and_large_ones_more() {
        let of = |cpus| {
            let layout = Layout::for_cpus(cpus);
            (layout.pagers, layout.reclaimers)
        };
        assert_eq!([0, 1, 2, 4, 8].map(of), [(1, 1), (1, 1), (2, 2), (4, 4), (8, 4)]);
        assert_eq!([9, 64, 256].map(of), [(9, 4), (64, 32), (256, 128)]);
        let of_budget = |gib: u64| Layout::for_run(256, gib << 30);
        assert_eq!([0, 1, 16].map(of_budget), [8, 16, 256].map(Layout::for_cpus));
    }

    #[test]
    fn each_process_has_its_watchers_and_all_pagers_have_processes() {
        for pagers in [1, 2, 8, 9, 64, 100] {
            let mut watched = vec![0; pagers as usize];
            for process in 0..1000 {
                let watchers: Vec<u32> = (0..pagers).filter(|p| watches(pagers, *p, process)).collect();
                assert_eq!(watchers.len() as u32, pagers.min(8), "{pagers} pagers, process {process}");
                watchers.iter().for_each(|pager| watched[*pager as usize] += 1);
            }
            assert!(watched.iter().all(|count| *count > 0), "{pagers} pagers: {watched:?}");
        }
    }
}
