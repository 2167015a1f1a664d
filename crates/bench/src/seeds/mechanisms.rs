//! The tables of `memspill bench seeds`: which workloads, which settings, what is compared. Nothing is run
//! here.
//!
//! The original commands filled machines of 35 to 64 GiB of swap; what is kept of them is the number of
//! processes, the pattern, and how much larger the set is than memory.

use memspill_tables::{Published, published};

const MIB: u64 = 1 << 20;

/// How large and how long, for this machine.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Uncompressed pages that the workload keeps in memory.
    pub resident_bytes: u64,
    pub seconds: f64,
    pub jobs: u32,
}

impl Scale {
    pub fn of(quick: bool, ram_bytes: u64) -> Scale {
        if quick {
            return Scale { resident_bytes: 32 * MIB, seconds: 0.4, jobs: 16 };
        }
        // The original sets were many gigabytes: what matters is how much more they were than memory.
        let resident_bytes = (ram_bytes / 384).clamp(32 * MIB, 256 * MIB) / MIB * MIB;
        Scale { resident_bytes, seconds: 2.0, jobs: 32 }
    }
}

pub struct Mechanism {
    pub id: &'static str,
    pub title: &'static str,
    pub published: &'static str,
    /// What the thread argues with.
    pub counts: &'static [Count],
    pub cases: &'static [Case],
    pub note: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    Locks,
    ClusterContended,
    ListContended,
    CgroupContended,
    ScanSteps,
    BaseSteps,
    CacheHits,
    CacheMisses,
    CacheBypassed,
    Readahead,
    ReadaheadHits,
    Fallbacks,
    ClustersWaited,
    ClustersHeld,
    TrunksWaited,
    TrunksHeld,
    DeviceWaited,
    DeviceHeld,
    MapWaited,
    MapHeld,
}

/// One workload with its settings.
pub struct Case {
    /// For progress.
    pub name: &'static str,
    /// The name of the rate that the workload prints, and what it counts.
    pub metric: &'static str,
    pub counts: &'static str,
    pub devices: u32,
    /// Devices have room for so much more than what cannot stay in memory, in percent; None: for everything.
    pub spare_percent: Option<u64>,
    pub work: fn(&Scale) -> Work,
    /// The first is the one that the others are compared with.
    pub settings: &'static [Setting],
}

pub struct Setting {
    pub knobs: &'static [&'static str],
    pub published: Option<Published>,
}

/// A workload and its size, for one machine.
pub struct Work {
    /// Name and options.
    pub words: String,
    /// All that it touches, and how much of it stays in memory uncompressed.
    pub set_bytes: u64,
    pub resident_bytes: u64,
    /// Of many processes: what each has besides.
    pub unmanaged_bytes: u64,
}

/// Of a page of the workloads' contents `half`, LZ4 leaves this part, and the pool loses some.
const POOL_PERCENT: u64 = 55;
/// Tables, and pages on their way.
const OVERHEAD_BYTES: u64 = 4 << 20;
/// A short process's stack, and pages of its libraries that it has written.
const PROCESS_BYTES: u64 = 2 << 20;

impl Work {
    /// The pool is within the budget: it comes on top of what is to stay uncompressed.
    pub fn budget_bytes(&self) -> u64 {
        self.resident_bytes + self.away_bytes() * POOL_PERCENT / 100 + OVERHEAD_BYTES + self.unmanaged_bytes
    }

    fn away_bytes(&self) -> u64 {
        self.set_bytes.saturating_sub(self.resident_bytes)
    }
}

impl Case {
    /// Heads the rows: what is run, and how large.
    pub fn group(&self, work: &Work) -> String {
        let mib = |bytes: u64| bytes >> 20;
        format!(
            "{}, {}M of which {}M in memory: {}",
            self.name,
            mib(work.set_bytes),
            mib(work.resident_bytes),
            self.counts
        )
    }

    pub fn swap(&self, work: &Work) -> Vec<String> {
        let size = self.spare_percent.map(|spare| {
            let bytes = work.away_bytes() * (100 + spare) / 100 + OVERHEAD_BYTES;
            format!("size={},", bytes / u64::from(self.devices))
        });
        vec![format!("ram:{}prio=1", size.unwrap_or_default()); self.devices as usize]
    }
}

const fn setting(knobs: &'static [&'static str]) -> Setting {
    Setting { knobs, published: None }
}
const fn reported(knobs: &'static [&'static str], published: Option<Published>) -> Setting {
    Setting { knobs, published }
}

const fn case(name: &'static str, work: fn(&Scale) -> Work, settings: &'static [Setting]) -> Case {
    Case { name, metric: "ops_per_s", counts: "touches", devices: 1, spare_percent: None, work, settings }
}

/// `times` is how many times as large as memory the set is.
fn work(scale: &Scale, times: f64, words: impl Fn(u64) -> String) -> Work {
    let set_bytes = (scale.resident_bytes as f64 * times) as u64;
    Work { words: words(set_bytes), set_bytes, resident_bytes: scale.resident_bytes, unmanaged_bytes: 0 }
}

fn pmbench(scale: &Scale, times: f64, rest: &str) -> Work {
    let seconds = scale.seconds;
    work(scale, times, |size| format!("pmbench --size {size} --seconds {seconds} --contents half {rest}"))
}

/// With the locks of then: one for a device's slots, one for its swap cache.
const UNBATCHED: &[&str] = &["slot-lock=device", "cache-lock=device", "slot-batch=1", "cache-batch=1"];
const BATCHED: &[&str] = &["slot-lock=device", "cache-lock=device", "slot-batch=64", "cache-batch=32"];
/// With a lock for each cluster.
const UNBATCHED_NOW: &[&str] = &["slot-batch=1", "cache-batch=1"];
const BATCHED_NOW: &[&str] = &["slot-batch=64", "cache-batch=32"];
const LOCKED: &[&str] = &["cgroup-map=locked"];
const LOCK_FREE: &[&str] = &["cgroup-map=lock-free"];
const ALWAYS: &[&str] = &["readahead=always"];
const AUTO: &[&str] = &["readahead=auto"];
const STREAM: &[&str] = &["readahead=stream"];

pub const MECHANISMS: &[Mechanism] = &[
    Mechanism {
        id: "000",
        title: "000 scan base",
        published: published::SCAN_BASE,
        counts: &[
            Count::ClusterContended,
            Count::ListContended,
            Count::ScanSteps,
            Count::BaseSteps,
            Count::ClustersWaited,
            Count::ClustersHeld,
            Count::TrunksWaited,
            Count::TrunksHeld,
        ],
        cases: &[Case {
            devices: 2,
            // Full enough that no cluster is empty: only then is there a scan.
            spare_percent: Some(12),
            ..case(
                "16 x pmbench, random, 80 of 100 loads, 2 devices nearly full",
                |scale| pmbench(scale, 4.0, "--processes 16 --read-percent 80"),
                &[
                    // With the locks of then: one for each device's slots, one for 64 MiB of swap cache.
                    setting(&["slot-lock=device", "cache-lock=trunk", "scan-base=shared"]),
                    reported(
                        &["slot-lock=device", "cache-lock=trunk", "scan-base=per-cpu"],
                        published::SCAN_BASE_16,
                    ),
                    setting(&["slot-lock=device", "cache-lock=trunk", "scan-base=per-cpu-trunk"]),
                    setting(&["scan-base=shared"]),
                    setting(&["scan-base=per-cpu-trunk"]),
                ],
            )
        }],
        note: None,
    },
    Mechanism {
        id: "001",
        title: "001 batches",
        published: published::BATCHES,
        counts: &[
            Count::Locks,
            Count::ClusterContended,
            Count::ListContended,
            Count::ClustersWaited,
            Count::ClustersHeld,
            Count::TrunksWaited,
            Count::TrunksHeld,
            Count::DeviceWaited,
            Count::DeviceHeld,
        ],
        cases: &[
            case(
                "1 thread, sequential stores",
                |scale| pmbench(scale, 2.0, "--read-percent 0 --pattern linear"),
                &[
                    setting(UNBATCHED),
                    reported(BATCHED, published::BATCHES_1),
                    setting(UNBATCHED_NOW),
                    setting(BATCHED_NOW),
                ],
            ),
            case(
                "16 processes, sequential stores",
                |scale| pmbench(scale, 2.0, "--processes 16 --read-percent 0 --pattern linear"),
                &[
                    setting(UNBATCHED),
                    reported(BATCHED, published::BATCHES_16),
                    setting(UNBATCHED_NOW),
                    setting(BATCHED_NOW),
                ],
            ),
        ],
        note: None,
    },
    Mechanism {
        id: "002",
        title: "002 cgroup map",
        published: published::CGROUP_MAP,
        counts: &[Count::Locks, Count::CgroupContended, Count::MapWaited, Count::MapHeld],
        cases: &[
            Case {
                metric: "jobs_per_s",
                counts: "jobs",
                ..case(
                    "build of short processes, 8 at once",
                    |scale| {
                        let jobs = scale.jobs;
                        // A compiler grows to its size: on average it has half of it, so that together they
                        // have two thirds of what there is room for, now and then all. Each is waited for by
                        // a driver.
                        let mut work = work(scale, 3.0, |most| {
                            format!("compile -j 8 --count {jobs} --size {} --contents half", most / 6)
                        });
                        work.unmanaged_bytes = 2 * 8 * PROCESS_BYTES;
                        work
                    },
                    &[setting(LOCKED), reported(LOCK_FREE, published::CGROUP_MAP_96)],
                )
            },
            Case {
                metric: "out_pages_per_s",
                counts: "pages pushed out",
                ..case(
                    "sequential swap-out by one thread",
                    |scale| {
                        work(scale, 2.5, |size| {
                            format!("seqswap --size {} --push {} --contents half", size * 2 / 5, size * 3 / 5)
                        })
                    },
                    &[setting(LOCKED), reported(LOCK_FREE, published::CGROUP_MAP_1)],
                )
            },
        ],
        note: None,
    },
    Mechanism {
        id: "003",
        title: "003 readahead",
        published: published::READAHEAD,
        counts: &[
            Count::CacheHits,
            Count::CacheMisses,
            Count::CacheBypassed,
            Count::Readahead,
            Count::ReadaheadHits,
        ],
        cases: &[
            case(
                "16 x random reads",
                |scale| pmbench(scale, 2.0, "--processes 16 --read-percent 100"),
                &[setting(ALWAYS), reported(AUTO, published::READAHEAD_RANDOM), setting(STREAM)],
            ),
            case(
                "16 x zipf 1.2 reads",
                |scale| pmbench(scale, 2.0, "--processes 16 --read-percent 100 --pattern zipf --theta 1.2"),
                &[setting(ALWAYS), reported(AUTO, published::READAHEAD_ZIPF), setting(STREAM)],
            ),
            case(
                "1 x sequential reads",
                |scale| pmbench(scale, 2.0, "--read-percent 100 --pattern linear"),
                &[setting(ALWAYS), reported(AUTO, published::READAHEAD_DD), setting(STREAM)],
            ),
        ],
        note: Some(
            "stream is this engine's own setting: no page goes by the swap cache, and when faults prove a \
             direction, the next pages are mapped with the one that faulted. Nobody sees whether those \
             are touched; memspill sim seeds counts them.",
        ),
    },
    Mechanism {
        id: "004",
        title: "004 folios of larger orders",
        published: published::FOLIOS,
        counts: &[Count::Locks, Count::Fallbacks],
        cases: &[case(
            "8 processes, sequential stores",
            |scale| pmbench(scale, 1.75, "--processes 8 --read-percent 0 --pattern linear"),
            &[
                setting(&["folio=4K"]),
                reported(&["folio=64K", "large-folios=split"], published::FOLIOS_64K_SPLIT),
                reported(&["folio=64K", "large-folios=free-cluster-only"], published::FOLIOS_64K),
                setting(&["folio=64K", "large-folios=all"]),
                reported(&["folio=2M", "large-folios=free-cluster-only"], published::FOLIOS_2M),
                setting(&["folio=2M", "large-folios=all"]),
            ],
        )],
        note: Some(
            "usemem writes fresh memory; here memory is written once before the clock starts, and then over \
             and over.",
        ),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use memspill_engine::tuning::Tuning;

    const SCALE: Scale = Scale { resident_bytes: 64 << 20, seconds: 1.0, jobs: 8 };

    fn cases() -> impl Iterator<Item = &'static Case> {
        MECHANISMS.iter().flat_map(|mechanism| mechanism.cases)
    }

    #[test]
    fn what_stays_and_what_leaves_fit_the_budget_and_the_devices() {
        for case in cases() {
            let work = (case.work)(&SCALE);
            assert!(work.set_bytes > work.resident_bytes, "{}: there is something to swap", case.name);
            let budget = work.budget_bytes();
            assert!(
                budget > work.resident_bytes && budget < work.set_bytes + work.unmanaged_bytes,
                "{}",
                case.name
            );
            assert_eq!(case.swap(&work).len(), case.devices as usize);
        }
    }

    #[test]
    fn every_setting_can_be_set_and_differs_from_the_others() {
        for case in cases() {
            let tunings: Vec<Tuning> =
                case.settings.iter().map(|s| Tuning::parse(s.knobs.iter().copied()).unwrap()).collect();
            for (i, tuning) in tunings.iter().enumerate() {
                assert!(!tunings[..i].contains(tuning), "{}: setting {i} is an earlier one", case.name);
            }
        }
    }
}
