//! The tables of `memspill-lab sim seeds`: which machines, which settings, what is compared, and what was
//! published of it. Nothing is measured here.

use crate::bench::{Pattern, Pieces, Work};
use crate::device::DeviceKind;
use crate::figures::{Figure, Metric};
use crate::fragments::Fragmented;
use crate::kernel::{self, Form};
use memspill_engine_sim::tuning::{Tuning, TuningError};
use memspill_engine_sim::units::PAGE_SIZE;
use memspill_tables::{Published, published};

pub struct Thread {
    pub id: &'static str,
    pub title: &'static str,
    /// The thread, and what it measured on; None: no thread has.
    pub published: Option<&'static str>,
    /// What the tables compare: more is better.
    pub metric: Metric,
    /// What the thread argues with.
    pub counts: &'static [Count],
    pub cases: &'static [Case],
    pub note: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    ClusterLocks,
    BaseSteps,
    CgroupLocks,
    CgroupContended,
    CacheHits,
    CacheMisses,
    CacheBypassed,
    Readahead,
    ReadaheadHits,
    Fallbacks,
    /// The share of the time of busy CPUs in which this lock is waited for (its line's ways between CPUs
    /// included), and in which it is held.
    Waited(&'static LockShare),
    Held(&'static LockShare),
}

/// A lock, by its name in the profile, and the keys and names of its columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockShare {
    pub lock: &'static str,
    pub waited: (&'static str, &'static str),
    pub held: (&'static str, &'static str),
}

/// Slots and swap cache of 512 slots.
const CLUSTERS: LockShare = LockShare {
    lock: "lock ClusterState",
    waited: ("cluster_waited_share", "clusters waited"),
    held: ("cluster_held_share", "clusters held"),
};
/// The slots of a device: `slot-lock=device`.
const DEVICE: LockShare = LockShare {
    lock: "lock DeviceSlots",
    waited: ("device_waited_share", "device waited"),
    held: ("device_held_share", "device held"),
};
/// 64 MiB of swap cache: `cache-lock=trunk`.
const TRUNKS: LockShare = LockShare {
    lock: "lock CacheTrunk",
    waited: ("trunk_waited_share", "trunks waited"),
    held: ("trunk_held_share", "trunks held"),
};
const LRU: LockShare = LockShare {
    lock: "lock NodeLru",
    waited: ("lru_waited_share", "LRU waited"),
    held: ("lru_held_share", "LRU held"),
};
const LISTS: LockShare = LockShare {
    lock: "lock Lists",
    waited: ("list_waited_share", "lists waited"),
    held: ("list_held_share", "lists held"),
};
const MAP: LockShare = LockShare {
    lock: "lock MapLock",
    waited: ("cgroup_waited_share", "map waited"),
    held: ("cgroup_held_share", "map held"),
};

/// One machine with one workload.
pub struct Case {
    pub machine: &'static str,
    pub cpus: u32,
    pub cpus_per_socket: u32,
    /// Processes of one thread.
    pub tasks: u32,
    /// The kernel's reclaimers, which make room besides the tasks; 0: the tasks alone, as in a memory group.
    pub reclaimers: u32,
    pub pattern: Pattern,
    pub work: Work,
    pub compute_ns: u64,
    pub kind: DeviceKind,
    pub devices: u32,
    pub fragmented: Option<Fragmented>,
    pub by_slot: bool,
    /// The pages of each task, at `MS_DEFAULT`; in a shorter run as much less, if memory is fresh.
    pub pages_per_task: u64,
    /// The set of pages is so many times the budget, in percent.
    pub set_percent: u64,
    /// What the kernel of then had, before and after: knobs of all settings that are not `ours`.
    pub of_then: &'static [&'static str],
    /// The first is the one that the others are compared with.
    pub settings: &'static [Setting],
}

/// What most machines have in common.
const MACHINE: Case = Case {
    machine: "",
    cpus: 16,
    cpus_per_socket: 8,
    tasks: 16,
    reclaimers: 0,
    pattern: MIXED,
    // The threads are about kernels.
    work: Work::Kernel(kernel::OF_2024),
    compute_ns: 0,
    kind: DeviceKind::RamDisk,
    devices: 1,
    fragmented: None,
    by_slot: false,
    pages_per_task: 2048,
    set_percent: 200,
    of_then: &[],
    settings: &[],
};

pub struct Setting {
    /// Before the knobs.
    pub form: &'static str,
    pub knobs: &'static [&'static str],
    /// In what pieces pages are unmapped, and in what devices read and write them.
    pub unmaps: Pieces,
    pub requests: Pieces,
    /// Without the knobs of then.
    pub ours: bool,
    pub figures: &'static [Figure],
}

impl Setting {
    pub fn tuning(&self, case: &Case) -> Result<Tuning, TuningError> {
        let of_then = if self.ours { &[] } else { case.of_then };
        Tuning::parse(of_then.iter().chain(self.knobs).copied())
    }
}

/// The kernel unmaps and requests each folio by itself.
const fn setting(knobs: &'static [&'static str]) -> Setting {
    let (unmaps, requests) = (Pieces::Folio, Pieces::Folio);
    Setting { form: "", knobs, unmaps, requests, ours: false, figures: &[] }
}

/// A setting for which a thread has published figures.
const fn reported(knobs: &'static [&'static str], figures: &'static [Figure]) -> Setting {
    Setting { figures, ..setting(knobs) }
}

/// What memspill has in place of that, on the same machine.
const fn ours(knobs: &'static [&'static str]) -> Setting {
    let (unmaps, requests) = (Pieces::Batch, Pieces::Batch);
    Setting { form: "memspill's forms ", unmaps, requests, ours: true, ..setting(knobs) }
}

const fn figure(name: &'static str, metric: Metric, published: Option<Published>) -> Figure {
    let (published, noise, before) = (published.expect("a figure"), None, None);
    Figure { name, metric, published, noise, before, kernel: "", memspill: "", why: "" }
}

/// A figure within the thread's own deviation.
const fn within_noise(
    name: &'static str,
    metric: Metric,
    published: Option<Published>,
    noise: f64,
) -> Figure {
    Figure { noise: Some(noise), ..figure(name, metric, published) }
}

/// Pages of so many bytes a second.
const fn pages(bytes_per_s: f64) -> Option<f64> {
    Some(bytes_per_s / PAGE_SIZE as f64)
}
/// Seconds for each page of 8 GiB that take so long.
const fn for_8g(seconds: f64) -> Option<f64> {
    Some(seconds / (8u64 << 30) as f64 * PAGE_SIZE as f64)
}

const CACHE_LOCK: Metric = Metric::Locks("time in the swap cache's locks", &["lock CacheTrunk"]);
const SLOT_LOCK: Metric = Metric::Locks("time in the slots' locks", &["lock DeviceSlots"]);
const LRU_LOCK: Metric = Metric::Locks("time in the locks of the LRU", &["lock NodeLru"]);

// Why a figure does not agree, in a clause.
const WHY_SLOTS: &str = "it grows with the throughput here, and the thread's profile has one digit of it";
const WHY_ONE: &str = "two reclaimers keep up with one task: at 5.5 µs a page in place of 3.5 it is +21 %";
const WHY_MAP: &str = "folios come whole here, and in a real build 1.35 pages a fault: fewer ask the map";
const WHY_RANDOM: &str = "a fault saves 0.8 µs here and 2.5 there, but all else is 6.4 times as quick";
const WHY_ARM: &str = "6.18 on x86 does as simulated; arm64 unfolds 64K for each page, 6.8 unmaps by page";

const MIB: f64 = 1048576.0;

const STORES: Pattern = Pattern::Sequential;
const MIXED: Pattern = Pattern::Random { write_percent: 20 };
const READS: Pattern = Pattern::Random { write_percent: 0 };

const ALWAYS: Setting = setting(&["readahead=always", "folio=4K"]);
const AUTO: &[&str] = &["readahead=auto", "folio=4K"];
const STREAM: Setting = ours(&["readahead=stream"]);
const WINDOWS: &[Setting] = &[
    Setting { form: "", ..ours(&["readahead=always", "page-cluster=0"]) },
    Setting { form: "", ..ours(&["readahead=always", "page-cluster=3"]) },
    Setting { form: "", ..STREAM },
];

const READAHEAD: &[Count] =
    &[Count::CacheHits, Count::CacheMisses, Count::CacheBypassed, Count::Readahead, Count::ReadaheadHits];

/// 4.6: one lock for the slots, one for the swap cache, one scan base.
const OF_2016: &[&str] =
    &["folio=4K", "readahead=always", "slot-lock=device", "cache-lock=device", "scan-base=shared"];
/// 5.7: a lock for each trunk of the swap cache, in which pages are one by one; the device's for 64 slots.
const OF_2020: &[&str] =
    &["folio=4K", "readahead=auto", "slot-lock=batch", "cache-lock=trunk", "cache-batch=1"];
/// 6.8: the same, and a scan base for each CPU.
const OF_EARLY_2024: &[&str] =
    &["readahead=auto", "slot-lock=batch", "cache-lock=trunk", "cache-batch=1", "scan-base=per-cpu-trunk"];
/// 6.13: lists of clusters (the default).
const OF_LATE_2024: &[&str] = &["readahead=auto", "slot-lock=batch", "cache-lock=trunk", "cache-batch=1"];

pub const THREADS: &[Thread] = &[
    Thread {
        id: "000",
        title: "000 scan base",
        published: Some(published::SCAN_BASE),
        metric: Metric::Accesses,
        counts: &[
            Count::Waited(&TRUNKS),
            Count::Held(&TRUNKS),
            Count::Waited(&CLUSTERS),
            Count::Waited(&LISTS),
            Count::Waited(&DEVICE),
            Count::Held(&DEVICE),
            Count::Waited(&LRU),
            Count::BaseSteps,
        ],
        cases: &[
            Case {
                machine: "16 tasks on 48 CPUs, 2 sockets, 2 RAM disks of 48 trunks, 95 % full",
                settings: &[
                    setting(SHARED_BASE),
                    reported(
                        BASE_OF_CPU,
                        &[
                            Figure {
                                memspill: "-11 %; -4.8 %",
                                ..figure("score", Metric::Accesses, published::SCAN_BASE_16)
                            },
                            Figure {
                                before: pages(2.84e9),
                                ..figure("swap-in", Metric::SwapIn, published::SCAN_BASE_IN)
                            },
                            Figure {
                                before: pages(2.87e9),
                                ..figure("swap-out", Metric::SwapOut, published::SCAN_BASE_OUT)
                            },
                            figure("in the swap cache's locks", CACHE_LOCK, published::SCAN_BASE_CACHE_LOCK),
                            Figure {
                                why: WHY_SLOTS,
                                ..figure("in the slots' locks", SLOT_LOCK, published::SCAN_BASE_SLOT_LOCK)
                            },
                            Figure {
                                ..figure("in the LRU's locks", LRU_LOCK, published::SCAN_BASE_LRU_LOCK)
                            },
                        ],
                    ),
                    setting(BASE_LEAVES_TRUNK),
                    ours(&[]),
                ],
                ..SCAN_BASE_MACHINE
            },
            Case {
                machine: "48 tasks on 48 CPUs, the same devices",
                tasks: 48,
                settings: &[
                    setting(SHARED_BASE),
                    setting(BASE_OF_CPU),
                    setting(BASE_LEAVES_TRUNK),
                    ours(&[]),
                ],
                ..SCAN_BASE_MACHINE
            },
        ],
        note: None,
    },
    Thread {
        id: "001",
        title: "001 batches",
        published: Some(published::BATCHES),
        metric: Metric::SwapOut,
        counts: &[
            Count::ClusterLocks,
            Count::Waited(&TRUNKS),
            Count::Held(&TRUNKS),
            Count::Waited(&DEVICE),
            Count::Held(&DEVICE),
        ],
        cases: &[
            Case {
                machine: "1 task, 2 sockets, pmem, stores to fresh memory",
                tasks: 1,
                pages_per_task: 16384,
                settings: &[
                    setting(UNBATCHED),
                    Setting {
                        unmaps: Pieces::Batch,
                        ..reported(
                            BATCHED,
                            &[Figure {
                                memspill: "-0.7 %; +9.3 %",
                                why: WHY_ONE,
                                ..figure("swap-out, 1 task", Metric::SwapOut, published::BATCHES_1)
                            }],
                        )
                    },
                    ours(&[]),
                ],
                ..BATCHES_MACHINE
            },
            Case {
                machine: "16 tasks, 2 sockets, pmem, stores to fresh memory",
                settings: &[
                    setting(UNBATCHED),
                    Setting {
                        unmaps: Pieces::Batch,
                        ..reported(
                            BATCHED,
                            &[Figure {
                                memspill: "+3.6 %; +9.5 %",
                                ..figure("swap-out, 16 tasks", Metric::SwapOut, published::BATCHES_16)
                            }],
                        )
                    },
                    ours(&[]),
                ],
                ..BATCHES_MACHINE
            },
            Case {
                machine: "16 tasks, 2 sockets, pmem, random, 20 % stores",
                pattern: MIXED,
                settings: &[
                    setting(UNBATCHED),
                    Setting { unmaps: Pieces::Batch, ..setting(BATCHED) },
                    ours(&[]),
                ],
                ..BATCHES_MACHINE
            },
        ],
        note: Some(
            "The series unmaps what it batches in one step too: its form after does, that before unmaps page \
             by page. Both write page by page.",
        ),
    },
    Thread {
        id: "002",
        title: "002 cgroup map",
        published: Some(published::CGROUP_MAP),
        metric: Metric::Accesses,
        counts: &[
            Count::CgroupLocks,
            Count::CgroupContended,
            Count::Waited(&MAP),
            Count::Held(&MAP),
            Count::Waited(&DEVICE),
            Count::Waited(&TRUNKS),
        ],
        cases: &[
            Case {
                machine: "1 task, RAM disk, stores in order",
                cpus: 1,
                cpus_per_socket: 48,
                tasks: 1,
                pattern: STORES,
                of_then: OF_LATE_2024,
                settings: &[
                    setting(&["cgroup-map=locked", "folio=4K"]),
                    reported(
                        &["cgroup-map=lock-free", "folio=4K"],
                        &[
                            Figure {
                                before: for_8g(5.461),
                                memspill: "-2.4 %; -1.3 %",
                                ..within_noise(
                                    "time out, 1 task",
                                    Metric::OutTime,
                                    published::CGROUP_MAP_1_OUT,
                                    0.034,
                                )
                            },
                            Figure {
                                before: for_8g(19.737),
                                ..within_noise(
                                    "time in, 1 task",
                                    Metric::InTime,
                                    published::CGROUP_MAP_1_IN,
                                    0.009,
                                )
                            },
                        ],
                    ),
                ],
                ..MACHINE
            },
            Case {
                machine: "96 tasks that compute between, 2 sockets, RAM disk, random, 20 % stores",
                settings: &[
                    setting(&["cgroup-map=locked", "folio=4K"]),
                    reported(
                        &["cgroup-map=lock-free", "folio=4K"],
                        &[
                            Figure {
                                memspill: "-9.7 % (rate); +4.0 %",
                                why: WHY_MAP,
                                ..figure(
                                    "system time, 4K",
                                    Metric::SystemTime,
                                    published::CGROUP_MAP_96_SYSTEM,
                                )
                            },
                            Figure {
                                why: WHY_MAP,
                                ..figure("real time, 4K", Metric::RealTime, published::CGROUP_MAP_96_REAL)
                            },
                        ],
                    ),
                ],
                ..BUILD_MACHINE
            },
            Case {
                machine: "the same, folios of 64 KiB, more memory",
                // The group of 2G in place of 1.5G: each third access. With such folios 27.2 s and 38.8 s
                // for 659 k faults, less 10 and 21 µs.
                set_percent: 150,
                compute_ns: 13_700,
                work: Work::Kernel(Form { fault_ns: 28_000, ..kernel::OF_2025 }),
                settings: &[
                    setting(&["cgroup-map=locked", "folio=64K"]),
                    reported(
                        &["cgroup-map=lock-free", "folio=64K"],
                        &[
                            Figure {
                                why: WHY_MAP,
                                ..figure(
                                    "system time, 64K",
                                    Metric::SystemTime,
                                    published::CGROUP_MAP_64K_SYSTEM,
                                )
                            },
                            Figure {
                                why: WHY_MAP,
                                ..figure("real time, 64K", Metric::RealTime, published::CGROUP_MAP_64K_REAL)
                            },
                        ],
                    ),
                ],
                ..BUILD_MACHINE
            },
        ],
        note: None,
    },
    Thread {
        id: "003",
        title: "003 readahead",
        published: Some(published::READAHEAD),
        metric: Metric::Accesses,
        counts: &[
            Count::CacheHits,
            Count::CacheMisses,
            Count::CacheBypassed,
            Count::Readahead,
            Count::ReadaheadHits,
            Count::Waited(&TRUNKS),
        ],
        cases: &[
            Case {
                machine: "16 tasks, random reads, RAM disk",
                pattern: READS,
                settings: &[
                    ALWAYS,
                    reported(
                        AUTO,
                        &[Figure {
                            before: pages(1818.0 * MIB),
                            memspill: "-1.2 %",
                            why: WHY_RANDOM,
                            ..figure("random", Metric::Accesses, published::READAHEAD_RANDOM)
                        }],
                    ),
                    STREAM,
                ],
                ..SHMEM_MACHINE
            },
            Case {
                machine: "16 tasks, zipf 1.2 reads, RAM disk",
                pattern: Pattern::Zipf,
                settings: &[
                    ALWAYS,
                    reported(
                        AUTO,
                        &[Figure {
                            before: pages(31.1 * 1024.0 * MIB),
                            memspill: "-0.6 %",

                            ..figure("zipf 1.2", Metric::Accesses, published::READAHEAD_ZIPF)
                        }],
                    ),
                    STREAM,
                ],
                ..SHMEM_MACHINE
            },
            Case {
                machine: "1 task, in order, RAM disk",
                tasks: 1,
                compute_ns: 0,
                pattern: STORES,
                fragmented: None,
                settings: &[
                    ALWAYS,
                    reported(
                        AUTO,
                        &[Figure {
                            before: for_8g(22.248),
                            memspill: "-0.2 %",
                            ..within_noise(
                                "time of dd",
                                Metric::RealTime,
                                published::READAHEAD_DD_TIME,
                                0.031,
                            )
                        }],
                    ),
                    STREAM,
                ],
                ..SHMEM_MACHINE
            },
        ],
        note: Some(
            "stream is this engine's own setting: no page goes by the swap cache, and when faults \
             prove a direction, the next pages are mapped with the one that faulted.",
        ),
    },
    Thread {
        id: "nvme",
        title: "003 readahead, on a device that is not RAM",
        published: None,
        metric: Metric::Accesses,
        counts: READAHEAD,
        cases: &[
            Case {
                machine: "1 task, in order, NVMe",
                cpus: 1,
                tasks: 1,
                pattern: STORES,
                kind: DeviceKind::Nvme,
                work: Work::Pager,
                settings: WINDOWS,
                ..MACHINE
            },
            Case {
                machine: "4 tasks, random reads, NVMe",
                cpus: 4,
                tasks: 4,
                pattern: READS,
                kind: DeviceKind::Nvme,
                work: Work::Pager,
                settings: WINDOWS,
                ..MACHINE
            },
        ],
        note: None,
    },
    Thread {
        id: "004",
        title: "004 folios of larger orders",
        published: Some(published::FOLIOS),
        metric: Metric::Accesses,
        counts: &[Count::ClusterLocks, Count::Fallbacks, Count::Waited(&DEVICE), Count::Waited(&TRUNKS)],
        cases: &[Case {
            machine: "70 tasks on 8 CPUs, RAM disk, stores to fresh memory of 1.75 times the budget",
            cpus: 8,
            tasks: 70,
            pattern: Pattern::Fresh { full: false },
            pages_per_task: 2048,
            set_percent: 175,
            // It stores the 512 words of a page, each by a call: measured here.
            compute_ns: 430,
            of_then: OF_EARLY_2024,
            settings: &[
                Setting { form: "before: ", ..setting(&["folio=4K", "large-folios=split"]) },
                Setting {
                    form: "before: ",
                    ..reported(
                        &["folio=64K", "large-folios=split"],
                        &[Figure {
                            kernel: "+51 %, +19 %",
                            memspill: "-8.7 %",
                            why: WHY_ARM,
                            ..figure("64K, before", Metric::Accesses, published::FOLIOS_64K_SPLIT)
                        }],
                    )
                },
                Setting {
                    form: "before: ",
                    ..reported(
                        &["folio=2M", "large-folios=free-cluster-only"],
                        &[Figure {
                            kernel: "+207 %, +162 %",
                            why: WHY_ARM,
                            ..figure("2M, before", Metric::Accesses, published::FOLIOS_2M_BEFORE)
                        }],
                    )
                },
                Setting {
                    form: "after: ",
                    ..reported(
                        &["folio=4K", "large-folios=free-cluster-only"],
                        &[within_noise("4K, after", Metric::Accesses, published::FOLIOS_4K, 0.032)],
                    )
                },
                Setting {
                    form: "after: ",
                    ..reported(
                        &["folio=64K", "large-folios=free-cluster-only"],
                        &[Figure {
                            kernel: "+187 %, +183 %",
                            memspill: "-1.6 %",
                            why: WHY_ARM,
                            ..figure("64K, after", Metric::Accesses, published::FOLIOS_64K)
                        }],
                    )
                },
                Setting {
                    form: "after: ",
                    ..reported(
                        &["folio=2M", "large-folios=free-cluster-only"],
                        &[Figure {
                            kernel: "+207 %, +162 %",
                            memspill: "-8.6 %",
                            why: WHY_ARM,
                            ..figure("2M, after", Metric::Accesses, published::FOLIOS_2M)
                        }],
                    )
                },
                ours(&["folio=4K"]),
                ours(&["folio=64K"]),
                ours(&["folio=2M"]),
            ],
            ..MACHINE
        }],
        note: Some("Huge pages left whole before the change as well: to this engine both are one setting."),
    },
];

/// Two sockets with 48 CPUs, and a RAM disk for each. There the kernel's reclaimers, one for each socket,
/// make room besides the tasks.
const SCAN_BASE_MACHINE: Case = Case {
    cpus: 48,
    cpus_per_socket: 24,
    reclaimers: 2,
    devices: 2,
    fragmented: Some(Fragmented { trunks: 48, full_percent: 95 }),
    pages_per_task: 4096,
    set_percent: 400,
    work: Work::Kernel(kernel::OF_2020),
    of_then: OF_2020,
    ..MACHINE
};

const SHARED_BASE: &[&str] = &["scan-base=shared"];
const BASE_OF_CPU: &[&str] = &["scan-base=per-cpu"];
const BASE_LEAVES_TRUNK: &[&str] = &["scan-base=per-cpu-trunk"];

const BATCHES_MACHINE: Case = Case {
    reclaimers: 2,
    pattern: Pattern::Fresh { full: true },
    pages_per_task: 4096,
    work: Work::Kernel(kernel::OF_2020),
    of_then: OF_2016,
    ..MACHINE
};
const UNBATCHED: &[&str] = &["slot-batch=1", "cache-batch=1"];
const BATCHED: &[&str] = &["slot-batch=64", "cache-batch=32"];

/// A build of 96 jobs, of which every second access is to a page that is away. The time between two faults,
/// its own and the kernel's, was measured of a build in a memory group here (eight jobs, 200 MB; its own time
/// without a limit): 27.2 s and 36.6 s for 602 k pages read, less 8.5 µs of LZ4 and 6 that are simulated.
const BUILD_MACHINE: Case = Case {
    cpus: 96,
    cpus_per_socket: 48,
    tasks: 96,
    compute_ns: 22_500,
    work: Work::Kernel(Form { fault_ns: 46_000, ..kernel::OF_2025 }),
    of_then: OF_LATE_2024,
    ..MACHINE
};

/// Shared memory: the kernel reads neighbours by slot there. Measured here: fio takes 0.46 µs of its own for
/// an access (10.2 s for 22 million), and a fault 0.7 µs more than one of anonymous memory (4.6 and 3.9).
const SHMEM_MACHINE: Case = Case {
    by_slot: true,
    compute_ns: 360,
    work: Work::Kernel(Form { fault_ns: 740, ..kernel::OF_2024 }),
    // The thread's 2 GiB are 32 trunks.
    fragmented: Some(Fragmented { trunks: 32, full_percent: 50 }),
    pages_per_task: 4096,
    of_then: OF_EARLY_2024,
    ..MACHINE
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_can_be_set_and_differs_from_the_first() {
        for case in THREADS.iter().flat_map(|thread| thread.cases) {
            // A knob that is not there leaves a row out of the report, and says so there: that is for other
            // builds.
            let parse = |s: &Setting| (s.form, s.unmaps, s.tuning(case).unwrap());
            let tunings: Vec<_> = case.settings.iter().map(parse).collect();
            for (i, tuning) in tunings.iter().enumerate() {
                assert!(!tunings[..i].contains(tuning), "{}: setting {i} is an earlier one", case.machine);
            }
        }
    }
}
