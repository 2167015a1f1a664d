//! `memspill-lab sim`: options of its subcommands, progress, and what they print. The work is in crates/sim.

use clap::{Args, Subcommand, ValueEnum};
use memspill_cli::args::parse_knob;
use memspill_cli::exit;
use memspill_cli::output::{OutputArgs, command_line, print};
use memspill_cli::progress::Progress;
use memspill_sim::bench::Pattern;
use memspill_sim::device;
use memspill_sim::policy::machine::Signal;
use memspill_sim::policy::trace::Trace;
use memspill_sim::policy::{self, recorded};
use memspill_sim::scale;
use memspill_sim::soak::{self, Coverage};
use memspill_sim::{calibrate, seeds};
use memspill_tables::Report;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Percent of a recording's pages that memory holds.
const FITS_DEFAULT: u32 = 50;

const EXAMPLES: &str = "\
Everything printed to stdout is a function of the command line: the same command prints
the same bytes on every machine (but for calibrate, which is there to look at this one, and
soak for so many minutes, which has more histories on a faster one).
See docs/simulation.md.

Examples:
  memspill-lab sim scale --cpus 1,16,256
  memspill-lab sim scale --cpus 1,48 --tune slot-batch=1 --tune cache-batch=1
  memspill-lab sim scale --cpus 1,16 --pattern zipf --devices 2 --fragmented 90
  memspill-lab sim soak --seed 1 --minutes 10
  memspill-lab sim seeds --seeds 5 --html seeds.html
  memspill-lab sim policy --signal faults
  memspill run -m 64M --record sort.faults sort big.txt; memspill-lab sim policy sort.faults";

#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Subcommand, Debug)]
enum SimCommand {
    /// Throughput on more and more virtual CPUs, and what time is lost in
    Scale(ScaleArgs),
    /// Random histories with failing devices and preemption, every page checked
    Soak(SoakArgs),
    /// The mechanisms of the published patch threads, old against new, beside what they reported
    Seeds(SeedsArgs),
    /// Which pages leave: replacement policies under traces, made ones or recorded faults
    Policy(PolicyArgs),
    /// Measure on this machine what the simulation's constants stand for
    Calibrate(CalibrateArgs),
}

#[derive(Args, Debug)]
struct ScaleArgs {
    /// Numbers of virtual CPUs, one row for each; efficiency is against the first
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    cpus: Vec<u32>,

    /// CPUs of a socket: a cache line takes longer to come from another one
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    cpus_per_socket: u32,

    /// Threads of each process; each thread has a CPU
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,

    /// Who serves faults and makes room: pager (threads as `memspill run` has them), direct (each thread for
    /// itself), or kernel (the same, with the kernel's own costs)
    #[arg(long, value_name = "WHO", value_enum, default_value_t = Arrangement::Pager)]
    #[arg(hide_possible_values = true)]
    arrangement: Arrangement,

    /// The number of pagers, instead of as many as `memspill run` would start
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pagers: Option<u32>,

    /// The number of reclaimers, instead of as many as `memspill run` would start
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    reclaimers: Option<u32>,

    /// Set a part of that arrangement back to what it was: counts (of threads: 8 pagers, 4 reclaimers),
    /// pokes (of all pagers after each batch), kicks (of all reclaimers), lines (that each fault writes
    /// to); repeatable
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',', hide_possible_values = true)]
    back: Vec<Back>,

    /// The pages that each thread touches: random (a fifth of it stores), zipf (loads), or in-order
    /// (stores, of its own part of the process)
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = PatternName::Random)]
    #[arg(hide_possible_values = true)]
    pattern: PatternName,

    /// A recording of `memspill run --record` in place of a pattern: each process touches its pages, and
    /// memory holds half of them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pattern", "threads"])]
    recorded: Option<PathBuf>,

    /// Swap devices of one priority, which take pages in turns
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=15))]
    devices: u32,

    /// The devices are so full from the start on, with free slots here and there
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=99))]
    fragmented: Option<u64>,

    /// Swap device: ram (compressed), ram-disk or nvme; as fast for many CPUs as for one
    #[arg(long, value_name = "KIND", value_enum, default_value_t = DeviceKind::Ram)]
    #[arg(hide_possible_values = true)]
    device: DeviceKind,

    /// Virtual milliseconds that are measured, after a quarter of that to warm up
    #[arg(long, value_name = "MS", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    ms: u64,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Set a tuning knob, such as slot-batch=1, or all to their old forms: old; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_knob)]
    tune: Vec<String>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct SoakArgs {
    /// Seed of the first history; the next ones have the numbers after it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Minutes after which no more history begins, 0.5 for half of one; a history takes a moment
    #[arg(long, value_name = "M", default_value = "1", value_parser = parse_minutes)]
    minutes: Duration,

    /// Histories, however long they take
    #[arg(long, value_name = "K", conflicts_with = "minutes")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct SeedsArgs {
    /// Seed of the random numbers of each setting's first run; the next ones have the numbers after it
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=u64::MAX - 100))]
    seed: u64,

    /// Runs of each setting, each with another seed: shown are medians, and the spread of changes
    #[arg(long, value_name = "K", default_value_t = seeds::SEEDS_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100))]
    seeds: u64,

    /// Virtual milliseconds that are measured, after a quarter of that to warm up
    #[arg(long, value_name = "MS", default_value_t = seeds::MS_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    ms: u64,

    /// The tables of one thread alone, of 000, 001, 002, 003 and 004
    #[arg(long, value_name = "THREAD", hide_possible_values = true)]
    #[arg(value_parser = ["000", "001", "002", "003", "004"])]
    thread: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct PolicyArgs {
    /// Recordings of `memspill run --record`, instead of the traces that are made
    #[arg(value_name = "FILE")]
    recorded: Vec<PathBuf>,

    /// Memory holds so many percent of the pages that a recording touches
    #[arg(long, value_name = "PERCENT", default_value_t = FITS_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=99))]
    fits: u32,

    /// What is known of pages in memory: faults (nothing), sampled (one in 16 stands by: unmapped, and kept),
    /// standby (each does) or bits (accessed bits); all four where none is named; repeatable
    #[arg(long, value_name = "SIGNAL", value_enum, value_delimiter = ',', hide_possible_values = true)]
    signal: Vec<SignalName>,

    /// Pages that memory holds in the traces that are made
    #[arg(long, value_name = "PAGES", default_value_t = policy::MEMORY_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(i64::from(recorded::MEMORY_LEAST)..=1 << 20))]
    memory: u32,

    /// Touches for each of these pages
    #[arg(long, value_name = "N", default_value_t = policy::TOUCHES_DEFAULT)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    touches: u32,

    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum SignalName {
    Faults,
    Sampled,
    Standby,
    Bits,
}

impl SignalName {
    fn signal(self) -> Signal {
        match self {
            SignalName::Faults => Signal::Faults,
            SignalName::Sampled => Signal::Sampled,
            SignalName::Standby => Signal::Standby,
            SignalName::Bits => Signal::Bits,
        }
    }
}

#[derive(Args, Debug)]
struct CalibrateArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Arrangement {
    Pager,
    Direct,
    Kernel,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum PatternName {
    Random,
    Zipf,
    InOrder,
}

impl PatternName {
    fn pattern(self) -> Pattern {
        match self {
            PatternName::Random => Pattern::Random { write_percent: 20 },
            PatternName::Zipf => Pattern::Zipf,
            PatternName::InOrder => Pattern::Sequential,
        }
    }
}

/// docs/simulation.md
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Back {
    Counts,
    Pokes,
    Kicks,
    Lines,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum DeviceKind {
    Ram,
    RamDisk,
    Nvme,
}

impl DeviceKind {
    fn kind(self) -> device::DeviceKind {
        match self {
            DeviceKind::Ram => device::DeviceKind::Ram,
            DeviceKind::RamDisk => device::DeviceKind::RamDisk,
            DeviceKind::Nvme => device::DeviceKind::Nvme,
        }
    }
}

/// Returns the exit code.
pub fn sim(args: &SimArgs) -> u8 {
    match &args.command {
        SimCommand::Scale(args) => scale(args),
        SimCommand::Soak(args) => soak(args),
        SimCommand::Seeds(args) => seeds(args),
        SimCommand::Policy(args) => policy(args),
        SimCommand::Calibrate(args) => {
            let measures = calibrate::measure();
            print(&if args.json { calibrate::json(&measures) } else { calibrate::table(&measures) })
        }
    }
}

fn scale(args: &ScaleArgs) -> u8 {
    if let Err(error) = args.output.check_page_path() {
        return usage(&error);
    }
    if args.arrangement == Arrangement::Pager && args.device == DeviceKind::Nvme {
        return usage("reads that end later are simulated with --arrangement direct and kernel only");
    }
    let threads = args.pagers.is_some() || args.reclaimers.is_some() || !args.back.is_empty();
    if args.arrangement != Arrangement::Pager && threads {
        return usage("--pagers, --reclaimers and --back are for --arrangement pager");
    }
    let recorded = args.recorded.as_deref().map(|path| read_recording(path, FITS_DEFAULT)).transpose();
    let touches = match recorded {
        Ok(Some(trace)) => scale::Touches::Recorded(trace),
        Ok(None) => scale::Touches::Made(args.pattern.pattern()),
        Err(error) => return usage(&error),
    };
    let options = scale::Options {
        cpus: args.cpus.clone(),
        seed: args.seed,
        cpus_per_socket: args.cpus_per_socket,
        threads: args.threads,
        arrangement: match args.arrangement {
            Arrangement::Pager => {
                let is_back = |what| args.back.contains(&what);
                let back = memspill_sim::Back {
                    counts: is_back(Back::Counts),
                    pokes: is_back(Back::Pokes),
                    kicks: is_back(Back::Kicks),
                    lines: is_back(Back::Lines),
                };
                scale::Arrangement::Pager { pagers: args.pagers, reclaimers: args.reclaimers, back }
            }
            Arrangement::Direct => scale::Arrangement::Direct,
            Arrangement::Kernel => scale::Arrangement::Kernel,
        },
        touches,
        kind: args.device.kind(),
        devices: args.devices,
        fragmented_percent: args.fragmented,
        ms: args.ms,
        tune: args.tune.clone(),
    };
    let mut progress = Progress::begin();
    // The time of a point grows with its CPUs.
    let work = |points: &[u32]| points.iter().map(|cpus| u64::from(*cpus)).sum();
    let begins = |at: usize, cpus: u32| {
        let (done, total) = (work(&args.cpus[..at]), work(&args.cpus));
        progress.show_left(&format!("{cpus} CPUs, {} of {}", at + 1, args.cpus.len()), done, total);
    };
    let points = scale::scale(&options, begins);
    drop(progress);
    match points {
        Ok(points) => args.output.write(&scale::report(&options, &points, command_line(crate::NAME))),
        Err(error) => usage(&error.to_string()),
    }
}

fn seeds(args: &SeedsArgs) -> u8 {
    if let Err(error) = args.output.check_page_path() {
        return usage(&error);
    }
    let thread = args.thread.clone();
    let options = seeds::Options { first_seed: args.seed, seeds: args.seeds, ms: args.ms, thread };
    let mut shown = Shown { output: &args.output, progress: Progress::begin(), printed: 0 };
    let report = seeds::seeds(&options, command_line(crate::NAME), &mut shown);
    shown.progress.clear();
    args.output.write_from(&report, shown.printed)
}

/// Each table is printed when it is done.
struct Shown<'a> {
    output: &'a OutputArgs,
    progress: Progress,
    /// Bytes of the report's text.
    printed: usize,
}

impl seeds::Watch for Shown<'_> {
    fn begins(&mut self, done: usize, total: usize, name: &str) {
        let text = format!("{done} of {total} settings, {name}");
        self.progress.show_left(&text, done as u64, total as u64);
    }

    fn has_table(&mut self, report: &Report) {
        self.progress.clear();
        self.output.write_so_far(report, &mut self.printed);
    }
}

fn policy(args: &PolicyArgs) -> u8 {
    if let Err(error) = args.output.check_page_path() {
        return usage(&error);
    }
    let recorded = match args.recorded.iter().map(|path| read_recording(path, args.fits)).collect() {
        Ok(recorded) => recorded,
        Err(error) => return usage(&error),
    };
    let mut signals: Vec<Signal> = args.signal.iter().map(|name| name.signal()).collect();
    signals.dedup();
    let options = policy::Options {
        seed: args.seed,
        memory: args.memory,
        touches: args.touches,
        recorded,
        signals: if signals.is_empty() { Signal::ALL.to_vec() } else { signals },
    };
    let mut progress = Progress::begin();
    let report = policy::policy(&options, command_line(crate::NAME), |done, total, name| {
        progress.show_left(&format!("{done} of {total} traces, {name}"), done as u64, total as u64);
    });
    drop(progress);
    args.output.write(&report)
}

/// `fits_percent`: memory holds so many of the pages that it touches.
fn read_recording(path: &Path, fits_percent: u32) -> Result<Trace, String> {
    let cannot = |why: String| format!("cannot read {}: {why}", path.display());
    // A device may have no end.
    if std::fs::metadata(path).is_ok_and(|file| !file.is_file()) {
        return Err(cannot("not a regular file".into()));
    }
    let bytes = std::fs::read(path).map_err(|e| cannot(e.to_string()))?;
    recorded::trace(&path.display().to_string(), &bytes, fits_percent)
}

fn usage(error: &str) -> u8 {
    eprintln!("memspill: {error}");
    exit::USAGE
}

fn parse_minutes(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(|minutes: f64| minutes * 60.0);
    let limit = seconds.ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    limit.filter(|limit| !limit.is_zero()).ok_or_else(|| "give minutes as 10, or 0.5".to_owned())
}

fn soak(args: &SoakArgs) -> u8 {
    let Some(end) = args.seed.checked_add(args.seeds.unwrap_or(1)) else {
        eprintln!("memspill: there are no seeds above {}", u64::MAX);
        return exit::USAGE;
    };
    let end = if args.seeds.is_some() { end } else { u64::MAX };
    let mut coverage = Coverage::new();
    let mut progress = Progress::begin();
    let (begun, mut histories) = (Instant::now(), 0);
    for seed in args.seed..end {
        if args.seeds.is_none() && histories > 0 && begun.elapsed() >= args.minutes {
            break;
        }
        // A fault is a panic, wherever in the engine or in the checks it happens.
        std::panic::set_hook(Box::new(move |panic| {
            eprintln!("memspill: seed {seed}: {panic}");
            eprintln!("memspill: repeat it with: memspill-lab sim soak --seed {seed} --seeds 1");
            std::process::exit(exit::FAILED.into());
        }));
        soak::history(seed, &mut coverage);
        histories += 1;
        let (done, total) = match args.seeds {
            Some(total) => (histories, total),
            None => (begun.elapsed().as_millis() as u64, args.minutes.as_millis() as u64),
        };
        progress.show_left(&format!("{histories} histories"), done, total);
    }
    drop((std::panic::take_hook(), progress));
    let text = if args.json { soak::json } else { soak::table };
    print(&text(args.seed, histories, &coverage))
}
