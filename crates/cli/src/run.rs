//! `memspill run`.
//!
//! Before anything starts: what the command is (exec.rs), then whether this machine can (doctor.rs). In that order,
//! so that 126 and 127 mean the same on every machine. Then the swap devices are opened, so that a directory without
//! permission is an error before the command runs, and the supervisor takes over.

use crate::args::{EXIT_OWN_FAILURE, OnFull, RunArgs};
use crate::machine::Memory;
use crate::{devices, doctor, exec, groups, report, size};
use memspill_engine::tuning::Tuning;
use memspill_engine::units::PAGE_SIZE;
use memspill_pager::handshake::{self, Door};
use memspill_pager::pager::Settings;
use memspill_pager::supervisor::{self, Config, Layout};

/// Least budget with which a program gets anywhere: our own tables, two batches of staging, and some pages to work with.
const MEMORY_MAX_LEAST_BYTES: u64 = 8 << 20;

/// Runs the command within its budget; returns the exit code.
pub fn run(args: RunArgs) -> u8 {
    if let Some((exit, reason)) = exec::inspect(&args.command[0]).refusal() {
        eprintln!("memspill: {reason}");
        return exit;
    }
    let blockers = doctor::blockers();
    if !blockers.is_empty() {
        eprint!("{}", doctor::refusal(&blockers));
        return EXIT_OWN_FAILURE;
    }
    match prepare(&args).and_then(|config| supervisor::run(config).map_err(|e| e.to_string())) {
        Ok(ended) => {
            report::at_the_end(&args, &ended);
            ended.exit_code as u8
        }
        Err(reason) => {
            eprintln!("memspill: {reason}");
            EXIT_OWN_FAILURE
        }
    }
}

fn prepare(args: &RunArgs) -> Result<Config, String> {
    let ram_bytes = Memory::of_this_machine().usable_bytes();
    let memory_max_bytes = args.memory_max.resolve(ram_bytes).unwrap_or(ram_bytes);
    if memory_max_bytes < MEMORY_MAX_LEAST_BYTES {
        return Err(format!(
            "--memory-max {} is too small: at least {} are needed",
            size::human(memory_max_bytes),
            size::human(MEMORY_MAX_LEAST_BYTES)
        ));
    }
    let mut tuning = Tuning::default();
    for knob in &args.tune {
        tuning.set(knob).map_err(|e| format!("--tune {knob}: {e}"))?;
    }
    let layout = Layout::of_this_machine();
    let devices = devices::open(args, memory_max_bytes, ram_bytes, &tuning, layout)?;
    let (source, features) = handshake::find_source()?;
    let door = Door::open(source, features).map_err(|e| format!("cannot open the agents' socket: {e}"))?;
    let swap_max_bytes = args.swap_max.and_then(|s| s.resolve(ram_bytes));
    Ok(Config {
        command: args.command.clone(),
        devices,
        tuning,
        settings: Settings {
            memory_max_bytes,
            on_full: match args.on_full {
                OnFull::Kill => memspill_pager::pager::OnFull::Kill,
                OnFull::Grow => memspill_pager::pager::OnFull::Grow,
            },
            verbose: args.verbose,
            check: args.check,
        },
        groups: groups::rules(&args.group, memory_max_bytes)?,
        swap_max_pages: swap_max_bytes.map_or(u64::MAX, |bytes| bytes / PAGE_SIZE as u64),
        door,
        layout,
    })
}
