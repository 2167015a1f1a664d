//! `memspill run`.
//!
//! Before anything starts: what the command is (exec.rs), then whether this machine can (doctor/). In that
//! order, so that 126 and 127 mean the same on every machine. The limits of this process are raised as far as
//! they may, and what is too small even so is refused. Then the swap devices are opened, so that a directory
//! without permission is an error before the command runs, and the supervisor takes over.

use crate::args::{self, OnOff, Options, RunArgs};
use crate::budget::{Budget, Following};
use crate::devices::{self, Opening};
use crate::exit;
use crate::groups::GroupSpec;
use crate::machine::Memory;
use crate::message::{plain, words};
use crate::reporting::Reporting;
use crate::{doctor, exec, groups, metrics, output, report, serve, size, spec};
use memspill_engine::devices::Device;
use memspill_engine::group::GroupConfig;
use memspill_engine::tuning::Tuning;
use memspill_engine::units::PAGE_SIZE;
use memspill_pager::ctl::host::Operator;
use memspill_pager::door::socket::Door;
use memspill_pager::door::source::{self, Mode};
use memspill_pager::limits::{self, Limits};
use memspill_pager::run::record::Recording;
use memspill_pager::run::{OnThrash, Run, Settings, Shared};
use memspill_pager::supervisor::{self, Config, Root};
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Runs the command within its budget; returns the exit code.
pub fn run(RunArgs { options, command }: RunArgs) -> u8 {
    let inspection = exec::inspect(&command[0]);
    if let Some((exit, reason)) = inspection.refusal() {
        eprintln!("memspill: {reason}");
        return exit;
    }
    // Before anything is opened: all that follows is under these limits.
    let limits = Limits::raise();
    let Some(mode) = mode_found(&options, options.mode) else { return exit::OWN_FAILURE };
    let has_loader = inspection.has_loader();
    let mode = mode_for(has_loader, mode, &options);
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let what = format!("memspill run: {}", words.join(" "));
    carry_out(&options, mode, limits, Root::Command { words: command, has_loader }, &what).unwrap_or_else(
        |reason| {
            eprintln!("memspill: {}", plain(&reason));
            exit::OWN_FAILURE
        },
    )
}

/// The fastest mode of those asked for that this machine has. None: it has none, and that was said.
pub fn mode_found(options: &Options, mode: args::Mode) -> Option<Mode> {
    match doctor::choose(doctor::Wanted { mode, holes: options.holes }) {
        Ok((mode, why)) => {
            if options.verbose {
                eprintln!("memspill: mode: {}", why.found);
            }
            Some(mode)
        }
        Err(blockers) => {
            eprint!("{}", doctor::refusal(&blockers));
            None
        }
    }
}

/// A run, from its preparation to its report. Returns the exit code, or why there is no run. `what`: a title.
pub fn carry_out(
    options: &Options,
    mode: Mode,
    limits: Limits,
    root: Root,
    what: &str,
) -> Result<u8, String> {
    let mut reporting = None;
    match prepare(options, mode, limits, root, what, &mut reporting)
        .and_then(|config| supervisor::supervise(config).map_err(|e| e.to_string()))
    {
        Ok(ended) => {
            report::at_the_end(options, &ended);
            reporting.inspect(|reporting| reporting.end(options, &ended));
            Ok(ended.exit_code as u8)
        }
        Err(reason) => {
            reporting.inspect(|reporting| reporting.discard());
            Err(reason)
        }
    }
}

/// A static program gets agent mode, if there is a choice: all its calls are trapped there.
fn mode_for(has_loader: bool, found: Mode, args: &Options) -> Mode {
    let is_free = args.mode == args::Mode::Auto && args.shared != Shared::All;
    if has_loader || found != Mode::Kernel || !is_free {
        return found;
    }
    let Ok((mode, _)) = doctor::choose(doctor::Wanted::AGENT) else { return found };
    if args.verbose {
        eprintln!("memspill: mode: {}, for the command is statically linked", doctor::described(mode));
    }
    mode
}

fn check_memory_max(bytes: u64) -> Result<(), String> {
    if bytes >= size::MEMORY_MAX_LEAST_BYTES {
        return Ok(());
    }
    let (given, least) = (size::human(bytes), size::human(size::MEMORY_MAX_LEAST_BYTES));
    // So small a number lacks its unit.
    let meant = if bytes < UNIT_LEFT_OUT_BYTES {
        format!("; a size without a unit is in bytes, {bytes}M is {bytes} MiB")
    } else {
        String::new()
    };
    Err(format!("{given} is too small: at least {least} are needed{meant}"))
}

fn more_than_there_is(memory_max_bytes: u64, memory: &Memory) -> String {
    let where_ = if memory.cgroup.is_some() { "container" } else { "machine" };
    format!(
        "--memory-max {} is more than the {} of this {where_}: nothing is swapped out before the kernel runs \
         short; -m auto takes what is free",
        size::human(memory_max_bytes),
        size::human(memory.usable_bytes())
    )
}

/// A page: no budget is that small.
const UNIT_LEFT_OUT_BYTES: u64 = PAGE_SIZE as u64;

/// The answers to `memspill ctl` that only the command line knows.
struct RunOperator {
    opening: Opening,
    following: Mutex<Following>,
    groups: Vec<GroupSpec>,
    /// The address for metrics, until the run has begun.
    listener: Mutex<Option<TcpListener>>,
    reporting: Option<Arc<Reporting>>,
}

impl Operator for RunOperator {
    fn open_device(
        &self,
        text: &str,
        before: usize,
        limit_bytes: u64,
        names: &[&str],
    ) -> Result<Device, String> {
        let spec = spec::parse(text).map_err(|e| e.to_string())?;
        devices::open_one(&spec, limit_bytes, before, names, &self.opening)
    }

    fn ram_limit_bytes(
        &self,
        limit_bytes: u64,
        pool_share_percent: u32,
        device: &Device,
    ) -> Result<u64, String> {
        check_memory_max(limit_bytes)?;
        Ok(devices::ram_limit_bytes(device, limit_bytes, pool_share_percent))
    }

    fn groups(&self, limit_bytes: u64) -> Result<Vec<GroupConfig>, String> {
        groups::rules(&self.groups, limit_bytes).map(|rules| rules.groups)
    }

    fn stats(&self, run: &Run, json: bool) -> String {
        if json { report::json(run, None) } else { report::table(run) }
    }

    fn metrics(&self, run: &Run) -> String {
        metrics::of_run(run)
    }

    fn budget_now(&self, used_bytes: u64) -> Option<u64> {
        let mut following = self.following.lock().expect("following");
        following.follows().then(|| following.next_bytes(&Memory::of_this_machine(), used_bytes)).flatten()
    }

    fn free_bytes(&self, pids: &[u32], own_bytes: u64) -> u64 {
        let own = Memory::of_this_machine();
        let of_each = pids.iter().map(|pid| {
            let memory = Memory::of_process(*pid);
            let returned_bytes = if memory.is_where(&own) { own_bytes } else { 0 };
            memory.free_bytes().saturating_add(returned_bytes)
        });
        of_each.fold(own.free_bytes().saturating_add(own_bytes), u64::min)
    }

    fn started(&self, run: &Arc<Run>) -> io::Result<()> {
        self.reporting.as_ref().map_or(Ok(()), |reporting| reporting.watch(run))?;
        let listener = self.listener.lock().expect("listener").take();
        listener.map_or(Ok(()), |listener| serve::serve(listener, run.clone()))
    }
}

/// `reporting`: what is opened of it is there even where something fails after it.
fn prepare(
    args: &Options,
    mode: Mode,
    limits: Limits,
    root: Root,
    what: &str,
    reporting: &mut Option<Arc<Reporting>>,
) -> Result<Config, String> {
    let memory = Memory::of_this_machine();
    let ram_bytes = memory.usable_bytes();
    let following = Following::new(args.memory_max);
    let memory_max_bytes = following.first_bytes(&memory);
    let typed =
        if args.memory_max == Budget::Auto { "--memory-max auto, by what is free:" } else { "--memory-max" };
    check_memory_max(memory_max_bytes).map_err(|e| format!("{typed} {e}"))?;
    if memory_max_bytes > ram_bytes {
        eprintln!("memspill: {}", more_than_there_is(memory_max_bytes, &memory));
    }
    if args.memory_max == Budget::Auto && args.on_thrash == OnThrash::Grow {
        return Err("--memory-max auto takes all there is already: leave out --on-thrash=grow".into());
    }
    Limits::refusal().map_or(Ok(()), Err)?;
    output::check_path("--stats-json", args.stats_json.as_deref())?;
    output::check_path("--record", args.record.as_deref())?;
    let by_agents = mode != Mode::Kernel;
    if by_agents && args.shared == Shared::All {
        return Err("--shared=all needs kernel mode, see 'memspill doctor'".into());
    }
    let mut tuning = Tuning::default();
    for knob in &args.tune {
        tuning.set(knob).map_err(|e| format!("--tune {knob}: {e}"))?;
    }
    let listener = args.metrics.map(serve::listen).transpose()?;
    if let Some(Ok(address)) = listener.as_ref().map(TcpListener::local_addr)
        && (args.verbose || args.metrics.is_some_and(|asked| asked.port() == 0))
    {
        eprintln!("memspill: metrics at http://{address}/metrics");
    }
    let layout = supervisor::layout_of_this_machine(memory_max_bytes);
    let disk_free_bytes = args.disk_free.resolve(ram_bytes).unwrap_or(0);
    let encrypt = args.encrypt == OnOff::On;
    let opening =
        Opening { disk_free_bytes, shared_pools: by_agents, encrypt, tuning: tuning.clone(), layout };
    let devices = devices::open(args, memory_max_bytes, &opening)?;
    let (source, features) = source::find_source(mode)?;
    let create = |path: &PathBuf| {
        File::create(path).map_err(|e| format!("--record {}: {}", path.display(), words(&e)))
    };
    let recording = args.record.as_ref().map(create).transpose()?.map(Recording::to).unwrap_or_default();
    let groups = groups::rules(&args.group, memory_max_bytes)?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    groups::check_devices(&groups.groups, &names)?;
    let door = Door::open(source, features, &groups, args.shared == Shared::All)
        .map_err(|e| limits::explained("cannot open the agents' socket", e).to_string())?;
    *reporting = Reporting::open(args, mode, what)?;
    let swap_max_bytes = args.swap_max.and_then(|s| s.resolve(ram_bytes));
    Ok(Config {
        root,
        devices,
        tuning,
        settings: Settings {
            memory_max_bytes,
            on_full: args.on_full,
            on_thrash: args.on_thrash,
            max_slowdown: args.max_slowdown,
            thrash_window: Duration::from_secs(args.thrash_window),
            verbose: args.verbose,
            check: args.check,
            keep_cpus_awake: args.keep_cpus_awake == OnOff::On,
            shared: match args.shared {
                // Faults of calls on it could be served for no process that has it mapped.
                Shared::Anonymous | Shared::All if by_agents => Shared::Counted,
                shared => shared,
            },
        },
        groups: groups.groups,
        swap_max_pages: swap_max_bytes.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64),
        door,
        layout,
        operator: Arc::new(RunOperator {
            opening,
            following: Mutex::new(following),
            groups: args.group.clone(),
            listener: Mutex::new(listener),
            reporting: reporting.clone(),
        }),
        recording,
        sampling: reporting.as_ref().map(|reporting| reporting.sampling()).unwrap_or_default(),
        limits,
    })
}
