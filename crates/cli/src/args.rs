//! The command line: every option, its help, and what it defaults to, in one place.
//!
//! `memspill run` reads options up to COMMAND and no further, as timeout(1) and nice(1) do: in `memspill run
//! -m 1G sort -m` the second `-m` is sort's. An option that memspill does not know, before COMMAND, is an
//! error; a command whose name begins with `-` goes after `--`.
//!
//! Exit codes for a wrong command line: 125 for `run` (whose other codes are the command's) and `attach`,
//! else 2.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::budget::Budget;
use crate::exit;
use crate::groups::GroupSpec;
use crate::machine::is_in_ram;
use crate::message::plain;
use crate::serve;
use crate::size::Size;
use crate::spec::{self, SwapSpec};
use memspill_ctl::parse_range;
use memspill_pager::run::{OnFull, OnThrash, Shared};

/// Run a program in less memory than it needs: swap that lives in user space.
#[derive(Parser, Debug)]
#[command(
    name = "memspill",
    bin_name = "memspill",
    version,
    subcommand_required = true,
    arg_required_else_help = false
)]
#[command(disable_help_subcommand = true, after_help = TOP_EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a command within a memory budget; what does not fit is swapped out
    Run(Box<RunArgs>),
    /// Give a program that runs already a memory budget, until it is detached
    Attach(Box<AttachArgs>),
    /// Find the smallest budget with which a command is still fast enough
    Size(crate::sizing::SizeArgs),
    /// Look at running runs and change them: swap devices, budget
    Ctl(crate::ctl::CtlArgs),
    /// Watch all runs on one screen, and change them by keys
    Top(crate::top::TopArgs),
    /// Make a Jupyter kernel that runs within a memory budget
    Kernel(crate::kernel::KernelArgs),
    /// Say what this machine offers and lacks for memspill, and how to mend it
    Doctor(DoctorArgs),
    /// Print what bash, zsh or fish needs to complete memspill's options
    Completions(crate::completions::CompletionsArgs),
    /// Write the man pages into a directory
    Man(crate::manual::ManArgs),
}

const TOP_EXAMPLES: &str = "\
Examples:
  memspill run --memory-max 2G -- python3 train.py
  memspill attach -m 2G 4711
  memspill size -- python3 train.py
  memspill ctl swapon file:/data/swap,size=64G
  memspill top
  memspill doctor";

const RUN_EXAMPLES: &str = "\
Sizes: 512M, 2GiB, 1.5G (powers of 1024), 10GB (powers of 1000), 50% (of RAM, or of
the cgroup's limit where that is lower), plain bytes, max. For --memory-max also auto.

Swap devices, as with swapon; the highest priority fills first:
  ram:[,size=SIZE][,prio=N][,compress=lz4|wordwise|zstd-fast|zstd]
                                    compressed in RAM; counts against --memory-max
  ram:size=SIZE,compress=none[,prio=N]
                                    a RAM disk: pages as they are, in SIZE of RAM beside --memory-max
  file:PATH[,size=SIZE][,prio=N][,discard[=once|pages]][,encrypt=on|off][,overwrite]
                                    a file or block device; where PATH is not there, a file without
                                    a name in its directory, gone with memspill. Refused where it holds
                                    data, unless overwrite says that they may be lost
  nbd://HOST[:PORT]/EXPORT[,size=SIZE][,prio=N][,timeout=60s][,connections=N][,encrypt=on|off]
    [,overwrite][,mirror=URI]       an export of an NBD server, behind a pool of compressed RAM; pages wait
                                    for a server that is away, and are lost after timeout=. A mirror has
                                    them too: one of the two may be lost
  nbd+unix:///EXPORT?socket=PATH    the same by a socket; nbds://, nbds+unix:// with TLS, and then
                                    [,cacert=FILE][,cert=FILE,key=FILE], of PEM files

Memory groups, inside the budget, for programs by the name of their file (* and ? as in a shell):
  NAME,comm=PATTERN[,comm=...][,memory.max=SIZE][,memory.high=SIZE][,swap.max=SIZE][,parent=NAME]
    [,swap=DEVICE...]               its pages go to these devices only, by the names of 'memspill ctl swaps'
  What a program starts is in its group, unless another pattern matches. A percentage is of the budget.

Exit status: that of COMMAND, or 128+N where signal N ended it;
  125  memspill itself failed        126  COMMAND cannot be executed
  127  COMMAND was not found         137  killed, also when swap ran out (--on-full=kill)

Examples:
  memspill run -m 2G -- python3 train.py
  memspill run -m 50% --stats sort -S 90% big.txt
  memspill run -m 4G --group ld,comm=ld*,memory.max=1G -- make -j8
  memspill run -m 4G --swap ram:,size=1G,prio=100 --swap file:/data/swap,size=64G make -j8
  memspill run -m 4G --swap nbd://store.example/swap make -j8";

const ATTACH_EXAMPLES: &str = "\
PID stands still for a moment, and goes on. Programs that it starts from now on, and children, are within the
budget too. ^C, SIGTERM or 'memspill ctl detach' bring back all that is swapped out and let it go on without
memspill; if there is no memory for that, it stays attached. If memspill is killed (SIGKILL), PID ends too:
what is swapped out would be lost to it.

Sizes, swap devices and memory groups are as for run: see 'memspill run --help'. It is always agent mode.
It takes the right to trace PID (ptrace): be root, or its user where kernel.yama.ptrace_scope is 0.

Exit status: 0 when PID has ended or was detached;
  125  memspill itself failed, or cannot attach
  137  killed, also when swap ran out (--on-full=kill)

Examples:
  memspill attach -m 2G 4711
  sudo memspill attach -m 50% --swap file:/data/swap,size=64G $(pgrep -o postgres)
  memspill ctl limit 3G
  memspill ctl detach";

#[derive(Args, Debug)]
#[command(after_help = RUN_EXAMPLES, override_usage = "memspill run [OPTIONS] --memory-max <SIZE> [--] \
    COMMAND [ARG]...")]
pub struct RunArgs {
    #[command(flatten)]
    pub options: Options,

    /// The command and its arguments; options after COMMAND are the command's own
    // No allow_hyphen_values: with it a mistyped option of ours would be taken for COMMAND.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = ATTACH_EXAMPLES)]
pub struct AttachArgs {
    #[command(flatten)]
    pub options: Options,

    /// The process, which goes on as it is
    #[arg(value_name = "PID")]
    pub pid: u32,

    /// For a library in that process: a line is written to this descriptor, `attached PID` or what is wrong,
    /// and it is closed
    #[arg(long, value_name = "FD", hide = true)]
    pub ready_fd: Option<i32>,

    /// For a library in that process: only memory between these addresses is counted and managed
    #[arg(long, value_name = "START-END", hide = true, value_parser = parse_range)]
    pub arena: Option<(u64, u64)>,
}

/// What a run is asked for, whether it starts its program or not.
#[derive(Args, Debug)]
pub struct Options {
    /// Memory budget of the program and its children together
    ///
    /// Counted: their anonymous pages in RAM (heap, stacks, private mappings), pages compressed in RAM, pages
    /// on their way in or out, memspill's own tables, and shared memory, each object once. Not counted:
    /// program code, files in the page cache.
    ///
    /// A percentage follows the container's limit. `auto` is what others leave of that limit, or of the
    /// machine's memory, less a reserve of 48 MiB or more, and follows both.
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory_max: Budget,

    /// Most memory that may be swapped out [default: what the devices hold]
    // Hyphens are let through to the parser of sizes, which has the better words for a negative one.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub swap_max: Option<Size>,

    /// A memory group for some of the programs: NAME,comm=PATTERN[,memory.max=SIZE]... (see below);
    /// repeatable
    #[arg(long, value_name = "SPEC", value_parser = |text: &str| text.parse::<GroupSpec>())]
    pub group: Vec<GroupSpec>,

    /// Swap device: ram:..., file:PATH,... or nbd://HOST/EXPORT,... (see below); repeatable
    ///
    /// [default: compressed RAM first, then a file without a name in the --swap-dir]
    #[arg(long, value_name = "SPEC", value_parser = spec::parse)]
    pub swap: Vec<SwapSpec>,

    /// Directory of the default swap file [default: $MEMSPILL_DIR, else $TMPDIR unless that is RAM, else
    /// /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub swap_dir: Option<PathBuf>,

    /// Free disk space that swap files always leave
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, default_value = "1G")]
    pub disk_free: Size,

    /// Encrypt what goes to swap files and servers, by a key that is in RAM only: on, or off; encrypt= in a
    /// SPEC overrides it
    #[arg(long, value_name = "WHETHER", value_enum, default_value_t = OnOff::On)]
    #[arg(hide_possible_values = true)]
    pub encrypt: OnOff,

    /// When swap is full: kill (exit 137), or let the budget grow, with a warning
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = OnFull::Kill)]
    #[arg(hide_possible_values = true)]
    pub on_full: OnFull,

    /// When a process does next to nothing but wait for memory: warn, let the budget grow as far as memory is
    /// free, or kill (exit 137)
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = OnThrash::Warn)]
    #[arg(hide_possible_values = true)]
    pub on_thrash: OnThrash,

    /// How slow is thrashing: waiting has made a process more than FACTOR times slower for a minute
    #[arg(long, value_name = "FACTOR", default_value = "3", value_parser = parse_slowdown)]
    pub max_slowdown: f64,

    /// Another length than a minute, for tests
    #[arg(long, value_name = "SECONDS", default_value_t = 60, hide = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub thrash_window: u64,

    /// How faults are served: kernel (by a userfaultfd that serves the kernel's own faults, which takes a
    /// privilege), agent (by memspill's agent in each process, which traps system calls and brings the memory
    /// that they use) or auto, the first of these that is possible
    ///
    /// See 'memspill doctor' for what is possible here. In agent mode a system call costs 0.1 to 3
    /// microseconds more, and shared memory is counted and not swapped.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Mode::Auto)]
    #[arg(hide_possible_values = true)]
    pub mode: Mode,

    /// In agent mode, what stands where a page is away
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Holes::Auto, hide = true)]
    pub holes: Holes,

    /// Shared memory that kernel mode swaps: anonymous (MAP_SHARED|MAP_ANONYMOUS, /dev/zero), all
    /// (memfd, shm_open and mapped files of tmpfs too) or none. All is counted, unless it is none
    ///
    /// With all: what is swapped out of a file reads as zeros for whoever reads it past memspill. Calls by
    /// the C library, and processes that open it from outside, are seen, and the file is brought back for
    /// them; stdio and system calls by a program's own instructions on a descriptor are not. See
    /// docs/guide.md.
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Shared::Anonymous)]
    #[arg(hide_possible_values = true)]
    pub shared: Shared,

    /// Print statistics to stderr when the program ends: ten lines, or with --stats=all each one that there
    /// is
    #[arg(long, value_name = "WHICH", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "short", hide_possible_values = true)]
    pub stats: Option<Stats>,

    /// Write statistics as JSON to FILE when the program ends
    #[arg(long, value_name = "FILE")]
    pub stats_json: Option<PathBuf>,

    /// Write the faults to FILE as they are served, for memspill-lab; at most 256 MiB (33 million)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Write one HTML page about the run to FILE when it has ended: memory, faults and stalls over time,
    /// processes, who faulted most
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Serve statistics as OpenMetrics text at http://ADDR:PORT/metrics while the program runs; a PORT alone
    /// is for this machine only
    #[arg(long, value_name = "ADDR:PORT", value_parser = serve::parse_address)]
    pub metrics: Option<SocketAddr>,

    /// Keep idle CPUs from halting while faults come often, which serves faults sooner and takes more power:
    /// on, or off
    #[arg(long, value_name = "WHETHER", value_enum, default_value_t = OnOff::On)]
    #[arg(hide_possible_values = true)]
    pub keep_cpus_awake: OnOff,

    /// Set a knob of the laboratory, such as slot-batch=1, or all of them back: old; repeatable;
    /// `--tune help` lists them
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_knob, hide = true)]
    pub tune: Vec<String>,

    /// Check memspill's own tables at intervals (slow; ends the run at a fault found)
    #[arg(long)]
    pub check: bool,

    /// Say on stderr what memspill does
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Every check, and how to mend each lack
    #[arg(short, long)]
    pub verbose: bool,

    /// Directory to check for swap files [default: $MEMSPILL_DIR, else $TMPDIR unless that is RAM, else
    /// /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub swap_dir: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnOff {
    On,
    Off,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stats {
    Short,
    All,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Auto,
    Kernel,
    Agent,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holes {
    Auto,
    Userfaultfd,
    Guard,
}

/// Parses `--tune`. Names and values are the engine's to judge; the shape is checked here.
pub fn parse_knob(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok(text.to_owned()),
        None if text == memspill_engine::tuning::OLD => Ok(text.to_owned()),
        _ => Err("a knob is set as NAME=VALUE, such as slot-batch=1, or all of them back: old".to_owned()),
    }
}

/// Parses `--max-slowdown`.
fn parse_slowdown(text: &str) -> Result<f64, String> {
    let factor = text.strip_suffix('x').unwrap_or(text).parse::<f64>().ok();
    factor.filter(|factor| (1.1..=100.0).contains(factor)).ok_or("a number from 1.1 to 100, such as 5".into())
}

impl Options {
    /// Was that directory asked for by name?
    pub fn names_swap_dir(&self) -> bool {
        self.swap_dir.is_some() || std::env::var_os("MEMSPILL_DIR").is_some_and(|dir| !dir.is_empty())
    }

    /// The directory of the default swap file.
    pub fn swap_dir(&self) -> PathBuf {
        swap_dir(self.swap_dir.clone())
    }
}

/// The directory of the default swap file, from `--swap-dir` and the environment.
pub fn swap_dir(option: Option<PathBuf>) -> PathBuf {
    choose_dir(option, |name| std::env::var_os(name), is_in_ram)
}

/// Option, then environment, then /var/tmp: /tmp is often RAM itself, and a TMPDIR that is so is passed over.
/// Empty counts as unset.
fn choose_dir(
    option: Option<PathBuf>,
    variable: impl Fn(&str) -> Option<OsString>,
    is_in_ram: impl Fn(&Path) -> bool,
) -> PathBuf {
    let variable = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = option.or_else(|| variable("MEMSPILL_DIR"));
    let dir = own.or_else(|| variable("TMPDIR").filter(|dir| !is_in_ram(dir)));
    dir.unwrap_or_else(|| PathBuf::from("/var/tmp"))
}

/// `memspill run --tune help`, before a COMMAND: which knobs there are.
pub fn asks_for_knobs(arguments: &[OsString]) -> bool {
    let words = || arguments.iter().skip(2).take_while(|word| word.as_encoded_bytes() != b"--");
    let is_run = arguments.get(1).is_some_and(|first| first == OsStr::new("run"));
    let separate =
        words().zip(words().skip(1)).any(|(a, b)| a == OsStr::new("--tune") && b == OsStr::new("help"));
    is_run && (separate || words().any(|word| word == OsStr::new("--tune=help")))
}

/// The exit code for a command line that clap refused.
pub fn usage_exit(arguments: &[OsString]) -> u8 {
    let is_run = arguments.get(1).is_some_and(|first| first == "run" || first == "attach");
    if is_run { exit::OWN_FAILURE } else { exit::USAGE }
}

/// The subcommand of `command` that was meant, and its whole name: `memspill ctl limit`.
pub fn command_meant(mut command: clap::Command, arguments: &[OsString]) -> (clap::Command, String) {
    command.build();
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(next) = command.find_subcommand(word) {
            command = next.clone();
        }
    }
    let name = command.get_bin_name().unwrap_or("memspill").to_owned();
    (command, name)
}

/// A subcommand is due, and nothing came: who typed this wants to see what there is.
pub fn lacks_subcommand(error: &clap::Error) -> bool {
    use clap::error::ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand, MissingSubcommand};
    matches!(error.kind(), MissingSubcommand | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// What was meant, where a newcomer most often errs: nothing says how much memory, or what to run, or that it
/// is `run` that runs something. None: clap's own hint, or the help, is the better answer.
pub fn mend(error: &clap::Error, name: &str) -> Option<&'static str> {
    use clap::error::{ContextKind, ErrorKind};
    let is_guessed = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand]
        .iter()
        .any(|kind| error.get(*kind).is_some());
    match (error.kind(), name) {
        (ErrorKind::MissingRequiredArgument, "memspill run") => {
            Some("such as: memspill run -m 2G -- python3 train.py")
        }
        (ErrorKind::MissingRequiredArgument, "memspill attach") => {
            Some("such as: memspill attach -m 2G 4711")
        }
        (ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument, "memspill") if !is_guessed => {
            Some("to run a command: memspill run -m 2G -- COMMAND")
        }
        _ => None,
    }
}

/// clap's error as one line: what is wrong and the likely name that was meant, without the usage that
/// follows.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.split("\n\nUsage:").next().unwrap_or_default();
    let text = text.split("\n\nFor more information").next().unwrap_or_default();
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let (tips, message): (Vec<&str>, Vec<&str>) = text
        .split('\n')
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .partition(|line| line.starts_with("tip: "));
    let mut line = message.join(" ");
    // The other tip, to write `-- --option`, is for a command whose name begins with a hyphen: nobody has
    // one.
    for tip in tips.iter().filter(|tip| tip.contains("similar")) {
        line.push_str(&tip.replacen("tip: ", "; ", 1));
    }
    plain(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(arguments: &[&str]) -> RunArgs {
        match Cli::try_parse_from(["memspill", "run"].iter().chain(arguments)).map(|cli| cli.command) {
            Ok(Command::Run(run)) => *run,
            other => panic!("{arguments:?}: {other:?}"),
        }
    }

    fn refused(arguments: &[&str]) -> String {
        one_line(&Cli::try_parse_from(["memspill"].iter().chain(arguments)).unwrap_err())
    }

    #[test]
    fn clap_finds_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults() {
        let args = run(&["-m", "2G", "true"]).options;
        assert_eq!(args.memory_max, Budget::Size(Size::Bytes(2 << 30)));
        assert_eq!((args.swap_max, args.disk_free), (None, Size::Bytes(1 << 30)));
        assert_eq!((args.on_full, args.swap.len(), args.tune.len()), (OnFull::Kill, 0, 0));
        assert!(args.stats.is_none() && !args.check && !args.verbose);
    }

    #[test]
    fn options_stop_at_the_command() {
        for arguments in [
            &["-m", "1G", "sort", "-m", "--stats", "--", "-x"][..],
            &["-m", "1G", "--", "sort", "-m", "--stats", "--", "-x"][..],
        ] {
            let args = run(arguments);
            assert_eq!(args.command, ["sort", "-m", "--stats", "--", "-x"], "{arguments:?}");
            assert_eq!(args.options.stats, None);
        }
        assert_eq!(run(&["-m", "1G", "--", "--odd", "--help"]).command, ["--odd", "--help"]);
        assert_eq!(run(&["-m1G", "prog", "--help"]).command, ["prog", "--help"]);
        let args = run(&["-m1G", "--stats", "all"]);
        assert!(args.options.stats == Some(Stats::Short) && args.command == ["all"]);
        assert_eq!(run(&["-m1G", "--stats=all", "true"]).options.stats, Some(Stats::All));
        assert_eq!(run(&["-m1G", "prog", "--version"]).command, ["prog", "--version"]);
    }

    #[test]
    fn repeatable() {
        let args = run(&[
            "-m1G",
            "--swap",
            "ram:",
            "--swap=file:/x,size=1G",
            "--tune",
            "a=1",
            "--tune=old",
            "-v",
            "true",
        ])
        .options;
        assert_eq!(args.swap.len(), 2);
        assert_eq!(args.tune, ["a=1", "old"]);
        assert!(args.verbose);
    }

    #[test]
    fn refusals_are_one_line() {
        let cases: [(&[&str], &str); 16] = [
            (&["run", "-m", "1G", "--swap-max", "-3G", "true"], "cannot be negative"),
            (&["run", "-m", "--stats", "true"], "no number"),
            (&["run", "true"], "--memory-max"),
            (&["run", "-m", "1G"], "COMMAND"),
            (&["run", "-m", "1X", "true"], "unknown unit"),
            (&["run", "-m", "0", "true"], "more than zero"),
            (&["run", "-m", "1G", "--bogus", "true"], "--bogus"),
            (&["run", "-m", "1G", "--memory", "1G", "true"], "--memory"),
            (&["run", "-m", "1G", "-m", "1G", "true"], "cannot be used multiple times"),
            (&["run", "-m", "1G", "--swap", "file:", "true"], "needs a path"),
            (&["run", "-m", "1G", "--tune", "x", "true"], "NAME=VALUE"),
            (&["run", "-m", "1G", "--on-full", "cry", "true"], "kill"),
            (&["attach", "-m", "1G"], "PID"),
            (&["attach", "-m", "1G", "python3"], "invalid value"),
            (&[], "subcommand"),
            (&["rum"], "rum"),
        ];
        for (arguments, expected) in cases {
            let line = refused(arguments);
            assert!(
                line.contains(expected)
                    && !line.contains('\n')
                    && !line.contains("Usage")
                    && !line.contains("tip:"),
                "{line}"
            );
        }
    }

    #[test]
    fn exit_codes_of_a_wrong_command_line() {
        let code = |words: &[&str]| usage_exit(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(code(&["memspill", "run", "--bogus"]), 125);
        assert_eq!(code(&["memspill", "attach", "--bogus"]), 125);
        assert_eq!(code(&["memspill", "doctor", "--bogus"]), 2);
        assert_eq!(code(&["memspill"]), 2);
    }

    #[test]
    fn the_command_that_was_meant_is_named() {
        let meant = |words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            command_meant(Cli::command(), &words).1
        };
        assert_eq!(meant("memspill"), "memspill");
        assert_eq!(meant("memspill --bogus"), "memspill");
        assert_eq!(meant("memspill ctl --pid 4711 limit"), "memspill ctl limit");
        assert_eq!(meant("memspill run -m 64M top"), "memspill run", "that is the program's name");
    }

    #[test]
    fn swap_directory() {
        let dir = |option: Option<&str>, own: &str, tmp: &str| {
            let variable = |name: &str| Some(OsString::from(if name == "MEMSPILL_DIR" { own } else { tmp }));
            choose_dir(option.map(PathBuf::from), variable, |dir| dir.starts_with("/ram"))
        };
        assert_eq!(dir(Some("/a"), "/b", "/c"), PathBuf::from("/a"));
        assert_eq!(dir(None, "/b", "/c"), PathBuf::from("/b"));
        assert_eq!(dir(None, "", "/c"), PathBuf::from("/c"));
        assert_eq!(dir(None, "", ""), PathBuf::from("/var/tmp"));
        assert_eq!(dir(None, "", "/ram"), PathBuf::from("/var/tmp"));
        assert_eq!(dir(None, "/ram", "/c"), PathBuf::from("/ram"), "that was asked for");
        assert_eq!(choose_dir(None, |_| None, |_| false), PathBuf::from("/var/tmp"));
    }
}
