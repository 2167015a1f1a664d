//! The tables of `memspill sim seeds`: which machines, which settings, what is compared, and what was
//! published of it. Nothing is measured here.

use crate::bench::Pattern;
use crate::device::DeviceKind;
use crate::figures::{Figure, Metric};
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
    ClusterContended,
    ListContended,
    ScanSteps,
    BaseSteps,
    CgroupLocks,
    CgroupContended,
    CacheHits,
    CacheMisses,
    CacheBypassed,
    Readahead,
    ReadaheadHits,
    Fallbacks,
    /// The share of all CPUs' time in which this lock is waited for (its line's ways between CPUs included),
    /// and in which it is held.
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
const MAP: LockShare = LockShare {
    lock: "lock MapLock",
    waited: ("cgroup_waited_share", "map waited"),
    held: ("cgroup_held_share", "map held"),
};

/// One machine with one workload.
pub struct Case {
    pub machine: &'static str,
    /// CPUs, CPUs of a socket, threads of a process.
    pub shape: (u32, u32, u32),
    pub pattern: Pattern,
    pub kind: DeviceKind,
    pub devices: u32,
    /// The set of pages is so many times the budget, in percent.
    pub set_percent: u64,
    /// The first is the one that the others are compared with.
    pub settings: &'static [Setting],
}

pub struct Setting {
    /// Before the knobs, where a thread has several forms that are one setting here.
    pub form: &'static str,
    pub knobs: &'static [&'static str],
    pub figures: &'static [Figure],
}

const fn setting(knobs: &'static [&'static str]) -> Setting {
    Setting { form: "", knobs, figures: &[] }
}

/// A setting for which a thread has published figures.
const fn reported(knobs: &'static [&'static str], figures: &'static [Figure]) -> Setting {
    Setting { form: "", knobs, figures }
}

const fn figure(metric: Metric, published: Option<Published>) -> Figure {
    Figure { metric, published: published.expect("a figure"), noise: None }
}

/// A figure within the thread's own deviation.
const fn within_noise(metric: Metric, published: Option<Published>, noise: f64) -> Figure {
    Figure { metric, published: published.expect("a figure"), noise: Some(noise) }
}

/// The lock that stands for the swap cache's of a trunk: a cluster's, which has the entries of its slots.
const CACHE_LOCK: Metric =
    Metric::Locks("time in the swap cache's lock", &["lock ClusterState", "lock CacheTrunk"]);
const SLOT_LOCK: Metric = Metric::Locks("time in the slots' lock", &["lock Lists", "lock DeviceSlots"]);
const LRU_LOCK: Metric = Metric::Locks("time in the lock of the LRU", &["lock Lru"]);

const STORES: Pattern = Pattern::Sequential;
const MIXED: Pattern = Pattern::Random { write_percent: 20 };
const READS: Pattern = Pattern::Random { write_percent: 0 };

const UNBATCHED: &[&str] = &["slot-batch=1", "cache-batch=1"];
const BATCHED: &[&str] = &["slot-batch=64", "cache-batch=32"];
const LOCKED: &[&str] = &["cgroup-map=locked"];
const LOCK_FREE: &[&str] = &["cgroup-map=lock-free"];
const ALWAYS: Setting = setting(&["readahead=always"]);
const AUTO: &[&str] = &["readahead=auto"];
const STREAM: Setting = setting(&["readahead=stream"]);
const WINDOWS: &[Setting] = &[
    setting(&["readahead=always", "page-cluster=0"]),
    setting(&["readahead=always", "page-cluster=3"]),
    STREAM,
];

const READAHEAD: &[Count] =
    &[Count::CacheHits, Count::CacheMisses, Count::CacheBypassed, Count::Readahead, Count::ReadaheadHits];

pub const THREADS: &[Thread] = &[
    Thread {
        id: "000",
        title: "000 scan base",
        published: Some(published::SCAN_BASE),
        metric: Metric::Accesses,
        counts: &[
            Count::ClusterContended,
            Count::ListContended,
            Count::ScanSteps,
            Count::BaseSteps,
            Count::Waited(&CLUSTERS),
            Count::Held(&CLUSTERS),
            Count::Waited(&TRUNKS),
            Count::Held(&TRUNKS),
            Count::Waited(&DEVICE),
            Count::Held(&DEVICE),
        ],
        cases: &[Case {
            machine: "16 tasks, 2 sockets, 2 RAM disks, random, 20 % stores",
            shape: (16, 8, 1),
            pattern: MIXED,
            kind: DeviceKind::RamDisk,
            devices: 2,
            set_percent: 200,
            settings: &[
                setting(&["scan-base=shared"]),
                reported(
                    &["scan-base=per-cpu"],
                    &[
                        figure(Metric::Accesses, published::SCAN_BASE_16),
                        figure(Metric::SwapIn, published::SCAN_BASE_IN),
                        figure(Metric::SwapOut, published::SCAN_BASE_OUT),
                        figure(CACHE_LOCK, published::SCAN_BASE_CACHE_LOCK),
                        figure(SLOT_LOCK, published::SCAN_BASE_SLOT_LOCK),
                        figure(LRU_LOCK, published::SCAN_BASE_LRU_LOCK),
                    ],
                ),
                setting(&["scan-base=per-cpu-trunk"]),
            ],
        }],
        note: None,
    },
    Thread {
        id: "001",
        title: "001 batches",
        published: Some(published::BATCHES),
        metric: Metric::SwapOut,
        counts: &[
            Count::ClusterLocks,
            Count::ClusterContended,
            Count::ListContended,
            Count::Waited(&CLUSTERS),
            Count::Held(&CLUSTERS),
            Count::Waited(&TRUNKS),
            Count::Held(&TRUNKS),
            Count::Waited(&DEVICE),
            Count::Held(&DEVICE),
        ],
        cases: &[
            Case {
                machine: "1 thread, pmem, sequential stores",
                shape: (1, 8, 1),
                pattern: STORES,
                kind: DeviceKind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[
                    setting(UNBATCHED),
                    reported(BATCHED, &[figure(Metric::SwapOut, published::BATCHES_1)]),
                ],
            },
            Case {
                machine: "16 threads, 2 sockets, pmem, sequential stores",
                shape: (16, 8, 1),
                pattern: STORES,
                kind: DeviceKind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[
                    setting(UNBATCHED),
                    reported(BATCHED, &[figure(Metric::SwapOut, published::BATCHES_16)]),
                ],
            },
            Case {
                machine: "48 CPUs, 2 sockets, pmem, random, 20 % stores",
                shape: (48, 24, 1),
                pattern: MIXED,
                kind: DeviceKind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[setting(UNBATCHED), setting(BATCHED)],
            },
        ],
        note: None,
    },
    Thread {
        id: "002",
        title: "002 cgroup map",
        published: Some(published::CGROUP_MAP),
        metric: Metric::Accesses,
        counts: &[Count::CgroupLocks, Count::CgroupContended, Count::Waited(&MAP), Count::Held(&MAP)],
        cases: &[
            Case {
                machine: "1 thread, RAM disk, sequential stores",
                shape: (1, 48, 1),
                pattern: STORES,
                kind: DeviceKind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[
                    setting(LOCKED),
                    reported(
                        LOCK_FREE,
                        &[
                            within_noise(Metric::OutTime, published::CGROUP_MAP_1_OUT, 0.034),
                            within_noise(Metric::InTime, published::CGROUP_MAP_1_IN, 0.009),
                        ],
                    ),
                ],
            },
            Case {
                machine: "96 tasks, 2 sockets, RAM disk, random, 20 % stores",
                shape: (96, 48, 1),
                pattern: MIXED,
                kind: DeviceKind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[
                    setting(LOCKED),
                    reported(
                        LOCK_FREE,
                        &[
                            figure(Metric::SystemTime, published::CGROUP_MAP_96_SYSTEM),
                            figure(Metric::RealTime, published::CGROUP_MAP_96_REAL),
                        ],
                    ),
                ],
            },
            Case {
                machine: "96 tasks, 2 sockets, RAM disk, random, 20 % stores, folios of 64 KiB, more memory",
                shape: (96, 48, 1),
                pattern: MIXED,
                kind: DeviceKind::RamDisk,
                devices: 1,
                // The group of 2G in place of 1.5G.
                set_percent: 150,
                settings: &[
                    setting(&["cgroup-map=locked", "folio=64K"]),
                    reported(
                        &["cgroup-map=lock-free", "folio=64K"],
                        &[
                            figure(Metric::SystemTime, published::CGROUP_MAP_64K_SYSTEM),
                            figure(Metric::RealTime, published::CGROUP_MAP_64K_REAL),
                        ],
                    ),
                ],
            },
        ],
        note: None,
    },
    Thread {
        id: "003",
        title: "003 readahead",
        published: Some(published::READAHEAD),
        metric: Metric::Accesses,
        counts: READAHEAD,
        cases: &[
            Case {
                machine: "16 tasks, random reads, RAM disk",
                shape: (16, 8, 1),
                pattern: READS,
                kind: DeviceKind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[
                    ALWAYS,
                    reported(AUTO, &[figure(Metric::Accesses, published::READAHEAD_RANDOM)]),
                    STREAM,
                ],
            },
            Case {
                machine: "16 tasks, zipf 1.2 reads, RAM disk",
                shape: (16, 8, 1),
                pattern: Pattern::Zipf,
                kind: DeviceKind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[
                    ALWAYS,
                    reported(AUTO, &[figure(Metric::Accesses, published::READAHEAD_ZIPF)]),
                    STREAM,
                ],
            },
            Case {
                machine: "1 thread, sequential, RAM disk",
                shape: (1, 8, 1),
                pattern: STORES,
                kind: DeviceKind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[
                    ALWAYS,
                    reported(AUTO, &[within_noise(Metric::RealTime, published::READAHEAD_DD_TIME, 0.031)]),
                    STREAM,
                ],
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
                machine: "1 thread, sequential, NVMe",
                shape: (1, 8, 1),
                pattern: STORES,
                kind: DeviceKind::Nvme,
                devices: 1,
                set_percent: 200,
                settings: WINDOWS,
            },
            Case {
                machine: "4 threads, random reads, NVMe",
                shape: (4, 8, 4),
                pattern: READS,
                kind: DeviceKind::Nvme,
                devices: 1,
                set_percent: 200,
                settings: WINDOWS,
            },
        ],
        note: None,
    },
    Thread {
        id: "004",
        title: "004 folios of larger orders",
        published: Some(published::FOLIOS),
        metric: Metric::SwapOut,
        counts: &[Count::ClusterLocks, Count::Fallbacks],
        cases: &[Case {
            machine: "8 tasks, RAM disk, sequential stores over 1.75 times the budget",
            shape: (8, 8, 1),
            pattern: STORES,
            kind: DeviceKind::RamDisk,
            devices: 1,
            set_percent: 175,
            settings: &[
                Setting { form: "before: ", ..setting(&["folio=4K", "large-folios=split"]) },
                Setting {
                    form: "before: ",
                    ..reported(
                        &["folio=64K", "large-folios=split"],
                        &[figure(Metric::SwapOut, published::FOLIOS_64K_SPLIT)],
                    )
                },
                Setting {
                    form: "before: ",
                    ..reported(
                        &["folio=2M", "large-folios=free-cluster-only"],
                        &[figure(Metric::SwapOut, published::FOLIOS_2M_BEFORE)],
                    )
                },
                Setting {
                    form: "after: ",
                    ..reported(
                        &["folio=4K", "large-folios=free-cluster-only"],
                        &[figure(Metric::SwapOut, published::FOLIOS_4K)],
                    )
                },
                Setting {
                    form: "after: ",
                    ..reported(
                        &["folio=64K", "large-folios=free-cluster-only"],
                        &[figure(Metric::SwapOut, published::FOLIOS_64K)],
                    )
                },
                Setting {
                    form: "after: ",
                    ..reported(
                        &["folio=2M", "large-folios=free-cluster-only"],
                        &[figure(Metric::SwapOut, published::FOLIOS_2M)],
                    )
                },
                setting(&["folio=64K", "large-folios=all"]),
                setting(&["folio=2M", "large-folios=all"]),
            ],
        }],
        note: Some("Huge pages left whole before the change as well: to this engine both are one setting."),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine_sim::tuning::Tuning;

    #[test]
    fn every_setting_can_be_set_and_differs_from_the_first() {
        for case in THREADS.iter().flat_map(|thread| thread.cases) {
            // A knob that is not there leaves a row out of the report, and says so there: that is for other
            // builds.
            let parse = |s: &Setting| (s.form, Tuning::parse(s.knobs.iter().copied()).unwrap());
            let tunings: Vec<_> = case.settings.iter().map(parse).collect();
            for (i, tuning) in tunings.iter().enumerate() {
                assert!(!tunings[..i].contains(tuning), "{}: setting {i} is an earlier one", case.machine);
            }
        }
    }
}
