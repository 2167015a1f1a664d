//! What is run, and in how much memory.
//!
//! ```text
//!   takes      what the work takes without any limit: the peak of a first run
//!   ratio      what a page takes in the kernel's pool, of 1: found in a run of the kernel's side
//!
//!   mode resident     kernel: limit L for uncompressed pages, its pool comes on top and is not counted
//!                     memspill: budget L + (takes - L) × ratio, which counts its pool, its tables and itself
//!   mode everything   memspill: budget L, pool included
//!                     kernel: the limit r at which pages and pool make up L: r + (takes - r) × ratio = L
//!   a swap file       L for both: there is no pool
//!   zswap             in front of a swap file. Cgroup v2 counts its pool: L for both. v1 does not: as zram
//!   no kernel swap    no limit for the plain program, a budget of half the machine's memory for memspill:
//!                     what memspill costs where nothing has to be swapped
//! ```

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use memspill_cli::signals::Stop;

pub const MIB: u64 = 1 << 20;

/// For messages and tables.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB as f64)
}

const LIMIT_LEAST_BYTES: u64 = 16 * MIB;
/// Memory of a workload whose size nobody gave.
const SIZE_BYTES: u64 = 512 * MIB;
const QUICK_SIZE_BYTES: u64 = 128 * MIB;
/// Nothing was swapped in the first run, so that nothing is known.
pub const RATIO_UNKNOWN: f64 = 0.5;

#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    Command(Vec<OsString>),
    Workload { name: String, words: Vec<OsString> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Resident,
    Everything,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Resident => "resident",
            Mode::Everything => "everything",
        }
    }
}

/// What the kernel's side swaps to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelSwap {
    Zram,
    Zswap,
    File,
    None,
}

impl KernelSwap {
    pub fn name(self) -> &'static str {
        match self {
            KernelSwap::Zram => "zram",
            KernelSwap::Zswap => "zswap",
            KernelSwap::File => "file",
            KernelSwap::None => "none",
        }
    }

    pub fn has_pool(self) -> bool {
        matches!(self, KernelSwap::Zram | KernelSwap::Zswap)
    }

    /// Is there a pool that the cgroup does not count?
    pub fn has_pool_beside(self, cgroup_version: u8) -> bool {
        self == KernelSwap::Zram || self == KernelSwap::Zswap && cgroup_version == 1
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub work: Work,
    pub pairs: u32,
    pub limit_bytes: Option<u64>,
    pub mode: Mode,
    pub kernel_swap: KernelSwap,
    pub ratio: Option<f64>,
    pub quick: bool,
    pub timeout: Duration,
    /// Where swap files are made.
    pub dir: PathBuf,
    /// Further words for memspill run.
    pub with: Vec<OsString>,
    /// This program, which is executed for memspill's side and for the workloads.
    pub program: PathBuf,
}

impl Options {
    /// The command as it is executed, without memspill.
    pub fn command(&self) -> Vec<OsString> {
        match &self.work {
            Work::Command(command) => command.clone(),
            Work::Workload { name, words } => {
                let mut command: Vec<OsString> = vec![self.program.clone().into()];
                command.extend(["bench", "workload", name].map(OsString::from));
                command.extend(words.iter().cloned());
                command.extend(self.default_words(name, words).into_iter().map(OsString::from));
                command
            }
        }
    }

    /// Sizes and lengths that were not given: twice the limit's memory in all.
    fn default_words(&self, name: &str, words: &[OsString]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let value = |option: &str| option_of(&words, option);
        let total_bytes = match (self.limit_bytes, self.quick) {
            (Some(limit_bytes), _) => 2 * limit_bytes,
            (None, true) => QUICK_SIZE_BYTES,
            (None, false) => SIZE_BYTES,
        };
        let count =
            |option: &str, default: u64| value(option).and_then(|n| n.parse().ok()).unwrap_or(default).max(1);
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let sizes: &[(&str, u64)] = match name {
            // Each process's own.
            "usemem" => &[("--size", total_bytes / count("--processes", 1))],
            // The region fits below the limit, and what pushes it out does not fit beside the pool.
            "seqswap" if words.iter().any(|word| word == "--pageout") => &[("--size", total_bytes / 2)],
            "seqswap" => &[("--size", total_bytes / 4), ("--push", total_bytes * 3 / 2)],
            "compile" => &[("--size", total_bytes / count("-j", cpus))],
            "cpu" => &[],
            _ => &[("--size", total_bytes)],
        };
        let mut added = Vec::new();
        for (option, bytes) in sizes {
            if value(option).is_none() {
                added.extend([option.to_string(), format!("{}K", bytes >> 10)]);
            }
        }
        let timed = matches!(name, "pmbench" | "random" | "shmem-read" | "verify-threads" | "mutate");
        if self.quick && timed && value("--seconds").is_none() {
            added.extend(["--seconds", "1"].map(String::from));
        }
        added
    }
}

/// The value of `--name value` or `--name=value`.
fn option_of(words: &[String], option: &str) -> Option<String> {
    words.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(option)? {
        "" => Some(words.get(at + 1).cloned().unwrap_or_default()),
        rest => rest.strip_prefix('=').map(String::from),
    })
}

/// The memory of both sides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// The L of the two modes.
    pub limit_bytes: u64,
    /// The limit of the kernel's side.
    pub kernel_limit_bytes: u64,
    /// The budget of memspill's side.
    pub budget_bytes: u64,
    /// The size of the swap devices of both, before compression: nobody is to run out.
    pub swap_bytes: u64,
}

/// L as asked for, or half of what the work takes.
pub fn limit(asked_bytes: Option<u64>, takes_bytes: u64) -> Result<u64, Stop> {
    let limit_bytes = asked_bytes.unwrap_or(takes_bytes / 2 / MIB * MIB);
    if limit_bytes >= takes_bytes {
        return Stop::refuse(format!(
            "nothing would be swapped: the command takes {}, and --limit is {}; lower it (or --kernel-swap \
             none, for what memspill costs where memory is not short)",
            mib(takes_bytes),
            mib(limit_bytes)
        ));
    }
    if limit_bytes < LIMIT_LEAST_BYTES {
        return Stop::refuse(format!(
            "the command takes {}, and the limit would be {}: less than {} tells nothing; take more memory \
             (--size)",
            mib(takes_bytes),
            mib(limit_bytes),
            mib(LIMIT_LEAST_BYTES)
        ));
    }
    Ok(limit_bytes)
}

/// Swap for work that takes so much: twice that, as pages of forked processes part.
pub fn swap_bytes(takes_bytes: u64) -> u64 {
    (2 * takes_bytes).max(64 * MIB).next_multiple_of(MIB)
}

/// `pool_beside`: the kernel's side has a pool that its limit is not of.
pub fn sizes(
    pool_beside: bool,
    mode: Mode,
    limit_bytes: u64,
    takes_bytes: u64,
    ratio: f64,
) -> Result<Sizes, Stop> {
    let mut sizes = Sizes {
        limit_bytes,
        kernel_limit_bytes: limit_bytes,
        budget_bytes: limit_bytes,
        swap_bytes: swap_bytes(takes_bytes),
    };
    if !pool_beside {
        return Ok(sizes);
    }
    match mode {
        Mode::Resident => {
            sizes.budget_bytes += ((takes_bytes - limit_bytes) as f64 * ratio) as u64;
        }
        Mode::Everything => {
            let resident = (limit_bytes as f64 - ratio * takes_bytes as f64) / (1.0 - ratio);
            if ratio >= 1.0 || resident < LIMIT_LEAST_BYTES as f64 {
                return Stop::refuse(format!(
                    "{} at {ratio:.2} of their size do not fit in {}, pool included: raise --limit, or \
                     --mode resident",
                    mib(takes_bytes),
                    mib(limit_bytes)
                ));
            }
            sizes.kernel_limit_bytes = resident as u64;
        }
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(name: &str, words: &str, quick: bool, limit_bytes: Option<u64>) -> Options {
        Options {
            work: Work::Workload {
                name: name.into(),
                words: words.split_whitespace().map(OsString::from).collect(),
            },
            pairs: 1,
            limit_bytes,
            mode: Mode::Resident,
            kernel_swap: KernelSwap::Zram,
            ratio: None,
            quick,
            timeout: Duration::from_secs(1),
            dir: "/var/tmp".into(),
            with: Vec::new(),
            program: "/bin/memspill-lab".into(),
        }
    }

    fn command(name: &str, words: &str, quick: bool, limit_bytes: Option<u64>) -> String {
        let words: Vec<String> = options(name, words, quick, limit_bytes)
            .command()
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }

    #[test]
    fn sizes_that_were_not_given() {
        let start = "/bin/memspill-lab bench workload";
        assert_eq!(command("pmbench", "", false, None), format!("{start} pmbench --size 524288K"));
        assert_eq!(command("pmbench", "", false, Some(64 * MIB)), format!("{start} pmbench --size 131072K"));
        assert_eq!(command("pmbench", "", true, None), format!("{start} pmbench --size 131072K --seconds 1"));
        let given = "--size=64M --seconds 2";
        assert_eq!(command("pmbench", given, true, None), format!("{start} pmbench {given}"));
        assert_eq!(
            command("usemem", "--processes 8", false, Some(MIB)),
            format!("{start} usemem --processes 8 --size 256K")
        );
        assert_eq!(
            command("seqswap", "", false, Some(8 * MIB)),
            format!("{start} seqswap --size 4096K --push 24576K")
        );
        assert_eq!(
            command("seqswap", "--pageout", false, Some(8 * MIB)),
            format!("{start} seqswap --pageout --size 8192K")
        );
        assert_eq!(command("compile", "-j 4", false, Some(MIB)), format!("{start} compile -j 4 --size 512K"));
        assert_eq!(command("cpu", "", true, None), format!("{start} cpu"));
    }

    #[test]
    fn limits() {
        assert_eq!(limit(None, 100 * MIB), Ok(50 * MIB));
        assert_eq!(limit(Some(30 * MIB), 100 * MIB), Ok(30 * MIB));
        let refused = |asked, takes| match limit(asked, takes) {
            Err(Stop::Refused(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert!(refused(Some(100 * MIB), 100 * MIB).contains("nothing would be swapped"));
        assert!(refused(None, 20 * MIB).contains("take more memory"));
    }

    #[test]
    fn what_is_counted_in_each_mode() {
        let size = |beside, mode, ratio| sizes(beside, mode, 100 * MIB, 200 * MIB, ratio);
        let resident = size(true, Mode::Resident, 0.5).unwrap();
        assert_eq!((resident.kernel_limit_bytes, resident.budget_bytes), (100 * MIB, 150 * MIB));
        let everything = sizes(true, Mode::Everything, 150 * MIB, 200 * MIB, 0.5).unwrap();
        assert_eq!((everything.kernel_limit_bytes, everything.budget_bytes), (100 * MIB, 150 * MIB));
        for ratio in [0.5, 1.0, 1.1] {
            assert!(matches!(size(true, Mode::Everything, ratio), Err(Stop::Refused(_))), "{ratio}");
        }
        let file = size(false, Mode::Everything, 1.0).unwrap();
        assert_eq!((file.kernel_limit_bytes, file.budget_bytes), (100 * MIB, 100 * MIB));
        assert_eq!([1, 2].map(|version| KernelSwap::Zswap.has_pool_beside(version)), [true, false]);
    }
}
