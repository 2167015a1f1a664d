//! What the five patch threads reported, each figure once. They stand beside what is measured, and are used
//! for nothing else.
//!
//! `change` is throughput against the thread's own baseline, worked out where the thread gives times.

use crate::model::Published;

/// Threads, with what each measured on.
pub const SCAN_BASE: &str = "swap: reduce lock contention on swap cache from swap slots allocation (2020): \
    16 x pmbench, random, 80 of 100 accesses loads, 2 sockets with 48 cores, a RAM disk each; swap-in +16.2 \
    %, swap-out +16.1 %, lock of the swap cache 7.93 % to 0.53 % of the time";
pub const BATCHES: &str =
    "mm: Improve swap path scalability with batched operations (2016): 2 sockets, swap on persistent memory";
pub const CGROUP_MAP: &str = "mm, swap_cgroup: remove global swap cgroup lock (2024): make -j96 in a group \
    of 1.5G, RAM disk; and 8G of zero pages swapped out by one thread";
pub const READAHEAD: &str = "mm/swap, shmem: use new swapin helper to skip readahead conditionally (2024): \
    tmpfs, fio with 16 jobs of 256M in a group of 2G; dd of 8G in a group of 4G; RAM disk";
pub const FOLIOS: &str = "Swap-out mTHP without splitting (2024): usemem, 70 processes of 1G in a group of \
    40G, 8 CPUs, RAM disk of 35G; against 4K pages before the change, the author's later 24 runs, standard \
    deviations of 3 to 10 %";

const fn figure(text: &'static str, change: f64) -> Option<Published> {
    Some(Published { text, change: Some(change) })
}

pub const SCAN_BASE_16: Option<Published> = figure("+15.9 %", 0.159);
/// 2.84 to 3.3 GB/s, and 2.87 to 3.33.
pub const SCAN_BASE_IN: Option<Published> = figure("+16.2 %", 0.162);
pub const SCAN_BASE_OUT: Option<Published> = figure("+16.1 %", 0.161);
/// Shares of the time. The swap cache's is the sum of adding and removing; removing is not in the list after,
/// which ends at 0.53 %.
pub const SCAN_BASE_CACHE_LOCK: Option<Published> = figure("14.96 % to at most 1.06 %", -0.929);
/// Freeing 2.9 to 3.0 %; allocating, which is not in the list before (it ends at 0.87 %), 0.76 % after.
pub const SCAN_BASE_SLOT_LOCK: Option<Published> = figure("2.9 % to 3.0 % (freeing)", 0.034);
pub const SCAN_BASE_LRU_LOCK: Option<Published> = figure("5.89 % to 6.77 %", 0.149);
pub const BATCHES_1: Option<Published> = figure("+25 %", 0.25);
pub const BATCHES_16: Option<Published> = figure("+85 %", 0.85);
/// 5461409 to 5420447 µs, with a deviation of 183958 to 196419: as throughput, and as time.
pub const CGROUP_MAP_1: Option<Published> = figure("time -0.7 % (noise)", 0.0076);
pub const CGROUP_MAP_1_OUT: Option<Published> = figure("-0.75 % (noise of 3.4 %)", -0.0075);
/// 19736959 to 19662183 µs, with a deviation of 172718 to 189027.
pub const CGROUP_MAP_1_IN: Option<Published> = figure("-0.38 % (noise of 0.9 %)", -0.0038);
/// Real time: 171.03 to 159.78 s.
pub const CGROUP_MAP_96: Option<Published> = figure("sys -10.4 %, real -6.6 %", 0.0704);
pub const CGROUP_MAP_96_SYSTEM: Option<Published> = figure("-10.42 %", -0.1042);
pub const CGROUP_MAP_96_REAL: Option<Published> = figure("-6.57 %", -0.0657);
/// 7626.77 to 6936.03 s, 136.22 to 129.65 s.
pub const CGROUP_MAP_64K_SYSTEM: Option<Published> = figure("-9.06 %", -0.0906);
pub const CGROUP_MAP_64K_REAL: Option<Published> = figure("-4.82 %", -0.0482);
/// 1818 to 1888 MiB/s.
pub const READAHEAD_RANDOM: Option<Published> = figure("+3.85 %", 0.0385);
/// 31.1 to 32.3 GiB/s.
pub const READAHEAD_ZIPF: Option<Published> = figure("+3.86 %", 0.0386);
/// 22.248 to 22.021 s, with a deviation of 0.549 to 0.684: as throughput, and as time.
pub const READAHEAD_DD: Option<Published> = figure("dd: time -1.1 %", 0.0103);
pub const READAHEAD_DD_TIME: Option<Published> = figure("-1.0 % (noise of 2.5 %)", -0.0102);
/// The mail of 13 March 2024, in place of the cover letter's 6 runs: +1.4, -14.6, +44.2, +87.4 and +97.7 %.
pub const FOLIOS_4K: Option<Published> = figure("+0.5 %", 0.005);
pub const FOLIOS_64K_SPLIT: Option<Published> = figure("-9.1 %", -0.091);
pub const FOLIOS_64K: Option<Published> = figure("+44.7 %", 0.447);
pub const FOLIOS_2M_BEFORE: Option<Published> = figure("+88.9 %", 0.889);
pub const FOLIOS_2M: Option<Published> = figure("+93.3 %", 0.933);
