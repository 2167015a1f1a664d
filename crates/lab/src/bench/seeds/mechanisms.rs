//! The tables of `memspill-lab bench seeds`: which workloads, which settings, what is compared. Nothing
//! is run here.
//!
//! The original commands filled machines of 35 to 64 GiB of swap; what is kept of them is the program, the
//! number of processes, the pattern, how much larger the set is than memory, and that swap is a RAM disk,
//! whose RAM is not part of the limit. Sets are many trunks of 64 MiB.

use memspill_engine::units::PAGE_SIZE;
use memspill_tables::{Published, published};

const MIB: u64 = 1 << 20;

/// How large and how long, for this machine.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Pages that the workload keeps in memory.
    pub resident_bytes: u64,
    pub seconds: f64,
    pub jobs: u32,
}

impl Scale {
    pub fn of(quick: bool, ram_bytes: u64) -> Scale {
        if quick {
            return Scale { resident_bytes: 32 * MIB, seconds: 0.4, jobs: 16 };
        }
        // The original sets were many gigabytes. It matters how much more they were than memory, and that
        // there are trunks and clusters enough for the CPUs to be in different ones.
        let resident_bytes = (ram_bytes / 128).clamp(64 * MIB, 1024 * MIB) / MIB * MIB;
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
    /// The memory is shared, as a file of tmpfs is.
    pub shared: bool,
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
    /// All that it touches at a time, and how much of it stays in memory.
    pub set_bytes: u64,
    pub resident_bytes: u64,
    /// The memory that each of many processes has besides.
    pub unmanaged_bytes: u64,
}

/// Pages on their way, and for each page of the set: page tables, LRU lists, swap maps.
const OVERHEAD_BYTES: u64 = 4 << 20;
const TABLE_BYTES_PER_PAGE: u64 = 24;
/// A short process's stack, and pages of its libraries that it has written.
const PROCESS_BYTES: u64 = 2 << 20;

impl Work {
    /// What stays in memory, and memspill itself. The RAM disks come on top: they are outside of it.
    pub fn budget_bytes(&self) -> u64 {
        let table_bytes = self.set_bytes / PAGE_SIZE as u64 * TABLE_BYTES_PER_PAGE;
        self.resident_bytes + table_bytes + OVERHEAD_BYTES + self.unmanaged_bytes
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
        let bytes = match self.spare_percent {
            Some(spare) => work.away_bytes() * (100 + spare) / 100 + OVERHEAD_BYTES,
            // No row is to depend on whether there is room.
            None => work.set_bytes * 2,
        };
        vec![
            format!("ram:size={},compress=none,prio=1", bytes / u64::from(self.devices));
            self.devices as usize
        ]
    }
}

const fn setting(knobs: &'static [&'static str]) -> Setting {
    Setting { knobs, published: None }
}
const fn reported(knobs: &'static [&'static str], published: Option<Published>) -> Setting {
    Setting { knobs, published }
}

const fn case(name: &'static str, work: fn(&Scale) -> Work, settings: &'static [Setting]) -> Case {
    Case {
        name,
        metric: "ops_per_s",
        counts: "touches",
        devices: 1,
        spare_percent: None,
        shared: false,
        work,
        settings,
    }
}

/// A case of `usemem`.
const fn written(name: &'static str, work: fn(&Scale) -> Work, settings: &'static [Setting]) -> Case {
    Case { metric: "pages_per_s", counts: "pages written", ..case(name, work, settings) }
}

/// A case of `shmem-read`.
const fn shared(name: &'static str, work: fn(&Scale) -> Work, settings: &'static [Setting]) -> Case {
    Case { shared: true, counts: "reads", ..case(name, work, settings) }
}

/// `times` is how many times as large as memory the set is.
fn work(scale: &Scale, times: f64, words: impl Fn(u64) -> String) -> Work {
    let set_bytes = (scale.resident_bytes as f64 * times) as u64;
    Work { words: words(set_bytes), set_bytes, resident_bytes: scale.resident_bytes, unmanaged_bytes: 0 }
}

/// Fresh memory, written once by each process.
fn usemem(scale: &Scale, times: f64, processes: u64) -> Work {
    work(scale, times, |size| {
        format!("usemem --processes {processes} --size {} --contents half", size / processes)
    })
}

/// Shared memory that jobs read.
fn shmem_read(scale: &Scale, jobs: u32, pattern: &str) -> Work {
    let seconds = scale.seconds;
    work(scale, 2.0, |size| format!("shmem-read --jobs {jobs} --size {size} --seconds {seconds} {pattern}"))
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
                |scale| {
                    let seconds = scale.seconds;
                    work(scale, 4.0, |size| {
                        format!("pmbench --processes 16 --read-percent 80 --size {size} --seconds {seconds}")
                    })
                },
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
            written(
                "1 x usemem, sequential swap-out",
                |scale| usemem(scale, 4.0, 1),
                &[
                    setting(UNBATCHED),
                    reported(BATCHED, published::BATCHES_1),
                    setting(UNBATCHED_NOW),
                    setting(BATCHED_NOW),
                ],
            ),
            written(
                "16 x usemem, sequential swap-out",
                |scale| usemem(scale, 4.0, 16),
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
                        // A compiler takes half to one and a half times its size, and grows to that: eight at
                        // once have on average half of it, at most 12 sizes. Each is waited for by a driver.
                        let mut work = work(scale, 4.0, |most| {
                            format!("compile -j 8 --count {jobs} --size {} --contents half", most / 8)
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
            shared(
                "16 x random reads",
                |scale| shmem_read(scale, 16, "--pattern uniform"),
                &[setting(ALWAYS), reported(AUTO, published::READAHEAD_RANDOM), setting(STREAM)],
            ),
            shared(
                "16 x zipf 1.2 reads",
                |scale| shmem_read(scale, 16, "--pattern zipf --theta 1.2"),
                &[setting(ALWAYS), reported(AUTO, published::READAHEAD_ZIPF), setting(STREAM)],
            ),
            shared(
                "1 x sequential reads",
                |scale| shmem_read(scale, 1, "--pattern linear"),
                &[setting(ALWAYS), reported(AUTO, published::READAHEAD_DD), setting(STREAM)],
            ),
        ],
        note: Some(
            "stream is this engine's own setting: no page goes by the swap cache, and when faults prove a \
             direction, the next pages are mapped with the one that faulted. Nobody sees whether those \
             are touched; memspill-lab sim seeds counts them.",
        ),
    },
    Mechanism {
        id: "004",
        title: "004 folios of larger orders",
        published: published::FOLIOS,
        counts: &[Count::Locks, Count::Fallbacks],
        cases: &[written(
            "18 x usemem",
            // 70 processes of 1G in 40G, by 8 CPUs; the set is larger here, for the sake of time.
            |scale| usemem(scale, 3.5, 18),
            &[
                setting(&["folio=4K"]),
                reported(&["folio=64K", "large-folios=split"], published::FOLIOS_64K_SPLIT),
                reported(&["folio=64K", "large-folios=free-cluster-only"], published::FOLIOS_64K),
                setting(&["folio=64K", "large-folios=all"]),
                reported(&["folio=2M", "large-folios=free-cluster-only"], published::FOLIOS_2M),
                setting(&["folio=2M", "large-folios=all"]),
                // As shipped.
                setting(&["folio=auto"]),
            ],
        )],
        note: None,
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
            let devices = case.swap(&work);
            assert_eq!(devices.len(), case.devices as usize);
            let sizes = devices.iter().map(|spec| {
                let size = spec.strip_prefix("ram:size=").and_then(|rest| rest.split(',').next());
                size.and_then(|size| size.parse::<u64>().ok()).expect("a RAM disk has a size")
            });
            let room_bytes: u64 = sizes.sum();
            assert!(room_bytes > work.set_bytes - work.resident_bytes, "{}: there is room", case.name);
            let trunk_bytes = 64 << 20;
            assert!(room_bytes / u64::from(case.devices) >= trunk_bytes, "{}: more than a trunk", case.name);
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
