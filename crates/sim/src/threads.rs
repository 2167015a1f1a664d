//! The tables of `memspill sim seeds`: which machines, which settings, what is compared. Nothing is measured here.

use crate::bench::Pattern;
use crate::device::Kind;
use memspill_tables::{Published, published};

pub struct Thread {
    pub id: &'static str,
    pub title: &'static str,
    /// The thread, and what it measured on; None: no thread has.
    pub published: Option<&'static str>,
    pub metric: Metric,
    /// What the thread argues with.
    pub counts: &'static [Count],
    pub cases: &'static [Case],
    pub note: Option<&'static str>,
}

/// What is compared: more is better.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    SwapOut,
    Accesses,
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
    Readahead,
    ReadaheadHits,
    Fallbacks,
}

/// One machine with one workload.
pub struct Case {
    pub machine: &'static str,
    /// CPUs, CPUs of a socket, threads of a process.
    pub shape: (u32, u32, u32),
    pub pattern: Pattern,
    pub kind: Kind,
    pub devices: u32,
    /// The set of pages is so many times the budget, in percent.
    pub set_percent: u64,
    /// The first is the one that the others are compared with.
    pub settings: &'static [Setting],
}

pub struct Setting {
    pub knobs: &'static [&'static str],
    pub published: Option<Published>,
}

const fn setting(knobs: &'static [&'static str]) -> Setting {
    Setting { knobs, published: None }
}

const STORES: Pattern = Pattern::Sequential;
const MIXED: Pattern = Pattern::Random { write_percent: 20 };
const READS: Pattern = Pattern::Random { write_percent: 0 };

const UNBATCHED: Setting = setting(&["slot-batch=1", "cache-batch=1"]);
const BATCHED: Setting = setting(&["slot-batch=64", "cache-batch=32"]);
const LOCKED: Setting = setting(&["cgroup-map=locked"]);
const LOCK_FREE: Setting = setting(&["cgroup-map=lock-free"]);
const ALWAYS: Setting = setting(&["readahead=always"]);
const AUTO: Setting = setting(&["readahead=auto"]);
const STREAM: Setting = setting(&["readahead=stream"]);
const WINDOWS: &[Setting] = &[
    setting(&["readahead=always", "page-cluster=0"]),
    setting(&["readahead=always", "page-cluster=3"]),
    STREAM,
];

pub const THREADS: &[Thread] = &[
    Thread {
        id: "000",
        title: "000 scan base",
        published: Some(published::SCAN_BASE),
        metric: Metric::Accesses,
        counts: &[Count::ClusterContended, Count::ListContended, Count::ScanSteps, Count::BaseSteps],
        cases: &[Case {
            machine: "16 tasks, 2 sockets, 2 RAM disks, random, 20 % stores",
            shape: (16, 8, 1),
            pattern: MIXED,
            kind: Kind::RamDisk,
            devices: 2,
            set_percent: 200,
            settings: &[
                setting(&["scan-base=shared"]),
                Setting { knobs: &["scan-base=per-cpu"], published: published::SCAN_BASE_16 },
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
        counts: &[Count::ClusterLocks, Count::ClusterContended, Count::ListContended],
        cases: &[
            Case {
                machine: "1 thread, pmem, sequential stores",
                shape: (1, 8, 1),
                pattern: STORES,
                kind: Kind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[UNBATCHED, Setting { published: published::BATCHES_1, ..BATCHED }],
            },
            Case {
                machine: "16 threads, 2 sockets, pmem, sequential stores",
                shape: (16, 8, 1),
                pattern: STORES,
                kind: Kind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[UNBATCHED, Setting { published: published::BATCHES_16, ..BATCHED }],
            },
            Case {
                machine: "48 CPUs, 2 sockets, pmem, random, 20 % stores",
                shape: (48, 24, 1),
                pattern: MIXED,
                kind: Kind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[UNBATCHED, BATCHED],
            },
        ],
        note: None,
    },
    Thread {
        id: "002",
        title: "002 cgroup map",
        published: Some(published::CGROUP_MAP),
        metric: Metric::Accesses,
        counts: &[Count::CgroupLocks, Count::CgroupContended],
        cases: &[
            Case {
                machine: "1 thread, RAM disk, sequential stores",
                shape: (1, 48, 1),
                pattern: STORES,
                kind: Kind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[LOCKED, Setting { published: published::CGROUP_MAP_1, ..LOCK_FREE }],
            },
            Case {
                machine: "96 tasks, 2 sockets, RAM disk, random, 20 % stores",
                shape: (96, 48, 1),
                pattern: MIXED,
                kind: Kind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[LOCKED, Setting { published: published::CGROUP_MAP_96, ..LOCK_FREE }],
            },
        ],
        note: None,
    },
    Thread {
        id: "003",
        title: "003 readahead",
        published: Some(published::READAHEAD),
        metric: Metric::Accesses,
        counts: &[Count::Readahead, Count::ReadaheadHits],
        cases: &[
            Case {
                machine: "16 tasks, random reads, RAM disk",
                shape: (16, 8, 1),
                pattern: READS,
                kind: Kind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[ALWAYS, Setting { published: published::READAHEAD_RANDOM, ..AUTO }, STREAM],
            },
            Case {
                machine: "16 tasks, zipf 1.2 reads, RAM disk",
                shape: (16, 8, 1),
                pattern: Pattern::Zipf,
                kind: Kind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[ALWAYS, Setting { published: published::READAHEAD_ZIPF, ..AUTO }, STREAM],
            },
            Case {
                machine: "1 thread, sequential, RAM disk",
                shape: (1, 8, 1),
                pattern: STORES,
                kind: Kind::RamDisk,
                devices: 1,
                set_percent: 200,
                settings: &[ALWAYS, Setting { published: published::READAHEAD_DD, ..AUTO }, STREAM],
            },
        ],
        note: Some("stream is this engine's own setting: as auto, until faults prove a direction."),
    },
    Thread {
        id: "nvme",
        title: "003 readahead, on a device that is not RAM",
        published: None,
        metric: Metric::Accesses,
        counts: &[Count::Readahead, Count::ReadaheadHits],
        cases: &[
            Case {
                machine: "1 thread, sequential, NVMe",
                shape: (1, 8, 1),
                pattern: STORES,
                kind: Kind::Nvme,
                devices: 1,
                set_percent: 200,
                settings: WINDOWS,
            },
            Case {
                machine: "4 threads, random reads, NVMe",
                shape: (4, 8, 4),
                pattern: READS,
                kind: Kind::Nvme,
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
            kind: Kind::RamDisk,
            devices: 1,
            set_percent: 175,
            settings: &[
                setting(&["folio=4K"]),
                Setting {
                    knobs: &["folio=64K", "large-folios=split"],
                    published: published::FOLIOS_64K_SPLIT,
                },
                Setting {
                    knobs: &["folio=64K", "large-folios=free-cluster-only"],
                    published: published::FOLIOS_64K,
                },
                setting(&["folio=64K", "large-folios=all"]),
                Setting {
                    knobs: &["folio=2M", "large-folios=free-cluster-only"],
                    published: published::FOLIOS_2M,
                },
                setting(&["folio=2M", "large-folios=all"]),
            ],
        }],
        note: None,
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine_sim::tuning::Tuning;

    #[test]
    fn every_setting_can_be_set_and_differs_from_the_first() {
        for case in THREADS.iter().flat_map(|thread| thread.cases) {
            // A knob that is not there leaves a row out of the report, and says so there: that is for other builds.
            let tunings: Vec<Tuning> =
                case.settings.iter().map(|s| Tuning::parse(s.knobs.iter().copied()).unwrap()).collect();
            for (i, tuning) in tunings.iter().enumerate() {
                assert!(!tunings[..i].contains(tuning), "{}: setting {i} is an earlier one", case.machine);
            }
        }
    }
}
