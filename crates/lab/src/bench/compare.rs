//! The comparison: two runs to learn from, then pairs.
//!
//! ```text
//!   learn    without any limit: what the work takes, and that it works at all
//!            under the kernel's swap (zram, zswap): what its pool holds of that
//!   pair 1   kernel, memspill
//!   pair 2   memspill, kernel        the order alternates, so that what drifts meets both
//!   ...
//! ```
//!
//! Each run has a cgroup of its own; memspill's has no limit, and only records the peak: its budget is its
//! own promise.

use std::ffi::OsString;
use std::fs;

use crate::bench::cgroup::{Cgroups, Group};
use crate::bench::flat;
use crate::bench::plan::{self, KernelSwap, Options, Sizes, mib};
use crate::bench::process::{self, CommandRun};
use crate::bench::scratch::Scratch;
use crate::bench::swap::{self, Device, PoolUse};
use memspill_cli::signals::{self, Stop};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Kernel,
    Memspill,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Kernel => "kernel",
            Side::Memspill => "memspill",
        }
    }
}

/// The run of one side of a pair.
#[derive(Clone, Debug)]
pub struct SideRun {
    pub ran: CommandRun,
    /// The most that compressed pages took in RAM, allocator and tables included.
    pub pool_peak_bytes: Option<u64>,
    /// No cgroup counts that pool.
    pub pool_is_beside: bool,
    /// What zswap compressed with, where it was on.
    pub zswap: Option<String>,
    /// memspill's own statistics.
    pub stats: Vec<(String, f64)>,
    /// The machine's load a moment before.
    pub load: f64,
}

impl SideRun {
    /// Everything: what the cgroup counts, and the kernel's pool where no cgroup counts it. The two peaks
    /// need not be at the same moment, so the sum for the kernel is an upper bound.
    pub fn everything_peak_bytes(&self) -> Option<u64> {
        let pool_beside = if self.pool_is_beside { self.pool_peak_bytes.unwrap_or(0) } else { 0 };
        Some(self.ran.peak_bytes? + pool_beside)
    }
}

/// The results so far; not all pairs if it was interrupted.
#[derive(Debug)]
pub struct Comparison {
    pub options: Options,
    pub cgroup_version: Option<u8>,
    pub swap_before: Vec<(String, i32)>,
    pub takes_bytes: Option<u64>,
    pub unlimited_s: Option<f64>,
    pub ratio: Option<f64>,
    pub sizes: Sizes,
    /// The kernel's run and memspill's of each pair.
    pub pairs: Vec<(SideRun, SideRun)>,
    pub interrupted: Option<i32>,
}

/// Runs it all. `note` is told of each run, with how many are done, and of how many.
pub fn compare(options: &Options, note: &mut dyn FnMut(&str, usize, usize)) -> Result<Comparison, Stop> {
    signals::install().or_else(|error| Stop::refuse(format!("signals: {error}")))?;
    let swap_before = may_run(options)?;
    let cgroups = match options.kernel_swap {
        KernelSwap::None => Cgroups::find().ok(), // only for the peaks
        _ => Some(Cgroups::find()?),
    };
    let bench = Bench { options, scratch: Scratch::make(&options.dir)?, cgroups };
    let (total, mut done) = (runs_in_all(options), 0);
    let note = &mut |text: &str| {
        done += 1;
        note(text, done, total);
    };
    let mut comparison = bench.learn(note, swap_before)?;
    for number in 1..=options.pairs {
        match bench.pair(number, &comparison.sizes, note) {
            Ok(pair) => comparison.pairs.push(pair),
            Err(Stop::Interrupted(signal)) if !comparison.pairs.is_empty() => {
                comparison.interrupted = Some(signal);
                break;
            }
            Err(stop) => return Err(stop),
        }
    }
    Ok(comparison)
}

fn runs_in_all(options: &Options) -> usize {
    let to_learn = match options.kernel_swap {
        KernelSwap::None => 0,
        swap if swap.has_pool() && options.ratio.is_none() => 2,
        _ => 1,
    };
    to_learn + 2 * options.pairs as usize
}

/// Everything needed is there, and nobody else's swap would be filled before ours. Gives the swap that is on
/// already.
fn may_run(options: &Options) -> Result<Vec<(String, i32)>, Stop> {
    if options.kernel_swap == KernelSwap::None {
        return Ok(swap::active());
    }
    if !rustix::process::geteuid().is_root() {
        return Stop::refuse(
            "the kernel's side needs a memory cgroup and a swap device, and those need root: run it with \
             sudo (or --kernel-swap none, for what memspill costs where memory is not short)",
        );
    }
    if options.kernel_swap == KernelSwap::Zram && !swap::has_zram() {
        return Stop::refuse("no zram here: modprobe zram (or --kernel-swap file)");
    }
    if options.kernel_swap == KernelSwap::Zswap && !swap::has_zswap() {
        return Stop::refuse("this kernel has no zswap (CONFIG_ZSWAP; --kernel-swap zram or file)");
    }
    let active = swap::active();
    match active.iter().find(|(_, priority)| *priority >= swap::PRIORITY) {
        Some((path, priority)) => Stop::refuse(format!(
            "swap is on at {path} with priority {priority}, and would be filled before the one to be \
             measured: swapoff {path}"
        )),
        None => Ok(active),
    }
}

struct Bench<'a> {
    options: &'a Options,
    // Dropped before the cgroups: files of a swap device go first.
    scratch: Scratch,
    cgroups: Option<Cgroups>,
}

impl Bench<'_> {
    fn learn(&self, note: &mut dyn FnMut(&str), swap_before: Vec<(String, i32)>) -> Result<Comparison, Stop> {
        let options = self.options;
        let mut learned = Comparison {
            options: options.clone(),
            cgroup_version: self.cgroups.as_ref().map(|cgroups| cgroups.version),
            swap_before,
            takes_bytes: None,
            unlimited_s: None,
            ratio: None,
            sizes: Sizes { limit_bytes: 0, kernel_limit_bytes: 0, budget_bytes: 0, swap_bytes: 0 },
            pairs: Vec::new(),
            interrupted: None,
        };
        if options.kernel_swap == KernelSwap::None {
            let budget_bytes = options.limit_bytes.unwrap_or_else(|| memory_bytes() / 2);
            learned.sizes = Sizes {
                limit_bytes: budget_bytes,
                kernel_limit_bytes: u64::MAX,
                budget_bytes,
                swap_bytes: 0,
            };
            return Ok(learned);
        }
        let plain = self.plain()?;
        if let Some(failed) = plain.failed {
            return Stop::refuse(format!("the command fails without any limit, too: {failed}"));
        }
        let Some(takes_bytes) = plain.peak_bytes else {
            return Stop::refuse("this kernel does not tell the peak of a cgroup (memory.peak, Linux 5.19)");
        };
        note(&format!("without a limit: takes {}, {:.2} s", mib(takes_bytes), plain.wall_s));
        let limit_bytes = plan::limit(options.limit_bytes, takes_bytes)?;
        let mut ratio = options.ratio;
        if options.kernel_swap.has_pool() && ratio.is_none() {
            let (run, used) = self.kernel(limit_bytes, plan::swap_bytes(takes_bytes))?;
            let found = match used {
                Some(used) if used.stored_bytes > 0 => used.pool_bytes as f64 / used.stored_bytes as f64,
                _ => plan::RATIO_UNKNOWN,
            };
            note(&format!("the kernel's pool holds a page in {found:.2} of its size{}", told(&run)));
            ratio = Some(found);
        }
        learned.sizes = plan::sizes(
            self.has_pool_beside(),
            options.mode,
            limit_bytes,
            takes_bytes,
            ratio.unwrap_or(plan::RATIO_UNKNOWN),
        )?;
        (learned.takes_bytes, learned.unlimited_s, learned.ratio) =
            (Some(takes_bytes), Some(plain.wall_s), ratio);
        Ok(learned)
    }

    fn pair(
        &self,
        number: u32,
        sizes: &Sizes,
        note: &mut dyn FnMut(&str),
    ) -> Result<(SideRun, SideRun), Stop> {
        let mut order = [Side::Kernel, Side::Memspill];
        if number.is_multiple_of(2) {
            order.reverse();
        }
        let mut runs = Vec::new();
        for side in order {
            let run = match (side, self.options.kernel_swap) {
                (Side::Memspill, _) => self.memspill(sizes)?,
                (Side::Kernel, KernelSwap::None) => self.as_run(self.plain()?),
                (Side::Kernel, _) => self.kernel(sizes.kernel_limit_bytes, sizes.swap_bytes)?.0,
            };
            note(&format!(
                "pair {number} of {}, {}: {:.2} s{}",
                self.options.pairs,
                side.name(),
                run.ran.wall_s,
                told(&run)
            ));
            runs.push(run);
        }
        if order[0] == Side::Memspill {
            runs.reverse();
        }
        let memspill = runs.pop().expect("two runs");
        Ok((runs.pop().expect("two runs"), memspill))
    }

    fn as_run(&self, ran: CommandRun) -> SideRun {
        let (pool_peak_bytes, pool_is_beside) = (None, false);
        let (stats, load) = (Vec::new(), load());
        SideRun { ran, pool_peak_bytes, pool_is_beside, zswap: None, stats, load }
    }

    fn has_pool_beside(&self) -> bool {
        let version = self.cgroups.as_ref().map_or(0, |cgroups| cgroups.version);
        self.options.kernel_swap.has_pool_beside(version)
    }

    /// Without a limit, for the peak; where that is not to be had and not needed, none.
    fn group(&self) -> Result<Option<Group>, Stop> {
        let group = self.cgroups.as_ref().map(|cgroups| cgroups.group(None)).transpose();
        if self.options.kernel_swap == KernelSwap::None { Ok(group.unwrap_or(None)) } else { group }
    }

    fn plain(&self) -> Result<CommandRun, Stop> {
        let group = self.group()?;
        process::run(&self.options.command(), group.as_ref(), self.options.timeout, || {})
    }

    /// Also what the pool held when it held the most.
    fn kernel(&self, limit_bytes: u64, swap_bytes: u64) -> Result<(SideRun, Option<PoolUse>), Stop> {
        let load = load();
        let device = match self.options.kernel_swap {
            KernelSwap::File => Device::file(self.scratch.path(), swap_bytes)?,
            KernelSwap::Zswap => Device::zswap(self.scratch.path(), swap_bytes)?,
            _ => Device::zram(swap_bytes)?,
        };
        let group = match &self.cgroups {
            Some(cgroups) => cgroups.group(Some(limit_bytes))?,
            None => return Stop::refuse("no memory cgroup"),
        };
        let (mut most, mut pool_peak_bytes): (Option<PoolUse>, Option<u64>) = (None, None);
        let mut look = || {
            let Some(now) = device.pool_use() else { return };
            pool_peak_bytes = pool_peak_bytes.max(Some(now.pool_peak_bytes));
            if most.is_none_or(|most| now.stored_bytes > most.stored_bytes) {
                most = Some(now);
            }
        };
        let ran = process::run(&self.options.command(), Some(&group), self.options.timeout, &mut look)?;
        look();
        let (pool_is_beside, zswap, stats) = (self.has_pool_beside(), device.zswap_compressor(), Vec::new());
        let run = SideRun { ran, pool_peak_bytes, pool_is_beside, zswap, stats, load };
        Ok((run, most))
    }

    fn memspill(&self, sizes: &Sizes) -> Result<SideRun, Stop> {
        let stats_file = self.scratch.path().join("stats.json");
        let mut command: Vec<OsString> = vec![self.options.program.clone().into()];
        command.extend(["run", "--memory-max"].map(OsString::from));
        command.push(sizes.budget_bytes.to_string().into());
        match self.options.kernel_swap {
            KernelSwap::Zram => command.extend(["--swap", "ram:"].map(OsString::from)),
            // memspill's default: a pool in front of a file.
            KernelSwap::Zswap => command.extend(["--swap-dir".into(), self.scratch.path().into()]),
            KernelSwap::File => {
                let mut spec = OsString::from("file:");
                spec.push(self.scratch.path().join("memspill-swap"));
                spec.push(format!(",size={}", sizes.swap_bytes));
                command.extend([OsString::from("--swap"), spec]);
            }
            KernelSwap::None => {}
        }
        command.extend([OsString::from("--stats-json"), stats_file.clone().into()]);
        command.extend(self.options.with.iter().cloned());
        command.push("--".into());
        command.extend(self.options.command());
        let load = load();
        let group = self.group()?;
        let ran = process::run(&command, group.as_ref(), self.options.timeout, || {})?;
        let stats =
            fs::read_to_string(&stats_file).ok().and_then(|text| flat::numbers(&text)).unwrap_or_default();
        let _ = fs::remove_file(&stats_file);
        let pool =
            stats.iter().find(|(name, _)| name == "swap_ram_peak_bytes").map(|(_, bytes)| *bytes as u64);
        let pool_peak_bytes = pool.filter(|_| self.options.kernel_swap.has_pool());
        let (pool_is_beside, zswap) = (false, None);
        Ok(SideRun { ran, pool_peak_bytes, pool_is_beside, zswap, stats, load })
    }
}

fn told(run: &SideRun) -> String {
    run.ran.failed.as_ref().map_or(String::new(), |failed| format!("; failed: {failed}"))
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: u64 = line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(4 << 20);
    kib << 10
}
